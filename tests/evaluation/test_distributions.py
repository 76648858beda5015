"""Distributions after a text are the model's own, whatever was asked for before."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

from specwb.lab.evaluation.distributions import distributions_after

TEXT = [1, 2, 3, 4]


def directly(model, tokens, temperature: float) -> np.ndarray:
    with torch.inference_mode():
        logits = model.model(torch.tensor([tokens])).logits[0, -1].double()
    if temperature:
        return (logits / temperature).softmax(-1).numpy()
    return np.eye(len(logits))[int(logits.argmax())]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_distributions_are_the_models(temperature):
    model = tiny.target()
    distribution = distributions_after(model, TEXT, temperature, max_prefix=4)
    for prefix in ((), (5, 6, 7), (5,), (9, 6), (5, 6, 7, 8), ()):
        expected = directly(model, [*TEXT, *prefix], temperature)
        assert distribution(prefix) == pytest.approx(expected, abs=1e-5)


def test_a_prefix_is_no_longer_than_was_said():
    with pytest.raises(ValueError, match="a prefix may have 2 tokens here, got 3"):
        distributions_after(tiny.target(), TEXT, max_prefix=2)((1, 2, 3))
