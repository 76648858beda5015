"""Whether the machine was quiet. The tests have a clock of their own, never a real one."""

from __future__ import annotations

import math
from itertools import chain, repeat

import pytest
import tiny

import specwb
from specwb.engine import machine
from specwb.engine.machine import SHARE, SLOW, Watch, notes, one_step, others_load


@pytest.fixture
def clock(monkeypatch):
    """A clock by which a minute passes between the first and the last probe.

    In that minute this process computes on one of two CPUs.
    """
    monkeypatch.setattr(machine.time, "monotonic", chain([0.0], repeat(60.0)).__next__)
    monkeypatch.setattr(machine.time, "process_time", chain([0.0], repeat(60.0)).__next__)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(machine.torch, "get_num_threads", lambda: 2)

    def load(*values: float | None) -> None:
        monkeypatch.setattr(machine, "load_average", iter(values).__next__)

    load(0.1, 0.1)
    return load


def watch(*seconds: float, probes: int = 0) -> Watch:
    """A watch that has timed these steps, three per probe or as many probes, after a first step
    that warms up."""
    seen = Watch(iter([99.0, *seconds]).__next__)
    for _ in range((probes or len(seconds) // machine.STEPS) - 1):
        seen.probe()
    return seen


def test_a_probe_is_a_step_or_the_median_of_three_and_judged_by_the_fast_ones(clock):
    seen = watch(1.0, 0.5, 9.0, 1.3, 9.0, 1.2, 1.6, 1.1, probes=4)
    assert seen.probes == [1.0, 1.3, 1.6, 1.1]  # only a slow step is timed again
    assert (seen.fastest, seen.last) == (1.0, 1.1)
    assert [seen.slow(s) for s in (1.0, SLOW, SLOW + 1e-9)] == [False, False, True]


def test_one_fast_probe_does_not_make_all_others_slow(clock):
    """The first probe has the caches for itself."""
    seen = watch(*[1.0] * 3, *[1.6] * 27)
    assert seen.fastest == 1.6
    assert not seen.facts([1.6] * 9, again=0)["busy"]


def test_facts_count_what_was_disturbed(clock):
    seen = watch(*[1.0] * 3, *[2.0] * 3, *[3.0] * 3)
    facts = seen.facts([1.0] * 8 + [2.0, 3.0], again=1)
    counts = {"runs": 10, "disturbed": 2, "measured_again": 1, "step_seconds": 1.0}
    assert counts.items() <= facts.items()
    assert facts["busy"]
    clock(0.1, 0.1)
    assert SHARE * 10 == 1
    assert not watch(1.0, 1.0, 1.0).facts([1.0] * 9 + [2.0], again=0)["busy"]


def test_the_load_of_others_is_what_the_average_has_beyond_our_own():
    """The load average is computed by its own recursion."""
    average, decay = 0.4, math.exp(-5 / 60)
    for _ in range(30):  # every five seconds, with three threads running
        average = average * decay + 3.0 * (1 - decay)
    assert others_load(0.4, average, 150, own=2.0) == pytest.approx(1.0)
    assert others_load(0.4, average, 150, own=3.5) == 0
    assert others_load(0.7, 2.7, 10, own=2.0) == 0.7  # too short to tell: what was there before


@pytest.mark.parametrize(("after", "busy"), [(1.0, False), (2.5, True)])
def test_a_loaded_machine_is_busy_though_every_step_is_alike(clock, after, busy):
    """Two threads of others all the time make every step slow, the fastest too."""
    clock(1.0, after)
    facts = watch(1.0, 1.0, 1.0).facts([1.0] * 4, again=0)
    assert facts["others"] == pytest.approx((after - 1 / math.e) / (1 - 1 / math.e) - 1, abs=0.01)
    assert facts["busy"] is busy


def test_the_warning_comes_first_and_says_what_to_do(clock):
    clock(4.0, 4.0)
    facts = watch(1.0, 1.0, 1.0).facts([1.0, 2.0], again=1)
    warning, _ = notes(facts)
    assert warning.startswith("BUSY MACHINE: other work disturbed 1 of 2 decodings, and other pro")


@pytest.mark.parametrize("generic", [False, True])
def test_the_step_is_this_engines_forward_pass(monkeypatch, generic):
    target, shapes = specwb.load(tiny.build("llama", seed=0), generic=generic), []
    run = target.backbone.run

    def counted(x, *arguments):
        shapes.append(x.shape[:2])
        return run(x, *arguments)

    monkeypatch.setattr(target.backbone, "run", counted)
    step = one_step(target, 2, 3)
    assert min(step(), step()) > 0
    assert one_step(target)() > 0
    assert shapes == [(2, 3), (2, 3), (1, 1)]


def test_all_threads_are_compared_with_one_in_turns(monkeypatch):
    """Two disturbed pairs of five do not decide, a third does."""
    asked, number = [], []
    monkeypatch.setattr(machine.torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(machine.torch, "set_num_threads", number.append)
    times = iter([1.0, 2.0, 90.0, 2.0, 6.0, 2.0, 90.0, 2.0, 1.0, 2.0])
    monkeypatch.setattr(machine, "product_seconds", lambda n: asked.append(n) or next(times))
    assert machine.slowdown() == 3.0
    assert asked == [4, 1] * 5
    assert number == [4]  # as it was
