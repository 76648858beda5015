"""What a trained head is and what it predicts: one recipe for each kind of head.

Loop, text, measurement and files are in :mod:`specwb.training.heads`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specwb.core.options import Option
from specwb.models.borrowed import check_lender
from specwb.models.eagle import Eagle3Head, EagleHead, eagle_config
from specwb.models.eagle_config import usual_layers
from specwb.models.kangaroo import ADAPTERS, KangarooAdapter
from specwb.models.layers import gain
from specwb.models.medusa import MedusaHeads
from specwb.models.target import Target
from specwb.training import corpus as text
from specwb.training.fit import TrainingError, process_rows
from specwb.training.settings import count, number, word

POSITIONS = {"cpu": 64, "cuda": 4096}
"""Whose logits over the whole vocabulary are computed at once."""


@dataclass
class Predictions:
    """What a head predicts at one depth, for m of the L positions of a text: ``start``, ``start +
    stride`` and so on, or those of ``index``.

    Predictions are logits ``[B, m, d]`` over the head's words; a step computes them part by part
    (:func:`specwb.training.losses.output_loss`), since all of them at once would be many times the
    states.

    Attributes:
        states: ``[B, m, H]``, what the output layer reads.
        hidden: ``[B, m, H]``, states that are compared with the target's own, None where the loss
            does not.
        weights: ``[B, m]``, how much each prediction counts in the loss, or which of them do.
        index: ``[m]``, the positions, where they are not evenly spaced.
        labels: ``[B, m]``. Where it is not -1, this token is learnt and not the target's
            distribution.
    """

    states: Tensor
    output: nn.Linear
    start: int
    hidden: Tensor | None = None
    stride: int = 1
    weights: Tensor | None = None
    index: Tensor | None = None
    labels: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """``[B, m, d]``, all at once."""
        weight, bias = self.output.weight, self.output.bias
        return F.linear(self.states.to(weight.dtype), weight, bias)

    @property
    def best(self) -> Tensor:
        """``[B, m]``, the most probable words, by their place among the words."""
        weight, bias = self.output.weight, self.output.bias
        parts = _split(self.states.to(weight.dtype))
        best = torch.cat([F.linear(x, weight, bias).argmax(-1) for x in parts])
        return best.view(self.states.shape[:2])

    def select(self, x: Tensor) -> Tensor:
        """``[B, m, ..]``, the entries of ``x [B, L, ..]`` at these positions."""
        if self.index is not None:
            return x[:, self.index]
        return x[:, self.start :: self.stride][:, : self.states.shape[1]]

    def part(self, x: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        """``[n, ..]``, the entries at n of these positions: their rows and their places among the
        m."""
        if self.index is not None:
            return x[rows, self.index[places]]
        return x[rows, self.start + self.stride * places]

    def counts(self, outputs: TargetOutputs, wanted: Wanted) -> Tensor:
        """``[B, m]``, how much each prediction counts: not at all where its position is not one of
        ``outputs.counted``, or where there is nothing to learn."""
        total = torch.ones(self.states.shape[:2], device=self.states.device)
        if wanted.learnable is not None:
            learnable = self.select(wanted.learnable)
            if self.labels is not None:  # a token is learnt whatever the target's best one is
                learnable = learnable | (self.labels >= 0)
            total = total * learnable
        if outputs.counted is not None:
            total = total * self.select(outputs.counted)
        return total if self.weights is None else total * self.weights


@dataclass
class TargetOutputs:
    """What the frozen target computes from texts ``ids [B, L]``.

    Attributes:
        embedded: ``[B, L, H]``, the embeddings.
        features: ``[B, L, F]``, the hidden states that a head asks for.
        normed: ``[B, L, H]``, the states that the target's head reads.
        head: the target's output layer, with what a model does to its logits.
        following: ``[B, L]``, the text's token after each position; None where it is not known.
        counted: ``[B, L]``, the positions whose predictions count, those of an assistant's turns in
            conversations; None for all.
    """

    ids: Tensor
    embedded: Tensor
    features: Tensor
    normed: Tensor
    head: Callable[[Tensor], Tensor]
    following: Tensor | None = None
    counted: Tensor | None = None
    _wanted: Wanted | None = None

    @cached_property
    def logits(self) -> Tensor:
        """``[B, L, V]``, all at once: they take the most room of all that there is."""
        return self.head(self.normed).float()

    def parts(self) -> Iterator[Tensor]:
        """The logits ``[n, V]`` of the positions that count, one after another, in parts that a
        processor's caches hold."""
        for states in _split(self.normed if self.counted is None else self.normed[self.counted]):
            yield self.head(states).float()

    def wanted(self, words: Tensor | None) -> Wanted:
        """What a head with these words is to learn, computed once."""
        if self._wanted is None:
            self._wanted = Wanted(self, words)
        return self._wanted


class Wanted:
    """What a head is to learn at every position of a batch that counts, over its words; at others
    all is 0.

    Attributes:
        p: ``[B, L, d]``, the target's distribution given that the token is one of the words, in
            bfloat16 where training computes in it.
        best: ``[B, L]``, the target's most probable tokens.
        place: ``[B, L]``, their places among the words, -1 where they are none.
        mass: ``[B, L]``, how much of the target's distribution the words have, None for all.
        learnable: ``[B, L]``, None for all. Where the target's best token is none of the words
            there is nothing to learn.
        number: ``[V]``, the place of every token among the words, -1 where it is none; None where
            all are.
    """

    def __init__(self, outputs: TargetOutputs, words: Tensor | None) -> None:
        shape, device = outputs.normed.shape[:2], outputs.normed.device
        dtype = torch.float32
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        self.mass = self.learnable = self.number = None
        made: dict[str, list[Tensor]] = {"p": [], "mass": [], "best": []}
        for logits in outputs.parts():
            made["best"].append(logits.max(-1).indices)  # argmax is slower on a CPU
            if words is not None:
                if self.number is None:
                    self.number = torch.full((logits.shape[-1],), -1, device=device)
                    self.number[words] = torch.arange(len(words), device=device)
                whole = logits.logsumexp(-1)
                logits = logits[..., words]
                made["mass"].append((logits.logsumexp(-1) - whole).exp())
            made["p"].append(logits.softmax(-1).to(dtype))

        def placed(name: str) -> Tensor:
            values = torch.cat(made[name])
            if outputs.counted is None:
                return values.view(*shape, *values.shape[1:])
            every = values.new_zeros(*shape, *values.shape[1:])
            every[outputs.counted] = values
            return every

        self.p, self.best = placed("p"), placed("best")
        self.place = self.best
        if self.number is not None:
            self.mass, self.place = placed("mass"), self.number[self.best]
            self.learnable = self.place >= 0


@dataclass
class Moment:
    """A step of a run, and its noise, a function of (seed, step) for all ``rows`` of a batch.

    Attributes:
        progress: which part of the run's steps is done, 0..1.
        rows: how many rows the batch has, over all processes.
        part, parts: which part of this process' rows it is, of how many: every ``parts``-th row.
    """

    progress: float
    seed: int
    step: int
    rows: int
    part: int = 0
    parts: int = 1

    def uniforms(self, columns: int, stream: int, device: torch.device) -> Tensor:
        """``[this process' rows of this part, columns]`` in [0, 1); every use has its own
        ``stream``."""
        values = process_rows(self._random(stream, (self.rows, columns)))[self.part :: self.parts]
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    def with_noise(self, features: Tensor, range: float) -> Tensor:
        """Adds uniform noise of +-``range`` times 512 / length to features ``[B, L, F]``."""
        if not range:
            return features
        u = self.uniforms(features[0].numel(), 1, features.device).view_as(features)
        return features + (2 * u - 1) * range * 512 / features.shape[1]

    def number(self, stream: int) -> float:
        """One number in [0, 1) for all rows of all processes."""
        return float(self._random(stream, (1,))[0])

    def _random(self, stream: int, shape: tuple[int, ...]) -> np.ndarray:
        generator = np.random.Generator(np.random.Philox(key=[self.seed * 64 + stream, self.step]))
        return generator.random(shape, dtype=np.float32)


class Recipe:
    """A kind of head.

    Attributes:
        options: the settings there are.
        depth_option: which of them is the number of levels.
        measured_levels: how many levels are measured where a head can draft deeper than it was
            trained.
        regression: the weight of SmoothL1 between a level's states and the target's.
        hard: the share of the target's best token in what is learnt, beside its distribution.
        own_loss: it is trained by a loss of its own, and not by one of
            :mod:`specwb.training.losses`.
        training: the settings of its training whose defaults are its own, by name
            (:mod:`specwb.training.settings`).
    """

    name = ""
    options: Mapping[str, Option] = {}
    depth_option = "unroll"
    measured_levels = 6
    regression = 0.0
    hard = 0.0
    own_loss = False
    training: Mapping[str, Any] = {"lr": 1e-3, "weight_decay": 0.05, "cooldown": 0.5}

    def __init__(self, target: Target, settings: dict[str, Any]) -> None:
        self.target, self.settings = target, {**self.defaults(), **settings}
        self.setup()

    def setup(self) -> None:
        """Check the settings, and set what follows from them."""

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        return {name: option.default for name, option in cls.options.items()}

    def check_heads(self) -> None:
        """Refuse attention heads into which the hidden size cannot be cut."""
        hidden, heads, kv_heads = (self.settings[x] for x in ("hidden", "heads", "kv_heads"))
        if hidden % (2 * heads) or heads % kv_heads:
            raise TrainingError(
                f"{self.name}: hidden={hidden} must be a multiple of twice heads={heads}, "
                f"and heads of kv_heads={kv_heads}"
            )

    def initial_weights(self) -> str:
        """What a head's first weights come from, where settings do not say it."""
        return ""

    def make(self, words: Tensor | None) -> Any:
        """The head that training begins with; ``words`` are those that it drafts
        (:meth:`frequent`), None for all."""
        raise NotImplementedError

    def levels(
        self, head: Any, outputs: TargetOutputs, depth: int | None = None, offset: int = 0
    ) -> Iterator[Predictions]:
        """What the head predicts, level by level; ``depth``: their number, where the head can draft
        deeper than it is trained. The levels of all offsets below :meth:`stride` together are for
        all positions."""
        raise NotImplementedError

    def stride(self, head: Any) -> int:
        """The distance between the positions of a measured level."""
        return 1

    def training_levels(
        self, head: Any, outputs: TargetOutputs, moment: Moment
    ) -> Iterator[Predictions]:
        """The levels that the loss of one step is taken of."""
        return self.levels(head, outputs)

    def loss(self, head: Any, outputs: TargetOutputs, moment: Moment) -> Tensor | None:
        """The loss of a head that predicts something else than tokens; None is the cross-entropy of
        :meth:`training_levels`."""
        return None

    def measure(self, head: Any, outputs: TargetOutputs) -> dict[str, list] | None:
        """The measurements on held-out text of a head with a :meth:`loss` of its own; progress
        shows ``rank [1][1]``."""
        return None

    def min_tokens(self) -> int:
        """How many tokens a row must have."""
        return max(self.measured_levels, self.settings[self.depth_option])

    def adam_matrices(self, head: Any) -> set[str] | None:
        """The names of matrices that Muon is not for, None where these are embeddings and heads."""
        return None

    def words(self, head: Any) -> Tensor | None:
        """The target ids that a head drafts, None for all."""
        return getattr(head, "words", None)

    def frequent(self, data: text.Corpus, mixture: dict[str, float]) -> Tensor | None:
        """The ``vocabulary`` most frequent tokens of the training text, ascending; None where that
        is 0, or all."""
        count = self.settings.get("vocabulary", 0)
        if not 0 < count < self.target.vocabulary:
            return None
        ids = _by_frequency(data, mixture, self.target.vocabulary)[:count]
        return torch.from_numpy(np.sort(ids))

    @torch.no_grad()
    def balance(self, weight: Tensor) -> None:
        """Lets a matrix ``[.., 2H]`` that reads ``[embedding; feature]`` begin with as much of
        either.

        What an output layer reads may be many times as large as the embeddings (SmolLM2-135M: 1.9
        and .12), so that the token would hardly be seen beside the state."""
        backbone = self.target.backbone
        if isinstance(backbone.norm, nn.Identity):
            return
        feature = gain(backbone.norm).float().square().mean().sqrt()
        embedding = backbone.embed.weight.float().square().mean().sqrt()
        weight[:, : weight.shape[1] // 2] *= (feature / embedding).to(weight)

    def save(self, head: Any, folder: Path, card: dict[str, Any]) -> None:
        head.save(folder, card=card)


class MedusaRecipe(Recipe):
    """K heads. Head i at position t predicts the token at t + 2 + i.

    Its prediction is compared with the target's distribution of that token, which stands i + 1
    positions further.

    Settings: heads, blocks, shared (1: all say their words by the target's output layer),
    vocabulary (of shared heads: how many words they draft, the training text's most frequent
    tokens; 0 is all).

    Differs from Medusa-1 in: the target's distribution instead of the one token that the text has.
    """

    name = "medusa"
    training = {**Recipe.training, "lr": 3e-3}  # noqa: RUF012
    options = {  # noqa: RUF012
        "heads": count(3),
        "blocks": count(1),
        "shared": count(0, high=1),
        "vocabulary": count(0),
    }
    depth_option = "heads"

    def setup(self) -> None:
        if self.settings["vocabulary"] and not self.settings["shared"]:
            raise TrainingError("medusa: vocabulary is of shared heads; set shared=1")

    def make(self, words: Tensor | None) -> MedusaHeads:
        hidden = self.target.backbone.config.hidden_size
        s, vocabulary = self.settings, self.target.vocabulary
        sizes = hidden, vocabulary, s["heads"], s["blocks"], bool(s["shared"]), words
        return MedusaHeads(*sizes).start_from(self.target)

    def adam_matrices(self, head: MedusaHeads) -> set[str]:
        if head.shared:
            return set()
        return {f"{i}.{head.blocks}.weight" for i in range(head.heads)}

    def levels(
        self, head: MedusaHeads, outputs: TargetOutputs, depth: int | None = None, offset: int = 0
    ) -> Iterator[Predictions]:
        length, lm_head = outputs.features.shape[1], self.target.backbone.lm_head
        for i in range(head.heads):
            states = head.last(i, outputs.features[:, : length - 1 - i])
            yield Predictions(states, head.output(i, lm_head), 1 + i)

    def save(self, head: MedusaHeads, folder: Path, card: dict[str, Any]) -> None:
        head.save(folder, base=self.target.name, card=card)


class EagleRecipe(Recipe):
    """EAGLE-1's head, unrolled.

    Settings: layers, unroll (1 is the published training), regression (weight of the feature loss),
    noise (the range of uniform noise on features, times 512 / length; 0.1 is published), vocabulary
    (how many words it drafts, the training text's most frequent tokens; 0 is all).

    Differs from the paper in: it is trained to the depth ``unroll`` on its own states, as EAGLE-3
    is (HASS, Zhang et al. 2408.15766, does it for this head); the cross-entropy with the target's
    distribution weighs 1 where the paper has 0.1; no noise unless asked for; ``fc`` begins with as
    much of the embedding as of the feature.
    """

    name = "eagle"
    options = {  # noqa: RUF012
        "layers": count(1),
        "ffn": count(0),
        "unroll": count(3),
        "regression": number(1.0),
        "noise": number(0.0),
        "vocabulary": count(0),
    }

    def setup(self) -> None:
        self.regression = self.settings["regression"]

    def make(self, words: Tensor | None) -> EagleHead:
        layers, ffn = self.settings["layers"], self.settings["ffn"]
        config = eagle_config(self.target, layers, ffn)
        hidden = self.target.backbone.config.hidden_size
        head = EagleHead(config, hidden, words=words)
        self.balance(head.fc.weight)
        return head

    def levels(
        self, head: EagleHead, outputs: TargetOutputs, depth: int | None = None, offset: int = 0
    ) -> Iterator[Predictions]:
        # pair i: the state of position i and token i + 1; what comes out stands for the state of
        # position i + 1
        embedded, features = outputs.embedded[:, 1:], outputs.features[:, :-1]
        output = head.output(self.target.backbone.lm_head)
        unrolled = head.unroll(embedded, features, depth or self.settings["unroll"])
        for j, hidden in enumerate(unrolled):
            yield Predictions(head.last(hidden[:, j:]), output, 1 + j, hidden[:, j:])

    def training_levels(
        self, head: EagleHead, outputs: TargetOutputs, moment: Moment
    ) -> Iterator[Predictions]:
        features = moment.with_noise(outputs.features, self.settings["noise"])
        return self.levels(head, replace(outputs, features=features))


class Eagle3Recipe(EagleRecipe):
    """EAGLE-3's head (training-time test).

    Settings: unroll, vocabulary (the size of the draft vocabulary: the training text's most
    frequent tokens), own_head (0: it says its words by the target's rows and has no output layer
    of its own), normed (1: with EAGLE 3.1's norms of every feature and of what stands in their
    place below), regression (weight of the feature loss, which the paper leaves out, for normed
    heads: a normed state is compared with what the target's output layer reads).
    """

    name = "eagle3"
    options = {  # noqa: RUF012
        "unroll": count(3),
        "ffn": count(0),
        "vocabulary": count(2048),
        "own_head": count(1, 0, 1),
        "normed": count(0, high=1),
        "regression": number(0.0),
    }

    def __init__(self, target: Target, settings: dict[str, Any]) -> None:
        super().__init__(target, {**settings, "noise": 0.0})

    def setup(self) -> None:
        super().setup()
        if self.regression and not self.settings["normed"]:
            raise TrainingError("eagle3: regression compares normed states; set normed=1")

    def make(self, words: Tensor | None) -> Eagle3Head:
        target = self.target
        size = min(self.settings["vocabulary"], target.vocabulary)
        hidden = target.backbone.config.hidden_size
        layers = usual_layers(len(target.backbone.layers))
        config = eagle_config(target, ffn=self.settings["ffn"])
        own = bool(self.settings["own_head"])
        normed = bool(self.settings["normed"])
        head = Eagle3Head(
            config,
            hidden,
            layers,
            size,
            target.vocabulary,
            normed_each=normed,
            normed_output=normed,
            own_head=own,
        )
        lm_head = target.backbone.lm_head.weight.detach()
        norm = target.backbone.norm
        with torch.no_grad():
            if words is not None:
                head.speak(words)
                lm_head = lm_head[words.to(lm_head.device)]
            if head.lm_head is not None:
                head.lm_head.weight.copy_(lm_head)
            if not isinstance(norm, nn.Identity):
                head.norm.weight.copy_(gain(norm))
        return head


def _split(states: Tensor) -> tuple[Tensor, ...]:
    """States ``[.., H]`` in parts ``[n, H]``, whose logits are computed at once."""
    return states.flatten(0, -2).split(POSITIONS.get(states.device.type, POSITIONS["cpu"]))


def _by_frequency(data: text.Corpus, mixture: dict[str, float], vocabulary: int) -> np.ndarray:
    """All token ids, the most frequent of the training text first; of conversations only what an
    assistant says is counted."""

    def shares(domain: str) -> np.ndarray:
        ids = data.train[domain]
        if data.counted is not None:
            ids = ids[data.counted[domain]]
        return np.bincount(ids, minlength=vocabulary) / max(1, len(ids))

    frequency = sum(weight * shares(domain) for domain, weight in mixture.items())
    return np.argsort(-frequency, kind="stable")


class KangarooRecipe(Recipe):
    """An adapter behind an early exit, compared with the target's distribution at its position.

    Settings: exit, adapter, own_head, layers, vocabulary (how many words it drafts, the training
    text's most frequent tokens; 0 is all).

    It has one level: what the adapter reads is exact however deep it drafts, so its accuracy after
    a text is that of every depth.

    Differs from Kangaroo in: it begins as the target's own layer behind the exit and its final
    norm, not at random; all positions are counted, the first one too; the common loop's optimisers,
    rates and clipping.
    """

    name = "kangaroo"
    options = {  # noqa: RUF012
        "exit": count(2, 0),
        "adapter": word(*ADAPTERS),
        "own_head": count(0, high=1),
        "layers": count(1),
        "vocabulary": count(0),
    }
    measured_levels = 1

    def setup(self) -> None:
        s, depth = self.settings, len(self.target.backbone.layers)
        if not 0 <= s["exit"] < depth:
            wanted = f"a layer with one behind it, 0..{depth - 1} here"
            raise TrainingError(f"kangaroo: exit must be {wanted}, got {s['exit']}")
        if s["adapter"] == "mlp" and s["layers"] != 1:
            raise TrainingError(f"kangaroo: adapter=mlp has one layer, got layers={s['layers']}")
        if s["own_head"] and s["vocabulary"]:
            raise TrainingError("kangaroo: vocabulary is of adapters without own_head")

    def make(self, words: Tensor | None) -> KangarooAdapter:
        s = self.settings
        config = eagle_config(self.target, s["layers"])
        own = bool(s["own_head"])
        adapter = KangarooAdapter(config, s["exit"], s["adapter"], own, words)
        return adapter.start_from(self.target)

    def min_tokens(self) -> int:
        return 1

    def levels(
        self,
        head: KangarooAdapter,
        outputs: TargetOutputs,
        depth: int | None = None,
        offset: int = 0,
    ) -> Iterator[Predictions]:
        output = head.output(self.target.backbone.lm_head)
        yield Predictions(head.last(head(outputs.features)), output, 0)


class DraftRecipe(KangarooRecipe):
    """A draft model: some of the target's layers between its embedding and its output layer,
    distilled on its text.

    Embedding and output layer stay the target's and are not stored. It is an adapter at exit 0, and
    so a model of its own, which ``draft=`` takes.

    Settings: layers (the target's first ones, and its last), vocabulary (how many words it drafts,
    the training text's most frequent tokens; 0 is all).
    """

    name = "draft"
    options = {"layers": count(2), "vocabulary": count(0)}  # noqa: RUF012

    def __init__(self, target: Target, settings: dict[str, Any]) -> None:
        check_lender(target, "a draft model", TrainingError)
        fixed = {"exit": 0, "adapter": "layer", "own_head": 0}
        super().__init__(target, {**settings, **fixed})
        layers, there = self.settings["layers"], len(target.backbone.layers)
        if layers > there:
            raise TrainingError(f"draft: layers={layers}, and {target.name!r} has {there}")

    def make(self, words: Tensor | None) -> KangarooAdapter:
        adapter = super().make(words)
        if self.target.backbone.is_plain:
            adapter.begin_as(adapter.layers[-1], self.target.backbone.inner.layers[-1])
        return adapter
