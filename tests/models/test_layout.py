"""The batch layout decides what the tree layout decides and leaves the same cache."""

from __future__ import annotations

import pytest
import tiny
import torch
from tiny import EXACT

import specwb
from specwb.core.flow import Draft, Scheme
from specwb.models.layout import leaf_paths

LOPSIDED = specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)])
CASES = [
    ("mcsd", {}),
    ("mcsd", {"draw": "with"}),
    ("mcsd", {"tree": LOPSIDED}),
    ("mcsd", {"draw": "top", "tree": (3, 2)}),
    ("mcsd", {"tree": (6,)}),
    ("lookahead", {"window": 3, "level": 3, "guesses": 2, "prompt": True}),
    ("sps", {}),
    ("ar", {}),
]


def made(key: str, options: dict, kind: str) -> specwb.Method:
    own = {"draft": tiny.draft(kind, dtype=EXACT)} if "draft" in specwb.METHODS[key].options else {}
    return specwb.method(key, tiny.target(kind, EXACT), **own, **options)


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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("key", "options"), CASES, ids=[f"{key}{list(options.values())}" for key, options in CASES]
)
def test_verdicts_texts_and_caches_are_the_tree_layouts(key, options, temperature):
    target, method = tiny.target("everything", EXACT), made(key, options, "everything")
    settings = {"max_new_tokens": [14, 17, 9], "temperature": temperature, "seed": [3, 4, 5]}
    loops = [
        specwb.rounds(target, tiny.PROMPTS, method, layout=layout, **settings)
        for layout in ("tree", "batch")
    ]
    count, accepted = 0, 0
    for one, other in zip(*loops, strict=True):
        assert one.verdict.accepted.tolist() == other.verdict.accepted.tolist()
        assert one.verdict.path.tolist() == other.verdict.path.tolist()
        assert (
            one.state.tokens[:, : one.state.horizon].tolist()
            == other.state.tokens[:, : one.state.horizon].tolist()
        )
        for row, length in enumerate(one.state.length.tolist()):
            a, b = (step.state.cache.data[:, row, : length - 1] for step in (one, other))
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
        count, accepted = count + 1, accepted + int(one.verdict.accepted.clamp_min(0).sum())
    assert count > 2
    assert accepted or key in ("ar", "lookahead")
