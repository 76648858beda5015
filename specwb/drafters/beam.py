"""Dynamic trees: levels of beams that follow the drafter's confidence, and the best of their nodes.

A method expands a level (:meth:`BeamLevel.expand`), selects the continuations to go on with
(:meth:`BeamLevel.best`), processes them at the places given by :class:`Beams`, and finally drafts
all nodes or the best ones (:class:`TreeNodes`, :func:`reranked`). When to stop and what to leave
out is specific to the method.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.errors import ArgumentError
from specwb.core.flow import Draft, State, taken
from specwb.core.tree import GrownTree, Limits
from specwb.drafters.base import Drafter
from specwb.models.place import Place


def best(logits: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """``[B,m,V]`` -> ``[B,m,top]`` log-probabilities, never above 0, and their tokens."""
    score, token = logits.float().log_softmax(-1).topk(top, -1)
    return score.clamp_max(0), token


def best_first(scores: Tensor, count: int) -> Tensor:
    """``[B,m] -> [B,count]``: the entries with the largest scores; ties go to the first."""
    return scores.sort(descending=True, stable=True).indices[:, :count]


def repeated(x: Tensor, count: int) -> Tensor:
    """``[B,n,..] -> [B,n count,..]``: every entry of a row repeated ``count`` times in place.
    (``repeat_interleave``, whose form for counts in a tensor waits for the device, is refused in
    every form by the tests of recorded steps.)"""
    return x[:, :, None].expand(*x.shape[:2], count, *x.shape[2:]).flatten(1, 2)


@dataclass(frozen=True)
class BeamLevel:
    """Nodes of one depth, ``m`` in every row. Tensors are ``[B,m]``.

    ``score`` is the sum of log q along a node's path, never above its parent's; ``above`` is the
    index of its parent in the expanded level, ``parent`` the parent's number; ``number`` is the
    node's own, once it is among :class:`TreeNodes`.
    """

    score: Tensor
    token: Tensor
    above: Tensor
    parent: Tensor
    number: Tensor | None
    depth: int

    @staticmethod
    def root(rows: int, device: torch.device) -> BeamLevel:
        """The root alone, with number 0: the level before anything is drafted."""
        zero = torch.zeros(rows, 1, dtype=torch.long, device=device)
        return BeamLevel(zero.float(), zero, zero, zero - 1, zero, 0)

    def expand(self, score: Tensor, token: Tensor) -> BeamLevel:
        """All continuations by the drafter's best tokens, ``m * top`` nodes per row, those of one
        node next to each other. ``score`` and ``token`` are ``[B,m,top]``: log-probabilities and
        tokens."""
        assert self.number is not None
        rows, m, top = score.shape
        above = torch.arange(m * top, device=score.device).expand(rows, -1) // top
        total = (self.score[:, :, None] + score).flatten(1)
        return BeamLevel(
            total, token.flatten(1), above, self.number.gather(1, above), None, self.depth + 1
        )

    def best(self, count: int) -> BeamLevel:
        """The ``count`` nodes with the largest scores, best first; ties go to the first."""
        return self.at(best_first(self.score, count))

    def at(self, index: Tensor) -> BeamLevel:
        """The nodes ``index [B,count]``."""

        def pick(x: Tensor) -> Tensor:
            return x.gather(1, index)

        number = None if self.number is None else pick(self.number)
        above, parent = pick(self.above), pick(self.parent)
        return BeamLevel(pick(self.score), pick(self.token), above, parent, number, self.depth)


class Beams:
    """The places of the processed levels in a drafter's cache, and what each node sees there.

    The text ends with the root, at slot and position ``base [B]``, below ``horizon``. Every
    processed level takes the next slots: ``m`` beams of ``length`` tokens each (1, or k for blocks
    of k), so the cache also holds paths that were given up. A beam sees the text, the beams on its
    path and itself.
    """

    def __init__(self, base: Tensor, horizon: int, dtype: torch.dtype, length: int = 1) -> None:
        self.base, self.dtype, self.length = base, dtype, length
        self.extent, self.depth = horizon, 0
        # which of the beams so far, [B,m,beams], lie on the way to each of the last level's
        self.sees = torch.zeros(len(base), 1, 0, dtype=torch.bool, device=base.device)

    def below(self, above: Tensor) -> Place:
        """The place of the next level, ``m * length`` tokens, whose beams continue the beams
        ``above [B,m]`` of the last one."""
        rows, m = above.shape
        size = m * self.length
        index = torch.arange(size, device=above.device)
        itself = torch.eye(m, dtype=torch.bool, device=above.device).expand(rows, -1, -1)
        first = self.base[:, None] + 1 + self.sees.shape[-1] * self.length
        self.sees = torch.cat([taken(self.sees, above), itself], -1)
        positions = self.base[:, None] + 1 + self.depth + index % self.length
        self.extent, self.depth = self.extent + size, self.depth + self.length
        sees = repeated(repeated(self.sees, self.length).mT, self.length).mT  # of every token
        mask = beam_mask(sees, self.base, self.extent, self.dtype)
        return Place(positions, first + index, self.extent, mask)


def beam_mask(sees: Tensor, base: Tensor, extent: int, dtype: torch.dtype) -> Tensor:
    """``[B,q,extent]``: shows the text up to the root, and the later slots given by ``sees
    [B,q,m]``."""
    column = (torch.arange(extent, device=base.device) - base[:, None]).clamp(0, sees.shape[-1] + 1)
    edge = torch.ones_like(sees[:, :, :1])
    table = torch.cat([edge, sees, ~edge], -1)
    table = table.gather(2, column[:, None].expand(-1, sees.shape[1], -1))
    mask = torch.zeros(table.shape, dtype=dtype, device=base.device)
    return mask.masked_fill_(~table, torch.finfo(dtype).min)


class TreeNodes:
    """All nodes that a draft is chosen from, in the order in which they were made: entry ``i`` is
    node number ``i + 1``, number 0 is the root."""

    def __init__(self) -> None:
        self.levels: list[BeamLevel] = []
        self.count = 0

    def add(self, level: BeamLevel) -> BeamLevel:
        """Returns the same nodes with their numbers."""
        first = 1 + self.count
        self.count += level.token.shape[1]
        number = torch.arange(first, 1 + self.count, device=level.token.device)
        self.levels.append(replace(level, number=number.expand_as(level.token)))
        return self.levels[-1]

    @property
    def scores(self) -> Tensor:
        """``[B,count]``."""
        return torch.cat([level.score for level in self.levels], 1)

    def draft(
        self, drafter: Drafter, state: State, chosen: Tensor, top: int, scores: Tensor
    ) -> Draft:
        """The entries ``chosen [B,n-1]``, in the order in which they were made and with each one's
        parent, as a draft with at most ``top`` children per node; those with ``scores [B,count]``
        of -inf are not valid."""
        tokens = torch.cat([level.token for level in self.levels], 1)
        parents = torch.cat([level.parent for level in self.levels], 1)
        depths = [torch.full_like(level.parent, level.depth) for level in self.levels]
        table = renumbered(chosen, parents, torch.cat(depths, 1))
        tree = GrownTree(*table, self.levels[-1].depth, top)
        score = scores.gather(1, chosen)
        draft = drafter.candidates(state, tokens.gather(1, chosen), score > -torch.inf, tree)
        if drafter.confident:
            path = F.pad(score.clamp_min(torch.finfo(score.dtype).min), (1, 0))
            draft.confidence = (path - path.gather(1, tree.parent.clamp_min(0))).exp()
        return draft


def reranked(drafter: Drafter, state: State, nodes: TreeNodes, top: int) -> Draft:
    """The best of all nodes, as a draft of ``drafter.limits.nodes`` nodes with at most ``top``
    children each. A node's score is never above its parent's, and ties go to the node made first,
    which the parent is: so the chosen nodes form a tree."""
    scores = nodes.scores
    return nodes.draft(drafter, state, best_nodes(scores, drafter.limits.nodes), top, scores)


def best_nodes(scores: Tensor, n: int) -> Tensor:
    """``[B,m] -> [B,n-1]``: the entries with the largest scores, in the order in which they were
    made; ties go to the ones made first."""
    return best_first(scores, n - 1).sort().values


def renumbered(chosen: Tensor, parents: Tensor, depths: Tensor) -> tuple[Tensor, Tensor]:
    """Parents and depths ``[B,n]`` of the tree that consists of the root and the entries ``chosen
    [B,n-1]``, which include the parents of all of them."""
    index = torch.arange(1, chosen.shape[1] + 1, device=chosen.device).expand(len(chosen), -1)
    numbers = torch.zeros(len(chosen), parents.shape[1] + 1, dtype=torch.long, device=chosen.device)
    numbers.scatter_(1, chosen + 1, index)
    root = torch.zeros_like(chosen[:, :1])
    return (
        torch.cat([root - 1, numbers.gather(1, parents.gather(1, chosen))], 1),
        torch.cat([root, depths.gather(1, chosen)], 1),
    )


def grown_limits(nodes: int, depth: int, top: int, most: int) -> Limits:
    """The limits of trees of ``nodes`` nodes (root included) and up to ``depth`` levels in which a
    node has up to ``top`` children, chosen from ``most`` nodes without the root."""
    if not depth < nodes <= most + 1:
        raise ArgumentError(
            f"{depth} levels of {top} tokens each make trees of {depth + 1} to {most + 1} nodes,"
            f" got nodes={nodes}"
        )
    return Limits(nodes, depth, top)
