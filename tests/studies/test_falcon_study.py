"""The reproduction of Falcon: its tables as data, and the shipped results.

On tiny models results are measured, judged, saved and continued.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tiny
from once import QUESTIONS, reproduced

import specwb
from specwb.lab.studies import falcon, trained
from specwb.lab.studies.falcon import STUDY, Cell
from specwb.lab.studies.run import measure, shipped
from specwb.lab.studies.store import Store
from specwb.lab.studies.study import Models
from specwb.training.fit import TrainingError
from specwb.training.heads import RECIPES
from specwb.training.settings import lab_recipe, parse


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    for name, kind in (("csgd", "falcon"), ("k3", "falcon3"), ("eagle", "eagle")):
        tiny.head(kind).save(folder / name)
    return folder


def test_claims_have_the_numbers_of_the_tables():
    claims = falcon.claims()
    paper = {c.text: c.paper for c in claims}
    assert paper["CSGD, with the tree: accepted"] == pytest.approx(3.34 / 2.78)
    assert paper["k = 3 over k = 4: speedup"] == pytest.approx(2.96 / 2.86)
    # falcon.md: mean 1.074 of 12 ratios
    assert paper["Falcon is faster than Eagle"] == pytest.approx(1.07, abs=0.01)
    # the abstract's range
    least, most = (c for c in claims if c.headline)
    assert (least.paper, most.paper) == (2.91, 3.51)
    # equal heads are compared where only the tree differs
    assert not next(c for c in claims if c.text == "the tree, with CSGD: accepted").trained
    assert next(c for c in claims if c.text == "CSGD, with the tree: accepted").trained


def test_variants_differ_from_the_first_in_what_is_said_and_no_two_are_equal():
    """Whatever the lab's own recipe has: its fusion once made two variants the same head."""
    own = lab_recipe()["heads"]["falcon"]
    options = RECIPES["falcon"].options
    heads = {
        name: {**own, **parse("falcon", text, options)} for name, text in falcon.VARIANTS.items()
    }
    first = heads["csgd"]
    published = {"k": 2, "layers": 2, "fusion": "lstm", "glance": 0.4}
    assert {key: first[key] for key in published} == published
    for name, settings in heads.items():
        differs = {key for key in settings if settings[key] != first[key]}
        assert differs == set(falcon.CHANGES[name])
        assert len(differs) == {"csgd": 0, "small": 2, "one": 4}.get(name, 1)
    assert len({tuple(sorted(settings.items())) for settings in heads.values()}) == len(heads)


def test_variants_are_trained_again_with_other_seeds(monkeypatch, tmp_path):
    def train_head(kind, target, out, settings, data, mixture, *, seed, note):
        out.mkdir(parents=True)
        card = {**dict.fromkeys(trained.CARD_KEYS, 0), "seed": seed, "rows": settings}
        (out / "card.json").write_text(json.dumps(card))

    monkeypatch.setattr("specwb.training.reading.training_text", lambda *_: (None, {}))
    monkeypatch.setattr("specwb.training.run.train_head", train_head)
    variants = {"a": "", "b": "k=3", "c": "steps=2"}
    cards = trained.train("falcon", variants, "lab", tmp_path, runs=2)
    seeds = {name: card["seed"] for name, card in cards.items()}
    assert seeds == {"a": 1, "b": 1, "c": 1, "a@2": 2, "b@2": 2, "c@2": 2}
    assert cards["b@2"]["options"] == "k=3"
    assert cards["b@2"]["rows"] == {**cards["a@2"]["rows"], "k": 3}
    first, both = STUDY.ablation(), STUDY.trained_cells(2)
    assert both[: len(first)] == first
    assert {cell.variant for cell in both[len(first) :]} == {f"{v}@2" for v in falcon.VARIANTS}


def test_a_setting_that_cannot_be_is_refused_before_any_text_is_read(monkeypatch, tmp_path):
    def read(*_):
        raise AssertionError("read")

    monkeypatch.setattr("specwb.training.reading.training_text", read)
    with pytest.raises(TrainingError, match="exit must be a layer with one behind it"):
        trained.train("kangaroo", {"a": "", "b": "steps=500,exit=50"}, "lab", tmp_path)


def test_results_are_measured_judged_and_printed(target, heads, tmp_path):
    cells = [
        Cell("ar"),
        Cell(f"falcon:{falcon.CHAIN4}", "csgd"),
        Cell("falcon:tree=2-1-1", "k3"),
        Cell(f"eagle:{falcon.CHAIN4}", "eagle"),
    ]
    store = Store(tmp_path / "part.json", {"system": "test"})
    assert not measure(STUDY, Models(target, heads=heads), QUESTIONS, store, cells, rounds_each=4)
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
    study = replace(STUDY, cells=lambda document: [], ablation=lambda: cells)
    cards = {"csgd": {"steps": 1, "rows": 1, "length": 2}}
    ablation = {**store.document, "heads": cards, "command": "x", "commit": "y"}
    report = study.report(Store(tmp_path / "own.json", {}).document, ablation)
    assert [r["cell"] for r in report["ablation"]["rows"]] == [cell.key for cell in cells]
    assert any("heads of the ablation" in title for title, _ in study.printed(report))
    assert any("1 heads, 1 steps of 1 x 2 tokens" in line for line in study.summary(report))


@pytest.mark.slow
def test_command_line(monkeypatch, capsys, tmp_path):
    few = [Cell("ar"), *map(Cell, falcon.SPECS.values())]
    document, out = reproduced(monkeypatch, capsys, tmp_path, "falcon", few, "--set", "rounds=2")
    ablation = shipped(STUDY, specwb.load("lab", device="cpu"))[1]  # None: of another target
    assert all((f"Table {i}" in out) == (i == 1 or ablation is not None) for i in (1, 4, 5))
    beside = (document.get("ablation") or {"verdicts": []})["verdicts"]
    assert all(v["claim"] in out for v in beside)
