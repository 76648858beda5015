"""Methods side by side: speedups and tokens per step; how often a head guesses right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from specwb.show.figures.kit import BARE, BY_NAME, Panel, axis, draw, whiskers
from specwb.show.palette import DEPTHS, DRAFT, FIRST, INK, OTHER

if TYPE_CHECKING:
    import pandas as pd


def comparison(frame: pd.DataFrame) -> go.Figure:
    """Speedup over plain decoding of every row of :func:`specwb.compare`: median, with the
    quartiles as error bars.

    What speedups are over is named in the title where the frame says it (``attrs["reference"]``).
    The transformers library's rows (``hf_``) are hatched; a lossy method says so beside its name.

    Args:
        frame: columns method, lossless, tau, tokens_per_second, speedup, speedup_low, speedup_high.
    """
    rows = frame.to_dict("records")
    over = frame.attrs.get("reference", {}).get("method", "plain decoding")
    names = [r["method"] + ("" if r["lossless"] else " (LOSSY)") for r in rows]
    library = [str(r["method"]).rpartition(" ")[2].startswith("hf_") for r in rows]
    speed, low, high = ([r[c] for r in rows] for c in ("speedup", "speedup_low", "speedup_high"))
    reach = 1.5 * max([1.0, *high])
    one = Panel(f"Speedup over {over} (dashed: 1)", y=BY_NAME)
    one.x = axis(f"tokens/s over {over}'s, same prompts", 0, reach, zeroline=True)
    one.bars(
        "speedup, median and quartiles",
        speed,
        names,
        [DRAFT if lib else FIRST for lib in library],
        ["/" if lib else "" for lib in library],
        orientation="h",
        error_x={**whiskers(speed, low, high), "color": INK, "thickness": 2},
        customdata=[[r["tau"], r["tokens_per_second"]] for r in rows],
        hovertemplate="%{y}: %{x:.2f}x<br>tau %{customdata[0]:.2f}<br>"
        "%{customdata[1]:.1f} tokens/s<extra></extra>",
    )
    for r, name in zip(rows, names, strict=True):
        words = f"{r['speedup']:.2f}x, tau {r['tau']:.2f}"
        one.note(1, name, words, xref="paper", xanchor="right")
    return draw(one.rule(x=1), 140 + 44 * max(1, len(rows)))


def tried(
    taus: Mapping[str, Sequence[float]], speeds: Mapping[str, Sequence[float]], xaxis: str
) -> go.Figure:
    """Settings that were tried, the last one on top: tokens per step (left) and speedup (right,
    where there is one), each with the ends of its interval; a dashed line is plain decoding.
    """
    names = list(reversed(list(taus)))
    rows = ["<br>".join(wrap(name.replace(",", ", "), 30)).replace(", ", ",") for name in names]
    left, right = Panel("", y=BY_NAME), Panel("", y={**BY_NAME, "showticklabels": False})
    for panel, values, title in (
        (left, taus, "tau, tokens per step (95 % interval)"),
        (right, speeds, xaxis),
    ):
        high = max([1.0, *(value[2] for value in values.values())])
        panel.x = axis(title, 0, 1.08 * high, zeroline=False)
        panel.y = {**panel.y, "categoryorder": "array", "categoryarray": rows}
        panel.rule(x=1, look=(OTHER, "dash", 2))
        for name, row in zip(names, rows, strict=True):
            middle, low, top = values.get(name, (None, None, None))
            look = (FIRST, "", "circle") if name == names[0] else (OTHER, "", "circle-open")
            bar = {} if middle is None else {"error_x": whiskers([middle], [low], [top])}
            panel.points("", [middle], [row], look, size=11, hover="%{x:.2f}", **bar)
    return draw([[left, right]], 120 + 46 * len(rows), widths=(0.5, 0.5), gaps=(0.06, 0))


def speedup(
    curves: Mapping[str, Sequence[float]],
    measured: Mapping[int, float] | None = None,
    gamma: int | None = None,
) -> go.Figure:
    """Predicted speedups at gamma = 0, 1, .. as lines, measured ones as diamonds, ``gamma`` ringed
    on the first curve; the dashed line at 1 is plain decoding.
    """
    measured, first = measured or {}, next(iter(curves.values()))
    most = max([len(c) - 1 for c in curves.values()] + list(measured))
    top = max([1.0, *measured.values(), *(v for c in curves.values() for v in c)])
    hover, ringed = "gamma %{x}: %{y:.2f}x", [] if gamma is None else [gamma]
    one = Panel("Speedup over plain decoding (dashed: 1)", y=axis("speedup", 0, 1.15 * top))
    one.x = axis("gamma, draft tokens per step", -0.4, most + 0.4, dtick=1 if most <= 16 else 2)
    points = {name: (range(len(values)), values) for name, values in curves.items()}
    one.lines(points, size=6, hover=hover)
    ring = {"marker_line_width": 3, "showlegend": gamma is not None}
    look = (INK, "", "circle-open")
    one.points("chosen gamma", ringed, [first[g] for g in ringed], look, size=18, **ring)
    edge = {"marker_line": {"width": 1, "color": INK}, "showlegend": bool(measured)}
    one.points("measured", measured, measured.values(), (DRAFT, "", "diamond"), size=11, **edge)
    return draw(one.rule(y=1, look=(OTHER, "dash", 2)), 380)


def head_accuracy(rank: Sequence[Sequence[float]], title: str) -> go.Figure:
    """How often the right token is a head's first, second, .. guess: shares of places
    ``[positions][ranks]``. A colour means the same share for every head, so that figures can be
    compared.
    """
    ranks, positions = (list(range(1, n + 1)) for n in (len(rank[0]), len(rank)))
    one = Panel(title, axis("rank in the head's list (cells: percent)", tickvals=ranks, **BARE))
    one.y = axis("position", tickvals=positions, autorange="reversed", **BARE)
    words = [[f"{100 * float(v):.0f}" for v in row] for row in rank]
    hover = "position %{y}, rank %{x}: %{z:.1%}"
    bar = {"x": 1.02, "y": 0.5, "len": 0.9, "thickness": 12, "tickformat": ".0%"}
    more = {"showscale": True, "colorbar": bar, "written": True}
    one.cells(ranks, positions, rank, DEPTHS, words, hover=hover, **more)
    return draw(one, 130 + 38 * len(rank))
