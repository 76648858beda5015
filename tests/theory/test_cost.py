"""Tokens per decoding step and speed agree with enumeration over whole steps, and with each
other."""

from __future__ import annotations

from fractions import Fraction as F
from itertools import pairwise

import pytest

from specwb import Tree
from specwb.theory import analysis, exact

P, Q = exact.norm([4, 2, 1, 1]), exact.norm([1, 2, 4, 1])


def always(p):
    return lambda prefix: p


@pytest.mark.parametrize("gamma", range(5))
def test_expected_tokens_is_what_enumeration_of_rounds_gives(gamma):
    alpha = analysis.acceptance_rate(P, Q)
    tau = analysis.expected_tokens(alpha, gamma)
    assert isinstance(tau, F)
    assert tau == 1 + exact.expected_accepted(
        exact.rejection, exact.iid, always(P), always(Q), range(-1, gamma)
    )
    assert tau == (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert tau == sum(analysis.reach([alpha] * gamma))


def test_rounds_of_different_difficulty():
    """Where a whole step shares one random rate, it adds more tokens than the mean rate gives
    (Jensen)."""
    alphas, weights = [F(1, 4), F(3, 4), F(1)], [F(1, 2), F(1, 4), F(1, 4)]
    mean = sum(a * w for a, w in zip(alphas, weights))
    for gamma in range(1, 6):
        mixed = sum(w * analysis.expected_tokens(a, gamma) for a, w in zip(alphas, weights))
        gain = mixed - analysis.expected_tokens(mean, gamma)
        assert gain > 0 if gamma > 1 else gain == 0


# -------------------------------------------------------------------------------------------- trees


@pytest.mark.parametrize("ks", [(2,), (2, 1), (2, 2)])
def test_tree_reach_is_what_enumeration_gives(ks):
    """Where p and q are the same everywhere, rates by rank are exact: each is P(rank accepted), by
    enumeration at one node."""
    rank = [F(0)] * max(ks)
    for tokens, chance in exact.without_replacement(Q, max(ks)):
        for i, a in enumerate(exact.rrsw(P, Q, tokens)[0]):
            rank[i] += chance * a
    parents = Tree.branching(*ks).host[0]
    tau = sum(analysis.tree_reach([rank] * len(ks), parents))
    assert tau == 1 + exact.expected_accepted(
        exact.rrsw, exact.without_replacement, always(P), always(Q), parents
    )


# -------------------------------------------------------------------------------------------- speed


def test_best_gamma_is_where_the_speedup_stops_rising():
    for alpha in (0.05, 0.3, 0.5, 0.8, 0.95):
        for c in (0.01, 0.1, 0.3, 0.6):
            curve = [analysis.speedup(alpha, g, c) for g in range(65)]
            best = analysis.best_gamma(alpha, c, most=64)
            assert curve[best] == max(curve)
            first = next(g for g in range(65) if alpha ** (g + 1) <= c * curve[g])
            assert first == best, (alpha, c)
            assert all(a < b for a, b in pairwise(curve[: best + 1]))
            assert all(a >= b for a, b in pairwise(curve[best:]))
            assert (best > 0) == (alpha > c)
            assert max(curve) < 1 / (1 - alpha)


def test_batches():
    """More tokens are free while the weights are still being read. A batch that fills the
    arithmetic units by itself leaves nothing to gain."""
    assert [analysis.roofline(g, 1, 32) for g in (0, 7, 31)] == [1, 1, 1]
    assert analysis.roofline(63, 1, 32) == 2
    assert [analysis.roofline(g, 32, 32) for g in range(4)] == [1, 2, 3, 4]
    best = [
        analysis.best_gamma(0.8, 0.05, lambda g, b=b: analysis.roofline(g, b, 32))
        for b in (1, 4, 8, 16, 32, 64)
    ]
    assert best == sorted(best, reverse=True)
    assert best[0] > 0 == best[-1]
