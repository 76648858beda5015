"""The tests of one round."""

from __future__ import annotations

import plotly.graph_objects as go

from specwb.figures.style import ACCEPTED, DRAFT, OTHER, REJECTED, TARGET, figure, visible
from specwb.trace import Explanation

_SIGNS = {
    "accepted": "✓ accepted",
    "rejected": "✗ rejected",
    "not tested": "not tested",
    "invalid": "invalid",
    "bonus": "bonus token",
    "not kept": "not kept",
}


def decisions(explanation: Explanation) -> go.Figure:
    """p and q of every candidate the walk came to, depth by depth, and what was decided.

    The diamond is ``u q``: the first candidate of a node is accepted iff it lies below the top of
    its p bar. Candidates after a rejection are tested against what then remains of p and q, so they
    have no diamond, only their decision. A greedy walk has neither q nor u; a point-mass rule does
    not compare ``u q`` with p. Three traces (p, q, u q), the same number for every round;
    ``customdata``: depth, token id, decision.
    """
    tests = [
        (level.depth, t)
        for level in explanation.levels
        for t in level.tests
        if t.decision != "invalid"
    ]
    # labels must be distinct for plotly to keep bars apart
    axis = [
        [f"depth {d}" for d, _ in tests],
        [f"{t.candidate + 1}: {visible(t.text)}" for _, t in tests],
    ]
    data = [[d, t.token, t.decision] for d, t in tests]
    compared = explanation.rule in ("rejection", "rrs", "rrsw")
    mark = [
        t.u * t.q if compared and t.candidate == 0 and t.u is not None and t.q is not None else None
        for _, t in tests
    ]
    top = [max(t.p, t.q or 0, m or 0) for (_, t), m in zip(tests, mark, strict=True)]
    hover = "%{x}<br>%{fullData.name} = %{y:.4f}<br>%{customdata[2]}<extra></extra>"
    height = max(top, default=1.0)
    colours = {"accepted": ACCEPTED, "rejected": REJECTED}
    return figure(
        go.Bar(
            x=axis,
            y=[t.p for _, t in tests],
            name="p (target)",
            marker={"color": TARGET},
            customdata=data,
            hovertemplate=hover,
        ),
        go.Bar(
            x=axis,
            y=[t.q for _, t in tests],
            name="q (draft)",
            customdata=data,
            hovertemplate=hover,
            marker={
                "color": DRAFT,
                "pattern": {"shape": "/", "fgcolor": "white", "fillmode": "overlay"},
            },
        ),
        go.Scatter(
            x=axis,
            y=mark,
            name="u·q of a first candidate",
            mode="markers",
            customdata=data,
            hovertemplate=hover,
            marker={
                "symbol": "diamond",
                "size": 11,
                "color": "black",
                "line": {"color": "white", "width": 1},
            },
        ),
        barmode="group",
        title={
            "text": "Tests of the walk" if tests else "Nothing was tested",
            "x": 0,
            "xref": "paper",
            "y": 0.98,
            "yanchor": "top",
        },
        annotations=[
            {
                "x": i,
                "y": y,
                "text": _SIGNS[t.decision],
                "showarrow": False,
                "yshift": 12,
                "font": {"size": 11, "color": colours.get(t.decision, OTHER)},
            }
            for i, ((_, t), y) in enumerate(zip(tests, top, strict=True))
        ],
        xaxis={"type": "multicategory"},
        yaxis={"title": {"text": "probability"}, "range": [0, 1.18 * height], "zeroline": True},
        height=330,
        margin={"l": 60, "r": 20, "t": 78, "b": 70},
    )
