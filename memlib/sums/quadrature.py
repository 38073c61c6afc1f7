r"""Power laws as sums of exponentials with positive weights, by the trapezoidal rule (Proposition e:prop-lin-heavy)."""

import math
from dataclasses import dataclass
from functools import cached_property

import mpmath
from mpmath import mp, mpf
from scipy.optimize import minimize, minimize_scalar

from memlib import checks
from memlib.sums.kernel_sum import KernelSum, _as_float

FEWEST = 2
"""A rule has at least this many nodes."""


@dataclass(frozen=True)
class QuadratureSum(KernelSum):
    r"""The trapezoidal sum for $(1+s)^{-\beta}$ (Proposition e:prop-lin-heavy, equation e:lin-heavy).

    The nodes are $y_k=y_0+kh$, $k<H$, the rates $e^{y_k}$, the weights $\frac h{\Gamma(\beta)}e^{\beta y_k-e^{y_k}}>0$.
    ``step`` is $h$, ``start`` $y_0$; ``bound`` is what the proposition proves for the $\ell^1$ error over the whole
    infinite past, with the strip $|\Im y|<$ ``angle``.
    """

    exponent: float = math.nan
    step: float = math.nan
    start: float = math.nan
    angle: float = math.nan
    bound: float = math.nan

    @cached_property
    def error(self) -> float:
        r"""$\sum_{s\ge0}\lvert(1+s)^{-\beta}-\varphi(s)\rvert$, over the whole infinite past.

        Lag by lag at first; then closed forms of the two tails between sign changes, which are looked for on a grid of
        twenty points for each step of the rule, in $\log s$: the error oscillates there with the period of the rule.
        """
        with mp.workprec(160):
            beta = mpf(self.exponent)

            def rest(s):
                return (1 + mpf(s)) ** -beta - self._exact(s)

            def tail(s):
                return mp.zeta(beta, s + 1) - self._signed_tail(s)

            first = 64
            total = mp.fsum(abs(rest(s)) for s in range(first))
            end = int(mp.ceil((40 + 4 * beta) / self.rates[0])) + first  # beyond, only the power law is left
            edges, points = [first], max(2, math.ceil(20 * math.log(end / first) / self.step))
            grid = sorted({int(first * (mpf(end) / first) ** (mpf(i) / points)) for i in range(points + 1)})
            signs = [rest(s) > 0 for s in grid]
            for a, b, before, after in zip(grid, grid[1:], signs, signs[1:], strict=False):
                if before != after:
                    while b - a > 1:
                        middle = (a + b) // 2
                        a, b = (middle, b) if (rest(middle) > 0) == before else (a, middle)
                    edges.append(b)
            tails = [tail(s) for s in edges]
            blocks = [a - b for a, b in zip(tails, [*tails[1:], mpf(0)], strict=True)]
            return _as_float(total + mp.fsum(blocks, absolute=True))


def _parts(beta: float, heads: int, step: float, start: float, angle: float) -> tuple[float, float, float]:
    """The three terms of equation e:lin-heavy: discretisation, nodes left out on the left, nodes left out on the right.

    As mathematical bounds, evaluated in double precision.
    """
    scale = step / math.gamma(beta)
    rule = 2 * float(mpmath.zeta(beta)) * math.cos(angle) ** -beta / math.expm1(min(2 * math.pi * angle / step, 700.0))
    left = scale * math.exp((beta - 1) * (start - step)) / -math.expm1(-(beta - 1) * step)
    beyond = start + heads * step
    steep = math.exp(min(beyond, 30.0))
    if steep <= beta * (1 + 1e-9):
        return rule, left, math.inf
    right = scale * math.exp(beta * beyond - steep) / (-math.expm1(-steep) * -math.expm1(-step * (steep - beta)))
    return rule, left, right


def _best_angle(beta: float, step: float) -> float:
    """The angle with the least bound for the discretisation error at a given step."""
    done = minimize_scalar(
        lambda d: -beta * math.log(math.cos(d)) - math.log(math.expm1(min(2 * math.pi * d / step, 700.0))),
        bounds=(1e-6, math.pi / 2 - 1e-6), method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    return float(done.x)


def quadrature_sum(exponent: float, heads: int, *, angle: float | None = None) -> QuadratureSum:
    r"""$H$ exponentials with positive weights near the power law $(1+s)^{-\beta}$, $\beta>1$ (e:prop-lin-heavy).

    The trapezoidal rule for $(1+s)^{-\beta}=\frac1{\Gamma(\beta)}\int e^{\beta y-(1+s)e^y}dy$ (equation e:trapezoid).
    Its step and its first node are those with the least ``bound``; ``angle`` is the half width $d<\pi/2$ of the strip
    in the bound, by default the best one. The bound falls like $e^{-c\sqrt H}$, $c$ near $\pi\sqrt{\beta-1}$: slower
    than a fit on a window, but on the whole infinite past, proved, and without cancellation: all weights are positive,
    and their sum $\varphi(0)$ is about 1.
    """
    beta = checks.positive_number("exponent", exponent)
    if not 1 < beta <= 50:
        raise ValueError(f"exponent must lie in (1, 50]: the kernel is not summable below; got {exponent!r}")
    heads = checks.integer("heads", heads, FEWEST)
    if angle is not None and not 0 < checks.positive_number("angle", angle) < math.pi / 2:
        raise ValueError(f"angle must lie strictly between 0 and pi/2, got {angle!r}")

    def value(z) -> float:
        step, beyond = math.exp(z[0]), z[1]
        if not 1e-4 < step < 50 or not -30 < beyond < 30:
            return math.inf
        parts = _parts(beta, heads, step, beyond - heads * step, angle or _best_angle(beta, step))
        return math.log(sum(parts)) if math.isfinite(sum(parts)) else math.inf

    guess = math.pi / math.sqrt((beta - 1) * heads)
    starts = [(math.log(guess * a), math.log(beta + b)) for a in (0.4, 0.7, 1.0, 1.4) for b in (1.0, 4.0, 16.0)]
    begin = min(starts, key=value)
    done = minimize(value, begin, method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-9, "maxiter": 400})
    step = math.exp(done.x[0])
    start = float(done.x[1]) - heads * step
    used = angle or _best_angle(beta, step)
    with mp.workprec(160):
        nodes = [mpf(start) + k * mpf(step) for k in range(heads)]
        rates = tuple(mp.exp(y) for y in nodes)
        weights = tuple(mpf(step) / mp.gamma(beta) * mp.exp(mpf(beta) * y - mp.exp(y)) for y in nodes)
    bound = sum(_parts(beta, heads, step, start, used))
    return QuadratureSum("lin", rates, weights, 0.0, beta, step, start, used, bound)
