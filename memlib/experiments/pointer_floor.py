r"""Reading the lag that the token names, with and without dot product: what gradient descent finds (Theorem 8).

A token is a real value and a symbol, the symbol as a unit vector; the target is $y_t=\text{value}_{t-g}$ where the
symbol at $t$ is the $g$-th of $T$. One layer. Without FFN (``width=0``) and dot product it is affine, so its expected
loss and its worst error over all inputs need no samples; values are uniform on $[-1,1]$, and no such layer has a worst
error below 1 (a:thm-attention-alone). With FFN values are uniform on $[0,1]$, and with fewer than $T$ DP-free heads two
inputs with equal states show an error of at least $\frac12$ (a:thm-channels). The chapter on adaptive memory draws the
results in *Why the dot product*.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

import memlib
from memlib.bounds import Floor, dp_free_floor
from memlib.checks import integer
from memlib.model import Transformer, TransformerConfig
from memlib.sweep import product
from memlib.targets import AdaptiveSparse, Finite, Interval
from memlib.train import fit, relative_error

__all__ = [
    "OBJECTIVES",
    "SEEDS",
    "NamedLag",
    "affine_parts",
    "alone_loss",
    "alone_worst",
    "grid",
    "kernels",
    "layer",
    "least_mean_square",
    "run",
    "trained_layer",
    "with_unit_vectors",
    "witness",
]

SEEDS = range(5)
LENGTH = 12


class NamedLag(AdaptiveSparse):
    r"""$y_t=\text{value}_{t-g}$; a token is (value, unit vector $e_g$ of $T$ coordinates) (equation a:warmup)."""

    def __init__(self, reach: int, values: Interval | Finite):
        reach = integer("reach", reach, 1)
        channels = [values, *([Finite((0.0, 1.0))] * reach)]
        super().__init__(lambda z: z[:, :, 1, :1], [_named], [reach], 0, channels)

    def sample(self, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Independent values and symbols; of the symbol's channels one is 1."""
        x, _ = super().sample(batch, length, generator)  # checks, and draws the values
        symbol = torch.randint(self.reach[0], x.shape[:2], generator=generator)
        x[..., 1:] = F.one_hot(symbol, self.reach[0])
        return x, self(x)


def _named(tokens: Tensor) -> Tensor:
    return (tokens[:, :, 0, 1:].argmax(-1) + 1).double()


def with_unit_vectors(tokens: Tensor, reach: int) -> Tensor:
    """Tokens (value, $g$) as tokens (value, $e_g$)."""
    return torch.cat([tokens[..., :1], F.one_hot(tokens[..., 1].long() - 1, reach).double()], dim=-1)


def layer(reach: int, heads: int, width: int, encoding: str, attention: str, seed: int) -> Transformer:
    """One layer of model width 16; heads have one coordinate, with dot product sixteen."""
    config = TransformerConfig(d_in=reach + 1, d_model=16, heads=heads, d_head=16 if attention == "dp" else 1,
                               width=width, encoding=encoding, attention=attention)  # fmt: skip
    return Transformer(config, memlib.reproducible(seed))


# ---------------------------------------------------------------- attention alone


def affine_parts(model: Transformer, length: int = LENGTH) -> tuple[Tensor, Tensor, Tensor]:
    r"""A DP-free layer without FFN at its last position: constant, kernel $k$ of the values, and of the symbols.

    The output is $c+\sum_sk_s\text{value}_{t-s}+\sum_sM_{s,g_{t-s}}$; shapes ``()``, ``(length,)``, ``(length, T)``,
    by lag. Read off by single impulses.
    """
    if model.config.width or model.config.attention != "dp_free":
        raise ValueError("only a DP-free layer without FFN is affine: attention must be dp_free, width 0")
    channels = model.config.d_in
    x = torch.zeros(1 + length * channels, length, channels, dtype=torch.float64)
    for s in range(length):
        for c in range(channels):
            x[1 + s * channels + c, length - 1 - s, c] = 1.0
    out = model(x)[:, -1, 0]
    parts = (out[1:] - out[0]).reshape(length, channels)
    return out[0], parts[:, 0], parts[:, 1:]


def _by_pointer(kernel: Tensor, reach: int) -> Tensor:
    r"""$\delta_g-k$ for $g=1..T$, shape ``(reach, length)``."""
    return torch.eye(len(kernel), dtype=torch.float64)[1 : reach + 1] - kernel


def alone_loss(model: Transformer, reach: int, length: int = LENGTH) -> Tensor:
    r"""The expected square error for values uniform on $[-1,1]$: $\frac13\,\mathrm{mean}_g\|\delta_g-k\|_2^2$, and what
    constant and symbols add."""
    constant, kernel, symbols = affine_parts(model, length)
    drift = constant + symbols.mean(1).sum()
    return _by_pointer(kernel, reach).square().sum(1).mean() / 3 + drift**2 + symbols.var(1, correction=0).sum()


def alone_worst(model: Transformer, reach: int, length: int = LENGTH) -> Tensor:
    r"""The largest error over all values in $[-1,1]$ and all symbols: $\max_g\|\delta_g-k\|_1+|\text{rest}|$."""
    constant, kernel, symbols = affine_parts(model, length)
    high = constant + symbols[0] + symbols[1:].amax(1).sum()
    low = constant + symbols[0] + symbols[1:].amin(1).sum()
    return (_by_pointer(kernel, reach).abs().sum(1) + torch.maximum(high, -low)).max()


def least_mean_square(reach: int) -> float:
    r"""$1-\frac1T$: the least expected square error of any affine layer, as a share of the variance.

    For independent values and a uniform pointer, $\mathrm{mean}_g\|\delta_g-k\|_2^2$ is least at $k_s=\frac1T$ on
    $1..T$: the average of all that may be asked for.
    """
    return 1 - 1 / integer("reach", reach, 1)


# ---------------------------------------------------------------- with FFN


@torch.no_grad()
def kernels(model: Transformer, length: int) -> Tensor:
    """The weights that the heads of a DP-free layer give to lags ``0..length-1`` at position ``length - 1``."""
    if model.config.attention != "dp_free":
        raise ValueError(f"only DP-free heads have kernels that no input changes, got {model.config.attention!r}")
    x = torch.zeros(1, length, model.config.d_in, dtype=torch.float64)
    return model.attention_maps(x)[0][0, :, -1].flip(-1)


@torch.no_grad()
def witness(model: Transformer, reach: int, length: int = LENGTH) -> tuple[Floor, Tensor]:
    """The floor of a DP-free layer with its two witnesses, and what the layer answers to them."""
    floor = dp_free_floor(reach, model.config.heads, model.config.d_model, kernels=kernels(model, length))
    if floor.witnesses is None:
        return floor, torch.zeros(0, dtype=torch.float64)
    return floor, model(with_unit_vectors(floor.tokens(), reach))[:, -1, 0]


# ---------------------------------------------------------------- the experiment


OBJECTIVES = {"square": alone_loss, "worst": alone_worst}
"""What a layer without FFN is trained on: its expected square error, or its largest error over all inputs."""


def run(*, reach: int, heads: int, width: int, attention: str, encoding: str, seed: int, steps: int = 800,
        lr: float = 0.02, objective: str = "square") -> dict:  # fmt: skip
    r"""Train one layer.

    ``error`` is the mean square error as a share of the variance: 1 is a constant guess. ``worst`` is, without FFN, the
    largest error over all inputs; with FFN, for too few DP-free heads, the larger error on the two witnesses, else the
    largest on fresh sequences. ``state_difference`` is that of the witnesses' states, 0 where there are none.
    ``objective`` is one of `OBJECTIVES`; layers with FFN are trained on samples and square errors only.
    """
    model = trained_layer(reach=reach, heads=heads, width=width, attention=attention, encoding=encoding, seed=seed,
                          steps=steps, lr=lr, objective=objective)  # fmt: skip
    if not width and attention == "dp_free":
        with torch.no_grad():
            error, worst = 3 * alone_loss(model, reach).item(), alone_worst(model, reach).item()
        return {"error": error, "worst": worst, "state_difference": 0.0}
    target = NamedLag(reach, Interval(0.0, 1.0))
    error = relative_error(model, target, batch=512, length=LENGTH, generator=memlib.reproducible(1000))
    if attention == "dp_free" and heads < reach:
        floor, answers = witness(model, reach)
        worst = max(abs(float(a - y)) for a, y in zip(answers, floor.targets, strict=True))
        return {"error": error, "worst": worst, "state_difference": floor.state_difference}
    x, y = target.sample(512, LENGTH, memlib.reproducible(1000))
    with torch.no_grad():
        worst = float((model(x) - y)[:, target.burn_in :].abs().max())
    return {"error": error, "worst": worst, "state_difference": 0.0}


def trained_layer(*, reach: int, heads: int, width: int, attention: str, encoding: str, seed: int, steps: int = 800,
                  lr: float = 0.02, objective: str = "square") -> Transformer:  # fmt: skip
    """The layer that `run` trains and measures."""
    if objective not in OBJECTIVES:
        raise ValueError(f"unknown objective {objective!r}; allowed: {', '.join(OBJECTIVES)}")
    model = layer(reach, heads, width, encoding, attention, seed)
    generator = memlib.reproducible(100 + seed)
    if not width and attention == "dp_free":

        def loss(model: Transformer, generator: torch.Generator) -> Tensor:
            return OBJECTIVES[objective](model, reach)

        fit(model, loss, steps=steps, lr=lr, generator=generator)
    elif objective != "square":
        raise ValueError("the worst error is known exactly for a DP-free layer without FFN only; train on square")
    else:
        target = NamedLag(reach, Interval(0.0, 1.0))
        fit(model, target, steps=steps, lr=lr, batch=32, length=LENGTH, generator=generator)
    return model


def grid(scale: str) -> list[dict]:
    """``book``: reaches 2 and 4; ``large``: reaches up to 8, more seeds, longer training."""
    book = scale == "book"
    seeds, more = (SEEDS, {}) if book else (range(10), {"steps": [4000]})
    points = product(reach=[4], heads=[4], width=[0], attention=["dp_free"], encoding=["lin", "log", "t5"], seed=seeds,
                     objective=["square", "worst"], steps=[300 if book else 4000])  # fmt: skip
    for reach in (2, 4) if book else (2, 3, 4, 6, 8):
        points += product(reach=[reach], heads=range(1, reach + 2), width=[32], attention=["dp_free"],
                          encoding=["t5"], seed=seeds, **more)  # fmt: skip
    points += product(reach=[4] if book else [4, 8], heads=[1], width=[32], attention=["dp"],
                      encoding=["rotary", "t5"], seed=seeds, **({"steps": [400]} if book else more))  # fmt: skip
    return points
