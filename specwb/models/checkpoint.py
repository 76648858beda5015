"""Files of trained heads: found, read, checked against the target, and written in the published
layouts."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specwb.core import files
from specwb.core.files import foreign, table, weights_hash
from specwb.models import smol
from specwb.models.folder import (
    BUILDING,
    SAFE,
    LoadError,
    any_key,
    card_of,
    check_weights,
    first_three,
    folder_of,
    weight_files,
)
from specwb.models.products import Int8, quantized

if TYPE_CHECKING:
    from specwb.models.target import Target

logger = logging.getLogger("specwb")


class HeadError(LoadError):
    """A trained head cannot be loaded, or was trained for another target."""


@dataclass
class Stored:
    """What lies in a head's folder; its ``card.json`` where training here wrote one."""

    where: Path
    config: dict[str, Any]
    weights: dict[str, Tensor]
    card: dict[str, Any]


@contextmanager
def opened(
    source: str | Path,
    target: Target,
    names: Sequence[str] = SAFE,
    wanted: Callable[[str], bool] = any_key,
) -> Iterator[Stored]:
    """Reads a head's folder, local or the hub's, and checks that it is for this target. What is
    found wrong with it while it is open is raised as a HeadError that names the folder. Meanwhile
    no other thread builds a model (:data:`specwb.models.folder.BUILDING`).

    Of a safetensors file only ``wanted`` keys are read: a whole model may be many times larger than
    its heads.
    """
    where: Path | None = None
    try:
        where, _ = folder_of(source, names, wanted)
        with BUILDING:
            yield _read(where, target, names, wanted)
    except LoadError as error:
        named = where is None or str(error).startswith(str(where))
        raise HeadError(str(error) if named else f"{where}: {error}") from error


def _read(
    where: Path, target: Target, names: Sequence[str], wanted: Callable[[str], bool]
) -> Stored:
    config, card = table(where / "config.json", LoadError), card_of(where)
    trained = card.get("target_sha256")
    sha256 = target.sha256 if trained else None  # of a large target that takes a while
    original = card.get("target") == smol.NAME and smol.is_original(target.name)
    if original and sha256 not in (None, trained):
        logger.warning("%s: %s", where, smol.ORIGINAL)
    else:
        check_origin(card, "target", repr(target.name), sha256)
    parts = weight_files(where, names, wanted)
    if parts is None:
        others = [p.name for p in where.iterdir() if p.suffix in (".safetensors", ".bin", ".pt")]
        hint = f"; it has {min(others)}: is this another kind of head?" if others else ""
        raise HeadError(f"the folder has no weights under the names {' or '.join(names)}{hint}")
    weights = {key: w for part in parts for key, w in _tensors(part, wanted).items()}
    check_weights(where, card)
    return Stored(where, config, _from_int8(weights), card)


def _tensors(path: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    with foreign(f"{path} is damaged, cut off or no file of weights", HeadError):
        if path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, "pt") as file:
                return {key: file.get_tensor(key) for key in filter(wanted, file.keys())}
        weights = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(weights, dict) or not all(isinstance(w, Tensor) for w in weights.values()):
        raise HeadError(f"{path} holds no table of weights")
    return {key: w for key, w in weights.items() if wanted(key)}


def check_origin(card: dict[str, Any], part: str, name: str, sha256: str | None) -> None:
    """Refuses a head whose card says that it was trained for another model."""
    trained = card.get(f"{part}_sha256")
    if trained and sha256 and trained != sha256:
        raise HeadError(
            f"trained for the {part.replace('diffusion', 'diffusion model')} with sha256 "
            f"{trained[:12]}..., {name} is {sha256[:12]}...; train it anew"
        )


def check_field(config: dict[str, Any], name: str, actual: object) -> None:
    """Refuses a config.json that says something else than what the weights have."""
    stated = config.get(name)
    if stated is not None and (bool(stated) if isinstance(actual, bool) else stated) != actual:
        raise HeadError(f"config.json says {name}={stated!r}, the weights have {actual!r}")


def check_sizes(target: Target, hidden: int | None = None, vocabulary: int | None = None) -> None:
    """Refuses what was trained for a target of another hidden size or vocabulary."""
    width = target.backbone.config.hidden_size
    if hidden not in (None, width):
        trained, its = f"hidden size {hidden}", width
    elif vocabulary not in (None, target.vocabulary):
        trained, its = f"{vocabulary} tokens", target.vocabulary
    else:
        return
    raise HeadError(f"trained for a target of {trained}, {target.name!r} has {its}")


def fill(module: nn.Module, weights: dict[str, Tensor], target: Target) -> None:
    """Loads weights strictly: every key of the module must be there, with its shape, and no other,
    and all numbers finite."""
    expected = module.state_dict()
    differing = {"missing": expected.keys() - weights, "surplus": weights.keys() - expected}
    if problems := [f"{kind} {first_three(keys)}" for kind, keys in differing.items() if keys]:
        raise HeadError(f"the weights do not fit ({'; '.join(problems)})")
    for key, weight in weights.items():
        if weight.shape != expected[key].shape:
            shapes = f"{list(weight.shape)}, not {list(expected[key].shape)}"
            raise HeadError(
                f"the weights do not fit ({key} is {shapes}: trained for another target? "
                f"{target.name!r} has hidden size {target.backbone.config.hidden_size} and "
                f"{target.vocabulary} tokens)"
            )
        if weight.is_floating_point() and not weight.isfinite().all():
            raise HeadError(f"{key} has values that are NaN or infinite")
    module.load_state_dict(weights)
    for key, weight in weights.items():
        if form := getattr(weight, "int8", None):
            module.get_parameter(key).int8 = form  # type: ignore[attr-defined]


SCALE = ".int8_scale"
SMALL = 1 << 14  # numbers of a matrix that is not worth rounding


def is_large_matrix(weight: Tensor) -> bool:
    """Whether :func:`write` may store it in int8."""
    return weight.is_floating_point() and weight.ndim == 2 and weight.numel() >= SMALL


@torch.no_grad()
def round_to_int8(module: nn.Module) -> None:
    """Rounds a module's matrices to what int8 would store of them."""
    for weight in module.parameters():
        if is_large_matrix(weight):
            integers, scale = quantized(weight)
            weight.copy_(integers * scale)


def _from_int8(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as numbers again, those that :func:`write` stored in int8."""
    plain = dict(weights)
    for name in [key for key in weights if key.endswith(SCALE)]:
        scale, key = plain.pop(name), name.removesuffix(SCALE)
        integers = plain.get(key)
        if integers is None or integers.dtype != torch.int8 or scale.shape != (len(integers), 1):
            raise HeadError(f"the scale of {key} belongs to no integers")
        plain[key] = integers * scale
        plain[key].int8 = Int8.of(integers, scale)  # type: ignore[attr-defined]
    if bare := [key for key, w in plain.items() if w.dtype == torch.int8]:
        raise HeadError(f"{bare[0]} is in int8 and has no scale")
    return plain


def words_in(weights: dict[str, Tensor], target: Target) -> Tensor | None:
    """The words of a head's file (:mod:`specwb.models.words`), None where it drafts all tokens."""
    words = weights.get("words")
    if words is None:
        return None
    if words.ndim != 1 or not len(words) or words.is_floating_point():
        raise HeadError("words must be a list of token ids")
    words = words.long()
    if int(words[0]) < 0 or int(words[-1]) >= target.vocabulary or bool((words.diff() <= 0).any()):
        raise HeadError(f"words must be ids below {target.vocabulary}, ascending")
    return words


def write(
    folder: Path,
    config: dict[str, Any],
    weights: dict[str, Tensor],
    name: str,
    card: dict[str, Any] | None = None,
) -> None:
    """Writes ``config.json``, ``{name}.safetensors`` with floating weights in fp16, and
    ``card.json`` with that file's own sha256.

    Where the card says ``"store": "int8"``, matrices are stored in int8 with one scale a row.
    """
    from safetensors.torch import save_file

    stored = {}
    for key, weight in weights.items():
        plain = weight.detach().cpu()
        if (card or {}).get("store") == "int8" and is_large_matrix(plain):
            stored[key], stored[key + SCALE] = quantized(plain)
            continue
        plain = plain.half() if plain.is_floating_point() else plain
        stored[key] = plain.contiguous().clone()
    files.write(json.dumps(config, indent=1) + "\n", folder / "config.json")
    weights_file = folder / f"{name}.safetensors"
    files.write(lambda part: save_file(stored, part, {"format": "pt"}), weights_file)
    if card is not None:
        card = {**card, "sha256": weights_hash(folder)}
        files.write(json.dumps(card, indent=1) + "\n", folder / "card.json")
