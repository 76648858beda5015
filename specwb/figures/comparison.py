"""Methods side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from specwb.errors import ArgumentError
from specwb.figures.style import DRAFT, FIRST, INK, MARK, figure

if TYPE_CHECKING:
    import pandas as pd


def comparison(frame: pd.DataFrame) -> go.Figure:
    """Speedup over plain decoding of every row of :func:`specwb.compare`: median, with the
    quartiles as error bars.

    What speedups are over is named in the title where the frame says it (``attrs["reference"]``).
    The transformers library's rows (``hf_``) are hatched; a lossy method says so beside its name.

    Args:
        frame: columns method, lossless, tau, tokens_per_second, speedup, speedup_low, speedup_high.
    Raises:
        ValueError: a column is missing.
    """
    columns = (
        "method",
        "lossless",
        "tau",
        "tokens_per_second",
        "speedup",
        "speedup_low",
        "speedup_high",
    )
    missing = [c for c in columns if c not in frame.columns]
    if missing:
        raise ArgumentError(f"not a table of specwb.compare: no column {', '.join(missing)}")
    rows = frame.to_dict("records")
    over = frame.attrs.get("reference", {}).get("method", "plain decoding")
    names = [r["method"] + ("" if r["lossless"] else " (LOSSY)") for r in rows]
    library = [str(r["method"]).startswith("hf_") for r in rows]
    speed = [r["speedup"] for r in rows]
    reach = max([1.0, *(r["speedup_high"] for r in rows)]) * 1.5
    return figure(
        go.Bar(
            x=speed,
            y=names,
            orientation="h",
            name="speedup, median and quartiles",
            marker={
                "color": [DRAFT if lib else FIRST for lib in library],
                "pattern": {
                    "shape": ["/" if lib else "" for lib in library],
                    "fgcolor": "white",
                    "fillmode": "overlay",
                },
            },
            error_x={
                "type": "data",
                "symmetric": False,
                "color": INK,
                "thickness": 2,
                "array": [r["speedup_high"] - r["speedup"] for r in rows],
                "arrayminus": [r["speedup"] - r["speedup_low"] for r in rows],
            },
            customdata=[[r["tau"], r["tokens_per_second"]] for r in rows],
            hovertemplate="%{y}: %{x:.2f}x<br>tau %{customdata[0]:.2f}<br>"
            "%{customdata[1]:.1f} tokens/s<extra></extra>",
        ),
        title={"text": f"Speedup over {over} (dashed: 1)", "x": 0, "xref": "paper"},
        annotations=[
            {
                "x": 1,
                "xref": "paper",
                "y": name,
                "text": f"{r['speedup']:.2f}x, tau {r['tau']:.2f}",
                "showarrow": False,
                "xanchor": "right",
            }
            for r, name in zip(rows, names, strict=True)
        ],
        shapes=[
            {
                "type": "line",
                "x0": 1,
                "x1": 1,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": MARK, "dash": "dash", "width": 2},
            }
        ],
        xaxis={
            "title": {"text": f"tokens/s over {over}'s, same prompts"},
            "range": [0, reach],
            "zeroline": True,
        },
        yaxis={"autorange": "reversed", "type": "category", "automargin": True},
        height=140 + 44 * max(1, len(rows)),
        showlegend=False,
    )
