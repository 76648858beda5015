"""Several roots drawn from the target itself, of which the one with the longest accepted path is
kept: the distribution of the output, and its distance from the target's. LOSSY.

W candidates for the next token, the roots, are drawn from the target's distribution p; below each a
tree is drafted and verified. ``out`` is the distribution of the kept root. ``lengths[x]`` are the
probabilities that the accepted path below root x becomes 0, 1, .., D tokens long, for every token
x. The theorems are in theory/13_improved_mcsd.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import accumulate

from specwb.core.errors import ArgumentError
from specwb.theory.exact.basics import Dist, ExactNodeRule, Model, Tokens, iid, without_replacement
from specwb.theory.exact.nodes import rrsw
from specwb.theory.exact.rounds import Outcome, depths, walks

_0, _1 = Fraction(0), Fraction(1)


def root_chances(
    p: Dist, lengths: Sequence[Sequence[Fraction]], W: int, draw: str = "without"
) -> list[list[Fraction]]:
    """``w(x, l)`` is the probability that root x is drawn, and kept if the accepted path below it
    becomes l tokens long.

    W roots ``x_1..x_W`` are drawn from p. The longest is kept, ties go to the first drawn, and the
    lengths L_i are independent, so ``w(x, l)`` is the sum over draws and positions j with
    ``x_j = x`` of ``P(draw) prod_{i<j} P(L_i < l) prod_{i>j} P(L_i <= l)``.

    Args:
        lengths: For every token x the probabilities that the accepted path below it becomes
            0, 1, .., D tokens long.
        draw: ``without`` replacement (where p has fewer tokens there are fewer roots) or ``with``.
    Returns:
        ``w[x][l]``.
    Raises:
        ArgumentError: ``lengths`` is not a distribution of the same D for a token of p.
    Source: Lu et al. 2024, arXiv 2409.10644, and its code; theory/13_improved_mcsd.md.
    """
    depth = max(map(len, lengths), default=0)
    for b, row in zip(p, lengths, strict=True):
        if b and (len(row) != depth or min(row) < 0 or abs(float(sum(row)) - 1) > 1e-9):
            raise ArgumentError(
                "a token's lengths are the probabilities of 0..D, "
                "the same D for all of them, with sum 1"
            )
    at_most = [list(accumulate(row)) for row in lengths]
    shorter = [[_0, *row] for row in at_most]
    chances = [[_0] * depth for _ in p]
    scheme = without_replacement if draw == "without" else iid
    for tokens, probability in scheme(p, W):
        for j, x in enumerate(tokens):
            for n in range(depth):
                longer_than_earlier = math.prod((shorter[y][n] for y in tokens[:j]), start=_1)
                as_long_as_later = math.prod((at_most[y][n] for y in tokens[j + 1 :]), start=_1)
                chances[x][n] += probability * longer_than_earlier * as_long_as_later
    return chances


def kept_root(
    p: Dist, lengths: Sequence[Sequence[Fraction]], W: int, draw: str = "without"
) -> list[Fraction]:
    """The root that is kept has the distribution ``out(x) = sum_l P(L_x = l) w(x, l)``.

    It is p itself for W = 1.
    """
    chances = root_chances(p, lengths, W, draw)
    return [
        sum((a * b for a, b in zip(row, chances_of_x, strict=False)), _0)
        for row, chances_of_x in zip(lengths, chances, strict=True)
    ]


def one_token(rates: Sequence[Fraction]) -> list[list[Fraction]]:
    """Where one token is drafted below each root, ``lengths`` are ``[1 - a, a]``.

    ``rates`` has for every token x the probability a that the token drafted below it is accepted:
    for a draft distribution q below x, ``sum min(p, q)``.
    """
    return [[1 - a, a] for a in rates]


def first_stays(p: Dist, lengths: Sequence[Sequence[Fraction]], W: int) -> Fraction:
    """The probability that the root drawn first is kept.

    ``TV(out, p)`` is at most one minus it, and so is the total variation of a whole step from the
    target.
    """
    at_most = [list(accumulate(row)) for row in lengths]
    total = _0
    for (first, *others), probability in without_replacement(p, W):
        for n, a in enumerate(lengths[first]):
            none_longer = math.prod((at_most[y][n] for y in others), start=_1)
            total += probability * a * none_longer
    return total


def later_draw(p: Dist, j: int) -> list[Fraction]:
    """The distribution of the j-th token drawn from p without replacement, j from 1 to the number
    of tokens with p > 0: for j = 2 its ratio to p falls as p rises (theorem 13.4)."""
    distribution = [_0] * len(p)
    for tokens, probability in without_replacement(p, j):
        distribution[tokens[-1]] += probability
    return distribution


def roots_outcomes(
    p: Dist,
    target: Model,
    draft: Model,
    parents: Sequence[int],
    W: int,
    rule: ExactNodeRule = rrsw,
) -> Iterator[Outcome]:
    """The outcomes of one step: the kept path with its root, the distribution of the next token,
    and the probability of both.

    The W roots are drawn from p. Below each, the tree ``parents`` (the root is its node 0) is
    drafted without replacement and verified by ``rule``, independently of the others; the prefixes
    that ``target`` and ``draft`` get begin with the root.
    """

    def below(x: int) -> list[Outcome]:
        root = (x,)
        return list(
            walks(rule, without_replacement, _after(target, root), _after(draft, root), parents)
        )

    largest = max(depths(parents))
    outcomes = [below(x) if b else [] for x, b in enumerate(p)]
    lengths = [[_0] * (largest + 1) for _ in p]
    for x, outcomes_of_x in enumerate(outcomes):
        for path, _, probability in outcomes_of_x:
            lengths[x][len(path)] += probability
    for x, chances in enumerate(root_chances(p, lengths, W)):
        for path, bonus, probability in outcomes[x]:
            if chance := probability * chances[len(path)]:
                yield (x, *path), bonus, chance


def roots_distribution(
    target: Model, draft: Model, parents: Sequence[int], W: int, tokens: int
) -> dict[Tokens, Fraction]:
    """The distribution of the first ``tokens`` tokens that steps with W roots write.

    It is the target's iff the steps are lossless. Each step draws its roots from the distribution
    that the last one left: of what comes after its path, the residual where a walk was rejected.

    Args:
        parents: The tree below each root, which is its node 0.
    """
    texts: dict[Tokens, Fraction] = {}

    @cache
    def outcomes_after(text: Tokens, p: tuple[Fraction, ...]) -> list[Outcome]:
        return list(roots_outcomes(p, _after(target, text), _after(draft, text), parents, W))

    def write(text: Tokens, p: Dist, chance: Fraction) -> None:
        for path, bonus, probability in outcomes_after(text, tuple(p)):
            longer = (*text, *path)
            if len(longer) >= tokens:
                longer = longer[:tokens]
                texts[longer] = texts.get(longer, _0) + chance * probability
            else:
                assert bonus is not None
                write(longer, bonus, chance * probability)

    write((), target(()), _1)
    return texts


def _after(model: Model, text: Tokens) -> Model:
    return lambda prefix: model((*text, *prefix))
