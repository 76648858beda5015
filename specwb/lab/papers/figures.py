"""Figures of a cell, one number for every prompt, from what was recorded of its decoding steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

Table = Mapping[str, Any]
"""A table of a paper's file, or a record of results."""
SavedResults = dict[str, Any]
"""Results as they are saved: arguments, versions, spent, cells and what a probe adds."""
Printed = list[tuple[str, list[dict[str, str]]]]
"""Tables as they are printed, each with its title."""
Cells = Mapping[str, Table]
"""A cell's name -> what was recorded of it, see :func:`specwb.lab.papers.grid.record`."""
PARTS = ("draft", "search", "verify", "rest")
"""The parts of a decoding step's time."""
SPEEDS = ("speedup", "pace", "ms", *PARTS)
"""Figures that depend on the machine."""
SHOWN = {
    "speedup": "speed",
    "pace": "steps per second",
    "tau": "tokens per step",
    "accepted": "accepted tokens per step",
    "alpha": "accepted share of the tokens",
    "drafted": "draft tokens per step",
    "depth_fraction": "accepted share of the levels",
    "draft": "time of drafting",
}
"""What a figure is called where it is shown, if not as in results."""
FIGURE = re.compile(
    r"tau|accepted|alpha|drafted|levels|depth_fraction|at least \d+|speedup|pace|ms|"
    rf"({'|'.join(PARTS)})(/ms)?"
)
"""The names of figures."""


def figure(cells: Cells, key: str, what: str) -> list[float]:
    """Compute a figure of a cell for every prompt; none where it was not measured.

    Args:
        cells: the records.
        key: the cell.
        what: of all steps "tau" (tokens per step, the bonus token included), "accepted" (tau - 1),
            "alpha" (accepted / tau), "at least w" (the share of steps with w accepted), "drafted"
            (draft tokens), "levels" (the depth of the draft; several roots are not drafted) or
            "depth_fraction" (accepted / levels); of all steps but the first, which processes the
            prompt, "ms" (their mean), a part of it, or its share ("search/ms"), "pace" (the steps
            in the time of one of plain decoding) or "speedup" (pace times tau).
    """
    record = cells.get(key, {})
    steps, ms = record.get("accepted", []), record.get("mean", [])
    if what in ("tau", "accepted"):
        return [fmean(accepted) + (what == "tau") for accepted in steps]
    if what == "alpha":
        return [1 - 1 / (1 + fmean(accepted)) for accepted in steps]
    if what.startswith("at least "):
        return [fmean(a >= int(what[9:]) for a in accepted) for accepted in steps]
    if what == "drafted":
        return [fmean(drafted) for drafted in record.get("drafted", [])]
    if what == "levels":
        roots = "lossy=true" in key or "preset=" in key  # the presets have several too
        return [fmean(n) - roots for n in record.get("levels", record.get("drafted", []))]
    if what == "depth_fraction":
        pairs = zip(figure(cells, key, "accepted"), figure(cells, key, "levels"), strict=True)
        return [accepted / levels if levels else 0.0 for accepted, levels in pairs]
    if what == "ms":
        return list(ms)
    if (part := what.removesuffix("/ms")) in PARTS:
        seconds = [parts[PARTS.index(part)] for parts in record.get("parts", []) if parts]
        pairs = zip(seconds, ms, strict=False)
        return [s / whole for s, whole in pairs] if part != what else seconds
    plain = cells.get(f"{key.split()[0]} ar", {}).get("mean", [])
    pace = [reference / own for reference, own in zip(plain, ms, strict=False)]
    if what == "pace":
        return pace
    return [(1 + fmean(a[1:])) * p for a, p in zip(steps, pace, strict=False)]


def runs_of(cells: Cells, names: Sequence[str]) -> list[list[str]]:
    """List cells with the heads of every training run: ``[head]``, ``[head@2]``, .."""
    runs = [list(names)]
    while True:
        again = [name.replace("]", f"@{len(runs) + 1}]") for name in names]
        if again == runs[0] or not all(name in cells for name in again):
            return runs
        runs.append(again)
