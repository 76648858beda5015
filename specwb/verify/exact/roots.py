"""Several roots drawn from the target's own law, of which the one with the longest accepted path stays: what that makes of the law. LOSSY."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache

from specwb.verify.exact.basics import Dist, Model, NodeRule, Tokens
from specwb.verify.exact.laws import iid, without_replacement
from specwb.verify.exact.nodes import rrsw
from specwb.verify.exact.rounds import Outcome, depths, walks

_0, _1 = Fraction(0), Fraction(1)


def root_chances(P: Dist, lengths: Sequence[Sequence[Fraction]], W: int, draw: str = "without") -> list[list[Fraction]]:
    """``w(x, l)``: the probability that root x is drawn, and stays if the path below it becomes l tokens long.

    W roots ``x_1..x_W`` are drawn from P; ``w(x, l) = sum over draws and places x_j = x of P(draw) prod_{i<j} P(L_i < l) prod_{i>j} P(L_i <= l)``,
    the L_i being independent: the longest stays, of equals the first drawn.

    Args:
        P: the law of the next token. lengths: for every token x the probabilities that the path below it becomes 0, 1, .., D tokens long.
        W: roots, at least 1. draw: ``without`` replacement (where P has fewer tokens there are fewer roots) or ``with``.
    Raises:
        ValueError: W < 1, another draw, or not a law of the same D for every token of P.
    Source: Lu et al. 2024, arXiv 2409.10644, and its code; theory/13_improved_mcsd.md.
    """
    depth = max(map(len, lengths), default=0)
    if W < 1 or draw not in ("without", "with") or len(lengths) != len(P):
        raise ValueError(
            f"W >= 1 roots, draw without or with, a law of lengths for each of {len(P)} tokens; got W={W}, {draw!r}, {len(lengths)} laws"
        )
    if any(b and (len(law) != depth or min(law) < 0 or abs(float(sum(law)) - 1) > 1e-9) for b, law in zip(P, lengths, strict=True)):
        raise ValueError("a token's lengths are the probabilities of 0..D, the same D for all of them, with sum 1")
    upto = [[sum(law[: n + 1], _0) for n in range(depth)] for law in lengths]
    chances = [[_0] * depth for _ in P]
    for tokens, chance in (without_replacement if draw == "without" else iid)(P, W):
        for j, x in enumerate(tokens):
            for n in range(depth):
                others = _1
                for i, y in enumerate(tokens):
                    if i != j:
                        others = others * (upto[y][n] if i > j else upto[y][n - 1] if n else _0)
                chances[x][n] += chance * others
    return chances


def kept_root(P: Dist, lengths: Sequence[Sequence[Fraction]], W: int, draw: str = "without") -> list[Fraction]:
    """The law of the root that stays: ``Q(x) = sum_l P(L_x = l) w(x, l)``; P itself for W = 1.

    Args, errors: as of :func:`root_chances`.
    """
    return [sum((a * b for a, b in zip(law, row, strict=False)), _0) for law, row in zip(lengths, root_chances(P, lengths, W, draw), strict=True)]


def roots_outcomes(P: Dist, target: Model, draft: Model, parents: Sequence[int], W: int, rule: NodeRule = rrsw) -> Iterator[Outcome]:
    """The outcomes of one round: the path that stays, its root included, the law of what comes after it, and the probability of both.

    Below each root the tree ``parents`` is drafted without replacement and verified by ``rule``, independently of the others.

    Args:
        P: the law that the roots are drawn from. target, draft: prefix -> law of the next token, the root being the prefix's first token.
        parents: the tree below each root, which is its node 0.
    """
    most = max(depths(parents))
    below = []
    for x, b in enumerate(P):
        below.append(list(walks(rule, without_replacement, _after(target, (x,)), _after(draft, (x,)), parents)) if b else [])
    lengths = [[sum((prob for path, _, prob in outcomes if len(path) == n), _0) for n in range(most + 1)] for outcomes in below]
    for x, (outcomes, chances) in enumerate(zip(below, root_chances(P, lengths, W), strict=True)):
        for path, law, prob in outcomes:
            if chance := prob * chances[len(path)]:
                yield (x, *path), law, chance


def roots_law(target: Model, draft: Model, parents: Sequence[int], W: int, tokens: int) -> dict[Tokens, Fraction]:
    """The law of the first ``tokens`` tokens that rounds with W roots write; the target's iff they are lossless.

    Each round draws its roots from the law that the last one left: of what comes after its path, the residual where a walk was rejected.

    Args:
        target, draft: prefix -> law of the next token. parents: the tree below each root, its node 0. W: roots. tokens: how many.
    Raises:
        ValueError: as of :func:`root_chances`.
    """
    found: dict[Tokens, Fraction] = {}

    @cache
    def rounds(text: Tokens, ahead: tuple[Fraction, ...]) -> list[Outcome]:
        return list(roots_outcomes(ahead, _after(target, text), _after(draft, text), parents, W))

    def write(text: Tokens, ahead: Dist, chance: Fraction) -> None:
        for path, law, prob in rounds(text, tuple(ahead)):
            longer = (*text, *path)
            if len(longer) >= tokens:
                found[longer[:tokens]] = found.get(longer[:tokens], _0) + chance * prob
            else:
                assert law is not None
                write(longer, law, chance * prob)

    write((), target(()), _1)
    return found


def _after(model: Model, text: Tokens) -> Model:
    return lambda prefix: model((*text, *prefix))
