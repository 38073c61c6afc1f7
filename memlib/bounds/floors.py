r"""What attention without dot product cannot do, with the inputs that show it (chapter Adaptive memory, Theorem 8).

The target is $y_t=x_{t-g}$, $g=g(\text{symbol}_t)$: one real value out of the last $T$, chosen by the present token.

* *Attention alone* (a:thm-attention-alone). Without FFN a DP-free layer is affine in the values, with one kernel $k$
  for all pointers. On values in $[a,b]$ it errs by $\frac{b-a}2$ at least, like the constant $\frac{a+b}2$: for two
  pointers $i\ne j$, $|1-k_i|+|k_j|+|1-k_j|+|k_i|\ge2$.
* *Channels* (a:thm-channels). With any FFN the values of lags $1..T$ enter the state through a matrix of
  $\min(H,D)$ independent rows at most. If that is less than $T$, some direction $\nu$ is invisible: the inputs
  $\frac{a+b}2\pm\frac{b-a}2\nu$ have equal states, and where $|\nu_g|=1$ their targets differ by $b-a$.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from memlib import checks

__all__ = ["Floor", "dp_free_floor"]


@dataclass(frozen=True)
class Floor:
    r"""An error that no DP-free layer of the given size avoids, and inputs that show it for the given kernels.

    Attributes:
        error: the floor; 0 if there is none.
        pointers: the lags asked for, as many as there are ``witnesses``: twice the same lag $g$ with FFN, two different
            lags $i,j$ without.
        witnesses: two tensors of values in time order, the present token last; or None where no kernels were given, or
            where there is no floor. With FFN, $x$ and $x'$ of shape ``(length,)``. Without, one pair for each pointer,
            ``(2, length)``: the values that the layer gets most wrong, and the same mirrored in the middle of $[a,b]$.
        targets: the target of each witness, of the same leading shape.
        state_difference: with FFN, the largest difference between the states of the two witnesses in the given
            kernels: rounding. None without FFN.
        error_at: without FFN, what a layer with this kernel errs by at least on the pair of each pointer; None with.
    """

    error: float
    pointers: tuple[int, int] | None = None
    witnesses: tuple[Tensor, Tensor] | None = None
    targets: tuple[Tensor, Tensor] | None = None
    state_difference: float | None = None
    error_at: tuple[float, float] | None = None

    def tokens(self) -> Tensor:
        """The witnesses as tokens (value, pointer), ``(n, length, 2)``; the pointer is the same at every position."""
        if self.witnesses is None:
            raise ValueError("this floor has no witnesses: give the kernels of a layer with too few heads or channels")
        batch = [
            torch.stack([row, torch.full_like(row, float(g))], dim=-1)
            for values, g in zip(self.witnesses, self.pointers, strict=True)
            for row in values.reshape(-1, values.shape[-1])
        ]
        return torch.stack(batch)


def dp_free_floor(reach: int, heads: int, channels: int | None = None, *, kernels=None,
                  values: tuple[float, float] = (0.0, 1.0), ffn: bool = True) -> Floor:  # fmt: skip
    r"""The floor of Theorem 8 for one DP-free layer that should read the lag its token names.

    Args:
        reach: $T$: every lag in $1..T$ is asked for by some token.
        heads: $H$.
        channels: $D$, the model width; at least $H$ unless given.
        kernels: what the layer makes of past values, lags $0,1,\dots$ along the last axis, at least $T+1$ of them.
            With FFN ``(rows, lags)``: the kernels of the $H$ heads, as `Additive.log_weights` gives them after
            ``exp``, or a row of `Transformer.attention_maps`; or the $D$ rows that the whole attention writes into the
            residual stream. Without FFN ``(lags,)``: the one kernel from values to the output.
        values: $(a,b)$, the values range over all of $[a,b]$.
        ffn: whether the layer has an FFN (a:thm-channels) or not (a:thm-attention-alone).

    With FFN there is a floor if $\min(H,D)<T$. The present value (lag 0) is the same in both witnesses; how a layer
    uses it plays no part. The layer must see raw tokens: a norm in front of the attention is outside the theorem.
    """
    reach = checks.integer("reach", reach, 1 if ffn else 2)
    heads = checks.integer("heads", heads, 1)
    rank = heads if channels is None else min(heads, checks.integer("channels", channels, 1))
    low, high = _interval(values)
    if ffn and rank >= reach:
        return Floor(0.0)
    floor = (high - low) / 2
    if kernels is None:
        return Floor(floor)
    rows = _rows(kernels, reach, ffn)
    if not ffn:
        return _alone(rows, reach, low, high)
    return _channels(rows, reach, rank, low, high)


def _alone(kernel: np.ndarray, reach: int, low: float, high: float) -> Floor:
    r"""For each of two pointers the values with the signs of $\delta_{s,g}-k_s$, and their mirror image."""
    off = {g: np.abs(kernel[1:] - np.eye(1, len(kernel) - 1, g - 1)[0]).sum() for g in range(1, reach + 1)}
    i, j = sorted(sorted(off, key=lambda g: -off[g])[:2])  # the two pointers this kernel serves worst
    middle, half = (low + high) / 2, (high - low) / 2
    witnesses, targets = [], []
    for g in (i, j):
        error = -kernel.copy()
        error[g] += 1
        error[0] = 0.0  # the present value stays in the middle
        signs = np.where(error < 0, -1.0, 1.0)
        signs[0] = 0.0
        values = torch.from_numpy(np.stack([middle + half * signs, middle - half * signs])[:, ::-1].copy())
        witnesses.append(values)
        targets.append(values[:, -1 - g])
    return Floor(half, (i, j), tuple(witnesses), tuple(targets), None, tuple(half * float(off[g]) for g in (i, j)))


def _channels(rows: np.ndarray, reach: int, rank: int, low: float, high: float) -> Floor:
    r"""A null vector $\nu$ of the rows on lags $1..T$, scaled to $\max|\nu|=1$, added to and taken from the middle."""
    if len(rows) < reach:
        seen = rows[:, 1 : reach + 1]
    else:  # more rows than rank: they are combinations of `rank` of them
        _, size, directions = np.linalg.svd(rows[:, 1 : reach + 1], full_matrices=False)
        if size[rank] > 1e-9 * max(size[0], 1e-300):
            raise ValueError(
                f"kernels has rank above min(heads, channels) = {rank}: {len(rows)} rows, singular value number "
                f"{rank + 1} is {size[rank]:.3g}; give the channels that "
                "the attention writes, not the heads, where channels are fewer"
            )
        seen = directions[:rank]
    scale = np.abs(seen).max(axis=1, keepdims=True)
    null = np.linalg.svd(seen / np.where(scale > 0, scale, 1.0))[2][-1]
    g = int(np.argmax(np.abs(null))) + 1
    null = null / null[g - 1]
    middle, half = (low + high) / 2, (high - low) / 2
    length = rows.shape[1]
    pair = np.full((2, length), middle)
    pair[0, 1 : reach + 1] += half * null
    pair[1, 1 : reach + 1] -= half * null
    pair = np.clip(pair, low, high)
    difference = float(np.abs(rows @ (pair[0] - pair[1])).max())
    x = torch.from_numpy(pair[:, ::-1].copy())
    targets = (x[0, -1 - g], x[1, -1 - g])
    return Floor(half, (g, g), (x[0], x[1]), targets, difference, None)


def _rows(kernels, reach: int, ffn: bool) -> np.ndarray:
    rows = kernels.detach().numpy() if isinstance(kernels, Tensor) else np.asarray(kernels, dtype=float)
    wanted, shape = (2, "(rows, lags)") if ffn else (1, "(lags,)")
    if rows.ndim != wanted or not rows.size:
        raise ValueError(f"kernels must have shape {shape} {'with' if ffn else 'without'} FFN, got shape {rows.shape}")
    if rows.shape[-1] <= reach:
        raise ValueError(f"kernels must reach from lag 0 to lag {reach} at least, got {rows.shape[-1]} lags")
    if not np.isfinite(rows).all():
        raise ValueError("kernels must be finite; take exp of log weights first")
    return rows.astype(float)


def _interval(values) -> tuple[float, float]:
    try:
        low, high = values
    except (TypeError, ValueError):
        raise ValueError(f"values must be a pair (a, b), got {values!r}") from None
    low, high = checks.plain_number("values[0]", low), checks.plain_number("values[1]", high)
    if not low < high:
        raise ValueError(f"values must be a pair a < b, got {values!r}")
    return low, high
