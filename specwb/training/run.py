"""One way to train all heads: check the settings, read text, train, write the folder."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

from specwb.core.files import FOLDER, HEAD, claim, home, table, whole_folder
from specwb.engine.work import check_work
from specwb.models.checkpoint import round_to_int8
from specwb.models.target import Target
from specwb.training import corpus as text
from specwb.training.card import read_card
from specwb.training.fit import (
    Log,
    Training,
    TrainingError,
    first_process,
    process_rows,
    saved_state,
    say,
)
from specwb.training.generate import PROMPT, check_writing, generated_text
from specwb.training.heads import RECIPES
from specwb.training.loop import Learner, Passes, train
from specwb.training.reading import trained_on, training_text
from specwb.training.settings import (
    Batch,
    Objective,
    Published,
    Settings,
    differences,
    lab_recipe,
    parse,
    read_recipe,
    split,
)

TEXTS = ("generated", "read")
OTHERS = "eagle"  # whose budget kinds have that the lab family has none of
CURVE = 200  # points of a loss curve, each a mean
STATES = 8  # hidden states of a token that a training holds at once, at least


@dataclass(frozen=True)
class Head:
    """A head that is to be trained: its kind, its folder, its settings and those of its training,
    of which steps, rows and length must be given, and the name of its progress."""

    kind: str
    out: Path
    settings: Mapping[str, Any]
    name: str


def train_head(
    kind: str,
    target: Target,
    out: Path,
    settings: Mapping[str, Any],
    data: text.Corpus,
    mixture: dict[str, float],
    **how: Any,
) -> Path:
    return train_heads([Head(kind, out, settings, kind)], target, data, mixture, **how)[0]


def train_heads(
    heads: Sequence[Head],
    target: Target,
    data: text.Corpus,
    mixture: dict[str, float],
    *,
    seed: int = 0,
    text_seed: int | None = None,
    source: str = "generated",
    generated: Path = Path("build/generated"),
    note: str = "",
    recipe: Published | None = None,
    store: str = "fp16",
) -> list[Path]:
    """Trains heads of one target on the same text, and writes each to its folder, in its published
    layout with a card.

    The target runs once a step for all of them. Each becomes what it would have become alone. Where
    the same run of a head has finished, nothing is done; where it was interrupted, it is resumed.

    Args:
        heads: what is trained. Rows and length are the same for all.
        mixture: the proportions of the text's domains.
        seed: of the heads' first weights, the order of the text and the noise.
        text_seed: of the text that the target writes; default ``seed``.
        source: "generated": three of four rows of a batch are text that the target wrote, as
            drafting meets it; "read": all of it is training text.
        generated: the folder of the target's own text.
        note: of the budget, for the card.
        recipe: the recipe that the settings follow, which is printed.
        store: fp16, or int8: matrices are rounded to it, with one scale a row, before the last
            measurement.
    """
    checked = check_together(heads, target, source)
    passes = Passes(target)
    runs = []
    for head, settings in zip(heads, checked, strict=True):
        _check_batches(data, settings.batch)
        own_recipe = RECIPES[head.kind](target, settings.head)
        torch.manual_seed(seed)
        run = _Run(
            target=target,
            recipe=own_recipe,
            head=own_recipe.make(data, mixture).to(target.device),
            settings=settings,
            data=data,
            mixture=mixture,
            seed=seed,
            passes=passes,
            name=head.name,
            out=home(head.out),
            source=source,
            generated=home(generated),
            text_seed=seed if text_seed is None else text_seed,
        )
        if store == "int8" and head.kind == "deep":
            raise TrainingError("deep: a whole model is stored in fp16, not in int8")
        if is_finished(run.out, run.identity, store):
            say(f"{run.out} holds this head, finished")
            continue
        saved_state(run.checkpoint, run.identity)  # another run's is reported before any work
        runs.append(run)
    for run in runs:
        run.own_text = run.written_text()  # before any head is trained
        for line in _about(run, recipe):
            say(line)
    logs = train(*(run.training(len(runs)) for run in runs)) if runs else []
    for run, log in zip(runs, logs, strict=True):
        _finish(run, log, note, store)
    return [home(head.out) for head in heads]


def check_together(heads: Sequence[Head], target: Target, source: str) -> list[Settings]:
    """The checked settings of heads that are to be trained together; all must read the same
    batches."""
    checked = [checked_settings(h.kind, h.settings, target, source) for h in heads]
    if len({settings.batch for settings in checked}) > 1:
        same = "rows, length, accumulate and generated"
        raise TrainingError(f"heads that are trained together have the same {same}")
    return checked


def _finish(run: _Run, log: Log, note: str, store: str) -> None:
    rounding = {}
    if store == "int8":
        before = run.acceptance()
        round_to_int8(run.head)
        rounding = {"store": store, "before_rounding": before}
    card = {**run.card(log, note), **rounding}
    with first_process() as is_first:
        if is_first:
            with whole_folder(run.out) as part:
                run.recipe.save(run.head, part, card)
                draw_loss(log, part / "loss.svg")
    accuracies = "; ".join(
        f"{domain} {' '.join(f'{row[0]:.2f}' for row in measurements['rank'])}"
        for domain, measurements in card["held_out"].items()
    )
    say(f"{run.name}: held-out acceptance by position, {accuracies}")


def _about(run: _Run, recipe: Published | None) -> list[str]:
    """Which recipe a run follows, or how it differs from the published one."""
    if recipe is not None:
        lines = [f"recipe {recipe.name}: {recipe.source or recipe.kind}"]
        if recipe.differs:
            lines.append(f"its source has other settings: {recipe.differs}")
        return lines
    preset = run.recipe.published
    if not preset:
        return []
    other = differences(run.flat, read_recipe(preset, run.recipe.name))
    note = f"settings that differ from the published recipe {preset} (its value)"
    return [f"{note}: {other}"] if other else []


@dataclass(kw_only=True)
class _Run(Learner):
    """One head's training; everything in it is a function of what it is made of."""

    name: str
    out: Path
    source: str
    generated: Path
    text_seed: int

    @property
    def checkpoint(self) -> Path:
        return self.out.with_name(self.out.name + ".checkpoint.pt")

    def training(self, heads: int) -> Training:
        """One of ``heads``: the more there are, the less often each is saved, so that saving does
        not take longer."""
        plan = self.settings.plan
        return Training(
            self.name,
            self.head,
            self.loss,
            replace(plan, save_seconds=plan.save_seconds * heads),
            self.checkpoint,
            self.identity,
            measure=self.acceptance,
            adam_matrices=self.recipe.adam_matrices(self.head),
            parts=self.settings.batch.accumulate,
        )

    @property
    def flat(self) -> dict[str, Any]:
        """All settings by name, those of the head with their defaults."""
        flat = {**self.settings.flat, **self.recipe.settings}
        unused = Objective.__dataclass_fields__ if self.recipe.own_loss else ()
        return {name: value for name, value in flat.items() if name not in unused}

    @cached_property
    def identity(self) -> str:
        """Names everything that must not change between the parts of the run."""
        run = {
            "kind": self.recipe.name,
            "settings": self.flat,
            "seed": [self.seed, self.text_seed],
            "text": self.source,
            "corpus": self.data.sha256,
            "target": self.target.fingerprint,
            "mixture": self.mixture,
            "begun_from": self.recipe.initial_weights(),
        }
        return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()

    def written_text(self) -> np.ndarray | None:
        """``[rows, length + 1]``, what the target wrote, None where it is not asked for."""
        if self.source != "generated":
            return None
        return generated_text(
            self.target,
            self.data,
            self.generated,
            tokens=self.settings.tokens_written,
            length=self.settings.batch.length,
            mixture=self.mixture,
            seed=self.text_seed,
        )

    def card(self, log: Log, note: str) -> dict[str, Any]:
        target = self.target
        return {
            "name": self.name,
            "run": self.identity,
            "parameters": sum(p.numel() for p in self.head.parameters()),
            **self.flat,
            "budget": note,
            "seed": self.seed,
            "text": self.source,
            "tokens": self.settings.tokens,
            "device": target.device.type,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "corpus": self.data.sha256,
            "target": target.name,
            "target_sha256": target.sha256,
            "target_revision": target.revision,
            "last_training_loss": last_loss(log),
            "progress": log.measurements,
            "step_seconds": log.step_seconds,
            "held_out": self.measured(),
        }


def last_loss(log: Log) -> float:
    losses = log.loss[-50:]
    return round(sum(losses) / max(1, len(losses)), 4)


def draw_loss(log: Log, path: Path) -> None:
    """Draws the loss of every step, and below it the held-out acceptance by position, where
    matplotlib is installed (the extra ``train`` brings it)."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    top, bottom = figure.subplots(2, sharex=True)
    size = -(-len(log.loss) // CURVE)
    ends = range(size, len(log.loss) + size, size)
    top.plot(
        [min(end, len(log.loss)) for end in ends], [fmean(log.loss[e - size : e]) for e in ends]
    )
    top.set_ylabel("loss")
    steps = [step for step, _ in log.measurements]
    for depth, values in enumerate(zip(*(row for _, row in log.measurements), strict=True), 1):
        bottom.plot(steps, values, marker=".", label=f"position {depth}")
    bottom.set_ylabel("held-out acceptance")
    bottom.set_xlabel("step")
    if steps:
        bottom.legend(fontsize="x-small", ncols=2)
    figure.savefig(path, metadata={"Date": None})


def checked_settings(
    kind: str, settings: Mapping[str, Any], target: Target, source: str = "generated"
) -> Settings:
    """A head's settings in their parts, checked before any text is read."""
    if kind not in RECIPES:
        raise TrainingError(f"unknown head {kind!r}; known: {', '.join(RECIPES)}")
    if source not in TEXTS:
        raise TrainingError(f"text must be {' or '.join(TEXTS)}, got {source!r}")
    recipe = RECIPES[kind]
    defaults = dict(recipe.training)
    if isinstance(steps := settings.get("steps"), int):
        defaults["warmup"] = min(50, max(1, steps // 10))
    checked = split(kind, {**defaults, **settings}, recipe.options)
    if recipe.own_loss and settings.get("loss"):
        raise TrainingError(f"{kind} has a loss of its own, loss={settings['loss']} is not for it")
    if "vocabulary" in checked.head:  # as the card is to say it
        size = min(checked.head["vocabulary"], target.vocabulary)
        checked = replace(checked, head={**checked.head, "vocabulary": size})
    length = checked.batch.length
    if length > target.context:
        context = f"the context of {target.name!r} ({target.context})"
        raise TrainingError(f"rows of {length} tokens are longer than {context}")
    needed = recipe(target, checked.head).min_tokens()
    needed = max(needed, PROMPT if source == "generated" else 0) + 1
    if length < needed:
        problem = f"rows of {length} tokens are too short"
        raise TrainingError(f"{problem}, {kind} needs {needed} here")
    return checked


LOWER = "--steps, --rows or --length (settings steps, rows, length)"


def announce(
    names: str, settings: Sequence[Settings], target: Target, source: str, seeds: int = 1
) -> None:
    """Says what heads that are trained together are about to read, and about how long that takes;
    raises where it is more than :func:`specwb.engine.work.check_work` allows."""
    longest = max(settings, key=lambda one: one.plan.steps)
    batch, steps = longest.batch, longest.plan.steps
    what = f"{names}: {steps:,} steps of {batch.rows:,} rows of {batch.length:,} tokens"
    if seeds > 1:
        what += f", {seeds:,} times"
    # of the rows that are computed at once, a few states of every token
    at_once = -(-batch.rows // batch.accumulate) * batch.length
    memory = at_once * target.backbone.config.hidden_size * 4 * STATES
    sizes = batch.rows, batch.length
    say(check_work(target, what, steps * seeds, *sizes, lower=LOWER, memory=memory))
    if source == "generated":
        say(check_writing(target, longest.tokens_written, LOWER))


def _check_batches(data: text.Corpus, batch: Batch) -> None:
    """Raises where the text is shorter than a row, or rows cannot be divided among processes and
    parts."""
    length = batch.length
    for part, streams, row in (
        ("training", data.train, length),
        ("held-out", data.held_out, min(length, 256)),
    ):
        for domain, stream in streams.items():
            if len(stream) < row + 2:
                problem = f"the {part} text ({domain}) has {len(stream)} tokens"
                advice = "give more text or a smaller length"
                raise TrainingError(f"{problem}, fewer than one row of {row}; {advice}")
    mine = len(process_rows(np.empty((batch.rows, 0))))
    if mine % batch.accumulate:
        problem = f"{mine} rows cannot be divided into {batch.accumulate} parts"
        raise TrainingError(f"{problem}; choose rows that can")


def is_finished(out: Path, identity: str, store: str = "fp16") -> bool:
    """Whether the result of this very run is in ``out``, stored so; anything else there is
    refused."""
    claim({"--out": (out, HEAD)})
    card = table(out / "card.json")
    if not card:
        return False
    if card.get("run") == identity and card.get("store", "fp16") == store:
        return True
    other = "what another run made (other data, settings or seed)"
    raise TrainingError(f"{out} holds {other}; delete it or choose another --out")


def lab_settings(
    kind: str,
    budget: str,
    changes: Mapping[str, int | None] | None = None,
    options: str = "",
    followed: Published | None = None,
) -> dict[str, Any]:
    """The settings of a head as the lab's recipe has them for a budget, unless the published recipe
    that is ``followed``, ``options`` (``name=value`` with commas) or ``changes`` have others."""
    plan = lab_recipe()
    if budget not in plan["budget"]:
        raise TrainingError(
            f"unknown budget {budget!r}; the recipe has {', '.join(plan['budget'])}"
        )
    budgets = plan["budget"][budget]
    # the lab's own draft model is none of its heads, and trained in another way
    table = kind if kind in plan["heads"] else OTHERS
    if table not in budgets:
        raise TrainingError(f"budget {budget!r} has no {kind}; it is for {', '.join(budgets)}")
    settings = {**plan["heads"].get(kind, {}), **budgets[table]}
    if followed is not None:
        settings |= followed.settings
    settings |= parse(kind, options, RECIPES[kind].options)
    return settings | {name: value for name, value in (changes or {}).items() if value is not None}


def train_for(
    kind: str,
    target: str | Path,
    out: Path,
    budget: str = "cpu",
    changes: Mapping[str, int | None] | None = None,
    options: str = "",
    *,
    recipe: str | None = None,
    source: str = "generated",
    generated: Path = Path("build/generated"),
    corpus: Path | None = None,
    device: str = "auto",
    seed: int = 0,
    seeds: int = 1,
) -> Path:
    """Trains a head by :func:`train_head` with the lab recipe's settings and text; this is what
    ``specwb train`` does.

    The settings are those of :func:`lab_settings`, ``recipe`` a name, or a TOML file. Instead of
    the lab's text the file ``corpus`` is read. ``seeds`` heads are trained, with the seeds
    ``seed``, ``seed + 1``, ..; more than one are written to ``out/seed-0`` and so on, with a
    summary beside them."""
    if out.name in ("", ".."):  # checkpoints are called as the folder is
        raise TrainingError(f"--out {out} has no name of its own; name a new folder for the head")
    claim({"--out": (out, HEAD if seeds == 1 else FOLDER)})
    followed = None if recipe is None else read_recipe(recipe, kind, RECIPES[kind].options)
    settings = lab_settings(kind, budget, changes, options, followed)
    model = trained_on(target, device)
    wanted = parse(kind, options, RECIPES[kind].options).get("vocabulary", 0)
    if isinstance(wanted, int) and wanted > model.vocabulary:
        raise TrainingError(
            f"{kind}: vocabulary={wanted} is more than the {model.vocabulary} tokens of "
            f"{model.name!r}"
        )
    checked = checked_settings(kind, settings, model, source)  # before any text is read
    announce(kind, [checked], model, source, seeds)
    data, mixture = training_text(model, corpus)
    folders = [out] if seeds == 1 else [out / f"seed-{seed + i}" for i in range(seeds)]
    for i, folder in enumerate(folders):
        train_head(
            kind,
            model,
            folder,
            settings,
            data,
            mixture,
            seed=seed + i,
            text_seed=seed,
            source=source,
            generated=generated,
            note=budget,
            recipe=followed,
        )
    if seeds > 1:
        with first_process() as is_first:
            if is_first:
                for line in summary(folders):
                    say(line)
    return out


def summary(folders: Sequence[Path]) -> list[str]:
    cards = [read_card(folder) for folder in folders]
    lines = [f"{len(cards)} seeds, held-out acceptance by position, mean and standard deviation"]
    for domain in cards[0]["held_out"]:
        ranks = [card["held_out"][domain]["rank"] for card in cards]
        by_position = zip(*([row[0] for row in rank] for rank in ranks), strict=True)
        values = (f"{fmean(x):.3f} +- {stdev(x):.3f}" for x in by_position)
        lines.append(f"  {domain}: {', '.join(values)}")
    return lines
