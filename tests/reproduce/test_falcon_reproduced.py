"""The reproduction of Falcon: its tables as data, and the shipped results.

On tiny models results are measured, judged, saved and continued.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import tiny
from terminal import call

import specwb
from specwb.evaluation.prompts import Question, load_prompts
from specwb.models.load import data_dir
from specwb.reproduce import falcon, grid, trained, verdicts
from specwb.reproduce.falcon import Cell
from specwb.reproduce.store import Store
from specwb.reproduce.verdicts import Claim

WORDS = [f"w{i}" for i in range(tiny.VOCABULARY)]
QUESTIONS = [
    Question(i, ("code", "prose")[i % 2], (" ".join(WORDS[3 * i + 1 : 4 * i + 5]),), "text")
    for i in range(4)
]


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    for name, kind in (("csgd", "falcon"), ("k3", "falcon3"), ("eagle", "eagle")):
        tiny.head(kind).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.target().model, tokenizer=tiny.tokenizer(WORDS))


def test_the_papers_tables_keep_their_own_identity():
    """alpha is accepted / generated, so accepted / (accepted + 1).

    It is so in every row but the three that count the bonus token.
    """
    tables = falcon.paper()["tables"]
    alpha = {(r["target"], r["method"]): r for r in tables["2"]["rows"]}
    for r in tables["3"]["rows"]:
        for task in ("MT-Bench", "HumanEval", "GSM8K"):
            stated = alpha[r["target"], r["method"]][task]
            counts_bonus = (r["target"], r["method"]) == ("Vicuna 7B", "Eagle")
            accepted = r[task] - counts_bonus
            assert abs(100 * accepted / (accepted + 1) - stated) < 2.5
            assert not counts_bonus or abs(100 * r[task] / (r[task] + 1) - stated) > 4
    for r in (*tables["4"]["rows"], *tables["5"]["rows"]):
        assert abs(100 * r["accepted"] / (r["accepted"] + 1) - r["alpha"]) < 1.6
    assert len(tables["1"]["rows"]) == 20


def test_claims_are_about_cells_that_are_measured_and_numbers_of_the_tables():
    own, ablation = (
        {c.key for c in cells} for cells in (falcon.own_cells(), falcon.ablation_cells())
    )
    assert len(own) == len(falcon.own_cells())
    assert len(ablation) == len(falcon.ablation_cells())
    claims = falcon.claims()
    assert len({(c.text, c.what) for c in claims}) == len(claims)
    for claim in claims:
        assert {claim.first.key, claim.second.key} <= (ablation if claim.ablation else own), claim
        assert (claim.paper is None) == (claim.table == "not in the paper")
        assert claim.first != claim.second
    paper = {c.text: c.paper for c in claims}
    assert paper["CSGD, with the tree: accepted"] == pytest.approx(3.34 / 2.78)
    assert paper["k = 3 over k = 4: speedup"] == pytest.approx(2.96 / 2.86)
    # falcon.md: mean 1.074 of 12 ratios
    assert paper["Falcon is faster than Eagle"] == pytest.approx(1.07, abs=0.01)


def test_variants_differ_from_the_first_in_one_thing():
    for name, options in falcon.VARIANTS.items():
        assert options.count("=") == {"csgd": 0, "small": 2, "one": 4}.get(name, 1)


def document(a: list[float], b: list[float]) -> dict:
    """Cells with one step a prompt that accepts so many tokens."""
    cells = {Cell("falcon").key: a, Cell("eagle").key: b, Cell("ar").key: [0] * len(a)}
    return {
        "cells": {
            key: {"accepted": [[x] for x in accepted], "ms": [1.0] * len(accepted)}
            for key, accepted in cells.items()
        },
        "domains": [("code", "math", "prose")[i % 3] for i in range(len(a))],
    }


def judge(document: dict, claim: Claim) -> dict | None:
    return verdicts.judge(document, claim, falcon.values)


def test_verdicts_by_hand():
    claim = Claim("x", "table 1", "accepted", Cell("falcon"), Cell("eagle"), 1.44)
    noise = np.random.default_rng(0).uniform(-0.2, 0.2, 48)

    def verdict(
        factor: float, n: int = 48, paper: float | None = 1.44, spread: float = 1.0
    ) -> dict:
        b = 2 + noise[:n]
        return judge(
            document(list(b * factor + spread * noise[:n][::-1]), list(b)),
            replace(claim, paper=paper),
        )

    assert verdict(1.25)["verdict"] == "reproduced"
    assert verdict(1.1)["verdict"] == "not reproduced"  # clear, but less than half of the effect
    assert verdict(0.8)["verdict"] == "not reproduced"
    assert verdict(1.25, spread=40)["verdict"] == "not reproduced"  # not clear
    assert falcon.judge is verdicts.judge
    slightly_larger = document([1.1 * x for x in 2 + noise], list(2 + noise))
    assert judge(slightly_larger, replace(claim, sign=True))["verdict"] == "reproduced"
    assert verdict(1.25, n=47)["verdict"] == "not comparable"
    assert verdict(1.25, paper=None)["verdict"] == "not comparable"
    clear = verdict(1.25)
    assert clear["low"] < clear["ratio"] < clear["high"]
    assert clear["ratio"] == pytest.approx(1.25, abs=0.02)
    assert set(clear["by_domain"]) == {"code", "math", "prose"}
    assert judge(document([1.0], [1.0]), claim) is None
    # tokens a step count the bonus token
    tau = judge(document([2.0] * 48, [1.0] * 48), replace(claim, what="tau"))
    assert tau["ratio"] == pytest.approx(1.5)


def test_the_interval_covers_the_ratio_95_times_in_100():
    rng, hits = np.random.default_rng(1), 0
    for i in range(200):
        b = rng.exponential(2, 60) + 1
        _, low, high = verdicts.bootstrap(np.stack([1.3 * b + rng.normal(0, 0.5, 60), b]), 400, i)
        hits += low <= 1.3 <= high
    assert 178 <= hits <= 199


def test_results_are_measured_judged_printed_and_continued(target, heads, tmp_path, monkeypatch):
    cells = [
        Cell("ar"),
        Cell(f"falcon:{falcon.CHAIN4}", "csgd"),
        Cell("falcon:tree=2-1-1", "k3"),
        Cell(f"eagle:{falcon.CHAIN4}", "eagle"),
    ]
    store = Store(tmp_path / "part.json", {"system": "test"})
    original, calls = grid.measure, [0]

    def interrupting(*args):
        calls[0] += 1
        if calls[0] == 2 * len(cells) + 2:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(grid, "measure", interrupting)
    assert falcon.run(target, QUESTIONS, store, cells, heads=heads, rounds_each=4)
    store.save(final=True)
    store = Store(tmp_path / "part.json", {"system": "test"})
    assert not falcon.run(target, QUESTIONS, store, cells, heads=heads, rounds_each=4)
    assert calls[0] == (1 + len(QUESTIONS)) * len(cells) + 1, (
        "what was measured once is not measured again"
    )
    complete = Store(tmp_path / "complete.json", {"system": "test"})
    monkeypatch.setattr(grid, "measure", original)
    falcon.run(target, QUESTIONS, complete, cells, heads=heads, rounds_each=4)
    for key, cell in complete.cells.items():
        assert store.cells[key]["accepted"] == cell["accepted"]
    row = falcon.row(store.document, cells[1])
    accepted = [a for steps in store.cells[cells[1].key]["accepted"] for a in steps]
    # alpha = accepted / generated tokens, the bonus tokens counted
    generated = sum(accepted) + len(accepted)
    assert row["alpha"] == pytest.approx(sum(accepted) / generated, abs=1e-4)
    assert row["alpha"] == pytest.approx(row["accepted"] / (row["accepted"] + 1), abs=1e-4)
    assert row["accepted"] == pytest.approx(sum(accepted) / len(accepted), abs=1e-4)
    assert (row["nodes"], row["depth"], row["passes"]) == (5, 4, 2)
    assert falcon.row(store.document, cells[2])["passes"] == 1
    assert falcon.row(store.document, cells[3])["passes"] == 4
    assert set(row["by_domain"]) == {"code", "prose"}
    monkeypatch.setattr(falcon, "own_cells", lambda: [])
    report = falcon.report(
        Store(tmp_path / "own.json", {}),
        {**store.document, "heads": {"csgd": {"steps": 1, "rows": 1, "length": 2}}, "command": "x"},
    )
    assert any("heads of the ablation" in title for title, _ in falcon.tables(report))
    assert falcon.notes(report)


def test_bad_settings_are_refused_before_work(target, monkeypatch, capsys, tmp_path):
    with pytest.raises(ValueError, match="has no medusa and no eagle and no falcon of its own"):
        trained.checksums(target, falcon.HEADS)
    monkeypatch.chdir(tmp_path)
    code, out, err = call(monkeypatch, capsys, "reproduce", "falcon", "--rounds", "1")
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) <= 3


@pytest.mark.slow
def test_the_shipped_results_are_those_of_the_shipped_family():
    lab = specwb.load("lab", device="cpu")
    ablation = trained.shipped(falcon.SHIPPED, lab)
    assert ablation is not None, "the ablation was measured on another target"
    assert set(ablation["heads"]) == set(falcon.VARIANTS)
    assert {c.key for c in falcon.ablation_cells()} <= set(ablation["cells"])
    questions = load_prompts("lab")
    assert len(questions) >= verdicts.ENOUGH
    assert all(len(cell["ms"]) == len(questions) for cell in ablation["cells"].values())
    steps = {(head["steps"], head["rows"], head["length"]) for head in ablation["heads"].values()}
    assert len(steps) == 1, "all variants at the same budget"
    assert ablation["commit"]
    assert ablation["command"].startswith("specwb reproduce falcon --train")
    own = json.loads((data_dir() / "results/falcon-lab-cpu.json").read_text())
    assert {c.key for c in falcon.own_cells()} <= set(own["cells"])
    assert own["arguments"]["heads"] == {
        kind: specwb.files.weights_hash(lab.own_head(kind)) for kind in falcon.HEADS
    }
    # the verdicts that are printed follow from the measurements
    again = {
        v["claim"] + v["of"]: v["verdict"]
        for c in falcon.claims()
        if c.ablation and (v := judge(ablation, c))
    }
    assert again == {v["claim"] + v["of"]: v["verdict"] for v in own["ablation"]["verdicts"]}


def test_command_line_on_the_shipped_family(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(falcon, "own_cells", lambda: [Cell("ar"), Cell("eagle"), Cell("falcon")])
    path = tmp_path / "falcon.json"
    options = ["reproduce", "falcon", "--out", str(path), "--seconds", "0", "--rounds", "2"]
    code, out, err = call(monkeypatch, capsys, *options)
    assert code == 0, err
    document = json.loads(path.read_text())
    assert all(f"Table {i}" in out for i in (1, 4, 5))
    assert "[csgd]" in out.replace("\n", "")
    assert all(
        v["claim"] in out for v in [*document["verdicts"], *document["ablation"]["verdicts"]]
    )
    monkeypatch.setattr(grid, "measure", None)  # with the same arguments nothing is left to do
    assert call(monkeypatch, capsys, *options)[0] == 0
