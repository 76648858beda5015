"""The entry point of lm-evaluation-harness, with the harness' two imports in its place."""

from __future__ import annotations

import importlib
import sys
import types

import pytest
import tiny
import torch

import specwb

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
    assert text == plain.text
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
