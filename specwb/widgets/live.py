"""A figure that changes in place, and the controls above it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import ipywidgets as w
import plotly.graph_objects as go

STYLE = {"description_width": "90px"}
ROW = {"flex_flow": "row wrap"}


def redraw(shown: go.FigureWidget, new: go.Figure) -> None:
    """Put a figure with the same traces in place of the one shown; one message to the page."""
    with shown.batch_update():
        for old, trace in zip(shown.data, new.data, strict=True):
            old.update(trace.to_plotly_json(), overwrite=True)
        _lay_out(shown, new)


def _lay_out(shown: go.FigureWidget, new: go.Figure) -> None:
    shown.update_layout(new.layout, overwrite=True)
    # lists that are empty now would stay as they were
    shown.layout.shapes, shown.layout.annotations = new.layout.shapes, new.layout.annotations


class Explorer(w.VBox):
    """Controls, one line, one figure: ``_new`` makes the line and the figure of what the controls say."""

    def _build(self, *rows: Sequence[w.Widget]) -> None:
        self._line, self.summary = w.HTML(), ""
        self._figure: go.FigureWidget | None = None
        self._draw()
        for row in rows:
            for control in row:
                control.observe(lambda _: self._draw(), "value")
        super().__init__([*(w.HBox(list(row), layout=ROW) for row in rows), self._line, self._figure])

    def _draw(self) -> None:
        self.summary, new = self._new()
        if self._figure is not None and len(self._figure.data) == len(new.data):
            redraw(self._figure, new)
        elif self._figure is None:
            self._figure = go.FigureWidget(new)
        else:
            with self._figure.batch_update():
                self._figure.data = ()
                self._figure.add_traces(new.data)
                _lay_out(self._figure, new)
        self._line.value = f'<div class="specwb-summary" role="status">{escape(self.summary)}</div>'

    def _new(self) -> tuple[str, go.Figure]:
        raise NotImplementedError
