"""Whole decodings on a tiny vocabulary: the law of the text is the enumerated law of autoregressive
sampling, and the same test rejects engines and rules that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import pytest
import tiny
import torch
from scipy import stats
from torch import Tensor

import specwb
from specwb.core.noise import ACCEPT, BONUS, DRAFT, Noise
from specwb.core.probability import Sampling
from specwb.drafters.admission import Costs
from specwb.rules import PointMass

VOCABULARY, LENGTH, PROMPT = 6, 3, [1, 4, 2]
ROWS = 4096
FILTERS = {
    "plain": Sampling(1.0),
    "top_k": Sampling(0.9, top_k=4),
    "top_p": Sampling(1.3, top_p=0.8),
}
TREE = specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)])
# at which a node is worth its time where it survives more often than one in four or five times
COSTS = Costs({1: ROWS, 1000 * ROWS: 300.0 * ROWS}, dict.fromkeys(range(1, 4), 0.0))
# every drafter and sampling scheme; rules as they decode are tested in tests/rules
METHODS: dict[str, tuple[str, dict]] = {
    "ar": ("ar", {}),
    "sps": ("sps", {"gamma": 2}),
    "sps with a confidence": ("sps", {"gamma": 4, "confidence": 0.4}),
    "mcsd": ("mcsd", {"tree": (3, 2, 1)}),
    "mcsd with replacement": ("mcsd", {"tree": (3, 2, 1), "draw": "with"}),
    "block verification of chains that end early": (
        "sps:rule=block",
        {"gamma": 1, "schedule": "heuristic", "confidence": 0.2},
    ),
    "traversal": ("mcsd:rule=traversal", {"tree": TREE}),
    "naive verification of repeated siblings": (
        "mcsd:rule=point",
        {"tree": (3, 2, 1), "draw": "with"},
    ),
    "mcsd wider than the support": ("mcsd", {"tree": (6,)}),
    "mcsd top and sample": ("mcsd", {"tree": (3, 2, 1), "draw": "top"}),
    "medusa": ("medusa", {"tree": (3, 2)}),
    "eagle": ("eagle", {"tree": TREE}),
    "eagle with replacement, reduced vocabulary": (
        "eagle",
        {"tree": (3, 2), "draw": "with", "head": "eagle3"},
    ),
    "eagle2": ("eagle2", {"nodes": 9, "depth": 3, "top": 3}),
    "eagle3, reduced vocabulary": ("eagle3", {"nodes": 7, "depth": 2, "top": 3}),
    "falcon": ("falcon", {"tree": (3, 2, 1)}),
    "falcon_dynamic": (
        "falcon_dynamic",
        {"nodes": 9, "passes": 2, "top": 3, "beams": 2, "head": "falcon"},
    ),
    **{
        f"{spec} in part": (f"{spec},verify=auto", {**own, "costs": COSTS})
        for spec, own in {
            "sps:rule=block": {"gamma": 3},
            "mcsd:draw=without": {"tree": TREE},
        }.items()
    },
}


# drafters that know only the text, so it has to repeat something; 5 was followed by 1 4, 1 2, 5 4
# and 4 3
REPETITION = [5, 1, 4, 3, 3, 0, 4, 5, 1, 2, 5, 5, 4, 3, 2, 5]
FROM_THE_TEXT: dict[str, tuple[str, dict]] = {
    "pld": ("pld", {"gamma": 3, "ngram": 2}),
    "suffix": ("suffix", {"gamma": 3, "confidence": 0.05}),
    "recycling": ("recycling", {"tree": TREE}),
    "lookahead": ("lookahead", {"window": 3, "level": 3, "guesses": 4, "prompt": True}),
    "lookahead, longer n-grams": (
        "lookahead",
        {"window": 2, "level": 4, "guesses": 2, "prompt": True},
    ),
    **{
        f"copying in front of {spec}": (f"{spec},copy=1", {"tree": TREE})
        for spec in ("mcsd:draw=without", "eagle:draw=greedy")
    },
    **{
        f"copying in front of {spec} in part": (
            f"{spec},copy=2,verify=auto",
            {"tree": TREE, "costs": COSTS},
        )
        for spec in ("mcsd:draw=without", "eagle:draw=greedy")
    },
}


# what filters change is p and q, which no rule and few drafters compute by themselves
FILTERED = {
    "sps": "top_p",
    "mcsd": "top_p",
    "eagle": "top_k",
    "eagle3, reduced vocabulary": "top_p",
}


def cases(methods: dict[str, tuple[str, dict]]) -> pytest.MarkDecorator:
    """Every method without filters, and some with one of the two."""
    rows = [pytest.param(*own, "plain", id=f"{name}-plain") for name, own in methods.items()]
    for name in sorted(FILTERED.keys() & methods.keys()):
        one = FILTERED[name]
        rows.append(pytest.param(*methods[name], one, id=f"{name}-{one}", marks=pytest.mark.slow))
    return pytest.mark.parametrize(("spec", "options", "name"), rows)


@cache
def models() -> tuple[specwb.Target, specwb.Target]:
    return tiny.pair(0.2, vocabulary=VOCABULARY)


@cache
def enumerated(
    name: str, prompt: tuple[int, ...] = tuple(PROMPT), target: specwb.Target | None = None
) -> Tensor:
    """``[V^3]`` probabilities of all texts of a target, by default the first of ``models()``, from
    the library's own forward."""
    texts = list(product(range(VOCABULARY), repeat=LENGTH))
    with torch.no_grad():
        model = (target or models()[0]).model
        logits = model(torch.tensor([[*prompt, *text] for text in texts])).logits
    p = FILTERS[name].probabilities(logits[:, len(prompt) - 1 : -1]).double()
    p = p / p.sum(-1, keepdim=True)
    return p.gather(2, torch.tensor(texts)[:, :, None])[:, :, 0].prod(1)


def sampled(
    method: specwb.Method, name: str, prompt: list[int] = PROMPT, batches: int = 1
) -> tuple[Tensor, float]:
    """``[V^3]`` counts of texts, and tau."""
    counts = torch.zeros(VOCABULARY**LENGTH, dtype=torch.long)
    settings, rounds = FILTERS[name], 0
    for batch in range(batches):
        out = specwb.decode(
            models()[0],
            [prompt] * ROWS,
            method,
            max_new_tokens=LENGTH,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            seed=batch,
        )
        code = (torch.tensor(out.tokens) * torch.tensor([VOCABULARY**2, VOCABULARY, 1])).sum(1)
        counts += torch.bincount(code, minlength=len(counts))
        rounds += sum(out.step_counts)
    return counts, LENGTH * ROWS * batches / rounds


def chi_square(counts: Tensor, distribution: Tensor) -> float:
    """p-value; texts that are expected less than eight times share one cell, and impossible ones
    make it 0."""
    if bool((counts[distribution == 0] > 0).any()):
        return 0.0
    expected = distribution * int(counts.sum())
    rare = (expected < 8) & (distribution > 0)
    observed, wanted = (
        counts[~rare & (distribution > 0)].double(),
        expected[~rare & (distribution > 0)],
    )
    if bool(rare.any()):
        observed, wanted = (
            torch.cat([observed, counts[rare].sum()[None].double()]),
            torch.cat([wanted, expected[rare].sum()[None]]),
        )
    assert len(wanted) > 10, "too few cells to see anything"
    return float(
        stats.chisquare(observed.numpy(), (wanted * observed.sum() / wanted.sum()).numpy()).pvalue
    )


@cache
def head(kind: str):
    """Of an EAGLE-3 head the target has two tokens more. Few steps: trained for longer, Falcon's
    knows its dozen texts by heart, and little else is accepted."""
    return tiny.trained(kind, models()[0], vocabulary=VOCABULARY - 2, temperature=1.0, steps=60)


def built(spec: str, options: dict) -> specwb.Method:
    target, draft = models()
    key = spec.partition(":")[0]
    wants = specwb.METHODS[key].options
    own = {"draft": draft} if "draft" in wants else {}
    if "head" in wants:
        own = {"head": head(options.get("head", "eagle" if key == "eagle2" else key))}
    costs = options.get("costs")
    options = {name: value for name, value in options.items() if name != "costs"}
    method = specwb.method(spec, target, **{**options, **own})
    if costs is not None:
        method.drafter.costs, method.drafter.planted = {ROWS: costs}, True
    return method


@cases(METHODS)
def test_the_distribution_of_the_text_is_the_autoregressive_distribution(spec, options, name):
    counts, tau = sampled(built(spec, options), name)
    assert chi_square(counts, enumerated(name)) > 1e-4
    if spec == "ar":
        assert tau == 1
    elif options.get("tree") == (6,) and name == "plain":
        assert tau == LENGTH / 2, "every token of the vocabulary was a candidate"
    else:
        assert 1.2 < tau < LENGTH, "drafts that are never accepted, or always, prove nothing"


@cases(FROM_THE_TEXT)
def test_the_distribution_of_the_text_of_drafters_that_know_only_the_text(spec, options, name):
    counts, tau = sampled(built(spec, options), name, REPETITION)
    assert chi_square(counts, enumerated(name, tuple(REPETITION))) > 1e-4
    assert 1.3 < tau < LENGTH


class Fixed(specwb.Drafter):
    """Proposes the same tokens every round, some of them twice: a deterministic draft of any
    shape."""

    def __init__(self, tree: specwb.Tree, tokens: list[int]) -> None:
        self.tree, self.tokens = tree, tokens

    def propose(self, state, noise):
        return self.candidates(state, torch.tensor(self.tokens).expand(state.rows, -1))


@pytest.mark.parametrize(
    ("tree", "tokens"),
    [
        (specwb.Tree.branching(3, 2), [2, 0, 5, 1, 2, 3, 4, 5, 0]),
        (specwb.Tree.branching(4), [3, 3, 1, 3]),
    ],
    ids=["tree", "repeated"],
)
def test_deterministic_candidates_with_the_point_mass_rule(tree, tokens):
    method = specwb.Method("fixed", Fixed(tree, tokens), None, specwb.Exactness.LOSSLESS)
    assert isinstance(method.rule_for(Sampling(1.0)), PointMass)
    counts, tau = sampled(method, "plain")
    assert chi_square(counts, enumerated("plain")) > 1e-4
    assert tau > 1.01


def test_rows_of_different_shape():
    """Each row its own tree: even rows a chain, odd rows two leaves and padding."""
    shapes = specwb.Tree([[-1, 0, 1], [-1, 0, 0]] * (ROWS // 2))
    method = specwb.Method("fixed", Fixed(shapes, [2, 5]), None, specwb.Exactness.LOSSLESS)
    counts, _ = sampled(method, "plain")
    assert chi_square(counts, enumerated("plain")) > 1e-4


# -------------------------------------------------------------------------- what must be rejected


def reuse_of(one: int, by: int) -> Callable:
    """Stream ``by`` gets the noise of stream ``one``."""
    real = Noise.u

    def u(self: Noise, stream: int) -> Tensor:
        values = real(self, stream)
        return real(self, one)[:, : values.shape[1]] if stream == by else values

    return u


@pytest.mark.parametrize(
    ("one", "by"),
    [(DRAFT, ACCEPT), (ACCEPT, BONUS)],
    ids=["draft for accept", "accept for close"],
)
def test_noise_that_is_used_twice_is_seen(one, by, monkeypatch):
    monkeypatch.setattr(Noise, "u", reuse_of(one, by))
    counts, _ = sampled(built(*METHODS["mcsd"]), "plain")
    assert chi_square(counts, enumerated("plain")) < 1e-6


def test_leaving_out_a_token_that_is_itself_unlikely_is_seen(monkeypatch):
    """The confidence stop may decide about the next token only."""
    right = built("sps", {"gamma": 4, "confidence": 0.4})
    real = type(right.drafter).propose

    def propose(self, state, noise):
        draft = real(self, state, noise)
        for depth in range(1, draft.tree.n):
            own = draft.q[:, depth - 1].gather(1, draft.tokens[:, depth : depth + 1])
            draft.valid[:, depth : depth + 1] &= own >= self.length.confidence
        return draft

    monkeypatch.setattr(type(right.drafter), "propose", propose)
    assert chi_square(sampled(right, "plain")[0], enumerated("plain")) < 1e-6


def test_admitting_a_token_by_its_own_probability_is_seen(monkeypatch):
    """A node's survival may depend on what is above it, not on its own token."""
    spec, options = METHODS["mcsd:draw=without in part"]
    right = built(spec, options)
    real = type(right.drafter.behind).propose

    def propose(self, state, noise):
        draft = real(self, state, noise)
        q_row = draft.q_row.gather(1, draft.tree.parent.clamp_min(0))  # a node's own row of q
        row = torch.arange(ROWS)[:, None]
        draft.confidence = draft.q[row, q_row.clamp_min(0), draft.tokens]
        return draft

    monkeypatch.setattr(type(right.drafter.behind), "propose", propose)
    assert chi_square(sampled(right, "plain")[0], enumerated("plain")) < 1e-6
