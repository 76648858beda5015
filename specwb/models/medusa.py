"""Medusa heads: the modules, and their published files."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specwb.models.checkpoint import HeadError, Stored, fill, write
from specwb.models.target import Target


class ResBlock(nn.Module):
    """``x + SiLU(W x + b)``; W and b start at zero, so that an untrained head gives what the target's own would."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHeads(nn.Module):
    """K heads over the target's last hidden state: head i at position t gives the law of token t + 2 + i, whatever token t + 1 is.

    Head i is ``blocks`` times ``x + SiLU(W x + b)`` and a linear layer to the vocabulary. Keys ``{i}.{block}.linear.weight``,
    ``{i}.{block}.linear.bias``, ``{i}.{blocks}.weight``, as published.

    ``forward [.., H] -> [.., K, V]``.

    Source: Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (2024), arXiv 2401.10774.
    Differs from the published code in: with several blocks a head that code repeats one and the same block; here they are different ones.
    """

    features = (-1,)  # what lm_head reads: after the final norm

    def __init__(self, hidden: int, vocabulary: int, heads: int = 3, blocks: int = 1) -> None:
        super().__init__()
        self.card: dict = {}  # what was measured when they were trained, where that is known
        self.hidden, self.vocabulary, self.heads, self.blocks = hidden, vocabulary, heads, blocks
        for i in range(heads):
            head = nn.Sequential(*(ResBlock(hidden) for _ in range(blocks)), nn.Linear(hidden, vocabulary, bias=False))
            self.add_module(str(i), head)

    def start_from(self, target: Target) -> MedusaHeads:
        """Every head begins as the target's own."""
        with torch.no_grad():
            for i in range(self.heads):
                self.get_submodule(f"{i}.{self.blocks}").weight.copy_(target.backbone.lm_head.weight)  # type: ignore[operator, union-attr]
        return self

    def forward(self, x: Tensor, heads: int | None = None) -> Tensor:
        return torch.stack([self.get_submodule(str(i))(x) for i in range(self.heads if heads is None else heads)], -2)

    def save(self, folder: Path, base: str = "", card: dict | None = None) -> None:
        """``config.json``, fp16 ``medusa_lm_head.safetensors`` and ``card.json``."""
        config = {"base_model_name_or_path": base, "medusa_num_heads": self.heads, "medusa_num_layers": self.blocks}
        write(folder, config, self.state_dict(), "medusa_lm_head", card)


_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "model.safetensors", "pytorch_model.bin")  # the last two are whole Medusa-2 models
_KEY = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(linear\.)?(?:weight|bias)")


def load_medusa(folder: str | Path, target: Target) -> MedusaHeads:
    """Heads from a published folder: Medusa-1's ``medusa_lm_head.pt`` or ``.safetensors``, or the ``medusa_head.*`` keys of a whole Medusa-2 model.

    How many heads there are is read from the file: the published Vicuna v1.3 configs say 2 where the files hold 5. With several
    blocks a head, files may hold each block or, as the published code does, the shared one under every number.

    Raises:
        HeadError: missing, surplus or wrongly shaped keys, heads of another target, or of version 2, which have no projection to the vocabulary.
    """
    # of a whole model the rest is the target
    stored = Stored.read(folder, target, _FILES, lambda key: not key.startswith(("model.", "lm_head.")))
    where, weights = stored.where, stored.weights
    numbers = [_KEY.fullmatch(key) for key in weights]
    odd = [key for key, found in zip(weights, numbers, strict=True) if found is None]
    if odd or not weights:
        raise HeadError(f"{where}: no Medusa heads, but keys such as {', '.join(odd[:3]) or 'none at all'}")
    if all(found[3] for found in numbers if found):
        raise HeadError(f"{where}: heads of version 2, which put their states through the target's lm_head and have no own, are not supported")
    heads = 1 + max(int(found[1]) for found in numbers if found)
    blocks = max(int(found[2]) for found in numbers if found)
    count = stored.config.get("medusa_num_heads")
    if count is not None and (type(count) is not int or not 1 <= count <= heads):  # fewer is common, see above; more would be missing
        raise HeadError(f"{where}: config.json says medusa_num_heads={count!r}, the file holds {heads}")
    said = stored.config.get("medusa_num_layers")
    if said is not None and said != blocks:
        raise HeadError(f"{where}: config.json says medusa_num_layers={said}, the file holds heads of {blocks}")
    made = MedusaHeads(target.backbone.config.hidden_size, target.vocabulary, heads, blocks)
    made.card = stored.card
    fill(made, {key.removeprefix("medusa_head."): value for key, value in weights.items()}, where, target)
    return made.to(target.device, target.dtype).eval()
