"""What all figures share: colours, a bare layout, token labels.

Colours are told apart without colour vision (Okabe and Ito), and none carries a meaning alone: line
dashes, hatching, marker shapes or signs say the same. They are seen on white and on black, since a
figure has no background of its own and plotly cannot ask which theme the page has.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import plotly.graph_objects as go

from specwb.errors import ArgumentError
from specwb.palette import ACCEPTED as ACCEPTED
from specwb.palette import DRAFT as DRAFT
from specwb.palette import OTHER as OTHER
from specwb.palette import REJECTED as REJECTED
from specwb.palette import RESIDUAL as RESIDUAL
from specwb.palette import TARGET as TARGET

FIRST = "#0072B2"  # blue: a series that is neither the target's nor the draft's
MARK = "#D55E00"  # vermilion: a line or a point that others are compared with
INK = "#767676"  # of words and axes: the grey whose contrast with white and with black is alike
DARK = "#222222"  # words in a light cell, whatever the page has behind it
FAINT = "rgba(128,128,128,0.3)"  # areas that must not stand out
GRID = "rgba(128,128,128,0.2)"
EDGE = "#9A9A9A"  # of trees
CLEAR = "rgba(0,0,0,0)"  # what is left of a hatched bar
# for series that have no colour of their own: colour, dash and marker change together
PALETTE = (
    ("#0072B2", "solid", "circle"),
    ("#D55E00", "dash", "square"),
    ("#009E73", "dot", "diamond"),
    ("#CC79A7", "dashdot", "triangle-up"),
    ("#E69F00", "longdash", "x"),
    ("#56B4E9", "solid", "star"),
    ("#997700", "dash", "triangle-down"),
    ("#8C8C8C", "dot", "cross"),
)
DEPTHS = [[0, "#F0E442"], [0.5, "#56B4E9"], [1, "#0072B2"]]
"""Of cells by position or share: no end of it is as dark or as light as a page."""
MONOSPACE = "ui-monospace, Menlo, Consolas, monospace"
# all of them would lie on the title of a narrow figure
NO_BUTTONS = [
    *("zoom", "pan", "select", "lasso", "zoomin", "zoomout", "autoscale"),
    "sendDataToCloud",
]
CONFIG = {"displaylogo": False, "responsive": True}
"""How the page shows a figure: as wide as its cell."""


def figure(*traces: object, **layout: object) -> go.Figure:
    """A figure without the library's default template, which alone would be 7 kB in every notebook
    output.
    """
    axis = {"gridcolor": GRID, "zerolinecolor": EDGE, "linecolor": EDGE, "tickcolor": EDGE}
    base = {
        "template": {"layout": {"xaxis": {**axis, "dividercolor": EDGE}, "yaxis": axis}},
        "autosize": True,
        "font": {"color": INK, "size": 13},
        "margin": {"l": 60, "r": 20, "t": 50, "b": 50},
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        "modebar": {"remove": NO_BUTTONS, "bgcolor": CLEAR, "color": OTHER},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
    }
    return go.Figure(list(traces), {**base, **layout})


def label(tokenizer: object, token: int) -> str:
    """A token as it can be read in a figure: spaces and line ends visible, bytes that are no text
    as their id.
    """
    if tokenizer is None:
        return str(token)
    text = tokenizer.decode([token])  # type: ignore[attr-defined]
    return f"#{token}" if not text or "\ufffd" in text else visible(text)


def visible(text: str) -> str:
    """Text escaped for HTML (plotly reads tags in labels), with its white space made visible."""
    return escape(text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥"), quote=False)


def lines(
    points: Mapping[str, tuple[list, list]],
    title: str,
    yaxis: str,
    xaxis: str,
    height: int = 400,
    size: int = 8,
    hover: str | None = None,
) -> go.Figure:
    """Lines through points, each with a colour, dash and symbol of its own.

    Args:
        points: name -> x and y, at most eight.
        size: of a symbol.
        hover: what a point says, default plotly's words.
    Raises:
        ValueError: no line, or more than eight.
    """
    if not 1 <= len(points) <= len(PALETTE):
        raise ArgumentError(f"between one and {len(PALETTE)} curves, got {len(points)}")
    drawn = [
        go.Scatter(
            x=x,
            y=y,
            mode="lines+markers",
            name=name,
            hovertemplate=hover,
            line={"color": colour, "dash": dash, "width": 2},
            marker={"symbol": symbol, "size": size},
        )
        for (name, (x, y)), (colour, dash, symbol) in zip(points.items(), PALETTE, strict=False)
    ]
    return figure(
        *drawn,
        title={"text": title, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"},
        xaxis={"title": {"text": xaxis}},
        yaxis={"title": {"text": yaxis}, "rangemode": "tozero"},
        height=height,
        # a line alone has no legend above it
        margin={"l": 60, "r": 20, "t": 100 if len(points) > 1 else 60, "b": 50},
    )


def chip(text: str, colour: str | None) -> dict:
    """A word in a filled box, as an annotation without a place; pale where it has no colour."""
    ink = "white" if colour else "#444444"
    return {
        "text": text,
        "showarrow": False,
        "bgcolor": colour or "#E4E4E4",
        "borderpad": 3,
        "font": {"family": MONOSPACE, "size": 12, "color": ink},
    }
