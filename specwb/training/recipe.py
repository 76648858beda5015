"""What a trained head is and what it predicts: one recipe a kind. Loop, text, measure and files are in :mod:`specwb.training.heads`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.models.eagle import Eagle3Head, EagleHead, eagle_config, usual_layers
from specwb.models.kangaroo import ADAPTERS, KangarooAdapter
from specwb.models.medusa import MedusaHeads
from specwb.models.target import Target
from specwb.training import corpus as text
from specwb.training.fit import TrainingError, share


@dataclass
class Level:
    """What a head says at one depth: ``logits [B,m,V']`` for the places ``start, start + stride, ..`` of the target's laws (or those of ``index
    [m]``), and the states behind them; ``counted [B,m]``: which of them the loss is about, or how much each weighs, None for all alike;
    ``tokens [B,m]``: where it is not -1, this token is learnt and not the target's law."""

    logits: Tensor
    start: int
    hidden: Tensor | None = None
    stride: int = 1
    counted: Tensor | None = None
    index: Tensor | None = None
    tokens: Tensor | None = None

    def of(self, x: Tensor) -> Tensor:
        """``[B,L,..] -> [B,m,..]``: what stands at these places."""
        return x[:, self.index] if self.index is not None else x[:, self.start :: self.stride][:, : self.logits.shape[1]]


@dataclass
class Found:
    """What the frozen target makes of a text ``ids [B,L]``: embeddings, the features a head asks for, the states that its head reads, and logits."""

    ids: Tensor
    embedded: Tensor
    features: Tensor
    normed: Tensor
    logits: Tensor


@dataclass
class Moment:
    """When in a run: ``progress`` 0..1 of its steps, and noise as a function of (seed, step) for all ``rows`` of a batch."""

    progress: float
    seed: int
    step: int
    rows: int

    def uniforms(self, columns: int, stream: int, device: torch.device) -> Tensor:
        """``[this process' rows, columns]`` in [0, 1); every use has a ``stream`` of its own."""
        return torch.from_numpy(np.ascontiguousarray(share(self._made(stream, (self.rows, columns))))).to(device)

    def number(self, stream: int) -> float:
        """One for all rows of all processes."""
        return float(self._made(stream, (1,))[0])

    def _made(self, stream: int, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.Generator(np.random.Philox(key=[self.seed * 64 + stream, self.step])).random(shape, dtype=np.float32)


class Recipe:
    """A kind of head. ``settings`` are its table in the recipe file.

    Attributes: options: the settings there are, each with its usual value, or a tuple of the words it can be, the usual one first; depth: which of
        them is the number of levels; may_be_zero: those that may be 0 though they usually are not; measured: how many levels are measured where a
        head can draft deeper than it was trained; decay: weight of a level over the one above; regression: weight of SmoothL1 between its states
        and the target's; hard: share of the target's best token in what is learnt, beside its law; lr_matrix, lr_other: learning rates.
    """

    name = ""
    options: dict[str, int | float | tuple[str, ...]] = {}  # noqa: RUF012
    depth = "unroll"
    may_be_zero: tuple[str, ...] = ()
    measured = 6
    decay = 0.8
    regression = 0.0
    hard = 0.0
    lr_matrix, lr_other = 3.5e-3, 1e-3

    def __init__(self, target: Target, settings: dict[str, Any]) -> None:
        self.target, self.settings = target, settings

    @classmethod
    def usual(cls) -> dict[str, Any]:
        """Every setting's usual value."""
        return {name: value[0] if isinstance(value, tuple) else value for name, value in cls.options.items()}

    def begun_from(self) -> str:
        """Names what a head's first weights come from, where that is more than the settings say."""
        return ""

    def make(self, data: text.Corpus, mixture: dict[str, float]) -> Any:
        raise NotImplementedError

    def levels(self, head: Any, found: Found, depth: int | None = None) -> Iterator[Level]:
        """``depth``: so many levels instead of those that are trained, where the head can draft deeper."""
        raise NotImplementedError

    def training(self, head: Any, found: Found, moment: Moment) -> Iterator[Level]:
        """What the loss is taken of in one step."""
        return self.levels(head, found)

    def loss(self, head: Any, found: Found, moment: Moment) -> Tensor | None:
        """What one step makes smaller, of heads that say something else than tokens; None is the levels' cross-entropy."""
        return None

    def measure(self, head: Any, found: Found) -> dict[str, list] | None:
        """What is found on held-out text, of such heads; ``rank [1][1]`` is what is shown."""
        return None

    def least(self) -> int:
        """Tokens a row must have."""
        return max(self.measured, self.settings[self.depth])

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


class KangarooRecipe(Recipe):
    """An adapter behind an early exit, beside the target's law of the same place. Settings: exit, adapter, own_head, layers.

    One level: what the adapter reads is exact however deep it drafts, so its accuracy after a text is that of every depth.

    Differs from Kangaroo in: it begins as the target's own layer behind the exit and its final norm, not at random; all places are counted, the
    first one too; the common loop's optimisers, rates and clipping.
    """

    name = "kangaroo"
    options = {"exit": 2, "adapter": ADAPTERS, "own_head": 0, "layers": 1}  # noqa: RUF012
    may_be_zero = ("exit",)
    measured = 1

    def __init__(self, target: Target, settings: dict[str, Any]) -> None:
        super().__init__(target, {**self.usual(), **settings})
        s, depth = self.settings, len(target.backbone.layers)
        if not 0 <= s["exit"] < depth:
            raise TrainingError(f"kangaroo: exit must be a layer with one behind it, 0..{depth - 1} here, got {s['exit']}")
        if s["adapter"] == "mlp" and s["layers"] != 1:
            raise TrainingError(f"kangaroo: adapter=mlp has one layer, got layers={s['layers']}")
        if s["own_head"] not in (0, 1):
            raise TrainingError(f"kangaroo: own_head must be 0 or 1, got {s['own_head']}")

    def make(self, data: text.Corpus, mixture: dict[str, float]) -> KangarooAdapter:
        s = self.settings
        return KangarooAdapter(eagle_config(self.target, s["layers"]), s["exit"], s["adapter"], bool(s["own_head"])).start_from(self.target)

    def least(self) -> int:
        return 1

    def levels(self, head: KangarooAdapter, found: Found, depth: int | None = None) -> Iterator[Level]:
        yield Level(head.logits(head(found.features), self.target.backbone.lm_head), 0)
