r"""Real sequences and the two encodings: the best linear forecast of a series, and a small model of text.

A linear layer without dot product that forecasts $x_{t+1}$ answers with a kernel $\varphi$, and its mean square error
is a closed form in the autocovariance $\gamma$ of the series,
$\gamma(0)-2\sum_s\varphi(s)\gamma(s+1)+\sum_{s,s'}\varphi(s)\gamma(s-s')\varphi(s')$: `best_forecast` minimises it over
the rates and weights of $H$ heads. For text there is no such form: `run` trains one layer and measures the cross
entropy of the next character on the held-out part. The chapter on essentially sparse memory sets both beside the decay
of the sequences (`memlib.tails`) in *Where real memories lie*.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.linalg import cholesky, solve_triangular, toeplitz
from scipy.optimize import minimize
from scipy.signal import fftconvolve, lfilter
from torch.nn import functional as F

import memlib
from memlib import data
from memlib.checks import integer
from memlib.encodings import Lin
from memlib.model import Transformer, TransformerConfig
from memlib.sweep import product
from memlib.train import fit

__all__ = [
    "ENCODINGS", "HEADS", "LEARNING_RATES", "PILOT_SEED", "PROCESSES", "RECOMMENDED", "SEEDS", "TEXT_HEADS",
    "Forecast", "LinPast", "anomalies", "autocovariance",
    "best_forecast", "best_kernel", "forecast_errors", "grid", "model", "process", "run", "sample",
]  # fmt: skip

SEEDS = range(10, 13)
HEADS = (1, 2, 4)
TEXT_HEADS = (1, 4)
LEARNING_RATES, PILOT_SEED = (0.01, 0.02), 7
ENCODINGS = {
    "lin": ("exponential", "seen"),
    "lin_past": ("exponential", "not seen"),
    "kerple_log": ("power law", "seen"),
    "log": ("power law", "not seen"),
}
"""The encodings of the text models by name: the tail of a head, and whether it sees its own position.

log differs from lin in both. ``lin_past`` is lin on the lags from 1 on; with `kerple_log` it makes the table complete.
"""

RECOMMENDED = {"heavy": "log", "light": "lin"}
"""The encoding that Theorem e:thm-essential asks the fewest heads of, by the verdict on the tail; else none."""

_RATES = {"lin": (0.02, 2.0), "log": (0.3, 4.0)}


# ---------------------------------------------------------------- series


def anomalies(series: data.Series) -> np.ndarray:
    """The values less trend and seasons: what a straight line, a square and the year's first four harmonics explain.

    Series without seasons (``period`` 1) only lose their mean. Trend and seasons are taken from the whole series.
    """
    t = np.arange(len(series.values))
    columns = [np.ones(len(t))]
    if series.period > 1:
        angles = [2 * np.pi * k * t / series.period for k in range(1, 5)]
        columns += [t / len(t), (t / len(t)) ** 2, *(f(a) for a in angles for f in (np.cos, np.sin))]
    design = np.stack(columns, axis=1)
    return series.values - design @ np.linalg.lstsq(design, series.values, rcond=None)[0]


def autocovariance(values: np.ndarray, length: int) -> np.ndarray:
    r"""$\gamma(0),\dots,\gamma(\text{length})$ about zero, divided by the number of values, so that $\Gamma\ge0$."""
    values = np.asarray(values, dtype=float)
    if integer("length", length, 1) >= len(values):
        raise ValueError(f"length must be below the number of values, {len(values)}, got {length}")
    return np.array([values[: len(values) - s] @ values[s:] for s in range(length + 1)]) / len(values)


PROCESSES = ("ar", "arma", "fractional")
"""Processes whose autocovariance is known: see `process`."""


def process(name: str, parameter: float, length: int) -> np.ndarray:
    r"""The autocorrelation of a process in closed form, on lags 0 to ``length``.

    ``ar``: $x_t=\phi x_{t-1}+\epsilon_t$, $\phi^s$. ``arma``: the same process seen through white noise of equal
    variance, $\frac12\phi^s$ for $s\ge1$. ``fractional``: fractional noise, $\prod_{i\le s}\frac{i-1+d}{i-d}$, which
    falls like $s^{2d-1}$.
    """
    if name not in PROCESSES:
        raise ValueError(f"unknown process {name!r}; allowed: {', '.join(PROCESSES)}")
    limit = 0.5 if name == "fractional" else 1.0
    if not 0 < parameter < limit:
        raise ValueError(f"the parameter of {name} must lie strictly between 0 and {limit}, got {parameter!r}")
    s = np.arange(integer("length", length, 1) + 1)
    if name == "fractional":
        return np.cumprod(np.concatenate([[1.0], (s[1:] - 1 + parameter) / (s[1:] - parameter)]))
    return np.where(s == 0, 1.0, (0.5 if name == "arma" else 1.0) * parameter**s)


def sample(name: str, parameter: float, length: int, seed: int) -> np.ndarray:
    """A sample path of `process`, with normal noise; ``fractional`` from 10,000 steps of its past."""
    past = 10_000 if name == "fractional" else 1_000
    process(name, parameter, past)  # checks the arguments
    length = integer("length", length, 1)
    rng = np.random.default_rng(integer("seed", seed, 0))
    noise = rng.standard_normal(length + past)
    if name == "fractional":
        k = np.arange(1, past + 1)
        return fftconvolve(noise, np.cumprod([1.0, *((k - 1 + parameter) / k)]))[past : past + length]
    path = lfilter([math.sqrt(1 - parameter**2)], [1.0, -parameter], noise)[past:]
    return path if name == "ar" else path + rng.standard_normal(length)


@dataclass(frozen=True)
class Forecast:
    r"""A linear forecast $\hat x_{t+1}=\sum_s\varphi(s)x_{t-s}$ and its mean square error as a share of $\gamma(0)$."""

    kernel: np.ndarray = field(repr=False)
    error: float
    rates: tuple[float, ...] = ()


def best_kernel(gamma: np.ndarray) -> Forecast:
    """The best forecast of all, any kernel of ``len(gamma) - 1`` lags: what no choice of heads can beat."""
    root, wanted = _whitened(gamma)
    return Forecast(solve_triangular(root, wanted), float(1 - wanted @ wanted / gamma[0]))


def best_forecast(gamma: np.ndarray, encoding: str, heads: int) -> Forecast:
    r"""The best forecast by ``heads`` lin or log heads and the residual connection, by variable projection.

    The weights are least squares in the metric of $\Gamma=(\gamma(s-s'))$; the rates are searched from several starts.
    """
    if encoding not in _RATES:
        raise ValueError(f"unknown encoding {encoding!r} for a forecast; allowed: {', '.join(_RATES)}")
    heads = integer("heads", heads, 1)
    root, wanted = _whitened(gamma)
    lags = np.arange(len(wanted))
    x = lags if encoding == "lin" else np.log(np.maximum(lags, 1))

    def columns(theta: np.ndarray) -> np.ndarray:
        made = np.exp(-np.outer(x, np.exp(theta)))
        made[0] = made[0] if encoding == "lin" else 0.0  # a log head does not see its own position
        return np.concatenate([np.eye(len(lags), 1), made], axis=1)

    def rest(theta: np.ndarray) -> float:
        u, size, _ = np.linalg.svd(root @ columns(theta), full_matrices=False)
        inside = u[:, size > 1e-10 * size[0]].T @ wanted
        return float(1 - inside @ inside / gamma[0])

    low, high = np.log(_RATES[encoding])
    starts = [np.linspace(a, b, heads + 2)[1:-1] for a in (low - 1, low, low + 1) for b in (high - 1, high, high + 1)]
    limits = [(np.log(1e-4), np.log(30.0))] * heads
    best = min((minimize(rest, s, bounds=limits, method="L-BFGS-B") for s in starts), key=lambda found: found.fun)
    design = columns(best.x)
    weights = np.linalg.lstsq(root @ design, wanted, rcond=1e-10)[0]
    return Forecast(design @ weights, rest(best.x), tuple(sorted(np.exp(best.x).tolist())))


def _whitened(gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""$R$ with $R^\top R=\Gamma$, and $R^{-\top}$ applied to $\gamma(1),\gamma(2),\dots$"""
    gamma = np.asarray(gamma, dtype=float)
    if gamma.ndim != 1 or len(gamma) < 2 or not np.isfinite(gamma).all() or not gamma[0] > 0:
        raise ValueError("an autocovariance must be a one-dimensional array of at least two finite numbers, the first "
                         "positive")  # fmt: skip
    try:
        root = cholesky(toeplitz(gamma[:-1]) + 1e-12 * gamma[0] * np.eye(len(gamma) - 1))
    except np.linalg.LinAlgError:
        raise ValueError("this is no autocovariance: its Toeplitz matrix is not positive definite") from None
    return root, solve_triangular(root, gamma[1:], trans="T")


def forecast_errors(kernel: np.ndarray, values: np.ndarray, first: int) -> np.ndarray:
    """The errors of one-step forecasts of ``values[first:]`` from all that came before; the past is zero."""
    values = np.asarray(values, dtype=float)
    if not 1 <= integer("first", first, 1) < len(values):
        raise ValueError(f"first must lie in 1..{len(values) - 1}, got {first}")
    return (values[1:] - np.convolve(values, kernel)[: len(values) - 1])[first - 1 :]


# ---------------------------------------------------------------- text


class LinPast(Lin):
    r"""$\phi_h(z)=-p_hz$ for $z\ge1$: lin that, like log, does not see its own position."""

    def log_weights(self, length: int) -> torch.Tensor:
        return F.pad(super().log_weights(length)[:, 1:], (1, 0), value=-math.inf)


def model(encoding: str, heads: int, seed: int) -> Transformer:
    """One layer without dot product, 32 coordinates whatever the heads; slopes start spread over a wide range."""
    if encoding not in ENCODINGS:
        raise ValueError(f"unknown encoding {encoding!r} for this experiment; allowed: {', '.join(ENCODINGS)}")
    low, high = _RATES["lin" if encoding in ("lin", "lin_past") else "log"]
    slopes = np.exp(np.linspace(np.log(low), np.log(high), integer("heads", heads, 1) + 2))[1:-1].tolist()
    name = "lin" if encoding == "lin_past" else encoding
    config = TransformerConfig(d_in=len(data.ALPHABET), d_out=len(data.ALPHABET), d_model=32, heads=heads, width=64,
                               encoding=name, encoding_params={"slopes": slopes}, attention="dp_free",
                               norm="pre")  # fmt: skip
    made = Transformer(config, memlib.reproducible(seed))
    if encoding == "lin_past":
        attention = made.layers[0].attention
        attention.encoding = LinPast(attention.encoding.sizes, slopes)
    return made


def run(*, text: str, encoding: str, heads: int, seed: int, steps: int = 200, lr: float = 0.02, batch: int = 6,
        length: int = 128) -> dict:  # fmt: skip
    """Train one layer on the training part; ``loss`` is the cross entropy, in nats, on the held-out part.

    ``tuning`` is the same on the tuning part, by which the learning rate was chosen; ``slopes`` are those learned.
    """
    words = data.text(text)
    layer = model(encoding, heads, seed)
    fit(layer, words.windows("train"), steps=steps, lr=lr, batch=batch, length=length,
        generator=memlib.reproducible(100 + seed))  # fmt: skip
    result = {}
    for name, part in (("tuning", "tuning"), ("loss", "held_out")):
        x, y = words.windows(part).spread(64, length)
        with torch.no_grad():
            result[name] = F.cross_entropy(layer(x).flatten(0, 1), y.flatten()).item()
    slopes = sorted(layer.layers[0].attention.encoding.slope.tolist())
    return {**result, "slopes": slopes, "parameters": sum(p.numel() for p in layer.parameters())}


def grid(scale: str) -> list[dict]:
    """``book``: both texts, four encodings, one and four heads; ``large``: longer windows, rates and training."""
    if scale == "book":
        return product(text=list(data.TEXTS), encoding=list(ENCODINGS), heads=TEXT_HEADS, seed=SEEDS)
    return product(text=list(data.TEXTS), encoding=list(ENCODINGS), heads=[1, 2, 4, 8], seed=range(10), steps=[5000],
                   lr=[0.003, 0.01, 0.03], batch=[16], length=[512])  # fmt: skip
