"""Where two greedy texts part that should be one: at a tie up to rounding, or otherwise.

A forward over one token and one over a whole draft round differently. In float32 the most probable
token is the same but for texts without an end; in bfloat16, with 8 bits of precision, the two best
logits are nearer to each other than that some times in a hundred tokens. Both texts are right then.
What parts anywhere else is an error of the method.

How far rounding moves logits depends on the model, so it is measured on the texts themselves: plain
decoding is run again, a token at a time, and each text goes through the target in one forward as
well. Let d be the most by which the difference of the two best logits changed, over all places of
the texts that part. Texts part at a tie where plain decoding's logits of both tokens are its best
up to 1.5 d; a method's own forwards may round a little worse than the ones that were looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specwb.core.flow import chain
from specwb.core.probability import Sampling
from specwb.engine.decoding import rounds
from specwb.models.target import Target

SLACK = 1.5
Texts = Sequence[Sequence[list[int]]]
"""What was written: a group's rows, group by group."""


@dataclass(frozen=True)
class Same:
    """How one method's greedy texts agree with plain decoding's."""

    texts: int  # how many there are
    ties: int = 0  # those that part where both tokens are plain decoding's best up to ``margin``
    others: int = 0  # those that part anywhere else, which must be 0
    # 1.5 times the most by which rounding moves two logits apart; None where no texts part
    margin: float | None = None

    def __str__(self) -> str:
        if not self.ties + self.others:
            return "yes"
        parts = [f"{self.ties} at a tie"] if self.ties else []
        parts += [f"{self.others} NOT"] if self.others else []
        return f"{self.texts - self.ties - self.others} of {self.texts} ({', '.join(parts)})"


def same_texts(
    target: Target,
    groups: Sequence[Sequence[Sequence[int]]],
    plain: Texts,
    texts: Mapping[str, Texts],
) -> dict[str, Same]:
    """Compares texts with those of plain decoding; the target is asked only where they part."""
    gaps: dict[str, list[float]] = {name: [] for name in texts}
    moved = 0.0
    for i, (rows, own) in enumerate(zip(groups, plain, strict=True)):
        asked = _partings(own, {name: texts[name][i] for name in texts})
        if not asked:
            continue
        logits = replayed(target, rows, own)
        for row in {row for _, row, _, _ in asked}:
            moved = max(moved, rounding(target, rows[row], own[row], logits[row]))
        for name, row, at, tokens in asked:
            gap = float("inf")
            if at is not None:
                gap = float((logits[row][at].max() - logits[row][at][list(tokens)]).max())
            gaps[name].append(gap)
    count, margin = sum(map(len, plain)), SLACK * moved
    return {
        name: Same(
            count,
            sum(gap <= margin for gap in found),
            sum(not gap <= margin for gap in found),  # NaN too
            margin if found else None,
        )
        for name, found in gaps.items()
    }


Parting = tuple[str, int, int | None, tuple[int, ...]]
"""Method, row, the place where its text parts, and both tokens there; None where one text ends
before the other."""


def _partings(
    plain: Sequence[list[int]], texts: Mapping[str, Sequence[list[int]]]
) -> list[Parting]:
    found: list[Parting] = []
    for name, written in texts.items():
        for row, (a, b) in enumerate(zip(plain, written, strict=True)):
            if a != b:
                pairs = enumerate(zip(a, b, strict=False))
                at = next((i for i, (x, y) in pairs if x != y), None)
                found.append((name, row, at, () if at is None else (a[at], b[at])))
    return found


def replayed(
    target: Target, rows: Sequence[Sequence[int]], plain: Sequence[list[int]]
) -> list[list[Tensor]]:
    """Plain decoding's logits ``[V]`` at every place of each row's text, by decoding it again.

    Rounding may write a text otherwise now, as eager steps after recorded ones do in bfloat16; what
    is behind that place is decoded anew from the text as it was written."""
    found: list[list[Tensor]] = [[] for _ in rows]
    while left := [row for row in range(len(rows)) if len(found[row]) < len(plain[row])]:
        texts = [[*rows[row], *plain[row][: len(found[row])]] for row in left]
        missing = [len(plain[row]) - len(found[row]) for row in left]
        settings: dict[str, Any] = {"max_new_tokens": missing, "eos": (), "trace": True}
        agreeing = dict(enumerate(left))
        for step in rounds(target, texts, "ar", graphs=False, **settings):
            assert step.scores is not None
            for i, row in list(agreeing.items()):
                at = len(found[row])
                found[row].append(step.scores.logits[i, 0].float().cpu())
                if at + 1 == len(plain[row]) or int(step.verdict.bonus[i]) != plain[row][at]:
                    del agreeing[i]
            if not agreeing:
                break
    return found


def rounding(
    target: Target, prompt: Sequence[int], text: list[int], logits: Sequence[Tensor]
) -> float:
    """The most by which the difference of a place's two best logits changes from these, a token at
    a time, to one forward over all of the text."""
    n = len(logits)
    with torch.inference_mode():
        state = target.open([list(prompt)], [n], n, Sampling(), ())
        tokens = torch.tensor([[prompt[-1], *text[: n - 1]]], device=target.device)
        together = target.score(state, chain(tokens)).logits[0].float().cpu()
    alone = torch.stack(list(logits))
    best, where = alone.topk(2, -1)
    changes = (together.gather(-1, where).diff() - best.diff()).abs()
    changes = changes[changes.isfinite()]
    return float(changes.max()) if changes.numel() else 0.0
