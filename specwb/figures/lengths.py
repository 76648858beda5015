"""How many tokens the rounds of several methods gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specwb.errors import ArgumentError
from specwb.figures.style import FIRST, MARK, figure

COLUMNS = 3


def round_lengths(accepted: Mapping[str, Sequence[int]]) -> go.Figure:
    """One histogram a method: the share of its rounds that added 1, 2, ... tokens; the dashed line
    is tau, their mean.

    Args:
        accepted: draft tokens kept by round, for each method; a round adds one more, its bonus
            token.
    Raises:
        ValueError: a method without rounds, or no method.
    """
    if not accepted or not all(accepted.values()):
        raise ArgumentError(
            "round_lengths needs at least one method, and at least one round of each"
        )
    counts = {name: Counter(a + 1 for a in lengths) for name, lengths in accepted.items()}
    tau = {
        name: sum(n * c for n, c in count.items()) / count.total() for name, count in counts.items()
    }
    sizes = list(range(1, max(map(max, counts.values())) + 1))
    top = 1.1 * max(max(count.values()) / count.total() for count in counts.values())
    across, down = min(COLUMNS, len(counts)), -(-len(counts) // COLUMNS)
    drawn = make_subplots(
        down,
        across,
        subplot_titles=[f"{name}, tau {tau[name]:.2f}" for name in counts],
        vertical_spacing=0.34 / down,
        horizontal_spacing=0.06,
        figure=figure(
            title={
                "text": "Tokens per round (dashed: tau, the mean)",
                "x": 0,
                "xref": "paper",
                "y": 0.98,
                "yanchor": "top",
            },
            height=130 + 200 * down,
            showlegend=False,
            margin={"l": 70, "r": 20, "t": 84, "b": 50},
        ),
    )
    for i, (name, count) in enumerate(counts.items()):
        row, column = i // COLUMNS + 1, i % COLUMNS + 1
        bars = go.Bar(
            x=sizes,
            y=[count[n] / count.total() for n in sizes],
            name=name,
            marker={"color": FIRST},
            customdata=[count[n] for n in sizes],
            hovertemplate=name + ", %{x} tokens: %{y:.1%} of rounds (%{customdata})<extra></extra>",
        )
        mean = go.Scatter(
            x=[tau[name]] * 2,
            y=[0, top],
            mode="lines",
            hoverinfo="skip",
            line={"color": MARK, "dash": "dash", "width": 2},
        )
        drawn.add_traces([bars, mean], rows=row, cols=column)
        lowest = i + COLUMNS >= len(counts)
        drawn.update_xaxes(
            {"title": {"text": "tokens added in a round" if lowest else ""}}, row=row, col=column
        )
        drawn.update_yaxes(
            {"title": {"text": "share of rounds" if column == 1 else ""}}, row=row, col=column
        )
    drawn.update_xaxes(range=[0.4, len(sizes) + 0.6], dtick=1 if len(sizes) <= 12 else 2)
    drawn.update_yaxes(range=[0, top], tickformat=".0%", nticks=5)
    drawn.update_annotations(font_size=13, xanchor="center")
    return drawn
