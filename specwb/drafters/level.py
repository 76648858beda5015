"""Drafting level by level on a static tree: the piece that sps, mcsd, EAGLE and their relatives share."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from specwb.drafters.base import Drafter, by_name
from specwb.drafters.length import Length
from specwb.drafters.stopping import Confidence
from specwb.flow import Draft, Law, Scores, State, Verdict
from specwb.mask import causal_mask
from specwb.models.backbone import Run
from specwb.models.cache import KVCache
from specwb.models.load import check_pair
from specwb.models.target import Target, prefill
from specwb.noise import DRAFT, Noise
from specwb.options import MethodError
from specwb.probability import Sampling, draw_without_replacement, inverse_cdf
from specwb.tree import Limits, Tree

DRAWS = ("without", "with", "top", "coupled", "greedy")


class Levels(Drafter):
    """Drafts a static tree level by level: every node of one level is expanded in one forward; D forwards a round, the last level is never fed.

    Children of a node, ``draw``: at T > 0 drawn from q (the drafter's own probabilities under the same temperature and filters), "with" or
    "without" replacement; "top": all but the last are q's most probable tokens, the last is drawn from the rest of q; "coupled": K paths whose
    tokens are ``argmin E / q``, E the exponential variables that the coupled rule looks at again; "greedy": the most probable tokens, whatever
    the temperature, which are point masses. At T = 0 always the top-k tokens.

    With a ``length`` a row drafts as many levels as that says, and with ``sure`` only while some node of the level above is as sure as the length's
    threshold. Rows that have stopped have invalid nodes below; on the CPU drafting ends with the longest row (one host read a level), elsewhere
    all levels are computed.

    A subclass says what a forward is: :meth:`begin`, :meth:`feed`, :meth:`logits`, and :meth:`text`.
    """

    captured = True
    vocabulary: int
    unasked = 0  # levels that are followed by another whatever they are

    def __init__(
        self,
        shape: Tree | Limits,
        draw: str = "without",
        length: Length | None = None,
        sure: Confidence | None = None,
    ) -> None:
        """``shape``: a static tree, or the limits of trees that a subclass grows in every step."""
        if isinstance(shape, Tree):
            self.tree = shape
        else:
            self.limits = shape
        self.draw, self.length, self.sure = draw, length, sure
        self.host_reads = 0 if length is None else max(0, self.limits.depth - 1)
        self.tables: dict[str, Tensor] = {}  # what lay_out makes, constants

    def open(self, state: State, target: Target) -> None:
        if self.length is not None:
            self.length = copy.copy(self.length)
            self.length.open(state.rows, target.device)

    def tensors(self) -> dict[str, Tensor]:
        length = {} if self.length is None else self.length.tensors()
        return {**super().tensors(), **self.tables, **length}

    def text(self, state: State) -> tuple[Tensor, int]:
        """``known [B]`` and its host bound, of the text that lies in the drafter's cache: the root is at slot known - 1."""
        return state.known, state.horizon

    def begin(self, state: State) -> Tensor:
        """Feed the last known tokens again; ``[B,1,H]`` hidden state at the root."""
        raise NotImplementedError

    def feed(self, state: State, tokens: Tensor, above: Tensor, positions: Tensor, slots: Tensor, extent: int, mask: Tensor | None) -> Tensor:
        """``[B,m]`` nodes of one level, ``above [B,m,H]`` the hidden states of their parents -> ``[B,m,H]``."""
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """``[B,m,H] -> [B,m,V]``."""
        raise NotImplementedError

    def whole(self, state: State) -> Tensor | None:
        """The mask of all nodes ``[B,n,extent]``, None where every node sees all there is."""
        raise NotImplementedError

    def law(self, sampling: Sampling) -> Law:
        if sampling.greedy or self.draw == "greedy":
            return Law.POINT
        if self.draw == "with":
            # paths that end together, by what all of them drafted, are not independent: which is largest (gbv) tells how the others go on
            alone = self.tree.is_paths and self.tree.K > 1 and self.sure is None
            return Law.IID_PATHS if alone else Law.IID
        return {"without": Law.WITHOUT_REPLACEMENT, "top": Law.TOP_AND_SAMPLE, "coupled": Law.COUPLED}[self.draw]

    def uniforms(self, sampling: Sampling) -> int:
        # one a child, counting every node of a level as wide as the widest: no two draws may share a uniform
        return (
            0
            if sampling.greedy or self.draw in ("coupled", "greedy")
            else sum((stop - start) * k for (start, stop), k in zip(self.tree.levels, self.tree.widths, strict=False))
        )

    def lay_out(self, device: torch.device) -> None:
        """The tree's tables; called in ``open``."""
        self.tree = self.tree.to(device)
        levels = self.tree.levels
        self.expanded = levels[-1][0]  # nodes before the last level, in level order: they have a row of q each
        self.q_row = torch.arange(self.tree.n, device=device)[None].masked_fill(torch.arange(self.tree.n, device=device) >= self.expanded, -1)
        # where a level's nodes take their children's tokens from: (parent's place in its level, rank among siblings)
        self.take = []
        self.parents: list[Tensor] = []  # of a level's nodes, their place in the level above
        self.inner: list[Tensor | None] = []  # nodes of a level that have children, None if all have
        self.fixed: list[Tensor] = []  # how many children of each node of a level are not drawn, under "top"
        for d, (start, stop) in enumerate(levels[1:]):
            self.fixed.append(((self.tree.kids[0, levels[d][0] : levels[d][1]] >= 0).sum(-1) - 1).clamp_min(0)[:, None])
            own = range(levels[d][0], levels[d][1])
            inner = [node - levels[d][0] for node in own if self.tree.below[0][node]]
            self.inner.append(None if len(inner) == len(own) else torch.tensor(inner, device=device))
            parents = torch.tensor(self.tree.host[0][start:stop], device=device) - levels[d][0]
            self.parents.append(parents)
            self.take.append(parents * self.tree.widths[d] + self.tree.rank[0, start:stop])
        self.offsets = self.tree.depth[0], torch.arange(self.tree.n, device=device)
        self.tables = {"q_row": self.q_row, **by_name(take=self.take, parents=self.parents)}
        self.tables |= by_name(inner=self.inner, fixed=self.fixed, offsets=self.offsets)

    def propose(self, state: State, noise: Noise) -> Draft:
        tree, levels = self.tree, self.tree.levels
        known, horizon = self.text(state)
        rows, base = state.rows, (known - 1)[:, None]
        tokens = [state.tokens.gather(1, (state.known - 1)[:, None])]
        valid = [torch.ones_like(tokens[0], dtype=torch.bool)]
        q: list[Tensor] = []
        used = 0
        if tree.D == 0:
            return Draft(tree, tokens[0], valid[0], self.law(state.sampling), None, self.q_row)
        hidden = self.begin(state)
        u = race = None
        if self.law(state.sampling) is Law.COUPLED:
            # by absolute place, the one after the draft too: a text is then a function of the seed and p alone where K = 1
            places = state.known[:, None] + torch.arange(tree.D + 1, device=base.device)
            race = -noise.make(DRAFT, places, tree.K * self.vocabulary).log().view(rows, tree.D + 1, tree.K, -1)
        elif self.uniforms(state.sampling):
            u = noise.u(DRAFT)
        whole = self.whole(state)
        going: Tensor | None = None  # rows that still draft
        for d in range(tree.D):
            start, stop = levels[d + 1]
            logits = self.logits(hidden)
            children, ok = self._children(logits, d, state.sampling, u, used, race, q)
            used += (levels[d][1] - levels[d][0]) * tree.widths[d]
            tokens.append(children.flatten(1).index_select(1, self.take[d]))
            ok = ok.flatten(1).index_select(1, self.take[d])
            valid.append(ok if going is None else ok & going[:, None])
            if d + 1 < tree.D:
                if self.length is not None and d >= self.unasked:
                    sure = None
                    if self.sure is not None and self.length.confidence:
                        asked = self.inner[d]
                        of = (logits, hidden) if asked is None else (logits.index_select(1, asked), hidden.index_select(1, asked))
                        sure = self.sure.of(*of, tokens[-1], state.sampling)
                    go = self.length.onward(d + 1, sure)
                    going = go if going is None else go & going
                    if not self.largest(state, going & ~state.done, 1):
                        tree = tree.prefix(d + 1)
                        break
                depth, index = self.offsets
                extent = horizon - 1 + stop
                mask = None if whole is None else whole[:, start:stop, :extent]
                above = hidden.index_select(1, self.parents[d])
                hidden = self.feed(state, tokens[-1], above, base + depth[start:stop], base + index[start:stop], extent, mask)
        law = self.law(state.sampling)
        return Draft(tree, torch.cat(tokens, 1), torch.cat(valid, 1), law, torch.cat(q, 1) if q else None, self.q_row[:, : tree.n], race)

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        if self.length is not None:
            self.length.observe((draft.valid * draft.tree.depth).amax(1), verdict.accepted)

    def _children(
        self, logits: Tensor, d: int, sampling: Sampling, u: Tensor | None, used: int, race: Tensor | None, q: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Children of every node of level ``d``: tokens and ok, each ``[B, nodes, k]``. ``used`` uniforms are gone already."""
        k, nodes = self.tree.widths[d], logits.shape[1]
        if sampling.greedy or self.draw == "greedy":
            children = logits.argmax(-1, keepdim=True) if k == 1 else logits.topk(k, -1).indices
            return children, torch.ones_like(children, dtype=torch.bool)
        law = sampling.probabilities(logits)
        if race is not None:
            # the root has K children, every other node one, in the order of the paths
            children = (race[:, d].unflatten(1, (nodes, k)) / law[:, :, None]).argmin(-1)
            return children, torch.ones_like(children, dtype=torch.bool)
        assert u is not None
        columns = u[:, used : used + nodes * k].view(-1, nodes, k)
        if self.draw == "top" and k > 1:
            return self._top_and_draw(law, self.fixed[d], columns, q)
        q.append(law)
        if self.draw == "with" or k == 1:
            children = torch.stack([inverse_cdf(law, columns[..., j]) for j in range(k)], -1)
            return children, torch.ones_like(children, dtype=torch.bool)
        return draw_without_replacement(law, columns)

    def _top_and_draw(self, law: Tensor, fixed: Tensor, u: Tensor, q: list[Tensor]) -> tuple[Tensor, Tensor]:
        """A node's ``fixed [nodes, 1]`` most probable tokens, then one of the rest; ``q`` gets the law of the rest."""
        rank = torch.arange(u.shape[-1], device=law.device)
        best, children = law.topk(u.shape[-1], -1)
        rest = law.scatter(-1, children, torch.where(rank < fixed, 0, best))
        mass = rest.sum(-1, keepdim=True)
        drawn = inverse_cdf(rest, u[..., 0]).unsqueeze(-1)
        q.append(torch.where(mass > 0, rest / mass, 0))
        ok = (rank < fixed) | (q[-1].gather(-1, drawn) > 0)
        return torch.where(rank == fixed, drawn, children), ok


def drawable(
    key: str,
    tree: Tree,
    vocabulary: int,
    draw: str = "",
    owner: str = "the vocabulary",
    empty: bool = False,
) -> Tree:
    """The tree, if the method ``key`` can draft it level by level with such draws.

    Args:
        key: the method, for the message.
        tree: the tree that is asked for.
        vocabulary: how many tokens there are to choose children from.
        draw: how children are drawn, where the method has a choice.
        owner: what the vocabulary belongs to, for the message.
        empty: whether a tree without candidates will do.

    Raises:
        MethodError: it cannot.
    """
    if not tree.in_level_order or not (tree.D or empty):
        size = "" if empty else ", of at least one candidate"
        tree_needed = f"one tree for all rows{size}, its nodes in level order"
        ways = "(Tree.branching, Tree.paths)"
        raise MethodError(f"{key} drafts level by level: give {tree_needed} {ways}")
    if vocabulary < tree.K:
        raise MethodError(f"{key}: {tree.K} children a node but {owner} has {vocabulary} tokens")
    if draw == "coupled" and not tree.is_paths:
        example = "give a tree such as 4-1-1, which is four paths of three tokens"
        raise MethodError(f"{key}: draw=coupled couples whole paths; {example}")
    return tree


class LevelDrafter(Levels):
    """A causal draft model of its own on a static tree.

    Catch-up window: each round begins by feeding the last two known tokens again. After a fully accepted draft the last accepted
    node was never fed to the draft model; feeding two positions covers that case and every other, with the same shapes.
    """

    window = 2
    exact: Run | None = None  # how its layers run in order, where they lie on several devices

    def __init__(
        self,
        draft: Target,
        shape: Tree | Limits,
        draw: str = "without",
        length: Length | None = None,
        sure: Confidence | None = None,
    ) -> None:
        super().__init__(shape, draw, length, sure)
        self.draft, self.backbone, self.vocabulary = draft, draft.backbone, draft.vocabulary

    def open(self, state: State, target: Target) -> None:
        super().open(state, target)
        check_pair(target, self.draft)
        self.lay_out(self.draft.device)
        self.cache = self.storage(state)
        prefill(self.backbone, state, self.cache, run=self.exact)

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), "cache": self.cache.data}

    def storage(self, state: State) -> KVCache:
        return self.backbone.cache(state.rows, state.capacity)

    def begin(self, state: State) -> Tensor:
        begin, positions, recent = state.window(self.window)
        extent = max(state.horizon, self.window)
        hidden = self._run(recent, positions, positions, extent, causal_mask(positions, extent, self.backbone.dtype))
        root = (state.known - 1 - begin)[:, None, None]
        return hidden.gather(1, root.expand(-1, -1, hidden.shape[-1]))

    def feed(self, state: State, tokens: Tensor, above: Tensor, positions: Tensor, slots: Tensor, extent: int, mask: Tensor | None) -> Tensor:
        return self._run(tokens, positions, slots, extent, mask)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.backbone.head(hidden)

    def whole(self, state: State) -> Tensor | None:
        alone = state.rows == 1 and self.tree.is_chain and not state.static
        return None if alone else state.tree_mask(self.tree, self.backbone.dtype)

    def _run(self, tokens: Tensor, positions: Tensor, slots: Tensor, extent: int, mask: Tensor | None) -> Tensor:
        return self.backbone.run(self.backbone.embed(tokens), positions, slots, self.cache, extent, mask)[0]

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        super().observe(state, draft, verdict, scores)
        if not draft.tree.is_chain:
            self.cache.keep(state.known - 1, verdict.path)
