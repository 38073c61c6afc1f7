"""The Hankel floor, sums of exponentials near it, and the rivals of the search."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from memlib import results, sums
from memlib.experiments import against_the_floor
from memlib.sums import KernelSum, best_sum, esprit, general_fit, hankel_floor, hankel_values, quadrature_sum

FACTOR = 12
"""How far above the floor the best sum may lie."""

BARE = 1e-10
"""Floors below this are not compared with."""


def power(beta, length):
    return (1.0 + np.arange(length)) ** -beta


def errors_of(rest):
    return {"l1": math.fsum(np.abs(rest)), "l2": math.sqrt(math.fsum(rest**2))}


# ---------------------------------------------------------------------------------------------------------- the floor


def test_singular_values_by_hand():
    """1, 0, -1 on the lags 0, 1, 2: the matrix is diagonal."""
    assert hankel_values([1.0, 0.0, -3.0]) == pytest.approx([3, 1])
    assert hankel_floor([1.0, 0.0, -3.0], 1) == pytest.approx(1)
    assert hankel_floor([1.0, 0.0, -3.0], 0, norm="l2") == pytest.approx(math.sqrt(5))
    assert hankel_floor([1.0, 0.0, -3.0], 2) == 0 == hankel_floor([1.0, 0.0, -3.0], 9)


def test_one_exponential_has_one_singular_value():
    r, length = 0.8, 41
    found = hankel_values(r ** np.arange(length))
    assert found[0] == pytest.approx((1 - r ** (length + 1)) / (1 - r * r))
    assert hankel_floor(r ** np.arange(length), 0) == pytest.approx(found[0])
    assert hankel_floor(r ** np.arange(length), 1) == 0


@pytest.mark.parametrize(
    "heads, floor, l2_sum", [(1, 0.27, 0.93), (2, 0.084, 0.40), (4, 0.0068, 0.058), (8, 1.7e-5, 1.8e-4)]
)
def test_the_numbers_of_the_theory(heads, floor, l2_sum):
    rho = power(1.5, 399)
    assert hankel_floor(rho, heads) == pytest.approx(floor, rel=0.03)
    fitted = best_sum(rho, heads, "lin", "l2")
    assert fitted.l1_error(rho) == pytest.approx(l2_sum, rel=0.05)


@pytest.mark.parametrize("beta, size", [(1.5, 24), (3.0, 24)])
def test_small_singular_values_are_as_right_as_is_said(beta, size):
    """Against 60 digits; and the floor returned never exceeds the true one."""
    rho = power(beta, 2 * size - 1)
    with mp.workdps(60):
        matrix = mp.matrix(size, size)
        for i in range(size):
            for j in range(size):
                matrix[i, j] = mpf(float(rho[i + j]))
        exact = sorted((float(abs(x)) for x in mp.eigsy(matrix, eigvals_only=True)), reverse=True)
    found = hankel_values(rho)
    assert np.abs(found - exact).max() <= sums.hankel.ROUNDING * exact[0]
    for heads in range(size):
        assert hankel_floor(rho, heads) <= exact[heads]
        assert hankel_floor(rho, heads) >= exact[heads] - 2 * sums.hankel.ROUNDING * exact[0]
    assert exact[-1] < 1e-16 and hankel_floor(rho, size - 1) == 0  # below rounding there is no floor left


@given(st.lists(st.floats(-5, 5), min_size=9, max_size=61), st.integers(0, 4))
@settings(deadline=None)
def test_the_l1_floor_rises_with_the_window(values, heads):
    floors = [hankel_floor(values[:length], heads) for length in range(5, len(values) + 1, 2)]
    size = max(map(abs, values)) * len(values) ** 2
    assert all(b >= a - 1e-13 * size for a, b in pairwise(floors))


@given(
    st.lists(st.tuples(st.floats(-0.999, 0.999), st.floats(-20, 20)), min_size=1, max_size=6),
    st.lists(st.floats(-3, 3), min_size=20, max_size=80),
    st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_no_exponential_sum_beats_the_floor(terms, values, residual):
    """Any bases in the unit interval, negative ones too, any weights, any kernel; lag 0 left out with a residual."""
    rho = np.array(values if (len(values) - residual) % 2 else values[:-1])
    lags = np.arange(len(rho), dtype=float)
    phi = sum(c * r**lags for r, c in terms)
    rest = (rho - phi)[1 if residual else 0 :]
    for norm, error in errors_of(rest).items():
        assert hankel_floor(rho, len(terms), residual, norm=norm) <= error * (1 + 1e-12)


@given(st.lists(st.tuples(st.floats(0.01, 8), st.floats(0.1, 1.9)), min_size=1, max_size=4), st.floats(-1, 1))
@settings(deadline=None, max_examples=50)
def test_recurrences_do_not_beat_it_either(blocks, beta):
    """Damped oscillations of two states each, cos and sin parts: half as many blocks as states."""
    lags = np.arange(101.0)
    phi = sum(np.exp(-p * lags) * (np.cos(w * lags) + beta * np.sin(w * lags)) for p, w in blocks)
    rho = power(1.2, 101)
    assert hankel_floor(rho, 2 * len(blocks)) <= np.abs(rho - phi).sum()


def test_zero_padding_would_be_wrong():
    """e^(-s/20) on 40 lags is one head exactly; filled up with zeros its matrix claims an error that nobody makes."""
    rho = np.exp(-np.arange(41) / 20)
    padded = np.append(rho, np.zeros(40))
    assert np.linalg.svd(padded[np.add.outer(np.arange(41), np.arange(41))], compute_uv=False)[1] > 1
    assert hankel_floor(rho, 1) == 0 and best_sum(rho, 1, "lin", "l1").error < 1e-12


def test_an_even_number_of_values_drops_the_last():
    rho = power(1.5, 40)
    assert hankel_floor(rho, 2) == hankel_floor(rho[:-1], 2) != hankel_floor(power(1.5, 41), 2)
    assert hankel_floor(rho, 2, residual=True) == hankel_floor(rho[1:], 2)
    rho[-1] = 100.0
    assert hankel_floor(rho, 2) == hankel_floor(power(1.5, 39), 2)


def test_the_residual_frees_lag_zero():
    rho = power(1.5, 61)
    rho[0] = 50.0
    for heads in (1, 2, 3):
        with_, without = hankel_floor(rho, heads, residual=True), hankel_floor(rho, heads)
        found = best_sum(rho, heads, "lin", "l1", residual=True)
        assert with_ <= found.error <= FACTOR * with_ and with_ < without
    assert best_sum(rho, 1, "lin", "l1", residual=True).error < hankel_floor(rho, 1)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("kernel", ["(1+s)^-1.5", "(1+s^2)^-0.75", "sech(s/4)", "exp(-s)-exp(-s/10)/2"])
def test_what_is_found_lies_above_the_floor(kernel, norm):
    rho = against_the_floor.values(kernel, 121)
    for heads in (1, 2, 3):
        floor = hankel_floor(rho, heads, norm=norm)
        for made in (best_sum(rho, heads, "lin", norm), esprit(rho, heads, norm), general_fit(rho, heads, norm)):
            assert made.error >= floor and made.heads == heads
        assert esprit(rho, heads, norm, rates="complex").error >= floor


# ---------------------------------------------------------------------------------------------- the table of the book


@pytest.fixture(scope="module")
def table():
    return results.read("against_the_floor", ["kernel", "heads", "norm", "error", "esprit", "general", "floor"])


def test_the_best_sum_lies_within_a_factor_of_twelve_everywhere(table):
    assert set(table.kernel) == set(against_the_floor.KERNELS) and set(table.heads) == set(range(1, 9))
    seen = table[(table.floor * table.norm > BARE) & table.kernel.isin(against_the_floor.REAL)]
    assert len(seen) >= 60 and set(seen[seen.kernel.str.startswith("(1+s)")].heads) == set(range(1, 9))
    assert (seen.error <= FACTOR * seen.floor).all()
    assert (table.error >= table.floor).all() and (table.esprit >= table.floor).all()
    assert (table.general >= table.floor).all() and (table.complex * (1 + 1e-9) + 1e-14 >= table.floor).all()


def test_no_rival_finds_a_better_sum(table):
    """Up to 1 %, and up to rounding where a sum is exact."""
    for rival in ("esprit", "general"):
        assert (table.error <= 1.01 * table[rival] + 1e-13).all()
    assert (table.general_evaluations <= table.evaluations).all()


def test_sech_wants_complex_rates(table):
    """What the floor allows a recurrence, real heads do not reach: the factor grows with their number."""
    sech = table[(table.kernel == "sech(s/4)") & (table.floor * table.norm > BARE)]
    assert (sech.complex <= FACTOR * sech.floor).all()
    assert sech[sech.heads == 6].error.item() > 30 * sech[sech.heads == 6].floor.item()


AGAIN = [("(1+s)^-1.1", 3), ("(1+s)^-1.25", 5), ("(1+s)^-2", 6), ("(1+s)^-3", 4), ("exp(-s/2)+exp(-s/20)", 1),
         ("five exponentials", 3), ("s exp(-s)", 1), ("(1+s^2)^-0.75", 4), ("sech(s/4)", 3)]  # fmt: skip


@pytest.mark.parametrize("kernel, heads", AGAIN)
def test_points_of_the_table_run_again(kernel, heads, table):
    stored = table[(table.kernel == kernel) & (table.heads == heads)].iloc[0]
    again = against_the_floor.run(kernel, heads)
    assert again["floor"] == pytest.approx(stored.floor, rel=1e-9, abs=1e-13)
    assert again["error"] == pytest.approx(stored.error, rel=1e-2)
    assert again["esprit"] == pytest.approx(stored.esprit, rel=1e-4)
    assert again["general"] == pytest.approx(stored.general, rel=5e-2)
    if kernel != "sech(s/4)":
        assert again["floor"] <= again["error"] <= FACTOR * again["floor"]


def test_bad_points():
    with pytest.raises(ValueError, match=r"unknown kernel 'sinc'; known: \(1\+s\)\^-1.1, "):
        against_the_floor.run("sinc", 1)
    with pytest.raises(ValueError, match="unknown scale 'small'; allowed: book, large, stored"):
        against_the_floor.grid("small")


# -------------------------------------------------------------------------------------------------------------- rivals


@given(
    st.lists(st.tuples(st.floats(0.05, 0.4), st.floats(0.2, 3), st.booleans()), min_size=1, max_size=4), st.booleans()
)
@settings(deadline=None, max_examples=30)
def test_esprit_is_exact_on_exact_sums(terms, residual):
    """Rates at least a factor 1.8 apart; a disturbed lag 0 does not matter with a residual."""
    rates = 0.1 * np.cumprod([1.8 + p for p, _, _ in terms])
    weights = [c if sign else -c for _, c, sign in terms]
    rho = np.exp(-np.outer(np.arange(121), rates)) @ weights
    if residual:
        rho[0] += 2.0
    made = esprit(rho, len(terms), "l2", residual)
    assert made.error <= 1e-9 and made.came_from == "ESPRIT"
    assert [float(p) for p in made.rates] == pytest.approx(sorted(rates), rel=1e-5)
    assert float(made.residual) == pytest.approx(2.0 if residual else 0.0, abs=1e-8)


def test_esprit_says_what_it_replaced():
    lags = np.arange(81)
    rho = np.exp(-lags / 9) * np.cos(lags)  # a conjugate pair: heads cannot have it
    made, turning = esprit(rho, 2, "l2"), esprit(rho, 2, "l2", rates="complex")
    assert made.came_from == "ESPRIT, 2 of 2 bases replaced" and made.error > 0.5
    assert turning.error < 1e-10 and np.angle(turning.bases) == pytest.approx([-1, 1])
    assert np.abs(turning.values(lags) - rho).max() < 1e-10
    growing = esprit(1.05 ** np.arange(41.0), 1, "l1")
    assert float(growing.rates[0]) == pytest.approx(1e-4) and "1 of 1" in growing.came_from
    negative = esprit((-0.5) ** np.arange(41.0), 1, "l1")
    assert float(negative.rates[0]) == pytest.approx(math.log(2)) and negative.error <= 2


def test_a_general_fit_keeps_to_its_budget_and_starts():
    rho = power(1.5, 99)
    few, many = (general_fit(rho, 3, "l1", evaluations=n) for n in (80, 1500))
    assert few.evaluations <= 80 < many.evaluations <= 1500 and many.error <= few.error
    one = general_fit(rho, 2, "l2", starts=[[0.1, 1.0]], evaluations=200)
    assert one.came_from == "least squares from start 0" and one.error == pytest.approx(
        best_sum(rho, 2, "lin", "l2").error, rel=1e-6
    )
    log = general_fit(rho, 2, "l2", encoding="log", residual=True)
    assert log.error == pytest.approx(log.l2_error(rho), rel=1e-9) and log.error < 0.1


# ----------------------------------------------------------------------------------------------------------- quadrature


@pytest.mark.parametrize("heads", [2, 3, 5, 8, 13, 24])
@pytest.mark.parametrize("beta", [1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 6.0])
def test_the_quadrature_sum_keeps_its_bound(beta, heads):
    made = quadrature_sum(beta, heads)
    assert made.heads == heads and made.error <= made.bound <= 6 * made.error
    assert min(made.coefficients) > 0 and made.weight <= 1.02
    tight = quadrature_sum(beta, heads, angle=1.0)
    assert tight.error <= tight.bound and made.bound <= tight.bound * (1 + 1e-6)


@pytest.mark.parametrize("beta, heads", [(1.5, 4), (2.0, 6), (3.0, 8)])
def test_the_error_of_the_quadrature_sum_is_the_brute_force_sum(beta, heads):
    made = quadrature_sum(beta, heads)
    lags = np.arange(3_000_000, dtype=float)
    terms = zip(map(float, made.rates), map(float, made.coefficients), strict=True)
    rest = (1 + lags) ** -beta - sum(c * np.exp(-p * lags) for p, c in terms)
    tail = float(mpmath.zeta(beta, 3_000_001))
    assert made.error == pytest.approx(np.abs(rest).sum() + tail, rel=1e-6)


def test_the_quadrature_bound_falls_root_exponentially():
    heads = np.array([16, 36, 64, 100, 144])
    for beta in (1.5, 2.0, 3.0):
        logs = -np.log([quadrature_sum(beta, int(h)).bound for h in heads])
        speed = np.diff(logs) / np.diff(np.sqrt(heads))
        limit = math.pi * math.sqrt(beta - 1)
        assert (np.diff(speed) > 0).all() and 0.7 * limit < speed[-1] < limit
    assert hankel_floor(power(1.5, 399), 8) <= quadrature_sum(1.5, 8).l1_error(power(1.5, 399))


# ------------------------------------------------------------------------------------------------------------ bad input

RHO = power(1.5, 21)
BAD = {
    "nan": (lambda: hankel_floor([1.0, math.nan, 0.5], 1), "finite numbers; at lag 1 it is nan"),
    "matrix": (lambda: hankel_floor(np.eye(3), 1), r"one-dimensional, .* its shape is \(3, 3\)"),
    "words": (lambda: hankel_floor(["a"], 1), "an array of values on lags"),
    "empty": (lambda: hankel_floor([], 1), "at least 1 lags, got 0"),
    "too short": (lambda: hankel_floor([1.0], 1, residual=True), "at least 2 lags, got 1"),
    "heads": (lambda: hankel_floor(RHO, -1), "heads must be an integer of at least 0, got -1"),
    "half heads": (lambda: hankel_floor(RHO, 1.5), "heads must be an integer of at least 0, got 1.5"),
    "norm": (lambda: hankel_floor(RHO, 1, norm="sup"), "unknown norm 'sup'; allowed: l1, l2"),
    "residual": (lambda: hankel_floor(RHO, 1, "l2"), "residual must be True or False, got 'l2'"),
    "esprit heads": (lambda: esprit(RHO, 11), "heads must be less than 11, the size of the Hankel matrix, got 11"),
    "esprit lag": (lambda: esprit(3, 1), "kernel must be an array of values on lags 0..N-1, got 3"),
    "esprit norm": (lambda: esprit(RHO, 1, "l3"), "unknown norm 'l3'"),
    "esprit rates": (lambda: esprit(RHO, 1, rates="any"), "unknown rates 'any'; allowed: real, complex"),
    "general starts": (lambda: general_fit(RHO, 2, starts=[[1.0]]), "must hold 2 rates, one for each head, got 1"),
    "no starts": (lambda: general_fit(RHO, 2, starts=[]), "at least one array of rates"),
    "negative start": (lambda: general_fit(RHO, 1, starts=[[-1.0]]), "a rate must be a positive finite number"),
    "evaluations": (lambda: general_fit(RHO, 1, evaluations=0), "evaluations must be an integer of at least 1, got 0"),
    "exponent 1": (lambda: quadrature_sum(1.0, 4), r"exponent must lie in \(1, 50\].*got 1.0"),
    "one node": (lambda: quadrature_sum(2.0, 1), "heads must be an integer of at least 2, got 1"),
    "wide strip": (lambda: quadrature_sum(2.0, 4, angle=1.6), "angle must lie strictly between 0 and pi/2, got 1.6"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_kernels_of_zeros_and_of_few_lags():
    assert hankel_floor(np.zeros(9), 0) == 0 == hankel_floor([0.0], 1)
    assert best_sum([1.0, 2.0, 3.0], 1, "lin", "l1").error >= hankel_floor([1.0, 2.0, 3.0], 1)
    assert isinstance(best_sum(np.zeros(9), 2, "lin", "l1"), KernelSum)
    assert esprit(np.zeros(9), 2).error == 0


# ---------------------------------------------------------------- the power sums of the smooth theorem


@pytest.mark.parametrize("alpha", [0.125, 0.25, 0.5])
def test_the_smooth_sum_meets_the_kernel_at_the_chebyshev_points(alpha):
    made = sums.smooth_sum(lambda s: (1 + s**2) ** -0.75, 8, alpha)
    plain = made.coefficients()
    assert made.heads == 8 and plain.rates[0] == pytest.approx(1 + alpha)
    u = (1 + np.cos(np.pi * (np.arange(8) + 0.5) / 8)) / 2
    s = u ** (-1 / alpha)
    values = sum(float(c) * s ** -float(p) for p, c in zip(plain.rates, plain.coefficients, strict=True))
    assert values == pytest.approx((1 + s**2) ** -0.75, rel=1e-9)
    lags = np.arange(1, 50)
    assert made.values(lags) == pytest.approx(plain.values(lags), rel=1e-9)


def test_a_power_among_the_heads_is_found_exactly():
    made = sums.smooth_sum(lambda s: 3 * s**-1.5, 5, 0.25)  # the second head
    assert [float(c) for c in made.coefficients().coefficients] == pytest.approx([0, 3, 0, 0, 0], abs=1e-10)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: sums.smooth_sum([1.0], 3, 0.5), "kernel must be a function of an array of lags, got list"),
        (lambda: sums.smooth_sum(np.sqrt, 0, 0.5), "heads must be an integer of at least 1"),
        (lambda: sums.smooth_sum(np.sqrt, 3, -1.0), "alpha must be"),
        (lambda: sums.smooth_sum(lambda s: s[:1], 3, 0.5), "as many finite numbers"),
        (lambda: sums.smooth_sum(lambda s: np.nan * s, 3, 0.5), "as many finite numbers"),
    ],
)
def test_smooth_sum_bad_input(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
