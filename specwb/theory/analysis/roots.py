"""Several roots drawn from the target, in closed form: the distance of the final root's
distribution from the target's.

LOSSY. W candidates for the next token, the roots, are drawn from the target's distribution P; below
each a tree is drafted and verified, and the root with the longest accepted path is kept. Q is the
distribution of the kept root. ``lengths[x]`` are the probabilities that the accepted path below
root x becomes 0, 1, .., D tokens long, for every token x. All functions take P and ``lengths`` as
:func:`specwb.theory.exact.kept_root` does; a ValueError names an argument that is out of range.

The same distributions by enumeration are ``specwb.theory.exact.kept_root`` and
``roots_distribution``; the theorems are in theory/13_improved_mcsd.md. Fractions stay fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from specwb.core.errors import ArgumentError
from specwb.theory.exact import (
    Dist,
    kept_root,
    root_chances,
    roots_distribution,
    without_replacement,
)

__all__ = [
    "first_stays",
    "kept_greedy",
    "kept_of_all",
    "kept_root",
    "later_draw",
    "least_shift",
    "one_token",
    "root_chances",
    "roots_distribution",
    "two_roots",
]

_0, _1 = Fraction(0), Fraction(1)


def one_token(rates: Sequence[Fraction]) -> list[list[Fraction]]:
    """Where one token is drafted below each root, ``lengths`` are ``[1 - a, a]``.

    ``rates`` has for every token x the probability a that the token drafted below it is accepted:
    for a draft distribution q below x, ``sum min(p, q)``.
    """
    if not all(0 <= a <= 1 for a in rates):
        raise ArgumentError(f"rates must be in 0..1, got {list(rates)}")
    return [[1 - a, a] for a in rates]


def two_roots(P: Dist, lengths: Sequence[Sequence[Fraction]]) -> list[Fraction]:
    """For two roots ``Q - P`` is
    ``P(x) sum_{y != x} P(y) [h(x, y) / (1 - P(y)) - h(y, x) / (1 - P(x))]``.

    Here ``h(x, y) = P(L_x > L_y)``, L_x being the length of the accepted path below x. The first
    term is what flows from y to x where x, drawn after y, has the longer path; the second is what
    flows back.
    """

    def longer(x: int, y: int) -> Fraction:
        """h(x, y)."""
        shorter_y = (sum(lengths[y][:n], _0) for n in range(len(lengths[x])))
        return sum((a * b for a, b in zip(lengths[x], shorter_y, strict=True)), _0)

    support = [x for x, a in enumerate(P) if a]
    shift = [_0] * len(P)
    for x in support:
        for y in support:
            if x != y:
                gain = longer(x, y) / (1 - P[y])
                loss = longer(y, x) / (1 - P[x])
                shift[x] += P[x] * P[y] * (gain - loss)
    return shift


def later_draw(P: Dist, j: int) -> list[Fraction]:
    """The distribution of the j-th token drawn from P without replacement, j from 1 to the number
    of tokens with P > 0.

    For j = 2 the ratio to P falls as P rises.
    """
    support = sum(a > 0 for a in P)
    if not 1 <= j <= support:
        raise ArgumentError(f"draw j must be 1..{support}, the tokens of P; got {j}")
    distribution = [_0] * len(P)
    for tokens, probability in without_replacement(P, j):
        distribution[tokens[-1]] += probability
    return distribution


def first_stays(P: Dist, lengths: Sequence[Sequence[Fraction]], W: int) -> Fraction:
    """The probability that the root drawn first is kept.

    ``TV(Q, P)`` is at most one minus it, and so is the total variation of a whole step from the
    target.
    """
    at_most = [[sum(row[: n + 1], _0) for n in range(len(row))] for row in lengths]
    total = _0
    for (first, *others), probability in without_replacement(P, W):
        for n, a in enumerate(lengths[first]):
            if not a:
                continue
            none_longer = _1
            for y in others:
                none_longer = none_longer * at_most[y][n]
            total += probability * a * none_longer
    return total


def least_shift(share: Fraction, W: int) -> Fraction:
    """``TV(Q, P) >= 1 - (1 - a)^W - a`` for any set of tokens, of probability ``share`` a under P,
    below which the accepted path is always longer than below all others."""
    if not 0 <= share <= 1 or W < 1:
        raise ArgumentError(f"share must be in 0..1 and W >= 1, got {share} and {W}")
    return 1 - (1 - share) ** W - share


def kept_of_all(P: Dist, lengths: Sequence[Sequence[Fraction]]) -> list[Fraction]:
    """Where every token is a root, Q is P among the tokens of the largest length.

    ``Q(x) = E[P(x) 1{L_x = max} / P(all y with L_y = max)]``, summed over the sets S of tokens that
    share the largest length:
    ``sum_l sum_S P(x)/P(S) prod_{y in S} P(L_y = l) prod_{y not in S} P(L_y < l)``.
    """
    support = [x for x, a in enumerate(P) if a]
    result = [_0] * len(P)
    for n in range(max(len(lengths[x]) for x in support)):
        shorter = [sum(row[:n], _0) for row in lengths]
        for subset in range(1, 1 << len(support)):
            longest = [x for i, x in enumerate(support) if subset >> i & 1]
            probability = _1
            for x in support:
                probability = probability * (lengths[x][n] if x in longest else shorter[x])
            if probability:
                mass = sum((P[x] for x in longest), _0)
                for x in longest:
                    result[x] += probability * P[x] / mass
    return result


def kept_greedy(P: Dist, lengths: Sequence[int], W: int) -> int:
    """At T = 0 the output is, of the W most probable tokens, the one with the longest path below:
    ``lengths`` has for every token the number of draft tokens below it that are the target's own.

    Ties go to the more probable token, and of equally probable ones to the lowest.
    """
    if W < 1 or len(lengths) != len(P):
        raise ArgumentError(
            f"W >= 1 roots and a length for each of {len(P)} tokens, got W={W} and {len(lengths)}"
        )
    roots = sorted(range(len(P)), key=lambda x: (-P[x], x))[:W]
    return max(roots, key=lambda x: lengths[x])
