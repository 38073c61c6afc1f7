"""Run notebooks and save their outputs: `python tools/notebooks.py [--check] [PATH …]`, or `make notebooks`.

Each notebook runs in a fresh kernel, two at a time. What is saved holds nothing that changes from run to run: no times,
no versions, widget models numbered in order, cell ids made from the cells' sources. So re-saving an unchanged notebook
gives the same file. For each notebook the run time is printed, and what changed in its outputs, in numbers.

A notebook that raises is left as it was, and the exit code is 1. `--check` saves nothing, and the exit code is also 1
if saved and new outputs disagree beyond the notebook's tolerance.
"""

import argparse
import copy
import hashlib
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import compare

ROOT = Path(__file__).resolve().parent.parent
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
LANGUAGE = {"name": "python", "file_extension": ".py", "mimetype": "text/x-python", "pygments_lexer": "ipython3"}
TIMEOUT = 1200  # seconds for one cell


def discover(root=ROOT):
    """All notebooks of the book."""
    found = sorted((root / "chapters").rglob("*.ipynb"))
    return [path for path in found if ".ipynb_checkpoints" not in path.parts]


def run(notebook, folder):
    """The notebook with fresh outputs; the one given stays as it is. Raises if a cell raises."""
    from nbclient import NotebookClient

    fresh = copy.deepcopy(notebook)
    fresh.metadata.pop("widgets", None)
    client = NotebookClient(
        fresh,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        store_widget_state=True,
        coalesce_streams=True,
    )
    client.execute()
    return tidy(fresh)


def tidy(notebook):
    """The notebook without anything that changes from run to run."""
    state = notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    text = json.dumps(notebook, ensure_ascii=False)
    for position, model in enumerate(state):
        text = text.replace(model, f"{position:032x}")
    notebook = nbformat.from_dict(json.loads(text))
    notebook.metadata["kernelspec"] = KERNEL
    notebook.metadata["language_info"] = LANGUAGE
    notebook["nbformat"], notebook["nbformat_minor"] = 4, 5
    seen = {}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        name = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        seen[name] = seen.get(name, 0) + 1
        cell["id"] = name if seen[name] == 1 else f"{name}-{seen[name]}"
    return notebook


def save(notebook, path):
    """Write the notebook in one step: readers see the old file or the new one."""
    nbformat.validate(notebook)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
        nbformat.write(notebook, file)
    os.chmod(file.name, path.stat().st_mode if path.exists() else 0o644)
    os.replace(file.name, path)


def changes(old, new):
    """What changed from the saved outputs to the new: lines to print, and whether it stays within the tolerance."""
    tolerance = compare.tolerance_of(new.metadata)
    lines, agree = [], True
    pairs = zip(_code(old), _code(new), strict=True)
    for number, (before, after) in enumerate(pairs):
        if not compare.is_compared(after):
            continue
        if before.execution_count is None:
            lines.append(f"  cell {number}: not run before")
            agree = False
            continue
        differences = compare.outputs(before.outputs, after.outputs)
        beyond = compare.outputs(before.outputs, after.outputs, tolerance)
        agree = agree and not beyond
        if differences:
            lines.append(f"  cell {number}: {_summary(differences, beyond)}")
    return lines, agree


def _summary(differences, beyond):
    wording = [d for d in differences if d.relative is None]
    if wording:
        return f"text differs: {wording[0]}"
    worst = max(differences, key=lambda d: d.relative)
    return f"{len(differences)} numbers differ, {len(beyond)} beyond the tolerance; largest: {worst}"


def _code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def process(path, check):
    """Run one notebook and save it, or only compare it. Returns whether all is well, and lines to print."""
    start = time.perf_counter()
    try:
        old = nbformat.read(path, as_version=4)
        compare.tolerance_of(old.metadata)
        new = run(old, path.parent)
        lines, agree = changes(old, new)
    except Exception as error:  # whatever went wrong in this notebook, the others still run
        return False, [f"{path}: FAILED after {time.perf_counter() - start:.1f} s", str(error)]
    if not check:
        save(new, path)
    state = "unchanged" if not lines else "changed"
    return agree or not check, [f"{path}: {time.perf_counter() - start:.1f} s, outputs {state}", *lines]


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Run notebooks, save their outputs, and show what changed in numbers.")
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks (default: all under chapters)")
    parser.add_argument("--check", action="store_true", help="compare only, save nothing")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at a time (default: 2)")
    options = parser.parse_args(arguments)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        os.environ[variable] = "1"
    os.environ["PYTHONHASHSEED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    paths = options.paths or discover()
    fine = True
    with ProcessPoolExecutor(options.jobs, max_tasks_per_child=1) as pool:
        for done, lines in pool.map(process, paths, [options.check] * len(paths)):
            print("\n".join(lines), flush=True)
            fine = fine and done
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
