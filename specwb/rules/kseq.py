"""k-SEQ: independent candidates tested one after another at one scale (SpecTr).

In plain Python, with the scale rho of :func:`scale`; it returns the accepted token, or None and the
weights from which the bonus token is drawn::

    def kseq(p, q, candidates, u, rho):
        for x, u_x in zip(candidates, u):
            if u_x * rho * q[x] < p[x]:
                return x, None
        b = [min(a / rho, c) for a, c in zip(p, q)]
        share = (1 - (1 - sum(b)) ** len(candidates)) / sum(b)
        return None, [max(a - share * c, 0) for a, c in zip(p, b)]
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.core.flow import Scheme
from specwb.rules.rule import Decision, NodeRule, first

STEPS = 32
"""Halvings of [1, k] by which rho is found: it is too large by k 2^-32 at most."""


class KSeq(NodeRule):
    """Accept the first x_j with ``u_j rho q(x_j) < p(x_j)``; if there is none, draw the bonus token
    from ``(p - b a / beta)+``. ``b = min(p / rho, q)``, ``beta = sum b``, and ``a = 1 - (1 -
    beta)^k`` is the probability that a test passes.

    Exact for independent candidates if ``a <= rho beta``, which holds from some rho on;
    :func:`scale` finds it, rounded up, for every row's own number of children. Acceptance a, never
    below ``1 - (1 - 1/k)^k`` of the optimum (theory/05_optimum.md, theorem 5.5).

    One uniform per child; repeated children are tested separately. At the smallest rho ``a = rho
    beta``, so the residual is 0 on every token that a test can reject, and the bonus token is none
    of the children. Cost: 32 passes over a row of p and q, whether or not a child is rejected.

    Source: Sun et al., SpecTr (2310.15141). Differs from the paper in: rho is rounded up, since a
    smaller one is not lossless.
    """

    name = "kseq"
    schemes = frozenset({Scheme.IID, Scheme.IID_PATHS})
    fixed_number = True

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> Decision:
        assert q is not None
        px, qx = p.gather(1, tokens), q.gather(1, tokens)
        tested = ok & (qx > 0)
        k, wide_p, wide_q = tested.sum(1), p.double(), q.double()
        rho = scale(wide_p, wide_q, k)
        choice = first(tested & (u[:, : tokens.shape[1]] * (rho[:, None] * qx) < px))
        rejected = tested.any(1) & (choice < 0)
        if not self.some(rejected):
            return choice, p
        b = torch.minimum(wide_p / rho[:, None], wide_q)
        beta = b.sum(1)
        some = -torch.expm1(k * torch.log1p(-beta.clamp_max(1)))  # 1 - (1 - beta)^k
        # at most rho, by the choice of rho; where beta is 0 so is b
        share = torch.minimum(some / torch.where(beta > 0, beta, 1), rho)
        residual = (wide_p - b * share[:, None]).clamp_min_(0).to(p.dtype)
        return choice, self.put(p, residual, rejected & (residual.sum(1) > 0))


def scale(p: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """The smallest valid scale of k-SEQ, rounded up: ``p, q [B,V]`` float64 and ``k [B]`` children
    -> ``rho [B]`` in [1, k] (1 where k = 0) with ``1 - (1 - beta)^k <= rho beta``,
    ``beta = sum min(p / rho, q)``.

    The left side falls with rho and the right one rises, so the upper end of a bisection is always
    valid; it is the one that is returned. Both sides are taken from 1, as
    ``(sum (q - p / rho)+)^k >= sum (p - rho q)+``: nothing cancels where p and q are nearly equal.
    Where p = q the right side is 0, without rounding.
    """
    low, high = torch.ones_like(p[:, 0]), k.clamp_min(1).to(p.dtype)
    for _ in range(STEPS):
        rho = (low + high) / 2
        left = (q - p / rho[:, None]).clamp_min_(0).sum(1)
        valid = left**k >= (p - rho[:, None] * q).clamp_min_(0).sum(1)
        low, high = torch.where(valid, low, rho), torch.where(valid, rho, high)
    return high
