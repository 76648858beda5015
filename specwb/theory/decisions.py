"""The output of a rule that decodes, as a distribution, and its distance from the target's.

A rule receives its uniforms as arguments. It is called with chosen uniforms, and bisection finds
the boxes of uniforms within which it decides the same. The measures of the boxes are the exact
probabilities of its decisions, so that nothing is sampled:

    P(x) = sum over drafts of P(draft) sum over boxes of measure(box) P(x | decision in the box).

:func:`distribution_of` computes this for one tree and one pair of models, :func:`check_rule` for
many small ones.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from specwb.core.errors import ArgumentError
from specwb.core.flow import Draft, RuleMismatch, Scheme, Scores
from specwb.core.probability import Sampling
from specwb.core.tree import Tree
from specwb.rules.rule import ONE_A_NODE, Rule
from specwb.theory import exact as E
from specwb.theory.instances import models

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
TOLERANCE = 1e-9
"""Distances below it are rounding: float64, and for ``race`` an integral that is off by 1e-10."""

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


def distribution_of(
    rule: str | Rule | type[Rule],
    p: Sequence | E.Model,
    q: Sequence | E.Model,
    tree: Tree | Sequence[int],
    scheme: Scheme | None = None,
) -> dict[E.Tokens, float]:
    """The joint distribution of the D + 1 tokens that a step of a rule begins, D the tree's depth.

    All drafts are listed, the rule's own code is called for each of them (:func:`boxes_of`), and
    what a step leaves open is continued with the target. A lossless rule gives the target's
    distribution, ``exact.target_distribution(p, D + 1)``; ``exact.tv`` measures how far two are
    apart.

    Args:
        rule: A :class:`NodeRule` or :class:`Rule`, or its class, or a key of ``RULES``.
        p: The target: a distribution over V tokens (the same after every prefix), or a function of
            the prefix, a tuple of tokens, that returns one. Floats, fractions or tensors.
        q: The draft, likewise.
        tree: A :class:`Tree` of one shape, or its parents, -1 for the root.
        scheme: How the candidates are drawn; default the first of ``DRAFTS`` for which the rule is
            made.
    Returns:
        Tuples of D + 1 tokens -> probability, up to rounding in float64.
    Raises:
        RuleMismatch: The rule is not made for candidates drawn so, or for this tree.
        ArgumentError: The drafts cannot be listed (ROOTS: roots drawn from the target), p or q is
            no distribution, and what :func:`boxes_of` raises.
    """
    rule = rule_of(rule)
    shape = tree if isinstance(tree, Tree) else Tree.parents(list(tree))
    if scheme is None:
        listed = [x for x in DRAFTS if x in rule.schemes]
        fitting = [x for x in listed if x is not Scheme.IID_PATHS or shape.is_paths or not shape.D]
        # of none that can be listed any other is refused with its reason
        scheme = next(iter([*fitting, *rule.schemes]), Scheme.IID)
    rule.check(scheme, shape.limits)
    case = target, draft = _model("p", p), _model("q", q)
    if len(target(())) != len(draft(())):
        raise ArgumentError(f"p is over {len(target(()))} tokens and q over {len(draft(()))}")
    drafts = all_drafts(scheme, shape, [case])
    boxes = boxes_of(rule, drafts.draft, drafts.scores)
    return _joint_distributions(drafts, [case], boxes)[0]


def _joint_distributions(
    drafts: Drafts, cases: Sequence[Case], boxes: Boxes
) -> list[dict[E.Tokens, float]]:
    """:func:`distribution_of` for every pair of models, from given boxes."""
    outcomes: list[list] = [[] for _ in cases]
    by_draft = outcomes_in(drafts.draft, boxes)
    for case, chance, of_draft in zip(drafts.case, drafts.chance, by_draft, strict=True):
        outcomes[case] += [(path, bonus, chance * measure) for path, bonus, measure in of_draft]
    length = drafts.draft.tree.D + 1
    return [
        {text: float(a) for text, a in E.completed(of_case, target, length).items()}
        for of_case, (target, _) in zip(outcomes, cases, strict=True)
    ]


def rule_of(rule: str | Rule | type[Rule]) -> Rule:
    """A rule, from itself, its class or its key."""
    from specwb.rules import RULES

    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, type) and issubclass(rule, Rule):
        return rule()
    if isinstance(rule, str) and rule in RULES:
        return RULES[rule]()
    raise ArgumentError(
        f"rule must be a Rule, its class or one of {', '.join(RULES)}; got {rule!r}"
    )


def _model(name: str, given: Sequence | E.Model) -> E.Model:
    """Prefix -> fractions that add up to 1; every number is taken for the very float that it is."""

    @cache
    def distribution(prefix: E.Tokens) -> list[Fraction]:
        row = given(prefix) if callable(given) else given
        row = row.tolist() if hasattr(row, "tolist") else list(row)
        try:
            weights = [x if isinstance(x, Fraction) else Fraction(float(x)) for x in row]
            if abs(float(sum(weights)) - 1) > 1e-3:
                raise ArgumentError(f"it sums to {float(sum(weights)):.6g}")
            return E.norm(weights)
        except (ValueError, TypeError, OverflowError) as error:
            raise ArgumentError(
                f"{name} must be a distribution over tokens, got {row} after {prefix}: {error}"
            ) from None

    return distribution


# ------------------------------------------------------------------------------------- check a rule

PLAIN = Sampling(1.0)
TREES: list[tuple[tuple[int, ...], int, Sequence[int], tuple[int, ...]]] = [
    ((-1, 0), 4, range(5), ()),
    ((-1, 0), 6, range(2), ()),
    ((-1, 0, 0), 3, range(2), ()),
    ((-1, 0, 0, 0), 3, range(1), ()),
    ((-1, 0, 1), 3, range(2), ()),
    ((-1, 0, 1, 2), 2, range(2), ()),
    ((-1, 0, 0, 1, 2), 2, range(2), ()),
    ((-1, 0, 0, 1, 1, 2), 2, range(1), ()),
    ((-1, 0, 1, 2, 3, 4, 5), 2, [0], (1, 1, 1, 1, 2, 2)),
    ((-1, 0, 0, 1, 2, 3, 4), 2, [0], (2, 1, 1)),
    ((-1, 0, 0, 0, 0, 0), 6, [2], (2,)),
    ((-1, 0, 1, 1, 1), 4, [0], (1, 4)),
    ((-1, 0, 1), 6, [0], (1, 6)),
]
"""Trees by their parents, sizes of the vocabulary, seeds of the models, and, for deep and wide
trees, the number of tokens that q is cut to at each depth, so that there are few drafts."""


class Task(NamedTuple):
    """Pairs of models whose steps are compared together.

    Attributes:
        scheme, parents, vocabulary: Of the drafts.
        sampling: Temperature and filters of the target.
        kind, seeds: Of the models, as :func:`specwb.theory.instances.models` names them.
        cases: The models, the targets before temperature and filters.
    """

    scheme: Scheme
    parents: tuple[int, ...]
    vocabulary: int
    sampling: Sampling
    kind: str
    seeds: Sequence[int]
    cases: list[Case]


@dataclass(frozen=True)
class Comparison:
    """A decoding step with one pair of models, compared with the target's distribution.

    Attributes:
        task, seed: The comparison, and the seed of its pair of models.
        tv: Total variation between the output, by the recovered decisions, and the target's
            distribution, less what decisions that were not recovered may explain.
        text: The text whose probability is furthest off.
        probability, wanted: Of that text, in the output and by the target.
        boxes: Number of boxes of uniforms in which the rule decides one thing.
    """

    task: Task
    seed: int
    tv: float
    text: E.Tokens
    probability: float
    wanted: float
    boxes: int


@dataclass
class RuleCheck:
    """The result of :func:`check_rule`.

    Attributes:
        rule: Its name.
        comparisons: One for each pair of models and tree.
        failure: The exception that the rule raised.
        unchecked: Why there is no result: none of its sampling schemes could be run, or its
            decisions could not be recovered.
    """

    rule: str
    comparisons: list[Comparison] = field(default_factory=list)
    failure: str = ""
    unchecked: str = ""

    @property
    def counterexample(self) -> Comparison | None:
        """The comparison with the largest total variation, if that is more than rounding."""
        worst = max(self.comparisons, key=lambda one: one.tv, default=None)
        return worst if worst is not None and worst.tv >= TOLERANCE else None

    @property
    def worst(self) -> float:
        """The largest total variation of any step."""
        return max((one.tv for one in self.comparisons), default=0.0)

    @property
    def wrong(self) -> bool:
        """Whether a step differed from the target's distribution, or the rule failed."""
        return bool(self.counterexample or self.failure)

    @property
    def lossless(self) -> bool:
        """Whether there were comparisons, all were made, and nothing differed from the target's
        distribution."""
        return bool(self.comparisons) and not self.wrong and not self.unchecked


def check_rule(rule: str | Rule | type[Rule]) -> RuleCheck:
    """Compare the output of a rule with the target's distribution, on small trees and difficult
    models.

    For each sampling scheme in the rule's ``schemes`` every draft of small trees over two to six
    tokens is enumerated (chains of six over two, trees of depth three over two, five siblings over
    six, three siblings below the root over four), with models that change with the prefix, some
    with zeros, ties, certainties and equal or disjoint supports, at T = 1, and the smallest also at
    T = 0.7 with and without top-k and top-p. The rule's own code is run (:func:`distribution_of`).
    A distance counts only as far as it exceeds the probability of decisions that may not have been
    recovered, estimated at random uniforms. The result is about these comparisons only, and up to
    ``UNSEEN``. ROOTS cannot be checked, nor rules that decide by anything other than
    comparing the given uniforms with thresholds, such as one that draws its own random numbers:
    ``unchecked`` gives the reason.

    Args:
        rule: A :class:`Rule` of your own or of ``RULES``, its class or its key.
    Raises:
        ArgumentError: ``rule`` is not a rule, or one that names no ``schemes``.
    """
    rule = rule_of(rule)
    name = rule.name or type(rule).__name__
    if not rule.schemes:
        raise ArgumentError(
            f"rule {name!r} names no schemes; set `schemes` to what it is lossless for"
        )
    check = RuleCheck(name)
    try:
        for task in _tasks(rule):
            try:
                check.comparisons += _compare(rule, task)
            except Unfollowed as error:  # what can be followed may still be wrong
                check.unchecked = str(error)
    except Exception as error:  # a rule of somebody's own may raise anything
        check.failure = f"{type(error).__name__}: {error}"
    if not check.comparisons and not check.failure and not check.unchecked:
        reasons = [f"{x.name}: {UNLISTED[x]}" for x in rule.schemes if x in UNLISTED]
        check.unchecked = "; ".join(reasons) or "it refuses every small tree"
    return check


def _tasks(rule: Rule) -> Iterator[Task]:
    """The comparisons that a rule's sampling schemes allow."""
    for scheme in DRAFTS:
        for parents, v, seeds, sizes in TREES:
            if not _takes(rule, scheme, parents):
                continue
            if sizes:
                # candidates that differ from each other need as many tokens; with all but one fixed
                # there are few drafts anyway
                widest = max(map(len, E.children_of(parents)))
                least = {Scheme.IID: 1, Scheme.IID_PATHS: 1, Scheme.WITHOUT_REPLACEMENT: widest}
                supports = [max(size, least.get(scheme, v)) for size in sizes]
                pairs = [models(seed, v, "dense") for seed in seeds]
                cases = [(p, _cut(q, supports, seeds[0])) for p, q in pairs]
                yield Task(scheme, parents, v, PLAIN, "dense", seeds, cases)
                continue
            yield Task(scheme, parents, v, PLAIN, "any", seeds, [models(x, v) for x in seeds])
            last = seeds[-1:]
            filtered = Sampling(0.7, top_k=v - 1, top_p=0.9) if v > 2 else Sampling(0.7)
            cases = [models(seed, v, "dense") for seed in last]
            yield Task(scheme, parents, v, filtered, "dense", last, cases)


def _takes(rule: Rule, scheme: Scheme, parents: tuple[int, ...]) -> bool:
    """Whether a rule verifies trees of this shape with candidates drawn so. Chains are drawn alike
    under several schemes: they are taken once."""
    tree = Tree.parents(list(parents))
    if scheme not in rule.schemes or (scheme is Scheme.IID_PATHS and not tree.is_paths):
        return False
    alike = [x for x in DRAFTS if x in ONE_A_NODE & rule.schemes]
    if tree.K == 1 < tree.D and scheme in alike[1:]:
        return False
    try:
        rule.check(scheme, tree.limits)
    except RuleMismatch:
        return False
    return True


def _cut(q: E.Model, sizes: Sequence[int], seed: int) -> E.Model:
    """A draft model that keeps ``sizes[d]`` tokens at depth d (the last size below): those from a
    token on that depends on the seed, around the end of the vocabulary."""

    def model(prefix: E.Tokens) -> E.Dist:
        row = list(q(prefix))
        size = sizes[min(len(prefix), len(sizes) - 1)]
        kept = {(seed * size + i) % len(row) for i in range(size)}
        return E.norm([a if x in kept else 0 for x, a in enumerate(row)])

    return model


def _sampled_from(target: E.Model, sampling: Sampling) -> E.Model:
    """The target's distributions after temperature and filters."""

    @cache
    def model(prefix: E.Tokens) -> E.Dist:
        row = torch.tensor([float(a) for a in target(prefix)], dtype=torch.float64)
        return sampling.probabilities(row.log()).tolist()

    return target if sampling == PLAIN else model


def _compare(rule: Rule, task: Task) -> list[Comparison]:
    """The comparisons of one tree.

    Raises:
        Unfollowed: Boxes were seen to be wrong, and may explain all of a distance.
    """
    tree = Tree.parents(list(task.parents))
    drafts = all_drafts(task.scheme, tree, task.cases)
    drafts = replace(drafts, scores=replace(drafts.scores, sampling=task.sampling))
    boxes = boxes_of(rule, drafts.draft, drafts.scores)
    cases = [(_sampled_from(target, task.sampling), draft) for target, draft in task.cases]
    outputs = _joint_distributions(drafts, cases, boxes)
    shares = _shares_wrong(rule, drafts, boxes)
    case_of_box = torch.tensor(drafts.case)[boxes.row]
    comparisons = []
    for i, ((target, _), output, missed) in enumerate(zip(cases, outputs, shares, strict=True)):
        wanted = E.target_distribution(target, tree.D + 1)
        far = float(E.tv(output, wanted))
        if missed and far <= max(missed, TOLERANCE):
            raise Unfollowed(
                f"rule {rule.name!r} decides otherwise within a box of uniforms than at its "
                f"corners, with a probability up to {missed:.2g}; what can be recovered are rules "
                "that compare single uniforms with thresholds"
            )
        pairs = {x: (output.get(x, 0.0), float(wanted.get(x, 0))) for x in {*output, *wanted}}
        text = max(pairs, key=lambda x: abs(pairs[x][0] - pairs[x][1]))
        count = int((case_of_box == i).sum())
        comparisons.append(Comparison(task, task.seeds[i], far - missed, text, *pairs[text], count))
    return comparisons


def _shares_wrong(rule: Rule, drafts: Drafts, boxes: Boxes) -> list[float]:
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
