"""The batch layout decides what the tree layout decides and leaves the same cache."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.core.flow import Draft, Scheme


@pytest.mark.parametrize(
    ("rows", "unverified"),
    [
        ([[-1, 0, 0, 1, 1]], 0),
        ([[-1, 0, 0, 1, 3, 2]], 2),
        ([[-1, 0, 0, 1], [-1, 0, 1, -1], [-1, 0, 0, 0]], 0),
    ],
)
def test_scores_and_cache_of_any_tree(rows, unverified):
    """Unverified and padding nodes and a shape for every row too; rows of different lengths."""
    target, tree = tiny.target("qwen2"), specwb.Tree(rows, unverified=unverified)
    found = []
    for layout in ("tree", "batch"):
        with torch.inference_mode():
            state = target.open(tiny.PROMPTS, [4] * 3, tree.n + 1, specwb.Sampling(1.0), ())
            drafted = torch.arange(3 * tree.n).view(3, tree.n) * 7 % tiny.VOCABULARY
            scores = target.score(
                state,
                Draft(tree, drafted, torch.ones_like(drafted, dtype=torch.bool), Scheme.POINT),
                (0, 2, 3),
                layout,
            )
        base = state.length - 1
        here = [state.cache.data[:, row, : int(base[row]) + tree.n] for row in range(3)]
        found.append((scores.logits, scores.features, *here))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("tree", [(2, 2), None], ids=["tree", "chain"])
def test_paths_go_on_from_drafted_states(tree):
    """Kangaroo's, which the target's first layers have made."""
    head, target = tiny.head("kangaroo", dtype=tiny.EXACT), tiny.target(dtype=tiny.EXACT)
    shape = {"gamma": 3} if tree is None else {"tree": tree}
    run = {"max_new_tokens": 16, "temperature": 1.0, "seed": 2}
    method = specwb.method("kangaroo", target, head=head, eta=0, **shape)
    one, other = (
        specwb.decode(target, tiny.PROMPTS, method, layout=layout, **run)
        for layout in ("tree", "batch")
    )
    assert one.tokens == other.tokens
    assert one.accepted_lengths == other.accepted_lengths
