"""One decoding step as an entry of a trace: tree, rows of p and q, tests, bonus token."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from specwb.core.flow import Scheme, Step
from specwb.core.tree import Trie
from specwb.engine.trace import Explanation, explain
from specwb.rules import Greedy, NodeRule, Rule
from specwb.rules.rule import Visit
from specwb.show.scope import darts
from specwb.show.scope.trace import short

TOP = 5  # tokens of a row that are listed beside the candidates
CANDIDATES = 12  # of a node's children
ROWS = 48  # nodes that have a row


class Nodes:
    """The nodes of a draft that are there, numbered anew from the root on, which is 0. Where a walk
    takes nodes with equal paths for one, they are one here.

    Attributes:
        number: node of the draft -> its number here.
        old: the reverse.
        parent, token: by number.
    """

    def __init__(self, step: Step, row: int) -> None:
        draft = step.draft
        tree = draft.tree
        merged = isinstance(step.rule, Greedy) or isinstance(tree, Trie)
        merged = merged or draft.scheme is Scheme.IID_PATHS
        shape = row if tree.R > 1 else 0
        parents = tree.parent[shape].tolist()
        valid, tokens = draft.valid[row].tolist(), draft.tokens[row].tolist()
        self.number, self.old, self.parent, self.token = {0: 0}, [0], [-1], [tokens[0]]
        known: dict[tuple[int, int], int] = {}
        for node in range(1, tree.v):
            if valid[node] and parents[node] in self.number:
                place = self.number[parents[node]], tokens[node]
                if merged and place in known:
                    self.number[node] = known[place]
                    continue
                self.number[node] = known[place] = len(self.old)
                self.old.append(node)
                self.parent.append(self.number[parents[node]])
                self.token.append(tokens[node])
        self.kids: list[list[int]] = [[] for _ in self.old]
        for node, parent in enumerate(self.parent[1:], 1):
            self.kids[parent].append(node)

    def child(self, parent: int, token: int) -> int | None:
        """The first child of a node with this token."""
        return next((kid for kid in self.kids[parent] if self.token[kid] == token), None)


def as_round(step: Step, row: int = 0) -> dict[str, Any]:
    """One row of a decoding step, as the schema of docs/trace.md says, without the words,
    the clock and the lens.

    Args:
        step: a step that was traced.
        row: the row.
    Raises:
        ValueError: as :func:`specwb.explain` does.
    """
    assert step.scores is not None
    explained = explain(step, row)
    nodes = Nodes(step, row)
    verdict = step.verdict
    accepted = int(verdict.accepted[row])
    path = verdict.path[row, : accepted + 1].tolist()
    bonus, left = _bonus(step, row, explained, nodes, path[-1])
    on_path = [nodes.number[node] for node in path if node in nodes.number]
    tested = [nodes.number.get(level.node, 0) for level in explained.levels]
    inner = [node for node, kids in enumerate(nodes.kids) if kids]
    wanted = list(dict.fromkeys([*tested, *on_path, *inner]))[:ROWS]
    rows = {}
    for node in wanted:
        last = node == bonus["node"]
        rows[str(node)] = _row(step, row, nodes, node, left if last else None, bonus["token"])
    beside = step.draft.tree.n - step.draft.tree.v
    return {
        "index": step.index,
        "length": int(step.length[row]),
        "parents": nodes.parent,
        "tokens": nodes.token,
        "beside": beside,
        "rows": rows,
        "levels": _levels(step, row, explained, nodes, rows),
        "path": on_path,
        "accepted": accepted,
        "bonus": bonus,
        "trimmed": explained.trimmed,
    }


def _levels(
    step: Step, row: int, explained: Explanation, nodes: Nodes, rows: dict[str, Any]
) -> list[dict[str, Any]]:
    """The tests by visited node, with darts and what each compared at the tokens of its row."""
    rule: Any = step.rule
    visits: list[Visit] = []
    if isinstance(rule, NodeRule) and not isinstance(rule, Greedy) and step.uniforms is not None:
        rule = copy.copy(rule)
        rule.lazy = False
        assert step.scores is not None
        visits = list(rule.visits(step.draft, step.scores, step.uniforms))
    levels = []
    for place, level in enumerate(explained.levels):
        node = nodes.number.get(level.node, 0)
        visit = visits[place] if place < len(visits) else None
        shown = torch.tensor(rows[str(node)]["tokens"], device=level.residual.device)
        tests, stays = [], False
        for test in level.tests:
            if test.decision == "invalid":
                continue
            child = nodes.child(node, test.token)
            if visit is not None:
                child = nodes.number.get(int(visit.kids[row, test.candidate]), child)
            entry = {
                "candidate": test.candidate,
                "child": child,
                "token": test.token,
                "p": short(test.p),
                "q": None if test.q is None else short(test.q),
                "decision": test.decision,
            }
            if visit is not None and rule.in_turn and test.decision != "not tested":
                entry |= darts.in_turn(rule, visit, row, test.candidate, shown)
            stays = stays or test.decision == "accepted"
            tests.append(entry)
        levels.append(
            {
                "node": node,
                "depth": level.depth,
                "tests": tests,
                "residual": None if stays else [short(x) for x in level.residual[shown].tolist()],
                "darts": [] if visit is None or rule.in_turn else darts.drawn(rule, visit, row),
            }
        )
    return levels


def _row(
    step: Step, row: int, nodes: Nodes, node: int, left: Tensor | None, bonus: int
) -> dict[str, Any]:
    """p, q and, where the path ends, what the bonus token is drawn from, at one node."""
    assert step.scores is not None
    at = torch.full_like(step.length, nodes.old[node])
    logits = step.scores.logits[row, nodes.old[node]].double()
    greedy = step.scores.sampling.greedy
    p = logits.softmax(-1) if greedy else step.scores.p(at)[row].double()
    q = None
    draft = step.draft
    if draft.q is not None and draft.q_row is not None:
        where = int(draft.q_row[row if len(draft.q_row) > 1 else 0, nodes.old[node]])
        if where >= 0 and nodes.kids[node]:
            q = draft.q[row, where].double()
    listed = [nodes.token[kid] for kid in nodes.kids[node][:CANDIDATES]]
    listed += p.topk(min(TOP, len(p))).indices.tolist()
    if q is not None:
        listed += q.topk(min(3, len(q))).indices.tolist()
    if left is not None:
        listed += [*left.topk(min(3, len(left))).indices.tolist(), bonus]
    tokens = list(dict.fromkeys(listed))
    index = torch.tensor(tokens, device=p.device)

    def at_tokens(x: Tensor | None) -> list[float] | None:
        return None if x is None else [short(one) for one in x[index].tolist()]

    return {"tokens": tokens, "p": at_tokens(p), "q": at_tokens(q), "left": at_tokens(left)}


def _bonus(
    step: Step, row: int, explained: Explanation, nodes: Nodes, last: int
) -> tuple[dict[str, Any], Tensor | None]:
    """The origin of the bonus token, and the distribution ``[V]`` it was drawn from."""
    token, verdict = int(step.verdict.bonus[row]), step.verdict
    bonus: dict[str, Any] = {"token": token, "node": nodes.number.get(last, 0), "how": "argmax"}
    if explained.trimmed:
        return bonus | {"how": "cut"}, None
    if verdict.distribution is None:
        if verdict.next_distribution is not None:
            bonus["how"] = "root"
        return bonus, None
    left = verdict.distribution[row].double()
    left = left / left.sum()
    ended_at = next((one for one in explained.levels if one.node == last), None)
    bonus["how"] = "p" if ended_at is None else "residual"
    if step.bonus_uniform is not None:
        cdf = left.cumsum(0)
        shown = sorted({*left.topk(min(TOP, len(left))).indices.tolist(), token})
        stretches = []
        for one in shown:
            end = float(cdf[one])
            stretches.append([short(end - float(left[one])), short(end), one])
        bonus |= {"u": short(float(step.bonus_uniform[row])), "stretches": stretches}
    return bonus, left


def rule_of(step: Step) -> dict[str, str]:
    """The rule's name and, in its own words, what it does."""
    rule = step.rule
    assert isinstance(rule, Rule)
    words = (type(rule).__doc__ or "").strip().split("\n\n")[0]
    text = " ".join(words.replace("``", "").split())
    return {"name": rule.name, "words": text, "exactness": rule.exactness.value}
