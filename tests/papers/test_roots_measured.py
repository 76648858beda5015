"""How far several roots move real output: the texts of the method, judged by the target."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

import specwb
from specwb.lab.papers.mcsd_ti import output_shifts

LOSSY = {"draft": tiny.draft(), "lossy": True, "stop": "none", "eos": ()}


def test_greedy_text_is_judged_by_its_own_prefix():
    one, four = output_shifts(tiny.target(), tiny.draft(), tiny.PROMPTS, (1, 4), max_new_tokens=16)
    assert (one.roots, four.roots) == (1, 4)
    assert one.other == 0
    assert four.mean_tokens_per_round > one.mean_tokens_per_round
    how = {"roots": 4, "tree": (1,) * 5, "max_new_tokens": 16}
    texts = specwb.decode(tiny.target(), tiny.PROMPTS, "mcsd_ti", **how, **LOSSY).tokens
    other, sums = 0, []
    for prompt, text in zip(tiny.PROMPTS, texts, strict=True):
        logits = tiny.forward(tiny.target().model, [*prompt, *text])[len(prompt) - 1 : -1]
        other += int((logits.argmax(-1) != torch.tensor(text)).sum())
        sums.append(float(logits.double().log_softmax(-1)[torch.arange(16), text].mean()))
    assert other > 0
    assert four.other == pytest.approx(other / 48)
    assert four.log_p == pytest.approx(np.mean(sums), abs=1e-5)
