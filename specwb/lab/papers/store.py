"""Results of a run that outlive an interruption.

They are one JSON file, which is rewritten every few seconds and continued by a run with the same
arguments. It is no :class:`specwb.lab.bench.store.Store`: the file is what is shipped, read and
judged, and a paper's probe writes results into it that are no runs.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specwb.core.files import OBJECT, STUDY, claim, document, home, write
from specwb.lab.bench.store import StoreError
from specwb.lab.papers.figures import SavedResults, Table

_NUMBER = {"type": ["number", "null"]}
_LISTS = {"type": "array", "items": {"type": ["array", "null"], "items": _NUMBER}}
RECORD: Table = {
    **OBJECT,
    "required": ["accepted", "ms"],
    "properties": {
        **dict.fromkeys(("accepted", "drafted", "levels", "parts"), _LISTS),
        **{name: {"type": "array", "items": _NUMBER} for name in ("ms", "mean", "disturbed")},
    },
}
"""The schema of what :func:`specwb.lab.papers.grid.record` gives of every cell."""
EVERY = 2.0
"""Seconds between two writes, which are lost by SIGKILL."""


def read_results(path: Path, cell: Table = RECORD, advice: str = "") -> SavedResults:
    """Read a file of results whose cells have this JSON schema.

    Raises:
        StoreError: it is missing, damaged or another file.
    """
    schema = {
        **OBJECT,
        "required": ["arguments", "versions", "spent", "cells"],
        "properties": {
            **dict.fromkeys(("arguments", "versions", "shapes"), OBJECT),
            "spent": {"type": "number", "minimum": 0},
            "cells": {**OBJECT, "additionalProperties": cell},
            "domains": {"type": "array", "items": {"type": "string"}},
            "kind": {"type": "string"},
        },
    }
    return document(path, schema, StoreError, advice or "specwb reproduce makes such a file")


@dataclass(frozen=True)
class RunSettings:
    """How a paper is measured, and where its results are kept."""

    out: Path  # the file of the results; those of trained heads lie next to it
    prompts: str  # the name of the prompts
    rounds: int | None = None  # decoding steps of each prompt and cell, default the paper's
    seconds: float | None = None  # about how long to measure in all, None takes every prompt
    seed: int = 0  # of the sampling
    restart: bool = False  # replace the results that are there
    # whether times are recorded; otherwise tokens alone are counted, and the file may be of another
    # machine
    timed: bool = True
    command: str = ""  # what was typed


class Store:
    """The results of a run, and the file they are saved in; ``document`` is its content.

    A file with the same ``arguments`` is continued, with others refused unless the settings say to
    begin anew; where no times are recorded it may be of another device, and its own stays. ``cell``
    is the JSON schema of every cell.
    """

    def __init__(
        self,
        settings: RunSettings,
        arguments: Table,
        versions: Table,
        cell: Table = RECORD,
    ) -> None:
        self.settings, self.path = settings, home(settings.out)
        claim({"--out": (self.path, STUDY)})
        self._saved_at, self._state = 0.0, _state(self.path)
        self.document: SavedResults = {
            "arguments": arguments,
            "versions": versions,
            "spent": 0.0,
            "cells": {},
        }
        if self._state and self.path.stat().st_size and not settings.restart:
            advice = "name another file, or replace it with --restart"
            self.document = read_results(self.path, cell, advice)
            self._check(json.loads(json.dumps(arguments)))

    @property
    def cells(self) -> dict[str, Any]:
        """What was recorded of every cell."""
        return self.document["cells"]

    def save(self, final: bool = False) -> None:
        """Write the file where that is due, or in any case with ``final``.

        Raises:
            StoreError: another run has written it meanwhile.
        """
        if not final and time.monotonic() - self._saved_at <= EVERY:
            return
        if (now := _state(self.path)) is not None and now != self._state:
            raise StoreError(
                f"--out: another run has written {self.path} since this one began; "
                "run them one by one, or name two files"
            )
        parts = ",\n".join(
            f"{json.dumps(name)}: {_text(value)}" for name, value in self.document.items()
        )
        write(f"{{\n{parts}\n}}\n", self.path)
        self._saved_at, self._state = time.monotonic(), _state(self.path)

    def _check(self, arguments: Table) -> None:
        before = self.document["arguments"]
        for name in dict.fromkeys([*arguments, *before]):
            old, new = before.get(name), arguments.get(name)
            if old == new or (name == "device" and not self.settings.timed):
                continue
            if isinstance(old, dict) and isinstance(new, dict):  # of many heads the first
                part = next(key for key in {**old, **new} if old.get(key) != new.get(key))
                name, old, new = f"{name}: {part}", old.get(part), new.get(part)
            raise StoreError(
                f"--out: {self.path} was measured with {name} = {old!r}, now it is {new!r}; "
                "name another file, or begin anew with --restart"
            )


def _state(path: Path) -> tuple[int, int] | None:
    """Which file it is and when it was written; None where there is no regular file."""
    if not path.is_file():
        return None
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _text(value: Any) -> str:
    """JSON with one line for every entry of a dict or list, whatever is inside."""
    compact = partial(json.dumps, separators=(",", ":"), allow_nan=False)
    if isinstance(value, dict) and value:
        entries = [f" {json.dumps(name)}: {compact(entry)}" for name, entry in value.items()]
        return "{\n" + ",\n".join(entries) + "\n}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f" {compact(entry)}" for entry in value) + "\n]"
    return compact(value)
