"""The batch layout of verification: the leaf paths of a draft's trees as rows of a batch, each over
its own copy of the prefix."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from specwb.core.flow import Draft, State, taken
from specwb.models.backbone import Backbone
from specwb.models.place import Place

LAYOUTS = ("tree", "batch")


@lru_cache(maxsize=256)
def leaf_paths(host: tuple[tuple[int, ...], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The leaf paths ``[R,P,W]`` of trees (the parents of every tree's nodes), and where each node
    first stands in them, ``path * W + place [R,n]``.

    A path goes from its root to a leaf. A short one repeats its last node, and a tree with fewer
    leaves than others repeats its last path. Padding nodes are roots of their own."""
    trees = []
    for parents in host:
        inner, paths = set(parents), []
        for leaf in (i for i in range(len(parents)) if i not in inner):
            path = [leaf]
            while parents[path[-1]] >= 0:
                path.append(parents[path[-1]])
            paths.append(path[::-1])
        trees.append(paths)
    count = max(map(len, trees))
    width = max(len(path) for paths in trees for path in paths)
    padded = [[path + path[-1:] * (width - len(path)) for path in paths] for paths in trees]
    nodes = torch.tensor([paths + paths[-1:] * (count - len(paths)) for paths in padded])
    flat = nodes.flatten(1)
    where = (flat[:, None] == torch.arange(len(host[0]))[:, None]).int().argmax(-1)
    return nodes.to(device), where.to(device)


def run_paths(
    backbone: Backbone, state: State, draft: Draft, features: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor | None]:
    """Hidden states ``[B,n,H]`` before the final norm and features at every node, computed path by
    path. They are what one forward with a tree attention mask gives, up to rounding.

    B rows with P leaves become B P rows of W tokens: a plain causal forward over B P copies of the
    prefix's keys and values. A node on several paths is computed on each. Its first copy's entries
    then go to its slot of the target's cache, where the tree layout would have put them.

    Source: the MCSD code's strategy without tree attention (``tree_attn=False``), Yang et al.
    2401.06706. Differs from it in: the head, and nothing else, runs once a node; rows of different
    lengths."""
    n, rows, base = draft.tree.n, state.rows, (state.length - 1)[:, None]
    nodes, where = leaf_paths(draft.tree.host, base.device)
    paths, width = nodes.shape[1:]
    nodes, where = nodes.expand(rows, -1, -1), where.expand(rows, -1)
    flat, first = nodes.flatten(1), draft.start_layer
    if draft.hidden is None:
        x = backbone.embed(draft.tokens.gather(1, flat))
    else:
        x = taken(draft.hidden, flat)
    x = x.view(rows * paths, width, -1)
    # along a path slot = position; what short paths repeat lies beyond every node's sight
    positions = base.repeat_interleave(paths, 0) + torch.arange(width, device=base.device)
    positions = positions.contiguous()
    prefix = state.horizon - 1
    extent = prefix + width
    cache = backbone.cache(rows * paths, extent)
    # this copy is the layout's price
    for copy, cached in zip(cache.parts, state.cache.parts, strict=True):
        copies = copy.data[:, :, :prefix].unflatten(1, (rows, paths))
        copies.copy_(cached.data[:, :, None, :prefix])
    place = Place.behind(positions, extent, backbone.dtype)
    hidden, states = backbone.run(x, place, cache, first=first, features=features)

    def of_nodes(x: Tensor) -> Tensor:
        return taken(x.view(rows, paths * width, -1), where)

    row = torch.arange(rows, device=base.device)[:, None] * paths + where // width
    source = (row * extent + base + where % width).flatten()
    slots = base + torch.arange(n, device=base.device)
    for copy, cached in zip(cache.parts, state.cache.parts, strict=True):
        entries = copy.flat[first:].index_select(1, source.to(copy.data.device))
        cached.flat[first:].index_copy_(1, cached.index(slots.to(copy.data.device)), entries)
    return of_nodes(hidden), None if states is None else of_nodes(states)
