"""The figures of measurements by name, with their formulas.

A *row* is one run: a method on a prompt (a group of them, or a question with all its turns), with
its tokens, target forwards and seconds. Speeds are tokens per second. A *pair* is a method's speed
and the reference's on the same prompt. The reference is the fastest plain decoding of the run; a
sweep has one plain decoding only, ``ar``.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

FIGURES = {
    "tau": "tokens per target forward, the bonus token included",
    "speedup": "median over prompts of the method's speed / the reference's on the same prompt",
    "speedup.total": "(all tokens / all seconds) / the same of ar: what predictions are about",
    "speedup.mean_rate": "(mean over questions of the method's speed) / the reference's mean, as"
    " Spec-Bench divides",
    "speedup.steady": "mean over prompts of the tokens of all decoding steps but the first, over"
    " those that plain decoding writes in their time: prompt processing is not in it",
}
"""Name -> formula. ``compare``, ``evaluate``, ``sweep`` and ``tune`` print the one of that name as
speedup. What :mod:`specwb.lab.papers` calls ``speedup`` is ``speedup.steady``."""
PLAIN = {
    "ar": "specwb's own plain decoding",
    "hf_greedy": "transformers' generate",
    "hf_sample": "transformers' generate",
}
"""The plain decodings, in words."""
PARTS = ("draft", "score", "verify", "commit")
"""The parts of a decoding step whose seconds are measured."""


def of_plain(rows: pd.DataFrame, column: str, plain: str, on: Sequence[str]) -> pd.Series:
    """Return, for every row, a column of the plain decoding on the same prompt.

    Args:
        rows: one per run, with the columns ``method``, ``column`` and ``on``.
        column: of the plain decoding.
        plain: its method.
        on: columns that both runs of a pair share, such as the prompt.
    Returns:
        a column with the rows' index; NaN where plain decoding has no such run.
    """
    shared = list(on)
    base = rows[rows.method == plain].drop_duplicates(shared)[[*shared, column]]
    return rows[shared].merge(base, on=shared, how="left")[column].set_axis(rows.index)


def reference(rows: pd.DataFrame) -> str:
    """Choose the plain decoding that is fastest in the median of pairs, ``ar`` if they are equal.

    Args:
        rows: one per run, with the columns ``method``, ``prompt`` and ``tokens_per_second``.
    """
    first, *others = [name for name in PLAIN if (rows.method == name).any()]
    ratios = rows.tokens_per_second / of_plain(rows, "tokens_per_second", first, ["prompt"])
    medians = {name: ratios[rows.method == name].median() for name in others}
    best = max(others, key=medians.__getitem__, default=first)
    return best if medians.get(best, 0) > 1 else first


def figures(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Compute the figures of every combination of ``by``, in the order of its first row.

    Args:
        rows: one per run, with ``by`` and the columns ``tokens``, ``forwards``, ``seconds``,
            ``speedup`` and ``disturbed``.
        by: columns, such as ``["method", "subtask"]``.
    Returns:
        a frame with ``by`` as its index and the columns runs, tau,
        tokens_per_second (all tokens over all seconds), speedup (the median over rows),
        speedup_low and speedup_high (its quartiles), disturbed.
    """
    groups = rows.groupby(list(by), sort=False)
    sums = groups[["tokens", "forwards", "seconds", "disturbed"]].sum()
    return pd.DataFrame(
        {
            "runs": groups.size(),
            "tau": sums.tokens / sums.forwards.clip(lower=1),
            "tokens_per_second": sums.tokens / sums.seconds,
            "speedup": groups.speedup.median(),
            "speedup_low": groups.speedup.quantile(0.25),
            "speedup_high": groups.speedup.quantile(0.75),
            "disturbed": sums.disturbed,
        }
    )
