"""The configurations of a sweep, made of axes.

A configuration is a flat table of names: ``method``, its options, and what every decoding has
(:data:`SHARED`). An axis is a name with several values. A block of axes belongs to one method, or
to several that have the same options; so an option can have values in one block that it has not in
another.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specwb.core.files import home, toml
from specwb.core.inputs import integer, is_many
from specwb.core.options import REQUIRED, spell
from specwb.core.probability import Sampling
from specwb.core.tree import Tree
from specwb.engine.methods import read_spec
from specwb.lab.sweeps.results import SHARED, SweepError

DEFAULTS = dict(zip(SHARED, (0.0, 0, 1.0, 0, 64), strict=True))
MOST = 100_000
"""Configurations of a sweep: a thousand times as many as anybody measures in a day."""

SweepBlock = Mapping[str, Any]
"""Names, each with one value or several (a list or range); ``method`` must be among them."""
Configuration = dict[str, Any]
"""One setting of everything, by name."""


def shapes(nodes: int, least: int = 2, depth: int = 8) -> list[str]:
    """List the shapes ``k1-k2-..`` of draft trees within a budget, the narrowest first.

    A shape has ``1 + k1 + k1 k2 + ..`` nodes; every level branches at most as much as the one above
    it. ``shapes(5)`` is 1, 1-1, 1-1-1, 1-1-1-1, 2, 2-1, 3 and 4.

    Args:
        nodes: most nodes of a tree, the root counted: tokens that the target verifies in a step.
        least: fewest nodes.
        depth: most levels below the root.

    Raises:
        SweepError: there is no such tree.
    """
    integer("nodes", nodes, 2, 1024)
    integer("least", least, 2, nodes)
    integer("depth", depth, 1)

    def grown(shape: tuple[int, ...], level: int, size: int) -> Iterator[tuple[int, ...]]:
        if shape and size >= least:
            yield shape
        for k in range(1, 1 + (min(shape) if shape else nodes)):
            if len(shape) == depth or size + level * k > nodes:
                break
            yield from grown((*shape, k), level * k, size + level * k)

    listed = ["-".join(map(str, shape)) for shape in grown((), 1, 1)]
    if not listed:
        raise SweepError(f"no tree has {least} to {nodes} nodes in {depth} levels")
    return listed


def configurations(blocks: Sequence[SweepBlock]) -> list[Configuration]:
    """Make all configurations of blocks of axes, each once, in a fixed order, with their defaults.

    Raises:
        SweepError: there is none, there are more than :data:`MOST`, or a value that cannot be.
        MethodError: an unknown method or option, or an option's value that cannot be.
    """
    if not is_many(blocks) or not all(isinstance(block, Mapping) for block in blocks):
        raise SweepError(f"blocks must be a list of tables, got {blocks!r}")
    axes = [{name: _values(x) for name, x in block.items()} for block in blocks]
    count = sum(math.prod(map(len, block.values())) for block in axes)
    if not 0 < count <= MOST:
        raise SweepError(f"the axes make {count} configurations, a sweep has 1 to {MOST}")
    unique = {}
    for block in axes:
        for values in itertools.product(*block.values()):
            one = checked(dict(zip(block, values, strict=True)))
            unique[json.dumps(one, sort_keys=True)] = one
    return list(unique.values())


def _values(value: Any) -> Sequence[Any]:
    """The values of an axis: of a list, a range or an array each, of anything else itself."""
    if isinstance(value, list | range | np.ndarray):
        return [x.item() if isinstance(x, np.generic) else x for x in value]
    return [value]


def checked(configuration: SweepBlock) -> Configuration:
    """Return a configuration with its defaults, in one spelling; what needs no model is checked."""
    one = {**DEFAULTS, **configuration}
    if not isinstance(one.get("method"), str):
        raise SweepError(f"a configuration needs a method, got {dict(configuration)}")
    entry, _, options = read_spec(one["method"], one.get("rule"), options_of(one))
    for name, least in (("seed", 0), ("max_new_tokens", 1)):
        one[name] = integer(name, one[name], least)
    sampling = Sampling(one["temperature"], one["top_k"], one["top_p"])  # one that is greedy is 0
    one |= {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")}
    for name, option in entry.options.items():
        value = options.get(name)
        if value is not None:
            one[name] = option.check(entry.key, value)
        elif option.default is not REQUIRED and option.default is not None:
            one[name] = option.default
    return {name: spell(x) if isinstance(x, Tree | Path) else x for name, x in one.items()}


def options_of(configuration: SweepBlock) -> dict[str, Any]:
    """Return the method's options among a configuration's names."""
    others = {*SHARED, "method", "rule"}
    return {name: x for name, x in configuration.items() if name not in others and x is not None}


def with_plain(rows: Sequence[Configuration]) -> list[Configuration]:
    """Add plain decoding with the sampling and seed of every configuration, at the front."""
    plain = [{"method": "ar", **{name: one[name] for name in SHARED}} for one in rows]
    unique = {json.dumps(one, sort_keys=True): one for one in plain}
    return [*unique.values(), *(one for one in rows if one["method"] != "ar")]


@dataclass(frozen=True)
class SweepFile:
    """The content of a sweep's TOML file."""

    methods: list[Configuration]  # blocks of axes, those of all methods among them
    target: str = "lab"  # the target's name or folder
    prompts: str = "lab"  # a prompt set's name, or a file
    first: int | None = None  # number of its prompts, None for all


_KEYS = {"target": str, "prompts": str, "first": int, "axes": dict, "methods": list}


def read(path: Path) -> SweepFile:
    """Read a TOML file::

        target = "lab"
        prompts = "lab"
        first = 12

        [axes]                      # of all methods
        temperature = [0, 1]
        seed = [0, 1, 2]

        [[methods]]                 # a block
        method = "kangaroo"
        eta = [0, 0.3, 0.6]

        [[methods]]
        method = "mcsd"
        tree = { nodes = 16, least = 12, depth = 4 }    # all shapes of 12 to 16 nodes

    Raises:
        SweepError: no such file, no TOML, an unknown key, or a configuration that cannot be; the
            message names the file and the block.
    """
    path = home(path)
    content, _ = toml(path, SweepError)
    for key, value in content.items():
        if not isinstance(value, _KEYS.get(key, ())) or isinstance(value, bool):
            keys = ", ".join(f"{name} ({kind.__name__})" for name, kind in _KEYS.items())
            raise SweepError(f"{path}: {key} cannot be {value!r}; a sweep has {keys}")
    if content.get("first", 1) < 1:
        raise SweepError(f"{path}: first must be >= 1, got {content['first']}")
    shared = content.pop("axes", {})
    blocks = []
    for number, block in enumerate(content.pop("methods", []), 1):
        try:
            axes = {name: _axis(value) for name, value in {**shared, **block}.items()}
            configurations([axes])
        except (ValueError, TypeError) as error:
            raise SweepError(f"{path}, [[methods]] number {number}: {error}") from error
        blocks.append(axes)
    if not blocks:
        raise SweepError(f"{path}: it needs at least one [[methods]] with a method")
    return SweepFile(blocks, **content)


def _axis(value: Any) -> Any:
    """The values of an axis in a file, where a table stands for shapes of trees."""
    return shapes(**value) if isinstance(value, dict) else value
