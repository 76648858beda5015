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

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LOSSES = ("kl", "rkl", "tv", "nla", "lk", "best", "token")
PART = {"cpu": 1 << 21, "cuda": 1 << 27}
"""Logits of a part of a batch that are computed at once: 8 MB, which a processor's caches hold, or
512 MB, so that a GPU gets few and large kernels."""
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
    """``[..]``, the loss of every prediction.

    Args:
        loss: one of ``LOSSES``.
        logits: ``[.., V]``, those of q.
        p: ``[.., V]``, the target's distribution over the head's vocabulary, which sums to 1.
        mass: ``[..]``, how much of the target's distribution that vocabulary has, None for all;
            what it has not is never accepted, so that alpha is at most that.
        tokens: ``[..]``, the text's next tokens as the head numbers them, for ``token``; -1 where
            it has none, which costs nothing.
        eta: of ``lk``.
        counts: ``[..]``, how much each prediction counts in the mean that ``lk`` takes of alpha.
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
    if mass is None:
        mass = torch.ones_like(logq[..., 0])
    # sum min(a, q) = sum a - sum (a - q)+: relu's gradient takes a third of minimum's time
    alpha = mass - (p * mass[..., None] - q).relu().sum(-1)
    if loss == "tv":
        return 1 - alpha
    if loss == "nla":
        return -alpha.clamp_min(LEAST).log()
    # sums and not torch.linalg.vecdot, which autocast would compute in bfloat16
    share = torch.ones_like(alpha) if counts is None else counts.to(alpha.dtype)
    mean = (alpha.detach() * share).sum() / share.sum().clamp_min(LEAST)
    weight = torch.exp(-eta * mean)
    return -weight * (p * logq).sum(-1) + (1 - weight) * (1 - alpha)


def output_loss(
    states: Tensor,
    output: nn.Linear,
    counts: Tensor,
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    frozen: bool = False,
) -> Tensor:
    """The sum of what an output layer's predictions cost, computed part by part.

    A batch has hundreds of megabytes of logits, which would go through the memory some ten times.
    A part is computed, and its gradients with it, while caches hold it; none is kept. The gradients
    are the same. Predictions that do not count, such as those of what users say, are left out.

    Args:
        states: ``[B, m, H]``, what the layer reads.
        counts: ``[B, m]``, what each prediction's loss is multiplied by.
        loss: takes the logits ``[n, d]`` of n predictions, their rows ``[n]`` and their places
            ``[n]`` among the m; returns ``[n]`` losses.
        frozen: the layer has no gradients, though its weights ask for them.
    """
    weights: list[Tensor | None] = [output.weight, output.bias]
    if frozen:
        weights = [None if x is None else x.detach() for x in weights]
    return _OutputLoss.apply(states, *weights, counts, loss)


class _OutputLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        counts: Tensor,
        loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        kind, dtype = states.device.type, weight.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        rows, places = counts.nonzero(as_tuple=True)
        x, w = states[rows, places].to(dtype), weight.to(dtype)
        b = None if bias is None else bias.to(dtype)
        to_states = torch.zeros_like(states)
        to_weight = torch.zeros_like(w, dtype=torch.float32) if weight.requires_grad else None
        to_bias = None
        if bias is not None and bias.requires_grad:
            to_bias = torch.zeros_like(bias, dtype=torch.float32)
        total = torch.zeros((), device=states.device)
        size = max(16, PART.get(kind, PART["cpu"]) // len(w))
        with torch.autocast(kind, enabled=False):
            for part, *at in zip(*(each.split(size) for each in (x, rows, places)), strict=True):
                with torch.enable_grad():
                    logits = F.linear(part, w, b).float().requires_grad_()
                    value = (loss(logits, *at) * counts[*at]).sum()
                    (gradient,) = torch.autograd.grad(value, logits)
                total += value.detach()
                small = gradient.to(dtype)
                to_states[*at] = (small @ w).to(states.dtype)
                if to_weight is not None:
                    to_weight += small.T @ part
                if to_bias is not None:
                    to_bias += gradient.sum(0)
        ctx.save_for_backward(to_states, to_weight, to_bias)
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:  # type: ignore[override]
        to_states, to_weight, to_bias = ctx.saved_tensors
        dtypes = ctx.dtypes
        return (
            to_states * scale.to(to_states.dtype),
            None if to_weight is None else (to_weight * scale).to(dtypes[0]),
            None if to_bias is None else (to_bias * scale).to(dtypes[1]),
            None,
            None,
        )


def _cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """``[..]``: with a token ``[..]``, or with a distribution ``[.., V]``."""
    shape = logits.shape[:-1]
    flat = logits.flatten(0, -2), label.flatten(0, len(shape) - 1)
    return F.cross_entropy(*flat, reduction="none", ignore_index=-1).view(shape)
