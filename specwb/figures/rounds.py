"""How many tokens the rounds of a decoding gave."""

from __future__ import annotations

from collections import Counter

import plotly.graph_objects as go

from specwb.decoding import Output
from specwb.figures.style import FIRST, MARK, figure


def tokens_per_round(output: Output) -> go.Figure:
    """Rounds counted by the tokens they added (accepted + 1 bonus token), all rows together; the
    dashed line is tau, their mean.
    """
    counts = Counter(accepted + 1 for row in output.accepted_lengths for accepted in row)
    most = max(counts, default=1)
    sizes = list(range(1, most + 1))
    heights = [counts[n] for n in sizes]
    tau, top = output.mean_tokens_per_step, max(heights) * 1.2
    return figure(
        go.Bar(
            x=sizes,
            y=heights,
            text=heights,
            textposition="outside",
            name="rounds",
            marker={"color": FIRST},
            cliponaxis=False,
        ),
        go.Scatter(
            x=[tau, tau],
            y=[0, top],
            mode="lines",
            name=f"tau = {tau:.2f} tokens per round",
            line={"color": MARK, "dash": "dash", "width": 3},
        ),
        title={"text": "Tokens per round", "x": 0, "xref": "paper"},
        xaxis={
            "title": {"text": "tokens added in a round, the bonus token included"},
            "tickvals": sizes,
            "range": [0.4, most + 0.6],
        },
        yaxis={"title": {"text": "rounds"}, "range": [0, top]},
        height=320,
        showlegend=True,
        margin={"l": 60, "r": 20, "t": 70, "b": 50},
    )
