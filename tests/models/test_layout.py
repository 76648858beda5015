"""The batch layout decides what the tree layout decides and leaves the same cache."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.core.flow import Draft, Scheme
from specwb.models.layout import leaf_paths


def test_leaf_paths_by_hand():
    nodes, where = leaf_paths(specwb.Tree.parents([-1, 0, 0, 1, 1, 3]).host, torch.device("cpu"))
    assert nodes.tolist() == [[[0, 2, 2, 2], [0, 1, 4, 4], [0, 1, 3, 5]]]
    assert where.tolist() == [[0, 5, 1, 10, 6, 11]]
    # rows of different shapes; the second has a padding node, which is a path of its own
    nodes, where = leaf_paths(((-1, 0, 0, 1), (-1, 0, 1, -1)), torch.device("cpu"))
    assert nodes.tolist() == [[[0, 2, 2], [0, 1, 3]], [[0, 1, 2], [3, 3, 3]]]
    assert where.tolist() == [[0, 4, 1, 5], [0, 1, 2, 3]]


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
