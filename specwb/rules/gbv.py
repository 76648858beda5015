"""Greedy multi-path block verification (Thomas and Pal 2602.16961).

In plain Python; ``p(prefix)`` and ``q(prefix)`` are the distributions after a part of a path. It
returns the best path, the number of its accepted tokens and the weights from which the bonus token
is drawn::

    def gbv(p, q, paths, u):
        def order(prefix):
            ratios = [a / b for a, b in zip(p(prefix), q(prefix))]
            return sorted(range(len(ratios)), key=lambda x: (ratios[x], x))

        best = max(paths, key=lambda path: [order(path[:i]).index(x) for i, x in enumerate(path)])
        k, low, high, skewed = len(paths), 0.0, 1.0, []
        for i, x in enumerate(best):
            row, start = [0.0] * len(q(best[:i])), low
            for y in order(best[:i]):
                end = start + (high - low) * q(best[:i])[y]
                row[y] = (end**k - start**k) / (high**k - low**k)
                if y == x:
                    following = start, end
                start = end
            skewed.append(row)
            low, high = following
        return best, *block([p(best[:i]) for i in range(len(best) + 1)], skewed, best, u)
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specwb.core.flow import Draft, RuleMismatch, Scheme, Scores, Verdict
from specwb.core.tree import Limits
from specwb.rules.block import Block


class GBV(Block):
    """Verify the largest of K independent paths, in the order of p/q token by token, as a block
    drawn from the distribution of the largest. Exact; with K = 1 it is block verification.

    At a node of draft probability J with paths of mass A ranked below it, a token x with y = J
    q(tokens ranked below x) and z = J q(x) has ``q_skew(x) = ((A + y + z)^K - (A + y)^K) / ((A +
    J)^K - A^K)``; at its child J' = z and A' = A + y. The differences of powers are written as z
    and J times sums of positive terms, divided by ``(A + J)^(K-1)``, so nothing cancels or
    underflows.

    Any total order gives a lossless rule, as long as selection and A, y use the same one: here the
    float ratio p/q, ties by token id. A row of q_skew takes one sort of the vocabulary; where
    reading is free, it is computed only if block verification needs the row. The selection and A, y
    take two passes over p and q at each node of the path.

    Even for p = q some drafts are rejected: the largest of several draws is not distributed as one
    of them.

    One uniform per depth. Source: Thomas and Pal, "Greedy Multi-Path Block Verification" (2026);
    the formula from the authors' reference code. Differs from it in: the order is total (theirs
    compares ratios, so ties disagree), sums instead of differences of powers.
    """

    name = "gbv"
    schemes = frozenset({Scheme.IID_PATHS})
    chain_only = False
    fixed_number = True

    def check(self, scheme: Scheme, limits: Limits, independent: bool = True) -> None:
        super().check(scheme, limits, independent)
        if limits.children > 1 and not limits.paths:
            raise RuleMismatch(
                "rule 'gbv' compares whole paths; give a tree such as 4-1-1, which is four paths of"
                " three tokens"
            )

    def verify(self, draft: Draft, scores: Scores, u: Tensor) -> Verdict:
        tree, K = draft.tree, draft.tree.K
        if K <= 1:
            return super().verify(draft, scores, u)
        rows, depth = len(draft.tokens), tree.D
        # node of every path at every depth
        paths = 1 + torch.arange(depth * K, device=draft.tokens.device).view(depth, K)
        tokens = draft.tokens[:, 1:].view(rows, depth, K)
        # [B,K] paths that are the largest so far
        largest = torch.ones_like(tokens[:, 0], dtype=torch.bool)
        below = torch.zeros_like(tokens[:, 0, 0], dtype=torch.float64)  # A
        mass = torch.ones_like(below)  # J
        node = torch.zeros_like(tokens[:, 0, 0])
        targets, drafts, ratios, places, drawn = [], [], [], [], []
        for d in range(depth):
            p, q = scores.p(node), draft.q_of(node)
            assert q is not None
            ratio = torch.where(q > 0, p / q, torch.inf).float()
            r = torch.where(largest, ratio.gather(1, tokens[:, d]), -1)
            top = r.amax(1, keepdim=True)
            x = torch.where(r == top, tokens[:, d], 0).amax(1, keepdim=True)
            ids = torch.arange(q.shape[1], device=q.device)
            lower = (ratio < top) | ((ratio == top) & (ids < x))
            z = mass * q.gather(1, x).squeeze(1).double()
            y = mass * torch.where(lower, q, 0).sum(1, dtype=torch.float64)
            targets.append(p)
            drafts.append(q)
            ratios.append(ratio)
            places.append((below, mass))
            drawn.append(skewed(z[:, None], (below + y)[:, None], below, mass, K).squeeze(1))
            still = largest & (tokens[:, d] == x)
            # of a row that is NaN nothing is the largest: the path stays, and the block says what
            # it met
            largest = torch.where(still.any(1, keepdim=True), still, largest)
            below, mass = below + y, z
            node = paths[d][largest.int().argmax(1)]

        def q_skew(d: int) -> Tensor:
            order = self._ascending(ratios[d])
            below, mass = places[d]
            each = mass[:, None] * drafts[d].gather(1, order).double()
            upto = below[:, None] + each.cumsum(1)
            under = torch.cat([below[:, None], upto[:, :-1]], 1)
            skew = skewed(each, under, below, mass, K)
            return torch.empty_like(drafts[d]).scatter_(1, order, skew.to(drafts[d].dtype))

        def p_of(d: int) -> Tensor:
            return targets[d] if d < depth else scores.p(node)

        # [B,D+1]
        best = torch.cat([torch.zeros_like(paths[:1]), paths])[:, largest.int().argmax(1)].T
        ok = draft.valid.gather(1, best)[:, 1:]
        return self.along(draft, u, best, ok, torch.stack(drawn, 1), p_of, q_skew)

    def _ascending(self, ratio: Tensor) -> Tensor:
        """``[B,V]`` tokens by their ratio, equal ones by id: one number for both, since floats >= 0
        are ordered as their bits are."""
        ids = torch.arange(ratio.shape[1], device=ratio.device)
        key = (ratio.view(torch.int32).long() << 32) + ids
        if self.lazy and key.is_cpu:
            # numpy sorts 64-bit integers a hundred times faster than torch sorts floats
            ranked = torch.from_numpy(np.sort(key.numpy(), axis=1))
        else:
            ranked = key.sort(1).values
        return ranked & 0xFFFFFFFF


def skewed(z: Tensor, under: Tensor, below: Tensor, mass: Tensor, k: int) -> Tensor:
    """``((under + z)^k - under^k) / ((below + mass)^k - below^k)`` for z, under ``[B,m]`` and
    below, mass ``[B]``, without cancellation."""
    total = (below + mass)[:, None]
    top = _sums((under + z) / total, under / total, k)
    bottom = _sums(torch.ones_like(total), below[:, None] / total, k)
    return z / mass[:, None] * top / bottom


def _sums(a: Tensor, b: Tensor, k: int) -> Tensor:
    """``(a^k - b^k) / (a - b) = a^(k-1) + a^(k-2) b + .. + b^(k-1)``."""
    total, power = torch.ones_like(a), torch.ones_like(b)
    for _ in range(k - 1):
        power = power * b
        total = total * a + power
    return total
