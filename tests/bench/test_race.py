"""The order of a comparison, what stops and when, by a clock that only decodings move."""

from __future__ import annotations

import math
import time

import numpy as np
import pandas as pd
import pytest
import tiny

from specwb.core.probability import Sampling
from specwb.engine.machine import Watch
from specwb.lab.bench import measure as measuring
from specwb.lab.bench import report
from specwb.lab.bench.compare import build
from specwb.lab.bench.measure import Run
from specwb.lab.bench.race import Race, fastest
from specwb.lab.bench.results import PARTS, of_plain

TOKENS = 10
NOISE = [1.01, 0.99]
"""Factors of the seconds of prompts that take turns, but for plain decoding."""
TURNS = {"pld": 2, "hf_greedy": 2, "mcsd": 4}
"""Prompts of each turn, where it is not one."""


@pytest.fixture
def race(monkeypatch):
    """Makes a race over prompts that each decoder takes fixed seconds for, and a list of what was
    decoded. Openings take no time."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(measuring, "_warm_up", lambda *_: None)

    def make(seconds: dict[str, float], prompts: int, limit: float | None, progress=None):
        methods = build(tiny.target(), list(seconds), tiny.draft(), Sampling())
        groups = [(str(i), [[1, 2, i]]) for i in range(prompts)]
        decoded: list[tuple[str, int]] = []

        def decode(target, job, steps, *_):
            index = job.rows[0][-1]
            noise = 1 if job.key == "ar" else NOISE[index // TURNS.get(job.key, 1) % 2]
            spent = seconds[job.key] * noise
            decoded.append((job.key, index))
            now[0] += 0 if steps else spent
            run = Run([[0] * TOKENS], TOKENS, spent, step_seconds=[spent / 10] * 3)
            return run

        monkeypatch.setattr(measuring, "_decode", decode)
        watch = Watch(lambda: 1.0)
        made = Race(methods, groups, (TOKENS, Sampling(), 0), watch, limit or math.inf, progress)
        made.run(tiny.target())
        return made, decoded[sum(not name.startswith("hf_") for name in seconds) :]

    return make


def test_cost_is_the_median_over_prompts_of_a_step_after_the_first(race):
    made, _ = race({"pld": 2.0, "ar": 3.0}, 1, None)

    def run(steps, seconds):
        """Of ``steps`` steps, each after the first one of so many ``seconds``."""
        parts = dict.fromkeys(PARTS, 0.0)
        later = {
            **parts,
            "draft": (steps - 1) * seconds / 4,
            "score": (steps - 1) * seconds * 3 / 4,
        }
        total = {name: 5.0 + later[name] for name in PARTS}
        first = dict.fromkeys(PARTS, 5.0)
        return Run([[0]], steps, 1.0, accepted=[[0] * steps], parts=total, first_parts=first)

    made.runs["pld"] = [run(3, 1.5), run(6, 4.0), run(2, 2.0), run(1, 9.0), run(4, 7.0)]
    made.runs["ar"] = [run(3, 1.0), run(5, 2.0), run(4, 2.0), run(3, 1.0)]
    assert made.cost("ar") == 1
    assert made.cost("pld") == pytest.approx(1.5)  # of 1.5, 2 and 1
    made.runs["pld"] = [run(1, 9.0)]
    opened = [Run([[0]], 3, 1.0, step_seconds=[9.0, x, x]) for x in (3.0, 2.0)]
    made.opened = {"pld": opened[:1], "ar": opened[1:]}
    assert made.cost("pld") == 1.5
    opened[0].step_seconds = [9.0]
    assert math.isnan(made.cost("pld"))


def test_the_fastest_are_first_and_then_all_take_turns(race):
    """The order of the first round is of the openings; the library was not opened."""
    seconds = {"pld": 2.0, "sps": 1.0, "ar": 3.0, "hf_greedy": 0.5}
    made, decoded = race(seconds, 3, None)
    names = [name for name, _ in decoded]
    assert names[:4] == ["ar", "sps", "pld", "hf_greedy"]
    assert names[4:8] == ["sps", "ar", "hf_greedy", "pld"]  # one further in the order of decoders
    assert names[8:] == ["ar", "hf_greedy", "pld", "sps"]
    assert not made.stopped


def test_the_last_round_begins_with_plain_decoding_and_the_fastest(race):
    """A round takes 3 + 2 + 1 s. Of the second, which does not fit, 6.9 s leave room for two runs
    where the other would end too late."""
    _, decoded = race({"ar": 3.0, "pld": 2.0, "sps": 1.0}, 9, 6.0 + 4.1)
    assert decoded[3:] == [("ar", 1), ("sps", 1)]
    made, decoded = race({"ar": 3.0, "pld": 2.0, "sps": 1.0}, 9, 6.0 + 2.9)
    assert len(decoded) == 3  # nothing without plain decoding
    assert made.frame().set_index("method").runs.to_dict() == {"ar": 1, "pld": 1, "sps": 1}


def test_rows_stop_that_are_told_apart_from_the_fastest(race):
    """pld is twice as slow as sps, mcsd as slow as their pairs scatter. Looks are after four and
    eight prompts. Plain decoding goes on: speedups are over it."""
    seconds = {"ar": 2.5, "pld": 2.0, "sps": 1.0, "mcsd": 1.001, "hf_greedy": 9.0}
    made, _ = race(seconds, 8, 1000.0)
    runs = {name: len(some) for name, some in made.runs.items()}
    assert runs == {"ar": 8, "pld": 4, "sps": 8, "mcsd": 8, "hf_greedy": 1}
    assert made.stopped == {"pld", "hf_greedy"}
    frame = made.frame()
    shown = {row["method"]: row for row in report.cells(frame)}
    assert [shown[x]["runs"] for x in ("ar", "sps", "pld")] == ["8", "8", "4*"]
    assert [shown[x]["speedup over ar"] for x in ("sps", "pld")] == ["2.50x", "1.25x"]
    assert made.fastest()["tied"] == ["mcsd"]
    everything, _ = race(seconds, 8, None)
    assert {len(some) for some in everything.runs.values()} == {8}


def test_the_library_has_one_run_unless_it_is_the_reference(race):
    seconds = {"ar": 2.0, "sps": 1.0, "hf_greedy": 3.0, "hf_prompt_lookup": 2.0}
    made, decoded = race(seconds, 3, 1000.0)
    assert [name for name, _ in decoded].count("hf_greedy") == 1
    made, decoded = race(seconds | {"hf_greedy": 1.5}, 3, 1000.0)
    names = [name for name, _ in decoded]
    assert [names.count(name) for name in ("hf_greedy", "hf_prompt_lookup")] == [3, 1]
    assert made.table()[1] == "hf_greedy"
    assert set(made.fastest()) == {"method", "speedup", "others", "tied"}


def table(speeds: np.ndarray, over: str = "0") -> pd.DataFrame:
    """A table of runs from tokens/s ``[methods,prompts]``; methods are called 0, 1, 2, ..."""
    rows = pd.DataFrame(
        {"method": str(m), "prompt": i, "tokens_per_second": speed}
        for m, some in enumerate(speeds)
        for i, speed in enumerate(some)
        if not math.isnan(speed)
    )
    plain = of_plain(rows, "tokens_per_second", over, ["prompt"])
    return rows.assign(speedup=rows.tokens_per_second / plain)


def test_a_method_is_told_apart_from_the_fastest_by_its_pairs():
    """By hand: eight pairs won by 10 % and one lost by 10 % have a mean logarithm of .073 with the
    standard error .022, so t = 3.3 and p = .011, or .034 with three comparisons; of five, p = .24.
    The pairs of 2 with 3 scatter around 1."""
    even = np.array([0.999, 1.001] * 5)[:9]
    once = 1 / np.array([0.9, *[1.1] * 8])
    speeds = np.stack([even / 2, once, np.ones(9), even])
    best = {"method": "2", "speedup": pytest.approx(2, abs=0.01), "others": 3}
    assert fastest(table(speeds), "0") == {**best, "tied": ["3"]}
    assert fastest(table(speeds), "0", looks=2)["tied"] == ["1", "3"]  # p = .034 x 2
    more = np.concatenate([speeds, speeds[:1] * 1.01, speeds[:1] * 1.02])
    assert fastest(table(more), "0")["tied"] == ["1", "3"]  # five comparisons at 5 %
    few = speeds.copy()
    few[1, 5:] = math.nan  # it stopped
    assert fastest(table(few), "0")["tied"] == ["1", "3"]
    assert fastest(table(speeds[:, :1]), "0")["tied"] == ["0", "2", "3"]
