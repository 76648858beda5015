"""Results of a run that outlive an interruption.

They are one JSON file, which is rewritten every few seconds and continued by a run with the same
arguments. It is no :class:`specwb.lab.bench.store.Store`: the file is what is shipped, read and
judged, and a paper's probe writes results into it that are no runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from specwb.core.files import OBJECT, STUDY, claim, document, home, write
from specwb.lab.bench.store import StoreError

_NUMBER = {"type": ["number", "null"]}
_LISTS = {"type": "array", "items": {"type": ["array", "null"], "items": _NUMBER}}
RECORD: Mapping[str, Any] = {
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


def saved(cell: Mapping[str, Any] = RECORD) -> dict[str, Any]:
    """The schema of results whose cells have this one."""
    return {
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


def read_results(path: Path, cell: Mapping[str, Any] = RECORD, advice: str = "") -> dict[str, Any]:
    """Read a file of results.

    Raises:
        StoreError: it is missing, damaged or another file.
    """
    return document(path, saved(cell), StoreError, advice or "specwb reproduce makes such a file")


class Store:
    """The results of a run, and the file they are saved in; ``document`` is its content.

    A file with the same ``arguments`` is continued, with others refused unless ``restart`` begins
    anew; in those of ``differing`` it may differ, and its own stay. ``cell`` is the JSON schema of
    every cell. A missing folder below the working directory's ``build`` is made.
    """

    def __init__(
        self,
        path: Path,
        arguments: Mapping[str, Any],
        versions: Mapping[str, Any],
        restart: bool = False,
        cell: Mapping[str, Any] = RECORD,
        differing: tuple[str, ...] = (),
    ) -> None:
        self.path = home(path)
        claim({"--out": (self.path, STUDY)})
        self._saved_at, self._state = 0.0, _state(self.path)
        self.document: dict[str, Any] = {
            "arguments": arguments,
            "versions": versions,
            "spent": 0.0,
            "cells": {},
        }
        if self._state and self.path.stat().st_size and not restart:
            advice = "name another file, or replace it with --restart"
            self.document = read_results(self.path, cell, advice)
            self._check(json.loads(json.dumps(arguments)), differing)

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

    def _check(self, arguments: Mapping[str, Any], differing: tuple[str, ...]) -> None:
        before = self.document["arguments"]
        for name in dict.fromkeys([*arguments, *before]):
            old, new = before.get(name), arguments.get(name)
            if name in differing or old == new:
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
