"""Run a grid of the book from the command line: ``python -m memlib.experiments NAME --scale book --out rows.jsonl``."""

import argparse
import csv
import json
import sys
from contextlib import contextmanager

from memlib import results
from memlib.experiments import SCALES, STORED, evaluate, get, names, scales, summary
from memlib.sweep import code_hash, failures

EXECUTORS = ("pool", "dask", "serial")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m memlib.experiments", description="Run a grid of the book.")
    made.add_argument("name", nargs="?", help=f"an experiment: {', '.join(names())}")
    made.add_argument("--list", action="store_true", help="list the experiments and the sizes of their grids")
    made.add_argument(
        "--scale", choices=(*SCALES, "stored"), default="book",
        help=f"size of the grid (default: book); stored, the grid behind a stored table: {', '.join(STORED)} only",
    )  # fmt: skip
    made.add_argument("--executor", choices=EXECUTORS, default="pool", help="where the points run (default: pool)")
    made.add_argument(
        "--workers", type=int, help="processes of the pool or of a local Dask cluster (default: one per core)"
    )
    made.add_argument("--scheduler", help="address of a running Dask scheduler; by default a local cluster is started")
    made.add_argument("--out", help="file of rows, one JSON line each; resumed if it exists. Without it: CSV to stdout")
    made.add_argument(
        "--store", action="store_true", help="with --scale stored: write the rows as results/NAME.csv of the repository"
    )
    made.add_argument("--retry-failed", action="store_true", help="evaluate points again that failed before")
    made.add_argument("--quiet", action="store_true", help="no progress bar")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 if no point failed, 1 if some did, 2 on bad input."""
    options = parser().parse_args(arguments)
    if options.list:
        for name in names():
            sizes = ", ".join(f"{scale} {len(get(name).grid(scale))}" for scale in scales(name))
            print(f"{name}: {summary(name)} Points: {sizes}.")
        return 0
    if options.name is None:
        parser().print_usage(sys.stderr)
        return 2
    try:
        if options.store and options.scale != "stored":
            raise ValueError("--store goes with --scale stored")
        if options.store and results.folder() is None:
            raise ValueError("--store writes into a clone of the repository; this memlib is installed without one")
        with _executor(options) as executor:
            rows = evaluate(
                options.name,
                options.scale,
                path=options.out,
                retry_failed=options.retry_failed,
                progress=bool(options.out) and not options.quiet,
                **executor,
            )
        if options.store:
            command = f"python -m memlib.experiments {options.name} --scale stored --store"
            path = results.write(options.name, rows, command=command, code=code_hash(get(options.name).run))
            print(f"{len(rows)} rows in {path}", file=sys.stderr)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted" + (": the same command goes on" if options.out else ""), file=sys.stderr)
        return 130
    if options.out is None and not options.store:
        _print_table(rows)
    failed = failures(rows)
    for row in failed:
        print(json.dumps({name: value for name, value in row.items() if name != "traceback"}), file=sys.stderr)
    print(f"{len(rows) - len(failed)} points, {len(failed)} failures", file=sys.stderr)
    return 1 if failed else 0


@contextmanager
def _executor(options):
    """The arguments of `sweep` that say where the points run."""
    if options.executor != "dask":
        if options.scheduler:
            raise ValueError("--scheduler goes with --executor dask")
        if options.executor == "serial" and options.workers is not None:
            raise ValueError("--workers goes with --executor pool or dask")
        yield {"executor": options.executor, "workers": options.workers}
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError("--executor dask needs the package distributed: pip install distributed") from error
    if options.scheduler and options.workers is not None:
        raise ValueError("a running scheduler has its own workers; leave out --workers")
    where = {"address": options.scheduler} if options.scheduler else {
        "n_workers": options.workers, "threads_per_worker": 1, "processes": True, "dashboard_address": None
    }  # fmt: skip
    with Client(**where) as client:
        yield {"executor": client.get_executor()}


def _print_table(rows: list[dict]) -> None:
    """The rows as CSV; what is no number or text is written as JSON."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        cells = (row.get(name, "") for name in columns)
        writer.writerow([json.dumps(cell) if isinstance(cell, list | dict) else cell for cell in cells])


if __name__ == "__main__":
    sys.exit(main())
