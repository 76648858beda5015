"""Laws after a text are the model's own, whatever was asked for before."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

from specwb import analysis
from specwb.evaluation.laws import laws_after

TEXT = [1, 2, 3, 4]


def directly(model, tokens, temperature: float) -> np.ndarray:
    with torch.inference_mode():
        logits = model.model(torch.tensor([tokens])).logits[0, -1].double()
    return (logits / temperature).softmax(-1).numpy() if temperature else np.eye(len(logits))[int(logits.argmax())]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_laws_are_the_models(temperature):
    model = tiny.target()
    law = laws_after(model, TEXT, temperature, most=4)
    for prefix in ((), (5, 6, 7), (5,), (9, 6), (5, 6, 7, 8), ()):
        assert law(prefix) == pytest.approx(directly(model, [*TEXT, *prefix], temperature), abs=1e-5)


def test_a_prefix_is_scored_once(monkeypatch):
    model, asked = tiny.draft(), []
    scored = model.score
    monkeypatch.setattr(model, "score", lambda state, draft: asked.append(draft.tree.n) or scored(state, draft))
    law = laws_after(model, TEXT)
    tree = analysis.dynamic_tree(law, 6, 3, 6)
    analysis.expected_point(law, tree)
    assert len(asked) <= 1 + 2 * 6
    before = len(asked)
    law(())
    assert len(asked) == before


def test_bad_texts():
    with pytest.raises(ValueError, match=r"the text must have 1\.\."):
        laws_after(tiny.target(), [])
    with pytest.raises(ValueError, match="so that 9999999 more fit the context"):
        laws_after(tiny.target(), TEXT, most=9_999_999)
    with pytest.raises(ValueError, match="temperature must be >= 0"):
        laws_after(tiny.target(), TEXT, -1.0)
    with pytest.raises(ValueError, match="a prefix may have 2 tokens here, got 3"):
        laws_after(tiny.target(), TEXT, most=2)((1, 2, 3))
