r"""The three memory classes, to sample from and to evaluate exactly (chapter Foundations, "Sequences and memory").

A target knows no model. It draws input sequences, ``(batch, length, d_in)``, and maps any sequence to the output
``(batch, length, d_out)``; the past before the first token is zero. ``burn_in`` says how many positions at the start
still reach into that zero past: a loss leaves them out, an evaluation need not.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from memlib.checks import explicit_generator, integer, plain_number
from memlib.kernels import causal_convolution

__all__ = ["AdaptiveSparse", "EssentiallySparse", "Finite", "FixedSparse", "Interval", "Target", "shift"]


@dataclass(frozen=True)
class Interval:
    """A real-valued channel, uniform on ``[low, high]``."""

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self):
        if not plain_number("low", self.low) < plain_number("high", self.high):
            raise ValueError(f"an interval needs finite low < high, got {self.low!r}, {self.high!r}")

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Independent samples of the given shape."""
        return self.low + (self.high - self.low) * torch.rand(shape, dtype=torch.float64, generator=generator)


@dataclass(frozen=True)
class Finite:
    """A channel with a finite alphabet, uniform on ``values``."""

    values: tuple[float, ...]

    def __post_init__(self):
        try:
            values = tuple(float(v) for v in self.values)
        except TypeError:
            values = ()
        if len(set(values)) < len(values) or not values or not all(map(math.isfinite, values)):
            raise ValueError(f"a finite alphabet needs distinct finite values, got {self.values!r}")
        object.__setattr__(self, "values", values)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Independent samples of the given shape."""
        return torch.tensor(self.values, dtype=torch.float64)[
            torch.randint(len(self.values), shape, generator=generator)
        ]


class Target:
    """What the three classes share: input channels, sampling, checks."""

    burn_in: int = 0

    def __init__(self, inputs: Sequence[Interval | Finite], d_out: int):
        self.inputs = tuple(inputs) if isinstance(inputs, Sequence) else ()
        if not self.inputs or not all(isinstance(c, Interval | Finite) for c in self.inputs):
            raise ValueError(f"inputs must be a non-empty sequence of Interval and Finite channels, got {inputs!r}")
        self.d_in, self.d_out = len(self.inputs), integer("d_out", d_out, 1)

    def sample(self, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Independent tokens ``(batch, length, d_in)`` and the outputs ``(batch, length, d_out)``."""
        batch, length = integer("batch", batch, 1), integer("length", length, 1)
        explicit_generator("sample", generator)
        if length <= self.burn_in:
            raise ValueError(f"length must exceed the longest lag, {self.burn_in}, got {length}")
        x = torch.stack([channel.draw((batch, length), generator) for channel in self.inputs], dim=-1)
        return x, self(x)

    def __call__(self, x: Tensor) -> Tensor:
        """The target's output for the input sequences ``x``."""
        if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[-1] != self.d_in:
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"input must be a tensor of shape (batch, length, d_in={self.d_in}), got {shape}")
        if x.dtype != torch.float64:
            raise TypeError(f"input must be float64, got {str(x.dtype).removeprefix('torch.')}")
        if not bool(torch.isfinite(x).all()):
            raise ValueError("input must be finite, got NaN or infinity")
        y = self.evaluate(x)
        if y.shape != (*x.shape[:2], self.d_out):
            raise ValueError(
                f"the readout must return shape {(*x.shape[:2], self.d_out)} with last axis d_out, got {tuple(y.shape)}"
            )
        return y

    def evaluate(self, x: Tensor) -> Tensor:
        """The formula of the class, on checked input."""
        raise TypeError(f"{type(self).__name__} must define evaluate(x)")

    def dependence(self, x: Tensor) -> Tensor:
        r"""$|\partial y_t/\partial x_s|$, summed over channels: which tokens the output at $t$ depends on.

        Shape ``(length, length)`` for one sequence ``x`` of shape ``(length, d_in)``, by automatic differentiation.
        """
        jacobian = torch.autograd.functional.jacobian(lambda z: self(z[None])[0], x)  # (T, d_out, T, d_in)
        return jacobian.abs().sum(dim=(1, 3)).tril()  # causal: above the diagonal there is only rounding


def _lags(values, label: str) -> tuple[int, ...]:
    if not isinstance(values, Iterable):
        raise ValueError(f"{label}s must be a sequence of integers, got {values!r}")
    return tuple(integer(f"{label} (x_t itself is always read)", value, 1) for value in values)


def _function(name: str, value) -> Callable:
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {type(value).__name__}")
    return value


def shift(x: Tensor, lag: int) -> Tensor:
    r"""$x_{t-\text{lag}}$ along axis 1, zero before the first token."""
    lag = integer("lag", lag, 0)
    return torch.cat([torch.zeros_like(x[:, :lag]), x[:, : max(x.shape[1] - lag, 0)]], dim=1)


class FixedSparse(Target):
    r"""Fixed sparse memory, $y_t=f(x_t,x_{t-t_1},\dots,x_{t-t_M})$ (equation f:fixed).

    ``readout`` maps ``(batch, length, M + 1, d_in)``, the tokens in the order $x_t,x_{t-t_1},\dots$, to
    ``(batch, length, d_out)``.
    """

    def __init__(self, readout: Callable[[Tensor], Tensor], lags: Sequence[int],
                 inputs: Sequence[Interval | Finite] = (Interval(),), d_out: int = 1):  # fmt: skip
        super().__init__(inputs, d_out)
        self.readout, self.lags = _function("readout", readout), _lags(lags, "lag")
        if len(set(self.lags)) < len(self.lags):
            raise ValueError(f"lags must be distinct, got {self.lags}")
        self.burn_in = max(self.lags, default=0)

    def evaluate(self, x: Tensor) -> Tensor:
        return self.readout(torch.stack([x, *(shift(x, lag) for lag in self.lags)], dim=2))


class AdaptiveSparse(Target):
    r"""Adaptive sparse memory: nested look-ups (equation f:adaptive).

    ``pointers`` are $g_1,\dots,g_M$. Pointer $i$ maps the tokens read so far, ``(batch, length, j, d_in)``, to lags
    ``(batch, length)``: for $i\le K$ it sees $x_t$ and the $i-1$ tokens fetched before it, for $i>K$ the first $K$
    fetched tokens. ``nesting`` is $K$, ``reach`` the largest lag $T_i$ of each pointer.
    The readout is as in `FixedSparse`.
    """

    def __init__(self, readout: Callable[[Tensor], Tensor], pointers: Sequence[Callable[[Tensor], Tensor]],
                 reach: Sequence[int], nesting: int, inputs: Sequence[Interval | Finite], d_out: int = 1):  # fmt: skip
        super().__init__(inputs, d_out)
        self.readout = _function("readout", readout)
        self.pointers = tuple(_function("pointer", pointer) for pointer in pointers)
        self.reach = _lags(reach, "pointer's reach")
        if not self.pointers or len(self.reach) != len(self.pointers):
            raise ValueError(
                f"reach needs one entry per pointer: {len(self.pointers)} pointers, {len(self.reach)} entries"
            )
        self.nesting = integer("nesting", nesting, 0)
        if self.nesting > len(self.pointers):
            raise ValueError(f"nesting must lie in 0..{len(self.pointers)}, the number of pointers, got {nesting!r}")
        self.burn_in = max(self.reach)  # every lag is counted from t, not from the token fetched before

    def lags(self, x: Tensor) -> Tensor:
        """The lags $t_1,\\dots,t_M$ at every position, as integers ``(batch, length, M)``."""
        return self._read(x)[1]

    def _read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens, lags = [x], []
        position = torch.arange(x.shape[1])
        for i, (pointer, reach) in enumerate(zip(self.pointers, self.reach, strict=True)):
            lag = pointer(torch.stack(tokens[: min(i, self.nesting) + 1], dim=2))
            if lag.shape != x.shape[:2]:
                raise ValueError(f"pointer {i + 1} must return shape {tuple(x.shape[:2])}, got {tuple(lag.shape)}")
            rounded = lag.detach().round().long()
            if bool((lag.detach() != rounded).any()):
                raise ValueError(f"pointer {i + 1} must return whole numbers, got {lag[lag != rounded][0].item()}")
            # in the burn-in a pointer may have read the zero past, and say anything but the future
            least, inside = int(rounded.min()), rounded[:, self.burn_in :]
            if least < 0 or (inside.numel() and not (1 <= int(inside.min()) and int(inside.max()) <= reach)):
                raise ValueError(f"pointer {i + 1} left 1..{reach}: it returned {least}..{int(rounded.max())}")
            source = position - rounded
            fetched = torch.take_along_dim(x, source.clamp(min=0)[..., None], dim=1)
            tokens.append(torch.where((source >= 0)[..., None], fetched, torch.zeros_like(fetched)))
            lags.append(rounded)
        return torch.stack(tokens, dim=2), torch.stack(lags, dim=2)

    def evaluate(self, x: Tensor) -> Tensor:
        return self.readout(self._read(x)[0])


class EssentiallySparse(Target):
    r"""Essentially sparse memory, $y_t=f((X*\rho_1)(t),\dots,(X*\rho_M)(t))$ (equation f:essential).

    ``kernels`` are functions of the lag: $\rho_i$ maps the lags $0,1,2,\dots$ (a float64 tensor) to its values.
    ``readout`` maps ``(batch, length, M, d_in)`` to ``(batch, length, d_out)``. The memory is infinite, so there is no
    finite burn-in: it is 0 and the output is the formula's with a zero past. `tail` says what a longer past would add.
    """

    def __init__(self, readout: Callable[[Tensor], Tensor], kernels: Sequence[Callable[[Tensor], Tensor]],
                 inputs: Sequence[Interval | Finite] = (Interval(),), d_out: int = 1):  # fmt: skip
        super().__init__(inputs, d_out)
        self.readout = _function("readout", readout)
        self.kernels = tuple(_function("kernel", rho) for rho in kernels)
        if not self.kernels:
            raise ValueError("an essentially sparse target needs at least one kernel")

    def kernel_values(self, length: int) -> Tensor:
        """The kernels on lags ``0..length-1``, shape ``(M, length)``."""
        values = torch.stack([rho(torch.arange(length, dtype=torch.float64)) for rho in self.kernels])
        if values.shape != (len(self.kernels), length) or not bool(torch.isfinite(values).all()):
            raise ValueError("every kernel must map the lags to as many finite numbers")
        return values

    def tail(self, length: int, horizon: int = 1_000_000) -> Tensor:
        r"""$\sum_{s=\text{length}}^{\text{horizon}-1}|\rho_i(s)|$ for every kernel, shape ``(M,)``.

        For tokens in $[-1,1]$ it is the most by which the tokens from ``length`` to ``horizon`` steps ago can move
        $X*\rho_i$; what lies beyond the horizon is not counted.
        """
        length, horizon = integer("length", length, 0), integer("horizon", horizon, 1)
        return self.kernel_values(horizon)[:, length:].abs().sum(-1)

    def evaluate(self, x: Tensor) -> Tensor:
        kernels = self.kernel_values(x.shape[1])
        filtered = causal_convolution(kernels[:, None], x.transpose(1, 2)[:, None])  # (batch, M, d_in, length)
        return self.readout(filtered.permute(0, 3, 1, 2))
