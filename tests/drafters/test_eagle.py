"""EAGLE's drafting against the head run anew over the whole text: what is drafted, the trees that
are grown, the reduced vocabulary."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import specwb
from specwb.drafters import eagle2
from specwb.drafters.beam import best
from specwb.drafters.eagle import EagleDrafter
from specwb.drafters.eagle2 import DynamicEagle
from specwb.models.eagle import Eagle3Head, EagleHead

PROMPTS = tiny.PROMPTS
every_head = pytest.mark.parametrize("kind", ["eagle", "eagle3", "eagle-window"])
WINDOW = 3  # shorter than the prompts


def head(kind: str, dtype: torch.dtype = torch.float32) -> EagleHead:
    if kind != "eagle-window":
        return tiny.head(kind, dtype=dtype)
    windowed = copy.deepcopy(tiny.head("eagle", dtype=dtype))
    windowed.config.layer_types = ["sliding_attention"] * len(windowed.blocks)
    windowed.config.sliding_window, windowed.stack = WINDOW, None
    return windowed


def built(drafter: EagleDrafter) -> specwb.Method:
    return specwb.Method("eagle", drafter, None, specwb.Exactness.LOSSLESS)


# ----------------------------------------------------------------------------- the head, run anew


def through(head: EagleHead, embedded: Tensor, above: Tensor) -> Tensor:
    """``[m,H]`` embeddings and hidden states of a chain of pairs -> ``[m,H]``: plain causal
    attention, no cache."""
    attended, x = head.enter(embedded[None], above[None])
    return layers(head, attended, x, torch.ones(len(embedded), len(embedded)).tril().bool())


def layers(head: EagleHead, attended: Tensor, x: Tensor, sees: Tensor) -> Tensor:
    """``[m,H]`` of ``[1,m,H]``, each place seeing those that ``sees [m,m]`` says."""
    m = x.shape[1]
    cos, sin = head.rotary_emb(x, torch.arange(m)[None])
    if getattr(head.config, "layer_types", None):  # slots are places here
        place = torch.arange(m)
        sees = sees & (place[:, None] - place < head.config.sliding_window)
    for i, layer in enumerate(head.blocks):
        a = layer.self_attn
        attended = layer.input_layernorm(x) if i else attended
        q, k, v = (
            part(attended).view(1, m, -1, a.head_dim).transpose(1, 2)
            for part in (a.q_proj, a.k_proj, a.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], 1) for y in (k, v))
        score = (q @ k.transpose(2, 3) * a.scaling).masked_fill(~sees, -torch.inf)
        x = x + a.o_proj((score.softmax(-1) @ v).transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return x[0]


def chained(head: EagleHead, target: specwb.Target, text: list[int], path: list[int]) -> Tensor:
    """``[H]``: the head's state after ``text``, whose states are the target's, and then ``path``,
    whose states are the head's own."""
    with torch.no_grad():
        if len(text) > 1:
            above, tokens = (
                head.fuse(tiny.states(target, torch.tensor([text[:-1]]), head.features))[0],
                text[1:],
            )
        else:  # no state yet: the token with zeros
            above, tokens = (
                head.fuse(torch.zeros(1, len(head.features) * target.backbone.config.hidden_size)),
                text,
            )
        hidden = through(head, target.backbone.embed(torch.tensor(tokens)), above)
        for token in path:
            tokens, above = [*tokens, token], torch.cat([above, hidden[-1:]])
            hidden = through(head, target.backbone.embed(torch.tensor(tokens)), above)
    return hidden[-1]


def distribution(
    head: EagleHead, target: specwb.Target, text: list[int], path: list[int]
) -> Tensor:
    """``[V]`` logits over the target's vocabulary."""
    with torch.no_grad():
        own = head.logits(chained(head, target, text, path), head.output(target.backbone.lm_head))
    if not isinstance(head, Eagle3Head) or head.draft_vocabulary == head.vocabulary:
        return own
    every = torch.full((head.vocabulary,), -torch.inf)
    for i, offset in enumerate(head.d2t.tolist()):
        every[i + offset] = own[i]
    return every


@every_head
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_cached_drafting_is_the_head_run_anew(kind, temperature):
    target, model = tiny.target(), head(kind)
    method = specwb.method("eagle", target, head=model, tree=tiny.LOPSIDED)
    parents, lengths = tiny.LOPSIDED.host[0], set()
    for step, _ in zip(
        specwb.rounds(target, PROMPTS, method, max_new_tokens=20, temperature=temperature, seed=1),
        range(4),
    ):
        lengths.update(step.verdict.accepted.tolist())
        for row in range(3):
            text = step.state.tokens[row, : int(step.length[row])].tolist()
            tokens = step.draft.tokens[row].tolist()
            for node in sorted(set(parents[1:])):
                logits = distribution(model, target, text, tiny.path_to(parents, tokens, node))
                if temperature:
                    q = step.draft.q[row, step.draft.q_row[0, node]]
                    torch.testing.assert_close(
                        q, (logits / temperature).softmax(-1), atol=1e-5, rtol=1e-3
                    )
                else:
                    kids = [i for i, parent in enumerate(parents) if parent == node]
                    assert [tokens[i] for i in kids] == logits.topk(len(kids)).indices.tolist()
    assert len(lengths) > 1, "one acceptance length alone proves little"


@every_head
def test_training_unrolls_what_drafting_does(kind):
    """Step j at place i is a draft of j tokens below the text that ends j places before."""
    target, model = tiny.target(), head(kind)
    tokens = torch.randint(tiny.VOCABULARY, (1, 8), generator=torch.Generator().manual_seed(1))
    features = tiny.states(target, tokens, model.features)
    with torch.no_grad():
        steps = list(model.unroll(target.backbone.embed(tokens[:, 1:]), features[:, :-1], 4))
    text = tokens[0].tolist()
    for j, hidden in enumerate(steps):
        for i in range(j, 7):
            wanted = chained(model, target, text[: i - j + 2], text[i - j + 2 : i + 2])
            torch.testing.assert_close(hidden[0, i], wanted, atol=1e-5, rtol=1e-4)


# ---------------------------------------------------------------------------------- dynamic trees


class Watched(DynamicEagle):
    """Keeps what the head said of every node it was asked about; ``change`` makes ties."""

    def __init__(self, *settings, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__(*settings)
        self.change, self.said = change, []

    def propose(self, state, noise):
        self.said.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(eagle2, "best", self._best)
            return super().propose(state, noise)

    def _best(self, logits, top):
        score, token = best(logits, top)
        score = self.change(score)
        self.said.append((score.clone(), self.tokens(token).clone()))
        return score, token


def grown(
    said: list[tuple[list, list]], nodes: int, top: int
) -> tuple[list[int], list[int], list[list[int]]]:
    """Parents and tokens of the tree by the paper's words, for one row; ``said``: scores and tokens
    by level and node. And the beams' paths."""
    made: list[
        tuple[np.float32, int, int, int]
    ] = []  # score, token, parent (entry, -1 for the root), level
    frontier, asked = [-1], [[]]
    for level, (scores, tokens) in enumerate(said):
        first = len(made)
        for place, entry in enumerate(frontier):
            above = made[entry][0] if entry >= 0 else np.float32(0)
            made += [
                (np.float32(above + np.float32(s)), t, entry, level + 1)
                for s, t in zip(scores[place], tokens[place], strict=True)
            ]
        frontier = sorted(range(first, len(made)), key=lambda i: (-made[i][0], i))[:top]
        if level + 1 < len(said):
            for entry in frontier:
                path, at = [], entry
                while at >= 0:
                    path.append(made[at][1])
                    at = made[at][2]
                asked.append(path[::-1])
    kept = sorted(sorted(range(len(made)), key=lambda i: (-made[i][0], i))[: nodes - 1])
    node = {-1: 0, **{entry: i for i, entry in enumerate(kept, 1)}}
    return (
        [-1, *(node[made[entry][2]] for entry in kept)],
        [made[entry][1] for entry in kept],
        asked,
    )


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "as they are": lambda score: score,
    "many ties": lambda score: (score / 2).round() * 2,
    "all equal": torch.zeros_like,
    "the rest is impossible": lambda score: torch.cat(
        [torch.zeros_like(score[..., :1]), torch.full_like(score[..., 1:], -torch.inf)], -1
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(("nodes", "depth", "top"), [(9, 3, 3), (6, 5, 2), (4, 1, 4)])
def test_the_dynamic_tree_is_the_papers(change, nodes, depth, top):
    """Expanded, cut and re-ranked in plain Python, from the head's own words; and those are of the
    path they are said of."""
    target, model = tiny.target(), head("eagle3")
    drafter = Watched(model, nodes, depth, top, change=change)
    shapes = set()
    for step, _ in zip(specwb.rounds(target, PROMPTS, built(drafter), max_new_tokens=12), range(3)):
        draft = step.draft
        for row in range(3):
            said = [(score[row].tolist(), token[row].tolist()) for score, token in drafter.said]
            parents, tokens, asked = grown(said, nodes, top)
            assert draft.tree.host[row] == tuple(parents)
            assert draft.tokens[row, 1:].tolist() == tokens
            shapes.add(tuple(parents))
            if change is not CHANGES["as they are"]:
                continue
            text = step.state.tokens[row, : int(step.length[row])].tolist()
            heard = [node for scores, words in said for node in zip(scores, words, strict=True)]
            for path, (scores, words) in zip(asked, heard, strict=True):
                wanted = distribution(model, target, text, path).log_softmax(-1)
                torch.testing.assert_close(
                    torch.tensor(scores), wanted.topk(top).values, atol=1e-4, rtol=1e-4
                )
                torch.testing.assert_close(
                    torch.tensor(scores), wanted[words], atol=1e-4, rtol=1e-4
                )
    if change is CHANGES["as they are"] and depth > 1:
        assert len(shapes) > 1, "one shape alone proves little"
