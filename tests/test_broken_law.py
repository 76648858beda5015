"""A model that says NaN is not decoded on as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch

import specwb
from specwb.flow import BrokenLaw


@pytest.mark.parametrize("value", [float("nan"), float("-inf")], ids=["nan", "no mass"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spec", ["ar", "sps", "mcsd", "mcsd:draw=top", "sps:rule=block", "mcsd:rule=traversal"])
def test_one_message(spec, temperature, value):
    seen = []

    def rescore(state, draft, scores):
        seen.append(int(state.known.max()))
        return replace(scores, logits=torch.full_like(scores.logits, value)) if len(seen) == 3 else scores

    own = {} if spec == "ar" else {"draft": tiny.draft()}
    loop = specwb.rounds(tiny.target(), tiny.PROMPTS, spec, **own, max_new_tokens=30, temperature=temperature, rescore=rescore)
    steps = []
    with pytest.raises(BrokenLaw, match="NaN or sum to 0"):
        steps.extend(loop)
    assert len(seen) == 3


def test_a_row_that_has_finished_may_be_anything():
    """What lies beyond a row's end is computed and not looked at."""

    def rescore(state, draft, scores):
        return replace(scores, logits=torch.where(state.done[:, None, None], float("nan"), scores.logits))

    own = {"draft": tiny.draft(), "max_new_tokens": [2, 20, 9], "temperature": 1.0, "seed": 3}
    whole = specwb.decode(tiny.target(), tiny.PROMPTS, "mcsd", **own)
    assert specwb.decode(tiny.target(), tiny.PROMPTS, "mcsd", **own, rescore=rescore).tokens == whole.tokens
