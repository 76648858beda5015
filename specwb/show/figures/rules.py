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
    FAINT,
    INK,
    MARK,
    OTHER,
    REJECTED,
    RESIDUAL,
    TARGET,
)
from specwb.theory.analysis import acceptance_rate, output_distribution
from specwb.theory.analysis.acceptance import Distribution

HATCHES = ("", "/", "x", "-", "|", "+", "\\")
"""Of the candidates, in their order; no more are told apart."""
DRAWN = {
    "single": "one",
    "iid": "independent",
    "without": "distinct",
    "top_and_sample": "top + one",
    "point": "top",
}
"""How sampling schemes are called below the bars, where there is little room."""
TOKENS = axis("token", type="category", dtick=1)
HOVER = "token %{x}: %{y:.4f}"


def acceptance(
    p: Distribution,
    q: Distribution,
    counts: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
) -> go.Figure:
    """Two distributions laid over each other: the mass both have is accepted, what p has beyond q
    is the residual, what q has beyond p is rejected.

    Accepted and residual together are as high as p, accepted and rejected as high as q. The black
    diamonds are the distribution of the output
    (:func:`specwb.theory.analysis.output_distribution`); they lie on p whatever q is. White circles
    are how often each token came out in a simulation (``counts``). Seven traces: accepted,
    residual, rejected, p, q, output, drawn.
    """
    alpha = float(acceptance_rate(p, q))
    target, draft = np.asarray(p, dtype=float), np.asarray(q, dtype=float)
    both = np.minimum(target, draft)
    names = labels or list(map(str, range(len(p))))
    n = 0 if counts is None else int(sum(counts))
    drawn = [c / n for c in counts] if counts is not None and n else [None] * len(p)
    one = Panel(f"accepted {alpha:.3f} = 1 − TV(p, q)", TOKENS)
    one.y = axis("probability", 0, 1.15 * float(np.maximum(target, draft).max()))
    for name, heights, colour, hatch in (
        ("accepted, min(p, q)", both, ACCEPTED, ""),
        ("residual, (p − q)+", target - both, RESIDUAL, "/"),
        ("rejected, (q − p)+", draft - both, REJECTED, "."),
    ):
        one.bars(name, names, heights, colour, hatch, hollow=True, hover=HOVER)
    step = {"size": 0, "width": 2.5, "line_shape": "hvh", "hover": HOVER}
    one.line("p", names, target, (TARGET, "solid", ""), **step)
    one.line("q", names, draft, (DRAFT, "dash", ""), **step)
    look, ring = ("black", "", "diamond-wide"), {"width": 1, "color": "white"}
    out = output_distribution(target, draft)
    one.points("output", names, out, look, size=13, hover=HOVER, marker_line=ring)
    look, ring = ("white", "", "circle"), {"width": 2, "color": DARK}
    more = {"marker_line": ring, "showlegend": bool(n)}
    one.points(f"{n} draws", names, drawn, look, size=7, hover=HOVER, **more)
    return draw(one, 420, below=True, barmode="stack")


def slices(p: Distribution, q: Distribution, levels: Sequence[Any]) -> go.Figure:
    """A bar of p a token, cut at multiples of q: slice j of all bars is what recursive rejection
    accepts of the j-th candidate, and what is above the last level the bonus token is drawn from.

    Args:
        p, q: distributions ``[V]``.
        levels: the multiples of q, rising; at most ``len(HATCHES)`` of them.
    """
    tokens, ends = list(map(str, range(len(p)))), [0, *levels]
    below = [[min(a, c * b) for a, b in zip(p, q, strict=True)] for c in ends]
    one = Panel(f"p, cut at {', '.join(f'{_multiple(c)}q' for c in levels)}", TOKENS)
    one.y = axis("probability", 0, 1.1 * float(max(p)))
    for j, (low, high, hatch) in enumerate(zip(below, below[1:], HATCHES), 1):
        heights = [b - a for a, b in zip(low, high, strict=True)]
        one.bars(f"candidate {j}", tokens, heights, ACCEPTED, hatch, hollow=j > 1, hover=HOVER)
    left = [a - b for a, b in zip(p, below[-1], strict=True)]
    one.bars("bonus token", tokens, left, RESIDUAL, ".", hollow=True, hover=HOVER)
    x, y = tokens * len(levels), [c * b for c in levels for b in q]
    lines = {"marker_line": {"width": 3, "color": DRAFT}, "hover": HOVER}
    one.points("these lines", x, y, (DRAFT, "", "line-ew"), size=34, **lines)
    return draw(one, 340, below=True, barmode="stack")


def _multiple(c: Any) -> str:
    """A factor as it stands before q."""
    if c == 1:
        return ""
    return f"{c} " if isinstance(c, Fraction) and c.denominator < 100 else f"{float(c):.2f} "


def _wrapped(rule: str) -> str:
    """A rule's name in lines that are no wider than its bar's place."""
    name, bracket, rest = rule.replace("_and_", " and ").partition(" (")
    return "<br>".join([*wrap(name, 12), *([f"({rest}"] if bracket else [])])


def rule_rates(
    rates: Mapping[str, float], optima: Mapping[str, float], drawn: Mapping[str, str]
) -> go.Figure:
    """A bar a rule: how often it goes on from the node. The line across it is what no rule can beat
    with candidates drawn in the same way: one, independent, distinct (without replacement), the
    most probable ones and one drawn, the most probable ones.

    Args:
        rates: rule -> acceptance.
        optima: sampling scheme -> alpha*.
        drawn: rule -> sampling scheme; the bars are put together by it.
    """
    schemes = list(dict.fromkeys(drawn[rule] for rule in rates))
    order = sorted(rates, key=lambda rule: schemes.index(drawn[rule]))
    ways = [DRAWN.get(drawn[rule], drawn[rule]) for rule in order]
    where = [ways, list(map(_wrapped, order))]
    one = Panel("How often one of the candidates comes out", y=axis("acceptance", 0, 1.08))
    one.x = axis("rule, by how its candidates are drawn", tickangle=0)
    one.bars(
        "acceptance",
        where,
        [rates[rule] for rule in order],
        ACCEPTED,
        hover="%{y:.4f}",
        width=0.6,
        text=[f"{rates[rule]:.3f}" for rule in order],
        textposition="inside",
        insidetextanchor="start",
        textangle=0,
    )
    name, look = "optimum of these candidates", (MARK, "", "line-ew")
    best, ring = [optima[drawn[rule]] for rule in order], {"width": 3, "color": MARK}
    one.points(name, where, best, look, size=34, hover="%{y:.4f}", marker_line=ring)
    return draw(one, 320, margin={"l": 60, "r": 20, "t": 84, "b": 95})


def output(p: Distribution, out: Distribution, name: str) -> go.Figure:
    """Bars of p and, over them, the distribution of the token that comes out of a verifier; the
    title says how far apart they are. Fractions are compared as fractions.
    """
    off = sum(abs(a - b) for a, b in zip(p, out, strict=True)) / 2
    verdict = "equal to p" if off == 0 else f"TV(output, p) = {float(off):.4f}"
    one = Panel(f"Output of {name}: {verdict}", TOKENS)
    one.y = axis("probability", 0, 1.1 * max(float(max(p)), float(max(out))))
    tokens = list(map(str, range(len(p))))
    one.bars("p", tokens, p, FAINT, hover=HOVER, marker_line={"color": OTHER, "width": 1})
    line, cross = ((INK, "", "line-ew"), 26), ((MARK, "", "x"), 12)
    look, size = line if off == 0 else cross
    ring = {"marker_line": {"width": 3, "color": INK}} if off == 0 else {}
    one.points("output", tokens, out, look, size=size, hover=HOVER, cliponaxis=False, **ring)
    return draw(one, 250)
