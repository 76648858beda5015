"""Several heads of one target, trained together on its conversations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specwb.core.files import HEAD, HEADS, claim, home, toml, write
from specwb.models.load import data_dir
from specwb.models.target import Target
from specwb.training.card import HEAD_CARD, heads_card, read_card
from specwb.training.fit import TrainingError
from specwb.training.heads import RECIPES
from specwb.training.reading import trained_on, training_text
from specwb.training.run import Head, announce, check_together, train_heads
from specwb.training.settings import Objective
from specwb.training.talks import requests

OBJECTIVE = Objective.__dataclass_fields__
NAME = re.compile(r"[\w-]+")


def train_together(
    target: str | Target,
    out: Path,
    corpus: Path,
    recipe: Path | None = None,
    only: Sequence[str] = (),
    steps: int | None = None,
    *,
    device: str = "auto",
    seed: int = 0,
) -> list[Path]:
    """Trains the heads of a recipe file, by :func:`specwb.training.run.train_heads`, and returns
    their folders, in ``out``.

    The file has a table ``batch``, whose settings all heads have, and a table ``heads.NAME`` for
    each, with its own settings and its ``kind`` where that is not its name; ``store`` as of
    ``train_heads``. The default is the shipped one of smol. ``only`` names some of its heads,
    ``steps`` replaces the recipe's.

    Beside the folders lie their README.md, the recipe, and ``requests.txt``, the fingerprints of
    what users asked in the text (:func:`specwb.training.talks.requests`)."""
    path = home(recipe or data_dir() / "smol" / "recipe.toml")
    content, text = toml(path, TrainingError)
    batch, heads = content.get("batch"), content.get("heads")
    if not isinstance(batch, dict) or not isinstance(heads, dict) or not heads:
        raise TrainingError(f"{path} must have a table [batch] and a table [heads.NAME] for a head")
    if surplus := set(content) - {"batch", "heads", "store"}:
        raise TrainingError(
            f"{path} has an unknown key {min(surplus)!r}; it has batch, heads, store"
        )
    if (store := content.get("store", "fp16")) not in ("fp16", "int8"):
        raise TrainingError(f"{path}: store must be fp16 or int8, got {store!r}")
    if unknown := [name for name in only if name not in heads]:
        raise TrainingError(f"{path} has no head {unknown[0]!r}; it has {', '.join(heads)}")
    changes = {} if steps is None else {"steps": steps}
    wanted: list[Head] = []
    for name in dict.fromkeys(only or heads):
        if not NAME.fullmatch(name):
            raise TrainingError(
                f"{path}: a head is called by letters, digits, _ and -, not {name!r}"
            )
        if not isinstance(heads[name], dict):
            raise TrainingError(f"{path}: heads.{name} must be a table of settings")
        own: dict[str, Any] = dict(heads[name])
        kind = own.pop("kind", name)
        if not isinstance(kind, str) or kind not in RECIPES:
            known = ", ".join(RECIPES)
            raise TrainingError(f"{path}: {name} is of kind {kind!r}; known are {known}")
        unused = OBJECTIVE if RECIPES[kind].own_loss else ()
        common = {k: v for k, v in batch.items() if k not in unused}
        wanted.append(Head(kind, out / name, {**common, **own, **changes}, name))
    folder = home(out)
    claim({"--out": (folder, HEADS)})
    for head in wanted:
        claim({"--out": (home(head.out), HEAD)})
    for name in heads:  # of heads that were trained before, the page is made of their cards
        if (folder / name / "card.json").is_file():
            read_card(folder / name, HEAD_CARD)
    model = trained_on(target, device)
    checked = check_together(wanted, model, "read")  # before any text is read
    announce(", ".join(head.name for head in wanted), checked, model, "read")
    data, mixture = training_text(model, corpus)
    how: dict[str, Any] = {"seed": seed, "source": "read", "note": path.name, "store": store}
    made = train_heads(wanted, model, data, mixture, **how)
    there = [name for name in heads if (folder / name / "card.json").is_file()]
    # the first, as it has the mark
    write(heads_card(folder, there, model.name, data.manifest), folder / "README.md")
    write(text, folder / "recipe.toml")
    if home(corpus).suffix == ".jsonl":
        # of other heads there the text may have been another one
        seen = folder / "requests.txt"
        before = seen.read_text("utf-8").split() if seen.is_file() else []
        write("".join(f"{name}\n" for name in sorted({*before, *requests(corpus)})), seen)
    return made
