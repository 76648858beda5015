"""EasySpec: an ordinary draft model whose layers run side by side, and whose cache is made exact again every round."""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.drafters.base import Drafter
from specwb.drafters.beam import Beams, Level, Nodes, best, reranked
from specwb.drafters.eagle2 import bounds
from specwb.drafters.level import LevelDrafter, drawable
from specwb.flow import Draft, Scores, State, Verdict
from specwb.mask import causal_mask
from specwb.models.backbone import Run
from specwb.models.cache import KVCache
from specwb.models.fuzzy import EXECUTIONS, GroupError, Groups, grouping, listed
from specwb.models.load import draft_model
from specwb.models.ranks import RankGroups
from specwb.models.target import Target
from specwb.noise import Noise
from specwb.options import MethodError, ranges, shape, whole
from specwb.tree import Tree


class EasyDrafter(LevelDrafter):
    """A causal draft model on a static tree, its layers run as ``groups`` say (:mod:`specwb.models.fuzzy`) for all tokens that it drafts.

    Calibration: each round begins with one exact forward over the last D + 1 known tokens, among them all that were accepted in the last
    round and the closing token. It overwrites every fuzzy entry that the round left in the cache, so what the cache holds of the text is
    what an exact forward would have left there, and it gives the exact law of the first drafted token. The older ones are exact
    already, and feeding them again changes nothing; a single row whose rounds are not recorded feeds only what is new.

    Without ``calibrate`` entries of accepted tokens stay as they were drafted, and the round begins with a fuzzy forward over the last two known
    tokens (as every :class:`LevelDrafter`'s does): the drift that calibration removes. A prompt is read exactly, but for its last two tokens then.

    Lossless whatever the groups: q is the law that a token was drawn from.

    Source: Wu et al. 2025, arXiv 2502.02493, 4.2 (layer-parallel) and 4.3 (bonus calibration). Differs from it in: batches with rows of different
    lengths; a window of fixed length where rounds are recorded, so that shapes do not depend on what was accepted.
    """

    def __init__(self, draft: Target, tree: Tree, groups: Groups, calibrate: bool = True, draw: str = "without") -> None:
        super().__init__(draft, tree, draw)
        self.groups, self.calibrate = groups, calibrate
        # how the same devices run the layers side by side, and all of them in order
        self.fuzzy, self.exact = groups.on(self.backbone), groups.exact(self.backbone)
        self.window = tree.D + 1 if calibrate else 2
        self.captured = groups.captured

    def open(self, state: State, target: Target) -> None:
        super().open(state, target)
        self.fed: int | None = None

    def storage(self, state: State) -> KVCache:
        return self.groups.cache(self.backbone, state.rows, state.capacity)

    def begin(self, state: State) -> Tensor:
        w = self.window
        if self.calibrate and state.rows == 1 and not state.static:
            w = min(w, 1 if self.fed is None else state.horizon - self.fed)
            self.fed = state.horizon
        begin, positions, recent = state.window(w)
        extent = max(state.horizon, w)
        mask = None if w == 1 and state.rows == 1 and not state.static else causal_mask(positions, extent, self.backbone.dtype)
        hidden = self._forward(recent, positions, positions, extent, mask, self.exact if self.calibrate else self.fuzzy)
        root = (state.known - 1 - begin)[:, None, None]
        return hidden.gather(1, root.expand(-1, -1, hidden.shape[-1]))

    def feed(self, state: State, tokens: Tensor, above: Tensor, positions: Tensor, slots: Tensor, extent: int, mask: Tensor | None) -> Tensor:
        return self._forward(tokens, positions, slots, extent, mask, self.fuzzy)

    def _forward(self, tokens: Tensor, positions: Tensor, slots: Tensor, extent: int, mask: Tensor | None, run: Run | None) -> Tensor:
        forward = self.backbone.run if run is None else run
        return forward(self.backbone.embed(tokens), positions, slots, self.cache, extent, mask)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.groups.agreed(super().logits(hidden))

    def exact_until(self, before: Tensor, known: Tensor) -> Tensor:
        """All that was known before the round, which calibration feeds through layers in order."""
        return before if self.calibrate else torch.zeros_like(before)

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        if not self.calibrate:
            super().observe(state, draft, verdict, scores)


class WideEasy(EasyDrafter):
    """A tree of ``depth`` levels of ``width`` nodes each: of all continuations of a level's nodes by their ``width`` best tokens those with the
    largest products of probabilities along their paths. All of it is verified.

    The tree and its tokens are a function of the text alone, at every temperature: point masses.

    Source: Wu et al. 2025 has trees of widths 1 to 12 and depth 5; how their nodes are chosen is not written there, and this is our reading.
    """

    def __init__(self, draft: Target, depth: int, width: int, groups: Groups, calibrate: bool = True) -> None:
        super().__init__(draft, bounds(1 + depth * width, depth, width, depth * width), groups, calibrate, "greedy")
        self.width = width

    def lay_out(self, device: torch.device) -> None:
        self.tree = self.tree.to(device)

    def propose(self, state: State, noise: Noise) -> Draft:
        level = Level.root(state.rows, state.known.device)
        beams = Beams(state.known - 1, state.horizon, self.backbone.dtype)
        nodes, hidden = Nodes(), self.begin(state)
        for depth in range(1, self.tree.D + 1):
            level = level.expand(*best(self.logits(hidden), self.width)).best(self.width)
            level = nodes.add(level)
            if depth < self.tree.D:
                place = beams.below(level.above)
                hidden = self.feed(state, level.token, level.token, *place)
        return reranked(self, state, nodes, self.width)  # which are all of them


def deep_draft(target: Target, draft: Target | str | None = None) -> Target:
    """The draft model that was given or named, or the deep one that lies beside the target, or else the target's own."""
    own = target.own_head("deep")
    return draft_model(target, str(own) if draft is None and own is not None else draft)


def easyspec(
    target: Target, *, draft=None, n: int = 4, gamma: int = 5, width: int = 1, tree=None, draw: str = "without", calibrate: bool = True,
    groups=None, mlp: str = "sequence", execution: str = "fused",
) -> Drafter:  # fmt: skip
    """EasySpec: a chain of ``gamma`` tokens, or ``gamma`` levels of ``width`` nodes, from a draft model that runs ``n`` attentions side by side.

    ``n=1`` is the draft model as it is. ``groups``: other groups than the paper's, such as 1-3.4-7 (layers from 0 on; those not named stand alone).
    ``tree`` and ``draw``: a static tree, as for mcsd. ``calibrate=false``: the draft's cache is not made exact again. ``mlp=parallel``: the
    groups' MLPs side by side too. ``execution``: ``fused``, ``simulation``, ``streams`` (CUDA), ``ranks`` (several processes); the drafts are the
    same but for rounding, which is seen in half precision.
    """
    key = "easyspec"
    model = deep_draft(target, draft)
    layers = len(model.backbone.layers)
    whole(f"{key}: gamma", gamma)
    if whole(f"{key}: width", width) > 1 and (tree is not None or draw != "without"):
        raise MethodError(f"{key}: width makes a tree of its own, of point masses; leave tree and draw out, or width")
    if not isinstance(calibrate, bool):
        raise MethodError(f"{key}: calibrate must be true or false, got {calibrate!r}")
    if mlp not in ("sequence", "parallel"):
        raise MethodError(f"{key}: mlp must be sequence or parallel, got {mlp!r}")
    kinds = {**EXECUTIONS, "ranks": RankGroups}
    if execution not in kinds:
        raise MethodError(f"{key}: execution must be {', '.join(kinds)}, got {execution!r}")
    try:
        if groups is not None and n != 4:
            raise GroupError("groups says which layers run side by side; leave n out")
        parts = grouping(layers, n) if groups is None else listed(layers, ranges(f"{key}: groups", groups))
        if groups is None and n > 1 and max(map(len, parts)) < 2:
            raise GroupError(f"n={n} puts no two of its {layers} layers into one group by the paper's rule; name groups, such as 1-2, or take n=1")
        made = kinds[execution](parts, mlp == "parallel")
        made.check(model.backbone, n if groups is None else max(map(len, parts)))
    except GroupError as error:
        raise MethodError(f"{key}: {model.name!r}: {error}") from error
    if width > 1:
        if width > target.vocabulary:
            raise MethodError(f"{key}: {width} nodes a level but the vocabulary has {target.vocabulary} tokens")
        return WideEasy(model, gamma, width, made, calibrate)
    if tree is not None and gamma != 5:
        raise MethodError(f"{key}: a static tree has its own depth; leave gamma out")
    chosen = drawable(key, Tree.chain(gamma) if tree is None else shape(key, tree), draw, target.vocabulary)
    return EasyDrafter(model, chosen, made, calibrate, draw)
