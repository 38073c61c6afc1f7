"""Claims: what the book says, what was measured, and a verdict that follows from the two by a named rule.

    claim(
        "barron-rate",
        "The sampled network errs like m^(-1/2).",
        measured={"m": widths, "error": errors},
        rule=Slope(x="m", y="error", expected=-0.5, tolerance=0.1),
        kind="measured",
    )

The verdict is computed, never passed in. Every measured entry must be read by the rule, so that each can turn the
verdict. A claim that fails is shown as failed; it does not raise. What is shown also carries a machine-readable form
(`CLAIM_MIME`), from which the claim ledger of the book is made.
"""

import html
import math
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from memlib.describe import number, series

__all__ = [
    "CLAIM_MIME",
    "KINDS",
    "RULES",
    "Above",
    "Agrees",
    "All",
    "Below",
    "Between",
    "Claim",
    "Decreasing",
    "Dominated",
    "Equals",
    "Increasing",
    "Rule",
    "Slope",
    "claim",
    "loglog_slope",
    "perturbations",
    "turning_point",
]

CLAIM_MIME = "application/vnd.memlib.claim+json"

KINDS = {
    "proved": ("holds", "VIOLATED", "numerical check of a proved statement"),
    "measured": ("reproduced", "NOT REPRODUCED", "measured statement"),
    "conjecture": ("supported", "NOT SUPPORTED", "conjecture"),
}
"""Kind of statement: the word if the rule holds, the word if it does not, and how the kind is called."""

# ---------------------------------------------------------------- rules

RULES: dict[str, type["Rule"]] = {}
"""All rules by name."""


@dataclass(frozen=True)
class Rule:
    """A test on measured numbers. It holds if it holds for ALL the numbers it reads.

    Numbers that are not finite never hold, and neither do no numbers at all.
    """

    names: ClassVar[tuple[str, ...]] = ()  # the parameters that name measured entries

    def __init_subclass__(cls):
        RULES[cls.__name__] = cls

    def reads(self, measured):
        """The names of the measured entries that this rule reads; without such parameters, all of them."""
        found = [getattr(self, name) for name in self.names if getattr(self, name) is not None]
        for name in found:
            if name not in measured:
                raise ValueError(
                    f"{self.name} reads {name!r}, which was not measured; measured are {', '.join(measured)}"
                )
        return found if self.names and found else list(measured)

    def holds(self, measured):
        """The verdict: whether the rule holds for the measured numbers."""
        columns = [np.atleast_1d(np.asarray(measured[name], dtype=float)) for name in self.reads(measured)]
        usable = columns and all(column.size and np.all(np.isfinite(column)) for column in columns)
        return bool(usable and self.test(*columns))

    def test(self, *columns):
        raise TypeError(f"{self.name} is no rule by itself; use one of {', '.join(sorted(RULES))}")

    @property
    def name(self):
        return type(self).__name__

    def finding(self, measured):
        """What the rule found, where that is not plain from the numbers."""
        return ""

    def to_json(self):
        return {"name": self.name, "parameters": asdict(self)}

    @staticmethod
    def from_json(data):
        if data["name"] not in RULES:
            raise ValueError(f"unknown rule {data['name']!r}; allowed are {', '.join(sorted(RULES))}")
        kind = RULES[data["name"]]
        allowed = [field.name for field in fields(kind)]
        for name in data["parameters"]:
            if name not in allowed:
                raise ValueError(f"unknown parameter {name!r} of {data['name']}; allowed are {', '.join(allowed)}")
        return kind._from_parameters(data["parameters"])

    @classmethod
    def _from_parameters(cls, parameters):
        return cls(**parameters)


def _finite(rule, *names, least=-math.inf):
    for name in names:
        value = getattr(rule, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
            bound = "" if least == -math.inf else f" of at least {least:g}"
            raise ValueError(f"{name} of {rule.name} is {value!r}; a finite number{bound} is wanted")


@dataclass(frozen=True)
class Below(Rule):
    """Every number is at most `limit`. Reads the entry `of`, or all entries."""

    limit: float
    of: str | None = None
    names = ("of",)

    def __post_init__(self):
        _finite(self, "limit")

    def test(self, *columns):
        return all(np.all(column <= self.limit) for column in columns)

    def __str__(self):
        return f"{self.of or 'every number'} ≤ {number(self.limit)}"


@dataclass(frozen=True)
class Above(Rule):
    """Every number is at least `limit`. Reads the entry `of`, or all entries."""

    limit: float
    of: str | None = None
    names = ("of",)

    def __post_init__(self):
        _finite(self, "limit")

    def test(self, *columns):
        return all(np.all(column >= self.limit) for column in columns)

    def __str__(self):
        return f"{self.of or 'every number'} ≥ {number(self.limit)}"


@dataclass(frozen=True)
class Between(Rule):
    """Every number lies in [low, high]. Reads the entry `of`, or all entries."""

    low: float
    high: float
    of: str | None = None
    names = ("of",)

    def __post_init__(self):
        _finite(self, "low", "high")
        if self.low > self.high:
            raise ValueError(f"Between has low {self.low} above high {self.high}; low ≤ high is wanted")

    def test(self, *columns):
        return all(np.all((column >= self.low) & (column <= self.high)) for column in columns)

    def __str__(self):
        return f"{number(self.low)} ≤ {self.of or 'every number'} ≤ {number(self.high)}"


@dataclass(frozen=True)
class Equals(Rule):
    """Every number equals `value` up to `atol`: for counts and identities. Reads the entry `of`, or all entries."""

    value: float
    atol: float = 0.0
    of: str | None = None
    names = ("of",)

    def __post_init__(self):
        _finite(self, "value")
        _finite(self, "atol", least=0)

    def test(self, *columns):
        return all(np.all(np.abs(column - self.value) <= self.atol) for column in columns)

    def __str__(self):
        return f"{self.of or 'every number'} = {number(self.value)}" + (f" ± {number(self.atol)}" if self.atol else "")


@dataclass(frozen=True)
class Dominated(Rule):
    """small ≤ factor · large + margin, entry by entry; a single number is compared with every entry of the other."""

    small: str
    large: str
    factor: float = 1.0
    margin: float = 0.0
    names = ("small", "large")

    def __post_init__(self):
        _finite(self, "factor", "margin")

    def test(self, small, large):
        return _same_length(small, large) and np.all(small <= self.factor * large + self.margin)

    def __str__(self):
        factor = "" if self.factor == 1 else f"{number(self.factor)} · "
        margin = "" if self.margin == 0 else f" + {number(self.margin)}"
        return f"{self.small} ≤ {factor}{self.large}{margin}, entry by entry"


@dataclass(frozen=True)
class Agrees(Rule):
    """|a − b| ≤ rtol · |b| + atol, entry by entry; a single number is compared with every entry of the other."""

    a: str
    b: str
    rtol: float = 1e-9
    atol: float = 0.0
    names = ("a", "b")

    def __post_init__(self):
        _finite(self, "rtol", "atol", least=0)

    def test(self, a, b):
        return _same_length(a, b) and np.all(np.abs(a - b) <= self.rtol * np.abs(b) + self.atol)

    def __str__(self):
        return f"|{self.a} − {self.b}| ≤ {number(self.rtol)} · |{self.b}| + {number(self.atol)}, entry by entry"


@dataclass(frozen=True)
class Slope(Rule):
    """The least-squares slope of log y against log x is `expected` ± `tolerance`. Needs positive x and y, two x."""

    x: str
    y: str
    expected: float
    tolerance: float
    names = ("x", "y")

    def __post_init__(self):
        _finite(self, "expected")
        _finite(self, "tolerance", least=0)

    def test(self, x, y):
        slope = loglog_slope(x, y)
        return slope is not None and abs(slope - self.expected) <= self.tolerance

    def finding(self, measured):
        slope = loglog_slope(measured[self.x], measured[self.y])
        return "no slope" if slope is None else f"slope {number(slope)}"

    def __str__(self):
        return f"slope of log {self.y} against log {self.x} = {number(self.expected)} ± {number(self.tolerance)}"


@dataclass(frozen=True)
class Increasing(Rule):
    """Each of two or more numbers exceeds the one before by more than `gap`. Reads `of`, or every entry by itself."""

    of: str | None = None
    gap: float = 0.0
    names = ("of",)

    def __post_init__(self):
        _finite(self, "gap")

    def test(self, *columns):
        return all(column.size > 1 and np.all(np.diff(column) > self.gap) for column in columns)

    def __str__(self):
        return f"{self.of or 'every series'} increases" + (f" by more than {number(self.gap)} each" if self.gap else "")


@dataclass(frozen=True)
class Decreasing(Rule):
    """Each of two or more numbers is below the one before by more than `gap`. Reads `of`, or every entry by itself."""

    of: str | None = None
    gap: float = 0.0
    names = ("of",)

    def __post_init__(self):
        _finite(self, "gap")

    def test(self, *columns):
        return all(column.size > 1 and np.all(-np.diff(column) > self.gap) for column in columns)

    def __str__(self):
        return f"{self.of or 'every series'} decreases" + (f" by more than {number(self.gap)} each" if self.gap else "")


@dataclass(frozen=True, init=False)
class All(Rule):
    """Every one of several rules holds: `All(Slope(...), Below(...))`."""

    rules: tuple[Rule, ...]

    def __init__(self, *rules):
        if not rules or not all(isinstance(rule, Rule) for rule in rules):
            raise ValueError(f"All of {rules!r}; one rule or more is wanted")
        object.__setattr__(self, "rules", rules)

    def reads(self, measured):
        return list(dict.fromkeys(name for rule in self.rules for name in rule.reads(measured)))

    def holds(self, measured):
        return all(rule.holds(measured) for rule in self.rules)

    def finding(self, measured):
        return "; ".join(filter(None, (rule.finding(measured) for rule in self.rules)))

    def to_json(self):
        return {"name": "All", "parameters": {"rules": [rule.to_json() for rule in self.rules]}}

    @classmethod
    def _from_parameters(cls, parameters):
        return cls(*(Rule.from_json(rule) for rule in parameters["rules"]))

    def __str__(self):
        return "; and ".join(map(str, self.rules))


def loglog_slope(x, y):
    """The least-squares slope of log y against log x, or None where that has no meaning."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    usable = x.shape == y.shape and all(np.all(np.isfinite(v) & (v > 0)) for v in (x, y))
    if not usable or np.unique(x).size < 2:
        return None
    u, v = np.log(x) - np.log(x).mean(), np.log(y)
    return float(u @ v / (u @ u))


def _same_length(a, b):
    return a.size == b.size or 1 in (a.size, b.size)


# ---------------------------------------------------------------- claims


@dataclass(frozen=True)
class Claim:
    """A statement, the numbers measured for it, and the rule that decides. `claim` makes one and shows it."""

    label: str
    statement: str
    measured: dict[str, Any]
    rule: Rule
    kind: str = "measured"
    seeds: tuple[int, ...] | None = None

    def __post_init__(self):
        if not isinstance(self.label, str) or not re.fullmatch(r"[A-Za-z][\w:.-]*", self.label):
            raise ValueError(f"label is {self.label!r}; letters, digits and : . _ - are wanted, a letter first")
        if not isinstance(self.statement, str) or not self.statement.strip():
            raise ValueError(f"statement is {self.statement!r}; a sentence is wanted")
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind {self.kind!r}; allowed are {', '.join(KINDS)}")
        if not isinstance(self.rule, Rule):
            raise TypeError(f"rule is {self.rule!r}; allowed are {', '.join(sorted(RULES))}")
        if not isinstance(self.measured, dict) or not self.measured:
            raise ValueError(f"measured is {self.measured!r}; a dict of name -> number or list of numbers is wanted")
        object.__setattr__(self, "measured", {name: _plain(name, value) for name, value in self.measured.items()})
        unread = [name for name in self.measured if name not in self.rule.reads(self.measured)]
        if unread:
            raise ValueError(
                f"measured {', '.join(map(repr, unread))} is not read by the rule {self.rule.name}; print it instead"
            )
        if self.seeds is not None:
            seeds = tuple(self.seeds)
            if not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds):
                raise ValueError(f"seeds are {seeds!r}; integers are wanted")
            object.__setattr__(self, "seeds", seeds)

    @property
    def holds(self):
        """Whether the rule holds for the measured numbers."""
        return self.rule.holds(self.measured)

    @property
    def verdict(self):
        """The verdict in the words of `KINDS`."""
        return KINDS[self.kind][0 if self.holds else 1]

    def to_json(self):
        """The claim as plain data; numbers that are not finite become texts, which JSON can hold."""
        return {
            "label": self.label,
            "statement": self.statement,
            "kind": self.kind,
            "measured": {name: _encoded(value) for name, value in self.measured.items()},
            "rule": self.rule.to_json(),
            "verdict": self.verdict,
            "holds": self.holds,
            "seeds": None if self.seeds is None else list(self.seeds),
        }

    @classmethod
    def from_json(cls, data):
        """The claim again. The verdict is computed anew; a stored verdict that disagrees raises `ValueError`."""
        measured = {name: _decoded(value) for name, value in data["measured"].items()}
        made = cls(
            data["label"], data["statement"], measured, Rule.from_json(data["rule"]), data["kind"], data.get("seeds")
        )
        for name in ("holds", "verdict"):
            if name in data and data[name] != getattr(made, name):
                raise ValueError(
                    f"claim {made.label!r} is stored with {name} = {data[name]!r}, "
                    f"but its numbers give {getattr(made, name)!r}"
                )
        return made

    def __repr__(self):
        lines = [f"Claim {self.label} ({KINDS[self.kind][2]}): {self.verdict}", self.statement]
        lines += [f"  {name}: {text}" for name, text in self._rows()]
        return "\n".join(lines)

    def _rows(self):
        """What the box lists below the statement: the numbers, the rule, what it found, the seeds."""
        yield from ((name, _shown(value)) for name, value in self.measured.items())
        yield "rule", str(self.rule)
        if self.rule.finding(self.measured):
            yield "found", self.rule.finding(self.measured)
        if self.seeds is not None:
            yield "seeds", ", ".join(map(str, self.seeds))

    def _repr_html_(self):
        mark, word, colour = ("✓", "holds", "#009E73") if self.holds else ("✗", "fails", "#D55E00")
        listed = "".join(
            f'<div style="overflow-wrap:anywhere"><b>{html.escape(name)}</b>: {html.escape(text)}</div>'
            for name, text in self._rows()
        )
        box = (
            f"border:1px solid {colour};border-left-width:6px;border-radius:4px;padding:.5em .8em;margin:.5em 0;"
            "background:rgba(128,128,128,.08);color:inherit"
        )
        return (
            f'<div class="memlib-claim {word}" style="{box}">'
            f"<div><b>{mark} {self.verdict}</b> · {KINDS[self.kind][2]} · <code>{html.escape(self.label)}</code></div>"
            f'<div class="tex2jax_process mathjax_process" style="margin:.3em 0">{_typeset(self.statement)}</div>'
            f'<div style="font-size:90%">{listed}</div></div>'
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": repr(self), "text/html": self._repr_html_(), CLAIM_MIME: self.to_json()}


def claim(label, statement, measured, rule, kind="measured", seeds=None):
    """Show a claim: a box with the statement, the measured numbers, the rule, and the verdict that follows.

    `measured` maps names to a number or a list of numbers, all of which the rule reads; `kind` is "proved" (the box
    then shows a numerical check of a proved statement), "measured" or "conjecture". A claim that fails is shown as
    failed. Bad input raises.
    """
    from IPython.display import display

    display(Claim(label, statement, measured, rule, kind, seeds))


def _plain(name, value):
    """A measured entry as Python numbers: a number, or a list of numbers."""
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"measured name is {name!r}; a text is wanted")
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.ndim > 1 or (array.size and array.dtype.kind not in "iuf"):
        raise ValueError(
            f"measured {name!r} is {value!r}; a number or a list of numbers is wanted (count what is true or false)"
        )
    return array.tolist()


def _encoded(value):
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    return value if math.isfinite(value) else str(value)


def _decoded(value):
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return float(value) if isinstance(value, str) else value


def _shown(value):
    return series(value if isinstance(value, list) else [value])


def _typeset(statement):
    """Text for HTML; `$…$` becomes `\\(…\\)`, which the book's pages typeset and other places show as it is."""
    return re.sub(r"\$([^$]+)\$", r"\\(\1\\)", html.escape(statement))


# ---------------------------------------------------------------- can the verdict turn?


def perturbations(original):
    """Yield (name, claim) for a sequence of disturbances of each measured entry, without looking at the rule.

    An entry is shifted, scaled, turned in sign, reversed, shuffled and roughened, from moderately to strongly; all
    numbers stay finite. A claim is worth making only if for each entry some disturbance turns a verdict that holds.
    """
    rng = np.random.default_rng(0)
    for name, value in original.measured.items():
        values = np.atleast_1d(np.asarray(value, dtype=float))
        values = np.where(np.isfinite(values), values, 1.0)
        size = float(np.abs(values).max(initial=0.0)) or 1.0
        for disturbed in _disturbed(values, size, rng):
            yield name, _with_entry(original, name, disturbed)


def turning_point(original):
    """How far the measured numbers are from another verdict: ("what was done to which entry", factor), or None.

    The least factor of a fixed list for which multiplying one entry by it, dividing the entry, or tilting it (the last
    number by the factor, the first not at all) turns the verdict. It shows how sharp a claim is.
    """
    for factor in FACTORS:
        for name, value in original.measured.items():
            values = np.atleast_1d(np.asarray(value, dtype=float))
            tilt = factor ** np.linspace(0, 1, values.size)
            for what, changed in (
                ("multiplied", values * factor),
                ("divided", values / factor),
                ("tilted up", values * tilt),
                ("tilted down", values / tilt),
            ):
                if _with_entry(original, name, changed).holds != original.holds:
                    return f"{name} {what}", factor
    return None


FACTORS = (1.01, 1.03, 1.1, 1.3, 2.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4, 1e5, 1e6)


def _with_entry(original, name, values):
    entry = values.tolist() if isinstance(original.measured[name], list) else float(values[0])
    return replace(original, measured={**original.measured, name: entry})


def _disturbed(values, size, rng):
    for power in (-2, -1, 0, 1, 3, 6, 12):
        for sign in (1, -1):
            yield values + sign * size * 10.0**power
            if power:
                yield values * 10.0 ** (sign * power)
    for shift in (1.0, -1.0, 1e3, -1e3):
        yield values + shift
    yield -values
    yield values[::-1].copy()
    for roughness in (0.1, 1.0, 4.0):
        yield rng.permutation(values)
        yield values * np.exp(roughness * rng.standard_normal(values.size))
        yield values + roughness * size * rng.standard_normal(values.size)
