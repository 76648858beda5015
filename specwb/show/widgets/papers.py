"""What ends a paper's notebook: its rows of the ledger and its figures, from shipped results."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from html import escape
from typing import Any

import plotly.graph_objects as go
from IPython.display import display

from specwb.lab.papers.grid import rows as rows_of
from specwb.lab.papers.judge import WORDS, Judgement
from specwb.lab.papers.paper import read_paper
from specwb.lab.papers.results import shipped, shipped_verdicts
from specwb.show import ledger
from specwb.show.palette import ACCEPTED, OTHER, REJECTED
from specwb.show.pictures import draw
from specwb.show.widgets.display import show

SHOWN = 6  # claims of a ledger that are not folded away
_COLOURS = {"agrees": ACCEPTED, "more than claimed": ACCEPTED, "differs": REJECTED}


@cache
def results(name: str, family: str = "lab") -> list[dict[str, Any]]:
    """Return the shipped results of a paper: of the target's own heads, then of trained ones.

    They are read once, and not to be changed.

    Raises:
        PaperError: there is no paper of that name.
        ArgumentError: no results are shipped.
    """
    return shipped(read_paper(name), family)


def rows(name: str, family: str = "lab") -> list[dict[str, Any]]:
    """Compute the rows of a paper's cells, of trained heads too; see ``lab.papers.grid.row``."""
    return [row for document in results(name, family) for row in rows_of(document)]


verdicts = shipped_verdicts


def show_ledger(name: str, family: str = "lab") -> None:
    """Display a paper's part of the ledger, a card for each claim: the claim, the paper's ratio,
    ours with its interval as a picture and in digits, the verdict, in the order of
    :func:`specwb.show.ledger.order`.

    In a terminal and in notebook tests: how many claims have which verdict.
    """
    one = ledger.judged(read_paper(name), results(name, family), family)
    cards = [_card(verdict) for verdict in one.verdicts]
    tally = Counter(verdict.word for verdict in one.verdicts)
    counted = ", ".join(f"{word} {tally[word]}" for word in WORDS if tally[word])
    summary = f"{len(cards)} claims of {name}: {counted}"
    html = f"<p><b>{summary}.</b> {_text(one.measured)}</p>" + "".join(cards[:SHOWN])
    html += _folded(f"{len(cards) - SHOWN} more claims", cards[SHOWN:])
    html += _folded("How a verdict is given", [_text(f"{ledger.RULE} {ledger.PICTURE}")])
    display({"text/html": html, "text/plain": summary}, raw=True)


def _card(verdict: Judgement) -> str:
    """A claim in three lines of HTML, no wider than a phone."""
    text, paper, here, word, note = ledger.claim_row(verdict)
    ratios = [f"{who} {_text(x)}" for who, x in (("paper", paper), ("here", here)) if x]
    said = "; ".join([*ratios, f"<b>{word}</b>"])
    color = _COLOURS.get(verdict.word, OTHER)
    return (
        f'<div style="border-left:4px solid {color};margin:8px 0;padding:0 8px;max-width:640px">'
        f"{_text(text)}<br>{getattr(here, 'picture', '')} {said}<br>"
        f"<small>{_text(note)}</small></div>"
    )


def _folded(title: str, parts: list[str]) -> str:
    return f"<details><summary>{title}</summary>{''.join(parts)}</details>" if parts else ""


def _text(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


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
