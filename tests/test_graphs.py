"""Recorded decoding steps: on the CPU by a tape that keeps a CUDA graph's rules, and on CUDA where
there is a device."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
import tiny
import torch
from tape import Tape, Waits
from test_protocol import (
    CASES,
    EVERYTHING,
    FIRST,
    LLAMA,
    PROMPTS,
    cases,
    every_case,
    made,
)

import specwb
from specwb.core.probability import Sampling
from specwb.drafters.base import Drafter
from specwb.engine import graphs
from specwb.engine import loop as engine

SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 9, "top_p": 0.9},
]


def recorded(key: str, options: dict) -> bool:
    """Whether steps can be recorded: not where the host finds the shape of the draft."""
    return "verify" not in options and (key != "diffuspec" or not options.get("tree"))


every_captured_case = cases([case for case in CASES if recorded(*case)])
settings_of = pytest.mark.parametrize("settings", SETTINGS, ids=["T0", "T1", "filtered"])


def _eager(pair, prompts, method, **settings):
    return specwb.decode(pair.target, prompts, method, graphs=False, **settings)


@cases([(*case, bool(i % 2)) for i, case in enumerate(FIRST)], "key, options, exact_text")
def test_replayed_rounds_are_the_eager_ones(key, options, exact_text, taped):
    """Sampled with filters, every other method's with exact text; steps at T = 0 are recorded
    below, all cases and settings on CUDA."""
    pair = EVERYTHING
    method = made(key, options, pair)
    run = {"max_new_tokens": [18, 10, 14], "seed": 3, "eos": 7, **SETTINGS[2]}
    run["exact_text"] = exact_text
    eager = _eager(pair, PROMPTS, method, **run)
    out = specwb.decode(pair.target, PROMPTS, method, **run)
    assert (out.tokens, out.accepted_lengths) == (eager.tokens, eager.accepted_lengths)
    (arena,) = method.arenas.values()
    assert len(arena.recordings) > 1, "one bucket alone proves little"
    assert any(arena.recordings.values())
    # the next decoding replays the first one's recordings: other prompts, lengths and seeds
    earlier = {bucket: recording for bucket, recording in arena.recordings.items() if recording}
    other = [[9, 9, 1], [2, 4, 6, 8, 10], [11]]
    run |= {"max_new_tokens": [9, 14, 12], "seed": 4}
    again = specwb.decode(pair.target, other, method, **run)
    wanted = _eager(pair, other, method, **run)
    assert (again.tokens, again.accepted_lengths) == (wanted.tokens, wanted.accepted_lengths)
    for bucket, recording in earlier.items():
        assert arena.recordings[bucket] is recording
    assert list(method.arenas.values()) == [arena]


def test_graphs_end_with_their_method(taped):
    """Without the garbage collector, which might destroy them while others are recorded."""
    gc.disable()
    try:
        method = made("sps", {"gamma": 2, "confidence": 0.1}, LLAMA)
        specwb.decode(LLAMA.target, [[5, 9, 2]], method, max_new_tokens=8)
        (arena,) = method.arenas.values()
        alive = weakref.ref(arena.state.tokens)
        del arena, method
        assert alive() is None
    finally:
        gc.enable()


def test_what_is_timed_is_replays(taped):
    """Of a bucket that is met twice in a decoding, its first step eager and its second recorded,
    the second run replays; of one that is met once, the third."""
    method, runs = made("sps", {"gamma": 2}, EVERYTHING), []

    def run() -> list[list[int]]:
        settings = {"max_new_tokens": 40, "seed": 3, "temperature": 1.0}
        runs.append(specwb.decode(EVERYTHING.target, PROMPTS, method, **settings).tokens)
        return runs[-1]

    wanted = _eager(EVERYTHING, PROMPTS, method, max_new_tokens=40, seed=3, temperature=1.0)
    assert graphs.replayed(run, method.arenas) == wanted.tokens
    assert len(runs) in (2, 3)
    (arena,) = method.arenas.values()
    assert all(arena.recordings.values())


def test_what_is_not_drafted_is_no_part_of_what_is_replayed(taped):
    """A drafter that is never sure goes on below no level; one that looks a text up drafts all that
    it may or nothing, and then its steps are plain ones."""

    def stages(key: str, **options) -> set:
        method = made(key, {"gamma": 4, **options}, LLAMA)
        specwb.decode(LLAMA.target, [[5, 9, 2]], method, max_new_tokens=8)
        (arena,) = method.arenas.values()
        return {stage for _, stage in arena.recordings}

    none, all_ = ("draft", 0), ("draft", 4)
    assert stages("sps", confidence=0.99) == {("level", 0), none, ("settle", 2, none)}
    for key in ("pld", "suffix"):
        found = stages(key)
        assert ("settle", 1, none) in found
        assert found <= {"lookup", none, ("settle", 1, none), all_, ("settle", 5, all_)}


# ------------------------------------------------------------------ what an arena copies


@pytest.fixture
def opened():
    """A decoding whose steps would be recorded, before its first step."""

    def make(key: str, options: dict, temperature: float) -> engine.Decoding:
        method = made(key, options, EVERYTHING)
        seeds = torch.tensor([1, 2, 3])
        sampling = Sampling(temperature)
        decoding = engine.Decoding(
            EVERYTHING.target, method, sampling, PROMPTS, [8] * 3, seeds, static=True
        )
        return decoding.open()

    return make


@every_captured_case
def test_a_drafter_lists_all_tensors_that_it_makes(key, options, opened):
    drafter = opened(key, options, 0.7).drafter
    assert drafter.captured
    listed = list(drafter.tensors().values())
    missing = [
        name for name, x in graphs.tensors_of(drafter) if not any(x is other for other in listed)
    ]
    assert not missing


class Last(Drafter):
    """Drafts the bonus token of the step before, the first time token 0."""

    captured = True
    tree = specwb.Tree.chain(1)

    def open(self, state, target):
        self.last = torch.zeros(state.rows, 1, dtype=torch.long)

    def tensors(self):
        return {**super().tensors(), "last": self.last}

    def propose(self, state, noise):
        return self.candidates(state, self.last)

    def observe(self, state, draft, verdict, scores):
        self.last.copy_(verdict.bonus[:, None])


class Nested(Last):
    """Forgets one that lies deeper."""

    def open(self, state, target):
        super().open(state, target)
        self.parts = {"rows": [SimpleNamespace(index=torch.arange(state.rows))]}


class Late(Last):
    """Makes its tensor in the first step."""

    def open(self, state, target):
        self.last = None

    def tensors(self):
        return {} if self.last is None else {"last": self.last}

    def propose(self, state, noise):
        if self.last is None:
            self.last = torch.zeros(state.rows, 1, dtype=torch.long)
        return super().propose(state, noise)


class Exchanging(Last):
    """Replaces its tensor in every step: a graph goes on reading the old one."""

    def observe(self, state, draft, verdict, scores):
        self.last = verdict.bonus[:, None] + 0


class Long(Last):
    """Makes a tensor as long as the longest prompt."""

    def open(self, state, target):
        self.last = torch.zeros(state.rows, state.horizon, dtype=torch.long)

    def propose(self, state, noise):
        return self.candidates(state, self.last[:, :1])

    def observe(self, state, draft, verdict, scores):
        pass


class Waiting(Last):
    """Reads a value."""

    def propose(self, state, noise):
        assert int(state.length[0]) > 0
        return super().propose(state, noise)


@pytest.fixture
def registered():
    def method(drafter: type[Drafter]) -> specwb.Method:
        specwb.register("tried", drafter)
        return specwb.method("tried", EVERYTHING.target)

    yield method
    specwb.unregister("tried")


OTHERS = [[1], [2, 3], [4, 5, 6, 7]]  # other lengths, in an arena of the same capacity


def drafted(method, prompts, graphs):
    """The draft tokens of every step."""
    loop = specwb.rounds(EVERYTHING.target, prompts, method, max_new_tokens=14, graphs=graphs)
    return [step.draft.tokens.tolist() for step in loop]


def test_a_tensor_that_is_listed_is_the_next_decodings(registered, taped):
    method = registered(Last)
    for prompts in (PROMPTS, OTHERS, PROMPTS[::-1]):
        assert drafted(method, prompts, None) == drafted(method, prompts, False)
    assert len(method.arenas) == 1


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (Nested, r"Nested.tensors\(\) does not list parts\['rows'\]\[0\].index;"),
        (Late, "Late: tensor last was made or replaced in a step"),
        (Exchanging, "Exchanging: tensor last was made or replaced in a step"),
        (Long, "Long: tensor last differs in shape between two"),
        (Waiting, "__int__ while the round is recorded"),
    ],
)
def test_a_step_whose_tensors_a_graph_would_lose_is_not_recorded(
    drafter, message, registered, taped
):
    method = registered(drafter)
    if drafter is Long:  # it fails at prompts of other lengths
        drafted(method, OTHERS, None)
    with pytest.raises(Waits if drafter is Waiting else RuntimeError, match=message):
        drafted(method, PROMPTS, None)


def test_where_a_stage_was_given_up_those_that_it_read_are_recorded_anew(taped):
    """As when a group of ranks is left in which later stages were recorded and the first was not:
    a stage reads where the one before it wrote."""
    pair = EVERYTHING
    method = made("pld", {}, pair)
    first, later = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]], [[1, 2, 3, 4, 1, 2, 3, 4, 1, 2]]
    run = {"max_new_tokens": 30, "eos": ()}
    loop = specwb.rounds(pair.target, first, method, **run)
    for _ in range(2):
        next(loop)
    loop.close()
    (arena,) = method.arenas.values()
    before = {key for key, recording in arena.recordings.items() if recording}
    for _ in range(3):
        specwb.decode(pair.target, later, method, **run)
    left = [x for key, x in arena.recordings.items() if x and key not in before]
    assert before
    assert left
    for recording in left:
        recording.ended = True
    for _ in range(3):
        found = specwb.decode(pair.target, later, method, **run)
        assert found.accepted_lengths == _eager(pair, later, method, **run).accepted_lengths


# ---------------------------------------------------------------------- arenas in turn


def test_two_decodings_at_once_have_an_arena_each(taped):
    pair = EVERYTHING
    method = made("sps", {}, pair)
    run = {"max_new_tokens": 12, "temperature": 1.0}
    # leaves an arena that only one of them may take
    specwb.decode(pair.target, PROMPTS[:1], method, **run)
    apart = [_eager(pair, [prompt], method, seed=5, **run).tokens[0] for prompt in PROMPTS]
    loops = [specwb.rounds(pair.target, [prompt], method, seed=5, **run) for prompt in PROMPTS]
    last = [None] * len(loops)
    while loops_left := [i for i, loop in enumerate(loops) if loop is not None]:
        for i in loops_left:
            step = next(loops[i], None)
            if step is None:
                loops[i] = None
            else:
                text = step.state.tokens[0, len(PROMPTS[i]) : int(step.state.length[0])]
                last[i] = text.tolist()
    assert last == apart


@pytest.mark.parametrize(("key", "at"), [("pld", 1), ("sps", 2)])
def test_an_interrupt_inside_a_round_leaves_nothing_behind(key, at, taped, monkeypatch):
    pair = EVERYTHING
    method = made(key, {}, pair)
    real, calls = type(pair.target).commit, []

    def commit(self, *args):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(type(pair.target), "commit", commit)
        with pytest.raises(KeyboardInterrupt):
            specwb.decode(pair.target, PROMPTS, method, max_new_tokens=18)
    loop = specwb.rounds(pair.target, PROMPTS, method, max_new_tokens=18)
    next(loop)
    loop.close()  # between two steps: its arena is given back
    assert len(method.arenas) == 1
    for prompts in (PROMPTS[::-1], [[9], [8, 7], [6, 5, 4]]):
        run = {"max_new_tokens": 18, "temperature": 1.0, "seed": 2}
        out = specwb.decode(pair.target, prompts, method, **run)
        wanted = _eager(pair, prompts, method, **run)
        assert (out.tokens, out.accepted_lengths) == (wanted.tokens, wanted.accepted_lengths)


def test_another_target_has_graphs_of_its_own(taped):
    method = specwb.method("pld", EVERYTHING.target)
    run = {"max_new_tokens": 18}
    for target in (EVERYTHING.target, LLAMA.draft):
        out = specwb.decode(target, PROMPTS, method, **run)
        assert out.tokens == specwb.decode(target, PROMPTS, method, graphs=False, **run).tokens
    assert len(method.arenas) == 2
    for rows in range(1, graphs.ARENAS + 3):
        specwb.decode(EVERYTHING.target, [[1, 2]] * rows, method, max_new_tokens=3)
    assert len(method.arenas) == graphs.ARENAS


def test_kept_steps_do_not_change_when_the_next_round_is_replayed(taped):
    pair = EVERYTHING
    method = made("eagle2", {}, pair)
    run = {"max_new_tokens": 18, "seed": 2, "temperature": 0.4}
    eager = list(specwb.rounds(pair.target, PROMPTS, method, graphs=False, **run))
    steps = list(specwb.rounds(pair.target, PROMPTS, method, **run))
    for a, b in zip(eager, steps, strict=True):
        assert torch.equal(a.length, b.length)
        assert torch.equal(a.verdict.accepted, b.verdict.accepted)
        assert torch.equal(a.verdict.bonus, b.verdict.bonus)
        assert torch.equal(a.draft.tree.parent, b.draft.tree.parent)
        assert torch.equal(a.draft.tokens, b.draft.tokens)
        assert torch.equal(a.verdict.emitted, b.verdict.emitted)
        assert torch.equal(a.offered, b.offered)


def test_eager_where_asked_traced_clocked_or_without_cuda(monkeypatch):
    pair = EVERYTHING
    with pytest.raises(ValueError, match="needs a CUDA device"):
        specwb.rounds(pair.target, PROMPTS, "ar", graphs=True)
    calls: list[int] = []
    monkeypatch.setitem(graphs.RECORDERS, "cpu", lambda *args: calls.append(1) or Tape(*args))
    method = made("sps", {}, pair)
    clock = engine.Clock(pair.target.device)
    for eager in ({"trace": True}, {"clock": clock}, {"graphs": False}):
        specwb.decode(pair.target, PROMPTS, method, max_new_tokens=12, **eager)
    assert calls == []
    with pytest.raises(ValueError, match="cannot be captured, or is traced"):
        specwb.rounds(pair.target, PROMPTS, "ar", graphs=True, trace=True)
    specwb.decode(pair.target, PROMPTS, method, max_new_tokens=12)
    assert calls


@pytest.mark.cuda
@settings_of
@every_case
def test_on_cuda_graphs_and_eager_give_the_same(key, options, settings):
    """Bit for bit: both run the same kernels. In float32, as decoded with; in float64 as on the CPU
    too."""
    for dtype in (torch.float32, torch.float64):
        target, draft = tiny.on_cuda("llama", 0.02, dtype)
        pair = SimpleNamespace(kind="llama", target=target, draft=draft)
        method = made(key, options, pair)
        run = {"max_new_tokens": [300, 290, 310], "seed": 3, **settings}
        eager = specwb.decode(pair.target, PROMPTS, method, graphs=False, **run)
        if not settings["temperature"] and dtype is torch.float64:
            on_cpu = specwb.decode(LLAMA.target, PROMPTS, made(key, options, LLAMA), **run)
            assert eager.tokens == on_cpu.tokens
        for _ in range(2):
            out = specwb.decode(pair.target, PROMPTS, method, **run)
            assert (out.tokens, out.accepted_lengths) == (eager.tokens, eager.accepted_lengths)
