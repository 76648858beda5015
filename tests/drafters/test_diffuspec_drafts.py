"""DiffuSpec's rounds: what is drafted of what the model says, how many tokens, and what is
refused."""

from __future__ import annotations

import copy
import math
from functools import cache

import numpy as np
import pytest
import test_decoding_distribution as decoding
import tiny
import torch
from transformers import LlamaConfig

import specwb
from specwb.drafters.diffusion import DiffusionDrafter
from specwb.drafters.diffuspec_parts.lattice import Lattice, LatticePath, beam, candidates
from specwb.drafters.diffuspec_parts.ngram import NGram
from specwb.drafters.diffuspec_parts.proxy import CacheProxy, OnlineNGram, UniformProxy
from specwb.drafters.length import Adaptive, Length
from specwb.models.diffusion import DiffusionModel, build
from specwb.models.masked import block

V, MASK, PROMPTS = tiny.VOCABULARY, tiny.MASK, tiny.PROMPTS
UNIFORM = UniformProxy(V)
LIMIT = 24


@cache
def plain(length: int = 80) -> list[list[int]]:
    """Prompt and what plain decoding continues it with."""
    return [[*prompt, *tiny.plain("llama", tuple(prompt), length)] for prompt in PROMPTS]


@cache
def other(shift: bool, causal: bool, context: int = 512) -> DiffusionModel:
    """The trained one's weights under other conventions."""
    made = copy.deepcopy(tiny.head("diffusion"))
    made.shift, made.causal, made.context = shift, causal, context
    return made


class Watched(DiffusionDrafter):
    """Keeps the lengths that every round of all its decodings was asked for."""

    def __init__(self, *given, **more) -> None:
        super().__init__(*given, **more)
        self.log: list[list[int]] = []

    def propose(self, state, noise):
        draft = super().propose(state, noise)
        self.log.append(self.length.tokens.tolist())
        return draft


def built(drafter: DiffusionDrafter, rule=None) -> specwb.Method:
    return specwb.Method("diffuspec", drafter, rule, specwb.Exactness.LOSSLESS)


def method(draft: DiffusionModel | None = None, **options) -> specwb.Method:
    return specwb.method(
        "diffuspec", tiny.target(), head=draft or tiny.head("diffusion"), **options
    )


def drafter(length: Length, proxy=lambda: UNIFORM, ends=(), **options) -> Watched:
    return Watched(tiny.head("diffusion"), length, proxy, ends, **options)


def steps(made: DiffusionDrafter, prompts=PROMPTS, limit: int = LIMIT, **options):
    return list(specwb.rounds(tiny.target(), prompts, built(made), max_new_tokens=limit, **options))


def drafts(step: specwb.Step) -> list[list[int]]:
    """Of a chain, by row."""
    return [
        step.draft.tokens[row, 1:][step.draft.valid[row, 1:]].tolist()
        for row in range(len(step.length))
    ]


# -------------------------------------------------------------------- the row, the path, the tree


def searched(
    text: list[int], k: int, ends: set[int], proxy, mass: float, beams: int, lam: float
) -> list[LatticePath]:
    logits = block(tiny.head("diffusion"), text, k)
    best = candidates(logits[None], 15, V, torch.tensor([MASK]))
    lattice = Lattice.prune(*best[:, 0].tolist(), mass, ends)
    return beam(lattice, proxy, text, lam, beams)


def test_the_path_is_the_beams_best_and_the_tree_all_of_them():
    """Behind the text and with what is online counted of it; the tree accepts at least as much as
    its best path."""
    k, ends = 5, {9}
    options = {"mass": 0.9, "beams": 4, "lam": 0.6}
    runs = [
        (whole, step)
        for whole in (False, True)
        for step in steps(
            drafter(Length(k), lambda: OnlineNGram(3, V), ends, as_tree=whole, **options)
        )
    ]
    more = several = 0
    for whole, step in runs:
        for row in range(3):
            n = int(step.length[row])
            if n == len(PROMPTS[row]) + LIMIT:
                continue
            text, proxy = plain()[row][:n], OnlineNGram(3, V)
            proxy.add(text)
            paths = searched(text, k, ends, proxy, 0.9, 4, 0.6)
            matched = [
                next(
                    (i for i, x in enumerate(path.tokens) if x != plain()[row][n + i]),
                    len(path.tokens),
                )
                for path in paths
            ]
            accepted, room = int(step.verdict.accepted[row]), len(PROMPTS[row]) + LIMIT - n - 1
            if not whole:
                assert drafts(step)[row] == list(paths[0].tokens)
                assert accepted == min(matched[0], room)
            else:
                tree, tokens, valid = (
                    step.draft.tree,
                    step.draft.tokens[row].tolist(),
                    step.draft.valid[row].tolist(),
                )
                parents = tree.host[row if tree.R > 1 else 0]
                nodes = {(): 0}
                for node in range(1, tree.n):
                    if valid[node]:
                        path = tuple(tiny.path_to(parents, tokens, node))
                        assert nodes.setdefault(path, node) == node
                assert set(nodes) == {
                    path.tokens[:i] for path in paths for i in range(len(path.tokens) + 1)
                }
                assert accepted == min(max(matched), room)
                more += max(matched) > matched[0]
                several += len(paths) > 1
    assert several > 5
    assert more > 0


# ---------------------------------------------------------------------------------- context limit


@pytest.mark.parametrize(
    ("kind", "spared", "options"),
    [
        ((True, True), 1, {"k": 5}),
        ((True, True), 1, {"k": 5, "tree": True}),
        ((False, False), 0, {"k": 5, "draw": "sample"}),
    ],
    ids=["ours", "a tree of ours", "llada, sampled"],
)
def test_a_context_that_is_too_short_shrinks_drafts_and_ends_in_plain_steps(kind, spared, options):
    """Row by row: prefix and masks fill it, then fewer tokens, then none."""
    model = other(*kind, context=16)
    made, sizes = method(model, **options), set()
    for temperature in (0.0, 1.0):
        texts = []
        for step in specwb.rounds(
            tiny.target(),
            PROMPTS,
            made,
            max_new_tokens=LIMIT,
            temperature=temperature,
            seed=[1, 2, 3],
        ):
            for row in range(3):
                n, limit = int(step.length[row]), len(PROMPTS[row]) + LIMIT
                if n == limit:
                    continue
                most = min(made.drafter.length.k, 16 - n + spared) if n <= 16 else 0
                depth = int((step.draft.tree.depth * step.draft.valid)[row].max())
                assert depth == most
                sizes.add(most)
            texts = step.state.tokens
        if not temperature:
            assert [texts[row, : len(p) + LIMIT].tolist() for row, p in enumerate(PROMPTS)] == [
                t[: len(p) + LIMIT] for t, p in zip(plain(), PROMPTS)
            ]
    assert {0, 1, 5} <= sizes


# ------------------------------------------------------------------------------- adaptive lengths


def test_adaptive_lengths_in_a_decoding_are_those_replayed_by_hand():
    """Eqs. 9-11 from what was drafted before an end of text and accepted, row by row."""
    k_min, k_max, delta, rho, share, end = 2, 9, 3.0, 0.5, 0.6, 9
    lengths = Adaptive(k_min, k_max, delta, share)
    made = drafter(lengths, ends={end}, lam=1.0, beams=1)
    run = steps(made, limit=60)
    seen, ended = set(), 0
    for row, prompt in enumerate(PROMPTS):
        g = a = 0.0
        k = k_max
        for step, told in zip(run, made.log, strict=True):
            if int(step.length[row]) == len(prompt) + 60:
                continue
            assert told[row] == k
            seen.add(k)
            drafted = drafts(step)[row]
            ended += end in drafted
            generated = drafted.index(end) if end in drafted else k
            accepted = int(step.verdict.accepted[row])
            g, a = (1 - rho) * g + rho * generated, (1 - rho) * a + rho * accepted
            k = min(max(math.ceil(g + (delta if a >= share * g else 0)), k_min), k_max)
    assert len(seen) > 3
    assert ended


# -------------------------------------------------------------------------------- sampled schemes


@cache
def little(vocabulary: int) -> DiffusionModel:
    """Beside the target of six tokens: its weights a little off, and a mask, which is a seventh
    token or the target's sixth."""
    base, c = decoding.models()[1].model, decoding.models()[1].model.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=c.hidden_size,
            intermediate_size=c.intermediate_size,
            num_hidden_layers=c.num_hidden_layers,
            num_attention_heads=c.num_attention_heads,
            num_key_value_heads=c.num_key_value_heads,
            head_dim=c.head_dim,
            initializer_range=0.3,
            rms_norm_eps=c.rms_norm_eps,
            rope_parameters=c.rope_parameters,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
        made = build(config, mask_id=vocabulary - 1)
        with torch.no_grad():
            for name, weight in base.state_dict().items():
                own = made.net.state_dict()[name]
                own[tuple(slice(n) for n in weight.shape)] = weight
    return made.requires_grad_(False).eval()


@pytest.mark.parametrize(
    ("vocabulary", "options"),
    [(6, {"k": 2, "draw": "sample"}), (6, {"k": 3, "draw": "sample", "paths": 3})],
    ids=["one sequence, the mask a token of the target", "three sequences"],
)
@pytest.mark.slow
def test_the_distribution_of_the_text_is_the_autoregressive_distribution(vocabulary, options):
    name = "plain" if options.get("paths") else "top_k"
    method = specwb.method("diffuspec", decoding.models()[0], head=little(vocabulary), **options)
    counts, tau = decoding.sampled(method, name)
    assert decoding.chi_square(counts, decoding.enumerated(name)) > 1e-4
    assert 1.2 < tau < decoding.LENGTH


# ---------------------------------------------------------------------------------------- n-grams


def test_which_proxy_a_method_takes(tmp_path, monkeypatch):
    """The target's own file where it has one, otherwise what reads along."""
    for options in ({}, {"ngram": "own"}, {"ngram": "both"}):
        assert isinstance(method(**options).drafter.proxy(), OnlineNGram)
    assert isinstance(method(ngram="none").drafter.proxy(), UniformProxy)
    counted = NGram.count([np.array(plain()[0] * 3)], V, 3)
    wanted = counted.scores((7, 8), [9, 1])
    counted.save(tmp_path / "ngram.npz")
    for place in (tmp_path, tmp_path / "ngram.npz"):
        assert method(ngram=place).drafter.proxy().scores((7, 8), [9, 1]) == wanted
    monkeypatch.setattr(
        specwb.Target, "own_head", lambda self, kind: tmp_path if kind == "ngram" else None
    )
    own, both = (method(ngram=name).drafter.proxy for name in ("own", "both"))
    assert own().scores((7, 8), [9, 1]) == wanted
    assert isinstance(both(), CacheProxy)
    assert both() is not both()
    assert both().counted.scores((7, 8), [9, 1]) == wanted
