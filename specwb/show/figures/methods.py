"""Methods side by side: speedups and tokens per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from specwb.show.figures.kit import BY_NAME, Panel, axis, draw, whiskers
from specwb.show.palette import DRAFT, FIRST, INK, OTHER

if TYPE_CHECKING:
    import pandas as pd


def comparison(frame: pd.DataFrame) -> go.Figure:
    """Speedup over plain decoding of every row of :func:`specwb.compare`: median, with the
    quartiles as error bars.

    The denominator of the speedups is named in the title where the frame says it
    (``attrs["reference"]``). The transformers library's rows (``hf_``) are hatched; a lossy method
    says so next to its name.

    Args:
        frame: columns method, lossless, tau, tokens_per_second, speedup, speedup_low, speedup_high.
    """
    over = frame.attrs.get("reference", {}).get("method", "plain decoding")
    names = [m if ok else f"{m} (LOSSY)" for m, ok in zip(frame.method, frame.lossless)]
    library = [str(method).rpartition(" ")[2].startswith("hf_") for method in frame.method]
    reach = 1.5 * max([1.0, *frame.speedup_high])
    panel = Panel(f"Speedup over {over} (dashed: 1)", y=BY_NAME)
    panel.x = axis(f"tokens/s over {over}'s, same prompts", 0, reach, zeroline=True)
    ends = whiskers(frame.speedup, frame.speedup_low, frame.speedup_high)
    panel.bars(
        "speedup, median and quartiles",
        frame.speedup,
        names,
        [DRAFT if hf else FIRST for hf in library],
        ["/" if hf else "" for hf in library],
        orientation="h",
        error_x={**ends, "color": INK},
    )
    for name, speed, tau in zip(names, frame.speedup, frame.tau):
        words = f"{speed:.2f}x, tau {tau:.2f}"
        panel.note(1, name, words, xref="x domain", xanchor="right")
    return draw(panel.rule(x=1), 140 + 44 * max(1, len(names)))


def tried(taus: Mapping[str, Sequence[float]], speeds: Mapping[str, Sequence[float]]) -> go.Figure:
    """Settings that were tried, the last one on top: tokens per step (left) and measured speedup
    (right), each with the ends of its interval; a dashed line is plain decoding.

    Args:
        taus, speeds: settings -> value and the ends of its interval.
    """
    names = list(reversed(list(taus)))
    lines = {name: wrap(name.replace(",", ", "), 30) for name in names}
    rows = {name: "<br>".join(part.replace(", ", ",") for part in lines[name]) for name in names}
    left, right = Panel("", y=BY_NAME), Panel("", y={**BY_NAME, "showticklabels": False})
    titles = "tau, tokens per step", "speedup (measured)"
    for panel, values, title in zip((left, right), (taus, speeds), titles, strict=True):
        panel.x = axis(title, 0, 1.08 * max([1.0, *(v[2] for v in values.values())]))
        panel.y |= {"categoryorder": "array", "categoryarray": list(rows.values())}
        panel.rule(x=1, look=(OTHER, "dash", 2))
        for name in names:
            middle, low, high = values[name]
            look = (FIRST, "", "circle") if name == names[0] else (OTHER, "", "circle-open")
            ends = whiskers([middle], [low], [high])
            panel.points("", [middle], [rows[name]], look, size=11, error_x=ends)
    return draw([[left, right]], 120 + 46 * len(rows), gaps=(0.06, 0))
