"""The decision models' recipe: will a draft's next token be accepted, given the draft's state?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.probability import inverse_cdf
from specwb.models.decision import KINDS, DecisionModel
from specwb.models.load import draft_model
from specwb.training.recipe import Moment, Recipe, TargetOutputs


class DecisionRecipe(Recipe):
    """Trains both nets at once, over the target's own draft model, by binary cross-entropy.

    At every position of a text the draft's distribution q is computed. The soft net's label is
    ``min(1, p(x) / q(x))`` of a token x drawn from q, so that its output tends to
    ``sum min(p, q)``. The hard net's label is 1 where both models' best tokens agree.

    Measured are ``rank``, the share of held-out positions where the soft net's guess is on the
    right side of one half, x drawn; and for each net, ``soft`` and ``hard``: its loss, the loss of
    the mean label in its place, and the area under its ROC curve (of the soft net's, against
    "accepted" decided by a draw).

    Source: Lu et al. 2024, arXiv 2409.10644, and its code. Differs from them in: positions along
    texts, instead of one drafted level below ten of the target's tokens; hard labels really are
    greedy and are not balanced; the common loop's optimisers.
    """

    name = "decision"
    measured_levels = 1
    own_loss = True
    training = {**Recipe.training, "lr": 2e-3, "lr_matrix": 2e-3}  # noqa: RUF012

    def setup(self) -> None:
        self.draft = draft_model(self.target, None)

    def initial_weights(self) -> str:
        return f"beside draft {self.draft.fingerprint}"

    def make(self, words: Tensor | None) -> DecisionModel:
        return DecisionModel(self.draft.backbone.config.hidden_size)

    def min_tokens(self) -> int:
        return 1

    def save(self, head: DecisionModel, folder: Any, card: dict[str, Any]) -> None:
        draft = {"draft": self.draft.name, "draft_sha256": self.draft.sha256}
        head.save(folder, {**card, **draft})

    @torch.no_grad()
    def inputs(
        self, outputs: TargetOutputs, uniforms: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The draft's logits ``[B, L, V]`` (or of its words), its states after the final norm ``[B,
        L, H]``, and each net's labels ``[B, L]``; ``uniforms [B, L]`` draw the tokens."""
        inner, _ = self.draft.decoder
        normed = inner(input_ids=outputs.ids, use_cache=False).last_hidden_state
        logits = self.draft.backbone.called_head(normed).float()
        p, q, best = outputs.logits.softmax(-1), logits.softmax(-1), logits.argmax(-1)
        targets_best = p.argmax(-1)
        if (words := self.draft.words) is not None:
            p, best = p[..., words], words[best]
        x = inverse_cdf(q, uniforms)[..., None]
        ratio = p.gather(-1, x) / q.gather(-1, x).clamp_min(1e-30)
        agree = targets_best == best
        labels = {"soft": ratio.squeeze(-1).clamp_max(1), "hard": agree.float()}
        return logits, normed.float(), labels

    def loss(self, head: DecisionModel, outputs: TargetOutputs, moment: Moment) -> Tensor:
        ids = outputs.ids
        uniforms = moment.uniforms(ids.shape[1], 0, ids.device).double()
        logits, normed, labels = self.inputs(outputs, uniforms)
        total = torch.zeros(())
        for kind in KINDS:
            prediction = head(kind, logits, normed)
            weight = None if outputs.counted is None else outputs.counted.float()
            total = total + F.binary_cross_entropy_with_logits(prediction, labels[kind], weight)
        return total

    def measure(self, head: DecisionModel, outputs: TargetOutputs) -> dict[str, Any]:
        ids, generator = outputs.ids, torch.Generator().manual_seed(0)
        u = torch.rand(2, *ids.shape, generator=generator, dtype=torch.float64).to(ids.device)
        logits, normed, labels = self.inputs(outputs, u[0])
        measurements: dict[str, Any] = {}
        every = torch.ones_like(ids, dtype=torch.bool)
        counted = every if outputs.counted is None else outputs.counted
        for kind in KINDS:
            prediction, label = head(kind, logits, normed)[counted], labels[kind][counted]
            mean = label.mean().expand_as(label)
            accepted = label > u[1][counted]  # of the hard net the label itself
            measurements[kind] = [
                round(float(F.binary_cross_entropy_with_logits(prediction, label)), 4),
                round(float(F.binary_cross_entropy(mean, label)), 4),
                round(area(prediction[accepted], prediction[~accepted]), 4),
            ]
            if kind == "soft":
                is_right = (prediction > 0) == accepted
                measurements["rank"] = [[round(float(is_right.float().mean()), 4)]]
        return measurements


def area(yes: Tensor, no: Tensor) -> float:
    """The area under the ROC curve: how likely a score of ``yes`` is to be above one of ``no``,
    equal ones counting half; .5 where either is empty."""
    if not len(yes) or not len(no):
        return 0.5
    order = no.sort().values
    below = torch.searchsorted(order, yes)
    up_to = torch.searchsorted(order, yes, right=True)
    return float((below + up_to).double().mean()) / (2 * len(no))
