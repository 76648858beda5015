"""Times by a roofline with launches, and the speedup that follows from an acceptance.

A kernel takes the longer of moving its bytes and of computing. Captured, every node of a graph
adds its own time; launched eagerly, a stage takes as long as the device or as the launches,
whatever is longer, since the processor runs ahead of the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from specwb.analysis import reach
from specwb.cost.cards import NAMES, SIZES, Card, Machine
from specwb.cost.shapes import PredictionError, Shape
from specwb.cost.steps import Step, draft_kind, step
from specwb.cost.work import ATTENTION, EXCHANGE, Kernel, Setting
from specwb.files import from_json, home
from specwb.inputs import integer, real
from specwb.models.layers import parts_of

CAPTURED, EAGER = "captured", "library-eager"
MODES = (CAPTURED, EAGER)
DRAWS = 2000
"""Machines that an interval is made of."""
INTERVAL = (5.0, 95.0)
"""Percentiles of an interval."""


def kernel_seconds(kernel: Kernel, machine: Machine, mode: str = CAPTURED) -> Any:
    """Time of the work of ``kernel.count`` kernels: ``max(bytes / bandwidth, flops / peak)`` each.

    Attention in this engine takes no less than a block does that reads with its share of the
    bandwidth; exchanges take their own time and that of their bytes on a link.
    """
    if kernel.kind == EXCHANGE:
        return kernel.count * (machine.exchange + kernel.bytes / machine.link)
    seconds = np.maximum(kernel.bytes / machine.bandwidth, kernel.flops / machine.peak)
    if kernel.kind == ATTENTION and mode == CAPTURED and kernel.blocks:
        # blocks beyond one a multiprocessor only share what there is
        own = machine.block_share * machine.bandwidth / machine.sms
        seconds = np.maximum(seconds, kernel.block_bytes / _parts(kernel, machine) / own)
    return kernel.count * seconds


def _parts(kernel: Kernel, machine: Machine) -> int:
    """In how many parts this engine attends to the keys of a text."""
    return parts_of(kernel.keys, kernel.blocks, 1, machine.sms) if kernel.keys else 1


def graph_nodes(kernel: Kernel, machine: Machine) -> float:
    """What it takes in a graph of this engine; joining parts of keys takes four nodes."""
    return kernel.count * (kernel.nodes + 4 * (_parts(kernel, machine) > 1))


@dataclass(frozen=True)
class Part:
    """A row of the table of times."""

    stage: str  # what it is for
    # products, attention, small kernels, exchanges; nodes, launches, graphs, reads and search
    kind: str
    seconds: Any  # a number, or an array of drawn ones
    bytes: float = 0.0  # bytes, flops: of all its kernels
    flops: float = 0.0
    number: float = 0.0  # kernels, or what is launched


def parts(own: Step, machine: Machine, mode: str) -> list[Part]:
    """The time of a step, part by part; what a step takes is the sum."""
    if mode not in MODES:
        raise PredictionError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    rows: list[Part] = []
    for stage, kernels in own.stages.items():
        working: Any = 0.0
        for kind in dict.fromkeys(kernel.kind for kernel in kernels):
            chosen = [kernel for kernel in kernels if kernel.kind == kind]
            seconds = sum((kernel_seconds(kernel, machine, mode) for kernel in chosen), 0.0)
            working = working + seconds
            moved = sum(kernel.count * kernel.bytes for kernel in chosen)
            flops = sum(kernel.count * kernel.flops for kernel in chosen)
            number = sum(graph_nodes(kernel, machine) for kernel in chosen)
            rows.append(Part(stage, kind, seconds, moved, flops, number))
        if mode == CAPTURED:
            nodes = sum(graph_nodes(kernel, machine) for kernel in kernels)
            rows.append(Part(stage, "nodes", nodes * machine.node, number=nodes))
        else:
            launches = sum(kernel.count * kernel.launches for kernel in kernels)
            waiting = np.maximum(launches * machine.launch - working, 0.0)
            rows.append(Part(stage, "waiting for launches", waiting, number=launches))
    if mode == CAPTURED:
        rows.append(Part("host", "graphs", own.replays * machine.graph, number=own.replays))
    rows.append(Part("host", "reads", own.reads * machine.read, number=own.reads))
    if own.searched:
        rows.append(Part("host", "search", own.searched * machine.search, number=own.searched))
    return rows


def seconds(own: Step, machine: Machine, mode: str = CAPTURED) -> Any:
    """The time of a step: the sum of :func:`parts`."""
    return sum((part.seconds for part in parts(own, machine, mode)), 0.0)


def acceptance(given: str, depth: int, key: str) -> list[float]:
    """Read acceptance rates by depth.

    The rate of depth d is the probability that one of a node's candidates at depth d is accepted,
    given that depth d - 1 was reached.

    Args:
        given: a rate for all depths (``0.7``), rates by depth (``0.8,0.7,0.6``; the depth's number
            of them), or a file that ``specwb compare --json`` wrote.
        depth: of the draft.
        key: the method, or its spec, as the file calls it.
    Raises:
        PredictionError: none of these, too few rates, or a rate outside 0..1.
    """
    path = home(given)
    if path.is_file():
        rates = _measured(path, key)
    else:
        try:
            rates = [float(part) for part in given.split(",")]
        except ValueError:
            raise PredictionError(
                f"--accept must be a rate, rates by depth (0.8,0.7) or a file of specwb compare "
                f"--json, got {given!r}"
            ) from None
        rates = rates * depth if len(rates) == 1 else rates
    if len(rates) < depth:
        raise PredictionError(
            f"--accept has rates for {len(rates)} depths, the draft of {key} has {depth}"
        )
    for rate in rates[:depth]:
        if not 0 <= rate <= 1:
            raise PredictionError(f"--accept: a rate must be in 0..1, got {rate:g}")
    return rates[:depth]


def _measured(path: Path, key: str) -> list[float]:
    try:
        content = from_json(path.read_bytes())
        table = content["acceptance_by_depth"]
        names = [name for name in table if name == key or name.partition(":")[0] == key]
        chosen = table[key] if key in table else table[names[0]]
        return [accepted / tested for accepted, tested in chosen if tested]
    except OSError as error:
        raise PredictionError(f"{path}: {error.strerror}") from error
    except IndexError:
        there = ", ".join(table) or "nothing"
        raise PredictionError(f"{path} has no acceptance of {key}; it has {there}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PredictionError(f"{path} holds no result of specwb compare --json") from error


@dataclass(frozen=True)
class Forecast:
    """What is predicted of a method."""

    spec: str  # spec, mode: what was asked
    mode: str
    table: list[Part] = field(repr=False)  # the step's time by part, at the card's typical values
    # step, plain: seconds of a step and of plain decoding's, medians over the card's ranges
    step: float
    plain: float
    # step_interval, plain_interval, needed_interval, speedup_interval, tokens_interval: of these,
    # over the card's ranges; of what :func:`specwb.cost.forecast` returns, with the model's error
    step_interval: tuple[float, float]
    plain_interval: tuple[float, float]
    tau: float | None  # tokens a step; None where no acceptance is given
    depth: int  # depth, nodes: of the draft
    nodes: int
    needed: float  # tau from which on the method is faster than plain decoding
    needed_interval: tuple[float, float]
    # speedup, tokens_per_second: medians over the card's ranges, None without tau
    speedup: float | None
    speedup_interval: tuple[float, float] | None
    tokens_per_second: float | None
    tokens_interval: tuple[float, float] | None
    memory: float  # GiB of weights and caches a device

    def widened(self, error: float) -> Forecast:
        """The forecast with intervals of ``value exp(-error)`` to ``value exp(error)`` at least.

        Plain decoding is as fast as itself, whatever the error.
        """
        ratio = error if self.depth else 0.0
        return replace(
            self,
            step_interval=wider(self.step, self.step_interval, error),
            plain_interval=wider(self.plain, self.plain_interval, error),
            # a step writes one token at least
            needed_interval=tuple(
                max(1.0, x) for x in wider(self.needed, self.needed_interval, ratio)
            ),
            speedup_interval=wider(self.speedup, self.speedup_interval, ratio),
            tokens_interval=wider(self.tokens_per_second, self.tokens_interval, error),
        )


def wider(value: Any, interval: Any, error: float) -> Any:
    """The interval, or what lies within ``error`` of log(value), whichever goes further."""
    if value is None:
        return None
    return min(interval[0], value * math.exp(-error)), max(interval[1], value * math.exp(error))


def from_card(
    spec: str,
    target: Shape,
    card: Card,
    *,
    draft: Shape | None = None,
    dtype: str = "bf16",
    batch: int = 1,
    context: int = 2048,
    mode: str = CAPTURED,
    accept: str | None = None,
    tau: float | None = None,
    temperature: float = 0.0,
    devices: int = 1,
    drafted: float | None = None,
) -> Forecast:
    """Predict a step's time and, from an acceptance, the speedup over plain decoding.

    ``speedup = tau t_plain / t_step``, both on the same machine and in the same mode. The intervals
    are over the ranges of the card alone (:data:`DRAWS` machines, quantities drawn independently,
    5th to 95th percentile): acceptance is taken as given. :func:`specwb.cost.forecast` has what the
    model leaves out in its intervals too.

    Args:
        spec: a method with its options.
        target: the target's shape.
        card: the machine.
        draft: the draft model's shape, where the method has one.
        dtype: of all weights: bf16, fp16 or fp32.
        batch: texts decoded together.
        context: tokens of each text.
        mode: captured or library-eager.
        accept: as :func:`acceptance` has it.
        tau: tokens a step, in place of ``accept``.
        temperature: above 0 a step has the kernels of sampling.
        devices: that the target is parted over.
        drafted: mean number of tokens that a method which may stop early drafts, not with
            ``accept``; default all. Its time lies between those of the two nearest numbers.
    Raises:
        PredictionError: an argument that nothing can be predicted from, or models that do not fit
            on the card.
    """
    dtype = NAMES.get(dtype, dtype)
    card.check(dtype)
    for name, value in (("batch", batch), ("context", context), ("devices", devices)):
        integer(name, value, 1, kind=PredictionError)
    if accept is not None and tau is not None:
        raise PredictionError("give an acceptance or tau, not both")
    if accept is not None and drafted is not None:
        raise PredictionError(
            "--drafted goes with --tau or alone: a draft ends where it is unsure, so what is "
            "accepted of fewer tokens does not follow from rates by depth"
        )
    if not 0 <= real("temperature", temperature, PredictionError) < math.inf:
        raise PredictionError(f"temperature must be a number >= 0, got {temperature:g}")
    if devices > 1 and card.ranges["link"][1] == 0:
        raise PredictionError(f"{card.name} has no NVLink: devices must be 1, got {devices}")
    for name in ("heads", "kv_heads", "intermediate"):
        if (size := getattr(target, name)) % devices:
            raise PredictionError(
                f"devices must divide the target's heads, kv_heads and intermediate: {devices} "
                f"does not divide {name}={size} of {target.name}"
            )
    setting = Setting(batch, context, SIZES[dtype])
    how = setting, temperature > 0, devices
    own = step(spec, target, draft, *how)
    if draft is not None and not draft_kind(spec):
        key = spec.partition(":")[0]
        raise PredictionError(f"{key} has no draft model: leave --draft out")
    plain = step("ar", target, None, *how)
    memory = _fits(own, target, card, setting, devices)
    if accept is not None:
        tau = float(sum(reach(acceptance(accept, own.depth, spec))))
    if drafted is not None and not 1 <= drafted <= own.depth:
        raise PredictionError(f"drafted must be in 1..{own.depth}, got {drafted:g}")
    most = own.depth if drafted is None else drafted
    if tau is not None and not 1 <= tau <= most + 1:
        raise PredictionError(
            f"tau of {spec} must be in 1..{most + 1:g} (it drafts {most:g} tokens a step), got "
            f"{tau:g}"
        )

    shares: Sequence[tuple[float, Step]] = [(1.0, own)]
    if drafted is not None:
        shares = _partly(spec, drafted, own.depth, target, draft, *how)
    drawn = card.drawn(dtype, DRAWS)
    steps = sum((share * seconds(some, drawn, mode) for share, some in shares), 0.0)
    plains = seconds(plain, drawn, mode)
    drawn_of = {"step": steps, "plain": plains, "needed": steps / plains}
    if tau is not None:
        drawn_of |= {"speedup": tau * plains / steps, "tokens": batch * tau / steps}
    middle = {name: float(np.median(values)) for name, values in drawn_of.items()}
    interval = {name: _interval(values) for name, values in drawn_of.items()}
    return Forecast(
        spec,
        mode,
        _mixed(shares, card.typical(dtype), mode),
        middle["step"],
        middle["plain"],
        interval["step"],
        interval["plain"],
        tau,
        own.depth,
        own.nodes,
        middle["needed"],
        interval["needed"],
        middle.get("speedup"),
        interval.get("speedup"),
        middle.get("tokens"),
        interval.get("tokens"),
        memory,
    )


def _interval(values: Any) -> tuple[float, float]:
    low, high = np.percentile(values, INTERVAL)
    return float(low), float(high)


def _partly(spec: str, drafted: float, depth: int, *arguments: Any) -> Sequence[tuple[float, Step]]:
    """Steps with the two whole numbers of drafted tokens next to ``drafted``, and their shares."""
    key, _, text = spec.partition(":")
    kept = [part for part in text.split(",") if part and not part.startswith("gamma=")]
    if key not in ("sps", "kangaroo"):
        raise PredictionError(f"drafted is of chains that stop early (sps, kangaroo), not of {key}")
    low = int(min(drafted, depth - 1)) if depth > 1 else 1
    share = drafted - low
    pairs = [(1 - share, low), (share, low + 1)]
    return [
        (weight, step(f"{key}:{','.join([*kept, f'gamma={gamma}'])}", *arguments))
        for weight, gamma in pairs
        if weight
    ]


def _mixed(shares: Sequence[tuple[float, Step]], machine: Machine, mode: str) -> list[Part]:
    """The parts of several steps, each counted by its share."""
    rows: dict[tuple[str, str], list[float]] = {}
    for share, some in shares:
        for part in parts(some, machine, mode):
            row = rows.setdefault((part.stage, part.kind), [0.0] * 4)
            amounts = part.seconds, part.bytes, part.flops, part.number
            row[:] = [had + share * more for had, more in zip(row, amounts, strict=True)]
    return [Part(*place, *amounts) for place, amounts in rows.items()]


def _fits(own: Step, target: Shape, card: Card, setting: Setting, devices: int) -> float:
    """GiB on the fullest device: its part of the target, all that is drafted with, and caches."""
    tokens = setting.rows * setting.context
    cache = target.layers * target.cached * tokens / devices
    numbers = target.parameters / devices + own.parameters + cache + own.cached * tokens
    memory = numbers * setting.size / 2**30
    if memory > card.memory:
        raise PredictionError(
            f"weights and caches take {memory:.0f} GiB a device, {card.name} has {card.memory:g}: "
            "part the target over more (--devices), or make batch, context or dtype smaller"
        )
    return memory
