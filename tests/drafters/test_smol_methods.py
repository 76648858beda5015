"""Methods with heads of their own on SmolLM2-135M, where it is cached: the library's own greedy
text comes out."""

from __future__ import annotations

import pytest
import torch

import specwb
from specwb.engine.methods import that_run
from specwb.lab.bench.compare import usual
from specwb.lab.bench.ties import agreements
from specwb.models import smol
from specwb.models.gguf import cached
from specwb.models.questions import load_prompts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        cached(smol.SHA256) is None,
        reason="SmolLM2-135M is not cached; python -m specwb.models.smol fetches it (93 MB)",
    ),
]
TOKENS = 12


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load("smol", dtype="float32")


@pytest.fixture(scope="module")
def prompts(target) -> list[list[int]]:
    return [question.ids(target.tokenizer) for question in load_prompts("chat")[:1]]


@pytest.fixture(scope="module")
def generated(target, prompts) -> list[list[int]]:
    """The library's texts, each by itself."""
    texts = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        settings = {"do_sample": False, "max_new_tokens": TOKENS, "eos_token_id": target.eos}
        out = target.model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        texts.append(out[0, len(prompt) :].tolist())
    return texts


def test_many_methods_run(target):
    assert len(that_run(usual(target), target, None, usual=True)[0]) >= 3


@pytest.mark.parametrize("name", [name for name in specwb.METHODS if name != "ar"])
def test_a_method_writes_what_generate_writes(name, target, prompts, generated):
    runs, left_out = that_run([name] if name in usual(target) else [], target, None, usual=True)
    if not runs:
        pytest.skip(f"smol has no {name} of its own ({left_out.get(name, 'no head')})")
    (method,) = runs.values()
    writes(method, target, prompts, generated)


def test_a_learned_walk_writes_what_generate_writes(target, prompts, generated):
    method = specwb.method("diffuspec", target, k=4, score="pair")
    writes(method, target, prompts, generated)


def writes(method: specwb.Method, target, prompts, generated) -> None:
    texts = specwb.decode(target, prompts, method, max_new_tokens=TOKENS).tokens
    pairs = list(zip(prompts, generated, strict=True))  # of the library, which rounds otherwise
    same = agreements(target, pairs, {"it": texts}, library=["it"])["it"]
    assert not same.others, same
