"""How often a round's path goes on from one depth to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import plotly.graph_objects as go

from specwb.figures.style import PALETTE, figure


def acceptance_by_depth(
    counts: Mapping[str, Sequence[Sequence[int]]], least: int = 10
) -> go.Figure:
    """Share of the rounds that reached depth d - 1 and had candidates there which accepted one, for
    d = 1, 2, ...

    Each depth has its own denominator, so this is no accepted length in disguise: a flat line is
    acceptance that does not depend on depth. Bars are one binomial standard error.

    Args:
        counts: method -> (accepted, tested) for depth 1, 2, ...; methods that draft nothing are
            left out.
        least: depths tested less often than this are not drawn.
    """
    drawn = {
        name: [(d, a, t) for d, (a, t) in enumerate(pairs, 1) if t >= least]
        for name, pairs in counts.items()
        if any(t >= least for _, t in pairs)
    }
    traces = []
    for i, (name, points) in enumerate(drawn.items()):
        colour, dash, symbol = PALETTE[i % len(PALETTE)]
        share = [a / t for _, a, t in points]
        traces.append(
            go.Scatter(
                x=[d for d, _, _ in points],
                y=share,
                name=name,
                mode="lines+markers",
                customdata=[[a, t] for _, a, t in points],
                line={"color": colour, "dash": dash, "width": 2},
                marker={"symbol": symbol, "size": 9, "color": colour},
                error_y={
                    "array": [
                        sqrt(s * (1 - s) / t) for s, (_, _, t) in zip(share, points, strict=True)
                    ],
                    "thickness": 1,
                    "width": 3,
                },
                hovertemplate=name
                + ", depth %{x}: %{y:.1%} (%{customdata[0]} of %{customdata[1]})<extra></extra>",
            )
        )
    deepest = max((d for points in drawn.values() for d, _, _ in points), default=1)
    return figure(
        *traces,
        title={
            "text": "Acceptance by depth"
            if drawn
            else "Acceptance by depth: nothing was tested often enough",
            "x": 0,
            "xref": "paper",
        },
        xaxis={
            "title": {"text": "depth in the draft"},
            "range": [0.7, deepest + 0.3],
            "dtick": 1 if deepest <= 20 else 5,
            "zeroline": False,
        },
        yaxis={"title": {"text": "accepted / tested"}, "range": [0, 1.05], "tickformat": ".0%"},
        legend={"orientation": "v", "x": 1.02, "y": 1, "xanchor": "left", "yanchor": "top"},
        showlegend=True,
        height=400,
    )
