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
from specwb.rules.longest import Longest
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
    fixed_shape = True
    schemes = frozenset({Scheme.ROOTS, Scheme.IID, Scheme.WITHOUT_REPLACEMENT})
    exactness = Exactness.LOSSY

    def greedy_rule(self) -> Rule:
        return Longest(greedy=True)

    def uniforms(self, limits: Limits) -> int:
        return limits.nodes - 1

    def verify(self, draft: Draft, scores: Scores, u: Tensor) -> Verdict:
        tree, rooted = draft.tree, draft.scheme is Scheme.ROOTS
        row = torch.arange(len(draft.tokens), device=draft.tokens.device)
        index = torch.arange(tree.n, device=row.device)
        p = scores.probabilities(tree)
        hit = torch.where(index == 0, True, self._hits(draft, p, u))
        if rooted:  # drawn from the target: no test
            hit = torch.where(tree.depth == 1, draft.valid, hit)
        reached = ~(tree.mask & ~hit[:, None, :]).any(-1)
        node = (reached * (tree.depth + 1)).argmax(1)  # the first of the deepest
        of = row if len(tree.depth) > 1 else torch.zeros_like(row)
        path, depth = tree.trail[of, node], tree.depth[of, node]
        here, q = p[row, node], draft.q_of(node)
        assert q is not None
        residual = (here - q).relu()
        inside = (depth > int(rooted)) & (depth < tree.D) & (residual.sum(1) > 0)
        following = torch.where(inside[:, None], residual / residual.sum(1, keepdim=True), here)
        broken = (reached & ~p.amax(-1).isfinite() & (index > int(rooted) - 1)).any(1)
        following = torch.where(broken[:, None], torch.nan, following)
        if not rooted:
            return Verdict(path, depth, torch.empty(0), following)
        accepted = depth - 1
        place = torch.arange(path.shape[1], device=row.device)
        path = path.gather(1, torch.minimum(place, accepted[:, None]))
        return Verdict(path, accepted, draft.tokens[row, node], None, None, following)

    def _hits(self, draft: Draft, p: Tensor, u: Tensor) -> Tensor:
        """``[B,n]``: which tokens pass their own test; of the root it says nothing."""
        tree, tokens = draft.tree, draft.tokens
        above = tree.parent.clamp_min(0).expand(len(tokens), -1)
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
