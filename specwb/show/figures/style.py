"""What figures share besides their parts: a bare layout, words in it, how a page shows them.

A figure has no background of its own: plotly cannot ask which theme the page has, and the colours
(:mod:`specwb.show.palette`) are seen on white and on black.
"""

from __future__ import annotations

from html import escape
from typing import Any

from specwb.show.palette import CLEAR, EDGE, GRID, INK, OTHER

MONOSPACE = "ui-monospace, Menlo, Consolas, monospace"
_AXIS = {"gridcolor": GRID, "zerolinecolor": EDGE, "linecolor": EDGE, "tickcolor": EDGE}
# all of its buttons would lie on the title of a narrow figure
_BUTTONS = ["zoom", "pan", "select", "lasso", "zoomin", "zoomout", "autoscale", "sendDataToCloud"]
LAYOUT: dict[str, Any] = {
    "template": {
        "layout": {
            "xaxis": {**_AXIS, "automargin": True, "dividercolor": EDGE},
            "yaxis": {**_AXIS, "automargin": True},
        }
    },
    "autosize": True,
    "font": {"color": INK, "size": 13},
    "legend": {"orientation": "h", "x": 0, "traceorder": "normal"},
    "modebar": {"remove": _BUTTONS, "bgcolor": CLEAR, "color": OTHER},
    "paper_bgcolor": CLEAR,
    "plot_bgcolor": CLEAR,
}
"""Of every figure, in the place of plotly's default template, which alone would be 7 kB in every
notebook output."""
CONFIG = {"displaylogo": False, "responsive": True}
"""How the page shows a figure: as wide as its cell."""


def label(tokenizer: Any, token: int) -> str:
    """A token as it can be read in a figure: spaces and line ends visible, bytes that are no text
    as their id.
    """
    if tokenizer is None:
        return str(token)
    text = tokenizer.decode([token])
    return f"#{token}" if not text or "\ufffd" in text else visible(text)


def visible(text: str) -> str:
    """Text escaped for HTML (plotly reads tags in labels), with its white space made visible."""
    return escape(text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥"), quote=False)
