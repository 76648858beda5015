"""The text of new tokens, and texts that end an answer: one decoder for all who read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from specwb.core.errors import SpecwbError
from specwb.core.inputs import check_unicode

if TYPE_CHECKING:
    from specwb.core.flow import State, Verdict

CONTEXT = 12
"""Tokens of the prompt that are decoded in front of new ones: whether a token begins with a space
depends on what is before it. Twelve byte tokens are whole characters of two, three and four bytes
alike, and no character has as many bytes."""
PART = "\ufffd"  # what decoders write for a character of which not all bytes are there yet


class StopError(SpecwbError, ValueError):
    """Stop texts that cannot end an answer: empty, no texts, or without a tokenizer."""


class _Decoded:
    """New ids as ``text``. Only the last of them are decoded again: text that ends in a whole
    character is settled, and the ids of the last settled piece stay as context."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], skip_special: bool) -> None:
        # cleaning up spaces would change text that is settled by then
        self._decode = partial(
            tokenizer.decode, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
        self.text = self._settled = ""
        self._context = list(prompt[-CONTEXT:])
        self._open: list[int] = []
        self._lead = self._decode(self._context).rstrip(PART)

    def feed(self, token: int) -> str:
        """Takes a further id and returns the whole text."""
        self._open.append(token)
        window = self._decode(self._context + self._open)
        new = window[len(self._lead) :]
        self.text = self._settled + new
        is_whole = bool(new) and not new.endswith(PART)
        if is_whole or len(self._open) == CONTEXT:  # so many bytes are no character
            self._settled, self._context, self._open = self.text, self._open, []
            self._lead = self._decode(self._context)
        return self.text


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
            before = self.sizes[-1][0]
            plain = self._plain.feed(token)
            visible = self._visible.feed(token) if self.stop else plain
            self.sizes.append((len(visible.rstrip(PART)), len(plain.rstrip(PART))))
            places = [visible.find(stop, max(0, before - len(stop) + 1)) for stop in self.stop]
            if place := [place for place in places if place >= 0]:
                self.ended, self._end = True, self._printed_size(min(place))
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
        held = max((overlap(visible, stop) for stop in self.stop), default=0)
        return self._printed_size(len(visible) - held) if held else len(self._plain.text)

    def _printed_size(self, place: int) -> int:
        """How many printed characters stand before a place in the visible text."""
        i = next(i for i in reversed(range(len(self.sizes))) if self.sizes[i][0] <= place)
        visible, plain = self.sizes[i]
        # a place within a special token is where that token stands
        _, after = self.sizes[min(i + 1, len(self.sizes) - 1)]
        return min(plain + place - visible, after)


class Stops:
    """Finds the tokens that complete a stop text in the rows of a batch, and keeps which rows have
    ended so. Where a row ends does not depend on how many tokens a step writes."""

    def __init__(
        self, stop: str | Sequence[str], tokenizer: Any, prompts: Sequence[Sequence[int]]
    ) -> None:
        self._stops, self._tokenizer, self._prompts = stop_texts(stop), tokenizer, prompts
        if self._stops and tokenizer is None:
            raise StopError("texts of until= need a tokenizer, the target has none")
        self.ended = [False for _ in prompts]

    def __bool__(self) -> bool:
        return bool(self._stops)

    @cached_property
    def rows(self) -> list[Text]:
        """Made when somebody asks for text: many decodings are of ids alone."""
        if self._tokenizer is None:
            return []
        return [Text(self._tokenizer, prompt, self._stops) for prompt in self._prompts]

    def cut(self, state: State, verdict: Verdict) -> None:
        """Ends the rows whose text is complete with this step, and cuts them and the step's verdict
        there. Caches keep what is behind: the rows are done."""
        assert verdict.emitted is not None
        counts, emitted = verdict.count.tolist(), verdict.emitted.tolist()
        for row, (count, ids) in enumerate(zip(counts, emitted, strict=True)):
            surplus = self.surplus(row, ids[:count]) if count else None
            if surplus is None:
                continue
            state.done[row] = True
            if surplus:
                last = count - 1 - surplus
                state.length[row] -= surplus
                verdict.accepted[row] -= surplus
                verdict.bonus[row] = ids[last]
                verdict.path[row, last:] = verdict.path[row, last].clone()
        state.finished = state.finished or bool(state.done.all())

    def surplus(self, row: int, new: Sequence[int]) -> int | None:
        """How many of a step's ``new`` tokens stand behind the end of the row; None where it goes
        on."""
        for place, token in enumerate(new, 1):
            if self.rows[row].feed([token]).ended:
                self.ended[row] = True
                return len(new) - place
        return None

    def texts(self, tokens: Sequence[Sequence[int]]) -> list[str] | None:
        """The printed texts of finished rows with these new ids; None without a tokenizer."""
        if not self.rows:
            return None
        rows = zip(self.rows, tokens, strict=True)
        return [text.feed(ids[len(text.sizes) - 1 :]).printed for text, ids in rows]

    def reasons(self, tokens: Sequence[Sequence[int]], eos: Iterable[int]) -> list[str]:
        """Why finished rows with these new ids have ended: ``"stop"`` by a text, ``"eos"`` (one of
        ``State.eos``) or ``"length"``."""
        last = set(eos)  # the engine cuts a row at the first of them
        rows = zip(self.ended, tokens, strict=True)
        return ["stop" if end else "eos" if ids[-1] in last else "length" for end, ids in rows]


def stop_texts(stop: object, name: str = "until=") -> tuple[str, ...]:
    """One stop text, several or none as a tuple; ``name`` is the argument's in the message.

    Raises:
        StopError: no texts, an empty one, or one that is not valid Unicode.
    """
    if stop is None:
        return ()
    texts = (stop,) if isinstance(stop, str) else stop
    if not isinstance(texts, list | tuple | set | frozenset):
        raise StopError(f"{name} must be a text or texts, got {stop!r}")
    for text in texts:
        if not isinstance(text, str):
            raise StopError(f"{name} must be a text or texts, got {text!r} among them")
        if not text:
            raise StopError(f"{name} has an empty text, which would end every answer at once")
        check_unicode(f"a text of {name}", text, StopError)
    return tuple(texts)


def overlap(text: str, stop: str) -> int:
    """How many characters at the end of ``text`` begin ``stop``, which is not whole there."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)


def loops(tokens: Sequence[int], n: int = 8, times: int = 3) -> bool:
    """Tell whether some run of ``n`` tokens occurs ``times`` times (overlapping ones count).

    Greedy text of small models soon repeats itself, and repeated text is easy to draft.
    """
    counts = Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
    return max(counts.values(), default=0) >= times
