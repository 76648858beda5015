"""Machine cards: what a device does a second, and what a kernel costs beside its work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from specwb.cost.shapes import PredictionError, tables
from specwb.files import home, toml
from specwb.inputs import real

UNITS = {
    "bandwidth": 1e9,
    "half": 1e12,
    "single": 1e12,
    "node": 1e-6,
    "launch": 1e-6,
    "graph": 1e-6,
    "read": 1e-6,
    "search": 1e-6,
    "block_share": 1.0,
    "link": 1e9,
    "exchange": 1e-6,
}
"""Ranges of a card, and what one of their units is in bytes, operations or seconds."""
ZERO = {"node", "launch", "graph", "read", "search", "link", "exchange"}
"""Ranges that may be zero."""
MOST_SMS = 10_000
SIZES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes a number."""
NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
"""Number types by torch's names."""


@dataclass(frozen=True)
class Machine:
    """One value of every quantity, or an array of drawn ones; bytes, operations and seconds."""

    sms: int  # streaming multiprocessors
    bandwidth: Any  # bandwidth, link: bytes/s of the memory, and between devices
    peak: Any  # operations/s of products
    # node, launch, graph, read, search, exchange: seconds, as in ``data/predict/cards.toml``
    node: Any
    launch: Any
    graph: Any
    read: Any
    search: Any
    block_share: Any  # how many even shares of the bandwidth a block draws
    link: Any
    exchange: Any


@dataclass(frozen=True)
class Card:
    """A device with a range for every quantity."""

    name: str  # of the device
    source: str  # where its numbers are from
    memory: float  # GiB
    sms: int  # streaming multiprocessors
    bf16: bool  # whether products of bf16 have units of their own
    # (low, typical, high) by the names of :data:`UNITS`
    ranges: dict[str, tuple[float, float, float]]

    def typical(self, dtype: str) -> Machine:
        """The machine with every quantity at its typical value."""
        return self._machine(dtype, {name: values[1] for name, values in self.ranges.items()})

    def drawn(self, dtype: str, draws: int, seed: int = 0) -> Machine:
        """Machines drawn from the ranges: each quantity on its own, half of them evenly between
        low and typical, half between typical and high, so that the typical value is the median.
        """
        rng = np.random.default_rng(seed)
        values: dict[str, Any] = {}
        for name in UNITS:
            values[name] = np.interp(rng.random(draws), (0.0, 0.5, 1.0), self.ranges[name])
        return self._machine(dtype, values)

    def _machine(self, dtype: str, values: dict[str, Any]) -> Machine:
        self.check(dtype)
        own = {name: value * UNITS[name] for name, value in values.items()}
        half, single = own.pop("half"), own.pop("single")
        return Machine(self.sms, peak=single if dtype == "fp32" else half, **own)

    def check(self, dtype: str) -> None:
        """Raises PredictionError: an unknown dtype, or one that the device has no units for."""
        if dtype not in SIZES:
            raise PredictionError(f"dtype must be one of {', '.join(SIZES)}, got {dtype!r}")
        if dtype == "bf16" and not self.bf16:
            raise PredictionError(f"{self.name} has no bf16: give --dtype fp16")


@cache
def known() -> dict[str, Card]:
    """The cards of ``data/predict/cards.toml``."""
    return {name: _card(name, table, f"card {name}") for name, table in tables("cards").items()}


def card(source: str | Path) -> Card:
    """Find a card by its name, or read one from a TOML file with the same keys."""
    name = str(source)
    if name.lower() in known():
        return known()[name.lower()]
    path = home(source)
    if not path.is_file():
        raise PredictionError(
            f"no card {name!r}: give one of {', '.join(known())}, or a TOML file with the keys of "
            "data/predict/cards.toml"
        )
    content, _ = toml(path, PredictionError)
    return _card(path.stem, content, str(path))


def _card(name: str, table: dict[str, Any], where: str) -> Card:
    plain = {"source", "memory", "sms", "bf16"}
    if unknown := sorted(set(table) - plain - set(UNITS)):
        raise PredictionError(f"{where}: unknown key {unknown[0]!r}")
    if missing := [key for key in (*sorted(plain), *UNITS) if key not in table]:
        raise PredictionError(f"{where}: {missing[0]} is missing")
    if not isinstance(table["bf16"], bool):
        raise PredictionError(f"{where}: bf16 must be true or false, got {table['bf16']!r}")
    sms = table["sms"]
    if isinstance(sms, bool) or not isinstance(sms, int) or not 1 <= sms <= MOST_SMS:
        raise PredictionError(f"{where}: sms must be a whole number in 1..{MOST_SMS}, got {sms!r}")
    memory = real(f"{where}: memory", table["memory"], PredictionError)
    if not 0 < memory < math.inf:
        raise PredictionError(f"{where}: memory must be a number of GiB > 0, got {memory:g}")
    ranges = {key: _range(f"{where}: {key}", key, table[key]) for key in UNITS}
    return Card(name, str(table["source"]), memory, sms, table["bf16"], ranges)


def _range(where: str, key: str, value: Any) -> tuple[float, float, float]:
    values = value if isinstance(value, list) else [value] * 3
    if len(values) == 3:
        low, typical, high = (real(where, number, PredictionError) for number in values)
        least = low >= 0 if key in ZERO else low > 0
        if least and low <= typical <= high < math.inf:
            return low, typical, high
    bound = ">= 0" if key in ZERO else "> 0"
    raise PredictionError(
        f"{where} must be a finite number {bound} or [low, typical, high], got {value}"
    )
