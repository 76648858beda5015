"""Layers side by side: which, what that changes in every layer, a cache that drifts, a step on
several devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from specwb.show.figures.kit import BARE, BY_NAME, Panel, axis, draw
from specwb.show.palette import DRAFT, FAINT, FIRST, INK, MARK, OTHER, looks
from specwb.theory.analysis.layer_parallel import Span

Groups = Sequence[Sequence[int]]
# what a device does: name, colour, hatching
KINDS = {
    "attention": (FIRST, ""),
    "mlp": (DRAFT, "/"),
    "exchange": (MARK, "x"),
    "head": ("#56B4E9", "."),
    "verify": (OTHER, "\\"),
}


def grouped(rows: Mapping[str, Groups], title: str) -> go.Figure:
    """Which layers run side by side: a row for each way, its groups as boxes with the numbers of
    their layers.

    Args:
        rows: name -> groups of consecutive layers, all layers of the same model; the first on top.
        title: of the figure.
    """
    one = Panel(title, axis("layer", **BARE), _rows(list(rows)))
    for name, colour in (("side by side", FIRST), ("alone", FAINT)):
        boxes = [
            (way, group)
            for way, groups in rows.items()
            for group in groups
            if (len(group) > 1) == (name == "side by side")
        ]
        one.bars(
            name,
            [len(group) - 0.12 for _, group in boxes],
            [way for way, _ in boxes],
            colour,
            "" if colour == FIRST else "/",
            base=[group[0] - 0.44 for _, group in boxes],
            orientation="h",
            width=0.7,
            text=[" ".join(map(str, group)) for _, group in boxes],
            textposition="inside",
            insidetextanchor="middle",
            hover="%{y}: layers %{text}",
        )
    return draw(one, 140 + 32 * len(rows), barmode="overlay")


def by_layer(
    curves: Mapping[str, Sequence[float | None]],
    groups: Groups,
    title: str,
    yaxis: str,
    least: float = 0.0,
) -> go.Figure:
    """Curves over layers 0, 1, ..; layers that run side by side have a common grey band behind
    them.

    Args:
        curves: name -> value by layer, None where there is none.
        groups: of consecutive layers.
        title, yaxis: of the figure and of the values, which are 1 at most.
        least: the axis goes down to it at least.
    """
    low = min(least, *(v for values in curves.values() for v in values if v is not None))
    one = Panel(title, axis("layer", dtick=1, **BARE), axis(yaxis, low - 0.03, 1.03))
    one.lines({name: (range(len(values)), values) for name, values in curves.items()})
    for group in groups:
        if len(group) > 1:
            band = group[0] - 0.4, group[-1] + 0.4
            one.rule(band, type="rect", line_width=0, fillcolor=FAINT, layer="below")
    return draw(one, 400)


def cache_drift(
    errors: Mapping[str, Sequence[float]], layers: Mapping[str, Sequence[float]]
) -> go.Figure:
    """How far the entries of a draft's cache are from exact ones: by step (left), and by layer in
    one of the steps (right).

    Args:
        errors: name -> relative error in step 1, 2, ..;
        layers: name -> relative error of layer 0, 1, ..
    """
    left = Panel("by step", axis("step", **BARE), axis("relative error", rangemode="tozero"))
    right = Panel("by layer, last step", axis("layer", **BARE), {"rangemode": "tozero"})
    look = looks([*errors, *layers])
    for panel, curves, first in ((left, errors, 1), (right, layers, 0)):
        for name, values in curves.items():
            xs = range(first, first + len(values))
            once = panel is left or name not in errors
            panel.line(name, xs, values, look[name], size=7, showlegend=once)
    return draw([[left, right]], 420, gaps=(0.14, 0))


def round_on_devices(spans: Sequence[Span], depth: int, title: str, unit: str = "ms") -> go.Figure:
    """One step as a timeline, a bar for each device: what it does and when; a gap is waiting.
    Dotted lines part the draft's steps. Of a verification that takes long the beginning is shown.

    Args:
        spans: what each device does.
        depth: draft tokens; the step after them verifies.
        title: of the figure.
        unit: of the times.
    """
    names = [f"device {d}" for d in range(1 + max(s.device for s in spans))]
    starts: dict[int, float] = {}
    for span in spans:
        starts[span.step] = min(span.start, starts.get(span.step, span.start))
    end = max(s.stop for s in spans)
    drafted = starts.get(depth, end)
    shown = min(1.01 * end, 1.4 * drafted)
    one = Panel(title, axis(unit, 0, shown, **BARE), _rows(names))
    for kind, (colour, hatch) in KINDS.items():
        mine = [s for s in spans if s.kind == kind]
        one.bars(
            kind,
            [s.stop - s.start for s in mine],
            [names[s.device] for s in mine],
            colour,
            hatch,
            base=[round(s.start, 6) for s in mine],
            orientation="h",
            width=0.7,
            customdata=["" if s.layer is None else f", layer {s.layer}" for s in mine],
            hover=f"%{{y}}%{{customdata}}, from %{{base:.3f}} for %{{x:.3f}} {unit}",
        )
    for step, x in sorted(starts.items()):
        one.rule(x=x, look=(INK, "dot", 1))
        words = f"verify, {end - drafted:.1f} {unit}" if step == depth else f"step {step + 1}"
        above = {"yref": "y domain", "yanchor": "bottom", "xanchor": "left"}
        one.note(x, 1, words, **above, font={"size": 11})
    return draw(one, 205 + 30 * len(names), barmode="overlay", margin_t=62)


def _rows(names: list[str]) -> dict[str, Any]:
    """An axis of names, the first on top."""
    return {**BY_NAME, "categoryorder": "array", "categoryarray": names, "showgrid": False}
