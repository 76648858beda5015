"""A sweep's means by parameter: a curve with intervals, curves, or a heat map."""

from __future__ import annotations

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
        means: a row for each combination; columns ``mean`` or ``median``, ``low`` and ``high``.
        by: its parameters.
        value: title of the means.
    """
    means = means.dropna(subset=by)  # methods without such an option
    middle = "median" if "median" in means else "mean"
    numbers = [pd.api.types.is_numeric_dtype(means[name]) for name in by]
    if len(by) == 2 and all(numbers):
        return _heat_map(means, by, value, middle)
    *others, last = by
    groups = list(means.groupby(others, dropna=False)) if others else [((), means)]
    panel = Panel("", axis(last), axis(value))
    for (key, group), look in zip(groups, looks(map(str, range(len(groups)))).values()):
        name = ", ".join(f"{name}={x}" for name, x in zip(others, key, strict=True)) or value
        interval = whiskers(group[middle], group["low"], group["high"])
        width = 2 if numbers[-1] else 0
        panel.line(name, group[last], group[middle], look, width=width, error_y=interval)
    return draw(panel, 450)


def _heat_map(means: pd.DataFrame, by: list[str], value: str, middle: str) -> go.Figure:
    """The settings that were measured as cells, with the ends of their intervals."""
    tables = [means.pivot(index=by[1], columns=by[0], values=x) for x in (middle, "low", "high")]
    words = [
        ["" if v != v else f"{v:.2f}<br>{low:.2f} .. {high:.2f}" for v, low, high in zip(*rows)]
        for rows in zip(*(table.to_numpy() for table in tables))
    ]
    panel = Panel("", axis(by[0], type="category"), axis(by[1], type="category"))
    x, y = ([f"{v:g}" for v in values] for values in (tables[0].columns, tables[0].index))
    scale = {"zmin": None, "zmax": None, "showscale": True, "colorbar": {"title": value}}
    hover = "%{x}, %{y}: %{text}"
    panel.cells(x, y, tables[0].to_numpy(), DEPTHS, words, hover=hover, written=True, **scale)
    return draw(panel, 450)


def trade(means: pd.DataFrame, by: list[str], value: str, cost: str) -> go.Figure:
    """What :func:`specwb.lab.sweeps.front` returns: every combination with its intervals, and a
    line through those that nothing beats.

    Args:
        means: a row for each combination, ``front`` where nothing beats it.
        by: its parameters.
        value, cost: columns, each with its ``_low`` and ``_high``.
    """
    panel = Panel("", axis(f"{cost} per step" if cost == "drafted" else cost), axis(value))
    for is_front, look in zip((False, True), looks("ab").values()):
        rows = means[means.front == is_front]
        ends = {x: whiskers(rows[x], rows[f"{x}_low"], rows[f"{x}_high"]) for x in (cost, value)}
        words = [", ".join(f"{key}={x}" for key, x in zip(by, row)) for row in rows[by].to_numpy()]
        panel.line(
            "nothing is better" if is_front else "others",
            rows[cost],
            rows[value],
            look,
            width=2 if is_front else 0,
            text=words,
            hover="%{text}: %{x:.3f}, %{y:.3f}",
            error_x=ends[cost],
            error_y=ends[value],
        )
    return draw(panel, 450)
