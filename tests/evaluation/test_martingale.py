"""The martingale test of longer texts: its moments, its tails, and what it takes for q."""

from __future__ import annotations

import pytest
import tiny
import torch
from scipy import stats
from test_check import PROMPTS, Liar, Repeat, fixed

import specwb
from specwb.core.probability import Sampling
from specwb.lab.evaluation.martingale import DIRECTIONS, TILTS, Sum, _add, martingale


def summed(p, q, known, y) -> dict[str, Sum]:
    """The sums over tokens ``y`` drawn from p, where q is known everywhere or nowhere."""
    sums = {name: Sum() for name in DIRECTIONS}
    _add(sums, p, q, torch.full(y.shape, known), y)
    return sums


def test_the_moments_are_those_of_the_target():
    """Texts of one token in proportion to p = (1/4, 1/4, 1/2): the sum is 0, and the others are
    four times a token's."""
    p = torch.tensor([0.25, 0.25, 0.5]).double().expand(4, 1, 3)
    q = torch.tensor([0.5, 0.25, 0.25]).double().expand(4, 1, 3)
    sums = summed(p, q, True, torch.tensor([[0], [1], [2], [2]]))
    assert all(one.total == pytest.approx(0, abs=1e-12) for one in sums.values())
    # 1[p < q] is a coin of 1/4; log q/p is log 2 times +1, 0, -1; log p is log 2 times -2, -2, -1;
    # the order is 1/8, 3/8, 3/4
    log2 = torch.tensor(2.0).double().log().item()
    assert sums["p < q"].variance == pytest.approx(4 * 3 / 16)
    assert sums["p < q"].third == pytest.approx(4 * 3 / 16 * 1 / 2)
    assert sums["log q / p"].variance == pytest.approx(4 * log2**2 * (3 / 4 - 1 / 16))
    assert sums["log p"].variance == pytest.approx(4 * log2**2 / 4)
    assert sums["order"].variance == pytest.approx(4 * (1 / 256 + 9 / 256 + 9 / 32 - 1 / 4))
    assert sums["pairs"].variance == 0


def test_pairs_are_of_tokens_that_follow_each_other():
    """p = (1/4, 3/4), q = (1/2, 1/2): d is 3/4 after token 0 and -1/4 after token 1."""
    p = torch.tensor([0.25, 0.75]).double().expand(1, 3, 2)
    q = torch.tensor([0.5, 0.5]).double().expand(1, 3, 2)
    sums = summed(p, q, True, torch.tensor([[0, 0, 1]]))
    assert sums["p < q"].total == pytest.approx(3 / 4 + 3 / 4 - 1 / 4)
    assert sums["pairs"].total == pytest.approx(9 / 16 - 3 / 16)
    assert sums["pairs"].variance == pytest.approx((9 / 16 + 9 / 16) * 3 / 16)


@pytest.mark.parametrize("mean", [0.05, 1.0, 8.0, 400.0])
def test_rare_events_are_no_false_alarm(mean):
    """S counts events of a Poisson distribution: the normal tail is too thin by orders of
    magnitude where few are expected."""
    law = stats.poisson(mean)
    counts = [k for k in range(1000) if law.pmf(k) > 1e-12]
    cumulants = mean * (torch.expm1(TILTS) - TILTS)
    pvalues = {k: Sum(k - mean, mean, mean, cumulants).pvalue for k in counts}
    for alarm in (1e-2, 1e-4, 1e-6):
        assert sum(law.pmf(k) for k in counts if pvalues[k] < alarm) < 2 * alarm
    assert Sum(10 * mean**0.5, mean, mean, cumulants).pvalue < (1e-2 if mean < 1 else 1e-5)


def test_without_a_draft_model_q_is_what_the_root_drew_from():
    """A drafter that claims a false q is found by what it claims."""
    target = tiny.target()
    settings = (PROMPTS, Sampling(1.0), 24, 100, 0)
    wrong = martingale(target, fixed(Liar()), *settings)
    assert wrong.failed
    assert wrong.tokens == 102 * 24
    right = martingale(target, fixed(Repeat()), *settings)
    assert not right.failed
    assert right.sums["p < q"].variance > 10
    assert martingale(target, specwb.method("ar", target), *settings).sums["p < q"].variance == 0
