"""The bounds of the chapter on essentially sparse memory as numbers: against grids, against real sums, at the edges."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import chebyshev

from memlib import bounds, sums
from memlib.bounds import Tail
from memlib.bounds.essential_memory import _bump_norms, _halves, _smooth_size, _theta_coefficients
from memlib.experiments.tails import KERNELS

each_order = pytest.mark.parametrize("order", [1, 2, 3])


def filled(rho, order, s):
    """The kernel between the lags: the sum of its bumps."""
    chi = bounds.least_bump(order)
    k = np.floor(s).astype(int)
    return rho(k) * chi(s - k) + rho(k + 1) * chi(s - k - 1)


def divided(g, u, order):
    """The largest n-th divided difference, times n!: at most the n-th derivative."""
    for k in range(1, order + 1):
        g = np.diff(g) / (u[k:] - u[:-k]) * k
    return np.abs(g).max()


# ---------------------------------------------------------------- Lemma e:lem-fill


@each_order
@pytest.mark.parametrize("beta", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("signs", [(1, 1), (1, -1)])
def test_the_derivative_of_a_filled_light_tail_is_below_the_bound(order, beta, signs):
    """On the first few lags, where it is largest, and with either sign of the neighbours."""
    alpha = beta / (order + 1)
    size = bounds.tail_constant(Tail("light", 1.5, beta), "lin", order=order, alpha=alpha) / (
        bounds.jackson_constant(order) / -math.expm1(-alpha)
    )
    s = np.linspace(4.0, 0.0, 8001)
    u = np.exp(-alpha * s)
    g = filled(lambda k: 1.5 * np.exp(-beta * k) * np.where(k % 2, signs[1], signs[0]), order, s) / u
    measured = divided(g, u, order)
    assert measured <= size * (1 + 1e-3)
    assert size <= 2.5 * measured or signs == (1, 1)


@each_order
@pytest.mark.parametrize("beta", [5.0, 9.0])
def test_the_derivative_of_a_filled_heavy_tail_is_below_the_bound(order, beta):
    alpha = beta / (order + 1) - 1
    if alpha <= 0:
        pytest.skip("no alpha is admissible")
    size = bounds.tail_constant(Tail("heavy", 1.0, beta), "log", order=order, alpha=alpha) / (
        bounds.jackson_constant(order) * float(sums.KernelSum("log", (1 + alpha,), (1.0,))._signed_tail(1))
    )
    worst = 0.0
    for start in (1, 5, 40, 300):  # near and far: the envelope is used up everywhere
        s = np.linspace(start + 2.0, float(start), 4001)
        u = s**-alpha
        g = filled(lambda k: np.maximum(k, 1.0) ** -beta * np.where(k % 2, -1, 1), order, s) * s ** (1 + alpha)
        if start == 1:
            g = np.where(s < 1, 0, g)
        worst = max(worst, divided(g, u, order))
    assert worst <= size * (1 + 1e-3)
    assert size <= 30 * worst


@each_order
def test_halves_are_the_whole(order):
    for lag, encoding, alpha in itertools.product((1, 2, 5), ("lin", "log"), (0.1, 0.7)):
        whole = bounds.derivative_bound(lag, encoding, order=order, alpha=alpha)
        assert max(_halves(lag, encoding, order, alpha)) == pytest.approx(whole, rel=1e-12)


@each_order
def test_what_is_estimated_far_away_covers_what_is_exact(order):
    """The triangle inequality behind the lags that are not computed one by one."""
    norms, factors = np.array(_bump_norms(order)), np.array(_theta_coefficients(order, 0.3))
    assert norms[0] == pytest.approx(1)
    assert norms[-1] == pytest.approx(bounds.least_bump(order).height)
    for lag in (2, 10, 60):
        powers = 1 + 0.3 * (order + 1) + np.arange(order + 1)
        estimate = (norms * factors * (lag + 1.0) ** powers).sum() / 0.3**order
        assert max(_halves(lag, "log", order, 0.3)) <= estimate


@each_order
def test_the_printed_constants_are_larger_than_the_computed_ones(order):
    for beta, constant in itertools.product((0.05, 0.5, 3.0), (0.5, 2.0)):
        tail = Tail("light", constant, beta)
        for share in (0.2, 1.0):
            alpha = share * beta / (order + 1)
            computed = bounds.tail_constant(tail, "lin", order=order, alpha=alpha)
            assert computed <= bounds.closed_form_tail(tail, "lin", order=order, alpha=alpha)
            printed = 2 * constant * bounds.closed_form(0, "lin", order=order, alpha=alpha)[0]
            assert bounds.closed_form_tail(tail, "lin", order=order, alpha=alpha) == pytest.approx(
                printed * math.exp(alpha * (order + 1))
            )
    for alpha in (0.1, 0.5):
        for tail in (Tail("heavy", 1.0, (1 + alpha) * (order + 1)), Tail("light", 1.0, 0.3)):
            computed = bounds.tail_constant(tail, "log", order=order, alpha=alpha)
            assert computed <= bounds.closed_form_tail(tail, "log", order=order, alpha=alpha) * 3  # another bump


HEADS = [3, 8, 16, 64, 256]


@each_order
@pytest.mark.parametrize("name", ["exponential", "ramp", "sech", "mixture", "difference"])
def test_the_bound_lies_above_the_jackson_sum_of_a_light_tail(order, name):
    kernel = KERNELS[name]
    tail = bounds.tail_of(kernel, "light", kernel.exponent, window=4000)
    alpha = kernel.exponent / (order + 1)
    values = kernel.values(2000).numpy()
    for heads in HEADS:
        made = sums.jackson_sum(values, heads, "lin", alpha=alpha, order=order)
        bound = bounds.essential(tail, heads, "lin", order=order)
        assert bound.alpha == (alpha,)
        assert made.error <= bound.attention <= bound.printed


@pytest.mark.parametrize("beta, order", [(3.0, 1), (4.5, 2), (6.0, 3)])
def test_the_bound_lies_above_the_jackson_sum_of_a_heavy_tail(beta, order):
    values = np.arange(400.0).clip(1) ** -beta * np.where(np.arange(400) % 3, 1, -1)
    tail = bounds.tail_of(values, "heavy", beta)
    assert tail.constant == pytest.approx(1)
    for heads in HEADS:
        bound = bounds.essential(tail, heads, "log", order=order)
        made = sums.jackson_sum(values, heads, "log", alpha=bound.alpha[0], order=order)
        assert made.error <= bound.attention


# ---------------------------------------------------------------- Theorem e:thm-smooth


@each_order
@pytest.mark.parametrize(
    "name, exponent", [("rounded power", 1.5), ("power", 1.5), ("sech", 3.0), ("exponential", 2.0)]
)
def test_the_derivative_of_a_smooth_kernel_is_below_the_bound(order, name, exponent):
    kernel = KERNELS[name]
    tail = bounds.tail_of(kernel, "heavy", exponent, order)
    alpha = (exponent - 1) / (order + 1)
    s = np.geomspace(4000.0, 1.0, 6001)
    u = s**-alpha
    g = s ** (1 + alpha) * kernel(torch.from_numpy(s)).numpy()
    measured = divided(g, u, order)
    assert measured <= _smooth_size(tail, order, alpha) * (1 + 1e-3)
    assert _smooth_size(tail, order, alpha) <= 200 * measured  # the triangle inequality ignores signs


@each_order
def test_the_bound_lies_above_a_polynomial_of_the_smooth_kernel(order):
    """G itself at Chebyshev points: no bumps, no window; the l1 error on 3,000 lags."""
    kernel = KERNELS["rounded power"]
    tail = bounds.tail_of(kernel, "heavy", 1.5, order)
    lags = torch.arange(1, 3001, dtype=torch.float64)
    for heads in HEADS:
        bound = bounds.essential(tail, heads, "log", order=order)
        alpha = bound.alpha[0]
        nodes = (1 + np.cos(np.pi * (np.arange(heads) + 0.5) / heads)) / 2
        s = torch.from_numpy(nodes ** (-1 / alpha))
        g = (s ** (1 + alpha) * kernel(s)).numpy()
        series = chebyshev.chebfit(2 * nodes - 1, np.nan_to_num(g), heads - 1)
        u = lags.numpy() ** -alpha
        phi = lags.numpy() ** -(1 + alpha) * chebyshev.chebval(2 * u - 1, series)
        assert np.abs(phi - kernel(lags).numpy()).sum() <= bound.attention


def test_the_constants_of_a_pure_power_are_powers_of_its_exponent():
    """theta s^-beta = -beta s^-beta."""
    tail = bounds.tail_of(lambda s: s.clamp(min=1e-9) ** -2.5, "heavy", 2.5, 5, window=100)
    assert tail.smooth == pytest.approx([2.5**k for k in range(6)], rel=1e-9)
    order, alpha = 3, 0.2
    exact = math.prod(1 + k * alpha + 2.5 for k in range(1, order + 1)) / alpha**order
    assert _smooth_size(tail, order, alpha) == pytest.approx(exact, rel=1e-9)  # the estimate loses the signs only


def test_derivatives_are_those_of_a_difference_quotient():
    kernel, step = KERNELS["rounded power"], 1e-3
    tail = bounds.tail_of(kernel, "heavy", 1.5, 2, window=50, points=400)
    y = np.linspace(0, math.log(50), 3001)
    rho = [kernel(torch.from_numpy(np.exp(y + k * step))).numpy() for k in (-1, 0, 1)]
    first, second = (rho[2] - rho[0]) / (2 * step), (rho[2] - 2 * rho[1] + rho[0]) / step**2
    scale = np.exp(1.5 * y)
    assert tail.smooth[1] == pytest.approx(np.abs(first * scale).max(), rel=1e-4)
    assert tail.smooth[2] == pytest.approx(np.abs(second * scale).max(), rel=1e-4)


# ---------------------------------------------------------------- admissible orders


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.floats(0.02, 20), st.integers(1, 8), st.sampled_from(["light", "rough", "smooth"]))
def test_the_edge_of_the_admissible_range(beta, order, kind):
    """At the largest alpha the order is allowed, a little above it is not; and both functions agree."""
    beta += kind != "light"
    tail = (
        Tail("light", 1.0, beta)
        if kind == "light"
        else Tail("heavy", 1.0, beta, (1.0,) * 9 if kind == "smooth" else None)
    )
    encoding = "lin" if kind == "light" else "log"
    top = bounds.largest_alpha(tail, encoding, order)
    exact = {"light": beta / (order + 1), "rough": beta / (order + 1) - 1, "smooth": (beta - 1) / (order + 1)}[kind]
    if kind == "smooth":
        exact = max(exact, beta / (order + 1) - 1)
    assert top == pytest.approx(max(exact, 0.0), abs=2e-9)
    if top > 1e-6:
        assert bounds.admissible(tail, encoding, top) >= order
        assert bounds.admissible(tail, encoding, top * (1 + 1e-6)) < order


def test_the_paper_fixes_alpha():
    tail = Tail("light", 1.0, 0.25)
    assert bounds.admissible(tail, "lin", 0.01) == 24  # n <= 100 beta - 1
    assert bounds.admissible(tail, "lin", 0.25 / 2) == 1
    assert bounds.admissible(tail, "lin", 0.126) == 0
    assert bounds.admissible(tail, "log", 0.5) == math.inf
    assert bounds.admissible(Tail("heavy", 1.0, 3.0), "lin", 0.1) == 0
    assert bounds.admissible(Tail("heavy", 1.0, 1.9), "log", 1e-6) == 0  # decay alone: nothing below 2
    assert bounds.admissible(Tail("heavy", 1.0, 3.1), "log", 0.01) == 2
    assert bounds.admissible(Tail("heavy", 1.0, 1.5, (1.0, 1.5, 2.3)), "log", 0.01) == 2  # as far as it is smooth
    assert bounds.admissible(Tail("heavy", 1.0, 1.5, (1.0,) * 9), "log", 0.1) == 4


def test_below_the_edge_the_derivative_explodes():
    """With alpha (n + 1) above beta the n-th derivative of the filled kernel has no bound: it grows from lag to lag."""
    beta, alpha, order = 0.5, 0.3, 1
    sizes = []
    for start in (0, 20, 40):
        s = np.linspace(start + 2.0, float(start), 2001)
        u = np.exp(-alpha * s)
        sizes.append(divided(filled(lambda k: np.exp(-beta * k), order, s) / u, u, order))
    assert sizes[1] > 5 * sizes[0]
    assert sizes[2] > 5 * sizes[1]


# ---------------------------------------------------------------- Theorem 4


def test_sharing_gains_up_to_the_nth_power_of_the_number_of_kernels():
    tails = [Tail("light", 1.0, 0.25)] * 4
    for order, heads in ((1, 16), (2, 32), (3, 64)):
        shared = bounds.essential(tails, heads, "lin", order=order)
        split = bounds.essential(tails, heads, "lin", order=order, sharing=False)
        assert split.attention / shared.attention == pytest.approx(4**order)
        assert shared.heads == (heads,) * 4
        assert split.heads == (heads // 4,) * 4


def test_split_heads_go_where_the_readout_listens():
    tails = [Tail("light", 1.0, 0.25)] * 2
    split = bounds.essential(tails, 90, "lin", order=1, lipschitz=(4.0, 1.0), sharing=False)
    assert split.heads == (60, 30)  # in proportion to (L B)^(1 / (n + 1))
    deaf = bounds.essential(tails, 90, "lin", order=1, lipschitz=(4.0, 0.0), sharing=False)
    assert deaf.heads == (89, 1)
    assert sum(bounds.essential(tails, 90, "lin", order=1, lipschitz=0.0, sharing=False).heads) == 90


def test_shared_heads_take_the_alpha_that_all_kernels_allow():
    tails = [Tail("light", 1.0, 0.5), Tail("light", 1.0, 0.1)]
    assert bounds.essential(tails, 8, "lin", order=1).alpha == (0.05, 0.05)
    assert bounds.essential(tails, 8, "lin", order=1, sharing=False).alpha == (0.25, 0.05)
    assert bounds.essential(Tail("light", 1.0, 9.0), 8, "lin", order=1).alpha == (1.0,)


def test_the_best_order_is_the_best():
    tail = bounds.tail_of(KERNELS["rounded power"], "heavy", 1.5, 6)
    for heads in (4, 64, 1024):
        best = bounds.essential(tail, heads, "log")
        every = [bounds.essential(tail, heads, "log", order=n).total for n in range(1, min(heads, 6) + 1)]
        assert best.total == min(every)
    orders = [bounds.essential(tail, heads, "log").order for heads in (4, 64, 1024)]
    assert orders == sorted(orders)
    assert orders[-1] > orders[0]


def test_the_parts_of_the_total():
    tails = [Tail("light", 1.0, 0.25), Tail("light", 0.5, 0.5)]
    found = bounds.essential(tails, 4096, "lin", order=1, lipschitz=(2.0, 0.5), width=100, norm=6.0, size=3.0)
    assert found.attention == pytest.approx(sum(found.per_kernel))
    assert found.ffn == pytest.approx(4 * (3 + max(found.per_kernel)) * math.sqrt(3) * 6 / 10)
    assert found.total == pytest.approx(found.ffn + 2 * found.per_kernel[0] + 0.5 * found.per_kernel[1])
    assert bounds.essential(tails, 64, "lin", order=1).ffn == 0
    small = bounds.essential(tails, 4096, "lin", order=1, width=100, norm=6.0, size=0.01, dimension=7)
    assert small.ffn == pytest.approx(4 * math.sqrt(8) * 6 / 10)
    scaled = bounds.essential([Tail("light", 2.0, 0.25)], 64, "lin", order=1)
    assert scaled.attention == pytest.approx(
        2 * bounds.essential([Tail("light", 1.0, 0.25)], 64, "lin", order=1).attention
    )


# ---------------------------------------------------------------- measured tails


def test_the_constants_are_the_least_on_the_window():
    for name in ("sech", "ramp", "mixture", "difference"):
        kernel = KERNELS[name]
        tail = bounds.tail_of(kernel, "light", kernel.exponent, window=300)
        ratio = np.abs(kernel.values(301).numpy()) / tail(np.arange(301))
        assert ratio.max() == pytest.approx(1, rel=1e-9)
    heavy = bounds.tail_of(KERNELS["power"].values(200).numpy(), "heavy", 1.5)
    ratio = KERNELS["power"].values(200).numpy()[1:] / heavy(np.arange(1, 200))
    assert ratio.max() == pytest.approx(1, rel=1e-9)
    assert heavy(0) == math.inf


def test_a_tail_that_is_too_light_is_found_out():
    with pytest.raises(ValueError, match="heavier than the exponent says"):
        bounds.tail_of(KERNELS["power"], "light", 0.25)


HEAVY, LIGHT = Tail("heavy", 1.0, 1.5), Tail("light", 1.0, 0.2)
BAD = [
    (lambda: Tail("fat", 1.0, 1.0), "allowed: light, heavy"),
    (lambda: Tail("light", 0.0, 1.0), "constant must be a positive"),
    (lambda: Tail("light", 1.0, math.inf), "exponent must be a positive"),
    (lambda: Tail("heavy", 1.0, 1.0), "an exponent above 1"),
    (lambda: Tail("light", 1.0, 1.0, (1.0,)), "say 'heavy'"),
    (lambda: Tail("heavy", 1.0, 2.0, ()), "smooth must be the numbers"),
    (lambda: Tail("heavy", 1.0, 2.0, (0.5, 1.0)), "at least the constant 1"),
    (lambda: Tail("heavy", 1.0, 2.0, (1.0, math.nan)), r"smooth\[1\] must be a finite"),
    (lambda: bounds.tail_of([1.0, 0.5], "fat", 1.0), "allowed: light, heavy"),
    (lambda: bounds.tail_of([1.0], "light", 1.0), "at least two finite values"),
    (lambda: bounds.tail_of([1.0, 0.5], "heavy", 2.0, 1), "have no derivatives"),
    (lambda: bounds.tail_of([0.0, 0.0], "light", 1.0), "no tail"),
    (lambda: bounds.tail_of(lambda s: s[:1], "light", 1.0), "as many finite numbers"),
    (lambda: bounds.tail_of(lambda s: s.detach() ** -2.0 + 1e-9, "heavy", 2.0, 1), "finite numbers"),
    (lambda: bounds.tail_of(lambda s: (1 + s.detach()) ** -2.0, "heavy", 2.0, 1), "torch operations"),
    (lambda: bounds.tail_of(KERNELS["sech"], "light", 0.25, 1, window=99), "say kind='heavy'"),
    (lambda: bounds.tail_of(KERNELS["sech"], "heavy", 2.0, 9), r"orders must lie in 0..8"),
    (lambda: bounds.essential([], 4, "lin"), "at least one"),
    (lambda: bounds.essential(HEAVY, 4, "log"), "decay alone needs .* so n < 0.5; for a smooth kernel give"),
    (lambda: bounds.essential(HEAVY, 4, "lin"), "no bound of this kind .*quadrature_sum"),
    (lambda: bounds.essential(LIGHT, 4, "lin", order=2, alpha=0.1), "n is 1; n = 2 needs alpha <= 0.06667"),
    (lambda: bounds.essential(Tail("light", 1.0, 0.2), 4, "lin", alpha=0.3), "n is 0; n = 1 needs alpha <= 0.1"),
    (lambda: bounds.essential(Tail("heavy", 1.0, 1.5, (1.0, 2.0)), 4, "log", order=2), "reaches n = 1; give"),
    (lambda: bounds.essential(Tail("light", 1.0, 1.0), 2, "lin", order=3), "heads must be .* at least 3"),
    (lambda: bounds.essential([LIGHT] * 3, 2, "lin", sharing=False), "heads must be .* at least 3"),
    (lambda: bounds.essential(Tail("light", 1.0, 1.0), 4, "rotary"), "lin, log"),
    (lambda: bounds.essential(Tail("light", 1.0, 1.0), 4, "lin", lipschitz=(1.0, 2.0)), "each of 1 kernels, got 2"),
    (lambda: bounds.essential(Tail("light", 1.0, 1.0), 4, "lin", lipschitz=-1.0), "lipschitz must be at least 0"),
    (lambda: bounds.essential(Tail("light", 1.0, 1.0), 4, "lin", width=3), "belong together"),
    (lambda: bounds.essential(Tail("light", 1.0, 1.0), 4, "lin", alpha=0.0), "alpha must be a positive"),
    (lambda: bounds.essential(Tail("light", 1.0, 1.0), 4, "lin", size=0), "size must be a positive"),
]  # fmt: skip


@pytest.mark.parametrize("call, message", BAD, ids=[m for _, m in BAD])
def test_bad_arguments_say_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_tail_must_be_a_tail():
    with pytest.raises(TypeError, match="Tail, got float"):
        bounds.admissible(0.5, "lin", 0.1)
    with pytest.raises(TypeError, match="Tail, got str"):
        bounds.essential(["light"], 4, "lin")


def test_values_too_small_for_double_precision_do_not_count():
    """Far out $e^{-s/4}$ is a denormal number, known to no digit; the constant of sech is 2 all the same."""
    assert bounds.tail_of(KERNELS["sech"], "light", 0.25).constant == pytest.approx(2.0, rel=1e-12)
