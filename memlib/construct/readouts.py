r"""Readouts $f(z)=g(\langle w,z\rangle+b)$ whose structure is known, so that an FFN for them can be written down."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from memlib import barron
from memlib.model import FeedForward

__all__ = ["Linear", "Product", "QuadraticRidge", "Readout", "ReluRidge", "network_error", "written_down"]


@dataclass(frozen=True)
class Readout:
    r"""A readout $f(z)=g(\langle w,z\rangle+b)$ of the tokens $z=(x_t,x_{t-t_1},\dots)$, whose structure is known.

    It is callable as the readout of `targets.FixedSparse`: ``(..., M + 1, d_in)`` to ``(..., 1)``.

    Attributes:
        weights: $w$, one number per token for scalar tokens, or one row of ``d_in`` numbers per token.
        bias: $b$.
    """

    weights: tuple
    bias: float = 0.0

    def __post_init__(self):
        w = torch.as_tensor(self.weights, dtype=torch.float64)
        w = w[:, None] if w.ndim == 1 else w
        if w.ndim != 2 or not w.numel() or not bool(torch.isfinite(w).all()) or not math.isfinite(self.bias):
            raise ValueError(
                "weights must be finite numbers, one per token (x_t first) or one row of d_in per token, and the bias "
                f"finite; got {self.weights!r}, {self.bias!r}"
            )
        object.__setattr__(self, "weights", tuple(map(tuple, w.tolist())))

    @property
    def tokens(self) -> int:
        """$M+1$: how many tokens it reads."""
        return len(self.weights)

    @property
    def size(self) -> float:
        r"""$\|w\|_1$."""
        return math.fsum(abs(w) for row in self.weights for w in row)

    @property
    def slope(self) -> float:
        """The largest slope of the profile $g$ on what it can be given."""
        return 1.0

    @property
    def per_token(self) -> tuple[float, ...]:
        r"""$L_i$ with $|f(z)-f(z')|\le\sum_iL_i\|z_i-z_i'\|_\infty$, for tokens in the cube."""
        return tuple(self.slope * math.fsum(map(abs, row)) for row in self.weights)

    @property
    def lipschitz(self) -> float:
        r"""The largest $L_i$: $|f(z)-f(z')|\le\mathrm{Lip}\sum_i\|z_i-z_i'\|_\infty$, as in `bounds.fixed`."""
        return max(self.per_token)

    def __call__(self, z: Tensor) -> Tensor:
        w = torch.tensor(self.weights, dtype=torch.float64)
        if z.shape[-2:] != w.shape:
            raise ValueError(
                f"the readout reads tokens of shape (..., {w.shape[0]}, {w.shape[1]}), got {tuple(z.shape)}"
            )
        return self.profile((z * w).sum((-2, -1)) + self.bias)[..., None]

    def profile(self, r: Tensor) -> Tensor:
        """$g$."""
        raise TypeError(f"{type(self).__name__} must define profile(r)")

    def network(self, width: int, ffn: str, generator: torch.Generator | None) -> FeedForward | None:
        """The FFN that computes the readout from the tokens in one row; none if the output matrix can do it."""
        raise TypeError(f"{type(self).__name__} must define network(width, ffn, generator)")


class Linear(Readout):
    r"""$f(z)=\langle w,z\rangle+b$: the model's output matrix does it, and the layer has no FFN (width 0)."""

    def profile(self, r: Tensor) -> Tensor:
        return r

    def network(self, width, ffn, generator):
        if width:
            raise ValueError(f"a linear readout needs no FFN: allowed is width 0, got {width}")
        return None


class ReluRidge(Readout):
    r"""$f(z)=\sigma(\langle w,z\rangle+b)$: one neuron computes it exactly (width 1)."""

    @property
    def norm(self) -> float:
        r"""$\|w\|_1+|b|$, the cost of the neuron: at least the Barron norm."""
        return self.size + abs(self.bias)

    def profile(self, r: Tensor) -> Tensor:
        return r.relu()

    def network(self, width, ffn, generator):
        if width != 1:
            raise ValueError(f"a ReLU ridge is one neuron: allowed is width 1, got {width}")
        network = FeedForward(len(self.weights) * len(self.weights[0]), 1, 1, generator=torch.Generator())
        with torch.no_grad():
            network.hidden.weight.copy_(torch.tensor(self.weights, dtype=torch.float64).flatten()[None])
            network.hidden.bias.fill_(self.bias)
            network.out.weight.fill_(1.0)
        return network


class QuadraticRidge(Readout):
    r"""$f(z)=\langle w,z\rangle^2$ with $\|w\|_1=1$, a Barron function of norm 6 (chapter Foundations, f:ex-ridge).

    ``interpolating`` networks (even width) err by $m^{-2}$, ``sampled`` ones (any width) like $m^{-1/2}$.
    """

    def __post_init__(self):
        super().__post_init__()
        if self.bias or abs(self.size - 1) > 1e-12:
            raise ValueError(
                "a quadratic ridge has no bias and weights whose absolute values sum to 1 (divide by their sum), got "
                f"bias {self.bias!r} and sum {self.size:.6g}"
            )

    norm = 6.0

    @property
    def slope(self) -> float:
        return 2.0

    @property
    def function(self) -> barron.SquareRidge:
        """The readout as a Barron function of the tokens in one row."""
        return barron.square_ridge([w for row in self.weights for w in row])

    def profile(self, r: Tensor) -> Tensor:
        return r.square()

    def network(self, width, ffn, generator):
        if ffn == "interpolating":
            if width < 2 or width % 2:
                raise ValueError(f"an interpolating FFN has an even width of at least 2, got {width}")
            return barron.interpolating_ffn(self.function, width)
        if width < 1:
            raise ValueError(f"a sampled FFN has a width of at least 1, got {width}")
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"a sampled FFN needs an explicit torch.Generator, got {type(generator).__name__}")
        return barron.sampled_ffn(self.function, width, generator)


class Product(Readout):
    r"""$f(z)=z_1z_2$ of two memories: the difference of two quadratic ridges, and no function of one combination alone.

    $z_1z_2=\bigl(\frac{z_1+z_2}2\bigr)^2-\bigl(\frac{z_1-z_2}2\bigr)^2$, each with half of the neurons.
    It is a readout of `construct.essential`, for scalar tokens.
    """

    def __init__(self):
        super().__init__((1.0, 1.0))

    @property
    def ridges(self) -> tuple[tuple[float, QuadraticRidge], ...]:
        """The two squares with their signs."""
        return (1.0, QuadraticRidge((0.5, 0.5))), (-1.0, QuadraticRidge((0.5, -0.5)))

    def __call__(self, z: Tensor) -> Tensor:
        if z.shape[-2:] != (2, 1):
            raise ValueError(f"the readout reads memories of shape (..., 2, 1), got {tuple(z.shape)}")
        return z[..., 0, :] * z[..., 1, :]


def written_down(readout, *more: type[Readout]) -> None:
    """Raise `TypeError` unless the readout is one whose weights can be written down; ``more`` kinds may be allowed."""
    if not isinstance(readout, (Linear, ReluRidge, QuadraticRidge, *more)):
        names = ["Linear", "ReluRidge", "QuadraticRidge", *(kind.__name__ for kind in more)]
        raise TypeError(
            f"the readout must be a construct.{', '.join(names[:-1])} or {names[-1]}, whose weights can be written "
            f"down; got {type(readout).__name__}"
        )


def network_error(network: FeedForward, readout: QuadraticRidge) -> tuple[float, float, float]:
    r"""How far a network of ridge neurons is from $r^2$, $r=\langle w,z\rangle$: exactly, not on a grid.

    Along the ridge it is piecewise linear, so on each piece the difference is a parabola. Returns the largest
    difference on $[-1,1]$, a point $r$ at which it is attained, and the largest slope of the network on the whole line
    (fetched tokens may leave the cube).
    """
    sign = torch.tensor(readout.weights, dtype=torch.float64).flatten().sign()
    beta = (network.hidden.weight.detach() @ sign).numpy()
    gamma, out = network.hidden.bias.detach().numpy(), network.out.weight.detach()[0].numpy()
    kinks = np.unique(np.concatenate([[-1.0, 1.0], -gamma[beta != 0] / beta[beta != 0]]))
    middles = np.concatenate([[kinks[0] - 1], (kinks[1:] + kinks[:-1]) / 2, [kinks[-1] + 1]])
    slopes = ((beta * middles[:, None] + gamma > 0) * (out * beta)).sum(-1)
    inside = kinks[np.abs(kinks) <= 1]
    turning = slopes[1:-1] / 2  # where r^2 runs parallel to a piece
    low, high = np.array(list(pairwise(kinks))).T
    points = np.concatenate([inside, turning[(turning > low) & (turning < high) & (np.abs(turning) < 1)]])
    values = (np.maximum(beta * points[:, None] + gamma, 0) * out).sum(-1)
    error = np.abs(values - points**2)
    return float(error.max()), float(points[error.argmax()]), float(np.abs(slopes).max())
