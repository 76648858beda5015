"""A comparison written out: its tables and the notes below them, as text or Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from specwb.engine import machine
from specwb.lab.bench.results import PARTS, PLAIN
from specwb.lab.bench.ties import Agreement

SPREAD = 4
"""Quartiles of fewer runs than this say nothing and are not shown."""


def ranked(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort the rows by speedup, the fastest first."""
    return frame.sort_values("speedup", ascending=False, kind="stable")


def cells(frame: pd.DataFrame) -> list[dict[str, str]]:
    """Make the table as it is printed: one row a method, the fastest first, column -> text.

    A lossy method says so beside its name. The column of speedups is named after the decoding that
    they are over. Rates have no column: all tokens over all seconds and the median of paired runs
    are two figures, which can be ordered differently.
    """
    over = f"speedup over {frame.attrs['reference']['method']}"
    same = frame.attrs["same_text"] or {}
    rows = []
    for row in ranked(frame).to_dict("records"):
        name = row["method"] if row["lossless"] else f"{row['method']} (LOSSY)"
        cells = {"method": name, over: f"{row['speedup']:.2f}x"}
        if frame.attrs["runs"] >= SPREAD:
            cells["(quartiles)"] = f"{row['speedup_low']:.2f}-{row['speedup_high']:.2f}"
        cells["tau"] = f"{row['tau']:.2f}"
        text = same.get(row["method"])
        cells["same text"] = "-" if text is None else str(Agreement(**text))
        rows.append(cells)
    return rows


def times(frame: pd.DataFrame) -> list[dict[str, str]]:
    """Make the table of the parts' shares of the time of decoding steps: one row a method of this
    engine whose parts were timed."""
    timed = ranked(frame).dropna(subset=list(PARTS)).set_index("method")[list(PARTS)]
    shares = timed.div(timed.sum(axis=1), axis=0)
    return [
        {"method": name, **{part: f"{share:.0%}" for part, share in row.items()}}
        for name, row in shares.to_dict("index").items()
    ]


def captions(facts: Mapping[str, Any]) -> tuple[str, str, str]:
    """Write what stands over the table of speeds, below it, and over the table of times."""
    over, unit = facts["reference"]["method"], _unit(facts)
    every = [same["margin"] for same in (facts["same_text"] or {}).values()]
    margins = [margin for margin in every if margin is not None]
    parting = ""
    if margins:
        parting = (
            "; at a tie: both tokens' logits are plain decoding's best up to "
            f"{max(margins):.2g}, 1.5 times the most by which rounding moves two logits apart in "
            "these texts (for rows of the library at least 1.5 roundings of a logit); NOT: "
            "elsewhere, which is an error"
        )
    columns = (
        f"speedup: tokens/s over {over}'s on the same {unit}, the median of these pairs; "
        "(quartiles): half of the pairs lie between; tau: tokens per forward pass of the target; "
        f"same text: greedy tokens equal to plain decoding's{parting}"
    )
    return (
        f"Speed of each method, fastest first, on {_count(facts)}",
        columns,
        "Share of the time of decoding steps: drafting, scoring the draft by the target, verifying "
        "it by the rule, committing what was accepted",
    )


def _unit(facts: Mapping[str, Any]) -> str:
    """What is decoded in one run."""
    return "prompt" if facts["settings"]["batch"] == 1 else "batch"


def _count(facts: Mapping[str, Any]) -> str:
    """How many groups plain decoding has run, in words."""
    plural = {"prompt": "prompts", "batch": "batches"}[_unit(facts)]
    return f"{facts['runs']} {_unit(facts) if facts['runs'] == 1 else plural}"


def markdown(frame: pd.DataFrame) -> str:
    """Write both tables as one, and the notes below it, as Markdown."""
    shares = {row["method"]: row for row in times(frame)}
    rows = [
        {**dict.fromkeys(PARTS, "-"), **shares.get(name, {}), **row}
        for name, row in zip(ranked(frame)["method"], cells(frame), strict=True)
    ]
    columns = [*cells(frame)[0], *PARTS]
    lines = [
        columns,
        ["---" if name in ("method", "same text") else "---:" for name in columns],
        *([row[name] for name in columns] for row in rows),
    ]
    table = [f"| {' | '.join(line)} |" for line in lines]
    below = [captions(frame.attrs)[1], *notes(frame.attrs)]
    return "\n".join([*table, "", *(f"{note}\n" for note in below)])


def over(facts: Mapping[str, Any]) -> str:
    """Say what the speedups are over, and how fast the other plain decoding is.

    The faster one is chosen by the median of paired runs; rates are all tokens over all seconds.
    Where runs differ in length the two can disagree, and the sentence says so.
    """
    chosen, plain = facts["reference"]["method"], facts["reference"]["plain"]
    others = "; ".join(
        f"{name} ({PLAIN[name]}) has {speed:.1f} tokens/s"
        for name, speed in plain.items()
        if name != chosen
    )
    why = ""
    if plain[chosen] < max(plain.values()):
        why = ", as all tokens over all seconds are ordered the other way"
    return (
        f"speedup is over {chosen} ({PLAIN[chosen]}, {plain[chosen]:.1f} tokens/s), "
        f"the fastest plain decoding by the median of paired runs; {others}{why}"
    )


def conclusion(facts: Mapping[str, Any]) -> str:
    """Say which method is fastest, and which may be as fast."""
    best, tied, rest = (facts["fastest"][key] for key in ("method", "tied", "others"))
    over, speedup = facts["reference"]["method"], facts["fastest"]["speedup"]
    name = best if facts["fastest"]["lossless"] else f"{best} (LOSSY)"
    if rest < len(facts["reference"]["plain"]):
        return "Nothing but plain decoding was measured."
    if best == over:
        text = f"No method is faster here than plain decoding, {over}"
    elif over in tied:
        text = f"The largest speedup is {name}'s, {speedup:.2f}x"
    else:
        text = f"Fastest here is {name}, {speedup:.2f}x over plain decoding"
    if len(tied) == rest:
        return f"{text}, but {_count(facts)} cannot rank the methods: measure longer (--seconds)."
    if tied:
        text += f"; {_count(facts)} cannot tell it from {', '.join(tied)}"
    return f"{text}."


def left_out(reasons: Mapping[str, str]) -> list[str]:
    """Write a line for each reason why methods were left out."""
    return [
        f"left out: {' '.join(name for name in reasons if reasons[name] == reason)}: {reason}"
        for reason in dict.fromkeys(reasons.values())
    ]


def notes(facts: Mapping[str, Any]) -> list[str]:
    """List what has to be known beside the table; a warning comes first."""
    *warning, quiet = machine.notes(facts["machine"])
    lines = [*warning, conclusion(facts), over(facts)]
    # the library's speculative decoding is slow where its plain decoding is
    if library := facts["reference"]["library"]:
        speedups = ", ".join(f"{name} {x:.2f}x" for name, x in library.items())
        lines.append(f"over transformers' own plain decoding: {speedups}")
    models = "; ".join(f"{role} {name}" for role, name in facts["models"].items())
    lines += [*left_out(facts["left_out"]), _settings(facts), f"{facts['device']}; {models}", quiet]
    if facts["looping"]:
        lines.append(
            f"plain greedy text repeats itself (8 tokens three times) after {facts['looping']} of "
            f"{_count(facts)}, which flatters methods that copy from the text"
        )
    return lines


def _settings(facts: Mapping[str, Any]) -> str:
    """The note on prompts and settings."""
    settings = facts["settings"]
    prompts = f"{facts['prompts']} of {facts['all_prompts']} prompts"
    if facts["categories_left_out"]:
        prompts += f" (none of {', '.join(facts['categories_left_out'])})"
    parts = [
        prompts,
        f"batch {settings['batch']}",
        f"{settings['max_new_tokens']} new tokens",
        f"temperature {settings['temperature']:g}",
        settings["dtype"],
    ]
    if settings["top_k"]:
        parts.append(f"top_k {settings['top_k']}")
    if settings["top_p"] != 1:
        parts.append(f"top_p {settings['top_p']:g}")
    if facts["cut_prompts"]:
        parts.append(f"{facts['cut_prompts']} cut to the context")
    if facts["interrupted"]:
        parts.append("interrupted")
    return ", ".join(parts)
