"""``specwb.hf``: ``generate`` returns with it what it returns without it, for every method."""

from __future__ import annotations

import copy
import gc
import weakref
from functools import cache
from itertools import product

import pytest
import test_decoding_distribution as decoding
import tiny
import torch
from test_protocol import FIRST, LLAMA, Pair, cases, given
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    MaxLengthCriteria,
    MaxTimeCriteria,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import specwb
from specwb.engine import custom_generate as hf_module
from specwb.models.load import data_dir

PAD, NEW = 21, 16  # no text here has the token PAD


@cache
def model_of(pair: Pair) -> nn.Module:
    return copy.deepcopy(pair.target.model)


def custom_for(key: str, options: dict, pair: Pair):
    draft = {"draft": pair.draft} if "draft" in specwb.METHODS[key].options else {}
    return specwb.hf(key, **draft, **given(key, options, pair))


def batch(*prompts: list[int], pad: int = PAD) -> dict[str, Tensor]:
    """The prompts left-padded, with their mask."""
    width = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[pad] * (width - len(p)) + p for p in prompts]),
        "attention_mask": torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]),
    }


RAGGED = batch(*tiny.PROMPTS)
WIDTH = RAGGED["input_ids"].shape[1]


class StopAfter(StoppingCriteria):
    """Stops rows whose last token is one of ``tokens``."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = torch.tensor(tokens)

    def __call__(self, input_ids, scores, **_):
        return torch.isin(input_ids[:, -1], self.tokens)


class StopAfterWithEos(StopAfter):
    """A criterion that makes the library pad the rows."""

    eos_token_id = 5


class WholeText(StoppingCriteria):
    """Stops by a function of the whole text."""

    def __call__(self, input_ids, scores, **_):
        return input_ids.sum(1) % 11 == 3


# the first prompt of the first pair continues 47 1 31 3 56 41 5 5 3, the others contain no 41
STOPS = {"stopping_criteria": [StopAfter(31, 2, 62)]}
SETTINGS: dict[str, dict] = {
    "plain": {},
    "one eos": {"eos_token_id": 5},
    "several eos": {"eos_token_id": [41, 9, 0]},
    "max_length": {"max_new_tokens": None, "max_length": 10},
    "rows go on until all have stopped": STOPS,
    "padded where there is an eos": {**STOPS, "eos_token_id": 60},
    "an eos_token_id of its own": {"stopping_criteria": [StopAfterWithEos(31, 2, 62)]},
    "of the whole text": {"stopping_criteria": [WholeText()], "eos_token_id": 60},
    "several": {"stopping_criteria": [StopAfter(8), MaxLengthCriteria(20)], "eos_token_id": 41},
    "no time": {"stopping_criteria": [MaxTimeCriteria(0.0, initial_timestamp=0.0)]},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "min_length": {"eos_token_id": [5, 9, 2], "min_length": 14},
    "suppress_tokens": {"suppress_tokens": [2, 3], "begin_suppress_tokens": [47, 59]},
    "bad_words_ids": {"bad_words_ids": [[2, 2], [31, 3], [0, 62], [33]]},
    "sequence_bias": {"sequence_bias": [[[5], 4.0], [[41, 7], 9.0]]},
    "forced_eos_token_id": {"eos_token_id": 6, "forced_eos_token_id": 6},
    "decay": {"eos_token_id": [17, 18], "exponential_decay_length_penalty": (4, 1.6)},
    "many": {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 2,
        "eos_token_id": [5, 9],
        "min_new_tokens": 10,
        "remove_invalid_values": True,
    },
}
TABLES = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


def settings_of(name: str) -> dict:
    return {"max_new_tokens": NEW, "pad_token_id": PAD, **SETTINGS[name]}


class Recorder:
    """A streamer."""

    def __init__(self) -> None:
        self.calls: list = []

    def put(self, value: Tensor) -> None:
        self.calls.append((value.tolist(), value.device.type))

    def end(self) -> None:
        self.calls.append("end")


@cache
def wanted(name: str):
    """The library's own output, and the calls of its streamer."""
    streamer = Recorder()
    model = model_of(LLAMA)
    out = model.generate(**RAGGED, **settings_of(name), **TABLES, streamer=streamer)
    return out, streamer.calls


# every method at some settings, and a tree at all
GREEDY = [
    (*case, ("many", "one eos")[i % 2]) for i, case in enumerate(FIRST) if case[0] != "mcsd"
] + [
    (*case, name)
    for case in FIRST
    for name in SETTINGS
    if case[0] == "mcsd" or (case[0] == "sps" and name == "plain")
]


@cases(GREEDY, "key, options, name")
def test_greedy_is_the_librarys(key, options, name):
    """Text, scores, logits, the sums over scores, and what a streamer is given."""
    model, streamer = model_of(LLAMA), Recorder()
    out = model.generate(
        **RAGGED,
        **settings_of(name),
        **TABLES,
        streamer=streamer,
        custom_generate=custom_for(key, options, LLAMA),
    )
    right, calls = wanted(name)
    assert out.sequences.tolist() == right.sequences.tolist()
    assert streamer.calls == calls
    new = right.sequences[:, WIDTH:]
    padded = torch.zeros_like(new, dtype=torch.bool)
    if "eos_token_id" in SETTINGS[name] or name == "an eos_token_id of its own":
        padded = new == PAD
    for theirs, ours in ((right.scores, out.scores), (right.logits, out.logits)):
        assert {x.dtype for x in ours} == {torch.float32}
        expected, found = torch.stack(theirs, 1), torch.stack(ours, 1)
        assert found.shape == expected.shape
        torch.testing.assert_close(found[~padded], expected[~padded], atol=2e-5, rtol=1e-5)
        assert bool((found[padded].softmax(-1)[:, PAD] == 1).all())
    sums = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    assert bool((sums[padded] == 0).all())


class Accepted:
    """Watches the decodings of ``specwb.hf``: draft tokens accepted in all, the last decoding's
    settings, and how many tokens its rows wrote."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count, real = 0, hf_module.rounds

        def rounds(*arguments, **settings):
            self.settings = settings
            for step in real(*arguments, **settings):
                self.count += int(step.verdict.accepted.clamp_min(0).sum())
                self.lengths = (step.state.length - step.state.start).tolist()
                yield step

        patch.setattr(hf_module, "rounds", rounds)


@pytest.mark.parametrize("name", ["plain", "many"])
def test_drafts_of_the_processed_text_are_accepted(name, monkeypatch):
    """A draft model equal to the target, so that processed nodes lie deep in accepted paths."""
    accepted, model = Accepted(monkeypatch), model_of(LLAMA)
    custom = specwb.hf("mcsd:tree=3-2-2-1", draft=model)
    text = model.generate(**RAGGED, **settings_of(name), custom_generate=custom)
    assert text.tolist() == wanted(name)[0].sequences.tolist()
    assert accepted.count > 3 * NEW * (0.7 if name == "plain" else 0.25)
    assert (accepted.settings["rescore"] is None) == (name == "plain")  # so it stays captured


def test_a_row_that_has_stopped_is_not_decoded_further(monkeypatch):
    accepted = Accepted(monkeypatch)
    settings = {**settings_of("plain"), "eos_token_id": 60, "stopping_criteria": [StopAfter(31)]}
    custom = specwb.hf("sps:gamma=2", draft=LLAMA.draft)
    model_of(LLAMA).generate(**RAGGED, **settings, custom_generate=custom)
    assert accepted.lengths[0] <= 6  # 31 is its third token
    assert accepted.lengths[1:] == [NEW, NEW]


# ----------------------------------------------------------------------------------------- sampling


# settings, and the processors that the library makes of them
WARPED: dict[str, tuple[dict, list]] = {
    "filters": (
        {"temperature": 0.7, "top_k": 9, "top_p": 0.9},
        [TemperatureLogitsWarper(0.7), TopKLogitsWarper(9), TopPLogitsWarper(0.9)],
    ),
    "history": (
        {"no_repeat_ngram_size": 1, "temperature": 0.7, "top_k": 0},
        [NoRepeatNGramLogitsProcessor(1), TemperatureLogitsWarper(0.7)],
    ),
}


@pytest.mark.parametrize("name", WARPED)
@pytest.mark.parametrize("spec", ["ar", "mcsd:tree=3-2-1,rule=traversal"])
def test_sampled_scores_are_what_was_sampled_from(spec, name):
    """The library's forward over the text that came out, and its processors, give them again."""
    model, (settings, processors) = model_of(LLAMA), WARPED[name]
    draft = {"draft": LLAMA.draft} if spec.startswith("mcsd") else {}
    settings = {"do_sample": True, "max_new_tokens": 8, "pad_token_id": PAD, **settings}
    torch.manual_seed(1)
    out = model.generate(**RAGGED, **settings, **TABLES, custom_generate=specwb.hf(spec, **draft))
    text = out.sequences
    mask = torch.cat([RAGGED["attention_mask"], torch.ones_like(text[:, WIDTH:])], 1)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    with torch.no_grad():
        logits = model(text, attention_mask=mask, position_ids=positions).logits.float()
    for j, (scores, raw) in enumerate(zip(out.scores, out.logits, strict=True)):
        expected = logits[:, WIDTH - 1 + j]
        torch.testing.assert_close(raw, expected, atol=2e-5, rtol=1e-5)
        for processor in processors:
            expected = processor(text[:, : WIDTH + j], expected.clone())
        torch.testing.assert_close(scores, expected, atol=5e-5, rtol=1e-5)
        assert bool(scores.gather(1, text[:, WIDTH + j, None]).isfinite().all())


ROWS = 1500
FORBIDDING = {"top_k": 0, "no_repeat_ngram_size": 2}


@cache
def processed_distribution() -> Tensor:
    """``[V^3]``, the probabilities of all texts, from the library's forward and its processors, one
    token after the other."""
    model = decoding.models()[0].model
    texts = torch.tensor(list(product(range(decoding.VOCABULARY), repeat=decoding.LENGTH)))
    ids = torch.cat([torch.tensor([decoding.REPETITION]).expand(len(texts), -1), texts], 1)
    start = len(decoding.REPETITION)
    config, _ = model._prepare_generation_config(
        None, do_sample=True, max_new_tokens=decoding.LENGTH, **FORBIDDING
    )
    model._prepare_special_tokens(config, True, device="cpu")
    processors = model._get_logits_processor(config, start, ids, None, [], device="cpu")
    with torch.no_grad():
        logits = model(ids).logits
    p = torch.ones(len(texts), dtype=torch.double)
    for step in range(decoding.LENGTH):
        scores = processors(ids[:, : start + step], logits[:, start + step - 1].clone())
        p *= scores.softmax(-1).double().gather(1, texts[:, step : step + 1])[:, 0]
    return p / p.sum()


@pytest.mark.parametrize("spec", ["mcsd:tree=3-2-1", "mcsd:tree=3-2,rule=traversal"])
@pytest.mark.slow
def test_the_distribution_of_sampled_texts_is_the_librarys(spec, monkeypatch):
    """Some rules ask for the nodes of a walk, others for all nodes, below forbidden ones too: which
    a rule asks for is the same after every processor."""
    accepted = Accepted(monkeypatch)
    target, draft = decoding.models()
    torch.manual_seed(1)
    texts = target.model.generate(
        torch.tensor([decoding.REPETITION]),
        do_sample=True,
        max_new_tokens=decoding.LENGTH,
        num_return_sequences=ROWS,
        custom_generate=specwb.hf(spec, draft=draft),
        **FORBIDDING,
    )
    powers = torch.tensor([decoding.VOCABULARY**2, decoding.VOCABULARY, 1])
    code = (texts[:, -decoding.LENGTH :] * powers).sum(1)
    counts = torch.bincount(code, minlength=decoding.VOCABULARY**decoding.LENGTH)
    assert decoding.chi_square(counts, processed_distribution()) > 1e-3
    assert accepted.count > ROWS / 20


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.3, "min_p": 0.1}], ids=str)
def test_a_temperature_near_zero_writes_the_greedy_text(settings):
    """The library draws from scores / T, which are infinite or NaN where T is small enough."""
    text = model_of(LLAMA).generate(
        **RAGGED,
        **settings_of("plain"),
        **settings,
        do_sample=True,
        temperature=1e-38,
        custom_generate=specwb.hf("mcsd:tree=3-2-2", draft=LLAMA.draft),
    )
    name = "repetition_penalty" if settings else "plain"
    assert text.tolist() == wanted(name)[0].sequences.tolist()


def test_a_seed_repeats_the_text_and_rows_differ():
    settings = {"do_sample": True, "num_return_sequences": 2, **settings_of("plain")}
    custom, texts = specwb.hf("sps", draft=model_of(LLAMA)), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        texts.append(model_of(LLAMA).generate(**RAGGED, **settings, custom_generate=custom))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])
    assert len({tuple(text) for text in texts[0].tolist()}) == 6
    assert torch.equal(texts[0][:, :WIDTH], RAGGED["input_ids"].repeat_interleave(2, 0))
    before = torch.get_rng_state()  # greedy decoding draws nothing
    model_of(LLAMA).generate(**RAGGED, **settings_of("plain"), custom_generate=custom)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", WARPED)
def test_exact_text_is_what_ar_writes_after_the_same_seed(name):
    """After every processor; the scores are those before the noise."""
    settings = {"do_sample": True, "max_new_tokens": 8, "pad_token_id": PAD, **WARPED[name][0]}
    outs = []
    for spec, draft in (("ar", {}), ("mcsd:tree=3-2-1", {"draft": LLAMA.draft})):
        custom = specwb.hf(spec, exact_text=True, **draft)
        torch.manual_seed(1)
        outs.append(
            model_of(LLAMA).generate(**RAGGED, **settings, **TABLES, custom_generate=custom)
        )
    assert torch.equal(outs[0].sequences, outs[1].sequences)
    for one, other in zip(outs[0].scores, outs[1].scores, strict=True):
        torch.testing.assert_close(one, other, atol=5e-5, rtol=1e-5)
    with pytest.raises(specwb.SpecwbError, match="exact_text must be True or False, got 1"):
        specwb.hf("ar", exact_text=1)


# --------------------------------------------------------------------------- the result, the model


def test_the_result_is_of_the_librarys_kind():
    model = model_of(LLAMA)
    custom = specwb.hf(draft=model)
    ids = torch.tensor([[1, 2, 3]], dtype=torch.int32)
    right, text = model.generate(ids), model.generate(ids, custom_generate=custom)
    assert torch.equal(text, right)  # of the default length
    assert (text.dtype, text.is_inference()) == (right.dtype, right.is_inference())


def fresh(seed: int = 2) -> nn.Module:
    return tiny.build("qwen3", seed=seed)


def change_in_place(model: nn.Module) -> nn.Module:
    """Changes all weights, Qwen3's norms of q and k among them."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    return model


@pytest.mark.parametrize(
    "change",
    [change_in_place, lambda model: model.double()],
    ids=["in place", "cast"],
)
def test_weights_that_have_changed_are_seen(change):
    model, ids = fresh(), torch.tensor([[1, 2, 3]])
    custom = specwb.hf("pld")
    before = model.generate(ids, max_new_tokens=12, custom_generate=custom)
    assert hf_module.wrap(model) is hf_module.wrap(model)
    model = change(model)
    right = model.generate(ids, max_new_tokens=12)
    assert torch.equal(model.generate(ids, max_new_tokens=12, custom_generate=custom), right)
    assert before.tolist() != right.tolist() or model.dtype is torch.double


def test_a_model_is_not_kept_alive():
    model, draft = fresh(), fresh(3)
    custom = specwb.hf(draft=draft)
    model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, custom_generate=custom)
    left = weakref.ref(model)
    del model
    gc.collect()
    assert left() is None


# ----------------------------------------------------------------------------------------- refusals


class Counting(RepetitionPenaltyLogitsProcessor):
    """A subclass of a known processor is not known."""


def two(*mask: list[int]) -> dict[str, Tensor]:
    """Two prompts with this mask."""
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    return {"input_ids": ids, "attention_mask": torch.tensor(mask)}


@pytest.mark.parametrize(
    ("message", "settings"),
    [
        ("'beam_search' is not supported", {"num_beams": 2}),
        ("'assisted_generation' is not supported", {"assistant_model": LLAMA.draft.model}),
        ("Counting is not supported", {"logits_processor": [Counting(1.2)]}),
        ("<lambda> is not supported", {"logits_processor": [lambda ids, scores: scores]}),
        ("pad_token_id must be set", {"stopping_criteria": [StopAfterWithEos(5)]}),
        ("must be left padding", two([1, 0, 1], [1, 1, 1])),
        ("prompt 1 is empty", two([1, 1, 1], [0, 0, 0])),
        ("no draft model", {"custom_generate": specwb.hf("sps")}),
        ("vocabulary mismatch", {"custom_generate": specwb.hf("sps", draft="lab-draft")}),
        ("exceeds the context", {"max_new_tokens": 600}),
        ("output_hidden_states", {"return_dict_in_generate": True, "output_hidden_states": True}),
        ("synced_gpus", {"synced_gpus": True}),
        ("position_ids", {"position_ids": torch.tensor([[5, 6, 7]])}),
        ("past_key_values", {"past_key_values": tiny.build("llama", seed=1).config}),
        ("'inputs_embeds' is not supported", {"inputs_embeds": torch.zeros(1, 3, 32)}),
        ("give stopping_criteria=.*StopStringCriteria", {"stop_strings": ["w1", "w2"]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_settings_are_refused_by_name(message, settings):
    usual = {"max_new_tokens": 4, "custom_generate": specwb.hf(draft=LLAMA.draft)}
    with pytest.raises(ValueError, match=message) as caught:
        model_of(LLAMA).generate(**{**batch([1, 2, 3]), **usual, **settings})
    assert isinstance(caught.value, specwb.SpecwbError)
    assert "\n" not in str(caught.value)


def test_a_stop_string_as_a_criterion():
    folder = data_dir() / "lab" / "target"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer("def fib(n):\n    if n", return_tensors="pt", return_token_type_ids=False)
    plain = model.generate(**inputs, max_new_tokens=24)
    start = inputs["input_ids"].shape[1]
    stop = tokenizer.decode(plain[0, start + 9 : start + 11])
    settings = {"max_new_tokens": 24, "stopping_criteria": [StopStringCriteria(tokenizer, [stop])]}
    custom = specwb.hf("sps", draft="lab-draft")
    text = model.generate(**inputs, **settings, custom_generate=custom)
    assert torch.equal(text, model.generate(**inputs, **settings))
    assert len(text[0]) < len(plain[0])
