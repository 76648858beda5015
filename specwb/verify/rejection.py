"""Single-draft rejection sampling (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.flow import Law, LawMismatch
from specwb.tree import Tree
from specwb.verify.rule import NodeRule


class Rejection(NodeRule):
    """Accept x ~ q iff ``u q(x) < p(x)``; otherwise draw from ``(p - q)+``. Exact; acceptance ``sum min(p, q) = 1 - TV(p, q)``.

    Proof: theory/01_single_draft.md, theorem 1.1. For chains: one child a node.
    """

    name = "rejection"
    laws = frozenset({Law.IID, Law.WITHOUT_REPLACEMENT})  # one draw: the two are the same

    def check(self, law: Law, tree: Tree) -> None:
        super().check(law, tree)
        if tree.K > 1:
            raise LawMismatch(f"rule 'rejection' tests one candidate a node, this tree has up to {tree.K}; use rrs or rrsw")

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        assert q is not None
        px, qx = p.gather(1, tokens), q.gather(1, tokens)
        choice = torch.where(ok[:, 0] & (u[:, 0] * qx[:, 0] < px[:, 0]), 0, -1)
        residual = (p - q).clamp_min_(0)
        # no mass left: p = q up to rounding, or nothing was tested; the law in force is p
        tested = ok[:, :1] & (residual.sum(1, keepdim=True) > 0)
        return choice, torch.where(tested, residual, p)
