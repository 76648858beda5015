"""Curing a target of its loops: greedy text of a small model soon repeats itself without end.

The model goes on learning ordinary text, and beside it what it writes itself, where it is told what
not to write. Both are of one loss

    (1 - hold) CE(x) + hold CE(p_before) + weight U

where CE(x) is the ordinary loss on training text, CE(p_before) the cross-entropy with the
distribution that the model had before the cure, on the same text, which keeps what it knows, and U
the unlikelihood of repetition on greedy continuations of training text: a token that completes an
n-gram which was there ``times`` times before costs ``-log(1 - p(token))``, others cost nothing; the
mean over all tokens. Long n-grams leave alone what ordinary text repeats.

Source: Welleck et al. 1908.04319 (unlikelihood on sequences). Differs from it in: the model is held
to its former distribution; the continuations are written for ``renew`` steps at a time; n-grams may
be let pass once or more.
"""

from __future__ import annotations

from collections import Counter
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


def repeats(ids: np.ndarray, n: int, times: int = 1) -> np.ndarray:
    """Returns ``[B, L]``, the tokens that complete an n-gram which the row has had before.

    Args:
        ids: ``[B, L]``.
        n: the length of the n-grams.
        times: how often the row has had it before, at least.
    """
    found = np.zeros(ids.shape, dtype=bool)
    for row, tokens in enumerate(ids.tolist()):
        counts: Counter[tuple[int, ...]] = Counter()
        for end in range(n, len(tokens) + 1):
            gram = tuple(tokens[end - n : end])
            found[row, end - 1] = counts[gram] >= times
            counts[gram] += 1
    return found


def unlikelihood(logits: Tensor, ids: Tensor, unwanted: Tensor) -> Tensor:
    """Computes the mean over all tokens of ``-log(1 - p(token))`` of the unwanted ones.

    Args:
        logits: ``[B, L, V]``, before each token.
        ids: ``[B, L]``, the tokens.
        unwanted: ``[B, L]``.
    """
    logits = logits.float()
    # of the others, not 1 - p: that is 0 in float32, without a gradient, where p is all but certain
    others = logits.scatter(-1, ids[..., None], -torch.inf).logsumexp(-1)
    return ((logits.logsumexp(-1) - others) * unwanted).mean()


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
            model wrote; n, times, renew, hold, weight.
        seed: of the text.
        folder: where what the model wrote is kept. A run that goes on from a checkpoint learns from
            the text that the model wrote then, and not from what it would write now.
    """
    model = target.model
    steps, rows, length = settings["steps"], settings["rows"], settings["length"]
    hold, weight = settings["hold"], settings["weight"]

    def logits_of(a_model: Any, ids: Tensor) -> Tensor:
        return a_model(input_ids=ids[:, :-1], use_cache=False).logits

    def ordinary(ids: Tensor) -> Tensor:
        with torch.no_grad():
            p = logits_of(before, ids).flatten(0, 1).float().softmax(-1)
        logits = logits_of(model, ids).flatten(0, 1).float()
        held = F.cross_entropy(logits, p)
        return hold * held + (1 - hold) * F.cross_entropy(logits, ids[:, 1:].flatten())

    def unwanted(ids: Tensor, mask: Tensor) -> Tensor:
        return weight * unlikelihood(logits_of(model, ids), ids[:, 1:], mask[:, 1:])

    on_text, on_own = compiled(ordinary, steps), compiled(unwanted, steps)

    def loss(step: int) -> Tensor:
        ids = torch.from_numpy(data.batch(seed, step, rows, length, mixture))
        own, mask = _written(target, data, mixture, settings, seed, step, folder)
        device = target.device
        return on_text(ids.to(device)) + on_own(
            torch.from_numpy(own).to(device), torch.from_numpy(mask).to(device)
        )

    return loss


def _written(
    target: Target,
    data: Corpus,
    mixture: dict[str, float],
    settings: dict[str, Any],
    seed: int,
    step: int,
    folder: Path,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a step's text by the model, ``[own, length + 1]``, and the unwanted tokens of it."""
    turn = step % settings["renew"]
    path = folder / f"{step - turn:06}.npy"
    if not path.exists():
        rows = settings["own"] * settings["renew"]
        prompts = data.batch(seed + 1_000_000, step - turn, rows, PROMPT - 1, mixture)
        written = _continued(target, prompts, settings["length"] + 1 - PROMPT)
        written = written.astype(token_dtype(target.vocabulary))
        save_atomically(partial(_save, written), path)
    own = np.load(path)[turn :: settings["renew"]].astype(np.int64)
    mask = repeats(own, settings["n"], settings["times"])
    mask[:, :PROMPT] = False
    return own, mask


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
