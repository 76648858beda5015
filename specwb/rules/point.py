"""The point-mass rule: candidates verified by drawing from the target.

In plain Python, of the distinct candidates at a node; it returns the accepted token, or None and
the weights from which the bonus token is drawn::

    def point(p, q, candidates, u):
        below = 0
        for x in candidates:
            below += p[x]
            if u[0] < below:
                return x, None
        return None, [0 if y in candidates else a for y, a in enumerate(p)]
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.core.flow import Scheme
from specwb.rules.rule import Decision, NodeRule, first, without


class PointMass(NodeRule):
    """Draw y from p; continue below the child with token y, otherwise y is the bonus token. Exact
    for any tree whose tokens do not depend on the verification's uniforms.

    For deterministic candidates it is optimal: E[accepted] = sum over nodes of p(path).

    It takes one uniform: child j is accepted iff u falls in its stretch of the children's
    cumulative p. The residual is p without the children. This equals testing the children in turn
    with q = a point mass (why "q(x) = 1" is exact). A repeated sibling counts once.
    """

    name = "point"
    in_turn = False
    schemes = frozenset(Scheme) - {Scheme.ROOTS}  # sampled candidates too, see Naive

    def draws(self, children: int) -> int:
        return min(children, 1)

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> Decision:
        px = p.gather(1, tokens)
        same = (tokens[:, :, None] == tokens[:, None, :]) & ok[:, None, :]
        counts = ok & ~torch.tril(same, -1).any(2)
        choice = first(u[:, :1] * p.sum(1, keepdim=True) < torch.where(counts, px, 0).cumsum(1))
        if not self.some(choice < 0):
            return choice, p
        residual = without(p, tokens, ok)
        return choice, self.put(p, residual, residual.sum(1) > 0)


class Naive(PointMass):
    """The point-mass rule on drawn candidates: MCSD's naive sampling (MCNS). Exact, whatever the
    candidates were drawn from, and wasteful, since q is not used.

    Acceptance of k independent draws: ``sum p (1 - (1 - q)^k)``; of one ``sum p q``, where
    rejection reaches ``sum min(p, q)``.
    """

    name = "naive"
    schemes = frozenset(Scheme) - {Scheme.ROOTS} - {Scheme.POINT}
