"""Drafting with a diffusion model: a lattice with paths through it, and how draft lengths adapt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from specwb.show.figures.kit import BARE, BY_NAME, Panel, axis, draw
from specwb.show.palette import (
    ACCEPTED,
    CLEAR,
    DARK,
    DRAFT,
    HATCHES,
    INK,
    OTHER,
    PALETTE,
    REJECTED,
    TARGET,
)

# light enough for dark words
SHADES = {0.01: "#F1F7FB", 0.1: "#CFE5F2", 0.4: "#9CCDE8", 1.0: "#56B4E9"}
READER = PALETTE[6][0]  # the proxy, which reads from left to right
HALF = 0.34  # of the width of a cell; paths run between the columns, where there are no words
Label = tuple[float, float, str]


def lattice(
    words: Sequence[Sequence[str]],
    chances: Sequence[Sequence[float]],
    target: Sequence[tuple[int | None, str]],
    paths: Sequence[Sequence[int]],
    costs: Mapping[str, tuple[float, float, str]],
    stay: Sequence[int],
    kept: int | None,
    title: str,
    parts: Sequence[str],
) -> go.Figure:
    """A lattice as columns of candidates, the likeliest on top; the paths that a search has so far;
    and what they cost, less being better.

    Args:
        words, chances: ``[k][M]`` of the candidates, best first.
        target: of the target's own tokens the rank (from 0; None: not among the M) and the word.
        paths: ranks, the best path first.
        costs: name -> the two parts of a token's cost in nats, and the path's words.
        stay: candidates of each column that are left after pruning.
        kept: tokens of the best path that the target keeps, None as long as the search goes on.
        title: of the lattice.
        parts: names of the two parts of a cost; the first may be empty.
    """
    k, m, best = len(words), len(words[0]), paths[0]
    panel = Panel(title, axis("place ahead", 0.5, k + 0.5, tickvals=list(range(1, k + 1)), **BARE))
    rows = [*range(1, m + 1), m + 1.4, m + 2.4]
    panel.y = axis("rank", m + 3, 0.4, tickvals=rows, **BARE)
    panel.y["ticktext"] = [*map(str, range(1, m + 1)), "target", "path"]
    places = [(i, r) for i in range(k) for r in range(m)]
    inside = [(i, r) for i, r in places if r < stay[i]]
    for i, r in inside:
        _frame(panel, i + 1, r + 1, HALF, _shade(chances[i][r]), CLEAR)
    for name, joined, width, dash in (
        ("the beam's best path", [best], 3, "solid"),
        ("its other paths", paths[1:], 1.5, "dot"),
    ):
        links = [(i, a, b) for path in joined for i, (a, b) in enumerate(pairwise(path), 1)]
        xs = [x for i, _, _ in links for x in (i + HALF, i + 1 - HALF, None)]
        ys = [y for _, a, b in links for y in (a + 1, b + 1, None)]
        panel.line(name, xs, ys, (DRAFT, dash, ""), size=0, width=width, hoverinfo="skip")
    for i, (rank, _) in enumerate(target, 1):
        if rank is not None:
            _frame(panel, i, rank + 1, HALF + 0.04, CLEAR, TARGET)
    for i, rank in enumerate(best, 1):
        _frame(panel, i, rank + 1, HALF - 0.02, CLEAR, DRAFT)
    _write(panel, k, DARK, [(i + 1, r + 1, words[i][r]) for i, r in inside])
    pruned = [(i, r) for i, r in places if r >= stay[i]]
    _write(panel, k, OTHER, [(i + 1, r + 1, words[i][r]) for i, r in pruned])
    _write(panel, k, TARGET, [(i, rows[-2], word) for i, (_, word) in enumerate(target, 1)])
    path = [(i, rows[-1], words[i - 1][r]) for i, r in enumerate(best, 1)]
    if kept is None:
        _write(panel, k, DRAFT, path)
    else:
        _write(panel, k, ACCEPTED, [(i, y, f"✓ {word}") for i, y, word in path[:kept]])
        _write(panel, k, REJECTED, [(i, y, f"✗ {word}") for i, y, word in path[kept:]])
    bars = Panel("what a token of a path costs: less is better", y=BY_NAME)
    first, second, texts = zip(*costs.values(), strict=True)
    bars.x = axis("nats", 0, 1.8 * max(a + b for a, b in zip(first, second, strict=True)))
    if any(first):
        bars.bars(parts[0], first, list(costs), DRAFT, HATCHES[DRAFT], orientation="h")
    outside = {"text": texts, "textposition": "outside", "cliponaxis": False}
    bars.bars(parts[1], second, list(costs), READER, "/", orientation="h", **outside)
    sizes = 21 * (m + 3), 21 * len(costs) + 20  # pixels
    height, gaps = sum(sizes) + 180, (0.1, 90 / (sum(sizes) + 180))
    return draw([[panel], [bars]], height, heights=sizes, gaps=gaps, barmode="stack")


def _shade(chance: float) -> str:
    """The colour of a candidate by its probability."""
    return next(colour for end, colour in SHADES.items() if chance <= end or end == 1)


def _frame(panel: Panel, x: float, y: float, half: float, fill: str, colour: str) -> None:
    """A box round a candidate."""
    across, down = (x - half, x + half), (y - half - 0.1, y + half + 0.1)
    layer = "below" if colour == CLEAR else "above"
    panel.rule(across, down, (colour, "solid", 2.5), type="rect", fillcolor=fill, layer=layer)


def _write(panel: Panel, k: int, colour: str, texts: Sequence[Label]) -> None:
    """Words in the cells of a lattice of ``k`` columns."""
    x, y, words = zip(*texts, strict=True) if texts else ((), (), ())
    font = {"size": 12 if k <= 10 else 9, "color": colour}
    panel.points("", x, y, (colour, "", "circle"), mode="text", text=words, textfont=font)


def adaptive(rounds: Sequence[Any], least: int, most: int) -> go.Figure:
    """Adaptive draft length, step by step: what was drafted, generated and accepted, and the two
    averages that steer it.

    Args:
        rounds: of :func:`specwb.theory.analysis.adl_trace`.
        least, most: k_min and k_max.
    """
    xs = list(range(1, len(rounds) + 1))
    tokens = Panel("tokens drafted, generated, accepted", {"showgrid": False})
    tokens.y = axis("", 0, 1.08 * max(most, *(r.k for r in rounds)))
    tokens.bars("accepted", xs, [r.accepted for r in rounds], ACCEPTED)
    # wide: where no text ends the next one lies on it
    look = DRAFT, "solid", ""
    tokens.line("k, drafted", xs, [r.k for r in rounds], look, size=0, width=6, line_shape="hvh")
    name, generated = "generated before an end of text", [r.generated for r in rounds]
    tokens.line(name, xs, generated, (INK, "dot", ""), size=0, line_shape="hvh")
    for edge in sorted({least, most}):
        tokens.rule(y=edge, look=(OTHER, "dot", 1))
    means = Panel("their moving averages", axis("step", showgrid=False), {"rangemode": "tozero"})
    accepted = [r.mean_accepted for r in rounds]
    means.line("a, of generated", xs, [r.mean_generated for r in rounds], PALETTE[6], size=6)
    means.line("b, of accepted", xs, accepted, (ACCEPTED, "solid", "circle"), size=6)
    grows = [i for i, r in enumerate(rounds) if r.grows]
    places, heights = [xs[i] for i in grows], [accepted[i] for i in grows]
    means.points("delta is added", places, heights, (DRAFT, "", "star"), size=13)
    return draw([[tokens], [means]], 560, heights=(0.55, 0.45), gaps=(0.1, 0.12))
