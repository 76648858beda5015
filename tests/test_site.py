"""The site is whole: every link and anchor of every page leads somewhere, and nothing asks a
network."""

from __future__ import annotations

import ast
import re
import runpy
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from test_layers import FLOORS

from specwb.methods import METHODS

ROOT = Path(__file__).parents[1]


class Page(HTMLParser):
    """What a page links to, what it loads, and the ids that links may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe") and values.get("src"):
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(values["href"])


def faults(folder: Path) -> list[str]:
    """Links and anchors that lead nowhere, and what is loaded from elsewhere."""
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in folder.rglob("*.html")}
    found = []
    for path, page in pages.items():
        for address in page.loaded + page.links:
            parts = urlsplit(address)
            if address.startswith("data:"):
                continue
            if parts.scheme or parts.netloc:
                if address in page.loaded:
                    found.append(f"{path.name} loads {address}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.is_file():
                found.append(f"{path.name}: {address}")
            elif anchor and target in pages and anchor not in pages[target].ids:
                found.append(f"{path.name}: no {address}")
    return found


def test_faults_are_seen(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a><a href="b.html#gone">2</a><a href="c.html">3</a>'
        '<script src="https://x.example/y.js"></script><a href="https://x.example">4</a>'
    )
    (tmp_path / "b.html").write_text('<p id="there">')
    assert faults(tmp_path) == [
        "a.html loads https://x.example/y.js",
        "a.html: no b.html#gone",
        "a.html: c.html",
    ]


def test_every_module_has_a_page_of_its_source():
    """Sphinx reads no annotation with an f-string or a loop in it, and leaves the module out."""
    unread = (ast.JoinedStr, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)
    for path in (ROOT / "specwb").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.AnnAssign):
                inside = [n for n in ast.walk(node.annotation) if isinstance(n, unread)]
                assert not inside, f"{path}, line {node.lineno}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site, built once for the slow tests."""
    for package in ("sphinx", "myst_nb", "furo", "sphinx-mathjax-offline"):
        pytest.importorskip(package, reason="make site installs it")
    folder = tmp_path_factory.mktemp("site")
    assert runpy.run_path(str(ROOT / "docs" / "site" / "make.py"))["build"](folder) == 0
    return folder


@pytest.mark.slow
def test_every_link_of_the_site_leads_somewhere(site):
    assert faults(site) == []
    theory = (site / "theory" / "05_optimum.html").read_text()
    assert re.search(r'href="[^"]*#theorem-4-1"', theory)  # a theorem that is named is a link
    assert "gallery/kangaroo.html" in (site / "index.html").read_text()
    reference = (site / "reference" / "specwb.verify.html").read_text()
    assert re.search(r'href="../theory/[^"]*#theorem-7-4"', reference)  # in a docstring as well


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "index",
        "notebooks/lessons/1_one_speculative_step",
        "notebooks/papers/diffuspec",
        "theory/05_optimum",
        "theory/12_kangaroo",
        "reference/specwb.verify",
        "docs/architecture",
        "gallery/kangaroo",
        "ledger",
    ],
)
def test_a_page_fits_its_window_and_asks_nothing(site, name):
    program = browser_program()
    ((_, wrong),) = program["look"](site, [f"{name}.html"], widths=(420, 1000, 1400))
    assert wrong == []


@pytest.mark.slow
def test_a_round_of_every_method_can_be_stepped_through(site):
    """From the static pages alone."""
    program = browser_program()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program["chromium"](), args=program["FLAGS"]
        )
        for name in METHODS:
            tab = browser.new_page()
            tab.goto((site / "gallery" / f"{name}.html").as_uri())
            player = tab.locator(".sw")
            said = [player.locator("[data-says]").inner_text()]
            for _ in range(9):  # a round may draft nothing
                player.press("ArrowRight")
                said.append(player.locator("[data-says]").inner_text())
            assert all(before != after for before, after in pairwise(said)), name
            assert len(set(said)) >= 3, name
            player.press("Home")
            player.press("Shift+ArrowRight")
            assert player.get_by_text("round 2 of").is_visible(), name
            tab.close()
        browser.close()


def browser_program() -> dict[str, Any]:
    """What takes pictures of pages, where that can be done."""
    pytest.importorskip("playwright.sync_api")
    program = runpy.run_path(str(ROOT / "docs" / "site" / "pictures.py"))
    if program["chromium"]() is None:
        pytest.skip("no chromium on this machine")
    return program


@pytest.fixture
def rewritten():
    return runpy.run_path(str(ROOT / "docs" / "site" / "docstrings.py"))["rewritten"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("by theorem 1.3.", "by :ref:`theorem 1.3 <theorem-1.3>`."),
        (
            "theorems 1.3 and 4.1, 9.9",
            "theorems :ref:`1.3 <theorem-1.3>` and :ref:`4.1 <theorem-4.1>`, 9.9",
        ),
        ("their theorem 9.9", "their theorem 9.9"),
        ("Yin et al. 2024, theorem 1.3", "Yin et al. 2024, theorem 1.3"),
        ("``theorem 1.3``", "``theorem 1.3``"),
        ("(theorem\n1.3)", "(theorem\n:ref:`1.3 <theorem-1.3>`)"),
        ("in theory/03_speed.md", "in :doc:`theory/03_speed.md </theory/03_speed>`"),
        ("in theory/99_gone.md", "in theory/99_gone.md"),
        ("```python\nx = 1\n```\nSo", "\n.. code-block:: python\n\n   x = 1\n\nSo"),
        ("Source: A et al.,\n    section 3", "\nSource: A et al.,\nsection 3"),
    ],
)
def test_a_docstring_becomes_a_page_with_links(rewritten, written, read):
    pages = ["theory/03_speed"]
    assert rewritten(written.split("\n"), {"1.3", "4.1"}, pages) == read.split("\n")


def test_every_theorem_that_a_docstring_names_is_there():
    """Another paper's is named with its year before it."""
    theorems = {
        number
        for page in (ROOT / "theory").glob("*.md")
        for number in re.findall(r"^## Theorem (\d+\.\d+)", page.read_text("utf-8"), re.M)
    }
    for path in sorted((ROOT / "specwb").rglob("*.py")):
        named = re.findall(r"(?<!\d{4}, )[Tt]heorem\s+(\d+\.\d+)", path.read_text("utf-8"))
        assert set(named) <= theorems, path.name


def test_architecture_s_drawings_are_what_the_program_draws():
    program = runpy.run_path(str(ROOT / "docs" / "diagrams.py"))
    for name, draw in program["DRAWINGS"].items():
        stored = (ROOT / "docs" / f"{name}.svg").read_text("utf-8")
        ids = r"\bd\d+-"  # counted from the first drawing of a process
        assert re.sub(ids, "", draw().svg) == re.sub(ids, "", stored).strip()
    rooms = [set(rooms.split()) for rooms, _ in program["FLOORS"]]
    assert rooms == [set(rooms.split()) for rooms in reversed(FLOORS)]
