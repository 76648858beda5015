"""The reproduction of Kangaroo: its tables as data, and the shipped results.

On tiny models results are measured, judged, simulated, saved and continued.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from statistics import geometric_mean

import numpy as np
import pytest
import tiny
from once import QUESTIONS, reproduced

import specwb
from specwb.lab.bench import measure as measuring
from specwb.lab.evaluation import exits
from specwb.lab.studies import trained
from specwb.lab.studies.grid import Cell
from specwb.lab.studies.kangaroo import cells, claims
from specwb.lab.studies.kangaroo import study as made
from specwb.lab.studies.kangaroo.cells import chain, tree
from specwb.lab.studies.kangaroo.study import STUDY
from specwb.lab.studies.run import measure
from specwb.lab.studies.store import Store
from specwb.lab.studies.study import Models
from specwb.training.recipe import KangarooRecipe

pytestmark = pytest.mark.slow

ETA = 0.13
VARIANTS = [
    chain(ETA, variant="exit1"),
    chain(0, variant="exit2"),
    chain(ETA, 6, "entropy", variant="exit1"),
]
CELLS = [
    Cell("ar"),
    *VARIANTS,
    replace(tree(3, 0.05), variant="exit1"),
    chain(ETA, temperature=1.0, variant="exit1"),
    Cell("ar", temperature=1.0),
]


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    for n in (1, 2):
        tiny.head(f"kangaroo{n}").save(folder / f"exit{n}")
    return folder


@pytest.fixture(scope="module", autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cells, "TEXTS", 2)
        patched.setattr(cells, "PLACES", 30)
        patched.setattr(
            cells.passes.exit_cost, "__kwdefaults__", {"depths": (1, 6), "count": 2, "repeats": 1}
        )
        yield


@pytest.fixture(scope="module")
def measured(target, heads, small, tmp_path_factory) -> Store:
    store = Store(tmp_path_factory.mktemp("measured") / "results.json", {"system": "test"})
    assert not measure(STUDY, Models(target, heads=heads), QUESTIONS, store, CELLS, rounds_each=5)
    return store


# -------------------------------------------------------------------------------------- the paper


def test_claims_have_the_numbers_of_the_tables():
    every_claim = claims.claims()
    paper = {c.text: c.paper for c in every_claim}
    assert paper["CR falls with eta, gamma = 6: 0 over 0.9"] == pytest.approx(2.30 / 1.83)
    assert paper["speed peaks at an eta between .3 and .9, gamma = 8: over 0"] == pytest.approx(
        1.49 / 1.11
    )
    assert paper["unscaled over scaled confidence, T = 0.2"] == pytest.approx(1.48 / 1.34)
    text = "speed peaks at an inner exit layer: over 6/12 of the layers (the paper's 16)"
    assert paper[text] == pytest.approx(1.50 / 1.07)
    assert paper["attention alone over layer"] == pytest.approx(1.50 / 1.37)
    assert paper["Kangaroo's chain is faster than Medusa's"] == pytest.approx(1.071, abs=1e-3)
    assert geometric_mean(claims.ratios("SpS", "Kangaroo, chain")) < 1
    assert geometric_mean(claims.ratios("SpS", "Kangaroo, chain", family="Vicuna")) > 1
    assert {c.second.key for c in every_claim if c.even} == {
        "T=0 kangaroo:gamma=8,eta=0.7",
        *(claims.tuned_chain(g, cells.ETAS).key for g in (4, 8)),
    }


def test_every_cell_is_a_method_and_variants_differ_from_the_first_in_one_thing(target):
    for cell in cells.own_cells():
        if cell.kind == "kangaroo":
            assert cell.method(target, tiny.head("kangaroo1")).drafter.exit == 1
    for name, options in cells.VARIANTS.items():
        assert options.count("=") == 1 + (name not in {f"exit{n}" for n in cells.EXITS})
        assert re.match(r"exit=\d/12", options)
        assert trained.in_layers(options, 12) == options.replace("/12", "")
    of_32 = [trained.in_layers(cells.VARIANTS[f"exit{n}"], 32) for n in cells.EXITS]
    assert of_32 == ["exit=0", "exit=3", "exit=5", "exit=8", "exit=11", "exit=16"]
    assert cells.REFERENCE in cells.VARIANTS


# ------------------------------------------------------------------------------------ measurements


def test_records_are_those_of_the_engines_steps(target, heads, measured):
    for cell in CELLS:
        record = measured.cells[cell.key]
        assert [len(record[name]) for name in ("accepted", "drafted", "ms", "mean")] == [3] * 4
        for accepted, drafted in zip(record["accepted"], record["drafted"], strict=True):
            assert all(0 <= a <= n for a, n in zip(accepted, drafted, strict=True))
        assert ("levels" in record) == ("tree=" in cell.spec)
    stopping, fixed = (
        {n for drafted in measured.cells[cell.key]["drafted"] for n in drafted}
        for cell in VARIANTS[:2]
    )
    assert fixed == {6}
    assert len(stopping) > 1, "it stops where the confidence is low"
    r = made.row(measured.document, VARIANTS[0])
    assert r["variant"] == "exit1"
    assert r["tau"] == pytest.approx(1 + sum(r["ctar"]), abs=1e-3)  # theorem 12.3
    assert r["wasted"] == pytest.approx(r["drafted"] - r["accepted"], abs=1e-3)


def test_a_trace_simulates_the_engines_steps(target, heads, measured):
    assert set(measured.document["traces"]) == {"exit1", "exit2"}
    trace = cells.rounds_of(measured.document["traces"]["exit1"])
    assert trace.depth == cells.DEPTH
    for eta, gamma in ((ETA, 6), (0, 4), (0.2, 8)):
        simulated = trace.simulate("top", eta, gamma)
        for text in range(2):
            ids = target.tokenizer(QUESTIONS[text].turns[0])["input_ids"]
            cell = chain(eta, gamma, variant="exit1")
            method = cell.method(target, str(heads / "exit1"))
            steps = [
                int(s.verdict.accepted)
                for s in specwb.rounds(target, [ids], method, max_new_tokens=60, eos=())
            ]
            pairs = zip(simulated.kept, simulated.text, strict=True)
            accepted = [kept for kept, number in pairs if number == text]
            assert accepted == steps[: len(accepted)]
            assert len(accepted) > 3


def test_a_trace_is_rounded_so_that_thresholds_decide_alike():
    sure = np.array([[0.6, 0.5999], [0.6004, 0.3], [0.1, 1.0]], dtype=np.float32)
    trace = exits.Rounds({"top": sure}, np.array([3, 1, 0]), np.array([0, 0, 0]), (1, 2, 3, 4))
    again = cells.rounds_of(json.loads(json.dumps(cells.trace_to_json(trace))))
    assert again.nodes == trace.nodes
    for eta in (0, 0.1, 0.3, 0.599, 0.6, 0.601, 1):
        np.testing.assert_array_equal(again.sure["top"] < eta, sure.astype(float).round(6) < eta)


def test_speedups_are_predicted_from_the_steps_and_their_costs():
    cell = chain(0.6)
    document = {
        "cells": {
            "T=0 ar": {"accepted": [[0, 0, 0]], "mean": [2.0]},
            cell.key: {"accepted": [[6, 1, 0]], "drafted": [[6, 2, 1]], "mean": [3.0]},
        },
        "shapes": {cell.key: {"chain": True}},
        "costs": {
            "": {"plain": 2.0, "shallow": 0.5, "adapter": 0.1, "round": {"1": 2.5, "2": 3.5}}
        },
    }
    (prediction,) = made.predictions(
        document, [cell, Cell("ar"), tree(4, 0.4), chain(0.6, temperature=1.0)]
    )
    assert prediction["measured"] == 1.5 * 2 / 3  # tokens and times of all steps but the first
    assert prediction["predicted"] == 1.5 * 2 / 3
    assert prediction["error"] == 0
    assert prediction["simple"] == pytest.approx(1.5 / (1 + 1.5 * 0.3), abs=1e-4)
    assert prediction["simple_error"] == pytest.approx(1.5 / 1.45 - 1, abs=1e-4)
    document["costs"][""]["round"]["1"] = 4.5
    assert made.predictions(document, [cell])[0]["predicted"] == 1.5 * 2 / 4


def test_measured_costs_and_traces_are_saved_and_printed(
    target, heads, measured, monkeypatch, tmp_path
):
    path = tmp_path / "again.json"
    store = Store(path, {"system": "test"})
    store.document = json.loads(json.dumps(measured.document))
    monkeypatch.setattr(measuring, "_decode", None)
    monkeypatch.setattr(cells.passes, "exit_cost", None)
    monkeypatch.setattr(cells.exits, "every_round", None)
    assert not measure(
        STUDY, Models(target, heads=heads), QUESTIONS, store, CELLS, rounds_each=5
    ), "with the same arguments nothing is left to do"
    cards = {
        name: {"options": "", "parameters": 9, "steps": 1, "rows": 1, "length": 2}
        for name in ("exit1", "exit2")
    }
    study = replace(STUDY, cells=lambda document: [], ablation=lambda: CELLS[:4])
    own = Store(tmp_path / "own.json", {})
    ablation = {**store.document, "heads": cards, "command": "x", "commit": "y"}
    document = study.report(own.document, ablation)
    assert [r["cell"] for r in document["ablation"]["rows"]] == [c.key for c in CELLS[:4]]
    assert [p["cell"] for p in document["ablation"]["predicted"]] == [c.key for c in VARIANTS]
    titles = {title.split(",")[0]: rows for title, rows in study.printed(document)}
    assert len(titles["Predicted steady speedup of chains"]) == 3


def test_interrupted_between_costs(target, heads, measured, monkeypatch, tmp_path):
    store = Store(tmp_path / "part.json", {"system": "test"})
    store.document = json.loads(json.dumps(measured.document))
    del store.document["costs"], store.document["traces"]
    original, calls = exits.every_round, [0]

    def interrupting(*args, **more):
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt
        return original(*args, **more)

    monkeypatch.setattr(cells.exits, "every_round", interrupting)
    assert measure(STUDY, Models(target, heads=heads), QUESTIONS, store, CELLS, rounds_each=5)
    assert set(store.document["traces"]) == {"exit1"}
    assert not measure(STUDY, Models(target, heads=heads), QUESTIONS, store, CELLS, rounds_each=5)
    assert calls[0] == 3
    assert store.document["traces"] == measured.document["traces"]


# ------------------------------------------------------------------------------------ command line


def test_command_line(monkeypatch, capsys, tmp_path):
    lab, adapter = specwb.load("lab", device="cpu"), tmp_path / "adapter"
    recipe = KangarooRecipe(lab, {"exit": 2})
    recipe.save(recipe.make(None, {}), adapter, {"target_sha256": lab.sha256})
    few = [Cell("ar"), Cell("lookahead"), *map(chain, (0, 0.5, 0.6, 0.9)), tree(10, 0.4)]
    run, more = (
        (monkeypatch, capsys, tmp_path, "kangaroo", few),
        ("--set", f"head={adapter},rounds=2"),
    )
    document, out = reproduced(*run, *more)
    assert set(document["arguments"]["heads"]) == set(STUDY.heads)
    assert set(document["costs"]) == set(document["traces"]) == {""}
    assert document["verdicts"]
    for title in ("Main table", "Threshold and steps", "Predicted steady speedup of chains"):
        assert title in out
