"""``ar`` samples from what transformers' own filters make of its logits. What it writes greedily is
in tests/models/test_architectures.py: the reference of every other test is not our own."""

from __future__ import annotations

import tiny
import torch

import specwb


def test_sampling_follows_the_librarys_probabilities():
    """T > 0: every token of a sampled text lies in the library's own filtered support, and is the
    inverse CDF of its probabilities."""
    from transformers import (
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    target, prompt = tiny.target("everything"), tiny.PROMPTS[2]
    sampling = {"temperature": 0.8, "top_k": 7, "top_p": 0.85, "seed": 3}
    steps = list(specwb.rounds(target, [prompt], "ar", max_new_tokens=20, trace=True, **sampling))
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
