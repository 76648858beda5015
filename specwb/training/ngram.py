"""Counting the n-grams that a path search asks: of the text a target was trained on, and of text that it wrote itself."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specwb.files import whole_folder
from specwb.models.load import load, resolve_device
from specwb.models.target import Target
from specwb.ngram import SMOOTHINGS, NGram
from specwb.proxy import log_likelihood
from specwb.training.corpus import Corpus
from specwb.training.fit import TrainingError, save_atomically, say, writing
from specwb.training.generate import PROMPT, generated_text
from specwb.training.heads import finished, training_text

SOURCES = ("read", "generated", "both")
LENGTH = 256  # of the target's own texts, as the lab's heads have them
TOKENS = 900_000  # of what the target writes
HELD = 20  # one in so many of them is held out


def count_for(
    target: str | Path, out: Path, order: int = 3, least: int = 2, *, source: str = "both", tokens: int = TOKENS, corpus: Path | None = None,
    generated: Path = Path("build/generated"), device: str = "auto", seed: int = 0,
) -> Path:  # fmt: skip
    """:func:`count_ngram` of the lab's text, or of the file ``corpus``: what ``specwb train ngram`` does."""
    model = load(target, device=resolve_device(device))
    _check(model, order, least, source, tokens)  # before any text is read
    data, mixture = training_text(model, corpus)
    return count_ngram(model, out, data, mixture, order, least, source=source, tokens=tokens, generated=generated, seed=seed)


def _check(model: Target, order: int, least: int, source: str, tokens: int, length: int = LENGTH) -> None:
    if source not in SOURCES:
        raise TrainingError(f"text must be {', '.join(SOURCES[:-1])} or {SOURCES[-1]}, got {source!r}")
    if tokens < 1:
        raise TrainingError(f"tokens must be >= 1, got {tokens}")
    if source != "read" and model.context < length:
        raise TrainingError(f"{model.name!r} writes at most {model.context} tokens, too few for texts of {length}; count with --text read")
    NGram.count([np.zeros(1)], model.vocabulary, order, least)


def count_ngram(
    model: Target, out: Path, data: Corpus, mixture: dict[str, float], order: int = 3, least: int = 2, *, source: str = "both", tokens: int = TOKENS,
    length: int = LENGTH, generated: Path = Path("build/generated"), seed: int = 0,
) -> Path:  # fmt: skip
    """Write ``ngram.npz`` and ``card.json`` to the folder ``out`` and return it; the same run finished is left as it is.

    Args:
        model: whose tokens are counted. order, least: see :meth:`specwb.ngram.NGram.count`.
        source: "read": the training text; "generated": what the target wrote; "both": either, token for token.
        tokens: of the target's own text, the first twentieth of its rows held out; with ``length`` a row and the seed of a trained head it is that
            head's.
    The card has minus the mean log-likelihood of held-out text by domain, in nats a token, under either smoothing. Backoff's scores are no
    probability: its number says what became better and is not to be compared with the other.

    Raises:
        TrainingError: an unknown source, no tokenizer, or something else in ``out``. NGramError, DataError: text that cannot be counted or read.
    """
    _check(model, order, least, source, tokens, length)
    out, generated = out.expanduser(), generated.expanduser()
    run = {"kind": "ngram", "order": order, "least": least, "seed": seed, "text": source, "corpus": data.sha256, "target": model.fingerprint,
           "mixture": mixture, "tokens": 0 if source == "read" else tokens, "length": length}  # fmt: skip
    identity = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
    if finished(out, identity):
        say(f"{out} holds these n-grams, finished")
        return out
    streams, held_out = list(data.train.values()) if source != "generated" else [], dict(data.held_out)
    read = sum(map(len, streams))
    if source != "read":
        own = generated_text(model, data, generated, tokens=tokens, length=length, mixture=mixture, seed=seed)
        held = -(-len(own) // HELD)
        # a row begins with training text, which is counted where it was read
        streams += list(own[held:, PROMPT:])
        held_out["own"] = own[:held, PROMPT:].reshape(-1)
    made = NGram.count(streams, model.vocabulary, order, least)
    nats = {d: {s: round(-log_likelihood(made.with_smoothing(s), text), 4) for s in SMOOTHINGS} for d, text in held_out.items()}
    card: dict[str, Any] = {
        "name": "ngram", "run": identity, "order": order, "least": least, "vocabulary": model.vocabulary, "sizes": made.sizes, "text": source,
        "tokens": {"read": read, "generated": sum(map(len, streams)) - read}, "seed": seed, "torch": torch.__version__,
        "python": platform.python_version(), "corpus": data.sha256, "target": model.name, "target_sha256": model.sha256,
        "held_out": nats,
    }  # fmt: skip
    with writing(out), whole_folder(out) as part:
        save_atomically(made.save, part / "ngram.npz")
        card["bytes"] = (part / "ngram.npz").stat().st_size
        card["sha256"] = hashlib.sha256((part / "ngram.npz").read_bytes()).hexdigest()
        (part / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    said = "; ".join(f"{d} {' '.join(f'{s} {x:.3f}' for s, x in both.items())}" for d, both in nats.items())
    say(f"ngram: {' + '.join(f'{n:,}' for n in made.sizes)} n-grams, {card['bytes'] / 1e6:.1f} MB; held-out nats a token, {said}")
    return out
