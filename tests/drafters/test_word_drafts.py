"""Drafting among some of the target's tokens: none of the others is drafted, and what is decoded
stays exact."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tiny
import torch
from scipy import stats
from torch import Tensor

import specwb

PROMPTS, V = tiny.PROMPTS, tiny.VOCABULARY
WORDS = torch.tensor([i for i in range(V) if i % 4 != 1])
TREE = specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)])
# method, head, options
METHODS: dict[str, tuple[str, str, dict]] = {
    "eagle": ("eagle", "eagle", {"tree": TREE}),
    "eagle of the best and one": ("eagle", "eagle", {"tree": (3, 1), "draw": "top"}),
    "eagle, eagle3's head": ("eagle", "eagle3rows", {"tree": (2, 2)}),
    "falcon": ("falcon", "falcon", {"tree": (3, 2, 1)}),
    "kangaroo on a tree": ("kangaroo", "kangaroo", {"tree": (2, 2, 1), "eta": 0.1}),
}


def with_words(kind: str, words: Tensor = WORDS) -> Any:
    """A trained head that drafts these words; an EAGLE-3 head has its own."""
    head = copy.deepcopy(tiny.head(kind, dtype=tiny.EXACT))
    if kind != "eagle3rows":
        head.words = words
    return head


def target() -> specwb.Target:
    return tiny.target(dtype=tiny.EXACT)


def made(name: str) -> specwb.Method:
    key, kind, options = METHODS[name]
    head = with_words(kind)
    assert len(head.words) == 48
    return specwb.method(key, target(), head=head, **options)


@pytest.mark.parametrize("name", METHODS)
def test_a_token_is_drawn_from_the_distribution_that_is_verified(name):
    """The first child of the root, in many rows of one prompt: a token whose place among the words
    was taken for another's would be drawn by that one's probability."""
    method, rows = made(name), 3000
    settings = {"max_new_tokens": 2, "temperature": 1.0, "seed": 0}
    step = next(specwb.rounds(target(), [PROMPTS[0]] * rows, method, **settings))
    q = step.draft.q[0, 0].double()
    torch.testing.assert_close(step.draft.q[:, 0], step.draft.q[:1, 0].expand(rows, -1))
    first = step.draft.tokens[:, 1]
    if METHODS[name][2].get("draw") == "top":  # the last child is drawn, of all but the best
        first = step.draft.tokens[:, 3]
    counts = first.bincount(minlength=V).double()
    often = q * rows >= 5
    assert often.sum() > 3
    seen = [*counts[often].tolist(), counts[~often].sum().item()]
    expected = [*(q[often] * rows).tolist(), q[~often].sum().item() * rows]
    if expected[-1] < 1:
        assert seen[-1] < 10
        seen, expected = seen[:-1], [x * sum(seen[:-1]) / sum(expected[:-1]) for x in expected[:-1]]
    assert stats.chisquare(seen, expected).pvalue > 1e-6
