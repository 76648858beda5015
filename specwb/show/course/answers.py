"""The right choices of a question about measured numbers: the right answer, and every choice that
the 95 % interval over prompts does not separate from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from specwb.core.errors import ArgumentError
from specwb.lab.bench.statistics import bootstrap, weights
from specwb.lab.papers.figures import figure

Figures = float | Fraction | Sequence[float] | np.ndarray
"""A number that is exact, or one number for every prompt."""

ROUNDING = 1e-9


def per_prompt(document: Mapping[str, Any], cell: str, what: str = "speedup") -> list[float]:
    """Compute a figure of a shipped cell for every prompt.

    Args:
        document: the results (:func:`specwb.show.course.stored`).
        cell: the name of the cell, as in the ``cell`` of a row.
        what: "speedup", "tau", "accepted" or another of :func:`specwb.lab.papers.figures.figure`.
    Raises:
        KeyError: the results have no such cell.
    """
    cells = document["cells"]
    return figure({**cells, cell: cells[cell]}, cell, what)


def ratio(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Compute the ratio of two means over the same prompts, and the ends of its 95 % interval."""
    return bootstrap(np.array([first, second]))


def with_intervals(values: Mapping[str, Sequence[float]], unit: str = "") -> str:
    """Write means over prompts with their 95 % intervals, as in ``pld: 1.16x (1.07-1.26)``."""
    intervals = {name: ratio(figures, [1.0] * len(figures)) for name, figures in values.items()}
    parts = (f"{name}: {x:.2f}{unit} ({a:.2f}-{b:.2f})" for name, (x, a, b) in intervals.items())
    return ", ".join(parts)


def best(values: Mapping[str, Figures], *, smallest: bool = False) -> list[str]:
    """Name the choice with the largest mean, and all that cannot be told from it.

    Exact numbers are told apart wherever they differ. Measured ones are compared prompt by prompt:
    a choice is behind if the 95 % interval of the mean difference from the best lies above 0.

    Args:
        values: choice -> an exact number, or one number for every prompt, in the same order.
        smallest: whether the smallest is asked for.
    """
    sign = -1.0 if smallest else 1.0
    figures = {name: sign * np.atleast_1d(np.asarray(x, float)) for name, x in values.items()}
    first = max(figures.values(), key=np.mean)
    prompts = max(map(len, figures.values()))
    resamples = weights(prompts)
    right = []
    for name, row in figures.items():
        differences = np.broadcast_to(first - row, prompts) @ resamples
        if np.quantile(differences, 0.025) <= ROUNDING:
            right.append(name)
    return right


def within(ranges: Mapping[str, float], *values: float) -> list[str]:
    """Name the ranges that a number lies in, with all that its interval touches.

    Args:
        ranges: choice -> the range's upper end, which belongs to it, in rising order.
        values: the number and the ends of its interval, in any order; a number alone is exact.
    Raises:
        ArgumentError: the interval lies above the last range, so that no choice would be right.
    """
    low, high, below = min(values), max(values), -np.inf
    right = []
    for name, top in ranges.items():
        if low <= top and high > below:
            right.append(name)
        below = top
    if not right:
        raise ArgumentError(f"{low:g} lies in none of the ranges, which end at {below:g}")
    return right


def nearest(choices: Mapping[str, float], *values: float) -> list[str]:
    """Name the choice whose number is nearest, and those nearest to a part of the interval.

    Args:
        choices: choice -> its number.
        values: as of :func:`within`.
    """
    rising = sorted(choices, key=choices.__getitem__)
    tops = [(choices[a] + choices[b]) / 2 for a, b in pairwise(rising)]
    return within(dict(zip(rising, [*tops, np.inf], strict=True)), *values)
