"""Distributions as fractions, and sampling schemes: the vocabulary of this package."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

from specwb.core.errors import ArgumentError

Dist = Sequence[Fraction]
"""A distribution over the tokens 0 .. V-1."""
Tokens = tuple[int, ...]
"""Tokens in order: the children of a node, a path through a tree, or a prefix."""
ExactDecision = tuple[list[Fraction], list[Fraction] | None]
"""What a node rule decides: ``accept[i]``, the probability that child i is the one accepted, and
the distribution of the bonus token given that none is; None where that has probability 0."""
ExactNodeRule = Callable[[Dist, Dist, Tokens], ExactDecision]
"""``rule(p, q, children)``: the decision at a node with target p, draft q and these children."""
SamplingScheme = Callable[[Dist, int], list[tuple[Tokens, Fraction]]]
"""``scheme(q, k)``: every ordered tuple of up to k children with its probability."""
Model = Callable[[Tokens], Dist]
"""The distribution of the next token after a prefix."""

_0, _1 = Fraction(0), Fraction(1)


def norm(weights: Sequence[Fraction | int]) -> list[Fraction]:
    """The distribution proportional to ``weights`` is ``w / sum(w)``; a ValueError if a weight is
    negative, or all are zero."""
    total = sum(weights, _0)
    if total <= 0 or min(weights) < 0:
        raise ArgumentError(f"not the weights of a distribution: {weights}")
    return [Fraction(w) / total for w in weights]


def minus(p: Dist, q: Dist, c: Fraction = _1) -> list[Fraction]:
    """``(p - c q)+``, token by token."""
    return [max(a - c * b, _0) for a, b in zip(p, q, strict=True)]


def without(p: Dist, tokens: Tokens) -> list[Fraction]:
    """p with the probability of ``tokens`` set to 0, not normalised."""
    return [_0 if y in tokens else a for y, a in enumerate(p)]


def finite_draw(p: Dist, bits: int = 32) -> list[Fraction]:
    """The distribution of a token that is drawn with a uniform of ``bits`` random bits, of which
    :class:`specwb.core.noise.Noise` has 32.

    The token is the first x with ``cumsum(p)[x] > u``, where ``u = (w + 1/2) 2^-bits`` and w is one
    of ``2^bits`` equally likely words: the tokens up to x have ``ceil(2^bits F(x) - 1/2)`` of them,
    F being ``cumsum(p)``. The distribution is off from p by at most ``(n - 1) 2^-(bits + 1)``, n
    the number of tokens with p > 0 (theorem 1.5).
    """
    cumulated, words_below, distribution = _0, 0, []
    for a in p:
        cumulated += a
        words = math.ceil(cumulated * 2**bits - Fraction(1, 2))
        distribution.append(Fraction(words - words_below, 2**bits))
        words_below = words
    return distribution


def overlap(p: Dist, q: Dist) -> Fraction:
    """``sum min(p, q) = 1 - TV(p, q)``."""
    return sum(map(min, p, q), _0)


def tv(a: Dist | Mapping[Tokens, Any], b: Dist | Mapping[Tokens, Any]) -> Fraction:
    """Total variation, ``1/2 sum |a - b|``, of two distributions over tokens (lists), or over
    sequences (dictionaries in which what is missing has probability 0); it is 0 iff they are
    equal."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return sum((abs(a.get(x, _0) - b.get(x, _0)) for x in {*a, *b}), _0) / 2
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        raise TypeError("cannot compare a distribution over tokens with one over sequences")
    return sum((abs(x - y) for x, y in zip(a, b, strict=True)), _0) / 2


# ------------------------------------------------------------------------------- sampling schemes
#
# Each lists every ordered tuple of up to k children, drawn from q, with its probability:
# ``[(children, probability), ..]``.


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
