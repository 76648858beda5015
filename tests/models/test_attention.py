"""Attention in two parts is attention as a whole; which kernels it is chosen from."""

from __future__ import annotations

import copy

import families
import pytest
import tiny
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

import specwb
from specwb.models import attention, layers

# a name: windows, soft caps, sinks, norms of each head, multipliers
NAMES = [
    name
    for name in families.FAST
    if any(word in name for word in ("window", "gemma2", "gpt_oss", "qwen3", "granite"))
]
PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [5]]


def scores(target: specwb.Target, way: str, method: str, options: dict) -> torch.Tensor:
    loop = specwb.rounds(
        target, PROMPTS, method, max_new_tokens=12, eos=(), trace=True, attention=way, **options
    )
    return torch.cat([step.scores.logits.flatten() for step, _ in zip(loop, range(3))])


@pytest.mark.parametrize("name", NAMES)
def test_parts_are_the_whole(name):
    """Scores of chains in float64, with a row whose text is one token: nothing is committed before
    its root; windows of 5 are shorter than the text, and than the chain."""
    target = specwb.load(families.build(name))
    options = {"draft": tiny.draft("llama", dtype=tiny.EXACT), "gamma": 6}
    whole, parted = (scores(target, way, "sps", options) for way in attention.ATTENTIONS)
    torch.testing.assert_close(parted, whole, atol=1e-9, rtol=1e-9)


def test_parts_of_a_tree():
    target = tiny.target("everything", tiny.EXACT)
    options = {"draft": tiny.draft("everything", dtype=tiny.EXACT), "tree": (3, 2, 1)}
    whole, parted = (scores(target, way, "mcsd", options) for way in attention.ATTENTIONS)
    torch.testing.assert_close(parted, whole, atol=1e-9, rtol=1e-9)


def test_a_part_without_slots_weighs_nothing():
    layer = copy.copy(tiny.target("llama").backbone.layers[0])
    q, key, value = torch.randn(3, 1, 2, 4, layer.qkv.shape[1]).double()
    out, lse = attention.part(layer, q, key, value, torch.ones(1, 1, 4, 4, dtype=torch.bool))
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


def test_what_cannot_be_parted_is_said():
    target = tiny.target("llama")
    for wrong, message in (
        ({"attention": "half"}, "attention must be whole or parts, got 'half'"),
        ({"attention": "parts", "layout": "batch"}, "not for layout='batch'"),
    ):
        with pytest.raises(ValueError, match=message):
            specwb.rounds(target, [[1]], "pld", **wrong)
    generic = specwb.load(tiny.build("llama", seed=0), generic=True)
    with pytest.raises(ValueError, match="not for a model run by the library's forward"):
        specwb.rounds(generic, [[1]], "pld", attention="parts")


def test_cudnn_is_never_chosen():
    """On a CUDA device steps choose from kernels that are named; elsewhere nothing is changed."""
    with attention.backends(torch.device("cuda")):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()
    assert SDPBackend.CUDNN_ATTENTION not in attention.BACKENDS


@pytest.mark.parametrize("repeats", [True, False])
def test_repeated_keys_are_groups_of_heads(repeats, monkeypatch):
    """The prompt's attention in float32 on CUDA repeats keys; the same numbers as by groups."""
    torch.manual_seed(0)
    q = torch.randn(2, 6, 7, 8, dtype=torch.float64)
    key, value = torch.randn(2, 2, 2, 7, 8, dtype=torch.float64)
    asked = []
    real = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *a, **k: asked.append(k) or real(*a, **k)
    )
    monkeypatch.setattr(layers, "repeats_keys", lambda device, dtype: repeats)
    got = layers.causal(q, key, value, 0.3)
    assert asked[0]["enable_gqa"] is not repeats
    wanted = real(q, key, value, is_causal=True, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(got, wanted, atol=1e-12, rtol=1e-12)


def test_where_keys_are_repeated():
    assert layers.repeats_keys("cuda", torch.float32)
    assert not layers.repeats_keys("cuda", torch.bfloat16)
    assert not layers.repeats_keys("cpu", torch.float32)


@pytest.mark.parametrize(
    ("width", "dim", "size", "fit"),
    [
        (128, 128, 2, True),
        (129, 64, 2, False),
        (16, 64, 4, True),
        (17, 64, 4, False),
        (32, 32, 4, True),
        (16, 16, 8, True),
        (17, 16, 8, False),
    ],
)
def test_what_the_kernels_have_room_for(width, dim, size, fit):
    assert attention.fits(width, dim, size) == fit
