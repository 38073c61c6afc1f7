r"""Copying a real number of a fixed age with one DP-free layer: what gradient descent finds.

The target is $y_t=x_{t-T}$ with independent $x_t$, uniform on $[-1,1]$. A layer without dot product, normaliser and
FFN answers an impulse with its kernel $k(s)=\rho\,\delta_0(s)+\sum_hc_hw_h(s)$, so its expected loss needs no samples:
it is $\frac13\lVert\delta_T-k\rVert_2^2$ plus the square of its constant (equation f:population-loss). Its worst error
over all inputs is $\lVert\delta_T-k\rVert_1$ plus the constant. The chapter on fixed sparse memory sets both beside the
best possible sums and the floor of Theorem x:thm-layer in *Trained*.
"""

import torch
from torch import Tensor

import memlib
from memlib.model import Transformer, TransformerConfig
from memlib.sweep import product
from memlib.train import fit

__all__ = ["HEADS", "LAG", "LENGTH", "SEEDS", "coefficients", "grid", "impulse_response", "layer", "run"]

SEEDS = range(5)
LAG, LENGTH = 4, 64
HEADS = (1, 2, 3, 4, 8)
RANGES = {"lin": (0.03, 3.0), "log": (0.5, 6.0)}


def layer(encoding: str, heads: int, seed: int) -> Transformer:
    """A DP-free layer without FFN and normaliser; the slopes of its heads are drawn at random, log-uniformly."""
    if encoding not in RANGES:
        raise ValueError(f"unknown encoding {encoding!r} for this experiment; allowed: {', '.join(RANGES)}")
    generator = memlib.reproducible(seed)
    low, high = RANGES[encoding]
    slopes = low * (high / low) ** torch.rand(heads, dtype=torch.float64, generator=generator)
    config = TransformerConfig(d_model=8, d_head=1, heads=heads, width=0, encoding=encoding, attention="dp_free",
                               normaliser="none", encoding_params={"slopes": slopes.tolist()})  # fmt: skip
    return Transformer(config, generator)


def impulse_response(model: Transformer, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """The kernel of a linear model by lag, and its constant at every position: what it answers to no input at all."""
    x = torch.zeros(2, length, 1, dtype=torch.float64)
    x[0, 0] = 1.0
    impulse, constant = model(x)[..., 0]
    return impulse - constant, constant


@torch.no_grad()
def coefficients(model: Transformer) -> tuple[Tensor, float]:
    """The $c_h$ of the heads, and the coefficient of the residual connection, from the weights of a `layer`."""
    attention = model.layers[0].attention
    value = attention.value.weight @ model.embed.weight[:, 0]
    out = model.readout.weight[0] @ attention.out.weight
    return out * value, float(model.readout.weight[0] @ model.embed.weight[:, 0])


def run(*, encoding: str, heads: int, lag: int, seed: int, steps: int = 500, lr: float = 0.03,
        length: int = LENGTH) -> dict:  # fmt: skip
    r"""Train a layer on its exact expected loss.

    ``l2`` and ``l1`` are norms of $\delta_T-k$ on the window, ``weight`` is $\sum_h|c_h|$; ``rates``, ``coefficients``
    and ``residual`` are the sum that was found.
    """
    model = layer(encoding, heads, seed)
    delta = torch.zeros(length, dtype=torch.float64)
    delta[lag] = 1.0

    def loss(model: Transformer, generator: torch.Generator) -> Tensor:
        kernel, constant = impulse_response(model, length)
        return (delta - kernel).square().sum() / 3 + constant.square().mean()

    fit(model, loss, steps=steps, lr=lr, generator=memlib.reproducible(100 + seed))
    with torch.no_grad():
        kernel, constant = impulse_response(model, length)
        found, residual = coefficients(model)
    return {
        "l2": (delta - kernel).norm().item(),
        "l1": (delta - kernel).abs().sum().item(),
        "constant": constant.abs().max().item(),
        "weight": found.abs().sum().item(),
        "rates": model.layers[0].attention.encoding.slope.tolist(),
        "coefficients": found.tolist(),
        "residual": residual,
    }


def grid(scale: str) -> list[dict]:
    """``book``: lag 4 and up to eight heads; ``large``: more lags, up to three times as many heads, longer training."""
    if scale == "book":
        return product(encoding=["lin", "log"], heads=HEADS, lag=[LAG], seed=SEEDS)
    points = []
    for lag in (2, 3, 4, 6, 8):
        points += product(encoding=["lin", "log"], heads=range(1, 3 * lag + 1), lag=[lag], seed=range(10),
                          steps=[20_000], lr=[0.01, 0.03])  # fmt: skip
    return points
