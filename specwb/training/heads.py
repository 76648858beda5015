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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specwb.files import whole_folder
from specwb.models.eagle import Eagle3Head, EagleHead, eagle_config, usual_layers
from specwb.models.load import load, resolve_device
from specwb.models.medusa import MedusaHeads
from specwb.models.target import Target
from specwb.options import parse_value, whole
from specwb.training import corpus as text
from specwb.training.fit import Plan, TrainingError, autocast, everyone, fit, saved_state, say, share, training_device
from specwb.training.generate import PROMPT, generated_text

RANKS = 10  # how far down a drafter's list the measure looks
DEPTH = 6  # and how deep, where a head can draft deeper than it was trained
TEXTS = ("generated", "read")


@dataclass
class Level:
    """What a head says at one depth: ``logits [B,m,V']`` for the places ``start .. start + m`` of the target's laws, and the states behind them."""

    logits: Tensor
    start: int
    hidden: Tensor | None = None


@dataclass
class Found:
    """What the frozen target makes of a text ``[B,L]``: embeddings, the features a head asks for, the states that its head reads, and logits."""

    embedded: Tensor
    features: Tensor
    normed: Tensor
    logits: Tensor


class Recipe:
    """A kind of head. ``settings`` are its table in the recipe file.

    Attributes: options: the settings there are, each with a usual value; depth: which of them is the number of levels; decay: weight of a
        level over the one above; regression: weight of SmoothL1 between its states and the target's; lr_matrix, lr_other: learning rates.
    """

    name = ""
    options: dict[str, int | float] = {}  # noqa: RUF012
    depth = "unroll"
    decay = 0.8
    regression = 0.0
    lr_matrix, lr_other = 3.5e-3, 1e-3

    def __init__(self, target: Target, settings: dict[str, Any]) -> None:
        self.target, self.settings = target, settings

    def make(self, data: text.Corpus, mixture: dict[str, float]) -> Any:
        raise NotImplementedError

    def levels(self, head: Any, found: Found, depth: int | None = None) -> Iterator[Level]:
        """``depth``: so many levels instead of those that are trained, where the head can draft deeper."""
        raise NotImplementedError

    def with_adam(self, head: Any) -> set[str]:
        """Names of matrices that are rows of a vocabulary, which Muon is not for."""
        return {name for name, _ in head.named_parameters() if "lm_head" in name}

    def ids(self, head: Any) -> Tensor | None:
        """Target ids of a head's own vocabulary."""
        return None

    def save(self, head: Any, folder: Path, card: dict[str, Any]) -> None:
        head.save(folder, card=card)


class MedusaRecipe(Recipe):
    """K heads: head i at place t is put beside the target's law of token t + 2 + i, which stands i + 1 places on. Settings: heads, blocks.

    Differs from Medusa-1 in: the target's law instead of the one token that the text has.
    """

    name = "medusa"
    options = {"heads": 3, "blocks": 1}  # noqa: RUF012
    depth = "heads"

    def make(self, data: text.Corpus, mixture: dict[str, float]) -> MedusaHeads:
        heads = MedusaHeads(self.target.backbone.config.hidden_size, self.target.vocabulary, self.settings["heads"], self.settings.get("blocks", 1))
        return heads.start_from(self.target)

    def with_adam(self, head: MedusaHeads) -> set[str]:
        return {f"{i}.{head.blocks}.weight" for i in range(head.heads)}

    def levels(self, head: MedusaHeads, found: Found, depth: int | None = None) -> Iterator[Level]:
        m = found.features.shape[1]
        for i in range(head.heads):
            yield Level(head.get_submodule(str(i))(found.features[:, : m - 1 - i]), 1 + i)

    def save(self, head: MedusaHeads, folder: Path, card: dict[str, Any]) -> None:
        head.save(folder, base=self.target.name, card=card)


class EagleRecipe(Recipe):
    """EAGLE-1's head, unrolled. Settings: layers, unroll (1 is the published training), regression (weight of the feature loss).

    Differs from the paper in: it is trained to the depth ``unroll`` on its own states, as EAGLE-3 is (HASS, Zhang et al. 2408.15766, does
    it for this head); the law weighs 1 where the paper has 0.1; no noise on the features.
    """

    name = "eagle"
    options = {"layers": 1, "ffn": 0, "unroll": 3, "regression": 1.0}  # noqa: RUF012

    def __init__(self, target: Target, settings: dict[str, Any]) -> None:
        super().__init__(target, settings)
        self.regression = settings.get("regression", 1.0)

    def make(self, data: text.Corpus, mixture: dict[str, float]) -> EagleHead:
        return EagleHead(eagle_config(self.target, self.settings.get("layers", 1), self.settings.get("ffn")), self.target.backbone.config.hidden_size)

    def levels(self, head: EagleHead, found: Found, depth: int | None = None) -> Iterator[Level]:
        # pair i: the state of place i and token i + 1; what comes out stands for the state of place i + 1
        unrolled = head.unroll(found.embedded[:, 1:], found.features[:, :-1], depth or self.settings["unroll"])
        for j, hidden in enumerate(unrolled):
            yield Level(head.logits(hidden[:, j:], self.target.backbone.lm_head), 1 + j, hidden[:, j:])


class Eagle3Recipe(EagleRecipe):
    """EAGLE-3's head (training-time test). Settings: unroll, vocabulary (size of the draft vocabulary: the training text's most frequent tokens)."""

    name = "eagle3"
    options = {"unroll": 3, "ffn": 0, "vocabulary": 2048}  # noqa: RUF012

    def __init__(self, target: Target, settings: dict[str, Any]) -> None:
        super().__init__(target, {**settings, "regression": 0.0})

    def make(self, data: text.Corpus, mixture: dict[str, float]) -> Eagle3Head:
        target, size = self.target, min(self.settings["vocabulary"], self.target.vocabulary)
        hidden, layers = target.backbone.config.hidden_size, usual_layers(len(target.backbone.layers))
        head = Eagle3Head(eagle_config(target, ffn=self.settings.get("ffn")), hidden, layers, size, target.vocabulary)
        lm_head, norm = target.backbone.lm_head.weight.detach(), target.backbone.norm.weight.detach()
        with torch.no_grad():
            if head.ids is not None:
                share_of = sum(w * np.bincount(data.train[d], minlength=target.vocabulary) / len(data.train[d]) for d, w in mixture.items())
                head.speak(torch.from_numpy(np.argsort(-share_of, kind="stable")[:size].copy()))
            head.lm_head.weight.copy_(lm_head if head.ids is None else lm_head[head.ids.to(lm_head.device)])
            head.norm.weight.copy_(norm)
        return head

    def ids(self, head: Eagle3Head) -> Tensor | None:
        return head.ids


RECIPES: dict[str, type[Recipe]] = {kind.name: kind for kind in (MedusaRecipe, EagleRecipe, Eagle3Recipe)}


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
    return Found(embedded, torch.cat([every[i] for i in features], -1).float(), normed.float(), logits.float())


def _keep(kept: dict[int, Tensor], i: int) -> Any:
    def hook(module: nn.Module, args: Any, out: Any) -> None:
        kept[i] = out[0] if isinstance(out, tuple) else out

    return hook


def _loss(recipe: Recipe, head: Any, found: Found) -> Tensor:
    ids, total, scale = recipe.ids(head), torch.zeros((), device=found.logits.device), 1.0
    logits = found.logits if ids is None else found.logits[..., ids]
    # where the target's best token is not in the draft vocabulary there is nothing to learn
    heard = None if ids is None else torch.isin(found.logits.argmax(-1), ids)
    p = logits.softmax(-1)
    for level in recipe.levels(head, found):
        wanted = p[:, level.start :].flatten(0, 1)
        value = F.cross_entropy(level.logits.flatten(0, 1).float(), wanted, reduction="none")
        # a mean over all places, so that the mean over parts of a batch is that over the batch
        value = (value if heard is None else value * heard[:, level.start :].flatten()).mean()
        if recipe.regression and level.hidden is not None:
            value = value + recipe.regression * F.smooth_l1_loss(level.hidden.float(), found.normed[:, level.start :])
        total = total + scale * value
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
    best, p, rank, sampled = found.logits.argmax(-1), found.logits.softmax(-1), [], []
    for level in recipe.levels(head, found, DEPTH):
        top = level.logits.topk(min(RANKS, level.logits.shape[-1]), -1).indices
        q = level.logits.float().softmax(-1)
        if ids is not None:
            top, q = ids[top], torch.zeros_like(p[:, level.start :]).index_copy_(2, ids, q)
        hit = top == best[:, level.start :, None]
        rank.append([round(float(x), 4) for x in hit.float().mean((0, 1))])
        sampled.append(round(float(torch.minimum(p[:, level.start :], q).sum(-1).mean()), 4))
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
    if source not in TEXTS:
        raise TrainingError(f"text must be {' or '.join(TEXTS)}, got {source!r}")
    steps, rows, length = budget["steps"], budget["rows"], budget["length"]
    _check(kind, settings, target, data, length, source)
    share(np.empty((rows, 0)))
    if "vocabulary" in settings:  # as the card is to say it
        settings = {**settings, "vocabulary": min(settings["vocabulary"], target.vocabulary)}
    place = target.device
    recipe = RECIPES[kind](target, settings)
    torch.manual_seed(seed)
    head = recipe.make(data, mixture).to(place)
    run = {"kind": kind, "settings": settings, "budget": budget, "seed": seed, "text": source, "corpus": data.sha256,
           "target": target.fingerprint, "mixture": mixture}  # fmt: skip
    identity = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
    checkpoint = out.with_name(out.name + ".checkpoint.pt")
    if _finished(out, identity):
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
        return _loss(recipe, head, found)

    windows = {d: torch.from_numpy(data.windows(d, 8, min(length, 256))[:, :-1]).to(place) for d in data.held_out}

    def acceptance() -> list[float]:
        found = [measure(recipe, head, w)["rank"] for w in windows.values()]
        return [round(sum(f[d][0] for f in found) / len(found), 3) for d in range(len(found[0]))]

    plan = Plan(steps, recipe.lr_matrix, recipe.lr_other, weight_decay=0.05, warmup=min(50, max(1, steps // 10)), decay=0.5)
    log = fit(kind, head, loss, plan, checkpoint, identity, measure=acceptance, with_adam=recipe.with_adam(head))
    card = {
        "name": kind, "run": identity, "parameters": sum(p.numel() for p in head.parameters()), **settings,
        "budget": note, **budget, "seed": seed, "text": source,
        "tokens": steps * rows * length, "device": place.type, "torch": torch.__version__, "python": platform.python_version(),
        "corpus": data.sha256, "target": target.name, "target_sha256": target.sha256,
        "last_training_loss": round(sum(log.loss[-50:]) / max(1, len(log.loss[-50:])), 4), "progress": log.measured,
        "held_out": {d: measure(recipe, head, w) for d, w in windows.items()},
    }  # fmt: skip
    with everyone() as main:
        if main:
            with whole_folder(out) as part:
                recipe.save(head, part, card)
    said = "; ".join(f"{d} {' '.join(f'{row[0]:.2f}' for row in m['rank'])}" for d, m in card["held_out"].items())
    say(f"{kind}: held-out acceptance by position, {said}")
    return out


def _check(kind: str, settings: dict[str, Any], target: Target, data: text.Corpus, length: int, source: str) -> None:
    """Raises TrainingError, or MethodError for a setting that is no number it can be."""
    known = RECIPES[kind].options
    for name, value in settings.items():
        if name not in known:
            raise TrainingError(f"{kind} has no setting {name!r}; its settings: {', '.join(known)}")
        if isinstance(known[name], int):
            whole(f"{kind}: {name}", value, 1 if known[name] else 0)
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise TrainingError(f"{kind}: {name} must be a number >= 0, got {value!r}")
    if length > target.context:
        raise TrainingError(f"rows of {length} tokens are longer than the context of {target.name!r} ({target.context})")
    least = max(DEPTH, settings[RECIPES[kind].depth], PROMPT if source == "generated" else 0) + 1
    if length < least:
        raise TrainingError(f"rows of {length} tokens are too short, {kind} needs {least} here")
    for part, streams, needed in (("training", data.train, length), ("held-out", data.held_out, min(length, 256))):
        for domain, stream in streams.items():
            if len(stream) < needed + 2:
                raise TrainingError(
                    f"the {part} text ({domain}) has {len(stream)} tokens, fewer than one row of {needed}; give more text or a smaller length"
                )


def _finished(out: Path, identity: str) -> bool:
    """Whether this very run's head is in ``out``. Raises TrainingError where anything else is, or where nothing can be written."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        card = out / "card.json"
        if card.is_file() and json.loads(card.read_text()).get("run") == identity:
            return True
        raise TrainingError(f"{out} holds something else, or a head of another run (other data, settings or seed); delete it or choose another --out")
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
    settings = dict(plan["heads"][kind])
    for item in filter(None, options.split(",")):
        name, equals, value = item.partition("=")
        if not equals or name not in RECIPES[kind].options:
            raise TrainingError(f"{kind}: settings are {', '.join(RECIPES[kind].options)}, written name=value; got {item!r}")
        settings[name] = parse_value(value)
    size = {**plan["budget"][budget][kind], **{k: v for k, v in (changes or {}).items() if v is not None}}
    place = training_device(resolve_device(device))
    model = load(target, device=place)
    if model.tokenizer is None:
        raise TrainingError(f"{model.name!r} has no tokenizer to read text with")
    say("reading the training text")
    if corpus is None:
        data, mixture = text.encode(text.documents(plan["corpus"]["packages"]), model.tokenizer), plan["corpus"]["mixture"]
    else:
        data, mixture = text.from_file(corpus, model.tokenizer), {"text": 1.0}
    return train_head(kind, model, out, settings, size, data, mixture, seed=seed, source=source, generated=generated, note=budget)
