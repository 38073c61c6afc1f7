"""The Hankel floor: what no sum of $H$ exponentials, and no recurrence with $H$ states, can do (e:thm-hankel)."""

import math

import numpy as np

from memlib import checks
from memlib.sums.kernel_sum import NORMS

ROUNDING = 1e-14
r"""What a computed singular value may be off, in parts of the largest (for $N\le200$; beyond, in proportion to $N$)."""

SLOWEST, STEEPEST = 1e-4, 40.0
"""The rates between which searches look."""


def _window(kernel, residual: bool) -> np.ndarray:
    """The values that fill a square Hankel matrix: lags 0..2N-2, or 1..2N-1 where the residual takes care of lag 0."""
    if not isinstance(residual, bool | np.bool_):
        raise ValueError(f"residual must be True or False, got {residual!r}")
    try:
        values = np.asarray(kernel, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"kernel must be an array of values on lags 0, 1, 2, …, got {kernel!r}") from None
    if values.ndim != 1:
        raise ValueError(f"kernel must be one-dimensional, values on lags 0, 1, 2, …; its shape is {values.shape}")
    if not np.isfinite(values).all():
        where = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"kernel must hold finite numbers; at lag {where} it is {values[where]}")
    least = 2 if residual else 1
    if len(values) < least:
        raise ValueError(f"kernel must have values on at least {least} lags, got {len(values)}")
    values = values[1:] if residual else values
    return values if len(values) % 2 else values[:-1]


def hankel_values(kernel, residual: bool = False) -> np.ndarray:
    r"""The singular values $\sigma_1\ge\dots\ge\sigma_N$ of $\Gamma_N=(\rho(i+j))_{i,j<N}$ (equation e:hankel).

    ``kernel`` holds $\rho$ on the lags $0..2N-2$. Of an even number of values the last is not used: filling the missing
    corner with a zero would claim something about a lag that was not given. With ``residual`` lag 0 is free, and the
    matrix is $(\rho(i+j+1))$. In double precision: each value is right to `ROUNDING` times the largest.
    """
    return np.linalg.svd(_matrix(kernel, residual), compute_uv=False)


def _matrix(kernel, residual: bool) -> np.ndarray:
    values = _window(kernel, residual)
    size = (len(values) + 1) // 2
    return values[np.add.outer(np.arange(size), np.arange(size))]


def shift_invariant_bases(kernel, heads: int, residual: bool = False) -> np.ndarray:
    r"""The bases $z_h$ of $\sum_hc_hz_h^s$ that ESPRIT finds, at most $H$ complex numbers, the largest modulus first.

    The first $H$ left singular vectors $U$ of the Hankel matrix span the columns $(z_h^i)_i$ if the kernel is such a
    sum. That span does not change when its rows are shifted by one, so the $z_h$ are the eigenvalues of the matrix $F$
    for which $U$ without its first row is nearest to ($U$ without its last row) times $F$. Singular vectors that
    belong to singular values at the level of rounding are left out. Chapter Essentially sparse memory, section
    e:sec-aak.
    """
    checks.integer("heads", heads, 1)
    matrix = _matrix(kernel, residual)
    if heads >= len(matrix):
        raise ValueError(f"heads must be less than {len(matrix)}, the size of the Hankel matrix, got {heads}")
    vectors, values, _ = np.linalg.svd(matrix)
    vectors = vectors[:, :heads][:, values[:heads] > 10 * ROUNDING * values[0]]
    bases = np.linalg.eigvals(np.linalg.lstsq(vectors[:-1], vectors[1:], rcond=None)[0]).astype(complex)
    return bases[np.lexsort((bases.imag, -np.abs(bases).round(12)))]


def real_rates(bases, heads: int, apart: float = 0.0) -> np.ndarray:
    r"""Rates $p_h>0$ in place of bases that may be complex, negative or unstable: $p_h=-\log\lvert z_h\rvert$.

    Of a complex or negative base only the modulus is kept, as heads do not oscillate; neighbouring rates are moved
    apart until each exceeds the one before by the share ``apart``. Rates are kept within the limits of `best_sum`, from
    `SLOWEST` (for bases on or outside the unit circle) to `STEEPEST`. Where bases are missing, steeper rates fill up.
    """
    modulus = np.abs(np.asarray(bases))
    rates = np.full(len(modulus), STEEPEST)
    rates[modulus > 0] = -np.log(modulus[modulus > 0])
    rates = np.sort(np.clip(rates, SLOWEST, STEEPEST))
    for i in range(1, len(rates)):
        rates[i] = max(rates[i], rates[i - 1] * (1 + apart))
    last = rates[-1] if len(rates) else 0.5
    return np.clip(np.concatenate([rates, last * 2.0 ** np.arange(1, heads - len(rates) + 1)]), SLOWEST, STEEPEST)


def hankel_floor(kernel, heads: int, residual: bool = False, *, norm: str = "l1") -> float:
    r"""A number below which no sum of $H$ exponentials comes to the kernel (Theorem e:thm-hankel).

    ``norm="l1"``: $\lVert\rho-\varphi\rVert_{\ell^1(0..2N-2)}\ge\sigma_{H+1}(\Gamma_N)$ (equation e:hankel-floor).
    ``norm="l2"``: $\lVert\rho-\varphi\rVert_{\ell^2(0..2N-2)}\ge(\frac1N\sum_{k>H}\sigma_k^2)^{1/2}$ (e:hankel-l2).
    It holds for real and complex rates, for coinciding ones, and for every linear time-invariant recurrence with $H$
    states; the $\ell^1$ floor rises with $N$. `hankel_values` says which lags are used, and what ``residual`` does.

    Singular values are computed to `ROUNDING` times the largest. That much is subtracted, so that what is returned is
    a floor in spite of rounding; where nothing is left, it is 0.
    """
    checks.integer("heads", heads, 0)
    if norm not in NORMS:
        raise ValueError(f"unknown norm {norm!r}; allowed: {', '.join(NORMS)}")
    values = hankel_values(kernel, residual)
    size = len(values)
    if heads >= size:
        return 0.0
    left = np.maximum(values[heads:] - ROUNDING * max(1.0, size / 200) * values[0], 0.0)
    return float(left[0]) if norm == "l1" else math.sqrt(math.fsum(left**2) / size)
