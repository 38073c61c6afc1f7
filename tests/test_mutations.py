"""The check of the notebooks can fail: a notebook passes as saved, and each of many small changes makes it fail.

Most changes are judged in this process, by running the cells and comparing with `tools.compare`; some copies also go
through `pytest --nbval`, as a user runs it. Artists of the book's own figures are disturbed where they are drawn.
"""

import contextlib
import copy
import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import nbformat
import pytest

from tools import compare, notebooks

ROOT = Path(__file__).parent.parent
DEFAULT = compare.Tolerance()
QUICK = ("attention_as_kernels",)  # notebooks that are run here once more, with every artist disturbed

START = """import numpy as np
from memlib import show
from memlib.claims import Below, claim
rng = np.random.default_rng(0)
x = np.linspace(1, 3, 30)
y = rng.normal(size=30)
def axes():
    fig, ax = show.figure(width=4)
    ax.set(xlabel="time", ylabel="value")
    return fig, ax"""

DRAWN = {
    "line": "ax.plot(x, y * 1.0)",
    "scatter": "ax.scatter(x, y * 1.0)",
    "bar": "ax.bar([1, 2, 3], np.array([1, 3, 2]) * 1.0)",
    "errorbar": "ax.errorbar([1, 2, 3], [1, 3, 2], yerr=np.array([0.3, 0.2, 0.1]) * 1.0)",
    "fill": "ax.fill_between(x, y - 1, (y + 1) * 1.0)",
    "image": "ax.imshow(np.outer(y, y) * 1.0)",
    "mesh": "ax.pcolormesh(np.outer(y[:5], y) * 1.0)",
    "contour": "ax.contour(np.outer(x, x) * 1.0, levels=[2, 4])",
    "stem": "ax.stem([1, 2], np.array([1, 2]) * 1.0)",
    "arrows": "ax.quiver([1, 2], [1, 2], np.array([1, 2]) * 1.0, [0, 1])",
    "segments": "ax.hlines(np.array([1, 2]) * 1.0, 0, 1)",
    "annotation": "ax.plot([1, 2], [1, 2]); ax.annotate('peak', (2 * 1.0, 2))",
}
EXPLORED = """def frame(p):
    fig, ax = axes()
    ax.plot(x, np.exp(-p * x) * 1.0)
    return fig
show.explorer(frame, label="rate", values=[1, 2, 3], alt="Decay")"""
CLAIMED = """claim("t:mean", "The mean is small.", {"mean": float(abs(y.mean())) * 1.0}, Below(1))"""
PRINTED = """print("rms", np.sqrt(np.mean(y**2)) * 1.0)"""


def cells():
    plates = {kind: f"fig, ax = axes()\n{draw}\nshow.plate(fig, alt='A {kind}')" for kind, draw in DRAWN.items()}
    return {"start": START, **plates, "explorer": EXPLORED, "claim": CLAIMED, "print": PRINTED}


def book():
    return notebooks.discover(ROOT)


# ---------------------------------------------------------------- in this process


def outputs_of(sources, monkeypatch):
    """Run cells one after the other; what each shows, as notebook outputs."""
    shown, space, outputs = [], {}, {}
    monkeypatch.setattr("IPython.display.display", shown.append)
    for name, source in sources.items():
        shown.clear()
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            exec(compile(source, name, "exec"), space)
        outputs[name] = [_bundle(item) for item in shown]
        if text.getvalue():
            outputs[name].append({"output_type": "stream", "name": "stdout", "text": text.getvalue()})
    return outputs


def _bundle(item):
    data = item._repr_mimebundle_()
    return {"output_type": "display_data", "metadata": {}, "data": data[0] if isinstance(data, tuple) else data}


@pytest.fixture(scope="module")
def saved():
    with pytest.MonkeyPatch.context() as patch:
        return outputs_of(cells(), patch)


def differing(saved, sources, monkeypatch):
    new = outputs_of(sources, monkeypatch)
    return {name for name in sources if compare.outputs(saved[name], new[name], DEFAULT)}


def test_unchanged_cells_agree(saved, monkeypatch):
    assert differing(saved, cells(), monkeypatch) == set()


@pytest.mark.parametrize("kind", [*DRAWN, "explorer", "claim", "print"])
def test_one_per_cent_is_found(saved, kind, monkeypatch):
    sources = {"start": START, kind: cells()[kind].replace("* 1.0", "* 1.01")}
    assert sources[kind] != cells()[kind]
    assert differing(saved, sources, monkeypatch) == {kind}


@pytest.mark.parametrize("kind", DRAWN)
def test_another_label_is_found(saved, kind, monkeypatch):
    sources = {"start": START.replace('xlabel="time"', 'xlabel="tame"'), kind: cells()[kind]}
    assert differing(saved, sources, monkeypatch) == {kind}


@pytest.mark.parametrize("kind", ["line", "scatter", "fill", "image", "mesh", "claim", "print"])
def test_another_seed_is_found(saved, kind, monkeypatch):
    sources = {"start": START.replace("default_rng(0)", "default_rng(1)"), kind: cells()[kind]}
    assert differing(saved, sources, monkeypatch) == {kind}


# ---------------------------------------------------------------- through pytest --nbval


def changed(source, old, new):
    def mutate(notebook):
        (cell,) = (cell for cell in notebook.cells if source in cell.source)
        assert old in cell.source
        cell.source = cell.source.replace(old, new)

    return mutate


def unrun(notebook):
    notebook.cells[-1].execution_count, notebook.cells[-1].outputs = None, []


def with_error(notebook):
    notebook.cells[-1].outputs.append(nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[]))


def with_forged_claim(notebook):
    (cell,) = (cell for cell in notebook.cells if "claim(" in cell.source)
    cell.outputs[0].data["application/vnd.memlib.claim+json"]["measured"]["mean"] *= 1.01


def without_picture(notebook):
    (cell,) = (cell for cell in notebook.cells if "A line" in cell.source)
    del cell.outputs[0].data["image/png"]


def with_unexplained_tolerance(notebook):
    notebook.metadata["memlib"] = {"tolerance": {"rtol": 1e-3}}


def with_skipped_cell(notebook):
    notebook.cells[-1].metadata["tags"] = ["nbval-skip"]


def with_small_change(notebook):
    changed("A line", "* 1.0", "* (1 + 1e-9)")(notebook)


def with_explained_tolerance(notebook):
    changed("rms", "* 1.0", "* 1.005")(notebook)
    notebook.metadata["memlib"] = {"tolerance": {"rtol": 1e-2, "reason": "to see that it counts"}}


def real(mutate):
    """The same change, in a copy of one of the book's own notebooks, up to its first figure."""

    def take(notebook):
        saved = nbformat.read(next(path for path in book() if path.stem in QUICK), as_version=4)
        figures = [i for i, cell in enumerate(saved.cells) if "show.plate(" in cell.source]
        notebook.metadata, notebook.cells = saved.metadata, saved.cells[: figures[0] + 1]
        notebook.metadata.pop("widgets", None)
        mutate(notebook)

    return take


def with_other_label(notebook):
    notebook.cells[-1].source = notebook.cells[-1].source.replace('xlabel="', 'xlabel="late ')


def with_other_seed(notebook):
    changed("reproducible(seed=0)", "seed=0", "seed=1")(notebook)


PASS = {"as_saved": lambda _: None, "small_change": with_small_change, "explained_tolerance": with_explained_tolerance}
FAIL = {
    "line_scaled": (changed("A line", "* 1.0", "* 1.01"), "relative difference"),
    "frame_scaled": (changed("Decay", "* 1.0", "* 1.01"), "relative difference"),
    "other_seed": (changed("import numpy", "default_rng(0)", "default_rng(1)"), "relative difference"),
    "other_label": (changed("import numpy", "time", "tame"), "tame"),
    "claim_scaled": (changed("claim(", "* 1.0", "* 1.01"), "relative difference"),
    "forged_claim": (with_forged_claim, "claim+json.measured.mean"),
    "unrun": (unrun, "saved without having been run"),
    "saved_error": (with_error, "saved with an error: ValueError: no"),
    "no_picture": (without_picture, "image/png"),
    "warning": (changed("rms", "print(", "import sys; sys.stderr.write('careful'); print("), "stream stderr"),
    "unexplained_tolerance": (with_unexplained_tolerance, "memlib.tolerance has no reason"),
    "skipped_cell": (with_skipped_cell, "the tag nbval-skip hides the cell"),
}
if any(path.stem in QUICK for path in book()):
    PASS["real"] = real(lambda _: None)
    FAIL["real_other_label"] = real(with_other_label), "late "
    FAIL["real_other_seed"] = real(with_other_seed), "relative difference"
    FAIL["real_unrun"] = real(unrun), "saved without having been run"
    FAIL["real_error"] = real(with_error), "saved with an error: ValueError: no"


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Write the notebook, save it as `make notebooks` does, and run all its mutants through `pytest --nbval`."""
    folder = tmp_path_factory.mktemp("mutants")
    original = folder / "as_saved.ipynb"
    short = {name: source for name, source in cells().items() if name not in DRAWN or name == "line"}
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in short.values()]), original)
    assert notebooks.main([str(original)]) == 0
    first = original.read_bytes()
    assert notebooks.main([str(original)]) == 0
    assert original.read_bytes() == first, "saving an unchanged notebook again changes the file"
    for name, mutate in {**PASS, **{name: mutate for name, (mutate, _) in FAIL.items()}}.items():
        notebook = copy.deepcopy(nbformat.read(original, as_version=4))
        mutate(notebook)
        nbformat.write(notebook, folder / f"{name}.ipynb")
    return nbval(folder)


def nbval(folder):
    """Outcomes of `pytest --nbval` for each notebook in a folder, by file name: a message, or "" for a success."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "conftest", "-p", "no:cacheprovider"]
    command += [
        "--continue-on-collection-errors",
        "--color=no",
        f"--rootdir={folder}",
        "-c",
        os.devnull,
        f"--junitxml={report}",
        str(folder),
    ]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert report.exists(), done.stdout + done.stderr
    found = {path.stem: [] for path in folder.glob("*.ipynb")}
    for case in ET.parse(report).iter("testcase"):
        name = case.get("classname") or case.get("name")
        (stem,) = (stem for stem in found if stem in (name or "").replace(".ipynb", "").replace("/", ".").split("."))
        problems = [
            child.text or child.get("message") for child in case if child.tag in ("failure", "error", "skipped")
        ]
        found[stem] += problems or [""]
    return found


@pytest.mark.parametrize("name", PASS)
def test_nbval_passes(verdicts, name):
    assert len(verdicts[name]) > 3 and set(verdicts[name]) == {""}


@pytest.mark.parametrize("name", FAIL)
def test_nbval_fails(verdicts, name):
    assert any(FAIL[name][1] in message for message in verdicts[name]), verdicts[name]


# ---------------------------------------------------------------- the book's own notebooks

MUTANTS = "application/vnd.memlib.mutants+json"


@pytest.mark.parametrize("path", book(), ids=lambda path: path.stem)
def test_saved_outputs_of_the_book_are_sensitive(path):
    """Each number shown by each plate of the book: saved 1 % off, the comparison finds it."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            text = "".join(output.get("data", {}).get("text/plain", ""))
            if "image/png" not in output.get("data", {}):
                continue
            assert text.startswith("Figure: "), f"{path.name}: a picture that is no plate"
            for match in compare.NUMBER.finditer(text):
                value = float(match[0].replace(",", "").replace("−", "-"))
                if abs(value) > 1e-6:
                    mutant = f"{text[: match.start()]}{value * 1.01!r}{text[match.end() :]}"
                    assert compare.texts(text, mutant, DEFAULT), match[0]


def disturbed(path):
    """Run a copy of a notebook in which every plate also tells what it would say with an artist disturbed."""
    notebook = nbformat.read(path, as_version=4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    first.source += f"\nimport sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import disturb"
    tolerance = compare.tolerance_of(notebook.metadata)
    for cell in notebooks.run(notebook, path.parent).cells:
        for output in cell.get("outputs", ()):
            if MUTANTS in output.get("data", {}):
                text = output.data["text/plain"].partition("\n")[2]
                for kind, mutant in output.data[MUTANTS]:
                    yield kind, text, compare.texts(text, mutant, tolerance)


@pytest.mark.parametrize("path", [path for path in book() if path.stem in QUICK], ids=lambda path: path.stem)
def test_every_artist_of_a_real_notebook_counts(path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = list(disturbed(path))
    assert found
    for kind, text, differences in found:
        assert differences, f"{kind} scaled by 1 % goes unnoticed in\n{text}"


def test_every_artist_of_the_notebook_above_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = tmp_path / "kinds.ipynb"
    sources = [cells()["start"], *(cells()[kind] for kind in DRAWN)]
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources]), path)
    found = list(disturbed(path))
    kinds = {kind for kind, _, _ in found}
    assert {"Line2D", "PathCollection", "BarContainer", "ErrorbarContainer", "AxesImage", "QuadMesh"} <= kinds
    for kind, text, differences in found:
        assert differences, f"{kind} scaled by 1 % goes unnoticed in\n{text}"
