r"""What Theorem 4 promises for memories with a tail, as numbers (chapter Essentially sparse memory, e:thm-essential).

A kernel $\rho$ is filled in between the lags, written in the variable $u=e^{-\alpha s}$ or $u=s^{-\alpha}$, and
approximated by a polynomial, as single lags are in Lemma x:lem-bump. For $H\ge n$ heads

$$\|\rho-\varphi\|_{\ell^1}\ \le\ J_n\,\|G^{(n)}\|_\infty\,S(\alpha)\;H^{-n},$$

$S=1/(1-e^{-\alpha})$ (lin) or $\zeta(1+\alpha)$ (log), lag 0 of a log layer left to the residual connection. How many
derivatives of $G$ are bounded depends on the tail (equations e:admissible-light, e:admissible-rough,
e:admissible-smooth):

* lin, light tail $|\rho(s)|\le Ce^{-\beta s}$: $\alpha(n+1)\le\beta$. Decay is enough: between the lags stand bumps, of
  which two at most overlap (Lemma e:lem-fill).
* log, heavy tail $|\rho(s)|\le Cs^{-\beta}$, decay alone: $(1+\alpha)(n+1)\le\beta$, which needs $\beta>2$.
* log, heavy and smooth, $|\theta^k\rho|\le C_ks^{-\beta}$ for $k\le n$, $\theta=s\frac d{ds}$: $1+\alpha(n+1)\le\beta$
  (Theorem e:thm-smooth).
* log, light tail: every $n$ and every $\alpha$ (Corollary e:cor-log-light).

`essential` adds the kernels, shared or split heads, and the feed-forward network.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import torch
from scipy.special import zeta
from torch import Tensor

from memlib import checks
from memlib.bounds.fixed_memory import (
    MOST_DERIVATIVES,
    _check_encoding,
    _check_order,
    _ffn,
    _greatest,
    closed_form,
    jackson_constant,
    least_bump,
    split_heads,
)

__all__ = ["EssentialBound", "Tail", "admissible", "closed_form_tail", "essential", "largest_alpha", "tail_constant",
           "tail_of"]  # fmt: skip

KINDS = ("light", "heavy")
_EDGE = 1e-9  # what rounding may take from an inequality such as alpha (n + 1) <= beta
_EXPLICIT = 48  # bumps whose derivatives are computed one by one; the others are estimated


# ---------------------------------------------------------------- tails


@dataclass(frozen=True)
class Tail:
    r"""How a kernel fades (definition e:def-tails).

    ``light``: $|\rho(s)|\le Ce^{-\beta s}$ for $s\ge0$; ``heavy``: $|\rho(s)|\le Cs^{-\beta}$ for $s\ge1$.

    ``smooth`` are the constants $C_0,\dots,C_n$ of $|\theta^k\rho(s)|\le C_ks^{-\beta}$ for all
    real $s\ge1$, $\theta=s\frac d{ds}$ (equation e:smooth-hypothesis); they belong to heavy tails. The kernel of a
    light tail may have them too, for any exponent: call it heavy, with that exponent (Corollary e:cor-log-light).

    Attributes:
        kind: ``light`` or ``heavy``.
        constant: $C$.
        exponent: $\beta$; above 1 for a heavy tail, so that the kernel is summable.
        smooth: $C_0,\dots,C_n$, or none.
    """

    kind: str
    constant: float
    exponent: float
    smooth: tuple[float, ...] | None = None

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of tail {self.kind!r}; allowed: {', '.join(KINDS)}")
        object.__setattr__(self, "constant", checks.positive_number("constant", self.constant))
        object.__setattr__(self, "exponent", checks.positive_number("exponent", self.exponent))
        if self.kind == "heavy" and self.exponent <= 1:
            raise ValueError(f"a heavy tail needs an exponent above 1, or it is not summable; got {self.exponent!r}")
        if self.smooth is not None:
            if self.kind == "light":
                raise ValueError(
                    "constants of smoothness belong to heavy tails: for log heads on a light tail say 'heavy', with an "
                    "exponent of your choice"
                )
            if not isinstance(self.smooth, Sequence) or not len(self.smooth):
                raise ValueError(f"smooth must be the numbers C_0, ..., C_n, got {self.smooth!r}")
            values = tuple(checks.plain_number(f"smooth[{k}]", c) for k, c in enumerate(self.smooth))
            if min(values) < 0 or values[0] < self.constant * (1 - 1e-6):
                raise ValueError(
                    f"smooth must be numbers of at least 0, the first of them at least the constant {self.constant:g}; "
                    f"got {self.smooth!r}"
                )
            object.__setattr__(self, "smooth", values)

    @property
    def orders(self) -> int:
        """How many derivatives the smoothness speaks of; 0 without."""
        return 0 if self.smooth is None else len(self.smooth) - 1

    def __call__(self, s) -> np.ndarray:
        r"""The envelope at the lags ``s``: $Ce^{-\beta s}$, or $Cs^{-\beta}$ (infinite at 0)."""
        s = np.asarray(s, dtype=float)
        with np.errstate(divide="ignore"):
            return self.constant * (np.exp(-self.exponent * s) if self.kind == "light" else s**-self.exponent)


def tail_of(kernel: Callable[[Tensor], Tensor] | Sequence[float], kind: str, exponent: float, orders: int = 0,
            *, window: int | None = None, points: int = 4000) -> Tail:  # fmt: skip
    r"""The `Tail` of a kernel with the least constants on a window: measured there, and said of no lag beyond it.

    Args:
        kernel: a function of the lags as in `targets.EssentiallySparse` (torch operations, for the derivatives), or
            values on the lags $0,1,\dots$
        kind, exponent: of the tail.
        orders: $n$: with $n\ge1$ the constants $C_0,\dots,C_n$ of $\theta^k\rho$, for heavy tails and functions only.
            $\theta$ is differentiation in $\log s$, done exactly (automatically) at ``points`` values of $s$ from 1 to
            the window's end, evenly spaced in $\log s$; the largest values are then refined between the points.
        window: the last lag looked at; $10^5$ unless given, or the last value.
        points: how many values of $s$.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of tail {kind!r}; allowed: {', '.join(KINDS)}")
    exponent = checks.positive_number("exponent", exponent)
    orders, points = checks.integer("orders", orders, 0), checks.integer("points", points, 2)
    if orders > MOST_DERIVATIVES:
        raise ValueError(f"orders must lie in 0..{MOST_DERIVATIVES}, got {orders}")
    if not callable(kernel):
        values = np.asarray(kernel, dtype=float)
        if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
            raise ValueError(f"a kernel must be a function or at least two finite values by lag, got {kernel!r}")
        if orders:
            raise ValueError("values on lags have no derivatives: give the kernel as a function, or orders=0")
        window = len(values) - 1 if window is None else min(checks.integer("window", window, 1), len(values) - 1)
        values = values[: window + 1]
    else:
        window = 100_000 if window is None else checks.integer("window", window, 1)
        with torch.no_grad():
            values = _values(kernel, torch.arange(window + 1, dtype=torch.float64)).numpy()
    s = np.arange(len(values), dtype=float)
    if kind == "light":
        if orders:
            raise ValueError("derivatives belong to heavy tails: for log heads on a light tail say kind='heavy'")
        return Tail("light", _weighted(values, exponent * s), exponent)
    constant = _weighted(values[1:], exponent * np.log(s[1:]))
    if not orders:
        return Tail("heavy", constant, exponent)
    found = _smoothness(kernel, exponent, orders, window, points)
    return Tail("heavy", constant, exponent, (max(constant, found[0]), *found[1:]))


def _values(kernel, s: Tensor) -> Tensor:
    values = kernel(s)
    if not isinstance(values, Tensor) or values.shape != s.shape or not bool(torch.isfinite(values).all()):
        raise ValueError("the kernel must map a tensor of lags to as many finite numbers")
    return values


def _weighted(values: np.ndarray, exponent: np.ndarray) -> float:
    """The largest |value| e^exponent; nothing overflows, and denormal values, known to no digit, are left out."""
    seen = np.abs(values) >= np.finfo(float).tiny
    if not seen.any():
        raise ValueError("the kernel is zero on the whole window: it has no tail")
    top = float((np.log(np.abs(values[seen])) + exponent[seen]).max())
    if top > 600:
        raise ValueError(
            f"on this window the kernel exceeds every envelope of this kind by e^{top:.0f}: its tail is heavier than "
            "the exponent says"
        )
    return math.exp(top)


def _smoothness(kernel, exponent: float, orders: int, window: int, points: int) -> tuple[float, ...]:
    """The largest s^beta |theta^k rho(s)|, k = 0..n: on a grid, and then on a finer one around each maximum."""
    grid = np.linspace(0.0, math.log(window), points)
    coarse = _derivatives(kernel, exponent, orders, grid)
    best = []
    for k in range(orders + 1):
        at = int(np.argmax(coarse[k]))
        low, high = grid[max(at - 1, 0)], grid[min(at + 1, points - 1)]
        fine = _derivatives(kernel, exponent, k, np.linspace(low, high, 201))[k]
        best.append(max(float(coarse[k][at]), float(fine.max())))
    return tuple(best)


def _derivatives(kernel, exponent: float, orders: int, log_s: np.ndarray) -> list[np.ndarray]:
    r"""$s^\beta|(d/d\log s)^k\rho|$ at the points, $k=0..n$, by automatic differentiation."""
    at = torch.from_numpy(log_s).requires_grad_(True)
    current = kernel(at.exp())
    if not isinstance(current, Tensor) or current.shape != at.shape or not current.requires_grad:
        raise ValueError("derivatives need a kernel made of torch operations, which maps a tensor of lags to another")
    scale, rows = np.exp(exponent * log_s), []
    gone = (current.detach().abs().numpy() * scale) < 1e-60  # where functions like cosh overflow, nothing is left
    for k in range(orders + 1):
        row = np.abs(current.detach().numpy()) * scale
        if not np.isfinite(row[~gone]).all():
            raise ValueError(f"derivative {k} of the kernel is not finite on this window; take a shorter window")
        rows.append(np.where(gone, 0.0, row))
        if k < orders:
            (current,) = torch.autograd.grad(current.sum(), at, create_graph=True)
    return rows


# ---------------------------------------------------------------- which orders


def admissible(tail: Tail, encoding: str, alpha: float) -> float:
    r"""The largest $n$ that the tail allows at this spacing of the rates; 0 if none, infinite if every one.

    lin, light: $n\le\beta/\alpha-1$ (e:admissible-light). log, heavy: $n\le\beta/(1+\alpha)-1$ from decay alone
    (e:admissible-rough), or $n\le(\beta-1)/\alpha-1$ as far as the kernel is smooth (e:admissible-smooth), whichever is
    more. log, light: every $n$. lin, heavy: none; exponential sums fit heavy tails by another proof (e:prop-lin-heavy).
    """
    _check_tail(tail)
    _check_encoding(encoding)
    alpha = checks.positive_number("alpha", alpha)
    if encoding == "lin":
        return 0 if tail.kind == "heavy" else _whole(tail.exponent / alpha - 1)
    if tail.kind == "light":
        return math.inf
    rough = _whole(tail.exponent / (1 + alpha) - 1)
    return max(rough, min(_whole((tail.exponent - 1) / alpha - 1), tail.orders))


def _whole(value: float) -> int:
    return max(0, math.floor(value + _EDGE * max(1.0, abs(value))))


def largest_alpha(tail: Tail, encoding: str, order: int) -> float:
    r"""The largest spacing $\alpha$ at which the tail allows ``order`` derivatives; 0 if there is none.

    lin, light: $\beta/(n+1)$. log, heavy: $(\beta-1)/(n+1)$ if the kernel is smooth to this order, else
    $\beta/(n+1)-1$. log, light: infinite.
    """
    _check_tail(tail)
    _check_encoding(encoding)
    _check_order(order)
    beta = tail.exponent
    if encoding == "lin":
        return 0.0 if tail.kind == "heavy" else beta / (order + 1)
    if tail.kind == "light":
        return math.inf
    rough = beta / (order + 1) - 1
    return max(rough if rough > _EDGE else 0.0, (beta - 1) / (order + 1) if order <= tail.orders else 0.0)


# ---------------------------------------------------------------- one kernel


def tail_constant(tail: Tail, encoding: str, *, order: int, alpha: float) -> float:
    r"""$\Lambda$ with $\|\rho-\varphi\|_{\ell^1}\le\Lambda H^{-n}$ for every kernel with this tail, $H\ge n$.

    Decay alone (Lemma e:lem-fill): between the lags $k$ and $k+1$ two bumps are not zero, the right half of one and the
    left half of the other. Their derivatives are found exactly, with the bump of `least_bump`, for the first lags, and
    estimated for the others; lin and light tails need the first pair only, because the envelope falls as fast as the
    derivatives grow. Smooth kernels: equation e:bound-smooth. Where both apply, the smaller number.
    """
    _check_applies(tail, encoding, order, alpha)
    found = [jackson_constant(order) * _total(encoding, alpha) * size
             for size in _sizes(tail, encoding, order, float(alpha))]  # fmt: skip
    return min(found)


def closed_form_tail(tail: Tail, encoding: str, *, order: int, alpha: float) -> float:
    r"""The constant as the page prints it: equations e:bound-light, e:bound-rough, e:bound-smooth.

    $2CK_ne^{\alpha(n+1)}$ (lin), $2C\,2^{(1+\alpha)(n+1)}K_n$ (log, decay alone) with the $K_n$ of Lemma x:lem-bump;
    for a light tail and log heads $2CK_n\sup_ke^{-\beta k}(k+1)^{(1+\alpha)(n+1)}$; for a smooth kernel
    $J_n\zeta(1+\alpha)\alpha^{-n}\sum_ke_{n-k}(1+\alpha,\dots,1+n\alpha)\,C_k$.
    """
    _check_applies(tail, encoding, order, alpha)
    alpha = float(alpha)
    if encoding == "lin":
        return 2 * tail.constant * closed_form(0, "lin", order=order, alpha=alpha)[0] * math.exp(alpha * (order + 1))
    power, found = (1 + alpha) * (order + 1), []
    front = 2 * tail.constant * closed_form(1, "log", order=order, alpha=alpha)[0]
    if tail.kind == "light":
        return front * _peak(tail.exponent, power)
    if power <= tail.exponent * (1 + _EDGE):
        found.append(front * 2**power)
    if order <= tail.orders and 1 + alpha * (order + 1) <= tail.exponent * (1 + _EDGE):
        found.append(jackson_constant(order) * float(zeta(1 + alpha, 1)) * _smooth_size(tail, order, alpha))
    return min(found)


def _peak(beta: float, power: float) -> float:
    r"""$\sup_{k\ge1}e^{-\beta k}(k+1)^p$ over whole numbers."""
    at = max(1, math.floor(power / beta - 1))
    return max(math.exp(power * math.log(k + 1) - beta * k) for k in (1, at, at + 1))


def _total(encoding: str, alpha: float) -> float:
    return -1 / math.expm1(-alpha) if encoding == "lin" else float(zeta(1 + alpha, 1))


def _sizes(tail: Tail, encoding: str, order: int, alpha: float):
    r"""Bounds on $\|G^{(n)}\|_\infty$, one for each way that applies."""
    if encoding == "lin":
        left, right = _halves(1, "lin", order, alpha)[0], _halves(0, "lin", order, alpha)[1]
        yield tail.constant * (right + math.exp(-tail.exponent) * left)
        return
    if tail.kind == "light" or (1 + alpha) * (order + 1) <= tail.exponent * (1 + _EDGE):
        yield _rough_size(tail, order, alpha)
    if order <= tail.orders and 1 + alpha * (order + 1) <= tail.exponent * (1 + _EDGE):
        yield _smooth_size(tail, order, alpha)


@cache
def _halves(lag: int, encoding: str, order: int, alpha: float) -> tuple[float, float]:
    r"""The largest $|G^{(n)}|$ of the bump around ``lag`` to the left and to the right of it."""
    chi, best = least_bump(order), [0.0, 0.0]
    first = 0.0 if encoding == "lin" else 1.0
    for (low, high), piece in zip(pairwise(chi.knots), chi.pieces, strict=True):
        for side, (a, b) in enumerate(((max(low, first - lag), min(high, 0.0)), (max(low, 0.0), high))):
            if a < b:
                try:
                    best[side] = max(best[side], _greatest(lag, encoding, order, alpha, piece, a, b))
                except OverflowError:
                    best[side] = math.inf
    return best[0], best[1]


def _rough_size(tail: Tail, order: int, alpha: float) -> float:
    r"""$\sup_k$ of $|\rho(k)|$ times the right half of bump $k$ plus $|\rho(k+1)|$ times the left half of bump $k+1$.

    From lag `_EXPLICIT` on the two are estimated by $\alpha^{-n}\sum_ja_j\|\chi^{(j)}\|(k+1)^{1+\alpha(n+1)+j}$, where
    $\prod_i(1+i\alpha+\theta)=\sum_ja_js^j\partial^j$; times the envelope this falls once $k$ is large enough.
    """
    envelope = tail(np.arange(1, _EXPLICIT + 2))
    near = max(
        float(envelope[k - 1]) * _halves(k, "log", order, alpha)[1]
        + float(envelope[k]) * _halves(k + 1, "log", order, alpha)[0]
        for k in range(1, _EXPLICIT)
    )
    last = _EXPLICIT
    if tail.kind == "light":
        last = max(last, math.ceil((1 + alpha) * (order + 1) / tail.exponent) + 1)
    k = np.unique(np.geomspace(_EXPLICIT, last, 4000).astype(int)) if last > 4000 else np.arange(_EXPLICIT, last + 1)
    step = np.append(np.diff(k), 1)  # between two of the k looked at, take the envelope at the lower, the power above
    powers = 1 + alpha * (order + 1) + np.arange(order + 1)
    sizes = np.array(_theta_coefficients(order, alpha)) * np.array(_bump_norms(order))
    with np.errstate(over="ignore"):
        far = (sizes * (k + step)[:, None].astype(float) ** powers).sum(-1) * 2 * tail(k)
    return max(near, float(far.max()) / alpha**order)


def _theta_coefficients(order: int, alpha: float) -> list[float]:
    r"""The $a_j$ of $\prod_{i\le n}(1+i\alpha+\theta)=\sum_ja_js^j\partial^j$.

    One factor after the other, with $\theta s^j\partial^j=js^j\partial^j+s^{j+1}\partial^{j+1}$.
    """
    row = [1.0]
    for i in range(1, order + 1):
        row = [(1 + i * alpha + j) * a + b for j, (a, b) in enumerate(zip([*row, 0.0], [0.0, *row], strict=True))]
    return row


@cache
def _bump_norms(order: int) -> tuple[float, ...]:
    r"""$\|\chi^{(j)}\|_\infty$ of the bump, $j=0..n$."""
    chi, norms = least_bump(order), []
    for j in range(order + 1):
        most = 0.0
        for (low, high), piece in zip(pairwise(chi.knots), chi.pieces, strict=True):
            part = piece.deriv(j) if j else piece
            turning = [float(r.real) for r in part.deriv().roots() if abs(r.imag) < 1e-9 and low < r.real < high]
            most = max(most, *(abs(float(part(z))) for z in (low, high, *turning)))
        norms.append(most)
    return tuple(norms)


def _smooth_size(tail: Tail, order: int, alpha: float) -> float:
    r"""$\alpha^{-n}\sum_ke_{n-k}(1+\alpha,\dots,1+n\alpha)\,C_k$ (equation e:bound-smooth)."""
    factors = [1 + i * alpha for i in range(1, order + 1)]
    symmetric = [math.fsum(map(math.prod, combinations(factors, order - k))) for k in range(order + 1)]
    return math.fsum(e * c for e, c in zip(symmetric, tail.smooth[: order + 1], strict=True)) / alpha**order


# ---------------------------------------------------------------- Theorem 4


@dataclass(frozen=True)
class EssentialBound:
    r"""The right-hand side of Theorem 4 (e:essential-bound) in its parts.

    Attributes:
        attention: the sum over the kernels of the bounds on $\|\rho_i-\varphi_i\|_{\ell^1}$, without the $L_i$: the
            $\mathcal E_{Attn}$ of e:shared and e:split if all $L_i=1$.
        ffn: $\mathcal E_{FFN}$; 0 if no width was given (a readout that needs no FFN).
        total: $\mathcal E_{FFN}+\sum_iL_i\|\rho_i-\varphi_i\|_{\ell^1}$.
        per_kernel: the bound for each kernel.
        heads: the heads that serve each kernel: all of them if they are shared.
        alpha: the spacing of the rates used for each kernel.
        order: $n$.
        printed: ``attention`` with the constants as the page prints them (`closed_form_tail`).
    """

    attention: float
    ffn: float
    total: float
    per_kernel: tuple[float, ...]
    heads: tuple[int, ...]
    alpha: tuple[float, ...]
    order: int
    printed: float


def essential(tails: Sequence[Tail] | Tail, heads: int, encoding: str, *, order: int | None = None,
              alpha: float | None = None, lipschitz: Sequence[float] | float = 1.0, width: int | None = None,
              norm: float | None = None, sharing: bool = True, size: float = 1.0,
              dimension: int | None = None) -> EssentialBound:  # fmt: skip
    r"""Theorem 4 with constants: one DP-free layer for a target f:essential whose kernels have these tails.

    Args:
        tails: one `Tail` for each kernel.
        heads: $H$, at least ``order`` (for each kernel, if heads are not shared).
        encoding: ``lin`` or ``log``.
        order: $n$; unless given, the admissible $n\le8$ with the smallest bound.
        alpha: spacing of the rates; unless given the largest admissible one, and 1 where that is more: of all kernels
            together for shared heads, of each by itself for split heads.
        lipschitz: $L_i$ with $|f(z)-f(z')|\le\sum_iL_i\|z_i-z_i'\|_\infty$: one number, or one for each kernel.
        width, norm: $m$ and $\|f\|_{\mathcal B}$ on the unit cube, as in `fixed`. The memories lie in a larger cube,
            $|z_i|\le$ ``size`` $+\eta$, and the FFN's part grows in proportion.
        sharing: whether all heads serve all kernels ($\sum_i\Lambda_i/H^n$, equation e:shared) or each kernel has its
            own, at best $(\sum_i(L_i\Lambda_i)^{1/(n+1)})^{n+1}/H^n$ before rounding (e:split).
        size: the largest $\|\rho_i\|_{\ell^1}$, times the largest token.
        dimension: the number of inputs of the FFN; $M$ unless given (scalar tokens).
    """
    tails = (tails,) if isinstance(tails, Tail) else tuple(tails) if isinstance(tails, Sequence) else tails
    if not isinstance(tails, tuple) or not tails:
        raise ValueError(f"tails must hold one Tail for each kernel, at least one, got {tails!r}")
    for tail in tails:
        _check_tail(tail)
    _check_encoding(encoding)
    count = len(tails)
    heads = checks.integer("heads", heads, 1 if sharing else count)
    slopes = tuple(lipschitz) if isinstance(lipschitz, Sequence) else (lipschitz,) * count
    if len(slopes) != count:
        raise ValueError(f"lipschitz must be one number or one for each of {count} kernels, got {len(slopes)}")
    for value in slopes:
        if checks.plain_number("lipschitz", value) < 0:
            raise ValueError(f"lipschitz must be at least 0, got {value!r}")
    size = checks.positive_number("size", size)
    if alpha is not None:
        alpha = checks.positive_number("alpha", alpha)
    if order is not None:
        _check_order(order)
        checks.integer("heads", heads, order if sharing else order * count)
        return _bound(tails, heads, encoding, order, alpha, slopes, width, norm, sharing, size, dimension)
    most = min(MOST_DERIVATIVES, heads if sharing else heads // count)
    found = []
    for n in range(1, most + 1):
        if all(_allowed(tail, encoding, n, alpha) for tail in tails):
            found.append(_bound(tails, heads, encoding, n, alpha, slopes, width, norm, sharing, size, dimension))
    if not found:  # say why, for the first kernel that stands in the way
        stuck = next(tail for tail in tails if not _allowed(tail, encoding, 1, alpha))
        raise ValueError(_why_not(stuck, encoding, 1, alpha))
    return min(found, key=lambda bound: bound.total)


def _bound(tails, heads, encoding, order, alpha, slopes, width, norm, sharing, size, dimension) -> EssentialBound:
    for tail in tails:
        if not _allowed(tail, encoding, order, alpha):
            raise ValueError(_why_not(tail, encoding, order, alpha))
    alphas = [min(1.0, largest_alpha(tail, encoding, order)) if alpha is None else alpha for tail in tails]
    if sharing:
        alphas = [min(alphas)] * len(tails)
    constants = [tail_constant(t, encoding, order=order, alpha=a) for t, a in zip(tails, alphas, strict=True)]
    shares = (heads,) * len(tails)
    if not sharing:  # what a head gains counts as much as the readout listens to the memory
        heard = [max(slope, 1e-12 * max(slopes)) or 1.0 for slope in slopes]
        weighted = [c * slope for c, slope in zip(constants, heard, strict=True)]
        shares = split_heads(weighted, heads, order=order)
    per_kernel = tuple(constant / share**order for constant, share in zip(constants, shares, strict=True))
    printed = math.fsum(closed_form_tail(t, encoding, order=order, alpha=a) / share**order
                        for t, a, share in zip(tails, alphas, shares, strict=True))  # fmt: skip
    eta = max(0.0, size + max(per_kernel) - 1)
    ffn = _ffn(width, norm, len(tails) if dimension is None else dimension, eta)
    total = ffn + math.fsum(slope * part for slope, part in zip(slopes, per_kernel, strict=True))
    return EssentialBound(math.fsum(per_kernel), ffn, total, per_kernel, shares, tuple(alphas), order, printed)


def _allowed(tail: Tail, encoding: str, order: int, alpha: float | None) -> bool:
    if alpha is None:
        return largest_alpha(tail, encoding, order) > 0
    return admissible(tail, encoding, alpha) >= order


def _why_not(tail: Tail, encoding: str, order: int, alpha: float | None) -> str:
    """What stands in the way, and which order or spacing would be allowed."""
    said = f"{tail.kind} tail with exponent {tail.exponent:g}"
    if encoding == "lin" and tail.kind == "heavy":
        return (
            f"lin heads have no bound of this kind for a {said}: G has no bounded derivative at u = 0; "
            "sums.quadrature_sum fits such tails with another proof (e:prop-lin-heavy)"
        )
    top = largest_alpha(tail, encoding, order)
    if top > 0:
        n = admissible(tail, encoding, alpha)
        which = f"at alpha = {alpha:g} the largest n is {n}; n = {order} needs alpha <= {top:.4g}"
    elif tail.orders and tail.orders < order:
        which = (
            f"the smoothness given reaches n = {tail.orders}; give C_0, ..., C_{order} (tail_of with orders={order})"
        )
    else:
        which = (
            f"decay alone needs (1 + alpha)(n + 1) <= {tail.exponent:g}, so n < {tail.exponent - 1:g}; for a smooth "
            f"kernel give the constants C_0, ..., C_{order} (tail_of with orders={order})"
        )
    return f"n = {order} is not admissible for a {said} and {encoding} heads: {which}"


# ---------------------------------------------------------------- checks


def _check_tail(tail) -> None:
    if not isinstance(tail, Tail):
        raise TypeError(f"a tail must be a bounds.Tail, got {type(tail).__name__}")


def _check_applies(tail, encoding, order, alpha) -> None:
    _check_tail(tail)
    _check_encoding(encoding)
    _check_order(order)
    alpha = checks.positive_number("alpha", alpha)
    if not _allowed(tail, encoding, order, alpha):
        raise ValueError(_why_not(tail, encoding, order, alpha))
