"""What the sums have in common: `KernelSum`, its values and its errors, in as many digits as they need."""

import math
from dataclasses import dataclass
from functools import cached_property

import mpmath
import numpy as np
from mpmath import mp, mpf

from memlib import checks

ENCODINGS = ("lin", "log")
NORMS = ("l1", "l2")
MOST_EXPLICIT = 256  # lags of a tail that are added one by one before its sign changes are looked for

# ------------------------------------------------------------------------------------------------------ checking input


def _positive(label: str, value) -> float:
    number = isinstance(value, int | float | np.integer | np.floating | mpf) and not isinstance(value, bool)
    if not number or not mpmath.isfinite(value) or value <= 0:
        raise ValueError(f"{label} must be a positive finite number, got {value!r}")
    return value


def _encoding(value) -> str:
    if value not in ENCODINGS:
        raise ValueError(f"unknown encoding {value!r}; sums exist for {', '.join(ENCODINGS)}")
    return value


def _first_lag(encoding: str) -> int:
    return 0 if encoding == "lin" else 1


def _target(target, encoding: str):
    """A lag as int, or kernel values on lags 0..N-1 as a float array."""
    if isinstance(target, int | np.integer) and not isinstance(target, bool):
        return checks.integer(f"a lag for {encoding} heads", target, _first_lag(encoding))
    try:
        values = np.asarray(target, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"the target must be a lag or an array of kernel values, got {target!r}") from None
    if values.ndim != 1 or len(values) <= _first_lag(encoding) or not np.isfinite(values).all():
        raise ValueError(
            f"a target kernel must be a one-dimensional array of finite numbers on lags 0..N-1 with "
            f"N > {_first_lag(encoding)}, got {'shape ' + str(values.shape) if values.ndim != 1 else target!r}"
        )
    return values


def _lags(lags, encoding: str) -> np.ndarray:
    lags = np.atleast_1d(np.asarray(lags))
    if lags.dtype.kind not in "iu" or (lags < 0).any():
        raise ValueError(f"lags must be non-negative integers, got {lags!r}")
    return lags.astype(np.int64)


def _numbers(label: str, values) -> tuple:
    values = tuple(values)
    for value in values:
        if not isinstance(value, int | float | np.integer | np.floating | mpf) or isinstance(value, bool):
            raise ValueError(f"{label} must be real numbers, got {value!r}")
        if not mpmath.isfinite(value):
            raise ValueError(f"{label} must be finite, got {value!r}")
    return values


def _as_float(value) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


# ------------------------------------------------------------------------------------------------------- sums of heads


@dataclass(frozen=True)
class KernelSum:
    r"""$\varphi(s)=\sum_hc_he^{-p_hs}$ (``lin``) or $\sum_hc_hs^{-p_h}$ (``log``), plus ``residual`` times $\delta_0$.

    Chapter Fixed sparse memory, equation x:sum. ``rates`` are the $p_h>0$; ``coefficients`` the $c_h$, floats or
    mpmath numbers. A log head does not see lag 0: there its sum is 0.
    """

    encoding: str
    rates: tuple
    coefficients: tuple
    residual: float = 0.0

    def __post_init__(self):
        _encoding(self.encoding)
        object.__setattr__(self, "rates", _numbers("rates", self.rates))
        object.__setattr__(self, "coefficients", _numbers("coefficients", self.coefficients))
        for rate in self.rates:
            _positive("a rate", rate)
        if len(self.rates) != len(self.coefficients):
            raise ValueError(
                f"as many coefficients as rates are wanted, got {len(self.coefficients)} for {len(self.rates)}"
            )
        _numbers("residual", (self.residual,))

    @property
    def heads(self) -> int:
        """The number of terms $H$."""
        return len(self.rates)

    @cached_property
    def weight(self) -> float:
        r"""$\sum_h\lvert c_h\rvert$, the price of Theorem x:thm-price (infinite if beyond the range of floats)."""
        return _as_float(mpmath.fsum(self.coefficients, absolute=True))

    @cached_property
    def log10_weight(self) -> float:
        r"""$\log_{10}\sum_h\lvert c_h\rvert$: finite also where `weight` overflows."""
        total = mpmath.fsum(self.coefficients, absolute=True)
        return float(mpmath.log10(total)) if total else -math.inf

    @cached_property
    def largest(self) -> float:
        r"""$\max_h\lvert c_h\rvert$."""
        return _as_float(max((abs(mpf(c)) for c in self.coefficients), default=mpf(0)))

    def _bits(self) -> int:
        """Working precision: what the cancellation eats, and 100 bits to spare."""
        return 100 + max(0, math.ceil(3.33 * self.log10_weight) if self.heads and self.largest else 0)

    def _exact(self, s) -> mpf:
        """The sum of the heads at one lag (any real s), at the precision in force."""
        if self.encoding == "lin":
            x = mpf(s)
        else:
            x = mp.log(s)
        return mp.fsum(c * mp.exp(-p * x) for p, c in zip(self.rates, self.coefficients, strict=True))

    def values(self, lags) -> np.ndarray:
        r"""$\varphi$ at the given lags, with the residual at lag 0: float64, correct to about 1e-16 absolutely.

        Where the coefficients cancel, the terms are added in extended precision.
        """
        lags = _lags(lags, self.encoding)
        out = np.zeros(lags.shape)
        first = _first_lag(self.encoding)
        simple = self.weight <= 16 and not any(isinstance(p, mpf) for p in self.rates)
        if simple:
            seen = lags >= first
            x = -lags[seen] if self.encoding == "lin" else -np.log(lags[seen])
            for p, c in zip(self.rates, self.coefficients, strict=True):
                out[seen] += float(c) * np.exp(float(p) * x)
            out += float(self.residual) * (lags == 0)
        else:
            with mp.workprec(self._bits()):
                table = {int(s): self._exact(int(s)) for s in np.unique(lags) if s >= first}
                table[0] = table.get(0, mpf(0)) + self.residual
                out = np.array([_as_float(table[int(s)]) for s in lags.ravel()]).reshape(lags.shape)
        return out

    def l1_error(self, target) -> float:
        r"""$\lVert\rho-\varphi\rVert_{\ell^1}$: for a lag $T$, $\rho=\delta_T$ over the whole infinite past, tail
        included; for an array of kernel values on lags $0..N-1$ the error on those lags.

        Chapter Fixed sparse memory, equation x:error. Infinite if a log exponent does not exceed 1.
        """
        return self._error(target, 1)

    def l2_error(self, target) -> float:
        r"""$\lVert\rho-\varphi\rVert_{\ell^2}$, over the same lags as `l1_error` (equation x:error)."""
        return self._error(target, 2)

    def _error(self, target, power: int) -> float:
        target = _target(target, self.encoding)
        if isinstance(target, int):
            wanted = np.zeros(target + 1)
            wanted[target] = 1.0
        else:
            wanted = target
        with mp.workprec(self._bits()):
            inside = mpf(0)
            for s, value in enumerate(wanted):
                phi = self._exact(s) if s >= _first_lag(self.encoding) else mpf(0)
                inside += abs(mpf(float(value)) - phi - (mpf(self.residual) if s == 0 else 0)) ** power
            if isinstance(target, int):
                inside += self._tail(target + 1) if power == 1 else self._square_tail(target + 1)
            return _as_float(inside if power == 1 else mp.sqrt(inside))

    def _signed_tail(self, start: int) -> mpf:
        r"""$\sum_{s\ge start}\varphi(s)$ in closed form."""
        if self.encoding == "lin":
            pairs = ((mpf(p), c) for p, c in zip(self.rates, self.coefficients, strict=True))
            terms = (c * mp.exp(-p * start) / -mp.expm1(-p) for p, c in pairs)
        else:
            terms = (c * mp.zeta(p, start) for p, c in zip(self.rates, self.coefficients, strict=True))
        return mp.fsum(terms)

    def _tail(self, start: int) -> mpf:
        r"""$\sum_{s\ge start}\lvert\varphi(s)\rvert$: closed forms between the sign changes of $\varphi$."""
        if not self.heads or not self.largest:
            return mpf(0)
        if self.encoding == "log" and min(self.rates) <= 1:
            return mpf("inf")
        explicit = mpf(0)
        for s in range(start, start + MOST_EXPLICIT):
            if self._keeps_sign(s):
                return explicit + abs(self._signed_tail(s))
            explicit += abs(self._exact(s))
        edges = [start + MOST_EXPLICIT, *(s for s in self._sign_changes() if s > start + MOST_EXPLICIT)]
        tails = [self._signed_tail(s) for s in edges]
        blocks = [a - b for a, b in zip(tails, [*tails[1:], mpf(0)], strict=True)]
        return explicit + mp.fsum(blocks, absolute=True)

    def _keeps_sign(self, start: int) -> bool:
        r"""Whether Abel summation shows that $\varphi$ keeps one sign from lag ``start`` on.

        With the terms at that lag in order of increasing rates and their partial sums $B_k$ all of one sign,
        $\varphi=\sum_kB_k(e_k-e_{k+1})$, where the $e_k$ decrease in $k$ at every later lag.
        """
        x = mpf(start) if self.encoding == "lin" else mp.log(start)
        partial, signs = mpf(0), set()
        for p, c in sorted(zip(self.rates, self.coefficients, strict=True)):
            partial += c * mp.exp(-p * x)
            signs.add(partial >= 0)
            if len(signs) == 2:
                return False
        return True

    def _square_tail(self, start: int) -> mpf:
        total = mpf(0)
        pairs = list(zip(self.rates, self.coefficients, strict=True))
        for i, (p, c) in enumerate(pairs):
            for j, (q, d) in enumerate(pairs[: i + 1]):
                rate = mpf(p) + q
                if self.encoding == "lin":
                    value = mp.exp(-rate * start) / -mp.expm1(-rate)
                elif rate <= 1:
                    return mpf("inf")
                else:
                    value = mp.zeta(rate, start)
                total += (1 if i == j else 2) * mpf(c) * d * value
        return max(total, mpf(0))

    def _sign_changes(self) -> list[int]:
        """The first integer lag after each zero of the sum of the heads, in the variable s (lin) or log s (log)."""
        find = _zeros if self.heads <= 8 else _sampled_zeros
        zeros = find([-mpf(p) for p in self.rates], [mpf(c) for c in self.coefficients])
        if self.encoding == "log":  # beyond s = e^5000 nothing is left of a summable tail
            zeros = [mp.exp(y) for y in zeros if y < 5000]
        return sorted({int(mp.floor(z)) + 1 for z in zeros if z >= 0})


def _zeros(exponents, coefficients) -> list:
    r"""All sign changes on the real line of $f(y)=\sum_hb_he^{q_hy}$, in increasing order.

    By Descartes' rule for real exponents there are at most $H-1$ (equation x:descartes). They are found as the rule is
    proved: $e^{-q_1y}f$ has a derivative with one term less, whose sign changes cut the line into monotone pieces.
    """
    terms = {}
    for q, b in zip(exponents, coefficients, strict=True):
        terms[q] = terms.get(q, mpf(0)) + b
    terms = sorted((q, b) for q, b in terms.items() if b)
    if len(terms) < 2 or len({b > 0 for _, b in terms}) == 1:
        return []
    q0 = terms[0][0]
    shifted = [(q - q0, b) for q, b in terms]
    turning = _zeros([q for q, _ in shifted[1:]], [q * b for q, b in shifted[1:]])

    def f(y):
        return mp.fsum(b * mp.exp(q * y) for q, b in shifted)

    low = min((mp.log(abs(shifted[0][1]) / (len(terms) * abs(b))) / q for q, b in shifted[1:])) - 1
    top_q, top_b = shifted[-1]
    high = max((mp.log(len(terms) * abs(b) / abs(top_b)) / (top_q - q) for q, b in shifted[:-1])) + 1
    points = [min([low, *turning]) - 1, *turning, max([high, *turning]) + 1]
    signs = [mp.sign(f(y)) for y in points]
    zeros = []
    for a, b, left, right in zip(points, points[1:], signs, signs[1:], strict=False):
        if left * right < 0:
            zeros.append(_bisect(f, a, b, left))
        elif right == 0 and b != points[-1]:  # a zero at a turning point: a sign change only if the next piece differs
            after = signs[points.index(b) + 1]
            if left * after < 0:
                zeros.append(b)
    return zeros


def _sampled_zeros(exponents, coefficients, points: int = 400) -> list:
    """Sign changes as `_zeros` finds them, for long sums: looked for on a grid that reaches to where one term rules."""
    terms = sorted((q, b) for q, b in zip(exponents, coefficients, strict=True) if b)
    top_q, top_b = terms[-1]
    high = max((mp.log(len(terms) * abs(b) / abs(top_b)) / (top_q - q) for q, b in terms[:-1]), default=mpf(1))

    def f(y):
        return mp.fsum(b * mp.exp(q * y) for q, b in terms)

    grid = [high * k / points for k in range(points + 1)] if high > 0 else []
    values = [f(y) for y in grid]
    pairs = zip(grid, grid[1:], values, values[1:], strict=False)
    return [_bisect(f, a, b, mp.sign(left)) for a, b, left, right in pairs if left * right < 0]


def _bisect(f, a, b, sign_a):
    """The zero of a monotone function between a and b: bisection, then the Illinois form of regula falsi."""
    fa, fb = f(a), f(b)
    tolerance = mpf(2) ** (20 - mp.prec)
    for step in range(10 * mp.prec):
        if abs(b - a) <= tolerance * max(1, abs(a) + abs(b)):
            break
        middle = (a + b) / 2 if step < 6 or step % 4 == 3 else b - fb * (b - a) / (fb - fa)
        if not a < middle < b:
            middle = (a + b) / 2
        value = f(middle)
        if not value:
            return middle
        if mp.sign(value) == sign_a:
            a, fa, fb = middle, value, fb / 2
        else:
            b, fb, fa = middle, value, fa / 2
    return (a + b) / 2
