"""Medusa: which head and rank a node is, what is accepted where the next tokens follow from the
last one, and what typical acceptance is."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.models.medusa import MedusaHeads

PROMPTS = tiny.PROMPTS
LOPSIDED = specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_node_is_its_depths_head_and_its_rank(temperature):
    target, heads = tiny.target(), tiny.head("medusa")
    method = specwb.method("medusa", target, head=heads, tree=LOPSIDED)
    tree, drafted = LOPSIDED, 0
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


def permuting() -> tuple[specwb.Target, list[int]]:
    """A target that follows every token with the one that a permutation names, whatever stood
    before; and the permutation."""
    model = tiny.build("llama", seed=1, hidden_size=64)
    after = torch.randperm(tiny.VOCABULARY, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.norm.weight.fill_(1.0)
        model.model.embed_tokens.weight.copy_(torch.eye(64))
        model.lm_head.weight.zero_().index_copy_(0, after, torch.eye(64))
    return specwb.load(model), after.tolist()


def test_heads_that_know_the_next_tokens_are_always_accepted():
    """Head i is right where it is ``2 + i`` tokens on; one that is a place off is never right."""
    target, after = permuting()
    tree = (2, 1, 1)
    for off in (0, 1):
        heads = MedusaHeads(64, tiny.VOCABULARY, heads=3)
        ahead = torch.arange(tiny.VOCABULARY)
        for _ in range(1 + off):
            ahead = torch.tensor(after)[ahead]
        with torch.no_grad():
            for i in range(3):
                ahead = torch.tensor(after)[ahead]
                heads.get_submodule(f"{i}.1").weight.zero_().index_copy_(0, ahead, torch.eye(64))
        method = specwb.method("medusa", target, head=heads.requires_grad_(False), tree=tree)
        # a prompt that goes the permutation's way, one that does not, one without a state
        prompts = [[4, after[4]], [1, 1], [9]]
        out = specwb.decode(target, prompts, method, max_new_tokens=17)
        for prompt, text in zip(prompts, out.tokens):
            assert text[:2] == [after[prompt[-1]], after[after[prompt[-1]]]]
        if off:
            assert not any(map(sum, out.accepted_lengths))
        else:
            assert out.accepted_lengths == [[3, 3, 3, 3, 0], [0, 3, 3, 3, 3], [0, 3, 3, 3, 3]]


def test_typical_acceptance_is_lossy_and_says_so():
    target, heads = tiny.target(), tiny.head("medusa")
    exact, typical = (
        specwb.method(spec, target, head=heads, tree=LOPSIDED)
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
