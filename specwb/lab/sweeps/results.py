"""The results of a sweep as frames: one row a run, and means with intervals by parameter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specwb.core.errors import SpecwbError
from specwb.core.files import foreign
from specwb.lab.bench.results import of_plain
from specwb.lab.bench.statistics import interval
from specwb.lab.bench.store import RunStore

SHARED = ("temperature", "top_k", "top_p", "seed", "max_new_tokens")
"""The settings of every decoding."""
METRICS = ("tau", "drafted", "tokens_per_second", "speedup", "cost", "identical")
"""The figures of a run, as :func:`frame` names them."""
RUN = (
    *("id", "prompt", "domain", "tokens", "steps", "drafted", "seconds", "disturbed", "text"),
    "began",
)
"""The columns of a run that are stored with it."""
CONDITIONS = ("commit", "device", "threads", "dtype", "target_sha256")
"""Facts whose runs are not to be mixed in one mean."""


class SweepError(SpecwbError, ValueError):
    """A sweep that cannot be run, or results that cannot be read."""


def frame(store: RunStore | Path | str) -> pd.DataFrame:
    """Return one row for every run of a store.

    Columns: ``id`` of the configuration; its settings by name (``method``, ``temperature``, ..,
    empty where a method has no such option; ``option.steps`` where a run has a column of that
    name); ``prompt`` and ``domain``; ``tokens``, ``steps``;
    ``tau``, tokens per target forward; ``drafted``, draft tokens verified per step;
    ``seconds``, ``tokens_per_second`` (empty where times were not recorded); ``speedup``
    over plain decoding of the same prompt, sampling, seed and machine, ``cost`` = tau / speedup,
    the time of a step in plain ones, and ``identical``, whether its text is the same (empty where
    that was not measured); ``disturbed``; ``began``; and the facts: device, dtype, hashes and
    versions.

    Raises:
        StoreError: the store cannot be used.
        SweepError: rows that no sweep has written.
    """
    if not isinstance(store, RunStore):
        with RunStore(store, is_new=False) as opened:
            return frame(opened)
    with foreign(f"{store.path} holds what no sweep has written", SweepError):
        settings = store.settings().items()
        known = {id: {**_named(one), **_flat(facts)} for id, (one, facts) in settings}
        rows = []
        for id, prompt, seconds, record in store.runs():
            steps = len(record["accepted"])
            values = {**record, "id": id, "prompt": prompt, "seconds": seconds, "steps": steps}
            rows.append({**{name: values[name] for name in RUN}, **known[id]})
        runs = pd.DataFrame(rows, columns=None if rows else [*RUN, "method", *SHARED])
        runs["tau"] = runs.tokens / runs.steps
        runs["drafted"] = runs.drafted / runs.steps
        runs["seconds"] = runs.seconds.astype(float)
        runs["tokens_per_second"] = runs.tokens / runs.seconds
        machine = [name for name in (*CONDITIONS, "machine") if name in runs]
        pair = ["prompt", *SHARED, *machine]
        runs["speedup"] = runs.tokens_per_second / of_plain(runs, "tokens_per_second", "ar", pair)
        runs["cost"] = runs.tau / runs.speedup
        plain_text = of_plain(runs, "text", "ar", pair)
        runs["identical"] = (runs.text == plain_text).astype(float).where(plain_text.notna())
        return runs


def _named(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings whose names are no column of a run, and whose values are no lists."""
    columns = {*RUN, *METRICS}
    return {
        f"option.{name}" if name in columns else name: str(x) if isinstance(x, list) else x
        for name, x in settings.items()
    }


def _flat(conditions: dict[str, Any]) -> dict[str, Any]:
    """Conditions as :func:`specwb.lab.bench.conditions.conditions` has them, one column a value."""
    models, sha256, versions = (conditions.pop(name) for name in ("models", "sha256", "versions"))
    roles = {role: role if role in ("target", "draft", "files") else "head" for role in sha256}
    return {
        **conditions,
        "target": models["target"],
        **{f"{roles[role]}_sha256": value for role, value in sha256.items()},
        **{f"version_{name}": number for name, number in versions.items()},
    }


def filtered(runs: pd.DataFrame, where: Sequence[str]) -> pd.DataFrame:
    """Return the rows that meet all conditions ``name=value``.

    Raises:
        SweepError: a condition that is not written so, or no such column.
    """
    for condition in where:
        name, equals, value = condition.partition("=")
        if not equals or name not in runs:
            known = ", ".join(runs.columns)
            raise SweepError(
                f"a condition is name=value with the name of a column, got {condition!r}; "
                f"there are {known}"
            )
        runs = runs[_equal(runs[name], value)]
    return runs


def _equal(column: pd.Series, value: Any) -> pd.Series:
    """Where a column has a value, which may be written as in a spec (``true``, ``4-2-2``)."""
    try:
        wanted = spelled(value if isinstance(value, bool) else float(value))
    except (TypeError, ValueError):
        wanted = spelled(value)
    return column.map(spelled) == wanted


def summary(
    runs: pd.DataFrame,
    by: Sequence[str],
    value: str = "tau",
    over: dict[str, Any] | None = None,
) -> pd.DataFrame:
    """Return the middle of a column for every combination of parameters, with its interval.

    That is its mean, of ``speedup`` its median (:data:`specwb.lab.bench.results.FIGURES`). The
    interval is a bootstrap over prompts, the units that were sampled: every prompt counts with the
    mean of its runs (seeds), so that seeds narrow it only as far as they differ.

    Args:
        runs: of :func:`frame`.
        by: columns, such as ``["eta", "gamma"]``.
        value: the column, one of :data:`METRICS`.
        over: a combination, such as ``{"eta": 0.6}``: middle and interval are then those of the
            difference to it, paired by prompt and seed (and whatever else of ``by`` is not named);
            the median of differences is not the difference of medians.

    Returns:
        Columns ``by``, ``mean`` (of ``speedup``: ``median``), ``low``, ``high``, ``prompts``,
        ``runs``.

    Raises:
        SweepError: a column that is not there, no parameter, a combination that was not measured,
            or runs of several machines or versions, which are not to be mixed.
    """
    if not by or value not in METRICS:
        raise SweepError(f"a mean is of {', '.join(METRICS)}, by at least one parameter")
    for name in (*by, value, *(over or {})):
        if name not in runs:
            raise SweepError(f"there is no column {name!r}; there are {', '.join(runs.columns)}")
    runs = runs[runs[value].notna()]
    if runs.empty:
        raise SweepError(f"nothing was measured of {value}")
    mixed = (*CONDITIONS, "machine") if value == "tokens_per_second" else CONDITIONS
    for name in mixed:
        if name in runs and name not in by and runs[name].nunique(dropna=False) > 1:
            several = ", ".join(map(str, runs[name].unique()))
            raise SweepError(f"these runs are of several {name} ({several}): choose one by where")
    if over is not None:
        runs = _differences(runs, list(by), value, over)
    middle = middle_of(value)
    statistic = getattr(np, middle)
    rows = []
    for key, group in runs.groupby(list(by), dropna=False):
        by_prompt = group.groupby("prompt")[value].mean().to_numpy()
        low, high = interval(by_prompt, statistic)
        rows.append([*key, float(statistic(by_prompt)), low, high, len(by_prompt), len(group)])
    return pd.DataFrame(rows, columns=[*by, middle, "low", "high", "prompts", "runs"])


def middle_of(value: str) -> str:
    """Name the statistic that :func:`summary` takes of a column, and its column."""
    return "median" if value == "speedup" else "mean"


def _differences(
    runs: pd.DataFrame, by: list[str], value: str, over: dict[str, Any]
) -> pd.DataFrame:
    """Replace a column by its difference to the combination ``over``, where both were measured."""
    pair = ["prompt", "seed", *(name for name in by if name not in over)]
    base = runs
    for name, wanted in over.items():
        base = base[_equal(base[name], wanted)]
    if base.empty:
        raise SweepError(f"nothing was measured with {over}")
    base = base.groupby(pair, dropna=False)[value].mean().rename("base").reset_index()
    both = runs.merge(base, on=pair, how="inner")
    return both.assign(**{value: both[value] - both["base"]})


def front(
    runs: pd.DataFrame, by: Sequence[str], value: str = "tau", cost: str = "drafted"
) -> pd.DataFrame:
    """Return the means of two columns by parameters, and which combinations nothing beats.

    Args:
        runs: of :func:`frame`.
        by: columns, such as ``["tree"]``.
        value: the column of which more is better.
        cost: the column of which less is better: ``drafted``, or ``cost`` where times were
            recorded.

    Returns:
        Columns ``by``; of both columns their own name, ``NAME_low`` and ``NAME_high``; ``prompts``;
        and ``front``: no other combination has as large a value at as small a cost, and is better
        in one of them.

    Raises:
        SweepError: as :func:`summary`, or both are one column.
    """
    if value == cost:
        raise SweepError(f"value and cost are two columns, got {value} twice")
    parts = []
    for name in (value, cost):
        means = summary(runs, by, name).drop(columns="runs")
        names = {middle_of(name): name, "low": f"{name}_low", "high": f"{name}_high"}
        parts.append(means.rename(columns=names))
    both = parts[0].merge(parts[1].drop(columns="prompts"), on=list(by), how="inner")
    points = both[[value, cost]].to_numpy() * [1, -1]
    others = points[:, None]
    both["front"] = ~((points >= others).all(2) & (points > others).any(2)).any(1)
    return both.sort_values(cost).reset_index(drop=True)


def spelled(value: Any) -> str:
    """Write a parameter's value for a table, "" where the method has no such option."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float | np.number) else str(value)
