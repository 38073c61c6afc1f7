"""The bounds of the chapter on adaptive memory: against printed constants, against real sums, against real layers."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import chebyshev
from scipy.fft import dct

import memlib
from memlib import bounds
from memlib.model import Transformer, TransformerConfig

each_encoding = pytest.mark.parametrize("encoding", ["lin", "log"])
each_order = pytest.mark.parametrize("order", [1, 2, 3])


# ---------------------------------------------------------------- the flat-top bump


@pytest.mark.parametrize("order", [1, 2, 3, 4, 6])
def test_the_flat_top_is_one_in_the_middle_and_fades_smoothly(order):
    chi = bounds.flat_top(order)
    z = np.linspace(-1, 1, 2001)
    tiny = 1e-11 * chi.height
    assert np.abs(chi(z[np.abs(z) <= 0.25]) - 1).max() < tiny
    assert np.abs(chi(z[np.abs(z) >= 0.75])).max() < tiny
    assert np.allclose(chi(z), chi(-z), atol=tiny)
    assert np.all((chi(z) > -tiny) & (chi(z) < 1 + tiny))
    for k in range(order):  # derivatives 0..n-1 are continuous at every knot and vanish at the ends
        left = [0.0, *(float(p.deriv(k)(z)) for p, z in zip(chi.pieces, chi.knots[1:], strict=True))]
        right = [*(float(p.deriv(k)(z)) for p, z in zip(chi.pieces, chi.knots[:-1], strict=True)), 0.0]
        assert np.allclose(left, right, atol=1e-9 * chi.height), k
    heights = [abs(float(p.deriv(order)(0.3))) for p in chi.pieces if p.degree()]
    assert heights == pytest.approx([chi.height] * (2 * order))


@pytest.mark.parametrize("order", [1, 2, 3, 4, 6])
def test_its_height_is_the_closed_form_and_below_that_of_the_page(order):
    height = bounds.flat_top(order).height
    assert height == pytest.approx(4.0**order * 2.0 ** (order - 2) * math.factorial(order - 1))
    page = 2**order * math.factorial(2 * order - 1) / math.factorial(order - 1)
    assert height <= page * (1 + 1e-12)


@each_order
def test_the_step_of_the_page_has_the_derivative_the_page_says(order):
    """rho' is -(x(1-x))^(n-1) / B(n, n); its (n-1)-st derivative is largest at the ends (Rodrigues)."""
    x = np.polynomial.Polynomial([0, 1])
    rho = (x * (1 - x)) ** (order - 1) * math.factorial(2 * order - 1) / math.factorial(order - 1) ** 2
    found = 2**order * np.abs(rho.deriv(order - 1)(np.linspace(0, 1, 2001))).max()
    assert found == pytest.approx(2**order * math.factorial(2 * order - 1) / math.factorial(order - 1))
    assert rho.integ()(1.0) - rho.integ()(0.0) == pytest.approx(1)
    jackson = bounds.jackson_constant(order) * found
    assert jackson == pytest.approx((math.pi * order / 2) ** order * math.comb(2 * order - 1, order))


@each_encoding
@each_order
@pytest.mark.parametrize("reach", [1, 2, 5])
@pytest.mark.parametrize("alpha", [0.05, 0.4, 2.0])
def test_the_derivative_is_that_of_a_grid(encoding, order, reach, alpha):
    exact = bounds.flat_derivative(reach, encoding, order=order, alpha=alpha)
    z = np.linspace(0.75, -0.75, 4001)
    if encoding == "lin":
        u = np.exp(-alpha * (z + reach + 0.25))
        g = bounds.flat_top(order)(z) / u
    else:
        s = reach * np.exp((z + 0.25) / (reach + 1))
        u, g = s**-alpha, bounds.flat_top(order)(z) * s ** (1 + alpha)
    for k in range(1, order + 1):
        g = np.diff(g) / (u[k:] - u[:-k]) * k
    assert np.abs(g).max() <= exact * (1 + 1e-3)
    assert np.abs(g).max() >= exact * 0.93


@each_encoding
@each_order
def test_the_printed_constants_are_larger_than_the_computed_ones(encoding, order):
    for reach, alpha in itertools.product((1, 2, 5, 20), (0.01, 0.1, 0.5, 1.0)):
        constant, base = bounds.closed_form_flat(reach, encoding, order=order, alpha=alpha)
        computed = bounds.pointer_constant(reach, encoding, order=order, alpha=alpha)
        assert computed <= constant * base ** (order + 1)
        fixed, same = bounds.closed_form(reach, encoding, order=order, alpha=alpha)
        assert (constant, base) == (pytest.approx(math.comb(2 * order - 1, order) * fixed), same)
        assert computed >= bounds.lag_constant(reach, encoding, order=order, alpha=alpha) * 0.9  # flat tops cost more


def test_a_printed_constant_by_hand():
    """n = 1, alpha = 1, T = 1: (pi / 2) (1 + 1) / (1 - 1/e), A = e^2."""
    constant, base = bounds.closed_form_flat(1, "lin", order=1, alpha=1.0)
    assert (constant, base) == pytest.approx((math.pi / (1 - math.exp(-1)), math.e**2))
    constant, base = bounds.closed_form_flat(1, "log", order=2, alpha=1.0)
    assert (constant, base) == pytest.approx((math.pi**2 * 3 * math.pi**2 / 6 * 4 / 2 * 5 / 2, 4.0))


# ---------------------------------------------------------------- against sums that are really built


def built_errors(reach, heads, encoding, order, alpha):
    r"""The l1 errors of a flat-top sum with Chebyshev interpolation, for all g and the pointers g, g ± tolerance."""
    chi = bounds.flat_top(order)
    u = (1 + np.cos(np.pi * (np.arange(heads) + 0.5) / heads)) / 2
    with np.errstate(over="ignore"):
        if encoding == "lin":
            g_of_u = chi(-np.log(u) / alpha - reach - 0.25) / u
        else:
            s = u ** (-1 / alpha)
            with np.errstate(invalid="ignore"):
                inside = s < 4 * reach + 4
                s = np.where(inside, s, 1.0)
            z = (reach + 1) * np.log(s / reach) - 0.25
            g_of_u = np.where(inside, chi(z) * s ** (1 + alpha), 0.0)
    series = dct(g_of_u, type=2) / heads
    series[0] /= 2
    tolerance = bounds.pointer_tolerance(reach, encoding)
    errors = []
    for g, off in itertools.product(range(1, reach + 1), (-1.0, 0.0, 1.0)):
        if encoding == "lin":
            s = np.arange(reach + 5 + math.ceil(40 / alpha), dtype=float)
            u = np.exp(-alpha * (s - (g + off * tolerance) + reach + 0.25))
            front, rest = u, 0.0
        else:
            s = np.arange(1, 20_001, dtype=float)
            scaled = s / (g * math.exp(off * tolerance)) * reach * math.exp(1 / (4 * (reach + 1)))
            u = scaled**-alpha
            front = u / scaled
            # beyond the last lag the sum is at most max |P| times the integral of the weight in front
            near_zero = np.abs(chebyshev.chebval(2 * np.linspace(0, u[-1], 200) - 1, series)).max()
            rest = near_zero * front[-1] * s[-1] / alpha
        values = front * chebyshev.chebval(2 * u - 1, series)
        errors.append(float(np.abs(values - (s == g)).sum()) + rest)
    return errors


@each_encoding
@each_order
@pytest.mark.parametrize("reach", [1, 3, 6])
@pytest.mark.parametrize("alpha", [None, 0.2, 1.0])
def test_the_bound_lies_above_sums_that_are_built(encoding, order, reach, alpha):
    a = bounds.default_alpha(reach, encoding) if alpha is None else alpha
    for heads in (4, 16, 64, 256):
        errors = built_errors(reach, heads, encoding, order, a)
        bound = bounds.adaptive(reach, heads, encoding, order=order, alpha=alpha)
        assert max(errors) <= bound.attention
        assert bound.attention <= bound.printed
    assert max(errors) < 0.5 * max(built_errors(reach, 16, encoding, order, a)) + 1e-12  # the sums do converge


def test_the_flat_top_forgives_a_quarter_and_no_more():
    """Within the tolerance the built sum fetches g; with half a step more it fetches half of each neighbour."""
    chi = bounds.flat_top(3)
    for g, off in itertools.product(range(1, 6), (-0.25, -0.1, 0.0, 0.25)):
        assert chi(np.arange(10) - (g + off)) == pytest.approx(np.eye(10)[g], abs=1e-9)
    assert chi(np.arange(10) - 3.5) == pytest.approx(np.eye(10)[3] / 2 + np.eye(10)[4] / 2)
    for reach in (1, 2, 7):
        tolerance = bounds.pointer_tolerance(reach, "log")
        for g, off in itertools.product(range(1, reach + 1), (-tolerance, tolerance)):
            values = chi((reach + 1) * (np.log(np.arange(1, 30)) - math.log(g) - off))
            assert values == pytest.approx(np.eye(29)[g - 1], abs=1e-9)


# ---------------------------------------------------------------- Theorems 2 and 3


@each_encoding
@each_order
def test_the_bound_falls_like_a_power_of_the_heads(encoding, order):
    heads = [2**14, 2**16, 2**18]
    for nesting, reach in ((0, [3]), (0, [2, 4]), (1, [3]), (2, [2, 3, 4])):
        found = [
            bounds.adaptive(reach, h, encoding, nesting=nesting, order=order, pointer_lipschitz=0.0) for h in heads
        ]
        slopes = np.diff(np.log([f.attention for f in found])) / np.diff(np.log(heads))
        assert slopes == pytest.approx([-order] * 2, abs=0.01)
        printed = np.diff(np.log([f.printed for f in found])) / np.diff(np.log(heads))
        assert printed == pytest.approx([-order] * 2)


@pytest.mark.parametrize(
    "count, nesting, depth", [(1, 0, 2), (1, 1, 2), (2, 1, 3), (3, 0, 2), (3, 3, 4), (4, 2, 4), (4, 4, 5)]
)
def test_the_depth_is_the_formula(count, nesting, depth):
    found = bounds.adaptive([2] * count, 10**4, "lin", nesting=nesting, order=1, pointer_lipschitz=0.0)
    assert found.depth == depth == nesting + 1 + (count > nesting)
    assert found.heads[:nesting] == (10**4,) * nesting
    assert sum(found.heads[nesting:]) == (10**4 if count > nesting else 0)


def test_splitting_gives_the_power_of_the_sum():
    """Theorem 2: heads in proportion to Lambda^(1/(n+1)) give (sum Lambda^(1/(n+1)))^(n+1) / H^n, in l1."""
    for order in (1, 2):
        found = bounds.adaptive([1, 3, 6], 30_000, "lin", order=order)
        constants = [bounds.pointer_constant(t, "lin", order=order) for t in (1, 3, 6)]
        wanted = sum(c ** (1 / (order + 1)) for c in constants) ** (order + 1) / 30_000**order
        assert sum(found.per_pointer) == pytest.approx(wanted, rel=1e-3)
        assert found.attention == pytest.approx(math.hypot(*found.per_pointer))
        assert found.attention <= sum(found.per_pointer) <= found.printed


def test_the_parts_of_the_total():
    found = bounds.adaptive([2, 3], 10**5, "lin", nesting=1, order=2, lipschitz=1.5, width=400, norm=3.0)
    assert found.ffn == pytest.approx(4 * (1 + max(found.per_pointer)) * 2 * 3 / 20)
    assert found.total == pytest.approx(found.ffn + 1.5 * found.attention)
    wide = bounds.adaptive([2, 3], 10**5, "lin", nesting=1, order=2, width=400, norm=3.0, channels=2)
    assert wide.ffn == pytest.approx(found.ffn * math.sqrt(7) / 2)
    assert bounds.adaptive([2, 3], 10**5, "lin", nesting=1, order=2).ffn == 0


@each_encoding
@each_order
def test_the_least_heads_are_the_edge_of_the_theorem(encoding, order):
    for reach, nesting, slope in (([2, 3], 1, 1.0), ([2, 2, 3], 2, 0.7), ([3, 2, 2], 1, 2.0), ([2, 3], 2, 1.0)):
        known = dict(nesting=nesting, order=order, pointer_lipschitz=slope, alpha=0.5)
        edge = bounds.adaptive(reach, 10**6, encoding, **known).least_heads
        at = bounds.adaptive(reach, edge, encoding, **known)
        assert at.applies and at.least_heads == edge
        for i, allowed in enumerate(at.tolerance):  # the hypothesis itself
            assert slope * math.hypot(*at.per_pointer[: min(i, nesting)]) <= allowed * (1 + 1e-12)
        below = bounds.adaptive(reach, edge - 1, encoding, **known)
        assert not below.applies
        assert below.attention == below.total == below.printed == math.inf
        assert below.per_pointer[0] < math.inf


def test_without_nesting_or_with_staircases_heads_are_never_too_few():
    assert bounds.adaptive([2, 3], 2, "lin", order=1).least_heads == 2
    assert bounds.adaptive([2, 3], 1, "lin", nesting=2, order=1, pointer_lipschitz=0.0).applies
    assert not bounds.adaptive([2, 3], 1, "lin", nesting=2, order=1).applies


def test_the_width_of_a_pointer_halves_its_tolerance():
    """m = (4 sqrt(d + 1) |g| / (tolerance / 2))^2, by hand for lin and one channel: (4 sqrt 2 * 3 * 8)^2."""
    found = bounds.adaptive([4], 1000, "lin", order=2, pointer_norm=3.0)
    assert found.pointer_width == (math.ceil((4 * math.sqrt(2) * 3 * 8) ** 2),)
    log = bounds.adaptive([4], 1000, "log", order=2, pointer_norm=3.0)
    assert log.pointer_width[0] == pytest.approx(25 * found.pointer_width[0], rel=1e-3)  # (T + 1)^2 more
    halved = bounds.adaptive([2, 3], 10**6, "lin", nesting=1, order=2, pointer_norm=[2.0, 2.0])
    full = bounds.adaptive([2, 3], 10**6, "lin", nesting=1, order=2)
    assert halved.least_heads == pytest.approx(math.sqrt(2) * full.least_heads, abs=2)
    nested = (4 * (1 + halved.per_pointer[0]) * math.sqrt(3) * 2 * 8) ** 2
    assert halved.pointer_width[1] == math.ceil(nested)
    assert bounds.adaptive([4], 1000, "lin", order=2).pointer_width is None


@settings(max_examples=60, deadline=None)
@given(
    reach=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    nesting=st.integers(0, 4),
    order=st.integers(1, 4),
    heads=st.integers(20, 5000),
    encoding=st.sampled_from(["lin", "log"]),
)
def test_more_heads_never_hurt_and_longer_reach_never_helps(reach, nesting, order, heads, encoding):
    nesting = min(nesting, len(reach))
    known = dict(nesting=nesting, order=order, pointer_lipschitz=0.0, alpha=0.3)
    found = bounds.adaptive(reach, heads, encoding, **known)
    assert found.attention > bounds.adaptive(reach, 2 * heads, encoding, **known).attention > 0
    longer = [*reach[:-1], reach[-1] + 1]
    assert found.attention < bounds.adaptive(longer, heads, encoding, **known).attention
    assert found.attention <= found.printed
    assert found.attention == pytest.approx(math.hypot(*found.per_pointer))


def test_a_bound_beyond_the_range_of_floats_is_infinite():
    assert bounds.pointer_constant(30, "lin", order=8, alpha=3.0) == math.inf
    assert bounds.adaptive([30], 100, "lin", order=8, alpha=3.0).attention == math.inf


BAD = [
    (dict(reach=[]), "at least one pointer"),
    (dict(reach=[0]), "reach .* must be an integer of at least 1, got 0"),
    (dict(reach=[2.0]), "got 2.0"),
    (dict(reach=[2, 2], heads=1), "heads must be an integer of at least 2, got 1"),
    (dict(order=0), "order must be an integer from 1 to 8"),
    (dict(nesting=2), "nesting must lie in 0..1, the number of pointers, got 2"),
    (dict(nesting=-1), "nesting must be an integer of at least 0"),
    (dict(alpha=-0.5), "alpha must be a positive"),
    (dict(encoding="t5"), "lin, log"),
    (dict(lipschitz=-1.0), "lipschitz must be at least 0"),
    (dict(pointer_lipschitz=[1.0, 1.0]), "one for each of the 1 pointers, got 2"),
    (dict(pointer_error=0.3), "pointer_error of pointer 1 is 0.3, which leaves nothing of its tolerance 0.25"),
    (dict(pointer_error=0.1, pointer_norm=1.0), "not both"),
    (dict(pointer_norm=math.nan), "pointer_norm must be a finite number"),
    (dict(width=8), "belong together"),
    (dict(channels=0), "channels must be an integer of at least 1"),
]


@pytest.mark.parametrize("arguments, message", BAD, ids=[m for _, m in BAD])
def test_bad_arguments_say_what_is_allowed(arguments, message):
    arguments = {"reach": [2], "heads": 100, "encoding": "lin", "order": 1, **arguments}
    with pytest.raises(ValueError, match=message):
        bounds.adaptive(arguments.pop("reach"), arguments.pop("heads"), arguments.pop("encoding"), **arguments)


def test_too_large_alpha_says_so():
    with pytest.raises(ValueError, match="alpha is too large"):
        bounds.adaptive([30, 2], 100, "lin", order=8, nesting=1, alpha=3.0)


# ---------------------------------------------------------------- the floor with an FFN


def last_row(model, length):
    """The weights of the heads by lag at the last position, as they are in the model."""
    maps = model.attention_maps(torch.zeros(1, length, model.config.d_in, dtype=torch.float64))
    return maps[0][0, :, -1].flip(-1)


def random_layer(encoding, heads, seed, **more):
    config = dict(d_in=2, d_model=12, heads=heads, d_head=3, width=40, encoding=encoding, attention="dp_free")
    return Transformer(TransformerConfig(**{**config, **more}), memlib.reproducible(seed))


@pytest.mark.parametrize("encoding", ["lin", "log", "t5", "kerple_log", "alibi"])
@pytest.mark.parametrize("normaliser", ["softmax", "sink", "none"])
@pytest.mark.parametrize("reach, heads", [(2, 1), (4, 3), (5, 2), (8, 7)])
def test_the_witnesses_have_equal_states_in_a_real_layer(encoding, normaliser, reach, heads):
    for seed, values in ((0, (0.0, 1.0)), (1, (-2.0, 3.0))):
        model = random_layer(encoding, heads, seed, normaliser=normaliser)
        with torch.no_grad():  # an FFN that reacts to everything
            model.layers[0].ffn.hidden.weight.mul_(5)
        floor = bounds.dp_free_floor(reach, heads, 12, kernels=last_row(model, 12), values=values)
        width = values[1] - values[0]
        assert floor.error == width / 2
        x, other = floor.witnesses
        assert x.shape == other.shape == (12,)
        assert float(min(x.min(), other.min())) >= values[0] and float(max(x.max(), other.max())) <= values[1]
        tokens = floor.tokens()
        assert torch.equal(tokens[:, -1, 1], torch.full((2,), float(floor.pointers[0]), dtype=torch.float64))
        with torch.no_grad():
            states, outputs = model.residual_stream(tokens)[-1][:, -1], model(tokens)[:, -1, 0]
        assert float((states[0] - states[1]).abs().max()) <= 1e-11 * (1 + float(states.abs().max()))
        assert floor.state_difference < 1e-13 * width
        g = floor.pointers[0]
        targets = tokens[:, -1 - g, 0]
        assert torch.equal(torch.stack(floor.targets), targets)
        assert abs(float(targets[0] - targets[1])) == pytest.approx(width)
        assert float((outputs - targets).abs().max()) >= width / 2 - 1e-9  # no layer escapes


def test_the_witnesses_are_special():
    """Other inputs that differ as much do not have equal states: the witnesses are no accident of the layer."""
    model = random_layer("lin", 3, 0)
    floor = bounds.dp_free_floor(4, 3, kernels=last_row(model, 12))
    tokens = floor.tokens()
    tokens[1, :, 0] = tokens[0, :, 0]
    tokens[1, -1 - floor.pointers[0], 0] = float(floor.targets[1])  # change the one value alone
    with torch.no_grad():
        states = model.residual_stream(tokens)[-1][:, -1]
    assert float((states[0] - states[1]).abs().max()) > 1e-3


def test_a_second_layer_can_see_the_difference():
    """The floor is about one layer: with two, the witnesses' outputs differ."""
    model = random_layer("lin", 3, 0, layers=2)
    floor = bounds.dp_free_floor(4, 3, kernels=last_row(model, 12))
    with torch.no_grad():
        first, second = model.residual_stream(floor.tokens())[1:]
    assert float((first[0, -1] - first[1, -1]).abs().max()) < 1e-12
    assert float((second[0, -1] - second[1, -1]).abs().max()) > 1e-4


def test_fewer_channels_than_heads_count_too():
    """Six heads, but a residual stream of three coordinates: the rows that the attention writes have rank three."""
    config = TransformerConfig(d_in=2, d_model=3, heads=6, d_head=1, width=9, encoding="t5", attention="dp_free")
    model = Transformer(config, memlib.reproducible(2))
    x = torch.zeros(13, 12, 2, dtype=torch.float64)
    for s in range(12):
        x[s + 1, 11 - s, 0] = 1.0
    with torch.no_grad():
        after = model.embed(x) + model.layers[0].attention(model.embed(x))
        rows = (after[1:, -1] - after[0, -1]).T  # (3, lags): what a past value does to the state
    floor = bounds.dp_free_floor(4, 6, 3, kernels=rows)
    assert floor.error == 0.5
    with torch.no_grad():
        outputs = model(floor.tokens())[:, -1, 0]
    assert float((outputs[0] - outputs[1]).abs()) < 1e-12
    assert bounds.dp_free_floor(3, 6, 3).error == 0.0
    with pytest.raises(ValueError, match="rank above min"):
        bounds.dp_free_floor(4, 6, 3, kernels=last_row(model, 12))


def test_enough_heads_have_no_floor_and_no_witnesses():
    for reach, heads, channels in ((1, 1, None), (4, 4, None), (4, 9, 4), (2, 5, 16)):
        floor = bounds.dp_free_floor(reach, heads, channels, kernels=np.ones((heads, 6)))
        assert floor.error == 0.0 and floor.witnesses is None and floor.pointers is None
        with pytest.raises(ValueError, match="no witnesses"):
            floor.tokens()
    assert bounds.dp_free_floor(4, 3).error == 0.5
    assert bounds.dp_free_floor(4, 3).witnesses is None
    assert bounds.dp_free_floor(4, 3, values=(-1, 1)).error == 1.0


@settings(max_examples=80, deadline=None)
@given(
    reach=st.integers(2, 10),
    data=st.data(),
    seed=st.integers(0, 10**6),
    low=st.floats(-3, 3),
    width=st.floats(0.1, 5),
)
def test_any_kernels_have_witnesses(reach, data, seed, low, width):
    heads = data.draw(st.integers(1, reach - 1))
    rows = np.random.default_rng(seed).standard_normal((heads, reach + 4)) * 10.0 ** (seed % 5 - 2)
    floor = bounds.dp_free_floor(reach, heads, kernels=rows, values=(low, low + width))
    x, other = (w.numpy()[::-1] for w in floor.witnesses)
    assert np.abs(rows @ (x - other)).max() <= 1e-11 * np.abs(rows).sum(1).max() * width
    g = floor.pointers[0]
    assert 1 <= g <= reach and abs(x[g] - other[g]) == pytest.approx(width)
    assert x[0] == other[0] and np.array_equal(x[reach + 1 :], other[reach + 1 :])
    assert min(x.min(), other.min()) >= low - 1e-12 and max(x.max(), other.max()) <= low + width + 1e-12


# ---------------------------------------------------------------- the floor of attention alone


@pytest.mark.parametrize("encoding", ["lin", "log", "t5"])
@pytest.mark.parametrize("heads", [1, 4, 9])
def test_attention_alone_errs_by_the_floor_on_its_witnesses(encoding, heads):
    for seed, values in ((0, (-1.0, 1.0)), (3, (0.0, 4.0))):
        model = random_layer(encoding, heads, seed, width=0, normaliser="softmax")
        with torch.no_grad():
            model.readout.bias.fill_(0.7)
        x = torch.zeros(13, 12, 2, dtype=torch.float64)
        for s in range(12):
            x[s + 1, 11 - s, 0] = 1.0
        with torch.no_grad():
            out = model(x)[:, -1, 0]
        floor = bounds.dp_free_floor(4, heads, kernels=out[1:] - out[0], values=values, ffn=False)
        half = (values[1] - values[0]) / 2
        assert floor.error == half
        with torch.no_grad():
            answers = model(floor.tokens())[:, -1, 0].reshape(2, 2)
        errors = (answers - torch.stack(floor.targets)).abs().amax(1)
        i, j = floor.pointers
        assert i != j and float(errors.max()) >= half
        for error, bound in zip(errors, floor.error_at, strict=True):  # mirrored inputs: no constant helps
            assert float(error) >= bound - 1e-12
        assert sum(floor.error_at) >= 2 * half


@settings(max_examples=80, deadline=None)
@given(kernel=st.lists(st.floats(-3, 3), min_size=6, max_size=12), constant=st.floats(-2, 2), reach=st.integers(2, 5))
def test_no_kernel_and_no_constant_beats_the_middle(kernel, constant, reach):
    kernel = np.array(kernel)
    floor = bounds.dp_free_floor(reach, 1, kernels=kernel, values=(-1.0, 1.0), ffn=False)
    worst = 0.0
    for values, g in zip(floor.witnesses, floor.pointers, strict=True):
        past = values.numpy()[:, ::-1]
        worst = max(worst, float(np.abs(constant + past @ kernel - past[:, g]).max()))
    assert worst >= 1 - 1e-12
    zero = bounds.dp_free_floor(reach, 1, kernels=np.zeros(8), values=(-1.0, 1.0), ffn=False)
    assert zero.error_at == (1.0, 1.0)  # the constant 0 attains it


BAD_FLOORS = [
    (dict(reach=0), "reach must be an integer of at least 1"),
    (dict(reach=1, ffn=False), "reach must be an integer of at least 2, got 1"),
    (dict(heads=0), "heads must be an integer of at least 1"),
    (dict(channels=0), "channels must be an integer of at least 1"),
    (dict(values=(1.0, 1.0)), "a pair a < b"),
    (dict(values=3.0), "values must be a pair"),
    (dict(kernels=np.ones(9)), r"shape \(rows, lags\) with FFN, got shape \(9,\)"),
    (dict(kernels=np.ones((2, 9)), ffn=False), r"shape \(lags,\) without FFN, got shape \(2, 9\)"),
    (dict(kernels=np.ones((2, 4))), "from lag 0 to lag 4 at least, got 4 lags"),
    (dict(kernels=np.full((2, 9), -np.inf)), "kernels must be finite; take exp"),
]


@pytest.mark.parametrize("arguments, message", BAD_FLOORS, ids=[m for _, m in BAD_FLOORS])
def test_bad_floors_say_what_is_allowed(arguments, message):
    arguments = {"reach": 4, "heads": 2, **arguments}
    with pytest.raises(ValueError, match=message):
        bounds.dp_free_floor(arguments.pop("reach"), arguments.pop("heads"), **arguments)
