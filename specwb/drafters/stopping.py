"""The drafter's confidence in its draft, in [0, 1], which early stopping compares with a threshold.

Each confidence is a function of the draft so far and of the drafter's own states. So the decision
to draft the next level does not depend on its tokens, which keeps the output's distribution
(theorem 12.2); leaving out a token because of its value would not.
"""

from __future__ import annotations

from torch import Tensor

from specwb.core.probability import Sampling, entropy
from specwb.models.backbone import Backbone
from specwb.models.decision import DecisionModel
from specwb.models.layers import rms


class Confidence:
    """The confidence of the most certain node of a level; drafting continues if any node passes the
    threshold."""

    def of(self, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
        """``[B]`` in [0, 1], from the ``logits [B,m,V]`` of the m nodes that have children (or of
        the drafter's words), the states ``hidden [B,m,H]`` that they came from, before the last
        norm, and the places ``tokens [B,n]`` in ``logits`` of the tokens drawn from them."""
        raise NotImplementedError


class Top(Confidence):
    """The largest probability at temperature 1, whatever the decoding's temperature: at T < 1
    scaled probabilities overstate it. ``scaled``, the paper's comparison, takes it at the
    decoding's temperature and filters. Source: Kangaroo (arXiv 2404.18911)."""

    def __init__(self, scaled: bool = False) -> None:
        self.scaled = scaled

    def of(self, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
        if self.scaled:
            return sampling.for_confidence.probabilities(logits).amax((1, 2))
        logits = logits.float()
        return (logits.amax(-1) - logits.logsumexp(-1)).exp().amax(1)


class TokenProbability(Confidence):
    """For a chain, q(x) of the draft token x itself, at the decoding's temperature and filters.

    This is the transformers library's criterion.
    """

    def of(self, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
        q = sampling.for_confidence.probabilities(logits[:, 0])
        return q.gather(1, tokens).squeeze(1)


class Entropy(Confidence):
    """``exp(-H(q))`` at temperature 1: the inverse of the number of equally likely tokens with the
    same entropy."""

    def of(self, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
        return (-entropy(logits.float().log_softmax(-1))).exp().amax(1)


class DecisionConfidence(Confidence):
    """A trained model's estimate that a token drafted here is accepted, from its soft or hard net
    (``kind``) on the states of the draft model.

    Source: Lu et al. 2024 (arXiv 2409.10644): continue if any score is above the threshold.
    """

    def __init__(self, model: DecisionModel, kind: str, draft: Backbone) -> None:
        self.model, self.kind, self.draft = model, kind, draft

    def of(self, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
        return self.model(self.kind, logits, rms(hidden, self.draft.norm)).sigmoid().amax(1)
