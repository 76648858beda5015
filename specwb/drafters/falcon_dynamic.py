"""Falcon's blocks on a tree that follows the head's confidence: what the paper leaves for later, after EAGLE-2."""

from __future__ import annotations

import torch

from specwb.blocks import BlockTree
from specwb.drafters.eagle2 import beam_mask, best, bounds, reranked
from specwb.drafters.falcon import FalconDrafter
from specwb.flow import Draft, State
from specwb.models.falcon import FalconHead
from specwb.noise import Noise
from specwb.tree import Tree


class DynamicFalcon(FalconDrafter):
    """Expand: of each block's k lists the ``top`` best tokens, in all combinations; of all combinations of k tokens the ``beams`` best are the next
    pass's blocks. Re-rank: of all nodes made in ``passes`` passes the ``nodes - 1`` with the largest ``sum log q`` along their paths are drafted.

    Inside a block q is that of a place whatever stands before it, so the score of k tokens is a product of marginals. Tree and tokens are a
    function of the text alone: point masses, as in :class:`specwb.drafters.eagle2.DynamicEagle`.
    """

    def __init__(self, head: FalconHead, nodes: int, passes: int = 2, top: int = 4, beams: int = 4, align: str | None = None) -> None:
        self.passes, self.top, self.wide = passes, top, beams
        made = sum(top**j for j in range(1, head.k + 1))
        most = made * (1 + (passes - 1) * min(beams, top**head.k))
        super().__init__(head, bounds(nodes, head.k * passes, top, most), "greedy", align)

    def plan(self, tree: Tree) -> None:
        self.count = min(self.wide, self.top**self.k)  # blocks of a pass
        self.beams, self.window = (self.passes - 1) * self.count * self.k, tree.D + self.k
        self.blocks = BlockTree(Tree.chain(tree.D), self.k)

    def lay_out(self, device: torch.device) -> None:
        self.tree = self.tree.to(device)

    def propose(self, state: State, noise: Noise) -> Draft:
        k, top, rows, count = self.k, self.top, state.rows, self.count
        known, horizon = self.text(state)
        base = (known - 1)[:, None]
        hidden = self.begin(state)[:, None]
        zero = torch.zeros_like(base)
        # blocks of the pass: their scores, nodes, slots of their last pairs, and which slots behind the text they see
        score, node, ending = torch.zeros(rows, 1, device=base.device), zero, base
        sees = torch.zeros(rows, 1, 0, dtype=torch.bool, device=base.device)
        scores, tokens, parents, depths, made = [], [], [], [], 0
        for b in range(self.passes):
            blocks = hidden.shape[1]
            more, found = (x.view(rows, blocks, k, top) for x in best(self.logits(hidden.flatten(1, 2)), top))
            # level by level: all combinations of the lists' tokens, node numbers beside them
            total, at, words = score[:, :, None], node[:, :, None], torch.zeros(rows, blocks, 1, 0, dtype=torch.long, device=base.device)
            for j in range(k):
                size = total.shape[-1] * top
                parents.append(at[..., None].expand(-1, -1, -1, top).flatten(1))
                total = (total[..., None] + more[:, :, j, None]).flatten(2)
                token = found[:, :, j, None].expand(-1, -1, size // top, -1)
                words = torch.cat([words[:, :, :, None].expand(-1, -1, -1, top, -1), token[..., None]], -1).flatten(2, 3)
                scores.append(total.flatten(1))
                tokens.append(token.flatten(1))
                depths.append(torch.full_like(tokens[-1], b * k + j + 1))
                at = (made + 1 + torch.arange(blocks * size, device=base.device)).expand(rows, -1).view(rows, blocks, size)
                made += blocks * size
            if b + 1 == self.passes:
                break
            chosen = total.flatten(1).sort(descending=True, stable=True).indices[:, :count]
            score, node, home = total.flatten(1).gather(1, chosen), at.flatten(1).gather(1, chosen), chosen // total.shape[-1]
            drafted = words.flatten(1, 2).gather(1, chosen[:, :, None].expand(-1, -1, k))
            above = hidden.flatten(2).gather(1, home[:, :, None].expand(-1, -1, hidden[0, 0].numel())).unflatten(2, hidden.shape[2:])
            place = torch.arange(count * k, device=base.device)
            slots = base + 1 + b * count * k + place
            extent = horizon + (b + 1) * count * k
            own = (place[:, None] // k == place // k).expand(rows, -1, -1)
            before = sees.gather(1, home[:, :, None].expand(-1, -1, sees.shape[-1]))[:, :, None].expand(-1, -1, k, -1).flatten(1, 2)
            seen = torch.cat([before, own], -1)
            mask = beam_mask(seen, base[:, 0], extent, self.stack.dtype)
            hidden = self.pass_over(drafted, above, ending.gather(1, home), base + 1 + b * k + place % k, slots, extent, mask)
            ending, sees = slots[:, k - 1 :: k], seen[:, ::k]
        drafts = reranked(self, state, top, *(torch.cat(x, 1) for x in (scores, tokens, parents, depths)))
        drafts.valid[:, 1:] &= (state.known > k)[:, None]
        return drafts
