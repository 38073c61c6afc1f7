r"""A head without dot product is a convolution (chapter Foundations, section "Attention without dot product").

The kernel of a head, how many tokens it effectively sees, the loss it can reach on independent inputs, and the fast
convolution that *is* DP-free attention.
"""

import math

import numpy as np
import torch
from scipy.special import zeta
from torch import Tensor
from torch.nn import functional as F

from memlib import encodings
from memlib.checks import integer, positive_number

__all__ = [
    "best_weights",
    "causal_convolution",
    "effective_length",
    "exact_effective_length",
    "exact_window",
    "head_kernel",
    "lag_attention",
    "normalise",
    "population_loss",
    "sees_itself",
    "toeplitz",
    "window",
]

NORMALISERS = ("softmax", "sink", "none")
DIRECT_ROWS = 64  # this many rows are computed directly, the others by FFT
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-3}


# ---------------------------------------------------------------------------------------------- kernels of single heads


def head_kernel(encoding: str, slope: float, length: int, normaliser: str = "past") -> np.ndarray:
    r"""The weights $w(s)$ that one head gives to lags $s=0,\dots,\text{length}-1$ (equation f:head-kernel).

    ``slope`` is $p$ for ``lin``, ``alibi``, ``log``, ``kerple_log`` (with $a=1$) and ``kerple_power`` (with exponent
    $1/2$). For ``t5`` bucket $b$ has bias $-pb$; for ``rotary`` and ``sinusoidal`` query and key are constant and
    ``slope`` is the amplitude of $\sum_f\cos(\omega_fs)$ over 16 frequencies.

    ``normaliser``: ``"past"`` divides by the sum over the infinite past, where that is finite; ``"window"`` by the
    sum over the lags given, as softmax does at position ``length - 1``; ``"none"`` not at all.
    """
    length, slope = integer("length", length, 1), positive_number("slope", slope)
    if normaliser not in ("past", "window", "none"):
        raise ValueError(f"unknown normaliser {normaliser!r} for a kernel; allowed: past, window, none")
    weights = np.exp(_log_weights(encoding, slope, length))
    if normaliser == "none":
        return weights
    if normaliser == "window" and not weights.any():
        raise ValueError(f"a {encoding} head sees nothing in a window of {length}: it does not see its own position")
    return weights / (weights.sum() if normaliser == "window" else _infinite_sum(encoding, slope))


def _log_weights(encoding: str, slope: float, length: int) -> np.ndarray:
    if encoding == "learned":
        raise ValueError("the learned encoding is not a function of the lag: it has no head kernel")
    sizes = {"heads": 1, "d_head": 32, "d_model": 32}
    if encoding in ("rotary", "sinusoidal"):
        frequencies = encodings.make("rotary", **sizes).frequencies  # the same sixteen for both
        return slope * torch.cos(torch.arange(length)[:, None] * frequencies).sum(1).numpy()
    if encodings.kind(encoding) == "none":
        return np.zeros(length)
    params = {"slopes": [slope]}
    if encoding == "kerple_power":
        params["powers"] = [0.5]
    if encoding == "t5":
        params = {"table": -slope * torch.arange(32.0)[None]}
    return encodings.make(encoding, **sizes, **params).log_weights(length)[0].detach().numpy()


def _infinite_sum(encoding: str, slope: float) -> float:
    if encoding in ("lin", "alibi"):
        return -1 / math.expm1(-slope)
    if encoding in ("log", "kerple_log"):
        if slope <= 1:
            raise ValueError(
                f"s^-p is summable over the infinite past only for p > 1, got {slope}; use normaliser='window'"
            )
        return float(zeta(slope, 1))
    if encoding == "kerple_power":  # beyond the last lag exp(-p sqrt(s)) is below 1e-18
        return float(np.exp(-slope * np.sqrt(np.arange(math.ceil((42 / slope) ** 2) + 1))).sum())
    raise ValueError(f"the {encoding!r} weights have no finite sum over the infinite past; use normaliser='window'")


def effective_length(kernel: np.ndarray) -> float:
    r"""How many tokens a head effectively sees: $(\sum_sw(s))^2/\sum_sw(s)^2$ (equation f:effective-length).

    It is the length of the uniform window whose average of independent tokens has the same variance.
    """
    kernel = _kernel_array(kernel)
    return float(kernel.sum() ** 2 / (kernel**2).sum())


def exact_effective_length(encoding: str, slope: float) -> float:
    r"""`effective_length` on the infinite past: $\coth(p/2)$ for ``lin``, $\zeta(p)^2/\zeta(2p)$ for ``log``."""
    slope = positive_number("slope", slope)
    if encoding not in ("lin", "log"):
        raise ValueError(f"closed forms exist for lin and log, got {encoding!r}")
    if encoding == "lin":
        return 1 / math.tanh(slope / 2)
    return _infinite_sum("log", slope) ** 2 / float(zeta(2 * slope, 1))


def window(kernel: np.ndarray, mass: float = 0.9) -> int:
    """The least number of recent lags that hold the fraction ``mass`` of the kernel's weight (equation f:window).

    Counted from the first lag the head sees: a log head's own position does not count.
    """
    kernel = np.trim_zeros(_kernel_array(kernel), "f")
    _fraction(mass)
    return int(np.searchsorted(np.cumsum(kernel), mass * kernel.sum())) + 1


def exact_window(encoding: str, slope: float, mass: float = 0.9) -> int:
    r"""`window` on the infinite past, for ``lin`` and ``log``: the least $n$ whose tail holds at most $1-q$."""
    slope = positive_number("slope", slope)
    _fraction(mass)
    if encoding == "lin":
        return max(1, math.ceil(math.log1p(-mass) / -slope))
    if encoding != "log":
        raise ValueError(f"closed forms exist for lin and log, got {encoding!r}")
    allowed = (1 - mass) * _infinite_sum("log", slope)
    high = 1
    while zeta(slope, high + 1) > allowed:
        high *= 2
        if high > 2**1000:
            raise ValueError(f"at slope {slope} the window exceeds 2**1000 lags; take a larger slope")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if zeta(slope, middle + 1) <= allowed else (middle, high)
    return high


def _kernel_array(kernel) -> np.ndarray:
    kernel = np.asarray(kernel, dtype=float)
    if kernel.ndim != 1 or not len(kernel) or not np.isfinite(kernel).all() or (kernel < 0).any() or not kernel.any():
        raise ValueError(
            "a kernel must be a non-empty one-dimensional array of finite non-negative numbers, not all zero"
        )
    return kernel


def _fraction(mass: float) -> None:
    if not 0 < mass < 1:
        raise ValueError(f"mass must lie strictly between 0 and 1, got {mass!r}")


# -------------------------------------------------------------------------------------------------- population losses


def population_loss(rho: Tensor, kernels: Tensor, weights: Tensor, variance: float = 1.0) -> Tensor:
    r"""$\sigma^2\lVert\rho-\sum_hc_hw_h\rVert_2^2$: mean square error, independent inputs (equation f:population-loss).

    ``rho`` has shape ``(length,)``, ``kernels`` ``(heads, length)``, ``weights`` ``(heads,)``; differentiable.
    """
    if rho.ndim != 1 or kernels.ndim != 2 or kernels.shape[1] != len(rho) or weights.shape != kernels.shape[:1]:
        raise ValueError(
            f"shapes must be (length,), (heads, length), (heads,), got {tuple(rho.shape)}, "
            f"{tuple(kernels.shape)}, {tuple(weights.shape)}"
        )
    return variance * (rho - weights @ kernels).square().sum()


def best_weights(rho: Tensor, kernels: Tensor) -> Tensor:
    """The output weights that minimise `population_loss` for the given kernels: linear least squares."""
    return torch.linalg.lstsq(kernels.T, rho[:, None], driver="gelsd").solution[:, 0]


# ------------------------------------------------------------------------------------- attention as a convolution


def causal_convolution(kernel: Tensor, values: Tensor) -> Tensor:
    r"""$y_t=\sum_{s=0}^{t}k(s)\,v_{t-s}$ along the last axis, by FFT in $O(T\log T)$ (equation f:convolution).

    ``kernel`` and ``values`` broadcast against each other; the past before the first token is zero.
    """
    length = values.shape[-1]
    if kernel.shape[-1] != length:
        raise ValueError(f"kernel and values must have the same length, got {kernel.shape[-1]} and {length}")
    size = 2 * length
    return torch.fft.irfft(torch.fft.rfft(kernel, n=size) * torch.fft.rfft(values, n=size), n=size)[..., :length]


def toeplitz(log_weights: Tensor) -> Tensor:
    r"""The logits $\phi(t-s)$ as a matrix, $-\infty$ above the diagonal: shape ``(heads, length, length)``."""
    length = log_weights.shape[-1]
    padded = torch.cat(
        [log_weights.flip(-1), log_weights.new_full((*log_weights.shape[:-1], length - 1), -math.inf)], -1
    )
    return padded.unfold(-1, length, 1).flip(-2)


def normalise(logits: Tensor, normaliser: str, never_empty: bool = False) -> Tensor:
    r"""Attention weights from logits over the last axis (equation f:normalisers).

    ``softmax`` divides $e^\ell$ by its sum $Z$, ``sink`` by $1+Z$, ``none`` not at all. A row of $-\infty$ attends to
    nothing: its weights are 0. Where no such row can occur, ``never_empty`` saves the care it takes.
    """
    _known("normaliser", normaliser, NORMALISERS)
    if normaliser == "none":
        return logits.exp()
    if never_empty and normaliser == "softmax":
        return logits.softmax(-1)
    least = 0.0 if normaliser == "sink" else torch.finfo(logits.dtype).min
    top = logits.detach().amax(-1, keepdim=True).clamp(min=least)
    weights = (logits - top).exp()
    total = weights.sum(-1, keepdim=True)
    return weights / ((-top).exp() + total if normaliser == "sink" else total.masked_fill(total == 0, 1.0))


def lag_attention(log_weights: Tensor, values: Tensor, normaliser: str = "softmax", query: Tensor | None = None,
                  path: str = "auto") -> Tensor:  # fmt: skip
    r"""Attention whose logits depend on the lag and, if given, on the query alone (equation f:running-normaliser).

    $y_t=\sum_{s\le t}e^{q_t+\phi(t-s)}v_s/N_t$ with $N_t=Z_t=\sum_{s\le t}e^{q_t+\phi(t-s)}$ for ``softmax``,
    $1+Z_t$ for ``sink`` and 1 for ``none``. Shapes: ``log_weights`` ``(heads, length)``, ``values``
    ``(batch, heads, length, d)``, ``query`` ``(batch, heads, length)``.

    The numerator is a convolution, so a sequence costs $O(T\log T)$. An FFT's rounding error is uniform over positions
    while the normaliser is not: where the bias rises with the lag, early rows lose digits. ``path="auto"`` therefore
    computes the first rows directly, and all rows, in $O(T^2)$, when the normaliser still grows so much after the first
    that float64 would miss 1e-10 (float32: 1e-3) times the largest value. ``path="fft"`` and ``path="direct"`` take one
    way for all rows.
    """
    _known("normaliser", normaliser, NORMALISERS)
    _known("path", path, ("auto", "fft", "direct"))
    if log_weights.dtype not in _TOLERANCE or values.dtype != log_weights.dtype:
        raise TypeError(
            f"log_weights and values must both be float64 or float32, got {log_weights.dtype}, {values.dtype}"
        )
    if values.ndim != 4 or values.shape[1:3] != log_weights.shape:
        raise ValueError(
            f"values must have shape (batch, heads, length, d) with heads, length = {tuple(log_weights.shape)}, "
            f"got {tuple(values.shape)}"
        )
    if query is not None and query.shape != values.shape[:3]:
        raise ValueError(
            f"query must have shape (batch, heads, length) = {tuple(values.shape[:3])}, got {tuple(query.shape)}"
        )
    if query is not None and normaliser == "softmax":
        raise ValueError(
            "a logit that depends on the query alone cancels under softmax; use normaliser 'sink' or 'none'"
        )
    first = 0 if path == "fft" else min(DIRECT_ROWS, log_weights.shape[-1])  # rows computed directly
    if path == "direct" or first == log_weights.shape[-1]:
        return _direct(log_weights, values, normaliser, query)
    top = log_weights.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(log_weights.dtype).min)
    kernel = (log_weights - top).exp()
    total = kernel.cumsum(-1)
    if path == "auto" and _loses_digits(total.detach()):
        return _direct(log_weights, values, normaliser, query)
    rows = causal_convolution(kernel[:, None], values.transpose(-1, -2)).transpose(-1, -2)[:, :, first:]
    shift = (top if query is None else top + query[..., first:])[..., None]  # the logits are log(kernel) + shift
    total = total[:, first:, None]
    if normaliser == "none":
        rows = rows * shift.exp()
    elif normaliser == "softmax":
        rows = rows / total.masked_fill(total == 0, 1.0)
    else:  # e^shift / (1 + e^shift total), with the larger of 1 and e^shift taken out so that nothing overflows
        larger = shift.detach().clamp(min=0.0)
        scale = (shift - larger).exp()
        rows = rows * (scale / (scale * total + (-larger).exp()))
    if not first:
        return rows
    start = None if query is None else query[..., :first]
    return torch.cat([_direct(log_weights[:, :first], values[:, :, :first], normaliser, start), rows], dim=2)


def _known(label: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"unknown {label} {value!r}; allowed: {', '.join(allowed)}")


def _loses_digits(total: Tensor) -> bool:
    """Whether the first normaliser that divides FFT rows is too small beside the last, against which the FFT rounds."""
    allowed = _TOLERANCE[total.dtype] / torch.finfo(total.dtype).eps
    return bool((total[:, -1] > allowed * total[:, DIRECT_ROWS - 1]).any())


def _direct(log_weights: Tensor, values: Tensor, normaliser: str, query: Tensor | None) -> Tensor:
    """Softmax (or what stands for it) row by row; keys and values are taken in reversed order, which saves a copy."""
    length = log_weights.shape[-1]
    logits = F.pad(log_weights, (length - 1, 0), value=-math.inf).unfold(-1, length, 1)
    if query is not None:
        logits = logits + query[..., None]
    return normalise(logits, normaliser, sees_itself(log_weights)) @ values.flip(-2)


def sees_itself(log_weights: Tensor) -> bool:
    """Whether every head sees lag 0, so that no position is without admissible past."""
    return bool(log_weights[:, 0].isfinite().all())
