"""Copying in front of a head or a draft model: the text stays, both of them draft, and what a
drafter missed while tokens were copied it makes up for."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
from tiny import EXACT

import specwb
from specwb.drafters.copying import MOST
from specwb.lab.bench.conditions import weights
from specwb.show.scope.recorder import record

LENGTH = 40
ONCE = [3, 1, 4, 1, 5, 9, 2, 6, 53, 58, 9, 7, 9, 32, 38, 46]
PROMPTS = [ONCE + ONCE[:9], ONCE + ONCE + [11], [7], ONCE[::-1] + ONCE[::-1][:6]]
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "sps": ("sps", {"gamma": 3}),
    "mcsd": ("mcsd", {"tree": tiny.LOPSIDED}),
    "medusa": ("medusa", {"tree": (2, 2), "head": "medusa"}),
    "eagle": ("eagle", {"tree": tiny.LOPSIDED, "head": "eagle"}),
    "eagle3": ("eagle3", {"nodes": 7, "depth": 3, "top": 2, "head": "eagle3"}),
    "falcon": ("falcon", {"tree": (2, 1, 1, 1), "head": "falcon"}),
    "falcon, aligned to the left": (
        "falcon",
        {"tree": (1, 1, 1), "align": "left", "head": "falcon"},
    ),
    "kangaroo": ("kangaroo", {"gamma": 3, "eta": 0.1, "head": "kangaroo"}),
    "easyspec": ("easyspec", {"gamma": 3, "groups": "0-1"}),
}
every = pytest.mark.parametrize("name", METHODS)


def target() -> specwb.Target:
    return tiny.target(dtype=EXACT)


def built(name: str, **more: Any) -> specwb.Method:
    return built_of(METHODS[name], **more)


def built_of(row: tuple[str, dict[str, Any]], **more: Any) -> specwb.Method:
    key, options = row
    options = {**options, **more}
    if "head" in options:
        options["head"] = tiny.head(options["head"], dtype=EXACT)
    if "draft" in specwb.METHODS[key].options:
        options["draft"] = tiny.draft(dtype=EXACT)
    return specwb.method(key, target(), **options)


@every
def test_the_text_stays_and_both_draft(name):
    """Every draft that is not copied is that of the drafter alone behind the same text; what pairs
    of Falcon see depends on the steps before."""
    method, alone = built(name, copy=2), built(name)
    copied = drafted = kept = 0
    for step in specwb.rounds(target(), PROMPTS, method, max_new_tokens=LENGTH):
        for row in range(len(PROMPTS)):
            if int(step.verdict.accepted[row]) < 0:
                continue
            before = step.state.tokens[row, : int(step.length[row])].tolist()
            tokens = step.draft.tokens[row, step.draft.valid[row]].tolist()
            if copies(before):
                assert tokens[1:] == followed(before)
                kept += int(step.verdict.accepted[row])
                copied += 1
            else:
                if not name.startswith("falcon"):
                    assert sorted(tokens) == sorted(first_draft(alone, before))
                drafted += len(tokens) > 1
    for row, prompt in enumerate(PROMPTS):
        text = step.state.tokens[row, len(prompt) :][:LENGTH].tolist()
        assert text == list(tiny.plain("llama", tuple(prompt), LENGTH, EXACT))
    assert min(copied, drafted, kept) > 0


def copies(text: list[int]) -> bool:
    """Whether the last two tokens stand earlier in the text."""
    return text[-2:] in [text[s - 2 : s] for s in range(2, len(text))]


def followed(text: list[int]) -> list[int]:
    """What followed the longest match of at most MOST of the last tokens, the first of several."""

    def agreeing(s: int) -> int:
        pairs = zip(text[:s][::-1], text[::-1], strict=False)
        agree = [a == b for a, b in pairs][:MOST]
        return agree.index(False) if False in agree else len(agree)

    s = max(range(1, len(text)), key=agreeing)
    return text[s : s + MOST]


def first_draft(method: specwb.Method, text: list[int]) -> list[int]:
    step = next(iter(specwb.rounds(target(), [text], method, max_new_tokens=MOST)))
    return step.draft.tokens[0, step.draft.valid[0]].tolist()


@pytest.mark.parametrize("name", ["eagle3", "kangaroo"])
def test_recorded_steps_are_the_eager_ones(name, taped):
    method = built(name, copy=2)
    for temperature in (0.0, 1.0):
        run = {"max_new_tokens": 30, "temperature": temperature, "seed": 3}
        eager = specwb.decode(target(), PROMPTS, method, graphs=False, **run)
        out = specwb.decode(target(), PROMPTS, method, **run)
        assert (out.tokens, out.accepted_lengths) == (eager.tokens, eager.accepted_lengths)
    assert all(any(arena.recordings.values()) for arena in method.arenas.values())


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("mcsd:tree=3-1-1,draw=with,copy=3", "copy= is not for drafts"),
        ("mcsd:tree=2-2,draw=with,rule=kseq,copy=3", "'kseq' needs drafts of a fixed shape"),
        ("mcsd:tree=2-2,rule=traversal,copy=3", "'traversal' needs drafts of a fixed shape"),
        ("sps:copy=11", "copy must be an integer in 1..10"),
        ("pld:copy=3", "no option 'copy'"),
    ],
)
def test_what_cannot_be_copied_in_front_of(spec, why):
    with pytest.raises((specwb.MethodError, specwb.RuleMismatch), match=why):
        specwb.method(
            spec, target(), **({} if "pld" in spec else {"draft": tiny.draft(dtype=EXACT)})
        )


def test_a_keyword_of_somebodys_own_drafter_is_not_the_option():
    class Own(specwb.Drafter):
        def __init__(self, copy: bool = False) -> None:
            self.tree, self.copy = specwb.Tree.chain(1), copy

    specwb.register("own_copy", Own)
    try:
        assert type(specwb.method("own_copy", target(), copy=True).drafter) is Own
    finally:
        specwb.unregister("own_copy")


def test_the_microscope_and_results_see_both():
    rounds = record(target(), PROMPTS[0], built("sps", copy=2), max_new_tokens=LENGTH)["rounds"]
    assert {step["lens"]["kind"] for step in rounds} == {"lookup", "model"}
    heads = [weights(target(), [built("eagle", **more)])["sha256"] for more in ({}, {"copy": 2})]
    assert [*heads[0].values()] == [*heads[1].values()]
