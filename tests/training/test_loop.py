"""Training can be stopped at any moment and still reaches the same weights."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specwb.core.files import WriteError, write
from specwb.training import loop
from specwb.training.fit import TrainingError, dump
from specwb.training.loop import Log, TrainingRun
from specwb.training.optim import Muon, Plan, optimisers


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def train(model: nn.Module, checkpoint: Path, stop: int | None = None, **changes) -> Log:
    """Trains 40 steps and measures every four; Ctrl-C in the loss of step ``stop``."""

    def loss(step: int, part: int) -> Tensor:
        if step == stop:
            raise KeyboardInterrupt
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
        return F.cross_entropy(model(x), x[:, :3].argmax(1))

    plan, run = Plan(40, warmup=5, **changes), "run"
    return loop.train(TrainingRun("small", model, loss, plan, checkpoint, run, lambda: [0.5]))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def resumed_alike(folder: Path, stopped: Callable[[nn.Module, Path], object], step: int) -> None:
    """Asserts that a run that was interrupted after ``step`` steps ends as an unbroken one."""
    unbroken, resumed = small(), small()
    log = train(unbroken, folder / "a.pt")
    with pytest.raises(KeyboardInterrupt):
        stopped(small(), folder / "b.pt")
    assert torch.load(folder / "b.pt", weights_only=True)["step"] == step
    assert train(resumed, folder / "b.pt") == log
    assert [step for step, _ in log.measurements] == list(range(4, 41, 4))
    assert torch.equal(weights(unbroken), weights(resumed))
    assert log.loss[-1] < log.loss[0]


@pytest.mark.parametrize("stop", [1, 20])
def test_an_interrupt_in_a_loss(tmp_path, stop):
    resumed_alike(tmp_path, partial(train, stop=stop), stop)


def test_an_interrupt_while_a_step_is_waited_for_saves_the_step(tmp_path, monkeypatch):
    read = TrainingRun.read

    def interrupted(training):
        if training.done == 9:
            monkeypatch.undo()
            raise KeyboardInterrupt
        read(training)

    def stopped(model, path):
        monkeypatch.setattr(TrainingRun, "read", interrupted)
        train(model, path)

    resumed_alike(tmp_path, stopped, 9)


def test_an_interrupt_between_two_optimisers_is_not_saved(tmp_path, monkeypatch):
    """Muon has stepped, AdamW has not: saving that would change every later weight."""
    calls, true = [], torch.optim.AdamW.step

    def stop(self, *rest):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return true(self, *rest)

    def stopped(model, path):
        with monkeypatch.context() as patch:
            patch.setattr(loop, "SAVE_SECONDS", 0.0)
            patch.setattr(torch.optim.AdamW, "step", stop)
            train(model, path)

    resumed_alike(tmp_path, stopped, 7)


@pytest.mark.parametrize("content", [b"not a checkpoint", None])
def test_a_damaged_checkpoint_or_one_of_another_run_is_refused(tmp_path, content):
    path = tmp_path / "a.pt"
    write(partial(dump, {"identity": "other"}) if content is None else content, path)
    message = "is of another run" if content is None else "cannot be read: it is damaged or cut off"
    with pytest.raises(TrainingError, match=rf"a\.pt {message}"):
        train(small(), path)


def test_full_disk_keeps_the_last_checkpoint(tmp_path):
    """A real write failure: the process may not write files beyond 20 kB."""
    path = tmp_path / "a.pt"
    write(partial(dump, {"step": 1}), path)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        message = r"cannot write .*: File too large; .*a\.pt stays as it was; free some space"
        with pytest.raises(WriteError, match=message):
            write(partial(dump, {"big": torch.zeros(100_000)}), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_muon_agrees_with_the_library():
    """Against torch.optim.Muon, whose iteration runs in bfloat16."""
    torch.manual_seed(0)
    start = torch.randn(10, 14)
    a, b = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    ours = Muon([a], lr=0.02, momentum=0.95, weight_decay=0.1)
    theirs = torch.optim.Muon(
        [b], lr=0.02, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(3):
        a.grad = torch.randn(10, 14)
        b.grad = a.grad.clone()
        ours.step()
        theirs.step()
    assert float((a - b).detach().norm() / (b.detach() - start).norm()) < 0.05


def test_beside_muon_nothing_else_is_shrunk():
    muon, adam = optimisers(small(), Plan(1, weight_decay=0.25))
    assert (muon.param_groups[0]["weight_decay"], adam.param_groups[0]["weight_decay"]) == (0.25, 0)
    (adam,) = optimisers(small(), Plan(1, "adamw", weight_decay=0.25))
    assert adam.param_groups[0]["weight_decay"] == 0.25


@pytest.mark.parametrize(("by", "wanted"), [("norm", [0.6, 0.8]), ("value", [1.0, 1.0])])
def test_gradients_are_clipped_by_their_norm_or_value(tmp_path, monkeypatch, by, wanted):
    model, seen = nn.Linear(2, 1, bias=False), []
    plan = Plan(1, "adamw", clip=1.0, clip_by=by)
    step = torch.optim.AdamW.step

    def noted(self, *rest):
        seen.append(model.weight.grad[0].tolist())
        return step(self, *rest)

    monkeypatch.setattr(torch.optim.AdamW, "step", noted)
    far = torch.tensor([3.0, 4.0])
    loss = lambda step, part: (model.weight[0] * far).sum()  # noqa: E731
    loop.train(TrainingRun("clipped", model, loss, plan, tmp_path / "a.pt", "run"))
    assert seen == [pytest.approx(wanted, rel=1e-4)]
