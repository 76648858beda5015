"""Medusa: several heads over the target's last hidden state, one for each level of the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.flow import Draft, State, taken
from specwb.core.noise import Noise
from specwb.core.options import Copy, MethodError, NodeCount, Option, TrainedHead, Verify
from specwb.core.tree import Tree
from specwb.drafters.base import Drafter, Entry, Preset
from specwb.drafters.heads import measured_tree, trained_head
from specwb.drafters.level import drawable, likely
from specwb.models.medusa import MedusaHeads, load_medusa
from specwb.models.products import product
from specwb.models.target import Target

CHILDREN: dict[tuple[int, ...], int] = {
    (): 10,
    **dict(zip([(i,) for i in range(10)], (10, 7, 3, 2, 1, 1, 1, 1, 1, 1), strict=True)),
    **dict(zip([(0, i) for i in range(8)], (10, 3, 2, 1, 1, 1, 1, 1), strict=True)),
    (1, 0): 2,
    (2, 0): 1,
    (0, 0, 0): 2,
}
"""The children of every node of the published tree that has some, by its path of ranks."""
MEDUSA_TREE = Tree.paths(
    sorted(
        ((*path, rank) for path, count in CHILDREN.items() for rank in range(count)),
        key=lambda path: (len(path), path),
    )
)
"""The published Medusa's tree of 63 candidates (its ``mc_sim_7b_63``)."""


class MedusaDrafter(Drafter):
    """The node of depth d and rank r is head d - 1's r-th best token after the state that the
    pending token was drawn from, whatever lies above it.

    All candidates come from one hidden state in one pass, before anything is verified: point
    masses, so the result is greedy decoding at T = 0 and, by the point-mass rule, exact sampling at
    T > 0. The heads know neither the tokens of the levels above nor the pending token; every node
    of a level has the same list of children (``independent`` is False).

    It has no cache and no window. A text of one token has no state to draft from: its first step
    drafts nothing.

    Source: Cai et al. 2024, arXiv 2401.10774. Differs from it in: its default at T > 0 is typical
    acceptance, here ``rule=typical`` (LOSSY); its pending token is the target's argmax, here it is
    the bonus token of the step before, which is the same at T = 0.
    """

    captured = True
    independent = False

    def __init__(self, heads: MedusaHeads, tree: Tree) -> None:
        self.heads, self.tree, self.features = heads, tree, heads.features

    def open(self, state: State, target: Target) -> None:
        self.tree = self.tree.to(target.device)
        depth, rank = self.tree.depth[0, 1:], self.tree.rank[0, 1:]
        self.most = max(self.tree.K, 1)  # how many tokens of each head are looked at
        self.words = self.heads.words
        lm_head = target.backbone.lm_head
        self.outputs = [self.heads.output(i, lm_head) for i in range(self.tree.D)]
        self.pick = (depth - 1) * self.most + rank

    def tensors(self) -> dict[str, Tensor]:
        words = {} if self.words is None else {"words": self.words}
        return {**super().tensors(), **words, "pick": self.pick}

    def propose(self, state: State, noise: Noise) -> Draft:
        assert state.features is not None
        last = (state.length - 2).clamp_min(0)
        if not self.tree.D:
            return self.candidates(state, state.tokens[:, :0])
        x = taken(state.features, last[:, None])[:, 0]
        logits = state.perturbed(self._logits(x), 0, self.tree.D, self.words)
        best = logits.topk(self.most, -1).indices.flatten(1)
        best = best if self.words is None else self.words[best]
        valid = (state.length > 1)[:, None].expand(-1, self.tree.n - 1)
        draft = self.candidates(state, best.index_select(1, self.pick), valid)
        if self.confident:
            every = likely(logits, self.most).flatten(1).index_select(1, self.pick)
            draft.confidence = F.pad(every, (1, 0), value=1.0)
        return draft

    def _logits(self, x: Tensor) -> Tensor:
        """``[B,H] -> [B,D,V]``, or of the heads' words."""
        states = [self.heads.last(i, x) for i in range(self.tree.D)]
        if self.heads.shared:  # one product for all heads
            layer = self.outputs[0]
            return product(torch.stack(states, 1), layer.weight, layer.bias)
        layers = zip(states, self.outputs, strict=True)
        return torch.stack([product(y, layer.weight, None) for y, layer in layers], 1)


@dataclass(frozen=True)
class Options:
    head: TrainedHead = None
    tree: Annotated[
        Tree | str | None,
        Option(
            "the draft tree: published is Medusa's, with 63 candidates; default the best tree for "
            "the heads' accuracies",
            choices=("published",),
        ),
    ] = None
    nodes: NodeCount = 10
    copy: Copy = None
    verify: Verify = None


def medusa(target: Target, options: Options) -> Drafter:
    """Medusa: several small heads on the target's last hidden state each guess one of the next
    tokens, and their best guesses form a tree. One pass of the heads drafts it all, but no head
    knows what the others guessed.

    By default the tree is the best one of size ``nodes``, root included, for the heads' measured
    accuracies. At T > 0 it is exact by the point-mass rule; ``rule=typical`` is the paper's typical
    acceptance (LOSSY).
    """
    heads: MedusaHeads = trained_head("medusa", target, options.head, load_medusa, MedusaHeads)
    tree = MEDUSA_TREE if isinstance(options.tree, str) else options.tree
    tree = tree or measured_tree(heads.card, options.nodes, heads.heads)
    tree = drawable(tree, heads.size(target), owner="the head's vocabulary")
    if heads.heads < tree.D:
        needs = f"a tree of depth {tree.D} needs {tree.D} heads"
        raise MethodError(f"{needs}, there are {heads.heads}")
    return MedusaDrafter(heads, tree)


ENTRY = Entry(
    "medusa",
    medusa,
    Options,
    paper="Cai et al. 2024, arXiv 2401.10774",
    needs="trained heads",
    head="medusa",
    presets={
        "published": Preset(
            {"tree": "published"},
            "the code's mc_sim_7b_63; at T > 0 it accepts as rule=typical does (LOSSY)",
        )
    },
    bibtex="""@inproceedings{cai2024medusa,
  title={Medusa: Simple {LLM} Inference Acceleration Framework with Multiple Decoding Heads},
  author={Cai, Tianle and Li, Yuhong and Geng, Zhengyang and Peng, Hongwu and Lee, Jason D. and \
Chen, Deming and Dao, Tri},
  booktitle={ICML}, year={2024}}""",
)
