"""Drafting stops by a confidence, which is the library's own forward's."""

from __future__ import annotations

import tiny

import specwb

PROMPTS = tiny.PROMPTS


def test_drafting_stops_below_the_first_unlikely_token_which_stays_a_candidate():
    target, draft = tiny.target(), tiny.draft()
    method = specwb.method("sps:gamma=2,confidence=0.4", target, draft=draft)
    stopped = full = 0
    for step in specwb.rounds(target, PROMPTS, method, max_new_tokens=40, temperature=0.8, seed=2):
        for row in range(3):
            if step.verdict.accepted[row] < 0:
                continue
            text = step.state.tokens[row, : int(step.length[row])].tolist()
            drafted = step.draft.tokens[row, 1:][step.draft.valid[row, 1:]].tolist()
            logits = tiny.forward(draft.model, text + drafted)[len(text) - 1 : -1]
            q = (logits / 0.8).softmax(-1)
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
