"""Causal proxies over token ids: cheap scores of a next token, which guide a path search.

A drafter that fills a block gives one distribution for each position. A search for a path needs a
score of what follows what, too, and a :class:`Proxy` gives it: it scores candidates after the last
``order - 1`` tokens, in natural logarithms. Scores need not be those of a probability, but they are
finite. A proxy that goes along with the text has a method ``add(ids)`` too.

:class:`~specwb.drafters.diffuspec_parts.ngram.NGram` counts text beforehand, :class:`OnlineNGram`
counts the text at hand, :class:`CacheProxy` mixes the two, :class:`UniformProxy` knows nothing.
Tokens are the words: nothing is turned into text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from specwb.core.errors import SpecwbError

BACKOFF = 0.4  # Brants et al. 2007, section 4
# How many contexts are remembered; one near the beginning may have thousands of continuations.
ROWS = 10_000

Context = tuple[int, ...]


class NGramError(SpecwbError, ValueError):
    """A model of n-grams cannot be counted, or its file or package cannot be used."""


class Proxy(Protocol):
    """What a path search asks of a causal score."""

    @property
    def order(self) -> int:
        """n: a score depends on the n - 1 tokens before."""

    def scores(self, context: Context, candidates: Sequence[int], /) -> list[float]:
        """The natural log scores of the candidates after a context, of which the last n - 1 tokens
        count."""


def read_along(proxy: Proxy, ids: Sequence[int]) -> None:
    """Passes what is new of a text to a proxy that goes along with it (one that has ``add``)."""
    if (add := getattr(proxy, "add", None)) is not None:
        add(ids)


def last(context: Sequence[int], count: int) -> Context:
    """The last ``count`` tokens, or all of them where there are fewer."""
    return tuple(context[max(0, len(context) - count) :])


def log_likelihood(proxy: Proxy, stream: Sequence[int] | np.ndarray) -> float:
    """The mean score of a text's tokens in nats, each after what is before it; where scores are a
    probability, minus this is the cross-entropy."""
    text, reach = np.asarray(stream).tolist(), proxy.order - 1
    if not text:
        raise NGramError("a text without tokens has no likelihood")
    scores = (proxy.scores(tuple(text[max(0, i - reach) : i]), [x])[0] for i, x in enumerate(text))
    return math.fsum(scores) / len(text)


class OnlineNGram:
    """Stupid backoff over the text at hand, prompt and output: it scores as
    :class:`~specwb.drafters.diffuspec_parts.ngram.NGram` with ``least=1`` does, and is counted as
    the text comes, ``add(ids)`` for every new piece."""

    def __init__(self, order: int, vocabulary: int):
        self.order, self.vocabulary = order, vocabulary
        # by context: how often each token came after it
        self._continuations: dict[Context, dict[int, int]] = {}
        self._total = 0
        self._tail: Context = ()

    def add(self, ids: Iterable[int]) -> None:
        """Counts these tokens as the text's next ones."""
        reach, tail = self.order - 1, self._tail
        for x in ids:
            for i in range(len(tail) + 1):
                counts = self._continuations.setdefault(tail[i:], {})
                counts[x] = counts.get(x, 0) + 1
            self._total += 1
            self._tail = tail = last((*tail, x), reach)

    def scores(self, context: Context, candidates: Sequence[int]) -> list[float]:
        before = last(context, self.order - 1)
        log_backoff = math.log(BACKOFF)
        # from the longest context to the empty one: its counts, and what is added to their logs
        levels: list[tuple[dict[int, int], float]] = []
        for i in range(len(before) + 1):
            if counts := self._continuations.get(before[i:]):
                total = self._total
                if i < len(before):
                    total = self._continuations[before[i:-1]][before[-1]]
                levels.append((counts, i * log_backoff - math.log(total)))
        floor = (len(before) + 1) * log_backoff - math.log(max(self._total, 1))
        scores = []
        for x in candidates:
            for counts, offset in levels:
                if x in counts:
                    scores.append(math.log(counts[x]) + offset)
                    break
            else:
                scores.append(floor)
        return scores


class CacheProxy:
    """A mixture of a proxy counted beforehand and the text at hand (an :class:`OnlineNGram` of
    ``order``), a language model's cache: ``log (exp counted(x) + exp online(x)) - log 2``.

    Source: Kuhn and De Mori 1990, "A Cache-Based Natural Language Model for Speech Recognition"
    (there of single words).
    """

    def __init__(self, counted: Proxy, order: int, vocabulary: int):
        self.counted, self.online = counted, OnlineNGram(order, vocabulary)
        self.order = max(counted.order, order)

    def add(self, ids: Iterable[int]) -> None:
        self.online.add(ids)

    def scores(self, context: Context, candidates: Sequence[int]) -> list[float]:
        counted = self.counted.scores(last(context, self.counted.order - 1), candidates)
        online = self.online.scores(context, candidates)
        return [math.log((math.exp(x) + math.exp(y)) / 2) for x, y in zip(counted, online)]


class UniformProxy:
    """The proxy that knows nothing: every token scores ``-log V`` after any context."""

    order = 1

    def __init__(self, vocabulary: int):
        self._score = -math.log(vocabulary)

    def scores(self, context: Context, candidates: Sequence[int]) -> list[float]:
        return [self._score] * len(candidates)
