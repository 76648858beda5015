"""The reproduction of EasySpec: what its numbers imply, and the command.

On tiny models results are measured, judged, saved and continued.
"""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
import tiny
from once import QUESTIONS, reproduced, words

import specwb
from specwb.lab.bench import measure as measuring
from specwb.lab.studies import verdicts
from specwb.lab.studies.easyspec import cells, claims
from specwb.lab.studies.easyspec import study as made
from specwb.lab.studies.easyspec.cells import Eager, easy, plain
from specwb.lab.studies.easyspec.study import STUDY
from specwb.lab.studies.grid import Cell
from specwb.lab.studies.run import measure
from specwb.lab.studies.store import Store
from specwb.lab.studies.study import Models
from specwb.training.deep import DeepRecipe, save_half

pytestmark = pytest.mark.slow

LAYERS = 6
CELLS = [
    Cell("ar"),
    plain(),
    *(easy(n, 1, on) for n in (1, 4) for on in (True, False)),
    plain(4),
    easy(4, 4),
    easy(4, 4, False),
    easy(groups="0-3"),
    easy(mlp="parallel"),
    easy(execution="simulation"),
    Cell("ar", temperature=0.8),
    easy(temperature=0.8),
    Eager("ar"),
    easy(kind=Eager),
]
CELLS = list(dict.fromkeys(CELLS))


@pytest.fixture(scope="module")
def pair() -> tuple[specwb.Target, specwb.Target]:
    model = tiny.build("llama", seed=2, num_hidden_layers=LAYERS)
    target = specwb.load(model, tokenizer=words())
    return target, specwb.load(tiny.perturbed(model, 0.02))


@pytest.fixture(scope="module", autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {"TEXTS": 2, "PLACES": 12, "DRIFT": 3, "WIDTHS": (1, 4)}.items():
            patched.setattr(cells, name, value)
        patched.setattr(made, "DRIFT", 3)
        for module in (claims, made):
            patched.setattr(module, "WIDTHS", (1, 4))
        patched.setattr(cells.fuzzy.layer_times, "__defaults__", (1, 32, 2))
        patched.setattr(cells.fuzzy.draft_times, "__defaults__", (2,))
        yield


@pytest.fixture(scope="module")
def measured(pair, small, tmp_path_factory) -> Store:
    store = Store(tmp_path_factory.mktemp("measured") / "results.json", {"system": "test"})
    assert not measure(STUDY, Models(*pair), QUESTIONS, store, CELLS, rounds_each=4)
    return store


@pytest.mark.parametrize(("layers", "device"), [(8, "cpu"), (8, "cuda"), (6, "cpu"), (5, "cpu")])
def test_claims_are_about_cells_that_are_measured(layers, device, monkeypatch):
    for module in (cells, claims):
        monkeypatch.setattr(module, "WIDTHS", (1, 4, 8, 12))
    document = {"layers": layers, "kind": device}
    keys, every_claim = {c.key for c in cells.cells(document)}, claims.claims(document)
    assert len(keys) == len(cells.cells(document))
    assert len({(c.text, c.what) for c in every_claim}) == len(every_claim)
    for claim in every_claim:
        assert {c.key for c in claim.cells} <= keys, claim
        assert claim.first != claim.second
        assert claim.table in (claims.STATED, verdicts.LACKING)
    assert {round(c.paper, 9) for c in every_claim if not c.sign} == {1.62, 4.17, 0.93}
    assert [c.paper for c in every_claim if c.headline] == [4.17]


def test_every_cell_is_a_method_of_the_same_draft(pair):
    for cell in cells.all_cells(LAYERS):
        method = cell.method(pair[0], **({} if cell.kind == "ar" else {"draft": pair[1]}))
        depth = 5 if cell.kind == "easyspec" else 0
        assert depth == method.drafter.limits.depth
    groups = {
        name: cell.method(pair[0], draft=pair[1]).drafter.groups.layers
        for name, cell in cells.ends(LAYERS).items()
    }
    assert groups == {
        "first": ((0, 1, 2, 3), (4,), (5,)),
        "last": ((0,), (1, 2, 3), (4, 5)),
        "first and last": ((0, 1, 2, 3), (4, 5)),
    }
    assert Eager("ar").key != Cell("ar").key == easy().plain.key
    assert easy(kind=Eager).plain == Eager("ar")


def test_rows_have_positions_attentions_and_stages(measured):
    r = made.row(measured.document, easy())
    accepted = [a for steps in measured.cells[easy().key]["accepted"] for a in steps]
    assert r["positions"][0] == pytest.approx(fmean(a >= 1 for a in accepted), abs=1e-4)
    reach = np.cumprod([x or 0 for x in r["positions"]])
    assert reach.sum() == pytest.approx(fmean(accepted), abs=1e-3)
    assert r["rounds"] == 4  # 0; 1-3; 4; 5
    assert made.row(measured.document, easy(groups="0-3"))["rounds"] == 3
    assert made.row(measured.document, plain())["stage"] == 1
    base, grouped = (
        fmean(parts[0] for parts in measured.cells[c.key]["parts"]) for c in (plain(4), easy(4, 4))
    )
    stage = made.row(measured.document, easy(4, 4))["stage"]
    assert stage == pytest.approx(base / grouped, rel=1e-3)
    assert made.row(measured.document, Cell("ar"))["stage"] is None


YES, NO = "reproduced", "contradicted"


def test_cosines_are_judged():
    def judge(hidden: tuple[float, ...], q: tuple[float, ...]) -> list[str]:
        cosines = {
            str(n): {
                kind: [1.0, 2 * (q if kind in "qk" else hidden)[i] - 1]
                for kind in cells.fuzzy.KINDS
            }
            for i, n in enumerate((2, 3, 4))
        }
        facts = claims.cosines_judged({"cosines": cosines})
        return [fact["verdict"] for fact in facts]

    assert judge((0.95, 0.9, 0.81), (0.99, 0.98, 0.96)) == [YES, YES, YES]
    assert judge((0.95, 0.9, 0.79), (0.99, 0.98, 0.96)) == [NO, YES, YES]
    assert judge((0.9, 0.95, 0.85), (0.99, 0.98, 0.94)) == [YES, NO, NO]
    assert claims.cosines_judged({}) == []


def test_measurements_beside_the_grid_are_saved_and_printed(pair, measured, monkeypatch, tmp_path):
    store = Store(tmp_path / "again.json", {"system": "test"})
    store.document = json.loads(json.dumps(measured.document))
    monkeypatch.setattr(measuring, "_decode", None)
    for name in ("similarity", "drift", "draft_times", "layer_times"):
        monkeypatch.setattr(cells.fuzzy, name, None)
    assert not measure(STUDY, Models(*pair), QUESTIONS, store, CELLS, rounds_each=4), (
        "with the same arguments nothing is left to do"
    )
    study = replace(STUDY, cells=lambda _: CELLS)
    document = study.report(store.document)
    assert [r["cell"] for r in document["rows"]] == [c.key for c in CELLS]
    assert set(document["cosines"]) == {"2", "3", "4", "5", "consecutive"}
    assert max(x for r in document["drift"]["true"] for x in r["key_error"]) < 1e-5
    assert document["drift"]["false"][2]["key_error"][2] > 1e-2
    titles = {title.split(",")[0]: rows for title, rows in study.printed(document)}
    assert len(titles["Eager steps"]) == len(titles["T = 0.8"]) == 2
    times = document["times"]["1"]
    share = times["attention"] / (times["attention"] + times["mlp"])
    model = next(rows for title, rows in titles.items() if title.startswith("Milliseconds"))[0]
    assert model["share"] == f"{share:.0%}"
    # 4 rounds of attention for 6 layers
    assert model["stage"] == f"{5 / (1 + 4 * (1 - share * 2 / 6)):.2f}x"


def test_interrupted_behind_the_grid(pair, measured, monkeypatch, tmp_path):
    store = Store(tmp_path / "part.json", {"system": "test"})
    store.document = json.loads(json.dumps(measured.document))
    del store.document["drift"], store.document["times"]

    def interrupting(*args, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cells.fuzzy, "layer_times", interrupting)
        assert measure(STUDY, Models(*pair), QUESTIONS, store, CELLS, rounds_each=4)
    assert "times" not in store.document
    assert store.document["drift"].keys() == measured.document["drift"].keys()
    assert not measure(STUDY, Models(*pair), QUESTIONS, store, CELLS, rounds_each=4)
    assert store.document["times"].keys() == measured.document["times"].keys()


def test_command_line(monkeypatch, capsys, tmp_path):
    lab, deep = specwb.load("lab", device="cpu"), tmp_path / "deep"
    save_half(DeepRecipe(lab, {"layers": 6, "hidden": 32}).make(None, {}).net, deep)
    lab.tokenizer.save_pretrained(deep)
    monkeypatch.setattr(cells, "PLACES", 8)
    few = [Cell("ar"), plain(), easy(), easy(4, 1, False)]
    run, more = (
        (monkeypatch, capsys, tmp_path, "easyspec", few),
        ("--draft", deep, "--set", "rounds=2"),
    )
    document, out = reproduced(*run, *more)
    assert (document["layers"], document["kind"]) == (6, "cpu")
    assert document["arguments"]["sha256"] == lab.sha256
    for title in ("N and calibration", "Mean cosine", "Drift", "Drafting alone"):
        assert title in out


def test_a_shallow_draft_model_is_refused(pair, tmp_path):
    shallow = specwb.load(tiny.build("llama", num_hidden_layers=3))
    with pytest.raises(ValueError, match="has 3 layer"):
        measure(
            STUDY, Models(pair[0], shallow), QUESTIONS, Store(tmp_path / "x.json", {}), [easy()]
        )
