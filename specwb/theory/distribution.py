"""The output of a rule, as a distribution.

The rule that decodes is called with chosen uniforms, and its decisions are recovered by bisection.
Nothing is sampled.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache

import torch
from scipy import stats
from torch import Tensor

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
    Scheme.COUPLED: "its candidates come with exponential variables and are not tested by uniforms",
    Scheme.ROOTS: "its roots are drawn from the target and one of them is kept, "
    "which is LOSSY by design",
}
"""Sampling schemes whose steps no list of drafts and no cube of uniforms describes, and why."""
EQUAL = 1e-9  # distributions of the bonus token that differ by less are the same
EDGE = 1e-9  # how far inside of a box its corners are looked at, in parts of its sides
THIN = 1e-12  # sides that are not cut
LINES, POINTS = 6, 4  # a box is probed at these points of these many lines
PARTS, STEPS = 8, 13  # a cut is found to PARTS ** -STEPS = 2 ** -39 of the distance of two probes
MAX_BOXES = 256  # boxes a draft
TWICE = 256  # questions that are asked twice, at least
RANDOM_POINTS = 1 << 15  # at which a rule is asked whether its boxes are right
LEVEL = math.exp(-20)  # the probability that a bound from these points is exceeded
UNSEEN = -math.expm1(math.log(LEVEL) / RANDOM_POINTS)
"""Other decisions than the recovered ones, in a stretch of a uniform, say, may be missed if their
probability is below this; of a larger one none of the random points sees with ``LEVEL`` at most."""
CHUNK = 1 << 15  # decisions a call

Outcome = tuple[E.Tokens, list[float], float]
"""Accepted tokens, the distribution of the bonus token, and the probability of both."""


@dataclass
class Boxes:
    """A partition of the unit cubes of uniforms of a batch's rows into boxes with one decision
    each."""

    row: Tensor  # [C] the row that a box belongs to
    low: Tensor  # [C,m] its lower corner
    high: Tensor  # [C,m] its upper corner
    node: Tensor  # [C] the node reached
    accepted: Tensor  # [C] how many tokens are accepted
    bonus: Tensor  # [C,V] the distribution of the bonus token

    @property
    def measure(self) -> Tensor:
        """``[C]``: the probability of each box, given its row's draft."""
        return (self.high - self.low).prod(1)

    @property
    def outcomes(self) -> Tensor:
        """``[C,2+V]``: node, accepted tokens and distribution of the bonus token."""
        return torch.cat([self.node[:, None], self.accepted[:, None], self.bonus], 1)

    def select(self, index: Tensor) -> Boxes:
        """A subset of the boxes."""
        return Boxes(*(getattr(self, field.name)[index] for field in fields(self)))


class Unfollowed(ArgumentError):
    """The decisions of a rule cannot be recovered from its answers."""


class Inconstant(Unfollowed):
    """A rule gives different answers for the same uniforms, so its answers say nothing."""


class _Oracle:
    """A rule and a batch: what comes out for rows and uniforms chosen at will."""

    def __init__(self, rule: Rule, draft: Draft, scores: Scores, lazy: bool = False) -> None:
        self.rule, self.draft, self.scores = copy.copy(rule), draft, scores
        self.rule.lazy = lazy

    def __call__(self, row: Tensor, u: Tensor) -> Tensor:
        """``[N,2+V]``: node reached, number of accepted tokens and distribution of the bonus token,
        of rows ``[N]`` under the uniforms ``[N,m]``."""
        chunks = zip(row.split(CHUNK), u.split(CHUNK), strict=True)
        return torch.cat([self._chunk(rows, uniforms) for rows, uniforms in chunks])

    def _chunk(self, row: Tensor, u: Tensor) -> Tensor:
        draft, scores = self.draft, self.scores
        q = None if draft.q is None else draft.q[row]
        drafts = replace(draft, tokens=draft.tokens[row], valid=draft.valid[row], q=q)
        verdict = self.rule.verify(drafts, replace(scores, logits=scores.logits[row]), u)
        if verdict.distribution is None:
            raise ArgumentError(
                f"rule {self.rule.name!r} gives no distribution for the bonus token"
            )
        bonus = verdict.distribution.double()
        mass = bonus.sum(1, keepdim=True)
        sound = (bonus >= 0).all(1) & (mass[:, 0] > 0) & mass[:, 0].isfinite()
        if not bool(sound.all()):
            raise ArgumentError(
                f"rule {self.rule.name!r} draws the bonus token from something that is "
                "no distribution: values that are NaN, negative or without mass"
            )
        accepted = verdict.accepted[:, None]
        node = verdict.path.gather(1, accepted)
        return torch.cat([node.double(), accepted.double(), bonus / mass], 1)


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
        ValueError: The rule draws the bonus token from what is no distribution.
    """
    ask, random = _Oracle(rule, draft, scores), torch.Generator().manual_seed(0)
    m, device = rule.uniforms(draft.tree.limits), draft.tokens.device
    row = torch.arange(len(draft.tokens), device=device)
    _ask_twice(ask, row, m, random)
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


def _ask_twice(ask: _Oracle, row: Tensor, m: int, random: torch.Generator) -> None:
    """Raises Inconstant where a rule answers the same question differently."""
    row = row.repeat(-(-TWICE // len(row)))
    u = torch.rand(len(row), m, dtype=torch.float64, generator=random).to(row.device)
    if bool(_differ(ask(row, u), ask(row, u)).any()):
        raise Inconstant(
            f"rule {ask.rule.name!r} decides otherwise when it is asked again with the same "
            "uniforms: it draws random numbers of its own, where only those it is given can be "
            "followed"
        )


def _probe(
    ask: _Oracle, row: Tensor, low: Tensor, high: Tensor, axis: Tensor, random: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Probe each box along its axis and cut it where the outcome changes.

    A box that is cut begins again with the first axis, one that is not goes on to the next.
    """
    lines = _lines(low, high, axis, random)
    outcomes = ask(row.repeat_interleave(LINES * POINTS), lines.flatten(0, 2))
    outcomes = outcomes.view(*lines.shape[:3], -1)
    changes = _differ(outcomes[:, :, 1:], outcomes[:, :, :-1]).flatten(1)  # [N,LINES*(POINTS-1)]
    thick = (high - low).gather(1, axis[:, None]) > THIN
    changes = changes & thick
    cut = changes.any(1)
    if not bool(cut.any()):
        return row, low, high, axis + 1
    first = changes[cut].int().argmax(1)
    n, line, point = torch.arange(len(first)), first // (POINTS - 1), first % (POINTS - 1)
    start, end = lines[cut][n, line, point], lines[cut][n, line, point + 1]
    changed = _change(ask, row[cut], start, end, outcomes[cut][n, line, point])
    along = axis[cut][:, None]
    edge = changed.gather(1, along)
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
    zero = torch.zeros(boxes, LINES, 1, dtype=torch.float64, device=low.device)
    along_line = torch.cat([zero, inner, zero + 1], 2)
    on_axis = torch.arange(m, device=low.device) == axis[:, None]
    points = torch.where(on_axis[:, None, None], along_line[..., None], base[:, :, None])
    # never on an edge: next to 1 a part of a thin box is less than rounding, and would be in the
    # box beside it, or at 1, which no uniform is
    side = high - low
    margin = torch.minimum((EDGE * side).clamp_min(THIN / 1000), side / 2)
    inner_side = (side - 2 * margin)[:, None, None]
    return (low + margin)[:, None, None] + inner_side * points


def _change(ask: _Oracle, row: Tensor, start: Tensor, end: Tensor, outcome: Tensor) -> Tensor:
    """``[n,m]``: the first point on the way of each row from ``start`` to ``end [n,m]`` with
    something else than ``outcome [n,2+V]``, which comes out at its start and not at its end."""
    n = torch.arange(len(row))
    parts = torch.linspace(0, 1, PARTS + 1, device=start.device, dtype=start.dtype)[:, None]
    at_end = torch.ones(len(row), 1, dtype=torch.bool, device=start.device)
    for _ in range(STEPS):
        points = start[:, None] + (end - start)[:, None] * parts
        inner = ask(row.repeat_interleave(PARTS - 1), points[:, 1:-1].flatten(0, 1))
        inner = inner.view(len(n), PARTS - 1, -1)
        other = torch.cat([_differ(inner, outcome[:, None]), at_end], 1)
        part = other.int().argmax(1)  # at the end of this part something else comes out
        start, end = points[n, part], points[n, part + 1]
    return end


def _differ(one: Tensor, other: Tensor) -> Tensor:
    """``[..., 2+V]`` -> ``[...]``: another node or length, or another distribution of the bonus
    token."""
    return (one - other).abs().amax(-1) > EQUAL


def _inside(boxes: Boxes, margin: float = 0.001) -> Tensor:
    """A random point inside each box, ``[C,m]``."""
    random = torch.Generator().manual_seed(1)
    inside = torch.rand(boxes.low.shape, dtype=torch.float64, generator=random)
    inside = margin + (1 - 2 * margin) * inside.to(boxes.low.device)
    return boxes.low + (boxes.high - boxes.low) * inside


def shares_wrong(rule: Rule, drafts: Drafts, boxes: Boxes) -> list[float]:
    """Ask a rule at random points how far its boxes may be wrong, for each pair of models.

    A stretch of uniforms between two of the same outcome may have been missed, and a distribution
    that comes from the boxes differs from the rule's own by the probability of such stretches at
    most. So the rule is asked at ``RANDOM_POINTS`` drafts and uniforms of each pair of models,
    drawn as they come, and at one point in each box.

    Returns the largest probability, given the draws, that the boxes are wrong about (Clopper and
    Pearson 1934, at the level ``LEVEL``); 0 where no answer was another one, though what is less
    probable than ``UNSEEN`` may be missed there.
    """
    random, ask = torch.Generator().manual_seed(2), _Oracle(rule, drafts.draft, drafts.scores)
    of_case, chance = torch.tensor(drafts.case), torch.tensor(drafts.chance).double()
    # the boxes of a row fill its cube, so a box by its measure and a point of it is a point of all
    of_box = of_case[boxes.row] == torch.arange(int(of_case.max()) + 1)[:, None]  # [cases,C]
    weight = of_box * chance[boxes.row] * boxes.measure
    drawn = boxes.select(torch.multinomial(weight, RANDOM_POINTS, True, generator=random).flatten())
    differ = _differ(ask(drawn.row, _inside(drawn, margin=0)), drawn.outcomes)
    within = of_box & _differ(ask(boxes.row, _inside(boxes)), boxes.outcomes)
    counts = differ.view(len(weight), RANDOM_POINTS).sum(1)
    return [
        float(stats.beta.isf(LEVEL, wrong + 1, RANDOM_POINTS - wrong)) if wrong or seen else 0.0
        for wrong, seen in zip(counts.tolist(), within.any(1).tolist(), strict=True)
    ]


def host_differs(rule: Rule, draft: Draft, scores: Scores, boxes: Boxes, most: int = 100) -> int:
    """The number of boxes in which a rule decides otherwise where it may leave out work.

    On a CPU the engine sets ``rule.lazy``: work that no row needs is left out. All rows together
    and each row alone are asked so, at a random point inside of up to ``most`` boxes, evenly
    chosen.
    """
    stride = max(1, -(-len(boxes.row) // most))
    boxes = boxes.select(torch.arange(0, len(boxes.row), stride, device=boxes.row.device))
    u, ask = _inside(boxes), _Oracle(rule, draft, scores, lazy=True)
    together = ask(boxes.row, u)
    one_by_one = torch.cat([ask(boxes.row[i : i + 1], u[i : i + 1]) for i in range(len(u))])
    tokens = draft.tokens[boxes.row]

    def by_token(outcome: Tensor) -> Tensor:
        """Equal siblings are one token: which of them is meant makes no difference to the
        output."""
        node = outcome[:, :1].long()
        return torch.cat([tokens.gather(1, node).double(), outcome[:, 1:]], 1)

    expected = by_token(_Oracle(rule, draft, scores)(boxes.row, u))
    wrong = _differ(by_token(together), expected) | _differ(by_token(one_by_one), expected)
    return int(wrong.sum())


def outcomes_in(draft: Draft, boxes: Boxes) -> list[list[Outcome]]:
    """The outcomes of each row's draft: accepted tokens, distribution of the bonus token,
    probability. The probabilities of a row are the measures of its boxes and add up to 1."""
    shape = boxes.row if draft.tree.R > 1 else torch.zeros_like(boxes.row)
    paths = draft.tree.trail[shape, boxes.node]
    texts = draft.tokens[boxes.row].gather(1, paths)[:, 1:]
    outcomes: list[list[Outcome]] = [[] for _ in range(len(draft.tokens))]
    columns = (boxes.row, texts, boxes.accepted, boxes.bonus, boxes.measure)
    for row, text, accepted, bonus, measure in zip(*(x.tolist() for x in columns), strict=True):
        outcomes[row].append((tuple(text[:accepted]), bonus, measure))
    return outcomes


@dataclass
class Drafts:
    """Every draft of a tree, for one or several pairs of models, as one batch."""

    draft: Draft  # what a rule is handed
    scores: Scores
    chance: list[float]  # of each row's draft
    case: list[int]  # the pair of models that it is of


def all_drafts(scheme: Scheme, tree: Tree, cases: Sequence[tuple[E.Model, E.Model]]) -> Drafts:
    """List every draft of a tree, which has one shape for all rows, with its probability, as
    tensors in float64. ``cases`` are pairs of (target, draft) over equal vocabularies."""
    if scheme not in DRAFTS:
        raise ArgumentError(f"the drafts of {scheme.name} cannot be listed: {UNLISTED[scheme]}")
    if tree.R > 1 or tree.padded or tree.v != tree.n:
        raise ArgumentError(
            "the tree must be one shape without padding and without unverified nodes"
        )
    parents = tree.host[0]
    drafts, chances = [], []
    for case, (_, q) in enumerate(cases):
        for paths, chance in E.trees(DRAFTS[scheme], q, parents):
            drafts.append((case, paths))
            chances.append(float(chance))
    draft, scores = as_tensors(scheme, tree, cases, drafts)
    return Drafts(draft, scores, chances, [case for case, _ in drafts])


def as_tensors(
    scheme: Scheme,
    tree: Tree,
    cases: Sequence[tuple[E.Model, E.Model]],
    drafts: Sequence[tuple[int, E.Paths]],
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


def distribution_of(
    rule: str | Rule | type[Rule],
    p: Sequence | E.Model,
    q: Sequence | E.Model,
    tree: Tree | Sequence[int],
    scheme: Scheme | None = None,
) -> dict[E.Tokens, float]:
    """The joint distribution of the D + 1 tokens that a step of a rule begins, D the tree's depth.

    ``P(x) = sum over drafts of P(draft) sum over outcomes of P(outcome | draft) P(x | outcome)``:
    all drafts are listed, the rule's own code is called for each of them (:func:`boxes_of`), and
    what a step leaves open is continued with the target. A lossless rule gives the target's
    distribution, ``exact.target_distribution(p, D + 1)``; ``exact.tv`` measures how far two are
    apart.

    Args:
        rule: A :class:`NodeRule` or :class:`Rule`, or its class, or a key of ``RULES``.
        p: The target: a distribution over V tokens (the same after every prefix), or a function of
            the prefix, a tuple of tokens, that returns one. Floats, fractions or tensors.
        q: The draft, likewise.
        tree: A :class:`Tree` of one shape, or its parents, -1 for the root.
        scheme: How the candidates are drawn; default the first of the rule's own whose drafts can
            be listed: IID, WITHOUT_REPLACEMENT, TOP_AND_SAMPLE, POINT, IID_PATHS.
    Returns:
        Tuples of D + 1 tokens -> probability, up to rounding in float64.
    Raises:
        RuleMismatch: The rule is not made for candidates drawn so, or for this tree.
        ValueError: The drafts cannot be listed (COUPLED: exponential variables take the place of
            the uniforms; ROOTS: roots drawn from the target), p or q is no distribution, and what
            :func:`boxes_of` raises.
    """
    rule = rule_of(rule)
    shape = tree if isinstance(tree, Tree) else Tree.parents(list(tree))
    scheme = scheme or scheme_of(rule, shape)
    rule.check(scheme, shape.limits)
    target, draft = _model("p", p), _model("q", q)
    if len(target(())) != len(draft(())):
        raise ArgumentError(f"p is over {len(target(()))} tokens and q over {len(draft(()))}")
    cases = [(target, draft)]
    drafts = all_drafts(scheme, shape, cases)
    boxes = boxes_of(rule, drafts.draft, drafts.scores)
    (distribution,) = joint_distributions(drafts, cases, boxes)
    return distribution


def joint_distributions(
    drafts: Drafts, cases: Sequence[tuple[E.Model, E.Model]], boxes: Boxes
) -> list[dict[E.Tokens, float]]:
    """:func:`distribution_of` for every pair of models, from given boxes."""
    outcomes: list[list] = [[] for _ in cases]
    by_draft = outcomes_in(drafts.draft, boxes)
    for case, chance, of_draft in zip(drafts.case, drafts.chance, by_draft, strict=True):
        outcomes[case] += [(path, bonus, chance * measure) for path, bonus, measure in of_draft]
    length = drafts.draft.tree.D + 1
    distributions = []
    for of_case, (target, _) in zip(outcomes, cases, strict=True):
        texts = E.completed(of_case, target, length)
        distributions.append({text: float(probability) for text, probability in texts.items()})
    return distributions


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


def scheme_of(rule: Rule, tree: Tree) -> Scheme:
    """The first sampling scheme that a rule is made for, that fits the tree and whose drafts can be
    listed."""
    order = (
        Scheme.IID,
        Scheme.WITHOUT_REPLACEMENT,
        Scheme.TOP_AND_SAMPLE,
        Scheme.POINT,
        Scheme.IID_PATHS,
    )
    for scheme in order:
        fits = scheme is not Scheme.IID_PATHS or tree.is_paths or tree.D == 0
        if scheme in rule.schemes and fits:
            return scheme
    unlisted = sorted((x for x in rule.schemes if x in UNLISTED), key=lambda x: x.name)
    if not unlisted:
        raise ArgumentError(f"rule {rule.name!r}: set `schemes`, how its candidates are drawn")
    reasons = ", ".join(f"{scheme.name} ({UNLISTED[scheme]})" for scheme in unlisted)
    raise ArgumentError(f"rule {rule.name!r}: {reasons}: its distribution cannot be computed so")


def _model(name: str, given: Sequence | E.Model) -> E.Model:
    """Prefix -> fractions that add up to 1; every number is taken for the very float that it is."""

    @cache
    def distribution(prefix: E.Tokens) -> list[Fraction]:
        row = given(prefix) if callable(given) else given
        row = row.tolist() if hasattr(row, "tolist") else list(row)
        try:
            weights = [x if isinstance(x, Fraction) else Fraction(float(x)) for x in row]
            total = float(sum(weights, Fraction(0)))
            if abs(total - 1) > 1e-3:
                raise ArgumentError(f"it sums to {total:.6g}")
            return E.norm(weights)
        except (ValueError, TypeError, OverflowError) as error:
            raise ArgumentError(
                f"{name} must be a distribution over tokens, got {row} after {prefix}: {error}"
            ) from None

    return distribution
