"""``specwb.check`` passes right methods and sees what is wrong with others."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import tiny
import torch

import specwb
from specwb.lab.evaluation.joint import (
    AGAIN,
    ALARM,
    AT_ONCE,
    DOUBT,
    StatisticalTest,
    beginnings,
    decided,
)
from specwb.lab.evaluation.martingale import Martingale, Sum
from specwb.rules import RRSw

PROMPTS = [[1, 2, 3], [5], [7, 8, 9, 10]]
ROWS = 600


class Repeat(specwb.Drafter):
    tree = specwb.Tree.chain(3)

    def propose(self, state, noise):
        return self.candidates(
            state, state.tokens.gather(1, (state.length - 1)[:, None]).expand(-1, 3)
        )


class Liar(Repeat):
    """Claims that its fixed tokens were drawn from a uniform q."""

    def scheme(self, sampling):
        return specwb.Scheme.IID

    def propose(self, state, noise):
        q = torch.full((state.rows, 3, tiny.VOCABULARY), 1 / tiny.VOCABULARY)
        claim = {"scheme": specwb.Scheme.IID, "q": q, "q_row": torch.tensor([[0, 1, 2, -1]])}
        return replace(super().propose(state, noise), **claim)


class Forgets(Repeat):
    """Reads one position of the other rows too, which is right only for a row alone."""

    def propose(self, state, noise):
        token = state.tokens[:, 0].sum() % tiny.VOCABULARY
        return self.candidates(state, token.expand(state.rows, 3))


def fixed(drafter, rule=None) -> specwb.Method:
    return specwb.Method("fixed", drafter, rule and rule(), specwb.Exactness.LOSSLESS)


@cache
def small() -> tuple[specwb.Target, specwb.Target]:
    """A vocabulary that the joint test takes whole, and a draft that is often wrong."""
    return tiny.pair(0.4, 7, vocabulary=5)


SMALL = [[1, 4, 2], [0], [3, 3, 1, 2]]


@pytest.mark.parametrize("spec", ["ar", "sps:gamma=2", "mcsd:tree=3-2", "mcsd:draw=with"])
def test_methods_pass(spec):
    options = {} if spec == "ar" else {"draft": tiny.draft()}
    method = specwb.method(spec, tiny.target(), **options)
    report = specwb.check(tiny.target(), method, PROMPTS, rows=ROWS)
    assert report.passed, report
    assert report.joint.texts == ROWS
    assert report.later.texts == ROWS // 4
    assert report.martingale.tokens == ROWS // 8 * 24
    assert report.joint.freedom > 20
    assert 0.05 < report.joint.sees < 0.3
    assert "passed" in str(report)
    greedy = specwb.decode(tiny.target(), PROMPTS, method, max_new_tokens=8, eos=())
    assert report.mean_tokens_per_step == pytest.approx(greedy.mean_tokens_per_step)


def test_a_false_q_is_seen():
    report = specwb.check(tiny.target(), fixed(Liar()), PROMPTS, rows=ROWS)
    assert (report.greedy, report.passed) == (True, False)
    assert report.pvalue < 1e-6, report
    assert "NO" in str(report)


@pytest.mark.parametrize("wrong", [False, True])
def test_what_is_verified_in_part_is_checked_on_any_machine(wrong, monkeypatch):
    """Drafts are cut at a price, and admitting a token by its own probability is seen."""
    method = specwb.method("sps:gamma=3,verify=auto", tiny.target(), draft=tiny.draft())
    kind, cut = type(method.drafter), 0
    propose, admitted = type(method.drafter.behind).propose, kind._admitted

    def own(self, state, noise):
        draft = propose(self, state, noise)
        if draft.q is not None:
            below = draft.q.gather(2, draft.tokens[:, 1:, None])[..., 0]
            draft.confidence = torch.cat([draft.confidence[:, :1], below], 1)
        return draft

    def counted(self, state, full, *more):
        nonlocal cut
        draft = admitted(self, state, full, *more)
        cut += 0 < self.count < self.rows * full.tree.D and not self.probe
        return draft

    monkeypatch.setattr(kind, "_admitted", counted)
    if wrong:
        monkeypatch.setattr(type(method.drafter.behind), "propose", own)
    report = specwb.check(tiny.target(), method, PROMPTS, rows=ROWS)
    assert report.passed != wrong, report
    assert (report.greedy, report.batch) == (True, None)
    assert cut > 5


@dataclass(frozen=True)
class Drawn(StatisticalTest):
    """A test with some p-value."""

    value: float

    @property
    def own(self) -> float:
        return self.value


def test_two_runs_have_one_p_value_which_is_uniform():
    """P(p < x) = x below the p-value that decides, and above. Those of the first run are drawn
    below 2 DOUBT, so that the interesting ones are many."""
    rng = np.random.default_rng(0)

    def run(rows: int, seed: int) -> Drawn:
        return Drawn(float(rng.random()) * (2 * DOUBT if rows == 1 else 1))

    tests = [decided(run, 1, 0) for _ in range(20_000)]
    assert 0.45 < np.mean([test.first is not None for test in tests]) < 0.55
    for x in (10 * ALARM, DOUBT / 2, DOUBT, 1.5 * DOUBT):
        share, expected = np.mean([test.pvalue < x for test in tests]), x / (2 * DOUBT)
        assert abs(share - expected) < 4 * (expected / 20_000) ** 0.5
    assert pytest.approx(ALARM) == AT_ONCE + (DOUBT - AT_ONCE) * AGAIN


def test_beginnings_are_the_texts_and_their_probabilities():
    target, _ = small()
    texts = beginnings(target, [1, 4, 2], specwb.Sampling(1.0), 3)
    assert len(texts) == 125
    assert sum(texts.values()) == pytest.approx(1)
    text = (3, 0, 1)
    p = tiny.forward(target.model, [1, 4, 2, *text]).double().softmax(-1)
    assert texts[text] == pytest.approx(float(p[2, 3] * p[3, 0] * p[4, 1]), rel=1e-5)
    assert len(beginnings(target, [1, 4, 2], specwb.Sampling(1.0, 2), 3)) == 8
    with pytest.raises(ValueError, match="more than 4096 texts"):
        specwb.check(tiny.target(), "ar", PROMPTS, top_k=0, rows=3)


def test_texts_that_rounding_decides_on_are_not_told_apart(monkeypatch):
    """Where two logits are equal at the rank where top_k cuts, their texts are one cell."""
    target, _ = small()
    copied = copy.deepcopy(target.model)
    with torch.no_grad():
        copied.lm_head.weight[1:] = copied.lm_head.weight[1]  # one token, and four that are alike
    alike = specwb.load(copied)
    assert set(beginnings(alike, [1], specwb.Sampling(1.0, 3), 3)) == {()}
    report = specwb.check(alike, "ar", [[1], [2]], rows=64)
    assert "not decided, 64 texts are too few" in str(report)
    assert not report.passed
    # rounding also decides what a row alone is; where all that was tested is right, nothing failed
    undecided = replace(report, batch=True)
    assert str(undecided).startswith("ar: not decided\n")
    assert not undecided.passed
    drift = Martingale({"log p": Sum(10.0, 1.0, 0.0)}, 1)
    for wrong in ({"greedy": False}, {"batch": False}, {"martingale": drift}):
        assert str(replace(undecided, **wrong)).startswith("ar: FAILED\n")
    assert not report.passed


def test_a_text_that_the_target_cannot_write_is_named():
    target, draft = small()

    class Anything(RRSw):
        def node(self, p, q, tokens, ok, u):
            return super().node(p, q, tokens, ok, u)[0], torch.ones_like(p)

    report = specwb.check(
        target, "sps:gamma=2", SMALL, draft=draft, rule=Anything, rows=60, top_k=2
    )
    assert report.joint.pvalue == 0
    assert "cannot write" in str(report)


def test_a_wrong_greedy_text_is_seen(monkeypatch):
    method = specwb.method("sps", tiny.target(), draft=tiny.draft())
    original = specwb.models.target.Target.score

    def score(self, state, draft, *rest):
        scores = original(self, state, draft, *rest)
        if draft.tree.n > 1:  # not plain decoding
            scores.logits[:, 0, 3] += 100
        return scores

    monkeypatch.setattr(specwb.models.target.Target, "score", score)
    report = specwb.check(tiny.target(), method, PROMPTS, rows=3)
    assert (report.greedy, report.passed) == (False, False)


def test_rows_that_look_at_each_other_are_seen():
    """Fixed candidates of any origin keep the distribution; the text of a seed differs."""
    report = specwb.check(
        tiny.target(), fixed(Forgets()), PROMPTS, rows=30, max_new_tokens=40, temperature=0.7
    )
    assert (report.greedy, report.batch, report.passed) == (True, False, False)


def test_bad_arguments():
    for bad, message in (
        ({"temperature": 0.0}, "must be >= 0.0001"),
        ({"temperature": 1e-9}, "must be >= 0.0001"),
        ({"temperature": float("nan")}, "must be a number"),
        ({"rows": 0}, "rows must be >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            specwb.check(tiny.target(), "ar", PROMPTS, **bad)
    with pytest.raises(ValueError, match="list of prompts"):
        specwb.check(tiny.target(), "ar", "one text")
    with pytest.raises(specwb.MethodError):
        specwb.check(tiny.target(), "nothing", PROMPTS)
