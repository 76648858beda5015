"""What a sweep has measured, in one SQLite file.

A configuration is known by a hash of everything that its results depend on. A run is a
configuration on a prompt; it is written in one transaction with its steps, or not at all. So a
sweep can be killed at any moment, run twice, or be measured in parts by several processes: nothing
is lost or counted double.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specwb.files import home
from specwb.options import spell
from specwb.sweeps.space import Configuration, SweepError

SCHEMA = 1
TABLES = """
CREATE TABLE about (schema INTEGER NOT NULL);
CREATE TABLE configurations (
    id TEXT PRIMARY KEY, settings TEXT NOT NULL, facts TEXT NOT NULL
);
CREATE TABLE runs (
    id TEXT NOT NULL, prompt TEXT NOT NULL, domain TEXT NOT NULL, tokens INTEGER NOT NULL,
    steps INTEGER NOT NULL, seconds REAL, disturbed INTEGER NOT NULL, text TEXT NOT NULL,
    began TEXT NOT NULL, PRIMARY KEY (id, prompt)
);
CREATE TABLE steps (
    id TEXT NOT NULL, prompt TEXT NOT NULL, step INTEGER NOT NULL,
    accepted INTEGER NOT NULL, tested INTEGER NOT NULL, PRIMARY KEY (id, prompt, step)
) WITHOUT ROWID;
"""
ODD = """
SELECT count(*) FROM runs WHERE id NOT IN (SELECT id FROM configurations)
    OR typeof(prompt) <> 'text' OR typeof(domain) <> 'text' OR typeof(text) <> 'text'
    OR typeof(tokens) <> 'integer' OR typeof(steps) <> 'integer' OR steps < 1 OR tokens < steps
    OR typeof(seconds) NOT IN ('real', 'null') OR seconds <= 0 OR disturbed NOT IN (0, 1)
"""
"""Counts the runs that no sweep has written."""
PATIENCE = 5.0  # seconds until a store that another program has locked is refused
WHOLE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CONSTRAINT,
)
"""Errors of SQLite that leave the file as it was."""
FOREIGN = "is not a results file of specwb sweep"


@dataclass(frozen=True)
class Run:
    """A configuration on a prompt.

    Attributes:
        id: of the configuration, see :func:`identify`.
        prompt: a hash of its token ids.
        domain: of the prompt.
        tokens: new tokens.
        accepted, tested: by step, draft tokens kept, and depths at which candidates were tested.
        seconds: of the decoding; None where it is not to be compared with others.
        disturbed: whether the machine was slow beside it.
        text: a hash of the token ids that were written.
        began: when, in UTC.
    """

    id: str
    prompt: str
    domain: str
    tokens: int
    accepted: Sequence[int]
    tested: Sequence[int]
    seconds: float | None
    disturbed: bool
    text: str
    began: str


def digest(content: Any) -> str:
    """A short hash of anything that JSON can say; trees are spelled."""
    text = json.dumps(content, sort_keys=True, default=spell)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identify(configuration: Configuration, facts: Mapping[str, Any]) -> str:
    """The hash of a configuration with everything else that its results depend on."""
    return digest([configuration, facts])


def _columns(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """The columns that each table of a store has in a database."""
    names = ("about", "configurations", "runs", "steps")
    rows = {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for name in names}
    return {name: [row[1] for row in found] for name, found in rows.items()}


class Store:
    """The file.

    Args:
        path: it is made if it is missing, with its folder below the working directory's ``build``.
        is_new: whether it may be missing, or empty.
    Raises:
        SweepError: it is no store, damaged, of a newer schema, cannot be written, or another
            program has locked it for more than ``PATIENCE`` seconds.
    """

    def __init__(self, path: Path | str, is_new: bool = True) -> None:
        self.path = home(path)
        if not is_new and not self.path.is_file():
            raise SweepError(f"store {self.path} does not exist")
        if not is_new and not self.path.stat().st_size:
            raise SweepError(f"{self.path} {FOREIGN}: it is empty")
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
    def _errors(self) -> Iterator[None]:
        """Turns SQLite's errors into one message."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without what extends it
            if code == sqlite3.SQLITE_NOTADB:
                raise SweepError(f"{self.path} {FOREIGN}: {error}") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                busy = f"{error}: another program uses it; try again when that has ended"
                raise SweepError(f"store {self.path}: {busy}") from error
            if code not in WHOLE:
                raise SweepError(f"store {self.path} is damaged: {error}") from error
            kept = "what was measured before is kept" if self.path.exists() else "nothing is there"
            raise SweepError(f"store {self.path}: {error}; {kept}") from error

    def _prepare(self) -> None:
        run = self._connection.execute
        run("BEGIN IMMEDIATE")  # fails at once where nothing can be written
        try:
            if not run("SELECT 1 FROM sqlite_master").fetchone():
                for statement in TABLES.split(";"):
                    run(statement)
                run("INSERT INTO about VALUES (?)", (SCHEMA,))
            found = _columns(self._connection)
            schemas = run("SELECT * FROM about").fetchall() if found["about"] else []
        except BaseException:
            run("ROLLBACK")
            raise
        run("COMMIT")
        newer = [n for row in schemas for n in row if isinstance(n, int) and n > SCHEMA]
        if newer:
            schema = f"its schema is {newer[0]}, this specwb knows {SCHEMA}"
            raise SweepError(f"{self.path} was written by a newer specwb: {schema}")
        with closing(sqlite3.connect(":memory:")) as own:
            own.executescript(TABLES)
            expected = _columns(own)
        if schemas != [(SCHEMA,)] or found != expected:
            raise SweepError(f"{self.path} {FOREIGN}: it is a database of another kind")

    def check(self) -> None:
        """Checks that its runs are such as a sweep writes.

        Raises:
            SweepError: some are not.
        """
        with self._errors():
            (count,) = self._connection.execute(ODD).fetchone()
        if count:
            raise SweepError(f"{self.path} holds {count} runs that no sweep has written")

    def add_configuration(
        self, id: str, configuration: Configuration, facts: Mapping[str, Any]
    ) -> None:
        """Notes a configuration; one that is there stays as it is."""
        values = id, json.dumps(configuration, default=spell), json.dumps(facts)
        with self._errors():
            self._connection.execute(
                "INSERT OR IGNORE INTO configurations VALUES (?, ?, ?)", values
            )

    def done(self, timed: bool = False) -> set[tuple[str, str]]:
        """The (configuration, prompt) that were measured; with ``timed`` those with a time."""
        only = " WHERE seconds IS NOT NULL" if timed else ""
        with self._errors():
            return set(self._connection.execute(f"SELECT id, prompt FROM runs{only}"))

    def add(self, run: Run) -> None:
        """Writes a run with its steps; one that is there stays as it is, unless it has no time and
        this one has.
        """
        row = (
            run.id,
            run.prompt,
            run.domain,
            run.tokens,
            len(run.accepted),
            run.seconds,
            int(run.disturbed),
            run.text,
            run.began,
        )
        steps = [
            (run.id, run.prompt, i, *pair)
            for i, pair in enumerate(zip(run.accepted, run.tested, strict=True))
        ]
        connection = self._connection
        with self._errors():
            connection.execute("BEGIN IMMEDIATE")
            try:
                if run.seconds is not None:
                    place = "id = ? AND prompt = ?"
                    untimed = f"SELECT 1 FROM runs WHERE {place} AND seconds IS NULL"
                    if connection.execute(untimed, (run.id, run.prompt)).fetchone():
                        for table in ("runs", "steps"):
                            delete = f"DELETE FROM {table} WHERE {place}"
                            connection.execute(delete, (run.id, run.prompt))
                known = "INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
                if connection.execute(known, row).rowcount:
                    connection.executemany("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", steps)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:  # a full disk has ended it already
                    connection.execute("ROLLBACK")

    def merge(self, other: Path | str) -> int:
        """Takes over what another store has and this one has not; returns how many runs.

        Raises:
            SweepError: the other is none.
        """
        path = home(other)
        if path.exists() and os.path.samefile(path, self.path):
            raise SweepError(f"store {path} cannot be merged with itself")
        with Store(path, False) as opened:  # it is one, and of a schema that is known
            opened.check()
        connection = self._connection
        with self._errors():
            connection.execute("ATTACH ? AS other", (str(path),))
            try:
                connection.execute("BEGIN IMMEDIATE")
                new = "SELECT id, prompt FROM other.runs EXCEPT SELECT id, prompt FROM main.runs"
                count = connection.execute(f"SELECT count(*) FROM ({new})").fetchone()[0]
                both = "(id, prompt) IN (SELECT id, prompt FROM fresh)"
                connection.execute(f"CREATE TEMP TABLE fresh AS {new}")
                for table in ("runs", "steps"):
                    connection.execute(
                        f"INSERT INTO main.{table} SELECT * FROM other.{table} WHERE {both}"
                    )
                connection.execute("DROP TABLE fresh")
                connection.execute(
                    "INSERT OR IGNORE INTO main.configurations SELECT * FROM other.configurations"
                )
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                connection.execute("DETACH other")
        return int(count)

    def table(self, name: str) -> tuple[list[str], list[tuple]]:
        """The columns and rows of configurations, runs or steps."""
        with self._errors():
            cursor = self._connection.execute(f"SELECT * FROM {name}")
            return [column[0] for column in cursor.description], cursor.fetchall()
