"""A paper measured on tiny models: saved, interrupted, continued, refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import partial
from statistics import fmean

import pytest
import tiny

import specwb.lab.papers.results  # noqa: F401  # before a test replaces read_paper
from specwb.core.options import MethodError
from specwb.lab.bench.store import StoreError
from specwb.lab.papers import paper as papers
from specwb.lab.papers import run
from specwb.lab.papers.curves import curves
from specwb.lab.papers.grid import record
from specwb.lab.papers.paper import read_paper
from specwb.lab.papers.run import Models, RunSettings, reproduce
from specwb.models.questions import Question, load_prompts

WORDS = [f"w{i}" for i in range(tiny.VOCABULARY)]
QUESTIONS = [
    Question(i, ("code", "prose")[i % 2], (" ".join(WORDS[3 * i + 1 : 4 * i + 5]),), "text")
    for i in range(3)
]
CELLS = ("T=1 ar", "T=1 mcsd:tree=2-2-1", "T=1 mcsd:tree=2-2-1 batch", "T=1 mcsd:tree=2 long")
FEW = replace(read_paper("mcsd"), measure=CELLS, claims=(), rounds=4)
slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture
def models():
    target = copy.copy(tiny.target())  # which all tests share
    target.tokenizer = tiny.tokenizer(WORDS)
    return Models(target, tiny.draft("llama", 0.05))


def settings(path, **changes) -> RunSettings:
    return RunSettings(path / "results.json", "words", command="specwb reproduce mcsd", **changes)


def test_a_run_is_interrupted_and_continued(models, tmp_path, monkeypatch):
    whole, stopped = reproduce(FEW, models, QUESTIONS, settings(tmp_path / "..", restart=True))
    assert not stopped
    kept = []

    def interrupting(job_run, method, row=0):
        kept.append(method)
        if len(kept) == 6:
            raise KeyboardInterrupt
        return record(job_run, method, row)

    monkeypatch.setattr(run.grid, "record", interrupting)
    (part,), stopped = reproduce(FEW, models, QUESTIONS, settings(tmp_path))
    assert stopped
    saved = json.loads((tmp_path / "results.json").read_text())
    assert saved["cells"] == json.loads(json.dumps(part["cells"]))
    assert sum(len(entry["accepted"]) for entry in saved["cells"].values()) == 5
    monkeypatch.undo()
    measured: list[str] = []
    progress = lambda done, text: measured.append(text)  # noqa: E731
    (again,), stopped = reproduce(FEW, models, QUESTIONS, settings(tmp_path), progress=progress)
    assert not stopped
    assert len(measured) == 3 * len(CELLS) - 5  # nothing is measured again
    for name, entry in again["cells"].items():
        assert entry["accepted"] == whole[0]["cells"][name]["accepted"]
        assert {len(values) for values in entry.values()} == {3}
    rows = {row["cell"]: row for row in again["rows"]}
    assert set(rows) == set(CELLS)
    assert rows["T=1 ar"]["tau"] == 1
    assert again["domains"] == ["code", "prose", "code"]


def test_tokens_alone_are_those_of_a_timed_run_and_leave_its_times(models, tmp_path):
    (few,), _ = reproduce(FEW, models, QUESTIONS, settings(tmp_path, seconds=1e-9))
    times = {name: list(entry["ms"]) for name, entry in few["cells"].items()}
    assert {len(ms) for ms in times.values()} == {2}
    (more,), _ = reproduce(FEW, models, QUESTIONS, settings(tmp_path, timed=False))
    for name, entry in more["cells"].items():
        assert (
            entry["ms"] == times[name]
        )  # other layouts and longer texts are there for their times
        assert len(entry["accepted"]) == (2 if name.endswith((" batch", " long")) else 3)
    assert more["counted"]["command"] == "specwb reproduce mcsd"


def test_a_figure_by_task_has_the_papers_own_questions(models, tmp_path):
    panel = {"title": "Code", "what": "tau", "domain": ["code", ""]}
    curve = {"name": "here", "x": [1], "here": CELLS[1]}
    paper = replace(
        FEW,
        by_task={"prompts": ["words"], "measure": CELLS[:2]},
        figures={"tasks": {"panels": [panel], "curves": [curve]}},
    )
    (own,), _ = reproduce(paper, models, QUESTIONS, settings(tmp_path, timed=False))
    assert set(own["cells"]) == set(CELLS[:2])
    other = {"cells": {CELLS[1]: {"accepted": [[0]], "drafted": [[3]]}}, "domains": ["prose"]}
    (drawn,) = curves(paper, "tasks", [other, own])
    tau = [1 + fmean(own["cells"][CELLS[1]]["accepted"][i]) for i in (0, 2)]  # those of code
    assert drawn.points[0].here.value == pytest.approx(fmean(tau))
    (drawn,) = curves(paper, "tasks", [other])  # all prompts where there are none
    assert drawn.points[0].here == (1.0, None, None)


def test_results_of_other_arguments_are_refused(models, tmp_path):
    reproduce(FEW, models, QUESTIONS, settings(tmp_path, seconds=1e-9))
    before = (tmp_path / "results.json").read_bytes()
    for changes, words in (
        ({"seed": 1}, "measured with seed = 0, now it is 1"),
        ({"rounds": 5}, "measured with rounds = 4, now it is 5"),
        ({"prompts": "others"}, "prompts = 'words', now it is 'others'"),
    ):
        with pytest.raises(StoreError, match=words):
            reproduce(FEW, models, QUESTIONS, replace(settings(tmp_path), **changes))
    assert (tmp_path / "results.json").read_bytes() == before


def test_what_cannot_be_built_is_refused_or_named_before_anything_is_measured(models, tmp_path):
    foreign = replace(FEW, measure=("T=1 ar", "T=1 eagle", "T=1 mcsd:tree=2"))
    (document,), _ = reproduce(foreign, models, QUESTIONS, settings(tmp_path, seconds=1e-9))
    assert document["left_out"] == ["eagle"]
    assert set(document["cells"]) == {"T=1 ar", "T=1 mcsd:tree=2"}
    wrong = replace(FEW, measure=("T=1 ar", "T=1 mcsd:tree=2,draw=none"))
    with pytest.raises(MethodError, match="draw"):
        reproduce(wrong, models, QUESTIONS, settings(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("name", "cells", "keys"),
    [
        slow("kangaroo", ("T=0 ar", "T=0 kangaroo:gamma=6,eta=0"), {"costs", "traces"}),
        slow("mcsd_ti", ("T=0 ar", "T=0 mcsd_ti:tree=2-1"), {"moved"}),
        slow("easyspec", ("T=0 ar", "T=0 easyspec:n=4"), {"cosines", "drift"}),
        ("acceptance", (), {"columns"}),
    ],
)
def test_the_command_measures_cells_and_what_is_beside_them(
    call, name, cells, keys, monkeypatch, tmp_path
):
    few = replace(read_paper(name), measure=cells, claims=(), figures={}, trained=None, rounds=4)
    if few.settings:
        settings = {"temperatures": [1.0], "ks": [1, 2], "tokens": 6, "positions": 2}
        few = replace(few, rounds=0, settings=settings)
    monkeypatch.setattr(papers, "read_paper", lambda _: few)
    monkeypatch.setattr("specwb.models.questions.load_prompts", lambda _: load_prompts("lab")[:2])
    monkeypatch.chdir(tmp_path)
    code, out, err = call("reproduce", name, "--out", "r.json")
    assert code == 0, err
    document = json.loads((tmp_path / "r.json").read_text())
    assert keys <= set(document)
    assert document["command"].startswith(f"specwb reproduce {name}")
    assert "kept in r.json" in out
    before = document["cells"]
    assert call("reproduce", name, "--out", "r.json")[0] == 0
    assert json.loads((tmp_path / "r.json").read_text())["cells"] == before
