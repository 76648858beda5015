"""What was measured, in one SQLite file.

Settings are known by a hash of everything that results depend on, and a run by its settings and its
prompt. A run's record, a JSON object, is written whole or not at all. So measuring can be killed at
any moment, repeated, or be done in parts by several processes: nothing is lost or counted double.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from specwb.core.errors import SpecwbError
from specwb.core.files import from_json, home
from specwb.core.options import spell

SCHEMA = 2
TABLES = """
CREATE TABLE about (schema INTEGER NOT NULL, kind TEXT NOT NULL);
CREATE TABLE settings (id TEXT PRIMARY KEY, settings TEXT NOT NULL, conditions TEXT NOT NULL);
CREATE TABLE runs (
    id TEXT NOT NULL, prompt TEXT NOT NULL, seconds REAL, record TEXT NOT NULL,
    PRIMARY KEY (id, prompt)
);
"""
UNLESS_KNOWN = """
ON CONFLICT DO UPDATE SET seconds = excluded.seconds, record = excluded.record
    WHERE runs.seconds IS NULL AND excluded.seconds IS NOT NULL
"""
"""A run that is there stays as it is, unless it has no time and the new one has."""
PATIENCE = 5.0  # seconds until a store that another program has locked is refused
WHOLE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CONSTRAINT,
)
"""Errors of SQLite that leave the file as it was."""
FOREIGN = "is not a store of specwb's runs"


class StoreError(SpecwbError, ValueError):
    """A file of results that cannot be used, or that holds something else."""


def digest(content: Any) -> str:
    """A short hash of anything that JSON can hold; trees are spelled."""
    text = json.dumps(content, sort_keys=True, default=spell)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _columns(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """The columns that each table of a store has in a database."""
    names = ("about", "settings", "runs")
    rows = {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for name in names}
    return {name: [row[1] for row in columns] for name, columns in rows.items()}


class Store:
    """The file.

    Args:
        path: created if it is missing, with its folder below the working directory's ``build``.
        is_new: whether it may be missing, or empty.
        kind: of its runs, "sweep" or "evaluation"; their records differ.
    Raises:
        StoreError: it is no store, damaged, of another schema, cannot be written, or another
            program has locked it for more than ``PATIENCE`` seconds.
    """

    def __init__(self, path: Path | str, is_new: bool = True, kind: str = "sweep") -> None:
        self.path, self.kind = home(path), kind
        if self.path.is_dir():
            raise StoreError(f"store {self.path} is a folder; give the name of a file")
        if not is_new and not self.path.is_file():
            raise StoreError(f"store {self.path} does not exist")
        if not is_new and not self.path.stat().st_size:
            raise StoreError(f"{self.path} {FOREIGN}: it is empty")
        if self.path.parts[:1] == ("build",):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            self._connection = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise
            # what was measured is worth waiting for
            self._connection.execute(f"PRAGMA busy_timeout = {60_000}")

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Keeps other programs from measuring into the same file; they may read it.

        Two that measure at once would decode the same prompts, and each would slow down what the
        other one times. The system opens the lock of a process that ends.
        """
        lock = FileLock(f"{self.path.resolve()}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            busy = "another program measures into it; start again when it has ended"
            raise StoreError(f"store {self.path}: {busy}, or name another file") from None
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns SQLite's errors into one message."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without what extends it
            if code == sqlite3.SQLITE_NOTADB:
                raise StoreError(f"{self.path} {FOREIGN}: {error}") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                busy = f"{error}: another program uses it; try again when that has ended"
                raise StoreError(f"store {self.path}: {busy}") from error
            if code not in WHOLE:
                raise StoreError(f"store {self.path} is damaged: {error}") from error
            kept = "what was measured before is kept" if self.path.exists() else "nothing is there"
            raise StoreError(f"store {self.path}: {error}; {kept}") from error

    def _prepare(self) -> None:
        run = self._connection.execute
        run("BEGIN IMMEDIATE")  # fails at once where nothing can be written
        try:
            if not run("SELECT 1 FROM sqlite_master").fetchone():
                for statement in TABLES.split(";"):
                    run(statement)
                run("INSERT INTO about VALUES (?, ?)", (SCHEMA, self.kind))
            columns = _columns(self._connection)
            schemas = run("SELECT * FROM about").fetchall() if columns["about"] else []
        except BaseException:
            run("ROLLBACK")
            raise
        run("COMMIT")
        other = [n for row in schemas for n in row if isinstance(n, int) and 0 < n != SCHEMA]
        if other:
            age = "a newer" if other[0] > SCHEMA else "an older"
            schema = f"its schema is {other[0]}, this specwb knows {SCHEMA}"
            raise StoreError(
                f"{self.path} was written by {age} specwb: {schema}; name another file"
            )
        with closing(sqlite3.connect(":memory:")) as own:
            own.executescript(TABLES)
            expected = _columns(own)
        if len(schemas) != 1 or schemas[0][0] != SCHEMA or columns != expected:
            raise StoreError(f"{self.path} {FOREIGN}: it is a database of another kind")
        if schemas[0][1] != self.kind:
            names = f"runs of {schemas[0][1]!r}, not of {self.kind!r}"
            raise StoreError(f"{self.path} has {names}; name another file")
        # A run is then written without waiting for the disk (20 ms, a tenth of a short decoding).
        # What a killed process wrote is kept; after a power cut the last runs may be missing.
        with suppress(sqlite3.OperationalError):  # not on every file system
            if run("PRAGMA journal_mode = WAL").fetchone() == ("wal",):
                run("PRAGMA synchronous = NORMAL")

    def add_settings(self, settings: Mapping[str, Any], conditions: Mapping[str, Any]) -> str:
        """Notes what was asked for and what it is measured on; returns the hash of both."""
        id = digest([settings, conditions])
        values = id, json.dumps(settings, default=spell), json.dumps(conditions)
        with self._errors():
            self._connection.execute("INSERT OR IGNORE INTO settings VALUES (?, ?, ?)", values)
        return id

    def settings(self) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        """id -> settings and conditions."""
        with self._errors():
            rows = self._connection.execute("SELECT * FROM settings").fetchall()
        return {id: (from_json(settings), from_json(facts)) for id, settings, facts in rows}

    def done(self, timed: bool = False) -> set[tuple[str, str]]:
        """The (settings' id, prompt) that were measured; with ``timed`` those with a time."""
        only = " WHERE seconds IS NOT NULL" if timed else ""
        with self._errors():
            return set(self._connection.execute(f"SELECT id, prompt FROM runs{only}"))

    def add(
        self, id: str, prompt: str, record: Mapping[str, Any], seconds: float | None = None
    ) -> None:
        """Writes a run; one that is there stays, unless it has no time and this one has."""
        values = id, prompt, seconds, json.dumps(record)
        with self._errors():
            insert = f"INSERT INTO runs VALUES (?, ?, ?, ?) {UNLESS_KNOWN}"
            self._connection.execute(insert, values)

    def runs(self) -> list[tuple[str, str, float | None, dict[str, Any]]]:
        """Returns id, prompt, seconds and record of every run, in the order they were added."""
        with self._errors():
            rows = self._connection.execute("SELECT * FROM runs ORDER BY rowid").fetchall()
        return [(id, prompt, seconds, from_json(record)) for id, prompt, seconds, record in rows]
