"""Reading the text that heads are trained on: the lab's, or a file of the user's."""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specwb.core.files import DataError, from_json, home
from specwb.core.progress import EVERY, lines
from specwb.models.device import fast_bfloat16_products, resolve_device
from specwb.models.load import load
from specwb.models.target import Target
from specwb.training.corpus import Corpus, Document, Turns, encode
from specwb.training.fit import TrainingError, say, training_device
from specwb.training.lab_text import documents
from specwb.training.settings import lab_recipe

READING = "reading the training text"
ROLES = {"human": "user", "gpt": "assistant"}
"""What the roles of ``conversations`` (ShareGPT) are called in ``messages``."""
_READ: dict[tuple, tuple[Corpus, dict[str, float]]] = {}
"""What was read: to split the lab's text into tokens takes longer than to train a small head."""


def trained_on(target: str | Path | Target, device: str, dtype: str = "auto") -> Target:
    """The target of a training, on this process' device; a line says where it takes longer.

    By default it is float32 on a processor whose products are not faster in bfloat16."""
    on = training_device(resolve_device(device))
    named = not isinstance(target, Target)
    if named and dtype == "auto" and on.type == "cpu" and not fast_bfloat16_products(on):
        dtype = "float32"
    with lines(lambda: f"loading {target}"):
        return load(target, device=on, dtype=dtype)


def training_text(target: Target, corpus: Path | None) -> tuple[Corpus, dict[str, float]]:
    """The lab's text, or a file's, as the target's tokens, and its domains' proportions; what this
    process has read is not read again."""
    tokenizer = target.tokenizer
    if tokenizer is None:
        raise TrainingError(f"{target.name!r} has no tokenizer to read text with")
    key: tuple = (
        tokenizer.backend_tokenizer.to_str(),
        str(getattr(tokenizer, "chat_template", None)),
        corpus,
    )
    if corpus is not None and home(corpus).is_file():
        state = home(corpus).stat()
        key = (*key, state.st_mtime_ns, state.st_size)
    if key not in _READ:
        say(READING)
        with lines(lambda: READING, first=EVERY):
            if corpus is not None:
                _READ[key] = from_file(corpus, tokenizer), {"text": 1.0}
            else:
                plan = lab_recipe()["corpus"]
                _READ[key] = encode(documents(plan["packages"]), tokenizer), plan["mixture"]
    return _READ[key]


def from_file(path: Path, tokenizer: Any) -> Corpus:
    """A user's text as one domain, "text", of which the last twentieth of the parts is held out.

    The file is plain text, or JSON lines (``.jsonl``, ``.jsonl.xz``) that have a field ``text``, or
    a conversation: ``messages`` with ``role`` and ``content``, or ``conversations`` with ``from``
    and ``value``. Of conversations only the assistant's turns count.

    Raises:
        DataError: no such file, too little text, or a line that is neither.
    """
    path = home(path)
    if not path.is_file():
        raise DataError(f"corpus {path} is no file")
    content = file_text(path)
    parts: list[str | Turns]
    if ".jsonl" in path.suffixes:
        numbered = enumerate(content.split("\n"), 1)
        parts = [_part(line, f"corpus {path}, line {i}") for i, line in numbered if line.strip()]
    else:
        # parts of one size, so that what is held out is no short rest
        count = max(2, len(content) // 4000)
        size = -(-len(content) // count) or 1
        parts = [content[i : i + size] for i in range(0, len(content), size)]
    if len(parts) < 2:
        needed = "at least two parts are needed, one of them held out"
        raise DataError(f"corpus {path} has too little text: {needed}")
    first_held_out = len(parts) - max(1, len(parts) // 20)
    docs = [
        Document("text", path.name, "the user's", part, i >= first_held_out)
        for i, part in enumerate(parts)
    ]
    return encode(docs, tokenizer)


def file_text(path: Path) -> str:
    """The text of a file, which is unpacked if its name ends in ``.xz``."""
    content = path.read_bytes()
    try:
        unpacked = lzma.decompress(content) if path.suffix == ".xz" else content
    except lzma.LZMAError as error:
        raise DataError(f"corpus {path} cannot be unpacked ({error})") from error
    return unpacked.decode("utf-8", "replace")


def _part(line: str, where: str) -> str | Turns:
    """Returns a line's text, or its turns."""
    try:
        entry = from_json(line)
    except ValueError as error:
        raise DataError(f"{where}: every line must be JSON with a text field ({error})") from error
    if isinstance(entry, dict) and isinstance(entry.get("text"), str):
        return entry["text"]
    return turns(entry, where)


def turns(entry: Any, where: str) -> Turns:
    """The turns of one line of a file; ``where`` names the line."""
    is_table = isinstance(entry, Mapping)
    found = entry.get("messages", entry.get("conversations")) if is_table else None
    if not isinstance(found, list):
        wanted = "every line must be JSON with a text field, or with messages or conversations"
        raise DataError(f"{where}: {wanted}")
    messages = []
    for turn in found:
        role = turn.get("role", turn.get("from")) if isinstance(turn, Mapping) else None
        content = turn.get("content", turn.get("value")) if isinstance(turn, Mapping) else None
        if not isinstance(role, str) or not isinstance(content, str):
            wanted = "role and content, or from and value"
            raise DataError(f"{where}: every turn must have {wanted}, got {turn!r:.60}")
        messages.append({"role": ROLES.get(role, role), "content": content})
    if not any(message["role"] == "assistant" for message in messages):
        raise DataError(f"{where}: the conversation has no turn of an assistant")
    return messages
