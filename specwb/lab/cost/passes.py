"""What a step costs that drafts from an early exit (Kangaroo), measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specwb.engine.methods import method as make_method
from specwb.lab.cost.calibrate import seconds_at, step_times
from specwb.models.target import Target


@dataclass(frozen=True)
class ExitCost:
    """Seconds of steps that draft a chain from an early exit, at one length of text."""

    plain: float  # a step of plain decoding
    round: dict[int, float]  # D -> a decoding step that drafts a chain of D tokens

    def seconds(self, drafted: float) -> float:
        """Return the seconds of a step that drafts so many tokens.

        They are linear between the measured ones.
        """
        return seconds_at(self.round, drafted)


def exit_cost(
    target: Target,
    head: object = None,
    prompt: Sequence[int] = (1,) * 128,
    *,
    depths: Sequence[int] = (1, 2, 3, 4, 6, 8),
    count: int = 16,
    repeats: int = 3,
) -> ExitCost:
    """Measure the :class:`ExitCost` of a Kangaroo chain: medians of ``count`` steps in each of
    ``repeats`` turns, after the prompt."""
    options: dict[str, Any] = {} if head is None else {"head": head}
    # a threshold that is never missed, so that the test for it is paid for
    chains = {
        depth: make_method("kangaroo", target, gamma=depth, eta=1e-9, **options) for depth in depths
    }
    steps = step_times(target, chains | {0: make_method("ar", target)}, prompt, count, repeats)
    return ExitCost(steps.pop(0), steps)
