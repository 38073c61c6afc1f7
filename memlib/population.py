r"""One linear layer against independent inputs, without samples (chapter Essentially sparse memory, e:population).

A layer without dot product, FFN and norm answers with a convolution: at the last position of a window of $N$ tokens
its output is $\sum_{s<N}\varphi(s)x_{t-s}+c$. Here is that kernel, `effective_kernel`, differentiable in all weights;
how to give a layer a wanted kernel, `set_kernel`; and the mean square error against a target that is linear in its
memories, in closed form, `expected_loss`:

$$\mathbb E|y_t-\hat y_t|^2=\sigma^2\lVert\rho-\varphi\rVert_2^2+\Bigl(m\sum_s(\rho-\varphi)(s)-c\Bigr)^2$$

for independent $x_t$ of mean $m$ and variance $\sigma^2$ (equations e:population, e:population-mean).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from memlib.checks import integer, plain_number
from memlib.encodings import softplus_inverse
from memlib.kernels import normalise
from memlib.model import Transformer
from memlib.targets import EssentiallySparse, Finite, Interval

__all__ = ["Population", "SideBySide", "effective_kernel", "expected_loss", "join", "population", "set_kernel"]

PROBES = 64  # random memories at which a read-out must agree with its linear part


# ---------------------------------------------------------------------------------------------- what is to be learned


@dataclass(frozen=True)
class Population:
    r"""A linear target and the law of its inputs: what a mean square error needs to know of them.

    Attributes:
        kernel: $\rho$ from each input channel to each output, shape ``(d_out, d_in, length)``.
        mean, variance: $m$ and $\sigma^2$ of each input channel, shape ``(d_in,)``.
        constant: what the target answers to no input, shape ``(d_out,)``.
    """

    kernel: Tensor
    mean: Tensor
    variance: Tensor
    constant: Tensor

    @property
    def length(self) -> int:
        """The number of lags."""
        return self.kernel.shape[-1]

    @property
    def output_variance(self) -> float:
        """The variance of the output, averaged over its channels: the loss of the best constant guess."""
        return float((self.variance[:, None] * self.kernel.square()).sum((-2, -1)).mean())

    def loss(self, kernel: Tensor, constant: Tensor) -> Tensor:
        r"""The mean square error of a layer with the given kernel $\varphi$ and constant; differentiable.

        Leading axes, of several layers side by side, stay.
        """
        gap = self.kernel - kernel
        spread = (self.variance[..., None, :, None] * gap.square()).sum((-2, -1))
        bias = (self.mean[..., None, :] * gap.sum(-1)).sum(-1) + self.constant - constant
        return (spread + bias.square()).mean(-1)


def population(target, *, length: int | None = None, mean: float = 0.0, variance: float = 1.0) -> Population:
    r"""The `Population` of a target on a window of ``length`` lags.

    ``target`` is an `EssentiallySparse` target whose read-out is linear (a constant is allowed), or the values of one
    kernel on lags $0,1,\dots$ as an array. The inputs of a target have the mean and variance of its channels; for an
    array they are ``mean`` and ``variance``. Whether a read-out is linear is found out: its values at unit memories
    are its coefficients, and random memories of the size that can occur must be mapped as these say.
    """
    if isinstance(target, Population):
        return target
    if isinstance(target, EssentiallySparse):
        if length is None:
            raise ValueError("a target's memory is infinite: say with length= on how many lags it is to be met")
        return _of_target(target, integer("length", length, 1))
    if isinstance(target, Tensor | np.ndarray | Sequence) and not isinstance(target, str):
        return _of_values(target, length, plain_number("mean", mean), plain_number("variance", variance))
    raise TypeError(
        f"target must be an EssentiallySparse target or an array of kernel values, got {type(target).__name__}"
    )


def _of_values(values, length, mean, variance) -> Population:
    try:
        kernel = torch.as_tensor(values, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"kernel values must be numbers, got {values!r:.80}") from None
    if kernel.ndim != 1 or not len(kernel):
        raise ValueError(f"kernel values must be a one-dimensional array on lags 0.., got shape {tuple(kernel.shape)}")
    if not bool(torch.isfinite(kernel).all()):
        where = int(torch.nonzero(~torch.isfinite(kernel))[0])
        raise ValueError(f"kernel values must be finite, got {kernel[where].item()} at lag {where}")
    if length is not None and integer("length", length, 1) != len(kernel):
        raise ValueError(
            f"length is {length}, but {len(kernel)} kernel values were given: leave it out or make them agree"
        )
    if not variance > 0:
        raise ValueError(f"variance must be positive, got {variance!r}")
    one = torch.ones(1, dtype=torch.float64)
    return Population(kernel[None, None], mean * one, variance * one, 0.0 * one)


def _of_target(target: EssentiallySparse, length: int) -> Population:
    memories = target.kernel_values(length)
    count, d_in = len(memories), target.d_in
    largest = torch.tensor([_largest(channel) for channel in target.inputs], dtype=torch.float64)
    reach = memories.abs().sum(-1)[:, None] * largest  # the most that a memory can be, (M, d_in)
    linear, constant = _linear_part(target, reach)
    kernel = torch.einsum("omi,ms->ois", linear.reshape(-1, count, d_in), memories)
    moments = torch.tensor([_moments(channel) for channel in target.inputs], dtype=torch.float64)
    return Population(kernel, moments[:, 0], moments[:, 1], constant)


def _linear_part(target: EssentiallySparse, reach: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix and the constant of a linear read-out, or an error that says where it is not."""
    zero = torch.zeros_like(reach)
    units = torch.eye(reach.numel(), dtype=torch.float64).reshape(-1, *reach.shape)
    draw = torch.rand(PROBES, *reach.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    probes = torch.cat([zero[None], units, reach * (2 * draw - 1)])
    with torch.no_grad():
        values = target.readout(probes[:, None])
    if values.shape != (len(probes), 1, target.d_out):
        raise ValueError(f"the read-out must return shape (batch, length, d_out), got {tuple(values.shape)}")
    constant, values = values[0, 0], values[:, 0] - values[0]
    linear = values[1 : 1 + len(units)].T
    expected = probes[1 + len(units) :].flatten(1) @ linear.T
    miss = (values[1 + len(units) :] - expected).abs().max()
    if not float(miss) <= 1e-9 * (1.0 + float(expected.abs().max()) + float(constant.abs().max())):
        raise ValueError(
            f"the read-out is not linear: at memories that can occur it differs by {float(miss):.3g} from the linear "
            "map with the same values at unit memories. The closed form is for linear read-outs; use memlib.train.fit, "
            "which draws samples"
        )
    return linear, constant


def _largest(channel: Interval | Finite) -> float:
    return max(map(abs, channel.values if isinstance(channel, Finite) else (channel.low, channel.high)))


def _moments(channel: Interval | Finite) -> tuple[float, float]:
    if isinstance(channel, Interval):
        return (channel.low + channel.high) / 2, (channel.high - channel.low) ** 2 / 12
    values = torch.tensor(channel.values, dtype=torch.float64)
    return values.mean().item(), values.var(correction=0).item()


# ---------------------------------------------------------------------------------------------- the kernel of a layer


def effective_kernel(model: Transformer, length: int) -> Tensor:
    r"""The kernel $\varphi$ of a linear layer on a window: its output at the last of ``length`` positions is
    $\sum_s\varphi(s)x_{t-s}$ plus a constant (equation e:population).

    The layer has no dot product, no FFN and no norm; any normaliser (softmax divides by the sum over this window).
    Shape ``(length,)``, or ``(d_out, d_in, length)`` if there are several channels; differentiable in all weights.
    """
    _check_linear(model)
    kernel, _ = _answer(_weights(model), integer("length", length, 1))
    return kernel[0, 0] if kernel.shape[:2] == (1, 1) else kernel


def expected_loss(model: Transformer, target, *, length: int | None = None, mean: float = 0.0,
                  variance: float = 1.0) -> Tensor:  # fmt: skip
    r"""The mean square error of a linear layer at the last of ``length`` positions, over independent inputs.

    A closed form, differentiable in slopes and weights (equations e:population, e:population-mean): what training on
    ever new samples minimises. ``target``, ``mean`` and ``variance`` are those of `population`.
    """
    _check_linear(model)
    wanted = _matching(model, population(target, length=length, mean=mean, variance=variance))
    return wanted.loss(*_answer(_weights(model), wanted.length))


def set_kernel(model: Transformer, rates: Sequence[float], coefficients: Sequence[float], residual: float = 0.0, *,
               length: int | None = None) -> Transformer:  # fmt: skip
    r"""Give a linear layer the kernel $\varphi(s)=\sum_hc_he^{\phi_h(s)}$ plus ``residual`` times $\delta_0$; in place.

    ``rates`` are the slopes $p_h$ of its encoding, ``coefficients`` the $c_h$ of the plain exponentials, as in
    `memlib.sums.KernelSum`. A layer with a normaliser divides by $Z_h$, which depends on the window: it needs
    ``length``, and has the kernel at the last position of that window. The factor $|c_h|$ is split evenly between
    value and output weights; the residual stream needs two coordinates, one for the token and one for the answer.
    """
    _check_linear(model)
    config, attention = model.config, model.layers[0].attention
    if (config.d_in, config.d_out) != (1, 1):
        raise ValueError(f"set_kernel is for one input and one output channel, got {config.d_in} and {config.d_out}")
    if config.d_model < 2:
        raise ValueError("set_kernel needs d_model of at least 2: one coordinate for the token, one for the answer")
    if not hasattr(attention.encoding, "raw_slope"):
        raise ValueError(f"the encoding {config.encoding!r} has no learned slope to set; take lin, log or kerple_log")
    slopes = _per_head("rates", rates, config.heads)
    if not bool((slopes > 0).all()):
        raise ValueError(f"rates must be positive, got {slopes.min().item()}")
    wanted = _per_head("coefficients", coefficients, config.heads)
    residual = plain_number("residual", residual)
    if config.normaliser != "none" and length is None:
        raise ValueError(
            f"the normaliser {config.normaliser!r} divides by a sum over the window: say with length= over which"
        )
    with torch.no_grad():
        for parameter in (
            *model.embed.parameters(),
            *model.readout.parameters(),
            attention.value.weight,
            attention.out.weight,
        ):
            parameter.zero_()
        attention.encoding.raw_slope.copy_(softplus_inverse(slopes))
        if config.normaliser != "none":
            plain = attention.encoding.log_weights(integer("length", length, 1)).exp().sum(-1)
            wanted = wanted * (plain + (1.0 if config.normaliser == "sink" else 0.0))
        model.embed.weight[0, 0] = 1.0
        model.readout.weight[0, 0] = residual
        model.readout.weight[0, 1] = 1.0
        first = torch.arange(config.heads) * config.d_head  # the first coordinate of each head
        attention.value.weight[first, 0] = wanted.abs().sqrt().to(model.embed.weight.dtype)
        attention.out.weight[1, first] = (wanted.sign() * wanted.abs().sqrt()).to(model.embed.weight.dtype)
    return model


def _per_head(label: str, values, heads: int) -> Tensor:
    try:
        numbers = torch.tensor([float(v) for v in values], dtype=torch.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{label} must be numbers, one for each head, got {values!r:.80}") from None
    if len(numbers) != heads or not bool(torch.isfinite(numbers).all()):
        raise ValueError(f"{label} must be {heads} finite numbers, one for each head, got {values!r:.80}")
    return numbers


def _check_linear(model) -> None:
    """Refuse what is not one linear layer, and say why."""
    if not isinstance(model, Transformer):
        raise TypeError(f"model must be a memlib.model.Transformer, got {type(model).__name__}")
    c = model.config
    reasons = {
        f"it has {c.layers} layers": c.layers != 1,
        f"attention {c.attention!r} depends on the tokens": c.attention != "dp_free",
        f"it has an FFN of {c.width} neurons": c.width != 0,
        f"it has norms ({c.norm!r})": c.norm != "none",
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise ValueError(
            f"the model has no kernel of its own: {'; '.join(found)}. Wanted: layers=1, attention='dp_free', width=0, "
            "norm='none'"
        )


def _matching(model: Transformer, wanted: Population) -> Population:
    sizes = (model.config.d_out, model.config.d_in)
    if wanted.kernel.shape[:2] != sizes:
        raise ValueError(
            f"the target has {wanted.kernel.shape[1]} input and {wanted.kernel.shape[0]} output channels, "
            f"the model {sizes[1]} and {sizes[0]}"
        )
    dtype = getattr(torch, model.config.dtype)
    return Population(*(t.to(dtype) for t in (wanted.kernel, wanted.mean, wanted.variance, wanted.constant)))


@dataclass(frozen=True)
class _Weights:
    """The weights of a linear layer, or of several with a leading axis; `log_weights` is a function of the length."""

    embed: Tensor
    embed_bias: Tensor
    value: Tensor
    out: Tensor
    readout: Tensor
    readout_bias: Tensor
    log_weights: object
    normaliser: str


def _weights(model: Transformer) -> _Weights:
    attention = model.layers[0].attention
    return _Weights(model.embed.weight, model.embed.bias, attention.value.weight, attention.out.weight,
                    model.readout.weight, model.readout.bias, attention._lag_logits,
                    model.config.normaliser)  # fmt: skip


def _answer(w: _Weights, length: int) -> tuple[Tensor, Tensor]:
    """The kernel ``(..., d_out, d_in, length)`` and the constant ``(..., d_out)`` at the last position."""
    heads, scale = _heads(w.log_weights(length), w.normaliser)  # (..., H, length), (..., H)
    count = heads.shape[-2]
    after = (w.readout @ w.out).unflatten(-1, (count, -1))  # (..., d_out, H, d_head)
    before = (w.value @ w.embed).unflatten(-2, (count, -1))  # (..., H, d_head, d_in)
    coefficients = torch.einsum("...ohk,...hki->...oih", after, before) * scale[..., None, None, :]
    kernel = (coefficients.flatten(-3, -2) @ heads).unflatten(-2, coefficients.shape[-3:-1])
    present = (w.readout @ w.embed)[..., None]
    kernel = torch.cat([kernel[..., :1] + present, kernel[..., 1:]], dim=-1)
    mass = (heads.sum(-1) * scale)[..., None]
    bias = (w.value @ w.embed_bias[..., None])[..., 0].unflatten(-1, (count, -1)) * mass
    state = w.embed_bias + (w.out @ bias.flatten(-2)[..., None])[..., 0]
    return kernel, (w.readout @ state[..., None])[..., 0] + w.readout_bias


def _heads(logits: Tensor, normaliser: str) -> tuple[Tensor, Tensor]:
    """The weights of the heads by lag, as `memlib.kernels.normalise` has them, but with the divisor kept apart.

    Few operations touch the large array; that is what the time of a step goes into.
    """
    ones = torch.ones_like(logits[..., 0])
    if normaliser == "none":
        return logits.exp(), ones
    top = logits.detach().amax(-1)
    if bool((top.abs() > 30.0).any()):  # out of the range where plain exponentials are safe, or no lag seen at all
        return normalise(logits, normaliser), ones
    heads = logits.exp()
    return heads, 1.0 / (heads.sum(-1) + (1.0 if normaliser == "sink" else 0.0))


# ---------------------------------------------------------------------------------------------- several at a time


class SideBySide(nn.Module):
    """Copies of the weights of several linear layers of one configuration, stacked, to be trained together.

    The losses add and Adam treats every number by itself, so each layer takes the path it would take alone. Python's
    overhead, most of the time of a small layer, is paid once. `give_back` writes the weights into the models.
    """

    def __init__(self, models: Sequence[Transformer]):
        super().__init__()
        first = models[0].config
        for model in models:
            _check_linear(model)
            if _shape(model) != _shape(models[0]):
                raise ValueError(f"models trained side by side need one configuration, got {model.config} and {first}")
        self.models = tuple(models)  # a tuple is no module list: their parameters are not those of this module
        for name, parameter in models[0].named_parameters():
            if "encoding" not in name:
                self.register_parameter(name.replace(".", "__"), _joined(models, name, parameter, torch.stack))
        self.encoding = copy.deepcopy(models[0].layers[0].attention.encoding)
        if self.encoding is not None:
            self._join_encodings(models)
        self.heads, self.normaliser = first.heads, first.normaliser

    def _join_encodings(self, models) -> None:
        """One encoding for the heads of all models: every parameter has the heads on its first axis."""
        prefix = "layers.0.attention.encoding."
        own = [model.layers[0].attention.encoding for model in models]
        for name, parameter in own[0].named_parameters(recurse=False):
            setattr(self.encoding, name, _joined(models, prefix + name, parameter, torch.cat))
        kept = set(own[0].state_dict())
        for name, _ in own[0].named_buffers(recurse=False):
            if name in kept:
                setattr(self.encoding, name, torch.cat([getattr(e, name) for e in own]))
        with torch.no_grad():
            wanted = torch.cat([e.log_weights(4) for e in own])
            if not torch.allclose(self.encoding.log_weights(4), wanted, rtol=1e-5):
                raise ValueError(
                    f"the heads of {type(own[0]).__name__} depend on each other: train the models one by one"
                )

    def _log_weights(self, length: int) -> Tensor:
        if self.encoding is None:
            return torch.zeros(len(self.models), self.heads, length, dtype=self.embed__weight.dtype)
        return self.encoding.log_weights(length).unflatten(0, (len(self.models), self.heads))

    def losses(self, wanted: Population) -> Tensor:
        """The loss of every model, shape ``(models,)``."""
        attention = "layers__0__attention__"
        weights = _Weights(self.embed__weight, self.embed__bias, getattr(self, f"{attention}value__weight"),
                           getattr(self, f"{attention}out__weight"), self.readout__weight, self.readout__bias,
                           self._log_weights, self.normaliser)  # fmt: skip
        return wanted.loss(*_answer(weights, wanted.length))

    @torch.no_grad()
    def give_back(self) -> None:
        """Write the stacked weights into the models they came from."""
        for i, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                if "encoding" in name:
                    joined = getattr(self.encoding, name.rsplit(".", 1)[1])
                    parameter.copy_(joined.unflatten(0, (len(self.models), -1))[i])
                else:
                    parameter.copy_(getattr(self, name.replace(".", "__"))[i])


def _shape(model: Transformer) -> tuple:
    """What models must share to be stacked: everything but the numbers of their encodings."""
    c = model.config
    sizes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    return (c.encoding, c.normaliser, c.heads, c.dtype, sizes)


def _joined(models, name: str, parameter: nn.Parameter, join) -> nn.Parameter:
    found = [model.get_parameter(name) for model in models]
    if len({p.requires_grad for p in found}) > 1:
        raise ValueError(f"{name} is frozen in some of the models and not in others")
    return nn.Parameter(join([p.detach() for p in found]), requires_grad=parameter.requires_grad)


def join(populations: Sequence[Population]) -> Population:
    """Several populations of the same sizes as one, with a leading axis."""
    if len({p.kernel.shape for p in populations}) > 1:
        raise ValueError(
            f"targets side by side need one size, got {sorted({tuple(p.kernel.shape) for p in populations})}"
        )
    return Population(*(torch.stack([getattr(p, name) for p in populations])
                        for name in ("kernel", "mean", "variance", "constant")))  # fmt: skip
