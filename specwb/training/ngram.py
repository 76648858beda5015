"""Counting the n-grams that guide a path search.

They are counted in the text a target was trained on, and in text that it wrote itself.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specwb.core.files import home, whole_folder
from specwb.drafters.diffuspec_parts.ngram import NGram
from specwb.drafters.diffuspec_parts.proxy import log_likelihood
from specwb.models.target import Target
from specwb.training.corpus import Corpus
from specwb.training.fit import TrainingError, say
from specwb.training.generate import PROMPT, check_writing, generated_text
from specwb.training.reading import trained_on, training_text
from specwb.training.run import is_finished

SOURCES = ("read", "generated", "both")
LENGTH = 256  # of the target's own texts, as the lab's heads have them
TOKENS = 900_000  # of what the target writes
HELD_OUT = 20  # one in this many of its rows is held out


def count_for(
    target: str | Path, out: Path, *, corpus: Path | None = None, device: str = "auto", **how: Any
) -> Path:
    """Counts the lab's text, or the file ``corpus``, by :func:`count_ngram`; this is what
    ``specwb train ngram`` does."""
    model = trained_on(target, device)
    return count_ngram(model, out, lambda: training_text(model, corpus), **how)


def count_ngram(
    model: Target,
    out: Path,
    text: Callable[[], tuple[Corpus, dict[str, float]]],
    order: int = 3,
    least: int = 2,
    *,
    source: str = "both",
    tokens: int = TOKENS,
    length: int = LENGTH,
    generated: Path = Path("build/generated"),
    seed: int = 0,
) -> Path:
    """Writes ``ngram.npz`` and ``card.json`` to the folder ``out`` and returns it; where the same
    run has finished, nothing is done.

    The card has minus the mean score of held-out text by domain, in nats per token. Scores are no
    probability: the number says what became better and is not to be compared with a cross-entropy.

    Args:
        text: reads the training text and the proportions of its domains, once all else is checked.
        order, least: see :meth:`specwb.drafters.diffuspec_parts.ngram.NGram.count`.
        source: "read": the training text; "generated": what the target wrote; "both": either, token
            for token.
        tokens: how much the target writes, of which the first twentieth of the rows is held out.
        length: of its rows. With the length, tokens and seed of a trained head it is that head's
            text.
    """
    if source not in SOURCES:
        *others, last = SOURCES
        raise TrainingError(f"text must be {', '.join(others)} or {last}, got {source!r}")
    if source != "read" and model.context < length:
        problem = f"{model.name!r} writes at most {model.context} tokens"
        raise TrainingError(f"{problem}, too few for texts of {length}; count with --text read")
    NGram.count([np.zeros(1)], model.vocabulary, order, least)
    if source != "read":
        say(check_writing(model, tokens, "--set tokens"))
    data, mixture = text()
    out, generated = home(out), home(generated)
    run = {
        "kind": "ngram",
        "order": order,
        "least": least,
        "seed": seed,
        "text": source,
        "corpus": data.sha256,
        "target": model.fingerprint,
        "mixture": mixture,
        "tokens": 0 if source == "read" else tokens,
        "length": length,
    }
    identity = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
    if is_finished(out, identity):
        say(f"{out} holds these n-grams, finished")
        return out
    streams = [] if source == "generated" else list(data.train.values())
    held_out = dict(data.held_out)
    tokens_read = sum(map(len, streams))
    if source != "read":
        rows = generated_text(
            model, data, generated, tokens=tokens, length=length, mixture=mixture, seed=seed
        )
        first = -(-len(rows) // HELD_OUT)
        # a row begins with training text, which is counted where it was read
        streams += list(rows[first:, PROMPT:])
        held_out["own"] = rows[:first, PROMPT:].reshape(-1)
    ngram = NGram.count(streams, model.vocabulary, order, least)
    nats = {
        domain: {"backoff": round(-log_likelihood(ngram, stream), 4)}
        for domain, stream in held_out.items()
    }
    card: dict[str, Any] = {
        "name": "ngram",
        "run": identity,
        "order": order,
        "least": least,
        "vocabulary": model.vocabulary,
        "sizes": ngram.sizes,
        "text": source,
        "tokens": {"read": tokens_read, "generated": sum(map(len, streams)) - tokens_read},
        "seed": seed,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "corpus": data.sha256,
        "target": model.name,
        "target_sha256": model.sha256,
        "held_out": nats,
    }
    with whole_folder(out) as part:
        file = part / "ngram.npz"
        ngram.save(file)
        card["bytes"] = file.stat().st_size
        card["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
        (part / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    sizes = " + ".join(f"{n:,}" for n in ngram.sizes)
    losses = "; ".join(f"{domain} {loss['backoff']:.3f}" for domain, loss in nats.items())
    size = f"{card['bytes'] / 1e6:.1f} MB"
    say(f"ngram: {sizes} n-grams, {size}; held-out nats per token, {losses}")
    return out
