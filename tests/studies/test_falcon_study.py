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
from specwb.errors import ArgumentError
from specwb.studies import csgd, falcon, trained
from specwb.studies.claim import again
from specwb.studies.curves import series
from specwb.studies.falcon import STUDY, Cell
from specwb.studies.pictures import draw, picture_of
from specwb.studies.run import measure, shipped
from specwb.studies.store import Store
from specwb.studies.study import Models
from specwb.training.heads import RECIPES
from specwb.training.settings import lab_recipe, parse, read_recipe


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
    # the abstract's range, with the tokens a step of table 3
    least, most = (c for c in claims if c.headline)
    assert (least.paper, most.paper) == (2.91, 3.51)
    assert least.tau == pytest.approx(3.02 + 1, abs=1e-9)
    # Eagle's values of Vicuna 7B have the bonus token already, of other targets they have not
    costs = next(c.costs for c in claims if c.text == "Falcon is faster than Eagle")
    assert costs[0] == pytest.approx((3.34 + 1) / 3.94 / (3.10 / 2.82))
    assert costs[3] == pytest.approx((3.37 + 1) / (2.91 + 1) / (2.97 / 2.85))
    taus = {c.text: c.tau for c in claims}
    assert taus["k = 2 over k = 3: speedup"] == pytest.approx(4.34 / 3.52)
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


def test_csgd_by_budget_differs_in_steps_glancing_and_objective_alone():
    parsed = {
        name: parse("falcon", text, RECIPES["falcon"].options)
        for name, text in csgd.VARIANTS.items()
    }
    assert len(parsed) == 4 * len(csgd.STEPS)
    published = read_recipe("falcon", "falcon").settings
    assert csgd.OBJECTIVES["-paper"].items() <= published.items()
    for name, settings in parsed.items():
        arm, *objective, steps = name.split("-")
        own = {**falcon.FIRST, "warmup": 25, "glance": {"csgd": 0.4, "plain": 0}[arm]}
        assert settings == {**own, **csgd.OBJECTIVES["-paper" if objective else ""]} | {
            "steps": int(steps)
        }


def test_csgd_by_budget_has_means_and_intervals_over_training_runs():
    first, second = csgd.compared(64, "chain of 4")
    runs = {first: [1.0, 1.2, 1.4], second: [0.9, 1.0, 0.8]}
    rows = [
        {"cell": again(cell, run).key, "accepted": value, "tau": 1 + value, "tau_error": None}
        for cell, values in runs.items()
        for run, value in enumerate(values)
    ]
    by_key = {r["cell"]: r for r in rows}
    assert csgd.by_run(by_key, first, "accepted") == runs[first]
    claim, ratio = csgd.claims({})[0], {"ratio": 4 / 3, "low": 1.1, "high": 1.6, "seeds": 3}
    verdicts = [{"claim": claim.text, **ratio}]
    heads = {"csgd-64": {"rows": 2, "length": 5}}
    document = {"rows": [], "ablation": {"rows": rows, "verdicts": verdicts, "heads": heads}}
    (title, lines), *_ = csgd.tables(document, {}, by_key)
    assert title.endswith("chain of 4, T = 0")
    assert lines == [
        {
            "steps": "64",
            "tokens": "640",
            "CSGD": "1.20",
            "no CSGD": "0.90",
            "runs": "3",
            "CSGD over none": "x1.33 (1.10-1.60)",
        }
    ]
    (panel, *_) = [c for c in csgd.FIGURES["budget"].curves(document) if c.name == "CSGD"]
    here = series(panel, document)[1]
    assert here.x == [0.64]
    assert here.y == [pytest.approx(1.2)]
    # Student's of two degrees of freedom: 4.303 x .2 / sqrt(3)
    assert here.high == [pytest.approx(1.2 + 4.3027 * 0.2 / 3**0.5, abs=1e-4)]


def test_a_figure_of_heads_that_were_not_trained_is_refused_in_words():
    for drawn in (draw, picture_of):
        with pytest.raises(ArgumentError, match="--train makes them"):
            drawn(csgd.FIGURES["budget"], {"rows": []})


def test_variants_are_trained_again_with_other_seeds(monkeypatch, tmp_path):
    def train_for(kind, target, folder, budget, *, options, device, seed):
        folder.mkdir(parents=True)
        card = {**dict.fromkeys(trained.CARD_KEYS, 0), "seed": seed}
        (folder / "card.json").write_text(json.dumps(card))

    monkeypatch.setattr("specwb.training.run.train_for", train_for)
    cards = trained.train("falcon", {"a": "", "b": "k=3"}, "lab", tmp_path, runs=2)
    seeds = {name: card["seed"] for name, card in cards.items()}
    assert seeds == {"a": 1, "b": 1, "a@2": 2, "b@2": 2}
    assert cards["b@2"]["options"] == "k=3"
    first, both = STUDY.ablation(), STUDY.trained_cells(2)
    assert both[: len(first)] == first
    assert {cell.variant for cell in both[len(first) :]} == {f"{v}@2" for v in falcon.VARIANTS}


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
    document, out = reproduced(monkeypatch, capsys, tmp_path, "falcon", few, "--rounds", 2)
    ablation = shipped(STUDY, specwb.load("lab", device="cpu"))[1]  # None: of another target
    assert all((f"Table {i}" in out) == (i == 1 or ablation is not None) for i in (1, 4, 5))
    beside = (document.get("ablation") or {"verdicts": []})["verdicts"]
    assert all(v["claim"] in out for v in beside)
