"""The reproduction of MCSD on tiny models: results are measured, judged, saved and continued."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
from once import QUESTIONS, measured_once, reproduced
from terminal import refused

import specwb
from specwb.core.errors import ArgumentError
from specwb.core.tree import Tree
from specwb.engine import machine
from specwb.lab.bench import measure as measuring
from specwb.lab.bench.store import StoreError
from specwb.lab.studies import acceptance, grid, mcsd, run
from specwb.lab.studies.mcsd import STUDY, Cell
from specwb.lab.studies.run import measure
from specwb.lab.studies.store import Store
from specwb.lab.studies.study import Models, Study
from specwb.lab.studies.verdicts import LACKING

SHAPES = {"small": ((1,), (2,)), "trees": ((1, 1, 1), (2, 2, 1)), "equals": ((3,),)}


def measured(target, path, cells, seconds=1e-9) -> tuple[Store, bool]:
    """Measure into a store; also tell whether that was interrupted."""
    store = Store(path, {"system": "test", "temperatures": [0, 1]})
    models = Models(target, tiny.draft("llama", 0.05))
    return store, measure(STUDY, models, QUESTIONS, store, cells, rounds_each=4, seconds=seconds)


def study_of(cells) -> Study:
    """The study of these cells alone."""
    return replace(STUDY, cells=lambda _: cells, claims=lambda _: list(mcsd._claims(cells)))


def test_the_grid_has_every_tree_and_draw():
    cells = mcsd.all_cells([0, 0.3, 0.7, 1])
    assert len(cells) == len({cell.key for cell in cells})
    for t in (0.3, 0.7, 1):
        for tree in (*mcsd.SMALL[1:], *mcsd.TREES[1:]):
            settings = (t, tree, "tree", False)
            draws = {c.draw for c in cells if (c.temperature, c.tree, c.layout, c.long) == settings}
            assert draws == set(mcsd.DRAWS)
    assert {c.draw for c in cells if c.temperature == 0} == {"without"}
    assert {c.temperature for c in cells if c.layout == "batch"} == {1}
    nodes = {tree: Tree.branching(*tree).n for tree in (*mcsd.TREES, *mcsd.EQUALS)}
    assert nodes[4, 2, 2] == nodes[7, 1, 1, 1] == 29
    assert nodes[4, 2, 2, 1] == nodes[11, 1, 1, 1] == 45
    assert nodes[2, 2, 1] == nodes[(1,) * 10] == 11
    # every claim is about cells that the grid has
    claims = mcsd.claims({"arguments": {"temperatures": [0, 0.3, 0.7, 1]}})
    assert len(claims) == 11
    for claim in claims:
        pairs = list(zip(claim.first.settings, claim.second.settings, strict=True))
        assert all(a in cells and b in cells and a != b for a, b in pairs)
        assert claim.first.key == f"first of {len(pairs)} pairs"
    assert {c.table for c in claims} == {mcsd.ABSTRACT, mcsd.CODE, mcsd.THEOREM, LACKING}
    assert Cell(1, (4, 2, 2), "with").spec == "mcsd:tree=4-2-2,draw=with"
    assert Cell(0).spec == "ar"


def test_tokens_alone_are_those_of_a_timed_run_and_leave_its_times(target, tmp_path):
    cells = [Cell(1), Cell(1, (2, 2, 1)), Cell(1, (2, 2, 1), layout="batch")]
    whole, _ = measured(target, tmp_path / "whole.json", cells, seconds=1e9)
    path = tmp_path / "few.json"
    few, _ = measured(target, path, cells)
    few.save(final=True)
    times = {key: list(cell["ms"]) for key, cell in few.cells.items()}
    assert {len(ms) for ms in times.values()} == {grid.MIN_PROMPTS}
    models = Models(target, tiny.draft("llama", 0.05))
    again = Store(path, few.document["arguments"])
    assert not measure(STUDY, models, QUESTIONS, again, cells, rounds_each=4, timed=False)
    for cell in cells:
        record, timed = again.cells[cell.key], cell.layout == "batch"
        assert record["ms"] == times[cell.key]
        assert len(record["ms"]) == len(record["mean"]) == len(record["disturbed"]) == 2
        # several prompts of a batch accept what each does alone; other layouts are for their times
        n = grid.MIN_PROMPTS if timed else len(QUESTIONS)
        assert record["accepted"] == whole.cells[cell.key]["accepted"][:n]
        row = STUDY.row(again.document, cell)
        assert (row["prompts"], row.get("timed")) == (n, None if timed else grid.MIN_PROMPTS)
    counted = {key: list(cell["accepted"]) for key, cell in again.cells.items()}
    assert not measure(STUDY, models, QUESTIONS, again, cells, rounds_each=4, seconds=1e9)
    for cell in cells:
        record = again.cells[cell.key]
        assert record["ms"][: grid.MIN_PROMPTS] == times[cell.key]
        assert {len(x) for x in record.values()} <= {len(QUESTIONS), 0}
        assert record["accepted"][: len(counted[cell.key])] == counted[cell.key]


def test_a_machine_may_differ_where_tokens_alone_are_counted(tmp_path):
    path, here = tmp_path / "x.json", {"system": "test", "device": "A, 2 threads"}
    Store(path, here).save(final=True)
    there = {**here, "device": "B, 1 threads"}
    with pytest.raises(StoreError, match="was measured with device"):
        Store(path, there)
    assert Store(path, there, differing=("device",)).document["arguments"] == here


def test_of_many_heads_the_message_names_one(tmp_path):
    path, heads = tmp_path / "x.json", {f"head-{i}": f"sum {i}" for i in range(40)}
    Store(path, {"system": "test", "heads": heads}).save(final=True)
    others = {**{name: "another" for name in heads if name != "head-0"}, "head-0": "sum 0"}
    with pytest.raises(StoreError, match=r": head-1 = 'sum 1', now it is 'another' \(38 more"):
        Store(path, {"system": "test", "heads": others})
    with pytest.raises(StoreError, match="heads: new = not there, now it is None;"):
        Store(path, {"system": "test", "heads": {**heads, "new": None}})
    with pytest.raises(StoreError, match=r"heads: head-0 = 'sum 0', now it is not there \(39 more"):
        Store(path, {"system": "test"})
    for other in ([], 5):
        with pytest.raises(StoreError, match=r"with heads = {'head-0': 'sum 0', .*, now it is"):
            Store(path, {"system": "test", "heads": other})


def test_measure_counts_steps_of_the_engine(target):
    cell = Cell(1.0, (2, 2, 1), "with")
    method = cell.method(target, draft=tiny.draft("llama", 0.05))
    results = measured_once(target, method, cell, 6, 3, None)
    steps = specwb.rounds(
        target, [[5, 6]], method, temperature=1.0, max_new_tokens=200, seed=[3], eos=()
    )
    assert results["accepted"] == [int(step.verdict.accepted) for step, _ in zip(steps, range(6))]
    assert results["ms"] > 0


def test_the_first_step_has_the_prompt_in_it(target, monkeypatch):
    """By the clock the steps take 9, 1, 2 and 4 seconds."""
    clock = iter([0.0, 9.0, 10.0, 12.0, 16.0, 16.0])
    monkeypatch.setattr(
        measuring, "time", SimpleNamespace(perf_counter=clock.__next__, monotonic=time.monotonic)
    )
    cell = Cell(1.0)
    results = measured_once(target, cell.method(target), cell, 4, 3)
    assert results["ms"] == 2000  # the median
    assert results["mean"] == pytest.approx(7000 / 3, abs=1e-3)
    assert len(results["accepted"]) == 4


def test_every_prompt_has_a_seed_of_its_own(target, tmp_path, monkeypatch):
    seeds = []

    original = measuring._decode

    def noted(target, job, steps, *rest):
        seeds.extend(job.seed)
        return original(target, job, steps, *rest)

    monkeypatch.setattr(measuring, "_decode", noted)
    store, cells = Store(tmp_path / "x.json", {}), [Cell(0.0), Cell(1.0)]
    assert not measure(STUDY, Models(target), QUESTIONS, store, cells, rounds_each=2, seed=5)
    # two warm-ups, and then the same of all cells
    assert seeds == [5, 5, 5, 5, 6, 6, 7, 7]


def test_a_store_of_an_earlier_version_is_not_gone_on_with(target, tmp_path):
    store, cells = Store(tmp_path / "x.json", {}), [Cell(0.0), Cell(1.0)]
    store.cells[cells[0].key] = {"accepted": [[0, 0]], "ms": [1.0]}
    with pytest.raises(StoreError, match="was begun by an earlier version"):
        measure(STUDY, Models(target), QUESTIONS, store, cells, rounds_each=2)


def test_prompts_beside_a_slow_machine_are_counted(target, tmp_path, monkeypatch):
    count = iter(range(1000))
    monkeypatch.setattr(grid, "one_step", lambda target: lambda: 1.0 if next(count) < 5 else 2.0)
    cells = mcsd.all_cells([0], small=((2,),), trees=(), equals=())
    store, _ = measured(target, tmp_path / "x.json", cells)
    told = [cell["disturbed"] for cell in store.cells.values()]
    assert [len(some) for some in told] == [grid.MIN_PROMPTS] * len(cells)
    slow = sum(map(sum, told))
    assert slow == grid.MIN_PROMPTS * len(cells) - 1  # all but the first
    document = study_of(cells).report(store.document)
    assert any(f"disturbed {slow} of {slow + 1} dec" in line for line in STUDY.summary(document))


def test_a_run_is_continued_where_it_was_interrupted(target, tmp_path, monkeypatch):
    cells = mcsd.all_cells([0, 1], small=((2,),), trees=((1, 1),), equals=())
    complete, interrupted = measured(target, tmp_path / "complete.json", cells)
    assert not interrupted
    assert all(len(cell["accepted"]) == grid.MIN_PROMPTS for cell in complete.cells.values())
    assert set(complete.cells) == {cell.key for cell in cells}

    original, calls = measuring._decode, [0]

    def interrupting(*args):
        calls[0] += 1
        if calls[0] == 2 * len(cells) + 4:  # in the second prompt
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(measuring, "_decode", interrupting)
    store, interrupted = measured(target, tmp_path / "part.json", cells)
    assert interrupted
    document = study_of(cells).report(store.document)
    assert {row["prompts"] for row in document["rows"]} == {1, 2}
    store.save(final=True)
    assert STUDY.printed(document)
    again, interrupted = measured(target, tmp_path / "part.json", cells)
    assert not interrupted
    # all is the same but the times, and what was measured once is not measured again
    for key, cell in complete.cells.items():
        assert again.cells[key]["accepted"] == cell["accepted"]
    # two a cell and prompt, the first of them to warm up; of the second prompt three were done
    assert calls[0] == 2 * len(cells) + 4 + 2 * (len(cells) - 3)
    # more time adds prompts to those that are there
    longer, _ = measured(target, tmp_path / "part.json", cells, seconds=1e9)
    assert {len(v["ms"]) for v in longer.cells.values()} == {len(QUESTIONS)}


def test_rows_by_hand():
    cell, plain = Cell(1.0, (2, 2)), Cell(1.0)
    cells = {
        cell.key: {"accepted": [[0, 1, 2, 1], [0, 0, 2, 2]], "ms": [9, 9], "mean": [2.0, 4.0]},
        plain.key: {"accepted": [[0] * 4, [0] * 4], "ms": [9, 9], "mean": [1.0, 1.0]},
    }
    row = mcsd.row({"cells": cells}, cell)
    assert (row["tau"], row["accepted_per_round"], row["depth_fraction"]) == (2, 1, 0.5)
    assert row["tau_error"] == 0  # both prompts have tau 2
    assert row["accepted_by_depth"] == [[5, 8], [3, 5]]
    assert (row["ms_per_round"], row["ms_per_token"]) == (3, 1.5)
    # of all steps but the first, both prompts have 7/3 tokens each
    assert row["speedup"] == 0.875
    assert mcsd.row({"cells": cells}, plain)["speedup"] == 1
    assert grid.values(cells, cell, "speedup") == pytest.approx([7 / 6, 7 / 12])


def test_a_claim_is_of_the_means_over_all_pairs():
    cells = [Cell(t, tree) for t in (0.7, 1.0) for tree in ((), (1,), (2,))]
    rng = np.random.default_rng(0)
    records, tenths = {}, {}
    for cell in cells:
        tenths[cell] = [min(10, int(n)) for n in rng.integers(3, 6, 48) + 3 * (cell.tree == (2,))]
        records[cell.key] = {
            "accepted": [[1] * n + [0] * (10 - n) for n in tenths[cell]],
            "ms": [1.0] * 48,
            "mean": [1.0] * 48,
        }
    document = study_of(cells).report(
        {"cells": records, "domains": ["code"] * 48, "arguments": {"temperatures": [0.7, 1]}}
    )
    v = next(v for v in document["verdicts"] if v["claim"].startswith("k candidates"))
    firsts, seconds = (
        [1 + n / 10 for t in (0.7, 1.0) for n in tenths[Cell(t, tree)]] for tree in ((2,), (1,))
    )
    assert v["ratio"] == pytest.approx(sum(firsts) / sum(seconds), abs=1e-4)
    assert (v["verdict"], v["first"]) == ("reproduced", "first of 2 pairs")


def test_the_layouts_are_compared(target, tmp_path):
    cells = mcsd.all_cells([1], **SHAPES)
    store, _ = measured(target, tmp_path / "x.json", cells)
    document = study_of(cells).report(store.document)
    # prompts, short and long, steps
    assert document["layouts"] == {"rounds": 2 * 2 * 4, "same": 16}
    (title, lines) = STUDY.printed(document)[-1]
    assert "layouts" in title
    assert [(line["tree"], line["text"], line["leaves"]) for line in lines] == [
        ("2-2-1", "prompt", "4"),
        ("2-2-1", "long", "4"),
    ]
    texts = " ".join(STUDY.summary(document))
    assert "Published values: none known" in texts
    assert "theorem 4.3" in texts
    other = Cell(1, (2, 2, 1), layout="batch")
    store.cells[other.key]["accepted"][0][0] += 1
    assert mcsd.same_verdicts(store.document, cells)["layouts"]["same"] == 15
    assert replace(other, layout="tree") in cells


def test_a_store_refuses_results_of_other_arguments(tmp_path):
    path = tmp_path / "r.json"
    store = Store(path, {"system": "a", "seed": 0})
    store.cells["x"] = {"accepted": [[1]], "ms": [1.5]}
    store.cells["y"] = {"accepted": [], "ms": []}
    store.document["spent"] = 2.5
    store.save(final=True)
    again = Store(path, {"system": "a", "seed": 0})
    assert again.document == json.loads(path.read_text()) == store.document
    with pytest.raises(StoreError, match=r"measured with seed = 0, now it is 1; .*--restart"):
        Store(path, {"system": "a", "seed": 1})
    for arguments, missing in (
        ({"system": "a", "seed": 0, "head": "x"}, "head"),
        ({"system": "a"}, "seed"),
    ):
        with pytest.raises(StoreError, match=missing):
            Store(path, arguments)
    assert Store(path, {"system": "a", "seed": 1}, restart=True).cells == {}
    for text in ("[]", "{}", '{"cells": {}}', "# notes", '{"mine": {"arguments": {}}}'):
        path.write_text(text)
        for restart in (False, True):  # what is no results at all is not replaced either
            with pytest.raises(ArgumentError, match=r"--out: .* is there and not a file of"):
                Store(path, {}, restart)
        assert path.read_text() == text
    path.write_text('{"arguments": 3, "cells": {}}')
    with pytest.raises(StoreError, match=r"r\.json .*: it must contain .* with --restart"):
        Store(path, {})
    path.write_text("")  # nothing to lose
    assert Store(path, {}).cells == {}
    with pytest.raises(ValueError, match="does not exist"):
        Store(tmp_path / "no" / "r.json", {})


CELL = {"accepted": [[1]], "ms": [1.5]}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"cells": {"x": None}}, "cells.x must be object"),
        ({"cells": {"x": 3}}, "cells.x must be object"),
        ({"cells": {"x": [1]}}, "cells.x must be object"),
        ({"cells": {"y": CELL, "x": {}}}, "cells.x must contain .*'accepted', 'ms'"),
        ({"cells": {"x": {**CELL, "ms": 3}}}, "cells.x.ms must be array"),
        ({"cells": {"x": {**CELL, "accepted": [["a"]]}}}, r"accepted\[0\]\[0\] must be number"),
        ({"cells": []}, "cells must be object"),
        ({"spent": None}, "spent must be number"),
        ({"spent": "x"}, "spent must be number"),
        ({"versions": None}, "versions must be object"),
    ],
)
def test_damaged_results_are_refused_before_any_work(tmp_path, changes, named):
    path = tmp_path / "r.json"
    document = {"arguments": {}, "versions": {}, "spent": 1.0, "cells": {"x": CELL}}
    path.write_text(json.dumps(document))
    assert Store(path, {}).cells == {"x": CELL}
    path.write_text(json.dumps({**document, **changes}))
    with pytest.raises(StoreError, match=named):
        Store(path, {})


def test_one_run_never_overwrites_the_results_of_another(tmp_path):
    path = tmp_path / "r.json"
    one, two = Store(path, {}), Store(path, {})
    one.cells["x"] = CELL
    one.save(final=True)
    with pytest.raises(StoreError, match="another run has written"):
        two.save(final=True)
    assert Store(path, {}).cells == {"x": CELL}
    one.save(final=True)
    path.unlink()
    one.save(final=True)  # a missing file is no other run's
    assert Store(path, {}).cells == {"x": CELL}


def test_the_commit_of_a_project_around_the_package_is_not_ours(tmp_path, monkeypatch):
    """The package lies in an environment inside somebody's repository."""
    import subprocess

    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    theirs = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    path = tmp_path / "venv" / "specwb" / "evaluation" / "machine.py"
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(machine, "__file__", str(path))
    assert machine.commit() == "unknown"
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "specwb" / "evaluation" / "machine.py"))
    assert machine.commit() == theirs


def test_bad_settings_before_any_work(target, tmp_path):
    store = Store(tmp_path / "r.json", {})
    models = Models(target, tiny.draft())
    with pytest.raises(ValueError, match="leave no room for a prompt"):
        measure(STUDY, models, QUESTIONS, store, [Cell(1)], rounds_each=512)
    cold = rates_store(tmp_path / "r.json", temperatures=[0.0])
    with pytest.raises(ValueError, match="every temperature must be > 0"):
        measure(acceptance.STUDY, models, QUESTIONS, cold)
    assert not store.cells
    assert not cold.cells


def test_results_of_another_target_are_not_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "data_dir", lambda: tmp_path)
    assert run.shipped(STUDY) == (None, None)
    (tmp_path / "results").mkdir()
    document = {"arguments": {"sha256": "abc"}, "versions": {}, "spent": 1, "cells": {}}
    (tmp_path / "results/mcsd-lab-cpu.json").write_text(json.dumps(document))
    assert run.shipped(STUDY) == (document, None)
    assert run.shipped(STUDY, SimpleNamespace(sha256="abc")) == (document, None)
    assert run.shipped(STUDY, SimpleNamespace(sha256="def")) == (None, None)


def rates_store(path, **settings) -> Store:
    """The store of the study of all rules' acceptance, with few tokens."""
    few = {"temperatures": [0.7, 1.0], "ks": [1, 2], "tokens": 6, "positions": 3}
    return Store(path, {**few, **settings}, cell=acceptance.STUDY.cell)


def test_the_noise_of_prompts_is_independent(target, tmp_path, monkeypatch):
    original, seeds = acceptance.acceptance.rates, []

    def noted(*args, seed, **more):
        seeds.append(seed)
        return original(*args, seed=seed, **more)

    monkeypatch.setattr(acceptance.acceptance, "rates", noted)
    store = rates_store(tmp_path / "x.json", temperatures=[1.0])
    models = Models(target, tiny.draft())
    assert not measure(acceptance.STUDY, models, QUESTIONS, store, seed=4)
    assert seeds == [4, 5, 6]


def test_acceptance_is_continued_too(target, tmp_path, monkeypatch):
    study, models = acceptance.STUDY, Models(target, tiny.draft("llama", 0.05))
    complete, done = rates_store(tmp_path / "complete.json"), []
    assert not measure(
        study, models, QUESTIONS, complete, progress=lambda *report: done.append(report)
    )
    assert [fraction for fraction, _ in done] == pytest.approx([i / 6 for i in range(1, 7)])
    original, calls = acceptance.acceptance.rates, [0]

    def interrupting(*args, **more):
        calls[0] += 1
        if calls[0] == 6:
            raise KeyboardInterrupt
        return original(*args, **more)

    monkeypatch.setattr(acceptance.acceptance, "rates", interrupting)
    store = rates_store(tmp_path / "part.json")
    assert measure(study, models, QUESTIONS, store)
    assert len(store.cells) == 5
    store.save(final=True)
    store = rates_store(tmp_path / "part.json")
    assert not measure(study, models, QUESTIONS, store)
    assert store.cells == complete.cells
    assert calls[0] == 5 + 1 + 1  # two temperatures, three prompts
    document = study.report(store.document)
    rows = {(r["domain"], r["temperature"], r["k"]) for r in document["rows"]}
    assert rows == set(product(("code", "prose", "all"), (0.7, 1.0), (1, 2)))
    assert len(study.printed(document)) == 3
    assert any("cells with k > 1" in line for line in study.summary(document))
    store.save(final=True)
    assert "NaN" not in (tmp_path / "part.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["mcsd", "--set", "temperatures=0,x"],
            "--set temperatures must be temperatures such as 0,0.7,1, got '0,x'",
        ),
        (["mcsd", "--set", "temperatures=-1"], "temperature must be >= 0"),
        (["mcsd", "--prompts", "nope"], "unknown prompt set 'nope'"),
        (["mcsd", "--out", "/nowhere/x.json"], "does not exist"),
        (["acceptance", "--set", "temperatures=0,1"], "every temperature must be > 0"),
        (["acceptance", "--set", "rounds=3"], "acceptance takes: temperatures, positions, tokens"),
        (["mcsd", "--set", "rounds=2,rounds=3"], "--set rounds=3: it is name=value"),
        (["acceptance", "--tokens"], "reproduce acceptance takes no --tokens"),
        (["mcsd", "--train", "--quick"], "reproduce mcsd takes no --train and no --quick"),
        (["all", "--set", "rounds=2"], "reproduce all takes no --set"),
        (["nope"], "NAME is one of all, mcsd, "),
    ],
)
def test_command_line_refuses_in_one_line(monkeypatch, capsys, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(monkeypatch, capsys, "reproduce", *arguments)


def test_command_line(monkeypatch, capsys, tmp_path):
    few = [Cell(1.0, tree) for tree in ((), (1,), (2,))]
    run, more = (monkeypatch, capsys, tmp_path, "mcsd", few), ("--set", "rounds=2,temperatures=1")
    document, out = reproduced(*run, *more, claims=study_of(few).claims)
    assert len(document["verdicts"]) == 2
    assert "none known" in out
    assert "It is over ar, plain decoding by specwb itself" in out
