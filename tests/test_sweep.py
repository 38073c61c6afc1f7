"""Sweeps: what is returned and stored, resumed after a kill, on every executor, with workers that die and bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from memlib.sweep import code_hash, failures, identity, product, read, sweep, to_frame

# ---------------------------------------------------------------- functions that sweeps evaluate


def square(x, shift=0):
    return {"y": x * x + shift, "text": f"{x}²"}


def shaky(x):
    if x == 2:
        raise ArithmeticError(f"no value at {x}")
    return {"y": x}


def slow(x, seconds, log):
    """Leaves a mark for every evaluation that was begun."""
    with open(log, "a") as file:
        file.write(f"{x} {os.getpid()}\n")
    time.sleep(seconds)
    return {"y": 10 * x}


def deadly(x, folder, once):
    """The point x = 1 kills its worker: the first time only, or always."""
    mark = Path(folder) / f"killed-{x}-{time.monotonic_ns()}"
    if x == 1 and not (once and list(Path(folder).glob("killed-1-*"))):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return {"y": x}


def trained(seed):
    """A short training: the same bits are wanted everywhere."""
    generator = torch.Generator().manual_seed(seed)
    layer = torch.nn.utils.skip_init(torch.nn.Linear, 3, 1, dtype=torch.float64)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(generator=generator)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(20):
        x = torch.randn(16, 3, dtype=torch.float64, generator=generator)
        loss = (layer(x) - x.sum(1, keepdim=True)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {"loss": loss.item()}


def threads():
    return {"torch": torch.get_num_threads(), "omp": os.environ.get("OMP_NUM_THREADS")}


RETURNS = {
    "list": [1, 2],
    "array": {"a": np.arange(3)},
    "tensor": {"a": torch.zeros(2)},
    "nan": {"loss": [0.0, float("nan")]},
    "object": {"a": {"b": object()}},
    "key": {1: 2},
    "taken": {"kind": 1},
    "reserved": {"failure": 1},
    "fine": {"i": np.int64(3), "f": torch.tensor(0.5, dtype=torch.float64), "t": (1, 2), "n": None, "b": True},
}


def returning(kind):
    return RETURNS[kind]


class NotAFunction:
    def __call__(self, x):
        return {"y": x}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---------------------------------------------------------------- grids, rows, tables


def test_product():
    assert product(a=[1, 2], b="xy".split()) == [{"a": 1, "b": "xy"}, {"a": 2, "b": "xy"}]
    assert product(a=range(2), b=(3, 4)) == [{"a": 0, "b": 3}, {"a": 0, "b": 4}, {"a": 1, "b": 3}, {"a": 1, "b": 4}]
    assert product() == [{}]


def test_rows_come_in_the_order_of_the_grid():
    grid = [{"x": x} for x in (5, 1, 3)] + [{"x": 2, "shift": 7}]
    assert sweep(square, grid, executor="serial") == [
        {"x": 5, "y": 25, "text": "5²"},
        {"x": 1, "y": 1, "text": "1²"},
        {"x": 3, "y": 9, "text": "3²"},
        {"x": 2, "shift": 7, "y": 11, "text": "2²"},
    ]


def test_an_empty_grid_starts_nothing():
    assert sweep(square, []) == []


def test_scalars_of_numpy_and_torch_become_numbers():
    grid = product(x=np.arange(2), shift=torch.tensor([1]))
    rows = sweep(square, grid, executor="serial")
    assert rows == [{"x": 0, "shift": 1, "y": 1, "text": "0²"}, {"x": 1, "shift": 1, "y": 2, "text": "1²"}]
    assert type(rows[0]["x"]) is int
    (row,) = sweep(returning, [{"kind": "fine"}], executor="serial")
    assert row == {"kind": "fine", "i": 3, "f": 0.5, "t": [1, 2], "n": None, "b": True}


def test_rows_that_were_read_are_the_rows_that_were_returned(tmp_path):
    path, grid = tmp_path / "rows.jsonl", product(x=[0.1, 1 / 3, 1e-300], shift=[0])
    fresh = sweep(square, grid, path=path, executor="serial")
    assert sweep(square, grid, path=path, executor="serial") == fresh == read(path)


def test_a_grid_that_grew_is_completed(tmp_path):
    path = tmp_path / "rows.jsonl"
    sweep(square, product(x=[1, 2]), path=path, executor="serial")
    before = path.read_bytes()
    rows = sweep(square, product(x=[3, 2]), path=path, executor="serial")
    assert [row["y"] for row in rows] == [9, 4]
    assert path.read_bytes().startswith(before)
    assert [row["point"]["x"] for row in lines(path)[1:]] == [1, 2, 3]


def test_frames():
    rows = sweep(shaky, product(x=[1, 2, 3]), executor="serial")
    assert [row["x"] for row in failures(rows)] == [2]
    with pytest.raises(ValueError, match=r"1 of 3 points failed; the first, {'x': 2}: ArithmeticError: no value at 2"):
        to_frame(rows)
    assert to_frame(rows, failed="drop").to_dict("list") == {"x": [1, 3], "y": [1, 3]}
    assert list(to_frame(rows, failed="keep").columns) == ["x", "y", "failure", "traceback"]
    with pytest.raises(ValueError, match="unknown failed 'no'; allowed: raise, drop, keep"):
        to_frame(rows, failed="no")


def test_progress_bar(capsys):
    sweep(square, product(x=range(3)), executor="serial", progress=True)
    assert "3/3" in capsys.readouterr().err


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("executor", [None, "serial"])
def test_a_point_that_raises_becomes_a_row_and_the_sweep_goes_on(executor, tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = sweep(shaky, product(x=range(5)), path=path, executor=executor)
    assert [row.get("y") for row in rows] == [0, 1, None, 3, 4]
    assert rows[2]["failure"] == "ArithmeticError: no value at 2"
    assert "raise ArithmeticError" in rows[2]["traceback"]
    assert sum("failure" in row for row in lines(path)) == 1


def test_failures_are_kept_or_retried(tmp_path, monkeypatch):
    path, grid = tmp_path / "rows.jsonl", product(x=range(4))
    first = sweep(shaky, grid, path=path, executor="serial")
    monkeypatch.setattr(shaky, "__code__", (lambda x: {"y": x}).__code__)  # the cause has gone, the file is the same
    assert sweep(shaky, grid, path=path, executor="serial") == first
    rows = sweep(shaky, grid, path=path, executor="serial", retry_failed=True)
    assert [row["y"] for row in rows] == [0, 1, 2, 3]
    assert sorted(row["point"]["x"] for row in lines(path)[1:]) == [0, 1, 2, 3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.jsonl"]


RESULTS = [
    ("list", "TypeError: the result must be a dict, got list"),
    ("array", "TypeError: the result, 'a' is of type ndarray, which JSON does not know; use .tolist()"),
    ("tensor", "TypeError: the result, 'a' is of type Tensor, which JSON does not know; use .tolist()"),
    ("nan", "ValueError: the result, 'loss', entry 1 is nan, which JSON does not know; say None or a text instead"),
    ("object", "TypeError: the result, 'a', 'b' is of type object, which JSON does not know"),
    ("key", "TypeError: the result has a key 1; JSON knows texts only"),
    ("taken", "ValueError: the result has a name that is taken: 'kind'"),
    ("reserved", "ValueError: the result has a name that is taken: 'failure'"),
]


@pytest.mark.parametrize(("kind", "message"), RESULTS)
def test_results_that_are_no_json_are_failures(kind, message):
    (row,) = sweep(returning, [{"kind": kind}], executor="serial")
    assert row["failure"] == message


@pytest.mark.parametrize("once", [True, False])
def test_a_worker_that_is_killed(once, tmp_path):
    """Points beside the deadly one are not lost; that one is tried again, and is a failure if it kills each time."""
    path = tmp_path / "rows.jsonl"
    grid = product(x=range(6), folder=[str(tmp_path)], once=[once])
    rows = sweep(deadly, grid, path=path, workers=2)
    assert [row.get("y") for row in rows] == [0, 1 if once else None, 2, 3, 4, 5]
    assert len(list(tmp_path.glob("killed-*"))) == (1 if once else 3)
    if not once:
        assert rows[1]["failure"].startswith("WorkerDied: the worker process died whenever it ran this point")
    stored = lines(path)[1:]
    assert sorted(row["point"]["x"] for row in stored) == [0, 1, 2, 3, 4, 5]
    assert sweep(deadly, grid, path=path, workers=2) == rows


# ---------------------------------------------------------------- killed and resumed

DRIVER = """
import signal
import sys
from test_sweep import slow
from memlib.sweep import product, sweep

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored
if __name__ == "__main__":
    sweep(slow, product(x=range(12), seconds=[0.2], log=[sys.argv[2]]), path=sys.argv[1], workers=2)
"""


def start(tmp_path):
    """A sweep in a process of its own, and its file, as soon as that holds three rows."""
    script, path, log = tmp_path / "driver.py", tmp_path / "rows.jsonl", tmp_path / "log"
    script.write_text(DRIVER)
    folders = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    process = subprocess.Popen(
        [sys.executable, str(script), str(path), str(log)],
        env={**os.environ, "PYTHONPATH": folders},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < 4:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    return process, path, log


def resume(path, log):
    """Go on with the killed sweep; returns the points evaluated now."""
    begun = len(log.read_text().splitlines())
    rows = sweep(slow, product(x=range(12), seconds=[0.2], log=[str(log)]), path=path, executor="serial")
    assert [row["y"] for row in rows] == [10 * x for x in range(12)]
    return [int(line.split()[0]) for line in log.read_text().splitlines()[begun:]]


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


def test_resume_after_sigkill(tmp_path):
    """No row is lost, none is doubled, a half-written row is repaired, and no worker outlives the sweep."""
    process, path, log = start(tmp_path)
    with pytest.raises(ValueError, match="is being written by another sweep"):
        sweep(slow, product(x=[0], seconds=[0.2], log=[str(log)]), path=path, executor="serial")
    process.kill()
    process.wait()
    kept = path.read_bytes()[: path.read_bytes().rfind(b"\n") + 1]
    finished = {json.loads(line)["point"]["x"] for line in kept.splitlines()[1:]}
    assert 3 <= len(finished) < 12
    workers = {int(line.split()[1]) for line in log.read_text().splitlines()}
    deadline = time.monotonic() + 20
    while not all(map(gone, workers)):
        assert time.monotonic() < deadline, "workers outlive their sweep"
        time.sleep(0.05)
    process.communicate()

    path.write_bytes(kept + kept.splitlines()[-1][:-9])  # as if the kill had come amid a write
    assert sorted(resume(path, log)) == sorted(set(range(12)) - finished)
    assert path.read_bytes().startswith(kept)
    assert sorted(row["point"]["x"] for row in lines(path)[1:]) == list(range(12))
    assert resume(path, log) == []


def test_ctrl_c_leaves_a_file_to_resume(tmp_path):
    process, path, log = start(tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the workers too
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors and "BrokenProcessPool" not in errors
    finished = [row["point"]["x"] for row in lines(path)[1:]]
    assert 3 <= len(finished) < 12
    assert sorted(resume(path, log)) == sorted(set(range(12)) - set(finished))


@pytest.mark.parametrize("cut", range(1, 120, 7))
def test_every_cut_of_a_file_is_repaired(cut, tmp_path):
    """Cut the file anywhere: complete rows stay as they are, the others are evaluated again."""
    path, grid = tmp_path / "rows.jsonl", product(x=range(3))
    wanted = sweep(square, grid, path=path, executor="serial")
    data = path.read_bytes()
    cut = min(cut * 3, len(data) - 1)
    path.write_bytes(data[:cut])
    assert sweep(square, grid, path=path, executor="serial") == wanted
    end = data[: cut + 1].rfind(b"\n") + 1  # a row that lacks only the end of its line is complete
    assert path.read_bytes()[:end] == data[:end]
    assert len(lines(path)) == 4


def test_a_row_without_the_end_of_its_line_is_complete(tmp_path):
    path, grid = tmp_path / "rows.jsonl", product(x=range(2))
    sweep(square, grid, path=path, executor="serial")
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert [row["x"] for row in read(path)] == [0, 1]
    sweep(square, grid, path=path, executor="serial")
    assert path.read_bytes() == data


def test_changed_code_is_noticed(tmp_path):
    path, grid = tmp_path / "rows.jsonl", product(x=[1])
    rows = sweep(square, grid, path=path, executor="serial")
    data = path.read_bytes().replace(code_hash(square).encode(), b"0" * 64)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"was begun with other code of .*:square: the source file has changed since"):
        sweep(square, grid, path=path, executor="serial")
    assert path.read_bytes() == data
    assert sweep(square, grid, path=path, executor="serial", changed_code="accept") == rows


OTHERS = [
    (b"my notes", "was not written by memlib.sweep; give another file name"),
    (b"my notes\nof today\n", "was not written by memlib.sweep"),
    (b'{"x": 1}\n', "was not written by memlib.sweep"),
    (b"[1]\n", "was not written by memlib.sweep"),
    (
        b'{"format":"memlib sweep 1","function":"a:b","code":null}\n',
        r"holds the rows of a:b, not of \S*test_sweep:squa",
    ),
    (None, "is damaged: line 3 is no row; the file was left as it is"),
]


@pytest.mark.parametrize(("data", "message"), OTHERS)
def test_other_files_are_left_alone(data, message, tmp_path):
    path = tmp_path / "rows.jsonl"
    if data is None:
        sweep(square, product(x=range(3)), path=path, executor="serial")
        parts = path.read_bytes().splitlines(keepends=True)
        data = b"".join([*parts[:2], parts[2][:-9] + b"\n", parts[3]])
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        sweep(square, product(x=range(3)), path=path, executor="serial")
    assert path.read_bytes() == data


# ---------------------------------------------------------------- executors


def test_workers_use_one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert sweep(threads, [{}]) == [{"torch": 1, "omp": "1"}]
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_the_same_results_on_every_executor(tmp_path):
    """In this process, on the default pool, on threads, on a Dask cluster."""
    grid = product(seed=range(6))
    wanted = sweep(trained, grid, executor="serial")
    assert len({row["loss"] for row in wanted}) == 6
    assert sweep(trained, grid) == wanted
    with ThreadPoolExecutor(2) as executor:
        assert sweep(trained, grid, executor=executor) == wanted
    with dask_client() as client:
        path = tmp_path / "rows.jsonl"
        assert sweep(trained, grid, path=path, executor=client.get_executor()) == wanted
        assert sweep(shaky, product(x=[1, 2]), executor=client.get_executor())[1]["failure"].startswith("Arithmetic")
    assert sweep(trained, grid, path=path) == wanted
    assert len(lines(path)) == 7


def dask_client():
    distributed = pytest.importorskip("distributed") if "CI" not in os.environ else __import__("distributed")
    return distributed.Client(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, set_as_default=False
    )


def test_an_executor_that_breaks_ends_the_sweep_and_keeps_its_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    grid = product(x=[0, 1, 2], folder=[str(tmp_path)], once=[True])
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        with pytest.raises(RuntimeError, match=r"the executor gave up .* start again with a fresh executor"):
            sweep(deadly, grid, path=path, executor=executor)
    assert [row["x"] for row in read(path)] == [0]
    assert [row["y"] for row in sweep(deadly, grid, path=path)] == [0, 1, 2]


def test_a_script_without_guard_is_told_so(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(DRIVER.replace('if __name__ == "__main__":\n    ', ""))
    folders = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "rows.jsonl"), str(tmp_path / "log")],
        env={**os.environ, "PYTHONPATH": folders},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "needs `if __name__ == '__main__':` around the call" in done.stderr


# ---------------------------------------------------------------- bad input


def _notebook_function():
    def cell(x):
        return {"y": x}

    cell.__module__, cell.__qualname__ = "__main__", "cell"
    return cell


BAD = [
    (lambda: sweep(3, [{}]), TypeError, "fn must be a function, got int; constants belong into the grid"),
    (lambda: sweep(NotAFunction(), [{"x": 1}]), TypeError, "fn must be a function, got NotAFunction"),
    (
        lambda: sweep(square, {"x": [1]}),
        TypeError,
        r"grid must be a list of dicts, got dict; product\(\*\*axes\) makes",
    ),
    (lambda: sweep(square, 3), TypeError, "grid must be a list of dicts, got int"),
    (lambda: sweep(square, [1]), TypeError, "point 0 of the grid must be a dict, got int"),
    (lambda: sweep(square, [{"x": 1}, {"x": 1}]), ValueError, r"point 1 of the grid occurs twice: {'x': 1}"),
    (lambda: sweep(square, [{"x": np.zeros(2)}]), TypeError, "point 0, 'x' is of type ndarray, .*; use .tolist"),
    (lambda: sweep(square, [{"x": float("inf")}]), ValueError, "point 0, 'x' is inf, which JSON does not know"),
    (
        lambda: sweep(square, [{"y": 1}]),
        ValueError,
        r"point 0, {'y': 1}, does not fit .*:square\(x, shift=0\): missing",
    ),
    (lambda: sweep(square, [{"x": 1, "z": 1}]), ValueError, "does not fit .* got an unexpected keyword argument 'z'"),
    (
        lambda: sweep(lambda **k: {}, [{"failure": 1}]),
        ValueError,
        "an argument 'failure', a name kept for rows that fa",
    ),
    (lambda: sweep(lambda x: {"y": x}, [{"x": 1}]), ValueError, "<lambda> cannot be imported by other processes: put"),
    (
        lambda: sweep(_notebook_function(), [{"x": 1}]),
        ValueError,
        "__main__:cell .*memlib.experiments, or use executor='",
    ),
    (lambda: sweep(square, [{"x": 1}], executor="threads"), TypeError, "executor must be None .* got 'threads'"),
    (lambda: sweep(square, [{"x": 1}], workers=0), ValueError, "workers must be an integer of at least 1, got 0"),
    (lambda: sweep(square, [], executor="serial", workers=2), ValueError, "workers is the size of the default pool"),
    (lambda: sweep(square, [], changed_code="yes"), ValueError, "unknown changed_code 'yes'; allowed: raise, accept"),
    (
        lambda: sweep(square, [], path="/nowhere/rows"),
        ValueError,
        "path must be a file in an existing folder, got '/now",
    ),
    (lambda: sweep(square, [], path="/"), ValueError, "path must be a file in an existing folder, got '/'"),
    (lambda: sweep(square, [], path="/proc/rows"), ValueError, "path cannot be written: "),
    (lambda: product(a=3), TypeError, "axis 'a' must be a list of values, got 3"),
    (lambda: product(a="lin"), TypeError, "axis 'a' must be a list of values, got 'lin'"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_process_pool_of_ones_own_needs_importable_functions_too():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        with pytest.raises(ValueError, match="cannot be imported by other processes"):
            sweep(_notebook_function(), [{"x": 1}], executor=executor)


def test_identity_and_hash():
    assert identity(square).endswith("test_sweep:square")
    assert len(code_hash(square)) == 64
    assert code_hash(len) is None
