"""The text of new tokens, and texts that end an answer: one decoder for all who read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any

from specwb.core.errors import SpecwbError
from specwb.core.inputs import check_unicode

Stop = str | Sequence[str] | Callable[[int, list[int]], object]
"""Texts that end a row, or a function of (row, all its new token ids) that says whether it ends."""

CONTEXT = 12
"""Tokens that are decoded in front of others: whether a token begins with a space depends on what
is before it. Twelve byte tokens are whole characters of two, three and four bytes alike."""
PART = "\ufffd"  # what decoders write for a character of which not all bytes are there yet
LONGEST = 4  # bytes of a character in UTF-8


class StopError(SpecwbError, ValueError):
    """What ends no answer: an empty text, something else than texts or a function, or texts without
    a tokenizer to find them by."""


class Text:
    """The text of a row's new tokens, decoded behind the last tokens of its prompt.

    Stop texts are looked for with special tokens visible, so a special token can be one; the
    printed text has none. A row ends with the token that completes a stop text, and its printed
    text ends before that stop. ``sizes`` are those of the visible and the plain text, before the
    first token and after each, without bytes of characters that are not complete.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self.stop, self.ended = tuple(stop), False
        self._plain = _Decoded(tokenizer, prompt, skip_special=True)
        self._visible = _Decoded(tokenizer, prompt, skip_special=False)
        self.sizes = [(0, 0)]
        self._end = 0  # of the printed text, where a stop text has ended it

    def feed(self, ids: Sequence[int]) -> Text:
        """Takes further tokens, up to one that ends the row; returns itself."""
        for token in ids:
            if self.ended:
                break
            # what one token completes the next may unsay, where a decoder joins them in the text
            # ("do n" and "'t" are "don't"): so each token is looked at, whoever drafted it
            looked_at = len(self._visible.settled)
            plain = self._plain.feed(token)
            visible = self._visible.feed(token) if self.stop else plain
            self.sizes.append((len(visible.rstrip(PART)), len(plain.rstrip(PART))))
            found = (visible.find(one, max(0, looked_at - len(one) + 1)) for one in self.stop)
            if places := [place for place in found if place >= 0]:
                self.ended, self._end = True, self._printed_size(min(places))
        return self

    @property
    def printed(self) -> str:
        """The text without special tokens, up to the stop text that has ended it."""
        return self._plain.text[: self._end] if self.ended else self._plain.text

    @property
    def certain(self) -> int:
        """How many characters of the printed text no stop text can take back any more."""
        if self.ended:
            return self._end
        visible = self._visible.text.rstrip(PART)
        held = max((overlap(visible, one) for one in self.stop), default=0)
        return self._printed_size(len(visible) - held) if held else len(self._plain.text)

    def _printed_size(self, place: int) -> int:
        """How many printed characters stand before a place in the visible text."""
        i = next(i for i in reversed(range(len(self.sizes))) if self.sizes[i][0] <= place)
        visible, plain = self.sizes[i]
        # a place within a special token is where that token stands
        _, after = self.sizes[min(i + 1, len(self.sizes) - 1)]
        return min(plain + place - visible, after)


class _Decoded:
    """New ids as ``text``. With every one only the last of them are decoded again: ``settled`` is
    the beginning of the text that further ids leave as it is."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], skip_special: bool) -> None:
        self.tokenizer, self.skip_special = tokenizer, skip_special
        self.text = self.settled = ""
        self._ids = list(prompt[-CONTEXT:])  # the last ones that are settled, and what follows
        self._lead = self._decoded(self._ids).rstrip(PART)  # the text of those
        self._open = 0  # how many ids follow

    def feed(self, token: int) -> str:
        """Takes a further id and returns the whole text."""
        self._ids.append(token)
        self._open += 1
        window = self._decoded(self._ids)
        self.text = self.settled + window[len(self._lead) :]
        # a decoder with a byte fallback rewrites a whole run of bytes once its last one is there
        if self._open >= 4 * CONTEXT and not self._may_be_completed(window):
            self._settle(window)
        return self.text

    def _may_be_completed(self, window: str) -> bool:
        """Whether the last character lacks bytes. It has at most three then, so without them the
        text ends in no replacement character; bytes that are no text leave one however many are
        taken away."""
        shorter = (self._decoded(self._ids[:-n]) for n in range(1, LONGEST))
        return window.endswith(PART) and not all(text.endswith(PART) for text in shorter)

    def _settle(self, window: str) -> None:
        """Moves the window on to the last ids, where the text stays the same by that."""
        # a border within a character changes the text; of so many, one is between two of them
        for at in range(len(self._ids) - CONTEXT, len(self._ids) - CONTEXT - LONGEST, -1):
            head = self._decoded(self._ids[:at])
            for begin in range(at - CONTEXT, at - CONTEXT - LONGEST, -1):
                lead = self._decoded(self._ids[begin:at])
                if lead and head + self._decoded(self._ids[begin:])[len(lead) :] == window:
                    self.settled += head[len(self._lead) :]
                    self._ids, self._lead = self._ids[begin:], lead
                    self._open = len(self._ids) - (at - begin)
                    return

    def _decoded(self, ids: Sequence[int]) -> str:
        # cleaning up spaces would change text that is certain by then
        return self.tokenizer.decode(
            ids, skip_special_tokens=self.skip_special, clean_up_tokenization_spaces=False
        )


class Stops:
    """Finds where the rows of a batch end, token by token, and keeps why.

    A row ends with the token that completes one of the texts, or at which the function says so;
    tokens behind it are taken back. So where a row ends does not depend on how many tokens a step
    writes.
    """

    def __init__(self, stop: Stop, tokenizer: Any, prompts: Sequence[Sequence[int]]) -> None:
        self.ends = stop if callable(stop) else None
        texts = () if callable(stop) else stop_texts(stop)
        if texts and tokenizer is None:
            raise StopError("texts of until= need a tokenizer, the target has none")
        self._stops, self._tokenizer, self._prompts = texts, tokenizer, prompts
        self.ids: list[list[int]] = [[] for _ in prompts]
        self.ended = [False for _ in prompts]

    def __bool__(self) -> bool:
        return bool(self._stops) or self.ends is not None

    @cached_property
    def rows(self) -> list[Text]:
        """Made when somebody asks for text: many decodings are of ids alone."""
        if self._tokenizer is None:
            return []
        return [Text(self._tokenizer, prompt, self._stops) for prompt in self._prompts]

    def surplus(self, row: int, new: Sequence[int]) -> int | None:
        """How many of a step's ``new`` tokens stand behind the end of the row; None where it goes
        on."""
        for place, token in enumerate(new, 1):
            if self._is_last(row, token):
                self.ended[row] = True
                return len(new) - place
        return None

    def _is_last(self, row: int, token: int) -> bool:
        if self.ends is None:
            return self.rows[row].feed([token]).ended
        self.ids[row].append(token)
        return bool(self.ends(row, list(self.ids[row])))

    def texts(self, tokens: Sequence[Sequence[int]]) -> list[str] | None:
        """The printed texts of finished rows with these new ids; None without a tokenizer."""
        if not self.rows:
            return None
        rows = zip(self.rows, tokens, strict=True)
        return [text.feed(ids[len(text.sizes) - 1 :]).printed for text, ids in rows]

    def reasons(self, tokens: Sequence[Sequence[int]], eos: Iterable[int]) -> list[str]:
        """Why finished rows with these new ids have ended: ``"stop"`` by a text or the function,
        ``"eos"`` (one of ``State.eos``) or ``"length"``."""
        last = set(eos)  # the engine cuts a row at the first of them
        rows = zip(self.ended, tokens, strict=True)
        return ["stop" if end else "eos" if ids[-1] in last else "length" for end, ids in rows]


def stop_texts(
    stop: object, name: str = "until=", kinds: str = "a text, texts or a function"
) -> tuple[str, ...]:
    """One text, several or none as a tuple; ``name`` and ``kinds`` are the message's words for what
    the caller gave and could have given."""
    if stop is None:
        return ()
    if not isinstance(stop, str | list | tuple | set | frozenset):
        raise StopError(f"{name} must be {kinds}, got {stop!r}")
    texts = (stop,) if isinstance(stop, str) else tuple(stop)
    for text in texts:
        if not isinstance(text, str):
            raise StopError(f"{name} must be {kinds}, got {text!r} among them")
        if not text:
            raise StopError(f"{name} has an empty text, which would end every answer at once")
        check_unicode(f"a text of {name}", text, StopError)
    return texts


def overlap(text: str, stop: str) -> int:
    """How many characters at the end of ``text`` begin ``stop``, which is not whole there.

    Linear in the length of ``stop`` (Knuth, Morris and Pratt, "Fast Pattern Matching in Strings",
    SIAM Journal on Computing 6, 1977).
    """
    borders, n = _borders(stop), 0
    for character in text[max(0, len(text) - len(stop) + 1) :]:
        while n and stop[n] != character:
            n = borders[n - 1]
        n += stop[n] == character
    return n


@lru_cache(64)
def _borders(text: str) -> list[int]:
    """Of every beginning of a text, the length of the longest shorter one that it ends with."""
    borders, n = [0] * len(text), 0
    for i in range(1, len(text)):
        while n and text[i] != text[n]:
            n = borders[n - 1]
        n += text[i] == text[n]
        borders[i] = n
    return borders


def loops(tokens: Sequence[int], n: int = 8, times: int = 3) -> bool:
    """Tell whether some run of ``n`` tokens occurs ``times`` times (overlapping ones count).

    Greedy text of small models soon repeats itself, and repeated text is easy to draft.
    """
    counts = Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
    return max(counts.values(), default=0) >= times
