r"""Positional encodings, by name (chapter Foundations, section "The architecture as formulas").

Four kinds, told apart by where position enters a head:

* *additive*: the logit gains $\phi_h(t-s)$, a function of the lag alone. One head then weighs the past by
  $w_h(z)=e^{\phi_h(z)}$, and everything the theory says about kernels applies.
* *multiplicative*: query and key are rotated by their positions before the dot product.
* *absolute*: a vector that depends on the position is added to the embedded token.
* *none*.

A new encoding is a class with a name: derive from `Additive`, `Multiplicative` or `Absolute` and decorate it with
`register("name")`; `TransformerConfig(encoding="name")` then finds it.
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memlib.checks import integer, positive_number

__all__ = [
    "KINDS",
    "Absolute",
    "Additive",
    "Encoding",
    "Multiplicative",
    "Sizes",
    "alibi_slopes",
    "kind",
    "make",
    "names",
    "parameters",
    "register",
]

KINDS = ("additive", "multiplicative", "absolute", "none")
_REGISTRY: dict[str, type["Encoding"]] = {}


@dataclass(frozen=True)
class Sizes:
    """What an encoding may need to know of the model it serves."""

    heads: int
    d_head: int
    d_model: int
    max_length: int = 1024
    dtype: torch.dtype = torch.float64
    generator: torch.Generator | None = None


class Encoding(nn.Module):
    """Base class: `kind` says where position enters; the constructor takes `Sizes` and keyword parameters."""

    kind = "none"

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.sizes = sizes


class Additive(Encoding):
    """An encoding that adds a function of the lag to the logits."""

    kind = "additive"

    def log_weights(self, length: int) -> Tensor:
        r"""$\phi_h(z)$ for $z=0,\dots,\text{length}-1$, shape ``(heads, length)``; $-\infty$ at lags not seen."""
        raise TypeError(f"{type(self).__name__} must define log_weights(length)")

    def _lags(self, first: int, length: int) -> Tensor:
        return torch.arange(first, length, dtype=self.sizes.dtype)


class Multiplicative(Encoding):
    """An encoding that transforms queries and keys by their positions."""

    kind = "multiplicative"

    def rotate(self, x: Tensor) -> Tensor:
        """Transform ``x`` of shape ``(..., length, d_head)`` by position."""
        raise TypeError(f"{type(self).__name__} must define rotate(x)")


class Absolute(Encoding):
    """An encoding that adds a vector to each embedded token."""

    kind = "absolute"

    def positions(self, length: int) -> Tensor:
        """The vectors added at positions ``0..length-1``, shape ``(length, d_model)``."""
        raise TypeError(f"{type(self).__name__} must define positions(length)")


def register(name: str):
    """Class decorator: make an encoding available under ``name``.

    A name is taken once; only the same class, defined again in a notebook cell that is run again, may replace itself.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"an encoding's name must be a Python identifier, got {name!r}")

    def decorate(cls: type[Encoding]) -> type[Encoding]:
        if not (isinstance(cls, type) and issubclass(cls, Encoding) and cls.kind in KINDS):
            raise ValueError(f"{cls!r} is no Encoding with a kind in {KINDS}")
        taken = _REGISTRY.get(name)
        if taken and (taken is cls or (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__)):
            raise ValueError(f"the encoding name {name!r} is taken by {taken.__name__}")
        _REGISTRY[name] = cls
        return cls

    return decorate


def names() -> tuple[str, ...]:
    """The names of all registered encodings."""
    return tuple(_REGISTRY)


def _find(name: str) -> type[Encoding]:
    if not isinstance(name, str) or name not in _REGISTRY:
        raise ValueError(f"unknown encoding {name!r}; known encodings: {', '.join(names())}")
    return _REGISTRY[name]


def kind(name: str) -> str:
    """The kind of the encoding called ``name``: one of `KINDS`."""
    return _find(name).kind


def parameters(name: str) -> tuple[str, ...]:
    """The names of the parameters of the encoding called ``name``."""
    return tuple(p for p in inspect.signature(_find(name).__init__).parameters if p not in ("self", "sizes"))


def make(
    name: str,
    *,
    heads: int = 1,
    d_head: int = 2,
    d_model: int = 2,
    max_length: int = 1024,
    dtype: torch.dtype = torch.float64,
    generator: torch.Generator | None = None,
    **params,
) -> Encoding:
    """Build the encoding called ``name`` for a model of the given sizes; ``params`` are the encoding's own."""
    cls = _find(name)
    allowed = parameters(name)
    unknown = sorted(set(params) - set(allowed))
    if unknown:
        raise ValueError(
            f"encoding {name!r} has no parameter {', '.join(unknown)}; it has: {', '.join(allowed) or 'none'}"
        )
    counts = {"heads": heads, "d_head": d_head, "d_model": d_model, "max_length": max_length}
    return cls(Sizes(**{k: integer(k, v, 1) for k, v in counts.items()}, dtype=dtype, generator=generator), **params)


def alibi_slopes(heads: int) -> list[float]:
    r"""ALiBi's slopes: $2^{-8h/H}$ for a power of two; else those of the power of two below, then every second one of
    the power of two above."""
    below = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8 * h / below) for h in range(1, below + 1)]
    between = [2.0 ** (-8 * h / (2 * below)) for h in range(1, 2 * below + 1, 2)]
    return slopes + between[: heads - below]


def _numbers(values, label: str, shape: tuple[int, ...], sizes: Sizes) -> Tensor:
    """Finite numbers of the given shape, as a tensor."""
    try:
        numbers = torch.as_tensor(values, dtype=sizes.dtype).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{label} must be numbers of shape {shape}, got {values!r:.80}") from None
    if numbers.shape != shape or not bool(torch.isfinite(numbers).all()):
        raise ValueError(
            f"{label} must be finite numbers of shape {shape}, got shape {tuple(numbers.shape)}: {values!r:.80}"
        )
    return numbers.clone()


def _positive(values, label: str, sizes: Sizes) -> Tensor:
    """One positive finite number per head, as a tensor."""
    values = _numbers(values, f"{label} (one per head)", (sizes.heads,), sizes)
    if not bool((values > 0).all()):
        raise ValueError(f"{label} must be positive, got {values.tolist()}")
    return values


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), the map that keeps a learned slope positive."""
    return F.softplus(x, threshold=40)


def softplus_inverse(y: Tensor) -> Tensor:
    """The x with `softplus(x)` = y, for y > 0."""
    return y + torch.log(-torch.expm1(-y))


class _Sloped(Additive):
    """An additive encoding with one learned positive slope per head."""

    def __init__(self, sizes: Sizes, slopes: Sequence[float] | None = None):
        super().__init__(sizes)
        slopes = _positive(alibi_slopes(sizes.heads) if slopes is None else slopes, "slopes", sizes)
        self.raw_slope = nn.Parameter(softplus_inverse(slopes))

    @property
    def slope(self) -> Tensor:
        """The positive slopes $p_h$."""
        return softplus(self.raw_slope)


@register("lin")
class Lin(_Sloped):
    r"""$\phi_h(z)=-p_hz$, $z\ge0$: an exponential kernel with ratio $r=e^{-p}$ (equation f:lin)."""

    def log_weights(self, length: int) -> Tensor:
        return -self.slope[:, None] * self._lags(0, length)


@register("log")
class Log(_Sloped):
    r"""$\phi_h(z)=-p_h\log z$, $z\ge1$: a power law that does not see its own position (equation f:log)."""

    def __init__(self, sizes: Sizes, slopes: Sequence[float] | None = None):
        super().__init__(sizes, [1.0 + s for s in alibi_slopes(sizes.heads)] if slopes is None else slopes)

    def log_weights(self, length: int) -> Tensor:
        return F.pad(-self.slope[:, None] * self._lags(1, length).log(), (1, 0), value=-math.inf)


@register("alibi")
class Alibi(Additive):
    r"""$\phi_h(z)=-p_hz$ with slopes that are fixed, not learned: $p_h=2^{-8h/H}$ unless given (equation f:lin)."""

    def __init__(self, sizes: Sizes, slopes: Sequence[float] | None = None):
        super().__init__(sizes)
        slopes = _positive(alibi_slopes(sizes.heads) if slopes is None else slopes, "slopes", sizes)
        self.register_buffer("slope", slopes)

    def log_weights(self, length: int) -> Tensor:
        return -self.slope[:, None] * self._lags(0, length)


@register("kerple_log")
class KerpleLog(_Sloped):
    r"""$\phi_h(z)=-p_h\log(1+a_hz)$ with learned $p_h,a_h>0$ (equation f:kerple-log)."""

    def __init__(self, sizes: Sizes, slopes: Sequence[float] | None = None, scales: Sequence[float] | None = None):
        super().__init__(sizes, [1.0 + s for s in alibi_slopes(sizes.heads)] if slopes is None else slopes)
        scales = _positive([1.0] * sizes.heads if scales is None else scales, "scales", sizes)
        self.raw_scale = nn.Parameter(softplus_inverse(scales))

    def log_weights(self, length: int) -> Tensor:
        return -self.slope[:, None] * torch.log1p(softplus(self.raw_scale)[:, None] * self._lags(0, length))


@register("kerple_power")
class KerplePower(_Sloped):
    r"""$\phi_h(z)=-p_hz^{q_h}$ with learned $p_h>0$ and $0<q_h<2$ (equation f:kerple-power)."""

    def __init__(self, sizes: Sizes, slopes: Sequence[float] | None = None, powers: Sequence[float] | None = None):
        super().__init__(sizes, slopes)
        powers = _positive([1.0] * sizes.heads if powers is None else powers, "powers", sizes)
        if bool((powers >= 2).any()):
            raise ValueError(f"powers must lie strictly between 0 and 2, got {powers.tolist()}")
        self.raw_power = nn.Parameter(torch.logit(powers / 2))

    def log_weights(self, length: int) -> Tensor:
        power = 2 * torch.sigmoid(self.raw_power)
        return F.pad(-self.slope[:, None] * self._lags(1, length) ** power[:, None], (1, 0))


@register("t5")
class T5(Additive):
    r"""A learned bias per head and bucket of lags (equation f:t5-bucket).

    The first half of the buckets holds one lag each; the rest grow geometrically up to ``max_distance``, and all
    longer lags share the last bucket. The bucket edges are computed in integers, so that no rounding moves them.
    """

    def __init__(self, sizes: Sizes, buckets: int = 32, max_distance: int = 128, table: Tensor | None = None):
        super().__init__(sizes)
        buckets, max_distance = integer("buckets", buckets, 2), integer("max_distance", max_distance, 1)
        if max_distance <= buckets // 2:
            raise ValueError(
                f"max_distance must be an integer above buckets // 2 = {buckets // 2}, got {max_distance!r}"
            )
        self.buckets, self.max_distance = buckets, max_distance
        if table is None:
            table = torch.randn(sizes.heads, buckets, dtype=sizes.dtype, generator=sizes.generator) / math.sqrt(
                sizes.d_model
            )
        self.table = nn.Parameter(_numbers(table, "table (heads, buckets)", (sizes.heads, buckets), sizes))
        self.register_buffer("edges", torch.tensor(self._edges()), persistent=False)

    def _edges(self) -> list[int]:
        exact, wide = self.buckets // 2, self.buckets - self.buckets // 2
        edges = list(range(1, exact + 1))
        for k in range(1, wide):  # the least z with (z / exact)^wide >= (max_distance / exact)^k
            power = exact ** (wide - k) * self.max_distance**k
            low, high = exact, self.max_distance
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if middle**wide >= power else (middle + 1, high)
            edges.append(low)
        return edges

    def bucket(self, lags: Tensor) -> Tensor:
        """The bucket of each integer lag."""
        return torch.searchsorted(self.edges, lags, right=True)

    def log_weights(self, length: int) -> Tensor:
        return self.table[:, self.bucket(torch.arange(length))]


@register("rotary")
class Rotary(Multiplicative):
    r"""Rotate pair $f$ of queries and keys by $\omega_ft$, $\omega_f=\text{base}^{-2f/d}$ (equation f:rotary).

    Coordinates $f$ and $f+d/2$ make a pair, as in the released Llama models. The dot product of a rotated query and
    key depends on positions through the lag alone.
    """

    def __init__(self, sizes: Sizes, base: float = 10_000.0, frequencies: Sequence[float] | None = None):
        super().__init__(sizes)
        if sizes.d_head % 2:
            raise ValueError(f"rotary encoding needs an even d_head, got {sizes.d_head}")
        base = positive_number("base", base)
        pairs = sizes.d_head // 2
        if frequencies is None:
            frequencies = [base ** (-2 * f / sizes.d_head) for f in range(pairs)]
        self.register_buffer("frequencies", _numbers(frequencies, "frequencies", (pairs,), sizes))

    def rotate(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * self.frequencies
        first, second = x.chunk(2, dim=-1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@register("sinusoidal")
class Sinusoidal(Absolute):
    r"""Add $\sin(\omega_ft)$ and $\cos(\omega_ft)$ in coordinates $2f$ and $2f+1$ (equation f:sinusoidal)."""

    def __init__(self, sizes: Sizes, base: float = 10_000.0):
        super().__init__(sizes)
        self.base = positive_number("base", base)

    def positions(self, length: int) -> Tensor:
        d, dtype = self.sizes.d_model, self.sizes.dtype
        frequency = self.base ** (-torch.arange(0, d, 2, dtype=dtype) / d)
        angle = torch.arange(length, dtype=dtype)[:, None] * frequency
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :d]


@register("learned")
class Learned(Absolute):
    """Add a learned vector per position, up to ``max_length`` positions."""

    def __init__(self, sizes: Sizes):
        super().__init__(sizes)
        table = torch.randn(sizes.max_length, sizes.d_model, dtype=sizes.dtype, generator=sizes.generator)
        self.table = nn.Parameter(table / math.sqrt(sizes.d_model))

    def positions(self, length: int) -> Tensor:
        if length > len(self.table):
            raise ValueError(
                f"the learned encoding has {len(self.table)} positions; a sequence of {length} needs max_length raised"
            )
        return self.table[:length]


@register("none")
class NoEncoding(Encoding):
    """No position at all: every admissible token looks the same to the encoding."""
