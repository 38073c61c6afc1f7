r"""Sums of lin heads found in three ways, against the Hankel floor that none can beat.

A kernel is to be met in $\ell^1$ on the lags $0..2N-2$ by $H$ real exponentials: by `memlib.sums.best_sum`, by ESPRIT,
and by scipy's general least squares over rates and weights, which gets the same starts and as many evaluations as
`best_sum` used. Beside them stand ESPRIT with complex rates, which a recurrence can have and a head cannot, and
$\sigma_{H+1}$ of the Hankel matrix of size $N$ (chapter Essentially sparse memory, Theorem e:thm-hankel). Nothing here
is random. *Tails and encodings* shows the results.
"""

import numpy as np

from memlib.checks import integer
from memlib.sums import best_sum, esprit, general_fit, hankel_floor

__all__ = ["HEADS", "KERNELS", "LENGTH", "LIVE", "REAL", "SEEDS", "grid", "run", "values"]

SEEDS = (0,)
"""Nothing is random: one seed, which no point names."""

LENGTH = 399
"""Lags $0..2N-2$ with $N=200$."""

HEADS = range(1, 9)

KERNELS = {
    **{f"(1+s)^-{beta:g}": lambda s, beta=beta: (1 + s) ** -beta for beta in (1.1, 1.25, 1.5, 2.0, 2.5, 3.0)},
    "exp(-s/4)": lambda s: np.exp(-s / 4),
    "exp(-s/50)": lambda s: np.exp(-s / 50),
    "exp(-s/2)+exp(-s/20)": lambda s: np.exp(-s / 2) + np.exp(-s / 20),
    "exp(-s)-exp(-s/10)/2": lambda s: np.exp(-s) - np.exp(-s / 10) / 2,
    "five exponentials": lambda s: sum(np.exp(-s * 2.0**-k) for k in range(5)),
    "s exp(-s)": lambda s: s * np.exp(-s),
    "(1+s^2)^-0.75": lambda s: (1 + s * s) ** -0.75,
    "sech(s/4)": lambda s: 2 * np.exp(-s / 4) / (1 + np.exp(-s / 2)),
}
"""The kernels by their formulas, functions of an array of lags."""

REAL = tuple(name for name in KERNELS if name != "sech(s/4)")
"""The kernels that real rates suit: all but sech, whose best rates would be complex."""

LIVE = (("(1+s)^-1.5", 2), ("(1+s)^-1.5", 4), ("(1+s^2)^-0.75", 3), ("five exponentials", 4), ("sech(s/4)", 4))
"""The points that the notebook runs again."""


def values(kernel: str, length: int = LENGTH) -> np.ndarray:
    """A kernel of the table on the lags ``0..length-1``."""
    if kernel not in KERNELS:
        raise ValueError(f"unknown kernel {kernel!r}; known: {', '.join(KERNELS)}")
    return KERNELS[kernel](np.arange(integer("length", length, 3), dtype=float))


def run(kernel: str, heads: int, length: int = LENGTH) -> dict:
    r"""All fits of one kernel with one number of heads.

    Returns the norm $\lVert\rho\rVert_1$ on the window, and in parts of it the $\ell^1$ errors of `best_sum`
    (``error``), of ESPRIT, of the general fit, of ESPRIT with complex rates, and the floor; then $\sum_h|c_h|$ of the
    best sum, and how many evaluations it and the general fit used.
    """
    rho = values(kernel, length)
    size = float(np.abs(rho).sum())
    best = best_sum(rho, heads, "lin", "l1")
    general = general_fit(rho, heads, "l1", evaluations=best.evaluations)
    return {
        "norm": size,
        "error": best.error / size,
        "esprit": esprit(rho, heads, "l1").error / size,
        "general": general.error / size,
        "complex": esprit(rho, heads, "l1", rates="complex").error / size,
        "floor": hankel_floor(rho, heads) / size,
        "weight": best.weight,
        "evaluations": best.evaluations,
        "general_evaluations": general.evaluations,
        "parameters": 2 * heads,
    }


def grid(scale: str = "book") -> list[dict]:
    """``book``: the points run live. ``stored``: all kernels, 1 to 8 heads, N = 200. ``large``: 1 to 12, N = 400."""
    if scale == "book":
        return [{"kernel": kernel, "heads": heads, "length": LENGTH} for kernel, heads in LIVE]
    if scale == "stored":
        return [{"kernel": kernel, "heads": heads, "length": LENGTH} for kernel in KERNELS for heads in HEADS]
    if scale == "large":
        return [{"kernel": kernel, "heads": heads, "length": 799} for kernel in KERNELS for heads in range(1, 13)]
    raise ValueError(f"unknown scale {scale!r}; allowed: book, large, stored")
