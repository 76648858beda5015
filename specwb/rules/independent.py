"""Children tested independently of each other, as in improved MCSD's code: LOSSY.

In plain Python, of a draft with one root; node n has the uniform ``u[n]``. It returns the last node
of the path that stays and the weights from which the bonus token is drawn::

    def independent(p, q, parents, tokens, u):
        depth, kept = [0], [True]
        for n in range(1, len(parents)):
            above, x = parents[n], tokens[n]
            depth.append(depth[above] + 1)
            kept.append(kept[above] and u[n] * q[above][x] < p[above][x])
        node = max((n for n in range(len(parents)) if kept[n]), key=lambda n: depth[n])
        if depth[node] in (0, max(depth)):
            return node, p[node]
        return node, [max(a - b, 0) for a, b in zip(p[node], q[node])]
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.core.flow import Draft, Exactness, Scheme, Scores, Verdict
from specwb.core.tree import Limits
from specwb.rules.greedy import sound
from specwb.rules.rule import Rule


class Independent(Rule):
    """Every draft token is tested separately, ``u q(x) < p(x)`` with the q that its node's children
    were drawn from, and the longest path of accepted tokens stays; ties go to the first. The bonus
    token is drawn from p if the path is as deep as the draft, from ``(p - q)+`` if it ends earlier,
    and from p itself if nothing was accepted.

    LOSSY, with one root too:

    - Siblings that are tested independently are accepted too often: with k equal distributions
      ``1 - (1 - beta)^k``, and q is subtracted once, whatever was rejected.
    - If nothing is accepted, the rejected tokens' share of p is not subtracted, so p is drawn from
      once more.
    - Of several roots, which the target drew, the one with the best continuation stays, as in
      :class:`specwb.rules.Longest`, which repairs the other two errors.

    Source: the code of Lu et al. 2024, arXiv 2409.10644. Differs from it in: the comparison is
    strict and nothing is divided; a residual without mass keeps p; the version with chains below
    the roots pairs p with the q of the level above, which is not repeated here; its roots are drawn
    without the temperature.
    """

    name = "independent"
    schemes = frozenset({Scheme.ROOTS, Scheme.IID, Scheme.WITHOUT_REPLACEMENT})
    exactness = Exactness.LOSSY

    def __init__(self, greedy: bool = False) -> None:
        self.greedy = greedy

    def greedy_rule(self) -> Rule:
        return Independent(greedy=True)

    def uniforms(self, limits: Limits) -> int:
        return 0 if self.greedy else limits.nodes - 1

    def verify(self, draft: Draft, scores: Scores, u: Tensor) -> Verdict:
        tree, rooted = draft.tree, draft.scheme is Scheme.ROOTS
        row = torch.arange(len(draft.tokens), device=draft.tokens.device)
        index = torch.arange(tree.n, device=row.device)
        p = None if self.greedy else scores.probabilities(tree)
        hit = self._hits(draft, scores, p, u)
        hit = torch.where(index == 0, True, hit)
        if rooted:  # drawn from the target: no test
            hit = torch.where(tree.depth == 1, draft.valid, hit)
        reached = ~(tree.mask & ~hit[:, None, :]).any(-1)
        node = (reached * (tree.depth + 1)).argmax(1)  # the first of the deepest
        of = row if len(tree.depth) > 1 else torch.zeros_like(row)
        path, depth = tree.trail[of, node], tree.depth[of, node]
        following = scores.logits[row, node] if p is None else self._next(draft, p[row, node], node)
        met = scores.logits if p is None else p
        broken = (reached & ~met.amax(-1).isfinite() & (index > int(rooted) - 1)).any(1)
        following = torch.where(broken[:, None], torch.nan, following)
        if not rooted:
            if p is None:
                best = scores.best(tree)[row, node]
                return Verdict(path, depth, best)
            return Verdict(path, depth, torch.empty(0), following)
        accepted = depth - 1
        place = torch.arange(path.shape[1], device=row.device)
        path = path.gather(1, torch.minimum(place, accepted[:, None]))
        return Verdict(path, accepted, draft.tokens[row, node], None, None, following)

    def _hits(self, draft: Draft, scores: Scores, p: Tensor | None, u: Tensor) -> Tensor:
        """``[B,n]``: which tokens pass their own test; of the root it says nothing."""
        tree, tokens = draft.tree, draft.tokens
        above = tree.parent.clamp_min(0).expand(len(tokens), -1)
        if p is None:
            best = scores.best(tree)
            agree = tokens == best.gather(1, above)
            return agree & draft.valid & sound(scores, best).gather(1, above)
        px, qx = torch.zeros_like(p[:, :, 0]), torch.zeros_like(p[:, :, 0])
        for node in range(1, tree.n):
            parent = above[:, node]
            q = draft.q_of(parent)
            assert q is not None
            x = tokens[:, node : node + 1]
            px[:, node] = p[torch.arange(len(x), device=x.device), parent].gather(1, x)[:, 0]
            qx[:, node] = q.gather(1, x)[:, 0]
        tests = torch.zeros_like(px, dtype=torch.bool)
        tests[:, 1:] = u[:, : tree.n - 1] * qx[:, 1:] < px[:, 1:]
        return tests & draft.valid

    def _next(self, draft: Draft, p: Tensor, node: Tensor) -> Tensor:
        """``[B,V]``: the distribution of what comes after ``node [B]``, whose own is p."""
        tree = draft.tree
        of = torch.arange(len(node), device=node.device) if len(tree.depth) > 1 else 0
        depth = tree.depth[of, node]
        first = int(draft.scheme is Scheme.ROOTS)
        q = draft.q_of(node)
        assert q is not None
        residual = (p - q).relu()
        inside = (depth > first) & (depth < tree.D) & (residual.sum(1) > 0)
        return torch.where(inside[:, None], residual / residual.sum(1, keepdim=True), p)
