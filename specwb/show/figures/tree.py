"""Trees: the step that was decoded on one, trees with values, what their nodes see, and what they
are worth by size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from specwb.core.errors import ArgumentError
from specwb.core.flow import Step
from specwb.show.figures.kit import BARE, Panel, axis, draw
from specwb.show.figures.style import MONOSPACE, chip, label
from specwb.show.palette import ACCEPTED, CLEAR, DEPTHS, EDGE, FIRST, INK, OTHER, TARGET
from specwb.theory.exact import depths

LABELLED = 26  # nodes that can have their value written beside them
WRITTEN = 16  # nodes whose positions can be written into the mask's cells
NODES = "nodes, the root included"
# name in the legend, colour, dash, width, marker, sign in front of the token
_LOOKS = {
    "pending": ("pending token (known already)", INK, "solid", 1.5, "square", ""),
    "accepted": ("accepted ✓", ACCEPTED, "solid", 3.5, "circle", "✓ "),
    "bonus": ("bonus token ◆ (from the target)", TARGET, "dash", 3.0, "diamond", "◆ "),
    "other": ("drafted, not accepted", OTHER, "dot", 1.5, "x-thin", ""),
}


def draft_tree(step: Step, row: int = 0) -> go.Figure:
    """The tree that was drafted in one step, the path that was accepted and the bonus token behind
    it.

    Read from left to right: the pending token, then one column a level; siblings from top to bottom
    in drawing order. The bonus token hangs below the last accepted node. One trace a kind of node
    (``customdata``: node index, -1 for the bonus token; token id) follows one trace a kind of edge,
    the same number for every step, so that a widget can update them in place.

    Args:
        step: a decoding step; it need not be traced.
        row: which row of the batch.
    Raises:
        ValueError: no such row, or the row had finished before this step.
    """
    rows = step.draft.tokens.shape[0]
    if not 0 <= row < rows:
        raise ArgumentError(f"row must be 0..{rows - 1}, got {row}")
    accepted = int(step.verdict.accepted[row])
    if accepted < 0:
        raise ArgumentError(f"row {row} had finished before this step")
    tree = step.draft.tree
    parents = tree.host[row if tree.R > 1 else 0]
    valid = step.draft.valid[row].tolist()
    tokens = dict(enumerate(step.draft.tokens[row].tolist()))
    path = step.verdict.path[row, : accepted + 1].tolist()
    tokens[-1] = int(step.verdict.bonus[row])  # node -1: the bonus token
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        if parent >= 0 and valid[node]:
            children.setdefault(parent, []).append(node)
    children.setdefault(path[-1], []).append(-1)
    place = places(children)
    kind = dict.fromkeys(place, "other") | dict.fromkeys(path, "accepted")
    kind |= {0: "pending", -1: "bonus"}
    drafted = sum(valid[n] and parents[n] >= 0 for n in range(tree.n))
    counted = f"{drafted} draft tokens, {accepted} accepted, 1 bonus token"
    one = Panel(f"Step {step.index + 1}: {counted}")
    pairs = [(parent, node) for parent in children if parent in place for node in children[parent]]
    for name in ("other", "bonus", "accepted"):
        _, colour, dash, width, _, _ = _LOOKS[name]
        xs, ys = lines_between(place, [pair for pair in pairs if kind[pair[1]] == name])
        one.line("", xs, ys, (colour, dash, ""), size=0, width=width)
    for name, (text, colour, dash, width, symbol, sign) in _LOOKS.items():
        nodes = [node for node in place if kind[node] == name]
        words = [label(step.tokenizer, tokens[node]) for node in nodes]
        one.line(
            text,
            [place[n][0] for n in nodes],
            [place[n][1] for n in nodes],
            (colour, dash, symbol),
            size=11,
            width=width,
            mode="markers+lines",
            marker_line={"color": colour, "width": 2},
            line_color=CLEAR,  # in the legend alone
            customdata=[[n, tokens[n]] for n in nodes],
            text=words,
            hover="%{text}<br>id %{customdata[1]}",
        )
        for n, word in zip(nodes, words, strict=True):
            one.note(*place[n], **chip(f"{sign}{word}", None if name == "other" else colour))
    leaves = sum(node not in children for node in place)
    one.x = axis("depth", -0.35, tree.D + 1.35, tickvals=list(range(tree.D + 2)), **BARE)
    one.y = {"visible": False, "range": [-leaves, 1]}
    return draw(one, max(220, 130 + 25 * leaves))


def value_tree(
    parents: Sequence[int], values: Sequence[float], labels: Sequence[str] | None = None
) -> go.Figure:
    """A tree from left to right, one column a depth, siblings from top to bottom in drawing order;
    markers grow with the values.

    Args:
        parents: -1 for the root, in level order.
        values: of every node, the root's first.
        labels: what to write at the nodes, default their numbers.
    Raises:
        ValueError: not a tree, or not one value (and label) a node.
    """
    total = f"{len(values) - 1} draft tokens, their values sum to {float(sum(values)) - 1:.2f}"
    height = max(240, 110 + 24 * leaves_of(parents))
    return draw(valued(total, parents, values, labels), height)


def tree_mask(parents: Sequence[int]) -> go.Figure:
    """Which nodes each node sees, coloured by position.

    A row is a node that looks, a column what it looks at: the committed text before the pending
    token, then the nodes. Empty is hidden; a colour and, in small trees, a number say at which
    position after the pending token the seen node stands.

    Args:
        parents: -1 for the root, in level order.
    Raises:
        ValueError: not a tree.
    """
    one = _mask("What each node sees, and at which position", parents, x=1.02, y=0.5, length=0.9)
    return draw(one, max(300, min(560, 120 + 24 * len(parents))))


def designer(
    parents: Sequence[int], values: Sequence[float], best: Mapping[int, float], speed: float
) -> go.Figure:
    """A tree, its mask and positions, and its speedup among the best trees by number of nodes."""
    tree = valued("tree (marker size: value)", parents, values)
    mask = _mask("mask (colour: position)", parents, x=1.02, y=0.74, length=0.55)
    sizes, n = sorted(best), len(parents)
    curve = Panel("predicted speedup by number of nodes")
    curve.x = axis(NODES, 0.5, max(sizes[-1], n) + 0.5)
    curve.y = axis("speedup", 0, 1.15 * max(1.0, speed, *best.values()))
    name, hover = "best tree of so many nodes", "%{x} nodes: %{y:.2f}x"
    speeds = [best[m] for m in sizes]
    curve.line(name, sizes, speeds, (FIRST, "solid", "circle"), size=5, hover=hover)
    curve.here("this tree", n, speed, hover=hover).rule(y=1)
    heights, widths = (0.66, 0.34), (0.52, 0.48)
    return draw([[tree, mask], [curve]], 720, heights=heights, widths=widths, gaps=(0.08, 0.2))


def by_nodes(
    curves: Mapping[str, Sequence[float | None]], title: str, yaxis: str, xaxis: str = NODES
) -> go.Figure:
    """Lines over the number of nodes.

    Args:
        curves: name -> its value at 1, 2, .. nodes; None where there is none.
        title, yaxis, xaxis: of the figure, of the values, and which nodes are counted.
    """
    points = {name: (range(1, len(values) + 1), values) for name, values in curves.items()}
    one = Panel(title, xaxis, axis(yaxis, rangemode="tozero"))
    return draw(one.lines(points, size=6, hover="%{x} nodes: %{y:.2f}"), 430)


# ------------------------------------------------------------------------------------------- parts


def tree_panel(title: str, parents: Sequence[int], width: float) -> tuple[Panel, dict]:
    """A panel with the edges of a tree, and the places of its nodes."""
    place, xs, ys = edges_of(parents)
    one = Panel(title, {"tickvals": list(range(max(depths(parents)) + 1)), **BARE})
    one.y = {"visible": False, "range": [-leaves_of(parents) + 0.4, 0.6]}
    return one.line("", xs, ys, (EDGE, "solid", ""), 0, width), place


def valued(
    title: str,
    parents: Sequence[int],
    values: Sequence[float],
    labels: Sequence[str] | None = None,
) -> Panel:
    """The tree of :func:`value_tree`: edges and nodes."""
    depth, n = depths(parents), len(parents)
    words = labels or list(map(str, range(n)))
    if len(values) != n or len(words) != n:
        raise ArgumentError(
            f"a tree of {n} nodes needs as many values and labels, got {len(values)} and "
            f"{len(words)}"
        )
    one, place = tree_panel(title, parents, 1.5)
    one.x |= axis("depth", -0.2, max(depth) + 0.9)
    return one.points(
        "",
        [place[i][0] for i in range(n)],
        [place[i][1] for i in range(n)],
        (FIRST, "", "circle"),
        size=[round(5 + 15 * float(v) ** 0.5, 1) for v in values],
        mode="markers+text" if n <= LABELLED else "markers",
        text=[f"{word} <b>{float(v):.2f}</b>" for word, v in zip(words, values, strict=True)],
        textposition="top right",
        textfont={"family": MONOSPACE, "size": 11, "color": INK},
        customdata=list(range(n)),
        hover="node %{customdata}: %{text}",
        cliponaxis=False,
        marker_opacity=1,
        marker_line_width=0,
    )


def _mask(title: str, parents: Sequence[int], x: float, y: float, length: float) -> Panel:
    depth, n = depths(parents), len(parents)
    seen: list[set[int]] = []
    for node, parent in enumerate(parents):
        seen.append({node} | (seen[parent] if parent >= 0 else set()))
    z = [[-1, *(depth[j] if j in seen[i] else None for j in range(n))] for i in range(n)]
    words = [["text", *("" if d is None else f"+{d}" for d in row[1:])] for row in z]
    every = list(range(0, n, 1 if n <= WRITTEN else 4 if n <= 40 else 8))
    shown = every if n <= WRITTEN else every[1:]  # no room beside the text's
    one = Panel(title, axis("seen", tickvals=[-1, *shown], tickangle=0, **BARE))
    one.x = {**one.x, "ticktext": ["text", *map(str, shown)]}
    one.y = axis("node", tickvals=every, autorange="reversed", **BARE)
    most = max(1, *depth)
    ticks = {"tickvals": [-1, *range(most + 1)]}
    ticks |= {"ticktext": ["text", *(f"+{d}" for d in range(most + 1))]}
    place: dict[str, Any] = {"x": x, "y": y, "len": length, "thickness": 12}
    return one.cells(
        range(-1, n),
        range(n),
        z,
        DEPTHS,
        words,
        hover="node %{y} sees %{x}: %{text}",
        written=n <= WRITTEN,
        zmin=-1,
        zmax=most,
        showscale=True,
        colorbar={"title": {"text": "position"}, **place, **ticks},
    )


def places(children: Mapping[int, Sequence[int]]) -> dict[int, tuple[float, float]]:
    """x = depth; leaves one below the other, a parent in the middle of its children."""
    place: dict[int, tuple[float, float]] = {}
    below = 0

    def put(node: int, depth: int) -> float:
        nonlocal below
        ys = [put(child, depth + 1) for child in children.get(node, ())]
        if not ys:
            ys, below = [-float(below)], below + 1
        place[node] = (depth, (ys[0] + ys[-1]) / 2)
        return place[node][1]

    put(0, 0)
    return place


def leaves_of(parents: Sequence[int]) -> int:
    return len(set(range(len(parents))) - set(parents))


def lines_between(
    place: Mapping[int, tuple[float, float]], pairs: Sequence[tuple[int, int]]
) -> tuple[list[float | None], list[float | None]]:
    """Return x and y of the edges between nodes, each ended by None."""
    xs, ys = ([v for a, b in pairs for v in (place[a][i], place[b][i], None)] for i in (0, 1))
    return xs, ys


def edges_of(
    parents: Sequence[int],
) -> tuple[dict[int, tuple[float, float]], list[float | None], list[float | None]]:
    """Return :func:`places` of a tree given by its parents, and x and y of its edges."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents[1:], 1):
        children.setdefault(parent, []).append(node)
    place = places(children)
    return place, *lines_between(place, [(p, node) for node, p in enumerate(parents[1:], 1)])
