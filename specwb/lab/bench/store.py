"""One SQLite file of runs, which can be killed at any moment and continued.

Settings are known by a hash of everything that results depend on, and a run by its settings and its
prompt. A run's record, a JSON object, is written whole or not at all, so nothing is lost or counted
double when measuring is interrupted, repeated, or divided among processes.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from specwb.core.errors import SpecwbError
from specwb.core.files import from_json, home

SCHEMA = 2
"""Version of the tables. It is raised when they change."""
TABLES = (
    "CREATE TABLE about (schema INTEGER NOT NULL, kind TEXT NOT NULL)",
    "CREATE TABLE settings (id TEXT PRIMARY KEY, settings TEXT NOT NULL, conditions TEXT NOT NULL)",
    "CREATE TABLE runs (id TEXT NOT NULL, prompt TEXT NOT NULL, seconds REAL, record TEXT NOT NULL,"
    " PRIMARY KEY (id, prompt))",
)
ADD = """
INSERT INTO runs VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET seconds = excluded.seconds, record = excluded.record
    WHERE runs.seconds IS NULL AND excluded.seconds IS NOT NULL
"""
"""A stored run stays as it is, unless it has no time and the new one has."""
PATIENCE = 5.0
"""Seconds until a store that another program has locked is refused."""


class StoreError(SpecwbError, ValueError):
    """A file of results that cannot be used, or that holds something else."""


def digest(content: Any) -> str:
    """Return a short hash of anything that JSON can hold."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class RunStore:
    """The file of runs.

    Args:
        path: created if it is missing, with its folder below the working directory's ``build``.
        is_new: whether it may be missing.
        kind: of its runs, "sweep" or "evaluation"; their records differ.
    Raises:
        StoreError: it is no store, damaged, of another schema or kind, cannot be written, or
            another program has locked it for more than :data:`PATIENCE` seconds.
    """

    def __init__(self, path: Path | str, is_new: bool = True, kind: str = "sweep") -> None:
        self.path, self.kind = home(path), kind
        if not is_new and not self.path.is_file():
            raise StoreError(f"store {self.path} does not exist")
        if self.path.parts[:1] == ("build",):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            self._connection = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Keep other programs from measuring into the same file; they may read it.

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
        """Turn SQLite's errors into one line that names the file."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extended bits
            if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
                problem = f"{self.path} is not a store of specwb's runs: {error}"
            elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                problem = f"store {self.path}: {error}: another program uses it; try again later"
            else:
                problem = f"store {self.path}: {error}; runs that it has are not changed"
            raise StoreError(problem) from error

    def _prepare(self) -> None:
        """Make the tables of a new file, and check those of another."""
        run = self._connection.execute
        run("BEGIN IMMEDIATE")  # fails at once where nothing can be written
        if not run("SELECT 1 FROM sqlite_master").fetchone():
            for statement in TABLES:
                run(statement)
            run("INSERT INTO about VALUES (?, ?)", (SCHEMA, self.kind))
        run("COMMIT")
        about = run("SELECT schema, kind FROM about").fetchall()
        if about != [(SCHEMA, self.kind)]:
            expected = f"schema {SCHEMA} and runs of {self.kind!r}"
            raise StoreError(f"{self.path} has {about}, not {expected}; name another file")
        # A run is then written without waiting for the disk (20 ms, a tenth of a short decoding).
        # What a killed process wrote is kept; after a power cut the last runs may be missing.
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run("PRAGMA busy_timeout = 60000")  # a measured run is worth waiting for

    def add_settings(self, settings: Mapping[str, Any], conditions: Mapping[str, Any]) -> str:
        """Store settings and the conditions of their measurement; return the hash of both."""
        id = digest([settings, conditions])
        values = id, json.dumps(settings), json.dumps(conditions)
        with self._errors():
            self._connection.execute("INSERT OR IGNORE INTO settings VALUES (?, ?, ?)", values)
        return id

    def settings(self) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        """Return id -> settings and conditions."""
        with self._errors():
            rows = self._connection.execute("SELECT * FROM settings").fetchall()
        return {id: (from_json(settings), from_json(facts)) for id, settings, facts in rows}

    def done(self, timed: bool = False) -> set[tuple[str, str]]:
        """Return (settings' id, prompt) of all runs; with ``timed`` of those with a time."""
        query = "SELECT id, prompt FROM runs"
        if timed:
            query += " WHERE seconds IS NOT NULL"
        with self._errors():
            return set(self._connection.execute(query))

    def add(
        self, id: str, prompt: str, record: Mapping[str, Any], seconds: float | None = None
    ) -> None:
        """Write a run; a stored one stays, unless it has no time and this one has."""
        with self._errors():
            self._connection.execute(ADD, (id, prompt, seconds, json.dumps(record)))

    def runs(self) -> list[tuple[str, str, float | None, dict[str, Any]]]:
        """Return id, prompt, seconds and record of every run, in the order they were added."""
        with self._errors():
            rows = self._connection.execute("SELECT * FROM runs ORDER BY rowid").fetchall()
        return [(id, prompt, seconds, from_json(record)) for id, prompt, seconds, record in rows]
