"""Layers side by side: what that changes in every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from specwb.show.figures.kit import BARE, Panel, axis, draw
from specwb.show.palette import FAINT
from specwb.theory.analysis.layer_parallel import Partition


# what a device does: name, colour, hatching
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
