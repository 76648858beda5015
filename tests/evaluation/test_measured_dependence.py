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
from specwb.lab.evaluation import dependence as measured

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
    frame = measured.dependence(small(), [TEXT] * 12, paths=300, temperature=TEMPERATURE)
    mean = frame.groupby("place").mean()
    assert mean.information.tolist() == pytest.approx([0, first, second], abs=0.04)
    assert mean.upper.tolist() == pytest.approx([0, first, second], abs=0.04)
    singles = [entropy(table.sum((1, 2))), entropy(table.sum((0, 2))), entropy(table.sum((0, 1)))]
    assert mean.entropy.tolist() == pytest.approx(singles, abs=0.04)
    # total correlation: by how much the marginals' entropies exceed the joint's
    total = [0, first, sum(singles) - entropy(table)]
    assert mean.total_correlation.tolist() == pytest.approx(total, abs=0.06)


def test_without_temperature_nothing_depends_on_anything():
    head = tiny.head("falcon3")
    dependence = measured.dependence(tiny.target(), tiny.PROMPTS, k=3, paths=4, temperature=0)
    acceptance = measured.acceptance_by_dependence(
        tiny.target(), head, [[1, 2, 3, 4], [7, 8, 9, 10]], paths=4, temperature=0
    )
    columns = ["entropy", "conditional", "information", "upper", "total_correlation"]
    for table in (dependence, acceptance):
        assert (table[columns] == 0).all(axis=None)
    assert (acceptance.marginal == 1).all()
