"""Greedy multi-path block verification in fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

from specwb.core.errors import ArgumentError
from specwb.theory.exact.basics import Dist, Model, Tokens
from specwb.theory.exact.block import block_expected_accepted, tests_along
from specwb.theory.exact.rounds import Test

_0, _1 = Fraction(0), Fraction(1)


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
) -> list[Test]:
    """Greedy multi-path block verification takes the largest path and verifies it as a block drawn
    from the distribution of the largest (Thomas and Pal 2602.16961)."""
    k = count_paths(parents)
    full_paths = [path for path in paths[-k:] if path is not None]
    return tests_along(target, skewed(target, draft, k), largest(target, draft, full_paths))


def gbv_expected_accepted(target: Model, draft: Model, parents: Sequence[int]) -> Fraction:
    """Greedy multi-path block verification accepts as many tokens as block verification with the
    distribution of the largest path as draft.
    """
    k = count_paths(parents)
    return block_expected_accepted(target, skewed(target, draft, k), parents)
