"""The bounds of the chapter on fixed memory as numbers: against the printed ones, against grids, against real sums."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog

from memlib import bounds, sums

each_encoding = pytest.mark.parametrize("encoding", ["lin", "log"])
each_order = pytest.mark.parametrize("order", [1, 2, 3])


# ---------------------------------------------------------------- the bump


@pytest.mark.parametrize("order", [1, 2, 3, 4, 6])
def test_the_bump_is_one_at_zero_and_fades_smoothly(order):
    chi = bounds.least_bump(order)
    z = np.linspace(-1.5, 1.5, 3001)
    assert chi(0.0) == pytest.approx(1, abs=1e-12)
    assert np.abs(chi(z[np.abs(z) >= 1])).max() < 1e-12
    assert np.allclose(chi(z), chi(-z), atol=1e-12)
    for k in range(order):  # derivatives 0..n-1 are continuous at every knot and vanish at the ends
        left = [0.0, *(float(p.deriv(k)(z)) for p, z in zip(chi.pieces, chi.knots[1:], strict=True))]
        right = [*(float(p.deriv(k)(z)) for p, z in zip(chi.pieces, chi.knots[:-1], strict=True)), 0.0]
        assert np.allclose(left, right, atol=1e-9 * chi.height), k
    heights = [abs(float(p.deriv(order)(0.3))) for p in chi.pieces]
    assert heights == pytest.approx([chi.height] * len(heights))


def test_the_bump_has_a_smaller_derivative_than_the_powers_of_one_minus_z_squared():
    assert bounds.least_bump(1).height == pytest.approx(1)
    assert bounds.least_bump(2).height == pytest.approx(4)
    assert bounds.least_bump(3).height == pytest.approx(6 / (1 - math.sqrt(0.5)))
    for order, other in ((2, 8.0), (3, 48.0)):  # the largest n-th derivative of (1 - z^2)^n is at z = 1
        assert bounds.least_bump(order).height < other / 1.9


@each_order
def test_no_bump_has_a_smaller_derivative(order):
    """The least maximum of the n-th derivative, as a linear programme over piecewise constant derivatives."""
    cells = 400
    edges = np.linspace(-1, 1, cells + 1)

    def moment(function):  # the integral of a polynomial over each cell
        return np.diff(function.integ()(edges))

    z = np.polynomial.Polynomial([0, 1])
    rows = [moment(z**k) for k in range(order)]  # the derivatives vanish at the right end
    rows.append(moment((-z) ** (order - 1) / math.factorial(order - 1)) * (edges[1:] <= 1e-12))  # chi(0)
    a = np.column_stack([rows, np.zeros(order + 1)])
    above = np.block([[np.eye(cells), -np.ones((cells, 1))], [-np.eye(cells), -np.ones((cells, 1))]])
    found = linprog(
        [0] * cells + [1], A_ub=above, b_ub=np.zeros(2 * cells), A_eq=a, b_eq=[0] * order + [1], bounds=(None, None)
    )
    assert found.success
    assert bounds.least_bump(order).height == pytest.approx(found.fun, rel=1e-3)
    assert bounds.least_bump(order).height <= found.fun * (1 + 1e-9)


# ---------------------------------------------------------------- Lemma 1


TABLE = {0.01: [8.2e3, 8.7e3, 1.1e4, 2.9e4, 1.3e6], None: [29.5, 160, 1.7e3, 2.5e4, 3.8e5]}


@pytest.mark.parametrize("alpha", TABLE)
def test_the_table_of_the_foundations_chapter(alpha):
    found = [bounds.lag_constant(lag, "lin", order=1, alpha=alpha) for lag in (1, 4, 16, 64, 256)]
    assert found == pytest.approx(TABLE[alpha], rel=0.04)
    exact = [
        math.pi / 4 * math.exp(2 * a * (lag + 1)) / (a * -math.expm1(-a))
        for lag in (1, 4, 16, 64, 256)
        for a in [alpha or 1 / (lag + 1)]
    ]
    assert found == pytest.approx(exact, rel=1e-12)


def divided(lag, encoding, order, alpha, points):
    """The largest n-th divided difference of G, times n!, on a fine grid of u: at most the n-th derivative."""
    low = max(lag - 1, 0 if encoding == "lin" else 1)
    s = np.linspace(lag + 1, low, points)
    u = np.exp(-alpha * s) if encoding == "lin" else s**-alpha
    g = bounds.least_bump(order)(s - lag) / u * (1 if encoding == "lin" else s)
    for k in range(1, order + 1):
        g = np.diff(g) / (u[k:] - u[:-k]) * k
    return np.abs(g).max()


@each_encoding
@each_order
@pytest.mark.parametrize("lag", [1, 2, 5])
@pytest.mark.parametrize("alpha", [0.05, 0.4, 2.0])
def test_the_derivative_is_that_of_a_grid(encoding, order, lag, alpha):
    exact = bounds.derivative_bound(lag, encoding, order=order, alpha=alpha)
    grid = divided(lag, encoding, order, alpha, 4001)
    assert grid <= exact * (1 + 1e-4)
    assert grid >= exact * 0.95


@each_encoding
@each_order
def test_the_printed_constants_are_larger_than_the_exact_ones(encoding, order):
    for lag, alpha in itertools.product((1, 2, 5, 20), (0.01, 0.1, 0.5, 1.0)):
        constant, base = bounds.closed_form(lag, encoding, order=order, alpha=alpha)
        exact = bounds.lag_constant(lag, encoding, order=order, alpha=alpha)
        assert exact <= constant * base ** (order + 1)


def test_the_printed_constants_of_the_theory_page():
    found = {e: [bounds.closed_form(4, e, order=n, alpha=0.01)[0] for n in (1, 2, 3)] for e in ("lin", "log")}
    assert found["lin"] == pytest.approx([1.6e4, 1.0e7, 1.1e10], rel=0.05)
    assert found["log"] == pytest.approx([2.4e4, 2.3e7, 3.6e10], rel=0.05)
    constant, base = bounds.closed_form(4, "lin", order=1, alpha=0.01)
    assert math.ceil(constant * base**2 / 0.1) == pytest.approx(176_214, abs=1)


HEADS = [3, 4, 8, 16, 64, 256, 1024]


@each_encoding
@each_order
@pytest.mark.parametrize("lag", [1, 2, 4, 7])
def test_the_bound_lies_above_the_jackson_construction_and_falls_with_the_heads(encoding, order, lag):
    built = [sums.jackson_sum(lag, heads, encoding, order=order).error for heads in HEADS]
    bound = [bounds.fixed([lag], heads, encoding, order=order).attention for heads in HEADS]
    assert all(b >= e for b, e in zip(bound, built, strict=True))
    assert np.diff(np.log(bound)) / np.diff(np.log(HEADS)) == pytest.approx([-order] * (len(HEADS) - 1))


@each_encoding
def test_the_bound_lies_above_the_jackson_construction_for_a_fixed_alpha(encoding):
    for alpha, heads in itertools.product((0.05, 0.3, 1.0), (4, 32, 256)):
        built = sums.jackson_sum(3, heads, encoding, alpha=alpha, order=2).error
        assert bounds.fixed([3], heads, encoding, order=2, alpha=alpha).attention >= built


def test_the_choice_of_alpha_makes_the_bound_polynomial_in_the_lag():
    lags = [8, 16, 32, 64]
    for order in (1, 2, 3):
        lin = [bounds.lag_constant(lag, "lin", order=order) for lag in lags]
        growth = np.diff(np.log(lin)) / np.diff(np.log([lag + 1 for lag in lags]))
        assert np.all((growth > order) & (growth < order + 1.05))  # towards n + 1
        kept = [bounds.lag_constant(lag, "lin", order=order, alpha=0.2) for lag in lags]
        assert np.diff(np.log(kept)) / np.diff(lags) == pytest.approx([0.2 * (order + 1)] * 3)


# ---------------------------------------------------------------- Theorem 1


@each_order
def test_splitting_finds_the_least_sum_over_whole_numbers(order):
    constants = [3.0, 40.0, 700.0]
    for heads in (3 * order, 3 * order + 1, 17, 26):
        if heads < 3 * order:
            continue
        shares = bounds.split_heads(constants, heads, order=order)
        assert sum(shares) == heads
        assert min(shares) >= order
        every = (
            (a, b, heads - a - b)
            for a in range(order, heads)
            for b in range(order, heads - a)
            if heads - a - b >= order
        )
        least = min(sum(c / h**order for c, h in zip(constants, s, strict=True)) for s in every)
        assert sum(c / h**order for c, h in zip(constants, shares, strict=True)) == pytest.approx(least, rel=1e-12)


@each_order
def test_splitting_tends_to_the_formula_of_the_theorem(order):
    constants = [5.0, 60.0, 800.0]
    size = sum(c ** (1 / (order + 1)) for c in constants)
    for heads, slack in ((60, 0.05), (3000, 1e-4)):
        shares = bounds.split_heads(constants, heads, order=order)
        found = sum(c / h**order for c, h in zip(constants, shares, strict=True))
        least = size ** (order + 1) / heads**order
        assert least * (1 - 1e-12) <= found <= least * (1 + slack)
        wanted = [heads * c ** (1 / (order + 1)) / size for c in constants]
        assert np.abs(np.subtract(shares, wanted)).max() <= 1.5


@each_encoding
@each_order
def test_sharing_is_no_worse_than_splitting_at_a_common_alpha(encoding, order):
    for lags, heads, alpha in (((1, 3), 24, 0.2), ((1, 2, 6), 90, 0.1), ((2, 5), 40, 1.0)):
        shared = bounds.fixed(lags, heads, encoding, order=order, alpha=alpha)
        split = bounds.fixed(lags, heads, encoding, order=order, alpha=alpha, sharing=False)
        assert shared.attention < split.attention
        assert shared.heads == (heads,) * len(lags)
        assert sum(split.heads) == heads
    one = bounds.fixed([4], 12, encoding, order=order, alpha=0.3)
    assert one == bounds.fixed([4], 12, encoding, order=order, alpha=0.3, sharing=False)


def test_the_default_alpha_is_common_for_shared_and_single_for_split_heads():
    shared = bounds.fixed([1, 6], 20, "lin", order=1)
    split = bounds.fixed([1, 6], 20, "lin", order=1, sharing=False)
    assert shared.alpha == (1 / 7, 1 / 7)
    assert split.alpha == (1 / 2, 1 / 7)
    assert bounds.fixed([1, 6], 20, "log", order=1, sharing=False).alpha == (1 / math.log(2), 1 / math.log(7))


def test_the_parts_of_the_total():
    found = bounds.fixed([1, 2], 4096, "lin", order=2, width=100, norm=6.0, lipschitz=1.5)
    assert found.attention == pytest.approx(sum(found.per_lag))
    assert found.ffn == pytest.approx(4 * (1 + max(found.per_lag)) * 2 * 6 / 10)
    assert found.total == pytest.approx(found.ffn + 1.5 * found.attention)
    assert bounds.fixed([1, 2], 4096, "lin", order=2).ffn == 0
    wide = bounds.fixed([1, 2], 4096, "lin", order=2, width=400, norm=6.0, dimension=7)
    assert wide.ffn == pytest.approx(4 * (1 + max(found.per_lag)) * math.sqrt(8) * 6 / 20)


BAD = [
    (dict(lags=[], heads=4), "at least one lag"),
    (dict(lags=[2, 2], heads=4), "distinct"),
    (dict(lags=[0], heads=4, encoding="log"), "at least 1 for log, got 0"),
    (dict(lags=[2.0], heads=4), "got 2.0"),
    (dict(lags=[2], heads=0), "heads must be an integer of at least 1"),
    (dict(lags=[2], heads=2, order=3), "heads must be an integer of at least 3, got 2"),
    (dict(lags=[1, 2], heads=5, order=3, sharing=False), "at least 6, got 5"),
    (dict(lags=[2], heads=4, order=0), "order must be an integer from 1 to 8"),
    (dict(lags=[2], heads=4, alpha=0.0), "alpha must be a positive"),
    (dict(lags=[2], heads=4, encoding="rotary"), "lin, log"),
    (dict(lags=[2], heads=4, width=8), "belong together"),
    (dict(lags=[2], heads=4, width=0, norm=1.0), "width must be an integer of at least 1"),
    (dict(lags=[2], heads=4, width=8, norm=math.inf), "norm must be a finite"),
    (dict(lags=[2], heads=4, lipschitz=-1.0), "lipschitz must be"),
]


@pytest.mark.parametrize("arguments, message", BAD, ids=[m for _, m in BAD])
def test_bad_arguments_say_what_is_allowed(arguments, message):
    arguments = {"encoding": "lin", "order": 1, **arguments}
    with pytest.raises(ValueError, match=message):
        bounds.fixed(arguments.pop("lags"), arguments.pop("heads"), arguments.pop("encoding"), **arguments)


def test_constants_to_split_must_be_positive():
    with pytest.raises(ValueError, match="positive finite"):
        bounds.split_heads([1.0, 0.0], 4, order=1)


def test_a_bound_beyond_the_range_of_floats_is_infinite():
    assert bounds.lag_constant(30, "lin", order=8, alpha=3.0) == math.inf
    assert bounds.fixed([30], 100, "lin", order=8, alpha=3.0).attention == math.inf
