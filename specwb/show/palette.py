"""One visual vocabulary for all figures, widgets and pages: what is the target's, what is the
draft's, and what became of a draft token.

The colours are Okabe and Ito's, which are told apart without colour vision, and none carries a
meaning alone: line dashes, hatching, marker shapes or signs say the same. They are seen on white
and on black.
"""

from __future__ import annotations

from collections.abc import Iterable

TARGET = "#0072B2"  # blue: p, and the bonus token, which the target writes
DRAFT = "#E69F00"  # orange: q, and draft tokens that nobody has judged yet
ACCEPTED = "#009E73"  # green: draft tokens that stay
REJECTED = "#D55E00"  # vermilion: draft tokens that do not
RESIDUAL = "#CC79A7"  # purple: what rejections leave of p
OTHER = "#8C8C8C"  # grey: all the rest

VOCABULARY = {
    "target": TARGET,
    "draft": DRAFT,
    "accepted": ACCEPTED,
    "rejected": REJECTED,
    "residual": RESIDUAL,
    "other": OTHER,
}
"""Name -> colour, as the microscope takes it."""

HATCHES = {DRAFT: "-", RESIDUAL: "/", REJECTED: "."}
"""How bars of these are hatched, as plotly and matplotlib write it; those of the rest are plain, or
hatched in other ways where several have one colour."""

FIRST = TARGET  # a series that is neither the target's nor the draft's
MARK = REJECTED  # a line or a point that others are compared with
INK = "#767676"  # of words and axes: the grey whose contrast with white and with black is alike
DARK = "#222222"  # words in a light cell, whatever the page has behind it
FAINT = "rgba(128,128,128,0.3)"  # areas that must not stand out
GRID = "rgba(128,128,128,0.2)"
EDGE = "#9A9A9A"  # of trees
CLEAR = "rgba(0,0,0,0)"  # what is left of a hatched bar
DEPTHS = [[0, "#F0E442"], [0.5, "#56B4E9"], [1, "#0072B2"]]
"""Of cells by position or share: no end of it is as dark or as light as a page."""

Style = tuple[str, str, str]
PALETTE: tuple[Style, ...] = (
    ("#0072B2", "solid", "circle"),
    ("#D55E00", "dash", "square"),
    ("#009E73", "dot", "diamond"),
    ("#CC79A7", "dashdot", "triangle-up"),
    ("#E69F00", "longdash", "x"),
    ("#56B4E9", "solid", "star"),
    ("#997700", "dash", "triangle-down"),
    ("#8C8C8C", "dot", "cross"),
)
"""Colour, dash and marker of the series of a figure, in their order."""


def looks(names: Iterable[str]) -> dict[str, Style]:
    """A colour, dash and marker for each name, in their order; all of the first 64 differ."""
    count = len(PALETTE)
    by_name = {}
    for i, name in enumerate(dict.fromkeys(names)):
        _, dash, symbol = PALETTE[(i + i // count) % count]
        by_name[name] = (PALETTE[i % count][0], dash, symbol)
    return by_name
