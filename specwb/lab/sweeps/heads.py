"""Heads that a sweep trains: settings of training as axes beside those of decoding."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from specwb.core.files import home
from specwb.core.inputs import integer
from specwb.core.options import spell
from specwb.engine.methods import METHODS
from specwb.lab.bench.store import digest
from specwb.lab.sweeps.space import Configuration, SweepError
from specwb.models.target import Target
from specwb.training.reading import training_text
from specwb.training.run import checked_settings, lab_settings, train_head
from specwb.training.settings import Settings

PREFIX = "train."


def training_of(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of training among a configuration's names, without the prefix."""
    return {
        name.removeprefix(PREFIX): value
        for name, value in configuration.items()
        if name.startswith(PREFIX)
    }


def content_hash(value: Any) -> str | None:
    """The hash of a file or of the files in a folder, None where the value names neither."""
    if not isinstance(value, str | Path) or not str(value):
        return None
    path = home(value)
    files = [path] if path.is_file() else sorted(p for p in path.glob("*") if p.is_file())
    if not files:
        return None
    total = hashlib.sha256()
    for file in files:
        with open(file, "rb") as handle:
            total.update(file.name.encode() + hashlib.file_digest(handle, "sha256").digest())
    return total.hexdigest()[:16]


class Heads:
    """Trains the heads that configurations ask for, each once.

    A setting that is not named is that of the lab's recipe, budget cpu. ``train.seed`` is the seed
    of a training, ``train.corpus`` a text file, ``train.text`` generated or read.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self.folder = target, folder

    def check(self, configuration: Configuration) -> Settings | None:
        """The checked settings of a configuration's training, None where it asks for none."""
        wanted = training_of(configuration)
        if not wanted:
            return None
        method = configuration["method"].partition(":")[0]
        kind = METHODS[method].head
        if not kind or configuration.get("head") is not None:
            reason = "names its head" if kind else "has no trained head"
            raise SweepError(f"{method} {reason}, so that train = .. is not for it")
        integer("train.seed", wanted.get("seed", 0), 0, kind=SweepError)
        if (corpus := wanted.get("corpus")) and not home(corpus).is_file():
            raise SweepError(f"train.corpus {corpus} is no file")
        return checked_settings(kind, self._settings(kind, wanted), self.target, self._text(wanted))

    def trained(self, configuration: Configuration) -> Path | None:
        """The folder of the head that a configuration asks for; what is not there is trained."""
        wanted = training_of(configuration)
        if not wanted:
            return None
        kind = METHODS[configuration["method"].partition(":")[0]].head
        content = {name: content_hash(value) or value for name, value in wanted.items()}
        name = f"{kind}-{digest([kind, content, self.target.fingerprint])}"
        corpus = wanted.get("corpus")
        data, mixture = training_text(self.target, Path(corpus) if corpus else None)
        note = ",".join(f"{key}={spell(value)}" for key, value in wanted.items())
        self.folder.mkdir(parents=True, exist_ok=True)
        # stores a.sqlite and a.db have one folder: the second sweep waits, and finds the head
        # finished; the system opens the lock of a process that ends
        with FileLock(self.folder / f"{name}.lock"):
            return train_head(
                kind,
                self.target,
                self.folder / name,
                self._settings(kind, wanted),
                data,
                mixture,
                seed=int(wanted.get("seed", 0)),
                text_seed=0,
                source=self._text(wanted),
                generated=self.folder / "generated",
                note=note,
            )

    def _settings(self, kind: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: x for name, x in wanted.items() if name not in ("seed", "corpus", "text")}
        return lab_settings(kind, "cpu") | own

    def _text(self, wanted: Mapping[str, Any]) -> str:
        return str(wanted.get("text", "generated"))
