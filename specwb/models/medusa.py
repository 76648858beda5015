"""Medusa heads: the modules, and their published files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specwb.models.checkpoint import HeadError, check_field, fill, opened, words_in, write
from specwb.models.products import product
from specwb.models.target import Target
from specwb.models.words import Worded


class ResBlock(nn.Module):
    """``x + SiLU(W x + b)``; W and b start at zero, so that an untrained head gives what the
    target's own would."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(product(x, self.linear.weight, self.linear.bias))


class MedusaHeads(Worded, nn.Module):
    """K heads over the target's last hidden state: head i at position t gives the distribution of
    token t + 2 + i, whatever token t + 1 is.

    Head i is ``blocks`` times ``x + SiLU(W x + b)`` and a linear layer to the vocabulary. Keys
    ``{i}.{block}.linear.weight``, ``{i}.{block}.linear.bias``, ``{i}.{blocks}.weight``, as
    published. Heads that share the target's output layer have a square matrix in its place, which
    stands before that layer: the blocks alone only ever add what SiLU leaves, hardly anything
    negative, and could not lead from one token to another.

    Args:
        shared: whether all say their words by the target's output layer.
        words: ``[d]`` the target ids that shared heads draft, key ``words``; None for all.

    Source: Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding
    Heads" (2024), arXiv 2401.10774. Differs from the published code in: with several blocks per
    head that code repeats one and the same block; here they are different ones.
    """

    features = (-1,)  # what lm_head reads: after the final norm

    def __init__(
        self,
        hidden: int,
        vocabulary: int,
        heads: int = 3,
        blocks: int = 1,
        shared: bool = False,
        words: Tensor | None = None,
    ) -> None:
        super().__init__()
        if words is not None and not shared:
            raise HeadError("heads with output layers of their own draft all tokens")
        # what was measured when they were trained, where that is known
        self.card: dict = {}
        self.hidden, self.vocabulary, self.heads, self.blocks = hidden, vocabulary, heads, blocks
        self.shared = shared
        for i in range(heads):
            residual = (ResBlock(hidden) for _ in range(blocks))
            last = nn.Linear(hidden, hidden if shared else vocabulary, bias=False)
            self.add_module(str(i), nn.Sequential(*residual, last))
        self.register_buffer("words", words)

    def start_from(self, target: Target) -> MedusaHeads:
        """Lets every head begin as the target's own; returns itself."""
        with torch.no_grad():
            for i in range(self.heads):
                last: Any = self.get_submodule(f"{i}.{self.blocks}")
                if self.shared:
                    nn.init.eye_(last.weight)
                else:
                    last.weight.copy_(target.backbone.lm_head.weight)
        return self

    def forward(
        self, x: Tensor, heads: int | None = None, lm_head: nn.Linear | None = None
    ) -> Tensor:
        """The logits of the first ``heads`` heads, default all: ``[.., H] -> [.., K, V]``, or over
        the words; ``lm_head``: the target's, which shared heads need."""
        count = self.heads if heads is None else heads
        return torch.stack([self.output(i, lm_head)(self.last(i, x)) for i in range(count)], -2)

    def output(self, i: int, lm_head: nn.Linear | None) -> nn.Linear:
        """The layer that reads :meth:`last` of head i; ``lm_head``: the target's."""
        if self.shared:
            if lm_head is None:
                raise HeadError("shared heads say their words by the target's lm_head; give it")
            return self.rows(lm_head)
        return self.get_submodule(f"{i}.{self.blocks}")  # type: ignore[return-value]

    def last(self, i: int, x: Tensor) -> Tensor:
        """``[.., H] -> [.., H]``, what the output layer of head i reads."""
        for block in range(self.blocks):
            x = self.get_submodule(f"{i}.{block}")(x)
        if self.shared:
            x = product(x, self.get_parameter(f"{i}.{self.blocks}.weight"))
        return x

    def save(self, folder: Path, base: str = "", card: dict | None = None) -> None:
        """Writes ``config.json``, fp16 ``medusa_lm_head.safetensors`` and ``card.json``."""
        config = {
            "base_model_name_or_path": base,
            "medusa_num_heads": self.heads,
            "medusa_num_layers": self.blocks,
            "shared_head": self.shared,
        }
        write(folder, config, self.state_dict(), "medusa_lm_head", card)


# the last two are whole Medusa-2 models
_FILES = (
    "medusa_lm_head.safetensors",
    "medusa_lm_head.pt",
    "model.safetensors",
    "pytorch_model.bin",
)
_KEY = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(linear\.)?(?:weight|bias)")


def _is_of_heads(key: str) -> bool:
    """Of a whole model the other keys are the target's."""
    return not key.startswith(("model.", "lm_head."))


def load_medusa(folder: str | Path, target: Target) -> MedusaHeads:
    """Loads heads from a published folder: Medusa-1's ``medusa_lm_head.pt`` or ``.safetensors``, or
    the ``medusa_head.*`` keys of a whole Medusa-2 model.

    How many heads there are is read from the file: the published Vicuna v1.3 configs say 2 where
    the files hold 5. With several blocks per head, files may hold each block or, as the published
    code does, the shared one under every number.

    Args:
        folder: a folder, or a hub id.
        target: the model whose last hidden states the heads read.
    Raises:
        HeadError: keys or shapes are not those of such heads, the config asks for more than there
            are, or the card names another target.
    """
    with opened(folder, target, _FILES, _is_of_heads) as stored:
        weights, config = dict(stored.weights), stored.config
        words = words_in(weights, target)
        weights.pop("words", None)
        matches = [_KEY.fullmatch(key) for key in weights]
        odd = [key for key, match in zip(weights, matches, strict=True) if match is None]
        if odd or not weights:
            keys = ", ".join(odd[:3]) or "none at all"
            raise HeadError(f"no Medusa heads, but keys such as {keys}")
        if all(match[3] for match in matches if match):
            raise HeadError("heads of version 2, which have blocks alone, are not supported")
        heads = 1 + max(int(match[1]) for match in matches if match)
        blocks = max(int(match[2]) for match in matches if match)
        # fewer heads than the file holds are common, see above; more would be missing
        count = config.get("medusa_num_heads", heads)
        if count is not None and (type(count) is not int or not 1 <= count <= heads):
            raise HeadError(f"config.json says medusa_num_heads={count!r}, the file holds {heads}")
        check_field(config, "medusa_num_layers", blocks)
        hidden, shared = target.backbone.config.hidden_size, bool(config.get("shared_head"))
        module = MedusaHeads(hidden, target.vocabulary, heads, blocks, shared, words)
        module.card = stored.card
        renamed = {key.removeprefix("medusa_head."): value for key, value in weights.items()}
        if words is not None:
            renamed["words"] = words
        fill(module, renamed, target)
        return module.to(target.device, target.dtype).eval()
