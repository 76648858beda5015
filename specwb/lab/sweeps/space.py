"""What a sweep goes through: configurations, made of axes.

A configuration is a flat table of names: ``method``, its options, and what every decoding has
(:data:`SHARED`). An axis is a name with several values. A block of axes belongs to one method, or
to several that have the same options; so an option can have values in one block that it has not in
another.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specwb.core.errors import SpecwbError
from specwb.core.files import home, toml
from specwb.core.inputs import integer, real
from specwb.core.options import REQUIRED, spell
from specwb.core.probability import Sampling
from specwb.core.tree import Tree
from specwb.engine.methods import read_spec

SHARED: dict[str, Any] = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "seed": 0,
    "max_new_tokens": 64,
}
"""What every decoding has, with its default."""

METRICS = ("tau", "accepted", "drafted", "tokens_per_second", "speedup", "cost", "identical")
"""What is measured, as :func:`specwb.lab.sweeps.results.frame` names it."""

MOST = 100_000
"""Configurations of a sweep: a thousand times as many as anybody measures in a day."""

Configuration = dict[str, Any]
"""One setting of everything, by name."""


def shapes(nodes: int, least: int = 2, depth: int = 8) -> list[str]:
    """Lists the shapes ``k1-k2-..`` of draft trees within a budget, the narrowest first.

    A shape has ``1 + k1 + k1 k2 + ..`` nodes; every level branches at most as much as the one above
    it. ``shapes(5)`` is 1, 1-1, 1-1-1, 1-1-1-1, 2, 2-1, 3 and 4.

    Args:
        nodes: most nodes of a tree, the root counted: tokens that the target verifies in a step.
        least: fewest nodes.
        depth: most levels below the root.

    Raises:
        SweepError: there is no such tree.
    """
    integer("nodes", nodes, 2, 1024, kind=SweepError)
    integer("least", least, 2, nodes, kind=SweepError)
    integer("depth", depth, 1, kind=SweepError)

    def grown(shape: tuple[int, ...], level: int, size: int) -> Iterator[tuple[int, ...]]:
        if shape and size >= least:
            yield shape
        for k in range(1, 1 + (min(shape) if shape else nodes)):
            if len(shape) == depth or size + level * k > nodes:
                break
            yield from grown((*shape, k), level * k, size + level * k)

    found = ["-".join(map(str, shape)) for shape in grown((), 1, 1)]
    if not found:
        raise SweepError(f"no tree has {least} to {nodes} nodes in {depth} levels")
    return found


class SweepError(SpecwbError, ValueError):
    """A sweep that cannot be run, or results that cannot be read."""


@dataclass(frozen=True)
class Range:
    """Numbers to draw from: uniform between two ends, or uniform in their logarithm.

    Attributes:
        low, high: the ends. If both are integers, integers are drawn, both ends among them.
        log: whether logarithms are uniform.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        real("low", self.low, SweepError)
        real("high", self.high, SweepError)
        if not isinstance(self.log, bool):
            raise SweepError(f"log must be true or false, got {self.log!r}")
        if not -math.inf < self.low < self.high < math.inf or (self.log and self.low <= 0):
            least = "0 < low < high < inf" if self.log else "-inf < low < high < inf"
            raise SweepError(f"a range must have {least}, got {self.low} and {self.high}")

    @property
    def is_whole(self) -> bool:
        """Whether integers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def draw(self, u: float) -> float | int:
        """The number at the share ``u`` in [0, 1) of the range."""
        low, high = float(self.low), float(self.high) + self.is_whole
        value = low * (high / low) ** u if self.log else low + (high - low) * u
        return int(value) if self.is_whole else value


@dataclass(frozen=True)
class Space:
    """Blocks of axes.

    Attributes:
        blocks: each a table of names with one value, several (a list), or a :class:`Range`.
            ``method`` must be among them. ``train`` is a table of the same kind: settings of the
            training of the method's head, which is then trained for the sweep.
        samples: how many configurations are drawn of all blocks together; None takes all. A block
            with a Range must be drawn from.
        seed: of the drawing.
    """

    blocks: Sequence[Mapping[str, Any]]
    samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        several = isinstance(self.blocks, Sequence) and not isinstance(self.blocks, str)
        if not several or not all(isinstance(block, Mapping) for block in self.blocks):
            raise SweepError(f"blocks must be a list of tables, got {self.blocks!r}")
        object.__setattr__(self, "blocks", [flat(block) for block in self.blocks])

    def configurations(self) -> list[Configuration]:
        """All configurations, or ``samples`` of them, each once, in a fixed order.

        Raises:
            SweepError: there is none, there are more than :data:`MOST`, a value that cannot be, or
                ranges without ``samples``.
        """
        integer("seed", self.seed, 0, kind=SweepError)
        # counted before any of them is made
        count = sum(math.prod(map(_size, block.values())) for block in self.blocks)
        if self.samples is not None:
            integer("samples", self.samples, 1, MOST, kind=SweepError)
        elif MOST < count < math.inf:
            raise SweepError(
                f"the axes make {count} configurations, a sweep has {MOST} at most: give fewer "
                "values, or samples, how many are drawn"
            )
        if self.samples is None or count <= self.samples:
            found = [one for block in self.blocks for one in _grid(block, self.samples is not None)]
        else:
            found = list(self._drawn(self.samples))
        if not found:
            raise SweepError("there is nothing to sweep: some axis has no value")
        unique = {_key(one): one for one in map(checked, found)}
        return list(unique.values())

    def _drawn(self, samples: int) -> Iterator[Configuration]:
        """Draws without replacement from what is finite, and as often as it takes."""
        rng = np.random.default_rng(self.seed)
        seen: set[str] = set()
        blocks = [
            {name: x if isinstance(x, Range) else _values(x) for name, x in block.items()}
            for block in self.blocks
        ]
        for _ in range(100 * samples):
            block = blocks[int(rng.integers(len(blocks)))]
            one = {
                name: value.draw(float(rng.random()))
                if isinstance(value, Range)
                else value[int(rng.integers(len(value)))]
                for name, value in block.items()
            }
            key = _key(one)
            if key not in seen:
                seen.add(key)
                yield one
            if len(seen) == samples:
                return


def _key(one: Mapping[str, Any]) -> str:
    return json.dumps(one, sort_keys=True, default=spell)


def flat(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block whose table ``train`` is written ``train.loss``, ``train.seed``, .."""
    train = block.get("train", {})
    if not isinstance(train, Mapping):
        raise SweepError(f"train is a table of settings of training, got {train!r}")
    axes = {name: value for name, value in block.items() if name != "train"}
    return axes | {f"train.{name}": value for name, value in train.items()}


def _values(value: Any) -> Sequence[Any]:
    """The values of an axis: of a list, a range or an array each, of anything else itself."""
    if isinstance(value, range):
        return value
    if isinstance(value, list | np.ndarray):
        return [x.item() if isinstance(x, np.generic) else x for x in value]
    return [value]


def _size(value: Any) -> float:
    """How many values an axis has; of a range of real numbers infinitely many."""
    if isinstance(value, Range):
        return value.high - value.low + 1 if value.is_whole else math.inf
    return len(_values(value))


def _grid(block: Mapping[str, Any], ranges: bool = False) -> Iterator[Configuration]:
    """Every combination of a block's values; with ``ranges`` of integers of all integers in it."""
    for name, value in block.items():
        if isinstance(value, Range) and not ranges:
            raise SweepError(f"{name} is a range: say how many samples are drawn")
    axes = [
        range(int(x.low), int(x.high) + 1) if isinstance(x, Range) else _values(x)
        for x in block.values()
    ]
    for values in itertools.product(*axes):
        yield dict(zip(block, values, strict=True))


def _each_value(block: Mapping[str, Any]) -> Iterator[Configuration]:
    """Configurations in which every value of a block, and both ends of a range, stands once at
    least."""
    axes = {
        name: [x.draw(0.0), x.draw(1 - 1e-9)] if isinstance(x, Range) else _values(x)
        for name, x in block.items()
    }
    first = {name: values[0] for name, values in axes.items() if len(values)}
    for name, values in axes.items():
        yield from ({**first, name: value} for value in values)


def checked(configuration: Mapping[str, Any]) -> Configuration:
    """A configuration with its defaults, in one spelling; what needs no model is checked."""
    one = {**SHARED, **configuration}
    if not isinstance(one.get("method"), str):
        raise SweepError(f"a configuration needs a method, got {configuration}")
    entry, _, options = read_spec(one["method"], one.get("rule"), options_of(one))
    one["temperature"] = real("temperature", one["temperature"], SweepError)
    one["top_p"] = real("top_p", one["top_p"], SweepError)
    for name, least in (("top_k", 0), ("seed", 0), ("max_new_tokens", 1)):
        one[name] = integer(name, one[name], least, kind=SweepError)
    sampling = Sampling(one["temperature"], one["top_k"], one["top_p"])
    one["temperature"] = sampling.temperature  # one that is greedy is 0
    for name, option in entry.options.items():
        value = options.get(name)
        if value is not None:
            one[name] = option.check(entry.key, value)
        elif option.default is not REQUIRED and option.default is not None:
            one[name] = option.default
    return {name: spell(x) if isinstance(x, Tree) else x for name, x in one.items()}


def options_of(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The method's options among a configuration's names."""
    others = {*SHARED, "method", "rule"}
    return {
        name: value
        for name, value in configuration.items()
        if name not in others and value is not None and not name.startswith("train.")
    }


def blocks(rows: Sequence[Configuration]) -> list[dict[str, list[Any]]]:
    """Writes configurations as a few blocks of axes whose grids are together the same."""
    groups: dict[tuple[str, ...], list[Configuration]] = {}
    for one in rows:
        groups.setdefault((one["method"], *sorted(one)), []).append(one)
    return [block for group in groups.values() for block in _parted(group)]


def _parted(rows: Sequence[Configuration]) -> list[dict[str, list[Any]]]:
    """One block if configurations of the same names are a whole grid; otherwise they are parted by
    the name that leaves the fewest parts that are none."""
    axes = {name: list(dict.fromkeys(one[name] for one in rows)) for name in rows[0]}
    if math.prod(map(len, axes.values())) == len({_key(one) for one in rows}):
        return [axes]
    ways = [
        [_parted([one for one in rows if one[name] == value]) for value in axes[name]]
        for name in axes
        if len(axes[name]) > 1
    ]
    found: list[dict[str, list[Any]]] = []
    for block in itertools.chain(*min(ways, key=lambda parts: sum(map(len, parts)))):
        for other in found:  # that differs in one name takes its value in
            names = [name for name in block if block[name] != other[name]]
            if len(names) == 1:
                other[names[0]] += block[names[0]]
                break
        else:
            found.append(block)
    return found


def written(found: Sequence[Mapping[str, Sequence[Any]]]) -> str:
    """Writes blocks as the ``[[methods]]`` of a file that :func:`read` reads."""
    lines = []
    for block in found:
        lines += ["", "[[methods]]"]
        for name, values in block.items():
            # what JSON writes of texts, numbers and booleans is TOML
            value = values[0] if len(values) == 1 else list(values)
            lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class SweepFile:
    """A sweep as a file says it."""

    space: Space  # its configurations
    target: str = "lab"  # the target's name or folder
    prompts: str = "lab"  # a prompt set's name, or a file
    first: int | None = None  # how many prompts of it, None for all


_KEYS: dict[str, type] = {
    "target": str,
    "prompts": str,
    "first": int,
    "samples": int,
    "seed": int,
    "axes": dict,
    "methods": list,
}


def read(path: Path) -> SweepFile:
    """Reads a TOML file::

        target = "lab"
        prompts = "lab"
        first = 12

        [axes]                      # of all methods
        temperature = [0, 1]
        seed = [0, 1, 2]

        [[methods]]                 # a block
        method = "kangaroo"
        eta = [0, 0.3, 0.6]
        gamma = { low = 2, high = 8 }   # only with samples = .. above

        [[methods]]
        method = "mcsd"
        tree = { nodes = 16, least = 12, depth = 4 }    # all shapes of 12 to 16 nodes

    Raises:
        SweepError: no such file, no TOML, an unknown key, or a configuration that cannot be; the
            message names the line.
    """
    path = home(path)
    table, content = toml(path, SweepError)

    def refuse(line: int, problem: object) -> SweepError:
        return SweepError(f"{path}, line {line}: {problem}")

    for key, value in table.items():
        line = _line(content, key)
        if key not in _KEYS:
            raise refuse(line, f"unknown key {key!r}; it has {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]) or isinstance(value, bool):
            raise refuse(line, f"{key} cannot be {value!r}")
        least = {"first": 1, "samples": 1, "seed": 0}.get(key)
        if least is not None and table[key] < least:
            raise refuse(line, f"{key} must be >= {least}, got {value}")
    methods = table.get("methods")
    if not methods or not all(isinstance(block, dict) for block in methods):
        raise SweepError(f"{path}: it needs at least one [[methods]] with a method")
    blocks = []
    for number, block in enumerate(methods):
        try:
            own = flat({**table.get("axes", {}), **block})
            parts = {name: _axis(name, value) for name, value in own.items()}
            blocks.append(parts)
            if "samples" not in table:
                ranges = [name for name, value in parts.items() if isinstance(value, Range)]
                if ranges:
                    raise SweepError(f"{ranges[0]} is a range: say how many samples are drawn")
            for one in _each_value(parts):
                checked(one)
        except ValueError as error:
            words = re.findall(r"[\w.]+", str(error))
            named = next((name for name in block if name in words and name != "method"), "method")
            raise refuse(_line(content, named, number), error) from error
    space = Space(blocks, table.get("samples"), table.get("seed", 0))
    try:
        space.configurations()
    except ValueError as error:
        raise SweepError(f"{path}: {error}") from error
    place = table.get("target", "lab"), table.get("prompts", "lab")
    return SweepFile(space, *place, table.get("first"))


def _axis(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "nodes" in value and not set(value) - {"nodes", "least", "depth"}:
        try:
            return shapes(**value)
        except SweepError as error:
            raise SweepError(f"{name}: {error}") from error
    if set(value) - {"low", "high", "log"} or not {"low", "high"} <= set(value):
        raise SweepError(f"a range is written {{ low = .., high = .., log = true }}, got {value}")
    return Range(**value)


def _line(content: str, key: str, block: int | None = None) -> int:
    """The line of a file that a key stands in, in the n-th [[methods]] if that is given."""
    lines = content.splitlines()
    starts = [i for i, line in enumerate(lines) if line.strip().startswith("[[methods")]
    first = 0 if block is None or block >= len(starts) else starts[block]
    for start in (first, 0):
        for number in range(start, len(lines)):
            words = re.findall(r"[\w.]+", lines[number].partition("#")[0])
            if words[:1] == [key] or f"{{ {key}" in lines[number]:
                return number + 1
    return first + 1
