"""The picture of a test: for which values of a uniform the rule would have decided otherwise.

A rule is a pure function of its uniforms, so the boundaries between its decisions are found by
asking it, whatever it computes inside: the picture cannot differ from the code, and a rule of a
user's own has one too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specwb.rules import NodeRule
from specwb.rules.rule import Visit
from specwb.show.scope.trace import short

GRID = 64  # uniforms that are asked for at first, where there may be several boundaries
HALVINGS = 16  # then each boundary is narrowed so often
MOST = 2**24  # numbers of one question at most
LEAST = 2.0**-33
STAGED = ("rejection", "rrs", "rrsw")
"""Rules that compare with what the rejections before have left; others compare with p."""


def _decide(rule: NodeRule, visit: Visit, row: int, ok: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The rule's answer at the visited node for uniforms ``u [m,draws]``, with children ``ok``."""
    m = len(u)

    def rows(x: Tensor) -> Tensor:
        return x[row].expand(m, *x.shape[1:])

    q = None if visit.q is None else rows(visit.q)
    u = u[:, : rule.draws(visit.tokens.shape[1])]
    return rule.node(rows(visit.p), q, rows(visit.tokens), ok.expand(m, -1), u)


def segments(
    rule: NodeRule,
    visit: Visit,
    row: int,
    index: int,
    label: Callable[[Tensor], Tensor] = lambda choice: choice,
    others: Tensor | None = None,
    grid: int = GRID,
) -> list[list[float]]:
    """Pairs (where it ends, decision) from 0 to 1: what the rule decides at a node, by where
    uniform ``index`` falls. ``label`` maps chosen children ``[m]`` to the decisions that are told
    apart; ``others [draws]`` are the uniforms that stay, default the visit's; ``grid`` uniforms are
    asked for at first, of which 2 are enough for one boundary."""
    base = (visit.u[row] if others is None else others).clone()
    at = float(base[index])

    def ask(values: Tensor) -> Tensor:
        u = base.expand(len(values), -1).clone()
        u[:, index] = values
        return label(_decide(rule, visit, row, visit.ok[row], u)[0])

    points = max(2, min(grid, MOST // visit.p.shape[-1]))
    asked = torch.linspace(LEAST, 1 - LEAST, points, dtype=torch.float64, device=base.device)
    asked = torch.cat([asked, asked.new_tensor([at])]).unique()
    found = ask(asked)
    change = (found[1:] != found[:-1]).nonzero().flatten()
    low, high = asked[change].clone(), asked[change + 1].clone()
    left = found[change]
    for _ in range(HALVINGS if len(change) else 0):
        middle = (low + high) / 2
        same = ask(middle) == left
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    ends = [*((low + high) / 2).tolist(), 1.0]
    decisions = [*left.tolist(), int(found[-1])]
    return [[short(end), int(one)] for end, one in zip(ends, decisions, strict=True)]


def in_turn(
    rule: NodeRule, visit: Visit, row: int, candidate: int, shown: Tensor
) -> dict[str, Any]:
    """The test of one candidate under a rule that tests them one after the other, those before it
    being rejected.

    Returns ``dart``: u, the segments (1: accepted, 0: not); ``r`` and ``q_now``, what is compared,
    at the tokens ``shown``: the residual of p and the draft's distribution after the rejections
    before.
    """
    label = lambda choice: (choice == candidate).long()  # noqa: E731
    dart = {
        "u": short(float(visit.u[row, candidate])),
        "segments": segments(rule, visit, row, candidate, label, grid=2),
    }
    r = residual_after(rule, visit, row, candidate)
    test: dict[str, Any] = {"dart": dart, "r": [short(x) for x in r[shown].tolist()]}
    if visit.q is not None:
        q = visit.q[row].double().clone()
        if rule.name == "rrsw":  # rejected tokens leave q as well
            q[visit.tokens[row, :candidate]] = 0
        total = float(q.sum())
        test["q_now"] = [short(x) for x in (q / total if total > 0 else q)[shown].tolist()]
    return test


def residual_after(rule: NodeRule, visit: Visit, row: int, rejected: int) -> Tensor:
    """``[V]``, normalised: what the first ``rejected`` candidates leave of p."""
    if not rejected or rule.name not in STAGED:
        left = visit.p[row]
    else:
        there = torch.arange(visit.ok.shape[1], device=visit.ok.device) < rejected
        left = _decide(rule, visit, row, visit.ok[row] & there, visit.u[row][None])[1][0]
    return left.double() / left.double().sum()


def drawn(rule: NodeRule, visit: Visit, row: int) -> list[dict[str, Any]]:
    """The darts of a rule that does not test in turn: one for each uniform that decided.

    The decision of a segment is a candidate, or -1 for none of them. ``what`` says what the dart
    decides: ``choose`` a candidate, or ``accept`` the one that was chosen.
    """
    u = visit.u[row][: rule.draws(visit.tokens.shape[1])]
    if rule.name == "typical" or not len(u):
        return []

    def dart(index: int, what: str, others: Tensor | None = None) -> dict[str, Any]:
        parts = segments(rule, visit, row, index, others=others)
        return {"what": what, "u": short(float(u[index])), "segments": parts}

    if len(u) == 1:
        return [dart(0, "choose")]
    if rule.name == "race":  # the first selects, the second accepts
        certain = u.clone()
        certain[1] = LEAST
        return [dart(0, "choose", certain), dart(1, "accept")]
    first = dart(0, "accept")
    choice = int(visit.choice[row])
    decided = visit.q is not None and choice >= 0
    if decided and float(visit.q[row, visit.tokens[row, choice]]) > 0:  # type: ignore[index]
        return [first]
    return [first, dart(1, "choose")]
