"""What all figures share: colours that are told apart without colour vision (Okabe and Ito), a bare layout, token labels.

Colour never carries a meaning alone: line dashes, hatching, marker shapes or signs say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import plotly.graph_objects as go

ACCEPTED = "#0072B2"  # blue
CLOSING = "#D55E00"  # vermilion
DRAFT = "#E69F00"  # orange
OTHER = "#8C8C8C"  # grey
INK = "#222222"
# for series that have no colour of their own: colour, dash and marker change together
PALETTE = (
    ("#0072B2", "solid", "circle"), ("#D55E00", "dash", "square"), ("#009E73", "dot", "diamond"), ("#CC79A7", "dashdot", "triangle-up"),
    ("#E69F00", "longdash", "x"), ("#56B4E9", "solid", "star"), ("#222222", "dash", "triangle-down"), ("#8C8C8C", "dot", "cross"),
)  # fmt: skip
MONOSPACE = "ui-monospace, Menlo, Consolas, monospace"


def figure(*traces: object, **layout: object) -> go.Figure:
    """A figure without the library's default template, which alone would be 7 kB in every notebook output."""
    base = {
        "template": "none",
        "autosize": True,
        "font": {"color": INK, "size": 13},
        "margin": {"l": 60, "r": 20, "t": 50, "b": 50},
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        # fewer buttons: all of them would lie on the title of a narrow figure
        "modebar": {"remove": ["zoom", "pan", "select", "lasso", "zoomin", "zoomout", "autoscale", "sendDataToCloud"]},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
    }
    return go.Figure(list(traces), {**base, **layout})


def label(tokenizer: object, token: int) -> str:
    """A token as it can be read in a figure: spaces and line ends visible, bytes that are no text as their id."""
    if tokenizer is None:
        return str(token)
    text = tokenizer.decode([token])  # type: ignore[attr-defined]
    return f"#{token}" if not text or "\ufffd" in text else visible(text)


def visible(text: str) -> str:
    """Text escaped for HTML (plotly reads tags in labels), with its white space made visible."""
    return escape(text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥"), quote=False)


def lines(
    points: Mapping[str, tuple[list, list]], title: str, yaxis: str, xaxis: str, height: int = 400, size: int = 8, hover: str | None = None
) -> go.Figure:
    """Lines through points, each with a colour, dash and symbol of its own.

    Args: points: name -> x and y, at most eight. size: of a symbol. hover: what a point says, default plotly's words.
    Raises:
        ValueError: no line, or more than eight.
    """
    if not 1 <= len(points) <= len(PALETTE):
        raise ValueError(f"between one and {len(PALETTE)} curves, got {len(points)}")
    drawn = [
        go.Scatter(
            x=x, y=y, mode="lines+markers", name=name, hovertemplate=hover,
            line={"color": colour, "dash": dash, "width": 2}, marker={"symbol": symbol, "size": size},
        )
        for (name, (x, y)), (colour, dash, symbol) in zip(points.items(), PALETTE, strict=False)
    ]  # fmt: skip
    return figure(
        *drawn,
        title={"text": title, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"},
        xaxis={"title": {"text": xaxis}},
        yaxis={"title": {"text": yaxis}, "rangemode": "tozero"},
        height=height,
        margin={"l": 60, "r": 20, "t": 100, "b": 50},
    )
