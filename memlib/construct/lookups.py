r"""Look-up targets of the chapter on adaptive memory, with pointers that can be written down (a:ex-chasing)."""

from memlib.checks import integer
from memlib.construct.pointers import Pointer
from memlib.construct.readouts import Linear, Readout
from memlib.targets import AdaptiveSparse, Finite, Interval

__all__ = ["pointer_chasing", "summed_lookups"]


def summed_lookups(nesting: int, keys: int, *, pointers: int | None = None,
                   readout: Readout | None = None) -> AdaptiveSparse:  # fmt: skip
    r"""Look-ups with summed keys (equation a:summed): every lag depends on all keys read so far.

    A token is a value in $[-1,1]$ and a key $\kappa\in\{0,\dots,P-1\}$, stored as $\kappa/P$. Pointer $i$ reads
    $k_i=\min(i-1,K)+1$ tokens and says $t_i=1+(\kappa_t+\kappa_{t-t_1}+\dots+i-k_i)\bmod P$; so several pointers that
    read the same keys say different lags.

    Args:
        nesting: $K$.
        keys: $P$, the number of keys and the reach of every pointer.
        pointers: $M\ge K$; $K$ unless given, and 1 if $K=0$.
        readout: of $M+1$ tokens with two channels; unless given, the value of the last token.
    """
    nesting, keys = integer("nesting", nesting, 0), integer("keys", keys, 1)
    count = integer("pointers", max(nesting, 1) if pointers is None else pointers, max(nesting, 1))
    inputs = _inputs([k / keys for k in range(keys)])
    made = []
    for i in range(1, count + 1):
        seen = min(i - 1, nesting) + 1
        made.append(Pointer.over([(0.0, 1.0)] * seen, inputs, lambda v, turn=i - seen: _lag(v, turn, keys)))
    return AdaptiveSparse(readout or _last(count), made, [keys] * count, nesting, inputs)


def _lag(value: float, turn: int, keys: int) -> int:
    return 1 + (round(value * keys) + turn) % keys


def pointer_chasing(hops: int, steps: int, *, readout: Readout | None = None) -> AdaptiveSparse:
    r"""Plain pointer chasing (a:ex-chasing): every token says how far to go on, $t_i=t_{i-1}+p_{t-t_{i-1}}$.

    A token is a value in $[-1,1]$ and a number $p\in\{1,\dots,P\}$, stored as $p/P$. Counted from $t$ the reach of the
    $i$-th pointer is $iP$. The output is the value where the last hop ends.

    Args:
        hops: how many; $M=K$ of them.
        steps: $P$, the longest single hop.
        readout: of ``hops`` + 1 tokens with two channels; unless given, the value of the last token.
    """
    hops, steps = integer("hops", hops, 1), integer("steps", steps, 1)
    inputs = _inputs([p / steps for p in range(1, steps + 1)])
    made = [Pointer.over([(0.0, 1.0)] * i, inputs, lambda v: round(v * steps)) for i in range(1, hops + 1)]
    return AdaptiveSparse(readout or _last(hops), made, [i * steps for i in range(1, hops + 1)], hops, inputs)


def _inputs(symbols) -> list:
    return [Interval(), Finite(tuple(symbols))]


def _last(pointers: int) -> Linear:
    return Linear([*[(0.0, 0.0)] * pointers, (1.0, 0.0)])
