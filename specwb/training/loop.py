"""The training loop, from the loss of a batch to the checkpoint.

:func:`train` is the loop. At every step a model (:class:`TrainingRun`) takes a step of its
optimisers; now and then its acceptance on held-out text is measured and a checkpoint is saved. What
the loss is taken of is in :mod:`specwb.training.run`.

A run may be killed at any moment and resumed to the same weights.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specwb.core.files import write
from specwb.core.progress import duration, errors, line, progress
from specwb.models.attention import backends
from specwb.training.fit import (
    TrainingError,
    autocast,
    average_gradients,
    dump,
    is_first_process,
    is_parallel,
)
from specwb.training.optim import Plan, optimisers

MEASURES = 10  # how often in a run acceptance is measured on held-out text
REPORTS = 20  # how often in a run a line is printed where there is no terminal
SAVE_SECONDS = 60.0  # time between two checkpoints, at least


@dataclass
class Log:
    """The course of a run.

    Attributes:
        loss: of every step, of the first process' rows.
        measurements: pairs of a step and the held-out acceptance by position.
        seconds: of every step, without measuring and saving.
    """

    loss: list[float] = field(default_factory=list)
    measurements: list[list] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list, compare=False)

    @property
    def step_seconds(self) -> float:
        """The median of a step's seconds; it says something about one machine only."""
        return round(statistics.median(self.seconds), 4) if self.seconds else 0.0

    def recent_loss(self, steps: int) -> float:
        """The mean loss of the last ``steps`` steps."""
        losses = self.loss[-steps:]
        return round(sum(losses) / max(1, len(losses)), 4)


def saved_state(checkpoint: Path, identity: str) -> dict | None:
    """What an interrupted run left in its checkpoint, None where there is nothing; a file that is
    damaged or of another run is refused."""
    if not checkpoint.exists():
        return None
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    except Exception as error:
        problem = f"{checkpoint} cannot be read: it is damaged or cut off, or no checkpoint"
        raise TrainingError(f"{problem}; delete it to start again") from error
    if not isinstance(state, dict) or state.get("identity") != identity:
        problem = f"{checkpoint} is of another run (other data, recipe or seed)"
        raise TrainingError(f"{problem}; delete it or choose another --out")
    return state


class TrainingRun:
    """A model in training: its optimisers, its log and its checkpoint.

    Args:
        name: of the model, in lines of progress.
        model: is trained in place.
        loss: of a step, and of a part of its batch, as a pure function of both: a resumed run
            repeats an unbroken one exactly.
        plan: how long, by what optimiser and how fast.
        checkpoint: the file that an interrupted run continues from.
        identity: names everything that must not change between the parts of one run (data, model,
            seed).
        measure: returns the acceptance by position on held-out text, which is shown next to the
            loss: the loss alone does not say what will be accepted.
        adam_matrices: names of matrices that AdamW trains and not Muon; default embeddings and
            heads.
        parts: into how many a batch is divided; their losses are added up.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        loss: Callable[[int, int], Tensor],
        plan: Plan,
        checkpoint: Path,
        identity: str,
        measure: Callable[[], list[float]] | None = None,
        adam_matrices: set[str] | None = None,
        parts: int = 1,
    ) -> None:
        self.name, self.model, self.plan = name, model, plan
        self.loss, self.measure, self.parts = loss, measure, parts
        self.device = next(model.parameters()).device
        self.checkpoint, self.identity = checkpoint, identity
        self.optimisers = optimisers(model, plan, adam_matrices)
        self.base_rates = [group["lr"] for group in self.groups]
        self.log = Log()
        self.done = 0  # steps
        self.is_updating = False
        self.unread: list[Tensor] = []  # losses of the last step, where an interrupt came before

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The parameters of all optimisers with their learning rates."""
        return [group for optimiser in self.optimisers for group in optimiser.param_groups]

    def resume(self) -> None:
        """Goes on from the checkpoint, if there is one."""
        state = saved_state(self.checkpoint, self.identity)
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.done = state["step"]
        self.log = Log(state["history"], state["measured"], state["seconds"])

    def save(self) -> None:
        """Writes the checkpoint, by the first process."""
        if not is_first_process():
            return
        self.read()
        content = {
            "identity": self.identity,
            "step": self.done,
            "history": self.log.loss,
            "measured": self.log.measurements,
            "seconds": self.log.seconds,
            "model": self.model.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
        }
        write(partial(dump, content), self.checkpoint)

    def read(self) -> None:
        """Waits for the last step's losses; an interrupt meanwhile finds the step complete."""
        if self.unread:
            self.log.loss.append(round(sum(part.item() for part in self.unread), 5))
            self.unread = []

    def measure_where_due(self) -> None:
        """Measures the acceptance after every tenth of the run."""
        if self.measure is None or not self.done or not is_first_process():
            return
        measured = self.log.measurements[-1][0] if self.log.measurements else 0
        if measured != self.done and (self._is_due(MEASURES) or self.done == self.plan.steps):
            self.log.measurements.append([self.done, self.measure()])

    def _is_due(self, times: int) -> bool:
        """Whether something is due that happens so many times in a run."""
        return self.done % max(1, self.plan.steps // times) == 0

    def report(self, seconds: float) -> None:
        """Prints a line now and then where there is no terminal; ``seconds``: of a step."""
        if is_first_process() and not errors.is_terminal and self._is_due(REPORTS):
            line(f"{self.state()}, {duration(seconds * (self.plan.steps - self.done))} left")

    def state(self) -> str:
        """In words how far it is: step, loss and acceptance."""
        parts = [f"step {self.done}/{self.plan.steps}"]
        if self.log.loss:
            parts.append(f"loss {self.log.recent_loss(20):.3f}")
        if self.log.measurements:
            _, by_position = self.log.measurements[-1]
            parts.append("acceptance " + " ".join(f"{x:.2f}" for x in by_position))
        return f"{self.name}: {', '.join(parts)}"

    def stop(self) -> None:
        """Saves after an interrupt, unless a step is half done."""
        if self.is_updating:
            state = "in the middle of a step, the last checkpoint holds"
        else:
            self.save()
            state = f"step {self.done} of {self.plan.steps} is saved"
        line(f"{self.name}: stopped, {state}; the same command goes on from there")


def train(training: TrainingRun) -> Log:
    """Trains a model in place and returns its log.

    An interrupt saves, and the same command goes on from there."""
    training.resume()
    model, plan = training.model.train(), training.plan
    first, began = training.done, time.monotonic()
    last_save = began
    try:
        with progress("training", lasting=True) as move, backends(training.device):
            training.measure_where_due()  # what an interrupt came before
            move(first / plan.steps, training.state())
            for step in range(first, plan.steps):
                start = time.monotonic()

                # learning rates
                for group, rate in zip(training.groups, training.base_rates, strict=True):
                    group["lr"] = rate * plan.scale(step)

                # batch, target pass, loss and gradients, one part of the batch after the other
                losses = []
                for part in range(training.parts):
                    with autocast(training.device):
                        loss = training.loss(step, part)
                    loss.backward()
                    losses.append(loss.detach())
                if is_parallel():
                    average_gradients(model)
                if plan.clip and plan.clip_by == "value":
                    torch.nn.utils.clip_grad_value_(model.parameters(), plan.clip)
                elif plan.clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)

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
                training.report((time.monotonic() - began) / (training.done - first))
                if time.monotonic() - last_save > SAVE_SECONDS:
                    training.save()
                    last_save = time.monotonic()
                move(training.done / plan.steps, training.state())
    except KeyboardInterrupt:
        training.stop()
        raise
    training.save()
    model.eval()
    return training.log
