"""The grids of the book: their functions measure what they say; the command line runs what notebooks run."""

import inspect
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import memlib
from memlib import experiments
from memlib.experiments import __main__ as command
from memlib.experiments import real_lag, sparse_boolean
from memlib.sums import KernelSum, certificate
from memlib.sweep import sweep
from memlib.targets import FixedSparse
from memlib.train import fit, relative_error

ROOT = Path(__file__).resolve().parents[1]
TINY = {"heads": 2, "width": 4, "attention": "dp_free", "encoding": "t5", "lags": [1, 3, 5, 8], "steps": 3, "seed": 0}


# ---------------------------------------------------------------- the package


def test_names_are_modules_with_function_grids_and_seeds():
    assert experiments.names() == (
        "against_the_floor",
        "heads_for_depth",
        "nested_lookups",
        "pointer_floor",
        "readouts",
        "real_lag",
        "real_memory",
        "sparse_boolean",
        "substitutes",
        "tails",
    )
    for name in experiments.names():
        module = experiments.get(name)
        assert callable(module.run) and (name in DETERMINISTIC or len(module.SEEDS) >= 3)
        assert experiments.summary(name).endswith(".")


LIVE_POINTS = {("against_the_floor", "book"), ("heads_for_depth", "book"), ("nested_lookups", "book")}
"""Grids of single points of a stored table, which are run again beside it."""

DETERMINISTIC = {"against_the_floor"}
"""Experiments in which nothing is random: their points have no seed."""


@pytest.mark.parametrize(
    ("name", "scale"), [(name, scale) for name in experiments.names() for scale in experiments.scales(name)]
)
def test_grids_fit_their_function(name, scale):
    """Every point is accepted, none occurs twice, and each setting has all its seeds."""
    module = experiments.get(name)
    points = module.grid(scale)
    signature, seeds = inspect.signature(module.run), {}
    for point in points:
        signature.bind(**point)
        rest = json.dumps({key: value for key, value in point.items() if key != "seed"})
        seeds.setdefault(rest, []).append(None if name in DETERMINISTIC else point["seed"])
    assert all(len(set(found)) == len(found) for found in seeds.values())
    if (name, scale) in LIVE_POINTS:
        assert all(point in module.grid("stored") for point in points)
        return
    assert len(points) >= 40
    if name in DETERMINISTIC:
        return
    if scale == "large":
        assert all(found == list(range(10)) for found in seeds.values())
    elif scale == "book":
        assert all(found == list(module.SEEDS) for found in seeds.values())
    else:
        assert all(len(found) >= 3 for found in seeds.values())


def test_unknown_names_and_scales():
    with pytest.raises(ValueError, match="unknown experiment 'tables'; known: against_the_floor, heads_for_depth"):
        experiments.get("tables")
    with pytest.raises(ValueError, match="unknown scale 'small'; allowed: book, large"):
        experiments.evaluate("real_lag", "small")


# ---------------------------------------------------------------- sparse Boolean functions


def test_the_boolean_functions_by_hand():
    bits = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=4)), dtype=torch.float64)
    shown = bits[None, :, :, None]
    multiplexer = sparse_boolean.FUNCTIONS["multiplexer"](shown)[0, :, 0]
    parity = sparse_boolean.FUNCTIONS["parity"](shown)[0, :, 0]
    for (a, b, c, d), m, p in zip(bits.tolist(), multiplexer.tolist(), parity.tolist(), strict=True):
        assert m == ((1.0 if b == c else -1.0) if a == 1 else d)
        assert p == (1.0 if [a, b, c, d].count(-1.0) % 2 == 0 else -1.0)
    assert multiplexer.sum() == parity.sum() == 0


def test_the_target_reads_the_lags_it_names():
    target = sparse_boolean.target("parity", (2, 5))
    x, y = target.sample(4, 12, memlib.reproducible(0))
    assert torch.equal(y[:, 5:], x[:, 3:-2] * x[:, :-5])
    assert target.burn_in == 5


def test_boolean_bad_input():
    with pytest.raises(ValueError, match="unknown function 'and'; allowed: multiplexer, parity"):
        sparse_boolean.target("and", (1,))
    with pytest.raises(ValueError, match=r"the multiplexer reads four bits, got lags \(1, 2\)"):
        sparse_boolean.target("multiplexer", (1, 2))


def test_boolean_results_repeat_and_mean_what_they_say():
    first, again = sparse_boolean.run(**TINY), sparse_boolean.run(**TINY)
    assert first == again
    assert 0.4 < first["wrong"] < 0.6 and 0.9 < first["error"] < 2  # three steps teach nothing
    assert first != sparse_boolean.run(**{**TINY, "seed": 1})
    easy = {**TINY, "heads": 8, "width": 32, "steps": 600}
    found = sparse_boolean.run(**easy)
    assert found["error"] < 0.05 and found["wrong"] < 0.01
    assert found["parameters"] == 16 * 2 + 8 * 32 + 2 * 16 * 16 + 32 * 17 + 32 * 16 + 17


# ---------------------------------------------------------------- a real number of a fixed age


@pytest.mark.parametrize("encoding", ["lin", "log"])
def test_the_impulse_response_is_the_sum_of_the_heads(encoding):
    model = real_lag.layer(encoding, 3, seed=1)
    kernel, constant = real_lag.impulse_response(model, 20)
    found, residual = real_lag.coefficients(model)
    rates = model.layers[0].attention.encoding.slope.tolist()
    exact = KernelSum(encoding, rates, found.tolist(), residual).values(range(20))
    assert kernel.detach().numpy() == pytest.approx(exact, abs=1e-12)
    assert constant.abs().max() < 1e-12  # no bias yet


def test_the_expected_loss_is_what_samples_give():
    model = real_lag.layer("lin", 3, seed=0)
    with torch.no_grad():
        model.readout.bias.fill_(0.3)
        kernel, constant = real_lag.impulse_response(model, 12)
    delta = torch.zeros(12, dtype=torch.float64)
    delta[4] = 1.0
    expected = (delta - kernel).square().sum() / 3 + constant[-1] ** 2
    copy = FixedSparse(lambda z: z[:, :, 1], lags=[4])
    x, y = copy.sample(200_000, 12, memlib.reproducible(0))
    with torch.no_grad():
        sampled = (model(x) - y)[:, -1].square().mean()
    assert float(sampled) == pytest.approx(float(expected), rel=0.02)


def test_the_l1_norm_is_the_worst_error():
    model = real_lag.layer("log", 4, seed=0).requires_grad_(False)
    error = -real_lag.impulse_response(model, 16)[0]
    error[4] += 1
    worst = error.sign().flip(0)[None, :, None]  # the input that makes every term of the sum positive
    assert float((worst[0, 11, 0] - model(worst)[0, -1, 0]).abs()) == pytest.approx(float(error.abs().sum()))


@pytest.mark.parametrize("encoding", ["lin", "log"])
def test_trained_sums_respect_the_floor_and_what_is_returned_agrees(encoding):
    found = real_lag.run(encoding=encoding, heads=3, lag=4, seed=0, steps=150)
    assert found["l1"] >= 1  # three heads, lag four: Theorem x:thm-layer
    assert found["l2"] < 0.99 and found["weight"] == pytest.approx(np.abs(found["coefficients"]).sum())
    error = -KernelSum(encoding, found["rates"], found["coefficients"], found["residual"]).values(range(64))
    error[4] += 1
    assert found["l2"] == pytest.approx(np.linalg.norm(error)) and found["l1"] == pytest.approx(np.abs(error).sum())


def test_training_reaches_what_one_head_can_do():
    """One log head, lag 1: s^-p with a large p is the copy itself, and gradient descent goes there."""
    found = real_lag.run(encoding="log", heads=1, lag=1, seed=0)
    assert found["l2"] < 0.2 and found["rates"][0] > 2


def test_real_lag_bad_input():
    with pytest.raises(ValueError, match="unknown encoding 't5' for this experiment; allowed: lin, log"):
        real_lag.layer("t5", 2, 0)


def test_no_training_of_three_heads_tells_the_certificate_from_its_mirror_image():
    """Theorem x:thm-layer on a trained layer with FFN: inputs +zeta and -zeta give the same output, wanted are +-1."""
    from memlib.model import Transformer, TransformerConfig

    config = TransformerConfig(d_model=8, d_head=2, heads=3, width=16, encoding="lin", attention="dp_free")
    model = Transformer(config, memlib.reproducible(0))
    copy = FixedSparse(lambda z: z[:, :, 1], lags=[4])
    fit(model, copy, steps=100, batch=16, length=16, generator=memlib.reproducible(1))
    assert relative_error(model, copy, length=16, generator=memlib.reproducible(2)) < 1
    zeta = torch.as_tensor(certificate(4, model.layers[0].attention.encoding.slope.tolist())).flip(0)[None, :, None]
    with torch.no_grad():
        plus, minus = model(zeta)[0, -1, 0], model(-zeta)[0, -1, 0]
    assert float(plus - minus) == pytest.approx(0, abs=1e-9)
    assert max(abs(1 - float(plus)), abs(-1 - float(minus))) >= 1 - 1e-9


# ---------------------------------------------------------------- the command line


@pytest.fixture
def tiny(monkeypatch):
    """A grid of three short runs."""
    points = [{"encoding": "lin", "heads": 2, "lag": 2, "seed": seed, "steps": 2} for seed in range(3)]
    monkeypatch.setattr(real_lag, "grid", lambda scale: points)
    return points


def test_list(capsys):
    assert command.main(["--list"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == list(experiments.names())
    assert all("Points: book " in line and ", large " in line for line in printed)


@pytest.mark.parametrize("executor", ["serial", "pool", "dask"])
def test_the_command_line_runs_the_same_code(executor, tiny, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    arguments = ["real_lag", "--executor", executor, "--out", str(path), "--quiet"]
    assert command.main(arguments + ([] if executor == "serial" else ["--workers", "1"])) == 0
    wanted = sweep(real_lag.run, tiny, executor="serial")
    assert sweep(real_lag.run, tiny, path=path, executor="serial") == wanted
    assert len(path.read_text().splitlines()) == 4
    assert "3 points, 0 failures" in capsys.readouterr().err


def test_without_a_file_the_rows_are_printed(tiny, capsys):
    assert command.main(["real_lag", "--executor", "serial"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("encoding,heads,lag,seed,steps,l2,l1,constant,weight,rates") and len(rows) == 3
    assert rows[0].startswith("lin,2,2,0,2,")


def test_failures_are_told(tiny, capsys):
    tiny[1]["encoding"] = "t5"
    assert command.main(["real_lag", "--executor", "serial"]) == 1
    told = capsys.readouterr().err
    assert "ValueError: unknown encoding 't5' for this experiment" in told and "2 points, 1 failures" in told


BAD = [
    (["tables"], "error: unknown experiment 'tables'; known: against_the_floor, heads_for_depth"),
    (["real_lag", "--out", "/nowhere/rows"], "error: path must be a file in an existing folder"),
    (["real_lag", "--executor", "serial", "--workers", "2"], "error: --workers goes with --executor pool or dask"),
    (["real_lag", "--scheduler", "tcp://a:1"], "error: --scheduler goes with --executor dask"),
    (
        ["real_lag", "--executor", "dask", "--scheduler", "tcp://a:1", "--workers", "1"],
        "error: a running scheduler has its own workers",
    ),
    ([], "usage: python -m memlib.experiments"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_command_lines(arguments, message, capsys):
    assert command.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_package_is_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "memlib.experiments", "--list"], cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("against_the_floor: Sums of lin heads found in three ways")
