"""Text as it is decoded: incremental detokenisation, and what was drafted told apart from what the target added."""

from __future__ import annotations

from collections.abc import Callable, Sequence

CONTEXT = 8  # prompt tokens decoded with the new ones: a token's leading space may depend on what is before it


class Stream:
    """Turns token ids into pieces of text that never have to be taken back; pass it to ``decode`` as ``on_tokens`` for one row.

    All new ids are decoded again with each token, and what has become certain since then is given to ``show(text, drafted)``. Text is
    held back while it ends in a replacement character (a character whose bytes are not all there yet), or while it does not continue
    what was shown (decoders with a byte fallback rewrite a whole run of bytes while it is incomplete). A piece belongs to the token
    that completed it.

    Attributes: ids, rounds, accepted: what has been decoded so far.
    """

    def __init__(self, tokenizer, prompt: Sequence[int], show: Callable[[str, bool], None]) -> None:
        self.tokenizer, self.show = tokenizer, show
        self.ids: list[int] = []
        self.rounds = self.accepted = 0
        self._context = list(prompt[-CONTEXT:])
        self._shown = self._text().rstrip("\ufffd")

    def __call__(self, row: int, ids: list[int], accepted: int) -> None:
        self.rounds += 1
        self.accepted += accepted
        for i, token in enumerate(ids):
            self.ids.append(token)
            text = self._text().rstrip("\ufffd")
            if text.startswith(self._shown):
                self._put(text, i < accepted)

    def close(self) -> None:
        """Show what was held back: the bytes that would have completed it never came."""
        text = self._text()
        same = (i for i, (a, b) in enumerate(zip(self._shown, text, strict=False)) if a != b)
        self._shown = text[: next(same, len(self._shown))]
        self._put(text, False)

    @property
    def mean_tokens_per_round(self) -> float:
        """tau."""
        return len(self.ids) / max(1, self.rounds)

    def _put(self, text: str, drafted: bool) -> None:
        if len(text) > len(self._shown):
            self.show(text[len(self._shown) :], drafted)
        self._shown = text

    def _text(self) -> str:
        # cleaning up spaces would change text that was shown already
        return self.tokenizer.decode(self._context + self.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
