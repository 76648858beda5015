"""Which child is accepted, and what it is: the joint law in closed form, and from it the expected length of any tree, without listing drafts.

Every function here returns ``places[i][y] = P(child i is accepted and is y)`` for the draft law that its rule is lossless for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from specwb.verify.exact.basics import Dist, Model, Tokens, minus, norm, overlap, without
from specwb.verify.exact.laws import top
from specwb.verify.exact.nodes import kseq_rho

_0, _1 = Fraction(0), Fraction(1)
Places = list[list[Fraction]]


def rrs_places(p: Dist, q: Dist, k: int) -> Places:
    """Independent children, recursive rejection: ``prod_{j<i} (1 - beta_j) min(p_i, q)``, with ``p_{j+1} = norm((p_j - q)+)``; k = 1 is rejection."""
    places, left = [], _1
    for _ in range(k):
        places.append([left * min(a, b) for a, b in zip(p, q, strict=True)])
        left *= 1 - overlap(p, q)
        p = norm(minus(p, q)) if left else p
    return places


def rrsw_places(p: Dist, q: Dist, k: int) -> Places:
    """Children without replacement, recursive rejection: ``min(p, q)``, then for every rejected x, weighted with ``(q - p)+(x)``, the same of what is
    left of p and q."""
    places = [[_0] * len(p) for _ in range(k)]
    if k and any(q):
        places[0] = [min(a, b) for a, b in zip(p, q, strict=True)]
        for x, amount in enumerate(minus(q, p)):
            if amount:
                rest = without(q, (x,))
                below = rrsw_places(norm(minus(p, q)), norm(rest) if any(rest) else rest, k - 1)
                for place, more in zip(places[1:], below, strict=True):
                    place[:] = [a + amount * b for a, b in zip(place, more, strict=True)]
    return places


def kseq_places(p: Dist, q: Dist, k: int) -> Places:
    """Independent children, k-SEQ: ``(1 - beta)^i min(p / rho, q)``, ``beta`` the sum of the last factor."""
    rho = kseq_rho(tuple(p), tuple(q), k)
    b = [min(x / rho, y) for x, y in zip(p, q, strict=True)]
    return [[(1 - sum(b, _0)) ** i * x for x in b] for i in range(k)]


def naive_places(p: Dist, q: Dist, k: int) -> Places:
    """Independent children, a draw from p: ``p (1 - q)^i q``, the first child that is the token drawn."""
    return [[a * (1 - b) ** i * b for a, b in zip(p, q, strict=True)] for i in range(k)]


def point_places(p: Dist, q: Dist, k: int) -> Places:
    """The k most probable tokens of q, a draw from p: child i with its probability under p."""
    ((tokens, _),) = top(q, k)
    return [[a if tokens[i : i + 1] == (y,) else _0 for y, a in enumerate(p)] for i in range(k)]


def top_and_sample_places(p: Dist, q: Dist, k: int) -> Places:
    """The k - 1 most probable tokens A with their probabilities under p, and last ``min(p, q')``, ``q' = norm(q outside A)``."""
    ((fixed, _),) = top(q, k - 1)
    rest = without(q, fixed)
    last = [min(a, b) for a, b in zip(p, norm(rest), strict=True)] if any(rest) else [_0] * len(p)
    return [*point_places(p, q, k - 1), last]


PLACES: dict[tuple[str, str], Callable[[Dist, Dist, int], Places]] = {
    ("rejection", "IID"): rrs_places,
    ("rejection", "WITHOUT_REPLACEMENT"): rrs_places,
    ("rrs", "IID"): rrs_places,
    ("rrsw", "WITHOUT_REPLACEMENT"): rrsw_places,
    ("kseq", "IID"): kseq_places,
    ("top", "TOP_AND_SAMPLE"): top_and_sample_places,
    ("point", "POINT"): point_places,
    ("naive", "POINT"): point_places,
    ("point", "IID"): naive_places,
    ("naive", "IID"): naive_places,
}
"""Rule and draft law -> closed form, where there is one."""


def total(places: Places) -> Fraction:
    """The probability that a child is accepted, ``sum of places[i][y]``."""
    return sum((a for place in places for a in place), _0)


def expected_from_places(places: Callable[[Dist, Dist, int], Places], target: Model, draft: Model, parents: Sequence[int]) -> Fraction:
    """The expected number of drafted tokens a round accepts, ``L(path, node) = sum_i sum_y places[i][y] (1 + L(path y, child i))``.

    Args:
        places: one of ``PLACES``. target, draft: prefix -> law of the next token. parents: the tree, -1 for the root.
    """
    kids = [[i for i, parent in enumerate(parents) if parent == node] for node in range(len(parents))]

    def below(path: Tokens, node: int) -> Fraction:
        if not kids[node]:
            return _0
        found = places(target(path), draft(path), len(kids[node]))
        return sum(
            (a * (1 + below((*path, y), kid)) for kid, place in zip(kids[node], found, strict=True) for y, a in enumerate(place) if a),
            _0,
        )

    return below((), 0)
