"""The shipped results of all papers: rows and verdicts follow from what was measured.

Files that were written by an earlier rule have other verdicts, or other words and no reasons; their
rows and effects are the same.
"""

from __future__ import annotations

import copy
import json
import math
from functools import cache

import numpy as np
import pytest
from terminal import call, refused

import specwb
from specwb.core.files import weights_hash
from specwb.lab.studies import OTHERS, PLACES, study_of, trained, verdicts
from specwb.lab.studies.easyspec.cells import easy, plain
from specwb.lab.studies.kangaroo.cells import EXITS
from specwb.lab.studies.mcsd_ti.cells import as_published
from specwb.lab.studies.run import shipped, shipped_report
from specwb.lab.studies.study import MEDUSA, medusa_of
from specwb.lab.studies.verdicts import EVEN, VERDICTS, counts
from specwb.models.load import data_dir
from specwb.models.questions import load_prompts

NUMBERS = ("ratio", "low", "high", "prompts", "paper")


def close(a: object, b: object) -> bool:
    """Equal up to the last digit that is shipped."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b))
    if isinstance(a, float) and isinstance(b, float | int):
        return math.isclose(a, b, abs_tol=1.1e-3)
    return a == b


ON_SMOL = ("mcsd", "mcsd_ti", "falcon", "kangaroo")
SHIPPED = [*((name, "lab") for name in PLACES), *((name, "smol") for name in ON_SMOL)]


@pytest.fixture(scope="module", params=SHIPPED, ids=" on ".join)
def results(request):
    """A study, its shipped documents, and the same judged again."""
    name, family = request.param
    one = study_of(name)
    documents = shipped(one, family=family)
    assert documents[0] is not None, "the results are shipped"
    again = copy.deepcopy(documents)
    one.report(*again)
    return one, documents, again


def test_what_lessons_show_besides_is_of_the_shipped_models():
    """Lesson 5's requests to write a text again, and lesson 10's paths."""
    chat, edit, paths = (
        json.loads((data_dir() / f"results/{name}.json").read_text("utf-8"))
        for name in ("falcon-smol-cpu", "falcon-smol-edit", "paths-lab")
    )
    for name in ("sha256", "draft_sha256", "heads", "rounds", "seed"):
        assert edit["arguments"][name] == chat["arguments"][name]
    assert set(edit["cells"]) == set(chat["cells"])
    given = len(load_prompts("edit"))
    assert {len(cell["accepted"]) for cell in edit["cells"].values()} == {given}
    assert paths["arguments"]["sha256"] == lab().sha256
    assert weights_hash(lab().heads / "path" / "pair") in paths["arguments"]["scorers"]


@pytest.mark.parametrize("name", OTHERS[1:])
def test_heads_by_budget_are_those_of_their_study(name) -> None:
    study = study_of(name)
    own, ablation = shipped(study)
    assert own["arguments"]["sha256"] == ablation["arguments"]["sha256"] == lab().sha256
    cards = ablation["heads"]
    assert ablation["runs"] >= trained_runs(study, ablation) >= 3
    assert set(ablation["cells"]) == {cell.key for cell in study.trained_cells(ablation["runs"])}
    assert set(cards) == set(ablation["arguments"]["heads"])
    layers = len(lab().backbone.layers)
    for head, card in cards.items():
        variant, _, run = head.partition("@")
        assert card["options"] == trained.in_layers(study.variants[variant], layers)
        assert card["seed"] == int(run or 1)
        assert card["tokens"] == card["steps"] * card["rows"] * card["length"]
        assert f"steps={card['steps']}" in card["options"]
    assert {len(cell["accepted"]) for cell in ablation["cells"].values()} == {verdicts.ENOUGH}


def trained_runs(study, ablation) -> int:
    return min(verdicts.training_runs(ablation, claim) for claim in study.claims({}))


def test_medusas_published_tree_is_taken_where_it_was_measured():
    measured = {"cells": {MEDUSA.key: {"accepted": [[1]], "ms": []}}}
    assert medusa_of(measured) == medusa_of(None) == (MEDUSA, "")
    for cells in ({}, {MEDUSA.key: {"accepted": [], "ms": []}}):
        cell, differs = medusa_of({"cells": cells})
        assert cell.spec == "medusa"
        assert differs.startswith("definition: ")


def test_rows_follow_from_the_measurements(results):
    _, before, after = results
    for old, new in zip(before, after):
        if old is None or "rows" not in old:
            continue
        rows = {row["cell"]: row for row in new["rows"]} if "cell" in old["rows"][0] else None
        pairs = zip(old["rows"], new["rows"], strict=True)
        if rows is not None:
            pairs = ((row, rows[row["cell"]]) for row in old["rows"])
        for one, other in pairs:
            wrong = {key for key, x in one.items() if not close(x, other[key])}
            assert not wrong, (other["cell"], wrong)


def test_effects_follow_from_the_measurements(results):
    _, before, after = results
    old = [v for d in before if d is not None for v in d.get("verdicts", [])]
    new = {
        (v["claim"], v["of"], v["first"], v["second"]): v
        for d in after
        if d is not None
        for v in d["verdicts"]
    }
    same = 0
    for v in old:
        again = new.get((v.get("claim"), v["of"], v.get("first"), v.get("second")))
        if again is not None:
            same += 1
            # a claim of a sign states no number; it was written as 1 once
            keys = NUMBERS if v["paper"] != 1 else NUMBERS[:-1]
            assert [v[key] for key in keys] == [again[key] for key in keys], v["claim"]
            if "joint" not in v:
                continue
            verdict = ("verdict", "why", "joint")
            assert [v[key] for key in verdict] == [again[key] for key in verdict], v["claim"]
    assert same >= 0.9 * len(old) or not any("claim" in v for v in old)


def test_every_claim_has_a_verdict_with_its_reason(results):
    _, _, (own, ablation) = results
    verdicts = [*own["verdicts"], *(ablation or {"verdicts": []})["verdicts"]]
    assert len({(v["claim"], v["of"]) for v in verdicts}) == len(verdicts)
    judged = [v for v in verdicts if v["verdict"] != "not claimed"]
    for v in judged:
        assert v["verdict"] in VERDICTS
        if v["verdict"] == "not comparable":
            kinds = ("hardware", "models", "training budget", "definition", "drafter")
            assert v["why"].split(":")[0] in kinds
        if v["why"].startswith("theorem"):
            assert v["verdict"] == "contradicted"
        elif v["verdict"] in ("reproduced", "contradicted"):
            low, high = v["joint"]
            assert low <= v["ratio"] <= high
            if not v.get("foregone"):  # the joint interval is the wider one
                assert np.log(high / low) >= 0.9 * np.log(v["high"] / v["low"])
            half = (v["paper"] or 1) ** 0.5
            if v["verdict"] == "contradicted":
                assert high < max(1, half) or low > EVEN
            else:  # above half the effect, above a bound, or even
                assert low > min(half, v["paper"] or 1) or 1 / EVEN < low < high < EVEN
    counted = [v for v in judged if not (v.get("foregone") or v.get("repeats"))]
    assert sum(counts(verdicts).values()) == len(counted)
    texts = {v["claim"] for v in counted}
    assert {v["repeats"] for v in judged if v.get("repeats")} <= texts
    assert any(v.get("headline") for v in judged), "the abstract's claim is judged"


def test_what_is_printed(results):
    one, _, (own, _) = results
    tables = one.printed(own)
    assert len(tables) > (3 if own["arguments"]["prompts"] == "lab" else 1)  # no ablation there
    for title, lines in tables:
        assert len({tuple(line) for line in lines}) == 1, f"columns differ in {title}"
    summary = "\n".join(one.summary(own))
    assert all(v["claim"] in summary for v in own["verdicts"])
    assert all(text in summary for text in one.paper.get("contradictions", {}).values())
    assert own["rule"] in summary


def shows(monkeypatch, capsys, tmp_path, study, document) -> None:
    monkeypatch.chdir(tmp_path)
    of = ["--target", "smol"] if document["arguments"]["target"].startswith("smol") else []
    code, out, err = call(monkeypatch, capsys, "reproduce", study.name, "--shipped", *of)
    assert (code, err) == (0, "")
    assert all(line in out for line in study.summary(document))
    tables = study.printed(document)
    assert all(title in out for title, _ in tables)
    cells = {cell for _, lines in tables for line in lines for cell in line.values()}
    words = {word for cell in cells for word in cell.split() if len(word) < 25}  # others fold
    assert words <= set(out.replace("│", " ").split())
    assert not list(tmp_path.iterdir())


def test_the_command_shows_them(monkeypatch, capsys, tmp_path, results):
    study, _, (document, _) = results
    shows(monkeypatch, capsys, tmp_path, study, document)


@pytest.mark.parametrize("name", OTHERS)
def test_the_command_shows_the_others(monkeypatch, capsys, tmp_path, name):
    study = study_of(name)
    shows(monkeypatch, capsys, tmp_path, study, shipped_report(study))


@pytest.mark.parametrize("name", ["mcsd", *OTHERS])
def test_the_command_measures_nothing(monkeypatch, capsys, name):
    used = ("--set", "rounds=3" if study_of(name).rounds else "positions=3")
    err = refused(monkeypatch, capsys, "reproduce", name, "--shipped", *used, "--out", "x")
    assert f"--shipped measures nothing; leave --out and {used[0]} out" in err


@cache
def lab() -> specwb.Target:
    return specwb.load("lab", device="cpu")


def test_they_are_of_the_shipped_family(results):
    study, (own, ablation), _ = results
    known, questions = own["arguments"], len(load_prompts("lab"))
    if known["target"].startswith("smol"):  # whose weights are not shipped: its heads know them
        assert set(known.get("heads", {})) == set(study.heads)
        for kind in {"draft", *study.heads}:
            card = json.loads((data_dir() / f"smol/{kind}/card.json").read_text("utf-8"))
            assert known["sha256"] == card["target_sha256"]
            sums = {"draft": known["draft_sha256"], **known.get("heads", {})}
            assert sums[kind] == card["sha256"]
        assert len(load_prompts("chat")) == verdicts.ENOUGH
        assert {len(cell["accepted"]) for cell in own["cells"].values()} == {verdicts.ENOUGH}
        more = " --temperatures 0,1 --seconds 100000" if study.name == "mcsd" else ""
        how = "--target smol --prompts chat --tokens"
        assert own["counted"]["command"] == f"specwb reproduce {study.name}{more} {how}"
        wanted = [x for x in study.cells(own) if x.layout == "tree" and not x.long]
        assert {cell.key for cell in wanted} == set(own["cells"])
        return
    assert known["sha256"] == lab().sha256
    assert known["draft_sha256"] == study.draft(lab(), None).sha256
    assert known.get("heads", {}) == trained.checksums(lab(), study.heads)
    # the lab's Medusa has three heads, and its published tree needs four
    assert {cell.key for cell in study.cells(own)} - set(own["cells"]) <= {MEDUSA.key}
    assert set(own["cells"]) <= {cell.key for cell in study.cells(own)}
    assert questions >= verdicts.ENOUGH
    measured = {(len(cell["accepted"]), len(cell["ms"])) for cell in own["cells"].values()}
    some = {  # the others count the tokens of all prompts, and have the times of all
        "mcsd": {(questions, 10), (10, 10)},
        "mcsd_ti": {(questions, questions), (questions, 0)},
    }
    assert measured == some.get(study.name, {(questions, questions)})
    assert own["command"].startswith(f"specwb reproduce {study.name}")
    assert own["commit"]
    if ablation:
        assert {cell.key for cell in study.ablation()} <= set(ablation["cells"])
        assert all(len(cell["ms"]) == questions for cell in ablation["cells"].values())
        assert set(ablation["heads"]) == set(study.variants)
        heads = ablation["heads"].values()
        assert len({(head["steps"], head["rows"], head["length"]) for head in heads}) == 1
        assert ablation["command"].startswith(f"specwb reproduce {study.name} --train")


def test_what_holds_of_single_papers_measurements():
    traces = shipped(study_of("kangaroo"))[1]["traces"]
    assert set(traces) == {f"exit{n}" for n in EXITS}
    assert all(len(trace["kept"]) == 12 * 48 for trace in traces.values())
    own = shipped(study_of("mcsd_ti"))[0]
    assert own["moved"]["T=0 roots=1"]["other"] == 0
    assert own["cells"][as_published().key]["ms"]
    own = shipped(study_of("easyspec"))[0]
    # drafts do not depend on how they are executed, nor, with one layer a group, on calibration
    for a, b in ((plain(), easy(1)), (easy(), easy(execution="simulation"))):
        assert own["cells"][a.key]["accepted"] == own["cells"][b.key]["accepted"]
    for r in own["drift"]["true"]:
        assert max(*r["key_error"], *r["value_error"]) < 1e-5


@pytest.mark.parametrize("name", ["falcon"])
def test_whose_heads_an_ablation_compares_is_said(name):
    one = study_of(name)
    own, ablation = shipped(one)
    targets = [document["arguments"]["sha256"] for document in (own, ablation)]
    for target in targets:  # as it is shipped, and as it would be of one target
        ablation["arguments"]["sha256"] = target
        text = " ".join(one.summary(one.report(own, ablation)))
        assert ("ANOTHER TARGET" in text) == (target != targets[0])
    ablation["arguments"]["sha256"] = "another"
    assert "ANOTHER TARGET" in " ".join(one.summary(one.report(own, ablation)))
