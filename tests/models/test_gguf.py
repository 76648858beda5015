"""Models in GGUF files: a tiny one, written with gguf's own writer, beside the model it is of."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import tiny
import torch

import specwb
from specwb.core.files import weights_hash
from specwb.models import gguf as module
from specwb.models import load as loading

if importlib.util.find_spec("gguf") is None:
    pytest.skip("gguf comes with the extra gguf", allow_module_level=True)
import gguf

END = "<|endoftext|>"
LETTERS = [chr(i) for i in range(ord("A"), ord("z") + 1)]
TOKENS = [END, *LETTERS, "AB", "<|0|>", "<|1|>", "<|2|>", "<|3|>"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}<|endoftext|>{% endfor %}"
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""The parts of a weight's name in the library, and in a GGUF file."""


def write(
    path: Path, model: Any, architecture: str = "qwen2", words: bool = True, kind: str = "F32"
) -> Path:
    """Writes a Qwen2 model as a GGUF file; ``words``: with tokenizer and chat template; ``kind``:
    the number type of its matrices."""
    as_stored = gguf.GGMLQuantizationType[kind]
    out, config = gguf.GGUFWriter(path, architecture), model.config
    out.add_block_count(config.num_hidden_layers)
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(config.num_key_value_heads)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_rope_freq_base(config.rope_parameters["rope_theta"])
    out.add_vocab_size(config.vocab_size)
    if words:
        out.add_tokenizer_model("gpt2")
        out.add_tokenizer_pre("qwen2")
        out.add_token_list(TOKENS)
        out.add_token_types([3 if token.startswith("<|") else 1 for token in TOKENS])
        out.add_token_merges(["A B"])
        out.add_eos_token_id(0)
        out.add_chat_template(TEMPLATE)
    for name, weight in model.state_dict().items():
        for theirs, ours in NAMES.items():
            name = re.sub(rf"\b{re.escape(theirs)}\b", ours, name)
        if weight.ndim > 1:
            data = gguf.quants.quantize(weight.numpy(), as_stored)
            out.add_tensor(name, data, raw_dtype=as_stored)
        else:
            out.add_tensor(name, weight.numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory) -> Iterator[Path]:
    """A user's cache of this module's own."""
    place = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECWB_CACHE", str(place))
        yield place / "gguf"


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.build("qwen2", seed=tiny.SEEDS["qwen2"], tie_word_embeddings=False)


@pytest.fixture(scope="module")
def file(model, tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model)


def test_a_file_is_the_model_with_its_tokenizer_and_template(model, file):
    named, by_folder = specwb.load(file), specwb.load(file.parent, gguf_file=file.name)
    for target in (named, by_folder, specwb.load(str(file), tokenizer=named.tokenizer)):
        ids = torch.tensor([[5, 3, 8, 1]])
        with torch.no_grad():
            assert torch.allclose(target.model(ids).logits, model(ids).logits, atol=1e-5)
        assert not target.backbone.whole  # the fast way
        assert target.eos == [0]
        assert target.context == model.config.max_position_embeddings
        assert target.tokenizer.convert_ids_to_tokens(range(tiny.VOCABULARY)) == TOKENS
        assert target.tokenizer.chat_template == TEMPLATE
    chat = [{"role": "user", "content": "CAB"}]
    ids = [TOKENS.index("C"), TOKENS.index("AB"), 0]
    right = specwb.decode(specwb.load(model), ids, "ar", max_new_tokens=12, eos=0).tokens
    assert specwb.decode(named, chat, "pld", max_new_tokens=12).tokens == right


@pytest.mark.parametrize(
    ("kind", "coarse"),
    [("Q8_0", True), ("BF16", True), ("F16", False)],
)
def test_matrices_that_bfloat16_would_not_round_are_run_in_it(
    kind, coarse, model, tmp_path, monkeypatch, caplog
):
    """Where that is faster: by the processor or by the compiled pass. Q8_0 too: it is what files of
    four bits have where rows are no multiple of 256."""
    path = write(tmp_path / "m.gguf", model, kind=kind)
    target = specwb.load(path, device="cpu")
    assert target.dtype is torch.float32  # so small a model
    stored = target.model.state_dict()
    precision = {"Q8_0": 0.01, "BF16": 0.01, "F16": 1e-3}[kind]
    for name, weight in model.state_dict().items():
        assert float((stored[name] - weight).abs().max()) <= precision * float(weight.abs().max())
    monkeypatch.setattr(loading, "CACHED", 0)
    for fast, compiled in ((True, False), (False, True), (False, False)):
        caplog.clear()
        monkeypatch.setattr(loading, "fast_bfloat16", lambda device, fast=fast: fast)
        monkeypatch.setattr(loading, "compiled_pass", lambda compiled=compiled: compiled or None)
        rounded = specwb.load(path, device="cpu").dtype is torch.bfloat16
        assert rounded is (coarse and (fast or compiled))
        assert ("in bfloat16, which is faster" in caplog.text) is rounded
    assert specwb.load(path, device="cpu", dtype="float64").dtype is torch.float64


def test_one_precise_matrix_keeps_a_file_in_float32():
    assert module.is_coarse({"matrices": ["BF16", "Q4_K", "Q6_K"]})
    for precise in ({"matrices": ["F16", "Q4_K"]}, {"matrices": []}, {}):
        assert not module.is_coarse(precise)


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_a_file_is_converted_once_for_its_content(model, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SPECWB_CACHE", str(tmp_path / "cache"))
    cache, first = tmp_path / "cache" / "gguf", write(tmp_path / "a.gguf", model, kind="Q8_0")
    with monkeypatch.context() as patch:  # a conversion that is interrupted leaves nothing
        patch.setattr(module, "_matrices", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            specwb.load(first)
    assert folders(cache) == []
    caplog.clear()
    for path in (first, shutil.copy(first, tmp_path / "b.gguf"), first):
        target = specwb.load(path, device="cpu")
        assert target.sha256 == weights_hash(first)
        assert target.name == str(path)
    assert caplog.text.count("writing its weights") == 1
    assert folders(cache) == [f"{target.sha256[:16]}-float32"]
    monkeypatch.setenv("SPECWB_CACHE", str(first))
    refused("cannot be written", first)


def refused(word: str, *given, **more) -> None:
    with pytest.raises(specwb.LoadError) as error:
        specwb.load(*given, **more)
    (line,) = str(error.value).splitlines()
    assert word in line


def test_what_cannot_be_read_is_one_line(model, file, tmp_path):
    refused("tiny.gguf", file.parent)
    refused("is a file", file, gguf_file=file.name)
    refused("no.gguf does not exist", file.parent / "no.gguf")
    content = file.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (100, 600, len(content) - 1000):  # in the header, the table and the weights
        cut.write_bytes(content[:size])
        refused(f"{cut} is damaged", cut)
    refused("rwkv6", write(tmp_path / "other.gguf", model, architecture="rwkv6"))
    part = tmp_path / "big-00001-of-00003.gguf"
    part.write_bytes(content + b"\0")  # another content than one that was converted
    refused("3 parts", part)


def test_a_file_without_a_tokenizer(model, tmp_path):
    bare = write(tmp_path / "bare.gguf", model, words=False)
    refused("no tokenizer", bare)
    known = tiny.tokenizer([f"w{i}" for i in range(tiny.VOCABULARY)])
    target = specwb.load(bare, tokenizer=known)
    with torch.no_grad():
        ids = torch.tensor([[5, 3]])
        assert torch.allclose(target.model(ids).logits, model(ids).logits, atol=1e-5)
