"""Drafts end where the text does, and what is no draft is named."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.models.backbone import Stack

SPECS = (
    "sps:gamma=8", "sps:gamma=8,rule=block", "sps:gamma=6,schedule=heuristic",
    "mcsd:tree=3-2-2", "mcsd:tree=3-2-2,rule=traversal", "mcsd:tree=3-2,draw=top",
    "mcsd:tree=3-1-1-1,draw=with,rule=gbv", "mcsd:tree=3-1-1,draw=coupled",
    "mcsd_ti:stop=top", "mcsd_ti:stop=none,roots=2,lossy=true", "pld:gamma=9", "lookahead",
)  # fmt: skip
HEADS = {
    "eagle": "eagle", "eagle2": "eagle", "medusa": "medusa", "falcon:tree=2-2-2-1": "falcon",
    "kangaroo:eta=0": "kangaroo", "kangaroo:tree=true": "kangaroo",
    "kangaroo:tree=2-2-2": "kangaroo",
}  # fmt: skip
BUDGETS = [6, 1, 3]


def made(spec: str) -> specwb.Method:
    own = {"draft": tiny.draft()} if spec[:3] in ("sps", "mcs") else {}
    own = {"head": tiny.head(HEADS[spec])} if spec in HEADS else own
    return specwb.method(spec, tiny.target(), **own)


@pytest.mark.parametrize("spec", [*SPECS, *HEADS])
def test_rows_of_other_limits_do_not_change_a_rows_drafts(spec):
    """Levels are cut where no row needs them, which must not show in a row that has less left."""
    target, method = tiny.target(), made(spec)
    for temperature in (0.0, 1.0):
        settings = {"temperature": temperature, "eos": ()}
        together = specwb.rounds(target, tiny.PROMPTS, method, max_new_tokens=BUDGETS, seed=[1, 2, 3], **settings)
        text: list[list[int]] = [[], [], []]
        for step in together:
            depth = step.draft.tree.depth.expand_as(step.draft.valid)
            deepest = (depth * step.draft.valid).amax(1).tolist()
            for row, new in enumerate(text):
                left = BUDGETS[row] - len(new) - 1 + ("roots" in spec)
                assert deepest[row] <= max(left, 0), "drafted what it cannot write"
                new += step.verdict.emitted[row, : int(step.verdict.count[row])].tolist()
        for row, (prompt, budget) in enumerate(zip(tiny.PROMPTS, BUDGETS, strict=True)):
            alone = specwb.decode(target, prompt, method, max_new_tokens=budget, seed=[row + 1], **settings)
            assert alone.tokens[0] == text[row]


def test_a_long_draft_is_no_longer_than_what_is_left(monkeypatch):
    """Of 40 tokens a round at most 5 can be used: no forward is run for the others."""
    calls, real = [], Stack.run
    monkeypatch.setattr(Stack, "run", lambda self, *a, **k: calls.append(1) or real(self, *a, **k))
    method = specwb.method("sps:gamma=40", tiny.target(), draft=tiny.draft())
    steps = list(specwb.rounds(tiny.target(), [1, 2, 3], method, max_new_tokens=6, eos=()))
    assert steps[0].draft.tree.D == 5
    # two prefills; a forward a level and one of the target's a round
    assert len(calls) <= 2 + sum(step.draft.tree.D + 1 for step in steps)


class Own(specwb.Drafter):
    """Proposes whatever it was given."""

    def __init__(self, what) -> None:
        self.what, self.tree = what, specwb.Tree.chain(2)

    def propose(self, state, noise):
        return self.what(self, state)


def drafted(*tokens, **changes):
    return lambda self, state: self.candidates(state, torch.tensor([tokens]), **changes)


def raw(tokens, valid=None):
    ok = torch.ones(1, 3, dtype=torch.bool) if valid is None else valid
    return lambda self, state: specwb.Draft(self.tree, tokens, ok, specwb.Law.POINT)


@pytest.mark.parametrize(
    ("what", "named"),
    [
        (lambda *_: None, "Own.propose must return a specwb.Draft, got None"),
        (drafted(1, 64), r"Own drafted token 64; ids are 0\.\.63, of invalid nodes too"),
        (drafted(-1, 2), "Own drafted token -1"),
        (drafted(1.0, 2.0), "candidates must be token ids, integers, got torch.float32"),
        (drafted(True, False), "integers, got torch.bool"),
        (drafted(1, 2, 3), r"candidates must be \[rows, nodes - 1\]"),
        (drafted(1, 2, 3, tree=specwb.Tree.chain(3)), "larger than its tree"),
        (raw(torch.ones(1, 3)), r"tokens .* must be \[1, 3\] of torch.int64, got .*float32"),
        (raw(torch.ones(1, 2).long()), r"tokens .* got \[1, 2\] of torch.int64"),
        (raw(torch.ones(1, 3).long(), torch.ones(1, 3)), "valid .* got .* of torch.float32"),
    ],
)
def test_what_is_no_draft_is_named(what, named):
    specwb.register("own", Own)
    try:
        with pytest.raises(ValueError, match=named):
            specwb.decode(tiny.target(), [1, 2], "own", what=what, max_new_tokens=4)
    finally:
        specwb.unregister("own")
