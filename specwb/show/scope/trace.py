"""Traces: their name, version and schema, and the check of one that comes from outside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from specwb.core.errors import SpecwbError
from specwb.core.files import document

FORMAT = "specwb-trace"
VERSION = 1
SCHEMA = Path(__file__).with_name("trace.schema.json")


Part = dict[str, Any]
"""A part of a trace: an object of the schema."""
Traces = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""One trace, or several."""


class TraceError(SpecwbError, ValueError):
    """This is no trace, or one of another version."""


class Trace(dict[str, Any]):
    """A trace as :func:`specwb.record` returns it: a dictionary, shown as one line.

    The line has no measured times, so that a notebook's output is the same in every run.
    """

    def __repr__(self) -> str:
        return f"Trace({in_words(self)})"


@cache
def schema() -> Part:
    """The JSON schema (draft 2020-12) of a trace of this version."""
    return document(SCHEMA)


def checked(trace: Any) -> Part:
    """A trace as :func:`specwb.record` made it, or as it was read from a file; a TraceError if it
    cannot be played.

    It looks at the name, the version and the parts that a player cannot do without; the whole is
    what :func:`schema` says.
    """
    if not isinstance(trace, Mapping) or trace.get("format") != FORMAT:
        raise TraceError(
            f"a trace is the dictionary that specwb.record(...) returns, with format={FORMAT!r};"
            f" got {type(trace).__name__}"
        )
    if trace.get("version") != VERSION:
        raise TraceError(
            f"this trace has version {trace.get('version')!r}, this specwb plays version {VERSION};"
            " record it again"
        )
    missing = [name for name in schema()["required"] if name not in trace]
    if missing:
        raise TraceError(f"the trace has no {', '.join(missing)}")
    return dict(trace)


def several(traces: Any) -> list[Part]:
    """One trace or a sequence of them as a list of those that can be played; a TraceError for
    others.
    """
    if isinstance(traces, Sequence) and not isinstance(traces, str):
        return [checked(trace) for trace in traces]
    return [checked(traces)]


def in_words(trace: Mapping[str, Any]) -> str:
    """One line about a trace: its method, tokens, steps and tau."""
    tokens, steps = len(trace["tokens"]), len(trace["rounds"])
    spec, tau = trace["method"]["spec"], tokens / steps
    return f"{spec}: {tokens} tokens in {steps} steps, {tau:.2f} per step"


def short(x: float) -> float:
    """A number of four digits, which is all that is read off a picture."""
    x = float(x)
    return 0.0 if not math.isfinite(x) or abs(x) < 1e-15 else float(f"{x:.4g}")
