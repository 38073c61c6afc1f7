"""The numeric comparison: what agrees, what does not, and what is said about it."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import compare, notebooks
from tools.compare import Tolerance

DEFAULT = Tolerance()

AGREE = [
    ("error 1.0000001", "error 1.0"),
    ("x −1.5e−3 y", "x -1.5e-3 y"),
    ("[ 0.  -0.5]", "[-1e-17 -0.5]"),
    ("nan and inf", "nan and inf"),
    ("NaN", "nan"),
    ("1,234.5678", "1,234.5679"),
    ("1.00000 m", "0.999999 m"),
    ("0.333333", "0.333334"),
    ("(1.5)", "(1.50000001)"),
    ("1e-3", "0.001"),
    ("3.", "3.0000000001"),
    ("a\t b  \n", "a b"),
    ("10.5%", "10.5000001%"),
    ("x=-2.5", "x=-2.50000001"),
    ("<img src='data:image/png;base64,iVBORw0KGgo='>", "<img src='data:image/png;base64,AAAA'>"),
]
DIFFER = [
    ("error 1.01", "error 1.0"),
    ("error 1.0", "error -1.0"),
    ("layer1 2", "layer2 2"),
    ("0.13.2", "0.13.3"),
    ("f:thm-3", "f:thm-4"),
    ("0x7fabc1", "0x7fabc2"),
    ("nan", "1.0"),
    ("inf", "-inf"),
    ("inf", "1e300"),
    ("1234567", "1234568"),
    ("1234567.", "1234568."),
    ("-1234567", "-1234568"),
    ("1,234,567", "1,234,568"),
    ("shape (3, 4)", "shape (3, 5)"),
    ("0.5", "0.6"),
    ("0.33333", "0.33334"),
    ("0.333333", "0.333335"),
    ("2 3", "23"),
    ("1.5 2.5", "1.5"),
    ("1.5s", "1.50000001s"),
    ("a\nb 1", "a\nc 1"),
    ("a\nb", "a\n\nb"),
    ("a b", "ab"),
    ("", "a"),
    ("2.5e-07", "2.6e-07"),
    ("10^-3", "10^-4"),
    ("infinite", "infinity"),
]


@pytest.mark.parametrize(("old", "new"), AGREE)
def test_agree(old, new):
    assert compare.texts(old, new, DEFAULT) == []
    assert compare.texts(new, old, DEFAULT) == []


@pytest.mark.parametrize(("old", "new"), DIFFER)
def test_differ(old, new):
    assert compare.texts(old, new, DEFAULT)
    assert compare.texts(new, old, DEFAULT)


WORDS = st.text(st.sampled_from("abcxyz ,:;()[]=<>|°é\n"), max_size=12)
VALUES = st.floats(min_value=1e-6, max_value=1e12).flatmap(lambda x: st.sampled_from([x, -x]))
PARTS = st.lists(st.tuples(WORDS, VALUES), min_size=1, max_size=6)


def text_of(parts, change=lambda i, x: x):
    return " ".join(f"{words} {change(i, x)!r}" for i, (words, x) in enumerate(parts))


@given(PARTS, st.floats(-0.9, 0.9))
def test_numbers_within_the_tolerance_agree(parts, share):
    moved = text_of(parts, lambda i, x: x * (1 + share * DEFAULT.rtol))
    assert compare.texts(text_of(parts), moved, DEFAULT) == []


@given(PARTS, st.data(), st.floats(1.1, 1e6), st.sampled_from([1, -1]))
def test_one_number_beyond_the_tolerance_differs(parts, data, times, sign):
    place = data.draw(st.integers(0, len(parts) - 1))
    far = sign * times * (DEFAULT.rtol * abs(parts[place][1]) + DEFAULT.atol)
    moved = text_of(parts, lambda i, x: x + far if i == place else x)
    (difference,) = compare.texts(text_of(parts), moved, DEFAULT)
    assert difference.relative > 0


@given(PARTS, st.data(), st.sampled_from("QRS"))
def test_a_changed_letter_differs(parts, data, letter):
    text = text_of(parts)
    place = data.draw(st.integers(0, len(text)))
    (difference,) = compare.texts(text, f"{text[:place]}{letter}{text[place:]}", DEFAULT)
    assert difference.relative is None


@given(st.integers(-(10**30), 10**30), st.integers(1, 1000))
def test_integers_must_be_equal(value, step):
    assert compare.texts(f"n = {value}", f"n = {value}", DEFAULT) == []
    assert compare.texts(f"n = {value}", f"n = {value + step}", DEFAULT)


@given(st.text(), st.text())
def test_any_text_agrees_with_itself_and_none_crashes(one, other):
    assert compare.texts(one, one, compare.EXACT) == []
    compare.texts(one, other, DEFAULT)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8))
def test_data_agrees_with_itself(value):
    assert compare.data({"a": value}, json.loads(json.dumps({"a": value})), DEFAULT) == []


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ({"a": [1, 2.5]}, {"a": [1, 2.6]}, r"j\.a\[1\]: saved 2.5, now 2.6 \(relative difference 0.038\)"),
        ({"a": 1}, {"b": 1}, r"j: saved keys \['a'\], now keys \['b'\]"),
        ([1], [1, 2], "j: saved 1 entries, now 2 entries"),
        ({"a": 1000000}, {"a": 1000001}, "j.a: saved 1000000"),
        ({"a": True}, {"a": 1}, "j.a: saved 'True', now '1'"),
        ({"a": None}, {"a": 0.0}, "j.a: saved 'None'"),
        ({"a": "x 1.5"}, {"a": "x 1.6"}, "j.a, line 1: saved 1.5, now 1.6"),
        ({"a": [1]}, {"a": {"0": 1}}, "j.a: saved"),
    ],
)
def test_data_differs(old, new, where):
    (difference,) = compare.data(old, new, DEFAULT, "j")
    assert re.match(where, str(difference))
    assert compare.data(old, old, DEFAULT) == []


# ---------------------------------------------------------------- outputs


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def shown(**data):
    names = {"plain": "text/plain", "html": "text/html", "png": "image/png", "view": compare.WIDGET_VIEW}
    names["claim"] = "application/vnd.memlib.claim+json"
    return {"output_type": "display_data", "metadata": {}, "data": {names[key]: value for key, value in data.items()}}


OUTPUTS = [
    ([stream("a 1.5\n")], [stream("a 1.50000001\n")], True),
    ([stream("a 1.5\n")], [stream("a 1.6\n")], False),
    ([stream("a"), stream("b")], [stream("ab")], True),
    ([stream(["a", "b"])], [stream("ab")], True),
    ([stream("a")], [stream("a", "stderr")], False),
    ([stream("a")], [stream("a"), stream("warning", "stderr")], False),
    ([stream("a")], [], False),
    ([], [stream("a")], False),
    ([stream("a"), shown(plain="b")], [shown(plain="b"), stream("a")], False),
    ([shown(plain="b 1.5")], [shown(plain="b 1.6")], False),
    ([shown(plain="b")], [{**shown(plain="b"), "output_type": "execute_result"}], False),
    ([shown(plain="b", png="AAAA")], [shown(plain="b", png="BBBB")], True),
    ([shown(plain="b", png="AAAA")], [shown(plain="b")], False),
    ([shown(plain="b", html="<p>1.5</p>")], [shown(plain="b", html="<p>1.7</p>")], False),
    ([shown(plain="b", html="<p>x</p>")], [shown(plain="b", html="<b>x</b>")], False),
    ([shown(claim={"holds": True})], [shown(claim={"holds": False})], False),
    ([shown(claim={"measured": {"a": 1.5}})], [shown(claim={"measured": {"a": 1.51}})], False),
    (
        [shown(view={"model_id": "a", "version_major": 2}, plain="b")],
        [shown(view={"model_id": "c", "version_major": 2}, plain="b")],
        True,
    ),
    ([shown(view={"model_id": "a"}, plain="b")], [shown(plain="b")], False),
]


@pytest.mark.parametrize(("old", "new", "agree"), OUTPUTS, ids=range(len(OUTPUTS)))
def test_outputs(old, new, agree):
    before = json.dumps([old, new])
    assert (compare.outputs(old, new, DEFAULT) == []) is agree
    assert json.dumps([old, new]) == before


def test_message_names_place_numbers_and_difference():
    (difference,) = compare.outputs([stream("a\nb 1.5 2.0\n")], [stream("a\nb 1.5 2.5\n")], DEFAULT)
    assert str(difference) == "output 1, stdout, line 2: saved 2.0, now 2.5 (relative difference 0.2)"


def test_message_shows_where_long_lines_part():
    start = "word 1.5 " * 100
    (difference,) = compare.texts(f"{start}here", f"{start}there", DEFAULT)
    assert "1.5 here'" in difference.reference and "1.5 there'" in difference.found
    assert len(str(difference)) < 200


def cell(source="1 + 1", count=1, outputs=(), tags=()):
    return {"source": source, "execution_count": count, "outputs": list(outputs), "metadata": {"tags": list(tags)}}


@pytest.mark.parametrize(
    ("given_cell", "message"),
    [
        (cell(), None),
        (cell(source=" \n", count=None), None),
        (cell(tags=["nbval-ignore-output", "hide-input"]), None),
        (cell(count=None), "saved without having been run"),
        (cell(outputs=[{"output_type": "error", "ename": "E", "evalue": "no"}]), "saved with an error: E: no"),
        (cell(tags=["nbval-skip"]), "the tag nbval-skip hides"),
        (cell(tags=["raises-exception"]), "the tag raises-exception hides"),
        (cell(source="# NBVAL_IGNORE_OUTPUT\n1"), "the comment NBVAL_IGNORE_OUTPUT hides"),
        (cell(source=["a = 1\n", "#NBVAL_SKIP\n"]), "the comment NBVAL_SKIP hides"),
    ],
)
def test_saved_problems(given_cell, message):
    problems = compare.saved_problems(given_cell)
    assert problems == [] if message is None else message in problems[0]


def test_ignored_cells_are_not_compared():
    assert compare.is_compared(cell())
    assert not compare.is_compared(cell(tags=["nbval-ignore-output"]))


# ---------------------------------------------------------------- tolerance


def test_tolerance_of_a_notebook():
    assert compare.tolerance_of({}) == Tolerance(1e-6, 1e-9)
    given_one = {"rtol": 1e-3, "reason": "long sums"}
    assert compare.tolerance_of({"memlib": {"tolerance": given_one}}) == Tolerance(1e-3, 1e-9, "long sums")
    tight = {"atol": 0, "reason": "numbers near the smallest"}
    assert compare.tolerance_of({"memlib": {"tolerance": tight}}).atol == 0


@pytest.mark.parametrize(
    ("given_one", "message"),
    [
        ({"rtol": 1e-3}, "has no reason"),
        ({"rtol": 1e-3, "reason": " "}, "has no reason"),
        ({"rtol": 0.02, "reason": "x"}, r"rtol is 0.02; allowed is 0 to 0.01"),
        ({"rtol": -1, "reason": "x"}, "rtol is -1"),
        ({"rtol": "1e-3", "reason": "x"}, "rtol is '1e-3'"),
        ({"atol": 1e-3, "reason": "x"}, r"atol is 0.001; allowed is 0 to 1e-06"),
        ({"tol": 1e-3, "reason": "x"}, "has tol; allowed are rtol, atol, reason"),
    ],
)
def test_bad_tolerances(given_one, message):
    with pytest.raises(ValueError, match=message):
        compare.tolerance_of({"memlib": {"tolerance": given_one}})


# ---------------------------------------------------------------- saving


def test_tidy_gives_the_same_notebook_for_other_random_ids():
    import nbformat

    def notebook(ids, moment):
        view = {compare.WIDGET_VIEW: {"model_id": ids[1], "version_major": 2, "version_minor": 0}}
        code = nbformat.v4.new_code_cell("show()", outputs=[nbformat.v4.new_output("display_data", view)])
        code.metadata["execution"] = {"iopub.execute_input": moment}
        again = nbformat.v4.new_code_cell("show()")
        state = {
            ids[0]: {"model_name": "A"},
            ids[1]: {"model_name": "B", "state": {"children": [f"IPY_MODEL_{ids[0]}"]}},
        }
        metadata = {
            "widgets": {notebooks.WIDGET_STATE: {"state": state}},
            "language_info": {"name": "python", "version": moment},
        }
        return nbformat.v4.new_notebook(cells=[code, again], metadata=metadata)

    one = notebooks.tidy(notebook(["c" * 32, "a" * 32], "today"))
    other = notebooks.tidy(notebook(["d" * 32, "e" * 32], "tomorrow"))
    assert one == other
    nbformat.validate(one)
    text = json.dumps(one)
    assert "aaaa" not in text and "today" not in text and f"IPY_MODEL_{0:032x}" in text
    assert len({c.id for c in one.cells}) == 2
    assert notebooks.tidy(one) == other


def test_a_notebook_that_raises_is_left_alone(tmp_path, capfd):
    import nbformat

    path = tmp_path / "bad.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), path)
    before = path.read_bytes()
    assert notebooks.main([str(path)]) == 1
    assert path.read_bytes() == before
    out = capfd.readouterr().out
    assert "FAILED after" in out and "ZeroDivisionError" in out
    assert [p.name for p in tmp_path.iterdir()] == ["bad.ipynb"]
