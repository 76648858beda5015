"""Drafting from an early exit: what a threshold gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from specwb.show.figures.kit import Panel, axis, draw
from specwb.show.palette import DRAFT, FIRST, INK, MARK, looks


def stopping(
    etas: Sequence[float],
    tau: Sequence[float],
    drafted: Sequence[float],
    speed: Sequence[float],
    chosen: int,
    measured: Mapping[float, tuple[float, float]],
    paper: Mapping[str, Mapping[float, tuple[float, float]]],
) -> go.Figure:
    """What a threshold gives: CR (tokens per step) and speedup, of these models (left) and as
    published (right).

    Args:
        etas: thresholds.
        tau, drafted, speed: at each of them tokens per step, draft tokens per step, and predicted
            speedup.
        chosen: the number of the chosen threshold.
        measured: threshold -> (CR, speedup).
        paper: name -> the same as published.
    """
    titles = [
        f"{of}, {whose}" for of in ("CR", "speedup") for whose in ("these models", "paper's 7B")
    ]
    panels = [Panel(title, axis("", -0.03, 1.03, zeroline=False)) for title in titles]
    tokens, cr, here, published = panels
    drafts, at, solid = [d + 1 for d in drafted], etas[chosen], (FIRST, "solid", "")
    filled = {"fill": "tonexty", "fillcolor": "rgba(230,159,0,0.18)"}
    tokens.line("CR: kept + 1", etas, tau, solid, size=0, width=3)
    wasted = "drafted + 1; between: wasted"
    tokens.line(wasted, etas, drafts, (DRAFT, "dot", ""), size=0, **filled)
    here.line("", etas, speed, solid, size=0, width=3, hover="eta %{x}: %{y:.2f}x")
    ring, star = (INK, "", "circle-open"), {"size": 13, "marker_line_width": 3}
    tokens.points("chosen", [at, at], [tau[chosen], drafts[chosen]], ring, **star)
    here.points("chosen", [at], [speed[chosen]], ring, **star, showlegend=False)
    for which, panel in enumerate((tokens, here)):
        values = [pair[which] for pair in measured.values()]
        look = (MARK, "", "diamond")
        panel.points("measured", measured, values, look, size=10, showlegend=which == 0)
    for (name, curve), look in zip(paper.items(), looks(paper).values(), strict=True):
        for which, panel in enumerate((cr, published)):
            values = [pair[which] for pair in curve.values()]
            panel.line(f"paper, {name}", curve, values, look, size=7, showlegend=which == 0)
    for panel in (tokens, cr):
        panel.y = {"rangemode": "tozero"}
    for panel in (here, published):
        panel.rule(y=1).x["title"] = {"text": "threshold eta", "standoff": 4}
    return draw([[tokens, cr], [here, published]], 480, gaps=(0.09, 0.17))
