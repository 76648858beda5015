"""``specwb.hf``: ``generate`` returns with it what it returns without it, for every method."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from functools import cache
from itertools import product

import pytest
import test_decoding_distribution as decoding
import tiny
import torch
from test_protocol import FIRST, LLAMA, Pair, cases, every_case, given
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BloomConfig,
    BloomForCausalLM,
    MaxLengthCriteria,
    MaxTimeCriteria,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    WatermarkingConfig,
)

import specwb
from specwb.engine import custom_generate as hf_module
from specwb.models.load import data_dir

PAD, NEW = 63, 16


@cache
def model_of(pair: Pair) -> nn.Module:
    return copy.deepcopy(pair.target.model)


def custom_for(key: str, options: dict, pair: Pair):
    draft = {"draft": pair.draft} if "draft" in specwb.METHODS[key].options else {}
    return specwb.hf(key, **draft, **given(key, options, pair))


def batch(*prompts: list[int], pad: int = PAD) -> dict[str, Tensor]:
    """Returns the prompts left-padded, with their mask."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])
    return {
        "input_ids": ids,
        "attention_mask": torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]),
    }


def library(model: nn.Module, inputs: dict, **settings) -> Tensor:
    """Returns what ``generate`` gives by itself, and asserts that no argmax depends on rounding."""
    out = model.generate(**inputs, **settings, return_dict_in_generate=True, output_scores=True)
    for step, scores in enumerate(out.scores):
        best = scores.topk(2).values
        going = torch.ones(len(scores), dtype=torch.bool)
        ends = settings.get("eos_token_id")
        if ends is not None:
            text = out.sequences[:, inputs["input_ids"].shape[1] :][:, :step]
            going = ~torch.isin(text, torch.tensor(ends)).any(1)
        assert bool((best[:, 0] - best[:, 1] > 1e-4)[going].all())
    return out.sequences


class Accepted:
    """Watches the decodings of ``specwb.hf``.

    Attributes:
        count: how many draft tokens were accepted in all.
        settings: those of the last decoding.
        lengths: how many tokens its rows wrote.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count, real = 0, hf_module.rounds

        def rounds(*arguments, **settings):
            self.settings = settings
            for step in real(*arguments, **settings):
                self.count += int(step.verdict.accepted.clamp_min(0).sum())
                self.lengths = (step.state.length - step.state.start).tolist()
                yield step

        patch.setattr(hf_module, "rounds", rounds)


RAGGED = batch(*tiny.PROMPTS)
# the first prompt of the first pair continues 47 1 31 3 56 41 5 5 3, the others contain no 41
SETTINGS: dict[str, dict] = {
    "plain": {},
    "one eos": {"eos_token_id": 5},
    "several eos": {"eos_token_id": [41, 9, 0]},
    "max_length": {"max_new_tokens": None, "max_length": 10},
    "one token": {"max_new_tokens": 1},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"eos_token_id": [5, 9, 2], "min_new_tokens": 12},
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


@cache
def wanted(pair: Pair, name: str) -> Tensor:
    return library(
        model_of(pair), RAGGED, **{"max_new_tokens": NEW, "pad_token_id": PAD, **SETTINGS[name]}
    )


@pytest.mark.parametrize("name", ["plain", "many"])
@every_case
def test_greedy_is_the_librarys(key, options, name):
    greedy_is_the_librarys(key, options, LLAMA, name)


# methods that draft differently: nothing, a chain, a tree, from the text, from the target's states,
# a growing tree, with early layers
DIFFERENT = [
    case
    for case in FIRST
    if case[0] in ("ar", "sps", "mcsd", "pld", "medusa", "eagle2", "kangaroo")
]


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in ("plain", "many")])
@cases(DIFFERENT)
def test_greedy_with_every_setting_is_the_librarys(key, options, name):
    greedy_is_the_librarys(key, options, LLAMA, name)


def greedy_is_the_librarys(key: str, options: dict, pair: Pair, name: str) -> None:
    settings = {"max_new_tokens": NEW, "pad_token_id": PAD, **SETTINGS[name]}
    got = model_of(pair).generate(
        **RAGGED, **settings, custom_generate=custom_for(key, options, pair)
    )
    assert got.tolist() == wanted(pair, name).tolist()


@pytest.mark.parametrize("name", ["plain", "repetition_penalty", "no_repeat_ngram_size", "many"])
@pytest.mark.parametrize(("spec", "depth"), [("sps:gamma=4", 4), ("mcsd:tree=3-2-2-1", 4)])
def test_drafts_of_the_processed_text_are_accepted(spec, depth, name, monkeypatch):
    """A draft model equal to the target, so that processed nodes lie deep in accepted paths.

    The equality above could be that of decodings that accepted nothing.
    """
    accepted = Accepted(monkeypatch)
    model = model_of(LLAMA)
    got = model.generate(
        **RAGGED,
        **{"max_new_tokens": NEW, "pad_token_id": PAD, **SETTINGS[name]},
        custom_generate=specwb.hf(spec, draft=model),
    )
    assert got.tolist() == wanted(LLAMA, name).tolist()
    assert accepted.count > 3 * NEW * (0.7 if name == "plain" else 0.25)


# ------------------------------------------------------------------------------- the shipped family


@cache
def lab() -> tuple[nn.Module, object]:
    folder = data_dir() / "lab" / "target"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder, padding_side="left")


LAB_METHODS = ["sps", "mcsd:tree=4-2-2", "pld", "lookahead"]


def custom_for_lab(spec: str):
    options = specwb.METHODS[spec.partition(":")[0]].options
    draft = {"draft": "lab-draft"} if "draft" in options else {}
    return specwb.hf(spec, **draft)


@pytest.mark.slow
@pytest.mark.parametrize("spec", LAB_METHODS)
def test_the_lab_family_with_processors_and_a_stop_string(spec, monkeypatch):
    accepted = Accepted(monkeypatch)
    model, tokenizer = lab()
    inputs = tokenizer(
        ["def fib(n):\n    if n", "The cat sat on the mat. The cat"],
        return_tensors="pt",
        padding=True,
    ).to("cpu")
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    plain = library(model, inputs, max_new_tokens=24, repetition_penalty=1.1)
    got = model.generate(
        **inputs, max_new_tokens=24, repetition_penalty=1.1, custom_generate=custom_for_lab(spec)
    )
    assert got.tolist() == plain.tolist()
    start = inputs["input_ids"].shape[1]
    stop = tokenizer.decode(plain[0, start + 9 : start + 11])
    stopped = model.generate(
        **inputs,
        max_new_tokens=24,
        repetition_penalty=1.1,
        stop_strings=[stop],
        tokenizer=tokenizer,
    )
    got = model.generate(
        **inputs,
        max_new_tokens=24,
        repetition_penalty=1.1,
        stopping_criteria=[StopStringCriteria(tokenizer, [stop])],
        custom_generate=custom_for_lab(spec),
    )
    assert got.tolist() == stopped.tolist()
    assert stopped[0].tolist() != plain[0].tolist()
    if spec.startswith(("sps", "mcsd")):
        assert accepted.count > 15


# ----------------------------------------------------------------------------------------- stopping


class StopAfter(StoppingCriteria):
    """Stops rows whose last token is one of ``tokens``; with ``together`` all rows at once."""

    def __init__(self, *tokens: int, together: bool = False) -> None:
        self.tokens, self.together = torch.tensor(tokens), together

    def __call__(self, input_ids, scores, **_):
        stop = torch.isin(input_ids[:, -1], self.tokens)
        return stop.any().expand(len(stop)) if self.together else stop


class StopAfterWithEos(StopAfter):
    """A criterion that makes the library pad the rows."""

    eos_token_id = 5


class WholeText(StoppingCriteria):
    """Stops by a function of the whole text."""

    def __call__(self, input_ids, scores, **_):
        return input_ids.sum(1) % 11 == 3


CRITERIA: dict[str, tuple[list, dict]] = {
    "rows go on until all have stopped": ([StopAfter(31, 2, 62)], {}),
    "one never stops": ([StopAfter(31, 2)], {}),
    "padded where there is an eos": ([StopAfter(31, 2, 62)], {"eos_token_id": 60}),
    "beside an eos": ([StopAfter(31)], {"eos_token_id": [2, 62]}),
    "all rows together": ([StopAfter(56, together=True)], {}),
    "all rows together, padded": ([StopAfter(8, together=True)], {"eos_token_id": 56}),
    "with an eos_token_id of its own": ([StopAfterWithEos(31, 2, 62)], {}),
    "of the whole text": ([WholeText()], {"eos_token_id": 60}),
    "several": ([StopAfter(8), StopAfter(44), MaxLengthCriteria(20)], {"eos_token_id": 41}),
    "no time": ([MaxTimeCriteria(0.0, initial_timestamp=0.0)], {}),
    "a shorter limit": ([MaxLengthCriteria(11)], {}),
    "a limit below the prompt": ([MaxLengthCriteria(2)], {}),
}


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("spec", ["sps:gamma=5", "mcsd:tree=3-2-2", "ar"])
def test_stopping_criteria(spec, name):
    criteria, settings = CRITERIA[name]
    model = model_of(LLAMA)
    settings = {"max_new_tokens": NEW, "pad_token_id": PAD, **settings}
    right = model.generate(**RAGGED, **settings, stopping_criteria=criteria)
    # everything is accepted, or rows come forward unevenly
    draft = {} if spec == "ar" else {"draft": model if spec.startswith("mcsd") else LLAMA.draft}
    assert (
        model.generate(
            **RAGGED,
            **settings,
            stopping_criteria=criteria,
            custom_generate=specwb.hf(spec, **draft),
        ).tolist()
        == right.tolist()
    )
    assert right.tolist() != wanted(LLAMA, "plain").tolist() or name == "one never stops"


def test_a_row_that_has_stopped_is_not_decoded_further(monkeypatch):
    accepted = Accepted(monkeypatch)
    settings = {
        "max_new_tokens": NEW,
        "eos_token_id": 60,
        "pad_token_id": PAD,
        "stopping_criteria": [StopAfter(31)],
    }
    model_of(LLAMA).generate(
        **RAGGED, **settings, custom_generate=specwb.hf("sps:gamma=2", draft=LLAMA.draft)
    )
    assert accepted.lengths[0] <= 6  # 31 is its third token
    assert accepted.lengths[1:] == [NEW, NEW]


class Recorder:
    def __init__(self) -> None:
        self.got: list = []

    def put(self, value: Tensor) -> None:
        self.got.append((value.tolist(), value.device.type))

    def end(self) -> None:
        self.got.append("end")


@pytest.mark.parametrize(
    "settings",
    [{}, {"eos_token_id": 41}, {"repetition_penalty": 1.3}, {"stopping_criteria": [StopAfter(56)]}],
    ids=["plain", "eos", "processor", "criterion"],
)
def test_a_streamer_is_called_as_the_library_does(settings):
    model = model_of(LLAMA)
    for inputs in (batch([1, 2, 3]), RAGGED):
        wanted, got = Recorder(), Recorder()
        model.generate(**inputs, max_new_tokens=NEW, pad_token_id=PAD, streamer=wanted, **settings)
        model.generate(
            **inputs,
            max_new_tokens=NEW,
            pad_token_id=PAD,
            streamer=got,
            custom_generate=specwb.hf(draft=LLAMA.draft),
            **settings,
        )
        assert got.got == wanted.got
        assert len(got.got) > 5


# ------------------------------------------------------------------------------- scores and logits


TABLES = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
OUTPUTS: dict[str, dict] = {
    **{name: SETTINGS[name] for name in ("plain", "one eos", "one token", "many")},
    "padded behind a criterion": {"stopping_criteria": [StopAfter(31, 2, 62)], "eos_token_id": 60},
    "going on behind a criterion": {"stopping_criteria": [StopAfter(31, 2, 62)]},
}


def own_columns(sequences: Tensor, width: int, settings: dict) -> Tensor:
    """Returns ``[B, new]``, False where a row is padded."""
    new = sequences[:, width:]
    stops = [31, 2, 62] if "stopping_criteria" in settings else []
    ends = settings.get("eos_token_id", [])
    stops += ends if isinstance(ends, list) else [ends]
    if not ends:
        return torch.ones_like(new, dtype=torch.bool)
    stopped = torch.isin(new, torch.tensor(stops)).int().cumsum(1)
    return torch.cat([torch.zeros_like(stopped[:, :1]), stopped[:, :-1]], 1) == 0


@pytest.mark.parametrize("name", OUTPUTS)
@cases([*DIFFERENT, *(case for case in FIRST if case[0] == "mcsd_ti")])
@pytest.mark.parametrize("inputs", [batch([1, 2, 3]), RAGGED], ids=["one", "three"])
def test_scores_and_logits_are_the_librarys(key, options, name, inputs):
    model, settings = model_of(LLAMA), {"max_new_tokens": NEW, "pad_token_id": PAD, **OUTPUTS[name]}
    right = model.generate(**inputs, **settings, **TABLES)
    got = model.generate(
        **inputs, **settings, **TABLES, custom_generate=custom_for(key, options, LLAMA)
    )
    assert got.sequences.tolist() == right.sequences.tolist()
    own = own_columns(right.sequences, inputs["input_ids"].shape[1], settings)
    assert bool(own.all()) == (
        len(own) == 1 or name not in ("one eos", "padded behind a criterion")
    )
    for theirs, ours in ((right.scores, got.scores), (right.logits, got.logits)):
        assert [x.shape for x in ours] == [x.shape for x in theirs]
        assert {x.dtype for x in ours} == {torch.float32}
        expected, found = torch.stack(theirs, 1), torch.stack(ours, 1)
        torch.testing.assert_close(found[own], expected[own], atol=2e-5, rtol=1e-5)
        padding = found[~own].softmax(-1)
        assert bool((padding[:, PAD] == 1).all())
    sums = model.compute_transition_scores(got.sequences, got.scores, normalize_logits=True)
    assert bool((sums[~own] == 0).all())


# settings, and the processors that the library makes of them
WARPED: dict[str, tuple[dict, list]] = {
    "plain": ({"top_k": 0}, []),
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
@pytest.mark.parametrize("spec", ["ar", "sps:gamma=3", "mcsd:tree=3-2-1,rule=traversal", "pld"])
def test_sampled_scores_are_what_was_sampled_from(spec, name):
    """The library's forward over the text that came out, and its processors, give them again."""
    model, (settings, processors) = model_of(LLAMA), WARPED[name]
    draft = {"draft": LLAMA.draft} if spec.startswith(("sps", "mcsd")) else {}
    settings = {"do_sample": True, "max_new_tokens": 8, "pad_token_id": PAD, **settings}
    torch.manual_seed(1)
    out = model.generate(**RAGGED, **settings, **TABLES, custom_generate=specwb.hf(spec, **draft))
    width, text = RAGGED["input_ids"].shape[1], out.sequences
    mask = torch.cat([RAGGED["attention_mask"], torch.ones_like(text[:, width:])], 1)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    with torch.no_grad():
        logits = model(text, attention_mask=mask, position_ids=positions).logits.float()
    for j, (scores, raw) in enumerate(zip(out.scores, out.logits, strict=True)):
        expected = logits[:, width - 1 + j]
        torch.testing.assert_close(raw, expected, atol=2e-5, rtol=1e-5)
        for processor in processors:
            expected = processor(text[:, : width + j], expected.clone())
        torch.testing.assert_close(scores, expected, atol=5e-5, rtol=1e-5)
        assert bool(scores.gather(1, text[:, width + j, None]).isfinite().all())


# --------------------------------------------------------------------------------------- processors


class Watching:
    """Forbids ids from 20 on after a 3, and remembers every text it was shown."""

    specwb_pure = True

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids, scores):
        self.seen += input_ids.tolist()
        scores[input_ids[:, -1] == 3, 20:] = -torch.inf  # in place, as some do
        return scores


@pytest.mark.parametrize("spec", ["sps:gamma=4", "mcsd:tree=3-2-2", "lookahead"])
@pytest.mark.parametrize("limit", [NEW, 7, 1])
def test_a_processor_is_shown_the_texts_that_the_library_shows_it(spec, limit):
    model = model_of(LLAMA)
    theirs, ours = Watching(), Watching()
    settings = {"max_new_tokens": limit, "eos_token_id": [0, 5], "pad_token_id": PAD}
    right = model.generate(**RAGGED, **settings, logits_processor=[theirs])
    draft = {} if spec == "lookahead" else {"draft": model}
    got = model.generate(
        **RAGGED, **settings, logits_processor=[ours], custom_generate=specwb.hf(spec, **draft)
    )
    assert got.tolist() == right.tolist()
    assert {tuple(text) for text in ours.seen} <= {
        tuple(text) for text in theirs.seen
    }  # theirs sees finished rows too
    assert len(ours.seen) == len({tuple(text) for text in ours.seen})


class Plain:
    def __call__(self, input_ids, scores):
        return scores


class Grammar:
    """Words of a row are its own tokens only; any other text, or one behind an end, is an error."""

    specwb_pure = True
    allowed = (1, 3, 5, 31, 47, 60)
    end = 60

    def __init__(self, width: int) -> None:
        self.width, self.seen = width, 0

    def __call__(self, input_ids, scores):
        for text in input_ids[:, self.width :].tolist():
            assert set(text) <= set(self.allowed), "it is shown a text that it has forbidden"
            assert self.end not in text, "it is shown a text that has ended"
        self.seen += 1
        forbidden = torch.ones_like(scores, dtype=torch.bool)
        forbidden[:, list(self.allowed)] = False
        return scores.masked_fill(forbidden, -torch.inf)


@pytest.mark.parametrize(
    "spec",
    [
        "sps:gamma=6,rule=traversal",
        "sps:gamma=6,rule=block",
        "mcsd:tree=3-2-2,rule=traversal",
        "mcsd:tree=3-1-1,draw=with,rule=gbv",
        "mcsd:tree=3-2-2",
    ],
)
@pytest.mark.parametrize("prompt", tiny.PROMPTS, ids=len)
def test_a_grammar_is_never_shown_what_it_forbids_in_sampling(spec, prompt):
    """Rules for whole trees look below every node, drafted tokens are mostly forbidden ones."""
    model, one = model_of(LLAMA), torch.tensor([prompt])
    custom = specwb.hf(spec, draft=LLAMA.draft)
    for seed in range(4):
        torch.manual_seed(seed)
        grammar = Grammar(len(prompt))
        settings = {"do_sample": True, "max_new_tokens": NEW, "eos_token_id": grammar.end}
        settings |= {"pad_token_id": PAD, "logits_processor": [grammar]}
        text = model.generate(one, **settings, custom_generate=custom)[0, len(prompt) :].tolist()
        assert grammar.seen > 0
        assert set(text) <= set(grammar.allowed)


# ----------------------------------------------------------------------------------------- sampling


ROWS = 1500
SAMPLED: dict[str, dict] = {
    "top_k": {"temperature": 0.9, "top_k": 4},
    "the library's defaults": {},  # its top_k = 50 is wider than the vocabulary
    "repetition_penalty": {"temperature": 1.2, "top_k": 5, "repetition_penalty": 1.8},
    "no_repeat_ngram_size": {"top_k": 0, "no_repeat_ngram_size": 2},
    "warpers after temperature": {
        "temperature": 0.8,
        "top_k": 5,
        "top_p": 0.95,
        "min_p": 0.2,
        "typical_p": 0.9,
    },
    "a user's top-k before temperature": {
        "temperature": 1.5,
        "top_k": 0,
        "min_p": 0.05,
        "logits_processor": [TopKLogitsWarper(3)],
    },
}
SAMPLERS: dict[str, dict] = {
    "sps": {"gamma": 3},
    "mcsd": {"tree": (3, 2, 1)},
    "lookahead": {"window": 3, "level": 3, "guesses": 4, "prompt": True},
}


@cache
def processed_distribution(name: str) -> Tensor:
    """Returns ``[V^3]``, the probabilities of all texts.

    They come from the library's forward and its processors, one token after the other.
    """
    model = decoding.models()[0].model
    settings = {k: v for k, v in SAMPLED[name].items() if k != "logits_processor"}
    texts = torch.tensor(list(product(range(decoding.VOCABULARY), repeat=decoding.LENGTH)))
    ids = torch.cat([torch.tensor([decoding.REPETITION]).expand(len(texts), -1), texts], 1)
    start = len(decoding.REPETITION)
    config, _ = model._prepare_generation_config(
        None, do_sample=True, max_new_tokens=decoding.LENGTH, **settings
    )
    model._prepare_special_tokens(config, True, device="cpu")
    processors = model._get_logits_processor(
        config, start, ids, None, SAMPLED[name].get("logits_processor", []), device="cpu"
    )
    with torch.no_grad():
        logits = model(ids).logits
    p = torch.ones(len(texts), dtype=torch.double)
    for step in range(decoding.LENGTH):
        scores = processors(ids[:, : start + step], logits[:, start + step - 1].clone())
        p *= scores.softmax(-1).double().gather(1, texts[:, step : step + 1])[:, 0]
    return p / p.sum()


def p_value(texts: Tensor, name: str) -> float:
    """Compares the last tokens of sampled texts with the distribution of these settings."""
    powers = torch.tensor([decoding.VOCABULARY**2, decoding.VOCABULARY, 1])
    code = (texts[:, -decoding.LENGTH :] * powers).sum(1)
    counts = torch.bincount(code, minlength=decoding.VOCABULARY**decoding.LENGTH)
    return decoding.chi_square(counts, processed_distribution(name))


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("key", SAMPLERS)
@pytest.mark.slow
def test_the_distribution_of_sampled_texts_is_the_librarys(key, name, monkeypatch):
    accepted = Accepted(monkeypatch)
    target, draft = decoding.models()
    torch.manual_seed(1)
    out = target.model.generate(
        torch.tensor([decoding.REPETITION]),
        do_sample=True,
        max_new_tokens=decoding.LENGTH,
        num_return_sequences=ROWS,
        custom_generate=specwb.hf(
            key, **SAMPLERS[key], **({} if key == "lookahead" else {"draft": draft})
        ),
        **SAMPLED[name],
    )
    assert out.shape == (ROWS, len(decoding.REPETITION) + decoding.LENGTH)
    assert p_value(out, name) > 1e-3
    # lookahead drafts what the text holds, which no_repeat_ngram_size forbids
    assert accepted.count > ROWS / 20 or (key, name) == ("lookahead", "no_repeat_ngram_size")


@pytest.mark.parametrize(
    "spec",
    [
        "sps:gamma=3",
        "sps:gamma=3,rule=block",
        "mcsd:tree=3-2",
        "mcsd:tree=3-2,rule=traversal",
        "mcsd:tree=2-1,draw=with,rule=gbv",
    ],
)
@pytest.mark.parametrize("name", ["repetition_penalty", "no_repeat_ngram_size"])
@pytest.mark.slow
def test_every_way_to_verify_sees_the_processors(spec, name):
    """Some rules ask for the nodes of a walk, others for all nodes, below forbidden ones too."""
    target, draft = decoding.models()
    torch.manual_seed(2)
    settings = {
        "do_sample": True,
        "max_new_tokens": decoding.LENGTH,
        "num_return_sequences": ROWS,
        **SAMPLED[name],
    }
    out = target.model.generate(
        torch.tensor([decoding.REPETITION]),
        custom_generate=specwb.hf(spec, draft=draft),
        **settings,
    )
    assert p_value(out, name) > 1e-3


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7},
        {"top_k": 0},
        {"temperature": 1.3, "top_k": 5, "top_p": 0.9},
        {"do_sample": False},
    ],
    ids=str,
)
def test_temperature_and_filters_alone_need_no_rescoring(settings, monkeypatch):
    """So sampling needs no work row by row and stays captured on CUDA."""
    accepted = Accepted(monkeypatch)
    model_of(LLAMA).generate(
        **RAGGED,
        **{"do_sample": True, "max_new_tokens": 2, "pad_token_id": PAD, **settings},
        custom_generate=specwb.hf("pld"),
    )
    assert accepted.settings["rescore"] is None


@pytest.mark.parametrize("temperature", [1e-5, 1e-6, 1e-9, 1e-38])
@pytest.mark.parametrize(
    "settings",
    [{}, {"typical_p": 0.2, "top_k": 5}, {"repetition_penalty": 1.3, "min_p": 0.1}],
    ids=str,
)
@pytest.mark.parametrize("spec", ["ar", "sps", "mcsd:tree=3-2-2"])
def test_a_temperature_near_zero_writes_the_greedy_text(spec, settings, temperature, monkeypatch):
    """The library draws from scores / T, which are infinite or NaN where T is small enough."""
    accepted = Accepted(monkeypatch)
    penalty = {k: v for k, v in settings.items() if k == "repetition_penalty"}
    how = {"max_new_tokens": 8, "pad_token_id": PAD}
    draft = {} if spec == "ar" else {"draft": LLAMA.draft}
    got = model_of(LLAMA).generate(
        **RAGGED,
        **how,
        **settings,
        do_sample=True,
        temperature=temperature,
        custom_generate=specwb.hf(spec, **draft),
    )
    assert got.tolist() == library(model_of(LLAMA), RAGGED, **how, **penalty).tolist()
    assert (accepted.settings["rescore"] is None) == (not settings)


def test_a_seed_repeats_the_text_and_rows_differ():
    model, inputs = model_of(LLAMA), RAGGED
    settings = {
        "do_sample": True,
        "max_new_tokens": NEW,
        "pad_token_id": PAD,
        "num_return_sequences": 2,
        "custom_generate": specwb.hf(draft=model),
    }
    texts = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        texts.append(model.generate(**inputs, **settings).tolist())
        again = model.generate(**inputs, **settings).tolist()
        assert again != texts[-1]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    assert len({tuple(text) for text in texts[0]}) == 6
    width = inputs["input_ids"].shape[1]
    assert [text[:width] for text in texts[0]] == inputs["input_ids"].repeat_interleave(
        2, 0
    ).tolist()


def test_greedy_decoding_draws_nothing():
    before = torch.get_rng_state()
    model_of(LLAMA).generate(
        **RAGGED,
        max_new_tokens=4,
        pad_token_id=PAD,
        temperature=0.7,
        custom_generate=custom_for("sps", {}, LLAMA),
    )
    assert torch.equal(torch.get_rng_state(), before)


# ---------------------------------------------------------------------------------- what comes back


def test_the_result_is_of_the_librarys_kind():
    model = model_of(LLAMA)
    for ids in (torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 3]], dtype=torch.int32)):
        right = model.generate(ids, max_new_tokens=4)
        got = model.generate(ids, max_new_tokens=4, custom_generate=specwb.hf(draft=model))
        assert torch.equal(got, right)
        assert (got.dtype, got.device, got.is_inference()) == (
            right.dtype,
            right.device,
            right.is_inference(),
        )
    right = model.generate(ids, max_new_tokens=4, return_dict_in_generate=True)
    got = model.generate(
        ids, max_new_tokens=4, return_dict_in_generate=True, custom_generate=specwb.hf(draft=model)
    )
    assert type(got) is type(right)
    assert torch.equal(got.sequences, right.sequences)


def test_the_default_length_and_a_passed_cache():
    model, ids = model_of(LLAMA), torch.tensor([[1, 2, 3]])
    custom = specwb.hf(draft=model)
    assert torch.equal(model.generate(ids, custom_generate=custom), model.generate(ids))
    past = model(ids, use_cache=True).past_key_values
    assert torch.equal(
        model.generate(ids, past_key_values=past, max_new_tokens=5, custom_generate=custom),
        model.generate(ids, max_new_tokens=5),
    )
    assert past.get_seq_length() == 3


# -------------------------------------------------------------------------------- the wrapped model


def fresh(seed: int = 2) -> nn.Module:
    return tiny.build("qwen3", seed=seed)


def test_a_model_is_wrapped_once():
    model, draft = fresh(), fresh(3)
    ids = torch.tensor([[1, 2, 3]])
    first, second = specwb.hf(draft=draft), specwb.hf("mcsd", draft=draft)
    first_built = first._for(model)
    model.generate(ids, max_new_tokens=4, custom_generate=first)
    model.generate(ids, max_new_tokens=4, custom_generate=second)
    assert first._for(model) == first_built
    assert second._for(model)[0] is first_built[0]
    assert second._for(model)[1].drafter.draft is first_built[1].drafter.draft


def change_in_place(model: nn.Module) -> nn.Module:
    """Changes all weights, Qwen3's norms of q and k among them."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    return model


def change_weights(model: nn.Module) -> nn.Module:
    model.model.layers[1].self_attn.k_proj.weight.data = (
        model.model.layers[1].self_attn.k_proj.weight.data * -1.5
    )
    return model


def change_embeddings(model: nn.Module) -> nn.Module:
    model.set_input_embeddings(fresh(4).get_input_embeddings())
    return model


@pytest.mark.parametrize(
    "change",
    [change_in_place, change_weights, change_embeddings, lambda model: model.double()],
    ids=["all", "one", "tied", "cast"],
)
def test_weights_that_have_changed_are_seen(change):
    model, ids = fresh(), torch.tensor([[1, 2, 3]])
    custom = specwb.hf("pld")
    before = model.generate(ids, max_new_tokens=12, custom_generate=custom)
    model = change(model)
    right = library(model, {"input_ids": ids}, max_new_tokens=12)
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
    left = weakref.ref(draft)
    del draft, custom
    gc.collect()
    assert left() is None


# ----------------------------------------------------------------------------------------- refusals


class Adapter(nn.Linear):
    pass


def assert_refused(
    message: str,
    model: nn.Module | None = None,
    inputs: dict | None = None,
    kind: type = specwb.UnsupportedGeneration,
    method=None,
    **settings,
):
    model = model or model_of(LLAMA)
    with pytest.raises(kind, match=message) as caught:
        model.generate(
            **(inputs or batch([1, 2, 3])),
            **{"max_new_tokens": 4, **settings},
            custom_generate=method or specwb.hf(draft=LLAMA.draft),
        )
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


class Counting(RepetitionPenaltyLogitsProcessor):
    """A subclass of a known processor is not known."""


def two(*mask: list[int]) -> dict[str, Tensor]:
    """Two prompts with this mask."""
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    return {"input_ids": ids, "attention_mask": torch.tensor(mask)}


def of_a_mask_longer_than_the_prompt() -> dict:
    past = model_of(LLAMA)(torch.tensor([[1, 2]]), use_cache=True).past_key_values
    ones = torch.ones(1, 3, dtype=torch.long)
    return {"past_key_values": past, "inputs": {"input_ids": ones[:, :1], "attention_mask": ones}}


@pytest.mark.parametrize(
    ("message", "settings"),
    [
        ("'beam_search' is not supported", {"num_beams": 2}),
        ("'assisted_generation' is not supported", {"assistant_model": LLAMA.draft.model}),
        ("Counting cannot be applied", {"logits_processor": [Counting(1.2)]}),
        ("pad_token_id must be set", {"stopping_criteria": [StopAfterWithEos(5)]}),
        ("must be left padding", {"inputs": two([1, 1, 0], [1, 1, 1])}),
        ("must be left padding", {"inputs": two([1, 0, 1], [1, 1, 1])}),
        ("prompt 1 is empty", {"inputs": two([1, 1, 1], [0, 0, 0])}),
        ("it has 1 columns and attention_mask 3", of_a_mask_longer_than_the_prompt()),
        ("no draft model", {"kind": specwb.MethodError, "method": specwb.hf("sps")}),
        (
            "vocabulary mismatch",
            {"kind": specwb.LoadError, "method": specwb.hf("sps", draft="lab-draft")},
        ),
        ("exceeds the context", {"kind": specwb.PromptError, "max_new_tokens": 600}),
        ("'beam_sample' is not supported", {"num_beams": 2, "do_sample": True}),
        ("'contrastive_search' is not supported", {"penalty_alpha": 0.6, "top_k": 4}),
        ("'assisted_generation' is not supported", {"prompt_lookup_num_tokens": 3}),
        ("output_attentions=True", {"return_dict_in_generate": True, "output_attentions": True}),
        (
            "output_hidden_states=True",
            {"return_dict_in_generate": True, "output_hidden_states": True},
        ),
        ("synced_gpus", {"synced_gpus": True}),
        (
            "WatermarkLogitsProcessor cannot be applied",
            {"watermarking_config": WatermarkingConfig()},
        ),
        ("UnbatchedClassifierFreeGuidanceLogitsProcessor cannot", {"guidance_scale": 2.0}),
        ("Plain cannot be applied.*set Plain.specwb_pure = True", {"logits_processor": [Plain()]}),
        ("<lambda> cannot be applied", {"logits_processor": [lambda ids, scores: scores]}),
        ("position_ids", {"position_ids": torch.tensor([[5, 6, 7]])}),
        ("'inputs_embeds' is not supported", {"inputs_embeds": torch.zeros(1, 3, 32)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_settings_are_refused_by_name(message, settings):
    assert_refused(message, **settings)


@pytest.mark.parametrize("strings", ["w1", ["w1", "w2"]])
@pytest.mark.parametrize("tokenizer", [None, object()])
def test_stop_strings_are_refused_with_what_replaces_them(strings, tokenizer):
    """The library keeps the tokenizer from a callable, and then says that none was passed."""
    instead = "give stopping_criteria=.*StopStringCriteria"
    assert_refused(instead, stop_strings=strings, tokenizer=tokenizer)


def test_methods_and_options_are_read_before_there_is_a_model():
    with pytest.raises(specwb.MethodError, match="unknown method 'nope'"):
        specwb.hf("nope")
    with pytest.raises(specwb.MethodError, match="pld has no option 'draft'"):
        specwb.hf("pld", draft=LLAMA.draft)
    with pytest.raises(specwb.MethodError, match="sps has no option 'tree'"):
        specwb.hf("sps", draft=LLAMA.draft, tree=3)
    with pytest.raises(specwb.MethodError, match="unknown rule 'nope'"):
        specwb.hf("sps:rule=nope")
    custom = specwb.hf("sps", draft="lab-draft", gamma=3, rule="block")
    assert repr(custom) == "specwb.hf('sps', draft='lab-draft', gamma=3, rule='block')"


def test_it_is_pickled_without_what_it_built():
    model, custom_for = model_of(LLAMA), specwb.hf("sps", draft=LLAMA.draft, gamma=2)
    settings = {"max_new_tokens": 6, "pad_token_id": PAD}
    right = model.generate(**RAGGED, **settings, custom_generate=custom_for).tolist()
    other = pickle.loads(pickle.dumps(custom_for))
    assert model.generate(**RAGGED, **settings, custom_generate=other).tolist() == right


def test_models_that_have_no_fast_path():
    """They run the generic way; bloom counts positions by a mask of two dimensions."""
    config = BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2)
    named = "model type 'bloom' is not supported"
    assert_refused(named, model=BloomForCausalLM(config), kind=specwb.UnsupportedModel)
    adapted = fresh()
    adapted.model.layers[2].mlp.gate_proj = Adapter(32, 64, bias=False)
    assert hf_module.wrap(adapted).backbone.whole


def test_weights_on_several_devices(monkeypatch):
    model = fresh()
    model.model.layers[0].mlp.gate_proj.to("meta")
    with pytest.raises(
        specwb.UnsupportedModel, match="all its weights on one device, they are on cpu, meta"
    ):
        hf_module.wrap(model)
