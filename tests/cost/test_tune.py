"""Tuning: settings, predictions and measurements are put together as stated, kept and resumed."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tiny
from terminal import call, refused

import specwb
from specwb.bench import compare as comparing
from specwb.bench.prompts import Question
from specwb.cost import head_cost
from specwb.cost import settings as settings_of
from specwb.cost import tune as tuning
from specwb.cost.model import CostModel
from specwb.options import spell


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """The fixed step takes as long every time.

    So nothing is measured again because other tests run beside these.
    """
    monkeypatch.setattr(comparing, "one_step", lambda target: lambda: 1.0)


WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "far", "off"]


def questions(*counts: int) -> list[Question]:
    return [
        Question(100 * c + i, f"c{c}", (" ".join(WORDS[(i + c) % 5 :]),), "text")
        for c, n in enumerate(counts)
        for i in range(n)
    ]


def model(**changes) -> CostModel:
    top = [[0.5, 0.25], [0.5, 0.25], [0.5, 0.25]]
    settings = {
        "target": {1: 1.0, 2: 1.01, 32: 1.3},
        "draft": {1: 0.01, 2: 0.01, 21: 0.02},
        "opening": (2.0, 0.5),
        "rest": 0.01,
        "chain": [[0.6]] * 8,
        "tree": [[0.6, 0.2, 0.1, 0.05]] * 3,
        "top": {2: top, 3: [[*r, 0.1] for r in top], 4: [[*r, 0.1, 0.05] for r in top]},
        "contexts": {"target": {5: {1: 1.0}}, "draft": {5: {1: 0.01}}},
        "prompts": 2,
    }
    return CostModel(**{**settings, **changes})


@pytest.fixture(scope="module")
def pair():
    tokenizer = tiny.tokenizer([*WORDS, *(f"w{i}" for i in range(54))])
    return specwb.load(tiny.build("llama", seed=2), tokenizer=tokenizer), tiny.draft()


@pytest.fixture
def calibrations(monkeypatch):
    """The calibrations that were made; each gives the same model."""
    calls = []

    def calibrate(target, draft, rows, **settings):
        calls.append((len(rows), settings))
        settings["progress"](0.5, "half")
        return model()

    monkeypatch.setattr(tuning, "calibrate", calibrate)
    return calls


def test_one_question_in_three_of_every_category_calibrates():
    every = questions(6, 3, 1)
    calibrating, measuring = tuning.split_questions(every)
    assert {q.question_id for q in calibrating} == {0, 3, 100, 200}
    assert {q.question_id for q in [*calibrating, *measuring]} == {q.question_id for q in every}
    assert len(calibrating) + len(measuring) == len(every)
    assert [len(half) for half in tuning.split_questions(questions(1, 1))] == [1, 1]
    with pytest.raises(tuning.TuneError, match="at least two prompts"):
        tuning.split_questions(questions(1))


def test_settings_stay_in_the_budget_and_hold_the_best_trees():
    for nodes in (2, 5, 32):
        chosen = tuning.settings(model(), nodes, 64, 1.0)
        trees = [s.tree for s in chosen if s.tree]
        assert max(tree.n for tree in trees) <= nodes
        assert len({s.spec for s in chosen}) == len(chosen)
        assert {tree.D for tree in trees if tree.is_chain} == set(range(1, min(8, nodes - 1) + 1))
        # every tree is built back from its spec
        specs = [s.spec for s in chosen if s.tree]
        built = [specwb.method(spec, tiny.target(), draft=tiny.draft()) for spec in specs]
        assert [method.drafter.tree.host for method in built] == [tree.host for tree in trees]
    # at a flat cost a tree drawn without replacement is better than the fixed ones, and the best
    # one is there
    m = model()
    best = max((s for s in chosen if s.family == "tree"), key=lambda s: m.speedup(s.tree, 64))
    assert tuple(map(int, spell(best.tree).replace("-", ".").split("."))) not in settings_of.TREES
    families = {s.family for s in tuning.settings(model(top={}), 32, 64, 0.0)}
    assert families == {"chain", "tree"}
    assert not tuning.settings(model(draft={}), 32, 64, 0.0)


def test_rates_of_top_trees_go_by_the_number_of_children():
    m, tree = model(), specwb.Tree.branching(3, 1, 2)
    assert m.rates_of(tree, top=True) == [[0.5, 0.25, 0.1], [0.6], [0.5, 0.25]]
    assert m.rates_of(tree) == m.tree
    assert m.rates_of(specwb.Tree.chain(2), top=True) == m.chain
    with pytest.raises(ValueError, match="not measured for 5 children"):
        m.rates_of(specwb.Tree.branching(5), top=True)
    assert CostModel.from_json(json.loads(json.dumps(asdict(m)))) == m


@pytest.mark.slow
def test_a_run_is_kept_and_resumed(pair, calibrations, tmp_path, monkeypatch):
    target, draft = pair
    frames, compare = [], tuning.compare
    monkeypatch.setattr(
        tuning,
        "compare",
        lambda *args, **kwargs: frames.append(compare(*args, **kwargs)) or frames[-1],
    )
    path, fractions = tmp_path / "deep" / "out.json", []
    settings = {"draft": draft, "temperature": 1.0, "nodes": 7, "max_new_tokens": 6, "path": path}
    first = tuning.tune(
        target, questions(3, 3), **settings, progress=lambda done, text: fractions.append(done)
    )
    assert [n for n, _ in calibrations] == [2]
    assert calibrations[0][1]["gamma"] == 6
    assert fractions == sorted(fractions)
    assert 0 < fractions[0] < 1 / 3 < fractions[-1] <= 1
    assert first["prompts"] == {"calibrated": 2, "measured": 4}
    assert not first["interrupted"]
    assert not first["resumed"]
    rows = {row["method"]: row for row in first["rows"]}
    predicted = {name: row["predicted"] for name, row in rows.items()}
    assert predicted["sps:gamma=2"] == pytest.approx(
        model().speedup(specwb.Tree.chain(2), 6), abs=1e-4
    )
    assert predicted["mcsd:tree=2-2,draw=top"] == pytest.approx(
        model().speedup(specwb.Tree.branching(2, 2), 6, top=True), abs=1e-4
    )
    assert predicted["pld"] is None is rows["pld"]["error"]
    for row in first["rows"]:
        assert row["measured"] > 0
        assert row["tau_measured"] >= 1
        assert row["error"] is None or row["error"] == pytest.approx(
            row["predicted"] / row["measured"] - 1, abs=1e-3
        )
    assert set(first["misses"]) == {
        name for name, row in rows.items() if abs(row["error"] or 0) > 0.15
    }
    speed = frames[0].set_index("method").tokens_per_second
    assert rows["pld"]["measured"] == pytest.approx(speed["pld"] / speed["ar"], abs=1e-3)
    over = first["reference"]["method"]
    assert set(first["reference"]["plain"]) == {"ar", "hf_sample"}
    assert rows["pld"]["speedup"] == frames[0].set_index("method").loc["pld", "speedup"]
    assert any(f"speedup is over {over}" in line for line in tuning.notes(first))
    assert any(line.startswith("machine: ") for line in tuning.notes(first))
    assert tuning.cells(first)[0][f"speedup over {over}"].endswith("x")
    # gamma 4 is the default, under its own name
    assert rows["sps:gamma=4"]["measured"] == pytest.approx(speed["sps"] / speed["ar"], abs=1e-3)
    saved = json.loads(path.read_text())
    assert saved["median_error"] == first["median_error"]
    assert "resumed" not in saved

    again = tuning.tune(target, questions(3, 3), **settings)
    assert again["resumed"]
    assert len(calibrations) == 1
    assert {row["method"]: row["predicted"] for row in again["rows"]} == predicted
    tuning.tune(target, questions(3, 3), **{**settings, "seed": 1})
    assert len(calibrations) == 2  # other arguments, another calibration


def test_an_interruption_keeps_the_predictions(pair, calibrations, tmp_path, monkeypatch):
    target, draft = pair
    settings = {
        "draft": draft,
        "temperature": 1.0,
        "nodes": 4,
        "max_new_tokens": 4,
        "path": tmp_path / "out.json",
    }

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "compare", stop)
        result = tuning.tune(target, questions(3), **settings)
    assert result["interrupted"]
    assert result["prompts"]["measured"] == 0
    assert result["median_error"] is None
    assert result["best"]["by"] == "predicted"
    assert all("measured" not in row for row in result["rows"])
    assert any("best as predicted" in line for line in tuning.notes(result))
    assert {cell["over ar measured"] for cell in tuning.cells(result)} == {"-"}
    # nothing is known of the library's plain decoding
    assert not any(name.startswith("speedup") for name in tuning.cells(result)[0])
    assert tuning.tune(target, questions(3), **settings)["resumed"]
    assert len(calibrations) == 1


def test_best():
    rows = [
        {"method": method, "family": family, "predicted": predicted, "speedup": speedup}
        for method, family, predicted, speedup in (
            ("sps:gamma=2", "chain", 1.5, 1.1),
            ("sps:gamma=3", "chain", 1.2, 1.2),
            ("mcsd:tree=2", "tree", 2.0, 1.15),
            ("pld", "prompt lookup", None, 1.3),
        )
    ]

    def best(rows) -> tuple:
        return tuple(tuning._best(rows).values())

    assert list(tuning._best(rows)) == ["by", "gamma", "tree", "method", "speedup"]
    assert best(rows) == ("measured", 3, "mcsd:tree=2", "pld", 1.3)
    slow = [{**rows[0], "speedup": 0.9}]  # not faster than the library
    assert best(slow) == ("measured", 2, None, "ar", 1.0)
    for row in rows:
        del row["speedup"]
    assert best(rows) == ("predicted", 2, "mcsd:tree=2", "mcsd:tree=2", 2.0)


def test_bad_input_comes_before_work(pair, calibrations, tmp_path):
    target, draft = pair
    other = tmp_path / "other.json"
    for text in ("{", "[1]", '{"rows": []}', '{"arguments": {}, "calibrated": {"target": 3}}'):
        other.write_text(text)
        with pytest.raises(tuning.TuneError, match="is no result of specwb tune"):
            tuning.tune(target, questions(3), draft=draft, path=other)
    falling = asdict(model()) | {"target": {1: 2.0, 2: 1.0}}
    other.write_text(json.dumps({"arguments": {}, "calibrated": falling}))
    with pytest.raises(
        tuning.TuneError, match=r"cannot be used \(target: a step of more tokens is cheaper"
    ):
        tuning.tune(target, questions(3), draft=draft, path=other)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"--out: .*folder is a folder"):
        tuning.tune(target, questions(3), draft=draft, path=tmp_path / "folder")
    with pytest.raises((ValueError, OSError), match="other"):
        tuning.tune(target, questions(3), draft=draft, path=other / "tune" / "x.json")
    for changes, message in (
        ({"nodes": 1}, "nodes, the root included, must be an integer >= 2"),
        ({"temperature": -1}, "temperature must be >= 0"),
        ({"max_new_tokens": 512}, "leave room for a prompt"),
        ({"max_new_tokens": 0}, "max_new_tokens must be >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            tuning.tune(target, questions(3), draft=draft, **changes)
    assert not calibrations


def test_a_target_needs_no_draft_model(pair, tmp_path):
    """Calibration included: what needs no model is measured, the rest is named."""
    path, run = tmp_path / "out.json", {"max_new_tokens": 8, "nodes": 6}
    result = tuning.tune(pair[0], questions(3), path=path, **run)
    assert [row["method"] for row in result["rows"]] == [
        "pld",
        "pld:gamma=4",
        "lookahead",
        "lookahead:window=4,level=4,guesses=4",
    ]
    assert all(row["tau_measured"] >= 1 and row["predicted"] is None for row in result["rows"])
    assert set(result["left_out"]) == set(settings_of.OTHERS) - {"pld", "lookahead"}
    assert result["calibrated"]["draft"] == {}
    text = " ".join(tuning.notes(result))
    assert "draft none" in text
    assert "left out: kangaroo: " in text
    assert "has no draft model of its own" in result["left_out"]["mcsd_ti"]
    best = text.partition("best as measured: ")[2]  # says nothing of a draft model's gamma and tree
    assert best.startswith(("of all ", "nothing is faster than "))
    assert tuning.tune(pair[0], questions(3), path=path, **run)["resumed"]


def test_a_setting_without_a_run_has_no_measurement():
    """A comparison whose time was up has no row for it."""
    frame = pd.DataFrame(
        {"tokens_per_second": [10.0, 15.0], "tau": [1.0, 2.0], "speedup": [1.0, 1.4]},
        index=["ar", "sps:gamma=2"],
    )
    rows = [{"method": name, "predicted": 1.2} for name in ("sps:gamma=2", "pld")]
    built = {row["method"]: SimpleNamespace(key=row["method"]) for row in rows}
    tuning._add_measurements(rows, frame, built)
    assert rows[0] == {
        "method": "sps:gamma=2",
        "predicted": 1.2,
        "tau_measured": 2.0,
        "measured": 1.5,
        "speedup": 1.4,
        "error": -0.2,
    }
    assert rows[1] == {"method": "pld", "predicted": 1.2}
    assert (
        tuning._best([{**row, "family": row["method"]} for row in rows])["method"] == "sps:gamma=2"
    )


def test_every_method_is_tuned():
    """Of the lab family nothing is left out, and every method but the reference has a setting."""
    lab = specwb.load("lab", device="cpu")
    found, left_out = settings_of.others(lab, None)
    assert not left_out
    predicted = {"sps", "mcsd", *settings_of.HEADS}
    assert {setting.family for setting in found} | predicted | {"ar"} == set(specwb.METHODS)


def test_a_head_of_another_draft_model_is_left_out(tmp_path):
    """The lab's decision model is of its usual draft model; that is said before any work."""
    lab = specwb.load("lab", device="cpu")
    found, left_out = settings_of.others(lab, str(lab.own_head("deep")))
    assert list(left_out) == ["mcsd_ti"]
    assert "trained for the draft" in left_out["mcsd_ti"]
    assert "easyspec" in {setting.family for setting in found}


@pytest.mark.slow
def test_command_line(pair, monkeypatch, capsys, tmp_path):
    """The command with everything, calibration included, on tiny models."""
    target, draft = pair
    file, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    lines = [{**asdict(q), "subtask": None} for q in questions(3)]
    file.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(specwb, "load", lambda name, **options: target)
    monkeypatch.setattr(target, "draft", draft)
    options = f"--prompts {file} --temperature 1 --nodes 6 --max-new-tokens 8 --out {out}".split()
    code, text, err = call(monkeypatch, capsys, "tune", *options)
    assert code == 0, err
    words = "predicted|over ar|sps:gamma=5|mcsd:tree=2-1,draw=top|pld|calibrated on 1 prompts"
    assert all(word in text for word in words.split("|"))
    assert "specwb compare --methods" in text.splitlines()[-2]
    assert f"--prompts {file} --temperature 1" in text.splitlines()[-2]
    saved = json.loads(out.read_text())
    assert saved["command"].startswith(f"specwb tune --prompts {file}")
    assert saved["commit"]
    assert len([row for row in saved["rows"] if row["predicted"]]) >= 8
    assert set(saved["calibrated"]["contexts"]["target"]) == {
        str(len(questions(3)[0].ids(target.tokenizer))),
        str(512 - 24 - 1 - 32),
    }

    monkeypatch.setattr(
        tuning, "compare", lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    code, text, _ = call(monkeypatch, capsys, "tune", *options)
    assert code == 130
    assert "taken from the file" in text
    assert "best as predicted" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "/does/not/exist/out.json"], "--out"),
        (["--prompts", "nope"], "unknown prompt set 'nope'"),
        (["--nodes", "1"], "--nodes"),
        (["--temperature", "-1"], "temperature must be >= 0"),
    ],
)
def test_command_line_refuses(monkeypatch, capsys, arguments, message):
    some = SimpleNamespace(name="x", device=SimpleNamespace(type="cpu"), context=512)
    monkeypatch.setattr(specwb, "load", lambda name, **options: some)
    assert message in refused(monkeypatch, capsys, "tune", *arguments)


def test_passes_and_pairs_of_drafting():
    """They are counted by hand; Falcon's as the drafter itself counts them."""
    tree = specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)])  # 3 nodes, 3, 1
    assert head_cost.work("medusa", tree, 1) == (1, 3, 0)
    assert head_cost.work("eagle", tree, 1) == (1, 3, 6)  # all but the last level, children or not
    # one block: the path to the only node of depth 3
    assert head_cost.work("falcon", tree, 2) == (1, 2, 2)
    assert head_cost.work("falcon", tree, 3) == (1, 1, 0)
    assert head_cost.work("falcon", specwb.Tree.branching(2, 2, 1), 2) == (1, 2, 8)
    cost = head_cost.HeadCost(
        "falcon", {1: 1.0, 8: 1.0}, (0.0, 0.0), (0.5, 0.25, 0.125), [[0.5]], 1, 2
    )
    assert cost.round_seconds(tree) == 1.0 + 0.5 + 2 * 0.25 + 2 * 0.125
    assert head_cost.HeadCost.from_json(json.loads(json.dumps(asdict(cost)))) == cost


def test_the_fit_of_drafting_is_at_the_length_of_its_times():
    """Behind that text a plain step takes twice as long as behind the typical one, and so does
    whatever the target scores: the rest is half a second and a quarter a level."""
    target = {1: 1.0, 2: 1.5, 3: 2.0, 4: 2.5}
    trees = [specwb.Tree.chain(depth) for depth in (1, 2, 3)]
    seconds = np.array([2.0, 3.0 + 0.75, 4.0 + 1.0, 5.0 + 1.25])
    fit = head_cost._fit("medusa", 1, trees, seconds, target)
    assert fit == pytest.approx((0.5, 0.25, 0.0))


def test_the_best_top_tree_is_that_of_its_own_rates():
    """Pairs of a top token and a draw are accepted nearly always, wider nodes seldom; drawn without
    replacement it would be the other way round."""
    rates = {2: [[0.9, 0.05]] * 3, 3: [[0.1, 0.1, 0.1]] * 3}
    chosen = tuning.settings(model(top=rates, tree=[[0.3] * 3] * 3), 32, 64, 1.0)
    assert "mcsd:tree=2-2-2,draw=top" in [setting.spec for setting in chosen]


def test_a_calibration_of_other_arguments_is_not_resumed(pair, calibrations, tmp_path, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "compare", stop)
    path = tmp_path / "out.json"
    settings = {"draft": pair[1], "temperature": 1.0, "nodes": 4, "max_new_tokens": 4, "path": path}
    for seed, resumed in ((0, False), (0, True), (1, False)):
        result = tuning.tune(pair[0], questions(3), seed=seed, **settings)
        assert result["resumed"] is resumed
    assert len(calibrations) == 2


def test_predictions_are_judged_over_this_engines_plain_decoding():
    """Where the library's is faster, the speedup is over that one, and the prediction is not."""
    names = ["ar", "hf_greedy", "sps"]
    frame = pd.DataFrame(
        {
            "tokens_per_second": [10.0, 20.0, 15.0],
            "tau": [1.0, 1.0, 2.0],
            "speedup": [0.5, 1.0, 0.8],
        },
        index=names,
    )
    row = {"method": "sps", "predicted": 1.2}
    tuning._add_measurements([row], frame, {"sps": SimpleNamespace(key="sps")})
    assert (row["measured"], row["speedup"], row["error"]) == (1.5, 0.8, -0.2)
