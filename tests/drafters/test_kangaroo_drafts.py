"""Kangaroo's drafting against the adapter run anew over text and path; its three caches after every
part of a round; its dynamic trees against plain Python; what is refused."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import tiny
import torch
from test_eagle import CHANGES, path_to
from torch import Tensor

import specwb
from specwb.drafters import kangaroo as module
from specwb.drafters.beam import best
from specwb.drafters.kangaroo import DynamicKangaroo, KangarooDrafter
from specwb.models.backbone import Backbone, Stack
from specwb.models.eagle import eagle_config
from specwb.models.kangaroo import KangarooAdapter
from specwb.models.target import Target

PROMPTS, V = tiny.PROMPTS, tiny.VOCABULARY
LOPSIDED = specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)])
BUSHY = specwb.Tree.branching(2, 2, 1)


@cache
def head(exit: int = 1, adapter: str = "attention", layers: int = 1) -> KangarooAdapter:
    """A random adapter whose every place depends on all that it sees."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(exit)
        made = KangarooAdapter(eagle_config(tiny.target(), layers), exit, adapter)
        for name, weight in made.named_parameters():
            weight.data = torch.randn_like(weight) * 0.25 + ("norm" in name)
    return made.requires_grad_(False).eval()


def built(drafter: KangarooDrafter) -> specwb.Method:
    return specwb.Method("kangaroo", drafter, None, specwb.Exactness.LOSSLESS)


def distributions(head: KangarooAdapter, texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Of texts of one length the states at the exit ``[texts,H]`` and logits of what follows
    ``[texts,V]``, from nothing."""
    target = tiny.target()
    with torch.no_grad():
        f = tiny.states(target, torch.tensor(texts), head.features)
        return f[:, -1], head.logits(head(f)[:, -1], target.backbone.lm_head)


# ----------------------------------------------------------------------------- drafting, run anew


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[2:]], ids=["batch", "alone"])
@pytest.mark.parametrize("tree", [specwb.Tree.chain(3), LOPSIDED], ids=["chain", "lopsided"])
@pytest.mark.parametrize(
    ("exit", "adapter", "layers"),
    [(0, "attention", 1), (1, "attention", 2), (2, "layer", 1), (1, "mlp", 1)],
)
def test_cached_drafting_is_the_adapter_run_anew(exit, adapter, layers, tree, prompts):
    """Every node's law, and the state that verification goes on from, are those of its own path."""
    model, parents, lengths = head(exit, adapter, layers), tree.host[0], set()
    run = {"max_new_tokens": 20, "temperature": 0.7, "seed": 1}
    for step, _ in zip(
        specwb.rounds(tiny.target(), prompts, built(KangarooDrafter(model, tree)), **run), range(4)
    ):
        lengths.update(step.verdict.accepted.tolist())
        assert step.draft.start_layer == exit
        for row in range(len(prompts)):
            text = step.state.tokens[row, : int(step.length[row])].tolist()
            tokens = step.draft.tokens[row].tolist()
            for start, stop in tree.levels:
                states, logits = distributions(
                    model, [text + path_to(parents, tokens, node) for node in range(start, stop)]
                )
                torch.testing.assert_close(
                    step.draft.hidden[row, start:stop], states, atol=1e-4, rtol=1e-4
                )
                for node in set(parents) & set(range(start, stop)):
                    q = step.draft.q[row, step.draft.q_row[0, node]]
                    torch.testing.assert_close(
                        q, (logits[node - start] / 0.7).softmax(-1), atol=1e-5, rtol=1e-3
                    )
    assert len(lengths) > 1 or len(prompts) == 1, "one acceptance length alone proves little"


# ----------------------------------------------------------------- the three caches, part by part


@cache
def entries(text: tuple[int, ...]) -> Tensor:
    """``[layers, m, 2 * kv_heads, head_dim]`` keys and values of a text in the target's cache."""
    return tiny.recomputed(tiny.target().backbone, torch.tensor(text))


class Told:
    """The best of a draft is the text's true continuation for so many levels, then wrong; every
    cache is looked at after each part of a round."""

    truth: list[list[int]]
    starts: list[int]

    def open(self, state, target):
        super().open(state, target)
        type(self).lengths, type(self).seen, self.round = [], set(), 0

    def propose(self, state, noise):
        before, own = (
            state.cache.data.clone(),
            self.cache.data.clone() if self.stack is not None else None,
        )
        depths = range(self.limits.depth + 1)
        self.wanted = [depths[(self.round + 2 * row) % len(depths)] for row in range(state.rows)]
        self.at, self.round = 0, self.round + 1
        self.base = (state.length - 1).tolist()
        self.texts = [
            state.tokens[row, : int(state.length[row])].tolist() for row in range(state.rows)
        ]
        self.draft = draft = super().propose(state, noise)
        self.paths = {}
        for row in range(state.rows):
            if state.done[row]:
                continue
            parents, tokens = (
                draft.tree.host[row if draft.tree.R > 1 else 0],
                draft.tokens[row].tolist(),
            )
            for node in range(draft.tree.n):
                if draft.valid[row, node]:
                    self.paths[row, node] = path_to(parents, tokens, node)
        self.drafted(state, before, own)
        return draft

    def own_logits(self, hidden):
        """A token's rank is how far it is above the told one."""
        super().own_logits(hidden)
        said = []
        for row, wanted in enumerate(self.wanted):
            place = self.base[row] + 1 + self.at - self.starts[row]
            right = self.truth[row][min(place, len(self.truth[row]) - 1)]
            said.append((right + (0 if self.at < wanted else V // 2)) % V)
        self.at += 1
        away = (torch.arange(V) - torch.tensor(said)[:, None]) % V
        return -away[:, None].float().expand(-1, hidden.shape[1], -1).contiguous()

    def drafted(self, state, before, own):
        """Shallow: the text and every node. Deep: nothing new. Adapter: the text and every node
        that has been expanded."""
        assert torch.equal(state.cache.data[self.exit :], before[self.exit :])
        for (row, node), path in self.paths.items():
            slot, text = self.base[row] + node, self.texts[row] + path
            torch.testing.assert_close(
                state.cache.data[: self.exit, row, slot],
                entries(tuple(text))[: self.exit, -1],
                atol=1e-4,
                rtol=1e-4,
            )
            expanded = len(path) < self.draft.tree.D and (
                node in self.draft.tree.host[0] or isinstance(self, DynamicKangaroo)
            )
            if own is not None and expanded:
                fresh = tiny.recomputed_adapter(self, tiny.target(), torch.tensor(text))[:, -1]
                torch.testing.assert_close(
                    self.cache.data[:, row, slot], fresh, atol=1e-4, rtol=1e-4
                )
        for row in {row for row, _ in self.paths}:
            self.text_is_right(state, row, self.texts[row][:-1], len(self.texts[row]) - 1)
        if (
            own is not None and self.draft.tree.is_chain
        ):  # D entries, not D + 1: the last level did not go through the adapter
            for row in {row for row, _ in self.paths}:
                last = self.base[row] + self.draft.tree.n - 1
                assert torch.equal(self.cache.data[:, row, last], own[:, row, last])

    def text_is_right(self, state, row, text, in_adapter):
        if text:
            torch.testing.assert_close(
                state.cache.data[:, row, : len(text)], entries(tuple(text)), atol=1e-4, rtol=1e-4
            )
            if self.stack is not None and in_adapter > 0:
                fresh = tiny.recomputed_adapter(
                    self, tiny.target(), torch.tensor(text[:in_adapter])
                )
                torch.testing.assert_close(
                    self.cache.data[:, row, :in_adapter], fresh, atol=1e-4, rtol=1e-4
                )

    def scored(self, state):
        """Shallow and deep: every node."""
        for (row, node), path in self.paths.items():
            wanted = entries(tuple(self.texts[row] + path))[:, -1]
            torch.testing.assert_close(
                state.cache.data[:, row, self.base[row] + node], wanted, atol=1e-4, rtol=1e-4
            )

    def observe(self, state, draft, verdict, scores):
        super().observe(state, draft, verdict, scores)
        emitted = draft.tokens.gather(1, verdict.path)
        for row, accepted in enumerate(verdict.accepted.tolist()):
            if accepted < 0:
                continue
            # the new text but its pending token: n + accepted + 1 entries
            text = self.texts[row] + emitted[row, 1 : accepted + 1].tolist()
            deepest = max(len(path) for (r, _), path in self.paths.items() if r == row)
            full = accepted == deepest
            self.text_is_right(
                state, row, text, len(text) - full
            )  # after full acceptance the adapter is one short
            type(self).seen.add(full)
            left = int(state.limit[row]) - int(state.length[row])
            assert accepted == min(self.wanted[row], deepest, left - 1)
            type(self).lengths.append(accepted)


class ToldChain(Told, KangarooDrafter):
    pass


class ToldTree(Told, DynamicKangaroo):
    pass


DRAFTERS = {
    "chain": lambda: ToldChain(head(), specwb.Tree.chain(3)),
    "chain behind two layers": lambda: ToldChain(head(2, "layer"), specwb.Tree.chain(2)),
    "chain behind the embedding": lambda: ToldChain(head(0), specwb.Tree.chain(3)),
    "static tree": lambda: ToldChain(head(), BUSHY),
    "lopsided tree, two layers of adapter": lambda: ToldChain(head(1, "attention", 2), LOPSIDED),
    "dynamic tree": lambda: ToldTree(head(), 10, 3, 3, 0.0),
    "dynamic tree behind two layers": lambda: ToldTree(head(2), 6, 3, 2, 0.0),
    "dynamic tree without attention": lambda: ToldTree(head(1, "mlp"), 6, 3, 2, 0.0),
}


@pytest.mark.parametrize("rows", [PROMPTS, PROMPTS[:1]], ids=["batch", "alone"])
@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
def test_all_caches_after_every_part_of_a_round(drafter, rows, monkeypatch):
    """After drafting, after verification, after clean-up; after full acceptance and after a
    rejection at every depth, in rows of one batch."""
    target, made = tiny.target(), drafter()
    Told.truth = [list(tiny.plain("llama", tuple(prompt), 24)) for prompt in rows]
    Told.starts = [len(prompt) for prompt in rows]
    real = Target.score
    current = []

    def opened(self, state, at):
        current[:] = [self]
        return real_open(self, state, at)

    def score(self, state, draft, *rest):
        out = real(self, state, draft, *rest)
        current[0].scored(state)
        return out

    real_open = type(made).open
    monkeypatch.setattr(type(made), "open", opened)
    monkeypatch.setattr(Target, "score", score)
    out = specwb.decode(target, rows, built(made), max_new_tokens=12)
    assert out.tokens == [tokens[:12] for tokens in Told.truth]
    assert set(type(made).lengths) == set(range(made.limits.depth + 1))
    assert type(made).seen == {True, False}


@pytest.mark.parametrize(
    ("drafter", "D"),
    [
        (KangarooDrafter(head(), specwb.Tree.chain(4)), 4),
        (KangarooDrafter(head(), BUSHY), 3),
        (DynamicKangaroo(head(), 8, 3, 3, 0.0), 3),
    ],
    ids=["chain", "static tree", "dynamic tree"],
)
@pytest.mark.parametrize("rows", [PROMPTS, PROMPTS[:1]], ids=["batch", "alone"])
def test_the_first_layers_run_once_a_token(drafter, D, rows, monkeypatch):
    """D + 1 times in a round, each token in one of them; the others once, from their states,
    without an embedding; the adapter D times."""
    target, calls, embedded = tiny.target(), [], []
    real = Stack.run

    def run(self, x, *rest, first=0, last=None, **more):
        calls.append(
            ("target" if isinstance(self, Backbone) else "adapter", first, last, x.shape[1])
        )
        return real(self, x, *rest, first=first, last=last, **more)

    monkeypatch.setattr(Stack, "run", run)
    steps = specwb.rounds(target, rows, built(drafter), max_new_tokens=20, temperature=1.0)
    # a target with a hook is refused, so this one comes after that was asked
    hook = target.backbone.embed.register_forward_hook(
        lambda module, given, out: embedded.append(out.shape[1])
    )
    try:
        for n, step in enumerate(steps):
            if n:  # the first comes after the prefill
                shallow = [
                    m for which, first, last, m in calls if (which, first, last) == ("target", 0, 1)
                ]
                deep = [
                    (first, last, m)
                    for which, first, last, m in calls
                    if which == "target" and (first, last) != (0, 1)
                ]
                assert len(shallow) == D + 1
                assert embedded == shallow, "a token was embedded for verification"
                assert sum(shallow) == (
                    1 + D * 3 if isinstance(drafter, DynamicKangaroo) else step.draft.tree.n
                )
                assert deep == [(1, None, step.draft.tree.n)]
                assert sum(which == "adapter" for which, *_ in calls) == D
            calls.clear()
            embedded.clear()
    finally:
        hook.remove()


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
    (4, 3, 1, 0.4),
    (3, 2, 4, 0.0),
    (13, 3, 4, 1.0),
    (25, 4, 6, 0.05),
]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_dynamic_tree_is_the_papers(settings, change):
    """Beams by the product along their path, half of what has no child pruned, an end below eta,
    the best within the budget; in plain Python from the adapter's own words, and those are of the
    path they are said of."""
    nodes, depth, top, eta = settings
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
            assert [tuple(path_to(parents, tokens, node)) for node in valid] == kept
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
        assert len(shapes) > 1 or nodes in (3, 4, 13), "one shape alone proves little"
        assert (
            (1 in ended) if eta == 1 else (len(ended) > 1) if eta else (ended == {depth} or budget)
        )
        assert budget or eta


def test_barren_nodes_are_pruned_by_half():
    """By hand: of a level's four, one has all the children; of the three others the lowest goes."""
    said = [
        ([[-0.1, -2.0, -2.5, -3.0]], [[1, 2, 3, 4]]),
        ([[-0.5, -0.6, -0.7, -0.8]] + [[-9.0] * 4] * 3, [[5, 6, 7, 8]] + [[9, 10, 11, 12]] * 3),
    ]
    kept, _, levels = papers(said, 9, 2, 4, 0.0)
    assert kept == [(1,), (2,), (3,), (1, 5), (1, 6), (1, 7), (1, 8)]
    assert levels == 2
    assert papers(said, 6, 2, 4, 0.0)[0] == [(1,), (1, 5), (1, 6), (1, 7), (1, 8)]
    assert papers(said, 5, 2, 4, 0.0)[0] == [(1,), (2,), (3,), (4,)], (
        "a tree that has its nodes ends"
    )


def test_one_beam_is_the_chain():
    """K = 1 without a threshold drafts, and accepts, what the chain does."""
    model, run = tiny.head("kangaroo"), {"max_new_tokens": 30}
    chain, beam = (
        list(specwb.rounds(tiny.target(), PROMPTS, built(d), **run))
        for d in (
            KangarooDrafter(model, specwb.Tree.chain(4), "greedy"),
            DynamicKangaroo(model, 5, 4, 1, 0.0),
        )
    )
    for a, b in zip(chain, beam, strict=True):
        assert torch.equal(a.draft.tokens, b.draft.tokens)
        assert torch.equal(a.verdict.accepted, b.verdict.accepted)
        torch.testing.assert_close(a.draft.hidden, b.draft.hidden, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_a_dynamic_tree_does_not_depend_on_the_batch(temperature):
    def drafts(prompts: list[list[int]], seeds: list[int]) -> list[list[tuple]]:
        found: list[list[tuple]] = [[] for _ in prompts]
        drafter = DynamicKangaroo(tiny.head("kangaroo"), 10, 4, 3, 0.05)
        for step in specwb.rounds(
            tiny.target(),
            prompts,
            built(drafter),
            max_new_tokens=20,
            temperature=temperature,
            seed=seeds,
        ):
            for row, done in enumerate(step.verdict.accepted.tolist()):
                if done >= 0:
                    parents, tokens = step.draft.tree.host[row], step.draft.tokens[row].tolist()
                    paths = [
                        tuple(path_to(parents, tokens, node))
                        for node in step.draft.valid[row].nonzero().flatten().tolist()
                    ]
                    found[row].append((paths, done))
        return found

    together = drafts(PROMPTS, [3, 4, 5])
    for row, prompt in enumerate(PROMPTS):
        assert drafts([prompt], [3 + row]) == [together[row]]
    assert len({len(paths) for row in together for paths, _ in row}) > 1
    assert len({accepted for row in together for *_, accepted in row}) > 1


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_what_stands_for_the_tree_has_its_bounds(settings):
    drafter = DynamicKangaroo(head(), *settings)
    step = next(specwb.rounds(tiny.target(), PROMPTS, built(drafter), max_new_tokens=12))
    assert step.draft.tree.n <= drafter.limits.nodes <= settings[0]
    assert step.draft.tree.D <= drafter.limits.depth == settings[1]
    assert drafter.limits.children == step.draft.tree.K


# ------------------------------------------------------------------------------------ the builder


def test_usual_settings():
    """A chain of six, or the paper's tree of as many levels, at eta .4; a static tree as for
    mcsd."""
    made = {
        spec: specwb.method(spec, tiny.target(), head=head()).drafter
        for spec in ("kangaroo", "kangaroo:tree=true", "kangaroo:tree=2-2-1")
    }
    chain, grown, static = made.values()
    assert (chain.tree.D, chain.tree.is_chain, chain.length.confidence, chain.sure.scaled) == (
        6,
        True,
        0.4,
        False,
    )
    assert (grown.limits.depth, grown.limits.nodes, grown.top, grown.least_score) == (
        6,
        16,
        4,
        math.log(0.4),
    )
    assert (static.tree.host, static.length.confidence) == (BUSHY.host, 0.4)
    assert specwb.method("kangaroo:eta=0", tiny.target(), head=head()).drafter.length is None
    assert specwb.method("kangaroo:eta=0", tiny.target(), head=head()).drafter.host_reads == 0
    assert chain.features == (1,)


BAD = [
    ({"eta": 1.5}, r"kangaroo: eta must be a number in \[0, 1\], got 1.5"),
    ({"eta": -0.1}, "eta must be a number in"),
    ({"eta": True}, "eta must be a number in"),
    ({"tree": True, "eta": 2}, "eta must be a number in"),
    ({"gamma": 0}, "gamma must be an integer >= 1"),
    ({"stop": "bored"}, "stop must be one of top, scaled, entropy, got 'bored'"),
    ({"exit": -1}, "exit must be an integer >= 0"),
    ({"exit": 2}, "the adapter reads the states of layer 1, not of layer 2"),
    ({"head": head(3)}, "exit layer 3, but 'LlamaForCausalLM' has 3 layers"),
    ({"top": 3}, "top and nodes are of tree=true, a chain has none"),
    ({"nodes": 8, "tree": (2, 2)}, "top and nodes are of tree=true, a static tree has none"),
    ({"gamma": 3, "tree": (2, 2)}, "a static tree has its own depth; leave gamma out"),
    ({"tree": (65,)}, "65 children a node but the vocabulary has 64 tokens"),
    ({"tree": specwb.Tree.parents([-1, 0, 1, 0])}, "its nodes in level order"),
    ({"tree": specwb.Tree.chain(0)}, "at least one candidate"),
    ({"tree": True, "stop": "entropy"}, "stop=entropy is for chains and static trees"),
    ({"tree": True, "top": 65}, "65 beams but the adapter's vocabulary has 64 tokens"),
    ({"tree": True, "nodes": 1}, "nodes must be an integer in 2..4096, got 1"),
    (
        {"tree": True, "nodes": 4},
        "6 levels of 4 tokens each make trees of 7 to 25 nodes, got nodes=4",
    ),
    (
        {"tree": True, "nodes": 4097, "top": 64, "gamma": 100},
        "nodes must be an integer in 2..4096, got 4097",
    ),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_settings_that_cannot_be_used(options, message):
    with pytest.raises(specwb.MethodError, match=message):
        specwb.method("kangaroo", tiny.target(), **{"head": head(), **options})


def test_a_target_without_an_adapter():
    with pytest.raises(
        specwb.MethodError, match="has no kangaroo head of its own; name one with head="
    ):
        specwb.method("kangaroo", tiny.target())
    with pytest.raises(
        specwb.MethodError, match="head must be a folder, a hub id or a loaded KangarooAdapter"
    ):
        specwb.method("kangaroo", tiny.target(), head=tiny.head("medusa"))
    other = KangarooAdapter(
        eagle_config(specwb.load(tiny.build("llama", hidden_size=48, num_attention_heads=6))), 1
    )
    with pytest.raises(specwb.MethodError, match="a target of hidden size 48, 64 tokens"):
        specwb.method("kangaroo", tiny.target(), head=other)
    with pytest.raises(specwb.MethodError, match="the head is float64 on cpu"):
        specwb.method(
            "kangaroo", tiny.target(), head=KangarooAdapter(eagle_config(tiny.target()), 1).double()
        )
