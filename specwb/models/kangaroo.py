"""Kangaroo's adapter: one attention layer over the target's states at an early exit; and its
published files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from specwb.models.architectures import UnsupportedModel
from specwb.models.backbone import Stack
from specwb.models.checkpoint import HeadError, check_sizes, fill, opened, words_in, write
from specwb.models.eagle import described, layer_config, move_to, with_sdpa
from specwb.models.layers import gain, rms
from specwb.models.products import product
from specwb.models.target import Target
from specwb.models.words import HeadOutput

ADAPTERS = ("attention", "layer", "mlp")


class AttentionLayer(nn.Module):
    """``x + Attention(norm(x))``, and nothing after it."""

    def __init__(self, config: Any, index: int) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, index)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        around = {"position_embeddings": position_embeddings, "attention_mask": None}
        return x + self.self_attn(self.input_layernorm(x), **around)[0]


class TwoLinears(nn.Module):
    """``x + W2 silu(W1 norm(x))``, square: the paper's variant without attention. Its activation is
    not published."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        h = config.hidden_size
        self.up_proj, self.down_proj = nn.Linear(h, h, bias=False), nn.Linear(h, h, bias=False)
        self.input_layernorm = LlamaRMSNorm(h, config.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        up = product(rms(x, self.input_layernorm), self.up_proj.weight, None)
        return x + product(F.silu(up), self.down_proj.weight, None)


class KangarooAdapter(HeadOutput, nn.Module):
    """``f' = f + Attention(norm_in(f))`` with f the target's state at layer ``exit``; law of the
    next token = the target's lm_head of ``norm_out(f')``.

    Both norms are the adapter's own, there is no feed-forward part. f is exact at drafted tokens
    too, since the target's own first layers make it, so that nothing is unrolled in training.
    ``adapter``: ``attention``; the paper's ablation has ``layer`` (a whole decoder layer) and
    ``mlp`` (two square linear layers, no attention), and ``own_head`` (an lm_head that is trained).

    Keys ``layers.{i}.input_layernorm.weight``, ``layers.{i}.self_attn.{q,k,v,o}_proj.weight``,
    ``norm.weight``: the published ones. The published config.json does not say the exit layer; ours
    has ``exit_layer``, ``adapter`` and ``own_head``.

    Attributes:
        exit: 0 the embedding, i the output of layer i.
        words: ``[d]`` the target ids that it drafts, None for all.
        card: what was measured when it was trained, where that is known.

    Source: Liu et al., "Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting"
    (2024), arXiv 2404.18911, and its code.
    """

    stack: Stack | None = None  # see Stack.of

    def __init__(
        self,
        config: Any,
        exit: int,
        adapter: str = "attention",
        own_head: bool = False,
        words: Tensor | None = None,
    ) -> None:
        super().__init__()
        if adapter not in ADAPTERS:
            raise HeadError(f"adapter must be {', '.join(ADAPTERS)}, got {adapter!r}")
        if own_head and words is not None:
            raise HeadError("an adapter with an output layer of its own drafts all tokens")
        if adapter == "mlp" and config.num_hidden_layers != 1:
            raise HeadError(
                "an adapter without attention has one layer, this one has "
                f"{config.num_hidden_layers}"
            )
        self.card: dict = {}
        self.config, self.exit, self.adapter = with_sdpa(config), exit, adapter
        h = self.hidden = config.hidden_size
        v = self.vocabulary = config.vocab_size
        make: Any = AttentionLayer if adapter == "attention" else LlamaDecoderLayer
        layers = [make(config, i) for i in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList([TwoLinears(config)] if adapter == "mlp" else layers)
        self.norm = LlamaRMSNorm(h, config.rms_norm_eps)
        self.lm_head = nn.Linear(h, v, bias=False) if own_head else None
        self.register_buffer("words", words)
        self.rotary_emb = LlamaRotaryEmbedding(config)

    @property
    def features(self) -> tuple[int, ...]:
        return (self.exit,)

    @property
    def blocks(self) -> list[Any]:
        """Layers with attention, which have keys and values."""
        return [] if self.adapter == "mlp" else list(self.layers)

    def start_from(self, target: Target) -> KangarooAdapter:
        """Begin as the target's own layer behind the exit, as much of it as there is here, and its
        final norm and head."""
        if target.backbone.whole:
            raise UnsupportedModel(
                f"kangaroo drafts behind a part of the target's layers, those of {target.name!r} "
                f"run only together here ({target.backbone.reason})"
            )
        inner: Any = target.backbone.inner
        with torch.no_grad():
            # layers of other kinds have other parts, and norms with another meaning
            alike = self.layers if target.backbone.is_plain else ()
            for i, layer in enumerate(alike):
                self.begin_as(layer, inner.layers[min(self.exit + i, len(inner.layers) - 1)])
            self.norm.weight.copy_(gain(inner.norm))
            if self.lm_head is not None:
                self.lm_head.weight.copy_(target.backbone.lm_head.weight)
        return self

    @staticmethod
    def begin_as(layer: nn.Module, other: nn.Module) -> None:
        """Let a layer begin as another, as much of it as there is here."""
        weights = other.state_dict()
        layer.load_state_dict({k: weights.get(k, w) for k, w in layer.state_dict().items()})

    def forward(self, f: Tensor) -> Tensor:
        """``[B,m,H]`` states at the exit of a text from its beginning -> ``[B,m,H]`` what stands
        before the last norm, with gradients."""
        around = self.rotary_emb(f, torch.arange(f.shape[1], device=f.device)[None])
        for layer in self.layers:
            f = layer(f) if self.adapter == "mlp" else layer(f, position_embeddings=around)
        return f

    def last(self, hidden: Tensor) -> Tensor:
        return rms(hidden, self.norm)

    def save(self, folder: Path, card: dict | None = None) -> None:
        config = {
            **described(self.config),
            "exit_layer": self.exit,
            "adapter": self.adapter,
            "own_head": self.lm_head is not None,
        }
        write(folder, config, self.state_dict(), "model", card)


def load_kangaroo(source: str | Path, target: Target, exit: int | None = None) -> KangarooAdapter:
    """Loads an adapter from a published folder or one of ours.

    Args:
        source: a folder, or a hub id.
        target: the model whose states at the exit layer it reads.
        exit: the exit layer of a file that does not say it; 0 is the embedding, i the output of
            layer i.
    Raises:
        HeadError: the exit layer is unknown, does not exist or is another one; keys, shapes or
            settings are not those of such an adapter; or the card names another target.
    """
    with opened(source, target) as stored:
        config, depth = stored.config, len(target.backbone.layers)
        stated = config.get("exit_layer")
        if stated is None and exit is None:
            raise HeadError(
                "config.json does not say the exit layer; name it with exit= (the published "
                "adapters: 2 for 7B, 3 for 13B)"
            )
        if stated is not None and exit not in (None, stated):
            raise HeadError(f"trained on the states of layer {stated}, not of layer {exit}")
        layer = exit if stated is None else stated
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < depth:
            raise HeadError(
                f"exit layer {layer!r} does not exist: it must be one of 0..{depth - 1}, with a "
                f"layer of {target.name!r} behind it"
            )
        llama = layer_config(config)
        check_sizes(target, llama.hidden_size, llama.vocab_size)
        kind, own_head = config.get("adapter", "attention"), bool(config.get("own_head", False))
        words = words_in(stored.weights, target)
        adapter = KangarooAdapter(llama, layer, kind, own_head, words)
        fill(adapter, stored.weights, target)
        move_to(adapter, stored, llama, target)
        return adapter.requires_grad_(False)
