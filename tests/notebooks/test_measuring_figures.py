"""What the figures of measurements say is what they were given."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("plotly")

from specwb.course.measure import origin
from specwb.figures import measuring
from specwb.figures.sweeps import by_parameter


def test_estimates_span_the_middle():
    drawn = measuring.estimates({"a": np.arange(101) / 100, "b": [2.0]}, 0.5, "speedup")
    cloud, span, middle = drawn.data[:3]
    assert list(span.x) == pytest.approx([0.05, 0.95])
    assert list(middle.x) == pytest.approx([0.5])
    assert middle.text == ("0.05 to 0.95",)
    assert len(cloud.x) == 101
    assert drawn.layout.shapes[0].x0 == drawn.layout.shapes[0].x1 == 0.5
    assert list(drawn.layout.yaxis.ticktext) == ["a", "b"]
    for found in ({}, {"a": []}):
        with pytest.raises(ValueError, match="at least one"):
            measuring.estimates(found, 1, "x")


def test_rays_are_equal_speedups():
    drawn = measuring.price_and_tokens({"fast": (1.5, 3.0), "slow": (4.0, 2.0)})
    assert [(t.name, t.x[0], t.y[0]) for t in drawn.data] == [("fast", 1.5, 3.0), ("slow", 4.0, 2)]
    for ray, word in zip(drawn.layout.shapes, drawn.layout.annotations, strict=True):
        assert word.text == f"{ray.y1 / ray.x1:g}x"
        assert ray.x0 == ray.y0 == 0
    (main,) = (ray for ray in drawn.layout.shapes if ray.line.dash == "dash")
    assert main.x1 == main.y1
    for points in ({}, {"free": (0.0, 1.0)}, {str(i): (1.0, 1.0) for i in range(9)}):
        with pytest.raises(ValueError, match=r"methods|> 0"):
            measuring.price_and_tokens(points)


def test_bars_say_their_values():
    drawn = measuring.bars({"a": {"x": 1.0, "y": 2.345}, "b": {"y": 3, "z": 4}}, "tokens", line=1)
    assert [tuple(trace.text) for trace in drawn.data] == [
        ("1.00", "2.35", ""),
        ("", "3.00", "4.00"),
    ]
    assert [(list(trace.x), list(trace.y)) for trace in drawn.data] == [
        (["x", "y", "z"], [1.0, 2.345, None]),
        (["x", "y", "z"], [None, 3, 4]),
    ]
    assert [trace.marker.pattern.shape for trace in drawn.data] == ["", "/"]
    assert drawn.layout.shapes[0].y0 == drawn.layout.shapes[0].y1 == 1
    drawn = measuring.bars({"a": {"mean_accept_length_per_request": 1.0}}, "tokens")
    assert drawn.layout.xaxis.ticktext == ("mean accept<br>length per<br>request",)
    for values in ({}, {str(i): {"x": 1} for i in range(5)}):
        with pytest.raises(ValueError, match="series"):
            measuring.bars(values, "y")


def test_a_heat_map_has_the_settings_that_were_measured_on_its_axes():
    cells = [
        {"eta": eta, "gamma": gamma, "mean": eta + gamma} for eta in (0, 0.9) for gamma in (2, 6)
    ]
    drawn = by_parameter(pd.DataFrame(cells), ["eta", "gamma"], "tau")
    assert (drawn.layout.xaxis.type, drawn.layout.yaxis.type) == ("category", "category")
    assert (list(drawn.data[0].x), list(drawn.data[0].y)) == (["0", "0.9"], ["2", "6"])
    assert drawn.data[0].z.tolist() == [[2, 2.9], [6, 6.9]]


def test_the_interval_of_a_curve_begins_at_its_mean():
    means = [
        {"rule": "a", "gamma": 2, "mean": 2.0, "low": 1.75, "high": 2.5},
        {"rule": "a", "gamma": 4, "mean": 3.0, "low": 2.0, "high": 3.25},
        {"rule": "b", "gamma": 2, "mean": 1.5, "low": 1.5, "high": 1.5},
    ]
    one, other = by_parameter(pd.DataFrame(means), ["rule", "gamma"], "tau").data
    assert (one.name, list(one.x), list(one.y)) == ("rule=a", [2, 4], [2, 3])
    assert (list(one.error_y.array), list(one.error_y.arrayminus)) == ([0.5, 0.25], [0.25, 1])
    assert (other.name, list(other.x), list(other.y)) == ("rule=b", [2], [1.5])


def test_one_thread_is_no_plural():
    for threads, words in ((1, "1 thread"), (2, "2 threads"), (11, "11 threads")):
        assert origin({"arguments": {"device": f"X, {threads} threads"}}) == f"X, {words}"
