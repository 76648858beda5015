"""Whole decoding steps: every drafted tree, every walk through it, and the joint distribution of
the output.

Throughout, a *model* maps a prefix to the distribution of the next token, and a tree is given by
the parents of its nodes, -1 for the root (node 0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.theory.exact.basics import (
    Dist,
    ExactDecision,
    ExactNodeRule,
    Model,
    SamplingScheme,
    Tokens,
    iid,
)

Outcome = tuple[Tokens, Dist | None, Fraction]
"""The accepted path, the distribution of the bonus token, and the probability of this outcome."""
PathTest = tuple[Tokens, Fraction, Dist]
"""A path, the probability that it is accepted when its turn comes, and the distribution of the
bonus token if it is."""
Paths = Sequence[Tokens | None]
"""The nodes of one drafted tree, each as the path of tokens to it; None where there is none."""

_0, _1 = Fraction(0), Fraction(1)


def depths(parents: Sequence[int]) -> list[int]:
    """The depth of every node: 0 at the root, ``depth[parents[i]] + 1`` elsewhere; a ValueError if
    ``parents`` is not a tree. Siblings in index order are in drawing order."""
    if not parents or parents[0] != -1:
        raise ArgumentError("node 0 must be the root, with parent -1")
    depth = [0]
    for i, parent in enumerate(parents[1:], start=1):
        if not 0 <= parent < i:
            raise ArgumentError(f"parent {parent} of node {i} does not come before it")
        depth.append(depth[parent] + 1)
    return depth


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """The children of every node, in drawing order."""
    children: list[list[int]] = [[] for _ in parents]
    for i, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(i)
    return children


def is_chain(parents: Sequence[int]) -> bool:
    """Whether every node has one child but the last: ``parents = (-1, 0, 1, ..)``."""
    return list(parents) == list(range(-1, len(parents) - 1))


def is_paths(parents: Sequence[int]) -> bool:
    """Whether the tree is K paths of equal length that part at the root, level by level:
    ``(-1, 0, 0, 1, 2, 3, 4)`` for K = 2."""
    k = list(parents).count(0)
    if k == 0 or (len(parents) - 1) % k != 0:
        return False
    return list(parents) == [-1] + [0] * k + list(range(1, len(parents) - k))


def count_paths(parents: Sequence[int]) -> int:
    """K, of K paths of equal length that part at the root; a ValueError for other trees."""
    if not is_paths(parents):
        raise ArgumentError(
            f"this is for paths of one length that part at the root, got the tree {tuple(parents)}"
        )
    return list(parents).count(0)


def trees(
    scheme: SamplingScheme, draft: Model, parents: Sequence[int]
) -> Iterator[tuple[tuple[Tokens | None, ...], Fraction]]:
    """Every drafted tree with its probability
    ``P(tree) = prod over inner nodes of P(children | path)``.

    Each node is given as the path of tokens from the root to it (the root: ``()``), or ``None``
    where the support of the draft's distribution was too small for a child; then the nodes below it
    are ``None`` as well.

    Raises:
        ValueError: ``parents`` is not a tree.
    """
    depths(parents)
    children = children_of(parents)

    def grow(
        node: int, paths: tuple[Tokens | None, ...], probability: Fraction
    ) -> Iterator[tuple[tuple[Tokens | None, ...], Fraction]]:
        if node == len(parents):
            yield paths, probability
            return
        path = paths[node]
        if path is None or not children[node]:
            yield from grow(node + 1, paths, probability)
            return
        for tokens, chance in scheme(draft(path), len(children[node])):
            longer = list(paths)
            for child, x in zip(children[node], tokens, strict=False):
                longer[child] = (*path, x)
            yield from grow(node + 1, tuple(longer), probability * chance)

    yield from grow(0, ((),) + (None,) * (len(parents) - 1), _1)


def walks(
    rule: ExactNodeRule,
    scheme: SamplingScheme,
    target: Model,
    draft: Model,
    parents: Sequence[int],
    change: Callable[[Paths], Paths] = lambda paths: paths,
) -> Iterator[Outcome]:
    """The outcomes of top-down walks through every drafted tree.

    Args:
        change: What is verified in place of the tree that was drafted, ``None`` for nodes that are
            left out.
    """
    drafts = ((change(paths), chance) for paths, chance in trees(scheme, draft, parents))
    return walk(rule, target, draft, parents, drafts)


def walk(
    rule: ExactNodeRule,
    target: Model,
    draft: Model,
    parents: Sequence[int],
    drafts: Iterable[tuple[Paths, Fraction]],
) -> Iterator[Outcome]:
    """The outcomes of top-down walks through given trees, each with its probability."""
    children = children_of(parents)
    decisions: dict[tuple[Tokens, Tokens], ExactDecision] = {}

    def decide(path: Tokens, tokens: Tokens) -> ExactDecision:
        if (path, tokens) not in decisions:
            decisions[path, tokens] = rule(target(path), draft(path), tokens)
        return decisions[path, tokens]

    for paths, chance in drafts:
        todo = [(0, chance)]
        while todo:
            node, probability = todo.pop()
            path = paths[node]
            assert path is not None
            candidates = [(i, child[-1]) for i in children[node] if (child := paths[i]) is not None]
            if not candidates:
                yield path, target(path), probability
                continue
            accept, residual = decide(path, tuple(x for _, x in candidates))
            todo += [
                (i, probability * a) for (i, _), a in zip(candidates, accept, strict=True) if a
            ]
            if none := 1 - sum(accept, _0):
                yield path, residual, probability * none


def round_distribution(
    rule: ExactNodeRule,
    scheme: SamplingScheme,
    target: Model,
    draft: Model,
    tree_parents: Sequence[int],
) -> dict[Tokens, Fraction]:
    """The joint distribution of the D + 1 tokens that a step over a tree of depth D starts.

    The step is lossless iff it equals :func:`target_distribution`. The drafted trees are
    enumerated and each is walked from the root (accept a child, or draw the bonus token). Outputs
    shorter than D + 1 are extended by the target model, so that wrong lengths and wrong bonus
    tokens show as well.
    """
    outcomes = walks(rule, scheme, target, draft, tree_parents)
    return completed(outcomes, target, max(depths(tree_parents)) + 1)


def completed(outcomes: Iterable[Outcome], target: Model, length: int) -> dict[Tokens, Fraction]:
    """The joint distribution of ``length`` tokens, at least as many as any outcome has, where the
    target model follows a step.

    Raises:
        ValueError: An outcome has no distribution of the bonus token.
    """
    texts: dict[Tokens, Fraction] = {}
    for path, bonus, probability in outcomes:
        if bonus is None:
            raise ArgumentError(
                f"the rule leaves probability {probability} after {path} "
                "without a distribution for the bonus token"
            )
        _extend(texts, path, bonus, probability)
    return continued(texts, target, length)


def continued(texts: Mapping[Tokens, Any], target: Model, length: int) -> dict[Tokens, Any]:
    """The joint distribution of ``length`` tokens where the target model continues ``texts``, each
    with its probability and none longer. Tokens of probability 0 are left out."""
    by_length: list[dict[Tokens, Any]] = [{} for _ in range(length + 1)]
    for text, probability in texts.items():
        by_length[len(text)][text] = probability
    for shorter, longer in pairwise(by_length):
        for text, probability in shorter.items():
            _extend(longer, text, target(text), probability)
    return by_length[length]


def _extend(texts: dict[Tokens, Any], text: Tokens, p: Dist, probability: Any) -> None:
    """Add the texts of one more token, drawn from p, to a distribution."""
    for y, a in enumerate(p):
        if a:
            texts[(*text, y)] = texts.get((*text, y), _0) + probability * a


def target_distribution(target: Model, length: int) -> dict[Tokens, Fraction]:
    """The joint distribution of the next tokens under plain decoding is ``prod_i p(x_i | x_<i)``.

    Tokens of probability 0 are left out.
    """
    return continued({(): _1}, target, length)


def expected_accepted(
    rule: ExactNodeRule,
    scheme: SamplingScheme,
    target: Model,
    draft: Model,
    tree_parents: Sequence[int],
) -> Fraction:
    """A step accepts ``sum over nodes of P(node reached)`` draft tokens on average, the root left
    out.
    """
    return mean_accepted(walks(rule, scheme, target, draft, tree_parents))


def mean_accepted(outcomes: Iterable[Outcome]) -> Fraction:
    """The expected number of draft tokens that a step with these outcomes accepts."""
    return sum((len(path) * probability for path, _, probability in outcomes), _0)


def paths_outcomes(
    rule: ExactNodeRule, target: Model, draft: Model, parents: Sequence[int]
) -> Iterator[Outcome]:
    """The outcomes of a step over K paths drawn independently.

    At a node that several paths share, the next tokens of all of them are candidates. A rule for
    independent siblings stays lossless where it goes on with all paths that begin with what has
    been accepted. Their number differs from draft to draft; given it, their next tokens
    are independent draws.
    """
    k = count_paths(parents)
    for nodes, probability in trees(iid, draft, parents):
        paths = [path for path in nodes[-k:] if path is not None]
        yield from walked(rule, target, draft, paths, probability)


def walked(
    rule: ExactNodeRule, target: Model, draft: Model, paths: Sequence[Tokens], chance: Fraction
) -> Iterator[Outcome]:
    """The outcomes of one draft of independent paths of equal length, whose probability is
    ``chance``.

    The candidates of a node are the next tokens of all paths through it, in their order.
    """
    todo: list[tuple[Sequence[Tokens], Tokens, Fraction]] = [(paths, (), chance)]
    while todo:
        through, path, probability = todo.pop()
        depth = len(path)
        if depth == len(through[0]):
            yield path, target(path), probability
            continue
        tokens = tuple(full[depth] for full in through)
        accept, residual = rule(target(path), draft(path), tokens)
        if none := 1 - sum(accept, _0):
            yield path, residual, probability * none
        for x in set(tokens):
            # equal candidates lead to one node, which all paths with this token go through
            if chosen := sum((a for a, y in zip(accept, tokens, strict=True) if y == x), _0):
                onward = [full for full in through if full[depth] == x]
                todo.append((onward, (*path, x), probability * chosen))
