"""What all trainings share: processes, number types, and files that are whole.

Under ``accelerate launch`` every process takes its rows of each batch (:func:`process_rows`) and
the gradients are averaged; the first process prints and writes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from specwb.core.errors import SpecwbError
from specwb.core.files import write
from specwb.core.progress import line
from specwb.models.device import fast_bfloat16_products


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
    """Computes in bfloat16 where that is faster, otherwise in float32."""
    fast = fast_bfloat16_products(device)
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=fast)


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


def is_first_process() -> bool:
    """Whether this process prints and writes."""
    return _processes().is_main_process


def is_parallel() -> bool:
    """Whether several processes train together."""
    return _processes().num_processes > 1


@contextmanager
def first_process() -> Iterator[bool]:
    """Yields whether this is the first process; at the end all wait for one another."""
    yield is_first_process()
    _processes().wait_for_everyone()


def say(text: str) -> None:
    """Prints a line once, by the first process."""
    if is_first_process():
        line(text)


def training_device(device: torch.device) -> torch.device:
    """``device``, or this process' own where several processes train together."""
    return _processes().device if is_parallel() else device


def average_gradients(model: nn.Module) -> None:
    """Replaces the gradients of a model by their means over all processes."""
    from accelerate.utils import reduce

    parameters = [p for p in model.parameters() if p.grad is not None]
    own = torch.cat([p.grad.flatten() for p in parameters])  # type: ignore[union-attr]
    parts = reduce(own, reduction="mean").split([p.numel() for p in parameters])
    for p, mean in zip(parameters, parts, strict=True):
        p.grad.copy_(mean.view_as(p))  # type: ignore[union-attr]
