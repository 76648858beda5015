"""Training heads over a frozen target: one way for all of them.

A recipe says what the module is and what it predicts; the loop, the text, the measurement and the
files are shared.

The target's hidden states are computed on the fly, from text read or text the target wrote. A head
learns the target's own distribution at every position, level by level:
``sum_j decay^j (CE(p, q_j) + regression SmoothL1(h_j, f))``.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specwb.files import table, whole_folder
from specwb.models.load import load, resolve_device
from specwb.models.target import Target
from specwb.options import parse_value, whole
from specwb.training import corpus as text
from specwb.training.decision import DecisionRecipe
from specwb.training.deep import DeepRecipe
from specwb.training.diffusion import DiffusionRecipe
from specwb.training.falcon import FalconRecipe
from specwb.training.fit import (
    Log,
    Plan,
    TrainingError,
    autocast,
    first_process,
    fit,
    process_rows,
    saved_state,
    say,
    training_device,
    write_errors,
)
from specwb.training.generate import PROMPT, generated_text
from specwb.training.recipe import (
    Eagle3Recipe,
    EagleRecipe,
    KangarooRecipe,
    Level,
    MedusaRecipe,
    Moment,
    Recipe,
    TargetOutputs,
)

RANKS = 10  # how far down a drafter's list the measurement looks
TEXTS = ("generated", "read")


RECIPES: dict[str, type[Recipe]] = {
    kind.name: kind
    for kind in (
        MedusaRecipe,
        EagleRecipe,
        Eagle3Recipe,
        FalconRecipe,
        DiffusionRecipe,
        KangarooRecipe,
        DecisionRecipe,
        DeepRecipe,
    )
}


@torch.no_grad()
def target_outputs(target: Target, ids: Tensor, features: tuple[int, ...]) -> TargetOutputs:
    """Runs the frozen target over a text, by the library's own forward.

    Args:
        target: the target.
        ids: ``[B, L]``.
        features: the layer numbers of the hidden states that a head reads, as in
            :mod:`specwb.models.backbone`.
    """
    inner = target.model.model
    by_layer: dict[int, Tensor] = {}
    hooks = [
        inner.layers[i - 1].register_forward_hook(_store(by_layer, i)) for i in features if i > 0
    ]
    try:
        with autocast(ids.device):
            normed = inner(input_ids=ids, use_cache=False).last_hidden_state
            logits = target.model.lm_head(normed)
    finally:
        for hook in hooks:
            hook.remove()
    embedded = target.backbone.embed(ids)
    states = {**by_layer, 0: embedded, -1: normed}
    chosen = torch.cat([states[i] for i in features], -1) if features else embedded[:, :, :0]
    return TargetOutputs(ids, embedded, chosen.float(), normed.float(), logits.float())


def _store(by_layer: dict[int, Tensor], i: int) -> Any:
    """Returns a hook that stores a layer's output under its number."""

    def hook(module: nn.Module, args: Any, out: Any) -> None:
        by_layer[i] = out[0] if isinstance(out, tuple) else out

    return hook


def step_loss(recipe: Recipe, head: Any, outputs: TargetOutputs, moment: Moment) -> Tensor:
    """Computes the loss of one training step; the module has its formula.

    It is a mean over the positions of the rows in ``outputs``.

    Args:
        recipe: the head's recipe.
        head: the head.
        outputs: what the target computes from this process' rows of the batch.
        moment: the step.
    """
    own_loss = recipe.loss(head, outputs, moment)
    if own_loss is not None:
        return own_loss
    ids = recipe.ids(head)
    logits = outputs.logits if ids is None else outputs.logits[..., ids]
    p = logits.softmax(-1)
    if recipe.hard:
        best = torch.zeros_like(p).scatter_(-1, logits.argmax(-1, keepdim=True), recipe.hard)
        p = (1 - recipe.hard) * p + best
    # where the target's best token is not in the draft vocabulary there is nothing to learn
    is_learnable = None if ids is None else torch.isin(outputs.logits.argmax(-1), ids)
    total, scale = torch.zeros((), device=outputs.logits.device), 1.0
    for level in recipe.training_levels(head, outputs, moment):
        value = _cross_entropy(level, p)
        if recipe.regression and level.hidden is not None:
            normed = level.select(outputs.normed)
            distance = F.smooth_l1_loss(level.hidden.float(), normed, reduction="none").mean(-1)
            value = value + recipe.regression * distance
        if level.weights is not None:
            value = value * level.weights
        if is_learnable is not None:
            value = value * level.select(is_learnable)
        # a mean over all positions, so that the mean over parts of a batch is that over the batch
        total = total + scale * value.mean()
        scale *= recipe.decay
    return total


def _cross_entropy(level: Level, p: Tensor) -> Tensor:
    """Returns ``[B, m]``, the cross-entropy of a level's predictions.

    It is taken with the target's distribution ``p [B, L, V']``, and with the level's labels where
    it has some.
    """
    wanted = level.select(p)
    if level.labels is None:
        flat = level.logits.flatten(0, 1).float()
        losses = F.cross_entropy(flat, wanted.flatten(0, 1), reduction="none")
        return losses.view(level.logits.shape[:2])
    logq = level.logits.float().log_softmax(-1)
    with_distribution = torch.linalg.vecdot(wanted, logq)
    with_label = logq.gather(-1, level.labels.clamp_min(0)[:, :, None])[:, :, 0]
    return -torch.where(level.labels < 0, with_distribution, with_label)


@torch.no_grad()
def measure(recipe: Recipe, head: Any, windows: Tensor) -> dict[str, list]:
    """Measures how well a head predicts held-out text, by depth.

    The text before each position is that of its window.

    Args:
        recipe: the head's recipe.
        head: the head.
        windows: ``[B, L]``, the text.

    Returns:
        ``rank [depth][RANKS]``: the share of positions where the target's best token is the head's
        r-th; ``sampled [depth]``: the mean of sum min(p, q) at T = 1. A recipe with a measurement
        of its own gives that.
    """
    was_training = head.training
    head.eval()
    outputs = target_outputs(recipe.target, windows, head.features)
    measurements = recipe.measure(head, outputs)
    if measurements is None:
        measurements = _measure_levels(recipe, head, outputs)
    head.train(was_training)
    return measurements


def _measure_levels(recipe: Recipe, head: Any, outputs: TargetOutputs) -> dict[str, list]:
    ids = recipe.ids(head)
    best, p = outputs.logits.argmax(-1), outputs.logits.softmax(-1)
    ranks, sampled = [], []
    for level in recipe.levels(head, outputs, recipe.measured_levels):
        top = level.logits.topk(min(RANKS, level.logits.shape[-1]), -1).indices
        q, level_p = level.logits.float().softmax(-1), level.select(p)
        if ids is not None:  # of the head's own vocabulary
            top = ids[top]
            q = torch.zeros_like(level_p).index_copy_(2, ids, q)
        hits = top == level.select(best)[:, :, None]
        ranks.append([round(float(x), 4) for x in hits.float().mean((0, 1))])
        sampled.append(round(float(torch.minimum(level_p, q).sum(-1).mean()), 4))
    return {"rank": ranks, "sampled": sampled}


def train_head(
    kind: str,
    target: Target,
    out: Path,
    settings: dict[str, Any],
    budget: dict[str, int],
    data: text.Corpus,
    mixture: dict[str, float],
    *,
    seed: int = 0,
    source: str = "generated",
    generated: Path = Path("build/generated"),
    note: str = "",
) -> Path:
    """Trains one head and writes it to ``out``, in its published layout with a card.

    Where the same run has finished, nothing is done; where it was interrupted, it is resumed.

    Args:
        kind: a key of ``RECIPES``.
        target: the frozen target.
        out: the folder.
        settings: the kind's own.
        budget: steps, rows, length, and generated (tokens of the target's own text).
        data: the training text.
        mixture: the proportions of its domains.
        seed: of the head's first weights, the text and the noise.
        source: "generated": three of four rows of a batch are text that the target wrote, as
            drafting meets it; "read": all of it is training text.
        generated: the folder of the target's own text.
        note: of the budget, for the card.

    Raises:
        TrainingError: an unknown kind, setting or source, rows that do not fit the target, the text
            or the processes, something else in ``out``, or files that cannot be written.
    """
    if kind not in RECIPES:
        raise TrainingError(f"unknown head {kind!r}; known: {', '.join(RECIPES)}")
    out, generated = out.expanduser(), generated.expanduser()
    steps, rows, length = budget["steps"], budget["rows"], budget["length"]
    _check(kind, settings, target, length, source)
    _check_text(data, length)
    process_rows(np.empty((rows, 0)))  # they can be divided among the processes
    if "vocabulary" in settings:  # as the card is to say it
        settings = {**settings, "vocabulary": min(settings["vocabulary"], target.vocabulary)}
    device = target.device
    recipe = RECIPES[kind](target, settings)
    torch.manual_seed(seed)
    head = recipe.make(data, mixture).to(device)
    run = {
        "kind": kind,
        "settings": recipe.settings,
        "budget": budget,
        "seed": seed,
        "text": source,
        "corpus": data.sha256,
        "target": target.fingerprint,
        "mixture": mixture,
    }
    if origin := recipe.initial_weights():
        run["begun_from"] = origin
    identity = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
    checkpoint = out.with_name(out.name + ".checkpoint.pt")
    if is_finished(out, identity):
        say(f"{out} holds this head, finished")
        return out
    saved_state(checkpoint, identity)  # another run's is reported before any work
    own_text = None
    if source == "generated":
        read = steps * rows * length
        tokens = min(budget.get("generated") or read // 8, read)
        own_text = generated_text(
            target, data, generated, tokens=tokens, length=length, mixture=mixture, seed=seed
        )

    def loss(step: int) -> Tensor:
        batch = data.batch(seed + 2, step, rows, length, mixture)
        if own_text is not None:
            count = rows - rows // 4
            generator = np.random.Generator(np.random.Philox(key=[seed + 3, step]))
            batch[:count] = own_text[generator.integers(0, len(own_text), count)]
        ids = torch.from_numpy(process_rows(batch[:, :-1])).to(device)
        outputs = target_outputs(target, ids, head.features)
        return step_loss(recipe, head, outputs, Moment(step / steps, seed + 4, step, rows))

    windows = {
        domain: torch.from_numpy(data.windows(domain, 8, min(length, 256))[:, :-1]).to(device)
        for domain in data.held_out
    }

    def acceptance() -> list[float]:
        ranks = [measure(recipe, head, window)["rank"] for window in windows.values()]
        depths = range(len(ranks[0]))
        return [round(sum(rank[d][0] for rank in ranks) / len(ranks), 3) for d in depths]

    plan = Plan(
        steps,
        recipe.lr_matrix,
        recipe.lr_other,
        weight_decay=0.05,
        warmup=min(50, max(1, steps // 10)),
        decay=0.5,
    )
    log = fit(
        kind,
        head,
        loss,
        plan,
        checkpoint,
        identity,
        measure=acceptance,
        adam_matrices=recipe.adam_matrices(head),
    )
    card = {
        "name": kind,
        "run": identity,
        "parameters": sum(p.numel() for p in head.parameters()),
        **recipe.settings,
        "budget": note,
        **budget,
        "seed": seed,
        "text": source,
        "tokens": steps * rows * length,
        "device": device.type,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "corpus": data.sha256,
        "target": target.name,
        "target_sha256": target.sha256,
        "last_training_loss": last_loss(log),
        "progress": log.measurements,
        "held_out": {d: measure(recipe, head, window) for d, window in windows.items()},
    }
    with first_process() as is_first:
        if is_first:
            with write_errors(out), whole_folder(out) as part:
                recipe.save(head, part, card)
    accuracies = "; ".join(
        f"{domain} {' '.join(f'{row[0]:.2f}' for row in measurements['rank'])}"
        for domain, measurements in card["held_out"].items()
    )
    say(f"{kind}: held-out acceptance by position, {accuracies}")
    return out


def last_loss(log: Log) -> float:
    """Returns the mean loss of the last 50 steps, as cards have it."""
    losses = log.loss[-50:]
    return round(sum(losses) / max(1, len(losses)), 4)


def _check(kind: str, settings: dict[str, Any], target: Target, length: int, source: str) -> None:
    """Checks the settings before any text is read.

    Raises:
        TrainingError: one of them cannot be.
        MethodError: a number that cannot be.
    """
    if source not in TEXTS:
        raise TrainingError(f"text must be {' or '.join(TEXTS)}, got {source!r}")
    for name, value in settings.items():
        _check_setting(kind, name, value)
    if length > target.context:
        context = f"the context of {target.name!r} ({target.context})"
        raise TrainingError(f"rows of {length} tokens are longer than {context}")
    needed = RECIPES[kind](target, settings).min_tokens()
    needed = max(needed, PROMPT if source == "generated" else 0) + 1
    if length < needed:
        problem = f"rows of {length} tokens are too short"
        raise TrainingError(f"{problem}, {kind} needs {needed} here")


def _check_setting(kind: str, name: str, value: object) -> None:
    options = RECIPES[kind].options
    if name not in options:
        raise TrainingError(f"{kind} has no setting {name!r}; its settings: {', '.join(options)}")
    default = options[name]
    if isinstance(default, tuple):
        if value not in default:
            words = ", ".join(default)
            raise TrainingError(f"{kind}: {name} must be {words}, got {value!r}")
    elif isinstance(default, int):
        may_be_zero = not default or name in RECIPES[kind].may_be_zero
        whole(f"{kind}: {name}", value, 0 if may_be_zero else 1)
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < float("inf"):  # type: ignore[operator]
            raise TrainingError(f"{kind}: {name} must be a number >= 0, got {value!r}")


def _check_text(data: text.Corpus, length: int) -> None:
    """Checks that every domain has enough text.

    Raises:
        TrainingError: one has not.
    """
    for part, streams, row in (
        ("training", data.train, length),
        ("held-out", data.held_out, min(length, 256)),
    ):
        for domain, stream in streams.items():
            if len(stream) < row + 2:
                problem = f"the {part} text ({domain}) has {len(stream)} tokens"
                advice = "give more text or a smaller length"
                raise TrainingError(f"{problem}, fewer than one row of {row}; {advice}")


def is_finished(out: Path, identity: str) -> bool:
    """Says whether the result of this very run is in ``out``.

    Raises:
        TrainingError: anything else is, or nothing can be written.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if table(out / "card.json").get("run") == identity:
            return True
        other = "something else, or what another run made (other data, settings or seed)"
        raise TrainingError(f"{out} holds {other}; delete it or choose another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise TrainingError(f"cannot write to {out.parent}: {error.strerror}") from error
    return False


def train_for(
    kind: str,
    target: str | Path,
    out: Path,
    budget: str = "cpu",
    changes: dict[str, int | None] | None = None,
    options: str = "",
    *,
    source: str = "generated",
    generated: Path = Path("build/generated"),
    corpus: Path | None = None,
    device: str = "auto",
    seed: int = 0,
) -> Path:
    """Trains a head by :func:`train_head` with the lab recipe's settings and text.

    This is what ``specwb train`` does.

    Args:
        kind: a key of ``RECIPES``.
        target: a name, folder or hub id.
        out: the folder that the head is written to.
        budget: a budget of the recipe.
        changes: steps, rows and length instead of the budget's.
        options: the head's own, ``name=value`` with commas.
        source, generated, seed: see :func:`train_head`.
        corpus: a text file to train on instead of the lab's text.
        device: where to train.

    Raises:
        TrainingError: an unknown budget, or one that has no such head, options that cannot be read,
            or what :func:`train_head` raises.
    """
    from specwb.training.lab import recipe

    plan = recipe()
    if budget not in plan["budget"]:
        raise TrainingError(
            f"unknown budget {budget!r}; the recipe has {', '.join(plan['budget'])}"
        )
    budgets = plan["budget"][budget]
    if kind not in budgets:
        raise TrainingError(f"budget {budget!r} has no {kind}; it is for {', '.join(budgets)}")
    settings = {**plan["heads"][kind], **_parse_options(kind, options)}
    size = {**budgets[kind], **{k: v for k, v in (changes or {}).items() if v is not None}}
    model = load(target, device=training_device(resolve_device(device)))
    _check(kind, settings, model, size["length"], source)
    data, mixture = training_text(model, corpus)
    return train_head(
        kind,
        model,
        out,
        settings,
        size,
        data,
        mixture,
        seed=seed,
        source=source,
        generated=generated,
        note=budget,
    )


def _parse_options(kind: str, options: str) -> dict[str, Any]:
    """Reads ``name=value`` with commas."""
    settings = {}
    for item in filter(None, options.split(",")):
        name, equals, value = item.partition("=")
        if not equals or name not in RECIPES[kind].options:
            names = ", ".join(RECIPES[kind].options)
            wanted = f"settings are {names}, written name=value"
            raise TrainingError(f"{kind}: {wanted}; got {item!r}")
        settings[name] = parse_value(value)
    return settings


def training_text(target: Target, corpus: Path | None) -> tuple[text.Corpus, dict[str, float]]:
    """Returns the lab's text, or a file's, as the target's tokens, and its domains' proportions.

    Args:
        target: its tokenizer is used.
        corpus: a text file, None for the lab's text.

    Raises:
        TrainingError: the target has no tokenizer.
        DataError: the text cannot be read.
    """
    from specwb.training.lab import recipe

    if target.tokenizer is None:
        raise TrainingError(f"{target.name!r} has no tokenizer to read text with")
    say("reading the training text")
    if corpus is not None:
        return text.from_file(corpus, target.tokenizer), {"text": 1.0}
    plan = recipe()["corpus"]
    return text.encode(text.documents(plan["packages"]), target.tokenizer), plan["mixture"]
