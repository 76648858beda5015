"""Where two texts part that should be one: at a near-tie, or otherwise. They are greedy texts, or
at T > 0 those of ``exact_text``, whose logits have the noise of their places.

A forward pass over one token and one over a whole draft round differently. In float32 the most
probable token is the same except in texts without an end; in bfloat16, with 8 bits of precision,
the two best logits are nearer to each other than that several times in a hundred tokens. Both texts
are right then. Texts that part anywhere else are an error of the method.

How far rounding moves logits depends on the model, so it is measured on the texts themselves: the
target scores the plain text token by token and again in one forward pass (teacher forcing). Let d
be the largest change of the difference of the two best logits, over all places of the texts that
part. Texts part at a near-tie where plain decoding's logits of both tokens are its best up to
1.5 d; a method's own forward passes may round a little worse than these two.

The compiled pass of the CPU rounds both alike, so that d is 0 and texts of this engine do not part
(theorem 8.10). The transformers library does not round as it does: for its texts d is at least one
rounding of the largest logit in the number type.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specwb.core.flow import Draft, Scores, State, chain
from specwb.core.noise import Noise
from specwb.core.probability import Sampling
from specwb.engine.decoding import rounds
from specwb.models.target import Target

GREEDY = Sampling()
SLACK = 1.5
SUMMED = 2.0**-15
"""Relative error of a logit whose products are summed in float32: 256 roundings."""
Pair = tuple[Sequence[int], list[int]]
"""Token ids of a prompt, and of the text that plain decoding wrote after it."""


@dataclass(frozen=True)
class Agreement:
    """How one method's texts agree with plain decoding's."""

    texts: int  # all of them
    ties: int = 0  # those that part where both tokens are plain decoding's best up to ``margin``
    others: int = 0  # those that part anywhere else, which must be 0
    # 1.5 times the most by which rounding moves two logits apart, for texts of the library at least
    # 1.5 roundings of a logit; None where no texts part
    margin: float | None = None

    def __str__(self) -> str:
        if not self.ties + self.others:
            return "yes"
        parts = [f"{self.ties} at a tie"] if self.ties else []
        parts += [f"{self.others} NOT"] if self.others else []
        return f"{self.texts - self.ties - self.others} of {self.texts} ({', '.join(parts)})"


def agreements(
    target: Target,
    plain: Sequence[Pair],
    texts: Mapping[str, Sequence[list[int]]],
    library: Collection[str] = (),
    sampling: Sampling = GREEDY,
    seeds: Sequence[int] = (),
) -> dict[str, Agreement]:
    """Compare texts with those of plain decoding; the target runs only where they part.

    Args:
        target: the model that wrote them.
        plain: prompts and the texts of plain decoding.
        texts: method -> its texts after the same prompts; there may be fewer.
        library: the methods whose texts the transformers library wrote, with roundings of its own.
        sampling: greedy settings, or those of ``exact_text``.
        seeds: with ``exact_text``, those of the rows of ``plain``.
    """
    gaps: dict[str, list[float]] = {name: [] for name in texts}
    moved = rounded = 0.0
    for i, (prompt, text) in enumerate(plain):
        parting = {name: some[i] for name, some in texts.items() if i < len(some)}
        parting = {name: other for name, other in parting.items() if other != text}
        if not parting:
            continue
        how = sampling, seeds[i] if sampling.exact_text else 0
        logits = stepwise_logits(target, prompt, text, *how)
        moved = max(moved, rounding(target, prompt, text, logits, *how))
        rounded = max(rounded, _one_rounding(logits, target.dtype))
        for name, other in parting.items():
            gaps[name].append(_gap(text, other, logits))
    result: dict[str, Agreement] = {}
    for name, some in texts.items():
        margin = SLACK * (max(moved, rounded) if name in library else moved)
        ties = sum(gap <= margin for gap in gaps[name])  # NaN is none
        others, count = len(gaps[name]) - ties, min(len(some), len(plain))
        result[name] = Agreement(count, ties, others, margin if gaps[name] else None)
    return result


def _one_rounding(logits: Tensor, dtype: torch.dtype) -> float:
    """One rounding of the largest logit in a number type, or of the sum that it is; logits may be
    infinite, of tokens that are never written."""
    finite = logits[logits.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return max(torch.finfo(dtype).eps, SUMMED) * largest


def _gap(text: list[int], other: list[int], logits: Tensor) -> float:
    """How far the worse of the two first tokens that differ is below the best logit; infinite where
    one text ends before the other."""
    pairs = enumerate(zip(text, other, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), None)
    if place is None:
        return float("inf")
    here = logits[place]
    return float((here.max() - here[[text[place], other[place]]]).max())


def stepwise_logits(
    target: Target,
    prompt: Sequence[int],
    text: Sequence[int],
    sampling: Sampling = GREEDY,
    seed: int = 0,
) -> Tensor:
    """Return plain decoding's logits ``[len(text),V]``, with ``exact_text`` the perturbed ones, one
    forward pass a token, with the text as it was written (teacher forcing): rounding may choose
    other tokens this time."""
    seen: list[Tensor] = []

    def forced(state: State, draft: Draft, scores: Scores) -> Scores:
        if state.gumbel is not None:
            scores.perturb(draft.tree, state.gumbel)
        seen.append(scores.deciding[0, 0].float().cpu())
        token = torch.tensor([[text[len(seen) - 1]]], device=target.device)
        choice = one_hot(token, scores.logits.shape[-1]).to(scores.logits.dtype)
        return replace(scores, logits=choice.log())

    how: dict[str, Any] = {"eos": (), "rescore": forced, "seed": [seed], **asdict(sampling)}
    for _ in rounds(target, [list(prompt)], max_new_tokens=len(text), **how):
        pass
    return torch.stack(seen)


def rounding(
    target: Target,
    prompt: Sequence[int],
    text: Sequence[int],
    logits: Tensor,
    sampling: Sampling = GREEDY,
    seed: int = 0,
) -> float:
    """Return the most by which the difference of a place's two best logits changes from ``logits``
    ``[n,V]``, a token at a time, to one forward pass over all of the text."""
    n = len(logits)
    with torch.inference_mode():
        state = target.open([list(prompt)], [n], n, sampling, ())
        tokens = torch.tensor([[prompt[-1], *text[: n - 1]]], device=target.device)
        scores = target.score(state, draft := chain(tokens))
        if sampling.exact_text:
            places = len(prompt) + torch.arange(n, device=target.device)[None]
            noise = Noise(torch.tensor([seed], device=target.device), {}, n)
            scores.perturb(draft.tree, noise.gumbel(places, target.vocabulary))
        together = scores.deciding[0].float().cpu()
    best, where = logits.topk(2, -1)
    changes = (together.gather(-1, where).diff() - best.diff()).abs()
    changes = changes[changes.isfinite()]
    return float(changes.max()) if changes.numel() else 0.0
