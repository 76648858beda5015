"""The one way to display a figure or a widget in the project's notebooks."""

from __future__ import annotations

import json

import ipywidgets
import plotly.graph_objects as go
from IPython.display import display
from plotly.basedatatypes import BaseFigure


def show(thing: BaseFigure | ipywidgets.DOMWidget, summary: str) -> None:
    """Display a figure or a widget together with one line of text that says what is to be read off it.

    The line is what is shown where neither can be drawn (GitHub, a terminal, a screen reader), and what notebook tests compare;
    so it must be the same in every run: no object addresses, no timings.

    Args:
        thing: a plotly figure or an ipywidgets widget.
        summary: one line, not empty.
    Raises:
        TypeError: neither a figure nor a widget. ValueError: the summary is empty or longer than a line.
    """
    if not isinstance(summary, str) or not summary.strip() or "\n" in summary:
        raise ValueError(f"summary must be one line of text, got {summary!r}")
    if isinstance(thing, ipywidgets.DOMWidget):
        bundle = dict(thing._repr_mimebundle_())
    elif isinstance(thing, go.Figure):
        bundle = {"application/vnd.plotly.v1+json": {**json.loads(thing.to_json()), "config": {"displaylogo": False, "responsive": True}}}
    else:
        raise TypeError(f"show takes a plotly figure or an ipywidgets widget, got {type(thing).__name__}")
    display({**bundle, "text/plain": summary}, raw=True)
