"""The losses: their values against their definitions, and that each is least at q = p."""

from __future__ import annotations

import math

import pytest
import torch

from specwb.training.losses import LOSSES, loss_by_position

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


@pytest.mark.parametrize("loss", ["kl", "rkl", "tv", "nla", "lk"])
def test_learning_it_leads_to_the_targets_distribution(loss):
    logits, wanted = random_logits(1)
    p = wanted.softmax(-1).float()
    learnt = logits.float().requires_grad_()
    optimiser = torch.optim.Adam([learnt], lr=0.02)
    for _ in range(1500):
        optimiser.zero_grad()
        loss_by_position(loss, learnt, p).mean().backward()
        optimiser.step()
    assert (learnt.softmax(-1) - p).abs().max() < 0.02


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


def test_lk_is_kl_while_nothing_is_accepted_and_tv_for_large_eta():
    logits = torch.tensor([[[30.0, 0, 0]]])
    p = torch.tensor([[[0.0, 0.5, 0.5]]])
    kl = loss_by_position("kl", logits, p)
    torch.testing.assert_close(loss_by_position("lk", logits, p), kl)
    close = torch.tensor([[[0.0, 0.1, 0.2]]])
    many = loss_by_position("lk", close, p, eta=1e6)
    torch.testing.assert_close(many, loss_by_position("tv", close, p))


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_finite_where_probabilities_vanish(loss):
    logits = torch.tensor([[[90.0, -90.0, 0.0]]], requires_grad=True)
    p = torch.tensor([[[0.0, 1.0, 0.0]]])
    loss_by_position(loss, logits, p, tokens=torch.tensor([[1]])).sum().backward()
    assert logits.grad.isfinite().all()
