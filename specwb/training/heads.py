"""What is learnt and measured of a head over a frozen target; :mod:`specwb.training.run` trains it.

A recipe says what the module is and what it predicts; the rest is the same for all. The target's
hidden states are computed on the fly, from text read or text the target wrote. A head learns the
target's own distribution at every position, level by level:
``sum_j level_decay^j (loss(p, q_j) + regression SmoothL1(h_j, f))``, with a loss of
:mod:`specwb.training.losses`.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
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
from specwb.training.losses import loss_by_position, output_loss
from specwb.training.recipe import (
    DraftRecipe,
    Eagle3Recipe,
    EagleRecipe,
    KangarooRecipe,
    MedusaRecipe,
    Moment,
    Predictions,
    Recipe,
    TargetOutputs,
    Wanted,
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
        DraftRecipe,
        DecisionRecipe,
        DeepRecipe,
    )
}


@torch.no_grad()
def target_outputs(
    target: Target, ids: Tensor, features: tuple[int, ...], fast: bool = True
) -> TargetOutputs:
    """What the frozen target computes from texts ``ids [B, L]``, by the library's own forward.

    ``features`` are the hidden states that a head reads, numbered as in
    :mod:`specwb.models.backbone`; ``fast``: in bfloat16 where the processor has it."""
    inner, modules = target.decoder
    states: dict[int, Tensor] = {}
    hooks = [
        modules[i - 1].register_forward_hook(_store(states, i))
        for i in sorted({i for i in features if i > 0})
    ]
    try:
        with autocast(ids.device) if fast else nullcontext():
            normed = inner(input_ids=ids, use_cache=False).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    states |= {0: target.backbone.embed(ids), -1: normed}
    read = torch.cat([states[i] for i in features], -1) if features else normed[:, :, :0]
    head = partial(_logits, target, normed.dtype, fast)
    return TargetOutputs(ids, states[0].float(), read.float(), normed.float(), head)


@torch.no_grad()
def _logits(target: Target, dtype: torch.dtype, fast: bool, normed: Tensor) -> Tensor:
    """``[.., H] -> [.., V]``, in the number type that the target computes in."""
    with autocast(normed.device) if fast else nullcontext():
        return target.backbone.called_head(normed.to(dtype))


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
    """The loss of one training step, a mean over the positions of the rows in ``outputs``; the
    module has its formula."""
    own_loss = recipe.loss(head, outputs, moment)
    if own_loss is not None:
        return own_loss
    wanted = outputs.wanted(recipe.words(head))
    total, scale = torch.zeros((), device=outputs.ids.device), 1.0
    for level in recipe.training_levels(head, outputs, moment):
        counts = level.counts(outputs, wanted)
        # a mean over all positions, so that the mean over parts of a batch is that over the batch
        share = counts / counts.numel()
        part = partial(_part, recipe, objective, level, outputs, wanted, counts)
        is_targets = level.output is recipe.target.backbone.lm_head
        value = output_loss(level.states, level.output, share, part, frozen=is_targets)
        if recipe.regression and level.hidden is not None:
            normed = level.select(outputs.normed)
            distance = F.smooth_l1_loss(level.hidden.float(), normed, reduction="none").mean(-1)
            value = value + recipe.regression * (distance * share).sum()
        total = total + scale * value
        scale *= objective.level_decay
    return total


def _part(
    recipe: Recipe,
    objective: Objective,
    level: Predictions,
    outputs: TargetOutputs,
    wanted: Wanted,
    counts: Tensor,
    logits: Tensor,
    rows: Tensor,
    places: Tensor,
) -> Tensor:
    """Returns ``[n]``, what a part of a level's predictions costs."""

    def at(values: Tensor | None) -> Tensor | None:
        return None if values is None else level.part(values, rows, places)

    p, mass = at(wanted.p), at(wanted.mass)
    assert p is not None
    p = p.float()
    tokens = at(outputs.following)
    if tokens is not None and wanted.number is not None:
        tokens = wanted.number[tokens]  # -1 is not learnt
    if recipe.hard:
        # where the best token is none of the words, nothing is learnt
        best = level.part(wanted.place, rows, places).clamp_min(0)[..., None]
        p = (1 - recipe.hard) * p + torch.zeros_like(p).scatter_(-1, best, recipe.hard)
    if level.labels is not None:
        # where a token is learnt, its distribution is all on it
        labels = level.labels[rows, places]
        if wanted.number is not None:
            labels = torch.where(labels >= 0, wanted.number[labels], labels)
        is_token = (labels >= 0)[..., None]
        point = torch.zeros_like(p).scatter_(-1, labels.clamp_min(0)[..., None], 1.0)
        p = torch.where(is_token, point, p)
        mass = None if mass is None else torch.where(labels >= 0, 1.0, mass)
        if tokens is not None:
            tokens = torch.where(labels >= 0, labels, tokens)
    share, eta = counts[rows, places], objective.lk_eta
    return loss_by_position(objective.loss, logits, p, mass, tokens, eta, share)


@torch.no_grad()
def measure(
    recipe: Recipe, head: Any, windows: Tensor, counted: Tensor | None = None
) -> dict[str, list]:
    """Measures how well a head predicts held-out text, by depth.

    The text before each position is that of its window.

    Args:
        recipe: the head's recipe.
        head: the head.
        windows: ``[B, L]``, the text.
        counted: ``[B, L]``, the positions that are measured, default all.

    Returns:
        ``rank [depth][RANKS]``: the share of them where the target's best token is the head's
        r-th; ``sampled [depth]``: the mean of sum min(p, q) at T = 1. A recipe with a measurement
        of its own gives that.
    """
    was_training = head.training
    head.eval()
    outputs = target_outputs(recipe.target, windows, head.features)
    outputs.counted = counted
    measurements = recipe.measure(head, outputs)
    if measurements is None:
        measurements = _measure_levels(recipe, head, outputs)
    head.train(was_training)
    return measurements


def _measure_levels(recipe: Recipe, head: Any, outputs: TargetOutputs) -> dict[str, list]:
    words = recipe.words(head)
    wanted, ranks, sampled = outputs.wanted(words), [], []
    for level in recipe.levels(head, outputs, recipe.measured_levels):
        logits = level.logits.float()
        top = logits.topk(min(RANKS, logits.shape[-1]), -1).indices
        top = top if words is None else words[top]
        hits = top == level.select(wanted.best)[:, :, None]
        counted = outputs.counted
        chosen = torch.ones_like(hits[..., 0]) if counted is None else level.select(counted)
        count = chosen.sum().clamp_min(1)
        ranks.append([round(float(x), 4) for x in hits[chosen].sum(0) / count])
        p = level.select(wanted.p).float()
        if wanted.mass is not None:  # what is none of the words is never accepted
            p = p * level.select(wanted.mass)[..., None]
        overlap = torch.minimum(p, logits.softmax(-1)).sum(-1)
        sampled.append(round(float(overlap[chosen].sum() / count), 4))
    return {"rank": ranks, "sampled": sampled}
