"""Curing a target of its loops: greedy text of a small model soon repeats itself without end.

The model learns not to go on with what has come too often. Beside ordinary text x it reads its own
greedy text y, in one loss

    C(x) + weight U(y) + CE(p_before; y'),
    C(x) = (1 - hold) CE(x) + hold CE(p_before; x),
    U(y) = sum_t w_t (-log(1 - q(r_t))) / sum_t w_t

where CE(x) is the ordinary loss, CE(p; .) the cross-entropy with a distribution, and p_before what
the model had before the cure, which keeps what it knows. r_t is the token that would complete an
n-gram for more than the ``times``-th time in its row, q(r_t) its probability at t, and y' are the
positions of y without one. Ordinary text repeats an n-gram once or twice, and hardly ever once
more; so a third coming tells a loop from what must be repeated, and costs little to unlearn. The
deeper in a loop, the more positions and the surer the model is to go on; what counts is to leave it
at once, so w_t is one over the number of comings too many that r_t would make.

Source: the unlikelihood of repeats is Welleck et al. 1908.04319, who forbid the second coming of
4-grams. What was tried before and cost more of what the model knows for fewer loops is in
docs/negative_results.md. Another way are pseudo-repetitions (DITTO, 2206.02369).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scripts.build_lab.compiling import compiled
from specwb.core.stops import loops
from specwb.engine.decoding import decode
from specwb.models.target import Target
from specwb.training.corpus import Corpus, token_dtype
from specwb.training.fit import save_rows

PROMPT = 24  # tokens of text that a continuation begins with
MEASURED = 128  # tokens of a continuation in which loops are looked for
LEAST = 1e-5  # what 1 - q is at least, where its logarithm is learnt


def forbidden(ids: np.ndarray, n: int, times: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that would complete an n-gram that has come ``times`` times or more in ``ids [B,
    L]``.

    Returns ``[B, L]``, the token that may not follow each one, -1 where all may, and ``[B, L]``,
    one over the number of comings too many that it would make, 0 where all may. Of several tokens
    it is the one that came last after these n - 1."""
    found, weights = np.full(ids.shape, -1), np.zeros(ids.shape, np.float32)
    for row, tokens in enumerate(ids.tolist()):
        comings: Counter[tuple[int, ...]] = Counter()
        last: dict[tuple[int, ...], int] = {}
        for end in range(n - 1, len(tokens) + 1):
            before = tuple(tokens[end - n + 1 : end])
            if before in last:
                token = last[before]
                found[row, end - 1] = token
                weights[row, end - 1] = 1 / (comings[*before, token] - times + 1)
            if end < len(tokens):
                gram = (*before, tokens[end])
                comings[gram] += 1
                if comings[gram] >= times:
                    last[before] = tokens[end]
    return found, weights


def cure_loss(
    target: Target,
    before: Any,
    data: Corpus,
    mixture: dict[str, float],
    settings: dict[str, Any],
    seed: int,
    folder: Path,
) -> Callable[[int, int], Tensor]:
    """The loss of a step of the cure; ``before`` is the model as it was.

    ``settings``: steps; rows and length of a batch of text; ``own``, the rows of a step that the
    model wrote, and every how many steps it writes them anew, ``renew``; n, times, hold, weight.
    What the model wrote is kept in ``folder``: a run that goes on from a checkpoint learns from the
    text that the model wrote then, and not from what it would write now."""
    model = target.model
    steps, rows, length = settings["steps"], settings["rows"], settings["length"]
    hold, weight = settings["hold"], settings["weight"]

    def logits_of(a_model: Any, ids: Tensor) -> Tensor:
        return a_model(input_ids=ids[:, :-1], use_cache=False).logits

    def before_of(ids: Tensor) -> Tensor:
        with torch.no_grad():
            return logits_of(before, ids).flatten(0, 1).float().softmax(-1)

    def ordinary(ids: Tensor) -> Tensor:
        logits = logits_of(model, ids).flatten(0, 1).float()
        held = F.cross_entropy(logits, before_of(ids))
        return hold * held + (1 - hold) * F.cross_entropy(logits, ids[:, 1:].flatten())

    def own_text(ids: Tensor, not_next: Tensor, weights: Tensor) -> Tensor:
        logits = logits_of(model, ids).flatten(0, 1).float()
        held = F.cross_entropy(logits, before_of(ids), reduction="none")
        tokens, w = not_next[:, :-1].flatten(), weights[:, :-1].flatten()
        q = logits.softmax(-1).gather(-1, tokens.clamp_min(0)[:, None])[:, 0]
        unlikely = -(1 - q).clamp_min(LEAST).log()
        free = (w == 0).float()
        return weight * _mean(unlikely, w) + _mean(held, free)

    on_text, on_own = compiled(ordinary, steps), compiled(own_text, steps)

    def loss(step: int, part: int = 0) -> Tensor:
        ids, _ = data.batch(seed, step, rows, length, mixture)
        own = _written(target, data, mixture, settings, seed, step, folder)
        read, *wrote = (
            torch.from_numpy(x).to(target.device)
            for x in (ids, own, *forbidden(own, settings["n"], settings["times"]))
        )
        return on_text(read) + on_own(*wrote)

    return loss


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    # where hardly anything counts, it does not count for everything
    return (values * weights).sum() / weights.sum().clamp_min(8.0)


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
        prompts, _ = data.batch(seed + 1_000_000, step - turn, rows, PROMPT - 1, mixture)
        written = _continued(target, prompts, settings["length"] + 1 - PROMPT)
        written = written.astype(token_dtype(target.vocabulary))
        save_rows(written, path)
    return np.load(path)[turn :: settings["renew"]].astype(np.int64)


def _continued(target: Target, prompts: np.ndarray, tokens: int) -> np.ndarray:
    was_training = target.model.training
    target.model.eval()
    with torch.autocast(target.device.type, enabled=False):  # a step may be under one
        output = decode(target, prompts.tolist(), "ar", max_new_tokens=tokens, eos=())
    target.model.train(was_training)
    return np.concatenate([prompts, np.array(output.tokens)], 1)


def loop_shares(target: Target, data: Corpus, rows: int = 32) -> dict[str, float]:
    """By domain the share of greedy continuations of held-out text that loop."""
    return {
        domain: prompt_loops(target, data.windows(domain, rows, PROMPT - 1)[0].tolist())
        for domain in data.held_out
    }


def prompt_loops(target: Target, prompts: Sequence[list[int]]) -> float:
    """The share of prompts that the target's greedy text of 128 tokens, or up to its end, loops
    after."""
    output = decode(target, list(prompts), "ar", max_new_tokens=MEASURED)
    return looping(output.tokens)


def looping(texts: Sequence[Sequence[int]] | np.ndarray) -> float:
    """The share of texts in which some 8 tokens come three times."""
    return round(sum(loops(list(map(int, text))) for text in texts) / len(texts), 4)
