"""The target: the model whose distribution is preserved."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from tqdm import tqdm

from specwb.core.errors import ArgumentError
from specwb.core.files import home, weights_hash
from specwb.core.flow import BUCKET, Draft, Scores, State, Verdict, put, taken
from specwb.core.inputs import eos_ids, is_many
from specwb.core.probability import Sampling
from specwb.models.architectures import UnsupportedModel, check_causal, context
from specwb.models.attention import backends
from specwb.models.backbone import Backbone, LayerRunner
from specwb.models.cache import KVCache
from specwb.models.device import described, is_spread
from specwb.models.folder import LoadError, card_of
from specwb.models.generic import GenericBackbone
from specwb.models.hooks import HookedModel, check_unhooked, check_whole
from specwb.models.layout import run_paths
from specwb.models.place import Place
from specwb.models.products import MOST, one_thread
from specwb.models.ranks import here

T = TypeVar("T")
CHUNK = 4096  # positions of a prompt that go through the layers together, at most
CELLS = 2**25  # numbers of a mask at most, unless LEAST positions have more
LEAST = 256  # fewer positions do not go through the layers together for that


logger = logging.getLogger("specwb")


def backbone_of(model: Any, generic: bool = False) -> Backbone:
    """What runs a model: the fast backbone where there is one for it, otherwise the generic one,
    which is in the same terms."""
    check_causal(model.config)
    reason = "it was asked for"
    if is_spread(model):
        generic, reason = True, described(model)
    if not generic:
        try:
            return Backbone(model)
        except HookedModel:
            raise
        except UnsupportedModel as error:
            reason = str(error)
    return cast(Backbone, GenericBackbone(model, reason))


def check_target(target: object) -> None:
    """Checks that a target is one that :func:`specwb.load` returns."""
    if not isinstance(target, Target):
        kind = type(target).__name__
        given = f"{kind} {target!r}" if isinstance(target, str) else kind
        raise ArgumentError(f"target must come from specwb.load(...), got {given}")


def memory_hash(module: nn.Module) -> str:
    """The sha256 of a module's weights as they are in memory, in hexadecimal digits."""
    digest = hashlib.sha256()
    for name, weight in sorted(module.state_dict().items()):
        flat = weight.detach().cpu().contiguous().flatten()
        digest.update(name.encode() + flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Target:
    """A loaded model with its tokenizer; ``score`` is one forward over a whole draft tree.

    The backbone shares the model's weights: move or cast the model before it is wrapped, not after.

    Attributes:
        model: the Hugging Face model, whose weights are shared.
        backbone: what runs it: the fast one where its architecture has one.
        tokenizer: its tokenizer, or None.
        eos: the ids that end a text.
        context: how many tokens a text may have.
        name: what messages call it.
        draft: its default draft model, or None.
        folder: where it was loaded from; None where that is no local folder.
        heads: the folder of its own trained heads, each under its method's name.
        generic: it runs by the library's own forward, whatever its architecture.
        revision: of a model from the hub its commit.
        words: of a draft model that borrows its target's output layer, the ids that it has rows
            for (:mod:`specwb.models.words`); None for all.
        agreed: of a target that several processes share, makes the logits rank 0's.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        name: str = "model",
        draft: str | None = None,
        folder: Path | None = None,
        heads: Path | None = None,
        generic: bool = False,
    ) -> None:
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self.draft, self.folder, self.heads, self.generic = draft, folder, heads, generic
        self.backbone = backbone_of(model, generic)
        if self.backbone.whole:
            why = self.backbone.reason
            logger.warning("%s runs by the library's own forward, which is slower: %s", name, why)
        self.agreed: Callable[[Tensor], Tensor] | None = None
        self.words: Tensor | None = None
        self.revision: str | None = None
        eos = getattr(model.generation_config, "eos_token_id", None)
        eos = eos if eos is not None else getattr(tokenizer, "eos_token_id", None)
        self.eos: list[int] = [] if eos is None else list(eos) if is_many(eos) else [eos]
        self.context = context(model.config)
        self._loaded: dict[tuple[Hashable, str], tuple[int, Any]] = {}

    def __repr__(self) -> str:
        layers, kind = len(self.backbone.layers), str(self.dtype).removeprefix("torch.")
        size = f"{self.model.config.model_type}, {layers} layers, {self.vocabulary} tokens"
        way = ", by the library's forward" if self.backbone.whole else ""
        return f"Target({self.name!r}: {size}, {kind} on {self.device}{way})"

    def __copy__(self) -> Target:
        """Another target with the same weights, which loads for itself what is loaded beside it."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), _loaded={})
        return other

    def __reduce__(self) -> str:
        raise TypeError(f"{self.name!r} is not pickled or copied deeply: load it again")

    def loaded(self, kind: Hashable, place: str | Path, make: Callable[[], T]) -> T:
        """What was made for this target of the files at a place: heads, drafts, counted n-grams.

        It is made once, however many methods use it, and made again when a file there (not a hub
        id's) was written anew. ``kind``: what is made of the files; one place may have several
        kinds. Where ``make`` raises, nothing is remembered."""
        path = home(place)
        files = [path] if path.is_file() else path.glob("*")
        written = max((file.stat().st_mtime_ns for file in files if file.exists()), default=0)
        key = kind, str(place)
        if key not in self._loaded or self._loaded[key][0] != written:
            self._loaded[key] = written, make()
        return self._loaded[key][1]

    def check_hooks(self) -> None:
        """Checks that nothing was put on the model's modules, or in the place of a module or
        weight, that its way to run would ignore."""
        if self.backbone.whole:
            check_whole(self.model, self.name)
            return
        check_unhooked(self.model, self.name)
        # a draft model of some words has another output layer than its backbone
        if self.words is None and not self.backbone.is_of(self.model):
            raise HookedModel(
                f"{self.name}: modules or weights of the model were replaced, moved or cast after "
                "it was loaded, which would be ignored; edit weights in place, or load it again"
            )

    @cached_property
    def sha256(self) -> str | None:
        """The checksum of its weight files, by which trained heads name their target; None where
        they are not in a local folder."""
        return weights_hash(self.folder) if self.folder is not None else None

    @cached_property
    def fingerprint(self) -> str:
        """What a text that the target wrote is kept under: :attr:`sha256`, or a checksum of the
        weights in memory where there are no files."""
        return memory_hash(self.model) if self.sha256 is None else self.sha256

    def own_head(self, kind: str) -> Path | None:
        """The folder of a trained head that lies beside this target and whose card names it, or
        None."""
        if self.heads is None:
            return None
        folder = self.heads / kind
        try:
            trained_for = card_of(folder).get("target_sha256")
        except LoadError:
            return None
        return folder if trained_for and trained_for == self.sha256 else None

    @property
    def ends(self) -> list[int]:
        """:attr:`eos`, checked: the ids that end a row where none are named."""
        source = f"eos of {self.name!r} (its generation_config or tokenizer; eos=.. names others)"
        return eos_ids(self.eos, self.vocabulary, source)

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.dtype

    @property
    def decoder(self) -> tuple[Any, Any]:
        """The library's module of all layers and the final norm, and its layers."""
        inner = self.backbone.inner
        return inner, self.backbone.layers if self.backbone.whole else inner.layers

    @property
    def vocabulary(self) -> int:
        """How many token ids it has logits for."""
        return self.backbone.vocabulary

    @property
    def drafts(self) -> int:
        """How many tokens it may draft: its words, where it borrows an output layer."""
        return self.vocabulary if self.words is None else len(self.words)

    def open(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: Sequence[int],
        spare: int,
        sampling: Sampling,
        eos: Sequence[int],
        features: tuple[int, ...] = (),
        static: bool = False,
    ) -> State:
        """The state of a decoding, with all tokens of every prompt but the last processed.

        Args:
            spare: how many slots are kept free for a draft beyond the limit.
            eos: the ids that end a row.
            features: the numbers of the layers whose hidden states the drafter wants.
            static: steps are recorded as graphs; capacities are rounded up then.
        """
        if self.words is not None:
            raise ArgumentError(f"{self.name!r} is a draft model, which decodes no text by itself")
        device, rows = self.device, len(prompts)
        lengths = [len(p) for p in prompts]
        limits = [n + m for n, m in zip(lengths, max_new_tokens, strict=True)]
        # decodings of like length share their graphs: a power of two of buckets
        buckets = 1 << (-(-max(limits) // BUCKET) - 1).bit_length()
        ceiling = BUCKET * buckets if static else max(limits)
        capacity = ceiling + spare
        tokens = torch.zeros(rows, capacity, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        length = torch.tensor(lengths, device=device)
        state = State(
            tokens=tokens.to(device),
            length=length,
            start=length.clone(),
            limit=torch.tensor(limits, device=device),
            done=torch.zeros(rows, dtype=torch.bool, device=device),
            eos=torch.tensor(list(eos), dtype=torch.long, device=device),
            sampling=sampling,
            horizon=max(lengths),
            cache=self.backbone.cache(rows, capacity),
            ceiling=ceiling,
        )
        states = prefill(self.backbone, state, state.cache, features)
        if states is not None:
            width = states.shape[-1]
            state.features = torch.zeros(rows, capacity, width, dtype=states.dtype, device=device)
            state.features[:, : states.shape[1]] = states
        return state

    def kernels(self, tokens: int) -> AbstractContextManager[Any]:
        """What steps of so many tokens run in: the choice of attention's kernels on CUDA; where few
        tokens go through the compiled pass, torch's own operators in one thread."""
        return one_thread if self.backbone.compiled and tokens <= MOST else backends(self.device)

    def score(
        self, state: State, draft: Draft, features: tuple[int, ...] = (), layout: str = "tree"
    ) -> Scores:
        """The logits after every node of a draft, in one forward over the whole tree; where the
        draft brings hidden states (``draft.hidden``), through the layers behind them only.

        Args:
            features: the numbers of the layers whose hidden states are wanted.
            layout: "tree" is one sequence a row with a tree attention mask; "batch" is a row for
                every leaf path, without one (of a chain they are the same). Scores and the draft's
                slots of the cache are equal up to rounding.
        """
        tree = draft.tree
        if layout == "batch" and not (tree.is_chain and tree.v == tree.n):
            hidden, states = run_paths(self.backbone, state, draft, features)
            return Scores(self._logits(hidden), state.sampling, states)
        base = (state.length - 1)[:, None]
        slots = base + torch.arange(tree.n, device=base.device)
        # one query that sees all there is needs no mask
        unmasked = tree.n == 1 and state.rows == 1 and not state.static
        mask = None if unmasked else state.tree_mask(tree, self.dtype)
        x = self.backbone.embed(draft.tokens) if draft.hidden is None else draft.hidden
        extent, computed = state.horizon - 1 + tree.n, draft.computed
        place = Place(base + tree.depth, slots, extent, mask, computed=computed)
        hidden, states = self.backbone.run(
            x, place, state.cache, first=draft.start_layer, features=features
        )
        if computed is None:
            return Scores(self._logits(hidden), state.sampling, states)
        some = self._logits(hidden.flatten(0, 1).index_select(0, computed))
        logits = some.new_zeros(tree.n * state.rows, some.shape[-1])
        logits = logits.index_copy_(0, computed, some).view(state.rows, tree.n, -1)
        return Scores(logits, state.sampling, states)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.backbone.head(hidden)
        return logits if self.agreed is None else self.agreed(logits)

    def commit(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        """Keeps what was accepted: keys, values and features move to the slots of their
        positions."""
        base = state.length - 1
        if not draft.tree.is_chain:
            state.cache.keep(base, verdict.path)
        if scores.features is not None and state.features is not None:
            slots = base[:, None] + torch.arange(verdict.path.shape[1], device=base.device)
            put(state.features, slots, taken(scores.features, verdict.path))


def _parts(end: int, rows: int) -> Iterator[tuple[int, int]]:
    """Parts of a prompt, each from its first position to behind its last one."""
    begin = 0
    while begin < end:
        size = CHUNK
        while size > LEAST and rows * size * (begin + size) > CELLS:
            size //= 2
        yield begin, min(begin + size, end)
        begin += size


def prefill(
    backbone: Backbone,
    state: State,
    cache: KVCache,
    features: tuple[int, ...] = (),
    run: LayerRunner | None = None,
) -> Tensor | None:
    """Processes positions 0..length-2 of every row, without the head, by ``run`` (default
    ``backbone.run``); returns their features ``[B, horizon - 1, len(features) * H]``, or None.

    What is computed of a short row past its end is overwritten before it is seen. Long prompts go
    through the layers in parts, so that masks and activations stay small; on a terminal a bar shows
    how far a very long one has come."""
    m, rows = state.horizon - 1, state.rows
    if m == 0:
        width = len(features) * backbone.config.hidden_size
        empty = torch.zeros(rows, 0, width, dtype=backbone.dtype, device=backbone.device)
        return empty if features else None
    forward = backbone.run if run is None else run
    parts = []
    disable = None if m > CHUNK else True  # tqdm's None: unless stderr is no terminal
    with tqdm(total=m, desc="prompt", disable=disable, delay=2, leave=False) as bar:
        for first, last in _parts(m, rows):
            if first:
                positions = torch.arange(first, last, device=backbone.device).expand(rows, -1)
                place = Place.behind(positions, last, backbone.dtype)
            else:
                place = Place.text(rows, last, backbone.device)
            x = backbone.embed(state.tokens[:, first:last])
            states = forward(x, place, cache, features=features)[1]
            if states is not None:
                parts.append(states)
            if (ranks := here()) is not None:
                ranks.settled()
            bar.update(last - first)
    return torch.cat(parts, 1) if parts else None
