"""Stored tables: grids too long to run each time, kept as ``results/NAME.csv`` with what made them.

    write("nested_lookups", rows, command="python -m memlib.experiments …", code=code_hash(run))
    table = read("nested_lookups")      # a pandas.DataFrame; table.attrs says what made it

The file is plain CSV below a head of ``#`` lines: command, date, versions, SHA-256 of the code, the type of each
column, the number of rows, and SHA-256 of all that follows. Numbers come back exactly as they were. A file that is
damaged, cut short or edited raises `ValueError`; it is never read in part. A notebook that plots a stored table re-runs
some of its points, and so do the tests.
"""

import csv
import datetime
import hashlib
import importlib.metadata
import io
import math
import os
import platform
import re
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["choose", "find", "folder", "names", "read", "write"]

_FORMAT = "memlib results 1"
_HEAD = ("command", "date", "versions", "code", "columns", "rows", "content")
_TYPES = {"truth": bool, "integer": int, "number": float, "text": str}
_PACKAGES = ("memlib", "torch", "numpy")


def folder() -> Path | None:
    """The folder ``results`` of the repository this memlib belongs to; None for an installed memlib."""
    found = Path(__file__).resolve().parents[1] / "results"
    return found if found.is_dir() else None


def names() -> tuple[str, ...]:
    """The names of all stored tables that are found."""
    return tuple(sorted({path.stem for path in _all()}))


def find(name: str) -> Path:
    """The file of a stored table: in the repository's ``results``, or among the files installed with memlib."""
    _check_name(name)
    for path in _all():
        if path.stem == name:
            return path
    known = ", ".join(names()) or "none"
    raise ValueError(f"there is no stored table {name!r}; known: {known}. {_making(name)}")


def write(name: str, rows: Iterable[Mapping], *, command: str, code: str | None,
          into: str | os.PathLike | None = None) -> Path:  # fmt: skip
    """Write rows as a stored table and return its path. The file appears whole or not at all.

    Args:
        name: the name of the table: small letters, digits and underscores.
        rows: dicts with the same keys, of texts, booleans and finite numbers; rows of failed points are refused.
        command: the command that makes this table again.
        code: SHA-256 of the code that made it, as `memlib.sweep.code_hash` gives it; None if unknown.
        into: the folder; by default ``results`` in the repository.
    """
    _check_name(name)
    rows = [dict(row) for row in rows]
    types = _types(rows)
    target = Path(into) if into is not None else folder()
    if target is None or not target.is_dir():
        where = "an installed memlib has no repository" if target is None else f"got {str(target)!r}"
        raise ValueError(f"into must be an existing folder; {where}")
    if not isinstance(command, str) or not command.strip() or "\n" in command:
        raise ValueError(f"command must be one line of text, got {command!r}")
    body = io.StringIO()
    writer = csv.writer(body, lineterminator="\n")
    writer.writerow(types)
    for row in rows:
        writer.writerow([_cell(row[column], kind) for column, kind in types.items()])
    content = body.getvalue()
    head = {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "versions": ", ".join([f"python {platform.python_version()}", *map(_version, _PACKAGES)]),
        "code": f"sha256 {code}" if code else "unknown",
        "columns": ", ".join(f"{column} {kind}" for column, kind in types.items()),
        "rows": str(len(rows)),
        "content": f"sha256 {_hash(content)}",
    }
    text = "".join([f"# {_FORMAT}\n", *(f"# {key}: {value}\n" for key, value in head.items()), content])
    path = target / f"{name}.csv"
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def read(name: str, columns: Sequence[str] = (), *, path: str | os.PathLike | None = None):
    """A stored table as a `pandas.DataFrame`; ``attrs`` holds the head of the file.

    ``columns`` are those that the caller needs: a table without one of them raises. ``path`` reads another file.
    """
    import pandas

    path = find(name) if path is None else Path(path)
    if not path.is_file():
        raise ValueError(f"{path} does not exist. {_making(name)}")
    try:
        text = path.read_bytes().decode("utf-8").replace("\r\n", "\n")  # git on Windows may have changed line ends
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}. {_making(name)}") from None
    head, content = _head(path, name, text)
    kinds = _columns(path, name, head["columns"])
    lines = list(csv.reader(io.StringIO(content)))
    found = lines[0] if lines else []
    if found != list(kinds):
        raise ValueError(f"{path} is damaged: its head names columns {list(kinds)}, the table has {found}")
    if str(len(lines) - 1) != head["rows"]:
        raise ValueError(f"{path} is cut short: {len(lines) - 1} rows of {head['rows']}. {_making(name)}")
    if head["content"] != f"sha256 {_hash(content)}":
        raise ValueError(f"{path} was changed after it was written: its content has another hash. {_making(name)}")
    missing = [column for column in columns if column not in kinds]
    if missing:
        raise ValueError(f"{path} has no column {', '.join(missing)}; it has {', '.join(kinds)}. {_making(name)}")
    values = {}
    for number, (column, kind) in enumerate(kinds.items()):
        values[column] = [_value(path, column, kind, row, number, line) for line, row in enumerate(lines[1:], start=1)]
    table = pandas.DataFrame(values)
    table.attrs = head
    return table


def choose(table, count: int, commit: str) -> list[int]:
    """Row numbers of a table to re-run: other ones for every commit, the same ones for the same commit.

    Rows are put in the order of the SHA-256 of commit and row number; the first ``count`` are taken.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(table):
        raise ValueError(f"count must be an integer in 1..{len(table)}, got {count!r}")
    order = sorted(range(len(table)), key=lambda row: _hash(f"{commit} {row}"))
    return order[:count]


# ---------------------------------------------------------------- the file


def _all() -> list[Path]:
    """All stored tables: the repository's come first."""
    here = folder()
    if here is not None:
        return sorted(here.glob("*.csv"))
    try:
        installed = importlib.metadata.files("memlib") or []
    except importlib.metadata.PackageNotFoundError:
        installed = []
    paths = [Path(f.locate()) for f in installed if f.suffix == ".csv" and f.parent.name == "results"]
    for base in (
        Path(__file__).resolve().parents[1],
        Path(sysconfig.get_path("data")),
    ):  # pip --target; the usual place
        paths += (base / "share" / "memlib" / "results").glob("*.csv")
    return sorted(path for path in paths if path.is_file())


def _making(name: str) -> str:
    return f"A table is made by `python -m memlib.experiments {name} --scale stored --store`"


def _check_name(name) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"name must be small letters, digits and underscores, got {name!r}")


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} unknown"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _types(rows: list[dict]) -> dict[str, str]:
    """The type of every column; a column of whole and other numbers holds numbers."""
    if not rows:
        raise ValueError("a table needs at least one row")
    failed = [row for row in rows if "failure" in row]
    if failed:
        raise ValueError(f"{len(failed)} of {len(rows)} rows are failures; the first: {failed[0]['failure']}")
    types = {}
    for column in rows[0]:
        if not isinstance(column, str) or not re.fullmatch(r"\w+", column):
            raise ValueError(f"a column's name must be letters, digits and underscores, got {column!r}")
    for number, row in enumerate(rows):
        if list(row) != list(rows[0]):
            raise ValueError(f"row {number} has the columns {list(row)}, the first row {list(rows[0])}")
        for column, value in row.items():
            kind = next((kind for kind, known in _TYPES.items() if type(value) is known), None)
            if kind is None:
                raise ValueError(f"row {number}, {column!r} is {value!r}; texts, booleans and numbers can be stored")
            if kind == "number" and not math.isfinite(value):
                raise ValueError(f"row {number}, {column!r} is {value}; numbers must be finite")
            if kind == "text" and ("\n" in value or "\r" in value):
                raise ValueError(f"row {number}, {column!r} is {value!r}; a text must be one line")
            before = types.setdefault(column, kind)
            if {before, kind} == {"integer", "number"}:
                types[column] = "number"
            elif before != kind:
                raise ValueError(f"column {column!r} holds {before} and, in row {number}, {kind}: {value!r}")
    return types


def _cell(value, kind: str) -> str:
    if kind == "truth":
        return "true" if value else "false"
    return repr(float(value)) if kind == "number" else str(value)


def _head(path: Path, name: str, text: str) -> tuple[dict[str, str], str]:
    lines = text.split("\n")
    if lines[0] != f"# {_FORMAT}":
        raise ValueError(f"{path} is no stored table: it must begin with '# {_FORMAT}'. {_making(name)}")
    head, count = {}, 1
    for line in lines[1:]:
        if not line.startswith("# "):
            break
        key, _, value = line.removeprefix("# ").partition(": ")
        head[key] = value
        count += 1
    missing = [key for key in _HEAD if key not in head]
    if missing:
        raise ValueError(f"{path} is damaged or cut short: its head does not say {', '.join(missing)}. {_making(name)}")
    return head, "\n".join(lines[count:])


def _columns(path: Path, name: str, listed: str) -> dict[str, str]:
    kinds = {}
    for entry in listed.split(", "):
        column, _, kind = entry.partition(" ")
        if kind not in _TYPES:
            raise ValueError(f"{path} is damaged: unknown type {kind!r} of column {column!r}. {_making(name)}")
        kinds[column] = kind
    return kinds


def _value(path: Path, column: str, kind: str, row: list[str], number: int, line: int):
    """A cell as the value it was."""
    cell = row[number] if number < len(row) else None
    try:
        if kind == "truth":
            return {"true": True, "false": False}[cell]
        value = _TYPES[kind](cell)
        if kind != "text" and not math.isfinite(value):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path} is damaged: row {line}, column {column!r} is {cell!r}; wanted: {kind}") from None
    return value
