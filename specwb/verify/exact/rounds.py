"""Whole rounds: every drafted tree, every walk through it, and the joint law of what comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction

from specwb.verify.exact.basics import Decision, Dist, DraftLaw, Model, NodeRule, Tokens

Outcome = tuple[Tokens, Dist | None, Fraction]
"""The accepted path, the law of the closing token, and the probability of both."""
Test = tuple[Tokens, Fraction, Dist]
"""A path, the probability that it is accepted when its turn comes, and the law of the closing token if it is."""

Paths = Sequence[Tokens | None]
"""The nodes of one drafted tree, each as the path of tokens to it."""

_0, _1 = Fraction(0), Fraction(1)


def depths(parents: Sequence[int]) -> list[int]:
    """The depth of every node: 0 at the root, ``depth[parents[i]] + 1`` elsewhere.

    Args:
        parents: -1 for the root (node 0), else ``parents[i] < i``; siblings in index order are in drawing order.
    """
    if not parents or parents[0] != -1:
        raise ValueError("node 0 must be the root, with parent -1")
    depth = [0]
    for i, parent in enumerate(parents[1:], start=1):
        if not 0 <= parent < i:
            raise ValueError(f"parent {parent} of node {i} does not come before it")
        depth.append(depth[parent] + 1)
    return depth


def trees(law: DraftLaw, draft: Model, parents: Sequence[int]) -> Iterator[tuple[tuple[Tokens | None, ...], Fraction]]:
    """Every drafted tree with its probability: ``P(tree) = prod over inner nodes of P(children | path)``.

    Each node is given as the path of tokens from the root to it (the root: ``()``), or ``None`` where the support of the draft
    law was too small for a child; then the nodes below it are ``None`` as well.

    Args:
        law: draft law of every group of siblings. draft: draft model. parents: the tree.
    """
    depths(parents)
    kids = [[i for i, parent in enumerate(parents) if parent == node] for node in range(len(parents))]

    def grow(node: int, paths: tuple[Tokens | None, ...], prob: Fraction) -> Iterator[tuple[tuple[Tokens | None, ...], Fraction]]:
        if node == len(parents):
            yield paths, prob
            return
        path = paths[node]
        if path is None or not kids[node]:
            yield from grow(node + 1, paths, prob)
            return
        for tokens, chance in law(draft(path), len(kids[node])):
            filled = list(paths)
            for kid, x in zip(kids[node], tokens, strict=False):
                filled[kid] = (*path, x)
            yield from grow(node + 1, tuple(filled), prob * chance)

    yield from grow(0, ((),) + (None,) * (len(parents) - 1), _1)


def walks(
    rule: NodeRule, law: DraftLaw, target: Model, draft: Model, parents: Sequence[int], change: Callable[[Paths], Paths] = lambda paths: paths
) -> Iterator[Outcome]:
    """Top-down walks through every drafted tree: (accepted path, law of the closing token, probability).

    Args:
        rule, law, target, draft, parents: as of :func:`round_law`. change: what is verified in place of the tree that was drafted, ``None`` for nodes
            that are left out.
    """
    kids = [[i for i, parent in enumerate(parents) if parent == node] for node in range(len(parents))]
    known: dict[tuple[Tokens, Tokens], Decision] = {}
    for drafted_paths, chance in trees(law, draft, parents):
        paths, todo = change(drafted_paths), [(0, chance)]
        while todo:
            node, prob = todo.pop()
            path = paths[node]
            assert path is not None
            drafted = [(i, kid[-1]) for i in kids[node] if (kid := paths[i]) is not None]
            if not drafted:
                yield path, target(path), prob
                continue
            tokens = tuple(x for _, x in drafted)
            if (path, tokens) not in known:
                known[path, tokens] = rule(target(path), draft(path), tokens)
            accept, residual = known[path, tokens]
            todo += [(i, prob * a) for (i, _), a in zip(drafted, accept, strict=True) if a]
            if none := 1 - sum(accept, _0):
                yield path, residual, prob * none


def round_law(rule: NodeRule, law: DraftLaw, target: Model, draft: Model, tree_parents: Sequence[int]) -> dict[Tokens, Fraction]:
    """The joint law of the D + 1 tokens a round over a tree starts; the round is lossless iff it equals ``target_law``.

    Enumerates the drafted trees, walks each from the root (accept a child, or close), and extends outputs shorter than D + 1
    by the target model, so that wrong lengths and wrong bonus tokens show as well.

    Args:
        rule: node rule, used at every node. law: draft law of every group of siblings.
        target, draft: prefix -> law of the next token. tree_parents: the tree, -1 for the root.
    """
    return completed(walks(rule, law, target, draft, tree_parents), target, max(depths(tree_parents)) + 1)


def completed(outcomes: Iterable[Outcome], target: Model, length: int) -> dict[Tokens, Fraction]:
    """The joint law of ``length`` tokens when a round with these outcomes is followed by the target model.

    Args:
        outcomes: (accepted path, law of the closing token, probability). target: prefix -> law of the next token. length: number of tokens.
    """
    layers: list[dict[Tokens, Fraction]] = [{} for _ in range(length + 1)]
    for path, closing, prob in outcomes:
        if closing is None:
            raise ValueError(f"the rule leaves probability {prob} after {path} without a law for the closing token")
        layer = layers[len(path) + 1]
        for y, a in enumerate(closing):
            if a:
                layer[(*path, y)] = layer.get((*path, y), _0) + prob * a
    for n in range(1, length):
        for path, prob in layers[n].items():
            for y, a in enumerate(target(path)):
                if a:
                    layers[n + 1][(*path, y)] = layers[n + 1].get((*path, y), _0) + prob * a
    return layers[length]


def target_law(target: Model, length: int) -> dict[Tokens, Fraction]:
    """The joint law of the next tokens under plain decoding: ``prod_i p(x_i | x_<i)``, tokens of probability 0 left out.

    Args:
        target: prefix -> law of the next token. length: number of tokens.
    """
    law: dict[Tokens, Fraction] = {(): _1}
    for _ in range(length):
        law = {(*path, y): prob * a for path, prob in law.items() for y, a in enumerate(target(path)) if a}
    return law


def expected_accepted(rule: NodeRule, law: DraftLaw, target: Model, draft: Model, tree_parents: Sequence[int]) -> Fraction:
    """The expected number of drafted tokens a round accepts, ``sum over nodes of P(node reached)``, the root left out.

    Args:
        rule: node rule. law: draft law. target, draft: prefix -> law of the next token. tree_parents: the tree.
    """
    return sum((len(path) * prob for path, _, prob in walks(rule, law, target, draft, tree_parents)), _0)


def chain_expected_accepted(target: Model, draft: Model, gamma: int) -> Fraction:
    """Token rejection on a chain accepts ``sum_i sum over paths x^i of prod_{j<=i} min(p, q)(x_j | x_<j)`` tokens.

    Args:
        target, draft: prefix -> law of the next token. gamma: length of the chain.
    Source: Leviathan et al. 2211.17192, for laws that depend on the prefix.
    """
    total = _0
    reached: dict[Tokens, Fraction] = {(): _1}
    for _ in range(gamma):
        reached = {
            (*path, x): prob * min(a, b)
            for path, prob in reached.items()
            for x, (a, b) in enumerate(zip(target(path), draft(path), strict=True))
            if min(a, b)
        }
        total += sum(reached.values(), _0)
    return total


def point_expected_accepted(target: Model, paths: Sequence[Tokens | None]) -> Fraction:
    """The point-mass rule on a tree of distinct siblings accepts ``sum over nodes of p(path)`` tokens; no rule that is lossless
    given the tree can do better.

    Args:
        target: prefix -> law of the next token. paths: the nodes of one drafted tree, as ``trees`` yields them.
    """
    total = _0
    for path in paths:
        if path:
            total += math.prod((target(path[:i])[x] for i, x in enumerate(path)), start=_1)
    return total
