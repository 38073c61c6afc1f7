"""The numbers printed on the pages of the chapter on adaptive memory, computed again from first principles.

As in `test_theory_numbers_fixed`: one table of patterns, values and digits shown; nothing of memlib is used. Searches,
explicit sums, explicit coefficients and plain simulation take the place of the pages' closed forms where they can.
Beyond the numbers, the statements that a computation can contradict are tried on examples.
"""

from fractions import Fraction
from itertools import count, pairwise, product
from math import cos, exp, factorial, floor, gcd, log, pi

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from tests.printed_numbers import check, page_of, unaccounted

PAGES = {name: page_of(f"adaptive/{name}") for name in ("theory", "limits")}


# ---------------------------------------------------------------- the flat top


def ramp(x, n):
    """The falling ramp of a:flat-top, its integral done term by term."""
    x = min(max(mpf(x), mpf(0)), mpf(1))
    terms = [(-1) ** k * mpmath.binomial(n - 1, k) / mpf(n + k) for k in range(n)]  # of y^(n-1) (1-y)^(n-1)
    return 1 - sum(c * x ** (n + k) for k, c in enumerate(terms)) / sum(terms)


def flat_top(z, n):
    return ramp(2 * (abs(z) - mpf(1) / 4), n)


def derivative_of_the_flat_top(n, order):
    """The largest derivative of that order on the ramp, from the coefficients of the polynomial."""
    terms = [mpf((-1) ** k) * mpmath.binomial(n - 1, k) / (n + k) for k in range(n)]
    poly = [mpf(0)] * n + [-c / sum(terms) for c in terms]  # ramp - 1, lowest power first
    poly[0] += 1
    for _ in range(order):
        poly = [k * c for k, c in enumerate(poly)][1:]
    values = (abs(mpmath.polyval(poly[::-1], mpf(i) / 2000)) for i in range(2001))
    return 2**order * max(values)


def jackson(n):
    return (mpmath.pi / 4) ** n * mpf(n) ** n / mpmath.factorial(n)


def constant(encoding, n, alpha):
    """K_n of a:flat-lin and a:flat-log: Jackson's constant, the flat top's top derivative, the weight's sum."""
    alpha, top = mpf(alpha), 2**n * mpf(factorial(2 * n - 1)) / factorial(n - 1)
    if encoding == "lin":
        return jackson(n) * top * mpmath.fprod(k + 1 / alpha for k in range(1, n + 1)) / (1 - mpmath.exp(-alpha))
    rest = mpmath.fprod((3 + k * alpha) / 2 for k in range(1, n + 1))
    return jackson(n) * top * mpmath.zeta(1 + alpha) / alpha**n * rest


def bound(T, n):
    """The lin bound times H^n at alpha = 1/(T+1)."""
    return constant("lin", n, mpf(1) / (T + 1)) * mpmath.exp(n + 1)


def heads_for(T, error, orders=range(1, 12)):
    return min((max(n, int(mpmath.ceil((bound(T, n) / error) ** (mpf(1) / n)))), n) for n in orders)


# ---------------------------------------------------------------- interpolation and sinks


def fractions(T):
    return sorted({Fraction(a, b) for b in range(1, T + 1) for a in range(1, b)})


def interpolating_sum(T, encoding, alpha):
    """Coefficients c_1, c_2, … of the sum with a spike at the pointer, in powers of u."""
    alpha = mpf(alpha)
    if encoding == "lin":
        zeros = [mpmath.exp(alpha * j) for j in range(1, T + 1)]
    else:
        zeros = [(mpf(q.numerator) / q.denominator) ** -alpha for q in fractions(T)]
    c = [mpf(0), mpf(1)]
    for r in zeros:
        c = [(a - r * b) / (1 - r) for a, b in zip([mpf(0), *c], [*c, mpf(0)], strict=True)]
    return c[1:]


def kernel_error(T, encoding, alpha, g, stop=120):
    """sum_s |delta - phi(s - g)| or phi(s / g), by evaluating the coefficients at the lags."""
    with mpmath.workdps(60 + 2 * int(alpha) * T * T):
        c = interpolating_sum(T, encoding, alpha)

        def phi(s):
            u = mpmath.exp(-mpf(alpha) * (s - g)) if encoding == "lin" else (mpf(s) / g) ** -mpf(alpha)
            return mpmath.fsum(x * u**h for h, x in enumerate(c, 1))

        return sum(abs((s == g) - phi(s)) for s in range(0 if encoding == "lin" else 1, stop))


def largest_error(T, encoding, alpha):
    return max(kernel_error(T, encoding, alpha, g, stop=60) for g in range(1, T + 1))


def size(T, alpha):
    """sum |c_h| e^(beta_h T): the terms that cancel at lag 0 when the pointer says T."""
    with mpmath.workdps(400):
        return sum(abs(c) * mpmath.exp(mpf(alpha) * h * T) for h, c in enumerate(interpolating_sum(T, "lin", alpha), 1))


def sink_size(T, alpha):
    """sum |c_h| Z_h^2 with Z_h summed explicitly."""
    with mpmath.workdps(400):
        total = mpf(0)
        for h, c in enumerate(interpolating_sum(T, "lin", alpha), 1):
            total += abs(c) * mpmath.fsum(mpmath.exp(-mpf(alpha) * h * (s - T)) for s in range(300)) ** 2
        return total


def offset(T, alpha, error, step):
    """The least multiple of the step that brings the sink's error down."""
    needed = mpmath.log(sink_size(T, alpha) / mpf(error))
    return next(k * step for k in count() if k * step >= needed)


FIVE = largest_error(4, "lin", 4)


# ---------------------------------------------------------------- rotary


def gamma(frequencies, N):
    y = np.arange(1, N)[:, None]
    return float((1 - np.cos(y * np.asarray(frequencies))).mean(axis=1).min())


N = 2048
GAIN = log(2 * (N - 1) / 1e-3)
FULL = gamma(2 * pi * np.arange(1, 1025) / 2049, N)
STANDARD = gamma(10000.0 ** (-2 * np.arange(32) / 64), N)
ONE = float(1 - mpmath.cos(2 * mpmath.pi / N))
FEW = next(F for F in count(1) if F > 8 * log(N))


# ---------------------------------------------------------------- the table


def cell(row, column):
    """A pattern for one cell of a table: the row by how it begins, columns counted from 1."""
    return rf"\| {row} \|(?:[^|]*\|){{{column - 1}}} ([^|]*?) \|"


REACHES = [3, 4, 8, 16, 64]
THEORY = [
    # shift
    (r"are \$(7\.\d+)\$, \$2", exp(2), 3),
    (r"are \$7\.\d+\$, \$(.*?)\$, \$1\$", exp(1), 3),
    (r"\$1\$, \$(.*?)\$, \$0\.135\$", exp(-1), 3),
    (r"\$1\$, \$0\.368\$, \$(.*?)\$: those", exp(-2), 3),
    # the constants of the example
    (r"and \$B_2=4\\cdot\\frac\{3!\}\{1!\}=(\d+)\$", derivative_of_the_flat_top(2, 2), 2),
    (r"\$2\^2\\cdot2!=(\d)\$", 2**2 * factorial(2), 1),
    (r"\\cdot2=(.*?)\$\. Operators", jackson(2), 4),
    (r"Operators: \$\(1\+4\)\(2\+4\)=(\d+)\$", (1 + 1 / 0.25) * (2 + 1 / 0.25), 2),
    (r"\$1/\(1-e\^\{-1/4\}\)=(.*?)\$", sum(exp(-s / 4) for s in range(400)), 4),
    (r"K_2\^\\flat=(\d\.\d+)\\cdot24", jackson(2), 4),
    (r"K_2\^\\flat=\d\.\d+\\cdot24\\cdot30\\cdot(.*?)=", 1 / (1 - exp(-0.25)), 4),
    (r"4\.521=(\d+)\$, and with", constant("lin", 2, "0.25"), 4),
    (r"and with \$A\^3=(.*?)\$", exp(1) ** 3, 4),
    (r"the bound is \$(.*?)\\,H\^\{-2\}\$", bound(3, 2), 5),
    (r"below \$0\.1\$ from \$H=(\d+)\$ heads on\. With one", heads_for(3, 0.1, [2])[0], 3),
    (r"With one derivative the bound is \$(.*?)/H\$", bound(3, 1), 4),
    (r"and needs ([\d,]+) heads; with three", heads_for(3, 0.1, [1])[0], 4),
    (r"with three, the best choice, (\d+)\.", heads_for(3, 0.1)[0], 3),
    (r"it comes first with one derivative, at \$H=(\d+)\$", heads_for(3, 1)[0], 3),
    (r"\$K_2\^\\flat=(3.*?)\$ for lin", constant("lin", 2, "0.01"), 2),
    *((cell("heads", i), heads_for(T, 0.1)[0], digits)
      for i, (T, digits) in enumerate(zip(REACHES, (3, 4, 4, 4, 5), strict=True), 1)),
    *((cell(r"\$n\$", i), heads_for(T, 0.1)[1], 1) for i, T in enumerate(REACHES, 1)),
    # width
    (r"\$256\\cdot2\\cdot9=(\d+)\$", (4 * 4 * 2**0.5 * 3) ** 2, 4),
    # exact pointers
    (r"four heads have the error \$(.*?)\$\. For log", largest_error(3, "lin", 4), 3),
    (r"at \$\\alpha=24\$ the error is \$(.*?)\$ for \$g=3\$", kernel_error(3, "log", 24, 3), 2),
    (r"for reach 8 it is (\d+) heads", sum(gcd(a, b) == 1 for b in range(1, 9) for a in range(1, b + 1)), 2),
    (r"22 heads against (\d),", 8 + 1, 1),
    (r"for reach 64 it is ([\d,]+) against", len(fractions(64)) + 1, 4),
    (r"1,260 against (\d+):", 64 + 1, 2),
    (r"Here it is \$(.*?)\$ at \$T=3\$", size(3, 4), 2),
    (r"where the error is \$(0\.\d+)\$\. Two", largest_error(3, "lin", 4), 2),
    # sink
    (r"\\abs\{c_h\}Z_h\^2\\le(.*?)\$, so the sink", sink_size(3, 4), 2),
    (r"at most \$10\^\{-3\}\$ from \$c=(.*?)\$ on", float(offset(3, 4, "1e-3", mpf("0.1"))), 3),
    (r"where the tail is \$(.*?)\$, from", largest_error(3, "lin", 2), 2),
    (r"from \$c=(4.*?)\$\. Large", float(offset(3, 2, "1e-3", mpf("0.1"))), 3),
    # nested
    (r"a staircase with (\d+) neurons\. Five", 2 * (len({a + b for a in range(4) for b in range(4)}) - 1), 2),
    (r"heads at \$\\alpha=4\$ fetch within \$(.*?)\$", FIVE, 3),
    (r"\$\\norm w_1=6\$ times that, \$(.*?)<", 6 * FIVE, 3),
    (r"\$\\xi\$ may be wrong by \$(.*?)\$: still", 2 * 6 * FIVE, 3),
    (r"wrong by at most \$3\\cdot(0\.\d+)=", FIVE, 3),
    (r"\$3\\cdot0\.0190=(.*?)\$\. That covers", 3 * FIVE, 2),
    *((cell("layers by doubling", i), next(L for L in count(1) if 2**L - 1 >= k), 1)
      for i, k in enumerate((1, 3, 7, 15), 1)),
    (r"two hops, \$T=8\$, it is ([\d,]+) neurons", 2 * (8**9 - 1), 9),
    # floors
    (r"At \$T=8\$: 8 heads, 8 channels and (\d+) \(or", 4 * 8, 2),
    (r"\(or (\d+)\) neurons, against", 2 * 8, 2),
    (r"T2\^T-1\)\$ neurons, (\d+) for \$T=4\$", 2 * (4 * 2**4 - 1), 3),
    # rotary
    (r"\\log\\frac\{2\(N-1\)\}\\eps=(.*?)\$:", GAIN, 3),
    (cell(r"all, \$P=2049\$", 1), 2 * 1024, 4),
    (cell(r"all, \$P=2049\$", 2), FULL, 5),
    (cell(r"all, \$P=2049\$", 3), GAIN / FULL, 3),
    (r"\| (\d+) well-chosen ones", FEW, 2),
    (cell("61 well-chosen ones", 1), 2 * FEW, 3),
    (cell("61 well-chosen ones", 2), 0.5, 1),
    (cell("61 well-chosen ones", 3), GAIN / 0.5, 3),
    (cell(r"standard, \$10000\^\{-2f/64\}\$", 2), STANDARD, 2),
    (cell(r"standard, \$10000\^\{-2f/64\}\$", 3), GAIN / STANDARD, 3),
    (cell(r"one, \$2\\pi/N\$", 2), ONE, 2),
    (cell(r"one, \$2\\pi/N\$", 3), GAIN / ONE, 2),
    (r"An amplitude of (\d+) is", GAIN / STANDARD, 3),
    (r"An amplitude of \d+ is (\d+) for each pair", GAIN / STANDARD / 32, 2),
]  # fmt: skip

LIMITS = [
    (r"add up to \$(.*?)\$ for reach 3", size(3, 4), 2),
    (r"for reach 3, \$(.*?)\$ for reach 4", size(4, 4), 2),
    (r"and \$(.*?)\$ for reach 8, where double", size(8, 4), 2),
    (r"that is \$c=(.*?)\$ at reach 3", float(offset(3, 4, "1e-3", mpf("0.1"))), 3),
    (r"and \$(\d+)\$ at reach 8", offset(8, 4, "1e-3", 1), 3),
    (r"a slope of \$\(P-1\)\^2\$: (\d+) for \$P=8\$", (8 - 1) / (1 / (8 - 1)), 2),
]
NUMBERS = [("theory", *row) for row in THEORY] + [("limits", *row) for row in LIMITS]


@pytest.mark.parametrize("page, pattern, value, digits", NUMBERS, ids=[f"{row[0]} {row[1]}" for row in NUMBERS])
def test_number(page, pattern, value, digits):
    check(PAGES[page], pattern, value, digits)


# What is given, not computed: spacings, errors that are asked for, numbers of theorems.
GIVEN = (
    r"Theorems? 4\.\d(?: to 4\.\d)?|\\alpha=0\.01|e\^\{0\.01T_i\}|T_i\^\{1\.01\}"
    r"|(?:below|within) \$0\.1\$|down to \$0\.1\$|0\.368\$, \$0\.135"
)


@pytest.mark.parametrize("name", PAGES)
def test_every_decimal_number_is_in_the_table(name):
    patterns = [pattern for where, pattern, _, _ in NUMBERS if where == name]
    assert unaccounted(PAGES[name], patterns, GIVEN) == []


# ---------------------------------------------------------------- statements that a computation can contradict


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_derivatives_of_the_flat_top(n):
    """a:flat-derivative is attained, and each lower derivative is at most half the next."""
    found = [1, *(derivative_of_the_flat_top(n, j) for j in range(1, n + 1))]
    assert abs(found[-1] / (2**n * mpf(factorial(2 * n - 1)) / factorial(n - 1)) - 1) < 1e-12
    assert all(low <= high / 2 * (1 + 1e-12) for low, high in pairwise(found))


def test_the_flat_top_of_the_example():
    for x in np.linspace(0, 1, 11):
        assert abs(ramp(x, 2) - (1 - 3 * x**2 + 2 * x**3)) < 1e-15
    assert r"\varrho(x)=1-3x^2+2x^3" in PAGES["theory"]


def test_the_flat_top_forgives_a_quarter():
    """a:forgiving and its log counterpart, at the edge of the tolerance."""
    for n, T in product((1, 3), (1, 2, 5)):
        for g, s, side in product(range(1, T + 1), range(0, 3 * T), (-1, 0, 1)):
            assert abs(flat_top(mpf(s) - (g + mpf(side) / 4), n) - (s == g)) < 1e-12
            if s:
                distance = (T + 1) * (mpmath.log(mpf(s) / g) - mpf(side) / (4 * (T + 1)))
                assert abs(flat_top(distance, n) - (s == g)) < 1e-12


def moved(encoding, T, alpha, n):
    """The function G of the proof of a:lem-flat, in the variable u."""
    if encoding == "lin":
        return lambda u: flat_top(-mpmath.log(u) / alpha - T - mpf(1) / 4, n) / u

    def G(u):
        v = u ** (-1 / alpha)
        tau = T * mpmath.exp(1 / (4 * mpf(T + 1)))
        return v ** (1 + alpha) * flat_top((T + 1) * mpmath.log(v / tau), n)

    return G


@pytest.mark.parametrize("encoding", ["lin", "log"])
@pytest.mark.parametrize("T, n, alpha", [(1, 1, 0.3), (3, 2, 0.25), (4, 3, 0.4)])
def test_derivative_stays_below_its_bound(encoding, T, n, alpha):
    """G^(n) by numerical differentiation against the bound in the proof; within a factor of 12 of it."""
    with mpmath.workdps(40):
        a = mpf(alpha)
        G = moved(encoding, T, a, n)
        if encoding == "lin":
            lags = T + 0.25 + np.concatenate([np.linspace(-0.749, -0.251, 40), np.linspace(0.251, 0.749, 40)])
            points = [mpmath.exp(-a * mpf(v)) for v in lags]
            limit = mpmath.exp(a * (n + 1) * (T + 1)) * mpmath.fprod(k + 1 / a for k in range(1, n + 1))
        else:
            steps = np.concatenate([np.linspace(-0.749, -0.251, 40), np.linspace(0.251, 0.749, 40)]) / (T + 1)
            points = [(T * mpmath.exp(1 / (4 * mpf(T + 1)) + mpf(step))) ** -a for step in steps]
            limit = mpf(T + 1) ** ((1 + a) * (n + 1)) / a**n * mpmath.fprod((3 + k * a) / 2 for k in range(1, n + 1))
        limit *= 2**n * mpf(factorial(2 * n - 1)) / factorial(n - 1)
        found = max(abs(mpmath.diff(G, u, n, h=mpf(10) ** -14)) for u in points)
    assert limit / 12 < found <= limit


@pytest.mark.parametrize("encoding, T, H", [("lin", 2, 12), ("lin", 3, 30), ("log", 2, 40)])
def test_one_set_of_coefficients_serves_all_pointers(encoding, T, H):
    """a:flat-lin and a:flat-log with n = 1: a polynomial near G gives, shifted or scaled, a spike at every pointer."""
    with mpmath.workdps(50):
        a = mpf(1) / (T + 1)
        G = moved(encoding, T, a, 1)
        nodes = [(1 + mpmath.cos(mpmath.pi * (2 * i + 1) / (2 * H))) / 2 for i in range(H)]  # Chebyshev's
        values = [G(u) for u in nodes]
        cheb = [2 / mpf(H) * mpmath.fsum(y * mpmath.cos(mpmath.pi * k * (2 * i + 1) / (2 * H))
                                         for i, y in enumerate(values)) for k in range(H)]  # fmt: skip

        def P(u):
            theta = mpmath.acos(2 * u - 1)
            return mpmath.fsum(c * mpmath.cos(k * theta) for k, c in enumerate(cheb)) - cheb[0] / 2

        grid = [mpf(i) / 500 for i in range(1, 501)]
        sup = max(abs(G(u) - P(u)) for u in grid) * mpf("1.2")
        weight = 1 / (1 - mpmath.exp(-a)) if encoding == "lin" else mpmath.zeta(1 + a)
        worst = mpf(0)
        for g, side in product(range(1, T + 1), (-1, 0, 1)):
            error = mpf(0)
            for s in range(0 if encoding == "lin" else 1, 60):
                if encoding == "lin":
                    u = mpmath.exp(-a * (s - (g + mpf(side) / 4) + T + mpf(1) / 4))
                    phi = u * P(u)
                else:
                    tau, near = mpf(1) / (4 * mpf(T + 1)), mpf(side) / (4 * mpf(T + 1))
                    lag = T * mpmath.exp(tau) * s / (g * mpmath.exp(near))
                    phi = lag ** (-1 - a) * P(lag**-a)
                error += abs((s == g) - phi)
            worst = max(worst, error)
        assert weight * sup / 100 < worst <= weight * sup


def test_barron_norm_of_the_three_symbols():
    x = np.array([0.0, 0.5, 1.0])
    np.testing.assert_allclose(np.maximum(1.0, 0) + 2 * np.maximum(x, 0), [1, 2, 3])  # norm at most 1 + 2
    np.testing.assert_allclose(3 * np.maximum((1 + x) / 2, 0) - np.maximum((1 - x) / 2, 0), 1 + 2 * x)  # norm 3 + 1


def test_a_better_estimate_covers_five_hops():
    """Tokens with keys 0..3 as one-hot vectors: a fetched key is wrong by at most 3 times the kernel's error."""
    assert 4 * 3 * FIVE < 0.25 < 5 * 3 * FIVE and 2 * 6 * FIVE < 0.25 < 3 * 6 * FIVE


def test_a_sink_half_way_makes_the_burn_in_zero():
    """Rotary logits lowered by A (1 - gamma / 2), with a sink of logit 0: both stated bounds, and why it must be so."""
    window, F, amplitude = 65, 32, 30.0
    omega = 2 * pi * np.arange(1, F + 1) / (2 * F + 1)
    low = gamma(omega, window)
    for g, t in ((40, 30), (40, 40), (40, 64), (1, 0)):
        z = np.arange(t + 1)
        logits = amplitude * np.cos(np.outer(z - g, omega)).mean(axis=1)
        for lowered in (0.0, amplitude * (1 - low / 2)):
            raw = np.exp(logits - lowered)
            weights = raw / (1 + raw.sum())
            off = np.abs(weights - (z == g)).sum()
        half = exp(-amplitude * low / 2)
        assert off <= ((window - 1) * half if t < g else 2 * (window - 1) * half**2 + half) * (1 + 1e-9)
    raw = np.exp(amplitude * np.cos(np.outer(np.arange(31) - 40, omega)).mean(axis=1))
    assert raw.sum() / (1 + raw.sum()) > 0.9  # not lowered: a sink of logit 0 keeps almost nothing


def test_staircase_is_flat_around_every_value():
    xi, G = np.array([-2.0, -0.5, 1.0, 4.0, 5.5]), np.array([3.0, 1.0, 4.0, 1.0, 5.0])
    gap = np.diff(xi).min()
    for i, side in product(range(5), (-1, -0.3, 0, 1)):
        at = xi[i] + side * gap / 4
        brackets = np.maximum(at - xi[1:] + 0.75 * gap, 0) - np.maximum(at - xi[1:] + 0.25 * gap, 0)
        assert abs(G[0] + (2 / gap * np.diff(G) * brackets).sum() - G[i]) < 1e-12


@pytest.mark.parametrize("encoding, T, alpha", [("lin", 1, 3), ("lin", 4, 2), ("log", 3, 12), ("log", 5, 40)])
def test_interpolation_stays_below_its_bound(encoding, T, alpha):
    with mpmath.workdps(60 + 2 * alpha * T * T):
        a = mpf(alpha)
        if encoding == "lin":
            limit = mpmath.exp(-a) / (1 - mpmath.exp(-a))
            limit /= mpmath.fprod(1 - mpmath.exp(-a * j) for j in range(1, T + 1))
        else:
            limit = (mpf(T) / (T + 1)) ** a * (1 + (T + 1) / (a - 1))
            limit /= mpmath.fprod(1 - (mpf(q.numerator) / q.denominator) ** a for q in fractions(T))
        found = [kernel_error(T, encoding, alpha, g, stop=120) for g in range(1, T + 1)]
    assert limit / 3 < max(found) <= limit
    assert len(interpolating_sum(T, encoding, alpha)) == (T + 1 if encoding == "lin" else len(fractions(T)) + 1)


def test_smaller_pointers_are_fetched_better_by_log_heads():
    found = [kernel_error(3, "log", 24, g) for g in (1, 2, 3)]
    assert found[0] < found[1] < found[2]


def test_growth_of_the_number_of_fractions():
    assert abs((len(fractions(200)) + 1) / (3 * 200**2 / pi**2) - 1) < 0.01


def test_shared_heads_are_forced():
    """The coefficients that make T + 1 exponentials exactly a spike on 0..T: unique, and none is 0."""
    T = 4
    matrix = np.exp(-0.3 * np.outer(np.arange(T + 1), np.arange(1, T + 2)))
    coefficients = np.linalg.inv(matrix)  # column g: the spike at g
    assert np.abs(coefficients).min() > 1e-3


def test_a_sink_comes_close_to_no_normaliser():
    """a:sink-bound on the four heads of reach 3, at two offsets; at the larger one it is not far off."""
    with mpmath.workdps(120):
        c, alpha, T = interpolating_sum(3, "lin", 2), 2, 3
        for lowered in (35, 45):
            off = mpf(0)
            for s in range(60):
                for h, x in enumerate(c, 1):
                    raw = mpmath.exp(-alpha * h * mpf(s - T))
                    Z = mpmath.exp(alpha * h * mpf(T)) / (1 - mpmath.exp(-alpha * mpf(h)))
                    off += abs(x) * abs(raw - raw / (1 + mpmath.exp(-lowered) * Z))
            limit = mpmath.exp(-lowered) * sink_size(3, 2)
            assert off <= limit * (1 + mpf(10) ** -20)
        assert off > limit / 10


def test_single_precision_ends_before_the_offset_that_the_page_names():
    single, double = (float(np.finfo(kind).max) for kind in (np.float32, np.float64))
    assert exp(79) < single < exp(89) and single < exp(439) < double


def test_doubling_and_its_bits():
    """a:doubling with exact look-ups: every number of hops up to 2^L - 1, also past the beginning."""
    rng = np.random.default_rng(0)
    n, L = 60, 3
    p, v = rng.integers(1, 4, size=n), rng.normal(size=n)

    def fetch(slot, pointer):
        source = np.arange(n) - pointer
        return np.where(source >= 0, slot[np.maximum(source, 0)], 0)

    for k in range(2**L):
        P, V = p.copy(), v.copy()
        for bit in range(L):
            V = fetch(V, P) if k >> bit & 1 else V
            P = P + fetch(P, P)
        at = np.arange(n)
        for _ in range(k):
            at = np.where(at >= 0, at - p[np.maximum(at, 0)], at)
        np.testing.assert_array_equal(V, np.where(at >= 0, v[np.maximum(at, 0)], 0))


def test_errors_of_doubling_grow_as_stated():
    eps, P = 1e-3, 4
    e = 0.0
    for level in range(1, 8):
        e = 2 * e + eps * (2 ** (level - 1) * P + 0.25)
        assert e <= level * 2 ** (level - 1) * (P + 0.25) * eps


def test_changing_an_unread_token_changes_the_answer():
    """The adversary of a:rem-doubling, part 2."""
    k, t = 5, 9

    def answer(p, v):
        at = t
        for _ in range(k):
            at -= p[at]
        return v[at]

    p, v = [1] * (t + 1), [0] * (t + 1)
    v[t - k - 1] = 1
    assert answer(p, v) == 0
    for j in range(k + 1):
        q, w = list(p), list(v)
        if j == k:
            w[t - k] = 1
        else:
            q[t - j] = 2
        assert answer(q, w) == 1


def relu(z):
    return np.maximum(z, 0)


def test_selector_with_four_and_with_two_neurons_for_each_lag():
    """a:selector on values in [0, 1], and its error when the fetched values leave the interval."""
    rng = np.random.default_rng(1)
    for T in (1, 2, 5):
        i = np.arange(1, T + 1)
        for g in range(1, T + 1):
            x, wrong = rng.uniform(size=T), 0.1 * rng.choice([-1, 1], size=T)
            x[rng.uniform(size=T) < 0.3] = rng.choice([0.0, 1.0])
            a = g - i

            def four(x, a=a):
                return (relu(x + a) - relu(a) - relu(x + a - 1) + relu(a - 1)).sum()

            assert abs(four(x) - x[g - 1]) < 1e-12
            assert abs((relu(x + a) - relu(x + a - 1)).sum() - (g - 1) - x[g - 1]) < 1e-12
            assert abs(four(x + wrong) - x[g - 1]) <= 0.3 + 1e-12


def test_attention_alone_has_a_floor():
    """a:floor-alone: whatever the kernel, one of two pointers is missed by half the interval, at corners already."""
    rng = np.random.default_rng(2)
    corners = np.array(list(product((-1.0, 1.0), repeat=4)))
    for _ in range(300):
        k, C = rng.normal(size=4) * rng.choice([0.1, 0.5, 2]), rng.normal(size=2)
        worst = max(np.abs(C[g] + corners @ k - corners[:, g]).max() for g in (0, 1))
        assert worst >= 1 - 1e-12
    assert max(np.abs(0 - corners[:, g]).max() for g in (0, 1)) == 1


def test_rotary_logits_and_the_pointer():
    """a:rotary-bound by rotating queries and keys, full set of frequencies, at the amplitude of a:rotary-amplitude."""
    window, F, error = 17, 8, 1e-2
    omega = 2 * pi * np.arange(1, F + 1) / (2 * F + 1)
    assert abs(gamma(omega, window) - 17 / 16) < 1e-12
    amplitude = 2 / 17 * log(2 * (window - 1) / error)
    for g in range(window):
        z = np.arange(window)
        query = amplitude * np.exp(-1j * omega * g)  # (cos, -sin) as a complex number
        logits = (query * np.exp(1j * np.outer(z, omega))).real.sum(axis=1)  # against the key (1, 0)
        weights = np.exp(logits) / np.exp(logits).sum()
        assert 0.4 * error < np.abs(weights - (z == g)).sum() <= error


def test_standard_rotary_is_worst_at_the_nearest_neighbour():
    omega = 10000.0 ** (-2 * np.arange(32) / 64)
    spread = (1 - np.cos(np.arange(1, N)[:, None] * omega)).mean(axis=1)
    assert spread.argmin() == 0 and "the minimum is at $y=1$" in PAGES["theory"]


def test_a_few_random_frequencies_do():
    """a:thm-rotary, part 3: some draw of 61 frequencies has gamma at least 1/2 on 2,048 lags."""
    rng = np.random.default_rng(3)
    assert floor(8 * log(N)) + 1 == FEW
    assert max(gamma(rng.uniform(0, 2 * pi, size=FEW), N) for _ in range(20)) >= 0.5


def test_one_frequency():
    assert abs(ONE / (2 * pi**2 / N**2) - 1) < 1e-5
    assert abs(gamma([2 * pi / 50], 50) - (1 - cos(2 * pi / 50))) < 1e-12


def test_one_head_and_a_staircase_look_up_bits():
    """What bits change: the cases lie in separate intervals in the order of xi = S + 2g."""
    T, length, r = 3, 9, 0.4
    intervals = {}
    for bits in product((0, 1), repeat=length):
        S = sum(r ** (s - 1) * b for s, b in enumerate(bits, 1))
        for g in range(1, T + 1):
            low, high, _ = intervals.get((bits[:T], g), (9e9, -9e9, 0))
            intervals[bits[:T], g] = min(low, S + 2 * g), max(high, S + 2 * g), bits[g - 1]
    ordered = sorted(intervals.values())
    assert len(ordered) == T * 2**T
    assert all(one[1] < two[0] for one, two in pairwise(ordered))
