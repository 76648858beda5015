"""Skipping work changes nothing: a rule that may read values decides as one that may not."""

from __future__ import annotations

import copy

import pytest
import tiny
import torch

import specwb
from specwb.flow import Verdict
from specwb.probability import Sampling
from specwb.verify import RULES, NodeRule, RRSw

LOPSIDED = specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)])
SPECS: dict[str, tuple[str, dict]] = {
    "rejection": ("sps", {"gamma": 4}),
    "rejection, chains of different lengths": ("sps", {"gamma": 4, "confidence": 0.3}),
    "rrsw": ("mcsd", {}),
    "rrsw lopsided": ("mcsd", {"tree": LOPSIDED}),
    "rrsw of repeats": ("mcsd:rule=rrsw", {"draw": "with"}),
    "rrs": ("mcsd", {"draw": "with"}),
    "rrs of paths": ("mcsd", {"tree": (4, 1, 1), "draw": "with"}),
    "naive": ("mcsd:rule=naive", {"draw": "with"}),
    "point": ("sps:rule=point", {"gamma": 4}),
    "point on a trie": ("lookahead", {"window": 3, "level": 3, "guesses": 4, "prompt": True}),
    "top": ("mcsd", {"draw": "top"}),
    "top lopsided": ("mcsd", {"tree": LOPSIDED, "draw": "top"}),
}
for name in ("block", "traversal", "kseq", "race", "gbv"):
    if name in RULES:
        tree, draw = ((4, 2, 2), "without") if name == "traversal" else ((3, 1, 1), "with")
        SPECS[name] = (
            (f"sps:rule={name}", {"gamma": 4})
            if name == "block"
            else (f"mcsd:rule={name}", {"tree": tree, "draw": draw})
        )


@pytest.mark.parametrize(("spec", "options"), SPECS.values(), ids=SPECS)
def test_a_lazy_rule_decides_alike(spec, options):
    seen = set()
    steps = specwb.rounds(
        tiny.target(),
        [[1, 2, 3, 1, 2, 4, 1, 3], [5, 6, 5, 6], [3]],
        spec,
        **({} if spec == "lookahead" else {"draft": tiny.draft()}),
        **options,
        max_new_tokens=24,
        temperature=1.0,
        seed=7,
        trace=True,
    )
    for step in steps:
        eager, lazy = copy.copy(step.rule), copy.copy(step.rule)
        eager.lazy, lazy.lazy = False, True
        a, b = (rule.verify(step.draft, step.scores, step.uniforms) for rule in (eager, lazy))
        assert torch.equal(a.accepted, b.accepted)
        assert torch.equal(step.draft.tokens.gather(1, a.path), step.draft.tokens.gather(1, b.path))
        torch.testing.assert_close(
            a.distribution / a.distribution.sum(1, keepdim=True),
            b.distribution / b.distribution.sum(1, keepdim=True),
            atol=1e-6,
            rtol=1e-5,
        )
        seen.update(a.accepted.tolist())
    assert len(seen) > 1 or spec == "lookahead"


def test_a_rule_of_ones_own_works_lazily():
    class Last(NodeRule):
        """The last child that is ok, if its uniform is under a half."""

        name = "last"
        schemes = frozenset(specwb.Scheme)

        def node(self, p, q, tokens, ok, u):
            index = torch.where(ok, torch.arange(tokens.shape[1]), -1).amax(1)
            return torch.where(
                u.gather(1, index.clamp_min(0)[:, None]).squeeze(1) < 0.5, index, -1
            ), p

    out = specwb.decode(
        tiny.target(),
        [[1, 2]],
        "mcsd",
        rule=Last,
        draft=tiny.draft(),
        max_new_tokens=20,
        temperature=1.0,
    )
    assert 1 < out.mean_tokens_per_step < 4


def test_a_subclass_decides_by_its_own_node():
    class Never(RRSw):
        def node(self, p, q, tokens, ok, u):
            return torch.full_like(tokens[:, 0], -1), p

    out = specwb.decode(
        tiny.target(),
        [[1, 2]],
        "mcsd",
        rule=Never,
        draft=tiny.draft(),
        max_new_tokens=20,
        temperature=1.0,
    )
    assert out.mean_tokens_per_step == 1


def test_a_subclass_that_walks_otherwise_is_not_walked_around():
    class Root(RRSw):
        def verify(self, draft, scores, u):
            at = torch.zeros_like(draft.tokens[:, 0])
            return Verdict(
                draft.tree.trail.expand(len(at), -1, -1)[:, 0], at, torch.empty(0), scores.p(at)
            )

    out = specwb.decode(
        tiny.target(),
        [[1, 2]],
        "mcsd",
        rule=Root,
        draft=tiny.draft(),
        max_new_tokens=20,
        temperature=1.0,
    )
    assert out.mean_tokens_per_step == 1


@pytest.mark.parametrize("rule", ["rejection", "block", "traversal"])
def test_a_round_without_a_draft(rule):
    class Nothing(specwb.Drafter):
        tree = specwb.Tree.chain(2)

        def scheme(self, sampling):
            return specwb.Scheme.IID

        def propose(self, state, noise):
            root = state.tokens.gather(1, (state.length - 1)[:, None])
            return specwb.Draft(
                specwb.Tree.chain(0),
                root,
                torch.ones_like(root, dtype=torch.bool),
                specwb.Scheme.IID,
            )

    method = specwb.Method("nothing", Nothing(), RULES[rule](), specwb.Exactness.LOSSLESS)
    for prompts in ([[1, 2]], [[1, 2], [3]] * 10):
        target, run = tiny.target(dtype=tiny.EXACT), {"max_new_tokens": 4, "temperature": 1.0}
        out = specwb.decode(target, prompts, method, **run)
        assert out.tokens == specwb.decode(target, prompts, **run).tokens


def test_wide_rows_are_cut_like_narrow_ones():
    """Drawing by blocks is drawing by cumulation: it gives the same token but where u is within
    rounding of an edge, and never one of probability 0."""
    from specwb.probability import BLOCK, WIDE, inverse_cdf

    torch.manual_seed(1)
    for v in (WIDE, WIDE + BLOCK, 50257):
        p = Sampling(0.3, top_k=40).probabilities(3 * torch.randn(64, v))
        p[0], p[1] = 0, 0
        p[0, v - 1], p[1, 0] = 1, 1
        p[2] = torch.rand(v)
        ends = torch.tensor([1 - 2.0**-33, 2.0**-33], dtype=torch.float64)
        for u in (torch.rand(64, dtype=torch.float64), *ends[:, None].expand(-1, 64)):
            drawn = inverse_cdf(p, u)
            assert bool((p.gather(1, drawn[:, None]) > 0).all())
            cdf = p.double().cumsum(1)
            at, before = (
                cdf.gather(1, drawn[:, None]).squeeze(1),
                (cdf - p).gather(1, drawn[:, None]).squeeze(1),
            )
            total = cdf[:, -1]
            assert bool((before <= u * total + 1e-4 * total).all())
            assert bool((at >= u * total - 1e-4 * total).all())
        grid = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
        frequencies = torch.bincount(inverse_cdf(p[3].expand(2000, v), grid), minlength=v) / 2000
        assert float((frequencies - p[3]).abs().max()) <= 1.01 / 2000
