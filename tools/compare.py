"""Numeric comparison of notebook outputs: text equal, numbers within a tolerance.

`pytest --nbval` (through the root `conftest.py`) and `make notebooks` compare saved outputs with fresh ones by these
rules.

* Texts (text/plain, text/html, stdout, stderr, …) must agree outside their numbers; blanks next to a number and runs of
  blanks do not count.
* A number is one that stands alone: digits inside words, labels, versions or addresses are text.
* Integers must be equal. Other numbers agree within rtol · |reference| + atol, or, if printed with at least six
  significant digits, within one unit of the last digit printed, since rounding may go either way.
  nan agrees with nan, inf with inf of the same sign.
* JSON data (claims) is compared entry by entry.
* Pictures and widget views must be there; their text is what is compared.
* Number, order and kind of outputs must agree.
"""

import json
import math
import re
from dataclasses import dataclass
from itertools import takewhile, zip_longest

RTOL, ATOL = 1e-6, 1e-9
RTOL_CAP, ATOL_CAP = 1e-2, 1e-6
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
IGNORE_OUTPUT, FORBIDDEN_TAGS = "nbval-ignore-output", ("nbval-skip", "nbval-raises-exception", "raises-exception")
SIGNIFICANT = 6


# ---------------------------------------------------------------- tolerance


@dataclass(frozen=True)
class Tolerance:
    """How far two numbers may lie apart. `reason` says why a notebook needs another tolerance than the default."""

    rtol: float = RTOL
    atol: float = ATOL
    reason: str = ""
    rounding: bool = True


EXACT = Tolerance(0.0, 0.0, rounding=False)


def tolerance_of(metadata):
    """The tolerance of a notebook: its metadata `memlib.tolerance` {rtol, atol, reason}, or the default.

    A tolerance without a reason, or above its cap, raises `ValueError`.
    """
    given = metadata.get("memlib", {}).get("tolerance")
    if given is None:
        return Tolerance()
    unknown = sorted(set(given) - {"rtol", "atol", "reason"})
    if unknown:
        raise ValueError(f"memlib.tolerance has {', '.join(unknown)}; allowed are rtol, atol, reason")
    if not str(given.get("reason", "")).strip():
        raise ValueError("memlib.tolerance has no reason; say why this notebook needs it")
    for name, cap in (("rtol", RTOL_CAP), ("atol", ATOL_CAP)):
        value = given.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= cap:
            raise ValueError(f"memlib.tolerance.{name} is {value!r}; allowed is 0 to {cap:g}")
    return Tolerance(float(given.get("rtol", RTOL)), float(given.get("atol", ATOL)), str(given["reason"]).strip())


# ---------------------------------------------------------------- differences


@dataclass(frozen=True)
class Difference:
    """Where two outputs differ: numbers with their relative difference, or texts (`relative` is None)."""

    where: str
    reference: str
    found: str
    relative: float | None = None

    def __str__(self):
        if self.relative is None:
            return f"{self.where}: saved {self.reference}, now {self.found}"
        return f"{self.where}: saved {self.reference}, now {self.found} (relative difference {self.relative:.2g})"


NUMBER = re.compile(
    r"""(?<![\w.])(?<![\w.)\]][-+−])        # not inside a word, a version, an address, a label such as thm-3
        [-+−]?
        (?: (?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)? | \.\d+ | (?:nan|inf|infinity)\b )
        (?:(?<=[\d.])[eE][-+−]?\d+)?
        (?![\w]|\.\w)                        # nor followed by a letter (a unit, a name) or by more of a version""",
    re.VERBOSE | re.IGNORECASE,
)
EMBEDDED = re.compile(r"data:[\w/+.-]+;base64,[A-Za-z0-9+/=\s]*")
BLANKS = re.compile(r"[ \t]+")


def texts(reference, found, tolerance=EXACT, where="text"):
    """The differences between two texts: the first in the wording, or else all between numbers."""
    reference, found = (_uniform(text) for text in (reference, found))
    if _words(reference) != _words(found):
        return [_wording(reference, found, where)]
    pairs = zip(NUMBER.finditer(reference), NUMBER.finditer(found), strict=True)
    return [d for old, new in pairs if (d := _numbers(old[0], new[0], tolerance, _line(where, reference, old)))]


def _uniform(text):
    """A text with its blanks made uniform, and without embedded pictures."""
    text = EMBEDDED.sub("data:embedded", _joined(text))
    return "\n".join(BLANKS.sub(" ", line).rstrip() for line in text.rstrip().splitlines())


def _words(text):
    """What stands between the numbers."""
    return [part.strip(" ") for part in NUMBER.split(text)]


def _wording(reference, found, where):
    """The first line in which two texts differ in wording, from shortly before the place where they part."""
    for row, (old, new) in enumerate(zip_longest(reference.splitlines(), found.splitlines()), start=1):
        if old is None or new is None:
            return Difference(f"{where}, line {row}", _short(old), _short(new))
        if _words(old) != _words(new):
            parts = zip(re.findall(r"\S+|\s+", old), re.findall(r"\S+|\s+", new), strict=False)
            same = takewhile(lambda pair: _words(pair[0]) == _words(pair[1]), parts)
            lengths = [(len(a), len(b)) for a, b in same]
            starts = (max(0, sum(column) - 40) for column in (zip(*lengths, strict=True) if lengths else ((0,), (0,))))
            return Difference(
                f"{where}, line {row}", *(_short(line[start:]) for line, start in zip((old, new), starts, strict=True))
            )
    return Difference(where, _short(reference), _short(found))


def _short(line, most=160):
    if line is None:
        return "nothing"
    return repr(line if len(line) <= most else line[:most] + "…")


def _line(where, text, match):
    return f"{where}, line {text.count(chr(10), 0, match.start()) + 1}"


def _numbers(old, new, tolerance, where):
    """The difference between two printed numbers, or None if they agree."""
    if old == new:
        return None
    a, b = _value(old), _value(new)
    if _is_integer(old) and _is_integer(new):
        return None if a == b else Difference(where, old, new, _relative(a, b))
    units, digits = zip(_precision(old), _precision(new), strict=True)
    rounding = 1.000001 * min(units) if max(digits) >= SIGNIFICANT and tolerance.rounding else 0.0
    return None if _close(a, b, tolerance, rounding) else Difference(where, old, new, _relative(a, b))


def _close(a, b, tolerance, rounding=0.0):
    if not (math.isfinite(a) and math.isfinite(b)):
        return a == b or (math.isnan(a) and math.isnan(b))
    return abs(a - b) <= max(tolerance.rtol * abs(a) + tolerance.atol, rounding)


def _relative(a, b):
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def _value(token):
    token = token.replace("−", "-").replace(",", "")
    return int(token.rstrip(".")) if _is_integer(token) else float(token)


def _is_integer(token):
    return re.fullmatch(r"[-+−]?[\d,]+\.?", token) is not None


def _precision(token):
    """The unit of the last digit printed, and the number of significant digits."""
    mantissa, _, exponent = token.lower().replace("−", "-").replace(",", "").lstrip("+-").partition("e")
    if not mantissa[:1].isdigit() and mantissa[:1] != ".":
        return math.inf, 0
    whole, _, decimals = mantissa.partition(".")
    digits = (whole + decimals).lstrip("0")
    return 10.0 ** (int(exponent or 0) - len(decimals)), len(digits)


def data(reference, found, tolerance=EXACT, where="json"):
    """The differences between two JSON values, entry by entry."""
    if isinstance(reference, dict) and isinstance(found, dict):
        if set(reference) != set(found):
            return [Difference(where, f"keys {sorted(reference)}", f"keys {sorted(found)}")]
        return [d for key in reference for d in data(reference[key], found[key], tolerance, f"{where}.{key}")]
    if isinstance(reference, list) and isinstance(found, list):
        if len(reference) != len(found):
            return [Difference(where, f"{len(reference)} entries", f"{len(found)} entries")]
        pairs = enumerate(zip(reference, found, strict=True))
        return [d for i, (old, new) in pairs for d in data(old, new, tolerance, f"{where}[{i}]")]
    if isinstance(reference, str) and isinstance(found, str):
        return texts(reference, found, tolerance, where)
    if _is_number(reference) and _is_number(found):
        whole = isinstance(reference, int) and isinstance(found, int)
        same = reference == found if whole else _close(reference, found, tolerance)
        return [] if same else [Difference(where, repr(reference), repr(found), _relative(reference, found))]
    same = type(reference) is type(found) and reference == found
    return [] if same else [Difference(where, _short(repr(reference)), _short(repr(found)))]


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def _joined(text):
    return "".join(text) if isinstance(text, list) else text


# ---------------------------------------------------------------- outputs and cells


def outputs(reference, found, tolerance=EXACT):
    """The differences between the saved and the new outputs of a cell."""
    reference, found = _merged(reference), _merged(found)
    kinds, new_kinds = ([_kind(out) for out in outs] for outs in (reference, found))
    if kinds != new_kinds:
        return [Difference("outputs", ", ".join(kinds) or "none", ", ".join(new_kinds) or "none")]
    differences = []
    for number, (old, new) in enumerate(zip(reference, found, strict=True), start=1):
        for mime, value in _bundle(old).items():
            differences += _mime(value, _bundle(new)[mime], mime, tolerance, f"output {number}, {mime}")
    return differences


def _merged(outs):
    """Outputs with the pieces of each stream joined where it first appears, as a frontend shows them."""
    merged, streams = [], {}
    for out in outs:
        if out["output_type"] != "stream":
            merged.append(out)
        elif out["name"] in streams:
            streams[out["name"]]["text"] += _joined(out["text"])
        else:
            streams[out["name"]] = {"output_type": "stream", "name": out["name"], "text": _joined(out["text"])}
            merged.append(streams[out["name"]])
    return merged


def _kind(out):
    mimes = f" ({', '.join(sorted(_bundle(out)))})" if "data" in out else ""
    return f"{out['output_type']} {out['name']}" if out["output_type"] == "stream" else out["output_type"] + mimes


def _bundle(out):
    if out["output_type"] == "stream":
        return {out["name"]: out["text"]}
    if out["output_type"] == "error":
        return {"error": f"{out.get('ename')}: {out.get('evalue')}"}
    return dict(out.get("data", {}))


def _mime(old, new, mime, tolerance, where):
    if mime.startswith(("image/", "audio/", "video/")) or mime == "application/pdf":
        return []
    if mime == WIDGET_VIEW:  # the model's id changes from run to run; what the widget shows is told by its text
        old, new = ({key: value for key, value in view.items() if key != "model_id"} for view in (old, new))
    if mime.endswith("json"):
        old, new = (json.loads(value) if isinstance(value, str) else value for value in (old, new))
        return data(old, new, tolerance, where)
    return texts(old, new, tolerance, where)


def saved_problems(cell):
    """What is wrong with a code cell as saved: not run, an error in its outputs, a mark that hides it."""
    if not _joined(cell["source"]).strip():
        return []
    problems = []
    if cell.get("execution_count") is None:
        problems.append("the cell was saved without having been run; re-save the notebook with `make notebooks`")
    for out in cell.get("outputs", ()):
        if out["output_type"] == "error":
            problems.append(f"the cell was saved with an error: {out.get('ename')}: {out.get('evalue')}")
    for tag in cell.get("metadata", {}).get("tags", ()):
        if tag in FORBIDDEN_TAGS:
            problems.append(f"the tag {tag} hides the cell from the check; only {IGNORE_OUTPUT} is allowed")
    marker = re.search(r"^\s*#\s*(NBVAL_\w+|PYTEST_VALIDATE_IGNORE_OUTPUT)\s*$", _joined(cell["source"]), re.MULTILINE)
    if marker:
        problems.append(
            f"the comment {marker[1]} hides the cell from the check; only the tag {IGNORE_OUTPUT} is allowed"
        )
    return problems


def is_compared(cell):
    """Whether the outputs of a cell are compared; install cells and timings may opt out with a tag."""
    return IGNORE_OUTPUT not in cell.get("metadata", {}).get("tags", ())
