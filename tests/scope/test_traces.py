"""Traces: every method's is what the schema says, tells what was decoded, and draws every dart
where the rule's own decision changes."""

from __future__ import annotations

import json
from functools import cache

import pytest
import tiny
import torch
from jsonschema import Draft202012Validator
from test_protocol import EVERYTHING, FIRST, Scorer, made

import specwb
from specwb.core.flow import Draft, Scheme, Scores
from specwb.core.probability import Sampling
from specwb.rules import RULES
from specwb.show.palette import VOCABULARY
from specwb.show.scope import TraceError, checked, darts, module, page, schema, section

PROMPT = tiny.PROMPTS[2]
NEW = 20


@cache
def recorded(key: str, temperature: float) -> tuple[dict, specwb.Method]:
    options = next(options for name, options in FIRST if name == key)
    method = made(key, options, EVERYTHING)
    trace = specwb.record(
        EVERYTHING.target, PROMPT, method, max_new_tokens=NEW, temperature=temperature, seed=5,
        repeats=1,
    )  # fmt: skip
    return json.loads(json.dumps(trace, allow_nan=False)), method


every_trace = pytest.mark.parametrize(
    ("key", "temperature"), [(key, heat) for key, _ in FIRST for heat in (0.0, 1.0)]
)


@every_trace
def test_a_trace_is_what_the_schema_says_and_small(key, temperature):
    trace, _ = recorded(key, temperature)
    Draft202012Validator(schema()).validate(trace)
    assert checked(trace) == trace
    eight = json.dumps({**trace, "rounds": trace["rounds"][:8]})
    assert len(eight) < 300_000


@every_trace
def test_a_trace_tells_what_was_decoded(key, temperature):
    trace, method = recorded(key, temperature)
    out = specwb.decode(
        EVERYTHING.target, PROMPT, method, max_new_tokens=NEW, temperature=temperature, seed=5
    )
    assert trace["tokens"] == out.tokens[0]
    assert [one["accepted"] for one in trace["rounds"]] == out.accepted_lengths[0]
    for one in trace["rounds"]:
        kept = [one["tokens"][node] for node in one["path"][1:]]
        assert [token for token, _ in one["text"]] == [*kept, one["bonus"]["token"]]
        for child, parent in zip(one["path"][1:], one["path"], strict=False):
            assert one["parents"][child] == parent
    assert len(trace["plain"]["seconds"]) == NEW


@every_trace
def test_tests_of_a_trace_lead_along_the_path(key, temperature):
    """What a reader sees accepted is what stays, and every dart lies in the part that says what was
    decided."""
    trace, _ = recorded(key, temperature)
    for one in trace["rounds"]:
        visited = [level["node"] for level in one["levels"]]
        assert visited == one["path"][: len(visited)]
        for level, node in zip(one["levels"], one["path"][1:], strict=False):
            assert [t["child"] for t in level["tests"] if t["decision"] == "accepted"] == [node]
        for level in one["levels"]:
            for test in level["tests"]:
                assert one["parents"][test["child"]] == level["node"]
                if "dart" in test:
                    accepted = test["decision"] == "accepted"
                    assert fallen(test["dart"]) == accepted, test
            chosen = [t["candidate"] for t in level["tests"] if t["decision"] == "accepted"]
            if level["darts"] and level["darts"][-1]["what"] == "choose":
                assert fallen(level["darts"][-1]) == (chosen or [-1])[0]
        if "u" in one["bonus"]:
            token = one["bonus"]["token"]
            (stretch,) = [s for s in one["bonus"]["stretches"] if s[2] == token]
            assert stretch[0] - 1e-3 <= one["bonus"]["u"] <= stretch[1] + 1e-3


def fallen(dart: dict) -> int:
    """The decision of the part that the dart lies in."""
    return next(decision for end, decision in dart["segments"] if dart["u"] <= end + 1e-4)


def test_something_is_tested_in_most_methods():
    """The tests above would prove nothing of traces in which nothing happens."""
    seen = {
        key: {t["decision"] for r in recorded(key, 1.0)[0]["rounds"] for x in r["levels"]
              for t in x["tests"]}
        for key, _ in FIRST
    }  # fmt: skip
    both = [key for key, decisions in seen.items() if {"accepted", "rejected"} <= decisions]
    assert len(both) >= len(FIRST) - 3, seen
    lenses = {r["lens"]["kind"] for key, _ in FIRST for r in recorded(key, 1.0)[0]["rounds"]
              if r["lens"]}  # fmt: skip
    wanted = schema()["$defs"]["round"]["properties"]["lens"]["oneOf"][1]
    assert lenses == set(wanted["properties"]["kind"]["enum"])


P, Q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]


def visit(name: str, tokens: list[int], scheme: Scheme, u: list[float], q=Q):
    """One node with these children, under a rule."""
    rule = RULES[name]()
    tree = specwb.Tree.branching(len(tokens))
    p = torch.tensor([P], dtype=torch.float64)
    draft = Draft(
        tree,
        torch.tensor([[0, *tokens]]),
        torch.ones(1, tree.n, dtype=torch.bool),
        scheme,
        None if q is None else torch.tensor([[q]], dtype=torch.float64),
        torch.tensor([[0] + [-1] * len(tokens)]),
    )
    scores = Scores(p.log()[:, None].expand(-1, tree.n, -1), Sampling(1.0))
    (one,) = rule.visits(draft, scores, torch.tensor([u], dtype=torch.float64))
    return rule, one


def test_a_dart_is_accepted_below_p_over_q():
    rule, one = visit("rejection", [2], Scheme.IID, [0.9])
    test = darts.in_turn(rule, one, 0, 0, torch.tensor([0, 1, 2]))
    assert test["dart"]["segments"] == [[pytest.approx(0.2 / 0.6, abs=1e-4), 1], [1.0, 0]]
    assert test["r"] == P
    assert test["q_now"] == Q


def test_the_second_candidate_is_compared_with_the_residual():
    """By hand: token 2 is rejected, which leaves (.3, .1, 0) of p. Of independent draws q stays,
    and token 1 is kept below (.1 / .4) / .2; without replacement q is (.5, .5) then."""
    rule, one = visit("rrs", [2, 1], Scheme.IID, [0.9, 0.9])
    test = darts.in_turn(rule, one, 0, 1, torch.tensor([0, 1, 2]))
    assert test["r"] == pytest.approx([0.75, 0.25, 0.0], abs=1e-3)
    assert test["q_now"] == pytest.approx(Q)
    assert test["dart"]["segments"] == [[1.0, 1]]  # .25 / .2 is more than 1
    rule, one = visit("rrsw", [2, 1], Scheme.WITHOUT_REPLACEMENT, [0.9, 0.9])
    test = darts.in_turn(rule, one, 0, 1, torch.tensor([0, 1, 2]))
    assert test["q_now"] == pytest.approx([0.5, 0.5, 0.0], abs=1e-3)
    assert test["dart"]["segments"] == [[pytest.approx(0.5, abs=1e-4), 1], [1.0, 0]]


def test_of_fixed_candidates_the_dart_chooses():
    rule, one = visit("point", [1, 2], Scheme.POINT, [0.7], q=None)
    (dart,) = darts.drawn(rule, one, 0)
    near = [pytest.approx(end, abs=1e-4) for end in (0.3, 0.5, 1.0)]
    assert dart["segments"] == [[near[0], 0], [near[1], 1], [near[2], -1]]


def test_of_a_race_one_dart_chooses_and_one_accepts():
    rule, one = visit("race", [2, 0], Scheme.IID, [0.4, 0.9])
    choose, accept = darts.drawn(rule, one, 0)
    assert (choose["what"], accept["what"]) == ("choose", "accept")
    assert {decision for _, decision in choose["segments"]} == {0, 1}
    assert fallen(accept) == int(one.choice[0])


@pytest.mark.parametrize(
    "wrong",
    [None, [], {}, {"format": "other"}, {"format": "specwb-trace", "version": 2},
     {"format": "specwb-trace", "version": 1}],
)  # fmt: skip
def test_what_is_no_trace_is_refused(wrong):
    with pytest.raises(TraceError, match="trace"):
        checked(wrong)


def test_a_recording_needs_a_run():
    with pytest.raises(ValueError, match="repeats must be an integer >= 1, got 0"):
        specwb.record(tiny.target(), PROMPT, "ar", repeats=0)


HOSTILE = "</script><script>document.title='taken'</script><!-- <img src=x onerror=alert(1)>"


def test_no_text_of_a_trace_gets_out_of_its_script():
    trace = json.loads(json.dumps(recorded("ar", 0.0)[0]))
    trace["prompt"]["text"] = HOSTILE
    trace["words"] = dict.fromkeys(trace["words"], HOSTILE)
    trace["method"]["spec"] = HOSTILE
    html = page(trace, title=HOSTILE, command=f"specwb trace {HOSTILE}")
    assert html.count("</script>") == 2 == html.count("<script")
    assert "<img" not in html
    assert "<!--" not in html
    inside = html.split('id="specwb-traces">')[1].split("</script>")[0]
    assert json.loads(inside)["traces"] == [trace]
    with pytest.raises(ValueError, match="name must be letters"):
        section(trace, name='x" onclick="')


def test_the_module_parses_no_text_as_html_and_has_the_colours():
    code = module()
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                "new Function", "srcdoc", "fetch(", "XMLHttpRequest", "import("):  # fmt: skip
        assert way not in code
    for name, colour in VOCABULARY.items():
        assert f'"{name}": "{colour}"' in code
    assert "#0072B2" not in code.split("\n", 1)[1]  # nowhere but in the first line


@pytest.mark.parametrize("more", [{}, {"draw": "sample", "paths": 2}, {"tree": True}], ids=str)
def test_a_learned_walk_shows_what_it_went_by(more):
    """The scores of the drafted tokens are the walk's own, behind the tokens before them."""
    target = EVERYTHING.target
    options = {"k": 3, "score": Scorer(), **more}
    trace = specwb.record(
        target, PROMPT, made("diffuspec", options, EVERYTHING), max_new_tokens=6, temperature=1.0,
        seed=5, repeats=1,
    )  # fmt: skip
    Draft202012Validator(schema()).validate(trace)
    one = trace["rounds"][0]
    lens = one["lens"]
    assert (lens["kind"], lens["learned"]) == ("lattice", "pair")
    for path in lens["paths"]:
        for i, rank in enumerate(path["ranks"]):
            place = lens["places"][i]
            at = place["ranks"].index(rank)
            assert place["tokens"][at] == path["tokens"][i]
            assert place["logq"][at] == path["logq"][i]
            if path is lens["paths"][0]:
                assert place["logr"][at] == path["logr"][i]
    node, drafted = 0, set()
    for path in lens["paths"]:
        node = 0
        for token in path["tokens"]:
            below = [i for i, parent in enumerate(one["parents"]) if parent == node]
            node = next(i for i in below if one["tokens"][i] == token)
            drafted.add(node)
    every = set(range(1, len(one["tokens"])))
    assert drafted <= every
    if more.get("draw") != "sample":  # a drawn walk is shown up to a token that is no candidate
        assert drafted == every, "every drafted token is on a walk"
