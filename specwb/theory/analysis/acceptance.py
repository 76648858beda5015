"""One draft token: its acceptance rate, the residual distribution, and the distribution of the
output.

``p`` is the target's distribution of the next token and ``q`` the draft's, both ``[..., V]``, after
temperature and filters; where their shapes differ a ValueError is raised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.probability import inverse_cdf
from specwb.rules.rejection import Rejection

Distribution = Any
"""Probabilities ``[..., V]``: a tensor, an array, or a list of floats or of fractions, which stay
exact."""


def acceptance_rate(p: Distribution, q: Distribution) -> Any:
    """A token drawn from q is accepted with probability ``alpha = sum min(p, q) = 1 - TV(p, q)``.

    No lossless rule accepts more.

    Returns:
        alpha ``[...]``.
    Source: Leviathan et al. 2023, theorem 3.5 and corollary 3.6; proof in theory/02_acceptance.md.
    """
    p, q, xp = _arrays(p, q)
    return xp.minimum(p, q).sum(-1)


def residual(p: Distribution, q: Distribution) -> Any:
    """After a rejection the bonus token is drawn from ``(p - q)+ / sum (p - q)+``.

    Where ``p = q`` the result is p itself, as nothing is rejected there.

    Returns:
        The residual distribution ``[..., V]``.
    """
    p, q, xp = _arrays(p, q)
    excess = p - xp.minimum(p, q)
    mass = excess.sum(-1, keepdims=True)
    return xp.where(mass > 0, excess / xp.where(mass > 0, mass, 1), p)


def output_distribution(p: Distribution, q: Distribution) -> Any:
    """The output token has distribution ``min(p, q) + (1 - alpha) residual``, which is p.

    The two terms belong to its two sources: the accepted draft token, and the bonus token after a
    rejection.

    Returns:
        The distribution of the output ``[..., V]``, computed from the two terms.
    """
    p, q, xp = _arrays(p, q)
    accepted = xp.minimum(p, q)
    rejected = 1 - accepted.sum(-1, keepdims=True)
    return accepted + rejected * residual(p, q)


def acceptance_under_temperature(
    target_logits: Tensor, draft_logits: Tensor, temperature: float
) -> Tensor:
    """The acceptance rate at temperature T is ``1 - TV(softmax(z / T), softmax(w / T))``.

    Target and draft are sampled at the same temperature. The rate tends to 1 as T grows and to
    "the two argmaxes agree" (0 or 1) as T falls, and it need not be monotone between.

    Args:
        target_logits: ``z``, the target's logits ``[..., V]``.
        draft_logits: ``w``, the draft's logits ``[..., V]``.
        temperature: T > 0.
    Returns:
        The acceptance rate ``[...]`` in float64.
    Raises:
        ValueError: T <= 0, or the shapes differ.
    """
    if not temperature > 0:
        raise ArgumentError(
            f"temperature must be > 0, got {temperature}; "
            "at 0 a token is accepted iff it is the target's argmax"
        )
    p, q = (
        (torch.as_tensor(logits, dtype=torch.float64) / temperature).softmax(-1)
        for logits in (target_logits, draft_logits)
    )
    return acceptance_rate(p, q)


def simulate(p: Distribution, q: Distribution, draws: int, seed: int = 0) -> tuple[np.ndarray, int]:
    """Draw a draft token, verify it and draw the bonus token, ``draws`` times.

    The rule is the one that decodes, :class:`specwb.rules.Rejection`.

    Args:
        draws: Number of repetitions, >= 1.
    Returns:
        How often each token was the output ``[V]``, and the number of accepted draft tokens.
    Raises:
        ValueError: p and q are not distributions over the same tokens, or draws < 1.
    """
    p, q = (
        x.double().cpu() if isinstance(x, Tensor) else torch.tensor(x.astype(float))
        for x in _arrays(p, q)[:2]
    )
    if p.ndim != 1 or draws < 1:
        raise ArgumentError(
            f"simulate takes two distributions [V] and draws >= 1, "
            f"got shape {list(p.shape)} and draws={draws}"
        )
    generator = torch.Generator().manual_seed(seed)
    # drafting, accepting and the bonus token never share noise
    u_draft, u_accept, u_bonus = torch.rand(3, draws, dtype=torch.float64, generator=generator)
    p_rows, q_rows = p.expand(draws, -1), q.expand(draws, -1)
    token = inverse_cdf(q_rows, u_draft)[:, None]
    all_valid = torch.ones_like(token, dtype=torch.bool)
    choice, rest = Rejection().node(p_rows, q_rows, token, all_valid, u_accept[:, None])
    accepted = choice == 0
    output = torch.where(accepted, token[:, 0], inverse_cdf(rest, u_bonus))
    return torch.bincount(output, minlength=len(p)).numpy(), int(accepted.sum())


def _arrays(p: Distribution, q: Distribution) -> tuple[Any, Any, Any]:
    """p and q as tensors or arrays, and the module whose ``minimum`` and ``where`` they take."""
    xp = torch if isinstance(p, Tensor) and isinstance(q, Tensor) else np
    if xp is np:
        # fractions become an array of objects and stay fractions
        p, q = np.asarray(p), np.asarray(q)
    if p.ndim == 0 or p.shape != q.shape or p.shape[-1] == 0:
        raise ArgumentError(
            "p and q must be distributions over the same tokens, [..., V] each; "
            f"got shapes {list(p.shape)} and {list(q.shape)}"
        )
    return p, q, xp
