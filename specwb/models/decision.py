"""Decision models: small nets that guess, before the target has looked, whether a draft token is
going to be accepted."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from specwb.core.probability import entropy
from specwb.models.checkpoint import HeadError, check_origin, fill, opened, write
from specwb.models.target import Target

KINDS = ("soft", "hard")
SEEN = 10  # probabilities that the hard net reads


class DecisionModel(nn.Module):
    """Two nets over one draft model. Both have ReLU between the layers and a sigmoid at the end; q
    is at temperature 1.

    soft: it reads the draft's last hidden state h, after its final norm, ``H -> 2H/3 -> H/3 -> 1``,
    and learns ``min(1, p(x) / q(x))`` of the token x that is drawn from q.

    hard: it reads the entropy of q in nats and its ten largest probabilities, ``11 -> 44 -> 1``,
    and learns whether the draft's best token is the target's.

    Source: Lu et al. 2024, "Improving Multi-Candidate Speculative Decoding" (arXiv 2409.10644), and
    its code, whose soft nets are 768-512-256-1 and 2048-1024-512-1. Differs from it in: the hard
    net's labels are the greedy ones that the paper means (the code draws tokens).
    """

    features = ()  # it reads none of the target's states

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.card: dict = {}
        self.hidden = hidden
        self.soft, self.hard = net(hidden, 2 * hidden // 3, hidden // 3), net(1 + SEEN, 44)

    def forward(self, kind: str, logits: Tensor, normed: Tensor) -> Tensor:
        """The log-odds of acceptance, ``[..]``, by the net ``kind`` (soft or hard), of the draft's
        ``logits [..,V]`` and its states after the final norm ``[..,H]``."""
        x = normed if kind == "soft" else summary(logits)
        odds = self.get_submodule(kind)(x.to(next(self.parameters()).dtype))
        return odds.squeeze(-1).float()

    def save(self, folder: Path, card: dict | None = None) -> None:
        """Writes ``config.json``, fp16 ``model.safetensors`` and ``card.json``."""
        write(folder, {"hidden_size": self.hidden}, self.state_dict(), "model", card)


def net(*widths: int) -> nn.Sequential:
    """Linear layers of these widths with a ReLU behind each, and one to a single number."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1))


def summary(logits: Tensor) -> Tensor:
    """The entropy in nats and the largest probabilities in order, ``[..,V] -> [..,11]``; zeros
    where the vocabulary has fewer."""
    logq = logits.float().log_softmax(-1)
    top = logq.topk(min(SEEN, logq.shape[-1]), -1).values.exp()
    padded = nn.functional.pad(top, (0, SEEN - top.shape[-1]))
    return torch.cat([entropy(logq)[..., None], padded], -1)


def load_decision(source: str | Path, target: Target, draft: Target) -> DecisionModel:
    """Loads decision models from a folder that ``specwb train decision`` wrote."""
    with opened(source, target) as stored:
        hidden, width = draft.backbone.config.hidden_size, stored.config.get("hidden_size")
        check_origin(stored.card, "draft", repr(draft.name), draft.sha256)
        if width != hidden:
            raise HeadError(
                f"reads states of {width} numbers, {draft.name!r} has hidden size {hidden}"
            )
        model = DecisionModel(hidden)
        fill(model, stored.weights, target)
        model.card = stored.card
        return model.to(draft.device, draft.dtype).requires_grad_(False).eval()
