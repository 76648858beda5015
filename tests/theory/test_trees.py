"""Trees: values are those by hand, best trees are the best of all trees, and trees are grown for a
cost or from what a draft says; a budget that looks ahead is biased."""

from __future__ import annotations

import random
from fractions import Fraction as F
from itertools import product

import pytest
from instances import all_trees, level_order

from specwb import Tree
from specwb.theory import analysis, exact
from specwb.theory.instances import models


def ordered_trees(n: int) -> list[list[int]]:
    return [list(level_order(parents)) for parents in all_trees(n - 1)]


def covered(rates, parents, depth=None) -> bool:
    """Whether every node has a rate and none is too deep."""
    deep = max(exact.depths(parents))
    try:
        analysis.path_values(rates, parents)
    except ValueError:
        return False
    return depth is None or deep <= depth


def rates(seed: int, falling: bool, by_depth: bool):
    rng = random.Random(seed)

    def row():
        ranks = [F(rng.randint(0, 8), 10) for _ in range(rng.randint(1, 4))]
        return sorted(ranks, reverse=True) if falling else ranks

    return [row() for _ in range(rng.randint(1, 4))] if by_depth else row()


@pytest.mark.parametrize("by_depth", [False, True])
@pytest.mark.parametrize("depth", [None, 0, 2, 3])
def test_best_trees_are_the_best_of_all_trees(by_depth, depth):
    for seed in range(6):
        some_rates = rates(seed, False, by_depth)
        best = F(1)
        values = analysis.frontier(some_rates, 8, depth)
        for n in range(1, 9):
            fitting = [t for t in ordered_trees(n) if covered(some_rates, t, depth)]
            best = max([best, *(sum(analysis.path_values(some_rates, t)) for t in fitting)])
            assert values[n - 1] == best
            tree = analysis.best_tree(some_rates, n, depth)
            assert len(tree) <= n
            assert covered(some_rates, tree, depth)
            assert sum(analysis.path_values(some_rates, tree)) == best
            # no node that could be left out is worth nothing
            leaves = [
                i for i, parent in enumerate(tree) if i not in tree and parent not in tree[i + 1 :]
            ]
            assert all(analysis.path_values(some_rates, tree)[i] for i in leaves)
            assert Tree.parents(tree).in_level_order


@pytest.mark.parametrize("by_depth", [False, True])
@pytest.mark.parametrize("depth", [None, 2])
def test_greedy_growth_reaches_the_same_values(by_depth, depth):
    for seed in range(12):
        falling = rates(seed, True, by_depth)
        for n, value in enumerate(analysis.frontier(falling, 14, depth), 1):
            tree = analysis.grow_tree(falling, n, depth)
            assert sum(analysis.path_values(falling, tree)) == value
            assert len(tree) <= n


def test_the_tree_for_a_cost_is_the_best_of_all_trees():
    some_rates = [F(6, 10), F(3, 10), F(1, 10)]
    trees = [t for n in range(1, 9) for t in ordered_trees(n) if covered(some_rates, t)]

    def tau(t):
        return float(sum(analysis.path_values(some_rates, t)))

    for per_node, per_level in product((0.0, 0.02, 0.1, 1.0), (0.0, 0.1, 0.4)):

        def seconds(t, per_node=per_node, per_level=per_level):
            return 1 + per_node * (len(t) - 1) + per_level * max(exact.depths(t))

        tree, speed = analysis.choose_tree(some_rates, seconds, 8)
        assert speed == pytest.approx(max(tau(t) / seconds(t) for t in trees))
        assert speed == pytest.approx(tau(tree) / seconds(tree))
        if per_node == 1.0:
            assert tree == [-1]
    shallow, _ = analysis.choose_tree(some_rates, lambda t: 1.0, 8, depth=1)
    assert shallow == [-1, 0, 0, 0]


def test_dynamic_trees_are_the_likeliest_paths():
    for seed in range(10):
        q_of, _ = models(seed, 3)
        paths = [path for d in (1, 2, 3) for path in product(range(3), repeat=d)]

        def value(path, q_of=q_of):
            out = 1.0
            for i, x in enumerate(path):
                out *= q_of(path[:i])[x]
            return out

        ranked = sorted(map(value, paths), reverse=True)
        for nodes in (1, 4, 9):
            tree = analysis.dynamic_tree(q_of, nodes, 3, nodes)
            assert sorted(map(value, tree), reverse=True) == pytest.approx(
                [v for v in ranked[:nodes] if v > 0]
            )
            # if q were the target's distribution this is what would be accepted, and a narrow beam
            # accepts no more
            assert float(analysis.expected_point(q_of, tree)) == pytest.approx(sum(ranked[:nodes]))
            narrow = analysis.dynamic_tree(q_of, nodes, 3, 1)
            assert float(analysis.expected_point(q_of, narrow)) <= sum(ranked[:nodes]) + 1e-12
