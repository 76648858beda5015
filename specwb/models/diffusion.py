"""Masked-diffusion language models as drafters: the lab's own, Dream's and LLaDA's, in one form.

Such a model says the tokens of all masked places at once. Three things differ between models
(*conventions*):

- shift: the output at place j says token j + 1 (Dream, and ours), or token j (LLaDA).
- sight: every place sees every other (Dream, LLaDA), so that a text's keys and values change with
  every token behind it; or text sees what
  is before it and only the masks of a block see each other (ours, after Fast-dLLM v2's block-wise
  form), so that they never change.
- ids: of the mask, and of what ends a text.

One of ours may lie between a target's embedding and its output layer and share both
(:func:`shared`). Its mask is a vector of its own behind the last token, and it may draft among
words only (:mod:`specwb.models.words`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.initialization import no_init_weights

from specwb.core.files import foreign, table
from specwb.models.backbone import Backbone
from specwb.models.checkpoint import HeadError, Stored, check_sizes, fill, opened, words_in, write
from specwb.models.eagle import LLAMA, described, with_sdpa
from specwb.models.folder import LoadError
from specwb.models.target import Target
from specwb.models.words import rows_of, spread

DREAM_CONTEXT = 2048
"""What Dream's README gives for input and output together; its config.json repeats the base
model's."""


class DiffusionModel(nn.Module):
    """The library's decoder with a diffusion model's conventions; its keys are the library's,
    ``model.*`` and ``lm_head.weight``.

    Args:
        model: a ``LlamaForCausalLM`` or ``Qwen2ForCausalLM``, its weights the diffusion model's.
        mask_id: of the mask token. ends: ids that end a text or fill up behind its end.
        shift: the output at place j says token j + 1. causal: text sees only what is before it.
        context: places it was made for.
        words: ``[d]`` the ids that its output layer says, ascending; None for all.
    """

    features: tuple[int, ...] = ()  # it reads none of the target's states
    words: Tensor | None
    _backbone: Backbone | None = None

    def __init__(
        self,
        model: Any,
        mask_id: int,
        ends: tuple[int, ...] = (),
        shift: bool = True,
        causal: bool = True,
        context: int = 2**31,
        words: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.net, self.mask_id, self.ends = model, mask_id, tuple(ends)
        self.shift, self.causal, self.context = shift, causal, context
        self.card: dict[str, Any] = {}
        self.register_buffer("words", words)
        embedded = model.model.embed_tokens.num_embeddings
        if not 0 <= mask_id < embedded:
            raise HeadError(
                f"mask token id {mask_id} is outside the model's vocabulary of {embedded}"
            )

    @property
    def vocabulary(self) -> int:
        return self.net.config.vocab_size

    @property
    def hidden(self) -> int:
        return self.net.config.hidden_size

    @property
    def shared(self) -> bool:
        """Whether embedding and output layer are a target's, which are not stored."""
        return isinstance(self.net.model.embed_tokens, SharedEmbedding)

    @property
    def banned(self) -> Tensor:
        """``[n]``, the places of the output that are never drafted: the mask's, if it has one."""
        ids = [] if self.shared else [self.mask_id]
        return torch.tensor(ids, dtype=torch.long, device=self.backbone.device)

    @property
    def backbone(self) -> Backbone:
        """One for all that draft with this model; made anew where it does not hold the weights any
        more (:meth:`specwb.models.backbone.Stack.holds`)."""
        if self._backbone is None or not self._backbone.holds(self.net.model.layers):
            # weights become views of what is made here, and may be trained further
            with torch.inference_mode(False):
                self._backbone = Backbone(self.net)
        return self._backbone

    @property
    def spared(self) -> int:
        """Masks fewer than tokens. With the shift the last text place says the first token, so ours
        takes one mask less; Dream was trained on texts that go on behind every mask it is asked
        about, so one more stands there that says nothing."""
        return int(self.shift and self.causal)

    def masks(self, k: int) -> int:
        """How many masked places are computed for k tokens."""
        return max(k - self.spared, 0)

    @property
    def first(self) -> int:
        """The output that says the first drafted token, counted from the first mask."""
        return -1 if self.shift else 0

    def forward(self, ids: Tensor, positions: Tensor, sight: Tensor) -> Tensor:
        """``[B,m,H]`` states before the head, with gradients. ids, positions ``[B,m]``; sight
        ``[m,m]`` or ``[B,m,m]``: who sees whom."""
        sight = sight[:, None] if sight.ndim == 3 else sight[None, None].expand(len(ids), 1, -1, -1)
        x = self.net.model.embed_tokens(ids)
        return self.net.model(
            inputs_embeds=x, position_ids=positions, attention_mask=sight, use_cache=False
        ).last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """``[..,H] -> [..,V]``; where there are words, ``[..,d]``."""
        return self.net.lm_head(hidden)

    def tokens(self, places: Tensor) -> Tensor:
        """The ids at these places of the output."""
        return places if self.words is None else self.words[places]

    def spread(self, logits: Tensor, vocabulary: int) -> Tensor:
        """``[..,V]``, or ``[..,d]`` of the words, ``-> [..,vocabulary]`` by id; -inf of ids that it
        does not say."""
        if self.words is None:
            logits = logits[..., :vocabulary]
            return F.pad(logits, (0, vocabulary - logits.shape[-1]), value=-torch.inf)
        return spread(logits, self.words, vocabulary, -torch.inf)

    def save(self, folder: Path, card: dict | None = None) -> None:
        """``config.json``, fp16 ``model.safetensors`` with the library's keys, and
        ``card.json``.

        Of a model that shares a target's embedding the keys are those of its layers and of its
        norm, ``model.embed_tokens.mask_embedding [H]``, and ``words`` if there are any.
        """
        config, weights = described(self.net.config), self.net.state_dict()
        conventions: dict[str, Any] = {"mask_token_id": self.mask_id, "ends": list(self.ends)}
        conventions |= {"shift": self.shift, "causal": self.causal}
        if self.net.config.tie_word_embeddings:
            del weights["lm_head.weight"]
        if self.shared:
            conventions["embedding"] = "target"
        if self.words is not None:
            weights["words"] = self.words
        write(folder, {**config, "specwb_diffusion": conventions}, weights, "model", card)


class SharedEmbedding(nn.Module):
    """A target's embedding, and behind its last token one vector more, the mask's. The target's
    table is no part of the module: it is not trained, moved or stored."""

    table: Any

    def __init__(self, table: Any, hidden: int) -> None:
        super().__init__()
        self.mask_embedding = nn.Parameter(torch.zeros(hidden))
        self.num_embeddings = table.num_embeddings + 1
        object.__setattr__(self, "table", table)

    def forward(self, ids: Tensor) -> Tensor:
        is_mask = ids == self.num_embeddings - 1
        tokens = self.table(ids.masked_fill(is_mask, 0)).detach().to(self.mask_embedding.dtype)
        return torch.where(is_mask[..., None], self.mask_embedding, tokens)


def load_diffusion(source: str | Path, target: Target) -> DiffusionModel:
    """Loads one of ours, or a published Dream or LLaDA checkpoint; which it is, its
    ``config.json`` says (``model_type``).

    Args:
        source: a folder, or a hub id.
        target: the model that verifies what it drafts; both must have the same token ids.
    Raises:
        HeadError: another kind of model, keys or shapes that the config does not describe, settings
            that are not computed here, or a tokenizer with other ids.
    """
    with opened(source, target) as stored:
        config, weights = stored.config, dict(stored.weights)
        kind = str(config.get("model_type", "")).lower()
        # the library checks types itself, with errors of its own
        problem = "config.json describes no model that can be built"
        with foreign(problem, HeadError), no_init_weights():
            if "specwb_diffusion" in config:
                model = _ours(stored, target)
            elif kind == "dream":
                model = _dream(stored)
            elif kind == "llada":
                model = _llada(stored)
            else:
                raise HeadError(
                    f"model_type {config.get('model_type')!r} is no diffusion model known here: "
                    "Dream, llada, or one of ours"
                )
        check_ids(stored.where, model, target)
        if kind == "llada":
            weights = _llada_keys(weights)
        if model.net.config.tie_word_embeddings:
            weights["lm_head.weight"] = weights.get("model.embed_tokens.weight", torch.empty(0))
        if model.words is not None:
            del weights["words"]
        fill(model.net, weights, target)
        model.net.tie_weights()  # which a model made without weights is not
        model.card = stored.card
        rotary = type(model.net.model.rotary_emb)(model.net.config)
        model.to(target.device, target.dtype)
        model.net.model.rotary_emb = rotary.to(
            target.device
        )  # its frequencies are float32 anywhere
        return model.eval()


def build(config: Any, **conventions: Any) -> DiffusionModel:
    """A fresh model with layers of the library's: Qwen2's where the config is, else Llama's.

    Args:
        config: the library's config.
        conventions: arguments of :class:`DiffusionModel` but the model.
    """
    kind = Qwen2ForCausalLM if isinstance(config, Qwen2Config) else LlamaForCausalLM
    return DiffusionModel(kind(with_sdpa(config)), **conventions)


def shared(
    config: Any,
    target: Target,
    words: Tensor | None = None,
    in_int8: bool = False,
    **conventions: Any,
) -> DiffusionModel:
    """A fresh model between the embedding and the output layer of a target, which stay the
    target's; the mask's id is the target's vocabulary."""
    # the library makes both tables with the model: small ones, which are thrown away
    config.tie_word_embeddings, config.vocab_size = False, 1
    net = LlamaForCausalLM(with_sdpa(config))
    config.vocab_size = target.vocabulary
    net.model.embed_tokens = SharedEmbedding(target.backbone.embed, config.hidden_size)
    del net.lm_head
    # no part of the module, so that it is not trained, moved or stored
    object.__setattr__(net, "lm_head", rows_of(target.backbone.lm_head, words, in_int8))
    return DiffusionModel(net, target.vocabulary, words=words, **conventions)


def _required(config: dict, key: str) -> Any:
    if config.get(key) is None:
        raise HeadError(f"config.json has no {key}")
    return config[key]


def _ours(stored: Stored, target: Target) -> DiffusionModel:
    config, settings = stored.config, stored.config["specwb_diffusion"]
    if not isinstance(settings, dict):
        raise HeadError("specwb_diffusion in config.json must be a table")
    mask = _required(settings, "mask_token_id")
    layers = {k: v for k, v in config.items() if k in LLAMA and k != "model_type"}
    llama = LlamaConfig.from_dict(layers)
    conventions = {
        "shift": bool(settings.get("shift", True)),
        "causal": bool(settings.get("causal", True)),
        "ends": tuple(settings.get("ends", ())),
        "context": llama.max_position_embeddings,
    }
    if "embedding" not in settings:
        return build(llama, mask_id=mask, **conventions)
    if settings["embedding"] != "target":
        raise HeadError(f"embedding in config.json must be 'target', got {settings['embedding']!r}")
    check_sizes(target, llama.hidden_size, llama.vocab_size)
    if mask != target.vocabulary:
        behind = f"{target.vocabulary}, behind the last token"
        raise HeadError(f"mask_token_id must be {behind}, got {mask!r}")
    words = words_in(stored.weights, target)
    in_int8 = stored.card.get("store") == "int8"
    return shared(llama, target, words, in_int8, **conventions)


def _dream(stored: Stored) -> DiffusionModel:
    """Qwen2's layers and keys; shifted. In the released models mask 151666, end of text and filling
    151643, ``<|im_end|>`` 151645."""
    mask, names = _required(stored.config, "mask_token_id"), {*LLAMA, "rope_theta", "rope_scaling"}
    layers = {k: v for k, v in stored.config.items() if k in names - {"model_type"}}
    conventions: dict[str, Any] = {"shift": True, "causal": False, "ends": _ends(stored)}
    return build(Qwen2Config.from_dict(layers), mask_id=mask, context=DREAM_CONTEXT, **conventions)


_LLADA = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
}
_LLADA_OUTER = {"wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head"}


def _llada(stored: Stored) -> DiffusionModel:
    """Llama's layers under OLMo's names; not shifted; mask 126336, end of text 126081, end of turn
    126348 in the released models."""
    config = stored.config
    mask = _required(config, "mask_token_id")
    only = {
        "block_type": "llama",
        "layer_norm_type": "rms",
        "activation_type": "silu",
        "rope": True,
        "alibi": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "attention_layer_norm": False,
        "input_emb_norm": False,
        "scale_logits": False,
        "block_group_size": 1,
    }
    for key, usual in only.items():
        if config.get(key, usual) != usual:
            raise HeadError(f"LLaDA with {key}={config[key]!r} is not supported, only {usual!r}")
    heads, width = _required(config, "n_heads"), _required(config, "d_model")
    llama = LlamaConfig(
        vocab_size=config.get("embedding_size") or _required(config, "vocab_size"),
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=config.get("n_kv_heads") or heads,
        num_hidden_layers=_required(config, "n_layers"),
        intermediate_size=config.get("mlp_hidden_size") or int(config.get("mlp_ratio", 4) * width),
        max_position_embeddings=config.get("max_sequence_length", 4096),
        rms_norm_eps=config.get("rms_norm_eps", 1e-5),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": float(config.get("rope_theta", 10000.0)),
        },
        tie_word_embeddings=bool(config.get("weight_tying", False)),
    )
    conventions: dict[str, Any] = {"shift": False, "causal": False, "ends": _ends(stored)}
    return build(llama, mask_id=mask, context=llama.max_position_embeddings, **conventions)


def _llada_keys(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for key, weight in weights.items():
        parts = key.removeprefix("model.").removeprefix("transformer.").split(".")
        if parts[0] == "blocks" and len(parts) == 4 and parts[2] in _LLADA:
            renamed[f"model.layers.{parts[1]}.{_LLADA[parts[2]]}.{parts[3]}"] = weight
        elif parts[0] in _LLADA_OUTER and len(parts) == 2:
            renamed[f"{_LLADA_OUTER[parts[0]]}.{parts[1]}"] = weight
        else:
            raise HeadError(f"the weights do not fit (surplus {key})")
    return renamed


def _ends(stored: Stored) -> tuple[int, ...]:
    """End of text, filling, and what the generation settings beside the config add (end of a
    turn)."""
    more = table(stored.where / "generation_config.json", LoadError)
    keys = ("eos_token_id", "pad_token_id")
    named = [c.get(key) for c in (stored.config, more) for key in keys]
    lists = [ids if isinstance(ids, list) else [ids] for ids in named if ids is not None]
    return tuple(sorted({i for ids in lists for i in ids}))


def check_ids(where: Path | str, model: DiffusionModel, target: Target) -> None:
    """Verification compares ids: they must mean the same to both."""
    needed = target.vocabulary if target.tokenizer is None else len(target.tokenizer)
    if model.vocabulary < min(needed, target.vocabulary):
        raise HeadError(
            f"{where}: the diffusion model has {model.vocabulary} tokens, {target.name!r} uses "
            f"{needed}; it needs the target's tokenizer"
        )
    if model.shared and model.vocabulary != target.vocabulary:
        raise HeadError(
            f"{where}: the diffusion model shares the embedding of a target of {model.vocabulary} "
            f"tokens, {target.name!r} has {target.vocabulary}"
        )
    vocabulary = _vocabulary(Path(where))
    if vocabulary is None or target.tokenizer is None:
        return
    words = target.tokenizer.get_vocab()
    plain = set(words) - set(target.tokenizer.get_added_vocab())
    others = (t for t in words if (vocabulary[t] != words[t] if t in vocabulary else t in plain))
    if (other := min(others, key=words.__getitem__, default=None)) is not None:
        raise HeadError(
            f"{where}: tokenizer mismatch: {other!r} is id {words[other]} for {target.name!r} "
            f"and {vocabulary.get(other)} for the diffusion model; "
            "use one made with the target's tokenizer"
        )


def _vocabulary(where: Path) -> dict[str, int] | None:
    """The ids of the words of a folder's tokenizer; None where it has none."""
    if (where / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        with foreign(f"{where / 'tokenizer.json'} is no tokenizer", HeadError):
            return Tokenizer.from_file(str(where / "tokenizer.json")).get_vocab()
    words = table(where / "vocab.json", LoadError) | table(where / "added_tokens.json", LoadError)
    return words or None
