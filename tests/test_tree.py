"""Trees are what their names say, their tables agree with their parents, and wrong ones are
refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specwb import Tree
from specwb.core.flow import State
from specwb.core.mask import causal_mask, tree_mask
from specwb.core.probability import Sampling
from specwb.core.tree import GrownTree, Limits


@st.composite
def parents(draw):
    n = draw(st.integers(1, 12))
    return [-1] + [draw(st.integers(0, i - 1)) for i in range(1, n)]


def ancestors(row: tuple[int, ...], i: int) -> list[int]:
    """i, its parent, .., the root."""
    chain = [i]
    while row[chain[-1]] >= 0:
        chain.append(row[chain[-1]])
    return chain


@settings(max_examples=60, deadline=None)
@given(parents())
def test_tables_agree_with_parents(row):
    tree = Tree.parents(row)
    assert (tree.R, tree.n) == (1, len(row))
    assert tree.parent.tolist() == [row]
    for i in range(tree.n):
        chain = ancestors(tuple(row), i)
        assert tree.depth[0, i] == len(chain) - 1
        assert set(torch.nonzero(tree.mask[0, i]).flatten().tolist()) == set(chain)
        assert tree.trail[0, i].tolist() == chain[::-1] + [i] * (tree.D + 1 - len(chain))
        kids = [j for j in range(tree.n) if row[j] == i]
        assert [k for k in tree.kids[0, i].tolist() if k >= 0] == kids
        assert [int(tree.rank[0, k]) for k in kids] == list(range(len(kids)))
    assert int(tree.depth.max()) == tree.D
    assert max(row.count(i) for i in range(tree.n)) == tree.K
    at = [[row.count(i) for i in range(tree.n) if tree.depth[0, i] == d] for d in range(tree.D)]
    assert tree.widths == tuple(map(max, at))
    assert tree.is_chain == (row == list(range(-1, tree.n - 1)))


def grown(*host: list[int]) -> GrownTree:
    tree = Tree([*host])
    return GrownTree(tree.parent.clone(), tree.depth.clone(), tree.D, tree.K)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Tree([[]]), "at least its root"),
        (lambda: Tree([[-1, 0], [-1]]), "same number"),
        (lambda: Tree([[0]]), "node 0 is the root.*got 0"),
        (lambda: Tree([[-1, 1]]), r"node 1 must be one of 0\.\.0 .*got 1"),
        (lambda: Tree([[-1, -2]]), "got -2"),
        (lambda: Tree([[-1, 0]], unverified=2), r"unverified must be 0\.\.1.*got 2"),
        (lambda: Tree.branching(4, 0, 2), "got 4-0-2"),
        (lambda: Tree.branching(5000), "at most 4096 nodes"),
        (lambda: Tree([[-1, 0, 0, -1], [-1, 0, 1, 2]]).levels, "one shared tree in level order"),
        (lambda: Tree([[-1, 0, 1, 1]], unverified=1).prefix(1), "level order"),
        (lambda: grown([-1, 0, 1]).prefix(1), "no prefixes"),
        (lambda: setattr(Tree.chain(2), "K", 7), "never changed"),
    ],
)
def test_wrong_trees_are_refused(make, named):
    with pytest.raises((ValueError, AttributeError), match=named):
        make()


def seen(mask: torch.Tensor) -> torch.Tensor:
    """Additive to boolean; nothing but 0 and the most negative number is allowed."""
    assert bool(((mask == 0) | (mask == torch.finfo(mask.dtype).min)).all())
    return mask == 0


@pytest.mark.parametrize(
    "tree",
    [Tree.branching(2, 2), Tree([[-1, 0, 1, 2], [-1, 0, 0, -1], [-1, 0, 1, 0]])],
    ids=["tree", "rows"],
)
def test_every_node_sees_the_committed_text_its_ancestors_and_itself(tree):
    length = torch.tensor([6, 1, 3])
    mask = tree_mask(tree, length, 6, torch.bfloat16)
    assert mask.dtype == torch.bfloat16
    found = seen(mask)
    assert found.shape == (3, tree.n, 5 + tree.n)
    for row, k in enumerate(length.tolist()):
        parents = tree.host[row if tree.R > 1 else 0]
        for i in range(tree.n):
            wanted = {*range(k - 1), *(k - 1 + a for a in ancestors(parents, i))}
            assert set(torch.nonzero(found[row, i]).flatten().tolist()) == wanted


def test_causal_mask():
    found = seen(causal_mask(torch.tensor([[2, 3], [0, 1]]), 5, torch.float32))
    assert found.tolist() == [
        [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]],
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]],
    ]


# ------------------------------------------------------------------ nodes that are never verified


@settings(max_examples=60, deadline=None)
@given(parents(), st.data())
def test_unverified_nodes_count_for_the_mask_and_not_for_a_walk(row, data):
    unverified = data.draw(st.integers(0, len(row) - 1))
    v = len(row) - unverified
    tree, whole, rest = Tree([row], unverified=unverified), Tree([row]), Tree([row[:v]])
    assert (tree.n, tree.v) == (len(row), v)
    for name in ("parent", "depth", "mask"):
        assert torch.equal(getattr(tree, name), getattr(whole, name))
    assert torch.equal(tree.table(torch.float32), whole.table(torch.float32))
    for name in ("kids", "trail"):
        assert torch.equal(getattr(tree, name), getattr(rest, name))
    for name in ("D", "K", "widths", "is_chain"):
        assert getattr(tree, name) == getattr(rest, name)
    assert tree.in_level_order == (whole.in_level_order and not unverified)
    moved = tree.to("meta")
    assert (moved.host, moved.v, moved.D) == (tree.host, v, tree.D)


# --------------------------------------------------------------------------- equal paths made one


def words(tree: Tree, row: tuple[int, ...], tokens: list[int], i: int) -> tuple[int, ...]:
    return tuple(tokens[j] for j in reversed(ancestors(row, i)))


@settings(max_examples=100, deadline=None)
@given(parents(), st.integers(0, 3), st.data())
def test_merged_is_the_trie_of_every_row(row, unverified, data):
    """Against a dictionary of paths, from random trees with few letters and invalid nodes."""
    unverified = min(unverified, len(row) - 1)
    tree = Tree([row], unverified=unverified)
    rows = 4
    tokens = [[0] + [data.draw(st.integers(0, 2)) for _ in row[1:]] for _ in range(rows)]
    valid = [
        [True] + [data.draw(st.sampled_from([True, True, True, False])) for _ in row[1:]]
        for _ in range(rows)
    ]
    trie = tree.merged(torch.tensor(tokens), torch.tensor(valid))
    assert trie.kids.shape == (rows, tree.v, max(trie.K, 1))
    assert trie.D == tree.D
    assert torch.equal(trie.mask, tree.mask)
    for b in range(rows):
        first: dict[tuple[int, ...], int] = {}
        for i in range(tree.v):
            if all(valid[b][j] for j in ancestors(tree.host[0], i)):
                first.setdefault(words(tree, tree.host[0], tokens[b], i), i)
        for i in range(tree.v):
            path = words(tree, tree.host[0], tokens[b], i)
            wanted = (
                [
                    j
                    for other, j in first.items()
                    if len(other) == len(path) + 1 and other[:-1] == path
                ]
                if i in first.values()
                else []
            )
            kids = trie.kids[b, i].tolist()
            assert kids == sorted(wanted) + [-1] * (len(kids) - len(wanted))
            assert len(wanted) <= (trie.widths[len(path) - 1] if len(path) <= trie.D else 0)


# ----------------------------------------------------------------------- trees made on the device

SAME = ("host", "below", "depths", "v", "D", "K", "widths", "levels", "is_chain", "is_paths")
TABLES = ("parent", "depth", "rank", "kids", "mask", "trail")


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10), st.integers(1, 3), st.integers(0, 2), st.integers(0, 1), st.data())
def test_a_grown_tree_is_the_tree_of_its_parents(n, rows, deeper, wider, data):
    """Every table of every row; the bounds it is given may be larger than what is there."""
    host = [[-1] + [data.draw(st.integers(0, i - 1)) for i in range(1, n)] for _ in range(rows)]
    tree = Tree(host)
    D, K = tree.D + deeper, max(tree.K, 1) + wider
    grown = GrownTree(tree.parent.clone(), tree.depth.clone(), D, K)
    assert (grown.R, grown.n, grown.v, grown.D, grown.K, grown.widths) == (
        rows,
        n,
        n,
        D,
        K,
        (K,) * D,
    )
    assert (grown.host, grown.depths) == (tree.host, tree.depths)
    assert not grown.is_chain
    assert not grown.is_paths
    assert torch.equal(grown.rank, tree.rank)
    assert torch.equal(grown.mask, tree.mask)
    assert torch.equal(grown.table(torch.float32), tree.table(torch.float32))
    assert torch.equal(grown.kids[..., : tree.kids.shape[-1]], tree.kids)
    assert (grown.kids[..., tree.kids.shape[-1] :] == -1).all()
    assert torch.equal(grown.trail[..., : tree.D + 1], tree.trail)
    assert (grown.trail[..., tree.D + 1 :] == torch.arange(n)[:, None]).all()


def test_merged_rows_of_different_shape():
    tree = Tree([[-1, 0, 0, 1, 2], [-1, 0, 1, -1, -1]])
    trie = tree.merged(
        torch.tensor([[9, 5, 5, 6, 7], [9, 9, 9, 9, 9]]), torch.ones(2, 5, dtype=torch.bool)
    )
    assert trie.kids.tolist() == [
        [[1, -1], [3, 4], [-1, -1], [-1, -1], [-1, -1]],
        [[1, -1], [2, -1], [-1, -1], [-1, -1], [-1, -1]],
    ]


# --------------------------------------------------------------------------------- depth prefixes

LEVELLED = {
    "widest below": Tree.branching(2, 1, 3),
    "lopsided": Tree.paths([(0, 0, 0, 0), (0, 1), (1, 0, 0), (2,), (1, 1)]),
    "chain": Tree.chain(4),
    "paths": Tree.branching(4, 1, 1),
}


def rebuilt(tree: Tree, d: int) -> Tree:
    """From the parents of the nodes that are no deeper than d, as if the rest had never been."""
    return Tree([[p for p, depth in zip(tree.host[0], tree.depths[0], strict=True) if depth <= d]])


@pytest.mark.parametrize("tree", LEVELLED.values(), ids=LEVELLED)
def test_a_prefix_is_the_tree_built_anew(tree):
    """Theorem 13.1, every attribute, every table, and the step's mask."""
    length, horizon, ends = torch.tensor([7, 3, 1]), 7, torch.empty(0, dtype=torch.long)
    tokens = torch.zeros(3, 20, dtype=torch.long)
    # what is kept of the whole tree must not show in its prefixes
    _ = [getattr(tree, name) for name in SAME], tree.table(torch.float64)
    for d in range(tree.D + 2):
        cut, fresh = tree.prefix(d), rebuilt(tree, d)
        for name in SAME:
            assert getattr(cut, name) == getattr(fresh, name), (d, name)
        for name in TABLES:
            assert torch.equal(getattr(cut, name), getattr(fresh, name)), (d, name)
        assert torch.equal(cut.table(torch.float64), fresh.table(torch.float64))
        assert tree.prefix(d) is cut is cut.prefix(d) is cut.clone() is cut.to("cpu")
        assert cut.uncut is tree
        # nothing is built again
        assert cut.mask.data_ptr() == tree.mask.data_ptr()
        wanted = tree_mask(fresh, length, horizon, torch.float32)
        arguments = (tokens, length, length, length + 9, length < 0, ends, Sampling(), horizon)
        state = State(*arguments, None)  # type: ignore[arg-type]
        assert torch.equal(state.tree_mask(cut, torch.float32), wanted)
        state._masks.clear()
        whole = state.tree_mask(tree, torch.float32)
        sliced = state.tree_mask(cut, torch.float32)
        assert torch.equal(sliced, wanted)
        assert sliced.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_limits():
    """Of a cut tree the children of the uncut one: which uniform decides does not depend on the
    cut."""
    tree = Tree.branching(2, 3)
    assert tree.limits == Limits(9, 2, 3)
    assert tree.prefix(1).limits == Limits(3, 1, 3, paths=True)
    assert Tree.branching(3, 1, 1).limits == Limits(10, 3, 3, paths=True)
    assert Tree.chain(0).limits == Limits(1, 0, 0)
    for wrong in ((0, 0, 0), (2, 2, 1), (3, 1, 0), (5000, 1, 1)):
        with pytest.raises(ValueError, match="nodes"):
            Limits(*wrong)
