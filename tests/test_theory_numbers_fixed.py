"""The numbers printed on the pages of the chapter on fixed memory, computed again from first principles.

As in `test_theory_numbers`: one table of patterns, values and digits shown; nothing of memlib is used, and searches,
quadrature, explicit sums and explicit coefficients take the place of the pages' closed forms where they can. Beyond the
numbers, the statements that a computation can contradict are tried on examples.
"""

import re
from fractions import Fraction
from itertools import count, product
from math import ceil, comb, exp, fsum, log, pi, prod, sqrt

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from tests.printed_numbers import check, page_of, rounded, unaccounted

PAGES = {name: page_of(f"fixed/{name}") for name in ("theory", "limits")}


# ---------------------------------------------------------------- Lemma 1, Theorem 1


def constant(encoding, n, alpha):
    """K_n of x:jackson-lin and x:jackson-log: Jackson's constant, the bump's top derivative, the weight's sum."""
    alpha = mpf(alpha)
    jackson = (mpmath.pi / 4) ** n * mpf(n) ** n / mpmath.factorial(n)
    top = 2**n * mpmath.factorial(n)
    if encoding == "lin":
        return jackson * top * mpmath.fprod(k + 1 / alpha for k in range(1, n + 1)) / (1 - mpmath.exp(-alpha))
    rest = mpmath.fprod((3 + k * alpha) / 2 for k in range(1, n + 1))
    return jackson * top * mpmath.zeta(1 + alpha) / alpha**n * rest


def lin_bound(T, n, alpha):
    """The constant of x:jackson-lin times the base to the power n + 1."""
    return constant("lin", n, alpha) * mpmath.exp(mpf(alpha) * (n + 1) * (T + 1))


def heads_for(T, alpha, error, orders=range(1, 15)):
    """The least number of heads for which the bound promises the error, and the order with which it does."""
    return min((max(n, int(mpmath.ceil((lin_bound(T, n, alpha) / error) ** (mpf(1) / n)))), n) for n in orders)


def tent_constant(T, alpha):
    """pi/4 times the steepest chord of tent(s - T)/u in u = e^(-alpha s), times the sum of e^(-alpha s)."""
    s = np.linspace(T - 1, T + 1, 400_001)
    u = np.exp(-alpha * s)
    steepest = np.abs(np.diff(np.maximum(0, 1 - np.abs(s - T)) / u) / np.diff(u)).max()
    return pi / 4 * steepest * fsum(np.exp(-alpha * np.arange(50 / alpha)))


PARITY = [exp(0.01 * (t + 1)) for t in (1, 5, 12)]


# ---------------------------------------------------------------- interpolating sums and their price


def interpolating_sum(T, encoding, alpha):
    """The l1 error beyond lag T and the sum of |coefficients|, from the coefficients (in u, lowest power first)."""
    with mpmath.workdps(60 + int(alpha * T * T)):
        u = (lambda s: mpmath.exp(-mpf(alpha) * s)) if encoding == "lin" else (lambda s: mpf(s) ** -alpha)
        first = 0 if encoding == "lin" else 1
        c = [mpf(0), 1 / u(T)]
        for j in range(first, T):
            lower, raised = [-u(j) * x for x in [*c, 0]], [0, *c]
            c = [(a + b) / (u(T) - u(j)) for a, b in zip(lower, raised, strict=True)]

        def value(s):
            return mpmath.polyval(c[::-1], u(s))

        assert len(c) == T + 2 - first and c[0] == 0  # T + 1 exponentials, T powers
        assert all(abs(value(s) - (s == T)) < 1e-30 for s in range(first, T + 1))
        stop = T + 60 if encoding == "lin" else 40 * T
        return sum(abs(value(s)) for s in range(T + 1, stop)), sum(abs(x) for x in c)


def chebyshev(q):
    """The absolute values of the coefficients of Chebyshev's polynomial on [0, 1], from its three-term recurrence."""
    previous, current = [1], [1, -2]
    for _ in range(q):
        doubled = [2 * a - 4 * b for a, b in zip([*current, 0], [0, *current], strict=True)]
        following = [a - b for a, b in zip(doubled, [*previous, 0, 0], strict=True)]
        previous, current = current, following
    return [abs(a) for a in previous]


def own_degree(T):
    """The largest q for which coefficient T is a largest one."""
    return max(q for q in range(T, 3 * T + 3) if max(chebyshev(q)) == chebyshev(q)[T])


def best_floor(T, error):
    """The right-hand side of x:price with the best q."""
    return max(a[T] - error * max(a) for a in map(chebyshev, range(T, 4 * T + 8)))


def mixed_floor(T):
    """The largest coefficient at T of a mixture of neighbouring degrees in which no other coefficient is larger."""
    best = Fraction(0)
    for q in range(T, 2 * T + 3):
        one, two = [*chebyshev(q), 0], chebyshev(q + 1)
        leads = [(one[T] - a, two[T] - b) for a, b in zip(one, two, strict=True)]  # of coefficient T, in each
        shares = [0, 1, *(Fraction(a, a - b) for a, b in leads if a * b < 0)]
        for share in shares:
            if all((1 - share) * a + share * b >= 0 for a, b in leads):
                best = max(best, (1 - share) * one[T] + share * two[T])
    return float(best)


LAGS = [1, 2, 4, 8, 16]
PAID = {T: interpolating_sum(T, "lin", 4) for T in (1, 2, 3, 4, 8, 16)}
OWN = {T: max(chebyshev(own_degree(T))) for T in (*LAGS, 64)}
CIRCLE = (1e-3 / (1 + 1e-3)) ** (-64 / 65)  # rho^-T from error = rho^(T+1) / (1 - rho^(T+1))


def ridge_sum(M):
    """What the ReLU form of the parity of M signs costs."""
    inner = range(2 - M, M - 1, 2)
    return 2 * M + 1 + sum(2 * (M + abs(c)) for c in inner)


def bucket(z):
    """T5's bucket of a lag."""
    return z if z < 16 else min(31, 16 + int(16 * log(z / 16) / log(8) + 1e-12))


# ---------------------------------------------------------------- the table


def cell(row, column):
    """A pattern for one cell of a table: the row by how it begins, columns counted from 1."""
    return rf"\| {row} \|(?:[^|]*\|){{{column - 1}}} ([^|]*?) \|"


THEORY = [
    # examples
    (r"\\le6\+8\+8\+1=(\d+)\$", ridge_sum(3), 2),
    (r"\(1,-6,8\)\$, with \$1\+36\+64=(\d+)\$", sum(c * c for c in np.poly([0.5, 0.25]) * 8), 3),
    (r"\$8-27\+25\.25-6\.75\+0\.5=(\d)\$", 8 - 54 / 2 + 101 / 4 - 54 / 8 + 8 / 16, 1),
    # Lemma 1
    *((cell(rf"{name}, \$\\alpha=0\.01\$", n), constant(name, n, "0.01"), 2)
      for name, n in product(("lin", "log"), (1, 2, 3))),
    (r"from \$H=(\S*?)\$ heads on with one", heads_for(4, "0.01", 0.1, [1])[0], 6),
    (r"and from ([\d,]+) on with seven, the best choice", heads_for(4, "0.01", 0.1)[0], 4),
    (r"takes the first number to ([\d,]+)\.", ceil(tent_constant(4, 0.01) / 0.1), 5),
    *((cell(r"\$\\alpha=0\.01\$", i), heads_for(T, "0.01", 0.1)[0], digits)
      for i, (T, digits) in enumerate([(4, 4), (16, 4), (64, 4), (256, 5)], 1)),
    *((cell(r"\$\\alpha=\\frac1\{T\+1\}\$", i), heads_for(T, mpf(1) / (T + 1), 0.1)[0], digits)
      for i, (T, digits) in enumerate([(4, 3), (16, 4), (64, 4), (256, 5)], 1)),
    (r"only from (\d+) heads on, whatever", heads_for(4, mpf(1) / 5, 1)[0], 3),
    # Theorem 1
    (r"\$\\sum_iA_i=(.*?)\$", sum(PARITY), 3),
    (r"\$\(\\sum_iA_i\)\^2=(.*?)\$", sum(PARITY) ** 2, 3),
    (r"\$\\sum_iA_i\^2=(.*?)\$", sum(a * a for a in PARITY), 3),
    # the transition
    (r"has the error \$(.*?)\$ for each of \$T=3\$, 8, 16", PAID[3][0], 3),
    (r"8, 16, and \$(.*?)\$ at \$\\alpha=8\$", interpolating_sum(3, "lin", 8)[0], 2),
    (r"three heads with \$\\alpha=24\$ the error is \$(.*?)\$", interpolating_sum(3, "log", 24)[0], 2),
    (r"are \$0\$, \$1\$, \$(.*?)\$, ", 4 / 3 - 4 / 9, 3),
    (r"\$0\$, \$1\$, \$.*?\$, \$(.*?)\$,", 4 / 4 - 4 / 16, 2),
    (r"\$0\.75\$, \$(.*?)\$, and indeed", 4 / 5 - 4 / 25, 2),
    # bits
    (r"this is between (\d) and", 2**3 - 2, 1),
    (r"this is between \d and (\d+) neurons", 2 ** (3 + 1) - 2, 2),
    (r"At \$T=16\$ it is at least ([\d,]+),", 2**16 - 2, 5),
    (r"the smallest gap is \$2\^\{-(\d+)\}\$ or less", 17 - 2, 2),
    # the price
    *((cell(rf"\| {T}", 1), comb(2 * T, T), digits) for T, digits in zip(LAGS, (1, 1, 2, 5, 2), strict=True)),
    *((cell(rf"\| {T}", 2), own_degree(T), digits) for T, digits in zip(LAGS, (1, 1, 1, 2, 2), strict=True)),
    *((cell(rf"\| {T}", 3), OWN[T], digits) for T, digits in zip(LAGS, (1, 2, 4, 2, 2), strict=True)),
    *((cell(rf"\| {T}", 4), best_floor(T, 0.1), digits) for T, digits in zip(LAGS, (2, 3, 2, 2, 2), strict=True)),
    *((cell(rf"\| {T}", 5), PAID[T][1], digits) for T, digits in zip(LAGS, (3, 2, 2, 2, 2), strict=True)),
    (r"where the error is (0\.\d+)\.\)", PAID[4][0], 2),
    (r"raises 6,912 to ([\d,]+)\.", mixed_floor(4), 4),
    (r"that is about \$(.*?)\^T\$", (3 + 2 * sqrt(2)) ** sqrt(2), 3),
    (r"The unit roundoff is \$(.*?)\$", 2.0**-53, 2),
    (r"\\abs\{c_h\}\\cdot(\S*?)\$", 2.0**-53, 2),
    (r"this is \$(.*?)\$ at \$T=16\$", OWN[16] * 2.0**-53, 2),
    (r"\$T=16\$, and \$(.*?)\$ at \$T=8\$", OWN[8] * 2.0**-53, 2),
    (r"In single precision, \$(.*?)\$", 2.0**-24, 2),
    (r"it is \$(.*?)\$ already at \$T=8\$", OWN[8] * 2.0**-24, 2),
    (r"\$q=6\$ gives \$(.*?)\$", max((a[4] - 1000) / max(a) for a in map(chebyshev, range(4, 30))), 3),
    (r"1001\^\{64/65\}=(\d+)\$", CIRCLE, 3),
    (r"where real rates need at least \$(.*?)\$", OWN[64], 2),
]  # fmt: skip

LIMITS = [
    (r"leaves at most \$(.*?)\$ under softmax", 2 * 1023 / exp(16), 2),
    (r"all lags from (\d+) on share", next(z for z in count() if bucket(z) == 31), 3),
    (r"of lag 16 also holds lag 17 and (\d+)", max(z for z in range(16, 64) if bucket(z) == bucket(16)), 2),
    (r"\$1-r\^8\(1-r\^2\)=(.*?)\$", 1 - max(x**4 * (1 - x) for x in np.linspace(0, 1, 10_001)), 3),
    (r"costs about \$(\d)M\^2\$", ridge_sum(1001) / 1001**2, 1),
]
NUMBERS = [("theory", *row) for row in THEORY] + [("limits", *row) for row in LIMITS]


@pytest.mark.parametrize("page, pattern, value, digits", NUMBERS, ids=[f"{row[0]} {row[1]}" for row in NUMBERS])
def test_number(page, pattern, value, digits):
    check(PAGES[page], pattern, value, digits)


# What is given, not computed: spacings, errors that are asked for, decimals within sums that are checked as a whole.
GIVEN = (
    r"Theorem 3\.1|\\alpha=0\.01|e\^\{0\.01t_i\}|t_i\^\{1\.01\}|\\eps=0\.1\$|(?:below|within) \$0\.1\$|down to \$0\.1\$"
    r"|25\.25-6\.75\+0\.5=|\$0\.889\\le0\+1\+0\.75\+0\.64\$"
)


@pytest.mark.parametrize("name", PAGES)
def test_every_decimal_number_is_in_the_table(name):
    patterns = [pattern for where, pattern, _, _ in NUMBERS if where == name]
    assert unaccounted(PAGES[name], patterns, GIVEN) == []


# ---------------------------------------------------------------- statements that a computation can contradict


def test_the_number_of_derivatives_that_the_page_calls_best():
    assert heads_for(4, "0.01", 0.1)[1] == 7


def test_what_pointing_eight_and_sixteen_steps_back_costs():
    """With a residual the floor is that of one lag less."""
    stated = re.search(r"add up to more than \$10\^(\d)\$, even with the residual", PAGES["theory"])
    assert 10 ** int(stated[1]) < best_floor(8 - 1, 0.1) < 10 ** (int(stated[1]) + 1)
    assert best_floor(16 - 1, 0.1) * 2.0**-53 > 1


def test_the_error_of_interpolation_is_the_same_at_three_lags():
    assert len({rounded(PAID[T][0], 3) for T in (3, 8, 16)}) == 1


def test_parity_by_three_neurons():
    for signs in product((-1, 1), repeat=3):
        S = sum(signs)
        value = max(S + 3, 0) - 2 * max(S + 1, 0) + 2 * max(S - 1, 0) - 1
        assert value == prod(signs)


def test_certificate_by_hand():
    """Autocorrelation of the polynomial's coefficients, orthogonal to both kernels."""
    v = np.poly([0.5, 0.25])
    zeta = np.correlate(v, v, "full") / (v @ v)
    assert r"\zeta=\tfrac1{101}(8,-54,101,-54,8)." in PAGES["theory"]
    np.testing.assert_allclose(zeta * 101, [8, -54, 101, -54, 8], atol=1e-12)
    for r in (0.5, 0.25):
        assert abs(zeta @ r ** np.arange(5)) < 1e-15


@pytest.mark.parametrize("T, n, alpha", [(1, 1, 0.3), (3, 2, 0.5), (4, 3, 0.4), (2, 1, 2.0)])
def test_log_derivative_stays_below_its_bound(T, n, alpha):
    """G^(n) of Lemma 1 by numerical differentiation, against the bound in the proof; within a factor of 10 of it."""
    with mpmath.workdps(40):

        def G(u):
            s = u ** (-1 / mpf(alpha))
            z = (T + 1) * mpmath.log(s / T)
            return s ** (1 + mpf(alpha)) * (1 - z * z) ** n if abs(z) < 1 else mpf(0)

        lags = T * np.exp(np.linspace(-0.999, 0.999, 101) / (T + 1))
        found = max(abs(mpmath.diff(G, mpf(s) ** -mpf(alpha), n, h=mpf(10) ** -12)) for s in lags)
    bound = 2**n * mpmath.factorial(n) / mpf(alpha) ** n * mpf(T + 1) ** (1 + (n + 1) * alpha)
    bound *= mpmath.fprod(T + 2 + k * alpha for k in range(1, n + 1))
    assert bound / 10 < found <= bound


def test_shares_proportional_to_the_bases_are_best():
    """x:holder: no other split of the heads does better, and the best is the power of the sum."""
    rng = np.random.default_rng(0)
    for n in (1, 2, 3):
        A, H = np.array(PARITY) ** 3, 60.0
        least = (A ** (n + 1) / (H * A / A.sum()) ** n).sum()
        assert np.isclose(least, A.sum() ** (n + 1) / H**n)
        for share in rng.dirichlet(np.ones(3), size=200):
            assert (A ** (n + 1) / (H * share) ** n).sum() >= least * (1 - 1e-12)


def test_whole_heads_cost_at_most_a_factor_e():
    for n in range(1, 9):
        shares = np.linspace(n, n + 40, 4001)
        assert ((shares / np.floor(shares)) ** n).max() <= (1 + 1 / n) ** n < exp(1)


def power_sum(exponents, zeros, T, base=mpf):
    """A sum of powers of base(s) with the given exponents and zeros (one fewer) that is 1 at T."""
    points = [*zeros, T]
    matrix = mpmath.matrix([[base(s) ** -mpf(p) for p in exponents] for s in points])
    c = mpmath.lu_solve(matrix, mpmath.matrix([*[0] * len(zeros), 1]))
    return lambda s: mpmath.fsum(c[h] * base(s) ** -mpf(p) for h, p in enumerate(exponents))


def test_a_power_sum_is_dominated_by_its_neighbours():
    """x:dominated on sums made to oppose it: zeros at all nearest lags but those that are left over."""
    rng = np.random.default_rng(1)
    with mpmath.workdps(80):
        for T in range(2, 8):
            for H in range(1, T):
                lags = [s for s in range(T - H, T + H + 1) if s != T]
                for _ in range(8):
                    zeros = rng.choice(lags, size=H - 1, replace=False).tolist()
                    phi = power_sum(np.sort(rng.uniform(0.05, 9, size=H)).tolist(), zeros, T)
                    assert abs(phi(T)) < sum(abs(phi(s)) for s in lags)


def test_the_domination_fails_with_one_head_more():
    with mpmath.workdps(80):
        phi = power_sum([24, 48, 72], [1, 2], 3)
        assert abs(phi(3)) > 100 * sum(abs(phi(s)) for s in range(4, 60))


def kerple(s):
    return 1 + mpf("0.7") * s


def test_kerple_with_a_common_scale_counts_like_lin():
    """x:rem-kerple: dominated up to T heads, lag 0 included, and no longer with T + 1."""
    rng = np.random.default_rng(3)
    with mpmath.workdps(80):
        for T in range(1, 6):
            for H in range(1, T + 1):
                lags = [s for s in range(T - H, T + H + 1) if s != T]
                zeros = rng.choice(lags, size=H - 1, replace=False).tolist()
                phi = power_sum(np.sort(rng.uniform(0.05, 9, size=H)).tolist(), zeros, T, kerple)
                assert abs(phi(T)) < sum(abs(phi(s)) for s in lags)
        phi = power_sum([60, 120, 180, 240], [0, 1, 2], 3, kerple)
        assert abs(phi(3)) > 1000 * sum(abs(phi(s)) for s in range(4, 60))


@pytest.mark.parametrize("encoding", ["lin", "log"])
def test_the_same_heads_fetch_all_lags(encoding):
    """x:interpolating-all: T = 4, the error of every slot falls as alpha grows."""
    u = (lambda s, a: mpmath.exp(-a * s)) if encoding == "lin" else (lambda s, a: mpf(s) ** -a)

    def error(i, a):
        def kernel(s):
            factors = ((u(s, a) - u(j, a)) / (u(i, a) - u(j, a)) for j in range(1, 5) if j != i)
            return u(s, a) / u(i, a) * mpmath.fprod(factors)

        return sum(abs(kernel(s)) for s in range(5, 100))

    with mpmath.workdps(60):
        assert all(error(i, 40) < 1e-3 and error(i, 40) < error(i, 4) for i in range(1, 5))
        assert error(4, 4) > 1e-2


def test_a_recurrence_forgets_its_certificate():
    """x:thm-recurrence: a defective matrix with complex and zero eigenvalues, five states, lag seven."""
    A = np.zeros((5, 5))
    A[:2, :2] = [[0.3, -0.8], [0.8, 0.3]]
    A[2:4, 2:4] = [[0.5, 1.0], [0.0, 0.5]]
    mix = np.random.default_rng(2).normal(size=(5, 5))
    A = mix @ A @ np.linalg.inv(mix)
    v = np.poly(A)
    zeta = np.correlate(v, v, "full") / (v @ v)  # on the lags 2..12
    assert np.isclose(zeta[5], 1) and np.abs(zeta).max() <= 1 + 1e-12
    state, size = np.zeros(5), 0.0
    for s, z in zip(range(2, 13), zeta, strict=True):
        term = z * np.linalg.matrix_power(A, s - 1) @ np.ones(5)
        state, size = state + term, max(size, np.abs(term).max())
    assert np.abs(state).max() < 1e-12 * size


def test_circle_of_complex_rates():
    T, rho = 6, 0.7
    h = np.arange(T + 1)
    c = rho**-T / (T + 1) * np.exp(-2j * pi * h * T / (T + 1))
    kernel = (c * (rho * np.exp(2j * pi * h / (T + 1))) ** np.arange(400)[:, None]).sum(axis=1)
    kernel[T] -= 1
    assert np.isclose(np.abs(kernel).sum(), rho ** (T + 1) / (1 - rho ** (T + 1)))
    assert np.isclose(np.abs(c).sum(), rho**-T)


def test_degree_of_the_price():
    """x:lem-chebyshev: the page's closed form is the largest degree whose largest coefficient stands at T."""
    for T in range(1, 40):
        assert own_degree(T) == int(sqrt(2 * T * T + 1.5 * T + 0.5))


@pytest.mark.parametrize("p", [0.05, 1, 2.5, 12, 60])
def test_a_power_meets_the_shifted_certificate_like_a_rate(p):
    """The end of the proof of x:thm-price, part 1: lags from 1 on, so that T - 1 takes the place of T."""
    with mpmath.workdps(60):
        for q in (1, 4, 9, 20):
            zeta = [(-1) ** k * a for k, a in enumerate(chebyshev(q))]
            assert abs(mpmath.fsum(z * mpf(s) ** -mpf(p) for s, z in enumerate(zeta, 1))) <= 1


@pytest.mark.parametrize("r", [0.5, 0.3])
@pytest.mark.parametrize("T", [1, 2, 3])
def test_neurons_that_decode_bits(r, T):
    """x:thm-bits: the network of part 2 is exact, and for the windows of part 3 alone 2^T - 2 kinks are enough."""
    pasts = np.array(list(product((0, 1), repeat=7)))  # lag 1 first
    S, group = pasts @ r ** np.arange(7), pasts[:, :T] @ 2 ** np.arange(T)[::-1]
    neurons = []
    for g in range(2**T - 1):
        end, start = S[group == g].max(), S[group == g + 1].min()
        slope = (-1) ** g / (start - end)
        neurons += [(slope, end), (-slope, start)]
    assert len(neurons) == 2 ** (T + 1) - 2
    np.testing.assert_allclose(sum(a * np.maximum(S - b, 0) for a, b in neurons), pasts[:, T - 1], atol=1e-12)
    points = np.array(list(product((0, 1), repeat=T))) @ r ** np.arange(T)
    slopes = np.diff(np.arange(2**T) % 2) / np.diff(points)
    assert np.count_nonzero(np.diff(slopes)) == 2**T - 2


@pytest.mark.parametrize("r", [0.5, 0.3])
def test_one_head_orders_all_windows_of_bits(r):
    """x:thm-bits: groups of values in lexicographic order, separated as the page says."""
    T, N = 4, 10
    pasts = np.array(list(product((0, 1), repeat=N - 1)))  # lag 1 first
    S = pasts @ r ** np.arange(N - 1)
    group = pasts[:, :T] @ 2 ** np.arange(T)[::-1]
    low = np.array([S[group == g].min() for g in range(2**T)])
    high = np.array([S[group == g].max() for g in range(2**T)])
    gap = 2.0 ** (2 - N) if r == 0.5 else r ** (T - 1) * (1 - 2 * r) / (1 - r)
    assert (low[1:] - high[:-1] >= gap - 1e-15).all()
    assert [int(g) % 2 for g in range(2**T)] == [0, 1] * 2 ** (T - 1)


def test_a_head_with_free_biases_points():
    """x:pointing against the kernel error itself, at every position."""
    N, T, gap = 64, 9, 5.0
    for t in range(T, N):
        weights = np.ones(t + 1)
        weights[T] = exp(gap)
        weights /= weights.sum()
        weights[T] -= 1
        assert np.abs(weights).sum() <= 2 * (N - 1) * exp(-gap)
