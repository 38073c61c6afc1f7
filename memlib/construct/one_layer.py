r"""One layer that reads the lag its token names: three ways (chapter Adaptive memory, Theorem 8).

The token is (value, pointer), the target $y_t=\text{value}_{t-g}$ with $g=\text{pointer}_t\in\{1,\dots,T\}$.

* `affine_pointer`: with dot product, without FFN. $T+1$ lin heads, no normaliser; the token holds its pointer, so the
  query needs no layer before it. The upper half of Theorem a:thm-attention-alone.
* `selector`: without dot product, with FFN. $T$ heads fetch the last $T$ values, $4T$ neurons pick one of them
  (equation a:selector). The upper half of Theorem a:thm-channels.
* `bit_decoder`: without dot product, with FFN, for *bits*. One head stores the past as the digits of a number, and a
  staircase of neurons reads the digit asked for: why Theorem a:thm-channels speaks of real values.
"""

import math
from dataclasses import dataclass

import mpmath
import numpy as np
import torch
from torch import Tensor

from memlib import checks
from memlib.construct.construction import ROUND, Construction
from memlib.construct.fixed_memory import _coefficients, _l1_error
from memlib.model import Transformer, TransformerConfig
from memlib.sums import KernelSum, interpolating_sum
from memlib.targets import AdaptiveSparse, Finite, Interval

__all__ = ["OneLayer", "affine_pointer", "bit_decoder", "pointer_target", "selector"]

_FAR = -1e4  # a logit whose exponential is exactly 0
_ALPHAS = {"lin": np.geomspace(1.0, 10.0, 11), "log": np.geomspace(1.5, 40.0, 11)}  # where the selector looks


def pointer_target(reach: int, values: Interval | Finite = Interval(-1.0, 1.0)) -> AdaptiveSparse:  # noqa: B008
    r"""$y_t=\text{value}_{t-g}$ for tokens (value, $g$), $g$ uniform on $1..T$ (equation a:warmup with $M=1$)."""
    reach = checks.integer("reach", reach, 1)
    return AdaptiveSparse(_fetched, [_named], [reach], 0, [values, Finite(tuple(range(1, reach + 1)))])


def _fetched(tokens: Tensor) -> Tensor:
    return tokens[:, :, 1, :1]


def _named(tokens: Tensor) -> Tensor:
    return tokens[:, :, 0, 1]


@dataclass(frozen=True)
class OneLayer(Construction):
    r"""One layer for `pointer_target`.

    Attributes:
        reach: $T$.
        lag_errors: for each pointer $g=1..T$, a bound on the error in exact arithmetic.
    """

    reach: int
    lag_errors: tuple[float, ...]

    @property
    def predicted_error(self) -> float:
        """The largest of ``lag_errors``."""
        return max(self.lag_errors)

    def measured_error(self, x: Tensor) -> float:
        """The largest difference between model and target on the sequences ``x``, from the burn-in on."""
        with torch.no_grad():
            return float((self.model(x) - self.target(x))[:, self.target.burn_in :].abs().max())


def _blank(config: TransformerConfig) -> Transformer:
    """A model whose weights are all zero; slopes and biases by lag stay as the configuration says."""
    model = Transformer(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "encoding" not in name:
                parameter.zero_()
    return model


# ---------------------------------------------------------------- with dot product, without FFN


def affine_pointer(reach: int, alpha: float, *, length: int = 32) -> OneLayer:
    r"""$T+1$ lin heads with dot product and no normaliser that read lag $g$, for every $g\le T$ at once.

    Head $h$ has slope $\alpha h$, query $\alpha hg$ and key 1, so it weighs lag $s$ by $e^{-\alpha h(s-g)}$; the
    coefficients make the sum 0 at $s-g=-T..-1$ and 1 at 0 (equation a:interpolating). What is left is the tail, at
    most $\frac{e^{-\alpha}}{1-e^{-\alpha}}\prod_{i\le T}(1-e^{-\alpha i})^{-1}$: it falls to 0 as ``alpha`` grows. So
    do digits: ``float_error`` says how many are left for sequences of ``length`` tokens.
    """
    reach, length = checks.integer("reach", reach, 1), checks.integer("length", length, reach + 1)
    alpha = checks.positive_number("alpha", alpha)
    found = interpolating_sum(reach, "lin", alpha, residual=False)  # delta at T; shifted by g - T it is delta at g
    shifted = [float(c * mpmath.exp(-p * reach)) for p, c in zip(found.rates, found.coefficients, strict=True)]
    slopes = [alpha * h for h in range(1, reach + 2)]
    slots = {"x": slice(0, 1), "pointer": slice(1, 2), "one": slice(2, 3), "y": slice(3, 4)}
    config = TransformerConfig(d_in=2, d_model=4, d_head=1, heads=reach + 1, width=0, encoding="lin", attention="dp",
                               normaliser="none", encoding_params={"slopes": slopes})  # fmt: skip
    model = _blank(config)
    attention = model.layers[0].attention
    with torch.no_grad():
        model.embed.weight[0, 0] = model.embed.weight[1, 1] = model.embed.bias[2] = 1.0
        attention.query.weight[:, 1] = attention.encoding.slope
        attention.key.weight[:, 2] = 1.0
        attention.value.weight[:, 0] = 1.0
        attention.out.weight[3] = torch.tensor(shifted, dtype=torch.float64)
        model.readout.weight[0, 3] = 1.0
    # what the kernel of pointer g leaves: its part at z >= -g, which is zero up to z = -1
    error = found.l1_error(reach)
    lags = np.arange(-reach, length)
    with np.errstate(over="ignore"):
        size = np.abs(shifted)[:, None] * np.exp(-np.outer(slopes, lags))
    logits = 2 * np.outer(slopes, np.abs(lags) + reach)
    rounding = ROUND * float((size * (reach + 8 + 2 * logits)).sum())
    return OneLayer(model, pointer_target(reach), slots, "a:thm-attention-alone", rounding, length,
                    max(map(abs, shifted)), reach, (error,) * reach)  # fmt: skip


# ---------------------------------------------------------------- without dot product, with FFN


def selector(reach: int, encoding: str = "t5", *, heads: int | None = None, alpha: float | None = None,
             length: int = 32) -> OneLayer:  # fmt: skip
    r"""$T$ DP-free heads and $4T$ neurons, exact up to what the heads miss: the jump of Theorem a:thm-channels.

    Heads fetch the values of lags $1..T$ into $T$ slots: exactly for ``t5``, one head per lag; with the interpolating
    sums of Theorem x:thm-layer for ``lin`` and ``log``, whose slopes are $\alpha h$. A larger $\alpha$ makes the tail
    smaller until rounding takes over; it is chosen unless given. The FFN then computes

    $$\sum_i\bigl[\sigma(x_i+a_i)-\sigma(a_i)-\sigma(x_i+a_i-1)+\sigma(a_i-1)\bigr],\qquad a_i=g-i,$$

    which for $x_i\in[0,1]$ is $x_g$ (equation a:selector). An error $\varepsilon_i$ of a slot counts for $i=g$ and for
    its two neighbours.

    With fewer t5 ``heads`` $H<T$ it reads lags $1..H$ and answers $\frac12$ to the other pointers, with two neurons
    more: its error is $\frac12$, the floor. More heads than $T$ stay idle.
    """
    reach, length = checks.integer("reach", reach, 1), checks.integer("length", length, reach + 1)
    if encoding not in ("t5", "lin", "log"):
        raise ValueError(f"the selector is built for the encodings t5, lin, log, got {encoding!r}")
    heads = checks.integer("heads", reach if heads is None else heads, 1)
    if heads != reach and encoding != "t5":
        raise ValueError(f"fewer or more heads than reach are built for t5 only, got {heads} heads for {reach}")
    if encoding == "t5":
        if alpha is not None:
            raise ValueError("alpha is the spacing of lin and log slopes; t5 has none")
        if reach >= 16:
            raise ValueError(f"reach must be at most 15, the last lag that T5 gives a bucket of its own, got {reach}")
        used = min(heads, reach)
        table = torch.full((heads, 32), _FAR, dtype=torch.float64)
        table[range(used), range(1, used + 1)] = 0.0
        params, fetch, present = {"table": table.tolist()}, np.eye(reach, heads), np.zeros(reach)
        errors, blur = [0.0] * reach, ROUND
    else:
        grid = _ALPHAS[encoding] if alpha is None else [checks.positive_number("alpha", alpha)]
        found = [_fetching(reach, encoding, float(a), length) for a in grid]
        params, fetch, present, errors, blur = min(found, key=lambda made: max(made[3]) + made[4])
    slots = {"x": slice(0, 1), "pointer": slice(1, 2)}
    slots |= {f"lag {i}": slice(1 + i, 2 + i) for i in range(1, reach + 1)}
    slots["y"] = slice(reach + 2, reach + 3)
    read = min(heads, reach)  # lags 1..read are fetched
    config = TransformerConfig(d_in=2, d_model=reach + 3, d_head=1, heads=heads, width=4 * read + 2 * (read < reach),
                               encoding=encoding, attention="dp_free", normaliser="none",
                               encoding_params=params)  # fmt: skip
    model = _blank(config)
    layer = model.layers[0]
    with torch.no_grad():
        model.embed.weight[0, 0] = model.embed.weight[1, 1] = 1.0
        model.embed.weight[2 : 2 + reach, 0] = torch.from_numpy(present)
        layer.attention.value.weight[:, 0] = 1.0
        layer.attention.out.weight[2 : 2 + reach] = torch.from_numpy(fetch)
        for i in range(1, read + 1):
            for k, (reads, shift, sign) in enumerate([(1, 0, 1), (0, 0, -1), (1, -1, -1), (0, -1, 1)]):
                neuron = 4 * (i - 1) + k
                layer.ffn.hidden.weight[neuron, 1] = 1.0
                layer.ffn.hidden.weight[neuron, 1 + i] = float(reads)
                layer.ffn.hidden.bias[neuron] = float(shift - i)
                layer.ffn.out.weight[-1, neuron] = float(sign)
        if read < reach:  # relu(g - H) - relu(g - H - 1): 1 for the pointers that nobody reads
            layer.ffn.hidden.weight[-2:, 1] = 1.0
            layer.ffn.hidden.bias[-2:] = torch.tensor([-float(read), -float(read) - 1])
            layer.ffn.out.weight[-1, -2:] = torch.tensor([0.5, -0.5], dtype=torch.float64)
        model.readout.weight[0, -1] = 1.0
    near = [0.0, *errors, 0.0]
    lag_errors = tuple(near[g - 1] + near[g] + near[g + 1] if g <= read else 0.5 for g in range(1, reach + 1))
    rounding = 3 * blur + 8 * reach * (reach + 2) * ROUND
    return OneLayer(model, pointer_target(reach, Interval(0.0, 1.0)), slots, "a:thm-channels", rounding, length,
                    float(np.abs(fetch).max()), reach, lag_errors)  # fmt: skip


def _fetching(reach: int, encoding: str, alpha: float, length: int):
    r"""Sums that are $\delta_i$ on $1..T$, stored: slopes, coefficients, residual weights, errors, rounding."""
    slopes = [alpha * h for h in range(1, reach + 1)]
    fetch = np.array([_coefficients(i, reach, encoding, slopes) for i in range(1, reach + 1)])
    present = -fetch.sum(1) if encoding == "lin" else np.zeros(reach)
    errors = [
        _l1_error(i + 1, KernelSum(encoding, tuple(slopes), tuple(fetch[i]), float(present[i]))) for i in range(reach)
    ]
    lags = np.arange(1.0, length)
    logits = np.outer(slopes, lags if encoding == "lin" else np.log(lags))
    sizes = (np.exp(-logits) * (reach + 8 + 3 * logits)).sum(1) + (reach + 2) * (encoding == "lin")
    return {"slopes": slopes}, fetch, present, errors, ROUND * float((np.abs(fetch) @ sizes).max())


def bit_decoder(reach: int, *, ratio: float = 1 / 3, length: int = 32) -> OneLayer:
    r"""One DP-free lin head and a wide FFN that read any of the last $T$ *bits*: the floor does not hold for them.

    The head's state is $m=\sum_{s\ge0}r^s\,\text{bit}_{t-s}$, which for $r<\frac12$ has gaps: the states of histories
    that differ in the last $T+1$ bits are at least $r^T(1-2r)/(1-r)$ apart, whatever came before. The FFN is a
    staircase in $m+Cg$, flat on every piece that belongs to one pointer and one history, with two neurons for each
    step: at most $T2^{T+2}$. On values between 0 and 1 it is as wrong as any layer with one head.
    """
    reach = checks.integer("reach", reach, 1)
    length = checks.integer("length", length, reach + 1)
    if reach > 8:
        raise ValueError(f"reach must be at most 8: the staircase has about 2^(reach+2) reach neurons, got {reach}")
    ratio = checks.positive_number("ratio", ratio)
    if not ratio < 0.5:
        raise ValueError(f"ratio must be below 1/2, or histories of any length leave no gaps, got {ratio}")
    digits = np.array([[(k >> (reach - s)) & 1 for s in range(reach + 1)] for k in range(2 ** (reach + 1))])
    starts = digits @ ratio ** np.arange(reach + 1)  # increasing: the least state of each history
    ends = starts + ratio ** (reach + 1) / (1 - ratio)  # the largest: all older bits 1
    apart = 2 / (1 - ratio)  # C: states of different pointers do not mix
    low = np.concatenate([apart * g + starts for g in range(1, reach + 1)])
    high = np.concatenate([apart * g + ends for g in range(1, reach + 1)])
    wanted = np.concatenate([digits[:, g] for g in range(1, reach + 1)]).astype(float)
    step = np.flatnonzero(np.diff(wanted))
    left, gap = high[step], low[step + 1] - high[step]
    slots = {"x": slice(0, 1), "pointer": slice(1, 2), "past": slice(2, 3), "y": slice(3, 4)}
    config = TransformerConfig(d_in=2, d_model=4, d_head=1, heads=1, width=2 * len(step), encoding="lin",
                               attention="dp_free", normaliser="none",
                               encoding_params={"slopes": [-math.log(ratio)]})  # fmt: skip
    model = _blank(config)
    layer = model.layers[0]
    with torch.no_grad():
        model.embed.weight[0, 0] = model.embed.weight[1, 1] = 1.0
        layer.attention.value.weight[0, 0] = layer.attention.out.weight[2, 0] = 1.0
        steep = torch.from_numpy(2 / gap)
        first = torch.round(-steep * torch.from_numpy(left + gap / 4) * 2**30) / 2**30  # exact steps of height 1
        for shift, sign, part in ((0.0, 1.0, slice(0, None, 2)), (-1.0, -1.0, slice(1, None, 2))):
            layer.ffn.hidden.weight[part, 1] = apart * steep
            layer.ffn.hidden.weight[part, 2] = steep
            layer.ffn.hidden.bias[part] = first + shift
            layer.ffn.out.weight[3, part] = sign * torch.from_numpy(np.diff(wanted)[step])
        model.readout.weight[0, 3] = 1.0
        model.readout.bias[0] = float(wanted[0])
    rounding = 8 * len(step) * ROUND * float((2 / gap).max()) * apart * (reach + 1)
    return OneLayer(model, pointer_target(reach, Finite((0.0, 1.0))), slots, "a:thm-channels", rounding, length, 1.0,
                    reach, (0.0,) * reach)  # fmt: skip
