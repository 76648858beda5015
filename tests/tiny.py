"""Tiny random models that behave like models: larger initialisation (the default is near uniform and accepts nothing), random norms
and biases (the default ones and zeros hide whatever forgets them), and perturbed copies as drafts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import specwb
from specwb.models.backbone import Backbone

FAMILIES: dict[str, tuple[type, type, dict]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"head_dim": 8}),
    "mistral": (MistralConfig, MistralForCausalLM, {"head_dim": 8, "sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
}
VOCABULARY = 64
# seeds whose greedy texts wander (most random models soon repeat one token, and then any draft is right)
SEEDS = {"llama": 2, "mistral": 1, "qwen2": 3, "qwen3": 3}
# rows of different lengths, a one-token prompt among them
PROMPTS = [[1, 2, 3], [5], [7, 8, 9, 10, 11, 12, 13]]


def build(kind: str, *, seed: int = 0, spread: float = 0.2, **changes) -> nn.Module:
    """A new random Hugging Face model; ``changes`` go to its config."""
    config_class, model_class, extra = FAMILIES[kind]
    settings = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": spread,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **extra, **changes,
    }  # fmt: skip
    torch.manual_seed(seed)
    made = model_class(config_class(**settings)).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weight.add_(torch.randn_like(weight) * 0.1)
    return made


def perturbed(model: nn.Module, noise: float, seed: int = 1) -> nn.Module:
    """A copy whose weights are off by ``noise``: a draft that agrees often, not always."""
    other = copy.deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn_like(weight) * noise)
    return other


@cache
def target(kind: str = "llama") -> specwb.Target:
    return specwb.load(build(kind, seed=SEEDS[kind]))


@cache
def draft(kind: str = "llama", noise: float = 0.02) -> specwb.Target:
    return specwb.load(perturbed(target(kind).model, noise, SEEDS[kind] + 1))


@cache
def on_cuda(kind: str, noise: float) -> tuple[specwb.Target, specwb.Target]:
    """The same target and draft on the CUDA device."""
    return tuple(specwb.load(copy.deepcopy(m.model), device="cuda") for m in (target(kind), draft(kind, noise)))  # type: ignore[return-value]


@cache
def plain(kind: str, prompt: tuple[int, ...], length: int) -> tuple[int, ...]:
    """What plain greedy decoding of this prompt alone continues with (compared with transformers in test_ar_oracle)."""
    return tuple(specwb.decode(target(kind), [list(prompt)], "ar", max_new_tokens=length).tokens[0])


def forward(model: nn.Module, tokens: Sequence[int]) -> Tensor:
    """``[m,V]`` logits of the library's own forward."""
    with torch.no_grad():
        return model(torch.tensor([list(tokens)])).logits[0]


def recomputed(backbone: Backbone, tokens: Tensor) -> Tensor:
    """``[layers, m, 2 * kv_heads, head_dim]`` keys and values of a text ``[m]``, from nothing."""
    m = len(tokens)
    store = backbone.cache(1, m)
    positions = torch.arange(m)[None]
    with torch.inference_mode():
        backbone.run(backbone.embed(tokens[None]), positions, positions, store, m, None, causal=True)
    return store.data[:, 0]


def tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words: word i is token i."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    made = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token=words[0])
