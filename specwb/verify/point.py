"""The point-mass rule: deterministic candidates, verified by drawing from the target."""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.flow import Law
from specwb.tree import Tree
from specwb.verify.rule import NodeRule, first


class PointMass(NodeRule):
    """Draw y from p; go on under the child that carries y, otherwise y closes the round. Exact for any tree whose tokens do not
    depend on the verification's uniforms, and optimal for a deterministic one: E[accepted] = sum over nodes of p(path).

    One uniform: child j is taken iff u falls in its stretch of the children's cumulative p. The residual is p without the
    children. Equal to testing the children in turn with q = a point mass (why "q(x) = 1" is exact). A repeated sibling counts once.
    """

    name = "point"
    laws = frozenset(Law)  # sampled candidates too: MCSD's naive verification

    def uniforms(self, tree: Tree) -> int:
        return tree.D

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        k = tokens.shape[1]
        if k > 1:
            same = (tokens[:, :, None] == tokens[:, None, :]) & ok[:, None, :]
            ok = ok & ~torch.tril(same, -1).any(2)
        px = torch.where(ok, p.gather(1, tokens), 0)
        choice = first(u[:, :1] * p.sum(1, keepdim=True) < px.cumsum(1))
        taken = torch.zeros_like(p).scatter_add_(1, tokens, ok.to(p.dtype))
        residual = torch.where(taken > 0, 0, p)
        return choice, torch.where(residual.sum(1, keepdim=True) > 0, residual, p)
