"""A comparison written out: its tables and the notes below them, as text, CSV or Markdown."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from specwb.engine import machine
from specwb.lab.bench.runs import PARTS
from specwb.lab.bench.ties import Same

SPREAD = 4
"""Quartiles of fewer runs than this say nothing and are not shown."""
PLAIN = {
    "ar": "specwb's own plain decoding",
    "hf_greedy": "transformers' generate",
    "hf_sample": "transformers' generate",
}
"""What the plain decodings are, in words."""


def _plain(name: str) -> str:
    """A plain decoding in words, with its number type where that is another one."""
    kind, _, row = name.rpartition(" ")
    return PLAIN[row] + f" in {kind}" * bool(kind)


def ranked(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort the rows by speedup, the fastest first."""
    return frame.sort_values("speedup", ascending=False, kind="stable")


def cells(frame: pd.DataFrame) -> list[dict[str, str]]:
    """Make the table as it is printed: one row a method, the fastest first, column -> text.

    A lossy method says so beside its name. The column of speedups is named after the decoding that
    they are over. Rates have no column: all tokens over all seconds and the median of paired runs
    are two figures, which can be ordered differently. The first columns are the ones that a narrow
    terminal keeps.
    """
    over = f"speedup over {frame.attrs['reference']['method']}"
    several = frame.attrs["runs"] >= SPREAD
    same = frame.attrs["same_text"] or {}
    rows = []
    for row in ranked(frame).to_dict("records"):
        quartiles = f"{row['speedup_low']:.2f}-{row['speedup_high']:.2f}"
        rows.append(
            {
                "method": row["method"] + ("" if row["lossless"] else " (LOSSY)"),
                over: f"{row['speedup']:.2f}x",
                **({"(quartiles)": quartiles} if several else {}),
                "tau": f"{row['tau']:.2f}",
                "same text": str(Same(**same[row["method"]])) if row["method"] in same else "-",
            }
        )
    return rows


def times(frame: pd.DataFrame) -> list[dict[str, str]]:
    """The shares of the time of decoding steps: one row a method of this engine."""
    rows = []
    for row in ranked(frame).to_dict("records"):
        total = sum(row[part] for part in PARTS if not pd.isna(row[part]))
        if total:
            shares = {part: f"{row[part] / total:.0%}" for part in PARTS}
            rows.append({"method": row["method"], **shares})
    return rows


def captions(facts: dict[str, Any]) -> tuple[str, str, str]:
    """Write what stands over the table of speeds, below it, and over the table of times."""
    over, unit = facts["reference"]["method"], _unit(facts)
    speeds = f"Speed of each method, fastest first, on {_count(facts)}"
    quartiles = "(quartiles): half of the pairs lie between; "
    columns = (
        f"speedup: tokens/s over {over}'s on the same {unit}, the median of these pairs; "
        f"{quartiles if facts['runs'] >= SPREAD else ''}tau: tokens per forward pass of the "
        f"target; same text: greedy tokens equal to plain decoding's{_parting(facts)}"
    )
    times = (
        "Share of the time of decoding steps: drafting, scoring the draft by the target, verifying "
        "it by the rule, committing what was accepted"
    )
    return speeds, columns, times


def _parting(facts: dict[str, Any]) -> str:
    """Where texts part, in words; nothing where none does."""
    every = [same["margin"] for same in (facts["same_text"] or {}).values()]
    margins = [margin for margin in every if margin is not None]
    if not margins:
        return ""
    return (
        f"; at a tie: both tokens' logits are plain decoding's best up to {margins[0]:.2g}, 1.5 "
        "times the most by which rounding moves two logits apart in these texts; NOT: elsewhere, "
        "which is an error"
    )


def _unit(facts: dict[str, Any]) -> str:
    """What is decoded in one run."""
    return "prompt" if facts["settings"]["batch"] == 1 else "batch"


def _count(facts: dict[str, Any]) -> str:
    """How many runs each method has, in words."""
    unit = _unit(facts)
    plural = {"prompt": "prompts", "batch": "batches"}[unit]
    return f"{facts['runs']} {unit if facts['runs'] == 1 else plural}"


def merged(frame: pd.DataFrame) -> list[dict[str, str]]:
    """Both tables as one, for paper and for pages that are wide enough.

    Where plain text loops there are also columns of the runs in which it does not.
    """
    shares = {row["method"]: row for row in times(frame)}
    none = dict.fromkeys(PARTS, "-")
    rest = frame.attrs["non_looping"] or {"methods": {}}
    rows = []
    for name, row in zip(ranked(frame)["method"], cells(frame), strict=True):
        if rest["methods"] and rest["runs"] < rest["of"]:
            figures = rest["methods"][name]
            row["tau, no loops"] = f"{figures['tau']:.2f}"
            row["speedup, no loops"] = f"{figures['speedup']:.2f}x"
        rows.append(row | {part: shares.get(name, none)[part] for part in PARTS})
    return rows


def markdown(frame: pd.DataFrame) -> str:
    """Write the table and the notes below it as Markdown."""
    rows = merged(frame)
    text_columns = ("method", "same text")
    lines = [
        list(rows[0]),
        ["---" if name in text_columns else "---:" for name in rows[0]],
        *(row.values() for row in rows),
    ]
    table = [f"| {' | '.join(line)} |" for line in lines]
    below = [captions(frame.attrs)[1], *notes(frame.attrs)]
    return "\n".join([*table, "", *(f"{note}\n" for note in below)])


def over(facts: dict[str, Any]) -> str:
    """Say what the speedups are over, and how fast the other plain decodings are.

    The fastest one is chosen by the median of paired runs; rates are all tokens over all seconds.
    Where runs differ in length the two can disagree, and the sentence says so.
    """
    chosen, plain = facts["reference"]["method"], facts["reference"]["plain"]
    others = "; ".join(
        f"{name} ({_plain(name)}) has {speed:.1f} tokens/s"
        for name, speed in plain.items()
        if name != chosen
    )
    why = ""
    if plain[chosen] < max(plain.values()):
        why = ", as all tokens over all seconds are ordered the other way"
    return (
        f"speedup is over {chosen} ({_plain(chosen)}, {plain[chosen]:.1f} tokens/s), "
        f"the fastest plain decoding by the median of paired runs; {others}{why}"
    )


def _library(facts: dict[str, Any]) -> list[str]:
    """The note on the library's speculative decoding, which is slow where its plain decoding is."""
    speedups = [f"{name} {x:.2f}x" for name, x in facts["reference"]["library"].items()]
    if not speedups:
        return []
    return [f"over transformers' own plain decoding: {', '.join(speedups)}"]


def conclusion(facts: dict[str, Any]) -> str:
    """Say which method is fastest, and which may be as fast."""
    best, tied, rest = (facts["fastest"][key] for key in ("method", "tied", "others"))
    over, speedup = facts["reference"]["method"], facts["fastest"]["speedup"]
    name = best if facts["fastest"]["lossless"] else f"{best} (LOSSY)"
    pairs = _count(facts)
    if rest < len(facts["reference"]["plain"]):
        return "Nothing but plain decoding was measured."
    if best == over:
        text = f"No method is faster here than plain decoding, {over}"
    elif over in tied:
        text = f"The largest speedup is {name}'s, {speedup:.2f}x"
    else:
        text = f"Fastest here is {name}, {speedup:.2f}x over plain decoding"
    if len(tied) == rest:
        return f"{text}, but {pairs} cannot rank the methods: measure longer (--seconds)."
    same = f"; {pairs} cannot tell it from {', '.join(tied)}" if tied else ""
    return f"{text}{same}."


def left_out(reasons: Mapping[str, str]) -> list[str]:
    """Write a line for each reason why methods were left out."""
    return [
        f"left out: {' '.join(name for name in reasons if reasons[name] == reason)}: {reason}"
        for reason in dict.fromkeys(reasons.values())
    ]


def notes(facts: dict[str, Any]) -> list[str]:
    """List what has to be known beside the table; a warning comes first."""
    *warning, quiet = machine.notes(facts["machine"])
    lines = [
        *warning,
        conclusion(facts),
        over(facts),
        *_library(facts),
        *left_out(facts["left_out"]),
        _settings(facts),
        _models(facts),
        quiet,
    ]
    non_looping = facts["non_looping"]
    if non_looping is not None and non_looping["runs"] < non_looping["of"]:
        runs, of = non_looping["runs"], non_looping["of"]
        lines.append(
            f"plain greedy text repeats itself (8 tokens three times) after {of - runs} of "
            f"{_count(facts)}, which flatters methods that copy from the text; --markdown "
            "also shows the speedups without these"
        )
    if facts["time_split"]["separate"]:
        lines.append(
            "draft, score, verify, commit are from a second pass, eager and timed part by part; "
            "speedup is not"
        )
    return lines


def _models(facts: dict[str, Any]) -> str:
    """The note on device and models."""
    models = "; ".join(f"{role} {name}" for role, name in facts["models"].items())
    return f"{facts['device']}; {models}"


def _settings(facts: dict[str, Any]) -> str:
    """The note on prompts and settings."""
    settings = facts["settings"]
    cut = f", {facts['cut_prompts']} cut to the context" if facts["cut_prompts"] else ""
    early = ", interrupted" if facts["interrupted"] else ""
    filters = "".join(
        f", {name} {settings[name]:g}"
        for name, off in (("top_k", 0), ("top_p", 1))
        if settings[name] != off
    )
    missing = ""
    if facts["categories_left_out"]:
        missing = f" (none of {', '.join(facts['categories_left_out'])})"
    return (
        f"{facts['prompts']} of {facts['all_prompts']} prompts{missing}{cut}{early}"
        f", batch {settings['batch']}, {settings['max_new_tokens']} new tokens, "
        f"temperature {settings['temperature']:g}{filters}, {settings['dtype']}"
    )


def csv_bytes(frame: pd.DataFrame, path: Path) -> bytes:
    """A frame as CSV, packed as the end of the file's name says (.gz, .bz2, .xz, .zip)."""
    packed = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zip": "zip"}
    buffer = io.BytesIO()
    frame.to_csv(buffer, index=False, compression=packed.get(path.suffix))  # type: ignore[call-overload]
    return buffer.getvalue()
