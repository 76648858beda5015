"""A model's folder: on disk or brought from the hub, its tables and weight files looked at before anything is made of them.

What a folder says was written by somebody else. Nothing of it is run, and no file outside it is read.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specwb.errors import SpecwbError
from specwb.files import from_json, table, weights_hash

SAFE = ("model.safetensors", "pytorch_model.bin")
"""What a whole model's weights are called, the first that is there; ``NAME.index.json`` stands for all its parts."""
SMALL = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")
"""What is fetched beside weights: settings, cards, tokenizers, chat templates."""
PATIENCE = 5.0  # seconds until the hub must have answered
HEADER = 100_000_000  # bytes; the safetensors library reads no longer header either

_HUB = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?")


class LoadError(SpecwbError, ValueError):
    """A model cannot be loaded, or target and draft do not fit together."""


def every(key: str) -> bool:
    """All keys are wanted."""
    return True


def folder_of(
    source: str | Path,
    names: Sequence[str] = SAFE,
    wanted: Callable[[str], bool] = every,
    revision: str | None = None,
    refused: type[ValueError] = LoadError,
) -> tuple[Path, bool]:
    """A model's folder, and whether it is the hub's: ``source`` where that is one (``~`` is the user's), else the folder in the
    user's cache that the hub's files were brought to.

    Of a repository come its small files and the first of ``names`` that is there, in all its parts that have ``wanted`` keys;
    other weights are left. Where the hub does not answer within ``PATIENCE`` seconds, or the environment says
    ``HF_HUB_OFFLINE=1``, what was fetched before is used.

    Args:
        source: a folder, a hub id ``OWNER/NAME``, or ``OWNER/NAME@REVISION``.
        revision: of a hub id: a branch, tag or commit; default the newest.
    Raises:
        ValueError: of the kind ``refused``: no such folder, and no hub id, or one that cannot be had.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        if revision is not None:
            raise refused(f"revision={revision!r} is of a hub id; {source} is a folder")
        return path, False
    found = None if isinstance(source, Path) else _HUB.fullmatch(source)
    if found is None:
        why = "is a file; name the folder it is in" if path.is_file() else "does not exist (a hub id is OWNER/NAME)"
        raise refused(f"folder {source} {why}")
    if revision is not None and found[2] is not None:
        raise refused(f"the revision is given twice, in {source} and as revision={revision!r}")
    return _fetched(found[1], revision or found[2], names, wanted, refused), True


def _fetched(
    repository: str, revision: str | None, names: Sequence[str], wanted: Callable[[str], bool], refused: type[ValueError]
) -> Path:  # fmt: skip
    from huggingface_hub import HfApi, snapshot_download

    reason: Exception | None = None
    try:
        # asked apart from the download, which waits for minutes where nobody answers
        revision = HfApi().model_info(repository, revision=revision, timeout=PATIENCE).sha
    except Exception as error:  # offline, unreachable, unknown or closed to this user: perhaps it was fetched before
        reason = error
    fetch = partial(snapshot_download, repository, revision=revision, local_files_only=reason is not None)
    try:
        where = Path(fetch(allow_patterns=list(SMALL)))
        for name in names if reason is None else ():
            index = where / f"{name}.index.json"
            parts = shards(index, wanted, refused) if index.is_file() else [name]
            fetch(allow_patterns=[glob.escape(part) for part in parts])
            if index.is_file() or (where / name).is_file():
                break
    except refused:
        raise
    except Exception as error:
        why = line(reason or error)
        raise refused(f"{repository}: neither a local folder nor reachable on the hub: {why}") from error
    return where


def shards(index: Path, wanted: Callable[[str], bool] = every, refused: type[ValueError] = LoadError) -> list[str]:
    """Names of the files beside ``index`` that hold the ``wanted`` keys, in order, each once.

    Raises:
        ValueError: of the kind ``refused``, for a damaged index, or one that names files elsewhere.
    """
    names = table(index, refused).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise refused(f"{index} is damaged: its weight_map must say of every weight in which file it is; fetch it again")
    for name in names.values():
        # not only "..": a link or a drive letter is no name of a file beside it either
        if name in ("", ".", "..") or re.search(r"[/\\:\0]", name):
            raise refused(f"{index} names {name!r}, which is not a file beside it; such a checkpoint is not read")
    return sorted({name for key, name in names.items() if wanted(key)})


def weight_files(
    where: Path, names: Sequence[str] = SAFE, wanted: Callable[[str], bool] = every, refused: type[ValueError] = LoadError
) -> list[Path] | None:  # fmt: skip
    """The first of ``names`` that is in a folder, or those of its parts that have ``wanted`` keys; None where none is there.

    Raises:
        ValueError: of the kind ``refused``: a damaged index, a file that is missing or cut off.
    """
    for name in names:
        index = where / f"{name}.index.json"
        if index.is_file() or (where / name).is_file():
            parts = shards(index, wanted, refused) if index.is_file() else [name]
            for part in parts:
                _check_file(where / part, refused)
            return [where / part for part in parts]
    return None


def _check_file(path: Path, refused: type[ValueError]) -> None:
    """A clear message for a weight file that is missing or cut off (the libraries' own are about headers)."""
    if not path.is_file():
        raise refused(f"weight file {path.name} is missing, though the index names it; fetch {path.parent} again")
    if path.suffix != ".safetensors":
        return
    size = path.stat().st_size
    with open(path, "rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        try:
            header = from_json(handle.read(length)) if 0 < length <= min(size, HEADER) else None
            ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]  # type: ignore[union-attr]
            needed = 8 + length + max(ends, default=0)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):  # no table of tables with numbers
            needed = None
    if needed != size:
        why = "its header cannot be read" if needed is None else f"it has {size} bytes, its header asks for {needed}"
        raise refused(f"weight file {path} is damaged, cut off or no file of weights ({why}); fetch it again")


def card_of(where: Path, refused: type[ValueError] = LoadError) -> dict[str, Any]:
    """A folder's ``card.json``, where training here wrote one: what it was made of and what was measured.

    Raises:
        ValueError: of the kind ``refused``, for a card whose checksums or accuracies are of another form.
    """
    card = table(where / "card.json", refused)
    for key in ("sha256", "target_sha256", "draft_sha256"):
        if not isinstance(card.get(key), str | None):
            raise refused(f"{where / 'card.json'}: {key} must be a checksum in hexadecimal digits, got {card[key]!r}")
    measured = card.get("held_out")
    domains = measured.values() if isinstance(measured, dict) else () if measured is None else (None,)
    if not all(isinstance(one, dict) and _accuracies(one.get("rank", [[0.0]])) for one in domains):
        raise refused(f"{where / 'card.json'}: held_out must hold accuracies from 0 to 1, by domain, position and rank")
    return card


def _accuracies(rows: Any) -> bool:
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        return False
    return all(type(x) in (int, float) and 0 <= x <= 1 for row in rows for x in row)


def check_weights(where: Path, card: dict[str, Any], refused: type[ValueError] = LoadError) -> str | None:
    """Are the weights those that the card names? Their checksum, None where no card names one: then nothing is read.

    Raises:
        ValueError: of the kind ``refused``: they are others.
    """
    named = card.get("sha256")
    if named is None:
        return None
    if (found := weights_hash(where)) != named:
        raise refused(
            f"{where}: the weights have sha256 {found[:12]}..., its card.json names {named[:12]}...: they are damaged or another "
            "run's; fetch or train them again"
        )
    return found


def line(error: Exception) -> str:
    """The first line of what a library says."""
    return next(iter(str(error).strip().splitlines()), "")[:200] or type(error).__name__


def some(keys: Iterable[str]) -> str:
    """Three of the keys, and whether there are more."""
    listed = sorted(map(str, keys))
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
