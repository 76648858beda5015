"""Conversations as training text: only what an assistant says counts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specwb.core import files
from specwb.core.errors import ArgumentError
from specwb.training import corpus

ROLES = {"human": "user", "gpt": "assistant"}
"""What the roles of ``conversations`` (ShareGPT) are called in ``messages``."""


def turns(entry: Any, where: str) -> list[dict[str, str]]:
    """The turns of one line of a file, as ``role`` and ``content``; ``where`` names the line."""
    is_table = isinstance(entry, Mapping)
    found = entry.get("messages", entry.get("conversations")) if is_table else None
    if not isinstance(found, list):
        wanted = "every line must be JSON with a text field, or with messages or conversations"
        raise files.DataError(f"{where}: {wanted}")
    messages = []
    for turn in found:
        role = turn.get("role", turn.get("from")) if isinstance(turn, Mapping) else None
        content = turn.get("content", turn.get("value")) if isinstance(turn, Mapping) else None
        if not isinstance(role, str) or not isinstance(content, str):
            wanted = "role and content, or from and value"
            raise files.DataError(f"{where}: every turn must have {wanted}, got {turn!r:.60}")
        messages.append({"role": ROLES.get(role, role), "content": content})
    if not any(message["role"] == "assistant" for message in messages):
        raise files.DataError(f"{where}: the conversation has no turn of an assistant")
    return messages


def tokens(messages: list[dict[str, str]], tokenizer: Any) -> tuple[list[int], list[bool]]:
    """A conversation's tokens by the chat template, and which of them are an assistant's.

    A turn is what the template adds when the turn is added, without what it adds to ask for one
    (``add_generation_prompt``). So the token that ends a turn counts with it."""
    ids: list[int] = []
    counted: list[bool] = []
    text = ""
    for i, message in enumerate(messages):
        is_assistant = message["role"] == "assistant"
        pieces = [(messages[: i + 1], False, is_assistant)]
        if is_assistant and i:
            pieces.insert(0, (messages[:i], True, False))
        for known, asked, counts in pieces:
            longer = tokenizer.apply_chat_template(
                list(known), tokenize=False, add_generation_prompt=asked
            )
            if not longer.startswith(text):
                raise ArgumentError("it writes earlier turns otherwise when a turn is added")
            piece = tokenizer.encode(longer[len(text) :], add_special_tokens=False)
            ids += piece
            counted += [counts] * len(piece)
            text = longer
    return ids, counted


def encode(
    path: Path, parts: Sequence[str | list[dict[str, str]]], first_held_out: int, tokenizer: Any
) -> corpus.Corpus:
    """Conversations, and texts between them that count whole, as one domain "text"; the parts from
    ``first_held_out`` on are held out. ``path`` is for messages and the card."""
    if getattr(tokenizer, "chat_template", None) is None:
        raise files.DataError(
            f"corpus {path} has conversations, and the target's tokenizer has no chat template"
        )
    dtype = corpus.token_dtype(len(tokenizer))
    eos = tokenizer.eos_token_id
    streams: dict[bool, list[int]] = {False: [], True: []}
    counted: dict[bool, list[bool]] = {False: [], True: []}
    digest = hashlib.sha256()
    for i, part in enumerate(parts):
        if isinstance(part, str):
            ids = tokenizer.encode(part, add_special_tokens=False)
            mask = [True] * len(ids)
        else:
            try:
                ids, mask = tokens(part, tokenizer)
            except Exception as error:  # a template is a program of whoever made the tokenizer
                what = f"corpus {path}: the chat template cannot write conversation {i + 1}"
                raise files.DataError(f"{what}: {error}") from error
        if eos is not None and ids[-1:] != [eos]:
            ids, mask = [*ids, eos], [*mask, True]
        streams[i >= first_held_out] += ids
        counted[i >= first_held_out] += mask
        digest.update(repr(part).encode())
    manifest: list[dict[str, object]] = [
        {
            "source": path.name,
            "domain": "text",
            "licence": "the user's",
            "held_out": held_out,
            "documents": len(parts) - first_held_out if held_out else first_held_out,
            "tokens": len(streams[held_out]),
            "counted": sum(counted[held_out]),
        }
        for held_out in (False, True)
    ]
    return corpus.Corpus(
        {"text": np.array(streams[False], dtype)},
        {"text": np.array(streams[True], dtype)},
        manifest,
        digest.hexdigest(),
        {"text": np.array(counted[False], bool)},
    )
