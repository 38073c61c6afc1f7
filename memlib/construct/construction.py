r"""What every construction of the book hands over: a Transformer, and what the proof says of its error."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from memlib.construct.readouts import Readout
from memlib.model import FeedForward, Transformer, TransformerConfig
from memlib.targets import Target

__all__ = ["ROUND", "Construction", "empty_layer", "write_readout"]

ROUND = float(np.finfo(np.float64).eps) / 2
"""Unit roundoff of float64."""


def empty_layer(slots: dict[str, slice], d_in: int, heads: int, width: int, encoding: str) -> Transformer:
    """One DP-free layer without normaliser, wide enough for the slots, all its numbers zero: to be written into."""
    config = TransformerConfig(
        d_in=d_in, d_out=1, d_model=max(s.stop for s in slots.values()), layers=1, heads=heads, width=width,
        d_head=d_in, encoding=encoding, attention="dp_free", normaliser="none",
    )  # fmt: skip
    model = Transformer(config, torch.Generator())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def write_readout(
    model: Transformer, read: slice, y: slice | None, readout: Readout, network: FeedForward | None
) -> None:
    """Into the one layer of ``model``: the FFN from the coordinates ``read`` to ``y``; or the output matrix alone."""
    if network is None:
        model.readout.weight[0, read] = torch.tensor(readout.weights, dtype=torch.float64).flatten()
        model.readout.bias.fill_(readout.bias)
        return
    ffn = model.layers[0].ffn
    ffn.hidden.weight[:, read] = network.hidden.weight
    ffn.hidden.bias.copy_(network.hidden.bias)
    ffn.out.weight[y] = network.out.weight
    model.readout.weight[0, y] = 1.0


@dataclass(frozen=True)
class Construction:
    r"""A `Transformer` whose weights are a proof, and what the proof says of its error.

    Attributes:
        model: the Transformer; saved and loaded without anything else, it computes the same.
        target: what it approximates.
        slots: the named parts of the residual stream.
        theorem: label of the statement.
        float_error: what rounding may add at runtime, for sequences of at most ``length`` tokens.
        length: the length for which ``float_error`` is stated.
        largest_coefficient: the largest of the coefficients $|c_h|$ with which heads are summed.
    """

    model: Transformer
    target: Target
    slots: dict[str, slice]
    theorem: str
    float_error: float
    length: int
    largest_coefficient: float

    @property
    def predicted_error(self) -> float:
        r"""An upper bound on $\sup_{t,X}|\mathbf H_t(X)-\mathbf G_t(X)|$ in exact arithmetic."""
        raise TypeError(f"{type(self).__name__} must define predicted_error")

    def measured_error(self, x: Tensor) -> float:
        """The largest difference between model and target on the sequences ``x``, over all positions."""
        with torch.no_grad():
            return float((self.model(x) - self.target(x)).abs().max())
