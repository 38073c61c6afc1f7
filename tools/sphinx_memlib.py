"""Local Sphinx extension of the book.

* Every image of a notebook gets the text/plain of its output as alternative text.
* ``claim-ledger``: the table of all claims, read from the saved outputs of the notebooks in the table of contents.
* ``valid-combinations``: the table of configurations that ``memlib.model`` accepts.
* ``notebook-figure``: one figure of an executed notebook, shown on another page.
* Docstrings may write ``$formula$`` and single backticks; both reach the API page as formula and code.
* With ``MEMLIB_WIDGETS`` in the environment, pages load the widget scripts from that folder instead of the network.

``python tools/sphinx_memlib.py FOLDER`` fetches the widget scripts into FOLDER with npm (used by the browser test).
"""

import base64
import hashlib
import html
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import ClassVar

import yaml
from docutils import nodes
from docutils.parsers.rst import directives
from myst_nb.sphinx_ import NbMetadataCollector
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from memlib.claims import Claim, turning_point

CLAIM_MIME = "application/vnd.memlib.claim+json"
IMAGE_MIMES = ("image/png", "image/svg+xml", "image/jpeg")
CDN = "https://cdn.jsdelivr.net/npm/"
# package, version, file in the package, subresource integrity
WIDGET_SCRIPTS = (
    (
        "requirejs",
        "2.3.7",
        "require.js",
        "sha384-tQ7aePXZ3UxesqTnNv13ngAZiSEW6EChgGuJpko580YfFoZYCClz18DCnV/xN6HR",
    ),
    (
        "@jupyter-widgets/html-manager",
        "1.0.15",
        "dist/embed-amd.js",
        "sha384-/x/n24gdFNkRW3aFeWPOJ5tgVI0ZmBOBu6UKswtJLAm6SIAzWBZUdrLEr5A9yXvL",
    ),
)
logger = logging.getLogger(__name__)


# ---------------------------------------------------------------- widget scripts


def _integrity(content):
    return "sha384-" + base64.b64encode(hashlib.sha384(content).digest()).decode()


def widgets_present(folder):
    """Whether ``folder`` holds the widget scripts, byte for byte those the online book loads."""
    files = [(Path(folder, "_static", "widgets", package, member), sri) for package, _, member, sri in WIDGET_SCRIPTS]
    return all(path.is_file() and _integrity(path.read_bytes()) == sri for path, sri in files)


def fetch_widgets(folder):
    """Fetch the widget scripts and their icon fonts into ``folder`` with ``npm pack``, unless they are there."""
    if widgets_present(folder):
        return
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is needed to fetch the widget scripts for the offline browser test")
    for package, version, member, sri in WIDGET_SCRIPTS:
        with tempfile.TemporaryDirectory() as scratch:
            subprocess.run([npm, "pack", "--silent", f"{package}@{version}"], cwd=scratch, check=True)
            (archive,) = Path(scratch).glob("*.tgz")
            with tarfile.open(archive) as tar:
                wanted = [f"package/{member}", *(n for n in tar.getnames() if n.endswith((".woff", ".woff2", ".ttf")))]
                files = {name.removeprefix("package/"): tar.extractfile(name).read() for name in wanted}
        if _integrity(files[member]) != sri:
            raise ValueError(f"{package} {version}: {member} has {_integrity(files[member])}, expected {sri}")
        for name, content in files.items():
            target = Path(folder, "_static", "widgets", package, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def set_widget_scripts(app, config):
    """Point widget pages at the content delivery network, or at the folder named by MEMLIB_WIDGETS."""
    folder = os.environ.get("MEMLIB_WIDGETS")
    if folder and widgets_present(folder):
        config.html_extra_path = [*config.html_extra_path, str(Path(folder).resolve())]
        scripts = {f"widgets/{package}/{member}": {} for package, _, member, _ in WIDGET_SCRIPTS}
        source, version = "/_static/widgets/", ""
    else:
        if folder:
            logger.info("MEMLIB_WIDGETS=%s holds no widget scripts: pages load them from the network", folder)
        scripts = {
            f"{CDN}{package}@{version}/{member}": {"integrity": sri, "crossorigin": "anonymous"}
            for package, version, member, sri in WIDGET_SCRIPTS
        }
        source, version = CDN, "@" + WIDGET_SCRIPTS[-1][1]
    scripts[list(scripts)[-1]]["data-jupyter-widgets-cdn"] = source
    config.nb_ipywidgets_js = scripts
    manager = "@jupyter-widgets/html-manager"
    paths = {f"{manager}/dist": f"{source}{manager}{version}/dist"}
    app.memlib_require = "window.require = " + json.dumps({"paths": paths})


def set_require_paths(app, pagename, templatename, context, doctree):
    """Tell require.js where the widget manager lies; else it looks for the icon fonts beside the page."""
    if any(key.startswith("ipywidgets") for key in NbMetadataCollector.get_js_files(app.env, pagename)):
        app.add_js_file(None, body=app.memlib_require, priority=200)


# ---------------------------------------------------------------- notebooks


def _text(value):
    return "".join(value) if isinstance(value, list) else value


def description(data):
    """The long description of an output bundle: its text/plain, white space collapsed."""
    return " ".join(_text(data.get("text/plain", "")).split())


def toc_pages(root):
    """All pages of the table of contents in the folder ``root``, without suffix, in order."""

    def pages(node):
        if isinstance(node, list):
            for child in node:
                yield from pages(child)
            return
        for key in ("root", "file"):
            if key in node:
                yield node[key].removesuffix(".md").removesuffix(".ipynb")
        for key in ("parts", "chapters", "sections"):
            yield from pages(node.get(key, []))

    return list(pages(yaml.safe_load(Path(root, "_toc.yml").read_text(encoding="utf-8"))))


def read_notebook(path):
    """A notebook file as a dictionary."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def outputs(notebook):
    """All rich outputs of a notebook: pairs (cell, output)."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            if "data" in output:
                yield cell, output


def claims_of(notebook):
    """The claims saved in a notebook, in order."""
    for _, output in outputs(notebook):
        if CLAIM_MIME in output["data"]:
            claim = output["data"][CLAIM_MIME]
            yield json.loads(_text(claim)) if isinstance(claim, str | list) else claim


def _notebooks_in_toc(env):
    found = [(name, Path(env.doc2path(name))) for name in toc_pages(env.srcdir) if name in env.found_docs]
    return [(name, path) for name, path in found if path.suffix == ".ipynb"]


class ImageDescription(SphinxPostTransform):
    """Copy the text/plain of an output bundle to its images, before myst-nb keeps only one of the two."""

    default_priority = 3

    def run(self, **kwargs):
        for bundle in self.document.findall(nodes.container):
            if bundle.get("nb_element") != "mime_bundle":
                continue
            texts = [part.astext() for part in bundle.children if part.get("mime_type") == "text/plain"]
            for part in bundle.children:
                if part.get("mime_type") in IMAGE_MIMES and texts:
                    for image in part.findall(nodes.image):
                        image["alt"] = " ".join(texts[0].split())


class ClaimAnchor(SphinxPostTransform):
    """Give each claim's box its HTML id, and let the ledger's links end there."""

    default_priority = 5

    def run(self, **kwargs):
        for raw in list(self.document.findall(nodes.raw)):
            box = re.search(r'<div (?=class="memlib-claim .*?<code>(.*?)</code>)', raw.astext(), re.DOTALL)
            if box:
                text = raw.astext()
                named = f'{text[: box.end()]}id="{anchor(html.unescape(box[1]))}" {text[box.end() :]}'
                raw.replace_self(nodes.raw("", named, **{k: v for k, v in raw.attributes.items() if v}))
        for reference in self.document.findall(nodes.reference):
            if "claim_page" in reference:
                page = self.app.builder.get_relative_uri(self.env.docname, reference["claim_page"])
                reference["refuri"] = f"{page}#{reference['claim_anchor']}"


# ---------------------------------------------------------------- directives


class _TableDirective(SphinxDirective):
    def inline(self, text):
        """Inline nodes from one line of Markdown."""
        found, messages = self.state.inline_text(" ".join(str(text).split()), self.lineno)
        return [*found, *messages]

    def table(self, widths, header, rows, classes):
        """A table node; ``rows`` hold lists of block nodes."""
        table = nodes.table(classes=classes)
        group = nodes.tgroup(cols=len(widths))
        table += group
        group += [nodes.colspec(colwidth=width) for width in widths]
        head, body = nodes.thead(), nodes.tbody()
        group += [head, body]
        for part, lines in ((head, [[[nodes.paragraph("", name)] for name in header]]), (body, rows)):
            for line in lines:
                row = nodes.row()
                row += [nodes.entry("", *cell) for cell in line]
                part += row
        return table


def anchor(label):
    """The HTML id of a claim's box."""
    return "claim-" + re.sub(r"[^0-9A-Za-z]+", "-", label).strip("-").lower()


def _number(value):
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        shown = [_number(v) for v in value[:12]]
        return "[" + ", ".join(shown + ([f"… {len(value)} in all"] if len(value) > 12 else [])) + "]"
    if isinstance(value, dict):
        return ", ".join(f"{k} = {_number(v)}" for k, v in value.items())
    return str(value)


def _rule_text(rule):
    """A rule as one line: its name and its parameters."""
    if not isinstance(rule, dict):
        return str(rule), ""
    rest = {k: v for k, v in rule.items() if k not in ("name", "rule", "parameters", "params")}
    rest |= rule.get("parameters") or rule.get("params") or {}
    return str(rule.get("name") or rule.get("rule")), _number(rest)


class ClaimLedger(_TableDirective):
    """All claims of the book, from the saved outputs of its notebooks."""

    def run(self):
        env = self.env
        env.note_dependency(str(Path(env.srcdir, "_toc.yml")))
        env.note_dependency(__file__)
        rows, verdicts, tolerances = [], Counter(), []
        for docname, path in _notebooks_in_toc(env):
            env.note_dependency(str(path))
            notebook = read_notebook(path)
            override = notebook["metadata"].get("memlib", {}).get("tolerance")
            if override:
                tolerances.append((docname, override))
            for claim in claims_of(notebook):
                verdicts[claim["verdict"]] += 1
                rows.append(self.row(docname, claim))
        if not rows:
            return [nodes.paragraph("", "No notebook of this book saves a claim.")]
        counts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(verdicts.items()))
        total = nodes.paragraph("", f"{len(rows)} claims: {counts}.", classes=["memlib-ledger-counts"])
        table = self.table((18, 52, 10, 20), ("Claim", "Statement", "Kind", "Verdict"), rows, ["memlib-ledger"])
        return [total, table, *self.tolerances(tolerances)]

    def link(self, docname, label):
        """A link to a claim."""
        return nodes.reference("", label, internal=True, refuri="", claim_page=docname, claim_anchor=anchor(label))

    def page(self, docname):
        """A link to a page, by its title."""
        target = {"refdomain": "std", "reftype": "doc", "reftarget": f"/{docname}", "refexplicit": False}
        return addnodes.pending_xref("", nodes.inline("", docname), refwarn=True, **target)

    def row(self, docname, claim):
        """The cells of one claim."""
        name, parameters = _rule_text(claim["rule"])
        details = {"Rule": f"{name}: {parameters}" if parameters else name, "Measured": _number(claim["measured"])}
        for key in ("seeds", "source"):
            if claim.get(key):
                details[key.capitalize()] = _number(claim[key])
        turning = turning_point(Claim.from_json(claim))
        if turning:
            details["The verdict turns with"] = f"{turning[0]} by {turning[1]:g}"
        listed = "".join(f"<dt>{k}</dt><dd>{html.escape(v)}</dd>" for k, v in details.items())
        fold = f"<details><summary>Rule and numbers</summary><dl>{listed}</dl></details>"
        holds = "holds" if claim["holds"] else "fails"
        return [
            [nodes.paragraph("", "", self.link(docname, claim["label"]))],
            [nodes.paragraph("", "", *self.inline(claim["statement"])), nodes.raw("", fold, format="html")],
            [nodes.paragraph("", claim["kind"])],
            [nodes.paragraph("", "", nodes.inline("", claim["verdict"], classes=["memlib-verdict", holds]))],
        ]

    def tolerances(self, overrides):
        """What the notebooks ask beyond the default tolerance."""
        if not overrides:
            text = "Every notebook is compared at the default tolerance; there is no override."
            return [nodes.paragraph("", text)]
        lead = nodes.paragraph("", "Notebooks compared at a tolerance of their own:")
        items = nodes.bullet_list()
        for docname, override in overrides:
            numbers = ", ".join(f"{k} {override[k]:g}" for k in ("rtol", "atol") if k in override)
            paragraph = nodes.paragraph("", "", self.page(docname))
            paragraph += nodes.Text(f": {numbers}. {override['reason']}")
            items += nodes.list_item("", paragraph)
        return [lead, items]


class ValidCombinations(_TableDirective):
    """The configurations that memlib.model accepts, from its own table."""

    def run(self):
        module = importlib.import_module("memlib.model")
        self.env.note_dependency(module.__file__)
        self.env.note_dependency(__file__)
        keys = list(dict.fromkeys(key for row in module.VALID_COMBINATIONS for key in row))
        rows = [[[self.cell(row.get(key, ""))] for key in keys] for row in module.VALID_COMBINATIONS]
        header = [key.replace("_", " ").capitalize() for key in keys]
        return [self.table([100 // len(keys)] * len(keys), header, rows, ["memlib-combinations"])]

    def cell(self, value):
        """Names as code, sentences as text."""
        if isinstance(value, str):
            code = re.fullmatch(r"[a-z][a-z0-9_]*", value)
            return nodes.paragraph("", "", *([nodes.literal("", value)] if code else self.inline(value)))
        if isinstance(value, list | tuple | set | frozenset):
            paragraph = nodes.paragraph()
            for i, name in enumerate(sorted(value) if isinstance(value, set | frozenset) else value):
                paragraph += ([nodes.Text(", ")] if i else []) + [nodes.literal("", str(name))]
            return paragraph
        return nodes.paragraph("", str(value))


class NotebookFigure(SphinxDirective):
    """A figure of an executed notebook: path relative to the page, and the tag of the cell that shows it."""

    required_arguments = 2
    has_content = True
    option_spec: ClassVar[dict] = {
        "name": directives.unchanged,
        "width": directives.unchanged,
        "class": directives.class_option,
    }

    def run(self):
        _, path = self.env.relfn2path(self.arguments[0])
        tag = self.arguments[1]
        self.env.note_dependency(path)
        if not Path(path).is_file():
            raise self.error(f"notebook-figure: there is no notebook {self.arguments[0]}")
        pictures = [
            output
            for cell, output in outputs(read_notebook(path))
            if tag in cell["metadata"].get("tags", ()) and "image/png" in output["data"]
        ]
        if len(pictures) != 1:
            raise self.error(
                f"notebook-figure: {self.arguments[0]} has {len(pictures)} PNG outputs in cells tagged {tag!r}, "
                "it should have one"
            )
        content = base64.b64decode(_text(pictures[0]["data"]["image/png"]))
        folder = Path(self.env.app.outdir).parent / "jupyter_execute"
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / (hashlib.sha256(content).hexdigest() + ".png")
        target.write_bytes(content)
        uri = "/" + Path(os.path.relpath(target, self.env.srcdir)).as_posix()
        image = nodes.image(uri=uri, alt=description(pictures[0]["data"]))
        width = self.options.get("width") or pictures[0].get("metadata", {}).get("image/png", {}).get("width")
        if width:
            image["width"] = str(width)
        figure = nodes.figure("", image, align="center", classes=["memlib-figure", *self.options.get("class", [])])
        if self.content:
            holder = nodes.Element()
            self.state.nested_parse(self.content, self.content_offset, holder)
            caption, *rest = holder.children
            figure += nodes.caption(caption.rawsource, "", *caption.children)
            if rest:
                figure += nodes.legend("", *rest)
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]


# ---------------------------------------------------------------- docstrings

_MARKUP = re.compile(
    r"(?P<keep>:[\w:+-]+:`[^`]+`|``.+?``|`[^`\n]+`__?|^\s*[*|-] )"
    r"|\$\$(?P<display>[^$]+?)\$\$|(?<![\\\w$])\$(?P<math>[^\s$](?:[^$]*[^\s$\\])?)\$(?!\d)"
    r"|`(?P<code>[^`\n]+)`|(?P<strong>\*\*[^*\s][^*]*\*\*|(?<![*\w])\*[^*\s][^*]*\*(?![*\w]))|(?P<escape>[*|]+)",
    re.DOTALL | re.MULTILINE,
)


def _rst(match):
    formula = match["display"] or match["math"]
    if formula:
        after = match.string[match.end() : match.end() + 1]
        return ":math:`" + " ".join(formula.split()) + "`" + ("\\ " if after.isalnum() else "")
    if match["code"]:
        return "``" + match["code"] + "``"
    if match["escape"]:
        return "".join("\\" + mark for mark in match["escape"])
    return match[0]


def _indent(line):
    return len(line) - len(line.lstrip())


def to_rst(lines):
    """Docstring lines in the notation of the book's pages, as reStructuredText.

    ``$formula$`` becomes a formula, single backticks become code, an indented block after an empty line is a code
    block, and stray asterisks and bars are only themselves.
    """
    result, text = [], []
    i = 0
    while i < len(lines):
        previous = next((line for line in reversed(lines[:i]) if line.strip()), "")
        opens = (
            lines[i].strip()
            and i > 0
            and not lines[i - 1].strip()
            and _indent(lines[i]) >= _indent(previous) + 4
            and not previous.lstrip().startswith((".. ", ":", "- ", "* ", ">>>"))
            and not re.fullmatch(r"(Args|Returns|Raises|Yields|Attributes|Notes?|Examples?):", previous.strip())
        )
        if not opens:
            text.append(lines[i])
            i += 1
            continue
        end = i
        while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) >= _indent(lines[i])):
            end += 1
        if not previous.rstrip().endswith("::"):
            text += [" " * _indent(previous) + "::", ""]
        result += [*_MARKUP.sub(_rst, "\n".join(text)).split("\n"), *lines[i:end]]
        text, i = [""], end
    return [*result, *_MARKUP.sub(_rst, "\n".join(text)).split("\n")]


def process_docstring(app, what, name, obj, options, lines):
    """Let docstrings use the notation of the book's pages."""
    lines[:] = to_rst(lines)


def setup(app):
    """Register the extension."""
    app.connect("config-inited", set_widget_scripts)
    app.connect("html-page-context", set_require_paths)
    app.connect("autodoc-process-docstring", process_docstring, priority=400)
    app.add_post_transform(ImageDescription)
    app.add_post_transform(ClaimAnchor)
    app.add_directive("claim-ledger", ClaimLedger)
    app.add_directive("valid-combinations", ValidCombinations)
    app.add_directive("notebook-figure", NotebookFigure)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/sphinx_memlib.py FOLDER")
    try:
        fetch_widgets(sys.argv[1])
    except FileNotFoundError as error:
        if os.environ.get("CI") == "true":
            raise
        print(f"{error}; the browser test will be skipped")
