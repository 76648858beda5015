"""The papers' results, figures and verdicts in their notebooks."""

from __future__ import annotations

import re
from html import escape

import pytest


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
    from specwb.lab.papers.judge import JUDGED
    from specwb.show.widgets import papers

    shown = []
    monkeypatch.setattr(papers, "display", lambda data, raw: shown.append(data))
    papers.show_ledger("falcon")
    (data,) = shown
    rows = papers.verdicts("falcon")
    assert data["text/plain"].startswith(f"{len(rows)} claims of falcon: ")
    assert sum(map(int, re.findall(r" (\d+)(?:,|$)", data["text/plain"]))) == len(rows)
    assert data["text/html"].count("<div") == len(rows)
    for row in rows:
        assert escape(row.claim.text) in data["text/html"]
    words = re.findall(r"<b>([a-z ]+)[^<]*</b><br><small>", data["text/html"])
    judged = [word in JUDGED for word in words]
    assert len(judged) == len(rows)
    assert judged == sorted(judged, reverse=True)
