"""Diffusion models from files of the published layouts, and what is said of masks with a cache
against the library's forward over everything."""

from __future__ import annotations

import copy
import json
import math
import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from layouts import damaged, refused
from safetensors.torch import load_file, save_file
from torch import Tensor

import specwb
from specwb.models.diffusion import DREAM_CONTEXT, DiffusionModel, build, load_diffusion, shared
from specwb.models.eagle import eagle_config
from specwb.models.masked import Blocks, block

H, V, FFN, HEADS, KV, LAYERS, MASK = 32, tiny.VOCABULARY, 64, 4, 2, 3, tiny.MASK
WORDS = [f"w{i}" for i in range(V)]
TEXT = [7, 8, 9, 10, 11, 12, 13, 3, 3, 20]
KINDS = {
    "ours": (True, True),
    "dream": (True, False),
    "llada": (False, False),
    "causal, not shifted": (False, True),
}  # shift, causal
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> specwb.Target:
    """With a tokenizer and files of its own."""
    place = tmp_path_factory.mktemp("target")
    tiny.build("llama", seed=2).save_pretrained(place)
    tiny.tokenizer(WORDS).save_pretrained(place)
    return specwb.load(place)


@cache
def model(kind: str) -> DiffusionModel:
    """Random, of large weights: what any place says depends on all that it sees."""
    shift, causal = KINDS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = tiny.build("llama", num_hidden_layers=2, initializer_range=0.2).config
        made = build(config, mask_id=MASK, ends=(2,), shift=shift, causal=causal, context=512)
        for name, weight in made.named_parameters():
            if "norm" in name:
                weight.data += torch.randn_like(weight) * 0.1
    return made.requires_grad_(False).eval()


# ---------------------------------------------------------- the library's forward over everything


@torch.no_grad()
def outputs(made: DiffusionModel, text: list[int], masks: list[int]) -> Tensor:
    """``[n + m, V]``: the text and what stands in its block, seen as the model sees them."""
    n, m = len(text), len(masks)
    sees = torch.ones(n + m, n + m, dtype=torch.bool)
    if made.causal:
        sees[:n] = torch.arange(n + m) <= torch.arange(n)[:, None]
    mask = torch.zeros(n + m, n + m).masked_fill(~sees, torch.finfo(torch.float32).min)
    ids, positions = torch.tensor([[*text, *masks]]), torch.arange(n + m)[None]
    how = {"position_ids": positions, "attention_mask": mask[None, None]}
    return made.net.lm_head(made.net.model(input_ids=ids, **how).last_hidden_state)[0]


def said(
    made: DiffusionModel, text: list[int], k: int, shown: dict[int, int] | None = None
) -> Tensor:
    """``[k, V]`` of the tokens behind a text; ``shown``: tokens of the block that are no longer
    masked."""
    masks = k - 1 if made.shift and made.causal else k
    found = outputs(made, text, [(shown or {}).get(j, MASK) for j in range(masks)])
    first = len(text) - 1 if made.shift else len(text)
    return found[first : first + k]


def denoised(made: DiffusionModel, text: list[int], k: int, steps: int) -> tuple[Tensor, list[int]]:
    """``[k, V]`` logits of the step in which each place got its token, and how many did in each."""
    shown: dict[int, int] = {}
    out, counts = torch.empty(k, V), []
    for step in range(steps):
        logits = said(made, text, k, shown)
        p = logits.clone().index_fill_(-1, torch.tensor([MASK]), -math.inf).softmax(-1)
        hidden = sorted((j for j in range(k) if j not in shown), key=lambda j: -float(p[j].max()))
        now = hidden if step == steps - 1 else hidden[: math.ceil(k / steps)]
        for j in now:
            out[j], shown[j] = logits[j], int(p[j].argmax())
        counts.append(len(now))
    return out, counts


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


# ----------------------------------------------------------------------------------- what is said


@every_kind
@pytest.mark.parametrize("k", [1, 7])
def test_a_block_is_the_librarys_forward(kind, k):
    for text in ([5], TEXT):
        close(block(model(kind), text, k), said(model(kind), text, k))


@every_kind
@pytest.mark.parametrize(("k", "steps"), [(7, 3), (1, 2)])
def test_denoising_step_by_step(kind, k, steps):
    made = model(kind)
    wanted, counts = denoised(made, TEXT, k, steps)
    close(block(made, TEXT, k, steps), wanted)
    assert sum(counts) == k
    assert max(counts) == math.ceil(k / steps)
    if k == 7:
        assert (wanted - said(made, TEXT, k)).abs().max() > 0.1, "one step would have said the same"


class Decoding:
    """Rows of texts that are known further every round; says what Blocks says, as a drafter asks
    for it."""

    def __init__(self, made: DiffusionModel, texts: list[list[int]], capacity: int = 64) -> None:
        self.texts, self.blocks = texts, Blocks(made, len(texts), capacity)
        self.capacity, self.fed = capacity, torch.zeros(len(texts), dtype=torch.long)

    def say(self, lengths: list[int], k: list[int], steps: int = 1) -> Tensor:
        """Slots behind the known text hold rubbish, as after a rejected draft."""
        tokens = torch.randint(V, (len(lengths), self.capacity))
        for row, (text, n) in enumerate(zip(self.texts, lengths, strict=True)):
            tokens[row, :n] = torch.tensor(text[:n])
        length = torch.tensor(lengths)
        fresh = max(1, max((length - self.fed).tolist()))
        with torch.inference_mode():
            out, _ = self.blocks.say(
                tokens, length, max(lengths), self.fed, fresh, torch.tensor(k), max(k), steps
            )
        self.fed = length
        return out


TEXTS = [
    torch.randint(V - 1, (40,), generator=torch.Generator().manual_seed(i)).tolist()
    for i in range(3)
]
ROUNDS = [
    ([3, 1, 11], [4, 7, 1]),
    ([4, 6, 12], [6, 2, 6]),
    ([9, 7, 12], [1, 5, 0]),
    ([10, 13, 17], [8, 8, 3]),
    ([17, 14, 18], [2, 0, 9]),
]


@every_kind
@pytest.mark.parametrize("steps", [1, 3])
def test_rounds_with_a_cache_are_forwards_over_everything(kind, steps):
    """Rows of different lengths, drafts of different lengths, some of nothing; whatever stood in
    the block the round before."""
    made, batch = model(kind), Decoding(model(kind), TEXTS)
    alone = [Decoding(made, [text]) for text in TEXTS]
    for lengths, k in ROUNDS:
        found = batch.say(lengths, k, steps)
        for row in range(3):
            if k[row]:
                wanted, _ = denoised(made, TEXTS[row][: lengths[row]], k[row], steps)
                close(found[row, : k[row]], wanted)
                close(found[row, : k[row]], alone[row].say([lengths[row]], [k[row]], steps)[0])


def test_a_model_that_looks_back_computes_only_what_is_new(monkeypatch):
    """One forward a draft, of any length: the new tokens and k - 1 masks; of a model that sees
    everything, all there is."""
    for kind in KINDS:
        made = model(kind)
        decoding, run = Decoding(made, TEXTS[:1]), made.backbone.run
        widths: list[int] = []

        def counted(x, *rest, run=run, widths=widths, **more):
            widths.append(x.shape[1])
            return run(x, *rest, **more)

        monkeypatch.setattr(made.backbone, "run", counted)
        for length in (5, 8, 9):
            decoding.say([length], [20])
        masks = 19 if kind == "ours" else 20
        assert widths == [n + masks for n in ((5, 3, 1) if made.causal else (5, 8, 9))]
        monkeypatch.undo()


# ------------------------------------------------------------------------------ published layouts


DREAM: dict[str, Any] = json.loads("""{
    "architectures": ["DreamModel"], "attention_dropout": 0.0, "bos_token_id": 1,
    "auto_map": {"AutoModel": "modeling_dream.DreamModel"}, "eos_token_id": 2,
    "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 131072,
    "max_window_layers": 28, "model_type": "Dream", "pad_token_id": 2, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 300.0, "sliding_window": null, "use_cache": true,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.46.2",
    "use_sliding_window": false}""")
DREAM |= {"hidden_size": H, "intermediate_size": FFN, "mask_token_id": MASK, "vocab_size": V}
DREAM |= {"num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "num_key_value_heads": KV}
LLADA: dict[str, Any] = json.loads("""{
    "activation_type": "silu", "alibi": false, "alibi_bias_max": 8.0, "attention_dropout": 0.0,
    "architectures": ["LLaDAModelLM"], "attention_layer_norm": false, "model_type": "llada",
    "attention_layer_norm_with_affine": true, "bias_for_layer_norm": false, "init_std": 0.02,
    "block_group_size": 1, "block_type": "llama", "embedding_dropout": 0.0, "eos_token_id": 2,
    "flash_attention": false, "include_bias": false, "include_qkv_bias": false, "rope": true,
    "init_fn": "mitchell", "input_emb_norm": false, "layer_norm_type": "rms", "mlp_ratio": 4,
    "layer_norm_with_affine": true, "max_sequence_length": 96, "multi_query_attention": null,
    "pad_token_id": 2, "precision": "amp_bf16", "residual_dropout": 0.0, "rms_norm_eps": 1e-05,
    "rope_full_precision": true, "rope_theta": 300.0, "scale_logits": false, "use_cache": false,
    "transformers_version": "4.46.3", "weight_tying": false}""")
LLADA |= {"d_model": H, "mlp_hidden_size": FFN, "mask_token_id": MASK, "vocab_size": V}
LLADA |= {"n_heads": HEADS, "n_layers": LAYERS, "n_kv_heads": KV, "embedding_size": V}
NAMES = {
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
}


def as_llada(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A Llama's weights under LLaDA's names."""
    outer = {"model.embed_tokens": "wte", "model.norm": "ln_f", "lm_head": "ff_out"}
    renamed = {}
    for key, weight in weights.items():
        name = key.removesuffix(".weight")
        if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name):
            renamed[f"model.transformer.blocks.{match[1]}.{NAMES[match[2]]}.weight"] = weight
        else:
            renamed[f"model.transformer.{outer[name]}.weight"] = weight
    return renamed


def put(
    folder: Path, config: dict, weights: dict[str, Tensor], parts: int = 1, **beside: object
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = {k: w.contiguous().clone() for k, w in weights.items()}
    if parts == 1:
        save_file(weights, folder / "model.safetensors")
    else:
        files = {k: f"model-{i % parts}.safetensors" for i, k in enumerate(weights)}
        for file in set(files.values()):
            save_file({k: w for k, w in weights.items() if files[k] == file}, folder / file)
        index = json.dumps({"metadata": {"total_size": 1}, "weight_map": files})
        (folder / "model.safetensors.index.json").write_text(index)
    for name, content in beside.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text)
    return folder


def built(kind: str, eps: float, **changes) -> Any:
    rope = {"rope_type": "default", "rope_theta": 300.0}
    return tiny.build(kind, seed=4, rms_norm_eps=eps, rope_parameters=rope, **changes)


qwen, llama = partial(built, "qwen2", 1e-6), partial(built, "llama", 1e-5)


@torch.no_grad()
def full(net, ids: list[int]) -> Tensor:
    """``[n, V]``: the library's own model, each place seeing all."""
    n = len(ids)
    return net(input_ids=torch.tensor([ids]), attention_mask=torch.zeros(1, 1, n, n)).logits[0]


def conventions(made: DiffusionModel) -> tuple:
    return made.mask_id, made.ends, made.shift, made.causal, made.context


def test_a_published_dream(target, tmp_path):
    """Shifted: of the text and k masks, the outputs from the text's last token on. Its ends are all
    that config and generation settings name."""
    net = qwen()
    generation = {"eos_token_id": [2, 9], "pad_token_id": 2, "mask_token_id": MASK}
    put(tmp_path, DREAM, net.state_dict(), 3, generation_config=generation)
    made = load_diffusion(tmp_path, target)
    assert conventions(made) == (MASK, (2, 9), True, False, DREAM_CONTEXT)
    wanted = full(net, [*TEXT, *[MASK] * 6])
    close(block(made, TEXT, 6), wanted[len(TEXT) - 1 : len(TEXT) + 5])
    away = full(tiny.build("qwen2", seed=4), [*TEXT, *[MASK] * 6]) - wanted
    assert away.abs().max() > 0.05, "rope_theta is not seen here"


def test_a_published_llada(target, tmp_path):
    """Not shifted: the masks' own outputs."""
    net = llama()
    made = load_diffusion(put(tmp_path, LLADA, as_llada(net.state_dict())), target)
    assert conventions(made) == (MASK, (2,), False, False, 96)
    close(block(made, TEXT, 6), full(net, [*TEXT, *[MASK] * 6])[len(TEXT) :])


def test_a_llada_of_the_first_release_and_one_with_tied_weights(target, tmp_path):
    """Without n_kv_heads as many as heads; without mlp_hidden_size ``mlp_ratio`` times the width; a
    table larger than the vocabulary."""
    net = llama(num_key_value_heads=HEADS, intermediate_size=4 * H, vocab_size=V + 8)
    config = {**LLADA, "n_kv_heads": None, "mlp_hidden_size": None, "embedding_size": V + 8}
    made = load_diffusion(put(tmp_path / "first", config, as_llada(net.state_dict())), target)
    close(block(made, TEXT, 3), full(net, [*TEXT, *[MASK] * 3])[len(TEXT) :])
    tied = llama(tie_word_embeddings=True)
    weights = as_llada({key: w for key, w in tied.state_dict().items() if key != "lm_head.weight"})
    made = load_diffusion(put(tmp_path / "tied", {**LLADA, "weight_tying": True}, weights), target)
    close(block(made, TEXT, 3), full(tied, [*TEXT, *[MASK] * 3])[len(TEXT) :])


@pytest.mark.parametrize("kind", ["ours", "llada"])
def test_ours_comes_back_as_it_was_saved(target, tmp_path, kind):
    """In half precision; with every convention, and a card."""
    made = model(kind)
    made.save(tmp_path, {"name": "diffusion", "target_sha256": target.sha256})
    assert all(w.dtype == torch.float16 for w in load_file(tmp_path / "model.safetensors").values())
    again = load_diffusion(tmp_path, target)
    assert conventions(again) == conventions(made)
    assert again.card["name"] == "diffusion"
    weights = {name: w.half().float() for name, w in made.state_dict().items()}
    assert again.state_dict().keys() == weights.keys()
    assert all(torch.equal(again.state_dict()[name], w) for name, w in weights.items())


# ------------------------------------------- between a target's embedding and its output layer


SPOKEN = torch.arange(3, V, 2)


def between(target: specwb.Target, words: Tensor | None = SPOKEN) -> DiffusionModel:
    """Random, of large weights that fp16 holds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        made = shared(eagle_config(target, 2), target, words, ends=(2,), context=512)
        for name, weight in made.named_parameters():
            weight.data = (torch.randn_like(weight) * 0.25 + ("norm" in name)).half().float()
    return made.requires_grad_(False).eval()


@pytest.mark.parametrize(("words", "steps"), [(None, 1), (SPOKEN, 3)], ids=["all", "words"])
def test_a_model_between_is_one_with_a_token_more(target, words, steps):
    """Whose embedding and output layer are the target's, with one row more for the mask."""
    made = between(target, words)
    config = copy.deepcopy(made.net.config)
    config.vocab_size = V + 1
    whole = build(config, mask_id=V).requires_grad_(False).eval()
    table, mask = target.backbone.embed.weight, made.net.model.embed_tokens.mask_embedding
    never = torch.zeros(1, H)
    own = {
        **{name: w for name, w in made.net.state_dict().items() if "embed" not in name},
        "model.embed_tokens.weight": torch.cat([table, mask[None]]),
        "lm_head.weight": torch.cat([target.backbone.lm_head.weight, never]),
    }
    whole.net.load_state_dict(own)
    spoken = torch.arange(V) if words is None else words
    unspoken = torch.tensor([i for i in range(V + 1) if i not in spoken.tolist()])
    if steps > 1:  # what is no word stands in no block
        say = whole.backbone.head
        whole.backbone.head = lambda hidden: say(hidden).index_fill(-1, unspoken, -1e9)
    for text in ([5], TEXT):
        close(block(made, text, 7, steps), block(whole, text, 7, steps)[:, spoken])
    logits = block(made, TEXT, 7)
    spread = made.spread(logits, V)
    assert torch.equal(spread[:, spoken], logits)
    assert torch.equal(made.tokens(logits.argmax(-1)), spread.argmax(-1))
    assert spread.isfinite().sum() == logits.numel()


@pytest.mark.parametrize(
    ("config", "change", "word"),
    [
        ({"mask_token_id": 3}, {}, "mask_token_id must be 64"),
        ({}, {"words": SPOKEN.flip(0)}, "ascending"),
    ],
    ids=str,
)
def test_a_bad_file_of_a_model_between_is_one_line(target, tmp_path, config, change, word):
    between(target).save(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    own = stored["specwb_diffusion"]
    for key, value in config.items():
        (own if key in own else stored)[key] = value
    (tmp_path / "config.json").write_text(json.dumps(stored))
    weights = damaged(load_file(tmp_path / "model.safetensors"), change)
    save_file({k: w.contiguous() for k, w in weights.items()}, tmp_path / "model.safetensors")
    assert word in refused(load_diffusion, tmp_path, target)


# -------------------------------------------------------------------------------------- bad input


IDS = {word: i for i, word in enumerate(WORDS)}
SWAPPED = {**IDS, "w3": 4, "w4": 3}
# what differs from a right file in config.json, in the weights and beside them; a word of the line
DREAMS: list[tuple[dict, dict, dict, str]] = [
    ({"mask_token_id": None}, {}, {}, "no mask_token_id"),
    ({"model_type": "bert"}, {}, {}, "model_type 'bert'"),
    ({}, {"*bias": None}, {}, "missing model.layers.0.self_attn.k_proj.bias"),
    ({}, {}, {"vocab": SWAPPED}, "'w3' is id 3"),
    ({}, {}, {"tokenizer": "{"}, "tokenizer.json"),
    ({}, {}, {"card": {"target_sha256": "0" * 64}}, "sha256 000000000000"),
    ({"specwb_diffusion": 3}, {}, {}, "specwb_diffusion"),
]
LLADAS: list[tuple[dict, dict, dict, str]] = [
    ({"alibi": True}, {}, {}, "alibi=True"),
    ({}, {"*wte*": None}, {}, "missing model.embed_tokens.weight"),
    ({}, {"model.norm.weight": (H,)}, {}, "surplus model.norm.weight"),
]
ROWS = [*((DREAM, *row) for row in DREAMS), *((LLADA, *row) for row in LLADAS)]


@pytest.mark.parametrize(
    ("base", "config", "change", "beside", "word"), ROWS, ids=lambda x: str(x)[:40]
)
def test_what_cannot_be_loaded_is_one_line(target, tmp_path, base, config, change, beside, word):
    weights = qwen().state_dict() if base is DREAM else as_llada(llama().state_dict())
    folder = put(tmp_path / "m", {**base, **config}, damaged(weights, change), **beside)
    assert word in refused(load_diffusion, folder, target)


def tokenizer_of(folder: Path, words: list[str]) -> None:
    tiny.tokenizer(words).save_pretrained(folder / "tokenizer")
    (folder / "tokenizer" / "tokenizer.json").rename(folder / "tokenizer.json")


def test_a_tokenizer_that_gives_the_same_ids_is_taken(target, tmp_path):
    """And one with more tokens than the target's."""
    weights, added = qwen().state_dict(), {"<|mask|>": 64}
    more = put(tmp_path / "more", DREAM, weights, vocab=IDS, added_tokens=added)
    tokenizer_of(same := put(tmp_path / "same", DREAM, weights), WORDS)
    assert all(load_diffusion(folder, target).mask_id == MASK for folder in (more, same))
