"""Where the time of a decoding goes."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from specwb.errors import ArgumentError
from specwb.figures.style import DRAFT, FIRST, MARK, OTHER, figure

_LOOKS = {
    "draft": (DRAFT, "/"),
    "score": (FIRST, ""),
    "verify": (MARK, "x"),
    "commit": (OTHER, "."),
}


def time_split(seconds: Mapping[str, Mapping[str, float]], tokens: Mapping[str, int]) -> go.Figure:
    """Milliseconds a token spent drafting, scoring, verifying and committing, one stacked bar a
    method.

    Args:
        seconds: method -> part -> seconds in all, the parts being draft, score, verify, commit.
        tokens: method -> tokens that were emitted in that time.
    Raises:
        ValueError: no method, or one without tokens.
    """
    if not seconds or any(tokens.get(name, 0) < 1 for name in seconds):
        raise ArgumentError("time_split needs at least one method, and at least one token of each")
    names = list(seconds)
    each = {part: [1e3 * seconds[n][part] / tokens[n] for n in names] for part in _LOOKS}
    whole = [sum(each[part][i] for part in _LOOKS) for i in range(len(names))]
    return figure(
        *(
            go.Bar(
                x=each[part],
                y=names,
                orientation="h",
                name=part,
                customdata=[v / w for v, w in zip(each[part], whole, strict=True)],
                marker={
                    "color": colour,
                    "pattern": {"shape": shape, "fgcolor": "white", "fillmode": "overlay"},
                },
                hovertemplate="%{y}, "
                + part
                + ": %{x:.2f} ms a token, %{customdata:.0%}<extra></extra>",
            )
            for part, (colour, shape) in _LOOKS.items()
        ),
        barmode="stack",
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        title={
            "text": "Time for a token, by part of a round",
            "x": 0,
            "xref": "paper",
            "y": 0.98,
            "yanchor": "top",
        },
        annotations=[
            {
                "x": w,
                "y": name,
                "text": f"{w:.2f} ms",
                "showarrow": False,
                "xanchor": "left",
                "xshift": 6,
            }
            for w, name in zip(whole, names, strict=True)
        ],
        xaxis={
            "title": {"text": "milliseconds a token"},
            "range": [0, 1.15 * max(whole)],
            "zeroline": True,
        },
        yaxis={"autorange": "reversed", "type": "category", "automargin": True},
        height=170 + 40 * len(names),
        margin={"l": 60, "r": 20, "t": 84, "b": 50},
    )
