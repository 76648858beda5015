"""The training of heads over a frozen target, from the batch to the checkpoint.

:func:`train` is the loop. At every step a head reads a batch of text with what the target computes
from it (:class:`Learner`), and takes a step of its optimisers; now and then its acceptance on
held-out text is measured and a checkpoint is saved (:class:`specwb.training.fit.Training`).

A run may be killed at any moment and resumed to the same weights. Several heads are trained side by
side, so that the target runs once a step for all of them (:class:`Passes`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.core.progress import progress
from specwb.models.attention import backends
from specwb.models.target import Target
from specwb.training.corpus import Corpus
from specwb.training.fit import Log, Training, autocast, average_gradients, process_rows
from specwb.training.generate import PROMPT
from specwb.training.heads import TargetPass, measure, step_loss
from specwb.training.recipe import Moment, Recipe
from specwb.training.settings import Settings


def train(*trainings: Training) -> list[Log]:
    """Trains models in place, side by side, and returns their logs.

    Each is trained to the same weights as alone. An interrupt saves, and the same command goes on
    from there."""
    for training in trainings:
        training.resume()
        training.model.train()
    first = min(training.done for training in trainings)
    last = max(training.plan.steps for training in trainings)
    try:
        with progress("training", lasting=True) as move, backends(trainings[0].device):
            for training in trainings:
                training.began = time.monotonic()
                training.measure_where_due()  # what an interrupt came before
                move(first / last, training.state())
            for step, training in _turns(first, last, trainings):
                start, model = time.monotonic(), training.model

                # learning rates
                for group, rate in zip(training.groups, training.base_rates, strict=True):
                    group["lr"] = rate * training.plan.scale(step)

                # batch, target pass, loss and gradients, one part of the batch after the other
                losses = []
                for part in range(training.parts):
                    with autocast(training.device):
                        loss = training.loss(step, part)
                    loss.backward()
                    losses.append(loss.detach())
                if training.is_parallel:
                    average_gradients(model)
                training.clip()

                # an interrupt from here on leaves a step half done, which must not be saved
                training.is_updating = True
                for optimiser in training.optimisers:
                    optimiser.step()
                    optimiser.zero_grad(set_to_none=True)
                # an interrupt may have left an autocast open, in a notebook: weights in bfloat16
                # would stay
                torch.clear_autocast_cache()
                training.done, training.unread = step + 1, losses
                training.is_updating = False
                training.read()  # where a GPU has all of the step to do
                training.log.seconds.append(round(time.monotonic() - start, 4))

                # evaluation on held-out text, progress, checkpoint
                training.measure_where_due()
                training.report()
                if time.monotonic() - training.last_save > training.plan.save_seconds:
                    training.save()
                    training.last_save = time.monotonic()
                move((step + 1) / last, training.state())
    except KeyboardInterrupt:
        for training in trainings:
            training.stop()
        raise
    for training in trainings:
        if training.done > training.start or not training.checkpoint.exists():
            training.save()
        training.model.eval()
    return [training.log for training in trainings]


def _turns(
    first: int, last: int, trainings: tuple[Training, ...]
) -> Iterator[tuple[int, Training]]:
    """Yields every step with each model that takes it. One that an interrupt left behind the others
    catches up first."""
    for step in range(first, last):
        for training in trainings:
            if training.done == step < training.plan.steps:
                yield step, training


@dataclass
class Learner:
    """A head, its batches, its loss, and its acceptance on held-out text.

    ``own_text [rows, length + 1]``: what the target wrote, three of four rows of a batch; None
    where all of it is text that was read.
    """

    target: Target
    recipe: Recipe
    head: Any
    settings: Settings
    data: Corpus
    mixture: dict[str, float]
    seed: int
    passes: Passes
    own_text: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.passes.layers |= set(self.head.features)
        self.passes.heads += 1

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray | None]:
        """A step's rows ``[rows, length + 1]``, and which of their tokens count."""
        batch = self.settings.batch
        size = batch.rows, batch.length, self.mixture
        ids, counted = self.data.batch_counted(self.seed + 2, step, *size)
        if self.own_text is not None:
            count = batch.rows - batch.rows // 4
            generator = np.random.Generator(np.random.Philox(key=[self.seed + 3, step]))
            ids[:count] = self.own_text[generator.integers(0, len(self.own_text), count)]
            if counted is not None:
                counted[:count] = True
                counted[:count, :PROMPT] = False
        return ids, counted

    def loss(self, step: int, part: int) -> Tensor:
        """The loss of a part of a step, a pure function of both: a resumed run repeats an unbroken
        one exactly."""
        rows, parts = self.settings.batch.rows, self.settings.batch.accumulate
        ids, counted = (
            None if x is None else torch.from_numpy(process_rows(x)[part::parts])
            for x in self.rows(step)
        )
        assert ids is not None
        ids = ids.to(self.target.device)
        target_pass = self.passes.over(step, part, ids[:, :-1])
        outputs = replace(
            target_pass.for_head(self.head.features),
            following=ids[:, 1:],
            counted=None if counted is None else counted[:, 1:].to(ids.device),
        )
        progress = step / self.settings.plan.steps
        moment = Moment(progress, self.seed + 4, step, rows, part, parts)
        objective = self.settings.objective
        return step_loss(self.recipe, self.head, outputs, moment, objective) / parts

    @cached_property
    def windows(self) -> dict[str, Tensor]:
        """Held-out text by domain, ``[8, L]``."""
        length = min(self.settings.batch.length, 256)
        return {
            domain: torch.from_numpy(self.data.windows(domain, 8, length)[:, :-1])
            for domain in self.data.held_out
        }

    def measured(self) -> dict[str, dict[str, list]]:
        device = self.target.device
        return {
            domain: measure(self.recipe, self.head, window.to(device))
            for domain, window in self.windows.items()
        }

    def acceptance(self) -> list[float]:
        """Acceptance by position, a mean over the domains."""
        ranks = [measurements["rank"] for measurements in self.measured().values()]
        depths = range(len(ranks[0]))
        return [round(fmean(rank[d][0] for rank in ranks), 3) for d in depths]


class Passes:
    """The target's passes over the parts of a step, for all heads that are trained together.

    ``layers`` are those whose states the heads read. Several heads keep the passes of all parts of
    a step, one only the part that it is at."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.layers: set[int] = set()
        self.heads = 0
        self._step = -1
        self._made: dict[int, TargetPass] = {}

    def over(self, step: int, part: int, ids: Tensor) -> TargetPass:
        """The pass over ``ids [B, L]``, which are a part of a step."""
        if step != self._step:
            self._step, self._made = step, {}
        made = self._made.get(part)
        # heads of other numbers of steps read other text that the target wrote
        if made is None or not torch.equal(made.outputs.ids, ids):
            if self.heads == 1:
                self._made = {}
            made = self._made[part] = TargetPass(self.target, ids, self.layers)
        return made
