"""What methods with a trained head share: loading it, and the best tree for its accuracies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.core.options import MethodError
from specwb.core.tree import Tree
from specwb.models.falcon import FalconHead
from specwb.models.target import Target
from specwb.theory.analysis import grow_tree

LOG = [(0.56, 0.78), (0.32, 0.56), (0.20, 0.42), (0.15, 0.34), (0.12, 0.30)]
"""Share of places where a Vicuna-7B Medusa head's best token, and one of its best five, is the
target's, by position; from the published training log."""


def accuracies(card: Mapping[str, Any]) -> list[list[float]]:
    """``[positions][ranks]``: how often the right token is the head's r-th guess, according to its
    card; the mean of the domains."""
    tables = [entry["rank"] for entry in card.get("held_out", {}).values() if "rank" in entry]
    if not tables:
        raise ArgumentError("the card has no accuracies by rank")
    return [
        [sum(at) / len(tables) for at in zip(*rows, strict=True)]
        for rows in zip(*tables, strict=True)
    ]


def measured_tree(card: dict, nodes: int, depth: int | None = None) -> Tree:
    """The tree of ``nodes`` nodes (root included) with the largest expected length under a head's
    accuracies by position and rank, at most ``depth`` deep.

    The accuracies are those of its card, averaged over domains; for a head without a card, those of
    Medusa's published log. They are made not to rise with the rank, because high ranks are counts
    of a few places.
    """
    measured = any("rank" in entry for entry in card.get("held_out", {}).values())
    rates = accuracies(card) if measured else [[one, *[(five - one) / 4] * 4] for one, five in LOG]
    parents = grow_tree([list(accumulate(row, min)) for row in rates[:depth]], nodes)
    return Tree.parents(parents) if len(parents) > 1 else Tree.chain(1)  # of a head never right


def trained_head(
    kind: str,
    target: Target,
    head: Any,
    load: Callable[..., Any],
    wanted: type,
    **options: Any,
) -> Any:
    """The head that is given, named by folder or hub id, or the target's own head of this kind; it
    is loaded once for a target and ``options`` of ``load``, and must be a ``wanted``."""
    target.backbone.lm_head  # noqa: B018  # of a model in parts it may be out of reach
    # a subclass of EAGLE's head, but it predicts other places
    if isinstance(head, FalconHead) and wanted is not FalconHead:
        methods = "falcon and falcon_dynamic"
        raise MethodError(f"this is a Falcon head, whose methods are {methods}")
    if isinstance(head, wanted):
        same_sizes(target, head)
        return head
    place = target.own_head(kind) if head is None else head
    if place is None:
        way_out = f"name one with head= (specwb train {kind} makes one)"
        raise MethodError(f"{target.name!r} has no {kind} head of its own; {way_out}")
    if not isinstance(place, str | Path):
        kinds = f"a folder, a hub id or a loaded {wanted.__name__}"
        raise MethodError(f"head must be {kinds}, got {place!r}")
    return target.loaded((kind, *options.items()), place, lambda: load(place, target, **options))


def same_sizes(target: Target, head: Any) -> None:
    """Checks of a head that was handed over what loading checks of a file."""
    width, layers = target.backbone.config.hidden_size, len(target.backbone.layers)
    hidden = getattr(head, "target_hidden", head.hidden)
    vocabulary, deepest = getattr(head, "vocabulary", target.vocabulary), max(*head.features, 0)
    if (hidden, vocabulary) != (width, target.vocabulary) or deepest > layers:
        wants = f"hidden size {hidden}, {vocabulary} tokens and {deepest} layers or more"
        sizes = f"{target.name!r} has {width}, {target.vocabulary} and {layers}"
        raise MethodError(f"the head is for a target of {wants}; {sizes}")
    check_place(target, head)


def check_place(target: Target, head: Any) -> None:
    """Checks that a head given as an object has the target's number type and device."""
    weight = next(head.parameters())
    if (weight.dtype, weight.device) != (target.dtype, target.device):
        ours, theirs = (
            f"{str(x.dtype).removeprefix('torch.')} on {x.device}" for x in (weight, target)
        )
        # not head.to: it would round the rotary frequencies too
        way_out = "save the head and name its folder"
        raise MethodError(f"the head is {ours}, {target.name!r} is {theirs}; {way_out}")
