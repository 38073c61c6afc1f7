r"""Sparse Boolean functions learned by one layer: heads, width, with and without dot product (Tables 3 and 6).

The target is $y_t=f(x_{t-t_1},\dots,x_{t-t_M})$ with independent bits $x_t=\pm1$ (chapter Foundations, equation
f:fixed). The layer has a residual stream of dimension 16, whatever its heads: $d_{head}=16/H$. The chapter on fixed
sparse memory draws the results in *Trained*.
"""

import torch
from torch import Tensor

import memlib
from memlib.model import Transformer, TransformerConfig
from memlib.sweep import product
from memlib.targets import Finite, FixedSparse
from memlib.train import fit

__all__ = ["FUNCTIONS", "HEADS", "LAGS", "SEEDS", "SIZES", "WIDTHS", "grid", "run", "target"]

SEEDS = range(5)
LAGS = {"t5": (1, 3, 5, 8), "lin": (1, 2, 3, 4)}
"""The lags read with each encoding: spread out where every lag has a bias of its own, the nearest where not."""

HEADS, WIDTHS = (1, 2, 4, 8), (2, 8, 32)
SIZES = ((1, 2), (2, 8), (4, 32), (8, 32))
"""Heads and width grown together: a path from corner to corner of the grid."""


def multiplexer(bits: Tensor) -> Tensor:
    """The first of four bits decides: the exclusive or of the next two (as a product of signs), or the last."""
    first, second, third, fourth = bits.unbind(2)
    return torch.where(first > 0, second * third, fourth)


def parity(bits: Tensor) -> Tensor:
    """The product of the signs: no subset of the bits tells anything about it."""
    return bits.prod(dim=2)


FUNCTIONS = {"multiplexer": multiplexer, "parity": parity}
"""The read-outs by name: functions of ``(batch, length, M, 1)``, the bits in the order of the lags."""


def target(function: str, lags: tuple[int, ...]) -> FixedSparse:
    """The target: a Boolean function of the bits at the given lags; the present bit plays no part."""
    if function not in FUNCTIONS:
        raise ValueError(f"unknown function {function!r}; allowed: {', '.join(FUNCTIONS)}")
    if function == "multiplexer" and len(lags) != 4:
        raise ValueError(f"the multiplexer reads four bits, got lags {tuple(lags)}")
    return FixedSparse(lambda z: FUNCTIONS[function](z[:, :, 1:]), lags=lags, inputs=[Finite((-1.0, 1.0))])


def run(*, heads: int, width: int, attention: str, encoding: str, lags: list[int], seed: int,
        function: str = "multiplexer", steps: int = 600, lr: float = 0.01) -> dict:  # fmt: skip
    """Train one layer and measure it on fresh sequences.

    ``error`` is the mean square error as a share of the variance of $y$: 1 is a constant guess, 0 is perfect.
    ``wrong`` is the share of positions at which the sign is wrong, ``parameters`` the number of weights.
    """
    wanted = target(function, tuple(lags))
    config = TransformerConfig(d_model=16, heads=heads, width=width, encoding=encoding, attention=attention)
    model = Transformer(config, memlib.reproducible(seed))
    fit(model, wanted, steps=steps, lr=lr, batch=16, length=24, generator=memlib.reproducible(100 + seed))
    x, y = wanted.sample(128, 24, memlib.reproducible(1000))
    with torch.no_grad():
        guess, y = model(x)[:, wanted.burn_in :], y[:, wanted.burn_in :]
    return {
        "error": ((guess - y).square().mean() / y.var(correction=0)).item(),
        "wrong": ((guess > 0) != (y > 0)).double().mean().item(),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def grid(scale: str) -> list[dict]:
    """``book``: all sizes without dot product, the path with it, its end with lin; ``large``: all, longer."""
    if scale == "book":
        common = {"seed": SEEDS}
        t5 = {"encoding": ["t5"], "lags": [LAGS["t5"]]}
        lin = {"encoding": ["lin"], "lags": [LAGS["lin"]]}
        points = product(heads=HEADS, width=WIDTHS, attention=["dp_free"], **t5, **common)
        for h, m in SIZES:
            points += product(heads=[h], width=[m], attention=["dp"], **t5, **common)
        for h, m in SIZES[2:]:
            points += product(heads=[h], width=[m], attention=["dp_free"], **lin, **common)
        return points
    points = []
    for encoding, function, lags in (
        ("t5", "multiplexer", LAGS["t5"]),
        ("t5", "parity", LAGS["t5"][:3]),
        ("lin", "multiplexer", LAGS["lin"]),
        ("log", "multiplexer", LAGS["lin"]),
    ):
        points += product(heads=[1, 2, 4, 8, 16], width=[2, 8, 32, 128, 512], attention=["dp_free", "dp"],
                          encoding=[encoding], lags=[lags], seed=range(10), function=[function], steps=[4000],
                          lr=[0.003, 0.01])  # fmt: skip
    return points
