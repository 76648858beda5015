"""The store: written whole or not at all, merged without counting double, refused where damaged."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from specwb.sweeps import results
from specwb.sweeps import store as stores
from specwb.sweeps.space import SHARED, SweepError
from specwb.sweeps.store import Run, Store, digest, identify


def run(id: str = "a", prompt: str = "p", tokens: int = 5) -> Run:
    began = "2026-11-22T00:00:00+00:00"
    return Run(id, prompt, "all", tokens, [2, 1], [3, 3], 0.5, False, "t", began)


def test_a_run_is_written_once_with_its_steps(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.add_configuration("a", {"method": "ar"}, {})
        store.add(run())
        store.add(run(tokens=9))  # the same run again stays what it was
        store.add(run(prompt="q"))
        assert store.done() == {("a", "p"), ("a", "q")}
        assert [row[3] for row in store.table("runs")[1]] == [5, 5]
        assert len(store.table("steps")[1]) == 4
    with Store(tmp_path / "s.sqlite") as again:
        assert again.done() == {("a", "p"), ("a", "q")}


def test_a_run_that_fails_leaves_nothing(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        bad = Run("a", "p", "all", 5, [2, None], [3, 3], 0.5, False, "t", "now")
        with pytest.raises(SweepError, match="NOT NULL"):
            store.add(bad)
        assert store.done() == set()
        assert store.table("steps")[1] == []
        store.add(run())


def test_stores_are_merged_without_counting_double(tmp_path):
    with Store(tmp_path / "a.sqlite") as a, Store(tmp_path / "b.sqlite") as b:
        for store, prompts in ((a, "pq"), (b, "qr")):
            store.add_configuration("a", {"method": "ar"}, {})
            for prompt in prompts:
                store.add(run(prompt=prompt))
        assert a.merge(tmp_path / "b.sqlite") == 1
        assert a.merge(tmp_path / "b.sqlite") == 0
        assert a.done() == {("a", x) for x in "pqr"}
        assert len(a.table("steps")[1]) == 6
        with pytest.raises(SweepError, match="does not exist"):
            a.merge(tmp_path / "c.sqlite")


def test_what_is_no_store_is_refused(tmp_path):
    text = tmp_path / "text"
    text.write_text("no database, but long enough to be looked at" * 50)
    with pytest.raises(SweepError, match=r"text is not a results file .*: file is not a database"):
        Store(text)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE x (y)")
    with pytest.raises(SweepError, match=r"other\.sqlite is not a results file .* another kind"):
        Store(other)
    with Store(tmp_path / "new.sqlite"):
        pass
    with sqlite3.connect(tmp_path / "new.sqlite") as connection:
        connection.execute("UPDATE about SET schema = 99")
    with pytest.raises(SweepError, match="written by a newer specwb: its schema is 99"):
        Store(tmp_path / "new.sqlite")
    with pytest.raises(SweepError, match="unable to open"):
        Store(tmp_path / "no" / "such" / "folder.sqlite")


def filled(path: Path) -> Path:
    """A store with a run."""
    settings = {"method": "ar", **SHARED}
    with Store(path) as store:
        store.add_configuration("a", settings, {"specwb": "0", "versions": {}})
        store.add(run())
    assert len(results.frame(path)) == 1
    return path


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("DELETE FROM about", "is not a results file of specwb sweep: it is a database of another"),
        ("UPDATE about SET schema = 'x'", "is not a results file"),
        ("UPDATE about SET schema = 0", "is not a results file"),
        ("UPDATE about SET schema = 1.5", "is not a results file"),
        ("DROP TABLE steps", "is not a results file"),
        ("ALTER TABLE runs ADD COLUMN more", "is not a results file"),
        ("UPDATE runs SET tokens = -5", "holds 1 runs that no sweep has written"),
        ("UPDATE runs SET tokens = 'x'", "holds 1 runs that no sweep"),
        ("UPDATE runs SET steps = 6", "holds 1 runs that no sweep"),
        ("UPDATE runs SET seconds = 'x'", "holds 1 runs that no sweep"),
        ("UPDATE runs SET text = x'00'", "holds 1 runs that no sweep"),
        ("DELETE FROM configurations", "holds 1 runs that no sweep"),
        ("UPDATE configurations SET settings = '[]'", "holds what no sweep has written"),
        ("UPDATE configurations SET settings = '{'", "holds what no sweep has written: Expecting"),
        ("UPDATE configurations SET settings = '{}'", "no sweep has written: no 'temperature'"),
        ("UPDATE configurations SET facts = '5'", "holds what no sweep has written"),
        ("UPDATE configurations SET facts = '{\"tokens\": 5}'", "holds what no sweep has written"),
        (
            "UPDATE configurations SET facts = printf('%.100000c', '[')",
            "written: brackets are nested",
        ),
    ],
)
def test_rows_that_no_sweep_writes_are_one_line_that_names_the_file(tmp_path, change, named):
    path = filled(tmp_path / "s.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    with pytest.raises(SweepError, match=named) as caught:
        results.frame(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_store_is_said_to_be_damaged(tmp_path):
    path = filled(tmp_path / "s.sqlite")
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))
    with pytest.raises(
        SweepError, match=r"s\.sqlite is damaged: database disk image is malformed$"
    ):
        results.frame(path)


def test_a_locked_store_is_refused_after_a_few_seconds(tmp_path, monkeypatch):
    assert stores.PATIENCE == 5
    monkeypatch.setattr(stores, "PATIENCE", 0.1)
    path = filled(tmp_path / "s.sqlite")
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SweepError, match="database is locked: another program uses it"):
            Store(path)
    Store(path).close()


def test_a_store_is_not_merged_with_itself(tmp_path):
    path = filled(tmp_path / "s.sqlite")
    (tmp_path / "link").symlink_to(path)
    with Store(path) as store, pytest.raises(SweepError, match="cannot be merged with itself"):
        store.merge(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_store_that_cannot_be_written(tmp_path):
    with Store(tmp_path / "s.sqlite"):
        pass
    (tmp_path / "s.sqlite").chmod(0o400)
    with pytest.raises(SweepError, match="readonly"):
        Store(tmp_path / "s.sqlite")


def test_a_full_disk_is_said_and_loses_nothing(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.add(run())
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        long = Run("b", "p", "all", 5, [1] * 9000, [1] * 9000, 0.5, False, "t", "now")
        with pytest.raises(SweepError, match="full; what was measured before is kept"):
            store.add(long)
        assert store.done() == {("a", "p")}


def test_hashes_know_settings_and_facts():
    one = {"method": "sps", "gamma": 3}
    assert identify(one, {"device": "a"}) != identify(one, {"device": "b"})
    assert identify(one, {}) != identify({**one, "gamma": 4}, {})
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
