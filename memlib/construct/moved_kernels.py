r"""Heads whose kernel is moved by a pointer, and the sums of them that fetch one token (a:shifted, a:interpolating).

A head with slope $\beta$ gives the token at lag $s$, for a pointer $g\le T$, the weight $e^{\beta T}e^{-\beta y}$ with
$y=s-g+T$ (lin), or $T^\beta y^{-\beta}$ with $y=Ts/g$ (log). The wanted sum is 1 at $y=T$ and 0 at all other places $y$
that occur: at those before $T$, where the weights are largest, and at as many behind it as there are heads for.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import mpmath
import numpy as np

from memlib.construct.construction import ROUND
from memlib.kernels import DIRECT_ROWS

__all__ = ["DIGITS", "RANGE", "Followed", "nodes_of", "solve", "split"]

DIGITS = 60
"""Digits in which coefficients are solved for and kernel errors are summed."""
RANGE = {"lin": (0.05, 40.0), "log": (1.05, 60.0)}
"""Where the spacing of the slopes is searched."""
_SPARE_NODES = 10  # nodes beyond those that are needed: more do not pay in double precision
_LARGEST_LOGIT = 300.0  # a head weighs a token by e^300 at most: its square is still a float64


def nodes_of(lags: tuple[int, ...], count: int, encoding: str) -> tuple[list[Fraction], int]:
    """The ``count`` least places y that occur, and how many of them are needed (those up to T itself)."""
    reach = lags[-1]
    if encoding == "lin":
        return [Fraction(y) for y in range(max(count, reach + 1))], reach + 1
    needed = sorted({Fraction(reach * s, g) for g in lags for s in range(1, g + 1)})
    behind = sorted({Fraction(reach * s, g) for g in lags for s in range(g + 1, g + count + 2)})
    return needed + behind[: max(count - len(needed), 0)], len(needed)


def _estimate(lags: tuple[int, ...], count: int, encoding: str, alpha: float) -> tuple[float, float]:
    r"""Tail and rounding of the sum with ``count`` nodes at spacing alpha, in closed form.

    With $v=e^{-\alpha y}$ or $y^{-\alpha}$ the sum is $\frac v{v_T}\prod_j\frac{v-v_j}{v_T-v_j}$; the nodes are
    positive, so its coefficients alternate in sign and their absolute values are those of $\prod(v+v_j)$.
    """
    reach = lags[-1]
    at = (lambda y: np.exp(-alpha * y)) if encoding == "lin" else (lambda y: np.maximum(y, 1e-9) ** -alpha)
    places, needed = nodes_of(lags, count, encoding)
    nodes = at(np.array([float(y) for y in places]))
    here, others = nodes[needed - 1], np.delete(nodes, needed - 1)
    sizes = np.ones(1)
    for v in others:  # coefficients of the product, least power first
        sizes = np.append(0, sizes) + np.append(v * sizes, 0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        sizes = sizes / np.prod(np.abs(here - others)) / here
        worst = 0.0
        last = count + (min(400, math.ceil(60 / alpha)) if encoding == "lin" else 200)
        s = np.arange(encoding == "log", last, dtype=float)
        for g in lags[-1:] if encoding == "lin" else lags:
            y = (s - g + reach if encoding == "lin" else s * reach / g)[:, None]
            behind = float(places[-1]) + 1e-6
            v = at(y[y > behind])
            tail = np.abs(v / here * np.prod((v[:, None] - others) / (here - others), axis=1))
            rest = float(tail[-1]) * last / (alpha - 1) if encoding == "log" and len(tail) else 0.0
            worst = max(worst, float(tail.sum()) + rest)
        slopes = alpha * np.arange(1, len(nodes) + 1)
        lag = np.maximum(s, 1)
        w = np.exp(-slopes[:, None] * (s if encoding == "lin" else np.log(lag)))
        moved = 0.0 if encoding == "lin" else math.log(reach)
        logit = slopes[:, None] * (s + 2 * reach if encoding == "lin" else np.log(lag) + 2 * moved)
        relative = len(nodes) + 6 + 3 * logit + 36 / slopes[:, None]
        rounding = ROUND * float(sizes @ (w * relative).sum(-1))
    return worst, rounding


@functools.lru_cache(maxsize=4096)
def _candidate(lags: tuple[int, ...], count: int, encoding: str, alpha: float | None,
               caution: float) -> tuple[float, float]:  # fmt: skip
    r"""Tail plus ``caution`` times rounding of a sum with ``count`` nodes at its best $\alpha$, and that $\alpha$.

    An $\alpha$ with which a head's largest weight would come near the end of float64's range does not count.
    """
    moved = lags[-1] if encoding == "lin" else math.log(lags[-1])

    def total(a: float) -> float:
        value = math.inf
        if a * count * moved <= _LARGEST_LOGIT:
            tail, rounding = _estimate(lags, count, encoding, a)
            value = tail + caution * rounding
        return value if math.isfinite(value) else math.inf

    grid = [alpha]
    if alpha is None:
        wide = np.geomspace(*RANGE[encoding], 49).tolist()
        best = min(range(len(wide)), key=lambda i: total(wide[i]))
        grid = np.geomspace(wide[max(best - 1, 0)], wide[min(best + 1, len(wide) - 1)], 13).tolist()
    return min((total(a), a) for a in grid)


def split(pointers, importance, heads: int, encoding: str, alpha, caution) -> list[tuple[float, int]]:
    r"""$\alpha$ and number of nodes for the pointers that are followed in one layer: least $\sum_iL_i\varepsilon_i$.

    A head serves one pointer only. The best split of the heads is found by dynamic programming; a pointer with 0 heads
    has the zero kernel, whose error is 1.
    """
    best = {0: (0.0, [])}  # heads used -> total, choices
    for pointer, share in zip(pointers, importance, strict=True):
        options = [(1.0, alpha or 1.5, 0)]
        _, needed = nodes_of(pointer.lags, 0, encoding)
        for count in range(needed, min(heads, needed + _SPARE_NODES) + 1):
            options.append((*_candidate(pointer.lags, count, encoding, alpha, caution), count))
        grown = {}
        for used, (total, chosen) in best.items():
            for error, a, count in options:
                value = total + max(share, 1e-6) * error
                if used + count <= heads and value < grown.get(used + count, (math.inf,))[0]:
                    grown[used + count] = (value, [*chosen, (a, count)])
        best = grown
    return min(best.values(), key=lambda pair: pair[0])[1]


def solve(lags: tuple[int, ...], encoding: str, slopes: Sequence[float]) -> list[mpmath.mpf]:
    r"""The $c_h$ that solve a:interpolating for the slopes as they are stored, with as many nodes as slopes."""
    count, reach = len(slopes), lags[-1]
    places, needed = nodes_of(lags, count, encoding)
    with mpmath.workdps(DIGITS + 12 * count):
        weights = mpmath.matrix(count, count)
        for j, y in enumerate(places):
            where = mpmath.mpf(y.numerator) / y.denominator
            where = where - reach if encoding == "lin" else mpmath.log(where / reach)
            for h, slope in enumerate(slopes):
                weights[j, h] = mpmath.exp(-mpmath.mpf(slope) * where)
        unit = mpmath.matrix(count, 1)
        unit[needed - 1] = 1
        return list(mpmath.lu_solve(weights, unit))


@dataclass(frozen=True)
class Followed:
    """How the stored weights follow one pointer: exact numbers, read from the model."""

    lags: tuple[int, ...]
    encoding: str
    slopes: tuple[float, ...]
    coefficients: tuple  # c_h, with the factor e^offset taken out again
    moves: dict  # what the pointer's slot holds, for each lag: the lag, or the sum of stored logarithms
    offset: float | None

    def weights(self, h: int, lag: int, length: int) -> list:
        """What head ``h`` gives to the lags it sees, for the pointer value ``lag``; without normaliser and offset."""
        slope, move = mpmath.mpf(self.slopes[h]), self.moves[lag]
        if self.encoding == "log":
            return [mpmath.exp(slope * (move - mpmath.log(s))) for s in range(1, length)]
        row, ratio = [mpmath.exp(slope * move)], mpmath.exp(-slope)
        for _ in range(1, length):
            row.append(row[-1] * ratio)
        return row

    def values(self, lag: int, length: int) -> list:
        """The kernel for the pointer value ``lag`` on the lags ``0..length-1``, at the last of ``length`` positions."""
        total, first = [mpmath.mpf(0)] * length, int(self.encoding == "log")
        for h, c in enumerate(self.coefficients):
            row = self.weights(h, lag, length)
            share = c / (1 + mpmath.exp(-self.offset) * mpmath.fsum(row)) if self.offset is not None else c
            for s, w in enumerate(row, first):
                total[s] += share * w
        return total

    def l1_error(self) -> float:
        r"""$\max_g\sum_s|\delta_{s,g}-\varphi_g(s)|$ without normaliser, bounded from above: a sum, then a tail."""
        if not any(self.coefficients):
            return 1.0
        bare = replace(self, offset=None)
        with mpmath.workdps(DIGITS):
            return max(bare._error_at(lag) for lag in (self.lags if self.encoding == "log" else self.lags[-1:]))

    def _error_at(self, lag: int) -> float:
        length = 2 * (lag + len(self.slopes)) + 8
        while True:
            values = self.values(lag, length)
            values[lag] -= 1
            total = float(mpmath.fsum(values, absolute=True))
            shares = [float(abs(c)) * self._tail(h, lag, length) for h, c in enumerate(self.coefficients) if c]
            if math.fsum(shares[1:]) <= 1e-3 * (total + shares[0]) or length > 4000:
                return (total + math.fsum(shares)) * (1 + 1e-12)
            length *= 2

    def _tail(self, h: int, lag: int, length: int) -> float:
        r"""An upper bound on $\sum_{s\ge N}$ of the weights of a head."""
        slope = self.slopes[h]
        if self.encoding == "lin":
            return math.exp(slope * (lag - length)) / -math.expm1(-slope)
        return float(mpmath.exp(slope * self.moves[lag])) * (length - 1.0) ** (1 - slope) / (slope - 1)

    def masses(self) -> list[float]:
        """Upper bounds on the sums Z of the weights of each head, for the longest lag (Lemma a:lem-sink)."""
        reach, found = self.lags[-1], []
        for slope in self.slopes:
            if self.encoding == "lin":
                found.append(math.exp(slope * reach) / -math.expm1(-slope))
            else:
                found.append(float(mpmath.exp(slope * self.moves[reach]) * mpmath.zeta(slope)) * (1 + 1e-12))
        return found

    def sink_error(self, offset: float) -> float:
        r"""$e^{-c}\sum_h|c_h|Z_h^2$ (equation a:sink-bound)."""
        pairs = zip(self.coefficients, self.masses(), strict=True)
        return math.exp(-offset) * math.fsum(abs(float(c)) * z * z for c, z in pairs)

    def rounding(self, fuzz: float, length: int, convolution: bool) -> float:
        r"""What rounding may add to the fetched token, to first order in the unit roundoff $u$:

        $$u\sum_h|c_h|\sum_sw_h(s)\bigl(H+6+n_h+3\beta_h(s+2g)+4c\bigr)
        +\epsilon_g\sum_s\Bigl|\sum_hc_h\beta_hw_h(s)\Bigr|.$$

        The logit is a sum of $\beta_hg$, $-\beta_hs$ and $-c$, each rounded, and its error is a relative error of the
        weight. $n_h=\sum_s\min(1,w_h(s)/(uZ_h))$ counts the additions over the past that can round. $\epsilon_g$
        (``fuzz``) is the rounding of the pointer: all heads see the same one, so it moves the whole kernel, by its
        slope. A ``convolution`` of more than 64 tokens goes through an FFT, which adds
        $8\log_2(2N)\sqrt N\,\|w_h\|_2$.
        """
        reach = self.lags[-1]
        s = np.arange(self.encoding == "log", length, dtype=float)
        where, move = (s, reach) if self.encoding == "lin" else (np.log(s), math.log(reach))
        slopes = np.array(self.slopes)[:, None]
        w = np.exp(slopes * (move - where))
        mass = w.sum(-1, keepdims=True)
        additions = np.minimum(ROUND, w / mass).sum(-1, keepdims=True) / ROUND
        relative = len(self.slopes) + 6 + additions + 3 * slopes * (where + 2 * move) + 4 * (self.offset or 0.0)
        per_head = ROUND * (w * relative).sum(-1)
        if convolution and length > DIRECT_ROWS:
            blur = 8 * math.log2(2 * length) * math.sqrt(length) * np.exp(slopes[:, 0] * (move - where[0]))
            per_head += ROUND * blur * np.sqrt((np.exp(-slopes * (where - where[0])) ** 2).sum(-1))
        return float(np.abs([float(c) for c in self.coefficients]) @ per_head) + fuzz * self.steepness(length)

    def steepness(self, length: int) -> float:
        r"""$\max_g\sum_s|\sum_hc_h\beta_hw_h(s)|$: how fast the kernel changes with what the pointer's slot holds."""
        with mpmath.workdps(DIGITS):
            steep = tuple(c * b for c, b in zip(self.coefficients, self.slopes, strict=True))
            moved = replace(self, coefficients=steep, offset=None)
            return max(float(mpmath.fsum(moved.values(lag, length), absolute=True)) for lag in self.lags)
