"""DiffuSpec's rounds: what is drafted of what the model says, how many tokens, and what is
refused."""

from __future__ import annotations

import copy
import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
import test_decoding_distribution as decoding
import tiny
import torch
from torch import Tensor
from transformers import LlamaConfig

import specwb
import specwb.drafters.diffusion as module
from specwb.drafters.diffusion import DiffusionDrafter
from specwb.drafters.diffuspec_parts.lattice import Lattice, LatticePath, beam, candidates
from specwb.drafters.diffuspec_parts.ngram import NGram
from specwb.drafters.diffuspec_parts.proxy import CacheProxy, OnlineNGram, UniformProxy
from specwb.drafters.length import Adaptive, Length
from specwb.models.diffusion import DiffusionModel, build, shared
from specwb.models.eagle import eagle_config
from specwb.models.masked import Blocks, block

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
    """Keeps what every round of all its decodings was asked for and made of it."""

    def __init__(self, *given, **more) -> None:
        super().__init__(*given, **more)
        self.log: list[tuple[list[int], list[int], list[int]]] = []

    def propose(self, state, noise):
        draft = super().propose(state, noise)
        told = self.length.tokens.tolist(), self.drafted.tolist()
        self.log.append((state.length.tolist(), *told))
        return draft


def built(drafter: DiffusionDrafter, rule=None) -> specwb.Method:
    return specwb.Method("diffuspec", drafter, rule, specwb.Exactness.LOSSLESS)


def method(draft: DiffusionModel | None = None, **options) -> specwb.Method:
    return specwb.method(
        "diffuspec", tiny.target(), head=draft or tiny.head("diffusion"), **options
    )


# ----------------------------------------------------------- a model that says what it is told to


class Told(Blocks):
    """In place of a model: of the row whose text begins so,
    ``says(row, place) -> (token, probability)`` of every place, all others alike."""

    calls: list[tuple[list[int], list[int], list[list[int]]]]

    def say(self, tokens, length, horizon, fed, fresh, k, most, steps=1, **more):
        lengths, logits = length.tolist(), torch.zeros(len(k), most, V)
        texts = [tokens[row, :n].tolist() for row, n in enumerate(lengths)]
        self.calls.append((lengths, k.tolist(), texts))
        for row, text in enumerate(texts):
            which = next(i for i, prompt in enumerate(PROMPTS) if text[: len(prompt)] == prompt)
            for j in range(most):
                token, p = self.says(which, lengths[row] + j)
                logits[row, j, token] = math.log(p / (1 - p) * (V - 2))  # the mask is not drafted
        return logits, None


@pytest.fixture
def told(monkeypatch):
    """``told(says)``: all that is drafted from now on; returns the calls as they come."""

    def tell(says) -> list:
        made = type("Now", (Told,), {"says": staticmethod(says), "calls": []})
        monkeypatch.setattr(module, "Blocks", made)
        return made.calls

    return tell


@cache
def unseen() -> tuple[int, int]:
    """Tokens that no plain text has."""
    return tuple(x for x in range(V) if all(x not in text for text in plain()))[:2]


@cache
def muted(context: int = 512) -> DiffusionModel:
    """With a mask that no text has: it is never drafted, and the tiny models' own is in what the
    target writes."""
    made = other(True, True, context)
    made = copy.copy(made)
    made.mask_id = unseen()[1]
    return made


def drafter(
    length: Length, proxy=lambda: UNIFORM, ends=(), model: DiffusionModel | None = None, **options
) -> Watched:
    return Watched(model or muted(), length, proxy, ends, **options)


def steps(made: DiffusionDrafter, prompts=PROMPTS, limit: int = LIMIT, **options):
    return list(specwb.rounds(tiny.target(), prompts, built(made), max_new_tokens=limit, **options))


def drafts(step: specwb.Step) -> list[list[int]]:
    """Of a chain, by row."""
    return [
        step.draft.tokens[row, 1:][step.draft.valid[row, 1:]].tolist()
        for row in range(len(step.length))
    ]


# -------------------------------------------------------------------- the row, the path, the tree


@pytest.mark.parametrize(("shift", "causal"), [(True, True), (True, False), (False, False)])
def test_lambda_1_and_one_beam_is_the_argmax_row(shift, causal):
    """Of the forward over everything, cut behind its first end of text; whatever mass, top and
    n-gram are."""
    model = other(shift, causal)
    rows = [block(model, text[:n], 6) for text in plain() for n in range(4, 30)]
    common = Counter(int(x) for row in rows for x in row.argmax(-1)).most_common(8)
    ends, cut, options = (
        {common[3][0], common[7][0]},
        0,
        {"beams": 1, "lam": 1.0, "mass": 0.5, "top": 4},
    )
    made = Watched(model, Length(6), lambda: OnlineNGram(3, V), ends, **options)
    texts = specwb.decode(tiny.target(), PROMPTS, built(made), max_new_tokens=LIMIT)
    assert texts.tokens == [
        text[len(prompt) : len(prompt) + LIMIT] for text, prompt in zip(plain(), PROMPTS)
    ]
    for step in specwb.rounds(tiny.target(), PROMPTS, built(made), max_new_tokens=LIMIT):
        for row, found in enumerate(drafts(step)):
            n = int(step.length[row])
            if n < len(PROMPTS[row]) + LIMIT:
                best = (
                    block(model, plain()[row][:n], 6)
                    .index_fill(-1, torch.tensor([MASK]), -math.inf)
                    .argmax(-1)
                    .tolist()
                )
                stop = next((i for i, x in enumerate(best) if x in ends), 5)
                assert found == best[: stop + 1]
                cut += stop < 5
    assert cut > 2


def searched(
    model: DiffusionModel,
    text: list[int],
    k: int,
    ends: set[int],
    proxy,
    mass: float,
    beams: int,
    lam: float,
) -> list[LatticePath]:
    best = candidates(block(model, text, k)[None], 15, V, torch.tensor([MASK]))
    lattice = Lattice.prune(*best[:, 0].tolist(), mass, ends)
    return beam(lattice, proxy, text, lam, beams)


def test_the_path_is_the_beams_best_and_the_tree_all_of_them():
    """Behind the text and with what is online counted of it; the tree accepts at least as much as
    its best path."""
    model, k, ends = tiny.head("diffusion"), 5, {9}
    options = {"mass": 0.9, "beams": 4, "lam": 0.6}
    runs = [
        (whole, step)
        for whole in (False, True)
        for step in steps(
            drafter(Length(k), lambda: OnlineNGram(3, V), ends, model, as_tree=whole, **options)
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
            paths = searched(model, text, k, ends, proxy, 0.9, 4, 0.6)
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


# ------------------------------------------------------------------ among the words of a target


@cache
def spoken() -> Tensor:
    """Half of the tokens; those that plain texts have most are among them, not all are."""
    often = Counter(x for text in plain() for x in text)
    return torch.tensor(sorted(sorted(range(V), key=lambda x: -often[x])[: V // 2]))


@cache
def between(
    words: bool = True,
    dtype: torch.dtype = torch.float32,
    small: bool = False,
) -> DiffusionModel:
    """All of the target's layers, a mask that says nothing special: right at the first place."""
    target = decoding.models()[0] if small else tiny.target(dtype=dtype)
    config = eagle_config(target, len(target.backbone.layers))
    known = torch.tensor([1, 2, 4, 5]) if small else spoken()
    made = shared(config, target, known if words else None, context=512)
    theirs = target.model.state_dict()
    mine = made.net.state_dict()
    own = {name: theirs.get(name, w) for name, w in mine.items()}
    made.net.load_state_dict(own)
    return tiny.cast(made, dtype).requires_grad_(False).eval()


def test_the_lattice_has_the_best_words():
    made = between()
    logits = made.spread(block(made, PROMPTS[2], 4), V)
    banned = torch.tensor([i for i in range(V) if i not in spoken().tolist()])
    best = candidates(logits[None], 9, V, banned)
    few = candidates(block(made, PROMPTS[2], 4)[None], 9, V, made.banned, made.words)
    torch.testing.assert_close(few, best, atol=1e-6, rtol=1e-6)  # of float32 logits


# ------------------------------------------------------------------------------------ end of text


def oracle(row: int, place: int) -> int:
    return plain()[row][place]


NEVER = unseen()[0]


# ---------------------------------------------------------------------------------- context limit


@pytest.mark.parametrize(
    "options",
    [
        {"k": 5},
        {"k": 5, "tree": True},
        {"k": 5, "draw": "sample"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("kind", "spared"), [((True, True), 1), ((False, False), 0)], ids=["ours", "llada"]
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


def test_adaptive_lengths_in_a_decoding_are_those_replayed_by_hand(told):
    """Every third token is said wrong, and sometimes an end; eqs. 9-11 from what was drafted and
    accepted, row by row."""
    k_min, k_max, delta, rho, share = 2, 9, 3.0, 0.5, 0.6

    def says(row: int, place: int) -> tuple[int, float]:
        if (place * (row + 3)) % 11 == 0:
            return NEVER, 0.95
        return (
            oracle(row, place) if (place + row) % 5 else (oracle(row, place) + 1) % (V - 2)
        ), 0.95

    calls = told(says)
    made = drafter(Adaptive(k_min, k_max, delta, share), ends={NEVER}, lam=1.0)
    run = steps(made, limit=60)
    seen = set()
    for row, prompt in enumerate(PROMPTS):
        g = a = 0.0
        k = k_max
        for index, step in enumerate(run):
            n, limit = int(step.length[row]), len(prompt) + 60
            if n == limit:
                assert calls[index][1][row] == 0
                continue
            assert calls[index][1][row] == k == made.log[index][1][row]
            seen.add(k)
            best = [says(row, n + j)[0] for j in range(k)]
            generated = best.index(NEVER) if NEVER in best else k
            accepted = int(step.verdict.accepted[row])
            g, a = (1 - rho) * g + rho * generated, (1 - rho) * a + rho * accepted
            k = min(max(math.ceil(g + (delta if a >= share * g else 0)), k_min), k_max)
    assert len(seen) > 3


# -------------------------------------------------------------------------------- sampled schemes


SMALL, DEEP = decoding.VOCABULARY, 3


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


SCHEMES = {
    "one sequence": (7, {"k": DEEP, "draw": "sample"}),
    "one sequence, the mask a token of the target": (6, {"k": 2, "draw": "sample"}),
    "three sequences": (6, {"k": DEEP, "draw": "sample", "paths": 3}),
    "a searched path": (7, {"k": DEEP, "lam": 0.5, "mass": 1.0, "ngram": "online"}),
    "the beam as a tree": (6, {"k": DEEP, "tree": True, "beams": 3, "ngram": "none"}),
}


@pytest.mark.parametrize(("vocabulary", "options"), SCHEMES.values(), ids=SCHEMES)
@pytest.mark.slow
def test_the_distribution_of_the_text_is_the_autoregressive_distribution(vocabulary, options):
    name = "plain" if options.get("paths") else "top_k"
    counts, tau = decoding.sampled(
        specwb.method("diffuspec", decoding.models()[0], head=little(vocabulary), **options), name
    )
    assert decoding.chi_square(counts, decoding.enumerated(name)) > 1e-4
    assert 1.2 < tau < decoding.LENGTH


# ---------------------------------------------------------------------------------------- n-grams


def test_which_proxy_a_method_takes(tmp_path, monkeypatch):
    """The target's own file where it has one, otherwise what reads along."""
    assert isinstance(method(ngram="own").drafter.proxy(), OnlineNGram)
    assert isinstance(method().drafter.proxy(), OnlineNGram)
    assert method().drafter.proxy().order == 3
    assert isinstance(method(ngram="none").drafter.proxy(), UniformProxy)
    counted = NGram.count([np.array(plain()[0] * 3)], V, 3)
    counted.save(tmp_path / "ngram.npz")
    for place in (tmp_path, tmp_path / "ngram.npz", str(tmp_path)):
        made = method(ngram=place).drafter
        assert made.proxy() is made.proxy()
        assert made.proxy().scores((7, 8), [9, 1]) == counted.scores((7, 8), [9, 1])
    beside = copy.copy(tiny.target())
    monkeypatch.setattr(
        specwb.Target,
        "own_head",
        lambda self, kind: tmp_path if self is beside and kind == "ngram" else None,
    )
    own, both = (
        specwb.method("diffuspec", beside, head=tiny.head("diffusion"), ngram=name).drafter.proxy
        for name in ("own", "both")
    )
    assert own().scores((7, 8), [9, 1]) == counted.scores((7, 8), [9, 1])
    assert isinstance(both(), CacheProxy)
    assert both() is not both()
    assert both().counted.scores((7, 8), [9, 1]) == counted.scores((7, 8), [9, 1])
    assert isinstance(method(ngram="both").drafter.proxy(), OnlineNGram)
