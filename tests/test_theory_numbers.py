"""The numbers printed on the theory page of the Foundations part, computed again from first principles.

One table, `NUMBERS`: where the page says it (a regular expression with one group), what it should be, and how many
significant digits the page shows. Nothing of memlib is used here, and sums, searches, quadrature and a minimax
algorithm take the place of the page's closed forms where they can. The last test finds decimal numbers of the page
that the table does not hold.
"""

import re
from itertools import count
from math import exp, factorial, floor, fsum, log2, pi, prod, sqrt

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad

from tests.printed_numbers import check, page_of, unaccounted

PAGE = page_of("foundations/theory")


# ---------------------------------------------------------------- heads: windows, effective lengths, gains


def tail(head, n):
    """The sum of a head's weights beyond its ``n`` most recent lags."""
    name, p = head
    if name == "lin":
        return mpmath.exp(-mpmath.mpf(p) * n) / (1 - mpmath.exp(-mpmath.mpf(p)))
    return mpmath.zeta(mpmath.mpf(p), n + 1)


def window(head, q):
    """The least n whose tail holds at most the fraction 1 - q, by bisection (to 12 digits if n is longer)."""
    with mpmath.workdps(40):
        allowed = (1 - mpmath.mpf(q)) * tail(head, 0)
        high = next(2**k for k in count() if tail(head, 2**k) <= allowed)
        low = high // 2
        while high - low > max(1, high // 10**12):
            middle = (low + high) // 2
            low, high = (low, middle) if tail(head, middle) <= allowed else (middle, high)
        return high


def effective_length(head):
    """(sum w)^2 / sum w^2, term by term for lin."""
    name, p = head
    if name == "lin":
        w = np.exp(-float(p) * np.arange(60 / float(p)))
        return fsum(w) ** 2 / fsum(w**2)
    return mpmath.zeta(mpmath.mpf(p)) ** 2 / mpmath.zeta(2 * mpmath.mpf(p))


def lin_gain(p, t):
    """The infinite normaliser over the running one at position ``t``, from the weights."""
    w = np.exp(-p * np.arange(60 / p))
    return fsum(w) / fsum(w[: t + 1])


def log_gain(p, t):
    """The same for log."""
    return float(mpmath.zeta(mpmath.mpf(p))) / fsum(np.arange(1, t + 1) ** -float(p))


def bucket(z):
    """T5's bucket of a lag: 32 buckets, the last from lag 128 at the latest."""
    return z if z < 16 else min(31, 16 + floor(16 * mpmath.log(mpmath.mpf(z) / 16) / mpmath.log(8)))


# ---------------------------------------------------------------- polynomials


def jackson_constant(n):
    """The least J with (pi/4)^n / (H (H-1) ... (H-n+1)) <= J H^-n for all H >= n (searched up to 200)."""
    return (pi / 4) ** n * max(H**n / prod(range(H - n + 1, H + 1)) for H in range(n, 200))


def minimax(f, k):
    """The distance of f from the polynomials of degree k on [-1, 1]: Remez' exchange on a fine grid."""
    x = np.cos(np.linspace(pi, 0, 20001))
    signs = (-1.0) ** np.arange(k + 2)
    points = np.linspace(0, 20000, k + 2).round().astype(int)
    for _ in range(50):
        system = np.column_stack([np.polynomial.chebyshev.chebvander(x[points], k), signs])
        *coefficients, level = np.linalg.solve(system, f(x[points]))
        error = f(x) - np.polynomial.chebyshev.chebval(x, coefficients)
        if np.abs(error).max() <= abs(level) * (1 + 1e-6):
            return abs(level)
        runs = np.split(np.arange(len(x)), np.flatnonzero(np.diff(error > 0)) + 1)
        points = np.array([run[np.abs(error[run]).argmax()] for run in runs])
        while len(points) > k + 2:  # drop the end at which the error is smaller
            points = points[1:] if abs(error[points[0]]) < abs(error[points[-1]]) else points[:-1]
    raise AssertionError("the exchange did not settle")


# Jackson's bound on the distance of 1/(2-x) from degree 9, by the number of derivatives; max |f^(n)| = n!
ANALYTIC = {n: (pi / 2) ** n * factorial(n) / prod(range(11 - n, 11)) for n in range(1, 11)}


# ---------------------------------------------------------------- one lag


def one_derivative(T, alpha):
    """The constant of f:bump-one: pi/4 times steepest chord of G(u) = tent(s - T)/u times sum of e^(-alpha s)."""
    s = np.linspace(max(T - 1, 0), T + 1, 400_001)
    u = np.exp(-alpha * s)
    steepest = np.abs(np.diff(np.maximum(0, 1 - np.abs(s - T)) / u) / np.diff(u)).max()
    return pi / 4 * steepest * fsum(np.exp(-alpha * np.arange(50 / alpha)))


GRID = np.linspace(-1, 1, 200_001)
SLOPE = np.abs(4 * GRID * (1 - GRID**2)).max()  # of (1 - z^2)^2
BEND = np.abs(12 * GRID**2 - 4).max()
TWO = jackson_constant(2) * (2 + 3 * SLOPE * 5 + BEND * 25) * exp(3) * fsum(np.exp(-np.arange(500) / 5))
ONE = one_derivative(4, 1 / 5)


def interpolating_sum(T, alpha):
    """Its l1 error beyond lag T and the sum of its |coefficients|, from the coefficients themselves."""
    with mpmath.workdps(60):
        u = [mpmath.exp(-alpha * j) for j in range(T + 80)]
        c = [mpmath.mpf(0), 1 / u[T]]  # the polynomial u / u_T, lowest degree first
        for j in range(T):
            lower, raised = [-u[j] * x for x in [*c, 0]], [0, *c]
            c = [(a + b) / (u[T] - u[j]) for a, b in zip(lower, raised, strict=True)]
        values = [mpmath.polyval(c[::-1], x) for x in u]
        assert len(c) == T + 2 and c[0] == 0  # T + 1 exponentials
        assert all(abs(value - (s == T)) < 1e-30 for s, value in enumerate(values[: T + 1]))
        return float(sum(abs(value) for value in values[T + 1 :])), float(sum(abs(x) for x in c))


# ---------------------------------------------------------------- Barron functions


def line_norm(curvature, reach=1.0):
    """The integral of (reach + |t|) |g''(t)| over (-reach, reach), for even g with g'' changing sign at 1/2 at most."""
    return 2 * quad(lambda t: (reach + t) * abs(curvature(t)), 0, reach, points=[reach / 2])[0]


def square_second_moment():
    """V^2 E sigma^2 of the sampled neurons of x^2 at x = 1: kink t, normalised neuron (1-t)/(1+t)."""
    V = line_norm(lambda t: 2.0)
    return V**2 * quad(lambda t: ((1 - t) / (1 + t)) ** 2 * 2 * (1 + t) / V, 0, 1)[0]


def simplex_moment(power, x, y):
    """E sigma(b x + (1-b) y)^power, b uniform on [0, 1]."""
    return quad(lambda b: max(b * x + (1 - b) * y, 0) ** power, 0, 1, points=[0.5])[0]


def interpolation_error(m):
    """The greatest error of the piecewise linear interpolation of x^2 with m pieces on [-1, 1]."""
    x, knots = np.linspace(-1, 1, 1600 * m + 1), np.linspace(-1, 1, m + 1)
    return np.abs(np.interp(x, knots, knots**2) - x**2).max()


# ---------------------------------------------------------------- the table


def cell(row, column):
    """A pattern for one cell of a table: the row by how it begins, columns counted from 1."""
    return rf"\| {row} \|(?:[^|]*\|){{{column - 1}}} ([^|]*?) \|"


HEADS = [("lin", "0.1"), ("lin", "0.01"), ("log", "2"), ("log", "1.5"), ("log", "1.1"), ("log", "1.01")]
LENGTH_DIGITS = [(4, 1, 2), (4, 2, 3), (2, 1, 1), (3, 1, 2), (3, 3, 2), (4, 2, 2)]
LAGS = [1, 4, 16, 64, 256]
ERROR, WEIGHT = interpolating_sum(4, 4)
UNIFORM = 4 * sqrt(3 + 1) * line_norm(lambda t: 2.0)
COSINE = [quad(lambda t, k=k: t**k * abs(np.cos(pi * t)), 0, 1, points=[0.5])[0] for k in (0, 1)]

NUMBERS = [
    # memory classes
    (r"weight lies on the last (\d+) tokens", next(n for n in count() if 1 - 0.9**n >= 0.5), 1),
    (r"\$0\.9\^7=(.*?)\$", 0.9**7, 3),
    (r"\$1\+2\^\{-3/2\}=(.*?)\$", 1 + 2**-1.5, 4),
    (r"\\zeta\(3/2\)=(.*?)\$", mpmath.zeta(1.5), 4),
    (r"to hold 99 % takes ([\d,]+)\.", window(("log", "1.5"), "0.99"), 4),
    (r"\$T_2=(\d)\$", max(g + h for g in range(1, 5) for h in range(1, 5)), 1),
    # architecture
    (r"all lags from (\d+) on share", next(z for z in count() if bucket(z) == 31), 3),
    (r"\\cdot8\^\{15/16\}=(.*?)\$", 16 * 8 ** (15 / 16), 4),
    (r"1/\(1\+e\^3\)=(.*?)\$", exp(-3) / (1 + exp(-3)), 2),
    (r"1/\(1\+e\^\{-3\}\)=(.*?)\$", exp(3) / (1 + exp(3)), 3),
    (r"for a million tokens \$(.*?)\$", 10**6 * (10**6 + 1) // 2, 1),
    # running normaliser
    (r"the gain is \$1/\(1-e\^\{-1\}\)=(.*?)\$", lin_gain(0.1, 9), 3),
    (r"10th token and \$(.*?)\$ at the 100th", lin_gain(0.1, 99), 6),
    (r"still \$(.*?)\$ at \$t=10\$", log_gain(2, 10), 3),
    (r"\$\\zeta\(p\)=(.*?)\$, and the tail", mpmath.zeta(mpmath.mpf("1.01")), 5),
    (r"\$Z_t/\\zeta\(p\)=(.*?)\$", 1 / log_gain("1.01", 10**6), 3),
    (r"has reached (\d+) % of", 100 / log_gain("1.01", 10**6), 2),
    (r"and the gain is \$(.*?)\$", log_gain("1.01", 10**6), 3),
    # effective length and window
    *((cell(rf"{name}, \$p={re.escape(p)}\$", column), value, shown)
      for (name, p), digits in zip(HEADS, LENGTH_DIGITS, strict=True)
      for column, value, shown in zip(
          (1, 2, 3), (effective_length((name, p)), window((name, p), "0.5"), window((name, p), "0.9")), digits,
          strict=True)),
    (r"sees: about \$(\d)/p\$ tokens", effective_length(("lin", "0.001")) * 0.001, 1),
    # from polynomials to heads
    (r"the two factors are \$(.*?)\$", fsum(np.exp(-0.01 * np.arange(6000))), 4),
    (r"the two factors are \$.*?\$ and \$\\zeta\(1\.01\)=(.*?)\$", mpmath.zeta(mpmath.mpf("1.01")), 4),
    (r"at \$\\alpha=1\$ they are \$(.*?)\$", fsum(np.exp(-1.0 * np.arange(60))), 3),
    (r"\\zeta\(2\)=(.*?)\$", pi**2 / 6, 3),
    # Jackson
    *((rf"\$J_{n}=(.*?)\$", jackson_constant(n), 3) for n in range(1, 5)),
    (r"a factor of about \$(.*?)\$ per", jackson_constant(120) / jackson_constant(119), 2),
    (r"So \$E_3\(f\)=(.*?)\$", minimax(np.abs, 3), 3),
    (r"promises \$\\pi/8=(.*?)\$", pi / (2 * (3 + 1)), 3),
    (r"At \$k=9\$ this is \$(.*?)\$", minimax(lambda x: 1 / (2 - x), 9), 2),
    (r"\\norm\{f\^\{\((\d)\)\}\}_\\infty=24", min(ANALYTIC, key=ANALYTIC.get), 1),
    (r"\\norm\{f\^\{\(4\)\}\}_\\infty=(\d+)\$", factorial(4), 2),
    (r"\(10\\cdot9\\cdot8\\cdot7\)\$ \$=(.*?)\$", min(ANALYTIC.values()), 2),
    # one lag
    *((cell(r"\$\\Lambda\$ at \$\\alpha=0\.01\$", i), one_derivative(T, 0.01), 2) for i, T in enumerate(LAGS, 1)),
    *((cell(r"\$\\Lambda\$ at \$\\alpha=\\frac1\{T\+1\}\$", i), one_derivative(T, 1 / (T + 1)), digits)
      for i, (T, digits) in enumerate(zip(LAGS, (3, 3, 2, 2, 2), strict=True), 1)),
    (r"hides \$\\alpha\^\{-n-1\}\$: a factor \$(.*?)\$ for", 0.01**-2, 1),
    (r"\\approx(\d\.\d)\\,\(T\+1\)\^2", one_derivative(2000, 1 / 2001) / 2001**2, 2),
    (r"\\norm\{\\chi'\}_\\infty=(.*?)\$", SLOPE, 3),
    (r"\\norm\{\\chi''\}_\\infty=(.*?)\$", BEND, 1),
    (r"C_2\(\\alpha\)\\le2\+\\frac\{(.*?)\}\\alpha", 3 * SLOPE, 3),
    (r"bound is \$(\S*?)H\^\{-2\}\$", TWO, 3),
    (r"It beats \$(\d+)/H\$", ONE, 3),
    (r"only from \$H=(\d+)\$ on", next(H for H in count(2) if TWO / H**2 < ONE / H), 3),
    (r"doing nothing, only for \$H>(\d+)\$", next(H for H in count(1) if ONE / (H + 1) < 1), 3),
    (r"\^\{-1\}\$: \$(.*?)\$ for \$T=4\$, \$\\alpha=4\$", ERROR, 3),
    (r"\\frac\{1\+u_j\}\{u_j-u_T\}\\approx(.*?)\$", WEIGHT, 2),
    # Barron norms
    (r"\\norm f_\{\\mathcal B\}=\\sigma\(1\)=(\d)\$", simplex_moment(1, 1, 1), 1),
    (r"\$f\(1,-1\)=\\frac1(\d)\$", 1 / simplex_moment(1, 1, -1), 1),
    (r"\$=2\(2\+1\)=(\d)\$", line_norm(lambda t: 2.0), 1),
    (r"\\abs\{\\cos\\pi\\tau\}d\\tau=\\frac(\d)\\pi\$, ", COSINE[0] * pi, 1),
    (r"\\tau\\abs\{\\cos\\pi\\tau\}d\\tau=\\frac(\d)\\pi\$", COSINE[1] * pi, 1),
    (r"\$=(\d)\\pi=18", line_norm(lambda t: pi**2 * np.cos(pi * t)) / pi, 1),
    (r"\$=6\\pi=(.*?)\$", line_norm(lambda t: pi**2 * np.cos(pi * t)), 4),
    (r"it is (\d) for \$\(w\^\\top x\)\^2\$", (GRID**2).max(), 1),
    (r"and (\d) for the cosine\.", (1 - np.cos(pi * GRID)).max(), 1),
    # sampling
    (r"12\(4\\log2-\\tfrac52\)=(.*?)\$", square_second_moment(), 4),
    (r"\\sqrt\{\((\S*?)-1\)/m\}", square_second_moment(), 4),
    (r"-1\)/m\}=(.*?)/\\sqrt m\$", sqrt(square_second_moment() - 1), 4),
    (r"a quarter of the bound \$(\d)/\\sqrt m\$", line_norm(lambda t: 2.0), 1),
    (r"\\E\\sigma\^2=\\frac1(\d)\$", 1 / simplex_moment(2, 1, -1), 1),
    (r"\\sqrt\{5/48\}/\\sqrt m=(.*?)/", sqrt(simplex_moment(2, 1, -1) - simplex_moment(1, 1, -1) ** 2), 3),
    (r"\\cdot6/\\sqrt m=(\d+)/\\sqrt m\$", UNIFORM, 2),
    (r"to bring it down to \$0\.1\$ takes \$m=(.*?)\$", (UNIFORM / 0.1) ** 2, 6),
    (r"\$=(\d)\(1\+\\eta\)\^2\$", line_norm(lambda t: 2.0, reach=1.25) / 1.25**2, 1),
    (r"uniform error exactly \$m\^\{-(\d)\}\$", log2(interpolation_error(8) / interpolation_error(16)), 1),
]  # fmt: skip


@pytest.mark.parametrize("pattern, value, digits", NUMBERS, ids=[row[0] for row in NUMBERS])
def test_number(pattern, value, digits):
    check(PAGE, pattern, value, digits)


def test_transforms_need_fewer_operations_than_stated():
    """Three transforms of length 2N, 5 n log2 n operations each, and the products between them."""
    n = 2 * 10**6
    stated = re.search(r"the transforms need fewer than \$10\^(\d)\$ operations", PAGE)
    assert 3 * 5 * n * log2(n) + 6 * n < 10 ** int(stated[1])


def test_alternation_of_the_example():
    """x^2 + 1/8 - |x| at the five points that the page names."""
    x = np.array([-1, -0.5, 0, 0.5, 1])
    assert r"at $-1,-\frac12,0,\frac12,1$; five alternating points" in PAGE
    np.testing.assert_array_equal(x**2 + 1 / 8 - np.abs(x), [1 / 8, -1 / 8, 1 / 8, -1 / 8, 1 / 8])


# What is given, not computed: slopes, ratios, spacings, a tolerance.
GIVEN = r"p=\d\.\d+|r=0\.9|0\.9\^7|\\alpha=0\.01|\\zeta\(1\.01\)|down to \$0\.1\$"


def test_every_decimal_number_is_in_the_table():
    assert unaccounted(PAGE, [pattern for pattern, _, _ in NUMBERS], GIVEN) == []
