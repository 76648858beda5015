"""Which tree to draft: expected lengths, the best tree of n nodes, the best for a measured cost.

Rates are the positional model of Sequoia (Chen et al. 2402.12374). ``rates[r]`` is the probability
that the child of rank r is the one accepted given that its parent was; or ``rates[d - 1][r]`` where
it differs by depth d. Rates need not fall with r.

A tree is given by its parents, -1 for the root, in level order, siblings in drawing order; n counts
the root. Its tau is 1 + the expected number of accepted tokens.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.theory.exact import depths

Rates = Sequence[Any]
"""Rates by rank, or by depth and rank."""
NodePath = tuple[int, ...]
"""The way to a node: the rank of every node on it, or its token."""
Valued = tuple[float, NodePath]
"""The draft's probability of a path, and the path."""


def path_values(rates: Rates, parents: Sequence[int]) -> list[Any]:
    """The probability that a walk reaches each node: the product of rates along its path.

    It is 1 at the root. The sum of all is tau.

    Raises:
        ValueError: ``parents`` is not a tree, or has depths or ranks without a rate.
    """
    depth = depths(parents)
    children = [0] * len(parents)
    values: list[Any] = [1]
    for node in range(1, len(parents)):
        parent, d = parents[node], depth[node]
        rank = children[parent]
        children[parent] += 1
        row = _at_depth(rates, d)
        if rank >= len(row):
            covered = f"{len(rates)} ranks"
            if _by_depth(rates):
                covered = f"{len(rates)} depths of {[len(r) for r in rates]} ranks"
            raise ArgumentError(f"no rate for depth {d}, rank {rank}; rates cover {covered}")
        values.append(values[parent] * row[rank])
    return values


def best_tree(rates: Rates, nodes: int, depth: int | None = None) -> list[int]:
    """The tree of at most ``nodes`` nodes with the largest tau, by Sequoia's dynamic programme.

    ``F_d(m) = 1 + G_d(m - 1, 0)`` is the best value of a subtree of m nodes whose root lies at
    depth d and has been reached. Of m nodes spent on its children from rank r on the best value is
    ``G_d(m, r) = max(0, max over 1 <= y <= m of rates[d][r] F_{d+1}(y) + G_d(m - y, r + 1))``.

    Args:
        nodes: The budget, root included, >= 1.
        depth: The largest depth; rates by depth limit it too.
    Returns:
        Parents in level order. There are fewer nodes than the budget where more do not fit the
        ranks and depths that have rates.
    Raises:
        ArgumentError: A rate is outside 0..1.
    Source: Sequoia, section 3.1 and its ``tree_search.py``. Differs from the paper in: rates may
        depend on the depth.
    """
    return _Programme(rates, depth).tree(nodes)


def frontier(rates: Rates, nodes: int, depth: int | None = None) -> list[Any]:
    """The largest tau of any tree with 1, 2, .. ``nodes`` nodes.

    Arguments and errors are those of :func:`best_tree`.
    """
    programme = _Programme(rates, depth)
    return [programme.subtree(0, n) for n in range(1, nodes + 1)]


def grow_tree(rates: Rates, nodes: int, depth: int | None = None) -> list[int]:
    """The same tau as :func:`best_tree` by adding the most valuable node ``nodes - 1`` times.

    This holds where rates do not rise with rank. Then no node is worth more than its parent or its
    elder sibling, so the n - 1 most valuable nodes are a tree. It costs O(n log n).

    Arguments and result are those of :func:`best_tree`.

    Raises:
        ValueError: As :func:`best_tree`, and where rates rise with rank.
    """
    limit = _depth_limit(rates, depth)
    rows = rates if _by_depth(rates) else [rates]
    if any(a < b for row in rows for a, b in pairwise(row)):
        raise ArgumentError("grow_tree needs rates that do not rise with rank; best_tree takes any")
    values: dict[NodePath, Any] = {(): 1}  # the tree so far: paths of ranks
    queue: list[tuple[Any, NodePath]] = []  # nodes that may come next, the most valuable first

    def offer(parent_value: Any, path: NodePath) -> None:
        within = limit is None or len(path) <= limit
        row = _at_depth(rates, len(path)) if within else ()
        rank = path[-1]
        if rank < len(row) and row[rank]:
            heapq.heappush(queue, (-parent_value * row[rank], path))

    offer(1, (0,))
    while queue and len(values) < nodes:
        negative_value, path = heapq.heappop(queue)
        values[path] = -negative_value
        parent, rank = path[:-1], path[-1]
        offer(values[parent], (*parent, rank + 1))
        offer(values[path], (*path, 0))
    return tree_of(list(values))


def choose_tree(
    rates: Rates,
    seconds: Callable[[list[int]], float],
    nodes: int,
    depth: int | None = None,
) -> tuple[list[int], float]:
    """The tree that writes most tokens per second: the largest ``tau / seconds(tree)``.

    It is the best over all budgets up to ``nodes`` and all depths; for every budget and depth limit
    the tree with the largest tau is looked at.

    Args:
        seconds: parents -> seconds of a decoding step, such as a measured cost model's.
        nodes: The largest budget.
    Returns:
        Parents, and tokens per second: of equals the smallest tree, [-1] where drafting does not
        pay.
    Source: Sequoia, section 3.3. Differs from the paper in: what a step costs is any function of
        the tree, not of n and depth alone.
    """
    limit = _depth_limit(rates, depth)
    largest_depth = min(nodes - 1, nodes if limit is None else limit)
    best: tuple[list[int], float] = ([-1], -math.inf)
    for tree in _distinct_trees(rates, nodes, largest_depth):
        cost = seconds(tree)
        speed = float(sum(path_values(rates, tree))) / cost
        if speed > best[1]:
            best = (tree, speed)
    return best


def _distinct_trees(rates: Rates, budget: int, largest_depth: int) -> Iterator[list[int]]:
    """The tree with the largest tau of every depth limit and budget, equal ones once."""
    seen = set()
    for d in range(largest_depth + 1):
        programme = _Programme(rates, d)
        for n in range(d + 1, budget + 1):
            tree = programme.tree(n)
            if tuple(tree) not in seen:
                seen.add(tuple(tree))
                yield tree


def tree_of(paths: Sequence[NodePath]) -> list[int]:
    """Parents, in level order, of the tree whose nodes have these paths of ranks."""
    level_order = sorted(paths, key=lambda path: (len(path), path))
    index = {path: i for i, path in enumerate(level_order)}
    return [index[path[:-1]] if path else -1 for path in level_order]


# -------------------------------------------------------------------------------- trees of one step


def dynamic_tree(
    q_of: Callable[[NodePath], Sequence[float]], nodes: int, depth: int, width: int
) -> list[NodePath]:
    """A tree grown for one decoding step: the ``nodes`` paths most probable under the draft.

    Level by level the ``width`` best paths get their ``width`` most probable children each; then
    the best of all are kept. With ``width >= nodes`` these are the most probable paths there are of
    up to ``depth`` tokens, the best tree if q were the target's distribution. A path is worth no
    more than its prefixes, which are therefore kept with it. The children are deterministic: verify
    them with the point-mass rule.

    Args:
        q_of: prefix -> draft probabilities ``[V]`` of the next token; called at most
            ``1 + (depth - 1) width`` times.
        nodes: Draft nodes, the root not counted.
        depth: Length of the longest path.
        width: Paths expanded per level, and children of each.
    Returns:
        Paths of tokens, shortest first, at most ``nodes``; tokens of probability 0 are left out.
    Source: EAGLE-2 2406.16858, OPT-Tree 2406.17276.
    """

    def most_probable(paths: list[Valued], count: int) -> list[Valued]:
        return heapq.nsmallest(count, paths, key=lambda item: (-item[0], len(item[1]), item[1]))

    beam: list[Valued] = [(1.0, ())]
    tree: list[Valued] = []
    for _ in range(depth):
        level = []
        for value, path in beam:
            children = [(value * float(b), (*path, x)) for x, b in enumerate(q_of(path)) if b > 0]
            level += most_probable(children, width)
        tree = most_probable(tree + level, nodes)
        # what is worth no more than the last of a full tree has no child in it
        floor = tree[-1][0] if len(tree) == nodes else -math.inf
        beam = [item for item in most_probable(level, width) if item[0] > floor]
    return sorted((path for _, path in tree), key=lambda path: (len(path), path))


def expected_point(p_of: Callable[[NodePath], Sequence[Any]], paths: Sequence[NodePath]) -> Any:
    """The point-mass rule accepts ``sum over nodes of p(path)`` tokens of a tree.

    Siblings are distinct, ``paths`` are the nodes as :func:`dynamic_tree` gives them, each with all
    its prefixes, and ``p_of`` is called once for every inner node. No lossless rule accepts more.
    """
    values: dict[NodePath, Any] = {(): 1}
    p_once = cache(lambda prefix: p_of(prefix))
    for path in sorted(paths, key=len):
        if path in values or path[:-1] not in values:
            raise ArgumentError(f"path {path} is given twice or without its parent")
        values[path] = values[path[:-1]] * p_once(path[:-1])[path[-1]]
    return sum(values.values()) - 1


# ----------------------------------------------------------------------------------------- inside


def _by_depth(rates: Rates) -> bool:
    return len(rates) > 0 and hasattr(rates[0], "__len__")


def _at_depth(rates: Rates, d: int) -> Sequence[Any]:
    """Rates of the children at depth d >= 1, none beyond the last depth that has any."""
    if not _by_depth(rates):
        return rates
    return rates[d - 1] if d <= len(rates) else ()


def _depth_limit(rates: Rates, depth: int | None) -> int | None:
    """The largest depth of a tree, None where nothing limits it; an ArgumentError for rates outside
    0..1."""
    rows = rates if _by_depth(rates) else [rates]
    if any(not 0 <= a <= 1 for row in rows for a in row):
        raise ArgumentError(f"rates must be in 0..1, got {rates}")
    if not _by_depth(rates):
        return depth
    return len(rates) if depth is None else min(depth, len(rates))


class _Programme:
    """F and G of :func:`best_tree`, each value computed once.

    Where rates are the same at every depth, only how many levels remain matters, or nothing does.
    """

    def __init__(self, rates: Rates, depth: int | None) -> None:
        self.rates, self.limit = rates, _depth_limit(rates, depth)
        self.depth_matters = _by_depth(rates) or self.limit is not None
        self.values: dict[tuple[int, int, int], tuple[Any, int]] = {}

    def subtree(self, d: int, m: int) -> Any:
        """F_d(m)."""
        return 1 + self.siblings(d, m - 1, 0)[0]

    def siblings(self, d: int, m: int, r: int) -> tuple[Any, int]:
        """G_d(m, r), and how many nodes the child of rank r gets (0: there is none)."""
        within = self.limit is None or d < self.limit
        row = _at_depth(self.rates, d + 1) if within else ()
        if m == 0 or r >= len(row):
            return 0, 0
        key = (d if self.depth_matters else 0, m, r)
        if key not in self.values:
            best: tuple[Any, int] = (0, 0)
            # y ascends: what a call needs has been computed by then, so calls nest no deeper than
            # depth times ranks
            for y in range(1, m + 1):
                value = row[r] * self.subtree(d + 1, y) + self.siblings(d, m - y, r + 1)[0]
                if value > best[0]:  # of equals the first: no node that is worth nothing
                    best = (value, y)
            self.values[key] = best
        return self.values[key]

    def tree(self, n: int) -> list[int]:
        """Parents, in level order, of a tree of at most n nodes that attains F_0(n)."""
        paths: list[NodePath] = []

        def spend(path: NodePath, m: int) -> None:
            paths.append(path)
            m, r = m - 1, 0
            while (size := self.siblings(len(path), m, r)[1]) > 0:
                spend((*path, r), size)
                m, r = m - size, r + 1

        spend((), n)
        return tree_of(paths)
