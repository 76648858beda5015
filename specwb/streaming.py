"""Text as it is decoded: tokens become text one by one, and accepted draft tokens are marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specwb.stops import PART, Text


class Stream:
    """Turns token ids into pieces of text that never have to be taken back.

    An instance is passed to ``decode`` as ``on_tokens``, for one row. What has become certain with
    a token is passed to ``show``: a piece belongs to the token that completed it.

    Text is held back while it ends in a replacement character (not all bytes of that character are
    there yet), and while it does not continue what was shown (decoders with a byte fallback rewrite
    a whole run of bytes while it is incomplete).

    Args:
        tokenizer: the target's.
        prompt: the prompt's token ids.
        show: is called with a piece of text, and whether it came from an accepted draft token and
            not from the target.
        stop: texts of which none is shown, nor what comes after it; what may be the beginning of
            one is held back too.

    Attributes:
        ids: the token ids decoded so far.
        rounds: the decoding steps so far.
        accepted: the draft tokens accepted so far.
    """

    def __init__(
        self,
        tokenizer,
        prompt: Sequence[int],
        show: Callable[[str, bool], None],
        stop: Sequence[str] = (),
    ) -> None:
        self.show = show
        self.ids: list[int] = []
        self.rounds = self.accepted = 0
        self._text, self._shown = Text(tokenizer, prompt, stop), ""

    def __call__(self, row: int, ids: list[int], accepted: int) -> None:
        """Takes one step's tokens, of which the first ``accepted`` are draft tokens."""
        self.rounds += 1
        self.accepted += accepted
        for i, token in enumerate(ids):
            self.ids.append(token)
            text = self._text.feed([token]).printed.rstrip(PART)
            if text.startswith(self._shown):
                self._show(text[: self._text.certain], i < accepted)

    def close(self) -> None:
        """Shows what was held back: the bytes that would have completed it never came."""
        self._show(self._text.printed, False)

    @property
    def mean_tokens_per_step(self) -> float:
        """tau: tokens per decoding step, the bonus token included."""
        return len(self.ids) / max(1, self.rounds)

    def _show(self, text: str, drafted: bool) -> None:
        if piece := text[len(self._shown) :]:
            self._shown += piece
            self.show(piece, drafted)
