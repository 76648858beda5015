"""Models in GGUF files: a tiny one, written with gguf's own writer, beside the model it is of."""

from __future__ import annotations

import importlib.util
import multiprocessing
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from typer.testing import CliRunner

import specwb
from specwb.cli.main import app
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


def test_a_file_is_a_draft_model(file):
    target = specwb.load(file)
    out = specwb.decode(target, [5, 3, 8], "sps", draft=file, max_new_tokens=8)
    assert out.tokens == specwb.decode(target, [5, 3, 8], "ar", max_new_tokens=8).tokens
    assert out.mean_tokens_per_step > 2
    again = specwb.decode(target, [5, 3, 8], "sps", draft=str(file), max_new_tokens=8)
    assert again.tokens == out.tokens


@pytest.mark.parametrize(
    ("kind", "coarse"),
    [("Q4_1", True), ("Q8_0", True), ("BF16", True), ("F16", False), ("F32", False)],
)
def test_matrices_that_bfloat16_would_not_round_are_timed_in_it(
    kind, coarse, model, tmp_path, monkeypatch
):
    """Q8_0 too: it is what files of four bits have where rows are no multiple of 256."""
    asked = []
    monkeypatch.setattr(loading, "chosen", lambda model, *_: asked.append(1) or model)
    path = write(tmp_path / "m.gguf", model, kind=kind)
    target = specwb.load(path, device="cpu")
    assert bool(asked) is coarse
    assert target.dtype is torch.float32
    stored = target.model.state_dict()
    precision = {"Q4_1": 0.1, "Q8_0": 0.01, "BF16": 0.01, "F16": 1e-3, "F32": 0.0}[kind]
    for name, weight in model.state_dict().items():
        assert float((stored[name] - weight).abs().max()) <= precision * float(weight.abs().max())


def test_one_precise_matrix_keeps_a_file_in_float32():
    assert module.is_coarse({"matrices": ["BF16", "Q4_K", "Q6_K"]})
    for precise in ({"matrices": ["F16", "Q4_K"]}, {"matrices": []}, {}):
        assert not module.is_coarse(precise)


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_a_file_is_converted_once_for_its_content(model, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SPECWB_CACHE", str(tmp_path / "cache"))
    first = write(tmp_path / "a.gguf", model, kind="Q8_0")
    for path in (first, shutil.copy(first, tmp_path / "b.gguf"), first):
        target = specwb.load(path, device="cpu")
        assert target.sha256 == weights_hash(first)
        assert target.name == str(path)
    assert caplog.text.count("writing its weights") == 1
    (place,) = folders(tmp_path / "cache" / "gguf")
    assert place == f"{target.sha256[:16]}-float32"
    # further starts need neither the library's reader nor the file's package
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda p: None if p == "gguf" else find(p))
    half = specwb.load(first, device="cpu", dtype="bfloat16")
    assert half.dtype is torch.bfloat16
    assert folders(tmp_path / "cache" / "gguf") == [place]


def test_a_damaged_copy_is_named(model, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECWB_CACHE", str(tmp_path))
    path = write(tmp_path / "a.gguf", model)
    place = Path(specwb.load(path).folder)
    for file in sorted(place.iterdir()):
        content = file.read_bytes()
        for damage in (content[:-1], b"\0" + content[1:], None):
            file.unlink() if damage is None else file.write_bytes(damage)
            if file.name == "card.json" and damage == content[:-1]:
                continue  # its last byte is a line's end
            refused(str(place), path)
        file.write_bytes(content)
    shutil.rmtree(place)
    assert specwb.load(path).folder == place


def test_a_conversion_that_fails_leaves_nothing(model, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECWB_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "a.gguf", model)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
        refused("1.0 MiB free, the model takes", path)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_matrices", interrupted)
        with pytest.raises(KeyboardInterrupt):
            specwb.load(path)
    cache = tmp_path / "cache" / "gguf"
    assert folders(cache) == []
    sha256 = weights_hash(path)
    (cache / f"{sha256[:16]}-float32.1-abc.part").mkdir()  # of a process that was killed
    specwb.load(path)
    assert folders(cache) == [f"{sha256[:16]}-float32"]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECWB_CACHE", str(tmp_path / "file"))
    refused("cannot be written", path)


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_model_without_room_in_float32_is_converted_in_the_type_that_is_asked_for(
    model, tmp_path, monkeypatch
):
    monkeypatch.setenv("SPECWB_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "a.gguf", model)
    numbers = sum(weight.numel() for weight in model.parameters())
    with monkeypatch.context() as patch:
        patch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=3 * numbers))
        refused("does not fit", path)
        target = specwb.load(path, dtype="bfloat16")
    assert target.folder.name.endswith("-bfloat16")
    assert specwb.load(path, dtype="bfloat16").folder == target.folder
    assert specwb.load(path).folder.name.endswith("-float32")


def _load(path: Path, queue: Any) -> None:
    queue.put(str(specwb.load(path, device="cpu").folder))


def test_two_processes_convert_it_once(model, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECWB_CACHE", str(tmp_path))
    path, convert, calls = write(tmp_path / "a.gguf", model), module._convert, tmp_path / "calls"

    def counted(*arguments: Any) -> Path:
        with open(calls, "a") as log:
            log.write("x")
        return convert(*arguments)

    monkeypatch.setattr(module, "_convert", counted)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    both = [context.Process(target=_load, args=(path, queue)) for _ in range(2)]
    for process in both:
        process.start()
    assert len({queue.get(timeout=120) for _ in both}) == 1
    for process in both:
        process.join()
    assert calls.read_text() == "x"


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
    for place in (30, 60, 200):  # in the names of the keys
        cut.write_bytes(content[:place] + b"\xff" * 40 + content[place + 40 :])
        refused(f"{cut} is damaged, cut off or no GGUF file", cut)
    refused("rwkv6", write(tmp_path / "other.gguf", model, architecture="rwkv6"))
    key, word = (struct.pack("<Q", len(b)) + b for b in (b"general.architecture", b"llama"))
    cut.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<I", 8) + word)
    refused(f"{cut} is damaged or cut off: it has no room for the 6,607,343,616 weights", cut)
    cut.write_bytes(b"no GGUF")
    with pytest.raises(specwb.LoadError, match=f"^{re.escape(str(cut))} is damaged"):
        specwb.load(cut)  # named once
    part = tmp_path / "big-00001-of-00003.gguf"
    part.write_bytes(content + b"\0")  # another content than one that was converted
    refused("3 parts", part)


def test_the_librarys_bars_are_silent(file, capfd):
    specwb.load(file)
    assert capfd.readouterr().err == ""


def test_a_file_without_a_tokenizer(model, tmp_path):
    bare = write(tmp_path / "bare.gguf", model, words=False)
    refused("no tokenizer", bare)
    known = tiny.tokenizer([f"w{i}" for i in range(tiny.VOCABULARY)])
    target = specwb.load(bare, tokenizer=known)
    with torch.no_grad():
        ids = torch.tensor([[5, 3]])
        assert torch.allclose(target.model(ids).logits, model(ids).logits, atol=1e-5)


def test_the_package_is_an_extra(file, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECWB_CACHE", str(tmp_path))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda p: None if p == "gguf" else find(p))
    with pytest.raises(specwb.SpecwbError, match=r"GGUF file needs gguf, .* extra 'gguf' brings"):
        specwb.load(file)
    assert module.names(file.parent) == ["tiny.gguf"]
