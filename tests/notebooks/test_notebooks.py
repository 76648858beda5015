"""Notebooks are committed executed from top to bottom: nbval compares nothing for a cell that was
never run."""

from __future__ import annotations

import base64
import importlib
import re
import struct
import zlib
from statistics import median

import nbformat
import numpy as np
import pytest
from books import LESSONS, NOTEBOOKS, PAPERS, ROOT, cells, prose

from specwb.show.scope.pages import PACKED

TAG = re.compile(r"nbval-ignore-output|answer|minutes-\d+")  # what notebooks/instructor.py reads
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
        if set(cell.metadata) - {"tags"} or not all(
            map(TAG.fullmatch, cell.metadata.get("tags", ()))
        ):
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
def test_small_and_in_small_steps(path):
    assert path.stat().st_size < 400_000
    lines = [len(cell.source.splitlines()) for cell in cells(path, "code")]
    assert median(lines) <= (5 if path in NOTEBOOKS else 8)  # no lesson's cell has more than 12


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


@pytest.mark.parametrize("path", NOTEBOOKS + PAPERS, ids=lambda p: p.stem)
def test_papers_and_answers(path):
    """Every folded answer is closed; reading time, exercises and a citation are there."""
    text = prose(path)
    assert text.count("<details>") == text.count("</details>") > 0
    assert "Reading time" in text
    assert "specwb.citation(" in path.read_text("utf-8")


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


@every_notebook
def test_the_fields_words(path):
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", prose(path))
    assert re.findall(r"\b[Ll]aws?\b|\b[Cc]losing token|\b[Dd]rafted token", text) == []


@pytest.fixture
def execute(monkeypatch):
    """notebooks/execute.py"""
    pytest.importorskip("plotly")
    pytest.importorskip("nbclient")
    monkeypatch.syspath_prepend(str(ROOT / "notebooks"))
    return importlib.import_module("execute")


def test_a_png_of_few_colours(execute):
    """Decoded by hand: as large as it was, the frequent colours exact, the others near."""
    rng = np.random.default_rng(0)
    pixels = np.full((30, 40, 3), 255, np.uint8)
    pixels[5:20, 5:20] = (0, 114, 178)
    noise = rng.integers(200, 256, (5, 30, 3), np.uint8)
    pixels[22:27, 5:35] = noise
    png = execute.palette_png(pixels)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(png):
        (length,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        chunks[kind] = png[at + 8 : at + 8 + length]
        (check,) = struct.unpack(">I", png[at + 8 + length : at + 12 + length])
        assert check == zlib.crc32(kind + chunks[kind])
        at += 12 + length
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (40, 30, 8, 3, 0, 0, 0)
    palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    assert len(palette) == execute.COLOURS
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(30, 41)
    assert not rows[:, 0].any()
    again = palette[rows[:, 1:]]
    assert (again[:20] == pixels[:20]).all()
    assert np.abs(again.astype(int) - pixels).max() < 40
    assert execute.palette_png(np.zeros((1, 1, 3), np.uint8)).count(b"PLTE") == 1


def test_words_are_dark_on_a_pngs_white_page(execute):
    figure = {"figure": {"data": [], "layout": {"font": {"color": execute.INK}}}}
    assert execute._html(figure)["figure"]["layout"]["font"]["color"] == execute.DARK
    (html,) = execute._html({"controls": [["<a>", "1"], ["b", "2"]]}).values()
    assert html.count('class="control"') == 2
    assert "&lt;a&gt; <b>1</b>" in html
