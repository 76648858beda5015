"""Draft lengths that follow the text: the heuristic against its definition, the confidence against
the library's own forward."""

from __future__ import annotations

import pytest
import tiny

import specwb

PROMPTS = tiny.PROMPTS


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_heuristic_grows_by_two_and_shrinks_by_one_row_by_row(temperature):
    method = specwb.method("sps:gamma=3,schedule=heuristic", tiny.target(), draft=tiny.draft())
    lengths = [3, 3, 3]
    seen = set()
    loop = specwb.rounds(
        tiny.target(), PROMPTS, method, max_new_tokens=120, temperature=temperature, seed=[1, 2, 3]
    )
    for step in loop:
        drafted = step.draft.valid[:, 1:].sum(1).tolist()
        accepted = step.verdict.accepted.tolist()
        for row in range(3):
            if accepted[row] < 0 or step.state.done[row]:
                continue
            assert drafted[row] == lengths[row]
            # the published rule, for one row
            lengths[row] = (
                min(lengths[row] + 2, 20)
                if accepted[row] == drafted[row]
                else max(1, lengths[row] - 1)
            )
            seen.add(lengths[row])
        assert step.draft.tree.D <= 20
    assert len(seen) > 4, "the length hardly moved"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafting_stops_below_the_first_unlikely_token_which_stays_a_candidate(temperature):
    target, draft = tiny.target(), tiny.draft()
    method = specwb.method("sps:gamma=2,confidence=0.4", target, draft=draft)
    stopped = full = 0
    for step in specwb.rounds(
        target, PROMPTS, method, max_new_tokens=40, temperature=temperature, seed=2
    ):
        for row in range(3):
            if step.verdict.accepted[row] < 0:
                continue
            text = step.state.tokens[row, : int(step.length[row])].tolist()
            drafted = step.draft.tokens[row, 1:][step.draft.valid[row, 1:]].tolist()
            logits = tiny.forward(draft.model, text + drafted)[len(text) - 1 : -1]
            q = (logits / temperature if temperature else logits).softmax(-1)
            confidence = [
                float(distribution[token]) for distribution, token in zip(q, drafted, strict=True)
            ]
            assert all(c >= 0.4 for c in confidence[:-1])
            if len(drafted) < 2:
                assert confidence[-1] < 0.4
                stopped += 1
            else:
                full += 1
    assert stopped > 5
    assert full > 0
