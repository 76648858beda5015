"""The closed forms of one draft token agree with enumeration, a linear program and the rule that
decodes."""

from __future__ import annotations

from fractions import Fraction as F

import numpy as np
import pytest
import torch
from instances import pairs
from scipy import stats

from specwb.theory import analysis, exact

CASES = list(pairs(60, (4,)))


def test_acceptance_is_one_minus_tv_and_what_enumeration_gives():
    for p, q in CASES:
        alpha = analysis.acceptance_rate(p, q)
        assert isinstance(alpha, F)
        assert alpha == 1 - exact.tv(p, q) == exact.acceptance(exact.rejection, exact.iid, p, q, 1)


def test_output_distribution_is_p_and_the_residual_the_rules():
    for p, q in CASES:
        assert list(analysis.output_distribution(p, q)) == p
        rejected = next(
            (r for xs, _ in exact.iid(q, 1) if (r := exact.rejection(p, q, xs)[1]) is not None),
            None,
        )
        assert list(analysis.residual(p, q)) == (p if rejected is None else rejected)


# -------------------------------------------------------------------------------------- temperature


def test_temperature_from_agreement_of_argmaxes_to_one():
    z = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    w = torch.tensor([[1.0, 0.5, 0.9], [1.0, 0.5, 1.2]])
    cold, hot = (analysis.acceptance_under_temperature(z, w, t).tolist() for t in (0.01, 1e4))
    assert cold == pytest.approx([1, 0], abs=1e-4)
    assert hot == pytest.approx([1, 1], abs=1e-3)
    # the rate is not monotone: both have the same first token, and the draft is too sure of it
    z, w = torch.tensor([1.0, 0.0]), torch.tensor([4.0, 0.0])
    low, middle, high = (
        float(analysis.acceptance_under_temperature(z, w, t)) for t in (0.1, 1.5, 50)
    )
    assert middle < min(low, high)


def test_one_hot_distributions_walk_greedily():
    """With one-hot distributions the rule accepts exactly the target's argmax; otherwise the bonus
    token is that argmax."""
    for best in range(3):
        for draft_token in range(3):
            p, q = ([F(x == hot) for x in range(3)] for hot in (best, draft_token))
            accept, residual = exact.rejection(p, q, (draft_token,))
            assert accept == [best == draft_token]
            assert residual == (None if best == draft_token else p)


# --------------------------------------------------------------------------------------- simulation


def test_simulation_follows_p_and_accepts_alpha():
    seed = 2
    p, q = (np.array(row, dtype=float) for row in CASES[seed])
    n = 20_000
    counts, accepted = analysis.simulate(p, q, n, seed)
    assert counts.sum() == n
    assert not counts[p == 0].any()
    if (p > 0).sum() > 1:
        assert stats.chisquare(counts[p > 0], n * p[p > 0]).pvalue > 1e-4
    assert stats.binomtest(accepted, n, float(analysis.acceptance_rate(p, q))).pvalue > 1e-4
