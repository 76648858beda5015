"""Why a head accepts what it accepts: its guesses at the places of the target's own answers.

At a place of an answer, given the target's text before it, the head's most probable token is
compared with the target's, and both distributions by ``sum min(p, q)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.core.progress import progress
from specwb.engine.decoding import decode
from specwb.models.checkpoint import opened
from specwb.models.diffusion import load_diffusion
from specwb.models.eagle import Eagle3Head, load_eagle
from specwb.models.falcon import load_falcon
from specwb.models.folder import SAFE
from specwb.models.kangaroo import load_kangaroo
from specwb.models.load import draft_model
from specwb.models.medusa import load_medusa
from specwb.models.target import Target
from specwb.training.fit import TrainingError
from specwb.training.heads import RECIPES, target_outputs
from specwb.training.recipe import Predictions, Recipe, TargetOutputs

LOADERS: dict[str, Callable[..., Any]] = {
    "eagle": load_eagle,
    "eagle3": load_eagle,
    "medusa": load_medusa,
    "falcon": load_falcon,
    "kangaroo": load_kangaroo,
    "diffusion": load_diffusion,
    "draft": draft_model,
    "deep": draft_model,
}
ROWS = 16  # answers that are written together
DEPTH = 6  # levels of draft models and adapters
BEHIND = 16  # positions behind a text, which no guess for the text sees
BOUNDS = (0.2, 0.4, 0.6, 0.8, 0.95)
CERTAINTIES = ("below .2", ".2 to .4", ".4 to .6", ".6 to .8", ".8 to .95", "above .95")
TOKENS = ("continues a word", "digit", "line break", "punctuation", "word", "end of text")
OLD_CARD = "held-out training text, all its tokens (of conversations users' turns and template too)"


@dataclass
class Measured:
    """A head or draft model that is measured; ``recipe`` is None of a draft model."""

    kind: str
    head: Any
    recipe: Recipe | None
    card: dict[str, Any]

    @property
    def depth(self) -> int:
        """How many levels are measured."""
        if self.kind == "medusa":
            return self.head.heads
        if self.recipe is None or self.kind == "kangaroo":
            return DEPTH
        return self.recipe.measured_levels

    @property
    def words(self) -> Tensor | None:
        """The ids that it drafts, None for all."""
        return getattr(self.head, "words", None)

    def levels(self, outputs: TargetOutputs) -> Iterator[tuple[int, Predictions]]:
        """Yields its predictions with their depth, counted from 0, for all positions."""
        if self.recipe is None:
            inner, _ = self.head.decoder
            states = inner(input_ids=outputs.ids, use_cache=False).last_hidden_state
            yield from (
                (d, Predictions(states, self.head.backbone.lm_head, 0)) for d in range(DEPTH)
            )
            return
        if getattr(self.head, "embed_tokens", None) is not None:
            outputs = replace(outputs, embedded=self.head.embed_tokens(outputs.ids))
        for offset in range(self.recipe.stride(self.head)):
            levels = list(self.recipe.levels(self.head, outputs, self.depth, offset))
            # an adapter's guess after a text is that of every depth
            yield from enumerate(levels * self.depth if self.kind == "kangaroo" else levels)


def load_measured(source: str | Path, target: Target) -> Measured:
    """The head or draft model in a folder, or the target's own of a kind.

    Args:
        source: a folder, a hub id, or a kind (``eagle``).
        target: the model for which it drafts.
    Raises:
        HeadError: no such folder, or what is in it is for another target.
        TrainingError: what is in it drafts no tokens, or in a way that is not measured here.
    """
    place = source
    if str(source) in LOADERS:
        place = target.own_head(str(source)) or ""
        if not place:
            raise TrainingError(f"{target.name!r} has no {source} of its own; name a folder")
    medusa = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
    with opened(place, target, (*medusa, *SAFE), lambda key: "fc.weight" in key) as stored:
        kind, card = stored.card.get("name") or _kind(stored.config, stored.weights), stored.card
    if kind not in LOADERS:
        raise TrainingError(f"{place} holds {kind}, which drafts no tokens of its own")
    head = LOADERS[kind](*((target, place) if LOADERS[kind] is draft_model else (place, target)))
    if LOADERS[kind] is draft_model:
        return Measured(kind, head, None, card)
    settings: dict[str, Any] = {}
    if kind == "kangaroo":
        settings = {"exit": head.exit}
    elif kind == "diffusion":
        if not (head.causal and head.shift):
            raise TrainingError(f"{place}: only diffusion models trained here are measured")
        layers = len(head.net.model.layers)
        settings = {"start": "target" if head.shared else "none", "layers": layers}
    elif kind in ("eagle", "eagle3"):
        kind = "eagle3" if isinstance(head, Eagle3Head) else "eagle"
    return Measured(kind, head.float(), RECIPES[kind](target, settings), card)


def _kind(config: dict[str, Any], weights: dict[str, Tensor]) -> str:
    """The kind of what a folder without a card holds; ``weights``: those that only EAGLE's heads
    and their like have."""
    if "exit_layer" in config:
        return "draft" if config["exit_layer"] == 0 else "kangaroo"
    if "specwb_diffusion" in config or config.get("model_type") in ("Dream", "llada"):
        return "diffusion"
    if "medusa_num_heads" in config:
        return "medusa"
    if config.get("k_mask", 1) != 1:
        return "falcon"
    return "eagle" if weights else "draft"


def write_answers(
    target: Target, prompts: Sequence[list[int]], tokens: int, temperature: float, seed: int
) -> list[tuple[list[int], list[int]]]:
    """The token ids of each prompt and of the target's answer by plain decoding, at most ``tokens``
    long; prompts that get none are left out. The context must have room for ``BEHIND`` more.

    Raises:
        TrainingError: none is answered.
    """
    settings: dict[str, Any] = {"max_new_tokens": tokens, "temperature": temperature}
    answers: list[list[int]] = []
    with progress("answering", lasting=True) as move:
        for i in range(0, len(prompts), ROWS):
            move(i / len(prompts), f"answer {i + 1} of {len(prompts)}")
            part = prompts[i : i + ROWS]
            seeds = [seed + i + j for j in range(len(part))]
            answers += decode(target, part, "ar", seed=seeds, eos=target.ends, **settings).tokens
    pairs = zip(prompts, answers, strict=True)
    answered = [(ids, row) for ids, row in pairs if row and row[0] not in target.ends]
    if not answered:
        count = f"none of {len(prompts)} prompts"
        raise TrainingError(f"there is nothing to measure: {target.name!r} answers {count}")
    return answered


def measure_answers(
    target: Target,
    measured: Measured,
    answers: Sequence[tuple[list[int], list[int]]],
    temperature: float,
) -> dict[str, Any]:
    """The head's guesses at the places of answers.

    Depth d is measured from the d-th token of an answer on, its d - 1 tokens before being the
    answer's: what a chain meets whose first tokens were accepted.

    Args:
        target: the model.
        measured: the head, :func:`load_measured`.
        answers: prompts with their answers, :func:`write_answers`.
        temperature: of the distributions; 1 where it is 0.
    Returns:
        ``depths``, ``certainty`` and ``tokens``: rows with ``places``, ``right`` (the share of
        places where the target's most probable token is the head's), ``overlap`` (the mean of
        sum min(p, q)) and ``covered`` (the share where the head can say that token); of a depth
        also ``chain`` (the share of places from which it and all before it are right) and the
        card's ``card_right`` and ``card_overlap``. ``by_answer``: places and right first guesses of
        each answer.
    """
    seen = []
    with progress("measuring", lasting=True) as move:
        for i, (prompt, answer) in enumerate(answers):
            move(i / len(answers), f"guesses in answer {i + 1} of {len(answers)}")
            seen.append(guesses(target, measured, prompt, answer, temperature or 1.0))
    every = {name: torch.cat([one[name] for one in seen], -1) for name in seen[0]}
    right = every["right"]

    def row(name: str, depth: int, where: Tensor) -> dict[str, Any]:
        where = where & ~right[depth].isnan()
        values = (("right", right[depth]), ("overlap", every["overlap"][depth]))
        means = {key: x[where].mean() for key, x in (*values, ("covered", every["covered"]))}
        rounded = {key: round(float(x), 4) for key, x in means.items() if where.any()}
        return {"name": name, "places": int(where.sum()), **rounded}

    depths = [row(f"depth {d + 1}", d, right[d] >= 0) for d in range(len(right))]
    tables = [table for table in measured.card.get("held_out", {}).values() if "rank" in table]
    for d, entry in enumerate(depths):
        entry["chain"] = round(float(every["chain"][d].nanmean()), 4)
        if on_card := [table for table in tables if d < len(table["rank"])]:
            entry["card_right"] = round(fmean(table["rank"][d][0] for table in on_card), 4)
            entry["card_overlap"] = round(fmean(table["sampled"][d] for table in on_card), 4)
    bins = torch.bucketize(every["certainty"], torch.tensor(BOUNDS))
    return {
        "depths": depths,
        "certainty": [row(name, 0, bins == i) for i, name in enumerate(CERTAINTIES)],
        "tokens": [row(name, 0, every["token"] == i) for i, name in enumerate(TOKENS)],
        "by_answer": [[one["right"].shape[1], int(one["right"][0].sum())] for one in seen],
    }


@torch.no_grad()
def guesses(
    target: Target, measured: Measured, prompt: list[int], answer: list[int], temperature: float
) -> dict[str, Tensor]:
    """What a head guesses at n places of an answer: ``right``, ``overlap`` and ``chain [depth, n]``
    (of the chain that begins there), NaN where a depth is not measured; ``covered``, ``certainty``
    and ``token [n]``, a place in ``TOKENS``."""
    ids = [*prompt, *answer, *[answer[-1]] * BEHIND]
    features = () if measured.recipe is None else measured.head.features
    outputs = target_outputs(target, torch.tensor([ids], device=target.device), features, False)
    first, n, words = len(prompt) - 1, len(answer), measured.words
    logits = outputs.head(outputs.normed[0, first : first + n]).float()
    best, p = logits.argmax(-1), (logits / temperature).softmax(-1)
    positions = torch.arange(len(ids), device=target.device)[None] - first
    right, overlap = torch.full((2, measured.depth, n), torch.nan, device=target.device)
    for depth, level in measured.levels(outputs):
        at = level.select(positions)[0]
        in_answer = (at >= depth) & (at < n)
        states, at = level.states[0, in_answer], at[in_answer]
        weight, bias = level.output.weight, level.output.bias
        q = F.linear(states.to(weight.dtype), weight, bias).float()
        guess, wanted = q.argmax(-1), p[at]
        if words is not None:
            guess, wanted = words[guess], wanted[:, words]
        right[depth, at] = (guess == best[at]).float()
        overlap[depth, at] = torch.minimum(wanted, (q / temperature).softmax(-1)).sum(-1)
    # of a chain that begins at place i, depth d stands at place i + d
    chains = [F.pad(r[d:], (0, d), value=torch.nan) for d, r in enumerate(right)]
    before = ids[first : first + n]
    tokens = [token_kind(target, *pair) for pair in zip(before, best.tolist(), strict=True)]
    known = torch.ones(n) if words is None else torch.isin(best, words).float()
    return {
        "right": right.cpu(),
        "overlap": overlap.cpu(),
        "chain": torch.stack(chains).cumprod(0).cpu(),
        "covered": known.cpu(),
        "certainty": p.amax(-1).cpu(),
        "token": torch.tensor([TOKENS.index(kind) for kind in tokens]),
    }


def token_kind(target: Target, before: int, token: int) -> str:
    """Which of ``TOKENS`` a token behind another one is."""
    tokenizer: Any = target.tokenizer
    if token in target.ends or token in tokenizer.all_special_ids:
        return "end of text"
    text = tokenizer.decode([before])
    piece = tokenizer.decode([before, token])[len(text) :]
    if not piece.strip():
        return "line break"
    if any(letter.isdigit() for letter in piece):
        return "digit"
    if not any(letter.isalpha() for letter in piece):
        return "punctuation"
    return "continues a word" if text[-1:].isalpha() and piece[0].isalpha() else "word"
