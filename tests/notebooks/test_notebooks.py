"""Notebooks are committed executed from top to bottom: nbval compares nothing for a cell that was
never run."""

from __future__ import annotations

import base64
import importlib
import re

import nbformat
import pytest
from books import LESSONS, NOTEBOOKS, PAPERS, ROOT, cells, prose

from specwb.show.scope.pages import PACKED

TAGS = {"nbval-ignore-output", "answer"}
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS + LESSONS + PAPERS, ids=lambda p: p.stem)


def problems(notebook: nbformat.NotebookNode) -> list[str]:
    """What is wrong with a notebook that is to be committed."""
    found = []
    cells = [c for c in notebook.cells if c.cell_type == "code"]
    if not cells:
        found.append("no code cells")
    for place, cell in enumerate(cells, 1):
        if cell.execution_count is None:
            found.append(f"{cell.id}: never run")
        elif cell.execution_count != place:
            found.append(f"{cell.id}: run as number {cell.execution_count}, it is number {place}")
        for output in cell.outputs:
            if output.output_type == "error":
                found.append(f"{cell.id}: ends in {output.ename}")
            if output.get("name") == "stderr":
                found.append(f"{cell.id}: writes to stderr")
        if set(cell.metadata) - {"tags"} or set(cell.metadata.get("tags", ())) - TAGS:
            found.append(f"{cell.id}: metadata {dict(cell.metadata)}")
    if "widgets" in notebook.metadata:
        found.append("widget state is saved")
    return found


@every_notebook
def test_committed_as_it_ran(path):
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    assert problems(notebook) == []
    assert notebook.metadata.kernelspec.name == "python3"


@every_notebook
def test_it_is_small(path):
    assert path.stat().st_size < 400_000


@every_notebook
def test_pictures_come_with_a_png_and_a_line_of_text(path):
    """GitHub, nbviewer and PDFs show the PNG; nbval, a terminal and a screen reader the line."""
    for cell in cells(path):
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            # of the project's own kinds of output only a microscope's packed recordings stay
            assert {mime for mime in data if "specwb" in mime} <= {PACKED}, cell.id
            if "text/html" in data:  # a prediction or the score, which can be read as it stands
                assert "specwb-still" not in data["text/html"], cell.id  # a figure is a PNG in it
            elif any("plotly" in mime or "widget" in mime for mime in data):
                assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG"), cell.id
                assert data.get("text/plain", "").strip(), cell.id
                assert "\n" not in data["text/plain"], cell.id


def test_each_notebook_leads_to_the_next():
    """From lesson 1 on, what is named first as next leads through all lessons in their order, then
    through every other notebook, to the last one, which names none."""
    way = [LESSONS[0]]
    while len(way) <= len(LESSONS + PAPERS + NOTEBOOKS):
        (following,) = re.findall(r"\*\*Next:\*\* (.+)", prose(way[-1]))
        links = re.findall(r"\]\(([^)]+\.ipynb)\)", following)
        if not links:
            break
        way.append((way[-1].parent / links[0]).resolve())
    assert way[: len(LESSONS)] == LESSONS
    assert sorted(way) == sorted(LESSONS + PAPERS + NOTEBOOKS)


@every_notebook
def test_explorers_stay_where_the_text_says(path):
    """A demonstration moves an explorer with ``explorer.at(..)``, which puts it back."""
    moves = re.compile(r"^[^#\n]*\b\w+\.value\b[^=\n]*(=(?!=)| in )", re.MULTILINE)
    assert [cell.id for cell in cells(path, "code") if moves.search(cell.source)] == []


@pytest.fixture
def script(monkeypatch):
    """A module of notebooks/."""
    pytest.importorskip("nbclient")
    monkeypatch.syspath_prepend(str(ROOT / "notebooks"))
    return importlib.import_module


def test_slides_have_questions_and_no_code(script):
    slides = script("slides")
    notebook = slides.slides(nbformat.read(LESSONS[0], 4))
    kinds = [cell.metadata["slideshow"]["slide_type"] for cell in notebook.cells]
    assert kinds.count("slide") > 20
    assert kinds[-1] == "skip"  # homework, and what is next
    page, _ = slides.SlidesExporter(exclude_input=True).from_notebook_node(notebook)
    assert "I have made my guess: show the answer" in page
    assert "forward_ms(n)" not in page
