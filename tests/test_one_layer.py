"""One layer that reads the lag its token names: the constructions beside the floors, and the experiment's measures."""

import itertools

import pytest
import torch

import memlib
from memlib import bounds, construct
from memlib.experiments import pointer_floor
from memlib.model import Transformer
from memlib.sums import interpolation_error_bound
from memlib.targets import Interval


def signs(made, batch=100, length=32):
    """Random pointers, values at the ends of their range."""
    x, _ = made.target.sample(batch, length, memlib.reproducible(0))
    low = float(made.target.inputs[0].low) if isinstance(made.target.inputs[0], Interval) else 0.0
    x[..., 0] = torch.where(x[..., 0] > (low + 1) / 2, 1.0, low)
    return x


# ---------------------------------------------------------------- with dot product, without FFN


@pytest.mark.parametrize("reach, alpha", [(1, 3.0), (2, 2.0), (2, 6.0), (3, 2.0), (3, 4.0), (4, 2.0)])
def test_the_affine_pointer_errs_by_its_tail(reach, alpha):
    made = construct.affine_pointer(reach, alpha)
    assert made.model.config.heads == reach + 1 and made.model.config.layers == 1 and not made.model.config.width
    assert made.predicted_error <= interpolation_error_bound(reach, alpha) * (1 + 1e-12)
    x = signs(made)
    assert made.measured_error(x) <= made.predicted_error + made.float_error
    # worst input for the longest pointer: the signs of the kernel's error, read off by impulses
    impulses = torch.zeros(33, 32, 2, dtype=torch.float64)
    impulses[..., 1] = reach
    impulses[range(1, 33), range(32), 0] = 1.0
    with torch.no_grad():
        out = made.model(impulses)[:, -1, 0]
    kernel = (out[1:] - out[0]).flip(0)
    kernel[reach] -= 1
    assert float(kernel.abs().sum()) == pytest.approx(made.predicted_error, rel=1e-3, abs=made.float_error)


def test_the_affine_pointer_goes_below_the_floor_of_attention_without_dot_product():
    for reach in (2, 3):
        errors = [construct.affine_pointer(reach, a).predicted_error for a in (1.0, 2.0, 4.0, 8.0)]
        assert all(b < a for a, b in itertools.pairwise(errors))
        assert errors[-1] < 1e-3 < 1 == bounds.dp_free_floor(reach, reach + 1, values=(-1, 1), ffn=False).error


# ---------------------------------------------------------------- without dot product, with FFN


@pytest.mark.parametrize("reach", range(1, 9))
def test_the_selector_with_t5_heads_is_exact(reach):
    made = construct.selector(reach)
    assert (made.model.config.heads, made.model.config.width) == (reach, 4 * reach)
    assert made.predicted_error == 0
    for x in (signs(made), made.target.sample(50, 32, memlib.reproducible(1))[0]):
        assert made.measured_error(x) <= made.float_error < 1e-12


@pytest.mark.parametrize(
    "encoding, reach, below", [("lin", 2, 1e-3), ("lin", 3, 0.05), ("log", 2, 1e-4), ("log", 3, 0.05)]
)
def test_the_selector_with_slopes_errs_little(encoding, reach, below):
    made = construct.selector(reach, encoding)
    assert made.measured_error(signs(made)) <= made.predicted_error + made.float_error < below
    blunt = construct.selector(reach, encoding, alpha=2.0)
    assert blunt.predicted_error > made.predicted_error
    assert blunt.measured_error(signs(blunt)) <= blunt.predicted_error + blunt.float_error


@pytest.mark.parametrize("reach, heads", [(2, 1), (4, 1), (4, 3), (8, 5), (4, 6)])
def test_with_too_few_heads_the_selector_attains_the_floor(reach, heads):
    """It reads the first lags and guesses the middle for the others: an error of 1/2 exactly."""
    made = construct.selector(reach, heads=heads)
    few = heads < reach
    assert (made.model.config.heads, made.model.config.width) == (heads, 4 * heads + 2 if few else 4 * reach)
    assert made.predicted_error == (0.5 if few else 0.0)
    assert made.measured_error(signs(made)) == pytest.approx(0.5 if few else 0.0, abs=made.float_error)
    if few:
        floor = bounds.dp_free_floor(reach, heads, reach + 3, kernels=pointer_floor.kernels(made.model, 20))
        with torch.no_grad():
            answers = made.model(floor.tokens())[:, -1, 0]
        assert answers.tolist() == pytest.approx([0.5, 0.5])
        assert floor.error == made.predicted_error


def test_the_selector_has_one_head_more_than_the_floor_allows():
    for reach in range(2, 9):
        assert bounds.dp_free_floor(reach, reach - 1, reach + 3).error == 0.5
        assert bounds.dp_free_floor(reach, reach, reach + 3).error == 0.0


# ---------------------------------------------------------------- bits


@pytest.mark.parametrize("reach", range(1, 7))
def test_one_head_reads_any_of_the_last_bits(reach):
    made = construct.bit_decoder(reach)
    assert made.model.config.heads == 1
    assert made.model.config.width <= reach * 2 ** (reach + 2)
    x, _ = made.target.sample(60, 32, memlib.reproducible(0))
    assert made.measured_error(x) <= made.float_error < 1e-6
    for fill in (0.0, 1.0):  # every history of the last bits, with all older bits equal
        histories = torch.tensor(list(itertools.product((0.0, 1.0), repeat=reach + 1)), dtype=torch.float64)
        x = torch.full((len(histories) * reach, 32, 2), fill, dtype=torch.float64)
        x[:, -reach - 1 :, 0] = histories.repeat(reach, 1)
        x[..., 1] = torch.arange(1.0, reach + 1).repeat_interleave(len(histories))[:, None]
        with torch.no_grad():
            wrong = (made.model(x) - made.target(x))[:, -1].abs().max()
        assert float(wrong) <= made.float_error


@pytest.mark.parametrize("reach", [2, 4])
def test_the_same_layer_is_wrong_on_real_values(reach):
    made = construct.bit_decoder(reach)
    kernel = pointer_floor.kernels(made.model, 20)
    floor = bounds.dp_free_floor(reach, 1, 4, kernels=kernel)
    with torch.no_grad():
        answers = made.model(floor.tokens())[:, -1, 0]
    assert float((answers[0] - answers[1]).abs()) < 1e-9
    assert float((answers - torch.stack(floor.targets)).abs().max()) >= 0.5 - 1e-9


def test_constructions_survive_saving(tmp_path):
    for made in (construct.affine_pointer(2, 3.0), construct.selector(3), construct.bit_decoder(3)):
        made.model.save(tmp_path / "m.safetensors")
        x, _ = made.target.sample(4, 16, memlib.reproducible(0))
        with torch.no_grad():
            assert torch.equal(Transformer.load(tmp_path / "m.safetensors")(x), made.model(x))
        covered = sorted(i for part in made.slots.values() for i in range(part.start, part.stop))
        assert covered == list(range(made.model.config.d_model))


BAD = [
    (lambda: construct.affine_pointer(0, 1.0), "reach must be an integer of at least 1"),
    (lambda: construct.affine_pointer(2, 0.0), "alpha must be a positive"),
    (lambda: construct.affine_pointer(4, 1.0, length=4), "length must be an integer of at least 5"),
    (lambda: construct.selector(2, "rotary"), "t5, lin, log, got 'rotary'"),
    (lambda: construct.selector(2, "t5", alpha=1.0), "t5 has none"),
    (lambda: construct.selector(16), "reach must be at most 15"),
    (lambda: construct.selector(4, heads=0), "heads must be an integer of at least 1"),
    (lambda: construct.selector(4, "lin", heads=3), "fewer or more heads than reach are built for t5 only"),
    (lambda: construct.bit_decoder(9), "reach must be at most 8"),
    (lambda: construct.bit_decoder(2, ratio=0.5), "ratio must be below 1/2"),
    (lambda: construct.pointer_target(0), "reach must be an integer of at least 1"),
]


@pytest.mark.parametrize("call, message", BAD, ids=[m for _, m in BAD])
def test_bad_input_says_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ---------------------------------------------------------------- the experiment


def test_the_target_names_its_lag():
    target = pointer_floor.NamedLag(3, Interval(0.0, 1.0))
    x, y = target.sample(5, 9, memlib.reproducible(0))
    assert torch.equal(x[..., 1:].sum(-1), torch.ones(5, 9, dtype=torch.float64))
    for b, t in itertools.product(range(5), range(3, 9)):
        g = int(x[b, t, 1:].argmax()) + 1
        assert y[b, t, 0] == x[b, t - g, 0]
    counts = target.sample(400, 9, memlib.reproducible(1))[0][..., 1:].mean((0, 1))
    assert counts.tolist() == pytest.approx([1 / 3] * 3, abs=0.04)
    tokens = torch.tensor([[[0.3, 2.0]]], dtype=torch.float64)
    assert pointer_floor.with_unit_vectors(tokens, 3).tolist() == [[[0.3, 0.0, 1.0, 0.0]]]


@pytest.mark.parametrize("encoding", ["lin", "log", "t5"])
def test_the_exact_loss_and_the_worst_error_are_those_of_samples(encoding):
    model = pointer_floor.layer(4, 3, 0, encoding, "dp_free", seed=1)
    with torch.no_grad():
        model.readout.bias.fill_(0.2)
        exact, worst = pointer_floor.alone_loss(model, 4).item(), pointer_floor.alone_worst(model, 4).item()
    target = pointer_floor.NamedLag(4, Interval(-1.0, 1.0))
    x, y = target.sample(20_000, pointer_floor.LENGTH, memlib.reproducible(0))
    with torch.no_grad():
        off = (model(x) - y)[:, -1, 0]
        assert off.square().mean().item() == pytest.approx(exact, rel=0.03)
        assert off.abs().max().item() <= worst
        _, kernel, symbols = pointer_floor.affine_parts(model)
    # the worst input, written down: it attains the worst error
    found = 0.0
    for g, sign in itertools.product(range(1, 5), (1.0, -1.0)):
        error = kernel.clone()
        error[g] -= 1
        tokens = torch.zeros(1, pointer_floor.LENGTH, 5, dtype=torch.float64)
        tokens[0, :, 0] = (sign * torch.where(error < 0, -1.0, 1.0)).flip(0)
        worst_symbol = (sign * symbols).argmax(1)
        worst_symbol[0] = g - 1
        tokens[0, :, 1:] = torch.eye(4, dtype=torch.float64)[worst_symbol].flip(0)
        with torch.no_grad():
            found = max(found, float((model(tokens) - target(tokens))[0, -1].abs()))
    assert found == pytest.approx(worst, rel=1e-9)


def test_the_least_mean_square_is_the_average():
    kernel = torch.zeros(12, dtype=torch.float64)
    kernel[1:5] = 0.25
    wanted = torch.eye(12, dtype=torch.float64)[1:5]
    assert (wanted - kernel).square().sum(1).mean().item() == pytest.approx(pointer_floor.least_mean_square(4))
    for seed in range(20):
        other = kernel + 0.1 * torch.randn(12, dtype=torch.float64, generator=memlib.reproducible(seed))
        assert (wanted - other).square().sum(1).mean().item() > 0.75


def test_training_stays_above_the_floors_and_repeats():
    tiny = {"reach": 4, "heads": 2, "width": 0, "attention": "dp_free", "encoding": "t5", "seed": 0, "steps": 150}
    first = pointer_floor.run(**tiny)
    assert first == pointer_floor.run(**tiny)
    assert 0.75 <= first["error"] < 0.8 and first["worst"] >= 1
    worst = pointer_floor.run(**tiny, objective="worst")
    assert 1 <= worst["worst"] < 1.05
    some = pointer_floor.run(reach=2, heads=1, width=8, attention="dp_free", encoding="t5", seed=0, steps=60)
    assert some["worst"] >= 0.5 and some["state_difference"] < 1e-14
    free = pointer_floor.run(reach=2, heads=2, width=8, attention="dp_free", encoding="t5", seed=0, steps=3)
    assert free["state_difference"] == 0


def test_a_rotary_head_learns_to_point():
    found = pointer_floor.run(reach=4, heads=1, width=32, attention="dp", encoding="rotary", seed=0, steps=400)
    assert found["error"] < 0.01 and found["worst"] < 0.2


def test_the_experiment_refuses_what_it_cannot_measure():
    with pytest.raises(ValueError, match="unknown objective 'median'; allowed: square, worst"):
        pointer_floor.run(reach=2, heads=1, width=0, attention="dp_free", encoding="t5", seed=0, objective="median")
    with pytest.raises(ValueError, match="train on square"):
        pointer_floor.run(reach=2, heads=1, width=8, attention="dp_free", encoding="t5", seed=0, objective="worst")
    with pytest.raises(ValueError, match="only a DP-free layer without FFN is affine"):
        pointer_floor.affine_parts(pointer_floor.layer(2, 1, 8, "t5", "dp_free", 0))
    with pytest.raises(ValueError, match="only DP-free heads have kernels"):
        pointer_floor.kernels(pointer_floor.layer(2, 1, 8, "t5", "dp", 0), 8)
