"""Improved MCSD, beside its cells: how far several roots move the output of real models, against
the target itself.

The method is ``mcsd_ti:roots=W,lossy=true``, which is LOSSY.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import torch

from specwb.core.probability import Sampling
from specwb.engine.decoding import decode
from specwb.lab.bench.statistics import mean_and_error
from specwb.lab.papers.figures import Printed, SavedResults
from specwb.lab.papers.run import Models
from specwb.models.prompts import Prompt, check_room, token_rows
from specwb.models.questions import Question
from specwb.models.target import Target

TEMPERATURES, ROOTS, NEW = (0.0, 1.0), (1, 2, 3, 4), 32
"""Temperatures, numbers of roots, and tokens of the texts that several roots are judged by."""
CHAIN = (1,) * 5
"""The tree of draft tokens below each root."""


class OutputShift(NamedTuple):
    """The texts that a method with several roots writes, judged by the target."""

    roots: int
    mean_tokens_per_round: float  # tau
    # share of tokens that are not the target's first choice after their own text; with one root at
    # T = 0 it is 0
    other: float
    # mean over texts of the mean ``log p(token)`` in nats, at T = 1 where decoding was greedy
    log_p: float
    error: float  # its standard error


def probe(
    models: Models, questions: Sequence[Question], document: SavedResults, seed: int
) -> Iterator[tuple[float, str]]:
    """Measure how far several roots move the output: ``document["moved"]``."""
    texts = models.texts(questions, NEW)
    moved = document.setdefault("moved", {})
    for t in TEMPERATURES:
        missing = [n for n in ROOTS if f"T={t:g} roots={n}" not in moved]
        for shift in output_shifts(models.target, models.draft, texts, missing, t, NEW, seed):
            moved[f"T={t:g} roots={shift.roots}"] = {
                name: round(x, 5) for name, x in shift._asdict().items()
            }
            done = len(moved) / len(TEMPERATURES) / len(ROOTS)
            yield done, f"how far {shift.roots} roots move the output"


def output_shifts(
    target: Target,
    draft: Target | None,
    prompts: Sequence[Prompt],
    roots: Sequence[int],
    temperature: float = 0.0,
    max_new_tokens: int = NEW,
    seed: int = 0,
) -> Iterator[OutputShift]:
    """Measure how far several roots move the output, one entry of ``roots`` at a time.

    Every text is decoded with chains of draft tokens below each root, and judged by the target's
    own forward over it. The caller may stop after any entry.

    Args:
        target: the target model.
        draft: the draft model, default the target's own.
        prompts: texts or lists of token ids.
        roots: numbers of roots.
        temperature: 0 is greedy.
        max_new_tokens: for every prompt.
        seed: of the sampling.
    Raises:
        ValueError: there is no prompt, or a text does not fit the context.
    """
    rows = token_rows(target, prompts)
    check_room(rows, max_new_tokens, target.name, target.context)
    sampling = Sampling(temperature).for_confidence
    how: dict[str, Any] = {"draft": draft, "lossy": True, "stop": "none", "tree": CHAIN}
    how |= {"max_new_tokens": max_new_tokens, "seed": seed, "eos": ()}
    for n in roots:
        out = decode(target, rows, "mcsd_ti", temperature=temperature, roots=n, **how)
        other, log_ps = [], []
        for row, text in zip(rows, out.tokens, strict=True):
            ids = torch.tensor([row + text], device=target.device)
            with torch.inference_mode():
                logits = target.model(ids, use_cache=False).logits[0, len(row) - 1 : -1]
            tokens = ids[0, len(row) :]
            other += (logits.argmax(-1) != tokens).tolist()
            p = sampling.probabilities(logits).double().gather(1, tokens[:, None])
            log_ps.append(float(p.log().mean()))
        yield OutputShift(n, out.mean_tokens_per_step, fmean(other), *mean_and_error(log_ps))


def tables(document: SavedResults) -> Printed:
    """What is printed of it."""
    lines = [
        {
            "setting": name,
            "not its first choice": f"{shift['other']:.1%}",
            "log p": f"{shift['log_p']:.2f}±{shift['error']:.2f}",
        }
        for name, shift in document.get("moved", {}).items()
    ]
    return [("LOSSY from two on: roots, and how far they move the output", lines)]
