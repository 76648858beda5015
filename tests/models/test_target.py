"""What a target keeps of the files beside it, how it is loaded in threads, and how it reads long
prompts."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import nn
from transformers import LlamaForCausalLM

import specwb
from specwb.models import target as target_module
from specwb.models.diffusion import build, load_diffusion
from specwb.models.eagle import EagleHead, eagle_config, load_eagle


@pytest.fixture
def target() -> specwb.Target:
    return copy.copy(tiny.target())


class Reader:
    """Reads a text and counts how often."""

    def __init__(self, file: Path) -> None:
        self.file, self.times = file, 0

    def __call__(self) -> list[str]:
        self.times += 1
        return [self.file.read_text()]


def write(file: Path, text: str, second: int) -> None:
    file.write_text(text)
    os.utime(file, (second, second))


def test_files_are_read_once_and_again_when_they_are_written_anew(target, tmp_path):
    file = tmp_path / "weights"
    read = Reader(file)
    write(file, "first", 1)
    first = target.loaded("head", tmp_path, read)
    assert (first, read.times) == (["first"], 1)
    assert target.loaded("head", str(tmp_path), read) is first
    write(file, "second", 2)
    assert (target.loaded("head", tmp_path, read), read.times) == (["second"], 2)


# ---------------------------------------------------------------------------- loading in threads


@pytest.fixture
def slowly(monkeypatch) -> None:
    """A Llama takes a tenth of a second to be made, so that threads that make one overlap."""
    make = LlamaForCausalLM.__init__

    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        time.sleep(0.1)
        make(self, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "__init__", init)


def in_threads(loads: list[Callable[[], Any]]) -> list[Any]:
    """What each of the loads returned, or its error; each ran in a thread of its own."""
    results: dict[int, Any] = {}

    def work(i: int) -> None:
        try:
            results[i] = loads[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(loads))]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    return [results[i] for i in range(len(loads))]


def test_loading_in_several_threads_leaves_the_library_as_it_was(tmp_path, slowly):
    original = torch.linspace, torch.nn.init.normal_, torch.get_default_dtype()
    model = tiny.build("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "target")
    tiny.tokenizer(tiny.WORDS).save_pretrained(tmp_path / "target")
    target = specwb.load(tmp_path / "target")
    build(model.config, mask_id=tiny.MASK).save(tmp_path / "diffusion")
    EagleHead(eagle_config(target), 32).save(tmp_path / "head")
    loads = [
        lambda: specwb.load(tmp_path / "target", dtype="float32").model,
        lambda: load_diffusion(tmp_path / "diffusion", target).net,
        lambda: specwb.load(tmp_path / "target", dtype="bfloat16").model,
        lambda: load_eagle(tmp_path / "head", target),
    ]
    alone = [load() for load in loads]
    together = in_threads(loads)
    assert original == (torch.linspace, torch.nn.init.normal_, torch.get_default_dtype())
    for one, other in zip(alone, together, strict=True):
        assert isinstance(other, nn.Module), other
        if not isinstance(one, EagleHead):
            assert other.lm_head.weight is other.model.embed_tokens.weight
        assert one.state_dict().keys() == other.state_dict().keys()
        for key, weight in one.state_dict().items():
            assert torch.equal(weight, other.state_dict()[key]), key
            assert weight.dtype == other.state_dict()[key].dtype


# ------------------------------------------------------------------------------- parts of prompts


@pytest.fixture(scope="module")
def pair() -> tuple[specwb.Target, specwb.Target]:
    model = tiny.build("llama", seed=3, dtype=tiny.EXACT)
    return specwb.load(model), specwb.load(tiny.perturbed(model, 0.02))


def made(name: str, pair) -> specwb.Method:
    if name == "sps":
        return specwb.method("sps", pair[0], gamma=3, draft=pair[1])
    head = tiny.trained("eagle", pair[0], steps=1)
    return specwb.method("eagle", pair[0], tree=(2, 1), head=head)


@pytest.mark.parametrize("name", ["sps", "eagle"])
def test_long_prompts_go_through_the_layers_in_parts(pair, monkeypatch, name):
    target, method = pair[0], made(name, pair)
    prompts = [list(range(3, 60)), [9, 8, 7]]
    whole = specwb.decode(target, prompts, method, max_new_tokens=8)
    monkeypatch.setattr(target_module, "CHUNK", 16)
    monkeypatch.setattr(target_module, "LEAST", 4)
    for cells, first in ((2**25, 16), (2 * 16 * 32, 16), (2 * 8 * 16, 8), (1, 4)):
        monkeypatch.setattr(target_module, "CELLS", cells)
        assert next(target_module._parts(56, 2)) == (0, first)
        parts = specwb.decode(target, prompts, method, max_new_tokens=8)
        assert parts.tokens == whole.tokens
        assert parts.accepted_lengths == whole.accepted_lengths


def test_parts_of_a_prompt_are_as_long_as_masks_may_be():
    parts = list(target_module._parts(32_768, 1))
    assert [first for first, _ in parts[1:]] == [last for _, last in parts[:-1]]
    assert (parts[0][0], parts[-1][1]) == (0, 32_768)
    sizes = [last - first for first, last in parts]
    assert max(sizes) == target_module.CHUNK
    assert all((last - first) * last <= target_module.CELLS for first, last in parts)
    assert min(sizes[:-1]) >= target_module.LEAST


def test_several_decodings_of_one_target_in_threads(pair):
    target, method = pair[0], made("sps", pair)
    prompts = [[i, i + 1, i + 2] for i in range(3, 9)]
    how = {"max_new_tokens": 16, "temperature": 0.8}
    wanted = [specwb.decode(target, p, method, seed=p[0], **how).tokens for p in prompts]
    found: dict[int, list] = {}

    def work(i: int) -> None:
        found[i] = specwb.decode(target, prompts[i], method, seed=prompts[i][0], **how).tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(len(prompts))] == wanted
