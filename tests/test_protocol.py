"""What every registered method must do, whatever it drafts. A method registered later is tested
here by being in ``specwb.METHODS``; one that takes ``draft=`` is given every pair's draft, one that
needs anything else names it in ``NEEDS``. A value of an option that is made for every pair is a
:class:`Head`.

All cases run on one family of models, which has every feature the backbone knows; a drafter sees a
family through the backbone alone (tests/models/test_backbone.py), and test_hf.py has one case a
method on another. Every comparison of texts, decisions or caches is of numbers in float64, see
tests/tiny.py.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import tiny
import torch
from tape import CONVERSIONS, waits
from tiny import EXACT
from torch.utils._python_dispatch import TorchDispatchMode

import specwb
from specwb.core.mask import tree_mask
from specwb.drafters.admission import Costs
from specwb.drafters.diffusion import DiffusionDrafter
from specwb.drafters.eagle import EagleDrafter
from specwb.drafters.falcon import FalconDrafter
from specwb.drafters.kangaroo import KangarooDrafter
from specwb.drafters.level import LevelDrafter
from specwb.engine import loop as engine
from specwb.models.cache import KVCache
from specwb.models.place import Place


@dataclass(frozen=True)
class Pair:
    kind: str
    noise: float
    dtype: torch.dtype = EXACT

    @property
    def target(self) -> specwb.Target:
        return tiny.target(self.kind, self.dtype)

    @property
    def draft(self) -> specwb.Target:
        return tiny.draft(self.kind, self.noise, self.dtype)

    def plain(self, prompt: list[int], length: int) -> list[int]:
        return list(tiny.plain(self.kind, tuple(prompt), length, self.dtype))

    def __str__(self) -> str:
        return f"{self.kind}~{self.noise}"


@dataclass(frozen=True)
class Head:
    """A pair's trained head, wherever its target is."""

    kind: str

    def of(self, pair: Pair):
        return tiny.head(self.kind, pair.kind, pair.target.device.type, pair.target.dtype)

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True)
class Scorer(Head):
    """A path scorer over a pair's diffusion model, with random weights."""

    kind: str = "pair"

    def of(self, pair: Pair):
        return tiny.scorer(pair.target)


EVERYTHING = Pair("everything", 0.02)
LLAMA = Pair("llama", 0.02)  # of test_hf.py, where every method writes the library's text on it
PROMPTS = tiny.PROMPTS
LONGEST = 9
LONG = [
    i * 7 % 64 for i in range(60)
]  # a prompt that ends just before the 64 places that noise is made for
# options to test a method with; a key that is not here is tested with its defaults
VARIANTS: dict[str, list[dict]] = {
    "sps": [
        {"gamma": 4},
        {"schedule": "heuristic", "gamma": 2},
        {"gamma": 4, "confidence": 0.15},
        {"gamma": 4, "confidence": 0.15, "rule": "block"},
    ],
    "mcsd": [
        {},
        {"tree": tiny.LOPSIDED, "draw": "with"},
        {"tree": tiny.LOPSIDED, "rule": "traversal"},
        {"tree": (3, 1, 1), "draw": "with", "rule": "gbv"},
        {"tree": tiny.LOPSIDED, "verify": "auto"},
    ],
    "pld": [{"gamma": 4}],
    "suffix": [{"gamma": 4}],
    "recycling": [{"tree": tiny.LOPSIDED}],
    "lookahead": [{}, {"window": 3, "level": 3, "guesses": 2, "prompt": True}],
    "medusa": [{"tree": (4, 2, 1)}, {"tree": (4, 2, 1), "copy": 1}],
    "eagle": [
        {"tree": tiny.LOPSIDED},
        {"tree": (2, 2), "draw": "top", "head": Head("eagle3")},
    ],
    "eagle2": [
        {"nodes": 9, "depth": 3, "top": 3},
        {"nodes": 9, "depth": 3, "top": 3, "copy": 1, "verify": "auto"},
    ],
    "eagle3": [{"nodes": 8, "depth": 4, "top": 2}, {"nodes": 8, "depth": 4, "top": 2, "copy": 1}],
    "falcon": [
        {"tree": tiny.LOPSIDED, "draw": "greedy"},
        {"tree": (2, 2, 1, 1), "draw": "greedy", "head": Head("falcon3")},
        {"tree": (1, 1, 1), "align": "left"},
        {"tree": (3, 2, 1), "head": Head("falcon2linear")},
    ],
    "falcon_dynamic": [{"nodes": 9, "passes": 2, "top": 2, "beams": 2}],
    "diffuspec": [
        {"k": 4, "lam": 0.9},
        {"k_min": 2, "k_max": 6, "mass": 1.0, "ngram": "none"},
        {"k": 3, "tree": True, "lam": 0.9},
        {"k": 4, "draw": "sample"},
        {"k": 3, "draw": "sample", "paths": 2},
        {"k": 4, "steps": 2, "lam": 1.0},
        {"k": 4, "score": Scorer()},
        {"k": 3, "score": Scorer(), "draw": "sample", "paths": 2},
    ],
    "kangaroo": [
        {"gamma": 4, "eta": 0.15},
        {"tree": tiny.LOPSIDED, "eta": 0.1, "stop": "scaled"},
        {"tree": True, "gamma": 3, "top": 3, "nodes": 9, "eta": 0.05},
        {"gamma": 3, "eta": 0.05, "stop": "entropy", "head": Head("kangaroo0")},
        {"tree": (2, 1, 1), "eta": 0.15, "head": Head("kangaroo2layer")},
        {"gamma": 3, "eta": 0.15, "verify": "auto"},
    ],
    "mcsd_ti": [
        {"tree": (2, 1, 3), "threshold": 0.79},
        {"tree": (1, 1, 1, 1), "stop": "entropy", "threshold": 0.028, "draw": "top", "head": None},
        {"tree": (3, 1, 1), "stop": "hard", "threshold": 0.5, "draw": "with"},
        {"tree": (2, 1, 2), "stop": "top", "threshold": 0.14, "rule": "traversal", "head": None},
    ],
    "easyspec": [
        {"groups": "0-1", "gamma": 4},
        {"n": 1, "tree": tiny.LOPSIDED},
        {"groups": "1-2", "width": 3, "gamma": 3},
        {
            "groups": "0-2",
            "tree": tiny.LOPSIDED,
            "calibrate": False,
            "draw": "with",
            "execution": "simulation",
        },
        {"groups": "1-2", "width": 4, "gamma": 3, "calibrate": False, "mlp": "parallel"},
    ],
}
# these know only what repeats in a text, and random models hardly repeat: their acceptance is
# tested in tests/drafters
FROM_THE_TEXT = {"pld", "suffix", "recycling", "lookahead"}
# what a method cannot be built without, other than draft=
NEEDS: dict[str, dict] = {
    "medusa": {"head": Head("medusa")},
    "eagle": {"head": Head("eagle")},
    "eagle2": {"head": Head("eagle")},
    "eagle3": {"head": Head("eagle3")},
    "falcon": {"head": Head("falcon")},
    "falcon_dynamic": {"head": Head("falcon")},
    "diffuspec": {"head": Head("diffusion")},
    "kangaroo": {"head": Head("kangaroo")},
    "mcsd_ti": {"head": Head("decision")},
}

CASES = [(key, options) for key in specwb.METHODS for options in VARIANTS.get(key, [{}])]
FIRST = [(key, VARIANTS.get(key, [{}])[0]) for key in specwb.METHODS]


def named(key: str, options: dict, *more: object) -> str:
    words = [key, *(f"{k}={v}".replace(" ", "") for k, v in options.items())]
    return "-".join([":".join(words), *map(str, more)])


def cases(chosen: list[tuple], names: str = "key, options") -> pytest.MarkDecorator:
    return pytest.mark.parametrize(names, [pytest.param(*case, id=named(*case)) for case in chosen])


every_case = cases(CASES)
first_cases = cases(FIRST)
# those whose drafts are a draft model's own words; layers side by side say something else
WITH_A_DRAFT = [
    (key, options)
    for key, options in CASES
    if "draft" in specwb.METHODS[key].options and (key != "easyspec" or options.get("n") == 1)
]


def made(key: str, options: dict, pair: Pair, draft: specwb.Target | None = None) -> specwb.Method:
    own = {"draft": draft or pair.draft} if "draft" in specwb.METHODS[key].options else {}
    method = specwb.method(key, pair.target, **own, **given(key, options, pair))
    if "verify" in options:  # at no cost it verifies all, and nothing depends on measured times
        nothing = Costs({1: 1.0}, dict.fromkeys(range(1, 9), 0.0))
        method.drafter.costs = dict.fromkeys(range(1, 200), nothing)
        method.drafter.planted = True
    return method


def given(key: str, options: dict, pair: Pair) -> dict:
    """A case's options, with the pair's own heads."""
    return {
        name: value.of(pair) if isinstance(value, Head) else value
        for name, value in {**NEEDS.get(key, {}), **options}.items()
    }


def cut(tokens: list[int], eos: int) -> list[int]:
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens


@contextmanager
def watched(
    monkeypatch: pytest.MonkeyPatch, before: Callable | None = None, after: Callable | None = None
) -> Iterator[None]:
    """Calls ``before(state, drafter)`` and ``after(state, drafter, step)`` around every round of
    the engine."""
    real = engine.Decoding.step

    def step(decoding, arena=None):
        if before:
            before(decoding.state, decoding.drafter)
        done = real(decoding, arena)
        if after:
            after(decoding.state, decoding.drafter, done)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(engine.Decoding, "step", step)
        yield


# -------------------------------------------------------------------------------- greedy identity


@every_case
def test_greedy_is_plain_decoding(key, options):
    """One batch of every prompt with every limit, a row among them that is far ahead of the others;
    one of a text from every place on, so that its end falls at every place of a block, with a
    second end and limits among them; and a single row whose room ends with the limit, which is what
    a cache's is made by."""
    pair = EVERYTHING
    method = made(key, options, pair)
    asked = [(prompt, limit) for prompt in PROMPTS for limit in range(1, LONGEST + 1)] + [
        (LONG, LONGEST)
    ]
    out = specwb.decode(
        pair.target, [p for p, _ in asked], method, max_new_tokens=[m for _, m in asked]
    )
    assert out.tokens == [pair.plain(prompt, LONGEST)[:limit] for prompt, limit in asked]

    text = pair.plain(PROMPTS[2], LONGEST + 6)
    at = max(map(text.index, text))  # where the token stands that comes up last
    ends = [text[at], pair.plain(PROMPTS[1], LONGEST)[5]]
    rows = [PROMPTS[2] + text[:i] for i in range(at + 1)] + PROMPTS
    limits = [3 if i == 2 else 7 if i == 5 else LONGEST for i in range(len(rows))]
    whole = [text[i:] for i in range(at + 1)] + [pair.plain(prompt, LONGEST) for prompt in PROMPTS]
    out = specwb.decode(pair.target, rows, method, max_new_tokens=limits, eos=ends)
    assert out.tokens == [
        min((cut(t[:m], eos) for eos in ends), key=len) for t, m in zip(whole, limits)
    ]

    out = specwb.decode(pair.target, [PROMPTS[0]], method, max_new_tokens=2, eos=text[at])
    assert out.tokens == [cut(pair.plain(PROMPTS[0], LONGEST)[:2], text[at])]


# ----------------------------------------------------------------------------------- exact text

WARM = [(0.3, 1.0), (1.0, 0.8)]  # temperature and top-p


@functools.cache
def sampled_text(pair: Pair, temperature: float, top_p: float) -> list[list[int]]:
    """What plain decoding writes, and how often it is the greedy text: never."""
    settings = {"temperature": temperature, "top_p": top_p, "exact_text": True, "seed": [3, 4, 5]}
    out = specwb.decode(pair.target, PROMPTS, "ar", max_new_tokens=LONGEST, **settings).tokens
    assert all(out[i] != pair.plain(prompt, LONGEST) for i, prompt in enumerate(PROMPTS))
    return out


@every_case
def test_exact_text_is_plain_decodings_at_every_temperature(key, options):
    """In a batch and alone, whatever was drafted; and drafts that share the noise are accepted."""
    pair = EVERYTHING
    method = made(key, {n: x for n, x in options.items() if n != "rule"}, pair)
    taus = []
    for temperature, top_p in WARM:
        settings = {"temperature": temperature, "top_p": top_p, "exact_text": True}
        wanted = sampled_text(pair, temperature, top_p)
        out = specwb.decode(
            pair.target, PROMPTS, method, max_new_tokens=[9, 6, 8], seed=[3, 4, 5], **settings
        )
        assert out.tokens == [row[:n] for row, n in zip(wanted, [9, 6, 8])]
        taus.append(out.mean_tokens_per_step)
    alone = specwb.decode(
        pair.target, [PROMPTS[2]], method, max_new_tokens=LONGEST, seed=[5], **settings
    )
    assert alone.tokens == wanted[2:]
    least = 0 if key in FROM_THE_TEXT else 1 if "score" in options else 1.3
    depth = method.drafter.limits.depth
    assert max(taus) == 1 if depth == 0 else least < max(taus) < depth + 1, taus


@every_case
def test_drafts_have_the_noise_of_their_places(key, options, monkeypatch):
    """Noise that outweighs every logit at one token of each place: it is the text, and the whole
    draft where it is drafted with the same noise."""
    if key in FROM_THE_TEXT or "score" in options:  # these do not draft by logits alone
        return
    pair = EVERYTHING
    method = made(key, {n: x for n, x in options.items() if n not in ("rule", "copy")}, pair)
    drafter = method.drafter
    head = next((vars(drafter)[n] for n in ("head", "heads", "model") if n in vars(drafter)), None)
    words = getattr(head, "words", None)
    words = torch.arange(tiny.VOCABULARY) if words is None else words
    words = words[words != getattr(head, "mask_id", -1)]

    def noise(self, places, vocabulary):
        chosen = words[places * 7 % len(words)]
        return 1e4 * torch.nn.functional.one_hot(chosen, vocabulary).double()

    monkeypatch.setattr(specwb.core.noise.Noise, "gumbel", noise)
    settings = {"temperature": 1.0, "exact_text": True, "max_new_tokens": 12, "eos": ()}
    depths = set()
    for step in specwb.rounds(pair.target, PROMPTS, method, **settings):
        drafted = (step.draft.valid * step.draft.tree.depth).amax(1)
        assert (step.state.done | (step.verdict.accepted == drafted)).all()
        depths.update(drafted.tolist())
    assert max(depths) == min(drafter.limits.depth, 6)  # that is what the heuristic comes to
    for row, prompt in zip(step.state.tokens.tolist(), PROMPTS):
        places = torch.arange(len(prompt), len(prompt) + 12)
        assert row[len(prompt) :][:12] == words[places * 7 % len(words)].tolist()


# ------------------------------------------------------------------------------------- acceptance


@cases(WITH_A_DRAFT)
def test_draft_equal_to_target_is_always_accepted(key, options):
    pair = EVERYTHING
    # for gbv: the largest of several draws from p is not distributed like p
    temperature = 0.0 if options.get("rule") == "gbv" else 1.0
    method = made(key, options, pair, draft=pair.target)
    full, whole = method.drafter.limits.depth + 1, []
    for step in specwb.rounds(
        pair.target,
        PROMPTS,
        method,
        max_new_tokens=5 * full,
        temperature=temperature,
        seed=[3, 4, 5],
    ):
        drafted = (step.draft.valid * step.draft.tree.depth).amax(1)
        cut = step.state.done  # the limit may fall inside what was accepted
        assert (cut | (step.verdict.accepted == drafted)).all()
        whole += drafted[step.verdict.accepted >= 0].tolist()
    if {"schedule", "confidence", "threshold"} & set(options):  # these draft what they choose
        assert len(set(whole)) > 1
    else:
        assert whole == [full - 1] * 15


@first_cases
def test_a_draft_of_the_truth_is_accepted_to_every_length(key, options, monkeypatch):
    """The drafter's tokens are overwritten: the plain continuation for j levels of the deepest
    path, j = 0, 1, .. step by step, wrong everywhere else. Where the drafter has run the target's
    first layers already, they run over these."""
    pair = EVERYTHING
    whole = [pair.plain(prompt, 45) for prompt in PROMPTS]
    truth = torch.tensor(
        [prompt + tokens + [0] * (7 - len(prompt)) for prompt, tokens in zip(PROMPTS, whole)]
    )
    method = made(key, options, pair)
    depth = method.drafter.limits.depth
    real = type(method.drafter).propose
    reached, drafted, j = set(), {0}, -1
    kept: list[Kept] = []
    most = min((depth + 1) * (depth + 2) + 3, 45)
    limits = [most, most - 3, most - 1]

    def propose(self, state, noise):
        nonlocal j
        j = (j + 1) % (depth + 1)
        draft = real(self, state, noise)
        tree = draft.tree
        at = (state.length[:, None] - 1 + tree.depth).clamp_max(truth.shape[1] - 1)
        right = truth.gather(1, at)
        leaf = tree.depth[:, : tree.v].argmax(1)
        on = tree.mask[torch.arange(tree.R), leaf] & (tree.depth <= j)
        draft.tokens = torch.where(on, right, (right + 1) % tiny.VOCABULARY)
        draft.valid = torch.ones_like(draft.valid)
        if draft.hidden is not None:
            draft.hidden = first_layers(pair.target, state, draft)
        return draft

    def right(state, drafter, step):
        left = torch.tensor(limits) + torch.tensor([len(p) for p in PROMPTS]) - step.length
        deep = step.draft.tree.depth.amax(1).clamp_max(j)  # a grown tree may be less deep
        drafted.add(step.draft.tree.D)
        wanted = torch.where(left > 0, torch.minimum(left, deep + 1) - 1, -1)
        assert step.verdict.accepted.tolist() == wanted.tolist()
        reached.update(wanted.tolist())
        keep_target_cache(state, kept)

    drafter = copy.copy(method.drafter)
    # the whole tree every round, whatever was found
    changed = {"propose": propose, "largest": lambda self, state, count, most: most}
    drafter.__class__ = type("Patched", (type(drafter),), changed)
    patched = specwb.Method(method.key, drafter, method.rule, method.exactness)
    with watched(monkeypatch, after=right):
        out = specwb.decode(pair.target, PROMPTS, patched, max_new_tokens=limits)
    assert out.tokens == [tokens[:n] for tokens, n in zip(whole, limits)]
    assert_recomputed(kept, lambda text: tiny.recomputed(pair.target.backbone, text))
    # a diffusion model may never be sure enough, and beams may be pruned
    assert max(drafted) == depth or isinstance(method.drafter, DiffusionDrafter)
    # how far a row may copy bounds its own chain, not the other rows' trees
    assert "copy" in options or set(range(min(max(drafted), 7) + 1)) <= reached


def first_layers(target: specwb.Target, state: specwb.State, draft: specwb.Draft) -> torch.Tensor:
    """``[B,n,H]``: the target's layers before ``start_layer`` over the draft's tokens, their keys
    and values in its cache."""
    base, n, backbone = (state.length - 1)[:, None], draft.tree.n, target.backbone
    positions = (base + draft.tree.depth).expand(state.rows, n)
    seen = tree_mask(draft.tree, state.length, state.horizon, target.dtype)
    place = Place(positions, base + torch.arange(n), state.horizon - 1 + n, seen)
    x = backbone.embed(draft.tokens)
    return backbone.run(x, place, state.cache, last=draft.start_layer)[0]


# ----------------------------------------------------------------------------------------- caches


Kept = tuple[
    torch.Tensor, torch.Tensor
]  # a text [m], and what was stored of it [*,<= m,...] after some round


def keep_target_cache(state: specwb.State, kept: list[Kept]) -> None:
    for row in range(state.rows):
        good = int(state.length[row]) - 1
        kept.append((state.tokens[row, :good].clone(), state.cache.data[:, row, :good].clone()))


def assert_recomputed(kept: list[Kept], fresh: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """All that was kept is what ``fresh`` makes of its text from nothing. What is stored of a token
    depends on nothing behind it, so a text that begins another is not computed again: in falling
    order it comes after those that it begins."""
    whole: list[int] = []
    for text, stored in sorted(
        ((text.tolist(), stored) for text, stored in kept if len(text)),
        key=lambda one: one[0],
        reverse=True,
    ):
        if whole[: len(text)] != text:
            whole, right = text, fresh(torch.tensor(text))
        torch.testing.assert_close(stored, right[:, : stored.shape[1]], atol=1e-4, rtol=1e-4)


@every_case
def test_caches_equal_recomputation_after_every_round(key, options, monkeypatch):
    pair = EVERYTHING
    method = made(key, options, pair)
    drafts = getattr(method.drafter, "behind", method.drafter)  # of one in front of another
    lengths, checked, opened = set(), 0, drafts
    targets: list[Kept] = []
    own: list[Kept] = []
    more = int(isinstance(drafts, EagleDrafter))  # tokens that a pair is of, beyond its own

    def check(state, drafter, step):
        nonlocal checked, opened
        opened = getattr(drafter, "behind", drafter)  # the decoding's own
        lengths.update(step.verdict.accepted.tolist())
        assert state.horizon == int(state.length.max())
        keep_target_cache(state, targets)
        for cache in [value for value in vars(opened).values() if isinstance(value, KVCache)]:
            assert cache is not state.cache
            for row, good in enumerate(drafter.exact_until(step.length, state.length).tolist()):
                if good <= 0:
                    continue
                checked += 1
                text = state.tokens[row, : good + more].clone()
                stored = cache.data[:, row, :good].clone()
                if isinstance(opened, FalconDrafter):
                    # how far a pair saw changes from round to round
                    right = tiny.recomputed_pairs(opened, pair.target, text, opened.ends[row])
                    torch.testing.assert_close(stored, right, atol=1e-4, rtol=1e-4)
                else:
                    own.append((text, stored))

    def fresh(text):
        if isinstance(drafts, KangarooDrafter):
            return tiny.recomputed_adapter(drafts, pair.target, text)
        if isinstance(drafts, EagleDrafter):
            return tiny.recomputed_pairs(drafts, pair.target, text)
        return tiny.recomputed(opened.backbone, text)

    with watched(monkeypatch, after=check):
        specwb.decode(
            pair.target,
            PROMPTS,
            method,
            max_new_tokens=[18, 14, 16],
            temperature=1.0,
            seed=2,
        )
    assert_recomputed(targets, lambda text: tiny.recomputed(pair.target.backbone, text))
    assert_recomputed(own, fresh)
    if key not in FROM_THE_TEXT:
        assert len(lengths - {-1}) >= min(2, method.drafter.limits.depth + 1), (
            "one acceptance length alone proves little"
        )
    has_cache = isinstance(drafts, EagleDrafter) or getattr(drafts, "stack", None) is not None
    if ("draft" in specwb.METHODS[key].options or has_cache) and options.get("calibrate", True):
        assert checked > 10, "no drafter cache was compared"


@cases([case for case in FIRST if case[0] != "ar"])
def test_features_equal_recomputation_after_every_round(key, options, monkeypatch):
    """Whatever a drafter asks for: hidden states of every layer, by position, exact below length -
    1."""
    pair = EVERYTHING
    method = made(key, options, pair)
    drafter = copy.copy(method.drafter)
    if not drafter.features:
        drafter.features = (0, 2, 3)
    kept: list[Kept] = []

    def check(state, drafter, step):
        for row in range(state.rows):
            m = int(state.length[row]) - 1
            kept.append((state.tokens[row, :m].clone(), state.features[row : row + 1, :m].clone()))

    with watched(monkeypatch, after=check):
        asked = specwb.Method(method.key, drafter, method.rule, method.exactness)
        specwb.decode(pair.target, PROMPTS, asked, max_new_tokens=12, temperature=1.0, seed=4)
    assert_recomputed(kept, lambda text: tiny.states(pair.target, text[None], drafter.features))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@cases(WITH_A_DRAFT)
def test_children_are_the_draft_models_after_their_own_path(key, options, temperature):
    """At every node: the top candidates at T = 0, the law q at T > 0, from the library's own
    forward over text and path."""
    pair = EVERYTHING
    method = made(key, options, pair)
    assert isinstance(getattr(method.drafter, "behind", method.drafter), LevelDrafter)
    loop = specwb.rounds(
        pair.target, PROMPTS, method, max_new_tokens=12, temperature=temperature, seed=1, trace=True
    )
    for step, _ in zip(loop, range(2)):
        draft, parents = step.draft, step.draft.tree.host[0]
        for row in range(3):
            text = step.state.tokens[row, : int(step.length[row])].tolist()
            for node in sorted(set(parents[1:])):
                path = tiny.path_to(parents, draft.tokens[row].tolist(), node)
                logits = tiny.forward(pair.draft.model, text + path)[-1]
                kids = [i for i, parent in enumerate(parents) if parent == node]
                if temperature:
                    q = draft.q_of(torch.full((3,), node))[row]
                    torch.testing.assert_close(q, logits.softmax(-1), atol=1e-5, rtol=1e-4)
                else:
                    assert (
                        draft.tokens[row, kids].tolist() == logits.topk(len(kids)).indices.tolist()
                    )


# -------------------------------------------------------------------------------- rows of a batch


@every_case
def test_a_row_alone_is_the_row_in_a_batch(key, options):
    pair = EVERYTHING
    method = made(key, options, pair)
    prompts, seeds, limits = [PROMPTS[1], PROMPTS[1], LONG], [2**63 - 1, 0, -(2**63)], [9, 7, 8]
    filters = {"top_k": 16, "top_p": 0.95} if len(options) % 2 else {}
    settings = {"temperature": 1.0, **filters}
    out = specwb.decode(pair.target, prompts, method, max_new_tokens=limits, seed=seeds, **settings)
    assert out.tokens[0][:7] != out.tokens[1], "the seed changes nothing"
    for i in (1, 2):
        one = {"max_new_tokens": limits[i], "seed": [seeds[i]], **settings}
        alone = specwb.decode(pair.target, [prompts[i]], method, **one)
        assert alone.tokens == [out.tokens[i]]
        assert alone.accepted_lengths == [out.accepted_lengths[i]]


@first_cases
def test_a_method_is_a_description_and_can_be_shared(key, options):
    """Two decodings with one method object, round by round in turn."""
    pair = EVERYTHING
    method = made(key, options, pair)
    settings = {"max_new_tokens": 6, "temperature": 1.0, "seed": 5}
    apart = [
        specwb.decode(pair.target, [prompt], method, **settings).tokens[0]
        for prompt in (PROMPTS[0], PROMPTS[2])
    ]
    open_now = [
        (prompt, specwb.rounds(pair.target, [prompt], method, **settings))
        for prompt in (PROMPTS[0], PROMPTS[2])
    ]
    found: dict[int, list[int]] = {}
    while open_now:
        for item in list(open_now):
            prompt, loop = item
            step = next(loop, None)
            if step is None:
                open_now.remove(item)
            else:
                found[len(prompt)] = step.state.tokens[
                    0, len(prompt) : int(step.state.length[0])
                ].tolist()
    assert [found[3], found[7]] == apart


@cases([case for case in FIRST if case[0] in ("ar", "sps", "mcsd")])
def test_every_token_is_reported_once(key, options):
    pair = EVERYTHING
    heard: list[list[int]] = [[], [], []]
    drafted = [0, 0, 0]

    def on_tokens(row, ids, accepted):
        assert len(ids) == accepted + 1
        heard[row] += ids
        drafted[row] += accepted

    out = specwb.decode(
        pair.target,
        PROMPTS,
        made(key, options, pair),
        max_new_tokens=[9, 14, 1],
        on_tokens=on_tokens,
    )
    assert heard == out.tokens
    assert drafted == [sum(lengths) for lengths in out.accepted_lengths]
    assert [len(lengths) for lengths in out.accepted_lengths] == out.step_counts
    assert out.mean_tokens_per_step == 24 / sum(out.step_counts)


# ------------------------------------------------------------------------------------- host reads


class HostReads(TorchDispatchMode):
    """Counts what would make a GPU wait for the host: conversions by name, and operators behind the
    scenes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.where: list[str] = []
        self.inside = False
        for name in CONVERSIONS:
            patch.setattr(torch.Tensor, name, self._counted(name, getattr(torch.Tensor, name)))

    def _counted(self, name: str, real: Callable) -> Callable:
        def conversion(tensor, *args, **kwargs):
            if self.armed and not self.inside:
                self.where.append(name)
                self.inside = True
                try:
                    return real(tensor, *args, **kwargs)
                finally:
                    self.inside = False
            return real(tensor, *args, **kwargs)

        return conversion

    armed = False

    def __enter__(self):
        self.armed = True
        return super().__enter__()

    def __exit__(self, *error):
        self.armed = False
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not self.inside and waits(func, args):
            self.where.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


READING = {
    "T0": {"temperature": 0.0},
    "filtered": {"temperature": 0.7, "top_k": 9, "top_p": 0.9},
}


@cases(
    [(*case, "filtered") for case in CASES] + [(*case, "T0") for case in FIRST[1::2]],
    "key, options, name",
)
def test_host_reads_a_round_are_as_declared(key, options, name, monkeypatch):
    """Those of exact text are counted by ``make dry``."""
    pair, settings = EVERYTHING, READING[name]
    method = made(key, options, pair)
    counts = []
    real = engine.Decoding.step
    with monkeypatch.context() as patch:
        reads = HostReads(patch)

        def step(decoding, arena=None):
            before = len(reads.where)
            decoding.rule.lazy = (
                False  # a rule reads only where the engine says that it costs nothing
            )
            with reads:
                done = real(decoding, arena)
            counts.append(reads.where[before:])
            return done

        patch.setattr(engine.Decoding, "step", step)
        specwb.decode(pair.target, PROMPTS, method, max_new_tokens=8, eos=3, seed=1, **settings)
    assert len(counts) > 1
    for found in counts:
        # the engine's own, and what the drafter declares at most (in recorded rounds none:
        # test_graphs)
        assert 1 <= len(found) <= 1 + method.drafter.host_reads, found
