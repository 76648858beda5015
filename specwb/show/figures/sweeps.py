"""A sweep's means by parameter: a curve with intervals, curves, or a heat map."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from specwb.show.figures.kit import Panel, axis, draw, whiskers
from specwb.show.palette import DEPTHS, looks


def by_parameter(means: pd.DataFrame, by: list[str], value: str) -> go.Figure:
    """The means, of speedups medians, of :func:`specwb.lab.sweeps.summary` over one parameter or
    two.

    Of one parameter: points with their intervals, joined where it is a number. Of two numbers: a
    heat map. Otherwise one curve over the last parameter for every combination of the others.

    Args:
        means: the frame.
        by: its parameters.
        value: what the means are of.
    """
    means = means.dropna(subset=by)  # methods without such an option
    middle = "median" if "median" in means else "mean"
    numbers = [pd.api.types.is_numeric_dtype(means[name]) for name in by]
    if len(by) == 2 and all(numbers):
        cells = means.pivot(index=by[1], columns=by[0], values=middle)
        # the settings that were measured, not a scale
        one = Panel("", axis(by[0], type="category"), axis(by[1], type="category"))
        x, y = ([f"{v:g}" for v in values] for values in (cells.columns, cells.index))
        low, high = (means.pivot(index=by[1], columns=by[0], values=end) for end in ("low", "high"))
        words = [
            ["" if v != v else f"{v:.2f}<br>{a:.2f} .. {b:.2f}" for v, a, b in zip(*row)]
            for row in zip(cells.to_numpy(), low.to_numpy(), high.to_numpy())
        ]
        bar = {"zmin": None, "zmax": None, "showscale": True, "colorbar": {"title": value}}
        ends = np.dstack((low, high)).tolist()
        hover = "%{x}, %{y}: %{z:.3f} (%{customdata[0]:.3f} .. %{customdata[1]:.3f})"
        more = {"written": True, "customdata": ends, "hover": hover, **bar}
        one.cells(x, y, cells.to_numpy(), DEPTHS, words, **more)
        return draw(one, 450)
    *others, last = by
    groups = list(means.groupby(others, dropna=False)) if others else [((), means)]
    one = Panel("", axis(last), axis(value))
    for (key, group), look in zip(groups, looks(map(str, range(len(groups)))).values()):
        name = ", ".join(f"{name}={x}" for name, x in zip(others, key, strict=True)) or value
        interval = whiskers(group[middle], group["low"], group["high"])
        joined = 2 if numbers[-1] else 0
        one.line(name, group[last], group[middle], look, width=joined, error_y=interval)
    return draw(one, 450)


def trade(means: pd.DataFrame, by: list[str], value: str, cost: str) -> go.Figure:
    """What :func:`specwb.lab.sweeps.front` returns: every combination with its intervals, and a
    line through those that nothing beats.
    """
    one = Panel("", axis(f"{cost} a step" if cost == "drafted" else cost), axis(value))
    looked = looks(("others", "nothing is better"))
    for name, look in looked.items():
        rows = means[means.front == (name != "others")]
        if rows.empty:
            continue
        bars = {
            f"error_{at}": whiskers(rows[of], rows[f"{of}_low"], rows[f"{of}_high"])
            for at, of in (("x", cost), ("y", value))
        }
        words = [", ".join(f"{key}={x}" for key, x in zip(by, row)) for row in rows[by].to_numpy()]
        width = 2 if name != "others" else 0
        hover = "%{text}: %{x:.3f}, %{y:.3f}"
        one.line(name, rows[cost], rows[value], look, width=width, text=words, hover=hover, **bars)
    return draw(one, 450)
