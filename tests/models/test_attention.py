"""Which of torch's kernels attention is chosen from."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch.nn import functional as F

import specwb
from specwb.models import backbone, cache, layers


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("parts", [2, 8])
def test_keys_in_parts_are_attended_to_as_a_whole(parts, dtype):
    """Of three heads that share two heads of keys in a cache; the last parts are hidden
    altogether, and others from some queries."""
    torch.manual_seed(0)
    slots = torch.randn(1, 64, 4, 16, dtype=dtype).transpose(1, 2)
    q, key, value = torch.randn(1, 2, 15, 16, dtype=dtype), slots[:, :2], slots[:, 2:]
    hidden = torch.finfo(dtype).min / 2
    mask = torch.zeros(1, 1, 15, 64, dtype=dtype)
    mask[..., 20:], mask[..., ::3, 5:] = hidden, hidden
    wanted = F.scaled_dot_product_attention(
        q.double(), key.double(), value.double(), attn_mask=mask.double(), scale=0.3
    )
    got = layers.in_parts(q, key, value, mask, 0.3, parts)
    assert got.dtype == dtype
    # float64 is some 5 eps off what is exact, and what it is compared with is rounded as well
    margin = (16 if dtype == torch.float64 else 4) * torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), wanted, atol=margin, rtol=margin)


def test_texts_decoded_in_parts(monkeypatch):
    """One row, whose cache is as long as its text may be: slots behind it make parts equal."""
    target, head = tiny.target(dtype=tiny.EXACT), tiny.head("diffusion", dtype=tiny.EXACT)
    made = specwb.method("diffuspec", target, head=head)
    run = {"max_new_tokens": 40, "eos": ()}
    wanted = specwb.decode(target, tiny.PROMPTS[:1], made, **run)
    asked = []
    for module in (backbone, cache):
        monkeypatch.setattr(module, "processors", lambda device, dtype: 132)
    monkeypatch.setattr(backbone, "parts_of", lambda *sizes: 4)
    real = layers.in_parts
    monkeypatch.setattr(layers, "in_parts", lambda *a: asked.append(a[1].shape[2]) or real(*a))
    made = specwb.method("diffuspec", target, head=head)
    out = specwb.decode(target, tiny.PROMPTS[:1], made, **run)
    assert (out.tokens, out.accepted_lengths) == (wanted.tokens, wanted.accepted_lengths)
    assert asked
    assert all(extent % 32 == 0 for extent in asked)
