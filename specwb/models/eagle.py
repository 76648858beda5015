"""EAGLE heads: one decoder layer over the target's hidden states and the next token's embedding,
and their published files.

A *pair* i is token t_{i+1} with the target's hidden state f_i, the state that t_{i+1} was drawn
from: together they say all that the target knew and which of its tokens came out. What the head
makes of pair i stands for f_{i+1}, and so gives the law of t_{i+2}.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from specwb.models.architectures import windows
from specwb.models.backbone import Stack
from specwb.models.checkpoint import (
    HeadError,
    Stored,
    check_field,
    check_sizes,
    fill,
    opened,
    words_in,
    write,
)
from specwb.models.eagle_config import check_fields, feature_layers, layer_class, layer_config
from specwb.models.layers import rms
from specwb.models.products import product
from specwb.models.target import Target
from specwb.models.words import HeadOutput

Past = list[tuple[list[Tensor], list[Tensor]]]
"""Keys and values of every layer, in the order of the steps that made them."""
LLAMA = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "attention_bias",
    "mlp_bias",
    "layer_types",
    "sliding_window",
    "tie_word_embeddings",
)
"""What a head's config.json says of its layer."""


class EagleHead(HeadOutput, nn.Module):
    """EAGLE-1 (and 2, whose heads are the same): ``h_i = layers(fc [embedding(t_{i+1}); f_i])``,
    law of t_{i+2} = the target's lm_head of h_i.

    f is what the target's lm_head reads, after the final norm; the first layer has no input norm
    and the last no final one. Keys ``fc.*``, ``layers.{i}.*`` without ``layers.0.input_layernorm``,
    and where the embedding is its own ``embed_tokens.weight``.

    Args:
        words: ``[d]`` the target ids that it drafts (:mod:`specwb.models.words`), key ``words``;
            None for all.

    Source: Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty" (2024),
    arXiv 2401.15077, and its code.
    """

    version = 1
    stack: Stack | None = None  # see Stack.of

    def __init__(
        self,
        config: Any,
        target_hidden: int,
        features: tuple[int, ...] = (-1,),
        bias: bool = True,
        words: Tensor | None = None,
    ) -> None:
        self.begin(config, target_hidden, features)
        self.make_fusion(bias)
        self.layers = nn.ModuleList(
            LlamaDecoderLayer(self.config, i) for i in range(self.config.num_hidden_layers)
        )
        self.layers[0].input_layernorm = nn.Identity()
        self.register_buffer("words", words)
        self.lm_head = None

    def begin(self, config: Any, target_hidden: int, features: tuple[int, ...]) -> None:
        """What heads of all versions have."""
        nn.Module.__init__(self)
        self.card: dict = {}  # what was measured when it was trained, where that is known
        self.config, self.features, self.target_hidden = with_sdpa(config), features, target_hidden
        self.hidden = self.config.hidden_size
        self.rotary_emb = LlamaRotaryEmbedding(self.config)
        self.embed_tokens: nn.Embedding | None = None

    def make_fusion(self, bias: bool) -> None:
        """Makes what joins an embedding and a feature."""
        self.fc = nn.Linear(2 * self.hidden, self.hidden, bias=bias)

    @property
    def blocks(self) -> list[Any]:
        """The library's layers, in order."""
        return list(self.layers)

    def fuse(self, features: Tensor) -> Tensor:
        """``[.., F]`` the target's features -> ``[.., H]`` what stands beside an embedding."""
        return features

    def put_out(self, hidden: Tensor) -> Tensor:
        """``[.., H]`` of the last layer -> what stands in a feature's place one level below."""
        return hidden

    def enter(self, embedded: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
        """``[.., H]`` embeddings and hidden states -> what attention reads, and the residual
        stream."""
        x = product(torch.cat([embedded, above], -1), self.fc.weight, self.fc.bias)
        return x, x

    def unroll(self, embedded: Tensor, features: Tensor, steps: int) -> Iterator[Tensor]:
        """``[B,m,H]`` hidden states of m pairs, ``steps`` times, with gradients: what drafting to
        that depth would see.

        Step 0 has the target's features at every place. Step j stands j levels below it: its hidden
        state is step j - 1's own, one place before, and it attends to the step-0 pairs up to j
        places before and to its own j predecessors, as a chain of drafted tokens does. Places i < j
        have no such predecessors and are to be left out.
        """
        m = embedded.shape[1]
        cos, sin = self.rotary_emb(embedded, torch.arange(m, device=embedded.device)[None])
        above = self.fuse(features)
        past: Past = [([], []) for _ in self.blocks]
        seen = windows(self.config, len(self.blocks))
        for j in range(steps):
            masks = [sight(j, m, embedded.device, window=w) for w in seen]
            x = self.put_out(self.through(*self.enter(embedded, above), past, cos, sin, masks))
            yield x
            above = F.pad(x, (0, 0, 1, 0))[:, :-1]

    def through(
        self,
        attended: Tensor,
        x: Tensor,
        past: Past,
        cos: Tensor,
        sin: Tensor,
        masks: Sequence[Tensor | None],
    ) -> Tensor:
        """``[B,m,H]`` the layers, with gradients; keys and values are appended to ``past`` and
        everything there is attended to, as each layer's mask says."""
        layers = zip(self.blocks, past, masks, strict=True)
        for i, (layer, (keys, values), mask) in enumerate(layers):
            a = layer.self_attn
            if i:
                attended = layer.input_layernorm(x)
            q, k, v = (
                part(attended).unflatten(-1, (-1, a.head_dim)).transpose(1, 2)
                for part in (a.q_proj, a.k_proj, a.v_proj)
            )
            if hasattr(a, "q_norm"):  # Qwen3's
                q, k = a.q_norm(q), a.k_norm(k)
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
            keys.append(k)
            values.append(v)
            out = F.scaled_dot_product_attention(
                q,
                torch.cat(keys, 2),
                torch.cat(values, 2),
                mask,
                is_causal=mask is None,
                scale=a.scaling,
                enable_gqa=q.shape[1] != k.shape[1],
            )
            x = x + a.o_proj(out.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return x

    def save(self, folder: Path, card: dict | None = None) -> None:
        """``config.json``, fp16 ``model.safetensors`` in the published layout and ``card.json``;
        the target's embedding is not repeated."""
        config = {**described(self.config), **self.settings()}
        write(folder, config, self.state_dict(), "model", card)

    def settings(self) -> dict[str, Any]:
        """What its config.json says of it, next to its layers' sizes."""
        return {"bias": self.fc.bias is not None}


class Eagle3Head(EagleHead):
    """EAGLE-3: ``g_i = fc [three layers' hidden states]``, then ``h_i`` = one layer whose attention
    reads ``[norm(embedding); norm(g_i)]`` and whose residual stream is g_i; law of t_{i+2} = its
    own ``lm_head(norm(h_i))`` over a draft vocabulary. Below the first level h stands in g's place.

    ``d2t [d]``: draft id j is target id ``j + d2t[j]``, an offset; ``t2d [V]``: which target ids
    there are. Where the draft vocabulary is the target's, both are absent. Keys ``midlayer.*``,
    ``fc.weight``, ``norm.weight``, ``lm_head.weight``, ``d2t``, ``t2d``.

    Further layers (``layers.{i}``, i from 1 on) are ordinary ones. Layers are Llama's, or Qwen3's
    where the config is.

    Args:
        normed_residual: the residual stream is norm(g) instead (``norm_before_residual``).
        normed_features: the features pass a norm before fc (``norm_before_fc``).
        normed_each: every layer's features pass a norm of their own before fc (``fc_norm``, keys
            ``fc_norm.{i}.weight``, EAGLE 3.1).
        normed_output: ``norm(h_i)`` and not h_i stands in g's place below (``norm_output``,
            EAGLE 3.1).
        own_head: whether it has an ``lm_head`` of its own, as published; otherwise it says its
            words by the target's rows, which are not stored (``own_head``, ours).

    Source: Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
    Training-Time Test" (2025), arXiv 2503.01840.
    """

    version = 3
    d2t: Tensor
    t2d: Tensor

    def __init__(
        self,
        config: Any,
        target_hidden: int,
        features: tuple[int, ...],
        draft_vocabulary: int,
        vocabulary: int,
        normed_residual: bool = False,
        normed_features: bool = False,
        bias: bool = False,
        normed_each: bool = False,
        normed_output: bool = False,
        own_head: bool = True,
    ) -> None:
        self.begin(config, target_hidden, tuple(features))
        self.vocabulary, self.draft_vocabulary = vocabulary, draft_vocabulary
        self.normed_residual, self.normed_output = normed_residual, normed_output
        h, width, eps = self.hidden, len(features) * target_hidden, self.config.rms_norm_eps
        self.fc = nn.Linear(width, h, bias=bias)
        if normed_features:
            self.input_norm = LlamaRMSNorm(width, eps)
        if normed_each:
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(target_hidden, eps) for _ in self.features)
        make: Any = layer_class(self.config)
        layer: Any = make(self.config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(layer.self_attn, name)
            wide = nn.Linear(2 * h, old.out_features, bias=old.bias is not None)
            setattr(layer.self_attn, name, wide)
        layer.hidden_norm = LlamaRMSNorm(h, eps)
        self.midlayer = layer
        further = range(1, self.config.num_hidden_layers)  # by their published numbers
        self.layers: Any = nn.ModuleDict({str(i): make(self.config, i) for i in further})
        self.norm = LlamaRMSNorm(h, eps)
        self.lm_head = nn.Linear(h, draft_vocabulary, bias=False) if own_head else None
        if draft_vocabulary != vocabulary:
            self.register_buffer("d2t", torch.zeros(draft_vocabulary, dtype=torch.long))
            self.register_buffer("t2d", torch.arange(vocabulary) < draft_vocabulary)

    @property
    def blocks(self) -> list[Any]:
        return [self.midlayer, *self.layers.values()]

    @property
    def words(self) -> Tensor | None:  # type: ignore[override]
        """``[d]`` target ids of the draft vocabulary, None where it is the target's."""
        if self.draft_vocabulary == self.vocabulary:
            return None
        return torch.arange(self.draft_vocabulary, device=self.d2t.device) + self.d2t

    def speak(self, ids: Tensor) -> None:
        """Let the draft vocabulary be these target ids, ascending."""
        ids = ids.to(self.d2t.device).sort().values
        self.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        self.t2d.zero_().index_fill_(0, ids, True)

    def fuse(self, features: Tensor) -> Tensor:
        if hasattr(self, "fc_norm"):
            parts = features.unflatten(-1, (len(self.features), -1)).unbind(-2)
            norms = zip(self.fc_norm, parts, strict=True)
            features = torch.cat([rms(part, norm) for norm, part in norms], -1)
        if hasattr(self, "input_norm"):
            features = rms(features, self.input_norm)
        return product(features, self.fc.weight, self.fc.bias)

    def put_out(self, hidden: Tensor) -> Tensor:
        return rms(hidden, self.norm) if self.normed_output else hidden

    def enter(self, embedded: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
        normed = rms(above, self.midlayer.hidden_norm)
        attended = torch.cat([rms(embedded, self.midlayer.input_layernorm), normed], -1)
        return attended, normed if self.normed_residual else above

    def last(self, hidden: Tensor) -> Tensor:
        return hidden if self.normed_output else rms(hidden, self.norm)

    def settings(self) -> dict[str, Any]:
        return {
            "draft_vocab_size": self.draft_vocabulary,
            "target_hidden_size": self.target_hidden,
            "vocab_size": self.vocabulary,
            "norm_before_residual": self.normed_residual,
            "norm_before_fc": hasattr(self, "input_norm"),
            "fc_norm": hasattr(self, "fc_norm"),
            "norm_output": self.normed_output,
            "own_head": self.lm_head is not None,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(self.features)},
            "specwb_features": list(self.features),
        }


def sight(
    j: int, m: int, device: torch.device, block: int = 1, window: int | None = None
) -> Tensor | None:
    """``[m, (j + 1) m]`` whom the pairs of step j see among those of steps 0..j; None for plain
    causal attention.

    ``block``: places are counted in blocks of so many, whose members see each other. ``window``:
    only so many places are seen, the own one included.
    """
    if j == 0 and block == 1 and window is None:
        return None
    c = torch.arange(m, device=device) // block
    i = c[:, None]
    steps = [c <= i - j, *(c == i - j + b for b in range(1, j + 1))]
    return torch.cat([s if window is None else s & (c > i - window) for s in steps], 1)


def described(config: Any) -> dict[str, Any]:
    """What a config.json says of a config's layers."""
    every = config.to_dict()
    return {k: every[k] for k in LLAMA if every.get(k) is not None}


def with_sdpa(config: Any) -> Any:
    """A layer's config, its attention torch's own."""
    config._attn_implementation = "sdpa"
    return config


def eagle_config(target: Target, layers: int = 1, ffn: int | None = None) -> LlamaConfig:
    """A head's layer of the target's sizes; ``ffn``: another width of its feed-forward part."""
    c = target.backbone.config
    rope = dict(getattr(c, "rope_parameters", None) or {})
    # of other rotations the layer has the plain one: it is a Llama layer
    if rope.get("rope_type") not in ("default", "linear", "llama3", "yarn"):
        rope = {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)}
    rope.pop("partial_rotary_factor", None)
    return LlamaConfig(
        vocab_size=target.vocabulary,
        hidden_size=c.hidden_size,
        intermediate_size=ffn or getattr(c, "intermediate_size", None) or 4 * c.hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=getattr(c, "num_key_value_heads", None) or c.num_attention_heads,
        head_dim=target.backbone.head_dim,
        rms_norm_eps=getattr(c, "rms_norm_eps", None) or 1e-6,
        max_position_embeddings=target.context,
        rope_parameters=rope,
        tie_word_embeddings=False,
    )


def load_eagle(source: str | Path, target: Target) -> EagleHead:
    """Loads an EAGLE-1/2 or EAGLE-3 head from a published folder (or a speculators one); which it
    is, its keys say.

    Args:
        source: a folder, or a hub id.
        target: the model whose states it reads.
    Returns:
        an :class:`EagleHead`, of EAGLE-3 an :class:`Eagle3Head`, on the target's device and in its
        number type.
    Raises:
        HeadError: keys or shapes are not those of such a head, the config asks for what is not
            computed here, values are not finite, or the card names another target. The message
            names the folder.
    """
    with opened(source, target) as stored:
        weights, config = dict(stored.weights), stored.config
        has_norms = any(key.endswith("self_attn.q_norm.weight") for key in weights)
        llama = layer_config(config, Qwen3Config if has_norms else LlamaConfig, True)
        if config.get("k_mask", 1) != 1:
            raise HeadError(
                f"a Falcon head that says k_mask={config['k_mask']} tokens per pass, not an EAGLE "
                "head; its method is falcon"
            )
        embedding = weights.pop("embed_tokens.weight", None)
        if "d2t" in weights or any(key.endswith("hidden_norm.weight") for key in weights):
            check_fields(config)
            weights = {re.sub(r"^layers\.0\.", "midlayer.", key): w for key, w in weights.items()}
            head: EagleHead = _eagle3(weights, config, llama, target)
        else:
            check_sizes(target, llama.hidden_size)
            has_bias = "fc.bias" in weights
            head = EagleHead(llama, llama.hidden_size, (-1,), has_bias, words_in(weights, target))
            check_field(config, "bias", has_bias)
        fill(head, weights, target)
        if isinstance(head, Eagle3Head):
            _check_maps(head)
        settle(head, embedding, stored, llama, target)
        return head


def settle(
    head: EagleHead, own: Tensor | None, stored: Stored, llama: LlamaConfig, target: Target
) -> None:
    """The embedding (the file's ``own``, where it is not the target's), card, device and number
    type of a head whose weights are in."""
    if own is not None:
        if own.shape != (target.vocabulary, head.hidden):
            raise HeadError(
                f"embed_tokens.weight is {list(own.shape)}; {target.name!r} has "
                f"{target.vocabulary} tokens, the head {head.hidden}"
            )
        shared = target.backbone.embed.weight
        if not torch.equal(own.to(shared), shared):
            head.embed_tokens = nn.Embedding.from_pretrained(own.float())
    elif not isinstance(head, Eagle3Head):
        check_sizes(target, vocabulary=stored.config.get("vocab_size"))
    elif head.hidden != target.backbone.config.hidden_size:
        raise HeadError(
            f"the file has no embedding, and the head's hidden size {head.hidden} is not the "
            f"target's {target.backbone.config.hidden_size}"
        )
    move_to(head, stored, llama, target)


def move_to(head: Any, stored: Stored, llama: LlamaConfig, target: Target) -> None:
    """Moves a head to its target, but for the rotation's frequencies, which are float32 in every
    model."""
    head.card = stored.card
    head.to(target.device, target.dtype).rotary_emb = LlamaRotaryEmbedding(llama).to(target.device)
    head.eval()


def _eagle3(
    weights: dict[str, Tensor],
    config: dict,
    llama: LlamaConfig,
    target: Target,
) -> Eagle3Head:
    depth, hidden = len(target.backbone.layers), target.backbone.config.hidden_size
    check_sizes(target, config.get("target_hidden_size"))
    numbers = feature_layers(config, depth)
    own_head = bool(config.get("own_head", True))
    needed = ["fc.weight", "lm_head.weight"][: 1 + own_head]
    if missing := [key for key in needed if key not in weights]:
        raise HeadError(f"the weights do not fit (missing {missing[0]})")
    wide = weights["fc.weight"].shape[1]
    if wide != len(numbers) * hidden:
        have = f"{len(numbers)} layers of {target.name!r} have {len(numbers) * hidden}"
        raise HeadError(
            f"fc reads {wide} values, but {have}; trained for another target, or on other layers"
        )
    spoken = weights.get("lm_head.weight" if own_head else "d2t")
    rows = target.vocabulary if spoken is None else len(spoken)
    check_field(config, "draft_vocab_size", rows)
    if rows == target.vocabulary:
        if bool(weights.pop("d2t", torch.zeros(1)).any()):
            raise HeadError("d2t moves tokens, though the draft vocabulary is the target's")
        weights.pop("t2d", None)
    return Eagle3Head(
        llama,
        hidden,
        numbers,
        rows,
        target.vocabulary,
        bool(config.get("norm_before_residual")),
        bool(config.get("norm_before_fc")),
        bias="fc.bias" in weights,
        normed_each=bool(config.get("fc_norm")),
        normed_output=bool(config.get("norm_output")),
        own_head=own_head,
    )


def _check_maps(head: Eagle3Head) -> None:
    if head.words is None:
        return
    ids, size = head.words, head.vocabulary
    if int(ids.min()) < 0 or int(ids.max()) >= size or len(ids.unique()) < len(ids):
        hint = ""
        if ((head.d2t >= 0) & (head.d2t < size)).all() and len(head.d2t.unique()) == len(ids):
            hint = "; it seems to hold target ids, where offsets to add to the draft id belong"
        raise HeadError(f"d2t does not lead to {len(ids)} distinct ids below {size}{hint}")
    if int(head.t2d.sum()) != len(ids) or not bool(head.t2d[ids].all()):
        raise HeadError("d2t and t2d name different tokens")
