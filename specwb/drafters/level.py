"""Drafting level by level on a static tree: shared by sps, mcsd, EAGLE and related methods."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from specwb.core.flow import Draft, Scheme, Scores, State, Verdict, taken
from specwb.core.noise import DRAFT, Noise
from specwb.core.options import MethodError
from specwb.core.probability import Sampling, draw_without_replacement, inverse_cdf, most_probable
from specwb.core.tree import Limits, Tree
from specwb.drafters.base import Drafter, by_name
from specwb.drafters.length import Length
from specwb.drafters.stopping import Confidence
from specwb.models.backbone import LayerRunner
from specwb.models.cache import KVCache
from specwb.models.load import check_pair
from specwb.models.place import Place
from specwb.models.target import Target, prefill
from specwb.models.words import spread

DRAWS = ("without", "with", "top", "greedy")


@dataclass
class Drafted:
    """The levels that a step has drafted so far. A stage of the step (:meth:`State.stage`) takes
    one and returns another.

    ``tokens`` and ``valid`` are of every level, the root's first, ``[B,nodes of the level]``; ``q``
    of every sampled level, ``confidence`` of every level below the root where the drafter is
    confident; ``kept`` is what a subclass collects from level to level. ``hidden
    [B,m,H]`` are the states of the level whose children were drafted last, ``mask [B,n,extent]``
    that of all nodes, ``u`` the step's uniforms for drafting. ``going [B]`` are the rows that still
    draft (None: all); ``more``, a scalar, whether any unfinished row keeps drafting (None if it is
    not needed).
    """

    tokens: list[Tensor]
    valid: list[Tensor]
    q: list[Tensor]
    kept: list[Tensor]
    hidden: Tensor
    mask: Tensor | None
    u: Tensor | None
    going: Tensor | None = None
    more: Tensor | None = None
    confidence: tuple[Tensor, ...] = ()


def likely(logits: Tensor, k: int) -> Tensor:
    """``[B,m,V] -> [B,m,k]``: the k largest probabilities at temperature 1, the largest first."""
    logits = logits.float()
    return (logits.topk(k, -1).values - logits.logsumexp(-1, keepdim=True)).exp()


class Levels(Drafter):
    """Drafts a static tree level by level: every node of one level is expanded in one forward pass.

    These are D passes per step; the last level is never processed. A subclass defines a pass:
    :meth:`begin`, :meth:`feed`, :meth:`own_logits`, and :meth:`text`.

    Rows that have stopped have invalid nodes below, and drafting ends with the longest row: one
    host read per level, between the recordings of the levels where steps are recorded.

    Args:
        shape: the static tree, its nodes in level order, or the limits of trees that a subclass
            grows in every step.
        draw: how a node's children are drawn from q, the drafter's probabilities under the
            decoding's temperature and filters. "with" or "without": with or without replacement;
            "top": all but the last are q's most probable tokens, the last is drawn from the rest of
            q; "greedy": the most probable tokens at every
            temperature, which are point masses. At T = 0 they are always the top-k tokens.
        length: decides how many levels each row drafts; None: all of them.
        sure: the confidence; a row continues only while some node of the level above has at least
            the length's threshold.
    """

    captured = True
    vocabulary: int
    words: Tensor | None = None  # the tokens that it drafts, ascending, where these are not all
    most: int | None = None  # levels that the next step drafts, where not the whole tree
    cuts = True  # whether it drafts no more levels than :attr:`most`
    unasked = 0  # levels that are followed by another whatever they are
    fed: int | None = None  # the length that :meth:`unseen` was last asked about
    kept: list[Tensor]  # see Drafted; an attribute while a level is fed

    def __init__(
        self,
        shape: Tree | Limits,
        draw: str = "without",
        length: Length | None = None,
        sure: Confidence | None = None,
    ) -> None:
        if isinstance(shape, Tree):
            self.tree = shape
        else:
            self.limits = shape
        self.draw, self.length, self.sure = draw, length, sure
        self.host_reads = 0 if length is None else max(0, self.limits.depth - 1)
        self.tables: dict[str, Tensor] = {}  # what lay_out makes, constants

    @property
    def staged(self) -> bool:  # type: ignore[override]
        return self.length is not None and self.limits.depth > 1

    def open(self, state: State, target: Target) -> None:
        if self.length is not None:
            self.length = copy.copy(self.length)
            self.length.open(state.rows, target.device)

    def tensors(self) -> dict[str, Tensor]:
        length = {} if self.length is None else self.length.tensors()
        words = {} if self.words is None else {"words": self.words}
        return {**super().tensors(), **self.tables, **length, **words}

    @property
    def deepest(self) -> int:
        """The number of levels that the next step drafts at most."""
        depth = self.limits.depth
        return depth if self.most is None else min(self.most, depth)

    def text(self, state: State) -> tuple[Tensor, int]:
        """The length ``[B]`` of the text in the drafter's cache, and an upper bound on it that the
        host knows; the root is at the slot before."""
        return state.length, state.horizon

    def unseen(self, state: State) -> int:
        """How many of the last places of the text a step begins with: the window, or, in a single
        row whose steps are not recorded, only what is new."""
        if state.rows > 1 or state.static:
            return self.window
        new = 1 if self.fed is None else state.horizon - self.fed
        self.fed = state.horizon
        return min(self.window, new)

    def begin(self, state: State) -> Tensor:
        """Processes the last tokens of the text again; returns the hidden state ``[B,1,H]`` at the
        root."""
        raise NotImplementedError

    def feed(self, state: State, tokens: Tensor, above: Tensor, place: Place) -> Tensor:
        """Processes the nodes ``tokens [B,m]`` of one level, whose parents have the hidden states
        ``above [B,m,H]``, at ``place``; returns their hidden states ``[B,m,H]``."""
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """``[B,m,H] -> [B,m,V]``."""
        return self.spread(self.own_logits(hidden), -torch.inf)

    def own_logits(self, hidden: Tensor) -> Tensor:
        """``[B,m,H] -> [B,m,V]``; ``[B,m,words]`` for a drafter with :attr:`words`."""
        raise NotImplementedError

    def tokens(self, words: Tensor) -> Tensor:
        """The tokens at these places of :attr:`words`."""
        return words if self.words is None else self.words[words]

    def spread(self, values: Tensor, other: float) -> Tensor:
        """``[..,words] -> [..,V]``; ``other`` is the value of tokens that are not drafted."""
        return spread(values, self.words, self.vocabulary, other)

    def node_mask(self, state: State) -> Tensor | None:
        """The mask of all nodes ``[B,n,extent]``; None if every node sees everything."""
        if state.rows == 1 and self.tree.is_chain and not state.static:
            return None
        return self.tree_mask(state)

    def tree_mask(self, state: State) -> Tensor:
        raise NotImplementedError

    def scheme(self, sampling: Sampling) -> Scheme:
        if sampling.greedy or self.draw == "greedy":
            return Scheme.POINT
        if self.draw == "with":
            # paths that end together, by what all of them drafted, are not independent: which is
            # largest (gbv) tells how the others go on
            independent = self.tree.is_paths and self.tree.K > 1 and self.sure is None
            return Scheme.IID_PATHS if independent else Scheme.IID
        schemes = {
            "without": Scheme.WITHOUT_REPLACEMENT,
            "top": Scheme.TOP_AND_SAMPLE,
        }
        return schemes[self.draw]

    def uniforms(self, sampling: Sampling) -> int:
        if sampling.greedy or self.draw == "greedy":
            return 0
        # one a child, counting every node of a level as wide as the widest: no two draws may share
        # a uniform
        levels = zip(self.tree.levels, self.tree.widths, strict=False)
        return sum((stop - start) * k for (start, stop), k in levels)

    def lay_out(self, device: torch.device) -> None:
        """Makes the tables of a static tree; called in ``open``."""
        if not hasattr(self, "tree"):
            return
        self.tree = self.tree.to(device)
        levels = self.tree.levels
        # nodes before the last level, in level order: they have a row of q each
        self.expanded = levels[-1][0]
        leaf = torch.arange(self.tree.n, device=device) >= self.expanded
        self.q_row = torch.arange(self.tree.n, device=device)[None].masked_fill(leaf, -1)
        # where a level's nodes take their children's tokens from: (parent's place in its level,
        # rank among siblings)
        self.take = []
        # of a level's nodes, their place in the level above
        self.parents: list[Tensor] = []
        # nodes of a level that have children, None if all have
        self.inner: list[Tensor | None] = []
        # how many children of each node of a level are not drawn, under "top"
        self.fixed: list[Tensor] = []
        for d, (start, stop) in enumerate(levels[1:]):
            first, end = levels[d]
            children = (self.tree.kids[0, first:end] >= 0).sum(-1)
            self.fixed.append((children - 1).clamp_min(0)[:, None])
            inner = [node - first for node in range(first, end) if self.tree.below[0][node]]
            every = len(inner) == end - first
            self.inner.append(None if every else torch.tensor(inner, device=device))
            parents = torch.tensor(self.tree.host[0][start:stop], device=device) - first
            self.parents.append(parents)
            self.take.append(parents * self.tree.widths[d] + self.tree.rank[0, start:stop])
        self.offsets = self.tree.depth[0], torch.arange(self.tree.n, device=device)
        self.tables = {"q_row": self.q_row, **by_name(take=self.take, parents=self.parents)}
        self.tables |= by_name(inner=self.inner, fixed=self.fixed, offsets=self.offsets)

    def propose(self, state: State, noise: Noise) -> Draft:
        if self.tree.D == 0:
            root = state.pending
            valid = torch.ones_like(root, dtype=torch.bool)
            return Draft(
                self.tree, root, valid, self.scheme(state.sampling), None, self.q_row[:, :1]
            )
        drafted = state.stage(("level", 0), lambda: self._first(state, noise))
        d = 0
        while d + 1 < self.deepest:
            if drafted.more is not None and not self.largest(state, drafted.more, 1):
                break
            d += 1
            drafted = state.stage(("level", d), partial(self._below, state, drafted, d))
        tree = self.tree if d + 1 == self.tree.D else self.tree.prefix(d + 1)
        return state.stage(("draft", d), lambda: self.finish(state, drafted, tree))

    def finish(self, state: State, drafted: Drafted, tree: Tree) -> Draft:
        """The draft of all levels of ``tree``."""
        q = torch.cat(drafted.q, 1) if drafted.q else None
        tokens, valid = torch.cat(drafted.tokens, 1), torch.cat(drafted.valid, 1)
        scheme, q_row = self.scheme(state.sampling), self.q_row[:, : tree.n]
        draft = Draft(tree, tokens, valid, scheme, q, q_row)
        if self.confident:
            draft.confidence = torch.cat([torch.ones_like(tokens[:, :1]), *drafted.confidence], 1)
        return draft

    def _first(self, state: State, noise: Noise) -> Drafted:
        """What a step begins with, and the first level."""
        self.kept = []
        root = state.pending
        valid = torch.ones_like(root, dtype=torch.bool)
        hidden = self.begin(state)
        u = noise.u(DRAFT) if self.uniforms(state.sampling) else None
        mask = self.node_mask(state)
        drafted = Drafted([root], [valid], [], [], hidden, mask, u)
        return self._children_of(state, drafted, 0)

    def _below(self, state: State, drafted: Drafted, d: int) -> Drafted:
        """Feeds level ``d`` and drafts the one below it."""
        above = drafted.hidden.index_select(1, self.parents[d - 1])
        self.kept = [*drafted.kept]
        hidden = self.feed(state, drafted.tokens[-1], above, self.place(state, drafted, d))
        return self._children_of(state, replace(drafted, hidden=hidden), d)

    def place(self, state: State, drafted: Drafted, d: int) -> Place:
        """The positions, slots and masks of level ``d``."""
        (start, stop), (depth, index) = self.tree.levels[d], self.offsets
        length, horizon = self.text(state)
        base, extent = (length - 1)[:, None], horizon - 1 + stop
        mask = None if drafted.mask is None else drafted.mask[:, start:stop, :extent]
        return Place(base + depth[start:stop], base + index[start:stop], extent, mask)

    def _children_of(self, state: State, drafted: Drafted, d: int) -> Drafted:
        """Drafts the children of level ``d``, whose hidden states ``drafted`` has."""
        hidden, going = drafted.hidden, drafted.going
        logits, q = state.perturbed(self.own_logits(hidden), d, words=self.words), [*drafted.q]
        children, ok = self._children(logits, d, state.sampling, drafted, q)
        tokens = children.flatten(1).index_select(1, self.take[d])
        ok = ok.flatten(1).index_select(1, self.take[d])
        valid = ok if going is None else ok & going[:, None]
        confidence = drafted.confidence
        if self.confident:
            every = likely(logits, self.tree.widths[d]).flatten(1)
            confidence = (*confidence, every.index_select(1, self.take[d]))
        more = None
        if d + 1 < self.tree.D and self.length is not None and d >= self.unasked:
            sure = self._sureness(d, logits, hidden, tokens, state.sampling)
            go = self.length.onward(d + 1, sure)
            going = go if going is None else go & going
            more = (going & ~state.done).any()
        # not an attribute beyond this: what a drafter holds outlives a step
        kept, self.kept = self.kept, []
        return replace(
            drafted,
            tokens=[*drafted.tokens, tokens],
            valid=[*drafted.valid, valid],
            q=q,
            kept=kept,
            going=going,
            more=more,
            confidence=confidence,
        )

    def _sureness(
        self, d: int, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling
    ) -> Tensor | None:
        """How sure each row is of level ``d + 1``, ``[B]``; None where it is not asked."""
        if self.sure is None or self.length is None or not self.length.confidence:
            return None
        inner = self.inner[d]
        if inner is not None:
            logits, hidden = logits.index_select(1, inner), hidden.index_select(1, inner)
        if self.words is not None:
            tokens = torch.searchsorted(self.words, tokens).clamp_max(len(self.words) - 1)
        return self.sure.of(logits, hidden, tokens, sampling)

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        if self.length is not None:
            self.length.observe((draft.valid * draft.tree.depth).amax(1), verdict.accepted)

    def _children(
        self, logits: Tensor, d: int, sampling: Sampling, drafted: Drafted, q: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The children ``[B,nodes,k]`` of every node of level ``d``, and which of them may be
        accepted, from ``logits [B,nodes,V]`` (or of :attr:`words`). The distribution that they were
        drawn from is appended to ``q``."""
        k = self.tree.widths[d]
        u = None if drafted.u is None else self.columns(drafted, d)
        if u is not None and self.draw == "top" and k > 1:
            distribution = self.spread(sampling.probabilities(logits), 0.0)
            return self._top_and_draw(distribution, self.fixed[d], u, q)
        return self.drawn(logits, k, sampling, u, q)

    def drawn(
        self, logits: Tensor, k: int, sampling: Sampling, u: Tensor | None, q: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """``k`` tokens of each list, and which of them may be accepted.

        Args:
            logits: ``[B,lists,V]``, or of :attr:`words`.
            k: how many tokens.
            sampling: the decoding's.
            u: ``[B,lists,k]`` uniforms for draws with or without replacement; None for the most
                probable tokens.
            q: the distributions drawn from ``[B,lists,V]`` are appended to it.

        Returns:
            Tokens ``[B,lists,k]``, and a mask of the same shape.
        """
        if u is None:
            best = most_probable(logits)[..., None] if k == 1 else logits.topk(k, -1).indices
            return self.tokens(best), torch.ones_like(best, dtype=torch.bool)
        own = sampling.probabilities(logits)
        q.append(self.spread(own, 0.0))
        if self.draw == "with" or k == 1:
            words = torch.stack([inverse_cdf(own, u[..., j]) for j in range(k)], -1)
            ok = torch.ones_like(words, dtype=torch.bool)
        else:
            words, ok = draw_without_replacement(own, u)
        return self.tokens(words), ok

    def columns(self, drafted: Drafted, d: int) -> Tensor:
        """``[B,nodes,k]``: the uniforms of level ``d``."""
        assert drafted.u is not None
        levels = zip(self.tree.levels, self.tree.widths, strict=False)
        sizes = [(stop - start, k) for (start, stop), k in levels]
        first = sum(nodes * k for nodes, k in sizes[:d])
        nodes, k = sizes[d]
        return drafted.u[:, first : first + nodes * k].view(-1, nodes, k)

    def _top_and_draw(
        self, distribution: Tensor, fixed: Tensor, u: Tensor, q: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """A node's ``fixed [nodes,1]`` most probable tokens, then one of the rest; the distribution
        of the rest is appended to ``q``."""
        rank = torch.arange(u.shape[-1], device=distribution.device)
        best, children = distribution.topk(u.shape[-1], -1)
        rest = distribution.scatter(-1, children, torch.where(rank < fixed, 0, best))
        mass = rest.sum(-1, keepdim=True)
        drawn = inverse_cdf(rest, u[..., 0]).unsqueeze(-1)
        q.append(torch.where(mass > 0, rest / mass, 0))
        ok = (rank < fixed) | (q[-1].gather(-1, drawn) > 0)
        return torch.where(rank == fixed, drawn, children), ok


def drawable(
    tree: Tree, vocabulary: int, owner: str = "the vocabulary", empty: bool = False
) -> Tree:
    """Returns the tree, if it can be drafted level by level from ``vocabulary`` tokens of
    ``owner``; ``empty`` allows a tree without candidates."""
    if not tree.in_level_order or not (tree.D or empty):
        size = "" if empty else ", of at least one candidate"
        tree_needed = f"one tree for all rows{size}, its nodes in level order"
        ways = "(Tree.branching, Tree.paths)"
        raise MethodError(f"it drafts level by level: give {tree_needed} {ways}")
    if vocabulary < tree.K:
        raise MethodError(f"{tree.K} children per node but {owner} has {vocabulary} tokens")
    return tree


class LevelDrafter(Levels):
    """A separate causal draft model on a static tree.

    Catch-up window: each step begins by processing the last two tokens of the text again. After a
    fully accepted draft the last accepted node was never processed by the draft model; two
    positions cover that case and every other, with the same shapes.
    """

    window = 2
    # how its layers run in order, where they lie on several devices
    exact: LayerRunner | None = None

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
        self.words = draft.words

    def open(self, state: State, target: Target) -> None:
        super().open(state, target)
        check_pair(target, self.draft)
        self.lay_out(self.draft.device)
        self.cache = self.storage(state)
        prefill(self.backbone, state, self.cache, run=self.exact)

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), "cache": self.cache.data}

    def storage(self, state: State) -> KVCache:
        """The draft model's empty cache."""
        return self.backbone.cache(state.rows, state.capacity)

    def begin(self, state: State) -> Tensor:
        return self.again(state, self.window)

    def again(self, state: State, w: int, run: LayerRunner | None = None) -> Tensor:
        """Processes the last ``w`` tokens of the text again, as :meth:`begin`."""
        begin, positions, recent = state.window(w)
        place = Place.behind(positions, max(state.horizon, w), self.backbone.dtype)
        hidden = self.forward(recent, place, run)
        return taken(hidden, (state.length - 1 - begin)[:, None])

    def feed(self, state: State, tokens: Tensor, above: Tensor, place: Place) -> Tensor:
        return self.forward(tokens, place)

    def own_logits(self, hidden: Tensor) -> Tensor:
        return self.backbone.head(hidden)

    def tree_mask(self, state: State) -> Tensor:
        return state.tree_mask(self.tree, self.backbone.dtype)

    def forward(self, tokens: Tensor, place: Place, run: LayerRunner | None = None) -> Tensor:
        """Hidden states ``[B,m,H]`` of ``tokens [B,m]``, by ``run`` (default the backbone's)."""
        return (run or self.backbone.run)(self.backbone.embed(tokens), place, self.cache)[0]

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        super().observe(state, draft, verdict, scores)
        if not draft.tree.is_chain:
            self.cache.keep(state.length - 1, verdict.path)
