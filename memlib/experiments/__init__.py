"""The grids of the book: one module for each, with the function that is evaluated and the points it is evaluated at.

Notebooks, tests and the command line run the same code:

    python -m memlib.experiments --list
    python -m memlib.experiments sparse_boolean --scale large --executor dask --out boolean.jsonl

A module of this package has a function ``run(**point)``, which returns a dict of JSON values, a function
``grid(scale)`` for each of the `SCALES`, and the ``SEEDS`` of its grids. ``book`` is what a notebook runs live;
``large`` asks the same questions with more sizes, more seeds and longer training. An experiment of `STORED` has a third
scale, ``stored``: a grid too long for a notebook, whose rows are kept as ``results/NAME.csv`` (`memlib.results`):

    python -m memlib.experiments nested_lookups --scale stored --out rows.jsonl --store
"""

import importlib
import pkgutil
from types import ModuleType

from memlib import sweep as sweeps

__all__ = ["SCALES", "STORED", "evaluate", "get", "names", "scales", "summary"]

SCALES = ("book", "large")
"""The sizes in which every grid exists."""

STORED = ("against_the_floor", "heads_for_depth", "nested_lookups", "substitutes")
"""The experiments with a stored table."""


def names() -> tuple[str, ...]:
    """The names of all experiments."""
    return tuple(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))


def get(name: str) -> ModuleType:
    """The module of an experiment."""
    if name not in names():
        raise ValueError(f"unknown experiment {name!r}; known: {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")


def scales(name: str) -> tuple[str, ...]:
    """The scales of an experiment."""
    return (*SCALES, "stored") if name in STORED else SCALES


def summary(name: str) -> str:
    """What an experiment measures, in one line."""
    return get(name).__doc__.strip().splitlines()[0].removeprefix('r"""')


def evaluate(name: str, scale: str = "book", **options) -> list[dict]:
    """The rows of an experiment's grid; ``options`` are those of `memlib.sweep.sweep`."""
    module = get(name)
    if scale not in scales(name):
        raise ValueError(f"unknown scale {scale!r}; allowed: {', '.join(scales(name))}")
    return sweeps.sweep(module.run, module.grid(scale), **options)
