"""A model's folder, on disk or brought from the hub. Its tables and weight files are checked before
anything is made of them.

What a folder says was written by somebody else. Nothing of it is run, and no file outside it is
read.
"""

from __future__ import annotations

import glob
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from specwb.core.errors import SpecwbError
from specwb.core.files import document, first_line, foreign, home, table, weights_hash

SAFE = ("model.safetensors", "pytorch_model.bin")
"""What a whole model's weights are called: the first that exists. ``NAME.index.json`` stands for
all its parts."""
SMALL = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")
"""What is fetched beside weights: settings, cards, tokenizers, chat templates."""
PATIENCE = 5.0  # seconds until the hub must have answered

BUILDING = threading.RLock()
"""Held while a model is built or read. The library then replaces functions of its own and of torch
(``tie_weights``, ``init_weights``, ``torch.linspace``) and torch's default number type for the
whole process, and two threads that build at once would each put back what the other had
replaced."""

HUB = ("revision", "token", "cache_dir", "local_files_only")
"""Arguments of the library's that say how files are had from the hub."""

_HUB = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?")


class LoadError(SpecwbError, ValueError):
    """A model cannot be loaded, or target and draft do not fit together."""


@contextmanager
def quiet() -> Iterator[None]:
    """Leaves out the transformers library's own messages and progress bars, in one thread at a time
    (:data:`BUILDING`)."""
    from transformers import modeling_gguf_pytorch_utils as reader
    from transformers.utils import logging

    with BUILDING:
        bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        try:
            # the reader of GGUF files has a bar that no setting turns off
            with patch.dict(vars(reader), tqdm=lambda tensors, **_: tensors):
                yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()


def any_key(key: str) -> bool:
    """All keys of a file of weights are wanted."""
    return True


def folder_of(
    source: str | Path,
    names: Sequence[str] = SAFE,
    wanted: Callable[[str], bool] = any_key,
    revision: str | None = None,
    **hub: Any,
) -> tuple[Path, bool]:
    """A model's folder, and whether it is the hub's: ``source`` where that is one (``~`` is the
    user's), else the folder in the user's cache that the hub's files were brought to.

    Of a repository come its small files and the first of ``names`` that exists, in all its parts
    that have ``wanted`` keys; other weights are left. Where the hub does not answer within
    ``PATIENCE`` seconds, or the environment says ``HF_HUB_OFFLINE=1``, what was fetched before is
    used."""
    if not isinstance(source, str | Path) or not str(source).strip():
        raise LoadError(f"a folder or a hub id OWNER/NAME is needed, got {source!r:.200}")
    with foreign("a folder's name", LoadError):
        path = home(source)
    if path.is_dir():
        if revision is not None:
            raise LoadError(f"revision={revision!r} is of a hub id; {source} is a folder")
        return path, False
    match = None if isinstance(source, Path) else _HUB.fullmatch(source)
    if match is None:
        why = "does not exist (a hub id is OWNER/NAME)"
        if path.is_file():
            why = "is a file; name the folder it is in (of single files a .gguf is read)"
        kind = "file" if path.suffix == ".gguf" else "folder"
        raise LoadError(f"{kind} {source} {why}")
    repository, pinned = match[1], match[2]
    if revision is not None and pinned is not None:
        raise LoadError(f"the revision is given twice, in {source} and as revision={revision!r}")
    return _fetched(repository, revision or pinned, names, wanted, hub), True


def _fetched(
    repository: str,
    revision: str | None,
    names: Sequence[str],
    wanted: Callable[[str], bool],
    hub: dict[str, Any],
) -> Path:
    """Brings a repository's files to the user's cache, as far as they are not there yet."""
    from huggingface_hub import HfApi, snapshot_download

    reason: Exception | None = None
    offline = bool(hub.get("local_files_only"))
    try:
        # asked apart from the download, which waits for minutes where nobody answers
        if not offline:
            api = HfApi(token=hub.get("token"))
            revision = api.model_info(repository, revision=revision, timeout=PATIENCE).sha
    except Exception as error:
        # offline, unreachable, unknown or closed to this user: perhaps it was fetched before
        reason, offline = error, True
    options = {**hub, "revision": revision, "local_files_only": offline}
    fetch = partial(snapshot_download, repository, **options)
    try:
        where = Path(fetch(allow_patterns=list(SMALL)))
        for name in () if offline else names:
            index = where / f"{name}.index.json"
            parts = shards(index, wanted) if index.is_file() else [name]
            fetch(allow_patterns=[glob.escape(part) for part in parts])
            if index.is_file() or (where / name).is_file():
                break
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(
            f"{repository}: neither a local folder nor reachable on the hub: "
            f"{first_line(reason or error)}"
        ) from error
    return where


def shards(index: Path, wanted: Callable[[str], bool] = any_key) -> list[str]:
    """The names of the files beside ``index`` that hold the ``wanted`` keys, in order, each
    once."""
    names = table(index, LoadError).get("weight_map")
    texts = isinstance(names, dict) and all(isinstance(name, str) for name in names.values())
    if not names or not texts:
        raise LoadError(
            f"{index} is damaged: its weight_map must say of every weight in which file it is; "
            "fetch it again"
        )
    for name in names.values():
        # not only "..": a link or a drive letter is no name of a file beside it either
        if name in ("", ".", "..") or re.search(r"[/\\:\0]", name):
            raise LoadError(
                f"{index} names {name!r}, which is not a file beside it; "
                "such a checkpoint is not read"
            )
    return sorted({name for key, name in names.items() if wanted(key)})


def weight_files(
    where: Path, names: Sequence[str] = SAFE, wanted: Callable[[str], bool] = any_key
) -> list[Path] | None:
    """The first of ``names`` that is in a folder, or those of its parts that have ``wanted`` keys;
    None where none is there. A file that is missing or cut off is named: the libraries speak of
    headers."""
    from safetensors import safe_open

    name = next(
        (n for n in names if (where / n).is_file() or (where / f"{n}.index.json").is_file()), None
    )
    if name is None:
        return None
    index = where / f"{name}.index.json"
    parts = [where / part for part in (shards(index, wanted) if index.is_file() else [name])]
    for path in parts:
        if not path.is_file():
            raise LoadError(
                f"weight file {path.name} is missing, though the index names it; "
                f"fetch {where} again"
            )
        if path.suffix == ".safetensors":
            damaged = "is damaged, cut off or no file of weights; fetch it again"
            with foreign(f"weight file {path} {damaged}", LoadError), safe_open(path, "pt"):
                pass  # types, shapes, and that their bytes are the file's
    return parts


CHECKSUM = {"type": ["string", "null"]}
RANKS = {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}}
ACCURACIES = {"type": "object", "properties": {"rank": {"type": "array", "items": RANKS}}}
CARD = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("sha256", "target_sha256", "draft_sha256", "gguf_sha256"), CHECKSUM),
        "held_out": {"type": ["object", "null"], "additionalProperties": ACCURACIES},
    },
}
"""The schema of a card: checksums, and accuracies by domain, position and rank."""


def card_of(where: Path) -> dict[str, Any]:
    """A folder's ``card.json``, where training here wrote one: what it was made of and what was
    measured."""
    path = where / "card.json"
    return document(path, CARD, LoadError) if path.is_file() else table(path, LoadError)


def check_weights(where: Path, card: dict[str, Any]) -> str | None:
    """Checks that the weights are those that the card names. Returns their checksum, or None where
    no card names one: then nothing is read.
    """
    named = card.get("sha256")
    if named is None:
        return None
    sha256 = weights_hash(where)
    if sha256 != named:
        raise LoadError(
            f"{where}: the weights have sha256 {sha256[:12]}..., its card.json names "
            f"{named[:12]}...: they are damaged or another run's; fetch or train them again"
        )
    return sha256


def first_three(keys: Iterable[str]) -> str:
    """Three of the keys, and how many more there are."""
    listed = sorted(map(str, keys))
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more
