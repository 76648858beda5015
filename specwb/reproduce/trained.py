"""Trained heads that are compared: which ones a target has, and ablations, whose heads differ in one thing each and are all trained for the recipe's
budget ``ablation``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specwb.files import weights_hash
from specwb.models.load import data_dir
from specwb.models.target import Target
from specwb.options import MethodError

BUDGET = "ablation"
TOLD = ("parameters", "steps", "rows", "length", "tokens", "seed", "run", "sha256", "last_training_loss", "held_out")  # of a head's card


def checksums(target: Target, kinds: Sequence[str], given: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """By kind, the checksum of the target's own head, or of the ``given`` folder (of what is no folder, its name).

    Raises:
        MethodError: one is missing.
    """
    asked = {kind: place for kind, place in (given or {}).items() if place is not None}
    places = {kind: asked.get(kind, target.own_head(kind)) for kind in kinds}
    if missing := [kind for kind, place in places.items() if place is None]:
        raise MethodError(f"{target.name!r} has no {' and no '.join(missing)} of its own; specwb train NAME --target makes one")
    found = {kind: Path(place).expanduser() for kind, place in places.items() if place is not None}
    return {kind: _hash(place, kind) if place.is_dir() else str(places[kind]) for kind, place in found.items()}


def _hash(place: Path, kind: str) -> str:
    return hashlib.sha256((place / "ngram.npz").read_bytes()).hexdigest() if kind == "ngram" else weights_hash(place)


def train(kind: str, variants: Mapping[str, str], target_place: str, folder: Path, *, device: str = "auto", seed: int = 1) -> dict[str, Any]:
    """Train every variant (name -> what differs, as ``specwb train --set`` takes it) that is not in ``folder`` yet; what their cards say.

    Raises:
        TrainingError: as :func:`specwb.training.heads.train_for`.
    """
    from specwb.training.heads import train_for

    folder = folder.expanduser()
    for name, options in variants.items():
        train_for(kind, target_place, folder / name, BUDGET, options=options, device=device, seed=seed)
    cards = {name: json.loads((folder / name / "card.json").read_text()) for name in variants}
    return {name: {"options": options, **{k: cards[name][k] for k in TOLD}} for name, options in variants.items()}


def shipped(path: str, target: Target) -> dict[str, Any] | None:
    """The results that lie beside the lab family, if they are this target's."""
    place = data_dir() / path
    found = json.loads(place.read_text("utf-8")) if place.exists() else None
    return found if found and found["arguments"].get("sha256") == target.sha256 else None
