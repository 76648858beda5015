"""What can be set of a training, checked in one place; published recipes, and recipes in files.

A setting is of the head (:attr:`specwb.training.recipe.Recipe.options`) or of its training: how
long and by what optimiser (:class:`specwb.training.optim.Plan`), on what batches, for what loss.
They are one flat table of names, in ``--set``, in a file and in a head's card.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from specwb.core.files import home, toml
from specwb.core.options import REQUIRED, Option, options_of, parse_value
from specwb.models.load import data_dir
from specwb.training.fit import TrainingError
from specwb.training.losses import LOSSES
from specwb.training.optim import Plan


@dataclass(frozen=True)
class Batch:
    """What a step reads."""

    rows: Annotated[int, Option("rows of a batch", low=1)]
    length: Annotated[int, Option("tokens of a row", low=1)]
    accumulate: Annotated[int, Option("parts that a batch is computed in", low=1)] = 1
    generated: Annotated[
        int, Option("tokens that the target writes; 0: an eighth of what is read", low=0)
    ] = 0


@dataclass(frozen=True)
class Objective:
    """What a prediction costs."""

    loss: Annotated[str, Option("what a prediction costs", choices=LOSSES)] = "kl"
    lk_eta: Annotated[float, Option("eta of loss=lk", within="[0, inf)")] = 3.0
    level_decay: Annotated[
        float, Option("a level's weight over that of the one above", within="[0, inf)")
    ] = 0.8


def count(default: int, low: int | None = None, high: int | None = None) -> Option:
    """A head's setting that is an integer, from 1 on, or from 0 on where that is the default."""
    low = min(default, 1) if low is None else low
    return Option(low=low, high=high, default=default, types=(int,))


def number(default: float, within: str = "[0, inf)") -> Option:
    return Option(within=within, default=default, types=(float,))


def word(*choices: str) -> Option:
    """A head's setting that is one of these words, by default the first."""
    return Option(choices=choices, default=choices[0], types=(str,))


PARTS = (Plan, Batch, Objective)
TRAINING: dict[str, Option] = {
    name: option for part in PARTS for name, option in options_of(part, part).items()
}
"""The settings of a training, by name."""


def lab_recipe(path: Path | None = None) -> dict[str, Any]:
    """The tables of a recipe of the lab family, by default of the shipped one."""
    return tomllib.loads((path or data_dir() / "lab" / "recipe.toml").read_text())


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of one training, each part checked."""

    head: dict[str, Any]
    plan: Plan
    batch: Batch
    objective: Objective

    @property
    def flat(self) -> dict[str, Any]:
        """All settings in one table of names."""
        return {**asdict(self.plan), **asdict(self.batch), **asdict(self.objective), **self.head}

    @property
    def tokens(self) -> int:
        """Tokens that are read in all steps."""
        return self.plan.steps * self.batch.rows * self.batch.length

    @property
    def tokens_written(self) -> int:
        """Tokens that the target writes, where its own text is trained on."""
        return min(self.batch.generated or self.tokens // 8, self.tokens)


def split(kind: str, settings: Mapping[str, Any], own: Mapping[str, Option]) -> TrainingSettings:
    """Sorts a flat table of settings into its parts, and checks them; ``own`` are the head's."""
    for name, value in settings.items():
        if name not in own and name not in TRAINING:
            raise TrainingError(f"{kind} has no setting {name!r}; {names(own)}")
        if name in own:
            replace(own[name], name=name).check(kind, value)
    for name, option in TRAINING.items():
        if option.default is REQUIRED and name not in settings:
            raise TrainingError(f"{kind}: {name} must be given")
    values = {
        name: TRAINING[name].check(kind, value)
        for name, value in settings.items()
        if name in TRAINING and name not in own
    }
    plan, batch, objective = (
        {name: values[name] for name in part.__dataclass_fields__ if name in values}
        for part in PARTS
    )
    head = {name: value for name, value in settings.items() if name in own}
    return TrainingSettings(head, Plan(**plan), Batch(**batch), Objective(**objective))


def names(own: Mapping[str, Any], training: Mapping[str, Option] = TRAINING) -> str:
    parts = [f"its settings: {', '.join(own)}"] if own else []
    if training:
        parts.append(f"of every training: {', '.join(n for n in training if n not in own)}")
    return "; ".join(parts)


def parse(
    kind: str, text: str, own: Mapping[str, Any], training: Mapping[str, Option] = TRAINING
) -> dict[str, Any]:
    """Reads ``--set``: the settings of a ``kind``, its ``own`` and those of its ``training``."""
    settings = {}
    for item in text.split(",") if text else ():
        name, equals, value = item.partition("=")
        if not equals:
            raise TrainingError(f"{kind}: settings are written name=value; got {item!r}")
        if name not in own and name not in training:
            raise TrainingError(f"{kind} has no setting {name!r}; {names(own, training)}")
        settings[name] = parse_value(value)
    return settings


@dataclass(frozen=True)
class Published:
    """A recipe from a file; ``differs``: what in its source is otherwise than a setting can say."""

    name: str
    kind: str
    source: str
    differs: str
    settings: dict[str, Any]


def published() -> dict[str, Path]:
    """The recipes that come with specwb, by name."""
    return {path.stem: path for path in sorted((data_dir() / "recipes").glob("*.toml"))}


def read_recipe(name: str, kind: str | None, own: Mapping[str, Any] | None = None) -> Published:
    """Reads a recipe: a name of :func:`published`, or a TOML file with ``kind`` and a table
    ``settings``. It must be for ``kind`` (None: for anything), whose head has the settings ``own``.
    """
    known = published()
    path = known.get(name, home(name))
    if name not in known and path.suffix != ".toml":
        raise TrainingError(f"unknown recipe {name!r}; known: {', '.join(known)}, or a .toml file")
    content, _ = toml(path, TrainingError)
    keys = ("kind", "source", "differs", "settings")
    if unknown := [key for key in content if key not in keys]:
        wanted = f"it has {', '.join(keys)}"
        raise TrainingError(f"recipe {path} has an unknown key {unknown[0]!r}; {wanted}")
    if not isinstance(content.get("kind"), str) or not isinstance(content.get("settings"), dict):
        raise TrainingError(f'recipe {path} must have kind = "..." and a table [settings]')
    if kind is not None and content["kind"] != kind:
        raise TrainingError(f"recipe {path} trains {content['kind']}, not {kind}")
    for setting in content["settings"]:
        if own is not None and setting not in own and setting not in TRAINING:
            raise TrainingError(f"recipe {path}: {content['kind']} has no setting {setting!r}")
    source, differs = content.get("source", ""), content.get("differs", "")
    return Published(path.stem, content["kind"], source, differs, content["settings"])
