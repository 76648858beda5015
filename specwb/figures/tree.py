"""The token tree of one decoding step."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from specwb.errors import ArgumentError
from specwb.figures.style import ACCEPTED, CLEAR, INK, OTHER, TARGET, chip, figure, label
from specwb.flow import Step

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
    kind = (
        dict.fromkeys(place, "other")
        | dict.fromkeys(path, "accepted")
        | {0: "pending", -1: "bonus"}
    )

    edges: dict[str, tuple[list, list]] = {name: ([], []) for name in _LOOKS}
    for parent, below in children.items():
        if parent not in place:
            continue
        for node in below:
            xs, ys = edges[kind[node]]
            xs += [place[parent][0], place[node][0], None]
            ys += [place[parent][1], place[node][1], None]
    traces = []
    for name in ("other", "bonus", "accepted"):
        _, colour, dash, width, _, _ = _LOOKS[name]
        line = {"color": colour, "dash": dash, "width": width}
        traces.append(
            go.Scatter(
                x=edges[name][0],
                y=edges[name][1],
                mode="lines",
                line=line,
                hoverinfo="skip",
                showlegend=False,
            )
        )
    labels = []
    for name, (text, colour, dash, width, symbol, sign) in _LOOKS.items():
        nodes = [node for node in place if kind[node] == name]
        words = [label(step.tokenizer, tokens[node]) for node in nodes]
        traces.append(
            go.Scatter(
                x=[place[n][0] for n in nodes],
                y=[place[n][1] for n in nodes],
                mode="markers+lines",
                name=text,
                marker={
                    "symbol": symbol,
                    "size": 11,
                    "color": colour,
                    "line": {"color": colour, "width": 2},
                },
                line={"color": CLEAR, "dash": dash, "width": width},
                customdata=[[n, tokens[n]] for n in nodes],
                text=words,
                hovertemplate="%{text}<br>id %{customdata[1]}<extra>" + text + "</extra>",
            )
        )
        filling = None if name == "other" else colour
        labels += [
            {"x": place[n][0], "y": place[n][1], **chip(f"{sign}{word}", filling)}
            for n, word in zip(nodes, words, strict=True)
        ]
    leaves = sum(node not in children for node in place)
    drafted = sum(valid[n] and parents[n] >= 0 for n in range(tree.n))
    title = f"Round {step.index + 1}: {drafted} draft tokens, {accepted} accepted, 1 bonus token"
    return figure(
        *traces,
        title={"text": title, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"},
        annotations=labels,
        xaxis={
            "range": [-0.35, tree.D + 1.35],
            "tickvals": list(range(tree.D + 2)),
            "title": {"text": "depth"},
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={"visible": False, "range": [-leaves, 1]},
        height=max(220, 130 + 25 * leaves),
        margin={"l": 20, "r": 20, "t": 78, "b": 45},
    )


def places(children: dict[int, list[int]]) -> dict[int, tuple[float, float]]:
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


def edges_of(
    parents: Sequence[int],
) -> tuple[dict[int, tuple[float, float]], list[float | None], list[float | None]]:
    """:func:`places` of a tree given by its parents; x and y of its edges, each ended by None."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents[1:], 1):
        children.setdefault(parent, []).append(node)
    place = places(children)
    ends = [(place[parent], place[node]) for node, parent in enumerate(parents[1:], 1)]
    xs, ys = ([value for a, b in ends for value in (a[i], b[i], None)] for i in (0, 1))
    return place, xs, ys
