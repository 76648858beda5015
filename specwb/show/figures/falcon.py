"""Drafting in blocks: what a pair sees, which pairs glance, trees by passes, and dependence against
loss and acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from specwb.core.blocks import BlockTree
from specwb.core.errors import ArgumentError
from specwb.show.figures.kit import BARE, Panel, axis, draw, errors, steps
from specwb.show.figures.tree import NODES, leaves_of, tree_panel
from specwb.show.palette import ACCEPTED, DRAFT, FAINT, FIRST, INK, OTHER, PALETTE, REJECTED, looks

MARKED = 24  # pairs that can have numbers in their cells


def block_sight(ends: Sequence[int], starts: Sequence[int], k: int) -> go.Figure:
    """Which pairs each pair of a text sees, and what the last k of them predict.

    A row is a pair that looks, a column one that is looked at: dark its own block, light an earlier
    one, empty hidden. ``ends`` and ``starts`` are the numbers (from 1) of the last and the first
    pair of each pair's block.
    """
    n, every = len(ends), list(range(1, len(ends) + 1))
    z = [
        [None if j > end else int(j >= start) for j in every]
        for end, start in zip(ends, starts, strict=True)
    ]
    words = [["" if v is None else "own" if v else "·" for v in row] for row in z]
    said = [f"{i} says X{i - n + k}" if i > n - k else str(i) for i in every]
    one = Panel("What each pair sees: its own block (dark) and earlier ones")
    one.x = axis("seen pair (the newest is last)", tickvals=every, **BARE)
    one.y = axis(tickvals=every, ticktext=said, autorange="reversed", **BARE)
    hover = "pair %{y} sees pair %{x} (%{text})"
    one.cells(every, every, z, steps("#56B4E9", FIRST), words, hover=hover, written=n <= MARKED)
    return draw(one, max(260, 110 + 26 * n))


def dependence(
    joint: Sequence[Sequence[float]], firsts: Sequence[str], seconds: Sequence[str], g: float = 0
) -> go.Figure:
    """The joint distribution ``[X][Y]`` of two tokens, the product of its margins, and two areas
    over the first token: the information on the second that the product lacks, and what is kept of
    it. ``g`` is the share of blocks that glance, which take that part of the information out of the
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
        one = Panel(title, axis("", **BARE), axis("", autorange="reversed", **BARE))
        scale = [[0, light], [1, colour]]
        words = [[f"{v:.3f}" for v in row] for row in cells]
        hover = "%{y} %{x}: %{text}"
        top = {"zmax": 1.2 * float(chance.max()), "written": True, "hover": hover}
        panels.append(one.cells(seconds, firsts, cells.tolist(), scale, words, **top))
    at, ticks = np.cumsum(chance) - chance / 2, {"ticktext": list(firsts)}
    x = axis("first token, as wide as it is likely", 0, 1, tickvals=at.tolist(), **ticks, **BARE)
    away = (rows * np.log(np.where(rows > 0, rows / second, 1))).sum(1)
    stays = np.minimum(rows, second).sum(1)
    information = float(chance @ away)
    area = Panel(f"lacking: area I(X; Y) = {information:.3f} nats", x)
    area.y = axis("nats", 0, -1.05 * float(np.log(chance.min())))
    more = {"width": chance.tolist(), "customdata": list(firsts)}
    line = {"hover": "after %{customdata}: %{y:.3f}", **more}
    area.bars("lacking in training too", at, (1 - g) * away, OTHER, "x", **line)
    area.bars("shown in training", at, g * away, OTHER, "/", hollow=True, **line)
    kept = Panel(f"second token kept: {float(chance @ stays):.3f}", x, axis("probability", 0, 1))
    kept.bars("kept", at, stays, ACCEPTED, **line)
    kept.bars("lost", at, 1 - stays, REJECTED, ".", hollow=True, **line)
    return draw([panels, [area, kept]], 560, barmode="stack", gaps=(0.16, 0.16))


def glancing(
    replaced: Sequence[Sequence[bool]],
    k: int,
    curves: Mapping[str, Sequence[float]],
    here: tuple[float, float],
) -> go.Figure:
    """Which pairs of some texts are replaced (``[texts][pairs]``), and what the loss of a block is
    above autoregression as more blocks glance: curves at evenly spaced shares 0..1, and ``here``,
    share and excess of the texts shown.
    """
    rows = [list(map(bool, row)) for row in replaced]
    width, down = len(rows[0]), list(range(1, len(rows) + 1))
    words = [
        [
            "glances" if v else "sees" if any(row[j // k * k : (j // k + 1) * k]) else ""
            for j, v in enumerate(row)
        ]
        for row in rows
    ]
    texts = Panel("pairs that are replaced by the pairs they are to predict (dark)")
    texts.x = axis("pair", **BARE)
    texts.y = axis("text", tickvals=down, autorange="reversed", showgrid=False)
    z, scale = [[int(v) for v in row] for row in rows], steps(FAINT, FIRST)
    more = {"hover": "text %{y}, pair %{x}: %{text}", "ygap": 2}
    texts.cells(range(1, width + 1), down, z, scale, words, **more)
    for edge in range(k, width, k):
        texts.rule(edge + 0.5, (0.5, len(rows) + 0.5), (INK, "solid", 1))
    loss = Panel("least loss above the autoregressive one, nats")
    loss.x = axis("share of blocks that glance", -0.02, 1.02)
    loss.y = {"rangemode": "tozero"}
    for (name, curve), look in zip(curves.items(), looks(curves).values(), strict=True):
        shares = [i / (len(curve) - 1) for i in range(len(curve))]
        loss.line(name, shares, curve, look, size=0)
    loss.here("these texts", *here)
    return draw([[texts], [loss]], 620, heights=(0.4, 0.6), gaps=(0.1, 0.2))


def ratios(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    measured: Mapping[str, Sequence[tuple[float, float, float]]],
    title: str,
) -> go.Figure:
    """Losses of trainings by glancing ratio, next to what was predicted.

    Args:
        curves: name -> (ratio, predicted loss).
        measured: name -> (ratio, loss, standard error); names of curves. Bars are two standard
            errors.
    """
    one = Panel(title, axis("share of blocks that glance in training", -0.03, 1.03))
    one.y = axis("nats a token", rangemode="tozero")
    for (name, curve), look in zip(curves.items(), looks(curves).values(), strict=True):
        x, y = zip(*curve, strict=True)
        one.line(name, x, y, look, size=0)
        x, y, e = zip(*measured[name], strict=True)
        one.points(f"{name}, measured", x, y, look, error_y=errors(2 * v for v in e))
    return draw(one, 460)


def block_tree(tree: BlockTree, title: str) -> go.Figure:
    """A tree of at most eight passes as they make it: colour and marker say which pass a node comes
    of; a ring says that the next pass begins a block there.

    Raises:
        ValueError: more than eight passes.
    """
    one = _by_pass(title, tree)
    one.x = {**one.x, **axis("depth")}
    return draw(one, max(300, 150 + 7 * leaves_of(tree.tree.host[0])))


def block_designer(
    tree: BlockTree, speeds: Mapping[str, Sequence[float]], chosen: str
) -> go.Figure:
    """A tree by passes, its nodes by depth, and the predicted speedup of the best trees at 1, 2,
    .. nodes; this tree is on the curve ``chosen``.
    """
    n, levels = tree.tree.n, [stop - start for start, stop in tree.tree.levels[1:]]
    nodes = Panel("nodes by depth", y=axis("", 0, 1.2 * max(levels)))
    nodes.x = {"tickvals": list(range(1, tree.tree.D + 1)), "showgrid": False}
    nodes.bars(
        "",
        range(1, len(levels) + 1),
        levels,
        [PALETTE[d // tree.k][0] for d in range(len(levels))],
        text=levels,
        textposition="outside",
        hover="depth %{x}: %{y} nodes",
        cliponaxis=False,
    )
    best, longest = max(max(c) for c in speeds.values()), max(map(len, speeds.values()))
    curves = Panel("predicted speedup by number of nodes", axis(NODES, 0.5, longest + 0.5))
    curves.y = axis("speedup", 0, 1.12 * max(1.0, best))
    hover = "%{x} nodes: %{y:.2f}x"
    for i, ((name, curve), look) in enumerate(zip(speeds.items(), looks(speeds).values())):
        # curves often coincide; the later ones lie on top
        width = 2 + 1.5 * (len(speeds) - 1 - i)
        curves.line(name, range(1, len(curve) + 1), curve, look, size=0, width=width, hover=hover)
    curves.here("this tree", n, speeds[chosen][n - 1], hover=hover)
    curves.rule(None, 1, (INK, "solid", 1))
    grid = [[_by_pass("tree, by the pass that makes a node", tree), nodes], [curves]]
    return draw(grid, 740, heights=(0.62, 0.38), widths=(0.64, 0.36), bargap=0.3)


def by_dependence(
    points: Mapping[str, Sequence[tuple[float, float]]],
    bound: Sequence[tuple[float, float]],
    title: str,
) -> go.Figure:
    """Acceptance at places of texts against how much the token there depends on those before it in
    the block.

    Args:
        points: name -> (information in nats, acceptance).
        bound: a curve to put next to them.
    """
    one = Panel(title, axis("I with the tokens before it in the block, nats", rangemode="tozero"))
    one.y = axis("accepted", 0, 1.03)
    x, y = zip(*bound, strict=True)
    one.line("1 − √(I/2)", x, y, (OTHER, "dash", ""), 0)
    pairs = {name: tuple(zip(*each, strict=True)) for name, each in points.items()}
    return draw(one.lines(pairs, size=9, width=0, hover="I %{x:.2f}: %{y:.2f}"), 460)


# ------------------------------------------------------------------------------------------- parts


def _by_pass(title: str, tree: BlockTree) -> Panel:
    """Edges, rings, a trace of nodes for each of eight passes (the same number for every tree)."""
    if len(tree.passes) > len(PALETTE):
        raise ArgumentError(
            f"at most {len(PALETTE)} passes can be told apart, this tree has {len(tree.passes)}"
        )
    parents = tree.tree.host[0]
    one, place = tree_panel(title, parents, 1)
    size = 9 if len(parents) <= 40 else 6
    begins = [place[node] for one_pass in tree.passes for node in one_pass.blocks]
    ring = {"hoverinfo": "skip", "cliponaxis": False, "marker_line_width": 1.5}
    x, y = ([at[i] for at in begins] for i in (0, 1))
    one.points("a block begins below", x, y, (INK, "", "circle-open"), size=size + 8, **ring)
    of = [-1, *(b for b, _, _, _ in tree.places)]
    for b, look in enumerate(PALETTE):
        nodes = [i for i, home in enumerate(of) if home == b]
        x, y = ([place[node][i] for node in nodes] for i in (0, 1))
        more = {"showlegend": bool(nodes), "customdata": nodes, "cliponaxis": False}
        hover = "node %{customdata}, depth %{x}"
        one.points(f"pass {b + 1}", x, y, look, size=size, hover=hover, **more)
    return one
