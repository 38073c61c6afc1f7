r"""Adaptive sparse memory as weights (chapter Adaptive memory, Theorems a:thm-warmup and a:thm-nested).

`adaptive` builds a Transformer for $y_t=f(x_t,x_{t-t_1},\dots,x_{t-t_M})$ whose lags are pointers,
$t_i=g_i(\text{tokens read so far})$. It has $K+1+\mathbb 1[M>K]$ layers (equation a:depth). A feed-forward network
computes a pointer, the next attention follows it: with a constant key and the query $\beta_hg$ a head weighs the token
$s$ steps ago by

$$e^{-\beta_h(s-g)}\ \text{(lin)},\qquad(s/g)^{-\beta_h}\ \text{(log)},$$

the kernel of the head, shifted or scaled by the token (equation a:shifted). For each pointer the output weights $c_h$
solve

$$\sum_hc_he^{-\beta_hz}=\delta_0(z)\ \text{at}\ z=-T,\dots,N-T-1,\qquad
\sum_hc_h\varrho^{-\beta_h}=\delta_1(\varrho)\ \text{at the least}\ N\ \text{ratios}\ \varrho=s/g,$$

(equation a:interpolating), so that the same weights fetch lag $g$ for every $g\le T$, and only a tail is wrong.

The pointers are tables on finitely many values of $\langle w,z\rangle$ and are computed by a ReLU staircase (Lemma
a:lem-staircase), which is flat around each value: tokens fetched with a small error still give the exact pointer, and
errors do not add up along the nesting. `adaptive` checks that they are small enough.

As in `fixed`, the tail falls as the spacing $\alpha$ of the slopes grows, while the coefficients, and with them
rounding, grow: the spacing and the number of nodes are chosen to make the sum least. A pointer that no choice can
follow with an error below 1 gets the zero kernel, whose error is 1. With log heads that is most of them: the ratios
$s/g$ crowd, and double precision ends at reach 4.
"""

import math
from dataclasses import dataclass, field, replace

import mpmath
import numpy as np
import torch
from torch import Tensor

from memlib import checks
from memlib.construct.construction import ROUND, Construction
from memlib.construct.fixed_memory import _readout_rounding
from memlib.construct.moved_kernels import DIGITS, RANGE, Followed, solve, split
from memlib.construct.pointers import SLACK, Pointer, reachable
from memlib.construct.readouts import Linear, QuadraticRidge, Readout, ReluRidge, network_error, written_down
from memlib.encodings import softplus, softplus_inverse
from memlib.model import FeedForward, Transformer, TransformerConfig
from memlib.targets import AdaptiveSparse, Finite

__all__ = ["AdaptiveConstruction", "adaptive"]

_MOST_NESTING = 4


# ---------------------------------------------------------------- the construction


@dataclass(frozen=True)
class AdaptiveConstruction(Construction):
    r"""The Transformer of Theorems a:thm-warmup ($K=0$) and a:thm-nested.

    Slots: ``x``, ``one`` (the constant key), ``pointer i`` (with log heads it holds the logarithm), ``token i``, and
    ``y`` if the readout needs an FFN.

    Attributes:
        alphas: spacing of the slopes, for each pointer.
        nodes: how many heads, and nodes, each pointer has; 0 for a zero kernel.
        pointer_layers: the layer (from 1) whose attention follows each pointer.
        pointer_heads: the heads of that layer that belong to it.
        kernel_errors: $\max_g\|\delta_g-\varphi_g\|_{\ell^1}$ of the stored weights, without normaliser.
        sink_errors: $e^{-c}\sum_h|c_h|Z_h^2$ for each pointer (Lemma a:lem-sink); 0 without a sink.
        fetch_rounding: what rounding may add to each fetched token.
        margins: for each pointer, by how much its argument may be off and still give the exact pointer (a quarter of
            its gap), divided by how much it can be off; above 1, or `adaptive` raises. Infinite if it reads $x_t$ only.
        sensitivity: $L_i$ of the readout's network for each fetched token.
        ffn_part: the largest error of the readout's network on the cube.
        offset: $c$, by which a sink's logits are lowered; none without a sink.
        weight: $\max_i\sum_h|c_h|e^{\beta_hT}$ (lin), $\max_i\sum_h|c_h|T^{\beta_h}$ (log).
        hard_points: values of $\langle w,z\rangle$ at which the readout's FFN errs most, or is steepest.
    """

    alphas: tuple[float, ...]
    nodes: tuple[int, ...]
    pointer_layers: tuple[int, ...]
    pointer_heads: tuple[slice, ...]
    kernel_errors: tuple[float, ...]
    sink_errors: tuple[float, ...]
    fetch_rounding: tuple[float, ...]
    margins: tuple[float, ...]
    sensitivity: tuple[float, ...]
    ffn_part: float
    offset: float | None
    weight: float
    hard_points: tuple[float, ...] = field(default=(1.0, -1.0))

    @property
    def fetch_errors(self) -> tuple[float, ...]:
        """For each fetched token, how far it may be from the right one in exact arithmetic: kernel plus sink."""
        return tuple(a + b for a, b in zip(self.kernel_errors, self.sink_errors, strict=True))

    @property
    def sink_error(self) -> float:
        """The sink's share of the predicted error."""
        return math.fsum(a * b for a, b in zip(self.sensitivity, self.sink_errors, strict=True))

    @property
    def attention_part(self) -> float:
        r"""$\sum_iL_i\varepsilon_i$ with the fetch errors $\varepsilon_i$."""
        return math.fsum(a * b for a, b in zip(self.sensitivity, self.fetch_errors, strict=True))

    @property
    def predicted_error(self) -> float:
        r"""An upper bound on $\sup_{t,X}|\mathbf H_t(X)-\mathbf G_t(X)|$, exact arithmetic (a:nested-bound)."""
        return self.attention_part + self.ffn_part

    @property
    def depth(self) -> int:
        r"""$K+1+\mathbb 1[M>K]$ (equation a:depth); the model has as many layers."""
        return self.target.nesting + 1 + (len(self.target.pointers) > self.target.nesting)

    def measured_error(self, x: Tensor) -> float:
        """The largest difference between model and target on the sequences ``x``, over positions from burn-in on."""
        first = self.target.burn_in
        if x.ndim != 3 or x.shape[1] <= first:
            raise ValueError(f"sequences must be longer than the burn-in of {first} positions, got {tuple(x.shape)}")
        with torch.no_grad():
            return float((self.model(x) - self.target(x))[:, first:].abs().max())

    def largest_error(self, generator: torch.Generator, length: int = 40, batch: int = 100) -> float:
        """The largest `measured_error` on `worst_inputs` and on ``batch`` random sequences."""
        drawn = self.target.sample(batch, length, generator)[0]
        return max(self.measured_error(self.worst_inputs(length)), self.measured_error(drawn))

    def kernel(self, pointer: int, lag: int, length: int) -> np.ndarray:
        """The weights with which the slot ``token i`` takes the last ``length`` tokens when pointer i says ``lag``.

        By lag ``0..length-1``, correct to double; under a sink, of a sequence of ``length`` tokens.
        """
        pointer = self._pointer(pointer)
        lags = self.target.pointers[pointer - 1].lags
        if lag not in lags:
            raise ValueError(f"lag must be one that pointer {pointer} can say, {lags}, got {lag!r}")
        length = checks.integer("length", length, 1)
        with mpmath.workdps(DIGITS):
            return np.array([float(v) for v in _followed(self, pointer).values(lag, length)])

    def coefficients(self, pointer: int) -> tuple[np.ndarray, np.ndarray]:
        r"""Slopes $\beta_h$ and coefficients $c_h$ of the heads of a pointer, as stored."""
        found = _followed(self, self._pointer(pointer))
        return np.array(found.slopes), np.array([float(c) for c in found.coefficients])

    def under(self, normaliser: str) -> Transformer:
        """A bare Transformer with the same weights and another normaliser: what it does to the proof."""
        model = Transformer(replace(self.model.config, normaliser=normaliser), torch.Generator())
        model.load_state_dict(self.model.state_dict())
        return model

    def worst_inputs(self, length: int, paths: int = 8) -> Tensor:
        r"""Sequences ``(n, length, d_in)`` on which the last output should err most.

        Of many random sequences, those whose lags at the last position have the largest fetch errors are kept, at most
        ``paths``. What their pointers read stays; every other entry takes the sign of the kernels' error,
        $\pm\operatorname{sign}\sum_iw_ie_i(s)$, or the value of its alphabet on that side; the values that are read
        have those signs too, or are $r\operatorname{sign}w_i$ with $r$ from ``hard_points``.
        """
        target, length = self.target, checks.integer("length", length, 1)
        if length <= target.burn_in:
            raise ValueError(f"length must exceed the longest reach, {target.burn_in}, got {length}")
        drawn = target.sample(256, length, torch.Generator().manual_seed(0))[0]
        said = [tuple(row) for row in target.lags(drawn)[:, -1].tolist()]
        kernels = {}
        for row in set(said):
            for i, lag in enumerate(row, 1):
                if (i, lag) not in kernels:
                    kernels[i, lag] = self.kernel(i, lag, length) - np.eye(1, length, lag)[0]

        def size(row) -> float:
            return -sum(
                share * np.abs(kernels[i, lag]).sum()
                for i, (share, lag) in enumerate(zip(self.sensitivity, row, strict=True), 1)
            )

        w = np.array(target.readout.weights)
        read = np.array([any(row[c] for p in target.pointers for row in p.weights) for c in range(target.d_in)])
        low, high = np.array([_ends(channel) for channel in target.inputs]).T
        batch = []
        for row in sorted(set(said), key=lambda row: (size(row), row))[:paths]:
            x = drawn[said.index(row)].numpy()[::-1]  # by lag
            error = sum(kernels[i, lag][:, None] * w[i] for i, lag in enumerate(row, 1))
            pattern = np.where(error < 0, -1.0, 1.0)
            kept = np.zeros((length, target.d_in), dtype=bool)
            kept[[0, *row]] = read
            for sign in (1.0, -1.0):
                for r in (None, *self.hard_points):
                    wanted = sign * pattern
                    if r is not None:
                        for lag, weights in zip((0, *row), w, strict=True):
                            wanted[lag] = r * np.where(weights < 0, -1.0, 1.0)
                    tokens = np.clip(wanted, low, high)
                    for c, channel in enumerate(target.inputs):
                        if isinstance(channel, Finite):
                            tokens[:, c] = np.where(wanted[:, c] < 0, low[c], high[c])
                    batch.append(np.where(kept, x, tokens))
        return torch.from_numpy(np.stack(batch)[:, ::-1].copy())

    def _pointer(self, pointer: int) -> int:
        count = len(self.target.pointers)
        if isinstance(pointer, bool) or pointer not in range(1, count + 1):
            raise ValueError(f"pointers are numbered 1..{count}, got {pointer!r}")
        return int(pointer)


def _ends(channel) -> tuple[float, float]:
    if isinstance(channel, Finite):
        return min(channel.values), max(channel.values)
    return channel.low, channel.high


def adaptive(target: AdaptiveSparse, heads: int, encoding: str, normaliser: str = "none", *, attention: str = "dp",
             width: int | None = None, offset: float | None = None, alpha: float | None = None, length: int = 64,
             caution: float = 1.0) -> AdaptiveConstruction:  # fmt: skip
    r"""Build the Transformer of Theorem 2 (a:thm-warmup, $K=0$) or Theorem 3 (a:thm-nested) for an adaptive target.

    It has $K+1+\mathbb 1[M>K]$ layers with $H$ heads of dimension ``d_in`` each, no norms, and as many neurons as its
    widest layer needs. Layer 1's FFN computes the first pointer (all of them if $K=0$); the attention of layer $l$
    fetches token $l-1$ and its FFN computes the next pointer; if $M>K$, one more layer fetches the remaining tokens,
    its heads split between them. The last FFN is the readout.

    Args:
        target: a `targets.AdaptiveSparse` with `Pointer` pointers, nesting up to 4, tokens in $[-1,1]$ and a `Linear`,
            `ReluRidge` or `QuadraticRidge` readout.
        heads: $H$ per layer. A pointer with lin heads and reach $T$ needs $T+1$ of them; with log heads as many as
            there are different fractions $s/g\le1$. Pointers fetched in the same layer share the heads of the layer.
        encoding: ``lin`` or ``log``.
        normaliser: ``none`` or ``sink``. Under ``softmax`` a query-only logit cancels (Lemma a:lem-cancel).
        attention: ``dp`` (a dot product with a constant key) or ``tmx`` (the query-only logit itself).
        width: neurons of the readout: 0 for `Linear`, 1 for `ReluRidge`, even for `QuadraticRidge` (32 unless given).
        offset: $c$, by which the logits of a sink are lowered; unless given, large enough for its error to be below the
            rest.
        alpha: spacing of the slopes; chosen unless given. For ``log`` it must exceed 1.
        length: the longest sequence for which ``float_error`` is stated. With TMX, more than 64 tokens go through an
            FFT, whose rounding grows with the length.
        caution: how many times rounding counts when $\alpha$ and the nodes are chosen, as in `fixed`.
    """
    heads, length, caution = _check(target, heads, encoding, normaliser, attention, offset, alpha, length, caution)
    readout, pointers, nesting, d = target.readout, target.pointers, target.nesting, target.d_in
    count = len(pointers)
    default = {Linear: 0, ReluRidge: 1}.get(type(readout), 32)
    network = readout.network(default if width is None else checks.integer("width", width, 0), "interpolating", None)
    ffn_part, hardest, steepness = 0.0, (), readout.slope
    if isinstance(readout, QuadraticRidge):
        ffn_part, point, steepness = network_error(network, readout)
        hardest = (point,)
    sensitivity = [steepness / readout.slope * size for size in readout.per_token[1:]]

    slots = _slots(d, count, network is not None)
    depth = nesting + 1 + (count > nesting)
    layers = [min(i, nesting) + 2 for i in range(count)]  # whose attention follows pointer i
    stairs = [pointer.staircase(encoding) for pointer in pointers]
    neurons = [
        sum(stairs[i].hidden.out_features for i in range(count) if layers[i] == at) for at in range(2, depth + 1)
    ]
    config = TransformerConfig(
        d_in=d, d_out=1, d_model=max(s.stop for s in slots.values()), layers=depth, heads=heads, d_head=d,
        width=max(*neurons, network.hidden.out_features if network else 0, 1),
        encoding=encoding, attention=attention, normaliser=normaliser,
    )  # fmt: skip

    fuzz = [_pointer_rounding(stair) for stair in stairs]
    plans, places = [None] * count, [None] * count
    for layer in range(2, depth + 1):
        here = [i for i in range(count) if layers[i] == layer]
        share = [sensitivity[i] + _use(pointers, layers, layer, i) for i in here]
        chosen = split([pointers[i] for i in here], share, heads, encoding, alpha, caution)
        first = 0
        for i, (a, nodes) in zip(here, chosen, strict=True):
            plans[i], places[i] = (a, nodes), slice(first, first + nodes)
            first += nodes

    model = Transformer(config, torch.Generator())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for layer in model.layers:
            layer.attention.encoding.raw_slope.copy_(softplus_inverse(torch.full((heads,), 1.5, dtype=torch.float64)))
        model.embed.weight[slots["x"]] = torch.eye(d, dtype=torch.float64)
        model.embed.bias[slots["one"]] = 1.0
        solved = [
            _write_slopes(model.layers[layers[i] - 1].attention, places[i], plans[i][0], pointers[i].lags, encoding)
            for i in range(count)
        ]
        if normaliser == "sink" and offset is None:
            offset = max(
                _enough(pointers[i], encoding, slopes, coefficients, stairs[i], fuzz[i], length)
                for i, (slopes, coefficients) in enumerate(solved)
            )
        for i, (slopes, coefficients) in enumerate(solved):
            _write_attention(model, slots, i + 1, layers[i], places[i], slopes, coefficients, offset)
        used = [0] * depth
        for i, stair in enumerate(stairs):
            at = layers[i] - 2  # the FFN of the layer before
            names = ["x", *(f"token {j}" for j in range(1, len(pointers[i].weights)))]
            _write_ffn(model, slots, at, used[at], stair, names, f"pointer {i + 1}")
            used[at] += stair.hidden.out_features
        _write_readout(model, slots, readout, network)

    made = AdaptiveConstruction(
        model=model, target=target, slots=slots, theorem="a:thm-nested" if nesting else "a:thm-warmup",
        float_error=0.0, length=length, largest_coefficient=0.0, alphas=tuple(a for a, _ in plans),
        nodes=tuple(n for _, n in plans), pointer_layers=tuple(layers), pointer_heads=tuple(places), kernel_errors=(),
        sink_errors=(), fetch_rounding=(), margins=(), sensitivity=tuple(sensitivity), ffn_part=ffn_part,
        offset=offset if normaliser == "sink" else None, weight=0.0, hard_points=(1.0, -1.0, *hardest),
    )  # fmt: skip
    return _accounts(made, fuzz, network)


def _accounts(made: AdaptiveConstruction, fuzz, network) -> AdaptiveConstruction:
    """The errors of a construction, from its stored weights; raises if an inexact token could move a pointer."""
    pointers, config = made.target.pointers, made.model.config
    followed = [_followed(made, i + 1) for i in range(len(pointers))]
    kernel_errors = tuple(part.l1_error() for part in followed)
    sink = made.offset is not None
    sink_errors = tuple(part.sink_error(made.offset) if sink else 0.0 for part in followed)
    rounding = tuple(
        part.rounding(blur, made.length, config.attention == "tmx") + ROUND * 4
        for part, blur in zip(followed, fuzz, strict=True)
    )
    total = [sum(parts) for parts in zip(kernel_errors, sink_errors, rounding, strict=True)]
    margins = []
    for i, pointer in enumerate(pointers):
        off = math.fsum(size * e for size, e in zip(pointer.per_token[1:], total, strict=False))
        room = pointer.gap / 4 - SLACK
        if off > room:
            raise ValueError(
                f"pointer {i + 1} reads fetched tokens whose errors {', '.join(f'{e:.2g}' for e in total[:i])} can "
                f"move its argument by {off:.2g}, but its table forgives a quarter of its gap, {room:.2g}; take more "
                "heads, a larger caution, a shorter reach, or lin heads"
            )
        margins.append(room / off if off else math.inf)
    size = 1 + max(total)
    sizes = [[abs(float(c)) for c in part.coefficients] for part in followed]
    moved = [
        math.fsum(c * math.exp(b * float(part.moves[part.lags[-1]])) for c, b in zip(row, part.slopes, strict=True))
        for row, part in zip(sizes, followed, strict=True)
    ]
    return replace(
        made,
        kernel_errors=kernel_errors,
        sink_errors=sink_errors,
        fetch_rounding=rounding,
        margins=tuple(margins),
        float_error=math.fsum(a * b for a, b in zip(made.sensitivity, rounding, strict=True))
        + _readout_rounding(made.model, made.target.readout, network, size),
        largest_coefficient=max((c for row in sizes for c in row), default=0.0),
        weight=max(moved),
    )


def _slots(d: int, count: int, ffn: bool) -> dict[str, slice]:
    slots, first = {}, 0
    sizes = {"x": d, "one": 1}
    sizes |= {f"pointer {i}": 1 for i in range(1, count + 1)} | {f"token {i}": d for i in range(1, count + 1)}
    for name, size in (sizes | ({"y": 1} if ffn else {})).items():
        slots[name] = slice(first, first + size)
        first += size
    return slots


def _use(pointers, layers, layer: int, i: int) -> float:
    """How much later pointers care for token i: a token that nobody reads out still has to be found."""
    later = [p for p, at in zip(pointers, layers, strict=True) if at > layer and len(p.per_token) > i + 1]
    return max((p.per_token[i + 1] / p.gap for p in later), default=0.0)


def _pointer_rounding(stair: FeedForward) -> float:
    """What rounding may add to a pointer in its slot, for tokens of at most 5/4."""
    with torch.no_grad():
        hidden, bias, out = stair.hidden.weight.numpy(), stair.hidden.bias.numpy(), stair.out.weight[0].numpy()
    size = np.abs(hidden).sum(-1) * 1.25 + np.abs(bias)
    operations = np.count_nonzero(hidden, axis=1) + 2 + np.count_nonzero(out)
    return float(ROUND * (np.abs(out) * size * operations).sum())


def _write_slopes(attention, heads: slice, alpha: float, lags, encoding: str):
    """Store the slopes of a pointer's heads; returns them as stored, and the coefficients that belong to them."""
    count = heads.stop - heads.start
    if not count:
        return [], []
    wanted = alpha * torch.arange(1, count + 1, dtype=torch.float64)
    attention.encoding.raw_slope[heads] = softplus_inverse(wanted)
    slopes = softplus(attention.encoding.raw_slope).tolist()[heads]
    return slopes, solve(lags, encoding, slopes)


def _enough(pointer: Pointer, encoding: str, slopes, coefficients, stair: FeedForward, fuzz: float, length: int):
    """An offset for which the sink's error is a hundredth of the kernel's, or of rounding, whichever is larger."""
    if not coefficients:
        return 0.0
    stored = tuple(mpmath.mpf(float(c)) for c in coefficients)
    part = Followed(pointer.lags, encoding, tuple(slopes), stored, _moves(pointer, encoding, stair), 40.0)
    rest = max(part.l1_error(), part.rounding(fuzz, length, False))
    return max(0.0, math.log(100 * part.sink_error(0.0) / rest))


def _write_attention(model, slots, number: int, layer: int, heads: slice, slopes, coefficients, offset) -> None:
    """Query, key, value and output weights: slot ``token i`` receives the token that slot ``pointer i`` points to."""
    config, attention = model.config, model.layers[layer - 1].attention
    d, one = config.d_head, torch.eye(config.d_in, dtype=torch.float64)
    lift = mpmath.exp(offset) if offset is not None else 1
    for h, slope, c in zip(range(heads.start, heads.stop), slopes, coefficients, strict=True):
        rows = slice(h * d, (h + 1) * d)
        query = h if config.attention == "tmx" else h * d
        attention.query.weight[query, slots[f"pointer {number}"]] = slope
        if offset is not None:
            attention.query.weight[query, slots["one"]] = -offset
        if config.attention == "dp":
            attention.key.weight[query, slots["one"]] = 1.0
        attention.value.weight[rows, slots["x"]] = one
        with mpmath.workdps(DIGITS):
            attention.out.weight[slots[f"token {number}"], rows] = float(c * lift) * one


def _write_ffn(model, slots, layer: int, first: int, network: FeedForward, names, into: str) -> None:
    """Put a network that reads the slots ``names``, in this order, into a layer's FFN, from neuron ``first`` on."""
    ffn, rows = model.layers[layer].ffn, slice(first, first + network.hidden.out_features)
    columns = [c for name in names for c in range(slots[name].start, slots[name].stop)]
    ffn.hidden.weight[rows, columns] = network.hidden.weight
    ffn.hidden.bias[rows] = network.hidden.bias
    ffn.out.weight[slots[into], rows] = network.out.weight


def _write_readout(model, slots, readout: Readout, network: FeedForward | None) -> None:
    names = ["x", *(f"token {i}" for i in range(1, readout.tokens))]
    if network is None:
        for name, row in zip(names, readout.weights, strict=True):
            model.readout.weight[0, slots[name]] = torch.tensor(row, dtype=torch.float64)
        model.readout.bias.fill_(readout.bias)
        return
    _write_ffn(model, slots, len(model.layers) - 1, 0, network, names, "y")
    model.readout.weight[0, slots["y"]] = 1.0


def _moves(pointer: Pointer, encoding: str, stair: FeedForward) -> dict:
    """What the staircase as stored gives for each lag, in exact arithmetic; the least favourable where it differs."""
    if encoding == "lin":
        return {lag: mpmath.mpf(lag) for lag in pointer.lags}
    out = stair.out.weight.detach()[0].tolist()
    found, height, step = {}, mpmath.mpf(out[0]), 1
    for i, (_, lag) in enumerate(pointer.table):
        if i and lag != pointer.table[i - 1][1]:
            height, step = height + mpmath.mpf(out[step]), step + 2
        if lag not in found or abs(height - mpmath.log(lag)) > abs(found[lag] - mpmath.log(lag)):
            found[lag] = height
    return found


def _followed(made: AdaptiveConstruction, number: int) -> Followed:
    """Slopes, coefficients and offset of a pointer, read from the weights themselves; exact numbers."""
    pointer, config = made.target.pointers[number - 1], made.model.config
    heads, attention = made.pointer_heads[number - 1], made.model.layers[made.pointer_layers[number - 1] - 1].attention
    row = made.slots[f"token {number}"].start
    stored = attention.out.weight.detach()[row, :: config.d_head].tolist()[heads]
    with mpmath.workdps(DIGITS):
        drop = mpmath.exp(-made.offset) if made.offset is not None else 1
        coefficients = tuple(mpmath.mpf(c) * drop for c in stored)
        moves = _moves(pointer, config.encoding, pointer.staircase(config.encoding))
    slopes = tuple(attention.encoding.slope.detach().tolist()[heads])
    return Followed(pointer.lags, config.encoding, slopes, coefficients, moves, made.offset)


# ---------------------------------------------------------------- checks


def _check(target, heads, encoding, normaliser, attention, offset, alpha, length, caution) -> tuple[int, int, float]:
    if not isinstance(target, AdaptiveSparse):
        raise TypeError(f"target must be a targets.AdaptiveSparse, got {type(target).__name__}")
    written_down(target.readout)
    for i, pointer in enumerate(target.pointers, 1):
        if not isinstance(pointer, Pointer):
            raise TypeError(
                f"pointer {i} must be a construct.Pointer, whose table can be written down as a staircase; got "
                f"{type(pointer).__name__}"
            )
    if target.nesting > _MOST_NESTING:
        raise ValueError(
            f"nesting up to {_MOST_NESTING} is supported (each level is one more layer), got {target.nesting}"
        )
    for channel in target.inputs:
        if max(map(abs, _ends(channel))) > 1:
            raise ValueError(f"tokens must lie in [-1, 1], as in the theorem; got a channel {channel!r}")
    shape = (target.readout.tokens, len(target.readout.weights[0]))
    if shape != (len(target.pointers) + 1, target.d_in):
        raise ValueError(
            f"the readout must have weights for M + 1 = {len(target.pointers) + 1} tokens of {target.d_in} channels, "
            f"got {shape[0]} of {shape[1]}"
        )
    for i, (pointer, reach) in enumerate(zip(target.pointers, target.reach, strict=True), 1):
        _check_pointer(pointer, i, reach, target)
    if encoding not in RANGE:
        raise ValueError(f"the construction exists for the encodings lin and log, got {encoding!r}")
    if normaliser not in ("none", "sink"):
        raise ValueError(
            f"allowed normalisers: none, sink; got {normaliser!r}. A logit that depends on the query alone cancels "
            "under softmax"
        )
    if attention not in ("dp", "tmx"):
        raise ValueError(f"allowed attention: dp, tmx; got {attention!r}")
    if offset is not None and normaliser != "sink":
        raise ValueError(f"an offset belongs to the normaliser sink, got offset={offset!r} with {normaliser!r}")
    if offset is not None and not 0 <= checks.plain_number("offset", offset) <= 500:
        raise ValueError(f"offset must lie in 0..500, got {offset!r}")
    least = 0 if encoding == "lin" else 1
    if alpha is not None and not checks.plain_number("alpha", alpha) > least:
        raise ValueError(f"alpha must be a finite number above {least} for {encoding}, got {alpha!r}")
    caution = checks.positive_number("caution", caution)
    return checks.integer("heads", heads, 1), checks.integer("length", length, 2), caution


def _check_pointer(pointer: Pointer, number: int, reach: int, target: AdaptiveSparse) -> None:
    visible = min(number - 1, target.nesting) + 1
    if len(pointer.weights) > visible:
        raise ValueError(
            f"pointer {number} has weights for {len(pointer.weights)} tokens, but at nesting {target.nesting} it can "
            f"see {visible} only"
        )
    if pointer.reach > reach:
        raise ValueError(f"pointer {number} says lags up to {pointer.reach}, beyond its reach of {reach}")
    values = np.array(pointer.values)
    for v in reachable(pointer.weights, target.inputs):
        if np.abs(values - v).min() > SLACK:
            raise ValueError(
                f"pointer {number} can be given the value {v:g}, which is not in its table; the table has "
                f"{', '.join(f'{u:g}' for u in pointer.values)}"
            )
