"""Training that is killed by SIGKILL, in the middle of a step after its first checkpoint."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specwb.training import optim, run, settings


def killed(monkeypatch: pytest.MonkeyPatch, checkpoint: Path, train: Callable[[], object]) -> int:
    """Runs ``train`` in a child process and kills that once ``checkpoint`` is there.

    The child saves after every step. Returns the step that was saved.
    """
    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(settings, "Plan", partial(optim.Plan, save_seconds=0.0))
            target_pass = run.TargetPass

            def slow_pass(*arguments):
                time.sleep(0.2)
                return target_pass(*arguments)

            monkeypatch.setattr(run, "TargetPass", slow_pass)
            train()
        finally:
            os._exit(0)
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return torch.load(checkpoint, weights_only=True)["step"]


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def resumed_alike(
    monkeypatch: pytest.MonkeyPatch, folder: Path, train: Callable[..., Path], steps: int
) -> dict[str, Tensor]:
    """Asserts that a run that was killed and resumed gives the weights of an unbroken one.

    Args:
        monkeypatch: pytest's.
        folder: where both runs write.
        train: trains into the folder that it is given.
        steps: how many steps a run has.

    Returns:
        The weights, which are equal bit for bit.
    """
    unbroken = weights(train(folder / "whole"))
    checkpoint = folder / "part.checkpoint.pt"
    step = killed(monkeypatch, checkpoint, lambda: train(folder / "part"))
    assert 0 < step < steps
    resumed = weights(train(folder / "part"))
    assert unbroken.keys() == resumed.keys()
    assert all(torch.equal(unbroken[name], resumed[name]) for name in unbroken)
    return unbroken
