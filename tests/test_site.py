"""The site is whole: every link and anchor of every page leads somewhere, and nothing asks a
network."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import unquote, urlsplit

import pytest
from browsing import chromium
from test_layers import FLOORS

from specwb.show import course
from specwb.show.scope import TraceError, checked
from specwb.show.scope.pages import PACKED
from specwb.theory.analysis import best_gamma, expected_tokens, roofline, speedup

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
PLAYER = runpy.run_path(str(SITE / "player.py"))
player, films = PLAYER["player"], PLAYER["films"]
RECORDINGS = sorted((ROOT / "data" / "recordings").glob("*.json"))


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
    wrong = []
    for path, page in pages.items():
        for address in page.loaded + page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loaded and parts.scheme != "data":
                    wrong.append(f"{path.name} loads {address}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.is_file() or (target in pages and anchor not in {"", *pages[target].ids}):
                wrong.append(f"{path.name}: {address}")
    return wrong


def front_page_computes(expression: str) -> Any:
    """The value of a JavaScript expression of the first page's functions."""
    text = (SITE / "front.js").read_text("utf-8")
    if node := shutil.which("node"):
        program = f"{text}\nconsole.log(JSON.stringify({expression}));"
        command = [node, "--input-type=module", "-"]
        done = subprocess.run(command, input=program, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)
    with chromium() as browser:
        body = f"{text.replace('export ', '')}\nreturn {expression};"
        return browser.new_page().evaluate(f"(() => {{ {body} }})()")


def test_the_pages_formulas_are_pythons():
    tokens, fast, best, roof, at = front_page_computes(
        "[expectedTokens(0.75, 4), speedup(0.75, 4, 0.05, 1.5),"
        " bestGamma(0.75, 0.05, (g) => 1 + g / 30, 12), scoring({balance: 56.9}, 4, 16),"
        " scoring({seconds: [[1, 2], [5, 3], [9, 5]]}, 2, 1)]"
    )
    assert tokens == pytest.approx(expected_tokens(0.75, 4), rel=1e-12)
    assert fast == pytest.approx(speedup(0.75, 4, 0.05, 1.5), rel=1e-12)
    assert best == best_gamma(0.75, 0.05, lambda g: 1 + g / 30, 12)
    assert roof == pytest.approx(roofline(4, 16, 56.9), rel=1e-12)
    assert at == pytest.approx(1.25)  # of 3 tokens, between those of 1 and 5


def test_every_explorer_of_the_notebooks_is_on_its_page(monkeypatch):
    """Two are not stored: front.js computes the one, and the other one measures times."""
    pytest.importorskip("anywidget")
    monkeypatch.syspath_prepend(SITE)
    import stored_explorers as explorers

    shown = {
        (path.stem, cell["id"])
        for path in (ROOT / "notebooks").rglob("[!.]*.ipynb")
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        if re.search(r"^show\((\w+), \1\.summary\)$", "".join(cell["source"]), re.MULTILINE)
        and not any(PACKED in output.get("data", {}) for output in cell["outputs"])
    }
    elsewhere = {("1_one_speculative_step", "speed"), ("ablations", "dials")}
    assert shown == elsewhere | explorers.STORED.keys()


@pytest.mark.slow
def test_a_stored_explorer_shows_what_the_notebooks_does(tmp_path, monkeypatch):
    """At settings of each grid: the line and the figure are Python's, and a control that has no
    effect is disabled."""
    pytest.importorskip("anywidget")
    monkeypatch.syspath_prepend(SITE)
    import libraries
    import stored_explorers as explorers

    grids = [
        {"level_1": [1, 2, 6], "level_2": [1, 6]},
        {"shape": [explorers.SPEED], "nodes": [4, 8]},
        {"shape": [explorers.SPEED], "costs": [explorers.ROOFLINE], "balance": [8, 512]},
        {"costs": [explorers.ROOFLINE], "level_1": [1, 2, 6], "level_2": [1, 6]},
    ]
    cell = "4_draft_trees", "designer"
    stored = replace(explorers.STORED[cell], grids=grids)
    view = stored.make()
    monkeypatch.setitem(explorers.STORED, cell, stored)
    with pytest.raises(SystemExit, match="the explorer of 4_draft_trees, cell designer, has chang"):
        explorers.html(*cell, "2-2, 7 nodes")
    place = explorers.html(*cell, view.summary)
    libraries.plotly(tmp_path)
    for name in ("site.js", "explorers.js"):
        shutil.copy(SITE / name, tmp_path)
    loaded = '<script src="site.js"></script><script src="explorers.js"></script>'
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html>{loaded}<div class=cell_output>{place}</div>", "utf-8")
    with chromium() as browser:
        tab = browser.new_page()
        tab.goto(page.as_uri())
        said, drawn = tab.get_by_role("status"), tab.locator(".specwb-plotly")

        def same(**settings: Any) -> None:
            with view.at(**settings):
                assert said.inner_text() == view.summary
                wanted = json.loads(view._figures[0].figure.to_json())["data"]
            tab.wait_for_function("document.querySelector('.specwb-plotly').data")
            tab.wait_for_timeout(300)
            keys = ("type", "x", "y", "z", "text")
            shown = drawn.evaluate("(plot) => plot.data")
            assert [{k: t.get(k) for k in keys} for t in shown] == [
                {k: t.get(k) for k in keys} for t in wanted
            ]

        def disabled() -> list[str]:
            return tab.locator("input:disabled").evaluate_all("(all) => all.map((x) => x.name)")

        tab.wait_for_selector("[name=level_1]")
        same()
        assert disabled() == ["nodes", "balance"]
        tab.locator("[name=level_1]").press("ArrowLeft")
        same(level_1=1)
        tab.locator("[name=shape]").select_option(label=explorers.SPEED)
        tab.locator("[name=nodes]").press("ArrowRight")
        assert disabled() == ["balance", "level_1", "level_2"]
        same(shape=explorers.SPEED, nodes=8)
        tab.locator("[name=costs]").select_option(label=explorers.ROOFLINE)
        tab.locator("[name=balance]").press("End")
        same(shape=explorers.SPEED, costs=explorers.ROOFLINE, balance=512)
        tab.locator("[name=shape]").select_option(index=0)
        same(costs=explorers.ROOFLINE)  # one menu leaves the other as it is
        for level in ("level_1", "level_2"):
            tab.locator(f"[name={level}]").press("End")
        assert said.inner_text().startswith("Not drawn: 6-6 has 43 nodes, more than 40")
        # two panels beside each other stand below each other on a phone
        panels = "(plot) => ['', '2'].map((n) => ['xaxis', 'yaxis'].map((a) => plot.layout[a + n]))"
        beside = [[axis["domain"] for axis in panel] for panel in drawn.evaluate(panels)]
        assert beside[0][0][1] < beside[1][0][0]
        tab.set_viewport_size({"width": 390, "height": 844})
        tab.reload()
        tab.wait_for_function("document.querySelector('.specwb-plotly').data")
        below = [[axis["domain"] for axis in panel] for panel in drawn.evaluate(panels)]
        assert [x for x, _ in below] == [[0, 1], [0, 1]]
        assert below[0][1][0] > below[1][1][1]
        assert drawn.evaluate("(plot) => plot.scrollWidth <= plot.clientWidth")


def test_a_stored_question_without_its_answer_is_named():
    """Every question of the notebooks has one."""
    pytest.importorskip("plotly")
    program = runpy.run_path(str(SITE / "make.py"))
    program["question"].__globals__["ask"] = lambda key: Mock()  # no figure is computed
    asked = [
        (cell, found[1])
        for path in (ROOT / "notebooks").rglob("[!.]*.ipynb")
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        if (found := program["ASKED"].match("".join(cell["source"]))) and found[1]
    ]
    assert {key for _, key in asked} == set(course.questions())
    for cell, key in asked:
        assert f'data-key="{key}"' in program["question"](cell, key)
        empty, other = {**cell, "outputs": []}, "2.keep" if key != "2.keep" else "2.bonus"
        for wrong, name in ((cell, "1.what"), (cell, other), (empty, key)):
            with pytest.raises(SystemExit, match=f"question {name} has changed or has no answer"):
                program["question"](wrong, name)


@pytest.mark.slow
def test_names_and_titles_of_axes_have_room_on_a_phone(tmp_path):
    """Names below bars lie next to each other, and no title is cut off."""
    pytest.importorskip("plotly")
    from specwb.lab.harness import CONVENTIONS
    from specwb.show import figures

    program, libraries = (runpy.run_path(str(SITE / f"{x}.py")) for x in ("make", "libraries"))
    names, title = ("prompt lookup", "draft model", "EAGLE"), "a title of the axis " * 3
    shown = [figures.bars({"one": dict.fromkeys(row, 1.0)}, "") for row in (names, CONVENTIONS)]
    shown.append(figures.estimates({"one after the other": [1.0, 2.0]}, 1, title))
    libraries["plotly"](tmp_path)
    shutil.copy(SITE / "site.js", tmp_path)
    body = "".join(program["plotly"](one.to_json(), "") for one in shown)
    page = tmp_path / "page.html"
    page.write_text(f'<!doctype html><script src="site.js"></script>{body}', "utf-8")
    boxes = "all => all.map((one) => one.getBoundingClientRect().toJSON())"
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 360, "height": 844})
        tab.goto(page.as_uri())
        tab.wait_for_function("document.querySelectorAll('.xtitle').length == 1")
        for plot in tab.locator(".specwb-plotly").all()[:2]:
            ticks = plot.locator(".xtick text").evaluate_all(boxes)
            assert len(ticks) > 2
            assert all(a["right"] <= b["left"] for a, b in itertools.pairwise(ticks))
            (whole,) = plot.locator(".main-svg").first.evaluate_all(boxes)
            assert max(tick["bottom"] for tick in ticks) <= whole["bottom"]
        (title,) = tab.locator(".xtitle").evaluate_all(boxes)
        assert 0 <= title["left"] < title["right"] <= 360


@pytest.mark.slow
def test_questions_are_answered_by_keyboard_kept_and_downloaded(tmp_path):
    """The stored HTML of a question, with the site's scripts and nothing else."""
    words = {"1/5": "Too <rare>.", "2/5": "", "1/2": "As drafted: too often."}
    one = course.MultipleChoice("2.keep", "How often?", words, "It must.", "q[2] / p[2]")
    places = '<div class="specwb-score"></div>'.join(
        f'<div class="specwb-question" data-key="{key}">{one._page()}</div>'
        for key in ("2.keep", "2.bonus")
    )  # what stands below the score is homework
    scripts = ROOT / "specwb/show/widgets/question.js", SITE / "site.js"
    for script in scripts:
        shutil.copy(script, tmp_path)
    loaded = "".join(f'<script src="{script.name}"></script>' for script in scripts)
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8>{loaded}{places}", "utf-8")
    with chromium() as browser:
        tab = browser.new_page(accept_downloads=True)
        tab.goto(page.as_uri())
        assert tab.locator("details").count() == 0  # no answer is in sight, nor in a fold
        for key in ("Tab", "Tab", "Tab", "Enter"):
            tab.keyboard.press(key)
        first, second = tab.locator("[data-key]").all()
        said = first.get_by_role("status").inner_text()
        assert "Not so. As drafted: too often." in said
        assert "The answer: 2/5. It must." in said
        assert "rare" not in said
        assert tab.evaluate("document.activeElement.textContent") == "✗ 1/2"
        first.get_by_role("button", name="1/5").press("Enter")  # the first choice counts
        second.get_by_role("button", name="2/5").click()
        assert second.get_by_role("status").inner_text().startswith("Right.")
        tab.reload()
        score = tab.locator(".specwb-score")
        answered = (
            "Questions: 1 asked, 1 answered, 0 right. Homework: 1 asked, 1 answered, 1 right."
        )
        assert score.inner_text().startswith(answered)
        assert tab.get_by_role("button", name="✗ 1/2").is_visible()
        with tab.expect_download() as download:
            score.get_by_role("button", name="Download").click()
        assert download.value.suggested_filename == "answers-2.json"
        answers = {"2.keep": {"choice": "1/2", "right": False}}
        answers["2.bonus"] = {"choice": "2/5", "right": True}
        kept = json.loads(Path(download.value.path()).read_text("utf-8"))
        assert kept == {"lesson": "2", "answers": answers}
        # a choice that a question no longer has was another question's
        tab.evaluate("localStorage.setItem('specwb.answers', '{\"2.keep\": \"4\"}')")
        tab.reload()
        assert score.inner_text().startswith("Questions: 1 asked, 0 answered")
        tab.get_by_role("button", name="2/5").first.click()
        score.get_by_role("button", name="Forget").click()
        tab.wait_for_load_state()
        assert score.inner_text().startswith("Questions: 1 asked, 0 answered")
        # files: of another lesson, something else, and the one that was downloaded
        for lesson, text, wanted in (
            (
                "3",
                json.dumps({**kept, "lesson": "3"}),
                "has the answers of lesson 3; this is lesson",
            ),
            ("x", "no JSON", "answers-x.json is no file of downloaded answers."),
            ("2", json.dumps(kept), answered),
        ):
            stored = tmp_path / f"answers-{lesson}.json"
            stored.write_text(text, "utf-8")
            with tab.expect_file_chooser() as chooser:
                score.get_by_role("button", name="Read answers").click()
            chooser.value.set_files(stored)
            score.get_by_text(wanted).wait_for()


@pytest.mark.parametrize(
    ("source", "note"),
    [
        ("parents = [-1, 0]  # yours", "To change this cell"),
        ('specwb.microscope(lab, prompt, "pld")', "To record another text"),
        ('specwb.microscope(course.recording("edit"))', ""),
    ],
)
def test_a_page_names_what_needs_jupyterlab(source, note):
    drawn = runpy.run_path(str(SITE / "make.py"))["drawn"]
    cell = drawn({"source": [source], "outputs": [], "metadata": {}})
    words = "".join(output["data"]["text/html"] for output in cell["outputs"])
    assert (note in words and "make lab" in words) if note else not words


def test_a_recording_of_another_version_is_named():
    one = json.loads(RECORDINGS[0].read_text("utf-8"))
    with pytest.raises(TraceError, match="recording old: this trace has version 0, this specwb pl"):
        player({"new": one, "old": {**one, "version": 0}})


@pytest.mark.slow
def test_the_player_plays_the_recording_that_its_address_names(tmp_path):
    page = tmp_path / "microscope.html"
    traces = {path.stem: json.loads(path.read_text("utf-8")) for path in RECORDINGS}
    page.write_text(player(traces), "utf-8")
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 390, "height": 844})
        wrong: list[str] = []
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.goto(f"{page.as_uri()}?recording=edit&play")
        tab.wait_for_function("document.querySelector('[aria-label=frame]')?.value > 0")
        assert "Asked: Who built the bridge" in tab.locator("[data-request]").inner_text()
        tab.get_by_label("frame", exact=True).press("End")
        assert tab.locator("[data-text]").inner_text() == f"…{traces['edit']['text']}"
        tally = tab.locator("[data-tally]").inner_text()
        assert tally.startswith("So far 48 tokens from 6 forwards of the target;")
        assert tab.locator(".race .fast").bounding_box()["width"] == pytest.approx(
            8 * tab.locator(".race .plain").bounding_box()["width"], rel=0.02
        )
        frame, panes = tab.get_by_label("frame", exact=True), tab.locator(".sw .scroll")
        cut = """all => all.map((pane) => Math.max(pane.scrollWidth - pane.clientWidth,
            pane.scrollHeight - pane.clientHeight))"""
        for name in ("edit", "diffuspec"):  # nothing is cut off on a phone
            tab.goto(f"{page.as_uri()}?recording={name}")
            frame.wait_for()
            for at in range(0, int(frame.get_attribute("max")) + 1, 1 if name == "edit" else 5):
                frame.fill(str(at))
                assert max(panes.evaluate_all(cut)) <= 0
        tab.emulate_media(reduced_motion="reduce")  # it waits for the reader
        for name, film in films().items():
            tab.goto(f"{page.as_uri()}?film={name}")
            frame.wait_for()
            assert int(frame.get_attribute("max")) == len(film["shots"]) - 1
            for at, shot in enumerate(film["shots"]):
                frame.fill(str(at))
                assert tab.locator("[data-says]").inner_text() == shot["say"]
                step, stage, *_ = shot["at"].split()
                shown = tab.locator("[data-stage][aria-current=step]").get_attribute("data-stage")
                assert (shown, tab.get_by_text(f"step {step} of").count()) == (stage, 1)
            tab.get_by_label("next step").click()  # of the film's, and this was the last one
            assert frame.input_value() == frame.get_attribute("max")
            tab.get_by_label("previous step").click()
            assert int(frame.input_value()) < len(film["shots"]) - 1
        tab.emulate_media(reduced_motion="no-preference")
        began = time.monotonic()
        tab.goto(f"{page.as_uri()}?film=one_step")
        tab.wait_for_function("document.querySelector('[aria-label=frame]')?.value > 0")
        assert time.monotonic() - began > 8  # a caption of 28 words takes 11 s
        tab.goto(f"{page.as_uri()}?film=none")
        assert tab.locator("body").inner_text().startswith("There is no film none; there are one_")
        tab.goto(f"{page.as_uri()}?recording=none")
        assert (
            tab.locator("body").inner_text().startswith("There is no recording none; there are ar,")
        )
        assert wrong == []


@pytest.mark.parametrize("name", films())
def test_a_film_speaks_of_what_it_shows(name):
    """Its lesson exists, a quoted word is a token of the step or of what is shown of it, and a
    number with a decimal point is one that the stage shows, rounded."""
    film = films()[name]
    assert (ROOT / f"notebooks/lessons/{film['lesson']}.ipynb").exists()
    trace = json.loads((RECORDINGS[0].parent / f"{film['recording']}.json").read_text("utf-8"))
    for shot in film["shots"]:
        step, stage, *_ = shot["at"].split()
        one = trace["rounds"][int(step) - 1]
        bonus = [one["bonus"], one["rows"][str(one["bonus"]["node"])], one["levels"][-1]]
        shown = {"test": one["levels"], "bonus": [bonus, one["lens"]]}.get(stage, one["rows"]["0"])
        parts = [one["tokens"], one["rows"], one["lens"], one["text"]]
        words = {trace["words"].get(str(token), "").strip() for token in numbers(parts, int)}
        assert set(re.findall("“(.*?)”", shot["say"])) <= words, shot
        decimals = re.findall(r"-?\d+\.\d+", shot["say"].replace("−", "-"))
        rounded = {f"{x:.{digits}f}" for x in numbers(shown, float) for digits in (2, 3)}
        assert set(decimals) <= rounded, shot


def numbers(part: Any, kind: type) -> Iterator[Any]:
    """All numbers of a kind in what was read from JSON."""
    if isinstance(part, dict | list):
        for one in part.values() if isinstance(part, dict) else part:
            yield from numbers(one, kind)
    elif type(part) is kind:
        yield part


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_something_happens_in_every_recording(path):
    trace = checked(json.loads(path.read_text("utf-8")))
    assert trace["tokens"] == [token for one in trace["rounds"] for token, _ in one["text"]]
    tests = [test for one in trace["rounds"] for level in one["levels"] for test in level["tests"]]
    assert path.stem == "ar" or {"accepted", "rejected"} <= {test["decision"] for test in tests}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site, built once for the slow tests."""
    for package in ("sphinx", "myst_nb", "furo", "sphinx-mathjax-offline"):
        pytest.importorskip(package, reason="make site installs it")
    folder = tmp_path_factory.mktemp("site")
    assert runpy.run_path(str(SITE / "make.py"))["build"](folder) == 0
    return folder


@pytest.mark.slow
def test_the_site_is_whole(site):
    """Links lead somewhere, named theorems are links, the first page plays and its sliders act, and
    pages of each kind fit their windows without asking a network."""
    pytest.importorskip("playwright.sync_api")
    assert faults(site) == []
    assert re.search(r'href="[^"]*#theorem-4-1"', (site / "theory/05_optimum.html").read_text())
    names = ["index", "notebooks/lessons/3_many_candidates", "notebooks/papers/diffuspec"]
    names += ["theory/12_kangaroo", "reference/specwb.rules", "gallery/kangaroo", "ledger"]
    look = runpy.run_path(str(SITE / "pictures.py"))["look"]
    pages = [f"{name}.html" for name in names]
    wrong = {page: bad for page, bad in look(site, pages, widths=(420, 1200)) if bad}
    assert wrong == {}
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        sizes: list[int] = []
        tab.on("requestfinished", lambda request: sizes.append(len(request.response().body())))
        tab.goto((site / "index.html").as_uri())
        tab.wait_for_timeout(2000)
        assert 100_000 < sum(sizes) <= 300_000
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.textContent") == "Skip to content"
        race = tab.locator(".race").bounding_box()
        assert race["y"] + race["height"] < 800  # seen without scrolling
        assert int(tab.get_by_label("frame", exact=True).input_value()) > 0
        tab.get_by_label("hardware and models").select_option("1")
        tab.locator("[name=alpha]").fill("0.9")
        tab.locator("[name=gamma]").fill("6")
        c = float(tab.locator("[name=c]").input_value())
        assert f"{speedup(0.9, 6, c):.2f}x" in tab.locator("#mountSpeed .said").inner_text()
        tab.goto((site / "notebooks/lessons/3_many_candidates.html").as_uri())
        said = tab.locator(".specwb-explorer").get_by_role("status")
        tab.locator("[name=temperature]").press("End")
        assert said.inner_text().startswith("temperature 3.0, mismatch 1.0")
        assert tab.locator(".specwb-explorer svg.main-svg").count() > 0


def test_architecture_s_floors_are_those_of_the_program():
    program = runpy.run_path(str(ROOT / "docs" / "diagrams.py"))
    assert program["floors"]().svg == (ROOT / "docs" / "floors.svg").read_text("utf-8")
    rooms = [set(rooms.split()) for rooms, _ in program["FLOORS"]]
    assert rooms == [set(rooms.split()) for rooms in reversed(FLOORS)]
