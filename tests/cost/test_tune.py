"""Tuning: costs, acceptance and measurements are put together as stated, and kept."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace

import pandas as pd
import pytest
import tiny

import specwb
from specwb.core.errors import ArgumentError
from specwb.engine.methods import that_run
from specwb.lab.bench import compare as comparing
from specwb.lab.cost import tune as tuning
from specwb.lab.cost.calibrate import CostModel
from specwb.models.questions import Question


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


def model(rates: list[list[float]]) -> CostModel:
    return CostModel({1: 1.0, 2: 1.01, 32: 1.3}, {1: 0.02}, tree=rates)


@pytest.fixture(scope="module")
def pair():
    tokenizer = tiny.tokenizer([*WORDS, *(f"w{i}" for i in range(54))])
    return specwb.load(tiny.build("llama", seed=2), tokenizer=tokenizer), tiny.draft()


@pytest.fixture
def calibrated(monkeypatch):
    """The drafters that were calibrated; their times and rates are given."""
    keys = []

    def calibrate(target, method, texts, forwards, **how):
        keys.append(method.key)
        assert forwards == {1: 1.0, 32: 2.0}
        limits = method.drafter.limits
        return CostModel(forwards, {1: 0.02}, tree=[[0.6, 0.2][: limits.children]] * limits.depth)

    monkeypatch.setattr(tuning, "calibrate", calibrate)
    monkeypatch.setattr(tuning, "forward_seconds", lambda *a, **k: {1: 1.0, 32: 2.0})
    return keys


def test_one_question_in_three_of_every_category_calibrates():
    every = questions(6, 3, 1)
    calibrating, measuring = tuning.split_questions(every)
    assert {q.question_id for q in calibrating} == {0, 3, 100, 200}
    assert {q.question_id for q in [*calibrating, *measuring]} == {q.question_id for q in every}
    assert len(calibrating) + len(measuring) == len(every)
    assert [len(half) for half in tuning.split_questions(questions(1, 1))] == [1, 1]
    with pytest.raises(ArgumentError, match="at least two prompts"):
        tuning.split_questions(questions(1))


def test_candidates_stay_in_the_budget_and_hold_the_best_trees():
    models = {"sps": model([[0.6]] * 8), "mcsd": model([[0.6, 0.2, 0.1, 0.05]] * 3)}
    for nodes in (2, 5, 32):
        rows = {row["method"]: row for row in tuning.candidates(models, nodes)}
        gammas = [spec for spec in rows if spec.startswith("sps:")]
        assert gammas == [f"sps:gamma={gamma}" for gamma in range(1, min(8, nodes - 1) + 1)]
        trees = [row for row in rows.values() if "nodes" in row]
        assert max(row["nodes"] for row in trees) <= nodes
        for row in trees:  # every tree is built back from its spec
            built = specwb.method(row["method"], tiny.target(), draft=tiny.draft())
            assert built.drafter.tree.n == row["nodes"]
        assert set(tuning.FIXED) <= set(rows)
    two = rows["sps:gamma=2"]
    assert two["tau_predicted"] == pytest.approx(1 + 0.6 + 0.36)
    scored = 1.01 + (1.3 - 1.01) / 30
    assert two["predicted"] == pytest.approx(1.96 / (scored + 2 * 0.02))
    best = max(trees, key=lambda row: row["predicted"])
    assert best["nodes"] > 15  # scoring is nearly free, so it is larger than the fixed ones
    dear = CostModel({1: 1.0, 2: 2.0}, {1: 1.0}, tree=[[0.5]])
    assert tuning.best_tree(dear, 32).n == 1
    assert tuning.candidates({"medusa": dear}, 4)[0]["method"] == tuning.FIXED[0]


def test_every_method_is_tuned():
    """Of the lab family nothing is left out, and every method but the reference is measured."""
    lab = specwb.load("lab", device="cpu")
    wide = [f"{key}:{options}" for key, options in tuning.WIDE.items()]
    built, left_out = that_run([*wide, *tuning.FIXED], lab)
    assert not left_out
    assert {spec.partition(":")[0] for spec in built} | {"ar"} == set(specwb.METHODS)
    assert not that_run([*tuning.FIXED_IN_BATCHES, *tuning.AUTO], lab)[1]


def test_a_setting_without_a_run_has_no_measurement():
    """A comparison whose time was up has no row for it; ``measured`` is over plain decoding by this
    engine, the speedup over whatever is the fastest."""
    frame = pd.DataFrame(
        {"tokens_per_second": [10.0, 20.0, 15.0], "tau": [1, 1, 2], "speedup": [0.5, 1.0, 0.8]},
        index=["ar", "hf_greedy", "sps:gamma=2"],
    )
    rows = [{"method": name} for name in ("sps:gamma=2", "pld")]
    built = {row["method"]: SimpleNamespace(key=row["method"]) for row in rows}
    tuning._add_measurements(rows, frame, built)
    assert rows[0]["measured"] == 1.5
    assert (rows[0]["tau_measured"], rows[0]["speedup"]) == (2.0, 0.8)
    assert rows[1] == {"method": "pld"}


def test_an_interruption_keeps_the_calibration(pair, calibrated, tmp_path, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "compare", stop)
    path = tmp_path / "out.json"
    settings = {"draft": pair[1], "nodes": 4, "max_new_tokens": 4, "path": path}
    result = tuning.tune(pair[0], questions(3), **settings)
    assert result["interrupted"]
    assert result["prompts"]["measured"] == 0
    assert result["best"] == {"method": "ar", "speedup": 1.0}
    assert all("measured" not in row for row in result["rows"])
    assert json.loads(path.read_text())["calibrated"]["target"] == {"1": 1.0, "32": 2.0}


def test_a_target_needs_no_draft_model(pair):
    """Calibration included: what needs no model is measured, the rest is named."""
    result = tuning.tune(pair[0], questions(3), max_new_tokens=8, nodes=6)
    assert [row["method"] for row in result["rows"]] == [
        "pld",
        "pld:gamma=4",
        "suffix",
        "recycling",
        "lookahead",
        "lookahead:window=4,level=4,guesses=4",
    ]
    assert all(row["tau_measured"] >= 1 and "predicted" not in row for row in result["rows"])
    assert "has no draft model of its own" in result["left_out"]["mcsd_ti"]
    assert result["calibrated"]["draft"] == {}
    times = list(result["calibrated"]["target"].values())
    assert times == sorted(times)


def test_bad_input_comes_before_work(pair, calibrated, tmp_path):
    target, draft = pair
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"--out: .*folder is a folder"):
        tuning.tune(target, questions(3), draft=draft, path=tmp_path / "folder")
    for changes, message in (
        ({"nodes": 1}, r"nodes \(the root included\) must be an integer >= 2"),
        ({"temperature": -1}, "temperature must be >= 0"),
        ({"max_new_tokens": 512}, "leave room for a prompt"),
        ({"max_new_tokens": 0}, "max_new_tokens must be an integer >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            tuning.tune(target, questions(3), draft=draft, **changes)
    assert not calibrated


def test_settings_are_compared_by_batch(pair, call, monkeypatch, tmp_path):
    target, draft = pair
    frames = []

    def compare(target, questions, methods, *, batch, **how):
        frames.append((batch, [getattr(method, "key", method) for method in methods]))
        speed = {"ar": 10.0, "sps:gamma=2": 12.0, "sps:verify=auto": 13.0 - batch}
        rows = {"method": list(speed), "tokens_per_second": list(speed.values())}
        return pd.DataFrame(rows)

    monkeypatch.setattr(tuning, "compare", compare)
    rows = tuning.by_batch(target, questions(4), [1, 4], draft=draft)
    assert [(row["batch"], row["auto"]) for row in rows] == [
        (1, ("sps:verify=auto", 12.0)),
        (4, ("sps:verify=auto", 9.0)),
    ]
    assert all(row["fixed"] == ("sps:gamma=2", 12.0) and row["plain"][1] == 10.0 for row in rows)
    assert {"ar", "mcsd:tree=2-1", "mcsd:tree=4-2,verify=auto"} <= set(frames[0][1])
    with pytest.raises(ArgumentError, match="batch"):
        tuning.by_batch(target, questions(4), [1, 5], draft=draft)
    with pytest.raises(ArgumentError, match="batch"):
        tuning.by_batch(target, questions(4), ["many"], draft=draft)
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({**asdict(q), "subtask": None}) for q in questions(4)))
    monkeypatch.setattr(specwb, "load", lambda name, **options: target)
    monkeypatch.setattr(target, "draft", draft)
    code, text, err = call("tune", "--batch", "1,2", "--prompts", str(file))
    assert code == 0, err
    assert text.splitlines()[-1].split() == [
        "2",
        "10.0",
        "12.0",
        "11.0",
        "sps:gamma=2",
        "sps:verify=auto",
    ]


@pytest.mark.slow
def test_command_line(call, pair, monkeypatch, tmp_path):
    """The command with everything, calibration included, on tiny models."""
    target, draft = pair
    file, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    lines = [{**asdict(q), "subtask": None} for q in questions(3)]
    file.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(specwb, "load", lambda name, **options: target)
    monkeypatch.setattr(target, "draft", draft)
    frames, compare = [], tuning.compare
    monkeypatch.setattr(
        tuning, "compare", lambda *a, **k: frames.append(compare(*a, **k)) or frames[-1]
    )
    options = f"--prompts {file} --temperature 1 --nodes 6 --max-new-tokens 8 --out {out}".split()
    code, text, err = call("tune", *options)
    assert code == 0, err
    words = "sps:gamma=5|mcsd:tree=2-1,draw=top|pld|calibrated on 1 prompts|left out: "
    assert all(word in text for word in words.split("|"))
    assert f"--prompts {file} --temperature 1" in text.splitlines()[-2]
    saved = json.loads(out.read_text())
    assert saved["command"].startswith(f"specwb tune --prompts {file}")
    rows = {row["method"]: row for row in saved["rows"]}
    assert len([row for row in rows.values() if "predicted" in row]) >= 5
    frame = frames[0].set_index("method")
    speed = frame.tokens_per_second
    for spec, key in (("pld", "pld"), ("sps:gamma=4", "sps")):  # the default under its own name
        assert rows[spec]["measured"] == pytest.approx(speed[key] / speed["ar"])
        assert rows[spec]["speedup"] == frame.loc[key, "speedup"]
    assert {"eagle", "kangaroo", "easyspec"} <= set(saved["left_out"])
    assert CostModel.from_json(saved["calibrated"]).chain
