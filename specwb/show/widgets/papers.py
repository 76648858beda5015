"""What ends a paper's notebook: its rows of the ledger and its figures, from shipped results."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from html import escape

import plotly.graph_objects as go
from IPython.display import display

from specwb.core.errors import ArgumentError
from specwb.lab.studies import run, study_of
from specwb.lab.studies.study import Document
from specwb.lab.studies.verdicts import ALPHA, POWER
from specwb.show import ledger
from specwb.show.pictures import draw
from specwb.show.widgets.display import show

SHOWN = 8  # rows of a ledger that are not folded away
COLUMNS = (
    f"Intervals hold at {1 - ALPHA:.0%} over prompts; the joint ones hold for all claims of the "
    "paper at once, and the verdict is about them. Detectable: the smallest true ratio that so "
    f"many prompts show to be above 1 with probability {POWER:.0%}. Cells are settings, and a "
    "claim compares two."
)


@cache
def _judged(name: str) -> str:
    study = study_of(name)
    document, ablation = run.shipped(study)
    if document is None:
        raise ArgumentError(f"there are no shipped results of {name}")
    return json.dumps(study.report(document, ablation))


def results(name: str) -> Document:
    """Return the shipped results of a paper's study, judged anew as they are read.

    Raises:
        KeyError: there is no study of that name, see :data:`specwb.lab.studies.PLACES`.
        ArgumentError: no results are shipped.
    """
    return json.loads(_judged(name))


def _kind(verdict: str) -> str:
    """A verdict as it is counted: one that is not comparable with the kind of its reason."""
    word, _, why = verdict.partition(";")[0].partition(" (")
    return f"{word} ({re.split('[:)]', why)[0]})" if word == "not comparable" else word


def show_ledger(name: str) -> None:
    """Display a paper's rows of the ledger: every claim, the paper's number, ours, the verdict.

    In a terminal and in notebook tests: how many claims have which verdict.
    """
    sections = ledger.sections({name: results(name)})
    _, text, header, rows = next(section for section in sections if section[0] == name)
    head = "".join(f"<th>{escape(column)}</th>" for column in header)
    lines = ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    table = f"<table><thead><tr>{head}</tr></thead><tbody>%s</tbody></table>"
    first, rest = (table % "".join(some) for some in (lines[:SHOWN], lines[SHOWN:]))
    more = f"<details><summary>{len(lines) - SHOWN} more claims</summary>{rest}</details>"
    folded = more if len(lines) > SHOWN else ""
    verdict = header.index("verdict")
    tally = Counter(_kind(row[verdict]) for row in rows)
    summary = f"{len(rows)} claims of {name}: " + ", ".join(f"{n} {w}" for w, n in tally.items())
    html = f"<p>{escape(text)}</p><p>{COLUMNS}</p>{first}{folded}"
    display({"text/html": html, "text/plain": summary}, raw=True)


def paper_figure(name: str, which: str) -> go.Figure:
    """Draw a figure of a paper with ours: what ``specwb reproduce NAME --figure WHICH`` draws.

    Raises:
        KeyError: ``which`` is no key of ``study_of(name).figures``.
    """
    return draw(study_of(name).figures[which], results(name))


def show_figures(name: str, *chosen: str) -> None:
    """Display a paper's figures with ours in the same plots, and say which others there are.

    Args:
        chosen: which, as for :func:`paper_figure`; by default the first two. Every one is a few
            dozen kilobytes in a stored notebook.
    """
    every = list(study_of(name).figures)
    drawn = chosen or every[:2]
    for which in drawn:
        show(paper_figure(name, which))
    if others := ", ".join(which for which in every if which not in drawn):
        print(f"Others, by specwb reproduce {name} --figure: {others}")
