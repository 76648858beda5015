"""Text as it is decoded: tokens become text one by one, and accepted draft tokens are marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specwb.stops import before, undecided

# Prompt tokens that are decoded together with the new ones: whether a token begins with a space may
# depend on what is before it.
CONTEXT = 8


class Stream:
    """Turns token ids into pieces of text that never have to be taken back.

    An instance is passed to ``decode`` as ``on_tokens``, for one row. With each token all new ids
    are decoded again, and what has become certain since then is passed to ``show``. A piece belongs
    to the token that completed it.

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
        self.tokenizer, self.show, self.stop = tokenizer, show, stop
        self.ids: list[int] = []
        self.rounds = self.accepted = 0
        self._context = list(prompt[-CONTEXT:])
        self._shown = self._text().rstrip("\ufffd")
        self._begin = self._sent = len(self._shown)

    def __call__(self, row: int, ids: list[int], accepted: int) -> None:
        """Takes one step's tokens, of which the first ``accepted`` are draft tokens."""
        self.rounds += 1
        self.accepted += accepted
        for i, token in enumerate(ids):
            self.ids.append(token)
            text = self._text().rstrip("\ufffd")
            if text.startswith(self._shown):
                self._show_up_to(text, i < accepted)

    def close(self) -> None:
        """Shows what was held back: the bytes that would have completed it never came."""
        text = self._text()
        pairs = enumerate(zip(self._shown, text, strict=False))
        first_difference = next((i for i, (a, b) in pairs if a != b), len(self._shown))
        self._shown = text[:first_difference]
        self._show_up_to(text, False, last=True)

    @property
    def mean_tokens_per_step(self) -> float:
        """tau: tokens per decoding step, the bonus token included."""
        return len(self.ids) / max(1, self.rounds)

    def _show_up_to(self, text: str, drafted: bool, last: bool = False) -> None:
        self._shown = text
        said = before(text[self._begin :], self.stop)
        end = self._begin + len(said) - (0 if last else undecided(said, self.stop))
        if end > self._sent:
            self.show(text[self._sent : end], drafted)
            self._sent = end

    def _text(self) -> str:
        # cleaning up spaces would change text that was shown already
        return self.tokenizer.decode(
            self._context + self.ids,
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
