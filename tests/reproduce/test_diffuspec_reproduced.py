"""The reproduction of DiffuSpec: its tables as data, the command, and the shipped results.

On tiny models results are measured, judged, saved and continued.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest
import tiny
from terminal import call

import specwb
from specwb.drafters import diffusion
from specwb.evaluation.prompts import Question
from specwb.lattice import beam
from specwb.models.load import data_dir
from specwb.ngram import NGram
from specwb.reproduce import diffuspec, grid, trained, verdicts
from specwb.reproduce.diffuspec import ARGMAX, LONG, SHORT, Cell
from specwb.reproduce.diffuspec import diffuspec as make_cell
from specwb.reproduce.store import Store
from specwb.training.diffusion import DiffusionRecipe

pytestmark = pytest.mark.slow

WORDS = [f"w{i}" for i in range(tiny.VOCABULARY)]
QUESTIONS = [
    Question(i, ("code", "prose")[i % 2], (" ".join(WORDS[3 * i + 1 : 4 * i + 5]),), "text")
    for i in range(4)
]
CELLS = [
    Cell("ar"),
    make_cell("k=6"),
    make_cell("k=6", ARGMAX),
    make_cell("k_min=2,k_max=6,delta=1"),
    make_cell("k=4", "tree=true"),
    make_cell("draw=sample,k=4", temperature=1.0),
    make_cell("k=6", "ngram=own"),
]


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.target().model, tokenizer=tiny.tokenizer(WORDS))


@pytest.fixture(scope="module")
def measured(target, tmp_path_factory) -> Store:
    store = Store(tmp_path_factory.mktemp("measured") / "results.json", {"system": "test"})
    assert not diffuspec.run(
        target, QUESTIONS, store, CELLS, draft=tiny.head("diffusion"), rounds_each=6, most=60
    )
    return store


# -------------------------------------------------------------------------------------- the paper


def test_identities_hold_among_the_papers_numbers():
    one, two, four, five = (
        diffuspec.rows_of(n, *by)
        for n, by in ((1, ["method"]), (2, ["cps", "adl"]), (4, ["cps", "adl"]), (5, ["k"]))
    )
    assert len(one) == 10
    wrong_means = {
        name
        for name, r in one.items()
        if abs(fmean(r[t] for t in four[True, True]["mat"]) - r["speedup"]) > diffuspec.ROUNDING
    }
    assert wrong_means == {"PLD", "SAMD", "DiffuSpec", "EAGLE"}, (
        "the other six rows' means are those of their tasks"
    )
    full = (6.99, 3.08)
    assert (one["DiffuSpec"]["mat"], one["DiffuSpec"]["speedup"]) == full
    assert (two[True, True]["mat"], two[True, True]["speedup"]) == full
    assert (five["adl"]["mat"], five["adl"]["speedup"]) == full
    # figure 7 has the usual setting in every panel, and there the full method
    usual = diffuspec.paper()["constants"]
    for name in ("steps", "beams", "top", "mass"):
        (point,) = [r for r in diffuspec.figure(7)[name] if r["value"] == usual[name]]
        assert (point["mat"], point["speedup"]) == full
    for what in ("generated", "accepted"):
        assert all(
            a["to"] < b["from"] and a["low"] <= a["high"]
            for a, b in pairwise(diffuspec.figure(5)[what])
        )


def test_contradictions_in_the_paper_are_computed(monkeypatch):
    names = diffuspec.paper()["contradictions"]
    sentences = dict(zip(names, diffuspec.contradictions(), strict=True))
    for name, numbers in {
        # by hand from table 4
        "means": "MAT 7.29, 7.23, 6.70, 6.48 and speedup 3.08, 2.97, 2.57, 2.43",
        "tasks": "6 of 6 tasks; the former average to 3.05",
        "rows": "DiffuSpec 3.08, its tasks 3.05; EAGLE 2.76, its tasks 2.60",
        "fixed": "speedup 2.98 in table 2, and so do k = 20 and 30 in table 5, but MAT 6.95 there "
        "and 6.56 and 6.49 here",
        "length": "at most 3.0 tokens accepted at any k; table 1 reports 6.99",
        "peak": "(3.08); the best task has 4.02 in table 1 and 4.05",
        "share": "1.1% of the time in the text and 0.8%",  # .03 / 3.76
        "closing": "1.66 s by DiffuSpec and 1.65 s by SPS",  # 3.08 3.76 / 6.99 and 1.67 6.12 / 6.18
        "adl": "drafts 30, 20, 20, 20, 20, 20 tokens",  # theorem 11.6.4
    }.items():
        assert numbers in sentences[name], sentences[name]
    assert "first reading" in sentences["closing"]
    changed = diffuspec.paper()
    changed["tables"]["4"]["rows"][0]["mat"]["MT"] += 6
    monkeypatch.setattr(diffuspec, "paper", lambda: changed)
    assert "MAT 8.29, " in diffuspec.contradictions()[0]


def test_claims_are_about_cells_that_are_measured_and_numbers_of_the_tables():
    cells = diffuspec.cells()
    keys = {c.key for c in cells}
    assert len(keys) == len(cells)
    claims = diffuspec.claims()
    assert len({(c.text, c.what) for c in claims}) == len(claims)
    for claim in claims:
        assert {claim.first.key, claim.second.key} <= keys, claim
        assert (claim.paper is None) == (claim.table == "not in the paper")
        assert claim.paper is None or claim.paper > 1, "claims say which is larger"
        assert claim.first != claim.second
    paper = {(c.text, c.what): c.paper for c in claims}
    assert paper["CPS over the argmax row, ADL of 20 to 30 tokens: tau", "tau"] == pytest.approx(
        6.99 / 6.43
    )
    assert paper["CPS over the argmax row, k=6: speedup", "speedup"] == pytest.approx(2.98 / 2.69)
    assert paper["ADL of 20 to 30 tokens over k = 50: tau", "tau"] == pytest.approx(6.99 / 6.51)
    assert paper["steps = 1 is faster than 10", "speedup"] == pytest.approx(3.08 / 0.93)
    assert paper["steps = 10 over 1: tau", "tau"] == pytest.approx(7.33 / 6.99)
    assert ("beams = 4 over 3: tau", "tau") not in paper, (
        "they differ by less than the reading error"
    )
    assert paper["DiffuSpec (20 to 30 tokens) is faster than SPS", "speedup"] == pytest.approx(
        3.08 / 1.67
    )
    assert {c.second.spec for c in claims if c.sign} == {"medusa", "eagle", "eagle2"}
    assert all("ngram=" in c.spec for c in cells if c.spec.startswith(f"diffuspec:{LONG}")), (
        "the paper's n-gram is counted beforehand"
    )
    # of figure 7's cells none differs from the usual one in more than its option
    for name, rows in diffuspec.sweeps().items():
        specs = {cell.spec.replace(",ngram=own", "") for cell, _ in rows.values()}
        usual = diffuspec.paper()["constants"][name]
        options = {"" if value == usual else f",{name}={value}" for value in rows}
        assert {spec.removeprefix(f"diffuspec:{LONG}") for spec in specs} == options


def test_every_cell_is_a_method(target):
    for cell in dict.fromkeys(
        replace(cell, temperature=0.0) for cell in diffuspec.cells() if cell.kind == "diffuspec"
    ):
        drafter = cell.method(target, tiny.head("diffusion")).drafter
        if cell.spec.startswith(f"diffuspec:{LONG}") and "tree" not in cell.spec:
            assert drafter.limits.depth == 30


# ------------------------------------------------------------------------------------ measurements


def test_records_are_those_of_the_engines_steps(target, measured):
    assert set(measured.cells) == {c.key for c in CELLS}
    for cell in CELLS:
        record = measured.cells[cell.key]
        columns = [record[name] for name in ("accepted", "drafted", "mean", "parts")]
        assert [len(column) for column in (*columns, record["ms"])] == [4] * 5
        for accepted, drafted, mean, parts in zip(*columns, strict=True):
            assert len(accepted) == len(drafted) == 6
            assert all(0 <= a <= n for a, n in zip(accepted, drafted, strict=True))
            assert sum(parts) == pytest.approx(mean, abs=1e-3)
            assert len(parts) == len(grid.PARTS)
            assert min(parts) >= 0
            assert (parts[1] > 0) == (cell.kind == "diffuspec" and cell.temperature == 0), (
                "only methods that search spend time on it"
            )
    assert measured.cells["T=0 ar"]["drafted"] == [[0] * 6] * 4
    assert {n for drafted in measured.cells[CELLS[2].key]["drafted"] for n in drafted} == {6}
    lengths = measured.cells[CELLS[3].key]["drafted"]
    assert all(row[0] == 6 for row in lengths), "the first draft is the longest"
    assert {n for row in lengths for n in row} <= set(range(2, 7))
    assert len({n for row in lengths for n in row}) > 1
    # the same steps by the engine itself
    text = target.tokenizer(QUESTIONS[0].turns[0])["input_ids"]
    method = CELLS[2].method(target, tiny.head("diffusion"))
    steps = list(specwb.rounds(target, [text], method, max_new_tokens=60, seed=[0], eos=()))[:6]
    assert measured.cells[CELLS[2].key]["accepted"][0] == [
        int(step.verdict.accepted) for step in steps
    ]


def test_the_search_is_no_part_of_drafting(target, monkeypatch):
    def slow(*args):
        time.sleep(0.02)
        return beam(*args)

    monkeypatch.setattr(diffusion, "beam", slow)
    method = CELLS[1].method(target, tiny.head("diffusion"))
    results = grid.measure(target, method, CELLS[1], [5, 6], 3, 0, None, True)
    draft, search, _, rest = results["parts"]
    assert search >= 20 > draft
    assert 0 <= rest < 20


def test_values_by_hand():
    cells = {
        "T=0 ar": {
            "accepted": [[0, 0, 0]] * 2,
            "mean": [2.0, 4.0],
            "ms": [9, 9],
            "parts": [[0, 0, 2, 0]] * 2,
        },
        "T=0 diffuspec": {
            "accepted": [[9, 1, 3], [0, 2, 0]],
            "mean": [6.0, 4.0],
            "ms": [9, 9],
            "parts": [[1, 2, 2, 1], []],
        },
    }
    figures = {
        what: diffuspec.values(cells, make_cell(), what)
        for what in ("tau", "accepted", "ms", "speedup", "search")
    }
    assert figures["accepted"] == pytest.approx([13 / 3, 2 / 3])
    assert figures["tau"] == pytest.approx([16 / 3, 5 / 3])
    assert figures["ms"] == [6, 4]
    assert figures["search"] == [2]  # where steps were not clocked there is none
    # tokens and times of the same steps, all but the first
    assert figures["speedup"] == pytest.approx([3 * 2 / 6, 2 * 4 / 4])
    assert diffuspec.values({}, make_cell(), "speedup") == []
    cells["T=0 diffuspec"]["drafted"] = [[9, 3, 3], [1, 2, 1]]
    shapes = {"T=0 diffuspec": {"nodes": 10, "depth": 9, "chain": True}}
    r = diffuspec.row({"cells": cells, "domains": ["code", "math"], "shapes": shapes}, make_cell())
    # accepted, and tested: the steps with so deep a draft of which all above was accepted
    assert r["by_depth"] == [[4, 6], [3, 4], [2, 2], *[[1, 1]] * 6]
    assert r["by_domain"] == {"code": 4.3333, "math": 0.6667}
    assert (r["drafted"], r["ms_per_round"]) == (3.167, 5)
    assert r["parts"] == {"draft": 1, "search": 2, "verify": 2, "rest": 1}


def test_a_text_that_reaches_its_limit_loses_the_step_that_was_cut(target):
    method = CELLS[1].method(target, tiny.head("diffusion"))
    free = grid.measure(target, method, CELLS[1], [5, 6], 22, 0, None, True)
    tight = grid.measure(target, method, CELLS[1], [5, 6], 22, 0, 21, True)
    n = len(tight["accepted"])
    assert 2 <= n < 22
    assert tight["accepted"] == free["accepted"][:n]
    assert tight["drafted"] == free["drafted"][:n]
    assert sum(tight["accepted"]) + n < 21
    with pytest.raises(ValueError, match="not sure to hold two whole rounds of 7"):
        grid.run(target, QUESTIONS, None, {CELLS[1]: method}, most=20)


def test_rows_and_tables_of_the_measurements(measured, monkeypatch):
    monkeypatch.setattr(diffuspec, "cells", lambda: CELLS)
    document = diffuspec.report(measured)
    assert [r["cell"] for r in document["rows"]] == [c.key for c in CELLS]
    r = document["rows"][1]
    accepted = [a for steps in measured.cells[r["cell"]]["accepted"] for a in steps]
    assert r["accepted"] == pytest.approx(fmean(accepted), abs=1e-4)
    assert r["tau"] == pytest.approx(r["accepted"] + 1)
    assert r["by_depth"][0] == [sum(a >= 1 for a in accepted), len(accepted)]
    assert r["by_depth"][1][1] == r["by_depth"][0][0]
    assert sum(a for a, _ in r["by_depth"]) == sum(accepted)
    assert fmean(r["by_domain"].values()) == pytest.approx(r["accepted"], abs=1e-3)
    assert set(r["by_domain"]) == {"code", "prose"}
    assert document["rows"][4]["by_depth"] == [], "a tree's draft tokens are no depths"
    assert {v["claim"] for v in document["verdicts"]} == {
        f"CPS over the argmax row, k=6: {what}" for what in ("accepted", "tau", "speedup")
    }
    assert {v["verdict"] for v in document["verdicts"]} == {"not comparable"}, (
        "four prompts are no reproduction"
    )
    titles = {title.split(":")[0]: rows for title, rows in diffuspec.tables(document)}
    assert set(titles) == {
        "Tables 2 and 4",
        "Table 5",
        "Where a round's time goes",
        "CPS and ADL by domain",
        "Every setting",
    }
    assert [x["setting"] for x in titles["Table 5"]] == ["k = 6"]
    assert titles["Where a round's time goes"][1]["search"] == "0.8%"
    notes = "\n".join(diffuspec.notes(document))
    assert all(v["claim"] in notes for v in document["verdicts"])
    assert verdicts.RULE in notes
    assert all(text in notes for text in diffuspec.contradictions())


def test_the_searchs_share_is_judged_against_the_papers():
    def share(search: float, n: int = 48) -> dict:
        noise = np.random.default_rng(0).uniform(0.9, 1.1, n)
        cell = {
            "accepted": [[0, 0]] * n,
            "mean": [10.0] * n,
            "ms": [10.0] * n,
            "parts": [[1, search * x, 2, 3] for x in noise],
        }
        return diffuspec.share({"cells": {make_cell(SHORT).key: cell}}, SHORT)

    assert share(0.1)["verdict"] == "reproduced"
    assert share(0.1)["share"] == pytest.approx(0.01, rel=0.05)
    assert share(0.1)["low"] < share(0.1)["share"] < share(0.1)["high"]
    assert share(0.1, n=47)["verdict"] == "not comparable"
    assert share(0.219)["verdict"] == "not reproduced", (
        "the interval reaches beyond twice the paper's"
    )
    assert share(0.5)["verdict"] == "not reproduced"
    assert share(0.1, n=1) is None
    assert diffuspec.share({"cells": {}}, LONG) is None


def test_a_run_is_continued_where_it_was_interrupted(target, measured, tmp_path, monkeypatch):
    cells, original, calls = CELLS[:3], grid.measure, [0]

    def interrupting(*args):
        calls[0] += 1
        if calls[0] == 2 * len(cells) + 2:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(grid, "measure", interrupting)
    settings = {"draft": tiny.head("diffusion"), "rounds_each": 6, "most": 60}
    store = Store(tmp_path / "part.json", {"system": "test"})
    assert diffuspec.run(target, QUESTIONS, store, cells, **settings)
    store.save(final=True)
    store = Store(tmp_path / "part.json", {"system": "test"})
    assert not diffuspec.run(target, QUESTIONS, store, cells, **settings)
    assert calls[0] == (1 + len(QUESTIONS)) * len(cells) + 1, (
        "what was measured once is not measured again"
    )
    for cell in cells:
        assert store.cells[cell.key]["accepted"] == measured.cells[cell.key]["accepted"]
        assert store.cells[cell.key]["drafted"] == measured.cells[cell.key]["drafted"]


# ------------------------------------------------------------------------------------ command line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A diffusion model for the lab's target, as it is before training."""
    path = tmp_path_factory.mktemp("diffusion")
    lab = specwb.load("lab", device="cpu")
    recipe = DiffusionRecipe(lab, {})
    recipe.save(recipe.make(None, {}), path, {"target_sha256": lab.sha256})
    return path


def test_command_line(monkeypatch, capsys, tmp_path, folder):
    few = [
        Cell("ar"),
        Cell("sps"),
        make_cell(SHORT),
        make_cell(SHORT, ARGMAX),
        make_cell("k=6"),
        make_cell("k=6", ARGMAX),
    ]
    few += [make_cell(SHORT, "ngram=own"), make_cell("k=6", "ngram=own")]
    monkeypatch.setattr(diffuspec, "cells", lambda: few)
    path = tmp_path / "results.json"
    options = [
        "reproduce",
        "diffuspec",
        "--out",
        str(path),
        "--diffusion",
        str(folder),
        "--seconds",
        "0",
        "--rounds",
        "3",
    ]
    code, out, err = call(monkeypatch, capsys, *options)
    assert code == 0, err
    document = json.loads(path.read_text())
    assert set(document["cells"]) == {c.key for c in few}
    assert set(document["arguments"]["heads"]) == {"medusa", "eagle", "ngram", "diffusion"}
    assert all(
        title in out
        for title in ("Table 1", "Tables 2 and 4", "Where a round's time goes", "In the paper: ")
    )
    assert all(v["claim"] in out for v in [*document["verdicts"], *document["shares"]])
    # CPS over the argmax row twice by three; against SPS and k = 6 and with both n-grams by two;
    # both n-grams over one
    assert len(document["verdicts"]) == 13
    monkeypatch.setattr(grid, "measure", None)  # with the same arguments nothing is left to do
    assert call(monkeypatch, capsys, *options)[0] == 0


def test_bad_settings_are_refused_before_work(target, monkeypatch, capsys, tmp_path, folder):
    with pytest.raises(
        ValueError, match="has no medusa and no eagle and no ngram and no diffusion of its own"
    ):
        trained.checksums(target, diffuspec.HEADS)
    monkeypatch.chdir(tmp_path)
    for options in (
        ("--rounds", "1"),
        ("--diffusion", str(folder / "nothing")),
        ("--diffusion", str(folder), "--prompts", "2"),
    ):
        code, out, err = call(monkeypatch, capsys, "reproduce", "diffuspec", *options)
        assert (code, out) == (2, ""), options
        assert len(err.strip().splitlines()) <= 3


def test_the_tables_of_an_ngram_are_read_once_and_every_method_has_its_own_contexts():
    lab = specwb.load("lab", device="cpu")
    draft = DiffusionRecipe(lab, {}).make(None, {}).eval()
    one, two = (
        specwb.method("diffuspec:ngram=own", lab, head=draft).drafter.proxy() for _ in range(2)
    )
    assert isinstance(one, NGram)
    assert one.grams is two.grams
    assert one._scored is two._scored
    one.scores((5, 6), [7])
    assert (5, 6) in one._rows
    assert (5, 6) not in two._rows
    other = specwb.method(
        "diffuspec:ngram=own,smoothing=kn,order=3", lab, head=draft
    ).drafter.proxy()
    assert other.grams is one.grams
    assert other.scores((5, 6), [7]) != one.scores((5, 6), [7])


def test_the_shipped_results_are_those_of_the_shipped_family():
    shipped = json.loads((data_dir() / "results/diffuspec-lab-cpu.json").read_text())
    lab = specwb.load("lab", device="cpu")
    assert shipped["arguments"]["sha256"] == lab.sha256
    assert shipped["arguments"]["heads"] == trained.checksums(lab, diffuspec.HEADS)
    assert {c.key for c in diffuspec.cells()} == set(shipped["cells"])
    assert all(len(cell["ms"]) >= verdicts.ENOUGH for cell in shipped["cells"].values())
    # the verdicts that are printed follow from the measurements
    judged = (verdicts.judge(shipped, claim, diffuspec.values) for claim in diffuspec.claims())
    again = [verdict for verdict in judged if verdict]
    assert [(v["claim"], v["of"], v["verdict"]) for v in again] == [
        (v["claim"], v["of"], v["verdict"]) for v in shipped["verdicts"]
    ]
    assert shipped["commit"]
