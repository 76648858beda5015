"""Heads that are trained to be compared, each for the recipe's budget ``ablation``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from specwb.core.files import OBJECT, document, home
from specwb.lab.papers.paper import Trained
from specwb.models.device import resolve_device
from specwb.models.load import load

BUDGET = "ablation"
CARD_KEYS = (
    "parameters",
    "steps",
    "rows",
    "length",
    "tokens",
    "seed",
    "run",
    "sha256",
    "last_training_loss",
    "held_out",
)
"""What is reported of a head's card."""


@dataclass(frozen=True)
class HeadTraining:
    """The training of heads to be compared: of which target, into which folder, how many runs."""

    target: str
    folder: Path
    runs: int = 1
    device: str = "auto"


def run_name(head: str, run: int) -> str:
    """The name of a head of training run ``run``, 0 for the first."""
    return f"{head}@{run + 1}" if run else head


def in_layers(options: str, layers: int) -> str:
    """Write numbers of layers for the parts of ``layers`` (``3/12``) in a head's options."""
    return re.sub(r"(\d+)/(\d+)", lambda m: str(round(layers * int(m[1]) / int(m[2]))), options)


def train(trained: Trained, how: HeadTraining) -> dict[str, Any]:
    """Train every head that is not in its folder yet, each run with another of the seeds 1, 2, ..

    Returns:
        name of the head, see :func:`run_name`, -> its options, and what its card reports.
    """
    from specwb.training.fit import training_device
    from specwb.training.reading import training_text
    from specwb.training.run import checked_settings, lab_settings, train_head

    folder, kind, runs = home(how.folder), trained.kind, range(how.runs)
    target = load(how.target, device=training_device(resolve_device(how.device)))
    layers = target.backbone.config.num_hidden_layers
    options = {name: in_layers(text, layers) for name, text in trained.heads.items()}
    settings = {name: lab_settings(kind, BUDGET, options=o) for name, o in options.items()}
    for own in settings.values():  # before any text is read
        checked_settings(kind, own, target)
    data, mixture = training_text(target, None)
    for run, (name, own) in product(runs, settings.items()):
        out = folder / run_name(name, run)
        train_head(kind, target, out, own, data, mixture, seed=1 + run, note=BUDGET)
    heads = {}
    for run, name in product(runs, options):
        card = document(folder / run_name(name, run) / "card.json", OBJECT)
        reported = {key: card[key] for key in CARD_KEYS}
        heads[run_name(name, run)] = {"options": options[name], **reported}
    return heads
