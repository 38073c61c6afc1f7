r"""The right-hand sides of the theorems as numbers, every constant explicit (chapter Fixed memory).

For one lag $T$ and $H\ge n$ heads, Lemma 1 (x:lem-bump) is a chain of three numbers,

$$\|\delta_T-\varphi\|_{\ell^1}\ \le\ J_n\,\|G^{(n)}\|_\infty\,S(\alpha)\;H^{-n},$$

Jackson's constant $J_n=(\pi/4)^nn^n/n!$ (equation f:jackson), the largest $n$-th derivative of the bump written in the
variable $u$, and the sum of the weight in front, $S=1/(1-e^{-\alpha})$ or $\zeta(1+\alpha)$ (equation f:transfer). The
bump is the one whose $n$-th derivative has the least maximum, and the maximum of $G^{(n)}$ is found among finitely many
candidates: on each piece it is that of a polynomial times an exponential or a power.

Theorem 1 (x:thm-fixed) adds the lags and the feed-forward network.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.polynomial import Polynomial
from scipy.special import zeta

from memlib import checks

__all__ = [
    "Bump",
    "FixedBound",
    "closed_form",
    "default_alpha",
    "derivative_bound",
    "fixed",
    "jackson_constant",
    "lag_constant",
    "least_bump",
    "split_heads",
]

ENCODINGS = ("lin", "log")
MOST_DERIVATIVES = 8


# ---------------------------------------------------------------- the bump


@dataclass(frozen=True)
class Bump:
    r"""An even function $\chi$ on $[-1,1]$ with $\chi(0)=1$ and $\chi^{(n-1)}$ Lipschitz, zero outside: $\delta_0$ on
    the integers.

    $\chi^{(n)}$ is $\pm$ `height`, with sign changes at $\cos\frac{j\pi}{n+1}$, $1\le j\le n$: a perfect spline. The
    sign pattern is that of the Chebyshev polynomial $U_n$, which is orthogonal to all polynomials of lower degree, so
    that $\chi$ and its first $n-1$ derivatives vanish at both ends. For $n=1$ it is the tent, for $n=2$ two parabolas
    on each side with $|\chi''|=4$.

    No such function has a smaller $\|\chi^{(n)}\|_\infty$. For $\chi(0)$ is the integral of $\chi^{(n)}$ against a
    truncated power less any polynomial of degree below $n$; so $1\le\|\chi^{(n)}\|_\infty$ times their $L^1$ distance,
    and with the polynomial that interpolates at the zeros of $U_n$ this is an equality for this bump.

    Attributes:
        order: $n$.
        knots: $-1=z_0<z_1<\dots<z_{n+1}=1$.
        pieces: the polynomial in $z$ on each interval between knots.
        height: $\|\chi^{(n)}\|_\infty$.
    """

    order: int
    knots: tuple[float, ...]
    pieces: tuple[Polynomial, ...]
    height: float

    def __call__(self, z) -> np.ndarray:
        """The values at ``z``."""
        z = np.asarray(z, dtype=float)
        values = np.zeros_like(z)
        for (low, high), piece in zip(pairwise(self.knots), self.pieces, strict=True):
            values = np.where((z >= low) & (z <= high), piece(z), values)
        return values


@cache
def least_bump(order: int) -> Bump:
    r"""The bump for ``order`` $n$ derivatives: integrate the signs of $U_n$ $n$ times, then scale to $\chi(0)=1$."""
    _check_order(order)
    knots = [-math.cos(j * math.pi / (order + 1)) for j in range(order + 2)]
    if order % 2:
        knots[(order + 1) // 2] = 0.0
    z = Polynomial([0.0, 1.0])
    pieces, current, sign = [], Polynomial([0.0]), 1.0
    for start in knots[:-1]:  # the truncated powers that begin at the knots to the left
        current = current + sign * (1 if start == -1.0 else 2) * (z - start) ** order / math.factorial(order)
        pieces.append(current)
        sign = -sign
    scale = float(pieces[order // 2](0.0))
    return Bump(order, tuple(knots), tuple(piece / scale for piece in pieces), 1 / abs(scale))


# ---------------------------------------------------------------- Lemma 1


def jackson_constant(order: int) -> float:
    r"""$J_n=(\pi/4)^n\,n^n/n!$: $E_{H-1}(G)\le J_n\|G^{(n)}\|_\infty H^{-n}$ for $H\ge n$ (equation f:jackson)."""
    _check_order(order)
    return (math.pi / 4) ** order * order**order / math.factorial(order)


def default_alpha(lag: int, encoding: str) -> float:
    r"""The spacing of the rates that makes the bound polynomial in the lag: $1/(T+1)$, resp. $1/\log(T+1)$."""
    _check_encoding(encoding)
    _check_lags([lag], encoding)
    return 1 / (lag + 1) if encoding == "lin" else 1 / math.log(lag + 1)


def derivative_bound(lag: int, encoding: str, *, order: int, alpha: float) -> float:
    r"""$\|G^{(n)}\|_\infty$ on $[0,1]$ for the bump around ``lag``, exactly (f:bump-derivative, x:log-derivative).

    lin: $|G^{(n)}|=u^{-n-1}\,|\prod_{k\le n}(k+\frac1\alpha\partial)\chi|$ with $u=e^{-\alpha s}$.
    log: $|G^{(n)}|=\alpha^{-n}s^{1+\alpha(n+1)}|q_n(s)|$ with $q_0=\chi(s-T)$, $q_{k+1}=(1+\alpha+k\alpha)q_k+sq_k'$.
    On each piece of $\chi$ this is $e^{\kappa z}q(z)$ or $s^\kappa q(s)$ with a polynomial $q$; its extrema are at the
    ends or at the real zeros of $q'+\kappa q$, resp. $sq'+\kappa q$.
    """
    _check_encoding(encoding)
    _check_lags([lag], encoding)
    alpha = checks.positive_number("alpha", alpha)
    chi = least_bump(order)
    first = max(0.0 if encoding == "lin" else 1.0, lag - 1.0)  # the least lag at which G is not zero
    greatest = 0.0
    for (low, high), piece in zip(pairwise(chi.knots), chi.pieces, strict=True):
        low = max(low, first - lag)
        if low < high:
            try:
                greatest = max(greatest, _greatest(lag, encoding, order, alpha, piece, low, high))
            except OverflowError:
                return math.inf  # a true bound, and of no use: alpha is too large for this lag
    return greatest


def _greatest(lag, encoding, order, alpha, piece, low, high) -> float:
    """The maximum of $|G^{(n)}|$ where the bump is the polynomial ``piece`` of $z=s-T$, ``low`` to ``high``."""
    z = Polynomial([0.0, 1.0])
    if encoding == "lin":
        for k in range(1, order + 1):
            piece = k * piece + piece.deriv() / alpha
        kappa = alpha * (order + 1)
        stationary = piece.deriv() + kappa * piece
    else:
        s = z + lag
        for k in range(order):
            piece = (1 + alpha + k * alpha) * piece + s * piece.deriv()
        kappa = 1 + alpha * (order + 1)
        stationary = s * piece.deriv() + kappa * piece
    roots = stationary.roots()
    candidates = [low, high, *(float(r.real) for r in roots if abs(r.imag) < 1e-9 and low < r.real < high)]
    if encoding == "lin":
        return max(abs(float(piece(c))) * math.exp(kappa * (lag + c)) for c in candidates)
    return max(abs(float(piece(c))) * (lag + c) ** kappa for c in candidates) / alpha**order


def lag_constant(lag: int, encoding: str, *, order: int, alpha: float | None = None) -> float:
    r"""The constant $\Lambda$ of Lemma 1 (x:lem-bump): $\|\delta_T-\varphi\|_{\ell^1}\le\Lambda H^{-n}$, $H\ge n$.

    $\Lambda=J_n\|G^{(n)}\|_\infty S(\alpha)$. For lin, $n=1$ and $\alpha\le1$ it is equation f:bump-one. ``alpha`` is
    `default_alpha` unless given.
    """
    alpha = default_alpha(lag, encoding) if alpha is None else alpha
    size = derivative_bound(lag, encoding, order=order, alpha=alpha)
    total = -1 / math.expm1(-alpha) if encoding == "lin" else float(zeta(1 + alpha, 1))
    return jackson_constant(order) * size * total


def closed_form(lag: int, encoding: str, *, order: int, alpha: float) -> tuple[float, float]:
    r"""$K_n$ and $A$ of Lemma x:lem-bump as printed: the error is at most $K_nA^{n+1}H^{-n}$ (x:jackson-lin, -log).

    The page takes $(1-z^2)^n$ for the bump and estimates where `lag_constant` computes: the same form, a larger number.
    """
    _check_encoding(encoding)
    _check_lags([lag], encoding)
    _check_order(order)
    alpha = checks.positive_number("alpha", alpha)
    front = (math.pi * order / 2) ** order
    if encoding == "lin":
        rest = math.prod(k + 1 / alpha for k in range(1, order + 1)) / -math.expm1(-alpha)
        return front * rest, math.exp(alpha * (lag + 1))
    rest = math.prod((3 + k * alpha) / 2 for k in range(1, order + 1)) * float(zeta(1 + alpha, 1)) / alpha**order
    return front * rest, (lag + 1) ** (1 + alpha)


# ---------------------------------------------------------------- Theorem 1


@dataclass(frozen=True)
class FixedBound:
    r"""The right-hand side of Theorem 1 (x:thm-fixed) in its parts.

    Attributes:
        attention: $\mathcal E_{Attn}$, the sum over the lags of the bounds on $\|\delta_{t_i}-\varphi_i\|_{\ell^1}$.
        ffn: $\mathcal E_{FFN}$; 0 if no width was given (a readout that needs no FFN).
        total: $\mathcal E_{FFN}+\mathrm{Lip}\cdot\mathcal E_{Attn}$.
        per_lag: the bound for each lag.
        heads: the heads that serve each lag: all of them if they are shared.
        alpha: the spacing of the rates used for each lag.
    """

    attention: float
    ffn: float
    total: float
    per_lag: tuple[float, ...]
    heads: tuple[int, ...]
    alpha: tuple[float, ...]


def fixed(lags: Sequence[int], heads: int, encoding: str, *, order: int, alpha: float | None = None,
          width: int | None = None, norm: float | None = None, lipschitz: float = 1.0,
          sharing: bool = True, dimension: int | None = None) -> FixedBound:  # fmt: skip
    r"""Theorem 1 with constants: one DP-free layer with ``heads`` heads and ``width`` neurons for a target f:fixed.

    Args:
        lags: $t_1,\dots,t_M$.
        heads: $H$, at least ``order`` (for each lag, if heads are not shared).
        encoding: ``lin`` or ``log``.
        order: $n$, the number of derivatives in Jackson's theorem.
        alpha: spacing of the rates. Unless given, `default_alpha`: of the longest lag for shared heads, of each lag by
            itself for split heads.
        width, norm: $m$ and $\|f\|_{\mathcal B}$. The FFN's part is $4(1+\eta)\sqrt{d+1}\,\|f\|_{\mathcal B}/\sqrt m$
            (equations f:uniform-bound and f:perturbed), $\eta$ the largest entry of ``per_lag``: the cube on which the
            network is used is larger than that of the tokens by so much.
        lipschitz: a number with $|f(z)-f(z')|\le\mathrm{Lip}\sum_i\|z_i-z_i'\|_\infty$, the sum over the tokens; it
            must hold on that larger cube, for the function that the neurons represent there. $\|f\|_{\mathcal B}$
            always does (lemma f:lem-barron).
        sharing: whether all heads serve all lags ($\sum_i\Lambda_i/H^n$) or each lag has its own,
            $H_i\propto\Lambda_i^{1/(n+1)}$, which gives $(\sum_i\Lambda_i^{1/(n+1)})^{n+1}/H^n$ before rounding.
        dimension: $d$, the number of inputs of the FFN; $M+1$ unless given (scalar tokens).
    """
    _check_encoding(encoding)
    lags = _check_lags(lags, encoding)
    _check_order(order)
    heads = checks.integer("heads", heads, order if sharing else order * len(lags))
    if alpha is not None:
        alpha = checks.positive_number("alpha", alpha)
    if not (isinstance(lipschitz, int | float) and math.isfinite(lipschitz) and lipschitz >= 0):
        raise ValueError(f"lipschitz must be a finite number of at least 0, got {lipschitz!r}")
    common = default_alpha(max(lags), encoding) if alpha is None and sharing else alpha
    alphas = tuple(default_alpha(lag, encoding) if common is None else float(common) for lag in lags)
    constants = [lag_constant(t, encoding, order=order, alpha=a) for t, a in zip(lags, alphas, strict=True)]
    shares = (heads,) * len(lags) if sharing else split_heads(constants, heads, order=order)
    per_lag = tuple(constant / share**order for constant, share in zip(constants, shares, strict=True))
    ffn = _ffn(width, norm, len(lags) + 1 if dimension is None else dimension, max(per_lag))
    attention = math.fsum(per_lag)
    return FixedBound(attention, ffn, ffn + lipschitz * attention, per_lag, shares, alphas)


def _ffn(width, norm, dimension, eta) -> float:
    if (width is None) != (norm is None):
        raise ValueError(f"width and norm belong together: give both or none, got {width!r} and {norm!r}")
    if width is None:
        return 0.0
    checks.integer("width", width, 1)
    checks.integer("dimension", dimension, 1)
    if not (isinstance(norm, int | float) and math.isfinite(norm) and norm >= 0):
        raise ValueError(f"norm must be a finite number of at least 0, got {norm!r}")
    return 4 * (1 + eta) * math.sqrt(dimension + 1) * norm / math.sqrt(width)


def split_heads(constants: Sequence[float], heads: int, *, order: int) -> tuple[int, ...]:
    r"""Whole numbers $H_i\ge n$ with sum ``heads`` that minimise $\sum_i\Lambda_iH_i^{-n}$.

    Over real numbers the minimiser is $H_i\propto\Lambda_i^{1/(n+1)}$. Over whole numbers each next head goes where it
    lowers the sum most; the terms are convex, so this is a minimum.
    """
    _check_order(order)
    if not len(constants) or not all(isinstance(c, int | float) and math.isfinite(c) and c > 0 for c in constants):
        raise ValueError(f"constants must be positive finite numbers, at least one, got {list(constants)!r}")
    heads = checks.integer("heads", heads, order * len(constants))
    real = [c ** (1 / (order + 1)) for c in constants]
    # start just below the real minimiser, so that thousands of heads need few steps
    start = [max(order, int(heads * a / sum(real)) - len(real)) for a in real]
    shares = start if sum(start) <= heads else [order] * len(real)
    while sum(shares) < heads:
        gains = [c * (h**-order - (h + 1) ** -order) for c, h in zip(constants, shares, strict=True)]
        shares[int(np.argmax(gains))] += 1
    while True:  # if the start was too generous somewhere, move heads until no move helps
        gains = [c * (h**-order - (h + 1) ** -order) for c, h in zip(constants, shares, strict=True)]
        losses = [
            c * ((h - 1) ** -order - h**-order) if h > order else math.inf
            for c, h in zip(constants, shares, strict=True)
        ]
        to, source = int(np.argmax(gains)), int(np.argmin(losses))
        if not gains[to] > losses[source]:
            return tuple(shares)
        shares[to] += 1
        shares[source] -= 1


# ---------------------------------------------------------------- checks


def _check_encoding(encoding) -> None:
    if encoding not in ENCODINGS:
        raise ValueError(f"unknown encoding {encoding!r}; these bounds exist for {', '.join(ENCODINGS)}")


def _check_lags(lags, encoding) -> tuple[int, ...]:
    least = 0 if encoding == "lin" else 1
    lags = tuple(lags) if isinstance(lags, Sequence) else (lags,)
    for lag in lags:
        if not isinstance(lag, int) or isinstance(lag, bool) or lag < least:
            raise ValueError(f"a lag must be an integer of at least {least} for {encoding}, got {lag!r}")
    if not lags:
        raise ValueError("lags must hold at least one lag, got none")
    if len(set(lags)) < len(lags):
        raise ValueError(f"lags must be distinct, got {lags}")
    return lags


def _check_order(order) -> None:
    if not isinstance(order, int) or isinstance(order, bool) or not 1 <= order <= MOST_DERIVATIVES:
        raise ValueError(f"order must be an integer from 1 to {MOST_DERIVATIVES}, got {order!r}")
