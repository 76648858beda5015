"""Explaining a round after the fact: rules are pure, so every test is simply computed again."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specwb.flow import Step, Verdict
from specwb.verify import Greedy, NodeRule, PointMass, Rule


@dataclass(frozen=True)
class Test:
    """One candidate at one node: what was compared and what came of it."""

    candidate: int
    token: int
    text: str
    p: float
    q: float | None
    u: float | None
    decision: str  # accepted | rejected | not tested | invalid; of several roots closing | not kept


@dataclass(frozen=True)
class Level:
    """All tests among the children of one visited node of one row."""

    depth: int
    node: int
    tests: list[Test]
    residual: Tensor  # [V], normalised: the closing token's law if nothing was accepted (under a rule for whole trees: if the path ends here)

    @property
    def accepted(self) -> Test | None:
        return next((t for t in self.tests if t.decision == "accepted"), None)


@dataclass(frozen=True)
class Explanation:
    """What was tested in one row's round: the levels its walk visited, from the root down. ``at(depth)`` is the tests among nodes of that depth
    (1 = the root's children).

    p, q and u decide under rejection, RRS, RRSw, top-and-sample and the point-mass rule. k-SEQ compares with its scale too, the weighted race with
    the law of what it selects; rules for whole trees have no u, and show the accepted path.

    trimmed: the end of text or the limit fell inside the accepted block. What lay beyond is left out, and the last token shown as
    accepted is the round's closing token.
    """

    row: int
    levels: list[Level]
    closing: int
    closing_text: str
    rule: str
    trimmed: bool = False

    def at(self, depth: int) -> Level:
        if not 1 <= depth <= len(self.levels):
            raise ValueError(f"depth must be 1..{len(self.levels)} (what this row's walk visited), got {depth}")
        return self.levels[depth - 1]

    def __str__(self) -> str:
        lines = [f"rule {self.rule}"]
        for level in self.levels:
            lines.append(f"depth {level.depth}:")
            for t in level.tests:
                parts = [f"{n}={v:.3g}" for n, v in (("p", t.p), ("q", t.q), ("u", t.u)) if v is not None]
                lines.append(f"  {t.text!r:>14} {'  '.join(parts)}  {t.decision}")
        return "\n".join([*lines, f"closing token {self.closing_text!r}"])


def explain(step: Step, row: int = 0) -> Explanation:
    """Every test of one row's round, recomputed from (draft, p, q, u): p, q, u, decision, residual.

    Raises:
        ValueError: the step was not traced (``trace=True``), or the row had finished before it.
    """
    if step.scores is None:
        raise ValueError("this step was not traced; use rounds(..., trace=True) or decode(..., trace=True)")
    rows = step.draft.tokens.shape[0]
    if not 0 <= row < rows:
        raise ValueError(f"row must be 0..{rows - 1}, got {row}")
    if int(step.verdict.accepted[row]) < 0:
        raise ValueError(f"row {row} had finished before this round")
    levels = _levels(step, row)
    closing = int(step.verdict.closing[row])
    name = step.rule.name if isinstance(step.rule, Rule) else ""
    kept = int(step.verdict.accepted[row])
    trimmed = sum(level.accepted is not None for level in levels) > kept
    return Explanation(row, levels[: kept + 1], closing, _text(step, closing), name, trimmed)


def _levels(step: Step, row: int) -> list[Level]:
    assert step.scores is not None
    greedy = isinstance(step.rule, Greedy)
    rule = PointMass() if greedy else copy.copy(step.rule)
    assert isinstance(rule, Rule)
    rule.lazy = False  # nothing is left out here
    # the greedy walk finds the longest of all paths: a walk of one level at a time needs equal siblings made one
    draft = replace(step.draft, tree=step.draft.tree.merged(step.draft.tokens, step.draft.valid)) if greedy else step.draft
    # at T = 0 p is one-hot and any uniform gives the same decision
    rows, device = len(step.known), step.known.device
    u = step.uniforms if step.uniforms is not None else torch.full((rows, rule.uniforms(draft.tree.limits)), 0.5, device=device)
    if not isinstance(rule, NodeRule):
        return _along(step, rule.verify(draft, step.scores, u), row)
    levels = []
    for visit in rule.visits(draft, step.scores, u):
        if not bool(visit.alive[row]) or not bool((visit.kids[row] > 0).any()):
            break
        choice = int(visit.choice[row])
        tests = []
        for j, (token, ok) in enumerate(zip(visit.tokens[row].tolist(), visit.ok[row].tolist(), strict=True)):
            q = None if greedy or visit.q is None else float(visit.q[row, token])
            decision = "invalid" if not ok else "accepted" if j == choice else "not tested" if rule.in_turn and 0 <= choice < j else "rejected"
            # rules that draw among the children once: the fixed ones under "top" have q = 0 and their own draw
            used = j if rule.in_turn else int(q == 0 and visit.u.shape[1] > 1)
            uniform = None if greedy else float(visit.u[row, used])
            tests.append(Test(j, token, _text(step, token), float(visit.p[row, token]), q, uniform, decision))
        residual = visit.residual[row]
        levels.append(Level(visit.depth + 1, int(visit.node[row]), tests, residual / residual.sum()))
    return levels


def _along(step: Step, verdict: Verdict, row: int) -> list[Level]:
    """The levels of the accepted path under a rule that decides about the whole tree: there are no tests of single candidates, so no u."""
    assert step.scores is not None
    draft, levels = step.draft, []
    accepted = int(verdict.accepted[row])
    of = row if draft.tree.R > 1 else 0
    path = verdict.path[row].tolist()
    for d, node in enumerate(path[: accepted + 1]):
        at = torch.full_like(step.known, node)
        p, q = step.scores.p(at)[row], draft.q_of(at)
        tests = []
        for j, kid in enumerate(k for k in draft.tree.kids[of, node].tolist() if k >= 0):
            token = int(draft.tokens[row, kid])
            taken = d < accepted and kid == path[d + 1]
            left = "not kept" if verdict.ahead is not None and not d else "rejected"  # roots are not tested
            closes = verdict.ahead is not None and d == accepted and token == int(verdict.closing[row])  # a drafted token stays as the closing one
            decision = "invalid" if not bool(draft.valid[row, kid]) else "accepted" if taken else "closing" if closes else left
            tests.append(Test(j, token, _text(step, token), float(p[token]), None if q is None else float(q[row, token]), None, decision))
        if tests:
            law = p if d < accepted or verdict.law is None else verdict.law[row]
            levels.append(Level(d + 1, node, tests, law / law.sum()))
    return levels


def _text(step: Step, token: int) -> str:
    tokenizer = step.tokenizer
    return str(token) if tokenizer is None else tokenizer.decode([token])  # type: ignore[attr-defined]
