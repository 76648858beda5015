"""Blocks drafted in one pass: the functions agree with small tables worked by hand and with the
exact verifiers."""

from __future__ import annotations

import random
from fractions import Fraction as F
from itertools import product

import pytest
import torch

from specwb.drafters.length import Adaptive
from specwb.theory import exact as E
from specwb.theory.analysis import diffusion as d
from specwb.theory.analysis import expected_point
from specwb.theory.instances import models, pairs


@pytest.mark.parametrize("kind", ["any", "dense"])
def test_expected_lengths_are_what_the_exact_rules_accept(kind: str) -> None:
    """A fixed path is verified by the point-mass rule and independent draws by rejection, from the
    marginals and from other distributions."""
    chain = (-1, 0, 1, 2)
    for seed, v in product(range(4), (2, 3)):
        target, draft = models(seed, v, kind)
        joint = E.target_distribution(target, 3)
        for path in product(range(v), repeat=3):
            nodes = [path[:i] for i in range(1, 4)]
            assert d.expected_accepted(joint, path) == expected_point(target, nodes)
        for drafts in (None, [draft((0,) * i) for i in range(3)]):
            flat = d.marginals(joint) if drafts is None else drafts
            flat = [[*q, *[F(0)] * (v - len(q))] for q in flat]
            found = E.expected_accepted(
                E.rejection, E.iid, target, lambda prefix, flat=flat: flat[len(prefix)], chain
            )
            assert d.drawn_accepted(joint, drafts) == found


def test_ratio_distribution_is_the_exact_rule_on_a_point() -> None:
    for p, q in pairs(300, sizes=(2, 3, 4)):
        for x, b in enumerate(q):
            if b:
                assert d.ratio_distribution(p, q, x) == E.output_distribution(
                    E.rejection, lambda q, k, x=x: [((x,), F(1))], p, q, 1
                )


@pytest.mark.parametrize("seed", range(6))
def test_the_drafters_controller_does_the_same(seed: int) -> None:
    rng = random.Random(seed)
    constants = {
        "rho": rng.choice([0.5, 0.25, 1.0]),
        "share": rng.choice([1.0, 0.75, 0.5]),
        "delta": rng.choice([10, 4, 0]),
    }
    least, most = rng.choice([(20, 30), (4, 64), (1, 7)])
    rows = 4
    ends = [[rng.choice([None, rng.randint(0, most)]) for _ in range(rows)] for _ in range(25)]
    length = Adaptive(least, most, **constants)
    length.open(rows, "cpu")
    generated, accepted, tokens = [], [], [length.tokens.tolist()]
    for row_ends in ends:
        k = tokens[-1]
        generated.append(
            [k[i] if end is None else min(end, k[i]) for i, end in enumerate(row_ends)]
        )
        accepted.append([rng.choice([n, rng.randint(0, n)]) for n in generated[-1]])
        length.observe(torch.tensor(generated[-1]), torch.tensor(accepted[-1]))
        tokens.append(length.tokens.tolist())
    for i in range(rows):
        drafted, kept = [row[i] for row in ends], [row[i] for row in accepted]
        rounds = d.adl_trace(drafted, kept, least, most, **constants)
        assert [r.k for r in rounds] == [k[i] for k in tokens[:-1]]
        assert rounds[-1].next == tokens[-1][i]
        assert rounds[-1].mean_generated == length.generated[i]
        assert rounds[-1].mean_accepted == length.accepted[i]
    assert len({k for row in tokens for k in row}) > 1
