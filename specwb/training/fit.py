"""What all trainings share: processes, number types, logs, checkpoints and lines of progress.

Under ``accelerate launch`` every process takes its rows of each batch (:func:`process_rows`) and
the gradients are averaged; the first process prints and writes.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specwb.core.errors import SpecwbError
from specwb.core.files import write
from specwb.core.progress import duration, errors, line
from specwb.models.device import fast_bfloat16
from specwb.training.optim import Plan, optimisers


class TrainingError(SpecwbError, RuntimeError):
    """Training cannot start or go on; everything up to the last checkpoint is kept."""


def save_rows(rows: np.ndarray, path: Path) -> None:
    """Saves rows of tokens as a ``.npy`` file."""
    content = io.BytesIO()  # np.save(path) would add a suffix
    np.save(content, rows)
    write(content.getvalue(), path)


def dump(content: Any, path: Path) -> None:
    """Saves by ``torch.save``; where the disk is full it raises the system's OSError."""
    # given a path, torch opens the file itself and reports only a position in the archive
    with open(path, "wb") as handle:
        try:
            torch.save(content, handle)
        except RuntimeError as error:
            # closing the archive fails once more, and hides the error that is wanted
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise error from None


def autocast(device: torch.device) -> torch.autocast:
    """Computes in bfloat16 where the processor has instructions for it, otherwise in float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=fast_bfloat16(device))


def _processes():
    from accelerate import PartialState

    return PartialState(cpu=not torch.cuda.is_available())


def process_rows(rows: np.ndarray) -> np.ndarray:
    """This process' rows of a batch: every n-th row, for n processes."""
    state = _processes()
    if len(rows) % state.num_processes:
        problem = f"batches of {len(rows)} rows cannot be divided"
        raise TrainingError(
            f"{problem} among {state.num_processes} processes; choose rows that can"
        )
    return rows[state.process_index :: state.num_processes]


@contextmanager
def first_process() -> Iterator[bool]:
    """Yields whether this is the first process; at the end all wait for one another."""
    state = _processes()
    yield state.is_main_process
    state.wait_for_everyone()


def say(text: str) -> None:
    """Prints a line once, by the first process."""
    if _processes().is_main_process:
        line(text)


def training_device(device: torch.device) -> torch.device:
    """``device``, or this process' own where several processes train together."""
    state = _processes()
    return device if state.num_processes == 1 else state.device


def average_gradients(model: nn.Module) -> None:
    """Replaces the gradients of a model by their means over all processes."""
    from accelerate.utils import reduce

    parameters = [p for p in model.parameters() if p.grad is not None]
    own = torch.cat([p.grad.flatten() for p in parameters])  # type: ignore[union-attr]
    parts = reduce(own, reduction="mean").split([p.numel() for p in parameters])
    for p, mean in zip(parameters, parts, strict=True):
        p.grad.copy_(mean.view_as(p))  # type: ignore[union-attr]


@dataclass
class Log:
    """Of a run the loss of every step (of the first process' rows), pairs of a step and the
    held-out acceptance by position, and the seconds of every step without measuring and saving."""

    loss: list[float] = field(default_factory=list)
    measurements: list[list] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list, compare=False)

    @property
    def step_seconds(self) -> float:
        """The median of a step's seconds; it says something about one machine only."""
        return round(statistics.median(self.seconds), 4) if self.seconds else 0.0

    @property
    def recent_loss(self) -> float:
        return sum(self.loss[-20:]) / len(self.loss[-20:])

    @property
    def acceptance(self) -> str:
        """The last acceptance by position in words, nothing before the first measurement."""
        if not self.measurements:
            return ""
        _, by_position = self.measurements[-1]
        return "acceptance " + " ".join(f"{x:.2f}" for x in by_position)


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


MEASURES = 10  # how often in a run acceptance is measured on held-out text
REPORTS = 20  # how often in a run a line is printed where there is no terminal


class Training:
    """A model in training: its optimisers, its log and its checkpoint.

    Args:
        loss: of a step, and of a part of its batch, as a pure function of both.
        identity: names everything that must not change between the parts of one run (data, model,
            seed).
        measure: returns the acceptance by position on held-out text, which is shown beside the
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
        self.groups = [group for o in self.optimisers for group in o.param_groups]
        self.base_rates = [group["lr"] for group in self.groups]
        self.is_first = _processes().is_main_process
        self.is_parallel = _processes().num_processes > 1
        self.log = Log()
        self.start = self.done = 0  # steps, when this call began and now
        self.began = 0.0  # time of this call
        self.is_updating = False
        self.unread: list[Tensor] = []  # losses of the last step, where an interrupt came before
        self.last_save = time.monotonic()

    def resume(self) -> None:
        state = saved_state(self.checkpoint, self.identity)
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.groups = [group for o in self.optimisers for group in o.param_groups]
        self.start = self.done = state["step"]
        self.log = Log(state["history"], state.get("measured", []), state.get("seconds", []))

    def save(self) -> None:
        if not self.is_first:
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

    def clip(self) -> None:
        if not self.plan.clip:
            return
        if self.plan.clip_by == "value":
            torch.nn.utils.clip_grad_value_(self.model.parameters(), self.plan.clip)
        else:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)

    def measure_where_due(self) -> None:
        if self.measure is None or not self.is_first or not self.done:
            return
        measured = [step for step, _ in self.log.measurements[-1:]]
        if self._is_due(MEASURES, last=True) and measured != [self.done]:
            self.log.measurements.append([self.done, self.measure()])

    def report(self) -> None:
        """Prints a line now and then where there is no terminal."""
        if not self.is_first or errors.is_terminal or not self._is_due(REPORTS):
            return
        seconds = (time.monotonic() - self.began) / (self.done - self.start)
        line(f"{self.state()}, {duration(seconds * (self.plan.steps - self.done))} left")

    def _is_due(self, times: int, last: bool = False) -> bool:
        """Says whether something is due that happens so many times in a run."""
        is_due = self.done % max(1, self.plan.steps // times) == 0
        return is_due or (last and self.done == self.plan.steps)

    def state(self) -> str:
        """In words how far it is: step, loss and acceptance."""
        loss = f"loss {self.log.recent_loss:.3f}" if self.log.loss else ""
        parts = (f"step {self.done}/{self.plan.steps}", loss, self.log.acceptance)
        return f"{self.name}: {', '.join(filter(None, parts))}"

    def stop(self) -> None:
        """Saves after an interrupt, unless a step is half done."""
        if self.is_updating:
            state = "in the middle of a step, the last checkpoint holds"
        else:
            self.save()
            state = f"step {self.done} of {self.plan.steps} is saved"
        line(f"{self.name}: stopped, {state}; the same command goes on from there")
