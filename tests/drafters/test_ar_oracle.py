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
