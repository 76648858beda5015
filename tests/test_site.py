"""The site is whole: every link and anchor of every page leads somewhere, and nothing asks a
network."""

from __future__ import annotations

import ast
import importlib
import json
import re
import runpy
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from browsing import chromium
from test_layers import FLOORS

from specwb.engine.methods import METHODS
from specwb.lab.studies.verdicts import VERDICTS
from specwb.show.course import calibration, recording
from specwb.show.ledger import HEADER
from specwb.show.scope import checked
from specwb.theory.analysis import RATES, best_gamma, expected_tokens, optimum, roofline, speedup

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


def test_every_module_has_a_page_of_its_source():
    """Sphinx reads no annotation with an f-string or a loop in it, and leaves the module out."""
    unread = (ast.JoinedStr, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)
    for path in (ROOT / "specwb").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.AnnAssign):
                inside = [n for n in ast.walk(node.annotation) if isinstance(n, unread)]
                assert not inside, f"{path}, line {node.lineno}"


def front_page_computes(expression: str) -> Any:
    """What JavaScript makes of an expression of the first page's functions."""
    text = (ROOT / "docs" / "site" / "front.js").read_text("utf-8")
    if node := shutil.which("node"):
        program = f"{text}\nconsole.log(JSON.stringify({expression}));"
        command = [node, "--input-type=module", "-"]
        done = subprocess.run(command, input=program, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)
    with chromium() as browser:
        page = browser.new_page()
        body = f"{text.replace('export ', '')}\nreturn {expression};"
        return page.evaluate(f"(() => {{ {body} }})()")


def test_the_first_page_computes_what_python_computes():
    alphas, gammas, prices = (0.0, 0.3, 0.75, 1.0), (0, 1, 4, 12), (0.0, 0.05, 0.224, 1.0)
    rows, balances = (1, 16, 256), (4.0, 56.9, 221.4)
    table = sorted(calibration().target.items())
    grid = json.dumps([alphas, gammas, prices, rows, balances, table])
    expected, fast, best, roof, at = front_page_computes(
        "(([A, G, C, B, N, T]) => [A.map((a) => G.map((g) => expectedTokens(a, g))),"
        " A.map((a) => G.map((g) => C.map((c) => speedup(a, g, c, 1 + g / 7)))),"
        " A.map((a) => C.map((c) => bestGamma(a, c, (g) => 1 + g / 30, 12))),"
        " G.map((g) => B.map((b) => N.map((n) => scoring({balance: n}, g, b)))),"
        f" G.map((g) => scoring({{seconds: T}}, g, 1))])({grid})"
    )
    for a, tokens, ratios, gamma in zip(alphas, expected, fast, best, strict=True):
        assert tokens == pytest.approx([expected_tokens(a, g) for g in gammas], rel=1e-12)
        for g, row in zip(gammas, ratios, strict=True):
            wanted = [speedup(a, g, c, 1 + g / 7) for c in prices]
            assert row == pytest.approx(wanted, rel=1e-12)
        assert gamma == [best_gamma(a, c, lambda g: 1 + g / 30, 12) for c in prices]
    for g, by_rows in zip(gammas, roof, strict=True):
        for b, row in zip(rows, by_rows, strict=True):
            assert row == pytest.approx([roofline(g, b, n) for n in balances], rel=1e-12)
    assert at == pytest.approx([calibration().v(g) for g in gammas], rel=1e-12)


def test_a_lessons_page_computes_what_python_computes():
    pytest.importorskip("ipywidgets")
    from specwb.show.widgets.acceptance import shaped

    settings = ((1.0, 3.0, 1.0), (0.2, -5.0, 5.0), (5.0, 0.0, 0.2), (1.3, 0.5, 1.0))
    counts = (1, 2, 3, 8)
    found = front_page_computes(
        f"{json.dumps(settings)}.map((one) => [shaped(...one), {json.dumps(counts)}.map((k) => {{"
        " const [p, q] = shaped(...one);"
        " return [overlap(p, q, level(p, q, k)), mostAccepted(p, q, k)]; })])"
    )
    for one, (both, rates) in zip(settings, found, strict=True):
        p, q = wanted = shaped(*one)
        assert np.allclose(both, wanted, rtol=1e-12)
        for k, (ours, most) in zip(counts, rates, strict=True):
            assert ours == pytest.approx(float(RATES["rrs"](p, q, k)), abs=1e-9)
            assert most == pytest.approx(float(optimum(p, q, k, "iid")), abs=1e-9)


def site_program(name: str) -> Any:
    """A module of docs/site."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "site"))
        return importlib.import_module(name)


def test_a_method_that_nobody_can_choose_stops_the_site(monkeypatch):
    entry = replace(METHODS["sps"], key="new", needs="a crystal ball")
    monkeypatch.setitem(METHODS, "new", entry)
    with pytest.raises(ValueError, match="a crystal ball"):
        site_program("front").methods()


def test_every_method_has_a_recording_that_plays():
    record = site_program("record")
    assert set(METHODS) < set(record.RECORDINGS)
    for name in record.RECORDINGS:
        trace = checked(recording(name))
        assert trace["method"]["key"] == record.RECORDINGS[name][1].partition(":")[0]
        assert trace["tokens"] == [token for one in trace["rounds"] for token, _ in one["text"]]
        assert len(trace["plain"]["seconds"]) == len(trace["tokens"])  # the race has one end
        if name != "ar":  # something happens
            levels = [level for one in trace["rounds"] for level in one["levels"]]
            made = {test["decision"] for level in levels for test in level["tests"]}
            assert {"accepted", "rejected"} <= made, name


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
    reference = (site / "reference" / "specwb.rules.html").read_text()
    assert re.search(r'href="../theory/[^"]*#theorem-7-4"', reference)  # in a docstring as well


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "index",
        "notebooks/lessons/1_one_speculative_step",
        "notebooks/lessons/3_many_candidates",
        "notebooks/papers/diffuspec",
        "theory/05_optimum",
        "theory/12_kangaroo",
        "reference/specwb.rules",
        "docs/architecture",
        "gallery/kangaroo",
        "ledger",
    ],
)
def test_a_page_fits_its_window_and_asks_nothing(site, name):
    pytest.importorskip("playwright.sync_api")
    look = runpy.run_path(str(ROOT / "docs" / "site" / "pictures.py"))["look"]
    ((_, wrong),) = look(site, [f"{name}.html"], widths=(420, 1000, 1200, 1400))
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_the_first_page_plays_at_once_and_is_small(site, motion):
    with chromium() as browser:
        tab = browser.new_page(reduced_motion=motion)
        loaded = []
        tab.on("request", lambda request: loaded.append(request.url))
        tab.goto((site / "index.html").as_uri())
        frame = tab.get_by_label("frame", exact=True)
        tab.wait_for_timeout(500)
        assert (int(frame.input_value()) > 0) == (motion == "no-preference")
        files = {Path(unquote(urlsplit(url).path)) for url in loaded if url.startswith("file:")}
        assert sum(path.stat().st_size for path in files) < 1.5e6
        tab.get_by_label("hardware and models").select_option("1")
        tab.locator("[name=alpha]").fill("0.9")
        tab.locator("[name=gamma]").fill("6")
        c = float(tab.locator("[name=c]").input_value())
        assert f"{speedup(0.9, 6, c):.2f}x" in tab.locator("#mountSpeed .said").inner_text()
        tab.goto((site / "notebooks/lessons/3_many_candidates.html").as_uri())
        tab.locator("[name=shift]").fill("1.5")
        tab.locator("[name=k]").fill("4")
        said = tab.locator("#mountCandidates .said").inner_text()
        accepted, most = front_page_computes(
            "[shaped(1, 1.5, 1)].map(([p, q]) => [overlap(p, q, level(p, q, 4)),"
            " mostAccepted(p, q, 4)])[0]"
        )
        assert f"{accepted:.3f}" in said
        assert f"{most:.3f}" in said


@pytest.mark.slow
def test_a_round_of_every_method_can_be_stepped_through(site):
    """From the static pages alone."""
    with chromium() as browser:
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
            assert player.get_by_text("step 2 of").is_visible(), name
            tab.close()


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


def test_architecture_s_drawings_are_what_the_program_draws():
    program = runpy.run_path(str(ROOT / "docs" / "diagrams.py"))
    for name, draw in program["DRAWINGS"].items():
        stored = (ROOT / "docs" / f"{name}.svg").read_text("utf-8")
        ids = r"\bd\d+-"  # counted from the first drawing of a process
        assert re.sub(ids, "", draw().svg) == re.sub(ids, "", stored).strip()
    rooms = [set(rooms.split()) for rooms, _ in program["FLOORS"]]
    assert rooms == [set(rooms.split()) for rooms in reversed(FLOORS)]


@pytest.mark.parametrize("verdict", VERDICTS[:-1])
def test_a_claim_is_a_card_with_the_colour_of_its_verdict(verdict):
    """And nothing of the row is lost."""
    cards = site_program("cards")
    row = ("A < B [table 1]", "2.91", "x0.42 (0.39-0.45); joint 2.6", f"{verdict} (why; then)")
    text = cards.page([("one", "about", HEADER, [(*row, "1.12", "T=0 a / T=0 b")])])
    wanted = {"reproduced": "yes", "contradicted": "no", "inconclusive": "open"}
    assert f'<div class="{wanted.get(verdict, "none")}"><p>A &lt; B</p>' in text
    assert f"<strong>{verdict}</strong> why</p>" in text
    shown, _, folded = text.partition("<details>")
    assert all(part in shown for part in ("2.91", "x0.42 (0.39-0.45)"))
    assert all(part in folded for part in ("table 1", "joint 2.6", "then", "1.12", "T=0 b"))


def test_other_tables_of_the_ledger_stay_tables():
    text = site_program("cards").page([("Entries", "", ("report", "rows"), [("a", "b")])])
    assert text.endswith("## Entries\n\n| report | rows |\n| --- | --- |\n| a | b |\n")
