"""Token recycling: what the target found most probable after a token is drafted where that token
comes again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from specwb.core.flow import Draft, Scores, State, Verdict, taken
from specwb.core.noise import Noise
from specwb.core.options import MethodError, Option
from specwb.core.tree import Tree
from specwb.drafters.base import Drafter, Entry, Preset
from specwb.drafters.level import drawable
from specwb.drafters.lookahead import remember_prompts
from specwb.models.target import Target

CHILDREN: dict[tuple[int, ...], int] = {
    (): 8,
    **{(i,): n for i, n in enumerate((8, 4, 3, 2, 1, 1, 1, 1))},
    **{(0, i): n for i, n in enumerate((8, 3, 2, 1, 1, 1, 1, 1))},
    **{(1, 0): 2, (1, 1): 1, (2, 0): 1, (3, 0): 1, (4, 0): 1, (5, 0): 1},
    **{(0, 0, i): n for i, n in enumerate((5, 2, 1, 1, 1))},
    **dict.fromkeys([(0, 1, 0), (0, 2, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)], 1),
    **{(0, 0, 0, 0): 3, (0, 0, 0, 1): 1, (0, 0, 0, 2): 1},
    **dict.fromkeys([(0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0)], 1),
    **{(0, 0, 0, 0, 0): 2, (0, 0, 0, 1, 0): 1},
}
"""The children of every node of the published tree that has some, by its path of ranks."""
RECYCLING_TREE = Tree.paths([(*path, r) for path, count in CHILDREN.items() for r in range(count)])
"""The published tree of 80 candidates (the code's version 2.2.2)."""
MOST_BYTES = 2**26
"""Bytes of one row's successors, at most."""


class TokenRecycling(Drafter):
    """Proposes a static tree in which the children of a node with token x are the first successors
    of x: the K tokens that the target found most probable the last time that it scored x.

    After every step the tokens of all valid nodes, accepted or not, get new successors:

        successors[x] = the K tokens with the largest logits after the last node of token x,

    K being the largest number of children in the tree. Of several nodes with the same token the
    last one counts, which is the deepest. What context x stood in is forgotten, so tokens far from
    the root are rarely right. A token without successors has no valid node below it, and a draft is
    cut to its deepest valid level (one host read); where steps are recorded, not at all.

    The candidates are a function of the text and of earlier scores (point masses, none of them
    drawn), so the result is greedy decoding at T = 0 and exact sampling at T > 0. Every row has its
    own successors, so it is decoded as if it were alone.

    Attributes:
        successors: ``[B, V, K]`` int32, the most probable first, -1 where there is none: 4 V K
            bytes for each row, 0.6 MB for 49152 tokens and K = 3.

    Source: Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language
    Models with Token Recycling" (ACL 2025), arXiv 2408.08696.
    Differs from the paper in: its matrix is what the previous prompt left, so that texts depend on
    their order; here every prompt begins with what followed each token in the prompt itself, the
    latest first. It lets CUDA decide between nodes with the same token (and finds that the last one
    is best). It stores 8 successors whatever the tree, drafts token 0 where there are none, and is
    about greedy decoding. Its tree of 80 candidates is ``preset=published``.
    """

    host_reads = 1
    captured = True

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def open(self, state: State, target: Target) -> None:
        device, rows = target.device, state.rows
        self.tree = self.tree.to(device)
        self.row = torch.arange(rows, device=device)[:, None]
        sizes = (rows, target.vocabulary, self.tree.K)
        self.successors = torch.full(sizes, -1, dtype=torch.int32, device=device)
        remember_prompts(self.successors[..., None], state)

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), "row": self.row, "successors": self.successors}

    def propose(self, state: State, noise: Noise) -> Draft:
        tokens = state.pending.masked_fill(state.done[:, None], -1)  # -1: there is no token
        parent, rank = self.tree.parent[0], self.tree.rank[0]
        for start, stop in self.tree.levels[1:]:
            above = tokens[:, parent[start:stop]]
            below = self.successors[self.row, above.clamp_min(0), rank[start:stop]]
            tokens = torch.cat([tokens, below.masked_fill(above < 0, -1)], 1)
        valid = tokens >= 0
        depth = self.largest(state, (valid * self.tree.depth).amax(1), self.tree.D)
        tree = self.tree.prefix(depth)
        below_root = slice(1, tree.n)
        drafted = tokens[:, below_root].clamp_min(0)
        return self.candidates(state, drafted, valid[:, below_root], tree)

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        best = scores.logits.topk(self.tree.K, -1).indices.int()
        # what is not valid stands for the root, so that equal tokens write equal successors
        token = torch.where(draft.valid, draft.tokens, draft.tokens[:, :1])
        equal = (token[:, :, None] == token[:, None]) & draft.valid[:, None]
        last = (equal * torch.arange(1, draft.tree.n + 1, device=token.device)).argmax(-1)
        self.successors[self.row, token] = taken(best, last)


@dataclass(frozen=True)
class Options:
    # by default the five candidates that SmolLM2 accepts most often in answers to chat prompts
    tree: Annotated[
        Tree | str,
        Option(
            "the draft tree; published is the paper's, of 80 candidates", choices=("published",)
        ),
    ] = "0.0.0.1.4"


def recycling(target: Target, options: Options) -> Drafter:
    """Token recycling: the most probable next tokens after every token that the target scores,
    also after rejected ones, are kept, and drafted where the token comes again. It costs next to
    nothing, and unlike prompt lookup it drafts more than the text has said.

    A node's children in the tree are the first tokens that are kept for its token. The prompt gives
    the first ones, by what follows each token in it.
    """
    chosen = options.tree
    tree = drawable(RECYCLING_TREE if isinstance(chosen, str) else chosen, target.vocabulary)
    most = MOST_BYTES // (4 * target.vocabulary)
    if most < tree.K:
        raise MethodError(
            f"{tree.K} children per node need {tree.K} successors of each of {target.vocabulary} "
            f"tokens, more than {MOST_BYTES >> 20} MB per row; a tree may have {most} children per"
            " node"
        )
    return TokenRecycling(tree)


ENTRY = Entry(
    "recycling",
    recycling,
    Options,
    paper="Luo et al. 2025, arXiv 2408.08696",
    presets={"published": Preset({"tree": "published"}, "the code's tree of version 2.2.2")},
    bibtex="""@inproceedings{luo2025turning,
  title={Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token \
Recycling},
  author={Luo, Xianzhen and Wang, Yixuan and Zhu, Qingfu and Zhang, Zhiming and Zhang, Xuanyu and \
Yang, Qing and Xu, Dongliang}, booktitle={ACL}, year={2025}}""",
)
