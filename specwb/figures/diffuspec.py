"""Drafting with a diffusion model: a lattice with paths through it, and how draft lengths adapt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from specwb.figures.kit import BARE, Panel, axis, draw
from specwb.palette import ACCEPTED, DARK, DRAFT, FIRST, INK, MARK, OTHER, PALETTE

SHADES = [
    [0, "#F1F7FB"],
    [0.1, "#CFE5F2"],
    [0.4, "#9CCDE8"],
    [1, "#56B4E9"],
]  # light enough for dark words
LOOKS = (
    (MARK, "solid", "circle-open"),
    (FIRST, "dash", "square-open"),
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
    """
    k, m = len(words), len(words[0])
    kept = kept or [m] * k
    columns, ranks = list(range(1, k + 1)), list(range(1, m + 1))
    one = Panel(title, axis("place ahead", 0.5, k + 0.5, tickvals=columns, **BARE))
    one.y = axis("rank", m + 1.6, 0.4, tickvals=[*ranks, m + 1], **BARE)
    one.y = {**one.y, "ticktext": [*map(str, ranks), "not here"]}
    one.cells(
        columns,
        ranks,
        [[chances[i][r] if r < kept[i] else None for i in range(k)] for r in range(m)],
        SHADES,
        [[column[r] for column in words] for r in range(m)],
        hover="place %{x}, rank %{y}: %{text} %{customdata}",
        customdata=[
            [f"{chances[i][r]:.3f}" + ("" if r < kept[i] else ", left out") for i in range(k)]
            for r in range(m)
        ],
        xgap=2,
        ygap=2,
        showscale=True,
        colorbar={"title": {"text": "q", "side": "top"}, "thickness": 12, "len": 0.8},
    )
    for at, (name, path) in enumerate(paths.items()):
        rows, more = [(m if r is None else r) + 1 for r in path], {"hoverinfo": "skip"}
        size, ring = [26 - 6 * at] * len(path), {"marker_line_width": 2.5, "opacity": 0.85}
        one.line(name, columns[: len(path)], rows, LOOKS[at], size=size, width=2.5, **ring, **more)
    # of the cells that are empty too, which a matrix's own words would leave out
    cells = [(i + 1, r + 1, words[i][r], r < kept[i]) for i in range(k) for r in range(m)]
    outside = [(i + 1, m + 1, word) for i, word in enumerate(below) if word]
    for colour, named in (
        (DARK, [cell[:3] for cell in cells if cell[3]]),
        (OTHER, [cell[:3] for cell in cells if not cell[3]]),
        (MARK, outside),
    ):
        x, y, text = zip(*named, strict=True) if named else ((), (), ())
        font = {"size": 12 if k <= 10 else 9, "color": colour}
        one.line("", x, y, LOOKS[0], mode="text", text=text, textfont=font)
    return draw(one, 160 + 27 * (m + 1))


def adaptive(rounds: Sequence[Any], least: int, most: int) -> go.Figure:
    """Adaptive draft length, step by step: what was drafted, generated and accepted, and the two
    averages that steer it.

    Args:
        rounds: of :func:`specwb.analysis.adl_trace`.
        least, most: k_min and k_max.
    """
    xs = list(range(1, len(rounds) + 1))
    tokens = Panel("tokens drafted, generated, accepted")
    tokens.x = axis("", 0.4, len(xs) + 0.6, showgrid=False)
    tokens.y = axis("", 0, 1.08 * max(most, *(r.k for r in rounds)))
    tokens.bars("accepted", xs, [r.accepted for r in rounds], ACCEPTED)
    # wide: where no text ends the next one lies on it
    wide = {"size": 0, "line_shape": "hvh"}
    tokens.line("k, drafted", xs, [r.k for r in rounds], (DRAFT, "solid", ""), width=6, **wide)
    name, generated = "generated before an end of text", [r.generated for r in rounds]
    tokens.line(name, xs, generated, (INK, "dot", ""), **wide)
    for edge in sorted({least, most}):
        tokens.rule(None, edge, (OTHER, "dot", 1))
    means = Panel("their moving averages", axis("step", 0.4, len(xs) + 0.6, showgrid=False))
    means.y = {"rangemode": "tozero"}
    accepted = [r.mean_accepted for r in rounds]
    means.line("a, of generated", xs, [r.mean_generated for r in rounds], PALETTE[6], size=6)
    means.line("b, of accepted", xs, accepted, (ACCEPTED, "solid", "circle"), size=6)
    grows = [i for i, r in enumerate(rounds) if r.grows]
    star, ring = (DRAFT, "", "star"), {"size": 13, "marker_line": {"width": 1, "color": INK}}
    places, heights = [xs[i] for i in grows], [accepted[i] for i in grows]
    means.points("delta is added", places, heights, star, **ring)
    return draw([[tokens], [means]], 560, heights=(0.55, 0.45), gaps=(0.1, 0.12))


def by_setting(
    curves: Mapping[str, Mapping[float, float]], title: str, yaxis: str, xaxis: str
) -> go.Figure:
    """Lines over the values of one setting.

    Args:
        curves: name -> value of the setting -> what is shown.
        title, yaxis, xaxis: words.
    """
    points = {name: (list(values), values.values()) for name, values in curves.items()}
    return draw(Panel(title, xaxis, axis(yaxis, rangemode="tozero")).lines(points), 400)
