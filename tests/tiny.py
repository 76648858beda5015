"""Tiny random models that behave like models: larger initialisation (the default is near uniform and accepts nothing), random norms
and biases (the default ones and zeros hide whatever forgets them), and perturbed copies as drafts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

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
from specwb.drafters.eagle import EagleDrafter
from specwb.drafters.kangaroo import KangarooDrafter
from specwb.models.backbone import Backbone
from specwb.models.decision import DecisionModel
from specwb.models.diffusion import DiffusionModel
from specwb.models.eagle import Eagle3Head, EagleHead, eagle_config
from specwb.models.falcon import FalconHead
from specwb.models.kangaroo import KangarooAdapter
from specwb.models.medusa import MedusaHeads
from specwb.training.heads import RECIPES, look, step_loss
from specwb.training.recipe import Moment

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


MASK = VOCABULARY - 1  # the tiny models' mask token
DIFFUSION = {"block": 8}


def with_mask(target: specwb.Target) -> specwb.Target:
    """The same target, with what a recipe asks a tokenizer for."""
    other = copy.copy(target)
    other.tokenizer = SimpleNamespace(mask_token_id=MASK, eos_token_id=None, pad_token_id=None)
    return other


@cache
def head(kind: str, family: str = "llama", device: str = "cpu") -> Any:
    """A head of :func:`target`, see :func:`trained`."""
    return trained(kind, target(family)) if device == "cpu" else copy.deepcopy(head(kind, family)).to(device)


def with_draft(target: specwb.Target, draft: specwb.Target) -> specwb.Target:
    """The same target, with a draft model of its own."""
    other = copy.copy(target)
    other.draft = draft  # type: ignore[assignment]
    return other


def trained(
    kind: str, target: specwb.Target, *, steps: int = 100, vocabulary: int = 48, temperature: float = 0.25, draft: specwb.Target | None = None
) -> Any:  # fmt: skip
    """A head that was trained for a moment on the target's own texts, those after ``PROMPTS`` among them: right often, not always, which an
    untrained head never is.

    ``kind``: a recipe's name. ``vocabulary``: how many of the target's tokens an EAGLE-3 head knows, those that its texts have most of.
    ``temperature``: of the target's law that it learns; random targets are near uniform at 1. ``draft``: of a decision model.
    """
    own: dict[str, Any] = {"unroll": 2, "regression": 0.0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        prompts = torch.randint(target.vocabulary, (12,))
        ids = _texts(target, tuple(prompts.tolist()))
        hidden, rate = target.backbone.config.hidden_size, 1e-2
        if kind == "diffusion":
            # from an almost right model of text, as the shipped one starts from the draft; what it learns is to fill in masks
            made: Any = DiffusionModel(perturbed(target.model, 0.01), mask_id=MASK)
            target, steps, rate, temperature, own = with_mask(target), steps * 3 // 5, 3e-3, 1.0, DIFFUSION
        elif kind == "medusa":
            made = MedusaHeads(hidden, target.vocabulary, heads=3).start_from(target)
        elif kind == "eagle":
            made = EagleHead(eagle_config(target), hidden)
        elif kind.startswith("falcon"):  # falcon, falcon3, falcon2linear: k and fusion
            k, fusion = int(kind[6:7] or 2), kind[7:] or "lstm"
            made, kind, own = FalconHead(eagle_config(target, 2), hidden, k, fusion), "falcon", {**own, "k": k}
        elif kind.startswith("kangaroo"):  # kangaroo, kangaroo0, kangaroo2layer, kangaroo1mlp: exit and adapter
            exit, adapter = int(kind[8:9] or 1), kind[9:] or "attention"
            made, kind, own = KangarooAdapter(eagle_config(target, 1), exit, adapter).start_from(target), "kangaroo", {"exit": exit}
        elif kind == "decision":
            made, temperature, own = DecisionModel(hidden), 1.0, {}
            target = with_draft(target, draft or specwb.load(perturbed(target.model, 0.02)))
        else:
            layers = len(target.backbone.layers)
            made = Eagle3Head(eagle_config(target), hidden, (0, layers // 2, layers), min(vocabulary, target.vocabulary), target.vocabulary)
            if made.ids is not None:
                made.speak(ids.flatten().bincount(minlength=target.vocabulary).argsort(descending=True, stable=True)[:vocabulary])
        recipe = RECIPES[kind](target, own)
        found = look(target, ids, made.features)
        found.logits /= temperature
        optimizer = torch.optim.AdamW(made.parameters(), lr=rate)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
            optimizer.zero_grad()
            step_loss(recipe, made, found, Moment(step / steps, 0, step, len(ids))).backward()
            optimizer.step()
    return made.requires_grad_(False).eval()


@cache
def _texts(target: specwb.Target, prompts: tuple[int, ...]) -> Tensor:
    known = [[token % target.vocabulary for token in prompt] for prompt in PROMPTS]
    texts = [text[at : at + 25] for text in _continued(target, known, 40, 0.0) for at in (0, 15)]
    others = [[token] for token in prompts]
    return torch.tensor(texts + _continued(target, others, 24, 0.0) + _continued(target, others, 24, 1.0))


def _continued(target: specwb.Target, prompts: list[list[int]], length: int, temperature: float) -> list[list[int]]:
    out = specwb.decode(target, prompts, "ar", max_new_tokens=length, temperature=temperature)
    return [[*prompt, *text] for prompt, text in zip(prompts, out.tokens)]


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


def states(target: specwb.Target, tokens: Tensor, numbers: Sequence[int]) -> Tensor:
    """``[B,m,len(numbers) * H]`` hidden states of texts ``[B,m]`` from the library's own forward; 0 the embedding, -1 after the final norm."""
    inner, kept = target.model.model, {}
    hooks = [layer.register_forward_hook(lambda module, args, out, i=i: kept.update({i: out})) for i, layer in enumerate(inner.layers, 1)]
    with torch.no_grad():
        kept[-1] = inner(input_ids=tokens, use_cache=False).last_hidden_state
        kept[0] = inner.embed_tokens(tokens)
    for hook in hooks:
        hook.remove()
    return torch.cat([kept[i] for i in numbers], -1)


def recomputed(backbone: Backbone, tokens: Tensor) -> Tensor:
    """``[layers, m, 2 * kv_heads, head_dim]`` keys and values of a text ``[m]``, from nothing."""
    m = len(tokens)
    store = backbone.cache(1, m)
    positions = torch.arange(m)[None]
    with torch.inference_mode():
        backbone.run(backbone.embed(tokens[None]), positions, positions, store, m, None, causal=True)
    return store.data[:, 0]


def recomputed_pairs(drafter: EagleDrafter, target: specwb.Target, tokens: Tensor, ends: Tensor | None = None) -> Tensor:
    """``[layers, m - 1, 2 * kv_heads, head_dim]``: keys and values of the pairs of a text ``[m]``, from nothing; pair i is token i + 1 with the
    target's state of token i. ``ends [m - 1]``: how far each pair of a block head sees."""
    m = len(tokens) - 1
    positions = torch.arange(m)[None]
    store = drafter.stack.cache(1, max(m, 1))
    if m:
        with torch.inference_mode():
            above = drafter.head.fuse(states(target, tokens[None, :-1], drafter.features))
            embedded = target.backbone.embed(tokens[None, 1:])
            if ends is not None:
                x = drafter.head.mix(embedded, above)[0]
                mask = torch.zeros(1, m, m).masked_fill_(torch.arange(m) > ends[:m, None], torch.finfo(torch.float32).min)
                drafter.stack.run(x, positions, positions, store, m, mask, attended=x)
                return store.data[:, 0, :m]
            attended, x = drafter.head.enter(embedded, above)
            drafter.stack.run(x, positions, positions, store, m, None, causal=True, attended=attended)
    return store.data[:, 0, :m]


def recomputed_adapter(drafter: KangarooDrafter, target: specwb.Target, tokens: Tensor) -> Tensor:
    """``[layers, m, 2 * kv_heads, head_dim]``: keys and values of an adapter over the states of a text ``[m]``, from nothing."""
    m = len(tokens)
    store, positions = drafter.stack.cache(1, m), torch.arange(m)[None]
    with torch.inference_mode():
        drafter.stack.run(states(target, tokens[None], drafter.features), positions, positions, store, m, None, causal=True)
    return store.data[:, 0]


def tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words: word i is token i."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    made = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token=words[0])
