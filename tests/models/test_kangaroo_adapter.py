"""Verification that goes on from drafted states, Kangaroo's adapter by hand, and decision models.
Its files: test_checkpoints.py."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import tiny
import torch
from layouts import (
    HEADS,
    KANGAROO,
    KV,
    H,
    V,
    Weights,
    attended,
    damaged,
    kangaroo_file,
    norm,
    put,
    refused,
    with_mlp,
)
from torch import Tensor
from torch.nn import functional as F

import specwb
from specwb.core.flow import Draft, Scheme
from specwb.core.mask import tree_mask
from specwb.core.probability import Sampling
from specwb.models.backbone import Stack
from specwb.models.decision import DecisionModel, load_decision
from specwb.models.eagle import eagle_config
from specwb.models.kangaroo import ADAPTERS, KangarooAdapter, load_kangaroo
from specwb.models.layout import LAYOUTS
from specwb.models.place import Place

LAYERS = 3
TREES = {
    "chain": specwb.Tree.chain(3),
    "lopsided": specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)]),
    "cut": specwb.Tree.branching(3, 2, 2).prefix(2),
}
RAGGED = [[3, 1, 4, 1, 5, 9], [5], [2, 6, 5]]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


# ------------------------------------------------------- verification goes on from drafted states


def opened(kind: str, tree: specwb.Tree, features: tuple[int, ...]):
    """A state of rows of different lengths, and a draft of ``tree`` with tokens of its own in every
    row."""
    target = tiny.target(kind)
    state = target.open(RAGGED, [20] * 3, tree.n + 1, Sampling(), (), features)
    drafted = torch.randint(V, (3, tree.n), generator=torch.Generator().manual_seed(1))
    drafted[:, 0] = torch.tensor([prompt[-1] for prompt in RAGGED])
    valid = torch.ones_like(drafted, dtype=torch.bool)
    return target, state, Draft(tree, drafted, valid, Scheme.POINT)


def shallow(target: specwb.Target, state: specwb.State, draft: Draft, exit: int) -> Draft:
    """The same draft with its states at ``exit``, made level by level as drafting does: the keys
    and values of the first layers go to the cache."""
    tree, base, states = draft.tree, (state.length - 1)[:, None], []
    mask = tree_mask(tree, state.length, state.horizon, target.dtype)
    for start, stop in tree.levels:
        slots, extent = base + torch.arange(start, stop), state.horizon - 1 + stop
        seen = mask[:, start:stop, :extent]
        place = Place(base + tree.depth[:, start:stop], slots, extent, seen)
        x = target.backbone.embed(draft.tokens[:, start:stop])
        states.append(target.backbone.run(x, place, state.cache, last=exit)[0])
    hidden = torch.cat(states, 1)
    return Draft(tree, draft.tokens, draft.valid, draft.scheme, hidden=hidden, start_layer=exit)


@torch.no_grad()
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize(("kind", "exit"), [("llama", 0), ("qwen2", 1), ("qwen3", 2), ("llama", 3)])
def test_verification_goes_on_from_drafted_states(kind, exit, tree):
    """Logits, features and all that lies in the cache are those of the whole tree in one forward,
    in both layouts; rows of different lengths."""
    features = (*range(exit, LAYERS + 1), -1)
    for layout in LAYOUTS:
        target, state, draft = opened(kind, tree, features)
        wanted = target.score(state, draft, features)
        _, other, _ = opened(kind, tree, features)
        split = shallow(target, other, draft, exit)
        behind = other.cache.data[exit:, :, max(map(len, RAGGED)) :]
        assert not behind.any(), "layers behind the exit ran while drafting"
        scores = target.score(other, split, features, layout)
        close(scores.logits, wanted.logits)
        close(scores.features, wanted.features)
        for row, prompt in enumerate(RAGGED):
            upto = len(prompt) - 1 + tree.n
            close(other.cache.data[:, row, :upto], state.cache.data[:, row, :upto])


# ------------------------------------------------------------------------------------ the adapter


def new(
    adapter: str = "attention", own_head: bool = False, layers: int = 1, kind: str = "llama"
) -> KangarooAdapter:
    """Of weights so large that what any place says depends on all that it sees."""
    config = eagle_config(tiny.target(kind), layers)
    made = tiny.loud(lambda: KangarooAdapter(config, 1, adapter, own_head), 4, 0.3)
    return made.requires_grad_(False)


def by_hand(w: Weights, f: Tensor, adapter: str, theta: float) -> Tensor:
    """``[m,H]`` what stands before the last norm, written out."""
    x = norm(f, w["layers.0.input_layernorm.weight"])
    if adapter == "mlp":
        return f + F.silu(x @ w["layers.0.up_proj.weight"].T) @ w["layers.0.down_proj.weight"].T
    y = f + attended(w, "layers.0", x, theta=theta)
    return with_mlp(w, "layers.0", y) if adapter == "layer" else y


@pytest.mark.parametrize("own_head", [False, True])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_adapter_by_hand(adapter, own_head):
    target, head = tiny.target(), new(adapter, own_head)
    for module in head.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-5  # the hand's
    w, f = head.state_dict(), torch.randn(7, H)
    hidden = head(f[None])[0]
    close(hidden, by_hand(w, f, adapter, head.config.rope_parameters["rope_theta"]))
    weight = w["lm_head.weight"] if own_head else target.backbone.lm_head.weight
    logits = head.logits(hidden, target.backbone.lm_head)
    close(logits, norm(hidden, w["norm.weight"]) @ weight.T)


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
            close(made.run(f, Place.text(1, 4), made.cache(1, 4))[0], one(f))
    assert Stack.of(other) is not stack


@pytest.mark.parametrize("exit", range(LAYERS))
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_an_adapter_begins_as_the_layer_behind_its_exit(kind, exit):
    """A whole layer that begins so behind exit L - 1 says what the target says, where the family's
    layer is Llama's."""
    target = tiny.target(kind)
    inner = target.model.model
    behind = inner.layers[exit].state_dict()
    for adapter in ADAPTERS:
        config = eagle_config(target)
        head = KangarooAdapter(config, exit, adapter, own_head=True).start_from(target)
        layer = head.layers[0].state_dict()
        parts = ["input_layernorm.weight"]
        if adapter != "mlp":
            parts.append("self_attn.k_proj.weight")
        assert all(torch.equal(layer[part], behind[part]) for part in parts)
        assert torch.equal(head.norm.weight, inner.norm.weight)
        assert torch.equal(head.lm_head.weight, target.backbone.lm_head.weight)
        assert head.lm_head.weight.data_ptr() != target.backbone.lm_head.weight.data_ptr()
    if kind == "llama":
        ids = torch.randint(V, (1, 8))
        head = KangarooAdapter(eagle_config(target), exit, "layer").start_from(target)
        with torch.no_grad():
            hidden = head(tiny.states(target, ids, (exit,)))
            logits = head.logits(hidden, target.backbone.lm_head)[0]
        away = float((logits - tiny.forward(target.model, ids[0].tolist())).abs().max())
        assert (away < 1e-4) == (exit == LAYERS - 1)


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.build("llama", seed=2))


@pytest.mark.parametrize("kv", [KV, HEADS], ids=["grouped", "all heads"])
def test_a_published_file(tmp_path, target, kv):
    """It does not say its exit layer; its attention may have other heads than the target's."""
    weights, config = kangaroo_file(kv), {**KANGAROO, "num_key_value_heads": kv}
    folder = put(tmp_path / "k", config, weights, "pytorch_model.bin")
    head = load_kangaroo(folder, target, exit=2)
    assert (head.exit, head.adapter, head.lm_head, head.training) == (2, "attention", None, False)
    f = torch.randn(6, H)
    wanted = by_hand(weights, f, "attention", 10000.0)
    close(head(f[None])[0], wanted)
    logits = head.logits(wanted, target.backbone.lm_head)
    close(logits, norm(wanted, weights["norm.weight"]) @ target.backbone.lm_head.weight.T)
    with pytest.raises(specwb.MethodError, match="exit must be"):
        specwb.method("kangaroo", target, head=str(folder), exit=-1)
    method = specwb.method("kangaroo", target, head=str(folder), exit=2, eta=0)
    out = specwb.decode(target, [[1, 2, 3]], method, max_new_tokens=8)
    assert out.tokens == specwb.decode(target, [[1, 2, 3]], "ar", max_new_tokens=8).tokens


# -------------------------------------------------------------------------------- decision models


def net_by_hand(w: Weights, name: str, x: Tensor) -> Tensor:
    last = max(int(key.split(".")[1]) for key in w if key.startswith(name))
    for i in range(0, last + 1, 2):
        x = x @ w[f"{name}.{i}.weight"].T + w[f"{name}.{i}.bias"]
        x = x.relu() if i < last else x
    return x[..., 0]


def test_the_decision_model_by_hand():
    """Widths of the published nets at the published width, and what each reads."""
    nets = DecisionModel(768)
    widths = [
        [p.shape[0] for p in net.parameters() if p.ndim > 1] for net in (nets.soft, nets.hard)
    ]
    assert widths == [[512, 256, 1], [44, 1]]
    counts = [sum(p.numel() for p in net.parameters()) for net in (nets.soft, nets.hard)]
    assert counts == [525_313, 573]
    model = DecisionModel(H).requires_grad_(False)
    w, logits, normed = model.state_dict(), torch.randn(2, 3, V) * 3, torch.randn(2, 3, H)
    close(model("soft", logits, normed), net_by_hand(w, "soft", normed))
    q = logits.softmax(-1)
    entropy, most = -(q * q.log()).sum(-1, keepdim=True), q.sort(-1, descending=True).values
    close(
        model("hard", logits, normed),
        net_by_hand(w, "hard", torch.cat([entropy, most[..., :10]], -1)),
    )


def on_disk(folder: Path, target: specwb.Target) -> specwb.Target:
    target.model.save_pretrained(folder)
    tiny.tokenizer([f"w{i}" for i in range(V)]).save_pretrained(folder)
    return specwb.load(folder)


def test_decision_files(tmp_path, target):
    stored = on_disk(tmp_path / "target", target)
    draft = on_disk(tmp_path / "draft", specwb.load(tiny.perturbed(target.model, 0.02)))
    model, hashes = DecisionModel(H), {"draft_sha256": draft.sha256, "target_sha256": stored.sha256}
    for p in model.parameters():
        p.data = p.data.half().float()
    model.save(tmp_path / "d", card=hashes)
    again = load_decision(tmp_path / "d", stored, draft)
    weights = model.state_dict()
    assert all(torch.equal(again.state_dict()[key], w) for key, w in weights.items())
    assert "draft with sha256" in refused(load_decision, tmp_path / "d", stored, stored)
    folder = put(tmp_path / "e", {}, weights, "model.safetensors")
    assert "None numbers" in refused(load_decision, folder, stored, draft)
    few = damaged(weights, {"hard.0.bias": None})
    put(folder, {"hidden_size": H}, few, "model.safetensors")
    assert "missing hard.0.bias" in refused(load_decision, folder, stored, draft)
