"""Heads that a sweep trains: settings of training as axes beside those of decoding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specwb.methods import METHODS
from specwb.models.target import Target
from specwb.options import spell
from specwb.sweeps.space import Configuration, SweepError
from specwb.sweeps.store import digest
from specwb.training.run import checked_settings, train_head, training_text
from specwb.training.settings import Settings

PREFIX = "train."


def training_of(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of training among a configuration's names, without the prefix."""
    return {
        name.removeprefix(PREFIX): value
        for name, value in configuration.items()
        if name.startswith(PREFIX)
    }


class Heads:
    """Trains the heads that configurations ask for, each once.

    A setting that is not named is that of the lab's recipe, budget cpu. ``train.seed`` is the seed
    of a training, ``train.corpus`` a text file, ``train.text`` generated or read.

    Args:
        target: the target model.
        folder: where heads are kept, each under a hash of its settings and the target.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self.folder = target, folder
        self._data: dict[str, Any] = {}

    def check(self, configuration: Configuration) -> Settings | None:
        """The settings of the training that a configuration asks for, None where it asks for none.

        Raises:
            SweepError: its method has no head to be trained, or it names a head as well.
            TrainingError, MethodError: a setting that cannot be.
        """
        wanted = training_of(configuration)
        if not wanted:
            return None
        method = configuration["method"].partition(":")[0]
        kind = METHODS[method].head
        if not kind or configuration.get("head") is not None:
            reason = "names its head" if kind else "has no trained head"
            raise SweepError(f"{method} {reason}, so that train = .. is not for it")
        return checked_settings(kind, self._settings(kind, wanted), self.target, self._text(wanted))

    def trained(self, configuration: Configuration) -> Path | None:
        """The folder of the head that a configuration asks for; what is not there is trained."""
        wanted = training_of(configuration)
        if not wanted:
            return None
        kind = METHODS[configuration["method"].partition(":")[0]].head
        name = f"{kind}-{digest([kind, wanted, self.target.fingerprint])}"
        corpus = str(wanted.get("corpus", ""))
        if corpus not in self._data:
            self._data[corpus] = training_text(self.target, Path(corpus) if corpus else None)
        data, mixture = self._data[corpus]
        note = ",".join(f"{key}={spell(value)}" for key, value in wanted.items())
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
        from specwb.training.lab import recipe

        plan = recipe()
        own = {name: x for name, x in wanted.items() if name not in ("seed", "corpus", "text")}
        return {**plan["heads"][kind], **plan["budget"]["cpu"][kind], **own}

    def _text(self, wanted: Mapping[str, Any]) -> str:
        return str(wanted.get("text", "generated"))
