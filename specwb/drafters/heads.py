"""Methods built from a trained head: which head, and which tree where none is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from specwb.analysis import grow_tree
from specwb.blocks import PUBLISHED
from specwb.drafters.base import Drafter
from specwb.drafters.eagle import EagleDrafter
from specwb.drafters.eagle2 import DynamicEagle
from specwb.drafters.falcon import DRAWS as FALCON_DRAWS
from specwb.drafters.falcon import FalconDrafter
from specwb.drafters.falcon_dynamic import DynamicFalcon
from specwb.drafters.level import DRAWS
from specwb.drafters.medusa import MedusaDrafter
from specwb.models.eagle import Eagle3Head, EagleHead, load_eagle
from specwb.models.falcon import ALIGNS, FalconHead, load_falcon
from specwb.models.medusa import MedusaHeads, load_medusa
from specwb.models.target import Target
from specwb.options import MethodError, shape, whole
from specwb.tree import MOST, Tree

_PUBLISHED = "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
ALL = "all"  # domains of a card
EAGLE_TREE = Tree.paths([tuple(map(int, path)) for path in _PUBLISHED.split()])
"""The published EAGLE-1's tree of 25 candidates (its ``mc_sim_7b_63``)."""
LOG = [(0.56, 0.78), (0.32, 0.56), (0.20, 0.42), (0.15, 0.34), (0.12, 0.30)]
"""Share of places where a Vicuna-7B Medusa head's best token, and one of its best five, is the target's, by position; the published training log."""


def medusa(target: Target, *, head=None, tree=None, nodes: int = 10) -> Drafter:
    """Medusa: ``nodes`` candidates, the root included, of all heads' best tokens, in the tree that the heads' measured accuracies make best.

    ``head``: a folder or hub id; default the target's own. ``tree``: as for mcsd, instead of the measured one. At T > 0 exact by the point-mass rule;
    ``rule=typical`` is the paper's typical acceptance (LOSSY).
    """
    heads: MedusaHeads = trained_head("medusa", target, head, load_medusa, MedusaHeads)
    chosen = shape("medusa", tree) if tree is not None else measured_tree(heads.card, _budget("medusa", nodes), heads.heads)
    _one_shape("medusa", chosen)
    if heads.heads < chosen.D:
        raise MethodError(f"medusa: a tree of depth {chosen.D} needs {chosen.D} heads, there are {heads.heads}")
    _width("medusa", chosen.K, heads.vocabulary)
    return MedusaDrafter(heads, chosen)


def eagle(target: Target, *, head=None, tree=None, nodes: int = 10, draw: str = "without") -> Drafter:
    """EAGLE-1: a static tree; default the one of ``nodes`` nodes that the head's measured accuracies make best.

    ``tree``: as for mcsd, or ``published``, EAGLE-1's 25 candidates. ``draw``: as for mcsd; ``without`` is the paper's, ``greedy`` EAGLE-2's.
    """
    model: EagleHead = trained_head("eagle", target, head, load_eagle, EagleHead)
    if tree == "published":
        chosen = EAGLE_TREE
    elif tree is not None:
        chosen = shape("eagle", tree)
    else:
        chosen = measured_tree(model.card, _budget("eagle", nodes))
    _one_shape("eagle", chosen)
    if draw not in DRAWS:
        raise MethodError(f"eagle: draw must be one of {', '.join(DRAWS)}, got {draw!r}")
    if draw == "coupled" and not chosen.is_paths:
        raise MethodError("eagle: draw=coupled couples whole paths; give a tree such as 4-1-1, which is four paths of three tokens")
    _width("eagle", chosen.K, getattr(model, "draft_vocabulary", target.vocabulary))
    return EagleDrafter(model, chosen, draw)


def eagle2(target: Target, *, head=None, nodes: int = 10, depth: int = 4, top: int = 4) -> Drafter:
    """EAGLE-2: of ``depth`` levels of the ``top`` most probable nodes the best ``nodes`` (root included) are drafted; the same head as eagle."""
    return _dynamic("eagle2", "eagle", target, head, nodes, depth, top)


def eagle3(target: Target, *, head=None, nodes: int = 10, depth: int = 4, top: int = 4) -> Drafter:
    """EAGLE-3: a head over three layers' states with a vocabulary of its own, drafting EAGLE-2's dynamic tree."""
    made = _dynamic("eagle3", "eagle3", target, head, nodes, depth, top)
    if not isinstance(made.head, Eagle3Head):
        raise MethodError("eagle3: this is an EAGLE-1 head, whose dynamic tree is eagle2")
    return made


def falcon(
    target: Target, *, head=None, k: int | None = None, passes: int | None = None, tree=None, nodes: int = 10, draw: str = "without",
    align: str | None = None,
) -> Drafter:  # fmt: skip
    """Falcon: blocks of k tokens a pass; a static tree, default the one of ``nodes`` nodes that the head's measured accuracies make best in
    ``passes`` passes.

    ``tree``: as for mcsd, or ``vicuna``, ``llama``: the two published trees. ``draw``: ``without``, drawn without replacement, or ``greedy``, point
    masses at every temperature. ``align``: where blocks end, ``right`` or ``left``, instead of the head's. ``k`` must be the head's.
    """
    model, depth = _falcon("falcon", target, head, k, passes, align)
    if isinstance(tree, str) and tree in PUBLISHED:
        chosen = PUBLISHED[tree]
    elif tree is not None:
        chosen = shape("falcon", tree)
    else:
        chosen = measured_tree(model.card, _budget("falcon", nodes), depth)
    _one_shape("falcon", chosen)
    if depth is not None and depth < chosen.D:
        raise MethodError(f"falcon: {passes} passes of k={model.k} tokens make trees of depth {depth} at most, this one has {chosen.D}")
    if draw not in FALCON_DRAWS:
        raise MethodError(f"falcon: draw must be {' or '.join(FALCON_DRAWS)}, got {draw!r}")
    _width("falcon", chosen.K, target.vocabulary)
    return FalconDrafter(model, chosen, draw, align)


def falcon_dynamic(
    target: Target, *, head=None, k: int | None = None, nodes: int = 10, passes: int = 2, top: int = 4, beams: int = 4, align: str | None = None
) -> Drafter:
    """Falcon's blocks on a tree that follows the head's confidence: ``top`` tokens of each list, the ``beams`` best blocks a pass, the best ``nodes``
    (root included) of all. Point masses at every temperature."""
    key = "falcon_dynamic"
    model, _ = _falcon(key, target, head, k, passes, align)
    whole(f"{key}: top", top), whole(f"{key}: beams", beams), whole(f"{key}: nodes", nodes, 2)
    _width(key, top, target.vocabulary)
    if top**model.k > MOST:
        raise MethodError(f"{key}: {top} tokens at {model.k} places have {top**model.k} combinations, a tree at most {MOST} nodes")
    try:
        return DynamicFalcon(model, nodes, passes, top, beams, align)
    except ValueError as error:
        raise MethodError(f"{key}: {error}") from error


def _falcon(key: str, target: Target, head: Any, k: object, passes: object, align: object) -> tuple[FalconHead, int | None]:
    """The head, and how deep so many passes go."""
    model: FalconHead = trained_head("falcon", target, head, load_falcon, FalconHead)
    if k is not None and whole(f"{key}: k", k) != model.k:
        raise MethodError(f"{key}: the head was trained for blocks of k={model.k} tokens, not {k}; specwb train falcon --set k={k} makes one")
    if align is not None and align not in ALIGNS:
        raise MethodError(f"{key}: align must be {' or '.join(ALIGNS)}, got {align!r}")
    if (align or model.align) == "right" and len(model.blocks) > 2 and model.k > 1:
        raise MethodError(f"{key}: blocks aligned to the right need a head of at most two layers, this one has {len(model.blocks)}; use align=left")
    return model, None if passes is None else model.k * whole(f"{key}: passes", passes)


def _dynamic(key: str, kind: str, target: Target, head: Any, nodes: int, depth: int, top: int) -> DynamicEagle:
    model: EagleHead = trained_head(kind, target, head, load_eagle, EagleHead)
    whole(f"{key}: depth", depth), whole(f"{key}: top", top), whole(f"{key}: nodes", nodes, 2)
    _width(key, top, getattr(model, "draft_vocabulary", target.vocabulary))
    try:
        return DynamicEagle(model, nodes, depth, top)
    except ValueError as error:
        raise MethodError(f"{key}: {error}") from error


def accuracies(card: Mapping[str, Any], domain: str = ALL) -> list[list[float]]:
    """``[positions][ranks]``: how often the right token is the head's r-th guess, as its card says; of ``all`` domains the mean.

    Raises:
        ValueError: the card has no such domain, or nothing was measured.
    """
    found = {name: entry["rank"] for name, entry in card.get("held_out", {}).items() if "rank" in entry}
    if not found or domain not in (ALL, *found):
        raise ValueError(f"domain must be one that was measured, {', '.join([ALL, *found]) if found else 'but the card has none'}; got {domain!r}")
    tables = [table for name, table in found.items() if domain in (ALL, name)]
    return [[sum(at) / len(tables) for at in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)]


def measured_tree(card: dict, nodes: int, depth: int | None = None) -> Tree:
    """The tree of ``nodes`` nodes with the largest expected length under a head's accuracies by position and rank (its card's, averaged over
    domains); of a head without a card under those of the published log.

    Accuracies are made not to rise with rank: among the far ranks they are counts of a few places, and the head's order is what a tree follows.
    """
    measured = any("rank" in entry for entry in card.get("held_out", {}).values())
    rates = accuracies(card) if measured else [[one, *[(five - one) / 4] * 4] for one, five in LOG]
    return Tree.parents(grow_tree([list(accumulate(row, min)) for row in rates[:depth]], nodes))


def trained_head(kind: str, target: Target, given: Any, load: Callable[..., Any], wanted: type, **options: Any) -> Any:
    """The head that was given, named, or lies beside the target: loaded once a target and ``options`` of ``load``, checked."""
    if isinstance(given, FalconHead) and wanted is not FalconHead:  # a subclass of EAGLE's, but it says other places
        raise MethodError(f"{kind}: this is a Falcon head, whose methods are falcon and falcon_dynamic")
    if isinstance(given, wanted):
        _same_sizes(kind, target, given)
        return given
    place = given
    if place is None:
        own = target.own_head(kind)
        if own is None:
            raise MethodError(f"{target.name!r} has no {kind} head of its own; name one with head= (specwb train {kind} makes one)")
        place = own
    if not isinstance(place, str | Path):
        raise MethodError(f"{kind}: head must be a folder, a hub id or a loaded {wanted.__name__}, got {place!r}")
    return target.loaded((kind, *options.items()), place, lambda: load(place, target, **options))


def _same_sizes(kind: str, target: Target, head: Any) -> None:
    """What loading checks of a file, of a head that was handed over."""
    own, layers = target.backbone.config.hidden_size, len(target.backbone.layers)
    hidden, vocabulary = getattr(head, "target_hidden", head.hidden), getattr(head, "vocabulary", target.vocabulary)
    if (hidden, vocabulary) != (own, target.vocabulary) or max(head.features) > layers:
        wants = f"hidden size {hidden}, {vocabulary} tokens and {max(*head.features, 0)} layers or more"
        raise MethodError(f"{kind}: the head is for a target of {wants}; {target.name!r} has {own}, {target.vocabulary} and {layers}")
    check_place(kind, target, head)


def check_place(kind: str, target: Target, head: Any) -> None:
    """Raises MethodError where a head that was handed over is of another number type or device than the target."""
    weight = next(head.parameters())
    if (weight.dtype, weight.device) != (target.dtype, target.device):
        found, wanted = (f"{str(x.dtype).removeprefix('torch.')} on {x.device}" for x in (weight, target))
        # not head.to: it would round the rotary frequencies too
        raise MethodError(f"{kind}: the head is {found}, {target.name!r} is {wanted}; save the head and name its folder")


def _budget(key: str, nodes: object) -> int:
    if whole(f"{key}: nodes", nodes, 2) > MOST:
        raise MethodError(f"{key}: a tree has at most {MOST} nodes, its root included; got nodes={nodes}")
    return int(nodes)  # type: ignore[call-overload]


def _one_shape(key: str, tree: Tree) -> None:
    if not tree.in_level_order or tree.D < 1:
        raise MethodError(f"{key} drafts level by level: give one tree for all rows, of at least one candidate, its nodes in level order")


def _width(key: str, k: int, vocabulary: int) -> None:
    if k > vocabulary:
        raise MethodError(f"{key}: {k} children a node but the head's vocabulary has {vocabulary} tokens")
