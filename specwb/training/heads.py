"""Heads over a frozen target: one way of training for all of them. A recipe says what the module is and what it predicts; the loop, the text,
the measure and the files are shared.

The target's hidden states are computed on the fly, from text read or text the target wrote. What a head learns is the target's own law
at every place, level by level: ``sum_j decay^j (CE(p, q_j) + regression SmoothL1(h_j, f))``.
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
from specwb.training.fit import Plan, TrainingError, autocast, everyone, fit, saved_state, say, share, training_device, writing
from specwb.training.generate import PROMPT, generated_text
from specwb.training.recipe import Eagle3Recipe, EagleRecipe, Found, KangarooRecipe, MedusaRecipe, Moment, Recipe

RANKS = 10  # how far down a drafter's list the measure looks
TEXTS = ("generated", "read")


RECIPES: dict[str, type[Recipe]] = {
    kind.name: kind for kind in (MedusaRecipe, EagleRecipe, Eagle3Recipe, FalconRecipe, DiffusionRecipe, KangarooRecipe, DecisionRecipe, DeepRecipe)
}


@torch.no_grad()
def look(target: Target, ids: Tensor, features: tuple[int, ...]) -> Found:
    """The frozen target over ``ids [B,L]``, by the library's own forward; numbers of features as in :mod:`specwb.models.backbone`."""
    inner = target.model.model
    kept: dict[int, Tensor] = {}
    hooks = [inner.layers[i - 1].register_forward_hook(_keep(kept, i)) for i in features if i > 0]
    try:
        with autocast(ids.device):
            normed = inner(input_ids=ids, use_cache=False).last_hidden_state
            logits = target.model.lm_head(normed)
    finally:
        for hook in hooks:
            hook.remove()
    embedded = target.backbone.embed(ids)
    every = {**kept, 0: embedded, -1: normed}
    chosen = torch.cat([every[i] for i in features], -1) if features else embedded[:, :, :0]
    return Found(ids, embedded, chosen.float(), normed.float(), logits.float())


def _keep(kept: dict[int, Tensor], i: int) -> Any:
    def hook(module: nn.Module, args: Any, out: Any) -> None:
        kept[i] = out[0] if isinstance(out, tuple) else out

    return hook


def step_loss(recipe: Recipe, head: Any, found: Found, moment: Moment) -> Tensor:
    """What one step of training makes smaller, a mean over the places of the rows in ``found``; see the module."""
    if (own := recipe.loss(head, found, moment)) is not None:
        return own
    ids, total, scale = recipe.ids(head), torch.zeros((), device=found.logits.device), 1.0
    logits = found.logits if ids is None else found.logits[..., ids]
    # where the target's best token is not in the draft vocabulary there is nothing to learn
    heard = None if ids is None else torch.isin(found.logits.argmax(-1), ids)
    p = logits.softmax(-1)
    if recipe.hard:
        p = (1 - recipe.hard) * p + torch.zeros_like(p).scatter_(-1, logits.argmax(-1, keepdim=True), recipe.hard)
    for level in recipe.training(head, found, moment):
        if level.tokens is None:
            value = F.cross_entropy(level.logits.flatten(0, 1).float(), level.of(p).flatten(0, 1), reduction="none").view(level.logits.shape[:2])
        else:
            said = level.logits.float().log_softmax(-1)
            law, token = torch.linalg.vecdot(level.of(p), said), said.gather(-1, level.tokens.clamp_min(0)[:, :, None])[:, :, 0]
            value = -torch.where(level.tokens < 0, law, token)
        if recipe.regression and level.hidden is not None:
            value = value + recipe.regression * F.smooth_l1_loss(level.hidden.float(), level.of(found.normed), reduction="none").mean(-1)
        for only in (level.counted, None if heard is None else level.of(heard)):
            value = value if only is None else value * only
        # a mean over all places, so that the mean over parts of a batch is that over the batch
        total = total + scale * value.mean()
        scale *= recipe.decay
    return total


@torch.no_grad()
def measure(recipe: Recipe, head: Any, windows: Tensor) -> dict[str, list]:
    """By depth, over all places of ``windows [B,L]``, the text before each being the windows' own:

    ``rank [depth][RANKS]``: share of places where the target's best token is the head's r-th; ``sampled [depth]``: mean of sum min(p, q) at T = 1.
    """
    was = head.training
    head.eval()
    found, ids = look(recipe.target, windows, head.features), recipe.ids(head)
    if (own := recipe.measure(head, found)) is not None:
        head.train(was)
        return own
    best, p, rank, sampled = found.logits.argmax(-1), found.logits.softmax(-1), [], []
    for level in recipe.levels(head, found, recipe.measured):
        top = level.logits.topk(min(RANKS, level.logits.shape[-1]), -1).indices
        q, there = level.logits.float().softmax(-1), level.of(p)
        if ids is not None:
            top, q = ids[top], torch.zeros_like(there).index_copy_(2, ids, q)
        hit = top == level.of(best)[:, :, None]
        rank.append([round(float(x), 4) for x in hit.float().mean((0, 1))])
        sampled.append(round(float(torch.minimum(there, q).sum(-1).mean()), 4))
    head.train(was)
    return {"rank": rank, "sampled": sampled}


def train_head(
    kind: str, target: Target, out: Path, settings: dict[str, Any], budget: dict[str, int], data: text.Corpus, mixture: dict[str, float], *,
    seed: int = 0, source: str = "generated", generated: Path = Path("build/generated"), note: str = "",
) -> Path:  # fmt: skip
    """Train one head and write it, in its published layout with a card, to ``out``; the same run finished is left as it is, interrupted it goes on.

    Args:
        kind: key of ``RECIPES``. settings: the kind's own. budget: steps, rows, length, and generated (tokens of the target's own text).
        source: "generated": three of four rows of a batch are text that the target wrote, as drafting meets it; "read": all of it is training text.
        note: of the budget, for the card.
    Raises:
        TrainingError: an unknown kind, setting or source, rows that do not fit the target, the text or the processes, something else in ``out``,
            or files that cannot be written.
    """
    if kind not in RECIPES:
        raise TrainingError(f"unknown head {kind!r}; known: {', '.join(RECIPES)}")
    out, generated = out.expanduser(), generated.expanduser()
    steps, rows, length = budget["steps"], budget["rows"], budget["length"]
    _check(kind, settings, target, length, source)
    _check_text(data, length)
    share(np.empty((rows, 0)))
    if "vocabulary" in settings:  # as the card is to say it
        settings = {**settings, "vocabulary": min(settings["vocabulary"], target.vocabulary)}
    place = target.device
    recipe = RECIPES[kind](target, settings)
    torch.manual_seed(seed)
    head = recipe.make(data, mixture).to(place)
    run = {"kind": kind, "settings": recipe.settings, "budget": budget, "seed": seed, "text": source, "corpus": data.sha256,
           "target": target.fingerprint, "mixture": mixture}  # fmt: skip
    if origin := recipe.begun_from():
        run["begun_from"] = origin
    identity = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
    checkpoint = out.with_name(out.name + ".checkpoint.pt")
    if finished(out, identity):
        say(f"{out} holds this head, finished")
        return out
    saved_state(checkpoint, identity)  # a run of another kind there is said before any work
    own = None
    if source == "generated":
        tokens = min(budget.get("generated") or steps * rows * length // 8, steps * rows * length)
        own = generated_text(target, data, generated, tokens=tokens, length=length, mixture=mixture, seed=seed)

    def loss(step: int) -> Tensor:
        drawn = data.batch(seed + 2, step, rows, length, mixture)
        if own is not None:
            many = rows - rows // 4
            drawn[:many] = own[np.random.Generator(np.random.Philox(key=[seed + 3, step])).integers(0, len(own), many)]
        ids = torch.from_numpy(share(drawn[:, :-1])).to(place)
        found = look(target, ids, head.features)
        return step_loss(recipe, head, found, Moment(step / steps, seed + 4, step, rows))

    windows = {d: torch.from_numpy(data.windows(d, 8, min(length, 256))[:, :-1]).to(place) for d in data.held_out}

    def acceptance() -> list[float]:
        found = [measure(recipe, head, w)["rank"] for w in windows.values()]
        return [round(sum(f[d][0] for f in found) / len(found), 3) for d in range(len(found[0]))]

    plan = Plan(steps, recipe.lr_matrix, recipe.lr_other, weight_decay=0.05, warmup=min(50, max(1, steps // 10)), decay=0.5)
    log = fit(kind, head, loss, plan, checkpoint, identity, measure=acceptance, with_adam=recipe.with_adam(head))
    card = {
        "name": kind, "run": identity, "parameters": sum(p.numel() for p in head.parameters()), **recipe.settings,
        "budget": note, **budget, "seed": seed, "text": source,
        "tokens": steps * rows * length, "device": place.type, "torch": torch.__version__, "python": platform.python_version(),
        "corpus": data.sha256, "target": target.name, "target_sha256": target.sha256,
        "last_training_loss": round(sum(log.loss[-50:]) / max(1, len(log.loss[-50:])), 4), "progress": log.measured,
        "held_out": {d: measure(recipe, head, w) for d, w in windows.items()},
    }  # fmt: skip
    with everyone() as main:
        if main:
            with writing(out), whole_folder(out) as part:
                recipe.save(head, part, card)
    said = "; ".join(f"{d} {' '.join(f'{row[0]:.2f}' for row in m['rank'])}" for d, m in card["held_out"].items())
    say(f"{kind}: held-out acceptance by position, {said}")
    return out


def _check(kind: str, settings: dict[str, Any], target: Target, length: int, source: str) -> None:
    """Before any text is read. Raises TrainingError, or MethodError for a number that it cannot be."""
    if source not in TEXTS:
        raise TrainingError(f"text must be {' or '.join(TEXTS)}, got {source!r}")
    known = RECIPES[kind].options
    for name, value in settings.items():
        if name not in known:
            raise TrainingError(f"{kind} has no setting {name!r}; its settings: {', '.join(known)}")
        usual = known[name]
        if isinstance(usual, tuple):
            if value not in usual:
                raise TrainingError(f"{kind}: {name} must be {', '.join(usual)}, got {value!r}")
        elif isinstance(usual, int):
            whole(f"{kind}: {name}", value, 1 if usual and name not in RECIPES[kind].may_be_zero else 0)
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise TrainingError(f"{kind}: {name} must be a number >= 0, got {value!r}")
    if length > target.context:
        raise TrainingError(f"rows of {length} tokens are longer than the context of {target.name!r} ({target.context})")
    least = max(RECIPES[kind](target, settings).least(), PROMPT if source == "generated" else 0) + 1
    if length < least:
        raise TrainingError(f"rows of {length} tokens are too short, {kind} needs {least} here")


def _check_text(data: text.Corpus, length: int) -> None:
    for part, streams, needed in (("training", data.train, length), ("held-out", data.held_out, min(length, 256))):
        for domain, stream in streams.items():
            if len(stream) < needed + 2:
                raise TrainingError(
                    f"the {part} text ({domain}) has {len(stream)} tokens, fewer than one row of {needed}; give more text or a smaller length"
                )


def finished(out: Path, identity: str) -> bool:
    """Whether this very run's result is in ``out``. Raises TrainingError where anything else is, or where nothing can be written."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if table(out / "card.json").get("run") == identity:
            return True
        raise TrainingError(f"{out} holds something else, or what another run made (other data, settings or seed); delete it or choose another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise TrainingError(f"cannot write to {out.parent}: {error.strerror}") from error
    return False


def train_for(
    kind: str, target: str | Path, out: Path, budget: str = "cpu", changes: dict[str, int | None] | None = None, options: str = "", *,
    source: str = "generated", generated: Path = Path("build/generated"), corpus: Path | None = None, device: str = "auto", seed: int = 0,
) -> Path:  # fmt: skip
    """:func:`train_head` with the lab recipe's settings and text: what ``specwb train`` does.

    Args: changes: steps, rows and length instead of the budget's. options: the head's own, ``name=value`` with commas.
        corpus: a text file to train on instead of the lab's text.
    """
    from specwb.training.lab import recipe

    plan = recipe()
    if budget not in plan["budget"]:
        raise TrainingError(f"unknown budget {budget!r}; the recipe has {', '.join(plan['budget'])}")
    if kind not in plan["budget"][budget]:
        raise TrainingError(f"budget {budget!r} has no {kind}; it is for {', '.join(plan['budget'][budget])}")
    settings = dict(plan["heads"][kind])
    for item in filter(None, options.split(",")):
        name, equals, value = item.partition("=")
        if not equals or name not in RECIPES[kind].options:
            raise TrainingError(f"{kind}: settings are {', '.join(RECIPES[kind].options)}, written name=value; got {item!r}")
        settings[name] = parse_value(value)
    size = {**plan["budget"][budget][kind], **{k: v for k, v in (changes or {}).items() if v is not None}}
    place = training_device(resolve_device(device))
    model = load(target, device=place)
    _check(kind, settings, model, size["length"], source)
    data, mixture = training_text(model, corpus)
    return train_head(kind, model, out, settings, size, data, mixture, seed=seed, source=source, generated=generated, note=budget)


def training_text(target: Target, corpus: Path | None) -> tuple[text.Corpus, dict[str, float]]:
    """The lab's text or a file's as the target's tokens, and the mixture of its domains.

    Raises:
        TrainingError: the target has no tokenizer. DataError: the text cannot be read.
    """
    from specwb.training.lab import recipe

    if target.tokenizer is None:
        raise TrainingError(f"{target.name!r} has no tokenizer to read text with")
    say("reading the training text")
    if corpus is not None:
        return text.from_file(corpus, target.tokenizer), {"text": 1.0}
    plan = recipe()["corpus"]
    return text.encode(text.documents(plan["packages"]), target.tokenizer), plan["mixture"]
