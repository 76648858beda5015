"""Prompts that a caller passes in (texts, chats, token ids), as rows of a target's token ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from specwb.core.errors import SpecwbError
from specwb.core.files import foreign
from specwb.core.inputs import as_int, check_unicode, is_many, to_python
from specwb.models.target import Target


class Asked(Protocol):
    """A prompt that knows its token ids, as a question of a prompt set does."""

    def ids(self, tokenizer: Any) -> list[int]: ...


Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]] | Asked
"""A text, token ids, the messages of a chat, or a question of
:func:`specwb.models.questions.load_prompts`, of which the first turn is taken."""
Prompts = Prompt | Sequence[Prompt] | Mapping[str, Any] | Tensor | np.ndarray
"""One prompt, a batch of them, or what a tokenizer returned (``input_ids``, ``attention_mask``)."""


class PromptError(SpecwbError, ValueError):
    """A prompt that cannot be decoded: empty, too long, no ids, or text without a tokenizer."""


def token_rows(target: Target, prompts: Prompts) -> list[list[int]]:
    """The token ids of every row; see :func:`read_prompts`."""
    return read_prompts(target, prompts)[0]


def prompt_name(i: int, count: int) -> str:
    """What messages call prompt ``i`` of ``count``."""
    return "the prompt" if count == 1 else f"prompt {i}"


def check_room(rows: Sequence[Sequence[int]], more: int, model: str, context: int) -> None:
    """Checks that rows of token ids leave room for ``more`` tokens in the context of ``model``.

    Raises:
        PromptError: one does not; the message names the row.
    """
    for i, row in enumerate(rows):
        if len(row) + more > context:
            raise PromptError(
                f"{prompt_name(i, len(rows))} has {len(row)} tokens; with {more} more it exceeds "
                f"the context of {model!r} ({context})"
            )


def read_prompts(target: Target, prompts: Prompts) -> tuple[list[list[int]], bool]:
    """The token ids of every row, and whether ``prompts`` was one prompt and not a batch.

    A prompt is a text, token ids (a list, tensor or array), a question of a prompt set (its first
    turn), or a chat: a list of messages ``{"role": .., "content": ..}``, which the target's chat
    template turns into text up to where the assistant goes on. What a tokenizer returned is taken
    as its ``input_ids`` where its ``attention_mask`` is 1, so that padding on either side is
    dropped."""
    single = False
    batch: Any
    if isinstance(prompts, Mapping):
        ids = to_python(prompts.get("input_ids"))
        single = not (is_many(ids) and len(ids) and is_many(ids[0]))
        batch = [prompts] if single else _without_padding("prompts", prompts)
    elif isinstance(prompts, str) or _is_asked(prompts):
        single, batch = True, [prompts]
    elif is_many(prompts):
        values = to_python(prompts)
        first = values[0] if len(values) else []
        is_id = not (isinstance(first, str | bytes | Mapping) or is_many(first) or _is_asked(first))
        single = is_id or _is_message(first)
        batch = [values] if single else values
    else:
        forms = "a text, token ids, chat messages, a list of these, or what a tokenizer returned"
        raise PromptError(f"prompts must be {forms}; got {type(prompts).__name__}")
    if not len(batch):
        raise PromptError("no prompt was given")
    rows = [_row_ids(target, prompt_name(i, len(batch)), prompt) for i, prompt in enumerate(batch)]
    return rows, single


def _row_ids(target: Target, name: str, prompt: Any) -> list[int]:
    """The token ids of one prompt, which messages call ``name``."""
    values: Sequence[Any]
    if isinstance(prompt, str):
        values = encode(target.tokenizer, prompt, name)
    elif _is_asked(prompt):
        values = prompt.ids(target.tokenizer)
    elif isinstance(prompt, Mapping):
        if "input_ids" not in prompt:
            keys = ", ".join(map(repr, prompt))
            raise PromptError(
                f"{name} is a dict without 'input_ids', its keys: {keys}; a chat is a list of "
                "messages"
            )
        (values,) = _without_padding(name, {key: [to_python(x)] for key, x in prompt.items()})
    elif is_many(prompt) and len(prompt) and isinstance(prompt[0], Mapping):
        values = chat(target.tokenizer, prompt, name)
    elif is_many(prompt):
        values = to_python(prompt)
    else:
        raise PromptError(f"{name} must be text, token ids or messages, got {prompt!r}")
    if not len(values):
        raise PromptError(f"{name} is empty; it needs at least one token")
    ids = []
    for value in values:
        number = as_int(value)
        if number is None:
            kind = type(value).__name__
            raise PromptError(f"{name}: token ids are integers, got {kind} {value!r}")
        if not 0 <= number < target.vocabulary:
            words = {} if target.tokenizer is None else target.tokenizer.get_vocab()
            word = next(
                (f" ({word!r} of its tokenizer)" for word in words if words[word] == number), ""
            )
            last = target.vocabulary - 1
            raise PromptError(f"{name} has token ids outside 0..{last}, such as {number}{word}")
        ids.append(number)
    return ids


def _is_asked(value: object) -> bool:
    return callable(getattr(value, "ids", None))


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and "role" in value


def _without_padding(name: str, encoding: Mapping[str, Any]) -> list[list]:
    """The rows of what a tokenizer returned without their padding."""
    rows = to_python(encoding["input_ids"])
    masks = to_python(encoding.get("attention_mask"))
    if not (is_many(rows) and all(is_many(row) for row in rows)):
        raise PromptError(f"{name}: input_ids must be one list a row, got {rows!r:.200}")
    if masks is None:
        return list(rows)
    if len(masks) != len(rows):
        raise PromptError(f"{name}: attention_mask has {len(masks)} rows, input_ids {len(rows)}")
    texts = []
    for i, (row, mask) in enumerate(zip(map(to_python, rows), map(to_python, masks), strict=True)):
        marks = ["01"[int(x)] if x in (0, 1) else "?" for x in mask or ()]
        # one run of 1 between padding on either side
        if len(row) != len(marks) or not re.fullmatch("0*1*0*", "".join(marks)):
            raise PromptError(
                f"{name}: row {i} of attention_mask must be 1 at the tokens of a text and 0 at "
                f"padding before or after it, as long as its ids; got {mask}"
            )
        texts.append([token for token, mark in zip(row, marks, strict=True) if mark == "1"])
    return texts


def encode(tokenizer: Any, text: str, name: str = "prompt", special: bool = True) -> list[int]:
    """The token ids of a text; ``special``: whether the tokenizer adds its special tokens."""
    if tokenizer is None:
        missing = "prompts are text but the target was loaded without a tokenizer"
        raise PromptError(f"{missing}; pass token ids or a tokenizer")
    check_unicode(name, text, PromptError)
    with foreign(f"{name} cannot be read by the tokenizer", PromptError):
        return tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]


def chat(tokenizer: Any, messages: Any, name: str = "prompt") -> list[int]:
    """The token ids of a chat up to where the assistant goes on; where the last message is the
    assistant's, that message is continued."""
    if not getattr(tokenizer, "chat_template", None):
        missing = "tokenizer was given" if tokenizer is None else "target has a chat template"
        way_out = "name one with template= (--template), or give its text or token ids"
        raise PromptError(f"{name} is a chat, but no {missing}; {way_out}")
    if not messages:
        raise PromptError(f"{name} is a chat without messages")
    for message in messages:  # a template writes nothing at all for what is missing
        if not _is_message(message) or not ("content" in message or "tool_calls" in message):
            expected = "every message of a chat is a dict with 'role' and 'content'"
            raise PromptError(f"{name}: {expected}, got {message!r}")
        content = message.get("content")
        parts = isinstance(content, list) and all(isinstance(part, Mapping) for part in content)
        if not (isinstance(content, str) or parts or "tool_calls" in message):
            raise PromptError(f"{name}: the content of a message is a text, got {content!r}")
    continued = messages[-1]["role"] == "assistant"
    # a template is a program of its own: it may raise anything
    with foreign(f"{name}: the chat template cannot be applied", PromptError):
        text = tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,
            add_generation_prompt=not continued,
            continue_final_message=continued,
        )
    return encode(tokenizer, text, name, special=False)  # templates write special tokens themselves
