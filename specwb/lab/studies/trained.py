"""Trained heads that are compared.

They are a target's own heads, or those of an ablation, which differ in one thing each and are all
trained for the recipe's budget ``ablation``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from specwb.core.files import OBJECT, document, home, weights_hash
from specwb.core.options import MethodError
from specwb.lab.studies.claim import run_name
from specwb.models.device import resolve_device
from specwb.models.load import load
from specwb.models.target import Target

BUDGET = "ablation"
CARD_KEYS = (
    "parameters",
    "steps",
    "rows",
    "length",
    "tokens",
    "seed",
    "run",
    "sha256",
    "last_training_loss",
    "held_out",
)
"""What is reported of a head's card."""


def checksums(
    target: Target, kinds: Sequence[str], folders: Mapping[str, str | None] | None = None
) -> dict[str, str]:
    """Compute the checksum of the head of every kind: the target's own, or that in ``folders``.

    What is no folder, such as a hub id, is its own checksum.
    """
    named = {kind: folder for kind, folder in (folders or {}).items() if folder is not None}
    places = {kind: named.get(kind, target.own_head(kind)) for kind in kinds}
    if missing := [kind for kind, place in places.items() if place is None]:
        raise MethodError(
            f"{target.name!r} has no {' and no '.join(missing)} of its own; "
            "specwb train NAME --target makes one"
        )
    paths = {kind: home(place) for kind, place in places.items() if place is not None}
    return {
        kind: weights_hash(path) if path.is_dir() else str(places[kind])
        for kind, path in paths.items()
    }


def in_layers(options: str, layers: int) -> str:
    """Writes numbers of layers for the parts of ``layers`` in a variant's options."""

    def whole(part: re.Match) -> str:
        return str(round(layers * int(part[1]) / int(part[2])))

    return re.sub(r"(\d+)/(\d+)", whole, options)


def spelled(settings: Mapping[str, object]) -> str:
    """Write settings as ``specwb train --set`` takes them."""
    return ",".join(f"{name}={value}" for name, value in settings.items())


def train(
    kind: str,
    variants: Mapping[str, str],
    target_place: str,
    folder: Path,
    *,
    device: str = "auto",
    seed: int = 1,
    runs: int = 1,
) -> dict[str, Any]:
    """Train every variant that is not in ``folder`` yet.

    Returns:
        name of the head, see :func:`specwb.lab.studies.claim.run_name`, -> what differs, and what
        its card reports.
    """
    from specwb.training.fit import training_device
    from specwb.training.reading import training_text
    from specwb.training.run import checked_settings, lab_settings, train_head

    folder = home(folder)
    target = load(target_place, device=training_device(resolve_device(device)))
    layers = target.backbone.config.num_hidden_layers
    variants = {name: in_layers(options, layers) for name, options in variants.items()}
    settings = {name: lab_settings(kind, BUDGET, options=o) for name, o in variants.items()}
    for own in settings.values():  # before any text is read
        checked_settings(kind, own, target)
    data, mixture = training_text(target, None)
    for run, (name, own) in product(range(runs), settings.items()):
        out = folder / run_name(name, run)
        train_head(kind, target, out, own, data, mixture, seed=seed + run, note=BUDGET)
    heads = {}
    for run, (name, options) in product(range(runs), variants.items()):
        path = folder / run_name(name, run)
        card = document(path / "card.json", OBJECT)
        heads[path.name] = {"options": options, **{key: card[key] for key in CARD_KEYS}}
    return heads
