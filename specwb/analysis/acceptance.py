"""One drafted token at one place: how often it is accepted, what is left for the closing token, what comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.probability import inverse_cdf
from specwb.verify.rejection import Rejection

Laws = Any
"""``[..., V]`` probabilities: a tensor, an array, or a list (of floats or of fractions, which stay exact)."""


def _pair(p: Laws, q: Laws) -> tuple[Any, Any, Any]:
    """p and q as tensors or arrays, and the module whose ``minimum`` and ``where`` they take."""
    xp = torch if isinstance(p, Tensor) and isinstance(q, Tensor) else np
    if xp is np:
        p, q = np.asarray(p), np.asarray(q)  # fractions become an array of objects and stay fractions
    if p.ndim == 0 or p.shape != q.shape or p.shape[-1] == 0:
        raise ValueError(f"p and q must be laws over the same tokens, [..., V] each; got shapes {list(p.shape)} and {list(q.shape)}")
    return p, q, xp


def acceptance_rate(p: Laws, q: Laws) -> Any:
    """A token drawn from q is accepted with probability ``alpha = sum min(p, q) = 1 - TV(p, q)``, and no lossless rule accepts more.

    Args:
        p, q: target's and draft's laws ``[..., V]``, both after temperature and filters.
    Returns: ``[...]``.
    Raises:
        ValueError: the shapes differ.
    Source: Leviathan et al. 2023, theorem 3.5 and corollary 3.6; proof in theory/02_acceptance.md.
    """
    p, q, xp = _pair(p, q)
    return xp.minimum(p, q).sum(-1)


def residual(p: Laws, q: Laws) -> Any:
    """After a rejection the closing token has law ``(p - q)+ / sum (p - q)+``; p itself where ``p = q``, as nothing is rejected there.

    Args:
        p, q: laws ``[..., V]``.
    Returns: ``[..., V]``.
    Raises:
        ValueError: the shapes differ.
    """
    p, q, xp = _pair(p, q)
    left = p - xp.minimum(p, q)
    mass = left.sum(-1, keepdims=True)
    return xp.where(mass > 0, left / xp.where(mass > 0, mass, 1), p)


def output_law(p: Laws, q: Laws) -> Any:
    """The law of the token that comes out, put together from its two ways: ``min(p, q) + (1 - alpha) residual``. It equals p.

    Args:
        p, q: laws ``[..., V]``.
    Returns: ``[..., V]``.
    """
    p, q, xp = _pair(p, q)
    accepted = xp.minimum(p, q)
    return accepted + (1 - accepted.sum(-1, keepdims=True)) * residual(p, q)


def acceptance_under_temperature(target_logits: Tensor, draft_logits: Tensor, temperature: float) -> Tensor:
    """Acceptance when target and draft are sampled at the same temperature: ``1 - TV(softmax(z / T), softmax(w / T))``.

    It tends to 1 as T grows and to "the two argmaxes agree" (0 or 1) as T falls, and need not be monotone between.

    Args:
        target_logits, draft_logits: ``z``, ``w`` of shape ``[..., V]``. temperature: T > 0.
    Returns: ``[...]``, float64.
    Raises:
        ValueError: T <= 0, or the shapes differ.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}; at 0 a token is accepted iff it is the target's argmax")
    p, q = ((torch.as_tensor(z, dtype=torch.float64) / temperature).softmax(-1) for z in (target_logits, draft_logits))
    return acceptance_rate(p, q)


def simulate(p: Laws, q: Laws, draws: int, seed: int = 0) -> tuple[np.ndarray, int]:
    """Draw, verify and close ``draws`` times with the rule that decodes (:class:`specwb.verify.Rejection`).

    Args:
        p, q: laws ``[V]``. draws: how many, >= 1. seed: of the random numbers.
    Returns: how often each token came out ``[V]``, and how many drafted tokens were accepted.
    Raises:
        ValueError: not two laws over the same tokens, or draws < 1.
    """
    a, b = (law.double().cpu() if isinstance(law, Tensor) else torch.tensor(law.astype(float)) for law in _pair(p, q)[:2])
    if a.ndim != 1 or draws < 1:
        raise ValueError(f"simulate takes two laws [V] and draws >= 1, got shape {list(a.shape)} and draws={draws}")
    generator = torch.Generator().manual_seed(seed)
    drafting, accepting, closing = torch.rand(3, draws, dtype=torch.float64, generator=generator)
    rows = a.expand(draws, -1), b.expand(draws, -1)
    x = inverse_cdf(rows[1], drafting)[:, None]
    choice, rest = Rejection().node(*rows, x, torch.ones_like(x, dtype=torch.bool), accepting[:, None])
    out = torch.where(choice == 0, x[:, 0], inverse_cdf(rest, closing))
    return torch.bincount(out, minlength=len(a)).numpy(), int((choice == 0).sum())
