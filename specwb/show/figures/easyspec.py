"""Layers side by side: which, what that changes in every layer, a cache that drifts, a step on
several devices, what it all may bring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from specwb.show.figures.kit import BARE, BY_NAME, Panel, axis, draw
from specwb.show.palette import DARK, DRAFT, FAINT, FIRST, INK, MARK, OTHER, PALETTE, looks
from specwb.theory.analysis.layer_parallel import Span

Groups = Sequence[Sequence[int]]
# what a device does: name, colour, hatching
KINDS = {
    "attention": (FIRST, ""),
    "mlp": (DRAFT, "/"),
    "exchange": (MARK, "x"),
    "head": ("#56B4E9", "."),
    "verify": (OTHER, "\\"),
}


def grouped(rows: Mapping[str, Groups], title: str) -> go.Figure:
    """Which layers run side by side: a row for each way, its groups as boxes with the numbers of
    their layers.

    Args:
        rows: name -> groups of consecutive layers, all layers of the same model; the first on top.
    """
    layers = max(sum(map(len, groups)) for groups in rows.values())
    one = Panel(title, axis("layer", -0.6, layers - 0.4, **BARE))
    one.y = {**BY_NAME, "categoryorder": "array", "categoryarray": list(rows), "showgrid": False}
    for name, colour, hatch, ink in (
        ("side by side", FIRST, "", "white"),
        ("alone", FAINT, "/", INK),
    ):
        many = name == "side by side"
        boxes = [(way, g) for way, groups in rows.items() for g in groups if (len(g) > 1) == many]
        one.bars(
            name,
            [len(group) - 0.12 for _, group in boxes],
            [way for way, _ in boxes],
            colour,
            hatch,
            base=[group[0] - 0.44 for _, group in boxes],
            orientation="h",
            width=0.7,
            text=[" ".join(map(str, group)) for _, group in boxes],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"color": ink},
            hover="%{y}: layers %{text}",
            marker_line={"color": INK, "width": 1},
            marker_pattern={"shape": hatch, "fgcolor": FAINT},
        )
    return draw(one, 130 + 32 * len(rows), barmode="overlay")


def by_layer(
    curves: Mapping[str, Sequence[float | None]],
    groups: Groups,
    title: str,
    yaxis: str,
    least: float = 0.0,
) -> go.Figure:
    """Curves over layers 0, 1, .., None where there is no value; layers that run side by side have
    a common grey band behind them. The axis goes down to ``least`` at least.
    """
    low = min(least, *(v for values in curves.values() for v in values if v is not None))
    one = Panel(title, axis("layer", dtick=1, **BARE))
    one.y = axis(yaxis, low - 0.03, 1.03, zeroline=False)
    points = {name: (range(len(values)), values) for name, values in curves.items()}
    one.lines(points, hover="layer %{x}: %{y:.3f}")
    for group in groups:
        if len(group) > 1:
            band = group[0] - 0.4, group[-1] + 0.4
            one.rule(band, type="rect", line_width=0, fillcolor=FAINT, layer="below")
    return draw(one, 400)


def cache_drift(
    errors: Mapping[str, Sequence[float]], layers: Mapping[str, Sequence[float]]
) -> go.Figure:
    """How far the entries of a draft's cache are from exact ones: by step (left), and by layer in
    one of the steps (right).

    Args:
        errors: name -> relative error in step 1, 2, ..;
        layers: name -> relative error of layer 0, 1, ..
    """
    rounds = len(next(iter(errors.values())))
    left = Panel("by step", axis("step", dtick=1 if rounds <= 20 else 5, **BARE))
    right = Panel("by layer, last step", axis("layer", dtick=1, **BARE), {"rangemode": "tozero"})
    left.y = axis("relative error", rangemode="tozero")
    look = looks([*errors, *layers])
    for panel, curves, first in ((left, errors, 1), (right, layers, 0)):
        for name, values in curves.items():
            more = {"size": 7, "hover": "%{x}: %{y:.2g}"}
            more["showlegend"] = panel is left or name not in errors
            xs = range(first, first + len(values))
            panel.line(name, xs, values, look[name], **more)
    return draw([[left, right]], 420, widths=(0.55, 0.45), gaps=(0.14, 0))


def round_on_devices(spans: Sequence[Span], depth: int, title: str, unit: str = "ms") -> go.Figure:
    """One step as a timeline, a bar for each device: what it does and when; a gap is waiting.
    Dotted lines part the draft's steps; the one after ``depth`` draft tokens verifies. Of a
    verification that takes long the beginning is shown, with a break mark.
    """
    devices, end = 1 + max(s.device for s in spans), max(s.stop for s in spans)
    names = [f"device {d}" for d in range(devices)]
    starts = {
        step: min(s.start for s in spans if s.step == step)
        for step in sorted({s.step for s in spans})
    }
    drafted = starts.get(depth, end)
    shown = min(1.01 * end, 1.4 * drafted)
    one = Panel(title, axis(unit, 0, shown, **BARE))
    one.y = {**BY_NAME, "categoryorder": "array", "categoryarray": names, "showgrid": False}
    for kind, (colour, hatch) in KINDS.items():
        mine = [s for s in spans if s.kind == kind]
        one.bars(
            kind,
            [s.stop - s.start for s in mine],
            [names[s.device] for s in mine],
            colour,
            hatch,
            base=[round(s.start, 6) for s in mine],
            orientation="h",
            width=0.7,
            customdata=["" if s.layer is None else f", layer {s.layer}" for s in mine],
            hover=f"%{{y}}%{{customdata}}, from %{{base:.3f}} for %{{x:.3f}} {unit}",
            marker_pattern_fgcolor=DARK,
            marker_pattern_fgopacity=0.5,
            marker_pattern_size=5,
        )
    if shown < end:
        for name in names:  # the bar goes on
            one.note(0.97 * shown, name, "⫽", font={"size": 26, "color": "white"})
    for i, (step, x) in enumerate(starts.items()):
        if i:
            one.rule(x, None, (INK, "dot", 1))
        words = f"verify, {end - drafted:.1f} {unit}" if step == depth else f"step {step + 1}"
        above = {"yref": "paper", "yanchor": "bottom", "xanchor": "left"}
        one.note(x, 1, words, **above, font={"size": 11})
    return draw(one, 205 + 30 * devices, below=True, barmode="overlay")


def stage_and_round(
    shares: Sequence[float],
    stages: Mapping[str, Sequence[float]],
    points: Mapping[str, tuple[float, float]],
    published: float,
    costs: Sequence[float],
    tokens: Mapping[str, Sequence[float]],
    most: int,
    title: str,
) -> go.Figure:
    """The cost model: what the drafting stage gains from attention's share of a layer (left),
    tokens per step that a speedup needs (right).

    ``stages``: name -> the stage's speedup at each of ``shares``, three at most; ``points``: name
    -> (share, speedup), four at most; ``published``, a dashed line. ``tokens``: name -> tau needed
    at each of ``costs`` of a draft step in plain steps, five at most; ``most`` tokens a step can
    have.
    """
    stage = Panel("speedup of the drafting stage", y={"zeroline": False})
    stage.x = axis("attention's share of a layer's time", 0, 1.02, zeroline=False)
    need = Panel(title, axis("draft step / plain step", rangemode="tozero", zeroline=False))
    need.y = {"rangemode": "tozero", "zeroline": False}
    for panel, xs, curves, first in ((stage, shares, stages, 0), (need, costs, tokens, 3)):
        for (name, curve), look in zip(curves.items(), PALETTE[first:]):
            panel.line(name, xs, curve, look, size=0, width=3)
    symbols = ("circle", "diamond", "square", "star")
    for (name, (x, y)), symbol in zip(points.items(), symbols):
        look = (MARK if symbol == "circle" else INK, "", symbol)
        ring = {"width": 1, "color": "white"}
        stage.points(name, [x], [y], look, size=12, marker_line=ring)
    words, best = f"{most}: everything drafted is kept", f"{published:g}x, the paper's best"
    place = {"xref": "x domain"}
    stage.rule(y=published)
    stage.note(0.02, published, best, xanchor="left", yanchor="bottom", **place)
    need.rule(y=most, look=(OTHER, "dash", 2))
    need.note(0.98, most, words, xanchor="right", yanchor="top", **place)
    return draw([[stage, need]], 460, gaps=(0.12, 0))
