"""Falcon drafts k tokens per forward pass and grows the tree block by block instead of level by
level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from specwb.core.blocks import PUBLISHED, BlockTree, Pass
from specwb.core.flow import Draft, Scheme, State, put, taken
from specwb.core.mask import block_ends, sight_mask, table_mask
from specwb.core.noise import DRAFT, Noise
from specwb.core.options import Copy, MethodError, NodeCount, Option, TrainedHead, Verify
from specwb.core.probability import Sampling
from specwb.core.tree import Limits, Tree
from specwb.drafters.base import Drafter, Entry, Preset, by_name
from specwb.drafters.eagle import EagleDrafter
from specwb.drafters.heads import measured_tree, trained_head
from specwb.drafters.level import Levels, drawable, likely
from specwb.models.backbone import Stack
from specwb.models.falcon import ALIGNS, FalconHead, load_falcon
from specwb.models.place import Place
from specwb.models.target import Target


class FalconDrafter(EagleDrafter):
    """A static tree of depth D in ``ceil(D / k)`` passes.

    The last k pairs of the text give the candidates of depths 1..k. Every node of depth k that has
    children is a block of the next pass: the k tokens of its path with the k states that the pass
    before made; the block sees the text, the blocks above it and itself.

    All nodes j - 1 levels below a block share its j-th list of candidates, so siblings' children
    are not independent (``independent`` is False).

    Sampling schemes, at T > 0: ``without``: candidates are drawn from q without replacement, and a
    node with fewer children takes the first ones of the common list; ``greedy``: the most probable
    tokens, point masses. Both are lossless, because at most one of the nodes that share a list is
    reached, and reaching it does not depend on the list (theorem 10.6). At T = 0 the candidates are
    always the most probable tokens.

    Catch-up window: D + k pairs, now with the target's own states. Aligned to the right, the new
    pairs are divided into whole blocks, backwards from the last pair, with as many old pairs as
    that takes. Every pair stores where its block ended when it was last processed (``ends``), so
    that processing it again gives the same keys, and a row drafts the same alone and in a batch.
    With at most two layers, the cache is then a function of pairs and ends; deeper heads draft
    aligned to the left. LSTM states are stored by slot, like keys, four times the hidden size per
    slot. A text of fewer than k + 1 tokens drafts nothing.

    Source: Gao et al. 2024, arXiv 2412.12639, 3.4 and appendix A. Differs from it in: the released
    code scores k - 1 tokens of the text again for their states, which are stored here; verification
    at T > 0, which the release leaves incomplete.
    """

    independent, cuts = False, False
    head: FalconHead

    def __init__(
        self,
        head: FalconHead,
        shape: Tree | Limits,
        draw: str = "without",
        align: str | None = None,
    ) -> None:
        Levels.__init__(self, shape, draw)
        self.head, self.features, self.k = head, head.features, head.k
        self.stack = Stack.of(head)
        self.align = align or head.align
        self.window = self.limits.depth + self.k
        self.plan()

    def plan(self) -> None:
        """The nodes that each pass makes, and the number of slots that they take after the text."""
        self.blocks = BlockTree(self.tree, self.k)
        self.extra_slots = self.blocks.slots

    def scheme(self, sampling: Sampling) -> Scheme:
        return (
            Scheme.POINT if sampling.greedy or self.draw == "greedy" else Scheme.WITHOUT_REPLACEMENT
        )

    def uniforms(self, sampling: Sampling) -> int:
        if self.scheme(sampling) is Scheme.POINT:
            return 0
        return sum(len(p.blocks) * p.levels * p.width for p in self.blocks.passes)

    def lay_out(self, device: torch.device) -> None:
        if not hasattr(self, "tree"):
            return
        self.tree = tree = self.tree.to(device)
        k, blocks = self.k, self.blocks
        places = blocks.places
        # by depth: of a level's nodes, their place among all candidates of the pass
        self.take: list[Tensor] = []
        for d, (start, stop) in enumerate(tree.levels[1:]):
            levels, width = blocks.passes[d // k].levels, blocks.passes[d // k].width
            at = [
                (block * levels + j) * width + rank
                for _, block, j, rank in places[start - 1 : stop - 1]
            ]
            self.take.append(torch.tensor(at, device=device))
        rows = [0, *[len(p.blocks) * p.levels for p in blocks.passes]]
        q_row = [-1] * tree.n
        for node, block in blocks.above.items():
            b, j = divmod(tree.depths[0][node], k)
            one = blocks.passes[b]
            q_row[node] = sum(rows[: b + 1]) + one.blocks.index(block) * one.levels + j
        self.q_row = torch.tensor([q_row], device=device)
        self.nodes = [torch.tensor(p.nodes, device=device).flatten() for p in blocks.passes]
        self.follows = [
            torch.tensor(p.parents, device=device, dtype=torch.long) for p in blocks.passes
        ]
        sight = blocks.sight().to(device)
        dtype = self.stack.dtype
        self.table = torch.zeros(sight.shape, dtype=dtype, device=device).masked_fill_(
            ~sight, torch.finfo(dtype).min
        )
        self.tables = {"q_row": self.q_row, "table": self.table}
        self.tables |= by_name(take=self.take, nodes=self.nodes, follows=self.follows)

    def open(self, state: State, target: Target) -> None:
        device = target.device
        slots = state.capacity + self.extra_slots
        self.states = torch.zeros(
            state.rows, slots, self.head.state_width, dtype=self.stack.dtype, device=device
        )
        # where the block of every pair ended when it was last fed; of the text that is there,
        # aligned to its own end
        length = self.text(state)[0]
        pairs = torch.arange(slots, device=device).expand(state.rows, -1)
        self.ends = self.aligned(pairs, length[:, None] - 1).contiguous()
        super().open(state, target)
        # pairs fed by row; one less than there are: the first window feeds the last
        self.upto = length - 1

    def tensors(self) -> dict[str, Tensor]:
        pairs = {"states": self.states, "ends": self.ends, "upto": self.upto}
        return {**super().tensors(), **pairs}

    def aligned(self, positions: Tensor, last: Tensor) -> Tensor:
        """The ends of blocks, for ``last`` the last pair."""
        return block_ends(positions, last, self.k, self.align)

    def prefill(self, state: State, m: int) -> None:
        assert state.features is not None
        positions = torch.arange(m, device=state.length.device).expand(state.rows, m)
        mask = None if self.k == 1 else sight_mask(self.ends[:, :m], m, self.stack.dtype)
        place = Place(positions, positions, m, mask, causal=self.k == 1)
        embedded = self.embed(state.tokens[:, 1 : m + 1]).to(state.features.dtype)
        x, states = self.head.along(embedded, state.features[:, :m], True)
        if states is not None:
            self.states[:, :m] = states
        self.stack.run(x, place, self.cache, attended=x)

    def begin(self, state: State) -> Tensor:
        """Processes the last pairs again; returns the hidden states ``[B,k,H]`` of the last k."""
        k = self.k
        length, horizon = self.text(state)
        last = (length - 1)[:, None]
        fresh = length - self.upto
        cover = -(-fresh // k) * k if self.align == "right" else fresh + k - 1
        if (w := self.unseen(state)) < self.window:  # of what is new, made whole blocks
            w = min(self.window, max(-(-w // k) * k if self.align == "right" else w + k - 1, k))
        self.upto.copy_(length)
        begin = (length - w).clamp_min(0)
        positions = begin[:, None] + torch.arange(w, device=begin.device)
        old = self.ends.gather(1, positions)
        ends = torch.where(positions > last - cover[:, None], self.aligned(positions, last), old)
        self.ends.scatter_(1, positions, ends)
        tokens = state.tokens.gather(1, positions + 1)
        assert state.features is not None
        states = taken(state.features, positions)
        extent = max(horizon, w)
        mask = sight_mask(ends.clamp_max(extent - 1), extent, self.stack.dtype)
        place = Place(positions, positions, extent, mask)
        hidden = self.pass_over(tokens[:, None], states[:, None], begin[:, None] - 1, place)[:, 0]
        recent = last - begin[:, None] - k + 1 + torch.arange(k, device=begin.device)
        return taken(hidden, recent.clamp_min(0))

    def pass_over(
        self,
        tokens: Tensor,
        above: Tensor,
        before: Tensor,
        place: Place,
    ) -> Tensor:
        """One forward pass of the head over r runs of n successive pairs, ``tokens [B,r,n]`` with
        the states ``above [B,r,n,H]``, at ``place``; returns ``[B,r,n,H]``.

        ``before [B,r]`` are the slots whose LSTM states the runs continue (-1: none).
        """
        rows, r, n = tokens.shape
        embedded = self.embed(tokens).to(above.dtype)
        width = self.states.shape[-1]
        start = None
        if width:
            start = taken(self.states, before.clamp_min(0))
            start = start.masked_fill((before < 0)[:, :, None], 0).flatten(0, 1)
        x, states = self.head.mix(embedded.flatten(0, 1), above.flatten(0, 1), start)
        if states is not None:
            put(self.states, place.slots, states.view(rows, r * n, width).to(self.states.dtype))
        x = x.view(rows, r * n, -1)
        hidden = self.stack.run(x, place, self.cache, attended=x)[0]
        return hidden.view(rows, r, n, -1)

    def propose(self, state: State, noise: Noise) -> Draft:
        length, horizon = self.text(state)
        rows, base, scheme = state.rows, length - 1, self.scheme(state.sampling)
        tokens = [state.pending]
        valid = [torch.ones_like(tokens[0], dtype=torch.bool)]
        able = (state.length > self.k)[:, None]  # k pairs, each of a token and the one before it
        u = noise.u(DRAFT) if self.uniforms(state.sampling) else None
        mask = table_mask(self.table, length, horizon)
        q: list[Tensor] = []
        confidence = [torch.ones_like(tokens[0])]
        hidden, used = self.begin(state)[:, None], 0
        for b, one in enumerate(self.blocks.passes):
            if b:
                hidden = self.below(b, one, torch.cat(tokens, 1), hidden, base, horizon, mask)
            logits = self.own_logits(hidden[:, :, : one.levels].flatten(1, 2))
            logits = state.perturbed(logits, b * self.k, one.levels, self.words)
            lists, columns = logits.shape[1], None
            if u is not None:
                count = lists * one.width
                columns = u[:, used : used + count].view(rows, lists, one.width)
                used += count
            children, ok = self.drawn(logits, one.width, state.sampling, columns, q)
            flat, ok = children.flatten(1), ok.flatten(1) & able
            for take in self.take[b * self.k : b * self.k + one.levels]:
                tokens.append(flat.index_select(1, take))
                valid.append(ok.index_select(1, take))
                if self.confident:
                    every = likely(logits, one.width).flatten(1)
                    confidence.append(every.index_select(1, take))
        drawn_from = torch.cat(q, 1) if q else None
        all_tokens, all_valid = torch.cat(tokens, 1), torch.cat(valid, 1)
        draft = Draft(self.tree, all_tokens, all_valid, scheme, drawn_from, self.q_row)
        draft.confidence = torch.cat(confidence, 1) if self.confident else None
        return draft

    def below(
        self,
        b: int,
        one: Pass,
        tokens: Tensor,
        hidden: Tensor,
        base: Tensor,
        horizon: int,
        mask: Tensor,
    ) -> Tensor:
        """Processes the blocks of pass ``b`` below the first: ``hidden [B,blocks,k,H]`` are the
        states that the pass before has made, ``base [B]`` the slot of the text's last pair, ``mask
        [B, 1 + slots, extent]`` that of all passes. Returns ``[B,blocks,k,H]``."""
        k, n = self.k, len(one.blocks)
        above = hidden.index_select(1, self.follows[b])
        index = torch.arange(n * k, device=base.device)
        slots = base[:, None] + 1 + one.first + index
        positions = base[:, None] + 1 + (b - 1) * k + index % k
        before = base[:, None].expand(-1, n)
        if b > 1:
            first = self.blocks.passes[b - 1].first
            before = before + 1 + first + self.follows[b] * k + k - 1
        stop = 1 + one.first + n * k
        extent = horizon - 1 + stop
        drafted = tokens.index_select(1, self.nodes[b]).view(-1, n, k)
        seen = mask[:, stop - n * k : stop, :extent]
        return self.pass_over(drafted, above, before, Place(positions, slots, extent, seen))


Alignment = Annotated[
    str | None,
    Option("the side on which blocks are aligned; default as the head was trained", choices=ALIGNS),
]


@dataclass(frozen=True)
class Options:
    head: TrainedHead = None
    passes: Annotated[
        int | None, Option("forward passes of the head per step, at most; default no limit", low=1)
    ] = None
    tree: Annotated[
        Tree | str | None,
        Option(
            "the draft tree: vicuna and llama are the two published ones; default the best tree "
            "for the head's accuracies",
            choices=tuple(PUBLISHED),
        ),
    ] = None
    nodes: NodeCount = 10
    draw: Annotated[
        str,
        Option(
            "how a node's children are drawn from q: without replacement; or greedy, the most "
            "probable ones at every temperature",
            choices=("without", "greedy"),
        ),
    ] = "without"
    align: Alignment = None
    copy: Copy = None
    verify: Verify = None


def falcon(target: Target, options: Options) -> Drafter:
    """Falcon: a head that guesses blocks of k tokens per forward pass drafts a tree in fewer passes
    than EAGLE's head. The tokens of a block are less certain, since each is guessed before the
    one in front of it is known.

    The tree is fixed, by default the best one of size ``nodes`` for the head's measured accuracies
    and ``passes``.
    """
    head = falcon_head(target, options.head, options.align)
    depth = None if options.passes is None else head.k * options.passes
    tree = PUBLISHED[options.tree] if isinstance(options.tree, str) else options.tree
    tree = tree or measured_tree(head.card, options.nodes, depth)
    tree = drawable(tree, head.size(target), owner="the head's vocabulary")
    if depth is not None and depth < tree.D:
        room = f"{options.passes} passes of k={head.k} tokens make trees of depth {depth} at most"
        raise MethodError(f"{room}, this one has {tree.D}")
    return FalconDrafter(head, tree, options.draw, options.align)


def falcon_head(target: Target, head: Any, align: str | None) -> FalconHead:
    """The head that a method drafts with, checked against its options."""
    model: FalconHead = trained_head("falcon", target, head, load_falcon, FalconHead)
    layers = len(model.blocks)
    if (align or model.align) == "right" and layers > 2 and model.k > 1:
        needs = "blocks aligned to the right need a head of at most two layers"
        raise MethodError(f"{needs}, this one has {layers}; use align=left")
    return model


ENTRY = Entry(
    "falcon",
    falcon,
    Options,
    paper="Gao et al. 2024, arXiv 2412.12639",
    needs="a trained head",
    head="falcon",
    presets={
        "published": Preset({"tree": "vicuna"}, "figure 5: the tree of Vicuna"),
        "llama": Preset({"tree": "llama"}, "figure 6: the tree of LLaMA2-Chat"),
    },
    bibtex="""@inproceedings{gao2025falcon,
  title={Falcon: Faster and Parallel Inference of Large Language Models through Enhanced \
Semi-Autoregressive Drafting and Custom-Designed
    Decoding Tree},
  author={Gao, Xiangxiang and Xie, Weisheng and Xiang, Yiwei and Ji, Feng}, booktitle={AAAI}, \
year={2025}}""",
)
