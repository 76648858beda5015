"""Single-draft rejection sampling (Leviathan et al. 2023; Chen et al. 2023).

In plain Python, of the one candidate at a node; it returns the accepted token, or None and the
weights from which the bonus token is drawn::

    def rejection(p, q, candidates, u):
        x = candidates[0]
        if u[0] * q[x] < p[x]:
            return x, None
        return None, [max(a - b, 0) for a, b in zip(p, q)]
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.core.flow import Scheme
from specwb.rules.rule import Decision, NodeRule


class Rejection(NodeRule):
    """Accept x ~ q iff ``u q(x) < p(x)``; otherwise draw from ``(p - q)+``. Exact.

    The acceptance is ``sum min(p, q) = 1 - TV(p, q)``; the proof is theorem 1.1
    (theory/01_single_draft.md). The rule is for chains, which have one child per node.
    """

    name = "rejection"
    schemes = frozenset({Scheme.IID, Scheme.WITHOUT_REPLACEMENT})  # one draw: the two are the same
    chain_only = True

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> Decision:
        assert q is not None
        px, qx = p.gather(1, tokens), q.gather(1, tokens)
        test = ok[:, 0] & (qx[:, 0] > 0)
        hit = test & (u[:, 0] * qx[:, 0] < px[:, 0])
        choice = torch.where(hit, 0, -1)
        rejected = test & ~hit
        if not self.some(rejected):
            return choice, p
        residual = torch.sub(p, q).relu_()
        # no mass is left where p = q up to rounding; then the distribution in force is p
        return choice, self.put(p, residual, rejected & (residual.sum(1) > 0))
