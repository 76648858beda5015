"""The lecturer's slides: question, click, answer, why; no code; nothing from a network."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import sys
from pathlib import Path

import nbformat
import pytest
from browsing import chromium

from specwb.show import course
from specwb.show.scope.pages import PACKED, packed

ROOT = Path(__file__).parents[2]
LESSON = ROOT / "notebooks" / "lessons" / "2_the_rejection_rule.ipynb"
KEY = "2.keep"
TRACE = json.loads((ROOT / "data/recordings/front.json").read_text("utf-8"))
new = nbformat.v4


@pytest.fixture
def instructor(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "notebooks"))
    return importlib.import_module("instructor")


def lesson() -> nbformat.NotebookNode:
    """A heading, a question, lines, a microscope, a solution and homework."""
    lines = new.new_output("stream", text="0.150  a line\n")
    data = {"image/png": "abcd", PACKED: packed([TRACE]), "text/plain": "s"}
    marked = {"tags": ["minutes-7"]}
    return new.new_notebook(
        cells=[
            new.new_markdown_cell("## Why\n[a page](../x.md), $p$", metadata=marked),
            new.new_code_cell(f'course.ask("{KEY}")'),
            new.new_code_cell("print(secret_code)", outputs=[lines]),
            new.new_code_cell("show(scope)", outputs=[new.new_output("display_data", data)]),
            new.new_markdown_cell("A text without a heading", metadata=marked),
            new.new_code_cell('course.grade("x", y)', outputs=[lines]),
            new.new_markdown_cell(
                "<details><summary>Answer</summary>solved</details>", metadata={"tags": ["answer"]}
            ),
            new.new_markdown_cell("## Homework\nfor_tomorrow"),
        ]
    )


def test_slides_without_code_up_to_the_homework(instructor):
    title, question, lines, scope, text = instructor.slides(lesson())
    assert "a page, $p$" in title.body
    assert "7 minutes" in "".join(title.notes)
    assert {one.section for one in (title, question, lines, scope, text)} == {"Why"}
    assert lines.body == "<pre>0.150  a line\n</pre>"  # not below the question
    assert "mount(document" in scope.body
    assert "solved" in "".join(text.notes)
    deck = instructor.deck("x", lesson())
    assert "secret_code" not in deck
    assert "for_tomorrow" not in deck


def test_a_question_opens_its_answer_and_then_the_reason(instructor):
    body, notes = instructor.slides(lesson())[1].body, instructor.slides(lesson())[1].notes
    asked = course.ask(KEY)
    first = re.findall(r'<li class="fragment[^"]*" data-fragment-index="0">(.*?) <', body)
    assert first == asked.answer
    shown, _, after = body.partition('<div class="fragment" data-fragment-index="1">')
    assert asked.because not in shown
    assert asked.because in after
    for why in filter(None, asked.choices.values()):
        assert why in "".join(notes)
        assert why not in body


def test_the_plan_names_sections_and_not_paragraphs(instructor):
    assert "## one: 14 minutes\n\n- 7 min: Why\n- 7 min: Why\n" in instructor.plan(
        {"one": lesson()}
    )


def test_the_page_has_code_and_open_answers(instructor):
    page = instructor.page("x", lesson())
    assert "secret_code" in page
    assert "<details open>" in page
    assert "Why <em>(7 min)</em>" in page


@pytest.mark.slow
def test_slides_in_a_browser_without_a_network(instructor, tmp_path, monkeypatch):
    pytest.importorskip("sphinx_revealjs", reason="make instructor installs it")
    listen = runpy.run_path(str(ROOT / "docs" / "site" / "pictures.py"))["_listen"]
    monkeypatch.setattr(sys, "argv", ["instructor", LESSON.stem, "--out", str(tmp_path)])
    instructor.main()
    wrong: list[str] = []
    with chromium() as browser:
        for name in (f"{LESSON.stem}.slides.html", f"{LESSON.stem}.html"):
            tab = browser.new_page()
            listen(tab, wrong)
            tab.goto((tmp_path / name).as_uri())
            tab.wait_for_selector("mjx-container", state="attached")
            if "slides" in name:
                reason = tab.locator("section.present .body").get_by_text(course.ask(KEY).because)
                while not tab.locator("section.present h3").is_visible():
                    tab.keyboard.press("ArrowRight")
                seen = []
                for _ in range(3):
                    marks = tab.locator("section.present .fragment.visible").count()
                    seen.append(
                        (marks > 0, "visible" in reason.locator("..").get_attribute("class"))
                    )
                    tab.keyboard.press("ArrowRight")
                assert seen == [(False, False), (True, False), (True, True)]
    assert wrong == []
