"""Drafting from an early exit: what the caches hold, how sure the drafter is, beams, and what a
threshold gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from specwb.show.figures.kit import BARE, Panel, axis, draw, errors, steps
from specwb.show.figures.mcsd_ti import bin_of
from specwb.show.figures.style import visible
from specwb.show.palette import DRAFT, FAINT, FIRST, INK, MARK, OTHER, PALETTE, looks

HELD = ("nothing", "of the text", "of another text, which is not kept")


def cache_slots(
    moments: Mapping[str, Sequence[Sequence[int]]],
    rows: Sequence[str],
    slots: Sequence[int],
    words: Sequence[str] = (),
) -> go.Figure:
    """What lies in every layer's cache at several moments of a step, one panel each.

    Args:
        moments: name -> ``[rows][slots]``: 0 nothing, 1 what a forward over the final text would
            write there, 2 something else.
        rows: names of the layers, the first on top.
        slots: their numbers.
        words: of the tokens that go there, below each panel.
    """
    named = [f"{slot}<br>{visible(word)}" for slot, word in zip(slots, words)]
    panels: list[Panel | None] = []
    for i, (moment, table) in enumerate(moments.items()):
        x = {"tickvals": list(slots), "ticktext": named or list(map(str, slots)), "tickangle": 0}
        y = {"autorange": "reversed", "type": "category", "dtick": 1, "showticklabels": i % 2 == 0}
        one = Panel(moment, {**x, "tickfont": {"size": 9}, **BARE})
        one.y = {**y, "tickfont": {"size": 10}, **BARE}
        panels.append(
            one.cells(
                slots,
                rows,
                table,
                steps(FAINT, FIRST, DRAFT),
                [["" if not held else "x" if held == 2 else "·" for held in row] for row in table],
                hover="%{y}, slot %{x}: %{customdata}",
                written=True,
                zmax=2,
                xgap=2,
                customdata=[[HELD[held] for held in row] for row in table],
            )
        )
        if i == 0:  # a matrix has no legend
            for name, look in zip(HELD[1:], ((FIRST, "", "square"), (DRAFT, "", "square-x-open"))):
                one.points(name, [None], [None], look, size=12)
    down, panel = -(-len(panels) // 2), 84 + 16 * len(rows)
    panels += [None] * (2 * down - len(panels))
    return draw(
        [panels[at : at + 2] for at in range(0, len(panels), 2)],
        80 + down * panel,
        gaps=(0.03, 84 / (down * panel)),
    )


def densities(kept: Sequence[float], rejected: Sequence[float], bins: int = 10) -> go.Figure:
    """How sure the drafter was of tokens that were kept and of tokens that were rejected: two
    densities on [0, 1], and the share kept by sureness with its binomial standard error.

    Args:
        kept, rejected: values in [0, 1], one of each at least.
        bins: of equal width.
    Raises:
        ValueError: a value is outside [0, 1].
    """
    counts = [[0] * bins, [0] * bins]
    for values, count in zip((kept, rejected), counts, strict=True):
        for value in values:
            count[bin_of(value, bins)] += 1
    sure = "largest probability of the drafter"
    density = Panel("density of each kind", axis(sure, 0, 1), {"rangemode": "tozero"})
    edges = [i / bins for i in range(bins + 1)]
    for name, count, look in zip(("kept", "rejected"), counts, PALETTE):
        heights = [n * bins / sum(count) for n in [*count, count[-1]]]
        more = {"line_shape": "hv", "hover": "from %{x}: %{y:.2f}"}
        density.line(f"{name}, {sum(count)}", edges, heights, look, size=0, width=3, **more)
    share = Panel("share kept", axis(sure, 0, 1), axis("", 0, 1.02))
    seen = [(i, a, a + b) for i, (a, b) in enumerate(zip(*counts, strict=True)) if a + b]
    share.line(
        "share kept",
        [(i + 0.5) / bins for i, _, _ in seen],
        [a / n for _, a, n in seen],
        (PALETTE[2][0], "solid", "diamond"),
        customdata=[n for _, _, n in seen],
        error_y=errors((a / n * (1 - a / n) / n) ** 0.5 for _, a, n in seen),
        hover="around %{x}: %{y:.2f} of %{customdata}",
    )
    base, both = len(kept) / (len(kept) + len(rejected)), {"size": 0, "width": 1.5}
    share.line("as sure as right", [0, 1], [0, 1], (OTHER, "dot", ""), hoverinfo="skip", **both)
    share.line(f"of all, {base:.2f}", [0, 1], [base, base], (INK, "dashdot", ""), **both)
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
    published (right). The axes of speedups are as long as the values, so that the best is seen.

    At each of ``etas``: tokens per step, draft tokens per step, predicted speedup. ``measured`` and
    each curve of the ``paper``: threshold -> (CR, speedup).
    """
    drafts = [d + 1 for d in drafted]
    titles = ("CR, these models", "CR, the paper's 7B", "speedup, these models")
    panels = [Panel(title) for title in (*titles, "speedup, the paper's 7B")]
    tokens, cr, here, published = panels
    for one in panels:
        words = "threshold eta" if one in (here, published) else ""
        one.x = axis(words, -0.03, 1.03, zeroline=False)
        one.y = {"rangemode": "tozero"}
    solid, wasted, plain = (FIRST, "solid", ""), "drafted + 1; between: wasted", {"size": 0}
    filled = {"fill": "tonexty", "fillcolor": "rgba(230,159,0,0.18)"}
    tokens.line("CR: kept + 1", etas, tau, solid, width=3, **plain)
    tokens.line(wasted, etas, drafts, (DRAFT, "dot", ""), **plain, **filled)
    here.line("predicted", etas, speed, solid, width=3, **plain, showlegend=False)
    ring, star = (INK, "", "circle-open"), {"size": 13, "marker_line_width": 3}
    at = etas[chosen]
    tokens.points("chosen", [at, at], [tau[chosen], drafts[chosen]], ring, **star)
    here.points("chosen", [at], [speed[chosen]], ring, **star, showlegend=False)
    for which, one in enumerate((tokens, here)):
        values = [pair[which] for pair in measured.values()]
        more = {"size": 10, "showlegend": which == 0}
        one.points("measured", measured, values, (MARK, "", "diamond"), **more)
    for (name, curve), look in zip(paper.items(), looks(paper).values(), strict=True):
        for which, one in enumerate((cr, published)):
            values = [pair[which] for pair in curve.values()]
            more = {"size": 7, "showlegend": which == 0}
            one.line(f"paper, {name}", curve, values, look, **more)
    for one in (here, published):
        one.rule(y=1)
        values = [1, *(y for trace in one.traces for y in trace.y)]
        room = 0.08 * (max(values) - min(values)) or 0.1
        one.y = axis("", min(values) - room, max(values) + room)
    return draw([[tokens, cr], [here, published]], 600, gaps=(0.09, 0.12))
