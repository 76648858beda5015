"""The reproduction of EasySpec: what its numbers imply, and the command.

On tiny models results are measured, judged, saved and continued.
"""

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
    target = specwb.load(model, tokenizer=tiny.tokenizer(WORDS))
    return target, specwb.load(tiny.perturbed(model, 0.02))


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
    store = Store(tmp_path_factory.mktemp("measured") / "results.json", {"system": "test"})
    assert not easyspec.run(pair[0], QUESTIONS, store, CELLS, draft=pair[1], rounds_each=4)
    return store


def test_implications_of_the_papers_numbers_are_computed(monkeypatch):
    contradictions, implications = easyspec.sentences(), easyspec.sentences("implications")
    share = "attention to take 70% of a layer's time"  # 2.3 / 3.3
    weights = "where it has 19%"  # 42 / 218
    text = f"{share} (32 layers in 10 rounds of attention), {weights}"
    assert text in contradictions[1]
    assert "were 2.22 (32 layers)" in implications[0]  # 5 * 32 / (32 + 4 * 10)
    assert "may take 0.088 plain steps" in implications[1]  # (6 / 4.17 - 1) / 5
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
        for side in (claim.first, claim.second, *(claim.over or ())):
            compared = side.settings if isinstance(side, Tuned) else [side]
            assert {c.key for c in compared} <= keys, claim
        assert claim.first != claim.second
        assert claim.table in (easyspec.STATED, easyspec.LACKING)
    assert {round(c.paper, 9) for c in claims if not c.sign} == {1.62, 4.17, 0.93}


def test_every_cell_is_a_method_of_the_same_draft(pair):
    for cell in easyspec.cells(LAYERS):
        method = cell.method(pair[0], **({} if cell.kind == "ar" else {"draft": pair[1]}))
        depth = 5 if cell.kind == "easyspec" else 0
        assert depth == method.drafter.limits.depth
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


def test_records_are_those_of_the_engines_steps(pair, measured):
    target, draft = pair
    for cell in CELLS:
        record = measured.cells[cell.key]
        assert [len(record[name]) for name in ("accepted", "drafted", "mean", "parts")] == [3] * 4
    text = target.tokenizer(QUESTIONS[0].turns[0])["input_ids"]
    for cell in (easy(), easy(4, 4)):
        steps = specwb.rounds(
            target, [text], cell.method(target, draft=draft), max_new_tokens=24, eos=()
        )
        lengths = [int(next(iter(steps)).verdict.accepted) for _ in range(4)]
        assert lengths == measured.cells[cell.key]["accepted"][0]
    accepted = {cell: measured.cells[cell.key]["accepted"] for cell in CELLS}
    assert accepted[plain()] == accepted[easy(1)], "one layer a group needs no calibration"
    assert accepted[easy()] == accepted[easy(execution="simulation")]
    assert accepted[easy()] == accepted[easy(kind=Eager)]
    assert accepted[easy()] != accepted[easy(4, 1, False)]


def test_rows_have_positions_attentions_and_stages(measured):
    r = easyspec.row(measured.document, easy())
    accepted = [a for steps in measured.cells[easy().key]["accepted"] for a in steps]
    assert r["positions"][0] == pytest.approx(fmean(a >= 1 for a in accepted), abs=1e-4)
    reach = np.cumprod([x or 0 for x in r["positions"]])
    assert reach.sum() == pytest.approx(fmean(accepted), abs=1e-3)
    assert r["rounds"] == 4  # 0; 1-3; 4; 5
    assert easyspec.row(measured.document, easy(groups="0-3"))["rounds"] == 3
    assert easyspec.row(measured.document, plain())["stage"] == 1
    base, grouped = (
        fmean(parts[0] for parts in measured.cells[c.key]["parts"]) for c in (plain(4), easy(4, 4))
    )
    stage = easyspec.row(measured.document, easy(4, 4))["stage"]
    assert stage == pytest.approx(base / grouped, rel=1e-3)
    assert easyspec.row(measured.document, Cell("ar"))["stage"] is None


def document(accepted: dict[Cell, list[float]]) -> dict:
    """Cells with one step a prompt that accepts so many tokens."""
    return {
        "cells": {c.key: {"accepted": [[x] for x in xs]} for c, xs in accepted.items()},
        "domains": ["code"] * len(next(iter(accepted.values()))),
    }


def test_statements_are_judged_by_their_own_terms():
    noise = np.random.default_rng(0).uniform(0.9, 1.1, 48)

    def judge(
        first: float,
        second: float = 1.0,
        over: tuple[float, float] | None = None,
        n: int = 48,
        **more,
    ) -> dict:
        factors = {
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
        accepted = {c: (x * noise[:n]).tolist() for c, x in factors.items()}
        return easyspec.judge_claim(document(accepted), claim)

    assert judge(1.01, sign=True)["verdict"] == "reproduced"
    assert judge(1.01, sign=True)["paper"] is None
    assert judge(0.99, sign=True)["verdict"] == "not reproduced"
    bound = {"least": 0.93, "paper": 0.93}
    assert [judge(x, **bound)["verdict"] for x in (0.94, 1.2, 0.92)] == [
        "reproduced",
        "reproduced",
        "not reproduced",
    ]
    assert judge(0.94, **bound)["paper"] == 0.93
    assert judge(1.1, paper=1.62)["verdict"] == "not reproduced", "half the effect at least"
    assert judge(1.3, paper=1.62)["verdict"] == "reproduced"
    double = judge(0.9, 1.0, (0.8, 1.0), sign=True)
    assert (double["verdict"], double["ratio"]) == ("reproduced", pytest.approx(9 / 8))
    assert judge(0.8, 1.0, (0.9, 1.0), sign=True)["verdict"] == "not reproduced"
    assert judge(0.9, 1.0, (0.8, 1.0), n=47, sign=True)["verdict"] == "not comparable"
    assert judge(0.9, 1.0, (0.8, 0.0), sign=True)["ratio"] == 0
    assert judge(0.9, 1.0, (0.0, 1.0), sign=True)["ratio"] is None
    single = document({easy(): [1.0], plain(): [1.0]})
    claim = StatedClaim("x", easyspec.STATED, "accepted", easy(), plain(), 1.0)
    assert easyspec.judge_claim(single, claim) is None


def test_cosines_are_judged():
    def judge(hidden: tuple[float, ...], q: tuple[float, ...]) -> list[str]:
        cosines = {
            str(n): {
                kind: [1.0, 2 * (q if kind in "qk" else hidden)[i] - 1]
                for kind in easyspec.fuzzy.KINDS
            }
            for i, n in enumerate((2, 3, 4))
        }
        facts = easyspec.facts({"cosines": cosines})
        return [fact["verdict"].removesuffix("reproduced") for fact in facts]

    assert judge((0.95, 0.9, 0.81), (0.99, 0.98, 0.96)) == ["", "", ""]
    assert judge((0.95, 0.9, 0.79), (0.99, 0.98, 0.96)) == ["not ", "", ""]
    assert judge((0.9, 0.95, 0.85), (0.99, 0.98, 0.94)) == ["", "not ", "not "]
    assert easyspec.facts({}) == []


def test_measurements_beside_the_grid_are_saved_and_printed(pair, measured, monkeypatch, tmp_path):
    store = Store(tmp_path / "again.json", {"system": "test"})
    store.document = json.loads(json.dumps(measured.document))
    monkeypatch.setattr(grid, "measure", None)
    for name in ("similarity", "drift", "draft_times", "layer_times"):
        monkeypatch.setattr(easyspec.fuzzy, name, None)
    assert not easyspec.run(pair[0], QUESTIONS, store, CELLS, draft=pair[1], rounds_each=4), (
        "with the same arguments nothing is left to do"
    )
    monkeypatch.setattr(easyspec, "cells", lambda layers, device: CELLS)
    document = easyspec.report(store)
    assert [r["cell"] for r in document["rows"]] == [c.key for c in CELLS]
    assert set(document["cosines"]) == {"2", "3", "4", "5", "consecutive"}
    assert max(x for r in document["drift"]["true"] for x in r["key_error"]) < 1e-5
    assert document["drift"]["false"][2]["key_error"][2] > 1e-2
    titles = {title.split(",")[0]: rows for title, rows in easyspec.tables(document)}
    assert len(titles["Eager rounds"]) == len(titles["T = 0.8"]) == 2
    assert [row["setting"] for row in titles["Widths"]] == [
        c.spec.removeprefix("easyspec:") for c in CELLS if "width" in c.spec
    ]
    assert [row["N"] for row in titles["Mean cosine (of the lowest layer)"]] == ["2", "3", "4", "5"]
    assert len(titles["Drift: relative error of the draft's keys and values"]) == 3
    assert titles["Drafting alone"][0]["eager"].endswith("1.00x")
    times = document["times"]["1"]
    share = times["attention"] / (times["attention"] + times["mlp"])
    model = next(rows for title, rows in titles.items() if title.startswith("Milliseconds"))[0]
    assert model["share"] == f"{share:.0%}"
    # 4 rounds of attention for 6 layers
    assert model["stage"] == f"{5 / (1 + 4 * (1 - share * 2 / 6)):.2f}x"
    notes = "\n".join(easyspec.notes(document))
    sentences = [*easyspec.sentences(), *easyspec.sentences("implications")]
    assert all(text in notes for text in (verdicts.RULE, easyspec.OURS, *sentences))
    assert all(v["claim"] in notes for v in (*document["verdicts"], *document["facts"]))
    assert document["verdicts"]


def test_interrupted_behind_the_grid(pair, measured, monkeypatch, tmp_path):
    store = Store(tmp_path / "part.json", {"system": "test"})
    store.document = json.loads(json.dumps(measured.document))
    del store.document["drift"], store.document["times"]

    def interrupting(*args, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(easyspec.fuzzy, "layer_times", interrupting)
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
    path = tmp_path / "results.json"
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
    document = json.loads(path.read_text())
    assert set(document["cells"]) == {c.key for c in few}
    assert (document["layers"], document["kind"]) == (6, "cpu")
    assert document["arguments"]["sha256"] == lab.sha256
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
    assert all(v["claim"] in out for v in document["verdicts"])
    monkeypatch.setattr(grid, "measure", None)  # with the same arguments nothing is left to do
    assert call(monkeypatch, capsys, *options)[0] == 0


def test_bad_settings_are_refused_before_work(pair, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for options in (("--rounds", "1"), ("--draft", str(tmp_path / "nothing"))):
        code, out, err = call(monkeypatch, capsys, "reproduce", "easyspec", *options)
        assert (code, out) == (2, ""), options
        assert len(err.strip().splitlines()) <= 3
    shallow = specwb.load(tiny.build("llama", num_hidden_layers=3))
    with pytest.raises(ValueError, match="has 3 layer"):
        easyspec.run(pair[0], QUESTIONS, Store(tmp_path / "x.json", {}), [easy()], draft=shallow)
