"""Diffusion models from files of the published layouts, and what is said of masks with a cache
against the library's forward over everything."""

from __future__ import annotations

import copy
import json
import math
import re
from functools import cache
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, Qwen2ForCausalLM

import specwb
from specwb.models.checkpoint import HeadError
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
        config = LlamaConfig(
            vocab_size=V,
            hidden_size=H,
            intermediate_size=FFN,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KV,
            max_position_embeddings=512,
            initializer_range=0.2,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
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
    return made.net.lm_head(
        made.net.model(
            input_ids=ids, position_ids=positions, attention_mask=mask[None, None]
        ).last_hidden_state
    )[0]


def said(
    made: DiffusionModel, text: list[int], k: int, shown: dict[int, int] | None = None
) -> Tensor:
    """``[k, V]`` of the tokens behind a text; ``shown``: tokens of the block that are no longer
    masked."""
    masks = k - 1 if made.shift and made.causal else k
    found = outputs(made, text, [(shown or {}).get(j, MASK) for j in range(masks)])
    first = len(text) - 1 if made.shift else len(text)
    return found[first : first + k]


def denoised(
    made: DiffusionModel, text: list[int], k: int, steps: int
) -> tuple[Tensor, list[set[int]]]:
    """``[k, V]`` laws of the step in which each place got its token, and which places these
    were."""
    shown: dict[int, int] = {}
    out, order = torch.empty(k, V), []
    for step in range(steps):
        logits = said(made, text, k, shown)
        p = logits.clone().index_fill_(-1, torch.tensor([MASK]), -math.inf).softmax(-1)
        hidden = sorted((j for j in range(k) if j not in shown), key=lambda j: -float(p[j].max()))
        now = hidden if step == steps - 1 else hidden[: math.ceil(k / steps)]
        for j in now:
            out[j], shown[j] = logits[j], int(p[j].argmax())
        order.append(set(now))
    return out, order


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


# ----------------------------------------------------------------------------------- what is said


@every_kind
@pytest.mark.parametrize("k", [1, 2, 7])
def test_a_block_is_the_librarys_forward(kind, k):
    for text in ([5], TEXT):
        close(block(model(kind), text, k), said(model(kind), text, k))


def test_conventions_matter():
    """Were two of the kinds the same here, the tests above would not tell them apart."""
    found = [block(model(kind), TEXT, 5) for kind in KINDS]
    assert all((a - b).abs().max() > 0.1 for i, a in enumerate(found) for b in found[:i])


@every_kind
@pytest.mark.parametrize(("k", "steps"), [(7, 2), (7, 3), (4, 4), (3, 5), (1, 2)])
def test_denoising_step_by_step(kind, k, steps):
    made = model(kind)
    wanted, order = denoised(made, TEXT, k, steps)
    close(block(made, TEXT, k, steps), wanted)
    assert [len(now) for now in order[:-1]] == [
        min(math.ceil(k / steps), max(0, k - i * math.ceil(k / steps))) for i in range(steps - 1)
    ]
    if k == 7:
        assert (wanted - said(made, TEXT, k)).abs().max() > 0.1, "one step would have said the same"


class Decoding:
    """Rows of texts that are known further every round; says what Blocks says, as a drafter asks
    for it."""

    def __init__(
        self, made: DiffusionModel, texts: list[list[int]], capacity: int = 64, refresh: int = 1
    ) -> None:
        self.texts, self.blocks = texts, Blocks(made, len(texts), capacity, refresh)
        self.capacity, self.fed, self.index = capacity, torch.zeros(len(texts), dtype=torch.long), 0

    def say(self, lengths: list[int], k: list[int], steps: int = 1) -> Tensor:
        """Slots behind the known text hold rubbish, as after a rejected draft."""
        tokens = torch.randint(V, (len(lengths), self.capacity))
        for row, (text, n) in enumerate(zip(self.texts, lengths, strict=True)):
            tokens[row, :n] = torch.tensor(text[:n])
        length, anew = torch.tensor(lengths), self.index % self.blocks.refresh == 0
        fresh = max(1, max((length - self.fed).tolist()))
        with torch.inference_mode():
            out = self.blocks.say(
                tokens, length, max(lengths), self.fed, fresh, torch.tensor(k), max(k), steps, anew
            )
        self.fed, self.index = length, self.index + 1
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
                close(
                    found[row, : k[row]],
                    denoised(made, TEXTS[row][: lengths[row]], k[row], steps)[0],
                )
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


def test_refreshing_every_so_many_rounds():
    """The same as everything anew in the rounds that refresh; in the others the keys are of an
    earlier round, and the draft another."""
    made, decoding = model("dream"), Decoding(model("dream"), TEXTS[:1], refresh=3)
    away = []
    for length in (5, 8, 9, 12, 15, 16, 20):
        away.append(
            float((decoding.say([length], [6])[0] - said(made, TEXTS[0][:length], 6)).abs().max())
        )
    assert all((a < 1e-4) is (i % 3 == 0) for i, a in enumerate(away)), away
    assert min(a for i, a in enumerate(away) if i % 3) > 1e-2
    stays = Decoding(model("ours"), TEXTS[:1], refresh=3)
    for length in (5, 8, 9):
        close(stays.say([length], [6])[0], said(model("ours"), TEXTS[0][:length], 6))


@pytest.mark.parametrize("steps", [1, 2])
def test_rows_refreshed_together_draft_what_each_would_alone(steps):
    """What a row is given again because another has more that is new does not change what it keeps
    of an earlier round."""
    batch, alone = (
        Decoding(model("dream"), TEXTS, refresh=3),
        [Decoding(model("dream"), [text], refresh=3) for text in TEXTS],
    )
    for lengths, k in ROUNDS:
        k = [max(n, 1) for n in k]
        found = batch.say(lengths, k, steps)
        for row in range(3):
            close(found[row, : k[row]], alone[row].say([lengths[row]], [k[row]], steps)[0])


# ------------------------------------------------------------------------------ published layouts


DREAM = {
    "architectures": ["DreamModel"],
    "attention_dropout": 0.0,
    "auto_map": {"AutoModel": "modeling_dream.DreamModel"},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": H,
    "initializer_range": 0.02,
    "intermediate_size": FFN,
    "mask_token_id": MASK,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "model_type": "Dream",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 300.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.2",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": V,
}
LLADA = {
    "activation_type": "silu",
    "alibi": False,
    "alibi_bias_max": 8.0,
    "architectures": ["LLaDAModelLM"],
    "attention_dropout": 0.0,
    "attention_layer_norm": False,
    "attention_layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": H,
    "embedding_dropout": 0.0,
    "embedding_size": V,
    "eos_token_id": 2,
    "flash_attention": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "init_fn": "mitchell",
    "init_std": 0.02,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "mask_token_id": MASK,
    "max_sequence_length": 96,
    "mlp_hidden_size": FFN,
    "mlp_ratio": 4,
    "model_type": "llada",
    "multi_query_attention": None,
    "n_heads": HEADS,
    "n_kv_heads": KV,
    "n_layers": LAYERS,
    "pad_token_id": 2,
    "precision": "amp_bf16",
    "residual_dropout": 0.0,
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 300.0,
    "scale_logits": False,
    "transformers_version": "4.46.3",
    "use_cache": False,
    "vocab_size": V,
    "weight_tying": False,
}
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
    outer = {
        "model.embed_tokens.weight": "wte",
        "model.norm.weight": "ln_f",
        "lm_head.weight": "ff_out",
    }
    found = {
        f"model.transformer.{new}.weight": weights[old]
        for old, new in outer.items()
        if old in weights
    }
    for key, weight in weights.items():
        if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", key):
            found[f"model.transformer.blocks.{match[1]}.{NAMES[match[2]]}.weight"] = weight
    assert len(found) == len(weights)
    return found


def put(
    folder: Path, config: dict, weights: dict[str, Tensor], parts: int = 1, **beside: object
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = {k: w.contiguous().clone() for k, w in weights.items()}
    names = sorted(weights)
    if parts == 1:
        save_file(weights, folder / "model.safetensors")
    else:
        files = {
            name: f"model-{i % parts + 1:05}-of-{parts:05}.safetensors"
            for i, name in enumerate(names)
        }
        for file in set(files.values()):
            save_file({name: weights[name] for name in names if files[name] == file}, folder / file)
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": 1}, "weight_map": files})
        )
    for name, content in beside.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def qwen(**changes) -> Qwen2ForCausalLM:
    return tiny.build(
        "qwen2",
        seed=4,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 300.0},
        **changes,
    )


def llama(**changes):
    return tiny.build(
        "llama",
        seed=4,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 300.0},
        **changes,
    )


@torch.no_grad()
def full(net, ids: list[int]) -> Tensor:
    """``[n, V]``: the library's own model, each place seeing all."""
    n = len(ids)
    return net(input_ids=torch.tensor([ids]), attention_mask=torch.zeros(1, 1, n, n)).logits[0]


@pytest.mark.parametrize("parts", [1, 3])
def test_a_published_dream(target, tmp_path, parts):
    """Shifted: of the text and k masks, the outputs from the text's last token on. Its ends are all
    that config and generation settings name."""
    net = qwen()
    put(
        tmp_path,
        DREAM,
        net.state_dict(),
        parts,
        generation_config={"eos_token_id": [2, 9], "pad_token_id": 2, "mask_token_id": MASK},
    )
    assert any("q_proj.bias" in key for key in net.state_dict())
    made = load_diffusion(tmp_path, target)
    assert (made.mask_id, made.ends, made.shift, made.causal, made.context) == (
        MASK,
        (2, 9),
        True,
        False,
        DREAM_CONTEXT,
    )
    wanted = full(net, [*TEXT, *[MASK] * 6])
    close(block(made, TEXT, 6), wanted[len(TEXT) - 1 : len(TEXT) + 5])
    assert (full(tiny.build("qwen2", seed=4), [*TEXT, *[MASK] * 6]) - wanted).abs().max() > 0.05, (
        "rope_theta is not seen here"
    )


@pytest.mark.parametrize("parts", [1, 2])
def test_a_published_llada(target, tmp_path, parts):
    """Not shifted: the masks' own outputs."""
    net = llama()
    made = load_diffusion(put(tmp_path, LLADA, as_llada(net.state_dict()), parts), target)
    assert (made.mask_id, made.ends, made.shift, made.causal, made.context) == (
        MASK,
        (2,),
        False,
        False,
        96,
    )
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


@every_kind
def test_ours_comes_back_as_it_was_saved(target, tmp_path, kind):
    """In half precision; with every convention, and a card."""
    made = copy.deepcopy(model(kind))
    made.net.config.rope_parameters = {"rope_type": "default", "rope_theta": 300.0}
    made.save(tmp_path, {"name": "diffusion", "target_sha256": target.sha256})
    assert all(w.dtype == torch.float16 for w in load_file(tmp_path / "model.safetensors").values())
    again = load_diffusion(tmp_path, target)
    named = ("mask_id", "ends", "shift", "causal", "context")
    assert [getattr(again, name) for name in named] == [getattr(made, name) for name in named]
    assert again.card["name"] == "diffusion"
    for (name, a), (other, b) in zip(
        made.state_dict().items(), again.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(a.half().float(), b)
    rounded = build(made.net.config, mask_id=MASK, shift=made.shift, causal=made.causal).eval()
    rounded.load_state_dict({name: w.half().float() for name, w in made.state_dict().items()})
    close(block(again, TEXT, 4), said(rounded, TEXT, 4))


def test_a_tied_head_is_stored_once(target, tmp_path):
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=H,
        intermediate_size=FFN,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    made = build(config, mask_id=MASK).eval()
    made.save(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    again = load_diffusion(tmp_path, target)
    assert again.net.lm_head.weight is again.net.model.embed_tokens.weight


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


@pytest.mark.parametrize("words", [None, SPOKEN], ids=["all", "words"])
@pytest.mark.parametrize("steps", [1, 3])
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


@pytest.mark.parametrize("words", [None, SPOKEN], ids=["all", "words"])
def test_what_is_shared_is_not_stored(target, tmp_path, words):
    made = between(target, words)
    made.save(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in stored
    assert stored["model.embed_tokens.mask_embedding"].shape == (H,)
    assert sum(w.numel() for name, w in stored.items() if "layers" not in name) == 2 * H + (
        0 if words is None else len(words)
    )
    again = load_diffusion(tmp_path, target)
    named = ("mask_id", "ends", "shift", "causal", "context", "vocabulary", "shared")
    assert [getattr(again, name) for name in named] == [getattr(made, name) for name in named]
    assert again.net.model.embed_tokens.table is target.backbone.embed
    assert torch.equal(block(again, TEXT, 5), block(made, TEXT, 5))
    assert again.words is None if words is None else torch.equal(again.words, words)


@pytest.mark.parametrize(
    ("config", "weights", "named"),
    [
        ({"embedding": "draft"}, {}, "embedding in config.json must be 'target', got 'draft'"),
        ({"mask_token_id": 3}, {}, "mask_token_id must be 64, behind the last token, got 3"),
        ({"hidden_size": 64}, {}, "shares the embedding of a target of hidden size 64 and 64"),
        ({"vocab_size": 65}, {}, "of hidden size 32 and 65 tokens, "),
        ({}, {"words": SPOKEN.flip(0)}, "words must be ids below 64, ascending"),
        ({}, {"words": SPOKEN + 1}, "words must be ids below 64, ascending"),
        ({}, {"words": SPOKEN.float()}, "words must be a list of token ids"),
        ({}, {"model.embed_tokens.mask_embedding": None}, "missing model.embed_tokens.mask_emb"),
        (
            {},
            {"model.embed_tokens.mask_embedding": torch.zeros(V, H)},
            "mask_embedding is [64, 32]",
        ),
        ({}, {"lm_head.weight": torch.zeros(V, H)}, "surplus lm_head.weight"),
    ],
    ids=str,
)
def test_a_bad_file_of_a_model_between_is_one_line(target, tmp_path, config, weights, named):
    between(target).save(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    own = told["specwb_diffusion"]
    told |= {k: v for k, v in config.items() if k in told}
    told["specwb_diffusion"] = own | {k: v for k, v in config.items() if k in own}
    (tmp_path / "config.json").write_text(json.dumps(told))
    stored = {**load_file(tmp_path / "model.safetensors"), **weights}
    save_file({k: w for k, w in stored.items() if w is not None}, tmp_path / "model.safetensors")
    with pytest.raises(HeadError) as caught:
        load_diffusion(tmp_path, target)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_words_are_of_models_between_only(target, tmp_path):
    model("ours").save(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    save_file({**stored, "words": SPOKEN}, tmp_path / "model.safetensors")
    with pytest.raises(HeadError, match="surplus words"):
        load_diffusion(tmp_path, target)


# --------------------------------------------------------------------- two conventions, one draft


def agreeing(root: Path, size: int = 12) -> tuple[Path, Path]:
    """A Dream and a LLaDA that say the same: one layer of one head, whose weights over all places
    depend only on how far away they are, and what it finds is all that the output reads. The
    Dream's query is the LLaDA's turned by one place, so that place j asks what place j + 1 asks
    there."""
    width = 2 * size + 2  # a token's own axis, what was found, a constant, nothing
    token, there, one = torch.arange(size), torch.arange(size, 2 * size), 2 * size
    torch.manual_seed(0)
    key, query = torch.randn(width), torch.randn(width) * 4
    frequency = 300.0 ** (-torch.arange(0, width, 2) / width)
    cos, sin = frequency.cos().repeat(2), frequency.sin().repeat(2)
    turned = query * cos + torch.cat([-query[width // 2 :], query[: width // 2]]) * sin
    net = {
        name: torch.zeros(shape)
        for name, shape in (
            ("wte", (size, width)),
            ("ff_out", (size, width)),
            *((n, (width, width)) for n in "qkvo"),
        )
    }
    net["wte"][token, token], net["wte"][:, one] = 1.0, 1.0
    (
        net["k"][:, one],
        net["v"][token, token],
        net["o"][there, token],
        net["ff_out"][token, there],
    ) = key, 1.0, 5.0, 1.0
    flat = {name: torch.ones(width) for name in ("n1", "n2", "n")}
    mlp = {name: torch.zeros(4, width) for name in ("gate", "up")} | {"down": torch.zeros(width, 4)}

    def weights(q: Tensor) -> dict[str, Tensor]:
        layer = "model.layers.0."
        ask = torch.zeros(width, width)
        ask[:, one] = q
        return {
            "model.embed_tokens.weight": net["wte"],
            "lm_head.weight": net["ff_out"],
            "model.norm.weight": flat["n"],
            f"{layer}input_layernorm.weight": flat["n1"],
            f"{layer}post_attention_layernorm.weight": flat["n2"],
            f"{layer}self_attn.q_proj.weight": ask,
            **{f"{layer}self_attn.{x}_proj.weight": net[x] for x in "kvo"},
            **{f"{layer}mlp.{name}_proj.weight": w for name, w in mlp.items()},
        }

    sizes = {
        "d_model": width,
        "n_heads": 1,
        "n_kv_heads": 1,
        "n_layers": 1,
        "mlp_hidden_size": 4,
        "embedding_size": size,
        "vocab_size": size,
    }
    llada = put(
        root / "llada",
        {**LLADA, **sizes, "mask_token_id": size - 1, "rms_norm_eps": 1e-6},
        as_llada(weights(query)),
    )
    sizes = {
        "hidden_size": width,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "intermediate_size": 4,
    }
    biases = {f"model.layers.0.self_attn.{x}_proj.bias": torch.zeros(width) for x in "qkv"}
    dream = put(
        root / "dream",
        {**DREAM, **sizes, "vocab_size": size, "mask_token_id": size - 1},
        weights(turned) | biases,
    )
    return dream, llada


@pytest.fixture(scope="module")
def small() -> specwb.Target:
    return specwb.load(
        tiny.build("llama", seed=5, spread=0.35, vocab_size=12, hidden_size=16, num_hidden_layers=1)
    )


def test_shift_and_no_shift_give_the_same_draft_on_models_that_agree(small, tmp_path):
    dream, llada = (load_diffusion(place, small) for place in agreeing(tmp_path))
    text, k = [1, 4, 2, 8, 5, 7, 3], 6
    close(block(dream, text, k), block(llada, text, k))
    best = block(llada, text, k).argmax(-1)
    assert len(set(best.tolist())) > 2, "a draft of one token would agree with anything"
    # read by the other's convention, each says the tokens one place off
    dream.shift, llada.shift = False, True
    assert (block(dream, text, k) - block(llada, text, k)).abs().max() > 0.1
    close(block(dream, text, k)[:-2], block(llada, text, k)[2:])


@pytest.mark.parametrize(
    "options",
    [
        {"k": 5, "beams": 1, "lam": 1.0},
        {"k_min": 2, "k_max": 5, "steps": 2},
        {"k": 4, "tree": True, "mass": 0.9},
    ],
    ids=str,
)
def test_decodings_with_models_that_agree_are_the_same(small, tmp_path, options):
    runs = []
    for place in agreeing(tmp_path):
        method = specwb.method("diffuspec", small, head=place, ngram="online", **options)
        runs.append(
            list(specwb.rounds(small, [[1, 4, 2, 8], [5]], method, max_new_tokens=12, eos=()))
        )
    assert len(runs[0]) == len(runs[1])
    for one, other in zip(*runs):
        assert torch.equal(one.draft.tokens, other.draft.tokens)
        assert torch.equal(one.verdict.accepted, other.verdict.accepted)


@every_kind
def test_one_net_under_two_conventions_is_one_place_apart(kind):
    """Of models that see everything, what a net says of token i + 1 with the shift it says of token
    i without."""
    made = copy.deepcopy(model("dream"))
    shifted = block(made, TEXT, 6)
    made.shift = False
    close(block(made, TEXT, 6)[:-1], shifted[1:])


# -------------------------------------------------------------------------------------- bad input


def swapped() -> dict[str, int]:
    ids = {word: i for i, word in enumerate(WORDS)}
    ids["w3"], ids["w4"] = 4, 3
    return ids


def bad(kind: str, folder: Path, target: specwb.Target) -> Path:
    dream, llada = qwen().state_dict(), as_llada(llama().state_dict())
    changed = {
        "no mask": {"mask_token_id": None},
        "mask outside": {"mask_token_id": V},
        "negative": {"mask_token_id": -1},
        "mask a word": {"mask_token_id": "mask"},
        "type": {"model_type": "bert"},
        "no type": {"model_type": None},
        "no sizes": {"hidden_size": None},
        "no heads": {"num_attention_heads": 0},
    }
    if kind in changed:
        return put(folder, DREAM | changed[kind], dream)
    if kind.count(" ") == 2:
        _, key, value = kind.split(" ")
        return put(folder, LLADA | {key: json.loads(value)}, llada)
    if kind == "swapped":
        put(folder, DREAM, dream)
        tiny.tokenizer(sorted(WORDS, key=swapped().__getitem__)).save_pretrained(
            folder / "tokenizer"
        )
        (folder / "tokenizer" / "tokenizer.json").rename(folder / "tokenizer.json")
        return folder
    if kind == "vocab":
        return put(folder, DREAM, dream, vocab=swapped())
    if kind == "vocab short":
        return put(folder, DREAM, dream, vocab={word: i for i, word in enumerate(WORDS) if i != 7})
    if kind == "broken tokenizer":
        put(folder, DREAM, dream)
        (folder / "tokenizer.json").write_text("{")
        return folder
    if kind == "broken vocab":
        put(folder, DREAM, dream)
        (folder / "vocab.json").write_text("[1, 2")
        return folder
    if kind == "broken generation":
        put(folder, DREAM, dream)
        (folder / "generation_config.json").write_text("{")
        return folder
    if kind == "small":
        return put(
            folder,
            {**DREAM, "vocab_size": 40, "mask_token_id": 39},
            qwen(vocab_size=40).state_dict(),
        )
    if kind == "missing":
        return put(folder, DREAM, {k: w for k, w in dream.items() if "layers.1.mlp.up" not in k})
    if kind == "surplus":
        return put(folder, DREAM, {**dream, "model.layers.3.mlp.up_proj.weight": torch.zeros(1)})
    if kind == "no biases":
        return put(folder, DREAM, {k: w for k, w in dream.items() if not k.endswith("bias")})
    if kind == "shape":
        return put(folder, {**DREAM, "intermediate_size": 48}, dream)
    if kind == "nan":
        return put(
            folder, DREAM, {k: w * (math.nan if "norm" in k else 1) for k, w in dream.items()}
        )
    if kind == "other names":
        return put(folder, LLADA, dream)
    if kind == "llada-wte":
        return put(folder, LLADA, {k: w for k, w in llada.items() if "wte" not in k})
    if kind == "card":
        return put(folder, DREAM, dream, card={"target_sha256": "0" * 64})
    if kind == "no weights":
        put(folder, DREAM, dream)
        (folder / "model.safetensors").unlink()
        return folder
    assert kind == "own table"
    return put(folder, {"specwb_diffusion": 3}, dream)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("no mask", "config.json has no mask_token_id"),
        ("mask outside", "mask token id 64 is outside the model's vocabulary of 64"),
        ("negative", "mask token id -1 is outside"),
        ("mask a word", "config.json describes no model that can be built"),
        (
            "type",
            "model_type 'bert' is no diffusion model known here: Dream, llada, or one of ours",
        ),
        ("no type", "model_type None is no diffusion model"),
        (
            "no sizes",
            "config.json describes no model that can be built: Validation error for field "
            "'hidden_size'",
        ),
        ("no heads", "config.json describes no model that can be built"),
        ("llada alibi true", "LLaDA with alibi=True is not supported, only False"),
        ("llada rope false", "LLaDA with rope=False is not supported"),
        (
            'llada layer_norm_type "default"',
            "LLaDA with layer_norm_type='default' is not supported, only 'rms'",
        ),
        ('llada activation_type "swiglu"', "LLaDA with activation_type='swiglu'"),
        ("llada include_bias true", "LLaDA with include_bias=True"),
        ('llada block_type "sequential"', "LLaDA with block_type='sequential'"),
        ("llada scale_logits true", "LLaDA with scale_logits=True"),
        ("llada input_emb_norm true", "LLaDA with input_emb_norm=True"),
        ("llada mask_token_id null", "config.json has no mask_token_id"),
        ("llada d_model null", "config.json has no d_model"),
        ("llada n_layers null", "config.json has no n_layers"),
        ("swapped", "tokenizer mismatch: 'w3' is id 3 for"),
        ("vocab", "tokenizer mismatch: 'w3' is id 3 for"),
        ("vocab short", "tokenizer mismatch: 'w7' is id 7 for"),
        ("broken tokenizer", "tokenizer.json"),
        ("broken vocab", "vocab.json is not JSON"),
        ("broken generation", "generation_config.json is not JSON"),
        ("small", "the diffusion model has 40 tokens"),
        ("missing", "missing model.layers.1.mlp.up_proj.weight"),
        ("surplus", "surplus model.layers.3.mlp.up_proj.weight"),
        ("no biases", "missing model.layers.0.self_attn.k_proj.bias"),
        ("shape", "not [32, 48]"),
        ("nan", "has values that are NaN or infinite"),
        ("other names", "the weights do not fit (surplus "),
        ("llada-wte", "missing model.embed_tokens.weight"),
        ("card", "trained for the target with sha256 000000000000"),
        ("no weights", "none of model.safetensors, pytorch_model.bin is there"),
        ("own table", "specwb_diffusion in config.json must be a table"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(target, tmp_path, kind, named):
    folder = bad(kind, tmp_path / "model", target)
    with pytest.raises(HeadError) as caught:
        load_diffusion(folder, target)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_tokenizer_that_gives_the_same_ids_is_taken(target, tmp_path):
    """And one with more tokens than the target's."""
    put(
        tmp_path / "more",
        DREAM,
        qwen().state_dict(),
        vocab={word: i for i, word in enumerate(WORDS)},
        added_tokens={"<|mask|>": 64},
    )
    assert load_diffusion(tmp_path / "more", target).mask_id == MASK
    put(tmp_path / "same", DREAM, qwen().state_dict())
    tiny.tokenizer(WORDS).save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "tokenizer.json").rename(tmp_path / "same" / "tokenizer.json")
    assert load_diffusion(tmp_path / "same", target).mask_id == MASK


def test_a_mask_outside_the_vocabulary_of_a_model_in_memory():
    with pytest.raises(HeadError, match="mask token id 70 is outside the model's vocabulary of 64"):
        DiffusionModel(qwen(), 70)


def test_a_backbone_follows_its_weights():
    """Weights that were moved or cast are not read from where they were."""
    made = copy.deepcopy(model("ours"))
    before = block(made, TEXT, 4)
    assert made.backbone is made.backbone
    with torch.no_grad():
        made.net.model.layers[0].mlp.down_proj.weight.mul_(-1)
    after = block(made, TEXT, 4)
    assert (after - before).abs().max() > 0.1
    close(block(copy.deepcopy(made).double().float(), TEXT, 4), after)
