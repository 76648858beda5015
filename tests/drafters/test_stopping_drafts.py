"""Early stopping: each measure of sureness by hand, where each row stops, and the law of whole
texts with every drafter that stops."""

from __future__ import annotations

from functools import cache

import pytest
import test_decoding_distribution as decoding
import tiny
import torch

import specwb
from specwb.drafters.length import Length
from specwb.drafters.stopping import Confidence
from specwb.models.decision import DecisionModel
from specwb.models.kangaroo import KangarooAdapter

PROMPTS = tiny.PROMPTS


# --------------------------------------------------------------------------- where each row stops


def depths(step) -> list[int | None]:
    """How many levels each row drafted; None where it had finished."""
    found = (step.draft.valid * step.draft.tree.depth).amax(1).tolist()
    return [
        None if accepted < 0 else depth
        for depth, accepted in zip(found, step.verdict.accepted.tolist(), strict=True)
    ]


TREE = specwb.Tree.branching(2, 2, 1, 1)
STOPS: dict[str, tuple[str, dict, float]] = {
    "largest": ("mcsd_ti", {"stop": "top"}, 0.15),
    "entropy": ("mcsd_ti", {"stop": "entropy"}, 0.03),
    "soft": ("mcsd_ti", {"stop": "soft"}, 0.78),
    "hard": ("mcsd_ti", {"stop": "hard"}, 0.52),
    "kangaroo": ("kangaroo", {"stop": "top"}, 0.3),
    "kangaroo scaled": ("kangaroo", {"stop": "scaled"}, 0.5),
    "kangaroo entropy": ("kangaroo", {"stop": "entropy"}, 0.1),
}


def stopping(name: str, threshold: float, tree: specwb.Tree = TREE) -> specwb.Method:
    key, options, _ = STOPS[name]
    if key == "kangaroo":
        options = options if threshold else {}  # it has no effect there and is refused
        return specwb.method(
            key, tiny.target(), head=tiny.head("kangaroo"), tree=tree, eta=threshold, **options
        )
    head = {"head": tiny.head("decision")} if options["stop"] in ("soft", "hard") else {}
    return specwb.method(
        key, tiny.target(), draft=tiny.draft(), tree=tree, threshold=threshold, **head, **options
    )


def by_hand(name: str, text: list[int], temperature: float) -> float:
    """How sure the drafter is of what follows a text, from the library's own forward."""
    ids, draft = torch.tensor([text]), tiny.draft()
    with torch.no_grad():
        if name.startswith("kangaroo"):
            head = tiny.head("kangaroo")
            logits = head.logits(
                head(tiny.states(tiny.target(), ids, (1,)))[:, -1], tiny.target().backbone.lm_head
            )
        else:
            normed = draft.model.model(input_ids=ids, use_cache=False).last_hidden_state[:, -1]
            logits = draft.model.lm_head(normed)
        if name in ("soft", "hard"):
            return float(tiny.head("decision")(name, logits, normed).sigmoid())
        q = (logits / (temperature or 1) if name.endswith("scaled") else logits).softmax(-1)
        return float((q * q.log()).sum().exp() if name.endswith("entropy") else q.max())


@pytest.mark.parametrize("temperature", [0.0, 0.4])
@pytest.mark.parametrize("name", STOPS)
def test_a_row_stops_below_the_first_level_that_it_is_unsure_of(name, temperature):
    """A level's nodes are drafted whole, the one that made it stop among them; the rest of the row
    is not valid."""
    threshold, seen = STOPS[name][2], set()
    loop = specwb.rounds(
        tiny.target(),
        PROMPTS,
        stopping(name, threshold),
        max_new_tokens=20,
        temperature=temperature,
        seed=2,
    )
    for step, _ in zip(loop, range(4)):
        tree, found = step.draft.tree, depths(step)
        assert max((d for d in found if d is not None), default=tree.D) == tree.D, (
            "on the CPU the tree is cut to the longest row"
        )
        for row, depth in enumerate(found):
            if depth is None:
                continue
            seen.add(depth)
            assert step.draft.valid[row].tolist() == [d <= depth for d in tree.depths[0]]
            text, tokens = (
                step.state.tokens[row, : int(step.length[row])].tolist(),
                step.draft.tokens[row].tolist(),
            )
            for d in range(depth):  # asked of level d when its children have been drafted
                start, stop = tree.levels[d]
                value = max(
                    by_hand(name, text + tiny.path_to(tree.host[0], tokens, node), temperature)
                    for node in range(start, stop)
                )
                if d == TREE.D - 1:
                    continue  # nothing could follow
                assert (value >= threshold) == (d < depth - 1), (value, d, depth)
    assert len(seen) > 1, "one depth alone proves little"


# ---------------------------------------------------------------------------- the law of the text


V, LENGTH, PROMPT, ROWS = decoding.VOCABULARY, decoding.LENGTH, decoding.PROMPT, decoding.ROWS


@cache
def models() -> tuple[specwb.Target, specwb.Target]:
    """As in test_decoding_distribution, of two layers."""
    return tiny.pair(0.15, layers=2, vocabulary=V)


@cache
def adapter() -> KangarooAdapter:
    return tiny.trained("kangaroo", models()[0], steps=30, temperature=1.0)


@cache
def decisions() -> DecisionModel:
    return tiny.trained("decision", models()[0], steps=40, draft=models()[1])


def right(method: specwb.Method) -> tuple[float, float, set[int]]:
    """p-value of the texts' chi-square, tau, and how many levels rows drafted."""
    drafted: set[int] = set()
    counts, total = torch.zeros(V**LENGTH, dtype=torch.long), 0
    for step in specwb.rounds(
        models()[0], [PROMPT] * ROWS, method, max_new_tokens=LENGTH, temperature=1.0, seed=3
    ):
        state, total = step.state, total + int((step.verdict.accepted >= 0).sum())
        drafted |= {d for d in depths(step) if d is not None}
    written = state.tokens[:, len(PROMPT) : len(PROMPT) + LENGTH]
    counts += torch.bincount((written * torch.tensor([V * V, V, 1])).sum(1), minlength=len(counts))
    texts = decoding.enumerated("plain", target=models()[0])
    return decoding.chi_square(counts, texts), LENGTH * ROWS / total, drafted


def built(spec: str, **options) -> specwb.Method:
    if spec.startswith("kangaroo"):
        return specwb.method(spec, models()[0], head=adapter(), **options)
    head = {"head": decisions()} if options.get("stop") in ("soft", "hard") else {}
    return specwb.method(spec, models()[0], draft=models()[1], **head, **options)


CASES: dict[str, tuple[str, dict]] = {
    "kangaroo": ("kangaroo", {"gamma": 3, "eta": 0.45}),
    "kangaroo, block verification": (
        "kangaroo:rule=block",
        {"gamma": 3, "eta": 0.235, "stop": "entropy"},
    ),
    "kangaroo, static tree": ("kangaroo", {"tree": tiny.LOPSIDED, "eta": 0.45}),
    "kangaroo, its own tree": (
        "kangaroo",
        {"tree": True, "gamma": 3, "top": 2, "nodes": 6, "eta": 0.35},
    ),
    "mcsd_ti, soft": ("mcsd_ti", {"tree": (2, 1, 3), "stop": "soft", "threshold": 0.56}),
    "mcsd_ti, entropy": ("mcsd_ti", {"tree": tiny.LOPSIDED, "stop": "entropy", "threshold": 0.3}),
    "mcsd_ti, paths": (
        "mcsd_ti",
        {"tree": (3, 1, 1), "draw": "with", "stop": "top", "threshold": 0.5},
    ),
    "mcsd_ti, traversal": (
        "mcsd_ti:rule=traversal",
        {"tree": (2, 2, 1), "stop": "top", "threshold": 0.5},
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_the_distribution_of_the_text_with_stopping(name):
    """Theorem 12.2: whatever decides about the next level, as long as it has not been drafted
    yet."""
    spec, options = CASES[name]
    pvalue, tau, drafted = right(built(spec, **options))
    assert len(drafted) > 1, "nothing was decided"
    assert 1.2 < tau < LENGTH
    assert pvalue > 1e-4


class Together(Confidence):
    """Goes on where the paths begin with different tokens."""

    def of(self, logits, hidden, tokens, sampling):
        return (tokens[:, 0] != tokens[:, 1]).float()


@pytest.mark.slow
def test_paths_that_stop_together_are_not_independent(monkeypatch):
    """The largest of several paths is chosen before its law is looked at: where how far they go
    depends on all of them, that is not lossless, and the rule is refused."""
    target, draft = decoding.models()
    made = {
        stop: specwb.method(
            "mcsd_ti",
            target,
            draft=draft,
            tree=(2, 1, 1),
            draw="with",
            stop=stop,
            rule=None if stop == "top" else "gbv",
        )
        for stop in ("top", "none")
    }
    with pytest.raises(specwb.RuleMismatch, match="'gbv' is lossless for IID_PATHS"):
        specwb.method(
            "mcsd_ti:rule=gbv", target, draft=draft, tree=(2, 1, 1), draw="with", stop="top"
        )
    drafter, distribution = made["top"].drafter, decoding.enumerated("plain")
    drafter.sure, drafter.length = Together(), Length(3, confidence=0.5)
    counts = decoding.sampled(made["top"], "plain")[0]
    assert decoding.chi_square(counts, distribution) > 1e-4
    monkeypatch.setattr(type(drafter), "scheme", lambda self, sampling: specwb.Scheme.IID_PATHS)
    wrong = specwb.Method("wrong", drafter, made["none"].rule, specwb.Exactness.LOSSLESS)
    counts = decoding.sampled(wrong, "plain", batches=4)[0]
    assert decoding.chi_square(counts, distribution) < 1e-5
