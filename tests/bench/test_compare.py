"""The comparison: same prompts, paired and interleaved runs, right columns; and the prompt sets."""

from __future__ import annotations

import dataclasses
import json

import pytest
import tiny
import torch

import specwb
from specwb.core.errors import ArgumentError
from specwb.core.probability import Sampling
from specwb.core.stops import loops
from specwb.lab.bench import compare as module
from specwb.lab.bench import conditions, report, runs
from specwb.lab.bench import measure as measuring
from specwb.lab.bench.compare import compare, to_json, usual
from specwb.lab.bench.library import Library
from specwb.lab.bench.measure import Run
from specwb.models.questions import Question

PROMPTS = [[1, 2, 3], [5, 6], [7, 8, 9, 10, 11]]
LIBRARY = ["hf_assisted", "hf_prompt_lookup"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """The fixed step takes as long every time.

    So no run is measured again because other tests run beside this one.
    """
    monkeypatch.setattr(module, "one_step", lambda target: lambda: 1.0)


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
    assert by.loc["hf_greedy", "tau"] == 1
    assert by.loc["sps", "tau"] > 1.3
    assert by.loc["hf_assisted", "tau"] > 1.1
    assert (frame["accepted_per_round"] - (frame["tau"] - 1)).abs().max() < 1e-9
    assert (frame["speedup_low"] <= frame["speedup"]).all()
    assert (frame["speedup"] <= frame["speedup_high"]).all()


def test_json_form():
    document = json.loads(json.dumps(to_json(run(methods=["sps:gamma=2"]))))
    named = "schema_version command commit began threads device models sha256 settings versions"
    assert {*named.split(), "reference", "machine", "outputs", "rows"} <= set(document)
    assert document["schema_version"] == module.SCHEMA
    assert list(document["reference"]["plain"]) == ["ar", "hf_greedy"]
    assert document["reference"]["method"] in document["reference"]["plain"]
    keys = "method lossless identical tau accepted_per_round tokens_per_second speedup speedup_low"
    keys += " speedup_high disturbed seconds"
    rows = {row["method"]: row for row in document["rows"]}
    assert list(rows) == ["ar", "sps:gamma=2", "hf_greedy", "hf_assisted", "hf_prompt_lookup"]
    assert all(set(row) == set(keys.split()) for row in rows.values())
    assert set(rows["ar"]["seconds"]) == {"draft", "score", "verify", "commit"}
    assert all(v > 0 for v in rows["sps:gamma=2"]["seconds"].values())
    assert all(v is None for v in rows["hf_greedy"]["seconds"].values())
    assert document["prompts"] == 3


def test_batches_and_sampling():
    frame = run(batch=3)
    # the library assists one row at a time
    assert list(frame["method"]) == [*usual(tiny.target()), "hf_greedy"]
    assert frame["identical"].all()
    sampled = run(temperature=1.0)
    assert list(sampled["method"]) == [*usual(tiny.target()), "hf_sample", *LIBRARY]
    assert sampled["identical"].isna().all()
    assert sampled.attrs["non_looping"] is None
    cold = run(temperature=1e-9, methods=["sps"])
    assert list(cold["method"]) == ["ar", "sps", "hf_greedy", *LIBRARY]
    assert cold["identical"].all()
    assert cold.attrs["settings"]["temperature"] == 0


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


@pytest.mark.parametrize("gamma", [1, 3])
def test_the_library_drafts_gamma_tokens(gamma):
    draft, calls = tiny.draft(), []
    spec = f"hf_assisted:gamma={gamma},schedule=constant,confidence=0"
    row = Library(spec, tiny.target(), draft, Sampling(0.0), 1)
    hook = draft.model.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        (tokens,), forwards, seconds = row.generate([PROMPTS[0]], 24)
    finally:
        hook.remove()
    assert tokens == specwb.decode(tiny.target(), PROMPTS[0], max_new_tokens=24).tokens[0]
    assert 24 / (gamma + 1) <= forwards < 24
    # the limit may shorten the last draft
    assert gamma * (forwards - 1) <= len(calls) <= gamma * forwards
    assert seconds > 0


def test_a_heuristic_schedule_goes_on_from_prompt_to_prompt_and_stays_in_its_row():
    """The library writes the length that it has reached into the draft model's settings."""
    draft = tiny.draft()
    spec = "hf_assisted:gamma=5,schedule=heuristic,confidence=0"
    row = Library(spec, tiny.target(), draft, Sampling(0.0), 1)
    row.generate([PROMPTS[2]], 12)
    assert row.assistant_config.num_assistant_tokens != 5
    assert draft.model.generation_config.num_assistant_tokens is None


def test_prompt_lookup_is_the_librarys():
    prompt = [1, 2, 3, 4, 5, 1, 2, 3]
    frame = compare(
        tiny.target(), [prompt, [9, 8, 7, 9, 8]], ["pld"], draft=tiny.draft(), max_new_tokens=40
    ).set_index("method")
    assert frame.loc["pld", "tau"] == frame.loc["hf_prompt_lookup", "tau"] > 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["mcsd:tree=2-1", "pld", "lookahead:window=3,level=3,guesses=3"])
def test_a_depth_is_tested_where_the_accepted_path_had_candidates_below_it(method, temperature):
    """The count is recomputed from the nodes' token sequences.

    There are drafts of different lengths, rows without a candidate, equal paths in one tree.
    """
    rows = [[1, 2, 1, 2, 1], [5], [7, 8, 9, 7, 8, 9, 7]]
    options = {"draft": tiny.draft()} if method.startswith("mcsd") else {}
    built = specwb.method(method, tiny.target(), **options)
    out = specwb.decode(
        tiny.target(), rows, built, max_new_tokens=[30, 9, 21], temperature=temperature, trace=True
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
    assert runs.acceptance_by_depth([one, two]) == [(3, 4), (1, 1)]


@pytest.mark.parametrize(
    ("tokens", "answer"),
    [
        (list(range(64)), False),
        ([1, 2, 3, 4, 5, 6, 7, 8] * 2 + [0], False),
        ([1, 2, 3, 4, 5, 6, 7, 8, 0] * 2 + [1, 2, 3, 4, 5, 6, 7, 8], True),
        ([7] * 9, False),
        ([7] * 10, True),
        ([], False),
    ],
)
def test_a_loop_is_eight_tokens_three_times(tokens, answer):
    assert loops(tokens) is answer


def test_figures_without_loops_leave_out_just_the_looping_prompts(monkeypatch):
    texts = {
        tuple(p): specwb.decode(tiny.target(), [p], max_new_tokens=12).tokens[0] for p in PROMPTS
    }
    monkeypatch.setattr(runs, "loops", lambda tokens: tokens == texts[tuple(PROMPTS[1])])
    frame = run(methods=["sps"], library=False)
    non_looping = frame.attrs["non_looping"]
    counts = (non_looping["runs"], non_looping["of"], non_looping["prompts"])
    assert counts == (2, 3, 2)
    lengths = [runs[0] for i, runs in enumerate(frame.attrs["accepted_lengths"]["sps"]) if i != 1]
    tau = pytest.approx(24 / sum(map(len, lengths)), abs=1e-4)
    assert non_looping["methods"]["sps"]["tau"] == tau
    assert non_looping["methods"][frame.attrs["reference"]["method"]]["speedup"] == 1
    monkeypatch.setattr(runs, "loops", lambda tokens: True)
    assert run(methods=["sps"], library=False).attrs["non_looping"]["methods"] == {}


def test_where_a_clock_is_expensive_the_measured_runs_have_none(monkeypatch):
    """As on CUDA, the clock runs only in a second pass, whose time is not in the figures."""
    calls = []
    original = measuring._by_engine

    def recorded(target, method, job, count, until, clocked):
        calls.append((clocked, job.tokens))
        return original(target, method, job, count, until, clocked)

    monkeypatch.setattr(measuring, "_by_engine", recorded)
    for place in (module, measuring):
        monkeypatch.setattr(place, "clock_is_free", lambda device: False)
    monkeypatch.setattr(module, "SPLIT", 2)
    frame = run(methods=["sps"], library=False)
    assert [clocked for clocked, n in calls if n == 12] == [None] * 6 + [True] * 4
    assert (frame[frame["method"] != "hf_greedy"][list(runs.PARTS)] > 0).all().all()
    assert frame.attrs["time_split"] == {"separate": True, "tokens": {"ar": 24, "sps": 24}}
    assert run(methods=["sps"], library=False, draft=tiny.draft()).attrs["runs"] == 3


def test_an_interrupt_of_the_second_pass_keeps_the_runs(hours, monkeypatch):
    """Though a method has no run, as the time was up before its turn."""
    original = measuring._decode

    def decode(target, job, steps, until, clock, timed):
        if clock and timed:
            raise KeyboardInterrupt
        return original(target, job, steps, until, clock, timed)

    monkeypatch.setattr(measuring, "_decode", decode)
    for place in (module, measuring):
        monkeypatch.setattr(place, "clock_is_free", lambda device: False)
    frame = run(methods=["sps", "pld"], library=False, seconds=3600.0 * 4)
    assert (frame.attrs["interrupted"], list(frame["method"])) == (True, ["ar", "sps", "hf_greedy"])
    assert "no time was left" in frame.attrs["left_out"]["pld"]


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
        found = frame.attrs["same_text"]["wrong"]
        assert found["others"] == found["texts"]
        shown = {row["method"]: row["same text"] for row in report.cells(frame.reset_index())}
        assert shown["ar"] == "yes"
        assert "NOT" in shown["wrong"]
    finally:
        specwb.unregister("wrong")


@pytest.mark.parametrize(("n", "done"), [(6, 1), (4, 0)])
def test_an_interrupt_keeps_the_groups_that_are_done(monkeypatch, n, done):
    """Two warm-ups and a group of two methods are four decodings, each begun once."""
    original, calls = measuring._by_engine, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == n:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(measuring, "_by_engine", interrupted)
    if not done:  # there is nothing to compare
        with pytest.raises(KeyboardInterrupt):
            run(methods=["sps"], library=False)
        return
    frame = run(methods=["sps"], library=False)
    assert frame.attrs["interrupted"]
    assert frame.attrs["prompts"] == done


@pytest.fixture
def hours(monkeypatch):
    """A clock of which a decoding takes an hour, and nothing else takes any time."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def decoding(original):
        def run(*arguments):
            now[0] += 3600
            return original(*arguments)

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
    [(3, 1, ["b", "c"]), (8.5, 3, []), (7.5, 2, ["c"]), (10, 4, []), (100, 6, [])],
)
def test_categories_come_first_and_the_time_is_kept(hours, limit, prompts, left):
    """A warm-up and a run of two plain decodings take 4 hours, every further prompt 2."""
    target, questions = categories("aabbcc")
    frame = compare(
        target, questions, ["ar"], max_new_tokens=4, seconds=3600 * limit, library=False
    )
    assert frame.attrs["prompts"] == prompts
    assert frame.attrs["categories_left_out"] == left
    # no prompt is begun that could not be decoded by all, which would be measured for nothing
    assert hours[0] == 3600 * (2 + 2 * prompts)


def test_a_method_whose_turn_did_not_come_is_left_out_by_name(hours):
    """What was asked for comes before the library's rows. Plain decoding and the first method are
    always measured, and each takes two hours, its warm-up included."""
    frame = run(methods=["sps", "pld"], seconds=3600 * 5)
    assert list(frame["method"]) == ["ar", "sps", "pld", "hf_greedy"]
    why = "no time was left for a first run (seconds = 18000)"
    assert frame.attrs["left_out"] == dict.fromkeys(LIBRARY, why)
    assert set(frame.attrs["accepted_lengths"]) == {"ar", "sps", "pld"}
    assert f"left out: {' '.join(LIBRARY)}: {why}" in report.notes(frame.attrs)
    assert hours[0] == 3600 * 8
    shown: list[str] = []
    run(methods=["pld"], library=False, progress=lambda _, text: shown.append(text))
    assert shown[0] == "0 of 3 prompts done, now ar"
    assert shown[-2:] == ["2 of 3 prompts done, now pld", "done"]
    run(methods=["pld"], library=False, seconds=3600, progress=lambda _, text: shown.append(text))
    assert "0 of 3 prompts done, 0 s left, now pld" in shown
    least = run(methods=["sps", "pld"], seconds=1e-9)
    assert list(least["method"]) == ["ar", "sps", "hf_greedy"]
    assert "plain decoding was measured" not in report.conclusion(least.attrs)
    named = run(methods=["hf_prompt_lookup", "pld"], seconds=3600 * 5)
    assert list(named["method"]) == ["ar", "pld", "hf_prompt_lookup", "hf_greedy"]


def test_the_default_leaves_out_what_the_target_cannot_run():
    """Without a draft model there are methods left that need none."""
    frame = compare(tiny.target(), PROMPTS, max_new_tokens=4)
    left = frame.attrs["left_out"]
    assert {"sps", "mcsd"} <= set(left)
    assert {"ar", "pld", "lookahead", "hf_greedy"} <= set(frame["method"])
    assert "no draft model" in left["sps"]
    with pytest.raises(specwb.MethodError, match="no draft model"):
        compare(tiny.target(), PROMPTS, ["sps"], max_new_tokens=4)


def test_long_prompts_are_cut_and_counted():
    frame = compare(tiny.target(), [list(range(60)) * 10], ["ar"], max_new_tokens=4, library=False)
    assert frame.attrs["cut_prompts"] == 1
    with pytest.raises(ValueError, match="leaves no room"):
        compare(tiny.target(), PROMPTS, ["ar"], max_new_tokens=512)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["nope"]}, "unknown method 'nope'"),
        ({"methods": ["sps", "sps"]}, "named twice"),
        ({"methods": ["hf_prompt_lookup", "hf_prompt_lookup:gamma=10"]}, "named twice"),
        ({"methods": ["hf_assisted"], "batch": 3}, "one row at a time"),
        ({"methods": ["hf_greedy"], "temperature": 1.0}, "use hf_sample"),
        ({"methods": ["ar", "hf_assisted"], "draft": None}, "needs a draft model"),
        ({"batch": 0}, "batch"),
        *(
            ({"seconds": wrong}, "seconds must be a number > 0")
            for wrong in (0, -1, float("nan"), float("inf"), "5", True)
        ),
    ],
)
def test_bad_requests(changes, message):
    with pytest.raises(ValueError, match=message):
        run(**changes)


def runs_of(*seconds: float) -> list[Run]:
    """Runs of ten tokens each that take so many seconds."""
    return [Run([[0] * 10], 10, s) for s in seconds]


def test_the_reference_is_the_faster_plain_decoding_in_the_median_of_pairs():
    """One disturbed run decides which has more tokens/s in all, so that does not count."""
    ours = runs_of(1.0, 1.0, 1.0)
    assert runs.reference({"ar": ours, "hf_greedy": runs_of(0.5, 0.5, 9.0)}) == "hf_greedy"
    assert runs.reference({"ar": ours, "hf_greedy": runs_of(1.1, 1.1, 0.1)}) == "ar"
    assert runs.reference({"ar": ours, "hf_greedy": ours}) == "ar"


def test_a_method_is_told_apart_from_the_fastest_by_its_pairs():
    """By hand: eight pairs won by 10 % and one lost by 10 % have a mean logarithm of .073 with the
    standard error .022, so t = 3.3 and p = .011, or .034 with three comparisons; of five, p = .24.
    """
    slow = runs_of(*[2.0] * 9)
    measured = {
        "ar": slow,
        "always": runs_of(*[1.0] * 9),
        "once": runs_of(0.9, *[1.1] * 8),
        "never": runs_of(*[1.0] * 9),
    }
    best = {"method": "always", "speedup": 2.0, "others": 3}
    assert runs.fastest(measured, "ar") == {**best, "tied": ["never"]}
    # five comparisons at 5 %
    more = {**measured, "ar2": slow, "ar3": slow}
    assert runs.fastest(more, "ar")["tied"] == ["once", "never"]
    few = {name: some[:5] for name, some in measured.items()}
    assert runs.fastest(few, "ar")["tied"] == ["once", "never"]
    single = {name: some[:1] for name, some in measured.items()}
    assert runs.fastest(single, "ar")["tied"] == ["ar", "always", "never"]


def test_speedups_are_over_plain_decoding_in_another_number_type_where_that_is_faster(monkeypatch):
    """It is decoded by that model, and its text is not compared with the other type's."""
    target, double = tiny.target(), tiny.target("llama", torch.float64)
    on = {torch.float32: target, torch.float64: double}
    real, by_key = measuring._decode, {}

    def decode(model, job, *rest):
        written = real(model, job, *rest)
        by_key.setdefault(job.key, set()).add(model)
        fast = model is double and not isinstance(job.method, Library)
        return dataclasses.replace(written, seconds=1.0 if fast else 2.0)

    monkeypatch.setattr(measuring, "_decode", decode)
    frame = run(methods=["sps"], library=False, others=[double])
    rows = ["ar", "sps", "hf_greedy", "float64 ar", "float64 hf_greedy"]
    assert by_key == {x: {on[torch.float64 if "64" in x else torch.float32]} for x in rows}
    assert list(frame["method"]) == rows
    reference = frame.attrs["reference"]
    assert (reference["method"], len(reference["plain"])) == ("float64 ar", 4)
    by = frame.set_index("method")
    assert by["speedup"].to_dict() == {x: 1.0 if x == "float64 ar" else 0.5 for x in rows}
    assert by["identical"].isna().tolist() == [False] * 3 + [True] * 2
    assert set(frame.attrs["same_text"]) == set(rows[:3])
    said = report.over(frame.attrs)
    assert "over float64 ar (specwb's own plain decoding in float64, " in said
    assert "float64 hf_greedy (transformers' generate in float64) has" in said
    shown = {row["method"]: row["same text"] for row in report.cells(frame)}
    assert [shown[x] for x in rows] == ["yes"] * 3 + ["-"] * 2
    assert "float64 ar" in report.markdown(frame)
    json.dumps(to_json(frame))
    for wrong, message in (
        ([target], "float32 is there already"),
        (["float64"], "others are models"),
        (double, "others are models"),
        ([double] * 2, "float64 is there already"),
        ([tiny.target("qwen2", torch.float64)], "others are the same model"),
    ):
        with pytest.raises(ArgumentError, match=message):
            run(methods=["sps"], others=wrong)


def test_speedups_are_over_the_faster_plain_decoding(monkeypatch):
    """The library's plain decoding is made twice as fast as sps, which is twice as fast as ar.

    What is faster than ar alone is no speedup.
    """
    tokens = specwb.decode(tiny.target(), PROMPTS, "ar", max_new_tokens=12).tokens
    seconds = {"ar": 2.0, "sps": 1.0}
    monkeypatch.setattr(
        measuring, "_decode", lambda target, job, *_: Run(tokens, 36, seconds.get(job.key, 0.5))
    )
    monkeypatch.setattr(module, "_same_texts", lambda *_: {})
    for temperature, name in ((0.0, "hf_greedy"), (1.0, "hf_sample")):
        frame = run(methods=["sps"], library=False, temperature=temperature)
        by = frame.set_index("method")
        assert frame.attrs["reference"] == {
            "method": name,
            "plain": {"ar": 18.0, name: 72.0},
            "library": {},
        }
        assert by["speedup"].to_dict() == {"ar": 0.25, "sps": 0.5, name: 1.0}
        assert frame.attrs["by_category"]["all"]["sps"]["speedup"] == 0.5
        assert to_json(frame)["reference"]["method"] == name
    non_looping = run(methods=["sps"], library=False).attrs["non_looping"]
    assert non_looping["methods"]["sps"]["speedup"] == 0.5


def test_the_order_of_runs_rotates(monkeypatch):
    """Each of three methods begins one of three groups."""
    decoded: list[str] = []

    def decode(target, job, *rest):
        decoded.append(job.key)
        return Run([[0] * 12], 12, 1.0)

    monkeypatch.setattr(measuring, "_decode", decode)
    monkeypatch.setattr(measuring, "_warm_up", lambda *_: None)
    run(methods=["sps"], library=False)
    assert decoded[:3] == ["ar", "sps", "hf_greedy"]
    assert decoded[3:6] == ["sps", "hf_greedy", "ar"]
    assert decoded[6:] == ["hf_greedy", "ar", "sps"]


def test_hashes_are_of_each_model():
    target, draft = tiny.target(), tiny.draft()
    hashes = conditions.conditions(target, draft=draft)["sha256"]
    assert hashes == {"target": target.fingerprint, "draft": draft.fingerprint}
    assert hashes["target"] != hashes["draft"]


def test_a_disturbed_run_that_cannot_be_repeated_is_flagged(monkeypatch):
    """No time is left to repeat it, so a slow run stays, and the frame says so."""
    count = iter(range(1000))
    monkeypatch.setattr(module, "one_step", lambda target: lambda: 1.0 if next(count) < 5 else 2.0)
    settings = {"draft": tiny.draft(), "max_new_tokens": 12, "library": False}
    # with a limit no run of the first group is repeated
    frame = compare(tiny.target(), PROMPTS[:1], ["sps"], **settings, seconds=100.0)
    machine = frame.attrs["machine"]
    assert (machine["runs"], machine["disturbed"], machine["measured_again"]) == (3, 2, 0)
    assert sorted(frame["disturbed"]) == [0, 1, 1]
    assert machine["busy"]


@pytest.mark.parametrize(("limit", "again"), [(3600.0 * 100, 0), (None, 2)])
def test_with_a_limit_every_method_has_a_run_before_one_is_repeated(
    hours, monkeypatch, limit, again
):
    count = iter(range(1000))
    monkeypatch.setattr(module, "one_step", lambda target: lambda: 1.0 if next(count) < 5 else 2.0)
    settings = {"draft": tiny.draft(), "max_new_tokens": 4, "library": False, "seconds": limit}
    frame = compare(tiny.target(), PROMPTS[:1], ["sps"], **settings)
    assert frame.attrs["machine"]["measured_again"] == again


def test_outputs_can_be_checked_afterwards():
    frame = run(methods=["sps"], library=False, batch=3)
    wanted = specwb.decode(tiny.target(), PROMPTS, "ar", max_new_tokens=12).tokens
    written = [" ".join(map(str, row)) for row in wanted]  # a target without a tokenizer writes ids
    assert [o["prompt"] for o in frame.attrs["outputs"]] == ["1 2 3", "5 6", "7 8 9 10 11"]
    assert [o["texts"] for o in frame.attrs["outputs"]] == [
        dict.fromkeys(("ar", "sps", "hf_greedy"), text) for text in written
    ]
