"""A model as Vicuna is published: a config, weights in two ``.bin`` parts, and of the tokenizer
nothing but sentencepiece's ``tokenizer.model``; no chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch

import specwb
from specwb.models.prompts import token_rows

sentencepiece = pytest.importorskip("sentencepiece")
pytest.importorskip("google.protobuf")
TEXT = "the cat sat on the mat . a dog ran in the park , and the cat saw it : USER ASSISTANT A chat"
CHAT = [
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "sat"},
    {"role": "user", "content": "the mat"},
]


def sentences(folder: Path, vocabulary: int = 320) -> int:
    """Puts a ``tokenizer.model`` of Llama's kind into a folder: bytes, no unknown tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    how = {"model_type": "bpe", "byte_fallback": True, "hard_vocab_limit": False}
    how |= {"normalization_rule_name": "identity", "minloglevel": 2, "vocab_size": vocabulary}
    text, prefix = iter([TEXT] * 20), str(folder / "tokenizer")
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=text, model_prefix=prefix, **how)
    (folder / "tokenizer.vocab").unlink()
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False}
    settings |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return processor.vocab_size()


@pytest.fixture(scope="module")
def vicuna(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "vicuna"
    size = sentences(folder)
    model = tiny.build("llama", seed=4, vocab_size=size, bos_token_id=1, eos_token_id=2)
    weights = model.state_dict()
    model.config.save_pretrained(folder)
    parts = {key: f"pytorch_model-0000{1 + i % 2}-of-2.bin" for i, key in enumerate(weights)}
    for part in set(parts.values()):
        torch.save({k: w for k, w in weights.items() if parts[k] == part}, folder / part)
    index = {"metadata": {}, "weight_map": parts}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


def test_a_folder_with_tokenizer_model_alone_loads_and_decodes(vicuna):
    target = specwb.load(vicuna)
    (ids,) = token_rows(target, "the cat sat")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(vicuna / "tokenizer.model"))
    assert ids == [1, *processor.encode("the cat sat")]
    assert target.tokenizer.decode(ids, skip_special_tokens=True) == "the cat sat"
    with torch.no_grad():
        wanted = target.model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    out = specwb.decode(target, "the cat sat", "pld", max_new_tokens=12)
    assert out.tokens == [wanted[0, len(ids) :].tolist()]


def test_a_chat_by_the_name_of_a_template(vicuna):
    with pytest.raises(specwb.PromptError, match="template="):
        token_rows(specwb.load(vicuna), CHAT)
    target = specwb.load(vicuna, template="vicuna")
    (ids,) = token_rows(target, CHAT)
    text = target.tokenizer.decode(ids)
    assert text.replace(" ", "").endswith("USER:thecatASSISTANT:sat</s>USER:thematASSISTANT:")
    assert ids.count(1) == 1
    assert ids.count(2) == 1
    (again,) = token_rows(target, [{"role": "system", "content": "A dog."}, *CHAT])
    assert "A dog. USER:" in target.tokenizer.decode(again)
