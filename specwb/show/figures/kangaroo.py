"""Drafting from an early exit: what the caches hold, how sure the drafter is, and what a threshold
gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from specwb.core.errors import ArgumentError
from specwb.show.figures.kit import BARE, Panel, axis, draw, steps
from specwb.show.figures.style import visible
from specwb.show.palette import DRAFT, FAINT, FIRST, INK, MARK, OTHER, PALETTE, looks

HELD = ("nothing", "of the text", "of another text, which is not kept")
MARKS = ("", "·", "x")


def cache_slots(
    moments: Mapping[str, Sequence[Sequence[int]]],
    rows: Sequence[str],
    slots: Sequence[int],
    words: Sequence[str] = (),
) -> go.Figure:
    """What lies in every layer's cache at several moments of a step, one panel each. Empty cells
    hold nothing, dots an entry of the text, x an entry of another text, which is not kept.

    Args:
        moments: name -> ``[rows][slots]``: 0 nothing, 1 what a forward over the final text would
            write there, 2 something else.
        rows: names of the layers, the first on top.
        slots: their numbers.
        words: of the tokens that go there, below each panel.
    """
    names = [f"{slot}<br>{visible(word)}" for slot, word in zip(slots, words)]
    panels: list[Panel | None] = []
    for moment, table in moments.items():
        panel = Panel(moment, axis(tickvals=list(slots), tickfont={"size": 9}, **BARE))
        panel.x |= {"ticktext": names or list(map(str, slots)), "tickangle": 0}
        panel.y = axis(autorange="reversed", type="category", tickfont={"size": 10}, **BARE)
        text = [[MARKS[held] for held in row] for row in table]
        scale, held = steps(FAINT, FIRST, DRAFT), [[HELD[x] for x in row] for row in table]
        hover = "%{y}, slot %{x}: %{customdata}"
        more = {"written": True, "zmax": 2, "xgap": 2, "customdata": held, "hover": hover}
        panels.append(panel.cells(slots, rows, table, scale, text, **more))
    if len(panels) % 2:
        panels.append(None)
    pairs = [panels[at : at + 2] for at in range(0, len(panels), 2)]
    height = len(pairs) * (84 + 16 * len(rows))
    return draw(pairs, 80 + height, gaps=(0.12, 84 / height))


def densities(kept: Sequence[float], rejected: Sequence[float], bins: int = 10) -> go.Figure:
    """How sure the drafter was of tokens that were kept and of tokens that were rejected: two
    densities on [0, 1], and the share kept by sureness with its binomial standard error.

    Args:
        kept, rejected: values in [0, 1], one of each at least.
        bins: of equal width.
    Raises:
        ArgumentError: a value is outside [0, 1].
    """
    if wrong := [v for v in (*kept, *rejected) if not 0 <= v <= 1]:
        raise ArgumentError(f"values must be in [0, 1], got {wrong[0]}")
    counts = [np.histogram(values, bins, (0, 1))[0] for values in (kept, rejected)]
    sure = "largest probability of the drafter"
    density = Panel("density of each kind", axis(sure, 0, 1), {"rangemode": "tozero"})
    edges = np.linspace(0, 1, bins + 1)
    for name, count, look in zip(("kept", "rejected"), counts, PALETTE):
        heights = count * bins / count.sum()
        label, shape = f"{name}, {count.sum()}", {"size": 0, "line_shape": "hv"}
        density.line(label, edges, [*heights, heights[-1]], look, **shape)
    share = Panel("share kept", axis(sure, 0, 1), axis("", 0, 1.02))
    seen = counts[0] + counts[1]
    at, n = (edges[:-1] + 0.5 / bins)[seen > 0], seen[seen > 0]
    ratio = counts[0][seen > 0] / n
    error = {"type": "data", "array": np.sqrt(ratio * (1 - ratio) / n).tolist()}
    share.line("share kept", at, ratio, (PALETTE[2][0], "solid", "diamond"), error_y=error)
    share.line("as sure as right", [0, 1], [0, 1], (OTHER, "dot", ""), size=0)
    base = len(kept) / (len(kept) + len(rejected))
    share.line(f"of all, {base:.2f}", [0, 1], [base, base], (INK, "dashdot", ""), size=0)
    return draw([[density, share]], 380, widths=(0.55, 0.45), gaps=(0.12, 0))


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
