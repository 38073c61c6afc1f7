"""What a training step costs with and without dot product, against the length of the sequence: ``make bench``.

One attention layer with its projections, forward and backward, float32, residual stream of 128, 8 heads of width 16,
batch 1, 1 thread, the encoding lin with learned slopes. Side by side in one run, each in the form a user would pick:

* DP: torch's scaled_dot_product_attention with the bias as a mask, built in every call (the slopes are learned);
* linear attention: in chunks of 64 tokens, a state carried from chunk to chunk, O(T);
* TMX (with a sink) and DP-free attention: memlib's convolution by FFT, O(T log T).

Outputs are compared with memlib's own matrices first. Times are the best over interleaved rounds, shown as shares of
DP's; nothing is tested.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.attention import best_times
from memlib.model import Attention, TransformerConfig

HEADS, WIDTH, CHUNK = 8, 16, 64
KINDS = {"DP": ("dp", "softmax"), "linear": ("linear", "softmax"), "TMX": ("tmx", "sink"),
         "DP-free": ("dp_free", "softmax")}  # fmt: skip


def layer(kind: str) -> Attention:
    """An attention layer of memlib, initialised at random; all kinds draw the same values."""
    attention, normaliser = KINDS[kind]
    config = TransformerConfig(d_model=HEADS * WIDTH, heads=HEADS, encoding="lin", attention=attention,
                               normaliser=normaliser, dtype="float32")  # fmt: skip
    return Attention(config, torch.Generator().manual_seed(0))


def dot_product(attention: Attention, x: Tensor) -> Tensor:
    """DP attention with torch's own function."""
    query, key, value = (attention._split(part(x)) for part in (attention.query, attention.key, attention.value))
    lags = torch.arange(x.shape[1], dtype=x.dtype)
    distance = lags[:, None] - lags
    bias = torch.where(distance >= 0, -attention.encoding.slope[:, None, None] * distance, -math.inf)[None]
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
    return attention.out(mixed.transpose(1, 2).flatten(2))


def chunked_linear(attention: Attention, x: Tensor, chunk: int = CHUNK) -> Tensor:
    """Linear attention with exponentially fading memory, chunk by chunk."""
    query, key, value = (attention._split(part(x)) for part in (attention.query, attention.key, attention.value))
    query, key = F.elu(query) + 1, F.elu(key) + 1
    value = torch.cat([value, torch.ones_like(value[..., :1])], -1)  # the last channel sums the weights
    slope = attention.encoding.slope[:, None]
    steps = torch.arange(chunk, dtype=x.dtype)
    distance = steps[:, None] - steps
    within = torch.where(distance >= 0, -slope[..., None] * distance, -math.inf).exp()
    state, rows = value.new_zeros(*value.shape[:2], query.shape[-1], value.shape[-1]), []
    for q, k, v in zip(*(part.split(chunk, dim=2) for part in (query, key, value)), strict=True):
        n = q.shape[2]
        since = (-slope * (steps[:n] + 1)).exp()[..., None]  # of the state, at each position of the chunk
        until = (-slope * (n - 1 - steps[:n])).exp()[..., None]  # of each position, at the end of the chunk
        rows.append((q @ k.transpose(-1, -2) * within[:, :n, :n]) @ v + since * (q @ state))
        state = (-slope * n).exp()[..., None] * state + (until * k).transpose(-1, -2) @ v
    mixed = torch.cat(rows, dim=2)
    mixed = mixed[..., :-1] / mixed[..., -1:]
    return attention.out(mixed.transpose(1, 2).flatten(2))


FORMS = {"DP": dot_product, "linear": chunked_linear, "TMX": Attention.forward, "DP-free": Attention.forward}


def contestants(length: int) -> dict:
    """A training step of each kind on the same input: forward, and the gradients of everything."""
    x = torch.randn(1, length, HEADS * WIDTH, generator=torch.Generator().manual_seed(1), requires_grad=True)

    def step(kind):
        attention, form = layer(kind), FORMS[kind]

        def call():
            attention.zero_grad(set_to_none=True)
            x.grad = None
            form(attention, x).square().sum().backward()

        return call

    return {kind: step(kind) for kind in KINDS}


@torch.no_grad()
def largest_difference(length: int) -> float:
    """Between the forms timed here and memlib's attention matrices applied to the values."""
    x = torch.randn(1, length, HEADS * WIDTH, generator=torch.Generator().manual_seed(1))
    worst = 0.0
    for kind, form in FORMS.items():
        attention = layer(kind)
        mixed = attention.weights(x) @ attention._split(attention.value(x))
        expected = attention.out(mixed.transpose(1, 2).flatten(2))
        worst = max(worst, float((form(attention, x) - expected).abs().max()))
    return worst


def main() -> None:
    torch.set_num_threads(1)
    print("A training step of one attention layer, float32, 8 heads of width 16, batch 1, 1 thread")
    print("DP in ms, best of several; the others as shares of it\n")
    head = " ".join(f"{kind:>9}" for kind in ("linear", "TMX", "DP-free"))
    print(f"{'tokens':>9} {'DP, ms':>10} {head}   largest difference")
    for length in (16, 64, 256, 1024, 2048):
        times = best_times(contestants(length))
        shares = " ".join(f"{times[kind] / times['DP']:8.2f}x" for kind in ("linear", "TMX", "DP-free"))
        print(f"{length:9d} {1e3 * times['DP']:10.3f} {shares}   {largest_difference(length):.1e}")
    print("\nGrowth from one length to four times that length (16 is quadratic, 4 linear)")
    print(f"{'tokens':>18} {'DP':>9} {head}")
    previous = None
    for length in (128, 512, 2048, 8192, 32768):
        calls = {kind: call for kind, call in contestants(length).items() if kind != "DP" or length <= 2048}
        times = best_times(calls, budget=3.0)
        if previous:
            cells = (f"x{times[k] / previous[k]:.1f}" if k in times else "-" for k in KINDS)
            print(f"{length // 4:8d} → {length:<7d} " + " ".join(f"{cell:>9}" for cell in cells))
        previous = times


if __name__ == "__main__":
    main()
