"""Rules that decide about a whole tree: block verification, greedy multi-path block verification
and traversal verification.

They test one path after another, until one is accepted. ``*_tests(target, draft, parents,
paths)`` lists these tests for one drafted tree: the path, the probability that it is accepted when
its turn comes, and the distribution of the bonus token if it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from specwb.core.errors import ArgumentError
from specwb.theory.exact.basics import SCHEMES, Dist, Model, Tokens, minus, norm
from specwb.theory.exact.rounds import (
    Outcome,
    PathTest,
    count_paths,
    depths,
    is_chain,
    is_paths,
    target_distribution,
    trees,
)

_0, _1 = Fraction(0), Fraction(1)


def block_tests(
    target: Model, draft: Model, parents: Sequence[int], paths: Sequence[Tokens | None]
) -> list[PathTest]:
    """Block verification keeps the longest prefix ``x^i`` of the chain that passes its own test
    ``u_i < h_i``.

    ``w_i = min(1, w_{i-1} p(x_i)/q(x_i))``, ``Z_i = sum (w_i p - q)+``,
    ``h_i = Z_i / (Z_i + 1 - w_i)`` (1 where that is 0/0), and ``h = w`` at the end of the chain.
    Prefixes are tested from the longest. After ``x^i`` the bonus token is drawn from
    ``norm((w_i p - q)+)``, after the whole chain from p. The chain may end early, where the rest of
    ``paths`` is ``None``.

    Raises:
        ValueError: ``parents`` is not a chain.
    Source: Sun et al. 2403.10444.
    """
    if not is_chain(parents):
        raise ArgumentError(f"block verification is for chains, got the tree {tuple(parents)}")
    longest = [path for path in paths if path is not None][-1]
    return tests_along(target, draft, longest)


def tests_along(target: Model, draft: Model, path: Tokens) -> list[PathTest]:
    """The tests of block verification of one path whose tokens were drawn from ``draft``."""
    w = [_1]
    for i, x in enumerate(path):
        w.append(min(_1, w[-1] * target(path[:i])[x] / draft(path[:i])[x]))
    tests: list[PathTest] = [(path, w[-1], list(target(path)))]
    for i in range(len(path) - 1, -1, -1):
        p = target(path[:i])
        residual = minus([w[i] * a for a in p], draft(path[:i]))
        z = sum(residual, _0)
        h = z / (z + 1 - w[i]) if z + 1 - w[i] else _1
        # the empty prefix is what is kept where nothing else is
        tests.append((path[:i], h if i else _1, norm(residual) if z else list(p)))
    return tests


def block_expected_accepted(target: Model, draft: Model, parents: Sequence[int]) -> Fraction:
    """Block verification of a chain accepts
    ``sum_i sum over x^i of min over j <= i of q(x^j) p(x_{j+1}..x_i | x^j)`` tokens.

    This is never less than token rejection, which accepts
    ``prod_j min(p, q)(x_j | x_<j)`` instead of each minimum. No lossless rule for one path accepts
    more, if the target continues after the bonus token (theorem 7.2).

    Source: derived in theory/; optimality: Thomas and Pal 2602.16961.
    """

    def probability(model: Model, path: Tokens, start: int, stop: int) -> Fraction:
        """The probability of the path's tokens from ``start`` to before ``stop``, given those
        before them."""
        return math.prod((model(path[:i])[path[i]] for i in range(start, stop)), start=_1)

    def smallest(path: Tokens) -> Fraction:
        """The minimum over j of the path's probability with j tokens from the draft."""
        return min(
            probability(draft, path, 0, j) * probability(target, path, j, len(path))
            for j in range(len(path) + 1)
        )

    lengths = range(1, max(depths(parents)) + 1)
    return sum((smallest(path) for i in lengths for path in target_distribution(target, i)), _0)


def ranking(p: Dist, q: Dist) -> list[int]:
    """The tokens by p/q, the smallest first, equal ones by index; where q is 0 last.

    Any other total order would be lossless too.
    """

    def key(x: int) -> tuple[int, Fraction, int]:
        return (0, p[x] / q[x], x) if q[x] else (1, _0, x)

    return sorted(range(len(p)), key=key)


def largest(target: Model, draft: Model, paths: Sequence[Tokens]) -> Tokens:
    """The largest of some paths of equal length, token by token in the order of :func:`ranking` at
    each node."""

    def ranks(path: Tokens) -> list[int]:
        prefixes = [path[:i] for i in range(len(path))]
        orders = [ranking(target(prefix), draft(prefix)) for prefix in prefixes]
        return [order.index(x) for order, x in zip(orders, path, strict=True)]

    return max(paths, key=ranks)


def skewed(target: Model, draft: Model, k: int) -> Model:
    """The distribution of the largest of k independent paths is again a model of the next token.

    At a node of draft probability J below which paths of mass A rank it has
    ``q_skew(x) = ((A + y + z)^k - (A + y)^k) / ((A + J)^k - A^k)`` with ``z = J q(x)`` and
    ``y = J q(tokens ranked below x)``. At the child x: ``J' = z``, ``A' = A + y``.

    Source: Thomas and Pal 2602.16961.
    """

    @cache
    def masses(prefix: Tokens) -> tuple[Fraction, Fraction]:
        """A and J at the prefix."""
        if not prefix:
            return _0, _1
        parent, x = prefix[:-1], prefix[-1]
        ranked_below, mass = masses(parent)
        q = draft(parent)
        order = ranking(target(parent), q)
        lower = sum((q[y] for y in order[: order.index(x)]), _0)
        return ranked_below + mass * lower, mass * q[x]

    @cache
    def q_skew(prefix: Tokens) -> Dist:
        ranked_below, mass = masses(prefix)
        q = draft(prefix)
        if not mass:
            return q
        total = (ranked_below + mass) ** k - ranked_below**k
        skew, start = [_0] * len(q), ranked_below
        for x in ranking(target(prefix), q):
            end = start + mass * q[x]
            skew[x] = (end**k - start**k) / total
            start = end
        return skew

    return q_skew


def gbv_tests(
    target: Model, draft: Model, parents: Sequence[int], paths: Sequence[Tokens | None]
) -> list[PathTest]:
    """Greedy multi-path block verification takes the largest path and verifies it as a block drawn
    from the distribution of the largest (Thomas and Pal 2602.16961)."""
    k = count_paths(parents)
    full_paths = [path for path in paths[-k:] if path is not None]
    return tests_along(target, skewed(target, draft, k), largest(target, draft, full_paths))


def trie(paths: Sequence[Tokens | None]) -> dict[Tokens, list[Tokens]]:
    """Every drafted path with its continuations by one token.

    The continuations are distinct, in the order in which they first appear among the nodes.
    """
    below: dict[Tokens, list[Tokens]] = {}
    for path in paths:
        if path and path not in below.setdefault(path[:-1], []):
            below[path[:-1]].append(path)
    return below


def traversal_tests(
    target: Model, draft: Model, parents: Sequence[int], paths: Sequence[Tokens | None]
) -> list[PathTest]:
    """Traversal verification tests the nodes of a tree from the leaves to the root and keeps the
    path to the first that passes. Equal ``paths`` are one node; ``parents`` is not read.

    A child of a node with weight w (the root: 1) and distributions p, q has
    ``w(x) = min(1, w p(x)/q(x))``. A node without children passes with probability w, and then the
    bonus token is drawn from p. When it fails it is deleted, and at its parent, with
    ``Z = sum (w p - q)+``: ``p <- norm((w p - q)+)``, ``w <- Z / (Z + 1 - w)`` (1 where that is
    0/0), and its token leaves q, which is renormalised.

    Source: 2505.12398.
    """
    below = trie(paths)

    def visit(path: Tokens, w: Fraction) -> Iterator[PathTest]:
        p, q = list(target(path)), list(draft(path))
        for child in below.get(path, ()):
            x = child[-1]
            yield from visit(child, min(_1, w * p[x] / q[x]))
            residual = minus([w * a for a in p], q)
            z = sum(residual, _0)
            w = z / (z + 1 - w) if z + 1 - w else _1
            p = norm(residual) if z else p
            q[x] = _0
            q = norm(q) if any(q) else q
        yield path, w, p

    return list(visit((), _1))


Tests = Callable[[Model, Model, Sequence[int], Sequence[Tokens | None]], list[PathTest]]
"""``tests(target, draft, parents, paths)``: given a drafted tree, what is tested in turn until
something is accepted."""
Outcomes = Callable[[str, Model, Model, Sequence[int]], Iterable[Outcome]]
"""``outcomes(scheme, target, draft, parents)``: the outcomes of a step, over all drafts."""


@dataclass(frozen=True)
class TreeRule:
    """A rule for whole trees, and what it is lossless for."""

    name: str  # its key in TREE_RULES
    outcomes: Outcomes
    # ``IID`` on paths that part at the root is the scheme of independent paths, and a name that is
    # not in ``SCHEMES`` the rule's own way to draw
    schemes: tuple[str, ...]
    fits: Callable[[Sequence[int]], bool]  # whether it takes trees of this shape


def decided(tests: Tests) -> Callable[[str, Model, Model, Sequence[int]], Iterator[Outcome]]:
    """The outcomes of a rule that tests one path after another.

    Each draft's tests are weighted with the draft's probability.
    """

    def outcomes(
        scheme: str, target: Model, draft: Model, parents: Sequence[int]
    ) -> Iterator[Outcome]:
        for paths, probability in trees(SCHEMES[scheme], draft, parents):
            untested = probability  # of this draft, nothing being accepted so far
            for path, accept, bonus in tests(target, draft, parents, paths):
                if untested and accept:
                    yield path, bonus, untested * accept
                untested *= 1 - accept

    return outcomes


def _any_tree(parents: Sequence[int]) -> bool:
    return True


TREE_RULES: dict[str, TreeRule] = {
    rule.name: rule
    for rule in (
        TreeRule("block", decided(block_tests), ("IID", "WITHOUT_REPLACEMENT"), is_chain),
        TreeRule("traversal", decided(traversal_tests), ("WITHOUT_REPLACEMENT", "IID"), _any_tree),
        TreeRule("gbv", decided(gbv_tests), ("IID",), is_paths),
    )
}
