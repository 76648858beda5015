"""Which tree to draft: the expected length of a tree, the best tree of n nodes, and the best one for a measured cost.

Rates are the positional model of Sequoia (Chen et al. 2402.12374): ``rates[r]`` is the probability that the child of rank r is the one
accepted given that its parent was, or ``rates[d - 1][r]`` where it differs by depth d. They need not fall with r. A tree is given by
its parents, -1 for the root, in level order; n counts the root. Its tau is 1 + the expected number of accepted tokens.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from specwb.verify.exact import depths

Rates = Sequence[Any]
"""By rank, or by depth and rank."""


def path_values(rates: Rates, parents: Sequence[int]) -> list[Any]:
    """How likely a walk reaches each node: the product of rates along its path, 1 at the root. Their sum is tau.

    Args:
        rates: by rank, or by depth and rank. parents: the tree, siblings in drawing order.
    Raises:
        ValueError: not a tree, or rates for fewer depths or ranks than it has.
    """
    depth = depths(parents)
    children = [0] * len(parents)
    values: list[Any] = [1]
    for node in range(1, len(parents)):
        parent, d = parents[node], depth[node]
        rank, children[parent] = children[parent], children[parent] + 1
        row = _at_depth(rates, d)
        if rank >= len(row):
            covered = f"{len(rates)} depths of {[len(r) for r in rates]} ranks" if _by_depth(rates) else f"{len(rates)} ranks"
            raise ValueError(f"no rate for depth {d}, rank {rank}; rates cover {covered}")
        values.append(values[parent] * row[rank])
    return values


def best_tree(rates: Rates, nodes: int, depth: int | None = None) -> list[int]:
    """The tree of at most ``nodes`` nodes with the largest tau, by Sequoia's dynamic programme.

    ``F_d(m) = 1 + G_d(m - 1, 0)`` is the best value of a subtree of m nodes whose root lies at depth d and has been reached, and
    ``G_d(m, r) = max(0, max over 1 <= y <= m of rates[d][r] F_{d+1}(y) + G_d(m - y, r + 1))`` of m nodes spent on its children from rank r on.

    Args:
        rates: by rank, or by depth and rank. nodes: the budget, root included, >= 1. depth: at most so deep; rates by depth end it too.
    Returns: parents in level order. Fewer nodes than the budget where more do not fit the ranks and depths that have rates.
    Raises:
        ValueError: nodes < 1, depth < 0, or a rate outside 0..1.
    Source: Sequoia, section 3.1 and its ``tree_search.py``. Differs from the paper in: rates may depend on the depth.
    """
    return _Programme(rates, depth).tree(_budget(nodes))


def frontier(rates: Rates, nodes: int, depth: int | None = None) -> list[Any]:
    """The largest tau of any tree with 1, 2, .. ``nodes`` nodes. Arguments and errors as :func:`best_tree`."""
    programme = _Programme(rates, depth)
    return [programme.subtree(0, n) for n in range(1, _budget(nodes) + 1)]


def grow_tree(rates: Rates, nodes: int, depth: int | None = None) -> list[int]:
    """The same tau as :func:`best_tree` by adding the most valuable node ``nodes - 1`` times, wherever rates do not rise with rank.

    Then no node is worth more than its parent or its elder sibling, so the n - 1 most valuable nodes are a tree. O(n log n).

    Arguments, result and errors as :func:`best_tree`.
    Raises:
        ValueError: also where rates rise with rank.
    """
    limit = _checked(rates, depth)
    if any(a < b for row in _rows(rates) for a, b in pairwise(row)):
        raise ValueError("grow_tree needs rates that do not rise with rank; best_tree takes any")
    paths: list[tuple[int, ...]] = [()]
    waiting: list[tuple[Any, tuple[int, ...]]] = []

    def offer(value: Any, path: tuple[int, ...]) -> None:
        row = _at_depth(rates, len(path)) if limit is None or len(path) <= limit else ()
        if path[-1] < len(row) and row[path[-1]]:
            heapq.heappush(waiting, (-value * row[path[-1]], path))

    offer(1, (0,))
    above: dict[tuple[int, ...], Any] = {(): 1}
    while waiting and len(paths) < _budget(nodes):
        value, path = heapq.heappop(waiting)
        paths.append(path)
        above[path] = -value
        offer(above[path[:-1]], (*path[:-1], path[-1] + 1))
        offer(-value, (*path, 0))
    return tree_of(paths)


def choose_tree(rates: Rates, seconds: Callable[[list[int]], float], nodes: int, depth: int | None = None) -> tuple[list[int], float]:
    """The tree that writes most tokens a second: the largest ``tau / seconds(tree)`` over all budgets up to ``nodes`` and all depths.

    For every budget and depth limit it looks at the tree with the largest tau.

    Args:
        rates: by rank, or by depth and rank. seconds: parents -> seconds of a round, such as a measured cost model's.
        nodes: the largest budget. depth: the largest depth.
    Returns: parents and tokens a second; the smallest tree of equals, [-1] where drafting does not pay.
    Raises:
        ValueError: as :func:`best_tree`, or seconds that are not > 0.
    Source: Sequoia, section 3.3. Differs from the paper in: what a round costs is any function of the tree, not of n and depth alone.
    """
    most = _checked(rates, depth)
    budget = _budget(nodes)
    best: tuple[list[int], float] = ([-1], -math.inf)
    seen = set()
    for d in range(min(budget - 1, budget if most is None else most) + 1):
        programme = _Programme(rates, d)
        for n in range(d + 1, budget + 1):
            tree = programme.tree(n)
            if tuple(tree) in seen:
                continue
            seen.add(tuple(tree))
            cost = seconds(tree)
            if not cost > 0:
                raise ValueError(f"seconds of a round must be > 0, got {cost} for a tree of {len(tree)} nodes")
            speed = float(sum(path_values(rates, tree))) / cost
            if speed > best[1]:
                best = (tree, speed)
    return best


def tree_of(paths: Sequence[tuple[int, ...]]) -> list[int]:
    """Parents, in level order, of the tree that these paths of ranks make."""
    every = sorted(paths, key=lambda path: (len(path), path))
    place = {path: i for i, path in enumerate(every)}
    return [place[path[:-1]] if path else -1 for path in every]


# ------------------------------------------------------------------------------------------------------------- trees of one round


def dynamic_tree(q_of: Callable[[tuple[int, ...]], Sequence[float]], nodes: int, depth: int, width: int) -> list[tuple[int, ...]]:
    """A tree grown for one round: of the likeliest drafted paths the ``nodes`` best, by the draft's probability of the whole path.

    Level by level the ``width`` best paths get their ``width`` most probable children each; then the best of all are kept. With
    ``width >= nodes`` these are the likeliest paths there are of up to ``depth`` tokens, the best tree if q were the target's law. A path is worth no
    more than its beginnings, which are therefore kept with it. The children are deterministic: verify them with the point-mass rule.

    Args:
        q_of: prefix -> draft probabilities ``[V]`` of the next token; called at most ``1 + (depth - 1) width`` times.
        nodes: drafted nodes, the root not counted. depth: longest path. width: paths expanded a level, and children of each.
    Returns: paths of tokens, shortest first, at most ``nodes``; tokens of probability 0 are left out.
    Raises:
        ValueError: nodes, depth or width < 1.
    Source: EAGLE-2 2406.16858, OPT-Tree 2406.17276.
    """
    if min(nodes, depth, width) < 1:
        raise ValueError(f"nodes, depth and width must be >= 1, got {nodes}, {depth} and {width}")
    beam: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    found: list[tuple[float, tuple[int, ...]]] = []

    def best(paths: list[tuple[float, tuple[int, ...]]], count: int) -> list[tuple[float, tuple[int, ...]]]:
        return heapq.nsmallest(count, paths, key=lambda item: (-item[0], len(item[1]), item[1]))

    for _ in range(depth):
        grown = []
        for value, path in beam:
            likely = [(value * float(b), (*path, x)) for x, b in enumerate(q_of(path)) if b > 0]
            grown += best(likely, width)
        found = best(found + grown, nodes)
        # what is worth no more than the last of a full tree has no child in it
        beam = [item for item in best(grown, width) if len(found) < nodes or item[0] > found[-1][0]]
    return sorted((path for _, path in found), key=lambda path: (len(path), path))


def expected_point(p_of: Callable[[tuple[int, ...]], Sequence[Any]], paths: Sequence[tuple[int, ...]]) -> Any:
    """The point-mass rule accepts ``sum over nodes of p(path)`` tokens of a tree of distinct siblings, the most any lossless rule can.

    Args:
        p_of: prefix -> target probabilities ``[V]`` of the next token; called once for every inner node.
        paths: the nodes as paths of tokens, each with all its beginnings, as :func:`dynamic_tree` gives them.
    Raises:
        ValueError: a node without its parent, or a path twice.
    """
    ordered = sorted(paths, key=len)
    values: dict[tuple[int, ...], Any] = {(): 1}
    law = cache(lambda prefix: p_of(prefix))
    for path in ordered:
        if path in values or path[:-1] not in values:
            raise ValueError(f"path {path} is given twice or without its parent")
        values[path] = values[path[:-1]] * law(path[:-1])[path[-1]]
    return sum(values.values()) - 1


# ------------------------------------------------------------------------------------------------------------------------ inside


def _by_depth(rates: Rates) -> bool:
    return len(rates) > 0 and hasattr(rates[0], "__len__")


def _rows(rates: Rates) -> Sequence[Sequence[Any]]:
    return rates if _by_depth(rates) else [rates]


def _at_depth(rates: Rates, d: int) -> Sequence[Any]:
    """Rates of the children at depth d >= 1, none beyond the last depth that has any."""
    if not _by_depth(rates):
        return rates
    return rates[d - 1] if d <= len(rates) else ()


def _checked(rates: Rates, depth: int | None) -> int | None:
    """How deep a tree may be, None where nothing limits it."""
    if depth is not None and depth < 0:
        raise ValueError(f"depth must be >= 0, got {depth}")
    if any(not 0 <= a <= 1 for row in _rows(rates) for a in row):
        raise ValueError(f"rates must be in 0..1, got {rates}")
    known = len(rates) if _by_depth(rates) else None
    return depth if known is None else known if depth is None else min(depth, known)


def _budget(nodes: int) -> int:
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise ValueError(f"nodes, the root included, must be an integer >= 1, got {nodes!r}")
    return nodes


class _Programme:
    """F and G of :func:`best_tree`. Where rates are the same at every depth, only how many levels are left matters, or nothing does."""

    def __init__(self, rates: Rates, depth: int | None) -> None:
        self.rates, self.limit = rates, _checked(rates, depth)
        self.same = not _by_depth(rates)
        self.known: dict[tuple[int, int, int], tuple[Any, int]] = {}

    def subtree(self, d: int, m: int) -> Any:
        """F_d(m)."""
        return 1 + self.siblings(d, m - 1, 0)[0]

    def siblings(self, d: int, m: int, r: int) -> tuple[Any, int]:
        """G_d(m, r), and how many nodes the child of rank r gets (0: there is none)."""
        row = _at_depth(self.rates, d + 1) if self.limit is None or d < self.limit else ()
        if m == 0 or r >= len(row):
            return 0, 0
        key = (0 if self.same and self.limit is None else d, m, r)
        if key not in self.known:
            # y ascending: what a call needs is known by then, so calls nest no deeper than depth times ranks
            spent = ((row[r] * self.subtree(d + 1, y) + self.siblings(d, m - y, r + 1)[0], y) for y in range(1, m + 1))
            self.known[key] = max(((0, 0), *spent), key=lambda found: found[0])  # the first of equals: no node that is worth nothing
        return self.known[key]

    def tree(self, n: int) -> list[int]:
        paths: list[tuple[int, ...]] = []

        def spend(path: tuple[int, ...], m: int) -> None:
            paths.append(path)
            m, r = m - 1, 0
            while (size := self.siblings(len(path), m, r)[1]) > 0:
                spend((*path, r), size)
                m, r = m - size, r + 1

        spend((), n)
        return tree_of(paths)
