"""Drafting in blocks: trees by passes, and the dependence that a block lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from specwb.core.blocks import BlockTree
from specwb.show.figures.kit import BARE, Panel, axis, draw
from specwb.show.figures.tree import NODES, leaves_of, tree_panel
from specwb.show.palette import ACCEPTED, DRAFT, INK, OTHER, PALETTE, REJECTED, looks


def dependence(
    joint: Sequence[Sequence[float]], firsts: Sequence[str], seconds: Sequence[str], g: float = 0
) -> go.Figure:
    """The joint distribution of two tokens, the product of its margins, and two areas over the
    first token: the information on the second that the product lacks, and what is kept of it.

    Args:
        joint: ``[X][Y]``.
        firsts, seconds: words of the tokens.
        g: the share of blocks that glance, which take that part of the information out of the
            training loss.
    """
    table = np.asarray(joint, dtype=float)
    chance, second = table.sum(1), table.sum(0)
    product, rows = np.outer(chance, second), table / chance[:, None]
    panels = []
    for title, cells, light, colour in (
        ("the target: p(x, y)", table, "#F1F7FB", "#56B4E9"),  # light enough for dark words
        ("the nearest product: p(x) p(y)", product, "#FDF6E9", DRAFT),
    ):
        panel = Panel(title, BARE, {"autorange": "reversed", **BARE})
        scale, words = [[0, light], [1, colour]], [[f"{v:.3f}" for v in row] for row in cells]
        top = 1.2 * float(chance.max())
        panel.cells(seconds, firsts, cells.tolist(), scale, words, zmax=top, written=True)
        panels.append(panel)
    at = np.cumsum(chance) - chance / 2
    x = axis("first token, as wide as it is likely", 0, 1, tickvals=at.tolist(), **BARE)
    x["ticktext"] = list(firsts)
    away = (rows * np.log(np.where(rows > 0, rows / second, 1))).sum(1)
    stays = np.minimum(rows, second).sum(1)
    area = Panel(f"lacking: area I(X; Y) = {float(chance @ away):.3f} nats", x)
    area.y = axis("nats", 0, -1.05 * float(np.log(chance.min())))
    wide = chance.tolist()
    area.bars("lacking in training too", at, (1 - g) * away, OTHER, "x", width=wide)
    area.bars("shown in training", at, g * away, OTHER, "/", hollow=True, width=wide)
    kept = Panel(f"second token kept: {float(chance @ stays):.3f}", x, axis("probability", 0, 1))
    kept.bars("kept", at, stays, ACCEPTED, width=wide)
    kept.bars("lost", at, 1 - stays, REJECTED, ".", hollow=True, width=wide)
    return draw([panels, [area, kept]], 470, barmode="stack", gaps=(0.16, 0.2))


def block_tree(tree: BlockTree, title: str) -> go.Figure:
    """A tree by the passes that make it: colour and marker say which pass a node comes of; a ring
    says that the next pass begins a block there.
    """
    panel = _by_pass(title, tree)
    panel.x |= axis("depth")
    return draw(panel, max(300, 150 + 7 * leaves_of(tree.tree.host[0])))


def block_designer(
    tree: BlockTree, speeds: Mapping[str, Sequence[float]], chosen: str
) -> go.Figure:
    """A tree by passes, its nodes by depth, and the predicted speedup of the best trees.

    Args:
        tree: the tree.
        speeds: name -> speedup of the best tree of 1, 2, .. nodes.
        chosen: the curve that this tree is on.
    """
    n, levels = tree.tree.n, [stop - start for start, stop in tree.tree.levels[1:]]
    nodes = Panel("nodes by depth", {"dtick": 1, "showgrid": False}, axis("", 0, 1.2 * max(levels)))
    colours = [PALETTE[d // tree.k][0] for d in range(len(levels))]
    above = {"text": levels, "textposition": "outside", "cliponaxis": False}
    nodes.bars("", range(1, len(levels) + 1), levels, colours, **above)
    best, longest = max(max(c) for c in speeds.values()), max(map(len, speeds.values()))
    curves = Panel("predicted speedup by number of nodes", axis(NODES, 0.5, longest + 0.5))
    curves.y = axis("speedup", 0, 1.12 * max(1.0, best))
    for i, ((name, curve), look) in enumerate(zip(speeds.items(), looks(speeds).values())):
        width = 2 + 1.5 * (len(speeds) - 1 - i)  # curves often coincide; the later ones lie on top
        curves.line(name, range(1, len(curve) + 1), curve, look, size=0, width=width)
    curves.here("this tree", n, speeds[chosen][n - 1]).rule(y=1, look=(INK, "solid", 1))
    grid = [[_by_pass("tree, by the pass that makes a node", tree), nodes], [curves]]
    return draw(grid, 740, heights=(0.62, 0.38), widths=(0.64, 0.36), bargap=0.3)


def _by_pass(title: str, tree: BlockTree) -> Panel:
    """Edges, rings, and a trace of nodes for each pass."""
    parents = tree.tree.host[0]
    panel, place = tree_panel(title, parents, 1)
    size = 9 if len(parents) <= 40 else 6
    begins = [place[node] for one_pass in tree.passes for node in one_pass.blocks]
    x, y, look = [x for x, _ in begins], [y for _, y in begins], (INK, "", "circle-open")
    panel.points("a block begins below", x, y, look, size=size + 8, marker_line_width=1.5)
    of = [-1, *(b for b, _, _, _ in tree.places)]
    passes = looks(f"pass {b}" for b, _ in enumerate(tree.passes, 1))
    for b, (name, look) in enumerate(passes.items()):
        nodes = [i for i, made_by in enumerate(of) if made_by == b]
        x, y = [place[i][0] for i in nodes], [place[i][1] for i in nodes]
        hover = "node %{customdata}, depth %{x}"
        panel.points(name, x, y, look, size=size, customdata=nodes, hover=hover)
    return panel
