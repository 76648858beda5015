"""``ar`` is what transformers' own greedy generation gives, token by token: the reference of every
other test is not our own. In float32, where no argmax of these texts is a matter of rounding
(``MARGIN``)."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb

LENGTH = 40
MARGIN = (
    1e-4  # between the two best logits; those of two ways to compute them differ by 1e-5 at most
)
every_kind = pytest.mark.parametrize("kind", list(tiny.FAMILIES))


def generated(target: specwb.Target, prompt: list[int], length: int, **settings) -> list[int]:
    out = target.model.generate(
        torch.tensor([prompt]), max_new_tokens=length, do_sample=False, pad_token_id=0, **settings
    )
    return out[0, len(prompt) :].tolist()


@every_kind
def test_plain_decoding_is_the_librarys_greedy_generation(kind):
    target = tiny.target(kind)
    out = specwb.decode(target, tiny.PROMPTS, "ar", max_new_tokens=LENGTH)
    for prompt, tokens in zip(tiny.PROMPTS, out.tokens):
        wanted = generated(target, prompt, LENGTH)
        assert len(wanted) == LENGTH
        best = tiny.forward(target.model, prompt + wanted)[len(prompt) - 1 :].topk(2).values
        assert float((best[:, 0] - best[:, 1]).min()) > MARGIN
        assert tokens == wanted
        assert len(set(tokens)) > 3, "a text of one token would prove nothing"
    assert out.step_counts == [LENGTH] * 3
    assert out.mean_tokens_per_step == 1


@every_kind
def test_sampling_follows_the_librarys_probabilities(kind):
    """T > 0: every token of a sampled text lies in the library's own filtered support, and is the
    inverse CDF of its probabilities."""
    from transformers import (
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    target = tiny.target(kind)
    prompt = tiny.PROMPTS[2]
    steps = list(
        specwb.rounds(
            target,
            [prompt],
            "ar",
            max_new_tokens=20,
            temperature=0.8,
            top_k=7,
            top_p=0.85,
            seed=3,
            trace=True,
        )
    )
    text = steps[-1].state.tokens[0, : len(prompt) + 20].tolist()
    logits = tiny.forward(target.model, text)
    warp = LogitsProcessorList(
        [TemperatureLogitsWarper(0.8), TopKLogitsWarper(7), TopPLogitsWarper(0.85)]
    )
    p = warp(torch.empty(0, dtype=torch.long), logits).softmax(-1)[len(prompt) - 1 : -1].double()
    for i, step in enumerate(steps):
        below = float(p[i, : text[len(prompt) + i]].sum())
        assert p[i, text[len(prompt) + i]] > 0
        assert (
            below - 1e-4
            <= float(step.bonus_uniform[0])
            <= below + float(p[i, text[len(prompt) + i]]) + 1e-4
        )
