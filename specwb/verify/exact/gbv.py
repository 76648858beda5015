"""Greedy multi-path block verification in fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

from specwb.verify.exact.basics import Dist, Model, Tokens
from specwb.verify.exact.block import block_expected_accepted, tests_along
from specwb.verify.exact.rounds import Test

_0, _1 = Fraction(0), Fraction(1)


def is_paths(parents: Sequence[int]) -> bool:
    """Whether the tree is K paths of equal length that part at the root, level by level: ``(-1, 0, 0, 1, 2, 3, 4)`` for K = 2."""
    k = list(parents).count(0)
    return k > 0 and (len(parents) - 1) % k == 0 and list(parents) == [-1] + [0] * k + list(range(1, len(parents) - k))


def ranking(p: Dist, q: Dist) -> list[int]:
    """The tokens by p/q, the smallest first, equal ones by index; where q is 0 last. Any other total order would be lossless too."""
    return sorted(range(len(p)), key=lambda x: (0, p[x] / q[x], x) if q[x] else (1, _0, x))


def largest(target: Model, draft: Model, paths: Sequence[Tokens]) -> Tokens:
    """The largest of some paths of equal length, token by token in the order of ``ranking`` at each node."""
    return max(paths, key=lambda path: [ranking(target(path[:i]), draft(path[:i])).index(x) for i, x in enumerate(path)])


def skewed(target: Model, draft: Model, k: int) -> Model:
    """The law of the largest of k independent paths is again a model of the next token.

    At a node of draft probability J below which paths of mass A rank, ``q_skew(x) = ((A + y + z)^k - (A + y)^k) / ((A + J)^k - A^k)`` with
    ``z = J q(x)`` and ``y = J q(tokens ranked below x)``; at the child x: ``J' = z``, ``A' = A + y``.

    Args:
        target, draft: prefix -> law of the next token. k: number of paths.
    Source: Thomas and Pal 2602.16961.
    """

    @cache
    def place(prefix: Tokens) -> tuple[Fraction, Fraction]:
        if not prefix:
            return _0, _1
        below, mass = place(prefix[:-1])
        q = draft(prefix[:-1])
        order = ranking(target(prefix[:-1]), q)
        lower = order[: order.index(prefix[-1])]
        return below + mass * sum((q[x] for x in lower), _0), mass * q[prefix[-1]]

    @cache
    def law(prefix: Tokens) -> Dist:
        below, mass = place(prefix)
        q = draft(prefix)
        if not mass:
            return q
        out, upto = [_0] * len(q), below
        for x in ranking(target(prefix), q):
            z = mass * q[x]
            out[x] = ((upto + z) ** k - upto**k) / ((below + mass) ** k - below**k)
            upto += z
        return out

    return law


def gbv_tests(target: Model, draft: Model, parents: Sequence[int], paths: Sequence[Tokens | None]) -> list[Test]:
    """Greedy multi-path block verification takes the largest path and verifies it as a block drawn from the law of the largest.

    Args:
        target, draft: prefix -> law of the next token. parents: K paths of equal length that part at the root. paths: the nodes.
    Source: Thomas and Pal 2602.16961.
    """
    if not is_paths(parents):
        raise ValueError(f"gbv is for paths that part at the root, got the tree {tuple(parents)}")
    k = list(parents).count(0)
    whole = [path for path in paths[-k:] if path is not None]
    return tests_along(target, skewed(target, draft, k), largest(target, draft, whole))


def gbv_expected_accepted(target: Model, draft: Model, parents: Sequence[int]) -> Fraction:
    """Greedy multi-path block verification accepts what block verification accepts of the law of the largest path.

    Args:
        target, draft: prefix -> law of the next token. parents: K paths of equal length that part at the root.
    """
    return block_expected_accepted(target, skewed(target, draft, list(parents).count(0)), parents)
