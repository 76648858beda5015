"""EAGLE-2: a tree that follows the head's confidence, shaped anew for every step and row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from specwb.core.flow import Draft, State, taken
from specwb.core.noise import Noise
from specwb.core.options import Copy, MethodError, NodeCount, Option, TrainedHead, Verify
from specwb.drafters.base import Drafter, Entry, Preset
from specwb.drafters.beam import BeamLevel, Beams, TreeNodes, best, grown_limits, reranked
from specwb.drafters.eagle import EagleDrafter
from specwb.drafters.heads import trained_head
from specwb.models.eagle import EagleHead, load_eagle
from specwb.models.target import Target


class DynamicEagle(EagleDrafter):
    """A tree that is expanded where the head is confident, and whose best nodes are drafted.

    Expand: ``depth`` times, the ``top`` best nodes of a level each get the head's ``top`` best
    tokens. Re-rank: of all nodes made, the ``nodes - 1`` with the largest ``sum log q`` along their
    paths are drafted (:func:`specwb.drafters.beam.reranked`).

    The tree and its tokens are a function of the text alone, at every temperature, so the
    candidates are point masses and the point-mass rule is exact. (Sampled candidates must not be
    selected by their probabilities: theorem 9.5.)

    Source: Li et al., "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees"
    (2024), arXiv 2406.16858; for EAGLE-3 heads arXiv 2503.01840. total_token there is ``nodes``
    here, its depth is ``depth`` - 1.
    """

    def __init__(self, head: EagleHead, nodes: int = 60, depth: int = 6, top: int = 10) -> None:
        limits = grown_limits(nodes, depth, top, top + (depth - 1) * top * top)
        super().__init__(head, limits, "greedy")
        self.top, self.extra_slots = top, (depth - 1) * top

    def propose(self, state: State, noise: Noise) -> Draft:
        length, horizon = self.text(state)
        level = BeamLevel.root(state.rows, length.device)
        beams, nodes = Beams(length - 1, horizon, self.stack.dtype), TreeNodes()
        hidden = self.begin(state)
        for depth in range(1, self.deepest + 1):
            logits = state.perturbed(self.own_logits(hidden), depth - 1, words=self.words)
            score, word = best(logits, self.top)
            level = nodes.add(level.expand(score, self.tokens(word)))
            if depth < self.deepest:
                level = level.best(self.top)
                above = taken(hidden, level.above)
                hidden = self.feed(state, level.token, above, beams.below(level.above))
        return reranked(self, state, nodes, self.top)


@dataclass(frozen=True)
class Options:
    head: TrainedHead = None
    nodes: NodeCount = 10
    depth: Annotated[int, Option("levels of the tree", low=1)] = 4
    top: Annotated[int, Option("nodes expanded per level, and children of each", low=1)] = 4
    copy: Copy = None
    verify: Verify = None


def eagle2(target: Target, options: Options) -> Drafter:
    """EAGLE-2: EAGLE-1's head drafts a new tree in every step, which grows where the head is
    confident, so that few nodes are spent on unlikely paths.

    Each of ``depth`` levels expands the ``top`` most probable nodes; the best ``nodes`` of all,
    root included, are verified.
    """
    return dynamic("eagle", target, options)


def dynamic(kind: str, target: Target, options: Options) -> DynamicEagle:
    """The drafter with a head of this kind."""
    head: EagleHead = trained_head(kind, target, options.head, load_eagle, EagleHead)
    size = head.size(target)
    if options.top > size:
        few = f"{options.top} children per node but the head's vocabulary has {size} tokens"
        raise MethodError(few)
    return DynamicEagle(head, options.nodes, options.depth, options.top)


ENTRY = Entry(
    "eagle2",
    eagle2,
    Options,
    paper="Li et al. 2024, arXiv 2406.16858",
    needs="a trained head",
    head="eagle",
    presets={
        "published": Preset(
            {"nodes": 60, "depth": 6, "top": 10},
            "the code's total_token 60, depth 5 (levels after the first), top_k 10",
        )
    },
    bibtex="""@inproceedings{li2024eagle2,
  title={{EAGLE-2}: Faster Inference of Language Models with Dynamic Draft Trees},
  author={Li, Yuhui and Wei, Fangyun and Zhang, Chao and Zhang, Hongyang}, booktitle={EMNLP}, \
year={2024}}""",
)
