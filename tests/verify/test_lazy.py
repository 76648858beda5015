"""Skipping work changes nothing: a rule that may read values decides as one that may not."""

from __future__ import annotations

import copy

import pytest
import tiny
import torch

import specwb
from specwb.flow import Verdict
from specwb.probability import BLOCK, WIDE, Sampling, inverse_cdf
from specwb.verify import RULES, NodeRule, RRSw

LOPSIDED = specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)])
PATHS = {"tree": (3, 1, 1), "draw": "with"}
TRIE = {"window": 3, "level": 3, "guesses": 4, "prompt": True}
SPECS: list[tuple[str, dict]] = [
    ("sps", {"gamma": 4}),
    ("sps", {"gamma": 4, "confidence": 0.3}),  # chains of different lengths
    ("mcsd", {}),
    ("mcsd", {"tree": LOPSIDED}),
    ("mcsd:rule=rrsw", {"draw": "with"}),
    ("mcsd", {"draw": "with"}),
    ("mcsd", {"tree": (4, 1, 1), "draw": "with"}),
    ("mcsd:rule=naive", {"draw": "with"}),
    ("sps:rule=point", {"gamma": 4}),
    ("lookahead", TRIE),
    ("mcsd", {"draw": "top"}),
    ("mcsd", {"tree": LOPSIDED, "draw": "top"}),
    ("sps:rule=block", {"gamma": 4}),
    ("mcsd:rule=traversal", {"tree": (4, 2, 2)}),
    *((f"mcsd:rule={rule}", PATHS) for rule in ("kseq", "race", "gbv")),
]


@pytest.mark.parametrize(("spec", "options"), SPECS)
def test_a_lazy_rule_decides_alike(spec, options):
    """In whole decodings, whose drafts are those of the methods."""
    prompts, seen = [[1, 2, 3, 1, 2, 4, 1, 3], [5, 6, 5, 6], [3]], set()
    options = options if spec == "lookahead" else {**options, "draft": tiny.draft()}
    how = {"max_new_tokens": 24, "temperature": 1.0, "seed": 7, "trace": True}
    for step in specwb.rounds(tiny.target(), prompts, spec, **options, **how):
        rules = copy.copy(step.rule), copy.copy(step.rule)
        rules[0].lazy, rules[1].lazy = False, True
        a, b = (rule.verify(step.draft, step.scores, step.uniforms) for rule in rules)
        assert torch.equal(a.accepted, b.accepted)
        assert torch.equal(step.draft.tokens.gather(1, a.path), step.draft.tokens.gather(1, b.path))
        one, other = (x.distribution / x.distribution.sum(1, keepdim=True) for x in (a, b))
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
        seen.update(a.accepted.tolist())
    assert len(seen) > 1 or spec == "lookahead"


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


def test_wide_rows_are_cut_like_narrow_ones():
    """Drawing by blocks is drawing by cumulation: it gives the same token but where u is within
    rounding of an edge, and never one of probability 0."""
    torch.manual_seed(1)
    for v in (WIDE, WIDE + BLOCK, 50257):
        p = Sampling(0.3, top_k=40).probabilities(3 * torch.randn(64, v))
        p[0], p[1] = 0, 0
        p[0, v - 1], p[1, 0] = 1, 1
        p[2] = torch.rand(v)
        ends = torch.tensor([1 - 2.0**-33, 2.0**-33], dtype=torch.float64)
        cdf = p.double().cumsum(1)
        for u in (torch.rand(64, dtype=torch.float64), *ends[:, None].expand(-1, 64)):
            drawn = inverse_cdf(p, u)[:, None]
            assert bool((p.gather(1, drawn) > 0).all())
            at, before = (x.gather(1, drawn).squeeze(1) / cdf[:, -1] for x in (cdf, cdf - p))
            assert bool((before - 1e-4 <= u).all() & (u <= at + 1e-4).all())
        grid = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
        frequencies = torch.bincount(inverse_cdf(p[3].expand(2000, v), grid), minlength=v) / 2000
        assert float((frequencies - p[3]).abs().max()) <= 1.01 / 2000
