"""Typical acceptance (Medusa): LOSSY, for comparison.

In plain Python, of the candidates at a node; it returns the accepted token, or None and the weights
from which the bonus token is drawn::

    def typical(p, q, candidates, u, epsilon=0.09, delta=0.3):
        entropy = -sum(a * math.log(a) for a in p if a > 0)
        x = max(candidates, key=lambda y: p[y])
        if p[x] > min(epsilon, delta * math.exp(-entropy)):
            return x, None
        return None, p
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.flow import Exactness, Scheme
from specwb.rules.rule import Decision, NodeRule


class Typical(NodeRule):
    """Continue below the most probable child with ``p(x) > min(epsilon, delta e^(-H(p)))``, H the
    entropy of p in nats; if there is none, draw the bonus token from p. LOSSY: the output does not
    have the target's distribution.

    It takes candidates of any sampling scheme and does not use q.

    Args:
        epsilon: a probability that is always enough.
        delta: the factor of ``e^(-H(p))``.
    Raises:
        ValueError: epsilon outside (0, 1] or delta not above 0.

    Source: Cai et al., Medusa (2401.10774), whose code has ``posterior_threshold = 0.09`` (epsilon)
    and ``posterior_alpha = 0.3`` (delta, the square root of epsilon). Differs from it in: Medusa
    takes the longest of all paths whose tokens pass and breaks ties by likelihood, here each node
    decides separately; Medusa's bonus token is the argmax of p, here it is drawn; Medusa has 1e-5
    inside the logarithm of H.
    """

    name = "typical"
    in_turn = False
    schemes = frozenset(Scheme) - {Scheme.ROOTS}
    exactness = Exactness.LOSSY

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        if not 0 < epsilon <= 1:
            raise ArgumentError(
                f"epsilon, a probability that is always enough, must be in (0, 1], got {epsilon}"
            )
        if not 0 < delta < float("inf"):
            raise ArgumentError(
                f"delta, the factor of exp(-entropy), must be above 0 and finite, got {delta}"
            )
        self.epsilon, self.delta = epsilon, delta

    def draws(self, children: int) -> int:
        return min(children, 1)  # the walk hands out one; it is not looked at

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> Decision:
        entropy = -torch.xlogy(p, p).sum(1, keepdim=True)
        least = (self.delta * torch.exp(-entropy)).clamp_max(self.epsilon)
        px = torch.where(ok, p.gather(1, tokens), -1)
        best, choice = px.max(1)
        return torch.where(best > least.squeeze(1), choice, -1), p
