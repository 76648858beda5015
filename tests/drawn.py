"""The figures of explorers as a page receives them."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("plotly")
pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")

from specwb.show.widgets.figure import LiveFigure, plain


def live(widget) -> list[LiveFigure]:
    """The figures inside a widget, those of closed tabs too."""
    if isinstance(widget, LiveFigure):
        return [widget]
    return [one for child in getattr(widget, "children", ()) for one in live(child)]


picture = plain
"""A figure as JSON, for comparison with what is shown."""


def every_figure(widget) -> list[dict]:
    """``data`` and ``layout`` of every figure inside a widget."""
    figures = live(widget)
    sent = [json.loads(figure.source.value) for figure in figures]
    return [{"data": one["data"], "layout": one["layout"]} for one in sent]


def shown(widget) -> dict:
    """The same of a widget with one figure."""
    (figure,) = every_figure(widget)
    return figure


def numbers(widget) -> list[str]:
    """The numbers in an explorer's line, in their order."""
    return re.findall(r"(?:(?<!\w)-)?\d+(?:\.\d+)?", widget.summary)
