"""What ends a paper's notebook: its rows of the ledger and its figures, from shipped results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from html import escape
from typing import Any

import plotly.graph_objects as go
from IPython.display import display

from specwb.lab.papers.grid import rows as rows_of
from specwb.lab.papers.judge import Judgement
from specwb.lab.papers.paper import read_paper
from specwb.lab.papers.results import shipped, shipped_verdicts
from specwb.show import ledger
from specwb.show.pictures import draw
from specwb.show.widgets.display import show

SHOWN = 8  # rows of a ledger that are not folded away
_shipped = cache(lambda name, family: shipped(read_paper(name), family))


def results(name: str, family: str = "lab") -> list[dict[str, Any]]:
    """Return the shipped results of a paper: of the target's own heads, then of trained ones.

    They are read once, and not to be changed.

    Raises:
        PaperError: there is no paper of that name.
        ArgumentError: no results are shipped.
    """
    return _shipped(name, family)


def rows(name: str, family: str = "lab") -> list[dict[str, Any]]:
    """Compute the rows of a paper's cells, of trained heads too; see ``lab.papers.grid.row``."""
    return [row for document in results(name, family) for row in rows_of(document)]


def verdicts(name: str, family: str = "lab") -> list[Judgement]:
    """Return what became of every claim of a paper on the shipped results."""
    return shipped_verdicts(name, family)


def show_ledger(name: str, family: str = "lab") -> None:
    """Display a paper's rows of the ledger: every claim, the paper's number, ours, the verdict.

    In a terminal and in notebook tests: how many claims have which verdict.
    """
    one = ledger.judged(read_paper(name), results(name, family), family)
    lines = [ledger.claim_row(verdict) for verdict in one.verdicts]
    table = f"<table><thead>{_row(ledger.HEADER, 'th')}</thead><tbody>%s</tbody></table>"
    first, rest = (table % "".join(map(_row, some)) for some in (lines[:SHOWN], lines[SHOWN:]))
    folded = f"<details><summary>{len(lines) - SHOWN} more claims</summary>{rest}</details>"
    texts = f"{one.paper.source}. {one.measured}", f"{ledger.RULE} {ledger.PICTURE}"
    html = "".join(f"<p>{escape(text)}</p>" for text in texts)
    html += first + (folded if len(lines) > SHOWN else "")
    tally = Counter(verdict.word for verdict in one.verdicts)
    summary = f"{len(lines)} claims of {name}: " + ", ".join(f"{n} {w}" for w, n in tally.items())
    display({"text/html": html, "text/plain": summary}, raw=True)


def _row(cells: Iterable[str], tag: str = "td") -> str:
    pairs = [(escape(cell), getattr(cell, "picture", "")) for cell in cells]
    return "<tr>" + "".join(f"<{tag}>{text} {svg}</{tag}>" for text, svg in pairs) + "</tr>"


def paper_figure(name: str, which: str) -> go.Figure:
    """Draw a figure of a paper with ours: what ``specwb reproduce NAME --figure WHICH`` draws.

    Raises:
        KeyError: ``which`` is no key of ``read_paper(name).figures``.
    """
    return draw(read_paper(name), which, results(name))


def show_figures(name: str, *chosen: str) -> None:
    """Display a paper's figures with ours in the same plots, and say which others there are.

    Args:
        name: of the paper.
        chosen: which, as for :func:`paper_figure`; by default the first two. Every one is a few
            dozen kilobytes in a stored notebook.
    """
    every = list(read_paper(name).figures)
    drawn = chosen or every[:2]
    for which in drawn:
        show(paper_figure(name, which))
    if others := ", ".join(which for which in every if which not in drawn):
        print(f"Others, by specwb reproduce {name} --figure: {others}")
