"""The papers' track: short notebooks that open with a drawing and end with the ledger, and what
they are made of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from books import ROOT, cells

from specwb.lab.papers import NAMES
from specwb.show.course.architectures import architecture

TRACK = ("mcsd", "diffuspec", "falcon", "kangaroo", "mcsd_ti", "easyspec", "heads", "trees")
each = pytest.mark.parametrize("name", TRACK)


def paper(name: str) -> Path:
    return ROOT / "notebooks" / "papers" / f"{name}.ipynb"


@each
def test_it_is_short(name):
    found = cells(paper(name))
    assert len(found) <= 40
    assert max(len(c.source.splitlines()) for c in found if c.cell_type == "code") <= 30


@each
def test_it_opens_with_its_drawing_and_its_claim(name):
    title, opening, *_ = cells(paper(name))
    assert "claim" in title.source
    assert f'course.architecture("{name}")' in opening.source
    (drawn,) = [o for o in opening.outputs if "image/svg+xml" in o.get("data", {})]
    assert drawn.data["text/plain"].startswith(architecture(name).title)


@each
def test_it_looks_at_its_method_and_ends_with_the_ledger(name):
    source = "\n".join(c.source for c in cells(paper(name), "code"))
    assert "specwb.microscope(" in source
    assert ("show_ledger(" in source) == (name in NAMES)


def test_papers_results_and_figures():
    pytest.importorskip("plotly")
    from specwb.show.widgets import papers

    assert len(papers.rows("falcon")) == sum(len(d["cells"]) for d in papers.results("falcon"))
    drawn = papers.paper_figure("diffuspec", "length")
    assert drawn.layout.autosize
    assert drawn.layout.width is None
    assert drawn.layout.paper_bgcolor == "rgba(0,0,0,0)"
    assert {trace.name.partition(",")[0] for trace in drawn.data} == {"paper", "here"}
    with pytest.raises(KeyError):
        papers.paper_figure("diffuspec", "none")


def test_a_ledger_counts_its_verdicts(monkeypatch):
    pytest.importorskip("plotly")
    from specwb.show.widgets import papers

    shown = []
    monkeypatch.setattr(papers, "display", lambda data, raw: shown.append(data))
    papers.show_ledger("falcon")
    (data,) = shown
    rows = papers.verdicts("falcon")
    assert data["text/plain"].startswith(f"{len(rows)} claims of falcon: ")
    assert sum(map(int, re.findall(r"[:,] (\d+) ", data["text/plain"]))) == len(rows)
    assert data["text/html"].count("<tr>") == len(rows) + 1 + (len(rows) > papers.SHOWN)
