"""Decision models: small nets that guess, before the target has looked, whether a drafted token is going to be accepted."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from specwb.models.checkpoint import HeadError, Stored, fill, write
from specwb.models.target import Target
from specwb.probability import entropy

KINDS = ("soft", "hard")
SEEN = 10  # probabilities that the hard net reads


class DecisionModel(nn.Module):
    """Two nets over one draft model.

    soft: of the draft's last hidden state h, after its final norm, ``H -> 2H/3 -> H/3 -> 1``; learns ``min(1, p(x) / q(x))`` of the token x that is
    drawn from q. hard: of the entropy of q in nats and its ten largest probabilities, ``11 -> 44 -> 1``; learns whether the draft's best token is the
    target's. Both with ReLU between the layers and a sigmoid at the end, q at temperature 1.

    Source: Lu et al. 2024, "Improving Multi-Candidate Speculative Decoding" (arXiv 2409.10644), and its code, whose soft nets are 768-512-256-1 and
    2048-1024-512-1. Differs from it in: the hard net's labels are the greedy ones that the paper means (the code draws tokens).
    """

    features = ()  # it reads none of the target's states

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.card: dict = {}
        self.hidden = hidden
        self.soft, self.hard = net(hidden, 2 * hidden // 3, hidden // 3), net(1 + SEEN, 44)

    def forward(self, kind: str, logits: Tensor, normed: Tensor) -> Tensor:
        """``logits [..,V]`` of the draft, its states after the final norm ``[..,H]`` -> ``[..]`` log-odds."""
        x = normed if kind == "soft" else summary(logits)
        made = self.get_submodule(kind)(x.to(next(self.parameters()).dtype))
        return made.squeeze(-1).float()

    def save(self, folder: Path, card: dict | None = None) -> None:
        write(folder, {"hidden_size": self.hidden}, self.state_dict(), "model", card)


def net(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1))


def summary(logits: Tensor) -> Tensor:
    """``[..,V] -> [..,11]``: the entropy in nats and the largest probabilities, in order; zeros where the vocabulary has fewer."""
    logq = logits.float().log_softmax(-1)
    top = logq.topk(min(SEEN, logq.shape[-1]), -1).values.exp()
    return torch.cat([entropy(logq)[..., None], nn.functional.pad(top, (0, SEEN - top.shape[-1]))], -1)


def load_decision(source: str | Path, target: Target, draft: Target) -> DecisionModel:
    """Decision models from a folder that ``specwb train decision`` wrote.

    Raises:
        HeadError: not such a folder, or trained for another target or draft.
    """
    stored = Stored.read(source, target, ("model.safetensors",))
    where, hidden = stored.where, draft.backbone.config.hidden_size
    own, wanted = draft.sha256, stored.card.get("draft_sha256")
    if wanted and own and own != wanted:
        raise HeadError(f"{where}: trained for the draft with sha256 {wanted[:12]}..., {draft.name!r} is {own[:12]}...; train it anew")
    if stored.config.get("hidden_size") != hidden:
        raise HeadError(f"{where}: reads states of {stored.config.get('hidden_size')} numbers, {draft.name!r} has hidden size {hidden}")
    made = DecisionModel(hidden)
    fill(made, stored.weights, where, target)
    made.card = stored.card
    return made.to(draft.device, draft.dtype).requires_grad_(False).eval()
