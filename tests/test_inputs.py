"""Prompts in all their forms, numbers of other libraries, and input that is neither."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest
import tiny
import torch

import specwb
from specwb import PromptError
from specwb.models.prompts import read_prompts

EACH = "{% for m in messages %}w1 {{ m.content }} {% endfor %}"
TEMPLATE = EACH + "{% if add_generation_prompt %}w2{% endif %}"
CHAT = [{"role": "user", "content": "w7 w8"}]


@pytest.fixture
def target() -> specwb.Target:
    words = tiny.tokenizer(tiny.WORDS)
    words.chat_template, words.pad_token = TEMPLATE, "w0"
    return specwb.load(tiny.target().model, tokenizer=words)


def test_what_a_tokenizer_returns_is_its_ids_and_not_the_names_of_its_parts(target):
    """A BatchEncoding iterates over its keys: decoded as a batch, it was two texts."""
    words = target.tokenizer
    one, chat = words("w3 w4"), words.apply_chat_template(CHAT, add_generation_prompt=True)
    assert read_prompts(target, one) == ([[3, 4]], True)
    assert read_prompts(target, chat) == ([[1, 7, 8, 2]], True)
    assert read_prompts(target, dict(chat)) == ([[1, 7, 8, 2]], True)
    assert read_prompts(target, [one, words("w5")]) == ([[3, 4], [5]], False)
    output = specwb.decode(target, chat, "ar", max_new_tokens=3)
    wanted = specwb.decode(target, [1, 7, 8, 2], "ar", max_new_tokens=3)
    assert output.tokens == wanted.tokens
    assert isinstance(output.text, str)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", [None, "pt", "np"])
def test_padding_is_dropped_on_either_side(target, side, kind):
    target.tokenizer.padding_side = side
    padded = target.tokenizer(["w3 w4 w0", "w5"], padding=True, return_tensors=kind)
    assert len(padded["input_ids"][1]) == 3
    assert read_prompts(target, padded) == ([[3, 4, 0], [5]], False)


def test_chats_go_through_the_template(target):
    unfinished = [*CHAT, {"role": "assistant", "content": "w9"}]
    assert read_prompts(target, CHAT) == ([[1, 7, 8, 2]], True)
    assert read_prompts(target, [CHAT, "w3"]) == ([[1, 7, 8, 2], [3]], False)
    assert read_prompts(target, unfinished) == ([[1, 7, 8, 1, 9]], True)  # continued


@pytest.mark.parametrize(
    "prompts",
    [
        np.array([3, 4]),
        torch.tensor([3, 4]),
        torch.tensor([3, 4], dtype=torch.uint8),
        (3, 4),
        [np.int64(3), torch.tensor(4)],
        range(3, 5),
    ],
    ids=["array", "tensor", "bytes of a tensor", "tuple", "numbers", "range"],
)
def test_ids_of_other_libraries(target, prompts):
    assert read_prompts(target, prompts) == ([[3, 4]], True)
    assert read_prompts(target, [prompts, [5]]) == ([[3, 4], [5]], False)
    (row,), _ = read_prompts(target, prompts)
    assert all(type(x) is int for x in row)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([1.7, 2.9], "the prompt: token ids are integers, got float 1.7"),
        (torch.tensor([1.0]), "got float 1.0"),
        ([True, False], "got bool True"),
        (torch.tensor([True]), "got bool True"),
        ([["1", "2"]], "got str '1'"),
        ([3, "w3"], "got str 'w3'"),
        ([[3], 4], "prompt 1 must be text, token ids or messages, got 4"),
        (b"w1", "prompts must be .* got bytes"),
        ([b"w1"], "the prompt must be .* got b'w1'"),
        (5, "prompts must be .* got int"),
        (iter([1]), "prompts must be .* got list_iterator"),
        ("w1\udcff", "not valid Unicode .* character 2"),
        (CHAT[0], "a chat is a list of messages"),
        ({"ids": [1]}, "a dict without 'input_ids', its keys: 'ids'"),
        ([*CHAT, {"role": "user"}], "every message .* got {'role': 'user'}"),
        ({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 0, 1]]}, "row 0 of attention_mask"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1, 2]]}, "row 0 of attention_mask"),
        ({"input_ids": [1, 2], "attention_mask": [1]}, "row 0 of attention_mask"),
        ({"input_ids": [[1], [2]], "attention_mask": [[1]]}, "has 1 rows, input_ids 2"),
        ({"input_ids": [[1]], "attention_mask": [[0]]}, "the prompt is empty"),
        ({"input_ids": []}, "the prompt is empty"),
        (["w1 w2", ""], "prompt 1 is empty"),
    ],
)
def test_what_is_no_prompt(target, prompts, message):
    with pytest.raises(PromptError, match=message):
        specwb.decode(target, prompts)


def test_templates_that_are_missing_or_fail(target):
    target.tokenizer.chat_template = "{{ raise_exception('no such role') }}"
    with pytest.raises(PromptError, match="chat template cannot be applied: no such role"):
        specwb.decode(target, CHAT)
    target.tokenizer.chat_template = "{% for %}"
    with pytest.raises(PromptError, match="chat template cannot be applied"):
        specwb.decode(target, CHAT)
    target.tokenizer.chat_template = None
    with pytest.raises(PromptError, match="no target has a chat template"):
        specwb.decode(target, CHAT)
    with pytest.raises(PromptError, match="is a chat, but no tokenizer was given"):
        specwb.decode(tiny.target(), CHAT)


def test_numbers_of_other_libraries():
    settings = {
        "max_new_tokens": 4,
        "temperature": 0.5,
        "top_k": 9,
        "top_p": 0.5,
        "seed": 3,
        "eos": 5,
    }
    right = specwb.decode(tiny.target(), [1, 2], "ar", **settings).tokens
    for convert in (np.asarray, torch.tensor, lambda x: np.asarray(x)[()]):
        converted = {name: convert(value) for name, value in settings.items()}
        assert specwb.decode(tiny.target(), [1, 2], "ar", **converted).tokens == right
    by_row = {"max_new_tokens": [4, 2], "seed": [3, 4], "eos": [5, 6]}
    right = specwb.decode(tiny.target(), [[1], [2]], "ar", temperature=1, **by_row).tokens
    for convert in (np.asarray, torch.tensor, tuple):
        converted = {name: convert(value) for name, value in by_row.items()}
        out = specwb.decode(tiny.target(), [[1], [2]], "ar", temperature=1, **converted)
        assert out.tokens == right
    assert specwb.method("pld", tiny.target(), gamma=np.int64(3)).key == "pld:gamma=3"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": "1"}, "temperature must be a number, got '1'"),
        ({"temperature": True}, "temperature must be a number, got True"),
        ({"temperature": None}, "temperature must be a number, got None"),
        ({"top_p": "0.5"}, "top_p must be a number, got '0.5'"),
        ({"top_k": 2.0}, "top_k must be an integer >= 0 .* got 2.0"),
        ({"top_k": True}, "top_k must be an integer >= 0 .* got True"),
        ({"seed": 1.5}, "seed must be an integer of 64 bits, got 1.5"),
        ({"seed": [1.5]}, "seed must be integers of 64 bits, got 1.5"),
        ({"seed": 2**64}, "seed must be an integer of 64 bits"),
        ({"seed": "7"}, "seed must be an integer of 64 bits, got '7'"),
        ({"eos": -5}, r"eos must be token ids in 0\.\.63, got -5"),
        ({"eos": [1, 64]}, r"eos must be token ids in 0\.\.63, got 64"),
        ({"eos": [1.5]}, r"eos must be token ids in 0\.\.63, got 1.5"),
        ({"max_new_tokens": 2.5}, "max_new_tokens must be an integer >= 1.* got 2.5"),
        ({"max_new_tokens": "5"}, "max_new_tokens must be an integer >= 1.* got '5'"),
        ({"max_new_tokens": True}, "max_new_tokens must be an integer >= 1.* got True"),
        ({"seed": [1, 2]}, "seed has 2 entries for 1 prompts"),
        ({"layout": "row"}, "layout must be .*, got 'row'"),
        ({"until": 3}, "until= must be a text, texts or a function, got 3"),
        ({"until": [3]}, "until= must be a text, texts or a function, got 3 among them"),
        ({"until": ["a", ""]}, "until= has an empty text, which would end every answer at once"),
        ({"until": b"w1"}, "until= must be a text, texts or a function, got b'w1'"),
        ({"until": "w1"}, "texts of until= need a tokenizer, the target has none"),
        ({"graphs": True}, "graphs=True needs a CUDA device"),
        ({"on_tokens": 3}, "on_tokens must be a function, got 3"),
    ],
)
def test_settings_that_are_none(settings, message):
    for call in (specwb.decode, specwb.rounds):
        if settings.keys() <= inspect.signature(call).parameters.keys():
            with pytest.raises(ValueError, match=message):
                call(tiny.target(), [1, 2], **settings)


def test_an_eos_outside_the_vocabulary_is_refused(target):
    """A config may name one; nothing would ever stop there."""
    target.eos = [2, 64]
    message = r"eos of 'LlamaForCausalLM' .* must be token ids in 0\.\.63, got 64"
    with pytest.raises(ValueError, match=message):
        specwb.rounds(target, [1])
    assert specwb.decode(target, [1], max_new_tokens=2, eos=()).tokens


def test_decode_takes_what_rounds_takes():
    """They have the same settings, by name and with the same defaults."""
    mine, theirs = (inspect.signature(f).parameters for f in (specwb.decode, specwb.rounds))
    assert set(theirs) <= set(mine)
    assert all(mine[name].default == setting.default for name, setting in theirs.items())


def test_a_target_is_pickled_with_its_weights_once(target):
    """Fused weights share memory: each of them, pickled by itself, would bring all of it."""
    right = specwb.decode(target, [1, 2], "sps", draft=tiny.draft(), max_new_tokens=6).tokens
    specwb.method("sps", target, draft=tiny.draft())
    stored = pickle.dumps(target)
    assert len(stored) < 1.5 * sum(p.nbytes for p in target.model.parameters()) + 20000
    for other in (pickle.loads(stored), copy.deepcopy(target)):
        assert other.model is not target.model
        got = specwb.decode(other, [1, 2], "sps", draft=tiny.draft(), max_new_tokens=6)
        assert got.tokens == right
        # whoever moves or changes a weight of the model changes what is run
        fused = other.backbone.layers[0].qkv.untyped_storage().data_ptr()
        q = other.model.model.layers[0].self_attn.q_proj.weight
        assert q.untyped_storage().data_ptr() == fused
    assert repr(other) == "Target('LlamaForCausalLM': llama, 3 layers, 64 tokens, float32 on cpu)"
    assert copy.copy(target).model is target.model
