"""Draft models that borrow their target's embedding and output layer.

Such a model has a few layers and a final norm of its own; with a large vocabulary that is a small
part of what a whole model of the same depth has. Its file is an adapter's at exit 0
(:mod:`specwb.models.kangaroo`): what stands behind the embedding is everything.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from transformers import LlamaForCausalLM

from specwb.files import home, table
from specwb.models.checkpoint import HeadError
from specwb.models.folder import LoadError
from specwb.models.kangaroo import load_kangaroo
from specwb.models.target import Target


def is_borrowed(source: object) -> bool:
    """Whether a folder holds such a draft model."""
    if not isinstance(source, str | Path):
        return False
    path = home(source) / "config.json"
    try:
        return path.is_file() and table(path, LoadError).get("exit_layer") == 0
    except LoadError:
        return False


def borrowed(source: str | Path, target: Target) -> Target:
    """Reads such a draft model, which then is one like any other.

    Its output layer has rows for :attr:`Target.words` only.

    Args:
        source: the folder.
        target: the model that it drafts for.

    Raises:
        HeadError: it is for another target, damaged, or no whole model.
    """
    adapter = load_kangaroo(source, target)
    if adapter.adapter != "layer":
        raise HeadError(f"{source}: a draft model has whole layers, this is an adapter without")
    with torch.device("meta"):
        net = LlamaForCausalLM(adapter.config)
    net.model.layers, net.model.norm = adapter.layers, adapter.norm
    net.model.rotary_emb = adapter.rotary_emb
    net.model.embed_tokens = target.backbone.inner.embed_tokens
    net.lm_head = adapter.output(target.backbone.lm_head)
    net.generation_config = target.model.generation_config
    draft = Target(net.eval(), target.tokenizer, str(source), folder=home(source))
    draft.backbone.embed = cast(torch.nn.Embedding, target.backbone.embed)
    draft.words = adapter.words
    return draft
