"""Several candidates at one node: what rejections leave of p, how often each rule goes on, what
distribution comes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap

import numpy as np
import plotly.graph_objects as go

from specwb.analysis.acceptance import Distribution
from specwb.errors import ArgumentError
from specwb.figures.style import (
    ACCEPTED,
    CLEAR,
    DRAFT,
    FAINT,
    INK,
    MARK,
    OTHER,
    RESIDUAL,
    TARGET,
    figure,
)

HATCHES = ("/", "x", "-", "|", "+", "\\")
"""Of the residuals, in order of rejections; no more are told apart."""
DRAWN = {
    "single": "one",
    "iid": "independent",
    "without": "distinct",
    "top_and_sample": "top + one",
    "point": "top",
}
"""How sampling schemes are called below the bars, where there is little room."""


def residuals(p: Distribution, q: Distribution, after: Sequence[Distribution]) -> go.Figure:
    """Bars of p, of q, and of what rejections leave of p: ``after[j - 1]`` is the distribution
    after j of them. ``2 + len(HATCHES)`` traces.

    Args:
        p, q: distributions ``[V]``.
        after: at most ``len(HATCHES)`` of them ``[V]``.
    Raises:
        ValueError: too many of them, or lengths that differ.
    """
    rows = [np.asarray(one, dtype=float) for one in (p, q, *after)]
    if len(after) > len(HATCHES) or any(
        row.shape != rows[0].shape or row.ndim != 1 for row in rows
    ):
        raise ArgumentError(
            "residuals takes distributions over the same tokens, [V] each, and at most "
            f"{len(HATCHES)} residuals; got {len(after)}"
        )
    tokens = [str(x) for x in range(len(rows[0]))]
    hover = "token %{x}: %{y:.4f}<extra>%{fullData.name}</extra>"

    def bar(
        heights: Sequence[float] | np.ndarray, name: str, colour: str, inside: str, shape: str
    ) -> go.Bar:
        pattern = {"shape": shape, "fillmode": "overlay", "fgcolor": colour, "size": 7}
        marker = {"color": inside, "pattern": pattern, "line": {"color": colour, "width": 1}}
        return go.Bar(
            x=tokens,
            y=list(heights),
            name=name,
            marker=marker,
            hovertemplate=hover,
            visible=len(heights) > 0,
        )

    traces = [bar(rows[0], "p", TARGET, TARGET, ""), bar(rows[1], "q", DRAFT, CLEAR, ".")]
    for j, shape in enumerate(HATCHES):
        left = rows[2 + j] if j < len(after) else ()
        traces.append(
            bar(left, f"after {j + 1} rejection{'s' if j else ''}", RESIDUAL, CLEAR, shape)
        )
    return figure(
        *traces,
        title={"text": "p, q, and what rejections leave of p", "x": 0, "xref": "paper"},
        barmode="group",
        xaxis={"title": {"text": "token"}, "type": "category", "dtick": 1},
        yaxis={"title": {"text": "probability"}, "range": [0, 1.05]},
        height=270,
        margin={"l": 60, "r": 20, "t": 75, "b": 45},
    )


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
    Raises:
        ValueError: no rule, or a rule without a sampling scheme or optimum.
    """
    if not rates or any(drawn.get(rule) not in optima for rule in rates):
        raise ArgumentError(
            "each rule needs a sampling scheme with an optimum; got rules "
            f"{', '.join(rates) or 'none'}, optima of {', '.join(optima)}"
        )
    schemes = list(dict.fromkeys(drawn[rule] for rule in rates))
    order = sorted(rates, key=lambda rule: schemes.index(drawn[rule]))
    where = [
        [DRAWN.get(drawn[rule], drawn[rule]) for rule in order],
        [_wrapped(rule) for rule in order],
    ]
    return figure(
        go.Bar(
            x=where,
            y=[rates[rule] for rule in order],
            name="acceptance",
            marker={"color": ACCEPTED},
            width=0.6,
            text=[f"{rates[rule]:.3f}" for rule in order],
            textposition="inside",
            insidetextanchor="start",
            textangle=0,
            hovertemplate="%{y:.4f}<extra>acceptance</extra>",
        ),
        go.Scatter(
            x=where,
            y=[optima[drawn[rule]] for rule in order],
            name="optimum of these candidates",
            mode="markers",
            marker={"symbol": "line-ew", "size": 34, "line": {"width": 3, "color": MARK}},
            hovertemplate="%{y:.4f}<extra>optimum</extra>",
        ),
        title={"text": "How often one of the candidates comes out", "x": 0, "xref": "paper"},
        xaxis={"title": {"text": "rule, by how its candidates are drawn"}, "tickangle": 0},
        yaxis={"title": {"text": "acceptance"}, "range": [0, 1.08]},
        height=320,
        margin={"l": 60, "r": 20, "t": 75, "b": 95},
    )


def output(p: Distribution, out: Distribution, name: str) -> go.Figure:
    """Bars of p and, over them, the distribution of the token that comes out; the title says how
    far apart they are.

    Args:
        p, out: distributions ``[V]``; fractions are compared as fractions.
        name: of the verifier.
    Raises:
        ValueError: lengths that differ.
    """
    if len(p) != len(out):
        raise ArgumentError(f"p has {len(p)} tokens, the output {len(out)}")
    tokens = [str(x) for x in range(len(p))]
    off = sum(abs(a - b) for a, b in zip(p, out, strict=True)) / 2
    right = off == 0
    verdict = "equal to p" if right else f"TV(output, p) = {float(off):.4f}"
    hover = "token %{x}: %{y:.4f}<extra>%{fullData.name}</extra>"
    line, cross = (
        {"symbol": "line-ew", "size": 26, "line": {"width": 3, "color": INK}},
        {"symbol": "x", "size": 12, "color": MARK},
    )
    return figure(
        go.Bar(
            x=tokens,
            y=[float(a) for a in p],
            name="p",
            marker={"color": FAINT, "line": {"color": OTHER, "width": 1}},
            hovertemplate=hover,
        ),
        go.Scatter(
            x=tokens,
            y=[float(a) for a in out],
            name="output",
            mode="markers",
            hovertemplate=hover,
            cliponaxis=False,
            marker=line if right else cross,
        ),
        title={"text": f"Output of {name}: {verdict}", "x": 0, "xref": "paper"},
        xaxis={"title": {"text": "token"}, "type": "category", "dtick": 1},
        yaxis={
            "title": {"text": "probability"},
            "range": [0, 1.1 * max(float(max(p)), float(max(out)))],
        },
        height=250,
        margin={"l": 60, "r": 20, "t": 75, "b": 45},
    )
