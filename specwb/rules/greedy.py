"""The walk at temperature 0: accept draft tokens as long as they are the target's argmax.

In plain Python; ``children[node]`` maps a token to the child that has it. It returns the last node
of the accepted path and the bonus token::

    def greedy(p, children):
        node = 0
        while True:
            best = p[node].index(max(p[node]))
            if best not in children[node]:
                return node, best
            node = children[node][best]
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.core.flow import Draft, Scheme, Scores, Verdict
from specwb.core.tree import Limits
from specwb.rules.rule import Rule


class Greedy(Rule):
    """Accept the longest path of nodes that each equal the target's argmax after their parent; the
    bonus token is the next argmax.

    Ties go to the lowest index, as in plain decoding. Exact for any draft; needs no uniforms and no
    q. Below a row whose largest logit is not finite nothing is accepted: the step ends there, and
    the engine raises an error.
    """

    name = "greedy"
    schemes = frozenset(Scheme)

    def uniforms(self, limits: Limits) -> int:
        return 0

    def verify(self, draft: Draft, scores: Scores, u: Tensor | None = None) -> Verdict:
        tree = draft.tree
        best, tokens, valid = scores.best(tree), draft.tokens[:, : tree.v], draft.valid[:, : tree.v]
        rows = len(tokens)
        if tree.v == 1:
            return Verdict(torch.zeros_like(best), torch.zeros_like(best[:, 0]), best[:, 0])
        if tree.is_chain:
            agree = (tokens[:, 1:] == best[:, :-1]) & valid[:, 1:] & sound(scores, best)[:, :-1]
            accepted = agree.long().cumprod(1).sum(1)
            path = torch.minimum(tree.trail[:, -1].expand(rows, -1), accepted[:, None])
            return Verdict(path, accepted, best.gather(1, accepted[:, None]).squeeze(1))
        parent, depth = tree.parent[:, : tree.v].expand(rows, -1), tree.depth[:, : tree.v]
        above = parent.clamp_min(0)
        agree = (tokens == best.gather(1, above)) & valid & (parent >= 0)
        agree = agree & sound(scores, best).gather(1, above)
        agree[:, 0] = True
        # every ancestor agrees
        reached = ~(tree.mask[:, : tree.v, : tree.v] & ~agree[:, None, :]).any(-1)
        node = (reached * (depth + 1)).argmax(1)  # deepest; of repeated siblings the first
        row = torch.arange(len(node), device=node.device)
        of = row if tree.R > 1 else torch.zeros_like(row)  # once for all tables: a kernel each
        return Verdict(tree.trail[of, node], tree.depth[of, node], best[row, node])


def sound(scores: Scores, best: Tensor) -> Tensor:
    """``[B,v]``: whether the largest logit ``best [B,v]`` is a finite number; in a row with NaN the
    argmax is a NaN."""
    return scores.logits[:, : best.shape[1]].gather(2, best[:, :, None]).squeeze(2).isfinite()
