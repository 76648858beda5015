"""What a prediction costs: the losses that every head's training can choose from.

At every position the target's distribution is p, the head's is q, and alpha = sum min(p, q) is the
probability that a token drawn from q is accepted. Then ``1 - alpha`` is the total variation
distance of p and q.

=========  ===================================  ====================================================
``kl``     KL(p || q)                           the default where a recipe says nothing
``rkl``    KL(q || p)                           prefers tokens that p surely has
``tv``     1 - alpha                            itself what is lost at T = 1
``nla``    -log alpha                           its gradient is that of ``tv``, divided by alpha
``lk``     w KL(p || q) + (1 - w) (1 - alpha)   w = exp(-eta alpha): ``kl`` while little is accepted
``best``   -log q(argmax p)                     what is accepted at T = 0
``token``  -log q(the text's next token)        hard labels, as Medusa-1's
=========  ===================================  ====================================================

KL(p || q) is computed up to the entropy of p, as the cross-entropy ``-sum p log q``.

Source: Samarin et al. 2602.23881 for ``nla`` and ``lk``, whose alpha in w is a mean over the batch
(here over what is computed at once) at one depth of the draft; eta = 3 is theirs for EAGLE-3's
heads.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

LOSSES = ("kl", "rkl", "tv", "nla", "lk", "best", "token")
LEAST = 1e-20  # below it probabilities are taken for it where their logarithm is needed


def loss_by_position(
    loss: str,
    logits: Tensor,
    p: Tensor,
    mass: Tensor | None = None,
    tokens: Tensor | None = None,
    eta: float = 3.0,
    counts: Tensor | None = None,
) -> Tensor:
    """Computes ``[B, m]``, the loss of every prediction.

    Args:
        loss: one of ``LOSSES``.
        logits: ``[B, m, V]``, those of q.
        p: ``[B, m, V]``, the target's distribution over the head's vocabulary, which sums to 1.
        mass: ``[B, m]``, how much of the target's distribution that vocabulary has; None for all of
            it. What it has not is never accepted, so that alpha is at most that.
        tokens: ``[B, m]``, the text's next tokens as the head numbers them, for ``token``; -1 where
            it has none, which costs nothing.
        eta: of ``lk``.
        counts: ``[B, m]``, how much each prediction counts in the mean that ``lk`` takes of alpha;
            None for all alike.
    """
    logits = logits.float()
    if loss in ("best", "token"):
        label = p.argmax(-1) if loss == "best" else tokens
        assert label is not None
        return _cross_entropy(logits, label)
    if loss == "kl":
        return _cross_entropy(logits, p)
    logq = logits.log_softmax(-1)
    q = logq.exp()
    if loss == "rkl":
        return (q * (logq - p.clamp_min(LEAST).log())).sum(-1)
    alpha = torch.minimum(p if mass is None else p * mass[..., None], q).sum(-1)
    if loss == "tv":
        return 1 - alpha
    if loss == "nla":
        return -alpha.clamp_min(LEAST).log()
    # sums and not torch.linalg.vecdot, which autocast would compute in bfloat16
    share = torch.ones_like(alpha) if counts is None else counts.to(alpha.dtype)
    mean = (alpha.detach() * share).sum() / share.sum().clamp_min(LEAST)
    weight = torch.exp(-eta * mean)
    return -weight * (p * logq).sum(-1) + (1 - weight) * (1 - alpha)


def _cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """``[B, m]``: with a token ``[B, m]``, or with a distribution ``[B, m, V]``."""
    flat = logits.flatten(0, 1), label.flatten(0, 1)
    values = F.cross_entropy(*flat, reduction="none", ignore_index=-1)
    return values.view(logits.shape[:2])
