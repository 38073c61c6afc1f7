r"""Rotary encoding points with one head and ordinary softmax (chapter Adaptive memory, Theorem a:thm-rotary).

The query of a token with pointer $g$ holds, for each frequency, the vector of length $Aa_f$ and angle $-\omega_fg$; all
keys are $(1,0)$. Rotated by their positions they give the logit $A\sum_fa_f\cos\omega_f(s-g)$ at lag $s$, which is
largest at $s=g$ by $A\gamma$ at least, so that

$$\|w-\delta_g\|_1\le2(N-1)\,e^{-A\gamma},\qquad\gamma=\min_{0<|z|<N}\sum_fa_f(1-\cos\omega_fz)$$

on lags $0..N-1$ (equation a:rotary-bound). For a wanted error the amplitude
$\frac1\gamma\log\frac{2(N-1)}\varepsilon$ suffices (equation a:rotary-amplitude).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from memlib import checks
from memlib.construct.construction import ROUND, Construction
from memlib.construct.pointers import Pointer
from memlib.encodings import make
from memlib.model import Transformer, TransformerConfig
from memlib.targets import AdaptiveSparse, Finite, Interval

__all__ = ["RotaryPointer", "rotary_frequencies", "rotary_gap", "rotary_pointer", "rotary_row"]


# ---------------------------------------------------------------- the lemma


def rotary_frequencies(window: int, frequencies: str | int = "full", *, d_head: int = 64) -> np.ndarray:
    r"""The $\omega_f$ by name: ``full``, ``standard``, or how many of the first ones of a full set.

    ``full``: $2\pi k/P$, $k=1..F$, with $P=2F+1\ge N$ the least such. A number $F$: $2\pi k/N$, $k=1..F$, so that 1 is
    the single frequency $2\pi/N$. ``standard``: those of rotary encoding, $10000^{-2f/d}$, $d$ = ``d_head``.
    """
    window = checks.integer("window", window, 2)
    if frequencies == "standard":
        return make("rotary", d_head=checks.integer("d_head", d_head, 2)).frequencies.numpy().copy()
    if frequencies == "full":
        count = window // 2  # the least F with 2 F + 1 >= N
        return 2 * np.pi * np.arange(1, count + 1) / (2 * count + 1)
    if isinstance(frequencies, str):
        raise ValueError(f"unknown frequencies {frequencies!r}; allowed: full, standard, or a number")
    count = checks.integer("frequencies (full, standard, or a number)", frequencies, 1)
    if count > window // 2:
        raise ValueError(f"of the frequencies 2 pi k / {window} only {window // 2} differ, got {count}")
    return 2 * np.pi * np.arange(1, count + 1) / window


def rotary_gap(omega: Sequence[float], window: int, shares: Sequence[float] | None = None) -> float:
    r"""$\gamma=\min_{0<|z|<N}\sum_fa_f(1-\cos\omega_fz)$, the $a_f$ equal unless given as ``shares``.

    For the full set it is $P/(2F)$: all other lags are equally far away.
    """
    window, omega = checks.integer("window", window, 2), np.asarray(omega, dtype=float)
    shares = np.full(len(omega), 1 / len(omega)) if shares is None else np.asarray(shares, dtype=float)
    if omega.ndim != 1 or shares.shape != omega.shape or (shares < 0).any() or abs(shares.sum() - 1) > 1e-9:
        raise ValueError("shares must be one number of at least 0 for each frequency, with sum 1")
    # 1 - cos = 2 sin^2: no cancellation for slow frequencies
    return float((2 * np.sin(np.outer(np.arange(1, window), omega) / 2) ** 2 @ shares).min())


# ---------------------------------------------------------------- the construction


@dataclass(frozen=True)
class RotaryPointer(Construction):
    r"""Two layers, one rotary head each, ordinary softmax: $y_t=x_{t-g(k_t)}$ for tokens $(x_t,k_t)$.

    The first layer's FFN turns the symbol into the angles of the query, by linear interpolation between the symbols:
    exact on them. Its attention writes nothing. The second layer's head reads. The statement is about sequences of at
    most ``window`` tokens, at positions that have a token at the lag asked for.

    Attributes:
        window: $N$.
        symbols: the values of the symbol's channel.
        lags: the lag that each symbol asks for.
        frequencies: the $\omega_f$.
        amplitude: $A$.
        per_frequency: $Aa_f$, the length of each pair of the query.
        gamma: $\gamma$.
    """

    window: int
    symbols: tuple[float, ...]
    lags: tuple[int, ...]
    frequencies: tuple[float, ...]
    amplitude: float
    per_frequency: float
    gamma: float

    @property
    def predicted_error(self) -> float:
        r"""$2(N-1)e^{-A\gamma}$, and never more than 2 (equation a:rotary-bound)."""
        return min(2.0, 2 * (self.window - 1) * math.exp(-self.amplitude * self.gamma))

    def row(self, lag: int, length: int | None = None) -> np.ndarray:
        r"""The attention weights by lag, $0..$ ``length`` $-1$, of a token that asks for ``lag``, by the formula."""
        length = self.window if length is None else checks.integer("length", length, 1)
        return rotary_row(self.frequencies, self.amplitude, lag, length)

    @property
    def exact_error(self) -> float:
        r"""$\max_g\|w-\delta_g\|_1$ over the pointer's lags, on the whole window: the worst error over all values."""
        rows = {g: self.row(g) for g in set(self.lags)}
        return max(float(np.delete(w, g).sum() + 1 - w[g]) for g, w in rows.items())

    def measured_error(self, x: Tensor) -> float:
        """The largest difference between model and target on the sequences ``x``, from the burn-in on."""
        with torch.no_grad():
            return float((self.model(x) - self.target(x))[:, self.target.burn_in :].abs().max())

    def worst_inputs(self) -> Tensor:
        r"""Sequences ``(n, window, 2)``: for each lag of the pointer, values on which the last output errs most.

        They are 1 at the lag and $-1$ elsewhere; the error is then $\|w-\delta_g\|_1$ itself.
        """
        batch = []
        for lag, symbol in dict(zip(self.lags, self.symbols, strict=True)).items():
            x = torch.full((self.window, 2), -1.0, dtype=torch.float64)
            x[-1 - lag, 0] = 1.0
            x[:, 1] = symbol
            batch.append(x)
        return torch.stack(batch)


def rotary_row(omega: Sequence[float], amplitude: float, lag: int, length: int) -> np.ndarray:
    r"""Softmax over lags $0..$ ``length`` $-1$ of $\frac AF\sum_f\cos\omega_f(s-g)$ (Theorem a:thm-rotary)."""
    omega = np.asarray(omega, dtype=float)
    below = -amplitude * (2 * np.sin(np.outer(np.arange(length) - lag, omega) / 2) ** 2).mean(axis=1)
    weights = np.exp(below - below.max())
    return weights / weights.sum()


def rotary_pointer(window: int, table, *, error: float = 1e-3, frequencies: str | int = "full", d_head: int = 64,
                   amplitude: float | None = None) -> RotaryPointer:  # fmt: skip
    r"""Build the pointer of Theorem 8c (a:thm-rotary): one head that reads lag $g(k_t)$ under ordinary softmax.

    Args:
        window: $N$, the length of the longest sequence; lags $0..N-1$ compete.
        table: the lags $g(0),g(1),\dots$ in $1..N-1$ of the symbols $k=0,1,\dots$; a token is (value, symbol). Or a
            `Pointer` that reads the symbol of the present token.
        error: the wanted bound on $\|w-\delta_g\|_1$, which is the worst error over values in $[-1,1]$.
        frequencies: ``full``, ``standard``, or the number of frequencies; see `rotary_frequencies`. All get the same
            share of the amplitude.
        d_head: the head dimension of the ``standard`` frequencies.
        amplitude: $A$; $\frac1\gamma\log\frac{2(N-1)}\varepsilon$ unless given, and then ``error`` plays no part.
    """
    window = checks.integer("window", window, 2)
    pointer, values, lags = _pointer(table, window)
    omega = rotary_frequencies(window, frequencies, d_head=d_head)
    gamma = rotary_gap(omega, window)
    if gamma < 1e-15:
        raise ValueError(f"these frequencies do not tell all lags below {window} apart: gamma = {gamma:.3g}")
    if amplitude is None:
        error = checks.positive_number("error", error)
        amplitude = math.log(max(2 * (window - 1) / error, 1.0)) / gamma
    amplitude = checks.plain_number("amplitude", amplitude)
    if amplitude < 0:
        raise ValueError(f"amplitude must be at least 0, got {amplitude!r}")
    pairs, symbols = len(omega), len(lags)
    slots = {
        "x": slice(0, 1),
        "symbol": slice(1, 2),
        "one": slice(2, 3),
        "query": slice(3, 3 + 2 * pairs),
        "y": slice(3 + 2 * pairs, 4 + 2 * pairs),
    }
    config = TransformerConfig(d_in=2, d_out=1, d_model=4 + 2 * pairs, layers=2, heads=1, width=max(symbols - 1, 1),
                               encoding="rotary", encoding_params={"frequencies": omega.tolist()}, d_head=2 * pairs,
                               max_length=window)  # fmt: skip
    model = Transformer(config)
    angles = np.outer(np.array(lags, dtype=float), omega)
    wanted = np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)  # (symbols, 2 F): the query's direction
    _write(model, slots, values, wanted, amplitude / pairs)
    float_error = _rounding(model, slots, values, wanted, amplitude, omega, window, gamma)
    target = AdaptiveSparse(_second_value, [pointer], [pointer.reach], 0, [Interval(-1.0, 1.0), Finite(values)])
    return RotaryPointer(model, target, slots, "a:thm-rotary", float_error, window, 1.0, window, values, lags,
                         tuple(omega.tolist()), amplitude, amplitude / pairs, gamma)  # fmt: skip


@torch.no_grad()
def _write(model: Transformer, slots, values, wanted: np.ndarray, amplitude: float) -> None:
    """The weights: embedding, the first FFN's interpolation of the query, the second layer's head, the read-out."""
    for parameter in model.parameters():
        parameter.zero_()
    x, symbol, one, query, y = (slots[name] for name in ("x", "symbol", "one", "query", "y"))
    model.embed.weight[x, 0] = 1.0
    model.embed.weight[symbol, 1] = 1.0
    model.embed.bias[one] = 1.0
    model.embed.bias[query] = torch.from_numpy(wanted[0])
    rise = np.diff(wanted, axis=0) / np.diff(values)[:, None]
    if len(rise):  # f(v) = f(v_0) + sum_j (rise_j - rise_{j-1}) relu(v - v_j)
        ffn = model.layers[0].ffn
        ffn.hidden.weight[:, symbol] = 1.0
        ffn.hidden.bias[:] = -torch.tensor(values[:-1], dtype=torch.float64)
        ffn.out.weight[query] = torch.from_numpy(np.diff(rise, axis=0, prepend=0.0).T.copy())
    pairs = wanted.shape[1] // 2
    attention = model.layers[1].attention
    attention.query.weight[:, query] = amplitude * torch.eye(2 * pairs, dtype=torch.float64)
    attention.key.weight[:pairs, one] = 1.0
    attention.value.weight[0, x] = 1.0
    attention.out.weight[y, 0] = 1.0
    model.readout.weight[0, y] = 1.0


@torch.no_grad()
def _rounding(model, slots, values, wanted, amplitude, omega, window, gamma) -> float:
    r"""What rounding may add: the logits are off by $\delta$ at most, so every weight by a factor $e^{\pm2\delta}$.

    $\delta/A$ collects the FFN's error on the symbols, which is measured, the angles $\omega_ft$, and the dot product.
    """
    tokens = torch.zeros(len(wanted), 1, 2, dtype=torch.float64)
    tokens[:, 0, 1] = torch.tensor(values)
    state = model.layers[0](model.embed(tokens))[:, 0, slots["query"]].numpy()
    off = float(np.abs(state - wanted).max()) + 2 * ROUND
    delta = amplitude * (2 * off + (4 * float(omega.max()) * window + 2 * len(omega) + 10) * ROUND)
    bound = min(2.0, 2 * (window - 1) * math.exp(-amplitude * gamma))
    return bound * math.expm1(min(2 * delta, 50.0)) + 4 * (window + 10) * ROUND


def _second_value(tokens: Tensor) -> Tensor:
    """The read-out: the value of the fetched token."""
    return tokens[:, :, 1, :1]


def _pointer(table, window: int) -> tuple[Pointer, tuple[float, ...], tuple[int, ...]]:
    """The pointer, the values of the symbol channel, and the lag of each of them."""
    if isinstance(table, Pointer):
        if len(table.weights) != 1 or len(table.weights[0]) != 2 or table.weights[0][0] or not table.weights[0][1]:
            raise ValueError(
                "the pointer must read the present token's channel 1 alone: its weights must be ((0, w),), "
                f"got {table.weights}"
            )
        pointer = table
    else:
        try:
            pointer = Pointer([[0.0, 1.0]], list(enumerate(table)))
        except TypeError:
            raise ValueError(f"table must be a sequence of lags, one for each symbol, got {table!r}") from None
    if pointer.reach >= window:
        raise ValueError(f"the pointer's lags must lie in 1..{window - 1} (the window less one), got {pointer.reach}")
    scale = pointer.weights[0][1]
    values = tuple(sorted(v / scale for v in pointer.values))
    lags = tuple(lag for _, lag in (pointer.table if scale > 0 else reversed(pointer.table)))
    return pointer, values, lags
