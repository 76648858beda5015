"""Candidates at one node: what is accepted, what rejections leave of p, how often each rule goes
on, what distribution comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go

from specwb.show.figures.kit import Panel, axis, draw
from specwb.show.palette import (
    ACCEPTED,
    DARK,
    DRAFT,
    HATCHES,
    MARK,
    REJECTED,
    RESIDUAL,
    TARGET,
)
from specwb.theory.analysis import acceptance_rate, output_distribution
from specwb.theory.analysis.acceptance import Distribution

DRAWN = {
    "single": "one",
    "iid": "independent",
    "without": "distinct",
    "top_and_sample": "top + one",
    "point": "top",
}
"""Sampling schemes in few letters, for the axis below the bars."""
TOKENS = axis("token", type="category", dtick=1)
HOVER = "token %{x}: %{y:.4f}"
CANDIDATES = ("", "x", "-", "+", "|", "\\")  # the hatching of accepted ones, in their order


def acceptance(p: Distribution, q: Distribution, counts: Sequence[int]) -> go.Figure:
    """Two distributions laid over each other: the mass both have is accepted, what p has beyond q
    is the residual, what q has beyond p is rejected.

    Accepted and residual together are as high as p, accepted and rejected as high as q. The black
    diamonds are the distribution of the output
    (:func:`specwb.theory.analysis.output_distribution`); they lie on p whatever q is. White circles
    are how often each token came out in a simulation.

    Args:
        p, q: distributions ``[V]``.
        counts: ``[V]`` of the simulation.
    """
    target, draft = np.asarray(p, dtype=float), np.asarray(q, dtype=float)
    both, names = np.minimum(target, draft), list(map(str, range(len(p))))
    panel = Panel(f"accepted {float(acceptance_rate(p, q)):.3f} = 1 − TV(p, q)", TOKENS)
    panel.y = axis("probability", 0, 1.15 * float(np.maximum(target, draft).max()))
    for name, heights, colour, hatch in (
        ("accepted, min(p, q)", both, ACCEPTED, ""),
        ("residual, (p − q)+", target - both, RESIDUAL, HATCHES[RESIDUAL]),
        ("rejected, (q − p)+", draft - both, REJECTED, HATCHES[REJECTED]),
    ):
        panel.bars(name, names, heights, colour, hatch, hollow=True, hover=HOVER)
    for name, values, look in (
        ("p", target, (TARGET, "solid", "")),
        ("q", draft, (DRAFT, "dash", "")),
    ):
        panel.line(name, names, values, look, size=0, line_shape="hvh", hover=HOVER)
    out, ring = output_distribution(target, draft), {"width": 1, "color": "white"}
    look = ("black", "", "diamond-wide")
    panel.points("output", names, out, look, size=13, hover=HOVER, marker_line=ring)
    drawn, look = [c / sum(counts) for c in counts], ("white", "", "circle")
    ring = {"width": 2, "color": DARK}
    name = f"{sum(counts)} draws"
    panel.points(name, names, drawn, look, size=7, hover=HOVER, marker_line=ring)
    return draw(panel, 440, barmode="stack")


def slices(p: Distribution, q: Distribution, levels: Sequence[Any]) -> go.Figure:
    """A bar of p a token, cut at multiples of q: slice j of all bars is what recursive rejection
    accepts of the j-th candidate, and what is above the last level the bonus token is drawn from.

    Args:
        p, q: distributions ``[V]``.
        levels: the multiples of q, rising; at most six.
    """
    tokens, ends = list(map(str, range(len(p)))), [0, *levels]
    below = [[min(a, c * b) for a, b in zip(p, q, strict=True)] for c in ends]
    panel = Panel(f"p, cut at {', '.join(map(_multiple, levels))}", TOKENS)
    panel.y = axis("probability", 0, 1.1 * float(max(p)))
    for j, (low, high, hatch) in enumerate(zip(below, below[1:], CANDIDATES), 1):
        heights = [b - a for a, b in zip(low, high, strict=True)]
        panel.bars(f"candidate {j}", tokens, heights, ACCEPTED, hatch, hollow=j > 1, hover=HOVER)
    left = [a - b for a, b in zip(p, below[-1], strict=True)]
    panel.bars("bonus token", tokens, left, RESIDUAL, HATCHES[RESIDUAL], hollow=True, hover=HOVER)
    x, y, ring = tokens * len(levels), [c * b for c in levels for b in q], {"width": 3}
    look = (DRAFT, "", "line-ew")
    panel.points("these lines", x, y, look, size=34, marker_line={**ring, "color": DRAFT})
    return draw(panel, 360, barmode="stack")


def _multiple(c: Any) -> str:
    """A multiple of q in words."""
    if c == 1:
        return "q"
    return f"{c} q" if isinstance(c, Fraction) and c.denominator < 100 else f"{float(c):.2f} q"


def rule_rates(
    rates: Mapping[str, float], optima: Mapping[str, float], drawn: Mapping[str, str]
) -> go.Figure:
    """A bar per rule: how often one of the candidates is accepted. The line across it is what no
    rule can beat with candidates drawn in the same way: one, independent, distinct (without
    replacement), the most probable ones and one drawn, the most probable ones.

    Args:
        rates: rule -> acceptance rate.
        optima: sampling scheme -> alpha*.
        drawn: rule -> sampling scheme; the bars are put together by it.
    """
    schemes = list(dict.fromkeys(drawn[rule] for rule in rates))
    order = sorted(rates, key=lambda rule: schemes.index(drawn[rule]))
    names = ["<br>".join(wrap(rule.replace("_", " "), 12)) for rule in order]
    where = [[DRAWN.get(drawn[rule], drawn[rule]) for rule in order], names]
    panel = Panel("How often one of the candidates comes out", y=axis("acceptance", 0, 1.08))
    panel.x = axis("rule, by how its candidates are drawn", tickangle=0)
    inside = {"texttemplate": "%{y:.3f}", "textposition": "inside", "insidetextanchor": "start"}
    heights = [rates[rule] for rule in order]
    panel.bars("acceptance", where, heights, ACCEPTED, width=0.6, textangle=0, **inside)
    best, look = [optima[drawn[rule]] for rule in order], (MARK, "", "line-ew")
    ring = {"width": 3, "color": MARK}
    panel.points("optimum of these candidates", where, best, look, size=34, marker_line=ring)
    return draw(panel, 360)


def output(p: Distribution, out: Distribution, name: str) -> go.Figure:
    """Bars of p and, over them, the distribution of the token that comes out of a verifier; the
    title says how far apart they are. Fractions are compared as fractions.

    Args:
        p, out: distributions ``[V]``.
        name: of the verifier.
    """
    off = sum(abs(a - b) for a, b in zip(p, out, strict=True)) / 2
    verdict = "equal to p" if off == 0 else f"TV(output, p) = {float(off):.4f}"
    panel = Panel(f"Output of {name}: {verdict}", TOKENS)
    panel.y = axis("probability", 0, 1.1 * max(float(max(p)), float(max(out))))
    tokens = list(map(str, range(len(p))))
    panel.bars("p", tokens, p, TARGET, hover=HOVER)
    look, ring = ("black", "", "diamond-wide"), {"width": 1, "color": "white"}
    panel.points("output", tokens, out, look, size=13, hover=HOVER, marker_line=ring)
    return draw(panel, 270)
