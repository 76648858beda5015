"""A model that says NaN is not decoded on as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch

import specwb
from specwb.core.flow import Draft, InvalidDistribution, Scheme, Scores
from specwb.rules import RULES, Greedy, Longest
from specwb.theory.decisions import all_drafts
from specwb.theory.instances import models

PATHS = [
    *[f"mcsd:tree=2-1,draw=with,rule={rule}" for rule in ("gbv", "race", "kseq", "traversal")],
]


def decoded(spec: str, rescore=None, prompts=tiny.PROMPTS, noise: float = 0.02, **how) -> list:
    """The text, where ``rescore(state, draft, logits)`` returns other logits."""

    def change(state, draft, scores):
        return replace(scores, logits=rescore(state, draft, scores.logits))

    own = {} if spec == "ar" else {"draft": tiny.draft(noise=noise)}
    how = {"temperature": 1.0, **own, **how, "rescore": change if rescore else None}
    return specwb.decode(tiny.target(), prompts, spec, **how).tokens


@pytest.mark.parametrize("value", [float("nan"), float("-inf")], ids=["nan", "no mass"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "spec", ["ar", "sps", "mcsd", "mcsd:draw=top", "sps:rule=block", "mcsd:rule=traversal", *PATHS]
)
def test_one_message(spec, temperature, value):
    seen = []

    def third(state, draft, logits):
        seen.append(1)
        return torch.full_like(logits, value) if len(seen) == 3 else logits

    with pytest.raises(InvalidDistribution, match="NaN or sum to 0"):
        decoded(spec, third, max_new_tokens=30, temperature=temperature)
    assert len(seen) == 3


@pytest.mark.parametrize("spec", ["mcsd", *PATHS])
def test_a_row_that_has_finished_may_be_anything(spec):
    """What lies beyond a row's end is computed and not looked at."""

    def beyond(state, draft, logits):
        return torch.where(state.done[:, None, None], float("nan"), logits)

    settings = {"max_new_tokens": [2, 20, 9], "seed": 3}
    assert decoded(spec, beyond, **settings) == decoded(spec, **settings)


# ------------------------------------------------------------ every rule, every node, every value

TREES = {"chain": (-1, 0, 1, 2), "paths": (-1, 0, 0, 1, 2), "tree": (-1, 0, 0, 1, 1, 2)}
SWEEP = [
    *[(name, "IID", "chain") for name in ("rejection", "block", "traversal")],
    *[
        (name, "IID", "tree")
        for name in ("rrs", "rrsw", "kseq", "race", "naive", "traversal", "typical")
    ],
    ("rrsw", "WITHOUT_REPLACEMENT", "tree"),
    ("race", "WITHOUT_REPLACEMENT", "tree"),
    ("traversal", "WITHOUT_REPLACEMENT", "tree"),
    *[(name, "IID_PATHS", "paths") for name in ("rrs", "rrsw", "kseq", "race", "traversal", "gbv")],
    ("top", "TOP_AND_SAMPLE", "tree"),
    ("point", "POINT", "tree"),
    ("typical", "POINT", "tree"),
    ("longest", "ROOTS", "paths"),
    ("longest, greedy", "ROOTS", "paths"),
    ("independent", "ROOTS", "paths"),
    ("independent", "WITHOUT_REPLACEMENT", "tree"),
    ("greedy", "IID", "chain"),
    ("greedy", "WITHOUT_REPLACEMENT", "tree"),
]


def test_the_sweep_has_every_rule():
    assert {name.partition(",")[0] for name, *_ in SWEEP} == {*RULES, "greedy"}


def rounds_of(scheme: str, tree: specwb.Tree, count: int) -> tuple[Draft, Scores]:
    """Drafts of the tree, of two dense and two difficult pairs of models over two tokens."""
    alike = {"ROOTS": Scheme.WITHOUT_REPLACEMENT}
    pairs = [models(seed, 2, kind) for seed in (0, 1) for kind in ("dense", "any")]
    every = all_drafts(alike.get(scheme, Scheme[scheme]), tree, pairs)
    rows = torch.linspace(0, len(every.case) - 1, count).long()
    draft = replace(part(every.draft, rows), scheme=Scheme[scheme])
    return draft, Scores(every.scores.logits[rows], every.scores.sampling)


def part(draft: Draft, rows) -> Draft:
    q = None if draft.q is None else draft.q[rows]
    return replace(draft, tokens=draft.tokens[rows], valid=draft.valid[rows], q=q)


@pytest.mark.parametrize(
    ("name", "scheme", "shape", "lazy"),
    [
        (*case, lazy)
        for case in SWEEP
        for lazy in (False, True)
        if not (lazy and case[0] in ("race", "kseq"))
    ],  # no form of their own for one row
)
def test_every_rule_says_what_it_met(name, scheme, shape, lazy):
    """A broken row at one node, whichever: the closing distribution is none, or the round is the
    same as without it. On the way that was taken it is never the same."""
    tree = specwb.Tree.parents(list(TREES[shape]))
    count, few = (24, 12) if lazy else (150, 150)  # few rows are verified one by one
    draft, scores = rounds_of(scheme, tree, count)
    rule = {"greedy": Greedy(), "longest, greedy": Longest(True)}.get(name) or RULES[name]()
    rule.lazy = lazy
    shape = count, rule.uniforms(tree.limits)
    u = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    least = -torch.inf if "greedy" in name else 0

    def verified(logits):
        found = []
        for rows in (slice(i, i + few) for i in range(0, count, few)):
            some = Scores(logits[rows], scores.sampling)
            verdict = rule.verify(part(draft, rows), some, u[rows])
            bonus = verdict.next_distribution
            bonus = verdict.distribution if bonus is None else bonus
            last = verdict.path.gather(1, verdict.accepted[:, None]).squeeze(1)
            if bonus is None:  # greedy: what the engine looks at
                bonus = logits[rows][torch.arange(len(last)), last, verdict.bonus][:, None]
            found.append((verdict.path, verdict.accepted, bonus, bonus.amax(1)))
        path, accepted, bonus, most = (torch.cat(x) for x in zip(*found))
        return path, accepted, bonus, ~(most.isfinite() & (most > least))

    trail = tree.trail.expand(count, -1, -1)
    words = draft.tokens.gather(1, trail.flatten(1)).view_as(trail)
    path, accepted, bonus, broken = verified(scores.logits)
    assert not bool(broken.any())
    seen = 0
    for node in range(tree.n):
        # equal paths have equal rows, and a rule may read any of them
        equal = (words == words[:, node : node + 1]).all(-1)
        equal = (equal & (tree.depth == tree.depth[:, node : node + 1]))[:, :, None]
        for value in (torch.nan, torch.inf, -torch.inf):
            where = equal & (torch.arange(2) == 1) if value == torch.inf else equal
            p, a, c, error = verified(torch.where(where, value, scores.logits))
            close = ((c == bonus) | ((c - bonus).abs() < 1e-9)).all(1)
            same = (a == accepted) & (p == path).all(1) & close
            assert bool((error | same).all()), (node, value)
            taken = (path == node).any(1)  # repeats of the last node included
            # of the pending token, scored before, and of what stays there is nothing to say
            if scheme == "ROOTS":
                taken = taken & torch.tensor(node > 0) & (accepted >= 0)
            assert bool(error[taken].all()), (node, value)
            seen += int(error.sum())
    assert seen > count // 2


def test_roots_that_were_broken_ahead_are_an_error(monkeypatch):
    """Several roots: what comes after the closing token has been scored already, and is drawn from
    in the next round."""
    method = specwb.method(
        "mcsd_ti", tiny.target(), draft=tiny.draft(), roots=2, tree=(1, 1), lossy=True, stop="none"
    )
    real, calls = specwb.Target.score, []

    def score(self, state, draft, *rest):
        scores = real(self, state, draft, *rest)
        calls.append(1)
        if len(calls) == 4:
            scores.logits[:, 1:] = torch.nan
        return scores

    monkeypatch.setattr(specwb.Target, "score", score)
    for temperature in (0.0, 1.0):
        calls.clear()
        how = {"max_new_tokens": 30, "temperature": temperature, "eos": ()}
        with pytest.raises(InvalidDistribution):
            specwb.decode(tiny.target(), [[1, 2, 3]], method, **how)
        assert len(calls) == 4
