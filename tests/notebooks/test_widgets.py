"""Pages show what they are given: figures that change, and figures and widgets with a line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from drawn import picture, shown

import specwb

pytest.importorskip("anywidget")  # of one extra with plotly and ipywidgets

import ipywidgets
import plotly.graph_objects as go

from specwb.show import figures
from specwb.show.figures import kit, style
from specwb.show.widgets import SpeedExplorer, display, show
from specwb.show.widgets.figure import LiveFigure

FIGURE = figures.by_setting({"a": {0: 1.0, 1: 1.5, 2: 1.25}}, "t", "y", "x")

# --------------------------------------------------------------------------- figures that change


def test_a_figure_is_what_the_page_gets():
    first, second = go.Figure(go.Scatter(y=[1, 2])), go.Figure(go.Bar(y=np.array([2.0, 1.0])))
    first.add_hline(1, annotation_text="one")
    live = LiveFigure(first)
    assert live.figure is first
    assert json.loads(live.source.value) == {**picture(first), "config": style.CONFIG}
    live.figure = second  # of the one before nothing is left
    assert live.figure is second
    assert json.loads(live.source.value) == {**picture(second), "config": style.CONFIG}
    assert live.get_state()["source"] == f"IPY_MODEL_{live.source.model_id}"


# ------------------------------------------------------------------------------------------- show


@pytest.fixture
def published(monkeypatch):
    """Shows a thing, and returns the mime bundle that a notebook gets."""
    sent = []
    monkeypatch.setattr(display, "display", lambda data, raw: sent.append(data))
    return lambda *arguments: show(*arguments) or sent.pop()


def test_show_publishes_picture_and_line(published):
    data = published(FIGURE, "tau = 2")
    assert data["text/plain"] == "tau = 2"
    drawn = json.loads(json.dumps(data["application/vnd.plotly.v1+json"]))
    assert drawn["data"][0]["y"] == list(FIGURE.data[0].y)
    for widget in (ipywidgets.IntSlider(), LiveFigure(FIGURE)):
        data = published(widget, "a slider")
        assert data["text/plain"] == "a slider"
        assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == widget.model_id


def test_what_a_png_is_drawn_from_goes_along_where_it_is_asked_for(published, monkeypatch):
    one = SpeedExplorer(v=lambda gamma: 1.0)
    assert display.STILL not in published(one, "a line")
    monkeypatch.setenv("SPECWB_STILLS", "1")
    data = published(one, "a line")
    controls, line, drawn = json.loads(json.dumps(data[display.STILL]))
    settings = [["alpha", "0.70"], ["c", "0.10"], ["gamma", "4"], ["scoring costs", "as measured"]]
    assert controls == {"controls": settings}
    assert line == {"html": one.children[1].value}
    assert drawn == {"figure": shown(one)}
    (part,) = published(FIGURE, "a figure")[display.STILL]
    assert part == {"figure": json.loads(FIGURE.to_json())}


def test_a_figure_says_what_can_be_read_off_it(published):
    panels = [[kit.Panel("left"), kit.Panel("right")]]
    panels[0][0].line("a", [1, 2, 3], [0.5, 2.25, 1], ("#000000", "solid", "circle"))
    panels[0][1].bars("b", ["x", "y"], [3, 1.0001], "#000000").bars("c", ["x"], [7], "#000000")
    line = published(kit.draw(panels, 300, title="t"))["text/plain"]
    assert line == "t | left | a: 0.5 to 1, most 2.25 | right | b: 3 to 1; c: 7"


def test_show_refuses_what_it_cannot_show():
    with pytest.raises(specwb.ArgumentError, match="figure or an ipywidgets widget, got int"):
        show(3, "three")
    for line in ("", "  ", "two\nlines", None):
        with pytest.raises(ValueError, match="one line of text"):
            show(ipywidgets.IntSlider(), line)


def test_a_stored_png_stays_with_its_line(published, monkeypatch, tmp_path):
    page = tmp_path / "n.ipynb"
    output = {"data": {"image/png": "abc", "text/plain": ["the ", "line"]}}
    page.write_text(json.dumps({"cells": [{"outputs": [{"text": "x"}, output]}, {"source": ""}]}))
    assert "image/png" not in published(FIGURE, "the line")
    monkeypatch.setenv("JPY_SESSION_NAME", str(page))
    assert published(FIGURE, "the line")["image/png"] == "abc"
    assert "image/png" not in published(FIGURE, "another line")
    for content in ("{", "[]", '{"cells": [1]}'):
        page.write_text(content)
        assert "image/png" not in published(FIGURE, "the line")
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "none.ipynb"))
    assert "image/png" not in published(FIGURE, "the line")
