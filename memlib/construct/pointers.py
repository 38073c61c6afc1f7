r"""Pointers that are tables, and the ReLU staircase that computes them (Lemma a:lem-staircase)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from memlib import checks
from memlib.model import FeedForward
from memlib.targets import Finite

__all__ = ["GRID", "SLACK", "Pointer", "reachable"]

GRID = 2.0**-40
"""Thresholds of a staircase lie on this grid, so that each of its steps is exactly 1."""
SLACK = 1e-9
"""By how much a value may miss its place in a table."""


@dataclass(frozen=True)
class Pointer:
    r"""A pointer that is a table on finitely many values of $\langle w,z\rangle$ (equation a:staircase).

    It is callable as a pointer of `targets.AdaptiveSparse`: ``(..., j, d_in)`` to lags ``(...)``. It reads as many
    tokens as it has rows of weights, in the order $x_t,x_{t-t_1},\dots$; further ones are ignored. A value that is not
    in the table, as may happen before the first token, counts as the nearest one.

    Attributes:
        weights: $w$, one number per token for scalar tokens, or one row of ``d_in`` numbers per token.
        table: the lag for each value of $\langle w,z\rangle$: a mapping, or pairs (value, lag).
    """

    weights: tuple
    table: tuple

    def __post_init__(self):
        w = _rows(self.weights)
        try:
            pairs = self.table.items() if isinstance(self.table, Mapping) else self.table
            table = sorted((float(v), checks.integer("a pointer's lag", lag, 1)) for v, lag in pairs)
        except TypeError:
            raise TypeError(f"table must map values to lags, or be pairs (value, lag), got {self.table!r}") from None
        values = [v for v, _ in table]
        if not table or not all(map(math.isfinite, values)):
            raise ValueError(f"table needs at least one value, all of them finite, got {self.table!r}")
        if min((b - a for a, b in pairwise(values)), default=1.0) <= 1e3 * SLACK:
            raise ValueError(f"the values of a table must be at least {1e3 * SLACK:g} apart, got {values}")
        object.__setattr__(self, "weights", w)
        object.__setattr__(self, "table", tuple(table))

    @classmethod
    def over(cls, weights, inputs, lag) -> "Pointer":
        r"""The table of a function: ``lag`` maps each value that $\langle w,z\rangle$ can take to a lag.

        ``inputs`` are the channels of a token, as in `targets.AdaptiveSparse`; those with a weight must be `Finite`.
        """
        values = reachable(_rows(weights), inputs)
        return cls(weights, [(v, int(lag(v))) for v in values])

    @property
    def values(self) -> tuple[float, ...]:
        r"""The values of $\langle w,z\rangle$ in the table, in increasing order."""
        return tuple(v for v, _ in self.table)

    @property
    def lags(self) -> tuple[int, ...]:
        """The lags that occur, in increasing order."""
        return tuple(sorted({lag for _, lag in self.table}))

    @property
    def reach(self) -> int:
        """The longest lag."""
        return self.lags[-1]

    @property
    def tokens(self) -> int:
        """How many tokens it reads: $x_t$ and this many less one fetched ones."""
        return max((i + 1 for i, row in enumerate(self.weights) if any(row)), default=1)

    @property
    def gap(self) -> float:
        """The least distance of two neighbouring values with different lags; infinite for a constant pointer."""
        return min((b - a for a, b, _, _ in self._steps()), default=math.inf)

    @property
    def neurons(self) -> int:
        """The size of the staircase: two neurons per step, and one that writes the first lag.

        (On the page the embedding's bias writes it. A neuron leaves the slot empty until the pointer is known.)
        """
        return 2 * len(self._steps()) + 1

    @property
    def per_token(self) -> tuple[float, ...]:
        r"""$\|w_i\|_1$: how much an error of token $i$ can move $\langle w,z\rangle$."""
        return tuple(math.fsum(map(abs, row)) for row in self.weights)

    def __call__(self, z: Tensor) -> Tensor:
        w = torch.tensor(self.weights, dtype=torch.float64)
        if z.ndim < 2 or z.shape[-2] < len(w) or z.shape[-1] != w.shape[1]:
            raise ValueError(
                f"the pointer reads {len(w)} token(s) of {w.shape[1]} channel(s), got a tensor of shape "
                f"{tuple(z.shape)}, whose last axes are tokens and channels"
            )
        r = (z[..., : len(w), :] * w).sum((-2, -1))
        values = torch.tensor(self.values, dtype=torch.float64)
        return torch.tensor([float(lag) for _, lag in self.table])[
            torch.bucketize(r.detach(), (values[1:] + values[:-1]) / 2)
        ].double()

    def staircase(self, encoding: str = "lin") -> FeedForward:
        r"""The FFN that computes the pointer (lin) or its logarithm (log) from the tokens in one row, a:staircase.

        A step from the value $v$ to the next one $v'$ is $\sigma(a(r-v)-\tfrac12)-\sigma(a(r-v)-\tfrac32)$ with
        $a=2/(v'-v)$, $r=\langle w,z\rangle$: 0 up to a quarter of the gap after $v$, 1 from a quarter before $v'$ on.
        """
        steps = self._steps()
        height = float if encoding == "lin" else math.log
        network = FeedForward(len(self.weights) * len(self.weights[0]), self.neurons, 1, generator=torch.Generator())
        w = torch.tensor(self.weights, dtype=torch.float64).flatten()
        with torch.no_grad():
            network.hidden.weight.zero_()
            network.hidden.bias[0] = 1.0
            network.out.weight[0, 0] = height(self.table[0][1])
            for j, (low, high, before, after) in enumerate(steps):
                slope = 2 / (high - low)
                first = round((-slope * low - 0.5) / GRID) * GRID
                for k, bias, sign in ((2 * j + 1, first, 1.0), (2 * j + 2, first - 1.0, -1.0)):
                    network.hidden.weight[k] = slope * w
                    network.hidden.bias[k] = bias
                    network.out.weight[0, k] = sign * (height(after) - height(before))
        return network

    def _steps(self) -> list[tuple[float, float, int, int]]:
        """The places where the lag changes: value before, value after, lag before, lag after."""
        return [(v, v_, lag, lag_) for (v, lag), (v_, lag_) in pairwise(self.table) if lag != lag_]


def _rows(weights) -> tuple[tuple[float, ...], ...]:
    w = torch.as_tensor(weights, dtype=torch.float64)
    w = w[:, None] if w.ndim == 1 else w
    if w.ndim != 2 or not w.numel() or not bool(torch.isfinite(w).all()):
        raise ValueError(
            f"weights must be finite numbers, one per token (x_t first) or one row of d_in per token, got {weights!r}"
        )
    return tuple(map(tuple, w.tolist()))


def reachable(weights, inputs) -> list[float]:
    """All values of the weighted sum of tokens, up to rounding; raises if a channel with a weight is not finite."""
    found = [0.0]
    for row in weights:
        if len(row) != len(inputs):
            raise ValueError(f"a pointer needs one weight for each of the {len(inputs)} channels, got a row {row}")
        for w, channel in zip(row, inputs, strict=True):
            if not w:
                continue
            if not isinstance(channel, Finite):
                raise ValueError(
                    "a pointer is a table on finitely many values: it can read Finite channels only, but has the "
                    f"weight {w:g} on {channel!r}"
                )
            found = sorted(a + w * v for a in found for v in channel.values)
            found = [v for i, v in enumerate(found) if not i or v - found[i - 1] > SLACK]
    return found
