"""Dependence of the next tokens, and the acceptance that goes with it.

Dependence is compared with all continuations of a tiny target, acceptance with real drafts.
"""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import tiny
import torch
from torch.special import entr

import specwb
from specwb.lab.evaluation.dependence import acceptance_by_dependence
from specwb.models.eagle import eagle_config
from specwb.models.falcon import FalconHead

SIX, TEXT, TEMPERATURE = 6, [1, 2, 3, 0], 0.5


@cache
def small() -> specwb.Target:
    """A target of six tokens, spread so wide that the next tokens are far from independent."""
    return specwb.load(tiny.build("llama", seed=4, spread=0.4, vocab_size=SIX))


@cache
def joint(temperature: float = TEMPERATURE) -> torch.Tensor:
    """``[6,6,6]``: the joint distribution of the three tokens after ``TEXT``.

    It is computed prefix by prefix, from the library's forward.
    """

    def p(prefix: tuple[int, ...]) -> torch.Tensor:
        logits = tiny.forward(small().model, [*TEXT, *prefix])[-1].double()
        return (logits / temperature).softmax(-1)

    table = torch.zeros(SIX, SIX, SIX, dtype=torch.float64)
    for x, y in itertools.product(range(SIX), repeat=2):
        table[x, y] = p(())[x] * p((x,))[y] * p((x, y))
    return table


def entropy(table: torch.Tensor) -> float:
    return float(entr(table).sum())


def true_information(table: torch.Tensor) -> tuple[float, float]:
    """I(X;Y) and I(XY;Z) from entropies of marginals."""
    x, y, z, xy = table.sum((1, 2)), table.sum((0, 2)), table.sum((0, 1)), table.sum(2)
    return entropy(x) + entropy(y) - entropy(xy), entropy(xy) + entropy(z) - entropy(table)


def test_estimates_from_many_paths_are_near_the_truth():
    table = joint()
    first, second = true_information(table)
    assert min(first, second) > 0.3
    torch.manual_seed(0)
    head = FalconHead(eagle_config(small(), 2), small().backbone.config.hidden_size, 3)
    frame = acceptance_by_dependence(small(), head, [TEXT] * 12, 300, TEMPERATURE)
    mean = frame.groupby("place").mean()
    assert mean.information.tolist() == pytest.approx([0, first, second], abs=0.04)
    # the overlap of a token's distribution with that after the tokens before it
    x, y, z, xy = table.sum((1, 2)), table.sum((0, 2)), table.sum((0, 1)), table.sum(2)
    second = torch.minimum(xy, x[:, None] * y).sum()
    third = torch.minimum(table, xy[..., None] * z).sum()
    assert mean.marginal.tolist() == pytest.approx([1, float(second), float(third)], abs=0.03)


def test_without_temperature_nothing_depends_on_anything():
    contexts = [[1, 2, 3, 4], [7, 8, 9, 10]]
    table = acceptance_by_dependence(tiny.target(), tiny.head("falcon3"), contexts, 4, 0)
    assert (table.information == 0).all()
    assert (table.marginal == 1).all()
    assert set(table.acceptance) <= {0, 1}
