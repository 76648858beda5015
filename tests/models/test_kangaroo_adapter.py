"""A forward split at any layer, verification that goes on from drafted states, Kangaroo's adapter
by hand, and its files and a decision model's."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path

import pytest
import tiny
import torch
from test_checkpoints import (
    DIM,
    FFN,
    HEADS,
    KV,
    LLAMA,
    H,
    V,
    Weights,
    attention,
    layer0,
    mlp_and_output,
    norm,
    put,
    refused,
    rotated,
    tensors,
)
from torch import Tensor, nn
from torch.nn import functional as F

import specwb
from specwb.flow import Draft, Scheme
from specwb.mask import tree_mask
from specwb.models.backbone import Stack
from specwb.models.checkpoint import HeadError
from specwb.models.decision import DecisionModel, load_decision
from specwb.models.eagle import eagle_config
from specwb.models.kangaroo import ADAPTERS, KangarooAdapter, load_kangaroo
from specwb.models.layout import LAYOUTS
from specwb.models.place import Place
from specwb.probability import Sampling

LAYERS = 3
every_kind = pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
every_exit = pytest.mark.parametrize("exit", range(LAYERS + 1))
TREES = {
    "chain": specwb.Tree.chain(3),
    "lopsided": specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)]),
    "cut": specwb.Tree.branching(3, 2, 2).prefix(2),
}
RAGGED = [[3, 1, 4, 1, 5, 9], [5], [2, 6, 5]]


# --------------------------------------------------------------------- a forward split at a layer


@every_exit
@every_kind
def test_a_split_causal_forward_is_the_whole_one(kind, exit):
    """States, logits, features of both halves and caches, at every layer, embedding and last layer
    among them."""
    backbone = tiny.target(kind).backbone
    ids = torch.randint(V, (2, 9), generator=torch.Generator().manual_seed(0))
    place, every = Place.text(2, 9), tuple(range(LAYERS + 1))
    x, whole, parts = backbone.embed(ids), backbone.cache(2, 9), backbone.cache(2, 9)
    with torch.no_grad():
        wanted, features = backbone.run(x, place, whole, features=(*every, -1))
        early, before = backbone.run(x, place, parts, last=exit, features=every[: exit + 1])
        assert not parts.data[exit:].any(), "layers behind the exit ran"
        kept = parts.data[:exit].clone()  # where the second half must not write
        late, after = backbone.run(early, place, parts, first=exit, features=(*every[exit:], -1))
    assert torch.equal(parts.data[:exit], kept)
    torch.testing.assert_close(late, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(backbone.head(late), backbone.head(wanted), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(parts.data, whole.data, atol=1e-5, rtol=1e-5)
    width = H * (exit + 1)
    torch.testing.assert_close(before, features[..., :width], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(after, features[..., width - H :], atol=1e-5, rtol=1e-5)


def opened(kind: str, tree: specwb.Tree, features: tuple[int, ...] = ()):
    """A state of rows of different lengths, and a draft of ``tree`` with tokens of its own in every
    row."""
    target = tiny.target(kind)
    with torch.inference_mode():
        state = target.open(RAGGED, [20] * 3, tree.n + 1, Sampling(), (), features)
    drafted = torch.randint(V, (3, tree.n), generator=torch.Generator().manual_seed(1))
    drafted[:, 0] = torch.tensor([prompt[-1] for prompt in RAGGED])
    return (
        target,
        state,
        Draft(tree, drafted, torch.ones_like(drafted, dtype=torch.bool), Scheme.POINT),
    )


def shallow(target: specwb.Target, state: specwb.State, draft: Draft, exit: int) -> Draft:
    """The same draft with its states at ``exit``, made level by level as drafting does: the keys
    and values of the first layers go to the cache."""
    tree, base, found = draft.tree, (state.length - 1)[:, None], []
    mask = tree_mask(tree, state.length, state.horizon, target.dtype)
    for start, stop in tree.levels:
        index, extent = torch.arange(start, stop), state.horizon - 1 + stop
        x = target.backbone.embed(draft.tokens[:, start:stop])
        seen = mask[:, start:stop, :extent]
        place = Place(base + tree.depth[:, start:stop], base + index, extent, seen)
        found.append(target.backbone.run(x, place, state.cache, last=exit)[0])
    return Draft(
        tree, draft.tokens, draft.valid, draft.scheme, hidden=torch.cat(found, 1), start_layer=exit
    )


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@every_exit
@every_kind
def test_verification_goes_on_from_drafted_states(kind, exit, tree):
    """Logits, features and all that lies in the cache are those of the whole tree in one forward,
    in both layouts; rows of different lengths."""
    features = (*range(exit, LAYERS + 1), -1)
    for layout in LAYOUTS:
        with torch.inference_mode():
            target, state, draft = opened(kind, tree, features)
            wanted = target.score(state, draft, features)
            _, other, _ = opened(kind, tree, features)
            split = shallow(target, other, draft, exit)
            assert not other.cache.data[exit:, :, max(map(len, RAGGED)) :].any(), (
                "layers behind the exit ran while drafting"
            )
            found = target.score(other, split, features, layout)
        torch.testing.assert_close(found.logits, wanted.logits, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found.features, wanted.features, atol=1e-4, rtol=1e-4)
        for row, prompt in enumerate(RAGGED):
            upto = len(prompt) - 1 + tree.n
            torch.testing.assert_close(
                other.cache.data[:, row, :upto],
                state.cache.data[:, row, :upto],
                atol=1e-4,
                rtol=1e-4,
            )


def test_states_of_another_path_are_seen():
    """The comparison above sees a state that stands at the wrong node."""
    tree = TREES["lopsided"]
    with torch.inference_mode():
        target, state, draft = opened("llama", tree)
        wanted = target.score(state, draft).logits
        split = shallow(target, state, draft, 1)
        split.hidden = split.hidden[:, [0, 2, 1, *range(3, tree.n)]]
        moved = (target.score(state, split).logits - wanted).abs().amax((0, 2))
    assert moved[0] < 1e-4
    assert (moved[1:3] > 1e-2).all()


# ------------------------------------------------------------------------------------ the adapter


def new(
    adapter: str = "attention",
    exit: int = 1,
    own_head: bool = False,
    layers: int = 1,
    kind: str = "llama",
) -> KangarooAdapter:
    """Of weights so large that what any place says depends on all that it sees."""
    torch.manual_seed(4)
    made = KangarooAdapter(eagle_config(tiny.target(kind), layers), exit, adapter, own_head)
    for name, weight in made.named_parameters():
        weight.data = torch.randn_like(weight) * 0.3 + ("norm" in name)
    return made.requires_grad_(False).eval()


def by_hand(w: Weights, f: Tensor, adapter: str, theta: float, kv: int = KV) -> Tensor:
    """``[m,H]`` what stands before the last norm, written out."""
    x = norm(f, w["layers.0.input_layernorm.weight"])
    if adapter == "mlp":
        return f + F.silu(x @ w["layers.0.up_proj.weight"].T) @ w["layers.0.down_proj.weight"].T
    q, k, v = ((x @ w[layer0(n)].T).view(len(f), -1, DIM).transpose(0, 1) for n in "qkv")
    k, v = (part.repeat_interleave(HEADS // kv, 0) for part in (rotated(k, theta), v))
    sees = torch.ones(len(f), len(f)).tril().bool()
    scores = (rotated(q, theta) @ k.mT / math.sqrt(DIM)).masked_fill(~sees, float("-inf"))
    y = f + (scores.softmax(-1) @ v).transpose(0, 1).flatten(1) @ w[layer0("o")].T
    if adapter == "layer":
        z = norm(y, w["layers.0.post_attention_layernorm.weight"])
        y = (
            y
            + (
                F.silu(z @ w["layers.0.mlp.gate_proj.weight"].T)
                * (z @ w["layers.0.mlp.up_proj.weight"].T)
            )
            @ w["layers.0.mlp.down_proj.weight"].T
        )
    return y


@pytest.mark.parametrize("own_head", [False, True])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_adapter_by_hand(adapter, own_head):
    target, head = tiny.target(), new(adapter, own_head=own_head)
    head.norm.variance_epsilon = 1e-5  # the hand's
    for layer in head.layers:
        for module in layer.modules():
            if hasattr(module, "variance_epsilon"):
                module.variance_epsilon = 1e-5
    w, f = head.state_dict(), torch.randn(7, H)
    theta = head.config.rope_parameters["rope_theta"]
    hidden = head(f[None])[0]
    torch.testing.assert_close(hidden, by_hand(w, f, adapter, theta), atol=1e-5, rtol=1e-4)
    weight = w["lm_head.weight"] if own_head else target.backbone.lm_head.weight
    torch.testing.assert_close(
        head.logits(hidden, target.backbone.lm_head),
        norm(hidden, w["norm.weight"]) @ weight.T,
        atol=1e-4,
        rtol=1e-4,
    )


@every_kind
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("adapter", ["attention", "layer"])
def test_training_and_the_cache_compute_the_same(adapter, layers, kind):
    """The library's modules with gradients, and the stack over a cache: in one pass, and token by
    token with a mask."""
    head = new(adapter, layers=layers, kind=kind)
    stack, f = Stack.of(head), torch.randn(2, 6, H)
    at = torch.arange(6).expand(2, 6)
    wanted = head(f)
    with torch.inference_mode():
        torch.testing.assert_close(
            stack.run(f, Place.text(2, 6), stack.cache(2, 6))[0],
            wanted,
            atol=1e-5,
            rtol=1e-4,
        )
        cache, steps = stack.cache(2, 8), []
        for i in range(6):
            place = Place.behind(at[:, i : i + 1], 8, torch.float32)
            steps.append(stack.run(f[:, i : i + 1], place, cache)[0])
    torch.testing.assert_close(torch.cat(steps, 1), wanted, atol=1e-5, rtol=1e-4)


def test_which_parts_an_adapter_has():
    """Parameters 4 N^2 + 2 N of the paper's, all heads being of their own."""
    config = eagle_config(specwb.load(tiny.build("llama", num_key_value_heads=4)))
    count = {
        a: sum(p.numel() for p in KangarooAdapter(config, 1, a).parameters()) for a in ADAPTERS
    }
    assert count == {
        "attention": 4 * H * H + 2 * H,
        "layer": 4 * H * H + 3 * FFN * H + 3 * H,
        "mlp": 2 * H * H + 2 * H,
    }
    owned = KangarooAdapter(config, 1, own_head=True)
    assert sum(p.numel() for p in owned.parameters()) == count["attention"] + V * H
    assert (new().features, new("mlp").blocks, len(new(layers=2).blocks)) == ((1,), [], 2)
    with pytest.raises(HeadError, match="adapter must be attention, layer, mlp, got 'ffn'"):
        KangarooAdapter(config, 1, "ffn")
    with pytest.raises(
        HeadError, match="an adapter without attention has one layer, this one has 2"
    ):
        new("mlp", layers=2)


@pytest.mark.parametrize("exit", range(LAYERS))
@every_kind
def test_an_adapter_begins_as_the_layer_behind_its_exit(kind, exit):
    """A whole layer that begins so behind exit L - 1 says what the target says, where the family's
    layer is Llama's."""
    target = tiny.target(kind)
    inner = target.model.model
    for adapter in ADAPTERS:
        head = KangarooAdapter(eagle_config(target), exit, adapter, own_head=True).start_from(
            target
        )
        behind = inner.layers[exit].state_dict()
        assert torch.equal(
            head.layers[0].input_layernorm.weight, inner.layers[exit].input_layernorm.weight
        )
        if adapter != "mlp":
            assert torch.equal(
                head.layers[0].self_attn.k_proj.weight, behind["self_attn.k_proj.weight"]
            )
        assert torch.equal(head.norm.weight, inner.norm.weight)
        assert torch.equal(head.lm_head.weight, target.backbone.lm_head.weight)
        assert head.lm_head.weight.data_ptr() != target.backbone.lm_head.weight.data_ptr()
    if kind == "llama":
        ids = torch.randint(V, (1, 8))
        head = (
            KangarooAdapter(eagle_config(target), exit, "layer")
            .start_from(target)
            .requires_grad_(False)
        )
        said = head.logits(head(tiny.states(target, ids, (exit,))), target.backbone.lm_head)
        away = float((said[0] - tiny.forward(target.model, ids[0].tolist())).abs().max())
        assert (away < 1e-4) == (exit == LAYERS - 1)


# ------------------------------------------------------------------------------------------ files


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.build("llama", seed=2))


def published(kv: int = KV) -> Weights:
    """The keys of the published files; of grouped heads where the config says so."""
    shapes = {
        "norm.weight": (H,),
        "layers.0.input_layernorm.weight": (H,),
        **attention("layers.0", H),
        layer0("o"): (H, HEADS * DIM),
    }
    return tensors(
        {
            k: (kv * DIM, H) if k in (layer0("k"), layer0("v")) else shape
            for k, shape in shapes.items()
        }
    )


CONFIG = {k: v for k, v in LLAMA.items() if k != "rope_theta"} | {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
}


@pytest.mark.parametrize("kv", [KV, HEADS], ids=["grouped", "all heads"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_a_published_file(tmp_path, target, name, kv):
    """It does not say its exit layer; its attention may have other heads than the target's."""
    weights = published(kv)
    folder = put(
        tmp_path / "k", {**CONFIG, "num_key_value_heads": kv}, weights, name, torch.float32
    )
    assert "does not say the exit layer; name it with exit=" in refused(
        load_kangaroo, folder, target
    )
    head = load_kangaroo(folder, target, exit=2)
    assert (head.exit, head.adapter, head.lm_head, head.training) == (2, "attention", None, False)
    f = torch.randn(6, H)
    wanted = by_hand(weights, f, "attention", 10000.0, kv)
    torch.testing.assert_close(head(f[None])[0], wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        head.logits(wanted, target.backbone.lm_head),
        norm(wanted, weights["norm.weight"]) @ target.backbone.lm_head.weight.T,
        atol=1e-4,
        rtol=1e-4,
    )
    with pytest.raises(specwb.MethodError, match="exit must be an integer"):
        specwb.method("kangaroo", target, head=str(folder), exit=-1)
    prompt = [[1, 2, 3]]
    out = specwb.decode(
        target,
        prompt,
        specwb.method("kangaroo", target, head=str(folder), exit=2, eta=0),
        max_new_tokens=8,
    )
    assert out.tokens == specwb.decode(target, prompt, "ar", max_new_tokens=8).tokens


@pytest.mark.parametrize("exit", range(LAYERS))
@pytest.mark.parametrize("own_head", [False, True])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_what_is_saved_is_loaded_again(tmp_path, target, adapter, own_head, exit):
    for layers in {1, 1 if adapter == "mlp" else 2}:
        head = new(adapter, exit, own_head, layers)
        for p in head.parameters():
            p.data = p.data.half().float()  # files are fp16
        folder = tmp_path / str(layers)
        head.save(folder, card={"note": 1})
        again = load_kangaroo(folder, target)
        assert (again.card["note"], again.exit, again.adapter, again.lm_head is not None) == (
            1,
            exit,
            adapter,
            own_head,
        )
        assert again.state_dict().keys() == head.state_dict().keys()
        assert all(torch.equal(again.state_dict()[key], w) for key, w in head.state_dict().items())
        f = torch.randn(1, 4, H)
        torch.testing.assert_close(again(f), head(f))
        assert not any(p.requires_grad for p in again.parameters())
        config = json.loads((folder / "config.json").read_text())
        assert (config["exit_layer"], config["adapter"], config["own_head"]) == (
            exit,
            adapter,
            own_head,
        )
        if (adapter, own_head, layers) == ("attention", False, 1):
            assert set(again.state_dict()) == set(published())


def moved(config: dict) -> dict:
    return {**CONFIG, "exit_layer": 1, **config}


@pytest.mark.parametrize(
    ("change", "config", "options", "named"),
    [
        (lambda w: w.pop("norm.weight"), {}, {}, "missing norm.weight"),
        (lambda w: w.pop(layer0("o")), {}, {}, "missing layers.0.self_attn.o_proj.weight"),
        (
            lambda w: w.update({"embed_tokens.weight": torch.zeros(V, H)}),
            {},
            {},
            "surplus embed_tokens.weight",
        ),
        (
            lambda w: w.update(tensors(mlp_and_output("layers.0"))),
            {},
            {},
            "surplus layers.0.mlp.down_proj.weight",
        ),
        (
            lambda w: w.update({"lm_head.weight": torch.zeros(V, H)}),
            {},
            {},
            "surplus lm_head.weight",
        ),
        (lambda w: None, {"own_head": True}, {}, "missing lm_head.weight"),
        (lambda w: None, {"adapter": "layer"}, {}, "missing layers.0.mlp.down_proj.weight"),
        (lambda w: None, {"adapter": "mlp"}, {}, "missing layers.0.down_proj.weight"),
        (
            lambda w: None,
            {"adapter": "ffn"},
            {},
            "adapter must be attention, layer, mlp, got 'ffn'",
        ),
        (
            lambda w: None,
            {"adapter": "mlp", "num_hidden_layers": 2},
            {},
            "an adapter without attention has one layer",
        ),
        (lambda w: None, {"num_hidden_layers": 2}, {}, "missing layers.1.input_layernorm.weight"),
        (
            lambda w: None,
            {"num_key_value_heads": HEADS},
            {},
            "k_proj.weight is [16, 32], not [32, 32]",
        ),
        (
            lambda w: w["norm.weight"].fill_(float("nan")),
            {},
            {},
            "norm.weight has values that are NaN",
        ),
        (
            lambda w: None,
            {"exit_layer": 3},
            {},
            "exit layer 3 does not exist: it must be one of 0..2, with a layer of "
            "'LlamaForCausalLM' behind it",
        ),
        (lambda w: None, {"exit_layer": -1}, {}, "exit layer -1 does not exist"),
        (lambda w: None, {"exit_layer": "1"}, {}, "exit layer '1' does not exist"),
        (lambda w: None, {"exit_layer": True}, {}, "exit layer True does not exist"),
        (lambda w: None, {"exit_layer": None}, {"exit": 3}, "exit layer 3 does not exist"),
        (lambda w: None, {"exit_layer": None}, {}, "does not say the exit layer"),
        (lambda w: None, {}, {"exit": 2}, "trained on the states of layer 1, not of layer 2"),
        (
            lambda w: None,
            {"hidden_size": 64},
            {},
            "target of hidden size 64 and 64 tokens, 'LlamaForCausalLM' has 32 and 64",
        ),
        (lambda w: None, {"vocab_size": 80}, {}, "target of hidden size 32 and 80 tokens"),
        (
            lambda w: None,
            {"num_attention_heads": 0},
            {},
            "config.json describes no layer that can be built",
        ),
        (lambda w: w.clear(), {}, {}, "missing layers.0.input_layernorm.weight"),
    ],
)
def test_wrong_adapter_files(tmp_path, target, change, config, options, named):
    weights = published()
    change(weights)
    message = refused(
        load_kangaroo,
        put(tmp_path / "k", moved(config), weights, "pytorch_model.bin"),
        target,
        **options,
    )
    assert re.search(re.escape(named), message), message


def on_disk(tmp_path: Path, target: specwb.Target, name: str = "model") -> specwb.Target:
    target.model.save_pretrained(tmp_path / name)
    tiny.tokenizer([f"w{i}" for i in range(V)]).save_pretrained(tmp_path / name)
    return specwb.load(tmp_path / name)


def test_another_targets_adapter(tmp_path, target):
    stored = on_disk(tmp_path, target)
    new().save(tmp_path / "k", card={"target_sha256": stored.sha256})
    assert load_kangaroo(tmp_path / "k", stored).exit == 1
    new().save(tmp_path / "k", card={"target_sha256": "f" * 64})
    assert "trained for the target with sha256 ffffffffffff" in refused(
        load_kangaroo, tmp_path / "k", stored
    )


def test_no_adapter_there(tmp_path, target):
    (tmp_path / "empty").mkdir()
    assert "none of model.safetensors, pytorch_model.bin is there" in refused(
        load_kangaroo, tmp_path / "empty", target
    )
    assert "does not exist" in refused(load_kangaroo, tmp_path / "nowhere", target)
    assert "config.json is not JSON" in refused(
        load_kangaroo, put(tmp_path / "k", "{", published(), "pytorch_model.bin"), target
    )


# -------------------------------------------------------------------------------- decision models


def net_by_hand(w: Weights, name: str, x: Tensor) -> Tensor:
    last = max(int(key.split(".")[1]) for key in w if key.startswith(name))
    for i in range(0, last + 1, 2):
        x = x @ w[f"{name}.{i}.weight"].T + w[f"{name}.{i}.bias"]
        x = x.relu() if i < last else x
    return x[..., 0]


def test_the_decision_model_by_hand():
    """Widths of the published nets at the published width, and what each reads."""
    shapes = {key: list(w.shape) for key, w in DecisionModel(768).state_dict().items()}
    assert {key: s for key, s in shapes.items() if len(s) == 2} == {
        "soft.0.weight": [512, 768],
        "soft.2.weight": [256, 512],
        "soft.4.weight": [1, 256],
        "hard.0.weight": [44, 11],
        "hard.2.weight": [1, 44],
    }
    assert sum(p.numel() for p in DecisionModel(768).soft.parameters()) == 525_313
    assert sum(p.numel() for p in DecisionModel(768).hard.parameters()) == 573
    model = DecisionModel(H).requires_grad_(False)
    w, logits, normed = model.state_dict(), torch.randn(2, 3, V) * 3, torch.randn(2, 3, H)
    torch.testing.assert_close(model("soft", logits, normed), net_by_hand(w, "soft", normed))
    q = logits.softmax(-1)
    read = torch.cat(
        [-(q * q.log()).sum(-1, keepdim=True), q.sort(-1, descending=True).values[..., :10]], -1
    )
    torch.testing.assert_close(model("hard", logits, normed), net_by_hand(w, "hard", read))


def test_a_vocabulary_smaller_than_what_the_hard_net_reads():
    """And a token without probability: 0 log 0 is 0."""
    model, logits = DecisionModel(8).requires_grad_(False), torch.tensor([[1.0, 0.0, -torch.inf]])
    q = logits.softmax(-1)[0]
    read = torch.tensor([-(q[:2] * q[:2].log()).sum(), q[0], q[1], *[0.0] * 8])
    torch.testing.assert_close(
        model("hard", logits, torch.zeros(1, 8))[0], net_by_hand(model.state_dict(), "hard", read)
    )


def test_decision_files(tmp_path, target):
    draft = tiny.draft()
    model = DecisionModel(H)
    for p in model.parameters():
        p.data = p.data.half().float()
    model.save(tmp_path / "d", card={"draft": "lab-draft", "draft_sha256": None, "note": 2})
    again = load_decision(tmp_path / "d", target, draft)
    assert again.card["note"] == 2
    assert all(torch.equal(again.state_dict()[key], w) for key, w in model.state_dict().items())
    assert not again.training
    assert not any(p.requires_grad for p in again.parameters())


def test_wrong_decision_files(tmp_path, target):
    stored = on_disk(tmp_path, target)
    draft = on_disk(tmp_path, specwb.load(tiny.perturbed(target.model, 0.02)), "draft")
    model = DecisionModel(H)
    model.save(tmp_path / "d", card={"draft_sha256": draft.sha256, "target_sha256": stored.sha256})
    load_decision(tmp_path / "d", stored, draft)
    assert re.search(
        "trained for the draft with sha256 .*train it anew",
        refused(load_decision, tmp_path / "d", stored, draft=stored),
    )
    model.save(tmp_path / "d", card={"target_sha256": "f" * 64})
    assert "trained for the target with sha256 ffffffffffff" in refused(
        load_decision, tmp_path / "d", stored, draft=draft
    )
    DecisionModel(48).save(tmp_path / "h")
    assert f"reads states of 48 numbers, '{draft.name}' has hidden size 32" in refused(
        load_decision, tmp_path / "h", stored, draft=draft
    )
    weights = {k: w for k, w in model.state_dict().items() if k != "hard.0.bias"}
    folder = put(tmp_path / "e", {"hidden_size": H}, weights, "model.safetensors")
    assert "missing hard.0.bias" in refused(load_decision, folder, stored, draft=draft)
    folder = put(
        tmp_path / "f",
        {"hidden_size": H},
        {**model.state_dict(), "soft.6.bias": torch.zeros(1)},
        "model.safetensors",
    )
    assert "surplus soft.6.bias" in refused(load_decision, folder, stored, draft=draft)
    folder = put(tmp_path / "g", None, dict(model.state_dict()), "model.safetensors")
    assert "reads states of None numbers" in refused(load_decision, folder, stored, draft=draft)


def test_an_adapter_is_moved_with_its_fused_weights():
    """One stack for all that draft with it, made anew where its weights were moved."""
    head = new()
    stack = Stack.of(head)
    assert Stack.of(head) is stack
    other = copy.deepcopy(head)
    other.load_state_dict({k: w * 2 for k, w in head.state_dict().items()})
    f = torch.randn(1, 4, H)
    for one in (head, other):
        made = Stack.of(one)
        with torch.inference_mode():
            torch.testing.assert_close(
                made.run(f, Place.text(1, 4), made.cache(1, 4))[0],
                one(f),
                atol=1e-5,
                rtol=1e-4,
            )
    assert Stack.of(other) is not stack
    assert isinstance(head.layers, nn.ModuleList)
