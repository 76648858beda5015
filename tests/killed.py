"""Short trainings, and one that is killed by SIGKILL in the middle of a step after its first
checkpoint."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file
from torch import Tensor

import specwb
from specwb.training import corpus, loop, run


def random_corpus(below: int = tiny.VOCABULARY) -> corpus.Corpus:
    rng = np.random.default_rng(0)
    stream, held_out = (rng.integers(0, below, n).astype(np.uint16) for n in (2000, 500))
    return corpus.Corpus({"text": stream}, {"text": held_out}, [], "x")


def trained(
    kind: str,
    out: Path,
    settings: dict[str, Any],
    target: specwb.Target | None = None,
    data: corpus.Corpus | None = None,
    **budget: int,
) -> Path:
    """Trains a head on random text for a few steps; returns its folder."""
    budget = {"steps": 4, "rows": 4, "length": 32, **budget}
    given = target or tiny.target(), out, {**settings, **budget}, data or random_corpus()
    return run.train_head(kind, *given, {"text": 1.0}, seed=3, source="read")


def card_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "card.json").read_text())


def weights(folder: Path) -> dict[str, Tensor]:
    (path,) = folder.glob("*.safetensors")
    return load_file(path)


def killed(monkeypatch: pytest.MonkeyPatch, checkpoint: Path, train: Callable[[], object]) -> int:
    """Runs ``train`` in a child process and kills that once ``checkpoint`` is there.

    The child saves after every step. Returns the step that was saved.
    """
    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
            step_loss = run.step_loss

            def slow_loss(*arguments):
                time.sleep(0.2)
                return step_loss(*arguments)

            monkeypatch.setattr(run, "step_loss", slow_loss)
            train()
        finally:
            os._exit(0)
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return torch.load(checkpoint, weights_only=True)["step"]


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
