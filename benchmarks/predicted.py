"""Predicted step times beside measured ones: every method at a published shape, random weights.

    python benchmarks/predicted.py [--device cuda] [--target 8b] [--draft 1b] [--out FILE]

What a step takes does not depend on what the weights are, so none are downloaded. Whatever stops a
draft early is switched off, since random models are sure of nothing: acceptance is not measured
here, only the time of a step that drafts and scores all it may. These are the predictions that
docs/predict.md lists as not measured by anybody; where there is no machine card of the device's
name, only the measurement is shown.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights

import specwb
from specwb.bench.machine import commit
from specwb.cost import card, forecast, shape
from specwb.cost.calibrate import step_seconds
from specwb.cost.cards import known
from specwb.cost.shapes import Shape, tables
from specwb.cost.steps import draft_kind
from specwb.models.diffusion import DiffusionModel
from specwb.models.eagle import EagleHead, eagle_config
from specwb.models.falcon import FalconHead
from specwb.models.kangaroo import KangarooAdapter
from specwb.models.medusa import MedusaHeads

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
STEPS = 30  # of which the median counts


def llama(of: Shape, dtype: torch.dtype, device: str, context: int) -> nn.Module:
    """A Llama of this shape with random weights."""
    config = LlamaConfig(
        hidden_size=of.hidden,
        intermediate_size=of.intermediate,
        num_hidden_layers=of.layers,
        num_attention_heads=of.heads,
        num_key_value_heads=of.kv_heads,
        head_dim=of.head_dim,
        vocab_size=of.vocabulary,
        tie_word_embeddings=of.tied,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=None,
    )
    return filled(lambda: LlamaForCausalLM(config), dtype, device)


def filled(made: Callable[[], nn.Module], dtype: torch.dtype, device: str) -> nn.Module:
    """A module made on the device, matrices drawn from N(0, .02), vectors one."""
    torch.set_default_dtype(dtype)
    try:
        with no_init_weights(), torch.device(device):
            module = made()
    finally:
        torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(0, 0.02) if weight.dim() > 1 else weight.fill_(1.0)
    return module.to(dtype).eval().requires_grad_(False)


class Models:
    """Target, draft model and heads of every kind, made when they are first needed."""

    def __init__(self, target: Shape, draft: Shape, dtype: str, device: str, context: int) -> None:
        self.dtype, self.device, self.width = DTYPES[dtype], device, target.hidden
        self.target = specwb.load(llama(target, self.dtype, device, context))
        self._draft_shape, self._context, self._draft = draft, context, None

    @property
    def draft(self) -> specwb.Target:
        if self._draft is None:
            model = llama(self._draft_shape, self.dtype, self.device, self._context)
            self._draft = specwb.load(model)
        return self._draft

    def diffusion(self) -> DiffusionModel:
        """The draft model's shape, as a diffusion model whose text only looks back."""
        model = llama(self._draft_shape, self.dtype, self.device, self._context)
        return DiffusionModel(model, mask_id=0)

    def head(self, kind: str) -> nn.Module:
        target, width = self.target, self.width
        make: dict[str, Callable[[], nn.Module]] = {
            "eagle": lambda: EagleHead(eagle_config(target), width),
            "medusa": lambda: MedusaHeads(width, target.vocabulary, heads=4),
            "falcon": lambda: FalconHead(eagle_config(target, 2), width, 2, "lstm"),
            "kangaroo": lambda: KangarooAdapter(eagle_config(target, 1), 2, "attention"),
            "diffusion": self.diffusion,
        }
        return filled(make[kind], self.dtype, self.device)

    def method(self, spec: str) -> specwb.Method:
        key = spec.partition(":")[0]
        given: dict[str, Any] = {}
        entry = specwb.METHODS[key]
        if "draft" in entry.options:
            given["draft"] = self.draft
        elif entry.head:
            given["head"] = self.head(entry.head)
        return specwb.method(spec, self.target, **given)


def card_of(device: str) -> str | None:
    """The machine card of the device's name."""
    if not device.startswith("cuda"):
        return None
    return card_by_name(torch.cuda.get_device_name(device))


def card_by_name(device: str) -> str | None:
    """The card whose name is a word of a device's, if its memory and power are that card's too."""
    words = re.split(r"[^a-z0-9]+", device.lower())
    if {"laptop", "pcie", "nvl", "40gb"} & set(words):
        return None
    return next((own for own in known() if own in words), None)


def lacking(device: str, target: Shape, draft: Shape, dtype: str) -> str:
    """What is said where the models do not fit on the device, or ""."""
    if not device.startswith("cuda"):
        return ""
    size = 1.25 * DTYPES[dtype].itemsize * (target.parameters + draft.parameters)
    free = torch.cuda.mem_get_info(device)[0]
    if size <= free:
        return ""
    return f"not measured: {target.name} and {draft.name} need {size / 2**30:.0f} GiB, " + (
        f"{free / 2**30:.0f} are free; --target and --draft name smaller shapes"
    )


def measure(models: Models, spec: str, context: int, steps: int) -> float:
    """Seconds of a settled step at T = 0."""
    room = models.target.vocabulary
    prompt = torch.randint(room, (context,), generator=torch.Generator().manual_seed(0)).tolist()
    settings = {"max_new_tokens": 64 * steps, "temperature": 0.0}
    return step_seconds(models.target, prompt, models.method(spec), steps, **settings)[1]


def main() -> None:
    asked = tables("published")["pending"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--target", default=asked["target"])
    parser.add_argument("--draft", default=asked["draft"])
    parser.add_argument("--dtype", default=asked["dtype"], choices=list(DTYPES))
    parser.add_argument("--context", type=int, default=asked["context"])
    parser.add_argument("--methods", nargs="+", default=asked["methods"])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    target, draft = shape(args.target), shape(args.draft)
    if wrong := lacking(args.device, target, draft, args.dtype):
        print(wrong)
        if args.out:
            args.out.write_text(json.dumps({"not_measured": wrong}) + "\n")
        return
    room = args.context + 64 * args.steps + 64
    models = Models(target, draft, args.dtype, args.device, room)
    name, rows = card_of(args.device), []
    for spec in args.methods:
        row: dict[str, Any] = {"method": spec}
        row["step_ms"] = round(1e3 * measure(models, spec, args.context, args.steps), 3)
        if name is not None:
            told = forecast(
                spec,
                target,
                card(name),
                draft=draft if draft_kind(spec) else None,
                dtype=args.dtype,
                context=args.context,
            )
            row["predicted_ms"] = round(1e3 * told.step, 3)
            row["interval_ms"] = [round(1e3 * x, 3) for x in told.step_interval]
        rows.append(row)
        print(json.dumps(row), flush=True)
    document = {**{k: v for k, v in vars(args).items() if k != "out"}, "card": name, "rows": rows}
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"commit": commit(), **document}, indent=1) + "\n")


if __name__ == "__main__":
    main()
