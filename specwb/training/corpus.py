"""Training text as streams of tokens: texts and conversations, by domain and partly held out.

Of conversations only what an assistant says counts in a loss.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specwb.core.errors import ArgumentError
from specwb.core.files import DataError

Turns = list[dict[str, str]]
"""A conversation: the ``role`` and ``content`` of each turn."""


@dataclass(frozen=True)
class Document:
    """One text or conversation.

    Attributes:
        domain: what the mixture of a training names.
        source: the package, book, data set or file that it is from.
        licence: of the source.
        text: the text, or the turns of a conversation.
        held_out: whether it is kept out of training.
    """

    domain: str
    source: str
    licence: str
    text: Any
    held_out: bool


@dataclass
class Corpus:
    """Token streams by domain; documents end with the end-of-text id.

    Attributes:
        train: ``[N]`` tokens of each domain.
        held_out: ``[M]`` tokens of each domain, which are not trained on.
        manifest: what the model card lists of each source.
        sha256: of all text.
        counted: of conversations, which of the training tokens are an assistant's; None for all.
        held_out_counted: the same of the tokens that are held out.
    """

    train: dict[str, np.ndarray]
    held_out: dict[str, np.ndarray]
    manifest: list[dict[str, Any]]
    sha256: str
    counted: dict[str, np.ndarray] | None = None
    held_out_counted: dict[str, np.ndarray] | None = None

    @property
    def measured(self) -> str:
        """What is measured of the held-out text, and which: up to three sources are named."""
        what = "texts" if self.held_out_counted is None else "answers of conversations"
        names = dict.fromkeys(entry["source"] for entry in self.manifest if entry["held_out"])
        return f"held-out {what}" + (f", {', '.join(names)}" if 0 < len(names) <= 3 else "")

    def batch(
        self, seed: int, step: int, rows: int, length: int, mixture: dict[str, float]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows ``[rows, length + 1]`` from random places of the training text, by ``mixture`` (the
        probability of each domain), and which tokens count, None for all.

        They are a pure function of (seed, step): resuming needs no reader state."""
        rng = np.random.Generator(np.random.Philox(key=[seed, step]))
        domains = list(mixture)
        picks = rng.choice(len(domains), size=rows, p=np.array([mixture[d] for d in domains]))
        ids = np.empty((rows, length + 1), dtype=np.int64)
        counted = None if self.counted is None else np.empty((rows, length + 1), dtype=bool)
        for row, pick in enumerate(picks):
            domain = domains[pick]
            stream = self.train[domain]
            start = int(rng.integers(0, len(stream) - length - 1))
            ids[row] = stream[start : start + length + 1]
            if counted is not None and self.counted is not None:
                counted[row] = self.counted[domain][start : start + length + 1]
        return ids, counted

    def windows(self, domain: str, rows: int, length: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Evenly spaced windows ``[rows, length + 1]`` of a domain's held-out text, and which
        tokens count, None for all."""
        stream = self.held_out[domain]
        starts = np.linspace(0, len(stream) - length - 2, rows).astype(int)
        at = starts[:, None] + np.arange(length + 1)
        counted = None if self.held_out_counted is None else self.held_out_counted[domain][at]
        return stream[at].astype(np.int64), counted


def token_dtype(vocabulary: int) -> type[np.generic]:
    """The smallest number type that has a vocabulary's ids."""
    return np.uint16 if vocabulary <= 2**16 else np.uint32


def pieces(messages: Turns, tokenizer: Any) -> list[tuple[str, bool]]:
    """A conversation as the chat template writes it, in parts: an assistant's or not.

    A turn is what the template adds when the turn is added, without what it adds to ask for one
    (``add_generation_prompt``). So the token that ends a turn counts with it."""
    parts, text = [], ""
    for i, message in enumerate(messages):
        is_assistant = message["role"] == "assistant"
        steps = [(messages[: i + 1], False, is_assistant)]
        if is_assistant and i:
            steps.insert(0, (messages[:i], True, False))
        for known, asked, counts in steps:
            longer = tokenizer.apply_chat_template(
                known, tokenize=False, add_generation_prompt=asked
            )
            if not longer.startswith(text):
                raise ArgumentError("it writes earlier turns otherwise when a turn is added")
            parts.append((longer[len(text) :], counts))
            text = longer
    return parts


def _pieces_of(document: Document, number: int, tokenizer: Any) -> list[tuple[str, bool]]:
    """:func:`pieces` of a conversation, and a text as one part that counts."""
    if isinstance(document.text, str):
        return [(document.text, True)]
    problem = f"corpus {document.source}"
    if getattr(tokenizer, "chat_template", None) is None:
        raise DataError(f"{problem} has conversations, and the tokenizer has no chat template")
    try:
        return pieces(document.text, tokenizer)
    except Exception as error:  # a template is a program of whoever made the tokenizer
        raise DataError(
            f"{problem}: the chat template cannot write conversation {number}: {error}"
        ) from error


def encode(docs: Sequence[Document], tokenizer: Any) -> Corpus:
    """The token streams of all documents; the manifest has an entry for each source and split.

    Raises:
        DataError: the tokenizer has no chat template for a conversation, or one that fails.
    """
    dtype = token_dtype(len(tokenizer))
    eos = tokenizer.eos_token_id
    parts = [_pieces_of(doc, i, tokenizer) for i, doc in enumerate(docs, 1)]
    texts = [text for doc_parts in parts for text, _ in doc_parts]
    encodings = iter(tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False))
    streams: dict[tuple[str, bool], list[np.ndarray]] = {}
    masks: dict[tuple[str, bool], list[np.ndarray]] = {}
    sources: dict[tuple[str, bool], dict[str, Any]] = {}
    total = hashlib.sha256()
    for doc, doc_parts in zip(docs, parts, strict=True):
        ids: list[int] = []
        mask: list[bool] = []
        for _, counts in doc_parts:
            encoded = next(encodings).ids
            ids += encoded
            mask += [counts] * len(encoded)
        if eos is not None and ids[-1:] != [eos]:
            ids, mask = [*ids, eos], [*mask, True]
        key = doc.domain, doc.held_out
        streams.setdefault(key, []).append(np.array(ids, dtype))
        masks.setdefault(key, []).append(np.array(mask, bool))
        entry = sources.setdefault(
            (doc.source, doc.held_out),
            {
                "domain": doc.domain,
                "source": doc.source,
                "licence": doc.licence,
                "held_out": doc.held_out,
                "documents": 0,
                "characters": 0,
                "tokens": 0,
                "counted": 0,
                "sha256": hashlib.sha256(),
            },
        )
        entry["documents"] += 1
        entry["characters"] += sum(len(text) for text, _ in doc_parts)
        entry["tokens"] += len(ids)
        entry["counted"] += sum(mask)
        content = doc.text if isinstance(doc.text, str) else repr(doc.text)
        for digest in (entry["sha256"], total):
            digest.update(content.encode())
    domains = list(dict.fromkeys(doc.domain for doc in docs))
    counted, held_out_counted = (
        {domain: np.concatenate(masks[domain, held_out]) for domain in domains}
        for held_out in (False, True)
    )
    all_count = all(isinstance(doc.text, str) for doc in docs)
    return Corpus(
        {domain: np.concatenate(streams[domain, False]) for domain in domains},
        {domain: np.concatenate(streams[domain, True]) for domain in domains},
        [{**entry, "sha256": entry["sha256"].hexdigest()} for entry in sources.values()],
        total.hexdigest(),
        None if all_count else counted,
        None if all_count else held_out_counted,
    )
