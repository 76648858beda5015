"""The papers' track: short notebooks that open with a drawing and end with the ledger, and what
they are made of."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from specwb.analysis import adl_trace
from specwb.course.architectures import DRAWINGS, architecture
from specwb.course.drawing import WIDTH
from specwb.studies import PLACES

FOLDER = Path(__file__).parents[2] / "notebooks" / "papers"
TRACK = ("mcsd", "diffuspec", "falcon", "kangaroo", "mcsd_ti", "easyspec", "heads", "trees")
"""In the order in which each names the next one."""
each = pytest.mark.parametrize("name", TRACK)


def cells(name: str) -> list[nbformat.NotebookNode]:
    return nbformat.read(FOLDER / f"{name}.ipynb", 4).cells


@each
def test_it_is_short(name):
    found = cells(name)
    assert len(found) <= 40
    lines = [len(c.source.splitlines()) for c in found if c.cell_type == "code"]
    assert max(lines) <= 30
    assert sum(n > 12 for n in lines) <= len(lines) / 3


@each
def test_it_opens_with_its_drawing_and_its_claim(name):
    title, opening, *_ = cells(name)
    assert "claim" in title.source
    assert f'course.architecture("{name}")' in opening.source
    (drawn,) = [o for o in opening.outputs if "image/svg+xml" in o.get("data", {})]
    assert drawn.data["text/plain"].startswith(architecture(name).title)


@each
def test_it_looks_at_its_method_and_ends_with_the_ledger(name):
    source = "\n".join(c.source for c in cells(name) if c.cell_type == "code")
    assert "specwb.microscope(" in source
    assert ("show_ledger(" in source) == (name in PLACES)


def test_the_sentence_on_a_short_round_is_true_of_the_round():
    """DiffuSpec's adaptive length: what the text says of the first round is what is printed of it,
    and one token short is enough."""
    found = {cell.id: cell for cell in cells("diffuspec")}
    (k, kept) = map(
        int, re.search(r"k = (\d+): kept (\d+)", found["by-hand"].outputs[0].text).groups()
    )
    short = re.search(r"(\w+) tokens? short in the first round", found["replay-text"].source)
    assert short is None or short.group(1) == str(k - kept)
    assert "A single token short would have been enough" in found["replay-text"].source
    assert not any(step.grows for step in adl_trace([None] * 30, [29] + [30] * 29))


def test_each_leads_to_the_next():
    for name, following in zip(TRACK, [*TRACK[1:], "../write_your_own_drafter"], strict=True):
        end = cells(name)[-2].source.split("## Where to go next")[1]
        (first,) = re.findall(r"^- \*\*Next:\*\* (.+)$", end, re.MULTILINE)
        assert f"]({following}.ipynb)" in first


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_stays_on_its_sheet(name):
    """Every box and every line of text begins and ends inside; a letter is .58 of its size wide."""
    svg, drawing = architecture(name).svg, architecture(name)
    assert drawing.width == WIDTH
    number = r"(-?[\d.]+)"
    boxes = re.findall(f'<rect x="{number}" y="{number}" width="{number}" height="{number}"', svg)
    assert len(boxes) > 5
    for x, y, width, height in (map(float, box) for box in boxes):
        assert 0 <= x <= x + width <= drawing.width
        assert 0 <= y <= y + height <= drawing.height
    start = f'<text x="{number}" y="{number}" font-size="{number}"[^>]*text-anchor="start"'
    texts = re.findall(f"{start}[^>]*>([^<]*)", svg)
    assert texts
    for x, y, size, words in texts:
        assert float(x) + 0.58 * float(size) * len(words) <= drawing.width + 8, words
        assert float(y) <= drawing.height, words


def test_a_drawing_that_is_not_there():
    with pytest.raises(ValueError, match=r"there is a drawing of mcsd, .*; got 'other'"):
        architecture("other")


def test_papers_results_and_figures():
    pytest.importorskip("plotly")
    from specwb.widgets import papers

    assert papers.results("diffuspec")["rows"] is not papers.results("diffuspec")["rows"]
    drawn = papers.paper_figure("diffuspec", "length")
    assert drawn.layout.autosize
    assert drawn.layout.width is None
    assert drawn.layout.paper_bgcolor == "rgba(0,0,0,0)"
    assert {trace.name.partition(",")[0] for trace in drawn.data} == {"paper", "here"}
    with pytest.raises(KeyError):
        papers.paper_figure("diffuspec", "none")


def test_a_ledger_counts_its_verdicts(monkeypatch):
    pytest.importorskip("plotly")
    from specwb.studies import ledger
    from specwb.widgets import papers

    shown = []
    monkeypatch.setattr(papers, "display", lambda data, raw: shown.append(data))
    papers.show_ledger("falcon")
    (data,) = shown
    (rows,) = (r for t, _, _, r in ledger.sections({"falcon": papers.results("falcon")})
               if t == "falcon")  # fmt: skip
    assert data["text/plain"].startswith(f"{len(rows)} claims of falcon: ")
    assert sum(map(int, re.findall(r"[:,] (\d+) ", data["text/plain"]))) == len(rows)
    assert data["text/html"].count("<tr>") == len(rows) + 1 + (len(rows) > papers.SHOWN)
