"""Text as it is decoded: tokens become text one by one, and accepted draft tokens are marked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from specwb.core.stops import PART, Text

if TYPE_CHECKING:
    from specwb.core.flow import Step


class Stream:
    """Turns decoding steps into pieces of text that never have to be taken back.

    An instance is called with each step of :func:`specwb.rounds` for one prompt. What has become
    certain with the step is passed to ``show(piece, drafted)``: a piece belongs to the token that
    completed it, an accepted draft token or the target's. No text of ``until`` is shown, nor what
    may be the beginning of one.

    Text is held back while it ends in a replacement character (not all bytes of that character are
    there yet), and while it does not continue what was shown (decoders with a byte fallback rewrite
    a whole run of bytes while it is incomplete).
    """

    def __init__(self, show: Callable[[str, bool], None]) -> None:
        self.show = show
        self.ids: list[int] = []
        self.rounds = 0
        self.text: Text | None = None
        self.ends: list[tuple[float, int]] = []  # of every step: when, and the tokens until then
        self._shown = ""

    def __call__(self, step: Step) -> None:
        """Takes a decoding step, whose tokens are draft tokens but for the last."""
        count, emitted, stops = step.verdict.count, step.verdict.emitted, step.stops
        assert emitted is not None
        assert stops is not None
        (self.text,) = stops.rows
        before, n = len(self.ids), int(count[0])
        self.ids += emitted[0, :n].tolist()
        self.rounds += 1
        self.ends.append((time.perf_counter(), len(self.ids)))
        self.text.feed(self.ids[len(self.text.sizes) - 1 :])  # where no stop text made the engine
        text = self.text.printed.rstrip(PART)
        if text.startswith(self._shown):
            text = text[: self.text.certain]
            for place, (_, size) in enumerate(self.text.sizes[before + 1 :], 1):
                self._show(text[:size], place < n)

    def close(self) -> None:
        """Shows what was held back: the bytes that would have completed it never came."""
        if self.text is not None:
            self._show(self.text.printed, False)

    @property
    def mean_tokens_per_step(self) -> float:
        """tau: tokens per decoding step, the bonus token included."""
        return len(self.ids) / max(1, self.rounds)

    @property
    def tokens_per_second(self) -> float:
        """Of all steps but the first, which has the prompt in it and what is done once: products
        that are timed, weights that are read and packed. NaN where there are no others."""
        (first, before), (last, after) = self.ends[0], self.ends[-1]
        return (after - before) / (last - first) if len(self.ends) > 1 else float("nan")

    def _show(self, text: str, drafted: bool) -> None:
        if piece := text[len(self._shown) :]:
            self._shown += piece
            self.show(piece, drafted)
