"""Recursive rejection sampling, candidates drawn with replacement (SpecInfer's multi-step sampling;
MCSD "with replacement").

In plain Python, of the candidates at a node; it returns the accepted token, or None and the weights
from which the bonus token is drawn::

    def rrs(p, q, candidates, u):
        for x, u_x in zip(candidates, u):
            if u_x * q[x] < p[x]:
                return x, None
            rest = [max(a - b, 0) for a, b in zip(p, q)]
            p = [a / sum(rest) for a in rest]
        return None, p
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.core.flow import Scheme
from specwb.rules.rule import Decision, NodeRule


class RRS(NodeRule):
    """Test the candidates in order against a shrinking residual. Exact.

    Acceptance: ``1 - prod_j (1 - beta_j)``.

    Scalar form: after j rejections the residual is ``r_j = (p - M_j q)+`` with one number ``M_j =
    m_1 + .. + m_j``, where ``m_1 = 1`` and ``m_{j+1} = sum r_j``. Accept x_j iff ``u m_j q(x_j) <
    r_{j-1}(x_j)``. Nothing is normalised, and rows of p and q are read only after a rejection. This
    equals normalising ``p <- (p - q)+`` each time (theorems 4.1 and 4.3,
    theory/04_several_candidates.md).

    Differs from the MCSD code in: the comparison is strict, nothing is divided, the inputs are not
    changed, and a residual without mass keeps the distribution in force instead of becoming NaN. A
    candidate with q = 0 is not tested.
    """

    name = "rrs"
    schemes = frozenset({Scheme.IID, Scheme.IID_PATHS})

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> Decision:
        assert q is not None
        qx = q.gather(1, tokens)
        choice = torch.full_like(tokens[:, 0], -1)
        mass = torch.ones_like(qx[:, 0], dtype=torch.float64)
        residual = p
        for j in range(tokens.shape[1]):
            x = tokens[:, j : j + 1]
            test = ok[:, j] & (choice < 0) & (qx[:, j] > 0)
            hit = test & (u[:, j] * (mass * qx[:, j]) < residual.gather(1, x).squeeze(1))
            choice = torch.where(hit, j, choice)
            rejected = test & ~hit
            if not self.some(rejected):
                continue
            after = torch.addcmul(residual, q, -mass.to(p.dtype)[:, None]).relu_()
            left = after.sum(1).double()
            moved = rejected & (left > 0)
            residual, mass = self.put(residual, after, moved), torch.where(moved, left, mass)
        return choice, residual
