"""What flows through a decoding step: State -> Draft -> Scores -> Verdict -> State.

B rows, n nodes with the root, D depth, K children, V vocabulary; R is 1 (one shape for all rows) or
B.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from specwb.core.errors import SpecwbError
from specwb.core.mask import tree_mask
from specwb.core.probability import Sampling, most_probable
from specwb.core.tree import Tree

if TYPE_CHECKING:
    from specwb.core.stops import Stops
    from specwb.models.cache import KVCache


T = TypeVar("T")
BUCKET = 256  # positions by which a captured decoding's extents grow


def taken(x: Tensor, index: Tensor) -> Tensor:
    """``x[b, index[b, i]]``: the entries ``index [B,m]`` of each row of ``x [B,n,..]``. (On a CPU
    torch's ``gather`` and ``scatter_`` copy the numbers of an entry one by one.)"""
    return x[torch.arange(len(x), device=x.device)[:, None], index]


def put(x: Tensor, index: Tensor, entries: Tensor) -> None:
    """``x[b, index[b, i]] = entries[b, i]``: replaces the entries ``index [B,m]`` of each row of
    ``x [B,n,..]``, in place."""
    x[torch.arange(len(x), device=x.device)[:, None], index] = entries


class Scheme(Enum):
    """The sampling scheme: how a drafter's candidates were drawn. A verification rule is lossless
    for some of these only."""

    POINT = "deterministic, distinct siblings"
    IID = "siblings drawn from q independently, with replacement"
    WITHOUT_REPLACEMENT = "siblings drawn from q one after another, without replacement"
    IID_PATHS = "whole paths drawn from the draft independently"
    TOP_AND_SAMPLE = "the most probable tokens and, last, one drawn from the rest"
    ROOTS = (
        "several tokens drawn from the target's own distribution, of which one stays, and"
        " candidates below them"
    )


class RuleMismatch(SpecwbError, ValueError):
    """A verification rule was put with a drafter whose candidates it is not lossless for."""


class InvalidDistribution(SpecwbError, ValueError):
    """There is no distribution to draw from: probabilities that are NaN or have no mass."""


class Fault(Enum):
    """What can be wrong with a row of a step, found on the device and raised by the step's one host
    read (:meth:`State.read`); of several the largest is raised."""

    NO_DISTRIBUTION = 1
    UNEVEN = 2


class Exactness(Enum):
    LOSSLESS = "lossless"
    LOSSY = "LOSSY"


@dataclass
class State:
    """All rows' text. ``length`` holds the sequence lengths, the only ones there are. The last
    token of a row is pending: it is known and not yet processed.

    Attributes:
        tokens: ``[B,T]``.
        length: ``[B]`` sequence lengths.
        start: ``[B]`` lengths of the prompts.
        limit: ``[B]`` lengths at which rows stop.
        done: ``[B]``.
        eos: ids that end a row.
        sampling: temperature and filters.
        horizon: an upper bound of the lengths that the host knows; it decides how many slots
            attention looks at. It is the longest row's own length, or, where ``static``, that
            rounded up to a multiple of ``BUCKET`` (at most ``ceiling``), so that shapes stay the
            same for many steps.
        cache: the target's.
        features: ``[B,T,F]`` or None: target hidden states by position, exact below length - 1.
        gumbel: ``[B,D+1,V]`` or None: with ``exact_text``, the noise of the next D + 1 places, made
            anew in every step.
        finished: all rows are done, as of the last :meth:`read`.
        static: this decoding is captured as graphs: tensors that live longer than a step are
            changed in place, and nothing reads a device value between two steps but :meth:`read`.
        stages: what runs the parts of a step that is recorded in several graphs, by name; None
            where a step is one graph, or eager.
    """

    tokens: Tensor
    length: Tensor
    start: Tensor
    limit: Tensor
    done: Tensor
    eos: Tensor
    sampling: Sampling
    horizon: int
    cache: KVCache
    ceiling: int = 0
    features: Tensor | None = None
    gumbel: Tensor | None = None
    finished: bool = False
    static: bool = False
    stages: Callable[[Callable[[], Any], Hashable], Any] | None = field(default=None, repr=False)
    _summary: Tensor | None = field(default=None, repr=False)
    _masks: dict = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def capacity(self) -> int:
        return self.tokens.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """What outlives a step, by name: recorded steps find these tensors at fixed addresses, and
        another decoding is copied into them. Masks and the summary every step makes anew."""
        tensors = {
            "tokens": self.tokens,
            "length": self.length,
            "start": self.start,
            "limit": self.limit,
            "done": self.done,
            "eos": self.eos,
            "cache": self.cache.data,
        }
        return tensors if self.features is None else {**tensors, "features": self.features}

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but these."""
        for name in ("tokens", "length", "start", "limit", "done"):
            setattr(self, name, getattr(self, name)[rows])
        self.cache.keep_rows(rows)
        self.finished = bool(self.done.all())

    @property
    def pending(self) -> Tensor:
        """``[B,1]``, the last token of every row."""
        return self.tokens.gather(1, (self.length - 1)[:, None])

    def window(self, w: int) -> tuple[Tensor, Tensor, Tensor]:
        """The last w positions of the text: first position ``[B]``, positions ``[B,w]``, tokens
        ``[B,w]``.

        A text shorter than w starts at 0 and runs past its end; what is computed there lies beyond
        every query's sight.
        """
        begin = (self.length - w).clamp_min(0)
        positions = begin[:, None] + torch.arange(w, device=begin.device)
        return begin, positions, self.tokens.gather(1, positions)

    def perturbed(
        self, logits: Tensor, depth: int, levels: int = 1, words: Tensor | None = None
    ) -> Tensor:
        """A drafter's ``logits [B,m,V]`` (or of ``words``) as its best tokens are taken from: with
        ``exact_text`` after temperature and filters, with the noise of the places that their tokens
        are for; otherwise unchanged.

        Row i is that of the children of nodes at depth ``depth + i % levels``.
        """
        if self.gumbel is None:
            return logits
        noise = self.gumbel[:, None, depth : depth + levels]
        noise = noise if words is None else noise[..., words]
        if more := logits.shape[-1] - noise.shape[-1]:  # rows of padding, or the mask's
            noise = pad(noise, (0, more))
        return (self.sampling.warped(logits).unflatten(1, (-1, levels)) + noise).flatten(1, 2)

    def tree_mask(self, tree: Tree, dtype: torch.dtype) -> Tensor:
        """:func:`specwb.core.mask.tree_mask` of this step, made once for drafter and target; of a
        cut tree it is a slice of the uncut one's."""
        for wider in (tree.uncut, tree):  # the tree is the key: an id is used again once it is gone
            mask = self._masks.get((wider, dtype))
            if mask is not None and wider is tree:
                return mask
            if mask is not None:
                return mask[:, : tree.n, : self.horizon - 1 + tree.n]
        mask = self._masks[tree, dtype] = tree_mask(tree, self.length, self.horizon, dtype)
        return mask

    def forget_masks(self) -> None:
        """Lets :meth:`tree_mask` make the next mask anew."""
        self._masks.clear()

    def stage(self, name: Hashable, body: Callable[[], T]) -> T:
        """The result of ``body()``, a part of a step. Where steps are recorded in stages it is
        recorded under ``name`` and replayed in later steps without its Python.

        So it computes with tensors alone: those that outlive a step, and the results of stages of
        the same step that came before it. Every later step that comes to this stage must have gone
        through the same stages.
        """
        if self.stages is None:
            return body()

        def alone() -> T:
            # a mask in the memory of one graph must not be looked for by another, recorded later
            self._masks.clear()
            result = body()
            self._masks.clear()
            return result

        return self.stages(alone, name)

    def advance(self, verdict: Verdict, done: Tensor, fault: Tensor | None = None) -> None:
        """Append what the step emitted; this is device work only. ``fault [B]``: what is wrong with
        each row, a :class:`Fault`'s value, 0 where nothing is."""
        assert verdict.emitted is not None
        width = verdict.emitted.shape[1]
        index = self.length[:, None] + torch.arange(width, device=self.length.device)
        # past accepted + 1 it writes beyond the new known
        self.tokens.scatter_(1, index, verdict.emitted)
        self.length.add_(verdict.count)
        self.done.copy_(done)
        if fault is None:
            worst = torch.zeros_like(self.length[0])
        else:  # of truth values, which are the first fault, any is a kernel less than the largest
            worst = fault.any().long() if fault.dtype == torch.bool else fault.amax()
        summary = torch.stack((done.all().long(), self.length.max(), worst))
        self._summary = summary if self._summary is None else self._summary.copy_(summary)
        self._masks.clear()

    def read(self, rule: str = "") -> None:
        """The one host read of a step: whether everything is done, the longest row's length, and
        whether a fault was found; ``rule`` names what verified the step, for the message."""
        assert self._summary is not None
        finished, longest, fault = self._summary.tolist()
        if fault == Fault.UNEVEN.value:
            raise RuleMismatch(
                f"rule {rule!r} keeps the distribution only where the number of a node's candidates"
                " is fixed before they are drawn; this draft has some of them valid and others not"
                " (or trees of every row's own). Keep all or none, or take rule 'rrs'"
            )
        if fault:
            raise InvalidDistribution(
                f"the target's probabilities are NaN or sum to 0 within {longest} tokens; try"
                " dtype='float32', or look at the weights"
            )
        self.finished = bool(finished)
        self.horizon = self.rounded(longest) if self.static else longest

    def rounded(self, longest: int) -> int:
        """The horizon of the bucket that a length falls into."""
        return min(-(-longest // BUCKET) * BUCKET, self.ceiling)


@dataclass
class Draft:
    """A token tree for every row, and how its candidates were drawn.

    Attributes:
        tree: its shape.
        tokens: ``[B,n]``; column 0 is the pending token.
        valid: ``[B,n]``, which nodes may be accepted.
        scheme: the sampling scheme.
        q: ``[B,r,V]``, for sampled schemes, the distributions that candidates were drawn from.
            Under TOP_AND_SAMPLE it is that of the one that was drawn, which is 0 on the fixed ones.
        q_row: ``[R,n]``, which row of q a node's CHILDREN were drawn from (-1 for none).
        hidden: ``[B,n,H]``, states that entered layer ``start_layer`` at every node, where the
            drafter has run the target's layers before it already and their keys and values lie in
            the target's cache: the target goes on from there.
        confidence: ``[B,n]``, where the drafter is ``confident``: its probability, at temperature
            1, of the token of a node's rank among its siblings. Of a drawn token it is not that
            token's own: it is known before the draw.
        computed: the nodes that the target computes, as indices into ``[B n]``; None for all. The
            others are not valid.
    """

    tree: Tree
    tokens: Tensor
    valid: Tensor
    scheme: Scheme
    q: Tensor | None = None
    q_row: Tensor | None = None
    hidden: Tensor | None = None
    start_layer: int = 0
    confidence: Tensor | None = None
    computed: Tensor | None = None

    def q_of(self, node: Tensor) -> Tensor | None:
        """``[B]`` node indices -> ``[B,V]``: what their children were drawn from."""
        if self.q is None or self.q_row is None:
            return None
        row = torch.arange(len(node), device=node.device)
        shape = row if len(self.q_row) > 1 else 0
        return self.q[row, self.q_row[shape, node].clamp_min(0)]

    def uneven(self) -> Tensor:
        """``[B]``: some node has children of which some, and not all, may be accepted; of whole
        paths, some of them and not all go on at some depth. So it is in every row where rows have
        trees of their own."""
        tree, rows = self.tree, len(self.tokens)
        if not tree.in_level_order:
            return self.valid.new_full((rows,), tree.K > 1)
        if self.scheme is Scheme.IID_PATHS:
            # a node that several paths come to has the children of all of them
            level = self.valid[:, 1:].unflatten(1, (tree.D, tree.K))
            return (level.any(2) & ~level.all(2)).any(1)
        there = tree.kids >= 0  # [1,n,K]
        kids = tree.kids.clamp_min(0).flatten(1).expand(rows, -1)
        ok = there & self.valid.gather(1, kids).view(rows, *there.shape[1:])
        count, most = ok.sum(2), there.sum(2)
        if self.scheme is Scheme.WITHOUT_REPLACEMENT and self.q is not None:
            # there are no more candidates than tokens that can be drawn
            assert self.q_row is not None
            row = self.q_row[:, : most.shape[1]].clamp_min(0).expand(rows, -1)
            most = torch.minimum(most, (self.q > 0).sum(2).gather(1, row))
        return ((count > 0) & (count < most)).any(1)

    def clone(self) -> Draft:
        """A copy that outlives the step where graphs write the next one into the same memory; it is
        without q."""
        return Draft(self.tree.clone(), self.tokens.clone(), self.valid.clone(), self.scheme)


def chain(tokens: Tensor) -> Draft:
    """Tokens ``[B,n]``, the root first, as a draft that is a chain of point masses."""
    return Draft(
        Tree.chain(tokens.shape[1] - 1).to(tokens.device),
        tokens,
        torch.ones_like(tokens, dtype=torch.bool),
        Scheme.POINT,
    )


@dataclass
class Scores:
    """The target's logits ``[B,n,V]`` at every node, features ``[B,n,F]`` if asked for, and the
    probabilities at nodes that a rule visits.

    With ``exact_text`` what decides is ``perturbed [B,v,V]``, see :meth:`perturb`: p is 1 at its
    argmax.
    """

    logits: Tensor
    sampling: Sampling
    features: Tensor | None = None
    perturbed: Tensor | None = None

    def perturb(self, tree: Tree, gumbel: Tensor) -> None:
        """Adds to the logits after temperature and filters the noise ``gumbel [B,D+1,V]`` of each
        node's place: all nodes of a depth share it."""
        row = torch.arange(len(gumbel), device=gumbel.device)[:, None]
        warped = self.sampling.warped(self.logits[:, : tree.v])
        self.perturbed = warped + gumbel[row, tree.depth[:, : tree.v]]

    @property
    def deciding(self) -> Tensor:
        """The logits that p and the best tokens are taken from."""
        return self.logits if self.perturbed is None else self.perturbed

    def at(self, i: int, node: int) -> Tensor:
        """``[V]``: the logits of one row at a node after temperature, top-k and top-p."""
        return self.sampling.warped(self.logits[i, node])

    def p(self, node: Tensor) -> Tensor:
        """``[B]`` node indices -> ``[B,V]`` probabilities after temperature, top-k and top-p."""
        row = torch.arange(len(node), device=node.device)
        return self.sampling.probabilities(self.deciding[row, node])

    def row(self, i: int, node: int) -> Tensor:
        """``[V]``: :meth:`p` of one row at a node known to the host."""
        return self.sampling.probabilities(self.deciding[i, node])

    def probabilities(self, tree: Tree) -> Tensor:
        """``[B,v,V]``: the probabilities at every verified node, for rules that read them all."""
        return self.sampling.probabilities(self.deciding[:, : tree.v])

    def best(self, tree: Tree) -> Tensor:
        """``[B,v]``: the target's most probable token after every verified node, the lowest index
        on ties."""
        return most_probable(self.deciding[:, : tree.v])


@dataclass
class Verdict:
    """What a rule decided.

    Attributes:
        path: ``[B,D+1]`` node indices; path[:,0] = 0, past ``accepted`` the last one is repeated.
        accepted: ``[B]`` draft tokens that are kept; -1 where the row had finished.
        bonus: ``[B]`` the token that ends the step.
        distribution: ``[B,V]``, the distribution that the bonus token was drawn from (None in
            greedy decoding); where ``trim`` cut a block short it is that of the untrimmed bonus
            token.
        emitted: ``[B,D+1]`` tokens that this step appends, valid up to accepted + 1.
        next_distribution: ``[B,V]``, where the bonus token has been scored already, the
            distribution (at temperature 0 the logits) of what comes after it.
    """

    path: Tensor
    accepted: Tensor
    bonus: Tensor
    distribution: Tensor | None = None
    emitted: Tensor | None = None
    next_distribution: Tensor | None = None

    @property
    def count(self) -> Tensor:
        """``[B]`` tokens emitted in this step, the bonus token included."""
        return self.accepted + 1

    def clone(self) -> Verdict:
        """A copy that outlives the step where graphs write the next one into the same memory."""
        copies: dict[str, Any] = {
            k: None if x is None else x.clone() for k, x in vars(self).items()
        }
        return Verdict(**copies)


def offered(draft: Draft, verdict: Verdict) -> Tensor:
    """``[B]``: whether the last node that stays had candidates: the last accepted one, or the bonus
    token's where that is a node; before a text of ``until`` cuts the row."""
    last = verdict.path.gather(1, verdict.accepted.clamp_min(0)[:, None])
    kids = draft.tree.kids.expand(len(last), -1, -1)

    def below(node: Tensor) -> tuple[Tensor, Tensor]:
        children = kids.gather(1, node[:, :, None].expand(-1, -1, kids.shape[-1]))[:, 0]
        nodes = children.clamp_min(0)
        return nodes, (children >= 0) & draft.valid.gather(1, nodes)

    nodes, there = below(last)
    if verdict.next_distribution is not None:
        bonus = there & (draft.tokens.gather(1, nodes) == verdict.bonus[:, None])
        _, there = below(nodes.gather(1, bonus.int().argmax(1, keepdim=True)))
    return there.any(1)


@dataclass
class Step:
    """One decoding step as a notebook sees it: what was known, drafted, scored and decided.

    Scores and uniforms are kept with ``trace=True`` only. ``state`` is the decoding's own, so it
    shows where the decoding is now, not where it was in this step. So does ``stops``: the rows'
    texts, and what has ended them.
    """

    index: int
    length: Tensor  # [B], before the step
    draft: Draft
    verdict: Verdict
    offered: Tensor  # [B], see :func:`offered`
    scores: Scores | None
    uniforms: Tensor | None  # [B,m] the acceptance uniforms the rule was given
    bonus_uniform: Tensor | None  # [B]
    rule: object
    tokenizer: object = None
    state: State | None = field(default=None, repr=False)
    stops: Stops | None = field(default=None, repr=False)

    def clone(self) -> Step:
        """A copy that outlives the step where graphs write the next one into the same memory; it is
        without scores and uniforms."""
        draft, verdict = self.draft.clone(), self.verdict.clone()
        copies = (self.length.clone(), draft, verdict, self.offered.clone(), None, None, None)
        return Step(self.index, *copies, self.rule, self.tokenizer, self.state)
