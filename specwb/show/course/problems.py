"""The problems that exercises are graded on, the smallest first, all in fractions.

Behind all small ones stand a few that are larger than anyone lists by hand: a solution that is
written out for the small ones is wrong there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations, product
from typing import Any

from specwb.theory import exact
from specwb.theory.wrong_rules import AT_ONE_NODE


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


def texts() -> Iterator[dict[str, Any]]:
    """Texts of two words, how many of their last tokens are looked up, how many are drafted."""
    for length in range(1, 6):
        for text in product((0, 1), repeat=length):
            for n in range(1, min(length, 3)):
                for k in (1, 2):
                    yield {"text": list(text), "n": n, "k": k}
    for n, k in ((1, 4), (3, 5), (3, 9), (4, 2)):
        yield {"text": [5, 3, 8, 1, 5, 3, 8, 2, 9, 3, 8, 4, 5, 3, 8], "n": n, "k": k}


def joints(parts: int = 4) -> Iterator[dict[str, Any]]:
    """The probabilities of two tokens in succession, each 0 or 1: ``joint[a][b]``."""
    seen = set()
    for size in range(1, parts + 1):
        for counts in product(range(size, -1, -1), repeat=4):
            if sum(counts) == size:
                a, b, c, d = (Fraction(n, size) for n in counts)
                if (a, b, c, d) not in seen:
                    seen.add((a, b, c, d))
                    yield {"joint": [[a, b], [c, d]]}


def drafted() -> Iterator[dict[str, Any]]:
    """Two tokens in succession, and the path of one or two that a drafter proposes."""
    for problem in joints(3):
        for path in ((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)):
            yield {**problem, "path": list(path)}


@dataclass(frozen=True)
class Verifier:
    """A rule for two candidates drawn independently from q, which does not say what it is. Called
    with a list of two tokens it returns ([how often each is the accepted one], residual).
    """

    name: str  # A, B or C
    rule: exact.NodeRule
    p: tuple[Fraction, ...]
    q: tuple[Fraction, ...]

    def __call__(self, tokens: list[int]) -> exact.Decision:
        return self.rule(self.p, self.q, tuple(tokens))

    def __str__(self) -> str:
        return f"verifier {self.name}"

    @property
    def biased(self) -> bool:
        """Whether what comes out is not p."""
        return exact.output_distribution(self.rule, exact.iid, self.p, self.q, 2) != list(self.p)


def lineups() -> Iterator[dict[str, Any]]:
    """p and q, and three verifiers for them, of which exactly one is biased."""
    wrong = [
        m.node
        for m in AT_ONE_NODE
        if m.node and m.scheme == "IID" and m.original in ("rrs", "race")
    ]
    weights = [([1, 1], [1, 3]), ([1, 2], [2, 1]), ([2, 1, 1], [1, 1, 2]), ([4, 3, 2], [2, 3, 4])]
    for (over_p, over_q), mutant in product(weights, wrong):
        p, q = tuple(exact.norm(over_p)), tuple(exact.norm(over_q))
        if not Verifier("", mutant, p, q).biased:
            continue
        for rules in permutations((exact.rrs, exact.kseq, mutant)):
            named = [Verifier(name, rule, p, q) for name, rule in zip("ABC", rules, strict=True)]
            yield {"p": list(p), "q": list(q), "rules": named}


def candidates() -> Iterator[dict[str, Any]]:
    """p, q and a number of candidates."""
    for pair, k in product(list(pairs(parts=3)), (1, 2, 3)):
        yield {**pair, "k": k}


def searches() -> Iterator[dict[str, Any]]:
    """What the first place's candidates cost, and each later one after each of those before it."""
    for first in ((0, 1), (1, 0), (0, 0), (1, 1)):
        for step in product((0, 1, 3), repeat=4):
            yield {"first": list(first), "steps": [[list(step[:2]), list(step[2:])]]}
    far = [[[(7 * a * b + 3 * a + 5 * b + i) % 11 for b in range(4)] for a in range(4)]
           for i in range(5)]  # fmt: skip
    yield {"first": [2, 0, 1, 3], "steps": far}
