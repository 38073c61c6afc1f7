"""The repository address: the same everywhere, and ``make repository`` moves all of it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tools import repository
from tools.notebooks import discover
from tools.sphinx_memlib import read_notebook

ROOT = Path(__file__).resolve().parents[1]
NEW = "/".join(["https://git.example.org", "some-group", "a-fork"])  # in pieces, or this file would change too


def mentions(root):
    """Every place that must name the address: (place, address found there)."""
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    yield "_config.yml", config["repository"]["url"]
    yield "CITATION.cff", citation["repository-code"]
    yield "pyproject.toml", project["urls"]["Repository"]
    for name in ("Issues", "Changelog"):
        yield f"pyproject.toml {name}", re.sub(r"/(issues|blob/main/CHANGELOG\.md)$", "", project["urls"][name])
    for path in [root / "README.md", *discover(root)]:
        text = path.read_text(encoding="utf-8") if path.suffix == ".md" else code(path)
        found = re.findall(r"git\+(https://[^\s@\"]+?)(?:\.git)?@", text)
        assert found, f"{path.name} does not say how to install memlib"
        for address in found:
            yield path.name, address


def code(path):
    """The code of a notebook."""
    return "\n".join("".join(cell["source"]) for cell in read_notebook(path)["cells"] if cell["cell_type"] == "code")


def test_one_address_everywhere():
    wanted = repository.current()
    assert [(place, address) for place, address in mentions(ROOT) if address != wanted] == []


@pytest.fixture
def copy(tmp_path):
    """A copy of all files that may hold the address."""
    for path in repository.files():
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return tmp_path


def test_a_new_address_reaches_every_place(copy):
    old = repository.current(copy)
    changed = repository.replace(NEW + ".git/", copy)
    assert copy / "_config.yml" in changed
    assert {address for _, address in mentions(copy)} == {NEW}
    left = [path for path in repository.files(copy) if old in path.read_text(encoding="utf-8")]
    assert left == []


def test_there_and_back_changes_nothing(copy):
    before = {path: path.read_bytes() for path in repository.files(copy)}
    old = repository.current(copy)
    repository.replace(NEW, copy)
    repository.replace(old, copy)
    assert {path: path.read_bytes() for path in repository.files(copy)} == before


def test_a_longer_name_is_another_repository(copy):
    old = repository.current(copy)
    (copy / "other.md").write_text(f"{old}-extra and {old}/issues", encoding="utf-8")
    repository.replace(NEW, copy)
    assert (copy / "other.md").read_text(encoding="utf-8") == f"{old}-extra and {NEW}/issues"


@pytest.mark.parametrize(
    "url", ["", "github.com/owner/name", "http://github.com/owner/name", "https://github.com/owner", "https://a/b/c d"]
)
def test_bad_addresses(url):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "repository.py"), url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "is not of the form https://host/owner/name" in done.stderr
    assert repr(url) in done.stderr


def test_no_address_prints_the_current_one():
    command = [sys.executable, str(ROOT / "tools" / "repository.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert repository.current() in done.stderr
