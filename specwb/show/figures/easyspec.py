"""Layers side by side: what that changes in every layer, and a step on several devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from specwb.show.figures.kit import BARE, BY_NAME, Panel, axis, draw
from specwb.show.palette import DRAFT, FAINT, FIRST, INK, MARK, OTHER
from specwb.theory.analysis.layer_parallel import Partition, Span

# what a device does: name, colour, hatching
KINDS = {
    "attention": (FIRST, ""),
    "mlp": (DRAFT, "/"),
    "exchange": (MARK, "x"),
    "head": ("#56B4E9", "."),
    "verify": (OTHER, "\\"),
}


def by_layer(
    curves: Mapping[str, Sequence[float | None]],
    groups: Partition,
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
    panel = Panel(title, axis("layer", dtick=1, **BARE), axis(yaxis, low - 0.03, 1.03))
    panel.lines({name: (range(len(values)), values) for name, values in curves.items()})
    for group in groups:
        if len(group) > 1:
            band = group[0] - 0.4, group[-1] + 0.4
            panel.rule(band, type="rect", line_width=0, fillcolor=FAINT, layer="below")
    return draw(panel, 400)


def round_on_devices(spans: Sequence[Span], depth: int, title: str) -> go.Figure:
    """One step as a timeline, a bar for each device: what it does and when; a gap is waiting.
    Dotted lines part the draft's steps. Of a verification that takes long the beginning is shown.

    Args:
        spans: what each device does, in ms.
        depth: draft tokens; the step after them verifies.
        title: of the figure.
    """
    names = [f"device {d}" for d in range(1 + max(s.device for s in spans))]
    starts: dict[int, float] = {}
    for span in spans:
        starts[span.step] = min(span.start, starts.get(span.step, span.start))
    end = max(s.stop for s in spans)
    drafted = starts.get(depth, end)
    shown = min(1.01 * end, 1.4 * drafted)
    panel = Panel(title, axis("ms", 0, shown, **BARE), {**BY_NAME, "showgrid": False})
    panel.y |= {"categoryorder": "array", "categoryarray": names}
    for kind, (colour, hatch) in KINDS.items():
        mine = [s for s in spans if s.kind == kind]
        panel.bars(
            kind,
            [s.stop - s.start for s in mine],
            [names[s.device] for s in mine],
            colour,
            hatch,
            base=[round(s.start, 6) for s in mine],
            orientation="h",
            width=0.7,
            customdata=["" if s.layer is None else f", layer {s.layer}" for s in mine],
            hover="%{y}%{customdata}, from %{base:.3f} for %{x:.3f} ms",
        )
    for step, x in sorted(starts.items()):
        panel.rule(x=x, look=(INK, "dot", 1))
        words = f"verify, {end - drafted:.1f} ms" if step == depth else f"step {step + 1}"
        above = {"yref": "y domain", "yanchor": "bottom", "xanchor": "left"}
        panel.note(x, 1, words, **above, font={"size": 11})
    return draw(panel, 205 + 30 * len(names), barmode="overlay", margin_t=62)
