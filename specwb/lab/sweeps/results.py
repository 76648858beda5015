"""What a sweep has found, as frames: one row a run, and means with intervals by parameter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specwb.core.errors import ArgumentError
from specwb.core.files import foreign
from specwb.core.inputs import real
from specwb.core.options import parse_value, spell
from specwb.lab.bench.results import interval
from specwb.lab.bench.store import Store
from specwb.lab.sweeps.space import METRICS, SHARED, SweepError

CONDITIONS = ("commit", "device", "threads", "dtype", "target_sha256")
"""Facts whose runs are not to be mixed in one mean."""


def frame(store: Store | Path | str) -> pd.DataFrame:
    """Returns one row for every run of a store.

    Columns: ``id`` of the configuration; its settings by name (``method``, ``temperature``, ..,
    empty where a method has no such option; ``option.steps`` where a run has a column of that
    name); ``prompt`` and ``domain``; ``tokens``, ``steps``;
    ``tau``, tokens a target forward; ``accepted``, tau - 1; ``drafted``, draft tokens verified a
    step; ``seconds``, ``tokens_per_second`` (empty where times were not noted); ``speedup`` over
    plain decoding of the same prompt, sampling, seed and machine, ``cost`` = tau / speedup, the
    time of a step in plain ones, and ``identical``, whether its text is the same (empty where that
    was not measured); ``disturbed``; ``began``; and the facts: device, dtype, hashes and
    versions.

    Raises:
        SweepError: rows that no sweep has written.
    """
    if not isinstance(store, Store):
        with Store(store, False) as opened:
            return frame(opened)
    with foreign(f"{store.path} holds what no sweep has written", SweepError):
        return _frame(store)


def _frame(store: Store) -> pd.DataFrame:
    known = {id: {**_named(one), **_flat(facts)} for id, (one, facts) in store.settings().items()}
    rows = [{**_run(*run), **known[run[0]]} for run in store.runs()]
    found = pd.DataFrame(
        rows, columns=None if rows else [*RUN_COLUMNS[:9], "drafted", "method", *SHARED]
    )
    found["tau"] = found.tokens / found.steps
    found["accepted"] = found.tau - 1
    found["drafted"] = found.drafted.astype(float) / found.steps
    found["seconds"] = found.seconds.astype(float)
    found["tokens_per_second"] = found.tokens / found.seconds
    return _over_plain(found)


RUN_COLUMNS = (
    *("id", "prompt", "domain", "tokens", "steps", "seconds", "disturbed", "text", "began"),
    *METRICS,
)


def _run(id: str, prompt: str, seconds: float | None, record: dict[str, Any]) -> dict[str, Any]:
    """The columns of a run."""
    tokens, steps = record["tokens"], len(record["accepted"])
    texts = {"prompt": prompt, **{name: record[name] for name in ("domain", "text", "began")}}
    is_text = all(isinstance(x, str) for x in texts.values())
    is_time = seconds is None or (isinstance(seconds, float) and seconds > 0)
    is_count = isinstance(tokens, int) and 1 <= steps <= tokens
    if not (is_text and is_time and is_count and isinstance(record["disturbed"], bool)):
        raise ArgumentError(f"the run of {id} on prompt {prompt}")
    # an earlier version did not note what was drafted
    columns = {
        "id": id,
        **texts,
        "tokens": tokens,
        "steps": steps,
        "drafted": record.get("drafted"),
    }
    return columns | {"seconds": seconds, "disturbed": record["disturbed"]}


def _named(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings whose names are no column of a run, and whose values are no lists."""
    for name in SHARED:
        real(name, settings[name])
    if not isinstance(settings["method"], str):
        raise ArgumentError(f"a method is {settings['method']!r}")
    return {
        f"option.{name}" if name in RUN_COLUMNS else name: spell(x) if isinstance(x, list) else x
        for name, x in settings.items()
    }


def _flat(conditions: dict[str, Any]) -> dict[str, Any]:
    """What :func:`specwb.lab.bench.conditions.conditions` says, a column for every value."""
    models, sha256, versions = (conditions.pop(name) for name in ("models", "sha256", "versions"))
    roles = {role: role if role in ("target", "draft", "files") else "head" for role in sha256}
    return {
        **conditions,
        "target": models["target"],
        **{f"{roles[role]}_sha256": value for role, value in sha256.items()},
        **{f"version_{name}": number for name, number in versions.items()},
    }


def _over_plain(found: pd.DataFrame) -> pd.DataFrame:
    """Adds ``speedup`` and ``identical``."""
    same = ["prompt", *SHARED]
    same += [name for name in (*CONDITIONS, "machine") if name in found]
    plain = found[found.method == "ar"][[*same, "tokens_per_second", "text"]]
    plain = plain.rename(columns={"tokens_per_second": "plain_speed", "text": "plain_text"})
    found = found.merge(plain.drop_duplicates(same), on=same, how="left")
    found["speedup"] = found.tokens_per_second / found.plain_speed
    found["cost"] = found.tau / found.speedup
    known = found.plain_text.notna()
    found["identical"] = (found.text == found.plain_text).astype(float).where(known)
    return found.drop(columns=["plain_speed", "plain_text"])


def filtered(found: pd.DataFrame, where: Sequence[str]) -> pd.DataFrame:
    """Returns the rows that meet all conditions ``name=value``."""
    for condition in where:
        name, equals, value = condition.partition("=")
        if not equals or name not in found:
            known = ", ".join(found.columns)
            raise SweepError(f"conditions are name=value with a column, got {condition!r}; {known}")
        found = found[_equal(found[name], value)]
    return found


def _equal(column: pd.Series, value: Any) -> pd.Series:
    """Where a column has a value, which may be written as in a spec (``true``, ``4-2-2``)."""
    wanted = spelled(parse_value(value) if isinstance(value, str) else value)
    return column.map(spelled) == wanted


def summary(
    found: pd.DataFrame,
    by: Sequence[str],
    value: str = "tau",
    over: dict[str, Any] | None = None,
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Returns the middle of a column for every combination of parameters, with its interval.

    That is its mean, of ``speedup`` its median (:data:`specwb.lab.bench.results.FIGURES`). The
    interval is a bootstrap over prompts, the units that were sampled: every prompt counts with the
    mean of its runs (seeds), so that seeds narrow it only as far as they differ.

    Args:
        found: of :func:`frame`.
        by: columns, such as ``["eta", "gamma"]``.
        value: the column.
        over: a combination, such as ``{"eta": 0.6}``: middle and interval are then those of the
            difference to it, paired by prompt and seed (and whatever else of ``by`` is not named);
            the median of differences is not the difference of medians.
        confidence: of the intervals.

    Returns:
        Columns ``by``, ``mean`` (of ``speedup``: ``median``), ``low``, ``high``, ``prompts``,
        ``runs``.

    Raises:
        SweepError: a column that is not there, no parameter, a combination that was not measured,
            or runs of several machines' or versions' that are not to be mixed.
    """
    if not by or value not in METRICS:
        raise SweepError(f"a mean is of {', '.join(METRICS)}, by at least one parameter")
    for name in (*by, value, *(over or {})):
        if name not in found:
            raise SweepError(f"there is no column {name!r}; there are {', '.join(found.columns)}")
    found = found[found[value].notna()]
    if found.empty:
        raise SweepError(f"nothing was measured of {value}")
    mixed = (*CONDITIONS, "machine") if value == "tokens_per_second" else CONDITIONS
    for name in mixed:
        if name in found and name not in by and found[name].nunique(dropna=False) > 1:
            several = ", ".join(map(str, found[name].unique()))
            raise SweepError(f"these runs are of several {name} ({several}): choose one by where")
    if over is not None:
        found = _differences(found, list(by), value, over)
    name = middle_of(value)
    rows, statistic = [], getattr(np, name)
    for key, group in found.groupby(list(by), dropna=False):
        by_prompt = group.groupby("prompt")[value].mean().to_numpy()
        low, high = interval(by_prompt, statistic, confidence)
        row = dict(zip(by, key, strict=True))
        counts = {"prompts": len(by_prompt), "runs": len(group)}
        rows.append(row | {name: float(statistic(by_prompt)), "low": low, "high": high} | counts)
    return pd.DataFrame(rows)


def middle_of(value: str) -> str:
    """The name of what :func:`summary` takes of a column, and of the column that it makes."""
    return "median" if value == "speedup" else "mean"


def _differences(
    found: pd.DataFrame, by: list[str], value: str, over: dict[str, Any]
) -> pd.DataFrame:
    """Replaces a column by its difference to the combination ``over``, where both were measured."""
    same = ["prompt", "seed", *(name for name in by if name not in over)]
    if "train.seed" in found and "train.seed" not in (*same, *over):
        same.append("train.seed")
    base = found
    for name, wanted in over.items():
        base = base[_equal(base[name], wanted)]
    if base.empty:
        raise SweepError(f"nothing was measured with {over}")
    base = base.groupby(same, dropna=False)[value].mean().rename("base").reset_index()
    both = found.merge(base, on=same, how="inner")
    both[value] = both[value] - both["base"]
    return both.drop(columns="base")


def front(
    found: pd.DataFrame, by: Sequence[str], value: str = "tau", cost: str = "drafted"
) -> pd.DataFrame:
    """Returns the means of two columns by parameters, and which combinations nothing beats.

    Args:
        found: of :func:`frame`.
        by: columns, such as ``["tree"]``.
        value: the column of which more is better.
        cost: the column of which less is better: ``drafted``, or ``cost`` where times were noted.

    Returns:
        Columns ``by``; of both columns their own name, ``NAME_low`` and ``NAME_high``; ``prompts``;
        and ``front``: no other combination has as large a value at as small a cost, and is better
        in one of them.

    Raises:
        SweepError: as :func:`summary`, or both are one column.
    """
    if value == cost:
        raise SweepError(f"value and cost are two columns, got {value} twice")
    parts = [
        summary(found, by, name)
        .rename(columns={middle_of(name): name, "low": f"{name}_low", "high": f"{name}_high"})
        .drop(columns="runs")
        for name in (value, cost)
    ]
    both = parts[0].merge(parts[1].drop(columns="prompts"), on=list(by), how="inner")
    both["front"] = pareto(both.assign(less=-both[cost]), value, "less")
    return both.sort_values(cost).reset_index(drop=True)


def pareto(found: pd.DataFrame, first: str, second: str) -> pd.Series:
    """Says of every row whether no other is at least as large in both columns and larger in one."""
    a, b = (found[name].to_numpy(dtype=float) for name in (first, second))
    known = ~(np.isnan(a) | np.isnan(b))
    worse = (a[:, None] <= a) & (b[:, None] <= b) & ((a[:, None] < a) | (b[:, None] < b))
    return pd.Series(known & ~worse.any(1), index=found.index)


def spelled(value: Any) -> str:
    """A parameter's value for a table, "" where the method has no such option."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float | np.number) else spell(value)
