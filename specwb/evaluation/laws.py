"""A model's laws after a text, one prefix at a time: what trees are judged by where nothing is sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch

from specwb.flow import Draft, Law
from specwb.models.target import Target
from specwb.probability import Sampling
from specwb.tree import Tree


def laws_after(model: Target, text: Sequence[int], temperature: float = 1.0, most: int = 32) -> Callable[[tuple[int, ...]], np.ndarray]:
    """``prefix -> P(next token | text, prefix)``, ``[V]``, as :func:`specwb.analysis.dynamic_tree` and ``expected_point`` ask for it.

    The text is processed once; a prefix is scored as a chain behind it, and remembered.

    Args:
        model: target or draft. One loaded in float64 gives the same digits on every machine.
        text: token ids, at least one. temperature: 0 gives one-hot laws. most: the longest prefix.
    Raises:
        ValueError: an empty text, one that leaves no room for ``most`` tokens in the model's context, a bad temperature; later a longer prefix.
    """
    if not text or len(text) + most > model.context:
        raise ValueError(f"the text must have 1..{model.context - most} tokens, so that {most} more fit the context; got {len(text)}")
    sampling = Sampling(temperature)
    with torch.inference_mode():
        state = model.open([list(text)], [most], 1, sampling, ())
    trees = [Tree.chain(n, model.device) for n in range(most + 1)]

    @cache
    def law(prefix: tuple[int, ...]) -> np.ndarray:
        if len(prefix) > most:
            raise ValueError(f"a prefix may have {most} tokens here, got {len(prefix)}")
        tokens = torch.tensor([[text[-1], *prefix]], device=model.device)
        last = torch.tensor([len(prefix)], device=model.device)
        with torch.inference_mode():
            draft = Draft(trees[len(prefix)], tokens, torch.ones_like(tokens, dtype=torch.bool), Law.POINT)
            return model.score(state, draft).p(last)[0].cpu().numpy()

    return law
