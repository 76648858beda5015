"""EasySpec: an ordinary draft model with layers in parallel, whose cache is made exact again in
every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from specwb.core.flow import Draft, Scores, State, Verdict
from specwb.core.noise import Noise
from specwb.core.options import Copy, MethodError, Option, Verify, ranges
from specwb.core.tree import Limits, Tree
from specwb.drafters.base import Drafter, Entry, Preset
from specwb.drafters.beam import BeamLevel, Beams, TreeNodes, best, grown_limits, reranked
from specwb.drafters.level import DRAWS, LevelDrafter, drawable
from specwb.models.cache import KVCache
from specwb.models.fuzzy import EXECUTIONS, GroupError, Groups, grouping, listed
from specwb.models.load import draft_model
from specwb.models.place import Place
from specwb.models.ranks import RankGroups
from specwb.models.target import Target


class EasyDrafter(LevelDrafter):
    """A causal draft model on a static tree, whose layers run in ``groups``
    (:mod:`specwb.models.fuzzy`) for the tokens that it drafts.

    Calibration: each step begins with one exact forward pass over the last D + 1 tokens of the
    text, which include all tokens accepted in the step before and its bonus token. It overwrites
    every fuzzy entry that the step before left in the cache, so the cache of the text is that of
    exact passes, and it gives the exact distribution of the first draft token. Older entries are
    exact already, and computing them again changes nothing; a single row whose steps are not
    recorded processes only what is new.

    Without ``calibrate`` the entries of accepted tokens stay as they were drafted, and a step
    begins with a fuzzy forward pass over the last two tokens of the text (as in every
    :class:`LevelDrafter`): this is the drift that calibration removes. The prompt, except for its
    last two tokens, is then still processed exactly.

    It is lossless whatever the groups: q is the distribution that a token was drawn from.

    Source: Wu et al. 2025, arXiv 2502.02493, 4.2 (layer-parallel) and 4.3 (bonus calibration).
    Differs from it in: batches with rows of different lengths; a window of fixed length where steps
    are recorded, so that shapes do not depend on what was accepted.
    """

    def __init__(
        self,
        draft: Target,
        shape: Tree | Limits,
        groups: Groups,
        calibrate: bool = True,
        draw: str = "without",
    ) -> None:
        super().__init__(draft, shape, draw)
        self.groups, self.calibrate = groups, calibrate
        # how the same devices run the layers side by side, and all of them in order
        self.fuzzy, self.exact = groups.on(self.backbone), groups.exact(self.backbone)
        self.window = self.limits.depth + 1 if calibrate else 2
        self.captured = groups.captured

    def storage(self, state: State) -> KVCache:
        return self.groups.cache(self.backbone, state.rows, state.capacity)

    def begin(self, state: State) -> Tensor:
        if self.calibrate:
            return self.again(state, self.unseen(state), self.exact)
        return self.again(state, self.window, self.fuzzy)

    def feed(self, state: State, tokens: Tensor, above: Tensor, place: Place) -> Tensor:
        return self.forward(tokens, place, self.fuzzy)

    def own_logits(self, hidden: Tensor) -> Tensor:
        return self.groups.agreed(super().own_logits(hidden))

    def exact_until(self, before: Tensor, length: Tensor) -> Tensor:
        """The whole text before the step, which calibration processes with layers in order."""
        return before if self.calibrate else torch.zeros_like(before)

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        if not self.calibrate:
            super().observe(state, draft, verdict, scores)


class WideEasy(EasyDrafter):
    """A tree of ``depth`` levels of ``width`` nodes each.

    A level consists of the continuations of the level above by their ``width`` best tokens that
    have the largest products of probabilities along their paths. The whole tree is verified. The
    tree and its tokens are a function of the text alone, at every temperature: point masses.

    Source: Wu et al. 2025 has trees of widths 1 to 12 and depth 5, but does not state how their
    nodes are chosen; this is our reading.
    """

    def __init__(
        self, draft: Target, depth: int, width: int, groups: Groups, calibrate: bool = True
    ) -> None:
        limits = grown_limits(1 + depth * width, depth, width, depth * width)
        super().__init__(draft, limits, groups, calibrate, "greedy")
        self.width = width

    def propose(self, state: State, noise: Noise) -> Draft:
        level = BeamLevel.root(state.rows, state.length.device)
        beams = Beams(state.length - 1, state.horizon, self.backbone.dtype)
        nodes, hidden = TreeNodes(), self.begin(state)
        for depth in range(1, self.deepest + 1):
            logits = state.perturbed(self.logits(hidden), depth - 1)
            level = level.expand(*best(logits, self.width)).best(self.width)
            level = nodes.add(level)
            if depth < self.deepest:
                place = beams.below(level.above)
                hidden = self.feed(state, level.token, level.token, place)
        return reranked(self, state, nodes, self.width)  # which are all of them


def deep_draft(target: Target, draft: Target | str | None = None) -> Target:
    """The draft model that is given or named; by default the target's deep draft model, or else its
    usual one."""
    deep = target.own_head("deep")
    chosen = str(deep) if draft is None and deep is not None else draft
    return draft_model(target, chosen)


KINDS = {**EXECUTIONS, RankGroups.name: RankGroups}


@dataclass(frozen=True)
class Options:
    draft: Annotated[
        Any,
        Option(
            "the draft model; default the target's deep one, otherwise its usual one",
            kind="a folder, hub id or model",
        ),
    ] = None
    n: Annotated[
        int, Option("layers whose attentions run in parallel; 1: an unchanged draft model", low=1)
    ] = 4
    gamma: Annotated[int, Option("draft tokens per step, or levels with width > 1", low=1)] = 5
    width: Annotated[int, Option("nodes per level, the most probable ones", low=1)] = 1
    tree: Annotated[Tree | None, Option("a static tree, as for mcsd, instead of a chain")] = None
    draw: Annotated[
        str, Option("how a node's children are drawn from q, as for mcsd", choices=DRAWS)
    ] = "without"
    calibrate: Annotated[bool, Option("recompute the draft's cache exactly in every step")] = True
    groups: Annotated[
        Any,
        Option(
            "other groups than the paper's, layers counted from 0; the others run alone",
            kind="ranges such as 1-3.4-7",
        ),
    ] = None
    mlp: Annotated[
        str,
        Option(
            "whether the MLPs of a group run in order or in parallel too",
            choices=("sequence", "parallel"),
        ),
    ] = "sequence"
    execution: Annotated[
        str,
        Option(
            "how a group is computed: streams needs CUDA, ranks several processes; drafts are the "
            "same up to rounding, which shows in half precision",
            choices=tuple(KINDS),
        ),
    ] = "fused"
    copy: Copy = None
    verify: Verify = None


def easyspec(target: Target, options: Options) -> Drafter:
    """EasySpec: a large draft model runs several of its layers in parallel, on several GPUs, which
    takes less time and gives nearly the same tokens. The target verifies them, so what is lost
    is acceptance and not exactness.

    A chain of ``gamma`` tokens, or ``gamma`` levels of ``width`` nodes, with the attentions of
    ``n`` layers in parallel.
    """
    width, tree, draw = options.width, options.tree, options.draw
    model = deep_draft(target, options.draft)
    if width > 1 and (tree is not None or draw != "without"):
        ways = "width makes a tree of its own, of point masses"
        raise MethodError(f"{ways}; leave tree and draw out, or width")
    try:
        groups = _groups(model, options)
    except GroupError as error:
        raise MethodError(f"{model.name!r}: {error}") from error
    if width > 1:
        if width > model.drafts:
            few = f"the draft model's vocabulary has {model.drafts} tokens"
            raise MethodError(f"{width} nodes per level but {few}")
        return WideEasy(model, options.gamma, width, groups, options.calibrate)
    if tree is not None and options.gamma != Options.gamma:
        raise MethodError("a static tree has its own depth; leave gamma out")
    tree = drawable(tree or Tree.chain(options.gamma), model.drafts, empty=True)
    return EasyDrafter(model, tree, groups, options.calibrate, draw)


def _groups(model: Target, options: Options) -> Groups:
    """Which layers of the draft model run side by side, and how."""
    layers, n = len(model.backbone.layers), options.n
    if options.groups is None:
        parts = grouping(layers, n)
        if n > 1 and max(map(len, parts)) < 2:
            none = f"n={n} puts no two of its {layers} layers into one group by the paper's rule"
            raise GroupError(f"{none}; name groups, such as 1-2, or take n=1")
    else:
        if n != Options.n:
            raise GroupError("groups says which layers run side by side; leave n out")
        parts = listed(layers, ranges("groups", options.groups))
        n = max(map(len, parts))
    groups = KINDS[options.execution](parts, options.mlp == "parallel")
    groups.check(model.backbone, n)
    return groups


ENTRY = Entry(
    "easyspec",
    easyspec,
    Options,
    paper="Wu et al. 2025, arXiv 2502.02493",
    needs="a deep draft model",
    head="deep",
    presets={"published": Preset({"n": 4}, "groups of 4, drafts of 5 tokens")},
    bibtex="""@inproceedings{wu2025easyspec,
  title={{EasySpec}: Layer-Parallel Speculative Decoding for Efficient Multi-{GPU} Utilization},
  author={Wu, Yize and Gao, Ke and Li, Ling and Wu, Yanjun}, booktitle={NeurIPS}, year={2025}}""",
)
