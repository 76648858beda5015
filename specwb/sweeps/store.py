"""What a sweep has measured, in one SQLite file.

A configuration is known by a hash of everything that its results depend on. A run is a
configuration on a prompt; it is written in one transaction with its steps, or not at all. So a
sweep can be killed at any moment, run twice, or be measured in parts by several processes: nothing
is lost or counted double.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


class Store:
    """The file.

    Args:
        path: it is made if it is missing, with its folder below the working directory's ``build``.
    Raises:
        SweepError: it is no store, damaged, of a newer schema, or cannot be written.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).expanduser()
        if self.path.parts[:1] == ("build",):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            self._connection = sqlite3.connect(self.path, timeout=60, isolation_level=None)
            self._prepare()

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
            kept = "what was measured before is kept" if self.path.exists() else "nothing is there"
            raise SweepError(f"store {self.path}: {error}; {kept}") from error

    def _prepare(self) -> None:
        run = self._connection.execute
        run("BEGIN IMMEDIATE")  # fails at once where nothing can be written
        try:
            tables = {name for (name,) in run("SELECT name FROM sqlite_master WHERE type='table'")}
            if not tables:
                for statement in TABLES.split(";"):
                    run(statement)
                run("INSERT INTO about VALUES (?)", (SCHEMA,))
            elif not {"about", "configurations", "runs", "steps"} <= tables:
                raise SweepError(f"{self.path} is a database, but no store of a sweep")
            (schema,) = run("SELECT schema FROM about").fetchone()
        except BaseException:
            run("ROLLBACK")
            raise
        run("COMMIT")
        if schema > SCHEMA:
            newer = f"its schema is {schema}, this specwb knows {SCHEMA}"
            raise SweepError(f"{self.path} was written by a newer specwb: {newer}")

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
        path = Path(other).expanduser()
        if not path.is_file():
            raise SweepError(f"store {path} does not exist")
        with Store(path):  # it is one, and of a schema that is known
            pass
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
