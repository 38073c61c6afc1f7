r"""Nonlinear read-outs of several memories learned by one layer: error against heads and width.

The target is $y_t=f((X*\rho_1)(t),(X*\rho_2)(t))$ with a light kernel, $\operatorname{sech}(s/4)$, and a heavy one,
$(1+s^2)^{-3/4}$ (chapter Essentially sparse memory, equation e:target); tokens are independent and uniform on $[-1,1]$.
The layer has no dot product and no normaliser, as in Theorem e:thm-essential. *Read-outs* draws the results beside the
constructed layers, which are measured on the same sequences.
"""

import math

import torch
from torch import Tensor

import memlib
from memlib import construct
from memlib.experiments.tails import KERNELS
from memlib.model import Transformer, TransformerConfig
from memlib.sweep import product
from memlib.targets import EssentiallySparse
from memlib.train import fit

__all__ = ["HEADS", "LENGTH", "MEMORIES", "READOUTS", "SEEDS", "WIDTHS", "grid", "held_out", "run", "scores", "target"]

SEEDS = range(10, 14)
LENGTH = 64
MEMORIES = ("sech", "rounded power")
"""The kernels of the two memories: one light, one heavy, neither of them a finite sum of heads."""

HEADS, WIDTHS = (1, 2, 4, 8), (4, 8, 16, 32)
RANGES = {"lin": (0.02, 2.0), "log": (0.5, 4.0)}
READOUTS = {
    "product": construct.Product(),
    "square": construct.QuadraticRidge((0.5, -0.5)),
    "gate": construct.ReluRidge((0.5, -0.5)),
}
"""The read-outs by name: $z_1z_2$, $\\frac14(z_1-z_2)^2$, $\\sigma(\\frac12(z_1-z_2))$."""


def target(readout: str = "product") -> EssentiallySparse:
    """The target: a read-out of the light and the heavy memory."""
    if readout not in READOUTS:
        raise ValueError(f"unknown readout {readout!r}; allowed: {', '.join(READOUTS)}")
    return EssentiallySparse(READOUTS[readout], [KERNELS[name] for name in MEMORIES])


def held_out(readout: str = "product", length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """The sequences on which layers are measured: 256 of them, the same for all."""
    return target(readout).sample(256, length, memlib.reproducible(1000))


@torch.no_grad()
def scores(model: Transformer, readout: str = "product", length: int = LENGTH) -> dict:
    """Root mean square and largest error on the held-out sequences, as shares of the standard deviation of $y$.

    The first half of each sequence, whose past is short, is left out.
    """
    x, y = held_out(readout, length)
    rest, y = (model(x) - y)[:, length // 2 :], y[:, length // 2 :]
    spread = float(y.std(correction=0))
    return {"rms": math.sqrt(float(rest.square().mean())) / spread, "largest": float(rest.abs().max()) / spread}


def run(*, readout: str, encoding: str, heads: int, width: int, seed: int, steps: int = 500, lr: float = 0.02,
        length: int = LENGTH) -> dict:  # fmt: skip
    """Train one layer by Adam on fresh sequences, slopes drawn log-uniformly, and measure it on held-out ones."""
    if encoding not in RANGES:
        raise ValueError(f"unknown encoding {encoding!r} for this experiment; allowed: {', '.join(RANGES)}")
    wanted, generator = target(readout), memlib.reproducible(seed)
    low, high = RANGES[encoding]
    slopes = low * (high / low) ** torch.rand(heads, dtype=torch.float64, generator=generator)
    config = TransformerConfig(d_model=8, d_head=1, heads=heads, width=width, encoding=encoding, attention="dp_free",
                               normaliser="none", encoding_params={"slopes": slopes.tolist()})  # fmt: skip
    model = Transformer(config, generator)
    history = fit(model, wanted, steps=steps, lr=lr, batch=16, length=length, generator=memlib.reproducible(100 + seed))
    return {**scores(model, readout, length), "loss": history.final}


def grid(scale: str) -> list[dict]:
    """``book``: heads at the largest width for both encodings, widths at the most heads for lin; ``large``: all."""
    if scale == "book":
        common = {"readout": ["product"], "seed": SEEDS}
        points = product(encoding=["lin", "log"], heads=HEADS, width=[WIDTHS[-1]], **common)
        return points + product(encoding=["lin"], heads=[HEADS[-1]], width=WIDTHS[:-1], **common)
    return product(readout=list(READOUTS), encoding=["lin", "log"], heads=[1, 2, 4, 8, 16], width=[4, 8, 16, 32, 64],
                   seed=range(10), steps=[20_000], lr=[0.005, 0.02])  # fmt: skip
