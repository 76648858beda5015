"""Falcon's blocks on a tree that follows the head's confidence, like EAGLE-2's: the paper's future
work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from specwb.core.flow import Draft, State, taken
from specwb.core.noise import Noise
from specwb.core.options import Copy, MethodError, NodeCount, Option, TrainedHead, Verify
from specwb.core.tree import MOST
from specwb.drafters.base import Drafter, Entry
from specwb.drafters.beam import (
    BeamLevel,
    Beams,
    TreeNodes,
    best,
    best_first,
    grown_limits,
    repeated,
    reranked,
)
from specwb.drafters.falcon import Alignment, FalconDrafter, falcon_head
from specwb.models.falcon import FalconHead
from specwb.models.target import Target


class DynamicFalcon(FalconDrafter):
    """A tree that is expanded block by block where the head is confident, and whose best nodes are
    drafted.

    Expand: the ``top`` best tokens of each of a block's k lists, in all combinations; the ``beams``
    best of all combinations of k tokens are the next pass's blocks. Re-rank: of all nodes made in
    ``passes`` passes, the ``nodes - 1`` with the largest ``sum log q`` along their paths are
    drafted.

    Inside a block q does not depend on the tokens before a place, so the score of k tokens is a
    product of marginals. Tree and tokens are a function of the text alone: point masses, as in
    :class:`specwb.drafters.eagle2.DynamicEagle`.
    """

    def __init__(
        self,
        head: FalconHead,
        nodes: int,
        passes: int = 2,
        top: int = 4,
        beams: int = 4,
        align: str | None = None,
    ) -> None:
        self.passes, self.top, self.beams = passes, top, beams
        nodes_of_block = sum(top**j for j in range(1, head.k + 1))
        most = nodes_of_block * (1 + (passes - 1) * min(beams, top**head.k))
        limits = grown_limits(nodes, head.k * passes, top, most)
        super().__init__(head, limits, "greedy", align)

    def plan(self) -> None:
        self.count = min(self.beams, self.top**self.k)  # blocks of a pass
        self.extra_slots = (self.passes - 1) * self.count * self.k

    def propose(self, state: State, noise: Noise) -> Draft:
        k, top = self.k, self.top
        length, horizon = self.text(state)
        level = BeamLevel.root(state.rows, length.device)
        beams, nodes = Beams(length - 1, horizon, self.stack.dtype, k), TreeNodes()
        hidden = self.begin(state)[:, None]  # [B,blocks,k,H]
        ends = beams.base[:, None]  # slots of the blocks' last pairs
        for block in range(self.passes):
            logits = self.own_logits(hidden.flatten(1, 2))
            score, word = best(state.perturbed(logits, block * k, k, self.words), top)
            scores, tokens = (x.unflatten(1, (-1, k)) for x in (score, self.tokens(word)))
            words = tokens[:, :, 0, :0]  # of the paths inside a block, [B,paths,j]
            for j in range(k):
                # all paths of a block go on with the tokens of its list j
                level = level.expand(*(repeated(x[:, :, j], top**j) for x in (scores, tokens)))
                level = nodes.add(level)
                words = torch.cat([repeated(words, top), level.token[..., None]], -1)
            if block + 1 < self.passes:
                chosen = best_first(level.score, self.count)
                level, above = level.at(chosen), chosen // top**k
                place, before = beams.below(above), ends.gather(1, above)
                hidden = self.pass_over(taken(words, chosen), taken(hidden, above), before, place)
                ends = place.slots[:, k - 1 :: k]
        draft = reranked(self, state, nodes, top)
        draft.valid[:, 1:] &= (state.length > k)[:, None]
        return draft


@dataclass(frozen=True)
class Options:
    head: TrainedHead = None
    nodes: NodeCount = 10
    passes: Annotated[int, Option("forward passes of the head per step", low=1)] = 2
    top: Annotated[int, Option("tokens per list that are combined", low=1)] = 4
    beams: Annotated[
        int, Option("blocks per pass, which extend the best combinations so far", low=1)
    ] = 4
    align: Alignment = None
    copy: Copy = None
    verify: Verify = None


def falcon_dynamic(target: Target, options: Options) -> Drafter:
    """Falcon with a dynamic tree: blocks of tokens are added where the head is confident.

    The ``top`` tokens of each place are candidates, the ``beams`` best blocks are extended per
    pass, and the best ``nodes`` of all, root included, are verified. The candidates are point
    masses at every temperature.
    """
    top = options.top
    head = falcon_head(target, options.head, options.align)
    if top > head.size(target):
        few = f"the head's vocabulary has {head.size(target)} tokens"
        raise MethodError(f"{top} children per node but {few}")
    if top**head.k > MOST:
        many = f"{top} tokens at {head.k} places have {top**head.k} combinations"
        raise MethodError(f"{many}, a tree at most {MOST} nodes")
    return DynamicFalcon(head, options.nodes, options.passes, top, options.beams, options.align)


ENTRY = Entry(
    "falcon_dynamic",
    falcon_dynamic,
    Options,
    paper="Gao et al. 2024, arXiv 2412.12639",
    needs="a trained head",
    head="falcon",
)
