"""EAGLE: drafting from the target's hidden states, level by level on a static tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from specwb.core.flow import State, taken
from specwb.core.mask import tree_mask
from specwb.core.options import Copy, NodeCount, Option, TrainedHead, Verify
from specwb.core.tree import Limits, Tree
from specwb.drafters.base import Drafter, Entry, Preset
from specwb.drafters.heads import measured_tree, trained_head
from specwb.drafters.level import DRAWS, Levels, drawable
from specwb.models.backbone import Stack
from specwb.models.eagle import EagleHead, load_eagle
from specwb.models.place import Place
from specwb.models.target import Target

_PUBLISHED = (
    "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
)
EAGLE_TREE = Tree.paths([tuple(map(int, path)) for path in _PUBLISHED.split()])
"""The published EAGLE-1's tree of 25 candidates (its ``mc_sim_7b_63``)."""


class EagleDrafter(Levels):
    """One layer over pairs (token t_{i+1}, hidden state f_i), whose own output replaces the states
    of tokens that are not yet verified.

    The text of pairs is one shorter than the text of tokens: pair i lies at slot and position i,
    and the root is the last token with the state it was drawn from, at slot L - 2 of a text of L
    tokens. A text of one token has no such state; its only pair has a zero state, which gives a
    poor draft.

    Catch-up window: each step begins by processing the last D + 1 pairs again, now with the
    target's own states where the draft had only the head's. A single row whose steps are not
    recorded processes only what is new: the tokens of the step before.

    Sampling schemes: as in :class:`Levels`. ``draw="greedy"`` are point masses at every temperature
    (EAGLE-2's verification), ``draw="without"`` the published EAGLE-1's sampling without
    replacement.

    Source: Li et al. 2024, arXiv 2401.15077; EAGLE-3: Li et al. 2025, arXiv 2503.01840. Differs
    from the published code in: it processes accepted tokens again one step later, this one in the
    next step's first forward pass.
    """

    extra_slots = 0  # that drafting takes beyond the tree's

    def __init__(self, head: EagleHead, shape: Tree | Limits, draw: str = "without") -> None:
        super().__init__(shape, draw)
        self.head, self.features = head, head.features
        self.stack = Stack.of(head)
        self.window = self.limits.depth + 1

    def open(self, state: State, target: Target) -> None:
        self.vocabulary = target.vocabulary
        self.embed = (
            target.backbone.embed if self.head.embed_tokens is None else self.head.embed_tokens
        )
        self.output = self.head.output(target.backbone.lm_head)
        self.words = self.head.words
        self.lay_out(target.device)
        self.cache = self.stack.cache(state.rows, state.capacity + self.extra_slots)
        m = state.horizon - 2  # all pairs but the last, which is fed with the first window
        if m > 0:
            self.prefill(state, m)

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), "cache": self.cache.data}

    def prefill(self, state: State, m: int) -> None:
        """Processes the first m pairs."""
        assert state.features is not None
        tokens, states = state.tokens[:, 1 : m + 1], self.head.fuse(state.features[:, :m])
        self._run(tokens, states, Place.text(state.rows, m, state.length.device))

    def text(self, state: State) -> tuple[Tensor, int]:
        return (state.length - 1).clamp_min(1), max(state.horizon - 1, 1)

    def begin(self, state: State) -> Tensor:
        length, horizon = self.text(state)
        w = self.unseen(state)
        begin = (length - w).clamp_min(0)
        positions = begin[:, None] + torch.arange(w, device=begin.device)
        # a text of one token stands for itself, with a state of zeros
        paired = state.length[:, None] > 1
        tokens = state.tokens.gather(1, torch.where(paired, positions + 1, positions))
        assert state.features is not None
        states = taken(state.features, positions)
        states = states.masked_fill(~paired[:, :, None], 0)
        place = Place.behind(positions, max(horizon, w), self.stack.dtype)
        hidden = self._run(tokens, self.head.fuse(states), place)
        return taken(hidden, (length - 1 - begin)[:, None])

    def feed(self, state: State, tokens: Tensor, above: Tensor, place: Place) -> Tensor:
        return self._run(tokens, above, place)

    def own_logits(self, hidden: Tensor) -> Tensor:
        return self.head.logits(hidden, self.output)

    def tree_mask(self, state: State) -> Tensor:
        length, horizon = self.text(state)
        return tree_mask(self.tree, length, horizon, self.stack.dtype)

    def exact_until(self, before: Tensor, length: Tensor) -> Tensor:
        """The pairs of the text before the step; the pairs of the step are processed again in the
        next."""
        return before - 1

    def _run(self, tokens: Tensor, above: Tensor, place: Place) -> Tensor:
        attended, x = self.head.enter(self.embed(tokens).to(above.dtype), above)
        return self.head.put_out(self.stack.run(x, place, self.cache, attended=attended)[0])


@dataclass(frozen=True)
class Options:
    head: TrainedHead = None
    tree: Annotated[
        Tree | str | None,
        Option(
            "the draft tree: published is EAGLE-1's, with 25 candidates; default the best tree for "
            "the head's accuracies",
            choices=("published",),
        ),
    ] = None
    nodes: NodeCount = 10
    draw: Annotated[
        str,
        Option(
            "how a node's children are drawn from q, as for mcsd: without is the paper's, greedy "
            "EAGLE-2's",
            choices=DRAWS,
        ),
    ] = "without"
    copy: Copy = None
    verify: Verify = None


def eagle(target: Target, options: Options) -> Drafter:
    """EAGLE-1: a head of one layer, which reads the target's hidden states, drafts a tree, one pass
    per level. It knows the path that it extends, and each level costs about as much as one of
    the target's layers.

    The tree is fixed, by default the best one of size ``nodes`` for the head's measured accuracies.
    """
    head: EagleHead = trained_head("eagle", target, options.head, load_eagle, EagleHead)
    tree = EAGLE_TREE if isinstance(options.tree, str) else options.tree
    tree = tree or measured_tree(head.card, options.nodes)
    tree = drawable(tree, head.size(target), owner="the head's vocabulary")
    return EagleDrafter(head, tree, options.draw)


ENTRY = Entry(
    "eagle",
    eagle,
    Options,
    paper="Li et al. 2024, arXiv 2401.15077",
    needs="a trained head",
    head="eagle",
    presets={"published": Preset({"tree": "published"}, "the code's tree of 25 candidates")},
    bibtex="""@inproceedings{li2024eagle,
  title={{EAGLE}: Speculative Sampling Requires Rethinking Feature Uncertainty},
  author={Li, Yuhui and Wei, Fangyun and Zhang, Chao and Zhang, Hongyang}, booktitle={ICML}, \
year={2024}}""",
)
