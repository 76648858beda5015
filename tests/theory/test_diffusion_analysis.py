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
    for seed, v in product(range(4), (2, 3)):
        target, draft = models(seed, v, kind)
        joint = E.target_distribution(target, 3)
        for path in product(range(v), repeat=3):
            nodes = [path[:i] for i in range(1, 4)]
            assert d.expected_accepted(joint, path) == expected_point(target, nodes)
        for drafts in (None, [draft((0,) * i) for i in range(3)]):
            flat = d.marginals(joint) if drafts is None else drafts
            kept, passed = F(0), {(): F(1)}
            for q in flat:
                passed = {
                    (*path, x): chance * min(target(path)[x], b)
                    for path, chance in passed.items()
                    if chance
                    for x, b in enumerate(q)
                }
                kept += sum(passed.values())
            assert d.drawn_accepted(joint, drafts) == kept


def test_ratio_distribution_is_the_exact_rule_on_a_point() -> None:
    for p, q in pairs(300, sizes=(2, 3, 4)):
        for x, b in enumerate(q):
            if b:
                accept, excess = min(F(1), p[x] / b), E.minus(p, q)
                rest = E.norm(excess) if any(excess) else excess
                expected = [(1 - accept) * a for a in rest]
                expected[x] += accept
                assert d.ratio_distribution(p, q, x) == expected
