"""Gumbel coupling in fractions: the joint distribution of K candidates and the output is an
integral that comes out rational."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product

from specwb.theory.exact.basics import Dist, Tokens

_0, _1 = Fraction(0), Fraction(1)
ExponentialSum = dict[Fraction, Fraction]
"""``sum over rates l of coefficient[l] exp(-l s)`` as a function of s."""


def coupled(p: Dist, q: Dist, k: int) -> dict[tuple[Tokens, int], Fraction]:
    """The joint distribution of ``X_j = argmin E_x^(j) / q(x)``, j = 1..k, and
    ``Y = argmin over x of min over j of E_x^(j) / p(x)``.

    Given that Y wins at time s through path j, the paths are independent. Path i's factor is the
    probability that none of its variables beats s in p's race and ``X_i = x``. With ``t s`` the
    time of x in q's race it is

        integral over t >= p(x)/q(x) of
            s q(x) exp(-s (q(x) t + sum over y != x of max(p(y), q(y) t))) dt.

    The exponent is piecewise linear in t, so each factor is a sum of ``c exp(-l s)`` with rational
    c and l. For path j, whose variable of Y is at ``p(Y) s``, t ends at p(Y)/q(Y). The integral
    over s of the product is rational. It is exact and needs O(V^(k+1)) products of O(V^k) terms.

    Args:
        k: The number of paths, 1 or more.
    Returns:
        ``{(candidates, output): probability}``, probabilities 0 left out.
    Source: the coupling: Daliri et al.; Rowan, Phan and Khisti 2506.05632. The integral is derived
        here.
    """
    candidates, outputs = ([x for x, a in enumerate(row) if a] for row in (q, p))
    losers = {x: _factor(p, q, x, None) for x in candidates}
    winners = {(x, y): _factor(p, q, x, y) for x in candidates for y in outputs}

    @cache
    def probability(xs: Tokens, y: int) -> Fraction:
        """The joint probability of the sorted candidates ``xs`` and the output y."""
        total = _0
        for x in set(xs):  # the winner's path; equal candidates contribute equally
            rest = list(xs)
            rest.remove(x)
            terms = winners[x, y]
            for other in rest:
                terms = _times(terms, losers[other])
            total += xs.count(x) * sum((c / rate for rate, c in terms.items()), _0)
        return total

    joint = {
        (xs, y): probability(tuple(sorted(xs)), y)
        for xs in product(candidates, repeat=k)
        for y in outputs
    }
    return {key: chance for key, chance in joint.items() if chance}


def first_arrivals(p: Dist, q: Dist, k: int) -> Fraction:
    """The probability that ``Y = argmin E_x / p(x)`` is among the k tokens with the smallest
    ``E_x / q(x)``: theorem 7.8, whose integral is one of an :data:`ExponentialSum`."""
    total = _0
    for a, b in zip(p, q, strict=True):
        if not a or not b:
            continue
        # of 0, 1, .., k - 1 tokens before y, times exp(-t)
        fewer: list[ExponentialSum] = [{_1: _1}, *({} for _ in range(k - 1))]
        for c, d in zip(p, q, strict=True):
            rate = a * d / b - c
            if rate > 0:  # not of y itself
                late, early = {rate: _1}, {_0: _1, rate: -_1}
                moved = [{}, *(_times(early, terms) for terms in fewer[:-1])]
                fewer = [
                    _plus(_times(late, terms), more)
                    for terms, more in zip(fewer, moved, strict=True)
                ]
        total += a * sum((c / rate for terms in fewer for rate, c in terms.items()), _0)
    return total


def _factor(p: Dist, q: Dist, x: int, y: int | None) -> ExponentialSum:
    """The factor of a path with candidate x.

    Where y is None, no variable of the path beats s in p's race. Otherwise y's is at ``p(y) s`` and
    no other beats it; this is a density in s.
    """
    terms: ExponentialSum = {}
    others = [(a, b) for z, (a, b) in enumerate(zip(p, q, strict=True)) if z not in (x, y)]

    def add(rate: Fraction, c: Fraction) -> None:
        terms[rate] = terms.get(rate, _0) + c

    def rate_of_others(t: Fraction) -> Fraction:
        return sum((max(a, b * t) for a, b in others), _0)

    start = p[x] / q[x]
    if y == x:
        add(p[x] + rate_of_others(start), p[x])
        return terms
    fixed, scale = (_0, _1) if y is None else (p[y], p[y])
    # where t ends; None: it does not
    stop = None if y is None or not q[y] else p[y] / q[y]
    if stop is not None and stop <= start:
        return terms
    # the exponent is linear in t between neighbouring edges
    ratios = {a / b for a, b in zip(p, q, strict=True) if b}
    inner = sorted(t for t in ratios if t > start and (stop is None or t < stop))
    edges = [start, *inner]
    ends = [*inner, stop]
    for low, high in zip(edges, ends, strict=True):
        slope = q[x] + sum((b for a, b in others if b and a / b <= low), _0)
        c = scale * q[x] / slope
        add(fixed + q[x] * low + rate_of_others(low), c)
        if high is not None:
            add(fixed + q[x] * high + rate_of_others(high), -c)
    return terms


def _plus(a: ExponentialSum, b: ExponentialSum) -> ExponentialSum:
    return {rate: a.get(rate, _0) + b.get(rate, _0) for rate in {**a, **b}}


def _times(a: ExponentialSum, b: ExponentialSum) -> ExponentialSum:
    terms: ExponentialSum = {}
    for r, c in a.items():
        for s, d in b.items():
            terms[r + s] = terms.get(r + s, _0) + c * d
    return terms
