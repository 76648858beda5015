"""Trees that are drafted in blocks: which pass of a drafter that predicts k tokens at a time makes
which nodes. Topology only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.tree import Tree


@dataclass(frozen=True)
class Pass:
    """One forward pass of the drafter.

    ``blocks``: the nodes whose subtrees it makes, in level order: those of depth ``k (pass - 1)``
    that have children. ``parents``: of each, the block of the pass before that it follows.
    ``nodes``: the last k nodes of each block's path. ``levels``: how many of its k distributions
    are used. ``width``: the largest number of children of a node. ``first``: how many of the
    drafter's slots earlier passes take.
    """

    blocks: tuple[int, ...]
    parents: tuple[int, ...]
    nodes: tuple[tuple[int, ...], ...]
    levels: int
    width: int
    first: int


class BlockTree:
    """A tree in level order as passes of blocks of ``k``, at most ``passes`` of them.

    The nodes of depth ``k b + j`` are predicted at place j of a block of pass b + 1; all nodes j -
    1 levels below a block have one list of candidates, that block's j-th, however their paths there
    differ. ``above`` maps every node with children to the block whose distributions these are drawn
    from; ``slots`` are the places that the passes below the first take in a drafter's cache, k per
    block; ``lists`` counts the lists of candidates.
    """

    def __init__(self, tree: Tree, k: int, passes: int | None = None) -> None:
        if k < 1 or (passes is not None and passes < 1):
            raise ArgumentError(f"k and passes must be >= 1, got k={k}, passes={passes}")
        if not tree.in_level_order or tree.D < 1:
            needs = "one tree for all rows, of at least one candidate, its nodes in level order"
            raise ArgumentError(f"blocks need {needs}")
        if passes is not None and k * passes < tree.D:
            room = f"{passes} passes of k={k} tokens make trees of depth {k * passes} at most"
            raise ArgumentError(f"{room}, this one has {tree.D}")
        self.tree, self.k = tree, k
        self.passes: list[Pass] = []
        parent, below = tree.host[0], tree.below[0]
        self.above: dict[int, int] = {}
        before: dict[int, int] = {}
        first = 0
        for b in range(-(-tree.D // k)):
            at = range(*tree.levels[b * k])
            blocks = tuple(node for node in at if below[node])
            home = {node: node for node in blocks}
            for d in range(b * k, min((b + 1) * k, tree.D)):
                for node in range(*tree.levels[d]):
                    if d > b * k:
                        home[node] = home[parent[node]]
                    if below[node]:
                        self.above[node] = home[node]
            paths = []
            for node in blocks:
                path = [node]
                while len(path) < k and parent[path[-1]] >= 0:
                    path.append(parent[path[-1]])
                paths.append(tuple(reversed(path)) if b else (0,) * k)
            levels = min(k, tree.D - b * k)
            follows = tuple(before[home_of(parent, node, k)] for node in blocks) if b else ()
            width = max(tree.widths[b * k : b * k + levels])
            self.passes.append(Pass(blocks, follows, tuple(paths), levels, width, first))
            before = {node: i for i, node in enumerate(blocks)}
            first += k * len(blocks) if b else 0
        self.slots = first
        self.lists = sum(len(p.blocks) * p.levels for p in self.passes)

    @cached_property
    def places(self) -> list[tuple[int, int, int, int]]:
        """Of every node but the root: pass, block of that pass, place in the block from 0, rank."""
        parent, depth, rank = self.tree.host[0], self.tree.depths[0], self.tree.rank[0].tolist()
        places = []
        for node in range(1, self.tree.n):
            b, j = divmod(depth[node] - 1, self.k)
            block = self.passes[b].blocks.index(self.above[parent[node]])
            places.append((b, block, j, rank[node]))
        return places

    def steps(self, v: float, c: float, f: float) -> float:
        """A step's time in steps of plain decoding: ``1 + v (n - 1) + c passes + f slots``, with v
        per scored node, c per pass and f per pair processed below the text."""
        return 1 + v * (self.tree.n - 1) + c * len(self.passes) + f * self.slots

    def sight(self) -> Tensor:
        """Which slots each slot sees, ``[1, 1 + slots, 3 + slots]`` bool, as
        :func:`specwb.core.mask.table_mask` wants it: slot 0 is the last pair of the text, then come
        blocks of k."""
        size = 1 + self.slots
        sees = torch.zeros(size, size, dtype=torch.bool)
        sees[:, 0] = True
        for b, one in enumerate(self.passes[1:], 1):
            for i in range(len(one.blocks)):
                rows = slice(1 + one.first + i * self.k, 1 + one.first + (i + 1) * self.k)
                if b > 1:
                    up = 1 + self.passes[b - 1].first + one.parents[i] * self.k
                    sees[rows] |= sees[up]
                sees[rows, rows] = True
        edge = torch.ones(size, 1, dtype=torch.bool)
        return torch.cat([edge, sees, ~edge], 1)[None]


def home_of(parent: tuple[int, ...], node: int, k: int) -> int:
    """The node k levels above a node."""
    for _ in range(k):
        node = parent[node]
    return node


def _counts(text: str) -> Tree:
    """A tree from ``path:children`` entries; a path without a number has one child, ``.`` is the
    root. Children have ranks 0..n-1."""
    paths: list[tuple[int, ...]] = []
    for entry in text.split():
        path, _, count = entry.partition(":")
        at = tuple(int(c) for c in path if c != ".")
        paths += [(*at, r) for r in range(int(count or 1))]
    return Tree.paths(paths)


VICUNA = _counts(
    ".:20 0:10 1:2 2:2 3 00:10 01:2 02:2 03 10:2 20 30 "
    "000:10 001:2 002 010:2 011 020 021 030 100:2 200 300 "
    "0000:10 0001:2 0002 0010 0020 0100 0200 0300 1000 2000 3000 "
    "00000:9 00001:2 00002 00010 00011 00020 00100 00200 01000 02000 03000 10000 20000 30000 "
    "000000:9 000001:2 000002 000010 000100 001000 002000 010000 020000 030000 100000 200000 "
    "0000000:8 0000001:2 0000002 0000010 0000011 0000020 0000100 0001000 0010000 0020000 0100000 "
    "0200000 0300000 1000000 2000000"
)
"""The released tree for Vicuna (``kmask2_8layer_tree``, its one duplicate left out): k = 2, 4
passes, 165 candidates."""
LLAMA = _counts(
    ".:20 0:11 1:4 2:4 00:7 01:8 02 03 10 20 000:10 010 020 030 100 200 "
    "0000:10 0001 0100 0200 0300 1000 2000 00000:4 00010 01000 02000 03000 10000 20000 "
    "000000:4 000100 010000 020000 030000 100000 200000 "
    "0000000:3 0001000 0100000 0200000 0300000 1000000 2000000"
)
"""The paper's figure 6, for LLaMA2-Chat (``kmask2_8layer_tree_3``, 01's children counted 0..7 as
its index arithmetic does): 118 candidates."""
PUBLISHED = {"vicuna": VICUNA, "llama": LLAMA}
