"""Explorers: controls that a class declares, and a line of text and figures that follow them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from html import escape
from typing import Any, ClassVar, Self, dataclass_transform

import ipywidgets as w
import plotly.graph_objects as go
from traitlets import TraitError

from specwb.core.errors import ArgumentError, SpecwbError
from specwb.show.palette import REJECTED
from specwb.show.widgets.figure import LiveFigure

Drawn = tuple[str, go.Figure]
STYLE = {"description_width": "100px"}
WIDE = {"width": "auto", "max_width": "620px"}


@dataclass(eq=False)
class Control:
    """A choice (``of``), a toggle (a bool), a real number (``step``) or an integer.

    Limits, choices and labels that depend on an explorer's data are functions of the explorer. A
    default outside the limits is moved to the nearest one.

    Attributes:
        value: at first; None is the first choice.
        low, high: limits of a number, both included.
        step: of a real number.
        of: choices, values or pairs (label, value).
        label: in front of the control, default its name.
        row: the row of the explorer that it stands in.
        slide: whether choices are on a slider.
        wide: whether choices are long.
        help: shown where the pointer rests on it.
    """

    value: Any = None
    low: Any = 0
    high: Any = 1
    step: float | None = None
    of: Any = None
    label: str = ""
    row: int = 0
    slide: bool = False
    wide: bool = False
    help: str | None = None

    def widget(self, name: str, given: Any, live: bool) -> Any:
        """The widget; an initial value ``given`` as None is the default."""
        value = self.value if given is None else given
        kind: Any = w.IntSlider if self.step is None else w.FloatSlider
        wanted = f"a number in {self.low}..{self.high}"
        traits = {"min": self.low, "max": self.high, "continuous_update": live}
        if self.of is not None:
            if not self.of:
                raise ArgumentError(f"there is nothing to choose {name} from")
            kind, traits = w.Dropdown, {"options": self.of, "disabled": len(self.of) == 1}
            if self.slide:
                kind, traits = w.SelectionSlider, {**traits, "continuous_update": live}
            wanted = f"one of {', '.join(str(x[1] if type(x) is tuple else x) for x in self.of)}"
        elif isinstance(self.value, bool):
            kind, traits, wanted = w.Checkbox, {"indent": False}, "True or False"
        elif self.step is not None:
            traits |= {"step": self.step, "readout_format": f".{self._digits}f"}
        if value is not None:
            traits["value"] = value
        layout = WIDE if self.wide else {}
        try:
            label = self.label or name
            widget = kind(
                description=label, style=STYLE, layout=layout, tooltip=self.help, **traits
            )
        except TraitError:
            widget = None
        if widget is None or (given is not None and widget.value != value):
            raise ArgumentError(f"{name} must be {wanted}, got {value!r}")
        if self.step is not None:
            # whole steps: the page would send another value back, over what was set meanwhile
            steps = round((widget.value - self.low) / self.step)
            widget.value = round(self.low + steps * self.step, self._digits)
        return widget

    @property
    def _digits(self) -> int:
        """Digits of the step after the point."""
        return len(f"{self.step:g}".partition(".")[2])

    def read(self, widget: Any) -> Any:
        """The value, a real number rounded as the step is."""
        return widget.value if self.step is None else round(widget.value, self._digits)


@dataclass_transform(eq_default=False)
class Explorer(w.VBox):
    """Controls, and a line of text and figures that ``draw`` makes of their values.

    A subclass is a dataclass of its data and its controls. An argument with a control's name is the
    initial value; then the attribute is the control, whose ``.value`` can be set. Where nothing can
    be drawn the line says why, and the figures stay.

    Attributes:
        summary: one line about what is shown.
    Raises:
        ArgumentError: data that cannot be shown, or an initial value that its control cannot have.
    """

    continuous = False  # whether it follows while a slider is being dragged
    tabs: ClassVar[tuple[str, ...]] = ()  # names of figures of which one is seen at a time
    tab = 0  # the one at first
    summary = ""
    _held = False  # while several controls are set

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self.prepare()
        self._controls: dict[str, tuple[Control, Any]] = {}
        rows: dict[int, list[Any]] = {}
        for name, (declared, given) in self.declared().items():
            of_data = {key: x(self) for key, x in vars(declared).items() if callable(x)}
            control = replace(declared, **of_data)
            widget = control.widget(name, given, self.continuous)
            self._controls[name] = control, widget
            rows.setdefault(control.row, []).append(widget)
            widget.observe(lambda _: self._redraw(), "value")
            if declared is getattr(type(self), name, None):
                setattr(self, name, widget)
        self._line = w.HTML()
        self._figures: list[Any] = []
        self._redraw()
        boxes = [w.HBox(row, layout={"flex_flow": "row wrap"}) for _, row in sorted(rows.items())]
        seen = self._figures
        if self.tabs:
            seen = [w.Tab(seen, titles=self.tabs, selected_index=self.tab)]
        super().__init__([*boxes, self._line, *seen], layout={"width": "100%"})

    def prepare(self) -> None:
        """Check the data, and compute what ``draw`` needs again and again."""

    def declared(self) -> dict[str, tuple[Control, Any]]:
        """The controls by name, each with its initial value, None for the default."""
        controls = {}
        for item in fields(self):  # type: ignore[arg-type]
            if isinstance(item.default, Control):
                given = getattr(self, item.name)
                controls[item.name] = item.default, None if given is item.default else given
        return controls

    def __getitem__(self, name: str) -> Any:
        """A control by its name."""
        return self._controls[name][1]

    def draw(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The line and the figures for the controls' values, given in their order."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """The controls' values by name."""
        return {name: control.read(widget) for name, (control, widget) in self._controls.items()}

    def _redraw(self) -> None:
        if self._held:
            return
        try:
            self.summary, *new = self.draw(*self.settings().values())
        except SpecwbError as error:
            self._refuse(error)
            return
        if not self._figures:
            self._figures = [LiveFigure(figure) for figure in new]
        for shown, figure in zip(self._figures, new, strict=True):
            shown.figure = figure
        self._say(self.summary)

    def _say(self, line: str, look: str = "") -> None:
        # a screen reader reads a status out when it changes
        box = f'<div class="specwb-summary" role="status" style="{look}">'
        self._line.value = f"{box}{escape(line)}</div>"

    def _refuse(self, error: SpecwbError) -> None:
        """Say why nothing is drawn; raise where nothing was drawn before."""
        if not self._figures:
            raise error
        self.summary = f"Not drawn: {error}. The figure still shows the settings before"
        self._say(self.summary, f"color:{REJECTED};font-weight:bold")

    def __repr__(self) -> str:
        """The line: the default lists every control, with its random id."""
        return f"{type(self).__name__}({self.summary})"

    @contextmanager
    def at(self, **values: Any) -> Iterator[Self]:
        """Set controls, and set them back afterwards.

        Args:
            values: control -> its value meanwhile.
        Raises:
            AttributeError: no such control.
        """
        if unknown := [name for name in values if name not in self._controls]:
            raise AttributeError(
                f"no control {unknown[0]!r}; there are {', '.join(self._controls)}"
            )
        before = {name: self.settings()[name] for name in values}
        try:
            self._set(values)
            yield self
        finally:
            self._set(before)

    def _set(self, values: dict[str, Any]) -> None:
        """Set controls, and draw once."""
        before, self._held = self.settings(), True
        try:
            for name, value in values.items():
                self[name].value = value
        finally:
            self._held = False
        if self.settings() != before:
            self._redraw()
