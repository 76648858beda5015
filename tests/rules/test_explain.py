"""``explain`` recomputes what the engine decided, test by test."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.core.probability import inverse_cdf
from specwb.engine.trace import NodeTests

SPECS = {
    "ar": ("ar", {}),
    "chain": ("sps", {"gamma": 4}),
    "chain, naive": ("sps:rule=point", {"gamma": 4}),
    "tree with replacement": ("mcsd", {"draw": "with"}),
    "lopsided": ("mcsd", {"tree": specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)])}),
}
SEEDS = [11, 12, 13]
every_spec = pytest.mark.parametrize(("spec", "options"), SPECS.values(), ids=SPECS)


def steps(spec: str, options: dict, temperature: float, **more) -> list[specwb.Step]:
    draft = {} if spec == "ar" else {"draft": tiny.draft()}
    settings = {
        "max_new_tokens": [24, 17, 20],
        "temperature": temperature,
        "seed": SEEDS,
        "trace": True,
        **more,
    }
    return list(specwb.rounds(tiny.target(), tiny.PROMPTS, spec, **draft, **options, **settings))


FILTERS = {
    "T0": {"temperature": 0.0},
    "T1": {"temperature": 1.0},
    "filtered": {"temperature": 0.8, "top_k": 3},
}


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
@every_spec
def test_explain_reproduces_every_verdict(spec, options, filters):
    decisions = set()
    for step in steps(spec, options, **filters):
        for row in range(3):
            if int(step.verdict.accepted[row]) >= 0:
                decisions |= check_row(step, row, sampled=filters["temperature"] > 0)
    if spec != "ar":
        assert {"accepted", "rejected"} <= decisions


def check_row(step: specwb.Step, row: int, sampled: bool) -> set[str]:
    """Compares one row's explanation with the verdict; returns the decisions that occurred."""
    verdict = step.verdict
    accepted = int(verdict.accepted[row])
    explanation = specwb.explain(step, row)
    assert explanation.row == row
    assert explanation.rule == step.rule.name
    walk = [level.accepted.token for level in explanation.levels if level.accepted]
    path = verdict.path[row, : accepted + 1].tolist()
    assert walk[:accepted] == step.draft.tokens[row, path[1:]].tolist()
    assert explanation.bonus == int(verdict.bonus[row])
    untrimmed = len(walk) == accepted
    assert untrimmed or bool(step.state.done[row]), "only a row's last block is cut"
    nodes = [level.node for level in explanation.levels[: accepted + 1]]
    assert nodes == path[: len(explanation.levels)]
    decisions = set()
    for depth, level in enumerate(explanation.levels):
        assert level.depth == depth + 1 == int(step.draft.tree.depth[0, level.node]) + 1
        check_level(step, row, level, is_accepted=depth < len(walk))
        check_decisions(level, sampled, explanation.rule)
        check_numbers(step, row, level, sampled)
        decisions |= {test.decision for test in level.tests}
    if untrimmed:
        check_bonus(step, row, explanation, path[-1], sampled)
    return decisions


def check_level(step: specwb.Step, row: int, level: NodeTests, is_accepted: bool) -> None:
    """The tests of a level are those of its node's children, and at most one is accepted."""
    kids = [i for i, parent in enumerate(step.draft.tree.host[0]) if parent == level.node]
    tokens = [test.token for test in level.tests]
    assert tokens[: len(kids)] == step.draft.tokens[row, kids].tolist()
    assert all(test.decision == "invalid" for test in level.tests[len(kids) :])
    assert [test.decision for test in level.tests].count("accepted") == is_accepted
    assert float(level.residual.sum()) == pytest.approx(1, abs=1e-5)


def check_numbers(step: specwb.Step, row: int, level: NodeTests, sampled: bool) -> None:
    """The p and q of each test are those at its node."""
    p = step.scores.p(torch.tensor([level.node] * 3))[row]
    for test in level.tests:
        assert test.p == float(p[test.token])
        if sampled:
            q_row = step.draft.q_row[0, level.node]
            assert test.q == float(step.draft.q[row, q_row, test.token])
        else:
            assert (test.q, test.u) == (None, None)


def check_decisions(level: NodeTests, sampled: bool, rule: str) -> None:
    """The first candidate is accepted iff u q < p, and nothing is tested after an acceptance."""
    decisions = [test.decision for test in level.tests]
    if not sampled:
        valid = [test for test in level.tests if test.decision != "invalid"]
        assert all((test.decision == "accepted") == (test.p == 1) for test in valid)
        return
    first = level.tests[0]
    q = 1 if rule == "point" else first.q
    assert (first.decision == "accepted") == (first.u * q < first.p)
    if "accepted" in decisions:
        index = decisions.index("accepted")
        assert set(decisions[index + 1 :]) <= {"not tested", "invalid"}
        assert "not tested" not in decisions[:index]


def check_bonus(step: specwb.Step, row: int, explanation, last_node: int, sampled: bool) -> None:
    """The bonus token is drawn from the last residual distribution, or from p at the last node."""
    if not sampled:
        assert explanation.bonus == int(step.scores.logits[row, last_node].argmax())
        return
    levels = explanation.levels
    is_rejection = bool(levels) and not levels[-1].accepted
    p = step.scores.p(step.verdict.path[:, -1])[row]
    distribution = levels[-1].residual if is_rejection else p
    drawn = inverse_cdf(distribution[None], step.bonus_uniform[row : row + 1])
    assert int(drawn) == explanation.bonus


def test_a_finished_row_an_untraced_step_and_a_wrong_row_are_refused():
    traced = steps("sps", {}, 1.0, max_new_tokens=[20, 1, 20])
    with pytest.raises(ValueError, match="row 1 had finished"):
        specwb.explain(traced[1], 1)
    for row in (3, -1):
        with pytest.raises(ValueError, match=rf"row must be 0\.\.2, got {row}"):
            specwb.explain(traced[0], row)
    with pytest.raises(ValueError, match="trace=True"):
        specwb.explain(steps("sps", {}, 1.0, trace=False)[0])


def test_a_trimmed_step_is_explained_as_trimmed():
    """A draft model equal to the target: everything is accepted.

    The limit leaves two tokens, the second of which becomes the bonus token.
    """
    target = tiny.target()
    settings = {"draft": target, "gamma": 4, "temperature": 1.0, "trace": True}
    step = next(specwb.rounds(target, [1, 2, 3], "sps", max_new_tokens=2, **settings))
    explanation = specwb.explain(step)
    assert int(step.verdict.accepted[0]) == 1
    assert explanation.trimmed
    assert len(explanation.levels) == 2
    assert explanation.levels[-1].accepted.token == explanation.bonus
    words = specwb.load(target.model, tokenizer=tiny.tokenizer())
    longer = next(specwb.rounds(words, [1, 2, 3], "sps", max_new_tokens=9, **settings))
    explanation = specwb.explain(longer)
    assert not explanation.trimmed
    test = explanation.levels[0].tests[0]
    assert f"'w{test.token}' p={test.p:.3g}  q={test.q:.3g}  u={test.u:.3g}" in str(explanation)
    assert str(explanation).endswith(f"bonus token 'w{int(longer.verdict.bonus[0])}'")
