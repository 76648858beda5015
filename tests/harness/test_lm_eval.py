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

import numpy as np
import pytest
import tiny
import torch

import specwb
from specwb.models.load import data_dir

WORDS = [f"w{i}" for i in range(tiny.VOCABULARY)]


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
        yield found, registered
        sys.modules.pop("specwb.harness.lm_eval", None)


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
    text = " ".join(WORDS[i] for i in ids)
    (rolling,) = model.loglikelihood_rolling([Request(text)])  # this tokenizer has no end of text
    steps = [float(logs[i, token]) for i, token in enumerate(ids[1:])]
    assert rolling == pytest.approx(sum(steps), abs=1e-3)


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
