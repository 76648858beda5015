"""The reproduction of EasySpec: what is measured on tiny models, judged, kept, continued; what its
numbers imply."""

from __future__ import annotations

import json
from statistics import fmean

import numpy as np
import pytest
import tiny
from terminal import call

import specwb
from specwb.evaluation.prompts import Question
from specwb.reproduce import easyspec, grid, verdicts
from specwb.reproduce.easyspec import Cell, Eager, StatedClaim, easy, plain
from specwb.reproduce.store import Store
from specwb.reproduce.verdicts import Tuned
from specwb.training.deep import DeepRecipe, save_half

pytestmark = pytest.mark.slow

WORDS = [f"w{i}" for i in range(tiny.VOCABULARY)]
QUESTIONS = [
    Question(i, ("code", "prose")[i % 2], (" ".join(WORDS[3 * i + 1 : 4 * i + 5]),), "text")
    for i in range(3)
]
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
    return specwb.load(model, tokenizer=tiny.tokenizer(WORDS)), specwb.load(
        tiny.perturbed(model, 0.02)
    )


@pytest.fixture(scope="module", autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {"TEXTS": 2, "PLACES": 12, "DRIFT": 3, "WIDTHS": (1, 4)}.items():
            patched.setattr(easyspec, name, value)
        patched.setattr(easyspec.fuzzy.layer_times, "__defaults__", (1, 32, None, 2))
        patched.setattr(easyspec.fuzzy.draft_times, "__defaults__", (2,))
        yield


@pytest.fixture(scope="module")
def measured(pair, small, tmp_path_factory) -> Store:
    store = Store(tmp_path_factory.mktemp("measured") / "found.json", {"system": "test"})
    assert not easyspec.run(pair[0], QUESTIONS, store, CELLS, draft=pair[1], rounds_each=4)
    return store


def test_what_the_papers_numbers_imply_is_computed(monkeypatch):
    wrong, implied = easyspec.sentences(), easyspec.sentences("implications")
    assert (
        "attention to take 70% of a layer's time (32 layers in 10 rounds of attention), where it "
        "has 19%" in wrong[1]
    )  # 2.3 / 3.3; 42 / 218
    assert "were 2.22 (32 layers)" in implied[0]  # 5 * 32 / (32 + 4 * 10)
    assert "may take 0.088 plain steps" in implied[1]  # (6 / 4.17 - 1) / 5
    changed = easyspec.paper()
    changed["constants"]["stage"] = 1.3
    monkeypatch.setattr(easyspec, "paper", lambda: changed)
    assert "take 70%" not in easyspec.sentences()[1]


@pytest.mark.parametrize(("layers", "device"), [(8, "cpu"), (8, "cuda"), (6, "cpu"), (5, "cpu")])
def test_claims_are_about_cells_that_are_measured(layers, device, monkeypatch):
    monkeypatch.setattr(easyspec, "WIDTHS", (1, 4, 8, 12))
    keys, claims = {c.key for c in easyspec.cells(layers, device)}, easyspec.claims(layers, device)
    assert len(keys) == len(easyspec.cells(layers, device))
    assert len({(c.text, c.what) for c in claims}) == len(claims)
    for claim in claims:
        sides = [claim.first, claim.second, *(claim.over or ())]
        assert {
            c.key for side in sides for c in (side.settings if isinstance(side, Tuned) else [side])
        } <= keys, claim
        assert claim.first != claim.second
        assert claim.table in (easyspec.STATED, easyspec.LACKING)
    assert {round(c.paper, 9) for c in claims if not c.sign} == {1.62, 4.17, 0.93}


def test_every_cell_is_a_method_of_the_same_draft(pair):
    for cell in easyspec.cells(LAYERS):
        made = cell.method(pair[0], **({} if cell.kind == "ar" else {"draft": pair[1]}))
        depth = 5 if cell.kind == "easyspec" else 0
        assert depth == made.drafter.limits.depth
    groups = {
        name: cell.method(pair[0], draft=pair[1]).drafter.groups.layers
        for name, cell in easyspec.ends(LAYERS).items()
    }
    assert groups == {
        "first": ((0, 1, 2, 3), (4,), (5,)),
        "last": ((0,), (1, 2, 3), (4, 5)),
        "first and last": ((0, 1, 2, 3), (4, 5)),
    }
    assert Eager("ar").key != Cell("ar").key == easy().plain.key
    assert easy(kind=Eager).plain == Eager("ar")


def test_what_is_kept_is_what_the_engine_decodes(pair, measured):
    target, draft = pair
    for cell in CELLS:
        have = measured.cells[cell.key]
        assert [len(have[name]) for name in ("accepted", "drafted", "mean", "parts")] == [3] * 4
    text = target.tokenizer(QUESTIONS[0].turns[0])["input_ids"]
    for cell in (easy(), easy(4, 4)):
        steps = specwb.rounds(
            target, [text], cell.method(target, draft=draft), max_new_tokens=24, eos=()
        )
        assert [int(next(iter(steps)).verdict.accepted) for _ in range(4)] == measured.cells[
            cell.key
        ]["accepted"][0]
    kept = {cell: measured.cells[cell.key]["accepted"] for cell in CELLS}
    assert kept[plain()] == kept[easy(1)], "with one layer a group calibration changes nothing"
    assert kept[easy()] == kept[easy(execution="simulation")] == kept[easy(kind=Eager)]
    assert kept[easy()] != kept[easy(4, 1, False)]


def test_rows_have_positions_attentions_and_stages(measured):
    r = easyspec.row(measured.document, easy())
    kept = [a for one in measured.cells[easy().key]["accepted"] for a in one]
    assert r["positions"][0] == pytest.approx(fmean(a >= 1 for a in kept), abs=1e-4)
    survived = np.cumprod([x or 0 for x in r["positions"]])
    assert survived.sum() == pytest.approx(fmean(kept), abs=1e-3)
    assert r["rounds"] == 4  # 0; 1-3; 4; 5
    assert easyspec.row(measured.document, easy(groups="0-3"))["rounds"] == 3
    assert easyspec.row(measured.document, plain())["stage"] == 1
    times = [
        fmean(parts[0] for parts in measured.cells[c.key]["parts"]) for c in (plain(4), easy(4, 4))
    ]
    assert easyspec.row(measured.document, easy(4, 4))["stage"] == pytest.approx(
        times[0] / times[1], rel=1e-3
    )
    assert easyspec.row(measured.document, Cell("ar"))["stage"] is None


def document(of: dict[Cell, list[float]]) -> dict:
    return {
        "cells": {c.key: {"accepted": [[x] for x in xs]} for c, xs in of.items()},
        "domains": ["code"] * len(next(iter(of.values()))),
    }


def test_statements_are_judged_by_their_own_terms():
    noise = np.random.default_rng(0).uniform(0.9, 1.1, 48)

    def found(
        first: float,
        second: float = 1.0,
        over: tuple[float, float] | None = None,
        n: int = 48,
        **more,
    ) -> dict:
        of = {
            easy(): first,
            plain(): second,
            **dict(zip((easy(2), easy(1)), over or (), strict=False)),
        }
        claim = StatedClaim(
            "x",
            easyspec.STATED,
            "accepted",
            easy(),
            plain(),
            more.pop("paper", 1.0),
            over=(easy(2), easy(1)) if over else None,
            **more,
        )
        return easyspec.judge_claim(
            document({c: (x * noise[:n]).tolist() for c, x in of.items()}), claim
        )

    assert found(1.01, sign=True)["verdict"] == "reproduced"
    assert found(1.01, sign=True)["paper"] is None
    assert found(0.99, sign=True)["verdict"] == "not reproduced"
    bound = {"least": 0.93, "paper": 0.93}
    assert [found(x, **bound)["verdict"] for x in (0.94, 1.2, 0.92)] == [
        "reproduced",
        "reproduced",
        "not reproduced",
    ]
    assert found(0.94, **bound)["paper"] == 0.93
    assert found(1.1, paper=1.62)["verdict"] == "not reproduced", "half the effect at least"
    assert found(1.3, paper=1.62)["verdict"] == "reproduced"
    double = found(0.9, 1.0, (0.8, 1.0), sign=True)
    assert (double["verdict"], double["ratio"]) == ("reproduced", pytest.approx(9 / 8))
    assert found(0.8, 1.0, (0.9, 1.0), sign=True)["verdict"] == "not reproduced"
    assert found(0.9, 1.0, (0.8, 1.0), n=47, sign=True)["verdict"] == "not comparable"
    assert found(0.9, 1.0, (0.8, 0.0), sign=True)["ratio"] == 0
    assert found(0.9, 1.0, (0.0, 1.0), sign=True)["ratio"] is None
    assert (
        easyspec.judge_claim(
            document({easy(): [1.0], plain(): [1.0]}),
            StatedClaim("x", easyspec.STATED, "accepted", easy(), plain(), 1.0),
        )
        is None
    )


def test_cosines_are_judged():
    def found(hidden: tuple[float, ...], q: tuple[float, ...]) -> list[str]:
        made = {
            str(n): {
                kind: [1.0, 2 * (q if kind in "qk" else hidden)[i] - 1]
                for kind in easyspec.fuzzy.KINDS
            }
            for i, n in enumerate((2, 3, 4))
        }
        return [
            one["verdict"].removesuffix("reproduced") for one in easyspec.facts({"cosines": made})
        ]

    assert found((0.95, 0.9, 0.81), (0.99, 0.98, 0.96)) == ["", "", ""]
    assert found((0.95, 0.9, 0.79), (0.99, 0.98, 0.96)) == ["not ", "", ""]
    assert found((0.9, 0.95, 0.85), (0.99, 0.98, 0.94)) == ["", "not ", "not "]
    assert easyspec.facts({}) == []


def test_the_rest_is_measured_kept_and_shown(pair, measured, monkeypatch, tmp_path):
    store = Store(tmp_path / "again.json", {"system": "test"})
    store.document = json.loads(json.dumps(measured.document))
    monkeypatch.setattr(grid, "measure", None)
    for name in ("similarity", "drift", "draft_times", "layer_times"):
        monkeypatch.setattr(easyspec.fuzzy, name, None)
    assert not easyspec.run(pair[0], QUESTIONS, store, CELLS, draft=pair[1], rounds_each=4), (
        "with the same arguments nothing is left to do"
    )
    monkeypatch.setattr(easyspec, "cells", lambda layers, device: CELLS)
    found = easyspec.report(store)
    assert [r["cell"] for r in found["rows"]] == [c.key for c in CELLS]
    assert set(found["cosines"]) == {"2", "3", "4", "5", "consecutive"}
    assert (
        max(x for r in found["drift"]["true"] for x in r["key_error"])
        < 1e-5
        < 1e-2
        < found["drift"]["false"][2]["key_error"][2]
    )
    titles = {title.split(",")[0]: rows for title, rows in easyspec.tables(found)}
    assert len(titles["Eager rounds"]) == len(titles["T = 0.8"]) == 2
    assert [row["setting"] for row in titles["Widths"]] == [
        c.spec.removeprefix("easyspec:") for c in CELLS if "width" in c.spec
    ]
    assert [row["N"] for row in titles["Mean cosine (of the lowest layer)"]] == ["2", "3", "4", "5"]
    assert len(titles["Drift: relative error of the draft's keys and values"]) == 3
    assert titles["Drafting alone"][0]["eager"].endswith("1.00x")
    times = found["times"]["1"]
    share = times["attention"] / (times["attention"] + times["mlp"])
    model = next(rows for title, rows in titles.items() if title.startswith("Milliseconds"))[0]
    assert model["share"] == f"{share:.0%}"
    assert (
        model["stage"] == f"{5 / (1 + 4 * (1 - share * 2 / 6)):.2f}x"
    )  # 4 rounds of attention for 6 layers
    notes = "\n".join(easyspec.notes(found))
    sentences = (*easyspec.sentences(), *easyspec.sentences("implications"))
    assert all(text in notes for text in (verdicts.RULE, easyspec.OURS, *sentences))
    assert all(v["claim"] in notes for v in (*found["verdicts"], *found["facts"]))
    assert found["verdicts"]


def test_interrupted_behind_the_grid(pair, measured, monkeypatch, tmp_path):
    store = Store(tmp_path / "part.json", {"system": "test"})
    store.document = {
        name: value
        for name, value in json.loads(json.dumps(measured.document)).items()
        if name not in ("drift", "times")
    }

    def breaks(*args, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(easyspec.fuzzy, "layer_times", breaks)
        assert easyspec.run(pair[0], QUESTIONS, store, CELLS, draft=pair[1], rounds_each=4)
    assert "times" not in store.document
    assert store.document["drift"].keys() == measured.document["drift"].keys()
    assert not easyspec.run(pair[0], QUESTIONS, store, CELLS, draft=pair[1], rounds_each=4)
    assert store.document["times"].keys() == measured.document["times"].keys()


def test_command_line(monkeypatch, capsys, tmp_path):
    lab = specwb.load("lab", device="cpu")
    save_half(DeepRecipe(lab, {"layers": 6, "hidden": 32}).make(None, {}).net, tmp_path / "deep")
    lab.tokenizer.save_pretrained(tmp_path / "deep")
    few = [Cell("ar"), plain(), easy(), easy(4, 1, False)]
    monkeypatch.setattr(easyspec, "cells", lambda layers, device: few)
    monkeypatch.setattr(easyspec, "PLACES", 8)
    path = tmp_path / "found.json"
    options = [
        "reproduce",
        "easyspec",
        "--out",
        str(path),
        "--draft",
        str(tmp_path / "deep"),
        "--seconds",
        "0",
        "--rounds",
        "2",
    ]
    code, out, err = call(monkeypatch, capsys, *options)
    assert code == 0, err
    found = json.loads(path.read_text())
    assert set(found["cells"]) == {c.key for c in few}
    assert (found["layers"], found["kind"], found["arguments"]["sha256"]) == (6, "cpu", lab.sha256)
    assert all(
        title in out
        for title in (
            "N and calibration",
            "Mean cosine",
            "Drift",
            "Drafting alone",
            "In the paper: ",
        )
    )
    assert all(v["claim"] in out for v in found["verdicts"])
    monkeypatch.setattr(grid, "measure", None)  # with the same arguments nothing is left to do
    assert call(monkeypatch, capsys, *options)[0] == 0


def test_refused_before_work(pair, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for options in (("--rounds", "1"), ("--draft", str(tmp_path / "nothing"))):
        code, out, err = call(monkeypatch, capsys, "reproduce", "easyspec", *options)
        assert (code, out) == (2, ""), options
        assert len(err.strip().splitlines()) <= 3
    shallow = specwb.load(tiny.build("llama", num_hidden_layers=3))
    with pytest.raises(ValueError, match="has 3 layer"):
        easyspec.run(pair[0], QUESTIONS, Store(tmp_path / "x.json", {}), [easy()], draft=shallow)
