"""What is learnt and measured of a head over a frozen target; :mod:`specwb.training.run` trains it.

A recipe says what the module is and what it predicts; the rest is the same for all. The target's
hidden states are computed on the fly, from text read or text the target wrote. A head learns the
target's own distribution at every position, level by level:
``sum_j level_decay^j (loss(p, q_j) + regression SmoothL1(h_j, f))``, with a loss of
:mod:`specwb.training.losses`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specwb.models.target import Target
from specwb.training.decision import DecisionRecipe
from specwb.training.deep import DeepRecipe
from specwb.training.diffusion import DiffusionRecipe
from specwb.training.falcon import FalconRecipe
from specwb.training.fit import autocast
from specwb.training.losses import loss_by_position
from specwb.training.recipe import (
    Eagle3Recipe,
    EagleRecipe,
    KangarooRecipe,
    Level,
    MedusaRecipe,
    Moment,
    Recipe,
    TargetOutputs,
)
from specwb.training.settings import Objective

RANKS = 10  # how far down a drafter's list the measurement looks

RECIPES: dict[str, type[Recipe]] = {
    kind.name: kind
    for kind in (
        MedusaRecipe,
        EagleRecipe,
        Eagle3Recipe,
        FalconRecipe,
        DiffusionRecipe,
        KangarooRecipe,
        DecisionRecipe,
        DeepRecipe,
    )
}


@torch.no_grad()
def target_outputs(target: Target, ids: Tensor, features: tuple[int, ...]) -> TargetOutputs:
    """Runs the frozen target over a text, by the library's own forward.

    Args:
        target: the target.
        ids: ``[B, L]``.
        features: the layer numbers of the hidden states that a head reads, as in
            :mod:`specwb.models.backbone`.
    """
    inner, layers = target.decoder
    by_layer: dict[int, Tensor] = {}
    hooks = [layers[i - 1].register_forward_hook(_store(by_layer, i)) for i in features if i > 0]
    try:
        with autocast(ids.device):
            normed = inner(input_ids=ids, use_cache=False).last_hidden_state
            logits = target.backbone.called_head(normed)
    finally:
        for hook in hooks:
            hook.remove()
    embedded = target.backbone.embed(ids)
    states = {**by_layer, 0: embedded, -1: normed}
    chosen = torch.cat([states[i] for i in features], -1) if features else embedded[:, :, :0]
    return TargetOutputs(ids, embedded, chosen.float(), normed.float(), logits.float())


def _store(by_layer: dict[int, Tensor], i: int) -> Any:
    """Returns a hook that stores a layer's output under its number."""

    def hook(module: nn.Module, args: Any, out: Any) -> None:
        by_layer[i] = out[0] if isinstance(out, tuple) else out

    return hook


def step_loss(
    recipe: Recipe,
    head: Any,
    outputs: TargetOutputs,
    moment: Moment,
    objective: Objective = Objective(),  # noqa: B008
) -> Tensor:
    """Computes the loss of one training step; the module has its formula.

    It is a mean over the positions of the rows in ``outputs``.

    Args:
        recipe: the head's recipe.
        head: the head.
        outputs: what the target computes from this process' rows of the batch.
        moment: the step.
        objective: what a prediction costs.
    """
    own_loss = recipe.loss(head, outputs, moment)
    if own_loss is not None:
        return own_loss
    wanted = _Wanted(recipe, head, outputs)
    total, scale = torch.zeros((), device=outputs.logits.device), 1.0
    for level in recipe.training_levels(head, outputs, moment):
        counts = wanted.counts(level)
        value = wanted.loss(level, objective, counts)
        if recipe.regression and level.hidden is not None:
            normed = level.select(outputs.normed)
            distance = F.smooth_l1_loss(level.hidden.float(), normed, reduction="none").mean(-1)
            value = value + recipe.regression * distance
        if counts is not None:
            value = value * counts
        # a mean over all positions, so that the mean over parts of a batch is that over the batch
        total = total + scale * value.mean()
        scale *= objective.level_decay
    return total


class _Wanted:
    """What a head is to learn at every position of a batch, in the head's own vocabulary.

    Attributes:
        p: ``[B, L, V']``, a distribution.
        mass: ``[B, L]``, how much of the target's distribution that vocabulary has, None for all.
        tokens: ``[B, L]``, the text's next tokens as the head numbers them, None where not known.
        learnable: ``[B, L]``, None for all. Where the target's best token is not in the vocabulary
            there is nothing to learn.
        counted: ``[B, L]``, as in :class:`TargetOutputs`.
    """

    def __init__(self, recipe: Recipe, head: Any, outputs: TargetOutputs) -> None:
        ids, full = recipe.ids(head), outputs.logits
        self.counted, self.tokens = outputs.counted, outputs.following
        self.mass = self.learnable = None
        logits = full if ids is None else full[..., ids]
        self.p = logits.softmax(-1)
        if ids is not None:
            self.mass = (logits.logsumexp(-1) - full.logsumexp(-1)).exp()
            self.learnable = torch.isin(full.argmax(-1), ids)
            if self.tokens is not None:
                number = torch.full((full.shape[-1],), -1, device=ids.device)
                number[ids] = torch.arange(len(ids), device=ids.device)
                self.tokens = number[self.tokens]  # -1 is not learnt
        if recipe.hard:
            best = logits.argmax(-1, keepdim=True)
            best = torch.zeros_like(self.p).scatter_(-1, best, recipe.hard)
            self.p = (1 - recipe.hard) * self.p + best

    def at(self, level: Level, name: str) -> Tensor | None:
        """Returns one of the attributes at a level's positions."""
        value = getattr(self, name)
        return None if value is None else level.select(value)

    def counts(self, level: Level) -> Tensor | None:
        """Returns ``[B, m]``, how much a level's predictions count, None for all alike."""
        total = level.weights
        for mask in (self.at(level, "learnable"), self.at(level, "counted")):
            if mask is not None:
                total = mask if total is None else total * mask
        return total

    def loss(self, level: Level, objective: Objective, counts: Tensor | None) -> Tensor:
        """Returns ``[B, m]``, what a level's predictions cost."""
        p, mass, tokens = level.select(self.p), self.at(level, "mass"), self.at(level, "tokens")
        if level.labels is not None:
            # where a token is learnt, its distribution is all on it
            is_token = (level.labels >= 0)[..., None]
            point = torch.zeros_like(p).scatter_(-1, level.labels.clamp_min(0)[..., None], 1.0)
            p = torch.where(is_token, point, p)
            if tokens is not None:
                tokens = torch.where(level.labels >= 0, level.labels, tokens)
        eta = objective.lk_eta
        return loss_by_position(objective.loss, level.logits, p, mass, tokens, eta, counts)


@torch.no_grad()
def measure(recipe: Recipe, head: Any, windows: Tensor) -> dict[str, list]:
    """Measures how well a head predicts held-out text, by depth.

    The text before each position is that of its window.

    Args:
        recipe: the head's recipe.
        head: the head.
        windows: ``[B, L]``, the text.

    Returns:
        ``rank [depth][RANKS]``: the share of positions where the target's best token is the head's
        r-th; ``sampled [depth]``: the mean of sum min(p, q) at T = 1. A recipe with a measurement
        of its own gives that.
    """
    was_training = head.training
    head.eval()
    outputs = target_outputs(recipe.target, windows, head.features)
    measurements = recipe.measure(head, outputs)
    if measurements is None:
        measurements = _measure_levels(recipe, head, outputs)
    head.train(was_training)
    return measurements


def _measure_levels(recipe: Recipe, head: Any, outputs: TargetOutputs) -> dict[str, list]:
    ids = recipe.ids(head)
    best, p = outputs.logits.argmax(-1), outputs.logits.softmax(-1)
    ranks, sampled = [], []
    for level in recipe.levels(head, outputs, recipe.measured_levels):
        top = level.logits.topk(min(RANKS, level.logits.shape[-1]), -1).indices
        q, level_p = level.logits.float().softmax(-1), level.select(p)
        if ids is not None:  # of the head's own vocabulary
            top = ids[top]
            q = torch.zeros_like(level_p).index_copy_(2, ids, q)
        hits = top == level.select(best)[:, :, None]
        ranks.append([round(float(x), 4) for x in hits.float().mean((0, 1))])
        sampled.append(round(float(torch.minimum(level_p, q).sum(-1).mean()), 4))
    return {"rank": ranks, "sampled": sampled}
