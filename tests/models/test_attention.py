"""Which of torch's kernels attention is chosen from."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from specwb.models import attention, layers


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
