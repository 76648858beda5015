"""Drafting level by level with a causal model on a static tree: the piece that sps, mcsd and their relatives share."""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.drafters.base import Drafter
from specwb.flow import Draft, Law, Scores, State, Verdict
from specwb.mask import causal_mask
from specwb.models.load import check_pair
from specwb.models.target import Target, prefill
from specwb.noise import DRAFT, Noise
from specwb.probability import Sampling, draw_without_replacement, inverse_cdf
from specwb.tree import Tree


class LevelDrafter(Drafter):
    """A causal draft model expands every node of one level in one forward; D forwards a round, the last level is never fed.

    Catch-up window: each round begins by feeding the last two known tokens again. After a fully accepted draft the last accepted
    node was never fed to the draft model; feeding two positions covers that case and every other, with the same shapes.

    Children of a node: at T > 0 drawn from q (the draft's own probabilities under the same temperature and filters), with or
    without replacement; at T = 0 the top-k tokens of the draft.
    """

    window = 2
    captured = True

    def __init__(self, draft: Target, tree: Tree, replacement: bool = False) -> None:
        self.draft, self.tree, self.replacement = draft, tree, replacement
        self.backbone = draft.backbone
        self.prefixes: dict[int, Tree] = {}

    def law(self, sampling: Sampling) -> Law:
        return Law.POINT if sampling.greedy else Law.IID if self.replacement else Law.WITHOUT_REPLACEMENT

    def uniforms(self, sampling: Sampling) -> int:
        # one a child, counting every node of a level as wide as the widest: no two draws may share a uniform
        return 0 if sampling.greedy else sum((stop - start) * k for (start, stop), k in zip(self.tree.levels, self.tree.widths, strict=False))

    def open(self, state: State, target: Target) -> None:
        check_pair(target, self.draft)
        device = self.draft.device
        self.tree = self.tree.to(device)
        self.cache = self.backbone.cache(state.rows, state.capacity)
        prefill(self.backbone, state, self.cache)
        levels = self.tree.levels
        self.expanded = levels[-1][0]  # nodes before the last level, in level order: they have a row of q each
        self.q_row = torch.arange(self.tree.n, device=device)[None].masked_fill(torch.arange(self.tree.n, device=device) >= self.expanded, -1)
        # where a level's nodes take their children's tokens from: (parent's place in its level, rank among siblings)
        self.take = []
        for d, (start, stop) in enumerate(levels[1:]):
            parents = torch.tensor(self.tree.host[0][start:stop], device=device) - levels[d][0]
            self.take.append(parents * self.tree.widths[d] + self.tree.rank[0, start:stop])
        self.offsets = self.tree.depth[0], torch.arange(self.tree.n, device=device)

    def propose(self, state: State, noise: Noise) -> Draft:
        tree, levels = self.tree, self.tree.levels
        rows, base = state.rows, (state.known - 1)[:, None]
        begin, positions, recent = state.window(self.window)
        tokens = [recent.gather(1, base - begin[:, None])]
        valid = [torch.ones_like(tokens[0], dtype=torch.bool)]
        q: list[Tensor] = []
        used = 0
        if tree.D == 0:
            return Draft(tree, tokens[0], valid[0], self.law(state.sampling), None, self.q_row)
        extent = max(state.horizon, self.window)
        mask: Tensor | None = causal_mask(positions, extent, self.backbone.dtype)
        hidden = self._run(recent, positions, positions, extent, mask)
        hidden = hidden.gather(1, (base - begin[:, None])[:, :, None].expand(-1, -1, hidden.shape[-1]))
        u = None if state.sampling.greedy else noise.u(DRAFT)
        whole = None if rows == 1 and tree.is_chain and not state.static else state.tree_mask(tree, self.backbone.dtype)
        going: Tensor | None = None  # rows that still draft
        for d in range(tree.D):
            start, stop = levels[d + 1]
            logits = self.backbone.head(hidden)
            children, ok = self._children(logits, tree.widths[d], state.sampling, u, used, q)
            used += (levels[d][1] - levels[d][0]) * tree.widths[d]
            tokens.append(children.flatten(1).index_select(1, self.take[d]))
            ok = ok.flatten(1).index_select(1, self.take[d])
            valid.append(ok if going is None else ok & going[:, None])
            if d + 1 < tree.D:
                go = self.onward(state, d + 1, tokens[-1], logits)
                if go is not None:
                    going = go if going is None else go & going
                    if not self.largest(state, going & ~state.done, 1):
                        tree = self._cut(d + 1)
                        break
                depth, index = self.offsets
                extent = state.horizon - 1 + stop
                mask = None if whole is None else whole[:, start:stop, :extent]
                hidden = self._run(tokens[-1], base + depth[start:stop], base + index[start:stop], extent, mask)
        law = self.law(state.sampling)
        return Draft(tree, torch.cat(tokens, 1), torch.cat(valid, 1), law, torch.cat(q, 1) if q else None, self.q_row[:, : tree.n])

    def onward(self, state: State, depth: int, tokens: Tensor, logits: Tensor) -> Tensor | None:
        """``[B]`` whether a row drafts below level ``depth``; None is every row.

        It sees what has been drafted: the level's ``tokens [B,nodes]`` and the ``logits [B,parents,V]`` they came from. It decides about
        the next level only: leaving out a token because of what it is would not be lossless.
        """
        return None

    def _cut(self, depth: int) -> Tree:
        if depth not in self.prefixes:
            self.prefixes[depth] = self.tree.prefix(depth)
        return self.prefixes[depth]

    def _run(self, tokens: Tensor, positions: Tensor, slots: Tensor, extent: int, mask: Tensor | None) -> Tensor:
        return self.backbone.run(self.backbone.embed(tokens), positions, slots, self.cache, extent, mask)[0]

    def _children(self, logits: Tensor, k: int, sampling: Sampling, u: Tensor | None, used: int, q: list[Tensor]) -> tuple[Tensor, Tensor]:
        """``k`` children of every node of a level: tokens and ok, each ``[B, nodes, k]``. ``used`` uniforms are gone already."""
        if u is None:
            children = logits.argmax(-1, keepdim=True) if k == 1 else logits.topk(k, -1).indices
            return children, torch.ones_like(children, dtype=torch.bool)
        law = sampling.probabilities(logits)
        q.append(law)
        nodes = law.shape[1]
        columns = u[:, used : used + nodes * k].view(-1, nodes, k)
        if self.replacement or k == 1:
            children = torch.stack([inverse_cdf(law, columns[..., j]) for j in range(k)], -1)
            return children, torch.ones_like(children, dtype=torch.bool)
        return draw_without_replacement(law, columns)

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        if not self.tree.is_chain:
            self.cache.keep(state.known - 1, verdict.path)
