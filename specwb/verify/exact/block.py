"""Block verification in fractions, and what it accepts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from specwb.verify.exact.basics import Model, Tokens, minus, norm
from specwb.verify.exact.rounds import Test, depths, target_law

_0, _1 = Fraction(0), Fraction(1)


def is_chain(parents: Sequence[int]) -> bool:
    """Whether every node has one child but the last: ``parents = (-1, 0, 1, ..)``."""
    return list(parents) == list(range(-1, len(parents) - 1))


def block_tests(target: Model, draft: Model, parents: Sequence[int], paths: Sequence[Tokens | None]) -> list[Test]:
    """Block verification keeps the longest beginning ``x^i`` of the chain that passes its own test: ``u_i < h_i``.

    ``w_i = min(1, w_{i-1} p(x_i)/q(x_i))``, ``Z_i = sum (w_i p - q)+``, ``h_i = Z_i / (Z_i + 1 - w_i)`` (1 where that is 0/0), and ``h = w``
    at the end of the chain. Beginnings are tested from the longest; after ``x^i`` the closing token is drawn from ``norm((w_i p - q)+)``, after
    the whole chain from p. The chain may end early, where the rest of ``paths`` is ``None``.

    Args:
        target, draft: prefix -> law of the next token. parents: a chain. paths: its nodes, as ``trees`` yields them.
    Source: Sun et al. 2403.10444.
    """
    if not is_chain(parents):
        raise ValueError(f"block verification is for chains, got the tree {tuple(parents)}")
    return tests_along(target, draft, [path for path in paths if path is not None][-1])


def tests_along(target: Model, draft: Model, path: Tokens) -> list[Test]:
    """The tests of block verification of one path whose tokens were drawn from ``draft``."""
    weights = [_1]
    for i, x in enumerate(path):
        weights.append(min(_1, weights[-1] * target(path[:i])[x] / draft(path[:i])[x]))
    tests: list[Test] = [(path, weights[-1], list(target(path)))]
    for i in range(len(path) - 1, -1, -1):
        p, w = target(path[:i]), weights[i]
        left = minus([w * a for a in p], draft(path[:i]))
        z = sum(left, _0)
        accept = z / (z + 1 - w) if z + 1 - w else _1
        tests.append((path[:i], accept if i else _1, norm(left) if z else list(p)))
    return tests


def block_expected_accepted(target: Model, draft: Model, parents: Sequence[int]) -> Fraction:
    """Block verification of a chain accepts ``sum_i sum over x^i of min over j <= i of q(x^j) p(x_{j+1}..x_i | x^j)`` tokens.

    Never less than token rejection, which accepts ``prod_j min(p, q)(x_j | x_<j)`` instead of each minimum; no lossless rule for one path
    after whose closing token the target goes on accepts more (theorem 7.2).

    Args:
        target, draft: prefix -> law of the next token. parents: a chain.
    Source: derived in theory/; optimality: Thomas and Pal 2602.16961.
    """

    def chance(model: Model, path: Tokens, start: int, stop: int) -> Fraction:
        return math.prod((model(path[:i])[path[i]] for i in range(start, stop)), start=_1)

    return sum(
        (
            min(chance(draft, path, 0, j) * chance(target, path, j, i) for j in range(i + 1))
            for i in range(1, max(depths(parents)) + 1)
            for path in target_law(target, i)
        ),
        _0,
    )
