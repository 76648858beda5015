"""Heads from files made with exactly the published keys and shapes, and every way in which such a
file can be wrong."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

import specwb
from specwb.models.backbone import Stack
from specwb.models.checkpoint import HeadError
from specwb.models.eagle import Eagle3Head, EagleHead, eagle_config, load_eagle
from specwb.models.falcon import FalconHead, load_falcon
from specwb.models.medusa import MedusaHeads, load_medusa
from specwb.models.place import Place
from specwb.training import fit
from specwb.training.heads import target_outputs

H, V, FFN, HEADS, KV, DIM, LAYERS, D = (
    32,
    tiny.VOCABULARY,
    64,
    4,
    2,
    8,
    8,
    40,
)  # D: an EAGLE-3 head's own vocabulary
Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.build("llama", seed=2, num_hidden_layers=LAYERS))


# -------------------------------------------------------------------- the files, from raw tensors


def tensors(shapes: dict[str, tuple[int, ...]]) -> Weights:
    torch.manual_seed(5)
    return {
        key: torch.randn(shape) * 0.2 + (1.0 if "norm" in key else 0.0)
        for key, shape in shapes.items()
    }


def medusa_file(heads: int = 5, blocks: int = 1, prefix: str = "") -> Weights:
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(heads):
        for j in range(blocks):
            shapes |= {
                f"{prefix}{i}.{j}.linear.weight": (H, H),
                f"{prefix}{i}.{j}.linear.bias": (H,),
            }
        shapes[f"{prefix}{i}.{blocks}.weight"] = (V, H)
    return tensors(shapes)


def mlp_and_output(layer: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{layer}.self_attn.o_proj.weight": (H, HEADS * DIM),
        f"{layer}.mlp.gate_proj.weight": (FFN, H),
        f"{layer}.mlp.up_proj.weight": (FFN, H),
        f"{layer}.mlp.down_proj.weight": (H, FFN),
        f"{layer}.post_attention_layernorm.weight": (H,),
    }


def attention(layer: str, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{layer}.self_attn.{name}_proj.weight": (heads * DIM, width)
        for name, heads in (("q", HEADS), ("k", KV), ("v", KV))
    }


def eagle_file(bias: bool = True, embedding: Tensor | None = None) -> Weights:
    shapes = {
        "fc.weight": (H, 2 * H),
        **({"fc.bias": (H,)} if bias else {}),
        **attention("layers.0", H),
        **mlp_and_output("layers.0"),
    }
    return {**tensors(shapes), **({} if embedding is None else {"embed_tokens.weight": embedding})}


def eagle3_file(
    layer: str = "midlayer", rows: int = D, numbers: int = 3, input_norm: bool = False
) -> Weights:
    shapes = {
        "fc.weight": (H, numbers * H),
        "norm.weight": (H,),
        "lm_head.weight": (rows, H),
        f"{layer}.hidden_norm.weight": (H,),
        f"{layer}.input_layernorm.weight": (H,),
        **attention(layer, 2 * H),
        **mlp_and_output(layer),
        **({"input_norm.weight": (numbers * H,)} if input_norm else {}),
    }
    return {**tensors(shapes), **({} if rows == V else maps(spoken()))}


def falcon_file(
    layers: int = 2, qkv_bias: bool = False, embedding: Tensor | None = None
) -> Weights:
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(layers):
        shapes |= {
            **attention(f"layers.{i}", H),
            **mlp_and_output(f"layers.{i}"),
            **({f"layers.{i}.input_layernorm.weight": (H,)} if i else {}),
        }
        if qkv_bias:
            shapes |= {
                key.replace("weight", "bias"): shape[:1]
                for key, shape in attention(f"layers.{i}", H).items()
            }
        width = H if i else 2 * H
        shapes |= {
            f"lstm.weight_ih_l{i}": (4 * H, width),
            f"lstm.weight_hh_l{i}": (4 * H, H),
            **{f"lstm.bias_{n}h_l{i}": (4 * H,) for n in "ih"},
        }
    return {**tensors(shapes), **({} if embedding is None else {"embed_tokens.weight": embedding})}


def spoken() -> Tensor:
    """Ids of the draft vocabulary: not the first ones, ascending, with gaps."""
    return torch.cat([torch.arange(3, 20), torch.arange(30, 30 + D - 17)])


def maps(ids: Tensor) -> Weights:
    return {"d2t": ids - torch.arange(len(ids)), "t2d": torch.isin(torch.arange(V), ids)}


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": H,
    "initializer_range": 0.02,
    "intermediate_size": FFN,
    "max_position_embeddings": 512,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 300.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "vocab_size": V,
}
EAGLE3 = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": D}
FALCON = {**LLAMA, "num_hidden_layers": 2, "k_mask": 2}
MEDUSA = {
    "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
    "medusa_num_heads": 2,
    "medusa_num_layers": 1,
    "transformers_version": "4.31.0",
}
SPECULATORS = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.1.0",
    "draft_vocab_size": D,
    "norm_before_residual": True,
    "target_hidden_size": None,
    "transformer_layer_config": {k: v for k, v in LLAMA.items() if k != "architectures"},
    "speculators_config": {
        "algorithm": "eagle3",
        "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "some/model"},
    },
}


def put(
    folder: Path,
    config: dict | str | None,
    weights: Weights,
    name: str,
    dtype: torch.dtype = torch.float32,
) -> Path:
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(
            config if isinstance(config, str) else json.dumps(config)
        )
    cast = {k: w.to(dtype) if w.is_floating_point() else w for k, w in weights.items()}
    if name.endswith(".safetensors"):
        save_file(cast, folder / name)
    else:
        torch.save(cast, folder / name)
    return folder


def refused(load, folder: Path, target: specwb.Target, **options) -> str:
    with pytest.raises(HeadError) as caught:
        load(folder, target, **options)
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    return message


# ----------------------------------------------------------------------------------------- Medusa


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("medusa_lm_head.pt", torch.bfloat16),
        ("medusa_lm_head.safetensors", torch.float16),
        ("medusa_lm_head.pt", torch.float32),
    ],
)
def test_medusa_1_with_a_config_that_counts_wrong(tmp_path, target, name, dtype):
    """The published Vicuna v1.3 configs say 2 heads, the files hold 5."""
    weights = medusa_file(5)
    heads = load_medusa(put(tmp_path / "m", MEDUSA, weights, name, dtype), target)
    assert (heads.heads, heads.blocks, heads.training) == (5, 1, False)
    weights = {k: w.to(dtype).float() for k, w in weights.items()}
    assert all(p.dtype == target.dtype for p in heads.parameters())
    x = torch.randn(3, 4, H)
    for i in range(5):
        y = x + F.silu(x @ weights[f"{i}.0.linear.weight"].T + weights[f"{i}.0.linear.bias"])
        assert torch.allclose(heads(x)[..., i, :], y @ weights[f"{i}.1.weight"].T, atol=1e-5)
    assert heads(x, 2).shape == (3, 4, 2, V)


@pytest.mark.parametrize("count", [99, -1, 0, "x"])
def test_a_config_that_says_more_heads_than_there_are(tmp_path, target, count):
    folder = put(
        tmp_path / "m", {**MEDUSA, "medusa_num_heads": count}, medusa_file(3), "medusa_lm_head.pt"
    )
    assert f"medusa_num_heads={count!r}, the file holds 3" in refused(load_medusa, folder, target)


@pytest.mark.parametrize(
    "form", ["model.safetensors", "pytorch_model.bin", "parts of safetensors", "parts of bin"]
)
def test_medusa_2_is_a_whole_model(tmp_path, target, form):
    """Its heads are there beside the model's own keys, which are not theirs; in parts where an
    index says so."""
    weights = medusa_file(3, prefix="medusa_head.")
    other = tensors(
        {
            "lm_head.weight": (V, H),
            "model.embed_tokens.weight": (V, H),
            "model.layers.0.mlp.up_proj.weight": (FFN, H),
        }
    )
    config = {**LLAMA, "medusa_num_heads": 3, "medusa_num_layers": 1}
    folder = tmp_path / "m"
    if not form.startswith("parts"):
        put(folder, config, {**other, **weights}, form)
    else:
        stem, end = (
            ("model", "safetensors") if form.endswith("safetensors") else ("pytorch_model", "bin")
        )
        where = {}
        for n, part in enumerate(
            ({**other, **dict(list(weights.items())[:4])}, dict(list(weights.items())[4:])), 1
        ):
            put(folder, config, part, f"{stem}-{n:05}-of-00002.{end}")
            where |= dict.fromkeys(part, f"{stem}-{n:05}-of-00002.{end}")
        (folder / f"{stem}.{end}.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": where})
        )
    heads = load_medusa(folder, target)
    assert heads.heads == 3
    assert all(torch.equal(w, weights["medusa_head." + k]) for k, w in heads.state_dict().items())
    if form.startswith("parts"):
        (folder / f"{stem}-00002-of-00002.{end}").unlink()
        assert "is missing, though the index names it" in refused(load_medusa, folder, target)


def test_medusa_with_several_blocks(tmp_path, target):
    heads = load_medusa(
        put(
            tmp_path / "m",
            {**MEDUSA, "medusa_num_layers": 2},
            medusa_file(2, 2),
            "medusa_lm_head.pt",
        ),
        target,
    )
    assert (heads.heads, heads.blocks) == (2, 2)


def test_medusa_heads_without_a_projection_are_refused_by_name(tmp_path, target):
    weights = {k: w for k, w in medusa_file(2).items() if "linear" in k}
    assert "heads of version 2" in refused(
        load_medusa,
        put(tmp_path / "m", {**MEDUSA, "version": "2"}, weights, "medusa_lm_head.pt"),
        target,
    )


@pytest.mark.parametrize(
    ("change", "config", "named"),
    [
        (lambda w: w.pop("3.1.weight"), {}, "missing 3.1.weight"),
        (
            lambda w: [w.pop(k) for k in list(w) if k.startswith("1.")],
            {},
            "missing 1.0.linear.bias, 1.0.linear.weight, 1.1.weight",
        ),
        (
            lambda w: w.update({"2.0.linear.extra": torch.zeros(1)}),
            {},
            "keys such as 2.0.linear.extra",
        ),
        (lambda w: w.update({"2.1.bias": torch.zeros(V)}), {}, "surplus 2.1.bias"),
        (
            lambda w: w.update({"0.0.linear.weight": torch.zeros(H + 8, H + 8)}),
            {},
            "0.0.linear.weight is [40, 40], not [32, 32]: .*another target",
        ),
        (
            lambda w: w.update({f"{i}.1.weight": torch.zeros(V + 1, H) for i in range(5)}),
            {},
            f"0.1.weight is [65, 32].*{V} tokens",
        ),
        (lambda w: w["4.1.weight"].fill_(float("nan")), {}, "4.1.weight has values that are NaN"),
        (
            lambda w: w["4.1.weight"][0, :1].fill_(float("-inf")),
            {},
            "4.1.weight has values that are NaN or infinite",
        ),
        (lambda w: w.clear(), {}, "no Medusa heads"),
        (
            lambda w: None,
            {"medusa_num_layers": 2},
            "medusa_num_layers=2, the file holds heads of 1",
        ),
    ],
)
def test_wrong_medusa_files(tmp_path, target, change, config, named):
    weights = medusa_file(5)
    change(weights)
    message = refused(
        load_medusa, put(tmp_path / "m", {**MEDUSA, **config}, weights, "medusa_lm_head.pt"), target
    )
    assert re.search(named.replace("[", r"\["), message), message


# ---------------------------------------------------------------------------------------- EAGLE-1


def rotated(x: Tensor, theta: float = 300.0) -> Tensor:
    """``[heads, m, DIM]`` keys or queries at positions 0.., by hand."""
    angle = torch.arange(x.shape[1])[:, None] * theta ** (-torch.arange(0, DIM, 2) / DIM)
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    return x * cos + torch.cat([-x[..., DIM // 2 :], x[..., : DIM // 2]], -1) * sin


def decoder_layer(
    w: Weights, layer: str, attended: Tensor, x: Tensor, sees: Tensor | None = None
) -> Tensor:
    """``[m,H]``: attention and MLP by hand; what attention reads is given. ``sees [m,m]``: which
    places, default those before."""
    sees = torch.ones(len(x), len(x)).tril().bool() if sees is None else sees
    read = (
        attended @ w[f"{layer}.self_attn.{n}_proj.weight"].T
        + w.get(f"{layer}.self_attn.{n}_proj.bias", torch.zeros(1))
        for n in "qkv"
    )
    q, k, v = (part.view(len(x), -1, DIM).transpose(0, 1) for part in read)
    k, v = (part.repeat_interleave(HEADS // KV, 0) for part in (rotated(k), v))
    scores = (rotated(q) @ k.mT / math.sqrt(DIM)).masked_fill(~sees, float("-inf"))
    x = (
        x
        + (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        @ w[f"{layer}.self_attn.o_proj.weight"].T
    )
    y = norm(x, w[f"{layer}.post_attention_layernorm.weight"])
    gated = F.silu(y @ w[f"{layer}.mlp.gate_proj.weight"].T) * (
        y @ w[f"{layer}.mlp.up_proj.weight"].T
    )
    return x + gated @ w[f"{layer}.mlp.down_proj.weight"].T


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def as_decoding_runs(head: EagleHead, embedded: Tensor, features: Tensor) -> Tensor:
    """``[m,H]`` by the layers over a cache, which is what drafting uses."""
    m = len(embedded)
    stack = Stack(copy.deepcopy(head.config), copy.deepcopy(head).blocks, head.rotary_emb)
    attended, x = head.enter(embedded[None], head.fuse(features[None]))
    with torch.inference_mode():
        return stack.run(x, Place.text(1, m), stack.cache(1, m), attended=attended)[0][0]


@pytest.mark.parametrize("embedding", ["none", "the target's", "its own"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_eagle_1_computes_what_the_published_layer_does(tmp_path, target, name, embedding):
    own = {
        "none": None,
        "the target's": target.backbone.embed.weight.detach().clone(),
        "its own": torch.randn(V, H),
    }[embedding]
    weights = eagle_file(embedding=own)
    head = load_eagle(put(tmp_path / "e", LLAMA, weights, name), target)
    assert type(head) is EagleHead
    assert head.features == (-1,)
    assert (head.embed_tokens is None) == (embedding != "its own")  # the target's is not kept twice
    if head.embed_tokens is not None:
        assert torch.equal(head.embed_tokens.weight, own)
    embedded, features = torch.randn(7, H), torch.randn(7, H)
    entered = torch.cat([embedded, features], -1) @ weights["fc.weight"].T + weights["fc.bias"]

    # the library's own layer, its input norm taken out
    layer = LlamaDecoderLayer(
        LlamaConfig(
            **{
                k: v
                for k, v in LLAMA.items()
                if k
                in (
                    "hidden_size",
                    "intermediate_size",
                    "num_attention_heads",
                    "num_key_value_heads",
                    "rms_norm_eps",
                    "hidden_act",
                )
            },
            attn_implementation="eager",
        ),
        0,
    )
    layer.input_layernorm = nn.Identity()
    layer.load_state_dict(
        {k.removeprefix("layers.0."): w for k, w in weights.items() if k.startswith("layers.0.")}
    )
    angle = torch.arange(7)[:, None] * 300.0 ** (
        -torch.arange(0, DIM, 2) / DIM
    )  # rope_theta as old configs have it
    turn = angle.cos().repeat(1, 2)[None], angle.sin().repeat(1, 2)[None]
    mask = torch.full((1, 1, 7, 7), float("-inf")).triu(1)
    with torch.no_grad():
        theirs = layer(entered[None], attention_mask=mask, position_embeddings=turn)
        theirs = (theirs[0] if isinstance(theirs, tuple) else theirs).view(7, H)
        ours = next(head.unroll(embedded[None], features[None], 1))[0]
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert torch.allclose(as_decoding_runs(head, embedded, features), theirs, atol=1e-5)
    assert torch.allclose(theirs, decoder_layer(weights, "layers.0", entered, entered), atol=1e-5)
    assert torch.equal(head.logits(ours, target.backbone.lm_head), target.backbone.lm_head(ours))


def test_eagle_1_without_bias(tmp_path, target):
    """As those for Llama 3."""
    head = load_eagle(
        put(tmp_path / "e", {**LLAMA, "bias": False}, eagle_file(bias=False), "pytorch_model.bin"),
        target,
    )
    assert head.fc.bias is None


def layer0(name: str) -> str:
    return f"layers.0.self_attn.{name}_proj.weight"


@pytest.mark.parametrize(
    ("change", "config", "named"),
    [
        (lambda w: w.pop("fc.bias"), {"bias": True}, "says bias=True, fc.bias is missing"),
        (lambda w: None, {"bias": False}, "says bias=False, fc.bias is there"),
        (lambda w: w.pop(layer0("o")), {}, "missing layers.0.self_attn.o_proj.weight"),
        (
            lambda w: w.update({"layers.0.input_layernorm.weight": torch.ones(H)}),
            {},
            "surplus layers.0.input_layernorm.weight",
        ),
        (
            lambda w: w.update({"layers.1.mlp.up_proj.weight": torch.ones(FFN, H)}),
            {},
            "surplus layers.1.mlp.up_proj.weight",
        ),
        (
            lambda w: w.update({layer0("k"): torch.zeros(H, H)}),
            {},
            "k_proj.weight is [32, 32], not [16, 32]: trained for another target",
        ),
        (
            lambda w: w["fc.weight"].fill_(float("inf")),
            {},
            "fc.weight has values that are NaN or infinite",
        ),
        (
            lambda w: None,
            {"hidden_size": 64},
            "target of hidden size 64, 'LlamaForCausalLM' has 32",
        ),
        (
            lambda w: w.update({"embed_tokens.weight": torch.zeros(V + 8, H)}),
            {},
            "embed_tokens.weight is [72, 32]; 'LlamaForCausalLM' has 64 tokens",
        ),
        (lambda w: w.clear(), {}, "missing fc.weight"),
        (
            lambda w: None,
            {"hidden_size": "32"},
            "config.json describes no layer that can be built: .*hidden_size",
        ),
        (
            lambda w: None,
            {"num_attention_heads": 0},
            "config.json describes no layer that can be built",
        ),
        (
            lambda w: None,
            {"hidden_act": "nope"},
            "config.json describes no layer that can be built: .*nope",
        ),
        (lambda w: None, {"num_hidden_layers": 0}, "num_hidden_layers=0"),
        (
            lambda w: None,
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "'dynamic' changes with the length",
        ),
        (lambda w: None, {"hidden_size": None}, "config.json"),
    ],
)
def test_wrong_eagle_files(tmp_path, target, change, config, named):
    weights = eagle_file()
    change(weights)
    message = refused(
        load_eagle, put(tmp_path / "e", {**LLAMA, **config}, weights, "pytorch_model.bin"), target
    )
    assert re.search(named.replace("[", r"\["), message), message


# ---------------------------------------------------------------------------------------- EAGLE-3


@pytest.mark.parametrize(
    ("name", "config", "layer", "residual", "before"),
    [
        ("pytorch_model.bin", EAGLE3, "midlayer", False, False),
        ("model.safetensors", {**EAGLE3, "target_hidden_size": H}, "layers.0", False, False),
        ("model.safetensors", SPECULATORS, "layers.0", True, False),
        (
            "model.safetensors",
            {**SPECULATORS, "norm_before_residual": False, "norm_before_fc": True},
            "layers.0",
            False,
            True,
        ),
    ],
    ids=["published", "vllm", "speculators", "speculators, norm before fc"],
)
def test_eagle_3_computes_what_the_published_layer_does(
    tmp_path, target, name, config, layer, residual, before
):
    w = eagle3_file(layer, input_norm=before)
    head = load_eagle(put(tmp_path / "e", config, w, name), target)
    assert isinstance(head, Eagle3Head)
    assert head.features == (2, 4, 5)
    assert torch.equal(head.words, spoken())
    embedded, features = torch.randn(7, H), torch.randn(7, 3 * H)
    fused = (norm(features, w["input_norm.weight"]) if before else features) @ w["fc.weight"].T
    normed = norm(fused, w[f"{layer}.hidden_norm.weight"])
    attended = torch.cat([norm(embedded, w[f"{layer}.input_layernorm.weight"]), normed], -1)
    hidden = decoder_layer(w, layer, attended, normed if residual else fused)
    with torch.no_grad():
        ours = next(head.unroll(embedded[None], features[None], 1))[0]
        assert torch.allclose(ours, hidden, atol=1e-5)
        assert torch.allclose(as_decoding_runs(head, embedded, features), hidden, atol=1e-5)
        assert torch.allclose(
            head.logits(ours, target.backbone.lm_head),
            norm(hidden, w["norm.weight"]) @ w["lm_head.weight"].T,
            atol=1e-5,
        )


class Published(nn.Module):
    """EAGLE-3 as speculators computes it, with all that its configs can ask for: the library's
    layers of Qwen3, the first one over [embedding; fused], written out without a cache."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.config = Qwen3Config(
            vocab_size=V, hidden_size=H, intermediate_size=FFN, num_hidden_layers=layers,
            num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=DIM, rms_norm_eps=1e-5,
            max_position_embeddings=512, attn_implementation="eager",
        )  # fmt: skip
        self.fc_norm = nn.ModuleList(LlamaRMSNorm(H, 1e-5) for _ in range(3))
        self.fc = nn.Linear(3 * H, H, bias=False)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(self.config, i) for i in range(layers))
        attention = self.layers[0].self_attn
        for part in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(attention, part).out_features
            setattr(attention, part, nn.Linear(2 * H, rows, bias=False))
        self.layers[0].hidden_norm = LlamaRMSNorm(H, 1e-5)
        self.norm, self.lm_head = LlamaRMSNorm(H, 1e-5), nn.Linear(H, V, bias=False)
        self.rotary = Qwen3RotaryEmbedding(self.config)
        torch.manual_seed(8)
        for weight in self.parameters():
            nn.init.normal_(weight, 1.0 if weight.ndim == 1 else 0.0, 0.2)

    def file(self) -> Weights:
        return {k: w.clone() for k, w in self.state_dict().items() if "rotary" not in k}

    def forward(self, embedded: Tensor, above: Tensor) -> Tensor:
        """``[1,m,H]`` embeddings, and what stands beside them, to the last layer's states."""
        m, first = embedded.shape[1], self.layers[0]
        mask = torch.full((1, 1, m, m), torch.finfo(embedded.dtype).min).triu(1)
        turn = self.rotary(embedded, torch.arange(m)[None])
        both = [first.input_layernorm(embedded), first.hidden_norm(above)]
        x = above + first.self_attn(torch.cat(both, -1), turn, mask)[0]
        x = x + first.mlp(first.post_attention_layernorm(x))
        for layer in self.layers[1:]:
            x = layer(x, attention_mask=mask, position_embeddings=turn)
        return x

    def chain(self, embed: nn.Embedding, tokens: list[int], features: Tensor, most: int):
        """The tokens drafted behind pairs of ``tokens`` with ``features [m, 3H]``, everything
        computed anew at each: below the first level the normed state stands beside a token."""
        parts = [norm(x) for norm, x in zip(self.fc_norm, features.split(H, -1), strict=True)]
        above, drafted = self.fc(torch.cat(parts, -1)), []
        for _ in range(most):
            x = self.norm(self(embed(torch.tensor([tokens])), above[None]))[0, -1]
            drafted.append(int(self.lm_head(x).argmax()))
            tokens, above = [*tokens, drafted[-1]], torch.cat([above, x[None]])
        return drafted


@pytest.mark.parametrize("layers", [1, 2])
def test_eagle_3_1_of_speculators_with_layers_of_qwen3(tmp_path, target, layers):
    """norm_output, fc_norm, query and key norms, further layers: the chain that is drafted is the
    published computation's, and a file that we write says the same."""
    published = Published(layers).eval()
    inner = {**published.config.to_dict(), "model_type": "qwen3"}
    config = {
        **SPECULATORS,
        "draft_vocab_size": V,
        "norm_before_residual": False,
        "transformer_layer_config": inner,
        "norm_output": True,
        "fc_norm": True,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "embed_requires_grad": False,
    }
    folder = put(tmp_path / "e", config, published.file(), "model.safetensors")
    head = load_eagle(folder, target)
    head.save(tmp_path / "again")
    prompt = [5, 9, 2, 33, 7, 12]
    with torch.no_grad():
        features = tiny.states(target, torch.tensor([prompt[:-1]]), (2, 4, 5))[0]
        wanted = published.chain(target.backbone.embed, prompt[1:], features, 4)
    assert len(set(wanted)) > 1
    for one in (head, load_eagle(tmp_path / "again", target)):
        method = specwb.method("eagle", target, head=one, tree=specwb.Tree.chain(4))
        (step,) = specwb.rounds(target, prompt, method, max_new_tokens=1)
        assert step.draft.tokens[0, 1:].tolist() == wanted
    embedded, fused = torch.randn(6, H), torch.randn(6, 3 * H)
    with torch.no_grad():
        unrolled = next(head.unroll(embedded[None], fused[None], 1))[0]
        parts = [norm(x) for norm, x in zip(published.fc_norm, fused.split(H, -1), strict=True)]
        state = published.norm(published(embedded[None], published.fc(torch.cat(parts, -1))[None]))
    assert torch.allclose(unrolled, state[0], atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"parallel_drafting": True}, "says parallel_drafting=True, which is not understood"),
        ({"quantization_config": {"bits": 4}}, "says quantization_config="),
        ({"eagle_config": {"use_last_layernorm": False}}, "eagle_config.use_last_layernorm=False"),
        ({"eagle_config": {"parallel_draft_step": 2}}, "eagle_config.parallel_draft_step=2"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "eagle_config.use_mtp_layernorm=True"),
    ],
)
def test_a_field_that_is_not_understood_is_refused(tmp_path, target, fields, named):
    folder = put(tmp_path / "e", {**EAGLE3, **fields}, eagle3_file(), "pytorch_model.bin")
    assert named in refused(load_eagle, folder, target)


def test_fields_that_ask_for_nothing(tmp_path, target):
    """As NVIDIA's files and SpecForge's have them."""
    usual = {
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
    }
    config = {
        **EAGLE3,
        "eagle_config": usual,
        "new_thing": None,
        "other": False,
        "pretraining_tp": 1,
    }
    assert load_eagle(put(tmp_path / "e", config, eagle3_file(), "pytorch_model.bin"), target)


@pytest.mark.parametrize("with_maps", [False, True])
def test_eagle_3_with_the_whole_vocabulary(tmp_path, target, with_maps):
    """Files have no maps then, or maps that move nothing."""
    weights = {**eagle3_file(rows=V), **(maps(torch.arange(V)) if with_maps else {})}
    head = load_eagle(
        put(tmp_path / "e", {**EAGLE3, "draft_vocab_size": V}, weights, "pytorch_model.bin"), target
    )
    assert isinstance(head, Eagle3Head)
    assert head.words is None
    assert "d2t" not in head.state_dict()


@pytest.mark.parametrize(
    ("said", "layers", "numbers"),
    [
        (
            None,
            None,
            (2, 4, 5),
        ),  # as the published code has it: what enters layers 2, L/2 and L - 3
        ([1, 3, 4], None, (2, 4, 5)),  # outputs of layers counted from 0
        ([2, 4, 5], None, (2, 4, 5)),  # boundaries
        ([1, 3, 4], (1, 3, 8), (1, 3, 8)),
        (None, (0, 3, 7), (0, 3, 7)),
    ],
)
@pytest.mark.parametrize("nested", [True, False])
def test_conventions_of_layer_ids(tmp_path, target, said, layers, numbers, nested):
    ids = {} if said is None else {"eagle_aux_hidden_state_layer_ids": said}
    folder = put(
        tmp_path / "e",
        {**EAGLE3, **({"eagle_config": ids} if nested else ids)},
        eagle3_file(),
        "pytorch_model.bin",
    )
    assert load_eagle(folder, target, layers).features == numbers


def absolute(weights: Weights) -> None:
    weights["d2t"] = spoken()


def one_moved(weights: Weights) -> None:
    """d2t says 49, t2d 48."""
    weights["d2t"][-1] += 3


@pytest.mark.parametrize(
    ("change", "config", "named"),
    [
        (
            absolute,
            {},
            "d2t does not lead to 40 distinct ids below 64; it seems to hold target ids, where "
            "offsets",
        ),
        (one_moved, {}, "d2t and t2d name different tokens"),
        (lambda w: w["t2d"].fill_(True), {}, "d2t and t2d name different tokens"),
        (lambda w: w["d2t"].sub_(4), {}, "d2t does not lead to 40 distinct ids below 64$"),
        (lambda w: w["d2t"][1:2].sub_(1), {}, "d2t does not lead to 40 distinct ids below 64$"),
        (lambda w: w.pop("t2d"), {}, "missing t2d"),
        (lambda w: w.pop("d2t"), {}, "missing d2t"),
        (lambda w: w.pop("lm_head.weight"), {}, "missing lm_head.weight"),
        (lambda w: w.pop("fc.weight"), {}, "missing fc.weight"),
        (lambda w: w.pop("norm.weight"), {}, "missing norm.weight"),
        (
            lambda w: w.update({"input_norm.weight": torch.ones(3 * H)}),
            {},
            "surplus input_norm.weight",
        ),
        (lambda w: None, {"norm_before_fc": True}, "missing input_norm.weight"),
        (lambda w: None, {"draft_vocab_size": 32}, "draft_vocab_size=32, the weights have 40"),
        (
            lambda w: None,
            {"target_hidden_size": 64},
            "target of hidden size 64, 'LlamaForCausalLM' has 32",
        ),
        (
            lambda w: w.update({"t2d": torch.zeros(V + 8, dtype=torch.bool)}),
            {},
            "t2d is [72], not [64]",
        ),
        (
            lambda w: w.update({"fc.weight": torch.zeros(H, 6 * H)}),
            {},
            "fc reads 192 values, but 3 layers of 'LlamaForCausalLM' have 96",
        ),
        (
            lambda w: None,
            {"eagle_aux_hidden_state_layer_ids": [2, 4, 9]},
            "feature layers [2, 4, 9] do not exist: .* 0..8",
        ),
        (
            lambda w: None,
            {"eagle_aux_hidden_state_layer_ids": [2, 4]},
            "fc reads 96 values, but 2 layers .* have 64",
        ),
        (
            lambda w: None,
            {"eagle_aux_hidden_state_layer_ids": ["a"]},
            "must be a list of whole numbers",
        ),
        (lambda w: None, {"num_hidden_layers": 2}, "missing layers.1.input_layernorm.weight"),
    ],
)
def test_wrong_eagle_3_files(tmp_path, target, change, config, named):
    weights = eagle3_file()
    change(weights)
    with pytest.raises(HeadError) as caught:
        load_eagle(put(tmp_path / "e", {**EAGLE3, **config}, weights, "pytorch_model.bin"), target)
    assert re.search(named.replace("[", r"\["), str(caught.value)), caught.value
    assert "\n" not in str(caught.value)


def test_a_map_beside_the_whole_vocabulary_that_moves_tokens(tmp_path, target):
    weights = {**eagle3_file(rows=V), **maps(torch.arange(V))}
    weights["d2t"][0], weights["d2t"][1] = 1, -1
    message = refused(
        load_eagle,
        put(tmp_path / "e", {**EAGLE3, "draft_vocab_size": V}, weights, "pytorch_model.bin"),
        target,
    )
    assert "d2t moves tokens" in message


def test_layers_that_are_asked_for(tmp_path, target):
    folder = put(tmp_path / "e", EAGLE3, eagle3_file(), "pytorch_model.bin")
    with pytest.raises(HeadError, match=r"feature layers \[2, 4, 12\] do not exist"):
        load_eagle(folder, target, (2, 4, 12))
    with pytest.raises(HeadError, match="at least 6 layers, this one has 3"):
        load_eagle(folder, tiny.target())


def test_a_narrower_head_brings_its_embedding(tmp_path, target):
    """EAGLE-3's hidden size may be another than the target's, but then the target's embedding does
    not fit."""
    small = specwb.load(
        tiny.build("llama", seed=2, num_hidden_layers=LAYERS, hidden_size=48, num_attention_heads=6)
    )
    weights = eagle3_file()
    weights["fc.weight"] = torch.randn(H, 3 * 48)
    folder = put(tmp_path / "e", {**EAGLE3, "target_hidden_size": 48}, weights, "pytorch_model.bin")
    assert "has no embedding, and the head's hidden size 32 is not the target's 48" in refused(
        load_eagle, folder, small
    )
    own = torch.randn(V, H)
    head = load_eagle(
        put(folder, None, {**weights, "embed_tokens.weight": own}, "pytorch_model.bin"), small
    )
    assert torch.equal(head.embed_tokens.weight, own)
    assert (head.hidden, head.target_hidden) == (32, 48)


# ------------------------------------------------------------------------------------ any of them

KINDS = {
    "medusa": (load_medusa, MEDUSA, medusa_file, "medusa_lm_head.pt"),
    "eagle": (load_eagle, LLAMA, eagle_file, "pytorch_model.bin"),
    "eagle3": (load_eagle, EAGLE3, eagle3_file, "pytorch_model.bin"),
    "falcon": (load_falcon, FALCON, falcon_file, "pytorch_model.bin"),
}


@pytest.fixture(params=list(KINDS))
def kind(request):
    return KINDS[request.param]


def test_empty_and_missing_folders(tmp_path, target, kind):
    load = kind[0]
    assert "none of" in refused(load, tmp_path, target)
    assert "does not exist" in refused(load, tmp_path / "nowhere", target)


@pytest.mark.parametrize("end", [".bin", ".safetensors"])
def test_cut_off_files(tmp_path, target, kind, end):
    load, config, weights, name = kind
    name = {
        ".bin": name,
        ".safetensors": {"pytorch_model.bin": "model.safetensors"}.get(
            name, "medusa_lm_head.safetensors"
        ),
    }[end]
    path = put(tmp_path / "h", config, weights(), name) / name
    whole = path.read_bytes()
    for cut in (0, 5, len(whole) // 2, len(whole) - 100):
        path.write_bytes(whole[:cut])
        assert f"{name} is damaged, cut off or no file of weights" in refused(
            load, tmp_path / "h", target
        )


def test_files_that_hold_something_else(tmp_path, target, kind):
    load, config, _, name = kind
    folder = put(tmp_path / "h", config, {}, name)
    torch.save([torch.zeros(2)], folder / name)
    assert "holds no table of weights" in refused(load, folder, target)
    torch.save({"model": {"a": torch.zeros(2)}}, folder / name)
    assert "holds no table of weights" in refused(load, folder, target)
    torch.save(nn.Linear(2, 2), folder / name)  # code: never run
    assert "is damaged, cut off or no file of weights" in refused(load, folder, target)


@pytest.mark.parametrize(
    ("text", "named"), [('{"a": 1', "is not JSON"), ("[1, 2]", "holds no settings")]
)
def test_a_config_that_is_none(tmp_path, target, kind, text, named):
    load, _, weights, name = kind
    assert f"config.json {named}" in refused(
        load, put(tmp_path / "h", text, weights(), name), target
    )


def test_eagle_without_a_config(tmp_path, target):
    assert "config.json has no hidden_size" in refused(
        load_eagle, put(tmp_path / "h", None, eagle_file(), "pytorch_model.bin"), target
    )


def test_a_card_of_another_target(tmp_path, target, kind):
    """Sizes may agree by chance: what was trained for other weights is refused by their hash."""
    load, config, weights, name = kind
    folder = put(tmp_path / "h", config, weights(), name)
    mine = copy.copy(target)
    mine.__dict__.pop("sha256", None)
    mine.folder = tmp_path / "target"
    put(mine.folder, None, {"a": torch.ones(3)}, "model.safetensors")
    (folder / "card.json").write_text(json.dumps({"target_sha256": mine.sha256, "note": 7}))
    assert load(folder, mine).card["note"] == 7
    (folder / "card.json").write_text(json.dumps({"target_sha256": "0" * 64}))
    assert "trained for the target with sha256 000000000000" in refused(load, folder, mine)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("run", [torch.float32, torch.bfloat16])
def test_weights_come_in_the_targets_dtype(tmp_path, target, kind, stored, run):
    """But the rotary embedding's frequencies stay float32, as in the library: rounded ones turn by
    other angles far on."""
    load, config, weights, name = kind
    other = (
        target
        if run == torch.float32
        else specwb.load(tiny.build("llama", seed=2, num_hidden_layers=LAYERS), dtype=run)
    )
    head = load(put(tmp_path / "h", config, weights(), name, stored), other)
    assert {p.dtype for p in head.parameters()} == {run}
    key = next(
        key for key in ("0.1.weight", "fc.weight", "lstm.weight_ih_l0") if key in head.state_dict()
    )
    assert torch.equal(head.state_dict()[key], weights()[key].to(stored).to(run))
    if isinstance(head, EagleHead):
        assert torch.allclose(
            head.rotary_emb.inv_freq, 300.0 ** (-torch.arange(0, DIM, 2) / DIM), rtol=1e-6, atol=0
        )
        assert head.rotary_emb.inv_freq.dtype == torch.float32


def made(kind: str, target: specwb.Target):
    torch.manual_seed(9)
    if kind == "medusa":
        return MedusaHeads(H, V, 3, 2)
    if kind == "eagle":
        return EagleHead(eagle_config(target, 2), H, bias=False)
    if kind == "falcon":
        return FalconHead(eagle_config(target, 2), H, 3)
    head = Eagle3Head(
        eagle_config(target), H, (1, 3, 8), D, V, normed_residual=True, normed_features=True
    )
    head.speak(spoken().flip(0))
    return head


@pytest.mark.parametrize("which", list(KINDS))
def test_what_is_saved_is_loaded_again(tmp_path, target, which):
    head = made(which, target)
    for p in head.parameters():
        p.data = p.data.half().float()  # files are fp16
    head.save(tmp_path / "h", card={"note": 1})
    again = KINDS[which][0](tmp_path / "h", target)
    assert type(again) is type(head)
    assert again.card["note"] == 1
    assert again.features == head.features
    assert again.state_dict().keys() == head.state_dict().keys()
    assert all(torch.equal(again.state_dict()[k], w) for k, w in head.state_dict().items())
    if isinstance(head, EagleHead):
        assert torch.equal(again.rotary_emb.inv_freq, head.rotary_emb.inv_freq)
        features = torch.randn(1, 6, H * len(head.features)), torch.randn(1, 6, H)
        with torch.no_grad():
            assert torch.equal(
                next(again.unroll(features[1], features[0], 1)),
                next(head.unroll(features[1], features[0], 1)),
            )
    if isinstance(head, Eagle3Head):
        assert torch.equal(again.words, spoken())


def test_files_have_the_published_keys_and_shapes(tmp_path, target):
    for head, weights, name in (
        (MedusaHeads(H, V, 5), medusa_file(), "medusa_lm_head"),
        (EagleHead(eagle_config(target), H), eagle_file(), "model"),
        (Eagle3Head(eagle_config(target), H, (2, 4, 5), D, V), eagle3_file(), "model"),
        (FalconHead(eagle_config(target, 2), H, 2), falcon_file(), "model"),
    ):
        head.save(tmp_path / "h")
        stored = load_file(tmp_path / "h" / f"{name}.safetensors")
        assert {k: w.shape for k, w in stored.items()} == {k: w.shape for k, w in weights.items()}
        assert {w.dtype for k, w in stored.items() if w.is_floating_point()} == {torch.float16}


def test_an_eagle_head_of_another_vocabulary(tmp_path):
    """Without an embedding no shape tells."""
    tiny.head("eagle").save(tmp_path)
    with pytest.raises(HeadError, match=r"trained for a target of 64 tokens, .* has 80"):
        load_eagle(tmp_path, specwb.load(tiny.build("llama", vocab_size=80)))


def test_an_embedding_of_its_own_is_kept(tmp_path, target):
    head = load_eagle(
        put(
            tmp_path / "e",
            LLAMA,
            eagle_file(embedding=torch.randn(V, H).half().float()),
            "pytorch_model.bin",
            torch.float16,
        ),
        target,
    )
    head.save(tmp_path / "again")
    assert torch.equal(
        load_eagle(tmp_path / "again", target).embed_tokens.weight, head.embed_tokens.weight
    )


def test_a_hub_id_that_cannot_be_reached(monkeypatch, target, kind):
    import huggingface_hub

    def fail(*args, **options):
        raise OSError

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    with pytest.raises(
        HeadError, match="some/head: neither a local folder nor reachable on the hub: OSError"
    ):
        kind[0]("some/head", target)


def test_targets_of_bin_files_have_hashes_of_their_own(tmp_path):
    from specwb.files import weights_hash

    one, two = (
        put(tmp_path / n, None, {"a": torch.full((3,), v)}, "pytorch_model.bin")
        for n, v in (("one", 1.0), ("two", 2.0))
    )
    assert weights_hash(one) != weights_hash(two)


# ------------------------------------------------------------------- the numbers of hidden layers


def test_numbers_of_hidden_layers_are_the_librarys(monkeypatch, target):
    """0 is the embedding, i the output of layer i; the library's last one is after the final norm,
    which is our -1, and our L is before it."""
    monkeypatch.setattr(fit, "fast_bfloat16", lambda device: False)
    ids = torch.randint(V, (2, 9))
    with torch.no_grad():
        theirs = target.model(ids, output_hidden_states=True)
    assert len(theirs.hidden_states) == LAYERS + 1
    numbers = (*range(LAYERS + 1), -1)
    x, cache = target.backbone.embed(ids), target.backbone.cache(2, 9)
    with torch.inference_mode():
        _, run = target.backbone.run(x, Place.text(2, 9), cache, features=numbers)
    state = target.open(ids.tolist(), [1, 1], 1, specwb.Sampling(0.0), [], features=numbers)
    looked = target_outputs(target, ids, numbers)
    for found in (run[:, :8], state.features[:, :8], looked.features[:, :8]):
        parts = dict(zip(numbers, found.split(H, -1), strict=True))
        for i in range(LAYERS):
            assert torch.allclose(parts[i], theirs.hidden_states[i][:, :8], atol=1e-4), i
        assert torch.allclose(parts[-1], theirs.hidden_states[LAYERS][:, :8], atol=1e-4)
        assert not torch.allclose(parts[LAYERS], parts[-1], atol=0.1)
        assert torch.allclose(target.backbone.norm(parts[LAYERS]), parts[-1], atol=1e-4)
    assert torch.allclose(looked.normed, theirs.hidden_states[LAYERS], atol=1e-4)
    assert torch.allclose(looked.logits, theirs.logits, atol=1e-4)
    assert torch.equal(looked.embedded, target.backbone.embed(ids))


def test_training_sees_the_features_that_decoding_sees(monkeypatch, target):
    """Where the processor computes fast in bfloat16, training reads the target so: the same
    numbers, up to that rounding."""
    ids, numbers = torch.randint(V, (2, 9)), (*range(LAYERS + 1), -1)
    state = target.open(ids.tolist(), [1, 1], 1, specwb.Sampling(0.0), [], features=numbers)
    monkeypatch.setattr(fit, "fast_bfloat16", lambda device: True)
    looked = target_outputs(target, ids, numbers).features[:, :8].split(H, -1)
    decoded = state.features[:, :8].detach().split(H, -1)
    assert not torch.equal(looked[3], decoded[3])
    assert {part.dtype for part in looked} == {torch.float32}
    for i, found in enumerate(looked):
        away = [float((found - other).norm() / other.norm()) for other in decoded]
        assert away[i] < 0.03, (i, away)
        assert min(x for j, x in enumerate(away) if j != i) > 3 * away[i], (i, away)
