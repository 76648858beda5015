"""Layers side by side (EasySpec): what a draft step and a round take, on one device and on several, when it pays, and how large the error can be.
Fractions stay fractions.

a, m: time of a layer's attention and of its MLP, share = a / (a + m); L layers in R groups (:func:`specwb.models.fuzzy.grouping`). What is proved
of these functions is in theory/14_easyspec.md. Source of the model: Wu et al. 2025, arXiv 2502.02493, 4.2 and 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Groups = Sequence[Sequence[int]]


def attention_rounds(groups: Groups) -> int:
    """R, the attentions that wait for each other in a fuzzy step: one a group, layers that stand alone counted."""
    return len(groups)


def fuzzy_ratio(share: Any, rounds: int, layers: int) -> Any:
    """Time of a fuzzy step over an exact one: ``(R a + L m) / (L (a + m)) = 1 - share (1 - R / L)``. Head, exchange and launches are left out.

    Args:
        share: of a layer's time that its attention takes, in 0..1; an array too. rounds: R, from 1 to ``layers``. layers: L.
    Raises:
        ValueError: an argument out of range.
    """
    _counted(rounds, layers)
    if not hasattr(share, "shape") and not 0 <= share <= 1:
        raise ValueError(f"share must be in 0..1, got {share}")
    return 1 - share * (layers - rounds) / layers


def stage_speedup(ratio: Any, depth: int, calibrate: bool = True) -> Any:
    """Time of ``depth`` exact steps over that of a round's drafting, the first step exact and the others fuzzy: ``D / (1 + (D - 1) ratio)``.

    Args: ratio: time of a fuzzy step over an exact one, > 0. depth: D >= 1, tokens drafted. calibrate: without, all steps are fuzzy: ``1 / ratio``.
    Raises:
        ValueError: an argument out of range.
    """
    _depth(depth)
    if not hasattr(ratio, "shape") and not ratio > 0:
        raise ValueError(f"ratio must be above 0, got {ratio}")
    return depth / (1 + (depth - 1) * ratio) if calibrate else 1 / ratio


def largest_stage_speedup(depth: int, rounds: int, layers: int, calibrate: bool = True) -> float:
    """:func:`stage_speedup` where attention takes all of a layer's time: ``D L / (L + (D - 1) R)``, the most that groups can bring."""
    return float(stage_speedup(fuzzy_ratio(1, rounds, layers), depth, calibrate))


def implied_share(speedup: Any, depth: int, rounds: int, layers: int, calibrate: bool = True) -> Any:
    """Attention's share of a layer's time that a measured :func:`stage_speedup` S needs: ``(1 - r) / (1 - R / L)``, ``r = (D / S - 1) / (D - 1)``.

    Raises:
        ValueError: no share gives this speedup, or every one does (R = L, or a calibrated depth of 1).
    """
    most = largest_stage_speedup(depth, rounds, layers, calibrate)
    if most <= 1:
        raise ValueError("a fuzzy step that takes an exact one's time, or no fuzzy step: the stage speedup is 1 whatever attention's share")
    if not 1 <= speedup <= most * (1 + 1e-12):
        raise ValueError(f"no share of attention gives a stage speedup of {speedup}; it is from 1 to {most:.4g}")
    ratio = (depth / speedup - 1) / (depth - 1) if calibrate else 1 / speedup
    return min((1 - ratio) * layers / (layers - rounds), 1)


def break_even(stage: Any, depth: int, c: Any, v: Any = 1) -> Any:
    """How much of the tokens a round may be lost at most: ``1 - (D c / S + v) / (D c + v)``, the relative drop of tau at which a stage speedup S
    brings nothing.

    The speed itself is :func:`specwb.analysis.speedup` with c / S for c.

    Args:
        stage: S > 0. depth: D. c: time of an exact draft step over a plain target step. v: time of the target's pass over a plain step.
    Raises:
        ValueError: an argument out of range.
    """
    _depth(depth)
    if not hasattr(c, "shape") and (c < 0 or v <= 0 or stage <= 0):
        raise ValueError(f"c must be >= 0, v and stage above 0; got c={c}, v={v}, stage={stage}")
    return 1 - (depth * c / stage + v) / (depth * c + v)


def needed_tokens(speedup: Any, depth: int, c: Any, v: Any = 1) -> Any:
    """tau that a speedup over plain decoding needs: ``speedup (D c + v)``. More than D + 1 of a chain, and it cannot be had at this price.

    Args: speedup: tokens a second over plain decoding's. depth: D. c: time of a draft step, all its kinds averaged, and v: as in :func:`break_even`.
    """
    _depth(depth)
    return speedup * (depth * c + v)


def exchange_limit(n: int, devices: int, attention: Any) -> Any:
    """How long the exchange of a group's outputs may take: ``ceil(N / W) a + x < N a`` iff ``x < (N - ceil(N / W)) a``, which is returned.

    Args: n: N attentions in the group. devices: W >= 1. attention: a.
    """
    _devices(devices)
    return (n - -(-n // devices)) * attention


def round_exchange_limit(groups: Groups, devices: int, attention: Any, depth: int, calibrate: bool = True) -> Any:
    """The same for a whole round: exchanges must take less than this for W devices to draft in less time than one.

    ``(D - 1) sum_groups (N - ceil(N / W)) a / ((D - 1) R + L)``: every group exchanges, layers alone too, and in the exact pass every layer.
    Without calibration ``sum_groups (N - ceil(N / W)) a / R``.
    """
    _depth(depth)
    saved = sum(exchange_limit(len(group), devices, attention) for group in groups)
    if not calibrate:
        return saved / len(groups)
    return (depth - 1) * saved / ((depth - 1) * len(groups) + sum(map(len, groups)))


def step_time(groups: Groups, attention: Any, mlp: Any, exchange: Any = 0, devices: int = 1, head: Any = 0) -> Any:
    """``sum_groups (ceil(N / W) a + x) + L m + head``, x = 0 on one device; an exact step has every layer as a group of its own."""
    _devices(devices)
    wait = exchange if devices > 1 else 0
    return sum(-(-len(group) // devices) * attention + wait for group in groups) + sum(map(len, groups)) * mlp + head


@dataclass(frozen=True)
class Span:
    """What one device does from ``start`` to ``stop``. kind: ``attention``, ``mlp``, ``exchange``, ``head``, ``verify``. layer: the group's first
    where it exchanges, None behind the layers. step: 0 is the round's first, that of verification is ``depth``."""

    device: int
    start: float
    stop: float
    kind: str
    layer: int | None
    step: int


def timeline(
    groups: Groups, attention: Any, mlp: Any, exchange: Any, devices: int, depth: int, head: Any = 0, verify: Any = 0, calibrate: bool = True
) -> list[Span]:  # fmt: skip
    """One round: a first step through every layer in order (``calibrate``), ``depth - 1`` fuzzy ones, verification. It ends after
    ``T_exact + (depth - 1) T_fuzzy + verify``, with times of :func:`step_time`.

    Of a group's N attentions each device runs ceil(N / W), one after the other; the exchange waits for the last of them. MLPs and the head are
    computed on all devices. What takes no time has no span.

    Args:
        attention, mlp, exchange, head, verify: times, in any unit. head: with the exchange of logits, if there is one.
    Returns: spans in order of their beginning.
    Source: what :class:`specwb.models.ranks.RankGroups` does; where MLPs run, and what is exchanged when, is not in the paper.
    """
    _depth(depth)
    _devices(devices)
    if min(attention, mlp, exchange, head, verify) < 0:
        raise ValueError(f"times must be >= 0, got {attention}, {mlp}, {exchange}, {head}, {verify}")
    owner = {i: at // -(-len(group) // devices) for group in groups for at, i in enumerate(group)}
    alone = [(i,) for group in groups for i in group]
    spans: list[Span] = []
    now: Any = 0

    def everywhere(kind: str, lasts: Any, layer: int | None, step: int) -> None:
        nonlocal now
        if lasts:
            spans.extend(Span(device, now, now + lasts, kind, layer, step) for device in range(devices))
        now += lasts

    for step in range(depth):
        for group in alone if calibrate and step == 0 else groups:
            free = [now] * devices
            for i in group if attention else ():
                began = free[owner[i]]
                free[owner[i]] = began + attention
                spans.append(Span(owner[i], began, began + attention, "attention", i, step))
            now = max(free)
            if devices > 1:
                everywhere("exchange", exchange, group[0], step)
            for i in group:
                everywhere("mlp", mlp, i, step)
        everywhere("head", head, None, step)
    everywhere("verify", verify, None, depth)
    return sorted(spans, key=lambda span: (span.start, span.device))


def gained_cosine(cosine: Any, kappa: Any) -> tuple[Any, Any]:
    """Between what the cosine of u and v can lie once both are multiplied by a gain g: ``tan(t'/2)`` is from ``tan(t/2) / kappa`` to
    ``kappa tan(t/2)``, with t the angle and ``tan(t/2)^2 = (1 - cos t) / (1 + cos t)``. Both ends are attained.

    Args: cosine: in -1..1. kappa: ``max |g| / min |g|``, >= 1; 1 leaves cosines as they are.
    Returns: the smallest and the largest cosine.
    """
    if not -1 <= cosine <= 1 or kappa < 1:
        raise ValueError(f"cosine must be in -1..1 and kappa at least 1, got {cosine} and {kappa}")
    near, far, k = 1 + cosine, 1 - cosine, kappa * kappa
    return (near - k * far) / (near + k * far), (k * near - far) / (k * near + far)


def apart(cosine: float) -> float:
    """``|u - v| / |u| = sqrt(2 (1 - cos))`` of vectors of one length: what a cosine "near 1" means as an error."""
    return math.sqrt(2 * (1 - cosine))


def attention_error(eps: float, diameter: float, values: float = 0.0) -> float:
    """How far the output of an attention can move: ``diameter tanh(eps / 2) + values``.

    Args:
        eps: how far any key's logit moves, up to one shift of all; half the range of the changes. Ratios of weights then change by at most
            ``exp(2 eps)``, the weights by a total variation of at most ``tanh(eps / 2)``. diameter: largest distance of two values.
        values: how far any value moves.
    """
    return diameter * math.tanh(eps / 2) + values


def linear_layers(attention: Any, mlp: Any, n: int) -> tuple[Any, Any, Any]:
    """What n layers make of 1 whose attentions are multiplication by a and whose MLPs are multiplication by m: in order, ``((1 + a)(1 + m))^n``;
    attentions side by side; whole layers side by side, ``1 + n (a + m (1 + a))``."""
    fuzzy = 1
    for _ in range(n):
        fuzzy = (fuzzy + attention) * (1 + mlp)
    return ((1 + attention) * (1 + mlp)) ** n, fuzzy, 1 + n * (attention + mlp * (1 + attention))


def _counted(rounds: int, layers: int) -> None:
    if not 1 <= rounds <= layers:
        raise ValueError(f"rounds must be from 1 to the number of layers; got {rounds} of {layers}")


def _depth(depth: int) -> None:
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise ValueError(f"depth must be an integer >= 1, got {depth!r}")


def _devices(devices: int) -> None:
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise ValueError(f"devices must be an integer >= 1, got {devices!r}")
