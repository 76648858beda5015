"""EasySpec's drafting: every node's law from a cache made anew; what calibration keeps true of the
cache; what a round feeds; laws of whole texts."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import ranked
import tiny
import torch
from test_decoding_distribution import (
    LENGTH,
    chi_square,
    enumerated,
    models,
    sampled,
)
from test_protocol import watched
from torch import Tensor

import specwb
from specwb.drafters.easyspec import EasyDrafter
from specwb.models.fuzzy import Groups, grouping
from specwb.models.place import Place

PROMPTS, V = tiny.PROMPTS, tiny.VOCABULARY
SHAPES: dict[str, dict] = {
    "chain": {"gamma": 4},
    "tree": {"tree": tiny.LOPSIDED},
    "wide": {"gamma": 3, "width": 3},
}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
hot_and_cold = pytest.mark.parametrize("temperature", [0.0, 1.0])


def made(kind: str = "llama", **options) -> specwb.Method:
    return specwb.method("easyspec", tiny.target(kind), **{"draft": ranked.deep(kind), **options})


def drafts(
    method: specwb.Method, kind: str = "llama", tokens: int = 14, **settings
) -> list[specwb.Draft]:
    run = {"max_new_tokens": tokens, "seed": 2, **settings}
    return [step.draft for step in specwb.rounds(tiny.target(kind), PROMPTS, method, **run)]


def same(found: list[specwb.Draft], wanted: list[specwb.Draft], exactly: bool = False) -> None:
    assert len(found) == len(wanted) > 1
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a.tokens, b.tokens)
        assert a.tree.host == b.tree.host
        assert (a.q is None) == (b.q is None)
        if a.q is not None:
            torch.testing.assert_close(
                a.q, b.q, **({"atol": 0, "rtol": 0} if exactly else {"atol": 1e-5, "rtol": 1e-4})
            )


# ---------------------------------------------------------------------- one layer after the other


@hot_and_cold
@pytest.mark.parametrize(
    ("plain", "shape"),
    [("sps", {"gamma": 4}), ("mcsd", {"tree": tiny.LOPSIDED})],
    ids=["chain", "tree"],
)
def test_n_1_is_the_plain_drafter(plain, shape, temperature):
    """Bit for bit where the same tokens are fed; with calibration, which feeds more or fewer, up to
    rounding."""
    wanted = drafts(
        specwb.method(plain, tiny.target(), draft=ranked.deep(), **shape),
        temperature=temperature,
    )
    same(drafts(made(n=1, calibrate=False, **shape), temperature=temperature), wanted, exactly=True)
    same(drafts(made(n=1, **shape), temperature=temperature), wanted)


# ---------------------------------------------------------------------------- layers side by side


@pytest.mark.parametrize(
    ("kind", "shape", "temperature"),
    [
        ("llama", "wide", 1.0),
        ("qwen2", "chain", 0.0),
        *(("qwen3", shape, 1.0) for shape in SHAPES),
    ],
)
def test_fused_drafts_are_the_simulations(kind, shape, temperature):
    """On every family layer by layer: tests/models/test_fuzzy.py."""
    for options in ({"n": 3}, {"n": 4, "mlp": "parallel"}, {"groups": "0-5", "calibrate": False}):
        found, wanted = (
            drafts(
                made(kind, **SHAPES[shape], **options, execution=execution),
                kind=kind,
                tokens=10,
                temperature=temperature,
            )
            for execution in ("fused", "simulation")
        )
        same(found, wanted)


def anew(drafter: EasyDrafter, text: list[int], paths: list[list[int]]) -> list[Tensor]:
    """``[V]`` logits behind each of ``paths`` after a text: the text exactly, then a path's tokens
    one at a time, layers side by side."""
    on, found = drafter.backbone, []
    with torch.inference_mode():
        for path in paths:
            tokens = torch.tensor([text + path])
            store = on.cache(1, tokens.shape[1])
            hidden, _ = on.run(on.embed(tokens[:, : len(text)]), Place.text(1, len(text)), store)
            for i in range(len(text), tokens.shape[1]):
                at = torch.tensor([[i]])
                x, groups = on.embed(tokens[:, i : i + 1]), Groups(drafter.groups.layers)
                hidden, _ = groups.run(on, x, Place(at, at, i + 1), store)
            found.append(on.head(hidden[0, -1]))
    return found


@pytest.mark.parametrize("n", [3, 4])
@every_shape
def test_every_nodes_distribution_is_that_of_a_cache_made_anew(shape, n):
    """The first token's is exact, deeper ones are of fuzzy entries of their own path over an exact
    text."""
    method, lengths = made(n=n, **shape), set()
    plain = copy.copy(method.drafter)
    plain.groups = Groups(grouping(6, 1))
    apart = 0.0
    for step, _ in zip(
        specwb.rounds(tiny.target(), PROMPTS, method, max_new_tokens=24, temperature=0.7, seed=1),
        range(4),
    ):
        lengths.update(step.verdict.accepted.tolist())
        for row in range(len(PROMPTS)):
            text = step.state.tokens[row, : int(step.length[row])].tolist()
            parents, tokens = (
                step.draft.tree.host[row if step.draft.tree.R > 1 else 0],
                step.draft.tokens[row].tolist(),
            )
            if step.draft.q is None:
                beams(anew, method.drafter, text, parents, tokens)
                continue
            inner = sorted(set(parents[1:]))
            paths = [tiny.path_to(parents, tokens, node) for node in inner]
            for node, logits, other in zip(
                inner, anew(method.drafter, text, paths), anew(plain, text, paths), strict=True
            ):
                q = step.draft.q[row, step.draft.q_row[0, node]]
                torch.testing.assert_close(q, (logits / 0.7).softmax(-1), atol=1e-5, rtol=1e-3)
                apart = max(apart, float((logits - other).abs().max()))
    assert apart > 0.01 or "width" in shape, "were the layers side by side at all?"
    assert len(lengths) > 1


def beams(
    distributions,
    drafter: EasyDrafter,
    text: list[int],
    parents: tuple[int, ...],
    tokens: list[int],
) -> None:
    """Of one row, level by level: the tree has the ``width`` most probable of all continuations of
    the level above, best first."""
    width, depth = drafter.width, drafter.limits.depth
    level: list[tuple[list[int], float]] = [([], 0.0)]
    for d in range(depth):
        every = []
        for (path, score), logits in zip(
            level, distributions(drafter, text, [path for path, _ in level]), strict=True
        ):
            top = logits.log_softmax(-1).topk(width)
            every += [
                ([*path, token], score + more)
                for more, token in zip(top.values.tolist(), top.indices.tolist(), strict=True)
            ]
        level = sorted(every, key=lambda node: -node[1])[:width]
        nodes = range(1 + d * width, 1 + (d + 1) * width)
        assert [tiny.path_to(parents, tokens, node) for node in nodes] == [
            path for path, _ in level
        ]
    assert len(tokens) == 1 + depth * width


# -------------------------------------------------------------------------------------- the cache


class Watch:
    """After every round, what the draft's cache holds of the text known at its beginning beside a
    fresh exact prefill of that."""

    def __init__(self) -> None:
        self.off: list[float] = []
        self.prompt: list[float] = []
        self.accepted: set[int] = set()

    def __call__(self, state, drafter, step) -> None:
        for row, accepted in enumerate(step.verdict.accepted.tolist()):
            length = int(step.length[row])
            fresh = tiny.recomputed(drafter.backbone, state.tokens[row, :length])
            off = (drafter.cache.data[:, row, :length] - fresh).abs() / (1 + fresh.abs())
            self.off.append(float(off.max()))
            start = int(state.start[row]) - 2  # the last two known tokens are fed again
            if start > 0:
                self.prompt.append(float(off[:, :start].max()))
            self.accepted.add(accepted)


CALIBRATED = {
    f"{name} {n}": {**shape, **n}
    for name, shape in SHAPES.items()
    for n in ({"n": 4}, {"groups": "0-5"})
}


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[1:2]], ids=["batch", "alone, one token"])
@pytest.mark.parametrize("options", CALIBRATED.values(), ids=CALIBRATED)
def test_the_calibrated_cache_is_a_fresh_exact_one_whatever_was_accepted(
    options, prompts, monkeypatch
):
    """The best of a draft is overwritten: the text's true continuation for j levels, j changing by
    round and row, then wrong."""
    truth = [prompt + list(tiny.plain("llama", tuple(prompt), 24)) for prompt in prompts]
    method = made(**options)
    real, counted, watch = type(method.drafter).propose, [0], Watch()

    def propose(self, state, noise):
        draft = real(self, state, noise)
        tree, counted[0] = draft.tree, counted[0] + 1
        leaf = tree.depth.argmax(1).expand(state.rows)
        for row in range(state.rows):
            r = row if tree.R > 1 else 0
            for node in range(1, tree.n):
                right = truth[row][
                    min(int(state.length[row]) - 1 + int(tree.depth[r, node]), len(truth[row]) - 1)
                ]
                on = bool(tree.mask[r, leaf[row], node]) and int(tree.depth[r, node]) <= (
                    counted[0] + 2 * row
                ) % (tree.D + 1)
                draft.tokens[row, node] = right if on else (right + 1) % V
        return draft

    monkeypatch.setattr(type(method.drafter), "propose", propose)
    with watched(monkeypatch, after=watch):
        out = specwb.decode(tiny.target(), prompts, method, max_new_tokens=20)
    assert out.tokens == [
        text[len(prompt) : len(prompt) + 20] for prompt, text in zip(prompts, truth)
    ]
    assert watch.accepted >= set(range(method.drafter.limits.depth + 1)), (
        "after nothing was accepted, and after everything"
    )
    assert max(watch.off) < 1e-5


@every_shape
def test_without_calibration_the_cache_drifts(shape, monkeypatch):
    """What is drafted stays as it was drafted; prompts are exact either way, and so is everything
    where no layers are side by side."""
    found = {}
    for name, options in {
        "on": {"n": 4},
        "off": {"n": 4, "calibrate": False},
        "plain": {"n": 1, "calibrate": False},
    }.items():
        found[name] = Watch()
        with watched(monkeypatch, after=found[name]):
            specwb.decode(
                tiny.target(),
                PROMPTS,
                made(**shape, **options),
                max_new_tokens=20,
                temperature=1.0,
                seed=3,
            )
        assert max(found[name].prompt) < 1e-5
        assert len(found[name].accepted) > 1
    assert max(found["on"].off) < 1e-5
    assert max(found["plain"].off[:-3]) < 1e-5
    assert max(found["off"].off) > 1e-2


# --------------------------------------------------------------------------------------- lossless


CASES: dict[str, tuple[str, dict]] = {
    "chain": ("plain", {"groups": "1-2", "gamma": 2}),
    "chain, all at once, not calibrated": (
        "top_p",
        {"groups": "0-3", "gamma": 2, "calibrate": False},
    ),
    "tree": ("top_p", {"n": 3, "tree": tiny.LOPSIDED}),
    "wide": ("top_k", {"n": 3, "gamma": 2, "width": 3}),
    "wide, parallel MLPs, not calibrated": (
        "top_p",
        {"groups": "0-3", "gamma": 3, "width": 2, "calibrate": False, "mlp": "parallel"},
    ),
}


@cache
def shallow() -> specwb.Target:
    """Of the target with six tokens, whose draft models are as wrong."""
    with torch.random.fork_rng(devices=[]):
        return specwb.load(ranked.deepened(models()[0].model, 4, 0.4, 0.15))


def shallow_method(**options) -> specwb.Method:
    return specwb.method("easyspec", models()[0], draft=shallow(), **options)


@pytest.mark.parametrize(("name", "options"), CASES.values(), ids=CASES)
@pytest.mark.slow
def test_the_distribution_of_the_text_is_the_autoregressive_distribution(name, options):
    counts, tau = sampled(shallow_method(**options), name)
    assert chi_square(counts, enumerated(name)) > 1e-4
    assert 1.05 < tau < LENGTH


# ------------------------------------------------------------------------------------------- CUDA


@cache
def on_cuda(kind: str) -> tuple[specwb.Target, specwb.Target]:
    return tuple(
        specwb.load(copy.deepcopy(m.model), device="cuda")
        for m in (tiny.target(kind), ranked.deep(kind))
    )  # type: ignore[return-value]


@pytest.mark.cuda
@hot_and_cold
@every_shape
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_all_executions_draft_alike_on_cuda(kind, shape, temperature):
    """Eagerly, and with rounds as graphs, where streams become branches."""
    target, draft = on_cuda(kind)
    run = {"max_new_tokens": [120, 90, 110], "seed": 3, "temperature": temperature}
    for options in ({"n": 4}, {"groups": "0-5", "calibrate": False}):
        found = []
        for execution in ("simulation", "fused", "streams"):
            method = specwb.method(
                "easyspec", target, draft=draft, execution=execution, **shape, **options
            )
            for captured in (False, None, None):
                out = specwb.decode(target, PROMPTS, method, graphs=captured, **run)
                found.append((out.tokens, out.accepted_lengths))
        assert all(other == found[0] for other in found), (execution, options)
        if not temperature:
            assert found[0][0] == [
                list(tiny.plain(kind, tuple(p), n)) for p, n in zip(PROMPTS, run["max_new_tokens"])
            ]
