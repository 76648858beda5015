"""Sweeps on tiny models: what a run notes, going on, processes, the commands."""

from __future__ import annotations

import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import tiny
from terminal import call, refused

import specwb
from specwb.core.options import parse_value
from specwb.engine.work import WorkError
from specwb.lab.bench import conditions
from specwb.lab.bench import measure as measuring
from specwb.lab.bench.store import digest
from specwb.lab.papers.grid import Cell
from specwb.lab.papers.paper import read_paper
from specwb.lab.sweeps import (
    Space,
    Store,
    StoreError,
    SweepError,
    frame,
    front,
    heads,
    summary,
    workers,
)
from specwb.lab.sweeps.results import filtered, pareto
from specwb.lab.sweeps.run import with_plain
from specwb.lab.sweeps.space import SHARED, checked, read
from specwb.show.figures.sweeps import trade

PROMPTS = [[1, 2, 3], [5, 4], [7, 8, 9, 1]]
SHORT = {"max_new_tokens": 8}
MADE_ON = {"models": {"target": "t"}, "sha256": {}, "versions": {}}


def stored(tokens: int) -> dict:
    """What a run of four steps leaves in a store."""
    steps = {"accepted": [1] * 4, "tested": [1] * 4}
    texts = {"domain": "all", "text": "t", "began": "2026-11-22T00:00:00+00:00"}
    return {"tokens": tokens, **steps, **texts, "disturbed": False}


@pytest.fixture(scope="module")
def target():
    return tiny.target()


@pytest.fixture(scope="module")
def found(target) -> pd.DataFrame:
    axes = {"gamma": [1, 3], "temperature": [0.0, 1.0], "seed": [0, 1]}
    return specwb.sweep(target, PROMPTS, "pld", **axes, **SHORT)


def test_every_configuration_decodes_every_prompt(found):
    own = found[found.method == "pld"]
    assert len(own) == 2 * 2 * 2 * len(PROMPTS)
    assert len(found) - len(own) == 2 * 2 * len(PROMPTS)  # plain decoding, by sampling and seed
    assert (found.tokens <= 8).all()
    assert (found.tau >= 1).all()
    assert (own[own.temperature == 0].identical == 1).all()
    assert own.speedup.notna().all()
    plain = found[found.method == "ar"]
    assert (plain.speedup == 1).all()
    assert (plain.tau == 1).all()


def test_it_is_what_decode_does(target, found):
    one = found[(found.method == "pld") & (found.gamma == 3) & (found.temperature == 1.0)]
    tau, texts = [], []
    for prompt in PROMPTS:
        out = specwb.decode(target, prompt, "pld", gamma=3, temperature=1.0, seed=[1], **SHORT)
        tau.append(out.mean_tokens_per_step)
        texts.append(digest(out.tokens[0]))
    assert sorted(one[one.seed == 1].tau) == pytest.approx(sorted(tau))
    assert sorted(one[one.seed == 1].text) == sorted(texts)


def test_what_is_stored_is_not_measured_again(target, tmp_path, monkeypatch):
    store = tmp_path / "s.sqlite"
    first = specwb.sweep(target, PROMPTS, "pld", gamma=[1, 2], store=store, **SHORT)
    calls = []
    monkeypatch.setattr(workers, "_measured", lambda *a: calls.append(a) or pytest.fail("measured"))
    again = specwb.sweep(target, PROMPTS, "pld", gamma=[1, 2], store=store, **SHORT)
    pd.testing.assert_frame_equal(first, again)
    monkeypatch.undo()
    more = specwb.sweep(target, PROMPTS, "pld", gamma=[1, 2, 3], store=store, **SHORT)
    assert len(more) == len(first) + len(PROMPTS)


def test_more_than_a_day_is_refused_before_the_first_run(target, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECWB_HOURS", "1e-12")
    store = tmp_path / "s.sqlite"
    with pytest.raises(WorkError, match=r"^9 runs at the .*; lower first \(prompts\), max_new_tok"):
        specwb.sweep(target, PROMPTS, "pld", gamma=[1, 2], store=store, **SHORT)
    assert len(frame(store)) == 0


def test_an_interrupt_loses_at_most_the_run_it_was_at(target, tmp_path):
    store, seen = tmp_path / "s.sqlite", []

    def stop(done: float, text: str) -> None:
        seen.append(text)
        if len(seen) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        specwb.sweep(target, PROMPTS, "pld", gamma=[1, 2], store=store, progress=stop, **SHORT)
    assert len(frame(store)) == 4
    about = "9 runs at the speed of plain decoding: about "
    assert seen[0].startswith(about)  # said before the first of them
    assert seen[1] == "1 of 9 runs"
    whole = specwb.sweep(target, PROMPTS, "pld", gamma=[1, 2], store=store, **SHORT)
    assert len(whole) == 3 * len(PROMPTS)


def test_of_configurations_that_differ_in_their_seeds_one_is_warmed_up(target, monkeypatch):
    warmed = []
    monkeypatch.setattr(measuring, "_warm_up", lambda target, job, *_: warmed.append(job))
    axes = {"gamma": [1, 2], "temperature": [0.0, 1.0], "seed": [0, 1, 2], **SHORT}
    specwb.sweep(target, PROMPTS, "pld", **axes)
    seen = {(job.method.key, job.sampling.temperature) for job in warmed}
    assert len(warmed) == len(seen) == 6  # with plain decoding, at both temperatures


def test_times_are_noted_where_they_were_not(target, tmp_path):
    axes = {"gamma": [1, 2], "store": tmp_path / "s.sqlite", **SHORT}
    first = specwb.sweep(target, PROMPTS, "pld", timed=False, **axes)
    assert first.seconds.isna().all()
    second = specwb.sweep(target, PROMPTS, "pld", **axes)
    assert len(second) == len(first)
    assert second.seconds.notna().all()
    assert second.speedup.notna().all()
    third = specwb.sweep(target, PROMPTS, "pld", timed=False, **axes)
    assert (third.seconds == second.seconds).all()


def test_a_speedup_is_over_plain_decoding_of_the_same_machine(tmp_path):
    """A store has runs of two machines; the second one's plain decoding is half as fast."""
    with Store(tmp_path / "s.sqlite") as store:
        for machine, plain in (("one", 4.0), ("two", 8.0)):
            for method, seconds in (("ar", plain), ("pld", 2.0)):
                settings = {"method": method, **SHARED}
                id = store.add_settings(settings, {**MADE_ON, "machine": machine})
                store.add(id, "p", stored(8), seconds)
        speedups = frame(store).set_index(["method", "machine"]).speedup
    assert speedups.tolist() == [1, 2, 1, 4]


def test_defaults_and_spellings_are_one_configuration(target, tmp_path):
    store = tmp_path / "s.sqlite"
    plain = specwb.sweep(target, PROMPTS, "pld", store=store, **SHORT)
    default = int(plain.gamma.dropna().iloc[0])
    again = specwb.sweep(
        target, PROMPTS, "pld", gamma=default, temperature=[0, 0.0], seed=0, store=store, **SHORT
    )
    assert again["id"].tolist() == plain["id"].tolist()
    assert len(Space([{"method": "pld"}, {"method": "pld", "top_p": 1}]).configurations()) == 1


@pytest.mark.parametrize(
    ("method", "axes"), [("lookahead", {"prompt": [True, False]}), ("pld", {"gamma": [1, 2]})]
)
def test_an_option_may_have_the_name_of_a_column(target, method, axes):
    found = specwb.sweep(target, PROMPTS, method, **axes, **SHORT)
    (name,) = axes
    column = f"option.{name}" if name == "prompt" else name
    means = summary(found[found.method == method], [column], "tau")
    assert len(means) == 2
    assert found["prompt"].nunique() == len(PROMPTS)


def test_runs_of_two_versions_are_not_mixed(target, tmp_path, monkeypatch):
    store = tmp_path / "s.sqlite"
    for version in ("abc", "def"):
        monkeypatch.setattr(conditions, "commit", lambda version=version: version)
        specwb.sweep(target, PROMPTS, "pld", store=store, **SHORT)
    found = frame(store)
    assert len(found) == 4 * len(PROMPTS)
    with pytest.raises(SweepError, match=r"several commit \(abc, def\): choose one"):
        summary(found, ["method"])
    assert (summary(filtered(found, ["commit=abc"]), ["method"]).prompts == 3).all()


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Checks that the same was decoded, and that the other has no times."""
    columns = ["method", "gamma", "temperature", "prompt", "tokens", "text"]
    order = ["method", "gamma", "temperature", "prompt"]
    pd.testing.assert_frame_equal(
        one[columns].sort_values(order).reset_index(drop=True),
        other[columns].sort_values(order).reset_index(drop=True),
    )
    assert other.seconds.isna().all()
    assert other.speedup.isna().all()
    assert other.identical.notna().all()


AXES = {"gamma": [1, 2, 3], "temperature": [0.0, 1.0], **SHORT}


@pytest.mark.slow
def test_several_processes_find_the_same(target, tmp_path):
    model = tiny.build("llama", seed=0)
    model.save_pretrained(tmp_path / "target")
    tiny.tokenizer([f"w{i}" for i in range(tiny.VOCABULARY)]).save_pretrained(tmp_path / "target")
    for where in (str(tmp_path / "target"), target):  # by its name, and a model in memory
        alone = specwb.sweep(where, PROMPTS, "pld", **AXES)
        same(alone, specwb.sweep(where, PROMPTS, "pld", jobs=2, **AXES))


def test_processes_are_those_of_joblibs_backend_in_force(target, monkeypatch):
    """A cluster's workers come in so; here they are threads of this process."""
    threads = []
    elsewhere = workers._elsewhere

    def noted(*given):
        threads.append(threading.current_thread())
        return elsewhere(*given)

    alone = specwb.sweep(target, PROMPTS, "pld", **AXES)
    monkeypatch.setattr(workers, "_elsewhere", noted)
    with joblib.parallel_config(backend="threading"):
        same(alone, specwb.sweep(target, PROMPTS, "pld", jobs=2, **AXES))
    assert threads
    assert threading.main_thread() not in threads


def test_a_model_in_memory_is_sent_once(target):
    with workers._sent(target) as where:
        assert len(pickle.dumps(where)) < 1000
        own = workers._loaded(where, target.fingerprint, target.dtype)
        assert own is workers._loaded(where, target.fingerprint, target.dtype)
        assert own.vocabulary == target.vocabulary
        with pytest.raises(SweepError, match="a worker finds another model"):
            workers._loaded(
                where, "0" * 64, target.dtype
            )  # such as one that was trained anew in its folder
    assert not where.exists()


@pytest.mark.slow
def test_settings_of_training_are_axes(tmp_path):
    words = [f"w{i}" for i in range(tiny.VOCABULARY)]
    tiny.build("llama", seed=0).save_pretrained(tmp_path / "target")
    tiny.tokenizer(words).save_pretrained(tmp_path / "target")
    corpus = tmp_path / "c.txt"
    corpus.write_text(" ".join(words * 60))
    target = specwb.load(tmp_path / "target", device="cpu")
    train = {"corpus": str(corpus), "text": "read", "steps": 2, "rows": 2, "length": 32}
    train |= {"unroll": 2, "seed": [0, 1], "loss": ["kl", "tv"]}
    axes = {"tree": "1-1", "store": tmp_path / "s.sqlite", "timed": False, **SHORT}
    found = specwb.sweep(target, PROMPTS, "eagle", train=train, **axes)
    own = found[found.method == "eagle"]
    assert len(own) == 4 * len(PROMPTS)
    assert own["head_sha256"].nunique() == 4
    assert len(list((tmp_path / "s.heads").glob("eagle-*/card.json"))) == 4
    means = summary(found, ["train.loss"], "tau")
    assert means["train.loss"].tolist()[:2] == ["kl", "tv"]
    # nothing is trained or measured again, and no path is in the store
    again = specwb.sweep(target, PROMPTS, "eagle", train=train, **axes)
    assert again["id"].tolist() == found["id"].tolist()
    with Store(tmp_path / "s.sqlite") as store:
        assert str(tmp_path / "s.heads") not in str(store.settings())
    for wrong, message in (
        ({"train": {"loss": "mse"}}, "loss must be one of"),
        ({"train": {"lambda": 1}}, "eagle has no setting 'lambda'"),
        ({"train": {"seed": 1}, "head": "x"}, "eagle names its head"),
        ({"train": 3}, "train is a table"),
    ):
        with pytest.raises(specwb.SpecwbError, match=message):
            specwb.sweep(target, PROMPTS, "eagle", **wrong, **SHORT)
    with pytest.raises(SweepError, match="pld has no trained head"):
        specwb.sweep(target, PROMPTS, "pld", train={"seed": 1}, **SHORT)


def test_a_second_sweep_at_once_is_refused(target, tmp_path):
    """Whether it gives the file or an open store; reading is allowed."""
    path, refused = tmp_path / "s.sqlite", []

    def meet(done: float, text: str) -> None:
        with Store(path) as opened:
            for store in (path, opened):
                with pytest.raises(StoreError, match="another program measures into it"):
                    specwb.sweep(target, PROMPTS, "pld", store=store, **SHORT)
        refused.append(len(frame(path)))

    found = specwb.sweep(target, PROMPTS, "pld", store=path, progress=meet, **SHORT)
    assert refused == [*range(len(found) + 1)]  # before the first run, and after each
    assert specwb.sweep(target, PROMPTS, "pld", store=path, **SHORT).equals(found)


KILLED = """
import sys
sys.path.insert(0, {tests!r})
import tiny, specwb
prompts = [[i, i + 1, i] for i in range(1, 40)]
specwb.sweep(tiny.target(), prompts, "pld", gamma=[1, 2, 3], store={store!r}, max_new_tokens=24)
"""


@pytest.mark.slow
def test_a_sweep_survives_being_killed(tmp_path):
    """By SIGKILL, again and again, until it is whole: nothing is lost or counted double."""
    store, tests = str(tmp_path / "s.sqlite"), str(Path(__file__).parents[1])
    script = KILLED.format(tests=tests, store=store)
    kills, before = 0, 0
    for _ in range(40):
        process = subprocess.Popen([sys.executable, "-c", script])
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
            with Store(store) as opened:
                done = len(opened.done())
            if done >= before + 24 and done < 4 * 39:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                kills += 1
                break
        if process.returncode == 0:
            break
        with Store(store) as opened:
            after = len(opened.done())
        assert after >= before + 24
        before = after
    assert kills >= 5
    found = frame(store)
    assert len(found) == 4 * 39
    assert not found.duplicated(["id", "prompt"]).any()
    assert (found.groupby("prompt").text.nunique() == 1).all()  # every run is whole


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("UPDATE runs SET record = json_set(record, '$.tokens', -5)", "the run of"),
        ("UPDATE runs SET record = json_set(record, '$.tokens', 'x')", "the run of"),
        ("UPDATE runs SET record = json_set(record, '$.tokens', 3)", "the run of"),
        ("UPDATE runs SET record = json_set(record, '$.text', 5)", "the run of"),
        ("UPDATE runs SET record = json_remove(record, '$.domain')", "no 'domain'"),
        ("UPDATE runs SET record = '{'", "Expecting"),
        ("UPDATE runs SET seconds = 'x'", "the run of"),
        ("UPDATE runs SET seconds = -1", "the run of"),
        ("UPDATE runs SET prompt = x'00'", "the run of"),
        ("DELETE FROM settings", "no '"),
        ("UPDATE settings SET settings = '[]'", "indices must be integers"),
        ("UPDATE settings SET settings = '{'", "Expecting"),
        ("UPDATE settings SET settings = '{}'", "no 'temperature'"),
        ("UPDATE settings SET conditions = '5'", "'int' object"),
        ("UPDATE settings SET conditions = '{\"tokens\": 5}'", "no 'models'"),
        ("UPDATE settings SET conditions = printf('%.100000c', '[')", "brackets are nested"),
    ],
)
def test_rows_that_no_sweep_writes_are_one_line_that_names_the_file(tmp_path, change, named):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        id = store.add_settings({"method": "ar", **SHARED}, MADE_ON)
        store.add(id, "p", stored(5), 0.5)
    assert len(frame(path)) == 1
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    with pytest.raises(SweepError, match=f"holds what no sweep has written: .*{named}") as caught:
        frame(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_plain_decoding_is_added_once():
    found = with_plain(Space([{"method": ["ar", "pld"], "seed": [0, 1]}]).configurations())
    assert [one["method"] for one in found] == ["ar", "ar", "pld", "pld"]


def test_what_cannot_be_is_found_before_the_first_run(target, tmp_path):
    store = tmp_path / "s.sqlite"
    with pytest.raises(ValueError, match="rule"):
        specwb.sweep(target, PROMPTS, "pld", rule=[None, "rejection"], store=store, **SHORT)
    with pytest.raises(SweepError, match="needs a method"):
        specwb.sweep(target, PROMPTS)
    with pytest.raises(SweepError, match="either a space, or"):
        specwb.sweep(target, PROMPTS, "pld", space=Space([{"method": "pld"}]))
    with pytest.raises(SweepError, match="jobs must be"):
        specwb.sweep(target, PROMPTS, "pld", jobs=0)
    with pytest.raises(ValueError, match="prompt"):
        specwb.sweep(target, [], "pld", **SHORT)
    assert not store.exists() or frame(store).empty


def test_a_summary_is_a_mean_over_prompts_with_an_interval(found):
    own = found[found.method == "pld"]
    means = summary(own, ["gamma"], "tau")
    assert means.gamma.tolist() == [1, 3]
    assert means.prompts.tolist() == [3, 3]
    assert means.runs.tolist() == [12, 12]
    for row in means.to_dict("records"):
        part = own[own.gamma == row["gamma"]]
        assert row["mean"] == pytest.approx(part.groupby("prompt").tau.mean().mean())
        assert row["low"] <= row["mean"] <= row["high"]
    paired = summary(own, ["gamma"], "tau", over={"gamma": 1})
    assert paired["mean"].tolist() == pytest.approx(
        [0.0, means["mean"][1] - means["mean"][0]], abs=1e-9
    )
    with pytest.raises(SweepError, match="no column 'eta'"):
        summary(own, ["eta"])
    with pytest.raises(SweepError, match="nothing was measured with"):
        summary(own, ["gamma"], over={"gamma": 7})


def test_the_intervals_quantiles_by_hand():
    """Of three prompts one has the value 4: drawn k times in three it makes the mean 1 + k, and
    k = 3 has the probability 1/27, more than 2.5 % and less than 5 %."""
    table = pd.DataFrame({"method": "x", "prompt": range(3), "seed": 0, "tau": [4.0, 1.0, 1.0]})
    ends = [
        summary(table, ["method"], "tau", confidence=c)[["low", "high"]].iloc[0].tolist()
        for c in (0.95, 0.9)
    ]
    assert ends == [[1, 4], [1, 3]]


def test_filters_combinations_and_the_front(found):
    assert set(filtered(found, ["method=pld", "gamma=3"]).gamma) == {3}
    with pytest.raises(SweepError, match="conditions are name=value"):
        filtered(found, ["colour=red"])
    table = pd.DataFrame({"a": [1, 2, 2, 0], "b": [2, 1, 2, 0]})
    assert pareto(table, "a", "b").tolist() == [False, False, True, False]


def test_the_front_of_a_sweep_by_hand():
    """Of three settings one drafts more than another for fewer tokens."""
    rows = [
        {"method": m, "prompt": p, "seed": 0, "tau": tau + p, "drafted": drafted}
        for m, tau, drafted in (("few", 1.0, 2.0), ("more", 2.0, 4.0), ("worst", 1.5, 6.0))
        for p in (0, 1)
    ]
    both = front(pd.DataFrame(rows), ["method"])
    assert both.method.tolist() == ["few", "more", "worst"]  # by cost
    assert both.front.tolist() == [True, True, False]
    assert both.tau.tolist() == [1.5, 2.5, 2]
    assert both[["tau_low", "tau_high"]].iloc[0].tolist() == [1, 2]
    others, best = trade(both, ["method"], "tau", "drafted").data
    assert (list(others.x), list(others.y), list(others.text)) == ([6], [2], ["method=worst"])
    assert (list(best.x), list(best.y)) == ([2, 4], [1.5, 2.5])
    assert list(best.error_y.array) == [0.5, 0.5]


def test_what_is_drafted_and_what_a_step_costs(found, tmp_path):
    with Store(tmp_path / "s.sqlite") as store:  # of an earlier version, and of this one
        for key, record in (("p", stored(8)), ("q", {**stored(8), "drafted": 12})):
            store.add(store.add_settings({"method": "pld", **SHARED}, MADE_ON), key, record)
        drafted = frame(store).set_index("prompt").drafted
    assert np.isnan(drafted["p"])
    assert drafted["q"] == 3
    plain = found.method == "ar"
    assert (found[plain].drafted == 0).all()
    assert (found[plain].cost == 1).all()
    assert (found[~plain].drafted <= 3).all()
    assert (found[~plain].drafted >= found[~plain].accepted - 1e-9).all()
    assert (found.cost * found.speedup).tolist() == pytest.approx(found.tau.tolist())


def test_a_papers_grid_is_a_file_to_begin_with(monkeypatch, capsys, tmp_path):
    code, out, err = call(monkeypatch, capsys, "sweep", "--paper", "kangaroo")
    assert (code, err) == (0, "")
    (tmp_path / "k.toml").write_text(out)
    found = read(tmp_path / "k.toml").space.configurations()
    cells = [cell for cell in map(Cell.read, read_paper("kangaroo").measure) if cell.kind != "ar"]
    assert len(found) == len(cells)
    for cell in cells:
        pairs = [item.split("=") for item in cell.spec.partition(":")[2].split(",") if item]
        options = {name: parse_value(value) for name, value in pairs}
        assert checked({"method": cell.kind, "temperature": cell.temperature, **options}) in found
    for wrong, message in (
        (("--paper", "nope"), "--paper is one of mcsd"),
        (("k.toml", "--paper", "mcsd"), "--paper measures nothing; leave file out"),
        ((), "a sweep needs a FILE"),
    ):
        assert message in refused(monkeypatch, capsys, "sweep", *wrong)


def test_the_commands(monkeypatch, capsys, tmp_path):
    model = tiny.build("llama", seed=0)
    model.save_pretrained(tmp_path / "target")
    tiny.tokenizer([f"w{i}" for i in range(tiny.VOCABULARY)]).save_pretrained(tmp_path / "target")
    prompts = tmp_path / "p.jsonl"
    line = '{"question_id": %d, "category": "all", "turns": ["w1 w2 w%d"], "format": "text"}\n'
    prompts.write_text("".join(line % (i, i) for i in range(4)))
    plan = tmp_path / "s.toml"
    plan.write_text(
        f'target = "{tmp_path / "target"}"\nprompts = "{prompts}"\nfirst = 3\n'
        '[axes]\nmax_new_tokens = 6\n[[methods]]\nmethod = "pld"\ngamma = [1, 2]\n'
    )
    store = tmp_path / "s.sqlite"
    code, out, err = call(monkeypatch, capsys, "sweep", str(plan), "--out", str(store))
    assert code == 0, err
    assert "9 runs at the speed of plain decoding: about " in err
    assert "9 runs of 3 configurations are in" in err
    assert {"pld", "ar", "95"} < set(out.split())
    csv, plot = tmp_path / "runs.csv", tmp_path / "p.html"
    shown = ("sweep", str(store), "--by", "gamma", "--where", "method=pld")
    more = ("--value", "tau", "--csv", str(csv), "--plot", str(plot))
    code, out, err = call(monkeypatch, capsys, *shown, *more)
    assert code == 0, err
    header, *rows = (line.split() for line in out.strip().splitlines())
    assert header == ["gamma", "tau", "95", "%", "prompts", "runs"]
    assert [(row[0], row[-2:]) for row in rows] == [("1", ["3", "3"]), ("2", ["3", "3"])]
    assert len(pd.read_csv(csv)) == 6
    assert "plotly" in plot.read_text()
    for arguments, message in (
        (("sweep", str(tmp_path / "no.sqlite")), "does not exist; it is a .toml file or a store"),
        (("sweep", str(store), "--by", "eta"), "no column 'eta'"),
        (("sweep", str(store), "--where", "x"), "conditions are name=value"),
        (("sweep", str(store), "--jobs", "2"), "sweep STORE takes no --jobs"),
        (("sweep", str(tmp_path / "no.toml")), "No such file"),
    ):
        assert message in refused(monkeypatch, capsys, *arguments)


def test_two_sweeps_do_not_train_one_head_at_once(target, monkeypatch, tmp_path):
    inside, most = [], []

    def train_head(kind, model, folder, *rest, **more):
        inside.append(folder)
        most.append(len(inside))
        time.sleep(0.05)
        inside.remove(folder)
        return folder

    monkeypatch.setattr(heads, "train_head", train_head)
    monkeypatch.setattr(heads, "training_text", lambda *_: ("text", "mixture"))
    one = {"method": "medusa", "train.seed": 1}
    both = [heads.Heads(target, tmp_path / "heads") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda each: each.trained(one), both)
    assert first == second
    assert most == [1, 1]


def test_a_head_is_known_by_its_corpus_by_its_content(target, monkeypatch, tmp_path):
    monkeypatch.setattr(heads, "train_head", lambda kind, model, folder, *rest, **more: folder)
    monkeypatch.setattr(heads, "training_text", lambda *_: ("text", "mixture"))
    corpus, every = tmp_path / "c.txt", heads.Heads(target, tmp_path / "heads")
    found = []
    for text in ("one", "two", "one"):
        corpus.write_text(text)
        found.append(every.trained({"method": "medusa", "train.corpus": str(corpus)}))
    assert found[0] == found[2] != found[1]
