"""Exercises about drafters, and a biased verifier to find among three."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations, product
from typing import Any

from specwb.course.grading import Exercise
from specwb.course.problems import rounds
from specwb.verify import exact
from specwb.verify.mutants import MUTANTS

# ------------------------------------------------------------------------------------- problems


def texts() -> Iterator[dict[str, Any]]:
    """Texts of two words, how many of their last tokens are looked up, how many are drafted."""
    for length in range(1, 6):
        for text in product((0, 1), repeat=length):
            for n in range(1, min(length, 3)):
                for k in (1, 2):
                    yield {"text": list(text), "n": n, "k": k}
    for n, k in ((1, 4), (3, 5), (3, 9), (4, 2)):
        yield {"text": [5, 3, 8, 1, 5, 3, 8, 2, 9, 4, 5, 3, 8], "n": n, "k": k}


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

    Attributes:
        name: A, B or C.
    """

    name: str
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
    wrong = [m.node for m in MUTANTS if m.scheme is exact.iid and m.original in ("rrs", "race")]
    weights = [([1, 1], [1, 3]), ([1, 2], [2, 1]), ([2, 1, 1], [1, 1, 2]), ([4, 3, 2], [2, 3, 4])]
    for (over_p, over_q), mutant in product(weights, wrong):
        p, q = tuple(exact.norm(over_p)), tuple(exact.norm(over_q))
        if not Verifier("", mutant, p, q).biased:
            continue
        for rules in permutations((exact.rrs, exact.kseq, mutant)):
            named = [Verifier(name, rule, p, q) for name, rule in zip("ABC", rules, strict=True)]
            yield {"p": list(p), "q": list(q), "rules": named}


# -------------------------------------------------------------------------------------- answers


def _lookup(text: list[int], n: int, k: int) -> list[int]:
    for start in range(len(text) - n - 1, -1, -1):
        if text[start : start + n] == text[-n:]:
            return text[start + n : start + n + k]
    return []


def _unseen(joint: list[list[Fraction]]) -> Fraction:
    return max(sum(column, Fraction(0)) for column in zip(*joint, strict=True))


def _kept(joint: list[list[Fraction]], path: list[int]) -> Fraction:
    first = sum(joint[path[0]], Fraction(0))
    return first + (joint[path[0]][path[1]] if len(path) > 1 else 0)


def _named(problem: dict[str, Any], given: Any) -> str | None:
    (right,) = (rule.name for rule in problem["rules"] if rule.biased)
    if given not in ("A", "B", "C"):
        return f"return A, B or C, got {given!r}"
    return None if given == right else f"you say {given}, it is {right}"


DRAFTERS = (
    Exercise(
        "lookup",
        "drafters",
        "lookup(text, n, k): up to k tokens that followed the last n tokens of the text at the"
        " latest earlier place where these stood; [] if there is none.",
        texts,
        _lookup,
    ),
    Exercise(
        "unseen",
        "drafters",
        "unseen(joint): how often the best guess at the second token is right if the first is not"
        " seen. joint[a][b] is the probability that the tokens are a, then b.",
        joints,
        _unseen,
    ),
    Exercise(
        "kept",
        "blocks",
        "kept(joint, path): how many tokens of a drafted path of one or two are accepted on"
        " average, if a token is accepted when it is what the target draws. joint[a][b] is the"
        " target's probability of a, then b.",
        drafted,
        _kept,
    ),
    Exercise(
        "ctar",
        "blocks",
        "ctar(accepted, w): the share of the steps that keep at least w draft tokens, from the"
        " accepted draft tokens of every step.",
        lambda: ({**steps, "w": w} for steps in rounds() for w in (1, 2, 3)),
        lambda accepted, w: Fraction(sum(a >= w for a in accepted), len(accepted)),
    ),
)
MEASURING = (
    Exercise(
        "biased",
        "measuring",
        "biased(p, q, rules): which of three verifiers does not output p: 'A', 'B' or 'C'."
        " rules[i]([x1, x2]), with x1 and x2 drawn from q independently, returns ([probability"
        " that x1, that x2 is the accepted one], residual); the residual may be None where it is"
        " not needed.",
        lineups,
        lambda p, q, rules: next(rule.name for rule in rules if rule.biased),
        _named,
    ),
)
