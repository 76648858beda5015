"""What the caches of Kangaroo's chain hold in one step, beside theorem 12.1's counts."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.lab.evaluation.caches import BEFORE, cache_moments
from specwb.models.eagle import eagle_config
from specwb.models.kangaroo import KangarooAdapter

TEXT = [1, 2, 3, 4, 5, 6, 7]


@pytest.fixture(scope="module")
def inside():
    """A small target in float64 and a chain of four tokens from behind its first layer."""
    target = specwb.load(tiny.build("llama", seed=0, dtype=torch.float64))
    torch.manual_seed(0)
    adapter = KangarooAdapter(eagle_config(target, 1), 1).start_from(target).double()
    return target, specwb.method("kangaroo:gamma=4,eta=0", target, head=adapter)


def test_entries_are_where_the_theorem_says(inside):
    target, method = inside
    kept = specwb.decode(target, TEXT, method, max_new_tokens=10, eos=()).accepted_lengths[0][0]
    moments, tokens, first = cache_moments(target, TEXT, method)
    assert first == len(TEXT) - BEFORE
    assert tokens[:BEFORE] == TEXT[-BEFORE:]
    known = BEFORE - 1  # before the pending token
    filled = {name: [sum(map(bool, row)) for row in table] for name, table in moments.items()}
    layers = len(target.backbone.layers)
    assert filled["before the step"] == [known] * (layers + 1)
    # the first layer for the pending token and four draft tokens, the adapter not for the last
    assert filled["drafted"] == [known + 5, *[known] * (layers - 1), known + 4]
    assert filled["verified"] == [known + 5] * layers + [known + 4]
    for row in moments["verified"][:layers]:  # the text's up to the last kept token, others behind
        assert row[: known + 1 + kept] == [1] * (known + 1 + kept)
        assert kept == 4 or row[known + 1 + kept] == 2


def test_another_method_is_refused():
    with pytest.raises(ValueError, match=r"a chain of kangaroo's, got 'pld'"):
        cache_moments(tiny.target(), TEXT, "pld")
