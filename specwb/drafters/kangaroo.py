"""Kangaroo: drafting from inside the target, after an early exit, with a stop at low confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from specwb.core.flow import Draft, Scores, State, Verdict, put, taken
from specwb.core.mask import causal_mask
from specwb.core.noise import Noise
from specwb.core.options import Copy, MethodError, Option, Verify
from specwb.core.tree import MOST, Limits, Tree
from specwb.drafters.base import Drafter, Entry, Preset
from specwb.drafters.beam import BeamLevel, Beams, TreeNodes, best, best_nodes, grown_limits
from specwb.drafters.heads import trained_head
from specwb.drafters.length import Length
from specwb.drafters.level import Drafted, Levels, drawable
from specwb.drafters.stopping import Confidence, Entropy, Top
from specwb.models.backbone import Stack
from specwb.models.kangaroo import KangarooAdapter, load_kangaroo
from specwb.models.place import Place
from specwb.models.target import Target


class KangarooDrafter(Levels):
    """The draft model is the target's first ``exit`` layers, an adapter, and the target's lm_head.

    The first layers run once per token: their keys and values go straight into the target's cache,
    and verification continues from the states at the exit (``Draft.hidden``). So a draft of D
    levels runs the first layers D + 1 times (also for the last level, whose tokens are verified),
    the adapter and the head D times.

    Catch-up window: 2. After a fully accepted draft the last accepted token has its state, in
    ``state.features``, but no entry in the adapter's cache; so in each step the adapter processes
    the states of the last two tokens of the text. A slot of the adapter's cache is a position.

    It stops at ``length.most`` levels, or below a level whose confidence (``sure``) is under the
    length's threshold (eta).

    Source: Liu et al. 2024, arXiv 2404.18911, and its code (a chain, one row, greedy). Differs from
    them in: also static trees, T > 0, rows of different lengths; the last step does not end before
    the limit.
    """

    def __init__(
        self,
        head: KangarooAdapter,
        shape: Tree | Limits,
        draw: str = "without",
        length: Length | None = None,
        sure: Confidence | None = None,
    ) -> None:
        super().__init__(shape, draw, length, sure)
        self.head, self.features, self.exit = head, head.features, head.exit
        self.stack = Stack.of(head) if head.blocks else None
        self.window = 2

    def open(self, state: State, target: Target) -> None:
        super().open(state, target)
        self.vocabulary, self.target = target.vocabulary, target.backbone
        self.words = self.head.words
        self.output = self.head.output(self.target.lm_head)
        self.lay_out(target.device)
        if self.stack is None:
            return
        self.cache = self.stack.cache(state.rows, state.capacity)
        m = state.horizon - 1
        if m > 0:
            assert state.features is not None
            place = Place.text(state.rows, m, state.length.device)
            self.stack.run(state.features[:, :m], place, self.cache)

    def tensors(self) -> dict[str, Tensor]:
        adapter = {} if self.stack is None else {"cache": self.cache.data}
        return {**super().tensors(), **adapter}

    def finish(self, state: State, drafted: Drafted, tree: Tree) -> Draft:
        draft = super().finish(state, drafted, tree)
        self.kept = [*drafted.kept]
        nodes = draft.tokens[:, slice(*tree.levels[-1])]
        self.shallow(state, nodes, self.place(state, drafted, tree.D))
        draft.hidden, draft.start_layer = torch.cat(self.kept, 1), self.exit
        self.kept = []
        return draft

    def begin(self, state: State) -> Tensor:
        base = (state.length - 1)[:, None]
        node_mask, extent = self.node_mask(state), state.horizon
        mask = None if node_mask is None else node_mask[:, :1, :extent]
        place = Place(base, base, extent, mask)
        f = self.shallow(state, state.tokens.gather(1, base), place)
        if self.stack is None:
            return self.adapted(f, place)
        begin, positions, _ = state.window(self.window)
        root = base - begin[:, None]
        assert state.features is not None
        recent = taken(state.features, positions).to(f.dtype)
        put(recent, root, f)
        extent = max(state.horizon, self.window)
        window = Place.behind(positions, extent, self.stack.dtype)
        return taken(self.adapted(recent, window), root)

    def feed(self, state: State, tokens: Tensor, above: Tensor, place: Place) -> Tensor:
        return self.adapted(self.shallow(state, tokens, place), place)

    def shallow(self, state: State, tokens: Tensor, place: Place) -> Tensor:
        """The target's first layers over ``tokens [B,m]``: their states ``[B,m,H]`` at the exit,
        from which verification continues."""
        f = self.target.run(self.target.embed(tokens), place, state.cache, last=self.exit)[0]
        self.kept.append(f)
        return f

    def adapted(self, f: Tensor, place: Place) -> Tensor:
        """The adapter over the states ``f [B,m,H]`` at the exit."""
        if self.stack is None:
            return self.head.layers[0](f.to(self.target.dtype))
        return self.stack.run(f, place, self.cache)[0]

    def own_logits(self, hidden: Tensor) -> Tensor:
        return self.head.logits(hidden, self.output)

    def tree_mask(self, state: State) -> Tensor:
        return state.tree_mask(self.tree, self.target.dtype)

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        super().observe(state, draft, verdict, scores)
        if self.stack is not None and not draft.tree.is_chain:
            self.cache.keep(state.length - 1, verdict.path)


class DynamicKangaroo(KangarooDrafter):
    """A tree of beams: each level has the ``top`` best of all continuations of the level above, by
    the product of the drafter's probabilities along their paths.

    Drafting stops below a level whose best product is under eta, once the tree has ``nodes`` nodes,
    or at ``depth`` levels. Of the childless nodes of a level, the less probable half is pruned; if
    there are more than ``nodes`` nodes, those with the best products stay. The tree and its tokens
    are a function of the text alone, at every temperature: point masses.

    All drafted nodes have run through the first layers; the rest of the target runs over the
    remaining ones, whose entries move to the slots of their nodes.

    Source: Liu et al. 2024, NeurIPS version, 3.3; no code was published. Differs from it in: the
    root is the pending token, the paper's is the first draft token, so here that token has siblings
    too; nodes of the last level beyond the budget (which the paper does not state) are left out.
    """

    def __init__(self, head: KangarooAdapter, nodes: int, depth: int, top: int, eta: float) -> None:
        limits = grown_limits(min(nodes, 1 + depth * top), depth, top, depth * top)
        super().__init__(head, limits, "greedy")
        self.top, self.slots = top, 1 + depth * top
        self.least_score = math.log(eta) if eta else -math.inf
        self.host_reads = depth

    def node_mask(self, state: State) -> Tensor | None:
        """The mask of the root."""
        if state.rows == 1 and not state.static:
            return None
        return causal_mask((state.length - 1)[:, None], state.horizon, self.target.dtype)

    def best(self, state: State, hidden: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities ``[B,m,top]`` of the best children of every node of a depth, and their
        tokens."""
        logits = state.perturbed(self.own_logits(hidden), depth, words=self.words)
        score, word = best(logits, self.top)
        return score, self.tokens(word)

    def propose(self, state: State, noise: Noise) -> Draft:
        k, n, base = self.top, self.limits.nodes, state.length - 1
        beams, nodes = Beams(base, state.horizon, self.target.dtype), TreeNodes()
        self.kept = []
        root = BeamLevel.root(state.rows, base.device)
        level = nodes.add(root.expand(*self.best(state, self.begin(state), 0)).best(k))
        going = torch.ones_like(base, dtype=torch.bool)  # rows that still draft
        in_tree = [torch.ones_like(level.token, dtype=torch.bool)]
        while True:
            place = beams.below(level.above)
            size = 1 + torch.stack([x.sum(1) for x in in_tree]).sum(0)
            going = going & (level.score[:, 0] >= self.least_score) & (size < n)
            if level.depth == self.deepest or not self.largest(state, going & ~state.done, 1):
                self.shallow(state, level.token, place)
                break
            hidden = self.feed(state, level.token, level.token, place)
            level = nodes.add(level.expand(*self.best(state, hidden, level.depth)).best(k))
            barren = torch.ones_like(in_tree[-1]).scatter(1, level.above, False)
            # of a level's nodes, best first, the second half of those without a child
            order = barren.cumsum(1)
            pruned = barren & (order > order[:, -1:] - order[:, -1:] // 2) & going[:, None]
            in_tree[-1] = in_tree[-1] & ~pruned
            in_tree.append(going[:, None].expand(-1, k))
        scores = nodes.scores.masked_fill(~torch.cat(in_tree, 1), -torch.inf)
        most = min(n - 1, nodes.count)
        used = self.largest(state, (scores > -torch.inf).sum(1).clamp_max(most), most)
        chosen = best_nodes(scores, 1 + used)
        draft = nodes.draft(self, state, chosen, k, scores)
        slots = torch.cat([torch.zeros_like(chosen[:, :1]), chosen + 1], 1)
        state.cache.keep(base, slots, self.exit)
        if self.stack is not None:
            self.cache.keep(base, slots)
        draft.hidden, draft.start_layer = taken(torch.cat(self.kept, 1), slots), self.exit
        self.kept = []
        return draft


@dataclass(frozen=True)
class Options:
    head: Annotated[
        Any,
        Option("the trained adapter; default the target's own", kind="a folder, hub id or head"),
    ] = None
    exit: Annotated[
        int | None,
        Option(
            "the exit layer; required if the adapter's files lack it, otherwise it must match",
            low=0,
        ),
    ] = None
    gamma: Annotated[int, Option("draft tokens per step, or levels of a tree, at most", low=1)] = 6
    eta: Annotated[
        float,
        Option(
            "confidence needed to go on (the paper: .6, for a tree .4); 0: always gamma tokens",
            within="[0, 1]",
        ),
    ] = 0.4
    stop: Annotated[
        str,
        Option(
            "the confidence compared with eta: top, the largest probability at temperature 1; "
            "scaled, the same at the decoding's temperature; entropy, exp(-H)",
            choices=("top", "scaled", "entropy"),
        ),
    ] = "top"
    tree: Annotated[
        Tree | bool, Option("true: the paper's tree of beams; a shape: a static tree, as for mcsd")
    ] = False
    top: Annotated[int, Option("beams per level with tree=true", low=1)] = 4
    nodes: Annotated[
        int, Option("nodes with tree=true, at most, the root included", low=2, high=MOST)
    ] = 16
    copy: Copy = None
    verify: Verify = None


def kangaroo(target: Target, options: Options) -> Drafter:
    """Kangaroo: the target's own first layers and a small adapter draft a chain until their
    confidence is low, and the other layers verify it. There is little to train and little to
    store.

    The chain has at most ``gamma`` tokens. ``tree=true`` is the paper's tree: the ``top`` best
    paths of each level are extended, for at most ``gamma`` levels and ``nodes`` nodes.
    """
    tree, stop, eta = options.tree, options.stop, options.eta
    if not eta and stop != "top":
        raise MethodError("stop has no effect with eta=0")
    adapter = _adapter(target, options)
    if isinstance(tree, Tree) or not tree:
        static = _static_tree(adapter.size(target), options)
        sure = Entropy() if stop == "entropy" else Top(stop == "scaled")
        length = Length(static.D, confidence=eta) if eta else None
        return KangarooDrafter(adapter, static, "without", length, sure)
    if stop != "top":
        whose = "a tree's beams stop by the product of unscaled probabilities"
        raise MethodError(f"{whose}; stop={stop} is for chains and static trees")
    if options.top > adapter.size(target):
        few = f"the adapter's vocabulary has {adapter.size(target)} tokens"
        raise MethodError(f"{options.top} beams but {few}")
    return DynamicKangaroo(adapter, options.nodes, options.gamma, options.top, eta)


def _adapter(target: Target, options: Options) -> KangarooAdapter:
    """The adapter that the method drafts with, checked against its options."""
    exit, layers = options.exit, len(target.backbone.layers)
    adapter: KangarooAdapter = trained_head(
        "kangaroo", target, options.head, load_kangaroo, KangarooAdapter, exit=exit
    )
    if exit not in (None, adapter.exit):
        ours = f"the adapter reads the states of layer {adapter.exit}, not of layer {exit}"
        raise MethodError(f"{ours}; train one for that layer")
    if not 0 <= adapter.exit < layers:
        few = f"{target.name!r} has {layers} layers"
        raise MethodError(f"exit layer {adapter.exit}, but {few}")
    return adapter


def _static_tree(size: int, options: Options) -> Tree:
    """The chain of ``gamma`` tokens, or the tree in its place."""
    tree = options.tree
    if (options.top, options.nodes) != (Options.top, Options.nodes):
        kind = "a static tree" if tree else "a chain"
        raise MethodError(f"top and nodes are of tree=true, {kind} has none")
    if not isinstance(tree, Tree):
        return Tree.chain(options.gamma)
    tree = drawable(tree, size)
    if options.gamma != Options.gamma:
        raise MethodError("a static tree has its own depth; leave gamma out")
    return tree


ENTRY = Entry(
    "kangaroo",
    kangaroo,
    Options,
    paper="Liu et al. 2024, arXiv 2404.18911",
    needs="a trained adapter",
    head="kangaroo",
    presets={
        "published": Preset({"gamma": 6, "eta": 0.6}, "the paper's chain"),
        "published_tree": Preset(
            {"tree": True, "top": 10, "nodes": 61, "eta": 0.4},
            "the paper's tree: 10 beams, eta 0.4; the paper gives no size",
        ),
    },
    bibtex="""@inproceedings{liu2024kangaroo,
  title={Kangaroo: Lossless Self-Speculative Decoding for Accelerating {LLM}s via Double Early \
Exiting},
  author={Liu, Fangcheng and Tang, Yehui and Liu, Zhenhua and Ni, Yunsheng and Tang, Duyu and \
Han, Kai and Wang, Yunhe},
  booktitle={NeurIPS}, year={2024}}""",
)
