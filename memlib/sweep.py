r"""Grids of experiments that can be stopped, killed and resumed: one function, many points, one row for each.

    rows = sweep(run, product(heads=[1, 2, 4], seed=range(5)), path="run.jsonl")
    table = to_frame(rows)

The function is called as ``run(**point)`` and returns a dict of JSON values. Where it runs is the executor's matter:
by default in a pool of one-thread processes, or on any `concurrent.futures.Executor`, such as a Dask cluster's
``client.get_executor()``. The trained results of the chapter on fixed sparse memory are made this way.

With a ``path`` every finished point is one line of that file, on disk before the next is taken in. After a crash, a
kill or Ctrl-C the same call goes on where the other stopped. A point that raises is a row too, and the sweep goes on.
"""

import hashlib
import importlib
import inspect
import itertools
import json
import math
import os
import signal
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from multiprocessing import get_context, parent_process
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows: there two sweeps on one file are not noticed
    fcntl = None

__all__ = ["code_hash", "failures", "identity", "product", "read", "sweep", "to_frame"]

_FORMAT = "memlib sweep 1"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_RESERVED = ("failure", "traceback")
_STRIKES = 2  # so often a point may kill a worker that runs nothing else
_TAIL = 5  # lines of a traceback that are kept


def product(**axes: Iterable) -> list[dict]:
    """All combinations of the axes' values, the last axis fastest: ``product(heads=[1, 2], seed=range(5))``."""
    for name, values in axes.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            raise TypeError(f"axis {name!r} must be a list of values, got {values!r}")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def sweep(fn: Callable[..., dict], grid: Iterable[Mapping], *, path: str | os.PathLike | None = None,
          executor: Executor | str | None = None, workers: int | None = None, progress: bool = False,
          retry_failed: bool = False, changed_code: str = "raise") -> list[dict]:  # fmt: skip
    """Evaluate ``fn(**point)`` at every point of the grid and return the rows in the order of the grid.

    A row is the point and what the function returned, in one dict. A point that raised has ``failure`` (type and
    message) and ``traceback`` (its last lines) instead; so has one whose result holds no JSON values, and one that
    killed its worker process again and again.

    Args:
        fn: a function that returns a dict of JSON values: numbers, texts, booleans, None, lists, dicts.
        grid: dicts of JSON values, the keyword arguments of ``fn``; no point twice. `product` makes a full grid.
        path: a file for the rows, one JSON line each, written and synchronised whole. If it exists, its rows are taken
            over; a last line that was only half written is removed. The file of another function, of changed code, or
            one that another sweep is writing raises `ValueError` and is left alone. Rows of points that are not in this
            grid stay in the file.
        executor: None for a pool of one-thread processes of its own, ``"serial"`` for this process, or any
            `concurrent.futures.Executor`; that one is not shut down.
        workers: number of processes of the pool; by default the number of usable cores.
        progress: show a progress bar.
        retry_failed: forget the failures of this grid that the file holds, and evaluate those points again.
        changed_code: ``"raise"`` if the source file of ``fn`` is not the one that began the file, or ``"accept"``.
    """
    name = identity(fn)
    points = _points(fn, grid)
    run = _runner(fn, executor, workers)
    if changed_code not in ("raise", "accept"):
        raise ValueError(f"unknown changed_code {changed_code!r}; allowed: raise, accept")
    with _Store(path, name, code_hash(fn), changed_code) as store:
        if retry_failed:
            store.forget([key for key in points if "failure" in store.rows.get(key, ())])
        todo = {key: point for key, point in points.items() if key not in store.rows}
        bar = _bar(progress, name, len(points), len(points) - len(todo))
        try:
            with closing(run(todo)) as outcomes:
                for key, outcome in outcomes:
                    store.add(key, {"point": points[key], **outcome})
                    if bar is not None:
                        bar.update()
        finally:
            if bar is not None:
                bar.close()
        return [_flat(store.rows[key]) for key in points]


def read(path: str | os.PathLike) -> list[dict]:
    """The rows of a sweep's file in the order in which they were finished; the file is not changed."""
    lines, _, _ = _lines(Path(path), Path(path).read_bytes())
    return [_flat(row) for row in lines[1:]]


def failures(rows: Iterable[Mapping]) -> list[dict]:
    """The rows that are failures."""
    return [dict(row) for row in rows if "failure" in row]


def to_frame(rows: Iterable[Mapping], failed: str = "raise"):
    """The rows as a `pandas.DataFrame`, one column for each argument and each result.

    A mean over a table in which some points failed looks like any other mean. So failures raise `ValueError`, unless
    ``failed`` is ``"drop"`` or ``"keep"``.
    """
    import pandas

    if failed not in ("raise", "drop", "keep"):
        raise ValueError(f"unknown failed {failed!r}; allowed: raise, drop, keep")
    rows = list(rows)
    bad = failures(rows)
    if bad and failed == "raise":
        point = {name: value for name, value in bad[0].items() if name not in _RESERVED}
        raise ValueError(f"{len(bad)} of {len(rows)} points failed; the first, {point}: {bad[0]['failure']}")
    if failed == "drop":
        rows = [row for row in rows if "failure" not in row]
    return pandas.DataFrame(rows)


def identity(fn: Callable) -> str:
    """What a sweep's file calls its function: ``module:name``."""
    if not callable(fn) or not hasattr(fn, "__qualname__") or not hasattr(fn, "__module__"):
        raise TypeError(f"fn must be a function, got {type(fn).__name__}; constants belong into the grid")
    return f"{fn.__module__}:{fn.__qualname__}"


def code_hash(fn: Callable) -> str | None:
    """SHA-256 of the source file of ``fn``, None where there is none (a notebook). What it imports is not included."""
    try:
        return hashlib.sha256(Path(inspect.getsourcefile(fn)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return None


# ---------------------------------------------------------------- points and results


def _points(fn: Callable, grid: Iterable[Mapping]) -> dict[str, dict]:
    """The points by their key, in the order of the grid."""
    if isinstance(grid, str | Mapping) or not isinstance(grid, Iterable):
        raise TypeError(f"grid must be a list of dicts, got {type(grid).__name__}; product(**axes) makes one")
    points = {}
    for number, point in enumerate(grid):
        if not isinstance(point, Mapping):
            raise TypeError(f"point {number} of the grid must be a dict, got {type(point).__name__}")
        point = _plain(dict(point), f"point {number}")
        taken = [name for name in _RESERVED if name in point]
        if taken:
            raise ValueError(f"point {number} has an argument {taken[0]!r}, a name kept for rows that failed")
        _check_call(fn, number, point)
        if _key(point) in points:
            raise ValueError(f"point {number} of the grid occurs twice: {point}")
        points[_key(point)] = point
    return points


def _check_call(fn: Callable, number: int, point: dict) -> None:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # a function that does not tell its arguments
    try:
        signature.bind(**point)
    except TypeError as error:
        raise ValueError(f"point {number}, {point}, does not fit {identity(fn)}{signature}: {error}") from None


def _key(point: dict) -> str:
    """The point as canonical JSON."""
    return json.dumps(point, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value, where: str):
    """The value as JSON knows it: scalars of numpy and torch become numbers, tuples lists."""
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"{where} has a key {name!r}; JSON knows texts only")
        return {name: _plain(item, f"{where}, {name!r}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}, entry {i}") for i, item in enumerate(value)]
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, which JSON does not know; say None or a text instead")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    hint = "; use .tolist()" if hasattr(value, "tolist") else ""
    raise TypeError(f"{where} is of type {type(value).__name__}, which JSON does not know{hint}")


def _evaluate(fn: Callable, point: dict, token: str = "") -> dict:
    """The outcome of one point; whatever goes wrong with it is its outcome.

    ``token`` is not used: it keeps a cluster that remembers results by arguments from returning those of earlier times.
    """
    start = time.perf_counter()
    try:
        result = fn(**point)
        if not isinstance(result, Mapping):
            raise TypeError(f"the result must be a dict, got {type(result).__name__}")
        result = _plain(dict(result), "the result")
        taken = [name for name in result if name in point or name in _RESERVED]
        if taken:
            raise ValueError(f"the result has a name that is taken: {taken[0]!r}")
    except Exception as error:
        return _failed(error)
    return {"result": result, "seconds": round(time.perf_counter() - start, 3)}


def _evaluate_named(name: str, point: dict) -> dict:
    """`_evaluate` for a function that is known by its name."""
    try:
        fn = _find(name)
    except Exception as error:  # the module cannot be imported in the worker
        return _failed(error)
    return _evaluate(fn, point)


def _failed(error: BaseException) -> dict:
    lines = "".join(traceback.format_exception(error)).splitlines()[-_TAIL:]
    return {"failure": {"type": type(error).__name__, "message": str(error), "traceback": lines}}


def _flat(row: dict) -> dict:
    """A row as it is returned: the point and the result in one dict."""
    if "failure" not in row:
        return {**row["point"], **row["result"]}
    failure = row["failure"]
    text = f"{failure['type']}: {failure['message']}"
    return {**row["point"], "failure": text, "traceback": "\n".join(failure["traceback"])}


# ---------------------------------------------------------------- where the points run


def _runner(fn: Callable, executor, workers) -> Callable[[dict], Iterator]:
    """A function of the points to do that yields their keys and outcomes as they are finished."""
    if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 1):
        raise ValueError(f"workers must be an integer of at least 1, got {workers!r}")
    if workers is not None and executor not in (None, "pool"):
        raise ValueError("workers is the size of the default pool; an executor brings its own")
    if executor == "serial":
        return lambda todo: ((key, _evaluate(fn, point)) for key, point in todo.items())
    if executor in (None, "pool"):
        _check_importable(fn)
        return lambda todo: _in_pool(identity(fn), todo, min(workers or _cores(), max(len(todo), 1)))
    if isinstance(executor, Executor):
        if isinstance(executor, ProcessPoolExecutor):
            _check_importable(fn)
        return lambda todo: _on_executor(fn, todo, executor)
    raise TypeError(
        f"executor must be None (a pool of processes), 'serial' or a concurrent.futures.Executor, got {executor!r}"
    )


def _on_executor(fn: Callable, todo: dict, executor: Executor) -> Iterator:
    token = uuid.uuid4().hex
    futures = {}
    try:
        for key, point in todo.items():
            futures[executor.submit(_evaluate, fn, point, token)] = key
        for future in as_completed(futures):
            try:
                outcome = future.result()
            except (BrokenExecutor, CancelledError) as error:
                raise RuntimeError(
                    f"the executor gave up ({type(error).__name__}: {error}); finished points are kept if there is a "
                    "path: start again with a fresh executor"
                ) from error
            except Exception as error:  # the executor's, such as Dask's KilledWorker: the function's are outcomes
                outcome = _failed(error)
            yield futures[future], outcome
    finally:
        for future in futures:
            future.cancel()


def _in_pool(name: str, todo: dict, workers: int) -> Iterator:
    """Run the points in a pool of processes; when a worker dies, in a new one.

    No more points are handed out than there are workers. When a worker dies, what was running is known, but not who was
    to blame: each of those points then runs alone, and if its worker dies again it is that point's failure.
    """
    waiting, running = deque(todo.items()), {}
    pool = None
    try:
        while waiting or running:
            pool = pool or _start(workers)
            broken = False
            while waiting and len(running) < workers and not broken:
                try:
                    running[pool.submit(_evaluate_named, name, waiting[0][1])] = waiting[0]
                    waiting.popleft()
                except BrokenProcessPool:
                    broken = True
            done = wait(running, return_when=FIRST_COMPLETED).done if running else ()
            suspects = []
            for future in done:
                key, point = running.pop(future)
                if isinstance(future.exception(), BrokenProcessPool):
                    suspects.append((key, point))
                else:
                    yield key, future.result()
            if not (suspects or broken):
                continue
            for future in wait(running).done:  # a pool breaks as a whole, but some may have finished before
                if isinstance(future.exception(), BrokenProcessPool):
                    suspects.append(running[future])
                else:
                    yield running[future][0], future.result()
            running.clear()
            _stop(pool)
            pool = None
            yield from _alone(name, suspects)
    finally:
        if pool is not None:
            _stop(pool)


def _alone(name: str, points: list[tuple[str, dict]]) -> Iterator:
    """Keys and outcomes of points that run one by one, each with nothing beside it."""
    pool = None
    try:
        for key, point in points:
            message = f"the worker process died whenever it ran this point, {_STRIKES} times with nothing beside it"
            outcome = {"failure": {"type": "WorkerDied", "message": message, "traceback": []}}
            for _ in range(_STRIKES):
                pool = pool or _start(1)
                try:
                    outcome = pool.submit(_evaluate_named, name, point).result()
                    break
                except BrokenProcessPool:
                    _stop(pool)
                    pool = None
            yield key, outcome
    finally:
        if pool is not None:
            _stop(pool)


def _start(workers: int) -> ProcessPoolExecutor:
    """A pool whose workers have been seen to start."""
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin)
    try:
        with _one_thread():
            for future in [pool.submit(_nothing) for _ in range(workers)]:  # the first calls start the processes
                future.result()
    except BrokenProcessPool as error:
        _stop(pool)
        raise RuntimeError(
            "the worker processes do not start; their message is on the error output. A script that calls sweep "
            "needs `if __name__ == '__main__':` around the call"
        ) from error
    except BaseException:
        _stop(pool)
        raise
    return pool


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the pool and its processes at once; what they were doing is lost, and evaluated again some other time."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    for process in processes:
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _one_thread():
    """One thread per process: libraries read it from the environment when they start."""
    before = {variable: os.environ.get(variable) for variable in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                del os.environ[variable]
            else:
                os.environ[variable] = value


def _begin() -> None:
    """What a worker does first: one thread, Ctrl-C is the parent's matter, no life without the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with suppress(ImportError):
        import torch

        torch.set_num_threads(1)


def _die_with_parent() -> None:
    parent_process().join()
    os._exit(1)


def _nothing() -> None:
    pass


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _find(name: str) -> Callable:
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _check_importable(fn: Callable) -> None:
    name = identity(fn)
    try:
        importable = fn.__module__ != "__main__" and _find(name) is fn
    except (ImportError, AttributeError):
        importable = False
    if not importable:
        raise ValueError(
            f"{name} cannot be imported by other processes: put it into a module, such as one of memlib.experiments, "
            "or use executor='serial'"
        )


# ---------------------------------------------------------------- the file


class _Store:
    """The rows by key, and the file that holds them: a line that tells the function, then one line for each row."""

    def __init__(self, path, name: str, code: str | None, changed_code: str):
        self.path = None if path is None else Path(path)
        self.header = {"format": _FORMAT, "function": name, "code": code}
        self.changed_code, self.rows, self.file = changed_code, {}, None

    def __enter__(self) -> "_Store":
        if self.path is None:
            return self
        if not self.path.parent.is_dir() or self.path.is_dir():
            raise ValueError(f"path must be a file in an existing folder, got {str(self.path)!r}")
        try:
            self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise ValueError(f"path cannot be written: {error}") from error
        try:
            self._lock(self.file)
            self._take_over()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._close()

    def add(self, key: str, row: dict) -> None:
        """Take a row in; when this returns it is on disk."""
        if self.file is not None:
            self._write(_line(row))
        self.rows[key] = row

    def forget(self, keys: list[str]) -> None:
        """Remove rows; the file is replaced in one step."""
        for key in keys:
            del self.rows[key]
        if not keys or self.file is None:
            return
        part = self.path.with_name(self.path.name + ".part")
        new = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._lock(new, check=False)
        old, self.file = self.file, new
        self._write(_line(self.header) + b"".join(_line(row) for row in self.rows.values()))
        os.replace(part, self.path)
        os.close(old)

    def _take_over(self) -> None:
        with open(self.path, "rb") as file:
            data = file.read()
        start = _line(self.header)
        if start.startswith(data):  # a new file, or the first line was only half written
            os.ftruncate(self.file, 0)
            self._write(start)
            return
        lines, whole, ended = _lines(self.path, data)
        self._check_header(lines[0])
        self.header = lines[0]
        for row in lines[1:]:
            self.rows.setdefault(_key(row["point"]), row)
        os.ftruncate(self.file, whole)
        if not ended:
            self._write(b"\n")

    def _check_header(self, found: dict) -> None:
        if found["function"] != self.header["function"]:
            raise ValueError(
                f"{self.path} holds the rows of {found['function']}, not of {self.header['function']}; "
                "give another file name"
            )
        if found["code"] != self.header["code"] and self.changed_code == "raise":
            raise ValueError(
                f"{self.path} was begun with other code of {found['function']}: the source file has changed since; "
                "give another file name, or changed_code='accept' if the change does not matter"
            )

    def _lock(self, file: int, check: bool = True) -> None:
        """One sweep at a time; the lock goes when the process goes."""
        if fcntl is None:
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"{self.path} is being written by another sweep") from error
        if check and os.fstat(file).st_ino != os.stat(self.path).st_ino:
            raise ValueError(f"{self.path} is being written by another sweep")

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.file, data) :]
        os.fsync(self.file)

    def _close(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None


def _line(content: dict) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _lines(path: Path, data: bytes) -> tuple[list[dict], int, bool]:
    """The header and the rows, how many bytes of the file they take, and whether the last of them ends its line.

    No beginning of a JSON object is itself one. So a last line without end is either complete, or is left out.
    """
    *whole, rest = data.split(b"\n")
    length, ended = len(data) - len(rest), True
    try:
        json.loads(rest)
    except ValueError:
        pass
    else:
        whole, length, ended = [*whole, rest], len(data), False
    parsed = []
    for number, line in enumerate(whole, start=1):
        try:
            parsed.append(json.loads(line))
            good = isinstance(parsed[-1], dict) and (number == 1 or _is_row(parsed[-1]))
        except ValueError:
            good = False
        if not good and number > 1:
            raise ValueError(f"{path} is damaged: line {number} is no row; the file was left as it is")
        if not good or (number == 1 and parsed[0].get("format") != _FORMAT):
            break
    if not parsed or not isinstance(parsed[0], dict) or parsed[0].get("format") != _FORMAT:
        raise ValueError(f"{path} was not written by memlib.sweep; give another file name")
    return parsed, length, ended


def _is_row(row: dict) -> bool:
    return isinstance(row.get("point"), dict) and ("result" in row) != ("failure" in row)


def _bar(progress: bool, name: str, total: int, done: int):
    if not progress:
        return None
    from tqdm.auto import tqdm

    return tqdm(total=total, initial=done, desc=name.partition(":")[0].rpartition(".")[2], unit="point")
