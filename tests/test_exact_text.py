"""Exact text: its distribution, its acceptance, and its bits in float32. That every method writes
it is tested in tests/test_protocol.py."""

from __future__ import annotations

import pytest
import tiny
import torch
from scipy import stats

import specwb
from specwb.core.flow import Draft, Scheme, Scores
from specwb.core.noise import Noise, row_seeds
from specwb.core.probability import Sampling
from specwb.core.tree import Tree
from specwb.rules import Greedy
from specwb.theory.analysis import exact_text_rate

ROWS = 3000


@pytest.mark.parametrize(("temperature", "top_p"), [(0.6, 1.0), (1.0, 0.8)])
def test_first_tokens_have_the_targets_distribution(temperature, top_p):
    target, prompt = tiny.target(), [1, 2, 3]
    p = tiny.forward(target.model, prompt)[-1].double().softmax(-1)
    settings = {"temperature": temperature, "top_p": top_p, "exact_text": True}
    out = specwb.decode(target, [prompt] * ROWS, "ar", max_new_tokens=1, seed=7, **settings)
    counts = torch.bincount(torch.tensor(out.tokens)[:, 0], minlength=tiny.VOCABULARY)
    p = Sampling(temperature, top_p=top_p).probabilities(p.log())
    assert not counts[p == 0].any()
    few = p * ROWS < 5
    seen = torch.cat([counts[~few], counts[few].sum()[None]])
    wanted = torch.cat([p[~few], p[few].sum()[None]]) * ROWS
    keep = wanted > 0
    assert stats.chisquare(seen[keep], wanted[keep]).pvalue > 1e-3


P = torch.tensor([0.45, 0.3, 0.15, 0.06, 0.04, 0.0], dtype=torch.float64)
Q = torch.tensor([0.1, 0.25, 0.25, 0.3, 0.0, 0.1], dtype=torch.float64)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_first_arrivals_are_accepted_with_their_rate(k):
    """Theorem 7.8, by the tensors that decode: logits of one node for many rows of seeds."""
    rows = 40_000
    noise = Noise(row_seeds(3, rows, torch.device("cpu")), {}, 1)
    gumbel = noise.gumbel(torch.full((rows, 2), 5) + torch.arange(2), len(P))
    tokens = (Q.log() + gumbel[:, 0]).topk(k, -1).indices
    tokens = torch.cat([torch.zeros_like(tokens[:, :1]), tokens], 1)
    tree = Tree.branching(k)
    draft = Draft(tree, tokens, torch.ones_like(tokens, dtype=torch.bool), Scheme.POINT)
    sampling = Sampling(1.0, exact_text=True)
    scores = Scores(P.log().expand(rows, k + 1, -1), sampling)
    scores.perturb(tree, gumbel)
    accepted = Greedy().verify(draft, scores).accepted
    rate = float(exact_text_rate(P, Q, k))
    assert abs(float(accepted.double().mean()) - rate) < 4 * (rate * (1 - rate) / rows) ** 0.5


def test_in_float32_too_where_rows_have_one_rounding():
    """The compiled pass gives a node of a tree the bits of its path (theorem 8.10)."""
    target, draft = tiny.target("llama"), tiny.draft("llama")
    settings = {"temperature": 1.3, "exact_text": True, "max_new_tokens": 40, "eos": ()}
    prompts, seeds = tiny.PROMPTS, [1, 2, 3]
    wanted = specwb.decode(target, prompts, "ar", seed=seeds, **settings).tokens
    for spec in ("sps", "mcsd:tree=3-2-1"):
        method = specwb.method(spec, target, draft=draft)
        assert specwb.decode(target, prompts, method, seed=seeds, **settings).tokens == wanted
        for prompt, seed, text in zip(prompts, seeds, wanted):
            alone = specwb.decode(target, prompt, method, seed=[seed], **settings)
            assert alone.tokens == [text]


def test_an_explained_step_shows_the_noise_decide():
    target = tiny.target()
    method = specwb.method("mcsd:tree=2-2", target, draft=tiny.draft())
    settings = {"temperature": 1.0, "exact_text": True, "max_new_tokens": 12, "trace": True}
    for step in specwb.rounds(target, [1, 2, 3], method, **settings):
        found = specwb.explain(step)
        kept = [level.accepted.token for level in found.levels if level.accepted]
        assert len(kept) >= int(step.verdict.accepted[0])
        assert {test.p for level in found.levels for test in level.tests} <= {0.0, 1.0}
