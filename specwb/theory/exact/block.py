"""Block verification in fractions, and its expected length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from specwb.core.errors import ArgumentError
from specwb.theory.exact.basics import Model, Tokens, minus, norm
from specwb.theory.exact.rounds import Test, depths, target_distribution

_0, _1 = Fraction(0), Fraction(1)


def is_chain(parents: Sequence[int]) -> bool:
    """Whether every node has one child but the last: ``parents = (-1, 0, 1, ..)``."""
    return list(parents) == list(range(-1, len(parents) - 1))


def block_tests(
    target: Model, draft: Model, parents: Sequence[int], paths: Sequence[Tokens | None]
) -> list[Test]:
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


def tests_along(target: Model, draft: Model, path: Tokens) -> list[Test]:
    """The tests of block verification of one path whose tokens were drawn from ``draft``."""
    w = [_1]
    for i, x in enumerate(path):
        w.append(min(_1, w[-1] * target(path[:i])[x] / draft(path[:i])[x]))
    tests: list[Test] = [(path, w[-1], list(target(path)))]
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
