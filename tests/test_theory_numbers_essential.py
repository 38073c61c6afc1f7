"""The numbers printed on the pages of the chapter on essentially sparse memory, computed again.

As in `test_theory_numbers_fixed`: one table of patterns, values and digits shown, computed from first principles (other
formulas than the page's where there are any), and afterwards compared with memlib where memlib has them. Beyond the
numbers, the statements that a computation can contradict are tried on examples.
"""

import re
from decimal import Decimal
from functools import cache
from itertools import pairwise
from math import comb, cos, e, exp, expm1, fsum, gamma, log, pi, sqrt
from pathlib import Path

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from scipy.optimize import minimize, minimize_scalar

from memlib import bounds, sums

FOLDER = Path(__file__).resolve().parents[1] / "chapters" / "essential"
PAGES = {
    name: re.sub(r"\s+", " ", (FOLDER / f"{name}.md").read_text(encoding="utf-8")) for name in ("theory", "limits")
}


# ---------------------------------------------------------------- bounds


def jackson(n):
    return (mpmath.pi / 4) ** n * mpf(n) ** n / mpmath.factorial(n)


def light_constant(C, beta, n, alpha):
    """e:bound-light without the power of H, from its parts: Jackson, two bumps, the weight's sum."""
    alpha = mpf(alpha)
    bump = 2**n * mpmath.factorial(n) * mpmath.fprod(k + 1 / alpha for k in range(1, n + 1))
    return 2 * C * mpmath.exp(alpha * (n + 1)) * jackson(n) * bump / (1 - mpmath.exp(-alpha))


def heads_for(constant, n, error="0.1"):
    return max(n, int(mpmath.ceil((constant / mpf(error)) ** (mpf(1) / n))))


def sech_heads(n, alpha=None):
    beta = mpf(1) / 4
    return heads_for(light_constant(2, beta, n, beta / (n + 1) if alpha is None else alpha), n)


@cache
def smooth_constants(orders=6):
    """C_k of (1+s^2)^(-3/4): the largest s^(3/2) |theta^k rho| over s >= 1, as polynomials in t = s^2/(1+s^2)."""
    t, q, found = np.linspace(0.5, 1, 100_001), np.poly1d([1.0]), []
    for _ in range(orders + 1):
        found.append(float(np.abs(q(t) * t**0.75).max()))
        q = np.poly1d([-1.5, 0]) * q + np.poly1d([-2.0, 2.0, 0.0]) * q.deriv()
    return found


def smooth_bound(n, beta=1.5):
    """e:bound-smooth at the largest admissible alpha; the symmetric polynomials are a product's coefficients."""
    alpha = mpf(beta - 1) / (n + 1)
    symmetric = [mpf(1)]
    for k in range(1, n + 1):
        raised = [(1 + k * alpha) * x for x in symmetric]
        symmetric = [a + b for a, b in zip([*symmetric, 0], [0, *raised], strict=True)]
    total = sum(symmetric[n - k] * mpf(c) for k, c in enumerate(smooth_constants()[: n + 1]))
    return jackson(n) * mpmath.zeta(1 + alpha) / alpha**n * total


SMOOTH_HEADS = {n: heads_for(smooth_bound(n), n) for n in range(1, 7)}


# ---------------------------------------------------------------- the Hankel floor


@cache
def power_law_values(weighted, beta=1.5, size=200):
    """Singular values of the Hankel matrix of (1+s)^-beta: a pivoted Cholesky factor in extended precision."""
    with mpmath.workdps(40):
        scale = [mpmath.sqrt(mpmath.binomial(2 * i, i) / mpf(4) ** i) if weighted else mpf(1) for i in range(size)]
        power = [mpf(1 + s) ** -mpf(beta) for s in range(2 * size - 1)]
        left = [scale[i] ** 2 * power[2 * i] for i in range(size)]
        columns = []
        while max(left) > mpf(10) ** -30:
            p = left.index(max(left))
            root = mpmath.sqrt(left[p])
            column = [
                (scale[i] * scale[p] * power[i + p] - mpmath.fsum(c[i] * c[p] for c in columns)) / root
                for i in range(size)
            ]
            columns.append(column)
            left = [a - b * b for a, b in zip(left, column, strict=True)]
        gram = mpmath.matrix([[mpmath.fdot(a, b) for b in columns] for a in columns])
        return sorted((abs(x) for x in mpmath.eigsy(gram, eigvals_only=True)), reverse=True)


@cache
def infinite_values(beta=1.5, step=0.05):
    """The same for the infinite matrix, from the integral operator on the page, by the trapezoidal rule in log x."""
    y = np.arange(-45 / (beta - 1), 4.0, step)
    x = np.exp(y)
    w = step * np.exp(beta * y - x) / gamma(beta)
    return np.sort(np.linalg.eigvalsh(np.sqrt(np.outer(w, w)) / -np.expm1(-np.add.outer(x, x))))[::-1]


def weighted_floor(heads):
    return mpmath.sqrt(mpmath.fsum(x * x for x in power_law_values(True)[heads:]))


def plain_floor(heads, size=200):
    return mpmath.sqrt(mpmath.fsum(x * x for x in power_law_values(False)[heads:]) / size)


def hankel(values):
    size = (len(values) + 1) // 2
    return np.asarray(values, dtype=float)[np.add.outer(np.arange(size), np.arange(size))]


SECH = np.linalg.svd(hankel(1 / np.cosh(np.arange(399) / 4)), compute_uv=False)


# ---------------------------------------------------------------- quadrature


def rule_bound(heads, log_step, start, d, beta=1.5):
    """The right-hand side of e:lin-heavy."""
    h = exp(log_step)
    last = exp(min(start + heads * h, 50.0))
    if not 0 < d < pi / 2 - 1e-9 or last <= beta * 1.0001:
        return 1e9
    kappa = 2 * cos(d) ** -beta / expm1(min(2 * pi * d / h, 600.0))
    left = h / gamma(beta) * fsum(exp((beta - 1) * (start - k * h)) for k in range(1, int(80 / h)))
    right = h / gamma(beta) * last**beta * exp(-last) / ((1 - exp(-last)) * -expm1(-h * (last - beta)))
    return float(mpmath.zeta(beta)) * kappa + left + right


@cache
def best_rule(heads):
    starts = [(log(h), log(x) - heads * h, 1.3) for h in (0.4, 0.8, 1.6) for x in (4.0, 12.0)]
    options = {"maxiter": 2000, "xatol": 1e-7, "fatol": 1e-10}
    runs = [minimize(lambda z: log(rule_bound(heads, *z)), z, method="Nelder-Mead", options=options) for z in starts]
    return min(runs, key=lambda run: run.fun)


RULE = {H: exp(best_rule(H).fun) for H in (4, 8, 16, 32, 64)}


# ---------------------------------------------------------------- one head, positive heads, gains


def one_log_head(p):
    s = np.arange(1.0, 400.0)
    rho = np.exp(-s / 4)
    return 1 - (rho @ s**-p) ** 2 / (rho @ rho) / float(mpmath.zeta(2 * p))


ONE = minimize_scalar(one_log_head, bounds=(0.6, 3), method="bounded", options={"xatol": 1e-10})


def positive_floor():
    """The eps at which (rho(m) - eps)^2 = (rho(a) + eps)(rho(b) + eps) for rho = e^(-s/4), by bisection."""
    a, m, b = (exp(-s / 4) for s in (1, 4, 16))
    low, high = 0.0, m
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (m - middle) ** 2 > (a + middle) * (b + middle) else (low, middle)
    return low


def gain(t, p=1.5):
    return float(mpmath.zeta(p)) / fsum(s**-p for s in range(1, t + 1))


def cell(row, column):
    """A pattern for one cell of a table: the row by how it begins, columns counted from 1."""
    return rf"\| {row} \|(?:[^|]*\|){{{column - 1}}} ([^|]*?) \|"


HEADS = (1, 2, 4, 8, 16)
THEORY = [
    # decay alone
    (r"says \$n\\le100\\beta-1\$: (\d+) derivatives", 100 / 4 - 1, 2),
    *((cell(rf"\$n={n}\$", 1), sech_heads(n, "0.01"), digits)
      for n, digits in ((1, 6), (2, 5), (3, 4), (4, 4), (8, 4))),
    *((cell(rf"\$n={n}\$", 2), sech_heads(n), digits) for n, digits in ((1, 4), (2, 4), (3, 3), (4, 3), (8, 4))),
    (r"the exponent is \$q=(.*?)\\sqrt H\$", sqrt(2 / (e * pi * 2)), 3),
    # smooth
    (r"\$S_1=1\+\\alpha\+C_1=(.*?)\$", 1 + 0.25 + smooth_constants()[1], 3),
    (r"\$\\alpha\^\{-1\}S_1=(\d+)\$", 4 * (1.25 + smooth_constants()[1]), 2),
    (r"\$\\zeta\(1\.25\)=(.*?)\$", mpmath.zeta(mpf("1.25")), 3),
    (r"\\frac\\pi4\\cdot4\.60\\cdot11/H=(.*?)/H\$", smooth_bound(1), 3),
    (r"an error of \$0\.1\$ from (\d+) heads on\. With", SMOOTH_HEADS[1], 3),
    (r"\(\$C_2=(.*?)\$,", smooth_constants()[2], 3),
    (r"\$C_3=(.*?)\$\)", smooth_constants()[3], 4),
    (r"it takes (\d+) and 126", SMOOTH_HEADS[2], 3),
    (r"it takes 149 and (\d+),", SMOOTH_HEADS[3], 3),
    (r"for \$M=4\$ and \$n=3\$, \$(\d+)\$", 4**3, 2),
    # alternating kernels
    (r"\$H=16\$ the floor is \$(.*?)\$", 17**-0.5 / (2 * 0.5), 2),
    (r"beyond lag 16 is \$(.*?)\$\.", mpmath.zeta(mpf("1.5"), 17), 2),
    (r"takes at least (\d+) heads", 0.1**-2 - 1, 2),
    (r"error of \$0\.01\$ at least ([\d,]+),", 0.01**-2 - 1, 4),
    # Hankel
    (r"\\frac\{\\sqrt5-1\}4=(.*?)\$", np.linalg.svd(hankel([0.5, 0.5, 0]), compute_uv=False)[1], 3),
    (r"has the error \$\\sqrt2-1=(.*?)\$",
     min(0.5 * (1 - r) + 0.5 * r * r / (1 - r) for r in np.linspace(0, 0.9, 9001)), 3),
    (r"\\frac\{\\sqrt2-1\}2=(.*?)\$", np.linalg.svd(hankel([1, 0.5, 0]), compute_uv=False)[1], 3),
    *((cell(rf"\$H={H}\$", 1), power_law_values(False)[H], 2) for H in HEADS),
    *((cell(rf"\$H={H}\$", 2), infinite_values()[H], 2) for H in HEADS),
    (r"gives the floors \$(.*?)\$,", weighted_floor(1), 2),
    (r"gives the floors \$[^$]*\$, \$(.*?)\$,", weighted_floor(2), 2),
    (r"\$, \$(0\.\d+)\$ for \$\\norm", weighted_floor(4), 2),
    (r"`e:hankel-l2` gives \$(.*?)\$,", plain_floor(1), 2),
    (r"`e:hankel-l2` gives \$[^$]*\$, \$(.*?)\$,", plain_floor(2), 2),
    (r"`e:hankel-l2` gives \$[^$]*\$, \$[^$]*\$, \$(.*?)\$\.", plain_floor(4), 2),
    # quadrature
    *((cell(f"{H} heads", 1), value, 2) for H, value in RULE.items()),
    (r"with an error of (.*?) % of its total weight", 100 * RULE[16] / float(mpmath.zeta(1.5)), 2),
    # converse, one head
    (r"says \$\\eps\\ge(.*?)\$:", positive_floor(), 2),
    (r"the best exponent is \$p=(.*?)\$", ONE.x, 3),
    (r"and leaves (.*?) % of the loss", 100 * ONE.fun, 3),
]  # fmt: skip

LIMITS = [
    (r"which is \$(.*?)\$ at \$t=10\$", gain(10), 3),
    (r"\$(\d\.\d+)\$ at \$t=100\$ and", gain(100), 3),
    (r"\$(\d\.\d+)\$ at \$t=1000\$\.", gain(1000), 3),
    (r"from (\d+) heads on\. The floor", min(sech_heads(n) for n in range(1, 12)), 3),
    (r"\$\\sigma_2=(.*?)\$", SECH[1], 3),
    (r"\$\\sigma_3=(.*?)\$ at", SECH[2], 2),
]
NUMBERS = [("theory", *row) for row in THEORY] + [("limits", *row) for row in LIMITS]


def read(printed):
    r"""What a printed number says: ``5,861``, ``5.7\cdot10^{9}``, with or without dollars."""
    plain = printed.strip("$").replace("{,}", "").replace(",", "")
    return Decimal(re.sub(r"\\cdot10\^\{?(-?\d+)\}?", r"e\1", plain))


def rounded(value, digits):
    return Decimal(mpmath.nstr(mpf(value), digits, min_fixed=1, max_fixed=0))


@pytest.mark.parametrize("page, pattern, value, digits", NUMBERS, ids=[f"{row[0]} {row[1]}" for row in NUMBERS])
def test_number(page, pattern, value, digits):
    found = re.findall(pattern, PAGES[page])
    assert len(found) == 1, f"the page says this {len(found)} times"
    number = read(found[0])
    assert len(number.as_tuple().digits) == digits
    assert number == rounded(value, digits)


# What is given, not computed: spacings, errors that are asked for, exponents that are chosen.
GIVEN = (
    r"Theorem 5\.1|\\alpha=0\.01|error of \$0\.0?1\$|\\cdot4\.60\\cdot11|\\zeta\(1\.25\)|\$p=1\.5\$|\\zeta\(1\.5\)"
    r"|s\^\{-1\.5\}"
)


@pytest.mark.parametrize("name", PAGES)
def test_every_decimal_number_is_in_the_table(name):
    page = PAGES[name]
    held = [match.span(1) for where, pattern, _, _ in NUMBERS if where == name for match in re.finditer(pattern, page)]
    held += [match.span() for match in re.finditer(GIVEN, page)]
    free = [
        page[match.start() - 40 : match.end() + 10]
        for match in re.finditer(r"\d+\.\d+", page)
        if not any(low <= match.start() and match.end() <= high for low, high in held)
    ]
    assert free == []


# ---------------------------------------------------------------- memlib says the same


def test_memlib_prints_the_same_bounds():
    tail = bounds.Tail("light", 2.0, 0.25)
    for n, alpha in ((1, 0.01), (3, 0.25 / 4), (8, 0.01)):
        mine = light_constant(2, mpf(1) / 4, n, alpha)
        assert np.isclose(bounds.closed_form_tail(tail, "lin", order=n, alpha=alpha), float(mine), rtol=1e-9)
        assert bounds.tail_constant(tail, "lin", order=n, alpha=alpha) <= mine * (1 + 1e-9)
    tail = bounds.Tail("heavy", 1.0, 1.5, tuple(smooth_constants()))
    for n in range(1, 7):
        found = bounds.closed_form_tail(tail, "log", order=n, alpha=0.5 / (n + 1))
        assert np.isclose(found, float(smooth_bound(n)), rtol=1e-9)


def test_memlib_finds_the_same_floors_and_the_same_rule():
    kernel = (1 + np.arange(399.0)) ** -1.5
    for heads in (1, 2, 4, 8):
        floor = sums.hankel_floor(kernel, heads)
        assert np.isclose(floor, float(power_law_values(False)[heads]), rtol=1e-6)
    for heads, bound in RULE.items():
        assert np.isclose(sums.quadrature_sum(1.5, heads).bound, bound, rtol=1e-3)


# ---------------------------------------------------------------- statements that a computation can contradict


def test_the_derivatives_that_the_page_calls_best():
    assert min(SMOOTH_HEADS.values()) == SMOOTH_HEADS[3]
    assert min(range(1, 12), key=sech_heads) == 3
    assert min(range(1, 25), key=lambda n: sech_heads(n, "0.01")) == 8


@pytest.mark.parametrize("beta", [0.1, 0.25, 1.0, 3.0])
def test_root_exponential_bound_follows_from_the_lemma(beta):
    """e:root against the best n of e:bound-light with alpha = beta/(n+1)."""
    for H in (200, 1000, 5000):
        q = sqrt(2 * beta * H / (e * pi * (1 + beta)))
        if q < 2:
            continue
        promised = 2 * exp(beta + 2) * (1 + 1 / beta) * q * exp(-q)
        own = light_constant(1, beta, int(q) - 1, mpf(beta) / int(q)) / mpf(H) ** (int(q) - 1)
        assert own <= promised


@pytest.mark.parametrize("n, alpha, beta", [(1, 0.25, 0.6), (2, 0.1, 0.3), (3, 0.2, 0.8)])
def test_bumps_in_a_row_stay_below_their_bound_lin(n, alpha, beta):
    """|G^(n)| of e:fill by numerical differentiation, for a rough kernel with the tail e^(-beta s)."""
    signs = np.random.default_rng(0).choice([-1, 1], size=80)
    bound = 2 * exp(alpha * (n + 1)) * 2**n * gamma(n + 1) * np.prod([k + 1 / alpha for k in range(1, n + 1)])
    with mpmath.workdps(30):

        def G(u):
            s = -mpmath.log(u) / mpf(alpha)
            near = {int(mpmath.floor(s)), int(mpmath.floor(s)) + 1}
            values = (int(signs[k]) * mpmath.exp(-beta * k) * (1 - (s - k) ** 2) ** n for k in near if abs(s - k) < 1)
            return mpmath.fsum(values) / u

        found = [
            float(abs(mpmath.diff(G, mpmath.exp(-mpf(alpha) * (k + x)), n, h=mpf(10) ** -9)))
            for k in range(0, 40, 3)
            for x in (0.1, 0.5, 0.9)
        ]
    assert bound / 100 < max(found) <= bound


def test_alternating_kernels_have_bad_lags():
    """e:rough-floor: sums with the most sign changes, zeros where they hurt most, stay above the floor."""
    rng = np.random.default_rng(1)
    s = np.arange(1, 4001)
    for beta, H in ((1.5, 1), (1.5, 3), (2.0, 4), (3.0, 2)):
        rho = (-1.0) ** s * s**-beta
        floor = float(mpf(2) ** -mpf(beta) * mpmath.zeta(beta, mpf(H + 1) / 2))
        tail = float(mpmath.zeta(beta, H + 1))
        assert floor >= tail / 2
        for _ in range(20):
            p = np.sort(rng.uniform(0.5, 12, size=H))
            columns = s[:, None] ** -p
            c = np.linalg.lstsq(columns[:H], rho[:H], rcond=None)[0]  # interpolates on the first H lags
            beyond = float(mpmath.zeta(beta, 4001))
            assert np.abs(rho - columns @ c).sum() + beyond >= floor
        # and the least error is near the tail: steep powers, exact on the first lags
        p = 40.0 * np.arange(1, H + 1)
        with mpmath.workdps(200):
            matrix = mpmath.matrix([[mpf(int(t)) ** -q for q in p] for t in s[:H]])
            exact = mpmath.lu_solve(matrix, mpmath.matrix(rho[:H].tolist()))
            far = [float(sum(exact[h] * mpf(int(t)) ** -q for h, q in enumerate(p))) for t in s[H : H + 40]]
        assert np.abs(rho[H : H + 40] - far).sum() <= tail * 1.1


def test_the_floor_rises_and_holds_for_recurrences():
    rng = np.random.default_rng(2)
    rho = (1 + np.arange(121.0)) ** -1.5
    floors = [np.linalg.svd(hankel(rho[: 2 * N - 1]), compute_uv=False)[3] for N in (4, 8, 20, 60)]
    assert all(a < b for a, b in pairwise(floors))
    for _ in range(20):
        A = rng.normal(size=(3, 3))
        A *= 0.95 / np.abs(np.linalg.eigvals(A)).max()
        states, phi = rng.normal(size=3), []
        reader = rng.normal(size=3)
        for _ in rho:
            phi.append(reader @ states)
            states = A @ states
        phi = np.array(phi) * (rho @ phi) / (np.array(phi) @ phi)
        error = rho - phi
        assert np.abs(error).sum() >= floors[-1]
        assert np.linalg.matrix_rank(hankel(phi), tol=1e-9) <= 3


def test_weights_of_the_second_floor_convolve_to_one():
    """e:hankel-weighted: the squares of the weights, convolved, are 1 up to N - 1 and at most 1 beyond."""
    N = 40
    squares = np.array([comb(2 * i, i) / 4.0**i for i in range(N)])
    products = np.convolve(squares, squares)
    assert np.allclose(products[:N], 1) and (products[N:] < 1).all()
    rho = (1 + np.arange(2 * N - 1.0)) ** -1.5
    scaled = np.sqrt(np.outer(squares, squares)) * hankel(rho)
    values = np.linalg.svd(scaled, compute_uv=False)
    plain = np.linalg.svd(hankel(rho), compute_uv=False)
    for heads in (1, 2, 4):
        found = sums.best_sum(rho, heads, "lin", norm="l2").error
        floor = sqrt((values[heads:] ** 2).sum())
        assert sqrt((plain[heads:] ** 2).sum() / N) < floor <= found < 8 * floor


@pytest.mark.parametrize("beta", [1.2, 1.5, 3.0])
def test_quadrature_terms(beta):
    """e:lin-heavy: Poisson's formula on one case, the three terms against what they bound, positive weights."""
    h, start, H, d = 0.9, -9.0, 14, 1.3
    y = start + h * np.arange(-400, H + 60)
    x = np.exp(np.minimum(y, 6.5))
    c = h / gamma(beta) * np.exp(beta * y - x) * (y < 6.5)
    s = np.arange(3000)
    kernel = np.exp(-np.outer(s, x)) @ c
    kappa = 2 * cos(d) ** -beta / expm1(2 * pi * d / h)
    relative = np.abs(kernel * (1.0 + s) ** beta - 1)
    exact = 2 * fsum(abs(complex(mpmath.gamma(mpmath.mpc(beta, 2 * pi * m / h)))) for m in range(1, 6)) / gamma(beta)
    assert relative.max() <= exact * (1 + 1e-6) + 1e-11 and exact <= kappa
    left, right = slice(0, 400), slice(400 + H, None)
    assert (c[left] / np.expm1(x[left]) * np.exp(x[left])).sum() <= (
        h / gamma(beta) * exp((beta - 1) * (start - h)) / -expm1(-(beta - 1) * h)
    )
    last = exp(start + H * h)
    ends = h / gamma(beta) * last**beta * exp(-last) / ((1 - exp(-last)) * -expm1(-h * (last - beta)))
    assert (c[right] / -np.expm1(-x[right])).sum() <= ends
    kept = c[400 : 400 + H]
    assert (kept > 0).all() and kept.sum() <= 1 + kappa


def test_exponents_above_and_below():
    """Widom's exponent fits the computed values: log of their ratio changes slowly with H."""
    for beta in (1.5, 2.0, 3.0):
        values = infinite_values(beta, 0.05 if beta < 2 else 0.02)
        ratio = [log(values[H]) + pi * sqrt(2 * (beta - 1) * H) for H in (6, 9, 12)]
        assert max(ratio) - min(ratio) < 0.5
        slow = [log(values[H]) + pi * sqrt((beta - 1) * H) for H in (6, 9, 12)]
        assert max(slow) - min(slow) > 0.7


def test_hankel_norms_and_l1():
    rng = np.random.default_rng(3)
    for _ in range(20):
        error = rng.normal(size=41) * 0.8 ** np.arange(41)
        values = np.linalg.svd(hankel(error), compute_uv=False)
        assert values[0] <= np.abs(error).sum() <= 2 * values.sum()


def test_mixtures_stay_mixtures():
    """e:prop-relaxation with a discrete measure: compressions have positive weights and rates in [0, 1]."""
    rng = np.random.default_rng(4)
    r, weight = rng.uniform(0, 1, size=30), rng.uniform(0, 1, size=30)
    b = np.sqrt(weight)
    gramian = np.outer(b, b) / (1 - np.outer(r, r))
    basis = np.linalg.eigh(gramian)[1][:, -3:]
    rates, vectors = np.linalg.eigh(basis.T @ np.diag(r) @ basis)
    c = (vectors.T @ basis.T @ b) ** 2
    assert (rates >= 0).all() and (rates <= 1).all() and c.sum() <= weight.sum()
    s = np.arange(2000)
    error = (weight * r ** s[:, None]).sum(1) - (c * rates ** s[:, None]).sum(1)
    values = np.sort(np.linalg.eigvalsh(gramian))[::-1]
    largest = np.abs(np.exp(-1j * np.outer(np.linspace(0, pi, 2001), s)) @ error).max()
    assert values[3] <= largest <= np.abs(error).sum()
    assert largest <= 2 * values[3:].sum()  # balanced truncation: gain over all frequencies


def test_population_loss_by_simulation():
    """e:population-mean for tokens of mean 0.3, and e:varpro against the normal equations with closed-form Gram."""
    rng = np.random.default_rng(5)
    gap, bias, mean, sd = np.array([0.5, -0.2, 0.1, 0.3]), 0.15, 0.3, 0.7
    x = mean + sd * rng.choice([-1.0, 1.0], size=(400_000, 4))
    expected = sd**2 * (gap @ gap) + (mean * gap.sum() - bias) ** 2
    assert np.isclose(((x @ gap - bias) ** 2).mean(), expected, rtol=2e-2)
    s, p = np.arange(1, 3000.0), np.array([2.2, 3.5])
    rho = 1 / (1 + s * s)
    columns = s[:, None] ** -p
    g = columns.T @ rho
    M = np.array([[float(mpmath.zeta(a + b)) for b in p] for a in p])
    left = np.linalg.lstsq(columns, rho, rcond=None)[1][0]
    assert np.isclose(rho @ rho - g @ np.linalg.solve(M, g), left, rtol=1e-6)


def test_the_running_normaliser_moves_a_kernel_by_its_tail():
    """e:running: equality for one head, an inequality for two."""
    s = np.arange(1, 200_000.0)
    kernels = [s**-2.5, s**-3.0]
    totals = [float(mpmath.zeta(p)) for p in (2.5, 3.0)]
    t = 12
    seen = [k[:t].sum() for k in kernels]
    one = np.abs(kernels[0][:t] * (totals[0] / seen[0] - 1)).sum()
    assert np.isclose(one, totals[0] - seen[0])
    both = kernels[0][:t] * (totals[0] / seen[0] - 1) * 2 - kernels[1][:t] * (totals[1] / seen[1] - 1) * 3
    assert np.abs(both).sum() <= 2 * (totals[0] - seen[0]) + 3 * (totals[1] - seen[1])
