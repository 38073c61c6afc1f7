r"""Heads and width instead of depth: two look-ups, in one layer or two, with more heads and more neurons.

The task, the training and the measurement are those of `nested_lookups`, whose table has the first of these points. The
sizes here fill its gaps: 2 and 4 heads for all tasks, two layers beside one, and FFNs of 16 and 64 neurons beside 256.
The chapter on adaptive memory draws both tables in *Depth and nesting*; this one is ``results/heads_for_depth.csv``,
made by

    python -m memlib.experiments heads_for_depth --scale stored --store --out rows.jsonl
"""

from memlib.experiments.nested_lookups import HEADS, SEEDS, run
from memlib.sweep import product

__all__ = ["HEADS", "SEEDS", "WIDTHS", "grid", "run"]

WIDTHS = (16, 64, 256)
"""Neurons of the FFN; the last is that of the table of `nested_lookups`."""


def grid(scale: str) -> list[dict]:
    """``book``: a point of the stored table that is run live; ``stored``: the table; ``large``: longer, more seeds."""
    if scale == "book":
        return _points(["plain"], [1], ["rotary"], [8], [16], [0])
    if scale == "stored":
        points = []
        for seed in SEEDS:
            points += _points(["plain", "keyed"], [1], ["rotary"], [8], WIDTHS[:-1], [seed])
            points += _points(["plain"], [1, 2], ["t5"], [2, 4], [256], [seed])
            points += _points(["plain"], [2], ["rotary"], HEADS, [256], [seed])
            points += _points(["keyed"], [2], ["rotary"], [2, 4], [256], [seed])
        return points
    return _points(["plain", "keyed"], [1, 2, 3], ["rotary", "t5"], HEADS, [16, 64, 256, 1024], range(10), 20_000)


def _points(tasks, layers, encodings, heads, widths, seeds, steps: int = 2500) -> list[dict]:
    return product(task=tasks, nesting=[2], layers=layers, encoding=encodings, heads=heads, d_model=[64], width=widths,
                   steps=[steps], lr=[3e-3], curriculum=[False], seed=seeds)  # fmt: skip
