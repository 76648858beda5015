"""The lessons: what each has, how long it is, and that its own answers are right."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import nbformat
import pytest

from specwb import course

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks" / "lessons").glob("*.ipynb"))
every_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
LINES = 12  # of a cell at most
MINUTES = 50


def cells(path: Path, kind: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == kind]


def prose(path: Path) -> str:
    return "\n\n".join(cell.source for cell in cells(path, "markdown"))


def calls(path: Path, name: str) -> list[ast.Call]:
    """Calls of ``course.NAME`` or ``specwb.course.NAME`` in a lesson's code."""
    found = []
    for cell in cells(path, "code"):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(f"course.{name}"):
                found.append(node)
    return found


@every_lesson
def test_small_cells_and_about_twenty_five_of_them(path):
    code = cells(path, "code")
    assert 18 <= len(code) <= 32
    assert max(len(cell.source.splitlines()) for cell in code) <= LINES
    imports = [line for line in code[0].source.splitlines() if re.match("import|from", line)]
    assert len(imports) <= 3


@every_lesson
def test_a_drawing_comes_first(path):
    outputs = [output for cell in cells(path, "code") for output in cell.outputs]
    assert "image/svg+xml" in outputs[0].data


@every_lesson
def test_asks_before_it_shows(path):
    """Five predictions or more, whose answers are computed and not written into the cell."""
    asked = calls(path, "predict")
    assert len(asked) >= 5
    for call in asked:
        (answer,) = [keyword.value for keyword in call.keywords if keyword.arg == "answer"]
        assert not isinstance(answer, ast.Constant), ast.unparse(call)
    assert len(calls(path, "score")) == 1


@every_lesson
def test_a_folded_answer_is_not_open_in_the_same_cell(path):
    for cell in cells(path, "code"):
        if "course.predict(" not in cell.source:
            continue
        (output,) = cell.outputs  # nothing beside the question
        assert "<details>" in output.data["text/html"]
        assert output.data["text/plain"].startswith("Predict: ")


@every_lesson
def test_fifty_minutes(path):
    instructor = importlib.import_module("instructor")
    notebook = nbformat.read(path, 4)
    assert sum(map(instructor.minutes, notebook.cells)) == MINUTES
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            assert instructor.minutes(cell) or "next" in cell.source, cell.source.splitlines()[0]


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "notebooks"))


@every_lesson
def test_three_exercises_whose_answers_are_right(path):
    """What stands in the folded answers is graded; what stands in the cells is not yet right."""
    names = [ast.literal_eval(call.args[0]) for call in calls(path, "grade")]
    assert len(names) == len(set(names)) >= 3
    answers = "\n\n".join(
        cell.source for cell in cells(path, "markdown") if "answer" in cell.metadata.get("tags", ())
    )
    space: dict = {}  # a reader who pastes an answer has no more
    for block in re.findall(r"```python\n(.*?)```", answers, re.DOTALL):
        exec(block, space)
    for name in names:
        assert course.grade(name, space[name]).right, name
    outputs = "\n".join(
        str(output.get("data", {}).get("text/plain", "") or output.get("text", ""))
        for cell in cells(path, "code")
        for output in cell.outputs
    )
    for name in names:
        assert f"{name}: not yet" in outputs


@every_lesson
def test_recap_of_five_sentences_and_the_way_on(path):
    text = prose(path)
    recap = text.split("## Recap")[1].split("\n## ")[0]
    assert len(re.findall(r"^\d\. ", recap, re.MULTILINE)) == 5
    assert "**Next:**" in text
    assert "specwb.citation(" in "\n".join(cell.source for cell in cells(path, "code"))
    assert text.count("<details>") == text.count("</details>") > 0


def test_the_instructors_edition():
    """From a lesson of two cells: answers are open, minutes are said, the buttons are gone."""
    instructor = importlib.import_module("instructor")
    new = nbformat.v4
    out = new.new_output(
        "display_data",
        {"text/html": "<details>a</details>", "application/vnd.jupyter.widget-view+json": {}},
    )
    notebook = new.new_notebook(
        cells=[
            new.new_markdown_cell("## Why\n<details>b</details>", metadata={"tags": ["minutes-7"]}),
            new.new_code_cell("1", outputs=[out]),
            new.new_code_cell("2"),
        ]
    )
    made = instructor.edition(notebook)
    assert made.cells[0].source == "## Why *(7 min)*\n<details open>b</details>"
    assert made.cells[1].outputs[0].data == {"text/html": "<details open>a</details>"}
    kinds = [cell.metadata.slideshow.slide_type for cell in made.cells]
    assert kinds == ["slide", "subslide", "-"]
    assert "## one: 7 minutes\n\n- 7 min: Why\n" in instructor.plan({"one": notebook})
    assert "<details>b" in notebook.cells[0].source  # the lesson itself stays as it was


def test_no_term_before_its_definition():
    """Read in order, a lesson emphasises a word of the glossary where it explains it, and no prose
    has the word before. Left out are headings, links, code and what a lesson's first cell says one
    will be able to do."""
    known = {
        *("distribution", "uniform", "seed"),  # what the reader brings along
        "lab",  # explained in lesson 1 as the name that is typed, `"lab"`
    }
    glossary = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    rows = re.findall(r"^\| ([^|]*\*\*[^|]*) \|", glossary, re.M)
    terms = {term for row in rows for term in re.findall(r"\*\*([^*]+)\*\*", row)} - known
    assert {"draft model", "lossless", "τ"} <= terms
    explained, early = set(), []
    for path in LESSONS:
        for at, cell in enumerate(cells(path, "markdown")):
            read = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)|^#.*$", "", cell.source, flags=re.M)
            for term in terms - explained:
                word = re.compile(rf"(\*{{0,2}})\b{term}s?\b(\*{{0,2}})", re.IGNORECASE)
                for match in word.finditer(read):
                    if all(match.groups()):
                        explained.add(term)
                        break
                    if at:
                        early.append(f"{path.stem}, {cell.id}: {term}")
    assert not early
