"""Checks of arguments, said once: what was wrong, what was given, what is allowed."""

import math
import numbers
import operator

import torch

__all__ = ["explicit_generator", "integer", "plain_number", "positive_number"]


def integer(name: str, value, least: int) -> int:
    """``value`` as an int; Python and NumPy integers of at least ``least`` are allowed, booleans are not."""
    try:
        whole = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = None
    if whole is None or whole < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return whole


def plain_number(name: str, value) -> float:
    """``value`` as a finite float; Python and NumPy numbers are allowed, booleans are not."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def positive_number(name: str, value) -> float:
    """``value`` as a positive finite float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")
    return float(value)


def explicit_generator(who: str, generator) -> torch.Generator:
    """``generator`` itself; whatever is random takes one explicitly."""
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"{who} needs an explicit torch.Generator, got {type(generator).__name__}")
    return generator
