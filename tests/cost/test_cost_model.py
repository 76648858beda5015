"""The cost model: counts by hand, and times that are put together as its formula says."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import tiny
import torch

import specwb
from specwb.lab.bench.measure import Run
from specwb.lab.cost import calibrate as measuring
from specwb.lab.cost.calibrate import (
    CostModel,
    accepted_by_rank,
    calibrate,
    in_order,
)

PROMPTS = [[1, 2, 3], [5], [7, 8, 9, 10]]


def model(**changes) -> CostModel:
    settings = {
        "target": {1: 1.0, 2: 1.5, 5: 3.0},
        "draft": {1: 0.1, 2: 0.2, 4: 0.4},
        "rest": 0.25,
        "chain": [[0.5], [0.5], [0.5]],
        "tree": [[0.5, 0.25], [0.5, 0.25]],
    }
    return CostModel(**{**settings, **changes})


def test_round_seconds_by_hand():
    m = model()
    assert m.c == pytest.approx(0.1)
    assert [m.v(g) for g in (0, 1, 4)] == [1, 1.5, 3]
    assert m.v(2) == pytest.approx(2.0)  # between
    assert m.v(6) == pytest.approx(4.0)  # beyond: the last slope
    assert m.round_seconds(specwb.Tree.chain(0)) == 1
    assert m.round_seconds(specwb.Tree.chain(1)) == pytest.approx(1.5 + 0.2 + 0.25)
    assert m.round_seconds(specwb.Tree.chain(3)) == pytest.approx(2.5 + 0.2 + 0.1 + 0.1 + 0.75)
    # five nodes; two are fed for the last level
    assert m.round_seconds(specwb.Tree.branching(2, 1)) == pytest.approx(3.0 + 0.2 + 0.2 + 0.5)


class Known(specwb.Drafter):
    """Drafts the plain continuation at a chosen rank by depth, and a wrong token elsewhere."""

    def __init__(
        self, ks: tuple[int, ...], ranks: tuple[int, ...], texts: dict[int, list[int]]
    ) -> None:
        self.tree, self.ranks, self.texts = specwb.Tree.branching(*ks), ranks, texts

    def propose(self, state, noise):
        (row,) = state.tokens.tolist()
        length = int(state.length[0])
        text = self.texts[row[0]]
        tokens, (_, *nodes) = [], range(self.tree.n)
        depth, rank = self.tree.depth[0].tolist(), self.tree.rank[0].tolist()
        for node in nodes:
            right = text[min(length + depth[node] - 1, len(text) - 1)]
            wrong = (right + 1 + rank[node]) % tiny.VOCABULARY
            tokens.append(right if rank[node] == self.ranks[depth[node] - 1] else wrong)
        return self.candidates(state, torch.tensor([tokens]))


def test_acceptance_counts_the_children_that_the_walk_took():
    texts = {p[0]: p + list(tiny.plain("llama", tuple(p), 40)) for p in PROMPTS}

    def rates(ks, ranks):
        method = specwb.Method("known", Known(ks, ranks, texts), None, specwb.Exactness.LOSSLESS)
        return accepted_by_rank(tiny.target(), PROMPTS, method, max_new_tokens=20)

    assert rates((2, 3), (1, 2)) == [[0, 1, 0], [0, 0, 1]]
    assert rates((2, 3), (0, 7)) == [[1, 0, 0], [0, 0, 0]]  # depth 2 is tested and never accepted
    assert rates((1, 1, 1), (3, 0, 0)) == [[0], [0], [0]]  # depths 2 and 3 are never reached


def test_the_prompt_is_in_the_first_step_alone(monkeypatch):
    run = Run([[0] * 4], 4, 16.0, step_seconds=[9.0, 1.0, 2.0, 4.0])
    monkeypatch.setattr(
        measuring, "measure", lambda target, jobs, steps, clock, warm: [(jobs[0], run)][: steps - 3]
    )
    plain = specwb.method("ar", tiny.target())
    assert measuring.step_seconds(tiny.target(), [1], plain, 3) == 2.0


def test_calibrate(monkeypatch):
    """A step over the wide tree of depth 2 takes 5 s, scoring its 7 nodes 4: a level takes half a
    second."""
    target = tiny.target()
    wide = specwb.method("mcsd", target, draft=tiny.draft(), tree=(2, 2))
    monkeypatch.setattr(measuring, "step_times", lambda *how: {1: 5.0})
    how = {"max_new_tokens": 16, "temperature": 1.0}
    m = calibrate(target, wide, PROMPTS, {1: 1.0, 7: 4.0}, **how)
    assert m.draft == {1: 0.5}
    assert m.tree == accepted_by_rank(target, PROMPTS, wide, **how)
    assert m.round_seconds(wide.drafter.tree) == 5.0
    assert calibrate(target, wide, PROMPTS, {1: 1.0, 7: 6.0}, **how).draft == {1: 0.0}
    assert measuring.middle(target, PROMPTS) == [1, 2, 3]


def test_times_in_order_by_hand():
    assert in_order({4: 4.0, 1: 1.0, 2: 1.0}) == {1: 1.0, 2: 1.0, 4: 4.0}
    # the means of neighbours out of order, also where one mean falls below the pool before it
    assert in_order({1: 2.0, 2: 1.0, 3: 3.0}) == {1: 1.5, 2: 1.5, 3: 3.0}
    assert in_order({1: 1.0, 2: 4.0, 3: 3.0, 4: 2.0}) == {1: 1.0, 2: 3.0, 3: 3.0, 4: 3.0}
    assert in_order({1: 3.0, 2: 4.0, 3: 1.0, 4: 8.0}) == pytest.approx(
        {1: 8 / 3, 2: 8 / 3, 3: 8 / 3, 4: 8.0}
    )


def test_saved_times_are_put_in_order():
    saved = json.loads(json.dumps(asdict(model(target={1: 2.0, 2: 1.0}))))
    assert CostModel.from_json(saved) == model(target={1: 1.5, 2: 1.5})
    free = CostModel.from_json({**saved, "draft": {"1": 0.0}})
    assert free.c == 0, "a level that costs less than the noise"
