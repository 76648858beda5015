"""Conversations: what is taken over from one turn to the next is what a fresh start computes."""

from __future__ import annotations

import threading

import pytest
import tiny
import torch

import specwb
from specwb.drafters.past import Past
from specwb.models import target as target_module

TEMPLATE = (
    "{% for m in messages %}{{ 'w1 ' if m['role'] == 'user' else 'w2 ' }}{{ m['content'] }} "
    "{% endfor %}{% if add_generation_prompt %}w2 {% endif %}"
)
METHODS = {
    "ar": {},
    "sps": {"gamma": 3},
    "mcsd": {"tree": (2, 2)},
    "eagle": {"tree": (2, 1)},
    "medusa": {"tree": (2, 1)},
    "kangaroo": {"gamma": 3},
    "pld": {"gamma": 3},
}


@pytest.fixture(scope="module")
def pair() -> tuple[specwb.Target, specwb.Target]:
    words = tiny.tokenizer(tiny.WORDS)
    words.chat_template = TEMPLATE
    model = tiny.build("llama", seed=3, dtype=tiny.EXACT)
    return specwb.load(model, tokenizer=words), specwb.load(tiny.perturbed(model, 0.02))


def made(name: str, pair) -> specwb.Method:
    own = dict(METHODS[name])
    if name in ("sps", "mcsd"):
        own["draft"] = pair[1]
    if name in ("eagle", "medusa", "kangaroo"):
        own["head"] = tiny.trained(name, pair[0], steps=1)
    return specwb.method(name, pair[0], **own)


@pytest.mark.parametrize("name", METHODS)
def test_a_turn_is_what_a_fresh_start_decodes(pair, name):
    """Of rows of different lengths, that ended at different places, step for step."""
    target, method = pair[0], made(name, pair)
    how = {"max_new_tokens": 12, "temperature": 0.7, "eos": [7, 8, 9]}
    talk = specwb.Conversation(target, method, system="w40 w41 w42", rows=2, **how)
    for number, turn in enumerate((["w5 w6", "w20"], ["w9", "w30 w31 w32"], ["w4 w4", "w3"])):
        before = [list(row) for row in talk.messages]
        out = talk.say(turn, seed=[number, 100 + number])
        asked = [[*row, {"role": "user", "content": t}] for row, t in zip(before, turn)]
        fresh = specwb.decode(target, asked, method, seed=[number, 100 + number], **how)
        assert out.tokens == fresh.tokens
        assert out.accepted_lengths == fresh.accepted_lengths
        assert (talk.past.reused >= 4) == (number > 0)
        assert out.texts[1].startswith(" w")
        content = out.texts[1].removeprefix(" ")
        assert talk.messages[1][-1] == {"role": "assistant", "content": content}


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("name", METHODS)
def test_turns_that_a_text_ends(pair, name, temperature):
    """A step may write beyond the text that ends a row: what is behind it must not be taken over
    into the next turn."""
    target, method = pair[0], made(name, pair)
    how = {"max_new_tokens": 16, "temperature": temperature, "until": ["w2", "7", "w40 w4"]}
    talk = specwb.Conversation(target, method, rows=3, **how)
    cut = 0
    for number, turn in enumerate((["w5 w6", "w20", "w8"], ["w9", "w30 w31", "w3"], ["w4"] * 3)):
        seeds = [number, 100 + number, 200 + number]
        before = [list(row) for row in talk.messages]
        out = talk.say(turn, seed=seeds)
        asked = [[*row, {"role": "user", "content": t}] for row, t in zip(before, turn)]
        fresh = specwb.decode(target, asked, method, seed=seeds, **how)
        assert out.tokens == fresh.tokens
        assert out.accepted_lengths == fresh.accepted_lengths
        plain = specwb.decode(target, asked, "ar", seed=seeds, **how)
        assert temperature or out.tokens == plain.tokens
        assert (talk.past.reused > 0) == (number > 0)
        cut += sum(len(row) < 16 for row in out.tokens)
    assert cut >= 4


def test_only_what_is_new_goes_through_the_layers(pair, monkeypatch):
    target, method = pair[0], made("sps", pair)
    fed: list[tuple[int, int]] = []
    for model in pair:
        run = model.backbone.run

        def counted(x, place, *rest, run=run, **more):
            fed.append((int(place.positions.min()), x.shape[1]))
            return run(x, place, *rest, **more)

        monkeypatch.setattr(model.backbone, "run", counted)
    past, prompt = Past(), list(range(10, 40))
    first = specwb.decode(target, prompt, method, max_new_tokens=8, past=past)
    text = prompt + first.tokens[0]
    assert fed[:2] == [(0, 29), (0, 29)]
    fed.clear()
    again = specwb.decode(target, [*text, 5, 6], method, max_new_tokens=8, past=past)
    # the target knows all but its last token, the draft model all but two
    assert fed[:2] == [(len(text) - 1, 2), (len(text) - 2, 3)]
    assert past.reused == len(text) - 1
    assert again.tokens == specwb.decode(target, [*text, 5, 6], method, max_new_tokens=8).tokens
    fed.clear()
    specwb.decode(target, [*text[:20], 5, 6], method, max_new_tokens=8, past=past)
    assert fed[:2] == [(20, 1), (20, 1)]
    fed.clear()
    specwb.decode(target, [prompt, prompt], method, max_new_tokens=2, past=past)
    assert fed[0] == (0, 29), "of other rows nothing is known"


@pytest.mark.parametrize("name", ["sps", "eagle"])
def test_long_prompts_go_through_the_layers_in_parts(pair, monkeypatch, name):
    target, method = pair[0], made(name, pair)
    prompts = [list(range(3, 60)), [9, 8, 7]]
    whole = specwb.decode(target, prompts, method, max_new_tokens=8)
    monkeypatch.setattr(target_module, "CHUNK", 16)
    monkeypatch.setattr(target_module, "LEAST", 4)
    for cells, first in ((2**25, 16), (2 * 16 * 32, 16), (2 * 8 * 16, 8), (1, 4)):
        monkeypatch.setattr(target_module, "CELLS", cells)
        assert next(target_module._parts(0, 56, 2)) == (0, first)
        parts = specwb.decode(target, prompts, method, max_new_tokens=8)
        assert parts.tokens == whole.tokens
        assert parts.accepted_lengths == whole.accepted_lengths


def test_parts_of_a_prompt_are_as_long_as_masks_may_be():
    parts = list(target_module._parts(100, 32_768, 1))
    assert [first for first, _ in parts[1:]] == [last for _, last in parts[:-1]]
    assert (parts[0][0], parts[-1][1]) == (100, 32_768)
    sizes = [last - first for first, last in parts]
    assert max(sizes) == target_module.CHUNK
    assert all((last - first) * last <= target_module.CELLS for first, last in parts)
    assert min(sizes[:-1]) >= target_module.LEAST


def test_a_long_prompt_shows_a_bar(pair, monkeypatch):
    """Where there is a terminal; a short one shows none."""
    shown = []

    class Bar:
        def __init__(self, **settings):
            self.settings, self.done = settings, settings["initial"]
            shown.append(self)

        def update(self, n):
            self.done += n

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(target_module, "tqdm", Bar)
    monkeypatch.setattr(target_module, "CHUNK", 16)
    for length, disable in ((12, True), (40, None)):
        specwb.decode(pair[0], [list(range(length))], "ar", max_new_tokens=1)
        assert shown[-1].settings["disable"] is disable
        assert shown[-1].done == shown[-1].settings["total"] == length - 1


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


def test_a_turn_that_fails_leaves_the_conversation_as_it_was(pair):
    talk = specwb.Conversation(pair[0], "pld", rows=2, gamma=2, max_new_tokens=4)
    talk.say(["w3", "w4"])
    messages = [list(row) for row in talk.messages]
    with pytest.raises(specwb.SpecwbError, match=r"a turn must be 2 text\(s\)"):
        talk.say("w3")
    with pytest.raises(specwb.PromptError, match="exceeds the context"):
        talk.say(["w3", "w4"], max_new_tokens=10**6)
    assert talk.messages == messages
    assert torch.is_inference_mode_enabled() is False


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be an integer >= 1, .*; got -1"),
        ({"max_new_tokens": 10**6}, "exceeds the context"),
        ({"system": 3}, "system must be a text that is not empty, got 3"),
        ({"system": ""}, "system must be a text that is not empty, got ''"),
        ({"seed": [1, 2]}, "seed has 2 entries for 1 prompts"),
        ({"seed": [1, "x"], "rows": 2}, "seed must be integers of 64 bits, got 'x'"),
        ({"rows": 0}, "rows must be an integer >= 1, got 0"),
        ({"temperature": -1}, "temperature must be >= 0 and finite, got -1"),
        ({"until": 3}, "until= must be a text, texts or a function, got 3"),
        ({"eos": 10**6}, "eos must be token ids in 0"),
        ({"gama": 3}, "pld has no option 'gama'"),
        ({"past": Past()}, "pld has no option 'past'"),
    ],
)
def test_settings_that_no_turn_could_have_are_refused_at_once(pair, settings, named):
    with pytest.raises(specwb.SpecwbError, match=named):
        specwb.Conversation(pair[0], "pld", **settings)


def test_a_conversation_is_with_a_target_and_its_turns_are_texts(pair):
    with pytest.raises(specwb.SpecwbError, match=r"must come from specwb\.load.*, got str 'lab'"):
        specwb.Conversation("lab", "pld")
    talk = specwb.Conversation(pair[0], "pld")
    for turn in (None, 3, [3], ["w1", "w2"], [], b"w1"):
        with pytest.raises(specwb.SpecwbError, match="a turn must be"):
            talk.say(turn)
    with pytest.raises(specwb.SpecwbError, match="a turn must be a text that is not empty, got ''"):
        talk.say("")
    assert talk.messages == [[]]


def test_a_generator_is_drawn_from_by_turns_alone(pair):
    generator = torch.Generator().manual_seed(5)
    talk = specwb.Conversation(pair[0], "pld", seed=generator, temperature=1.0, max_new_tokens=8)
    first = talk.say("w3").tokens
    same = torch.Generator().manual_seed(5)
    asked = [[{"role": "user", "content": "w3"}]]
    how = {"temperature": 1.0, "max_new_tokens": 8}
    assert specwb.decode(pair[0], asked, "pld", seed=same, **how).tokens == first


def test_every_setting_of_decode_is_one_of_a_conversation(pair):
    talk = specwb.Conversation(pair[0], "sps", draft=pair[1], layout="batch", max_new_tokens=4)
    assert talk.settings == {"layout": "batch", "max_new_tokens": 4}
    assert talk.say("w3").tokens
