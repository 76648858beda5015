"""Heads from files made with exactly the published keys and shapes, and every way in which such a
file can be wrong."""

from __future__ import annotations

import copy
import json

import pytest
import tiny
import torch
from layouts import (
    DIM,
    EAGLE3,
    FFN,
    HEADS,
    KINDS,
    KV,
    LLAMA,
    MEDUSA,
    SPECULATORS,
    D,
    H,
    V,
    Weights,
    damaged,
    decoder_layer,
    eagle3_file,
    eagle_file,
    layer0,
    maps,
    medusa_file,
    norm,
    put,
    refused,
    spoken,
)
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

import specwb
from specwb.models.checkpoint import HeadError, fill, opened, round_to_int8, write
from specwb.models.eagle import Eagle3Head, EagleHead, eagle_config, load_eagle
from specwb.models.falcon import FalconHead
from specwb.models.kangaroo import KangarooAdapter
from specwb.models.medusa import MedusaHeads, load_medusa
from specwb.models.products import int8_rows

LAYERS = 8
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.build("llama", seed=2, num_hidden_layers=LAYERS))


# ----------------------------------------------------------------------- what is wrong with a file

INF = float("inf")
D2T = maps(spoken())["d2t"]
# what differs in the weights, in config.json and in what the loader is told; a word of the message
WRONG: dict[str, list[tuple]] = {
    "medusa": [
        ({"1.*": None}, {}, "missing 1.0.linear.bias, 1.0.linear.weight, 1.1.weight"),
        ({f"{i}.1.weight": (V + 1, H) for i in range(5)}, {}, "0.1.weight is [65, 32]"),
        ({"4.1.weight": -INF}, {}, "4.1.weight has values that are NaN or infinite"),
        ({"*": None}, {}, "no Medusa heads"),
        ({}, {"medusa_num_layers": 2}, "medusa_num_layers=2"),
        ({}, {"medusa_num_heads": 99}, "medusa_num_heads=99"),
    ],
    "eagle": [
        ({"fc.bias": None}, {"bias": True}, "bias=True"),
        ({"layers.0.input_layernorm.weight": (H,)}, {}, "surplus layers.0.input_layernorm.weight"),
        ({layer0("k"): (H, H)}, {}, "k_proj.weight is [32, 32], not [16, 32]"),
        ({}, {"hidden_size": None}, "config.json"),
        ({}, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ],
    "eagle3": [
        ({"d2t": spoken()}, {}, "it seems to hold target ids"),
        ({"t2d": torch.ones(V, dtype=torch.bool)}, {}, "name different tokens"),
        ({"d2t": D2T - 4}, {}, "distinct ids below 64"),
        ({"t2d": None}, {}, "missing t2d"),
        ({"fc.weight": (H, 6 * H)}, {}, "fc reads 192"),
        ({}, {"norm_before_fc": True}, "missing input_norm.weight"),
        ({}, {"draft_vocab_size": 32}, "draft_vocab_size=32"),
        ({}, {"eagle_aux_hidden_state_layer_ids": [2, 4, 9]}, "[2, 4, 9] do not exist"),
        # fields that ask for what is not understood
        ({}, {"a_field_of_next_year": [1]}, "a_field_of_next_year=[1]"),
        ({}, {"eagle_config": {"use_last_layernorm": False}}, "eagle_config.use_last_layernorm"),
    ],
    "falcon": [
        ({"lstm.bias_hh_l1": None}, {}, "missing lstm.bias_hh_l1"),
        ({"lstm.weight_ih_l0": (4 * H, H)}, {}, "weight_ih_l0 is [128, 32], not [128, 64]"),
        ({}, {"k_mask": None}, "no k_mask"),
        ({}, {"k_mask": 5}, "k=5"),
        ({}, {"specwb_fusion": "linear"}, "the weights have an LSTM"),
        ({}, {"specwb_align": "up"}, "'up'"),
    ],
    "kangaroo": [
        ({"norm.weight": None}, {}, "missing norm.weight"),
        ({}, {"own_head": True}, "missing lm_head.weight"),
        ({}, {"adapter": "mlp", "num_hidden_layers": 2}, "one layer"),
        ({}, {"adapter": "ffn"}, "'ffn'"),
        ({}, {"exit_layer": 8}, "exit layer 8 does not exist"),
        ({}, {"exit_layer": None}, "does not say the exit layer"),
        ({}, {}, "layer 1, not of layer 2", {"exit": 2}),
    ],
}


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        pytest.param(kind, row, id=f"{kind}-{row[2]}")
        for kind, rows in WRONG.items()
        for row in rows
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, target, kind, row):
    load, config, weights, name = KINDS[kind]
    change, settings, word, *told = row
    folder = put(tmp_path / "h", {**config, **settings}, damaged(weights(), change), name)
    assert word in refused(load, folder, target, **(told[0] if told else {}))


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_what_is_no_head_at_all(tmp_path, target, kind):
    load, config, weights, name = KINDS[kind]
    assert "has no weights under the names" in refused(load, tmp_path, target)
    assert "does not exist" in refused(load, tmp_path / "nowhere", target)
    folder = put(tmp_path / "h", '{"a": 1', weights(), name)
    assert "is not JSON" in refused(load, folder, target)
    put(folder, config, {}, name)
    torch.save({"model": {"a": torch.zeros(2)}}, folder / name)
    assert "holds no table of weights" in refused(load, folder, target)
    torch.save(nn.Linear(2, 2), folder / name)  # code: never run, and nobody is advised to run it
    line = refused(load, folder, target)
    assert "it is a pickle with code, or no file of weights; it is not read" in line
    whole = (put(folder, config, weights(), name) / name).read_bytes()
    for cut in (0, len(whole) // 2):
        (folder / name).write_bytes(whole[:cut])
        assert f"{name} is damaged" in refused(load, folder, target)


@every_kind
def test_a_card_of_another_target(tmp_path, target, kind):
    """Sizes may agree by chance: what was trained for other weights is refused by their hash."""
    load, config, weights, name = KINDS[kind]
    folder = put(tmp_path / "h", config, weights(), name)
    mine = copy.copy(target)
    mine.__dict__.pop("sha256", None)
    mine.folder = put(tmp_path / "target", None, {"a": torch.ones(3)}, "model.safetensors")
    (folder / "card.json").write_text(json.dumps({"target_sha256": mine.sha256, "note": 7}))
    assert load(folder, mine).card["note"] == 7
    (folder / "card.json").write_text(json.dumps({"target_sha256": "0" * 64}))
    assert "sha256 000000000000" in refused(load, folder, mine)


# ------------------------------------------------------------------- what any right file must give


@every_kind
def test_weights_come_in_the_targets_dtype(tmp_path, kind):
    """But the rotary embedding's frequencies stay float32, as in the library: rounded ones turn by
    other angles far on."""
    load, config, weights, name = KINDS[kind]
    stored, run = torch.float16, torch.bfloat16
    target = specwb.load(tiny.build("llama", seed=2, num_hidden_layers=LAYERS), dtype=run)
    head = load(put(tmp_path / "h", config, weights(), name, stored), target)
    assert {p.dtype for p in head.parameters()} == {run}
    assert not head.training
    for key, weight in head.state_dict().items():
        if weight.is_floating_point():
            assert torch.equal(weight, weights()[key].to(stored).to(run))
    if hasattr(head, "rotary_emb"):
        theta = config.get("rope_theta", 10000.0)
        wanted = theta ** (-torch.arange(0, DIM, 2) / DIM)
        torch.testing.assert_close(head.rotary_emb.inv_freq, wanted, rtol=1e-6, atol=0)


def eagle3_head(target: specwb.Target) -> Eagle3Head:
    more = {"normed_residual": True, "normed_features": True}
    head = Eagle3Head(eagle_config(target), H, (1, 3, 8), D, V, **more)
    head.speak(spoken().flip(0))
    return head


MADE = {
    "medusa": lambda t: MedusaHeads(H, V, 3, 2),
    "eagle": lambda t: EagleHead(eagle_config(t, 2), H, bias=False),
    "eagle3": eagle3_head,
    "falcon-pointwise": lambda t: FalconHead(eagle_config(t, 2), H, 4, "pointwise", qkv_bias=True),
    "falcon-linear": lambda t: FalconHead(eagle_config(t), H, 1, "linear", "left", bias=False),
    "kangaroo-layer": lambda t: KangarooAdapter(eagle_config(t, 2), 2, "layer", True),
    "kangaroo-mlp": lambda t: KangarooAdapter(eagle_config(t), 0, "mlp"),
}


@pytest.mark.parametrize("which", MADE)
def test_what_is_saved_is_loaded_again(tmp_path, target, which):
    torch.manual_seed(9)
    head = MADE[which](target)
    for p in head.parameters():
        p.data = p.data.half().float()  # files are fp16
    head.save(tmp_path / "h", card={"note": 1})
    again = KINDS[which.split("-")[0]][0](tmp_path / "h", target)
    assert type(again) is type(head)
    assert again.card["note"] == 1
    assert again.features == head.features
    assert again.state_dict().keys() == head.state_dict().keys()
    assert all(torch.equal(again.state_dict()[k], w) for k, w in head.state_dict().items())
    again.save(tmp_path / "again")
    texts = [(tmp_path / name / "config.json").read_text() for name in ("h", "again")]
    assert texts[0] == texts[1]
    for setting in ("k", "fusion", "align", "qkv_bias", "exit", "adapter", "normed_residual"):
        assert getattr(again, setting, None) == getattr(head, setting, None)
    if hasattr(head, "rotary_emb"):
        assert torch.equal(again.rotary_emb.inv_freq, head.rotary_emb.inv_freq)
    if which == "eagle3":
        assert torch.equal(again.words, spoken())


def test_rounding_to_int8_is_what_is_stored(tmp_path, target):
    """Half a step of each row's own scale at most; small matrices and vectors stay as they are."""
    torch.manual_seed(1)
    layer = nn.Linear(128, 160)
    with torch.no_grad():
        layer.weight.mul_(torch.logspace(-2, 2, 160)[:, None])
    exact = layer.weight.detach().clone()
    round_to_int8(layer)
    step = exact.abs().amax(1, keepdim=True) / 127
    assert ((layer.weight - exact).abs() <= step * 0.501).all()
    weights = {"large": layer.weight, "small": torch.randn(4, 4).half()}
    write(tmp_path, {}, weights, "model", {"store": "int8"})
    assert load_file(tmp_path / "model.safetensors")["large"].dtype == torch.int8
    with opened(tmp_path, target) as stored:
        torch.testing.assert_close(stored.weights["large"], layer.weight.detach())
        assert torch.equal(stored.weights["small"], weights["small"])
        filled = nn.ParameterDict({key: torch.zeros_like(w) for key, w in stored.weights.items()})
        fill(filled, stored.weights, target)
    assert int8_rows(filled["small"]) is None
    for dtype in (torch.float32, torch.bfloat16):
        rows = int8_rows(filled.to(dtype)["large"])
        assert torch.equal(rows[:, :-4], load_file(tmp_path / "model.safetensors")["large"])


@pytest.mark.parametrize("kind", ["eagle", "falcon"])
def test_an_embedding_of_its_own_is_kept(tmp_path, target, kind):
    load, config, weights, name = KINDS[kind]
    own = torch.randn(V, H).half().float()
    folder = put(tmp_path / "e", config, weights(embedding=own), name)
    load(folder, target).save(tmp_path / "again")
    assert torch.equal(load(tmp_path / "again", target).embed_tokens.weight, own)


def test_an_eagle_head_of_another_vocabulary(tmp_path):
    """Without an embedding no shape tells."""
    tiny.head("eagle").save(tmp_path)
    other = specwb.load(tiny.build("llama", vocab_size=80))
    assert "64 tokens" in refused(load_eagle, tmp_path, other)


# ----------------------------------------------------------------------------------------- Medusa


def test_medusa_1_with_a_config_that_counts_wrong(tmp_path, target):
    """The published Vicuna v1.3 configs say 2 heads, the files hold 5."""
    weights, dtype = medusa_file(5), torch.bfloat16
    heads = load_medusa(put(tmp_path / "m", MEDUSA, weights, "medusa_lm_head.pt", dtype), target)
    assert (heads.heads, heads.blocks) == (5, 1)
    weights = {k: w.to(dtype).float() for k, w in weights.items()}
    x = torch.randn(3, 4, H)
    for i in range(5):
        y = x + F.silu(x @ weights[f"{i}.0.linear.weight"].T + weights[f"{i}.0.linear.bias"])
        assert torch.allclose(heads(x)[..., i, :], y @ weights[f"{i}.1.weight"].T, atol=1e-5)
    assert heads(x, 2).shape == (3, 4, 2, V)


# ----------------------------------------------------------------------------------------- EAGLE


@pytest.mark.parametrize(("embedding", "bias"), [("the target's", False), ("its own", True)])
def test_eagle_1_computes_what_the_published_layer_does(tmp_path, target, embedding, bias):
    """Files for Llama 3 have no bias."""
    table = target.backbone.embed.weight.detach().clone()
    own = {"the target's": table, "its own": torch.randn(V, H)}[embedding]
    weights = eagle_file(bias, own)
    folder = put(tmp_path / "e", {**LLAMA, "bias": bias}, weights, "pytorch_model.bin")
    head = load_eagle(folder, target)
    assert type(head) is EagleHead
    assert head.features == (-1,)
    assert (head.embed_tokens is None) == (embedding != "its own")  # the target's is not kept twice
    embedded, features = torch.randn(7, H), torch.randn(7, H)
    entered = torch.cat([embedded, features], -1) @ weights["fc.weight"].T
    entered = entered + weights.get("fc.bias", torch.zeros(1))

    wanted = decoder_layer(weights, "layers.0", entered, entered)
    with torch.no_grad():
        ours = next(head.unroll(embedded[None], features[None], 1))[0]
    assert torch.allclose(ours, wanted, atol=1e-5)
    assert torch.equal(
        head.logits(ours, head.output(target.backbone.lm_head)), target.backbone.lm_head(ours)
    )


@pytest.mark.parametrize(
    ("name", "config", "layer", "residual", "before"),
    [
        ("pytorch_model.bin", EAGLE3, "midlayer", False, False),
        ("model.safetensors", SPECULATORS, "layers.0", True, False),
        (
            "model.safetensors",
            {**SPECULATORS, "norm_before_residual": False, "norm_before_fc": True},
            "layers.0",
            False,
            True,
        ),
    ],
    ids=["published", "speculators", "speculators, norm before fc"],
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
        assert torch.allclose(
            head.logits(ours, head.output(target.backbone.lm_head)),
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

    def drafted(self, embed: nn.Embedding, tokens: list[int], features: Tensor, most: int):
        """What is drafted behind pairs of ``tokens`` with ``features [m, 3H]``, everything computed
        anew for each token: below the first one the normed state stands beside a token."""
        parts = [norm(x) for norm, x in zip(self.fc_norm, features.split(H, -1), strict=True)]
        above, found = self.fc(torch.cat(parts, -1)), []
        for _ in range(most):
            x = self.norm(self(embed(torch.tensor([tokens])), above[None]))[0, -1]
            found.append(int(self.lm_head(x).argmax()))
            tokens, above = [*tokens, found[-1]], torch.cat([above, x[None]])
        return found


def test_eagle_3_1_of_speculators_with_layers_of_qwen3(tmp_path, target):
    """norm_output, fc_norm, query and key norms, further layers: the chain that is drafted is the
    published computation's, and a file that we write says the same."""
    published = Published(layers=2).eval()
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
        wanted = published.drafted(target.backbone.embed, prompt[1:], features, 4)
    assert len(set(wanted)) > 1
    for one in (head, load_eagle(tmp_path / "again", target)):
        method = specwb.method("eagle", target, head=one, tree=specwb.Tree.chain(4))
        (step,) = specwb.rounds(target, prompt, method, max_new_tokens=1)
        assert step.draft.tokens[0, 1:].tolist() == wanted


def test_fields_that_ask_for_nothing(tmp_path, target):
    """As NVIDIA's files have them, and those of SpecForge (configs/qwen3-4b-eagle3.json) and
    AngelSlim (train/configs/qwen3-8b-eagle3.json), read in November 2026."""
    usual = {
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
    }
    config = {**EAGLE3, "eagle_config": usual, "new": None, "other": False, "pretraining_tp": 1}
    config |= {"attention_bias": False, "attention_dropout": 0.0, "max_window_layers": 48}
    config |= {"use_sliding_window": False, "target_model_type": "qwen3", "modal_type": "LLM"}
    assert load_eagle(put(tmp_path / "e", config, eagle3_file(), "pytorch_model.bin"), target)


def test_a_head_with_windows(tmp_path, target):
    """They are kept when the head is saved; that they are computed is in test_eagle.py."""
    windows = {"layer_types": ["sliding_attention"], "sliding_window": 3}
    folder = put(tmp_path / "h", {**EAGLE3, **windows}, eagle3_file(), "pytorch_model.bin")
    load_eagle(folder, target).save(tmp_path / "again")
    again = load_eagle(tmp_path / "again", target).config
    assert (again.layer_types, again.sliding_window) == (["sliding_attention"], 3)
    put(folder, {**EAGLE3, **windows, "sliding_window": 0}, eagle3_file(), "pytorch_model.bin")
    assert "sliding window" in refused(load_eagle, folder, target)


EAGLES, ANGELSLIMS = "eagle_aux_hidden_state_layer_ids", "aux_hidden_states_layer_ids"
OURS = "specwb_features"


@pytest.mark.parametrize(
    ("ids", "numbers"),
    [
        # as the published code has it: what enters layers 2, L/2 and L - 3
        ({}, (2, 4, 5)),
        ({EAGLES: [1, 3, 4]}, (2, 4, 5)),  # outputs of layers counted from 0
        ({EAGLES: [2, 4, 5]}, (2, 4, 5)),  # boundaries
        ({EAGLES: [1, 3, 4], OURS: [1, 3, 8]}, (1, 3, 8)),
        # AngelSlim's field counts outputs from 0 whatever it begins with
        ({ANGELSLIMS: [1, 3, 4]}, (2, 4, 5)),
        ({ANGELSLIMS: [2, 4, 6]}, (3, 5, 7)),
    ],
)
def test_conventions_of_layer_ids(tmp_path, target, ids, numbers):
    own = {OURS: ids[OURS]} if OURS in ids else {}
    for config in ({**EAGLE3, "eagle_config": ids, **own}, {**EAGLE3, **ids}):
        folder = put(tmp_path / "e", config, eagle3_file(), "pytorch_model.bin")
        assert load_eagle(folder, target).features == numbers


def test_a_map_beside_the_whole_vocabulary_that_moves_tokens(tmp_path, target):
    weights = {**eagle3_file(rows=V), **maps(torch.arange(V))}
    weights["d2t"][0], weights["d2t"][1] = 1, -1
    config = {**EAGLE3, "draft_vocab_size": V}
    folder = put(tmp_path / "e", config, weights, "pytorch_model.bin")
    assert "d2t moves tokens" in refused(load_eagle, folder, target)
    with pytest.raises(HeadError, match="at least 6 layers"):
        load_eagle(put(folder, EAGLE3, eagle3_file(), "pytorch_model.bin"), tiny.target())


def test_a_narrower_head_brings_its_embedding(tmp_path, target):
    """EAGLE-3's hidden size may be another than the target's, but then the target's embedding does
    not fit."""
    small = specwb.load(
        tiny.build("llama", seed=2, num_hidden_layers=LAYERS, hidden_size=48, num_attention_heads=6)
    )
    weights = eagle3_file()
    weights["fc.weight"] = torch.randn(H, 3 * 48)
    folder = put(tmp_path / "e", {**EAGLE3, "target_hidden_size": 48}, weights, "pytorch_model.bin")
    assert "has no embedding" in refused(load_eagle, folder, small)
    own = torch.randn(V, H)
    head = load_eagle(
        put(folder, None, {**weights, "embed_tokens.weight": own}, "pytorch_model.bin"), small
    )
    assert torch.equal(head.embed_tokens.weight, own)
    assert (head.hidden, head.target_hidden) == (32, 48)
