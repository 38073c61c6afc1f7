r"""Light and heavy tails learned by one layer: which encoding, how many heads (Tables 8 and 9).

The target is $y_t=(X*\rho)(t)$ with independent inputs; the layer has no dot product, no FFN and no norm, ordinary
softmax, and a residual stream of dimension 8. Training minimises the exact expected loss at the last position of a
window (chapter Essentially sparse memory, equation e:population). *The paper's tables* sets what it finds beside the
best possible sums, and beside other ways down the same loss: `variable_projection` (equation e:varpro),
`exact_weights`, `lbfgs`; `conditioning` predicts how many steps of gradient descent the output weights alone need.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import least_squares, minimize
from torch import Tensor

import memlib
from memlib.checks import integer
from memlib.kernels import best_weights, normalise
from memlib.model import Transformer, TransformerConfig
from memlib.sums import best_sum
from memlib.sums.hankel import SLOWEST, STEEPEST
from memlib.sweep import product
from memlib.targets import EssentiallySparse, Interval
from memlib.train import SCHEDULES, expected_loss, fit_population, set_kernel

__all__ = [
    "HEADS",
    "KERNELS",
    "LENGTH",
    "PAIRS",
    "SEEDS",
    "STARTS",
    "TABLES",
    "Conditioning",
    "Kernel",
    "conditioning",
    "descend",
    "exact_weights",
    "grid",
    "layer",
    "lbfgs",
    "relative_errors",
    "run",
    "run_many",
    "starting_rates",
    "tangent_condition",
    "target",
    "variable_projection",
]

SEEDS = range(20, 25)
LENGTH = 256
HEADS = (1, 4, 16, 64)
TABLES = {"heavy": ("pure power", "rounded power"), "light": ("exponential", "sech")}
"""The kernels of Tables 8 and 9: first one that the right encoding contains, then one that neither contains."""

PAIRS = (("rounded power", "lin"), ("rounded power", "log"), ("sech", "lin"), ("sech", "log"))
"""Kernel and encoding, for the comparison of trained and best: no finite sum contains the kernel."""

STARTS = ("default", "best")
RANGES = {"lin": (0.01, 1.0), "log": (0.5, 4.0)}


@dataclass(frozen=True)
class Kernel:
    r"""A kernel $\rho$ of the chapter, to be called with a tensor of lags.

    Attributes:
        name: its key in `KERNELS`.
        formula: the formula in plain characters, to be printed.
        latex: the formula for a page.
        kind: ``light`` or ``heavy``.
        exponent: a $\beta$ with $|\rho(s)|\le Ce^{-\beta s}$ (light) or $|\rho(s)|\le Cs^{-\beta}$ (heavy).
        function: maps a float64 tensor of lags to the values.
    """

    name: str
    formula: str
    latex: str
    kind: str
    exponent: float
    function: Callable[[Tensor], Tensor]

    def __call__(self, lags: Tensor) -> Tensor:
        return self.function(lags)

    def values(self, length: int) -> Tensor:
        """The kernel on lags ``0..length-1``."""
        return self(torch.arange(integer("length", length, 1), dtype=torch.float64))


def _sign(lags: Tensor) -> Tensor:
    return torch.cos(math.pi * lags).round()


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("exponential", "exp(-s/4)", r"e^{-s/4}", "light", 0.25, lambda s: torch.exp(-s / 4)),
        Kernel("ramp", "s exp(-s/4)", r"s\,e^{-s/4}", "light", 0.2, lambda s: s * torch.exp(-s / 4)),
        Kernel("sech", "sech(s/4)", r"\operatorname{sech}(s/4)", "light", 0.25,
               lambda s: 2 * torch.exp(-s / 4) / (1 + torch.exp(-s / 2))),
        Kernel("mixture", "exp(-s/2) + exp(-s/20)", r"e^{-s/2}+e^{-s/20}", "light", 0.05,
               lambda s: torch.exp(-s / 2) + torch.exp(-s / 20)),
        Kernel("difference", "exp(-s) - exp(-s/10)/2", r"e^{-s}-\tfrac12e^{-s/10}", "light", 0.1,
               lambda s: torch.exp(-s) - torch.exp(-s / 10) / 2),
        Kernel("pure power", "max(1, s)^-1.5", r"\max(1,s)^{-1.5}", "heavy", 1.5, lambda s: s.clamp(min=1) ** -1.5),
        Kernel("power", "(1 + s)^-1.5", r"(1+s)^{-1.5}", "heavy", 1.5, lambda s: (1 + s) ** -1.5),
        Kernel("rounded power", "(1 + s^2)^-0.75", r"(1+s^2)^{-3/4}", "heavy", 1.5, lambda s: (1 + s * s) ** -0.75),
        Kernel("rough power", "(-1)^s max(1, s)^-1.5", r"(-1)^s\max(1,s)^{-1.5}", "heavy", 1.5,
               lambda s: _sign(s) * s.clamp(min=1) ** -1.5),
    )
}  # fmt: skip
"""The kernels of the chapter Essentially sparse memory, by name.

One lin head contains ``exponential``, two contain ``mixture`` and ``difference``, and two that come together approach
``ramp``; one log head and the residual connection contain ``pure power``. No finite sum of either kind contains
``sech``, ``power`` or ``rounded power``. ``rough power`` is what decay alone allows (Proposition e:prop-rough).
"""


# ---------------------------------------------------------------------------------------------- the grid


def target(kernel: str, length: int = LENGTH) -> EssentiallySparse:
    """The target with one kernel, and inputs uniform on $[-1,1]$; only the last of ``length`` positions counts."""
    made = EssentiallySparse(lambda memories: memories[:, :, 0], [_kernel(kernel)], inputs=[Interval()])
    made.burn_in = integer("length", length, 1) - 1
    return made


def layer(encoding: str, heads: int, seed: int, normaliser: str = "softmax") -> Transformer:
    """A DP-free layer without FFN; the slopes of its heads are drawn at random, log-uniformly."""
    _encoding(encoding)
    generator = memlib.reproducible(seed)
    low, high = RANGES[encoding]
    slopes = low * (high / low) ** torch.rand(integer("heads", heads, 1), dtype=torch.float64, generator=generator)
    config = TransformerConfig(d_model=8, d_head=1, heads=heads, width=0, encoding=encoding, attention="dp_free",
                               normaliser=normaliser, encoding_params={"slopes": slopes.tolist()})  # fmt: skip
    return Transformer(config, generator)


def starting_rates(encoding: str, heads: int, seed: int) -> np.ndarray:
    """The slopes with which a `layer` begins."""
    return _slopes(layer(encoding, heads, seed))


def run(*, kernel: str, encoding: str, heads: int, seed: int, start: str = "default", steps: int = 1500,
        lr: float = 0.01, length: int = LENGTH, normaliser: str = "softmax") -> dict:  # fmt: skip
    r"""Train one layer. ``error`` is $\lVert\rho-\varphi\rVert_2^2/\lVert\rho\rVert_2^2$ on the window, ``first`` and
    ``most`` the same before training and at the worst step, ``weight`` $\sum_h|c_h|$ as in `memlib.sums.KernelSum`.

    ``start``: ``default`` is a `layer` with random weights; ``best`` gives it the sum that `best_sum` finds.
    """
    return run_many([{"kernel": kernel, "encoding": encoding, "heads": heads, "seed": seed, "start": start,
                      "steps": steps, "lr": lr, "length": length, "normaliser": normaliser}])[0]  # fmt: skip


def run_many(points: Sequence[dict]) -> list[dict]:
    """What `run` returns for each of the points, with the point itself; layers of one size are trained side by side."""
    defaults = {"start": "default", "steps": 1500, "lr": 0.01, "length": LENGTH, "normaliser": "softmax"}
    full = [{**defaults, **point} for point in points]
    groups: dict[tuple, list[int]] = {}
    for i, point in enumerate(full):
        key = tuple(point[name] for name in ("encoding", "heads", "steps", "lr", "length", "normaliser"))
        members = groups.setdefault(key, [])
        members.append(i)
    rows: list[dict] = [{} for _ in full]
    for members in groups.values():
        size = max(1, 320 // full[members[0]]["heads"])  # beyond this many heads at once nothing is gained
        for first in range(0, len(members), size):
            chosen = members[first : first + size]
            for i, row in zip(chosen, _train([full[i] for i in chosen]), strict=True):
                rows[i] = {**points[i], **row}
    return rows


def _train(points: list[dict]) -> list[dict]:
    length = points[0]["length"]
    wanted = [_kernel(point["kernel"]).values(length) for point in points]
    models = [_start(point, rho) for point, rho in zip(points, wanted, strict=True)]
    histories = fit_population(models, wanted, steps=points[0]["steps"], lr=points[0]["lr"])
    rows = []
    for model, rho, history in zip(models, wanted, histories, strict=True):
        size = rho.square().sum().item()
        with torch.no_grad():
            error = expected_loss(model, rho).item() / size
        row = {"error": error, "first": history.losses[0] / size, "most": max(history.losses) / size}
        rows.append({**row, "weight": _weight(model, length), "rates": sorted(_slopes(model).tolist())})
    return rows


@torch.no_grad()
def _weight(model: Transformer, length: int) -> float:
    """The sum of the |c_h| that belong to the plain exponentials of a layer's heads."""
    heads = model.layers[0].attention
    coefficients = (model.readout.weight @ heads.out.weight)[0] * (heads.value.weight @ model.embed.weight)[:, 0]
    logits = heads.encoding.log_weights(length)
    scale = normalise(logits, model.config.normaliser)[:, 1] / logits[:, 1].exp()
    return (coefficients * scale).abs().sum().item()


def _start(point: dict, rho: Tensor) -> Transformer:
    if point["start"] not in STARTS:
        raise ValueError(f"unknown start {point['start']!r}; allowed: {', '.join(STARTS)}")
    model = layer(point["encoding"], point["heads"], point["seed"], point["normaliser"])
    if point["start"] == "best":
        best = best_sum(rho.numpy(), point["heads"], point["encoding"], "l2", residual=True)
        set_kernel(model, best.rates, best.coefficients, float(best.residual), length=point["length"])
    return model


def grid(scale: str) -> list[dict]:
    """``book``: both tables, and 2 and 8 heads where no sum contains the kernel; ``large``: all kernels, longer."""
    if scale == "book":
        kernels = [name for names in TABLES.values() for name in names]
        points = product(kernel=kernels, encoding=["lin", "log"], heads=HEADS, seed=SEEDS)
        for kernel, encoding in PAIRS:
            points += product(kernel=[kernel], encoding=[encoding], heads=[2, 8], seed=SEEDS)
        return points
    return product(kernel=list(KERNELS), encoding=["lin", "log"], heads=[1, 2, 4, 8, 16, 32, 64], seed=range(10),
                   steps=[1500, 30_000], normaliser=["softmax", "none"])  # fmt: skip


# ---------------------------------------------------------------------------------------------- other ways down


def relative_errors(kernel: str, errors: Sequence[float], length: int = LENGTH) -> list[float]:
    r"""Square errors as shares of $\lVert\rho\rVert_2^2$."""
    size = _kernel(kernel).values(length).square().sum().item()
    return [float(error) / size for error in errors]


def variable_projection(kernel: str, encoding: str, rates: Sequence[float], *, length: int = LENGTH,
                        evaluations: int = 200) -> tuple[float, np.ndarray]:  # fmt: skip
    r"""Relative square error and rates that variable projection reaches from the given rates (equation e:varpro).

    The output weights, and the residual connection, are solved for exactly at every step; the rates follow
    Levenberg's and Marquardt's method on what least squares leaves, in the variables $\log p_h$.
    """
    wanted = _kernel(kernel).values(length).numpy()
    low, high = math.log(SLOWEST), math.log(STEEPEST)
    start = np.clip(np.log(_positive(rates)), low + 1e-6, high - 1e-6)

    def remainder(theta):
        u, size, _ = np.linalg.svd(_columns(encoding, np.exp(theta), length), full_matrices=False)
        q = u[:, size > 1e-13 * size[0]]
        rest = wanted[1:] - q @ (q.T @ wanted[1:])
        return rest - q @ (q.T @ rest)

    done = least_squares(remainder, start, bounds=(low, high), xtol=1e-12, ftol=1e-14, gtol=1e-14, max_nfev=evaluations)
    return float(done.fun @ done.fun / (wanted @ wanted)), np.exp(done.x)


def exact_weights(kernel: str, encoding: str, rates: Sequence[float], *, steps: int = 500, lr: float = 0.03,
                  length: int = LENGTH) -> float:  # fmt: skip
    r"""Relative square error after Adam on the rates alone, with the best output weights at every step.

    The gradient of $\min_cL(p,c)$ is $\partial_pL$ at the best $c$, so the weights are solved for and then held fixed.
    """
    wanted = _kernel(kernel).values(length)
    theta = torch.tensor(np.log(_positive(rates)), requires_grad=True)
    lags = torch.arange(1, length, dtype=torch.float64)
    points = lags if _encoding(encoding) == "lin" else lags.log()
    optimiser = torch.optim.Adam([theta], lr=lr)
    for step in range(integer("steps", steps, 1)):
        heads = torch.exp(-theta.exp()[:, None] * points)
        heads = heads / heads.detach().norm(dim=1, keepdim=True)
        loss = (wanted[1:] - best_weights(wanted[1:], heads.detach()) @ heads).square().sum()
        optimiser.zero_grad()
        loss.backward()
        for group in optimiser.param_groups:
            group["lr"] = lr * SCHEDULES["cosine"](step / steps)
        optimiser.step()
    return float(loss.detach() / wanted.square().sum())


def lbfgs(
    kernel: str, encoding: str, heads: int, seed: int, *, iterations: int = 500, length: int = LENGTH
) -> list[float]:
    """Relative square errors of L-BFGS from a `layer`, in all its weights and slopes, after each iteration."""
    model, wanted = layer(encoding, heads, seed), _kernel(kernel).values(length)
    parameters, curve = list(model.parameters()), []
    size = wanted.square().sum().item()

    def loss(vector):
        torch.nn.utils.vector_to_parameters(torch.as_tensor(vector), parameters)
        value = expected_loss(model, wanted)
        gradient = torch.autograd.grad(value, parameters)
        return value.item(), torch.nn.utils.parameters_to_vector(gradient).numpy()

    def note(intermediate_result):
        curve.append(intermediate_result.fun / size)

    start = torch.nn.utils.parameters_to_vector(parameters).detach().numpy()
    options = {"maxiter": integer("iterations", iterations, 1), "maxfun": 4 * iterations, "ftol": 0.0, "gtol": 1e-14}
    minimize(loss, start, jac=True, method="L-BFGS-B", callback=note, options={**options, "maxcor": 20})
    return curve


# ---------------------------------------------------------------------------------------------- conditioning


@dataclass(frozen=True)
class Conditioning:
    r"""Gradient descent on the output weights alone, at fixed rates, predicted from singular values.

    Heads are scaled to length 1, $A=U\Sigma V^\top$ holds them as columns. From $c=0$ with step $1/\sigma_1^2$ the loss
    after $k$ steps is $L_\infty+\sum_i(u_i^\top\rho)^2(1-\sigma_i^2/\sigma_1^2)^{2k}$; all relative to
    $\lVert\rho\rVert_2^2$.
    """

    singular: np.ndarray
    shares: np.ndarray
    least: float

    @cached_property
    def condition(self) -> float:
        r"""The condition number $\sigma_1^2/\sigma_H^2$ of the Gram matrix."""
        return float((self.singular[0] / self.singular[-1]) ** 2)

    def loss(self, steps: float) -> float:
        """The relative loss after a number of steps."""
        shrink = -((self.singular / self.singular[0]) ** 2)
        with np.errstate(divide="ignore"):
            left = np.exp(2 * steps * np.log1p(shrink)) if steps else np.ones_like(shrink)
        return self.least + float(self.shares @ left)

    def steps_to(self, factor: float = 2.0) -> float:
        """The least number of steps after which the loss is at most ``factor`` times the least at these rates."""
        low, high = 0.0, 1.0
        if self.loss(0) <= factor * self.least:
            return 0.0
        while self.loss(high) > factor * self.least:
            low, high = high, 2 * high
            if high > 1e300:
                return math.inf
        while high - low > 1 + 1e-9 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.loss(middle) > factor * self.least else (low, middle)
        return math.ceil(high)


def conditioning(kernel: str, encoding: str, rates: Sequence[float], length: int = LENGTH) -> Conditioning:
    """The `Conditioning` of heads with the given rates; lag 0 belongs to the residual connection."""
    wanted = _kernel(kernel).values(length).numpy()
    u, singular, _ = np.linalg.svd(_columns(encoding, _positive(rates), length), full_matrices=False)
    inside = u.T @ wanted[1:]
    rest = wanted[1:] - u @ inside
    size = wanted @ wanted
    return Conditioning(singular, inside**2 / size, float(rest @ rest / size))


def tangent_condition(encoding: str, rates: Sequence[float], length: int = LENGTH) -> float:
    r"""The condition number of the Gram matrix of all that training can move: $w_h$ and $\partial w_h/\partial p_h$.

    The $2H$ columns are scaled to length 1, which is within a factor $2H$ of the best diagonal scaling (van der Sluis,
    1969); so, divided by $2H$, it bounds from below what any step sizes, one for each number, have to deal with near a
    solution.
    """
    rates = _positive(rates)
    lags = np.arange(1, length)
    points = (lags if _encoding(encoding) == "lin" else np.log(lags)) - 0.0
    slopes = points[:, None] * np.exp(-np.outer(points - points[0], rates))
    both = np.hstack([_columns(encoding, rates, length), slopes / np.linalg.norm(slopes, axis=0)])
    singular = np.linalg.svd(both, compute_uv=False)
    return float((singular[0] / singular[-1]) ** 2)


def descend(kernel: str, encoding: str, rates: Sequence[float], steps: int, length: int = LENGTH) -> float:
    """The relative loss that gradient descent on the output weights does reach: run, not predicted."""
    wanted = _kernel(kernel).values(length).numpy()
    a = _columns(encoding, _positive(rates), length)
    step, c = 1 / np.linalg.norm(a, 2) ** 2, np.zeros(a.shape[1])
    for _ in range(steps):
        c = c + step * (a.T @ (wanted[1:] - a @ c))
    rest = wanted[1:] - a @ c
    return float(rest @ rest / (wanted @ wanted))


def _columns(encoding: str, rates: np.ndarray, length: int) -> np.ndarray:
    """The heads on lags 1 to length - 1 as columns of length 1."""
    lags = np.arange(1, length)
    points = lags - 1 if _encoding(encoding) == "lin" else np.log(lags)
    columns = np.exp(-np.outer(points, rates))
    return columns / np.linalg.norm(columns, axis=0)


def _slopes(model: Transformer) -> np.ndarray:
    return model.layers[0].attention.encoding.slope.detach().numpy().copy()


def _positive(rates) -> np.ndarray:
    rates = np.atleast_1d(np.asarray(rates, dtype=float))
    if rates.ndim != 1 or not rates.size or not np.isfinite(rates).all() or (rates <= 0).any():
        raise ValueError(f"rates must be positive finite numbers, got {rates.tolist()}")
    return rates


def _kernel(name: str) -> Kernel:
    if name not in KERNELS:
        raise ValueError(f"unknown kernel {name!r}; allowed: {', '.join(KERNELS)}")
    return KERNELS[name]


def _encoding(name: str) -> str:
    if name not in RANGES:
        raise ValueError(f"unknown encoding {name!r} for this experiment; allowed: {', '.join(RANGES)}")
    return name
