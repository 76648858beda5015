"""The longest of several roots, as target-initialised candidates are verified: LOSSY.

In plain Python; ``children[node]`` maps a token to the child that has it, ``u[r][depth]`` are the
uniforms below root r. It returns the nodes of the path that stays and the weights from which the
token after it is drawn::

    def longest(p, q, children, u):
        best = []
        for r, root in enumerate(children[0].values()):
            path, following = [root], None
            while children[path[-1]] and following is None:
                node = path[-1]
                x, following = rrsw(p[node], q[node], [*children[node]], u[r][len(path)])
                if x is not None:
                    path.append(children[node][x])
            if len(path) > len(best):
                best, weights = path, following or p[path[-1]]
        return best, weights
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.core.flow import Draft, Exactness, Scheme, Scores, Verdict
from specwb.core.tree import Limits
from specwb.rules.greedy import Greedy, sound
from specwb.rules.rrsw import RRSw
from specwb.rules.rule import Rule


class Longest(Rule):
    """The root's children were drawn from the target's own distribution and need no test; below
    each of them candidates are verified losslessly, and the one with the longest accepted path
    stays; ties go to the first drawn. LOSSY with two or more roots: the one that stays depends on
    how well the draft continued it, so tokens that are easy to continue are written too often
    (theorem 13.3). At T = 0 it may be the target's second choice.

    The last token that stays becomes the bonus token: it has been scored already, and the
    distribution of the token after it is ``Verdict.next_distribution``.

    Source: Lu et al. 2024, arXiv 2409.10644, and its code. Differs from it in: children are tested
    in turn (there all at once, with one q), and a residual is used wherever a walk ends (there p
    itself where no child of a root was accepted); both are separate biases of the code, with one
    root too.
    """

    name = "longest"
    schemes = frozenset({Scheme.ROOTS})
    exactness = Exactness.LOSSY

    def __init__(self, greedy: bool = False) -> None:
        self.greedy = greedy

    def greedy_rule(self) -> Rule:
        return Longest(greedy=True)

    def uniforms(self, limits: Limits) -> int:
        return 0 if self.greedy else limits.children * RRSw().uniforms(limits)

    def verify(self, draft: Draft, scores: Scores, u: Tensor) -> Verdict:
        if draft.scheme is not Scheme.ROOTS:  # of one root, at temperature 0
            return Greedy().verify(draft, scores, u)
        tree, row = draft.tree, torch.arange(len(draft.tokens), device=draft.tokens.device)
        each = RRSw().uniforms(tree.uncut.limits)  # whatever level the tree was cut at
        ends: list[tuple[Tensor, Tensor | None, Tensor]] = []  # of each root's walk
        broken = torch.zeros_like(row, dtype=torch.bool)
        for w, root in enumerate(tree.below[0][0]):
            if self.greedy:
                last, next_distribution = self._agreeing(draft, scores, root), None
            else:
                start = torch.full_like(row, root)
                below = RRSw().verify(draft, scores, u[:, w * each : (w + 1) * each], start)
                last, next_distribution = below.path[:, -1], below.distribution
            ends.append((last, next_distribution, draft.valid[:, root]))
            after = scores.logits[row, last] if next_distribution is None else next_distribution
            broken = broken | (draft.valid[:, root] & ~after.amax(1).isfinite())
        nodes = torch.stack([last for last, _, _ in ends], 1)
        # of those that could be drawn; the first always could
        lengths = tree.depth[0][nodes].masked_fill(~torch.stack([ok for _, _, ok in ends], 1), -1)
        best = lengths.argmax(1)
        node = nodes[row, best]
        aheads = [
            next_distribution for _, next_distribution, _ in ends if next_distribution is not None
        ]
        following = torch.stack(aheads, 1)[row, best] if aheads else scores.logits[row, node]
        # a NaN row that ended one root's path is behind the choice of another root too
        following = torch.where(broken[:, None], torch.nan, following)
        path, accepted = tree.trail[0][node], tree.depth[0][node] - 1
        place = torch.arange(path.shape[1], device=row.device)
        path = path.gather(1, torch.minimum(place, accepted[:, None]))
        return Verdict(path, accepted, draft.tokens[row, node], None, None, following)

    def _agreeing(self, draft: Draft, scores: Scores, root: int) -> Tensor:
        """``[B]``: the deepest node below ``root``, or it, whose path down to the root is the
        target's own."""
        tree = draft.tree
        best = scores.best(tree)
        above = tree.parent.clamp_min(0).expand_as(best)
        agree = (draft.tokens == best.gather(1, above)) & draft.valid
        agree = agree & sound(scores, best).gather(1, above)
        index = torch.arange(tree.n, device=best.device)
        agree = (agree | (index == root)) & tree.mask[0, :, root] | (index == 0)
        reached = ~(tree.mask & ~agree[:, None, :]).any(-1)
        return (reached * (tree.depth + 1)).argmax(1)
