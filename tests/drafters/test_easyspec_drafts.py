"""EasySpec's drafting: every node's distribution from a cache made anew, and what calibration keeps
true of the cache. The executions of layers side by side: tests/models/test_fuzzy.py."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import ranked
import tiny
import torch
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


@every_shape
def test_every_nodes_distribution_is_that_of_a_cache_made_anew(shape):
    """The first token's is exact, deeper ones are of fuzzy entries of their own path over an exact
    text."""
    method, lengths = made(n=4, **shape), set()
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
