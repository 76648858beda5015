"""Drafting from an early exit: what the caches hold, how sure the drafter is, beams, and what a
threshold gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specwb.errors import ArgumentError
from specwb.figures.style import (
    ACCEPTED,
    DRAFT,
    EDGE,
    FAINT,
    FIRST,
    INK,
    MARK,
    MONOSPACE,
    OTHER,
    PALETTE,
    chip,
    figure,
    visible,
)
from specwb.figures.tree import edges_of

HELD = ("nothing", "of the text", "of another text, which is not kept")
BELOW = {"orientation": "h", "y": -0.1, "yanchor": "top", "x": 0, "traceorder": "normal"}
_STEPS = [
    [0, FAINT],
    [1 / 3, FAINT],
    [1 / 3, FIRST],
    [2 / 3, FIRST],
    [2 / 3, DRAFT],
    [1, DRAFT],
]


def cache_slots(
    moments: Mapping[str, Sequence[Sequence[int]]],
    rows: Sequence[str],
    slots: Sequence[int],
    words: Sequence[str] = (),
) -> go.Figure:
    """What lies in every layer's cache at several moments of a round, one panel each.

    Args:
        moments: name -> ``[rows][slots]``: 0 nothing, 1 what a forward over the final text would
            write there, 2 something else.
        rows: names of the layers, the first on top.
        slots: their numbers.
        words: of the tokens that go there, below the last panel.
    Raises:
        ValueError: no moment, or one of another size.
    """
    if not moments or any(
        len(table) != len(rows) or any(len(row) != len(slots) for row in table)
        for table in moments.values()
    ):
        raise ArgumentError(
            f"every moment has {len(rows)} rows of {len(slots)} slots, one at least"
        )
    down, panel = -(-len(moments) // 2), 60 + 16 * len(rows)
    drawn = make_subplots(
        down,
        2,
        shared_yaxes=True,
        vertical_spacing=60 / (down * panel),
        horizontal_spacing=0.03,
        subplot_titles=list(moments),
        figure=figure(
            height=80 + down * panel,
            margin={"l": 70, "r": 20, "t": 40, "b": 80},
            showlegend=True,
            legend=BELOW,
        ),
    )
    for at, table in enumerate(moments.values()):
        signs = [["" if not held else "x" if held == 2 else "·" for held in row] for row in table]
        cells = go.Heatmap(
            x=list(slots),
            y=list(rows),
            z=[list(row) for row in table],
            zmin=0,
            zmax=2,
            colorscale=_STEPS,
            showscale=False,
            xgap=2,
            ygap=1,
            text=signs,
            texttemplate="%{text}",
            customdata=[[HELD[held] for held in row] for row in table],
            hovertemplate="%{y}, slot %{x}: %{customdata}<extra></extra>",
        )
        drawn.add_trace(cells, row=at // 2 + 1, col=at % 2 + 1)
    for name, colour in zip(HELD[1:], (FIRST, DRAFT), strict=True):  # a heatmap has no legend
        marker = {"symbol": "square", "size": 12, "color": colour}
        drawn.add_trace(
            go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker), row=1, col=1
        )
    drawn.update_yaxes(
        autorange="reversed",
        showgrid=False,
        zeroline=False,
        type="category",
        tickfont={"size": 10},
        dtick=1,
    )
    drawn.update_xaxes(showgrid=False, zeroline=False)
    named = [f"{slot}<br>{visible(word)}" for slot, word in zip(slots, words, strict=False)] or [
        str(slot) for slot in slots
    ]
    drawn.update_xaxes(tickvals=list(slots), ticktext=named, tickangle=0, tickfont={"size": 9})
    drawn.update_annotations(font_size=13)
    return drawn


def sureness(
    words: Sequence[str],
    sure: Sequence[float],
    accepted: int,
    eta: float,
    title: str,
    instead: Sequence[str] = (),
) -> go.Figure:
    """How sure the drafter was of each token of a draft, and what became of it.

    Args:
        words, sure: draft tokens in order, beyond the one that ends the draft too if wished.
        accepted: how many are kept.
        eta: the draft ends with the first token below it.
        instead: what the target says in the place of each.
    Raises:
        ValueError: as many words as values, one at least; accepted among them.
    """
    if not words or len(words) != len(sure) or not 0 <= accepted <= len(words):
        raise ArgumentError(
            f"one value a word, 0..{len(words)} accepted; got {len(words)} words, {len(sure)} "
            f"values, {accepted} accepted"
        )
    drafted = next((i for i, s in enumerate(sure, 1) if s < eta), len(words))
    kinds = [
        ("kept", range(min(accepted, drafted)), ACCEPTED, ""),
        ("drafted, not kept", range(accepted, drafted), DRAFT, "/"),
        ("not drafted", range(drafted, len(words)), FAINT, "."),
    ]
    axis = [f"{i}: “{visible(word)}”" for i, word in enumerate(words, 1)]
    bars = [
        go.Bar(
            x=[axis[i] for i in places],
            y=[round(sure[i], 4) for i in places],
            name=name,
            width=0.7,
            marker={
                "color": colour,
                "pattern": {"shape": shape, "fgcolor": INK, "fillmode": "overlay"},
            },
            hovertemplate="%{x}: %{y:.3f}<extra></extra>",
        )
        for name, places, colour, shape in kinds
    ]
    font = {"family": MONOSPACE, "size": 12, "color": MARK}
    notes = [
        {
            "x": x,
            "y": s,
            "text": f"target: {visible(word)}",
            "showarrow": False,
            "yshift": 11,
            "font": font,
        }
        for x, s, word in zip(axis, sure, instead, strict=False)
        if word
    ]
    return figure(
        *bars,
        title={"text": title, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"},
        shapes=[
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": eta,
                "y1": eta,
                "line": {"color": MARK, "dash": "dash", "width": 2},
            }
        ],
        annotations=notes,
        xaxis={"type": "category", "categoryorder": "array", "categoryarray": axis},
        yaxis={"title": {"text": "largest probability"}, "range": [0, 1.12]},
        height=340,
        margin={"l": 60, "r": 20, "t": 90, "b": 60},
    )


def densities(kept: Sequence[float], rejected: Sequence[float], bins: int = 10) -> go.Figure:
    """How sure the drafter was of tokens that were kept and of tokens that were rejected: two
    densities on [0, 1], and the share kept by sureness.

    Args:
        kept, rejected: values in [0, 1], one of each at least.
        bins: of equal width.
    Raises:
        ValueError: one of them is empty, or a value is outside [0, 1].
    """
    if not len(kept) or not len(rejected) or not all(0 <= v <= 1 for v in (*kept, *rejected)):
        raise ArgumentError(
            f"kept and rejected are values in [0, 1], one of each at least; got {len(kept)} and "
            f"{len(rejected)}"
        )
    counts = [[0] * bins, [0] * bins]
    for values, count in zip((kept, rejected), counts, strict=True):
        for value in values:
            count[min(int(value * bins), bins - 1)] += 1
    middle = [round((i + 0.5) / bins, 4) for i in range(bins)]
    drawn = make_subplots(
        1,
        2,
        column_widths=[0.55, 0.45],
        horizontal_spacing=0.12,
        subplot_titles=["density of each kind", "share kept"],
        figure=figure(
            height=380,
            margin={"l": 50, "r": 20, "t": 40, "b": 120},
            showlegend=True,
            legend=BELOW | {"y": -0.28},
        ),
    )
    for name, count, (colour, dash, _) in zip(("kept", "rejected"), counts, PALETTE, strict=False):
        drawn.add_trace(
            go.Scatter(
                x=[round(i / bins, 4) for i in range(bins + 1)],
                y=[round(n * bins / sum(count), 4) for n in [*count, count[-1]]],
                mode="lines",
                name=f"{name}, {sum(count)}",
                line={"color": colour, "dash": dash, "width": 3, "shape": "hv"},
                hovertemplate="from %{x}: %{y:.2f}<extra></extra>",
            ),
            row=1,
            col=1,
        )
    seen = [i for i in range(bins) if counts[0][i] + counts[1][i]]
    part = [round(counts[0][i] / (counts[0][i] + counts[1][i]), 4) for i in seen]
    drawn.add_trace(
        go.Scatter(
            x=[middle[i] for i in seen],
            y=part,
            mode="lines+markers",
            name="share kept",
            line={"color": PALETTE[2][0], "width": 2},
            marker={"symbol": "diamond", "size": 8},
            customdata=[counts[0][i] + counts[1][i] for i in seen],
            hovertemplate="around %{x}: %{y:.2f} of %{customdata}<extra></extra>",
        ),
        row=1,
        col=2,
    )
    line = {"color": OTHER, "dash": "dot", "width": 1.5}
    drawn.add_trace(
        go.Scatter(
            x=[0, 1], y=[0, 1], mode="lines", name="as sure as right", line=line, hoverinfo="skip"
        ),
        row=1,
        col=2,
    )
    base = round(len(kept) / (len(kept) + len(rejected)), 4)
    drawn.add_trace(
        go.Scatter(
            x=[0, 1],
            y=[base, base],
            mode="lines",
            name=f"of all, {base:.2f}",
            line={"color": INK, "dash": "dash", "width": 1.5},
        ),
        row=1,
        col=2,
    )
    drawn.update_xaxes(title={"text": "largest probability of the drafter"}, range=[0, 1])
    drawn.update_yaxes(rangemode="tozero", row=1, col=1)
    drawn.update_yaxes(range=[0, 1.02], row=1, col=2)
    drawn.update_annotations(font_size=13)
    return drawn


def beams(
    parents: Sequence[int],
    words: Sequence[str],
    scores: Sequence[float],
    kinds: Sequence[str],
    title: str,
) -> go.Figure:
    """A tree of beams: what stays in it, what is pruned, and the accepted path.

    Args:
        parents: of every node, -1 for the root.
        words, scores, kinds: of every node; a kind is "accepted", "tree" or "pruned".
        title: of the figure.
    Raises:
        ValueError: lists of different lengths, or another kind.
    """
    looks = {
        "accepted": ("accepted", ACCEPTED, "circle", "✓ "),
        "tree": ("in the tree", INK, "square", ""),
        "pruned": ("pruned", OTHER, "x-thin", ""),
    }
    if not len(parents) == len(words) == len(scores) == len(kinds) or set(kinds) - set(looks):
        raise ArgumentError(
            f"a word, a score and a kind ({', '.join(looks)}) for every node, got {len(parents)} "
            f"parents and {sorted(set(kinds))}"
        )
    place, xs, ys = edges_of(parents)
    lines = go.Scatter(
        x=xs,
        y=ys,
        mode="lines",
        line={"color": EDGE, "width": 1.5},
        hoverinfo="skip",
        showlegend=False,
    )
    points, notes = [], []
    for kind, (name, colour, symbol, sign) in looks.items():
        nodes = [i for i, k in enumerate(kinds) if k == kind]
        points.append(
            go.Scatter(
                x=[place[i][0] for i in nodes],
                y=[place[i][1] for i in nodes],
                mode="markers",
                name=name,
                text=[visible(words[i]) for i in nodes],
                marker={
                    "symbol": symbol,
                    "size": 10,
                    "color": colour,
                    "line": {"color": colour, "width": 2},
                },
                customdata=[round(scores[i], 4) for i in nodes],
                hovertemplate="%{text}: %{customdata:.3f}<extra></extra>",
            )
        )
        notes += [
            {
                "x": place[i][0],
                "y": place[i][1],
                **chip(
                    f"{sign}{visible(words[i])} {scores[i]:.2f}",
                    colour if kind != "pruned" else None,
                ),
            }
            for i in nodes
        ]
    leaves = len(set(range(len(parents))) - set(parents))
    depth = max(x for x, _ in place.values())
    return figure(
        lines,
        *points,
        title={"text": title, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"},
        annotations=notes,
        xaxis={
            "range": [-0.35, depth + 0.4],
            "dtick": 1,
            "title": {"text": "level"},
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={"visible": False, "range": [-leaves, 1]},
        height=max(240, 130 + 26 * leaves),
        margin={"l": 20, "r": 20, "t": 78, "b": 45},
    )


def stopping(
    etas: Sequence[float],
    tau: Sequence[float],
    drafted: Sequence[float],
    speed: Sequence[float],
    chosen: int,
    measured: Mapping[float, tuple[float, float]],
    paper: Mapping[str, Mapping[float, tuple[float, float]]],
) -> go.Figure:
    """What a threshold gives: tokens a round and speedup, here (left) and as published (right).

    Args:
        etas: thresholds.
        tau, drafted, speed: at each, tokens a round, draft tokens a round, predicted speedup.
        chosen: which is marked.
        measured: threshold -> (tau, speedup).
        paper: name -> threshold -> (CR, speedup), at most four.
    Raises:
        ValueError: lists of different lengths, nothing to mark, or more than four published curves.
    """
    if (
        not len(etas) == len(tau) == len(drafted) == len(speed)
        or not 0 <= chosen < len(etas)
        or len(paper) > 4
    ):
        raise ArgumentError(
            "as many values as thresholds, one of them chosen, four published curves at most; "
            f"got {len(etas)}, {chosen}, {len(paper)}"
        )
    drawn = make_subplots(
        2,
        2,
        shared_xaxes=True,
        horizontal_spacing=0.09,
        vertical_spacing=0.12,
        subplot_titles=[
            "tokens a round, here",
            "CR, the paper's 7B",
            "speedup, here",
            "speedup, the paper's 7B",
        ],
        figure=figure(
            height=600, showlegend=True, legend=BELOW, margin={"l": 50, "r": 20, "t": 40, "b": 90}
        ),
    )

    def add(
        row: int, col: int, xs: Sequence[float], ys: Sequence[float], name: str, **looks: object
    ) -> None:
        drawn.add_trace(
            go.Scatter(x=list(xs), y=[round(float(y), 4) for y in ys], name=name, **looks),
            row=row,
            col=col,
        )

    drafts = [d + 1 for d in drafted]
    add(1, 1, etas, tau, "CR: kept + 1", mode="lines", line={"color": FIRST, "width": 3})
    filled = {"fill": "tonexty", "fillcolor": "rgba(230,159,0,0.18)"}
    add(
        1,
        1,
        etas,
        drafts,
        "drafted + 1; between: wasted",
        mode="lines",
        line={"color": DRAFT, "width": 2, "dash": "dot"},
        **filled,
    )
    add(
        2,
        1,
        etas,
        speed,
        "predicted",
        mode="lines",
        line={"color": FIRST, "width": 3},
        showlegend=False,
    )
    star = {"symbol": "circle-open", "size": 13, "color": INK, "line": {"width": 3}}
    add(
        1,
        1,
        [etas[chosen]] * 2,
        [tau[chosen], drafts[chosen]],
        "chosen",
        mode="markers",
        marker=star,
    )
    add(
        2,
        1,
        [etas[chosen]],
        [speed[chosen]],
        "chosen",
        mode="markers",
        marker=star,
        showlegend=False,
    )
    diamond = {"symbol": "diamond", "size": 10, "color": MARK}
    for row in (1, 2):
        values = [pair[row - 1] for pair in measured.values()]
        add(
            row,
            1,
            list(measured),
            values,
            "measured",
            mode="markers",
            marker=diamond,
            showlegend=row == 1,
        )
    for (name, curve), (colour, dash, symbol) in zip(paper.items(), PALETTE, strict=False):
        for row in (1, 2):
            looks = {
                "line": {"color": colour, "dash": dash, "width": 2},
                "marker": {"symbol": symbol, "size": 7},
                "showlegend": row == 1,
            }
            add(
                row,
                2,
                list(curve),
                [pair[row - 1] for pair in curve.values()],
                f"paper, {name}",
                mode="lines+markers",
                **looks,
            )
    for col in (1, 2):
        drawn.add_shape(
            type="line",
            x0=0,
            x1=1,
            xref="x domain",
            y0=1,
            y1=1,
            line={"color": MARK, "dash": "dash", "width": 1.5},
            row=2,
            col=col,
        )
    drawn.update_xaxes(range=[-0.03, 1.03], zeroline=False)
    drawn.update_xaxes(title={"text": "threshold eta", "standoff": 4}, row=2)
    drawn.update_yaxes(rangemode="tozero")
    drawn.update_annotations(font_size=13)
    return drawn
