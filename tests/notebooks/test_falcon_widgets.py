"""The views of drafting in blocks show the library's masks, choices, predictions and trees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drawn import numbers, picture, shown
from explorers import BLOCKS, PAIRS, TABLES

from specwb import analysis, figures
from specwb.analysis import dependence
from specwb.blocks import BlockTree
from specwb.drafters.heads import accuracies, measured_tree
from specwb.mask import sight_mask
from specwb.training.falcon import glance_mask
from specwb.widgets import BlockDesigner, BlockExplorer, DependenceExplorer, GlancingExplorer


@pytest.mark.parametrize(
    ("k", "pairs", "align"), [(2, 7, "left"), (3, 8, "right"), (4, 9, "left"), (1, 5, "right")]
)
def test_who_sees_whom(k, pairs, align):
    explorer = BlockExplorer()
    explorer.k.value, explorer.pairs.value, explorer.align.value = k, pairs, align
    (cells,) = [t for t in shown(explorer)["data"] if t["type"] == "heatmap"]
    seen = [[v is not None for v in row] for row in cells["z"]]
    ends = [
        min(i // k * k + k, pairs) if align == "left" else pairs - (pairs - 1 - i) // k * k
        for i in range(pairs)
    ]
    mask = sight_mask(torch.tensor([ends]) - 1, pairs, torch.float32)[0] == 0
    assert seen == mask.tolist()
    assert explorer.sees == ends[-k:]
    missing = sum(end < pairs for end in ends[-k:])
    assert numbers(explorer)[:2] == [str(k), str(pairs)]
    assert ("without the newest pair" in explorer.summary) == bool(missing)
    own = [sum(v == 1 for v in row) for row in cells["z"]]
    assert own == [ends.count(end) for end in ends]


@pytest.mark.parametrize(("d", "g"), [(0.0, 0.5), (0.35, 0.2), (1.0, 1.0)])
def test_dependence_at_the_same_margins(d, g):
    chances = np.array([0.5, 0.3, 0.2])
    view = DependenceExplorer(PAIRS, chances.tolist(), d=d, g=g)
    assert view.joint.sum(0) == pytest.approx(chances) == view.joint.sum(1)
    assert np.diag(view.joint) == pytest.approx(chances * (chances + d * (1 - chances)))
    assert shown(view) == picture(figures.dependence(view.joint.tolist(), "ace", "bdf", g))
    lacking = dependence.total_correlation(view.joint)
    training = dependence.excess(view.joint, dependence.prefix_reveal(2, g))
    kept = 1 - d * (1 - chances @ chances)
    entropy = dependence.entropy(np.diag(chances))
    said = (d, 100 * g, lacking, entropy, training, lacking, kept)
    assert list(map(float, numbers(view))) == pytest.approx(said, abs=6e-4)


@pytest.mark.parametrize(
    ("k", "ratio", "wrong", "seed"),
    [(2, 0.4, 0.5, 0), (3, 1.0, 0.6, 4), (3, 0.0, 1.0, 0), (2, 1.0, 1.0, 1)],
)
def test_which_pairs_glance(k, ratio, wrong, seed):
    explorer = GlancingExplorer(TABLES)
    explorer.k.value, explorer.ratio.value, explorer.wrong.value, explorer.seed.value = (
        k,
        ratio,
        wrong,
        seed,
    )
    rng = np.random.default_rng(seed)
    texts, blocks = explorer.TEXTS, explorer.BLOCKS
    u = [torch.from_numpy(rng.random((texts, blocks))) for _ in range(2)]
    mask = glance_mask(
        torch.full((texts,), int(round(ratio * wrong, 6) * k * blocks)), k * blocks, k, *u
    )
    assert explorer.replaced == mask.tolist()
    lengths = mask.view(-1, k).sum(1).tolist()
    assert explorer.share == pytest.approx(sum(map(bool, lengths)) / len(lengths))
    joint, weights = TABLES[k]
    # the excess of these texts, counted place by place
    total = 0.0
    for j in range(2, k + 1):
        counted = [r for r in lengths if r < j]
        total += sum(
            dependence.mutual_information(joint, (j,), range(r + 1, j), range(1, r + 1), weights)
            for r in counted
        ) / max(1, len(counted))
    assert explorer.excess == pytest.approx(total)
    replaced, floor = int(mask.sum()), dependence.total_correlation(joint, weights)
    said = (k, ratio, 100 * wrong, replaced, mask.numel(), 100 * explorer.share, total, floor)
    assert list(map(float, numbers(explorer))) == pytest.approx(said, abs=0.51)
    assert numbers(explorer)[-2:] == [f"{total:.3f}", f"{floor:.3f}"]
    drawn = shown(explorer)["data"]
    (block,) = [t for t in drawn if t.get("name") == "the block"]
    for g in (0, 10, 20):
        assert block["y"][g] == pytest.approx(
            dependence.excess(joint, dependence.prefix_reveal(k, g / 20), weights), abs=1e-4
        )


@pytest.mark.parametrize(
    ("head", "passes", "nodes", "costs"),
    [
        ("falcon", 2, 16, (0.02, 0.1, 0.01)),
        ("falcon", 4, 40, (0, 0.5, 0.1)),
        ("eagle", 2, 9, (0.1, 0, 0)),
    ],
)
def test_trees_by_passes(head, passes, nodes, costs):
    designer = BlockDesigner(BLOCKS)
    designer.head.value, designer.passes.value, designer.nodes.value = head, passes, nodes
    designer.v.value, designer.c.value, designer.f.value = costs
    k, one = BLOCKS[head]
    v, c, f = costs

    def best(m: int, n: int) -> tuple[BlockTree, float, float]:
        rates = accuracies(one)
        tree = measured_tree(one, n, min(k * m, len(rates)))
        made = BlockTree(tree, k)
        tau = sum(analysis.path_values(rates, tree.host[0]))
        return (
            made,
            tau,
            tau
            / (
                1
                + v * (tree.n - 1)
                + c * len(made.passes)
                + f * k * sum(len(p.blocks) for p in made.passes[1:])
            ),
        )

    made, tau, speed = best(passes, nodes)
    assert designer.tree.tree.host == made.tree.host
    assert (designer.tau, designer.speed) == pytest.approx((tau, speed))
    assert len(made.passes) <= passes
    assert max(made.tree.depths[0]) <= k * passes
    curves = {
        f"{m} pass{'es' if m > 1 else ''}": [1.0, *(best(m, n)[2] for n in range(2, 65))]
        for m in range(1, 5)
    }
    assert shown(designer) == picture(
        figures.block_designer(made, curves, f"{passes} pass{'es' if passes > 1 else ''}")
    )
    top = max(max(curve) for curve in curves.values())
    blocks = [len(p.blocks) for p in made.passes]
    said = [k, made.tree.n, made.tree.D, *blocks, f"{tau - 1:.2f}", 1, f"{tau:.2f}"]
    assert numbers(designer)[: len(said)] == list(map(str, said))
    assert numbers(designer)[-1] == f"{top:.2f}"


def test_what_is_missing():
    for call, message in (
        (lambda: GlancingExplorer({}), "nothing to choose k from"),
        (lambda: GlancingExplorer({3: TABLES[2]}), "a joint distribution"),
        (lambda: BlockDesigner({}), "nothing to choose head from"),
        (lambda: BlockDesigner({"falcon": (2, {})}), "the card has none"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
