"""Token trees: topology only, as host tuples beside device tensors made once. Nothing changes
them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor

from specwb.core.errors import ArgumentError

MOST = 4096  # nodes


def _check_size(nodes: int) -> None:
    if nodes > MOST:
        raise ArgumentError(
            f"a tree has at most {MOST} nodes, its root included; this one has {nodes} or more"
        )


@dataclass(frozen=True)
class Limits:
    """How large a draft can become. Slots, uniforms and the length of a step's text are set aside
    for so much, and a verification rule is checked against it.

    Attributes:
        nodes: nodes of the tree, the root included.
        depth: draft tokens on the longest path.
        children: draft tokens below one node.
        paths: the tree is always K paths that part at the root, as some rules need it.
    Raises:
        ArgumentError: a number that is no count, or more levels than nodes below the root.
    """

    nodes: int
    depth: int
    children: int
    paths: bool = False

    def __post_init__(self) -> None:
        _check_size(self.nodes)
        if not 0 <= self.depth < self.nodes or self.children < min(self.depth, 1):
            raise ArgumentError(
                f"limits of a draft need a root and a node for every level, got {self.nodes} nodes,"
                f" depth {self.depth}, {self.children} children per node"
            )


class Tree:
    """The shape of a draft. Node 0 is the root (the pending token); siblings in index order are in
    drawing order. A tree is never changed: what differs from it is another tree.

    The last ``unverified`` nodes are computed by the target but are no candidates: a walk never
    comes to them, so they do not count for ``D``, ``K``, ``widths``, ``kids`` and ``trail``, which
    are about the first v = n - unverified nodes. They have slots, positions and a mask like the
    others.

    R is 1 for one shape shared by all rows, or the batch size; n counts the nodes with the root.

    Attributes:
        host: tuple of R tuples of n parents; the root and padding nodes have -1.
        depths: tuple of R tuples of n depths.
        below: tuple of R tuples of v tuples of children.
        D: depth of the deepest verified node. K: children of the node that has most of them.
        widths: most children of a node at each depth 0..D-1.
        parent, depth, rank: ``[R,n]``; rank is a node's index among its siblings.
        kids: ``[R,v,K]`` children, -1 where there is none.
        mask: ``[R,n,n]``; mask[i,j] is true where j is i or one of its ancestors.
        trail: ``[R,v,D+1]``, the nodes from the root to i, then i repeated.
        uncut: the tree that this one is a leading block of (:meth:`prefix`), otherwise itself.

    Args:
        parents: R lists of n parents, -1 for the root and for padding.
        device: where the tensors are made.
        unverified: how many of the last nodes are no candidates.
    Raises:
        ArgumentError: a parent that does not come before its child, an empty tree, one of more than
            ``MOST`` nodes, or no node left to verify.
    """

    host: tuple[tuple[int, ...], ...]
    depths: tuple[tuple[int, ...], ...]
    below: tuple[tuple[tuple[int, ...], ...], ...]
    parent: Tensor
    depth: Tensor
    rank: Tensor
    kids: Tensor
    mask: Tensor
    trail: Tensor
    v: int
    D: int
    K: int
    widths: tuple[int, ...]
    _FIELDS = (
        *("host", "depths", "below", "parent", "depth", "rank", "kids", "mask"),
        *("trail", "v", "D", "K", "widths", "_uncut"),
    )
    _uncut: Tree | None = None

    def __init__(
        self,
        parents: Sequence[Sequence[int]],
        device: torch.device | str = "cpu",
        unverified: int = 0,
    ) -> None:
        try:
            host = tuple(tuple(operator.index(p) for p in row) for row in parents)
        except TypeError:
            rows = f"lists of integers, one per row, such as [[-1, 0, 0]]; got {parents!r}"
            raise ArgumentError(f"parents of a tree must be {rows}") from None
        n = len(host[0]) if host else 0
        _check_size(n)
        if not n or any(len(row) != n for row in host):
            raise ArgumentError(
                "a tree needs at least its root, and the same number of nodes in every row"
            )
        if not isinstance(unverified, int) or not 0 <= unverified < n:
            raise ArgumentError(
                f"unverified must be 0..{n - 1}, the root is always verified; got {unverified}"
            )
        v = n - unverified
        depths, below = zip(*(_levels(row, v) for row in host), strict=True)
        D = max(max(row[:v]) for row in depths)
        K = max((len(children) for row in below for children in row), default=0)
        parent = torch.tensor(host, dtype=torch.long, device=device)
        depth = torch.tensor(depths, dtype=torch.long, device=device)
        self._set(host=host, depths=depths, below=below, widths=_widths(depths, below, D))
        deepest = max(map(max, depths))
        self._set(**_tables(parent, depth, v, D, K, deepest))

    def _set(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def _with(self, kind: type[Tree] | None = None, /, **fields: Any) -> Any:
        """Another tree that differs from this one in ``fields``; what is derived is made anew."""
        tree = object.__new__(kind or type(self))
        tree._set(**{name: self.__dict__[name] for name in self._FIELDS if name in self.__dict__})
        tree._set(**fields)
        return tree

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Tree is never changed: make another instead of setting {name!r}")

    @property
    def R(self) -> int:
        return self.parent.shape[0]

    @property
    def n(self) -> int:
        return self.parent.shape[1]

    @property
    def device(self) -> torch.device:
        return self.parent.device

    @property
    def uncut(self) -> Tree:
        return self._uncut or self

    @cached_property
    def limits(self) -> Limits:
        """Of a cut tree the children of the uncut one: which uniform decides about a candidate must
        not depend on where the tree was cut."""
        return Limits(self.n, self.D, self.uncut.K, self.is_paths)

    @cached_property
    def padded(self) -> bool:
        """Some row has nodes that are not there."""
        return any(p < 0 for row in self.host for p in row[1:])

    @cached_property
    def is_chain(self) -> bool:
        """One chain for all rows, as far as a walk can see."""
        return self.R == 1 and self.host[0][: self.v] == tuple(range(-1, self.v - 1))

    @cached_property
    def is_paths(self) -> bool:
        """K chains of equal length that part at the root, level by level
        (``branching(K, 1, .., 1)``)."""
        if self.K < 1 or self.v < self.n or self.R > 1 or self.n != 1 + self.K * self.D:
            return False
        return self.host[0] == (-1, *[0] * self.K, *range(1, self.n - self.K))

    @cached_property
    def in_level_order(self) -> bool:
        """One shape for all rows, without padding or unverified nodes, sorted by depth."""
        shared = self.R == 1 and self.v == self.n and not self.padded
        return shared and list(self.depths[0]) == sorted(self.depths[0])

    @cached_property
    def levels(self) -> tuple[tuple[int, int], ...]:
        """(start, stop) of every depth 0..D.

        Raises:
            ArgumentError: nodes are not in level order, or rows differ.
        """
        depth = self.depths[0]
        if not self.in_level_order:
            raise ArgumentError("levels exist only for one shared tree in level order")
        starts = [depth.index(d) for d in range(self.D + 1)]
        return tuple(zip(starts, [*starts[1:], self.n], strict=True))

    @cached_property
    def _tables(self) -> dict[torch.dtype, Tensor]:
        return {}

    def table(self, dtype: torch.dtype) -> Tensor:
        """``[R, n, n + 2]`` additive mask over relative slots: committed text (0), the n nodes,
        anything beyond (the type's lowest number). It is made once a type."""
        if dtype not in self._tables:
            shape = (self.R, self.n, self.n + 2)
            table = torch.full(shape, torch.finfo(dtype).min, dtype=dtype, device=self.device)
            table[:, :, 0] = 0
            table[:, :, 1:-1].masked_fill_(self.mask, 0)
            self._tables[dtype] = table
        return self._tables[dtype]

    @cached_property
    def _prefixes(self) -> dict[int, Tree]:
        return {}

    def prefix(self, d: int) -> Tree:
        """The tree cut below depth d, made once: in level order every tensor of it is a leading
        block of this one's, mask included. Nothing is built again (theorem 13.1), which is all that
        a dynamic sliced topology-aware mask is.

        Source: Lu et al. 2024, arXiv 2409.10644, where it is said of W chains.
        """
        if d >= self.D:
            return self
        if d not in self._prefixes:
            inner, n = self.levels[d]
            widths = self.widths[:d]
            children = max(widths, default=0)
            kids = self.kids[:, :n, : max(children, 1)]
            self._prefixes[d] = self._with(
                host=(self.host[0][:n],),
                depths=(self.depths[0][:n],),
                below=((*self.below[0][:inner], *[()] * (n - inner)),),
                v=n,
                D=d,
                K=children,
                widths=widths,
                parent=self.parent[:, :n],
                depth=self.depth[:, :n],
                rank=self.rank[:, :n],
                mask=self.mask[:, :n, :n],
                trail=self.trail[:, :n, : d + 1],
                kids=torch.where(kids < n, kids, -1),
                _uncut=self.uncut,
            )
        return self._prefixes[d]

    def to(self, device: torch.device | str) -> Tree:
        same = torch.device(device) == self.device
        return self if same else Tree(self.host, device, self.n - self.v)

    def clone(self) -> Tree:
        """What outlives a decoding step whose tensors the next one writes over (CUDA graphs): of a
        tree whose shape no token decides that is the tree itself."""
        return self

    def merged(self, tokens: Tensor, valid: Tensor, repeats: bool = False) -> Tree:
        """This tree with the nodes that carry equal paths of tokens made one for a walk, row by
        row; invalid nodes are left out.

        Of nodes with equal paths the first stands for all, and has the children of all: ``kids
        [B,v,K]`` become those of the trie, so that siblings are distinct and a walk misses no
        continuation. Nothing else changes. Every node's keys and values are a function of its path,
        so any of the equal nodes may be committed.

        Args:
            tokens, valid: ``[B,n]``, the draft's.
            repeats: equal siblings stay apart as candidates and every one of them has the children
                of all, which is how independent paths look from a node they share.
        """
        trail = self.trail.expand(len(tokens), -1, -1)
        words = tokens.gather(1, trail.flatten(1)).view_as(trail)
        ok = valid.gather(1, trail.flatten(1)).view_as(trail).all(-1)
        depth, parent = self.depth[:, : self.v], self.parent[:, : self.v]
        equal = (words[:, :, None] == words[:, None]).all(-1)
        equal = equal & (depth[:, :, None] == depth[:, None]) & ok[:, None]
        first = equal.int().argmax(-1)  # [B,v]
        node = torch.arange(self.v, device=tokens.device)
        child = ok & (parent >= 0) & (torch.ones_like(ok) if repeats else first == node)
        above = first.gather(1, parent.clamp_min(0).expand(len(tokens), -1))
        stands = first[:, :, None] if repeats else node[:, None]
        below = child[:, None] & (above[:, None] == stands)  # [B,v,v]: j is a child of i
        # as many children as the next level has nodes
        widths = tuple(
            max(depths[: self.v].count(d + 1) for depths in self.depths) for d in range(self.D)
        )
        most = max(widths, default=0)
        kids = torch.where(below, node, self.v).sort(-1).values[..., : max(most, 1)]
        kids = torch.where(kids < self.v, kids, -1)
        return self._with(Trie, kids=kids, K=most, widths=widths)

    @classmethod
    def parents(
        cls,
        parents: Sequence[int] | Sequence[Sequence[int]],
        device: torch.device | str = "cpu",
    ) -> Tree:
        """Of one list of parents, or of one per row."""
        flat = isinstance(parents, Sequence) and all(isinstance(p, int) for p in parents)
        rows = [parents] if flat else parents
        return cls(rows, device)  # type: ignore[arg-type]

    @classmethod
    def chain(cls, gamma: int, device: torch.device | str = "cpu") -> Tree:
        """``gamma`` draft tokens in a row."""
        if not isinstance(gamma, int):
            raise ArgumentError(f"a chain has an integer of draft tokens, got {gamma!r}")
        _check_size(gamma + 1)
        return cls([range(-1, gamma)], device)

    @classmethod
    def branching(cls, *ks: int, device: torch.device | str = "cpu") -> Tree:
        """Every node of level d - 1 has ``ks[d - 1]`` children: (4, 2, 2) has 1 + 4 + 8 + 16
        nodes."""
        if any(not isinstance(k, int) or k < 1 for k in ks):
            given = "-".join(map(str, ks))
            raise ArgumentError(f"branching needs integers >= 1, such as 4-2-2, got {given}")
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
        """From paths of sibling ranks, as Medusa and EAGLE write their trees:
        ``[(0,), (0, 0), (1,)]``; put in level order."""
        try:
            every = {tuple(p[: i + 1]) for p in paths for i in range(len(p))}
        except TypeError:
            ranks = "paths must be ranks of siblings, such as [(0,), (0, 0), (1,)]"
            raise ArgumentError(f"{ranks}; got {paths!r}") from None
        ordered = sorted(every, key=lambda p: (len(p), p))
        index = {(): 0, **{p: i for i, p in enumerate(ordered, 1)}}
        return cls([[-1] + [index[p[:-1]] for p in ordered]], device)

    def __repr__(self) -> str:
        chain = ", chain" if self.is_chain else ""
        rows = f", {self.R} rows" if self.R > 1 else ""
        return f"Tree({self.n} nodes, depth {self.D}{chain}{rows})"


class Trie(Tree):
    """A tree of one decoding step: whose children are follows its tokens (:meth:`Tree.merged`)."""

    is_paths = False  # of a grown tree the host knows no parents to see it by

    def clone(self) -> Tree:
        return self._with(kids=self.kids.clone())


class GrownTree(Tree):
    """Every row's own tree, made on its device from parents chosen there: no value of it is read by
    the host unless ``host`` is asked for. ``parent`` and ``depth`` are ``[R,n]`` with -1 at the
    root and parents before children; siblings in index order are in drawing order. D and K bound
    depth and children per node. It has no prefixes: its nodes are in no order of levels."""

    padded = False
    in_level_order = False
    is_chain = False  # as far as the host knows
    is_paths = False
    _PER_STEP = ("parent", "depth", "rank", "kids", "mask", "trail")

    def __init__(self, parent: Tensor, depth: Tensor, D: int, K: int) -> None:
        self._set(widths=(K,) * D, **_tables(parent, depth, parent.shape[1], D, K, D))

    @cached_property
    def host(self) -> tuple[tuple[int, ...], ...]:  # type: ignore[override]
        return tuple(map(tuple, self.parent.tolist()))

    @cached_property
    def depths(self) -> tuple[tuple[int, ...], ...]:  # type: ignore[override]
        return tuple(map(tuple, self.depth.tolist()))

    def prefix(self, d: int) -> Tree:
        raise ArgumentError("a tree made anew every step has no prefixes: its nodes have no order")

    def _each(self, change: Callable[[Tensor], Tensor]) -> GrownTree:
        tree = self._with(**{name: change(getattr(self, name)) for name in self._PER_STEP})
        for name in ("host", "depths"):
            tree.__dict__.pop(name, None)  # read again, if somebody asks
        return tree

    def clone(self) -> GrownTree:
        return self._each(torch.clone)

    def to(self, device: torch.device | str) -> GrownTree:
        same = torch.device(device) == self.device
        return self if same else self._each(lambda x: x.to(device))


def _levels(parents: Sequence[int], v: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The depths of n nodes, and the children of the first v."""
    if parents[0] != -1:
        raise ArgumentError(f"node 0 is the root and has no parent, got {parents[0]}")
    depths = [0]
    below: list[list[int]] = [[] for _ in range(v)]
    for i, p in enumerate(parents[1:], 1):
        if p >= i or p < -1 or (p > 0 and parents[p] < 0):
            raise ArgumentError(
                f"parent of node {i} must be one of 0..{i - 1} that is not padding"
                f" (or -1 for padding), got {p}"
            )
        depths.append(0 if p < 0 else depths[p] + 1)
        if p >= 0 and i < v:
            below[p].append(i)
    return tuple(depths), tuple(map(tuple, below))


def _widths(depths: Sequence, below: Sequence, D: int) -> tuple[int, ...]:
    """Most children of a node at each depth 0..D-1, over all rows."""
    widths = [0] * D
    for row_depths, row_below in zip(depths, below, strict=True):
        for d, children in zip(row_depths, row_below, strict=False):
            if d < D:
                widths[d] = max(widths[d], len(children))
    return tuple(widths)


def _tables(parent: Tensor, depth: Tensor, v: int, D: int, K: int, deepest: int) -> dict[str, Any]:
    """What a tree keeps of parents and depths ``[R,n]`` besides the host's tuples; no value of them
    is read. Of the n nodes, which are at most ``deepest`` below the root, the first v are
    candidates."""
    rows, n = parent.shape
    node = torch.arange(n, device=parent.device).expand(rows, -1)
    siblings = parent[:, :, None] == parent[:, None]
    rank = siblings.tril(-1).sum(-1).masked_fill(parent < 0, 0)
    # a child's place among its parent's; roots, padding and unverified nodes in one that is cut off
    place = torch.where(parent < 0, v * K, parent * K + rank)[:, :v]
    empty = torch.full((rows, v * K + 1), -1, dtype=torch.long, device=parent.device)
    kids = empty.scatter_(1, place, node[:, :v])[:, :-1].view(rows, v, K)
    over = torch.where(parent < 0, node, parent)
    path = [node]
    for _ in range(deepest):
        path.append(over.gather(1, path[-1]))
    above = torch.stack(
        path, -1
    )  # [R,n,deepest+1]: a node, its parent, .., the root again and again
    mask = torch.zeros(rows, n, n, dtype=torch.bool, device=parent.device)
    back = (depth[:, :v, None] - torch.arange(D + 1, device=parent.device)).clamp_min(0)
    return {
        "parent": parent,
        "depth": depth,
        "rank": rank,
        "kids": kids if K else kids.new_full((rows, v, 1), -1),
        "mask": mask.scatter_(2, above, True),
        "trail": above[:, :v].gather(2, back),
        "v": v,
        "D": D,
        "K": K,
    }
