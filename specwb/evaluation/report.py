"""A comparison in words: the cells of its tables and the notes below them, as text, CSV, Markdown and one HTML file."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from specwb.evaluation import machine
from specwb.evaluation.compare import PARTS
from specwb.files import whole_file

if TYPE_CHECKING:
    import plotly.graph_objects as go

SPREAD = 4  # quartiles of fewer runs than this say nothing


PLAIN = {"ar": "specwb's own plain decoding", "hf_greedy": "transformers' generate", "hf_sample": "transformers' generate"}
"""What the plain decodings are, in words."""


def cells(frame: pd.DataFrame) -> list[dict[str, str]]:
    """The table as it is printed: one row a method, column -> text. ``frame`` is what :func:`specwb.compare` returned.

    A lossy method says so beside its name. The column of speedups is named after what they are over.
    """
    over = f"speedup over {frame.attrs['reference']['method']}"
    quartiles = frame.attrs["runs"] >= SPREAD
    return [
        {
            "method": row["method"] + ("" if row["lossless"] else " (LOSSY)"),
            "tokens/s": f"{row['tokens_per_second']:.1f}",
            over: f"{row['speedup']:.2f}x",
            "(quartiles)": f"{row['speedup_low']:.2f}-{row['speedup_high']:.2f}" if quartiles else "-",
            "tau": f"{row['tau']:.2f}",
            "accepted": f"{row['accepted_per_round']:.2f}",
            "same text": "-" if row["identical"] is None else "yes" if row["identical"] else "NO",
        }
        for row in frame.to_dict("records")
    ]


def times(frame: pd.DataFrame) -> list[dict[str, str]]:
    """Where the rounds' time goes: one row a method of this engine, column -> share."""
    out = []
    for row in frame.to_dict("records"):
        total = sum(row[p] for p in PARTS if not pd.isna(row[p]))
        if total:
            out.append({"method": row["method"], **{p: f"{row[p] / total:.0%}" for p in PARTS}})
    return out


def _merged(frame: pd.DataFrame) -> list[dict[str, str]]:
    """Both tables as one, for paper and pages that are wide enough."""
    shares = {row["method"]: row for row in times(frame)}
    none = dict.fromkeys(PARTS, "-")
    return [row | {p: shares.get(name, none)[p] for p in PARTS} for name, row in zip(frame["method"], cells(frame), strict=True)]


def csv(frame: pd.DataFrame) -> str:
    """The frame's rows, unrounded; the column ``over`` names what speedups are over."""
    return frame.assign(over=frame.attrs["reference"]["method"]).to_csv(index=False)


def markdown(frame: pd.DataFrame) -> str:
    """The table and the notes below it, as Markdown."""
    rows = _merged(frame)
    words = ("method", "same text")
    lines = [list(rows[0]), ["---" if name in words else "---:" for name in rows[0]], *(row.values() for row in rows)]
    table = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*table, "", *(f"{note}\n" for note in notes(frame.attrs))])


def over(facts: dict[str, Any]) -> str:
    """What the speedups are over, and how the other plain decoding compares. ``facts``: the attributes of the frame."""
    chosen, plain = facts["reference"]["method"], facts["reference"]["plain"]
    others = "; ".join(f"{name} ({PLAIN[name]}) has {speed:.1f} tokens/s" for name, speed in plain.items() if name != chosen)
    return f"speedup is over {chosen} ({PLAIN[chosen]}, {plain[chosen]:.1f} tokens/s), the faster of the plain decodings in this run; {others}"


def notes(facts: dict[str, Any], columns: bool = False) -> list[str]:
    """What has to be known beside the table; a warning comes first.

    Args:
        facts: the attributes of the frame.
        columns: the table has columns of the runs without loops, so they need not be told here.
    """
    s = facts["settings"]
    cut = f", {facts['cut_prompts']} cut to the context" if facts["cut_prompts"] else ""
    early = ", interrupted" if facts["interrupted"] else ""
    filters = "".join(f", {name} {s[name]:g}" for name, off in (("top_k", 0), ("top_p", 1)) if s[name] != off)
    out = [
        *machine.said(facts["machine"]),
        f"{over(facts)}; median and quartiles of paired runs",
        "same text: greedy tokens equal to ar's; tau: tokens a target forward; accepted: drafted tokens kept a round",
        f"{facts['device']}; " + "; ".join(f"{role} {name}" for role, name in facts["models"].items()),
        f"{facts['prompts']} of {facts['all_prompts']} prompts in {facts['runs']} runs{cut}{early}, batch {s['batch']}, "
        f"{s['max_new_tokens']} new tokens, temperature {s['temperature']:g}{filters}, {s['dtype']}",
    ]
    if packed := facts["packed_bytes"]:
        out.append(f"{packed / 2**20:.0f} MB of memory are packed copies of weights; SPECWB_PACK_MB=0 makes none")
    straight, chosen = facts["non_looping"], facts["reference"]["method"]
    if straight is not None and straight["runs"] < straight["of"]:
        text = f"plain greedy text loops (8 tokens three times) in {straight['of'] - straight['runs']} of {straight['of']} runs"
        each = ", ".join(f"{name} {r['speedup']:.2f}x (tau {r['tau']:.2f})" for name, r in straight["methods"].items() if name != chosen)
        rest = f"'no loops' is over the other {straight['runs']}" if columns else f"in the other {straight['runs']}: {each}"
        out.append(f"{text}; {rest}" if each else text)
    if facts["time_split"]["separate"]:
        out.append("draft, score, verify, commit are from a second pass, eager and timed part by part; tokens/s and speedup are not")
    return out


def html(frame: pd.DataFrame, command: str = "") -> str:
    """The comparison as one page: figures, table, models, device, settings, command and versions.

    plotly.js is inlined once, so the page has about 5 MB and asks for nothing from outside.

    Args:
        frame: what :func:`specwb.compare` returned.
        command: the command line it came from.
    """
    from plotly.offline import get_plotlyjs  # only who asks for a page needs plotly

    facts = frame.attrs
    rows = pd.DataFrame(_merged(frame))
    some = facts["non_looping"]
    if columns := some is not None and 0 < some["runs"] < some["of"]:
        straight = some["methods"]
        rows["tau, no loops"] = [f"{straight[name]['tau']:.2f}" for name in frame["method"]]
        rows["speedup, no loops"] = [f"{straight[name]['speedup']:.2f}x" for name in frame["method"]]
    details = {
        "measured": facts["began"], "command": command, "device": facts["device"], **facts["models"],
        "sha256": ", ".join(f"{role} {digest}" for role, digest in facts["sha256"].items() if digest),
        "settings": ", ".join(f"{name} {value}" for name, value in facts["settings"].items()),
        "versions": ", ".join(f"{name} {number}" for name, number in facts["versions"].items()),
    }  # fmt: skip
    return "\n".join([
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>Speculative decoding compared</title><style>{_STYLE}</style>", f"<script>{get_plotlyjs()}</script></head><body>",
        "<h1>Speculative decoding compared</h1>",
        f'<div class="wide">{rows.to_html(index=False, border=0)}</div>',
        *(f"<p>{escape(note)}</p>" for note in notes(facts, columns)),
        *(_section(i, drawn, caption) for i, (drawn, caption) in enumerate(_figures(frame))),
        "<h2>How it was measured</h2><dl>",
        *(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in details.items() if value),
        "</dl></body></html>", "",
    ])  # fmt: skip


def _figures(frame: pd.DataFrame) -> list[tuple[go.Figure, str]]:
    """The figures that there is something to show in, with what must be said about each."""
    from specwb import figures

    facts = frame.attrs
    lengths = {name: [a for run in runs for row in run for a in row] for name, runs in facts["accepted_lengths"].items() if name != "ar"}
    split = {row["method"]: {p: row[p] for p in PARTS} for row in frame.to_dict("records") if not any(pd.isna(row[p]) for p in PARTS)}
    out = [(
        figures.comparison(frame),
        f"Over {facts['reference']['method']}, the faster plain decoding of this run. Median over {facts['runs']} paired runs; the bars' "
        "whiskers are quartiles. Hatched: the transformers library on the same models. "
        "tau is tokens per target forward, the closing token included.",
    )]  # fmt: skip
    if lengths:
        out.append((figures.round_lengths(lengths), "A round adds the drafted tokens it accepted and one closing token from the target."))
        out.append((
            figures.acceptance_by_depth({name: facts["acceptance_by_depth"][name] for name in lengths}),
            "Of the rounds whose accepted path reached the depth before and had candidates there: the share that accepted one. "
            "Whiskers: one standard error. Depths tested fewer than ten times are left out.",
        ))  # fmt: skip
    if split:
        where = "a second pass, eager and timed part by part" if facts["time_split"]["separate"] else "the measured runs"
        out.append(
            (
                figures.time_split(split, facts["time_split"]["tokens"]),
                f"Time inside the rounds of {where}, over the tokens emitted in them; prompt processing and set-up are not in it.",
            )
        )
    if len(facts["by_category"]) > 1:
        out.append((figures.by_category(facts["by_category"], facts["reference"]["method"]), "The same runs, by the category of the prompt."))
    return out


def _section(number: int, drawn: go.Figure, caption: str) -> str:
    options = {"responsive": True, "displaylogo": False, "displayModeBar": "hover"}
    inner = drawn.to_html(
        full_html=False, include_plotlyjs=False, div_id=f"figure-{number}", config=options, default_height=f"{drawn.layout.height}px"
    )
    return f"<section>{inner}<p>{escape(caption)}</p></section>"


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .3em .55em; text-align: right; border-bottom: 1px solid #ddd; vertical-align: top; }
td { white-space: nowrap; } td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 9em; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
section { margin-top: 2em; } p { color: #444; max-width: 60em; }
dt { font-weight: 600; } dd { margin: 0 0 .6em; overflow-wrap: anywhere; }
"""


def check_path(path: Path, option: str) -> None:
    """Can a file be written there? Asked before the work whose results it is to hold.

    Raises:
        ValueError: it is a folder, or its folder does not exist or cannot be written to; a device or pipe that cannot be written.
    """
    real = Path(os.path.realpath(path.expanduser()))  # what a link leads to is what is written
    folder = real.parent
    if real.is_dir():
        raise ValueError(f"{option}: {path} is a folder, give the name of a file")
    if not folder.is_dir():
        raise ValueError(f"{option}: {path} cannot be written, the folder {folder} does not exist")
    replaced = not real.exists() or real.is_file()
    if not os.access(folder if replaced else real, os.W_OK):
        raise ValueError(f"{option}: {path} cannot be written, no permission{f' in {folder}' if replaced else ''}")


def write(text: str, path: Path) -> None:
    """Write ``text`` to ``path`` as :func:`specwb.files.whole_file` does.

    Raises:
        OSError: it cannot be written; what was there is untouched.
    """
    with whole_file(path) as part:
        part.write_text(text, "utf-8")
