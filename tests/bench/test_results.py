"""One number of one name, whoever prints it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tiny

from specwb.core.probability import Sampling
from specwb.lab.bench import results
from specwb.lab.bench.measure import Run
from specwb.lab.bench.race import Race
from specwb.lab.bench.statistics import interval
from specwb.lab.bench.store import RunStore
from specwb.lab.cost import tune
from specwb.lab.harness import summary as harness
from specwb.lab.harness.answers import Turn
from specwb.lab.sweeps import frame, summary

SECONDS = {"ar": (1.0, 2.0, 1.0), "sps": (0.5, 1.8, 0.9)}
"""Of three prompts, ten tokens each: ratios of 2, 10/9 and 10/9."""


def test_intervals_by_hand():
    assert interval([1.0, 2.0, 3.0], np.median) == (1, 3)
    assert np.isnan(interval([1.0])).all()
    low, high = interval(np.arange(100.0))
    # 28.9 / 10 is the standard error of the mean
    assert low == pytest.approx(49.5 - 1.96 * 2.89, abs=0.2)
    assert high == pytest.approx(49.5 + 1.96 * 2.89, abs=0.2)
    # of three prompts one has 4, drawn three times in 27 of them: more than 2.5 %
    assert interval([4.0, 1.0, 1.0]) == (1, 4)


def test_every_runner_has_the_same_speedup_of_the_same_runs(tmp_path):
    runs = {name: [Run([[0] * 10], 10, s) for s in seconds] for name, seconds in SECONDS.items()}
    watch = SimpleNamespace(slow=lambda probe: False)
    race = Race(dict.fromkeys(runs), [("all", [[1]])] * 3, (10, Sampling(), 0), watch, np.inf, None)
    race.runs = runs
    table, over = race.table()
    compared = results.figures(table, ["method"])
    assert (over, compared.runs.tolist(), compared.tau.tolist()) == ("ar", [3, 3], [1, 1])
    assert compared.speedup_low["sps"] == pytest.approx(10 / 9)
    answers = {
        name: [
            Turn(i, "all", "all", 0, "", (0,) * 10, s, (0,) * 10, (0,) * 10)
            for i, s in enumerate(seconds)
        ]
        for name, seconds in SECONDS.items()
    }
    words = tiny.tokenizer([f"w{i}" for i in range(tiny.VOCABULARY)])
    rows = harness.frame(answers, words).set_index(["method", "subtask"])
    evaluated = rows.loc[("sps", "overall"), "speedup"]
    shared = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0, "max_new_tokens": 10}
    on = {"models": {"target": "t"}, "sha256": {}, "versions": {}}
    record = {"domain": "all", "tokens": 10, "accepted": [0] * 10, "disturbed": False}
    with RunStore(tmp_path / "s.sqlite") as store:
        for name, seconds in SECONDS.items():
            id = store.add_settings({"method": name, **shared}, on)
            for i, s in enumerate(seconds):
                store.add(id, str(i), {**record, "text": "", "drafted": 0, "began": ""}, s)
        swept: pd.DataFrame = frame(store)
    median = summary(swept[swept.method == "sps"], ["method"], "speedup")["median"][0]
    tuned = [{"method": "sps"}]
    tune._add_measurements(tuned, compared, {"sps": SimpleNamespace(key="sps")})
    assert compared.speedup["sps"] == tuned[0]["speedup"] == pytest.approx(10 / 9)
    assert tuned[0]["measured"] == pytest.approx(1.25)  # of totals, by another name
    assert evaluated == median == pytest.approx(10 / 9)
    assert rows.loc[("sps", "overall"), "speedup.mean_rate"] == pytest.approx(1.4667, abs=1e-4)
