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


CAPTIONS = {
    False: "Speed of each method, fastest first",
    True: "The transformers library, over its own plain decoding",
}
"""Of both tables, see :func:`cells`."""


def cells(frame: pd.DataFrame, library: bool = False) -> list[dict[str, str]]:
    """Make a table as it is printed: one row a method, the fastest first, column -> text.

    A lossy method says so beside its name. The column of speedups is named after the decoding that
    they are over. Rates have no column: all tokens over all seconds and the median of paired runs
    are two figures, which can be ordered differently.

    Args:
        frame: of a comparison.
        library: make the table of the transformers library's rows, over its own plain decoding;
            otherwise that of the others.
    """
    facts = frame.attrs
    rows = frame[frame.method.str.startswith("hf_") == library]
    over, same = facts["reference"]["method"], facts["same_text"] or {}
    plain = rows[rows.method.isin(PLAIN)]
    if library and len(plain):
        over, base = plain.method.iloc[0], plain.speedup.iloc[0]
        rows = rows.assign(speedup=rows.speedup / base)
    rows = rows.sort_values("speedup", ascending=False, kind="stable")
    figures = ["speedup", "speedup_low", "speedup_high", "tau", "cost"]
    text = rows[figures].map("{:.2f}".format).astype(str)
    ends = text.speedup_low + "-" + text.speedup_high
    table = {
        "method": rows.method.where(rows.lossless, rows.method + " (LOSSY)"),
        f"speedup over {over}": text.speedup + "x",
        "quartiles": ends.where((rows.runs >= SPREAD) & (not library), "-"),
        "tau": text.tau,
        "cost": text.cost,
        "draft": (rows.draft / rows[list(PARTS)].sum(axis=1)).map("{:.0%}".format),
        "runs": [f"{rows.runs[i]}{'*' * (x in facts['stopped'])}" for i, x in rows.method.items()],
        "same text": [str(Agreement(**same[x])) if x in same else "-" for x in rows.method],
    }
    shown = pd.DataFrame(table).replace(["nan", "nanx", "nan%"], "-")
    return shown.loc[:, (shown != "-").any()].to_dict("records")


def markdown(frame: pd.DataFrame) -> str:
    """Write the tables, and the notes below them, as Markdown."""
    lines = []
    for library, caption in CAPTIONS.items():
        if rows := cells(frame, library):
            rule = ["---" if name in ("method", "same text") else "---:" for name in rows[0]]
            every = [list(rows[0]), rule, *(list(row.values()) for row in rows)]
            lines += [f"{caption}:", "", *(f"| {' | '.join(line)} |" for line in every), ""]
    return "\n".join([*lines, *(f"{note}\n" for note in notes(frame.attrs))])


def floor(passes: Mapping[int, float]) -> str:
    """Say from the seconds of a step over 1 and 4 tokens what can be expected of any method."""
    return (
        f"plain decoding writes {1 / passes[1]:.1f} tokens/s; a step over 4 tokens takes "
        f"{passes[4] / passes[1]:.2f} times as long, so with it a tau of 2 gives at most "
        f"{2 * passes[1] / passes[4]:.2f}x"
    )


def _count(facts: Mapping[str, Any]) -> str:
    """How many prompts plain decoding has run, in words."""
    return f"{facts['prompts']} prompt{'s' * (facts['prompts'] != 1)}"


def legend(facts: Mapping[str, Any]) -> str:
    """Explain the columns."""
    margins = [same["margin"] or 0.0 for same in (facts["same_text"] or {}).values()]
    return (
        f"speedup: tokens/s over {facts['reference']['method']}'s in the same run, the median of "
        "these pairs; quartiles: half of the pairs lie between; tau: tokens per forward pass of "
        "the target; cost: time of a decoding step in those of plain decoding, about the tau from "
        "which a method is faster; draft: drafting's share of it; runs: * stopped early; "
        "same text: tokens equal to plain decoding's, or where not: at a tie, of logits "
        f"that differ by {max(margins, default=0):.2g} at most, as rounding moves them, or NOT "
        "at one, which is an error"
    )


def over(facts: Mapping[str, Any]) -> str:
    """Say what the speedups are over, and how fast both plain decodings are."""
    chosen, plain = facts["reference"]["method"], facts["reference"]["plain"]
    rates = "; ".join(f"{x} ({PLAIN[x]}) has {speed:.1f} tokens/s" for x, speed in plain.items())
    return f"speedup is over {chosen}, the faster plain decoding in the median of pairs; {rates}"


def conclusion(facts: Mapping[str, Any]) -> str:
    """Say which method is fastest, and which may be as fast."""
    best, tied, rest = (facts["fastest"][key] for key in ("method", "tied", "others"))
    over, speedup = facts["reference"]["method"], facts["fastest"]["speedup"]
    name = best if facts["fastest"]["lossless"] else f"{best} (LOSSY)"
    if rest < 1 + (over != "ar"):
        return "Nothing but plain decoding was measured."
    if best == over:
        text = f"No method is faster here than plain decoding, {over}"
    else:
        text = f"The largest speedup is {name}'s, {speedup:.2f}x over plain decoding"
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
    lines = [*warning, conclusion(facts), over(facts), floor(facts["passes"]), legend(facts)]
    models = "; ".join(f"{role} {name}" for role, name in facts["models"].items())
    lines += [
        *left_out(facts["left_out"]),
        _settings(facts),
        f"{facts['device']}, {facts['dtype']}; {models}",
        quiet,
    ]
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
    parts = [prompts, *(f"{k} {v}" for k, v in settings.items() if v is not False)]
    if facts["cut_prompts"]:
        parts.append(f"{facts['cut_prompts']} cut to the context")
    if facts["interrupted"]:
        parts.append("interrupted")
    return ", ".join(parts)
