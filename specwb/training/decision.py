"""The decision models' recipe: what a draft's state says about whether its next token will be accepted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.models.decision import KINDS, DecisionModel
from specwb.models.load import draft_model
from specwb.models.target import Target
from specwb.probability import inverse_cdf
from specwb.training import corpus as text
from specwb.training.recipe import Found, Moment, Recipe


class DecisionRecipe(Recipe):
    """Both nets at once, over the target's own draft model, by binary cross-entropy. At every place of a text the draft's law q is made; the soft
    net's label is ``min(1, p(x) / q(x))`` of a token x drawn from q, so that what it says tends to ``sum min(p, q)``; the hard net's is 1
    where both models' best tokens agree.

    ``rank``: share of held-out places where the soft net's guess is on the right side of one half, x drawn; ``soft`` and ``hard``: for each net
    its loss, that of the mean label in its place, and the area under its ROC curve (of the soft net's, against "accepted" decided by a draw).

    Source: Lu et al. 2024, arXiv 2409.10644, and its code. Differs from them in: places along texts, instead of one drafted level below ten of the
    target's tokens; hard labels really are greedy and are not balanced; the common loop's optimisers.
    """

    name = "decision"
    measured = 1
    lr_matrix, lr_other = 2e-3, 2e-3

    def __init__(self, target: Target, settings: dict[str, Any]) -> None:
        super().__init__(target, {**self.usual(), **settings})
        self.draft = draft_model(target, None)

    def begun_from(self) -> str:
        return f"beside draft {self.draft.fingerprint}"

    def make(self, data: text.Corpus, mixture: dict[str, float]) -> DecisionModel:
        return DecisionModel(self.draft.backbone.config.hidden_size)

    def least(self) -> int:
        return 1

    def save(self, head: DecisionModel, folder: Any, card: dict[str, Any]) -> None:
        head.save(folder, {**card, "draft": self.draft.name, "draft_sha256": self.draft.sha256})

    @torch.no_grad()
    def places(self, found: Found, uniforms: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The draft's logits and states after the final norm, and each net's labels ``[B,L]``; ``uniforms [B,L]`` draw the tokens."""
        normed = self.draft.model.model(input_ids=found.ids, use_cache=False).last_hidden_state
        logits = self.draft.model.lm_head(normed).float()
        p, q = found.logits.softmax(-1), logits.softmax(-1)
        x = inverse_cdf(q, uniforms)[..., None]
        ratio = (p.gather(-1, x) / q.gather(-1, x).clamp_min(1e-30)).squeeze(-1).clamp_max(1)
        return logits, normed.float(), {"soft": ratio, "hard": (p.argmax(-1) == q.argmax(-1)).float()}

    def loss(self, head: DecisionModel, found: Found, moment: Moment) -> Tensor:
        logits, normed, labels = self.places(found, moment.uniforms(found.ids.shape[1], 0, found.ids.device).double())
        return sum((F.binary_cross_entropy_with_logits(head(kind, logits, normed), labels[kind]) for kind in KINDS), torch.zeros(()))

    def measure(self, head: DecisionModel, found: Found) -> dict[str, Any]:
        u = torch.rand(2, *found.ids.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(found.ids.device)
        logits, normed, labels = self.places(found, u[0])
        out: dict[str, Any] = {}
        for kind in KINDS:
            said, label = head(kind, logits, normed), labels[kind]
            mean = label.mean().expand_as(label)
            came = label > u[1]  # of the hard net the label itself
            out[kind] = [
                round(float(F.binary_cross_entropy_with_logits(said, label)), 4), round(float(F.binary_cross_entropy(mean, label)), 4),
                round(area(said[came], said[~came]), 4),
            ]  # fmt: skip
            if kind == "soft":
                out["rank"] = [[round(float(((said > 0) == came).float().mean()), 4)]]
        return out


def area(yes: Tensor, no: Tensor) -> float:
    """Under the ROC curve: how likely a score of ``yes`` is to be above one of ``no``, halves for equal ones; .5 where either is empty."""
    if not len(yes) or not len(no):
        return 0.5
    order = no.sort().values
    below, upto = torch.searchsorted(order, yes), torch.searchsorted(order, yes, right=True)
    return float((below + upto).double().mean()) / (2 * len(no))
