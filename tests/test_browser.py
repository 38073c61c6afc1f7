"""The built book in a real browser, with no network: formulas, figures, slider, search, width, colours, requests.

``make test`` builds the book and names it in MEMLIB_HTML; without that variable the book is built here.
"""

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tools import sphinx_memlib

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
# Two harmless messages of the theme.
KNOWN_ERRORS = ("THEBE_JS_URL", "invalid theme mode")
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


PAGES = sphinx_memlib.toc_pages(ROOT)


def chromium():
    """Path of a Chromium, or None."""
    return next((path for path in map(shutil.which, CHROMIUM_NAMES) if path), None)


def needed(what):
    """Skip for a missing tool; in continuous integration, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def html(tmp_path_factory):
    """Folder of the built book with local widget scripts."""
    if os.environ.get("MEMLIB_HTML"):
        folder = Path(os.environ["MEMLIB_HTML"])
        assert (folder / "chapters" / "index.html").is_file(), f"no book in {folder}"
        if not sphinx_memlib.widgets_present(folder):
            needed("npm (for the widget scripts)")
        return folder
    if shutil.which("npm") is None:
        needed("npm (for the widget scripts)")
    out = tmp_path_factory.mktemp("book")
    sphinx_memlib.fetch_widgets(out / "widgets")
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(ROOT)]
    command += ["-W", "--keep-going", "--path-output", str(out)]
    environment = {**os.environ, "MEMLIB_WIDGETS": str(out / "widgets")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (out / "_build" / "html" / "chapters" / "index.html").is_file()
    return out / "_build" / "html"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture(scope="session")
def address(html):
    """The book served on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(html)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def browser():
    """One Chromium for all tests."""
    path = chromium()
    if path is None:
        needed("Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """An open page, and what it said and asked for on the way."""

    def __init__(self, browser, address, mode="light", width=1200):
        self.address = address
        self.errors, self.foreign = [], []
        self.context = browser.new_context(color_scheme=mode, viewport={"width": width, "height": 900})
        self.context.set_default_timeout(30_000)
        self.context.route("**/*", self._route)
        self.page = self.context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self._error(str(error), True))

    def _route(self, route):
        if urlsplit(route.request.url).netloc == urlsplit(self.address).netloc:
            route.continue_()
        else:
            self.foreign.append(route.request.url)
            route.abort()

    def _console(self, message):
        self._error(f"{message.text} ({message.location.get('url', '')})", message.type == "error")

    def _error(self, text, is_error):
        if is_error and not any(known in text for known in KNOWN_ERRORS):
            self.errors.append(text)

    def open(self, path):
        """Go to a page and wait until formulas and widgets are drawn."""
        self.page.goto(f"{self.address}/{path}", wait_until="load")
        if self.page.locator(".math").count():
            self.page.wait_for_function("() => window.MathJax?.startup?.promise")
            self.page.evaluate("() => MathJax.startup.promise.then(() => true)")
        if self.page.locator('script[type="application/vnd.jupyter.widget-view+json"]').count():
            self.page.wait_for_selector(".jupyter-widgets")
        self.page.wait_for_load_state("networkidle")
        return self.page

    def close(self):
        """Close, and say what went wrong on the way."""
        self.context.close()
        assert not self.foreign, f"requests left the machine: {self.foreign}"
        assert not self.errors, f"console errors: {self.errors}"


RAW_MATH = r"""() => {
  const article = document.querySelector("article");
  const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.parentElement.closest("script, style, pre, code, textarea, mjx-container")) continue;
    const match = node.textContent.match(/\\\(|\\\[|\\begin\{|\$[^$\s]([^$]*[^$\s])?\$/);
    if (match) found.push(node.textContent.trim().slice(0, 80));
  }
  return found;
}"""

UNSET_MATH = """() => [...document.querySelectorAll("article .math")]
  .filter(e => !e.querySelector("mjx-container")).map(e => e.textContent.slice(0, 80))"""

BAD_MATH = """() => [...document.querySelectorAll(
  "mjx-merror, [data-mml-node='merror'], [data-mjx-error], mjx-mtext[style*='color: red']")]
  .map(e => e.textContent.slice(0, 80))"""

PICTURES = """() => [...document.querySelectorAll("article img")]
  .map(e => ({alt: (e.getAttribute("alt") || "").trim(), src: e.src.slice(0, 80),
              broken: e.complete && e.naturalWidth === 0}))"""

WIDTH = """() => {
  const limit = window.innerWidth;
  const scrolls = e => { for (let p = e.parentElement; p; p = p.parentElement) {
      if (p !== document.body && p !== document.documentElement
          && ["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(p).overflowX)) return true; }
    return false; };
  const wide = [...document.querySelectorAll("article *")]
    .filter(e => e.getBoundingClientRect().right > limit + 1 && !scrolls(e))
    .map(e => e.tagName + "." + e.className + ": " + e.textContent.trim().slice(0, 50)).slice(0, 5);
  return {width: document.scrollingElement.scrollWidth, limit, wide};
}"""

FAINT = """() => {
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = c => { const [r, g, b] = c.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0.99) return c; }
    return [255, 255, 255, 1]; };
  const found = [];
  for (const e of document.querySelectorAll("article p, article li, article td, article dd, article .memlib-claim, "
                                            + "article .memlib-claim *, article .memlib-verdict")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.offsetParent || e.closest("pre")) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(ground(e));
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push(contrast.toFixed(2) + ": " + e.textContent.trim().slice(0, 60));
  }
  return found.slice(0, 5);
}"""


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_page(browser, address, name, mode):
    visit = Visit(browser, address, mode)
    page = visit.open(f"{name}.html")
    assert page.evaluate("document.documentElement.dataset.theme") == mode
    assert page.locator("article h1").count() == 1
    assert page.evaluate(RAW_MATH) == [], "formulas left as text"
    assert page.evaluate(UNSET_MATH) == [], "formulas not typeset"
    assert page.evaluate(BAD_MATH) == [], "formulas with errors"
    pictures = page.evaluate(PICTURES)
    assert [p["src"] for p in pictures if not p["alt"]] == [], "pictures without description"
    assert [p["src"] for p in pictures if p["broken"]] == [], "pictures that do not load"
    assert page.evaluate(FAINT) == [], "text with too little contrast"
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_timeout(150)
    size = page.evaluate(WIDTH)
    assert size["width"] <= size["limit"], f"the page scrolls sideways at 400 pixels: {size['wide']}"
    visit.close()


def test_pages_are_those_of_the_toc(html):
    special = {"genindex", "search", "py-modindex", "prf-prf", "index"}
    built = {path.relative_to(html).with_suffix("").as_posix() for path in html.rglob("*.html")}
    built = {name for name in built if not name.startswith("_static/")}
    assert built - special == set(PAGES)


def test_the_book_has_formulas(html):
    counts = {name: (html / f"{name}.html").read_text(encoding="utf-8").count('class="math') for name in PAGES}
    assert counts["chapters/foundations/theory"] > 20, counts


def test_every_figure_arrives_with_its_description(html):
    """Each image output of a notebook is an image of its page, and its text is the alternative text."""
    from bs4 import BeautifulSoup

    total = 0
    for path in sorted((ROOT / "chapters").rglob("*.ipynb")):
        name = path.relative_to(ROOT).with_suffix("").as_posix()
        wanted = [
            sphinx_memlib.description(output["data"])
            for _, output in sphinx_memlib.outputs(sphinx_memlib.read_notebook(path))
            if "image/png" in output["data"] and "text/html" not in output["data"]
        ]
        soup = BeautifulSoup((html / f"{name}.html").read_text(encoding="utf-8"), "html.parser")
        found = [image.get("alt", "") for image in soup.select("article .cell_output img")]
        assert found == wanted, name
        assert all(text.strip() for text in found), name
        total += len(found)
    assert total > 0, "the book has no figure"


def test_ledger_lists_every_claim_and_leads_to_it(html):
    """One row for each saved claim, in the order of the book, with a link that ends at the claim's box."""
    from bs4 import BeautifulSoup

    saved = []
    for name in PAGES:
        if (ROOT / f"{name}.ipynb").is_file():
            saved += sphinx_memlib.claims_of(sphinx_memlib.read_notebook(ROOT / f"{name}.ipynb"))
    assert saved, "the book makes no claim"
    ledger = html / "chapters" / "back" / "ledger.html"
    soup = BeautifulSoup(ledger.read_text(encoding="utf-8"), "html.parser")
    rows = soup.select("table.memlib-ledger tbody tr")
    assert [row.select_one("td").get_text(strip=True) for row in rows] == [claim["label"] for claim in saved]
    verdicts = [row.select_one(".memlib-verdict") for row in rows]
    assert [verdict.get_text(strip=True) for verdict in verdicts] == [claim["verdict"] for claim in saved]
    assert [("holds" if "holds" in verdict["class"] else "fails") for verdict in verdicts] == [
        "holds" if claim["holds"] else "fails" for claim in saved
    ]
    for row in rows:
        page, _, target = row.select_one("td a")["href"].partition("#")
        text = (ledger.parent / page).resolve().read_text(encoding="utf-8")
        assert text.count(f'id="{target}"') == 1, row.get_text(" ", strip=True)[:80]


def slider_pages(html):
    """Pages that show a widget."""
    mark = 'type="application/vnd.jupyter.widget-view+json"'
    return [name for name in PAGES if mark in (html / f"{name}.html").read_text(encoding="utf-8")]


def visible_pictures(page):
    """The sources of the widget pictures that a reader sees now."""
    return page.evaluate(
        """() => [...document.querySelectorAll(".jupyter-widgets img")]
          .filter(e => e.offsetParent && e.getBoundingClientRect().height > 20).map(e => e.src)"""
    )


def test_slider_moves_the_picture(browser, address, html):
    names = slider_pages(html)
    assert names, "no page of the book shows a slider"
    for name in names:
        visit = Visit(browser, address)
        page = visit.open(f"{name}.html")
        handles = page.locator('.widget-slider [role="slider"], .jupyter-widgets [role="slider"]')
        handles.first.wait_for()
        assert handles.count() > 0, name
        for i in range(handles.count()):
            before = visible_pictures(page)
            assert before, f"{name}: the slider shows no picture"
            low = float(handles.nth(i).get_attribute("aria-valuenow"))
            top = float(handles.nth(i).get_attribute("aria-valuemax"))
            handles.nth(i).focus()
            page.keyboard.press("ArrowRight" if low < top else "ArrowLeft")
            page.wait_for_timeout(300)
            after = visible_pictures(page)
            assert after and after != before, f"{name}: slider {i} moved by keyboard changes no picture"
            assert len(after) == len(before), f"{name}: slider {i} shows another number of pictures"
        assert all(p["alt"] for p in page.evaluate(PICTURES)), f"{name}: a picture behind the slider has no description"
        visit.close()


def test_search_finds_jackson(browser, address):
    visit = Visit(browser, address)
    page = visit.open("search.html?q=Jackson")
    page.wait_for_selector("#search-results ul.search li a")
    page.wait_for_load_state("networkidle")
    links = page.eval_on_selector_all("#search-results ul.search li a", "found => found.map(a => a.href)")
    assert any(re.search(r"/chapters/foundations/theory\.html", link) for link in links), links
    visit.close()


def test_search_finds_nothing_for_nonsense(browser, address):
    visit = Visit(browser, address)
    page = visit.open("search.html?q=zzqxjwvk")
    page.wait_for_function("() => document.querySelector('#search-results')?.textContent.trim().length > 20")
    assert page.locator("#search-results ul.search li a").count() == 0
    visit.close()


def test_root_leads_to_the_index(browser, address):
    visit = Visit(browser, address)
    visit.page.goto(address + "/")
    visit.page.wait_for_url("**/chapters/index.html")
    visit.close()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("<p>\\(x\\)</p>", "formulas left as text"),
        ('<span class="math">x</span>', "formulas not typeset"),
        ('<span class="math">\\(\\undefinedmacro\\)</span>', "formulas with errors"),
        ('<span class="math">\\(\\frac{1}\\)</span>', "formulas with errors"),
        ("<p>Let $x_t$ be</p>", "formulas left as text"),
        ('<img src="/_static/file.png">', "pictures without description"),
        ('<p style="color:#ccc;background:#fff">faint</p>', "text with too little contrast"),
        ('<div style="width:700px">wide</div>', "scrolls sideways"),
        ("<script>console.error('boom')</script>", "console errors"),
        ('<link rel="prefetch" href="http://192.0.2.1/x.css">', "requests left the machine"),
    ],
)
def test_the_page_test_can_fail(browser, address, html, content, complaint):
    """A copy of a page with one defect is refused for that defect."""
    source = html / "chapters" / "index.html"
    text = source.read_text(encoding="utf-8")
    head, title_end, rest = text.rpartition("</h1>")
    assert title_end
    broken = html / "chapters" / "index_broken.html"
    broken.write_text(head + title_end + content + rest, encoding="utf-8")
    try:
        with pytest.raises(AssertionError, match=re.escape(complaint)):
            test_page(browser, address, "chapters/index_broken", "light")
    finally:
        broken.unlink()


def test_widget_scripts_of_the_online_book_are_pinned():
    """The online book names exact versions with their integrity; the offline copies are the same bytes."""
    for package, version, member, integrity in sphinx_memlib.WIDGET_SCRIPTS:
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), package
        assert integrity.startswith("sha384-") and member.endswith(".js"), package
