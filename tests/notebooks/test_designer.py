"""The tree designer shows the library's trees, values, masks and speeds."""

from __future__ import annotations

import pytest
from drawn import numbers, picture, shown
from explorers import RATES

from specwb import Tree, analysis, figures
from specwb.verify.exact import depths
from specwb.widgets import TreeDesigner
from specwb.widgets.designer import HAND, MEASURED, ROOFLINE, SPEED, TOKENS


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


def test_it_shows_the_tree_made_by_hand(designer):
    for ks in ((4, 2, 2), (3,), (2, 2, 1, 1)):
        for level, k in zip(designer.levels, (*ks, 0, 0, 0, 0)):
            level.value = k
        parents = list(Tree.branching(*ks).host[0])
        assert designer.parents == parents
        assert designer.speed == pytest.approx(tau(parents) / dear(parents))
        assert designer.summary.startswith("-".join(map(str, ks)))
        said = [tau(parents) - 1, 1, tau(parents), dear(parents), tau(parents) / dear(parents)]
        head = [*map(str, ks), str(len(parents)), str(len(ks))]
        assert numbers(designer)[: len(head)] == head
        found = list(map(float, numbers(designer)[len(head) : len(head) + 5]))
        assert found == pytest.approx(said, abs=0.0051)
    designer.levels[0].value = 0
    assert designer.parents == [-1]
    assert numbers(designer)[:7] == ["1", "0", "0.00", "1", "1.00", "1.00", "1.00"]


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
        assert numbers(designer)[-3:] == [str(depth), str(len(parents)), f"{speed:.2f}"]


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
    assert "4-4-2 has 53 nodes, more than 32" in designer.summary
    assert designer.parents == parents
    designer.levels[1].value = 1
    assert designer.summary.startswith("4-1-2, ")
    few = TreeDesigner([[0.5, 0.2], [0.4, 0.1]], most=8, nodes=8, tree=(2, 1))
    few.levels[2].value = 1
    assert "no rate for depth 3" in few.summary
    assert len(few.costs.options) == 1
