"""A rule of a user's own decides by its own node and walk, a step may have no draft, and improved
MCSD's own rule is LOSSY."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.core.flow import Verdict
from specwb.rules import RULES, NodeRule, RRSw


class Last(NodeRule):
    """The last child that is ok, if its uniform is under a half."""

    name = "last"
    schemes = frozenset(specwb.Scheme)

    def node(self, p, q, tokens, ok, u):
        index = torch.where(ok, torch.arange(tokens.shape[1]), -1).amax(1)
        under = u.gather(1, index.clamp_min(0)[:, None]).squeeze(1) < 0.5
        return torch.where(under, index, -1), p


class Never(RRSw):
    def node(self, p, q, tokens, ok, u):
        return torch.full_like(tokens[:, 0], -1), p


class Root(RRSw):
    def verify(self, draft, scores, u):
        at = torch.zeros_like(draft.tokens[:, 0])
        path = draft.tree.trail.expand(len(at), -1, -1)[:, 0]
        return Verdict(path, at, torch.empty(0), scores.p(at))


@pytest.mark.parametrize(("rule", "least", "most"), [(Last, 1.05, 4), (Never, 1, 1), (Root, 1, 1)])
def test_a_rule_of_ones_own_decides_by_its_own_node_and_walk(rule, least, most):
    how = {"draft": tiny.draft(), "max_new_tokens": 20, "temperature": 1.0}
    out = specwb.decode(tiny.target(), [[1, 2]], "mcsd", rule=rule, **how)
    assert least <= out.mean_tokens_per_step <= most


class Nothing(specwb.Drafter):
    tree = specwb.Tree.chain(2)

    def scheme(self, sampling):
        return specwb.Scheme.IID

    def propose(self, state, noise):
        root = state.tokens.gather(1, (state.length - 1)[:, None])
        valid = torch.ones_like(root, dtype=torch.bool)
        return specwb.Draft(specwb.Tree.chain(0), root, valid, specwb.Scheme.IID)


@pytest.mark.parametrize("rule", ["rejection", "block", "traversal"])
def test_a_round_without_a_draft(rule):
    method = specwb.Method("nothing", Nothing(), RULES[rule](), specwb.Exactness.LOSSLESS)
    for prompts in ([[1, 2]], [[1, 2], [3]] * 10):
        target, run = tiny.target(dtype=tiny.EXACT), {"max_new_tokens": 4, "temperature": 1.0}
        out = specwb.decode(target, prompts, method, **run)
        assert out.tokens == specwb.decode(target, prompts, **run).tokens


def test_independent_is_lossy_and_its_greedy_text_is_that_of_the_longest():
    several = {"draft": tiny.draft(), "roots": 2, "tree": (2, 1), "lossy": True, "stop": "none"}
    target = tiny.target(dtype=torch.float64)
    one = specwb.method("mcsd", target, draft=tiny.draft(), tree=(2, 1), rule="independent")
    published = specwb.method("mcsd_ti", target, rule="independent", **several)
    repaired = specwb.method("mcsd_ti", target, **several)
    assert one.exactness is published.exactness is specwb.Exactness.LOSSY
    prompts = tiny.PROMPTS[:2]

    def texts(method, temperature=0.0):
        how = {"max_new_tokens": 12, "temperature": temperature, "seed": 1}
        return specwb.decode(target, prompts, method, **how).tokens

    assert texts(one) == texts("ar")
    assert texts(published) == texts(repaired)
    assert [len(text) for text in texts(published, 1.0)] == [12, 12]
    with pytest.raises(specwb.RuleMismatch, match="'independent' is made for"):
        specwb.method("mcsd", target, draft=tiny.draft(), draw="greedy", rule="independent")
