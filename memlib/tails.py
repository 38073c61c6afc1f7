r"""How a sequence forgets: its decay with the lag, and which tail fits it (chapter Essentially sparse memory).

    decay = tails.mutual_information(tokens, tails.lag_grid(1000))
    tails.compare(decay)                                # power law, exponential, evidence, verdict

Two measures of dependence between $x_t$ and $x_{t+s}$: the autocorrelation of numbers, the mutual information of
symbols. Two shapes, $Cs^{-\beta}$ and $Ce^{-\beta s}$ (equations e:heavy, e:light), fitted by weighted least squares on
the lags at which something is seen. All uncertainties come from leaving out one block of the sequence after the other
(the jackknife): neighbouring values are dependent, so single values cannot be left out.
"""

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize_scalar

from memlib.checks import integer, positive_number

__all__ = ["VERDICTS", "Decay", "FittedTail", "Tails", "autocorrelation", "compare", "lag_grid", "mutual_information"]

VERDICTS = {
    "heavy": "the power law fits better",
    "light": "the exponential fits better",
    "undecided": "the data do not tell the two apart",
    "oscillating": "the decay turns clearly negative: neither shape",
    "none": "no dependence is seen",
}
"""What `compare` can answer."""

SEEN, PRESENT, NEGATIVE = 2.0, 3.5, 4.0  # standard errors: a lag is used, there is memory, the sign has turned
LEAST_LAGS, LEAST_EVIDENCE = 5, 4.0


@dataclass(frozen=True)
class Decay:
    """The dependence between $x_t$ and $x_{t+s}$, by lag.

    Attributes:
        lags, values: the lags, and the dependence measured at each.
        error: standard errors of the values.
        without: the values with each block of the sequence left out, shape ``(blocks, lags)``.
        floor: what the estimator gives where there is no dependence; it has been subtracted.
        measure: what was measured.
    """

    lags: np.ndarray
    values: np.ndarray
    error: np.ndarray
    without: np.ndarray = field(repr=False)
    floor: float
    measure: str


@dataclass(frozen=True)
class FittedTail:
    r"""A fitted tail: $Cs^{-\beta}$ (kind ``heavy``) or $Ce^{-\beta s}$ (``light``).

    ``misfit`` is the weighted sum of squares that remains; ``exponent_error`` the standard error of $\beta$.
    """

    kind: str
    constant: float
    exponent: float
    exponent_error: float
    misfit: float

    def __call__(self, lags) -> np.ndarray:
        """The fitted values."""
        return self.constant * _shape(self.kind, np.asarray(lags, dtype=float), self.exponent)


@dataclass(frozen=True)
class Tails:
    """Both tails fitted to a `Decay`, and the verdict (see `VERDICTS`).

    ``evidence`` is the misfit of the exponential less that of the power law, the difference of their AIC: positive for
    a heavy tail; ``evidence_error`` its standard error. ``first`` and ``last`` bound the lags used, ``used`` counts
    them. The fits are None where fewer than three lags can be used.
    """

    verdict: str
    heavy: FittedTail | None
    light: FittedTail | None
    evidence: float
    evidence_error: float
    first: int
    last: int
    used: int


def lag_grid(last: int, per_octave: int = 4) -> np.ndarray:
    """Lags from 1 to ``last``, all small ones, then evenly spread on a logarithmic scale."""
    last, per_octave = integer("last", last, 2), integer("per_octave", per_octave, 1)
    octaves = math.log2(last)
    return np.unique(np.round(2 ** np.linspace(0, octaves, math.ceil(octaves * per_octave) + 1)).astype(int))


# ---------------------------------------------------------------- measuring


def autocorrelation(values, lags, blocks: int = 20) -> Decay:
    r"""The autocorrelation $\gamma(s)/\gamma(0)$ of a series, with the mean removed.

    Each lag averages the products $x_tx_{t+s}$ over all $t$; a block is left out by leaving out its $t$.
    """
    x, lags, blocks = _sequence(values, lags, blocks)
    x = x.astype(float) - x.mean()
    if not np.isfinite(x).all() or not x.any():
        raise ValueError("a series must be finite numbers that are not all equal")
    n = len(x)
    block = np.arange(n) * blocks // n
    sums, counts = np.empty((blocks, len(lags) + 1)), np.empty((blocks, len(lags) + 1))
    for column, s in enumerate([0, *lags]):
        sums[:, column] = np.bincount(block[: n - s], x[: n - s] * x[s:], minlength=blocks)
        counts[:, column] = np.bincount(block[: n - s], minlength=blocks)
    without = (sums.sum(0) - sums) / (counts.sum(0) - counts)
    mean = sums.sum(0) / counts.sum(0)
    without, mean = without[:, 1:] / without[:, :1], mean[1:] / mean[0]
    return Decay(lags, mean, _jackknife(without), without, 0.0, "autocorrelation")


def mutual_information(tokens, lags, blocks: int = 20, seed: int = 0) -> Decay:
    r"""The mutual information $I(x_t;x_{t+s})$ of a sequence of symbols, in nats, without the bias of finite samples.

    Counting gives too much: independent symbols would seem to share about $(k-1)^2/2n$ nats. How much exactly is
    measured on the same symbols in random order, and subtracted; its scatter counts as error.
    """
    x, lags, blocks = _sequence(tokens, lags, blocks)
    if x.dtype.kind not in "iu":
        raise TypeError(f"tokens must be integers, got {x.dtype}")
    symbols, x = np.unique(x, return_inverse=True)
    k, n = len(symbols), len(x)
    if k < 2:
        raise ValueError("a sequence of a single symbol has no mutual information to measure")
    rng = np.random.default_rng(integer("seed", seed, 0))
    shuffled = rng.permutation(x)
    floor = np.array([_information(_pairs(shuffled, s, k)) for s in range(1, 9)])
    edges = np.arange(blocks + 1) * n // blocks
    values, without = np.empty(len(lags)), np.empty((blocks, len(lags)))
    for column, s in enumerate(lags):
        counts = np.array([_pairs(x[a : b + s], s, k) for a, b in itertools.pairwise(edges)])
        total = counts.sum(0)
        values[column] = _information(total)
        without[:, column] = [_information(total - part) for part in counts]
    without -= floor.mean() * blocks / (blocks - 1)  # the bias goes with 1 / n
    error = np.hypot(_jackknife(without), floor.std(ddof=1))
    return Decay(lags, values - floor.mean(), error, without, float(floor.mean()), "mutual information")


def _pairs(x: np.ndarray, lag: int, k: int) -> np.ndarray:
    return np.bincount(x[:-lag] * k + x[lag:], minlength=k * k)


def _information(counts: np.ndarray) -> float:
    k = math.isqrt(len(counts))
    joint = counts.reshape(k, k) / counts.sum()
    here, there = joint.sum(1), joint.sum(0)
    seen = joint > 0
    return float((joint[seen] * np.log(joint[seen] / np.outer(here, there)[seen])).sum())


def _jackknife(without: np.ndarray) -> np.ndarray:
    """Standard errors from the estimates with one block left out."""
    blocks = len(without)
    return np.sqrt((blocks - 1) * without.var(0))


def _sequence(values, lags, blocks: int) -> tuple[np.ndarray, np.ndarray, int]:
    x, lags = np.asarray(values), np.asarray(lags)
    blocks = integer("blocks", blocks, 2)
    if x.ndim != 1 or len(x) < 2 * blocks:
        raise ValueError(f"a sequence must be one-dimensional and have at least 2 * blocks = {2 * blocks} entries, "
                         f"got shape {x.shape}")  # fmt: skip
    if lags.ndim != 1 or lags.dtype.kind not in "iu" or not len(lags) or lags[0] < 1 or (np.diff(lags) < 1).any():
        raise ValueError(f"lags must be increasing integers from 1 on, got {lags!r:.80}")
    if lags[-1] > len(x) // 2:
        raise ValueError(f"lags must not exceed half the sequence, {len(x) // 2}, got {lags[-1]}")
    return x, lags, blocks


# ---------------------------------------------------------------- fitting


def compare(decay: Decay, first: int = 1, tolerance: float = 0.1) -> Tails:
    r"""Fit both tails to a decay and say which one it is.

    Used are the lags from ``first`` on, up to the first whose value is below two standard errors. A squared residual
    is divided by $\mathrm{error}^2+(\mathrm{tolerance}\cdot\mathrm{value})^2$: no real decay is one of the two shapes
    exactly, and without the second term the smallest lags alone would decide in a long sequence. The verdict is

    * ``none`` if none of the first five values exceeds 3.5 standard errors in size,
    * ``oscillating`` if a value is more than 4 standard errors below zero,
    * ``heavy`` or ``light`` if at least five lags can be used and the evidence, the difference of the misfits, exceeds
      4 and two of its own standard errors,
    * ``undecided`` otherwise.
    """
    if not isinstance(decay, Decay):
        raise TypeError(f"compare wants a Decay, as autocorrelation and mutual_information give, got {decay!r:.80}")
    first, tolerance = integer("first", first, 1), positive_number("tolerance", tolerance)
    z = decay.values / decay.error
    unseen = (z < SEEN) & (decay.lags >= first)
    end = int(np.argmax(unseen)) if unseen.any() else len(z)
    use = (decay.lags >= first) & (np.arange(len(z)) < end)
    lags, used = decay.lags[use].astype(float), int(use.sum())
    near = np.abs(z[decay.lags >= first][:5])
    none, negative = bool((near <= PRESENT).all()), bool((z < -NEGATIVE).any())
    heavy = light = None
    evidence = evidence_error = math.nan
    if used >= 3:
        weight = 1 / (decay.error[use] ** 2 + (tolerance * decay.values[use]) ** 2)
        fits = {kind: _fit(kind, lags, decay.values[use], weight) for kind in ("heavy", "light")}
        again = {kind: np.array([_fit(kind, lags, y, weight) for y in decay.without[:, use]]) for kind in fits}
        heavy, light = (
            FittedTail(kind, *fits[kind][:2], float(_jackknife(again[kind][:, 1])), fits[kind][2]) for kind in fits
        )
        evidence = light.misfit - heavy.misfit
        evidence_error = float(_jackknife(again["light"][:, 2] - again["heavy"][:, 2]))
    decided = used >= LEAST_LAGS and abs(evidence) > max(LEAST_EVIDENCE, 2 * evidence_error)
    verdict = "none" if none else "oscillating" if negative else "undecided"
    if verdict == "undecided" and decided:
        verdict = "heavy" if evidence > 0 else "light"
    bounds = (int(lags[0]), int(lags[-1])) if used else (first, first)
    return Tails(verdict, heavy, light, evidence, evidence_error, *bounds, used)


def _shape(kind: str, lags: np.ndarray, exponent: float) -> np.ndarray:
    return lags**-exponent if kind == "heavy" else np.exp(-exponent * lags)


def _fit(kind: str, lags: np.ndarray, values: np.ndarray, weight: np.ndarray) -> tuple[float, float, float]:
    """Constant, exponent and weighted sum of squares: the constant is linear, the exponent is searched."""

    def solve(log_exponent: float) -> tuple[float, float]:
        shape = _shape(kind, lags, math.exp(log_exponent))
        constant = max(float((weight * shape * values).sum() / (weight * shape * shape).sum()), 0.0)
        return constant, float((weight * (values - constant * shape) ** 2).sum())

    grid = np.log(np.geomspace(1e-3, 10, 60) if kind == "heavy" else np.geomspace(1e-3, 10, 60) * 3 / lags[-1])
    best = int(np.argmin([solve(g)[1] for g in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(lambda g: solve(g)[1], bounds=(low, high), method="bounded", options={"xatol": 1e-10})
    constant, misfit = solve(found.x)
    return constant, math.exp(found.x), misfit
