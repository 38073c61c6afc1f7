r"""Functions whose Barron norm is known exactly, and networks sampled from them.

Chapter Foundations, "Barron functions". On the cube $[-1,1]^d$ a function $f(x)=\mathbb E[a\,\sigma(b^\top x+c)]$ has
the norm $\|f\|_{\mathcal B}=\inf\mathbb E|a|(\|b\|_1+|c|)$ (equation f:barron). Drawing neurons with probability
proportional to $|a|(\|b\|_1+|c|)$ and scaling each to $\|b\|_1+|c|=1$ gives the sampled network (equation
f:barron-sample)

$$f_m(x)=\frac{\|f\|_{\mathcal B}}m\sum_{j\le m}s_j\,\sigma(b_j^\top x+c_j),\qquad s_j=\pm1,$$

whose mean is $f$ and whose error falls like $m^{-1/2}$ in any dimension. The three functions of this module attain
the infimum, so that every constant of that statement is a number.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from memlib.checks import explicit_generator, integer
from memlib.model import FeedForward

__all__ = [
    "BarronFunction",
    "CosineRidge",
    "SimplexMean",
    "SquareRidge",
    "approximation_error",
    "cosine_ridge",
    "cube_points",
    "interpolating_ffn",
    "sampled_ffn",
    "sampling_rms",
    "simplex_mean",
    "square_ridge",
    "uniform_bound",
]

_SLACK = 1e-12  # what rounding may add to a point of the cube, or to the norm of a direction


# ---------------------------------------------------------------- functions


@dataclass(frozen=True)
class BarronFunction:
    """A function on $[-1,1]^d$ whose norm is attained by a distribution of neurons one can sample from.

    Attributes:
        name: what to call it.
        dimension: $d$.
        norm: the Barron norm, exactly.
    """

    name: str
    dimension: int
    norm: float

    def __call__(self, x: Tensor) -> Tensor:
        """The value at the points ``x`` of shape ``(..., d)``; shape ``(...)``."""
        return self._value(self._check(x))

    def second_moment(self, x: Tensor) -> Tensor:
        r"""$\mathbb E\,\sigma(b^\top x+c)^2$ for one sampled neuron (scaled to $\|b\|_1+|c|=1$), shape ``(...)``.

        For `simplex_mean` a closed form, for the ridge functions Gauss–Legendre quadrature of an analytic integrand;
        both are correct to about 14 digits.
        """
        return self._second(self._check(x))

    def sample_neurons(self, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        r"""Draw $m$ neurons with probability proportional to $|a|(\|b\|_1+|c|)$.

        Returns the signs $s_j$ ``(m,)``, the weights $b_j$ ``(m, d)`` and the biases $c_j$ ``(m,)``, with
        $\|b_j\|_1+|c_j|=1$ (equation f:barron-sample).
        """
        integer("m", m, 1)
        explicit_generator("sample_neurons", generator)
        return self._draw(m, generator)

    def _check(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or x.dtype != torch.float64:
            kind = str(x.dtype).removeprefix("torch.") if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"points must be a float64 tensor, got {kind}")
        if x.ndim < 1 or x.shape[-1] != self.dimension:
            raise ValueError(f"points must have shape (..., d={self.dimension}), got {tuple(x.shape)}")
        if not bool(torch.isfinite(x).all()):
            raise ValueError("points must be finite, got NaN or infinity")
        if x.numel() and float(x.detach().abs().max()) > 1 + _SLACK:
            raise ValueError(f"points must lie in the cube [-1, 1]^{self.dimension}, got {_farthest(x)}")
        return x

    def _value(self, x: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must define _value(x)")

    def _second(self, x: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must define _second(x)")

    def _draw(self, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        raise TypeError(f"{type(self).__name__} must define _draw(m, generator)")


def _farthest(x: Tensor) -> float:
    flat = x.detach().flatten()
    return float(flat[flat.abs().argmax()])


class SimplexMean(BarronFunction):
    r"""$f(x)=\mathbb E\,\sigma(b^\top x)$, $b$ uniform on the probability simplex; see `simplex_mean`."""

    def _value(self, x: Tensor) -> Tensor:
        return _divided_differences(x, 1)[0] / self.dimension

    def _second(self, x: Tensor) -> Tensor:
        return _divided_differences(x, 2)[1] * 2 / (self.dimension * (self.dimension + 1))

    def _draw(self, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        b = -torch.log1p(-torch.rand(m, self.dimension, dtype=torch.float64, generator=generator))
        ones = torch.ones(m, dtype=torch.float64)
        return ones, b / b.sum(-1, keepdim=True), torch.zeros_like(ones)


def _divided_differences(x: Tensor, most: int) -> list[Tensor]:
    r"""$[x_1,\dots,x_d]\,\sigma^{d-1+q}$ for $q=1,\dots,$ ``most``, accurate also where coordinates (nearly) coincide.

    Leibniz' rule for $z\cdot\sigma(z)^{k-1}$ at the least and at the greatest node gives, as for B-splines,
    $(x_j-x_i)D^q_{ij}=x_jD^q_{i+1,j}-x_iD^q_{i,j-1}$ where $D^q_{ij}=[x_i,\dots,x_j]\sigma^{j-i+q}$. It is used only
    where $x_i\le0<x_j$: both terms are then non-negative, so nothing cancels. Among positive nodes $D^q$ is the
    complete homogeneous symmetric polynomial of degree $q$, a sum of positive terms; among the others it is zero.
    """
    x = x.sort(dim=-1).values
    columns = x.unbind(-1)
    # rows[q][i] is D^q on the nodes i..i+k; for q = 0, used among positive nodes only, it is 1
    rows = [[(z > 0) * F.relu(z) ** q for z in columns] for q in range(most + 1)]
    for k in range(1, len(columns)):
        fresh = [[(columns[i] > 0).to(x.dtype) for i in range(len(columns) - k)]]
        for q in range(1, most + 1):
            row = []
            for i in range(len(columns) - k):
                low, high = columns[i], columns[i + k]
                span = torch.where((low <= 0) & (high > 0), high - low, torch.ones_like(low))
                mixed = (high * rows[q][i + 1] - low * rows[q][i]) / span
                positive = rows[q][i] + high * fresh[q - 1][i]
                row.append(torch.where(low > 0, positive, torch.where(high > 0, mixed, torch.zeros_like(low))))
            fresh.append(row)
        rows = fresh
    return [rows[q][0] for q in range(1, most + 1)]


@dataclass(frozen=True)
class _Ridge(BarronFunction):
    r"""$f(x)=g(w^\top x)$ with $\|w\|_1=1$, $g$ even and $g(0)=g'(0)=0$.

    $g(z)=\int_0^1g''(t)\sigma(z-t)\,dt+\int_0^1g''(-t)\sigma(-z-t)\,dt$: the ReLUs face outwards from 0, so no affine
    part is left, and the cost $\int_{-1}^1|g''(t)|(1+|t|)\,dt$ is the norm: whatever the representation, its kinks
    along the line $x=z\,\mathrm{sign}(w)$ must add up to $g''$.
    """

    w: tuple[float, ...]

    def _along(self, x: Tensor) -> Tensor:
        return (x @ torch.tensor(self.w, dtype=x.dtype)).clamp(-1, 1)

    def _value(self, x: Tensor) -> Tensor:
        return self._profile(self._along(x))

    def _second(self, x: Tensor) -> Tensor:
        r"""$\frac1{\|f\|_{\mathcal B}}\int_0^r|g''(t)|\frac{(r-t)^2}{1+t}\,dt$, $r=|w^\top x|$, piece by piece."""
        r = self._along(x).abs()[..., None]
        nodes, weights = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(24))
        total = torch.zeros_like(r[..., 0])
        for low, high in self._pieces():
            top = r.clamp(max=high)
            length = (top - low).clamp(min=0)
            t = low + length * (1 + nodes) / 2
            total = total + (length / 2 * weights * self._curvature(t).abs() * (r - t) ** 2 / (1 + t)).sum(-1)
        return total / self.norm

    def _draw(self, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        u = torch.rand(2, m, dtype=torch.float64, generator=generator)
        side = torch.where(u[0] < 0.5, 1.0, -1.0).to(torch.float64)
        t = self._kinks(u[1])
        b = (side / (1 + t))[:, None] * torch.tensor(self.w, dtype=torch.float64)
        return torch.where(self._curvature(t) < 0, -1.0, 1.0).to(torch.float64), b, -t / (1 + t)

    def _pieces(self) -> tuple[tuple[float, float], ...]:
        """Where the curvature has one sign and is analytic."""
        return ((0.0, 1.0),)

    def _profile(self, z: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must define _profile(z), which is g")

    def _curvature(self, t: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must define _curvature(t)")

    def _kinks(self, u: Tensor) -> Tensor:
        """The inverse distribution function of the density proportional to $|g''(t)|(1+t)$ on $[0,1]$, at ``u``."""
        raise TypeError(f"{type(self).__name__} must define _kinks(u)")


class SquareRidge(_Ridge):
    r"""$f(x)=(w^\top x)^2$; see `square_ridge`."""

    def _profile(self, z: Tensor) -> Tensor:
        return z**2

    def _curvature(self, t: Tensor) -> Tensor:
        return torch.full_like(t, 2.0)

    def _kinks(self, u: Tensor) -> Tensor:
        return 3 * u / (1 + torch.sqrt(1 + 3 * u))  # solves (t + t^2 / 2) / (3 / 2) = u


class CosineRidge(_Ridge):
    r"""$f(x)=1-\cos(\pi w^\top x)$; see `cosine_ridge`."""

    def _profile(self, z: Tensor) -> Tensor:
        return 2 * torch.sin(math.pi / 2 * z) ** 2

    def _curvature(self, t: Tensor) -> Tensor:
        return math.pi**2 * torch.cos(math.pi * t)

    def _pieces(self) -> tuple[tuple[float, float], ...]:
        return ((0.0, 0.5), (0.5, 1.0))

    def _kinks(self, u: Tensor) -> Tensor:
        low, high = torch.zeros_like(u), torch.ones_like(u)
        for _ in range(54):  # bisection: the same number of steps for every u
            middle = (low + high) / 2
            below = self._mass(middle) < u
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    @staticmethod
    def _mass(t: Tensor) -> Tensor:
        r"""$\frac\pi3\int_0^t(1+s)|\cos\pi s|\,ds$."""
        signed = (1 + t) * torch.sin(math.pi * t) + (torch.cos(math.pi * t) - 1) / math.pi
        return torch.where(t <= 0.5, signed, 3 - 2 / math.pi - signed) / 3


def simplex_mean(d: int) -> SimplexMean:
    r"""$f(x)=\mathbb E\,\sigma(b^\top x)$ with $b$ uniform on the probability simplex of $\mathbb R^d$: norm 1.

    The representation costs 1; and $|\sigma(b^\top x+c)|\le\|b\|_1+|c|$ on the cube, so $f(1,\dots,1)=1$ is a lower
    bound. By the formula of Hermite and Genocchi $f(x)=\frac1d[x_1,\dots,x_d]\sigma^d$, a divided difference, evaluated
    without cancellation. Unlike a ridge function it varies in all $d$ directions (chapter Foundations, example
    f:ex-simplex, equation f:simplex-mean).
    """
    integer("d", d, 1)
    return SimplexMean(f"simplex mean, d = {d}", d, 1.0)


def square_ridge(w) -> SquareRidge:
    r"""$f(x)=(w^\top x)^2$ with $\|w\|_1=1$: norm $6=\int_{-1}^1 2(1+|t|)\,dt$ (Foundations, f:ex-ridge)."""
    w = _direction(w)
    return SquareRidge("square ridge", len(w), 6.0, w)


def cosine_ridge(w) -> CosineRidge:
    r"""$f(x)=1-\cos(\pi w^\top x)$ with $\|w\|_1=1$: norm $6\pi=\int_{-1}^1\pi^2|\cos\pi t|(1+|t|)\,dt$.

    Its curvature changes sign, so the sampled neurons do too (chapter Foundations, example f:ex-ridge).
    """
    w = _direction(w)
    return CosineRidge("cosine ridge", len(w), 6 * math.pi, w)


def _direction(w) -> tuple[float, ...]:
    values = torch.as_tensor(w, dtype=torch.float64)
    if values.ndim != 1 or not len(values) or not bool(torch.isfinite(values).all()):
        raise ValueError(f"w must be a non-empty vector of finite numbers, got {w!r}")
    size = float(values.abs().sum())
    if abs(size - 1) > _SLACK:
        raise ValueError(f"the absolute values of w must sum to 1 (divide by their sum), got {w!r} with sum {size:.6g}")
    return tuple(values.tolist())


# ---------------------------------------------------------------- sampled networks


def sampled_ffn(f: BarronFunction, width: int, generator: torch.Generator) -> FeedForward:
    r"""The sampled network $f_m$ of ``width`` $m$ as a `FeedForward` with one output (equation f:barron-sample).

    Input ``(..., d)``, output ``(..., 1)``. Its mean over draws is $f$.
    """
    integer("width", width, 1)
    signs, b, c = f.sample_neurons(width, generator)
    network = FeedForward(f.dimension, width, 1, generator=torch.Generator())
    with torch.no_grad():
        network.hidden.weight.copy_(b)
        network.hidden.bias.copy_(c)
        network.out.weight.copy_(f.norm / width * signs)
    return network


def interpolating_ffn(f: "SquareRidge | CosineRidge", width: int) -> FeedForward:
    r"""The network that interpolates a ridge function $g(w^\top x)$ at $w^\top x=2j/m$, $|j|\le m/2$: not random.

    It has the ``width`` $m$, which must be even: $m/2$ neurons face outwards on each side of 0. Its greatest error is
    at most $\max|g''|/(2m^2)$, and exactly $m^{-2}$ for the square (chapter Foundations, remark f:rem-faster).
    """
    if not isinstance(f, _Ridge):
        raise TypeError(f"interpolating_ffn needs a ridge function, got {type(f).__name__}")
    if not isinstance(width, int) or isinstance(width, bool) or width < 2 or width % 2:
        raise ValueError(f"width must be an even integer of at least 2, got {width!r}")
    half = width // 2
    knots = torch.arange(half + 1, dtype=torch.float64) / half
    slopes = f._profile(knots).diff() * half
    jumps = slopes.diff(prepend=slopes.new_zeros(1))
    w = torch.tensor(f.w, dtype=torch.float64)
    network = FeedForward(f.dimension, width, 1, generator=torch.Generator())
    with torch.no_grad():
        network.hidden.weight.copy_(torch.cat([w.expand(half, -1), -w.expand(half, -1)]))
        network.hidden.bias.copy_(-knots[:-1].repeat(2))
        network.out.weight.copy_(jumps.repeat(2))
    return network


def sampling_rms(f: BarronFunction, points: Tensor, m: int) -> float:
    r"""The root mean square error of $f_m$ over all draws and over the ``points``, exactly:

    $$\Big(\frac1m\,\mathrm{mean}_x\big(\|f\|_{\mathcal B}^2\,\mathbb E\,\sigma(b^\top x+c)^2-f(x)^2\big)\Big)^{1/2}$$

    (chapter Foundations, equation f:sampling-error). It is at most $\|f\|_{\mathcal B}/\sqrt m$.
    """
    integer("m", m, 1)
    if not f._check(points).numel():
        raise ValueError(f"points must hold at least one point, got shape {tuple(points.shape)}")
    variance = f.norm**2 * f.second_moment(points) - f(points) ** 2
    return math.sqrt(float(variance.clamp(min=0).mean()) / m)


def uniform_bound(f: BarronFunction, m: int) -> float:
    r"""$4\sqrt{d+1}\,\|f\|_{\mathcal B}/\sqrt m$, which bounds the mean over draws of $\sup_x|f_m(x)-f(x)|$.

    Chapter Foundations, equation f:uniform-bound: symmetrisation gives one factor 2, contraction the other;
    $\sqrt{d+1}$ turns the $\ell^1$ norm of a random sum of neurons into its $\ell^2$ norm.
    """
    integer("m", m, 1)
    return 4 * math.sqrt(f.dimension + 1) * f.norm / math.sqrt(m)


def cube_points(count: int, d: int) -> Tensor:
    """The first ``count`` Sobol points of the cube $[-1,1]^d$, without the corner they start in: ``(count, d)``."""
    integer("count", count, 1)
    integer("d", d, 1)
    engine = torch.quasirandom.SobolEngine(d)
    engine.fast_forward(1)
    return 2 * engine.draw(count, dtype=torch.float64) - 1


def approximation_error(network, f: BarronFunction, points: Tensor) -> tuple[float, float]:
    """Root mean square and greatest error of a network, ``(n, d)`` to ``(n, 1)``, on the points ``(n, d)``."""
    exact = f(points)
    with torch.no_grad():
        values = network(points)
    if points.ndim != 2 or values.shape != (*exact.shape, 1):
        raise ValueError(
            "points must have shape (n, d) and the network's output (n, 1), "
            f"got {tuple(points.shape)} and {tuple(values.shape)}"
        )
    error = (values[:, 0] - exact).abs()
    return float(error.square().mean().sqrt()), float(error.max())
