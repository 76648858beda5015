"""Traces: every method's is what the schema says, tells what was decoded, and draws every dart
where the rule's own decision changes."""

from __future__ import annotations

import json
from functools import cache

import pytest
import tiny
import torch
from jsonschema import Draft202012Validator
from test_protocol import EVERYTHING, FIRST, made

import specwb
from specwb.core.flow import Draft, Scores
from specwb.core.probability import Sampling
from specwb.engine import trace as explained
from specwb.rules import RULES
from specwb.show.scope import TraceError, checked, page, schema, section
from specwb.show.scope.rounds import RATIO, STRETCHES, stretches, thresholds

PROMPT = tiny.PROMPTS[2]
NEW = 12


@cache
def recorded(key: str, temperature: float) -> tuple[dict, specwb.Method]:
    options = next(options for name, options in FIRST if name == key)
    method = made(key, options, EVERYTHING)
    settings = {"max_new_tokens": NEW, "temperature": temperature, "seed": 5}
    trace = specwb.record(EVERYTHING.target, PROMPT, method, **settings)
    return json.loads(json.dumps(trace, allow_nan=False)), method


@pytest.mark.parametrize(("key", "temperature"), [("mcsd", 0.0), *((key, 1.0) for key, _ in FIRST)])
def test_a_trace_tells_what_was_decoded(key, temperature):
    """It is what the schema says, and what a reader sees accepted is what stays; every dart lies in
    the segment that has the decision's label."""
    trace, method = recorded(key, temperature)
    Draft202012Validator(schema()).validate(trace)
    assert checked(trace) == trace
    assert len(json.dumps({**trace, "rounds": trace["rounds"][:8]})) < 300_000
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
        visited = [level["node"] for level in one["levels"]]
        assert visited == one["path"][: len(visited)]
        for level, node in zip(one["levels"], one["path"][1:], strict=False):
            assert [t["child"] for t in level["tests"] if t["decision"] == "accepted"] == [node]
        for level in one["levels"]:
            for test in level["tests"]:
                assert one["parents"][test["child"]] == level["node"]
                if "dart" in test:
                    assert fallen(test["dart"]) == (test["decision"] == "accepted"), test
            chosen = [t["candidate"] for t in level["tests"] if t["decision"] == "accepted"]
            for dart in level["darts"]:
                assert fallen(dart) == (chosen or [-1])[0]
        if "u" in one["bonus"]:
            token, u = one["bonus"]["token"], one["bonus"]["u"]
            (stretch,) = [s for s in one["bonus"]["stretches"] if s[2] == token]
            assert stretch[0] - 1e-3 <= u <= stretch[1] + 1e-3


def fallen(dart: dict) -> int:
    """The decision of the segment that the dart lies in."""
    return next(decision for end, decision in dart["segments"] if dart["u"] <= end + 1e-4)


def test_something_is_tested_in_most_methods():
    """The test above would prove nothing of traces in which nothing happens."""
    rounds = {key: recorded(key, 1.0)[0]["rounds"] for key, _ in FIRST}
    tests = {
        key: [t for r in rounds[key] for x in r["levels"] for t in x["tests"]] for key in rounds
    }
    seen = {key: {test["decision"] for test in tests[key]} for key in tests}
    both = [key for key, decisions in seen.items() if {"accepted", "rejected"} <= decisions]
    assert len(both) >= len(FIRST) - 3, seen
    lenses = {r["lens"]["kind"] for rows in rounds.values() for r in rows if r["lens"]}
    wanted = schema()["$defs"]["round"]["properties"]["lens"]["oneOf"][1]
    assert lenses == set(wanted["properties"]["kind"]["enum"])


P, Q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
FIXED = [name for name in RATIO + STRETCHES if name in RULES]


@pytest.mark.parametrize("name", FIXED)
def test_darts_lie_where_the_rule_decides_otherwise(name):
    """The segments against the rule itself, run on 100 values of one uniform."""
    rule = RULES[name]()
    tokens = [2] if name == "rejection" else [2, 1]
    scheme = next(iter(rule.schemes))
    tree = specwb.Tree.branching(len(tokens))
    p = torch.tensor([P], dtype=torch.float64)
    q = None if name in STRETCHES else torch.tensor([[Q]], dtype=torch.float64)
    rows = torch.tensor([[0] + [-1] * len(tokens)])
    ok = torch.ones(1, tree.n, dtype=torch.bool)
    draft = Draft(tree, torch.tensor([[0, *tokens]]), ok, scheme, q, rows)
    scores = Scores(p.log()[:, None].expand(-1, tree.n, -1), Sampling(1.0))
    tests = [explained.Test(j, x, "", P[x], Q[x], 0.5, "rejected") for j, x in enumerate(tokens)]
    target, draft_p = p[0], torch.tensor(Q, dtype=torch.float64)
    ends = [end for _, _, end in thresholds(tests, target, draft_p, without=name == "rrsw")]
    for u in torch.linspace(0.001, 0.999, 100, dtype=torch.float64).tolist():
        for j in range(len(tokens)):
            uniforms = torch.full((1, len(tokens)), 0.9999, dtype=torch.float64)
            uniforms[0, 0 if name in STRETCHES else j] = u
            (visit,) = rule.visits(draft, scores, uniforms[:, : rule.uniforms(tree.limits)])
            if name in STRETCHES:
                dart = {"u": u, "segments": stretches(tests, target)}
                near = min(abs(u - end) for end, _ in dart["segments"]) < 1e-3
                assert near or fallen(dart) == int(visit.choice[0])
            elif all(end < 0.9999 for end in ends[:j]):
                assert (int(visit.choice[0]) == j) == (u < ends[j])


@pytest.mark.parametrize(
    "wrong",
    [None, [], {}, {"format": "other"}, {"format": "specwb-trace", "version": 2},
     {"format": "specwb-trace", "version": 1}],
)  # fmt: skip
def test_what_is_no_trace_is_refused(wrong):
    with pytest.raises(TraceError, match="trace"):
        checked(wrong)


HOSTILE = "</script><script>document.title='taken'</script><!-- <img src=x onerror=alert(1)>"


def test_no_text_of_a_trace_gets_out_of_its_script():
    trace = json.loads(json.dumps(recorded("ar", 0.0)[0]))
    trace["prompt"]["text"] = HOSTILE
    trace["words"] = dict.fromkeys(trace["words"], HOSTILE)
    trace["method"]["spec"] = HOSTILE
    html = page(trace, command=f"specwb trace {HOSTILE}")
    assert html.count("</script>") == 2 == html.count("<script")
    assert "<img" not in html
    assert "<!--" not in html
    inside = html.split('id="specwb-traces">')[1].split("</script>")[0]
    assert json.loads(inside)["traces"] == [trace]
    with pytest.raises(ValueError, match="name must be letters"):
        section(trace, name='x" onclick="')
