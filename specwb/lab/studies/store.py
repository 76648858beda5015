"""Results of a study that outlive an interruption.

They are one JSON file, which is rewritten every few seconds and continued by a run with the same
arguments. It is no :class:`specwb.lab.bench.store.Store`: the file is what is shipped, read and
judged, and a study's probes write results into it that are no runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specwb.core.files import OBJECT, STUDY, claim, document, home, write
from specwb.engine.machine import commit
from specwb.lab.bench.conditions import conditions, versions
from specwb.lab.bench.store import StoreError
from specwb.models.target import Target

_NUMBER = {"type": ["number", "null"]}
_LISTS = {"type": "array", "items": {"type": ["array", "null"], "items": _NUMBER}}
GRID_CELL: Mapping[str, Any] = {
    **OBJECT,
    "required": ["accepted", "ms"],
    "properties": {
        **dict.fromkeys(("accepted", "drafted", "levels", "parts"), _LISTS),
        **{name: {"type": "array", "items": _NUMBER} for name in ("ms", "mean", "disturbed")},
    },
}
"""The schema of what :func:`specwb.lab.studies.grid.run` records of every cell."""
SAVED: Mapping[str, Any] = {
    **OBJECT,
    "required": ["arguments", "versions", "spent", "cells"],
    "properties": {
        **dict.fromkeys(("arguments", "versions", "cells"), OBJECT),
        "spent": {"type": "number", "minimum": 0},
    },
}
"""The schema of what is saved from the beginning."""
_ROW = {
    **OBJECT,
    "required": ["cell", "prompts"],
    "properties": {"cell": {"type": "string"}, "prompts": {"type": "integer", "minimum": 0}},
    "patternProperties": {"^(tau|accepted|drafted|speedup)(_error)?$": _NUMBER},
}
_ROWS = {"type": "array", "items": _ROW, "minItems": 1}
_VERDICTS = {"type": "array", "items": {**OBJECT, "required": ["claim", "verdict"]}}
_REPORT = {
    "kind": {"type": "string"},
    "shapes": {**OBJECT, "minProperties": 1, "additionalProperties": OBJECT},
    "domains": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "commit": {"type": "string"},
    "rows": _ROWS,
    "verdicts": _VERDICTS,
    "rule": {"type": "string"},
}
REPORTED: Mapping[str, Any] = {
    **SAVED,
    "required": [*SAVED["required"], *_REPORT],
    "properties": {
        **SAVED["properties"],
        **_REPORT,
        "cells": {**OBJECT, "minProperties": 1, "additionalProperties": GRID_CELL},
        "ablation": {**OBJECT, "properties": {"rows": _ROWS, "verdicts": _VERDICTS}},
        "counted": {**OBJECT, "required": ["command", "device"]},
    },
}
"""The schema of results that figures are drawn from, as :meth:`Study.report` completes them."""
EVERY = 2.0
"""Seconds between two writes, which are lost by SIGKILL."""


def identity(system: str, target: Target, draft: Target | None, **others: Any) -> dict[str, Any]:
    """List the arguments that a run's results depend on."""
    on = conditions(target, draft=draft)
    where = {name: on[name] for name in ("device", "dtype")}
    return {"system": system, **on["models"], **where, **others}


def with_commit(document: dict[str, Any]) -> str:
    """List all versions of this code that a document was measured with."""
    before = filter(None, document.get("commit", "").split(", "))
    return ", ".join(dict.fromkeys([*before, commit()]))


class Store:
    """The results of a run, and the file they are saved in; ``document`` is its content.

    A file with the same ``arguments`` is continued, with others refused unless ``restart`` begins
    anew; in those of ``differing`` it may differ, and its own stay. ``cell`` is the JSON schema of
    every cell. A missing folder below the working directory's ``build`` is made.
    """

    def __init__(
        self,
        path: Path,
        arguments: dict[str, Any],
        restart: bool = False,
        cell: Mapping[str, Any] = GRID_CELL,
        differing: Sequence[str] = (),
    ) -> None:
        path = home(path)
        claim({"--out": (path, STUDY)})
        self.path, self._saved_at = path, 0.0
        self._file_state = _state(path)
        self.document: dict[str, Any] = {
            "arguments": arguments,
            "versions": versions(),
            "spent": 0.0,
            "cells": {},
        }
        if path.is_file() and path.stat().st_size and not restart:
            self.document = self._read(arguments, differing, cell)

    @property
    def cells(self) -> dict[str, Any]:
        return self.document["cells"]

    def save(self, final: bool = False) -> None:
        """Write the file where that is due, or in any case with ``final``."""
        if not final and time.monotonic() - self._saved_at <= EVERY:
            return
        if (now := _state(self.path)) is not None and now != self._file_state:
            raise StoreError(
                f"--out: another run has written {self.path} since this one began; "
                "run them one by one, or name two files"
            )
        parts = ",\n".join(
            f"{json.dumps(name)}: {_text(value)}" for name, value in self.document.items()
        )
        write(f"{{\n{parts}\n}}\n", self.path)
        self._saved_at, self._file_state = time.monotonic(), _state(self.path)

    def _read(
        self, arguments: dict[str, Any], differing: Sequence[str], cell: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The document in the file, if its arguments are these."""
        cells = {"cells": {**OBJECT, "additionalProperties": cell}}
        schema = {**SAVED, "properties": {**SAVED["properties"], **cells}}
        advice = "name another file, or replace it with --restart"
        saved = document(self.path, schema, StoreError, advice)
        before = saved["arguments"]
        now = json.loads(json.dumps(arguments))
        for name in dict.fromkeys([*now, *before]):
            if name not in differing and now.get(name) != before.get(name):
                raise StoreError(
                    f"--out: {self.path} was measured with "
                    f"{_difference(name, before.get(name), now.get(name))}; "
                    "name another file, or begin anew with --restart"
                )
        return saved


def _difference(name: str, before: Any, now: Any) -> str:
    """What an argument was and is now; of one with many parts, such as the heads of an ablation,
    the first part that differs, and how many do."""
    has_parts = all(isinstance(x, dict | None) for x in (before, now))
    old, new, absent = before or {}, now or {}, object()
    keys = {**old, **new} if has_parts else ()
    parts = [key for key in keys if old.get(key, absent) != new.get(key, absent)]
    if not parts:
        return f"{name} = {before!r}, now it is {now!r}"
    first, *others = parts
    was, is_now = (repr(x[first]) if first in x else "not there" for x in (old, new))
    more = f" ({len(others)} more differ)" if others else ""
    return f"{name}: {first} = {was}, now it is {is_now}{more}"


def _state(path: Path) -> tuple[int, int] | None:
    """Which file it is and when it was written; None where there is no regular file."""
    if not path.is_file():
        return None
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def results_in(path: Path, system: str, option: str = "--out") -> dict[str, Any]:
    """Read a file of results, to be shown and not to be gone on from."""
    advice = f"specwb reproduce {system} makes such a file, and completes one that it began"
    found = document(path, REPORTED, StoreError, advice)
    if (other := found["arguments"].get("system")) != system:
        raise StoreError(f"{option}: {path} holds no results of {system}, they are of {other}")
    if not {"command", "counted"} & set(found):
        raise StoreError(f"{path} has neither the command of its times nor counted; {advice}")
    return found


def _text(value: Any) -> str:
    """JSON with one line for every entry of a dict or list, whatever is inside."""
    compact = partial(json.dumps, separators=(",", ":"), allow_nan=False)
    if isinstance(value, dict) and value:
        entries = [f" {json.dumps(name)}: {compact(entry)}" for name, entry in value.items()]
        return "{\n" + ",\n".join(entries) + "\n}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f" {compact(entry)}" for entry in value) + "\n]"
    return compact(value)
