r"""What Theorems 2 and 3 promise, as numbers (chapter Adaptive memory, a:thm-warmup and a:thm-nested).

A head whose query carries the pointer has its kernel shifted (lin) or scaled (log) by the token (Lemma a:lem-shift), so
one sum of heads must fetch *every* lag up to $T$, and forgive a pointer that is a little off. Lemma a:lem-flat does
both with a bump that is 1 near its centre. For $H\ge n$ heads, every $g\le T$ and every $\hat g$ within the tolerance,

$$\sum_s|\delta_{s,g}-\varphi|\ \le\ J_n\,\|G^{(n)}\|_\infty\,S(\alpha)\;H^{-n},$$

Jackson's constant $J_n$, the largest $n$-th derivative of the flat-top bump in the variable $u$, and the sum of the
weight in front. `closed_form_flat` is the constant as the page prints it; `pointer_constant` takes the flat-top bump
with the least $n$-th derivative and finds the maximum exactly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from numpy.polynomial import Polynomial
from scipy.special import zeta

from memlib import checks
from memlib.bounds.fixed_memory import (
    Bump,
    _check_encoding,
    _check_order,
    _ffn,
    closed_form,
    default_alpha,
    jackson_constant,
    split_heads,
)

__all__ = [
    "AdaptiveBound",
    "FlatTop",
    "adaptive",
    "closed_form_flat",
    "flat_derivative",
    "flat_top",
    "pointer_constant",
    "pointer_tolerance",
]


# ---------------------------------------------------------------- the flat-top bump


@dataclass(frozen=True)
class FlatTop(Bump):
    r"""An even function that is 1 on $|z|\le\frac14$ and 0 on $|z|\ge\frac34$, with $\chi^{(n-1)}$ Lipschitz.

    So $\chi(s-\hat g)=\delta_{s,g}$ on integers whenever $|\hat g-g|\le\frac14$: no rounding of pointers is needed
    (Lemma a:lem-flat). Between $\frac14$ and $\frac34$ it is the step whose $n$-th derivative has the least maximum:
    $\pm$ `height`, with the signs of the Chebyshev polynomial $U_{n-1}$, which is orthogonal to all polynomials of
    degree below $n-1$, so that the first $n-1$ derivatives vanish at both ends. Its height is $4^n\,2^{n-2}(n-1)!$,
    against $2^n(2n-1)!/(n-1)!$ for the step of the page.

    Attributes:
        order: $n$.
        knots: $-\frac34=z_0<\dots<\frac34$; the middle interval is the flat top.
        pieces: the polynomial in $z$ on each interval between knots.
        height: $\|\chi^{(n)}\|_\infty$.
    """


@cache
def flat_top(order: int) -> FlatTop:
    r"""The flat-top bump for ``order`` $n$ derivatives: integrate the signs of $U_{n-1}$ $n$ times, twice."""
    _check_order(order)
    y = [-math.cos(j * math.pi / order) for j in range(order + 1)]  # the knots of a step on [-1, 1]
    z = Polynomial([0.0, 1.0])
    rise, current, sign = [], Polynomial([0.0]), 1.0
    for start in y[:-1]:
        current = current + sign * (1 if start == -1.0 else 2) * (z - start) ** order / math.factorial(order)
        rise.append(current)
        sign = -sign
    scale = float(rise[-1](1.0))
    left = [(piece / scale)(4 * (z + 0.5)) for piece in rise]  # from -3/4 up to -1/4
    right = [piece(-z) for piece in reversed(left)]
    knots = [-0.5 + v / 4 for v in y]
    return FlatTop(
        order, (*knots, *(-k for k in reversed(knots))), (*left, Polynomial([1.0]), *right), 4.0**order / abs(scale)
    )


# ---------------------------------------------------------------- one pointer


def pointer_tolerance(reach: int, encoding: str) -> float:
    r"""How far $\hat g$ may be from $g$: $\frac14$ (lin), or $\log\hat g$ from $\log g$: $\frac1{4(T+1)}$ (log)."""
    _check_encoding(encoding)
    reach = checks.integer("reach", reach, 1)
    return 0.25 if encoding == "lin" else 1 / (4 * (reach + 1))


def flat_derivative(reach: int, encoding: str, *, order: int, alpha: float) -> float:
    r"""$\|G^{(n)}\|_\infty$ on $[0,1]$ for the flat-top bump, exactly.

    lin: with $z=s-\hat g$ and $u=e^{-\alpha(z+T+1/4)}$,
    $|G^{(n)}|=u^{-n-1}|\prod_{k\le n}(k+\frac1\alpha\partial)\chi(z)|$.
    log: with $v=(T+1)\log\frac s{\hat g}$ and $\tilde s=T\,e^{(v+1/4)/(T+1)}$,
    $|G^{(n)}|=\alpha^{-n}\tilde s^{1+\alpha(n+1)}|\prod_{k\le n}(1+k\alpha+(T+1)\partial)\chi(v)|$.
    On each piece both are $e^{\kappa z}q(z)$ with a polynomial $q$, whose extrema are at the ends or at the real zeros
    of $q'+\kappa q$.
    """
    _check_encoding(encoding)
    reach = checks.integer("reach", reach, 1)
    alpha = checks.positive_number("alpha", alpha)
    chi = flat_top(order)
    if encoding == "lin":
        factors, step = range(1, order + 1), 1 / alpha
        kappa = alpha * (order + 1)
        front = kappa * (reach + 0.25)
    else:
        factors, step = [1 + k * alpha for k in range(1, order + 1)], reach + 1.0
        kappa = (1 + alpha * (order + 1)) / (reach + 1)
        front = (1 + alpha * (order + 1)) * math.log(reach) + kappa / 4 - order * math.log(alpha)
    greatest = 0.0
    for (low, high), piece in zip(pairwise(chi.knots), chi.pieces, strict=True):
        for k in factors:
            piece = k * piece + step * piece.deriv()
        roots = (piece.deriv() + kappa * piece).roots()
        places = [low, high, *(float(r.real) for r in roots if abs(r.imag) < 1e-9 and low < r.real < high)]
        try:
            greatest = max(greatest, *(abs(float(piece(z))) * math.exp(kappa * z + front) for z in places))
        except OverflowError:
            return math.inf  # a true bound, and of no use: alpha is too large for this reach
    return greatest


def pointer_constant(reach: int, encoding: str, *, order: int, alpha: float | None = None) -> float:
    r"""$\Lambda$ with $\sum_s|\delta_{s,g}-\varphi|\le\Lambda H^{-n}$ for all $g\le T$, $\hat g$ within the tolerance.

    $\Lambda=J_n\|G^{(n)}\|_\infty S(\alpha)$, $S=1/(1-e^{-\alpha})$ or $\zeta(1+\alpha)$; computed, and smaller than
    the printed constant of `closed_form_flat`. ``alpha`` is `default_alpha` of the reach unless given.
    """
    _check_encoding(encoding)
    reach = checks.integer("reach", reach, 1)
    alpha = default_alpha(reach, encoding) if alpha is None else checks.positive_number("alpha", alpha)
    size = flat_derivative(reach, encoding, order=order, alpha=alpha)
    total = -1 / math.expm1(-alpha) if encoding == "lin" else float(zeta(1 + alpha, 1))
    return jackson_constant(order) * size * total


def closed_form_flat(reach: int, encoding: str, *, order: int, alpha: float) -> tuple[float, float]:
    r"""$K_n^\flat$ and $A$ of Lemma a:lem-flat as printed: the error is at most $K_n^\flat A^{n+1}H^{-n}$.

    $K_n^\flat=\binom{2n-1}n K_n$ with the $K_n$ of Lemma x:lem-bump, and the same $A$: the flat top costs the binomial
    coefficient, and buys all pointers up to the reach and a quarter of a step of forgiveness (a:flat-lin, a:flat-log).
    """
    reach = checks.integer("reach", reach, 1)
    constant, base = closed_form(reach, encoding, order=order, alpha=alpha)
    return math.comb(2 * order - 1, order) * constant, base


# ---------------------------------------------------------------- Theorems 2 and 3


@dataclass(frozen=True)
class AdaptiveBound:
    r"""The right-hand side of Theorems 2 and 3 (a:warmup-bound, a:nested-bound) in its parts.

    Attributes:
        depth: $L=K+1+\mathbb 1[M>K]$ (equation a:depth).
        per_pointer: a bound on the fetch error of each pointer; infinite from the first pointer on whose input may be
            too inexact for it.
        heads: the heads that serve each pointer: all of a layer's for $i\le K$, a share of the last layer's for $i>K$.
        alpha: the spacing of the rates for each pointer.
        attention: $\mathcal E_{Attn}=(\sum_i\varepsilon_i^2)^{1/2}$.
        printed: the closed form of the page, $\frac{1}{H^n}\bigl(\sum_{i\le K}(K_i^\flat A_i^{n+1})^2
            +(e\,(\sum_{i>K}(K_i^\flat)^{1/(n+1)}A_i)^{n+1})^2\bigr)^{1/2}$, the factor $e$ only where heads are
            split; infinite where it does not apply.
        ffn: $\mathcal E_{FFN}$ of the read-out; 0 if no width was given.
        total: $\mathcal E_{FFN}+\mathrm{Lip}_2\cdot\mathcal E_{Attn}$.
        least_heads: $H_0$, the least number of heads per layer from which on every pointer is within its tolerance.
        tolerance: how far each $\hat g_i$ (log: $\log\hat g_i$) may be off.
        pointer_width: neurons that suffice for each pointer, if ``pointer_norm`` was given: the FFN's error is then at
            most half the tolerance.
    """

    depth: int
    per_pointer: tuple[float, ...]
    heads: tuple[int, ...]
    alpha: tuple[float, ...]
    attention: float
    printed: float
    ffn: float
    total: float
    least_heads: int
    tolerance: tuple[float, ...]
    pointer_width: tuple[int, ...] | None = None

    @property
    def applies(self) -> bool:
        """Whether there are enough heads for the theorem to say anything."""
        return math.isfinite(self.attention)


def adaptive(reach: Sequence[int] | int, heads: int, encoding: str, *, nesting: int = 0, order: int,
             alpha: float | None = None, lipschitz: float = 1.0, pointer_lipschitz: Sequence[float] | float = 1.0,
             pointer_error: Sequence[float] | float | None = None,
             pointer_norm: Sequence[float] | float | None = None, width: int | None = None,
             norm: float | None = None, channels: int = 1) -> AdaptiveBound:  # fmt: skip
    r"""Theorems 2 ($K=0$) and 3 with constants: $K+1+\mathbb 1[M>K]$ NF layers of ``heads`` heads (a:nested-bound).

    Args:
        reach: $T_1,\dots,T_M$, the largest lag of each pointer.
        heads: $H$ per layer; at least ``order``, and ``order`` for each of the $M-K$ pointers of the last layer.
        encoding: ``lin`` or ``log``.
        nesting: $K$, how many pointers must be followed one after another.
        order: $n$, the number of derivatives in Jackson's theorem.
        alpha: spacing of the rates; `default_alpha` of each reach unless given. Pointers do not share heads, so each
            may have its own.
        lipschitz: $\mathrm{Lip}_2$ of the read-out: $|f(z)-f(z')|\le\mathrm{Lip}_2(\sum_i\|z_i-z_i'\|_\infty^2)^{1/2}$,
            the sum over the fetched tokens, on the cube enlarged by their errors.
        pointer_lipschitz: the same for the function that layer $i$'s FFN computes, $\hat g_i$ (log: $\log\hat g_i$);
            one number, or one for each pointer. A pointer that is a ReLU staircase (Lemma a:lem-staircase) is flat near
            each of its inputs: 0 as long as the fetched tokens stay within a quarter of its gap.
        pointer_error: the largest error of that FFN on exact tokens: 0, as for a staircase, unless given.
        pointer_norm: Barron norms of the functions that the pointers' FFNs approximate. Each FFN then gets half of its
            tolerance, and ``pointer_width`` says how many neurons that takes.
        width, norm: of the read-out's FFN, as in `fixed`.
        channels: $d$, the number of channels of a token.
    """
    _check_encoding(encoding)
    _check_order(order)
    reach = _reaches(reach)
    count, nesting = len(reach), checks.integer("nesting", nesting, 0)
    if nesting > count:
        raise ValueError(f"nesting must lie in 0..{count}, the number of pointers, got {nesting}")
    heads = checks.integer("heads", heads, order * max(1, count - nesting))
    lipschitz = _each("lipschitz", lipschitz, 1)[0]
    channels = checks.integer("channels", channels, 1)
    slopes = _each("pointer_lipschitz", pointer_lipschitz, count)
    tolerance = tuple(pointer_tolerance(t, encoding) for t in reach)
    if pointer_norm is not None and pointer_error is not None:
        raise ValueError("give pointer_error or pointer_norm, not both: a norm stands for half the tolerance")
    halves = tuple(t / 2 for t in tolerance)
    errors = halves if pointer_norm is not None else _each("pointer_error", pointer_error or 0.0, count)
    for i, (off, allowed) in enumerate(zip(errors, tolerance, strict=True)):
        if off >= allowed and (off > allowed or (slopes[i] and i and nesting)):
            raise ValueError(
                f"pointer_error of pointer {i + 1} is {off}, which leaves nothing of its tolerance {allowed:.4g}; "
                "a wider FFN is needed before any number of heads helps"
            )
    alpha = None if alpha is None else checks.positive_number("alpha", alpha)
    alphas = tuple(default_alpha(t, encoding) if alpha is None else alpha for t in reach)
    constants = [pointer_constant(t, encoding, order=order, alpha=a) for t, a in zip(reach, alphas, strict=True)]
    shares = (heads,) * nesting
    if count > nesting:
        tail = constants[nesting:]
        finite = all(map(math.isfinite, tail))
        shares += split_heads(tail if finite else [1.0] * len(tail), heads, order=order)
    # the largest l2 norm of fetch errors that each pointer's function may see
    allowed = [(t - e) / s if s else math.inf for t, e, s in zip(tolerance, errors, slopes, strict=True)]
    found: list[float] = []
    for i, (constant, share) in enumerate(zip(constants, shares, strict=True)):
        read = math.hypot(*found[: min(i, nesting)])
        found.append(constant / share**order if read <= allowed[i] and math.isfinite(read) else math.inf)
    least = _least_heads(constants, allowed, order, nesting)
    attention = math.hypot(*found)
    printed = _printed(reach, encoding, order, alphas, heads, nesting) if math.isfinite(attention) else math.inf
    ffn = _ffn(width, norm, (count + 1) * channels, max(found))
    total = ffn + lipschitz * attention if lipschitz else ffn
    widths = None
    if pointer_norm is not None:
        norms = _each("pointer_norm", pointer_norm, count)
        widths = tuple(
            _least_width(b, (min(i, nesting) + 1) * channels, max(found[: min(i, nesting)], default=0.0), half)
            for i, (b, half) in enumerate(zip(norms, halves, strict=True))
        )
    depth = nesting + 1 + (count > nesting)
    return AdaptiveBound(depth, tuple(found), shares, alphas, attention, printed, ffn, total, least, tolerance, widths)


def _least_heads(constants, allowed, order, nesting) -> int:
    r"""The least $H$ with $H^{-n}(\sum_{j<i,j\le K}\Lambda_j^2)^{1/2}\le$ ``allowed`` for every pointer $i$."""
    least = order * max(1, len(constants) - nesting)
    for i, most in enumerate(allowed):
        read = math.hypot(*constants[: min(i, nesting)])
        if not read or most == math.inf:
            continue
        if not math.isfinite(read):
            raise ValueError("alpha is too large for the reach: the bound on the fetch error is not a finite number")
        wanted = max(1, math.floor((read / most) ** (1 / order)) - 1)
        while read / wanted**order > most:
            wanted += 1
        least = max(least, wanted)
    return least


def _printed(reach, encoding, order, alphas, heads, nesting) -> float:
    """The closed form of the page, with the factor e for whole heads where several pointers share a layer."""
    pairs = [closed_form_flat(t, encoding, order=order, alpha=a) for t, a in zip(reach, alphas, strict=True)]
    first = [k * a ** (order + 1) for k, a in pairs[:nesting]]
    last = sum(k ** (1 / (order + 1)) * a for k, a in pairs[nesting:]) ** (order + 1)
    whole = math.e if len(pairs) > nesting + 1 else 1.0
    return math.hypot(*first, whole * last) / heads**order


def _least_width(norm: float, dimension: int, eta: float, error: float) -> int | float:
    r"""The least $m$ with $4(1+\eta)\sqrt{d+1}\,\|g\|_{\mathcal B}/\sqrt m\le$ ``error`` (f:uniform-bound)."""
    if not math.isfinite(eta):
        return math.inf
    return max(1, math.ceil((4 * (1 + eta) * math.sqrt(dimension + 1) * norm / error) ** 2))


# ---------------------------------------------------------------- checks


def _reaches(reach) -> tuple[int, ...]:
    values = tuple(reach) if isinstance(reach, Sequence) else (reach,)
    if not values:
        raise ValueError("reach must hold the largest lag of at least one pointer, got none")
    return tuple(checks.integer("reach (the largest lag of a pointer)", t, 1) for t in values)


def _each(name: str, value, count: int) -> tuple[float, ...]:
    """One finite number of at least 0 for each pointer; a single number stands for all."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * count
    if len(values) != count:
        raise ValueError(f"{name} needs one number, or one for each of the {count} pointers, got {len(values)}")
    for v in values:
        if checks.plain_number(name, v) < 0:
            raise ValueError(f"{name} must be at least 0, got {v!r}")
    return tuple(map(float, values))
