"""Results that outlive an interruption: one JSON file, written again every few seconds, continued by a run with the same arguments."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from specwb.errors import SpecwbError
from specwb.evaluation.compare import describe, describe_device, versions
from specwb.evaluation.machine import commit
from specwb.evaluation.report import check_path, write
from specwb.files import from_json
from specwb.models.target import Target

MEASURED: Mapping[str, Any] = {"accepted": list, "ms": list}
"""What :func:`specwb.reproduce.grid.run` keeps of a cell."""
EVERY = 2.0  # seconds between two writes: what a hard kill loses


def identity(system: str, target: Target, draft: Target | None, **others: Any) -> dict[str, Any]:
    """The arguments a run's results depend on: models, device and number type, and the system's own."""
    models = {"target": describe(target), **({"draft": describe(draft)} if draft is not None else {})}
    return {"system": system, **models, "device": describe_device(target.device), "dtype": str(target.dtype).removeprefix("torch."), **others}


def with_commit(document: dict[str, Any]) -> str:
    """All versions that a document was measured with."""
    return ", ".join(dict.fromkeys([*filter(None, document.get("commit", "").split(", ")), commit()]))


class StoreError(SpecwbError, ValueError):
    """The output file holds something else than the run that is to go on."""


class Store:
    """``document`` is what the file holds: arguments, versions, ``spent`` (seconds measured) and ``cells``, whatever the system puts there.

    Args:
        path: the file (``~`` is the user's home); a missing folder below the working directory's ``build`` is made.
        arguments: what the results depend on. A file with the same ones is continued.
        restart: begin anew whatever is there.
        fields: what every cell has, by name, and of which type or types.
    Raises:
        StoreError: the file is of other arguments, or no results of this form. ValueError: it cannot be written.
    """

    def __init__(self, path: Path, arguments: dict[str, Any], restart: bool = False, fields: Mapping[str, Any] = MEASURED) -> None:
        path = path.expanduser()
        if path.parts[:1] == ("build",):
            path.parent.mkdir(parents=True, exist_ok=True)
        check_path(path, "--out")
        self.path, self._written, self._fields = path, 0.0, fields
        self._seen = _state(path)
        self.document: dict[str, Any] = {"arguments": arguments, "versions": versions(), "spent": 0.0, "cells": {}}
        if path.exists() and not restart:
            self.document = self._old(arguments)

    @property
    def cells(self) -> dict[str, Any]:
        return self.document["cells"]

    def save(self, final: bool = False) -> None:
        """Write the file where that is due, or ``final``.

        Raises:
            StoreError: another run has written it since.
        """
        if final or time.monotonic() - self._written > EVERY:
            if (now := _state(self.path)) is not None and now != self._seen:
                raise StoreError(f"--out: another run has written {self.path} since this one began; run them one by one, or name two files")
            parts = ",\n".join(f"{json.dumps(name)}: {_text(value)}" for name, value in self.document.items())
            write(f"{{\n{parts}\n}}\n", self.path)
            self._written, self._seen = time.monotonic(), _state(self.path)

    def _old(self, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            old = from_json(self.path.read_bytes())
        except ValueError:
            old = None
        if (wrong := _wrong(old, self._fields)) is not None:
            raise StoreError(f"--out: {self.path} holds no results of this command ({wrong}); name another file, or replace it with --restart")
        before = old["arguments"]
        given = json.loads(json.dumps(arguments))
        for name in dict.fromkeys([*given, *before]):
            if given.get(name) != before.get(name):
                raise StoreError(
                    f"--out: {self.path} was measured with {name} = {before.get(name)!r}, now it is {given.get(name)!r}; "
                    "name another file, or begin anew with --restart"
                )
        return old


def _state(path: Path) -> tuple[int, int] | None:
    """Which file it is and when it was written; None where there is no regular file."""
    if not path.is_file():
        return None
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _wrong(document: Any, fields: Mapping[str, Any]) -> str | None:
    """What keeps a document from being results whose cells have these fields; None where nothing does."""
    if not isinstance(document, dict):
        return "it is no table"
    for name in ("arguments", "versions", "cells"):
        if not isinstance(document.get(name), dict):
            return f"its {name} are no table"
    if type(document.get("spent")) not in (int, float) or not 0 <= document["spent"] < float("inf"):
        return f"the seconds spent are {document.get('spent')!r}"
    for key, cell in document["cells"].items():
        if not isinstance(cell, dict) or not all(isinstance(cell.get(name), kind) for name, kind in fields.items()):
            return f"its cell {key!r} is damaged"
    return None


def _text(value: Any) -> str:
    """JSON with a line for every entry of a dict or list, no more."""
    compact = partial(json.dumps, separators=(",", ":"), allow_nan=False)
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f" {json.dumps(name)}: {compact(entry)}" for name, entry in value.items()) + "\n}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f" {compact(entry)}" for entry in value) + "\n]"
    return compact(value)
