"""Kangaroo's adapter by hand, and decision models.
Its files: test_checkpoints.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from layouts import (
    HEADS,
    KANGAROO,
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
from specwb.models.decision import DecisionModel, load_decision
from specwb.models.eagle import eagle_config
from specwb.models.kangaroo import ADAPTERS, KangarooAdapter, load_kangaroo

LAYERS = 3


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


# ------------------------------------------------------------------------------------ the adapter


def new(adapter: str, own_head: bool) -> KangarooAdapter:
    """Of weights so large that what any place says depends on all that it sees."""
    config = eagle_config(tiny.target())
    made = tiny.loud(lambda: KangarooAdapter(config, 1, adapter, own_head), 4, 0.3)
    return made.requires_grad_(False)


def by_hand(w: Weights, f: Tensor, adapter: str, theta: float) -> Tensor:
    """``[m,H]`` what stands before the last norm, written out."""
    x = norm(f, w["layers.0.input_layernorm.weight"])
    if adapter == "mlp":
        return f + F.silu(x @ w["layers.0.up_proj.weight"].T) @ w["layers.0.down_proj.weight"].T
    y = f + attended(w, "layers.0", x, theta=theta)
    return with_mlp(w, "layers.0", y) if adapter == "layer" else y


@pytest.mark.parametrize(
    ("adapter", "own_head"), [("attention", False), ("layer", True), ("mlp", True)]
)
def test_the_adapter_by_hand(adapter, own_head):
    target, head = tiny.target(), new(adapter, own_head)
    for module in head.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-5  # the hand's
    w, f = head.state_dict(), torch.randn(7, H)
    hidden = head(f[None])[0]
    close(hidden, by_hand(w, f, adapter, head.config.rope_parameters["rope_theta"]))
    weight = w["lm_head.weight"] if own_head else target.backbone.lm_head.weight
    logits = head.logits(hidden, head.output(target.backbone.lm_head))
    close(logits, norm(hidden, w["norm.weight"]) @ weight.T)


@pytest.mark.parametrize("exit", range(LAYERS))
def test_an_adapter_begins_as_the_layer_behind_its_exit(exit):
    """A whole layer that begins so behind exit L - 1 says what the target says."""
    target = tiny.target()
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
    ids = torch.randint(V, (1, 8))
    head = KangarooAdapter(eagle_config(target), exit, "layer").start_from(target)
    with torch.no_grad():
        hidden = head(tiny.states(target, ids, (exit,)))
        logits = head.logits(hidden, head.output(target.backbone.lm_head))[0]
    away = float((logits - tiny.forward(target.model, ids[0].tolist())).abs().max())
    assert (away < 1e-4) == (exit == LAYERS - 1)


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.build("llama", seed=2))


def test_a_published_file(tmp_path, target):
    """It does not say its exit layer; its attention may have other heads than the target's."""
    weights, config = kangaroo_file(HEADS), {**KANGAROO, "num_key_value_heads": HEADS}
    folder = put(tmp_path / "k", config, weights, "pytorch_model.bin")
    head = load_kangaroo(folder, target, exit=2)
    assert (head.exit, head.adapter, head.lm_head, head.training) == (2, "attention", None, False)
    f = torch.randn(6, H)
    wanted = by_hand(weights, f, "attention", 10000.0)
    close(head(f[None])[0], wanted)
    with pytest.raises(specwb.MethodError, match="exit must be"):
        specwb.method("kangaroo", target, head=str(folder), exit=-1)


# -------------------------------------------------------------------------------- decision models


def net_by_hand(w: Weights, name: str, x: Tensor) -> Tensor:
    last = max(int(key.split(".")[1]) for key in w if key.startswith(name))
    for i in range(0, last + 1, 2):
        x = x @ w[f"{name}.{i}.weight"].T + w[f"{name}.{i}.bias"]
        x = x.relu() if i < last else x
    return x[..., 0]


def test_the_decision_model_by_hand():
    """Sizes of the published nets at the published width, and what each reads."""
    nets = DecisionModel(768)
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
    few = damaged(weights, {"hard.0.bias": None})
    folder = put(tmp_path / "e", {"hidden_size": H}, few, "model.safetensors")
    assert "missing hard.0.bias" in refused(load_decision, folder, stored, draft)
