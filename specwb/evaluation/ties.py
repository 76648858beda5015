"""Where two greedy texts part that should be one: at a tie of the number type, or otherwise.

A forward over one token and one over a whole draft round differently. In float32 the most probable
token is the same but for texts without an end; in bfloat16, with 8 bits of precision, the two best
logits are equal up to rounding some times in a thousand tokens. Both texts are right then. What
parts anywhere else is an error of the method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specwb.flow import Draft, Scheme
from specwb.models.target import Target
from specwb.probability import Sampling
from specwb.tree import Tree

STEPS = 2.0
"""How many steps of the number type below the best logit a token may be at a tie: either logit may
be off by one, in the other direction."""


@dataclass(frozen=True)
class Same:
    """How one method's greedy texts agree with plain decoding's.

    Attributes:
        texts: how many there are.
        ties: those that part where both tokens' logits are the best up to a step.
        others: those that part anywhere else, which must be 0.
    """

    texts: int
    ties: int = 0
    others: int = 0

    def __str__(self) -> str:
        if not self.ties + self.others:
            return "yes"
        parts = [f"{self.ties} at a tie"] if self.ties else []
        parts += [f"{self.others} NOT"] if self.others else []
        return f"{self.texts - self.ties - self.others} of {self.texts} ({', '.join(parts)})"


def same_texts(
    target: Target,
    prompts: Sequence[Sequence[int]],
    plain: Sequence[list[int]],
    texts: Sequence[list[int]],
) -> Same:
    """Compares texts with those of plain decoding; the target is asked only where they part.

    Args:
        target: the model of both.
        prompts: token ids.
        plain: what plain decoding wrote after each of them.
        texts: what is compared with it.
    """
    ties = others = 0
    for prompt, a, b in zip(prompts, plain, texts, strict=True):
        if a == b:
            continue
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        if at is not None and tied(next_logits(target, [*prompt, *a[:at]]), a[at], b[at]):
            ties += 1
        else:  # one text ends before the other, or they part without a tie
            others += 1
    return Same(len(prompts), ties, others)


def next_logits(target: Target, text: Sequence[int]) -> Tensor:
    """The target's logits ``[V]`` after a text, by a forward over its last token alone."""
    with torch.inference_mode():
        state = target.open([list(text)], [1], 1, Sampling(), ())
        token = state.tokens.gather(1, (state.length - 1)[:, None])
        draft = Draft(Tree.chain(0), token, torch.ones_like(token, dtype=torch.bool), Scheme.POINT)
        return target.score(state, draft).logits[0, 0]


def tied(logits: Tensor, *tokens: int) -> bool:
    """Whether the logits ``[V]`` of all these tokens are the best up to :data:`STEPS` steps.

    A step is the distance of neighbouring numbers of the logits' type at the size of the best one.
    """
    best = float(logits.max())
    exponent = math.floor(math.log2(abs(best))) if best else 0
    step = torch.finfo(logits.dtype).eps * 2.0**exponent
    return all(best - float(logits[token]) <= STEPS * step for token in tokens)
