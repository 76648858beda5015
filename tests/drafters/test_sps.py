"""Draft lengths that follow the text: the heuristic against its definition, the confidence against
the library's own forward."""

from __future__ import annotations

import pytest
import tiny
import torch

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


def test_on_the_cpu_only_what_some_row_uses_is_drafted():
    method = specwb.method("sps:gamma=3,schedule=heuristic", tiny.target(), draft=tiny.draft())
    for step in specwb.rounds(tiny.target(), PROMPTS, method, max_new_tokens=40, temperature=1.0):
        alive = step.verdict.accepted >= 0
        assert int(step.draft.valid[alive, 1:].sum(1).max()) == step.draft.tree.D


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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_round_of_one_row_does_not_depend_on_the_others(temperature):
    target, draft = tiny.target(dtype=tiny.EXACT), tiny.draft(dtype=tiny.EXACT)
    method = specwb.method("sps:gamma=2,schedule=heuristic,confidence=0.3", target, draft=draft)
    run = {"max_new_tokens": 50, "temperature": temperature}
    out = specwb.decode(target, PROMPTS, method, seed=[4, 5, 6], **run)
    for i, prompt in enumerate(PROMPTS):
        alone = specwb.decode(target, [prompt], method, seed=[4 + i], **run)
        assert (alone.tokens[0], alone.accepted_lengths[0]) == (
            out.tokens[i],
            out.accepted_lengths[i],
        )


BAD = [
    ({"schedule": "linear"}, "schedule must be constant or heuristic, got 'linear'"),
    ({"confidence": 1.0}, r"confidence must be a number in \[0, 1\)"),
    ({"confidence": -0.1}, "confidence must be a number in"),
    ({"confidence": True}, "confidence must be a number in"),
    ({"gamma": 0}, "gamma must be an integer >= 1"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_settings_that_cannot_be_used(options, message):
    with pytest.raises(specwb.MethodError, match=message):
        specwb.method("sps", tiny.target(), draft=tiny.draft(), **options)


def test_the_usual_setting_is_the_plain_chain():
    plain, scheduled = (
        specwb.method(spec, tiny.target(), draft=tiny.draft())
        for spec in ("sps", "sps:confidence=0.4")
    )
    assert plain.drafter.host_reads == 0
    assert scheduled.drafter.host_reads == scheduled.drafter.tree.D - 1
    assert torch.equal(plain.drafter.tree.parent, scheduled.drafter.tree.parent)
