"""How long and how fast something is trained: Muon for matrices and AdamW for the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from specwb.core.options import Option
from specwb.models.device import fast_bfloat16_products

# quintic Newton-Schulz coefficients of Jordan et al., as in torch.optim.Muon
_A, _B, _C = 3.4445, -4.775, 2.0315


@dataclass(frozen=True)
class Plan:
    """How long, by what optimiser and how fast something is trained.

    The learning rates rise linearly over the first ``warmup`` steps. Then ``hold`` keeps them and
    lets them fall linearly over the last share ``cooldown`` of all steps, ``linear`` and ``cosine``
    let them fall from there on, and ``constant`` keeps them. They end at the share ``end`` of what
    they were.
    """

    steps: Annotated[int, Option("steps of one batch each", low=1)]
    optimiser: Annotated[
        str,
        Option(
            "muon: Muon for matrices, AdamW for the rest; adamw: AdamW for all",
            choices=("muon", "adamw"),
        ),
    ] = "muon"
    lr: Annotated[float, Option("AdamW's learning rate", within="[0, 1]")] = 3e-3
    lr_matrix: Annotated[float, Option("Muon's learning rate", within="[0, 1]")] = 3.5e-3
    beta1: Annotated[float, Option("AdamW's first moment", within="[0, 1)")] = 0.9
    beta2: Annotated[float, Option("AdamW's second moment", within="[0, 1)")] = 0.95
    momentum: Annotated[float, Option("Muon's", within="[0, 1)")] = 0.95
    weight_decay: Annotated[
        float, Option("of what Muon trains, or AdamW if it trains all", within="[0, 1]")
    ] = 0.1
    clip: Annotated[float, Option("what gradients are clipped to; 0: not", within="[0, inf)")] = 1.0
    clip_by: Annotated[
        str, Option("the norm of all gradients, or each one's value", choices=("norm", "value"))
    ] = "norm"
    schedule: Annotated[
        str, Option("how learning rates fall", choices=("hold", "linear", "cosine", "constant"))
    ] = "hold"
    warmup: Annotated[int, Option("steps in which learning rates rise", low=0)] = 100
    cooldown: Annotated[float, Option("share of the steps, with hold", within="[0, 1]")] = 0.4
    end: Annotated[float, Option("the last learning rate, as a share", within="[0, 1]")] = 0.02

    def scale(self, step: int) -> float:
        """Returns the factor of the learning rates at a step."""
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.schedule == "hold":
            falling = max(1, int(self.steps * self.cooldown))
            left = min(1.0, (self.steps - step) / falling)
        else:
            falling = max(1, self.steps - self.warmup)
            left = min(1.0, (self.steps - step) / falling)
            if self.schedule == "cosine":
                left = (1 - math.cos(math.pi * left)) / 2
            elif self.schedule == "constant":
                left = 1.0
        return rise * (self.end + (1 - self.end) * left)


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Approximates ``U V^T`` of each matrix of ``g [..., m, n]`` by Newton-Schulz iteration, in
    bfloat16 where that is fast."""
    is_tall = g.shape[-2] > g.shape[-1]
    x = g.mT if is_tall else g
    x = x.bfloat16() if fast_bfloat16_products(g.device) else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return (x.mT if is_tall else x).to(g.dtype)


class Muon(torch.optim.Optimizer):
    """Muon with learning rates matched to AdamW's update size.

    The rate of an m x n matrix is ``lr * 0.2 sqrt(max(m, n))`` (match_rms_adamw).

    Differs from ``torch.optim.Muon``, which always iterates in bfloat16, one matrix at a time: on a
    CPU without bfloat16 instructions that took 19 s per step for the lab target where this takes
    0.4 s (same shapes stacked, float32).
    """

    def __init__(
        self,
        params: list[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(tuple(p.shape), []).append(p)
            for shape, params in by_shape.items():
                updates = torch.stack(self._updates(params, group["momentum"]))
                scale = group["lr"] * 0.2 * math.sqrt(max(shape))
                torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_sub_(params, list(orthogonalise(updates)), alpha=scale)

    def _updates(self, params: list[Tensor], momentum: float) -> list[Tensor]:
        """Returns the gradients with Nesterov's momentum."""
        for p in params:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        states = [self.state[p]["momentum"] for p in params]
        gradients = [p.grad for p in params if p.grad is not None]
        torch._foreach_lerp_(states, gradients, 1 - momentum)
        return list(torch._foreach_lerp(gradients, states, momentum))


def optimisers(
    model: nn.Module, plan: Plan, adam_matrices: set[str] | None = None
) -> list[torch.optim.Optimizer]:
    """The optimisers that a plan names, for the parameters that are not frozen; ``adam_matrices``:
    names of matrices that AdamW trains beside Muon, default embeddings and heads.
    """

    def is_for_muon(name: str, p: nn.Parameter) -> bool:
        if p.ndim != 2 or plan.optimiser == "adamw":
            return False
        if adam_matrices is not None:
            return name not in adam_matrices
        return "embed" not in name and "lm_head" not in name

    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in trained if is_for_muon(name, p)]
    others = [p for name, p in trained if not is_for_muon(name, p)]
    chosen: list[torch.optim.Optimizer] = []
    if matrices:
        chosen.append(Muon(matrices, plan.lr_matrix, plan.momentum, plan.weight_decay))
    if others:
        # beside Muon, AdamW trains norms, biases and rows of a vocabulary, which are not shrunk
        decay = plan.weight_decay if plan.optimiser == "adamw" else 0.0
        betas = plan.beta1, plan.beta2
        chosen.append(torch.optim.AdamW(others, plan.lr, betas, weight_decay=decay))
    return chosen
