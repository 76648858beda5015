"""Trees that follow the drafter's confidence: levels of beams, and the best of what they made.

A method expands a level (:meth:`Level.expand`), says which of the continuations go on
(:meth:`Level.best`), feeds these where :class:`Beams` places them, and in the end drafts all or
the best nodes it has made (:class:`Nodes`, :func:`reranked`). What it does in between is its own:
when to stop, and what to leave out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specwb.drafters.base import Drafter
from specwb.errors import ArgumentError
from specwb.flow import Draft, State
from specwb.models.place import Place
from specwb.tree import GrownTree, Limits


def best(logits: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """``[B,m,V]`` -> ``[B,m,top]`` log-probabilities, never above 0, and their tokens."""
    score, token = logits.float().log_softmax(-1).topk(top, -1)
    return score.clamp_max(0), token


def best_first(scores: Tensor, count: int) -> Tensor:
    """``[B,m] -> [B,count]``: the entries with the largest scores, of equals the first."""
    return scores.sort(descending=True, stable=True).indices[:, :count]


def taken(x: Tensor, index: Tensor) -> Tensor:
    """``x[b, index[b, i]]``: of ``x [B,n,..]`` the entries ``index [B,m]`` of each row."""
    return x.take_along_dim(index.view(*index.shape, *[1] * (x.dim() - 2)), 1)


def repeated(x: Tensor, count: int) -> Tensor:
    """``[B,n,..] -> [B,n count,..]``: every entry of a row so many times, one after another.

    It is not ``repeat_interleave``, whose form for counts in a tensor waits for the device: the
    tests of recorded steps refuse that name in every form.
    """
    return x[:, :, None].expand(*x.shape[:2], count, *x.shape[2:]).flatten(1, 2)


@dataclass(frozen=True)
class Level:
    """Nodes of one depth, ``m`` in every row, as tensors ``[B,m]``.

    Attributes:
        score: the sum of log q along the path to each node, so never above the parent's.
        token: the token of each node.
        above: which node of the level that was expanded each of them continues.
        parent: the number of that node.
        number: the number of each node itself, once it is among :class:`Nodes`.
        depth: how many tokens the paths have.
    """

    score: Tensor
    token: Tensor
    above: Tensor
    parent: Tensor
    number: Tensor | None
    depth: int

    @staticmethod
    def root(rows: int, device: torch.device) -> Level:
        """The one node that is there before anything is drafted; it is number 0."""
        zero = torch.zeros(rows, 1, dtype=torch.long, device=device)
        return Level(zero.float(), zero, zero, zero - 1, zero, 0)

    def expand(self, score: Tensor, token: Tensor) -> Level:
        """All continuations by the drafter's best tokens, those of one node beside each other.

        Args:
            score: ``[B,m,top]`` log-probabilities of a node's children.
            token: ``[B,m,top]`` their tokens.

        Returns:
            ``m * top`` nodes a row.
        """
        assert self.number is not None
        rows, m, top = score.shape
        above = torch.arange(m * top, device=score.device).expand(rows, -1) // top
        total = (self.score[:, :, None] + score).flatten(1)
        return Level(
            total, token.flatten(1), above, self.number.gather(1, above), None, self.depth + 1
        )

    def best(self, count: int) -> Level:
        """The ``count`` nodes with the largest scores, best first; of equals the first."""
        return self.at(best_first(self.score, count))

    def at(self, index: Tensor) -> Level:
        """The nodes ``index [B,count]``."""

        def pick(x: Tensor) -> Tensor:
            return x.gather(1, index)

        number = None if self.number is None else pick(self.number)
        above, parent = pick(self.above), pick(self.parent)
        return Level(pick(self.score), pick(self.token), above, parent, number, self.depth)


class Beams:
    """Where the levels that are fed lie in a drafter's cache, and what each node sees there.

    The text ends with the root, at slot and position ``base``. Every level that is fed takes the
    next slots behind it: ``m`` beams of ``length`` tokens each, so that the cache holds paths that
    were given up too. A beam sees the text, the beams on its path and itself.

    Args:
        base: ``[B]`` slot of the root.
        horizon: a bound of ``base + 1`` that the host knows.
        dtype: number type of the masks.
        length: tokens of a beam: 1, or k where a drafter goes on in blocks of k.
    """

    def __init__(self, base: Tensor, horizon: int, dtype: torch.dtype, length: int = 1) -> None:
        self.base, self.dtype, self.length = base, dtype, length
        self.extent, self.depth = horizon, 0
        # which of the beams so far, [B,m,beams], lie on the way to each of the last level's
        self.sees = torch.zeros(len(base), 1, 0, dtype=torch.bool, device=base.device)

    def below(self, above: Tensor) -> Place:
        """Where the next level stands, ``m * length`` tokens, whose beams go on from the beams
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
    """``[B,q,extent]``: the text up to the root, and of the slots behind it what ``sees [B,q,m]``
    says."""
    column = (torch.arange(extent, device=base.device) - base[:, None]).clamp(0, sees.shape[-1] + 1)
    edge = torch.ones_like(sees[:, :, :1])
    table = torch.cat([edge, sees, ~edge], -1)
    table = table.gather(2, column[:, None].expand(-1, sees.shape[1], -1))
    mask = torch.zeros(table.shape, dtype=dtype, device=base.device)
    return mask.masked_fill_(~table, torch.finfo(dtype).min)


class Nodes:
    """All nodes that a draft is chosen from, in the order of their making: entry ``i`` is node
    number ``i + 1``, number 0 is the root."""

    def __init__(self) -> None:
        self.levels: list[Level] = []
        self.count = 0

    def add(self, level: Level) -> Level:
        """The same nodes with their numbers."""
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
        """The entries ``chosen [B,n-1]`` as a draft; those without a score are not valid.

        Args:
            drafter: the one that drafts.
            state: of the decoding.
            chosen: in the order of their making, each one's parent among them.
            top: a bound of the children of a node.
            scores: ``[B,count]``; -inf where there is none.
        """
        tokens = torch.cat([level.token for level in self.levels], 1)
        parents = torch.cat([level.parent for level in self.levels], 1)
        depths = [torch.full_like(level.parent, level.depth) for level in self.levels]
        table = renumbered(chosen, parents, torch.cat(depths, 1))
        tree = GrownTree(*table, self.levels[-1].depth, top)
        valid = scores.gather(1, chosen) > -torch.inf
        return drafter.candidates(state, tokens.gather(1, chosen), valid, tree)


def reranked(drafter: Drafter, state: State, nodes: Nodes, top: int) -> Draft:
    """The best of all nodes as a draft of ``drafter.limits.nodes`` nodes, each of which has at most
    ``top`` children.

    A node's score is never above its parent's, and of equals the one made first is chosen, which
    the parent is: what is chosen is a tree.
    """
    scores = nodes.scores
    return nodes.draft(drafter, state, best_nodes(scores, drafter.limits.nodes), top, scores)


def best_nodes(scores: Tensor, n: int) -> Tensor:
    """``[B,m] -> [B,n-1]``: the entries with the largest scores, in the order of their making; of
    equals the ones made first."""
    return best_first(scores, n - 1).sort().values


def renumbered(chosen: Tensor, parents: Tensor, depths: Tensor) -> tuple[Tensor, Tensor]:
    """Parents and depths ``[B,n]`` of the tree of the root and the entries ``chosen [B,n-1]``,
    among which are the parents of all of them."""
    index = torch.arange(1, chosen.shape[1] + 1, device=chosen.device).expand(len(chosen), -1)
    numbers = torch.zeros(len(chosen), parents.shape[1] + 1, dtype=torch.long, device=chosen.device)
    numbers.scatter_(1, chosen + 1, index)
    root = torch.zeros_like(chosen[:, :1])
    return (
        torch.cat([root - 1, numbers.gather(1, parents.gather(1, chosen))], 1),
        torch.cat([root, depths.gather(1, chosen)], 1),
    )


def grown_limits(nodes: int, depth: int, top: int, most: int) -> Limits:
    """The limits of trees of up to ``depth`` levels in which a node has up to ``top`` children.

    Args:
        nodes: how many nodes a tree has, the root included.
        most: how many nodes are made at all, the root left out.
    Raises:
        ValueError: fewer nodes than levels, or more than are made.
    """
    if not depth < nodes <= most + 1:
        raise ArgumentError(
            f"{depth} levels of {top} tokens each make trees of {depth + 1} to {most + 1} nodes,"
            f" got nodes={nodes}"
        )
    return Limits(nodes, depth, top)
