"""Models as users of transformers load them: on several devices, partly on the disk, quantised,
from a closed or offline hub, and too large."""

from __future__ import annotations

import json
import re
import shutil
from collections import namedtuple
from pathlib import Path

import psutil
import pytest
import tiny
import torch
from safetensors.torch import load_file

import specwb
from specwb import LoadError, UnsupportedModel
from specwb.models import device
from specwb.models.cache import KVCache, SpreadCache
from specwb.models.device import MemoryShortage, gib, main_device
from specwb.models.eagle import EagleHead, eagle_config
from specwb.models.target import Target

WORDS = [f"w{i}" for i in range(tiny.VOCABULARY)]
PROMPTS = [[3, 1, 4, 1, 5], [2, 7]]
HERE = ("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb", "lm_head")
DISK = {**dict.fromkeys(HERE, "cpu"), "model.layers.1": "disk", "model.layers.2": "disk"}


def saved(folder: Path, **config: object) -> Path:
    tiny.build("llama", seed=1, **config).save_pretrained(folder)
    tiny.tokenizer(WORDS).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("placed") / "model")


@pytest.fixture(scope="module")
def offloaded(folder) -> Target:
    return specwb.load(folder, dtype="float64", device_map=DISK)


@pytest.fixture(scope="module")
def plain(folder) -> list[list[int]]:
    return texts(specwb.load(folder, dtype="float64"), "ar")


def texts(target: Target, method: object, **options: object) -> list[list[int]]:
    how = {"max_new_tokens": 12, "eos": ()}
    return specwb.decode(target, PROMPTS, method, **how, **options).tokens


def draft(dtype: torch.dtype = torch.float64) -> Target:
    off = tiny.perturbed(tiny.build("llama", seed=1), 0.01)
    return specwb.load(off, tokenizer=tiny.tokenizer(WORDS), dtype=dtype)


# ------------------------------------------------------------------------------------------ places


def test_layers_on_the_disk_are_decoded_with(offloaded, plain, caplog):
    assert offloaded.backbone.whole
    assert any(w.is_meta for w in offloaded.model.parameters()), "nothing was offloaded"
    assert texts(offloaded, "ar") == plain
    assert texts(offloaded, "mcsd", tree=(2, 1), draft=draft()) == plain


def test_heads_read_the_output_layer_where_it_is_at_hand(folder, offloaded, plain):
    torch.manual_seed(0)
    head = EagleHead(eagle_config(offloaded), offloaded.backbone.config.hidden_size)
    head = tiny.cast(head, torch.float64).requires_grad_(False).eval()
    assert texts(offloaded, specwb.method("eagle", offloaded, head=head, tree=(2, 1))) == plain
    away = specwb.load(folder, dtype="float64", device_map={**DISK, "lm_head": "disk"})
    assert texts(away, "ar") == plain
    with pytest.raises(UnsupportedModel, match=r"quantised or offloaded.*keep both on a device"):
        specwb.method("eagle", away, head=head, tree=(2, 1))


def test_a_map_of_one_device_is_the_fast_way(folder, plain):
    for place in ("auto", {"": "cpu"}):
        target = specwb.load(folder, dtype="float64", device_map=place)
        assert not target.backbone.whole
        assert texts(target, "ar") == plain


@pytest.mark.parametrize(
    ("places", "device"),
    [
        ({"model.embed_tokens": "cpu", "model.layers": 1, "lm_head": 0}, "cuda:1"),
        ({"model.embed_tokens": "disk", "model.layers": "cuda:2", "lm_head": "cpu"}, "cuda:2"),
        ("cuda:1", "cuda:1"),
        ("balanced", "auto"),
    ],
)
def test_the_device_that_computes_is_the_first_that_is_no_offload(places, device):
    assert main_device(places) == device


@pytest.mark.parametrize("layout", ["tree", "batch"])
def test_a_cache_in_parts_is_one_cache(folder, plain, layout):
    """Without several devices: two names of one, so that storage, accepted paths and copies of rows
    go through the parts."""
    target = specwb.load(folder, dtype="float64", generic=True)
    target.backbone._devices = [torch.device(name) for name in ("cpu", "cpu:0", "cpu")]
    cache = target.backbone.cache(2, 9)
    assert isinstance(cache, SpreadCache)
    assert [len(part.data) for part in cache.parts] == [2, 1]
    layers = [cache.layer(i) for i in range(3)]
    assert [(cache.parts.index(part), i) for part, i in layers] == [(0, 0), (1, 0), (0, 1)]
    assert texts(target, "mcsd", tree=(2, 1), draft=draft(), layout=layout) == plain


@pytest.mark.parametrize(
    ("how", "word"),
    [
        ({"device_map": {"": "cuda:3"}}, "'cuda:3'"),
        ({"device_map": "fastest"}, "'balanced_low_0', 'sequential' but found fastest"),
        ({"device_map": "auto", "device": "cpu"}, "leave device="),
        ({"attn_implementation": "fast"}, "possible arguments are"),
        ({"trust_remote_code": True}, "never run"),
        ({"torch_dtype": "float16"}, "dtype= names"),
        ({"devise_map": "auto"}, "the library cannot load .* keyword argument 'devise_map'"),
    ],
)
@pytest.mark.skipif(torch.cuda.device_count() > 3, reason="this machine has the device")
def test_what_cannot_be_is_refused_before_weights_are_read(folder, monkeypatch, how, word):
    monkeypatch.setattr("transformers.PreTrainedModel._load_pretrained_model", None)
    with pytest.raises(LoadError, match=word):
        specwb.load(folder, **how)


def test_a_loaded_model_in_parts_stays_as_it_is(offloaded, plain):
    assert texts(specwb.load(offloaded.model), "ar") == plain
    for how, word in (({"device": "cpu"}, "moved or cast"), ({"device_map": "auto"}, "device_map")):
        with pytest.raises(LoadError, match=word):
            specwb.load(offloaded.model, **how)


def test_attention_of_the_library_s(folder, plain):
    generic = specwb.load(folder, dtype="float64", generic=True, attn_implementation="eager")
    assert generic.model.config._attn_implementation == "eager"
    assert texts(generic, "ar") == plain
    assert not specwb.load(folder, attn_implementation="sdpa").backbone.whole
    with pytest.raises(UnsupportedModel, match="does not take a tree's mask"):
        specwb.load(folder, generic=True, attn_implementation="paged|eager")


# -------------------------------------------------------------------------------------- quantised


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"quant_method": "gptq", "bits": 4}, "GPTQ quantized model requires"),
        ({"quant_method": "zip"}, "in a way that the library does not know"),
    ],
)
def test_quantised_weights_without_their_library(folder, tmp_path, config, word):
    place = Path(shutil.copytree(folder, tmp_path / "m"))
    table = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**table, "quantization_config": config}))
    with pytest.raises(LoadError, match=word):
        specwb.load(place)


# ------------------------------------------------------------------------------------------ memory


def free(monkeypatch, size: int) -> None:
    memory = namedtuple("memory", "available")(size)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def test_weights_that_do_not_fit_are_not_read(folder, monkeypatch):
    kept = load_file(folder / "model.safetensors")
    needed = sum(weight.numel() * 4 for weight in kept.values())
    specwb.load(folder, device="cpu")
    free(monkeypatch, needed - 1)
    monkeypatch.setattr("specwb.models.reading.weights", None)
    with pytest.raises(MemoryShortage, match=re.escape(f"{gib(needed)}, cpu has")):
        specwb.load(folder, device="cpu")


def test_a_cache_that_does_not_fit(folder, monkeypatch):
    target = specwb.load(folder)
    free(monkeypatch, 2**26)
    with pytest.raises(MemoryShortage, match="2000 rows"):
        specwb.decode(target, [[1, 2]] * 2000, "ar", max_new_tokens=200)


def test_a_cache_has_slots_for_what_a_decoding_may_need(folder, monkeypatch):
    """Not for the model's whole context."""
    capacities, make = [], KVCache.__init__

    def noted(self, layers, rows, capacity, *rest):
        capacities.append(capacity)
        make(self, layers, rows, capacity, *rest)

    monkeypatch.setattr(KVCache, "__init__", noted)
    target = specwb.load(folder)
    specwb.decode(target, PROMPTS, "ar", max_new_tokens=12, eos=())
    nodes = 1  # plain decoding scores the root alone
    assert capacities == [len(PROMPTS[0]) + 12 + nodes + 1]
    assert capacities[0] < target.context / 10


@pytest.mark.parametrize(("bfloat16", "fast"), [(0.7, True), (0.9, False), (2.0, False)])
def test_bfloat16_has_to_be_clearly_faster_for_training(monkeypatch, bfloat16, fast):
    """Seconds of a product in bfloat16, where one in float32 takes one."""
    now, threads = [0.0], torch.get_num_threads()

    def product(x, weight):
        now[0] += bfloat16 if x.dtype == torch.bfloat16 else 1.0

    monkeypatch.setattr(device, "fast_bfloat16", lambda on: True)
    monkeypatch.setattr(device.time, "thread_time", lambda: now[0])
    monkeypatch.setattr(torch.nn.functional, "linear", product)
    measured = device.fast_bfloat16_products.__wrapped__
    assert measured(torch.device("cpu")) is fast
    assert torch.get_num_threads() == threads
