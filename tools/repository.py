"""Set the address of the repository everywhere: ``python tools/repository.py URL``, or ``make repository URL=…``.

The address is a literal in ``_config.yml`` (the Colab button), in the first code cell of every notebook, and in the
project's metadata, so that a copy of the book under another address links to itself. Needs nothing but Python.
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".md", ".ipynb", ".yml", ".yaml", ".toml", ".cff", ".py", ".bib"}
SKIPPED = {".git", ".hypothesis", ".pytest_cache", ".ruff_cache", ".venv", "_build", "build", "dist", "node_modules"}


def checked(url):
    """The address without trailing slash or ``.git``; ``ValueError`` unless it is https://host/owner/name."""
    address = url.strip().rstrip("/").removesuffix(".git")
    if not re.fullmatch(r"https://[\w.-]+(:\d+)?(/[\w.-]+){2,}", address):
        raise ValueError(f"repository address {url!r} is not of the form https://host/owner/name")
    return address


def current(root=ROOT):
    """The address in ``_config.yml``."""
    text = (Path(root) / "_config.yml").read_text(encoding="utf-8")
    found = re.findall(r"^repository:\n(?:  .*\n)*?  url: (\S+)$", text, re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"_config.yml names {len(found)} repository addresses, it should name one")
    return found[0]


def files(root=ROOT):
    """All text files of the project that may hold the address."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED)
        yield from (Path(folder, name) for name in sorted(names) if Path(name).suffix in SUFFIXES)


def replace(url, root=ROOT):
    """Replace the current address by ``url`` in every file that holds it; returns those files."""
    new, old = checked(url), current(root)
    pattern = re.compile(re.escape(old) + r"(?![\w-])")
    changed = []
    for path in files(root):
        text = path.read_bytes().decode("utf-8")
        replaced = pattern.sub(lambda _: new, text)
        if replaced != text:
            path.write_bytes(replaced.encode("utf-8"))
            changed.append(path)
    return changed


def main(arguments):
    """Command line."""
    if len(arguments) != 1:
        print(f"usage: make repository URL=https://host/owner/name (now {current()})", file=sys.stderr)
        return 2
    try:
        changed = replace(arguments[0])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for path in changed:
        print(path.relative_to(ROOT))
    print(f"{len(changed)} files changed; the address is {current()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
