"""A model that says NaN is not decoded on as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch

import specwb
from specwb.flow import Draft, InvalidDistribution, Scheme, Scores
from specwb.probability import Sampling
from specwb.verify import RULES, Greedy, Longest
from specwb.verify.distribution import all_drafts
from specwb.verify.instances import models

PATHS = [
    "mcsd:tree=2-1,draw=coupled",
    *[f"mcsd:tree=2-1,draw=with,rule={rule}" for rule in ("gbv", "race", "kseq", "traversal")],
]


@pytest.mark.parametrize("value", [float("nan"), float("-inf")], ids=["nan", "no mass"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "spec", ["ar", "sps", "mcsd", "mcsd:draw=top", "sps:rule=block", "mcsd:rule=traversal", *PATHS]
)
def test_one_message(spec, temperature, value):
    seen = []

    def rescore(state, draft, scores):
        seen.append(int(state.length.max()))
        return (
            replace(scores, logits=torch.full_like(scores.logits, value))
            if len(seen) == 3
            else scores
        )

    own = {} if spec == "ar" else {"draft": tiny.draft()}
    loop = specwb.rounds(
        tiny.target(),
        tiny.PROMPTS,
        spec,
        **own,
        max_new_tokens=30,
        temperature=temperature,
        rescore=rescore,
    )
    steps = []
    with pytest.raises(InvalidDistribution, match="NaN or sum to 0"):
        steps.extend(loop)
    assert len(seen) == 3


@pytest.mark.parametrize("spec", ["sps", "sps:rule=block", "mcsd", "mcsd:rule=traversal", *PATHS])
def test_nan_at_a_node_on_the_way(spec):
    """Rows with NaN at one drafted node: an error if the walk came there, otherwise the text is as
    it was."""
    settings = {
        "draft": tiny.draft(noise=0),
        "max_new_tokens": 12,
        "temperature": 1.0,
        "seed": 1,
        "eos": (),
    }
    whole = specwb.decode(tiny.target(), [[1, 2, 3]], spec, **settings)
    broke = 0
    for node in range(1, 4):

        def rescore(state, draft, scores, node=node):
            logits = scores.logits.clone()
            logits[:, node % logits.shape[1]] = float("nan")
            return replace(scores, logits=logits)

        try:
            assert (
                specwb.decode(tiny.target(), [[1, 2, 3]], spec, **settings, rescore=rescore).tokens
                == whole.tokens
            )
        except InvalidDistribution:
            broke += 1
    assert broke


@pytest.mark.parametrize("spec", ["mcsd", *PATHS])
def test_a_row_that_has_finished_may_be_anything(spec):
    """What lies beyond a row's end is computed and not looked at."""

    def rescore(state, draft, scores):
        return replace(
            scores, logits=torch.where(state.done[:, None, None], float("nan"), scores.logits)
        )

    own = {"draft": tiny.draft(), "max_new_tokens": [2, 20, 9], "temperature": 1.0, "seed": 3}
    whole = specwb.decode(tiny.target(), tiny.PROMPTS, spec, **own)
    assert (
        specwb.decode(tiny.target(), tiny.PROMPTS, spec, **own, rescore=rescore).tokens
        == whole.tokens
    )


# ------------------------------------------------------------ every rule, every node, every value

TREES = {"chain": (-1, 0, 1, 2), "paths": (-1, 0, 0, 1, 2), "tree": (-1, 0, 0, 1, 1, 2)}
SWEEP = [
    *[(name, "IID", "chain") for name in ("rejection", "block", "traversal")],
    *[
        (name, "IID", "tree")
        for name in ("rrs", "rrsw", "kseq", "race", "naive", "traversal", "typical")
    ],
    ("rrsw", "WITHOUT_REPLACEMENT", "tree"),
    ("traversal", "WITHOUT_REPLACEMENT", "tree"),
    *[(name, "IID_PATHS", "paths") for name in ("rrs", "rrsw", "kseq", "race", "traversal", "gbv")],
    ("top", "TOP_AND_SAMPLE", "tree"),
    ("point", "POINT", "tree"),
    ("typical", "POINT", "tree"),
    ("coupled", "COUPLED", "paths"),
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
    drawn = {"COUPLED": Scheme.IID_PATHS, "ROOTS": Scheme.WITHOUT_REPLACEMENT}.get(
        scheme, Scheme[scheme]
    )
    every = all_drafts(
        drawn, tree, [models(seed, 2, kind) for seed in (0, 1) for kind in ("dense", "any")]
    )
    rows = torch.linspace(0, len(every.case) - 1, count).long()
    draft, scores = every.draft, every.scores
    race = (
        torch.rand(count, tree.D + 1, tree.K, 2, generator=torch.Generator().manual_seed(0))
        .log()
        .neg()
    )
    q = None if draft.q is None else draft.q[rows]
    made = Draft(
        tree,
        draft.tokens[rows],
        draft.valid[rows],
        Scheme[scheme],
        q,
        draft.q_row,
        race if scheme == "COUPLED" else None,
    )
    return made, Scores(
        scores.logits[rows], Sampling(0.0) if scheme == "greedy" else scores.sampling
    )


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
    rule = (
        Greedy()
        if name == "greedy"
        else Longest(True)
        if name == "longest, greedy"
        else RULES[name]()
    )
    rule.lazy = lazy
    u = torch.rand(
        count,
        rule.uniforms(tree.limits),
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(1),
    )

    def verified(logits):
        found = []
        for rows in (slice(i, i + few) for i in range(0, count, few)):
            q = None if draft.q is None else draft.q[rows]
            race = None if draft.race is None else draft.race[rows]
            part = Draft(
                tree, draft.tokens[rows], draft.valid[rows], draft.scheme, q, draft.q_row, race
            )
            verdict = rule.verify(part, Scores(logits[rows], scores.sampling), u[rows])
            bonus = (
                verdict.next_distribution
                if verdict.next_distribution is not None
                else verdict.distribution
            )
            last = verdict.path.gather(1, verdict.accepted[:, None]).squeeze(1)
            if bonus is None:  # greedy: what the engine looks at
                bonus = logits[rows][torch.arange(len(last)), last, verdict.bonus][:, None]
            found.append((verdict.path, verdict.accepted, bonus, bonus.amax(1)))
        path, accepted, bonus, most = (torch.cat(x) for x in zip(*found))
        return (
            path,
            accepted,
            bonus,
            ~(most.isfinite() & (most > (-torch.inf if "greedy" in name else 0))),
        )

    trail = tree.trail.expand(count, -1, -1)
    words = draft.tokens.gather(1, trail.flatten(1)).view_as(trail)
    path, accepted, bonus, broken = verified(scores.logits)
    assert not bool(broken.any())
    seen = 0
    for node in range(tree.n):
        for value in (torch.nan, torch.inf, -torch.inf):
            # equal paths have equal rows, and a rule may read any of them
            equal = (words == words[:, node : node + 1]).all(-1) & (
                tree.depth == tree.depth[:, node : node + 1]
            )
            where = (
                equal[:, :, None] & (torch.arange(2) == 1)
                if value == torch.inf
                else equal[:, :, None]
            )
            logits = torch.where(where, value, scores.logits)
            p, a, c, error = verified(logits)
            same = (
                (a == accepted)
                & (p == path).all(1)
                & ((c == bonus) | ((c - bonus).abs() < 1e-9)).all(1)
            )
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
        with pytest.raises(InvalidDistribution):
            specwb.decode(
                tiny.target(),
                [[1, 2, 3]],
                method,
                max_new_tokens=30,
                temperature=temperature,
                eos=(),
            )
        assert len(calls) == 4
