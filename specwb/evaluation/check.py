"""Does a method keep the target's text? A check for drafters under development, on the real target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats

from specwb.engine import Prompt, decode, token_rows
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.target import Target
from specwb.probability import Sampling

FALSE_ALARM = 1e-4


@dataclass(frozen=True)
class Check:
    """What :func:`check` found. ``pvalue`` is of the sampled law; a method that keeps it falls below 1e-4 once in ten thousand checks."""

    method: str
    greedy: bool  # greedy text equals plain decoding's, all prompts in one batch
    # a row alone gives the text it gives in the batch, at the temperature; up to rounding, so in
    # float32 a right method can miss it, where a uniform lies on a boundary (see specwb.rounds)
    batch: bool
    pvalue: float
    tokens: int  # sampled tokens the p-value is of
    mean_tokens_per_round: float  # greedy

    @property
    def passed(self) -> bool:
        return self.greedy and self.batch and self.pvalue > FALSE_ALARM

    def __str__(self) -> str:
        def word(ok: bool) -> str:
            return "yes" if ok else "NO"

        return "\n".join(
            [
                f"{self.method}: {'passed' if self.passed else 'FAILED'}",
                f"  greedy text is plain decoding's: {word(self.greedy)} (tau {self.mean_tokens_per_round:.2f})",
                f"  a row alone is the row in the batch: {word(self.batch)}",
                f"  sampled text follows the target's law: {word(self.pvalue > FALSE_ALARM)} (p-value {self.pvalue:.2g}, {self.tokens} tokens)",
            ]
        )


def check(
    target: Target,
    method: str | Method,
    prompts: Sequence[Prompt],
    *,
    temperature: float = 1.0,
    max_new_tokens: int = 8,
    rows: int = 128,
    seed: int = 0,
    **options,
) -> Check:
    """Decode with a method and compare with what the target alone would do: the same greedy text, the same law when sampling.

    The law is tested by the probability integral transform. With the tokens sorted by falling p, a token x drawn from p gives
    ``F(x-) + w p(x)``, w uniform on (0, 1), which is uniform and independent from token to token (Rosenblatt 1952). p is computed by the
    model's own forward over the finished text; the values of all tokens are put to a Kolmogorov-Smirnov test. It sees tokens that come
    out too often for how probable they are, such as drafts that are always kept. A small deviation takes more ``rows`` to be seen, and one
    that only swaps tokens of like probability, cancels between places or makes tokens depend on each other is not seen;
    ``tests/test_protocol.py`` and exact enumeration see more.

    Args:
        prompts: several texts or lists of token ids, better of different lengths.
        temperature: > 0, of the sampled part. max_new_tokens: a row. rows: sampled rows, shared out among the prompts.
        options: the method's own.
    Raises:
        ValueError: temperature is not > 0, rows < 1, or whatever :func:`specwb.decode` refuses.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is of the sampled part and must be > 0, got {temperature}; the greedy part is always run")
    if rows < 1:
        raise ValueError(f"rows must be >= 1, got {rows}")
    if isinstance(prompts, str):
        raise ValueError("prompts must be a list of prompts, got one text")
    made = method if isinstance(method, Method) else make_method(method, target, **options)
    ids = token_rows(target, prompts)
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "eos": ()}
    plain = decode(target, ids, "ar", **settings)
    greedy = decode(target, ids, made, **settings)
    hot = {**settings, "temperature": temperature}
    seeds = [seed + i for i in range(len(ids))]
    together = decode(target, ids, made, seed=seeds, **hot)
    alone = [decode(target, [row], made, seed=[s], **hot).tokens[0] for row, s in zip(ids, seeds, strict=True)]
    share = -(-rows // len(ids))
    values = []
    for i, row in enumerate(ids):
        sampled = decode(target, [row] * share, made, seed=seed + i, **hot)
        values.append(_transform(target, row, sampled.tokens, Sampling(temperature), seed + i))
    u = torch.cat(values)
    return Check(
        made.key, greedy.tokens == plain.tokens, together.tokens == alone, float(stats.kstest(u.numpy(), "uniform").pvalue), len(u),
        greedy.mean_tokens_per_round,
    )  # fmt: skip


def _transform(target: Target, prompt: list[int], texts: list[list[int]], sampling: Sampling, seed: int) -> torch.Tensor:
    """The probability integral transform of every token of every text."""
    whole = torch.tensor([prompt + text for text in texts], device=target.device)
    with torch.inference_mode():
        logits = target.model(whole, use_cache=False).logits[:, len(prompt) - 1 : -1]
    p = sampling.probabilities(logits).double()
    x = whole[:, len(prompt) :, None]
    px = p.gather(-1, x)
    below = torch.where((p > px) | ((p == px) & (torch.arange(p.shape[-1], device=p.device) < x)), p, 0).sum(-1)
    w = torch.rand(below.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(p.device)
    return ((below + w * px[..., 0]) / p.sum(-1)).flatten().clamp(0, 1).cpu()
