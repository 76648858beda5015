"""The shared top-down walk over a draft tree. A node rule says what happens among the children of one node, the walk does the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specwb.flow import Draft, Exactness, Law, LawMismatch, Scores, Verdict
from specwb.tree import Tree


class Rule:
    """A verification rule: pure, never changes its inputs, takes its uniforms as arguments.

    Attributes:
        name: key in ``RULES``.
        laws: the candidate laws it is lossless for.
    """

    name = ""
    laws: frozenset[Law] = frozenset()
    exactness = Exactness.LOSSLESS

    def check(self, law: Law, tree: Tree) -> None:
        """Raises LawMismatch where the rule would not preserve the target's law."""
        if law not in self.laws:
            fits = ", ".join(f"{one.name} ({one.value})" for one in self.laws)
            raise LawMismatch(f"rule {self.name!r} is lossless for {fits}; this drafter's candidates are {law.name} ({law.value})")

    def uniforms(self, tree: Tree) -> int:
        """How many acceptance uniforms a row needs a round."""
        raise NotImplementedError

    def verify(self, draft: Draft, scores: Scores, u: Tensor) -> Verdict:
        """Accepted path and the law of the closing token (``closing`` is drawn from it by the engine)."""
        raise NotImplementedError


@dataclass
class Visit:
    """One level of a walk, for every row: everything a test depended on, and what came out."""

    depth: int
    node: Tensor  # [B]
    alive: Tensor  # [B]
    p: Tensor  # [B,V]
    q: Tensor | None  # [B,V]
    kids: Tensor  # [B,K] node indices, 0 where there is none
    tokens: Tensor  # [B,K]
    ok: Tensor  # [B,K]
    u: Tensor  # [B,K]
    choice: Tensor  # [B]
    residual: Tensor  # [B,V]
    onward: Tensor  # [B] the row goes on below an accepted child
    reached: Tensor  # [B] node it has come to


class NodeRule(Rule):
    """A rule that decides among the children of one node at a time, from the root down."""

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """``p [B,V]``, ``q [B,V]`` or None, children ``tokens [B,K]`` in drawing order, ``ok [B,K]``, uniforms ``u [B,K]``
        -> index of the accepted child ``[B]`` (-1: none) and the residual ``[B,V]``, not necessarily normalised,
        from which the closing token is drawn if none is accepted. With no child ok the residual is p."""
        raise NotImplementedError

    def uniforms(self, tree: Tree) -> int:
        return tree.D * tree.K

    def visits(self, draft: Draft, scores: Scores, u: Tensor) -> Iterator[Visit]:
        """Walk from the root, one level a step; rows that have stopped stay where they are."""
        tree = draft.tree
        if tree.D == 0:  # plain decoding: nothing to test and no uniforms
            return
        rows = draft.tokens.shape[0]
        row = torch.arange(rows, device=draft.tokens.device)
        of = row if len(tree.kids) > 1 else torch.zeros_like(row)
        node = torch.zeros_like(row)
        alive = torch.ones_like(row, dtype=torch.bool)
        u = u[:, : self.uniforms(tree)].view(rows, tree.D, -1)  # the drafter's largest tree may be larger
        for d in range(tree.D):
            kids = tree.kids[of, node][:, : tree.widths[d]]
            safe = kids.clamp_min(0)
            tokens = draft.tokens.gather(1, safe)
            ok = (kids >= 0) & draft.valid.gather(1, safe)
            p = scores.p(node)
            q = None if draft.q is None or draft.q_row is None else draft.q[row, draft.q_row[of, node].clamp_min(0)]
            choice, residual = self.node(p, q, tokens, ok, u[:, d, : tree.widths[d]])
            onward = alive & (choice >= 0)
            reached = torch.where(onward, safe.gather(1, choice.clamp_min(0)[:, None]).squeeze(1), node)
            yield Visit(d, node, alive, p, q, safe, tokens, ok, u[:, d], choice, residual, onward, reached)
            node, alive = reached, onward

    def verify(self, draft: Draft, scores: Scores, u: Tensor) -> Verdict:
        rows = draft.tokens.shape[0]
        node = torch.zeros(rows, dtype=torch.long, device=draft.tokens.device)
        accepted = torch.zeros_like(node)
        law: Tensor | None = None
        alive = torch.ones_like(node, dtype=torch.bool)
        for visit in self.visits(draft, scores, u):
            law = visit.residual if law is None else torch.where(alive[:, None], visit.residual, law)
            alive, node = visit.onward, visit.reached
            accepted = accepted + alive
        last = scores.p(node)
        law = last if law is None else torch.where(alive[:, None], last, law)
        trail = draft.tree.trail
        of = torch.arange(rows, device=node.device) if len(trail) > 1 else torch.zeros_like(node)
        return Verdict(trail[of, node], accepted, torch.empty(0), law)


def first(hit: Tensor) -> Tensor:
    """``[B,K]`` -> index of the first true column, -1 where there is none."""
    found, index = hit.max(1)
    return torch.where(found, index, -1)
