"""Blocks drafted in one pass: the functions agree with small tables worked by hand and with the
exact verifiers."""

from __future__ import annotations

from fractions import Fraction as F
from itertools import product

import pytest
from instances import pairs

from specwb.theory import exact as E
from specwb.theory.analysis import diffusion as d
from specwb.theory.analysis import expected_point
from specwb.theory.instances import models


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
