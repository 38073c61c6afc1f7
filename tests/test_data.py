"""Texts and series: the same everywhere, split without overlap, and with a warning where a package differs."""

import hashlib
import sys
import warnings

import numpy as np
import pytest
import torch

import memlib
from memlib import data
from memlib.model import Transformer, TransformerConfig
from memlib.train import fit

NAMES = tuple(data.TEXTS)


@pytest.fixture(scope="module", params=NAMES)
def words(request):
    return data.text(request.param)


# ---------------------------------------------------------------- text


def test_hash_is_that_of_the_parts_and_the_pinned_one(words):
    found = hashlib.sha256((words.train + words.tuning + words.held_out).encode()).hexdigest()
    assert words.sha256 == found == data.TEXTS[words.name]
    assert words.characters == words.train + words.tuning + words.held_out
    assert words.source == "scipy 1.17.1"


def test_reading_again_gives_the_same(words):
    again = data._read_text.__wrapped__(words.name, data._package("scipy"))
    assert again == words


def test_sizes_and_alphabet(words):
    assert len(words.alphabet) == 96
    assert set(words.characters) <= set(words.alphabet)
    assert len(words.train) > 3e6 and min(len(words.tuning), len(words.held_out)) > 2e5
    assert "\n\n\n\n" not in words.characters and " \n" not in words.characters


def test_split_is_by_subpackage():
    everything = [package for packages in data.SPLIT.values() for package in packages]
    assert len(everything) == len(set(everything))
    root = data._package("scipy")
    assert all((root / package).is_dir() for package in everything)


def test_parts_share_no_document_and_hardly_a_line(words):
    documents = {part: set(words.part(part).split("\n\n\n")) - {""} for part in data.PARTS}
    lines = {part: {x.strip() for x in words.part(part).split("\n") if len(x.strip()) >= 40} for part in data.PARTS}
    for first, second in (("train", "tuning"), ("train", "held_out"), ("tuning", "held_out")):
        assert not documents[first] & documents[second]
        assert len(lines[first] & lines[second]) < 0.03 * len(lines[second])
    for part in data.PARTS:
        assert len(documents[part]) == words.documents[part][0]


def test_near_copies_are_left_out(tmp_path):
    for package in (p for packages in data.SPLIT.values() for p in packages):
        (tmp_path / package).mkdir()
    line = "This line has more than forty characters, {}.\n"
    (tmp_path / "fft" / "a.py").write_text(f'"""{line.format("one")}{line.format("two")}"""\n')
    (tmp_path / "fft" / "b.py").write_text(f'def f():\n    """{line.format("one")}{line.format("two")}"""\n')
    (tmp_path / "io" / "c.py").write_text(f'"""{line.format("one")}{line.format("three")}"""\n')
    (tmp_path / "io" / "d.py").write_text('"""Déjà vu ≤ \tsoon.   \n\n\n\n    End.\n    """\n')
    (tmp_path / "io" / "tests").mkdir()
    (tmp_path / "io" / "tests" / "e.py").write_text('"""Not read."""\n')
    found = data._read_text.__wrapped__("docstrings", tmp_path)
    assert found.train == (line.format("one") + line.format("two")).strip() + "\n\n\n"
    assert found.held_out == "Deja vu ?       soon.\n\nEnd.\n\n\n"
    assert found.documents == {"train": (1, 1), "tuning": (0, 0), "held_out": (1, 1)}


def test_source_is_code_alone():
    code = '"""Doc."""\n# comment\nx = 1  # kept\ny = """a\nb"""\nz = f"""{x}\n"""\n'
    code += '\ndef f():\n    r"""Doc."""\n    return "#"\n'
    assert data._source(code) == ['\nx = 1  # kept\n\n\nz = f"""{x}\n"""\n\ndef f():\n\n    return "#"\n']
    assert data._source("x = [1234567890, 1234567890]") == []
    rest, all_of = (data.text(name).train.count("\n>>> ") for name in ("source", "docstrings"))
    assert rest < 0.01 * all_of  # some stand in f-strings


def test_encode_and_decode(words):
    piece = words.held_out[:500]
    tokens = words.encode(piece)
    assert tokens.dtype == torch.int64 and words.decode(tokens) == piece
    assert tokens.tolist() == [data.ALPHABET.index(c) for c in piece]
    assert words.encode(data.ALPHABET).tolist() == list(range(96))


def test_windows_are_text_and_its_next_characters(words):
    windows = words.windows("tuning", burn_in=3)
    assert windows.burn_in == 3 and windows.d_in == windows.d_out == 96
    x, y = windows.sample(4, 20, memlib.reproducible(0))
    assert x.shape == y.shape == (4, 20) and torch.equal(x[:, 1:], y[:, :-1])
    assert all(words.decode(row) in words.tuning for row in x)
    same, other = (windows.sample(4, 20, memlib.reproducible(seed))[0] for seed in (0, 1))
    assert torch.equal(x, same) and not torch.equal(x, other)
    a, b = windows.spread(5, 20)
    assert words.decode(a[0]) == words.tuning[:20] and words.decode(b[0]) == words.tuning[1:21]
    assert torch.equal(a, windows.spread(5, 20)[0])


def test_every_window_can_be_drawn():
    windows = data.Windows(torch.arange(6), 6)
    x, y = windows.sample(400, 3, memlib.reproducible(0))
    assert set(x[:, 0].tolist()) == {0, 1, 2} and int(y.max()) == 5
    x, y = windows.spread(3, 3)
    assert x[:, 0].tolist() == [0, 1, 2] and y[-1].tolist() == [3, 4, 5]


def test_a_model_learns_from_windows():
    config = TransformerConfig(d_in=96, d_out=96, d_model=16, width=0, encoding="lin", attention="dp_free")
    history = fit(Transformer(config, memlib.reproducible(0)), data.text().windows("train"), steps=40, lr=0.05, batch=4,
                  length=16, generator=memlib.reproducible(1))  # fmt: skip
    assert history.losses[-1] < history.losses[0] - 1


def test_another_version_is_told(monkeypatch):
    monkeypatch.setitem(data.TEXTS, "docstrings", "0" * 64)
    with pytest.warns(UserWarning, match="scipy 1.17.1 gives SHA-256 bfe6311efe55…, scipy 1.17.1 gave 000000000000…"):
        data.text("docstrings")
    monkeypatch.setitem(data._SERIES_SHA256, "nile", "0" * 64)
    with pytest.warns(UserWarning, match="statsmodels 0.15.0 gives SHA-256 .* numbers made from it will differ"):
        data.series("nile")


def test_reading_imports_nothing_of_the_packages():
    before = set(sys.modules)
    data._read_text.__wrapped__("docstrings", data._package("scipy"))
    data.series("co2")
    new = {name for name in set(sys.modules) - before if name.startswith(("scipy", "statsmodels"))}
    assert not new


# ---------------------------------------------------------------- series

FIRST_AND_LAST = {  # by hand from the files
    "sunspots": (309, 5.0, 2.9, 0),
    "co2": (2284, 316.1, 371.5, 59),
    "nile": (100, 1120.0, 740.0, 0),
    "elnino": (732, 23.11, 22.07, 0),
}


@pytest.mark.parametrize("name", data.SERIES)
def test_series(name):
    s = data.series(name)
    length, first, last, missing = FIRST_AND_LAST[name]
    assert (len(s.values), s.values[0], s.values[-1], s.missing.sum()) == (length, first, last, missing)
    assert s.values.dtype == np.float64 and np.isfinite(s.values).all()
    assert s.sha256 == hashlib.sha256(s.values.astype("<f8").tobytes()).hexdigest() == data._SERIES_SHA256[name]
    assert s.source.startswith("statsmodels 0.15.0; ") and s.unit and s.title


def test_series_are_those_of_statsmodels():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the other package's imports
        from statsmodels.datasets import co2, elnino, sunspots

        frames = {"sunspots": sunspots.load_pandas().data["SUNACTIVITY"], "co2": co2.load_pandas().data["co2"]}
        months = elnino.load_pandas().data.drop(columns="YEAR").to_numpy().ravel()
    for name, frame in frames.items():
        s = data.series(name)
        assert np.array_equal(frame.isna().to_numpy(), s.missing)
        assert np.array_equal(frame.to_numpy()[~s.missing], s.values[~s.missing])
    assert np.array_equal(months, data.series("elnino").values)


def test_missing_values_lie_on_the_line_between_their_neighbours():
    s = data.series("co2")
    alone = [i for i in np.flatnonzero(s.missing) if not (s.missing[i - 1] or s.missing[i + 1])]
    assert alone
    for i in alone:
        assert s.values[i] == pytest.approx((s.values[i - 1] + s.values[i + 1]) / 2, abs=1e-9)


# ---------------------------------------------------------------- bad input

BAD = [
    (lambda: data.text("novel"), ValueError, "unknown text 'novel'; allowed: docstrings, source"),
    (lambda: data.series("tides"), ValueError, "unknown series 'tides'; allowed: sunspots, co2, nile, elnino"),
    (lambda: data.text().part("test"), ValueError, "unknown part 'test' of a text; allowed: train, tuning, held_out"),
    (lambda: data.text().encode(b"abc"), TypeError, "characters must be a text, got bytes"),
    (lambda: data.text().encode("é"), ValueError, "the alphabet has the line feed and printable ASCII, not 'é'"),
    (lambda: data.text().decode(torch.tensor([96])), ValueError, "integers must lie in 0..95, got 96..96"),
    (lambda: data.Windows(torch.zeros(5), 2), ValueError, "tokens must be a one-dimensional int64 tensor"),
    (lambda: data.Windows(torch.arange(5), 4), ValueError, "tokens must lie in 0..3, got 0..4"),
    (lambda: data.Windows(torch.arange(5), 5, -1), ValueError, "burn_in must be an integer of at least 0, got -1"),
    (lambda: data.Windows(torch.arange(5), 5).sample(2, 5, memlib.reproducible(0)), ValueError,
     "length must be below that of the text, 5, got 5"),
    (lambda: data.Windows(torch.arange(5), 5).sample(2, 3, None), TypeError, "needs an explicit torch.Generator"),
    (lambda: data.Windows(torch.arange(5), 5).sample(0, 3, memlib.reproducible(0)), ValueError, "batch must be an int"),
    (lambda: data.Windows(torch.arange(5), 5).spread(3, 3), ValueError, "room for 2 windows of 3, got batch 3"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(("package", "call"), [("statsmodels", lambda: data.series("nile")), ("scipy", data.text)])
def test_missing_package(monkeypatch, package, call):
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=f"reads files of {package} .*: install it, pip install {package}"):
        call()
