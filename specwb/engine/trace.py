"""Explaining a decoding step after the fact: rules are pure, so every test is computed again."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.flow import Step, Verdict
from specwb.rules import Greedy, NodeRule, PointMass, Rule


@dataclass(frozen=True)
class Test:
    """One candidate at one node: what was compared, and the decision.

    Attributes:
        candidate: which of the node's candidates, from 0.
        token: its token id.
        text: its text.
        p: its probability under the target.
        q: its probability under the draft; None where the rule does not use it.
        u: the uniform of the test; None where there was none.
        decision: ``accepted``, ``rejected``, ``not tested`` or ``invalid``. Of several roots also
            ``bonus`` (it became the bonus token) or ``not kept``.
    """

    candidate: int
    token: int
    text: str
    p: float
    q: float | None
    u: float | None
    decision: str


@dataclass(frozen=True)
class NodeTests:
    """All tests among the children of one visited node of one row.

    Attributes:
        depth: the children's depth.
        node: the visited node.
        tests: the tests.
        residual: ``[V]``, normalised: the distribution of the bonus token if nothing was accepted
            here. Under a rule for whole trees: if the path ends here.
    """

    depth: int
    node: int
    tests: list[Test]
    residual: Tensor

    @property
    def accepted(self) -> Test | None:
        """The test of the accepted candidate, None where none was."""
        return next((test for test in self.tests if test.decision == "accepted"), None)


@dataclass(frozen=True)
class Explanation:
    """What was tested for one row in one decoding step.

    p, q and u decide under rejection, RRS, RRSw, top-and-sample and the point-mass rule. k-SEQ
    compares with its scale too, the weighted race with the distribution of what it selects. Rules
    for whole trees have no u, and show the accepted path.

    Attributes:
        row: the row.
        levels: the levels that its walk visited, from the root down.
        bonus: the bonus token.
        bonus_text: its text.
        rule: the rule's name.
        trimmed: whether the end of text or the limit fell inside the accepted block. What lay
            beyond is left out, and the last token shown as accepted is the step's bonus token.
    """

    row: int
    levels: list[NodeTests]
    bonus: int
    bonus_text: str
    rule: str
    trimmed: bool = False

    def at(self, depth: int) -> NodeTests:
        """Returns the tests among nodes of a depth; 1 is that of the root's children.

        Raises:
            ArgumentError: a depth that the walk did not visit.
        """
        if not 1 <= depth <= len(self.levels):
            depths = f"1..{len(self.levels)} (what this row's walk visited)"
            raise ArgumentError(f"depth must be {depths}, got {depth}")
        return self.levels[depth - 1]

    def __str__(self) -> str:
        lines = [f"rule {self.rule}"]
        for level in self.levels:
            lines.append(f"depth {level.depth}:")
            for test in level.tests:
                numbers = (("p", test.p), ("q", test.q), ("u", test.u))
                parts = [f"{name}={value:.3g}" for name, value in numbers if value is not None]
                lines.append(f"  {test.text!r:>14} {'  '.join(parts)}  {test.decision}")
        return "\n".join([*lines, f"bonus token {self.bonus_text!r}"])


def explain(step: Step, row: int = 0) -> Explanation:
    """Recomputes every test of one row in a decoding step from (draft, p, q, u).

    Args:
        step: a step that was traced.
        row: the row.

    Raises:
        ArgumentError: the step was not traced (``trace=True``), there is no such row, or the row
            had finished before the step.
    """
    if not isinstance(step, Step):
        raise ArgumentError(f"a step is what specwb.rounds yields, got {step!r:.200}")
    if step.scores is None:
        how = "use rounds(..., trace=True) or decode(..., trace=True)"
        raise ArgumentError(f"this step was not traced; {how}")
    rows = step.draft.tokens.shape[0]
    if not 0 <= row < rows:
        raise ArgumentError(f"row must be 0..{rows - 1}, got {row}")
    accepted = int(step.verdict.accepted[row])
    if accepted < 0:
        raise ArgumentError(f"row {row} had finished before this step")
    levels = _levels(step, row)
    bonus = int(step.verdict.bonus[row])
    name = step.rule.name if isinstance(step.rule, Rule) else ""
    trimmed = sum(level.accepted is not None for level in levels) > accepted
    return Explanation(row, levels[: accepted + 1], bonus, _text(step, bonus), name, trimmed)


def _levels(step: Step, row: int) -> list[NodeTests]:
    """Verifies the draft again; the levels that the row's walk visits."""
    assert step.scores is not None
    draft, greedy = step.draft, isinstance(step.rule, Greedy)
    if greedy:
        # The greedy walk finds the longest of all paths. One that goes level by level finds it too
        # where equal siblings are one node.
        rule: object = PointMass()
        draft = replace(draft, tree=draft.tree.merged(draft.tokens, draft.valid))
    else:
        rule = copy.copy(step.rule)
    assert isinstance(rule, Rule)
    rule.lazy = False  # all tests are computed here
    uniforms = step.uniforms
    if uniforms is None:  # at T = 0 p is one-hot and any uniform gives the same decision
        shape = len(step.length), rule.uniforms(draft.tree.limits)
        uniforms = torch.full(shape, 0.5, device=step.length.device)
    if not isinstance(rule, NodeRule):
        return _path_levels(step, rule.verify(draft, step.scores, uniforms), row)
    levels = []
    for visit in rule.visits(draft, step.scores, uniforms):
        if not bool(visit.alive[row]) or not bool((visit.kids[row] > 0).any()):
            break
        tests = _node_tests(step, rule, visit, row, greedy)
        residual = visit.residual[row]
        normalised = residual / residual.sum()
        levels.append(NodeTests(visit.depth + 1, int(visit.node[row]), tests, normalised))
    return levels


def _node_tests(step: Step, rule: NodeRule, visit, row: int, greedy: bool) -> list[Test]:
    """The tests among the children of the node that the row's walk visits."""
    choice = int(visit.choice[row])
    candidates = zip(visit.tokens[row].tolist(), visit.ok[row].tolist(), strict=True)
    tests = []
    for j, (token, ok) in enumerate(candidates):
        q = None if greedy or visit.q is None else float(visit.q[row, token])
        if not ok:
            decision = "invalid"
        elif j == choice:
            decision = "accepted"
        elif rule.in_turn and 0 <= choice < j:
            decision = "not tested"
        else:
            decision = "rejected"
        # Rules that do not test in turn draw once among the children; the fixed ones under "top"
        # have q = 0 and a draw of their own.
        index = j if rule.in_turn else int(q == 0 and visit.u.shape[1] > 1)
        u = None if greedy else float(visit.u[row, index])
        p = float(visit.p[row, token])
        tests.append(Test(j, token, _text(step, token), p, q, u, decision))
    return tests


def _path_levels(step: Step, verdict: Verdict, row: int) -> list[NodeTests]:
    """The levels of the accepted path under a rule that decides about the whole tree; no candidate
    is tested alone, so there is no u."""
    assert step.scores is not None
    draft, levels = step.draft, []
    tree = draft.tree
    accepted = int(verdict.accepted[row])
    path = verdict.path[row].tolist()
    for depth, node in enumerate(path[: accepted + 1]):
        nodes = torch.full_like(step.length, node)
        p, q_rows = step.scores.p(nodes)[row], draft.q_of(nodes)
        q = None if q_rows is None else q_rows[row]
        tests = []
        kids = [kid for kid in tree.kids[row if tree.R > 1 else 0, node].tolist() if kid >= 0]
        for j, kid in enumerate(kids):
            token = int(draft.tokens[row, kid])
            decision = _path_decision(step, verdict, row, depth, kid)
            token_q = None if q is None else float(q[token])
            text = _text(step, token)
            tests.append(Test(j, token, text, float(p[token]), token_q, None, decision))
        if tests:
            goes_on = depth < accepted or verdict.distribution is None
            residual = p if goes_on else verdict.distribution[row]  # type: ignore[index]
            levels.append(NodeTests(depth + 1, node, tests, residual / residual.sum()))
    return levels


def _path_decision(step: Step, verdict: Verdict, row: int, depth: int, kid: int) -> str:
    """What became of a child of the accepted path's node at ``depth``."""
    draft, accepted = step.draft, int(verdict.accepted[row])
    if not bool(draft.valid[row, kid]):
        return "invalid"
    if depth < accepted and kid == int(verdict.path[row, depth + 1]):
        return "accepted"
    if verdict.next_distribution is not None:  # of several roots
        token = int(draft.tokens[row, kid])
        if depth == accepted and token == int(verdict.bonus[row]):
            return "bonus"  # a draft token stays as the bonus token
        if depth == 0:
            return "not kept"  # roots are not tested
    return "rejected"


def _text(step: Step, token: int) -> str:
    if step.tokenizer is None:
        return str(token)
    return step.tokenizer.decode([token])  # type: ignore[attr-defined]
