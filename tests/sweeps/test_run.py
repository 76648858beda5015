"""Sweeps on tiny models: what a run records, going on, processes, results, the command."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from pathlib import Path

import joblib
import pandas as pd
import pytest
import tiny
from terminal import call, refused

import specwb
from specwb.engine.work import WorkError
from specwb.lab.bench import conditions
from specwb.lab.bench import measure as measuring
from specwb.lab.bench.store import RunStore, StoreError, digest
from specwb.lab.sweeps import SweepError, frame, front, run, summary
from specwb.lab.sweeps.results import filtered
from specwb.lab.sweeps.space import DEFAULTS
from specwb.show.figures.sweeps import trade

PROMPTS = [[1, 2, 3], [5, 4], [7, 8, 9, 1]]
SHORT = {"max_new_tokens": 8}


@pytest.fixture(scope="module")
def target():
    return tiny.target()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The target's folder."""
    folder = tmp_path_factory.mktemp("model") / "target"
    tiny.build("llama", seed=0).save_pretrained(folder)
    tiny.tokenizer([f"w{i}" for i in range(tiny.VOCABULARY)]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def runs(target) -> pd.DataFrame:
    axes = {"gamma": [1, 3], "temperature": [0.0, 1.0], "seed": [0, 1]}
    return specwb.sweep(target, PROMPTS, "pld", **axes, **SHORT)


def test_every_configuration_decodes_every_prompt(target, runs):
    own, plain = runs[runs.method == "pld"], runs[runs.method == "ar"]
    assert len(own) == 2 * 2 * 2 * len(PROMPTS)
    assert len(plain) == 2 * 2 * len(PROMPTS)  # by sampling and seed
    assert (own[own.temperature == 0].identical == 1).all()
    assert own.speedup.notna().all()
    assert (plain[["speedup", "tau", "cost"]] == 1).all().all()
    assert (plain.drafted == 0).all()
    assert (own.drafted >= own.tau - 1 - 1e-9).all()
    assert (runs.cost * runs.speedup).tolist() == pytest.approx(runs.tau.tolist())
    tau, texts = [], []
    for prompt in PROMPTS:
        out = specwb.decode(target, prompt, "pld", gamma=3, temperature=1.0, seed=[1], **SHORT)
        tau.append(out.mean_tokens_per_step)
        texts.append(digest(out.tokens[0]))
    one = own[(own.gamma == 3) & (own.temperature == 1.0) & (own.seed == 1)]
    assert sorted(one.tau) == pytest.approx(sorted(tau))
    assert sorted(one.text) == sorted(texts)


def test_what_is_stored_is_not_measured_again(target, tmp_path, monkeypatch):
    store = tmp_path / "s.sqlite"
    first = specwb.sweep(target, PROMPTS, "pld", gamma=[1, 2], store=store, **SHORT)
    with monkeypatch.context() as patch:
        patch.setattr(measuring, "_decode", lambda *_: pytest.fail("measured"))
        again = specwb.sweep(
            target, PROMPTS, "pld", gamma=[1, 2], temperature=[0, 0.0], store=store, **SHORT
        )
    pd.testing.assert_frame_equal(first, again)
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
        with pytest.raises(StoreError, match="another program measures into it"):
            specwb.sweep(target, PROMPTS, "pld", store=store, **SHORT)
        if len(seen) == 5:
            raise KeyboardInterrupt

    axes = {"gamma": [1, 2], "store": store, **SHORT}
    with pytest.raises(KeyboardInterrupt):
        specwb.sweep(target, PROMPTS, "pld", progress=stop, **axes)
    assert len(frame(store)) == 4
    assert seen[0].startswith("9 runs at the speed of plain decoding: about ")
    assert seen[1] == "1 of 9 runs"
    assert len(specwb.sweep(target, PROMPTS, "pld", **axes)) == 3 * len(PROMPTS)


def test_times_are_recorded_where_they_were_not(target, tmp_path):
    axes = {"gamma": [1, 2], "store": tmp_path / "s.sqlite", **SHORT}
    first = specwb.sweep(target, PROMPTS, "pld", timed=False, **axes)
    assert first.seconds.isna().all()
    second = specwb.sweep(target, PROMPTS, "pld", **axes)
    assert len(second) == len(first)
    assert second.speedup.notna().all()
    third = specwb.sweep(target, PROMPTS, "pld", timed=False, **axes)
    assert (third.seconds == second.seconds).all()


def test_runs_of_two_versions_are_not_mixed(target, tmp_path, monkeypatch):
    store = tmp_path / "s.sqlite"
    for version in ("abc", "def"):
        monkeypatch.setattr(conditions, "commit", lambda version=version: version)
        specwb.sweep(target, PROMPTS, "pld", store=store, **SHORT)
    stored = frame(store)
    assert len(stored) == 4 * len(PROMPTS)
    with pytest.raises(SweepError, match=r"several commit \(abc, def\): choose one"):
        summary(stored, ["method"])
    assert (summary(filtered(stored, ["commit=abc"]), ["method"]).prompts == 3).all()


def written(path: Path, **changes) -> Path:
    """A store of two machines' runs; the second one's plain decoding is half as fast."""
    record = {"tokens": 8, "accepted": [1] * 4, "drafted": 12, "domain": "all", "text": "t"}
    record["began"] = "2026-11-26"
    on = {"models": {"target": "t"}, "sha256": {}, "versions": {}}
    with RunStore(path) as store:
        for machine, plain in (("one", 4.0), ("two", 8.0)):
            for method, seconds in (("ar", plain), ("pld", 2.0)):
                settings = {"method": method, **DEFAULTS}
                id = store.add_settings(settings, {**on, "machine": machine})
                store.add(id, "p", {**record, "disturbed": False, **changes}, seconds)
    return path


def test_a_speedup_is_over_plain_decoding_of_the_same_machine(tmp_path):
    stored = frame(written(tmp_path / "s.sqlite"))
    assert stored.set_index(["method", "machine"]).speedup.tolist() == [1, 2, 1, 4]
    assert stored.drafted.tolist() == [3] * 4
    with pytest.raises(SweepError, match=r"other\.sqlite holds what no sweep has written"):
        frame(written(tmp_path / "other.sqlite", accepted=None))


class Steps(specwb.Drafter):
    """Has an option with the name of a column."""

    def __init__(self, steps: int = 1) -> None:
        self.tree = specwb.Tree.chain(steps)

    def propose(self, state, noise):
        return self.candidates(state, state.tokens[:, : self.tree.D])


def test_an_option_may_have_the_name_of_a_column(target, monkeypatch):
    monkeypatch.setattr("specwb.engine.methods.METHODS", dict(specwb.METHODS))
    specwb.register("counting", Steps)
    runs = specwb.sweep(target, PROMPTS, "counting", steps=[1, 2], **SHORT)
    assert len(summary(runs[runs.method == "counting"], ["option.steps"], "tau")) == 2


AXES = {"gamma": [1, 2], "temperature": [0.0, 1.0], **SHORT}


def test_processes_are_those_of_joblibs_backend_in_force(folder, monkeypatch):
    """A cluster's workers come in so; here they are threads of this process, which get what would
    be sent to another."""
    threads, in_process = [], run._in_process

    def noted(*given):
        threads.append(threading.current_thread())
        return in_process(*pickle.loads(pickle.dumps(given)))

    monkeypatch.setattr(run, "_in_process", noted)
    alone = specwb.sweep(str(folder), PROMPTS, "pld", **AXES)
    with joblib.parallel_config(backend="threading"):
        other = specwb.sweep(str(folder), PROMPTS, "pld", jobs=2, **AXES)
    assert threads
    assert threading.main_thread() not in threads
    columns = ["method", "gamma", "temperature", "prompt", "tokens", "text"]
    runs = (each[columns].sort_values(columns, ignore_index=True) for each in (alone, other))
    pd.testing.assert_frame_equal(*runs)
    assert other.seconds.isna().all()
    with pytest.raises(SweepError, match="a worker finds another model"):
        in_process(str(folder), "float32", "0" * 64, [], False)


def sweeping(target, store: Path) -> int:
    """A copy of this process that sweeps 30 runs and then ends with exit code 0; its id."""
    child = os.fork()
    if child == 0:
        try:
            prompts = [[i, i + 1, i] for i in range(1, 11)]
            axes = {"gamma": [1, 2], "store": store, "max_new_tokens": 16, "timed": False}
            specwb.sweep(target, prompts, "pld", **axes)
            os._exit(0)
        finally:
            os._exit(1)
    return child


def test_a_sweep_survives_being_killed(target, tmp_path):
    """By SIGKILL, again and again, until it is whole: nothing is lost or counted double."""
    store = tmp_path / "s.sqlite"

    def done() -> int:
        with RunStore(store) as opened:
            return len(opened.done())

    kills, before, status = 0, 0, -1
    while status:
        child, ended = sweeping(target, store), 0
        while not ended:
            time.sleep(0.05)
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended and before + 8 <= done() < 30:
                os.kill(child, signal.SIGKILL)
                ended, status = os.waitpid(child, 0)
        assert status in (0, signal.SIGKILL)
        kills += bool(status)
        assert done() >= before + 8 or not status
        before = done()
    assert kills
    stored = frame(store)
    assert len(stored) == 30
    assert not stored.duplicated(["id", "prompt"]).any()
    assert (stored.groupby("prompt").text.nunique() == 1).all()  # every run is whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "pld", "rule": [None, "rejection"]}, "rule"),
        ({}, "needs a method with its axes, or blocks"),
        ({"method": "pld", "blocks": [{"method": "pld"}]}, "needs a method with its axes, or bl"),
        ({"method": "pld", "jobs": 0}, "jobs must be"),
        ({"method": "pld", "jobs": 2}, "load the target by its name"),
        ({"method": "pld", "prompts": []}, "prompt"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_run(target, tmp_path, arguments, message):
    store = tmp_path / "s.sqlite"
    given = {"prompts": PROMPTS, "store": store, **arguments}
    with pytest.raises(ValueError, match=message):
        specwb.sweep(target, given.pop("prompts"), **given)
    assert not store.exists() or frame(store).empty


def test_a_summary_is_a_mean_over_prompts_with_an_interval(runs):
    own = runs[runs.method == "pld"]
    means = summary(own, ["gamma"], "tau")
    assert means[["gamma", "prompts", "runs"]].to_numpy().tolist() == [[1, 3, 12], [3, 3, 12]]
    for row in means.to_dict("records"):
        part = own[own.gamma == row["gamma"]]
        assert row["mean"] == pytest.approx(part.groupby("prompt").tau.mean().mean())
        assert row["low"] <= row["mean"] <= row["high"]
    paired = summary(own, ["gamma"], "tau", over={"gamma": 1})
    assert paired["mean"].tolist() == pytest.approx([0.0, means["mean"][1] - means["mean"][0]])
    with pytest.raises(SweepError, match="no column 'eta'"):
        summary(own, ["eta"])
    with pytest.raises(SweepError, match="nothing was measured with"):
        summary(own, ["gamma"], over={"gamma": 7})
    assert set(filtered(runs, ["method=pld", "gamma=3"]).gamma) == {3}
    with pytest.raises(SweepError, match="a condition is name=value with"):
        filtered(runs, ["colour=red"])


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


def test_the_command(monkeypatch, capsys, tmp_path, folder):
    prompts = tmp_path / "p.jsonl"
    line = '{"question_id": %d, "category": "all", "turns": ["w1 w2 w%d"], "format": "text"}\n'
    prompts.write_text("".join(line % (i, i) for i in range(4)))
    plan = tmp_path / "s.toml"
    plan.write_text(
        f'target = "{folder}"\nprompts = "{prompts}"\nfirst = 3\n'
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
    runs = pd.read_csv(csv)
    assert len(runs) == 6
    assert "plotly" in plot.read_text()
    _, out, _ = call(monkeypatch, capsys, *shown, "--where", f"prompt={runs.prompt[0]}")
    assert [row.split()[2] for row in out.strip().splitlines()[1:]] == ["-", "-"]  # no interval
    for arguments, message in (
        (("sweep", str(tmp_path / "no.sqlite")), "does not exist"),
        (("sweep", str(store), "--by", "eta"), "no column 'eta'"),
        (("sweep", str(store), "--jobs", "2"), "sweep STORE takes no --jobs"),
        (("sweep", str(tmp_path / "no.toml")), "No such file"),
    ):
        assert message in refused(monkeypatch, capsys, *arguments)
