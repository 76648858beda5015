"""Layers in parallel (EasySpec): times of draft and decoding steps, when it pays, and errors.

Times are for one device and for several; fractions stay fractions. All functions share their
arguments.

Args:
    groups: the partition of the L layers (:func:`specwb.models.fuzzy.grouping`). The attentions of
        a group of n layers all read the group's input, the MLPs follow in order.
    rounds, layers: R, the number of groups, from 1 to L; and L.
    share: the fraction ``a / (a + m)`` of a layer's time that its attention takes, in 0..1; an
        array too.
    attention, mlp: a and m, times of a layer's attention and of its MLP.
    exchange: x, the time of an exchange of a group's outputs.
    head, verify: times of the head, with the exchange of logits if there is one, and of
        verification.
    devices: W >= 1.
    depth: D >= 1, draft tokens per decoding step.
    calibrate: whether the first draft step is *exact*, with its layers in order. All others are
        *fuzzy*, with groups of layers side by side.

What is proved of these functions is in theory/14_easyspec.md. Source of the model: Wu et al. 2025,
arXiv 2502.02493, 4.2 and 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specwb.core.errors import ArgumentError

Partition = Sequence[Sequence[int]]
"""A partition of the layers: for each group the indices of its layers, in order."""


def attention_rounds(groups: Partition) -> int:
    """R, the number of sequential attentions in a fuzzy step: one per group."""
    return len(groups)


def fuzzy_ratio(share: Any, rounds: int, layers: int) -> Any:
    """A fuzzy step takes ``(R a + L m) / (L (a + m)) = 1 - share (1 - R / L)`` of an exact one.

    Head, exchange and launches are left out.
    """
    return 1 - share * (layers - rounds) / layers


def stage_speedup(ratio: Any, depth: int, calibrate: bool = True) -> Any:
    """Drafting with fuzzy steps is ``D / (1 + (D - 1) ratio)`` times as fast as with exact ones.

    ``ratio`` > 0 is the time of a fuzzy step over an exact one. Without calibration the speedup is
    ``1 / ratio``.
    """
    return depth / (1 + (depth - 1) * ratio) if calibrate else 1 / ratio


def largest_stage_speedup(depth: int, rounds: int, layers: int, calibrate: bool = True) -> float:
    """The :func:`stage_speedup` of groups is at most ``D L / (L + (D - 1) R)``: its value if
    attention takes all of a layer's time."""
    return float(stage_speedup(fuzzy_ratio(1, rounds, layers), depth, calibrate))


def implied_share(
    speedup: Any, depth: int, rounds: int, layers: int, calibrate: bool = True
) -> Any:
    """A measured :func:`stage_speedup` sigma implies attention's share of a layer's time.

    The share is ``(1 - r) / (1 - R / L)`` with ``r = (D / sigma - 1) / (D - 1)``, without
    calibration ``r = 1 / sigma``.

    Raises:
        ValueError: No share gives this speedup, or every one does (R = L, or a calibrated depth
            of 1).
    """
    largest = largest_stage_speedup(depth, rounds, layers, calibrate)
    if largest <= 1:
        raise ArgumentError(
            "a fuzzy step that takes an exact one's time, or no fuzzy step: "
            "the stage speedup is 1 whatever attention's share"
        )
    if not 1 <= speedup <= largest * (1 + 1e-12):
        raise ArgumentError(
            f"no share of attention gives a stage speedup of {speedup}; "
            f"it is from 1 to {largest:.4g}"
        )
    ratio = (depth / speedup - 1) / (depth - 1) if calibrate else 1 / speedup
    return min((1 - ratio) * layers / (layers - rounds), 1)


def break_even(stage: Any, depth: int, c: Any, v: Any = 1) -> Any:
    """A stage speedup sigma is lost where tau drops by ``1 - (D c / sigma + v) / (D c + v)``.

    The drop is relative: it is the largest fraction of the tokens per decoding step that may be
    lost. The speed itself is :func:`specwb.theory.analysis.speedup` with c / sigma for c.

    Args:
        stage: sigma > 0.
        c: Time of an exact draft step over a plain target step.
        v: Time of the target's pass over a plain step.
    """
    return 1 - (depth * c / stage + v) / (depth * c + v)


def needed_tokens(speedup: Any, depth: int, c: Any, v: Any = 1) -> Any:
    """A speedup over plain decoding needs ``tau = speedup (D c + v)``, where c is the time of a
    draft step, all its kinds averaged, over a plain target step.

    A chain has at most D + 1 tokens per decoding step: if tau is larger, no chain has this speedup
    at this cost.
    """
    return speedup * (depth * c + v)


def exchange_limit(n: int, devices: int, attention: Any) -> Any:
    """The exchange of a group's outputs pays while it takes less than ``(n - ceil(n / W)) a``.

    Indeed ``ceil(n / W) a + x < n a`` iff ``x < (n - ceil(n / W)) a``.
    """
    return (n - -(-n // devices)) * attention


def round_exchange_limit(
    groups: Partition, devices: int, attention: Any, depth: int, calibrate: bool = True
) -> Any:
    """W devices draft faster than one while an exchange takes less than this limit.

    It is ``(D - 1) sum_groups (n - ceil(n / W)) a / ((D - 1) R + L)``: every group exchanges,
    layers that stand alone too, and in the exact pass every layer. Without calibration it is
    ``sum_groups (n - ceil(n / W)) a / R``.
    """
    gain = sum(exchange_limit(len(group), devices, attention) for group in groups)
    if not calibrate:
        return gain / len(groups)
    exchanges = (depth - 1) * len(groups) + sum(map(len, groups))
    return (depth - 1) * gain / exchanges


def step_time(
    groups: Partition,
    attention: Any,
    mlp: Any,
    exchange: Any = 0,
    devices: int = 1,
    head: Any = 0,
) -> Any:
    """A draft step takes ``sum_groups (ceil(n / W) a + x) + L m + head``, x = 0 on one device.

    An exact step has every layer as a group of its own.
    """
    wait = exchange if devices > 1 else 0
    attentions = sum(-(-len(group) // devices) * attention + wait for group in groups)
    return attentions + sum(map(len, groups)) * mlp + head


@dataclass(frozen=True)
class Span:
    """The work of one device from ``start`` to ``stop``."""

    device: int
    start: float
    stop: float
    kind: str  # attention, mlp, exchange, head or verify
    layer: int | None  # for an exchange the group's first; None after the layers
    step: int  # 0 is the first draft step, depth is verification


def timeline(
    groups: Partition,
    attention: Any,
    mlp: Any,
    exchange: Any,
    devices: int,
    depth: int,
    head: Any = 0,
    verify: Any = 0,
    calibrate: bool = True,
) -> list[Span]:
    """A decoding step on every device; it ends after ``t_e + (depth - 1) t_f + verify``.

    It has a first draft step through every layer in order (``calibrate``), ``depth - 1`` fuzzy
    steps and verification; t_e and t_f are times of :func:`step_time`. Of a group's n attentions
    each device runs at most ceil(n / W), one after the other; the exchange waits for the last of
    them. MLPs and the head are computed on all devices. What takes no time has no span.

    Returns:
        Spans in order of their beginning.
    Source: what :class:`specwb.models.ranks.RankGroups` does; where MLPs run, and what is exchanged
        when, is not in the paper.
    """
    owner = {
        layer: position // -(-len(group) // devices)
        for group in groups
        for position, layer in enumerate(group)
    }
    single_layers = [(layer,) for group in groups for layer in group]
    spans: list[Span] = []
    now: Any = 0

    def on_all_devices(kind: str, duration: Any, layer: int | None, step: int) -> None:
        nonlocal now
        end = now + duration
        if duration:
            spans.extend(Span(device, now, end, kind, layer, step) for device in range(devices))
        now = end

    def attentions(group: Sequence[int], step: int) -> None:
        nonlocal now
        free = [now] * devices  # when each device has no more attention to run
        for layer in group if attention else ():
            device = owner[layer]
            start, free[device] = free[device], free[device] + attention
            spans.append(Span(device, start, free[device], "attention", layer, step))
        now = max(free)

    for step in range(depth):
        exact = calibrate and step == 0
        for group in single_layers if exact else groups:
            attentions(group, step)
            if devices > 1:
                on_all_devices("exchange", exchange, group[0], step)
            for layer in group:
                on_all_devices("mlp", mlp, layer, step)
        on_all_devices("head", head, None, step)
    on_all_devices("verify", verify, None, depth)
    return sorted(spans, key=lambda span: (span.start, span.device))


def gained_cosine(cosine: Any, kappa: Any) -> tuple[Any, Any]:
    """The smallest and the largest cosine of x and y, whose cosine is given in -1..1, once both are
    multiplied by a gain g with ``kappa = max |g| / min |g|``.

    With phi the angle of x and y and phi' the angle after the gain, ``tan(phi'/2)`` lies between
    ``tan(phi/2) / kappa`` and ``kappa tan(phi/2)``, where
    ``tan(phi/2)^2 = (1 - cos phi) / (1 + cos phi)``. Both ends are attained.
    """
    near, far, square = 1 + cosine, 1 - cosine, kappa * kappa
    smallest = (near - square * far) / (near + square * far)
    largest = (square * near - far) / (square * near + far)
    return smallest, largest


def apart(cosine: float) -> float:
    """Vectors of one length with this cosine differ by ``|x - y| / |x| = sqrt(2 (1 - cos))``: the
    error that a cosine "near 1" means."""
    return math.sqrt(2 * (1 - cosine))


def attention_error(eps: float, diameter: float, values: float = 0.0) -> float:
    """The output of an attention can move by ``diameter tanh(eps / 2) + values`` at most.

    Args:
        eps: How far any key's logit moves, up to one shift of all: half the range of the changes.
            Ratios of weights then change by at most ``exp(2 eps)``, the weights by a total
            variation of at most ``tanh(eps / 2)``.
        diameter: The largest distance of two values.
        values: How far any value moves.
    """
    return diameter * math.tanh(eps / 2) + values
