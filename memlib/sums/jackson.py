"""Lemma 1 as code: from a bump to a polynomial to a sum of heads (chapter Fixed sparse memory, x:lem-bump)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from mpmath import mp, mpf
from numpy.polynomial import chebyshev
from scipy.fft import dct

from memlib import checks
from memlib.sums.kernel_sum import KernelSum, _encoding, _first_lag, _lags, _positive, _target


def bump(z, order: int):
    r"""$\chi(z)$: the tent $1-|z|$ for order 1, $(1-z^2)^n$ for order $n\ge2$, and 0 for $|z|\ge1$.

    $\chi(0)=1$ and $\chi^{(n-1)}$ is Lipschitz: what Lemma x:lem-bump asks of it.
    """
    checks.integer("order", order, 1)
    z = np.minimum(np.abs(np.asarray(z, dtype=float)), 1.0)
    return 1 - z if order == 1 else (1 - z**2) ** order


@dataclass(frozen=True)
class JacksonSum:
    r"""The sum of Lemma x:lem-bump: $uP(u)$, $u=e^{-\alpha s}$ (``lin``), or $s^{-1-\alpha}P(u)$, $u=s^{-\alpha}$.

    $P$ has degree $H-1$ and is kept as ``chebyshev`` coefficients in $T_k(2u-1)$, so that nothing overflows or cancels
    for thousands of heads. ``error`` is the $\ell^1$ error over the infinite past (for a kernel: with the kernel zero
    beyond its last value). `coefficients` gives the same sum as a `KernelSum`.
    """

    encoding: str
    alpha: float
    order: int
    chebyshev: np.ndarray = field(repr=False)
    target: int | np.ndarray = field(repr=False)
    residual: float = 0.0
    error: float = field(default=math.nan)

    @property
    def heads(self) -> int:
        """The number of terms $H$."""
        return len(self.chebyshev)

    @property
    def rates(self) -> np.ndarray:
        r"""$h\alpha$ (``lin``) or $1+h\alpha$ (``log``), $h=1..H$."""
        return _first_lag(self.encoding) + self.alpha * np.arange(1, self.heads + 1)

    def _heads_at(self, lags: np.ndarray) -> np.ndarray:
        s = lags.astype(float)
        if self.encoding == "lin":
            u = np.exp(-self.alpha * s)
            return u * chebyshev.chebval(2 * u - 1, self.chebyshev)
        s = np.maximum(s, 1.0)
        u = s**-self.alpha
        return np.where(lags > 0, u / s * chebyshev.chebval(2 * u - 1, self.chebyshev), 0.0)

    def values(self, lags) -> np.ndarray:
        """The sum at the given lags, with the residual at lag 0; stable for any number of heads."""
        lags = _lags(lags, self.encoding)
        return self._heads_at(lags) + self.residual * (lags == 0)

    def coefficients(self, digits: int | None = None) -> KernelSum:
        r"""The same sum in the form $\sum_hc_he^{-\alpha hs}$ or $\sum_hc_hs^{-1-\alpha h}$, in extended precision.

        The Chebyshev coefficients are taken as exact, and the change of basis is done in integers; the $c_h$ are
        rounded to ``digits`` decimal digits (default: as many as keep values correct to double precision).
        """
        if digits is None:
            digits = 30 + math.ceil(1.6 * self.heads)
        checks.integer("digits", digits, 1)
        previous, current = [1], [-1, 2]  # T_0, T_1 of 2u - 1, in powers of u
        with mp.workdps(digits + 10):
            total = [mpf(0)] * self.heads
            for k, a in enumerate(self.chebyshev):
                row = previous if k == 0 else current
                if k >= 2:
                    row = [
                        4 * low - 2 * mid - old
                        for low, mid, old in zip([0, *current], [*current, 0], [*previous, 0, 0], strict=True)
                    ]
                    previous, current = current, row
                for i, t in enumerate(row):
                    total[i] += mpf(float(a)) * t
        with mp.workdps(digits):
            rates = tuple(_first_lag(self.encoding) + mpf(self.alpha) * h for h in range(1, self.heads + 1))
            return KernelSum(self.encoding, rates, tuple(+c for c in total), self.residual)


def jackson_sum(target, heads: int, encoding: str, alpha: float | None = None, order: int = 2,
                residual: bool = False) -> JacksonSum:  # fmt: skip
    r"""The construction of Lemma x:lem-bump: fill in between the lags, change variables, take a polynomial.

    $F(u)=\sum_k\rho(k)\chi(s(u)-k)$ is the target on integers; $G=F/u$ (``lin``) or $s^{1+\alpha}F$ (``log``) is
    approximated on $[0,1]$ by the polynomial of degree $H-1$ that interpolates it at the $H$ Chebyshev points. In the
    maximum norm this is at most $2+\frac2\pi\log H$ times the best possible, so that the rate is that of equations
    x:jackson-lin, x:jackson-log up to this factor. For $H<$ ``order`` the sum is zero: the lemma
    speaks of $H\ge n$.

    ``target``: a lag $T$, or kernel values on lags $0..N-1$. ``alpha``: default $1/(T+1)$ (lin), $1/\log(T+1)$ (log),
    $T$ the (last) lag. ``order``: the $n$ of the lemma, by the choice of the `bump`. ``residual``: let the residual
    connection correct lag 0 (for log and a kernel with $\rho(0)\ne0$ it always does).
    """
    _encoding(encoding)
    target = _target(target, encoding)
    checks.integer("heads", heads, 1)
    checks.integer("order", order, 1)
    rho = np.eye(1, target + 1, target)[0] if isinstance(target, int) else np.trim_zeros(target, "b")
    last = max(len(rho) - 1, _first_lag(encoding))
    if alpha is None:
        alpha = 1 / (last + 1) if encoding == "lin" else 1 / math.log(last + 1)
    alpha = float(_positive("alpha", alpha))
    u = (1 + np.cos(np.pi * (np.arange(heads) + 0.5) / heads)) / 2
    if heads < order or not rho.any():
        series = np.zeros(heads)
    else:
        series = dct(_smooth_target(rho, u, encoding, alpha, order), type=2) / heads
        series[0] /= 2
    made = JacksonSum(encoding, alpha, order, series, target)
    at_zero = float(made._heads_at(np.zeros(1, dtype=np.int64))[0])
    keep = residual or encoding == "log"
    made = JacksonSum(
        encoding, alpha, order, series, target, float(rho[0] if len(rho) else 0) - at_zero if keep else 0.0
    )
    object.__setattr__(made, "error", _jackson_error(made, rho))
    return made


def smooth_sum(kernel: Callable[[np.ndarray], np.ndarray], heads: int, alpha: float) -> JacksonSum:
    r"""The power sum of Theorem e:thm-smooth: nothing is filled in, $G(u)=s^{1+\alpha}\rho(s)$ with $u=s^{-\alpha}$.

    ``kernel`` maps real lags $s\ge1$ (an array) to $\rho(s)$. The polynomial of degree $H-1$ interpolates $G$ at $H$
    Chebyshev points, as in `jackson_sum`. The sum lives on the lags from 1 on; ``error`` is left open, since no window
    was named.
    """
    if not callable(kernel):
        raise TypeError(f"kernel must be a function of an array of lags, got {type(kernel).__name__}")
    checks.integer("heads", heads, 1)
    alpha = float(_positive("alpha", alpha))
    u = (1 + np.cos(np.pi * (np.arange(heads) + 0.5) / heads)) / 2
    s = u ** (-1 / alpha)
    values = np.asarray(kernel(s), dtype=float)
    if values.shape != s.shape or not np.isfinite(values).all():
        raise ValueError("kernel must map an array of lags to as many finite numbers")
    series = dct(s ** (1 + alpha) * values, type=2) / heads
    series[0] /= 2
    return JacksonSum("log", alpha, 0, series, np.array([]))


def _smooth_target(rho, u, encoding, alpha, order):
    """G at the points u: the target filled in between the integers, divided by what every head has in common."""
    with np.errstate(over="ignore"):
        s = -np.log(u) / alpha if encoding == "lin" else u ** (-1 / alpha)
    inside = s < len(rho)
    s = np.where(inside, s, 0.0)
    below = np.floor(s).astype(int)
    padded = np.append(rho, [0.0, 0.0])
    if encoding == "log":
        padded[0] = 0.0  # lag 0 belongs to the residual
    filled = padded[below] * bump(s - below, order) + padded[below + 1] * bump(s - below - 1, order)
    return np.where(inside, filled / u if encoding == "lin" else filled * np.maximum(s, 1.0) * (1 / u), 0.0)


def _jackson_error(made: JacksonSum, rho) -> float:
    """The l1 error: term by term as far as the sum varies from lag to lag, by its integral, corrected, beyond."""
    alpha, heads = made.alpha, made.heads
    if made.encoding == "lin":
        stop = len(rho) + math.ceil(45 / alpha)  # beyond, u < 1e-19 and the sum is P(0) u
        rest = abs(chebyshev.chebval(-1.0, made.chebyshev)) * math.exp(-alpha * stop) / -math.expm1(-alpha)
    else:
        stop = len(rho) + 32 + math.ceil((30 * alpha * heads) ** (1 / (1 + alpha / 2)))
        rest = _log_tail(made, stop)
    total = 0.0
    for start in range(0, stop, 1 << 14):
        lags = np.arange(start, min(stop, start + (1 << 14)))
        wanted = np.zeros(len(lags))
        part = rho[start : start + len(lags)]
        wanted[: len(part)] = part
        total += float(np.abs(made.values(lags) - wanted).sum())
    return total + float(rest)


def _log_tail(made: JacksonSum, stop: int) -> float:
    r"""$\sum_{s\ge S}|\varphi(s)|$ for $\varphi(s)=s^{-1-\alpha}P(s^{-\alpha})$.

    $\int_{S-1/2}^\infty|\varphi|ds=\frac1\alpha\int_0^{U}|P|du$, split at the zeros of $P$ and integrated in the
    Chebyshev basis; then the midpoint rule's correction $\varphi'/24$, and at each zero that of the cell which
    contains it.
    """
    alpha, c = made.alpha, made.chebyshev
    edge = stop - 0.5
    top = edge**-alpha
    derivative, integral = chebyshev.chebder(c) * 2, chebyshev.chebint(c) / 2

    def value(u, series):
        return chebyshev.chebval(2 * u - 1, series)

    angle = np.linspace(0, math.acos(1 - 2 * top), 64 + 8 * made.heads)
    u = (1 - np.cos(angle)) / 2
    u[-1] = top
    p = value(u, c)
    crossing = np.flatnonzero(p[:-1] * p[1:] < 0)
    low, high, left = u[crossing], u[crossing + 1], p[crossing]
    for _ in range(40):
        middle = (low + high) / 2
        same = value(middle, c) * left > 0
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    zeros = (low + high) / 2
    steps = np.diff(value(np.concatenate([[0.0], zeros, [top]]), integral))
    total = np.abs(steps).sum() / alpha
    s = np.exp(np.minimum(-np.log(zeros) / alpha, 700.0))  # where the sum changes sign, on the axis of lags
    near = s < 1e12
    distance = np.abs(s[near] - np.round(s[near]))
    slope = np.abs(alpha * s[near] ** (-2 - 2 * alpha) * value(zeros[near], derivative))
    total += (slope * (distance - distance**2 - 0.25)).sum()
    at_edge = value(top, c)
    change = -(1 + alpha) * edge ** (-2 - alpha) * at_edge
    change -= alpha * edge ** (-2 - 2 * alpha) * value(top, derivative)
    return float(total + math.copysign(1.0, at_edge) * change / 24)
