"""The comparison: same prompts, paired and interleaved, honest columns; and the prompt sets."""

from __future__ import annotations

import json

import pytest
import tiny

import specwb
from specwb.evaluation import compare as module
from specwb.evaluation.compare import compare, to_json
from specwb.evaluation.prompts import PromptSetError, Question, interleave, load_prompts, sets

PROMPTS = [[1, 2, 3], [5, 6], [7, 8, 9, 10, 11]]


def run(**changes):
    settings = {"draft": tiny.draft(), "max_new_tokens": 12}
    return compare(tiny.target(), PROMPTS, **(settings | changes))


def test_every_registered_method_and_the_library():
    frame = run()
    assert list(frame["method"]) == [*specwb.METHODS, "hf_greedy", "hf_assisted"]
    assert frame["identical"].all()
    assert frame["lossless"].all()
    by = frame.set_index("method")
    assert by.loc["ar", ["tau", "speedup", "speedup_low", "speedup_high"]].tolist() == [1, 1, 1, 1]
    assert by.loc["hf_greedy", "tau"] == 1
    assert by.loc["sps", "tau"] > 1.3
    assert by.loc["hf_assisted", "tau"] > 1.1
    assert (frame["accepted_per_round"] - (frame["tau"] - 1)).abs().max() < 1e-9
    assert (frame["speedup_low"] <= frame["speedup"]).all()
    assert (frame["speedup"] <= frame["speedup_high"]).all()


def test_json_form():
    document = json.loads(json.dumps(to_json(run(methods=["sps:gamma=2"]))))
    assert {"device", "models", "rows"} <= set(document)
    keys = {"method", "lossless", "identical", "tau", "accepted_per_round", "tokens_per_second", "speedup", "speedup_low", "speedup_high", "seconds"}
    rows = {row["method"]: row for row in document["rows"]}
    assert list(rows) == ["ar", "sps:gamma=2", "hf_greedy", "hf_assisted"]
    assert all(set(row) == keys for row in rows.values())
    assert set(rows["ar"]["seconds"]) == {"draft", "score", "verify", "commit"}
    assert all(v > 0 for v in rows["sps:gamma=2"]["seconds"].values())
    assert all(v is None for v in rows["hf_greedy"]["seconds"].values())
    assert document["prompts"] == 3


def test_batches_and_sampling():
    frame = run(batch=3)
    assert list(frame["method"]) == [*specwb.METHODS, "hf_greedy"]  # the library assists one row at a time
    assert frame["identical"].all()
    warm = run(temperature=1.0)
    assert list(warm["method"]) == [*specwb.METHODS, "hf_sample", "hf_assisted"]
    assert warm["identical"].isna().all()


def test_a_wrong_method_is_not_called_identical():
    class Wrong(specwb.Drafter):
        """Its verdict is spoiled below, as a bug in a kernel would."""

        def __init__(self):
            self.tree = specwb.Tree.chain(0)

        def propose(self, state, noise):
            return self.candidates(state, state.tokens[:, :0])

        def observe(self, state, draft, verdict, scores):
            verdict.emitted[:, 0] = (verdict.emitted[:, 0] + 1) % tiny.VOCABULARY

    specwb.register("wrong", Wrong)
    try:
        frame = run(methods=["wrong"], library=False).set_index("method")
        assert not frame.loc["wrong", "identical"]
        assert frame.loc["ar", "identical"]
    finally:
        specwb.unregister("wrong")


def test_interrupted_keeps_what_is_done(monkeypatch):
    true, calls = module._ours, []

    def ours(*arguments):
        calls.append(1)
        if len(calls) == 6:  # two warm-ups, one whole group of two, then in the second
            raise KeyboardInterrupt
        return true(*arguments)

    monkeypatch.setattr(module, "_ours", ours)
    frame = run(methods=["sps"], library=False)
    assert frame.attrs["interrupted"]
    assert frame.attrs["prompts"] == 1


def test_time_limit_still_covers_every_category():
    questions = [Question(i, category, ("w1 w2 w3",), "text") for i, category in enumerate("aabbcc")]
    words = tiny.tokenizer([f"w{i}" for i in range(tiny.VOCABULARY)])
    target = specwb.Target(tiny.target().model, words)
    frame = compare(target, questions, ["ar"], max_new_tokens=4, seconds=1e-9, library=False)
    assert frame.attrs["prompts"] == 3
    assert set(frame.attrs["by_category"]) == {"a", "b", "c"}


def test_long_prompts_are_cut_and_counted():
    frame = compare(tiny.target(), [list(range(60)) * 10], ["ar"], max_new_tokens=4, library=False)
    assert frame.attrs["cut_prompts"] == 1
    with pytest.raises(ValueError, match="leaves no room"):
        compare(tiny.target(), PROMPTS, ["ar"], max_new_tokens=512)


def test_bad_requests():
    with pytest.raises(specwb.MethodError, match="unknown method 'nope'"):
        run(methods=["nope"])
    with pytest.raises(specwb.MethodError, match="named twice"):
        run(methods=["sps", "sps"])
    with pytest.raises(ValueError, match="batch"):
        run(batch=0)


@pytest.mark.parametrize("name", ["lab", "tune"])
def test_shipped_prompts(name):
    questions = load_prompts(name)
    assert len(questions) >= {"lab": 48, "tune": 12}[name]
    assert {q.category for q in questions} == {"code", "math", "prose"}
    assert [q.category for q in interleave(questions)[:3]] == ["code", "math", "prose"]
    assert len({q.turns for q in questions}) == len(questions)
    assert name in sets()


def test_prompts_that_choose_settings_are_not_measured_on():
    assert not {q.turns[0] for q in load_prompts("lab")} & {q.turns[0] for q in load_prompts("tune")}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "line 1"),
        ('{"question_id": 1, "category": "x"}', "turns"),
        ('{"question_id": 1, "category": "x", "turns": "text"}', "list"),
        ("", "no prompts"),
    ],
)
def test_bad_prompt_files(tmp_path, content, message):
    path = tmp_path / "p.jsonl"
    path.write_text(content)
    with pytest.raises(PromptSetError, match=message):
        load_prompts(path)


def test_unknown_prompt_set():
    with pytest.raises(PromptSetError, match=r"unknown prompt set 'nope'; shipped: lab, tune"):
        load_prompts("nope")
