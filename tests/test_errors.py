"""Prompts and numbers in all their forms; every mistake is refused before any work, by an exception
of its own kind that names what was given."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import tiny
import torch

import specwb
from specwb import ArgumentError, LoadError, MethodError, PromptError, RuleMismatch
from specwb.core.stops import StopError
from specwb.models.prompts import read_prompts

EACH = "{% for m in messages %}w1 {{ m.content }} {% endfor %}"
TEMPLATE = EACH + "{% if add_generation_prompt %}w2{% endif %}"
CHAT = [{"role": "user", "content": "w7 w8"}]


@pytest.fixture
def target() -> specwb.Target:
    """A target with a tokenizer and a chat template."""
    words = tiny.tokenizer()
    words.chat_template, words.pad_token = TEMPLATE, "w0"
    return specwb.load(tiny.target().model, tokenizer=words)


# ---------------------------------------------------------------------------------------- refusals

METHODS = [
    ("nope", {}, "unknown method 'nope'; known: ar, sps, mcsd"),
    ("sps", {"gama": 3}, "sps has no option 'gama'; its options: draft, gamma, schedule, "),
    ("sps:gamma", {}, "option 'gamma' must be written name=value"),
    ("sps:gamma=2", {"gamma": 2}, "option 'gamma' is given twice"),
    ("sps", {"rule": "nope"}, "unknown rule 'nope'; known: rejection, rrs, rrsw, "),
    ("sps:gamma=0", {}, "gamma must be an integer >= 1, got 0"),
    # no option asks for more memory or time than there is before a tree's size is looked at
    ("pld:ngram=999999999", {}, "pld: ngram must be an integer in 1..4096, got 999999999"),
    ("mcsd:tree=4-0-2", {}, "mcsd: .* got 4-0-2"),
    ("mcsd", {"tree": None}, "mcsd: tree must be children per node by level, .* got None"),
    ("mcsd:tree=65", {}, "mcsd: 65 children per node but the vocabulary has 64 tokens"),
    ("mcsd:tree=" + "-".join("2" * 32), {}, "mcsd: a tree has at most 4096 nodes"),
]
RULES = [
    ("mcsd:draw=top,rule=rrsw", "is lossless for .*WITHOUT_REPLACEMENT .* are TOP_AND_SAMPLE"),
    ("mcsd:rule=rrs", "'rrs' is lossless for IID .* are WITHOUT_REPLACEMENT .*; .* them: rrsw, "),
    ("mcsd:rule=rejection", "decides about one candidate a node, this tree has up to 4; .* rrsw,"),
    ("ar:rule=rrs", "rule 'rrs' is lossless for IID .* are POINT"),
]
EXACT_TEXT = [
    ("sps:rule=block", "sps:rule=block names the rule 'block'; with exact_text tokens are kept"),
    ("mcsd_ti:roots=2,lossy=true,stop=none", "mcsd_ti:roots=2,lossy=true,stop=none is LOSSY; with"),
]
PROMPTS = [
    ([], "no prompt was given"),
    ([[]], "the prompt is empty"),
    ([[1], []], "prompt 1 is empty"),
    (["w1 w2", ""], "prompt 1 is empty"),
    ([1, 64], r"the prompt has token ids outside 0\.\.63"),
    ([1.7, 2.9], "the prompt: token ids are integers, got float 1.7"),
    ([True, False], "got bool True"),
    ([["1", "2"]], "got str '1'"),
    ([[3], 4], "prompt 1 must be text, token ids or messages, got 4"),
    ([b"w1"], "the prompt must be .* got b'w1'"),
    (5, "prompts must be .* got int"),
    ("w1\udcff", "not valid Unicode .* character 2"),
    (CHAT[0], "a chat is a list of messages"),
    ({"ids": [1]}, "a dict without 'input_ids', its keys: 'ids'"),
    ([*CHAT, {"role": "user"}], "every message .* got {'role': 'user'}"),
    ({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 0, 1]]}, "row 0 of attention_mask"),
    ({"input_ids": [[1], [2]], "attention_mask": [[1]]}, "has 1 rows, input_ids 2"),
    ({"input_ids": []}, "the prompt is empty"),
]
SETTINGS = [
    ({"max_new_tokens": 0}, PromptError, "max_new_tokens must be an integer >= 1.*got 0"),
    ({"max_new_tokens": [3, 4]}, PromptError, r"max_new_tokens .* got \[3, 4\]"),
    (
        {"max_new_tokens": 512},
        PromptError,
        r"the prompt has 2 tokens; with max_new_tokens=512 .* \(512\)",
    ),
    ({"temperature": "1"}, ArgumentError, "temperature must be a number, got '1'"),
    ({"top_p": "0.5"}, ArgumentError, "top_p must be a number, got '0.5'"),
    ({"top_k": True}, ArgumentError, "top_k must be an integer >= 0 .* got True"),
    ({"seed": 1.5}, ArgumentError, "seed must be an integer of 64 bits, got 1.5"),
    ({"seed": 2**64}, ArgumentError, "seed must be an integer of 64 bits"),
    ({"eos": [1, 64]}, ArgumentError, r"eos must be token ids in 0\.\.63, got 64"),
    ({"max_new_tokens": 2.5}, PromptError, "max_new_tokens must be an integer >= 1.* got 2.5"),
    ({"seed": [1, 2]}, ArgumentError, "seed has 2 entries for 1 prompts"),
    ({"layout": "row"}, ArgumentError, "layout must be .*, got 'row'"),
    ({"until": [3]}, StopError, "until= must be a text or texts, got 3 among them"),
    (
        {"until": ["a", ""]},
        StopError,
        "until= has an empty text, which would end every answer at once",
    ),
    ({"graphs": True}, ArgumentError, "graphs=True needs a CUDA device"),
    ({"on_tokens": 3}, ArgumentError, "on_tokens must be a function, got 3"),
]


@pytest.mark.parametrize(("spec", "options", "named"), METHODS)
def test_wrong_methods_and_options(spec, options, named):
    own = {"draft": tiny.draft()} if spec[:3] in ("sps", "mcs") else {}
    with pytest.raises(MethodError, match=named):
        specwb.decode(tiny.target(), [1], spec, **own, **options)


@pytest.mark.parametrize(("spec", "named"), RULES)
def test_a_rule_that_would_not_be_lossless_is_refused(spec, named):
    """At T = 0 too, where it would not show."""
    own = {} if spec.startswith("ar") else {"draft": tiny.draft()}
    with pytest.raises(RuleMismatch, match=named):
        specwb.decode(tiny.target(), [1], spec, **own)


@pytest.mark.parametrize(("spec", "message"), EXACT_TEXT)
def test_what_exact_text_refuses(target, spec, message):
    method = specwb.method(spec, target, draft=tiny.draft())
    with pytest.raises(RuleMismatch, match=message):
        specwb.decode(target, [[1, 2]], method, temperature=1.0, exact_text=True)
    # at T = 0 there is no noise
    specwb.decode(target, [[1, 2]], method, exact_text=True, max_new_tokens=2)


@pytest.mark.parametrize(("prompts", "message"), PROMPTS)
def test_what_is_no_prompt(target, prompts, message):
    with pytest.raises(PromptError, match=message):
        specwb.decode(target, prompts)


@pytest.mark.parametrize(("settings", "kind", "message"), SETTINGS)
def test_settings_that_are_none(target, settings, kind, message):
    with pytest.raises(kind, match=message):
        specwb.decode(target, [1, 2], **settings)


def test_what_the_target_or_the_method_lacks(target):
    bare = tiny.target()
    with pytest.raises(PromptError, match="loaded without a tokenizer"):
        specwb.decode(bare, "text")
    with pytest.raises(StopError, match="texts of until= need a tokenizer, the target has none"):
        specwb.decode(bare, [1], until="w1")
    with pytest.raises(ArgumentError, match=r"options gamma belong to specwb\.method"):
        specwb.decode(bare, [1], specwb.method("pld", bare), gamma=2)
    target.eos = [2, 64]  # a config may name one; nothing would ever stop there
    message = r"eos of 'LlamaForCausalLM' .* must be token ids in 0\.\.63, got 64"
    with pytest.raises(ArgumentError, match=message):
        specwb.rounds(target, [1])
    assert specwb.decode(target, [1], max_new_tokens=2, eos=()).tokens


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


# --------------------------------------------------------------------------------------- registry


class Repeat(specwb.Drafter):
    """Guesses that the pending token comes again."""

    def __init__(self, times: int = 2) -> None:
        self.tree = specwb.Tree.chain(times)

    def propose(self, state, noise):
        return self.candidates(
            state, state.tokens.gather(1, (state.length - 1)[:, None]).expand(-1, self.tree.D)
        )


def test_the_registry(monkeypatch):
    monkeypatch.setattr("specwb.engine.methods.METHODS", dict(specwb.METHODS))
    specwb.register("repeat", Repeat, paper="none", bibtex="@misc{repeat}")
    assert specwb.decode(tiny.target(), [5], "repeat:times=3", max_new_tokens=10).tokens
    assert specwb.citation("repeat") == "@misc{repeat}"
    assert specwb.citation("mcsd").startswith("@article{yang2024multi")
    again = r"'repeat' is registered already; specwb.unregister\('repeat'\)"
    for key, drafter, message in (
        ("repeat", Repeat, again),
        ("two words", Repeat, "must be a plain name"),
        ("a:b", Repeat, "must be a plain name"),
        ("1st", Repeat, "must be a plain name"),
        ("x", Repeat(), "register the drafter's class"),
    ):
        with pytest.raises(MethodError, match=message):
            specwb.register(key, drafter)
    specwb.unregister("repeat")
    specwb.register("repeat", lambda target, *, head: Repeat())
    with pytest.raises(MethodError, match=r"repeat: .*'head'"):
        specwb.method("repeat", tiny.target())
    specwb.register("bare", type("Bare", (specwb.Drafter,), {}))
    with pytest.raises(MethodError, match="bare: its drafter has no tree"):
        specwb.method("bare", tiny.target())
    with pytest.raises(MethodError, match="unknown method 'nope'"):
        specwb.citation("sps", "nope")


def test_the_same_option_as_text_and_as_keyword_are_the_same_method():
    pair = {"target": tiny.target(), "draft": tiny.draft()}
    text = specwb.method("mcsd:tree=3-2,draw=with,rule=rrs", **pair)
    rule = specwb.rules.RRS
    keyword = specwb.method("mcsd", **pair, tree=(3, 2), draw="with", rule=rule)
    assert text.drafter.tree.host == keyword.drafter.tree.host == specwb.Tree.branching(3, 2).host
    assert text.drafter.draw == keyword.drafter.draw == "with"
    assert type(text.rule) is type(keyword.rule) is rule
    assert text.key == keyword.key == "mcsd:tree=3-2,draw=with,rule=rrs"


# ------------------------------------------------------------------------------- target and draft


def test_padded_vocabularies_are_told_apart_from_different_ones():
    """What drafting over padding does is in tests/models/test_padded_vocabularies.py."""
    target = specwb.load(tiny.target().model, tokenizer=tiny.tokenizer(tiny.WORDS[:60]))
    build = partial(tiny.build, "llama", vocab_size=65)
    specwb.method("mcsd", target, draft=specwb.load(build(), tokenizer=target.tokenizer))
    more = specwb.load(build(), tokenizer=tiny.tokenizer([*tiny.WORDS, "w64"]))
    with pytest.raises(LoadError, match="65, and more than unused rows differ"):
        specwb.method("mcsd", target, draft=more)


def test_tokenizers_that_disagree():
    """The same number of tokens, two of them exchanged: ids would be verified as if they meant the
    same."""
    target = specwb.load(tiny.target().model, tokenizer=tiny.tokenizer())
    exchanged = [*tiny.WORDS[:7], "w8", "w7", *tiny.WORDS[9:]]
    other = specwb.load(tiny.draft().model, tokenizer=tiny.tokenizer(exchanged))
    with pytest.raises(
        LoadError, match=r"tokenizer mismatch: 'w[78]' is id [78] for target .* and [78] for draft"
    ):
        specwb.method("sps", target, draft=other)
    same = specwb.load(tiny.draft().model, tokenizer=tiny.tokenizer())
    assert specwb.decode(target, "w3 w4", "sps", draft=same, max_new_tokens=3).text.startswith(" w")


# --------------------------------------------------------------------------- prompts and numbers


def test_the_whole_context_can_be_used():
    """The last token fits exactly, for the deepest draft too; a slot more is what the test above
    refuses."""
    target = tiny.target()
    prompt = [i % 64 for i in range(500)]
    out = specwb.decode(target, [prompt], "sps", draft=tiny.draft(), max_new_tokens=12)
    assert out.tokens == specwb.decode(target, [prompt], "ar", max_new_tokens=12).tokens
    assert len(out.tokens[0]) == 12


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
def test_padding_is_dropped_on_either_side(target, side):
    target.tokenizer.padding_side = side
    padded = target.tokenizer(["w3 w4 w0", "w5"], padding=True, return_tensors="pt")
    assert len(padded["input_ids"][1]) == 3
    assert read_prompts(target, padded) == ([[3, 4, 0], [5]], False)


def test_chats_go_through_the_template(target):
    unfinished = [*CHAT, {"role": "assistant", "content": "w9"}]
    assert read_prompts(target, CHAT) == ([[1, 7, 8, 2]], True)
    assert read_prompts(target, [CHAT, "w3"]) == ([[1, 7, 8, 2], [3]], False)
    assert read_prompts(target, unfinished) == ([[1, 7, 8, 1, 9]], True)  # continued


@pytest.mark.parametrize(
    "prompts",
    [np.array([3, 4]), torch.tensor([3, 4], dtype=torch.uint8), [np.int64(3), torch.tensor(4)]],
    ids=["array", "tensor", "numbers"],
)
def test_ids_of_other_libraries(target, prompts):
    assert read_prompts(target, prompts) == ([[3, 4]], True)
    assert read_prompts(target, [prompts, [5]]) == ([[3, 4], [5]], False)
    (row,), _ = read_prompts(target, prompts)
    assert all(type(x) is int for x in row)


def test_numbers_of_other_libraries():
    settings = {"max_new_tokens": 4, "temperature": 0.5, "top_k": 9, "top_p": 0.5, "seed": 3}
    right = specwb.decode(tiny.target(), [1, 2], "ar", **settings).tokens
    for convert in (torch.tensor, lambda x: np.asarray(x)[()]):
        converted = {name: convert(value) for name, value in settings.items()}
        assert specwb.decode(tiny.target(), [1, 2], "ar", **converted).tokens == right
    by_row = {"max_new_tokens": [4, 2], "seed": [3, 4], "eos": [5, 6]}
    right = specwb.decode(tiny.target(), [[1], [2]], "ar", temperature=1, **by_row).tokens
    converted = {name: torch.tensor(value) for name, value in by_row.items()}
    out = specwb.decode(tiny.target(), [[1], [2]], "ar", temperature=1, **converted)
    assert out.tokens == right
