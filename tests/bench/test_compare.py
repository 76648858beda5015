"""The comparison: same prompts, paired and interleaved runs, right columns."""

from __future__ import annotations

import json
import time

import pytest
import tiny

import specwb
from specwb.core.probability import Sampling
from specwb.core.stops import loops
from specwb.lab.bench import compare as module
from specwb.lab.bench import measure as measuring
from specwb.lab.bench import report, results
from specwb.lab.bench.compare import compare, to_json, usual
from specwb.lab.bench.library import Library
from specwb.lab.bench.measure import Run
from specwb.models.questions import Question

PROMPTS = [[1, 2, 3], [5, 6], [7, 8, 9, 10, 11]]
LIBRARY = ["hf_assisted", "hf_prompt_lookup"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """The fixed step takes as long every time, so no run is measured again; a step over four tokens
    takes twice as long as over one."""
    monkeypatch.setattr(module, "one_step", lambda target: lambda: 1.0)
    monkeypatch.setattr(module, "forward_seconds", lambda *_, **__: {1: 1.0, 4: 2.0})


def run(**changes):
    settings = {"draft": tiny.draft(), "max_new_tokens": 12}
    return compare(tiny.target(), PROMPTS, **(settings | changes))


def test_every_registered_method_and_the_library():
    frame = run()
    assert list(frame["method"]) == [*usual(tiny.target()), "hf_greedy", *LIBRARY]
    assert frame["identical"].all()
    assert frame["lossless"].all()
    by = frame.set_index("method")
    over = frame.attrs["reference"]["method"]
    assert by.loc[over, ["tau", "speedup", "speedup_low", "speedup_high"]].tolist() == [1, 1, 1, 1]
    assert by.loc[["ar", "hf_greedy"], "speedup"].max() == 1
    assert by.loc["sps", "tau"] > 1.3
    assert by.loc["hf_assisted", "tau"] > 1.1
    assert by.loc["ar", "cost"] == 1
    assert (by["cost"] > 0).equals(~by.index.to_series().str.startswith("hf_"))
    assert (frame["speedup_low"] <= frame["speedup"]).all()
    assert (frame["speedup"] <= frame["speedup_high"]).all()
    document = json.loads(json.dumps(to_json(frame, "x")))
    named = "schema_version command commit began threads device models sha256 settings versions"
    assert {*named.split(), "reference", "machine", "outputs", "rows"} <= set(document)
    assert list(document["reference"]["plain"]) == ["ar", "hf_greedy"]
    rows = {row["method"]: row for row in document["rows"]}
    assert all(rows["sps"][part] > 0 for part in results.PARTS)
    assert all(rows["hf_greedy"][part] is None for part in results.PARTS)
    wanted = specwb.decode(tiny.target(), PROMPTS, "ar", max_new_tokens=12).tokens
    for output, row in zip(document["outputs"], wanted, strict=True):
        # a target without a tokenizer writes ids
        assert set(output["texts"].values()) == {" ".join(map(str, row))}


def test_batches_and_sampling():
    frame = run(batch=3)
    # the library assists one row at a time
    assert list(frame["method"]) == [*usual(tiny.target()), "hf_greedy"]
    assert frame["identical"].all()
    sampled = run(temperature=1.0, methods=["sps"])
    assert list(sampled["method"]) == ["ar", "sps", "hf_sample", *LIBRARY]
    assert sampled["identical"].isna().all()
    assert sampled.attrs["looping"] is None
    exact = run(temperature=1.0, exact_text=True, batch=3)
    assert exact.set_index("method")["identical"].drop("hf_sample").all()
    assert "hf_sample" not in exact.attrs["same_text"]


def test_the_librarys_rows_are_spelled_like_methods():
    named = ["hf_assisted:gamma=2,schedule=constant,confidence=0", "hf_prompt_lookup:gamma=3"]
    draft = tiny.draft()
    before = draft.model.generation_config.to_dict()
    frame = run(methods=["sps:gamma=2", *named], max_new_tokens=24)
    assert list(frame["method"]) == ["ar", "sps:gamma=2", *named, "hf_greedy", *LIBRARY]
    assert frame["identical"].all()
    by = frame.set_index("method")["tau"]
    assert by[named[0]] > 1
    assert by[named[0]] != by["hf_assisted"]  # whose defaults are gamma 20 and confidence 0.4
    assert draft.model.generation_config.to_dict() == before
    few = run(methods=["ar", named[0]], library=False)
    assert list(few["method"]) == ["ar", named[0], "hf_greedy"]


def test_a_heuristic_schedule_stays_in_its_row():
    """The library writes the length that it has reached into the draft model's settings."""
    draft = tiny.draft()
    spec = "hf_assisted:gamma=5,schedule=heuristic,confidence=0"
    row = Library(spec, tiny.target(), draft, Sampling(0.0), 1)
    row.generate([PROMPTS[2]], 12)
    assert row.assistant_config.num_assistant_tokens != 5
    assert draft.model.generation_config.num_assistant_tokens is None


@pytest.mark.parametrize("method", ["mcsd:tree=2-1", "lookahead:window=3,level=3,guesses=3"])
def test_a_depth_is_tested_where_the_accepted_path_had_candidates_below_it(method):
    """The count is recomputed from the nodes' token sequences: drafts of different lengths, rows
    without a candidate, equal paths in one tree."""
    rows = [[1, 2, 1, 2, 1], [5], [7, 8, 9, 7, 8, 9, 7]]
    options = {"draft": tiny.draft()} if method.startswith("mcsd") else {}
    built = specwb.method(method, tiny.target(), **options)
    out = specwb.decode(
        tiny.target(), rows, built, max_new_tokens=[30, 9, 21], temperature=1.0, trace=True
    )
    seen = set()
    for row, (accepted, tested) in enumerate(
        zip(out.accepted_lengths, out.tested_lengths, strict=True)
    ):
        assert len(tested) == len(accepted)
        assert tested[-1] == accepted[-1]
        for step, a, t in zip(out.steps[: len(accepted) - 1], accepted, tested, strict=False):
            tree = step.draft.tree
            tokens = step.draft.tokens[row].tolist()
            valid = step.draft.valid[row].tolist()
            paths = [[]]  # the tokens on the way to every node
            for node, parent in enumerate(tree.host[0][: tree.v]):
                if node:
                    paths.append([*paths[parent], tokens[node]])
            accepted_path = paths[step.verdict.path[row, a]]
            more = any(
                valid[i] and path[:-1] == accepted_path and len(path) == a + 1
                for i, path in enumerate(paths)
            )
            assert t == a + more
            seen.add(more)
    assert seen == {True, False}


def test_acceptance_by_depth_by_hand():
    one = Run([[0] * 7], 3, 1.0, accepted=[[2, 0, 1]], tested=[[2, 1, 1]])
    # the first step of the second run had no candidates
    two = Run([[0] * 3], 2, 1.0, accepted=[[0, 1]], tested=[[0, 1]])
    assert module.acceptance_by_depth([one, two]) == [(3, 4), (1, 1)]


def test_a_loop_is_eight_tokens_three_times():
    assert not loops([1, 2, 3, 4, 5, 6, 7, 8] * 2 + [0])
    assert loops([1, 2, 3, 4, 5, 6, 7, 8, 0] * 2 + [1, 2, 3, 4, 5, 6, 7, 8])
    assert not loops([7] * 9)
    assert loops([7] * 10)


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
        frame = run(methods=["wrong"], library=False)
        assert frame.set_index("method")["identical"].to_dict() == {
            "ar": True,
            "wrong": False,
            "hf_greedy": True,
        }
        same = frame.attrs["same_text"]["wrong"]
        assert same["others"] == same["texts"]
        shown = {row["method"]: row["same text"] for row in report.cells(frame)}
        assert shown["ar"] == "yes"
        assert "NOT" in shown["wrong"]
    finally:
        specwb.unregister("wrong")


def test_an_interrupt_keeps_what_was_decoded(monkeypatch):
    """Two openings and a group of three are five decodings; the second group has counted for the
    method that had decoded it."""
    original, calls = measuring._decode, []

    def interrupted(target, job, steps, until, clock, timed):
        calls.append(timed)
        if sum(calls) == 7 and timed:
            raise KeyboardInterrupt
        return original(target, job, steps, until, clock, timed)

    monkeypatch.setattr(measuring, "_decode", interrupted)
    frame = run(methods=["sps"], library=False)
    assert frame.attrs["interrupted"]
    assert frame["method"].tolist() == ["ar", "sps", "hf_greedy"]
    assert sorted(frame["runs"]) == [1, 1, 2]
    assert frame["speedup"].notna().all()


@pytest.fixture
def hours(monkeypatch):
    """A clock of which a decoding takes an hour, and nothing else takes any time."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def decoding(original):
        def run(*arguments):
            now[0] += 3600
            run = original(*arguments)
            run.seconds = 3600.0
            return run

        return run

    monkeypatch.setattr(measuring, "_decode", decoding(measuring._decode))
    return now


def categories(text: str) -> tuple[specwb.Target, list[Question]]:
    """A target with words, and a question for each letter, its category."""
    words = tiny.tokenizer([f"w{i}" for i in range(tiny.VOCABULARY)])
    questions = [Question(i, letter, ("w1 w2 w3",), "text") for i, letter in enumerate(text)]
    return specwb.Target(tiny.target().model, words), questions


@pytest.mark.parametrize(
    ("limit", "prompts", "left"),
    [(3, 1, ["b", "c"]), (6.5, 2, ["c"]), (8, 4, [])],
)
def test_categories_come_first_and_the_time_is_kept(hours, limit, prompts, left):
    """The opening of plain decoding, and a warm-up and a run of both, take 5 hours; then only the
    faster one runs."""
    target, questions = categories("aabbcc")
    frame = compare(
        target, questions, ["ar"], max_new_tokens=4, seconds=3600 * limit, library=False
    )
    assert frame.attrs["prompts"] == prompts
    assert frame.attrs["categories_left_out"] == left
    assert hours[0] == 3600 * (4 + prompts)


def test_a_method_whose_turn_did_not_come_is_left_out_by_name(hours):
    """What was asked for comes before the library's rows. Openings take three hours, a first run
    two, its warm-up included; plain decoding and one method are always measured."""
    frame = run(methods=["sps", "pld"], seconds=3600 * 10)
    assert list(frame["method"]) == ["ar", "sps", "pld", "hf_greedy"]
    why = "no time was left for a first run (seconds = 36000)"
    assert frame.attrs["left_out"] == dict.fromkeys(LIBRARY, why)
    assert f"left out: {' '.join(LIBRARY)}: {why}" in report.notes(frame.attrs)
    least = run(methods=["sps", "pld"], seconds=1e-9)
    assert list(least["method"]) == ["ar", "sps"]
    assert least.attrs["reference"]["method"] == "ar"
    assert report.cells(least, library=True) == []
    assert "plain decoding was measured" not in report.conclusion(least.attrs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["nope"]}, "unknown method 'nope'"),
        ({"methods": ["sps", "sps"]}, "named twice"),
        ({"methods": ["hf_prompt_lookup", "hf_prompt_lookup:gamma=10"]}, "named twice"),
        ({"methods": ["hf_assisted"], "batch": 3}, "one row at a time"),
        ({"methods": ["hf_greedy"], "temperature": 1.0}, "use hf_sample"),
        ({"methods": ["ar", "hf_assisted"], "draft": None}, "needs a draft model"),
        ({"methods": ["sps"], "draft": None}, "no draft model"),
        ({"methods": ["hf_assisted:gamma=0"]}, "gamma must be an integer >= 1"),
        ({"methods": ["hf_greedy:gamma=1"]}, "has no option 'gamma=1'; its options: none"),
        ({"batch": 0}, "batch"),
        ({"max_new_tokens": 512}, "leaves no room"),
        *(({"seconds": wrong}, "seconds must be a number") for wrong in (0, float("nan"), "5")),
    ],
)
def test_bad_requests(changes, message):
    with pytest.raises(ValueError, match=message):
        run(**changes)


@pytest.mark.filterwarnings("ignore:Precision loss")  # pairs without any spread
def test_speedups_are_over_the_faster_plain_decoding(monkeypatch):
    """The library's plain decoding is made twice as fast as sps, which is twice as fast as ar."""
    tokens = specwb.decode(tiny.target(), PROMPTS, "ar", max_new_tokens=12).tokens
    seconds = {"ar": 2.0, "sps": 1.0}

    def decode(target, job, *_):
        return Run(tokens, 36, seconds.get(job.key, 0.5), step_seconds=[1.0, 1.0])

    monkeypatch.setattr(measuring, "_decode", decode)
    monkeypatch.setattr(module, "_agreements", lambda *_: {})
    for temperature, name in ((0.0, "hf_greedy"), (1.0, "hf_sample")):
        frame = run(methods=["sps"], library=False, temperature=temperature)
        by = frame.set_index("method")
        plain = {"ar": 18.0, name: 72.0}
        assert frame.attrs["reference"] == {"method": name, "plain": plain}
        assert by["speedup"].to_dict() == {"ar": 0.25, "sps": 0.5, name: 1.0}


@pytest.mark.parametrize(("limit", "again"), [(3600.0 * 100, 0), (None, 2)])
def test_with_a_limit_every_method_has_a_run_before_one_is_repeated(
    hours, monkeypatch, limit, again
):
    count = iter(range(1000))
    monkeypatch.setattr(module, "one_step", lambda target: lambda: 1.0 if next(count) < 5 else 2.0)
    settings = {"draft": tiny.draft(), "max_new_tokens": 4, "library": False, "seconds": limit}
    frame = compare(tiny.target(), PROMPTS[:1], ["sps"], **settings)
    machine = frame.attrs["machine"]
    assert (machine["runs"], machine["disturbed"], machine["measured_again"]) == (3, 2, again)
    assert sorted(frame["disturbed"]) == [0, 1, 1]
    assert machine["busy"]
