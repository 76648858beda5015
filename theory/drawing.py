"""What the pictures of the theory pages share: a sheet to draw on, its style, how it is stored.

Pictures are SVG with letters as outlines, so that they look the same everywhere, on white, so that
they are read on dark pages too. Colours are those of ``specwb.show.palette``; where two things
differ in colour they differ in hatching, dash or marker as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specwb.show import palette
from specwb.show.palette import ACCEPTED, DRAFT, OTHER, TARGET

INK = "#222222"
HATCHES = {ACCEPTED: "", TARGET: "", DRAFT: "", OTHER: ""}
HATCHES |= {colour: 2 * hatch for colour, hatch in palette.HATCHES.items()}
STYLE = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "specwb",  # ids of the file are the same every time
    "svg.fonttype": "path",
}


def sheet(columns: int = 1, height: float = 3.0, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure 7.4 inches wide and its axes from left to right; ``options`` are matplotlib's."""
    figure = Figure(figsize=(7.4, height), layout="constrained", facecolor="white")
    axes = figure.subplots(1, columns, squeeze=False, gridspec_kw=options)
    return figure, list(axes[0])


def bars(axes: Axes, heights: Sequence[Any], colour: str, label: str = "", **options: Any) -> None:
    """Bars at 0, 1, .. with the hatching that goes with the colour; ``shift`` moves them aside."""
    places = [i + options.pop("shift", 0.0) for i in range(len(heights))]
    axes.bar(
        places,
        [float(h) for h in heights],
        options.pop("width", 0.38),
        color=colour if options.pop("filled", True) else "none",
        edgecolor=INK if HATCHES[colour] else colour,
        hatch=HATCHES[colour],
        label=label or None,
        **options,
    )


def tokens(axes: Axes, number: int) -> None:
    """The axis of tokens: a tick for each."""
    axes.set_xticks(range(number), [f"token {i}" if number < 6 else str(i) for i in range(number)])
    axes.tick_params(axis="x", length=0)


def diagram(axes: Axes, width: float, height: float) -> None:
    """Axes without an axis, on which x and y are equally long; y goes down."""
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.axis("off")


def box(axes: Axes, at: tuple[float, float], text: str, colour: str, **options: Any) -> None:
    """A word in a rounded frame, its centre at ``at``."""
    frame = {
        "boxstyle": "round,pad=0.35",
        "facecolor": options.pop("fill", "white"),
        "edgecolor": colour,
        "linewidth": options.pop("line", 1.6),
        "linestyle": options.pop("dash", "-"),
    }
    axes.text(*at, text, ha="center", va="center", bbox=frame, **{"color": INK} | options)


def save(figure: Figure, place: Path) -> None:
    """Writes the picture as SVG, without the date."""
    figure.savefig(place, format="svg", metadata={"Date": None})


matplotlib.rcParams.update(STYLE)
