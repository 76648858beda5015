"""The store: written whole or not at all, refused where damaged."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from specwb.lab.bench import store as stores
from specwb.lab.bench.store import Store, StoreError, digest

RECORD = {"tokens": 5, "accepted": [2, 1]}


def test_a_run_is_written_once(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.add("a", "p", RECORD, 0.5)
        store.add("a", "p", {"tokens": 9}, 0.25)  # the same run again stays what it was
        store.add("a", "q", RECORD)
        assert store.done() == {("a", "p"), ("a", "q")}
        assert store.done(timed=True) == {("a", "p")}
        store.add("a", "q", {"tokens": 7}, 0.25)  # unless it had no time
        store.add("a", "q", RECORD)
    with Store(tmp_path / "s.sqlite") as again:
        assert again.runs() == [("a", "p", 0.5, RECORD), ("a", "q", 0.25, {"tokens": 7})]


def test_settings_are_known_by_what_results_depend_on(tmp_path):
    one = {"method": "sps", "gamma": 3}
    with Store(tmp_path / "s.sqlite") as store:
        ids = [
            store.add_settings(*pair)
            for pair in (
                (one, {"device": "a"}),
                (one, {"device": "b"}),
                ({**one, "gamma": 4}, {"device": "a"}),
                ({"gamma": 3, "method": "sps"}, {"device": "a"}),
            )
        ]
        assert len(set(ids)) == 3
        assert ids[0] == ids[3]
        assert store.settings()[ids[1]] == (one, {"device": "b"})
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_a_run_that_fails_leaves_nothing(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        with pytest.raises(StoreError, match="NOT NULL"):
            store.add("a", None, RECORD)
        assert store.done() == set()
        store.add("a", "p", RECORD)


def test_what_is_no_store_is_refused(tmp_path):
    text = tmp_path / "text"
    text.write_text("no database, but long enough to be looked at" * 50)
    with pytest.raises(StoreError, match=r"text is not a store of .*: file is not a database"):
        Store(text)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE x (y)")
    before = other.read_bytes()
    with pytest.raises(StoreError, match=r"other\.sqlite is not a store of .* another kind"):
        Store(other)
    assert other.read_bytes() == before
    with pytest.raises(StoreError, match="unable to open"):
        Store(tmp_path / "no" / "such" / "folder.sqlite")


def filled(path: Path) -> Path:
    """A store with a run."""
    with Store(path) as store:
        store.add(store.add_settings({"method": "ar"}, {}), "p", RECORD, 0.5)
    return path


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("UPDATE about SET schema = 99", "written by a newer specwb: its schema is 99"),
        ("UPDATE about SET schema = 1", "written by an older specwb: its schema is 1"),
        ("DELETE FROM about", "it is a database of another kind"),
        ("UPDATE about SET schema = 'x'", "another kind"),
        ("UPDATE about SET schema = 0", "another kind"),
        ("UPDATE about SET schema = 1.5", "another kind"),
        ("DROP TABLE settings", "another kind"),
        ("ALTER TABLE runs ADD COLUMN more", "another kind"),
    ],
)
def test_another_schema_is_refused(tmp_path, change, named):
    path = filled(tmp_path / "s.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    with pytest.raises(StoreError, match=named) as caught:
        Store(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_store_is_said_to_be_damaged(tmp_path):
    path = filled(tmp_path / "s.sqlite")
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))
    with (
        pytest.raises(StoreError, match=r"s\.sqlite is damaged: database disk image is malformed$"),
        Store(path) as store,
    ):
        store.runs()


def test_a_locked_store_is_refused_after_a_few_seconds(tmp_path, monkeypatch):
    assert stores.PATIENCE == 5
    monkeypatch.setattr(stores, "PATIENCE", 0.1)
    path = filled(tmp_path / "s.sqlite")
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="database is locked: another program uses it"):
            Store(path)
    Store(path).close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_store_that_cannot_be_written(tmp_path):
    path = filled(tmp_path / "s.sqlite")
    path.chmod(0o400)
    with pytest.raises(StoreError, match="readonly"):
        Store(path)


def test_a_full_disk_is_said_and_loses_nothing(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.add("a", "p", RECORD)
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="full; what was measured before is kept"):
            store.add("b", "p", {"accepted": [1] * 9000})
        assert store.done() == {("a", "p")}
