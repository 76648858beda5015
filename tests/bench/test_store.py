"""The store: written whole or not at all, refused where damaged."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from specwb.lab.bench.store import RunStore, StoreError, digest

RECORD = {"tokens": 5, "accepted": [2, 1]}


def test_a_run_is_written_once(tmp_path):
    with RunStore(tmp_path / "s.sqlite") as store:
        store.add("a", "p", RECORD, 0.5)
        store.add("a", "p", {"tokens": 9}, 0.25)  # the same run again stays what it was
        store.add("a", "q", RECORD)
        assert store.done() == {("a", "p"), ("a", "q")}
        assert store.done(timed=True) == {("a", "p")}
        store.add("a", "q", {"tokens": 7}, 0.25)  # unless it had no time
        store.add("a", "q", RECORD)
    with RunStore(tmp_path / "s.sqlite") as again:
        assert again.runs() == [("a", "p", 0.5, RECORD), ("a", "q", 0.25, {"tokens": 7})]


def test_settings_are_known_by_what_results_depend_on(tmp_path):
    one = {"method": "sps", "gamma": 3}
    with RunStore(tmp_path / "s.sqlite") as store:
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
    with RunStore(tmp_path / "s.sqlite") as store:
        with pytest.raises(StoreError, match="NOT NULL"):
            store.add("a", None, RECORD)
        assert store.done() == set()
        store.add("a", "p", RECORD)


def filled(path: Path) -> Path:
    """A store with a run."""
    with RunStore(path) as store:
        store.add(store.add_settings({"method": "ar"}, {}), "p", RECORD, 0.5)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE about SET schema = 99", r"has \[\(99, 'sweep'\)\], not schema 2"),
        ("DELETE FROM about", r"has \[\], not schema 2"),
        ("UPDATE about SET kind = 'evaluation'", "and runs of 'sweep'; name another file"),
        ("DROP TABLE about", "is not a store of specwb's runs: no such table: about"),
    ],
)
def test_a_database_of_another_kind_is_refused(tmp_path, change, message):
    path = filled(tmp_path / "s.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    with pytest.raises(StoreError, match=message) as caught:
        RunStore(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_files_and_damaged_ones_are_refused(tmp_path):
    text = tmp_path / "text"
    text.write_text("no database, but long enough to be looked at" * 50)
    with pytest.raises(StoreError, match=r"text is not a store of .*: file is not a database"):
        RunStore(text)
    with pytest.raises(StoreError, match="unable to open"):
        RunStore(tmp_path / "no" / "such" / "folder.sqlite")
    with pytest.raises(StoreError, match="does not exist"):
        RunStore(tmp_path / "none", is_new=False)
    path = filled(tmp_path / "s.sqlite")
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))
    with (
        pytest.raises(StoreError, match="database disk image is malformed"),
        RunStore(path) as store,
    ):
        store.runs()


def test_a_full_disk_is_said_and_loses_nothing(tmp_path):
    with RunStore(tmp_path / "s.sqlite") as store:
        store.add("a", "p", RECORD)
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="full; runs that it has are not changed"):
            store.add("b", "p", {"accepted": [1] * 9000})
        assert store.done() == {("a", "p")}
