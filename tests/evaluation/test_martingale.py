"""The martingale test of longer texts: its moments, its tails, and what it takes for q."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from scipy import stats
from test_check import PROMPTS, Liar, Repeat, fixed

import specwb
from specwb.core.probability import Sampling
from specwb.lab.evaluation.martingale import DIRECTIONS, TILTS, Sum, _add, _root, martingale


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


def test_one_rare_large_step_among_small_ones_is_no_false_alarm():
    """p = (.49, .51 - r, r), r = 1e-7: the third token comes once in 3,072 tokens with probability
    3.1e-4, and neither the variance nor the skewness tells of it."""
    p = torch.tensor([0.49, 0.51 - 1e-7, 1e-7]).double().expand(128, 24, 3)
    y = torch.arange(128 * 24).view(128, 24) % 2
    y[5, 7] = 2
    sums = summed(p, p, False, y)
    assert sums["log p"].approximate < 1e-6
    assert sums["log p"].pvalue > 3e-4


def test_a_peaked_target_gives_no_false_alarms():
    """Texts drawn from a Markov chain with a few likely tokens, whose pairs are a mixture of many
    small steps and rare large ones: by the approximate tails 12 of 6,000 such tests failed."""
    rng = np.random.default_rng(4)
    p = torch.tensor(rng.dirichlet([0.03] * 8, size=8))
    q = torch.tensor(rng.dirichlet([0.3] * 8, size=8))
    generator = torch.Generator().manual_seed(0)
    runs, texts, length = 400, 32, 24
    y = torch.zeros(runs * texts, length + 1, dtype=torch.long)
    for t in range(length):
        y[:, t + 1] = torch.multinomial(p[y[:, t]], 1, generator=generator)[:, 0]
    small = 0
    for run in y.view(runs, texts, length + 1):
        before, after = run[:, :-1], run[:, 1:]
        sums = summed(p[before], q[before], True, after)
        small += min(5 * one.pvalue for one in sums.values()) < 1e-3
    assert small <= 2  # .4 expected


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


class Two(Repeat):
    """Two fixed candidates for the next token, the second only after an even one."""

    tree = specwb.Tree.branching(2)

    def propose(self, state, noise):
        last = state.tokens.gather(1, (state.length - 1)[:, None])
        tokens = torch.cat([last, (last + 1) % tiny.VOCABULARY], 1)
        return self.candidates(state, tokens, torch.cat([last >= 0, last % 2 == 0], 1))


def roots(method: specwb.Method, temperature: float = 1.0):
    step = next(
        specwb.rounds(tiny.target(), PROMPTS, method, max_new_tokens=4, temperature=temperature)
    )
    return step.draft, *_root(step.draft, tiny.VOCABULARY)


def test_the_distribution_of_the_roots_children():
    _, q, there = roots(fixed(Two()))
    assert there.all()
    for row, prompt in zip(q, PROMPTS, strict=True):
        last = prompt[-1]
        wanted = torch.zeros(tiny.VOCABULARY).double()
        wanted[last] = 1.0
        if last % 2 == 0:
            wanted[[last, last + 1]] = 0.5
        assert torch.equal(row, wanted)
    draft, q, there = roots(specwb.method("sps:gamma=2", tiny.target(), draft=tiny.draft()))
    assert there.all()
    torch.testing.assert_close(q.float(), draft.q[:, 0])
