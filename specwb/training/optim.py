"""Muon for matrices and AdamW for the rest."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_A, _B, _C = 3.4445, -4.775, 2.0315  # quintic Newton-Schulz coefficients of Jordan et al., as in torch.optim.Muon


def fast_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16 faster than in float32: devices with instructions for it."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    has = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return device.type == "cpu" and bool(has.get("avx512_bf16") or has.get("amx_bf16"))


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Approximate ``U V^T`` of each matrix of ``g [..., m, n]`` by Newton-Schulz iteration, in bfloat16 where that is fast."""
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    x = x.bfloat16() if fast_bfloat16(g.device) else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return (x.mT if tall else x).to(g.dtype)


class Muon(torch.optim.Optimizer):
    """Muon with learning rates matched to AdamW's update size: ``lr * 0.2 sqrt(max(m, n))`` (match_rms_adamw).

    Differs from ``torch.optim.Muon``, which always iterates in bfloat16, one matrix at a time: on a CPU without bfloat16
    instructions that took 19 s a step for the lab target where this takes 0.4 s (same shapes stacked, float32).
    """

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[nn.Parameter]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(tuple(p.shape), []).append(p)
            for shape, params in by_shape.items():
                updates = []
                for p in params:
                    if "momentum" not in self.state[p]:
                        self.state[p]["momentum"] = torch.zeros_like(p)
                    buffer = self.state[p]["momentum"]
                    buffer.lerp_(p.grad, 1 - group["momentum"])
                    assert p.grad is not None
                    updates.append(p.grad.lerp(buffer, group["momentum"]))  # Nesterov
                scale = group["lr"] * 0.2 * math.sqrt(max(shape))
                for p, update in zip(params, orthogonalise(torch.stack(updates)), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)


def optimisers(
    model: nn.Module, lr_matrix: float, lr_other: float, weight_decay: float, with_adam: set[str] | None = None
) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for vectors and for the matrices named ``with_adam`` (default: embeddings and heads)."""

    def muon(name: str, p: nn.Parameter) -> bool:
        apart = name in with_adam if with_adam is not None else "embed" in name or "lm_head" in name
        return p.ndim == 2 and not apart

    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    other = [p for n, p in named if not muon(n, p)]
    return [
        Muon([p for n, p in named if muon(n, p)], lr=lr_matrix, weight_decay=weight_decay),
        torch.optim.AdamW(other, lr=lr_other, betas=(0.9, 0.95), weight_decay=0.0),
    ]
