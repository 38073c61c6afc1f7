r"""The right-hand sides of the theorems as numbers, every constant explicit.

`fixed` is Theorem x:thm-fixed, with Lemma x:lem-bump for each lag.
"""

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

__all__ = [
    "Bump",
    "FixedBound",
    "closed_form",
    "default_alpha",
    "derivative_bound",
    "fixed",
    "jackson_constant",
    "lag_constant",
    "least_bump",
    "split_heads",
]
