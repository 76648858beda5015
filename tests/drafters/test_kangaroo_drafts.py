"""Kangaroo's drafting against the adapter run anew over text and path; its three caches after every
part of a round; its dynamic trees against plain Python; what is refused."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import tiny
import torch
from test_eagle import CHANGES
from torch import Tensor

import specwb
from specwb.drafters import kangaroo as module
from specwb.drafters.beam import best
from specwb.drafters.kangaroo import DynamicKangaroo, KangarooDrafter
from specwb.models.eagle import eagle_config
from specwb.models.kangaroo import KangarooAdapter

PROMPTS, V = tiny.PROMPTS, tiny.VOCABULARY


@cache
def head(exit: int = 1, adapter: str = "attention", layers: int = 1) -> KangarooAdapter:
    """A random adapter whose every place depends on all that it sees."""
    config = eagle_config(tiny.target(), layers)
    made = tiny.loud(lambda: KangarooAdapter(config, exit, adapter), exit)
    return made.requires_grad_(False)


def built(drafter: KangarooDrafter) -> specwb.Method:
    return specwb.Method("kangaroo", drafter, None, specwb.Exactness.LOSSLESS)


def distributions(head: KangarooAdapter, texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Of texts of one length the states at the exit ``[texts,H]`` and logits of what follows
    ``[texts,V]``, from nothing."""
    target = tiny.target()
    with torch.no_grad():
        f = tiny.states(target, torch.tensor(texts), head.features)
        return f[:, -1], head.logits(head(f)[:, -1], head.output(target.backbone.lm_head))


# ----------------------------------------------------------------------------- drafting, run anew


@pytest.mark.parametrize(
    ("exit", "adapter", "layers"),
    [(0, "attention", 2), (2, "layer", 1), (1, "mlp", 1)],
)
def test_cached_drafting_is_the_adapter_run_anew(exit, adapter, layers):
    """Every node's law, and the state that verification goes on from, are those of its own path."""
    model, tree, lengths = head(exit, adapter, layers), tiny.LOPSIDED, set()
    parents = tree.host[0]
    run = {"max_new_tokens": 20, "temperature": 0.7, "seed": 1}
    for step, _ in zip(
        specwb.rounds(tiny.target(), PROMPTS, built(KangarooDrafter(model, tree)), **run), range(4)
    ):
        lengths.update(step.verdict.accepted.tolist())
        assert step.draft.start_layer == exit
        for row in range(len(PROMPTS)):
            text = step.state.tokens[row, : int(step.length[row])].tolist()
            tokens = step.draft.tokens[row].tolist()
            for start, stop in tree.levels:
                states, logits = distributions(
                    model,
                    [text + tiny.path_to(parents, tokens, node) for node in range(start, stop)],
                )
                torch.testing.assert_close(
                    step.draft.hidden[row, start:stop], states, atol=1e-4, rtol=1e-4
                )
                for node in set(parents) & set(range(start, stop)):
                    q = step.draft.q[row, step.draft.q_row[0, node]]
                    torch.testing.assert_close(
                        q, (logits[node - start] / 0.7).softmax(-1), atol=1e-5, rtol=1e-3
                    )
    assert len(lengths) > 1, "one acceptance length alone proves little"


# ---------------------------------------------------------------------------------- dynamic trees


class Watched(DynamicKangaroo):
    """Keeps what the adapter said of every beam; ``change`` makes ties."""

    def __init__(self, *settings, change=CHANGES["as they are"]) -> None:
        super().__init__(*settings)
        self.change, self.said = change, []

    def propose(self, state, noise):
        self.said.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "best", self._best)
            return super().propose(state, noise)

    def _best(self, logits, top):
        score, token = best(logits, top)
        self.said.append((self.change(score), token))
        return self.said[-1]


def papers(
    said: list[tuple[list, list]], nodes: int, depth: int, top: int, eta: float
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], int]:
    """Of one row the paths that are drafted, best first among all that were made; the beams that
    were asked; how many levels were drafted."""
    least = np.float32(math.log(eta)) if eta else -np.inf
    beams = [
        ((token,), np.float32(score))
        for score, token in zip(said[0][0][0], said[0][1][0], strict=True)
    ]
    tree, asked = dict(beams), [()]
    levels = 1
    while levels < depth and beams[0][1] >= least and 1 + len(tree) < nodes:
        scores, tokens = said[levels]
        asked += [path for path, _ in beams]
        every = [
            ((*path, token), np.float32(score + np.float32(more)))
            for (path, score), own, words in zip(beams, scores, tokens, strict=True)
            for more, token in zip(own, words, strict=True)
        ]
        chosen = sorted(every, key=lambda node: -node[1])[
            :top
        ]  # stable: of equals the one made first
        barren = [path for path, _ in beams if all(child[:-1] != path for child, _ in chosen)]
        for path in barren[len(barren) - len(barren) // 2 :]:
            del tree[path]
        tree |= dict(chosen)
        beams, levels = chosen, levels + 1
    made = [path for path in tree if tree[path] > -np.inf]
    kept = sorted(made, key=lambda path: -tree[path])[: nodes - 1]
    return [path for path in made if path in kept], asked, levels


SETTINGS = [
    (9, 3, 3, 0.2),
    (6, 5, 2, 0.0),
    (17, 4, 4, 0.1),
    (13, 3, 4, 1.0),
]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        *((settings, "as they are") for settings in SETTINGS),
        *((settings, name) for settings in SETTINGS[::2] for name in list(CHANGES)[1:]),
    ],
    ids=str,
)
def test_the_dynamic_tree_is_the_papers(settings, name):
    """Beams by the product along their path, half of what has no child pruned, an end below eta,
    the best within the budget; in plain Python from the adapter's own words, and those are of the
    path they are said of."""
    (nodes, depth, top, eta), change = settings, CHANGES[name]
    model, shapes, ended, budget = tiny.head("kangaroo"), set(), set(), False
    drafter = Watched(model, *settings, change=change)
    for step, _ in zip(
        specwb.rounds(tiny.target(), PROMPTS, built(drafter), max_new_tokens=24), range(3)
    ):
        draft, widest = step.draft, 0
        for row in range(3):
            said = [(score[row].tolist(), token[row].tolist()) for score, token in drafter.said]
            kept, asked, levels = papers(said, *settings)
            parents, tokens = draft.tree.host[row], draft.tokens[row].tolist()
            valid = [node for node in range(1, draft.tree.n) if draft.valid[row, node]]
            assert [tuple(tiny.path_to(parents, tokens, node)) for node in valid] == kept
            assert [draft.tree.depths[row][node] for node in valid] == [len(path) for path in kept]
            assert len(valid) <= nodes - 1
            budget |= len(valid) == nodes - 1
            widest = max(widest, len(valid))
            shapes.add(parents)
            ended.add(levels)
            text = step.state.tokens[row, : int(step.length[row])].tolist()
            for level in range(1, levels + 1):
                of_level = [
                    (node, path)
                    for node, path in zip(valid, kept, strict=True)
                    if len(path) == level
                ]
                if of_level:
                    states, _ = distributions(model, [[*text, *path] for _, path in of_level])
                    torch.testing.assert_close(
                        draft.hidden[row, [node for node, _ in of_level]],
                        states,
                        atol=1e-4,
                        rtol=1e-4,
                    )
            if change is CHANGES["as they are"]:
                for level, (scores, words) in enumerate(said[:levels]):
                    _, logits = distributions(
                        model, [[*text, *path] for path in asked if len(path) == level]
                    )
                    wanted = logits.log_softmax(-1)
                    torch.testing.assert_close(
                        torch.tensor(scores), wanted.topk(top).values, atol=1e-4, rtol=1e-4
                    )
                    torch.testing.assert_close(
                        torch.tensor(scores),
                        wanted.gather(1, torch.tensor(words)),
                        atol=1e-4,
                        rtol=1e-4,
                    )
        assert draft.tree.n == 1 + widest, "on the CPU no more than some row uses"
    if change is CHANGES["as they are"]:
        assert len(shapes) > 1 or nodes == 13, "one shape alone proves little"
        assert (
            (1 in ended) if eta == 1 else (len(ended) > 1) if eta else (ended == {depth} or budget)
        )
        assert budget or eta
