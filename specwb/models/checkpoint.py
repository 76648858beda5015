"""Files of trained heads: found, read, checked against the target, written in the published layouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specwb.files import table, weights_hash, whole_file
from specwb.models.folder import LoadError, card_of, check_weights, every, folder_of, line, weight_files

if TYPE_CHECKING:
    from specwb.models.target import Target


class HeadError(LoadError):
    """A trained head cannot be loaded, or was trained for another target."""


@dataclass
class Stored:
    """What lies in a head's folder: ``config.json``, the weights, and ``card.json`` where we trained it."""

    where: Path
    config: dict[str, Any]
    weights: dict[str, Tensor]
    card: dict[str, Any]

    @classmethod
    def read(cls, source: str | Path, target: Target, names: Sequence[str], wanted: Callable[[str], bool] = every) -> Stored:
        """The first of the files ``names`` that is there, from a local folder or a hub id (see
        :func:`specwb.models.folder.folder_of`); ``NAME.index.json`` stands for all its parts.

        Args: wanted: of a safetensors file only these keys are read (a whole model may be many times larger than its heads).
        Raises:
            HeadError: nothing there, a damaged file, or a card that names another target or other weights.
        """
        where, _ = folder_of(source, names, wanted, refused=HeadError)
        config, card = settings(where / "config.json"), card_of(where, HeadError)
        trained = card.get("target_sha256")
        ours = target.sha256 if trained else None  # of a large target that takes a while
        if trained and ours and trained != ours:
            raise HeadError(f"{where}: trained for the target with sha256 {trained[:12]}..., {target.name!r} is {ours[:12]}...; train it anew")
        parts = weight_files(where, names, wanted, HeadError)
        if parts is not None:
            weights = {key: w for part in parts for key, w in _tensors(part, wanted).items()}
            check_weights(where, card, HeadError)
            return cls(where, config, weights, card)
        there = sorted(path.name for path in where.iterdir() if path.suffix in (".safetensors", ".bin", ".pt"))
        raise HeadError(f"{where}: none of {', '.join(names)} is there{f', but {there[0]}: another kind of head?' if there else ''}")


def _tensors(path: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, "pt") as file:
                return {key: file.get_tensor(key) for key in file.keys() if wanted(key)}  # noqa: SIM118
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise HeadError(f"{path} is damaged, cut off or no file of weights ({line(error)})") from error
    if not isinstance(weights, dict) or not all(isinstance(w, Tensor) for w in weights.values()):
        raise HeadError(f"{path} holds no table of weights")
    return {key: w for key, w in weights.items() if wanted(key)}


def settings(path: Path) -> dict[str, Any]:
    """:func:`specwb.files.table` of a head's folder. Raises: HeadError."""
    return table(path, HeadError)


def fill(module: nn.Module, weights: dict[str, Tensor], where: Path, target: Target, absent: Sequence[str] = ()) -> None:
    """Load strictly: every key of the module but those in ``absent`` must be there, with its shape, and no other.

    Raises:
        HeadError: naming the keys, and the target's sizes where shapes differ.
    """
    wanted = module.state_dict()
    missing = sorted(set(wanted) - set(weights) - set(absent))
    surplus = sorted(set(weights) - set(wanted))
    wrong = [
        f"{k} is {list(weights[k].shape)}, not {list(wanted[k].shape)}"
        for k in sorted(set(wanted) & set(weights))
        if weights[k].shape != wanted[k].shape
    ]
    problems = [
        f"{kind} {', '.join(keys[:3])}{' and others' if len(keys) > 3 else ''}" for kind, keys in (("missing", missing), ("surplus", surplus)) if keys
    ]
    if wrong:
        sizes = f"{target.name!r} has hidden size {target.backbone.config.hidden_size} and {target.vocabulary} tokens"
        problems.append(f"{wrong[0]}: trained for another target? {sizes}")
    if problems:
        raise HeadError(f"{where}: the weights do not fit ({'; '.join(problems)})")
    bad = next((k for k, w in weights.items() if w.is_floating_point() and not w.isfinite().all()), None)
    if bad:
        raise HeadError(f"{where}: {bad} has values that are NaN or infinite")
    module.load_state_dict(weights, strict=not absent)


def write(folder: Path, config: dict[str, Any], weights: dict[str, Tensor], name: str, card: dict[str, Any] | None = None) -> None:
    """``config.json``, ``{name}.safetensors`` with floating weights in fp16, and ``card.json`` with the file's own sha256."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    half = {k: (w.detach().cpu().half() if w.is_floating_point() else w.detach().cpu()).contiguous().clone() for k, w in weights.items()}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    with whole_file(folder / f"{name}.safetensors") as part:
        save_file(half, part, {"format": "pt"})
    if card is not None:
        (folder / "card.json").write_text(json.dumps({**card, "sha256": weights_hash(folder)}, indent=1) + "\n")
