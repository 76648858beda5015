"""Where the parts of a model lie that was loaded with ``device_map=``, on several devices or partly
in memory that is fetched from at every step (offload).

The library's accelerate puts a hook on every module of such a model, which brings weights and
inputs together. It is called as it is (:mod:`specwb.models.generic`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from specwb.files import from_json
from specwb.models.folder import LoadError

STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")
"""Ways in which accelerate makes a map itself."""
OFFLOADED = ("cpu", "disk")


def is_spread(model: Any) -> bool:
    """Whether accelerate's hooks bring a model's parts together."""
    places = set(map(str, getattr(model, "hf_device_map", {}).values()))
    return len(places) > 1 or "disk" in places


def described(model: Any) -> str:
    """In words where a model's parts lie."""
    places = list(dict.fromkeys(map(str, model.hf_device_map.values())))
    names = [f"cuda:{place}" if place.isdigit() else place for place in places]
    return f"its layers are on {', '.join(names)}"


def device_of(module: Any) -> torch.device:
    """The device on which a module computes: that of its weights, or the one that they are brought
    to."""
    hook = getattr(module, "_hf_hook", None)
    place = getattr(hook, "execution_device", None)
    if place is None:
        return next(module.parameters()).device
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


def checked_map(device_map: Any) -> Any:
    """A ``device_map`` that accelerate can be given.

    Args:
        device_map: a strategy, a device for everything, or a table from modules to devices, which
            may be written in JSON.

    Raises:
        LoadError: it is none of these, or names a device that this machine has not.
    """
    from specwb.models.devices import resolve_device

    if isinstance(device_map, str) and device_map.lstrip().startswith("{"):
        try:
            device_map = from_json(device_map)
        except ValueError as error:
            raise LoadError(f"device_map is no JSON table: {error}") from error
    if isinstance(device_map, str) and device_map in STRATEGIES:
        return device_map
    table = device_map if isinstance(device_map, Mapping) else {"": device_map}
    for module, place in table.items():
        if not isinstance(module, str) or not isinstance(place, str | int | torch.device):
            raise LoadError(
                f"device_map must be {', '.join(STRATEGIES)}, a device, or a table from names of "
                f"modules to devices; got {device_map!r}"
            )
        if place != "disk":
            try:
                resolve_device(f"cuda:{place}" if isinstance(place, int) else place)
            except LoadError as error:
                ways = ", ".join(STRATEGIES)
                raise LoadError(f"device_map (a strategy is one of {ways}): {error}") from error
    return dict(table)


def main_device(device_map: Any) -> torch.device:
    """The device that computes what a map puts elsewhere: its first that is no offload."""
    if isinstance(device_map, str):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    places = [place for place in device_map.values() if str(place) not in OFFLOADED]
    place = next(iter(places), "cpu")
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


def on_disk(device_map: Any) -> bool:
    """Whether a map leaves some of a model on the disk."""
    return isinstance(device_map, dict) and "disk" in device_map.values()
