"""Barron functions: exact values, norms and second moments; sampled networks against what the theory predicts."""

import math
import pickle

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memlib import barron
from memlib.model import FeedForward

W = (0.7, -0.3)
FUNCTIONS = [
    barron.simplex_mean(1),
    barron.simplex_mean(2),
    barron.simplex_mean(8),
    barron.square_ridge(W),
    barron.cosine_ridge(W),
    barron.cosine_ridge((0.2, 0.3, -0.5)),
]
IDS = [f"{f.name} {f.dimension}" for f in FUNCTIONS]
each = pytest.mark.parametrize("f", FUNCTIONS, ids=IDS)
coordinate = st.floats(-1, 1, allow_subnormal=False)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


# ---------------------------------------------------------------- values


def exact_simplex(nodes, power):
    """The divided difference of the truncated power, by its definition, in extended precision."""
    with mpmath.workdps(300):
        nodes = sorted(mpmath.mpf(x) for x in nodes)
        table = [x**power if x > 0 else mpmath.mpf(0) for x in nodes]
        for k in range(1, len(nodes)):
            table = [(table[i + 1] - table[i]) / (nodes[i + k] - nodes[i]) for i in range(len(nodes) - k)]
        return float(table[0])


NODES = [
    (0.5, -0.25),
    (1e-9, -1e-9),
    (0.5, 0.5 + 1e-13),
    (0.3, 0.3 - 1e-15, 0.3 + 1e-15),
    (-1.0, -1e-12, 1e-12, 1.0),
    (0.1, -0.2, 0.30001, -0.4, 0.3, 0.29999, -0.7, 0.8),
    (1e-15, 2e-15, -1e-15, -2e-15, 3e-15, 0.9, -0.9, 0.91),
    (-0.1, -0.2, -0.3),
]


@pytest.mark.parametrize("nodes", NODES, ids=str)
def test_simplex_mean_equals_the_divided_difference_also_for_close_coordinates(nodes):
    d = len(nodes)
    f = barron.simplex_mean(d)
    assert float(f(tensor(*nodes))) == pytest.approx(exact_simplex(nodes, d) / d, rel=1e-13, abs=0)
    second = exact_simplex(nodes, d + 1) * 2 / (d * (d + 1))
    assert float(f.second_moment(tensor(*nodes))) == pytest.approx(second, rel=1e-13, abs=0)


def test_simplex_mean_at_coinciding_coordinates_and_by_hand():
    f = barron.simplex_mean(2)
    points = tensor((1.0, -1.0), (0.4, 0.4), (-0.4, -0.4), (0.6, 0.2), (0.0, 0.0))
    assert torch.allclose(f(points), tensor(0.25, 0.4, 0.0, 0.4, 0.0), rtol=1e-15, atol=0)
    assert float(f.second_moment(tensor(1.0, -1.0))) == pytest.approx(1 / 6, rel=1e-15)
    assert float(barron.simplex_mean(8)(torch.ones(8, dtype=torch.float64))) == pytest.approx(1.0, rel=1e-15)


def test_simplex_mean_does_not_depend_on_the_order_of_the_coordinates():
    f, x = barron.simplex_mean(5), barron.cube_points(50, 5)
    assert torch.equal(f(x), f(x[:, [3, 0, 4, 1, 2]]))


def test_ridge_functions_are_their_formulas():
    x = barron.cube_points(100, 2)
    z = x @ tensor(*W)
    assert torch.allclose(barron.square_ridge(W)(x), z**2, rtol=1e-14, atol=0)
    assert torch.allclose(barron.cosine_ridge(W)(x), 1 - torch.cos(math.pi * z), rtol=0, atol=1e-15)


CURVATURES = [
    (barron.square_ridge((1.0,)), lambda t: mpmath.mpf(2)),
    (barron.cosine_ridge((1.0,)), lambda t: mpmath.pi**2 * abs(mpmath.cos(mpmath.pi * t))),
]
ridges = pytest.mark.parametrize("f, curvature", CURVATURES, ids=["square", "cosine"])


def integral(function, end):
    """The integral from 0, broken at 1/2, where the curvature of the cosine changes its sign; 30 digits."""
    with mpmath.workdps(30):
        return float(mpmath.quad(function, [0, min(mpmath.mpf(end), mpmath.mpf("0.5")), mpmath.mpf(end)]))


@pytest.mark.parametrize("z", [0.0, 1e-6, 0.3, 0.5, 0.51, 1.0])
@ridges
def test_second_moment_of_ridge_functions_against_extended_precision(f, curvature, z):
    exact = integral(lambda t: curvature(t) * (z - t) ** 2 / (1 + t), z) / f.norm
    assert float(f.second_moment(tensor(z))) == pytest.approx(float(exact), rel=1e-12, abs=0)


def test_second_moment_of_the_square_at_one_by_hand():
    assert 36 * float(barron.square_ridge((1.0,)).second_moment(tensor(1.0))) == pytest.approx(
        12 * (4 * math.log(2) - 2.5), rel=1e-14
    )


# ---------------------------------------------------------------- norms


def test_norms_equal_the_weighted_curvature_and_the_value_at_the_corner():
    line = torch.linspace(-1, 1, 400_001, dtype=torch.float64)
    for f in (barron.square_ridge(W), barron.cosine_ridge(W)):
        # second differences along the diagonal x = z sign(w) bound the norm from below and converge to it
        g = f(line[:, None] * tensor(1.0, -1.0))
        cost = ((g[2:] - 2 * g[1:-1] + g[:-2]).abs() * (1 + line[1:-1].abs())).sum() / (line[1] - line[0])
        assert f.norm == pytest.approx(float(cost), rel=2e-5)
    for d in (1, 2, 8):
        f = barron.simplex_mean(d)
        assert f.norm == pytest.approx(float(f(torch.ones(d, dtype=torch.float64))), rel=1e-14)


@each
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_values_stay_below_the_norm_and_are_lipschitz_with_it(f, data):
    vectors = st.lists(coordinate, min_size=f.dimension, max_size=f.dimension)
    x, y = tensor(*data.draw(vectors)), tensor(*data.draw(vectors))
    assert abs(float(f(x))) <= f.norm * (1 + 1e-14)
    assert abs(float(f(x) - f(y))) <= f.norm * float((x - y).abs().max()) + 1e-14
    second = float(f.second_moment(x))
    assert -1e-13 <= f.norm**2 * second - float(f(x)) ** 2 and second <= 1 + 1e-14


# ---------------------------------------------------------------- sampling


@each
def test_sampled_neurons_are_normalised_and_average_to_the_function(f):
    count = 100_000
    signs, b, c = f.sample_neurons(count, generator(1))
    assert signs.shape == (count,) and b.shape == (count, f.dimension) and c.shape == (count,)
    assert torch.allclose(b.abs().sum(-1) + c.abs(), torch.ones_like(c), rtol=0, atol=1e-14)
    assert bool((signs.abs() == 1).all())
    x = barron.cube_points(40, f.dimension)
    active = torch.relu(x @ b.T + c)
    for values, exact in ((f.norm * active * signs, f(x)), (active**2, f.second_moment(x))):
        spread = values.std(-1) / math.sqrt(count)
        assert bool(((values.mean(-1) - exact).abs() <= 5 * spread + 1e-13).all())


@ridges
def test_kinks_follow_their_distribution(f, curvature):
    _, b, c = f.sample_neurons(100_000, generator(2))
    kinks = (c / b[:, 0]).abs()
    for t in (0.1, 0.3, 0.5, 0.7, 0.9):
        mass = integral(lambda s: (1 + s) * curvature(s), t) * 2 / f.norm
        assert float((kinks <= t).double().mean()) == pytest.approx(mass, abs=5 * 0.5 / math.sqrt(100_000))


def test_sampling_is_a_function_of_the_generator_alone():
    f = barron.cosine_ridge(W)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first = barron.sampled_ffn(f, 16, generator(5))
    assert torch.equal(torch.random.get_rng_state(), before)
    again, other = barron.sampled_ffn(f, 16, generator(5)), barron.sampled_ffn(f, 16, generator(6))
    assert torch.equal(first.hidden.weight, again.hidden.weight)
    assert not torch.equal(first.hidden.weight, other.hidden.weight)


@each
def test_sampled_ffn_is_the_formula(f):
    network = barron.sampled_ffn(f, 12, generator(7))
    assert isinstance(network, FeedForward)
    signs, b, c = f.sample_neurons(12, generator(7))
    x = barron.cube_points(30, f.dimension)
    formula = sum(f.norm / 12 * s * torch.relu(x @ v + u) for s, v, u in zip(signs, b, c, strict=True))
    assert torch.allclose(network(x)[:, 0], formula, rtol=0, atol=1e-13)


@each
def test_mean_square_error_over_draws_is_the_predicted_one_at_every_width(f):
    x = barron.cube_points(64, f.dimension)
    for m in (1, 4, 16):
        draws = 4000
        signs, b, c = f.sample_neurons(m * draws, generator(m))
        values = (f.norm * signs * torch.relu(x @ b.T + c)).reshape(len(x), draws, m).mean(-1)
        predicted = barron.sampling_rms(f, x, m) ** 2
        squares = (values - f(x)[:, None]).square().mean(0)
        spread = float(squares.std()) / math.sqrt(draws)
        assert float(squares.mean()) == pytest.approx(predicted, abs=5 * spread + 1e-20)
        assert m * predicted == pytest.approx(barron.sampling_rms(f, x, 1) ** 2, rel=1e-13, abs=1e-20)


@each
def test_mean_greatest_error_stays_below_the_uniform_bound(f):
    x = barron.cube_points(500, f.dimension)
    for m in (4, 64):
        greatest = [
            barron.approximation_error(barron.sampled_ffn(f, m, generator(seed)), f, x)[1] for seed in range(20)
        ]
        assert sum(greatest) / 20 <= barron.uniform_bound(f, m)
        assert barron.uniform_bound(f, m) == 4 * math.sqrt(f.dimension + 1) * f.norm / math.sqrt(m)


def test_approximation_error_is_root_mean_square_and_maximum():
    f = barron.square_ridge((1.0,))
    x = tensor((0.0,), (0.5,), (-1.0,))
    network = FeedForward(1, 1, 1, generator=generator())
    torch.nn.init.zeros_(network.out.weight)
    rms, greatest = barron.approximation_error(network, f, x)
    assert greatest == 1.0 and rms == pytest.approx(math.sqrt((0.25**2 + 1) / 3), rel=1e-15)


# ---------------------------------------------------------------- chosen and trained networks


@pytest.mark.parametrize("m", [2, 4, 10, 64])
def test_interpolating_ffn_has_the_error_of_piecewise_linear_interpolation(m):
    x = torch.linspace(-1, 1, 8 * m + 1, dtype=torch.float64)[:, None] * tensor(1.0, -1.0)
    square, cosine = barron.square_ridge(W), barron.cosine_ridge(W)
    network = barron.interpolating_ffn(square, m)
    assert network.hidden.weight.shape == (m, 2)
    assert barron.approximation_error(network, square, x)[1] == pytest.approx(m**-2, rel=1e-9)
    assert barron.approximation_error(barron.interpolating_ffn(cosine, m), cosine, x)[1] <= math.pi**2 / 2 / m**2
    assert barron.approximation_error(barron.interpolating_ffn(cosine, m), cosine, x[::8])[1] < 1e-12


def test_functions_are_frozen_and_can_be_sent_to_another_process():
    for f in FUNCTIONS:
        copy = pickle.loads(pickle.dumps(f))
        assert copy == f and hash(copy) == hash(f)
        with pytest.raises(AttributeError):
            f.norm = 2.0


def test_cube_points_are_the_same_each_time_and_fill_the_cube():
    x = barron.cube_points(255, 3)
    assert torch.equal(x, barron.cube_points(255, 3)) and x.dtype == torch.float64
    assert float(x.abs().max()) <= 1 and float(x.mean(0).abs().max()) < 0.02


# ---------------------------------------------------------------- bad input

F2 = barron.square_ridge(W)
BAD = [
    (lambda: barron.simplex_mean(0), ValueError, "d must be an integer of at least 1, got 0"),
    (lambda: barron.simplex_mean(2.0), ValueError, "d must be an integer of at least 1, got 2.0"),
    (lambda: barron.square_ridge((0.5, 0.6)), ValueError, r"absolute values of w must sum to 1 .* sum 1.1"),
    (lambda: barron.cosine_ridge((1.0, -1.0)), ValueError, r"absolute values of w must sum to 1 .* sum 2"),
    (lambda: barron.square_ridge(()), ValueError, "non-empty vector of finite numbers"),
    (lambda: barron.square_ridge((math.nan, 1.0)), ValueError, "non-empty vector of finite numbers"),
    (lambda: barron.square_ridge(((0.5, 0.5),)), ValueError, "non-empty vector of finite numbers"),
    (lambda: F2(tensor(0.0, 1.5)), ValueError, r"must lie in the cube \[-1, 1\]\^2, got 1.5"),
    (lambda: F2(tensor(0.0, math.nan)), ValueError, "must be finite"),
    (lambda: F2(tensor(0.0, 0.1, 0.2)), ValueError, r"shape \(..., d=2\), got \(3,\)"),
    (lambda: F2(torch.tensor(0.5, dtype=torch.float64)), ValueError, r"shape \(..., d=2\), got \(\)"),
    (lambda: F2(torch.zeros(2)), TypeError, "float64 tensor, got float32"),
    (lambda: F2([0.0, 0.0]), TypeError, "float64 tensor, got list"),
    (lambda: F2.second_moment(tensor(0.0, -2.0)), ValueError, r"got -2\.0"),
    (lambda: F2.sample_neurons(0, generator()), ValueError, "m must be an integer of at least 1, got 0"),
    (lambda: F2.sample_neurons(3, None), TypeError, "explicit torch.Generator, got NoneType"),
    (lambda: barron.sampled_ffn(F2, 0, generator()), ValueError, "width must be an integer of at least 1, got 0"),
    (lambda: barron.sampled_ffn(F2, True, generator()), ValueError, "width must be an integer of at least 1, got True"),
    (lambda: barron.sampled_ffn(F2, 3, 0), TypeError, "explicit torch.Generator, got int"),
    (lambda: barron.sampling_rms(F2, barron.cube_points(4, 2), 0), ValueError, "m must be an integer"),
    (lambda: barron.sampling_rms(F2, torch.zeros(0, 2, dtype=torch.float64), 3), ValueError, "at least one point"),
    (lambda: barron.uniform_bound(F2, -1), ValueError, "m must be an integer of at least 1, got -1"),
    (lambda: barron.cube_points(0, 2), ValueError, "count must be an integer"),
    (lambda: barron.cube_points(4, 0), ValueError, "d must be an integer"),
    (lambda: barron.interpolating_ffn(F2, 3), ValueError, "width must be an even integer of at least 2, got 3"),
    (lambda: barron.interpolating_ffn(barron.simplex_mean(2), 4), TypeError, "needs a ridge function, got SimplexMean"),
    (lambda: barron.approximation_error(lambda x: x, F2, barron.cube_points(4, 2)), ValueError, r"output \(n, 1\)"),
]


@pytest.mark.parametrize("call, error, message", BAD, ids=[row[2][:40] + f" {i}" for i, row in enumerate(BAD)])
def test_bad_input_says_what_was_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()
