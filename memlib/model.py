r"""The Transformer of the theory and its variants in one class (chapter Foundations, "The architecture as formulas").

$X^{(0)}=W_EX+b_E$, then layer by layer $X^{(l-1/2)}=X^{(l-1)}+\mathrm{Attn}^{(l)}(X^{(l-1)})$ and
$X^{(l)}=X^{(l-1/2)}+\mathrm{FFN}^{(l)}(X^{(l-1/2)})$.

The same class holds weights that a proof writes down and weights that gradient descent finds.
"""

import json
import math
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.nn import functional as F

from memlib import encodings
from memlib.checks import integer
from memlib.kernels import lag_attention, normalise, sees_itself, toeplitz

__all__ = ["VALID_COMBINATIONS", "Attention", "FeedForward", "Layer", "Transformer", "TransformerConfig"]

_ALL = ("softmax", "sink", "none")
VALID_COMBINATIONS = [
    {
        "attention": "dp",
        "encodings": ("additive", "multiplicative", "absolute", "none"),
        "normalisers": _ALL,
        "meaning": "logit = query · key, plus the additive bias of the lag",
    },
    {
        "attention": "dp_free",
        "encodings": ("additive", "none"),
        "normalisers": _ALL,
        "meaning": "logit = bias of the lag alone: a convolution",
    },
    {
        "attention": "tmx",
        "encodings": ("additive", "none"),
        "normalisers": ("sink", "none"),
        "meaning": "logit = w · query token, plus the bias of the lag; softmax would cancel the first term",
    },
    {
        "attention": "linear",
        "encodings": ("additive", "absolute", "none"),
        "normalisers": _ALL,
        "meaning": "weight = f(query) · f(key) · exp(bias of the lag), with f = 1 + elu",
    },
]
_CHOICES = {
    "attention": tuple(row["attention"] for row in VALID_COMBINATIONS),
    "normaliser": _ALL,
    "norm": ("none", "pre", "post"),
    "norm_kind": ("layer", "rms"),
    "dtype": ("float64", "float32"),
}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The sizes and parts of a `Transformer`. Impossible values and meaningless combinations raise `ValueError`.

    Attributes:
        d_in: dimension of a token (or, for integer tokens, the size of the alphabet).
        d_out: dimension of the output.
        d_model: dimension $D$ of the residual stream.
        layers: number $L$ of layers.
        heads: number $H$ of heads per layer.
        width: number $m$ of neurons per FFN; 0 means a layer without FFN.
        encoding: name of a positional encoding; `encodings.names()` lists them.
        encoding_params: keyword parameters of that encoding.
        attention: ``dp`` (dot product), ``dp_free``, ``tmx`` or ``linear``.
        normaliser: ``softmax``, ``sink`` (an extra key of logit 0 and value 0) or ``none`` (plain exponentials).
        norm: normalisation layers: ``none`` as in the theory, ``pre`` or ``post``.
        norm_kind: ``layer`` or ``rms``.
        d_head: dimension of a head; ``d_model // heads`` unless given.
        max_length: longest sequence; only the ``learned`` encoding needs it.
        dtype: ``float64`` or ``float32``.
    """

    d_in: int = 1
    d_out: int = 1
    d_model: int = 16
    layers: int = 1
    heads: int = 1
    width: int = 32
    encoding: str = "lin"
    encoding_params: dict = field(default_factory=dict, hash=False)
    attention: str = "dp"
    normaliser: str = "softmax"
    norm: str = "none"
    norm_kind: str = "layer"
    d_head: int | None = None
    max_length: int = 1024
    dtype: str = "float64"

    def __new__(cls, **values):
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(f"unknown configuration keys {', '.join(unknown)}; known: {', '.join(known)}")
        return super().__new__(cls)

    def __post_init__(self):
        for name in ("d_in", "d_out", "d_model", "layers", "heads", "max_length"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1))
        object.__setattr__(self, "width", integer("width", self.width, 0))
        object.__setattr__(self, "encoding_params", _plain_params(self.encoding, self.encoding_params))
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}; allowed: {', '.join(allowed)}")
        kind = encodings.kind(self.encoding)
        row = next(row for row in VALID_COMBINATIONS if row["attention"] == self.attention)
        if kind not in row["encodings"]:
            raise ValueError(
                f"attention {self.attention!r} has no meaning with the {kind} encoding {self.encoding!r}: "
                f"{row['meaning']}; allowed kinds of encoding: {', '.join(row['encodings'])}"
            )
        if self.normaliser not in row["normalisers"]:
            raise ValueError(
                f"attention {self.attention!r} has no meaning with normaliser {self.normaliser!r}: "
                f"{row['meaning']}; allowed normalisers: {', '.join(row['normalisers'])}"
            )
        if self.d_head is None:
            if self.d_model % self.heads:
                raise ValueError(
                    f"heads must divide d_model unless d_head is given: d_model={self.d_model}, heads={self.heads}"
                )
            object.__setattr__(self, "d_head", self.d_model // self.heads)
        object.__setattr__(self, "d_head", integer("d_head", self.d_head, 1))
        self.make_encoding(torch.Generator())  # raises on parameters the encoding does not have

    def make_encoding(self, generator: torch.Generator | None = None) -> encodings.Encoding:
        """The positional encoding this configuration names."""
        return encodings.make(self.encoding, heads=self.heads, d_head=self.d_head, d_model=self.d_model,
                              max_length=self.max_length, dtype=getattr(torch, self.dtype), generator=generator,
                              **self.encoding_params)  # fmt: skip


def _plain_params(encoding: str, params: dict) -> dict:
    """A copy of an encoding's parameters in plain numbers and lists, which can be compared, written and read back."""
    if not isinstance(params, dict):
        raise ValueError(f"encoding_params must be a dictionary of parameter names and values, got {params!r}")
    allowed = encodings.parameters(encoding)
    unknown = ", ".join(sorted(map(str, set(params) - set(allowed))))
    if unknown:
        raise ValueError(f"encoding {encoding!r} has no parameter {unknown}; it has: {', '.join(allowed) or 'none'}")

    def plain(value):
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return value.tolist() if hasattr(value, "tolist") else value

    return {name: plain(value) for name, value in params.items()}


def _linear(d_in: int, d_out: int, bias: bool, dtype: torch.dtype, generator: torch.Generator | None) -> nn.Linear:
    """A linear map with independent normal weights of variance 1 / d_in and zero bias."""
    layer = nn.utils.skip_init(nn.Linear, d_in, d_out, bias=bias, dtype=dtype)
    with torch.no_grad():
        layer.weight.normal_(std=1 / math.sqrt(d_in), generator=generator)
        if bias:
            layer.bias.zero_()
    return layer


class FeedForward(nn.Module):
    r"""Two-layer ReLU network, $\mathrm{FFN}(x)=W_2\,\sigma(W_1x+c)$ with $m$ neurons (equation f:ffn)."""

    def __init__(self, d_in: int, width: int, d_out: int | None = None, *, dtype: torch.dtype = torch.float64,
                 generator: torch.Generator | None = None):  # fmt: skip
        super().__init__()
        for name, value in (("d_in", d_in), ("width", width), ("d_out", d_in if d_out is None else d_out)):
            integer(name, value, 1)
        self.hidden = _linear(d_in, width, True, dtype, generator)
        self.out = _linear(width, d_in if d_out is None else d_out, False, dtype, generator)
        with torch.no_grad():
            self.hidden.bias.normal_(std=1 / math.sqrt(d_in), generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.hidden(x)))


class Attention(nn.Module):
    r"""$H$ causal heads, $\mathrm{Attn}(X)_t=\sum_hW_O^h\sum_{s\le t}A^h_{t,s}W_V^hx_s$ (equation f:attention)."""

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config = config
        self.kind = encodings.kind(config.encoding)
        self.encoding = config.make_encoding(generator) if self.kind in ("additive", "multiplicative") else None
        d, inner, dtype = config.d_model, config.heads * config.d_head, getattr(torch, config.dtype)
        self.value = _linear(d, inner, False, dtype, generator)
        self.out = _linear(inner, d, False, dtype, generator)
        if config.attention in ("dp", "linear"):
            self.query = _linear(d, inner, False, dtype, generator)
            self.key = _linear(d, inner, False, dtype, generator)
            with torch.no_grad():  # the usual factor 1 / sqrt(d_head) lives in the initial query map
                self.query.weight /= math.sqrt(config.d_head)
        if config.attention == "tmx":
            self.query = _linear(d, config.heads, False, dtype, generator)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.config.heads, -1)).transpose(1, 2)

    def _lag_logits(self, length: int) -> Tensor:
        """The additive bias by lag; zero without an additive encoding. Shape ``(heads, length)``."""
        if self.kind == "additive":
            return self.encoding.log_weights(length)
        return torch.zeros(self.config.heads, length, dtype=self.value.weight.dtype)

    def weights(self, x: Tensor) -> Tensor:
        """The attention weights $A^h_{t,s}$ as a matrix, shape ``(batch, heads, length, length)``."""
        by_lag = self._lag_logits(x.shape[1])
        logits = toeplitz(by_lag).expand(len(x), -1, -1, -1)
        if self.config.attention == "tmx":
            logits = logits + self.query(x).transpose(1, 2)[..., None]
        if self.config.attention in ("dp", "linear"):
            query, key = self._split(self.query(x)), self._split(self.key(x))
            if self.kind == "multiplicative":
                query, key = self.encoding.rotate(query), self.encoding.rotate(key)
            if self.config.attention == "linear":
                query, key = F.elu(query) + 1, F.elu(key) + 1
            products = query @ key.transpose(-1, -2)
            logits = logits + (products.log() if self.config.attention == "linear" else products)
        return normalise(logits, self.config.normaliser, sees_itself(by_lag))

    def forward(self, x: Tensor) -> Tensor:
        values = self._split(self.value(x))
        if self.config.attention in ("dp_free", "tmx"):
            query = self.query(x).transpose(1, 2) if self.config.attention == "tmx" else None
            mixed = lag_attention(self._lag_logits(x.shape[1]), values, self.config.normaliser, query)
        else:
            mixed = self.weights(x) @ values
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """One attention and one FFN, each added to the residual stream; norms where the configuration puts them."""

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.placement = config.norm
        self.attention = Attention(config, generator)
        dtype = getattr(torch, config.dtype)
        self.ffn = FeedForward(config.d_model, config.width, dtype=dtype, generator=generator) if config.width else None
        self.norms = nn.ModuleList([_norm(config), _norm(config)])

    def forward(self, x: Tensor) -> Tensor:
        for part, norm in zip((self.attention, self.ffn), self.norms, strict=True):
            if part is None:
                continue
            if self.placement == "post":
                x = norm(x + part(x))
            else:  # "pre", or no norm at all
                x = x + part(norm(x))
        return x


def _norm(config: TransformerConfig) -> nn.Module:
    if config.norm == "none":
        return nn.Identity()
    kind = nn.LayerNorm if config.norm_kind == "layer" else nn.RMSNorm
    return kind(config.d_model, eps=1e-6, dtype=getattr(torch, config.dtype))


class Transformer(nn.Module):
    """Embedding, layers, read-out. Tokens are vectors ``(batch, length, d_in)`` or integers ``(batch, length)``.

    The past before the first token is zero; every position sees itself and what came before, as its encoding allows.
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config = config
        dtype = getattr(torch, config.dtype)
        self.embed = _linear(config.d_in, config.d_model, True, dtype, generator)
        self.position = config.make_encoding(generator) if encodings.kind(config.encoding) == "absolute" else None
        self.layers = nn.ModuleList(Layer(config, generator) for _ in range(config.layers))
        self.final_norm = _norm(config) if config.norm == "pre" else nn.Identity()
        self.readout = _linear(config.d_model, config.d_out, True, dtype, generator)

    def residual_stream(self, x: Tensor) -> list[Tensor]:
        """The states $X^{(0)},\\dots,X^{(L)}$, each of shape ``(batch, length, d_model)``."""
        state = self.embed(self._check(x))
        if self.position is not None:
            state = state + self.position.positions(state.shape[1])
        states = [state]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return states

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.final_norm(self.residual_stream(x)[-1]))

    def attention_maps(self, x: Tensor) -> list[Tensor]:
        """The attention weights of every layer, each ``(batch, heads, length, length)``."""
        maps = []
        with torch.no_grad():
            for layer, state in zip(self.layers, self.residual_stream(x), strict=False):
                maps.append(layer.attention.weights(layer.norms[0](state) if layer.placement == "pre" else state))
        return maps

    def _check(self, x: Tensor) -> Tensor:
        c = self.config
        if not isinstance(x, Tensor):
            raise TypeError(f"input must be a torch tensor, got {type(x).__name__}")
        if x.dtype in (torch.int64, torch.int32):
            if x.ndim != 2 or x.shape[1] < 1:
                raise ValueError(f"integer tokens must have shape (batch, length), got {tuple(x.shape)}")
            if x.numel() and (int(x.min()) < 0 or int(x.max()) >= c.d_in):
                raise ValueError(f"integer tokens must lie in 0..{c.d_in - 1}, got {int(x.min())}..{int(x.max())}")
            return F.one_hot(x.long(), c.d_in).to(getattr(torch, c.dtype))
        if x.dtype != getattr(torch, c.dtype):
            raise TypeError(f"input must be {c.dtype} (or int64 tokens), got {str(x.dtype).removeprefix('torch.')}")
        if x.ndim != 3 or x.shape[1] < 1 or x.shape[2] != c.d_in:
            raise ValueError(f"input must have shape (batch, length, d_in={c.d_in}), got {tuple(x.shape)}")
        if not bool(torch.isfinite(x).all()):
            raise ValueError("input must be finite, got NaN or infinity")
        return x

    def save(self, path: str | os.PathLike) -> None:
        """Write configuration and weights to one file (safetensors, no pickle); it appears whole or not at all."""
        path = Path(path)
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        config = json.dumps(asdict(self.config))
        part = path.with_name(path.name + ".part")
        part.write_bytes(to_bytes(tensors, metadata={"config": config}))
        os.replace(part, path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Transformer":
        """Read a model written by `save`."""
        try:
            with safe_open(path, framework="pt") as file:
                config = (file.metadata() or {}).get("config")
                state = {name: file.get_tensor(name) for name in file.keys()}
        except SafetensorError as error:
            raise ValueError(f"{path} is not a complete model file written by Transformer.save: {error}") from error
        if config is None:
            raise ValueError(f"{path} holds tensors but no configuration: it was not written by Transformer.save")
        model = cls(TransformerConfig(**json.loads(config)))
        model.load_state_dict(state)
        return model
