"""The problems that exercises are graded on, the smallest first, all in fractions.

Behind all small ones stand a few that are larger than anyone lists by hand: a solution that is
written out for the small ones is wrong there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any


def distributions(tokens: int, parts: int) -> Iterator[list[Fraction]]:
    """All distributions over so many tokens whose probabilities are multiples of 1 / parts."""
    for counts in product(range(parts, -1, -1), repeat=tokens):
        if sum(counts) == parts:
            yield [Fraction(n, parts) for n in counts]


def pairs(tokens: Sequence[int] = (2, 3), parts: int = 4) -> Iterator[dict[str, Any]]:
    """All pairs p, q: fewer tokens first, then smaller denominators."""
    for n in tokens:
        seen = set()
        for size in range(1, parts + 1):
            for p, q in product(distributions(n, size), repeat=2):
                if (key := (tuple(p), tuple(q))) not in seen:
                    seen.add(key)
                    yield {"p": p, "q": q}
    for over_p, over_q in (([1, 2, 3, 4, 5], [5, 4, 3, 2, 1]), ([4, 0, 2, 0, 1], [1, 2, 0, 1, 3])):
        yield {
            "p": [Fraction(n, sum(over_p)) for n in over_p],
            "q": [Fraction(n, sum(over_q)) for n in over_q],
        }


def drawn() -> Iterator[dict[str, Any]]:
    """p, q and a token that q can draw."""
    for pair in pairs():
        for x, chance in enumerate(pair["q"]):
            if chance:
                yield {**pair, "x": x}


def rejected() -> Iterator[dict[str, Any]]:
    """A draft's distribution and tokens that were rejected, of which others are left."""
    for n in (2, 3):
        for size in range(1, 5):
            for q in distributions(n, size):
                for tokens in ([], *([x] for x in range(n)), *([0, x] for x in range(1, n))):
                    if sum(q[x] for x in range(n) if x not in tokens):
                        yield {"q": q, "tokens": tokens}
    yield {"q": [Fraction(n, 15) for n in (1, 2, 3, 4, 5)], "tokens": [4, 0, 2]}


LARGE = [-1, 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 10]
"""The parents of a tree of five levels and more."""


def small_trees(most: int) -> Iterator[list[int]]:
    """All trees of up to so many nodes, as parents; node 0 is the root and has -1."""
    for n in range(1, most + 1):
        for above in product(*(range(i) for i in range(1, n))):
            yield [-1, *above]


def forests() -> Iterator[dict[str, Any]]:
    """Trees, as parents."""
    for parents in [*small_trees(5), LARGE]:
        yield {"parents": parents}


def rated() -> Iterator[dict[str, Any]]:
    """Trees with, for every node, the probability that it is accepted given its parent is; those of
    siblings sum to at most 1."""
    choices = (Fraction(1, 2), Fraction(1, 3), Fraction(0))
    for parents in small_trees(4):
        for rates in product(choices, repeat=len(parents) - 1):
            yield {"parents": parents, "rates": [Fraction(1), *rates]}
    yield {"parents": LARGE, "rates": [Fraction(1), *(Fraction(1, n) for n in range(3, 14))]}


def walks() -> Iterator[dict[str, Any]]:
    """Trees with a token at every node, and the target's most probable token after each."""
    for parents in small_trees(4):
        n = len(parents)
        for tokens in product((0, 1), repeat=n - 1):
            for best in product((0, 1), repeat=n):
                yield {"parents": parents, "tokens": [0, *tokens], "best": list(best)}
    yield {
        "parents": LARGE,
        "tokens": [0, 7, 3, 5, 2, 6, 3, 1, 4, 9, 8, 2],
        "best": [7, 2, 3, 5, 4, 9, 0, 1, 6, 6, 2, 5],  # the walk goes to nodes 1, 4 and 8
    }


def rounds() -> Iterator[dict[str, Any]]:
    """Accepted draft tokens by step."""
    for n in range(1, 5):
        for accepted in product(range(4), repeat=n):
            yield {"accepted": list(accepted)}
    yield {"accepted": [0, 9, 1, 30, 2, 2, 0, 5, 17, 4]}


def levels() -> Iterator[dict[str, Any]]:
    """Accepted and tested depths by step: what was tested is what was accepted, and where a
    candidate was rejected one more."""
    for n in range(1, 4):
        for several in product([(0, 1), (1, 1), (1, 2), (2, 2), (0, 0)], repeat=n):
            yield {"accepted": [a for a, _ in several], "tested": [t for _, t in several]}
    yield {"accepted": [5, 0, 3, 6, 1, 0, 4], "tested": [6, 1, 4, 6, 1, 0, 5]}


def machines() -> Iterator[dict[str, Any]]:
    """Tokens of a forward, time to read the weights, time to compute one token."""
    times = (Fraction(1), Fraction(3), Fraction(8))
    for n in (1, 2, 4, 8):
        for read, compute in product(times, repeat=2):
            yield {"n": n, "read": read, "compute": compute}
    for n in (100, 1000, 10_000):  # each side of the balance of a large machine
        for read in (Fraction(1), Fraction(300), Fraction(3000)):
            yield {"n": n, "read": read, "compute": Fraction(1)}


def costs() -> Iterator[dict[str, Any]]:
    """Acceptance rate, draft length, cost of a draft step in steps of the target."""
    rates = (Fraction(0), Fraction(1), Fraction(1, 2), Fraction(2, 3))
    for gamma in range(4):
        for alpha, c in product(rates, (Fraction(0), Fraction(1, 10), Fraction(1, 4))):
            yield {"alpha": alpha, "gamma": gamma, "c": c}
    for gamma in (10, 100):
        yield {"alpha": Fraction(9, 10), "gamma": gamma, "c": Fraction(1, 20)}


def seconds() -> Iterator[dict[str, Any]]:
    """Paired runs: seconds of plain decoding and of a method."""
    for n in range(1, 4):
        for several in product([(1, 1), (2, 1), (4, 1), (1, 2)], repeat=n):
            yield {"plain": [a for a, _ in several], "method": [b for _, b in several]}
    yield {"plain": [3, 8, 5, 9, 2, 7, 6], "method": [2, 3, 4, 1, 3, 5, 7]}
