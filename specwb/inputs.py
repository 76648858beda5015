"""What a caller hands over, checked in one place and made plain: numbers, ids and prompts."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from specwb.errors import SpecwbError

if TYPE_CHECKING:
    from specwb.models.target import Target

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""A text, token ids, or the messages of a chat."""
Prompts = Prompt | Sequence[Prompt] | Mapping[str, Any] | Tensor | np.ndarray
"""One prompt, a batch of them, or what a tokenizer returned (``input_ids``, ``attention_mask``)."""


class PromptError(SpecwbError, ValueError):
    """A prompt that cannot be decoded: empty, too long, no ids, or text without a tokenizer."""


def integer(
    name: str,
    value: object,
    low: int | None = None,
    high: int | None = None,
    kind: type[ValueError] = ValueError,
) -> int:
    """A whole number in ``low..high``: an int, or one number of an integer type of numpy or torch.

    Raises:
        kind: anything else. A bool is no number here, and a float is none even where it is whole.
    """
    number = as_int(value)
    if number is None or (low is not None and number < low) or (high is not None and number > high):
        bounds = f" >= {low}" if high is None else f" in {low}..{high}"
        raise kind(f"{name} must be an integer{'' if low is None else bounds}, got {value!r}")
    return number


def real(name: str, value: object, kind: type[ValueError] = ValueError) -> float:
    """A number that is not NaN, as a float; of numpy and torch too.

    Raises:
        kind: anything else; a bool or a text that looks like a number is none.
    """
    number = value.item() if isinstance(value, Tensor | np.ndarray) and value.ndim == 0 else value
    if isinstance(number, bool | np.bool_) or not isinstance(number, numbers.Real):
        raise kind(f"{name} must be a number, got {value!r}")
    if number != number:
        raise kind(f"{name} must be a number, got nan")
    return float(number)


def as_int(value: object) -> int | None:
    """The int that a value is, None where it is no single whole number."""
    if type(value) is int:
        return value
    if isinstance(value, bool | np.bool_) or getattr(value, "dtype", None) is torch.bool:
        return None
    if getattr(value, "ndim", 0):  # torch takes a list of one number for that number
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        return None


def plain(values: Any) -> Any:
    """Lists of a tensor or array, or of something inside one; everything else as it is."""
    return values.tolist() if isinstance(values, Tensor | np.ndarray) else values


def is_many(value: object) -> bool:
    """Is this a sequence of things: no text, no bytes, no mapping, no single number."""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def eos_ids(eos: object, vocabulary: int, source: str = "eos") -> list[int]:
    """Ids that end a row, from one id or several.

    Raises:
        ValueError: something that is no id of the vocabulary, which would never end a row.
    """
    if isinstance(eos, set | frozenset):
        eos = list(eos)
    found = []
    for one in plain(eos) if is_many(eos) else [eos]:
        number = as_int(one)
        if number is None or not 0 <= number < vocabulary:
            raise ValueError(f"{source} must be token ids in 0..{vocabulary - 1}, got {one!r}")
        found.append(number)
    return found


def token_rows(target: Target, prompts: Prompts) -> list[list[int]]:
    """Token ids of every row, see :func:`read_prompts`."""
    return read_prompts(target, prompts)[0]


def read_prompts(target: Target, prompts: Prompts) -> tuple[list[list[int]], bool]:
    """Token ids of every row, and whether it was one prompt and not a batch.

    A prompt is a text, token ids (a list, tensor or array), or a chat: a list of messages
    ``{"role": .., "content": ..}``, put through the target's chat template up to where the
    assistant goes on. What a tokenizer returned is taken as its ``input_ids`` where its
    ``attention_mask`` is 1, so that padding on either side is dropped.

    Raises:
        PromptError: no prompt or an empty one; ids that are no integers or outside the vocabulary;
            text or chat without a tokenizer or template; a mask with holes.
    """
    single = False
    many: Any
    if isinstance(prompts, Mapping):
        single = "input_ids" not in prompts or not _nested(prompts["input_ids"])
        many = [prompts] if single else _masked("prompts", prompts)
    elif isinstance(prompts, str):
        single, many = True, [prompts]
    elif is_many(prompts):
        many = plain(prompts)
        if not len(many):
            raise PromptError("no prompt was given")
        whole = isinstance(many[0], str | bytes | Mapping) or is_many(many[0])
        single = _is_message(many[0]) or not whole
        many = [many] if single else many
    else:
        known = "a text, token ids, chat messages, a list of these, or what a tokenizer returned"
        raise PromptError(f"prompts must be {known}; got {type(prompts).__name__}")
    if not len(many):
        raise PromptError("no prompt was given")
    rows = [_row(target, f"prompt {i}", prompt) for i, prompt in enumerate(many)]
    return rows, single


def _row(target: Target, name: str, prompt: Any) -> list[int]:
    """Token ids of one prompt."""
    if isinstance(prompt, str):
        ids = encode(target.tokenizer, prompt, name)
    elif isinstance(prompt, Mapping):
        if "input_ids" not in prompt:
            keys = ", ".join(map(repr, prompt))
            chat_hint = "; a chat is a list of messages" if _is_message(prompt) else ""
            raise PromptError(f"{name} is a dict without 'input_ids', its keys: {keys}{chat_hint}")
        ids = _masked(name, {key: [plain(x)] for key, x in prompt.items() if key in _READ})[0]
    elif is_many(prompt) and len(prompt) and isinstance(prompt[0], Mapping):
        ids = chat(target.tokenizer, prompt, name)
    elif is_many(prompt):
        ids = plain(prompt)
    else:
        raise PromptError(f"{name} must be text, token ids or messages, got {prompt!r}")
    if not len(ids):
        raise PromptError(f"{name} is empty; it needs at least one token")
    found = [as_int(x) for x in ids]
    if None in found:
        wrong = ids[found.index(None)]
        raise PromptError(f"{name}: token ids are integers, got {type(wrong).__name__} {wrong!r}")
    if min(found) < 0 or max(found) >= target.vocabulary:  # type: ignore[type-var,operator]
        raise PromptError(f"{name} has token ids outside 0..{target.vocabulary - 1}")
    return found  # type: ignore[return-value]


_READ = ("input_ids", "attention_mask")


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and "role" in value


def _nested(ids: object) -> bool:
    """Several rows of ids, not one."""
    ids = plain(ids)
    return is_many(ids) and bool(len(ids)) and is_many(ids[0])  # type: ignore[arg-type,index]


def _masked(name: str, encoding: Mapping[str, Any]) -> list[list]:
    """The rows of a tokenizer's answer without their padding."""
    rows, mask = plain(encoding["input_ids"]), plain(encoding.get("attention_mask"))
    if mask is None:
        return list(rows)
    if len(mask) != len(rows):
        raise PromptError(f"{name}: attention_mask has {len(mask)} rows, input_ids {len(rows)}")
    out = []
    for i, (row, seen) in enumerate(zip(rows, mask, strict=True)):
        row, seen = plain(row), plain(seen)
        inside = [j for j, x in enumerate(seen) if x]
        whole = len(row) == len(seen) and all(x in (0, 1) for x in seen)
        if not whole or (inside and inside[-1] - inside[0] + 1 != len(inside)):
            raise PromptError(
                f"{name}: row {i} of attention_mask must be 1 at the tokens of a text and 0 at "
                f"padding before or after it, as long as its ids; got {seen}"
            )
        out.append([row[j] for j in inside])
    return out


def encode(tokenizer: Any, text: str, name: str = "prompt", special: bool = True) -> list[int]:
    """Token ids of a text. Raises PromptError where there is no tokenizer or it is not Unicode."""
    if tokenizer is None:
        missing = "prompts are text but the target was loaded without a tokenizer"
        raise PromptError(f"{missing}; pass token ids or a tokenizer")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # what Python makes of bytes that are no UTF-8, and of half a pair in JSON
        where = f"character {error.start} is {text[error.start]!r}"
        raise PromptError(f"{name} is not valid Unicode text (UTF-8): {where}") from None
    return tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]


def chat(tokenizer: Any, messages: Any, name: str = "prompt") -> list[int]:
    """Token ids of a chat up to where the assistant goes on; a last message of the assistant's own
    is gone on with.

    Raises:
        PromptError: no tokenizer, no chat template, or one that fails for these messages.
    """
    if not getattr(tokenizer, "chat_template", None):
        what = "tokenizer was given" if tokenizer is None else "target has a chat template"
        raise PromptError(f"{name} is a chat, but no {what}; give its text or token ids")
    for message in messages:  # a template writes nothing at all for what is missing
        if not _is_message(message) or not ("content" in message or "tool_calls" in message):
            says = "every message of a chat is a dict with 'role' and 'content'"
            raise PromptError(f"{name}: {says}, got {message!r}")
    begun = messages[-1]["role"] == "assistant"
    try:
        text = tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,
            add_generation_prompt=not begun,
            continue_final_message=begun,
        )
    except Exception as error:  # a template is a program of its own: it may raise anything
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise PromptError(f"{name}: the chat template cannot be applied: {line}") from error
    return encode(tokenizer, text, name, special=False)  # templates write special tokens themselves
