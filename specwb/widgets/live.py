"""What explorers have in common: controls, a line of text and a figure that follows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, Self

import ipywidgets as w
import plotly.graph_objects as go

from specwb.figures.style import REJECTED
from specwb.widgets.figure import LiveFigure

STYLE = {"description_width": "90px"}
ROW = {"flex_flow": "row wrap"}


class Panel(w.VBox):
    """Controls, lines of text and figures below each other, as wide as their cell.

    Attributes:
        summary: one line about what is shown, which changes with the controls.
    """

    summary: str = ""

    def __init__(self, children: Sequence[w.Widget]) -> None:
        super().__init__(children, layout={"width": "100%"})

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
        self._figure: LiveFigure | None = None
        self._draw()
        for row in rows:
            for control in row:
                control.observe(lambda _: self._draw(), "value")
        boxes = [w.HBox(list(row), layout=ROW) for row in rows]
        super().__init__([*boxes, self._line, self._figure])

    def _draw(self) -> None:
        self.summary, new = self._new()
        if self._figure is None:
            self._figure = LiveFigure(new)
        else:
            self._figure.figure = new
        self._line.value = status(self.summary)

    def _new(self) -> tuple[str, go.Figure]:
        raise NotImplementedError
