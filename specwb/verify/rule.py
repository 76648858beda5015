"""What a verification rule is, and the shared top-down walk: a node rule says what happens among the children of one node, the walk does the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specwb.flow import Draft, Exactness, Law, LawMismatch, Scores, Verdict
from specwb.tree import Tree

FEW, WIDE = 16, 8192  # up to so many rows, or from that vocabulary on, rows are verified one by one where reading costs nothing
ONE_A_NODE = frozenset({Law.IID, Law.WITHOUT_REPLACEMENT, Law.IID_PATHS, Law.TOP_AND_SAMPLE})  # the same thing where a node has one child


class Rule:
    """A verification rule: pure, never changes its inputs, takes its uniforms as arguments.

    Subclass it and implement :meth:`decide`, or :class:`NodeRule` and implement ``node``; give the instance or the class as ``rule=``.

    Attributes:
        name: key in ``RULES``.
        laws: the candidate laws it is lossless for, or, if it is LOSSY, made for.
        chain_only: it decides about one candidate a node.
        needs_independent: it looks at the children of several siblings, which must not share one list.
        lazy: set by the engine where reading a value costs nothing (on the CPU, rounds not recorded): work that no row needs may be skipped.
    """

    name = ""
    laws: frozenset[Law] = frozenset()
    exactness = Exactness.LOSSLESS
    chain_only = False
    needs_independent = False
    lazy = False

    def check(self, law: Law, tree: Tree, independent: bool = True) -> None:
        """Raises LawMismatch where the rule would not preserve the target's law."""
        single = tree.K <= 1 and law in ONE_A_NODE and bool(self.laws & ONE_A_NODE)
        if law not in self.laws and not single:
            fits = ", ".join(f"{one.name} ({one.value})" for one in sorted(self.laws, key=lambda one: one.name))
            made = "lossless" if self.exactness is Exactness.LOSSLESS else "made"
            raise LawMismatch(f"rule {self.name!r} is {made} for {fits}; this drafter's candidates are {law.name} ({law.value})")
        if self.chain_only and tree.K > 1:
            raise LawMismatch(f"rule {self.name!r} decides about one candidate a node, this tree has up to {tree.K}")
        if self.needs_independent and not independent:
            raise LawMismatch(f"rule {self.name!r} looks below several siblings, and this drafter gives them one shared list of children")

    def uniforms(self, tree: Tree) -> int:
        """How many acceptance uniforms a row needs a round."""
        raise NotImplementedError

    def cold(self) -> Rule | None:
        """What decides at T = 0 in its place; None is the greedy walk."""
        return None

    def verify(self, draft: Draft, scores: Scores, u: Tensor) -> Verdict:
        """Accepted path and the law of the closing token (``closing`` is drawn from it by the engine)."""
        rows = draft.tokens.shape[0]
        if not self.lazy or (rows > FEW and scores.logits.shape[-1] < WIDE):
            return self.decide(draft, scores, u)
        # each row by itself: it stops where it stops, and reads no more of p and q than it needs
        alone = [self.alone(draft, scores, u, i) for i in range(rows)]
        if rows == 1:
            return alone[0]
        law = torch.cat([v.law for v in alone if v.law is not None])
        return Verdict(torch.cat([v.path for v in alone]), torch.cat([v.accepted for v in alone]), alone[0].closing, law)

    def alone(self, draft: Draft, scores: Scores, u: Tensor, i: int) -> Verdict:
        """:meth:`decide` for row ``i`` only, where reading costs nothing."""
        return self.decide(draft.alone(i), scores.alone(i), u if u is None else u[i : i + 1])

    def decide(self, draft: Draft, scores: Scores, u: Tensor) -> Verdict:
        """:meth:`verify` of a whole batch. ``u [B, uniforms(tree)]``; ``closing`` of the verdict stays empty."""
        raise NotImplementedError

    def some(self, mask: Tensor) -> bool:
        """Is there a row that needs what comes next? Where reading is not free the answer is yes."""
        return not self.lazy or bool(mask.any())

    def p(self, scores: Scores, node: Tensor) -> Tensor:
        """``[B] -> [B,V]``: ``scores.p(node)``; of a single row that may be read, without a copy of its logits."""
        return scores.row(0, int(node))[None] if self.lazy and len(node) == 1 else scores.p(node)

    def put(self, old: Tensor, new: Tensor, rows: Tensor) -> Tensor:
        """``[B,V]``: ``new`` in the rows where ``rows [B]`` is true, ``old`` in the others."""
        return new if self.lazy and bool(rows.all()) else torch.where(rows[:, None], new, old)


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
    u: Tensor  # [B,draws]
    choice: Tensor  # [B]
    residual: Tensor  # [B,V]
    onward: Tensor  # [B] the row goes on below an accepted child
    reached: Tensor  # [B] node it has come to


class NodeRule(Rule):
    """A rule that decides among the children of one node at a time, from the root down.

    Attributes:
        in_turn: it tests one child after another, child j by uniform j; what follows an accepted one is not tested.
    """

    in_turn = True

    def __init_subclass__(cls) -> None:
        # a subclass that changes ``node`` alone must not be decided by its parent's host form
        if "node" in vars(cls) and "one" not in vars(cls):
            cls.one = NodeRule.one  # type: ignore[method-assign]
        if {"decide", "visits"} & vars(cls).keys() and "alone" not in vars(cls):
            cls.alone = Rule.alone  # type: ignore[method-assign]

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """``p [B,V]``, ``q [B,V]`` or None, children ``tokens [B,K]`` in drawing order, ``ok [B,K]``, uniforms ``u [B,draws]``
        -> index of the accepted child ``[B]`` (-1: none) and the residual ``[B,V]``, not necessarily normalised,
        from which the closing token is drawn if none is accepted. With no child ok the residual is p."""
        raise NotImplementedError

    def one(self, p: Tensor, q: Tensor | None, tokens: list[int], u: list[float]) -> tuple[int, Tensor]:
        """:meth:`node` for one row on the host: ``p [V]``, ``q [V]``, the children that are ok; no more is computed than the decision takes."""
        x = torch.tensor([tokens], device=p.device)
        law = None if q is None else q[None]
        choice, residual = self.node(p[None], law, x, torch.ones_like(x, dtype=torch.bool), torch.tensor([u], dtype=torch.float64, device=p.device))
        return int(choice), residual[0]

    def alone(self, draft: Draft, scores: Scores, u: Tensor, i: int) -> Verdict:
        tree, tokens, valid = draft.tree, draft.tokens[i].tolist(), draft.valid[i].tolist()
        of = i if tree.R > 1 else 0
        draws = self.draws(_children(tree))
        below = [[k for k in kids if k >= 0] for kids in tree.kids[i].tolist()] if tree.own_kids else tree.below[of]
        row = None if draft.q_row is None else draft.q_row[i if len(draft.q_row) > 1 else 0].tolist()
        uniforms = [] if tree.D == 0 else u[i, : tree.D * draws].tolist()
        here, depth = [0], 0  # the nodes that carry the accepted path: one, or under IID_PATHS all that agree so far
        law: Tensor | None = None
        while law is None:
            all_kids = [k for node in here for k in below[node]]
            kids = [k for k in all_kids if valid[k]]
            p = scores.row(i, here[0])
            if not kids:
                law = p
                break
            q = None if draft.q is None or row is None else draft.q[i, row[here[0]]]
            level = uniforms[depth * draws : (depth + 1) * draws]
            if self.in_turn and len(kids) < len(all_kids) and draft.law is not Law.IID_PATHS:
                level = [level[j] for j, k in enumerate(all_kids) if valid[k]]  # child j is tested by uniform j, whoever else is missing
            choice, residual = self.one(p, q, [tokens[k] for k in kids], level)
            if choice < 0:
                law = residual
            else:
                taken = kids[choice]
                here = [k for k in kids if tokens[k] == tokens[taken]] if draft.law is Law.IID_PATHS else [taken]
                depth += 1
        table = tree.trail
        return Verdict(table[of : of + 1, here[0]], torch.tensor([depth], device=table.device), torch.empty(0), law[None])

    def draws(self, children: int) -> int:
        """How many uniforms ``node`` takes for up to so many children."""
        return children

    def uniforms(self, tree: Tree) -> int:
        return tree.D * self.draws(_children(tree))

    def visits(self, draft: Draft, scores: Scores, u: Tensor, start: Tensor | None = None) -> Iterator[Visit]:
        """Walk from the root, or from the nodes ``start [B]`` below it, one level a step; rows that have stopped stay where they are."""
        tree = draft.tree
        if tree.D == 0:  # plain decoding: nothing to test and no uniforms
            return
        rows = draft.tokens.shape[0]
        u = u[:, : self.uniforms(tree)].view(rows, tree.D, -1)  # the drafter's largest tree may be larger
        if draft.law is Law.IID_PATHS and tree.K > 1:
            tree = tree.merged(draft.tokens, draft.valid, repeats=True)
        row = torch.arange(rows, device=draft.tokens.device)
        of = row if len(tree.kids) > 1 else torch.zeros_like(row)
        node = torch.zeros_like(row) if start is None else start
        alive = torch.ones_like(row, dtype=torch.bool)
        for d in range(0 if start is None else 1, tree.D):
            if not self.some(alive):
                return
            kids = tree.kids[of, node][:, : tree.widths[d]]
            safe = kids.clamp_min(0)
            tokens = draft.tokens.gather(1, safe)
            ok = (kids >= 0) & draft.valid.gather(1, safe)
            p, q = scores.p(node), draft.q_of(node)
            choice, residual = self.node(p, q, tokens, ok, u[:, d, : self.draws(tree.widths[d])])
            onward = alive & (choice >= 0)
            reached = torch.where(onward, safe.gather(1, choice.clamp_min(0)[:, None]).squeeze(1), node)
            yield Visit(d, node, alive, p, q, safe, tokens, ok, u[:, d], choice, residual, onward, reached)
            node, alive = reached, onward

    def decide(self, draft: Draft, scores: Scores, u: Tensor, start: Tensor | None = None) -> Verdict:
        """``start [B]``: children of the root that the walk begins at instead, as if they had been accepted."""
        rows = draft.tokens.shape[0]
        node = torch.zeros(rows, dtype=torch.long, device=draft.tokens.device) if start is None else start
        accepted = torch.full_like(node, 0 if start is None else 1)
        law: Tensor | None = None
        alive = torch.ones_like(node, dtype=torch.bool)
        for visit in self.visits(draft, scores, u, start):
            if self.some(alive & ~visit.onward):
                law = visit.residual if law is None else self.put(law, visit.residual, alive)
            alive, node = visit.onward, visit.reached
            accepted = accepted + alive
        if self.some(alive) or law is None:
            last = scores.p(node)
            law = last if law is None else self.put(law, last, alive)
        return Verdict(draft.tree.trail[_rows(draft.tree.trail, node), node], accepted, torch.empty(0), law)


def _children(tree: Tree) -> int:
    """Children a node, of a tree cut at a depth the whole one's: which uniform decides about a candidate must not depend on where it was cut."""
    return (tree.whole or tree).K


def _rows(table: Tensor, node: Tensor) -> Tensor:
    return torch.arange(len(node), device=node.device) if len(table) > 1 else torch.zeros_like(node)


def without(p: Tensor, tokens: Tensor, ok: Tensor) -> Tensor:
    """``p [B,V]`` with the probability of those ``tokens [B,K]`` that are ``ok`` set to 0."""
    gone = ((tokens[:, :, None] == tokens[:, None, :]) & ok[:, None, :]).any(2)  # equal tokens all write the same
    return p.scatter(1, tokens, torch.where(gone, 0, p.gather(1, tokens)))


def first(hit: Tensor) -> Tensor:
    """``[B,K]`` -> index of the first true column, -1 where there is none."""
    found, index = hit.max(1)
    return torch.where(found, index, -1)
