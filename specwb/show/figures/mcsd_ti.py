"""Stopping and several roots: slices of a tree's mask, where drafts end under a threshold,
calibration, and which root stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import plotly.graph_objects as go

from specwb.core.errors import ArgumentError
from specwb.core.tree import Tree
from specwb.show.figures.kit import BARE, Panel, axis, draw, steps
from specwb.show.palette import FIRST, MARK, OTHER, looks


def mask_slices(tree: Tree, cut: int) -> go.Figure:
    """The mask of a tree in level order, a frame round the leading block that each depth prefix is,
    and the block of the tree cut at ``cut`` levels, 0..D.

    A row is a node that looks, a column one that is looked at: dark in the chosen block, light in
    what the whole tree has beyond it, empty hidden.
    """
    n, stops = tree.n, [stop for _, stop in tree.levels]
    kept, seen, depth = stops[cut], tree.mask[0].tolist(), tree.depths[0]
    z = [[int(i < kept and j < kept) if seen[i][j] else None for j in range(n)] for i in range(n)]
    words = [
        [f"{depth[j] - depth[i]:+d} levels" if i != j else "itself" for j in range(n)]
        for i in range(n)
    ]
    step = 1 if n <= 24 else 5 if n <= 60 else 10
    one = Panel(f"{kept} of {n} nodes: the first {cut} of {tree.D} levels")
    one.x = axis("seen node", -0.6, n - 0.4, dtick=step, **BARE)
    one.y = axis("node", n - 0.4, -0.6, dtick=step, **BARE)
    scale, hover = steps("#A9D3EC", FIRST), "node %{y} sees node %{x}: %{text}"
    one.cells(range(n), range(n), z, scale, words, hover=hover)
    for d, stop in enumerate(stops):
        look = (MARK, "solid", 3) if d == cut else (OTHER, "dot", 1)
        block = (-0.5, stop - 0.5)
        one.rule(block, block, look, type="rect")
    return draw(one, max(320, min(620, 130 + 22 * n)))


def bin_of(value: float, bins: int) -> int:
    """Return which of so many bins of [0, 1] a value lies in; the last one has both its ends."""
    if not 0 <= value <= 1:
        raise ArgumentError(f"values must be in [0, 1], got {value}")
    return min(int(value * bins), bins - 1)


def calibration(
    said: Mapping[str, tuple[Sequence[float], Sequence[float]]], bins: int = 10
) -> go.Figure:
    """What was said against what came true; on the diagonal a number is the probability it claims
    to be.

    Args:
        said: name -> what was said of every case, in [0, 1], and what came true: 0, 1 or a
            probability. Cases are grouped by what was said.
        bins: how many groups, of equal width; markers grow with their cases.
    Raises:
        ValueError: something said is outside [0, 1], or not as much said as came true.
    """
    one = Panel("What was said, and what came true", axis("said", -0.02, 1.02))
    one.y = axis("came true", -0.02, 1.05)
    diagonal = {"size": 0, "width": 1, "hoverinfo": "skip"}
    one.line("as it says", [0, 1], [0, 1], (OTHER, "dot", ""), **diagonal)
    for (name, cases), look in zip(said.items(), looks(said).values(), strict=True):
        groups: dict[int, list[tuple[float, float]]] = {}
        for value, outcome in zip(*cases, strict=True):
            groups.setdefault(bin_of(value, bins), []).append((float(value), float(outcome)))
        groups = dict(sorted(groups.items()))
        x, y = ([fmean(pair[i] for pair in pairs) for pairs in groups.values()] for i in (0, 1))
        many = [len(pairs) for pairs in groups.values()]
        one.line(
            name,
            x,
            y,
            look,
            size=[round(5 + 11 * (n / max(many)) ** 0.5, 1) for n in many],
            customdata=many,
            hover="says %{x:.2f}, came true %{y:.2f} (%{customdata} cases)",
        )
    return draw(one, 460)


def kept_roots(
    names: Sequence[str], shares: Mapping[str, Sequence[float]], title: str
) -> go.Figure:
    """Bars of several distributions of the same tokens, side by side: name -> a probability for
    each token.
    """
    one = Panel(title, axis("token", type="category"), axis("probability", rangemode="tozero"))
    one.groups({name: (names, row) for name, row in shares.items()}, hover="%{x}: %{y:.3f}")
    return draw(one, 400, barmode="group")
