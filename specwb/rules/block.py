"""Block verification of a chain (Sun et al. 2403.10444): the number of accepted tokens is decided
for the whole block, not token by token.

In plain Python; ``p[i]`` is the distribution after i draft tokens. It returns the number of
accepted tokens and the weights from which the bonus token is drawn::

    def block(p, q, tokens, u):
        w, kept = [1.0], 0
        for i, x in enumerate(tokens, start=1):
            w.append(min(1, w[-1] * p[i - 1][x] / q[i - 1][x]))
            h = w[i]
            if i < len(tokens):
                z = sum(max(w[i] * a - b, 0) for a, b in zip(p[i], q[i]))
                h = z / (z + 1 - w[i])
            if u[i - 1] < h:
                kept = i
        if kept == len(tokens):
            return kept, p[kept]
        return kept, [max(w[kept] * a - b, 0) for a, b in zip(p[kept], q[kept])]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specwb.core.flow import Draft, Scheme, Scores, Verdict
from specwb.core.tree import Limits
from specwb.rules.rule import Rule, entries


class Block(Rule):
    """Keep the longest beginning ``x_1..x_i`` of the block with ``u_i < h_i``. Exact. No lossless
    rule for a single path keeps more, if the target continues after the bonus token (theorem 7.2).

    ``w_0 = 1``, ``w_i = min(1, w_{i-1} p(x_i) / q(x_i))``; ``Z_i = sum (w_i p - q)+`` over the
    distributions after x_i; ``h_i = Z_i / (Z_i + 1 - w_i)`` (1 where that is 0/0), and at the end
    of the block ``h = w``. The bonus token is drawn from ``(w_i p - q)+``, after a whole block from
    p. Then ``P(at least i are kept | x_1..x_i) = w_i``, so ``E[accepted] = sum_i sum over x^i of
    min over j of q(x^j) p(x_{j+1}..x_i | x^j)``: never less than token rejection, and more is
    possible from two tokens on.

    If a row of p that w needs contains NaN, the bonus token's distribution is NaN, wherever the
    block ends.

    A row's chain may end early (invalid nodes), if the decision to continue depends only on earlier
    tokens: the rule is then used with the row's own length. A token with q = 0 ends the chain too.

    One uniform per depth. w needs all rows of p but the last. Z is summed from the end of the block
    backwards, only down to where the row stops, and not at all where ``u_i >= w_i``, since ``h_i <=
    w_i``: a block that is kept whole reads no row of q. Where nothing may be read, all rows are
    summed. w stays in float64, in which ``1 - w`` loses no digits of float32 probabilities.

    Source: Sun et al., "Block Verification Accelerates Speculative Decoding" (2024); optimality:
    Thomas and Pal 2602.16961.
    """

    name = "block"
    schemes = frozenset({Scheme.IID, Scheme.WITHOUT_REPLACEMENT})  # one draw: the two are the same
    chain_only = True

    def uniforms(self, limits: Limits) -> int:
        return limits.depth

    def verify(self, draft: Draft, scores: Scores, u: Tensor) -> Verdict:
        tree, rows = draft.tree, len(draft.tokens)
        deepest = tree.depth[:, : tree.v].argmax(1)
        shape = torch.arange(tree.R, device=deepest.device)
        nodes = tree.trail[shape, deepest].expand(rows, -1)
        depths = torch.arange(1, tree.D + 1, device=deepest.device)
        there = depths <= tree.depth[shape, deepest][:, None]
        ok = draft.valid.gather(1, nodes)[:, 1:] & there
        if draft.q is None or draft.q_row is None:
            qx = torch.zeros_like(ok, dtype=torch.float64)  # a draft of nothing
        else:
            row = torch.arange(rows, device=nodes.device)[:, None]
            where = draft.q_row.expand(rows, -1).gather(1, nodes[:, :-1]).clamp_min(0)
            qx = draft.q[row, where, draft.tokens.gather(1, nodes[:, 1:])].double()

        def p(d: int) -> Tensor:
            return self.p(scores, nodes[:, d])

        def q(d: int) -> Tensor | None:
            return draft.q_of(nodes[:, d])

        return self.along(draft, u, nodes, ok, qx, p, q)

    def along(
        self,
        draft: Draft,
        u: Tensor,
        nodes: Tensor,
        ok: Tensor,
        qx: Tensor,
        p: Callable[[int], Tensor],
        q: Callable[[int], Tensor | None],
    ) -> Verdict:
        """Verify the path ``nodes [B,D+1]``: its token at depth d + 1 was drawn from
        ``q(d) [B,V]``, where it had the probability ``qx[:, d]``, and may be accepted where
        ``ok[:, d]``; ``p(d) [B,V]`` is the target's distribution in its place."""
        depth = ok.shape[1]
        tokens = draft.tokens.gather(1, nodes)
        going = torch.ones_like(nodes[:, 0], dtype=torch.bool)
        length, broken = torch.zeros_like(nodes[:, 0]), ~going
        rows_of_p: list[Tensor] = []
        weights = [torch.ones_like(going, dtype=torch.float64)]
        for d in range(depth):
            going = going & ok[:, d] & (qx[:, d] > 0)
            if not self.some(going & (weights[d] > 0)):
                break
            rows_of_p.append(p(d))
            px = rows_of_p[d].gather(1, tokens[:, d + 1 : d + 2]).squeeze(1).double()
            # a NaN row was met: the block may close above it, where nothing of it would show
            broken = broken | (going & (weights[d] > 0) & px.isnan())
            going = going & (px >= 0)
            weights.append(torch.where(going, (weights[d] * px / qx[:, d]).clamp_max(1), 0))
            length = length + going
        accepted = torch.full_like(length, -1)
        distribution: Tensor | None = None
        for d in range(len(weights) - 1, -1, -1):
            w = weights[d]
            turn = (accepted < 0) & (d <= length)
            if d:
                turn = turn & (u[:, d - 1] < w)
            if not self.some(turn):
                continue
            here = rows_of_p[d] if d < len(rows_of_p) else p(d)
            last = length == d
            after, hit = here, turn
            if d < len(rows_of_p) and self.some(turn & ~last):
                rest = q(d)
                assert rest is not None
                left = torch.mul(here, w.to(here.dtype)[:, None]).sub_(rest).relu_()
                z = left.sum(1).double()
                if d:
                    whole = z + (1 - w)
                    hit = turn & (last | (u[:, d - 1] * whole < z) | (whole <= 0))
                after = self.put(here, left, ~last & (z > 0))  # no mass is left: p stays in force
            accepted = torch.where(hit, d, accepted)
            distribution = after if distribution is None else self.put(distribution, after, hit)
        assert distribution is not None
        if self.some(broken):
            distribution = torch.where(broken[:, None], torch.nan, distribution)
        node = nodes.gather(1, accepted[:, None]).squeeze(1)
        return Verdict(entries(draft.tree.trail, node), accepted, torch.empty(0), distribution)
