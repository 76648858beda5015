"""What a caller passes in (numbers, token ids, prompts), checked and brought into plain Python."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from specwb.errors import ArgumentError, SpecwbError
from specwb.files import foreign

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
    kind: type[ValueError] = ArgumentError,
) -> int:
    """Returns ``value`` as an int and checks that it lies in ``low..high``.

    Args:
        name: what the value is, for the message.
        value: an int, or one number of an integer type of numpy or torch.
        low, high: the bounds, both included; None is no bound.
        kind: the exception that is raised.

    Raises:
        kind: anything else. A bool is no number here, and a float is none even where it is an
            integer.
    """
    number = as_int(value)
    too_low = number is not None and low is not None and number < low
    too_high = number is not None and high is not None and number > high
    if number is None or too_low or too_high:
        bounds = f" >= {low}" if high is None else f" in {low}..{high}"
        raise kind(f"{name} must be an integer{'' if low is None else bounds}, got {value!r}")
    return number


def real(name: str, value: object, kind: type[ValueError] = ArgumentError) -> float:
    """Returns ``value``, a number of Python, numpy or torch that is not NaN, as a float.

    Args:
        name: what the value is, for the message.
        value: the number.
        kind: the exception that is raised.

    Raises:
        kind: anything else. A bool is no number, and neither is a text that looks like one.
    """
    number = value.item() if isinstance(value, Tensor | np.ndarray) and value.ndim == 0 else value
    if isinstance(number, bool | np.bool_) or not isinstance(number, numbers.Real):
        raise kind(f"{name} must be a number, got {value!r}")
    if number != number:
        raise kind(f"{name} must be a number, got nan")
    try:
        return float(number)
    except OverflowError:
        raise kind(f"{name} must be a number, got one of more than 300 digits") from None


def as_int(value: object) -> int | None:
    """Returns the int that ``value`` is, or None where it is not one integer."""
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


def to_python(values: Any) -> Any:
    """Returns a tensor or an array as Python lists or numbers, and everything else as it is."""
    if isinstance(values, Tensor) and values.is_meta:
        raise ArgumentError("a tensor on the device meta holds no numbers")
    return values.tolist() if isinstance(values, Tensor | np.ndarray) else values


def is_many(value: object) -> bool:
    """Says whether ``value`` is a sequence of things: no text, bytes, mapping or single number."""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def eos_ids(eos: object, vocabulary: int, source: str = "eos") -> list[int]:
    """Returns the ids that end a row as a list.

    Args:
        eos: one id, or several.
        vocabulary: the number of tokens; ids are below it.
        source: where the ids come from, for the message.

    Raises:
        ArgumentError: something that is no id of the vocabulary, and so would never end a row.
    """
    if isinstance(eos, set | frozenset):
        eos = list(eos)
    ids = []
    for value in to_python(eos) if is_many(eos) else [eos]:
        number = as_int(value)
        if number is None or not 0 <= number < vocabulary:
            raise ArgumentError(f"{source} must be token ids in 0..{vocabulary - 1}, got {value!r}")
        ids.append(number)
    return ids


def token_rows(target: Target, prompts: Prompts) -> list[list[int]]:
    """Returns the token ids of every row; see :func:`read_prompts`."""
    return read_prompts(target, prompts)[0]


def read_prompts(target: Target, prompts: Prompts) -> tuple[list[list[int]], bool]:
    """Returns the token ids of every row, and whether ``prompts`` was one prompt and not a batch.

    Args:
        target: the model they are for; its tokenizer is used for texts and chats.
        prompts: one prompt or a batch of them. A prompt is a text, token ids (a list, tensor or
            array), or a chat: a list of messages ``{"role": .., "content": ..}``, which the
            target's chat template turns into text up to where the assistant goes on. What a
            tokenizer returned is taken as its ``input_ids`` where its ``attention_mask`` is 1, so
            that padding on either side is dropped.

    Raises:
        PromptError: no prompt or an empty one; ids that are no integers or outside the vocabulary;
            text or chat without a tokenizer or template; a mask with holes.
    """
    single = False
    batch: Any
    if isinstance(prompts, Mapping):
        single = "input_ids" not in prompts or not _is_nested(prompts["input_ids"])
        batch = [prompts] if single else _without_padding("prompts", prompts)
    elif isinstance(prompts, str):
        single, batch = True, [prompts]
    elif is_many(prompts):
        values = to_python(prompts)
        if not len(values):
            raise PromptError("no prompt was given")
        first = values[0]
        is_id = not (isinstance(first, str | bytes | Mapping) or is_many(first))
        single = is_id or _is_message(first)
        batch = [values] if single else values
    else:
        forms = "a text, token ids, chat messages, a list of these, or what a tokenizer returned"
        raise PromptError(f"prompts must be {forms}; got {type(prompts).__name__}")
    if not len(batch):
        raise PromptError("no prompt was given")
    rows = [_row_ids(target, f"prompt {i}", prompt) for i, prompt in enumerate(batch)]
    return rows, single


def _row_ids(target: Target, name: str, prompt: Any) -> list[int]:
    """Returns the token ids of one prompt; ``name`` is what messages call it."""
    if isinstance(prompt, str):
        values = encode(target.tokenizer, prompt, name)
    elif isinstance(prompt, Mapping):
        if "input_ids" not in prompt:
            keys = ", ".join(map(repr, prompt))
            hint = "; a chat is a list of messages" if _is_message(prompt) else ""
            raise PromptError(f"{name} is a dict without 'input_ids', its keys: {keys}{hint}")
        one_row = {key: [to_python(x)] for key, x in prompt.items() if key in _ENCODING_KEYS}
        values = _without_padding(name, one_row)[0]
    elif is_many(prompt) and len(prompt) and isinstance(prompt[0], Mapping):
        values = chat(target.tokenizer, prompt, name)
    elif is_many(prompt):
        values = to_python(prompt)
    else:
        raise PromptError(f"{name} must be text, token ids or messages, got {prompt!r}")
    if not len(values):
        raise PromptError(f"{name} is empty; it needs at least one token")
    ids = [as_int(x) for x in values]
    if None in ids:
        wrong = values[ids.index(None)]
        raise PromptError(f"{name}: token ids are integers, got {type(wrong).__name__} {wrong!r}")
    if min(ids) < 0 or max(ids) >= target.vocabulary:  # type: ignore[type-var,operator]
        raise PromptError(f"{name} has token ids outside 0..{target.vocabulary - 1}")
    return ids  # type: ignore[return-value]


_ENCODING_KEYS = ("input_ids", "attention_mask")  # of what a tokenizer returns, what is read


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and "role" in value


def _is_nested(ids: object) -> bool:
    """Says whether these are several rows of ids and not one."""
    ids = to_python(ids)
    return is_many(ids) and bool(len(ids)) and is_many(ids[0])  # type: ignore[arg-type,index]


def _without_padding(name: str, encoding: Mapping[str, Any]) -> list[list]:
    """Returns the rows of what a tokenizer returned without their padding."""
    rows = to_python(encoding["input_ids"])
    masks = to_python(encoding.get("attention_mask"))
    for key, table in (("input_ids", rows), ("attention_mask", masks)):
        is_rows = is_many(table) and all(is_many(to_python(row)) for row in table)
        if not is_rows and (key == "input_ids" or masks is not None):
            raise PromptError(f"{name}: {key} must be one list a row, got {table!r:.200}")
    if masks is None:
        return list(rows)
    if len(masks) != len(rows):
        raise PromptError(f"{name}: attention_mask has {len(masks)} rows, input_ids {len(rows)}")
    texts = []
    for i, (row, mask) in enumerate(zip(rows, masks, strict=True)):
        row, mask = to_python(row), to_python(mask)
        inside = [j for j, x in enumerate(mask) if x]
        fits = len(row) == len(mask) and all(x in (0, 1) for x in mask)
        has_holes = bool(inside) and inside[-1] - inside[0] + 1 != len(inside)
        if not fits or has_holes:
            raise PromptError(
                f"{name}: row {i} of attention_mask must be 1 at the tokens of a text and 0 at "
                f"padding before or after it, as long as its ids; got {mask}"
            )
        texts.append([row[j] for j in inside])
    return texts


def encode(tokenizer: Any, text: str, name: str = "prompt", special: bool = True) -> list[int]:
    """Returns the token ids of a text.

    Args:
        tokenizer: the target's, None where it has none.
        text: the text.
        name: what messages call it.
        special: whether the tokenizer adds its special tokens.

    Raises:
        PromptError: there is no tokenizer, or the text is not Unicode.
    """
    if tokenizer is None:
        missing = "prompts are text but the target was loaded without a tokenizer"
        raise PromptError(f"{missing}; pass token ids or a tokenizer")
    check_unicode(name, text, PromptError)
    with foreign(f"{name} cannot be read by the tokenizer", PromptError):
        return tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]


def check_unicode(name: str, text: str, kind: type[ValueError] = ArgumentError) -> None:
    """Checks that a text has no half of a surrogate pair: what Python makes of bytes that are no
    UTF-8, and of half a pair in JSON.

    Raises:
        kind: it has one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"character {error.start} is {text[error.start]!r}"
        raise kind(f"{name} is not valid Unicode text (UTF-8): {where}") from None


def chat(tokenizer: Any, messages: Any, name: str = "prompt") -> list[int]:
    """Returns the token ids of a chat up to where the assistant goes on.

    Where the last message is the assistant's, that message is continued.

    Args:
        tokenizer: the target's; it must have a chat template.
        messages: dicts with ``role`` and ``content``.
        name: what messages of errors call the chat.

    Raises:
        PromptError: no tokenizer, no chat template, or one that fails for these messages.
    """
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
        _check_message(name, message, str(tokenizer.chat_template))
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


ROLES = ("system", "user", "assistant", "tool", "developer", "function")
"""Of messages; a template may know others, and then names them."""


def _check_message(name: str, message: Mapping[str, Any], template: str) -> None:
    """Checks a message's role and content, which a template writes down whatever they are.

    Raises:
        PromptError: an unknown role, or a content that is no text.
    """
    role, content = message["role"], message.get("content")
    quoted = template.replace('"', "'")
    if role not in ROLES and not (isinstance(role, str) and repr(role) in quoted):
        known = ", ".join(ROLES)
        raise PromptError(
            f"{name}: a role is one of {known}, or named in the template; got {role!r}"
        )
    parts = isinstance(content, list) and all(isinstance(part, Mapping) for part in content)
    if not (isinstance(content, str) or parts or (content is None and "tool_calls" in message)):
        raise PromptError(f"{name}: the content of a message is a text, got {content!r}")
