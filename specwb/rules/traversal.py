"""Traversal verification of a tree (2505.12398): from the leaves to the root.

In plain Python; ``children[node]`` are pairs of a child and its token in drawing order, and node n
has the uniform ``u[n]``. It returns the last node of the accepted path and the weights from which
the bonus token is drawn, or None where the whole subtree is rejected::

    def traversal(p, q, children, u, node=0, w=1.0):
        here, draft = p[node], q[node]
        for child, x in children[node]:
            end = traversal(p, q, children, u, child, min(1, w * here[x] / draft[x]))
            if end is not None:
                return end
            rest = [max(w * a - b, 0) for a, b in zip(here, draft)]
            z = sum(rest)
            if z == 0:
                return None
            here, w = [a / z for a in rest], z / (z + 1 - w)
            left = [0 if y == x else b for y, b in enumerate(draft)]
            draft = [b / sum(left) for b in left]
        return (node, here) if node == 0 or u[node] < w else None
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.core.flow import Draft, Scheme, Scores, Verdict
from specwb.core.tree import Limits
from specwb.rules.rrsw import SCALE
from specwb.rules.rule import Rule


class Traversal(Rule):
    """Go to the first leaf; accept it, with the whole path to it, or delete it and continue with
    its parent, until something is accepted. Exact. On a chain it is block verification, at depth 1
    RRSw. Otherwise it usually keeps more than RRSw; less where the larger subtrees are below later
    children (theory/07_whole_paths.md, theorem 7.4).

    A node has a weight w (the root 1) and two distributions, at first p and q. A child has ``w(x) =
    min(1, w p(x) / q(x))``; a node without children left is accepted with probability w, and the
    bonus token then comes from p. After a rejection of its child x: ``Z = sum (w p - q)+``, ``p <-
    (w p - q)+ / Z``, ``w <- Z / (Z + 1 - w)``, and x is removed from q, which is renormalised.

    Scalar form, with the first p and q throughout: the distributions are ``(p - c q)+ / m``, and q
    off the deleted tokens over its mass s there. A rejection is ``c <- c + m / (w s)``, ``m' = sum
    (p - c q)+``, ``Z = (w / m) m'``; and ``w(x) = min(1, w (p - c q)+(x) s / (m q(x)))``. A deleted
    token had ``w(x) < 1``, so p - c q stays negative on it. Three numbers per node; rows are read
    only after a rejection, at the parent. As in RRSw, s is summed over the remaining tokens, and c
    q is computed as ``(c / 2^64) (2^64 q)``, so that it does not overflow.

    Children must be in drawing order. Independent draws, paths too, are verified as the trie of
    their distinct paths, siblings in the order of their first appearance. Sibling lists must be
    drawn independently: with one shared list the output is wrong.

    If a row of p that is read contains NaN, the bonus token's distribution is NaN, wherever the
    traversal ends.

    One uniform per node. Rejections are sequential (at most n - 1 of them), so this costs a device
    more than rules that go down once. Where nothing may be read, all n tests are computed.

    Source: Weng et al., "Traversal Verification for Speculative Tree Decoding" (2025). Differs from
    the paper in: the scalar form, and the order is that of a trie, so that repeated candidates do
    no harm.
    """

    name = "traversal"
    fixed_shape = True
    schemes = frozenset({Scheme.WITHOUT_REPLACEMENT, Scheme.IID, Scheme.IID_PATHS})
    needs_independent = True

    def uniforms(self, limits: Limits) -> int:
        return limits.nodes - 1

    def verify(self, draft: Draft, scores: Scores, u: Tensor) -> Verdict:
        rows, tree = len(draft.tokens), draft.tree
        row = torch.arange(rows, device=draft.tokens.device)
        at = torch.zeros_like(row)
        if tree.D == 0:
            path = tree.trail.expand(rows, -1, -1)[row, at]
            return Verdict(path, at, torch.empty(0), scores.p(at))
        assert draft.q is not None
        assert draft.q_row is not None
        p = scores.probabilities(tree)  # [B,v,V]
        trie = tree.merged(draft.tokens, draft.valid)
        kids = torch.nn.functional.pad(trie.kids, (0, 1), value=-1)
        # where equal nodes were made one the children may be another's, and so may the row of q
        # they were drawn from
        above = tree.parent.expand(rows, -1).gather(1, kids[..., 0].clamp_min(0)).clamp_min(0)
        q_row = draft.q_row.expand(rows, -1).gather(1, above).clamp_min(0)
        # gone: how many children of a node are
        parent, gone = torch.zeros_like(kids[..., 0]), torch.zeros_like(kids[..., 0])
        # c, m, s, w of every node
        state = torch.ones((rows, tree.v, 4), dtype=torch.float64, device=row.device)
        state[..., 0] = 0
        going = torch.ones_like(at, dtype=torch.bool)
        broken = ~going
        for left in range(tree.v - 1, -1, -1):
            for _ in range(tree.D):
                kid = kids[row, at, gone[row, at]]
                down = going & (kid >= 0)
                if not self.some(down):
                    break
                kid = kid.clamp_min(0)
                x = draft.tokens[row, kid]
                c, m, s, w = state[row, at].unbind(1)
                qx = draft.q[row, q_row[row, at], x].double()
                px = p[row, at, x].double()
                # a NaN row was met: the traversal may end elsewhere, where nothing of it would show
                broken = broken | (down & px.isnan())
                # no draft of q has q = 0; of NaN nothing follows
                down = down & (px >= 0) & (qx > 0)
                w = (w * (px - c * qx).clamp_min(0) * s / (m * qx)).clamp_max(1)
                state[row, kid, 3] = torch.where(down, w, state[row, kid, 3])
                parent[row, kid] = torch.where(down, at, parent[row, kid])
                at = torch.where(down, kid, at)
            going = going & (at > 0) & (u[row, (at - 1).clamp_min(0)] >= state[row, at, 3])
            if left == 0 or not self.some(going):  # after so many rejections only the root is left
                break
            at = torch.where(going, parent[row, at], at)
            state[row, at], gone[row, at] = self._reject(
                p[row, at],
                draft.q[row, q_row[row, at]],
                state[row, at],
                gone[row, at],
                kids[row, at],
                draft.tokens,
                going,
            )
        bonus, c = p[row, at], state[row, at, 0]
        if self.some(c > 0):
            rest = _rest(bonus, draft.q[row, q_row[row, at]] * SCALE, c)
            bonus = self.put(bonus, rest, c > 0)
        if self.some(broken):
            bonus = torch.where(broken[:, None], torch.nan, bonus)
        of = row if tree.R > 1 else torch.zeros_like(row)
        path, accepted = tree.trail[of, at], tree.depth[of, at]
        return Verdict(path, accepted, torch.empty(0), bonus)

    def _reject(
        self,
        p: Tensor,
        q: Tensor,
        state: Tensor,
        gone: Tensor,
        kids: Tensor,
        words: Tensor,
        going: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """A node's numbers ``[B,4]`` and count of deleted children ``[B]`` after its next child is
        deleted, in the rows ``going``: its distributions ``p, q [B,V]``, its children
        ``kids [B,K+1]``, the draft's tokens ``words [B,n]``."""
        c, m, s, w = state.unbind(1)
        q = q * SCALE
        further = torch.where(w > 0, c + m / (w * s), c)
        mass = _rest(p, q, further).sum(1).double()
        moved = going & (w > 0) & (mass > 0)  # no mass is left: what is in force stays
        z = w / m * mass
        whole = z + (1 - w)
        w = torch.where(going, torch.where(whole > 0, z / whole, 1), w)
        c, m = torch.where(moved, further, c), torch.where(moved, mass, m)
        gone = gone + going
        if self.some(going & (kids.gather(1, gone[:, None]).squeeze(1) >= 0)):
            tokens = words.gather(1, kids.clamp_min(0))
            deleted = torch.arange(kids.shape[1], device=kids.device) < gone[:, None]
            tokens = torch.where(deleted, tokens, tokens[:, :1])  # the first child is deleted
            s = torch.where(going, q.scatter_(1, tokens, 0).sum(1).double() / SCALE, s)
        return torch.stack((c, m, s, w), 1), gone


def _rest(p: Tensor, scaled: Tensor, c: Tensor) -> Tensor:
    """``(p - c q)+`` for c ``[B]`` and q times ``SCALE``."""
    most = torch.finfo(p.dtype).max
    return torch.addcmul(p, scaled, -(c / SCALE).clamp_max(most).to(p.dtype)[:, None]).relu_()
