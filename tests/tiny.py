"""Tiny random models that behave like models: larger initialisation (the default is near uniform
and accepts nothing), random norms and biases (the default ones and zeros hide whatever forgets
them), and perturbed copies as drafts.

Two computations of the same numbers (a row alone and in a batch, a tree and its paths) differ in
their last bits, in which way depends on the processor, and a sampled text turns over where a
uniform falls between the two. With V boundaries that differ by 1e-7 each, as in float32, that
happens with probability V 1e-7 a draw, which a suite meets; in ``EXACT`` with V 1e-16. So where a
test asks for equal texts or decisions of two computations, its models are ``EXACT``; in float32 a
test states its margin.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import transformers
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
from specwb.models.path import PathScorer
from specwb.models.place import Place
from specwb.training.heads import RECIPES, step_loss, target_outputs
from specwb.training.recipe import Moment

FAMILIES: dict[str, tuple[type, type, dict]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"head_dim": 8}),
    "mistral": (MistralConfig, MistralForCausalLM, {"head_dim": 8, "sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    # every feature the backbone knows: grouped keys, biases of all four projections, norms of q and
    # k, heads wider than the hidden size has room for
    "everything": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16, "attention_bias": True}),
}
VOCABULARY = 64
EXACT = torch.float64
# seeds whose greedy texts wander (most random models soon repeat one token, and then any draft is
# right)
SEEDS = {"llama": 2, "mistral": 1, "qwen2": 3, "qwen3": 3, "everything": 11}
# rows of different lengths, a one-token prompt among them
PROMPTS = [[1, 2, 3], [5], [7, 8, 9, 10, 11, 12, 13]]
WORDS = [f"w{i}" for i in range(VOCABULARY)]  # of a tokenizer
LOPSIDED = specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)])


def path_to(parents: Sequence[int], tokens: list[int], node: int) -> list[int]:
    """The tokens on the way from the root of a tree to a node."""
    path: list[int] = []
    while node > 0:
        path.insert(0, tokens[node])
        node = parents[node]
    return path


def loops() -> specwb.Target:
    """A model that soon repeats itself."""
    return specwb.load(build("qwen2", seed=0))


def build(
    kind: str, *, seed: int = 0, spread: float = 0.2, dtype: torch.dtype = torch.float32, **changes
) -> nn.Module:
    """A new random Hugging Face model; ``changes`` go to its config. Its weights are float32
    numbers, whatever ``dtype`` it computes in."""
    config_class, model_class, extra = FAMILIES[kind]
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": spread,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **extra,
        **changes,
    }
    torch.manual_seed(seed)
    made = model_class(config_class(**settings)).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weight.add_(torch.randn_like(weight) * 0.1)
    return cast(made, dtype)


def cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model in another number type, its rotary frequencies in float32 as in every model."""
    made = model.to(dtype)
    for module in list(made.modules()):
        rotary = getattr(module, "rotary_emb", None)
        if rotary is not None:
            module.rotary_emb = type(rotary)(rotary.config).to(next(made.parameters()).device)
    return made


def perturbed(model: nn.Module, noise: float, seed: int = 1) -> nn.Module:
    """A copy whose weights are off by ``noise``: a draft that agrees often, not always."""
    other = copy.deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn_like(weight, dtype=torch.float32) * noise)
    return other


def pair(
    noise: float, seed: int = 6, layers: int = 1, vocabulary: int = VOCABULARY
) -> tuple[specwb.Target, specwb.Target]:
    """A small target of middling entropy and a draft that is off by ``noise`` and often wrong, so
    that every branch of a rule is taken."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": layers}
    model = build("llama", seed=5, spread=0.35, vocab_size=vocabulary, **sizes)
    return specwb.load(model), specwb.load(perturbed(model, noise, seed))


@cache
def target(kind: str = "llama", dtype: torch.dtype = torch.float32) -> specwb.Target:
    return specwb.load(build(kind, seed=SEEDS[kind], dtype=dtype))


@cache
def draft(
    kind: str = "llama", noise: float = 0.02, dtype: torch.dtype = torch.float32
) -> specwb.Target:
    return specwb.load(perturbed(target(kind, dtype).model, noise, SEEDS[kind] + 1))


def loud(make: Callable[[], Any], seed: int, spread: float = 0.25) -> Any:
    """A head with random weights so large that every prediction depends on all that it sees."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make()
        for name, weight in made.named_parameters():
            weight.data = torch.randn_like(weight) * spread + ("norm" in name)
    return made.eval()


MASK = VOCABULARY - 1  # the tiny models' mask token
DIFFUSION = {"block": 8}


def with_mask(target: specwb.Target) -> specwb.Target:
    """The same target, with what a recipe asks a tokenizer for."""
    other = copy.copy(target)
    other.tokenizer = SimpleNamespace(mask_token_id=MASK, eos_token_id=None, pad_token_id=None)
    return other


@cache
def head(
    kind: str, family: str = "llama", device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Any:
    """A head of :func:`target`, see :func:`trained`."""
    if device == "cpu" and dtype is torch.float32:
        return trained(kind, target(family))
    return cast(copy.deepcopy(head(kind, family)), dtype).to(device)


def with_draft(target: specwb.Target, draft: specwb.Target) -> specwb.Target:
    """The same target, with a draft model of its own."""
    other = copy.copy(target)
    other.draft = draft  # type: ignore[assignment]
    return other


def trained(
    kind: str,
    target: specwb.Target,
    *,
    steps: int = 100,
    vocabulary: int = 48,
    temperature: float = 0.25,
    draft: specwb.Target | None = None,
) -> Any:
    """A head that was trained for a moment on the target's own texts, those after ``PROMPTS`` among
    them: right often, not always, which an untrained head never is. It is trained in float32,
    whatever the processor is fast at, and computes in the target's number type.

    What is made is kept in ``build/tiny``, under a hash of all that it is made of: the sources of
    models, of training and of this file, the versions, the target and the texts.

    Args:
        kind: a recipe's name, with its numbers behind it.
        vocabulary: how many of the target's tokens an EAGLE-3 head knows, those most frequent in
            texts.
        temperature: of the target's distribution that is learnt; random targets are near uniform at
            1.
        draft: of a decision model.
    """
    with torch.random.fork_rng(devices=[]), patch("specwb.training.heads.autocast", _in_float32):
        learnt = specwb.load(cast(copy.deepcopy(target.model), torch.float32))
        if kind == "decision":
            beside = perturbed(target.model, 0.02) if draft is None else copy.deepcopy(draft.model)
            learnt = with_draft(learnt, specwb.load(cast(beside, torch.float32)))
        torch.manual_seed(0)
        ids = _texts(target, tuple(torch.randint(target.vocabulary, (6,)).tolist()))
        made, recipe, rate = _untrained(kind, learnt, ids, vocabulary)
        if kind == "diffusion":
            steps, temperature = steps * 3 // 5, 1.0
        elif kind == "decision":
            temperature = 1.0
        models = [learnt.fingerprint, learnt.draft.fingerprint if kind == "decision" else None]
        place = _kept_under([kind, steps, vocabulary, temperature, models, ids.tolist()])
        if not _found(made, place):
            _train(made, recipe, learnt, ids, steps, temperature, rate)
            _keep(made, place)
    return cast(made, target.dtype).requires_grad_(False).eval()


@cache
def scorer(target: specwb.Target, top: int = 15) -> PathScorer:
    """A path scorer over the diffusion model of :func:`head`, with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = PathScorer(target, 32, places=8, top=top, rank=8)
        for weight in made.parameters():
            weight.data.add_(0.02 * torch.randn_like(weight))
    dtype = torch.promote_types(target.dtype, torch.float32)
    return made.to(target.device, dtype).requires_grad_(False).eval()


def _in_float32(device: torch.device) -> nullcontext:
    """In the place of ``autocast``, which is bfloat16 where the processor is fast at it."""
    return nullcontext()


def _untrained(
    kind: str, target: specwb.Target, ids: Tensor, vocabulary: int
) -> tuple[Any, Any, float]:
    """The head as its training begins, its recipe and its learning rate."""
    own: dict[str, Any] = {"unroll": 2, "regression": 0.0}
    hidden, rate = target.backbone.config.hidden_size, 1e-2
    if kind == "diffusion":
        # from an almost right model of text, as the shipped one starts from the draft; what it
        # learns is to fill in masks
        made: Any = DiffusionModel(perturbed(target.model, 0.01), mask_id=MASK)
        target, rate, own = with_mask(target), 3e-3, DIFFUSION
    elif kind.startswith("medusa"):  # medusa, medusashared: by the target's output layer
        shared = kind == "medusashared"
        made = MedusaHeads(hidden, target.vocabulary, 3, shared=shared).start_from(target)
        kind = "medusa"
    elif kind == "eagle":
        made = EagleHead(eagle_config(target), hidden)
    elif kind.startswith("falcon"):  # falcon, falcon3, falcon2linear: k and fusion
        k, fusion = int(kind[6:7] or 2), kind[7:] or "lstm"
        made = FalconHead(eagle_config(target, 2), hidden, k, fusion)
        kind, own = "falcon", {**own, "k": k}
    elif kind.startswith("kangaroo"):  # kangaroo, kangaroo0, kangaroo2layer: exit and adapter
        exit, adapter = int(kind[8:9] or 1), kind[9:] or "attention"
        made = KangarooAdapter(eagle_config(target, 1), exit, adapter).start_from(target)
        kind, own = "kangaroo", {"exit": exit}
    elif kind == "decision":
        made, own = DecisionModel(hidden), {}
    else:  # eagle3, eagle3rows: by the target's rows
        layers, known = len(target.backbone.layers), min(vocabulary, target.vocabulary)
        read = (0, layers // 2, layers)
        sizes, own_head = (hidden, read, known, target.vocabulary), kind == "eagle3"
        made = Eagle3Head(eagle_config(target), *sizes, own_head=own_head)
        kind = "eagle3"
        if made.words is not None:
            often = ids.flatten().bincount(minlength=target.vocabulary)
            made.speak(often.argsort(descending=True, stable=True)[:vocabulary])
    return made, RECIPES[kind](target, own), rate


def _train(
    made: Any,
    recipe: Any,
    target: specwb.Target,
    ids: Tensor,
    steps: int,
    temperature: float,
    rate: float,
) -> None:
    seen = target_outputs(target, ids, made.features)
    head = seen.head
    seen.head = lambda states: head(states) / temperature
    optimizer = torch.optim.AdamW(made.parameters(), lr=rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        optimizer.zero_grad()
        step_loss(recipe, made, seen, Moment(step / steps, 0, step, len(ids))).backward()
        optimizer.step()


ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "tiny"


@cache
def _sources() -> bytes:
    """A hash of the code that makes a head, and of the arithmetic it runs on."""
    folders = [ROOT / "specwb" / name for name in ("models", "training")]
    files = [Path(__file__), *sorted(path for folder in folders for path in folder.rglob("*.py"))]
    versions = [
        torch.__version__,
        transformers.__version__,
        torch.backends.cpu.get_cpu_capability(),
    ]
    versions += [os.environ.get(name, "") for name in ("ONEDNN_MAX_CPU_ISA", "MKL_CBWR")]
    digest = hashlib.sha256(" ".join(versions).encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.digest()


def _kept_under(what: list) -> Path:
    return KEPT / f"{hashlib.sha256(_sources() + repr(what).encode()).hexdigest()}.pt"


def _found(made: nn.Module, place: Path) -> bool:
    """Whether the trained weights lay there and are in ``made`` now."""
    if not place.exists():
        return False
    made.load_state_dict(torch.load(place, weights_only=True))
    return True


def _keep(made: nn.Module, place: Path) -> None:
    """In one step, so that a test process beside this one never reads half a file."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_suffix(f".{os.getpid()}")
    torch.save(made.state_dict(), part)
    part.rename(place)


@cache
def _texts(target: specwb.Target, prompts: tuple[int, ...]) -> Tensor:
    """Of the target in float64, so that they are the same on every machine."""
    target = specwb.load(cast(copy.deepcopy(target.model), EXACT))
    known = [[token % target.vocabulary for token in prompt] for prompt in PROMPTS]
    texts = [text[at : at + 25] for text in _continued(target, known, 40, 0.0) for at in (0, 15)]
    others = [[token] for token in prompts]
    return torch.tensor(
        texts + _continued(target, others, 24, 0.0) + _continued(target, others, 24, 1.0)
    )


def _continued(
    target: specwb.Target, prompts: list[list[int]], length: int, temperature: float
) -> list[list[int]]:
    out = specwb.decode(target, prompts, "ar", max_new_tokens=length, temperature=temperature)
    return [[*prompt, *text] for prompt, text in zip(prompts, out.tokens)]


@cache
def on_cuda(kind: str, noise: float, dtype: torch.dtype) -> tuple[specwb.Target, specwb.Target]:
    """The same target and draft on the CUDA device."""
    models = (target(kind, dtype).model, draft(kind, noise, dtype).model)
    return tuple(specwb.load(copy.deepcopy(m), device="cuda") for m in models)  # type: ignore[return-value]


@cache
def plain(
    kind: str, prompt: tuple[int, ...], length: int, dtype: torch.dtype = torch.float32
) -> tuple[int, ...]:
    """What plain greedy decoding of this prompt alone continues with (compared with transformers in
    test_ar_oracle)."""
    out = specwb.decode(target(kind, dtype), [list(prompt)], "ar", max_new_tokens=length)
    return tuple(out.tokens[0])


def forward(model: nn.Module, tokens: Sequence[int]) -> Tensor:
    """``[m,V]`` logits of the library's own forward."""
    with torch.no_grad():
        return model(torch.tensor([list(tokens)])).logits[0]


def states(target: specwb.Target, tokens: Tensor, numbers: Sequence[int]) -> Tensor:
    """``[B,m,len(numbers) * H]`` hidden states of texts ``[B,m]`` from the library's own forward; 0
    the embedding, -1 after the final norm."""
    inner, kept = target.model.model, {}
    hooks = [
        layer.register_forward_hook(lambda module, args, out, i=i: kept.update({i: out}))
        for i, layer in enumerate(inner.layers, 1)
    ]
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
    with torch.inference_mode():
        backbone.run(backbone.embed(tokens[None]), Place.text(1, m), store)
    return store.data[:, 0]


def recomputed_pairs(
    drafter: EagleDrafter, target: specwb.Target, tokens: Tensor, ends: Tensor | None = None
) -> Tensor:
    """``[layers, m - 1, 2 * kv_heads, head_dim]``: keys and values of the pairs of a text ``[m]``,
    from nothing; pair i is token i + 1 with the target's state of token i. ``ends [m - 1]``: how
    far each pair of a block head sees."""
    m = len(tokens) - 1
    place, store = Place.text(1, m), drafter.stack.cache(1, max(m, 1))
    if m:
        with torch.inference_mode():
            above = drafter.head.fuse(states(target, tokens[None, :-1], drafter.features))
            embedded = target.backbone.embed(tokens[None, 1:])
            if ends is not None:
                x = drafter.head.mix(embedded, above)[0]
                unseen = torch.arange(m) > ends[:m, None]
                mask = torch.zeros(1, m, m, dtype=target.dtype)
                mask.masked_fill_(unseen, torch.finfo(target.dtype).min)
                place = replace(place, mask=mask, causal=False)
                drafter.stack.run(x, place, store, attended=x)
                return store.data[:, 0, :m]
            attended, x = drafter.head.enter(embedded, above)
            drafter.stack.run(x, place, store, attended=attended)
    return store.data[:, 0, :m]


def recomputed_adapter(drafter: KangarooDrafter, target: specwb.Target, tokens: Tensor) -> Tensor:
    """``[layers, m, 2 * kv_heads, head_dim]``: keys and values of an adapter over the states of a
    text ``[m]``, from nothing."""
    m = len(tokens)
    store = drafter.stack.cache(1, m)
    with torch.inference_mode():
        at_exit = states(target, tokens[None], drafter.features)
        drafter.stack.run(at_exit, Place.text(1, m), store)
    return store.data[:, 0]


def tokenizer(words: Sequence[str] = WORDS) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words: word i is token i."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    made = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token=words[0])
