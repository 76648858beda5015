"""A plotly figure in a notebook's page that can be replaced."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as w
import plotly.graph_objects as go
import traitlets
from plotly.basedatatypes import BaseFigure
from plotly.offline import get_plotlyjs

from specwb.show.figures.style import CONFIG


class LiveFigure(anywidget.AnyWidget):
    """A figure as wide as its cell, drawn anew when another one is put in its place.

    plotly's FigureWidget sends plotly.js, 5 MB, with every figure. Here a page has it once: from
    JupyterLab, which has it for static figures, or elsewhere from the kernel. Until it is there
    a line of text says so, and if nothing can be drawn the line says why.

    Args:
        figure: what is shown at first.
    Attributes:
        figure: what is shown; set it to show another one. A change inside it is not noticed.
    """

    _esm = Path(__file__).with_suffix(".js").read_text("utf-8")
    # figure.js says why the figure is not a trait of this model
    source = traitlets.Instance(w.Label).tag(sync=True, **w.widget_serialization)

    def __init__(self, figure: go.Figure) -> None:
        super().__init__(source=w.Label(), layout={"width": "100%"})
        self.source.on_msg(_asked)
        self.figure = figure

    @property
    def figure(self) -> go.Figure:
        return self._figure

    @figure.setter
    def figure(self, new: go.Figure) -> None:
        self._figure = new
        self.source.value = json.dumps({**plain(new), "config": CONFIG})


def plain(figure: BaseFigure) -> dict[str, Any]:
    """A figure as JSON: ``data`` and ``layout``."""
    return json.loads(figure.to_json())


def _asked(source: w.Label, content: Any, buffers: object) -> None:
    """A page without plotly.js asks for it."""
    if content == {"kind": "plotly"}:
        source.send(content, [gzip.compress(get_plotlyjs().encode())])
