"""Medusa: which head and rank a node is. Typical acceptance: tests/rules."""

from __future__ import annotations

import tiny
import torch

import specwb

PROMPTS = tiny.PROMPTS


def test_a_node_is_its_depths_head_and_its_rank():
    target, heads = tiny.target(), tiny.head("medusa")
    method = specwb.method("medusa", target, head=heads, tree=tiny.LOPSIDED)
    tree, drafted = tiny.LOPSIDED, 0
    for step in specwb.rounds(target, PROMPTS, method, max_new_tokens=12, temperature=1.0, seed=1):
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
