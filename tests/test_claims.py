"""Claims: every rule on hand-made data, the way to JSON and back, bad input, and that every verdict can turn."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from memlib.claims import (
    CLAIM_MIME,
    KINDS,
    RULES,
    Above,
    Agrees,
    All,
    Below,
    Between,
    Claim,
    Decreasing,
    Dominated,
    Equals,
    Increasing,
    Rule,
    Slope,
    claim,
    loglog_slope,
    perturbations,
    turning_point,
)

ROOT = Path(__file__).parent.parent
WIDTHS = [1, 4, 16]
ROOTS = [1.0, 0.5, 0.25]

# rule, numbers for which it holds, numbers for which it fails
CASES = [
    (Below(1.0), {"a": 1.0}, {"a": 1.0000001}),
    (Below(1.0), {"a": [0.1, 0.2], "b": 0.3}, {"a": [0.1, 0.2], "b": 1.3}),
    (Below(1.0, of="a"), {"a": [0.1, 0.2]}, {"a": [0.1, 2.0]}),
    (Above(2), {"a": [2, 3]}, {"a": [2, 1]}),
    (Between(-1, 1), {"a": [-1, 1]}, {"a": [-1.5, 1]}),
    (Between(-1, 1), {"a": [-1, 1]}, {"a": [-1, 1.5]}),
    (Equals(0), {"failures": 0}, {"failures": 1}),
    (Equals(3.0, atol=0.1), {"a": [2.95, 3.05]}, {"a": [2.95, 3.2]}),
    (Dominated("e", "b"), {"e": [1, 2], "b": [1, 3]}, {"e": [1, 3.1], "b": [1, 3]}),
    (Dominated("e", "b", factor=2, margin=1), {"e": [3, 7], "b": [1, 3]}, {"e": [3, 7.1], "b": [1, 3]}),
    (Dominated("e", "b"), {"e": [1, 2], "b": 2}, {"e": [1, 2], "b": 1.9}),
    (Dominated("e", "b"), {"e": [1, 2], "b": [2, 2]}, {"e": [1, 2], "b": [2, 2, 2]}),
    (Agrees("a", "b", rtol=0.1), {"a": [1.05, 2], "b": [1, 2]}, {"a": [1.2, 2], "b": [1, 2]}),
    (Agrees("a", "b", rtol=0, atol=0.1), {"a": [0.05], "b": [0]}, {"a": [0.2], "b": [0]}),
    (Slope("m", "e", -0.5, 0.05), {"m": WIDTHS, "e": ROOTS}, {"m": WIDTHS, "e": [1, 0.6, 0.4]}),
    (Slope("m", "e", -0.5, 0.05), {"m": WIDTHS, "e": ROOTS}, {"m": WIDTHS, "e": [1, 0.5, -0.25]}),
    (Slope("m", "e", 0, 9), {"m": WIDTHS, "e": ROOTS}, {"m": [2, 2, 2], "e": ROOTS}),
    (Slope("m", "e", 0, 9), {"m": WIDTHS, "e": ROOTS}, {"m": [1, 2], "e": ROOTS}),
    (Increasing(), {"a": [1, 2, 3]}, {"a": [1, 2, 2]}),
    (Increasing(gap=0.5), {"a": [1, 2]}, {"a": [1, 1.5]}),
    (Increasing(), {"a": [1, 2]}, {"a": [1]}),
    (Decreasing("a"), {"a": [3, 2, 1]}, {"a": [3, 1, 2]}),
    (Decreasing(), {"a": [2, 1], "b": [1, 0]}, {"a": [2, 1], "b": [0, 1]}),
    (All(Below(2, "a"), Above(1, "b")), {"a": 1, "b": 1}, {"a": 1, "b": 0}),
    (All(Below(2, "a"), Above(1, "b")), {"a": 1, "b": 1}, {"a": 3, "b": 1}),
]
IDS = [f"{rule.name}-{i}" for i, (rule, _, _) in enumerate(CASES)]


def make(rule, measured, **more):
    return Claim("t:label", "A statement.", measured, rule, **more)


@pytest.mark.parametrize(("rule", "good", "bad"), CASES, ids=IDS)
def test_rule_holds_and_fails(rule, good, bad):
    assert make(rule, good).holds
    assert not make(rule, bad).holds


def test_every_rule_has_a_case():
    assert {rule.name for rule, _, _ in CASES} == set(RULES)


@pytest.mark.parametrize(("rule", "good", "bad"), CASES, ids=IDS)
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_never_hold(rule, good, bad, broken):
    for name, value in good.items():
        entry = [broken, *value[1:]] if isinstance(value, list) else broken
        assert not make(rule, {**good, name: entry}).holds


@pytest.mark.parametrize(("rule", "good", "bad"), CASES, ids=IDS)
def test_nothing_measured_never_holds(rule, good, bad):
    for name in good:
        assert not make(rule, {**good, name: []}).holds


@pytest.mark.parametrize(("rule", "good", "bad"), CASES, ids=IDS)
def test_json_round_trip(rule, good, bad):
    for measured in (good, bad, {name: math.nan for name in good}):
        original = make(rule, measured, kind="proved", seeds=[0, 1])
        again = Claim.from_json(json.loads(json.dumps(original.to_json(), allow_nan=False)))
        assert again.to_json() == original.to_json()
        assert again.rule == rule
        assert (again.holds, again.verdict, again.seeds) == (original.holds, original.verdict, (0, 1))


@pytest.mark.parametrize(("rule", "good", "bad"), CASES, ids=IDS)
def test_every_measured_entry_can_turn_the_verdict(rule, good, bad):
    turned = {name for name, other in perturbations(make(rule, good)) if not other.holds}
    assert turned == set(good)


def test_perturbations_change_one_entry_and_stay_finite():
    original = make(Agrees("a", "b"), {"a": [1.0, 2.0], "b": 0.0})
    for name, other in perturbations(original):
        same = "b" if name == "a" else "a"
        assert other.measured[same] == original.measured[same]
        assert np.all(np.isfinite(np.atleast_1d(other.measured[name])))
        assert isinstance(other.measured[name], list) == isinstance(original.measured[name], list)


@pytest.mark.parametrize("kind", KINDS)
def test_verdict_words(kind):
    good, bad, _ = KINDS[kind]
    assert make(Below(1), {"a": 0}, kind=kind).verdict == good
    assert make(Below(1), {"a": 2}, kind=kind).verdict == bad
    assert bad == bad.upper() and good == good.lower()


@pytest.mark.parametrize(("value", "word", "mark"), [(0, "holds", "✓"), (2, "fails", "✗")])
def test_box(value, word, mark):
    shown = make(Below(1), {"a <b>": value}, kind="proved", seeds=(7,))
    data = shown._repr_mimebundle_()
    assert set(data) == {"text/plain", "text/html", CLAIM_MIME}
    assert f'class="memlib-claim {word}"' in data["text/html"] and mark in data["text/html"]
    assert "a &lt;b&gt;" in data["text/html"] and "<b>a <b>" not in data["text/html"]
    for text in (data["text/plain"], data["text/html"]):
        assert shown.verdict in text and "t:label" in text and "7" in text and "≤ 1" in text
    assert data[CLAIM_MIME]["holds"] is (word == "holds")


def test_formulas_reach_the_page_for_typesetting():
    text = Claim("t:x", "It is $m^{-1/2} < 1$ & more.", {"a": 0}, Below(1))._repr_html_()
    assert r"\(m^{-1/2} &lt; 1\) &amp; more" in text
    assert "mathjax_process" in text


def test_slope_found_is_shown():
    assert "found: slope -0.5" in repr(make(Slope("m", "e", -0.5, 0.1), {"m": WIDTHS, "e": ROOTS}))
    assert "found: no slope" in repr(make(Slope("m", "e", -0.5, 0.1), {"m": WIDTHS, "e": [0, 0, 0]}))


def test_slope_by_hand():
    assert loglog_slope([1, 10, 100], [3, 300, 30000]) == pytest.approx(2)
    assert loglog_slope([1.0, math.inf], [1, 2]) is None


def test_claim_shows_and_never_raises_on_failure(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    assert claim("t:a", "It fails.", {"a": 2}, Below(1), kind="conjecture") is None
    assert [item.verdict for item in shown] == ["NOT SUPPORTED"]


def test_tensors_and_arrays_become_plain_numbers():
    made = make(Below(9), {"a": torch.tensor([1.0, 2.0]), "b": np.int64(3), "c": np.arange(2)})
    assert made.measured == {"a": [1.0, 2.0], "b": 3, "c": [0, 1]}
    assert type(made.measured["b"]) is int


BAD = [
    (lambda: Claim("1 x", "s", {"a": 0}, Below(1)), ValueError, "label is '1 x'"),
    (lambda: Claim("t:x", " ", {"a": 0}, Below(1)), ValueError, "statement is ' '; a sentence is wanted"),
    (
        lambda: make(Below(1), {"a": 0}, kind="true"),
        ValueError,
        "unknown kind 'true'; allowed are proved, measured, conj",
    ),
    (lambda: make(True, {"a": 0}), TypeError, "rule is True; allowed are Above, Agrees, All"),
    (lambda: make(Below(1), {}), ValueError, "measured is {}; a dict of name"),
    (lambda: make(Below(1), {"a": True}), ValueError, "measured 'a' is True; a number or a list"),
    (lambda: make(Below(1), {"a": "0.5"}), ValueError, "measured 'a' is '0.5'"),
    (lambda: make(Below(1), {"a": [[1]]}), ValueError, r"measured 'a' is \[\[1\]\]"),
    (lambda: make(Below(1), {"": 1}), ValueError, "measured name is ''"),
    (lambda: make(Below(1, "b"), {"a": 0}), ValueError, "Below reads 'b', which was not measured; measured are a"),
    (lambda: make(Below(1, "b"), {"a": 0, "b": 0}), ValueError, "measured 'a' is not read by the rule Below"),
    (lambda: make(Below(1), {"a": 0}, seeds=[0.5]), ValueError, r"seeds are \(0.5,\); integers"),
    (lambda: make(Rule(), {"a": 0}).holds, TypeError, "Rule is no rule by itself; use one of"),
    (lambda: Below(math.inf), ValueError, "limit of Below is inf; a finite number is wanted"),
    (lambda: Above("1"), ValueError, "limit of Above is '1'"),
    (lambda: Between(2, 1), ValueError, "Between has low 2 above high 1"),
    (lambda: Equals(1, atol=-1), ValueError, "atol of Equals is -1; a finite number of at least 0"),
    (lambda: Agrees("a", "b", rtol=math.nan), ValueError, "rtol of Agrees is nan"),
    (lambda: Slope("a", "b", 1, tolerance=-1), ValueError, "tolerance of Slope is -1"),
    (lambda: Increasing(gap=math.inf), ValueError, "gap of Increasing is inf"),
    (lambda: Decreasing(gap=None), ValueError, "gap of Decreasing is None"),
    (lambda: Dominated("a", "b", factor=math.nan), ValueError, "factor of Dominated is nan"),
    (lambda: All(), ValueError, r"All of \(\); one rule or more"),
    (lambda: All(1), ValueError, r"All of \(1,\)"),
    (
        lambda: Rule.from_json({"name": "Magic", "parameters": {}}),
        ValueError,
        "unknown rule 'Magic'; allowed are Above",
    ),
    (
        lambda: Rule.from_json({"name": "Below", "parameters": {"bound": 1}}),
        ValueError,
        "unknown parameter 'bound' of Below; allowed are limit, of",
    ),
    (
        lambda: Claim.from_json({**make(Below(1), {"a": 2}).to_json(), "holds": True}),
        ValueError,
        "claim 't:label' is stored with holds = True, but its numbers give False",
    ),
    (
        lambda: Claim.from_json({**make(Below(1), {"a": 2}).to_json(), "verdict": "reproduced"}),
        ValueError,
        "stored with verdict = 'reproduced'",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=range(len(BAD)))
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def saved_claims():
    for path in sorted((ROOT / "chapters").rglob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", ()):
                if CLAIM_MIME in output.get("data", {}):
                    yield path, Claim.from_json(output["data"][CLAIM_MIME])


def test_every_claim_of_the_book_can_turn_false():
    for path, made in saved_claims():
        if made.holds:
            turned = {name for name, other in perturbations(made) if not other.holds}
            assert turned == set(made.measured), (
                f"{path.name}, claim {made.label}: no disturbance of some entry turns it"
            )


def test_labels_of_the_book_are_unique():
    labels = [made.label for _, made in saved_claims()]
    assert len(labels) == len(set(labels)), sorted(label for label in set(labels) if labels.count(label) > 1)


@pytest.mark.parametrize(
    "measured, rule, expected",
    [
        ({"error": 0.9}, Below(1.0), ("error multiplied", 1.3)),
        ({"error": [0.01, 0.02]}, Below(1.0), ("error multiplied", 100.0)),
        ({"gain": 12.0}, Above(10.0), ("gain divided", 1.3)),
        ({"gain": 9.0}, Above(10.0), ("gain multiplied", 1.3)),
        ({"m": [1, 10], "e": [1.0, 0.1]}, Slope("m", "e", expected=-1.0, tolerance=0.1), ("m tilted up", 1.3)),
    ],
)
def test_turning_point(measured, rule, expected):
    """The least listed factor that turns the verdict, of a claim that holds or of one that does not."""
    assert turning_point(Claim("t:turn", "A statement.", measured, rule)) == expected


def test_turning_point_of_a_claim_that_nothing_turns():
    assert turning_point(Claim("t:turn", "A statement.", {"zero": 0.0}, Below(1.0))) is None
