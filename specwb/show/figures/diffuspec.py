"""Drafting with a diffusion model: a lattice with paths through it, and how draft lengths adapt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from specwb.show.figures.kit import BARE, Dict, Panel, axis, draw
from specwb.show.palette import ACCEPTED, CLEAR, DARK, DRAFT, INK, OTHER, PALETTE, REJECTED, TARGET

# light enough for dark words
SHADES = [[0, "#F1F7FB"], [0.1, "#CFE5F2"], [0.4, "#9CCDE8"], [1, "#56B4E9"]]
READER = PALETTE[6][0]  # the proxy, which reads from left to right
HALF = 0.34  # of the width of a cell; paths run between the columns, where there are no words


def lattice(
    words: Sequence[Sequence[str]],
    chances: Sequence[Sequence[float]],
    target: Sequence[tuple[int | None, str]],
    paths: Sequence[Sequence[int]],
    costs: Mapping[str, tuple[float, float, str]],
    *,
    stay: Sequence[int] | None = None,
    kept: int | None = None,
    title: str = "",
    learned: bool = False,
) -> go.Figure:
    """A lattice as columns of candidates, the likeliest on top; the paths that a search has so far;
    and what they cost, less being better.

    ``words`` and ``chances`` are ``[k][M]``, best first. ``target`` has the rank (from 0; None: not
    among the M) and the word of the target's own tokens. ``paths`` are ranks, the best path first.
    ``costs``: name -> the drafter's and the proxy's part of a token's cost in nats, and the path's
    words. ``stay`` candidates of each column are left after pruning (default all); ``kept`` tokens
    of the best path are kept, None as long as the search goes on. If ``learned``, costs are of a
    drawn walk, in one part: the second.
    """
    k, m = len(words), len(words[0])
    stay = stay or [m] * k
    ranks, rows = list(range(1, m + 1)), [m + 1.4, m + 2.4]
    one = Panel(title, axis("place ahead", 0.5, k + 0.5, tickvals=list(range(1, k + 1)), **BARE))
    one.y = axis("rank", m + 3, 0.4, tickvals=[*ranks, *rows], **BARE)
    one.y = {**one.y, "ticktext": [*map(str, ranks), "target", "path"]}
    cells = [[chances[i][r] if r < stay[i] else None for i in range(k)] for r in range(m)]
    edges = [i + half for i in range(1, k + 1) for half in (-HALF, HALF)]
    one.cells(
        edges,
        ranks,
        [[z for cell in row for z in (cell, None)][:-1] for row in cells],
        SHADES,
        [[word for column in words for word in (column[r], "")][:-1] for r in range(m)],
        hover="rank %{y}: %{text} %{z}",
        ygap=2,
        showscale=True,
        colorbar={"title": {"text": "q", "side": "top"}, "thickness": 12, "len": 0.4, "y": 0.8},
    )
    best, *others = paths or [()]
    for name, joined, width, dash in (
        ("the beam's best path", [best], 3, "solid"),
        ("its other paths", others, 1.5, "dot"),
    ):
        links = [(i, a, b) for path in joined for i, (a, b) in enumerate(pairwise(path), 1)]
        xs = [x for i, _, _ in links for x in (i + HALF, i + 1 - HALF, None)]
        ys = [y for _, a, b in links for y in (a + 1, b + 1, None)]
        one.line(name, xs, ys, (DRAFT, dash, ""), 0, width, hoverinfo="skip")
    of_target = [(i, r + 1) for i, (r, _) in enumerate(target, 1) if r is not None]
    of_path = [(i, r + 1) for i, r in enumerate(best, 1)]
    for marked, colour, grown in ((of_target, TARGET, 0.04), (of_path, DRAFT, -0.02)):
        for i, r in marked:
            wide, high = HALF + grown, 0.44 + grown
            across, down = (i - wide, i + wide), (r - high, r + high)
            one.rule(across, down, (colour, "solid", 2.5), type="rect", fillcolor=CLEAR)
    said = [(i, rows[1], words[i - 1][r]) for i, r in enumerate(best, 1)]
    stays = len(best) if kept is None else kept
    signs = ("", "") if kept is None else ("✓ ", "✗ ")
    places = [(i, r) for i in range(k) for r in range(m)]
    for colour, texts in (
        (DARK, [(i + 1, r + 1, words[i][r]) for i, r in places if r < stay[i]]),
        (OTHER, [(i + 1, r + 1, words[i][r]) for i, r in places if r >= stay[i]]),
        (TARGET, [(i, rows[0], word) for i, (_, word) in enumerate(target, 1)]),
        (DRAFT if kept is None else ACCEPTED, [(i, y, signs[0] + w) for i, y, w in said[:stays]]),
        (REJECTED, [(i, y, signs[1] + w) for i, y, w in said[stays:]]),
    ):
        at, heights, named = ([text[part] for text in texts] for part in range(3))
        font = {"size": 12 if k <= 10 else 9, "color": colour}
        one.points("", at, heights, (colour, "", "circle"), mode="text", text=named, textfont=font)
    drafter, reader, paths_words = zip(*costs.values(), strict=True)
    most = max(a + b for a, b in zip(drafter, reader, strict=True))
    bars = Panel("what a token of a path costs: less is better", axis("nats", 0, 1.8 * most))
    bars.y = {"autorange": "reversed", "type": "category"}
    more: Dict = {"orientation": "h", "hover": "%{x:.2f} nats"}
    if not learned:
        bars.bars("drafter, −λ log q", drafter, list(costs), DRAFT, **more)
    more |= {"text": paths_words, "textposition": "outside", "cliponaxis": False}
    by = "learned, −log q of a walk's step" if learned else "trigrams, −(1 − λ) log r"
    bars.bars(by, reader, list(costs), READER, "/", **more)
    sizes = 27 * (m + 3), 30 * len(costs) + 40  # pixels
    shares = [size / sum(sizes) for size in sizes]
    return draw([[one], [bars]], sum(sizes) + 190, heights=shares, barmode="stack")


def adaptive(rounds: Sequence[Any], least: int, most: int) -> go.Figure:
    """Adaptive draft length, step by step: what was drafted, generated and accepted, and the two
    averages that steer it; ``rounds`` of :func:`specwb.theory.analysis.adl_trace` from k_min to
    k_max.
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
    """Lines over the values of one setting: name -> value of the setting -> what is shown."""
    points = {name: (list(values), values.values()) for name, values in curves.items()}
    return draw(Panel(title, xaxis, axis(yaxis, rangemode="tozero")).lines(points), 400)
