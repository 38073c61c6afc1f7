r"""Training that can be stopped and resumed: Adam, explicit generators, the same numbers each time.

    history = fit(model, target, steps=1000, generator=memlib.reproducible(0), checkpoint="run.safetensors")

A run that was interrupted and started again ends with the very same bits as one that was not. The chapter Foundations
trains the FFN of equation (f:ffn) with it; later chapters train the whole model, equation (f:layers).
"""

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.nn import functional as F

from memlib.checks import explicit_generator, integer, positive_number
from memlib.population import SideBySide, effective_kernel, expected_loss, join, population, set_kernel

__all__ = [
    "SCHEDULES",
    "History",
    "effective_kernel",
    "expected_loss",
    "fit",
    "fit_population",
    "relative_error",
    "set_kernel",
]

SCHEDULES = {
    "cosine": lambda share: (1 + math.cos(math.pi * share)) / 2,
    "constant": lambda share: 1.0,
}
"""Factor of the learning rate by the share of the run that is over: ``cosine`` falls from 1 to 0."""

_FORMAT = "memlib training checkpoint 1"


@dataclass(frozen=True)
class History:
    """What a run of `fit` leaves behind, besides the trained model.

    Attributes:
        steps: number of steps.
        losses: the loss of every step, measured before its update.
        seconds: time spent, over all parts of an interrupted run; not compared.
    """

    steps: int
    losses: list[float]
    seconds: float = field(compare=False)

    @property
    def final(self) -> float:
        """The loss of the last step."""
        return self.losses[-1]


def fit(model: nn.Module, target_or_loss, *, steps: int, lr: float = 1e-2, batch: int = 64, length: int = 64,
        generator: torch.Generator, schedule: str = "cosine", checkpoint: str | os.PathLike | None = None,
        every: int = 100, progress: bool = False) -> History:  # fmt: skip
    r"""Train ``model`` in place by Adam and return the `History` of the run.

    Args:
        model: any module; parameters that do not require a gradient stay as they are.
        target_or_loss: a target (``.sample(batch, length, generator) -> (x, y)``, ``.burn_in``), or a function
            ``loss(model, generator)`` that returns a scalar tensor. For a target the loss is the mean square error, for
            integer outputs ``(batch, length)`` the cross entropy, over the positions from ``burn_in`` on.
        steps, lr: number of steps, and the learning rate of the first.
        batch, length: what is drawn from a target in each step; a loss function does not use them.
        generator: the source of everything random.
        schedule: ``cosine`` (down to zero) or ``constant``.
        checkpoint: a file. It is written every ``every`` steps and on an interrupt (Ctrl-C), whole or not at all. If it
            exists the run goes on from there: weights and generator are set to what the file holds. A file that is
            damaged or belongs to another configuration raises `ValueError` and is left alone. The file knows sizes and
            seed, not the target's formula: one file name per experiment.
        every: number of steps between two checkpoints.
        progress: show a progress bar.
    """
    _check(model, generator, steps, lr, schedule, every)
    loss_of, objective = _objective(target_or_loss, batch, length)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError("the model has no parameter to train: none requires a gradient")
    optimiser = torch.optim.Adam(parameters.values(), lr=lr)
    setting = {"steps": steps, "lr": lr, "schedule": schedule, **objective, "seed": generator.initial_seed()}
    run = _Run(model, parameters, optimiser, generator, setting)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None:
        if not path.parent.is_dir() or path.is_dir():
            raise ValueError(f"checkpoint must be a file in an existing folder, got {str(path)!r}")
        if path.exists():
            run.read(path)
    start, before = time.perf_counter(), run.seconds
    bar = _bar(progress, run, steps)
    step_state, updating = generator.get_state(), False
    try:
        while len(run.losses) < steps:
            step = len(run.losses)
            step_state = generator.get_state()
            optimiser.zero_grad(set_to_none=True)
            loss = loss_of(model, generator)
            value = _scalar(loss)
            if not math.isfinite(value):
                raise _diverged(f"the loss is {value}", step, steps, lr)
            loss.backward()
            for group in optimiser.param_groups:
                group["lr"] = lr * SCHEDULES[schedule](step / steps)
            updating = True
            optimiser.step()
            run.losses.append(value)
            step_state, updating = generator.get_state(), False
            run.seconds = before + time.perf_counter() - start
            if path is not None and (len(run.losses) % every == 0 or len(run.losses) == steps):
                run.write(path)
            if bar is not None:
                bar.update()
                bar.set_postfix(loss=f"{value:.3g}", refresh=False)
    except KeyboardInterrupt:
        if path is not None and not updating:  # amid an update, the last checkpoint is the better one
            generator.set_state(step_state)
            run.write(path)
        raise
    finally:
        if bar is not None:
            bar.close()
    if not all(bool(torch.isfinite(p).all()) for p in parameters.values()):
        raise _diverged("a parameter is not finite", steps - 1, steps, lr)
    return History(steps, run.losses, run.seconds)


def fit_population(model, target, *, steps: int, length: int | None = None, lr: float = 1e-2, mean: float = 0.0,
                   variance: float = 1.0, generator: torch.Generator | None = None, schedule: str = "cosine",
                   progress: bool = False) -> History | list[History]:  # fmt: skip
    r"""Train a linear layer in place on its exact expected loss, and return the `History` of the run.

    The loop is that of `fit`; the loss is `memlib.population.expected_loss`, a closed form in slopes and weights
    (chapter Essentially sparse memory, equations e:population and e:population-mean), so no sequence is drawn.

    Args:
        model: a `Transformer` with one layer, no dot product, no FFN and no norm, with any normaliser; or a list of
            such models of one configuration. They are trained side by side, each as if alone, and a list of
            histories is returned.
        target: an `EssentiallySparse` target with linear read-out, or the values of a kernel on lags $0,1,\dots$; for
            a list of models also a list of these, one for each.
        steps, lr, schedule, progress: as for `fit`.
        length: the window; the loss is that of its last position. Kernel values bring their own.
        mean, variance: of the inputs, if kernel values are given; a target knows its own.
        generator: as for `fit`; nothing is drawn from it.
    """
    generator = torch.Generator() if generator is None else generator
    options = {"steps": steps, "lr": lr, "generator": generator, "schedule": schedule, "progress": progress}
    law = {"length": length, "mean": mean, "variance": variance}
    if not isinstance(model, list | tuple):
        wanted = population(target, **law)
        expected_loss(model, wanted)  # complains about model and target before anything is trained
        return fit(model, lambda model, _: expected_loss(model, wanted), **options)
    several = isinstance(target, list | tuple) and not all(isinstance(v, int | float) for v in target)
    targets = list(target) if several else [target] * len(model)
    if len(targets) != len(model) or not model:
        raise ValueError(f"models and targets must be as many, and at least one, got {len(model)} and {len(targets)}")
    wanted = [population(each, **law) for each in targets]
    for one, each in zip(model, wanted, strict=True):
        expected_loss(one, each)
    together, all_wanted, losses = SideBySide(model), join(wanted), []

    def loss(together: SideBySide, _) -> Tensor:
        each = together.losses(all_wanted)
        losses.append(each.tolist())
        return each.sum()

    whole = fit(together, loss, **options)
    together.give_back()
    return [History(steps, list(curve), whole.seconds / len(model)) for curve in zip(*losses, strict=True)]


def relative_error(
    model: nn.Module, target, *, batch: int = 256, length: int = 64, generator: torch.Generator
) -> float:
    """Mean square error on fresh sequences as a share of the variance of the output, from ``burn_in`` on.

    1 is what the best constant guess reaches, 0 is perfect; of several output channels the variances are averaged.
    """
    explicit_generator("relative_error", generator)
    loss, _ = _objective(target, batch, length)
    seed = torch.Generator()
    seed.set_state(generator.get_state())  # so that the variance is that of the sequences the loss draws
    _, y = target.sample(batch, length, seed)
    if (
        not y.is_floating_point()
        or not (variance := float(y[:, target.burn_in :].var((0, 1), correction=0).mean())) > 0
    ):
        raise ValueError("the relative error needs real outputs that vary, got integer or constant ones")
    with torch.no_grad():
        return float(loss(model, generator)) / variance


# ---------------------------------------------------------------- what is minimised


def _objective(target_or_loss, batch: int, length: int) -> tuple[Callable, dict]:
    """The loss as a function of model and generator, and what of it belongs to the configuration."""
    if not (hasattr(target_or_loss, "sample") and hasattr(target_or_loss, "burn_in")):
        if not callable(target_or_loss):
            raise TypeError(
                "target_or_loss must be a target with .sample and .burn_in, or a function loss(model, generator), "
                f"got {type(target_or_loss).__name__}"
            )
        return target_or_loss, {"objective": "loss"}
    target, burn_in = target_or_loss, target_or_loss.burn_in
    for name, value in (("batch", batch), ("length", length)):
        integer(name, value, 1)
    if length <= burn_in:
        raise ValueError(f"length must exceed the target's burn_in of {burn_in}, got {length}: no position would count")

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        x, y = target.sample(batch, length, generator)
        output = model(x)[:, burn_in:]
        if not y.is_floating_point():
            if y.ndim != 2:
                raise ValueError(f"integer outputs must have shape (batch, length), got {tuple(y.shape)}")
            return F.cross_entropy(output.flatten(0, 1), y[:, burn_in:].flatten())
        if output.shape != y[:, burn_in:].shape:
            raise ValueError(
                f"the model's output {tuple(model(x).shape)} and the target's {tuple(y.shape)} must have the same shape"
            )
        return F.mse_loss(output, y[:, burn_in:])

    return loss, {"objective": type(target).__name__, "batch": batch, "length": length}


def _scalar(loss) -> float:
    if not isinstance(loss, Tensor) or loss.ndim or not loss.requires_grad:
        shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        if isinstance(loss, Tensor) and not loss.ndim:
            shape = "a scalar that does not depend on the parameters"
        raise ValueError(f"the loss must be a scalar tensor that depends on the model's parameters, got {shape}")
    return loss.item()


def _diverged(what: str, step: int, steps: int, lr: float) -> ValueError:
    return ValueError(f"{what} at step {step} of {steps} (lr {lr:g}): try a smaller lr, or check the scale of the data")


# ---------------------------------------------------------------- checkpoints


class _Run:
    """The state of a run, and how it is written to a file and read from it (safetensors, no pickle)."""

    def __init__(self, model, parameters, optimiser, generator, setting):
        self.model, self.parameters, self.optimiser, self.generator = model, parameters, optimiser, generator
        self.setting, self.losses, self.seconds = setting, [], 0.0

    def write(self, path: Path) -> None:
        """Write the state; the file appears whole or not at all."""
        tensors = {f"model.{name}": tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.parameters.items():
            for key, value in self.optimiser.state.get(parameter, {}).items():
                tensors[f"adam.{key}.{name}"] = value.contiguous()
        tensors["generator"] = self.generator.get_state()
        tensors["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        about = {"format": _FORMAT, "setting": json.dumps(self.setting), "seconds": repr(self.seconds)}
        part = path.with_name(path.name + ".part")
        part.write_bytes(to_bytes(tensors, metadata=about))
        os.replace(part, path)

    def read(self, path: Path) -> None:
        """Take over the state of a file. Everything is checked before anything is changed."""
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged or no checkpoint: {error}; move it away to start anew") from error
        if about.get("format") != _FORMAT:
            raise ValueError(f"{path} was not written by memlib.train.fit; give another file name")
        self._check_setting(path, json.loads(about["setting"]))
        self._check_shapes(path, tensors)
        self.model.load_state_dict(_part(tensors, "model."))
        self.optimiser.state.clear()
        for key in ("step", "exp_avg", "exp_avg_sq"):
            for name, value in _part(tensors, f"adam.{key}.").items():
                self.optimiser.state[self.parameters[name]][key] = value
        self.generator.set_state(tensors["generator"])
        self.losses, self.seconds = tensors["losses"].tolist(), float(about["seconds"])

    def _check_setting(self, path: Path, stored: dict) -> None:
        names = dict.fromkeys([*self.setting, *stored])
        wrong = [n for n in names if self.setting.get(n) != stored.get(n)]
        if wrong:
            listed = "; ".join(f"{n} {stored.get(n)!r} there, {self.setting.get(n)!r} here" for n in wrong)
            raise ValueError(f"{path} belongs to another configuration: {listed}; give another file name")

    def _check_shapes(self, path: Path, tensors: dict[str, Tensor]) -> None:
        there = {name: (tuple(t.shape), t.dtype) for name, t in _part(tensors, "model.").items()}
        here = {name: (tuple(t.shape), t.dtype) for name, t in self.model.state_dict().items()}
        wrong = [n for n in dict.fromkeys([*here, *there]) if there.get(n) != here.get(n)]
        if wrong:
            listed = "; ".join(f"{n} {_shape(there.get(n))} there, {_shape(here.get(n))} here" for n in wrong)
            raise ValueError(f"{path} belongs to another model: {listed}; give another file name")


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _shape(entry) -> str:
    return "missing" if entry is None else f"{entry[0]} {str(entry[1]).removeprefix('torch.')}"


def _bar(progress: bool, run: _Run, steps: int):
    if not progress:
        return None
    from tqdm.auto import tqdm

    return tqdm(total=steps, initial=len(run.losses), desc="training", unit="step")


# ---------------------------------------------------------------- checks


def _check(model, generator, steps, lr, schedule, every) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch module, got {type(model).__name__}")
    explicit_generator("fit", generator)
    integer("steps", steps, 1)
    integer("every", every, 1)
    positive_number("lr", lr)
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}; allowed: {', '.join(SCHEDULES)}")
