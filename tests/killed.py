"""A training that is killed the hard way: SIGKILL in the middle of a step, after its first checkpoint."""

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

from specwb.training import fit, heads


def killed(monkeypatch: pytest.MonkeyPatch, checkpoint: Path, train: Callable[[], object]) -> int:
    """Run ``train`` in a child that saves after every step, kill it once ``checkpoint`` is there; the step that was saved."""
    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(heads, "Plan", partial(fit.Plan, save_seconds=0.0))
            true = heads.look
            monkeypatch.setattr(heads, "look", lambda *given: (time.sleep(0.2), true(*given))[1])
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


def resumed_alike(monkeypatch: pytest.MonkeyPatch, folder: Path, train: Callable[..., Path], steps: int) -> dict[str, Tensor]:
    """Weights of a run of ``train(out)`` to its end, after one that was killed and went on was found equal to it bit for bit."""
    whole = weights(train(folder / "whole"))
    assert 0 < killed(monkeypatch, folder / "part.checkpoint.pt", lambda: train(folder / "part")) < steps
    part = weights(train(folder / "part"))
    assert whole.keys() == part.keys()
    assert all(torch.equal(whole[name], part[name]) for name in whole)
    return whole
