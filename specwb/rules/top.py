"""Top and sample: the rule for "greedy drafts" (Hu et al. 2502.18779).

In plain Python; the last candidate x was drawn from q, which is 0 on the others. It returns the
accepted token, or None and the weights from which the bonus token is drawn::

    def top(p, q, candidates, u):
        *fixed, x = candidates
        if u[0] * q[x] < p[x]:
            return x, None
        rest = [max(a - b, 0) for a, b in zip(p, q)]
        below = 0
        for y in fixed:
            below += rest[y]
            if u[1] * sum(rest) < below:
                return y, None
        return None, [0 if y in fixed else a for y, a in enumerate(rest)]
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.core.flow import Scheme
from specwb.rules.rule import Decision, NodeRule, first, without


class TopAndSample(NodeRule):
    """Of k children k - 1 are fixed, the draft's most probable tokens A, and one, x, was drawn from
    q', which is q without A. Exact.

    Accept x iff ``u q'(x) < p(x)``; otherwise draw y from ``(p - q')+`` and continue below the
    child with token y; if there is none, y is the bonus token.

    The cost is linear in V, at most one pass over the rows. It is optimal for such candidates:
    acceptance ``p(A) + sum over the other tokens of min(p, q')`` (theory/05_optimum.md). On A it is
    the point-mass rule, elsewhere a maximal coupling. The rows of q that it receives are q',
    normalised: a child with q' = 0 is a fixed one.

    A node takes two uniforms, one for x and one for y among A. If the support of q ends before x,
    all children are fixed.

    Source: Hu et al., "Towards Optimal Multi-draft Speculative Decoding" (2025), for the
    candidates; the rule is derived in theory/.
    """

    name = "top"
    in_turn = False
    schemes = frozenset({Scheme.TOP_AND_SAMPLE})

    def draws(self, children: int) -> int:
        return 2 * min(children, 1)

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> Decision:
        assert q is not None
        px, qx = p.gather(1, tokens), q.gather(1, tokens)
        drawn = ok & (qx > 0)
        choice = first(drawn & (u[:, :1] * qx < px))
        if not self.some(choice < 0):
            return choice, p
        rejected = drawn.any(1) & (choice < 0)
        residual = torch.sub(p, q).relu_()
        mass = residual.sum(1)
        moved = rejected & (mass > 0)
        residual, mass = self.put(p, residual, moved), torch.where(moved, mass, p.sum(1))
        fixed = ok & ~drawn
        among = first(u[:, 1:2] * mass[:, None] < torch.where(fixed, px, 0).cumsum(1))
        choice = torch.where(choice < 0, among, choice)
        left = without(residual, tokens, fixed)
        return choice, self.put(residual, left, left.sum(1) > 0)
