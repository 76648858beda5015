"""The acceptance of every rule at one node agrees with enumeration over fractions, with published
golden values and with draws."""

from __future__ import annotations

import math
from fractions import Fraction as F

import numpy as np
import pytest
import torch
from instances import pairs

from specwb.rules.race import race_weights
from specwb.theory import analysis, exact
from specwb.theory.analysis import rules

CASES = [(p, q, i % 3 + 1) for i, (p, q) in enumerate(pairs(66, (1, 2, 3, 4, 5)))]


def kseq(rho):
    return lambda p, q, tokens: exact.kseq(p, q, tokens, rho)


def race(p, q, k):
    """With the weights of the rule that decodes; of two the optimum. The bonus token may be among
    the children."""
    if k == 2:
        return exact.optimum(exact.iid, p, q, k)
    rows = torch.tensor([[float(a) for a in p], [float(b) for b in q]], dtype=torch.float64)
    w = [F(x) for x in race_weights(rows[:1], rows[1:], k)[0][0].tolist()]
    return exact.acceptance(lambda p, q, tokens: exact.race(p, q, tokens, w), exact.iid, p, q, k)


def list_matching(p, q, k):
    """The bound of theorem 7.6 by its definition."""
    both = [(a, b) for a, b in zip(p, q, strict=True) if a and b]
    rows = list(zip(p, q, strict=True))
    return sum(k / (sum(max(c / a, d / b) for c, d in rows) + (k - 1) / a) for a, b in both)


IID, WITHOUT = exact.iid, exact.without_replacement
ENUMERATED = {
    "rejection": lambda p, q, k: exact.acceptance(exact.rejection, IID, p, q, 1),
    "naive": lambda p, q, k: exact.acceptance(exact.naive, IID, p, q, k),
    "rrs": lambda p, q, k: exact.acceptance(exact.rrs, IID, p, q, k),
    "rrsw": lambda p, q, k: exact.acceptance(exact.rrsw, WITHOUT, p, q, k),
    "kseq": lambda p, q, k: exact.acceptance(
        kseq(F(float(analysis.kseq_rho(p, q, k)))), IID, p, q, k
    ),
    "race": race,
    "top_and_sample": lambda p, q, k: exact.acceptance(
        exact.top_rule, exact.top_and_sample, p, q, k
    ),
    "point": lambda p, q, k: exact.acceptance(exact.point, exact.top, p, q, k),
    "coupling": list_matching,
}


@pytest.mark.parametrize("name", ENUMERATED)
def test_rates_are_what_enumeration_gives(name):
    within = 1e-9 if name == "race" else 1e-12  # the race is an integral
    for p, q, k in CASES:
        assert analysis.RATES[name](p, q, k) == pytest.approx(
            float(ENUMERATED[name](p, q, k)), abs=within
        ), (p, q, k)


def test_every_rate_is_enumerated():
    assert set(analysis.RATES) == set(ENUMERATED) == set(analysis.DRAWN)


def test_sampled_tuples_agree_with_the_enumerated_ones(monkeypatch):
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.full(12, 0.6), 40), rng.dirichlet(np.full(12, 0.6), 40)
    for k in (2, 3, 4):
        value, none = rules.rrsw_estimate(p, q, k)
        assert not none.any()
        monkeypatch.setattr(rules, "MAX_TUPLES", 1)
        estimate, error = rules.rrsw_estimate(p, q, k, samples=200, seed=k)
        monkeypatch.undo()
        assert error.any()
        z = (estimate - value)[error > 1e-9] / error[error > 1e-9]
        assert abs(z).max() < 5
        assert abs(z.mean()) < 4 / math.sqrt(len(z))
        assert 0.6 < z.std() < 1.5
        # where the scalars do not depend on which tokens were rejected, there is nothing to
        # estimate
        assert estimate[error <= 1e-9] == pytest.approx(value[error <= 1e-9], abs=1e-7)


def test_an_overconfident_draft_keeps_its_digits():
    """``1 - q(rejected)`` is computed as a sum over what remains, which keeps its digits."""
    small = F(1, 10**17)
    q = [1 - 3 * small, 2 * small, small]
    p = exact.norm([1, 3, 2])
    floats = [float(x) for x in q]
    for k in (2, 3):
        assert analysis.rrsw_rate(p, floats, k) == pytest.approx(
            float(exact.rrsw_acceptance(p, q, k)), abs=1e-12
        )


def test_the_coupling_bound_is_its_definition_and_bounds_what_happens():
    for p, q, k in CASES[::4]:
        bound = analysis.coupling_bound(p, q, k)
        assert bound == pytest.approx(float(list_matching(p, q, k)), abs=1e-12)
        met = sum(c for (xs, y), c in exact.coupled(p, q, k).items() if y in xs)
        assert met >= bound - 1e-12
        assert k > 1 or bound == pytest.approx(float(met), abs=1e-12)


def test_first_arrivals_meet_the_target_between_their_bounds():
    """Theorem 7.8: with one candidate theorem 7.6, with more never above the optimum, and the same
    in floats."""
    ahead = []
    for p, q, k in CASES:
        met = exact.first_arrivals(p, q, k)
        least = sum(a * (1 - (a / (a + b)) ** k) for a, b in zip(p, q) if a and b)
        assert least <= met
        if k <= sum(map(bool, q)):
            assert met <= exact.optimum(exact.without_replacement, p, q, k)
            ahead.append(met > exact.rrsw_acceptance(p, q, k))
        assert analysis.exact_text_rate(p, q, k) == pytest.approx(float(met), abs=1e-8)
        if k == 1:
            joint = exact.coupled(p, q, 1)
            assert met == sum(c for (xs, y), c in joint.items() if y in xs)
    assert any(ahead)
    assert not all(ahead)
