"""Checks of the book itself: its notebooks as saved, its table of contents, its claims, its proofs, its package."""

import ast
import copy
import importlib
import inspect
import json
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import memlib
from memlib import claims
from tools import repository
from tools.compare import tolerance_of
from tools.notebooks import discover
from tools.sphinx_memlib import claims_of, outputs, read_notebook, to_rst, toc_pages

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = discover()
NAMES = [path.relative_to(ROOT).as_posix() for path in NOTEBOOKS]
PAGES = sorted((ROOT / "chapters").rglob("*.md"))
MOST_BYTES = 1_500_000
BOOTSTRAP = """\
try:
    import memlib
except ImportError:
    %pip install -q "memlib @ git+{address}@v{version}"
    import memlib"""


def text(value):
    return "".join(value)


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def bootstrap():
    return BOOTSTRAP.format(address=repository.current(), version=project()["version"])


# ---------------------------------------------------------------- table of contents and files


def test_every_page_is_in_the_toc_and_every_entry_is_a_page():
    files = [path.relative_to(ROOT).with_suffix("").as_posix() for path in [*PAGES, *NOTEBOOKS]]
    entries = toc_pages(ROOT)
    assert len(entries) == len(set(entries)), "a page stands twice in the table of contents"
    assert sorted(files) == sorted(entries)


def test_the_book_has_notebooks():
    assert len(NOTEBOOKS) >= 4


def test_no_file_name_starts_with_a_digit():
    folders = [ROOT / name for name in ("chapters", "memlib", "tests", "tools", "benchmarks", "results")]
    names = [path for folder in folders if folder.is_dir() for path in folder.rglob("*")]
    assert [path for path in names if path.name[0].isdigit() and "__pycache__" not in path.parts] == []


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_small(name):
    assert (ROOT / name).stat().st_size < MOST_BYTES


# ---------------------------------------------------------------- notebooks as saved


def problems(notebook):
    """Everything about a saved notebook that the book does not allow."""
    cells = notebook["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    first = text(cells[0]["source"])
    if cells[0]["cell_type"] != "markdown" or not re.match(r"# \S", first):
        yield "the first cell is no title"
    for words in ("Before you start", "Reading time", "Run time"):
        if not re.search(rf"\*\*{words}[.:]?\*\*", first):
            yield f"the first cell does not say **{words}**"
    if "?" not in first:
        yield "the first cell asks no question"
    if not code or text(code[0]["source"]) != bootstrap():
        yield "the first code cell is not the bootstrap cell"
    if notebook["metadata"].get("kernelspec", {}).get("name") != "python3":
        yield "the kernel is not python3"
    for i, cell in enumerate(cells):
        if cell["cell_type"] == "markdown" and (found := myst(text(cell["source"]))):
            yield f"cell {i} holds MyST: {found}"
    for i, cell in enumerate(code):
        yield from code_problems(i, cell, code[0])
    counts = [cell["execution_count"] for cell in code if text(cell["source"]).strip()]
    if counts != list(range(1, len(counts) + 1)):
        yield f"cells were not run once each in order: {counts}"


def code_problems(i, cell, first):
    """What is wrong with one code cell."""
    tags = set(cell["metadata"].get("tags", ()))
    if "nbval-ignore-output" in tags and cell is not first and "timing" not in tags:
        yield f"code cell {i} is not compared, but is no timing"
    if "timing" in tags and "nbval-ignore-output" not in tags:
        yield f"code cell {i} is a timing that is compared"
    hidden = tags & {"nbval-skip", "nbval-raises-exception", "raises-exception", "nbval-ignore-output-type"}
    if hidden or re.search(r"^\s*#\s*(NBVAL_|PYTEST_VALIDATE_)", text(cell["source"]), re.MULTILINE):
        yield f"code cell {i} is hidden from the check"
    for output in cell["outputs"]:
        if output["output_type"] == "error":
            yield f"code cell {i} was saved with an error"
        data = output.get("data", {})
        words = text(data.get("text/plain", ""))
        if any(kind.startswith("image/") for kind in data) and not words.startswith("Figure:"):
            yield f"code cell {i} shows a picture that is no plate"


def myst(source):
    """The first MyST role or directive in Markdown outside code, or None."""
    source = re.sub(r"^```(?!\{).*?^```", "", source, flags=re.DOTALL | re.MULTILINE)
    directive, role = r"^\s*(`{3,}|:{3,}|~{3,})\s*\{[\w:.-]+\}", r"(?<!`)\{[A-Za-z][\w:.-]*\}`[^`]+`"
    target = r"^\([\w:-]+\)=$"
    found = re.search(f"{directive}|{role}|{target}", source, re.MULTILINE)
    return found[0] if found else None


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_saved_as_the_book_wants(name):
    assert list(problems(read_notebook(ROOT / name))) == []


def test_uncompared_cells_are_bootstraps_and_timings():
    uncompared = timings = 0
    for path in NOTEBOOKS:
        for cell in read_notebook(path)["cells"]:
            tags = cell["metadata"].get("tags", ())
            uncompared += "nbval-ignore-output" in tags
            timings += "timing" in tags
    assert uncompared == len(NOTEBOOKS) + timings
    assert timings <= len(NOTEBOOKS), "more than one timing for each notebook"


@pytest.mark.parametrize("name", NAMES)
def test_tolerance_has_a_reason(name):
    tolerance = tolerance_of(read_notebook(ROOT / name)["metadata"])
    assert tolerance.rtol <= 1e-2


def good_notebook():
    """A small notebook without fault."""
    head = "# Title\n\n**Before you start.** Nothing. **Reading time:** 1 min. **Run time:** 1 s.\n\nWhat is $x$?"
    plate = {"output_type": "display_data", "data": {"image/png": "", "text/plain": "Figure: a line"}, "metadata": {}}

    def code(source, number, tags=(), found=()):
        meta = {"tags": list(tags)}
        return {
            "cell_type": "code", "source": source, "execution_count": number, "metadata": meta, "outputs": list(found)
        }  # fmt: skip

    return {
        "metadata": {"kernelspec": {"name": "python3"}},
        "cells": [
            {"cell_type": "markdown", "source": head, "metadata": {}},
            code(bootstrap(), 1, ["nbval-ignore-output"]),
            code("draw()", 2, found=[plate]),
        ],
    }


def test_a_good_notebook_has_no_problem():
    assert list(problems(good_notebook())) == []


def _retag(i, *tags):
    return lambda cells: cells[i]["metadata"].update(tags=list(tags))


def _source(i, change):
    return lambda cells: cells[i].update(source=change(cells[i]["source"]))


def _append(i, addition):
    return _source(i, lambda s: s + addition)


DEFECTS = [
    (_source(0, lambda s: s[2:]), "no title"),
    (_source(0, lambda s: s.replace("**Run time:**", "")), "Run time"),
    (_source(0, lambda s: s.replace("?", ".")), "no question"),
    (_append(0, "\n\n```{note}\nx\n```"), "MyST"),
    (_append(0, "\n\n:::{note}\nx\n:::"), "MyST"),
    (_append(0, " See {ref}`x`."), "MyST"),
    (_append(0, "\n\n(label)=\n"), "MyST"),
    (_append(1, "  # changed"), "not the bootstrap"),
    (_source(1, lambda s: s.replace("@v", "@w")), "not the bootstrap"),
    (lambda cells: cells[2].update(execution_count=None), "not run once each"),
    (lambda cells: cells[2].update(execution_count=7), "not run once each"),
    (_retag(2, "nbval-ignore-output"), "no timing"),
    (_retag(2, "timing"), "a timing that is compared"),
    (_retag(2, "nbval-skip"), "hidden from the check"),
    (_append(2, "\n# NBVAL_IGNORE_OUTPUT"), "hidden from the check"),
    (lambda cells: cells[2]["outputs"].append({"output_type": "error"}), "saved with an error"),
    (lambda cells: cells[2]["outputs"][0]["data"].pop("text/plain"), "no plate"),
    (lambda cells: cells[2]["outputs"][0]["data"].update({"text/plain": "<Figure size>"}), "no plate"),
]


@pytest.mark.parametrize(("defect", "complaint"), DEFECTS)
def test_each_defect_is_found(defect, complaint):
    notebook = good_notebook()
    defect(notebook["cells"])
    found = list(problems(notebook))
    assert len(found) == 1
    assert complaint in found[0]


# ---------------------------------------------------------------- claims

CLAIMS = [(name, data) for name in NAMES for data in claims_of(read_notebook(ROOT / name))]
CLAIM_IDS = [data["label"] for _, data in CLAIMS]


def test_the_book_makes_claims_with_unique_labels():
    assert CLAIMS
    assert sorted(set(CLAIM_IDS)) == sorted(CLAIM_IDS)


@pytest.mark.parametrize("data", [data for _, data in CLAIMS], ids=CLAIM_IDS)
def test_verdict_follows_from_the_saved_numbers(data):
    bare = {key: value for key, value in data.items() if key not in ("verdict", "holds")}
    recomputed = claims.Claim.from_json(bare)
    assert (recomputed.verdict, recomputed.holds) == (data["verdict"], data["holds"])
    assert recomputed.to_json() == data


@pytest.mark.parametrize("data", [data for _, data in CLAIMS], ids=CLAIM_IDS)
def test_claim_turns_false_when_any_of_its_numbers_is_disturbed(data):
    claim = claims.Claim.from_json(data)
    if not claim.holds:
        claim_is_shown_as_failed = data["verdict"] == claims.KINDS[claim.kind][1]
        assert claim_is_shown_as_failed
        return
    turned = {name for name, disturbed in claims.perturbations(claim) if not disturbed.holds}
    assert turned == set(data["measured"])


def test_a_forged_verdict_is_found():
    made = claims.Claim("x", "x is small", {"x": [1.0]}, claims.Below(0.5)).to_json()
    assert made["holds"] is False
    forged = {**made, "holds": True, "verdict": claims.KINDS["measured"][0]}
    with pytest.raises(ValueError, match="its numbers give"):
        claims.Claim.from_json(forged)


def test_every_displayed_claim_is_machine_readable():
    """A claim box without its data would be missing from the ledger."""
    for path in NOTEBOOKS:
        notebook = read_notebook(path)
        boxes = sum('class="memlib-claim' in text(o["data"].get("text/html", "")) for _, o in outputs(notebook))
        assert boxes == len(list(claims_of(notebook))), path.name


# ---------------------------------------------------------------- theory pages


BOXES = re.compile(r"^\s*(?:`{3,}|:{3,})\{prf:(theorem|lemma|proposition|corollary|proof)\}", re.MULTILINE)


def unproved(source):
    """How many theorems, lemmas, propositions and corollaries are not followed by their proof."""
    boxes = BOXES.findall(source)
    return sum(box != "proof" and after != "proof" for box, after in zip(boxes, [*boxes, ""][1:], strict=True))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_theorem_is_followed_by_its_proof(path):
    assert unproved(path.read_text(encoding="utf-8")) == 0


def test_a_missing_proof_is_found():
    theorem, proof = "```{prf:theorem} T\nx\n```\n", "```{prf:proof}\nx\n```\n"
    assert unproved(theorem + proof + theorem + proof) == 0
    assert unproved(theorem + theorem + proof) == 1
    assert unproved(theorem + proof + "::::{prf:lemma} L\n::::\n") == 1


def test_the_foundations_have_theorems():
    source = (ROOT / "chapters" / "foundations" / "theory.md").read_text(encoding="utf-8")
    assert BOXES.findall(source).count("theorem") >= 2


def labels():
    """All labels of equations and boxes in the pages."""
    found = []
    for path in PAGES:
        source = path.read_text(encoding="utf-8")
        found += re.findall(r"^\s*:label: (\S+)$", source, re.MULTILINE)
        found += re.findall(r"^\s*\$\$ ?\(([\w:.-]+)\)$", source, re.MULTILINE)
        found += re.findall(r"\\label\{([^}]+)\}", source)
    return found


def test_labels_are_unique():
    found = labels()
    assert found
    assert sorted(set(found)) == sorted(found)


def test_cited_keys_exist():
    keys = set(re.findall(r"^@\w+\{([^,\s]+),", (ROOT / "references.bib").read_text(encoding="utf-8"), re.MULTILINE))
    cited = set()
    for path in PAGES:
        for group in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", path.read_text(encoding="utf-8")):
            cited |= {key.strip() for key in group.split(",")}
    assert cited
    assert cited - keys == set()


def test_equations_named_in_the_package_exist():
    """A docstring that says "equation (f:head-kernel)" names a label of a theory page."""
    known = set(labels())
    named = set()
    for path in (ROOT / "memlib").rglob("*.py"):
        named |= {(path.name, label) for label in re.findall(r"\(([a-z]:[a-z][a-z0-9-]*)\)", path.read_text("utf-8"))}
    assert named
    assert {pair for pair in named if pair[1] not in known} == set()


# ---------------------------------------------------------------- the package

# What each module may import from the package. Imports point one way.
MAY_IMPORT = {
    "checks": set(),
    "__init__": {"checks"},
    "encodings": {"checks"},
    "kernels": {"checks", "encodings"},
    "model": {"checks", "encodings", "kernels"},
    "targets": {"checks", "kernels"},
    "population": {"checks", "encodings", "kernels", "model", "targets"},
    "train": {"checks", "population"},
    "data": {"checks"},
    "tails": {"checks"},
    "barron": {"checks", "model"},
    "sums": {"checks"},
    "bounds": {"checks"},
    "construct": {"barron", "checks", "encodings", "kernels", "model", "sums", "targets"},
    "sweep": {"checks"},
    "results": set(),
    "experiments": {
        "bounds",
        "checks",
        "construct",
        "data",
        "encodings",
        "kernels",
        "model",
        "results",
        "sums",
        "sweep",
        "targets",
        "train",
    },
    "describe": set(),
    "claims": {"describe"},
    "show": {"describe"},
}


def imported(path):
    """The modules of memlib that a file imports, with the names taken from them."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("memlib."):
                    found.setdefault(alias.name.split(".")[1], set()).add("*")
        elif isinstance(node, ast.ImportFrom) and node.module == "memlib":
            for alias in node.names:
                found.setdefault(alias.name, set()).add("*")
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("memlib.")):
            module = (node.module or "").removeprefix("memlib.").split(".")[0]
            found.setdefault(module, set()).update(alias.name for alias in node.names)
    found.pop("__version__", None)
    found.pop("reproducible", None)
    return found


def modules():
    """The modules of memlib; a package within it counts as one."""
    return [importlib.import_module(info.name) for info in pkgutil.iter_modules(memlib.__path__, "memlib.")]


def test_imports_point_one_way():
    for path in sorted((ROOT / "memlib").rglob("*.py")):
        name = path.stem if path.parent.name == "memlib" else path.parent.name
        assert name in MAY_IMPORT, f"say in MAY_IMPORT what memlib.{name} may import"
        assert set(imported(path)) - {name} <= MAY_IMPORT[name], path.name


def test_allowed_imports_have_no_cycle():
    left = copy.deepcopy(MAY_IMPORT)
    while left:
        free = {name for name, needs in left.items() if not needs & set(left)}
        assert free, f"cycle among {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in free}


def test_barron_takes_only_the_feed_forward_network():
    assert imported(ROOT / "memlib" / "barron.py")["model"] == {"FeedForward"}


def test_a_wrong_import_is_seen(tmp_path):
    forms = {
        "import memlib.model": {"model": {"*"}},
        "from memlib import model, train": {"model": {"*"}, "train": {"*"}},
        "from memlib.model import Transformer": {"model": {"Transformer"}},
        "from .model import Transformer": {"model": {"Transformer"}},
        "def f():\n    from memlib.experiments.grid import g": {"experiments": {"g"}},
        "import torch\nfrom memlib import reproducible": {},
    }
    for source, wanted in forms.items():
        path = tmp_path / "module.py"
        path.write_text(source, encoding="utf-8")
        assert imported(path) == wanted


def test_every_public_name_has_a_docstring():
    missing = [module.__name__ for module in [memlib, *modules()] if not module.__doc__]
    for module in [memlib, *modules()]:
        for name, value in vars(module).items():
            public = not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))
            if public and value.__module__ == module.__name__:
                own = value.__doc__ if inspect.isfunction(value) else value.__dict__.get("__doc__")
                if not own or own.startswith(f"{name}("):  # a dataclass without docstring gets its signature
                    missing.append(f"{module.__name__}.{name}")
    assert missing == []


def test_the_api_page_shows_every_module():
    page = (ROOT / "chapters" / "back" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\.\. automodule:: (memlib\.\w+)$", page, re.MULTILINE)
    assert sorted(shown) == sorted(module.__name__ for module in modules())


@pytest.mark.parametrize(
    ("docstring", "rst"),
    [
        ("Let $x_t$ be `x`.", "Let :math:`x_t` be ``x``."),
        ("A $K$th $a\n b$ sum", "A :math:`K`\\ th :math:`a b` sum"),
        ("``a $x$`` and :math:`y` stay", "``a $x$`` and :math:`y` stay"),
        ("costs 3$ or 4$", "costs 3$ or 4$"),
        ("|a - b| and **params and *x* and **y**", "\\|a - b\\| and \\*\\*params and *x* and **y**"),
        ("Use it:\n\n    f(*x, `y`)\n\nThen $z$.", "Use it:\n\n::\n\n    f(*x, `y`)\n\n\nThen :math:`z`."),
        ("Args:\n    x: `y`\n\n    z: w", "Args:\n    x: ``y``\n\n    z: w"),
    ],
)
def test_docstrings_become_rst(docstring, rst):
    assert "\n".join(to_rst(docstring.split("\n"))) == rst


# ---------------------------------------------------------------- versions and dependencies


def test_one_version_everywhere():
    version = project()["version"]
    assert memlib.__version__ == version
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]) == version
    assert f"## {version}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"@v{version}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_one_title_everywhere():
    title = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["title"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["title"] == title
    assert (ROOT / "README.md").read_text(encoding="utf-8").startswith(f"# {title}\n")


def test_requirements_pin_everything_that_the_project_names():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    pins = [re.fullmatch(r"([a-z0-9-]+)==[0-9][\w.]*", line) for line in lines]
    assert [line for line, pin in zip(lines, pins, strict=True) if not pin] == []
    names = [pin[1] for pin in pins]
    assert len(names) == len(set(names))
    wanted = [*project()["dependencies"], *(d for extra in project()["optional-dependencies"].values() for d in extra)]
    assert {re.match(r"[\w-]+", line)[0].lower() for line in wanted} - set(names) == set()


def test_the_package_asks_for_lower_bounds_only():
    """A hosted notebook keeps its own torch and numpy."""
    for line in project()["dependencies"]:
        assert re.fullmatch(r"[\w-]+>=[\d.]+", line), line


def test_saved_notebooks_are_valid_json_with_stable_ids():
    for path in NOTEBOOKS:
        raw = path.read_text(encoding="utf-8")
        assert json.loads(raw)["nbformat"] == 4
        ids = [cell["id"] for cell in json.loads(raw)["cells"]]
        assert len(ids) == len(set(ids)), path.name
