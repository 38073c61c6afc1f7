r"""What can stand in for the dot product: the same look-ups, the same number of parameters, four kinds of attention.

A token is a value (a real number in $[-1,1]$ or a bit $\pm1$) and the bits $\pm1$ of a symbol. Three targets are
position pointers, adaptive sparse memories (chapter Adaptive memory, equation a:target): the symbol says how many
tokens ago the answer stands. One is a content match: the symbol is a key, and the answer is the value that came last
with the same key. Models have 4 heads and a residual stream of 16; each variant gets the FFN width that makes its
number of parameters that of DP attention. *Substitutes* shows the results.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import memlib
from memlib.bounds import dp_free_floor
from memlib.checks import integer, positive_number
from memlib.model import Transformer, TransformerConfig
from memlib.sweep import product
from memlib.targets import AdaptiveSparse, Finite, Interval, Target, shift
from memlib.train import fit

__all__ = [
    "CONFUSING",
    "CORE",
    "HEADS",
    "LIVE",
    "PILOT",
    "PILOT_SEEDS",
    "RATES",
    "SEEDS",
    "TASKS",
    "VARIANTS",
    "Recall",
    "Task",
    "Variant",
    "arithmetic",
    "best_rates",
    "combined",
    "config",
    "gated_lookup",
    "grid",
    "lookup",
    "model",
    "parameters",
    "run",
    "symbol",
    "witnesses",
]

SEEDS = range(5)
HEADS, D_MODEL, WIDTH, BATCH = 4, 16, 16, 32
BIT = Finite((-1.0, 1.0))
_BUCKETS = {"buckets": 24, "max_distance": 24}  # a bias for each of the lags 0..11, shared ones up to 24


# ---------------------------------------------------------------- targets


def symbol(bits: Tensor) -> Tensor:
    """The number $0..2^n-1$ that $n$ bits $\\pm1$ on the last axis spell, the first bit lowest."""
    return ((bits > 0) * 2.0 ** torch.arange(bits.shape[-1], dtype=torch.float64)).sum(-1)


def _tokens(bits: int, values: str) -> list[Interval | Finite]:
    if values not in ("real", "bits"):
        raise ValueError(f"unknown values {values!r}; allowed: real, bits")
    return [Interval() if values == "real" else BIT, *[BIT] * integer("bits", bits, 1)]


def _first(z: Tensor) -> Tensor:
    return 1 + symbol(z[:, :, 0, 1:])


def _second(z: Tensor) -> Tensor:
    return 1 + symbol(z[:, :, 0, 1:] * z[:, :, 1, 1:])


def lookup(bits: int = 2, values: str = "real") -> AdaptiveSparse:
    r"""$y_t=v_{t-g(x_t)}$, $g=1+$ the symbol of $x_t$: a position pointer of reach $T=2^{\text{bits}}$, not nested."""
    return AdaptiveSparse(lambda z: z[:, :, 1, :1], [_first], [2**bits], 0, _tokens(bits, values))


def combined(bits: int = 2, values: str = "real") -> AdaptiveSparse:
    r"""Two look-ups that combine keys, $K=2$: $t_1=1+$ symbol, $t_2=1+$ (symbol of $x_t$ xor symbol of $x_{t-t_1}$).

    The token in between does not know the symbol of $x_t$, so that it cannot look ahead for it.
    """
    return AdaptiveSparse(lambda z: z[:, :, 2, :1], [_first, _second], [2**bits] * 2, 2, _tokens(bits, values))


class Recall(Target):
    r"""Content match: the value of the last of the tokens $t-1,\dots,t-W$ with the symbol of $x_t$; 0 if there is none.

    Where the answer stands depends on all the tokens in between, not on the present one alone: a key to be matched, no
    pointer.
    """

    def __init__(self, window: int = 8, bits: int = 2):
        super().__init__(_tokens(bits, "real"), 1)
        self.window = self.burn_in = integer("window", window, 1)

    def evaluate(self, x: Tensor) -> Tensor:
        present = torch.cat([torch.ones_like(x[..., :1]), x], dim=-1)
        y = torch.zeros_like(x[..., :1])
        for lag in range(self.window, 0, -1):
            there, value, *key = shift(present, lag).unbind(-1)
            match = (there > 0) & (torch.stack(key, -1) == x[..., 1:]).all(-1)
            y = torch.where(match[..., None], value[..., None], y)
        return y


@dataclass(frozen=True)
class Task:
    """A target and the sizes it is learned with. Sequences are 8 tokens longer than the burn-in.

    Attributes:
        make: makes the target.
        layers: number of layers.
        steps: training steps.
        width: FFN width of DP attention; the other variants get what makes the parameters equal. 0: none has an FFN.
        about: the target in a few words.
    """

    make: Callable[[], Target]
    layers: int = 1
    steps: int = 400
    width: int = WIDTH
    about: str = ""


TASKS = {
    "real": Task(lookup, about="pointer, reach 4, real values"),
    "bits": Task(lambda: lookup(values="bits"), about="pointer, reach 4, bits"),
    "alone": Task(lookup, width=0, about="pointer, reach 4, real values, no FFN"),
    "nested": Task(combined, layers=2, steps=3000, about="two pointers, keys combined, reach 4, two layers"),
    "far": Task(lambda: lookup(3), about="pointer, reach 8, real values"),
    "content": Task(Recall, about="content match, window 8, real values"),
    "content, two layers": Task(Recall, layers=2, steps=3000, about="content match, window 8, two layers"),
}
"""The tasks by name. ``real``, ``bits``, ``alone`` and ``nested`` point no farther than there are heads."""


# ---------------------------------------------------------------- variants, equal in their number of parameters


@dataclass(frozen=True)
class Variant:
    """Attention, encoding and normaliser of a `TransformerConfig`."""

    attention: str
    encoding: str
    normaliser: str


VARIANTS = {
    "DP": Variant("dp", "t5", "softmax"),
    "DP, sink": Variant("dp", "t5", "sink"),
    "DP, rotary": Variant("dp", "rotary", "softmax"),
    "linear": Variant("linear", "t5", "softmax"),
    "TMX, sink": Variant("tmx", "t5", "sink"),
    "TMX": Variant("tmx", "t5", "none"),
    "DP-free": Variant("dp_free", "t5", "softmax"),
    "DP, lin": Variant("dp", "lin", "softmax"),
    "linear, lin": Variant("linear", "lin", "softmax"),
    "TMX, sink, lin": Variant("tmx", "lin", "sink"),
    "DP-free, lin": Variant("dp_free", "lin", "softmax"),
}
"""What is compared. The encoding is T5's, a bias for every lag, unless the name says another."""

CORE = ("DP", "DP, rotary", "linear", "TMX, sink", "DP-free")
"""One variant of each kind of attention, and rotary DP; the others answer side questions."""


def _known(label: str, name: str, table: dict) -> None:
    if name not in table:
        raise ValueError(f"unknown {label} {name!r}; allowed: {'; '.join(table)}")


def parameters(configuration: TransformerConfig) -> int:
    """The number of trained weights of a model."""
    return sum(p.numel() for p in Transformer(configuration, torch.Generator()).parameters())


def config(task: str, variant: str, width: int | None = None) -> TransformerConfig:
    """A variant for a task, with the FFN width that makes its parameters as many as those of DP with ``width``.

    A neuron is one part in 60 or less of the parameters, so the numbers agree to 1 %. Width 0 stays 0.
    """
    _known("task", task, TASKS)
    _known("variant", variant, VARIANTS)
    width = TASKS[task].width if width is None else integer("width", width, 0)
    reference, made = _config(task, "DP", width), _config(task, variant, width)
    if not width:
        return made
    neuron = made.layers * (2 * D_MODEL + 1)
    return replace(made, width=width + round((parameters(reference) - parameters(made)) / neuron))


def _config(task: str, variant: str, width: int) -> TransformerConfig:
    kind = VARIANTS[variant]
    return TransformerConfig(
        d_in=TASKS[task].make().d_in, d_model=D_MODEL, layers=TASKS[task].layers, heads=HEADS, width=width,
        encoding=kind.encoding, encoding_params=_BUCKETS if kind.encoding == "t5" else {},
        attention=kind.attention, normaliser=kind.normaliser,
    )  # fmt: skip


def model(task: str, variant: str, seed: int, width: int | None = None) -> Transformer:
    """A variant before training.

    Without normaliser a head adds up the past instead of averaging it; its biases start lower by the logarithm of
    the length, so that it starts as an average, as the others do.
    """
    made = Transformer(config(task, variant, width), memlib.reproducible(seed))
    if made.config.normaliser == "none":
        with torch.no_grad():
            for layer in made.layers:
                layer.attention.encoding.table -= math.log(_length(task))
    return made


def _length(task: str) -> int:
    return TASKS[task].make().burn_in + 8


def arithmetic(configuration: TransformerConfig, length: int) -> dict[str, float]:
    r"""Additions, multiplications and exponentials per token of a forward pass, by part; a training step takes thrice.

    ``projections``: $2D$ for each row of a weight matrix: $2Hd$ rows for values and output, $2Hd$ more for queries and
    keys, or $H$ for TMX. ``ffn``: $4Dm$. ``mixing``, with $n=(N+1)/2$ the mean number of visible tokens and
    $F=5\log_2(2N)$ the cost per token of a real Fourier transform of size $2N$:

    * DP: $Hn(4d+3)$: products, exponentials and their sum, mixing;
    * DP-free: the lesser of $Hn\cdot2d$ (directly) and $H((1+2d)F+7d+1)$ (convolution);
    * TMX: the same and $H(d+2)$ for the gate;
    * linear: with lin a state of $d(d+1)$ numbers per head is carried along, $5Hd(d+1)$; with another bias by lag it is
      that many convolutions, $H((1+2d(d+1))F+9d(d+1))$, or $Hn(4d+1)$ directly.
    """
    c, length = configuration, integer("length", length, 1)
    rows = 2 * c.heads * c.d_head
    rows += {"dp": rows, "linear": rows, "tmx": c.heads, "dp_free": 0}[c.attention]
    seen, transform, d = (length + 1) / 2, 5 * math.log2(2 * length), c.d_head
    convolution = min(seen * 2 * d, (1 + 2 * d) * transform + 7 * d + 1)
    states = d * (d + 1)
    mixing = {
        "dp": seen * (4 * d + 3),
        "dp_free": convolution,
        "tmx": convolution + d + 2,
        "linear": 5 * states
        if c.encoding in ("lin", "alibi")
        else min(seen * (4 * d + 1), (1 + 2 * states) * transform + 9 * states),
    }[c.attention]
    return {
        "projections": 2.0 * c.layers * c.d_model * rows,
        "mixing": float(c.layers * c.heads * mixing),
        "ffn": 4.0 * c.layers * c.d_model * c.width,
    }


# ---------------------------------------------------------------- what exists


def gated_lookup(bits: int = 2, amplitude: float = 20.0, normaliser: str = "sink") -> Transformer:
    r"""TMX weights for `lookup`, written down: $T=2^{\text{bits}}$ heads, no FFN, error of the order $e^{-A}$.

    Head $h$ reads lag $h$ alone (its bias is 0 there and $-2A$ elsewhere), and its gate opens for the one symbol that
    asks for lag $h$: with $n$ bits $b_j=\pm1$ and those of the symbol $\sigma_{hj}$, the query logit is
    $A(\sum_j\sigma_{hj}b_j-n)$, which is 0 at that symbol and $-2A$ or less at all others. With a sink it is raised
    by $A$, and the gate lets through 1 and 0 up to $e^{-A}$.
    """
    bits, amplitude = integer("bits", bits, 1), positive_number("amplitude", amplitude)
    heads = 2**bits
    buckets = 2 * (heads + 1)
    table = torch.full((heads, buckets), -2.0 * amplitude, dtype=torch.float64)
    table[torch.arange(heads), torch.arange(1, heads + 1)] = 0.0
    made = Transformer(TransformerConfig(
        d_in=1 + bits, d_model=bits + 3, heads=heads, d_head=1, width=0, encoding="t5", attention="tmx",
        normaliser=normaliser, encoding_params={"table": table, "buckets": buckets, "max_distance": buckets},
    ))  # fmt: skip
    raised = amplitude if normaliser == "sink" else 0.0
    with torch.no_grad():
        for weight in made.parameters():
            if weight is not made.layers[0].attention.encoding.table:
                weight.zero_()
        made.embed.weight[: bits + 1] = torch.eye(bits + 1)  # slots: value, bits, a constant one, the answer
        made.embed.bias[bits + 1] = 1.0
        attention = made.layers[0].attention
        attention.value.weight[:, 0] = 1.0
        for h in range(heads):
            signs = torch.tensor([1.0 if h >> j & 1 else -1.0 for j in range(bits)])
            attention.query.weight[h, 1 : bits + 1] = amplitude * signs
            attention.query.weight[h, bits + 1] = raised - amplitude * bits
        attention.out.weight[-1] = 1.0
        made.readout.weight[0, -1] = 1.0
    return made


# ---------------------------------------------------------------- what cannot be told apart


def witnesses(trained: Transformer, target: AdaptiveSparse | Recall) -> tuple[Tensor, Tensor]:
    r"""Two inputs $(2,N,d_{in})$ that one DP-free or TMX layer cannot tell apart, and the two answers wanted of it.

    A TMX head is a DP-free head behind a gate that the present token sets, so Theorem a:thm-channels holds for it: with
    fewer heads than lags in question some direction of the values is invisible. Its largest entry is asked for, by the
    pointer or by the one matching key. For real values, one layer, and fewer heads than lags.
    """
    c = trained.config
    reach = target.burn_in
    if c.attention not in ("dp_free", "tmx") or c.layers > 1 or c.heads >= reach or target.inputs[0] == BIT:
        raise ValueError(
            "witnesses exist for one layer without dot product, real values and fewer heads than lags, got "
            f"{c.attention}, {c.layers} layer(s), {c.heads} heads, {reach} lags, values {target.inputs[0]}"
        )
    kernels = trained.layers[0].attention.encoding.log_weights(reach + 1).detach().exp()
    floor = dp_free_floor(reach, c.heads, kernels=kernels, values=(-1.0, 1.0))
    lag, bits = floor.pointers[0], target.d_in - 1
    x = -torch.ones(2, reach + 1, target.d_in, dtype=torch.float64)
    x[..., 0] = torch.stack(floor.witnesses)
    if isinstance(target, Recall):  # the present key is matched at this lag alone
        x[:, :-1, 1:] = 1.0
        x[:, -1 - lag, 1:] = -1.0
    else:
        x[:, -1, 1:] = torch.tensor([1.0 if lag - 1 >> j & 1 else -1.0 for j in range(bits)])
    return x, torch.stack(floor.targets)


# ---------------------------------------------------------------- training


def run(*, task: str, variant: str, seed: int, lr: float, steps: int | None = None, width: int | None = None,
        confuse: bool = False) -> dict:  # fmt: skip
    """Train a variant on a task and measure it on fresh sequences.

    ``error`` is the mean square error as a share of the variance of $y$: 1 is a constant guess, 0 is perfect.
    ``parameters`` and ``neurons`` are the sizes of the model. With ``confuse``, for a model that has `witnesses`, also
    ``gap``, the difference of its answers to them, and ``worst``, the larger of the two errors.
    """
    trained = model(task, variant, seed, width)
    target, length = TASKS[task].make(), _length(task)
    steps = TASKS[task].steps if steps is None else steps
    fit(trained, target, steps=steps, lr=lr, batch=BATCH, length=length, generator=memlib.reproducible(100 + seed))
    x, y = target.sample(512, length, memlib.reproducible(1000))
    with torch.no_grad():
        guess, y = trained(x)[:, target.burn_in :], y[:, target.burn_in :]
    found = {
        "error": ((guess - y).square().mean() / y.var(correction=0)).item(),
        "parameters": sum(p.numel() for p in trained.parameters()),
        "neurons": trained.config.width,
    }
    if confuse:
        pair, wanted = witnesses(trained, target)
        with torch.no_grad():
            answers = trained(pair)[:, -1, 0]
        found |= {"gap": (answers[0] - answers[1]).abs().item(), "worst": (answers - wanted).abs().max().item()}
    return found


CONFUSING = ("far", "content")
"""The tasks with more lags in question than heads: what has no dot product confuses some inputs."""

LIVE = ("real", "alone", "far", "content")
"""The tasks that the notebook runs; the results of the others are stored."""

PILOT_SEEDS = range(200, 203)
PILOT = {
    "real": ((0.01, 0.02, 0.04, 0.08), (*CORE, "DP, sink", "TMX")),
    "bits": ((0.01, 0.02, 0.04, 0.08), CORE),
    "alone": ((0.01, 0.02, 0.04, 0.08), ("DP", "linear", "TMX, sink", "DP-free", "DP, sink")),
    "nested": ((0.01, 0.02, 0.04), (*CORE, "DP, sink", "TMX")),
    "far": ((0.01, 0.02, 0.04, 0.08), CORE),
    "content": ((0.01, 0.02, 0.04, 0.08), CORE),
}
"""The learning rates tried for each task, on the pilot seeds, and the variants that take part."""

RATES = {
    "real": {"DP": 0.04, "DP, rotary": 0.04, "linear": 0.04, "TMX, sink": 0.04, "DP-free": 0.04, "DP, sink": 0.02,
             "TMX": 0.02},
    "bits": {"DP": 0.08, "DP, rotary": 0.08, "linear": 0.08, "TMX, sink": 0.08, "DP-free": 0.04},
    "alone": {"DP": 0.08, "linear": 0.04, "TMX, sink": 0.04, "DP-free": 0.08, "DP, sink": 0.08},
    "nested": {"DP": 0.04, "DP, rotary": 0.01, "linear": 0.04, "TMX, sink": 0.04, "DP-free": 0.04, "DP, sink": 0.04,
               "TMX": 0.04},
    "far": {"DP": 0.04, "DP, rotary": 0.08, "linear": 0.04, "TMX, sink": 0.08, "DP-free": 0.04},
    "content": {"DP": 0.04, "DP, rotary": 0.04, "linear": 0.08, "TMX, sink": 0.08, "DP-free": 0.04},
}  # fmt: skip
"""The rate of each variant on each task: the one with the least median error in the pilot, `best_rates` of its rows."""


def best_rates(pilot) -> dict[str, dict[str, float]]:
    """From the rows of the pilot, as a table: for each task and variant the rate with the least median error."""
    medians = pilot.groupby(["task", "variant", "lr"]).error.median()
    best = medians.groupby(["task", "variant"]).idxmin()
    return {task: {variant: best[task, variant][2] for variant in PILOT[task][1]} for task in PILOT}


def _pilot() -> list[dict]:
    return [
        point
        for task, (rates, variants) in PILOT.items()
        for point in product(task=[task], variant=variants, lr=rates, seed=PILOT_SEEDS)
    ]


def _final(tasks, seeds) -> list[dict]:
    points = []
    for task in tasks:
        for variant, rate in RATES[task].items():
            more = {"confuse": [True]} if task in CONFUSING and variant in ("TMX, sink", "DP-free") else {}
            points += product(task=[task], variant=[variant], lr=[rate], seed=seeds, **more)
    return points


def grid(scale: str) -> list[dict]:
    """``book``: the live tasks at the rates of the pilot; ``stored``: the pilot, and the others; ``large``: longer."""
    if scale == "book":
        return _final(LIVE, SEEDS)
    if scale == "stored":
        return _pilot() + _final([task for task in PILOT if task not in LIVE], SEEDS)
    points = []
    for task in TASKS:
        points += product(task=[task], variant=list(VARIANTS), lr=[0.005, 0.01, 0.02, 0.04, 0.08, 0.16], seed=range(10),
                          steps=[5 * TASKS[task].steps])  # fmt: skip
    return points
