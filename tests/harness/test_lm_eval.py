"""The entry point of lm-evaluation-harness, with the harness' two imports in its place.

And with the harness itself where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from tokenizers.processors import TemplateProcessing

import specwb
from specwb.models.load import data_dir

WORDS = [f"w{i}" for i in range(tiny.VOCABULARY)]
CONTEXT = 16  # tokens, of the models that texts are too long for


class Request:
    def __init__(self, *args: object) -> None:
        self.args = args


@pytest.fixture(scope="module")
def module():
    """The module, imported beside a harness of nothing but what it needs."""
    registered = {}
    modules = {
        name: types.ModuleType(name)
        for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model", "lm_eval.api.registry")
    }
    modules["lm_eval.api.model"].TemplateLM = type("TemplateLM", (), {})
    modules["lm_eval.api.registry"].register_model = lambda name: (
        lambda kind: registered.setdefault(name, kind)
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, one in modules.items():
            patch.setitem(sys.modules, name, one)
        found = importlib.import_module("specwb.harness.lm_eval")
    sys.modules.pop("specwb.harness.lm_eval")  # other tests import it beside the harness itself
    return found, registered


@pytest.fixture(scope="module")
def target():
    return specwb.load(tiny.target().model, tokenizer=tiny.tokenizer(WORDS))


def test_texts_are_the_targets_up_to_a_stop_string(module, target):
    _, registered = module
    model = registered["specwb"](target, "pld:gamma=4;ngram=2", batch_size=4)
    assert model.method.key == "pld:gamma=4,ngram=2"
    context = "w3 w4 w5 w3 w4"
    settings = {"until": [], "max_gen_toks": 12}
    (text,) = model.generate_until([Request(context, settings)])
    plain = specwb.decode(target, [context], "ar", max_new_tokens=12)
    # as the harness' own models decode them, alone: the text behind the prompt begins with a space
    assert text == target.tokenizer.decode(plain.tokens[0])
    assert plain.text == f" {text}"
    words = text.split()
    assert model.steps <= model.written == 12
    (short,) = model.generate_until([Request(context, {**settings, "until": [words[5]]})])
    assert short == text[: text.find(words[5])]
    sampled = {**settings, "do_sample": True, "temperature": 1.0}
    one, other = (model.generate_until([Request(context, sampled)] * 2) for _ in range(2))
    assert one == other  # by seed
    assert one[0] != one[1]  # every request has its own
    with pytest.raises(ValueError, match="leaves no room"):
        model.generate_until([Request(context, {"max_gen_toks": 10_000})])


def test_likelihoods_are_the_targets(module, target):
    _, registered = module
    model = registered["specwb"](target)
    ids = [3, 4, 5, 6, 7]
    with torch.no_grad():
        logs = target.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    expected = float(logs[2, 6] + logs[3, 7])
    ((total, is_best),) = model._loglikelihood_tokens([(("", ""), ids[:3], ids[3:])])
    assert total == pytest.approx(expected, abs=1e-4)
    assert is_best == (logs[2].argmax() == 6 and logs[3].argmax() == 7)
    best = int(logs[2].argmax())
    assert model._loglikelihood_tokens([(("", ""), ids[:3], [best])])[0][1]


def test_a_continuation_has_a_context_and_fits(module, target):
    _, registered = module
    model = registered["specwb"](target)
    long = [3] * (target.context + 1)
    model._loglikelihood_tokens([(None, [5], long[1:])])
    with pytest.raises(specwb.ArgumentError, match=r"1 to 512 tokens, .* got 513"):
        model._loglikelihood_tokens([(None, [5], long)])
    with pytest.raises(specwb.ArgumentError, match=r"1 to 512 tokens, .* got 0"):
        model._loglikelihood_tokens([(None, [5], [])])
    with pytest.raises(specwb.ArgumentError, match="BOS or end of text, and it has neither"):
        model._loglikelihood_tokens([(None, [model.prefix_token_id], [5])])


def with_special(adds_bos: bool) -> Any:
    """A tokenizer of words whose first two are ``<s>`` and ``</s>``."""
    known = tiny.tokenizer(["<s>", "</s>", *WORDS[2:]])
    known.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"})
    if adds_bos:
        known.backend_tokenizer.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return known


def test_one_beginning_of_text(module, target, monkeypatch):
    found, registered = module
    known = specwb.load(target.model, tokenizer=with_special(adds_bos=True))
    model = registered["specwb"](known)
    shown = []
    decode = found.decode
    monkeypatch.setattr(
        found, "decode", lambda t, ids, *a, **k: shown.append(ids) or decode(t, ids, *a, **k)
    )
    for text in ("w5 w6", "<s> w5 w6"):
        model.generate_until([Request(text, {"max_gen_toks": 1})])
        assert shown.pop() == [model.tok_encode(text)] == [[0, 5, 6]]
    assert model.prefix_token_id == 0  # not the end of text
    assert model.eot_token_id == 1


LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@pytest.mark.parametrize("name", LENGTHS)
def test_every_name_of_the_number_of_tokens(module, target, name):
    _, registered = module
    model = registered["specwb"](target)
    later = LENGTHS[LENGTHS.index(name) + 1 :]  # of several names the first counts
    model.generate_until([Request("w3 w4", {**dict.fromkeys(later, 9), name: 5})])
    assert model.written == 5


def test_temperature_and_seed(module, target):
    _, registered = module
    model = registered["specwb"](target)

    def text(**settings: Any) -> str:
        return model.generate_until([Request("w3 w4", {"max_gen_toks": 12, **settings})])[0]

    greedy = text()
    assert text(do_sample=True, temperature=0.0) == text(temperature=0, top_k=3) == greedy
    assert text(do_sample=False, temperature=0.8) == greedy
    sampled = text(do_sample=True)
    assert sampled == text(temperature=1.0) == text(temperature=1.0, seed=0) != greedy
    assert text(temperature=1.0, seed=1) != sampled
    assert text(temperature=1.0, top_k=1) == greedy


REFUSED = {
    "repetition_penalty": 1.8,
    "min_p": 0.1,
    "num_beams": 2,
    "no_repeat_ngram_size": 2,
    "max_length": 20,
    "presence_penalty": 0.5,
    "nonsense": 7,
    "temprature": 0.5,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_asks_for_something_is_refused_before_any_work(module, target, name):
    _, registered = module
    model = registered["specwb"](target)
    requests = [Request("w3", {"max_gen_toks": 4}), Request("w3", {name: REFUSED[name]})]
    with pytest.raises(specwb.ArgumentError, match=f"{name}={REFUSED[name]} is not supported"):
        model.generate_until(requests)
    assert model.written == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be an integer >= 1, got 0"),
        ({"temperature": -1.0}, "temperature must be >= 0"),
        ({"temperature": 1.0, "top_p": 0.0}, r"top_p must be in \(0, 1\]"),
        ({"until": [3]}, "until= must be"),
    ],
)
def test_values_that_cannot_be_used(module, target, settings, message):
    _, registered = module
    model = registered["specwb"](target)
    with pytest.raises(ValueError, match=message):
        model.generate_until([Request("w3", {"max_gen_toks": 4}), Request("w3", settings)])
    assert model.written == 0


def test_settings_that_ask_for_nothing_change_nothing(module, target):
    found, registered = module
    model = registered["specwb"](target)
    plain = {"until": [], "max_gen_toks": 6}
    neutral = {**found.ASKS_NOTHING, **plain, "min_p": None, "nonsense": None}
    assert len({*model.generate_until([Request("w3", plain), Request("w3", neutral)])}) == 1


@pytest.fixture(scope="module")
def pair():
    """Makes this model and the harness' ``hf`` of one model and tokenizer with a short context."""
    if not any(one.metadata["Name"] == "lm_eval" for one in importlib.metadata.distributions()):
        pytest.skip("lm-evaluation-harness comes with the extra lm-eval")
    from lm_eval.models.huggingface import HFLM

    from specwb.harness.lm_eval import SpecwbLM

    model = tiny.build("llama", seed=2, max_position_embeddings=CONTEXT, eos_token_id=1)

    def made(adds_bos: bool, **settings: Any) -> tuple[Any, Any]:
        known = with_special(adds_bos)
        theirs = HFLM(pretrained=model, tokenizer=known, batch_size=1, device="cpu", **settings)
        return SpecwbLM(specwb.load(model, tokenizer=known), "pld"), theirs

    return made


def words(count: int, first: int = 2) -> str:
    random = np.random.default_rng(count)
    return " ".join(WORDS[i] for i in random.integers(first, tiny.VOCABULARY, count))


@pytest.mark.parametrize("adds_bos", [False, True], ids=["", "adds-bos"])
def test_whole_texts_beside_the_harness_own_model(pair, adds_bos):
    """One BOS before a text, and windows of the full length, below, at and beyond the context.

    The harness' model would put a second BOS where the tokenizer adds one.
    """
    ours, theirs = pair(adds_bos, **({"add_bos_token": False} if adds_bos else {}))
    texts = [Request(words(count)) for count in (1, 8, 15, 16, 17, 24, 33)]
    right = theirs.loglikelihood_rolling(texts, disable_tqdm=True)
    assert ours.loglikelihood_rolling(texts) == pytest.approx(right, abs=1e-3)
    assert ours.prefix_token_id == theirs.prefix_token_id == 0


def test_a_whole_text_without_special_tokens_begins_with_its_own_first_token(pair, target):
    from specwb.harness.lm_eval import SpecwbLM

    ids = [3, 4, 5, 6, 7]
    with torch.no_grad():
        logs = target.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    right = sum(float(logs[i, token]) for i, token in enumerate(ids[1:]))
    texts = [Request(" ".join(WORDS[i] for i in ids)), Request("w3"), Request("")]
    assert SpecwbLM(target).loglikelihood_rolling(texts) == pytest.approx([right, 0, 0], abs=1e-3)


@pytest.mark.parametrize("adds_bos", [False, True], ids=["", "adds-bos"])
def test_continuations_beside_the_harness_own_model(pair, adds_bos):
    ours, theirs = pair(adds_bos)
    begin = ("", "<s> ", "w5", words(6), words(14), words(15), words(16), words(30))
    texts = [Request(a, " " + words(count, 3)) for a in begin for count in (1, 2, 15)]
    right = theirs.loglikelihood(texts, disable_tqdm=True)
    for own, other in zip(ours.loglikelihood(texts, disable_tqdm=True), right, strict=True):
        assert own[0] == pytest.approx(other[0], abs=1e-3)
        assert own[1] == other[1]


@pytest.mark.parametrize("adds_bos", [False, True], ids=["", "adds-bos"])
def test_texts_beside_the_harness_own_model(pair, adds_bos):
    ours, theirs = pair(adds_bos)
    begin = ("<s> w5 w6", "w5", words(7), words(8), words(9), words(20))
    for settings in ({"max_gen_toks": 8}, {"max_tokens": 8, "until": ["w9", "</s>"]}):
        texts = [Request(text, settings) for text in begin]
        right = theirs.generate_until(texts, disable_tqdm=True)
        assert ours.generate_until(texts) == right


def test_names_are_those_that_the_harness_normalises(pair):
    from lm_eval.models.utils import normalize_gen_kwargs

    from specwb.harness import lm_eval

    numbers = dict.fromkeys(lm_eval.LENGTHS, 0)
    for place in range(len(numbers)):
        own = {other: i for i, other in enumerate(numbers) if i >= place}
        assert normalize_gen_kwargs(own)["max_gen_toks"] == place
        own = {other: i + 1 for other, i in own.items()}
        assert lm_eval._generation(own, CONTEXT).new_tokens == place + 1


def test_wrong_arguments_and_a_device_that_is_not_here(module, target, monkeypatch):
    _, registered = module
    with pytest.raises(ValueError, match="unknown in --model_args: methdo; there are target, meth"):
        registered["specwb"](target, methdo="eagle")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = data_dir() / "lab" / "target"
    model = registered["specwb"](str(folder), device="cuda:0")  # what the harness says by itself
    assert model.target.device.type == "cpu"


TASKS = {
    "text": """
output_type: generate_until
doc_to_text: "Question: {{q}}\\nAnswer:"
doc_to_target: "{{a}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 24, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
    "choice": """
output_type: multiple_choice
doc_to_text: "Question: {{q}}\\nAnswer:"
doc_to_target: 0
doc_to_choice: ["{{a}}", " the sea"]
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{q}} {{a}}"
metric_list: [{metric: bits_per_byte}]
""",
}


@pytest.mark.slow
def test_the_harness_itself_gets_what_its_own_model_says(tmp_path):
    """Texts, likelihoods and those of whole texts: a method's and those of the harness' ``hf``."""
    if not any(one.metadata["Name"] == "lm_eval" for one in importlib.metadata.distributions()):
        pytest.skip("lm-evaluation-harness comes with the extra lm-eval")
    rows = [{"q": f"Tom has {n} apples and buys 3 more.", "a": f" {n + 3}"} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, task in TASKS.items():
        data = (
            f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/rows.jsonl}}}}"
        )
        text = f"task: own_{name}\n{data}\ntest_split: test\n{task}"
        (tmp_path / f"{name}.yaml").write_text(text)
    folder = data_dir() / "lab" / "target"
    said = {}
    for kind, arguments in (
        ("specwb", "method=eagle"),
        ("hf", f"pretrained={folder},dtype=float32"),
    ):
        command = [
            *(sys.executable, "-m", "specwb.harness.lm_eval" if kind == "specwb" else "lm_eval"),
            *("run", "--model", kind),
            *("--model_args", arguments, "--tasks", ",".join(f"own_{name}" for name in TASKS)),
            *("--include_path", str(tmp_path), "--output_path", str(tmp_path / kind)),
            *("--log_samples", "--device", "cpu"),
        ]
        home = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
        environment = os.environ | home
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        for name in TASKS:
            (file,) = (tmp_path / kind).rglob(f"samples_own_{name}_*.jsonl")
            samples = map(json.loads, file.read_text().splitlines())
            said[kind, name] = [sample["resps"] for sample in samples]
    assert said["specwb", "text"] == said["hf", "text"]
    for name in ("choice", "rolling"):
        for own, theirs in zip(said["specwb", name], said["hf", name], strict=True):
            numbers = [[float(np.ravel(one)[0]) for one in row] for row in (own, theirs)]
            assert numbers[0] == pytest.approx(numbers[1], rel=1e-4)
