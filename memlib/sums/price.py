"""The price of real rates: how large coefficients must be, and what that means in floating point (x:thm-price)."""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

import numpy as np
from mpmath import mp, mpf

from memlib import checks
from memlib.sums.kernel_sum import NORMS, _as_float, _encoding, _lags, _positive


def _chebyshev_row(n: int) -> list[int]:
    r"""Absolute values of the coefficients of the shifted Chebyshev polynomial $T_n(2u-1)$, lowest power first."""
    if n == 0:
        return [1]
    return [n * math.comb(n + k, 2 * k) * 4**k // (n + k) for k in range(n + 1)]


def _heaviest(lag: int, form: str) -> float:
    r"""$X$ such that $\lVert\delta_T-\varphi\rVert_1\ge1-\sum|c_h|/X$ for exponential sums on lags $s\ge0$."""
    return _as_float(math.comb(2 * lag, lag) if form == "binomial" else max(_mixtures(lag))[0])


def _mixtures(lag: int):
    r"""(coefficient at the lag, $n$, share): $(1-x)T_n^*$ and $xT_{n+1}^*$, signs chosen so that magnitudes add, with
    as much of the longer one as keeps the coefficient at the lag the largest."""
    # where the largest coefficient may stand at the lag: 2T^2 - 5T/2 + 1 <= n^2 <= 2T^2 + 3T/2 + 1/2 (x:lem-chebyshev)
    least, most = max(lag, math.isqrt(2 * lag * lag) - 2), math.isqrt((4 * lag * lag + 3 * lag + 1) // 2)
    for n in range(least, most + 1):
        row, longer = [*_chebyshev_row(n), 0], _chebyshev_row(n + 1)
        if max(row) > row[lag]:
            continue
        share = Fraction(1)
        for k, (a, b) in enumerate(zip(row, longer, strict=True)):
            if k != lag and b > longer[lag]:
                share = min(share, Fraction(row[lag] - a, (row[lag] - a) + (b - longer[lag])))
        yield (1 - share) * row[lag] + share * longer[lag], n, share


def weight_floor(lag: int, error: float = 0.0, *, encoding: str = "lin", residual: bool = False,
                 form: str = "chebyshev") -> float:  # fmt: skip
    r"""The least $\sum_h|c_h|$ with which real rates, however many, can have $\ell^1$ error ``error``.

    Theorem x:thm-price, equation x:price. For any $\zeta$ on lags $s\ge0$ with symbol
    $\hat\zeta(r)=\sum_s\zeta_sr^s$, $\zeta_T\le\varepsilon\max_s|\zeta_s|+\sum_h|c_h|\max_{0\le r\le1}|\hat\zeta(r)|$
    (equation x:price-duality). The forms differ in $\zeta$:

    * ``"binomial"``: $\hat\zeta=\pm(1-r)^{2T}/\binom{2T}T$, whence $\sum|c_h|\ge(1-\varepsilon)\binom{2T}T$;
    * ``"chebyshev"``: Chebyshev polynomials of $[0,1]$, of two neighbouring degrees near $\sqrt2\,T$, mixed so that the
      largest coefficient stands at $T$: $\sum|c_h|\ge(1-\varepsilon)X$ with a much larger $X$;
    * ``"degrees"``: Chebyshev polynomials of any degree $q\ge T$: the best of ``"chebyshev"`` and of
      $a_{q,T}-\varepsilon\max_ka_{q,k}$. Grows without limit as the error goes to 0.

    A log head, and a lin layer whose ``residual`` connection takes care of lag 0, is met by $\zeta$ on lags $s\ge1$
    only: $T$ becomes $T-1$. (For log, $s^{-p}$ is the mean of $r^{s-1}$ over $r=e^{-x}$, $x$ Gamma distributed.)
    """
    lag = _seen_lag(lag, encoding, residual, form)
    if not isinstance(error, int | float | np.floating) or not error >= 0:
        raise ValueError(f"error must be a non-negative number, got {error!r}")
    if error >= 1:
        return 0.0
    simple = (1 - float(error)) * _heaviest(lag, form)
    if form != "degrees":
        return simple
    if error == 0:
        return math.inf if lag else 1.0
    return max([simple, *(row[lag] - float(error) * max(row) for row in _rows(lag, float(error)))])


def _rows(lag: int, error: float):
    """Chebyshev coefficients (absolute values) of degrees from the lag on, until they can no longer help."""
    for q in range(lag, 200 * (lag + 1)):
        row = _chebyshev_row(q)
        if max(row) > 10**300:
            return
        row = [float(a) for a in row]
        yield row
        if row.index(max(row)) > lag and row[lag] < error * max(row):
            return


def _seen_lag(lag, encoding, residual, form) -> int:
    """The lag as the certificates see it: one less where lag 0 is out of their reach."""
    _encoding(encoding)
    shifted = residual or encoding == "log"
    lag = checks.integer("lag", lag, 1 if shifted else 0)
    if form not in ("binomial", "chebyshev", "degrees"):
        raise ValueError(f"unknown form {form!r} of the floor; allowed: binomial, chebyshev, degrees")
    return lag - 1 if shifted else lag


def price_certificate(lag: int, form: str = "chebyshev") -> np.ndarray:
    r"""The $\zeta$ behind `weight_floor` for lin sums, on lags $0,1,\dots$ (Theorem x:thm-price, equation x:price).

    $\zeta_T=1$, $|\zeta_s|\le1$ and $|\sum_s\zeta_sr^s|\le1/X$ for all $0\le r\le1$, with $X=$ ``weight_floor(lag,
    form=form)``.
    """
    checks.integer("lag", lag, 0)
    if form not in ("binomial", "chebyshev"):
        raise ValueError(f"a certificate belongs to the forms binomial and chebyshev, got {form!r}")
    if form == "binomial":
        row = [Fraction(math.comb(2 * lag, s)) for s in range(2 * lag + 1)]
    else:
        _, n, share = max(_mixtures(lag))
        pairs = zip([*_chebyshev_row(n), 0], _chebyshev_row(n + 1), strict=True)
        row = [(1 - share) * a + share * b for a, b in pairs]
    return np.array([(-1) ** (s - lag) * float(a / row[lag]) for s, a in enumerate(row)])


def error_floor(lag: int, weight: float, *, encoding: str = "lin", residual: bool = False,
                form: str = "chebyshev") -> float:  # fmt: skip
    r"""The least $\ell^1$ error that $\sum_h|c_h|\le$ ``weight`` allows: `weight_floor` read the other way.

    Theorem x:thm-price: $1-\sum|c_h|/X$, and for ``form="degrees"`` also $(a_{q,T}-\sum|c_h|)/\max_ka_{q,k}$, $q\ge T$.
    """
    weight = _budget(weight)
    lag = _seen_lag(lag, encoding, residual, form)
    floor = max(0.0, 1 - weight / _heaviest(lag, form))
    if form == "degrees" and math.isfinite(weight):
        floor = max([floor, *((row[lag] - weight) / max(row) for row in _rows(lag, 1e-6))])
    return floor


def _budget(weight) -> float:
    if not isinstance(weight, int | float | np.integer | np.floating) or isinstance(weight, bool) or not weight >= 0:
        raise ValueError(f"a weight budget must be a non-negative number, got {weight!r}")
    return float(weight)


def interpolation_weight(lag: int, alpha: float, residual: bool = False, encoding: str = "lin") -> mpf:
    r"""$\sum_h|c_h|$ of the `interpolating_sum` in closed form (Theorem x:thm-price, equation x:price-interpolation).

    lin: $e^{\alpha T(T+1)/2}\prod_{j<T}(1+e^{-\alpha j})/\prod_{i\le T}(1-e^{-\alpha i})$; with ``residual`` the node
    $j=0$ and the factor $i=T$ that belongs to it are missing. log, with or without residual:
    $(T!)^\alpha\prod_{1\le j<T}(1+j^{-\alpha})/(1-(j/T)^\alpha)$. An mpmath number: it soon leaves the range of floats.
    """
    _encoding(encoding)
    first = 1 if residual or encoding == "log" else 0
    checks.integer("lag", lag, first)
    alpha = mpf(_positive("alpha", alpha))
    if encoding == "log":
        factors = ((1 + mpf(j) ** -alpha) / (1 - (mpf(j) / lag) ** alpha) for j in range(1, lag))
        return mp.factorial(lag) ** alpha * mp.fprod(factors)
    above = mp.fprod(1 + mp.exp(-alpha * j) for j in range(first, lag))
    below = mp.fprod(-mp.expm1(-alpha * i) for i in range(1, lag + 1 - first))
    return mp.exp(alpha * lag * (lag + 1) / 2) * above / below


@dataclass(frozen=True)
class PrecisionLimit:
    """What lin heads reach in a number format: error and weight of the best ridge parameter (see `precision_limit`)."""

    error: float
    weight: float
    ridge: float
    errors: tuple = field(repr=False)
    weights: tuple = field(repr=False)


def precision_limit(lag: int, dtype="float64", *, norm: str = "l2", rates=None, length: int | None = None,
                    ridges=None) -> PrecisionLimit:  # fmt: skip
    r"""How near lin heads come to $\delta_T$ when coefficients, kernels and sums are numbers of type ``dtype``.

    Chapter Fixed sparse memory, Theorem x:thm-price at work. The coefficients minimise
    $\lVert\delta_T-\varphi\rVert_2^2+\lambda\sum_hc_h^2$ over the infinite past, solved in extended precision and then
    rounded; kernels are rounded, products and sums are taken in ``dtype`` one after the other. The ridge $\lambda$
    (``ridges``, by default powers of ten down to $10^{-44}$) trades cancellation against rounding; the best one counts,
    the zero sum ($\lambda=\infty$) included.
    ``rates`` are by default 28 in geometric progression, the error is that on lags $0..N-1$, $N=$ ``length``, by
    default $4T+64$. Every operation is correctly rounded, so the result is the same on every machine.
    """
    checks.integer("lag", lag, 0)
    kind = np.dtype(dtype)
    if kind not in (np.float16, np.float32, np.float64):
        raise ValueError(f"dtype must be float16, float32 or float64, got {dtype!r}")
    if norm not in NORMS:
        raise ValueError(f"unknown norm {norm!r}; allowed: {', '.join(NORMS)}")
    length = 4 * lag + 64 if length is None else checks.integer("length", length, lag + 1)
    rates = np.geomspace(0.02, 8.0, 28) if rates is None else [float(_positive("a rate", p)) for p in rates]
    ridges = [10.0**-k for k in range(2, 45, 2)] if ridges is None else [_positive("a ridge", x) for x in ridges]
    table, solved = _ridge_solutions(lag, length, tuple(map(float, rates)), tuple(map(float, ridges)))
    kernels = np.array(table).astype(kind)
    errors, weights = [], []
    for coefficients in solved:
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            phi = np.zeros(length, dtype=kind)
            for c, kernel in zip(np.array(coefficients).astype(kind), kernels, strict=True):
                phi = phi + c * kernel
        rest = phi.astype(float) - np.eye(1, length, lag)[0]
        error = math.fsum(np.abs(rest)) if norm == "l1" else math.sqrt(math.fsum(rest**2))
        errors.append(error if math.isfinite(error) else math.inf)
        weights.append(math.fsum(abs(c) for c in coefficients))
    best = int(np.argmin(errors))
    ridge = [math.inf, *map(float, ridges)][best]
    return PrecisionLimit(errors[best], weights[best], ridge, tuple(errors), tuple(weights))


@cache
def _ridge_solutions(lag, length, rates, ridges):
    """Kernels and, for each ridge, coefficients: solved in extended precision, each number correctly rounded."""
    with mp.workdps(60):
        bases = [mp.exp(-mpf(p)) for p in rates]
        gram = mp.matrix([[1 / (1 - r * q) for q in bases] for r in bases])
        wanted = mp.matrix([r**lag for r in bases])
        solved = [[0.0] * len(rates)]
        for ridge in ridges:
            system = gram.copy()
            for i in range(len(bases)):
                system[i, i] += mpf(ridge)
            solved.append([float(c) for c in mp.lu_solve(system, wanted)])
        return [[float(x) for x in _powers(r, length)] for r in bases], solved


def _powers(base, length):
    value = mpf(1)
    for _ in range(length):
        yield value
        value *= base


@dataclass(frozen=True)
class ComplexSum:
    r"""$\varphi(s)=\sum_hc_hr_h^s$ with complex $r_h$: real-valued, with its error and weight (Theorem x:thm-price)."""

    bases: np.ndarray
    coefficients: np.ndarray
    error: float
    weight: float

    def values(self, lags) -> np.ndarray:
        """The sum at the given lags, added up in double precision: nothing cancels."""
        lags = _lags(lags, "lin")
        terms = self.coefficients * self.bases ** lags.astype(float)[..., None]
        return terms.sum(-1).real


def complex_sum(lag: int, radius: float) -> ComplexSum:
    r"""$r_h=\varrho e^{2\pi ih/(T+1)}$, $h=0..T$: $\varphi(s)=\varrho^{s-T}$ at $s\equiv T$ modulo $T+1$, else 0.

    Theorem x:thm-price, third part: error $\varrho^{T+1}/(1-\varrho^{T+1})$ with weight $\sum|c_h|=\varrho^{-T}$.
    """
    checks.integer("lag", lag, 0)
    if not isinstance(radius, int | float | np.floating) or not 0 < radius < 1:
        raise ValueError(f"radius must lie strictly between 0 and 1, got {radius!r}")
    turn = np.exp(2j * np.pi * np.arange(lag + 1) / (lag + 1))
    once = radius ** (lag + 1)
    return ComplexSum(radius * turn, turn * radius**-lag / (lag + 1), once / (1 - once), radius**-lag)
