"""One draft token: what is accepted, what is rejected, what comes out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from specwb.analysis import acceptance_rate, output_distribution
from specwb.analysis.acceptance import Distribution
from specwb.errors import ArgumentError
from specwb.figures.style import ACCEPTED, CLEAR, DARK, REJECTED, RESIDUAL, figure


def acceptance(
    p: Distribution,
    q: Distribution,
    counts: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
) -> go.Figure:
    """Two distributions laid over each other: the mass both have is accepted, what p has beyond q
    is the residual, what q has beyond p is rejected.

    Accepted and residual together are as high as p, accepted and rejected as high as q. The black
    diamonds are the distribution of the output (:func:`specwb.analysis.output_distribution`); they
    lie on p whatever q is. Five traces: accepted, residual, rejected, output, drawn.

    Args:
        p, q: distributions ``[V]``.
        counts: how often each token came out in a simulation ``[V]``.
        labels: of the tokens, default their numbers.
    Raises:
        ValueError: lengths differ.
    """
    alpha = float(acceptance_rate(p, q))
    target, draft = np.asarray(p, dtype=float), np.asarray(q, dtype=float)
    hover = "token %{x}: %{y:.4f}<extra>%{fullData.name}</extra>"
    names = [str(i) for i in range(len(p))] if labels is None else list(labels)
    n = 0 if counts is None else int(sum(counts))
    if len(names) != len(p) or (counts is not None and len(counts) != len(p)):
        raise ArgumentError(
            f"p has {len(p)} tokens, labels {len(names)}, counts "
            f"{len(p) if counts is None else len(counts)}"
        )
    both = np.minimum(target, draft)

    def bar(heights: np.ndarray, name: str, colour: str, shape: str) -> go.Bar:
        pattern = {"shape": shape, "fillmode": "overlay", "fgcolor": colour}
        inside = CLEAR if shape else colour
        return go.Bar(
            x=names,
            y=heights,
            name=name,
            marker={"color": inside, "pattern": pattern, "line": {"color": colour, "width": 1}},
            hovertemplate=hover,
        )

    drawn = [c / n for c in counts] if counts is not None and n else [None] * len(p)
    return figure(
        bar(both, "accepted, min(p, q)", ACCEPTED, ""),
        bar(target - both, "residual, (p − q)+", RESIDUAL, "/"),
        bar(draft - both, "rejected, (q − p)+", REJECTED, "."),
        go.Scatter(
            x=names,
            y=output_distribution(target, draft),
            mode="markers",
            name="output",
            marker={
                "symbol": "diamond-wide",
                "size": 13,
                "color": "black",
                "line": {"width": 1, "color": "white"},
            },
            hovertemplate=hover,
        ),
        go.Scatter(
            x=names,
            y=drawn,
            mode="markers",
            name=f"{n} draws",
            showlegend=bool(n),
            marker={
                "symbol": "circle",
                "size": 7,
                "color": "white",
                "line": {"width": 2, "color": DARK},
            },
            hovertemplate=hover,
        ),
        title={"text": f"accepted {alpha:.3f} = 1 − TV(p, q)", "x": 0, "xref": "paper"},
        barmode="stack",
        legend={"orientation": "h", "y": -0.22, "yanchor": "top", "x": 0, "traceorder": "normal"},
        xaxis={"title": {"text": "token"}, "type": "category", "dtick": 1},
        yaxis={
            "title": {"text": "probability"},
            "range": [0, 1.15 * float(np.maximum(target, draft).max())],
        },
        height=420,
        margin={"l": 60, "r": 20, "t": 50, "b": 130},
    )
