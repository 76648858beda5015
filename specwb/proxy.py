"""Causal proxies over token ids: cheap scores of a next token, for a search that a drafter's laws by place cannot guide alone.

A :class:`Proxy` scores candidates after the last ``order - 1`` tokens, in natural logarithms; scores need not be those of a probability, but
they are finite. One that goes with the text has ``add(ids)`` too. :class:`~specwb.ngram.NGram` counts text beforehand, :class:`OnlineNGram` the
text at hand, :class:`Cached` is both, :class:`KenLM` asks a model file of the package of that name, :class:`Uniform` knows nothing. Tokens are the
words: nothing is turned into text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from specwb.errors import SpecwbError

BACKOFF = 0.4  # Brants et al. 2007, section 4
ROWS = 10_000  # contexts that are kept for the next time; an early one may have thousands of continuations

Context = tuple[int, ...]


class NGramError(SpecwbError, ValueError):
    """A model of n-grams cannot be counted, or its file or package cannot be used."""


class Proxy(Protocol):
    """``order``: n, so that a score depends on n - 1 tokens before; ``scores(context, candidates)``: natural log scores of the candidates after the
    last n - 1 tokens of ``context``, or all of them where it has fewer."""

    @property
    def order(self) -> int: ...

    def scores(self, context: Context, candidates: Sequence[int], /) -> list[float]: ...


def read_along(proxy: Proxy, ids: Sequence[int]) -> None:
    """Tell a proxy that goes with the text (one that has ``add``) what is new of it."""
    if (add := getattr(proxy, "add", None)) is not None:
        add(ids)


def last(context: Sequence[int], many: int) -> Context:
    """Its last ``many`` tokens, or all of them where it has fewer."""
    return tuple(context[max(0, len(context) - many) :])


def log_likelihood(proxy: Proxy, stream: Sequence[int] | np.ndarray) -> float:
    """Mean score of a text's tokens in nats, each after what is before it; minus this is the cross-entropy where scores are a probability.

    Raises: NGramError for a text without tokens.
    """
    text, many = np.asarray(stream).tolist(), proxy.order - 1
    if not text:
        raise NGramError("a text without tokens has no likelihood")
    return math.fsum(proxy.scores(tuple(text[max(0, i - many) : i]), [x])[0] for i, x in enumerate(text)) / len(text)


class OnlineNGram:
    """Stupid backoff over the text at hand, prompt and output: :class:`NGram` with ``least=1``, counted as the text comes.

    ``OnlineNGram(3, V)``, then ``add(ids)`` for every new piece of one text.
    """

    def __init__(self, order: int, vocabulary: int):
        """Raises: NGramError for an order or vocabulary < 1."""
        if order < 1 or vocabulary < 1:
            raise NGramError(f"order and vocabulary must be >= 1, got {order} and {vocabulary}")
        self.order, self.vocabulary = order, vocabulary
        self._after: dict[Context, dict[int, int]] = {}  # context: continuation: how often
        self._seen = 0
        self._tail: Context = ()

    def add(self, ids: Iterable[int]) -> None:
        """Go on with these tokens. Raises: NGramError for one outside the vocabulary; those before it stay counted."""
        after, most, tail = self._after, self.order - 1, self._tail
        for x in ids:
            if not 0 <= x < self.vocabulary:
                raise NGramError(f"token ids must be 0..{self.vocabulary - 1}, got {x}")
            for i in range(len(tail) + 1):
                row = after.setdefault(tail[i:], {})
                row[x] = row.get(x, 0) + 1
            self._seen += 1
            self._tail = tail = last((*tail, x), most)

    def scores(self, context: Context, candidates: Sequence[int]) -> list[float]:
        """See :class:`Proxy`."""
        known, log = last(context, self.order - 1), math.log
        rows, out = [], []
        for i in range(len(known) + 1):
            if row := self._after.get(known[i:]):
                total = self._after[known[i:-1]][known[-1]] if i < len(known) else self._seen
                rows.append((row, i * log(BACKOFF) - log(total)))
        floor = (len(known) + 1) * log(BACKOFF) - log(max(self._seen, 1))
        for x in candidates:
            for row, offset in rows:
                if x in row:
                    out.append(log(row[x]) + offset)
                    break
            else:
                out.append(floor)
        return out


class Cached:
    """Counted text and the text at hand: ``log ((1 - share) exp own(x) + share exp online(x))``, the cache of a language model.

    Source: Kuhn and De Mori 1990, "A Cache-Based Natural Language Model for Speech Recognition" (there of single words).
    """

    def __init__(self, own: Proxy, order: int, vocabulary: int, share: float = 0.5):
        """``order``: of what reads along. Raises: NGramError for a share outside (0, 1), or as :class:`OnlineNGram`."""
        if not 0 < share < 1:
            raise NGramError(f"share must be in (0, 1), got {share}")
        self.own, self.online, self.share, self.order = own, OnlineNGram(order, vocabulary), share, max(own.order, order)

    def add(self, ids: Iterable[int]) -> None:
        """See :meth:`OnlineNGram.add`."""
        self.online.add(ids)

    def scores(self, context: Context, candidates: Sequence[int]) -> list[float]:
        """See :class:`Proxy`."""
        a, b, exp, log = 1 - self.share, self.share, math.exp, math.log
        own = self.own.scores(last(context, self.own.order - 1), candidates)
        return [log(a * exp(x) + b * exp(y)) for x, y in zip(own, self.online.scores(context, candidates))]


class Uniform:
    """No proxy: every token ``-log V``, after whatever."""

    order = 1

    def __init__(self, vocabulary: int):
        self._score = -math.log(vocabulary)

    def scores(self, context: Context, candidates: Sequence[int]) -> list[float]:
        """See :class:`Proxy`."""
        return [self._score] * len(candidates)


class _Asked(dict[int, float]):
    """Scores of a KenLM model after one context, asked for when needed."""

    __slots__ = ("ask",)
    ask: Callable[[int], float]

    def __missing__(self, x: int) -> float:
        value = self[x] = self.ask(x)
        return value


class KenLM:
    """A KenLM model file whose words are token ids in decimals; its log10 scores are turned into natural ones.

    It needs the package ``kenlm``. Such a file is made from lines of ids with spaces between them, ``lmplz -o 3 < ids.txt > ids.arpa``.
    """

    def __init__(self, path: str | Path):
        """Raises: NGramError where the package or the file is missing, or the file is no model."""
        path = Path(path).expanduser()
        if not path.is_file():
            raise NGramError(f"no KenLM file {path}")
        try:
            import kenlm
        except ImportError as error:
            raise NGramError("KenLM models need the package of that name: pip install kenlm") from error
        try:
            self._model = kenlm.Model(str(path))
        except (OSError, RuntimeError) as error:
            raise NGramError(f"{path} is no KenLM model ({str(error).splitlines()[0]})") from error
        self._state: Any = kenlm.State
        self.order: int = self._model.order
        self._rows: dict[Context, _Asked] = {}

    def scores(self, context: Context, candidates: Sequence[int]) -> list[float]:
        """See :class:`Proxy`."""
        row = self._rows.get(context)
        if row is None:
            row = self._row(context)
        return [row[x] for x in candidates]

    def _row(self, context: Context) -> _Asked:
        model, state, spare, ln10 = self._model, self._state(), self._state(), math.log(10)
        model.NullContextWrite(state)  # the middle of a text, not the beginning of a sentence
        for x in last(context, self.order - 1):
            model.BaseScore(state, str(x), spare)
            state, spare = spare, state
        if len(self._rows) >= ROWS:
            self._rows.clear()
        row = self._rows[context] = _Asked()
        row.ask = lambda x: ln10 * model.BaseScore(state, str(x), spare)
        return row
