r"""Proofs as weights: a target and sizes in, a `Transformer` out.

`fixed` builds the layer of Theorem x:thm-fixed. What comes out is a `Construction`: the model, the named parts of its
residual stream, and how far the proof says it is from the target, in exact arithmetic and with rounding.
"""

from memlib.construct.construction import Construction
from memlib.construct.fixed_memory import FixedConstruction, fixed
from memlib.construct.readouts import Linear, QuadraticRidge, Readout, ReluRidge, network_error

__all__ = [
    "Construction",
    "FixedConstruction",
    "Linear",
    "QuadraticRidge",
    "Readout",
    "ReluRidge",
    "fixed",
    "network_error",
]
