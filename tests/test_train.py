"""Training: it learns, repeats itself, survives interruption without a trace, and refuses what it cannot resume."""

import math
import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memlib.model import FeedForward, Transformer, TransformerConfig
from memlib.targets import FixedSparse
from memlib.train import SCHEDULES, History, fit, relative_error

POINTS = torch.linspace(-1, 1, 33, dtype=torch.float64)[:, None]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def network(width=6, seed=1):
    return FeedForward(1, width, 1, generator=generator(seed))


def noisy_loss(model, source):
    """A loss that uses the generator, so that its state matters."""
    x = POINTS + 0.01 * torch.randn(POINTS.shape, dtype=torch.float64, generator=source)
    return F.mse_loss(model(x), POINTS**2)


def target(lag=2):
    return FixedSparse(lambda tokens: tokens[:, :, 1] * 0.5, [lag])


def transformer():
    return Transformer(TransformerConfig(d_model=4, heads=2, width=4, attention="dp_free"), generator(3))


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


class Stop(Exception):
    pass


class Interrupting:
    """The noisy loss, which raises at its n-th call, in the middle of drawing."""

    def __init__(self, error, calls):
        self.error, self.left = error, calls

    def __call__(self, model, source):
        self.left -= 1
        if self.left == 0:
            torch.rand(3, generator=source)
            raise self.error
        return noisy_loss(model, source)


# ---------------------------------------------------------------- it trains


def test_a_loss_function_is_minimised_and_the_history_tells_how():
    model = network(width=32)
    history = fit(model, noisy_loss, steps=300, generator=generator())
    assert isinstance(history, History) and history.steps == 300 and len(history.losses) == 300
    assert history.final == history.losses[-1] < history.losses[0] / 20
    assert history.seconds > 0


def test_training_repeats_itself_and_depends_on_the_generator():
    runs = [(model := network(), fit(model, noisy_loss, steps=40, generator=generator(s))) for s in (0, 0, 1)]
    assert runs[0][1] == runs[1][1] and same(runs[0][0], runs[1][0])
    assert runs[0][1] != runs[2][1] and not same(runs[0][0], runs[2][0])


def test_a_target_is_learned_and_the_loss_leaves_out_the_burn_in():
    model, seen = transformer(), []
    task = target()
    x, y = task.sample(8, 10, generator(0))
    with torch.no_grad():
        seen.append(float(F.mse_loss(model(x)[:, 2:], y[:, 2:])))
    history = fit(model, task, steps=150, batch=8, length=10, generator=generator(0))
    assert history.losses[0] == pytest.approx(seen[0], rel=1e-12)
    assert history.final < history.losses[0] / 3


def test_integer_outputs_are_trained_by_cross_entropy():
    class Parity:
        burn_in = 1

        def sample(self, batch, length, source):
            x = torch.randint(2, (batch, length), generator=source)
            y = x.clone()
            y[:, 0] = 1 - y[:, 0]  # wrong where it does not count
            return x, y

    model = Transformer(TransformerConfig(d_in=2, d_out=2, d_model=4, width=4), generator(0))
    history = fit(model, Parity(), steps=200, batch=8, length=6, generator=generator(0))
    assert 0.2 < history.losses[0] < 3 and history.final < 0.02


def test_the_first_step_is_adams_and_the_schedule_ends_at_zero():
    model, before = network(), network()
    fit(model, noisy_loss, steps=1, lr=0.01, generator=generator())
    pairs = zip(model.parameters(), before.parameters(), strict=True)
    moved = torch.cat([(p - q).detach().abs().flatten() for p, q in pairs])
    assert torch.allclose(moved[moved > 1e-6], torch.tensor(0.01, dtype=torch.float64), rtol=1e-4)
    assert [SCHEDULES["cosine"](s) for s in (0, 0.5, 1)] == pytest.approx([1, 0.5, 0])
    runs = {}
    for schedule in SCHEDULES:
        runs[schedule] = network()
        fit(runs[schedule], noisy_loss, steps=20, schedule=schedule, generator=generator())
    assert not same(runs["cosine"], runs["constant"])


def test_frozen_parameters_stay():
    model = network()
    model.hidden.weight.requires_grad_(False)
    before = model.hidden.weight.clone()
    fit(model, noisy_loss, steps=5, generator=generator())
    assert torch.equal(model.hidden.weight, before) and not torch.equal(model.out.weight, network().out.weight)


def test_progress_is_shown_on_request_only(capsys):
    fit(network(), noisy_loss, steps=3, generator=generator())
    assert capsys.readouterr() == ("", "")
    fit(network(), noisy_loss, steps=3, generator=generator(), progress=True)
    assert "3/3" in capsys.readouterr().err


# ---------------------------------------------------------------- interruption


@pytest.mark.parametrize("error, kept", [(KeyboardInterrupt(), 24), (Stop(), 20)], ids=["Ctrl-C", "exception"])
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, error, kept):
    whole = network()
    expected = fit(whole, noisy_loss, steps=50, generator=generator())
    path, model = tmp_path / "run.safetensors", network()
    with pytest.raises(type(error)):
        fit(model, Interrupting(error, 25), steps=50, generator=generator(), checkpoint=path, every=10)
    assert model(POINTS).isfinite().all()
    calls = []

    def counted(net, source):
        calls.append(1)
        return noisy_loss(net, source)

    resumed = network(seed=9)  # whatever it starts from is replaced by what the file holds
    history = fit(resumed, counted, steps=50, generator=generator(), checkpoint=path, every=10)
    assert len(calls) == 50 - kept
    assert history == expected and same(resumed, whole)
    assert os.listdir(tmp_path) == ["run.safetensors"]


def test_the_same_call_again_in_the_same_session_goes_on_after_an_interrupt(tmp_path):
    whole = network()
    expected = fit(whole, noisy_loss, steps=30, generator=generator())
    path, model, source = tmp_path / "run.safetensors", network(), generator()
    with pytest.raises(KeyboardInterrupt):
        fit(model, Interrupting(KeyboardInterrupt(), 17), steps=30, generator=source, checkpoint=path)
    assert fit(model, noisy_loss, steps=30, generator=source, checkpoint=path) == expected and same(model, whole)


def test_an_interrupt_amid_an_update_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run.safetensors"
    step = torch.optim.Adam.step

    def broken(self, closure=None):
        broken.calls += 1
        if broken.calls == 15:
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(1.0)  # half an update
            raise KeyboardInterrupt
        return step(self, closure)

    broken.calls = 0
    monkeypatch.setattr(torch.optim.Adam, "step", broken)
    with pytest.raises(KeyboardInterrupt):
        fit(network(), noisy_loss, steps=30, generator=generator(), checkpoint=path, every=10)
    monkeypatch.undo()
    model, whole = network(), network()
    history = fit(model, noisy_loss, steps=30, generator=generator(), checkpoint=path, every=10)
    assert history == fit(whole, noisy_loss, steps=30, generator=generator()) and same(model, whole)


def test_a_transformer_on_a_target_resumes_too(tmp_path):
    whole, model, path = transformer(), transformer(), tmp_path / "run.safetensors"
    options = {"steps": 12, "batch": 2, "length": 5}
    expected = fit(whole, target(), generator=generator(), **options)
    stopping = target()
    sample, calls = stopping.sample, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return sample(*arguments)

    stopping.sample = interrupted
    with pytest.raises(KeyboardInterrupt):
        fit(model, stopping, generator=generator(), checkpoint=path, **options)
    assert fit(model, target(), generator=generator(), checkpoint=path, **options) == expected and same(model, whole)


def test_a_finished_run_is_only_read(tmp_path):
    path, model = tmp_path / "run.safetensors", network()
    history = fit(model, noisy_loss, steps=20, generator=generator(), checkpoint=path)
    again = network(seed=4)
    assert fit(again, Interrupting(Stop(), 1), steps=20, generator=generator(), checkpoint=path) == history
    assert same(again, model)


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "run.safetensors"
    with pytest.raises(Stop):
        fit(network(), Interrupting(Stop(), 15), steps=30, generator=generator(), checkpoint=path, every=10)
    before = path.read_bytes()
    monkeypatch.setattr("memlib.train.os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        fit(network(), noisy_loss, steps=30, generator=generator(), checkpoint=path, every=10)
    assert path.read_bytes() == before


# ---------------------------------------------------------------- what cannot be resumed


def refusals():
    def wide():
        return network(width=7)

    yield "steps", {"steps": 40}, network, "another configuration: steps 30 there, 40 here"
    yield "lr", {"lr": 0.02}, network, "another configuration: lr 0.01 there, 0.02 here"
    yield "schedule", {"schedule": "constant"}, network, "schedule 'cosine' there, 'constant' here"
    yield "seed", {"generator": generator(5)}, network, "seed 0 there, 5 here"
    yield "shapes", {}, wide, r"another model: hidden.weight \(6, 1\) float64 there, \(7, 1\) float64 here"
    yield "names", {}, lambda: nn.Linear(1, 1, dtype=torch.float64), "another model: weight missing there"
    yield "objective", {"objective": target()}, transformer, "objective 'loss' there, 'FixedSparse' here"


@pytest.mark.parametrize("changed, make, message", [row[1:] for row in refusals()], ids=[row[0] for row in refusals()])
def test_a_checkpoint_of_another_configuration_is_refused_and_left_alone(tmp_path, changed, make, message):
    path = tmp_path / "run.safetensors"
    options = {"steps": 30, "lr": 0.01, "generator": generator(), "checkpoint": path}
    with pytest.raises(KeyboardInterrupt):
        fit(network(), Interrupting(KeyboardInterrupt(), 10), **options)
    before, model = path.read_bytes(), make()
    untouched = [p.clone() for p in model.parameters()]
    changed = dict(changed)
    objective = changed.pop("objective", noisy_loss)
    with pytest.raises(ValueError, match=message):
        fit(model, objective, **{**options, "generator": generator(), **changed})
    assert path.read_bytes() == before
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), untouched, strict=True))


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_a_damaged_checkpoint_is_refused_and_left_alone(tmp_path, share):
    path = tmp_path / "run.safetensors"
    fit(network(), noisy_loss, steps=5, generator=generator(), checkpoint=path)
    half = path.read_bytes()[: int(path.stat().st_size * share)]
    path.write_bytes(half)
    with pytest.raises(ValueError, match="damaged or no checkpoint"):
        fit(network(), noisy_loss, steps=5, generator=generator(), checkpoint=path)
    assert path.read_bytes() == half


def test_a_model_file_is_no_checkpoint(tmp_path):
    path = tmp_path / "model.safetensors"
    transformer().save(path)
    with pytest.raises(ValueError, match=r"was not written by memlib\.train\.fit"):
        fit(transformer(), target(), steps=5, generator=generator(), checkpoint=path)


def test_a_diverging_loss_raises_with_step_and_hint(tmp_path):
    def exploding(model, source):
        growth = [p.sum() * 0 for p in model.parameters()]
        exploding.calls += 1
        return sum(growth) + (math.inf if exploding.calls == 8 else 1.0)

    exploding.calls = 0
    path = tmp_path / "run.safetensors"
    with pytest.raises(ValueError, match=r"the loss is inf at step 7 of 20 \(lr 0.01\): try a smaller lr"):
        fit(network(), exploding, steps=20, generator=generator(), checkpoint=path, every=5)
    assert path.exists()
    with pytest.raises(ValueError, match="a parameter is not finite at step 0 of 1"):
        fit(network(), lambda model, _: (model.out.weight * 0).sum().sqrt(), steps=1, generator=generator())


# ---------------------------------------------------------------- bad input

BAD = [
    ({"steps": 0}, ValueError, "steps must be an integer of at least 1, got 0"),
    ({"steps": 2.5}, ValueError, "steps must be an integer of at least 1, got 2.5"),
    ({"steps": True}, ValueError, "steps must be an integer of at least 1, got True"),
    ({"lr": 0}, ValueError, "lr must be a positive finite number, got 0"),
    ({"lr": -1e-3}, ValueError, "lr must be a positive finite number, got -0.001"),
    ({"lr": math.nan}, ValueError, "lr must be a positive finite number, got nan"),
    ({"lr": "fast"}, ValueError, "lr must be a positive finite number, got 'fast'"),
    ({"generator": None}, TypeError, "explicit torch.Generator, got NoneType"),
    ({"generator": 0}, TypeError, "explicit torch.Generator, got int"),
    ({"schedule": "linear"}, ValueError, "unknown schedule 'linear'; allowed: cosine, constant"),
    ({"every": 0}, ValueError, "every must be an integer of at least 1, got 0"),
    ({"model": print}, TypeError, "model must be a torch module, got builtin_function_or_method"),
    ({"model": nn.Flatten()}, ValueError, "no parameter to train"),
    ({"objective": 3}, TypeError, r"a function loss\(model, generator\), got int"),
    ({"objective": lambda m, g: 1.0}, ValueError, "scalar tensor that depends on the model's parameters, got float"),
    ({"objective": lambda m, g: m(POINTS)}, ValueError, r"got a tensor of shape \(33, 1\)"),
    ({"objective": lambda m, g: torch.tensor(1.0)}, ValueError, "got a scalar that does not depend on the parameters"),
    ({"objective": target(), "length": 2}, ValueError, "length must exceed the target's burn_in of 2, got 2"),
    ({"objective": target(), "batch": 0}, ValueError, "batch must be an integer of at least 1, got 0"),
    ({"objective": target(), "length": 0}, ValueError, "length must be an integer of at least 1, got 0"),
    ({"objective": target(), "model": FeedForward(1, 2, 3, generator=generator())}, ValueError,
     r"output \(64, 64, 3\) and the target's \(64, 64, 1\) must have the same shape"),
    ({"checkpoint": "no/such/folder/run.safetensors"}, ValueError, "a file in an existing folder, got 'no/such"),
    ({"checkpoint": "."}, ValueError, "a file in an existing folder"),
]  # fmt: skip


@pytest.mark.parametrize("changed, error, message", BAD, ids=[f"{'-'.join(row[0])} {i}" for i, row in enumerate(BAD)])
def test_bad_input_says_what_was_wrong(changed, error, message):
    call = {"model": network(), "objective": noisy_loss, "steps": 2, "generator": generator(), **changed}
    with pytest.raises(error, match=message):
        fit(call.pop("model"), call.pop("objective"), **call)


def test_the_generator_cannot_be_forgotten():
    with pytest.raises(TypeError, match="generator"):
        fit(network(), noisy_loss, steps=2)


class Doubled:
    """Outputs are twice the inputs, so a model that returns its input errs by a quarter of the variance."""

    burn_in = 3

    def sample(self, batch, length, generator):
        x = 2 * torch.rand(batch, length, 1, dtype=torch.float64, generator=generator) - 1
        x[:, : self.burn_in] = 1e6  # not scored
        return x, 2 * x


def test_relative_error_by_hand():
    g = torch.Generator().manual_seed(0)
    assert relative_error(torch.nn.Identity(), Doubled(), generator=g) == pytest.approx(0.25, abs=1e-3)
    constant = torch.nn.Linear(1, 1, dtype=torch.float64)
    torch.nn.init.zeros_(constant.weight)
    torch.nn.init.zeros_(constant.bias)
    assert relative_error(constant, Doubled(), generator=g) == pytest.approx(1.0, abs=1e-3)


def test_relative_error_needs_outputs_that_vary():
    class Constant(Doubled):
        def sample(self, batch, length, generator):
            x, y = super().sample(batch, length, generator)
            return x, torch.ones_like(y)

    with pytest.raises(ValueError, match="needs real outputs that vary"):
        relative_error(torch.nn.Identity(), Constant(), generator=torch.Generator().manual_seed(0))
