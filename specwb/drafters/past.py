"""The caches of a finished decoding, reused for texts that begin alike."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor

from specwb.drafters.base import Drafter
from specwb.flow import Prior, State
from specwb.models.cache import KVCache


class Past:
    """The caches of the last decoding, kept for the next one; ``reused`` is the number of positions
    of the last prompts that the target did not compute again.

    A slot depends only on a token, its position and the tokens before it, so the common beginning
    of two texts has the same slots in both. Rows are matched by their index; the number of slots
    reused is the least that any row has in common with its own earlier text.
    """

    def __init__(self) -> None:
        self.reused = 0
        self._prior: Prior | None = None
        self._texts: list[list[int]] = []
        self._features: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"Past(reused={self.reused})"

    def of(self, prompts: Sequence[Sequence[int]], features: tuple[int, ...]) -> Prior | None:
        """The reusable state for these prompts and a drafter that reads ``features``."""
        self.reused, old = 0, self._prior
        if old is None or len(prompts) != len(self._texts) or features != self._features:
            return None
        shared = min(map(common, prompts, self._texts))
        slots = min(shared, old.slots)
        self.reused = max(0, min(slots, max(map(len, prompts)) - 1))
        return Prior(old.caches, old.features, slots, min(shared, old.drafted))

    def keep(self, state: State, drafter: Drafter, before: Tensor) -> None:
        """Keeps the state of a finished decoding, whose rows had the lengths ``before [B]`` before
        the last step."""
        lengths = state.length.tolist()
        self._texts = [row[:n] for row, n in zip(state.tokens.tolist(), lengths, strict=True)]
        self._features = drafter.features
        drafted = int(drafter.exact_until(before, state.length).min())
        caches, features = list(state.caches), state.features
        if state.static:  # the graphs' memory, which the next decoding writes to
            caches = [(owner, _copy(cache)) for owner, cache in caches]
            features = None if features is None else features.clone()
        self._prior = Prior(caches, features, min(lengths) - 1, max(0, drafted))


def _copy(cache: KVCache) -> KVCache:
    other = copy.copy(cache)
    other.data = cache.data.clone()
    other.flat = other.data.flatten(1, 2)
    return other


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
