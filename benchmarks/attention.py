"""DP-free attention by FFT beside torch's scaled_dot_product_attention with the same weights: ``make bench``.

Float32, 8 heads of width 16, batch 1, 2 threads, falling biases (ALiBi's slopes). Both compute the same output; what a
user would pick instead is torch's function with the bias as a mask, built in every call (as a learned bias must be in
training) or prebuilt. Times are the best over rounds in which each is called several times in turn; they are printed
as ratios, never tested.
"""

import math
import re
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

from memlib import encodings
from memlib.kernels import lag_attention

HEADS, WIDTH = 8, 16
MEMORY_PROBE = """
import sys, torch
from benchmarks import attention
torch.set_num_threads(2)
call = attention.contestants(int(sys.argv[2]))[sys.argv[1]]
before = attention.high_water()
call()
print(attention.high_water() - before)
"""


def high_water() -> float:
    """The largest resident memory of this process so far, in MB (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def contestants(length: int) -> dict:
    """The same attention three ways; inputs are made once, outside the calls."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1, HEADS, length, WIDTH, generator=generator)
    slopes = torch.tensor(encodings.alibi_slopes(HEADS))
    lags = torch.arange(length, dtype=torch.float32)
    nothing = torch.zeros_like(values)  # queries and keys: the dot product contributes nothing to the logits

    def bias():
        distance = lags[:, None] - lags
        return torch.where(distance >= 0, -slopes[:, None, None] * distance, -math.inf)[None]

    def sdpa(mask):
        return F.scaled_dot_product_attention(nothing, nothing, values, attn_mask=mask)

    log_weights = -slopes[:, None] * lags
    mask = None

    def sdpa_prebuilt():
        nonlocal mask
        mask = bias() if mask is None else mask
        return sdpa(mask)

    return {
        "memlib, built": lambda: lag_attention(-slopes[:, None] * lags, values),
        "sdpa, built": lambda: sdpa(bias()),
        "memlib, prebuilt": lambda: lag_attention(log_weights, values),
        "sdpa, prebuilt": sdpa_prebuilt,
    }


def best_times(calls: dict, budget: float = 2.0) -> dict[str, float]:
    """The best time of each call in seconds, over interleaved rounds."""
    best = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        call()
    end = time.perf_counter() + budget
    while time.perf_counter() < end:
        for name, call in calls.items():
            for _ in range(20 if best[name] < 1e-2 else 2):
                start = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def peak_memory(name: str, length: int) -> float:
    """Peak memory of one call in a fresh process, in MB above what its inputs take."""
    command = [sys.executable, "-c", MEMORY_PROBE, name, str(length)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    torch.set_num_threads(2)
    print("DP-free attention, float32, 8 heads of width 16, batch 1, 2 threads; times in ms, best of several\n")
    print(f"{'':>9} {'bias built in every call':^28} {'bias prebuilt':^28}")
    head = 2 * f" {'memlib':>9} {'sdpa':>9} {'ratio':>8}"
    print(f"{'tokens':>9}{head}   largest difference")
    with torch.no_grad():
        for length in (16, 64, 256, 1024, 4096):
            calls = contestants(length)
            times = [1e3 * t for t in best_times(calls).values()]
            outputs = [call() for call in calls.values()]
            difference = max(float((outputs[0] - other).abs().max()) for other in outputs[1:])
            columns = " ".join(f"{a:9.3f} {b:9.3f} {b / a:7.1f}x" for a, b in (times[:2], times[2:]))
            print(f"{length:9d} {columns}   {difference:.1e}")
        print("\nGrowth of memlib with length (a factor of 4 in length; O(T log T) predicts a little above 4)")
        previous = None
        for length in (4096, 16384, 65536, 262144, 1048576):
            call = contestants(length)["memlib, built"]
            seconds = best_times({"memlib": call}, budget=1.0)["memlib"]
            growth = "" if previous is None else f"  x{seconds / previous:.1f}"
            print(f"{length:9d} tokens {seconds:9.4f} s{growth}")
            previous = seconds
    print("\nPeak memory above the inputs, MB")
    for length in (1024, 4096):
        row = "   ".join(f"{name}: {peak_memory(name, length):.0f}" for name in contestants(16))
        print(f"{length:9d} tokens   {row}")


if __name__ == "__main__":
    main()
