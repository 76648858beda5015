"""Methods side by side, by kind of prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from specwb.errors import ArgumentError
from specwb.figures.style import OTHER, PALETTE, figure


def by_category(
    figures: Mapping[str, Mapping[str, Mapping[str, Any]]], over: str = "ar"
) -> go.Figure:
    """Median speedup over plain decoding of every method in every category; one marker a category,
    hover for tau and the quartiles.

    Args:
        figures: category -> method -> speedup, speedup_low, speedup_high, tau, runs
            (``by_category`` of :func:`specwb.compare`).
        over: the row that speedups are over, which is not drawn.
    Raises:
        ValueError: no category.
    """
    if not figures:
        raise ArgumentError("by_category needs at least one category")
    names = [name for name in next(iter(figures.values())) if name != over]
    place = {name: i for i, name in enumerate(names)}
    traces = []
    for i, (category, rows) in enumerate(figures.items()):
        colour, _, symbol = PALETTE[i % len(PALETTE)]
        shift = 0.5 * (
            (i + 0.5) / len(figures) - 0.5
        )  # markers of one method lie below each other, in the legend's order
        traces.append(
            go.Scatter(
                x=[rows[n]["speedup"] for n in names],
                y=[place[n] + shift for n in names],
                name=category,
                mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 11},
                customdata=[
                    [
                        n,
                        rows[n]["tau"],
                        rows[n]["speedup_low"],
                        rows[n]["speedup_high"],
                        rows[n]["runs"],
                    ]
                    for n in names
                ],
                hovertemplate="%{customdata[0]}, " + category + ": %{x:.2f}x "
                "(%{customdata[2]:.2f}-%{customdata[3]:.2f}), tau %{customdata[1]:.2f}, "
                "%{customdata[4]} runs<extra></extra>",
            )
        )
    reach = max((rows[n]["speedup"] for rows in figures.values() for n in names), default=1.0)
    return figure(
        *traces,
        title={
            "text": f"Speedup over {over} by kind of prompt (dashed: 1)",
            "x": 0,
            "xref": "paper",
            "y": 0.98,
            "yanchor": "top",
        },
        shapes=[
            {
                "type": "line",
                "x0": 1,
                "x1": 1,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": OTHER, "dash": "dash", "width": 2},
            }
        ],
        xaxis={
            "title": {"text": f"tokens/s over {over}'s, median of paired runs"},
            "range": [0, 1.1 * max(1.0, reach)],
            "zeroline": True,
        },
        yaxis={
            "tickvals": list(range(len(names))),
            "ticktext": names,
            "range": [len(names) - 0.5, -0.5],
            "automargin": True,
            "zeroline": False,
        },
        showlegend=True,
        height=170 + 50 * max(1, len(names)),
        margin={"l": 60, "r": 20, "t": 84, "b": 50},
    )
