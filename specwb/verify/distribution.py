"""What a rule outputs, as a distribution: the rule that decodes is asked, and its decisions are
recovered by bisection over the uniforms. Nothing is sampled."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import torch
from torch import Tensor

from specwb.flow import Draft, Law, Scores
from specwb.probability import Sampling
from specwb.tree import Tree
from specwb.verify import exact as E
from specwb.verify.rule import Rule

DRAFTS: dict[Law, E.DraftLaw] = {
    **{Law[name]: of for name, of in E.LAWS.items()},
    Law.IID_PATHS: E.iid,
}
"""How candidates are drawn, where all drafts of a tree can be listed."""
CANNOT = {
    Law.COUPLED: "its candidates come with exponential variables and are not tested by uniforms",
    Law.ROOTS: "its roots are drawn from the target and one of them stays, which is LOSSY by design",
}
"""Draft laws whose rounds no list of drafts and no cube of uniforms describes, and why."""
EQUAL = 1e-9  # closing distributions that differ by less are the same
EDGE = 1e-9  # how far inside of a box its corners are looked at, in parts of its sides
THIN = 1e-12  # sides that are not cut
BASES, LEVELS = 6, 4
PARTS, STEPS = 8, 13  # a cut is found to PARTS ** -STEPS = 2 ** -39 of the distance of two probes
MOST = 256  # boxes a draft
CHUNK = 1 << 15  # decisions a call

Outcome = tuple[E.Tokens, list[float], float]
"""Accepted tokens, the distribution of the closing token, and the probability of both."""


@dataclass
class Cells:
    """The uniforms' unit cubes of a batch's rows, cut into boxes in each of which one thing is
    decided.

    Attributes:
        row: ``[C]`` the row that a box belongs to.
        low, high: ``[C,m]`` its corners.
        node, accepted: ``[C]`` the node reached and how many tokens are accepted.
        closing: ``[C,V]`` the distribution of the closing token.
    """

    row: Tensor
    low: Tensor
    high: Tensor
    node: Tensor
    accepted: Tensor
    closing: Tensor

    @property
    def measure(self) -> Tensor:
        """``[C]``: the probability of each box, given its row's draft."""
        return (self.high - self.low).prod(1)


class _Asked:
    """A rule and a batch: what comes out for rows and uniforms chosen at will."""

    def __init__(self, rule: Rule, draft: Draft, scores: Scores, lazy: bool = False) -> None:
        self.rule, self.draft, self.scores = copy.copy(rule), draft, scores
        self.rule.lazy = lazy

    def __call__(self, row: Tensor, u: Tensor) -> Tensor:
        """``[N]`` rows and ``[N,m]`` uniforms -> ``[N,2+V]``: node, accepted, closing
        distribution."""
        parts = zip(row.split(CHUNK), u.split(CHUNK), strict=True)
        return torch.cat([self._some(rows, some) for rows, some in parts])

    def _some(self, row: Tensor, u: Tensor) -> Tensor:
        of, draft = self.scores, self.draft
        q = None if draft.q is None else draft.q[row]
        tokens, valid = draft.tokens[row], draft.valid[row]
        part = Draft(draft.tree, tokens, valid, draft.law, q, draft.q_row)
        verdict = self.rule.verify(part, Scores(of.logits[row], of.sampling), u)
        if verdict.law is None:
            raise ValueError(f"rule {self.rule.name!r} gives no distribution for the closing token")
        law = verdict.law.double()
        mass = law.sum(1, keepdim=True)
        if not bool(((law >= 0).all(1) & (mass[:, 0] > 0) & mass[:, 0].isfinite()).all()):
            raise ValueError(f"rule {self.rule.name!r} closes with something that is no distribution: values that are NaN, negative or without mass")
        last = verdict.path.gather(1, verdict.accepted[:, None])
        return torch.cat([last.double(), verdict.accepted[:, None].double(), law / mass], 1)


def cells_of(rule: Rule, draft: Draft, scores: Scores) -> Cells:
    """Cut each row's cube of uniforms into the boxes in which ``rule.verify`` decides one thing.

    A box is probed along one coordinate after another, on lines through its corners and other
    places. Where the outcome changes between two neighbouring points of a line, bisection finds the
    place to 2^-39 of their distance, and the box is cut there. A box without changes is kept. This
    is exact up to rounding for a rule whose decision is a chain of comparisons ``u_i < threshold``,
    as those of this package are; a threshold may depend on what was decided before it. What may be
    missed is a stretch between two stretches of the same outcome, where it is narrower than the
    probes' distance.

    Args:
        rule: asked with nothing left out (``lazy`` false).
        draft, scores: B rows as a round hands them to the rule; q and logits in float64.
    Raises:
        ValueError: the rule closes with what is no distribution, or its decisions do not fall into
            boxes (it multiplies uniforms, say).
    """
    ask, random = _Asked(rule, draft, scores), torch.Generator().manual_seed(0)
    m, device = rule.uniforms(draft.tree.limits), draft.tokens.device
    row = torch.arange(len(draft.tokens), device=device)
    low = torch.zeros(len(row), m, dtype=torch.float64, device=device)
    high, turn = torch.ones_like(low), torch.zeros_like(row)  # turn: the coordinate that is probed
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    count = 0
    while len(row):
        whole = turn == m
        kept.append((row[whole], low[whole], high[whole]))
        count += int(whole.sum())
        row, low, high, turn = (x[~whole] for x in (row, low, high, turn))
        if count + len(row) > MOST * len(draft.tokens):
            raise ValueError(
                f"rule {rule.name!r}: its decisions fall into more than {MOST} boxes a draft; what can "
                "be recovered are rules that compare single uniforms with thresholds"
            )
        if not len(row):
            break
        lines = _lines(low, high, turn, random)
        found = ask(row.repeat_interleave(BASES * LEVELS), lines.flatten(0, 2))
        found = found.view(*lines.shape[:3], -1)
        change = _differ(found[:, :, 1:], found[:, :, :-1]).flatten(1)  # [N,BASES*(LEVELS-1)]
        wide = (high - low).gather(1, turn[:, None]) > THIN
        change = change & wide
        cut = change.any(1)
        turn = torch.where(cut, turn, turn + 1)
        if not bool(cut.any()):
            continue
        which = change[cut].int().argmax(1)
        n, base, level = torch.arange(len(which)), which // (LEVELS - 1), which % (LEVELS - 1)
        a, b = lines[cut][n, base, level], lines[cut][n, base, level + 1]
        left = found[cut][n, base, level]
        for _ in range(STEPS):
            points = a[:, None] + (b - a)[:, None] * torch.linspace(0, 1, PARTS + 1, device=device, dtype=a.dtype)[:, None]
            inner = points[:, 1:-1]
            asked = ask(row[cut].repeat_interleave(PARTS - 1), inner.flatten(0, 1)).view(len(n), PARTS - 1, -1)
            other = torch.cat([_differ(asked, left[:, None]), torch.ones_like(cut[cut])[:, None]], 1)
            # of the first point where something else comes out, less one
            at = other.int().argmax(1)
            a, b = points[n, at], points[n, at + 1]
        axis = turn[cut][:, None]
        edge = b.gather(1, axis)
        below, above = high[cut].scatter(1, axis, edge), low[cut].scatter(1, axis, edge)
        row = torch.cat([row[~cut], row[cut], row[cut]])
        low, high = (
            torch.cat([low[~cut], low[cut], above]),
            torch.cat([high[~cut], below, high[cut]]),
        )
        turn = torch.cat([turn[~cut], torch.zeros_like(row[: 2 * len(which)])])
    row, low, high = (torch.cat(x) for x in zip(*kept, strict=True))
    found = ask(row, (low + high) / 2)
    return Cells(row, low, high, found[:, 0].long(), found[:, 1].long(), found[:, 2:])


def _lines(low: Tensor, high: Tensor, turn: Tensor, random: torch.Generator) -> Tensor:
    """``[N,BASES,LEVELS,m]``: points on lines along coordinate ``turn [N]`` of the boxes ``[N,m]``.

    A line's other coordinates are all at their lower ends, all at their upper ends, all in the
    middle, or each at random at one of its ends or between them.
    """
    boxes, m = low.shape

    def of(*shape: int) -> Tensor:
        return torch.rand(*shape, dtype=torch.float64, generator=random).to(low.device)

    place, end = of(boxes, BASES, m), of(boxes, BASES, m)
    place = torch.where(end < 1 / 3, 0.0, torch.where(end > 2 / 3, 1.0, place))
    place[:, 0], place[:, 1], place[:, 2] = 0, 1, 0.5
    inner = (torch.arange(LEVELS - 2, device=low.device) + of(boxes, BASES, LEVELS - 2)) / (LEVELS - 2)
    ends = torch.zeros(boxes, BASES, 1, dtype=torch.float64, device=low.device)
    levels = torch.cat([ends, inner, ends + 1], 2)
    along = torch.arange(m, device=low.device) == turn[:, None]
    points = torch.where(along[:, None, None], levels[..., None], place[:, :, None])
    points = EDGE + (1 - 2 * EDGE) * points
    return low[:, None, None] + (high - low)[:, None, None] * points


def _differ(one: Tensor, other: Tensor) -> Tensor:
    """``[..., 2+V]`` -> ``[...]``: another node or length, or another closing distribution."""
    return (one - other).abs().amax(-1) > EQUAL


def host_differs(rule: Rule, draft: Draft, scores: Scores, cells: Cells, most: int = 100) -> int:
    """In how many boxes a rule decides otherwise where it may leave out work.

    On a CPU the engine sets ``rule.lazy``: work that no row needs is left out. All rows together
    and each row alone are asked so, at a random place inside of up to ``most`` boxes, evenly
    chosen.
    """
    random = torch.Generator().manual_seed(1)
    some = torch.arange(0, len(cells.row), max(1, -(-len(cells.row) // most)), device=cells.row.device)
    cells = Cells(*(getattr(cells, name)[some] for name in ("row", "low", "high", "node", "accepted", "closing")))
    inside = torch.rand(cells.low.shape, dtype=torch.float64, generator=random).to(cells.low.device)
    u = cells.low + (cells.high - cells.low) * (0.001 + 0.998 * inside)
    wanted = torch.cat([cells.node[:, None], cells.accepted[:, None], cells.closing], 1)
    ask = _Asked(rule, draft, scores, lazy=True)
    together = ask(cells.row, u)
    alone = torch.cat([ask(cells.row[i : i + 1], u[i : i + 1]) for i in range(len(u))])
    words = draft.tokens[cells.row]

    def text(found: Tensor) -> Tensor:
        """Equal siblings are one token: which of them is meant makes no difference to the
        output."""
        node = found[:, :1].long()
        return torch.cat([words.gather(1, node).double(), found[:, 1:]], 1)

    return int((_differ(text(together), text(wanted)) | _differ(text(alone), text(wanted))).sum())


def outcomes_of(rule: Rule, draft: Draft, scores: Scores) -> list[list[Outcome]]:
    """What a rule does with each row's draft: accepted tokens, closing distribution, probability.

    The probabilities of a row are the measures of its boxes (:func:`cells_of`) and add up to 1.

    Args: as of :func:`cells_of`. Raises: as :func:`cells_of`.
    """
    return listed(draft, cells_of(rule, draft, scores))


def listed(draft: Draft, cells: Cells) -> list[list[Outcome]]:
    """:func:`outcomes_of`, of boxes that have been found."""
    of = cells.row if draft.tree.R > 1 else torch.zeros_like(cells.row)
    words = draft.tokens[cells.row].gather(1, draft.tree.trail[of, cells.node])[:, 1:].tolist()
    found: list[list[Outcome]] = [[] for _ in range(len(draft.tokens))]
    rows = zip(cells.row.tolist(), words, cells.accepted.tolist(), cells.closing.tolist(), cells.measure.tolist(), strict=True)
    for row, text, accepted, closing, measure in rows:
        found[row].append((tuple(text[:accepted]), closing, measure))
    return found


@dataclass
class Drafts:
    """Every draft of a tree, for one or several pairs of models, as one batch.

    Attributes:
        draft, scores: what a rule is handed.
        chance: the probability of each row's draft. case: which pair of models it is of.
    """

    draft: Draft
    scores: Scores
    chance: list[float]
    case: list[int]


def every_draft(law: Law, tree: Tree, cases: Sequence[tuple[E.Model, E.Model]]) -> Drafts:
    """List every draft of a tree with its probability, as tensors in float64.

    Args:
        law: how candidates are drawn. tree: one shape for all rows.
        cases: pairs of (target, draft), each prefix -> distribution; equal vocabularies.
    Raises:
        ValueError: a law whose drafts cannot be listed, or a tree with several shapes.
    """
    if law not in DRAFTS:
        raise ValueError(f"the drafts of {law.name} cannot be listed: {CANNOT[law]}")
    if tree.R > 1 or tree.padded or tree.v != tree.n:
        raise ValueError("the tree must be one shape without padding and without unverified nodes")
    parents = tree.host[0]
    every = [(i, *found) for i, (_, q) in enumerate(cases) for found in E.trees(DRAFTS[law], q, parents)]
    drafts = [(i, paths) for i, paths, _ in every]
    made = as_tensors(law, tree, cases, drafts)
    return Drafts(*made, [float(chance) for *_, chance in every], [i for i, *_ in every])


def as_tensors(law: Law, tree: Tree, cases: Sequence[tuple[E.Model, E.Model]], drafts: Sequence[tuple[int, E.Paths]]) -> tuple[Draft, Scores]:
    """Drafts, given as the path of tokens to every node, as a batch in float64.

    Args:
        drafts: ``(case, paths)`` a row; a path is None where the support of q ended before the
            node.
    """
    parents = tree.host[0]
    inner = sorted(set(parents) - {-1})
    below = [[i for i, parent in enumerate(parents) if parent == node] for node in inner]
    vocabulary = len(cases[0][0](()))
    nothing = tuple([1.0 / vocabulary] * vocabulary)

    @cache
    def target(case: int, path: E.Tokens | None) -> tuple[float, ...]:
        return nothing if path is None else tuple(map(float, cases[case][0](path)))

    @cache
    def helper(case: int, path: E.Tokens | None, children: int) -> tuple[float, ...]:
        if path is None:
            return nothing
        q = cases[case][1](path)
        # what the last child is drawn from; no mass where it is not drawn
        if law is Law.TOP_AND_SAMPLE:
            ((fixed, _),) = E.top(q, children - 1)
            q = E.without(q, fixed)
            q = E.norm(q) if any(q) else q
        return tuple(map(float, q))

    p = torch.tensor([[target(i, path) for path in paths] for i, paths in drafts], dtype=torch.float64)
    widths = [len(kids) for kids in below]
    q = [[helper(i, paths[node], k) for node, k in zip(inner, widths)] for i, paths in drafts]
    sampled = law is not Law.POINT and bool(inner)
    rows = torch.tensor([[inner.index(i) if i in inner else -1 for i in range(len(parents))]])
    draft = Draft(
        tree.to("cpu"),
        torch.tensor([[path[-1] if path else 0 for path in paths] for _, paths in drafts]),
        torch.tensor([[path is not None for path in paths] for _, paths in drafts]),
        law,
        torch.tensor(q, dtype=torch.float64) if sampled else None,
        rows if sampled else None,
    )
    return draft, Scores(p.log(), Sampling(1.0))


def distribution_of(
    rule: str | Rule | type[Rule],
    p: Sequence | E.Model,
    q: Sequence | E.Model,
    tree: Tree | Sequence[int],
    law: Law | None = None,
) -> dict[E.Tokens, float]:
    """The joint distribution of the D + 1 tokens that a round of a rule begins, D the tree's depth.

    ``P(x) = sum over drafts of P(draft) sum over outcomes of P(outcome | draft) P(x | outcome)``:
    all drafts are listed, the rule's own code is asked about each of them (:func:`cells_of`), and
    what a round leaves open is continued with the target. A lossless rule gives the target's
    distribution, ``exact.target_law(p, D + 1)``; ``exact.tv`` measures how far two are apart.

    Args:
        rule: a :class:`NodeRule` or :class:`Rule`, or its class, or a key of ``RULES``.
        p, q: target and draft. A distribution over V tokens (the same after every prefix), or a
            function of the prefix, a tuple of tokens, that returns one. Floats, fractions or
            tensors.
        tree: a :class:`Tree` of one shape, or its parents, -1 for the root.
        law: how the candidates are drawn; default the first of the rule's own whose drafts can be
            listed: IID, WITHOUT_REPLACEMENT, TOP_AND_SAMPLE, POINT, IID_PATHS.
    Returns:
        tuples of D + 1 tokens -> probability, up to rounding in float64.
    Raises:
        LawMismatch: the rule is not made for candidates drawn so, or for this tree.
        ValueError: drafts that cannot be listed (COUPLED: exponential variables take the place of
            the uniforms; ROOTS: roots drawn from the target), p or q that are no distributions, and
            what :func:`cells_of` raises.
    """
    made, shape = rule_of(rule), tree if isinstance(tree, Tree) else Tree.parents(list(tree))
    how = law or law_of(made, shape)
    made.check(how, shape.limits)
    target, draft = _model("p", p), _model("q", q)
    if len(target(())) != len(draft(())):
        raise ValueError(f"p is over {len(target(()))} tokens and q over {len(draft(()))}")
    every = every_draft(how, shape, [(target, draft)])
    (found,) = joint(made, every, [(target, draft)], cells_of(made, every.draft, every.scores))
    return found


def joint(rule: Rule, every: Drafts, cases: Sequence[tuple[E.Model, E.Model]], cells: Cells) -> list[dict[E.Tokens, float]]:
    """:func:`distribution_of` of every pair of models, of boxes that have been found."""
    outcomes: list[list] = [[] for _ in cases]
    for case, chance, row in zip(every.case, every.chance, listed(every.draft, cells), strict=True):
        outcomes[case] += [(path, closing, chance * measure) for path, closing, measure in row]
    length = every.draft.tree.D + 1
    laws = [E.completed(some, target, length) for some, (target, _) in zip(outcomes, cases, strict=True)]
    return [{text: float(chance) for text, chance in law.items()} for law in laws]


def rule_of(rule: str | Rule | type[Rule]) -> Rule:
    """A rule, by itself, its class or its key. Raises ValueError for anything else."""
    from specwb.verify import RULES

    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, type) and issubclass(rule, Rule):
        return rule()
    if isinstance(rule, str) and rule in RULES:
        return RULES[rule]()
    raise ValueError(f"rule must be a Rule, its class or one of {', '.join(RULES)}; got {rule!r}")


def law_of(rule: Rule, tree: Tree) -> Law:
    """The first law that a rule is made for, that fits the tree and whose drafts can be listed."""
    order = (Law.IID, Law.WITHOUT_REPLACEMENT, Law.TOP_AND_SAMPLE, Law.POINT, Law.IID_PATHS)
    for law in order:
        if law in rule.laws and (law is not Law.IID_PATHS or tree.is_paths or tree.D == 0):
            return law
    names = ", ".join(f"{law.name} ({CANNOT[law]})" for law in sorted(rule.laws, key=lambda x: x.name) if law in CANNOT)
    raise ValueError(
        f"rule {rule.name!r}: " + (f"{names}: its distribution cannot be computed so" if names else "set `laws`, how its candidates are drawn")
    )


def _model(name: str, given: Sequence | E.Model) -> E.Model:
    """Prefix -> fractions that add up to 1; every number is taken for the very float that it is."""

    @cache
    def of(prefix: E.Tokens) -> list[Fraction]:
        row = given(prefix) if callable(given) else given
        row = row.tolist() if hasattr(row, "tolist") else list(row)
        try:
            weights = [x if isinstance(x, Fraction) else Fraction(float(x)) for x in row]
            total = float(sum(weights, Fraction(0)))
            if abs(total - 1) > 1e-3:
                raise ValueError(f"it sums to {total:.6g}")
            return E.norm(weights)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{name} must be a distribution over tokens, got {row} after {prefix}: {error}") from None

    return of
