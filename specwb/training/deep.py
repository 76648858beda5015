"""The recipe of a deep, narrow draft model.

It is an ordinary draft model, for executions that run its layers side by side.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from specwb.core.files import weights_hash, write
from specwb.models.folder import quiet
from specwb.training.fit import TrainingError
from specwb.training.recipe import Predictions, Recipe, TargetOutputs
from specwb.training.settings import count

SPREAD = 0.05
"""The standard deviation of the embeddings at the beginning."""


class DeepDraft(nn.Module):
    """A draft model as the training loop sees a head: it asks for none of the target's states."""

    features: tuple[int, ...] = ()

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the states ``[B, L, H]`` of texts ``ids [B, L]`` that the output layer reads."""
        return self.net.model(input_ids=ids, use_cache=False).last_hidden_state


class DeepRecipe(Recipe):
    """A draft model of its own, distilled from the target at every position of a text.

    It is trained like any draft model: nothing in its training knows of layers that run side by
    side. It is saved as the library saves a model, with the target's tokenizer, so that ``draft=``
    takes it.

    It begins with the target's embeddings projected onto their first principal directions: the two
    have the same tokens.

    Settings: layers, hidden, heads, kv_heads, ffn.
    """

    name = "deep"
    options = {  # noqa: RUF012
        "layers": count(8),
        "hidden": count(128),
        "heads": count(4),
        "kv_heads": count(2),
        "ffn": count(192),
    }
    measured_levels = 1
    training = {**Recipe.training, "lr": 2e-3}  # noqa: RUF012

    def setup(self) -> None:
        s, target = self.settings, self.target
        width = target.backbone.config.hidden_size
        if target.tokenizer is None:
            problem = f"{target.name!r} has no tokenizer, which is saved beside a draft model"
            raise TrainingError(f"{problem}; give it one")
        self.check_heads()
        if s["hidden"] > min(width, target.vocabulary):
            raise TrainingError(
                f"deep: hidden={s['hidden']} is wider than the target's embeddings ({width}) "
                "that it begins from"
            )

    def make(self, words: Tensor | None) -> DeepDraft:
        s, target = self.settings, self.target
        config = LlamaConfig(
            vocab_size=target.vocabulary,
            hidden_size=s["hidden"],
            intermediate_size=s["ffn"],
            num_hidden_layers=s["layers"],
            num_attention_heads=s["heads"],
            num_key_value_heads=s["kv_heads"],
            max_position_embeddings=target.context,
            tie_word_embeddings=True,
            bos_token_id=None,
            pad_token_id=getattr(target.tokenizer, "pad_token_id", None),
            eos_token_id=target.eos[0] if len(target.eos) == 1 else target.eos or None,
        )
        net = LlamaForCausalLM(config)
        with torch.no_grad():
            table = target.backbone.embed.weight.detach().float().cpu()
            eigenvectors = torch.linalg.eigh(table.T @ table).eigenvectors
            projected = table @ eigenvectors.flip(1)[:, : s["hidden"]]
            net.model.embed_tokens.weight.copy_(projected * (SPREAD / projected.std()))
        return DeepDraft(net)

    def min_tokens(self) -> int:
        return 1

    def levels(
        self, head: DeepDraft, outputs: TargetOutputs, depth: int | None = None, offset: int = 0
    ) -> Iterator[Predictions]:
        yield Predictions(head(outputs.ids), head.net.lm_head, 0)

    def save(self, head: DeepDraft, folder: Path, card: dict[str, Any]) -> None:
        save_half(head.net, folder)
        self.target.tokenizer.save_pretrained(folder)
        content = json.dumps({**card, "sha256": weights_hash(folder)}, indent=1) + "\n"
        write(content, folder / "card.json")


def save_half(model: Any, folder: Path) -> None:
    """Saves a model as fp16 safetensors in shards under 15 MB; in memory it keeps its dtype."""
    half = copy.deepcopy(model).cpu().half()
    with quiet():
        half.save_pretrained(folder, max_shard_size="14MB")
