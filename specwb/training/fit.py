"""The one training loop: progress, checkpoints that survive being killed at any moment, resume to the same weights."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from specwb.training.optim import fast_bfloat16, optimisers

console = Console(stderr=True)


class TrainingError(RuntimeError):
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


def save_atomically(write: Callable[[Path], object], path: Path) -> None:
    """Write beside ``path`` and rename, so that a crash or a full disk leaves the old file whole.

    Raises:
        TrainingError: the disk is full or not writable; the previous file is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        write(part)
        with open(part, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(part, path)
    except (OSError, RuntimeError) as error:
        # torch.save reports a full disk as a RuntimeError of its archive writer
        part.unlink(missing_ok=True)
        full = getattr(error, "errno", None) == errno.ENOSPC or "PytorchStreamWriter" in str(error)
        reason = "no space left on the device" if full else str(error)
        kept = f"; {path} keeps the last checkpoint, free some space and run the same command" if path.exists() else ""
        raise TrainingError(f"cannot write {path}: {reason}{kept}") from error


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 where the processor has instructions for it, otherwise plain float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=fast_bfloat16(device))


def fit(
    name: str,
    model: nn.Module,
    loss: Callable[[int], Tensor],
    plan: Plan,
    checkpoint: Path,
    identity: str,
) -> list[float]:
    """Train ``model`` in place and return the loss of every step.

    ``loss(step)`` builds its own batch as a pure function of the step, so a resumed run repeats an unbroken one exactly.
    ``identity`` names everything that must not change between the parts of one run (data, model, seed).

    Raises:
        TrainingError: the checkpoint belongs to another run, or cannot be written.
        KeyboardInterrupt: after saving; the same command goes on from there.
    """
    opts = optimisers(model, plan.lr_matrix, plan.lr_other, plan.weight_decay)
    bases = [group["lr"] for o in opts for group in o.param_groups]
    start, history = 0, []
    if checkpoint.exists():
        try:
            state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        except Exception as error:
            raise TrainingError(f"{checkpoint} cannot be read ({error}); delete it to start again") from error
        if state["identity"] != identity:
            raise TrainingError(f"{checkpoint} is of another run (other data, recipe or seed); delete it or choose another --out")
        model.load_state_dict(state["model"])
        for o, s in zip(opts, state["optimisers"], strict=True):
            o.load_state_dict(s)
        start, history = state["step"], state["history"]

    def save(step: int) -> None:
        content = {
            "identity": identity, "step": step, "history": history,
            "model": model.state_dict(), "optimisers": [o.state_dict() for o in opts],
        }  # fmt: skip
        save_atomically(lambda path: torch.save(content, path), checkpoint)

    device = next(model.parameters()).device
    model.train()
    saved, done, updating = time.monotonic(), start, False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}"),
               TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task(name, total=plan.steps, completed=start, loss="-")
            began = time.monotonic()
            for step in range(start, plan.steps):
                for o_group, base in zip((g for o in opts for g in o.param_groups), bases, strict=True):
                    o_group["lr"] = base * plan.scale(step)
                with autocast(device):
                    value = loss(step)
                value.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
                updating = True  # an interrupt from here on leaves a half-made step, which must not be saved
                for o in opts:
                    o.step()
                    o.zero_grad(set_to_none=True)
                history.append(round(value.item(), 5))
                done = step + 1
                updating = False
                recent = sum(history[-20:]) / len(history[-20:])
                progress.update(task, completed=done, loss=f"{recent:.3f}")
                if not console.is_terminal and (done % max(1, plan.steps // 20) == 0):
                    left = (time.monotonic() - began) / (done - start) * (plan.steps - done)
                    console.print(f"{name}: step {done}/{plan.steps}, loss {recent:.3f}, {left / 60:.1f} min left", highlight=False)
                if time.monotonic() - saved > plan.save_seconds:
                    save(done)
                    saved = time.monotonic()
    except KeyboardInterrupt:
        if not updating:
            save(done)
        at = f"step {done} of {plan.steps} is saved" if not updating else "in the middle of a step, the last checkpoint holds"
        console.print(f"{name}: stopped, {at}; the same command goes on from there", highlight=False)
        raise
    if done > start or not checkpoint.exists():
        save(done)
    model.eval()
    return history
