"""Explorers show the library's numbers, and pages what they are given."""

from __future__ import annotations

import gzip
import json
import types

import numpy as np
import pytest
import tiny

import specwb

pd = pytest.importorskip("pandas")
pytest.importorskip("plotly")
pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")

import ipywidgets  # noqa: E402
import plotly.graph_objects as go  # noqa: E402
from drawn import numbers, picture, shown  # noqa: E402
from plotly.offline import get_plotlyjs  # noqa: E402

from specwb import analysis, figures, widgets  # noqa: E402
from specwb.figures import kit, style  # noqa: E402
from specwb.widgets import (  # noqa: E402
    AcceptanceExplorer,
    RootsExplorer,
    RulesExplorer,
    SpeedExplorer,
    display,
    show,
)
from specwb.widgets.acceptance import shaped  # noqa: E402
from specwb.widgets.controls import Explorer  # noqa: E402
from specwb.widgets.figure import LiveFigure, _asked  # noqa: E402

PROMPT = [1, 2, 3]


def decoded(method="mcsd", temperature=1.0, prompt=PROMPT, **options) -> specwb.Output:
    return specwb.decode(
        tiny.target(),
        prompt,
        method,
        draft=tiny.draft(),
        max_new_tokens=24,
        temperature=temperature,
        seed=3,
        trace=True,
        **options,
    )


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


def test_figures_do_not_bring_their_library():
    """Until a page asks for it, once; then it comes packed, whole."""
    state = LiveFigure(go.Figure(go.Scatter(y=[1, 2]))).get_state()
    assert len(json.dumps(state)) < 10_000
    sent = []
    source = types.SimpleNamespace(send=lambda content, buffers: sent.append((content, buffers)))
    _asked(source, {"kind": "another"}, [])
    assert sent == []
    _asked(source, {"kind": "plotly"}, [])
    ((content, (packed,)),) = sent
    assert content == {"kind": "plotly"}
    assert gzip.decompress(packed).decode() == get_plotlyjs()


def test_explorers_are_as_wide_as_their_cell():
    for name in set(widgets.__all__) - {"show", "Microscope"}:  # which looks at its width itself
        assert issubclass(getattr(widgets, name), Explorer), name
    for one in (SpeedExplorer(), RulesExplorer()):
        assert one.layout.width == "100%"
        drawn = [child for child in one.children if isinstance(child, LiveFigure)]
        assert drawn
        assert all(child.layout.width == "100%" for child in drawn)
        assert all(child.figure.layout.width is None for child in drawn)


def test_a_look_at_other_settings_leaves_the_explorer_where_it_was():
    one = SpeedExplorer(alpha=0.6, c=0.2, gamma=2)
    first, drawn = one.summary, shown(one)
    with one.at(alpha=0.8, gamma=5) as moved:
        assert moved is one
        assert numbers(one)[:3] == ["0.80", "0.20", "5"]
        assert shown(one) != drawn
    assert (one.summary, shown(one)) == (first, drawn)
    with pytest.raises(RuntimeError, match="stop"), one.at(c=0.5):
        raise RuntimeError("stop")
    assert one.summary == first
    with pytest.raises(AttributeError), one.at(beta=1):
        pass
    several = RootsExplorer()
    first = several.summary
    with several.at(roots=3, rates=[0.5] * 4):
        assert numbers(several)[2:6] == ["0.50"] * 4
    assert several.summary == first
    with pytest.raises(ValueError, match="shorter"), several.at(rates=[0.5]):
        pass


# ------------------------------------------------------------------------------------------- show


def published(monkeypatch, thing, summary) -> dict:
    sent = []
    monkeypatch.setattr(widgets.display, "display", lambda data, raw: sent.append((data, raw)))
    show(thing, summary)
    ((data, raw),) = sent
    assert raw
    return data


def test_show_publishes_picture_and_line(monkeypatch):
    figure = figures.round_lengths({"a": decoded().accepted_lengths[0]})
    data = published(monkeypatch, figure, "tau = 2")
    assert data["text/plain"] == "tau = 2"
    assert json.loads(json.dumps(data["application/vnd.plotly.v1+json"]))["data"][0]["y"] == list(
        figure.data[0].y
    )
    for widget in (ipywidgets.IntSlider(), LiveFigure(figure)):
        data = published(monkeypatch, widget, "a slider")
        assert data["text/plain"] == "a slider"
        assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == widget.model_id


def test_what_a_png_is_drawn_from_goes_along_where_it_is_asked_for(monkeypatch):
    one = SpeedExplorer(v=lambda gamma: 1.0)
    assert display.STILL not in published(monkeypatch, one, "a line")
    monkeypatch.setenv("SPECWB_STILLS", "1")
    data = published(monkeypatch, one, "a line")
    controls, line, drawn = json.loads(json.dumps(data[display.STILL]))
    settings = [["alpha", "0.70"], ["c", "0.10"], ["gamma", "4"], ["scoring costs", "as measured"]]
    assert controls == {"controls": settings}
    assert line == {"html": one.children[1].value}
    assert drawn == {"figure": shown(one)}
    figure = figures.round_lengths({"a": decoded().accepted_lengths[0]})
    (part,) = published(monkeypatch, figure, "a figure")[display.STILL]
    assert part == {"figure": json.loads(figure.to_json())}


def test_settings_are_written_as_the_controls_show_them():
    written = [
        (ipywidgets.Checkbox(True, description="a"), "yes"),
        (ipywidgets.Dropdown(options=[("one", 1), ("two", 2)], value=2, description="a"), "two"),
        (ipywidgets.SelectionSlider(options=[1, 4], value=4, description="a"), "4"),
        (ipywidgets.IntSlider(7, description="a"), "7"),
        (ipywidgets.FloatSlider(0.5, readout_format=".3f", description="a"), "0.500"),
    ]
    for control, words in written:
        assert display.still(control) == [{"controls": [["a", words]]}]
    assert display.still(ipywidgets.VBox([ipywidgets.HTML()])) == []


def test_a_figure_says_what_can_be_read_off_it(monkeypatch):
    shown = []
    monkeypatch.setattr(display, "display", lambda data, **_: shown.append(data["text/plain"]))
    panels = [[kit.Panel("left"), kit.Panel("right")]]
    panels[0][0].line("a", [1, 2, 3], [0.5, 2.25, 1], ("#000000", "solid", "circle"))
    panels[0][1].bars("b", ["x", "y"], [3, 1.0001], "#000000").bars("c", ["x"], [7], "#000000")
    show(kit.draw(panels, 300, title="t"))
    assert shown == ["t | left | a: 0.5 to 1, most 2.25 | right | b: 3 to 1; c: 7"]


def test_show_refuses_what_it_cannot_show():
    with pytest.raises(specwb.ArgumentError, match="figure or an ipywidgets widget, got int"):
        show(3, "three")
    for line in ("", "  ", "two\nlines", None):
        with pytest.raises(ValueError, match="one line of text"):
            show(ipywidgets.IntSlider(), line)


# --------------------------------------------------------------------------- acceptance and speed


@pytest.mark.parametrize(
    ("control", "value"),
    [
        ("temperature", 0.2),
        ("temperature", 5.0),
        ("shift", -5.0),
        ("shift", 0.0),
        ("sharpness", 0.2),
        ("sharpness", 5.0),
    ],
)
def test_acceptance_explorer_shows_the_librarys_numbers(control, value):
    explorer = AcceptanceExplorer(draws=500, seed=3)
    settings = {"temperature": 1.0, "shift": 1.0, "sharpness": 1.0, control: value}
    before = shown(explorer)
    getattr(explorer, control).value = value
    p, q = shaped(**settings)
    counts, accepted = analysis.simulate(p, q, 500, 3)
    assert shown(explorer) == picture(figures.acceptance(p, q, counts.tolist())) != before
    off = abs(counts / 500 - p).max()
    said = [f"{x:.3f}" for x in (analysis.acceptance_rate(p, q), accepted / 500, off)]
    assert [x for x in numbers(explorer) if len(x) == 5] == said


def test_shaped_distributions():
    p, q = shaped(1.0, 0.0, 1.0)
    assert p.tolist() == q.tolist()
    assert p.sum() == pytest.approx(1)
    assert p.argmax() == 6
    assert shaped(1.0, 3.0, 1.0)[1].argmax() == 9
    for temperature in (0.5, 2.0):  # it is the draft's too
        p, q = shaped(temperature, 0.0, 1.0)
        assert p.tolist() == q.tolist()
    p, q = shaped(1.0, 0.0, 1.0)
    assert shaped(1.0, 0.0, 4.0)[1].max() > p.max() > shaped(2.0, 0.0, 1.0)[0].max()


def test_speed_explorer_shows_the_librarys_numbers():
    measured = {1: 1.1, 4: 1.3}

    def v(gamma: int) -> float:
        return 1 + 0.1 * gamma

    explorer = SpeedExplorer(alpha=0.6, c=0.2, gamma=2, most=8, v=v, measured=measured)
    explorer.alpha.value, explorer.c.value, explorer.gamma.value = 0.8, 0.05, 6
    for scoring, cost in (
        (explorer.scoring.options[0], v),
        (explorer.scoring.options[1], lambda g: 1),
    ):
        explorer.scoring.value = scoring
        curve = [analysis.speedup(0.8, g, 0.05, cost(g)) for g in range(9)]
        assert shown(explorer) == picture(figures.speedup({"predicted": curve}, measured, 6))
        best = analysis.best_gamma(0.8, 0.05, cost, 8)
        tokens = analysis.expected_tokens(0.8, 6)
        said = [0.8, 0.05, 6, cost(6), 6, tokens, curve[6], best, curve[best]]
        assert list(map(float, numbers(explorer))) == pytest.approx(said, abs=0.0051)
    alone = SpeedExplorer(alpha=0.6559, c=0.1286)
    assert (alone.alpha.value, alone.c.value) == (0.66, 0.13)
    assert len(alone.scoring.options) == 1
    assert numbers(alone)[3] == "1.00"
    alone.alpha.value, alone.c.value = 0.0, 1.0
    assert numbers(alone)[-2:] == ["0", "1.00"]


def test_a_stored_png_stays_with_its_line(monkeypatch, tmp_path):
    page = tmp_path / "n.ipynb"
    output = {"data": {"image/png": "abc", "text/plain": ["the ", "line"]}}
    page.write_text(json.dumps({"cells": [{"outputs": [{"text": "x"}, output]}, {"source": ""}]}))
    figure = figures.round_lengths({"a": decoded().accepted_lengths[0]})
    assert "image/png" not in published(monkeypatch, figure, "the line")
    monkeypatch.setenv("JPY_SESSION_NAME", str(page))
    assert published(monkeypatch, figure, "the line")["image/png"] == "abc"
    assert "image/png" not in published(monkeypatch, figure, "another line")
    for content in ("{", "[]", '{"cells": [1]}'):
        page.write_text(content)
        assert "image/png" not in published(monkeypatch, figure, "the line")
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "none.ipynb"))
    assert "image/png" not in published(monkeypatch, figure, "the line")
