"""One decoding step as an entry of a trace: tree, rows of p and q, tests, bonus token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from specwb.core.flow import Scheme, Step
from specwb.core.tree import Trie
from specwb.engine.trace import Explanation, NodeTests, Test, explain
from specwb.rules import Greedy, Rule
from specwb.show.scope.trace import Part, short

TOP = 5  # tokens of a row that are listed next to the candidates
CANDIDATES = 12  # of a node's children
ROWS = 48  # nodes that have a row
RATIO = ("rejection", "rrs", "rrsw")
"""Rules that accept a candidate iff its uniform is below a ratio (:func:`thresholds`)."""
STRETCHES = ("point", "naive")
"""Rules that accept the candidate in whose stretch of cumulative p their one uniform falls."""


class DraftNodes:
    """The valid nodes of a draft, numbered anew from the root, which is 0. Where a walk treats
    nodes with equal paths as one, they are one here.

    Attributes:
        number: node of the draft -> its number here.
        old: the reverse.
        parent, token: by number.
        kids: the children of each node, in drawing order.
    """

    def __init__(self, step: Step) -> None:
        draft = step.draft
        tree = draft.tree
        merged = isinstance(step.rule, Greedy) or isinstance(tree, Trie)
        merged = merged or draft.scheme is Scheme.IID_PATHS
        parents = tree.parent[0].tolist()
        valid, tokens = draft.valid[0].tolist(), draft.tokens[0].tolist()
        self.number, self.old, self.parent, self.token = {0: 0}, [0], [-1], [tokens[0]]
        known: dict[tuple[int, int], int] = {}
        for node in range(1, tree.v):
            if not valid[node] or parents[node] not in self.number:
                continue
            place = self.number[parents[node]], tokens[node]
            if merged and place in known:
                self.number[node] = known[place]
                continue
            self.number[node] = known[place] = len(self.old)
            self.old.append(node)
            self.parent.append(place[0])
            self.token.append(tokens[node])
        self.kids: list[list[int]] = [[] for _ in self.old]
        for node, parent in enumerate(self.parent[1:], 1):
            self.kids[parent].append(node)

    def children(self, parent: int, tokens: Sequence[int]) -> list[int | None]:
        """The children of a node that candidates with these tokens are: of equal tokens the
        first candidate is the first child, and so on while there are further ones."""
        places: list[int | None] = []
        for token in tokens:
            same = [kid for kid in self.kids[parent] if self.token[kid] == token]
            left = [kid for kid in same if kid not in places]
            places.append(next(iter(left or same), None))
        return places


def as_round(step: Step) -> Part:
    """A decoding step of one row, as the schema of docs/trace.md says, without words and lens.

    Args:
        step: a step that was traced.
    Raises:
        ArgumentError: as :func:`specwb.explain` does.
    """
    explained = explain(step)
    nodes = DraftNodes(step)
    accepted = int(step.verdict.accepted[0])
    path = step.verdict.path[0, : accepted + 1].tolist()
    bonus, left = _bonus(step, explained, nodes, path[-1])
    on_path = [nodes.number[node] for node in path if node in nodes.number]
    tested = [nodes.number.get(level.node, 0) for level in explained.levels]
    inner = [node for node, kids in enumerate(nodes.kids) if kids]
    rows = {}
    for node in list(dict.fromkeys([*tested, *on_path, *inner]))[:ROWS]:
        drawn_from = left if node == bonus["node"] else None
        rows[str(node)] = _row(step, nodes, node, drawn_from, bonus["token"])
    return {
        "index": step.index,
        "length": int(step.length[0]),
        "parents": nodes.parent,
        "tokens": nodes.token,
        "beside": step.draft.tree.n - step.draft.tree.v,
        "rows": rows,
        "levels": [_level(step, level, nodes, rows) for level in explained.levels],
        "path": on_path,
        "accepted": accepted,
        "bonus": bonus,
        "trimmed": explained.trimmed,
    }


def _distributions(step: Step, node: int, inner: bool = True) -> tuple[Tensor, Tensor | None]:
    """p ``[V]`` at a node of the draft, at temperature 0 that at temperature 1; q ``[V]`` of its
    children, None where they are fixed and at nodes that are not ``inner``."""
    assert step.scores is not None
    at = torch.full_like(step.length, node)
    greedy = step.scores.sampling.greedy
    logits = step.scores.logits[0, node].double()
    p = logits.softmax(-1) if greedy else step.scores.p(at)[0].double()
    draft, q = step.draft, None
    if inner and draft.q is not None and draft.q_row is not None:
        place = int(draft.q_row[0, node])
        q = draft.q[0, place].double() if place >= 0 else None
    return p / p.sum(), q


def _level(step: Step, level: NodeTests, nodes: DraftNodes, rows: Part) -> Part:
    """The tests at one visited node, each with its threshold and what it compared at the tokens
    of the node's row."""
    node = nodes.number.get(level.node, 0)
    shown = torch.tensor(rows[str(node)]["tokens"], device=level.residual.device)
    tests = [test for test in level.tests if test.decision != "invalid"]
    kids = nodes.children(node, [test.token for test in tests])
    name = step.rule.name if isinstance(step.rule, Rule) else ""
    entries: list[Part] = [
        {
            "candidate": test.candidate,
            "child": child,
            "token": test.token,
            "p": short(test.p),
            "q": None if test.q is None else short(test.q),
            "decision": test.decision,
        }
        for test, child in zip(tests, kids, strict=True)
    ]
    p, q = _distributions(step, level.node)
    darts = []
    if name in RATIO and q is not None:
        compared = thresholds(tests, p, q, without=name == "rrsw")
        for entry, test, (r, q_now, end) in zip(entries, tests, compared, strict=True):
            if test.decision == "not tested":
                break
            segments = [[short(end), 1]] * (end > 0) + [[1.0, 0]] * (end < 1)
            entry["dart"] = {"u": short(test.u or 0.0), "segments": segments}
            entry["r"] = [short(x) for x in r[shown].tolist()]
            entry["q_now"] = [short(x) for x in q_now[shown].tolist()]
    elif name in STRETCHES and tests:
        darts.append({"u": short(tests[0].u or 0.0), "segments": stretches(tests, p)})
    stays = any(test.decision == "accepted" for test in tests)
    return {
        "node": node,
        "depth": level.depth,
        "tests": entries,
        "residual": None if stays else [short(x) for x in level.residual[shown].tolist()],
        "darts": darts,
    }


def thresholds(
    tests: Sequence[Test], p: Tensor, q: Tensor, without: bool
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """The comparison of each candidate, those before it being rejected: candidate x is accepted
    iff its uniform is below ``min(1, r(x) / q(x))``.

    r is p at first and ``norm((r - q)+)`` after each rejection (recursive rejection sampling);
    sampling ``without`` replacement, rejected tokens leave q as well.

    Args:
        tests: of the candidates, in drawing order.
        p, q: ``[V]``, normalised.
    Returns:
        r and q ``[V]``, and the threshold.
    """
    r = p
    for test in tests:
        qx = float(q[test.token])
        yield r, q, min(1.0, float(r[test.token]) / qx) if qx > 0 else 0.0
        if qx == 0:
            continue
        left = (r - q).relu()
        r = left / left.sum() if left.sum() > 0 else r
        if without:
            q = q.clone()
            q[test.token] = 0
            q = q / q.sum() if q.sum() > 0 else q


def stretches(tests: Sequence[Test], p: Tensor) -> list[list[float]]:
    """Pairs (where it ends, candidate) along the children's cumulative p, equal ones counted
    once; beyond them -1: none is accepted."""
    pairs: list[list[float]] = []
    end, seen = 0.0, set()
    for test in tests:
        if test.token not in seen:
            end += float(p[test.token])
            pairs.append([short(end), test.candidate])
        seen.add(test.token)
    return [*pairs, [1.0, -1]]


def _row(step: Step, nodes: DraftNodes, node: int, left: Tensor | None, bonus: int) -> Part:
    """p, q and, where the path ends, the distribution of the bonus token, at one node."""
    p, q = _distributions(step, nodes.old[node], inner=bool(nodes.kids[node]))
    listed = [nodes.token[kid] for kid in nodes.kids[node][:CANDIDATES]]
    for values, count in ((p, TOP), (q, 3), (left, 3)):
        if values is not None:
            listed += values.topk(min(count, len(values))).indices.tolist()
    if left is not None:
        listed.append(bonus)
    tokens = list(dict.fromkeys(listed))
    entry: Part = {"tokens": tokens}
    for name, values in (("p", p), ("q", q), ("left", left)):
        entry[name] = None if values is None else [short(x) for x in values[tokens].tolist()]
    return entry


def _bonus(
    step: Step, explained: Explanation, nodes: DraftNodes, last: int
) -> tuple[Part, Tensor | None]:
    """The origin of the bonus token, and the distribution ``[V]`` that it was drawn from."""
    token, verdict = int(step.verdict.bonus[0]), step.verdict
    bonus: Part = {"token": token, "node": nodes.number.get(last, 0), "how": "argmax"}
    if explained.trimmed:
        return bonus | {"how": "cut"}, None
    if verdict.distribution is None:
        if verdict.next_distribution is not None:
            bonus["how"] = "root"
        return bonus, None
    left = verdict.distribution[0].double()
    left = left / left.sum()
    ended_at = next((level for level in explained.levels if level.node == last), None)
    bonus["how"] = "p" if ended_at is None else "residual"
    if step.bonus_uniform is not None:
        ends = left.cumsum(0)
        shown = sorted({*left.topk(min(TOP, len(left))).indices.tolist(), token})
        bonus["u"] = short(float(step.bonus_uniform[0]))
        bonus["stretches"] = [
            [short(float(ends[x] - left[x])), short(float(ends[x])), x] for x in shown
        ]
    return bonus, left


def rule_of(step: Step) -> dict[str, str]:
    """The rule's name, the first paragraph of its docstring, and its exactness."""
    rule = step.rule
    assert isinstance(rule, Rule)
    words = (type(rule).__doc__ or "").strip().split("\n\n")[0]
    text = " ".join(words.replace("``", "").split())
    return {"name": rule.name, "words": text, "exactness": rule.exactness.value}
