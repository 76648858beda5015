"""Texts that end an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specwb.errors import SpecwbError

Stop = str | Sequence[str] | Callable[[int, list[int]], object]
"""Texts that end a row, or a function of (row, all its new token ids) that says whether it ends."""


class StopError(SpecwbError, ValueError):
    """What ends no answer: an empty text, something else than texts or a function, or texts without
    a tokenizer to find them by."""


class Stops:
    """Finds where the rows of a batch end, step by step.

    A row ends with the token that completes one of the texts; tokens behind it are taken back. A
    row that a function ends keeps all that it has.

    Args:
        stop: texts, or a function of (row, all its new ids).
        tokenizer: the target's.
        rows: how many texts are decoded.

    Raises:
        StopError: an empty text, neither texts nor a function, or texts without a tokenizer.
    """

    def __init__(self, stop: Stop, tokenizer: Any, rows: int) -> None:
        self.ends = stop if callable(stop) else None
        self.texts = () if callable(stop) else stop_texts(stop)
        if self.texts and tokenizer is None:
            raise StopError("texts of until= need a tokenizer, the target has none")
        self.tokenizer = tokenizer
        self.ids: list[list[int]] = [[] for _ in range(rows)]

    def __bool__(self) -> bool:
        return bool(self.texts) or self.ends is not None

    def surplus(self, row: int, new: Sequence[int]) -> int | None:
        """How many of a step's ``new`` tokens stand behind the end of the row; None where it goes
        on."""
        ids = self.ids[row]
        if self.ends is not None:
            ids += new
            return 0 if self.ends(row, list(ids)) else None
        # token by token, as plain decoding asks: what one token completes the next may unsay, where
        # a tokenizer joins them in the text ("do n" and "'t" are "don't")
        for place, token in enumerate(new, 1):
            ids.append(token)
            if self.texts and stopped(self.tokenizer, ids, 1, self.texts):
                return len(new) - place
        return None


def stop_texts(
    stop: object, name: str = "until=", kinds: str = "a text, texts or a function"
) -> tuple[str, ...]:
    """One text, several or none as a tuple.

    Args:
        stop: a text, a sequence of texts, or None.
        name: what the caller calls them, for the message.
        kinds: what else could stand there, for the message.

    Raises:
        StopError: something else, or an empty text.
    """
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
    return texts


def stopped(tokenizer: Any, tokens: Sequence[int], new: int, stop: Sequence[str]) -> bool:
    """Says whether the last ``new`` tokens have completed one of the texts ``stop``."""
    # a token may be a fourth of a character; what is further back was looked at before
    tail = tokens[-(new + 4 * max(map(len, stop)) + 8) :]
    text = tokenizer.decode(tail, skip_special_tokens=True)
    return any(one in text for one in stop)


def before(text: str, stop: Sequence[str]) -> str:
    """A text up to the first of the texts ``stop`` in it."""
    places = [i for one in stop if (i := text.find(one)) >= 0]
    return text[: min(places, default=len(text))]


def undecided(text: str, stop: Sequence[str]) -> int:
    """How many characters at the end of a text may begin one of the texts ``stop``."""
    return max((n for one in stop for n in range(1, len(one)) if text.endswith(one[:n])), default=0)
