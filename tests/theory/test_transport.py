"""The optimum: a linear program, all subsets and the prefix formula agree; no rule is above it, and
the optimal rule attains it."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from instances import pairs

from specwb.core.errors import ArgumentError
from specwb.theory import analysis, exact
from specwb.theory.analysis import transport
from specwb.theory.instances import models

INSTANCES = [
    ([float(a) for a in p], [float(b) for b in q], 2 + i % 2)
    for i, (p, q) in enumerate(pairs(150, (3, 4, 5)))
]
PICKED = ("iid", "without", "top_and_sample", "single", "without", "point")


def test_program_and_subsets_agree_with_the_formula():
    worst = {"program": 0.0, "subsets": 0.0}
    draws = {"without": exact.without_replacement, "point": exact.top}
    draws["single"] = lambda q, k: exact.iid(q, 1)
    for i, (p, q, k) in enumerate(INSTANCES):
        scheme = PICKED[i % len(PICKED)]
        alpha = analysis.optimum(p, q, k, scheme)
        assert 0 <= alpha <= 1
        worst["program"] = max(worst["program"], abs(analysis.optimum_lp(p, q, k, scheme) - alpha))
        if i < 60:
            a, b = (exact.norm([Fraction(x) for x in row]) for row in (p, q))
            draw = draws.get(scheme) or getattr(exact, scheme)
            subsets = float(exact.optimum(draw, a, b, k))
            worst["subsets"] = max(worst["subsets"], abs(subsets - alpha))
    assert max(worst.values()) <= 1e-12, worst


@pytest.mark.slow
def test_no_rule_is_above_the_optimum():
    strict = dict.fromkeys(analysis.RATES, 0)
    for p, q, k in INSTANCES:
        for name, rate in analysis.RATES.items():
            best, attained = analysis.optimum(p, q, k, analysis.DRAWN[name]), rate(p, q, k)
            assert attained <= best + (1e-9 if name == "race" else 1e-12), (name, p, q, k)
            strict[name] += attained < best - 1e-6
            if name in ("rejection", "point", "top_and_sample"):
                assert attained == pytest.approx(best, abs=1e-12)
            if name == "kseq":
                assert attained >= (1 - (1 - 1 / k) ** k) * best - 1e-12
    assert all(strict[name] > 15 for name in ("naive", "rrs", "rrsw", "kseq", "coupling"))
    assert strict["race"] < strict["kseq"]


def test_the_optimum_of_a_tree():
    """A chain's is block verification's, a node's alpha*, and no rule for trees is above it."""
    above_rules = []
    for seed in range(3):
        target, draft = models(seed, 3, "dense")
        chain = analysis.tree_optimum(target, draft, (-1, 0, 1, 2), "iid")
        block = exact.block_expected_accepted(target, draft, (-1, 0, 1, 2))
        assert chain == pytest.approx(float(block), abs=1e-9)
        for scheme in ("iid", "without"):
            node = analysis.tree_optimum(target, draft, (-1, 0, 0), scheme)
            alpha = analysis.optimum(target(()), draft(()), 2, scheme)
            assert node == pytest.approx(float(alpha), abs=1e-9)
        tree = (-1, 0, 0, 1, 2)
        for name, scheme in (("traversal", "without"), ("traversal", "iid"), ("gbv", "iid")):
            drawn = "IID" if scheme == "iid" else "WITHOUT_REPLACEMENT"
            kept = exact.mean_accepted(exact.TREE_RULES[name].outcomes(drawn, target, draft, tree))
            above_rules.append(analysis.tree_optimum(target, draft, tree, scheme) - float(kept))
    assert min(above_rules) > -1e-9
    assert max(above_rules) > 0.1
    assert analysis.tree_optimum(target, draft, (-1,)) == 0
    with pytest.raises(ArgumentError, match="scheme must be iid or without, got 'top'"):
        analysis.tree_optimum(target, draft, (-1, 0), "top")
    with pytest.raises(ArgumentError, match="node 0 must be the root"):
        analysis.tree_optimum(target, draft, (0, 0))


def test_a_vocabulary_of_thousands():
    """For k = 2 without replacement ``1 - Q = o (1 + sum over S of q / (1 - q))``."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(3, 4096, generator=generator, dtype=torch.float64) * 3
    p, q = (
        z.softmax(-1),
        (z + torch.randn(3, 4096, generator=generator, dtype=torch.float64)).softmax(-1),
    )
    for row in q:
        odds = torch.nn.functional.pad((row / (1 - row)).cumsum(0), (1, 0))
        outside = torch.nn.functional.pad(row.flip(0).cumsum(0).flip(0), (0, 1))
        expected = outside * (1 + odds)
        assert transport._first_arrivals(row, 2) == pytest.approx(expected, abs=1e-12)
    iid, without = (analysis.optimum(p, q, 3, scheme) for scheme in ("iid", "without"))
    assert (analysis.optimum(p, q, 1, "iid") < iid).all()
    assert (iid < without).all()
