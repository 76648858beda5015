"""Recursive rejection sampling, candidates drawn with replacement (SpecInfer's multi-step sampling; MCSD "with replacement")."""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.flow import Law
from specwb.verify.rule import NodeRule


class RRS(NodeRule):
    """Test the candidates in order against a shrinking residual. Exact; acceptance ``1 - prod_j (1 - beta_j)``.

    Scalar form: after j rejections the residual is ``(p - M_j q)+`` with one number ``M_j = m_1 + .. + m_j``, where
    ``m_1 = 1`` and ``m_{j+1} = sum (p - M_j q)+``. Accept x_j iff ``u m_j q(x_j) < p(x_j) - M_{j-1} q(x_j)``.
    Equal to normalising p <- (p - q)+ after every rejection (theory/04_several_candidates.md, theorems 4.1 and 4.3).

    Differs from the MCSD code in: strict comparison, no division, inputs untouched, and a residual without mass keeps the
    law in force instead of becoming NaN.
    """

    name = "rrs"
    laws = frozenset({Law.IID})

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        assert q is not None
        px, qx = p.gather(1, tokens), q.gather(1, tokens)
        choice = torch.full_like(tokens[:, 0], -1)
        spent, mass = torch.zeros_like(px[:, 0]), torch.ones_like(px[:, 0])  # M_{j-1}, m_j
        residual = p
        for j in range(tokens.shape[1]):
            test = ok[:, j] & (choice < 0)
            hit = test & (u[:, j] * (mass * qx[:, j]) < px[:, j] - spent * qx[:, j])
            choice = torch.where(hit, j, choice)
            after = (p - (spent + mass)[:, None] * q).clamp_min_(0)
            left = after.sum(1)
            moved = test & ~hit & (left > 0)
            residual = torch.where(moved[:, None], after, residual)
            spent, mass = torch.where(moved, spent + mass, spent), torch.where(moved, left, mass)
        return choice, residual
