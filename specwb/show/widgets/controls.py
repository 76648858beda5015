"""Explorers: controls that a class declares, and a line of text and figures that follow them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from html import escape
from typing import Any, Self, dataclass_transform

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
    """

    value: Any = None  # None: the first choice
    low: Any = 0
    high: Any = 1
    step: float | None = None
    of: Any = None  # values, or pairs (label, value)
    each: Any = None  # labels of several controls, which are one attribute, a list
    label: str = ""
    row: int = 0
    slide: bool = False  # choices on a slider
    wide: bool = False  # long choices
    help: str | None = None  # shown where the pointer rests on it

    def _kind(self) -> tuple[Any, dict[str, Any], str]:
        """Return the widget's class and traits, and what its value must be."""
        if self.of is not None:
            known = (str(x[1] if isinstance(x, tuple) else x) for x in self.of)
            traits = {"options": self.of, "layout": WIDE if self.wide else {}}
            kind = w.SelectionSlider if self.slide else w.Dropdown
            return kind, traits, f"one of {', '.join(known)}"
        if isinstance(self.value, bool):
            return w.Checkbox, {"indent": False}, "True or False"
        traits, wanted = {"min": self.low, "max": self.high}, f"in {self.low}..{self.high}"
        if self.step is None:
            return w.IntSlider, traits, f"an integer {wanted}"
        traits |= {"step": self.step, "readout_format": f".{self._digits}f"}
        return w.FloatSlider, traits, f"a number {wanted}"

    def widgets(self, name: str, given: Any, live: bool) -> list[Any]:
        """Return the widgets, one for each label; an initial value of None is the default."""
        if self.of is not None and not self.of:
            raise ArgumentError(f"there is nothing to choose {name} from")
        kind, traits, wanted = self._kind()
        traits |= {"continuous_update": live} if hasattr(kind, "continuous_update") else {}
        values, labels = self.value if given is None else given, self.each
        if labels is None:
            values, labels = [values], [self.label or name]
        if len(values) != len(labels):
            raise ArgumentError(f"{name} must be {len(labels)} values, got {given!r}")
        made = []
        for value, label in zip(values, labels):
            start = {} if value is None else {"value": value}
            try:
                one = kind(description=label, style=STYLE, tooltip=self.help, **start, **traits)
            except TraitError:
                one = None
            if one is None or (given is not None and one.value != value):
                raise ArgumentError(f"{name} must be {wanted}, got {value!r}")
            if self.step is not None:
                # whole steps: the page would send another value back, over what was set meanwhile
                steps = round((one.value - self.low) / self.step)
                one.value = round(self.low + steps * self.step, self._digits)
            made.append(one)
        return made

    @property
    def _digits(self) -> int:
        return len(f"{self.step:g}".partition(".")[2])

    def read(self, widgets: list[Any]) -> Any:
        """Return the value, or with ``each`` the values, real numbers rounded as the step is."""
        values = [x.value if self.step is None else round(x.value, self._digits) for x in widgets]
        return values[0] if self.each is None else values


@dataclass_transform(eq_default=False)
class Explorer(w.VBox):
    """Controls, and a line of text and figures that ``draw`` makes of their values.

    A subclass is a dataclass of its data and its controls. An argument with a control's name is the
    initial value; then the attribute is the control, whose ``.value`` can be set. Where nothing can
    be drawn the line says why, and the figures stay.

    Attributes:
        summary: one line about what is shown.
    Raises:
        ValueError: data that cannot be shown, or an initial value that its control cannot have.
    """

    continuous = False  # whether it follows while a slider is being dragged
    summary = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self.prepare()
        self._controls: dict[str, tuple[Control, list[Any]]] = {}
        rows: dict[int, list[Any]] = {}
        for name, (declared, given) in self.declared().items():
            own = {key: x(self) for key, x in vars(declared).items() if callable(x)}
            control = replace(declared, **own)
            made = control.widgets(name, given, self.continuous)
            self._controls[name] = control, made
            rows.setdefault(control.row, []).extend(made)
            for widget in made:
                widget.observe(lambda _: self._redraw(), "value")
        for one in fields(self):  # type: ignore[arg-type]
            if isinstance(one.default, Control):
                setattr(self, one.name, self[one.name])
        self._line = w.HTML()
        self._figures: list[Any] = []
        self._redraw()
        boxes = [w.HBox(row, layout={"flex_flow": "row wrap"}) for _, row in sorted(rows.items())]
        super().__init__([*boxes, self._line, *self._figures], layout={"width": "100%"})

    def prepare(self) -> None:
        """Check the data, and compute what ``draw`` needs again and again."""

    def declared(self) -> dict[str, tuple[Control, Any]]:
        """Return the controls by name, each with its initial value, None for the default."""
        found = {}
        for one in fields(self):  # type: ignore[arg-type]
            if isinstance(one.default, Control):
                given = getattr(self, one.name)
                found[one.name] = one.default, None if given is one.default else given
        return found

    def __getitem__(self, name: str) -> Any:
        """Return a control, or a list of several, by its name."""
        control, made = self._controls[name]
        return made[0] if control.each is None else made

    def draw(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the line and the figures for the controls' values, given in their order."""
        raise NotImplementedError

    def _redraw(self) -> None:
        try:
            self.summary, *new = self.draw(*self.settings().values())
        except SpecwbError as error:
            self._refuse(error)
            return
        if not self._figures:
            self._figures = [LiveFigure(figure) for figure in new]
        for shown, figure in zip(self._figures, new):
            shown.figure = figure
        self._say(self.summary)

    def settle(self) -> None:
        """Do now what a kernel does when it has nothing else to do."""

    def settings(self) -> dict[str, Any]:
        """Return what the controls are set to, by name."""
        return {name: control.read(made) for name, (control, made) in self._controls.items()}

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
        """Give the line: the default lists every control, with its random id."""
        return f"{type(self).__name__}({self.summary})"

    @contextmanager
    def at(self, **values: Any) -> Iterator[Self]:
        """Set controls, and set them back afterwards: a look at other settings that leaves the
        explorer in the page as it stood.

        Args:
            values: control -> its value meanwhile; for a list of controls a list.
        Raises:
            AttributeError: no such control.
        """
        moved: list[tuple[Any, Any]] = []
        for name, value in values.items():
            if name not in self._controls:
                raise AttributeError(f"no control {name!r}; there are {', '.join(self._controls)}")
            own = self[name]
            moved += zip(own, value, strict=True) if isinstance(own, list) else [(own, value)]
        before = [(control, control.value) for control, _ in moved]
        try:
            for control, value in moved:
                control.value = value
            self.settle()
            yield self
        finally:
            for control, value in before:
                control.value = value
