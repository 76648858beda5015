"""Stopping and several roots: slices of a tree's mask, and calibration of what decides about
stopping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from specwb.core.errors import ArgumentError
from specwb.core.tree import Tree
from specwb.show.figures.kit import BARE, Panel, axis, draw, steps
from specwb.show.palette import FIRST, MARK, OTHER, looks


def mask_slices(tree: Tree, cut: int) -> go.Figure:
    """The mask of a tree in level order, a frame round the leading block that each depth prefix is,
    and the block of the tree that is cut.

    A row is a node that looks, a column one that is looked at: dark in the chosen block, light in
    what the whole tree has beyond it, empty hidden.

    Args:
        tree: in level order.
        cut: levels that are left, 0..D.
    """
    n, stops = tree.n, [stop for _, stop in tree.levels]
    seen = tree.mask[0].tolist()
    z = [[int(max(i, j) < stops[cut]) if seen[i][j] else None for j in range(n)] for i in range(n)]
    panel = Panel(f"{stops[cut]} of {n} nodes: the first {cut} of {tree.D} levels")
    panel.x = axis("seen node", -0.6, n - 0.4, **BARE)
    panel.y = axis("node", n - 0.4, -0.6, **BARE)
    hover = "node %{y} sees node %{x}"
    panel.cells(range(n), range(n), z, steps("#A9D3EC", FIRST), None, hover=hover)
    for depth, stop in enumerate(stops):
        look = (MARK, "solid", 3) if depth == cut else (OTHER, "dot", 1)
        panel.rule((-0.5, stop - 0.5), (-0.5, stop - 0.5), look, type="rect")
    return draw(panel, max(320, min(620, 130 + 22 * n)))


def calibration(
    pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]], bins: int = 10
) -> go.Figure:
    """Claimed probabilities against what came true; on the diagonal a number is the probability it
    claims to be.

    Args:
        pairs: name -> the claim of every case, in [0, 1], and what came true: 0, 1 or a
            probability. Cases are grouped by the claim.
        bins: groups of equal width; markers grow with their cases.
    Raises:
        ArgumentError: a claim is outside [0, 1].
    """
    panel = Panel("What was claimed, and what came true", axis("claimed", -0.02, 1.02))
    panel.y = axis("came true", -0.02, 1.05)
    panel.line("as claimed", [0, 1], [0, 1], (OTHER, "dot", ""), size=0, width=1)
    for (name, (claims, outcomes)), look in zip(pairs.items(), looks(pairs).values(), strict=True):
        claimed, true = np.asarray(claims, float), np.asarray(outcomes, float)
        if ((claimed < 0) | (claimed > 1)).any():
            raise ArgumentError(f"claims must be in [0, 1], got {claimed.min()}..{claimed.max()}")
        groups = np.minimum((claimed * bins).astype(int), bins - 1)
        count = np.bincount(groups, minlength=bins)
        some = count > 0
        x, y = (np.bincount(groups, v, bins)[some] / count[some] for v in (claimed, true))
        size = np.round(5 + 11 * np.sqrt(count[some] / count.max()), 1).tolist()
        panel.line(name, x, y, look, size=size, text=count[some].tolist())
    return draw(panel, 460)
