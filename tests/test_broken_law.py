"""A model that says NaN is not decoded on as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch

import specwb
from specwb.flow import BrokenLaw

PATHS = ["mcsd:tree=2-1,draw=coupled", *[f"mcsd:tree=2-1,draw=with,rule={rule}" for rule in ("gbv", "race", "kseq", "traversal")]]


@pytest.mark.parametrize("value", [float("nan"), float("-inf")], ids=["nan", "no mass"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spec", ["ar", "sps", "mcsd", "mcsd:draw=top", "sps:rule=block", "mcsd:rule=traversal", *PATHS])
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


@pytest.mark.parametrize("spec", ["sps", "sps:rule=block", "mcsd", "mcsd:rule=traversal", *PATHS])
def test_nan_at_a_node_on_the_way(spec):
    """Rows with NaN at one drafted node: an error if the walk came there, otherwise the text is as it was."""
    settings = {"draft": tiny.draft(noise=0), "max_new_tokens": 12, "temperature": 1.0, "seed": 1, "eos": ()}
    whole = specwb.decode(tiny.target(), [[1, 2, 3]], spec, **settings)
    broke = 0
    for node in range(1, 4):

        def rescore(state, draft, scores, node=node):
            logits = scores.logits.clone()
            logits[:, node % logits.shape[1]] = float("nan")
            return replace(scores, logits=logits)

        try:
            assert specwb.decode(tiny.target(), [[1, 2, 3]], spec, **settings, rescore=rescore).tokens == whole.tokens
        except BrokenLaw:
            broke += 1
    assert broke


@pytest.mark.parametrize("spec", ["mcsd", *PATHS])
def test_a_row_that_has_finished_may_be_anything(spec):
    """What lies beyond a row's end is computed and not looked at."""

    def rescore(state, draft, scores):
        return replace(scores, logits=torch.where(state.done[:, None, None], float("nan"), scores.logits))

    own = {"draft": tiny.draft(), "max_new_tokens": [2, 20, 9], "temperature": 1.0, "seed": 3}
    whole = specwb.decode(tiny.target(), tiny.PROMPTS, spec, **own)
    assert specwb.decode(tiny.target(), tiny.PROMPTS, spec, **own, rescore=rescore).tokens == whole.tokens
