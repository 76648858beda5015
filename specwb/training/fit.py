"""The one training loop: progress, checkpoints that survive being killed at any moment, resume to the same weights.

Under ``accelerate launch`` every process takes its part of each batch (:func:`share`) and the gradients are averaged; the first process
prints and writes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors import SafetensorError
from torch import Tensor, nn

from specwb.errors import SpecwbError
from specwb.files import whole_file
from specwb.training.optim import fast_bfloat16, optimisers

console = Console(stderr=True)


class TrainingError(SpecwbError, RuntimeError):
    """Training cannot start or go on; everything up to the last checkpoint is kept."""


@dataclass(frozen=True)
class Plan:
    """How long and how fast: ``steps`` of one batch each; learning rates warm up, stay, and fall to 2 % over the last ``decay`` part."""

    steps: int
    lr_matrix: float = 3.5e-3
    lr_other: float = 3e-3
    weight_decay: float = 0.1
    warmup: int = 100
    decay: float = 0.4
    clip: float = 1.0
    save_seconds: float = 60.0

    def scale(self, step: int) -> float:
        decay = max(1, int(self.steps * self.decay))
        left = self.steps - step
        return min(1.0, (step + 1) / self.warmup) * (1.0 if left > decay else 0.02 + 0.98 * left / decay)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What keeps a file or folder from being written is a TrainingError in words."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        kept = f"; {path} stays as it was, free some space or name another place and run the same command" if path.exists() else ""
        raise TrainingError(f"cannot write {path}: {reason}{kept}") from error


def save_atomically(write: Callable[[Path], object], path: Path) -> None:
    """:func:`specwb.files.whole_file` in a folder that is made where it is missing.

    Raises:
        TrainingError: the disk is full or not writable; the previous file is untouched.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            write(part)
            if part.is_file():  # hours of work: what takes the old file's place is on the disk before it does
                with open(part, "rb") as handle:
                    os.fsync(handle.fileno())


def dump(content: Any, path: Path) -> None:
    """``torch.save``, but of a disk that is full it raises the system's OSError."""
    with open(path, "wb") as handle:  # given a path, it opens the file itself and tells no more than a position in the archive
        try:
            torch.save(content, handle)
        except RuntimeError as error:  # closing the archive fails once more, behind the error that is wanted
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 where the processor has instructions for it, otherwise plain float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=fast_bfloat16(device))


def _processes():
    from accelerate import PartialState

    return PartialState(cpu=not torch.cuda.is_available())


def share(rows: np.ndarray) -> np.ndarray:
    """This process' part of a batch: every n-th row of n processes.

    Raises:
        TrainingError: the rows cannot be divided evenly, so that a mean of means would not be the mean.
    """
    state = _processes()
    if len(rows) % state.num_processes:
        raise TrainingError(f"batches of {len(rows)} rows cannot be divided among {state.num_processes} processes; choose rows that can")
    return rows[state.process_index :: state.num_processes]


@contextmanager
def everyone() -> Iterator[bool]:
    """A part that only the first process does (it is given True), while the others wait for it."""
    state = _processes()
    yield state.is_main_process
    state.wait_for_everyone()


def say(line: str) -> None:
    """Printed by the first process."""
    if _processes().is_main_process:
        console.print(line, highlight=False, soft_wrap=True)


def training_device(device: torch.device) -> torch.device:
    """``device``, or this process' own where several train together."""
    state = _processes()
    return device if state.num_processes == 1 else state.device


def _average(model: nn.Module) -> None:
    """Every process' gradients become the mean of all."""
    from accelerate.utils import reduce

    given = [p for p in model.parameters() if p.grad is not None]
    flat = reduce(torch.cat([p.grad.flatten() for p in given]), reduction="mean")  # type: ignore[union-attr]
    for p, part in zip(given, flat.split([p.numel() for p in given]), strict=True):
        p.grad.copy_(part.view_as(p))  # type: ignore[union-attr]


@dataclass
class Log:
    """``loss`` of every step (of the first process' part of the batch), and what was ``measured`` on the way: (step, acceptance by position)."""

    loss: list[float] = field(default_factory=list)
    measured: list[list] = field(default_factory=list)


def saved_state(checkpoint: Path, identity: str) -> dict | None:
    """What an interrupted run left, None where nothing is there. Raises TrainingError where it is damaged or of another run."""
    if not checkpoint.exists():
        return None
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    except Exception as error:
        raise TrainingError(f"{checkpoint} cannot be read: it is damaged or cut off, or no checkpoint; delete it to start again") from error
    if not isinstance(state, dict) or state.get("identity") != identity:
        raise TrainingError(f"{checkpoint} is of another run (other data, recipe or seed); delete it or choose another --out")
    return state


MEASURES = 10  # times a run looks at held-out text


def fit(
    name: str,
    model: nn.Module,
    loss: Callable[[int], Tensor],
    plan: Plan,
    checkpoint: Path,
    identity: str,
    measure: Callable[[], list[float]] | None = None,
    with_adam: set[str] | None = None,
) -> Log:
    """Train ``model`` in place and return the loss of every step.

    ``loss(step)`` builds its own batch as a pure function of the step, so a resumed run repeats an unbroken one exactly.
    ``identity`` names everything that must not change between the parts of one run (data, model, seed).
    ``measure()`` is acceptance by position on held-out text, shown beside the loss: the loss alone does not say what will be accepted.
    ``with_adam`` names matrices that are not for Muon, default embeddings and heads.

    Raises:
        TrainingError: the checkpoint belongs to another run, or cannot be written.
        KeyboardInterrupt: after saving; the same command goes on from there.
    """
    opts = optimisers(model, plan.lr_matrix, plan.lr_other, plan.weight_decay, with_adam)
    processes, log = _processes(), Log()
    main, several = processes.is_main_process, processes.num_processes > 1
    bases = [group["lr"] for o in opts for group in o.param_groups]
    start = 0
    if (state := saved_state(checkpoint, identity)) is not None:
        model.load_state_dict(state["model"])
        for o, s in zip(opts, state["optimisers"], strict=True):
            o.load_state_dict(s)
        start, log = state["step"], Log(state["history"], state.get("measured", []))

    def save(step: int) -> None:
        if not main:
            return
        content = {
            "identity": identity, "step": step, "history": log.loss, "measured": log.measured,
            "model": model.state_dict(), "optimisers": [o.state_dict() for o in opts],
        }  # fmt: skip
        save_atomically(partial(dump, content), checkpoint)

    device = next(model.parameters()).device
    model.train()
    saved, done, updating = time.monotonic(), start, False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}"),
               TextColumn("{task.fields[found]}"), TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    try:
        with Progress(*columns, console=console, disable=not (main and console.is_terminal)) as progress:
            task = progress.add_task(name, total=plan.steps, completed=start, loss="-", found=_said(log))
            began = time.monotonic()
            for step in range(start, plan.steps):
                for o_group, base in zip((g for o in opts for g in o.param_groups), bases, strict=True):
                    o_group["lr"] = base * plan.scale(step)
                with autocast(device):
                    value = loss(step)
                value.backward()
                if several:
                    _average(model)
                torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
                updating = True  # an interrupt from here on leaves a half-made step, which must not be saved
                for o in opts:
                    o.step()
                    o.zero_grad(set_to_none=True)
                log.loss.append(round(value.item(), 5))
                done = step + 1
                updating = False
                recent = sum(log.loss[-20:]) / len(log.loss[-20:])
                if measure is not None and main and (done % max(1, plan.steps // MEASURES) == 0 or done == plan.steps):
                    log.measured.append([done, measure()])
                progress.update(task, completed=done, loss=f"{recent:.3f}", found=_said(log))
                if main and not console.is_terminal and (done % max(1, plan.steps // 20) == 0):
                    left = (time.monotonic() - began) / (done - start) * (plan.steps - done)
                    told = ", ".join(filter(None, (f"step {done}/{plan.steps}", f"loss {recent:.3f}", _said(log), f"{left / 60:.1f} min left")))
                    console.print(f"{name}: {told}", highlight=False, soft_wrap=True)
                if time.monotonic() - saved > plan.save_seconds:
                    save(done)
                    saved = time.monotonic()
    except KeyboardInterrupt:
        if not updating:
            save(done)
        at = f"step {done} of {plan.steps} is saved" if not updating else "in the middle of a step, the last checkpoint holds"
        console.print(f"{name}: stopped, {at}; the same command goes on from there", highlight=False, soft_wrap=True)
        raise
    if done > start or not checkpoint.exists():
        save(done)
    model.eval()
    return log


def _said(log: Log) -> str:
    """Acceptance by position, as last measured."""
    return "acceptance " + " ".join(f"{x:.2f}" for x in log.measured[-1][1]) if log.measured else ""
