r"""Look-ups followed one after another: what layers, heads and a curriculum do for training.

A token holds a value $v=\pm1$ and one of several symbols $k$. The output is the value found after $K$ look-ups, each of
which needs the token that the one before has found (chapter Adaptive, definition a:def-nested, with $M=K$ pointers):

* ``plain``: every token points onwards, relatively to itself: $t_j=t_{j-1}+p(x_{t-t_{j-1}})$ with $p=1+k$ in 1..4 and
  $t_0=0$. Two hops can be joined into one before anybody asks: doubling (remark a:rem-doubling).
* ``keyed``: the symbol found says where to look next, counted from the position that *asks*:
  $t_j=1+k(x_{t-t_{j-1}})$ in 1..8. The token at $t-t_1$ does not know from where it is asked, and the answer may lie
  after it, where it cannot look: doubling is impossible.
* ``summed``: $t_j=1+(k(x_t)+\dots+k(x_{t-t_{j-1}})\bmod8)$. As long as the sum stays below 8 this is
  $t_j=t_{j-1}+k$, plain chasing: half a doubling.

$K=0$ is the control: the value at lag 4, always. The pointer $t_1$ is affine in the token, so that the first layer of
Theorem a:thm-nested is not needed: $K$ layers suffice, for $K\ge1$. The chapter on adaptive memory draws the results in
*Depth and nesting*, from the table ``results/nested_lookups.csv``, made by

    python -m memlib.experiments nested_lookups --scale stored --store --out rows.jsonl
"""

import torch
from torch import Tensor
from torch.nn import functional as F

import memlib
from memlib.checks import explicit_generator, integer
from memlib.model import Transformer, TransformerConfig
from memlib.sweep import product
from memlib.targets import AdaptiveSparse, Finite
from memlib.train import fit

__all__ = [
    "ENCODINGS",
    "FIXED_LAG",
    "HEADS",
    "LAYERS",
    "LENGTH",
    "NESTINGS",
    "SEEDS",
    "SYMBOLS",
    "Lookups",
    "grid",
    "reading",
    "run",
    "trained",
]

SEEDS = range(3)
SYMBOLS = {"plain": 4, "keyed": 8, "summed": 8}
"""The tasks, and the number of symbols of each."""

ENCODINGS, NESTINGS, LAYERS, HEADS = ("rotary", "t5"), (0, 1, 2, 3), (1, 2, 3, 4), (1, 2, 4, 8)
FIXED_LAG, LENGTH, BATCH = 4, 24, 32


class Lookups(AdaptiveSparse):
    r"""The target: the value that ``nesting`` look-ups end at (chapter Adaptive, definition a:def-nested).

    Tokens are vectors: the value, then the symbol as an indicator, one coordinate for each symbol. Channels are drawn
    together, since exactly one coordinate of the symbol is 1.
    """

    def __init__(self, task: str, nesting: int):
        if task not in SYMBOLS:
            raise ValueError(f"unknown task {task!r}; allowed: {', '.join(SYMBOLS)}")
        nesting, symbols = integer("nesting", nesting, 0), SYMBOLS[task]
        self.task, self.symbols = task, symbols
        reach = [symbols * (j if task == "plain" else 1) for j in range(1, nesting + 1)] or [FIXED_LAG]
        super().__init__(
            lambda z: z[:, :, -1, :1],
            [self._pointer if nesting else self._fixed] * max(nesting, 1),
            reach,
            nesting,
            [Finite((-1.0, 1.0)), *[Finite((0.0, 1.0))] * symbols],
        )

    def _pointer(self, tokens: Tensor) -> Tensor:
        """The next lag, from the token that asks and all tokens read so far; the zero past has symbol 0."""
        symbol = tokens[..., 1:] @ torch.arange(self.symbols, dtype=torch.float64)
        if self.task == "plain":
            return (1 + symbol).sum(2)
        return 1 + (symbol[:, :, -1] if self.task == "keyed" else symbol.sum(2) % self.symbols)

    @staticmethod
    def _fixed(tokens: Tensor) -> Tensor:
        return torch.full(tokens.shape[:2], FIXED_LAG, dtype=torch.float64)

    def sample(self, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Independent tokens, value and symbol uniform, ``(batch, length, 1 + symbols)``, and the outputs."""
        shape = (integer("batch", batch, 1), integer("length", length, 1))
        explicit_generator("sample", generator)
        if length <= self.burn_in:
            raise ValueError(f"length must exceed the longest lag, {self.burn_in}, got {length}")
        value = self.inputs[0].draw(shape, generator)
        symbol = torch.randint(self.symbols, shape, generator=generator)
        x = torch.cat([value[..., None], F.one_hot(symbol, self.symbols).to(value.dtype)], dim=-1)
        return x, self(x)


def trained(*, task: str, nesting: int, layers: int, encoding: str, seed: int, heads: int = 1, d_model: int = 32,
            width: int = 64, steps: int = 1800, lr: float = 3e-3,
            curriculum: bool = False) -> tuple[Transformer, Lookups]:  # fmt: skip
    r"""A trained model and its target.

    The model is that of the theory, without norms, with dot product and softmax. With ``curriculum`` it grows layer by
    layer: stage $k=1,\dots,K$ trains on $k$ look-ups, the layers above the $k$-th are silent until the stage at which
    they join (the last stage has all), and the stages share the steps equally.
    """
    target = Lookups(task, nesting)
    config = TransformerConfig(d_in=target.d_in, d_model=d_model, layers=layers, heads=heads, width=width,
                               encoding=encoding)  # fmt: skip
    model = Transformer(config, memlib.reproducible(seed))
    options = {"lr": lr, "batch": BATCH, "length": LENGTH, "generator": memlib.reproducible(100 + seed)}
    if not curriculum or nesting < 2:
        fit(model, target, steps=steps, **options)
        return model, target
    silent = {layer: [part.out.weight.detach().clone() for part in _parts(layer)] for layer in model.layers}
    for layer in silent:
        layer.requires_grad_(False)
        for part in _parts(layer):
            part.out.weight.zero_()
    for stage in range(1, nesting + 1):
        for layer in model.layers[: layers if stage == nesting else stage]:
            for part, weight in zip(_parts(layer), silent.pop(layer, ()), strict=False):
                part.out.weight.copy_(weight)
            layer.requires_grad_(True)
        fit(model, Lookups(task, stage), steps=max(steps // nesting, 1), **options)
    return model, target


def _parts(layer):
    """The two maps through which a layer speaks to the residual stream."""
    return (layer.attention, layer.ffn) if layer.ffn is not None else (layer.attention,)


def run(*, task: str, nesting: int, layers: int, encoding: str, seed: int, heads: int = 1, d_model: int = 32,
        width: int = 64, steps: int = 1800, lr: float = 3e-3, curriculum: bool = False) -> dict:  # fmt: skip
    """Train one model (see `trained`) and measure it on fresh sequences.

    ``error`` is the mean square error as a share of the variance of $y$: 1 is a constant guess, 0 is perfect. ``wrong``
    is the share of positions at which the sign is wrong, ``parameters`` the number of weights.
    """
    model, target = trained(task=task, nesting=nesting, layers=layers, encoding=encoding, seed=seed, heads=heads,
                            d_model=d_model, width=width, steps=steps, lr=lr, curriculum=curriculum)  # fmt: skip
    x, y = target.sample(256, LENGTH, memlib.reproducible(1000))
    with torch.no_grad():
        guess, y = model(x)[:, target.burn_in :], y[:, target.burn_in :]
    return {
        "error": ((guess - y).square().mean() / y.var(correction=0)).item(),
        "wrong": ((guess > 0) != (y > 0)).double().mean().item(),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def reading(model: Transformer, target: AdaptiveSparse, x: Tensor) -> Tensor:
    r"""How much each layer reads each pointer's token: the mean attention weight at lag $t_j$, ``(layers, pointers)``.

    The mean is over sequences, and over positions from ``burn_in`` on; of several heads the largest weight counts.
    """
    source = torch.arange(x.shape[1])[:, None] - target.lags(x)  # (batch, length, pointers)
    source = source[:, target.burn_in :]
    rows = []
    for weights in model.attention_maps(x):
        largest = weights.amax(1)[:, target.burn_in :]
        rows.append(torch.take_along_dim(largest, source, dim=-1).mean((0, 1)))
    return torch.stack(rows)


_COMMON = {"heads": [1], "d_model": [32], "width": [64], "steps": [1800], "lr": [3e-3], "curriculum": [False]}
_WIDE = {"d_model": [64], "width": [256], "steps": [2500], "lr": [3e-3], "curriculum": [False]}


def grid(scale: str) -> list[dict]:
    """``book``: points of the stored table that are run live; ``stored``: the table; ``large``: longer, more seeds.

    The parts of the table: one head per layer, direct training, for all $K$ and $L$; $K=3$ grown layer by layer, and
    trained directly three times as long; two look-ups with sums; two look-ups with 1 to 8 heads in a wider model.
    """
    grown = {**_COMMON, "steps": [2700], "curriculum": [True]}
    if scale == "book":
        live = [("keyed", 1, 1, "t5", _COMMON), ("keyed", 2, 1, "rotary", _COMMON), ("keyed", 2, 2, "rotary", _COMMON),
                ("plain", 3, 2, "rotary", _COMMON), ("keyed", 3, 2, "rotary", _COMMON),
                ("keyed", 3, 3, "rotary", grown)]  # fmt: skip
        return [
            point
            for task, nesting, layers, encoding, rest in live
            for point in _points([task], [nesting], [layers], [encoding], [0], **rest)
        ]
    if scale == "stored":
        points = []
        for seed in SEEDS:
            for encoding in ENCODINGS:
                points += _points(["plain", "keyed"], NESTINGS, LAYERS, [encoding], [seed], **_COMMON)
                if encoding == "rotary":
                    points += _points(["plain", "keyed"], [3], LAYERS, [encoding], [seed], **grown)
                    points += _points(["plain", "keyed"], [2], [1], [encoding], [seed], heads=HEADS, **_WIDE)
                    points += _points(["summed"], [2], [1, 2, 3], [encoding], [seed], **_COMMON)
        for seed in SEEDS:
            points += _points(["keyed"], [2], [1, 2], ["t5"], [seed], heads=HEADS, **_WIDE)
            points += _points(["plain"], [2], [1, 2], ["t5"], [seed], heads=[1, 8], **_WIDE)
            points += _points(["keyed"], [2], [2], ["rotary"], [seed], heads=[1, 8], **_WIDE)
            points += _points(["keyed"], [3], [3], ["rotary"], [seed], **{**_COMMON, "steps": [5400]})
        return points
    seeds, longer = range(10), {**_COMMON, "steps": [20_000], "lr": [1e-3, 3e-3]}
    points = _points(["plain", "keyed", "summed"], NESTINGS, LAYERS, ENCODINGS, seeds, **longer)
    points += _points(["plain", "keyed"], [2, 3], LAYERS, ENCODINGS, seeds, **{**longer, "curriculum": [True]})
    wide = {**_WIDE, "steps": [20_000], "width": [64, 256, 1024]}
    return points + _points(["plain", "keyed"], [1, 2, 3], LAYERS, ENCODINGS, seeds, heads=HEADS, **wide)


def _points(tasks, nestings, layers, encodings, seeds, **rest) -> list[dict]:
    return product(task=tasks, nesting=nestings, layers=layers, encoding=encodings, heads=rest.pop("heads"), **rest,
                   seed=seeds)  # fmt: skip
