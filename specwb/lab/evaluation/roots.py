"""How far several target-drawn roots move the output of real models, against the target itself.

The method is ``mcsd_ti:roots=W,lossy=true``, which is LOSSY.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specwb.core.probability import Sampling
from specwb.engine.decoding import decode
from specwb.lab.bench.statistics import mean_and_error
from specwb.models.prompts import Prompt, check_room, token_rows
from specwb.models.target import Target


@dataclass(frozen=True)
class OutputShift:
    """The texts that a method with several roots writes, judged by the target."""

    roots: int
    mean_tokens_per_round: float  # tau
    # share of tokens that are not the target's first choice after their own text; with one root at
    # T = 0 it is 0
    other: float
    # mean over texts of the mean ``log p(token)`` in nats, at T = 1 where decoding was greedy
    log_p: float
    error: float  # its standard error


def output_shifts(
    target: Target,
    draft: Target | None,
    prompts: Sequence[Prompt],
    roots: Sequence[int] = (1, 2, 3, 4),
    temperature: float = 0.0,
    *,
    depth: int = 5,
    max_new_tokens: int = 32,
    seed: int = 0,
) -> Iterator[OutputShift]:
    """Measure how far several roots move the output, one entry of ``roots`` at a time.

    Every text is decoded with chains of ``depth`` draft tokens below each root, and judged by the
    target's own forward over it. The caller may stop after any entry.

    Args:
        target: the target model.
        draft: the draft model, default the target's own.
        prompts: texts or lists of token ids.
        roots: numbers of roots.
        temperature: 0 is greedy.
        depth: draft tokens below a root.
        max_new_tokens: for every prompt.
        seed: of the sampling.
    Raises:
        ValueError: there is no prompt, or a text does not fit the context.
    """
    sampling = Sampling(temperature)
    rows = token_rows(target, prompts)
    check_room(rows, max_new_tokens, target.name, target.context)
    for n in roots:
        out = decode(
            target,
            rows,
            "mcsd_ti",
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            seed=seed,
            eos=(),
            draft=draft,
            roots=n,
            lossy=True,
            stop="none",
            tree=(1,) * depth,
        )
        first_choice, log_ps = zip(
            *(
                _judgement(target, row, text, sampling)
                for row, text in zip(rows, out.tokens, strict=True)
            ),
            strict=True,
        )
        log_p, error = mean_and_error([float(x.mean()) for x in log_ps])
        yield OutputShift(
            roots=n,
            mean_tokens_per_round=out.mean_tokens_per_step,
            other=1 - float(torch.cat(first_choice).double().mean()),
            log_p=log_p,
            error=error,
        )


@torch.inference_mode()
def _judgement(
    target: Target, prompt: list[int], text: list[int], sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """Whether each written token is the target's first choice after its text, and its ``log p``."""
    ids = torch.tensor([prompt + text], device=target.device)
    logits = target.model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    tokens = ids[0, len(prompt) :]
    p = sampling.for_confidence.probabilities(logits).double()
    return (logits.argmax(-1) == tokens).cpu(), p.gather(1, tokens[:, None])[:, 0].log().cpu()
