"""The output of a rule that decodes, as a distribution, and its distance from the target's.

A rule receives its uniforms as arguments. It is called with chosen uniforms, and bisection finds
the boxes of uniforms within which it decides the same. The measures of the boxes are the exact
probabilities of its decisions, so that nothing is sampled:

    P(x) = sum over drafts of P(draft) sum over boxes of measure(box) P(x | decision in the box).

:func:`all_drafts` lists the drafts, :func:`boxes_of` cuts the cube of their uniforms into boxes,
and :func:`output_distributions` is the sum.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from specwb.core.errors import ArgumentError
from specwb.core.flow import Draft, Scheme, Scores
from specwb.core.probability import Sampling
from specwb.core.tree import Tree
from specwb.rules.rule import Rule
from specwb.theory import exact as E

DRAFTS: dict[Scheme, E.SamplingScheme] = {
    **{Scheme[name]: scheme for name, scheme in E.SCHEMES.items()},
    Scheme.IID_PATHS: E.iid,
}
"""The sampling schemes of which all drafts of a tree can be listed."""
UNLISTED = {
    Scheme.ROOTS: "its roots are drawn from the target and one of them is kept, "
    "which is LOSSY by design",
}
"""Sampling schemes whose steps no list of drafts and no cube of uniforms describes, and why."""
EQUAL = 1e-9  # distributions of the bonus token that differ by less are the same
EDGE = 1e-9  # distance of probes from the faces of a box, in parts of its sides
THIN = 1e-12  # sides that are not cut
LINES, POINTS = 6, 4  # a box is probed at these points of these many lines
PARTS, STEPS = 8, 13  # a cut is found to PARTS ** -STEPS = 2 ** -39 of the distance of two probes
MAX_BOXES = 256  # of a draft
TWICE = 256  # questions that are asked twice, at least
RANDOM_POINTS = 1 << 15  # at which a rule is asked whether its boxes are right
LEVEL = math.exp(-20)  # the probability that a bound from these points is exceeded
UNSEEN = -math.expm1(math.log(LEVEL) / RANDOM_POINTS)
"""Decisions with a smaller probability may have been missed: a larger one is hit by none of the
random points with probability ``LEVEL`` at most."""
CHUNK = 1 << 15  # decisions in one call

Ask = Callable[[Tensor, Tensor], Tensor]
"""Rows ``[N]`` and their uniforms ``[N,m]`` -> ``[N,2+V]``: node reached, number of accepted
tokens, distribution of the bonus token."""
Case = tuple[E.Model, E.Model]
"""A target and a draft model."""


class Unfollowed(ArgumentError):
    """The decisions of a rule cannot be recovered from its answers."""


# --------------------------------------------------------------------------------------- decisions


@dataclass
class Boxes:
    """A partition of the unit cubes of uniforms of a batch's rows into boxes with one decision
    each.

    Attributes:
        row: ``[C]``, the row that a box belongs to.
        low, high: ``[C,m]``, its lower and upper corner.
        node: ``[C]``, the node reached.
        accepted: ``[C]``, the number of accepted tokens.
        bonus: ``[C,V]``, the distribution of the bonus token.
    """

    row: Tensor
    low: Tensor
    high: Tensor
    node: Tensor
    accepted: Tensor
    bonus: Tensor

    @property
    def measure(self) -> Tensor:
        """``[C]``: the probability of each box, given its row's draft."""
        return (self.high - self.low).prod(1)

    @property
    def outcomes(self) -> Tensor:
        """``[C,2+V]``: node, number of accepted tokens and distribution of the bonus token."""
        return torch.cat([self.node[:, None], self.accepted[:, None], self.bonus], 1)

    def select(self, index: Tensor) -> Boxes:
        """A subset of the boxes."""
        return Boxes(*(getattr(self, field.name)[index] for field in fields(self)))

    def points(self) -> Tensor:
        """``[C,m]``: a random point inside each box."""
        random = torch.Generator().manual_seed(1)
        inside = torch.rand(self.low.shape, dtype=torch.float64, generator=random)
        return self.low + (self.high - self.low) * inside.to(self.low.device)


def boxes_of(rule: Rule, draft: Draft, scores: Scores) -> Boxes:
    """Cut each row's cube of uniforms into the boxes in which ``rule.verify`` (with ``lazy`` false)
    decides one thing.

    A box is probed along one coordinate after another, on lines through its corners and other
    points. Where the outcome changes between two neighbouring points of a line, bisection finds the
    change to 2^-39 of their distance, and the box is cut there. A box without changes is final.

    This is exact up to rounding for a rule whose decision is a chain of comparisons
    ``u_i < threshold``, as those of this package are; a threshold may depend on what was decided
    before it. What may be missed is a stretch between two stretches of the same outcome, where it
    is narrower than the distance of the probes.

    Raises:
        Unfollowed: Its decisions do not fall into boxes (it multiplies uniforms, say), or are not
            the same when it is asked again.
        ArgumentError: The rule draws the bonus token from what is no distribution.
    """
    ask, random = _oracle(rule, draft, scores), torch.Generator().manual_seed(0)
    m, device = rule.uniforms(draft.tree.limits), draft.tokens.device
    row = torch.arange(len(draft.tokens), device=device)
    again = row.repeat(-(-TWICE // len(row)))
    u = torch.rand(len(again), m, dtype=torch.float64, generator=random).to(device)
    if bool(_differ(ask(again, u), ask(again, u)).any()):
        raise Unfollowed(
            f"rule {rule.name!r} decides otherwise when it is asked again with the same uniforms: "
            "it draws random numbers of its own, where only those it is given can be followed"
        )
    low = torch.zeros(len(row), m, dtype=torch.float64, device=device)
    high = torch.ones_like(low)
    axis = torch.zeros_like(row)  # the coordinate along which a box is probed next
    final: list[tuple[Tensor, Tensor, Tensor]] = []
    count = 0
    while len(row):
        done = axis == m
        final.append((row[done], low[done], high[done]))
        count += int(done.sum())
        row, low, high, axis = (x[~done] for x in (row, low, high, axis))
        if count + len(row) > MAX_BOXES * len(draft.tokens):
            raise Unfollowed(
                f"rule {rule.name!r}: its decisions fall into more than {MAX_BOXES} boxes a draft; "
                "what can be recovered are rules that compare single uniforms with thresholds"
            )
        if len(row):
            row, low, high, axis = _probe(ask, row, low, high, axis, random)
    row, low, high = (torch.cat(x) for x in zip(*final, strict=True))
    middle = ask(row, (low + high) / 2)
    return Boxes(row, low, high, middle[:, 0].long(), middle[:, 1].long(), middle[:, 2:])


def _oracle(rule: Rule, draft: Draft, scores: Scores) -> Ask:
    """The answers of a rule for rows and uniforms chosen at will."""
    rule = copy.copy(rule)
    rule.lazy = False

    def chunk(row: Tensor, u: Tensor) -> Tensor:
        q = None if draft.q is None else draft.q[row]
        drafts = replace(draft, tokens=draft.tokens[row], valid=draft.valid[row], q=q)
        verdict = rule.verify(drafts, replace(scores, logits=scores.logits[row]), u)
        if verdict.distribution is None:
            raise ArgumentError(f"rule {rule.name!r} gives no distribution for the bonus token")
        bonus = verdict.distribution.double()
        mass = bonus.sum(1, keepdim=True)
        if not bool(((bonus >= 0).all(1, keepdim=True) & (mass > 0) & mass.isfinite()).all()):
            raise ArgumentError(
                f"rule {rule.name!r} draws the bonus token from something that is "
                "no distribution: values that are NaN, negative or without mass"
            )
        accepted = verdict.accepted[:, None]
        node = verdict.path.gather(1, accepted)
        return torch.cat([node.double(), accepted.double(), bonus / mass], 1)

    def ask(row: Tensor, u: Tensor) -> Tensor:
        parts = zip(row.split(CHUNK), u.split(CHUNK), strict=True)
        return torch.cat([chunk(*part) for part in parts])

    return ask


def _probe(
    ask: Ask, row: Tensor, low: Tensor, high: Tensor, axis: Tensor, random: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Probe each box along its axis and cut it where the outcome changes.

    A box that is cut begins again with the first axis, one that is not goes on to the next.
    """
    lines = _lines(low, high, axis, random)
    outcomes = ask(row.repeat_interleave(LINES * POINTS), lines.flatten(0, 2))
    outcomes = outcomes.view(*lines.shape[:3], -1)
    changes = _differ(outcomes[:, :, 1:], outcomes[:, :, :-1]).flatten(1)  # [N,LINES*(POINTS-1)]
    changes = changes & ((high - low).gather(1, axis[:, None]) > THIN)
    cut = changes.any(1)
    if not bool(cut.any()):
        return row, low, high, axis + 1
    first = changes[cut].int().argmax(1)
    n, line, point = torch.arange(len(first)), first // (POINTS - 1), first % (POINTS - 1)
    start, end = lines[cut][n, line, point], lines[cut][n, line, point + 1]
    along = axis[cut][:, None]
    edge = _change(ask, row[cut], start, end, outcomes[cut][n, line, point]).gather(1, along)
    high_below, low_above = high[cut].scatter(1, along, edge), low[cut].scatter(1, along, edge)
    first_axis = torch.zeros_like(axis[cut])
    return (
        torch.cat([row[~cut], row[cut], row[cut]]),
        torch.cat([low[~cut], low[cut], low_above]),
        torch.cat([high[~cut], high_below, high[cut]]),
        torch.cat([axis[~cut] + 1, first_axis, first_axis]),
    )


def _lines(low: Tensor, high: Tensor, axis: Tensor, random: torch.Generator) -> Tensor:
    """``[N,LINES,POINTS,m]``: points on lines along coordinate ``axis [N]`` of the boxes ``[N,m]``.

    A line's other coordinates are all at their lower ends, all at their upper ends, all in the
    middle, or each at random at one of its ends or between them.
    """
    boxes, m = low.shape

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, dtype=torch.float64, generator=random).to(low.device)

    # all points in parts of the box's sides, first as if a box were the unit cube
    base, end = uniform(boxes, LINES, m), uniform(boxes, LINES, m)
    base = torch.where(end < 1 / 3, 0.0, torch.where(end > 2 / 3, 1.0, base))
    base[:, 0], base[:, 1], base[:, 2] = 0, 1, 0.5
    steps = torch.arange(POINTS - 2, device=low.device)
    inner = (steps + uniform(boxes, LINES, POINTS - 2)) / (POINTS - 2)
    along_line = F.pad(F.pad(inner, (1, 0)), (0, 1), value=1.0)
    on_axis = torch.arange(m, device=low.device) == axis[:, None]
    points = torch.where(on_axis[:, None, None], along_line[..., None], base[:, :, None])
    # never on a face: next to 1 a part of a thin box is less than rounding, and would be in the
    # next box, or at 1, which no uniform is
    side = high - low
    margin = torch.minimum((EDGE * side).clamp_min(THIN / 1000), side / 2)
    inner_side = (side - 2 * margin)[:, None, None]
    return (low + margin)[:, None, None] + inner_side * points


def _change(ask: Ask, row: Tensor, start: Tensor, end: Tensor, outcome: Tensor) -> Tensor:
    """``[n,m]``: the first point on the way of each row from ``start`` to ``end [n,m]`` with
    another outcome than ``outcome [n,2+V]``, that of its start."""
    n = torch.arange(len(row))
    parts = torch.linspace(0, 1, PARTS + 1, device=start.device, dtype=start.dtype)[:, None]
    for _ in range(STEPS):
        points = start[:, None] + (end - start)[:, None] * parts
        inner = ask(row.repeat_interleave(PARTS - 1), points[:, 1:-1].flatten(0, 1))
        other = _differ(inner.view(len(n), PARTS - 1, -1), outcome[:, None])
        part = F.pad(other, (0, 1), value=True).int().argmax(1)  # it changes at this part's end
        start, end = points[n, part], points[n, part + 1]
    return end


def _differ(one: Tensor, other: Tensor) -> Tensor:
    """``[..., 2+V]`` -> ``[...]``: another node or length, or another distribution of the bonus
    token."""
    return (one - other).abs().amax(-1) > EQUAL


def outcomes_in(draft: Draft, boxes: Boxes) -> list[list[E.Outcome]]:
    """The outcomes of each row's draft: accepted tokens, distribution of the bonus token,
    probability. The probabilities of a row are the measures of its boxes and add up to 1."""
    shape = boxes.row if draft.tree.R > 1 else torch.zeros_like(boxes.row)
    paths = draft.tree.trail[shape, boxes.node]
    texts = draft.tokens[boxes.row].gather(1, paths)[:, 1:]
    outcomes: list[list[E.Outcome]] = [[] for _ in range(len(draft.tokens))]
    columns = (boxes.row, texts, boxes.accepted, boxes.bonus, boxes.measure)
    for row, text, accepted, bonus, measure in zip(*(x.tolist() for x in columns), strict=True):
        outcomes[row].append((tuple(text[:accepted]), bonus, measure))
    return outcomes


# ------------------------------------------------------------------------------------------ drafts


@dataclass
class Drafts:
    """Every draft of a tree, for one or several pairs of models, as one batch.

    Attributes:
        draft, scores: What a rule is handed, in float64.
        chance: The probability of each row's draft.
        case: The index of each row's pair of models.
    """

    draft: Draft
    scores: Scores
    chance: list[float]
    case: list[int]


def all_drafts(scheme: Scheme, tree: Tree, cases: Sequence[Case]) -> Drafts:
    """List every draft of a tree, which has one shape for all rows, with its probability.

    Args:
        cases: Pairs of (target, draft) over equal vocabularies.
    """
    if scheme not in DRAFTS:
        raise ArgumentError(f"the drafts of {scheme.name} cannot be listed: {UNLISTED[scheme]}")
    if tree.R > 1 or tree.padded or tree.v != tree.n:
        raise ArgumentError(
            "the tree must be one shape without padding and without unverified nodes"
        )
    drafts, chances = [], []
    for case, (_, q) in enumerate(cases):
        for paths, chance in E.trees(DRAFTS[scheme], q, tree.host[0]):
            drafts.append((case, paths))
            chances.append(float(chance))
    draft, scores = as_tensors(scheme, tree, cases, drafts)
    return Drafts(draft, scores, chances, [case for case, _ in drafts])


def as_tensors(
    scheme: Scheme, tree: Tree, cases: Sequence[Case], drafts: Sequence[tuple[int, E.Paths]]
) -> tuple[Draft, Scores]:
    """Drafts of :func:`all_drafts` as a batch in float64: ``(case, paths)`` per row, a path being
    None where the support of q ended before the node."""
    parents = tree.host[0]
    children = E.children_of(parents)
    inner = [node for node, below in enumerate(children) if below]
    vocabulary = len(cases[0][0](()))
    uniform = tuple([1.0 / vocabulary] * vocabulary)  # at nodes that do not exist

    @cache
    def p_at(case: int, path: E.Tokens | None) -> tuple[float, ...]:
        return uniform if path is None else tuple(map(float, cases[case][0](path)))

    @cache
    def q_at(case: int, path: E.Tokens | None, width: int) -> tuple[float, ...]:
        if path is None:
            return uniform
        q = cases[case][1](path)
        if scheme is Scheme.TOP_AND_SAMPLE:
            # what the last child is drawn from; no mass where it is not drawn
            ((fixed, _),) = E.top(q, width - 1)
            q = E.without(q, fixed)
            q = E.norm(q) if any(q) else q
        return tuple(map(float, q))

    p = [[p_at(case, path) for path in paths] for case, paths in drafts]
    q = [[q_at(case, paths[n], len(children[n])) for n in inner] for case, paths in drafts]
    sampled = scheme is not Scheme.POINT and bool(inner)
    q_row = [[inner.index(n) if n in inner else -1 for n in range(len(parents))]]
    draft = Draft(
        tree.to("cpu"),
        torch.tensor([[path[-1] if path else 0 for path in paths] for _, paths in drafts]),
        torch.tensor([[path is not None for path in paths] for _, paths in drafts]),
        scheme,
        torch.tensor(q, dtype=torch.float64) if sampled else None,
        torch.tensor(q_row) if sampled else None,
    )
    return draft, Scores(torch.tensor(p, dtype=torch.float64).log(), Sampling(1.0))


# ------------------------------------------------------------------------------------ distributions


def output_distributions(
    drafts: Drafts, cases: Sequence[Case], boxes: Boxes
) -> list[dict[E.Tokens, float]]:
    """The joint distribution of the D + 1 tokens that a step of a rule begins, D the tree's depth,
    for every pair of models.

    What a step leaves open is continued with the target. A lossless rule gives the target's
    distribution, ``exact.target_distribution(target, D + 1)``.

    Args:
        drafts: of :func:`all_drafts`.
        cases: the same pairs of models; the targets after temperature and filters.
        boxes: of :func:`boxes_of`.
    Returns:
        Of each case: tuples of D + 1 tokens -> probability, up to rounding in float64.
    """
    outcomes: list[list] = [[] for _ in cases]
    by_draft = outcomes_in(drafts.draft, boxes)
    for case, chance, of_draft in zip(drafts.case, drafts.chance, by_draft, strict=True):
        outcomes[case] += [(path, bonus, chance * measure) for path, bonus, measure in of_draft]
    length = drafts.draft.tree.D + 1
    return [
        {text: float(a) for text, a in E.completed(of_case, target, length).items()}
        for of_case, (target, _) in zip(outcomes, cases, strict=True)
    ]


def shares_wrong(rule: Rule, drafts: Drafts, boxes: Boxes) -> list[float]:
    """An upper bound, for each pair of models, of the probability that the boxes are wrong about.

    A stretch of uniforms between two of the same outcome may have been missed, and a distribution
    that comes from the boxes differs from the rule's own by the probability of such stretches at
    most. So the rule is asked at ``RANDOM_POINTS`` drafts and uniforms of each pair of models,
    drawn as they come, and at one point in each box. The bound is Clopper and Pearson's (1934) at
    the level ``LEVEL``; 0 where no answer was another one, though decisions less probable than
    ``UNSEEN`` may be missed there.
    """
    random, ask = torch.Generator().manual_seed(2), _oracle(rule, drafts.draft, drafts.scores)
    case, chance = torch.tensor(drafts.case), torch.tensor(drafts.chance).double()
    # the boxes of a row fill its cube, so a box by its measure and a point of it is a point of all
    of_box = case[boxes.row] == torch.arange(int(case.max()) + 1)[:, None]  # [cases,C]
    weight = of_box * chance[boxes.row] * boxes.measure
    drawn = boxes.select(torch.multinomial(weight, RANDOM_POINTS, True, generator=random).flatten())
    differ = _differ(ask(drawn.row, drawn.points()), drawn.outcomes)
    within = of_box & _differ(ask(boxes.row, boxes.points()), boxes.outcomes)
    counts = differ.view(len(weight), RANDOM_POINTS).sum(1)
    return [
        float(stats.beta.isf(LEVEL, wrong + 1, RANDOM_POINTS - wrong)) if wrong or seen else 0.0
        for wrong, seen in zip(counts.tolist(), within.any(1).tolist(), strict=True)
    ]
