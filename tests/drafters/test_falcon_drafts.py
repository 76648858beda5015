"""Falcon's drafting against the head run anew over text and path, without a cache; lists that are
shared; dynamic trees; what is refused."""

from __future__ import annotations

import random
from functools import cache
from itertools import product

import numpy as np
import pytest
import tiny
import torch
from test_eagle import CHANGES, layers
from torch import Tensor

import specwb
from specwb.core.flow import Scheme, Verdict
from specwb.drafters import falcon_dynamic
from specwb.drafters.beam import best
from specwb.drafters.falcon import FalconDrafter
from specwb.drafters.falcon_dynamic import DynamicFalcon
from specwb.models.eagle import eagle_config
from specwb.models.falcon import ALIGNS, FalconHead
from specwb.rules.rule import Rule

RAGGED = [
    [1, 2, 3],
    [5],
    list(range(20, 34)),
]  # the last longer than any window: some of it is fed once only
LOPSIDED = specwb.Tree.paths([(0, 0, 0, 0, 0), (0, 1, 0, 1), (1, 0, 1), (2,)])


@cache
def head(k: int, fusion: str = "lstm", layers: int = 2, spread: float = 0.15) -> FalconHead:
    """A random head of weights so large that what any place says depends on all that it sees, and
    not so large that rounding grows."""
    config, width = eagle_config(tiny.target(), layers), tiny.target().backbone.config.hidden_size
    made = tiny.loud(lambda: FalconHead(config, width, k, fusion), k, spread)
    return made.requires_grad_(False)


def built(drafter: FalconDrafter, rule: Rule | None = None) -> specwb.Method:
    return specwb.Method("falcon", drafter, rule, specwb.Exactness.LOSSLESS)


# ----------------------------------------------------------------------------- the head, run anew


class Anew:
    """The head over one row's text and paths below it, everything computed again for each block.
    ``ends``: how far each pair of the text sees."""

    def __init__(self, head: FalconHead, text: list[int], ends: Tensor) -> None:
        self.head, self.target, self.tokens = head, tiny.target(), text[1:]
        self.m = len(self.tokens)
        self.above = tiny.states(self.target, torch.tensor([text[:-1]]), head.features)[0]
        self.sees = torch.arange(self.m) <= ends[: self.m, None]
        self.known: dict[tuple[int, ...], Tensor] = {}

    def hidden(self, path: tuple[int, ...]) -> Tensor:
        """``[m + len(path), H]`` below whole blocks of tokens."""
        if path not in self.known:
            k, m, n = self.head.k, self.m, self.m + len(path)
            above, sees = self.above, torch.ones(n, n, dtype=torch.bool).tril()
            sees[:m, :m] = self.sees
            for b in range(len(path) // k):  # of a path the blocks before and the whole own one
                above = torch.cat([above, self.hidden(path[: b * k])[-k:]])
                sees[m + b * k : m + b * k + k, : m + b * k + k] = True
            with torch.no_grad():
                embedded = self.target.backbone.embed(torch.tensor([*self.tokens, *path]))
                pairs = torch.cat([embedded, above], -1)
                if self.head.fusion == "linear":
                    x = self.head.fc(pairs)
                elif self.head.fusion == "lstm":
                    x = self.head.lstm(pairs[None])[0][0]
                else:  # each pair a text of its own
                    x = self.head.lstm(pairs[:, None])[0][:, 0]
                self.known[path] = layers(self.head, x[None], x[None], sees)
        return self.known[path]

    def logits(self, path: tuple[int, ...]) -> Tensor:
        """``[V]`` what follows ``path`` as far as the block knows: its last whole block, and of
        what stands after it only how much."""
        k = self.head.k
        whole = path[: len(path) // k * k]
        with torch.no_grad():
            return self.head.logits(
                self.hidden(whole)[len(path) % k - k],
                self.head.output(self.target.backbone.lm_head),
            )


class Watched(FalconDrafter):
    """Keeps every round's blocks and LSTM states."""

    def propose(self, state, noise):
        draft = super().propose(state, noise)
        self.log.append((self.ends.clone(), self.states.clone()))
        return draft


class Forced(Rule):
    """Accepts any node, which depends on where the row is and how its text began only."""

    schemes = frozenset(Scheme)

    def uniforms(self, tree):
        return 0

    def verify(self, draft, scores, u):
        tree, rows = draft.tree, range(len(draft.tokens))
        node = []
        for row in rows:
            length, first = int(self.state.length[row]), int(self.state.tokens[row, 0])
            dice = random.Random(100 * length + first)
            node.append(
                dice.randrange(*tree.levels[dice.randrange(tree.D + 1)])
                if bool(draft.valid[row].all())
                else 0
            )
        at = torch.tensor(node)
        return Verdict(tree.trail[0, at], tree.depth[0, at], torch.empty(0), scores.p(at))


def forced_rounds(
    model: FalconHead,
    tree: specwb.Tree,
    draw: str,
    align: str,
    prompts: list[list[int]],
    count: int,
    temperature: float = 0.8,
):
    """Rounds with what the drafter had in each: (text before, ends, states, draft) by row; and all
    accepted lengths."""
    drafter, rule = Watched(model, tree, draw, align), Forced()
    drafter.log = []
    real = tiny.target().open

    def opened(*args, **options):
        Forced.state = real(*args, **options)
        return Forced.state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny.target(), "open", opened)
        seeds = [prompt[0] for prompt in prompts]
        loop = specwb.rounds(
            tiny.target(),
            prompts,
            built(drafter, rule),
            max_new_tokens=60,
            temperature=temperature,
            seed=seeds,
        )
        for step, _ in zip(loop, range(count)):
            ends, states = drafter.log[-1]
            rows = []
            for row in range(len(prompts)):
                text = step.state.tokens[row, : int(step.length[row])].tolist()
                rows.append((text, ends[row], states[row]))
            yield step, rows


DRAWN = [(*case, "q") for case in product((1, 2, 4), ("lstm",), ALIGNS)]
DRAWN += [(3, "linear", "left", "q"), (3, "pointwise", "right", "q")]
# what is drafted of the same logits, and of one row, is no matter of the fusion
DRAWN += [(2, "lstm", "right", "points"), (3, "lstm", "right", "alone")]


@pytest.mark.parametrize(("k", "fusion", "align", "what"), DRAWN)
def test_cached_drafting_is_the_head_run_anew(k, fusion, align, what):
    """Every node's law, and the LSTM's states of the text, after rounds of every accepted
    length."""
    prompts, rounds = (RAGGED[2:], 8) if what == "alone" else (RAGGED, 4)
    draw = "greedy" if what == "points" else "without"
    # deeper heads draft aligned to the left
    model = head(k, fusion, layers=3 if (align, k) == ("left", 2) else 2)
    tree = LOPSIDED if draw == "without" else specwb.Tree.branching(2, 2, 1, 1)
    parents, lengths, checked = tree.host[0], set(), 0
    for step, found in forced_rounds(model, tree, draw, align, prompts, rounds):
        lengths.update(step.verdict.accepted.tolist())
        for row, (text, ends, states) in enumerate(found):
            assert bool(step.draft.valid[row, 1:].any()) == (len(text) > k)
            if len(text) <= k:
                continue
            anew = Anew(model, text, ends)
            tokens = step.draft.tokens[row].tolist()
            for node in sorted(set(parents[1:])):
                logits = anew.logits(tuple(tiny.path_to(parents, tokens, node)))
                checked += 1
                if draw == "without":
                    q = step.draft.q[row, step.draft.q_row[0, node]]
                    torch.testing.assert_close(q, (logits / 0.8).softmax(-1), atol=1e-6, rtol=1e-3)
                else:
                    kids = [tokens[i] for i, parent in enumerate(parents) if parent == node]
                    torch.testing.assert_close(
                        logits[kids], logits.topk(len(kids)).values, atol=1e-4, rtol=0
                    )
            if fusion == "lstm":
                embedded = tiny.target().backbone.embed(torch.tensor([text[1:]]))
                wanted = model.mix(embedded, anew.above[None])[1][0]
                # of a long prompt those are 0 that no step can go on from
                there = states[: anew.m].any(-1)
                assert there[-(tree.D + k + 1) :].all()
                torch.testing.assert_close(
                    states[: anew.m][there], wanted[there], atol=1e-5, rtol=1e-4
                )
    assert checked > 15
    assert len(lengths) > 2, "one acceptance length alone proves little"


# ---------------------------------------------------------------------------------- dynamic trees


class Grown(DynamicFalcon):
    """Keeps what the head said of every block; ``change`` makes ties."""

    def __init__(self, *settings, change, align="right") -> None:
        super().__init__(*settings, align=align)
        self.change, self.said, self.log = change, [], []

    def propose(self, state, noise):
        self.said.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(falcon_dynamic, "best", self._best)
            draft = super().propose(state, noise)
        self.log.append(self.ends.clone())
        return draft

    def _best(self, logits, top):
        score, token = best(logits, top)
        self.said.append((self.change(score), token))
        return self.said[-1]


Node = tuple[np.float32, tuple[int, ...]]


def grown(
    said: list[tuple[list, list]], k: int, nodes: int, beams: int
) -> tuple[list[Node], list[tuple[int, ...]]]:
    """The drafted nodes (score and path) by the words of the docstring, for one row; and the paths
    of all blocks."""
    made: list[Node] = []
    blocks: list[Node] = [(np.float32(0), ())]
    asked: list[tuple[int, ...]] = []
    for scores, tokens in said:
        asked += [path for _, path in blocks]
        words = [list(zip(*both, strict=True)) for both in zip(scores, tokens, strict=True)]
        lists = [words[i : i + k] for i in range(0, len(words), k)]
        frontier: list[Node] = []
        for length in range(1, k + 1):
            frontier = []
            for (start, path), own in zip(blocks, lists, strict=True):
                for combination in product(*own[:length]):
                    total = start
                    for score, _ in combination:
                        total = np.float32(total + np.float32(score))
                    frontier.append((total, (*path, *(token for _, token in combination))))
            made += frontier
        blocks = sorted(frontier, key=lambda node: -node[0])[:beams]
    kept = sorted(sorted(range(len(made)), key=lambda i: (-made[i][0], i))[: nodes - 1])
    return [made[i] for i in kept], asked


SETTINGS = [
    (2, (10, 3, 3, 2)),
    (3, (10, 2, 2, 3)),
    (4, (9, 2, 2, 20)),
]


@pytest.mark.parametrize(
    ("k", "settings", "name"),
    [
        *((*case, "as they are") for case in SETTINGS),
        *((*SETTINGS[0], name) for name in list(CHANGES)[1:]),
    ],
    ids=str,
)
def test_the_dynamic_tree_is_what_brute_force_finds(k, settings, name):
    """All combinations, cut and re-ranked in plain Python from the head's own words; and those are
    the head's, run anew."""
    nodes, _, top, beams = settings
    align, change = "left" if k == 3 else "right", CHANGES[name]
    drafter, shapes = Grown(head(k), *settings, change=change, align=align), set()
    for step, _ in zip(
        specwb.rounds(
            tiny.target(),
            [[1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12, 13]],
            built(drafter),
            max_new_tokens=8,
        ),
        range(4),
    ):
        draft = step.draft
        for row in range(2):
            said = [(score[row].tolist(), token[row].tolist()) for score, token in drafter.said]
            kept, asked = grown(said, k, nodes, beams)
            parents, tokens = draft.tree.host[row], draft.tokens[row].tolist()
            assert [tuple(tiny.path_to(parents, tokens, node)) for node in range(1, nodes)] == [
                path for _, path in kept
            ]
            assert draft.tree.depths[row] == (0, *(len(path) for _, path in kept))
            paths = {(), *(path for _, path in kept)}
            assert len(paths) == nodes
            assert all(path[:-1] in paths for path in paths), "closed under parents"
            assert draft.valid[row, 1:].tolist() == [score > -np.inf for score, _ in kept]
            shapes.add(parents)
            if change is CHANGES["as they are"]:
                text = step.state.tokens[row, : int(step.length[row])].tolist()
                anew = Anew(head(k), text, drafter.log[-1][row])
                heard = [
                    words for scores, tokens in said for words in zip(scores, tokens, strict=True)
                ]
                assert len(heard) == k * len(asked)
                for place, (scores, tokens) in enumerate(heard):
                    wanted = anew.logits((*asked[place // k], *[0] * (place % k))).log_softmax(-1)
                    torch.testing.assert_close(
                        torch.tensor(scores), wanted.topk(top).values, atol=1e-4, rtol=1e-4
                    )
                    torch.testing.assert_close(
                        torch.tensor(scores), wanted[tokens], atol=1e-4, rtol=1e-4
                    )
    if change is CHANGES["as they are"] and nodes > 3:
        assert len(shapes) > 1, "one shape alone proves little"
