"""Recursive rejection sampling without replacement (MCSD's default; Sequoia)."""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.flow import Law
from specwb.verify.rule import NodeRule


class RRSw(NodeRule):
    """As RRS, but after a rejection the token also leaves the draft's law, which is renormalised. Exact.

    Scalar form: with ``A_j`` the candidates rejected so far and ``s_j = q(not A_{j-1})``,
    ``c_0 = 0, m_1 = 1; c_j = c_{j-1} + m_j / s_j; m_{j+1} = sum (p - c_j q)+``.
    Accept x_j iff ``u m_j q(x_j) < (p(x_j) - c_{j-1} q(x_j)) s_j``; the residual is ``(p - c_k q)+``
    (theory/04_several_candidates.md, theorems 4.2 and 4.3). ``s_j`` is summed over the tokens that remain: written as ``1 - q(A)``
    it loses everything for over-confident drafts (TV .014 to .022 in float32).

    Candidates must come in drawing order; sorting them breaks the law. With fewer tokens in q's support than candidates
    the rest is not ok and the closing token comes from the residual in force.
    """

    name = "rrsw"
    laws = frozenset({Law.WITHOUT_REPLACEMENT})

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        assert q is not None
        # what remains of an over-confident q can be denormal in float32 (logit gaps beyond 89): 1 / s_j would overflow and the
        # rejection be forgotten (TV up to .2)
        p, q = p.double(), q.double()
        px, qx = p.gather(1, tokens), q.gather(1, tokens)
        choice = torch.full_like(tokens[:, 0], -1)
        c, mass, remaining = torch.zeros_like(px[:, 0]), torch.ones_like(px[:, 0]), torch.ones_like(px[:, 0])
        left_q = q.clone()
        residual = p
        for j in range(tokens.shape[1]):
            test = ok[:, j] & (choice < 0)
            hit = test & (u[:, j] * (mass * qx[:, j]) < (px[:, j] - c * qx[:, j]) * remaining)
            choice = torch.where(hit, j, choice)
            rejected = test & ~hit
            step = c + mass / remaining
            after = (p - step[:, None] * q).clamp_min_(0)
            left = after.sum(1)
            moved = rejected & (left > 0)
            residual = torch.where(moved[:, None], after, residual)
            c, mass = torch.where(moved, step, c), torch.where(moved, left, mass)
            if j + 1 < tokens.shape[1]:
                left_q.scatter_(1, tokens[:, j : j + 1], torch.where(rejected, 0, left_q.gather(1, tokens[:, j : j + 1])[:, 0])[:, None])
                remaining = left_q.sum(1)
        return choice, residual
