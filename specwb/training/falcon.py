"""Falcon's recipe: blocks trained by coupled sequential glancing distillation (CSGD)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from specwb.models.eagle import eagle_config
from specwb.models.falcon import ALIGNS, FUSIONS, LARGEST, FalconHead
from specwb.training.recipe import Moment, Predictions, Recipe, TargetOutputs
from specwb.training.settings import count, number, word


def glance_mask(count: Tensor, pairs: int, k: int, block_order: Tensor, lengths: Tensor) -> Tensor:
    """Chooses which pairs of a text in blocks of k are replaced by the pairs they are to predict.

    ``count`` of them are, or all that can be. Blocks are taken in random order, and of each the
    first 1..k-1 pairs (never the last, which would see nothing new); the last block's prefix is cut
    so that exactly ``count`` pairs are replaced.

    Args:
        count: ``[B]``, how many pairs are replaced.
        pairs: how many pairs there are.
        k: the length of a block.
        block_order: ``[B, blocks]`` uniforms that order the blocks. Blocks behind those that it is
            given for are not replaced.
        lengths: ``[B, blocks]`` uniforms for the lengths of prefixes.

    Returns:
        ``[B, pairs]``, true where a pair is replaced.
    """
    mask = torch.zeros(len(count), pairs, dtype=torch.bool, device=count.device)
    if k == 1:
        return mask
    order = block_order.argsort(-1)
    full_length = 1 + (lengths * (k - 1)).long().clamp_max(k - 2)
    # in the order of the blocks: as many pairs as are still to be replaced, at most a prefix
    in_order = full_length.gather(-1, order)
    taken_before = in_order.cumsum(-1) - in_order
    taken = torch.minimum((count[:, None] - taken_before).clamp_min(0), in_order)
    length = torch.zeros_like(in_order).scatter_(-1, order, taken)
    chosen = (torch.arange(k, device=count.device) < length[:, :, None]).flatten(1)
    mask[:, : chosen.shape[1]] = chosen
    return mask


class FalconRecipe(Recipe):
    """A block head, trained by glancing at what it is to predict.

    A first pass without gradient counts ``d``, the positions with a loss where its best token is
    not the target's. ``N = lambda d`` pairs are then replaced by the pairs they are to predict, and
    the pass with gradient sees those. lambda falls linearly from ``glance`` to ``glance_end`` over
    the run. The prediction of a replaced pair is not counted (its answer lies before it), unless
    ``count_glanced``.

    Settings:
        k: the length of a block.
        layers, ffn, fusion: the head's; ffn=0 is the target's.
        unroll: passes trained, the second and later ones on the head's own states, as EAGLE's are;
            1 is the published training.
        regression: the weight of SmoothL1.
        hard: the share of the target's best token in what is learnt.
        vocabulary: how many words it drafts, the training text's most frequent tokens; 0 is all.
        noise: the range of uniform noise on features, times 512 / length.
        glance, glance_end: lambda at both ends of the run; glance=0 is without CSGD.
        count_glanced: 1 counts the predictions of replaced pairs.
        align: where a head's blocks end when drafting; training is the same.

    Source: Falcon (arXiv 2412.12639) 3.2, its code, GLAT (Qian et al. 2021) for what is counted.
    Differs from them in: lambda's ends are the paper's, not the code's .45 and .1; prefixes lie on
    the mask's blocks, counted or not, where the code takes every k-th counted position; replaced
    pairs are not counted; the hard label is the target's best token, where the code draws one; no
    temperature in the target's distribution; its cross-entropy weighs 1 where the paper has 0.1;
    blocks begin at a random position of the row; more than one pass is trained, and what hangs
    below a block that glanced is not counted there; all positions are counted but those of a user's
    turns; the last block of a row never glances; no noise on features unless asked for (the paper's
    range is 0.1). The loss is a mean over all positions, so what is left out weakens the step.
    Optimisers, rates and clipping are the common loop's.
    """

    name = "falcon"
    options = {  # noqa: RUF012
        "k": count(2, high=LARGEST),
        "layers": count(2),
        "ffn": count(0),
        "fusion": word(*FUSIONS),
        "align": word(*ALIGNS),
        "unroll": count(2),
        "regression": number(1.0),
        "hard": number(0.1, "[0, 1]"),
        "noise": number(0.0),
        "vocabulary": count(0),
        "glance": number(0.4, "[0, 1]"),
        "glance_end": number(0.0, "[0, 1]"),
        "count_glanced": count(0),
    }
    measured_levels = 8
    training = {**Recipe.training, "lr": 3e-3}  # noqa: RUF012

    def setup(self) -> None:
        s = self.settings
        self.regression, self.hard, self.k = s["regression"], s["hard"], s["k"]

    def make(self, words: Tensor | None) -> FalconHead:
        s = self.settings
        config = eagle_config(self.target, s["layers"], s["ffn"])
        hidden = self.target.backbone.config.hidden_size
        head = FalconHead(config, hidden, self.k, s["fusion"], s["align"], words=words)
        weight: Any = head.fc.weight if s["fusion"] == "linear" else head.lstm.weight_ih_l0
        self.balance(weight)
        return head

    def adam_matrices(self, head: FalconHead) -> set[str]:
        # an LSTM's matrices are four gates', on top of each other
        return {name for name, _ in head.named_parameters() if name.startswith("lstm.")}

    def min_tokens(self) -> int:
        # an offset of k - 1, a block for every pass, and a block to be predicted; the first block's
        # predictions are for k positions further
        return max(self.measured_levels + self.k, (self.settings["unroll"] + 2) * self.k)

    def ratio(self, progress: float) -> float:
        first, last = self.settings["glance"], self.settings["glance_end"]
        return first + (last - first) * progress

    def stride(self, head: FalconHead) -> int:
        return head.k

    def levels(
        self, head: FalconHead, outputs: TargetOutputs, depth: int | None = None, offset: int = 0
    ) -> Iterator[Predictions]:
        # as in training, ``offset`` of the text's first pairs are left out
        k, output = head.k, head.output(self.target.backbone.lm_head)
        depth = depth or k * self.settings["unroll"]
        length = outputs.ids.shape[1] - offset
        embedded, features = outputs.embedded[:, 1 + offset :], outputs.features[:, offset:-1]
        pairs = _full_blocks(k, embedded, features)
        unrolled = head.unroll(*pairs, -(-depth // k))
        d = 0
        for step, hidden in enumerate(unrolled):
            for j in range(min(k, depth - d)):
                first = step * k + j
                # the last block predicts beyond the text
                in_text = len(range(first + k, length, k))
                states = hidden[:, first::k][:, :in_text]
                yield Predictions(head.last(states), output, offset + first + k, states, k)
                d += 1

    def training_levels(
        self, head: FalconHead, outputs: TargetOutputs, moment: Moment
    ) -> Iterator[Predictions]:
        k, s, output = head.k, self.settings, head.output(self.target.backbone.lm_head)
        # blocks begin at a random position: some of the first pairs are left out
        offset = int(moment.number(0) * k)
        embedded = outputs.embedded[:, 1 + offset :]
        features = moment.with_noise(outputs.features, s["noise"])[:, offset:-1]
        in_text = embedded.shape[1] - k + 1  # pairs whose predictions are for positions of the text
        pairs = _full_blocks(k, embedded, features)
        replaced_pairs, weights = None, None
        if s["glance"] or s["glance_end"]:
            mask = self.choose(head, outputs, moment, pairs, offset, in_text)
            answers = embedded, outputs.features[:, offset:-1]
            replaced_pairs = self._replace(mask, pairs, answers)
            weights = None if s["count_glanced"] else ~mask
        for step, hidden in enumerate(head.unroll(*pairs, s["unroll"], replaced_pairs)):
            first = step * k
            states = hidden[:, first:in_text]
            level_weights = None if weights is None else weights[:, first:in_text]
            start = offset + k + first
            yield Predictions(head.last(states), output, start, states, 1, level_weights)
            if weights is not None:
                weights = self._below(weights)

    def _replace(
        self, mask: Tensor, pairs: tuple[Tensor, Tensor], answers: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Replaces embeddings and features of the pairs in ``mask [B, m]`` by those k positions
        further, which are in ``answers`` (of all pairs of the text, without noise)."""
        m = mask.shape[1]

        def later(x: Tensor) -> Tensor:
            return torch.cat([x[:, self.k :], x[:, : self.k]], 1)[:, :m]

        embedded, features = (
            torch.where(mask[:, :, None], later(new), old)
            for old, new in zip(pairs, answers, strict=True)
        )
        return embedded, features

    def _below(self, weights: Tensor) -> Tensor:
        """Returns what counts one pass below.

        Below a block that glanced nothing does: its states are not those a draft would have.
        """
        k = self.k
        blocks = weights.view(len(weights), -1, k).all(-1, keepdim=True)
        unglanced = blocks.expand(-1, -1, k).flatten(1)
        return torch.cat([torch.ones_like(unglanced[:, :k]), unglanced[:, :-k]], 1)

    @torch.no_grad()
    def choose(
        self,
        head: FalconHead,
        outputs: TargetOutputs,
        moment: Moment,
        pairs: tuple[Tensor, Tensor],
        offset: int,
        in_text: int,
    ) -> Tensor:
        """``[B, m]``, which of m pairs (embeddings and features, in whole blocks) glance in this
        step.

        ``offset`` of the text's first pairs are left out; ``in_text`` pairs predict positions of
        it."""
        k, m = head.k, pairs[0].shape[1]
        hidden = next(head.unroll(*pairs, 1))[:, :in_text]
        output = head.output(self.target.backbone.lm_head)
        level, wanted = (
            Predictions(head.last(hidden), output, offset + k),
            outputs.wanted(head.words),
        )
        wrong = level.best != level.select(wanted.place)
        mistakes = (wrong * level.counts(outputs, wanted)).sum(-1)
        count = (self.ratio(moment.progress) * mistakes).long()
        blocks = (in_text - 1) // k  # those whose replacements are pairs of the text
        order, lengths = (
            moment.uniforms(m // k, stream, mistakes.device)[:, :blocks] for stream in (2, 3)
        )
        return glance_mask(count, m, k, order, lengths)


def _full_blocks(k: int, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Cuts both to a multiple of k pairs."""
    m = embedded.shape[1] // k * k
    return embedded[:, :m], features[:, :m]
