r"""Essentially sparse memory as weights (chapter Essentially sparse memory, Theorem e:thm-essential).

`essential` builds one DP-free layer without normaliser for $y_t=f((X*\rho_1)(t),\dots,(X*\rho_M)(t))$. All heads serve
all kernels through the output matrix: head $h$ has the rate $p_h$, and slot ``memory i`` receives

$$\sum_hc_{ih}w_h+c_{i0}\,\delta_0\ \approx\ \rho_i ,$$

the last term through the residual connection, so that lag 0 is right whatever the heads do (a log head does not see
it). Rates and coefficients are those of `kernel_fits`: the least kernel error plus rounding that is found. The
feed-forward network then reads the memories.

The prediction speaks of sequences of up to ``length`` tokens, on which the kernels are fitted. What a longer past would
add is a question about the tails: `EssentialConstruction.tail_errors`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import mpmath
import numpy as np
import torch
from mpmath import mp, mpf
from torch import Tensor

from memlib import checks
from memlib.construct import kernel_fits
from memlib.construct.construction import ROUND, Construction, empty_layer, write_readout
from memlib.construct.fixed_memory import _readout_rounding, _rounding
from memlib.construct.readouts import Product, QuadraticRidge, Readout, network_error, written_down
from memlib.encodings import softplus, softplus_inverse
from memlib.model import FeedForward, Transformer
from memlib.sums import KernelSum
from memlib.targets import EssentiallySparse, Finite

__all__ = ["EssentialConstruction", "essential"]

_DIGITS = 50  # digits in which kernel errors are summed
_SHARES = (0.0, 0.5, 0.8, 0.95, 0.999)  # of a kernel's mass, in `worst_inputs`


@dataclass(frozen=True)
class EssentialConstruction(Construction):
    r"""The Transformer of Theorem e:thm-essential.

    Slots: ``x``, ``memory i`` for each kernel, ``y`` if there is an FFN.

    Attributes:
        rates: $p_1,\dots,p_H$ as they are stored.
        came_from: how the rates were found.
        kernel_errors: $\|\rho_i-\varphi_i\|_{\ell^1}$ of the stored weights on lags $0..N-1$, $N$ = ``length``, in
            extended precision.
        sensitivity: $L_i$ of the readout's network for each memory.
        ffn_part: the largest error of the network on all memories that tokens in $[-1,1]$ can make.
        weight: $\max_i\sum_h|c_{ih}|$.
        scales: for each ridge of the readout, the largest $|\langle w,z\rangle|$ that tokens in $[-1,1]$ can make.
        hard_points: values of $\langle w,z\rangle$, as shares of the scale, at which the FFN errs most or is steepest.
    """

    rates: tuple[float, ...]
    came_from: str
    kernel_errors: tuple[float, ...]
    sensitivity: tuple[float, ...]
    ffn_part: float
    weight: float
    scales: tuple[float, ...]
    hard_points: tuple[float, ...] = field(default=(1.0, -1.0))

    @property
    def attention_part(self) -> float:
        r"""$\sum_iL_i\|\rho_i-\varphi_i\|_{\ell^1}$."""
        return math.fsum(a * b for a, b in zip(self.sensitivity, self.kernel_errors, strict=True))

    @property
    def predicted_error(self) -> float:
        r"""An upper bound on the error for sequences of up to ``length`` tokens, exactly (e:essential-bound)."""
        return self.attention_part + self.ffn_part

    def sum(self, memory: int) -> KernelSum:
        """The kernel of the slot ``memory i``, numbered from 1, as a `KernelSum`, read from the stored weights."""
        count = len(self.target.kernels)
        if isinstance(memory, bool) or memory not in range(1, count + 1):
            raise ValueError(f"memories are numbered 1..{count}, got {memory!r}")
        return _stored(self.model, self.slots, int(memory))

    def kernel(self, memory: int, length: int | None = None) -> np.ndarray:
        """The kernel that the stored weights give ``memory i``, on lags ``0..length-1``, correct to double."""
        length = self.length if length is None else checks.integer("length", length, 1)
        return self.sum(memory).values(np.arange(length))

    def tail_errors(self, horizon: int = 20_000) -> tuple[float, ...]:
        r"""What a past of ``horizon`` tokens would add to each kernel error: $\sum_{s\ge N}|\rho_i-\varphi_i|$.

        Added in double precision, with what rounding may hide of it. A rate of a log head may be below 1, so that this
        grows without limit with the horizon: the layer is meant for sequences of ``length`` tokens.
        """
        horizon = checks.integer("horizon", horizon, self.length + 1)
        lags = np.arange(self.length, horizon)
        x = lags.astype(float) if self.model.config.encoding == "lin" else np.log(lags)
        heads = np.exp(-np.outer(x, self.rates))
        wanted = self.target.kernel_values(horizon).numpy()[:, self.length :]
        found = []
        for i, rho in enumerate(wanted, 1):
            c = np.array(self.sum(i).coefficients)
            slack = ROUND * float((heads * (len(c) + 4 + np.outer(x, self.rates))).sum(0) @ np.abs(c))
            found.append(float(np.abs(rho - heads @ c).sum()) + slack)
        return tuple(found)

    def measured_error(self, x: Tensor) -> float:
        """The largest difference between model and target on the sequences ``x``, over all positions."""
        if x.ndim != 3 or x.shape[1] > self.length:
            raise ValueError(
                f"sequences must have shape (batch, length, d_in) with at most {self.length} tokens, the length this "
                f"construction was made for, got {tuple(x.shape)}"
            )
        return super().measured_error(x)

    def largest_error(self, generator: torch.Generator, batch: int = 50) -> float:
        """The largest `measured_error` on `worst_inputs` and on ``batch`` random sequences of full length."""
        drawn = self.target.sample(batch, self.length, generator)[0]
        return max(self.measured_error(self.worst_inputs()), self.measured_error(drawn))

    def worst_inputs(self, length: int | None = None) -> Tensor:
        r"""Sequences ``(n, length, d_in)`` on which the last output should err most.

        For each ridge $\langle w,z\rangle$ of the readout: tokens with the signs of the kernels' error
        $\sum_iw_ie_i(s)$; the same on the lags that hold a share of the kernel's mass only, while the others have the
        signs of $\sum_iw_i\rho_i$, so that the readout is steep; and multiples of those signs that lead to the
        ``hard_points``.
        """
        length = self.length if length is None else checks.integer("length", length, 1)
        low, high = np.array([_ends(channel) for channel in self.target.inputs]).T
        rho = self.target.kernel_values(length).numpy()
        off = np.array([self.kernel(i, length) for i in range(1, len(rho) + 1)]) - rho
        batch = []
        for w in _weights(self.target.readout):
            wanted, error = rho.T @ w, off.T @ w  # by lag and channel
            large, wrong = np.where(wanted < 0, -1.0, 1.0), np.where(error < 0, -1.0, 1.0)
            order = np.argsort(-np.abs(wanted).sum(-1), kind="stable")
            mass = np.cumsum(np.abs(wanted).sum(-1)[order])
            for share in _SHARES:
                kept = order[: int(np.searchsorted(mass, share * mass[-1])) if share else 0]
                for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
                    tokens = b * wrong
                    tokens[kept] = a * large[kept]
                    batch.append(tokens)
            batch += [r * large for r in self.hard_points]
        tokens = np.clip(np.stack(batch), low, high)
        for c, channel in enumerate(self.target.inputs):
            if isinstance(channel, Finite):
                tokens[..., c] = np.where(np.stack(batch)[..., c] < 0, low[c], high[c])
        return torch.from_numpy(tokens[:, ::-1].copy())


def _ends(channel) -> tuple[float, float]:
    return (min(channel.values), max(channel.values)) if isinstance(channel, Finite) else (channel.low, channel.high)


def _weights(readout: Readout) -> list[np.ndarray]:
    """The directions the readout looks along, each ``(M, d_in)``."""
    parts = [ridge for _, ridge in readout.ridges] if isinstance(readout, Product) else [readout]
    return [np.array(part.weights) for part in parts]


def _stored(model: Transformer, slots, memory: int) -> KernelSum:
    """Rates, output weights and residual weight of a memory, read from the weights themselves; exact numbers."""
    attention, row = model.layers[0].attention, slots[f"memory {memory}"].start
    rates = map(mpf, attention.encoding.slope.detach().tolist())
    coefficients = attention.out.weight.detach()[row, :: model.config.d_head].tolist()
    return KernelSum(
        model.config.encoding, tuple(rates), tuple(coefficients), model.embed.weight.detach()[row, 0].item()
    )


def essential(target: EssentiallySparse, heads: int, width: int, encoding: str, *,
              rates: Sequence[float] | None = None, ffn: str = "interpolating",
              generator: torch.Generator | None = None, length: int = 256,
              caution: float = 1.0) -> EssentialConstruction:  # fmt: skip
    r"""Build the Transformer of Theorem 4 (e:thm-essential) for a target with essentially sparse memory.

    One layer, DP-free, no normaliser, $H$ heads of dimension ``d_in``, $D=(M+1)d_{in}$, and one more coordinate for the
    output if there is an FFN.

    Args:
        target: a `targets.EssentiallySparse` with tokens in $[-1,1]$ and a `Linear`, `ReluRidge`, `QuadraticRidge` or
            `Product` readout of its $M$ memories.
        heads: $H$, shared by all kernels.
        width: $m$: 0 for `Linear`, 1 for `ReluRidge`; for `QuadraticRidge` even (``interpolating``) or any
            (``sampled``); for `Product` twice such a number.
        encoding: ``lin`` or ``log``.
        rates: $p_1,\dots,p_H$, for example those of the theorem, $\alpha h$ or $1+\alpha h$; searched for unless given.
        ffn: ``interpolating`` or ``sampled``: how the FFN of a quadratic ridge is made. It is stretched to the largest
            memory that tokens in $[-1,1]$ can make.
        generator: the source of the sampled neurons.
        length: the longest sequence of which the prediction speaks.
        caution: how many times rounding counts when rates and coefficients are chosen. 1 gives the least error; with
            $10^4$ rounding stays about as many times below the error of the kernels.
    """
    heads, width, length = _check(target, heads, width, encoding, rates, ffn, length)
    caution = checks.positive_number("caution", caution)
    readout, d = target.readout, target.d_in
    rho = target.kernel_values(length).numpy()
    scales = [float(np.abs(rho.T @ w).sum()) for w in _weights(readout)]
    network, ffn_part, hardest, steepness = _network(readout, scales, width, ffn, generator)
    sensitivity = sum(s * np.abs(w).sum(-1) for s, w in zip(steepness, _weights(readout), strict=True))
    came_from = "given"
    if rates is None:
        rates, came_from = kernel_fits.fit(rho, sensitivity, heads, encoding, caution=caution)

    slots = {name: slice(i * d, (i + 1) * d) for i, name in enumerate(["x", *_memories(target)])}
    if network is not None:
        slots["y"] = slice((len(rho) + 1) * d, (len(rho) + 1) * d + 1)
    model = empty_layer(slots, d, heads, width, encoding)
    with torch.no_grad():
        kernel_errors = _write_attention(model, slots, rho, sensitivity, np.asarray(rates, dtype=float), caution)
        memories = slice(slots["memory 1"].start, slots[f"memory {len(rho)}"].stop)
        write_readout(model, memories, slots.get("y"), readout, network)

    stored = [_stored(model, slots, i) for i in range(1, len(rho) + 1)]
    rounding = [_rounding(model, part, length) + _target_rounding(row) for part, row in zip(stored, rho, strict=True)]
    size = max(float(np.abs(row).sum()) + e for row, e in zip(rho, kernel_errors, strict=True))
    return EssentialConstruction(
        model=model,
        target=target,
        slots=slots,
        theorem="e:thm-essential",
        rates=tuple(model.layers[0].attention.encoding.slope.detach().tolist()),
        came_from=came_from,
        kernel_errors=tuple(kernel_errors),
        sensitivity=tuple(float(s) for s in sensitivity),
        ffn_part=ffn_part,
        float_error=float(np.dot(sensitivity, rounding)) + _readout_rounding(model, readout, network, size)
        + 8 * ROUND * _largest_output(readout, scales),
        length=length,
        largest_coefficient=max(part.largest for part in stored),
        weight=max(part.weight for part in stored),
        scales=tuple(scales),
        hard_points=(1.0, -1.0, *hardest),
    )  # fmt: skip


def _memories(target: EssentiallySparse) -> list[str]:
    return [f"memory {i}" for i in range(1, len(target.kernels) + 1)]


def _network(readout: Readout, scales, width: int, ffn: str, generator):
    r"""The network from the memories, its error, hard points as shares of the scale, and its slope along each ridge.

    A quadratic ridge whose argument ranges over $[-R,R]$ is $R^2(r/R)^2$: the network for $[-1,1]$ reads $r/R$.
    """
    if not isinstance(readout, QuadraticRidge | Product):
        return readout.network(width, ffn, generator), 0.0, (), [readout.slope]
    parts = readout.ridges if isinstance(readout, Product) else ((1.0, readout),)
    if width % len(parts):
        raise ValueError(
            f"the FFN of a product is two networks of the same width: allowed is an even width, got {width}"
        )
    made, error, hardest, slopes = [], 0.0, [], []
    for (sign, ridge), scale in zip(parts, scales, strict=True):
        network = ridge.network(width // len(parts), ffn, generator)
        off, point, slope = network_error(network, ridge)
        made.append((sign, network, scale or 1.0))
        error += scale**2 * off
        hardest.append(point)
        slopes.append(scale * slope)
    whole = FeedForward(made[0][1].hidden.in_features, width, 1, generator=torch.Generator())
    with torch.no_grad():
        whole.hidden.weight.copy_(torch.cat([network.hidden.weight / scale for _, network, scale in made]))
        whole.hidden.bias.copy_(torch.cat([network.hidden.bias for _, network, _ in made]))
        whole.out.weight.copy_(torch.cat([sign * scale**2 * network.out.weight for sign, network, scale in made], 1))
    return whole, error * (1 + 1e-12), tuple(dict.fromkeys(hardest)), slopes


def _write_attention(model: Transformer, slots, rho, sensitivity, rates, caution: float) -> list[float]:
    """Embedding, rates, values and output weights; of two candidates for the coefficients the better one is kept.

    Returns the l1 errors of the kernels as they are stored.
    """
    config, attention = model.config, model.layers[0].attention
    one = torch.eye(config.d_in, dtype=torch.float64)
    model.embed.weight[slots["x"]] = one
    attention.encoding.raw_slope.copy_(softplus_inverse(torch.from_numpy(rates)))
    slopes = softplus(attention.encoding.raw_slope).numpy()
    attention.value.weight[:, slots["x"]] = one.repeat(config.heads, 1)
    with mp.workdps(_DIGITS):
        heads = _exact_heads(config.encoding, slopes, rho.shape[1])
        errors = []
        for i, options in enumerate(kernel_fits.coefficients(rho, sensitivity, slopes, config.encoding, caution)):
            best = None
            for c in options:
                present = math.fsum(c) if config.encoding == "lin" else 0.0
                error = _exact_error(heads, rho[i], c, float(rho[i][0]) - present)
                total = error + caution * config.heads * ROUND * float(np.abs(c).sum())
                if best is None or total < best[0]:
                    best = (total, error, c, float(rho[i][0]) - present)
            _, error, c, residual = best
            row = slots[f"memory {i + 1}"]
            for h, value in enumerate(c):
                attention.out.weight[row, h * config.d_head : (h + 1) * config.d_head] = float(value) * one
            model.embed.weight[row] = residual * one
            errors.append(error)
    return errors


def _exact_heads(encoding: str, slopes, length: int) -> list[list]:
    """The kernels of the heads by lag, at the precision in force: ``[lag][head]``."""
    if encoding == "lin":
        ratios = [mp.exp(-mpf(float(p))) for p in slopes]
        rows = [[mpf(1)] * len(ratios)]
        while len(rows) < length:
            rows.append([a * r for a, r in zip(rows[-1], ratios, strict=True)])
        return rows
    logs = [mp.log(s) for s in range(1, length)]
    return [[mpf(0)] * len(slopes), *([mp.exp(-mpf(float(p)) * x) for p in slopes] for x in logs)]


def _exact_error(heads, wanted, coefficients, residual: float) -> float:
    r"""$\|\rho-\varphi\|_{\ell^1}$ on the window for the given doubles, bounded from above."""
    c = [mpf(float(v)) for v in coefficients]
    values = [mpmath.fdot(zip(row, c, strict=True)) - mpf(float(v)) for row, v in zip(heads, wanted, strict=True)]
    values[0] += residual
    return float(mpmath.fsum(values, absolute=True)) * (1 + 1e-12)


def _target_rounding(rho: np.ndarray) -> float:
    """What rounding may do to a memory that the target itself computes, by FFT."""
    return ROUND * 8 * math.log2(2 * len(rho)) * math.sqrt(len(rho)) * float(np.linalg.norm(rho))


def _largest_output(readout: Readout, scales) -> float:
    if isinstance(readout, QuadraticRidge | Product):
        return math.fsum(s**2 for s in scales)
    return scales[0] + abs(readout.bias)


# ---------------------------------------------------------------- checks


def _check(target, heads, width, encoding, rates, ffn, length) -> tuple[int, int, int]:
    if not isinstance(target, EssentiallySparse):
        raise TypeError(f"target must be a targets.EssentiallySparse, got {type(target).__name__}")
    written_down(target.readout, Product)
    shape = (target.readout.tokens, len(target.readout.weights[0]))
    if shape != (len(target.kernels), target.d_in):
        raise ValueError(
            f"the readout must have weights for M = {len(target.kernels)} memories of {target.d_in} channels, got "
            f"{shape[0]} of {shape[1]}"
        )
    for channel in target.inputs:
        if max(map(abs, _ends(channel))) > 1:
            raise ValueError(f"tokens must lie in [-1, 1], as in the theorem; got a channel {channel!r}")
    if encoding not in ("lin", "log"):
        raise ValueError(f"the construction exists for the encodings lin and log, got {encoding!r}")
    if ffn not in ("interpolating", "sampled"):
        raise ValueError(f"unknown ffn {ffn!r}; allowed: interpolating, sampled")
    heads, width = checks.integer("heads", heads, 1), checks.integer("width", width, 0)
    length = checks.integer("length", length, 2)
    if heads > length - 1:
        raise ValueError(
            f"more heads than lags after the present one add nothing: allowed is up to {length - 1}, got {heads}"
        )
    if rates is not None:
        try:
            given = sorted(checks.positive_number("a rate", p) for p in rates)
        except TypeError:
            raise ValueError(f"rates must be a sequence of H = {heads} positive numbers, got {rates!r}") from None
        if len(given) != heads or len(set(given)) < heads:
            raise ValueError(f"rates must be H = {heads} different positive numbers, got {len(set(given))}")
    return heads, width, length
