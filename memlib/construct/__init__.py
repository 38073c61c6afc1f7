r"""Proofs as weights: a target and sizes in, a `Transformer` out.

`fixed` builds the layer of Theorem x:thm-fixed, `adaptive` the layers of Theorems a:thm-warmup and a:thm-nested,
`essential` the layer of Theorem e:thm-essential. What comes out is a `Construction`: the model, the named parts of its
residual stream, and how far the proof says it is from the target, in exact arithmetic and with rounding.
"""

from memlib.construct.adaptive_memory import AdaptiveConstruction, adaptive
from memlib.construct.construction import Construction
from memlib.construct.essential_memory import EssentialConstruction, essential
from memlib.construct.fixed_memory import FixedConstruction, fixed
from memlib.construct.lookups import pointer_chasing, summed_lookups
from memlib.construct.one_layer import OneLayer, affine_pointer, bit_decoder, pointer_target, selector
from memlib.construct.pointers import Pointer
from memlib.construct.readouts import Linear, Product, QuadraticRidge, Readout, ReluRidge, network_error
from memlib.construct.rotary import RotaryPointer, rotary_frequencies, rotary_gap, rotary_pointer, rotary_row

__all__ = [
    "AdaptiveConstruction",
    "Construction",
    "EssentialConstruction",
    "FixedConstruction",
    "Linear",
    "OneLayer",
    "Pointer",
    "Product",
    "QuadraticRidge",
    "Readout",
    "ReluRidge",
    "RotaryPointer",
    "adaptive",
    "affine_pointer",
    "bit_decoder",
    "essential",
    "fixed",
    "network_error",
    "pointer_chasing",
    "pointer_target",
    "rotary_frequencies",
    "rotary_gap",
    "rotary_pointer",
    "rotary_row",
    "selector",
    "summed_lookups",
]
