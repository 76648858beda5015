"""Training can be stopped at any moment and still reaches the same weights."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from specwb.core.files import WriteError, write
from specwb.training.fit import Log, Plan, Training, TrainingError, dump
from specwb.training.loop import train as train_together
from specwb.training.optim import Muon, optimisers, orthogonalise


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def losses(model, stop_at=None, slow=0.0):
    def loss(step: int, part: int):
        if step == stop_at:
            raise KeyboardInterrupt
        time.sleep(slow)
        g = torch.Generator().manual_seed(step)
        x = torch.randn(16, 6, generator=g)
        return F.cross_entropy(model(x), x[:, :3].argmax(1))

    return loss


def train(*arguments) -> Log:
    """Trains one model by the common loop."""
    (log,) = train_together(Training(*arguments))
    return log


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("stop", [1, 17, 20, 39])
def test_interrupted_training_resumes_to_the_same_weights(tmp_path, stop):
    plan, more = Plan(40, warmup=5), ("run", lambda: [0.5])  # which measures every four steps
    unbroken = small()
    log = train("whole", unbroken, losses(unbroken), plan, tmp_path / "a.pt", *more)
    broken = small()
    with pytest.raises(KeyboardInterrupt):
        train("part", broken, losses(broken, stop), plan, tmp_path / "b.pt", *more)
    resumed = small()
    assert train("part", resumed, losses(resumed), plan, tmp_path / "b.pt", *more) == log
    assert [step for step, _ in log.measurements] == list(range(4, 41, 4))
    assert torch.equal(weights(unbroken), weights(resumed))
    assert log.loss[-1] < log.loss[0]


def test_an_interrupt_while_a_step_is_waited_for_saves_the_step(tmp_path, monkeypatch):
    plan, calls, read = Plan(20, warmup=5), [], Training.read
    unbroken = small()
    log = train("whole", unbroken, losses(unbroken), plan, tmp_path / "a.pt", "run")

    def interrupted(training):
        calls.append(training.done)
        if len(calls) == 9:
            raise KeyboardInterrupt
        read(training)

    monkeypatch.setattr(Training, "read", interrupted)
    broken = small()
    with pytest.raises(KeyboardInterrupt):
        train("part", broken, losses(broken), plan, tmp_path / "b.pt", "run")
    monkeypatch.undo()
    assert torch.load(tmp_path / "b.pt", weights_only=True)["step"] == 9
    resumed = small()
    assert train("part", resumed, losses(resumed), plan, tmp_path / "b.pt", "run") == log
    assert torch.equal(weights(unbroken), weights(resumed))


SCRIPT = """
import sys, torch
sys.path.insert(0, {here!r})
from pathlib import Path
import test_fit as t
from specwb.training.optim import Plan
model = t.small()
print("ready", flush=True)
plan = Plan(120, warmup=5, save_seconds=0.0)
t.train("killed", model, t.losses(model, slow=0.01), plan, Path({path!r}), "run")
torch.save(t.weights(model), {out!r})
"""


@pytest.mark.slow
def test_killed_training_resumes_to_the_same_weights(tmp_path):
    script = SCRIPT.format(
        here=os.path.dirname(__file__), path=str(tmp_path / "c.pt"), out=str(tmp_path / "w.pt")
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "c.pt").exists():
        assert time.monotonic() < deadline, "the child never saved"
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "w.pt").exists()
    step = torch.load(tmp_path / "c.pt", weights_only=True)["step"]
    assert 0 < step < 120
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    unbroken = small()
    train("whole", unbroken, losses(unbroken), Plan(120, warmup=5), tmp_path / "a.pt", "run")
    assert torch.equal(torch.load(tmp_path / "w.pt", weights_only=True), weights(unbroken))


def test_checkpoint_of_another_run_is_refused(tmp_path):
    model = small()
    train("one", model, losses(model), Plan(2), tmp_path / "a.pt", "one")
    with pytest.raises(TrainingError, match="another run"):
        train("two", small(), losses(model), Plan(2), tmp_path / "a.pt", "two")


def test_damaged_checkpoint_is_refused(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(TrainingError, match=r"a\.pt cannot be read: it is damaged or cut off"):
        train("x", small(), losses(small()), Plan(2), tmp_path / "a.pt", "x")


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


def test_two_runs_that_save_at_once_do_not_meet(tmp_path):
    """One begins and ends while the other writes.

    If both wrote under one name, its rename would leave nothing to rename.
    """
    path = tmp_path / "a.pt"

    def slow(part):
        dump({"step": 1}, part)
        write(partial(dump, {"step": 2}), path)

    write(slow, path)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_orthogonalise_flattens_singular_values():
    torch.manual_seed(0)
    for shape in ((12, 20), (20, 12), (3, 9, 9)):
        s = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert 0.3 < float(s.min()) <= float(s.max()) < 1.3


def test_muon_agrees_with_the_library():
    """Against torch.optim.Muon, whose iteration runs in bfloat16."""
    torch.manual_seed(0)
    a = nn.Parameter(torch.randn(10, 14))
    b = nn.Parameter(a.detach().clone())
    ours = Muon([a], lr=0.02, momentum=0.95, weight_decay=0.1)
    theirs = torch.optim.Muon(
        [b], lr=0.02, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    start = a.detach().clone()
    for _ in range(3):
        grad = torch.randn(10, 14)
        a.grad, b.grad = grad.clone(), grad.clone()
        ours.step()
        theirs.step()
    moved = (b.detach() - start).norm()
    assert float((a - b).detach().norm() / moved) < 0.05


def test_beside_muon_nothing_else_is_shrunk():
    muon, adam = optimisers(small(), Plan(1, weight_decay=0.25))
    assert (muon.param_groups[0]["weight_decay"], adam.param_groups[0]["weight_decay"]) == (0.25, 0)
    (adam,) = optimisers(small(), Plan(1, "adamw", weight_decay=0.25))
    assert adam.param_groups[0]["weight_decay"] == 0.25


@pytest.mark.parametrize(("by", "wanted"), [("norm", [0.6, 0.8]), ("value", [1.0, 1.0])])
def test_gradients_are_clipped_by_their_norm_or_value(tmp_path, by, wanted):
    model = nn.Linear(2, 1, bias=False)
    plan = Plan(1, clip=1.0, clip_by=by)
    training = Training("clipped", model, losses(model), plan, tmp_path / "a.pt", "run")
    model.weight.grad = torch.tensor([[3.0, 4.0]])
    training.clip()
    assert model.weight.grad[0].tolist() == pytest.approx(wanted, rel=1e-4)


def test_a_steps_seconds_are_the_median():
    """The first step may have to compile something."""
    assert Log(seconds=[10.0, 1.0, 1.0, 2.0, 1.0]).step_seconds == 1.0


def test_an_interrupt_between_two_optimisers_is_not_saved(tmp_path, monkeypatch):
    """Muon has stepped, AdamW has not: saving that would change every later weight."""
    unbroken = small()
    train("whole", unbroken, losses(unbroken), Plan(20, warmup=5), tmp_path / "a.pt", "run")
    calls, true = [], torch.optim.AdamW.step

    def stop(self, *rest):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return true(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", stop)
        broken = small()
        with pytest.raises(KeyboardInterrupt):
            train(
                "part",
                broken,
                losses(broken),
                Plan(20, warmup=5, save_seconds=0.0),
                tmp_path / "b.pt",
                "run",
            )
    assert torch.load(tmp_path / "b.pt", weights_only=True)["step"] == 7
    resumed = small()
    train("part", resumed, losses(resumed), Plan(20, warmup=5), tmp_path / "b.pt", "run")
    assert torch.equal(weights(unbroken), weights(resumed))
