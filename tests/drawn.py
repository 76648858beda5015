"""The figures of explorers as a page receives them."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("plotly")
pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")

from specwb.show.widgets.figure import LiveFigure, plain

picture = plain
"""A figure as JSON, for comparison with what is shown."""


def every_figure(widget) -> list[dict]:
    """``data`` and ``layout`` of every figure among a widget's children."""
    figures = [child for child in widget.children if isinstance(child, LiveFigure)]
    sent = [json.loads(figure.source.value) for figure in figures]
    return [{"data": one["data"], "layout": one["layout"]} for one in sent]


def shown(widget) -> dict:
    """The same of a widget with one figure."""
    (figure,) = every_figure(widget)
    return figure


def numbers(widget) -> list[str]:
    """The numbers in an explorer's line, in their order."""
    return re.findall(r"(?:(?<!\w)-)?\d+(?:\.\d+)?", widget.summary)
