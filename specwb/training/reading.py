"""Reading the text that heads are trained on: the lab's, or a file of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specwb.core import files
from specwb.core.files import from_json, home
from specwb.core.progress import EVERY, lines
from specwb.models.device import resolve_device
from specwb.models.load import load
from specwb.models.target import Target
from specwb.training.corpus import Corpus, Document, documents, encode
from specwb.training.fit import TrainingError, say, training_device
from specwb.training.settings import lab_recipe


def trained_on(target: str | Path | Target, device: str, dtype: str = "auto") -> Target:
    """The target of a training, on this process' device; a line says where it takes longer."""
    with lines(lambda: f"loading {target}"):
        return load(target, device=training_device(resolve_device(device)), dtype=dtype)


def training_text(target: Target, corpus: Path | None) -> tuple[Corpus, dict[str, float]]:
    """The lab's text, or a file's, as the target's tokens, and its domains' proportions; what this
    process has read is not read again."""
    if target.tokenizer is None:
        raise TrainingError(f"{target.name!r} has no tokenizer to read text with")
    key = _text_key(target.tokenizer, corpus)
    if key not in _READ:
        say(READING)
        with lines(lambda: READING, first=EVERY):
            if corpus is not None:
                _READ[key] = from_file(corpus, target.tokenizer), {"text": 1.0}
            else:
                plan = lab_recipe()["corpus"]
                _READ[key] = encode(documents(plan["packages"]), target.tokenizer), plan["mixture"]
    return _READ[key]


READING = "reading the training text"


_READ: dict[tuple, tuple[Corpus, dict[str, float]]] = {}
"""What was read: to split the lab's text into tokens takes longer than to train a small head."""


def _text_key(tokenizer: Any, corpus: Path | None) -> tuple:
    """Names what :func:`training_text` depends on."""
    words = tokenizer.backend_tokenizer.to_str(), str(getattr(tokenizer, "chat_template", None))
    if corpus is None or not home(corpus).is_file():
        return (*words, corpus)
    state = home(corpus).stat()
    return (*words, corpus, state.st_mtime_ns, state.st_size)


def from_file(path: Path, tokenizer) -> Corpus:
    """A user's text as one domain, "text", of which the last twentieth of the parts is held out.

    The file is plain text, or JSON lines that have a field ``text``, or a conversation:
    ``messages`` with ``role`` and ``content``, or ``conversations`` with ``from`` and ``value``. Of
    conversations only the assistant's turns count.
    """
    path = home(path)
    if not path.is_file():
        raise files.DataError(f"corpus {path} is no file")
    content = path.read_text("utf-8", "replace")
    if path.suffix == ".jsonl":
        parts: list[str | list[dict[str, str]]] = [
            _part(path, number, line)
            for number, line in enumerate(content.split("\n"), 1)
            if line.strip()
        ]
    else:
        # parts of one size, so that what is held out is no short rest
        count = max(2, len(content) // 4000)
        size = -(-len(content) // count) or 1
        parts = [content[i : i + size] for i in range(0, len(content), size)]
    if len(parts) < 2:
        needed = "at least two parts are needed, one of them held out"
        raise files.DataError(f"corpus {path} has too little text: {needed}")
    first_held_out = len(parts) - max(1, len(parts) // 20)
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        from specwb.training import chats

        return chats.encode(path, parts, first_held_out, tokenizer)
    docs = [
        Document("text", path.name, "the user's", part, i >= first_held_out)
        for i, part in enumerate(texts)
    ]
    return encode(docs, tokenizer)


def _part(path: Path, number: int, line: str) -> str | list[dict[str, str]]:
    """Returns a line's text, or its turns."""
    try:
        entry = from_json(line)
    except ValueError as error:
        message = f"corpus {path}, line {number}: every line must be JSON with a text field"
        raise files.DataError(f"{message} ({error})") from error
    if isinstance(entry, dict) and isinstance(entry.get("text"), str):
        return entry["text"]
    from specwb.training import chats

    return chats.turns(entry, f"corpus {path}, line {number}")
