"""Curing a target of its loops: greedy text of a small model soon repeats itself without end.

The model learns not to go on with what repeats. Beside ordinary text x it reads its own greedy
text y, in which a token is forbidden that would complete an n-gram which the row has had, both in
one loss

    C(x) + protect C(x') + weight CE(p_limited; y),
    C(.) = (1 - hold) CE(.) + hold CE(p_before; .)

where CE(x) is the ordinary loss, CE(p; .) the cross-entropy with a distribution, p_before what the
model had before the cure, which keeps what it knows, and p_limited the same, except that the logit
of a forbidden token is at most that of the best other one less ``margin``: it must not be chosen,
and no more than that. x' are the positions of ordinary text behind what was there before: there the
model must still repeat what is repeated, and tells it from a loop.

Source: the constraint is no_repeat_ngram_size of Paulus et al. 1705.04304, as the transformers
library has it. What was tried and cost more of what the model knows for fewer loops, among it the
unlikelihood of repeats (Welleck et al. 1908.04319) and pseudo-repetitions (DITTO, 2206.02369), is
in docs/log.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.engine import decode
from specwb.evaluation.compare import loops
from specwb.models.target import Target
from specwb.training.corpus import Corpus, token_dtype
from specwb.training.fit import compiled, save_atomically

PROMPT = 24  # tokens of text that a continuation begins with
MEASURED = 128  # tokens of a continuation in which loops are looked for
PROTECTED = 4  # the length of the n-grams that ordinary text has again


def forbidden(ids: np.ndarray, n: int) -> np.ndarray:
    """Returns ``[B, L]``, the token that may not follow each one, -1 where all may.

    Of several it is the one that came last after these n - 1 tokens.

    Args:
        ids: ``[B, L]``.
        n: the length of the n-grams.
    """
    found = np.full(ids.shape, -1)
    for row, tokens in enumerate(ids.tolist()):
        last: dict[tuple[int, ...], int] = {}
        for end in range(n - 1, len(tokens) + 1):
            gram = tuple(tokens[end - n + 1 : end])
            found[row, end - 1] = last.get(gram, -1)
            if end < len(tokens):
                last[gram] = tokens[end]
    return found


def limited(logits: Tensor, tokens: Tensor, margin: float) -> Tensor:
    """Returns logits in which a forbidden token is not the best one.

    Its logit is at most that of the best other one less ``margin``.

    Args:
        logits: ``[B, L, V]``.
        tokens: ``[B, L]``, the forbidden ones, -1 for none.
        margin: in nats.
    """
    index = tokens.clamp_min(0)[..., None]
    best = logits.scatter(-1, index, -torch.inf).amax(-1, keepdim=True) - margin
    lowered = torch.minimum(logits.gather(-1, index), best)
    return torch.where((tokens >= 0)[..., None], logits.scatter(-1, index, lowered), logits)


def cure_loss(
    target: Target,
    before: Any,
    data: Corpus,
    mixture: dict[str, float],
    settings: dict[str, Any],
    seed: int,
    folder: Path,
) -> Callable[[int], Tensor]:
    """Returns the loss of a step of the cure, a function of the step and of what it wrote before.

    Args:
        target: the model that is cured, as :class:`Target`, which shares its weights.
        before: the model as it was.
        data: the training text.
        mixture: the proportions of its domains.
        settings: steps; rows and length of a batch of text; ``own``, the rows of a step that the
            model wrote; n, renew, hold, weight, protect, margin.
        seed: of the text.
        folder: where what the model wrote is kept. A run that goes on from a checkpoint learns from
            the text that the model wrote then, and not from what it would write now.
    """
    model = target.model
    steps, rows, length = settings["steps"], settings["rows"], settings["length"]
    hold, weight = settings["hold"], settings["weight"]
    protect, margin = settings["protect"], settings["margin"]

    def logits_of(a_model: Any, ids: Tensor) -> Tensor:
        return a_model(input_ids=ids[:, :-1], use_cache=False).logits

    def ordinary(ids: Tensor, known: Tensor) -> Tensor:
        with torch.no_grad():
            p = logits_of(before, ids).flatten(0, 1).float().softmax(-1)
        logits = logits_of(model, ids).flatten(0, 1).float()
        held = F.cross_entropy(logits, p, reduction="none")
        read = F.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
        cost, known = hold * held + (1 - hold) * read, known[:, :-1].flatten()
        return cost.mean() + protect * (cost * known).sum() / known.sum().clamp_min(1)

    def own_text(ids: Tensor, not_next: Tensor) -> Tensor:
        with torch.no_grad():
            logits = logits_of(before, ids).float()
            p = limited(logits, not_next[:, :-1], margin).softmax(-1)
        logits = logits_of(model, ids).float()
        return weight * F.cross_entropy(logits.flatten(0, 1), p.flatten(0, 1))

    on_text, on_own = compiled(ordinary, steps), compiled(own_text, steps)

    def loss(step: int) -> Tensor:
        ids = data.batch(seed, step, rows, length, mixture)
        own = _written(target, data, mixture, settings, seed, step, folder)
        known, not_next = forbidden(ids, PROTECTED) >= 0, forbidden(own, settings["n"])
        on_device = [torch.from_numpy(x).to(target.device) for x in (ids, known, own, not_next)]
        return on_text(*on_device[:2]) + on_own(*on_device[2:])

    return loss


def _written(
    target: Target,
    data: Corpus,
    mixture: dict[str, float],
    settings: dict[str, Any],
    seed: int,
    step: int,
    folder: Path,
) -> np.ndarray:
    """Returns a step's text by the model, ``[own, length + 1]``."""
    turn = step % settings["renew"]
    path = folder / f"{step - turn:06}.npy"
    if not path.exists():
        rows = settings["own"] * settings["renew"]
        prompts = data.batch(seed + 1_000_000, step - turn, rows, PROMPT - 1, mixture)
        written = _continued(target, prompts, settings["length"] + 1 - PROMPT)
        written = written.astype(token_dtype(target.vocabulary))
        save_atomically(partial(_save, written), path)
    return np.load(path)[turn :: settings["renew"]].astype(np.int64)


def _save(rows: np.ndarray, path: Path) -> None:
    with open(path, "wb") as handle:
        np.save(handle, rows)


def _continued(target: Target, prompts: np.ndarray, tokens: int) -> np.ndarray:
    was_training = target.model.training
    target.model.eval()
    with torch.autocast(target.device.type, enabled=False):  # a step may be under one
        output = decode(target, prompts.tolist(), "ar", max_new_tokens=tokens, eos=())
    target.model.train(was_training)
    return np.concatenate([prompts, np.array(output.tokens)], 1)


def loop_shares(target: Target, data: Corpus, rows: int = 32) -> dict[str, float]:
    """Returns by domain how many greedy continuations of held-out text loop, as a share.

    A continuation of 24 tokens loops if in 128 tokens more, or up to the end of its text, some 8
    tokens come three times.
    """
    return {
        domain: prompt_loops(target, data.windows(domain, rows, PROMPT - 1).tolist())
        for domain in data.held_out
    }


def prompt_loops(target: Target, prompts: Sequence[list[int]]) -> float:
    """Returns the share of prompts that the target's greedy text of 128 tokens loops after.

    Text that ends before is looked at up to its end.
    """
    output = decode(target, list(prompts), "ar", max_new_tokens=MEASURED)
    return looping(output.tokens)


def looping(texts: Sequence[Sequence[int]] | np.ndarray) -> float:
    """Returns the share of texts in which some 8 tokens come three times."""
    return round(sum(loops(list(map(int, text))) for text in texts) / len(texts), 4)
