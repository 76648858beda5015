"""Counted n-grams of token ids, a :class:`~specwb.drafters.diffuspec_parts.proxy.Proxy`, and the
file they are stored in.

Scores are stupid backoff or interpolated Kneser-Ney.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from specwb.core.errors import ArgumentError
from specwb.core.files import home
from specwb.drafters.diffuspec_parts.proxy import BACKOFF, ROWS, Context, NGramError, last

SMOOTHINGS = ("backoff", "kn")
FORMAT = 1
COLUMNS = ("keys", "count", "before", "around")


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
    ``vocabulary``, first token first; ``count`` how often each was seen; ``before`` how many
    different tokens before it (empty for the longest length); ``around`` how many different pairs
    on its two sides (empty for the two longest)."""

    keys: np.ndarray
    count: np.ndarray
    before: np.ndarray
    around: np.ndarray


@dataclass(frozen=True, eq=False)
class _Level:
    """The scores after all contexts of one length, sorted by their keys: the continuations of each
    begin at ``start`` in ``tokens`` and ``logs``; ``weight`` is the log of what is left for the
    shorter context."""

    contexts: np.ndarray
    start: np.ndarray
    tokens: np.ndarray
    logs: np.ndarray
    weight: np.ndarray


class NGram:
    """Scores from counted text, by stupid backoff or interpolated Kneser-Ney.

    Let f be the count, h the context and h' the context without its first token.
    ``smoothing="backoff"`` is

        S(x | h) = f(h x) / f(h)   if h x was seen, else 0.4 S(x | h')
        S(x)     = f(x) / N        and 0.4 / N for a token that was never seen

    This is no probability, and none is needed to compare paths. ``smoothing="kn"`` is a probability
    over the vocabulary,

        P(x | h) = max(a(h x) - D, 0) / a(h) + g(h) P(x | h')
        g(h)     = 1 - sum_x max(a(h x) - D, 0) / a(h)
        P(x | nothing shorter) = 1 / V

    Here a is the count for the longest n-grams and, for shorter ones, how many different tokens
    were seen before them; ``a(h)`` is the total over what follows h. ``D = n1 / (n1 + 2 n2)`` for
    each length, where ``n1`` and ``n2`` are how many n-grams have a = 1 and a = 2 (0.5 where none
    has a = 1). After fewer than n - 1 tokens only the shorter lengths count.

    Sources: Brants et al. 2007 (Large language models in machine translation), equation 5; Chen &
    Goodman 1999 (An empirical study of smoothing techniques for language modeling), interpolated
    Kneser-Ney.
    Differs from them in: n-grams seen fewer than ``least`` times are left out after everything has
    been counted. So totals and discounts are those of the whole text, and what the left-out ones
    had is shared by backing off. ``a(h)`` of the longest length counts h at the end of a text too.

    An instance is made by :meth:`count` or :meth:`load`.

    Args:
        vocabulary: V, the number of tokens.
        least: how often an n-gram of two tokens and more was seen at least.
        grams: the n-grams, by length from 1.
        rare: by length, how many n-grams have count 1, count 2, one token before and two tokens
            before.
        pairs: how many different pairs of tokens there were.
        smoothing: ``"backoff"`` or ``"kn"``.

    Raises:
        NGramError: an unknown smoothing.
    """

    def __init__(
        self,
        vocabulary: int,
        least: int,
        grams: Sequence[Grams],
        rare: Sequence[Sequence[int]],
        pairs: int,
        smoothing: str = "backoff",
    ):
        if smoothing not in SMOOTHINGS:
            expected = " or ".join(SMOOTHINGS)
            raise NGramError(f"smoothing must be {expected}, got {smoothing!r}")
        self.vocabulary, self.least, self.pairs = vocabulary, least, pairs
        self.smoothing = smoothing
        self.grams, self.rare = tuple(grams), tuple(map(tuple, rare))
        self._rows: dict[Context, _Row] = {}

    @property
    def order(self) -> int:
        """n, the length of the longest n-grams."""
        return len(self.grams)

    @property
    def sizes(self) -> list[int]:
        """How many n-grams there are of each length, from 1."""
        return [len(g.keys) for g in self.grams]

    def with_smoothing(self, smoothing: str) -> NGram:
        """The same counts, scored in this way, with no context remembered yet."""
        model = NGram(self.vocabulary, self.least, self.grams, self.rare, self.pairs, smoothing)
        if smoothing == self.smoothing and "_scored" in self.__dict__:  # large, and the same
            model.__dict__["_scored"] = self._scored
        return model

    def with_order(self, order: int) -> NGram:
        """What :meth:`count` makes of the same text with a lower order."""
        if not 1 <= order <= self.order:
            raise NGramError(f"order must be 1..{self.order}, which was counted, got {order}")
        if order == self.order:
            return self
        empty = np.zeros(0, np.int64)
        grams = []
        for m, g in enumerate(self.grams[:order], 1):
            before = g.before if m < order else empty
            around = g.around if m + 1 < order else empty
            grams.append(Grams(g.keys, g.count, before, around))
        pairs = self.pairs if order > 1 else 0
        return NGram(self.vocabulary, self.least, grams, self.rare[:order], pairs, self.smoothing)

    # ------------------------------------------------------------------------------------- counting

    @classmethod
    def count(
        cls,
        streams: Iterable[np.ndarray],
        vocabulary: int,
        order: int = 3,
        least: int = 1,
        smoothing: str = "backoff",
    ) -> NGram:
        """Counts the n-grams of 1 to ``order`` tokens in texts of ids < ``vocabulary``, none across
        two texts. N-grams of two tokens and more stay where they were seen ``least`` times."""
        if order < 1 or least < 1 or vocabulary < 1:
            values = f"{order}, {least} and {vocabulary}"
            raise NGramError(f"order, least and vocabulary must be >= 1, got {values}")
        _check_bits(order, vocabulary)
        texts = [np.asarray(stream, dtype=np.int64) for stream in streams]
        _check_texts(texts, vocabulary)
        counted = [_count_length(texts, m, vocabulary) for m in range(1, order + 1)]
        grams, rare = [], []
        for m, (keys, count) in enumerate(counted, 1):
            size = vocabulary**m
            before = around = np.zeros(0, np.int64)
            if m < order:  # a longer n-gram's end is one of these
                before = _occurrences(counted[m][0] % size, keys)
            if m + 1 < order:  # and its middle
                around = _occurrences(counted[m + 1][0] // vocabulary % size, keys)
            rare.append([int((x == n).sum()) for x in (count, before) for n in (1, 2)])
            frequent = count >= (least if m > 1 else 1)
            grams.append(
                Grams(
                    keys[frequent],
                    count[frequent],
                    before[frequent] if len(before) else before,
                    around[frequent] if len(around) else around,
                )
            )
        pairs = len(counted[1][0]) if order > 1 else 0
        return cls(vocabulary, least, grams, rare, pairs, smoothing)

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
        levels, root, unseen_weight = self._scored
        if context:
            row = self._seen_after(levels[len(context) - 1], context, unseen_weight)
            row.lower = self._row(context[1:])
        else:
            row = root
        self._rows[context] = row
        return row

    def _seen_after(self, level: _Level, context: Context, unseen_weight: float) -> _Row:
        key = 0
        for x in context:
            key = key * self.vocabulary + x if 0 <= x < self.vocabulary and key >= 0 else -1
        index = int(level.contexts.searchsorted(key))
        if index == len(level.contexts) or level.contexts[index] != key:
            row = _Row()
            row.weight = unseen_weight
            return row
        part = slice(level.start[index], level.start[index + 1])
        row = _Row(zip(level.tokens[part].tolist(), level.logs[part].tolist()))
        row.weight = float(level.weight[index])
        return row

    @cached_property
    def _scored(self) -> tuple[list[_Level], _Row, float]:
        """The scores by length of the context from 1, those after nothing, and the log weight of a
        context that was never seen."""
        root, p = self._unigrams()
        levels = []
        for m in range(2, self.order + 1):
            here, shorter = self.grams[m - 1], self.grams[m - 2]
            # each n-gram's context, which was seen at least as often
            context = shorter.keys.searchsorted(here.keys // self.vocabulary)
            if self.smoothing == "kn":
                p, weight = self._kneser_ney(m, context, p)
            else:
                p = here.count / shorter.count[context]
                weight = np.full(len(shorter.keys), math.log(BACKOFF))
            first = here.keys.searchsorted(shorter.keys * self.vocabulary)
            start = np.append(first, len(here.keys))
            tokens = here.keys % self.vocabulary
            levels.append(_Level(shorter.keys, start, tokens, np.log(p), weight))
        return levels, root, 0.0 if self.smoothing == "kn" else math.log(BACKOFF)

    def _unigrams(self) -> tuple[_Row, np.ndarray]:
        """The scores after nothing, as a row of logs and as the tokens' values."""
        unigrams = self.grams[0]
        seen = int(unigrams.count.sum())
        total = self.pairs if self.order > 1 else seen
        if self.smoothing == "kn":
            a = unigrams.before if self.order > 1 else unigrams.count
            part = np.maximum(a - self._discount(1), 0) / max(total, 1)
            floor = (1 - part.sum()) / self.vocabulary
            p = part + floor
        else:
            floor, p = BACKOFF / seen, unigrams.count / seen
        root = _Row(zip(unigrams.keys.tolist(), np.log(p).tolist()))
        root.weight, root.lower = math.log(floor), None
        return root, p

    def _kneser_ney(
        self, m: int, context: np.ndarray, shorter_p: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """P of all n-grams of m tokens, and the log of g of all their contexts, from the index of
        each n-gram's context and P of all n-grams of m - 1 tokens."""
        here, shorter = self.grams[m - 1], self.grams[m - 2]
        is_longest = m == self.order
        a, totals = (here.count, shorter.count) if is_longest else (here.before, shorter.around)
        # what only begins texts has nothing before it, and its context perhaps no pair around it
        part = np.maximum(a - self._discount(m), 0) / np.maximum(totals[context], 1)
        left = 1 - np.bincount(context, part, minlength=len(shorter.keys))
        ending = shorter.keys.searchsorted(here.keys % self.vocabulary ** (m - 1))
        return part + left[context] * shorter_p[ending], np.log(left)

    def _discount(self, m: int) -> float:
        """D of the n-grams of m tokens."""
        by_count, by_before = self.rare[m - 1][:2], self.rare[m - 1][2:]
        n1, n2 = by_count if m == self.order else by_before
        return n1 / (n1 + 2 * n2) if n1 else 0.5

    # ---------------------------------------------------------------------------------------- files

    def save(self, path: Path) -> None:
        """Writes one compressed npz file: keys as differences, and all numbers by bytes of equal
        weight, most of which are zero."""
        rare = [n for numbers in self.rare for n in numbers]
        facts = np.array([FORMAT, self.vocabulary, self.least, self.pairs, *rare], np.int64)
        columns: dict[str, Any] = {"facts": facts}
        for m, g in enumerate(self.grams, 1):
            columns[f"keys{m}"] = _bytes(np.diff(g.keys, prepend=0))
            columns[f"count{m}"] = _bytes(g.count)
            columns[f"before{m}"] = _bytes(g.before)
            columns[f"around{m}"] = _bytes(g.around)
        with open(path, "wb") as handle:  # np.savez(path) would add a suffix
            np.savez_compressed(handle, **columns)

    @classmethod
    def load(cls, path: str | Path, smoothing: str = "backoff") -> NGram:
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
                facts = file["facts"].tolist()
                if facts[0] != FORMAT:
                    versions = f"has format {facts[0]}, this version reads {FORMAT}"
                    raise NGramError(f"{path} {versions}; {again}")
                rare = list(zip(*(facts[i::4] for i in range(4, 8)), strict=True))
                grams = []
                for m in range(1, len(rare) + 1):
                    keys, *others = (_numbers(file[f"{name}{m}"]) for name in COLUMNS)
                    grams.append(Grams(np.cumsum(keys), *others))
            sizes = [{len(g.keys), len(g.count)} for g in grams]
            if not grams or any(len(size) > 1 for size in sizes) or not len(grams[0].keys):
                raise ArgumentError("its columns differ in length or are empty")
        except NGramError:
            raise
        except damage as error:
            raise NGramError(f"{path} is no whole n-gram file ({error}); {again}") from error
        return cls(facts[1], facts[2], grams, rare, facts[3], smoothing)


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


def _occurrences(parts: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """How often each of the sorted keys is among the parts, all of which are keys."""
    return np.bincount(keys.searchsorted(parts), minlength=len(keys))


def _bytes(numbers: np.ndarray) -> np.ndarray:
    """``[8, N]``: the lowest byte of all numbers, then the second one, and so on."""
    return np.ascontiguousarray(numbers.astype("<i8").view(np.uint8).reshape(-1, 8).T)


def _numbers(planes: np.ndarray) -> np.ndarray:
    """The numbers whose bytes :func:`_bytes` gave."""
    return np.ascontiguousarray(planes.T).view("<i8").reshape(-1).astype(np.int64)
