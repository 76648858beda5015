"""Recursive rejection sampling without replacement (MCSD's default; Sequoia).

In plain Python, of the distinct candidates at a node in drawing order; it returns the accepted
token, or None and the weights from which the bonus token is drawn::

    def rrsw(p, q, candidates, u):
        for x, u_x in zip(candidates, u):
            if u_x * q[x] < p[x]:
                return x, None
            rest = [max(a - b, 0) for a, b in zip(p, q)]
            p = [a / sum(rest) for a in rest]
            left = [0 if y == x else b for y, b in enumerate(q)]
            q = [b / sum(left) for b in left]
        return None, p
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.core.flow import Scheme
from specwb.rules.rule import Decision, NodeRule

SCALE = 2.0**64


class RRSw(NodeRule):
    """As RRS, but after a rejection the token is also removed from q, which is renormalised. Exact.

    Scalar form: let ``s_j`` be the mass of q on the tokens not rejected before stage j, ``r_0 = p``
    and ``m_1 = 1``. Accept x_j iff ``u m_j q(x_j) < r_{j-1}(x_j) s_j``; otherwise ``r_j = (r_{j-1}
    - (m_j / s_j) q)+`` and ``m_{j+1} = sum r_j`` (theorems 4.2 and 4.3,
    theory/04_several_candidates.md). These are two numbers per stage; nothing is normalised, and
    rows of p and q are read only after a rejection.

    ``s_j`` is summed over the remaining tokens: as ``1 - q(A)`` it would lose all digits for
    over-confident drafts (TV .014 to .022 in float32). The remaining mass can even be denormal in
    float32 (logit gaps beyond 89); so that ``m_j / s_j`` does not overflow, q is multiplied by
    2^64, which is exact.

    Candidates must be in drawing order: sorting them breaks the distribution. If q's support has
    fewer tokens than there are candidates, the others are not ok and the bonus token comes from the
    residual in force. A repeated candidate is skipped, since its mass has already been removed; so
    independent draws are verified as the distinct tokens among them, which is exact too.
    """

    name = "rrsw"
    schemes = frozenset({Scheme.WITHOUT_REPLACEMENT, Scheme.IID, Scheme.IID_PATHS})

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> Decision:
        assert q is not None
        choice = torch.full_like(tokens[:, 0], -1)
        mass = torch.ones_like(choice, dtype=torch.float64)
        remaining = SCALE * mass  # s_j and q are multiplied by the same number
        residual, left_q = p, q * SCALE if not self.lazy else None
        for j in range(tokens.shape[1]):
            x = tokens[:, j : j + 1]
            px = residual.gather(1, x).squeeze(1).double()
            if left_q is None:
                qx = q.gather(1, x).squeeze(1).double() * SCALE
            else:
                qx = left_q.gather(1, x).squeeze(1).double()
            test = ok[:, j] & (choice < 0) & (qx > 0)
            hit = test & (u[:, j] * (mass * qx) < px * remaining)
            choice = torch.where(hit, j, choice)
            rejected = test & ~hit
            if not self.some(rejected):
                continue
            if left_q is None:
                left_q = q * SCALE
            factor = -(mass / remaining).to(p.dtype)[:, None]
            after = torch.addcmul(residual, left_q, factor).relu_()
            left = after.sum(1).double()
            moved = rejected & (left > 0)
            residual, mass = self.put(residual, after, moved), torch.where(moved, left, mass)
            if j + 1 < tokens.shape[1]:
                gone = left_q.gather(1, x).squeeze(1)
                left_q.scatter_(1, x, torch.where(rejected, 0, gone)[:, None])
                remaining = left_q.sum(1).double()
        return choice, residual
