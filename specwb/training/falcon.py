"""Falcon's recipe: blocks trained by coupled sequential glancing distillation (CSGD)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from specwb.models.eagle import eagle_config
from specwb.models.falcon import ALIGNS, FUSIONS, LARGEST, FalconHead
from specwb.models.target import Target
from specwb.training import corpus as text
from specwb.training.fit import TrainingError
from specwb.training.recipe import Found, Level, Moment, Recipe

WHERE = ("prefix", "random")
WHAT = ("both", "tokens", "features")


def glanced(count: Tensor, places: int, k: int, block_order: Tensor, lengths: Tensor, where: str = "prefix") -> Tensor:
    """``[B,places]`` which pairs of a text in blocks of k are replaced by the pairs they are to predict, ``count [B]`` of them (or all that can be).

    prefix: whole blocks in random order, of each the first 1..k-1 pairs (never the last, which would see nothing new), the last block's cut so
    that exactly ``count`` are replaced. random: any pairs, each as likely.

    Args: block_order ``[B,blocks]`` uniforms that order the blocks (``[B,places]``, the pairs, for random); lengths ``[B,blocks]`` uniforms for
        the lengths of prefixes. Only the ``blocks`` that they are given for are looked at, from the first on.
    """
    rows, blocks = block_order.shape
    if k == 1:
        chosen = torch.zeros(rows, blocks, dtype=torch.bool, device=count.device)
    elif where == "random":
        rank = block_order.argsort(-1).argsort(-1)
        chosen = rank < count[:, None]
    else:
        order = block_order.argsort(-1)
        wished = 1 + (lengths * (k - 1)).long().clamp_max(k - 2)
        along = wished.gather(-1, order)
        given = torch.minimum((count[:, None] - (along.cumsum(-1) - along)).clamp_min(0), along)
        length = torch.zeros_like(along).scatter_(-1, order, given)
        chosen = (torch.arange(k, device=count.device) < length[:, :, None]).flatten(1)
    out = torch.zeros(rows, places, dtype=torch.bool, device=count.device)
    out[:, : chosen.shape[1]] = chosen
    return out


class FalconRecipe(Recipe):
    """A block head. A first pass without gradient counts ``d``, the places where its best token is not the target's; ``N = lambda d`` pairs are then
    replaced by the pairs they are to predict, and the pass with gradient sees those; lambda falls linearly from ``glance`` to ``glance_end``
    over the run. A pair that was replaced says nothing (its answer lies before it), unless ``count_glanced``.

    Settings: k, layers, ffn (0: the target's), fusion; unroll (passes trained below the first, on the head's own states, as EAGLE's are; 1 is the
    published training); regression (weight of SmoothL1), hard (share of the target's best token in the law learnt), noise (range of uniform
    noise on features, times 512 / length); glance (0: without CSGD), glance_end, where (prefix: the published; random), replaced (both, tokens,
    features), count_glanced; align (where a head's blocks end when drafting; training is the same).

    Source: Falcon (arXiv 2412.12639) 3.2, its code, GLAT (Qian et al. 2021) for what is counted. Differs from them in: lambda's ends are the
    paper's, not the code's .45 and .1; prefixes lie on the mask's blocks, where the code takes every k-th counted place; replaced pairs are
    not counted; the hard label is the target's best token, where the code draws one; no temperature in the law; the law weighs 1 where the
    paper has 0.1; blocks begin at a random place of the row; more than one pass is trained, and what hangs below a block that glanced is not
    counted there; all places are counted, there are no turns of an assistant to leave out; the last block of a row never glances; no noise
    on features unless asked for (the paper's range is 0.1). The loss is a mean over all places, so what is left out weakens the step.
    Optimisers, rates and clipping are the common loop's.
    """

    name = "falcon"
    options = {  # noqa: RUF012
        "k": 2, "layers": 2, "ffn": 0, "fusion": FUSIONS, "align": ALIGNS, "unroll": 2, "regression": 1.0, "hard": 0.1, "noise": 0.0,
        "glance": 0.4, "glance_end": 0.0, "where": WHERE, "replaced": WHAT, "count_glanced": 0,
    }  # fmt: skip
    measured = 8
    lr_other = 3e-3

    def __init__(self, target: Target, settings: dict[str, Any]) -> None:
        super().__init__(target, {**self.usual(), **settings})
        s = self.settings
        self.regression, self.hard, self.k = s["regression"], s["hard"], s["k"]
        if max(s["glance"], s["glance_end"], s["hard"]) > 1:
            raise TrainingError(f"falcon: glance, glance_end and hard are shares of at most 1, got {s['glance']}, {s['glance_end']}, {s['hard']}")
        if self.k > LARGEST:
            raise TrainingError(f"falcon: k must be 1..{LARGEST}, got {self.k}")

    def make(self, data: text.Corpus, mixture: dict[str, float]) -> FalconHead:
        s = self.settings
        config = eagle_config(self.target, s["layers"], s["ffn"])
        return FalconHead(config, self.target.backbone.config.hidden_size, self.k, s["fusion"], s["align"])

    def with_adam(self, head: FalconHead) -> set[str]:
        # an LSTM's matrices are four gates', on top of each other
        return {name for name, _ in head.named_parameters() if name.startswith("lstm.")}

    def least(self) -> int:
        # an offset of k - 1, and a block for every pass and one to be predicted; the first block's laws stand k places on
        return max(self.measured + self.k, (self.settings["unroll"] + 2) * self.k)

    def ratio(self, progress: float) -> float:
        """lambda when so much of the run is done."""
        return self.settings["glance"] + (self.settings["glance_end"] - self.settings["glance"]) * progress

    def levels(self, head: FalconHead, found: Found, depth: int | None = None) -> Iterator[Level]:
        k, lm_head = head.k, self.target.backbone.lm_head
        depth = depth or k * self.settings["unroll"]
        embedded, features = _whole_blocks(k, found.embedded[:, 1:], found.features[:, :-1])
        unrolled = head.unroll(embedded, features, -(-depth // k))
        d = 0
        for step, hidden in enumerate(unrolled):
            for j in range(min(k, depth - d)):
                first = step * k + j
                said = hidden[:, first::k]
                # the last block says laws beyond the text
                said = said[:, : len(range(first + k, found.logits.shape[1], k))]
                yield Level(head.logits(said, lm_head), first + k, said, k)
                d += 1

    def training(self, head: FalconHead, found: Found, moment: Moment) -> Iterator[Level]:
        k, s, lm_head = head.k, self.settings, self.target.backbone.lm_head
        # blocks begin at a random place: one more or less of the first pairs is left out
        o = int(moment.number(0) * k)
        features = found.features[:, o:-1]
        if s["noise"]:
            u = moment.uniforms(features[0].numel(), 1, features.device).view_as(features)
            features = features + (2 * u - 1) * s["noise"] * 512 / found.features.shape[1]
        pairs = found.embedded[:, 1 + o :], features
        said = pairs[0].shape[1] - k + 1  # pairs whose laws are in the text
        embedded, features = _whole_blocks(k, *pairs)
        m = embedded.shape[1]
        first, mask = None, None
        if s["glance"] or s["glance_end"]:
            mask = self.choose(head, found, moment, (embedded, features), o, said)
            later = [torch.cat([part[:, k:], part[:, :k]], 1)[:, :m] for part in (pairs[0], found.features[:, o:-1])]
            first = tuple(
                torch.where(mask[:, :, None], new, old) if s["replaced"] in ("both", name) else old
                for name, new, old in zip(("tokens", "features"), later, (embedded, features), strict=True)
            )
        counted = None if mask is None or s["count_glanced"] else ~mask
        for step, hidden in enumerate(head.unroll(embedded, features, s["unroll"], first)):  # type: ignore[arg-type]
            own = hidden[:, step * k : said]
            at = None if counted is None else counted[:, step * k : said]
            yield Level(head.logits(own, lm_head), o + k + step * k, own, 1, at)
            if counted is not None:
                # below a block that glanced, states are not those a draft would have
                clean = counted.view(len(counted), -1, k).all(-1, keepdim=True).expand(-1, -1, k).flatten(1)
                counted = torch.cat([torch.ones_like(clean[:, :k]), clean[:, :-k]], 1)

    @torch.no_grad()
    def choose(self, head: FalconHead, found: Found, moment: Moment, pairs: tuple[Tensor, Tensor], o: int, said: int) -> Tensor:
        """``[B,m]`` which pairs glance in this step."""
        k, m = head.k, pairs[0].shape[1]
        hidden = next(head.unroll(*pairs, 1))[:, :said]
        best = head.logits(hidden, self.target.backbone.lm_head).argmax(-1)
        wrong = (best != found.logits[:, o + k :][:, :said].argmax(-1)).sum(-1)
        count = (self.ratio(moment.progress) * wrong).long()
        blocks = (said - 1) // k  # those whose replacements are pairs of the text
        columns = m if self.settings["where"] == "random" else m // k
        order, lengths = (moment.uniforms(columns, stream, wrong.device) for stream in (2, 3))
        able = blocks * k if self.settings["where"] == "random" else blocks
        return glanced(count, m, k, order[:, :able], lengths[:, :able], self.settings["where"])


def _whole_blocks(k: int, *parts: Tensor) -> list[Tensor]:
    return [part[:, : part.shape[1] // k * k] for part in parts]
