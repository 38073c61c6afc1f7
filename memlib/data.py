r"""Real sequences that are the same everywhere: text from the pinned scipy, series from the pinned statsmodels.

    text = data.text("docstrings")
    x = text.encode(text.held_out)                      # integers, one for each character
    fit(model, text.windows("train"), ...)              # a target: windows of text, the next character wanted

Nothing is downloaded, and the packages are read as files, not imported. Everything comes with its SHA-256; if another
version of a package is installed the sequence is another one, and a warning says so. The chapter on essentially sparse
memory measures how these sequences forget (*Where real memories lie*); the chapter on roles trains on the text.
"""

import ast
import csv
import hashlib
import importlib.metadata
import importlib.util
import re
import unicodedata
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from memlib.checks import explicit_generator, integer

__all__ = ["ALPHABET", "PARTS", "SERIES", "SPLIT", "TEXTS", "Series", "Text", "Windows", "series", "text"]

ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))
"""The 96 characters of every text: the line feed and printable ASCII."""

SPLIT = {
    "train": (
        "constants", "datasets", "differentiate", "fft", "fftpack", "interpolate", "linalg", "odr", "optimize",
        "signal", "sparse", "special", "stats",
    ),
    "tuning": ("cluster", "integrate"),
    "held_out": ("io", "ndimage", "spatial"),
}  # fmt: skip
"""The subpackages of scipy in each part of a text: whole subpackages, so that no module is on both sides.

scipy's top-level files differ between platforms, ``_lib`` is mostly code of other projects: neither is read.
"""

PARTS = tuple(SPLIT)
"""The parts of a text: ``train`` to learn from, ``tuning`` to choose learning rates by, ``held_out`` to report."""

_PINNED = {"scipy": "1.17.1", "statsmodels": "0.15.0"}
TEXTS = {
    "docstrings": "bfe6311efe55e52dbac6a6fd6ba2dc7bdae0bf18115d6117490ca19ade69d460",
    "source": "6db53cafeddb86d96d83e5e8731d97c26360ffa88fd20b160a8976c38e80131d",
}
"""The texts by name, each with the SHA-256 of its three parts together under scipy 1.17.1."""

_FOREIGN = re.compile(r"[^\n -~]")
_MOST_DIGITS = 0.2  # a file with more digits than this among its characters is a table of numbers
_LONG_LINE = 40  # characters from which on a line that occurs twice is taken for a copy


# ---------------------------------------------------------------- text


@dataclass(frozen=True)
class Text:
    """A text over `ALPHABET` in three parts (see `SPLIT`), with its SHA-256 and where it comes from.

    Attributes:
        name: ``docstrings`` or ``source``.
        train, tuning, held_out: the parts.
        sha256: of the parts together, in UTF-8.
        source: package and version.
        documents: how many documents each part holds, and how many were left out of it as near copies.
    """

    name: str
    train: str = field(repr=False)
    tuning: str = field(repr=False)
    held_out: str = field(repr=False)
    sha256: str
    source: str
    documents: dict[str, tuple[int, int]] = field(repr=False)

    @property
    def alphabet(self) -> str:
        """The characters; the integer of a character is its place here."""
        return ALPHABET

    @property
    def characters(self) -> str:
        """All three parts, one after the other."""
        return self.train + self.tuning + self.held_out

    def part(self, name: str) -> str:
        """The part called ``train``, ``tuning`` or ``held_out``."""
        if name not in PARTS:
            raise ValueError(f"unknown part {name!r} of a text; allowed: {', '.join(PARTS)}")
        return getattr(self, name)

    def encode(self, characters: str) -> Tensor:
        """The characters as integers, places in the alphabet."""
        if not isinstance(characters, str):
            raise TypeError(f"characters must be a text, got {type(characters).__name__}")
        foreign = sorted(set(characters) - set(self.alphabet))
        if foreign:
            raise ValueError(
                f"the alphabet has the line feed and printable ASCII, not {', '.join(map(repr, foreign[:5]))}"
            )
        codes = np.frombuffer(characters.encode("ascii"), dtype=np.uint8)
        return torch.from_numpy(np.maximum(codes.astype(np.int64) - 31, 0))  # line feed 0, space 1, and so on

    def decode(self, integers: Tensor) -> str:
        """The characters of integers, the inverse of `encode`."""
        values = [int(i) for i in integers]
        if values and not 0 <= min(values) <= max(values) < len(self.alphabet):
            raise ValueError(f"integers must lie in 0..{len(self.alphabet) - 1}, got {min(values)}..{max(values)}")
        return "".join(self.alphabet[i] for i in values)

    def windows(self, part: str = "train", burn_in: int = 0) -> "Windows":
        """A part of the text as a target for `memlib.train.fit`."""
        return Windows(self.encode(self.part(part)), len(self.alphabet), burn_in)


class Windows:
    """Windows of a text: input the characters, wanted output at every position the next one, both as integers.

    A target in the sense of `memlib.train.fit`, which takes the cross entropy for integer outputs. ``burn_in``
    positions at the start of a window do not count.
    """

    def __init__(self, tokens: Tensor, symbols: int, burn_in: int = 0):
        if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64 or tokens.ndim != 1 or len(tokens) < 2:
            raise ValueError("tokens must be a one-dimensional int64 tensor of at least two, as Text.encode makes it")
        self.tokens, self.burn_in = tokens, integer("burn_in", burn_in, 0)
        self.d_in = self.d_out = integer("symbols", symbols, 2)
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < symbols:
            raise ValueError(f"tokens must lie in 0..{symbols - 1}, got {int(tokens.min())}..{int(tokens.max())}")

    def sample(self, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """``batch`` windows that start anywhere, with equal chances: ``(batch, length)`` each."""
        explicit_generator("sample", generator)
        starts = torch.randint(self._room(length), (integer("batch", batch, 1),), generator=generator)
        return self._at(starts, length)

    def spread(self, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """``batch`` windows evenly spread over the text, always the same: what a held-out loss is measured on."""
        room = self._room(length)
        if room < integer("batch", batch, 1):
            raise ValueError(f"the text has room for {room} windows of {length}, got batch {batch}")
        return self._at(torch.arange(batch) * room // batch, length)

    def _room(self, length: int) -> int:
        room = len(self.tokens) - integer("length", length, 1)
        if room < 1:
            raise ValueError(f"length must be below that of the text, {len(self.tokens)}, got {length}")
        return room

    def _at(self, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        window = self.tokens[starts[:, None] + torch.arange(length + 1)]
        return window[:, :-1], window[:, 1:]


def text(name: str = "docstrings") -> Text:
    """A text by name: the ``docstrings`` of the pinned scipy, or its Python ``source`` without them.

    The files of the subpackages in `SPLIT` are taken in the order of their paths, without tests. ``docstrings``: every
    docstring of a module, class or function, in the order of the file, found by `ast`, its indentation removed.
    ``source``: every file that is not a table of numbers (a fifth of its characters digits), without docstrings and
    other strings of several lines and without lines that hold only a comment. Letters lose their accents, other foreign
    characters become ``?``, trailing spaces and repeated blank lines go; two blank lines stand between two documents.
    A document that occurs twice is kept once, and one of the later parts is left out if at least half of its lines of
    40 characters or more stand in an earlier part.

    Under another version of scipy the text is another one; a `UserWarning` then names both versions and hashes.
    """
    if name not in TEXTS:
        raise ValueError(f"unknown text {name!r}; allowed: {', '.join(TEXTS)}")
    made = _read_text(name, _package("scipy"))
    _compare(f"text({name!r})", "scipy", made.sha256, TEXTS[name])
    return made


@lru_cache(maxsize=4)
def _read_text(name: str, root: Path) -> Text:
    documents_of = _docstrings if name == "docstrings" else _source
    parts, counts, seen, lines = {}, {}, set(), set()
    for part, packages in SPLIT.items():
        kept, dropped, added = [], 0, set()
        for path in sorted(_files(root, packages)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # old escapes in the files of others
                found = documents_of((root / path).read_text("utf8"))
            for document in map(_normalised, found):
                long = {line.strip() for line in document.split("\n") if len(line.strip()) >= _LONG_LINE}
                if not document or document in seen or (long and 2 * len(long & lines) >= len(long)):
                    dropped += bool(document)
                    continue
                seen.add(document)
                added |= long
                kept.append(document)
        parts[part], counts[part] = "\n\n\n".join([*kept, ""]), (len(kept), dropped)
        lines |= added
    digest = hashlib.sha256("".join(parts.values()).encode()).hexdigest()
    return Text(name, **parts, sha256=digest, source=f"scipy {_version('scipy')}", documents=counts)


def _files(root: Path, packages: tuple[str, ...]) -> Iterator[str]:
    for package in packages:
        for path in (root / package).rglob("*.py"):
            inside = path.relative_to(root)
            if "tests" not in inside.parts and not path.name.startswith(("test_", "conftest")):
                yield inside.as_posix()


def _documented(tree: ast.Module) -> list[ast.Constant]:
    """The docstrings of a file, as nodes of its syntax tree, in the order of the file."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr):
            value = node.body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found.append(value)
    return sorted(found, key=lambda node: node.lineno)


def _docstrings(code: str) -> list[str]:
    return [_dedented(node.value) for node in _documented(ast.parse(code))]


def _dedented(docstring: str) -> str:
    """The docstring without its indentation: that of the first line apart, of the others in common."""
    first, *rest = docstring.expandtabs().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
    return "\n".join([first.lstrip(), *(line[margin:] for line in rest)])


def _source(code: str) -> list[str]:
    lines, tree = code.split("\n"), ast.parse(code)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    texts = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    documented = set(map(id, _documented(tree)))
    for node in texts:
        long = node.end_lineno > node.lineno and id(node) not in inside
        opened = lines[node.lineno - 1].encode()[node.col_offset :].lstrip(b"rRuU")[:3]
        if id(node) in documented or (long and opened in (b"'''", b'"""')):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    left = "\n".join(line for line in lines if not line.lstrip().startswith("#")).expandtabs()
    digits, all_of = sum(map(left.count, "0123456789")), len("".join(left.split()))
    return [] if digits > _MOST_DIGITS * all_of else [left]


def _normalised(document: str) -> str:
    """The document over `ALPHABET`, without trailing spaces, blank lines at its ends, and repeated blank lines."""
    if not document.isascii():
        letters = unicodedata.normalize("NFKD", document)
        document = "".join(c for c in letters if not unicodedata.combining(c))
    document = _FOREIGN.sub("?", document)
    lines = [line.rstrip() for line in document.split("\n")]
    return "\n".join(line for line, before in zip(lines, ["", *lines], strict=False) if line or before).strip("\n")


# ---------------------------------------------------------------- series


@dataclass(frozen=True)
class Series:
    """A measured series: float64 values at equal steps, and what they are.

    Attributes:
        name, title: the name in `SERIES`, and what was measured.
        values: the values, ``missing`` ones filled in by the straight line between their neighbours.
        missing: where a value was missing.
        unit, step: of the values, and of time.
        period: steps in a year, if the seasons show; else 1.
        sha256: of the values as little-endian float64.
        source: package and version, and where the numbers are from.
    """

    name: str
    title: str
    values: np.ndarray = field(repr=False, compare=False)
    missing: np.ndarray = field(repr=False, compare=False)
    unit: str
    step: str
    period: float
    sha256: str
    source: str


SERIES = {
    "sunspots": ("Sunspot number, 1700 to 2008", "sunspots", "year", 1.0, "National Geophysical Data Center"),
    "co2": ("Carbon dioxide at Mauna Loa, 1958 to 2001", "ppm", "week", 365.25 / 7, "Keeling and Whorf, 2004"),
    "nile": ("Flow of the Nile at Aswan, 1871 to 1970", "10^8 m^3", "year", 1.0, "Cobb, 1978"),
    "elnino": ("Sea surface temperature, Niño 1+2, 1950 to 2010", "°C", "month", 12.0, "NOAA, ERSST v3b"),
}  # fmt: skip
"""The series by name: title, unit, step, steps in a year, where it is from."""

_SERIES_SHA256 = {
    "sunspots": "66c86ecdcd5950f61f6243f924fdfa10a44596e94816291062fdda266a31c86d",
    "co2": "866a09cd8e1611423abe60da5a4a70c1bd0d16628548798bbde9b7c98e4c30d0",
    "nile": "eb0f1d6ec926d4062aedc93cdd321895a50cc431ac91b3ab2f5a953997426400",
    "elnino": "04cd82503f2284f490eb92e9bf30bfd475d3c12210aca925dc0978f62ce50780",
}


def series(name: str) -> Series:
    """A series by name, one of `SERIES`, as bundled with statsmodels.

    The months of ``elnino`` follow each other. Weeks without a value (59 of ``co2``) are filled by the straight line
    between their neighbours, and marked in ``missing``; nothing else is done to the values, so that trend and seasons
    are still in them. Another version of statsmodels with other numbers gives a `UserWarning`.
    """
    if name not in SERIES:
        raise ValueError(f"unknown series {name!r}; allowed: {', '.join(SERIES)}")
    title, unit, step, period, origin = SERIES[name]
    with open(_package("statsmodels") / "datasets" / name / f"{name}.csv", newline="", encoding="utf8") as file:
        rows = list(csv.reader(file))[1:]
    cells = [cell for row in rows for cell in row[1:]]
    raw = np.array([float(cell) if cell.strip() else np.nan for cell in cells])
    missing, place = np.isnan(raw), np.arange(len(raw))
    values = np.where(missing, np.interp(place, place[~missing], raw[~missing]), raw)
    digest = hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()
    _compare(f"series({name!r})", "statsmodels", digest, _SERIES_SHA256[name])
    source = f"statsmodels {_version('statsmodels')}; {origin}"
    return Series(name, title, values, missing, unit, step, period, digest, source)


# ---------------------------------------------------------------- packages


def _package(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"memlib.data reads files of {name} {_PINNED[name]}: install it, pip install {name}")
    return Path(found.submodule_search_locations[0])


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _compare(what: str, package: str, found: str, expected: str) -> None:
    if found != expected:
        warnings.warn(
            f"{what} differs from the book's: {package} {_version(package)} gives SHA-256 {found[:12]}…, "
            f"{package} {_PINNED[package]} gave {expected[:12]}…; numbers made from it will differ too",
            UserWarning,
            stacklevel=3,
        )
