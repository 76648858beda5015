"""The losses: their values against their definitions, and that each is least at q = p."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from specwb.training import losses
from specwb.training.losses import LOSSES, loss_by_position, output_loss

V = 5


def random_logits(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 2, 3, V, generator=generator, dtype=torch.float64).unbind()


def by_definition(loss: str, p: list[float], q: list[float], eta: float, alpha: float) -> float:
    overlap = sum(map(min, p, q))
    kl = -sum(a * math.log(b) for a, b in zip(p, q, strict=True))
    return {
        "kl": kl,
        "rkl": sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)),
        "tv": sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2,
        "nla": -math.log(overlap),
        "lk": math.exp(-eta * alpha) * kl + (1 - math.exp(-eta * alpha)) * (1 - overlap),
        "best": -math.log(q[p.index(max(p))]),
        "token": -math.log(q[2]),
    }[loss]


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_its_definition(loss):
    logits, wanted = random_logits()
    p, q = wanted.float().softmax(-1), logits.float().softmax(-1)
    alpha = float(torch.minimum(p, q).sum(-1).mean())
    values = loss_by_position(loss, logits, p, tokens=torch.full((2, 3), 2), eta=2.0)
    assert values.shape == (2, 3)
    for row in range(2):
        for i in range(3):
            expected = by_definition(loss, p[row, i].tolist(), q[row, i].tolist(), 2.0, alpha)
            assert float(values[row, i]) == pytest.approx(expected, rel=1e-4)


def test_what_a_vocabulary_has_not_is_never_accepted():
    """Two of five tokens are missing: alpha counts the rest with the target's own probabilities."""
    logits, wanted = random_logits(2)
    full = wanted.float().softmax(-1)
    part = full[..., :3]
    mass = part.sum(-1)
    q = logits[..., :3].float().softmax(-1)
    values = loss_by_position("tv", logits[..., :3], part / mass[..., None], mass)
    torch.testing.assert_close(values, 1 - torch.minimum(part, q).sum(-1))
    assert (values > 1 - mass - 1e-6).all()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("with_bias", "size"), [(False, 16), (True, 80)])
def test_a_loss_in_parts_is_plain_autograds(monkeypatch, loss, with_bias, size):
    """Of 80 predictions of two rows some do not count: in parts of 16, or all at once."""
    monkeypatch.setattr(losses, "PART", {"cpu": V * size})
    torch.manual_seed(0)
    states = torch.randn(2, 40, 6, dtype=torch.float64)
    output = nn.Linear(6, V, with_bias, dtype=torch.float64)
    p, mass = torch.randn(2, 40, V).softmax(-1), torch.rand(2, 40)
    tokens, counts = torch.randint(-1, V, (2, 40)), torch.rand(2, 40)
    counts[:, ::3] = 0
    counts[1, 16:32] = 0
    kept = [(r, i) for r in range(2) for i in range(40) if counts[r, i]]
    parts = [torch.tensor(kept[i : i + size]).unbind(1) for i in range(0, len(kept), size)]

    def cost(logits, *at):
        wanted, much, labels, share = p[at], mass[at], tokens[at], counts[at]
        return loss_by_position(loss, logits, wanted, much, labels, 2.0, share)

    def gradients(value, x):
        return torch.autograd.grad(value, [x, *output.parameters()])

    asked, x = [], states.clone().requires_grad_()

    def noted(logits, *at):
        asked.extend(zip(*(each.tolist() for each in at)))
        return cost(logits, *at)

    value = output_loss(x, output, counts, noted)
    assert asked == kept
    y = states.clone().requires_grad_()
    plain = sum((cost(output(y[at]), *at) * counts[at]).sum() for at in parts)
    assert value.item() == pytest.approx(plain.item(), rel=1e-5)
    assert value.item() != 0
    # by three times the loss, as a sum of several would have it
    for ours, theirs in zip(gradients(3 * value, x), gradients(3 * plain, y), strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        assert ours.abs().sum() > 0


@pytest.mark.parametrize("frozen", [False, True])
def test_an_output_layer_that_is_not_trained_has_no_gradients(frozen):
    output, states = nn.Linear(6, V), torch.randn(2, 3, 6, requires_grad=True)
    args = states, output, torch.ones(2, 3), lambda logits, rows, places: logits.sum(-1)
    output_loss(*args, frozen=frozen).backward()
    assert torch.allclose(states.grad, output.weight.sum(0).expand(2, 3, 6))
    assert (output.weight.grad is None, output.bias.grad is None) == (frozen, frozen)
