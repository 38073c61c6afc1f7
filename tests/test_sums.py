"""Sums of heads against closed forms, extended precision, brute force and scipy's general optimisers."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from numpy.polynomial import chebyshev
from scipy.optimize import minimize, minimize_scalar

from memlib import sums
from memlib.sums import KernelSum, best_sum, certificate, certificate_log, interpolating_sum, jackson_sum

rates_of = st.lists(st.floats(0.01, 5), min_size=1, max_size=8)


def delta(lag, length):
    return np.eye(1, length, lag)[0]


# ------------------------------------------------------------------------------------------------------- kernel sums


def test_values_and_sizes_by_hand():
    lin = KernelSum("lin", (math.log(2), math.log(4)), (3.0, -1.0), residual=0.5)
    np.testing.assert_allclose(lin.values([0, 1, 2]), [2.5, 1.25, 0.6875], rtol=1e-14)
    log = KernelSum("log", (2, 3), (1.0, -2.0), residual=7.0)
    np.testing.assert_allclose(log.values([0, 1, 2]), [7, -1, 0], atol=1e-15)
    assert (lin.heads, lin.weight, lin.largest) == (2, 4.0, 3.0)
    assert lin.log10_weight == pytest.approx(math.log10(4))


def test_values_survive_cancellation():
    """Three almost equal rates imitate a second derivative: coefficients of 1e20, values of order 1."""
    step = 1e-10
    huge = KernelSum("lin", (1 - step, 1.0, 1 + step), (1e20, -2e20, 1e20))
    lags = np.arange(12)
    with mp.workdps(60):
        moved = [mpf(p) for p in huge.rates]
        pairs = list(zip(moved, (1e20, -2e20, 1e20), strict=True))
        exact = [float(mp.fsum(mpf(c) * mp.exp(-p * s) for p, c in pairs)) for s in range(12)]
    np.testing.assert_allclose(huge.values(lags), exact, rtol=1e-14, atol=1e-14)
    careless = sum(float(c) * np.exp(-float(p) * lags) for p, c in pairs)
    assert np.abs(careless - exact).max() > 1e3  # what double precision makes of it


@given(st.lists(st.tuples(st.floats(0.2, 3), st.floats(-10, 10)), min_size=1, max_size=5), st.integers(0, 6))
@settings(deadline=None, max_examples=40)
def test_lin_error_with_tail_is_the_brute_force_sum(terms, lag):
    made = KernelSum("lin", *zip(*terms, strict=True), residual=0.3)
    lags = np.arange(400)
    brute = sum(c * np.exp(-p * lags) for p, c in terms) + 0.3 * (lags == 0) - delta(lag, 400)
    assert made.l1_error(lag) == pytest.approx(np.abs(brute).sum(), rel=1e-9, abs=1e-9)
    assert made.l2_error(lag) == pytest.approx(np.linalg.norm(brute), rel=1e-9, abs=1e-9)
    assert made.l1_error(delta(lag, 50)) == pytest.approx(np.abs(brute[:50]).sum(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "rates, coefficients",
    [((4, 5), (1.0, -3.0)), ((3, 3.5, 4), (1.0, -40.0, 100.0)), ((2.5, 3), (1.0, -900.0)), ((4, 6, 8), (1, 2, 3))],
)
def test_log_error_with_tail_is_the_brute_force_sum(rates, coefficients):
    """The third sum changes sign at lag 810,000, far beyond the lags added one by one."""
    lags = np.arange(1, 3_000_001, dtype=float)
    phi = sum(c * lags**-p for p, c in zip(rates, coefficients, strict=True))
    phi[2] -= 1
    assert KernelSum("log", rates, coefficients).l1_error(3) == pytest.approx(np.abs(phi).sum(), rel=1e-7)
    assert KernelSum("log", rates, coefficients).l2_error(3) == pytest.approx(np.linalg.norm(phi), rel=1e-9)


def test_a_log_sum_that_is_not_summable_has_infinite_error():
    assert KernelSum("log", (0.9, 2.0), (1.0, 1.0)).l1_error(1) == math.inf
    assert KernelSum("log", (0.9, 2.0), (1.0, 1.0)).l2_error(1) < math.inf


# ------------------------------------------------------------------------------------------------------ interpolation


@pytest.mark.parametrize("lag", [3, 8, 16])
@pytest.mark.parametrize("alpha, error", [(4.0, 0.0190056), (8.0, 3.357e-4)])
def test_interpolating_sum_reaches_the_errors_of_the_theorem(lag, alpha, error):
    made = interpolating_sum(lag, "lin", alpha, residual=False)
    assert made.heads == lag + 1
    assert made.l1_error(lag) == pytest.approx(error, rel=1e-4)
    assert made.l1_error(lag) <= sums.interpolation_error_bound(lag, alpha) < 1.001 * made.l1_error(lag)


@pytest.mark.parametrize("encoding", ["lin", "log"])
@pytest.mark.parametrize("lag", [1, 2, 5, 9])
def test_interpolating_sum_has_exactly_t_heads_and_is_exact_on_its_nodes(encoding, lag):
    errors = []
    for alpha in (1.5, 4 * lag, 8 * lag, 24 * lag):
        made = interpolating_sum(lag, encoding, alpha)
        assert made.heads == lag
        np.testing.assert_allclose(made.values(np.arange(lag + 1)), delta(lag, lag + 1), atol=1e-25)
        errors.append(made.l1_error(lag))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-7  # the infimum is 0


def test_lag_zero_takes_one_lin_head():
    made = interpolating_sum(0, "lin", 3.0, residual=False)
    assert made.heads == 1 and made.l1_error(0) == pytest.approx(1 / math.expm1(3.0))


@pytest.mark.parametrize("lag, alpha", [(1, 0.5), (3, 1.0), (8, 4.0), (16, 8.0)])
@pytest.mark.parametrize("residual", [False, True])
def test_weight_of_the_interpolating_sum_in_closed_form(lag, alpha, residual):
    closed = sums.interpolation_weight(lag, alpha, residual)
    made = interpolating_sum(lag, "lin", alpha, residual)
    assert made.log10_weight == pytest.approx(float(mpmath.log10(closed)), rel=1e-12)
    power_law = interpolating_sum(lag, "log", 1 + alpha)
    closed = sums.interpolation_weight(lag, 1 + alpha, residual, encoding="log")
    assert power_law.log10_weight == pytest.approx(float(mpmath.log10(closed)), rel=1e-12, abs=1e-12)


# ------------------------------------------------------------------------------------------------------- certificates


@given(rates_of, st.integers(0, 30))
@settings(deadline=None)
def test_certificate_of_lin_rates(rates, beyond):
    """Bounded by 1, equal to 1 at the lag, zero far from it, and blind to every head.

    No digit is lost in zeta, so each sum vanishes up to a few rounding errors of its terms: 1e-14 of their total.
    """
    lag = len(rates) + beyond
    zeta = certificate(lag, rates)
    assert len(zeta) == lag + len(rates) + 1
    assert zeta[lag] == 1.0 and np.abs(zeta).max() <= 1.0
    assert not zeta[: lag - len(rates)].any()
    lags = np.arange(len(zeta))
    for p in rates:
        terms = zeta * np.exp(-p * lags)
        assert abs(math.fsum(terms)) <= 1e-14 * (1 + len(rates)) * np.abs(terms).sum()


@given(st.lists(st.tuples(st.floats(0.05, 6), st.floats(-1e3, 1e3)), min_size=1, max_size=6), st.integers(1, 12))
@settings(deadline=None, max_examples=60)
def test_certificate_of_log_sums_opposes(terms, beyond):
    """zeta is rounded to double, so the opposed sum may be positive by 1e-13 of the terms added."""
    lag = len(terms) + beyond
    zeta = certificate_log(lag, *zip(*terms, strict=True))
    assert len(zeta) == lag + len(terms) + 1
    assert zeta[lag] == 1.0 and np.abs(zeta).max() <= 1.0
    assert not zeta[: lag - len(terms)].any()
    with mp.workdps(40):
        phi = [mp.fsum(mpf(c) * mpf(s) ** -mpf(p) for p, c in terms) for s in range(1, len(zeta))]
        inner = mp.fsum(mpf(z) * f for z, f in zip(zeta[1:].tolist(), phi, strict=True))
        total = mp.fsum(abs(z * f) for z, f in zip(zeta[1:].tolist(), phi, strict=True))
        assert phi[lag - 1] * inner <= mpf("1e-13") * abs(phi[lag - 1]) * total
        # and what follows from it: the sum cannot be large at the lag and small around it
        assert abs(phi[lag - 1]) <= (1 + mpf("1e-12")) * mp.fsum(abs(f) for i, f in enumerate(phi) if i != lag - 1)


def test_certificate_of_log_sums_finds_all_sign_changes():
    """g = (x-1)(x-2)(x-3) e^0 in powers of x, that is exponents 1..4: the roots of v are exp(-1), exp(-2), exp(-3)."""
    powers = np.poly([1.0, 2.0, 3.0])[::-1]
    coefficients = [float(a) * math.gamma(p) for p, a in zip((1, 2, 3, 4), powers, strict=True)]
    zeta = certificate_log(9, (1, 2, 3, 4), coefficients)
    without, withone = (np.poly(np.exp([-1.0, -2.0, -3.0, *more])) for more in ([], [0.0]))
    expected = [np.correlate(v, v, "full") / (v @ v) for v in (without, withone)]
    found = zeta[np.flatnonzero(zeta)[0] : np.flatnonzero(zeta)[-1] + 1]
    assert any(len(e) == len(found) and np.allclose(e, found, rtol=1e-12) for e in expected)


def test_certificate_of_the_zero_sum_and_of_repeated_exponents():
    assert certificate_log(3, (1.0, 1.0), (2.0, -2.0))[3] == 1.0
    same = certificate_log(4, (1.0, 2.0, 2.0), (1.0, -3.0, 1.0))
    np.testing.assert_allclose(same[:7], certificate_log(4, (1.0, 2.0), (1.0, -2.0)))


@given(st.lists(st.tuples(st.floats(0.05, 4), st.floats(-5, 5)), min_size=1, max_size=5), st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_fewer_heads_than_the_lag_have_error_at_least_one(terms, beyond):
    lin = KernelSum("lin", *zip(*terms, strict=True))
    assert lin.l1_error(len(terms) + beyond) >= 1 - 1e-12
    log = KernelSum("log", [1 + p for p, _ in terms], [c for _, c in terms])
    assert log.l1_error(len(terms) + 1 + beyond) >= 1 - 1e-12


# ------------------------------------------------------------------------------------------------------------ Lemma 1


def test_bump_has_the_values_the_lemma_asks_for():
    np.testing.assert_allclose(sums.bump([0, 0.5, 1, -2], 1), [1, 0.5, 0, 0])
    np.testing.assert_allclose(sums.bump([0, -0.5, 1, 2], 3), [1, 0.75**3, 0, 0])


@pytest.mark.parametrize("encoding, target", [("lin", 4), ("log", 4), ("lin", [1.0, -0.5, 0.25]), ("log", [2.0, 1.0])])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_jackson_sum_interpolates_the_smooth_target(encoding, target, order):
    made = jackson_sum(target, 24, encoding, order=order)
    u = (1 + np.cos(np.pi * (np.arange(24) + 0.5) / 24)) / 2
    s = -np.log(u) / made.alpha if encoding == "lin" else u ** (-1 / made.alpha)
    rho = {target: 1.0} if isinstance(target, int) else dict(enumerate(target))
    if encoding == "log":
        rho[0] = 0.0
    f = sum(value * sums.bump(s - k, order) for k, value in rho.items())
    g = f / u if encoding == "lin" else s ** (1 + made.alpha) * f
    np.testing.assert_allclose(chebyshev.chebval(2 * u - 1, made.chebyshev), g, atol=1e-10 * np.abs(g).max())


@pytest.mark.parametrize("encoding, heads", [("lin", 8), ("lin", 40), ("log", 6), ("log", 24)])
def test_jackson_coefficients_are_the_same_sum(encoding, heads):
    made = jackson_sum(3, heads, encoding)
    plain = made.coefficients()
    assert plain.heads == made.heads == heads
    np.testing.assert_allclose([float(p) for p in plain.rates], made.rates, rtol=1e-14)
    np.testing.assert_allclose(plain.values(range(80)), made.values(range(80)), atol=1e-13)
    assert plain.l1_error(3) == pytest.approx(made.error, rel=1e-6)  # tail by integrals against tail by zeta functions


@pytest.mark.parametrize("encoding", ["lin", "log"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_jackson_error_falls_at_least_like_the_order(encoding, order):
    """Many numbers of heads, because the error at the kinks of the bump depends on where the Chebyshev points fall."""
    heads = np.geomspace(100, 900, 25).astype(int)
    errors = [jackson_sum(4, int(h), encoding, order=order).error for h in heads]
    assert np.polyfit(np.log(heads), np.log(errors), 1)[0] < -order + 0.1
    assert jackson_sum(4, 3000, encoding, order=order).error * 3000**order < 2 * max(errors * heads**order)


def test_jackson_error_of_a_kernel_is_the_brute_force_sum():
    rho = np.array([0.5, -1.0, 0.25, 2.0])
    made = jackson_sum(rho, 60, "lin")
    lags = np.arange(4000)
    brute = np.abs(made.values(lags) - np.append(rho, np.zeros(3996))).sum()
    assert made.error == pytest.approx(brute, rel=1e-12)
    free = jackson_sum(rho, 60, "lin", residual=True)
    assert free.error == pytest.approx(brute - abs(made.values([0])[0] - 0.5), rel=1e-9)


def test_jackson_sum_with_fewer_heads_than_the_order_is_zero():
    made = jackson_sum(2, 2, "lin", order=3)
    assert made.error == 1.0 and not made.values(range(5)).any()


# --------------------------------------------------------------------------------------------- the price of real rates


@pytest.mark.parametrize("lag", range(9))
@pytest.mark.parametrize("form", ["binomial", "chebyshev"])
def test_price_certificate_proves_its_floor(lag, form):
    zeta = sums.price_certificate(lag, form)
    assert zeta[lag] == pytest.approx(1, rel=1e-14) and np.abs(zeta).max() <= 1 + 1e-14
    with mp.workdps(40):
        largest = max(
            abs(mp.fsum(mpf(z) * (mpf(k) / 400) ** s for s, z in enumerate(zeta.tolist()))) for k in range(401)
        )
        # zeta is rounded to double: its sum is off by up to 1e-16 per term
        assert float(largest) <= 1 / sums.weight_floor(lag, form=form) + 2e-16 * len(zeta)


def test_weight_floors_as_numbers():
    assert [sums.weight_floor(t, form="binomial") for t in (4, 8)] == [70, 12870]
    assert [sums.weight_floor(t) for t in (1, 2, 4)] == [8, 64, 8064]
    assert sums.weight_floor(8) == pytest.approx(1.16e8, rel=0.01)
    assert sums.weight_floor(16) == pytest.approx(4.47e16, rel=0.01)
    assert sums.weight_floor(4, 0.25) == 0.75 * 8064 and sums.weight_floor(4, 1.5) == 0
    assert sums.weight_floor(5, encoding="log") == sums.weight_floor(5, residual=True) == sums.weight_floor(4)
    assert sums.error_floor(4, 806.4) == pytest.approx(0.9)
    assert sums.weight_floor(64, 1e-3) == pytest.approx(2.4e68, rel=0.02)
    assert sums.weight_floor(300, 1.0) == 0
    assert sums.weight_floor(300) == math.inf  # beyond the range of floats


@pytest.mark.parametrize("lag, floor", [(1, 13), (2, 272), (4, 1.2e5), (8, 1.2e10), (16, 6.5e19)])
def test_floor_of_all_degrees(lag, floor):
    """At error 0.1; the two directions of the floor agree, and no form is above a better one."""
    found = sums.weight_floor(lag, 0.1, form="degrees")
    assert found == pytest.approx(floor, rel=0.05)
    assert sums.error_floor(lag, found, form="degrees") == pytest.approx(0.1, rel=1e-6)
    forms = [sums.weight_floor(lag, 0.1, form=form) for form in ("binomial", "chebyshev", "degrees")]
    assert forms == sorted(forms)
    assert sums.weight_floor(lag, 0.0, form="degrees") == math.inf


@pytest.mark.parametrize("encoding, residual", [("lin", False), ("lin", True), ("log", False)])
@pytest.mark.parametrize("weight", [0.0, 1.0, 30.0, 1e3, 1e5])
def test_sums_within_a_budget_stay_above_the_floor(encoding, residual, weight):
    for lag in (1, 2, 4):
        made = best_sum(lag, None, encoding, "l1", max_weight=weight, residual=residual)
        assert made.weight <= weight * (1 + 1e-12)
        for form in ("binomial", "chebyshev", "degrees"):
            floor = sums.error_floor(lag, weight, encoding=encoding, residual=residual, form=form)
            assert floor - 1e-9 <= made.error <= 1


def test_more_weight_never_hurts_and_grid_beats_few_heads():
    for norm in ("l1", "l2"):
        errors = [best_sum(3, None, "lin", norm, max_weight=w).error for w in (1.0, 10.0, 100.0, 1e3, 1e4)]
        assert errors == sorted(errors, reverse=True) and errors[-1] < 0.5 < errors[0]
        few = best_sum(3, 4, "lin", norm, max_weight=1e3, polish=10)
        assert few.heads == 4 and few.weight <= 1e3 * (1 + 1e-12)
        assert errors[3] - 1e-6 <= few.error <= 1


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("weight", [1e6, 1e9, 1e300, math.inf])
def test_budgets_beyond_double_precision_are_not_wasted(norm, weight):
    made = best_sum(4, None, "lin", norm, max_weight=weight)
    assert made.error < 0.05 and made.weight <= weight


def test_budget_that_does_not_bind_gives_the_free_optimum():
    rho = 0.8 ** np.arange(40) - 0.5 * 0.3 ** np.arange(40)
    made = best_sum(rho, 2, "lin", "l2", max_weight=50.0, polish=0)
    assert made.error < 1e-6


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_precision_limits(norm):
    """More digits reach farther; every entry obeys the floor of its own weight, up to rounding of that weight."""
    single, double = ([sums.precision_limit(t, d, norm=norm) for t in (1, 4, 8)] for d in ("float32", "float64"))
    assert all(s.error > 3 * d.error for s, d in zip(single, double, strict=True))
    for made in (single, double):
        assert made[0].error < made[1].error < made[2].error
    assert double[1].error < 1e-5 and single[2].error > 0.3
    if norm == "l1":
        for lag, made in zip((1, 4, 8), double, strict=True):
            for error, weight in zip(made.errors, made.weights, strict=True):
                assert error >= sums.error_floor(lag, weight, form="degrees") - 1e-15 * weight


def test_precision_limit_is_the_rounded_ridge_solution():
    """Against numpy's least squares where the ridge is large enough for double precision to solve it."""
    rates, lags = np.array([0.1, 0.5, 2.0]), np.arange(600)
    made = sums.precision_limit(2, rates=rates, ridges=[0.01], length=600)
    columns = np.exp(-np.outer(lags, rates))
    c = np.linalg.solve(columns.T @ columns + 0.01 * np.eye(3), columns[2])
    assert made.error == pytest.approx(np.linalg.norm(columns @ c - delta(2, 600)), rel=1e-9)
    assert made.weight == pytest.approx(np.abs(c).sum(), rel=1e-9)


@pytest.mark.parametrize("lag, radius", [(1, 0.5), (5, 0.7), (64, 0.899)])
def test_complex_rates_are_cheap(lag, radius):
    made = sums.complex_sum(lag, radius)
    lags = np.arange(400 * (lag + 1))
    assert np.abs(made.values(lags) - delta(lag, len(lags))).sum() == pytest.approx(made.error, rel=1e-6)
    assert np.abs(made.coefficients).sum() == pytest.approx(made.weight) == pytest.approx(radius**-lag)
    assert len(made.bases) == lag + 1


# ------------------------------------------------------------------------------------------------- the best sum, found


@pytest.mark.parametrize(
    "encoding, residual, lag, heads",
    [("lin", False, 2, 2), ("lin", False, 5, 4), ("lin", True, 3, 2), ("log", False, 3, 2), ("log", False, 5, 4)],
)
def test_too_few_heads_are_never_better_than_nothing(encoding, residual, lag, heads):
    """Known exact value: error exactly 1. A programme in a careless basis finds a false zero here."""
    assert best_sum(lag, heads, encoding, "l1", residual=residual, polish=10).error == 1.0


@pytest.mark.parametrize(
    "encoding, residual, lag, heads",
    [("lin", False, 2, 3), ("lin", True, 3, 3), ("lin", False, 1, 4), ("log", False, 3, 3), ("log", False, 2, 4)],
)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_enough_heads_reach_almost_zero(encoding, residual, lag, heads, norm):
    made = best_sum(lag, heads, encoding, norm, residual=residual, polish=10)
    assert made.heads == heads and made.error < 1e-6
    again = KernelSum(encoding, made.rates, made.coefficients, made.residual)
    norm_of = again.l1_error if norm == "l1" else again.l2_error
    assert norm_of(delta(lag, made.length)) == pytest.approx(made.error, rel=1e-6)


def blaschke_distance(lag, bases):
    r"""The l2 distance of delta_T from the span of r_h^s over all lags: the root of the sum of the first T+1 squared
    Taylor coefficients of the Blaschke product of the r_h."""
    series = np.eye(1, lag + 1)[0]
    for r in bases:
        factor = np.append(-r, (1 - r * r) * r ** np.arange(lag))
        series = np.convolve(series, factor)[: lag + 1]
    return float(np.linalg.norm(series))


@pytest.mark.parametrize("lag, heads", [(1, 1), (4, 1), (4, 2), (4, 3), (6, 5)])
def test_least_squares_agree_with_the_blaschke_formula(lag, heads):
    """Independent of all bases: closed form on the infinite past; the window is long enough to be one."""
    made = best_sum(lag, heads, "lin", "l2", length=400)
    assert made.error == pytest.approx(blaschke_distance(lag, np.exp(-np.array(made.rates))), rel=1e-8)
    line = minimize_scalar(lambda p: blaschke_distance(lag, [math.exp(-p)] * heads), bounds=(0.01, 6), method="bounded")
    assert made.error <= line.fun * (1 + 1e-6)  # one rate for all heads, repeated, is no better


def power(beta, length):
    return (1.0 + np.arange(length)) ** -beta


CASES = {
    "lag 3, lin": (3, 2, "lin"),
    "lag 3, log": (3, 2, "log"),
    "lag 5, lin": (5, 4, "lin"),
    "heavy tail, lin": (power(1.5, 90), 3, "lin"),
    "light tail, log": (np.exp(-np.arange(60) / 4), 2, "log"),
    "oscillating, lin": (np.cos(np.arange(40) / 3) * np.exp(-np.arange(40) / 6), 3, "lin"),
}


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("case", CASES)
def test_best_sum_is_never_worse_than_general_optimisers(case, norm):
    """The same starts, coefficients by least squares, rates and coefficients free, ten times the evaluations."""
    target, heads, encoding = CASES[case]
    made = best_sum(target, heads, encoding, norm, polish=30)
    first = 0 if encoding == "lin" else 1
    rho = delta(target, made.length) if isinstance(target, int) else target
    x = np.arange(len(rho)) if encoding == "lin" else np.log(np.arange(1, len(rho)))
    wanted, missed = rho[first:], np.abs(rho[:first]).sum()
    order = 1 if norm == "l1" else 2

    def error(z):
        rest = wanted - np.exp(-np.outer(x, np.exp(np.clip(z[:heads], -20, 5)))) @ z[heads:]
        return np.linalg.norm(np.append(rest, missed), order)

    starts = sums.starting_rates(target, heads, encoding)
    allowed = 10 * made.evaluations // len(starts)
    for rates in starts:
        c = np.linalg.lstsq(np.exp(-np.outer(x, rates)), wanted, rcond=1e-12)[0]
        start = np.append(np.log(rates), c)
        assert made.error <= error(start) * (1 + 1e-9)
        for method, options in (("Nelder-Mead", {"maxfev": allowed}), ("BFGS", {"maxiter": allowed // (3 * heads)})):
            with np.errstate(all="ignore"):
                done = minimize(error, start, method=method, options=options)
            assert made.error <= done.fun * (1 + 1e-7) + 1e-12, (method, rates, done.fun)


def test_one_head_in_l1_against_a_search_by_hand():
    rho = power(1.5, 30)

    def by_hand(p):  # a weighted median of the ratios is the best coefficient of one head
        column = np.exp(-p * np.arange(30))
        order = np.argsort(rho / column)
        half = np.searchsorted(np.cumsum(column[order]), column.sum() / 2)
        return np.abs(rho - (rho / column)[order][half] * column).sum()

    grid = np.geomspace(0.02, 5, 2000)
    found, by_grid = best_sum(rho, 1, "lin", "l1").error, min(map(by_hand, grid))
    assert found <= by_grid and found == pytest.approx(by_grid, rel=1e-3)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_edges_of_the_search(norm):
    assert best_sum(np.zeros(9), 2, "lin", norm).error == 0
    assert best_sum([1.0, 2.0], 5, "lin", norm).error < 1e-12  # more heads than lags
    assert best_sum([0.0, 2.0, 1.0], 4, "log", norm).error < 1e-12
    assert best_sum(0, 1, "lin", norm).error < 1e-6  # lag 0 takes one steep head
    assert best_sum(4, 5, "lin", norm, max_weight=0).error == 1


def test_residual_takes_care_of_lag_zero():
    rho = 3 * 0.5 ** np.arange(30)
    rho[0] = -4.0
    made = best_sum(rho, 1, "lin", residual=True)
    assert made.error < 1e-9 and float(made.residual) == pytest.approx(-7.0)
    assert best_sum(rho, 1, "lin").error > 1
    log = best_sum([5.0, 1.0, 0.25, 1 / 9], 1, "log", residual=True)
    assert log.error < 1e-9 and float(log.residual) == 5.0
    assert best_sum([5.0, 1.0, 0.25, 1 / 9], 1, "log").error == pytest.approx(5.0)


# ------------------------------------------------------------------------------------------------------------ bad input

BAD = {
    "lag 0 with residual": (lambda: interpolating_sum(0, "lin", 1.0), "lag must be an integer of at least 1, got 0"),
    "negative lag": (lambda: interpolating_sum(-1, "lin", 1.0, residual=False), "at least 0, got -1"),
    "lag 0 for log": (lambda: best_sum(0, 1, "log"), "a lag for log heads must be an integer of at least 1"),
    "float lag": (lambda: best_sum(2.5, 1, "lin"), "one-dimensional array"),
    "alpha too small for log": (lambda: interpolating_sum(2, "log", 1.0), "only for alpha > 1, got 1.0"),
    "alpha 0": (lambda: jackson_sum(2, 4, "lin", alpha=0.0), "alpha must be a positive finite number, got 0.0"),
    "alpha nan": (lambda: interpolating_sum(2, "lin", math.nan), "alpha must be a positive finite number, got nan"),
    "unknown encoding": (lambda: jackson_sum(2, 4, "alibi"), "unknown encoding 'alibi'; sums exist for lin, log"),
    "unknown norm": (lambda: best_sum(2, 1, "lin", "l3"), "unknown norm 'l3'; allowed: l1, l2"),
    "no heads": (lambda: best_sum(2, 0, "lin"), "heads must be an integer of at least 1, got 0"),
    "no heads, Jackson": (lambda: jackson_sum(2, 0, "lin"), "heads must be an integer of at least 1, got 0"),
    "heads None without budget": (lambda: best_sum(2, None, "lin"), "only together with max_weight"),
    "true is no number of heads": (lambda: best_sum(2, True, "lin"), "heads must be an integer"),
    "order 0": (lambda: jackson_sum(2, 3, "lin", order=0), "order must be an integer of at least 1, got 0"),
    "nan kernel": (lambda: best_sum([1.0, math.nan], 1, "lin"), "finite numbers on lags"),
    "two-dimensional kernel": (lambda: best_sum(np.eye(3), 1, "lin"), r"shape \(3, 3\)"),
    "empty kernel": (lambda: best_sum([], 1, "lin"), "N > 0"),
    "kernel of words": (lambda: jackson_sum("abc", 3, "lin"), "must be a lag or an array"),
    "negative budget": (lambda: best_sum(2, 1, "lin", max_weight=-1.0), "non-negative number, got -1.0"),
    "nan budget": (lambda: sums.error_floor(2, math.nan), "non-negative number, got nan"),
    "length for an array": (lambda: best_sum([1.0, 2.0], 1, "lin", length=9), "brings its own window"),
    "length too short": (lambda: best_sum(5, 1, "lin", length=4), "length must exceed the lag 5, got 4"),
    "negative error": (lambda: sums.weight_floor(2, -0.1), "error must be a non-negative number, got -0.1"),
    "unknown form": (lambda: sums.weight_floor(2, form="best"), "unknown form 'best'"),
    "too many rates": (lambda: certificate(2, [1, 2, 3]), "1 to 2 rates at lag 2, got 3"),
    "no rates": (lambda: certificate(2, []), "1 to 2 rates at lag 2, got 0"),
    "rate 0": (lambda: certificate(2, [0.0]), "a rate must be a positive finite number, got 0.0"),
    "too many exponents": (lambda: certificate_log(2, [1, 2], [1, 1]), "1 to 1 exponents at lag 2, got 2"),
    "coefficients missing": (lambda: certificate_log(4, [1, 2], [1]), "as many coefficients as exponents"),
    "infinite coefficient": (lambda: certificate_log(4, [1], [math.inf]), "must be finite, got inf"),
    "sum with missing coefficients": (lambda: KernelSum("lin", (1.0,), ()), "got 0 for 1"),
    "sum with negative rate": (lambda: KernelSum("lin", (-1.0,), (1.0,)), "a rate must be a positive"),
    "sum with words": (lambda: KernelSum("lin", (1.0,), ("x",)), "coefficients must be real numbers, got 'x'"),
    "negative lags": (lambda: KernelSum("lin", (1.0,), (1.0,)).values([-1]), "lags must be non-negative integers"),
    "fractional lags": (lambda: jackson_sum(2, 3, "lin").values([0.5]), "lags must be non-negative integers"),
    "unknown dtype": (lambda: sums.precision_limit(2, "int32"), "dtype must be float16, float32 or float64"),
    "certificate of all degrees": (lambda: sums.price_certificate(2, "degrees"), "forms binomial and chebyshev"),
    "radius 1": (lambda: sums.complex_sum(3, 1.0), "radius must lie strictly between 0 and 1, got 1.0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case):
    call, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        call()
