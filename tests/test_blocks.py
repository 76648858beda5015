"""Trees drafted in blocks: every node's place, every block's sight, against rules written down once
more over paths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specwb import Tree
from specwb.core.blocks import PUBLISHED, BlockTree

Path = tuple[int, ...]
COUNTS = {"vicuna": (20, 15, 19, 23, 21, 23, 21, 23), "llama": (20, 19, 19, 15, 16, 10, 10, 9)}
BLOCKS = {"vicuna": (1, 7, 11, 12), "llama": (1, 6, 7, 7)}


@st.composite
def level_ordered(draw) -> Tree:
    """Up to 14 nodes, a level after the other, the order of parents within a level free."""
    parents, depth = [-1], [0]
    for _ in range(draw(st.integers(1, 13))):
        parents.append(
            draw(st.sampled_from([i for i in range(len(parents)) if depth[i] + 1 >= depth[-1]]))
        )
        depth.append(depth[parents[-1]] + 1)
    return Tree.parents(parents)


def paths(tree: Tree) -> list[Path]:
    """Ranks on the way to every node."""
    found: list[Path] = [()]
    for node, parent in enumerate(tree.host[0][1:], 1):
        found.append((*found[parent], tree.host[0][:node].count(parent)))
    return found


def blocks_of(every: list[Path], k: int) -> list[list[Path]]:
    """By pass: paths that k more tokens are said of, in the order of their nodes."""
    inner = {path[:-1] for path in every[1:]}
    return [
        [p for p in every if len(p) == b * k and p in inner]
        for b in range(-(-max(map(len, every)) // k))
    ]


def check(tree: Tree, k: int) -> None:
    every, made = paths(tree), BlockTree(tree, k)
    wanted = blocks_of(every, k)
    assert [[every[node] for node in one.blocks] for one in made.passes] == wanted
    first = 0
    for b, one in enumerate(made.passes):
        assert one.levels == min(k, tree.D - b * k)
        assert one.width == max(r[-1] + 1 for r in every[1:] if b * k < len(r) <= (b + 1) * k)
        assert one.first == first
        first += k * len(one.blocks) if b else 0
        for node, follows, nodes in zip(
            one.blocks, one.parents or [None] * len(one.blocks), one.nodes, strict=True
        ):
            path = every[node]
            if b:
                assert wanted[b - 1][follows] == path[: (b - 1) * k]
                assert [every[n] for n in nodes] == [
                    path[:d] for d in range((b - 1) * k + 1, b * k + 1)
                ]
    assert made.slots == first
    assert made.lists == sum(len(one.blocks) * one.levels for one in made.passes)
    # a node's list: the block k, 2k, .. tokens below the root that it hangs from, its depth there,
    # its own rank
    rule = []
    for path in every[1:]:
        b, j = divmod(len(path) - 1, k)
        rule.append((b, wanted[b].index(path[: b * k]), j, path[-1]))
    assert made.places == rule
    inner = {path[:-1] for path in every[1:]}
    assert {every[node]: every[block] for node, block in made.above.items()} == {
        p: p[: len(p) // k * k] for p in inner
    }
    check_sight(made, wanted, k)


def check_sight(made: BlockTree, wanted: list[list[Path]], k: int) -> None:
    """Who sees whom is a matter of paths: a block sees those whose path its own begins with."""
    places: list[Path | None] = [
        None,
        *(p for level in wanted[1:] for p in level for _ in range(k)),
    ]
    table = made.sight()
    assert table.shape == (1, 1 + made.slots, 3 + made.slots)
    assert table.dtype == torch.bool
    for row, path in enumerate(places):
        sees = [
            other is None or (path is not None and path[: len(other)] == other) for other in places
        ]
        assert table[0, row].tolist() == [True, *sees, False]


# ------------------------------------------------------------------------------------- every node


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_trees(name):
    """As they were counted; in blocks of two they were made for, and in any other."""
    tree = PUBLISHED[name]
    assert tuple(stop - start for start, stop in tree.levels[1:]) == COUNTS[name]
    assert tuple(len(one.blocks) for one in BlockTree(tree, 2, 4).passes) == BLOCKS[name]
    for k in (1, 2, 3, 5, 9):
        check(tree, k)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(level_ordered(), st.integers(1, 4))
def test_places_of_any_tree(tree, k):
    check(tree, k)


# -------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("tree", "k", "passes", "message"),
    [
        (Tree.chain(2), 0, None, "k and passes must be >= 1, got k=0, passes=None"),
        (Tree.chain(2), 2, 0, "k and passes must be >= 1, got k=2, passes=0"),
        (
            Tree.chain(5),
            2,
            2,
            "2 passes of k=2 tokens make trees of depth 4 at most, this one has 5",
        ),
        (Tree.chain(0), 2, None, "of at least one candidate"),
        (Tree.parents([-1, 0, 1, 0]), 2, None, "its nodes in level order"),
        (Tree([[-1, 0], [-1, -1]]), 2, None, "one tree for all rows"),
        (Tree([[-1, 0, 1]], unverified=1), 2, None, "its nodes in level order"),
    ],
)
def test_trees_that_cannot_be_drafted_in_blocks(tree, k, passes, message):
    with pytest.raises(ValueError, match=message):
        BlockTree(tree, k, passes)
