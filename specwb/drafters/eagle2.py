"""EAGLE-2: the tree follows the head's confidence, anew every round and for every row."""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.drafters.base import Drafter
from specwb.drafters.eagle import EagleDrafter
from specwb.flow import Draft, State
from specwb.models.eagle import EagleHead
from specwb.noise import Noise
from specwb.tree import GrownTree, Tree


class DynamicEagle(EagleDrafter):
    """Expand: ``depth`` times the ``top`` best nodes of a level each get the head's ``top`` best tokens. Re-rank: of all nodes made so the
    ``nodes - 1`` with the largest ``sum log q`` along their paths are drafted.

    A node's score is never above its parent's, and of equals the one made first is kept, which the parent is: what is kept is a tree.

    The tree and its tokens are a function of the text alone, at every temperature, so candidates are point masses and the point-mass rule is
    exact. (Sampled candidates must not be chosen by how likely they turned out; see theory, what breaks losslessness.)

    Source: Li et al., "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees" (2024), arXiv 2406.16858; for EAGLE-3 heads
    arXiv 2503.01840. total_token there is ``nodes`` here, its depth is ``depth`` - 1.
    """

    def __init__(self, head: EagleHead, nodes: int = 60, depth: int = 6, top: int = 10) -> None:
        super().__init__(head, bounds(nodes, depth, top, top + (depth - 1) * top * top), "greedy")
        self.top, self.beams = top, (depth - 1) * top

    def lay_out(self, device: torch.device) -> None:
        self.tree = self.tree.to(device)

    def propose(self, state: State, noise: Noise) -> Draft:
        k, rows = self.top, state.rows
        known, horizon = self.text(state)
        base = known - 1
        beam = torch.arange(k, device=base.device)
        own = torch.eye(k, dtype=torch.bool, device=base.device).expand(rows, -1, -1)
        hidden = self.begin(state)
        score, token = best(self.logits(hidden), k)
        score, token = score[:, 0], token[:, 0]
        # everything made so far, in the order of its making: node i + 1 is entry i
        scores, tokens, parents, depths = [score], [token], [torch.zeros_like(token)], [torch.ones_like(token)]
        node, above, sees, made = (beam + 1).expand(rows, -1), hidden.expand(-1, k, -1), own, k
        for d in range(1, self.tree.D):
            slots = base[:, None] + 1 + (d - 1) * k + beam
            extent = horizon + d * k
            mask = beam_mask(sees, base, extent, self.stack.dtype)
            hidden = self.feed(state, token, above, (base[:, None] + d).expand(-1, k), slots, extent, mask)
            more, children = best(self.logits(hidden), k)
            more = (score[:, :, None] + more).flatten(1)
            scores.append(more)
            tokens.append(children.flatten(1))
            parents.append(node[:, :, None].expand(-1, -1, k).flatten(1))
            depths.append(torch.full_like(parents[-1], d + 1))
            chosen = more.sort(descending=True, stable=True).indices[:, :k]
            from_beam = chosen // k
            score, token, node = more.gather(1, chosen), tokens[-1].gather(1, chosen), made + 1 + chosen
            above = hidden.gather(1, from_beam[:, :, None].expand(-1, -1, hidden.shape[-1]))
            sees = torch.cat([sees.gather(1, from_beam[:, :, None].expand(-1, -1, sees.shape[-1])), own], -1)
            made += k * k
        return reranked(self, state, k, *(torch.cat(x, 1) for x in (scores, tokens, parents, depths)))


def best(logits: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """``[B,m,V]`` -> ``[B,m,top]`` log-probabilities, never above 0, and tokens."""
    score, token = logits.float().log_softmax(-1).topk(top, -1)
    return score.clamp_max(0), token


def beam_mask(sees: Tensor, base: Tensor, extent: int, dtype: torch.dtype) -> Tensor:
    """``[B,q,extent]``: the text up to the root, and of the slots behind it what ``sees [B,q,m]`` says."""
    column = (torch.arange(extent, device=base.device) - base[:, None]).clamp(0, sees.shape[-1] + 1)
    edge = torch.ones_like(sees[:, :, :1])
    table = torch.cat([edge, sees, ~edge], -1).gather(2, column[:, None].expand(-1, sees.shape[1], -1))
    return torch.zeros(table.shape, dtype=dtype, device=base.device).masked_fill_(~table, torch.finfo(dtype).min)


def reranked(drafter: Drafter, state: State, top: int, scores: Tensor, tokens: Tensor, parents: Tensor, depths: Tensor) -> Draft:
    """Of all nodes made, ``[B,m]`` in the order of their making (node i + 1 is entry i, parent 0 the root), the best as a draft of
    ``drafter.tree.n`` nodes."""
    kept = best_nodes(scores, drafter.tree.n)
    return grown(drafter, state, kept, GrownTree(*renumbered(kept, parents, depths), drafter.tree.D, top), tokens, scores)


def best_nodes(scores: Tensor, n: int) -> Tensor:
    """``[B,m] -> [B,n-1]`` entries with the largest scores, in the order of their making; of equals the ones made first."""
    return scores.sort(descending=True, stable=True).indices[:, : n - 1].sort().values


def renumbered(kept: Tensor, parents: Tensor, depths: Tensor) -> tuple[Tensor, Tensor]:
    """Parents and depths ``[B,n]`` of a tree of the root and the entries ``kept [B,n-1]``, which has the parents of all of them."""
    index = torch.arange(1, kept.shape[1] + 1, device=kept.device).expand(len(kept), -1)
    new = torch.zeros(len(kept), parents.shape[1] + 1, dtype=torch.long, device=kept.device).scatter_(1, kept + 1, index)
    root = torch.zeros_like(kept[:, :1])
    return torch.cat([root - 1, new.gather(1, parents.gather(1, kept))], 1), torch.cat([root, depths.gather(1, kept)], 1)


def grown(drafter: Drafter, state: State, kept: Tensor, tree: GrownTree, tokens: Tensor, scores: Tensor) -> Draft:
    """The entries ``kept`` as a draft; those without a score are not valid."""
    return drafter.candidates(state, tokens.gather(1, kept), scores.gather(1, kept) > -torch.inf, tree)


def bounds(nodes: int, depth: int, top: int, most: int) -> Tree:
    """Stands for all that can be drafted: a tree of so many nodes and levels, with the bounds of children a node that :class:`GrownTree` has.

    Raises:
        ValueError: fewer nodes than levels, or more than the ``most`` that are made.
    """
    if not depth < nodes <= most + 1:
        raise ValueError(f"{depth} levels of {top} tokens each make trees of {depth + 1} to {most + 1} nodes, got nodes={nodes}")
    parents, room = [-1, *range(depth)], [top - 1] * depth + [0]
    while len(parents) < nodes:
        at = next((i for i, left in enumerate(room) if left), None)
        if at is None:
            raise ValueError(f"{nodes} nodes do not fit")
        parents.append(at)
        room[at] -= 1
        room.append(top if _depth(parents, len(parents) - 1) < depth else 0)
    tree = Tree.parents(parents)
    return tree._with(K=top, widths=(top,) * depth)  # what a rule counts its uniforms by


def _depth(parents: list[int], node: int) -> int:
    d = 0
    while parents[node] >= 0:
        node, d = parents[node], d + 1
    return d
