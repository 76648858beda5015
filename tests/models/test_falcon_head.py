"""The Falcon head: who sees whom, what its fusions are, EAGLE-1 as its smallest case. Its files:
test_checkpoints.py."""

from __future__ import annotations

import copy

import pytest
import tiny
import torch
from layouts import FALCON, H, decoder_layer, falcon_file, norm, put
from torch import Tensor

import specwb
from specwb.drafters.falcon import FalconDrafter
from specwb.models.eagle import EagleHead, eagle_config
from specwb.models.falcon import FalconHead, load_falcon
from specwb.models.place import Place


def new(k: int, fusion: str = "lstm", align: str = "right", layers: int = 2, **more) -> FalconHead:
    torch.manual_seed(3)
    head = FalconHead(eagle_config(tiny.target(), layers), H, k, fusion, align, **more)
    return head.requires_grad_(False).eval()


# ---------------------------------------------------------------------------------- who sees whom


# ---------------------------------------------------------------------------------------- EAGLE-1


@pytest.mark.parametrize("bias", [True, False])
def test_with_blocks_of_one_and_one_linear_layer_it_is_eagle_1(bias):
    """Bit for bit, with the same weights under the same keys."""
    target = tiny.target()
    eagle = EagleHead(eagle_config(target), H, bias=bias).requires_grad_(False).eval()
    falcon = new(1, "linear", layers=1, bias=bias)
    falcon.load_state_dict(eagle.state_dict(), strict=True)
    embedded, features = torch.randn(2, 9, H), torch.randn(2, 9, H)
    for ours, theirs in zip(
        falcon.unroll(embedded, features, 4), eagle.unroll(embedded, features, 4), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert torch.equal(falcon.mix(embedded, features)[0], eagle.enter(embedded, features)[0])


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


@pytest.mark.parametrize("needs_states", [False, True])
def test_whole_texts_are_trained_as_their_pairs_are_drafted(needs_states):
    head = new(2).double()
    weights = [p.requires_grad_() for p in head.lstm.parameters()]
    embedded, features = torch.randn(2, 7, H).double(), torch.randn(2, 7, H).double()

    def made(function, *how):
        with torch.enable_grad():
            out, states = function(embedded, features, *how)
            total = out.square().sum() + (states.pow(3).sum() if needs_states else 0.0)
            return out, states, torch.autograd.grad(total, weights)

    wanted, found = made(head.mix), made(head.along, needs_states)
    assert (found[1] is None) == (not needs_states)
    exact = {"atol": 1e-12, "rtol": 1e-10}
    torch.testing.assert_close(found[0], wanted[0], **exact)
    torch.testing.assert_close(found[2], wanted[2], **exact)
    if needs_states:
        torch.testing.assert_close(found[1], wanted[1], **exact)


def test_the_pointwise_fusion_is_the_lstm_of_texts_of_one_pair():
    """The released code's reading at batch 1; ``weight_hh`` is not looked at."""
    head = new(2, "pointwise")
    embedded, features = torch.randn(2, 5, H), torch.randn(2, 5, H)
    found, states = head.mix(embedded, features)
    assert states is None
    assert head.state_width == 0
    every = torch.cat([embedded, features], -1).flatten(0, 1)[:, None]
    torch.testing.assert_close(found.flatten(0, 1), head.lstm(every)[0][:, 0], atol=1e-6, rtol=1e-5)
    for layer in range(2):
        getattr(head.lstm, f"weight_hh_l{layer}").fill_(torch.nan)
    assert torch.equal(head.mix(embedded, features)[0], found)


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


@pytest.mark.parametrize(("k", "qkv_bias"), [(1, False), (2, True), (3, False)])
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
    # the same through the drafter's cache
    drafter = FalconDrafter(copy.deepcopy(head), specwb.Tree.chain(k))
    x = head.mix(embedded[None], features[None])[0]
    at, block = torch.arange(6)[None], torch.arange(6) // k
    mask = torch.zeros(1, 6, 6).masked_fill(block > block[:, None], torch.finfo(torch.float32).min)
    with torch.inference_mode():
        place, cache = Place(at, at, 6, mask), drafter.stack.cache(1, 6)
        cached = drafter.stack.run(x, place, cache, attended=x)[0][0]
    torch.testing.assert_close(cached, wanted, atol=1e-5, rtol=1e-4)
