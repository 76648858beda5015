"""Counted n-grams of token ids, a :class:`~specwb.drafters.diffuspec_parts.proxy.Proxy`, and the
file they are stored in.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from specwb.core.errors import ArgumentError
from specwb.core.files import home
from specwb.drafters.diffuspec_parts.proxy import BACKOFF, ROWS, Context, NGramError, last

FORMAT = 1


class _Row(dict[int, float]):
    """The scores after one context: of the tokens seen there, and of others that were asked for.
    ``lower`` is the row of the context without its first token, ``weight`` what a score changes by
    on the way from it; in the row after nothing, the score of a token that was never seen."""

    __slots__ = ("lower", "weight")
    lower: _Row | None
    weight: float

    def fill(self, candidates: Sequence[int]) -> None:
        """Adds the scores of those candidates that are missing."""
        missing = [x for x in candidates if x not in self]
        lower, weight = self.lower, self.weight
        if lower is None:
            self.update(dict.fromkeys(missing, weight))
        elif missing:
            lower.fill(missing)
            self.update([(x, weight + lower[x]) for x in missing])


@dataclass(frozen=True, eq=False)
class Grams:
    """The n-grams of one length, sorted by key: ``keys [N]`` are the tokens as digits in base
    ``vocabulary``, first token first; ``count [N]`` how often each was seen."""

    keys: np.ndarray
    count: np.ndarray


@dataclass(frozen=True, eq=False)
class _Level:
    """The scores after all contexts of one length, sorted by their keys: the continuations of each
    begin at ``start`` in ``tokens`` and ``logs``."""

    contexts: np.ndarray
    start: np.ndarray
    tokens: np.ndarray
    logs: np.ndarray


class NGram:
    """Scores from counted text, by stupid backoff.

    Let f be the count, N the number of tokens, h the context and h' the context without its first
    token:

        S(x | h) = f(h x) / f(h)   if h x was seen, else 0.4 S(x | h')
        S(x)     = f(x) / N        and 0.4 / N for a token that was never seen

    This is no probability, and none is needed to compare paths. After fewer than n - 1 tokens only
    the shorter lengths count.

    Source: Brants et al. 2007 (Large language models in machine translation), equation 5. Differs
    from it in: n-grams seen fewer than ``least`` times are left out after everything has been
    counted, so totals are those of the whole text.

    An instance is made by :meth:`count` or :meth:`load`.

    Args:
        vocabulary: V, the number of tokens.
        least: how often an n-gram of two tokens and more was seen at least.
        grams: the n-grams, by length from 1.
    """

    def __init__(self, vocabulary: int, least: int, grams: Sequence[Grams]):
        self.vocabulary, self.least, self.grams = vocabulary, least, tuple(grams)
        self._rows: dict[Context, _Row] = {}

    @property
    def order(self) -> int:
        """n, the length of the longest n-grams."""
        return len(self.grams)

    @property
    def sizes(self) -> list[int]:
        """How many n-grams there are of each length, from 1."""
        return [len(g.keys) for g in self.grams]

    def forgetful(self) -> NGram:
        """The same scores, with no context remembered yet."""
        other = NGram(self.vocabulary, self.least, self.grams)
        other._scored = self._scored
        return other

    # ------------------------------------------------------------------------------------- counting

    @classmethod
    def count(
        cls,
        streams: Iterable[np.ndarray],
        vocabulary: int,
        order: int = 3,
        least: int = 1,
    ) -> NGram:
        """Counts the n-grams of 1 to ``order`` tokens in texts of ids < ``vocabulary``, none across
        two texts. N-grams of two tokens and more stay where they were seen ``least`` times."""
        if order < 1 or least < 1 or vocabulary < 1:
            values = f"{order}, {least} and {vocabulary}"
            raise NGramError(f"order, least and vocabulary must be >= 1, got {values}")
        _check_bits(order, vocabulary)
        texts = [np.asarray(stream, dtype=np.int64) for stream in streams]
        _check_texts(texts, vocabulary)
        grams = []
        for m in range(1, order + 1):
            keys, count = _count_length(texts, m, vocabulary)
            frequent = count >= (least if m > 1 else 1)
            grams.append(Grams(keys[frequent], count[frequent]))
        return cls(vocabulary, least, grams)

    # -------------------------------------------------------------------------------------- scoring

    def scores(self, context: Context, candidates: Sequence[int]) -> list[float]:
        """See :meth:`specwb.drafters.diffuspec_parts.proxy.Proxy.scores`. A context that was asked
        for before costs look-ups only."""
        row = self._rows.get(context)
        if row is None:
            row = self._row(last(context, self.order - 1))
        try:
            return [row[x] for x in candidates]
        except KeyError:
            row.fill(candidates)
            return [row[x] for x in candidates]

    def _row(self, context: Context) -> _Row:
        row = self._rows.get(context)
        if row is not None:
            return row
        if len(self._rows) >= ROWS:
            self._rows.clear()
        levels, root = self._scored
        if context:
            row = self._seen_after(levels[len(context) - 1], context)
            row.lower = self._row(context[1:])
        else:
            row = root
        self._rows[context] = row
        return row

    def _seen_after(self, level: _Level, context: Context) -> _Row:
        key = 0
        for x in context:
            key = key * self.vocabulary + x if 0 <= x < self.vocabulary and key >= 0 else -1
        row, index = _Row(), int(level.contexts.searchsorted(key))
        if index < len(level.contexts) and level.contexts[index] == key:
            part = slice(level.start[index], level.start[index + 1])
            row = _Row(zip(level.tokens[part].tolist(), level.logs[part].tolist()))
        row.weight = math.log(BACKOFF)
        return row

    @cached_property
    def _scored(self) -> tuple[list[_Level], _Row]:
        """The scores by length of the context from 1, and those after nothing."""
        levels = []
        for shorter, here in pairwise(self.grams):
            # each n-gram's context, which was seen at least as often
            context = shorter.keys.searchsorted(here.keys // self.vocabulary)
            first = here.keys.searchsorted(shorter.keys * self.vocabulary)
            start, tokens = np.append(first, len(here.keys)), here.keys % self.vocabulary
            logs = np.log(here.count / shorter.count[context])
            levels.append(_Level(shorter.keys, start, tokens, logs))
        unigrams = self.grams[0]
        seen = int(unigrams.count.sum())
        root = _Row(zip(unigrams.keys.tolist(), np.log(unigrams.count / seen).tolist()))
        root.weight, root.lower = math.log(BACKOFF / seen), None
        return levels, root

    # ---------------------------------------------------------------------------------------- files

    def save(self, path: Path) -> None:
        """Writes one compressed npz file: keys as differences, and all numbers by bytes of equal
        weight, most of which are zero."""
        columns: dict[str, Any] = {"facts": np.array([FORMAT, self.vocabulary, self.least])}
        for m, g in enumerate(self.grams, 1):
            columns[f"keys{m}"] = _bytes(np.diff(g.keys, prepend=0))
            columns[f"count{m}"] = _bytes(g.count)
        with open(path, "wb") as handle:  # np.savez(path) would add a suffix
            np.savez_compressed(handle, **columns)

    @classmethod
    def load(cls, path: str | Path) -> NGram:
        """Reads what :meth:`save` wrote; NGramError of a missing, damaged or foreign file."""
        path = home(path)
        if not path.is_file():
            raise NGramError(f"no n-gram file {path}; make one with specwb train ngram")
        damage = (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            IndexError,
            EOFError,
            zipfile.BadZipFile,
            zlib.error,
        )
        again = "make it again with specwb train ngram"
        try:
            with np.load(path, allow_pickle=False) as file:
                version, vocabulary, least = file["facts"][:3].tolist()
                if version != FORMAT:
                    versions = f"has format {version}, this version reads {FORMAT}"
                    raise NGramError(f"{path} {versions}; {again}")
                grams: list[Grams] = []
                while f"keys{len(grams) + 1}" in file:
                    columns = (file[f"{name}{len(grams) + 1}"] for name in ("keys", "count"))
                    keys, count = map(_numbers, columns)
                    grams.append(Grams(np.cumsum(keys), count))
            sizes = [{len(g.keys), len(g.count)} for g in grams]
            if not grams or any(len(size) > 1 for size in sizes) or not len(grams[0].keys):
                raise ArgumentError("its columns differ in length or are empty")
        except NGramError:
            raise
        except damage as error:
            raise NGramError(f"{path} is no whole n-gram file ({error}); {again}") from error
        return cls(vocabulary, least, grams)


def _check_bits(order: int, vocabulary: int) -> None:
    """Checks that the key of an n-gram fits 63 bits."""
    if vocabulary**order < 2**63:
        return
    highest = next(m for m in range(order, -1, -1) if vocabulary**m < 2**63)
    problem = f"n-grams of {order} among {vocabulary} tokens do not fit 63 bits"
    raise NGramError(f"{problem}; the order can be at most {highest}")


def _check_texts(texts: list[np.ndarray], vocabulary: int) -> None:
    """Checks that there is a token, and that all of them are ids of the vocabulary."""
    if not sum(map(len, texts)):
        raise NGramError("there is no text to count")
    for text in texts:
        if len(text) and not 0 <= int(text.min()) <= int(text.max()) < vocabulary:
            ids = f"{int(text.min())}..{int(text.max())}"
            raise NGramError(f"token ids must be 0..{vocabulary - 1}, got {ids}")


def _count_length(
    texts: list[np.ndarray], m: int, vocabulary: int
) -> tuple[np.ndarray, np.ndarray]:
    """The sorted keys of all n-grams of m tokens, and how often each was seen."""
    keys = [_packed(text, m, vocabulary) for text in texts if len(text) >= m]
    return np.unique(np.concatenate(keys or [np.zeros(0, np.int64)]), return_counts=True)


def _packed(text: np.ndarray, m: int, vocabulary: int) -> np.ndarray:
    """The keys of all n-grams of m tokens, in the order of the text."""
    count = len(text) - m + 1
    keys = text[:count]
    for i in range(1, m):
        keys = keys * vocabulary + text[i : i + count]
    return keys


def _bytes(numbers: np.ndarray) -> np.ndarray:
    """``[8, N]``: the lowest byte of all numbers, then the second one, and so on."""
    return np.ascontiguousarray(numbers.astype("<i8").view(np.uint8).reshape(-1, 8).T)


def _numbers(planes: np.ndarray) -> np.ndarray:
    """The numbers whose bytes :func:`_bytes` gave."""
    return np.ascontiguousarray(planes.T).view("<i8").reshape(-1).astype(np.int64)
