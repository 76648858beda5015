"""Where greedy texts part: at a tie of the number type or otherwise."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.evaluation import ties

PROMPTS = [[1, 2, 3], [4, 5, 6, 7], [8]]


@pytest.mark.parametrize(
    ("dtype", "step"),
    [(torch.bfloat16, 0.125), (torch.float16, 2.0**-6), (torch.float32, 2.0**-19)],
)
def test_a_tie_is_a_step_of_the_type_at_the_size_of_the_best_logit(dtype, step):
    # between 16 and 32 neighbouring numbers are 2^4 eps apart
    for sign in (1, -1):
        best = 20.0 if sign > 0 else -20.0
        logits = torch.tensor([best, best - step, best - 2 * step, best - 9], dtype=dtype)
        assert logits[0] - logits[1] == step
        assert ties.tied(logits, 0, 1)
        assert not ties.tied(logits, 0, 2)
        assert not ties.tied(logits, 1, 2)
    assert ties.tied(torch.zeros(3, dtype=dtype), 0, 2)


def test_next_logits_are_the_librarys():
    target = tiny.target()
    for text in (*PROMPTS, [9] * 30):
        found = ties.next_logits(target, text)
        with torch.inference_mode():
            expected = target.model(torch.tensor([text])).logits[0, -1]
        assert torch.allclose(found, expected, atol=1e-5)


def test_texts_part_at_a_tie_or_otherwise(monkeypatch):
    target = tiny.target()
    plain = specwb.decode(target, PROMPTS, "ar", max_new_tokens=8, eos=()).tokens
    assert str(ties.same_texts(target, PROMPTS, plain, plain)) == "yes"
    second = []
    for prompt, text in zip(PROMPTS, plain, strict=True):
        logits = ties.next_logits(target, [*prompt, *text[:3]])
        assert int(logits.argmax()) == text[3]
        second.append([*text[:3], int(logits.topk(2).indices[1]), *text[4:]])
    found = ties.same_texts(target, PROMPTS, plain, [plain[0], *second[1:]])
    assert (found.texts, found.ties, found.others) == (3, 0, 2)
    assert str(found) == "1 of 3 (2 NOT)"
    monkeypatch.setattr(ties, "STEPS", 2.0**30)  # every logit is the best up to so many steps
    found = ties.same_texts(target, PROMPTS, plain, [plain[0], *second[1:]])
    assert str(found) == "1 of 3 (2 at a tie)"
    shorter = [plain[0][:-1], *plain[1:]]
    assert ties.same_texts(target, PROMPTS, plain, shorter).others == 1
