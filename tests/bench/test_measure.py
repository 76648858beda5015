"""Jobs in, runs out: what is counted, what is timed, and what is measured again."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny

import specwb
from specwb.core.probability import Sampling
from specwb.engine.machine import Watch
from specwb.lab.bench import measure as module
from specwb.lab.bench.library import Library
from specwb.lab.bench.measure import Job, Run, measure

PROMPTS = [[1, 2, 3], [5, 6], [7, 8, 9, 10, 11]]
SAMPLED = Sampling(1.0)


def job(spec="sps:gamma=3", **changes):
    draft = {} if spec == "ar" else {"draft": tiny.draft()}
    method = specwb.method(spec, tiny.target(), **draft)
    return replace(Job(spec, method, PROMPTS, 12, SAMPLED, 5), **changes)


def test_a_run_is_the_decoding_of_its_job():
    ((done, run),) = measure(tiny.target(), [job()])
    output = specwb.decode(
        tiny.target(),
        PROMPTS,
        "sps",
        draft=tiny.draft(),
        gamma=3,
        max_new_tokens=12,
        temperature=1.0,
        seed=5,
    )
    assert done.key == "sps:gamma=3"
    assert run.tokens == output.tokens
    assert run.accepted == output.accepted_lengths
    assert run.tested == output.tested_lengths
    assert run.forwards == sum(output.step_counts)
    assert run.written == 36
    assert run.texts is None
    assert not run.step_seconds
    assert set(run.parts) == {"draft", "score", "verify", "commit"}
    assert 0 < sum(run.first_parts.values()) < sum(run.parts.values()) < run.seconds
    assert run.tokens_per_second == 36 / run.seconds
    steps = [drafted for row in run.drafted for drafted in row]
    assert max(steps) == 3


def test_a_number_of_steps():
    """Each of the three drafts the whole chain, whatever the text; all of them are timed."""
    ((_, run),) = measure(tiny.target(), [job(rows=PROMPTS[:1], tokens=40)], steps=3)
    assert [len(run.accepted[0]), len(run.step_seconds)] == [3, 3]
    assert run.drafted == [[3, 3, 3]]
    assert 0 < sum(run.step_seconds) < run.seconds < run.wall
    assert not run.levels


def test_a_number_of_steps_goes_on_past_an_end_of_text():
    target = specwb.load(tiny.build("llama", seed=0))
    plain = Job("ar", specwb.method("ar", target), PROMPTS[:1], 40)
    first = specwb.decode(target, PROMPTS[0], max_new_tokens=1).tokens[0]
    target.eos = first
    ((_, run),) = measure(target, [plain], steps=3)
    assert [len(run.step_seconds), run.accepted] == [3, [[0, 0, 0]]]
    ((_, run),) = measure(target, [plain])
    assert run.tokens == [first]


def test_the_levels_of_trees():
    tree = job("mcsd:tree=2-1", rows=PROMPTS[:1])
    ((_, run),) = measure(tiny.target(), [tree], steps=2)
    assert (run.drafted, run.levels) == ([[4, 4]], [[2, 2]])


def test_a_last_step_that_may_be_cut_is_left_out():
    """Greedy decoding of a model that drafts for itself accepts all: steps of four tokens each."""
    alone = specwb.method("sps:gamma=3", tiny.target(), draft=tiny.target())
    greedy = job(method=alone, rows=PROMPTS[:1], sampling=Sampling())
    ((_, run),) = measure(tiny.target(), [replace(greedy, tokens=10)], steps=5)
    assert run.accepted == [[3, 3]]
    ((_, run),) = measure(tiny.target(), [replace(greedy, tokens=20)], steps=5)
    assert run.accepted == [[3, 3, 3, 3, 3]]


def test_every_method_and_sampling_is_warmed_up_once(monkeypatch):
    decoded = []

    def fake(target, job, steps, *_):
        decoded.append((job.key, job.tokens))
        return Run([[0]], 1, 1.0)

    monkeypatch.setattr(module, "_decode", fake)
    one, other = job(), job("ar")
    jobs = [one, replace(one, seed=6), other, replace(one, sampling=Sampling())]
    assert len(list(measure(tiny.target(), jobs))) == 4
    assert [tokens for _, tokens in decoded] == [8, 12, 12, 8, 12, 8, 12]
    decoded.clear()
    assert len(list(measure(tiny.target(), jobs, timed=False))) == 4
    assert [tokens for _, tokens in decoded] == [12] * 4


def test_the_library_draws_by_the_seed_and_leaves_torchs_generator_alone():
    row = Library("hf_sample", tiny.target(), None, SAMPLED, 3)
    jobs = [job(key="hf_sample", method=row, seed=seed) for seed in (1, 1, 2)]
    texts = [run.tokens for _, run in measure(tiny.target(), jobs)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("probes", "before", "seconds"),
    [
        # quiet, then slow on both sides of the first attempt: the second began in the slow moment
        # as well, so neither is better and the first one stays
        ([1, 1, 1, 1, 2, 2, 2, 1, 1, 1], None, 3.0),
        # the second attempt is slower by the clock and less disturbed
        ([1, 1, 1, 1, 2, 2, 2, 1.5, 1.5, 1.5], 3.0, 4.0),
    ],
)
def test_a_disturbed_run_is_measured_again_and_the_quieter_attempt_counts(
    monkeypatch, probes, before, seconds
):
    steps = iter(probes)  # a warm-up, then three a probe
    watch = Watch(lambda: float(next(steps)))
    if before is not None:
        watch.probes.append(before)
    attempts = iter([1.0, 3.0, 4.0])  # a warm-up first
    monkeypatch.setattr(module, "_decode", lambda *_: Run([[0]], 1, next(attempts)))
    ((_, run),) = measure(tiny.target(), [job()], watch=watch)
    assert (run.seconds, run.probe, run.again) == (seconds, 2.0, True)
    assert watch.slow(run.probe)


def test_nothing_is_repeated_when_the_time_is_up(monkeypatch):
    steps = iter([1, 1, 1, 1, 2, 2, 2])
    watch = Watch(lambda: float(next(steps)))
    watch.repeat_until = 0.0
    monkeypatch.setattr(module, "_decode", lambda *_: Run([[0]], 1, 3.0))
    ((_, run),) = measure(tiny.target(), [job()], watch=watch)
    assert (run.probe, run.again) == (2.0, False)


def test_what_is_timed_is_a_replay(monkeypatch):
    """A step runs eagerly when it is first met (2 s), then it is recorded (9 s), then replayed."""
    made = job(rows=PROMPTS[:1])
    arena = SimpleNamespace(recordings={})
    made.method.arenas["arena",] = arena

    def decode(target, method, one, *rest):
        step = one.tokens  # a graph is of one horizon, so a longer text has a step of its own
        if step not in arena.recordings:
            arena.recordings[step] = None
            return Run([[0]], 1, 2.0)
        if arena.recordings[step] is None:
            arena.recordings[step] = "a graph"
            return Run([[0]], 1, 9.0)
        return Run([[0]], 1, 1.0)

    monkeypatch.setattr(module, "_by_engine", decode)
    runs = [run.seconds for _, run in measure(tiny.target(), [made, replace(made, tokens=40)])]
    assert runs == [1.0, 1.0]
    arena.recordings.clear()
    runs = [run.seconds for _, run in measure(tiny.target(), [made], timed=False)]
    assert runs == [2.0]  # where no time is wanted nothing is decoded again
