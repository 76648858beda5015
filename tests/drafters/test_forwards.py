"""The forward passes that a method's file states are those that its decoding steps run."""

from __future__ import annotations

import pytest
from test_protocol import CASES, EVERYTHING, FROM_THE_TEXT, PROMPTS, cases, made

import specwb
from specwb.models.backbone import Stack
from specwb.models.fuzzy import Groups
from specwb.models.medusa import MedusaHeads
from specwb.options import MethodError

# of these no option says how far a draft goes, or in how many parts
OPEN = [
    ("kangaroo", {"tree": True}),
    ("diffuspec", {"tree": True}),
    ("diffuspec", {"chunk": 2}),
    ("diffuspec", {"paths": 2}),
]
STATED = [
    (key, options)
    for key, options in CASES
    if not any(key == name and rest.items() <= options.items() for name, rest in OPEN)
]


@pytest.fixture
def ran(monkeypatch):
    """Every forward that runs: whose it is, tokens of a row, first layer, and where it stops."""
    passes: list[tuple] = []

    def stack(self, x, *place, _real=Stack.run, **more):
        passes.append((self, x.shape[1], more.get("first", 0), more.get("last")))
        return _real(self, x, *place, **more)

    def groups(self, stack, x, *place, _real=Groups.run, **more):
        passes.append((stack, x.shape[1], 0, None))
        return _real(self, stack, x, *place, **more)

    def medusa(self, i, x, _real=MedusaHeads.last):
        passes.append((self, 1, 0, 0))
        return _real(self, i, x)

    monkeypatch.setattr(Stack, "run", stack)
    monkeypatch.setattr(Groups, "run", groups)
    monkeypatch.setattr(MedusaHeads, "last", medusa)
    return passes


@cases(STATED)
def test_a_step_runs_the_passes_that_are_stated(key, options, ran):
    method, whole = made(key, options, EVERYTHING), 0
    *drafting, scoring = [(one.model, one.tokens, one.start, one.stop) for one in method.forwards]
    names = {id(EVERYTHING.target.backbone): "target", id(EVERYTHING.draft.backbone): "draft"}
    if key == "diffuspec":
        names[id(method.drafter.model.backbone)] = "draft"
    steps = specwb.rounds(EVERYTHING.target, PROMPTS, method, max_new_tokens=40, eos=())
    next(steps)  # the prompt is processed in it
    ran.clear()
    for step in steps:
        *drafted, scored = [(names.get(id(owner), "head"), *rest) for owner, *rest in ran]
        ran.clear()
        n = step.draft.tree.n  # fewer nodes where a draft was cut because it was unsure
        assert scored == ("target", n, *scoring[2:])
        if key == "diffuspec":  # of the text what is new, k + 1 tokens at most
            assert [one[0] for one in drafted] == [one[0] for one in drafting]
            assert all(one[1] <= most[1] for one, most in zip(drafted, drafting, strict=True))
        else:
            assert drafted == drafting[: None if n == scoring[1] else len(drafted)]
        whole += n == scoring[1]
    assert whole or key in FROM_THE_TEXT or method.drafter.sure is not None


@pytest.mark.parametrize(("key", "options"), OPEN)
def test_passes_that_no_option_says(key, options):
    with pytest.raises(MethodError, match="the passes of a step are those of"):
        specwb.METHODS[key].forwards(options)
