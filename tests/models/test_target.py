"""What a target keeps of the files beside it, how it is loaded in threads, and how it reads long
prompts."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.initialization import TORCH_INIT_FUNCTIONS

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


@pytest.mark.parametrize("folder", [True, False], ids=["a folder", "a file"])
def test_files_are_read_once_and_again_when_they_are_written_anew(target, tmp_path, folder):
    file = tmp_path / "weights"
    place, read = tmp_path if folder else file, Reader(file)
    write(file, "first", 1)
    first = target.loaded("head", place, read)
    assert (first, read.times) == (["first"], 1)
    assert target.loaded("head", str(place), read) is first
    write(file, "second", 2)
    second = target.loaded("head", place, read)
    assert (second, read.times) == (["second"], 2)
    assert target.loaded("head", place, read) is second


def test_a_copy_reads_for_itself(tmp_path):
    target, read = specwb.load(tiny.build("llama")), Reader(tmp_path / "weights")
    write(read.file, "text", 1)
    first = target.loaded("head", tmp_path, read)
    again = copy.copy(target).loaded("head", tmp_path, read)
    assert (again, read.times) == (first, 2)
    assert again is not first
    assert target.loaded("head", tmp_path, read) is first


# ---------------------------------------------------------------------------- loading in threads


PATCHED = [
    *((PreTrainedModel, name) for name in ("tie_weights", "init_weights")),
    (torch, "linspace"),
    *((nn.init, name) for name in TORCH_INIT_FUNCTIONS),
]
"""Functions that the library replaces for the whole process while it builds a model."""


@pytest.fixture
def slowly(monkeypatch) -> Iterator[threading.Event]:
    """A Llama takes a tenth of a second to be made, so that threads that make one overlap; set when
    the first is being made. Whatever a thread leaves replaced is put back after the test."""
    make, begun = LlamaForCausalLM.__init__, threading.Event()

    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        begun.set()
        time.sleep(0.1)
        make(self, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "__init__", init)
    for place, name in PATCHED:
        monkeypatch.setattr(place, name, getattr(place, name))
    dtype = torch.get_default_dtype()
    yield begun
    torch.set_default_dtype(dtype)


def state() -> list[Any]:
    """What a thread may leave replaced."""
    functions = [getattr(place, name) for place, name in PATCHED]
    return [*functions, torch.get_default_dtype()]


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
    original = state()
    model = tiny.build("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "target")
    tiny.tokenizer(tiny.WORDS).save_pretrained(tmp_path / "target")
    target = specwb.load(tmp_path / "target")
    build(model.config, mask_id=tiny.MASK).save(tmp_path / "diffusion")
    loads = [
        lambda: specwb.load(tmp_path / "target", dtype="float32").model,
        lambda: load_diffusion(tmp_path / "diffusion", target).net,
        lambda: specwb.load(tmp_path / "target", dtype="bfloat16").model,
        lambda: load_diffusion(tmp_path / "diffusion", target).net,
    ]
    alone = [load() for load in loads]
    together = in_threads(loads)
    assert state() == original
    for one, other in zip(alone, together, strict=True):
        assert isinstance(other, nn.Module), other
        assert other.lm_head.weight is other.model.embed_tokens.weight
        assert (one.dtype, one.state_dict().keys()) == (other.dtype, other.state_dict().keys())
        for key, weight in one.state_dict().items():
            assert torch.equal(weight, other.state_dict()[key]), key


def test_a_head_is_not_rounded_while_a_target_in_bfloat16_is_loaded(tmp_path, slowly):
    tiny.build("llama").save_pretrained(tmp_path / "target")
    tiny.tokenizer(tiny.WORDS).save_pretrained(tmp_path / "target")
    target = tiny.target()
    EagleHead(eagle_config(target), 32).save(tmp_path / "head")
    alone = load_eagle(tmp_path / "head", target).state_dict()
    slowly.clear()
    loads = [
        lambda: specwb.load(tmp_path / "target", dtype="bfloat16"),
        lambda: slowly.wait(60) and load_eagle(tmp_path / "head", target).state_dict(),
    ]
    _, together = in_threads(loads)
    assert isinstance(together, dict), together
    assert all(torch.equal(weight, together[key]) for key, weight in alone.items())


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
