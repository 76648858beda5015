"""Target-initialised candidates with several roots, in closed form: how far the root that stays is from a draw of the target. LOSSY.

``P`` is the target's law of the next token, ``lengths[x]`` the probabilities that the path below root x becomes 0, 1, .., D tokens long. The laws by
enumeration are ``specwb.verify.exact.kept_root`` and ``roots_law``; what is proved is in theory/13_improved_mcsd.md. Fractions stay fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from specwb.verify.exact import Dist, kept_root, root_chances, roots_law, without_replacement

__all__ = [
    "first_stays",
    "kept_greedy",
    "kept_of_all",
    "kept_root",
    "later_draw",
    "least_shift",
    "one_token",
    "root_chances",
    "roots_law",
    "two_roots",
]

_0, _1 = Fraction(0), Fraction(1)


def one_token(rates: Sequence[Fraction]) -> list[list[Fraction]]:
    """Lengths where one token is drafted below each root, accepted with ``rates[x]``: ``[1 - a, a]`` for every token.

    Args:
        rates: in 0..1, one a token; of a draft q below x it is ``sum min(p, q)``.
    """
    if not all(0 <= a <= 1 for a in rates):
        raise ValueError(f"rates must be in 0..1, got {list(rates)}")
    return [[1 - a, a] for a in rates]


def two_roots(P: Dist, lengths: Sequence[Sequence[Fraction]]) -> list[Fraction]:
    """``Q - P`` for two roots: ``P(x) sum_{y != x} P(y) [h(x, y) / (1 - P(y)) - h(y, x) / (1 - P(x))]``, ``h(x, y) = P(L_x > L_y)``.

    What flows from y to x where x, drawn after y, is gone on from further, minus what flows back.

    Args: as of :func:`specwb.verify.exact.kept_root`.
    """

    def longer(x: int, y: int) -> Fraction:
        return sum((a * sum(lengths[y][:n], _0) for n, a in enumerate(lengths[x])), _0)

    support = [x for x, a in enumerate(P) if a]
    shift = [_0] * len(P)
    for x in support:
        for y in support:
            if x != y:
                shift[x] += P[x] * P[y] * (longer(x, y) / (1 - P[y]) - longer(y, x) / (1 - P[x]))
    return shift


def later_draw(P: Dist, j: int) -> list[Fraction]:
    """The law of the j-th token drawn from P without replacement, j from 1 on. For j = 2 the ratio to P falls as P rises.

    Raises:
        ValueError: j < 1, or more than P has tokens.
    """
    if not 1 <= j <= sum(a > 0 for a in P):
        raise ValueError(f"draw j must be 1..{sum(a > 0 for a in P)}, the tokens of P; got {j}")
    law = [_0] * len(P)
    for tokens, chance in without_replacement(P, j):
        law[tokens[-1]] += chance
    return law


def first_stays(P: Dist, lengths: Sequence[Sequence[Fraction]], W: int) -> Fraction:
    """The probability that the first root stays; ``TV(Q, P)`` is at most one minus it, and so is the TV of a whole round from the target.

    Args: as of :func:`specwb.verify.exact.kept_root`.
    """
    upto = [[sum(law[: n + 1], _0) for n in range(len(law))] for law in lengths]
    total = _0
    for (x, *others), chance in without_replacement(P, W):
        for n, a in enumerate(lengths[x]):
            if a:
                none = _1
                for y in others:
                    none = none * upto[y][n]
                total += chance * a * none
    return total


def least_shift(share: Fraction, W: int) -> Fraction:
    """``TV(Q, P) >= 1 - (1 - a)^W - a`` where tokens of total probability ``a`` are always gone on from further than all others.

    Args:
        share: a, in 0..1. W: roots.
    """
    if not 0 <= share <= 1 or W < 1:
        raise ValueError(f"share must be in 0..1 and W >= 1, got {share} and {W}")
    return 1 - (1 - share) ** W - share


def kept_of_all(P: Dist, lengths: Sequence[Sequence[Fraction]]) -> list[Fraction]:
    """Q where every token is a root: P among the tokens of the largest length, ``E[P(x) 1{L_x = max} / P(all y with L_y = max)]``.

    Summed over the subsets S that share the largest length: ``sum_l sum_S P(x)/P(S) prod_{y in S} P(L_y = l) prod_{y not in S} P(L_y < l)``.

    Args: as of :func:`specwb.verify.exact.kept_root`.
    """
    support = [x for x, a in enumerate(P) if a]
    kept = [_0] * len(P)
    for n in range(max(len(lengths[x]) for x in support)):
        less = [sum(law[:n], _0) for law in lengths]
        for chosen in range(1, 1 << len(support)):
            tied = [x for i, x in enumerate(support) if chosen >> i & 1]
            chance, mass = _1, sum((P[x] for x in tied), _0)
            for x in support:
                chance = chance * (lengths[x][n] if x in tied else less[x])
            if chance:
                for x in tied:
                    kept[x] += chance * P[x] / mass
    return kept


def kept_greedy(P: Dist, lengths: Sequence[int], W: int) -> int:
    """The token that T = 0 writes: of the W most probable the one with the longest path below it, of equals the more probable.

    Args:
        P: the target's law (ranks are what matters; of equals the lowest token first). lengths: for every token how many drafted tokens below it are
            the target's own. W: roots >= 1.
    """
    if W < 1 or len(lengths) != len(P):
        raise ValueError(f"W >= 1 roots and a length for each of {len(P)} tokens, got W={W} and {len(lengths)}")
    roots = sorted(range(len(P)), key=lambda x: (-P[x], x))[:W]
    return max(roots, key=lambda x: lengths[x])
