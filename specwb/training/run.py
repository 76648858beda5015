"""One way to train all heads: check the settings, read text, train, write the folder."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.core.files import HEAD, claim, home, table, whole_folder
from specwb.engine.work import check_work
from specwb.models.borrowed import is_borrowed
from specwb.models.checkpoint import round_to_int8
from specwb.models.device import fast_bfloat16_products
from specwb.models.folder import BUILDING
from specwb.models.kangaroo import load_kangaroo
from specwb.models.target import Target
from specwb.training.corpus import Corpus
from specwb.training.fit import TrainingError, first_process, process_rows, say
from specwb.training.generate import PROMPT, check_writing, generated_text
from specwb.training.heads import RECIPES, measure, step_loss, target_outputs
from specwb.training.loop import TrainingRun, saved_state, train
from specwb.training.reading import trained_on, training_text
from specwb.training.recipe import Moment, Recipe
from specwb.training.settings import (
    Batch,
    Objective,
    Published,
    TrainingSettings,
    lab_recipe,
    parse,
    read_recipe,
    split,
)
from specwb.training.why import load_measured

TEXTS = ("generated", "read")
OTHERS = "eagle"  # whose budget kinds have that the lab family has none of
WINDOWS, LONGEST = 8, 256  # of held-out text that is measured, and their length at most
STATES = 8  # hidden states of a token that a training holds at once, at least
LOWER = "--steps, --rows or --length (settings steps, rows, length)"


@dataclass
class Learner:
    """A head, its batches, its loss, and its acceptance on held-out text.

    ``own_text [rows, length + 1]``: what the target wrote, three of four rows of a batch; None
    where all of it is text that was read.
    """

    recipe: Recipe
    head: Any
    settings: TrainingSettings
    data: Corpus
    mixture: dict[str, float]
    seed: int
    own_text: np.ndarray | None = None

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray | None]:
        """A step's rows ``[rows, length + 1]``, and which of their tokens count, None for all."""
        batch = self.settings.batch
        size = batch.rows, batch.length, self.mixture
        ids, counted = self.data.batch(self.seed + 2, step, *size)
        if self.own_text is not None:
            count = batch.rows - batch.rows // 4
            generator = np.random.Generator(np.random.Philox(key=[self.seed + 3, step]))
            ids[:count] = self.own_text[generator.integers(0, len(self.own_text), count)]
            if counted is not None:
                counted[:count] = True
                counted[:count, :PROMPT] = False
        return ids, counted

    def loss(self, step: int, part: int) -> Tensor:
        """The loss of a part of a step, a pure function of both."""
        batch, target = self.settings.batch, self.recipe.target
        rows, counted = self.rows(step)
        ids = torch.from_numpy(process_rows(rows)[part :: batch.accumulate]).to(target.device)
        outputs = target_outputs(target, ids[:, :-1], self.head.features)
        outputs.following = ids[:, 1:]
        if counted is not None:
            part_counted = torch.from_numpy(process_rows(counted)[part :: batch.accumulate])
            outputs.counted = part_counted[:, 1:].to(target.device)
        progress = step / self.settings.plan.steps
        moment = Moment(progress, self.seed + 4, step, batch.rows, part, batch.accumulate)
        loss = step_loss(self.recipe, self.head, outputs, moment, self.settings.objective)
        return loss / batch.accumulate

    @cached_property
    def windows(self) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Held-out text by domain, ``[WINDOWS, L]``, and the positions whose next token counts."""
        parts = {}
        for domain in self.data.held_out:
            ids, counted = _windows(self.data, domain, self.settings.batch)
            following = None if counted is None else torch.from_numpy(counted[:, 1:])
            parts[domain] = torch.from_numpy(ids[:, :-1]), following
        return parts

    def measured(self) -> dict[str, dict[str, list]]:
        """:func:`specwb.training.heads.measure` of held-out text, by domain; of conversations only
        what an assistant says is measured."""
        device = self.recipe.target.device
        return {
            domain: measure(
                self.recipe,
                self.head,
                ids.to(device),
                None if counted is None else counted.to(device),
            )
            for domain, (ids, counted) in self.windows.items()
        }

    def acceptance(self) -> list[float]:
        """Acceptance by position, a mean over the domains."""
        ranks = [measurements["rank"] for measurements in self.measured().values()]
        return [round(fmean(row[0] for row in rows), 3) for rows in zip(*ranks, strict=True)]


def train_head(
    kind: str,
    target: Target,
    out: Path,
    settings: Mapping[str, Any],
    data: Corpus,
    mixture: dict[str, float],
    *,
    seed: int = 0,
    text_seed: int | None = None,
    source: str = "generated",
    generated: Path = Path("build/generated"),
    note: str = "",
    store: str = "fp16",
    begin: Any = None,
) -> Path:
    """Trains a head of a frozen target and writes it to its folder, in its published layout with a
    card.

    Where the same run has finished, nothing is done; where it was interrupted, it is resumed.

    Args:
        kind: of the head, one of ``RECIPES``.
        target: the frozen model.
        out: the folder.
        settings: of the head and its training, of which steps, rows and length must be given.
        data: the training text.
        mixture: the proportions of the text's domains.
        seed: of the head's first weights, the order of the text and the noise.
        text_seed: of the text that the target writes; default ``seed``.
        source: "generated": three of four rows of a batch are text that the target wrote, as
            drafting meets it; "read": all of it is training text.
        generated: the folder of the target's own text.
        note: of the budget, for the card.
        store: fp16, or int8: matrices are rounded to it, with one scale a row, before the last
            measurement.
        begin: a trained head (:func:`first_head`), whose weights and words the new one begins with.

    Returns:
        The folder.

    Raises:
        TrainingError: a setting or the text is wrong, or the folder or its checkpoint is that of
            another run.
    """
    checked = checked_settings(kind, settings, target, source)
    _check_batches(data, checked.batch)
    if store == "int8" and kind == "deep":
        raise TrainingError("deep: a whole model is stored in fp16, not in int8")
    out, text_seed = home(out), seed if text_seed is None else text_seed
    made_by = RECIPES[kind](target, checked.head)
    torch.manual_seed(seed)
    with BUILDING:
        words = made_by.frequent(data, mixture)
        head = made_by.make(words).to(target.device)
    begun_from = made_by.initial_weights() if begin is None else _begun(head, kind, begin)
    facts = {**checked.flat, **made_by.settings}
    if made_by.own_loss:
        facts = {n: v for n, v in facts.items() if n not in Objective.__dataclass_fields__}
    run = {
        "kind": kind,
        "settings": facts,
        "seed": [seed, text_seed],
        "text": source,
        "corpus": data.sha256,
        "target": target.fingerprint,
        "mixture": mixture,
        "begun_from": begun_from,
    }
    identity = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
    if is_finished(out, identity, store):
        say(f"{out} holds this head, finished")
        return out
    checkpoint = out.with_name(out.name + ".checkpoint.pt")
    saved_state(checkpoint, identity)  # another run's is reported before any work

    learner = Learner(made_by, head, checked, data, mixture, seed)
    if source == "generated":
        learner.own_text = generated_text(
            target,
            data,
            home(generated),
            tokens=checked.tokens_written,
            length=checked.batch.length,
            mixture=mixture,
            seed=text_seed,
        )
    log = train(
        TrainingRun(
            kind,
            head,
            learner.loss,
            checked.plan,
            checkpoint,
            identity,
            measure=learner.acceptance,
            adam_matrices=made_by.adam_matrices(head),
            parts=checked.batch.accumulate,
        )
    )

    card = {
        "name": kind,
        "run": identity,
        "parameters": sum(p.numel() for p in head.parameters()),
        **facts,
        "budget": note,
        "seed": seed,
        "text": source,
        "tokens": checked.tokens,
        "device": target.device.type,
        "products": "bfloat16" if fast_bfloat16_products(target.device) else "float32",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "corpus": data.sha256,
        "target": target.name,
        "target_sha256": target.sha256,
        "target_revision": target.revision,
        "begun_from": begun_from,
        "last_training_loss": log.recent_loss(50),
        "progress": log.measurements,
        "step_seconds": log.step_seconds,
    }
    if store == "int8":
        card |= {"store": store, "before_rounding": learner.acceptance()}
        round_to_int8(head)
        head.card = {"store": store}  # so that heads round the target's rows of their words, too
    card |= {"held_out_of": data.measured, "held_out": learner.measured()}
    with first_process() as is_first:
        if is_first:
            with whole_folder(out) as part:
                made_by.save(head, part, card)
    accuracies = "; ".join(
        f"{domain} {' '.join(f'{row[0]:.2f}' for row in measurements['rank'])}"
        for domain, measurements in card["held_out"].items()
    )
    say(f"{kind}: held-out acceptance by position, {accuracies}")
    return out


def first_head(source: str | Path, kind: str, target: Target) -> Any:
    """The trained head of this kind in a folder or of a hub id, or the target's own of a kind, for
    a training to begin with; of a draft model that borrows its target's layers, its adapter.

    Raises:
        TrainingError: it is of another kind, or a whole model, which begins anew.
    """
    found = load_measured(source, target)
    if found.kind != kind:
        raise TrainingError(f"{kind} cannot begin with {source}, which holds {found.kind}")
    if found.recipe is not None:
        return found.head
    if not is_borrowed(found.head.folder):
        raise TrainingError(f"{kind}: a whole model begins anew, not with {source}")
    return load_kangaroo(found.head.folder, target).float()  # a draft model is an adapter at exit 0


def _begun(head: Any, kind: str, first: Any) -> str:
    """Gives a new head a trained one's weights and words; returns their sha256."""
    weights = first.state_dict()
    try:
        head.load_state_dict(weights)
    except RuntimeError as error:
        sizes = "of other sizes or settings than this training's"
        raise TrainingError(f"{kind} cannot begin with a head {sizes}") from error
    contents = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        contents.update(f"{name} {tuple(weight.shape)}".encode())
        contents.update(weight.double().cpu().numpy().tobytes())
    return contents.hexdigest()


def checked_settings(
    kind: str, settings: Mapping[str, Any], target: Target, source: str = "generated"
) -> TrainingSettings:
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


def _check_batches(data: Corpus, batch: Batch) -> None:
    """Raises where the text is shorter than a row, or rows cannot be divided among processes and
    parts."""
    length = batch.length
    for part, streams, row in (
        ("training", data.train, length),
        ("held-out", data.held_out, min(length, LONGEST)),
    ):
        for domain, stream in streams.items():
            if len(stream) < row + 2:
                problem = f"the {part} text ({domain}) has {len(stream)} tokens"
                advice = "give more text or a smaller length"
                raise TrainingError(f"{problem}, fewer than one row of {row}; {advice}")
    for domain in data.held_out:
        _, counted = _windows(data, domain, batch)
        if counted is not None and not counted[:, 1:].any():
            problem = f"no answer stands at the places of the held-out text ({domain})"
            raise TrainingError(f"{problem} that are measured; give more text")
    mine = len(process_rows(np.empty((batch.rows, 0))))
    if mine % batch.accumulate:
        problem = f"{mine} rows cannot be divided into {batch.accumulate} parts"
        raise TrainingError(f"{problem}; choose rows that can")


def _windows(data: Corpus, domain: str, batch: Batch) -> tuple[np.ndarray, np.ndarray | None]:
    """The held-out text that is measured, and which of its tokens count."""
    return data.windows(domain, WINDOWS, min(batch.length, LONGEST))


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
    row = kind if kind in plan["heads"] else OTHERS
    if row not in budgets:
        raise TrainingError(f"budget {budget!r} has no {kind}; it is for {', '.join(budgets)}")
    settings = {**plan["heads"].get(kind, {}), **budgets[row]}
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
    begin: str | None = None,
) -> Path:
    """Trains a head by :func:`train_head` with the lab recipe's settings and text; this is what
    ``specwb train`` does.

    The settings are those of :func:`lab_settings`, ``recipe`` a name, or a TOML file. Instead of
    the lab's text the file ``corpus`` is read. One line tells what is about to be read and about
    how long that takes; more than :func:`specwb.engine.work.check_work` allows is refused."""
    if out.name in ("", ".."):  # checkpoints are called as the folder is
        raise TrainingError(f"--out {out} has no name of its own; name a new folder for the head")
    claim({"--out": (out, HEAD)})
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
    first = None if begin is None else first_head(begin, kind, model)
    batch, steps = checked.batch, checked.plan.steps
    what = f"{kind}: {steps:,} steps of {batch.rows:,} rows of {batch.length:,} tokens"
    # of the rows that are computed at once, a few states of every token
    at_once = -(-batch.rows // batch.accumulate) * batch.length
    memory = at_once * model.backbone.config.hidden_size * 4 * STATES
    say(check_work(model, what, steps, batch.rows, batch.length, lower=LOWER, memory=memory))
    if source == "generated":
        say(check_writing(model, checked.tokens_written, LOWER))
    if followed is not None:
        say(f"recipe {followed.name}: {followed.source or kind}")
        if followed.differs:
            say(f"its source has other settings: {followed.differs}")
    data, mixture = training_text(model, corpus)
    return train_head(
        kind,
        model,
        out,
        settings,
        data,
        mixture,
        seed=seed,
        source=source,
        generated=generated,
        note=budget,
        begin=first,
    )
