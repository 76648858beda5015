"""Draft models that borrow their target's embedding and output layer.

Such a model has a few layers and a final norm of its own; with a large vocabulary that is a small
part of what a whole model of the same depth has. Its file is an adapter's at exit 0
(:mod:`specwb.models.kangaroo`): what stands behind the embedding is everything.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from specwb.core.errors import SpecwbError
from specwb.core.files import home, table
from specwb.models.checkpoint import HeadError
from specwb.models.folder import BUILDING, LoadError
from specwb.models.kangaroo import load_kangaroo
from specwb.models.target import Target
from specwb.models.words import spread


def is_borrowed(source: object) -> bool:
    """Whether a source is the folder of a draft model that borrows: an adapter behind layer 0."""
    if not isinstance(source, str | Path):
        return False
    try:
        path = home(source) / "config.json"
        return path.is_file() and table(path, LoadError).get("exit_layer") == 0
    except (SpecwbError, OSError, ValueError):  # no name of a folder, or one that cannot be read
        return False


def borrowed(source: str | Path, target: Target) -> Target:
    """Reads a draft model that borrows its target's embedding and output layer; it then is one like
    any other.

    The model's own forward has logits of all tokens, those of no word -inf; the backbone's output
    layer has rows for :attr:`Target.words` only, which drafting level by level reads."""
    check_lender(target, str(source), HeadError)
    adapter = load_kangaroo(source, target)
    if adapter.adapter != "layer":
        raise HeadError(f"{source}: a draft model has whole layers, this is an adapter without")
    with BUILDING, torch.device("meta"):
        net = LlamaForCausalLM(adapter.config)
    net.model.layers, net.model.norm = adapter.layers, adapter.norm
    net.model.rotary_emb = adapter.rotary_emb
    net.model.embed_tokens = target.backbone.inner.embed_tokens
    net.lm_head = adapter.output(target.backbone.lm_head)
    net.generation_config = target.model.generation_config
    own = target.own_head("draft")
    name = f"{target.name}-draft" if own == home(source) else str(source)
    draft = Target(net.eval(), target.tokenizer, name, folder=home(source))
    if adapter.words is not None:
        draft.words = adapter.words
        draft.model.lm_head = Spread(net.lm_head, adapter.words, target.vocabulary)
    return draft


class Spread(nn.Module):
    """An output layer of some words whose logits are all tokens'."""

    words: Tensor

    def __init__(self, rows: nn.Linear, words: Tensor, vocabulary: int) -> None:
        super().__init__()
        self.rows, self.vocabulary = rows, vocabulary
        self.register_buffer("words", words)

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..,H] -> [..,V]``: logits of all tokens, minus infinity of those that are no words."""
        return spread(self.rows(hidden), self.words, self.vocabulary, -torch.inf)


def check_lender(target: Target, who: str, refused: type[Exception]) -> None:
    """Checks that a model of a target's layers, embedding and output layer can be made."""
    stack = target.backbone
    why = ""
    if stack.whole:
        why = f"run only together ({stack.reason})"
    elif not stack.is_plain or stack.embed is not stack.inner.embed_tokens:
        why = "are not as Llama's"
    if why:
        needs = f"{who} is made of the target's layers and embedding"
        raise refused(f"{needs}, and those of {target.name!r} {why}")
