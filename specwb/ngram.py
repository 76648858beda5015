"""Counted n-grams of token ids: a :class:`~specwb.proxy.Proxy` by stupid backoff or interpolated Kneser-Ney, and its file."""

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

from specwb.proxy import BACKOFF, ROWS, Context, NGramError, last

SMOOTHINGS = ("backoff", "kn")
FORMAT = 1


class _Row(dict[int, float]):
    """Scores after one context: of what was seen there, and of what else was asked for. ``lower``: the row of the context without its first token;
    ``weight``: what its scores change by here, and after nothing the score of what was never seen."""

    __slots__ = ("lower", "weight")
    lower: _Row | None
    weight: float

    def fill(self, candidates: Sequence[int]) -> None:
        """So that all of them are here."""
        missing = [x for x in candidates if x not in self]
        lower, weight = self.lower, self.weight
        if lower is None:
            self.update(dict.fromkeys(missing, weight))
        elif missing:
            lower.fill(missing)
            self.update([(x, weight + lower[x]) for x in missing])


@dataclass(frozen=True, eq=False)
class Grams:
    """The n-grams of one length, sorted.

    ``keys [N]`` int64: ids in base ``vocabulary``, first token first; ``count [N]``: how often each was seen; ``before [N]``, ``around [N]``: how
    many different tokens were seen before it, and pairs of tokens on its two sides (none for the longest one and two lengths).
    """

    keys: np.ndarray
    count: np.ndarray
    before: np.ndarray
    around: np.ndarray


@dataclass(frozen=True, eq=False)
class _Level:
    """What a context of m - 1 tokens needs: ``contexts`` sorted, ``start``: where the continuations of each begin in ``tokens`` and ``logs``;
    ``weight``: log of what is left for the shorter context."""

    contexts: np.ndarray
    start: np.ndarray
    tokens: np.ndarray
    logs: np.ndarray
    weight: np.ndarray


class NGram:
    """Scores from counted text: stupid backoff, or interpolated Kneser-Ney.

    ``smoothing="backoff"``, with f the count, h the context and h' the context without its first token,

        S(x | h) = f(h x) / f(h) if h x was seen, else 0.4 S(x | h');    S(x) = f(x) / N, and 0.4 / N for what was never seen.

    No probability, and none is needed to compare paths. ``smoothing="kn"``, a probability over the vocabulary,

        P(x | h) = max(a(h x) - D, 0) / a(h) + g(h) P(x | h'),    g(h) = 1 - sum_x max(a(h x) - D, 0) / a(h),    P(x | nothing shorter) = 1 / V,

    where a is the count for the longest n-grams and, for shorter ones, how many different tokens were seen before them; ``a(h)`` is the total over
    what follows h, and ``D = n1 / (n1 + 2 n2)`` for each length, ``n1`` and ``n2`` being how many have a = 1 and 2 (0.5 where none has a = 1). After
    fewer than n - 1 tokens the shorter lengths alone speak.

    Sources: Brants et al. 2007 (Large language models in machine translation), equation 5; Chen & Goodman 1999 (An empirical study of smoothing
    techniques for language modeling), interpolated Kneser-Ney.
    Differs from them in: n-grams seen fewer than ``least`` times are left out after everything has been counted, so that totals and discounts are
    those of the whole text and what the left-out ones had is shared by backing off; ``a(h)`` of the longest length counts h at the end of a text too.
    """

    def __init__(self, vocabulary: int, least: int, grams: Sequence[Grams], rare: Sequence[Sequence[int]], pairs: int, smoothing: str = "backoff"):
        """Made by :meth:`count` and :meth:`load`. ``grams``: by length from 1; ``rare``: how many of each length have count 1, count 2, one token
        before and two tokens before; ``pairs``: different pairs of tokens."""
        if smoothing not in SMOOTHINGS:
            raise NGramError(f"smoothing must be {' or '.join(SMOOTHINGS)}, got {smoothing!r}")
        self.vocabulary, self.least, self.pairs, self.smoothing = vocabulary, least, pairs, smoothing
        self.grams, self.rare = tuple(grams), tuple(map(tuple, rare))
        self._rows: dict[Context, _Row] = {}

    @property
    def order(self) -> int:
        return len(self.grams)

    @property
    def sizes(self) -> list[int]:
        """N-grams of each length from 1."""
        return [len(g.keys) for g in self.grams]

    def smoothed(self, smoothing: str) -> NGram:
        """The same counts, scored in this way, remembering no context yet. Raises: NGramError for an unknown one."""
        made = NGram(self.vocabulary, self.least, self.grams, self.rare, self.pairs, smoothing)
        if smoothing == self.smoothing and "_scored" in self.__dict__:  # large, and the same
            made.__dict__["_scored"] = self._scored
        return made

    def shorter(self, order: int) -> NGram:
        """What :meth:`count` makes of the same text with this order. Raises: NGramError for one outside 1..order."""
        if not 1 <= order <= self.order:
            raise NGramError(f"order must be 1..{self.order}, which was counted, got {order}")
        if order == self.order:
            return self
        none = np.zeros(0, np.int64)
        grams = [Grams(g.keys, g.count, g.before if m < order else none, g.around if m + 1 < order else none) for m, g in enumerate(self.grams, 1)]
        return NGram(self.vocabulary, self.least, grams[:order], self.rare[:order], self.pairs if order > 1 else 0, self.smoothing)

    # ------------------------------------------------------------------------------------------------------------- counting

    @classmethod
    def count(cls, streams: Iterable[np.ndarray], vocabulary: int, order: int = 3, least: int = 1, smoothing: str = "backoff") -> NGram:
        """Count n-grams of 1 to ``order`` tokens, none across two streams; those of two tokens and more stay where seen ``least`` times.

        Args: ``streams``: token ids ``[length]``, each < ``vocabulary``.
        Raises: NGramError for an order or least < 1, ids outside the vocabulary, no token at all, or an order whose n-grams do not fit 63 bits.
        """
        if order < 1 or least < 1 or vocabulary < 1:
            raise NGramError(f"order, least and vocabulary must be >= 1, got {order}, {least} and {vocabulary}")
        if vocabulary**order >= 2**63:
            most = next(m for m in range(order, -1, -1) if vocabulary**m < 2**63)
            raise NGramError(f"n-grams of {order} among {vocabulary} tokens do not fit 63 bits; the order can be at most {most}")
        texts = [np.asarray(stream, dtype=np.int64) for stream in streams]
        if not sum(map(len, texts)):
            raise NGramError("there is no text to count")
        for text in texts:
            if len(text) and not 0 <= int(text.min()) <= int(text.max()) < vocabulary:
                raise NGramError(f"token ids must be 0..{vocabulary - 1}, got {int(text.min())}..{int(text.max())}")
        whole: list[tuple[np.ndarray, np.ndarray]] = []
        for m in range(1, order + 1):
            packed = [_packed(text, m, vocabulary) for text in texts if len(text) >= m]
            whole.append(np.unique(np.concatenate(packed or [np.zeros(0, np.int64)]), return_counts=True))
        grams, rare = [], []
        for m, (keys, count) in enumerate(whole, 1):
            size, none = vocabulary**m, np.zeros(0, np.int64)
            before = _counted(whole[m][0] % size, keys) if m < order else none
            around = _counted(whole[m + 1][0] // vocabulary % size, keys) if m + 1 < order else none
            rare.append([int((x == n).sum()) for x in (count, before) for n in (1, 2)])
            kept = count >= (least if m > 1 else 1)
            grams.append(Grams(keys[kept], count[kept], *(x[kept] if len(x) else x for x in (before, around))))
        return cls(vocabulary, least, grams, rare, len(whole[1][0]) if order > 1 else 0, smoothing)

    # -------------------------------------------------------------------------------------------------------------- scoring

    def scores(self, context: Context, candidates: Sequence[int]) -> list[float]:
        """See :class:`Proxy`. A context that was asked for before costs look-ups only."""
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
        levels, root, unseen = self._scored
        if not context:
            row = root
        else:
            level, key = levels[len(context) - 1], 0
            for x in context:
                key = key * self.vocabulary + x if 0 <= x < self.vocabulary and key >= 0 else -1
            at = int(level.contexts.searchsorted(key))
            if at < len(level.contexts) and level.contexts[at] == key:
                part = slice(level.start[at], level.start[at + 1])
                row = _Row(zip(level.tokens[part].tolist(), level.logs[part].tolist()))
                row.weight = float(level.weight[at])
            else:
                row = _Row()
                row.weight = unseen
            row.lower = self._row(context[1:])
        self._rows[context] = row
        return row

    @cached_property
    def _scored(self) -> tuple[list[_Level], _Row, float]:
        """Every n-gram's log score and every context's log weight, the row after nothing, and the weight of a context that was never seen."""
        V, kn = self.vocabulary, self.smoothing == "kn"
        first = self.grams[0]
        seen, total = int(first.count.sum()), self.pairs if self.order > 1 else int(first.count.sum())
        if kn:
            a = first.before if self.order > 1 else first.count
            part = np.maximum(a - self._discount(1), 0) / max(total, 1)
            floor = (1 - part.sum()) / V
            p = part + floor
        else:
            floor, p = BACKOFF / seen, first.count / seen
        root = _Row(zip(first.keys.tolist(), np.log(p).tolist()))
        root.weight, root.lower = math.log(floor), None
        levels = []
        for m in range(2, self.order + 1):
            here, shorter = self.grams[m - 1], self.grams[m - 2]
            of = shorter.keys.searchsorted(here.keys // V)  # its context, which was seen at least as often
            if kn:
                longest = m == self.order
                a, total_of = (here.count, shorter.count) if longest else (here.before, shorter.around)
                # what only begins texts has nothing before it, and its context perhaps no pair around it
                part = np.maximum(a - self._discount(m), 0) / np.maximum(total_of[of], 1)
                left = 1 - np.bincount(of, part, minlength=len(shorter.keys))
                p = part + left[of] * p[shorter.keys.searchsorted(here.keys % V ** (m - 1))]
                weight = np.log(left)
            else:
                p, weight = here.count / shorter.count[of], np.full(len(shorter.keys), math.log(BACKOFF))
            start = np.append(here.keys.searchsorted(shorter.keys * V), len(here.keys))
            levels.append(_Level(shorter.keys, start, here.keys % V, np.log(p), weight))
        return levels, root, 0.0 if kn else math.log(BACKOFF)

    def _discount(self, m: int) -> float:
        one, two = self.rare[m - 1][:2] if m == self.order else self.rare[m - 1][2:]
        return one / (one + 2 * two) if one else 0.5

    # ---------------------------------------------------------------------------------------------------------------- files

    def save(self, path: Path) -> None:
        """Write one compressed npz file: keys as differences, numbers by bytes of equal weight, most of which are zero."""
        facts = np.array([FORMAT, self.vocabulary, self.least, self.pairs, *(n for four in self.rare for n in four)], np.int64)
        columns: dict[str, Any] = {"facts": facts}
        for m, g in enumerate(self.grams, 1):
            columns |= {f"keys{m}": _bytes(np.diff(g.keys, prepend=0)), f"count{m}": _bytes(g.count)}
            columns |= {f"before{m}": _bytes(g.before), f"around{m}": _bytes(g.around)}
        with open(path, "wb") as handle:  # np.savez(path) would add a suffix
            np.savez_compressed(handle, **columns)

    @classmethod
    def load(cls, path: str | Path, smoothing: str = "backoff") -> NGram:
        """Read what :meth:`save` wrote. Raises: NGramError for a missing, damaged or foreign file."""
        path = Path(path).expanduser()
        if not path.is_file():
            raise NGramError(f"no n-gram file {path}; make one with specwb train ngram")
        try:
            with np.load(path, allow_pickle=False) as file:
                facts = file["facts"].tolist()
                if facts[0] != FORMAT:
                    raise NGramError(f"{path} has format {facts[0]}, this version reads {FORMAT}; make it again with specwb train ngram")
                rare = list(zip(*(facts[i::4] for i in range(4, 8)), strict=True))
                grams = []
                for m in range(1, len(rare) + 1):
                    keys, *others = (_numbers(file[f"{name}{m}"]) for name in ("keys", "count", "before", "around"))
                    grams.append(Grams(np.cumsum(keys), *others))
            made = cls(facts[1], facts[2], grams, rare, facts[3], smoothing)
            made._check()
        except NGramError:
            raise
        except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise NGramError(f"{path} is no whole n-gram file ({error}); make it again with specwb train ngram") from error
        return made

    def _check(self) -> None:
        """Whether the columns can be of one text. Raises ValueError."""
        V, order = self.vocabulary, self.order
        if not (order and V >= 1 and V**order < 2**63):
            raise ValueError("its order or vocabulary cannot be")
        for m, g in enumerate(self.grams, 1):
            sizes = [len(g.keys), len(g.keys), len(g.keys) * (m < order), len(g.keys) * (m + 1 < order)]
            if [len(x) for x in (g.keys, g.count, g.before, g.around)] != sizes:
                raise ValueError(f"columns of its {m}-grams differ in length")
            if len(g.keys) and not (g.keys[0] >= 0 and (np.diff(g.keys) > 0).all() and g.keys[-1] < V**m and g.count.min() > 0):
                raise ValueError(f"its {m}-grams are not sorted, or have ids that cannot be")
            if m > 1 and not all(_among(self.grams[m - 2].keys, part) for part in (g.keys // V, g.keys % V ** (m - 1))):
                raise ValueError(f"its {m}-grams have parts that were never seen")
        if not len(self.grams[0].keys):
            raise ValueError("it has no token")


def _packed(text: np.ndarray, m: int, vocabulary: int) -> np.ndarray:
    """Keys of all n-grams of m tokens, in the order of the text."""
    many = len(text) - m + 1
    keys = text[:many]
    for i in range(1, m):
        keys = keys * vocabulary + text[i : i + many]
    return keys


def _counted(parts: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """How often each of the sorted keys is among the parts, all of which are keys."""
    return np.bincount(keys.searchsorted(parts), minlength=len(keys))


def _among(keys: np.ndarray, parts: np.ndarray) -> bool:
    """Whether each of the parts is one of the sorted keys."""
    return not len(parts) or (len(keys) > 0 and bool((keys[keys.searchsorted(parts).clip(max=len(keys) - 1)] == parts).all()))


def _bytes(numbers: np.ndarray) -> np.ndarray:
    """``[8, N]``: all lowest bytes, then all second ones, and so on."""
    return np.ascontiguousarray(numbers.astype("<i8").view(np.uint8).reshape(-1, 8).T)


def _numbers(planes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(planes.T).view("<i8").reshape(-1).astype(np.int64)
