"""Methods side by side: speedups, tokens per step, acceptance by depth, where the time goes; how
often a head guesses right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import sqrt
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from specwb.figures.kit import BARE, BY_NAME, Panel, axis, draw, errors, whiskers
from specwb.palette import DEPTHS, DRAFT, FIRST, INK, MARK, OTHER, looks

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = 3
PARTS = {"draft": (DRAFT, "/"), "score": (FIRST, ""), "verify": (MARK, "x"), "commit": (OTHER, ".")}


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


def by_category(
    figures: Mapping[str, Mapping[str, Mapping[str, Any]]], over: str = "ar"
) -> go.Figure:
    """Median speedup over plain decoding (the row ``over``) of every method in every category of
    prompts, with the quartiles as error bars; hover for tau.

    ``figures``: category -> method -> speedup, speedup_low, speedup_high, tau, runs, as in
    ``by_category`` of :func:`specwb.compare`.
    """
    names = [name for name in next(iter(figures.values())) if name != over]
    reach = max([1.0, *(figures[kind][n]["speedup_high"] for kind in figures for n in names)])
    one = Panel(f"Speedup over {over} by kind of prompt (dashed: 1)")
    one.x = axis(f"tokens/s over {over}'s, median of paired runs", 0, 1.1 * reach, zeroline=True)
    one.y = axis("", len(names) - 0.5, -0.5, zeroline=False)
    one.y |= {"tickvals": list(range(len(names))), "ticktext": names}
    for i, (kind, look) in enumerate(looks(figures).items()):
        rows = [figures[kind][n] for n in names]
        speed, low, high = (
            [r[c] for r in rows] for c in ("speedup", "speedup_low", "speedup_high")
        )
        # markers of one method lie below each other, in the legend's order
        shift = 0.5 * ((i + 0.5) / len(figures) - 0.5)
        one.points(
            kind,
            speed,
            [place + shift for place in range(len(names))],
            look,
            size=11,
            error_x=whiskers(speed, low, high),
            customdata=[
                [n, r["tau"], r["speedup_low"], r["speedup_high"], r["runs"]]
                for n, r in zip(names, rows, strict=True)
            ],
            hover="%{customdata[0]}: %{x:.2f}x (%{customdata[2]:.2f}-%{customdata[3]:.2f}), "
            "tau %{customdata[1]:.2f}, %{customdata[4]} runs",
        )
    return draw(
        one.rule(x=1, look=(OTHER, "dash", 2)), 170 + 50 * max(1, len(names)), showlegend=True
    )


def acceptance_by_depth(
    counts: Mapping[str, Sequence[Sequence[int]]], least: int = 10
) -> go.Figure:
    """Share of the steps that reached depth d - 1 and had candidates there which accepted one, for
    d = 1, 2, ...

    Each depth has its own denominator, so this is no accepted length in disguise: a flat line is
    acceptance that does not depend on depth. Bars are one binomial standard error. ``counts``:
    method -> (accepted, tested) by depth; depths tested less often than ``least`` are not drawn.
    """
    drawn = {
        name: [(d, a, t) for d, (a, t) in enumerate(pairs, 1) if t >= least]
        for name, pairs in counts.items()
        if any(t >= least for _, t in pairs)
    }
    deepest = max((d for points in drawn.values() for d, _, _ in points), default=1)
    one = Panel("Acceptance by depth" + ("" if drawn else ": nothing was tested often enough"))
    one.x = axis("depth in the draft", 0.7, deepest + 0.3, zeroline=False)
    one.x |= {"dtick": 1 if deepest <= 20 else 5}
    one.y = axis("accepted / tested", 0, 1.05, tickformat=".0%")
    for (name, points), look in zip(drawn.items(), looks(drawn).values(), strict=True):
        share = [a / t for _, a, t in points]
        one.line(
            name,
            [d for d, _, _ in points],
            share,
            look,
            customdata=[[a, t] for _, a, t in points],
            error_y=errors(sqrt(s * (1 - s) / t) for s, (_, _, t) in zip(share, points)),
            hover="depth %{x}: %{y:.1%} (%{customdata[0]} of %{customdata[1]})",
        )
    return draw(one, 400, showlegend=True)


def round_lengths(accepted: Mapping[str, Sequence[int]]) -> go.Figure:
    """One histogram a method: the share of its steps that added 1, 2, ... tokens, the ``accepted``
    draft tokens and the bonus token; the dashed line is tau, their mean.
    """
    counts = {name: Counter(a + 1 for a in lengths) for name, lengths in accepted.items()}
    most = max(map(max, counts.values()))
    top = 1.1 * max(max(count.values()) / count.total() for count in counts.values())
    panels: list[Panel | None] = []
    for i, (name, count) in enumerate(counts.items()):
        tau = sum(n * c for n, c in count.items()) / count.total()
        sizes = range(1, most + 1)
        one = Panel(f"{name}, tau {tau:.2f}")
        words = "tokens added in a step" if i + COLUMNS >= len(counts) else ""
        one.x = axis(words, 0.4, most + 0.6, dtick=1 if most <= 12 else 2)
        words = "" if i % COLUMNS else "share of steps"
        one.y = axis(words, 0, top, tickformat=".0%", nticks=5)
        one.bars(
            name,
            sizes,
            [count[n] / count.total() for n in sizes],
            FIRST,
            customdata=[count[n] for n in sizes],
            hover="%{x} tokens: %{y:.1%} of steps (%{customdata})",
        )
        panels.append(one.line("", [tau] * 2, [0, top], (MARK, "dash", ""), size=0))
    across, down = min(COLUMNS, len(panels)), -(-len(panels) // COLUMNS)
    panels += [None] * (across * down - len(panels))
    return draw(
        [panels[at : at + across] for at in range(0, len(panels), across)],
        130 + 200 * down,
        title="Tokens per step (dashed: tau, the mean)",
        gaps=(0.06, 0.34 / down),
        showlegend=False,
    )


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


def time_split(seconds: Mapping[str, Mapping[str, float]], tokens: Mapping[str, int]) -> go.Figure:
    """Milliseconds a token spent drafting, scoring, verifying and committing, one stacked bar a
    method, from the seconds of each part and the tokens emitted in all.
    """
    names = list(seconds)
    each = {part: [1e3 * seconds[n][part] / tokens[n] for n in names] for part in PARTS}
    whole = [sum(each[part][i] for part in PARTS) for i in range(len(names))]
    one = Panel("Time for a token, by part of a step", y=BY_NAME)
    one.x = axis("milliseconds a token", 0, 1.15 * max(whole), zeroline=True)
    for part, (colour, shape) in PARTS.items():
        one.bars(
            part,
            each[part],
            names,
            colour,
            shape,
            orientation="h",
            customdata=[v / w for v, w in zip(each[part], whole, strict=True)],
            hover="%{y}: %{x:.2f} ms per token, %{customdata:.0%}",
        )
    for w, name in zip(whole, names, strict=True):
        one.note(w, name, f"{w:.2f} ms", xanchor="left", xshift=6)
    return draw(one, 170 + 40 * len(names), barmode="stack")


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
