"""Gumbel coupling in fractions: the joint law of K candidates and the output is an integral that comes out rational."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import product

from specwb.verify.exact.basics import Dist, Model, Tokens
from specwb.verify.exact.gbv import is_paths
from specwb.verify.exact.rounds import Outcome

_0, _1 = Fraction(0), Fraction(1)
Sum = dict[Fraction, Fraction]
"""``sum over c of coefficient[c] exp(-c s)`` as a function of s."""


def coupled(p: Dist, q: Dist, k: int) -> dict[tuple[Tokens, int], Fraction]:
    """The joint law of ``X_j = argmin E_x^(j) / q(x)``, j = 1..k, and ``Y = argmin over x of min over j of E_x^(j) / p(x)``.

    Given that Y wins at time s through path j, the paths are independent. Path i's factor is the probability that none of its
    variables beats s in p's race and ``X_i = x``: with ``t s`` the time of x in q's race,
    ``integral over t >= p(x)/q(x) of s q(x) exp(-s (q(x) t + sum over y != x of max(p(y), q(y) t))) dt``. The exponent is piecewise linear in t, so
    each factor is a sum of ``c exp(-l s)`` with rational c and l; for path j, whose variable of Y is at ``p(Y) s``, t ends at p(Y)/q(Y). The
    integral over s of the product is rational. Exact; needs O(V^(k+1)) products of O(V^k) terms.

    Args:
        p, q: target and draft law. k: number of paths, 1 or more.
    Source: the coupling: Daliri et al.; Rowan, Phan and Khisti 2506.05632. The integral is derived here.
    """
    losers = {x: _factor(p, q, x, None) for x in range(len(q)) if q[x]}
    winners = {(x, y): _factor(p, q, x, y) for x in losers for y in range(len(p)) if p[y]}

    @cache
    def chance(count: Tokens, y: int) -> Fraction:
        total = _0
        for x in set(count):  # the winner's path; equal candidates contribute equally
            rest = list(count)
            rest.remove(x)
            terms = winners[x, y]
            for other in rest:
                terms = _times(terms, losers[other])
            total += count.count(x) * sum((c / rate for rate, c in terms.items()), _0)
        return total

    joint = {(xs, y): chance(tuple(sorted(xs)), y) for xs in product(losers, repeat=k) for y in range(len(p)) if p[y]}
    return {key: prob for key, prob in joint.items() if prob}


def _factor(p: Dist, q: Dist, x: int, y: int | None) -> Sum:
    """Path with candidate x: no variable beats s in p's race (y is None), or y's is at ``p(y) s`` and no other beats it (density in s)."""
    out: Sum = {}

    def add(rate: Fraction, c: Fraction) -> None:
        out[rate] = out.get(rate, _0) + c

    def others(t: Fraction) -> Fraction:
        return sum((max(a, b * t) for z, (a, b) in enumerate(zip(p, q, strict=True)) if z not in (x, y)), _0)

    start = p[x] / q[x]
    if y == x:
        add(p[x] + others(start), p[x])
        return out
    fixed, scale = (_0, _1) if y is None else (p[y], p[y])
    stop = None if y is None or not q[y] else p[y] / q[y]
    edges = sorted({start, *(a / b for a, b in zip(p, q, strict=True) if b and a / b > start and (stop is None or a / b < stop))})
    if stop is not None:
        if stop <= start:
            return out
        edges.append(stop)
    for i, low in enumerate(edges):
        if stop is not None and i == len(edges) - 1:
            break
        slope = q[x] + sum((b for z, (a, b) in enumerate(zip(p, q, strict=True)) if z not in (x, y) and b and a / b <= low), _0)
        share = scale * q[x] / slope
        add(fixed + q[x] * low + others(low), share)
        if i + 1 < len(edges):
            add(fixed + q[x] * edges[i + 1] + others(edges[i + 1]), -share)
    return out


def _times(a: Sum, b: Sum) -> Sum:
    out: Sum = {}
    for r, c in a.items():
        for s, d in b.items():
            out[r + s] = out.get(r + s, _0) + c * d
    return out


def coupled_outcomes(target: Model, draft: Model, parents: Sequence[int]) -> Iterator[Outcome]:
    """The outcomes of a round of coupled decoding: Y at every place, as long as some path has drafted it.

    Args:
        target, draft: prefix -> law of the next token. parents: K paths of equal length that part at the root.
    """
    if not is_paths(parents):
        raise ValueError(f"the coupling is for paths that part at the root, got the tree {tuple(parents)}")
    k = list(parents).count(0)
    depth = (len(parents) - 1) // k
    reached: dict[tuple[Tokens, int], Fraction] = {((), k): _1}  # what was accepted, by how many paths
    for _ in range(depth):
        further: dict[tuple[Tokens, int], Fraction] = {}
        for (path, alive), prob in reached.items():
            closed = [_0] * len(target(path))
            for (xs, y), chance in coupled(target(path), draft(path), alive).items():
                if y in xs:
                    key = (*path, y), xs.count(y)
                    further[key] = further.get(key, _0) + prob * chance
                else:
                    closed[y] += chance
            if left := sum(closed, _0):
                yield path, [a / left for a in closed], prob * left
        reached = further
    for (path, _), prob in reached.items():
        yield path, target(path), prob


def coupled_acceptance(p: Dist, q: Dist) -> Fraction:
    """One coupled candidate is the output with probability ``sum over y of 1 / sum over x of max(p_x / p_y, q_x / q_y)``; where p or q is 0, none.

    Args:
        p, q: target and draft law.
    Source: Daliri et al. "Coupling without communication and drafter-invariant speculative decoding" (2024).
    """
    return list_matching_bound(p, q, 1)


def list_matching_bound(p: Dist, q: Dist, k: int) -> Fraction:
    """Some of k coupled candidates is the output with probability at least
    ``sum over y of k / (sum over x of max(p_x / p_y, q_x / q_y) + (k - 1) / p_y)``; equality for k = 1.

    Args:
        p, q: target and draft law. k: number of paths.
    Source: list matching lemma, Rowan, Phan and Khisti 2506.05632.
    """
    total = _0
    for a, b in zip(p, q, strict=True):
        if a and b:
            total += k / (sum((max(c / a, d / b) for c, d in zip(p, q, strict=True)), _0) + (k - 1) / a)
    return total
