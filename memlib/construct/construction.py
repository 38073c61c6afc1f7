r"""What every construction of the book hands over: a Transformer, and what the proof says of its error."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from memlib.model import Transformer
from memlib.targets import Target

__all__ = ["ROUND", "Construction"]

ROUND = float(np.finfo(np.float64).eps) / 2
"""Unit roundoff of float64."""


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
