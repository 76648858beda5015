"""A sweep's means by parameter: a curve with intervals, curves, or a heat map."""

from __future__ import annotations

from itertools import cycle

import pandas as pd
import plotly.graph_objects as go

from specwb.figures.style import DEPTHS, PALETTE, figure


def by_parameter(means: pd.DataFrame, by: list[str], value: str) -> go.Figure:
    """The means, of speedups medians, of :func:`specwb.sweeps.summary` over one parameter or two.

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
        heat = go.Heatmap(
            x=[f"{x:g}" for x in cells.columns],
            y=[f"{y:g}" for y in cells.index],
            z=cells.to_numpy(),
            colorbar={"title": value},
            colorscale=DEPTHS,
            texttemplate="%{z:.2f}",
        )
        axes = [{"title": name, "type": "category"} for name in by]  # the values, not a scale
        return figure(heat, xaxis=axes[0], yaxis=axes[1])
    *others, last = by
    groups = means.groupby(others, dropna=False) if others else [((), means)]
    curves = [
        go.Scatter(
            x=group[last],
            y=group[middle],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": group["high"] - group[middle],
                "arrayminus": group[middle] - group["low"],
            },
            mode="lines+markers" if numbers[-1] else "markers",
            line={"color": colour, "dash": dash},
            marker={"symbol": symbol, "size": 8},
            name=", ".join(f"{name}={x}" for name, x in zip(others, key, strict=True)) or value,
        )
        for (key, group), (colour, dash, symbol) in zip(groups, cycle(PALETTE), strict=False)
    ]
    return figure(*curves, xaxis={"title": last}, yaxis={"title": value})
