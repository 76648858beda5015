"""``specwb.check`` passes what is right and sees what is wrong."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.verify import RRS, RRSw

PROMPTS = [[1, 2, 3], [5], [7, 8, 9, 10]]
ROWS = 600


class Repeat(specwb.Drafter):
    tree = specwb.Tree.chain(3)

    def propose(self, state, noise):
        return self.candidates(state, state.tokens.gather(1, (state.known - 1)[:, None]).expand(-1, 3))


class Liar(Repeat):
    """Says that its fixed tokens were drawn from a uniform q."""

    def law(self, sampling):
        return specwb.Law.IID

    def propose(self, state, noise):
        draft = super().propose(state, noise)
        q = torch.full((state.rows, 3, tiny.VOCABULARY), 1 / tiny.VOCABULARY)
        return specwb.Draft(draft.tree, draft.tokens, draft.valid, specwb.Law.IID, q, torch.tensor([[0, 1, 2, -1]]))


class Forgets(Repeat):
    """Reads one position of the other rows: right for a row alone."""

    def propose(self, state, noise):
        token = state.tokens[:, 0].sum() % tiny.VOCABULARY
        return self.candidates(state, token.expand(state.rows, 3))


class AlwaysFirst(RRSw):
    def node(self, p, q, tokens, ok, u):
        return super().node(p, q, tokens, ok, torch.zeros_like(u))


class ClosesWithP(RRSw):
    def node(self, p, q, tokens, ok, u):
        return super().node(p, q, tokens, ok, u)[0], p


def fixed(drafter, rule=None) -> specwb.Method:
    return specwb.Method("fixed", drafter, rule and rule(), specwb.Exactness.LOSSLESS)


@pytest.mark.parametrize("spec", ["ar", "sps:gamma=2", "mcsd:tree=3-2", "mcsd:draw=with"])
def test_methods_pass(spec):
    method = specwb.method(spec, tiny.target(), **({} if spec == "ar" else {"draft": tiny.draft()}))
    report = specwb.check(tiny.target(), method, PROMPTS, rows=ROWS)
    assert report.passed, report
    assert report.tokens == ROWS * 8
    assert "passed" in str(report)
    assert report.mean_tokens_per_round == pytest.approx(
        specwb.decode(tiny.target(), PROMPTS, method, max_new_tokens=8, eos=()).mean_tokens_per_round
    )


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_the_law_is_the_one_at_the_temperature(temperature):
    assert specwb.check(tiny.target(), fixed(Repeat()), PROMPTS, rows=ROWS, temperature=temperature).passed


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(lambda: fixed(Liar()), id="false q"),
        pytest.param(lambda: fixed(mcsd(), AlwaysFirst), id="always the first candidate"),
        pytest.param(lambda: fixed(mcsd(), ClosesWithP), id="closes with p"),
    ],
)
def test_a_wrong_law_is_seen(method):
    report = specwb.check(tiny.target(), method(), PROMPTS, rows=ROWS)
    assert report.greedy
    assert report.pvalue < 1e-6, report
    assert not report.passed
    assert "NO" in str(report)


def mcsd() -> specwb.Drafter:
    # a draft that is often wrong, so that rules have something to do
    return specwb.method("mcsd", tiny.target(), draft=tiny.draft("llama", 0.1), tree=(3, 2)).drafter


def test_a_wrong_greedy_text_is_seen(monkeypatch):
    method = specwb.method("sps", tiny.target(), draft=tiny.draft())
    real = specwb.models.target.Target.score

    def score(self, state, draft, *rest):
        scores = real(self, state, draft, *rest)
        if draft.tree.n > 1:  # not plain decoding
            scores.logits[:, 0, 3] += 100
        return scores

    monkeypatch.setattr(specwb.models.target.Target, "score", score)
    report = specwb.check(tiny.target(), method, PROMPTS, rows=3)
    assert not report.greedy
    assert not report.passed


def test_rows_that_look_at_each_other_are_seen():
    """Fixed candidates of any origin keep the law; what differs is which text a seed gives."""
    report = specwb.check(tiny.target(), fixed(Forgets()), PROMPTS, rows=30, max_new_tokens=40, temperature=0.7)
    assert report.greedy
    assert not report.batch
    assert not report.passed


def test_bad_arguments():
    for bad, message in (({"temperature": 0.0}, "temperature"), ({"rows": 0}, "rows must be >= 1")):
        with pytest.raises(ValueError, match=message):
            specwb.check(tiny.target(), "ar", PROMPTS, **bad)
    with pytest.raises(ValueError, match="list of prompts"):
        specwb.check(tiny.target(), "ar", "one text")
    with pytest.raises(specwb.MethodError):
        specwb.check(tiny.target(), "nothing", PROMPTS)


def test_rrs_for_candidates_without_replacement_is_refused_before_any_work():
    with pytest.raises(specwb.LawMismatch):
        specwb.check(tiny.target(), fixed(mcsd(), RRS), PROMPTS)
