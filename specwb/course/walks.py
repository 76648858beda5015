"""Exercises of lessons 8 to 10, and the lattices that lesson 10 searches."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

from specwb.course.drafting import joints
from specwb.course.grading import Exercise
from specwb.course.problems import pairs
from specwb.verify import exact

TEXTS = 12
"""How many of the lab family's prompts lesson 10 looks behind."""


@cache
def lattices(texts: int = TEXTS) -> tuple[Any, list[Any], Any]:
    """Return the lab's target, the lattices of its diffusion model behind some texts, and the
    trigrams: the arguments of :class:`specwb.widgets.LatticeExplorer`.

    The texts are the first prompts of the lab family, each with 4 to 15 tokens that the target
    wrote at T = 0. All is computed in float64, so that the digits are the same on every machine.
    """
    from specwb.bench.prompts import load_prompts
    from specwb.decoding import decode
    from specwb.evaluation.lattices import places
    from specwb.models.diffusion import load_diffusion
    from specwb.models.load import data_dir, load
    from specwb.ngram import NGram

    lab = load("lab", dtype="float64", device="cpu")
    begun = [prompt.ids(lab.tokenizer)[:48] for prompt in load_prompts("lab")[:texts]]
    written = decode(lab, begun, "ar", max_new_tokens=4 + TEXTS, eos=()).tokens
    ids = [first + rest[: 4 + i % TEXTS] for i, (first, rest) in enumerate(zip(begun, written))]
    model = load_diffusion(data_dir() / "lab" / "diffusion", lab)
    trigrams = NGram.load(data_dir() / "lab" / "ngram" / "ngram.npz")
    return lab, places(lab, model, ids), trigrams


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


def _second(joint: list[list[Fraction]]) -> Fraction:
    rows, columns = [sum(row) for row in joint], [sum(column) for column in zip(*joint)]
    cells = product(enumerate(rows), enumerate(columns))
    return sum((min(joint[x][y], a * b) for (x, a), (y, b) in cells), Fraction(0))


def _cheapest(first: list[int], steps: list[list[list[int]]]) -> int:
    costs = first
    for step in steps:
        costs = [min(c + row[b] for c, row in zip(costs, step)) for b in range(len(step[0]))]
    return min(costs)


WALKS = (
    Exercise(
        "several",
        "residuals",
        "several(p, q, k): the probability that recursive rejection accepts one of k candidates,"
        " which are drawn from q independently.",
        candidates,
        exact.rrs_acceptance_scalar,
    ),
    Exercise(
        "second",
        "dependence",
        "second(joint): how often the second token of a block is kept, if the first is the target's"
        " own and the block draws the second from its margin. joint[a][b] is the probability that"
        " the target's tokens are a, then b.",
        joints,
        _second,
    ),
    Exercise(
        "cheapest",
        "paths",
        "cheapest(first, steps): the cost of the cheapest path through a lattice. Its first token a"
        " costs first[a]; steps[i][a][b] is the cost of token b at place i + 1 if token a is at"
        " place i, counted from 0.",
        searches,
        _cheapest,
    ),
)
