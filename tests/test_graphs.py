"""Captured rounds: on the CPU by a tape that keeps a CUDA graph's rules, and on CUDA where there is one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny
import torch
from tape import Tape, Waits
from test_protocol import EVERYTHING, FIRST, LLAMA, PROMPTS, QWEN2, cases, every_case, first_cases, made

import specwb
from specwb import engine, flow, graphs
from specwb.drafters.base import Drafter

SETTINGS = [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 9, "top_p": 0.9}]
EAGER = {"diffuspec"}  # reads on the host what it drafts from
captured_cases = cases([case for case in FIRST if case[0] not in EAGER])
settings_of = pytest.mark.parametrize("settings", SETTINGS, ids=["T0", "T1", "filtered"])


@pytest.fixture
def taped(monkeypatch):
    """Rounds of the CPU are recorded; buckets are small, so that several come up."""
    monkeypatch.setitem(graphs.RECORDERS, "cpu", Tape)
    monkeypatch.setattr(flow, "BUCKET", 16)
    monkeypatch.setattr("specwb.models.target.BUCKET", 16)


def _eager(pair, prompts, method, **settings):
    return specwb.decode(pair.target, prompts, method, graphs=False, **settings)


@captured_cases
def test_replayed_rounds_are_the_eager_ones(key, options, taped):
    """Sampled with filters; rounds at T = 0 are recorded in the next test, all cases and settings on CUDA."""
    pair = EVERYTHING
    method = made(key, options, pair)
    run = {"max_new_tokens": [40, 33, 37], "seed": 3, "eos": 7, **SETTINGS[2]}
    eager = _eager(pair, PROMPTS, method, **run)
    out = specwb.decode(pair.target, PROMPTS, method, **run)
    assert (out.tokens, out.accepted_lengths) == (eager.tokens, eager.accepted_lengths)
    (arena,) = method.arenas.values()
    assert len(arena.recordings) > 1, "one bucket alone proves little"
    assert any(arena.recordings.values())
    # the next decoding replays what the first one recorded: other prompts, other lengths, other seeds
    kept = {bucket: recording for bucket, recording in arena.recordings.items() if recording}
    other = [[9, 9, 1], [2, 4, 6, 8, 10], [11]]
    run |= {"max_new_tokens": [31, 39, 36], "seed": 4}
    again, wanted = specwb.decode(pair.target, other, method, **run), _eager(pair, other, method, **run)
    assert (again.tokens, again.accepted_lengths) == (wanted.tokens, wanted.accepted_lengths)
    assert all(arena.recordings[bucket] is recording for bucket, recording in kept.items())
    assert list(method.arenas.values()) == [arena]


@captured_cases
@pytest.mark.slow
def test_shapes_are_the_same_in_every_round_of_a_bucket(key, options, monkeypatch, taped):
    """The operators of a round and their shapes, with Python running: what a graph would freeze does not change."""
    pair = EVERYTHING
    method = made(key, options, pair)
    seen: dict[int, list] = {}
    compared = 0

    def run(arena, body):
        nonlocal compared
        horizon = arena.state.horizon
        before = [x.data_ptr() for x in vars(arena.state).values() if isinstance(x, torch.Tensor)]
        with torch.inference_mode():
            tape = Tape(body)
        shapes = [
            (str(func), [tuple(x.shape) for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor)])
            for func, _, _, out in tape.calls
        ]
        if len(seen.setdefault(horizon, [])) > 1:  # the first rounds make tables
            compared += 1
            assert shapes == seen[horizon][1]
            assert before == [x.data_ptr() for x in vars(arena.state).values() if isinstance(x, torch.Tensor)]
        seen[horizon].append(shapes)
        return body()

    monkeypatch.setattr(graphs.Arena, "run", run)
    specwb.decode(pair.target, PROMPTS, method, max_new_tokens=[30, 40, 20])
    assert compared > 3


@first_cases
def test_our_methods_are_captured(key, options):
    assert made(key, options, EVERYTHING).drafter.captured == (key not in EAGER)


def test_two_decodings_at_once_have_an_arena_each(taped):
    pair = EVERYTHING
    method = made("sps", {}, pair)
    run = {"max_new_tokens": 30, "temperature": 1.0}
    specwb.decode(pair.target, PROMPTS[:1], method, **run)  # leaves an arena that only one of them may take
    alone = [_eager(pair, [prompt], method, seed=5, **run).tokens[0] for prompt in PROMPTS]
    loops = [specwb.rounds(pair.target, [prompt], method, seed=5, **run) for prompt in PROMPTS]
    last = [None] * len(loops)
    while loops_left := [i for i, loop in enumerate(loops) if loop is not None]:
        for i in loops_left:
            step = next(loops[i], None)
            if step is None:
                loops[i] = None
            else:
                last[i] = step.state.tokens[0, len(PROMPTS[i]) : int(step.state.known[0])].tolist()
    assert last == alone


@pytest.mark.parametrize("key", ["ar", "sps", "mcsd", "pld", "lookahead", "eagle2", "kangaroo", "mcsd_ti"])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.slow
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
            specwb.decode(pair.target, PROMPTS, method, max_new_tokens=30)
    for prompts in (PROMPTS[::-1], [[9], [8, 7], [6, 5, 4]]):
        run = {"max_new_tokens": 30, "temperature": 1.0, "seed": 2}
        out, wanted = specwb.decode(pair.target, prompts, method, **run), _eager(pair, prompts, method, **run)
        assert (out.tokens, out.accepted_lengths) == (wanted.tokens, wanted.accepted_lengths)


def test_an_abandoned_decoding_can_be_followed_by_another(taped):
    pair = EVERYTHING
    method = made("sps", {}, pair)
    loop = specwb.rounds(pair.target, PROMPTS, method, max_new_tokens=30)
    for _ in range(4):
        next(loop)
    loop.close()
    assert len(method.arenas) == 1
    assert (
        specwb.decode(pair.target, PROMPTS[::-1], method, max_new_tokens=30).tokens == _eager(pair, PROMPTS[::-1], method, max_new_tokens=30).tokens
    )


def test_another_target_has_graphs_of_its_own(taped):
    method = specwb.method("pld", EVERYTHING.target)
    for target in (EVERYTHING.target, LLAMA.draft, EVERYTHING.target):
        out = specwb.decode(target, PROMPTS, method, max_new_tokens=30)
        assert out.tokens == specwb.decode(target, PROMPTS, method, max_new_tokens=30, graphs=False).tokens
    assert len(method.arenas) == 2


def test_a_method_keeps_a_few_arenas(taped):
    method = specwb.method("ar", EVERYTHING.target)
    for n in range(1, graphs.ARENAS + 3):
        specwb.decode(EVERYTHING.target, [[1, 2]] * n, method, max_new_tokens=3)
    assert len(method.arenas) == graphs.ARENAS


class Late(Drafter):
    """Makes a tensor in its first round."""

    captured = True
    tree = specwb.Tree.chain(1)
    last = None

    def propose(self, state, noise):
        if self.last is None:
            self.last = torch.zeros(state.rows, 1, dtype=torch.long)
        return self.candidates(state, self.last)


class Long(Drafter):
    """Makes a tensor as long as the longest prompt."""

    captured = True
    tree = specwb.Tree.chain(1)

    def open(self, state, target):
        self.table = torch.zeros(state.rows, state.horizon, dtype=torch.long)

    def propose(self, state, noise):
        return self.candidates(state, self.table[:, :1])


@pytest.mark.parametrize("drafter", [Late, Long])
def test_tensors_that_a_graph_could_not_find_are_refused(drafter, taped):
    specwb.register("wrong", drafter)
    try:
        method = specwb.method("wrong", EVERYTHING.target)
        specwb.decode(EVERYTHING.target, PROMPTS, method, max_new_tokens=6)
        with pytest.raises(RuntimeError, match="makes its tensors in open"):
            specwb.decode(EVERYTHING.target, [[1], [2, 3], [4]], method, max_new_tokens=6)
    finally:
        specwb.unregister("wrong")


def test_graphs_that_cannot_be_are_refused(taped):
    pair = EVERYTHING
    with pytest.raises(ValueError, match="cannot be captured, or is traced"):
        specwb.rounds(pair.target, PROMPTS, "ar", graphs=True, trace=True)


@pytest.mark.parametrize("key", ["mcsd", "lookahead", "eagle2"])
def test_kept_steps_do_not_change_when_the_next_round_is_replayed(key, taped):
    pair = QWEN2
    method = made(key, {}, pair)
    run = {"max_new_tokens": 30, "seed": 2, "temperature": 0.4}
    eager = list(specwb.rounds(pair.target, PROMPTS, method, graphs=False, **run))
    steps = list(specwb.rounds(pair.target, PROMPTS, method, **run))
    for a, b in zip(eager, steps, strict=True):
        assert torch.equal(a.known, b.known)
        assert torch.equal(a.verdict.accepted, b.verdict.accepted)
        assert torch.equal(a.verdict.closing, b.verdict.closing)
        if key != "lookahead":  # its eager rounds draft no more than some row can use
            assert torch.equal(a.draft.tree.parent, b.draft.tree.parent)
            assert torch.equal(a.draft.tokens, b.draft.tokens)
            assert torch.equal(a.verdict.emitted, b.verdict.emitted)
        assert torch.equal(engine._offered(a), engine._offered(b))


def test_a_round_that_waits_or_exchanges_its_state_is_caught(taped):
    """What the tape is for: both mistakes are seen."""
    pair = EVERYTHING

    class Waiting(Drafter):
        captured = True
        tree = specwb.Tree.chain(1)

        def propose(self, state, noise):
            assert int(state.known[0]) > 0
            return self.candidates(state, state.tokens[:, :1])

    class Exchanging(Drafter):
        captured = True
        tree = specwb.Tree.chain(1)

        def open(self, state, target):
            self.last = torch.zeros(state.rows, 1, dtype=torch.long)

        def propose(self, state, noise):
            return self.candidates(state, self.last)

        def observe(self, state, draft, verdict, scores):
            self.last = verdict.closing[:, None] + 0  # a new tensor: a graph goes on reading the old one

    for drafter in (Waiting, Exchanging):
        specwb.register("wrong", drafter)
        try:
            method = specwb.method("wrong", pair.target)
            if drafter is Waiting:
                with pytest.raises(Waits):
                    specwb.decode(pair.target, PROMPTS, method, max_new_tokens=20)
            else:
                loops = [specwb.rounds(pair.target, PROMPTS, method, max_new_tokens=20, graphs=g) for g in (False, None)]
                drafted = [[step.draft.tokens.tolist() for step in loop] for loop in loops]
                assert drafted[0] != drafted[1]
        finally:
            specwb.unregister("wrong")


def test_eager_where_asked_traced_clocked_or_without_cuda(monkeypatch):
    pair = EVERYTHING
    with pytest.raises(ValueError, match="needs a CUDA device"):
        specwb.rounds(pair.target, PROMPTS, "ar", graphs=True)
    calls = []
    monkeypatch.setitem(graphs.RECORDERS, "cpu", lambda *args: calls.append(1) or Tape(*args))
    method = made("sps", {}, pair)
    specwb.decode(pair.target, PROMPTS, method, max_new_tokens=12, trace=True)
    specwb.decode(pair.target, PROMPTS, method, max_new_tokens=12, clock=engine.Clock(pair.target.device))
    specwb.decode(pair.target, PROMPTS, method, max_new_tokens=12, graphs=False)
    assert calls == []
    specwb.decode(pair.target, PROMPTS, method, max_new_tokens=12)
    assert calls


@pytest.mark.cuda
@settings_of
@every_case
def test_on_cuda_graphs_and_eager_give_the_same(key, options, settings):
    """Bit for bit: both run the same kernels. In float32, as decoded with; in float64 as on the CPU too."""
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
