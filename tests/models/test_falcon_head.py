"""The Falcon head: who sees whom, what its fusions are, EAGLE-1 as its smallest case. Its files:
test_checkpoints.py."""

from __future__ import annotations

import pytest
import tiny
import torch
from layouts import FALCON, H, decoder_layer, falcon_file, norm, put
from torch import Tensor

import specwb
from specwb.models.eagle import eagle_config
from specwb.models.falcon import FalconHead, load_falcon


def new(k: int, fusion: str = "lstm", align: str = "right", layers: int = 2, **more) -> FalconHead:
    torch.manual_seed(3)
    head = FalconHead(eagle_config(tiny.target(), layers), H, k, fusion, align, **more)
    return head.requires_grad_(False).eval()


# ---------------------------------------------------------------------------------------- fusions


def test_the_recurrent_fusion_is_the_librarys_lstm():
    head = new(2)
    embedded, features = torch.randn(3, 6, H), torch.randn(3, 6, H)
    wanted, (h, c) = head.lstm(torch.cat([embedded, features], -1))
    found, states = head.mix(embedded, features)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(
        states[:, -1], torch.cat([h[0], c[0], h[1], c[1]], -1), atol=1e-6, rtol=1e-5
    )
    # from a state that was handed over
    start = torch.randn(3, head.state_width)
    a, b, c, d = start.chunk(4, -1)
    wanted, _ = head.lstm(
        torch.cat([embedded, features], -1), (torch.stack([a, c]), torch.stack([b, d]))
    )
    torch.testing.assert_close(head.mix(embedded, features, start)[0], wanted, atol=1e-6, rtol=1e-5)


def test_whole_texts_are_trained_as_their_pairs_are_drafted():
    head = new(2).double()
    weights = [p.requires_grad_() for p in head.lstm.parameters()]
    embedded, features = torch.randn(2, 7, H).double(), torch.randn(2, 7, H).double()

    def made(function, *how):
        with torch.enable_grad():
            out, states = function(embedded, features, *how)
            total = out.square().sum() + states.pow(3).sum()
            return out, states, torch.autograd.grad(total, weights)

    wanted, found = made(head.mix), made(head.along, True)
    exact = {"atol": 1e-12, "rtol": 1e-10}
    torch.testing.assert_close(found, wanted, **exact)


# ------------------------------------------------------------------------------------------ files


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.build("llama", seed=2))


def by_hand(w: dict[str, Tensor], k: int, embedded: Tensor, features: Tensor) -> Tensor:
    """``[m,H]``: gates, attention and MLP written out, every pair's LSTM from zero; blocks counted
    from place 0."""
    x = torch.cat([embedded, features], -1)
    for i in range(2):
        gates = x @ w[f"lstm.weight_ih_l{i}"].T + w[f"lstm.bias_ih_l{i}"] + w[f"lstm.bias_hh_l{i}"]
        inward, _, new, out = gates.chunk(4, -1)
        x = out.sigmoid() * (inward.sigmoid() * new.tanh()).tanh()
    block = torch.arange(len(x)) // k
    for i in range(2):
        attended = norm(x, w[f"layers.{i}.input_layernorm.weight"]) if i else x
        x = decoder_layer(w, f"layers.{i}", attended, x, block <= block[:, None])
    return x


@pytest.mark.parametrize(("k", "qkv_bias"), [(2, True), (3, False)])
def test_a_published_file(tmp_path, target, k, qkv_bias):
    """With the target's embedding repeated in it, and nothing said of how the LSTM is run: one pair
    at a time, right-aligned. Those for Qwen2.5 have biases."""
    own = target.backbone.embed.weight.detach().clone()
    weights = falcon_file(qkv_bias=qkv_bias, embedding=own)
    config = {**FALCON, "k_mask": k, **({"qkv_bias": True} if qkv_bias else {})}
    head = load_falcon(put(tmp_path / "f", config, weights, "pytorch_model.bin"), target)
    assert type(head) is FalconHead
    assert (head.k, head.fusion, head.align, head.qkv_bias) == (k, "pointwise", "right", qkv_bias)
    assert head.features == (-1,)
    assert head.embed_tokens is None
    assert not head.training
    embedded, features = torch.randn(6, H), torch.randn(6, H)
    wanted = by_hand(weights, k, embedded, features)
    with torch.no_grad():
        torch.testing.assert_close(
            next(head.unroll(embedded[None], features[None], 1))[0], wanted, atol=1e-5, rtol=1e-4
        )
