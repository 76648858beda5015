"""EasySpec's drafting: every node's law from a cache made anew; what calibration keeps true of the
cache; what a round feeds; laws of whole texts."""

from __future__ import annotations

import copy
from functools import cache
from itertools import cycle, product

import pytest
import ranked
import tiny
import torch
from tape import Tape
from test_decoding_distribution import (
    LENGTH,
    PROMPT,
    VOCABULARY,
    chi_square,
    enumerated,
    models,
    sampled,
)
from test_protocol import watched
from torch import Tensor

import specwb
from specwb import flow, graphs
from specwb.drafters.easyspec import EasyDrafter, WideEasy
from specwb.models.backbone import Stack
from specwb.models.fuzzy import FusedGroups, Groups, grouping
from specwb.models.place import Place
from specwb.options import MethodError
from specwb.tree import Limits

PROMPTS, V = tiny.PROMPTS, tiny.VOCABULARY
LOPSIDED = specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)])
SHAPES: dict[str, dict] = {
    "chain": {"gamma": 4},
    "tree": {"tree": LOPSIDED},
    "wide": {"gamma": 3, "width": 3},
}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
hot_and_cold = pytest.mark.parametrize("temperature", [0.0, 1.0])


def made(kind: str = "llama", **options) -> specwb.Method:
    return specwb.method("easyspec", tiny.target(kind), **{"draft": ranked.deep(kind), **options})


def drafts(
    method: specwb.Method,
    prompts: list[list[int]] = PROMPTS,
    kind: str = "llama",
    tokens: int = 14,
    **settings,
) -> list[specwb.Draft]:
    return [
        step.draft
        for step in specwb.rounds(
            tiny.target(kind), prompts, method, max_new_tokens=tokens, seed=2, **settings
        )
    ]


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
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[2:]], ids=["batch", "alone"])
@pytest.mark.parametrize(
    ("plain", "shape"), [("sps", {"gamma": 4}), ("mcsd", {"tree": LOPSIDED})], ids=["chain", "tree"]
)
def test_n_1_is_the_plain_drafter(plain, shape, prompts, temperature):
    """Bit for bit where the same tokens are fed; with calibration, which feeds more or fewer, up to
    rounding."""
    wanted = drafts(
        specwb.method(plain, tiny.target(), draft=ranked.deep(), **shape),
        prompts,
        temperature=temperature,
    )
    same(
        drafts(made(n=1, calibrate=False, **shape), prompts, temperature=temperature),
        wanted,
        exactly=True,
    )
    same(drafts(made(n=1, **shape), prompts, temperature=temperature), wanted)


# ---------------------------------------------------------------------------- layers side by side


@hot_and_cold
@every_shape
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_fused_drafts_are_the_simulations(kind, shape, temperature):
    for options in ({"n": 3}, {"n": 4, "mlp": "parallel"}, {"groups": "0-5", "calibrate": False}):
        found, wanted = (
            drafts(
                made(kind, **shape, **options, execution=execution),
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


def path_to(parents: tuple[int, ...], tokens: list[int], node: int) -> list[int]:
    path: list[int] = []
    while node > 0:
        path.insert(0, tokens[node])
        node = parents[node]
    return path


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["batch", "alone"])
@pytest.mark.parametrize("n", [3, 4])
@every_shape
def test_every_nodes_distribution_is_that_of_a_cache_made_anew(shape, n, prompts):
    """The first token's is exact, deeper ones are of fuzzy entries of their own path over an exact
    text."""
    method, lengths = made(n=n, **shape), set()
    plain = copy.copy(method.drafter)
    plain.groups = Groups(grouping(6, 1))
    apart = 0.0
    for step, _ in zip(
        specwb.rounds(tiny.target(), prompts, method, max_new_tokens=24, temperature=0.7, seed=1),
        range(4),
    ):
        lengths.update(step.verdict.accepted.tolist())
        for row in range(len(prompts)):
            text = step.state.tokens[row, : int(step.length[row])].tolist()
            parents, tokens = (
                step.draft.tree.host[row if step.draft.tree.R > 1 else 0],
                step.draft.tokens[row].tolist(),
            )
            if step.draft.q is None:
                beams(anew, method.drafter, text, parents, tokens)
                continue
            inner = sorted(set(parents[1:]))
            paths = [path_to(parents, tokens, node) for node in inner]
            for node, logits, other in zip(
                inner, anew(method.drafter, text, paths), anew(plain, text, paths), strict=True
            ):
                q = step.draft.q[row, step.draft.q_row[0, node]]
                torch.testing.assert_close(q, (logits / 0.7).softmax(-1), atol=1e-5, rtol=1e-3)
                apart = max(apart, float((logits - other).abs().max()))
    assert apart > 0.01 or "width" in shape, "were the layers side by side at all?"
    assert len(lengths) > 1 or len(prompts) == 1


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
        assert [path_to(parents, tokens, node) for node in nodes] == [path for path, _ in level]
    assert len(tokens) == 1 + depth * width


def test_a_wide_tree_is_a_function_of_the_text_alone():
    """Whatever the temperature and the seed, in any batch; all of it may be accepted."""
    method, trees = made(width=4, gamma=3, n=3), []
    for prompts, settings in (
        (PROMPTS, {}),
        (PROMPTS[2:], {"temperature": 1.0, "seed": 5}),
        ([PROMPTS[2], [4]], {"temperature": 0.3, "top_k": 5}),
    ):
        draft = next(
            specwb.rounds(tiny.target(), prompts, method, max_new_tokens=4, **settings)
        ).draft
        row = prompts.index(PROMPTS[2])
        trees.append((draft.tree.host[row], draft.tokens[row].tolist()))
        assert draft.valid.all()
        assert draft.scheme is specwb.Scheme.POINT
        assert (draft.tree.n, draft.tree.D) == (13, 3)
    assert trees[0] == trees[1] == trees[2]


# -------------------------------------------------------------------------------------- the cache


@pytest.fixture
def taped(monkeypatch):
    monkeypatch.setitem(graphs.RECORDERS, "cpu", Tape)
    monkeypatch.setattr(flow, "BUCKET", 16)
    monkeypatch.setattr("specwb.models.target.BUCKET", 16)


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


@pytest.mark.parametrize(
    "prompts", [PROMPTS, PROMPTS[:1], PROMPTS[1:2]], ids=["batch", "alone", "alone, one token"]
)
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


@hot_and_cold
@every_shape
def test_without_calibration_the_cache_drifts(shape, temperature, monkeypatch):
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
                temperature=temperature,
                seed=3,
            )
        assert max(found[name].prompt) < 1e-5
        assert len(found[name].accepted) > 1
    assert max(found["on"].off) < 1e-5
    assert max(found["plain"].off[:-3]) < 1e-5
    assert max(found["off"].off) > 1e-2


@every_shape
def test_the_cache_of_recorded_rounds(shape, taped, monkeypatch):
    """Replayed rounds cannot look at what was accepted: a window of fixed length is enough for all
    of it."""
    method = made(n=4, **shape)
    run = {"max_new_tokens": [27, 22, 24], "seed": 3, "temperature": 0.7}
    watch, eager = Watch(), specwb.decode(tiny.target(), PROMPTS, method, graphs=False, **run)
    with watched(monkeypatch, after=watch):
        out = specwb.decode(tiny.target(), PROMPTS, method, **run)
    (arena,) = method.arenas.values()
    assert sum(map(bool, arena.recordings.values())) > 1
    assert (out.tokens, out.accepted_lengths) == (eager.tokens, eager.accepted_lengths)
    assert max(watch.off) < 1e-5
    assert len(watch.accepted) > 2


# ----------------------------------------------------------------------------- what a round feeds


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[2:]], ids=["batch", "alone"])
@pytest.mark.parametrize("calibrate", [True, False], ids=["calibrated", "as drafted"])
@every_shape
def test_one_exact_forward_a_round_and_the_others_side_by_side(
    shape, calibrate, prompts, monkeypatch
):
    """Exact over what is new, or over D + 1 tokens where rows may differ; without calibration none
    is exact but the prompt's."""
    in_order, grouped, calls = Stack.run, Groups.run, []

    def run(self, x, *rest, **more):
        if self is method.drafter.backbone:
            calls.append((x.shape[1], True))
        return in_order(self, x, *rest, **more)

    def run_groups(self, stack, x, *rest, **more):
        calls.append((x.shape[1], False))
        return grouped(self, stack, x, *rest, **more)

    monkeypatch.setattr(Stack, "run", run)
    monkeypatch.setattr(Groups, "run", run_groups)
    method = made(n=4, calibrate=calibrate, **shape)
    D, before = method.drafter.limits.depth, None
    if "width" in shape:
        levels = [shape["width"]] * (D - 1)
    else:
        levels = [stop - start for start, stop in method.drafter.tree.levels[1:-1]]
    for index, step in enumerate(
        specwb.rounds(tiny.target(), prompts, method, max_new_tokens=24, temperature=1.0, seed=4)
    ):
        if not index:
            assert calls.pop(0) == (max(map(len, prompts)) - 1, True), "prompts are read exactly"
        length = int(step.length.max())
        if not calibrate:
            first = 2
        elif len(prompts) > 1:
            first = D + 1
        else:
            first = 1 if before is None else length - before
        assert calls == [(first, calibrate), *((m, False) for m in levels)]
        before = length
        calls.clear()


def test_a_description_is_not_changed_by_a_decoding():
    """Where a row alone was fed last is its own: two decodings by one method, round by round in
    turn."""
    method = made(n=4, gamma=3)
    apart = [
        specwb.decode(tiny.target(), [prompt], method, max_new_tokens=16).tokens[0]
        for prompt in (PROMPTS[0], PROMPTS[2])
    ]
    together = [drafts(method, [prompt]) for prompt in (PROMPTS[0], PROMPTS[2])]
    loops = [
        specwb.rounds(tiny.target(), [prompt], method, max_new_tokens=14, seed=2)
        for prompt in (PROMPTS[0], PROMPTS[2])
    ]
    for a, b, steps in zip(*together, zip(*loops)):
        assert torch.equal(a.tokens, steps[0].draft.tokens)
        assert torch.equal(b.tokens, steps[1].draft.tokens)
    assert not hasattr(method.drafter, "fed")
    assert apart == [
        list(tiny.plain("llama", tuple(prompt), 16)) for prompt in (PROMPTS[0], PROMPTS[2])
    ]


# --------------------------------------------------------------------------------------- lossless


def test_greedy_is_plain_decoding_with_every_combination():
    """Of all pairs of shape and groups, with the other options in turn."""
    wanted = [list(tiny.plain("llama", tuple(prompt), 24))[:9] for prompt in PROMPTS]
    shapes = [
        {"gamma": 3},
        {"tree": LOPSIDED},
        {"tree": (2, 2), "draw": "with"},
        {"gamma": 2, "width": 5},
        {"gamma": 1},
        {"gamma": 1, "width": 2},
    ]
    groups = [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 5}, {"groups": "0-1.4-5"}, {"groups": "0-5"}]
    others = cycle(product((True, False), ("sequence", "parallel"), ("fused", "simulation")))
    accepted = set()
    for shape, parts in product(shapes, groups):
        calibrate, mlp, execution = next(others)
        method = made(**shape, **parts, calibrate=calibrate, mlp=mlp, execution=execution)
        out = specwb.decode(tiny.target(), PROMPTS, method, max_new_tokens=9)
        assert out.tokens == wanted, method.spec
        accepted.update(*out.accepted_lengths)
    assert accepted >= {0, 1, 2, 3}


CASES: dict[str, tuple[str, dict]] = {
    "chain": ("plain", {"groups": "1-2", "gamma": 2}),
    "chain, all at once, not calibrated": (
        "top_p",
        {"groups": "0-3", "gamma": 2, "calibrate": False},
    ),
    "tree": ("top_p", {"n": 3, "tree": LOPSIDED}),
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


def test_the_exact_models_distribution_is_not_what_a_fuzzy_token_was_drawn_from(monkeypatch):
    """The mistake that is near: to accept by what the draft model says when its layers run in
    order."""
    method = shallow_method(groups="0-3", gamma=2)
    real = EasyDrafter.propose

    def propose(self, state, noise):
        draft = real(self, state, noise)
        places = state.length[:, None] - 1 + torch.arange(3)
        texts = state.tokens.scatter(1, places, draft.tokens)[:, : len(PROMPT) + LENGTH + 2]
        logits = self.draft.model(texts).logits.gather(
            1, places[:, :2, None].expand(-1, -1, VOCABULARY)
        )
        exact = state.sampling.probabilities(logits)
        away.append(
            [float((draft.q - exact)[:, d].abs().max(-1).values.median()) for d in range(2)]
        )
        draft.q = exact
        return draft

    away: list[list[float]] = []
    monkeypatch.setattr(EasyDrafter, "propose", propose)
    assert chi_square(sampled(method, "top_p")[0], enumerated("top_p")) < 1e-6
    assert all(first < 1e-5 for first, _ in away), "that one is drawn from the exact law"
    assert max(second for _, second in away) > 0.05


# ------------------------------------------------------------------------------------ the builder


def test_usual_settings():
    """A chain of five, N = 4 by the paper's rule, calibrated, fused."""
    chain = made().drafter
    assert (
        type(chain),
        chain.tree.D,
        chain.tree.is_chain,
        chain.calibrate,
        chain.window,
        chain.draw,
    ) == (EasyDrafter, 5, True, True, 6, "without")
    assert (type(chain.groups), chain.groups.layers, chain.groups.parallel_mlp) == (
        FusedGroups,
        ((0,), (1, 2, 3), (4,), (5,)),
        False,
    )
    assert chain.exact is None
    assert chain.captured
    assert made(calibrate=False).drafter.window == 2
    wide = made(width=8).drafter
    assert (type(wide), wide.limits) == (WideEasy, Limits(41, 5, 8))
    assert made(tree=(2, 2)).drafter.tree.host == specwb.Tree.branching(2, 2).host


@pytest.mark.parametrize(
    "groups", ["1-2.3-4", [[1, 2], [3, 4]], ((1, 2), (3, 4)), [range(1, 3), range(3, 5)]], ids=str
)
def test_groups_can_be_written_in_several_ways(groups):
    assert made(groups=groups).drafter.groups.layers == ((0,), (1, 2), (3, 4), (5,))


def test_a_spec_says_all_of_it():
    for spec, layers in (
        ("groups=1-3", ((0,), (1, 2, 3), (4,), (5,))),
        ("groups=0-1.3-5", ((0, 1), (2,), (3, 4, 5))),
        ("n=5", ((0,), (1, 2, 3, 4), (5,))),
    ):
        method = specwb.method(
            f"easyspec:{spec},calibrate=false,gamma=3", tiny.target(), draft=ranked.deep()
        )
        assert method.drafter.groups.layers == layers
        assert (method.drafter.calibrate, method.drafter.limits.depth) == (False, 3)


LLAMA = "'LlamaForCausalLM': "
BAD = [
    ({"n": 0}, "easyspec: n must be an integer >= 1, got 0"),
    ({"n": True}, "n must be an integer >= 1, got True"),
    ({"n": 2.0}, "n must be an integer >= 1, got 2.0"),
    (
        {"n": 6},
        f"easyspec: {LLAMA}n=6 is more than its 6 layers allow: n=5 has all that do not stand "
        "alone in one group, 1-4",
    ),
    ({"groups": "1-3", "n": 3}, "groups says which layers run side by side; leave n out"),
    ({"groups": "1-3.3-5"}, "a layer is in one group; layer 3 is in two"),
    (
        {"tree": "0.1.0"},
        "easyspec drafts level by level: give one tree for all rows, its nodes in level order",
    ),
    ({"tree": (4, 2), "draw": "coupled"}, "easyspec: draw=coupled couples whole paths"),
    (
        {"groups": "3-1"},
        "groups must be ranges such as 1-3.4-6, or lists of whole numbers, got '3-1'",
    ),
    ({"groups": "1-6"}, r"there are layers 0..5; got the group 1-6"),
    ({"groups": "all"}, "groups must be ranges such as 1-3.4-6, or lists of whole numbers, got"),
    ({"groups": 3}, "groups must be ranges such as 1-3.4-6, or lists of whole numbers, got"),
    ({"groups": True}, "groups must be ranges such as 1-3.4-6, or lists of whole numbers, got"),
    (
        {"groups": (1, 2, 3)},
        "groups must be ranges such as 1-3.4-6, or lists of whole numbers, got",
    ),
    ({"groups": [1, 2]}, "groups must be ranges such as 1-3.4-6, or lists of whole numbers, got"),
    ({"gamma": 0}, "easyspec: gamma must be an integer >= 1"),
    ({"gamma": 2.5}, "easyspec: gamma must be an integer >= 1"),
    ({"width": 0}, "easyspec: width must be an integer >= 1"),
    ({"width": 65}, "easyspec: 65 nodes a level but the draft model's vocabulary has 64 tokens"),
    ({"width": 4, "tree": (2, 2)}, "width makes a tree of its own"),
    ({"width": 4, "draw": "with"}, "width makes a tree of its own"),
    ({"tree": (2, 2), "gamma": 3}, "a static tree has its own depth; leave gamma out"),
    ({"tree": "2x2"}, "tree must be children a node by level"),
    ({"draw": "some"}, "draw must be one of without, with, top, coupled, greedy, got 'some'"),
    ({"calibrate": 1}, "calibrate must be true or false, got 1"),
    ({"mlp": "both"}, "mlp must be sequence or parallel, got 'both'"),
    (
        {"execution": "magic"},
        "execution must be one of fused, simulation, streams, ranks, got 'magic'",
    ),
    (
        {"execution": "streams"},
        f"easyspec: {LLAMA}execution=streams needs a CUDA device, the draft model is on cpu; use "
        "fused or simulation",
    ),
    (
        {"execution": "ranks"},
        f"easyspec: {LLAMA}execution=ranks needs several processes, started with torchrun",
    ),
    ({"nodes": 3}, "easyspec"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_settings_that_cannot_be_used(options, message):
    with pytest.raises(MethodError, match=message) as caught:
        made(**options)
    assert "\n" not in str(caught.value)


def test_draft_models_that_cannot_be_used():
    with pytest.raises(MethodError, match="has no draft model of its own; name one with draft="):
        specwb.method("easyspec", tiny.target())
    with pytest.raises(
        MethodError,
        match=f"easyspec: {LLAMA}of its 3 layers 2 stand alone, so there are none to run side by "
        "side; use n=1",
    ):
        made(draft=tiny.draft(), n=2)
    one = specwb.load(tiny.build("llama", num_hidden_layers=1))
    with pytest.raises(MethodError, match=f"easyspec: {LLAMA}of its 1 layer 1 stand alone"):
        made(draft=one)
    assert made(draft=one, n=1).drafter.groups.layers == ((0,),)
    with pytest.raises(specwb.LoadError, match="vocabulary mismatch"):
        made(draft=specwb.load(tiny.build("llama", num_hidden_layers=6, vocab_size=60)))


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


@pytest.mark.cuda
@pytest.mark.parametrize("execution", ["simulation", "fused", "streams"])
def test_the_calibrated_cache_on_cuda(execution, monkeypatch):
    target, draft = on_cuda("llama")
    off, plain = [], ranked.deep().backbone

    def after(state, drafter, step):
        for row in range(3):
            length = int(step.length[row])
            fresh = tiny.recomputed(plain, state.tokens[row, :length].cpu())
            off.append(float((drafter.cache.data[:, row, :length].cpu() - fresh).abs().max()))

    for calibrate in (True, False):
        off.clear()
        method = specwb.method(
            "easyspec", target, draft=draft, execution=execution, gamma=4, n=4, calibrate=calibrate
        )
        with watched(monkeypatch, after=after):
            specwb.decode(target, PROMPTS, method, max_new_tokens=60, temperature=1.0)
        assert (max(off) < 1e-4) == calibrate


def test_a_pair_that_does_not_fit_is_refused_when_it_meets():
    """A method may be built for one target and used with another."""
    made = specwb.method("easyspec:n=3", tiny.target(), draft=ranked.deep("llama"))
    with pytest.raises(specwb.LoadError, match="vocabulary mismatch"):
        specwb.decode(
            specwb.load(tiny.build("llama", vocab_size=40)), [[1, 2, 3]], made, max_new_tokens=4
        )


def test_n_that_groups_nothing_is_refused():
    four = specwb.load(tiny.build("llama", num_hidden_layers=4))
    with pytest.raises(MethodError, match="n=2 puts no two of its 4 layers into one group"):
        specwb.method("easyspec:n=2", tiny.target(), draft=four)
    assert specwb.method(
        "easyspec:groups=1-2", tiny.target(), draft=four
    ).drafter.groups.layers == ((0,), (1, 2), (3,))
