"""Conversations: several turns with a target, whose caches stay from one to the next."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from specwb.decoding import Output, check_target, decode, rounds
from specwb.drafters.past import Past
from specwb.errors import SpecwbError
from specwb.inputs import integer, is_many
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.target import Target


class ConversationError(SpecwbError, ValueError):
    """A turn that cannot be taken."""


class Conversation:
    """Several turns with a target; what was computed of earlier ones is not computed again::

        talk = specwb.Conversation(specwb.load("lab"), "sps", max_new_tokens=64)
        talk.say("What is 2 + 3?").text
        talk.say("And 3 + 4?").text

    Every turn is decoded from all messages so far, put through the chat template, as a fresh
    decoding of them would be: same tokens, same distribution. As far as their tokens are those of
    the decoding before, keys and values are taken over, of the target and of a draft model.

    Args:
        target: what :func:`specwb.load` returned; its tokenizer needs a chat template.
        method: a spec or a built method.
        system: the system's message, if there is one.
        rows: how many conversations go on side by side.
        settings: of :func:`specwb.decode`, for every turn, and the method's own options.

    Raises:
        ConversationError: no rows, or a system's message that is no text or empty.
        PromptError, MethodError, RuleMismatch, ArgumentError: settings that no turn could be
            decoded with, such as a limit that is no number or as many seeds as there are no rows.

    Attributes:
        messages: of each row, the messages so far.
        past: what is kept; ``past.reused`` is how many positions the last turn took over.
    """

    def __init__(
        self,
        target: Target,
        method: str | Method = "ar",
        *,
        system: str | None = None,
        rows: int = 1,
        **settings: Any,
    ) -> None:
        check_target(target)
        count = integer("rows", rows, 1, kind=ConversationError)
        if system is not None:
            _check_text("system", system)
        self.target, self.past = target, Past()
        if not isinstance(method, Method):
            own = {name: settings.pop(name) for name in list(settings) if name not in _SETTINGS}
            method = make_method(method, target, **own)
        self.method, self.settings = method, settings
        fixed: dict[str, Any] = {"max_new_tokens": 1, **settings}
        fixed.pop("on_tokens", None)
        if isinstance(fixed.get("seed"), torch.Generator):
            del fixed["seed"]  # the check must not draw from it
        rounds(target, [[0]] * count, method, **fixed)  # checks all of them, and decodes nothing
        head = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[list[dict[str, str]]] = [list(head) for _ in range(count)]

    def __repr__(self) -> str:
        turns = sum(message["role"] == "user" for message in self.messages[0])
        return f"Conversation({self.method.key!r}, rows={len(self.messages)}, turns={turns})"

    def say(self, turn: str | Sequence[str], **settings: Any) -> Output:
        """Puts a user's turn to the target and returns its answer, which joins the messages
        without the spaces around it.

        A turn that fails leaves the conversation as it was.

        Args:
            turn: the user's text, one a row where there are several.
            settings: of :func:`specwb.decode`, for this turn.

        Raises:
            ConversationError: not one text a row, or an empty one.
            PromptError: the messages do not fit the context, or there is no chat template.
        """
        turns = [turn] if isinstance(turn, str) else list(turn) if is_many(turn) else []
        if len(turns) != len(self.messages):
            raise ConversationError(
                f"a turn must be {len(self.messages)} text(s), one a row; got {turn!r}"
            )
        for text in turns:
            _check_text("a turn", text)
        asked = [
            [*row, {"role": "user", "content": text}]
            for row, text in zip(self.messages, turns, strict=True)
        ]
        how = {**self.settings, **settings}
        output = decode(self.target, asked, self.method, past=self.past, **how)
        assert output.texts is not None
        self.messages = [
            [*row, {"role": "assistant", "content": text.strip()}]
            for row, text in zip(asked, output.texts, strict=True)
        ]
        return output


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str) or not text:
        raise ConversationError(f"{name} must be a text that is not empty, got {text!r}")


_SETTINGS = {
    name for name, p in inspect.signature(decode).parameters.items() if p.kind is p.KEYWORD_ONLY
} - {"past"}
"""What :func:`specwb.decode` takes beside the method's options."""
