"""Medusa: which head and rank a node is, what is accepted where the next tokens follow from the
last one, and what typical acceptance is."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb

PROMPTS = tiny.PROMPTS


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_node_is_its_depths_head_and_its_rank(temperature):
    target, heads = tiny.target(), tiny.head("medusa")
    method = specwb.method("medusa", target, head=heads, tree=tiny.LOPSIDED)
    tree, drafted = tiny.LOPSIDED, 0
    for step in specwb.rounds(
        target, PROMPTS, method, max_new_tokens=12, temperature=temperature, seed=1
    ):
        for row in range(3):
            text = step.state.tokens[row, : int(step.length[row])].tolist()
            if len(text) == 1:
                assert not step.draft.valid[row, 1:].any(), "there is no state to draft from"
                continue
            # the state that the pending token was drawn from
            state = tiny.states(target, torch.tensor([text[:-1]]), (-1,))[0, -1]
            best = heads(state).argsort(-1, descending=True)
            for node in range(1, tree.n):
                assert (
                    step.draft.tokens[row, node]
                    == best[tree.depths[0][node] - 1, tree.rank[0, node]]
                )
            assert step.draft.valid[row].all()
            drafted += 1
    assert drafted > 6


def test_typical_acceptance_is_lossy_and_says_so():
    target, heads = tiny.target(), tiny.head("medusa")
    exact, typical = (
        specwb.method(spec, target, head=heads, tree=tiny.LOPSIDED)
        for spec in ("medusa", "medusa:rule=typical")
    )
    assert exact.exactness is specwb.Exactness.LOSSLESS
    assert typical.exactness is specwb.Exactness.LOSSY
    run = {"max_new_tokens": 40, "temperature": 0.4, "seed": 1}
    assert typical.rule_for(specwb.Sampling(0.4)).name == "typical"
    assert (
        specwb.decode(target, PROMPTS, typical, **run).tokens
        != specwb.decode(target, PROMPTS, exact, **run).tokens
    )
    # at T = 0 both are greedy decoding
    assert specwb.decode(target, PROMPTS, typical, max_new_tokens=20).tokens == [
        list(tiny.plain("llama", tuple(p), 20)) for p in PROMPTS
    ]
