"""Drafting with a diffusion model: a lattice with paths through it, and how draft lengths adapt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specwb.errors import ArgumentError
from specwb.figures.style import ACCEPTED, DARK, DRAFT, INK, MARK, OTHER, PALETTE, figure, lines

SHADES = [
    [0, "#F1F7FB"],
    [0.1, "#CFE5F2"],
    [0.4, "#9CCDE8"],
    [1, "#56B4E9"],
]  # light enough for dark words
LOOKS = (
    ("#D55E00", "solid", "circle-open"),
    ("#0072B2", "dash", "square-open"),
    (PALETTE[6][0], "dot", "diamond-open"),
)


def lattice(
    words: Sequence[Sequence[str]],
    chances: Sequence[Sequence[float]],
    paths: Mapping[str, Sequence[int | None]],
    *,
    kept: Sequence[int] | None = None,
    below: Sequence[str] = (),
    title: str = "",
) -> go.Figure:
    """A lattice as columns of candidates, the likeliest on top, and paths through it.

    Args:
        words, chances: ``[k][M]`` tokens and their probabilities, best first.
        kept: how many of each column are left after pruning, default all; the others are empty.
        paths: name -> the row of its token in each column from the first on, None where it is not
            among them; at most three.
        below: the words of the first path's tokens that are not among the candidates, by column
            ("" elsewhere).
        title: of the figure.
    Raises:
        ValueError: no column, columns of different lengths, more than three paths or one that is
            longer than the lattice or leaves its rows.
    """
    k, m = len(words), len(words[0]) if words else 0
    kept = [m] * k if kept is None else list(kept)
    if (
        not m
        or any(len(a) != m or len(b) != m for a, b in zip(words, chances, strict=True))
        or len(kept) != k
    ):
        raise ArgumentError(
            "every place has as many words as probabilities, and how many are kept; got "
            f"{[len(a) for a in words]} words"
        )
    if not 1 <= len(paths) <= len(LOOKS) or any(
        len(p) > k or any(r is not None and not 0 <= r < m for r in p) for p in paths.values()
    ):
        raise ArgumentError(
            f"one to {len(LOOKS)} paths of at most {k} tokens in rows 0..{m - 1}, got {dict(paths)}"
        )
    z = [[chances[i][r] if r < kept[i] else None for i in range(k)] for r in range(m)]
    text = [[words[i][r] for i in range(k)] for r in range(m)]
    hover = [
        [f"{chances[i][r]:.3f}" + ("" if r < kept[i] else ", left out") for i in range(k)]
        for r in range(m)
    ]
    cells = go.Heatmap(
        x=list(range(1, k + 1)),
        y=list(range(1, m + 1)),
        z=z,
        zmin=0,
        zmax=1,
        colorscale=SHADES,
        xgap=2,
        ygap=2,
        customdata=hover,
        text=text,
        hovertemplate="place %{x}, rank %{y}: %{text} %{customdata}<extra></extra>",
        colorbar={"title": {"text": "q", "side": "top"}, "thickness": 12, "len": 0.8},
    )
    # of the cells that are empty too, which a heatmap's own labels would leave out
    names = [
        (i + 1, r + 1, text[r][i], DARK if r < kept[i] else OTHER)
        for i in range(k)
        for r in range(m)
    ]
    labels = [
        go.Scatter(
            x=[x for x, _, _, c in names if c == colour],
            y=[y for _, y, _, c in names if c == colour],
            mode="text",
            hoverinfo="skip",
            text=[t for _, _, t, c in names if c == colour],
            textfont={"size": 12 if k <= 10 else 9, "color": colour},
            showlegend=False,
        )
        for colour in (DARK, OTHER)
    ]
    lines = []
    for at, (name, path) in enumerate(paths.items()):
        colour, dash, symbol = LOOKS[at]
        lines.append(
            go.Scatter(
                x=list(range(1, len(path) + 1)),
                y=[(m if r is None else r) + 1 for r in path],
                mode="lines+markers",
                name=name,
                opacity=0.85,
                line={"color": colour, "dash": dash, "width": 2.5},
                hoverinfo="skip",
                marker={
                    "symbol": symbol,
                    "size": [26 - 6 * at] * len(path),
                    "color": colour,
                    "line": {"width": 2.5},
                },
            )
        )
    outside = [(i + 1, word) for i, word in enumerate(below) if word]
    none = go.Scatter(
        x=[x for x, _ in outside],
        y=[m + 1] * len(outside),
        mode="text",
        text=[w for _, w in outside],
        hoverinfo="skip",
        showlegend=False,
        textfont={"size": 12 if k <= 10 else 9, "color": MARK},
    )
    every = list(range(1, m + 1))
    return figure(
        cells,
        *lines,
        *labels,
        none,
        title={"text": title, "x": 0, "xref": "paper", "y": 0.99, "yanchor": "top"},
        xaxis={
            "title": {"text": "place ahead", "standoff": 4},
            "tickvals": list(range(1, k + 1)),
            "range": [0.5, k + 0.5],
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={
            "tickvals": [*every, m + 1],
            "ticktext": [*map(str, every), "not here"],
            "range": [m + 1.6, 0.4],
            "showgrid": False,
            "zeroline": False,
            "title": {"text": "rank"},
        },
        height=160 + 27 * (m + 1),
        margin={"l": 75, "r": 20, "t": 84, "b": 50},
        showlegend=True,
    )


def adaptive(rounds: Sequence[Any], least: int, most: int) -> go.Figure:
    """Adaptive draft length, round by round: what was drafted, generated and accepted, and the two
    averages that steer it.

    Args:
        rounds: of :func:`specwb.analysis.adl_trace`.
        least, most: k_min and k_max.
    Raises:
        ValueError: no round.
    """
    if not rounds:
        raise ArgumentError("there must be at least one round")
    drawn = make_subplots(
        2,
        1,
        shared_xaxes=True,
        row_heights=[0.55, 0.45],
        vertical_spacing=0.12,
        subplot_titles=["tokens drafted, generated, accepted", "their moving averages"],
        figure=figure(
            height=560,
            legend={"orientation": "h", "y": -0.1, "yanchor": "top", "x": 0},
            margin={"l": 60, "r": 20, "t": 40, "b": 90},
        ),
    )
    xs = list(range(1, len(rounds) + 1))

    drawn.add_trace(
        go.Bar(x=xs, y=[r.accepted for r in rounds], name="accepted", marker={"color": ACCEPTED}),
        row=1,
        col=1,
    )
    for lengths, name, line in (
        (
            [r.k for r in rounds],
            "k, drafted",
            {"color": DRAFT, "width": 6},
        ),  # wide: where no text ends the next one lies on it
        (
            [r.generated for r in rounds],
            "generated before an end of text",
            {"color": INK, "dash": "dot", "width": 2},
        ),
    ):
        drawn.add_trace(
            go.Scatter(x=xs, y=lengths, mode="lines", name=name, line={**line, "shape": "hvh"}),
            row=1,
            col=1,
        )
    for values, name, (colour, dash, symbol) in (
        ([r.mean_generated for r in rounds], "a, of generated", PALETTE[6]),
        ([r.mean_accepted for r in rounds], "b, of accepted", (ACCEPTED, "solid", "circle")),
    ):
        drawn.add_trace(
            go.Scatter(
                x=xs,
                y=[round(float(v), 4) for v in values],
                mode="lines+markers",
                name=name,
                line={"color": colour, "dash": dash, "width": 2},
                marker={"symbol": symbol, "size": 6},
            ),
            row=2,
            col=1,
        )
    grows = [i for i, r in enumerate(rounds) if r.grows]
    drawn.add_trace(
        go.Scatter(
            x=[xs[i] for i in grows],
            y=[round(float(rounds[i].mean_accepted), 4) for i in grows],
            mode="markers",
            name="delta is added",
            marker={
                "symbol": "star",
                "size": 13,
                "color": DRAFT,
                "line": {"width": 1, "color": INK},
            },
        ),
        row=2,
        col=1,
    )
    for edge in sorted({least, most}):
        drawn.add_shape(
            type="line",
            x0=0,
            x1=1,
            xref="x domain",
            y0=edge,
            y1=edge,
            line={"color": OTHER, "dash": "dot", "width": 1},
            row=1,
            col=1,
        )
    drawn.update_xaxes(range=[0.4, len(xs) + 0.6], showgrid=False, row=1, col=1)
    drawn.update_xaxes(
        title={"text": "round", "standoff": 4},
        range=[0.4, len(xs) + 0.6],
        showgrid=False,
        row=2,
        col=1,
    )
    drawn.update_yaxes(range=[0, 1.08 * max(most, *(r.k for r in rounds))], row=1, col=1)
    drawn.update_yaxes(rangemode="tozero", row=2, col=1)
    drawn.update_annotations(font_size=13)
    return drawn


def by_setting(
    curves: Mapping[str, Mapping[float, float]], title: str, yaxis: str, xaxis: str
) -> go.Figure:
    """Lines over the values of one setting.

    Args:
        curves: name -> value of the setting -> what is shown; at most eight.
        title, yaxis, xaxis: words.
    Raises:
        ValueError: no curve, or more than eight.
    """
    points = {
        name: (list(values), [round(float(v), 4) for v in values.values()])
        for name, values in curves.items()
    }
    return lines(points, title, yaxis, xaxis)
