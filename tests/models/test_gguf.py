"""Models in GGUF files: a tiny one, written with gguf's own writer, beside the model it is of."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from typer.testing import CliRunner

import specwb
from specwb.cli import app
from specwb.models import gguf as module
from specwb.models.load import load
from specwb.models.memory import MemoryShortage

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


def write(path: Path, model: Any, architecture: str = "qwen2", words: bool = True) -> Path:
    """Writes a Qwen2 model as a GGUF file, in float32; ``words``: with tokenizer and chat
    template."""
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
        out.add_tensor(name, weight.numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


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


def test_a_file_is_a_draft_model(file):
    target = specwb.load(file)
    out = specwb.decode(target, [5, 3, 8], "sps", draft=file, max_new_tokens=8)
    assert out.tokens == specwb.decode(target, [5, 3, 8], "ar", max_new_tokens=8).tokens
    assert out.mean_tokens_per_step > 2
    again = specwb.decode(target, [5, 3, 8], "sps", draft=str(file), max_new_tokens=8)
    assert again.tokens == out.tokens


def test_its_numbers_take_the_memory_of_the_number_type_they_get(model, file, monkeypatch):
    numbers = sum(weight.numel() for weight in model.parameters())
    monkeypatch.setattr("specwb.models.memory.free_bytes", lambda device: 4 * numbers - 1)
    with pytest.raises(MemoryShortage, match="does not fit"):
        load(file, dtype="float32")
    assert load(file, dtype="bfloat16").model.dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("tensors", "few"),
    [
        ({"matrix": "Q4_1", "norm": "F32"}, True),
        ({"matrix": "BF16", "norm": "F32"}, True),
        ({"matrix": "Q4_1", "other matrix": "F16", "norm": "F32"}, False),
        ({"matrix": "F32", "norm": "F32"}, False),
    ],
    ids=["quantised", "bfloat16", "one precise", "precise"],
)
def test_a_file_is_in_few_bits_where_all_of_its_matrices_are(tensors, few, monkeypatch):
    every = [
        SimpleNamespace(shape=[8] * (1 + (name != "norm")), tensor_type=SimpleNamespace(name=kind))
        for name, kind in tensors.items()
    ]
    monkeypatch.setattr(gguf, "GGUFReader", lambda path: SimpleNamespace(tensors=every))
    assert module.is_in_few_bits(Path("m.gguf")) is few


def test_the_command_line(file):
    by_folder = ["--target", str(file.parent), "--load", f"gguf_file={file.name}"]
    said = [
        CliRunner().invoke(app, ["generate", "CAB", "--method", "pld", *words])
        for words in (["--target", str(file)], by_folder)
    ]
    assert [one.exit_code for one in said] == [0, 0]
    assert said[0].stdout == said[1].stdout != ""


def refused(word: str, *given, **more) -> None:
    with pytest.raises(specwb.LoadError) as error:
        specwb.load(*given, **more)
    (line,) = str(error.value).splitlines()
    assert word in line


def test_a_folder_that_holds_a_gguf_file_names_it(file):
    refused("tiny.gguf", file.parent)
    refused("tiny.gguf", file.parent, gguf_file="no.gguf")
    refused("is a file", file, gguf_file=file.name)
    refused("no.gguf does not exist", file.parent / "no.gguf")


def test_what_cannot_be_read_is_one_line(model, file, tmp_path):
    content = file.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (2, 100, 600, len(content) - 1000):  # in the header, the table and the weights
        cut.write_bytes(content[:size])
        refused(f"{cut} is damaged", cut)
    refused("rwkv6", write(tmp_path / "other.gguf", model, architecture="rwkv6"))
    part = tmp_path / "big-00001-of-00003.gguf"
    part.write_bytes(content)
    refused("3 parts", part)


def test_a_file_without_a_tokenizer(model, tmp_path):
    bare = write(tmp_path / "bare.gguf", model, words=False)
    refused("no tokenizer", bare)
    known = tiny.tokenizer([f"w{i}" for i in range(tiny.VOCABULARY)])
    target = specwb.load(bare, tokenizer=known)
    with torch.no_grad():
        ids = torch.tensor([[5, 3]])
        assert torch.allclose(target.model(ids).logits, model(ids).logits, atol=1e-5)


def test_the_package_is_an_extra(file, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda p: None if p == "gguf" else find(p))
    with pytest.raises(specwb.SpecwbError, match=r"GGUF file needs gguf, .* extra 'gguf' brings"):
        specwb.load(file)
    assert module.names(file.parent) == ["tiny.gguf"]
