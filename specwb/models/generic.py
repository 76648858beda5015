"""The generic backbone: the library's own forward over our cache, for what has no fast path.

The model is called as the library calls it, with a mask of four dimensions, explicit positions and
our cache behind the library's interface, so that whatever its modules compute is computed: layers
of every kind, adapters, quantised weights, hooks. It is slower than the fast backbone, is never
recorded as CUDA graphs, and its layers run only together. That a model takes masks and positions
as they are given is not believed but tried when it is loaded (:meth:`GenericBackbone.check`).
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache

from specwb.core.mask import causal_mask, last_seen, tree_mask
from specwb.core.tree import Tree
from specwb.models.architectures import UnsupportedModel, check_causal, context, text_config
from specwb.models.cache import KVCache, SpreadCache
from specwb.models.device import device_of, is_spread
from specwb.models.hooks import check_whole
from specwb.models.place import Place

# how far two ways to compute the same logits may lie apart, of the largest one
MARGINS = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}
ERRORS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What a model's forward raises where it does not take what it is given."""
MASKS = ("by layer type", "windows", "all")
"""How a model takes masks: a table by layer type, or one mask, with its window or without."""


class LibraryCache(Cache):
    """Our cache for one forward of the library's model."""

    def __init__(self, cache: KVCache, slots: Tensor, extent: int) -> None:
        super().__init__(layers=[])
        self.cache, self.slots, self.extent = cache, slots, extent
        self.fed = slots.shape[1]
        self._index: dict[torch.device, Tensor] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores keys and values ``[B,heads,m,dim]`` of a layer, and gives all that are attended
        to, ``[B,heads,extent,dim]``."""
        cache, i = self.cache.layer(layer_idx)
        device, both = cache.data.device, []
        if device not in self._index:
            self._index[device] = cache.index(self.slots.to(device))
        for states, first in ((key_states, 0), (value_states, cache.kv_heads)):
            heads, dim = states.shape[1], states.shape[3]
            lanes = slice(first, first + heads)
            entries = states.transpose(1, 2).reshape(-1, heads, dim)
            cache.flat[i][:, lanes, :dim].index_copy_(0, self._index[device], entries)
            both.append(cache.data[i, :, : self.extent, lanes, :dim].transpose(1, 2))
        return both[0], both[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.extent - self.fed

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.extent, 0


class _States(tuple[Tensor]):
    """What a model's layers put out, without anything but the hidden states."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:  # a cache, attentions, a router's logits
        if name.startswith("__"):
            raise AttributeError(name)


class _Given(nn.Module):
    """In the place of a model's layers: gives the hidden states that it is given."""

    def forward(self, *args: Any, inputs_embeds: Tensor, **more: Any) -> _States:
        return _States((inputs_embeds,))

    @property
    def decoder(self) -> nn.Module:  # OPT's model calls this part of its layers
        return self


class GenericBackbone:
    """A whole model by the library's forward, in the terms of
    :class:`specwb.models.backbone.Backbone`.

    ``run`` gives the hidden states that the model's head reads, behind the final norm, so that
    :attr:`norm` changes nothing here."""

    whole = True
    captured = False
    is_plain = False
    compiled = None

    def __init__(self, model: Any, reason: str) -> None:
        check_causal(model.config)
        if getattr(model, "_is_stateful", False):
            raise UnsupportedModel(
                f"model type {model.config.model_type!r} has a recurrent state and is not "
                "supported: a tree of drafts needs keys and values by position in every layer"
            )
        prefix = model.base_model_prefix
        if not isinstance(getattr(model, prefix, None), nn.Module):
            raise UnsupportedModel(f"{type(model).__name__} has no layers apart from its head")
        check_whole(model)
        self.reason, self.config = reason, text_config(model.config)
        self.inner: Any = getattr(model, prefix)
        # the model without its layers: what its forward does with hidden states
        self._tail = copy.copy(model)
        self._tail._modules = {**model._modules, prefix: _Given()}
        self.embed, self.norm = model.get_input_embeddings(), nn.Identity()
        self.device = device_of(self.embed)
        if is_spread(model):
            for name in ("forward", "_old_forward", "_hf_hook"):  # these call the whole model
                self._tail.__dict__.pop(name, None)
        self._lm_head, self.vocabulary = model.get_output_embeddings(), self.embed.num_embeddings
        self.layers = self._layers()
        self._context, self._masks = context(self.config), "all"
        with torch.no_grad():
            try:
                self._sizes = self._cache_sizes()
            except ERRORS as error:
                raise self._unfit(error) from error
            self.kv_heads, self.head_dim = (max(size) for size in zip(*self._sizes, strict=True))
            self.check(model)

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    @cached_property
    def lm_head(self) -> Any:
        """The model's last module with its weights on :attr:`device`, for heads that read them."""
        head: Any = self._lm_head
        if type(head) is not nn.Linear or head.weight.is_meta or self.embed.weight.is_meta:
            raise UnsupportedModel(
                "a trained head reads the weights of the target's embedding and output layer, "
                "which are quantised or offloaded here: keep both on a device, as they are"
            )
        if head.weight.device == self.device:
            return head
        rows, width = head.weight.shape
        other = nn.Linear(width, rows, head.bias is not None, device="meta")
        for name, weight in head.named_parameters():
            setattr(other, name, nn.Parameter(weight.detach().to(self.device), False))
        return other

    def _layers(self) -> Sequence[nn.Module]:
        """The list of modules in the model that is as long as the config has layers."""
        count = self.config.num_hidden_layers
        text = getattr(self.inner, "language_model", self.inner)
        lists = [m for m in text.modules() if isinstance(m, nn.ModuleList)]
        layers = next((m for m in lists if len(m) == count), None)
        if layers is None:
            raise UnsupportedModel(
                f"the {count} layers of {type(self.inner).__name__} are in no list, so that their "
                "outputs cannot be read"
            )
        return list(layers)

    def _cache_sizes(self) -> list[tuple[int, int]]:
        filled = DynamicCache()
        one = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        self.inner(
            inputs_embeds=self.embed(one),
            attention_mask=torch.zeros(1, 1, 1, 1, dtype=self.dtype, device=self.device),
            position_ids=one,
            past_key_values=filled,
            use_cache=True,
        )
        pairs: list[tuple[Any, Any]] = [
            (getattr(x, "keys", None), getattr(x, "values", None)) for x in filled.layers
        ]
        if not pairs or any(keys is None for keys, _ in pairs):
            raise UnsupportedModel(
                f"model type {self.config.model_type!r} does not keep keys and values in the "
                "library's cache and is not supported"
            )
        self._devices = [keys.device for keys, _ in pairs]
        return [
            (max(keys.shape[1], values.shape[1]), max(keys.shape[3], values.shape[3]))
            for keys, values in pairs
        ]

    def cache(self, rows: int, capacity: int) -> KVCache:
        """An empty cache of ``capacity`` slots for ``rows`` texts."""
        sizes = rows, capacity, self.kv_heads, self.head_dim, self.dtype
        if set(self._devices) != {self.device}:
            return SpreadCache(*sizes, self._devices)
        return KVCache(len(self._sizes), *sizes, self.device)

    def run(
        self,
        x: Tensor,
        place: Place,
        cache: KVCache,
        *,
        first: int = 0,
        last: int | None = None,
        features: Sequence[int] = (),
        attended: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Runs all layers, as :meth:`specwb.models.backbone.Stack.run`; hidden states are behind
        the final norm."""
        if first or last is not None or attended is not None:
            raise UnsupportedModel(
                f"this method runs a part of the target's layers, those of "
                f"{self.config.model_type!r} run only together here ({self.reason})"
            )
        positions, extent, mask = place.positions, place.extent, place.mask
        if mask is None:
            ends = positions if place.causal else torch.full_like(positions, extent)
            mask = causal_mask(ends, extent, self.dtype)
        with self._recorded(features) as states:
            hidden = self.inner(
                inputs_embeds=x,
                attention_mask=self._as_taken(mask),
                # what lies past the context is never kept
                position_ids=positions.clamp_max(self._context - 1),
                past_key_values=LibraryCache(cache, place.slots, extent),
                use_cache=True,
            )[0].to(self.device)
        states[-1] = hidden
        wanted = [states[f].to(self.device) for f in features]
        return hidden, torch.cat(wanted, -1) if features else None

    def head(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., V]`` of hidden states ``[..., H]`` as :meth:`run` gives them, by whatever
        the model's forward does behind its layers."""
        flat = hidden.reshape(1, -1, hidden.shape[-1])
        logits = self._tail(inputs_embeds=flat, use_cache=False).logits.to(self.device)
        return logits.view(*hidden.shape[:-1], -1)

    called_head = head

    def _as_taken(self, mask: Tensor) -> Any:
        """Masks of all layers, ``[B,1,m,extent]``, in the form that the model takes."""
        window = getattr(self.config, "sliding_window", None)
        if window is None or self._masks == "all" or mask.shape[-1] <= window:
            windowed = mask
        else:
            windowed = last_seen(mask, window)
        if self._masks == "by layer type":
            both = {"full_attention": mask, "sliding_attention": windowed}
            return {name: one[:, None] for name, one in both.items()}
        return windowed[:, None]

    @contextmanager
    def _recorded(self, features: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """The outputs of the wanted layers in the forward within, by number; 0 is what enters the
        first one."""
        states: dict[int, Tensor] = {}
        here, hooks = threading.get_ident(), []  # several decodings may share the model

        def keep(number: int, out: Any) -> None:
            if threading.get_ident() == here:
                states[number] = out[0] if isinstance(out, tuple) else out

        def before(module: Any, args: tuple, named: dict) -> None:
            keep(0, args if args else named["hidden_states"])

        for f in features:
            if f == 0:
                hooks.append(self.layers[0].register_forward_pre_hook(before, with_kwargs=True))
            elif f > 0:

                def after(module: Any, args: tuple, out: Any, number: int = f) -> None:
                    keep(number, out)

                hooks.append(self.layers[f - 1].register_forward_hook(after))
        try:
            yield states
        finally:
            for hook in hooks:
                hook.remove()

    def check(self, model: Any) -> None:
        """Tries whether a tree over a cache gives what the library's forward of every path gives:
        a text of a few tokens, two rows of different lengths, windows shortened to three.
        """
        config, worst = self.config, float("inf")
        failed: Exception | None = None
        window = getattr(config, "sliding_window", None)
        if window is not None:
            config.sliding_window = 3
        try:
            expected = self._paths(model)
            for self._masks in MASKS if window is not None else MASKS[-1:]:
                try:
                    off = self._off(expected)
                except ERRORS as error:
                    failed = error
                    continue
                worst = min(worst, off)
                # quantised products round inputs too, by what is multiplied together
                quantised = getattr(model, "is_quantized", False)
                if off < (0.1 if quantised else MARGINS.get(self.dtype, 0.1)):
                    return
        finally:
            if window is not None:
                config.sliding_window = window
        wrong = f"its logits are off by {worst:.1g} of the largest one"
        raise self._unfit(wrong if worst < float("inf") else failed)

    def _unfit(self, why: object) -> UnsupportedModel:
        first = (str(why).splitlines() or [type(why).__name__])[0][:150]
        return UnsupportedModel(
            f"model type {self.config.model_type!r} is not supported: it has no fast path, and its "
            f"own forward does not take a tree's mask, positions and cache ({first})"
        )

    # of the trial: two rows, the text's length in each, and what is drafted below its last token
    _TEXTS, _TREE = ((5, 8, 2, 9, 4, 7), (3, 6, 1)), Tree.parents([-1, 0, 0, 1, 2, 1, 3])
    _DRAFT = ((0, 5, 11, 3, 8, 2, 9), (0, 4, 10, 6, 12, 1, 7))

    def _paths(self, model: Any) -> Tensor:
        """``[2,n,V]`` logits at every node, the library's of its path alone."""
        parents, every = self._TREE.host[0], []
        for text, drafted in zip(self._TEXTS, self._DRAFT, strict=True):
            for node in range(self._TREE.n):
                path, at = [], node
                while at > 0:
                    path.append(drafted[at])
                    at = parents[at]
                ids = torch.tensor([[*text, *path[::-1]]], device=self.device) % self.vocabulary
                every.append(model(input_ids=ids, use_cache=False).logits[0, -1])
        return torch.stack(every).view(len(self._TEXTS), self._TREE.n, -1)

    def _off(self, expected: Tensor) -> float:
        """How far the tree's logits lie from those of its paths, of the largest logit."""
        tree, device = self._TREE.to(self.device), self.device
        length = torch.tensor([len(text) for text in self._TEXTS], device=device)
        longest = int(length.max())
        ids = torch.tensor([[*t, *[0] * (longest - len(t))] for t in self._TEXTS], device=device)
        cache = self.cache(len(ids), longest + tree.n)
        m = longest - 1
        ids = ids % self.vocabulary
        self.run(self.embed(ids[:, :m]), Place.text(len(ids), m, device), cache)
        drafted = torch.tensor(self._DRAFT, device=device) % self.vocabulary
        base = (length - 1)[:, None]
        drafted[:, :1] = ids.gather(1, base)
        slots = base + torch.arange(tree.n, device=device)
        mask = tree_mask(tree, length, longest, self.dtype)
        place = Place(base + tree.depth, slots, longest - 1 + tree.n, mask)
        hidden = self.run(self.embed(drafted), place, cache)
        logits = self.head(hidden[0])
        return float((logits - expected).abs().max() / expected.abs().max())
