"""What methods with a trained head share: the head, and the tree that its accuracies make best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from specwb.analysis import grow_tree
from specwb.models.falcon import FalconHead
from specwb.models.target import Target
from specwb.options import MethodError
from specwb.tree import Tree

ALL = "all"  # domains of a card
LOG = [(0.56, 0.78), (0.32, 0.56), (0.20, 0.42), (0.15, 0.34), (0.12, 0.30)]
"""Share of places where a Vicuna-7B Medusa head's best token, and one of its best five, is the
target's, by position; from the published training log."""


def accuracies(card: Mapping[str, Any], domain: str = ALL) -> list[list[float]]:
    """``[positions][ranks]``: how often the right token is the head's r-th guess, as its card says.

    Args:
        card: the head's.
        domain: of which texts; of ``all`` domains it is the mean.

    Raises:
        ValueError: the card has no such domain, or nothing was measured.
    """
    held_out = card.get("held_out", {})
    ranks = {name: entry["rank"] for name, entry in held_out.items() if "rank" in entry}
    if not ranks or domain not in (ALL, *ranks):
        measured = ", ".join([ALL, *ranks]) if ranks else "but the card has none"
        raise ValueError(f"domain must be one that was measured, {measured}; got {domain!r}")
    tables = [table for name, table in ranks.items() if domain in (ALL, name)]
    return [
        [sum(at) / len(tables) for at in zip(*rows, strict=True)]
        for rows in zip(*tables, strict=True)
    ]


def measured_tree(card: dict, nodes: int, depth: int | None = None) -> Tree:
    """The tree with the largest expected length under a head's accuracies by position and rank.

    They are its card's, averaged over domains; of a head without a card those of the published log.
    Accuracies are made not to rise with rank: among the far ranks they are counts of a few places,
    and the head's order is what a tree follows.

    Args:
        card: the head's.
        nodes: how many the tree has, its root included.
        depth: the largest; default as many positions as were measured.
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
