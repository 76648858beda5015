"""What holds of every explorer and each of its controls."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from html import unescape

import plotly.graph_objects as go
import pytest
from drawn import every_figure, live, numbers
from explorers import EXPLORERS
from traitlets import TraitError

import specwb
from specwb.show import widgets
from specwb.show.widgets.controls import Control, Explorer

CONTROLS = {
    name: [f.name for f in fields(kind) if isinstance(f.default, Control)]
    for name in EXPLORERS
    for kind in [getattr(widgets, name)]
}


def positions(widget) -> list:
    """Where a control is moved to: its limits and somewhere between, or its outer choices."""
    if hasattr(widget, "options"):
        choices = [x[1] if isinstance(x, tuple) else x for x in widget.options]
        return list(dict.fromkeys([choices[0], choices[-1]]))
    if isinstance(widget.value, bool):
        return [False, True]
    between = round((widget.max - widget.min) / 2 / widget.step) * widget.step
    return [widget.min, type(widget.value)(widget.min + between), widget.max]


def test_every_explorer_is_in_the_table():
    classes = [x for x in vars(widgets).values() if inspect.isclass(x)]
    assert {x.__name__ for x in classes if issubclass(x, Explorer)} == set(EXPLORERS)
    assert all(CONTROLS.values())


@pytest.mark.parametrize("name", EXPLORERS)
def test_its_line_and_figures_follow_its_controls(name):
    view = EXPLORERS[name]()
    children = view.children
    assert repr(view) == f"{name}({view.summary})"
    figures = live(view)
    assert {one.layout.width for one in (view, *figures)} == {"100%"}
    assert {one.figure.layout.width for one in figures} == {None}
    (line,) = [x for x in children if 'role="status"' in getattr(x, "value", "")]
    lines, drawn = set(), set()
    for control in CONTROLS[name]:
        widget = getattr(view, control)
        assert widget.description
        slider = hasattr(widget, "continuous_update")
        assert not slider or widget.continuous_update == view.continuous
        before, seen = widget.value, set()
        for value in positions(widget):
            widget.value = value
            assert numbers(view)
            assert "Not drawn" not in view.summary
            assert f">{view.summary}</div>" in unescape(line.value)
            played = [x.traces for x in view.children if isinstance(x, widgets.Microscope)]
            seen.add((view.summary, json.dumps([*every_figure(view), *played])))
        assert len(seen) > 1 or (len(positions(widget)) == 1 and widget.disabled)
        lines |= {summary for summary, _ in seen}
        drawn |= {figure for _, figure in seen}
        widget.value = before
    assert min(len(lines), len(drawn)) > 2
    assert view.children == children  # the figures are the same widgets


class Doubled(Explorer):
    """A class that is declared and nothing more."""

    most: int
    k: int = Control(2, low=1, high=lambda self: self.most)
    rate: float = Control(0.25, step=0.25, row=1)
    shout: bool = Control(False, label="loud")

    def draw(self, k, rate, shout):
        if k == 3:
            raise specwb.ArgumentError("three is not drawn")
        return f"{k} {rate} {shout}", go.Figure()


def test_what_is_declared_is_there():
    one = Doubled(4, rate=0.3)
    assert one.summary == "2 0.25 False"  # in whole steps
    first, second, line, _ = one.children
    assert [c.description for c in first.children] == ["k", "loud"]
    assert [c.description for c in second.children] == ["rate"]
    assert list(inspect.signature(Doubled).parameters) == ["most", "k", "rate", "shout"]
    assert Doubled(1).k.value == 1  # a default beyond the limit
    one.rate.value = 0.1 + 0.2  # as a page adds steps
    assert one.summary == "2 0.3 False"
    with pytest.raises(TypeError, match="another"):
        Doubled(4, another=1)
    one.k.value = 3
    assert "three is not drawn" in one.summary
    assert "bold" in line.value
    one.k.value = 4
    assert one.summary.startswith("4 ")
    assert "bold" not in line.value
    with pytest.raises(specwb.ArgumentError, match="three is not drawn"):
        Doubled(4, k=3)


def test_a_wrong_initial_value_is_refused(monkeypatch):
    """Before anything is drawn."""
    monkeypatch.setattr(Doubled, "draw", lambda *_: pytest.fail("drawn"))
    for name, value in (("k", 5), ("k", 0), ("rate", float("nan")), ("rate", "1")):
        with pytest.raises(specwb.ArgumentError, match=f"^{name} must be .*, got {value!r}$"):
            Doubled(4, **{name: value})


def test_several_controls_are_set_with_one_drawing(monkeypatch):
    one, drawn, draw = Doubled(4), [], Doubled.draw
    monkeypatch.setattr(Doubled, "draw", lambda self, *at: drawn.append(at) or draw(self, *at))
    with one.at(k=1, rate=0.5, shout=True):
        assert one.summary == "1 0.5 True"
    assert drawn == [(1, 0.5, True), (2, 0.25, False)]
    with pytest.raises(TraitError), one.at(k=1, rate="x"):
        pass
    one.k.value = 1
    assert one.summary == "1 0.25 False"
