r"""The right-hand sides of the theorems as numbers, every constant explicit.

`fixed` is Theorem x:thm-fixed, with Lemma x:lem-bump for each lag; `adaptive` is Theorems a:thm-warmup and
a:thm-nested, with Lemma a:lem-flat for each pointer; `essential` is Theorem e:thm-essential, with Lemma e:lem-fill and
Theorem e:thm-smooth for each kernel, whose fading a `Tail` describes; `dp_free_floor` is what attention without dot
product cannot do, Theorems a:thm-attention-alone and a:thm-channels, with the inputs that show it.
"""

from memlib.bounds.adaptive_memory import (
    AdaptiveBound,
    FlatTop,
    adaptive,
    closed_form_flat,
    flat_derivative,
    flat_top,
    pointer_constant,
    pointer_tolerance,
)
from memlib.bounds.essential_memory import (
    EssentialBound,
    Tail,
    admissible,
    closed_form_tail,
    essential,
    largest_alpha,
    tail_constant,
    tail_of,
)
from memlib.bounds.fixed_memory import (
    Bump,
    FixedBound,
    closed_form,
    default_alpha,
    derivative_bound,
    fixed,
    jackson_constant,
    lag_constant,
    least_bump,
    split_heads,
)
from memlib.bounds.floors import Floor, dp_free_floor

__all__ = [
    "AdaptiveBound",
    "Bump",
    "EssentialBound",
    "FixedBound",
    "FlatTop",
    "Floor",
    "Tail",
    "adaptive",
    "admissible",
    "closed_form",
    "closed_form_flat",
    "closed_form_tail",
    "default_alpha",
    "derivative_bound",
    "dp_free_floor",
    "essential",
    "fixed",
    "flat_derivative",
    "flat_top",
    "jackson_constant",
    "lag_constant",
    "largest_alpha",
    "least_bump",
    "pointer_constant",
    "pointer_tolerance",
    "split_heads",
    "tail_constant",
    "tail_of",
]
