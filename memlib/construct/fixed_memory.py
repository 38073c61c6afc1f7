r"""Fixed sparse memory as weights (chapter Fixed memory, Theorem x:thm-fixed).

`fixed` builds one DP-free layer without normaliser for $y_t=f(x_t,x_{t-t_1},\dots,x_{t-t_M})$. Heads have the slopes
$\alpha,2\alpha,\dots,H\alpha$, shared by all lags. For lag $t_i$ the output weights $c_h$ solve

$$\sum_hc_hw_h(s)=\delta_{t_i}(s),\qquad s=1,\dots,K_i,$$

so that the kernel is exact on the first $K_i$ lags and only its tail is wrong (equation x:interpolating-all with
$T=K_i\ge t_i$; more nodes make the tail smaller). What a lin head takes from the present token is taken back by
the embedding, which writes $-\sum_hc_h\,x_t$ into the same slot. The feed-forward network then reads the slots.

Two errors compete. The tail falls as $\alpha$ grows; the coefficients, and with them rounding, grow without bound, as
they must (Theorem x:thm-price). `fixed` takes the $\alpha$ and the $K_i$ with the least sum, and reports both parts.
A lag that no choice can fetch with error below 1 gets the zero kernel, whose error is 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import mpmath
import numpy as np
import torch
from torch import Tensor

from memlib import checks
from memlib.construct.construction import ROUND, Construction, empty_layer, write_readout
from memlib.construct.readouts import QuadraticRidge, Readout, network_error, written_down
from memlib.encodings import softplus, softplus_inverse
from memlib.kernels import DIRECT_ROWS
from memlib.model import FeedForward, Transformer
from memlib.sums import KernelSum
from memlib.targets import Finite, FixedSparse

__all__ = ["FixedConstruction", "fixed"]

_DIGITS = 60  # digits in which coefficients are solved for and kernel errors are summed
_MOST_NODES = 24
_RANGE = {"lin": (0.05, 40.0), "log": (1.05, 60.0)}  # where alpha is searched


# ---------------------------------------------------------------- the kernel of one lag


def _tail_and_weight(lag: int, nodes: int, encoding: str, alpha: float) -> tuple[float, float]:
    r"""Tail $\sum_{s>K}|\varphi(s)|$ and weight $\sum|c_h|$ of the sum that is $\delta_T$ on $1..K$, closed form.

    $\varphi=\frac u{u_T}\prod_{j\le K,j\ne T}\frac{u-u_j}{u_T-u_j}$; its coefficients alternate in sign, so their
    absolute values sum to $|\varphi|$ at $u=-1$.
    """
    last = nodes + min(2000, math.ceil(60 / alpha)) if encoding == "lin" else nodes + 1000
    s = np.arange(nodes + 1, last + 1, dtype=float)
    at = (lambda v: np.exp(-alpha * v)) if encoding == "lin" else (lambda v: v**-alpha)
    others = at(np.delete(np.arange(1.0, nodes + 1), lag - 1))
    u, here = at(s), float(at(float(lag)))
    with np.errstate(over="ignore", divide="ignore"):
        values = np.abs(u / here * np.prod((u[:, None] - others) / (here - others), axis=1))
        weight = float(np.prod((1 + others) / np.abs(here - others)) / here)
    beyond = float(values[-1]) * s[-1] / (alpha - 1) if encoding == "log" else 0.0
    return float(values.sum()) + beyond, weight


def _coefficients(lag: int, nodes: int, encoding: str, slopes: Sequence[float]) -> list[float]:
    r"""The $c_h$, $h\le K$, with $\sum_hc_hw_h(s)=\delta_T(s)$ on $s=1..K$ for the slopes as they are stored."""
    with mpmath.workdps(_DIGITS + 10 * nodes):
        weights = mpmath.matrix(nodes, nodes)
        for j in range(nodes):
            for h in range(nodes):
                weights[j, h] = _weight(encoding, slopes[h], j + 1)
        unit = mpmath.matrix(nodes, 1)
        unit[lag - 1] = 1
        return [float(c) for c in mpmath.lu_solve(weights, unit)]


def _weight(encoding: str, slope: float, s: int):
    return mpmath.exp(-mpmath.mpf(slope) * (s if encoding == "lin" else mpmath.log(s)))


def _l1_error(lag: int, stored: KernelSum) -> float:
    r"""$\|\delta_T-\varphi\|_{\ell^1}$ on all lags for the stored numbers, bounded from above: a sum, then a tail.

    The tail beyond lag $S$ is at most $\sum_h|c_h|\sum_{s>S}w_h(s)$. $S$ grows until all of it but the slowest head's
    share, which is nearly exact, is below a thousandth of the sum. (`KernelSum.l1_error` finds the sign changes
    instead: exact, and some fifty times slower.)
    """
    used = [(p, c) for p, c in zip(stored.rates, stored.coefficients, strict=True) if c]
    length = 4 * (lag + len(used)) + 16
    with mpmath.workdps(_DIGITS):
        while True:
            values = [mpmath.fsum(c * _weight(stored.encoding, p, s) for p, c in used) for s in range(1, length)]
            values[lag - 1] -= 1
            present = stored.residual + (mpmath.fsum(c for _, c in used) if stored.encoding == "lin" else 0)
            total = float(mpmath.fsum([present, *values], absolute=True))
            shares = [abs(c) * _tail(stored.encoding, float(p), length) for p, c in used]
            if sum(shares[1:]) <= 1e-3 * (total + shares[0] if shares else 1) or length > 4000:
                return (total + math.fsum(shares)) * (1 + 1e-12)
            length *= 2


def _tail(encoding: str, slope: float, length: int) -> float:
    r"""An upper bound on $\sum_{s\ge N}w(s)$."""
    if encoding == "lin":
        return math.exp(-slope * length) / -math.expm1(-slope)
    return (length - 1.0) ** (1 - slope) / (slope - 1)


# ---------------------------------------------------------------- choosing alpha and the nodes


def _plan(lags, importance, heads: int, encoding: str, alpha: float | None, caution: float) -> tuple[float, list[int]]:
    r"""The $\alpha$ and, for each lag, the number $K_i$ of nodes (0: zero kernel) with the least predicted total.

    The total of a lag is tail $+\,\kappa u\sum|c_h|$ with the unit roundoff $u$ and $\kappa=H+8$, about what
    `_rounding` will say of the finished weights, times ``caution``; and 1 for the zero kernel.
    """
    kappa = caution * (heads + 8) * ROUND

    def choice(lag: int, a: float) -> tuple[float, int]:
        found = [(1.0, 0)]
        for nodes in range(lag, min(heads, _MOST_NODES) + 1):
            tail, weight = _tail_and_weight(lag, nodes, encoding, a)
            found.append((tail + kappa * weight, nodes))
        return min(pair for pair in found if math.isfinite(pair[0]))

    def total(a: float) -> float:
        return sum(share * choice(lag, a)[0] for lag, share in zip(lags, importance, strict=True))

    if alpha is None:
        low, high = _RANGE[encoding]
        grid = np.geomspace(low, high, 49)
        for _ in range(2):  # a coarse grid, then a finer one around its best point
            best = min(range(len(grid)), key=lambda i: (total(float(grid[i])), i))
            grid = np.geomspace(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)], 13)
        alpha = float(min(grid, key=lambda a: total(float(a))))
    return alpha, [choice(lag, alpha)[1] for lag in lags]


# ---------------------------------------------------------------- the construction


@dataclass(frozen=True)
class FixedConstruction(Construction):
    r"""The Transformer of Theorem x:thm-fixed. Slots: ``x``, ``lag T`` for each lag, ``y`` if there is an FFN.

    Attributes:
        alpha: spacing of the slopes.
        nodes: $K_i$ for each lag, at most 24: its kernel is exact on lags $1..K_i$; 0 for a zero kernel.
        lag_errors: $\|\delta_{t_i}-\varphi_i\|_{\ell^1}$ of the stored weights on the infinite past.
        attention_part: $\sum_iL_i\|\delta_{t_i}-\varphi_i\|_{\ell^1}$, with the network's Lipschitz constants.
        ffn_part: the largest error of the network on the cube.
        weight: $\max_i\sum_h|c_h|$.
        hard_points: values of $\langle w,z\rangle$ at which the FFN errs most, or is steepest.
    """

    alpha: float
    nodes: tuple[int, ...]
    lag_errors: tuple[float, ...]
    attention_part: float
    ffn_part: float
    weight: float
    hard_points: tuple[float, ...] = field(default=(1.0, -1.0))

    @property
    def predicted_error(self) -> float:
        r"""An upper bound on $\sup_{t,X}|\mathbf H_t(X)-\mathbf G_t(X)|$ in exact arithmetic (x:fixed-bound)."""
        return self.attention_part + self.ffn_part

    def sum(self, lag: int) -> KernelSum:
        """The kernel of the slot of ``lag`` as a `KernelSum`, read from the stored weights."""
        if lag not in self.target.lags:
            raise ValueError(f"lag must be one of the target's lags {self.target.lags}, got {lag!r}")
        return _stored(self.model, self.slots, lag)

    def kernel(self, lag: int, length: int) -> np.ndarray:
        """The kernel that the stored weights give the slot of ``lag``, on lags ``0..length-1``, correct to double."""
        return self.sum(lag).values(np.arange(length))

    def worst_inputs(self, length: int) -> Tensor:
        r"""Sequences ``(n, length, d_in)`` on which the last output should err most.

        The tokens that are not read have the signs of the kernels' error, $\pm\operatorname{sign}\sum_iw_ie_i(s)$; the
        tokens that are read have those signs too, or are $r\operatorname{sign}w_i$ with $r$ from ``hard_points``.
        """
        lags = self.target.lags
        if not isinstance(length, int) or length <= max(lags):
            raise ValueError(f"length must be an integer above the longest lag, {max(lags)}, got {length!r}")
        w = np.array(self.target.readout.weights)
        error = np.zeros((length, w.shape[1]))
        for lag, row in zip(lags, w[1:], strict=True):
            values = self.kernel(lag, length)
            values[lag] -= 1
            error += values[:, None] * row
        pattern = np.where(error < 0, -1.0, 1.0)
        batch = []
        for sign in (1.0, -1.0):
            batch.append(sign * pattern)
            for r in self.hard_points:
                tokens = sign * pattern
                for lag, row in zip((0, *lags), w, strict=True):
                    tokens[lag] = r * np.where(row < 0, -1.0, 1.0)
                batch.append(tokens)
        return torch.from_numpy(np.stack(batch)[:, ::-1].copy())  # the last position sees lag s at position -1 - s


def _stored(model: Transformer, slots, lag: int) -> KernelSum:
    """Slopes, output weights and residual weight of a lag, read from the weights themselves; exact numbers."""
    attention, row = model.layers[0].attention, slots[f"lag {lag}"].start
    slopes = map(mpmath.mpf, attention.encoding.slope.detach().tolist())
    coefficients = attention.out.weight.detach()[row, :: model.config.d_head].tolist()
    return KernelSum(
        model.config.encoding, tuple(slopes), tuple(coefficients), model.embed.weight.detach()[row, 0].item()
    )


def fixed(target: FixedSparse, heads: int, width: int, encoding: str, *, alpha: float | None = None,
          ffn: str = "interpolating", generator: torch.Generator | None = None, length: int = 64,
          caution: float = 1.0) -> FixedConstruction:  # fmt: skip
    r"""Build the Transformer of Theorem 1 (x:thm-fixed) for a target with fixed sparse memory.

    One layer, DP-free, no normaliser, $H$ heads of dimension ``d_in``, $D=(M+1)d_{in}$, and one more coordinate for the
    output if there is an FFN.

    Args:
        target: a `targets.FixedSparse` with at least one lag, tokens in $[-1,1]$, and a `Linear`, `ReluRidge` or
            `QuadraticRidge` readout.
        heads: $H$. A lag $t_i\le H$ can be fetched; for $t_i>H$ no weights have an error below 1 (Theorem x:thm-layer),
            and its kernel is zero.
        width: $m$: 0 for `Linear`, 1 for `ReluRidge`; for `QuadraticRidge` even (``interpolating``) or any
            (``sampled``).
        encoding: ``lin`` or ``log``.
        alpha: spacing of the slopes; chosen unless given (see the module). For ``log`` it must exceed 1, so that the
            kernels are summable.
        ffn: ``interpolating`` or ``sampled``: how the FFN of a quadratic ridge is made.
        generator: the source of the sampled neurons.
        length: the longest sequence for which ``float_error`` is stated. Beyond 64 tokens the model takes FFTs, whose
            rounding grows with the length.
        caution: how many times rounding counts when $\alpha$ and the $K_i$ are chosen. 1 gives the least error; with
            $10^4$ rounding stays about as many times below the error of the kernel, and measured errors are the same
            on every machine to about as many digits.
    """
    heads, width, length = _check(target, heads, width, encoding, alpha, ffn, length)
    caution = checks.positive_number("caution", caution)
    readout, lags, d = target.readout, target.lags, target.d_in
    network = readout.network(width, ffn, generator)
    ffn_part, hardest, steepness = 0.0, (), readout.slope
    if isinstance(readout, QuadraticRidge):
        ffn_part, point, steepness = network_error(network, readout)
        hardest = (point,)
    importance = [steepness / readout.slope * size for size in readout.per_token[1:]]
    alpha, nodes = _plan(lags, importance, heads, encoding, alpha, caution)

    slots = {name: slice(i * d, (i + 1) * d) for i, name in enumerate(["x", *(f"lag {lag}" for lag in lags)])}
    if network is not None:
        slots["y"] = slice((len(lags) + 1) * d, (len(lags) + 1) * d + 1)
    model = empty_layer(slots, d, heads, width, encoding)
    with torch.no_grad():
        _write_attention(model, slots, lags, nodes, alpha)
        tokens = slice(0, slots[f"lag {lags[-1]}"].stop)
        write_readout(model, tokens, slots.get("y"), readout, network)

    stored = [_stored(model, slots, lag) for lag in lags]
    lag_errors = tuple(_l1_error(lag, part) for lag, part in zip(lags, stored, strict=True))
    rounding = [_rounding(model, part, length) for part in stored]
    return FixedConstruction(
        model=model,
        target=target,
        slots=slots,
        theorem="x:thm-fixed",
        alpha=alpha,
        nodes=tuple(nodes),
        lag_errors=lag_errors,
        attention_part=math.fsum(share * e for share, e in zip(importance, lag_errors, strict=True)),
        ffn_part=ffn_part,
        float_error=math.fsum(share * e for share, e in zip(importance, rounding, strict=True))
        + _readout_rounding(model, readout, network, 1 + max(lag_errors)),
        length=length,
        largest_coefficient=max(part.largest for part in stored),
        weight=max(part.weight for part in stored),
        hard_points=(1.0, -1.0, *hardest),
    )


def _write_attention(model: Transformer, slots, lags, nodes, alpha: float) -> None:
    """Embedding, slopes, values and output weights: after attention, slot ``lag T`` holds the token T steps ago."""
    config, attention = model.config, model.layers[0].attention
    one = torch.eye(config.d_in, dtype=torch.float64)
    model.embed.weight[slots["x"]] = one
    wanted = alpha * torch.arange(1, config.heads + 1, dtype=torch.float64)
    attention.encoding.raw_slope.copy_(softplus_inverse(wanted))
    slopes = softplus(attention.encoding.raw_slope).tolist()
    attention.value.weight[:, slots["x"]] = one.repeat(config.heads, 1)
    for lag, count in zip(lags, nodes, strict=True):
        coefficients = _coefficients(lag, count, config.encoding, slopes) if count else []
        for h, c in enumerate(coefficients):
            attention.out.weight[slots[f"lag {lag}"], h * config.d_head : (h + 1) * config.d_head] = c * one
        if config.encoding == "lin":  # a lin head sees the present token: the embedding takes it back
            model.embed.weight[slots[f"lag {lag}"]] = -math.fsum(coefficients) * one


def _rounding(model: Transformer, stored: KernelSum, length: int) -> float:
    r"""What rounding may add to one fetched token, to first order in the unit roundoff $u$:

    $$u\Bigl(2|c_0|+\sum_h|c_h|\sum_sw_h(s)\bigl(H+6+3|\log w_h(s)|\bigr)\Bigr),$$

    and beyond 64 tokens $8\log_2(2N)\sqrt N\,\|w_h\|_2$ more for the FFT. An exponent that is off by one rounding
    (slope through softplus, product with the lag) changes the weight by $|\log w|$ times as much, in relative terms.
    """
    with torch.no_grad():
        log_weights = model.layers[0].attention.encoding.log_weights(length).numpy()
    w = np.exp(log_weights)
    size = np.where(w > 0, -log_weights, 0.0)
    per_head = (w * (model.config.heads + 6 + 3 * np.where(np.isfinite(size), size, 0.0))).sum(-1)
    if length > DIRECT_ROWS:
        per_head = per_head + 8 * math.log2(2 * length) * math.sqrt(length) * np.sqrt((w**2).sum(-1))
    return float(ROUND * (2 * abs(stored.residual) + np.abs(stored.coefficients) @ per_head))


def _readout_rounding(model: Transformer, readout: Readout, network: FeedForward | None, size: float) -> float:
    """What rounding may add in the FFN and the output matrix, for tokens of at most ``size``."""
    operations = model.config.d_model + model.config.width + 4
    if network is None:
        return ROUND * operations * (readout.size * size + abs(readout.bias))
    with torch.no_grad():
        scale = network.hidden.weight.abs().sum(-1) * size + network.hidden.bias.abs()
        return float(ROUND * operations * (network.out.weight.abs() @ scale).sum())


# ---------------------------------------------------------------- checks


def _check(target, heads, width, encoding, alpha, ffn, length) -> tuple[int, int, int]:
    if not isinstance(target, FixedSparse):
        raise TypeError(f"target must be a targets.FixedSparse, got {type(target).__name__}")
    written_down(target.readout)
    if not target.lags:
        raise ValueError("the target must have at least one lag; without memory no attention is needed")
    shape = (target.readout.tokens, len(target.readout.weights[0]))
    if shape != (len(target.lags) + 1, target.d_in):
        raise ValueError(
            f"the readout must have weights for M + 1 = {len(target.lags) + 1} tokens of {target.d_in} channels, got "
            f"{shape[0]} of {shape[1]}"
        )
    for channel in target.inputs:
        ends = channel.values if isinstance(channel, Finite) else (channel.low, channel.high)
        if max(map(abs, ends)) > 1:
            raise ValueError(f"tokens must lie in [-1, 1], as in the theorem; got a channel {channel!r}")
    if encoding not in _RANGE:
        raise ValueError(f"the construction exists for the encodings lin and log, got {encoding!r}")
    least = 0 if encoding == "lin" else 1
    if alpha is not None and not (isinstance(alpha, int | float) and math.isfinite(alpha) and alpha > least):
        raise ValueError(f"alpha must be a finite number above {least} for {encoding}, got {alpha!r}")
    if ffn not in ("interpolating", "sampled"):
        raise ValueError(f"unknown ffn {ffn!r}; allowed: interpolating, sampled")
    return checks.integer("heads", heads, 1), checks.integer("width", width, 0), checks.integer("length", length, 2)
