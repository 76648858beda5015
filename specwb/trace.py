"""Explaining a round after the fact: rules are pure, so every test is simply computed again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specwb.flow import Step
from specwb.verify import Greedy, PointMass
from specwb.verify.rule import NodeRule


@dataclass(frozen=True)
class Test:
    """One candidate at one node: what was compared and what came of it."""

    candidate: int
    token: int
    text: str
    p: float
    q: float | None
    u: float | None
    decision: str  # accepted | rejected | not tested | invalid


@dataclass(frozen=True)
class Level:
    """All tests among the children of one visited node of one row."""

    depth: int
    node: int
    tests: list[Test]
    residual: Tensor  # [V], normalised: the closing token's law if nothing was accepted

    @property
    def accepted(self) -> Test | None:
        return next((t for t in self.tests if t.decision == "accepted"), None)


@dataclass(frozen=True)
class Explanation:
    """The levels a row's walk visited, from the root down; ``at(depth)`` is the tests among nodes of that depth (1 = the root's children).

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
    greedy = isinstance(step.rule, Greedy)
    rule = PointMass() if greedy else step.rule
    assert isinstance(rule, NodeRule)
    # the greedy walk finds the longest of all paths: a walk of one level at a time needs equal siblings made one
    draft = replace(step.draft, tree=step.draft.tree.merged(step.draft.tokens, step.draft.valid)) if greedy else step.draft
    tree = draft.tree
    # at T = 0 p is one-hot and any uniform gives the same decision
    u = step.uniforms if step.uniforms is not None else torch.full((rows, tree.D * tree.K), 0.5, device=step.known.device)
    levels = []
    for visit in rule.visits(draft, step.scores, u):
        if not bool(visit.alive[row]) or not bool((visit.kids[row] > 0).any()):
            break
        choice = int(visit.choice[row])
        tests = []
        for j, (token, ok) in enumerate(zip(visit.tokens[row].tolist(), visit.ok[row].tolist(), strict=True)):
            after = 0 <= choice < j and not isinstance(rule, PointMass)
            decision = "invalid" if not ok else "accepted" if j == choice else "not tested" if after else "rejected"
            tests.append(
                Test(
                    j,
                    token,
                    _text(step, token),
                    float(visit.p[row, token]),
                    None if greedy or visit.q is None else float(visit.q[row, token]),
                    None if greedy else float(visit.u[row, 0 if isinstance(rule, PointMass) else j]),
                    decision,
                )
            )
        residual = visit.residual[row]
        levels.append(Level(visit.depth + 1, int(visit.node[row]), tests, residual / residual.sum()))
    closing = int(step.verdict.closing[row])
    name = step.rule.name if hasattr(step.rule, "name") else ""
    kept = int(step.verdict.accepted[row])
    trimmed = sum(level.accepted is not None for level in levels) > kept
    return Explanation(row, levels[: kept + 1], closing, _text(step, closing), name, trimmed)


def _text(step: Step, token: int) -> str:
    tokenizer = step.tokenizer
    return str(token) if tokenizer is None else tokenizer.decode([token])  # type: ignore[attr-defined]
