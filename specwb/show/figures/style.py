"""What figures share besides their parts: a bare layout, words in it, how a page shows them.

Colours (:mod:`specwb.show.palette`) are told apart without colour vision (Okabe and Ito), and none
carries a meaning alone: line dashes, hatching, marker shapes or signs say the same. They are seen
on white and on black, since a figure has no background of its own and plotly cannot ask which theme
the page has.
"""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go

from specwb.show.palette import CLEAR, EDGE, GRID, INK, OTHER

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
    axes = {"xaxis": {**axis, "dividercolor": EDGE}, "yaxis": {**axis, "automargin": True}}
    legend = {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0, "traceorder": "normal"}
    base = {
        "template": {"layout": axes},
        "autosize": True,
        "font": {"color": INK, "size": 13},
        "margin": {"l": 60, "r": 20, "t": 50, "b": 50},
        "legend": legend,
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
