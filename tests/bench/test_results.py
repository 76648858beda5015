"""One number of one name, whoever prints it."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tiny

import specwb
from specwb.lab.bench import results, runs
from specwb.lab.bench.measure import Run as Measured
from specwb.lab.cost import tune
from specwb.lab.harness import summary as harness
from specwb.lab.harness.record import Turn
from specwb.lab.papers import NAMES, grid
from specwb.lab.papers.figures import SHOWN
from specwb.lab.papers.paper import read_paper
from specwb.lab.papers.results import shipped
from specwb.lab.sweeps import Store, frame, summary
from specwb.show import ledger
from specwb.show.pictures import draw

SECONDS = {"ar": (1.0, 2.0, 1.0), "sps": (0.5, 1.8, 0.9)}
"""Of three prompts, ten tokens each."""
PAIRS = [[10 / a, 10 / b] for a, b in zip(SECONDS["sps"], SECONDS["ar"], strict=True)]


def test_figures_by_hand():
    assert results.speedup(PAIRS) == pytest.approx(10 / 9)  # of 2, 10/9 and 10/9
    assert results.mean_rate(PAIRS) == pytest.approx((20 + 50 / 9 + 100 / 9) / 25)
    assert np.isnan(results.speedup([]))
    low, high = results.interval([1.0, 2.0, 3.0], np.median)
    assert (low, high) == (1, 3)
    assert np.isnan(results.interval([1.0])).all()
    low, high = results.interval(np.arange(100.0), confidence=0.5)
    # 28.9 / 10 is the standard error of the mean
    assert low == pytest.approx(49.5 - 0.674 * 2.89, abs=0.2)
    assert high == pytest.approx(49.5 + 0.674 * 2.89, abs=0.2)


def test_every_runner_has_the_same_speedup_of_the_same_runs(tmp_path):
    measured = {
        name: [Measured([[0] * 10], 10, s) for s in seconds] for name, seconds in SECONDS.items()
    }
    quiet = SimpleNamespace(slow=lambda probe: False)
    compared = pd.DataFrame(
        [runs.row_of(x, measured, "ar", [], None, None, quiet) for x in measured]
    ).set_index("method")
    answers = {
        name: [
            Turn(i, "all", "all", 0, "", (0,) * 10, s, (0,) * 10, (0,) * 10, (0,) * 10)
            for i, s in enumerate(seconds)
        ]
        for name, seconds in SECONDS.items()
    }
    words = tiny.tokenizer([f"w{i}" for i in range(tiny.VOCABULARY)])
    rows = harness.frame(answers, words).set_index(["method", "subtask"])
    evaluated = rows.loc[("sps", "overall"), "speedup"]
    shared = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0, "max_new_tokens": 10}
    with Store(tmp_path / "s.sqlite") as store:
        for name, seconds in SECONDS.items():
            on = {"models": {"target": "t"}, "sha256": {}, "versions": {}}
            record = {"domain": "all", "tokens": 10, "accepted": [0] * 10, "disturbed": False}
            id = store.add_settings({"method": name, **shared}, on)
            for i, s in enumerate(seconds):
                store.add(id, str(i), {**record, "text": "", "began": "2026-11-26"}, s)
        found: pd.DataFrame = frame(store)
    swept = summary(found[found.method == "sps"], ["method"], "speedup")["median"][0]
    tuned = [{"method": "sps"}]
    tune._add_measurements(tuned, compared, {"sps": SimpleNamespace(key="sps")})
    assert compared.speedup["sps"] == tuned[0]["speedup"] == pytest.approx(10 / 9, abs=1e-4)
    assert tuned[0]["measured"] == pytest.approx(1.25, abs=1e-3)  # of totals, by another name
    assert evaluated == swept == pytest.approx(10 / 9)
    assert rows.loc[("sps", "overall"), "speedup.mean_rate"] == pytest.approx(1.4667, abs=1e-4)


def test_a_study_names_its_speedup_otherwise():
    """Of the same prompts, ten steps of one token each; the first of them has the prompt in it."""
    methods = {"ar": specwb.method("ar", tiny.target())}
    methods["sps"] = specwb.method("sps", tiny.target(), draft=tiny.draft())
    cells: dict = {}
    for name, seconds in SECONDS.items():
        for s in seconds:
            steps = [0.28 * s, *[0.08 * s] * 9]
            run = Measured([[0] * 10], 10, s, [[0] * 10], drafted=[[1] * 10], step_seconds=steps)
            for what, value in grid.record(run, methods[name]).items():
                cells.setdefault(f"T=0 {name}", {}).setdefault(what, []).append(value)
    row = grid.row({"cells": cells}, "T=0 sps")
    assert SHOWN["speedup"] in results.FIGURES
    mean = np.mean([a / b for a, b in PAIRS])
    assert (row["tau"], row["speedup"]) == (1, pytest.approx(mean, abs=1e-4))
    assert mean > 1.1 * results.speedup(PAIRS)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_is_called_speedup(name):
    paper = read_paper(name)
    documents = shipped(paper)
    shown = {column for row in ledger.cell_rows(documents[0]) for column in row}
    for key in paper.figures:
        shown |= {title.text for title in draw(paper, key, documents).layout.annotations}
    claims = [ledger.claim_row(verdict)[0] for verdict in ledger.judged(paper, documents).verdicts]
    assert SHOWN["speedup"] in shown
    assert "speedup" not in shown
    assert not any(re.search(r": speedup( |$)", claim) for claim in claims)
