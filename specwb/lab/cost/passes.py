"""What a step costs that drafts from an early exit (Kangaroo), measured."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.probability import Sampling
from specwb.drafters.kangaroo import KangarooDrafter
from specwb.engine.methods import method as make_method
from specwb.lab.bench.measure import seconds_of
from specwb.lab.cost.calibrate import seconds_at, step_seconds, step_times
from specwb.models.place import Place
from specwb.models.target import Target


@dataclass(frozen=True)
class ExitCost:
    """Seconds of steps that draft a chain from an early exit, at one length of text."""

    plain: float  # a step of plain decoding
    shallow: float  # one token through the first layers
    adapter: float  # one token through adapter and head
    round: dict[int, float]  # D -> a decoding step that drafts a chain of D tokens

    @property
    def r(self) -> float:
        """One token through the first layers, over a plain step."""
        return self.shallow / self.plain

    @property
    def a(self) -> float:
        """One token through adapter and head, over a plain step."""
        return self.adapter / self.plain

    def seconds(self, drafted: float) -> float:
        """Return the seconds of a step that drafts so many tokens.

        They are linear between the measured ones.
        """
        return seconds_at(self.round, drafted)

    def of_passes(self, drafted: int) -> float:
        """Return the seconds of a step as the sum of its passes, each as if it had one token.

        That is ``1 + D (r + a)`` plain steps: scoring several tokens is taken to be as cheap as
        scoring one.
        """
        return self.plain + drafted * (self.shallow + self.adapter)


def exit_cost(
    target: Target,
    head: object = None,
    prompt: Sequence[int] | None = None,
    *,
    depths: Sequence[int] = (1, 2, 3, 4, 6, 8),
    count: int = 16,
    repeats: int = 3,
) -> ExitCost:
    """Measure the :class:`ExitCost` of a Kangaroo chain: medians of ``count`` steps in each of
    ``repeats`` turns, after the prompt or 128 times token 1."""
    ids = list(prompt) if prompt is not None else [1] * 128
    if not depths or min(depths) < 1:
        raise ArgumentError(f"depths must be integers >= 1, got {list(depths)}")
    options: dict[str, Any] = {} if head is None else {"head": head}
    # a threshold that is never missed, so that the test for it is paid for
    chains = {
        depth: make_method("kangaroo", target, gamma=depth, eta=1e-9, **options)
        for depth in dict.fromkeys(depths)
    }
    drafter = chains[depths[0]].drafter
    assert isinstance(drafter, KangarooDrafter)
    chains[0] = make_method("ar", target)
    steps = step_times(target, chains, ids, count, repeats)
    plain = steps.pop(0)
    # The parts are never recorded as graphs, so they are compared with an eager plain step.
    eager = step_seconds(target, ids, chains[0], count, graphs=False)
    parts = [_part_seconds(target, drafter, ids, count) for _ in range(repeats)]
    shallow, adapter = (median(times) * plain / eager for times in zip(*parts, strict=True))
    return ExitCost(plain, shallow, adapter, steps)


@torch.inference_mode()
def _part_seconds(
    target: Target, description: KangarooDrafter, ids: list[int], count: int
) -> tuple[float, float]:
    """Median seconds of the first layers over a token; and of adapter, head and its choice."""
    drafter = copy.copy(description)
    limits = drafter.limits
    state = target.open(
        [ids], [limits.depth + 1], limits.nodes + 2, Sampling(0.0), (), drafter.features
    )
    drafter.open(state, target)
    drafter.kept = []
    position = (state.length - 1)[:, None]
    place, pending = Place(position, position, state.horizon), state.tokens.gather(1, position)

    def first_layers() -> Tensor:
        drafter.kept.clear()
        return drafter.shallow(state, pending, place)

    features = first_layers()

    def adapter_and_head() -> Tensor:
        hidden = drafter.adapted(features, place)
        return drafter.logits(hidden).argmax(-1)

    parts = seconds_of({"shallow": first_layers, "adapter": adapter_and_head}, target.device, count)
    return parts["shallow"], parts["adapter"]
