"""How sure a drafter is of what it has drafted, in [0, 1]: early stopping compares it with a
threshold.

Each is a function of what has been drafted and of the drafter's own states. The next level is then
drafted or not whatever its tokens will turn out to be, which keeps the output's distribution
(theory 12.2); leaving out a token because of what it is would not.
"""

from __future__ import annotations

from torch import Tensor

from specwb.models.backbone import Backbone
from specwb.models.decision import DecisionModel
from specwb.models.layers import rms
from specwb.probability import Sampling, entropy


class Confidence:
    """How sure the surest node of a level is; a level follows if any passes the threshold."""

    def of(self, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
        """How sure each row is.

        Args:
            logits: ``[B,m,V]`` of the m nodes that have children, or of the drafter's words.
            hidden: ``[B,m,H]`` the states that they came from, before the last norm.
            tokens: ``[B,n]`` where in ``logits`` the tokens drawn from them are.
            sampling: temperature and filters of the decoding.

        Returns:
            ``[B]``, in [0, 1].
        """
        raise NotImplementedError


class Top(Confidence):
    """The largest probability at temperature 1, whatever the decoding's temperature: at T < 1
    scaled probabilities overstate it.

    Args:
        scaled: take it at the decoding's temperature and filters instead; the paper's comparison.

    Source: Kangaroo (arXiv 2404.18911).
    """

    def __init__(self, scaled: bool = False) -> None:
        self.scaled = scaled

    def of(self, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
        if self.scaled:
            return sampling.for_confidence.probabilities(logits).amax((1, 2))
        logits = logits.float()
        return (logits.amax(-1) - logits.logsumexp(-1)).exp().amax(1)


class Drafted(Confidence):
    """Of a chain, q(x) of the draft token x itself, at the decoding's temperature and filters.

    It is the transformers library's.
    """

    def of(self, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
        q = sampling.for_confidence.probabilities(logits[:, 0])
        return q.gather(1, tokens).squeeze(1)


class Entropy(Confidence):
    """``exp(-H(q))`` at temperature 1.

    It is the inverse of the number of equally likely tokens that would be as unsure.
    """

    def of(self, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
        return (-entropy(logits.float().log_softmax(-1))).exp().amax(1)


class Decision(Confidence):
    """A trained model's guess that a token drafted here is accepted.

    Args:
        model: see :class:`specwb.models.decision.DecisionModel`.
        kind: its soft or its hard net.
        draft: the draft model whose states it reads.

    Source: Lu et al. 2024 (arXiv 2409.10644): go on if any score is above the threshold.
    """

    def __init__(self, model: DecisionModel, kind: str, draft: Backbone) -> None:
        self.model, self.kind, self.draft = model, kind, draft

    def of(self, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
        return self.model(self.kind, logits, rms(hidden, self.draft.norm)).sigmoid().amax(1)
