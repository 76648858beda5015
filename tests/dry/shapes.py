"""The models and methods of the dry runs: the tests' own variants on tiny models, and published
sizes of Llama. No weight is ever computed with, so nothing is trained or initialised."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache, partial

import ranked
import test_protocol as protocol
import tiny
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights

import specwb
from specwb.models.diffusion import DiffusionModel
from specwb.models.eagle import EagleHead, eagle_config
from specwb.models.falcon import FalconHead
from specwb.models.kangaroo import KangarooAdapter
from specwb.models.medusa import MedusaHeads

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LLAMA_3 = {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192}
SIZES = {
    "1B": LLAMA_3
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    | {"num_attention_heads": 32, "head_dim": 64, "tie_word_embeddings": True},
    "8B": LLAMA_3
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32},
    "13B": {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40}
    | {"num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 32000}
    | {"max_position_embeddings": 4096},
    "32B": {"hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64}
    | {"num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064}
    | {"max_position_embeddings": 8192},
}
Case = tuple[str, str, Callable[[], specwb.Method]]
"""Name, key and what builds the method."""


def llama(size: str, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """A Llama of a published size on the dry device, its memory never written."""
    torch.set_default_dtype(dtype)
    try:
        with no_init_weights(), torch.device("cuda"):
            config = LlamaConfig(bos_token_id=None, eos_token_id=None, **SIZES[size])
            return LlamaForCausalLM(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(torch.float32)


def moved(target: specwb.Target, dtype: torch.dtype) -> specwb.Target:
    return specwb.load(copy.deepcopy(target.model).to(dtype), device="cuda")


class Tiny:
    """Every method's variants of ``tests/test_protocol.py``, on the family with every feature.

    Args:
        dtype: of the models.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.host = dtype, tiny.target("everything")
        self.target = moved(self.host, dtype)
        self.draft = moved(tiny.draft("everything"), dtype)
        self.deep = specwb.load(
            ranked.deepened(copy.deepcopy(tiny.target().model)).to(dtype), device="cuda"
        )
        self.flat = moved(tiny.target(), dtype)

    @cache  # noqa: B019
    def head(self, kind: str) -> nn.Module:
        host = self.host
        if kind == "decision":
            host = tiny.with_draft(host, tiny.draft("everything"))
        made = tiny._untrained(kind, host, torch.zeros(1, 8, dtype=torch.long), 48)[0]
        return made.to(self.dtype).to("cuda").eval().requires_grad_(False)

    def cases(self) -> Iterator[Case]:
        for key, options in protocol.CASES:
            more: list[dict] = [{}]
            if key == "easyspec" and "execution" not in options:
                more = [{"execution": way} for way in ("fused", "simulation", "streams")]
            for extra in more:
                values = {**options, **extra}
                yield protocol.named(key, values), key, lambda k=key, v=values: self.made(k, v)

    def scorer(self) -> nn.Module:
        made = copy.deepcopy(tiny.scorer(self.host)).to("cuda")
        object.__setattr__(made, "table", self.target.backbone.embed)
        return made

    def made(self, key: str, options: dict) -> specwb.Method:
        given = {**protocol.NEEDS.get(key, {}), **options}
        for name, value in given.items():
            if isinstance(value, protocol.Scorer):
                given[name] = self.scorer()
            elif isinstance(value, protocol.Head):
                given[name] = self.head(value.kind)
        if "draft" in specwb.METHODS[key].options:
            given["draft"] = self.draft
        return specwb.method(key, self.target, **given)


class Large:
    """The methods at published shapes: Llama 8B, a draft model of 1B, heads of one layer."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        self.dtype = dtype
        self.target = specwb.Target(llama("8B", dtype))
        self.draft = specwb.Target(llama("1B", dtype))

    def _head(self, made: Callable[[], nn.Module]) -> nn.Module:
        with no_init_weights(), torch.device("cuda"):
            head = made()
        head = head.to(self.dtype).to("cuda").eval().requires_grad_(False)
        return head

    def cases(self) -> Iterator[Case]:
        target, draft, width = self.target, self.draft, 4096

        def with_draft(key: str, **options) -> Callable[[], specwb.Method]:
            return lambda: specwb.method(key, target, draft=draft, **options)

        def with_head(key: str, make: Callable[[], nn.Module], **options):
            return lambda: specwb.method(key, target, head=self._head(make), **options)

        def eagle() -> nn.Module:
            return EagleHead(eagle_config(target), width)

        def adapter() -> nn.Module:
            return KangarooAdapter(eagle_config(target, 1), 2, "attention").start_from(target)

        def medusa() -> nn.Module:
            return MedusaHeads(width, target.vocabulary, heads=4).start_from(target)

        def falcon() -> nn.Module:
            return FalconHead(eagle_config(target, 2), width, 2, "lstm")

        def diffusion(**how) -> nn.Module:
            return DiffusionModel(llama("1B", self.dtype), mask_id=0, **how)

        tree = (4, 2, 2, 1, 1)
        yield "ar", "ar", lambda: specwb.method("ar", target)
        yield "sps:gamma=5", "sps", with_draft("sps", gamma=5)
        yield "sps:gamma=5,confidence=.4", "sps", with_draft("sps", gamma=5, confidence=0.4)
        yield "mcsd:tree=4-2-2", "mcsd", with_draft("mcsd", tree=(4, 2, 2))
        yield "mcsd:tree=4-2-2-1-1", "mcsd", with_draft("mcsd", tree=tree)
        entropy = {"stop": "entropy", "threshold": 0.1, "tree": (4, 2, 2)}
        yield "mcsd_ti:tree=4-2-2,stop=entropy", "mcsd_ti", with_draft("mcsd_ti", **entropy)
        yield "pld:gamma=10", "pld", lambda: specwb.method("pld", target, gamma=10)
        yield "lookahead", "lookahead", lambda: specwb.method("lookahead", target)
        yield "easyspec:n=4", "easyspec", with_draft("easyspec", n=4)
        yield "medusa:tree=4-2-2-1", "medusa", with_head("medusa", medusa, tree=(4, 2, 2, 1))
        yield "eagle:tree=4-2-2-1-1", "eagle", with_head("eagle", eagle, tree=tree)
        grown = {"nodes": 60, "depth": 6, "top": 10}
        yield "eagle2:nodes=60,depth=6,top=10", "eagle2", with_head("eagle2", eagle, **grown)
        yield "falcon:tree=4-2-2-1-1", "falcon", with_head("falcon", falcon, tree=tree)
        yield "kangaroo:gamma=6", "kangaroo", with_head("kangaroo", adapter, gamma=6)
        both_ways = partial(diffusion, causal=False)
        yield "diffuspec:k=8", "diffuspec", with_head("diffuspec", diffusion, k=8)
        yield "diffuspec:k=4", "diffuspec", with_head("diffuspec", diffusion, k=4)
        yield (
            "diffuspec:k=8,steps=3",
            "diffuspec",
            with_head("diffuspec", diffusion, k=8, steps=3),
        )
        yield "diffuspec:k=8,both_ways", "diffuspec", with_head("diffuspec", both_ways, k=8)
