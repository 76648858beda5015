"""Verification rules, and the shared top-down walk: a node rule decides among the children of one
node, the walk does the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specwb.core.flow import Draft, Exactness, RuleMismatch, Scheme, Scores, Verdict
from specwb.core.tree import Limits

ONE_A_NODE = frozenset(
    {Scheme.IID, Scheme.WITHOUT_REPLACEMENT, Scheme.IID_PATHS, Scheme.TOP_AND_SAMPLE}
)
"""The same thing where a node has one child."""
Decision = tuple[Tensor, Tensor]
"""Of a node: index of the accepted child ``[B]`` (-1: none), and the residual ``[B,V]``, not
necessarily normalised, from which the bonus token is drawn if none is accepted."""


class Rule:
    """A verification rule: pure, never changes its inputs, takes its uniforms as arguments.

    Subclass it and implement :meth:`verify` and :meth:`uniforms`, or :class:`NodeRule` and
    implement ``node``; pass the instance or the class as ``rule=``.

    Attributes:
        name: its key in ``RULES``.
        schemes: the sampling schemes for which it is lossless, or, if it is LOSSY, made.
        chain_only: whether it decides about one candidate per node.
        needs_independent: whether it uses the children of several siblings, which must then not
            share one list.
        fixed_number: whether its tests depend on the number of a node's candidates, which must then
            not depend on the draws (theorems 5.5, 5.8 and 7.5). A step in which some but not all
            children of a node are valid (:meth:`Draft.uneven`) is then an error.
        fixed_shape: whether the draft's shape must be known before the step. Where rows copy, each
            has a shape of its own; where nodes are admitted, the second of two equal siblings,
            which are verified as one (:meth:`Tree.merged`), may be admitted because of a token
            below the first.
        lazy: set by the engine where reading a value costs nothing (on the CPU, in steps that are
            not recorded): work that no row needs is skipped. The same uniform tests the same
            candidate either way.
    """

    name = ""
    schemes: frozenset[Scheme] = frozenset()
    exactness = Exactness.LOSSLESS
    chain_only = False
    needs_independent = False
    fixed_number = False
    fixed_shape = False
    lazy = False

    def check(self, scheme: Scheme, limits: Limits, independent: bool = True) -> None:
        """Checks that the rule preserves the target's distribution with such drafts.

        Args:
            scheme: the sampling scheme of the candidates.
            limits: the largest size of the drafts.
            independent: whether the children of different nodes are drawn independently.
        Raises:
            RuleMismatch: it would not.
        """
        single = limits.children <= 1 and scheme in ONE_A_NODE and bool(self.schemes & ONE_A_NODE)
        if scheme not in self.schemes and not single:
            names = sorted(self.schemes, key=lambda one: one.name)
            fits = ", ".join(f"{one.name} ({one.value})" for one in names)
            claim = "lossless" if self.exactness is Exactness.LOSSLESS else "made"
            raise RuleMismatch(
                f"rule {self.name!r} is {claim} for {fits}; this drafter's candidates are"
                f" {scheme.name} ({scheme.value})"
            )
        if self.chain_only and limits.children > 1:
            raise RuleMismatch(
                f"rule {self.name!r} decides about one candidate a node, this tree has up to"
                f" {limits.children}"
            )
        if self.needs_independent and not independent:
            raise RuleMismatch(
                f"rule {self.name!r} looks below several siblings, and this drafter gives them one"
                " shared list of children"
            )

    def uniforms(self, limits: Limits) -> int:
        """The number of acceptance uniforms per row for drafts of this size."""
        raise NotImplementedError

    def greedy_rule(self) -> Rule | None:
        """Rule to use at temperature 0; None for ordinary greedy verification."""
        return None

    def verify(self, draft: Draft, scores: Scores, u: Tensor) -> Verdict:
        """The accepted path and the distribution of the bonus token, which the engine then draws
        (``bonus`` of the verdict stays empty).

        Args:
            draft: the tree of candidates, B rows.
            scores: the target's, at every node of it.
            u: ``[B, uniforms(limits)]`` in (0, 1), float64.
        """
        raise NotImplementedError

    def some(self, mask: Tensor) -> bool:
        """Whether any row needs the next computation; always true where reading is not free."""
        return not self.lazy or bool(mask.any())

    def p(self, scores: Scores, node: Tensor) -> Tensor:
        """``[B] -> [B,V]``: ``scores.p(node)``; for a single row that may be read, without a copy
        of its logits."""
        if self.lazy and len(node) == 1:
            return scores.row(0, int(node))[None]
        return scores.p(node)

    def put(self, old: Tensor, new: Tensor, rows: Tensor) -> Tensor:
        """``[B,V]``: ``new`` in the rows where ``rows [B]`` is true, ``old`` in the others."""
        return new if self.lazy and bool(rows.all()) else torch.where(rows[:, None], new, old)


@dataclass
class Visit:
    """One level of a walk, for every row: the inputs of a test, and its result."""

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
        in_turn: whether it tests one child after another, child j with uniform j, up to the first
            accepted one; :func:`specwb.explain` shows the tests accordingly.
    """

    in_turn = True

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> Decision:
        """Decide among the children of one node, for every row.

        Args:
            p: ``[B,V]``, the target's distribution.
            q: ``[B,V]``, the distribution that the children were drawn from, or None.
            tokens: ``[B,K]``, the children in drawing order.
            ok: ``[B,K]``, which of them exist.
            u: ``[B,draws(K)]``, uniforms.
        Returns:
            A :data:`Decision`. With no child ok the residual is p.
        """
        raise NotImplementedError

    def draws(self, children: int) -> int:
        """The number of uniforms that ``node`` takes for up to this many children."""
        return children

    def uniforms(self, limits: Limits) -> int:
        return limits.depth * self.draws(limits.children)

    def visits(
        self, draft: Draft, scores: Scores, u: Tensor, start: Tensor | None = None
    ) -> Iterator[Visit]:
        """Walk down from the root, or from the nodes ``start [B]`` below it, one level per
        iteration; rows that have stopped stay where they are."""
        tree = draft.tree
        if tree.D == 0:  # plain decoding: nothing to test and no uniforms
            return
        rows = draft.tokens.shape[0]
        # there are more than this tree's where the drafter could have made a larger one
        u = u[:, : self.uniforms(tree.limits)].view(rows, tree.D, -1)
        if draft.scheme is Scheme.IID_PATHS and tree.K > 1:
            tree = tree.merged(draft.tokens, draft.valid, repeats=True)
        row = torch.arange(rows, device=draft.tokens.device)
        of = row if len(tree.kids) > 1 else torch.zeros_like(row)
        node = torch.zeros_like(row) if start is None else start
        alive = torch.ones_like(row, dtype=torch.bool)
        for d in range(0 if start is None else 1, tree.D):
            if not self.some(alive) or not tree.widths[d]:  # a grown tree may be less deep than D
                return
            kids = tree.kids[of, node][:, : tree.widths[d]]
            safe = kids.clamp_min(0)
            tokens = draft.tokens.gather(1, safe)
            ok = (kids >= 0) & draft.valid.gather(1, safe)
            p, q = self.p(scores, node), draft.q_of(node)
            choice, residual = self.node(p, q, tokens, ok, u[:, d, : self.draws(tree.widths[d])])
            onward = alive & (choice >= 0)
            child = safe.gather(1, choice.clamp_min(0)[:, None]).squeeze(1)
            reached = torch.where(onward, child, node)
            yield Visit(
                d, node, alive, p, q, safe, tokens, ok, u[:, d], choice, residual, onward, reached
            )
            node, alive = reached, onward

    def verify(
        self, draft: Draft, scores: Scores, u: Tensor, start: Tensor | None = None
    ) -> Verdict:
        """As :meth:`Rule.verify`; ``start [B]`` are children of the root that the walk begins at,
        as if they had been accepted."""
        rows, device = draft.tokens.shape[0], draft.tokens.device
        node = torch.zeros(rows, dtype=torch.long, device=device) if start is None else start
        accepted = torch.full_like(node, 0 if start is None else 1)
        bonus: Tensor | None = None
        alive = torch.ones_like(node, dtype=torch.bool)
        for visit in self.visits(draft, scores, u, start):
            if self.some(alive & ~visit.onward):
                residual = visit.residual
                bonus = residual if bonus is None else self.put(bonus, residual, alive)
            alive, node = visit.onward, visit.reached
            accepted = accepted + alive
        if self.some(alive) or bonus is None:
            last = self.p(scores, node)
            bonus = last if bonus is None else self.put(bonus, last, alive)
        return Verdict(entries(draft.tree.trail, node), accepted, torch.empty(0), bonus)


def entries(table: Tensor, node: Tensor) -> Tensor:
    """The entries at ``node [B]`` of a table of a tree, ``[1,n,..]`` or ``[B,n,..]``."""
    per_row = len(table) > 1
    rows = torch.arange(len(node), device=node.device) if per_row else torch.zeros_like(node)
    return table[rows, node]


def without(p: Tensor, tokens: Tensor, ok: Tensor) -> Tensor:
    """``p [B,V]`` with the probability of those ``tokens [B,K]`` that are ``ok`` set to 0."""
    # equal tokens all write the same
    gone = ((tokens[:, :, None] == tokens[:, None, :]) & ok[:, None, :]).any(2)
    return p.scatter(1, tokens, torch.where(gone, 0, p.gather(1, tokens)))


def first(hit: Tensor) -> Tensor:
    """``[B,K]`` -> index of the first true column, -1 if there is none."""
    found, index = hit.max(1)
    return torch.where(found, index, -1)
