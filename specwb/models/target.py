"""The target: the model whose distribution is preserved."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from specwb.files import weights_hash
from specwb.flow import BUCKET, Draft, Scores, State, Verdict
from specwb.inputs import eos_ids, is_many
from specwb.models.backbone import Backbone, Run
from specwb.models.cache import KVCache
from specwb.models.folder import LoadError, card_of
from specwb.models.layout import run_paths
from specwb.probability import Sampling

T = TypeVar("T")


class Target:
    """A loaded model with its tokenizer; ``score`` is one forward over a whole draft tree.

    The backbone shares the model's weights: move or cast the model before it is wrapped, not after.

    Attributes: model (the Hugging Face model, weights shared), backbone, tokenizer, eos (ids), context, name, draft (default draft or None),
        folder (where it was loaded from, None where that is no local folder), heads (folder of its own trained heads, each under its method's name).
    """

    def __init__(
        self, model: Any, tokenizer: Any = None, name: str = "model", draft: str | None = None, folder: Path | None = None, heads: Path | None = None
    ) -> None:  # fmt: skip
        self.model, self.tokenizer, self.name, self.draft, self.folder, self.heads = model, tokenizer, name, draft, folder, heads
        self.backbone = Backbone(model)
        self.agreed: Callable[[Tensor], Tensor] | None = None  # of a target that several processes share: rank 0's
        eos = getattr(model.generation_config, "eos_token_id", None)
        eos = eos if eos is not None else getattr(tokenizer, "eos_token_id", None)
        self.eos: list[int] = [] if eos is None else list(eos) if is_many(eos) else [eos]
        self.context = int(getattr(model.config, "max_position_embeddings", 2**31))
        self._loaded: dict[tuple[Hashable, str], tuple[int, Any]] = {}

    def __repr__(self) -> str:
        layers, kind = len(self.backbone.layers), str(self.dtype).removeprefix("torch.")
        size = f"{self.model.config.model_type}, {layers} layers, {self.vocabulary} tokens"
        return f"Target({self.name!r}: {size}, {kind} on {self.device})"

    def __getstate__(self) -> dict[str, Any]:
        """Without what is made again from the rest: the backbone, and models loaded beside it.

        The model's weights are views of the backbone's fused ones; ``torch.save`` writes memory
        that several tensors share once, where ``pickle`` would write it for each of them.
        """
        if self.agreed is not None:
            raise TypeError(f"{self.name!r} is parted among processes and cannot be pickled")
        stored = io.BytesIO()
        torch.save(self.model, stored)
        anew = {"model", "backbone", "_loaded"}
        state = {name: value for name, value in vars(self).items() if name not in anew}
        return {**state, "_stored": stored.getvalue()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        stored = io.BytesIO(state.pop("_stored"))
        vars(self).update(state)
        # whoever unpickles this runs what the pickle says already
        self.model = torch.load(stored, weights_only=False)
        self.backbone, self._loaded = Backbone(self.model), {}

    def __copy__(self) -> Target:
        """Another target with the same weights, which loads for itself what is loaded beside it."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), _loaded={})
        return other

    def loaded(self, kind: Hashable, place: str | Path, make: Callable[[], T]) -> T:
        """What was made for this target of the files at a place: heads, drafts, counted n-grams.

        It is made once, however many methods use it, and made again when a file there was written
        anew.

        Args:
            kind: what is made of the files; one place may have several kinds.
            place: a file, a folder, or a hub id, whose files are never looked at again.
            make: makes it. What it raises is raised here, and nothing is remembered then.
        """
        path = Path(place).expanduser()
        files = [path] if path.is_file() else path.glob("*")
        written = max((file.stat().st_mtime_ns for file in files), default=0)
        key = kind, str(place)
        if key not in self._loaded or self._loaded[key][0] != written:
            self._loaded[key] = written, make()
        return self._loaded[key][1]

    @cached_property
    def sha256(self) -> str | None:
        """Of its weight files, None where they are not in a local folder: what trained heads name their target by."""
        return weights_hash(self.folder) if self.folder is not None else None

    @cached_property
    def fingerprint(self) -> str:
        """:attr:`sha256`, or one of the weights in memory where there are no files: what text that the target wrote is kept under."""
        if self.sha256 is not None:
            return self.sha256
        digest = hashlib.sha256()
        for name, weight in sorted(self.model.state_dict().items()):
            digest.update(name.encode() + weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def own_head(self, kind: str) -> Path | None:
        """The folder of a trained head that lies beside this target and whose card names it; None where there is none."""
        place = None if self.heads is None else self.heads / kind
        try:
            trained = None if place is None else card_of(place).get("target_sha256")
        except LoadError:
            return None
        return place if trained and trained == self.sha256 else None

    @property
    def ends(self) -> list[int]:
        """:attr:`eos`, checked: the ids that end a row where none are named.

        Raises:
            ValueError: one of them is no id of the vocabulary.
        """
        source = f"eos of {self.name!r} (its generation_config or tokenizer; eos=.. names others)"
        return eos_ids(self.eos, self.vocabulary, source)

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.dtype

    @property
    def vocabulary(self) -> int:
        return self.backbone.vocabulary

    def open(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: Sequence[int], spare: int, sampling: Sampling,
        eos: Sequence[int], features: tuple[int, ...] = (), static: bool = False,
    ) -> State:  # fmt: skip
        """A state with every prompt but its last token processed; ``spare`` slots are kept free for a draft beyond the limit."""
        device = self.device
        lengths = [len(p) for p in prompts]
        limits = [n + m for n, m in zip(lengths, max_new_tokens, strict=True)]
        # decodings of like length share their graphs: a power of two of buckets
        ceiling = BUCKET << (-(-max(limits) // BUCKET) - 1).bit_length() if static else max(limits)
        capacity = ceiling + spare
        tokens = torch.zeros(len(prompts), capacity, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        tokens = tokens.to(device)
        known = torch.tensor(lengths, device=device)
        state = State(
            tokens, known, known.clone(), torch.tensor(limits, device=device), torch.zeros(len(prompts), dtype=torch.bool, device=device),
            torch.tensor(list(eos), dtype=torch.long, device=device), sampling, max(lengths), self.backbone.cache(len(prompts), capacity), ceiling,
        )  # fmt: skip
        found = prefill(self.backbone, state, state.cache, features)
        if features:
            assert found is not None
            state.features = torch.zeros(len(prompts), capacity, found.shape[-1], dtype=found.dtype, device=device)
            state.features[:, : found.shape[1]] = found
        return state

    def score(self, state: State, draft: Draft, features: tuple[int, ...] = (), layout: str = "tree") -> Scores:
        """ONE forward over the whole tree: logits after every node. Where the draft brings states (``draft.hidden``), through the layers behind them.

        ``layout``: "tree" is one sequence a row with a tree mask; "batch" a row for every leaf path, without one (of a chain they are the
        same). Scores and the draft's slots of the cache are equal up to rounding.
        """
        tree = draft.tree
        if layout == "batch" and not (tree.is_chain and tree.v == tree.n):
            hidden, found = run_paths(self.backbone, state, draft, features)
            return Scores(self._logits(hidden), state.sampling, found)
        base = (state.known - 1)[:, None]
        positions = base + tree.depth
        slots = base + torch.arange(tree.n, device=base.device)
        extent = state.horizon - 1 + tree.n
        everything = tree.n == 1 and state.rows == 1 and not state.static  # one query that sees all there is needs no mask
        mask = None if everything else state.tree_mask(tree, self.dtype)
        x = self.backbone.embed(draft.tokens) if draft.hidden is None else draft.hidden
        hidden, found = self.backbone.run(x, positions, slots, state.cache, extent, mask, first=draft.start_layer, features=features)
        return Scores(self._logits(hidden), state.sampling, found)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.backbone.head(hidden)
        return logits if self.agreed is None else self.agreed(logits)

    def commit(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        """Keep what was accepted: keys, values and features move to the slots of their positions."""
        base = state.known - 1
        if not draft.tree.is_chain:
            state.cache.keep(base, verdict.path)
        if scores.features is not None and state.features is not None:
            width = verdict.path.shape[1]
            index = (base[:, None] + torch.arange(width, device=base.device))[:, :, None].expand(-1, -1, scores.features.shape[-1])
            kept = scores.features.gather(1, verdict.path[:, :, None].expand(-1, -1, scores.features.shape[-1]))
            state.features.scatter_(1, index, kept)


def prefill(
    backbone: Backbone,
    state: State,
    cache: KVCache,
    features: tuple[int, ...] = (),
    run: Run | None = None,
) -> Tensor | None:
    """Processes positions 0..known-2 of every row, without the head.

    What is computed of a short row past its end is overwritten before it is seen.

    Args:
        backbone: the model that reads the text.
        state: the texts.
        cache: where the keys and values go.
        features: the numbers of the layers whose hidden states are wanted.
        run: how the layers run, default ``backbone.run``.
    Returns:
        the features of these positions, ``[B, horizon - 1, len(features) * H]``, or None.
    """
    m, rows = state.horizon - 1, state.rows
    if m == 0:
        width = len(features) * backbone.config.hidden_size
        empty = torch.zeros(rows, 0, width, dtype=backbone.dtype, device=backbone.device)
        return empty if features else None
    positions = torch.arange(m, device=backbone.device).expand(rows, m)
    x = backbone.embed(state.tokens[:, :m])
    forward = backbone.run if run is None else run
    return forward(x, positions, positions, cache, m, None, causal=True, features=features)[1]
