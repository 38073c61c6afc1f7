"""Constructed look-ups: one table of named cases, and every promise checked on each of them."""

import itertools
import math
from dataclasses import replace
from functools import cache

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memlib import construct, sums
from memlib.construct import Linear, Pointer, QuadraticRidge, ReluRidge
from memlib.construct.adaptive_memory import _followed
from memlib.construct.moved_kernels import nodes_of
from memlib.model import Transformer
from memlib.targets import AdaptiveSparse, Finite, FixedSparse, Interval

LENGTH = 40


def symbols(count):
    """``count`` evenly spaced values in (-1, 1)."""
    return tuple((2 * k - count + 1) / count for k in range(count))


def key(value, count, tokens=1):
    """The sum of the numbers 0..count-1 of ``tokens`` symbols, from the sum of their values."""
    return round((value * count + tokens * (count - 1)) / 2)


def keyed(reach, tokens, read, alphabet=None, turn=0):
    """A pointer that adds up the symbols of the tokens in ``read``, modulo its reach."""
    size = alphabet or reach
    rows = [(0.0, float(i in read)) for i in range(tokens)]
    channels = [Interval(), Finite(symbols(size))]
    return Pointer.over(rows, channels, lambda v: (key(v, size, len(read)) + turn) % reach + 1)


def chain(nesting, pointers, reach, readout, alphabet=None, read=None):
    """Values and symbols; the lag of pointer i is keyed by the present symbol and the last one fetched."""
    size = alphabet or reach
    made = []
    for i in range(1, pointers + 1):
        seen = min(i - 1, nesting) + 1
        which = read(seen) if read else sorted({0, seen - 1})
        made.append(keyed(reach, seen, which, size, turn=i))
    return AdaptiveSparse(readout, made, [reach] * pointers, nesting, [Interval(), Finite(symbols(size))])


def values(*weights, kind=Linear, bias=0.0):
    """A readout of the value channel with one weight per token."""
    return kind([(w, 0.0) for w in weights], bias)


def last(pointers):
    return values(*[0.0] * pointers, 1.0)


TABLE = Pointer(((0, 1),), {-1: 3, -0.25: 1, 0: 1, 1: 2})
UNEVEN = AdaptiveSparse(values(0.5, 1), [TABLE], [3], 1, [Interval(), Finite((-1, -0.25, 0, 1))])
SCALAR = AdaptiveSparse(
    Linear((0.5, 0, 1)),
    [
        Pointer((1,), dict(zip(symbols(3), (3, 1, 2), strict=True))),
        Pointer((0, 1), dict(zip(symbols(3), (1, 2, 3), strict=True))),
    ],
    [3, 3],
    2,
    [Finite(symbols(3))],
)
TWO_CHANNELS = AdaptiveSparse(
    Linear([(0.0, 0.0, 0.0), (1.0, 0.5, 0.0)]),
    [Pointer(((0, 0.5, 0.25),), {0.75: 1, 0.25: 2, -0.25: 3, -0.75: 2})],
    [3],
    0,
    [Interval(-1, 1), Finite((-1, 1)), Finite((-1, 1))],
)
MIXED = AdaptiveSparse(
    values(0.1, 0.5, -0.25, 1),
    [keyed(1, 1, [0], 4), keyed(4, 1, [0], 4), keyed(2, 1, [0], 4)],
    [1, 4, 2],
    0,
    [Interval(), Finite(symbols(4))],
)
FIXED_LAG = AdaptiveSparse(values(0, 1), [Pointer(((0, 0),), {0: 2})], [2], 0, [Interval(), Finite((0,))])

# name: target, heads, more arguments
CASES = {
    "one pointer, reach 1": (chain(0, 1, 1, last(1)), 4, {}),
    "one pointer, reach 2": (chain(0, 1, 2, last(1)), 6, {}),
    "one pointer, reach 3": (chain(0, 1, 3, last(1)), 7, {}),
    "one pointer, reach 4": (chain(0, 1, 4, last(1)), 9, {}),
    "one pointer, reach 5": (chain(0, 1, 5, last(1)), 10, {}),
    "one pointer, as few heads as possible": (chain(0, 1, 3, last(1)), 4, {}),
    "two pointers": (chain(0, 2, 3, values(0.1, 0.5, -0.5)), 14, {}),
    "three pointers of different reach": (MIXED, 16, {}),
    "three pointers, heads for one": (chain(0, 3, 3, values(0, 0.2, 1, 0.2)), 7, {}),
    "a lag that never changes": (FIXED_LAG, 5, {}),
    "an uneven table": (UNEVEN, 8, {}),
    "symbols on two channels": (TWO_CHANNELS, 8, {}),
    "K = 1": (chain(1, 1, 4, last(1)), 8, {}),
    "K = 2": (chain(2, 2, 4, last(2)), 9, {}),
    "K = 3": (chain(3, 3, 3, last(3)), 8, {}),
    "K = 4": (chain(4, 4, 3, last(4)), 8, {}),
    "K = 4, every token read": (chain(4, 4, 2, values(0.1, 0.2, 0.3, 0.4, 0.5), read=range), 8, {}),
    "K = 2, plain chasing": (chain(2, 2, 3, last(2), read=lambda seen: [seen - 1]), 8, {}),
    "K = 2, tokens are their own pointers": (SCALAR, 8, {}),
    "K = 1, M = 2": (chain(1, 2, 3, values(0, 0.5, 0.5)), 8, {}),
    "K = 1, M = 3": (chain(1, 3, 3, values(0.2, 0.3, 0.4, -0.5)), 16, {}),
    "K = 2, M = 3": (chain(2, 3, 3, values(0, 0.2, 0.3, 0.5)), 8, {}),
    "K = 3, M = 5": (chain(3, 5, 2, values(0, 0.2, 0.2, 0.2, 0.2, 0.2)), 12, {}),
    "K = 4, M = 5": (chain(4, 5, 2, last(5)), 7, {}),
    "a gate": (chain(1, 1, 3, values(0.5, -1, kind=ReluRidge, bias=0.25)), 7, {}),
    "a gate, K = 2, M = 3": (chain(2, 3, 3, values(0.1, 0.5, -0.3, 0.4, kind=ReluRidge)), 8, {}),
    "a square": (chain(0, 2, 2, values(0.2, 0.5, -0.3, kind=QuadraticRidge)), 12, {"width": 64}),
    "a square, K = 2": (chain(2, 2, 3, values(0.2, 0.5, -0.3, kind=QuadraticRidge)), 8, {}),
    "cautious": (chain(2, 2, 3, last(2)), 8, {"caution": 1e4}),
    "a given alpha": (chain(1, 1, 3, last(1)), 6, {"alpha": 1.5}),
    "long sequences": (chain(1, 1, 3, last(1)), 6, {"length": 200}),
}
SHORT = (  # reaches that log heads can follow in double precision
    "one pointer, reach 1", "one pointer, reach 2", "one pointer, reach 3", "one pointer, as few heads as possible",
    "an uneven table", "a lag that never changes", "K = 3", "K = 4, every token read", "K = 3, M = 5", "K = 4, M = 5",
    "a gate", "a square",
)  # fmt: skip
SUNK = (
    "one pointer, reach 3", "two pointers", "K = 1", "K = 2", "K = 4", "K = 1, M = 3", "a gate, K = 2, M = 3",
    "a square, K = 2",
)  # fmt: skip
KINDS = [(name, "lin", "none", "dp") for name in CASES] + [(name, "log", "none", "dp") for name in SHORT]
KINDS += [(name, "lin", "sink", "dp") for name in SUNK] + [(name, "lin", "none", "tmx") for name in SUNK]
KINDS += [("K = 4, every token read", e, n, a) for e in ("lin", "log") for n, a in (("sink", "dp"), ("sink", "tmx"))]
KINDS += [("long sequences", "lin", n, "tmx") for n in ("none", "sink")]
each = pytest.mark.parametrize("kind", KINDS, ids=[f"{k[0]} ({', '.join(k[1:])})" for k in KINDS])


@cache
def built(kind):
    name, encoding, normaliser, attention = kind
    target, heads, more = CASES[name]
    return construct.adaptive(target, heads, encoding, normaliser, attention=attention, **more)


def random_inputs(made, length=LENGTH, batch=200):
    return made.target.sample(batch, length, torch.Generator().manual_seed(0))[0]


@cache
def measured(kind):
    made = built(kind)
    length, batch = (made.length, 20) if made.length > 64 else (LENGTH, 200)
    return made.largest_error(torch.Generator().manual_seed(0), length, batch)


# ---------------------------------------------------------------- errors


@each
def test_the_measured_error_is_at_most_the_predicted_one(kind):
    made = built(kind)
    assert measured(kind) <= made.predicted_error + made.float_error


def test_the_predictions_are_small_and_sharp(capsys):
    small = near = 0
    with capsys.disabled():
        print("\n        depth  predicted  of it sink  rounding   measured   weight   offset  case")
        for kind in KINDS:
            made, found = built(kind), measured(kind)
            small += made.predicted_error < 0.5
            near += found >= 0.3 * made.predicted_error
            offset = f"{made.offset:8.1f}" if made.offset is not None else " " * 8
            print(f"{kind[1]} {kind[3]:3s} {made.depth:5d} {made.predicted_error:11.2e} {made.sink_error:10.1e} "
                  f"{made.float_error:10.1e} {found:10.2e} {made.weight:9.1e} {offset}  {kind[0]}")  # fmt: skip
        print(f"predicted below 0.5 in {small}, measured above 0.3 predicted in {near} of {len(KINDS)} cases")
    assert small >= 0.9 * len(KINDS)
    assert near >= 0.8 * len(KINDS)


@each
def test_the_prediction_is_no_idle_number(kind):
    """Worst-case inputs reach most of the predicted error wherever it is well above rounding."""
    made = built(kind)
    if made.predicted_error > 10 * made.float_error:
        assert measured(kind) >= 0.5 * made.predicted_error


def test_errors_are_those_of_the_kernels():
    for kind in KINDS:
        made = built(kind)
        if made.offset is None:
            for i, (pointer, error) in enumerate(zip(made.target.pointers, made.kernel_errors, strict=True), 1):
                seen = [np.abs(made.kernel(i, lag, 120) - np.eye(1, 120, lag)[0]).sum() for lag in pointer.lags]
                assert max(seen) <= error + 1e-13
                assert max(seen) >= (0.95 if kind[1] == "lin" else 0.8) * error - 1e-13  # log tails are longer
        assert made.fetch_errors == tuple(a + b for a, b in zip(made.kernel_errors, made.sink_errors, strict=True))
        assert made.predicted_error == pytest.approx(
            made.ffn_part + sum(a * b for a, b in zip(made.sensitivity, made.fetch_errors, strict=True))
        )


@st.composite
def requests(draw):
    """Any target and sizes that can be built."""
    nesting = draw(st.integers(0, 3))
    count = draw(st.integers(max(nesting, 1), 3))
    size = draw(st.integers(2, 4))
    channels = [Interval(), Finite(symbols(size))]
    pointers = []
    for i in range(1, count + 1):
        rows = [(0.0, draw(st.sampled_from([0.0, 1.0, 1.0, -0.5]))) for _ in range(min(i - 1, nesting) + 1)]
        lags = draw(st.lists(st.integers(1, 3), min_size=64, max_size=64))
        found = itertools.count()
        pointers.append(Pointer.over(rows, channels, lambda v, lags=lags, found=found: lags[next(found) % 64]))
    weights = draw(st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=count + 1, max_size=count + 1))
    kind = draw(st.sampled_from([Linear, ReluRidge]))
    target = AdaptiveSparse(values(*weights, kind=kind), pointers, [3] * count, nesting, channels)
    return (
        target,
        draw(st.integers(6, 14)),
        draw(st.sampled_from(["lin", "lin", "log"])),
        draw(st.sampled_from(["none", "sink"])),
        draw(st.sampled_from(["dp", "tmx"])),
    )


@settings(max_examples=30, deadline=None, derandomize=True)
@given(requests())
def test_the_measured_error_is_at_most_the_predicted_one_for_any_request(request):
    *first, attention = request
    try:
        made = construct.adaptive(*first, attention=attention)
    except ValueError as error:  # too few heads for a pointer that another pointer needs
        assert "take more heads" in str(error)
        return
    x = torch.cat([random_inputs(made, batch=50), made.worst_inputs(LENGTH)])
    assert made.measured_error(x) <= made.predicted_error + made.float_error
    assert made.model.config.layers == made.depth


@pytest.mark.parametrize("encoding", ["lin", "log"])
def test_errors_do_not_grow_along_the_nesting(encoding):
    """Four look-ups one after another are as exact as one: the staircase forgives."""
    made = [construct.adaptive(construct.summed_lookups(k, 2), 6, encoding, caution=1e3) for k in range(1, 5)]
    errors = [m.largest_error(torch.Generator().manual_seed(0)) for m in made]
    assert max(m.predicted_error for m in made) <= 1.001 * min(m.predicted_error for m in made)
    assert max(errors) <= 1.1 * min(errors)
    assert made[-1].margins[0] == math.inf and min(made[-1].margins) > 100


def test_a_pointer_that_is_rounded_moves_the_whole_kernel():
    """What rounding of a pointer does is small beside the heads, because all of them see the same pointer."""
    made = built(("K = 4", "lin", "none", "dp"))
    slopes, coefficients = made.coefficients(4)
    part = _followed(made, 4)
    apart = np.abs(coefficients * slopes) @ (np.exp(slopes * 3) / -np.expm1(-slopes))
    assert part.steepness(LENGTH) < 0.05 * apart
    step = 1e-6
    for lag in (1, 2, 3):
        moved = replace(part, moves={lag: mpmath.mpf(lag) + step})
        with mpmath.workdps(40):
            change = sum(abs(float(a - b)) for a, b in zip(moved.values(lag, 40), part.values(lag, 40), strict=True))
        assert change <= 1.01 * step * part.steepness(LENGTH)


def test_rounding_is_real():
    """Without its rounding error the bound would be violated: the term is needed."""
    assert any(measured(kind) > built(kind).predicted_error for kind in KINDS)


def test_caution_buys_digits():
    plain, careful = (construct.adaptive(CASES["cautious"][0], 8, "lin", caution=c) for c in (1.0, 1e4))
    assert careful.float_error < 1e-2 * careful.predicted_error
    assert careful.predicted_error > plain.predicted_error
    assert careful.weight < plain.weight


@pytest.mark.parametrize("encoding, heads, reach", [("lin", 7, 3), ("log", 5, 2)])
def test_the_chosen_alpha_is_near_the_best(encoding, heads, reach):
    target = chain(0, 1, reach, last(1))
    made = construct.adaptive(target, heads, encoding)
    total = made.predicted_error + made.float_error
    for factor in (0.7, 0.9, 1.1, 1.4):
        other = construct.adaptive(target, heads, encoding, alpha=factor * made.alphas[0])
        assert other.predicted_error + other.float_error > 0.9 * total


def test_more_heads_lower_the_error():
    target, totals = chain(0, 1, 3, last(1)), []
    for heads in range(1, 10):
        made = construct.adaptive(target, heads, "lin")
        totals.append(made.predicted_error + made.float_error)
    assert totals[:3] == pytest.approx([1, 1, 1], abs=1e-9)  # reach T needs T + 1 heads
    assert all(b < a for a, b in itertools.pairwise(totals[2:]))
    assert totals[-1] < 1e-5


def test_heads_go_where_they_are_needed():
    made = built(("three pointers of different reach", "lin", "none", "dp"))
    assert sum(made.nodes) <= 16 and list(made.nodes) == [made.nodes[0], max(made.nodes), made.nodes[2]]
    assert all(n > p.reach for n, p in zip(made.nodes, made.target.pointers, strict=True))
    poor = built(("three pointers, heads for one", "lin", "none", "dp"))
    assert [n > 0 for n in poor.nodes] == [False, True, False]  # the one that the readout weighs most
    assert poor.kernel_errors[0] == 1.0


def test_log_heads_reach_no_further_than_double_precision():
    made = construct.adaptive(chain(0, 1, 5, last(1)), 20, "log")
    assert made.nodes == (0,) and made.predicted_error == 1.0 and made.largest_coefficient == 0
    x = random_inputs(made)
    assert made.measured_error(x) <= 1.0


# ---------------------------------------------------------------- weights


@each
def test_sizes_are_those_of_the_theorem(kind):
    made = built(kind)
    target, config = made.target, made.model.config
    k, m, d = target.nesting, len(target.pointers), target.d_in
    assert config.layers == k + 1 + (m > k) == made.depth
    assert config.heads == CASES[kind[0]][1] and config.d_head == d
    assert (config.encoding, config.normaliser, config.attention, config.norm) == (*kind[1:], "none")
    ffn = not isinstance(target.readout, Linear)
    names = ["x", "one", *(f"pointer {i + 1}" for i in range(m)), *(f"token {i + 1}" for i in range(m))] + ["y"] * ffn
    assert list(made.slots) == names
    sizes = [d, 1, *[1] * m, *[d] * m] + [1] * ffn
    assert [s.stop - s.start for s in made.slots.values()] == sizes
    assert config.d_model == sum(sizes)
    assert made.theorem == ("a:thm-nested" if k else "a:thm-warmup")
    assert made.pointer_layers == tuple(min(i, k) + 2 for i in range(m))
    assert max(made.pointer_layers) == config.layers
    for layer in set(made.pointer_layers):
        used = [h for h, at in zip(made.pointer_heads, made.pointer_layers, strict=True) if at == layer]
        taken = [i for part in used for i in range(part.start, part.stop)]
        assert len(set(taken)) == len(taken) and len(taken) <= config.heads
    assert (made.offset is not None) == (kind[2] == "sink")


@each
def test_saved_and_loaded_the_weights_alone_do_the_same(kind, tmp_path):
    made = built(kind)
    made.model.save(tmp_path / "model.safetensors")
    bare = Transformer.load(tmp_path / "model.safetensors")
    x = random_inputs(made, batch=20)
    with torch.no_grad():
        assert torch.equal(bare(x), made.model(x))


@each
def test_slots_hold_what_their_names_say(kind):
    made = built(kind)
    x = random_inputs(made, batch=20)
    with torch.no_grad():
        states = made.model.residual_stream(x)
    first, lags = made.target.burn_in, made.target.lags(x)
    position = torch.arange(x.shape[1])
    for state in states:
        assert torch.equal(state[..., made.slots["x"]], x)
        assert bool((state[..., made.slots["one"]] == 1).all())
    for i, (layer, error, rounding) in enumerate(
        zip(made.pointer_layers, made.fetch_errors, made.fetch_rounding, strict=True), 1
    ):
        lag = lags[..., i - 1]
        said = states[layer - 1][..., made.slots[f"pointer {i}"]][..., 0]
        assert not states[layer - 2][..., made.slots[f"pointer {i}"]].any()
        wanted = lag.double() if kind[1] == "lin" else lag.double().log()
        assert float((said - wanted)[:, first:].abs().max()) <= 1e-12  # exact, although fetched tokens are not
        token = torch.take_along_dim(x, (position - lag).clamp(min=0)[..., None], dim=1)
        assert not states[layer - 1][..., made.slots[f"token {i}"]].any()
        fetched = states[layer][..., made.slots[f"token {i}"]]
        assert float((fetched - token)[:, first:].abs().max()) <= error + rounding
    if "y" in made.slots:
        with torch.no_grad():
            assert torch.equal(states[-1][..., made.slots["y"]], made.model(x))


@pytest.mark.parametrize("reach", [1, 2, 3, 4])
def test_with_one_head_more_than_the_reach_it_is_the_interpolating_sum_shifted(reach):
    alpha = 1.7
    made = construct.adaptive(chain(0, 1, reach, last(1)), reach + 1, "lin", alpha=alpha)
    assert made.nodes == (reach + 1,)
    exact = sums.interpolating_sum(reach + 1, "lin", alpha)  # 1 at lag T + 1, 0 before: shifted by one and by g
    slopes, coefficients = made.coefficients(1)
    shifted = [float(c) * math.exp(-p * (reach + 1)) for c, p in zip(exact.coefficients, slopes, strict=True)]
    assert shifted == pytest.approx(coefficients.tolist(), rel=1e-11)
    for lag in made.target.pointers[0].lags:
        wanted = [v for v in exact.values(range(reach + 1 - lag, reach + 21 - lag))]
        assert made.kernel(1, lag, 20) == pytest.approx(np.array(wanted, dtype=float), abs=1e-12 * made.weight + 1e-15)


def test_the_nodes_are_the_places_that_occur():
    places, needed = nodes_of((1, 2, 3), 6, "lin")
    assert (places, needed) == ([0, 1, 2, 3, 4, 5], 4)
    places, needed = nodes_of((1, 2, 3), 7, "log")
    assert [str(y / 3) for y in places] == ["1/3", "1/2", "2/3", "1", "4/3", "3/2", "5/3"] and needed == 4
    for reach in range(1, 9):  # Farey: one more than the number of fractions below 1
        fractions = {(a / b) for b in range(1, reach + 1) for a in range(1, b)}
        assert nodes_of(tuple(range(1, reach + 1)), 0, "log")[1] == 1 + len(fractions)
    assert nodes_of((2, 4), 0, "log")[1] == 4  # 1/4, 1/2, 3/4, 1: the ratios that occur


@each
def test_the_kernel_is_exact_on_its_nodes(kind):
    made = built(kind)
    if made.offset is not None:
        return
    for i, (pointer, nodes) in enumerate(zip(made.target.pointers, made.nodes, strict=True), 1):
        if nodes:
            last_place = max(float(y) for y in nodes_of(pointer.lags, nodes, kind[1])[0])
            for lag in pointer.lags:
                lags = np.arange(kind[1] == "log", 40)
                place = lags - lag + pointer.reach if kind[1] == "lin" else lags * pointer.reach / lag
                error = (made.kernel(i, lag, 40) - np.eye(1, 40, lag)[0])[lags][place <= last_place + 1e-9]
                assert np.abs(error).max() <= 2e-15 * made.weight * nodes


def test_the_token_moves_the_kernel():
    made = built(("one pointer, reach 4", "lin", "none", "dp"))
    x = random_inputs(made, batch=1)
    maps = made.model.attention_maps(x)[1][0].numpy()
    said = made.target.lags(x)[0, :, 0].numpy()
    slopes, coefficients = made.coefficients(1)
    t = LENGTH - 1
    lags = np.arange(LENGTH)
    for h, slope in enumerate(slopes):
        assert maps[h, t, ::-1] == pytest.approx(np.exp(-slope * (lags - said[t])), rel=1e-10)
    together = np.tensordot(coefficients, maps, axes=1)
    for t in range(made.target.burn_in, LENGTH):
        assert np.abs(together[t, : t + 1][::-1] - np.eye(1, t + 1, said[t])[0]).sum() <= (
            made.kernel_errors[0] + made.fetch_rounding[0]
        )


def test_changing_one_coefficient_breaks_the_promise():
    made = construct.adaptive(chain(1, 1, 2, last(1)), 4, "lin")
    with torch.no_grad():
        made.model.layers[1].attention.out.weight[made.slots["token 1"], 0] *= 1 + 1e-3
    assert made.measured_error(made.worst_inputs(LENGTH)) > made.predicted_error + made.float_error


# ---------------------------------------------------------------- normalisers and attention


@pytest.mark.parametrize("encoding, reach", [("lin", 3), ("log", 2)])
def test_the_sink_errs_at_the_predicted_rate(encoding, reach):
    target = chain(1, 1, reach, last(1))
    plain = construct.adaptive(target, 6, encoding, caution=100)
    start = math.log(sum(abs(plain.coefficients(1)[1]) * _masses(plain) ** 2))
    offsets, errors = start + np.arange(0.0, 16.0, 2.0), []
    for c in offsets:
        made = construct.adaptive(target, 6, encoding, "sink", offset=float(c), alpha=plain.alphas[0])
        assert made.sink_error == pytest.approx(math.exp(start - c), rel=1e-6)
        assert made.kernel_errors[0] == pytest.approx(plain.kernel_errors[0], rel=1e-3)
        errors.append(made.largest_error(torch.Generator().manual_seed(0)))
        assert errors[-1] <= made.predicted_error + made.float_error
    falling = np.array(errors) - plain.predicted_error
    far = falling > 10 * (plain.predicted_error + plain.float_error)
    assert far.sum() >= 3
    slope = np.polyfit(offsets[far], np.log(falling[far]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.1)
    # in the end floating point and the tail stop it
    for c in (start + 25, start + 60):
        made = construct.adaptive(target, 6, encoding, "sink", offset=float(c), alpha=plain.alphas[0])
        assert made.measured_error(made.worst_inputs(LENGTH)) >= 0.5 * plain.predicted_error
        assert made.sink_error < 1e-3 * plain.predicted_error
    assert construct.adaptive(target, 6, encoding, "sink", offset=start + 60).float_error > plain.float_error


def _masses(made):
    slopes, _ = made.coefficients(1)
    reach = made.target.pointers[0].reach
    if made.model.config.encoding == "lin":
        return np.exp(slopes * reach) / -np.expm1(-slopes)
    return np.array([reach**p * float(mpmath.zeta(p)) for p in slopes])


@pytest.mark.parametrize("name", SUNK)
def test_an_offset_is_chosen_so_that_the_sink_does_not_matter(name):
    made = built((name, "lin", "sink", "dp"))
    plain = built((name, "lin", "none", "dp"))
    assert 0 < made.sink_error <= 0.05 * (plain.predicted_error + plain.float_error)
    assert made.predicted_error <= 1.05 * plain.predicted_error + 0.05 * plain.float_error


def test_under_softmax_the_pointer_is_lost():
    """Lemma a:lem-cancel: the same weights, normalised, give outputs that do not depend on what the pointer says."""
    target = chain(1, 1, 3, last(1))
    made = construct.adaptive(target, 6, "lin", caution=1e4)
    bare = made.under("softmax")
    assert bare.config.normaliser == "softmax"
    sequences = random_inputs(made, batch=1).repeat(3, 1, 1)
    sequences[:, -1, 1] = torch.tensor(symbols(3), dtype=torch.float64)  # one sequence, three different last symbols
    with torch.no_grad():
        maps = bare.attention_maps(sequences)[1][:, :, -1]
        lost, kept = bare(sequences)[:, -1, 0], made.model(sequences)[:, -1, 0]
    assert torch.equal(target.lags(sequences)[:, -1, 0].sort().values, torch.tensor([1, 2, 3]))
    assert float((maps - maps[:1]).abs().max()) <= 1e-13
    assert float((lost - lost[0]).abs().max()) <= 1e-11
    assert float((kept - target(sequences)[:, -1, 0]).abs().max()) <= made.predicted_error + made.float_error
    assert float((kept - kept[0]).abs().max()) > 0.1
    sink = construct.adaptive(target, 6, "lin", "sink")
    with torch.no_grad():
        difference = float((sink.model(sequences)[:, -1, 0] - kept).abs().max())
    assert difference <= sum(m.predicted_error + m.float_error for m in (sink, made)) < 0.01


@pytest.mark.parametrize("normaliser", ["none", "sink"])
@pytest.mark.parametrize("name", ["two pointers", "K = 2", "K = 1, M = 3"])
def test_tmx_computes_the_same(name, normaliser):
    target, heads, more = CASES[name]
    dp, tmx = (construct.adaptive(target, heads, "lin", normaliser, attention=a, **more) for a in ("dp", "tmx"))
    x = random_inputs(dp, batch=50)
    with torch.no_grad():
        first = target.burn_in
        difference = (dp.model(x) - tmx.model(x))[:, first:]
        assert float(difference.abs().max()) <= dp.float_error + tmx.float_error
        for a, b in zip(dp.model.attention_maps(x), tmx.model.attention_maps(x), strict=True):
            assert torch.allclose(a[:, :, first:], b[:, :, first:], rtol=1e-9, atol=0)
    assert tmx.predicted_error == dp.predicted_error
    count = {a: sum(p.numel() for p in made.model.parameters()) for a, made in (("dp", dp), ("tmx", tmx))}
    assert count["tmx"] < count["dp"]


def test_the_convolution_of_tmx_costs_digits_on_long_sequences():
    dp, tmx = (construct.adaptive(CASES["K = 1"][0], 8, "lin", attention=a, length=300) for a in ("dp", "tmx"))
    assert tmx.float_error > 2 * dp.float_error
    x = torch.cat([random_inputs(tmx, 300, 20), tmx.worst_inputs(300)])
    assert tmx.measured_error(x) <= tmx.predicted_error + tmx.float_error


# ---------------------------------------------------------------- pointers


def test_a_pointer_is_its_table():
    pointer = Pointer(((0, 1), (0, -0.5)), {1.5: 2, 0.5: 1, -0.5: 3, -1.5: 2})
    assert pointer.values == (-1.5, -0.5, 0.5, 1.5) and pointer.lags == (1, 2, 3) and pointer.reach == 3
    assert (pointer.gap, pointer.neurons, pointer.tokens, pointer.per_token) == (1.0, 7, 2, (1.0, 0.5))
    z = torch.tensor([[[9.0, 1.0], [9.0, -1.0]], [[9.0, 1.0], [9.0, 1.0]], [[9.0, -1.0], [0.0, 1.0]]]).double()
    assert pointer(z).tolist() == [2, 1, 2]
    more = torch.cat([z, torch.full((3, 4, 2), 7.0, dtype=torch.float64)], dim=1)
    assert torch.equal(pointer(more), pointer(z))  # tokens without weights are ignored
    assert pointer == Pointer(((0, 1), (0, -0.5)), [(0.5, 1), (1.5, 2), (-1.5, 2), (-0.5, 3)])
    assert hash(pointer) == hash(pointer)


def test_a_table_can_be_made_from_a_function():
    pointer = Pointer.over(((0, 1), (0, 1)), [Interval(), Finite((-1, 0, 1))], lambda v: int(v) + 3)
    assert pointer.table == ((-2, 1), (-1, 2), (0, 3), (1, 4), (2, 5))
    assert Pointer((1,), {0.5: 4}).neurons == 1 and Pointer((1,), {0.5: 4}).gap == math.inf


@pytest.mark.parametrize("encoding", ["lin", "log"])
@pytest.mark.parametrize("pointer", [TABLE, keyed(4, 2, [0, 1]), keyed(3, 3, [0, 1, 2]), Pointer((1,), {0: 5})])
def test_the_staircase_is_the_pointer_within_a_quarter_of_the_gap(pointer, encoding):
    network, w = pointer.staircase(encoding), torch.tensor(pointer.weights, dtype=torch.float64)
    assert network.hidden.out_features == pointer.neurons == 2 * len(network.out.weight[0, 1::2]) + 1
    room = min(pointer.gap, 1.0) / 4 - 1e-9
    for value, lag in pointer.table:
        for off in (0.0, room, -room, room / 3):
            r = torch.tensor([value + off], dtype=torch.float64)
            z = (r * w / w.square().sum()) if bool(w.any()) else torch.zeros_like(w)
            with torch.no_grad():
                found = float(network(z.flatten()))
            assert found == pytest.approx(lag if encoding == "lin" else math.log(lag), abs=1e-13)
    # between two values it rises or falls from one lag to the other, and never beyond
    line = torch.linspace(-3, 3, 2001, dtype=torch.float64)
    with torch.no_grad():
        walk = network((line[:, None, None] * w / w.square().sum()).flatten(1))[:, 0]
    ends = [float(lag) if encoding == "lin" else math.log(lag) for lag in pointer.lags]
    assert ends[0] - 1e-12 <= float(walk.min()) and float(walk.max()) <= ends[-1] + 1e-12


def test_steps_of_a_staircase_are_exact_in_the_stored_weights():
    network = keyed(5, 2, [0, 1]).staircase()
    bias = network.hidden.bias.detach().numpy()
    assert np.all(bias[1::2] - bias[2::2] == 1.0)
    assert np.all(network.out.weight.detach().numpy()[0] % 1 == 0)


def test_a_pointer_reads_the_nearest_value_before_the_first_token():
    target = chain(2, 2, 4, last(2), alphabet=4)
    x = random_inputs(construct.adaptive(target, 9, "lin"), batch=4)
    assert bool((target.lags(x) >= 1).all()) and bool((target.lags(x) <= 4).all())


def test_summed_lookups_are_the_formula():
    target = construct.summed_lookups(2, 4, pointers=4)
    x = target.sample(3, 30, torch.Generator().manual_seed(0))[0]
    keys, lags, y = (x[..., 1] * 4).round().int(), target.lags(x), target(x)
    for b, t in itertools.product(range(3), range(4, 30)):
        first = 1 + int(keys[b, t])
        second = 1 + int(keys[b, t] + keys[b, t - first]) % 4
        total = int(keys[b, t] + keys[b, t - first] + keys[b, t - second])
        assert lags[b, t].tolist() == [first, second, 1 + total % 4, 1 + (total + 1) % 4]
        assert float(y[b, t, 0]) == float(x[b, t - int(lags[b, t, 3]), 0])
    assert [len(construct.summed_lookups(k, 2).pointers) for k in (0, 1, 3)] == [1, 1, 3]
    two = construct.summed_lookups(0, 3, pointers=2)
    said = two.lags(two.sample(2, 20, torch.Generator().manual_seed(0))[0])
    assert bool((said[..., 1] == said[..., 0] % 3 + 1).all())
    gate = ReluRidge([(0.0, 0.0), (1.0, 0.0)])
    assert construct.summed_lookups(1, 2, readout=gate).readout is gate
    with pytest.raises(ValueError, match="pointers must be an integer of at least 2, got 1"):
        construct.summed_lookups(2, 3, pointers=1)
    with pytest.raises(ValueError, match="keys must be an integer of at least 1"):
        construct.summed_lookups(2, 0)


def test_pointer_chasing_hops_from_token_to_token():
    target = construct.pointer_chasing(3, 2)
    assert target.reach == (2, 4, 6) and target.nesting == 3
    x = target.sample(3, 30, torch.Generator().manual_seed(0))[0]
    for b, t in itertools.product(range(3), range(6, 30)):
        place, places = t, []
        for _ in range(3):
            place -= round(float(x[b, place, 1]) * 2)
            places.append(t - place)
        assert target.lags(x)[b, t].tolist() == places
    made = construct.adaptive(construct.pointer_chasing(2, 2), 9, "lin")
    assert made.measured_error(made.worst_inputs(LENGTH)) <= made.predicted_error + made.float_error < 1e-3
    with pytest.raises(ValueError, match="hops must be"):
        construct.pointer_chasing(0, 2)


# ---------------------------------------------------------------- what cannot be built


def simple(**changes):
    arguments = {"target": chain(1, 1, 2, last(1)), "heads": 4, "encoding": "lin", **changes}
    return construct.adaptive(**arguments)


CHANNELS = (Interval(), Finite((-1, 1)))


def pointed(pointers, nesting=1, reach=2, channels=CHANNELS, readout=None):
    return AdaptiveSparse(readout or last(len(pointers)), pointers, [reach] * len(pointers), nesting, channels)


GOOD = Pointer(((0, 1),), {-1: 1, 1: 2})
BAD = [
    (dict(target=FixedSparse(Linear((0, 1)), (2,))), TypeError, "must be a targets.AdaptiveSparse, got FixedSparse"),
    (dict(target=pointed([GOOD], readout=lambda z: z[..., 0, :1])), TypeError, "Linear, ReluRidge or QuadraticRidge"),
    (dict(target=pointed([lambda z: torch.ones(z.shape[:2])])), TypeError, "pointer 1 must be a construct.Pointer"),
    (dict(target=chain(5, 5, 2, last(5))), ValueError, "nesting up to 4 is supported"),
    (dict(target=pointed([GOOD], channels=(Interval(0, 2), Finite((-1, 1))))), ValueError, r"in \[-1, 1\]"),
    (dict(target=pointed([GOOD], readout=Linear((0, 1)))), ValueError, r"M \+ 1 = 2 tokens of 2 channels"),
    (dict(target=pointed([Pointer(((0, 1), (0, 1)), {0: 1})])), ValueError, "at nesting 1 it can see 1 only"),
    (dict(target=pointed([GOOD], reach=1)), ValueError, "lags up to 2, beyond its reach of 1"),
    (dict(target=pointed([Pointer(((1, 0),), {0: 1})])), ValueError, "Finite channels only, but has the weight 1"),
    (dict(target=pointed([Pointer(((0, 1),), {1: 1})])), ValueError, "the value -1, which is not in its table"),
    (dict(target=pointed([Pointer((1,), {1: 1})])), ValueError, "one weight for each of the 2 channels"),
    (dict(heads=0), ValueError, "heads must be an integer of at least 1, got 0"),
    (dict(encoding="t5"), ValueError, "lin and log, got 't5'"),
    (dict(normaliser="softmax"), ValueError, "cancels under softmax"),
    (dict(attention="dp_free"), ValueError, "allowed attention: dp, tmx; got 'dp_free'"),
    (dict(offset=3.0), ValueError, "belongs to the normaliser sink"),
    (dict(offset=-1.0, normaliser="sink"), ValueError, "must lie in 0..500, got -1.0"),
    (dict(offset=math.nan, normaliser="sink"), ValueError, "finite number"),
    (dict(alpha=0.0), ValueError, "above 0 for lin"),
    (dict(alpha=1.0, encoding="log"), ValueError, "above 1 for log"),
    (dict(length=1), ValueError, "length must be"),
    (dict(caution=0.0), ValueError, "caution must be a positive"),
    (dict(width=3), ValueError, "allowed is width 0, got 3"),
    (dict(target=chain(2, 2, 4, last(2)), heads=4), ValueError, "take more heads, a larger caution, a shorter reach"),
    (dict(target=chain(2, 2, 2, last(2)), normaliser="sink", offset=1.0), ValueError, "a quarter of its gap"),
]


@pytest.mark.parametrize("changes, error, message", BAD, ids=[m for _, _, m in BAD])
def test_what_cannot_be_built_says_what_can(changes, error, message):
    with pytest.raises(error, match=message):
        simple(**changes)


def test_bad_pointers_say_what_is_allowed():
    with pytest.raises(ValueError, match="at least one value"):
        Pointer((1,), {})
    with pytest.raises(ValueError, match="finite"):
        Pointer((math.nan,), {0: 1})
    with pytest.raises(ValueError, match="all of them finite"):
        Pointer((1,), {math.inf: 1})
    with pytest.raises(ValueError, match="lag must be an integer of at least 1, got 0"):
        Pointer((1,), {0: 0})
    with pytest.raises(TypeError, match="table must map values to lags"):
        Pointer((1,), 3)
    with pytest.raises(ValueError, match="apart"):
        Pointer((1,), {0: 1, 1e-8: 2})
    with pytest.raises(ValueError, match=r"reads 1 token\(s\) of 1 channel\(s\)"):
        Pointer((1,), {0: 1})(torch.zeros(2, 3, 1, 2, dtype=torch.float64))


def test_questions_it_cannot_answer_raise():
    made = simple()
    with pytest.raises(ValueError, match=r"one that pointer 1 can say, \(1, 2\), got 3"):
        made.kernel(1, 3, 10)
    with pytest.raises(ValueError, match=r"numbered 1\.\.1, got 2"):
        made.kernel(2, 1, 10)
    with pytest.raises(ValueError, match="must exceed the longest reach, 2, got 2"):
        made.worst_inputs(2)
    with pytest.raises(ValueError, match="longer than the burn-in of 2 positions"):
        made.measured_error(torch.zeros(1, 2, 2, dtype=torch.float64))
    assert replace(made, ffn_part=1.0).predicted_error == made.attention_part + 1.0
