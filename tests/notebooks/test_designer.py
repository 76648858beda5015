"""The tree designer shows the library's trees, values, masks and speeds."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
from drawn import picture, shown

from specwb import Tree, analysis, figures
from specwb.verify.exact import depths
from specwb.widgets import TreeDesigner
from specwb.widgets.designer import HAND, MEASURED, ROOFLINE, SPEED, TOKENS

RATES = [0.55, 0.2, 0.1, 0.05]


def dear(parents) -> float:
    return 1 + 0.08 * (len(parents) - 1) + 0.05 * max(depths(parents))


@pytest.fixture(scope="module")
def one() -> TreeDesigner:
    return TreeDesigner(RATES, cost=dear, most=32)


@pytest.fixture
def designer(one) -> TreeDesigner:
    """From the same settings every time."""
    one.costs.value, one.balance.value, one.c.value, one.nodes.value, one.depth.value = (
        MEASURED,
        128,
        0.1,
        16,
        6,
    )
    for level, k in zip(one.levels, (4, 2, 2, 0)):
        level.value = k
    one.shape.value = HAND
    return one


def tau(parents) -> float:
    return float(sum(analysis.path_values(RATES, parents)))


# ---------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize("ks", [(), (1, 1, 1), (4, 2, 2), (6, 4)], ids=str)
def test_the_mask_is_the_trees(ks):
    tree = Tree.branching(*ks) if ks else Tree.chain(0)
    (heat,) = figures.tree_mask(tree.host[0]).data
    assert list(heat.x) == list(range(-1, tree.n))
    for i in range(tree.n):
        assert heat.z[i][0] == -1, "the committed text is seen by all"
        for j in range(tree.n):
            assert heat.z[i][j + 1] == (int(tree.depth[0, j]) if tree.mask[0, i, j] else None)
    assert figures.tree_mask(tree.host[0]).layout.yaxis.autorange == "reversed"
    assert heat.texttemplate == ("%{text}" if tree.n <= 16 else "")


def test_a_tree_with_its_values():
    parents = Tree.branching(2, 2).host[0]
    values = analysis.path_values([F(1, 2), F(1, 4)], parents)
    drawn = figures.value_tree(parents, values)
    edges, nodes = drawn.data
    assert list(nodes.customdata) == list(range(7))
    assert nodes.text[1] == "1 <b>0.50</b>"
    assert list(nodes.x) == depths(parents)
    assert (
        nodes.marker.size[0] > nodes.marker.size[1] > nodes.marker.size[2] == nodes.marker.size[3]
    )
    assert [edges.x[i : i + 2] for i in range(0, len(edges.x), 3)] == [
        (depths(parents)[p], depths(parents)[p] + 1) for p in parents[1:]
    ]
    assert f"their values sum to {float(sum(values)) - 1:.2f}" in drawn.layout.title.text
    assert figures.value_tree(parents, values, list("abcdefg")).data[1].text[6] == "g <b>0.06</b>"
    assert figures.value_tree(Tree.branching(6, 6).host[0], [0.1] * 43).data[1].mode == "markers"
    with pytest.raises(
        ValueError, match="a tree of 7 nodes needs as many values and labels, got 6 and 7"
    ):
        figures.value_tree(parents, values[:6])
    with pytest.raises(ValueError, match="node 0 must be the root"):
        figures.value_tree([0, 0], [1, 1])


def test_lines_by_nodes():
    drawn = figures.by_nodes({"a": [1, 2, None], "b": [1.5]}, "title", "tau")
    assert [(list(t.x), list(t.y)) for t in drawn.data] == [([1, 2, 3], [1, 2, None]), ([1], [1.5])]
    assert drawn.data[0].line.dash != drawn.data[1].line.dash
    assert drawn.data[0].marker.symbol != drawn.data[1].marker.symbol
    for bad in ({}, {str(i): [1] for i in range(9)}):
        with pytest.raises(ValueError, match="between one and 8 curves"):
            figures.by_nodes(bad, "", "")
    with pytest.raises(ValueError, match="at least one number of nodes"):
        figures.designer([-1], [1], {}, 1.0)


def test_best_trees_by_number_of_nodes():
    drawn = figures.designer([-1, 0], [1, 0.5], {3: 1.5, 1: 1.0, 2: 1.25}, 1.125)
    best, here = drawn.data[-2:]
    assert (list(best.x), list(best.y)) == ([1, 2, 3], [1.0, 1.25, 1.5])
    assert (list(here.x), list(here.y)) == ([2], [1.125])


# ----------------------------------------------------------------------------------------- widget


def test_it_shows_the_tree_made_by_hand(designer):
    for ks in ((4, 2, 2), (3,), (2, 2, 1, 1)):
        for level, k in zip(designer.levels, (*ks, 0, 0, 0, 0)):
            level.value = k
        parents = list(Tree.branching(*ks).host[0])
        assert designer.parents == parents
        assert designer.speed == pytest.approx(tau(parents) / dear(parents))
        assert designer.summary.startswith(
            f"{'-'.join(map(str, ks))}, {len(parents)} nodes, depth {len(ks)}: "
            f"{tau(parents) - 1:.2f} accepted + 1 = {tau(parents):.2f} tokens "
            f"a round for {dear(parents):.2f} plain steps, speedup "
            f"{tau(parents) / dear(parents):.2f}x; "
        )
    designer.levels[0].value = 0
    assert designer.parents == [-1]
    assert designer.summary.startswith(
        "no draft, 1 node, depth 0: 0.00 accepted + 1 = 1.00 tokens a round for 1.00 plain steps, "
        "speedup 1.00x"
    )


@pytest.mark.parametrize(("nodes", "depth"), [(1, 6), (9, 2), (16, 6), (32, 8), (20, 0)])
def test_best_trees_are_the_librarys(designer, nodes, depth):
    designer.nodes.value, designer.depth.value, designer.shape.value = nodes, depth, TOKENS
    assert designer.parents == analysis.best_tree(RATES, nodes, depth)
    for costs, seconds in (
        (MEASURED, dear),
        (ROOFLINE, lambda t: analysis.roofline(len(t) - 1, 1, 8) + 0.1 * max(depths(t))),
    ):
        designer.costs.value, designer.balance.value, designer.shape.value = costs, 8, SPEED
        parents, speed = analysis.choose_tree(RATES, seconds, nodes, depth)
        assert designer.parents == parents
        assert designer.speed == pytest.approx(speed)
        assert (
            f"depth {depth} has {len(parents)} node{'s' if len(parents) > 1 else ''} and "
            f"{speed:.2f}x" in designer.summary
        )


def test_the_picture_is_the_pure_figure(designer):
    before = shown(designer)
    designer.nodes.value, designer.depth.value, designer.shape.value = 6, 3, TOKENS
    best = {}
    for n in range(1, 33):
        for depth in range(4):
            parents = analysis.best_tree(RATES, n, depth)
            best[len(parents)] = max(best.get(len(parents), 0), tau(parents) / dear(parents))
    parents = analysis.best_tree(RATES, 6, 3)
    now = shown(designer)
    wanted = picture(
        figures.designer(
            parents, analysis.path_values(RATES, parents), best, tau(parents) / dear(parents)
        )
    )
    assert before != now
    assert now["data"][:3] == wanted["data"][:3]
    for mine, theirs in zip(now["data"][3:], wanted["data"][3:], strict=True):
        assert mine["x"] == theirs["x"]
        assert mine["y"] == pytest.approx(theirs["y"])
    assert designer.summary in designer.children[2].value


def test_free_nodes_make_wide_trees(designer):
    designer.shape.value, designer.nodes.value, designer.depth.value = SPEED, 32, 8
    here = designer.parents
    designer.costs.value, designer.balance.value, designer.c.value = ROOFLINE, 32, 0.2
    assert len(designer.parents) == 32 > len(here)
    deep = max(depths(designer.parents))
    designer.c.value = 0.0
    assert max(depths(designer.parents)) > deep, "levels that cost nothing make it deeper"
    designer.balance.value = 1
    assert designer.parents == [-1], "where every node costs a step, no draft pays"


def test_a_tree_that_cannot_be_drawn_is_answered(designer):
    parents = designer.parents
    designer.levels[1].value = 4
    assert (
        designer.summary
        == "Not drawn: 4-4-2 has 53 nodes, more than 32; take fewer children or levels. Still "
        "shown: a tree of 29 nodes"
    )
    assert designer.parents == parents
    designer.levels[1].value = 1
    assert designer.summary.startswith("4-1-2, ")
    few = TreeDesigner([[0.5, 0.2], [0.4, 0.1]], most=8, nodes=8, tree=(2, 1))
    few.levels[2].value = 1
    assert "Not drawn: no rate for depth 3" in few.summary
    assert len(few.costs.options) == 1


def test_every_control_is_described_and_waits_for_the_mouse(designer):
    for control in (
        designer.shape,
        designer.costs,
        *designer.levels,
        designer.nodes,
        designer.depth,
        designer.balance,
        designer.c,
    ):
        assert control.description
        assert getattr(control, "continuous_update", False) is False
