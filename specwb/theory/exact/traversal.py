"""Traversal verification in fractions: as published, and with three numbers per node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from specwb.theory.exact.basics import Model, Tokens, minus, norm
from specwb.theory.exact.rounds import Test

_0, _1 = Fraction(0), Fraction(1)


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
) -> list[Test]:
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

    def visit(path: Tokens, w: Fraction) -> Iterator[Test]:
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


def traversal_scalar_tests(
    target: Model, draft: Model, parents: Sequence[int], paths: Sequence[Tokens | None]
) -> list[Test]:
    """Traversal verification needs three numbers per node instead of two distributions:
    ``traversal_scalar_tests == traversal_tests``.

    With the first p and q throughout, ``R(c) = sum (p - c q)+`` and, at first, ``c = 0``,
    ``m = s = 1``: after a child fails ``c' = c + m / (w s)``, ``m' = R(c')``, ``Z = (w / m) m'``
    and s is the mass of q on the tokens that are not deleted;
    ``w(x) = min(1, w (p - c q)+(x) s / (m q(x)))``; the bonus token is drawn from
    ``norm((p - c q)+)``. (Derived in theory/.)
    """
    below = trie(paths)

    def visit(path: Tokens, w: Fraction) -> Iterator[Test]:
        p, q = target(path), draft(path)
        c, m, s = _0, _1, _1
        for child in below.get(path, ()):
            x = child[-1]
            yield from visit(child, min(_1, w * max(p[x] - c * q[x], _0) * s / (m * q[x])))
            next_c = c + m / (w * s) if w else c
            next_m = sum(minus(p, q, next_c), _0) if w else _0
            z = w / m * next_m
            w = z / (z + 1 - w) if z + 1 - w else _1
            if next_m:
                c, m = next_c, next_m
            s -= q[x]
        yield path, w, norm(minus(p, q, c))

    return list(visit((), _1))
