"""A model's distribution after a text, one prefix at a time.

Draft trees are judged by these distributions where nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch

from specwb.core.errors import ArgumentError
from specwb.core.flow import chain
from specwb.core.probability import Sampling
from specwb.models.target import Target


def distributions_after(
    model: Target, text: Sequence[int], temperature: float = 1.0, max_prefix: int = 32
) -> Callable[[tuple[int, ...]], np.ndarray]:
    """Make the function ``prefix -> P(next token | text, prefix)``, an array ``[V]``.

    :func:`specwb.theory.analysis.dynamic_tree` and ``expected_point`` take such a function. The
    text is processed once; a prefix is scored as a chain behind it, and its result is remembered.

    Args:
        model: target or draft model. One loaded in float64 gives the same digits on every machine.
        text: token ids, at least one.
        temperature: 0 gives one-hot distributions.
        max_prefix: length of the longest prefix that the function accepts.
    Raises:
        ValueError: by the function itself, for a longer prefix.
    """
    sampling = Sampling(temperature)
    with torch.inference_mode():
        state = model.open([list(text)], [max_prefix], 1, sampling, ())

    @cache
    def distribution(prefix: tuple[int, ...]) -> np.ndarray:
        if len(prefix) > max_prefix:
            raise ArgumentError(f"a prefix may have {max_prefix} tokens here, got {len(prefix)}")
        tokens = torch.tensor([[text[-1], *prefix]], device=model.device)
        last = torch.tensor([len(prefix)], device=model.device)
        with torch.inference_mode():
            return model.score(state, chain(tokens)).p(last)[0].cpu().numpy()

    return distribution
