"""Linear layers and independent inputs: their kernel, their exact loss, training on it, the grid of Tables 8 and 9."""

import itertools
import time

import numpy as np
import pytest
import torch

import memlib
from memlib import train
from memlib.experiments import tails
from memlib.model import Transformer, TransformerConfig
from memlib.population import SideBySide, expected_loss, population
from memlib.sums import KernelSum, best_sum
from memlib.targets import EssentiallySparse, Finite, FixedSparse, Interval
from memlib.train import effective_kernel, fit, fit_population, set_kernel

NORMALISERS = ("softmax", "sink", "none")
ENCODINGS = ("lin", "log", "kerple_log", "kerple_power", "t5", "alibi", "none")


def model(encoding="lin", normaliser="softmax", heads=3, seed=0, **more):
    """A linear layer whose biases are not zero, so that its constant is not zero either."""
    config = {"d_model": 6, "d_head": 2, "width": 0, "attention": "dp_free", **more}
    made = Transformer(
        TransformerConfig(encoding=encoding, normaliser=normaliser, heads=heads, **config), memlib.reproducible(seed)
    )
    with torch.no_grad():
        for part in (made.embed, made.readout):
            part.bias.normal_(generator=memlib.reproducible(seed + 50))
    return made


SHIFTED = Interval(-1.0, 3.0)


def linear_target(kernels=("sech", "rounded power"), inputs=(SHIFTED,), constant=0.5):
    """A target with a linear read-out of several kernels, with a constant; the inputs have a mean."""
    weights = torch.arange(1.0, len(kernels) + 1, dtype=torch.float64)
    return EssentiallySparse(
        lambda z: (z * weights[:, None]).sum((2, 3))[..., None] + constant,
        [tails.KERNELS[name] for name in kernels],
        inputs=list(inputs),
    )


# ---------------------------------------------------------------- the kernel of a layer


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("length", [1, 2, 9, 80])
def test_the_kernel_is_the_answer_to_impulses(encoding, normaliser, length):
    """At the last position: 80 is long enough for the model's FFT path."""
    layer = model(encoding, normaliser)
    impulses = torch.zeros(length + 1, length, 1, dtype=torch.float64)
    impulses[torch.arange(length), length - 1 - torch.arange(length), 0] = 1.0
    with torch.no_grad():
        answers = layer(impulses)[:, -1, 0]
        kernel = effective_kernel(layer, length)
    assert kernel.shape == (length,)
    torch.testing.assert_close(kernel, answers[:-1] - answers[-1], rtol=1e-10, atol=1e-12)


def test_several_channels_and_large_biases():
    layer = model("t5", d_in=2, d_out=3, seed=4)
    with torch.no_grad():
        layer.layers[0].attention.encoding.table += torch.tensor([[40.0], [-60.0], [900.0]])
        kernel = effective_kernel(layer, 12)
        assert kernel.shape == (3, 2, 12) and bool(kernel.isfinite().all())
        for lag, channel in itertools.product((0, 5, 11), (0, 1)):
            x = torch.zeros(2, 12, 2, dtype=torch.float64)
            x[0, 11 - lag, channel] = 1.0
            answer, constant = layer(x)[:, -1]
            torch.testing.assert_close(kernel[:, channel, lag], answer - constant, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("encoding", ["lin", "log"])
def test_the_kernel_is_differentiable_in_all_that_moves_it(encoding, normaliser):
    layer = model(encoding, normaliser)
    effective_kernel(layer, 10).square().sum().backward()
    still = {"embed.bias", "readout.bias"}
    for name, parameter in layer.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) == (name not in still), name


# ---------------------------------------------------------------- the loss


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("inputs", [Interval(), Interval(-1.0, 3.0), Finite((-1.0, 0.0, 4.0))], ids=str)
def test_the_closed_form_is_what_samples_say(inputs, normaliser):
    """Monte Carlo, within four standard errors; also where the inputs have a mean."""
    target, layer, length = linear_target(inputs=[inputs]), model("log", normaliser), 16
    x, y = target.sample(50_000, length, memlib.reproducible(3))
    with torch.no_grad():
        square = (y[:, -1] - layer(x)[:, -1]).square()
        stated = expected_loss(layer, target, length=length).item()
    error = square.std().item() / len(square) ** 0.5
    assert abs(square.mean().item() - stated) < 4 * error < 0.1 * stated


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("encoding", ["lin", "log", "t5"])
def test_loss_and_gradient_are_the_mean_over_all_sequences(encoding, normaliser):
    """A finite alphabet, a short window: every sequence is enumerated, and autograd goes through the model itself."""
    values, length = (-1.0, 0.5, 2.0), 5
    target = linear_target(inputs=[Finite(values)])
    x = torch.tensor(list(itertools.product(values, repeat=length)), dtype=torch.float64)[..., None]
    layer = model(encoding, normaliser)
    exact = (target(x)[:, -1] - layer(x)[:, -1]).square().mean()
    wanted = torch.autograd.grad(exact, list(layer.parameters()))
    stated = expected_loss(layer, target, length=length)
    found = torch.autograd.grad(stated, list(layer.parameters()))
    assert stated.item() == pytest.approx(exact.item(), rel=1e-12)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_several_input_and_output_channels():
    mixing = torch.tensor([[1.0, 2.0], [0.0, -1.0]], dtype=torch.float64)
    target = EssentiallySparse(lambda z: z[:, :, 0] @ mixing.T, [tails.KERNELS["sech"]],
                               inputs=[Finite((0.0, 1.0)), Finite((-1.0, 3.0))], d_out=2)  # fmt: skip
    layer = model(d_in=2, d_out=2)
    singles = list(itertools.product((0.0, 1.0), (-1.0, 3.0)))
    x = torch.tensor(list(itertools.product(singles, repeat=4)), dtype=torch.float64)
    with torch.no_grad():
        exact = (target(x)[:, -1] - layer(x)[:, -1]).square().mean().item()
        assert expected_loss(layer, target, length=4).item() == pytest.approx(exact, rel=1e-12)


def test_kernel_values_mean_variance_and_size():
    layer, rho = model("lin"), tails.KERNELS["sech"].values(20)
    with torch.no_grad():
        gap = rho - effective_kernel(layer, 20)
        without = expected_loss(layer, rho).item()
        law = EssentiallySparse(lambda z: z[:, :, 0], [tails.KERNELS["sech"]], inputs=[Interval(0.0, 6.0)])
        assert expected_loss(layer, rho, mean=3.0, variance=3.0).item() == pytest.approx(
            expected_loss(layer, law, length=20).item(), rel=1e-12
        )
        constant = layer(torch.zeros(1, 20, 1, dtype=torch.float64))[0, -1, 0]
        assert without == pytest.approx((gap.square().sum() + constant**2).item(), rel=1e-12)
    assert population(rho.numpy(), variance=2.0).output_variance == pytest.approx(2 * rho.square().sum().item())
    assert population(rho.tolist()).length == 20


# ---------------------------------------------------------------- giving a layer a kernel


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("encoding", ["lin", "log"])
def test_a_layer_takes_the_kernel_it_is_given(encoding, normaliser):
    rates, coefficients = (0.2, 1.3, 2.0), (1.5, -40.0, 0.0)
    layer = set_kernel(model(encoding, normaliser), rates, coefficients, -0.7, length=30)
    wanted = KernelSum(encoding, rates, coefficients, -0.7).values(np.arange(30))
    np.testing.assert_allclose(effective_kernel(layer, 30).detach().numpy(), wanted, rtol=1e-12, atol=1e-12)
    if normaliser == "none":  # then in every window, and as a whole model
        x = torch.randn(2, 50, 1, dtype=torch.float64, generator=memlib.reproducible(1))
        rho = torch.as_tensor(KernelSum(encoding, rates, coefficients, -0.7).values(np.arange(50)))
        filtered = EssentiallySparse(lambda z: z[:, :, 0], [lambda s: rho[s.long()]])(x)
        torch.testing.assert_close(layer(x).detach(), filtered, rtol=1e-9, atol=1e-9)


def test_the_best_sum_has_its_error_as_a_layer():
    rho = tails.KERNELS["rounded power"].values(64)
    best = best_sum(rho.numpy(), 2, "log", "l2", residual=True)
    layer = set_kernel(model("log", heads=2), best.rates, best.coefficients, float(best.residual), length=64)
    assert expected_loss(layer, rho).item() == pytest.approx(best.error**2, rel=1e-6)


# ---------------------------------------------------------------- training


def test_training_is_the_loop_of_fit_on_the_closed_form():
    rho = tails.KERNELS["sech"].values(40)
    a, b = model(seed=1), model(seed=1)
    first = fit_population(a, rho, steps=30, lr=0.02)
    second = fit(b, lambda m, _: expected_loss(m, rho), steps=30, lr=0.02, generator=memlib.reproducible(0))
    assert first == second and first.steps == 30
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("encoding", ["lin", "log", "t5", "kerple_log", "none"])
def test_side_by_side_is_one_by_one(encoding):
    names = ("sech", "power", "ramp")
    targets = [tails.KERNELS[name].values(40) for name in names]
    together = [model(encoding, seed=s) for s in range(3)]
    alone = [model(encoding, seed=s) for s in range(3)]
    histories = fit_population(together, targets, steps=40)
    for one, other, rho, history in zip(together, alone, targets, histories, strict=True):
        single = fit_population(other, rho, steps=40)
        assert history.losses == pytest.approx(single.losses, rel=1e-9)
        for p, q in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9)


def test_frozen_slopes_stay_also_side_by_side():
    models = [model(seed=s) for s in range(2)]
    before = [m.layers[0].attention.encoding.slope.detach().clone() for m in models]
    for m in models:
        m.layers[0].attention.encoding.raw_slope.requires_grad_(False)
    fit_population(models, tails.KERNELS["sech"].values(20), steps=5)
    assert all(torch.equal(m.layers[0].attention.encoding.slope, b) for m, b in zip(models, before, strict=True))


def test_training_on_the_closed_form_is_training_on_samples():
    """Same start, same number of steps: the two ways end close to each other, in the loss of the closed form."""
    target = tails.target("sech", 16)
    assert target.burn_in == 15
    found = []
    for way in ("samples", "formula"):
        layer = tails.layer("lin", 2, 0)
        if way == "samples":
            fit(layer, target, steps=400, batch=64, length=16, generator=memlib.reproducible(1))
        else:
            fit_population(layer, target, steps=400, length=16)
        found.append(expected_loss(layer, target, length=16).item())
    assert 0.6 < found[0] / found[1] < 1.6
    assert found[1] < 0.1 * population(target, length=16).output_variance


def test_a_step_is_fast():
    """About half a millisecond on an idle core; ten times that is still counted as fast on a busy one."""
    layer, rho = tails.layer("lin", 16, 0), tails.KERNELS["sech"].values(256)
    fit_population(layer, rho, steps=20)
    best = []
    for _ in range(3):
        start = time.perf_counter()
        fit_population(layer, rho, steps=50)
        best.append(time.perf_counter() - start)
    assert min(best) / 50 < 0.005


# ---------------------------------------------------------------- the experiment


def test_kernels_decay_as_they_say():
    lags = torch.arange(1.0, 2000.0, dtype=torch.float64)
    for name, kernel in tails.KERNELS.items():
        assert kernel.name == name and kernel.kind in ("light", "heavy")
        decay = torch.exp(-kernel.exponent * lags) if kernel.kind == "light" else lags**-kernel.exponent
        ratio = kernel(lags).abs() / decay
        near, far = ratio[:1000], ratio[1000:]
        assert bool((far[decay[1000:] > 1e-290] <= near.max() * 1.01).all()), name
    assert tails.KERNELS["sech"].values(9)[8].item() == pytest.approx(1 / np.cosh(2), rel=1e-14)
    assert tails.KERNELS["rough power"].values(6).sign().tolist() == [1, -1, 1, -1, 1, -1]
    assert bool(torch.isfinite(tails.KERNELS["sech"].values(5000)).all())


def test_rows_are_those_of_single_runs_in_order():
    points = [{"kernel": k, "encoding": e, "heads": h, "seed": s, "steps": 20, "length": 32}
              for k in ("sech", "power") for e in ("log", "lin") for h in (1, 3) for s in (0, 1)]  # fmt: skip
    rows = tails.run_many(points)
    for point, row in zip(points, rows, strict=True):
        assert {name: row[name] for name in point} == point
    for i in (0, 5, 10, 15):
        alone = tails.run(**points[i])
        assert rows[i]["error"] == pytest.approx(alone["error"], rel=1e-8)
        assert rows[i]["rates"] == pytest.approx(alone["rates"], rel=1e-8)


def test_one_head_is_found_and_the_best_is_held():
    rho = tails.KERNELS["rounded power"].values(64).numpy()
    best = best_sum(rho, 1, "lin", "l2", residual=True).error ** 2 / (rho @ rho)
    found = [tails.run(kernel="rounded power", encoding="lin", heads=1, seed=0, start=start, steps=800, length=64)
             for start in tails.STARTS]  # fmt: skip
    assert [row["error"] for row in found] == pytest.approx([best] * 2, rel=1e-2)
    assert found[1]["first"] == pytest.approx(best, rel=1e-9) and found[1]["most"] > found[1]["first"]
    exact = best_sum(rho, 1, "lin", "l2", residual=True)
    assert found[1]["weight"] == pytest.approx(exact.weight, rel=1e-2)


@pytest.mark.parametrize("kernel, encoding", tails.PAIRS)
def test_the_ways_down_agree_where_there_is_one_minimum(kernel, encoding):
    rho = tails.KERNELS[kernel].values(64).numpy()
    best = best_sum(rho, 1, encoding, "l2", residual=True).error ** 2 / (rho @ rho)
    rates = tails.starting_rates(encoding, 1, 2)
    error, found = tails.variable_projection(kernel, encoding, rates, length=64)
    assert error == pytest.approx(best, rel=1e-9) and len(found) == 1
    assert tails.exact_weights(kernel, encoding, rates, steps=300, length=64) == pytest.approx(best, rel=1e-2)
    curve = tails.lbfgs(kernel, encoding, 1, 2, iterations=200, length=64)
    assert curve[-1] == pytest.approx(best, rel=1e-6) and curve == sorted(curve, reverse=True)


def test_gradient_descent_on_the_weights_is_predicted():
    rates = [0.1, 0.4, 0.9]
    state = tails.conditioning("sech", "lin", rates, length=64)
    for steps in (0, 1, 7, 300):
        assert state.loss(steps) == pytest.approx(tails.descend("sech", "lin", rates, steps, length=64), rel=1e-9)
    needed = state.steps_to(2.0)
    assert state.loss(needed) <= 2 * state.least < state.loss(needed - 1)
    a = np.exp(-np.outer(np.arange(1, 64), rates))
    a /= np.linalg.norm(a, axis=0)
    assert state.condition == pytest.approx(np.linalg.cond(a.T @ a), rel=1e-8)
    assert tails.tangent_condition("lin", rates, 64) > state.condition
    wanted = tails.KERNELS["sech"].values(64).numpy()
    rest = np.linalg.lstsq(a, wanted[1:])[1][0] / (wanted @ wanted)
    assert state.least == pytest.approx(rest, rel=1e-9)
    assert tails.relative_errors("sech", [wanted @ wanted], 64) == pytest.approx([1.0])


def test_the_tangent_columns_are_derivatives():
    """Two heads that are almost the same one span almost a head and its derivative."""
    close = tails.conditioning("sech", "log", [1.0, 1.0 + 1e-3], 64).condition
    closer = tails.conditioning("sech", "log", [1.0, 1.0 + 1e-4], 64).condition
    assert closer / close == pytest.approx(100, rel=0.02)
    lags = np.arange(1, 64.0)
    both = np.stack([lags**-1.0, np.log(lags) / lags], axis=1)
    both /= np.linalg.norm(both, axis=0)
    assert tails.tangent_condition("log", [1.0], 64) == pytest.approx(np.linalg.cond(both) ** 2, rel=1e-9)


# ---------------------------------------------------------------- bad input


BAD_MODELS = {
    "attention 'dp' depends on the tokens": {"attention": "dp"},
    "attention 'tmx' depends": {"attention": "tmx", "normaliser": "none"},
    "it has an FFN of 4 neurons": {"width": 4},
    "it has 2 layers": {"layers": 2},
    "it has norms": {"norm": "pre"},
}


@pytest.mark.parametrize("message", BAD_MODELS)
def test_models_without_a_kernel_are_refused(message):
    bad = Transformer(
        TransformerConfig(**{"d_model": 4, "heads": 2, "width": 0, "attention": "dp_free", **BAD_MODELS[message]}),
        memlib.reproducible(0),
    )
    rho = tails.KERNELS["sech"].values(8)
    calls = (
        lambda: effective_kernel(bad, 8),
        lambda: expected_loss(bad, rho),
        lambda: fit_population(bad, rho, steps=1),
        lambda: fit_population([bad], rho, steps=1),
        lambda: set_kernel(bad, [1.0, 2.0], [1.0, 1.0]),
    )
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()


RHO = torch.ones(8, dtype=torch.float64)
NAN = torch.tensor([1.0, float("nan")], dtype=torch.float64)
CUBIC = EssentiallySparse(lambda z: z[:, :, 0] ** 3, [tails.KERNELS["sech"]])
RIDGE = EssentiallySparse(lambda z: torch.relu(z[:, :, 0] + 1.5), [tails.KERNELS["sech"]])
BAD_TARGETS = [
    (lambda: fit_population(model(), NAN, steps=1), ValueError, "finite, got nan at lag 1"),
    (lambda: fit_population(model(), RHO, steps=1, length=9), ValueError, "length is 9, but 8 kernel values"),
    (lambda: fit_population(model(), RHO[None], steps=1), ValueError, "one-dimensional"),
    (lambda: fit_population(model(), ["a"], steps=1), ValueError, "must be numbers"),
    (lambda: fit_population(model(), RHO, steps=1, variance=0.0), ValueError, "variance must be positive"),
    (lambda: fit_population(model(), RHO, steps=1, mean=float("nan")), ValueError, "mean must be a finite number"),
    (lambda: fit_population(model(), "sech", steps=1), TypeError, "EssentiallySparse target or an array"),
    (lambda: fit_population(model(), FixedSparse(lambda z: z[:, :, 1], [2]), steps=1), TypeError, "got FixedSparse"),
    (lambda: fit_population(model(), linear_target(), steps=1), ValueError, "say with length="),
    (lambda: fit_population(model(), linear_target(), steps=1, length=0), ValueError, "length must be an integer"),
    (lambda: fit_population(model(), CUBIC, steps=1, length=9), ValueError, "read-out is not linear.*memlib.train.fit"),
    (lambda: fit_population(model(), RIDGE, steps=1, length=9), ValueError, "read-out is not linear"),
    (lambda: fit_population(model(d_in=2), RHO, steps=1), ValueError, "1 input and 1 output channels"),
    (lambda: fit_population([], RHO, steps=1), ValueError, "at least one"),
    (lambda: fit_population([model(), model()], [RHO], steps=1), ValueError, "as many"),
    (lambda: fit_population([model(), model("log")], RHO, steps=1), ValueError, "one configuration"),
    (lambda: fit_population([model(), model()], [RHO, RHO[:5]], steps=1), ValueError, "need one size"),
    (lambda: fit_population(FixedSparse, RHO, steps=1), TypeError, "must be a memlib.model.Transformer"),
    (lambda: fit_population(model(), RHO, steps=0), ValueError, "steps must be an integer"),
    (lambda: fit_population(model(), RHO, steps=1, schedule="linear"), ValueError, "unknown schedule"),
    (lambda: effective_kernel(model(), 0), ValueError, "length must be an integer of at least 1"),
    (lambda: set_kernel(model(), [1.0, 2.0], [1.0] * 3, length=9), ValueError, "rates must be 3 finite numbers"),
    (lambda: set_kernel(model(), [1.0] * 3, [np.nan] * 3, length=9), ValueError, "coefficients must be 3 finite"),
    (lambda: set_kernel(model(), [1.0, 2.0, 0.0], [1.0] * 3, length=9), ValueError, "rates must be positive"),
    (lambda: set_kernel(model(), [1.0] * 3, [1.0] * 3), ValueError, "say with length="),
    (lambda: set_kernel(model("t5"), [1.0] * 3, [1.0] * 3, length=9), ValueError, "no learned slope"),
    (lambda: set_kernel(model(d_in=2), [1.0] * 3, [1.0] * 3, length=9), ValueError, "one input and one output"),
    (lambda: set_kernel(model(d_model=1), [1.0] * 3, [1.0] * 3, length=9), ValueError, "d_model of at least 2"),
    (lambda: tails.run(kernel="flat", encoding="lin", heads=1, seed=0), ValueError, "unknown kernel 'flat'"),
    (lambda: tails.layer("t5", 1, 0), ValueError, "unknown encoding 't5'"),
    (lambda: tails.run(kernel="sech", encoding="lin", heads=1, seed=0, start="worst"), ValueError, "unknown start"),
    (lambda: tails.variable_projection("sech", "lin", [-1.0]), ValueError, "rates must be positive"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, message", BAD_TARGETS, ids=[str(i) for i in range(len(BAD_TARGETS))])
def test_bad_input_is_explained(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_models_frozen_in_different_ways_are_not_stacked():
    models = [model(seed=s) for s in range(2)]
    models[1].embed.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"embed.weight is frozen in some"):
        SideBySide(models)


def test_train_offers_what_the_chapter_uses():
    for name in ("effective_kernel", "expected_loss", "fit_population", "set_kernel"):
        assert name in train.__all__ and callable(getattr(train, name))
