"""Token trees: topology only, as host tuples beside device tensors made once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

MOST = 4096  # nodes


def _check_size(nodes: int) -> None:
    if nodes > MOST:
        raise ValueError(f"a tree has at most {MOST} nodes, its root included; this one has {nodes} or more")


class Tree:
    """The shape of a draft. Node 0 is the root (the pending token); siblings in index order are in drawing order.

    The last ``unverified`` nodes are computed by the target but no candidates: a walk never comes to them, so they do not count for
    D, K, widths, kids and trail, which are about the first v = n - unverified nodes. They have slots, positions and a mask like the others.

    Attributes (R is 1 for one shape shared by all rows, or the batch size; n nodes with the root, D depth, K children):
        host: tuple of R tuples of n parents; the root and padding nodes have -1
        below: tuple of R tuples of v tuples of children
        parent [R,n], depth [R,n], rank [R,n] (index among siblings), kids [R,v,K] (-1 where none)
        mask [R,n,n]: mask[i,j] is true where j is i or one of its ancestors
        trail [R,v,D+1]: the nodes from the root to i, then i repeated
        levels: tuple of (start, stop) for depth 0..D, in level order only
    Raises:
        ValueError: a parent that does not come before its child, an empty tree, one of more than ``MOST`` nodes, or no node left to verify.
    """

    own_kids = False  # kids are of one round's tokens
    whole: Tree | None = None  # of a prefix: what it is the leading block of

    def __init__(self, parents: Sequence[Sequence[int]], device: torch.device | str = "cpu", unverified: int = 0) -> None:
        self.host = tuple(tuple(int(p) for p in row) for row in parents)
        self.R, self.n = len(self.host), len(self.host[0]) if self.host else 0
        _check_size(self.n)
        if not self.n or any(len(row) != self.n for row in self.host):
            raise ValueError("a tree needs at least its root, and the same number of nodes in every row")
        if not 0 <= unverified < self.n:
            raise ValueError(f"unverified must be 0..{self.n - 1}, the root is always verified; got {unverified}")
        self.v = self.n - unverified
        depths, ranks, kids = [], [], []
        for row in self.host:
            if row[0] != -1:
                raise ValueError(f"node 0 is the root and has no parent, got {row[0]}")
            depth, rank, children = [0], [0], [[] for _ in row]  # type: tuple[list[int], list[int], list[list[int]]]
            for i, p in enumerate(row[1:], 1):
                if p >= i or p < -1 or (p > 0 and row[p] < 0):
                    raise ValueError(f"parent of node {i} must be one of 0..{i - 1} that is not padding (or -1 for padding), got {p}")
                depth.append(0 if p < 0 else depth[p] + 1)
                rank.append(0 if p < 0 else len(children[p]))
                if p >= 0 and i < self.v:
                    children[p].append(i)
            depths.append(depth)
            ranks.append(rank)
            kids.append(children[: self.v])
        self.below = tuple(tuple(map(tuple, row)) for row in kids)
        self.D = max(max(d[: self.v]) for d in depths)
        self.K = max((len(c) for row in kids for c in row), default=0)
        self.depths = tuple(map(tuple, depths))
        # most children of a node at each depth 0..D-1
        self.widths = tuple(
            max((len(c) for row, ds in zip(kids, depths, strict=True) for c, at in zip(row, ds, strict=False) if at == d), default=0)
            for d in range(self.D)
        )
        self.padded = any(p < 0 for row in self.host for p in row[1:])
        self.device = torch.device(device)
        self._tables: dict[torch.dtype, Tensor] = {}
        self._prefixes: dict[int, Tree] = {}

        def tensor(rows: Sequence) -> Tensor:
            return torch.tensor(rows, dtype=torch.long, device=self.device)

        self.parent, self.depth, self.rank = tensor(self.host), tensor(depths), tensor(ranks)
        width = max(self.K, 1)
        self.kids = tensor([[c + [-1] * (width - len(c)) for c in row] for row in kids])
        ancestors = []
        for row in self.host:
            m = [[False] * self.n for _ in range(self.n)]
            for i, p in enumerate(row):
                if p >= 0:
                    m[i] = m[p].copy()
                m[i][i] = True
            ancestors.append(m)
        self.mask = torch.tensor(ancestors, device=self.device)
        # node on the way to i at each depth; i itself from its own depth on
        self.trail = tensor([[self._trail(row, i) for i in range(self.v)] for row in self.host])

    def _trail(self, row: tuple[int, ...], i: int) -> list[int]:
        nodes = [i]
        while row[nodes[-1]] >= 0:
            nodes.append(row[nodes[-1]])
        nodes.reverse()
        return nodes + [i] * (self.D + 1 - len(nodes))

    @cached_property
    def is_chain(self) -> bool:
        """One chain for all rows, as far as a walk can see."""
        return self.R == 1 and self.host[0][: self.v] == tuple(range(-1, self.v - 1))

    @cached_property
    def is_paths(self) -> bool:
        """K chains of equal length that part at the root, level by level (``branching(K, 1, .., 1)``)."""
        return self.K >= 1 and self.v == self.n and self.host == Tree.branching(self.K, *[1] * (self.D - 1)).host

    @property
    def in_level_order(self) -> bool:
        """One shape for all rows, without padding or unverified nodes, sorted by depth."""
        return self.R == 1 and self.v == self.n and not self.padded and list(self.depths[0]) == sorted(self.depths[0])

    @cached_property
    def levels(self) -> tuple[tuple[int, int], ...]:
        """(start, stop) of every depth. Raises ValueError where nodes are not in level order or rows differ."""
        depth = self.depths[0]
        if not self.in_level_order:
            raise ValueError("levels exist only for one shared tree in level order")
        return tuple((depth.index(d), depth.index(d) + depth.count(d)) for d in range(self.D + 1))

    def table(self, dtype: torch.dtype) -> Tensor:
        """``[R, n, n + 2]`` additive mask over relative slots: committed text (0), the n nodes, anything beyond (-min)."""
        if dtype not in self._tables:
            table = torch.full((self.R, self.n, self.n + 2), torch.finfo(dtype).min, dtype=dtype, device=self.device)
            table[:, :, 0] = 0
            table[:, :, 1:-1].masked_fill_(self.mask, 0)
            self._tables[dtype] = table
        return self._tables[dtype]

    def prefix(self, d: int) -> Tree:
        """The tree cut below depth d, made once: in level order every tensor of it is a leading block of this one's, mask included. Nothing is built
        again (theorem 13.1), which is all that a dynamic sliced topology-aware mask is.

        Source: Lu et al. 2024, arXiv 2409.10644, where it is said of W chains.
        """
        if d >= self.D:
            return self
        if d not in self._prefixes:
            n = self.levels[d][1]
            tree = self._prefixes[d] = copy.copy(self)
            tree.host, tree.depths = (self.host[0][:n],), (self.depths[0][:n],)
            tree.below = ((*self.below[0][: self.levels[d][0]], *[()] * (n - self.levels[d][0])),)
            tree.n = tree.v = n
            tree.D, tree.widths, tree.K = d, self.widths[:d], max(self.widths[:d], default=0)
            tree.parent, tree.depth, tree.rank = (x[:, :n] for x in (self.parent, self.depth, self.rank))
            tree.mask, tree.trail = self.mask[:, :n, :n], self.trail[:, :n, : d + 1]
            kids = self.kids[:, :n, : max(tree.K, 1)]
            tree.kids = torch.where(kids < n, kids, -1)
            tree.whole, tree._tables, tree._prefixes = self.whole or self, {}, {}
            for name in ("is_chain", "is_paths", "levels"):
                tree.__dict__.pop(name, None)
        return self._prefixes[d]

    def to(self, device: torch.device | str) -> Tree:
        return self if torch.device(device) == self.device else Tree(self.host, device, self.n - self.v)

    def alone(self, i: int) -> Tree:
        """Row ``i``'s tree as one for a batch of one."""
        if self.own_kids:
            tree = copy.copy(self)
            tree.kids = self.kids[i : i + 1]
            return tree
        return self if self.R == 1 else Tree(self.host[i : i + 1], self.device, self.n - self.v)

    def kept(self) -> Tree:
        """A copy that outlives the round where graphs write the next one into the same memory: of :meth:`merged` trees the children."""
        if not self.own_kids:
            return self
        tree = copy.copy(self)
        tree.kids = self.kids.clone()
        return tree

    def merged(self, tokens: Tensor, valid: Tensor, repeats: bool = False) -> Tree:
        """This tree with the nodes that carry equal paths of tokens made one for a walk, row by row; invalid nodes are left out.

        Of nodes with equal paths the first stands for all, and has the children of all: ``kids [B,v,K]`` become those of the trie, so
        that siblings are distinct and a walk misses no continuation. Nothing else changes. Every node's keys and values are a function
        of its path, so any of the equal nodes may be committed.

        Args: tokens, valid ``[B,n]``, the draft's. repeats: equal siblings stay apart as candidates and every one of them has the children of
            all, which is how independent paths look from a node they share.
        """
        trail = self.trail.expand(len(tokens), -1, -1)
        words = tokens.gather(1, trail.flatten(1)).view_as(trail)
        ok = valid.gather(1, trail.flatten(1)).view_as(trail).all(-1)
        depth, parent = self.depth[:, : self.v], self.parent[:, : self.v]
        equal = (words[:, :, None] == words[:, None]).all(-1) & (depth[:, :, None] == depth[:, None]) & ok[:, None]
        first = equal.int().argmax(-1)  # [B,v]
        node = torch.arange(self.v, device=tokens.device)
        child = ok & (parent >= 0) & (torch.ones_like(ok) if repeats else first == node)
        above = first.gather(1, parent.clamp_min(0).expand(len(tokens), -1))
        below = child[:, None] & (above[:, None] == (first[:, :, None] if repeats else node[:, None]))  # [B,v,v]: j is a child of i in the trie
        trie = copy.copy(self)
        trie.own_kids, trie._prefixes = True, {}
        # as many children as the next level has nodes
        trie.widths = tuple(max(ds[: self.v].count(d + 1) for ds in self.depths) for d in range(self.D))
        trie.K = max(trie.widths, default=0)
        kids = torch.where(below, node, self.v).sort(-1).values[..., : max(trie.K, 1)]
        trie.kids = torch.where(kids < self.v, kids, -1)
        return trie

    @classmethod
    def parents(cls, parents: Sequence[int] | Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Tree:
        rows = parents if parents and not isinstance(parents[0], int) else [parents]
        return cls(rows, device)  # type: ignore[arg-type]

    @classmethod
    def chain(cls, gamma: int, device: torch.device | str = "cpu") -> Tree:
        """``gamma`` drafted tokens in a row."""
        _check_size(gamma + 1)
        return cls([range(-1, gamma)], device)

    @classmethod
    def branching(cls, *ks: int, device: torch.device | str = "cpu") -> Tree:
        """Every node of level d - 1 has ``ks[d - 1]`` children: (4, 2, 2) has 1 + 4 + 8 + 16 nodes."""
        if any(not isinstance(k, int) or k < 1 for k in ks):
            raise ValueError(f"branching needs integers >= 1, such as 4-2-2, got {'-'.join(map(str, ks))}")
        parents, level = [-1], [0]
        nodes = level_nodes = 1
        for k in ks:  # counted before anything is made
            level_nodes *= k
            nodes += level_nodes
            _check_size(nodes)
        for k in ks:
            start = len(parents)
            parents += [p for p in level for _ in range(k)]
            level = list(range(start, len(parents)))
        return cls([parents], device)

    @classmethod
    def paths(cls, paths: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Tree:
        """From paths of sibling ranks, as Medusa and EAGLE write their trees: ``[(0,), (0, 0), (1,)]``; put in level order."""
        every = sorted({tuple(p[: i + 1]) for p in paths for i in range(len(p))}, key=lambda p: (len(p), p))
        index = {(): 0, **{p: i for i, p in enumerate(every, 1)}}
        return cls([[-1] + [index[p[:-1]] for p in every]], device)

    def __repr__(self) -> str:
        return f"Tree({self.n} nodes, depth {self.D}{', chain' if self.is_chain else ''}{f', {self.R} rows' if self.R > 1 else ''})"


class GrownTree(Tree):
    """Every row's own tree, made on its device from parents chosen there: no value of it is read by the host unless ``host`` is asked for.

    Args: parent ``[R,n]``: -1 at the root, otherwise before its child; siblings in index order are in drawing order. depth ``[R,n]``.
        D, K: bounds of depth and of children a node, known beforehand.
    """

    own_kids = True
    padded = False
    is_chain = False  # as far as the host knows
    is_paths = False

    def __init__(self, parent: Tensor, depth: Tensor, D: int, K: int) -> None:
        self.R, self.n = parent.shape
        self.v, self.D, self.K, self.widths = self.n, D, K, (K,) * D
        self.parent, self.depth, self.device, self._tables = parent, depth, parent.device, {}
        node = torch.arange(self.n, device=parent.device)
        same = parent[:, :, None] == parent[:, None]
        self.rank = same.tril(-1).sum(-1)
        place = parent[:, 1:] * K + self.rank[:, 1:]
        empty = torch.full((self.R, self.n * K), -1, dtype=torch.long, device=parent.device)
        self.kids = empty.scatter_(1, place, node[1:].expand(self.R, -1)).view(self.R, self.n, K)
        up = [node.expand(self.R, -1)]
        for _ in range(D):
            up.append(parent.gather(1, up[-1]).clamp_min(0))
        above = torch.stack(up, -1)  # [R,n,D+1]: a node, its parent, that one's parent, .. and the root again and again
        self.mask = torch.zeros(self.R, self.n, self.n, dtype=torch.bool, device=parent.device).scatter_(2, above, True)
        back = (depth[:, :, None] - torch.arange(D + 1, device=parent.device)).clamp_min(0)
        self.trail = above.gather(2, back)

    @cached_property
    def host(self) -> tuple[tuple[int, ...], ...]:  # type: ignore[override]
        return tuple(map(tuple, self.parent.tolist()))

    @cached_property
    def depths(self) -> tuple[tuple[int, ...], ...]:  # type: ignore[override]
        return tuple(map(tuple, self.depth.tolist()))

    def prefix(self, d: int) -> Tree:
        raise ValueError("a tree that is made anew every round has no prefixes: its nodes are in no common order of levels")

    def _copy(self, change: Callable[[Tensor], Tensor]) -> GrownTree:
        tree = copy.copy(self)
        for name in ("host", "depths"):
            tree.__dict__.pop(name, None)
        tree._tables = {}
        for name in ("parent", "depth", "rank", "kids", "mask", "trail"):
            setattr(tree, name, change(getattr(self, name)))
        tree.R = len(tree.parent)
        return tree

    def alone(self, i: int) -> GrownTree:
        return self._copy(lambda x: x[i : i + 1])

    def kept(self) -> GrownTree:
        return self._copy(torch.clone)

    def to(self, device: torch.device | str) -> GrownTree:
        if torch.device(device) == self.device:
            return self
        tree = self._copy(lambda x: x.to(device))
        tree.device = torch.device(device)
        return tree
