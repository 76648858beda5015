"""Figures that change in place and are as wide as their cell, and the controls above them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, Self

import anywidget
import ipywidgets as w
import plotly.graph_objects as go

from specwb.figures.style import CONFIG, REJECTED

STYLE = {"description_width": "90px"}
ROW = {"flex_flow": "row wrap"}


def canvas(figure: go.Figure) -> go.FigureWidget:
    """A figure that can be changed in place, and that is drawn anew when the window's size changes.

    FigureWidget itself is 700 pixels wide until somebody resizes the window; see :class:`Follow`.
    """
    shown = go.FigureWidget(figure)
    shown._config = CONFIG
    return shown


def redraw(shown: go.FigureWidget, new: go.Figure) -> None:
    """Put a figure in place of the one shown; one message to the page if it has as many traces."""
    with shown.batch_update():
        if len(shown.data) == len(new.data):
            for old, trace in zip(shown.data, new.data, strict=True):
                old.update(trace.to_plotly_json(), overwrite=True)
        else:
            shown.data = ()
            shown.add_traces(new.data)
        shown.update_layout(new.layout, overwrite=True)
        # lists that are empty now would stay as they were
        shown.layout.shapes = new.layout.shapes
        shown.layout.annotations = new.layout.annotations


class Follow(anywidget.AnyWidget):
    """Nothing to see: it tells the figures of the page when their cell has another width.

    They listen to the window's resize event alone. A cell also becomes wider or narrower when a
    side bar opens; and a figure is drawn before it is in the page, where its width is not known.
    """

    _esm = """
    function render({ el }) {
      const tell = () =>
        requestAnimationFrame(() => window.dispatchEvent(new Event("resize")));
      const observer = new ResizeObserver(tell);
      observer.observe(el);
      document.addEventListener("plotlywidget-after-render", tell);
      return () => {
        observer.disconnect();
        document.removeEventListener("plotlywidget-after-render", tell);
      };
    }
    export default { render };
    """


class Panel(w.VBox):
    """Controls, lines of text and figures below each other, as wide as their cell.

    Attributes:
        summary: one line about what is shown, which changes with the controls.
    """

    summary: str

    def __init__(self, children: Sequence[w.Widget]) -> None:
        follow = Follow(layout={"width": "100%", "height": "0px", "margin": "0"})
        super().__init__([*children, follow], layout={"width": "100%"})

    def __repr__(self) -> str:
        """Give the line: the default lists every control, with its random id."""
        return f"{type(self).__name__}({self.summary})"

    @contextmanager
    def at(self, **values: Any) -> Iterator[Self]:
        """Set controls, and set them back afterwards: a look at other settings that leaves the
        explorer in the page as it stood.

        Args:
            values: control -> its value meanwhile, set in this order; for a list of controls
                a list of values.
        Raises:
            AttributeError: no such control.
        """
        controls = [
            (control, new)
            for name, value in values.items()
            for control, new in _each(getattr(self, name), value)
        ]
        before = [(control, control.value) for control, _ in controls]
        try:
            for control, value in controls:
                control.value = value
            yield self
        finally:
            for control, value in before:
                control.value = value


def _each(control: Any, value: Any) -> list[tuple[w.ValueWidget, Any]]:
    return (
        list(zip(control, value, strict=True)) if isinstance(control, list) else [(control, value)]
    )


def status(line: str, wrong: bool = False) -> str:
    """A summary as HTML, which screen readers read out when it changes."""
    look = f"color:{REJECTED};font-weight:bold" if wrong else ""
    return f'<div class="specwb-summary" role="status" style="{look}">{escape(line)}</div>'


class Explorer(Panel):
    """Controls, one line, one figure: ``_new`` makes the line and the figure of what the controls
    say.
    """

    def _build(self, *rows: Sequence[w.Widget]) -> None:
        self._line, self.summary = w.HTML(), ""
        self._figure: go.FigureWidget | None = None
        self._draw()
        for row in rows:
            for control in row:
                control.observe(lambda _: self._draw(), "value")
        boxes = [w.HBox(list(row), layout=ROW) for row in rows]
        super().__init__([*boxes, self._line, self._figure])

    def _draw(self) -> None:
        self.summary, new = self._new()
        if self._figure is None:
            self._figure = canvas(new)
        else:
            redraw(self._figure, new)
        self._line.value = status(self.summary)

    def _new(self) -> tuple[str, go.Figure]:
        raise NotImplementedError
