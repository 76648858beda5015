"""Sampling schemes: every ordered tuple of children with its probability.

All schemes share their arguments and result:

Args:
    q: The draft's distribution.
    k: The number of children asked for.
Returns:
    ``[(children, probability), ..]``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

from specwb.theory.exact.basics import Dist, SamplingScheme, Tokens, norm, without

_0, _1 = Fraction(0), Fraction(1)


def iid(q: Dist, k: int) -> list[tuple[Tokens, Fraction]]:
    """k children drawn independently from q: ``P(x_1..x_k) = prod q(x_j)``."""
    support = [x for x, b in enumerate(q) if b > 0]
    return [(xs, math.prod((q[x] for x in xs), start=_1)) for xs in product(support, repeat=k)]


def without_replacement(q: Dist, k: int) -> list[tuple[Tokens, Fraction]]:
    """k children drawn one after the other without replacement:
    ``P(x_1..x_k) = prod q(x_j) / q(not in x_1..x_{j-1})``.

    Where the support of q is smaller than k the tuples are as long as the support.
    """
    tuples: list[tuple[Tokens, Fraction]] = [((), _1)]
    for _ in range(min(k, sum(b > 0 for b in q))):
        longer = []
        for xs, probability in tuples:
            rest = sum((b for y, b in enumerate(q) if y not in xs), _0)
            for x, b in enumerate(q):
                if b > 0 and x not in xs:
                    longer.append(((*xs, x), probability * b / rest))
        tuples = longer
    return tuples


def top(q: Dist, k: int) -> list[tuple[Tokens, Fraction]]:
    """The k most probable tokens in the support of q, the lowest first among equals.

    The children are deterministic: it is one tuple, with probability 1.
    """
    support = (x for x, b in enumerate(q) if b > 0)
    order = sorted(support, key=lambda x: (-q[x], x))
    return [(tuple(order[:k]), _1)]


def top_and_sample(q: Dist, k: int) -> list[tuple[Tokens, Fraction]]:
    """The k - 1 most probable tokens A and, last, one drawn from the rest of q:
    ``P(A.., x) = q(x) / q(not in A)``.

    Where the support of q is smaller than k it is the one tuple of all its tokens.

    Source: Hu et al. 2502.18779 ("greedy drafts").
    """
    ((fixed, _),) = top(q, k - 1)
    rest = without(q, fixed)
    if not any(rest):
        return [(fixed, _1)]
    return [((*fixed, x), b) for x, b in enumerate(norm(rest)) if b]


SCHEMES: dict[str, SamplingScheme] = {
    "IID": iid,
    "WITHOUT_REPLACEMENT": without_replacement,
    "TOP_AND_SAMPLE": top_and_sample,
    "POINT": top,
}
