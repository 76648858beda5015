"""Draft laws: every ordered tuple of children with its probability."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

from specwb.verify.exact.basics import Dist, DraftLaw, Tokens, norm, without

_0, _1 = Fraction(0), Fraction(1)


def iid(q: Dist, k: int) -> list[tuple[Tokens, Fraction]]:
    """All k-tuples drawn independently from q: ``P(x_1..x_k) = prod q(x_j)``.

    Args:
        q: draft law. k: number of children.
    """
    support = [x for x, b in enumerate(q) if b > 0]
    return [(xs, math.prod((q[x] for x in xs), start=_1)) for xs in product(support, repeat=k)]


def without_replacement(q: Dist, k: int) -> list[tuple[Tokens, Fraction]]:
    """All tuples drawn one after the other without replacement: ``P(x_1..x_k) = prod q(x_j) / q(not in x_1..x_{j-1})``.

    When the support of q is smaller than k the tuples are as long as the support.

    Args:
        q: draft law. k: number of children asked for.
    """
    drawn: list[tuple[Tokens, Fraction]] = [((), _1)]
    for _ in range(min(k, sum(b > 0 for b in q))):
        drawn = [
            ((*xs, x), prob * b / sum((c for y, c in enumerate(q) if y not in xs), _0))
            for xs, prob in drawn
            for x, b in enumerate(q)
            if b > 0 and x not in xs
        ]
    return drawn


def top(q: Dist, k: int) -> list[tuple[Tokens, Fraction]]:
    """The one tuple of the k most probable tokens in the support of q, lowest index first among equals, with probability 1.

    Args:
        q: what ranks the tokens; the children are deterministic. k: number of children asked for.
    """
    ranked = sorted((x for x, b in enumerate(q) if b > 0), key=lambda x: (-q[x], x))
    return [(tuple(ranked[:k]), _1)]


def top_and_sample(q: Dist, k: int) -> list[tuple[Tokens, Fraction]]:
    """The k - 1 most probable tokens and, last, one drawn from the rest of q: ``P(A.., x) = q(x) / q(not in A)``.

    When the support of q is smaller than k it is the one tuple of all its tokens.

    Args:
        q: draft law. k: number of children asked for.
    Source: Hu et al. 2502.18779 ("greedy drafts").
    """
    ((fixed, _),) = top(q, k - 1)
    rest = without(q, fixed)
    return [((*fixed, x), b) for x, b in enumerate(norm(rest)) if b] if any(rest) else [(fixed, _1)]


LAWS: dict[str, DraftLaw] = {"IID": iid, "WITHOUT_REPLACEMENT": without_replacement, "TOP_AND_SAMPLE": top_and_sample, "POINT": top}
