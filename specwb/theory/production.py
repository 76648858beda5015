"""Check that a rule, as it decodes, keeps the target's distribution: run it on every draft of small
trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

import torch
from scipy import stats

from specwb.core.errors import ArgumentError
from specwb.core.flow import Draft, Exactness, RuleMismatch, Scheme, Scores
from specwb.core.probability import Sampling, inverse_cdf
from specwb.core.tree import Tree
from specwb.rules.rule import ONE_A_NODE, Rule
from specwb.theory import exact as E
from specwb.theory.distribution import (
    DRAFTS,
    LEVEL,
    UNLISTED,
    UNSEEN,
    Inconstant,
    Unfollowed,
    all_drafts,
    boxes_of,
    host_differs,
    joint_distributions,
    rule_of,
    shares_wrong,
)
from specwb.theory.instances import models

TOLERANCE = 1e-9
"""Distances below it are rounding: float64, and for ``race`` an integral that is off by 1e-10."""
ALARM = 1e-6
"""A sampled rule with a smaller p-value is not lossless."""
DRAWS = 20_000
"""Steps of a sampled test."""
PLAIN, COLD = Sampling(1.0), Sampling(0.7)
# parents, size of the vocabulary, seeds of the models, each once with zeros and ties, once dense
_TREES: list[tuple[tuple[int, ...], int, range]] = [
    ((-1, 0), 4, range(5)),
    ((-1, 0), 6, range(2)),
    ((-1, 0, 0), 3, range(2)),
    ((-1, 0, 0, 0), 3, range(1)),
    ((-1, 0, 1), 3, range(2)),
    ((-1, 0, 1, 2), 2, range(2)),
    ((-1, 0, 0, 1, 2), 2, range(2)),
    ((-1, 0, 0, 1, 1, 2), 2, range(1)),
]
# deep and wide ones: parents, size of the vocabulary, seeds, and how many tokens q is cut to at
# each depth, so that their drafts stay few; the last two are many siblings and many tokens below
# the root
_LARGE: list[tuple[tuple[int, ...], int, range, tuple[int, ...]]] = [
    ((-1, 0, 1, 2, 3, 4, 5), 2, range(1), (1, 1, 1, 1, 2, 2)),
    ((-1, 0, 0, 1, 2, 3, 4), 2, range(1), (2, 1, 1)),
    ((-1, 0, 0, 0, 0, 0), 6, range(2, 3), (2,)),  # of the last tokens
    ((-1, 0, 1, 1, 1), 4, range(1), (1, 4)),
    ((-1, 0, 1), 6, range(1), (1, 6)),
]
INDEPENDENT = Scheme.IID, Scheme.IID_PATHS
Case = tuple[E.Model, E.Model]
"""A target and a draft model."""


@dataclass(frozen=True)
class Round:
    """Pairs of models whose steps are compared together."""

    scheme: Scheme
    parents: tuple[int, ...]
    vocabulary: int
    sampling: Sampling
    kind: str  # of models
    seeds: Sequence[int]
    cases: list[Case]  # the target's before temperature and filters

    @property
    def settings(self) -> str:
        """Temperature and filters."""
        filters = [" with top_k"] if self.sampling.top_k else []
        filters += [" and top_p"] if self.sampling.top_p < 1 else []
        return "".join([f"T = {self.sampling.temperature:g}", *filters])


@dataclass(frozen=True)
class Step:
    """A decoding step with one pair of models, compared with the target's distribution.

    Attributes:
        task, index: The comparison, and which of its pairs of models this is.
        tv: Total variation between the output, by the recovered decisions, and the target's
            distribution, less what decisions that were not recovered may explain.
        text: The text whose probability is furthest off.
        probability, wanted: Of that text, in the output and by the target.
        boxes: Number of boxes of uniforms in which the rule decides one thing.
    """

    task: Round
    index: int
    tv: float
    text: E.Tokens
    probability: float
    wanted: float
    boxes: int

    def __str__(self) -> str:
        task = self.task
        pair = zip(("p", "q"), task.cases[self.index], strict=True)
        firsts = [f"{x} = ({', '.join(f'{float(a):.3g}' for a in model(()))})" for x, model in pair]
        where = f"{task.scheme.name}, tree {_shape(task.parents)}, {task.settings}"
        return f"{where}, first {', '.join(firsts)}"


@dataclass
class RuleCheck:
    """The result of :func:`check_rule`.

    Attributes:
        rule: Its name.
        schemes: The names of the sampling schemes it was run with.
        lossy: Whether it does not claim to be lossless.
        steps: The steps compared, one for each pair of models and tree.
        host: Number of cases in which it decides otherwise with ``lazy`` set, as on a CPU.
        pvalue: Of a sampled test, for candidates that cannot be listed (COUPLED); else None.
        failure: The exception that the rule raised.
        unchecked: Why there is no result: none of its sampling schemes could be run, or its
            decisions could not be recovered.
    """

    rule: str
    schemes: tuple[str, ...]
    lossy: bool = False
    steps: list[Step] = field(default_factory=list)
    host: int = 0
    pvalue: float | None = None
    failure: str = ""
    unchecked: str = ""

    @property
    def rounds(self) -> int:
        """Number of comparisons."""
        return len(self.steps) + (self.pvalue is not None)

    @property
    def counterexample(self) -> Step | None:
        """The step with the largest total variation, if that is more than rounding."""
        step = max(self.steps, key=lambda step: step.tv, default=None)
        return step if step is not None and step.tv >= TOLERANCE else None

    @property
    def worst(self) -> float:
        """The largest total variation of any step."""
        return max((step.tv for step in self.steps), default=0.0)

    @property
    def wrong(self) -> bool:
        """Something differed from the target's distribution, or the rule failed."""
        biased = self.counterexample or (self.pvalue is not None and self.pvalue <= ALARM)
        return bool(biased or self.host or self.failure)

    @property
    def lossless(self) -> bool:
        """Whether there were comparisons, all were made, and nothing differed from the target's
        distribution."""
        return self.rounds > 0 and not self.wrong and not self.unchecked

    @property
    def passed(self) -> bool:
        """Whether the rule is lossless, or declared LOSSY with forms that agree."""
        return self.lossless or (self.lossy and not self.host and not self.failure)

    @property
    def bound(self) -> float:
        """The largest total variation that a step may have, with decisions that may have been
        missed; it is exceeded with probability ``LEVEL`` at most."""
        return self.worst + UNSEEN

    @property
    def coverage(self) -> str:
        """The comparisons made: sampling schemes, settings, and trees over vocabularies."""
        if not self.steps:
            return ""
        covered = [step.task for step in self.steps]
        trees: dict[int, list[str]] = {}
        for x in sorted(covered, key=lambda x: (x.vocabulary, len(x.parents), x.parents)):
            trees.setdefault(x.vocabulary, []).append(_shape(x.parents))
        return "; ".join(
            [
                ", ".join(dict.fromkeys(x.scheme.name for x in covered)),
                ", ".join(dict.fromkeys(x.settings for x in covered)),
                *(f"{v} tokens: {', '.join(dict.fromkeys(x))}" for v, x in trees.items()),
            ]
        )

    def __str__(self) -> str:
        if self.lossy and self.passed:
            verdict = "LOSSY, as it says"
        elif self.wrong:
            verdict = "NOT lossless" + (" in what could be followed" if self.unchecked else "")
        else:
            verdict = "lossless" if self.lossless else "not checked"
        size = f"{self.rounds} steps"
        if self.pvalue is not None:
            size = "sampled"
        elif self.wrong:
            size += f", largest TV {self.worst:.2g}"
        elif self.lossless:
            size += f", TV at most {self.bound:.2g}"
        lines = [f"{self.rule}: {verdict} ({size})"]
        if self.coverage:
            lines.append(f"  looked at (trees by their nodes' parents) {self.coverage}")
        if self.lossless and self.pvalue is None:
            lines.append(
                f"  TV {self.worst:.2g} of the recovered decisions; a stretch of the uniforms "
                f"narrower than {UNSEEN:.2g} may be missed (confidence 1 - {LEVEL:.0e} a step)"
            )
        if step := self.counterexample:
            lines.append(
                f"  largest at {step}: the text {list(step.text)} comes out with probability"
                f" {step.probability:.4f}, the target's is {step.wanted:.4f}"
            )
        if self.host:
            lines.append(f"  with `lazy` set it decides otherwise in {self.host} cases")
        if self.pvalue is not None:
            lines.append(
                f"  sampled, since {UNLISTED[Scheme.COUPLED]}: p-value {self.pvalue:.2g};"
                " two paths of two tokens, 3 tokens; T = 1, T = 0.7 with top_k"
            )
        if self.failure:
            lines.append(f"  failed: {self.failure}")
        if self.unchecked:
            lines.append(f"  not checked: {self.unchecked}")
        return "\n".join(lines)


def _shape(parents: Sequence[int]) -> str:
    return ".".join(map(str, parents[1:]))


def widest(parents: Sequence[int]) -> int:
    """The largest number of children of any node of a tree."""
    return max(map(len, E.children_of(parents)))


def check_rule(
    rule: str | Rule | type[Rule], progress: Callable[[str], None] | None = None
) -> RuleCheck:
    """Compare the output of a rule with the target's distribution, on small trees and difficult
    models.

    For each sampling scheme in the rule's ``schemes`` every draft of small trees over two to six
    tokens is enumerated (chains of six over two, trees of depth three over two, five siblings over
    six, three siblings below the root over four), with models that change with the prefix, some
    with zeros, ties, certainties and equal or disjoint supports, at T = 1, and the smallest also at
    T = 0.7 with and without top-k and top-p. The rule's own code is run, in the form for batches
    (:func:`specwb.theory.distribution.distribution_of`) and in the forms for a CPU. Nothing is
    sampled, except for COUPLED, whose candidates cannot be listed. ROOTS cannot be checked, nor
    rules that decide by anything other than comparing the given uniforms with thresholds, such as
    one that draws its own random numbers: ``unchecked`` gives the reason. A distance counts only as
    far as it exceeds the probability of decisions that may not have been recovered, estimated at
    random uniforms (:func:`specwb.theory.distribution.shares_wrong`). The result is about the
    comparisons in ``coverage`` only, and up to ``bound``: a few decisions may have been missed.

    Args:
        rule: A :class:`Rule` of your own or of ``RULES``, its class or its key.
        progress: Called with a description of the next comparison.
    Raises:
        ValueError: ``rule`` is not a rule, or one that names no ``schemes``.
    """
    rule = rule_of(rule)
    name = rule.name or type(rule).__name__
    if not rule.schemes:
        raise ArgumentError(
            f"rule {name!r} names no schemes; set `schemes` to what it is lossless for"
        )
    schemes = tuple(scheme.name for scheme in Scheme if scheme in rule.schemes)
    check = RuleCheck(name, schemes, rule.exactness is Exactness.LOSSY)
    try:
        for task in _rounds(rule):
            if progress is not None:
                progress(f"{name}: {len(task.parents) - 1} nodes, {task.scheme.name}")
            try:
                _compare(rule, check, task)
            except Inconstant:
                raise
            except Unfollowed as error:  # what can be followed may still be wrong
                check.unchecked = str(error)
        if rule.schemes == {Scheme.COUPLED}:
            check.pvalue = _sampled(rule)
    except Inconstant as error:  # so may its answers have been before
        check = RuleCheck(name, schemes, check.lossy, unchecked=str(error))
    except Exception as error:  # a rule of somebody's own may raise anything
        check.failure = f"{type(error).__name__}: {error}"
    if not check.rounds and not check.failure and not check.unchecked:
        reasons = [f"{x.name}: {UNLISTED[x]}" for x in rule.schemes if x in UNLISTED]
        check.unchecked = "; ".join(reasons) or "it refuses every small tree"
    return check


def _rounds(rule: Rule) -> Iterator[Round]:
    """The steps that a rule takes."""
    for scheme in DRAFTS:
        for parents, v, seeds in _TREES:
            if not takes(rule, scheme, parents):
                continue
            filtered = Sampling(0.7, top_k=v - 1, top_p=0.9)
            for sampling, kind, some in (
                (PLAIN, "any", seeds),
                (COLD, "dense", seeds[::2]),
                (filtered, "dense", seeds[1::2] if v > 2 else ()),
            ):
                if cases := [models(seed, v, kind) for seed in some]:
                    yield Round(scheme, parents, v, sampling, kind, some, cases)
        for parents, v, seeds, support in _LARGE:
            if not takes(rule, scheme, parents):
                continue
            # candidates that differ from each other need as many tokens; with all but one fixed
            # there are few drafts anyway
            least = widest(parents) if scheme is Scheme.WITHOUT_REPLACEMENT else v
            sizes = [k if scheme in INDEPENDENT else max(k, least) for k in support]
            pairs = [(seed, models(seed, v, "dense")) for seed in seeds]
            cases = [(p, _cut(q, sizes, seed)) for seed, (p, q) in pairs]
            yield Round(scheme, parents, v, PLAIN, "dense", seeds, cases)


def takes(rule: Rule, scheme: Scheme, parents: tuple[int, ...]) -> bool:
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
    """A draft model that keeps so many tokens at each depth: those from a token on that depends on
    the seed, around the end of the vocabulary."""

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


def _compare(rule: Rule, check: RuleCheck, task: Round) -> None:
    """Add the steps of one tree to the check.

    Raises:
        Unfollowed: Boxes were seen to be wrong, and may explain all of a distance.
    """
    tree = Tree.parents(list(task.parents))
    drafts = all_drafts(task.scheme, tree, task.cases)
    drafts = replace(drafts, scores=replace(drafts.scores, sampling=task.sampling))
    boxes = boxes_of(rule, drafts.draft, drafts.scores)
    cases = [(_sampled_from(target, task.sampling), draft) for target, draft in task.cases]
    texts = joint_distributions(drafts, cases, boxes)
    shares = shares_wrong(rule, drafts, boxes)
    of_box = torch.tensor(drafts.case)[boxes.row]
    for i, ((target, _), output, missed) in enumerate(zip(cases, texts, shares, strict=True)):
        wanted = E.target_distribution(target, tree.D + 1)
        far = distance(output, wanted)
        if missed and far <= max(missed, TOLERANCE):
            raise Unfollowed(
                f"rule {rule.name!r} decides otherwise within a box of uniforms than at its "
                f"corners, with a probability up to {missed:.2g}; what can be recovered are rules "
                "that compare single uniforms with thresholds"
            )
        apart = {x: (output.get(x, 0.0), float(wanted.get(x, 0))) for x in {*output, *wanted}}
        text = max(apart, key=lambda x: abs(apart[x][0] - apart[x][1]))
        count = int((of_box == i).sum())
        check.steps.append(Step(task, i, far - missed, text, *apart[text], count))
    check.host += host_differs(rule, drafts.draft, drafts.scores, boxes)


def distance(one: Mapping, other: Mapping) -> float:
    """Total variation between two distributions over texts, in floats."""
    return 0.5 * sum(abs(float(one.get(x, 0)) - float(other.get(x, 0))) for x in {*one, *other})


def _sampled(rule: Rule) -> float:
    """The p-value of the three tokens that a step of two coupled paths of two tokens begins, the
    smaller one of two settings."""
    settings = PLAIN, Sampling(0.7, top_k=2)
    return min(1.0, len(settings) * min(_sampled_at(rule, sampling) for sampling in settings))


def _sampled_at(rule: Rule, sampling: Sampling) -> float:
    random = torch.Generator().manual_seed(0)
    target, draft = models(3, 3, "dense")
    logits, q = _table(target).log(), _table(draft)
    p, target = sampling.probabilities(logits), _sampled_from(target, sampling)
    race = torch.rand((DRAWS, 3, 2, 3), dtype=torch.float64, generator=random).log().neg()
    first = (race[:, 0] / q[0]).argmin(-1)
    second = (race[:, 1] / q[1 + first]).argmin(-1)
    tokens = torch.cat([torch.zeros_like(first[:, :1]), first, second], 1)
    at_root = logits[:1].expand(DRAWS, 1, -1)
    seen = torch.cat([at_root, logits[1 + first], logits[4 + 3 * first + second]], 1)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    drafts = Draft(Tree.branching(2, 1), tokens, valid, Scheme.COUPLED, race=race)
    scores = Scores(seen, sampling)
    verdict = rule.verify(drafts, scores, torch.empty(DRAWS, 0))
    assert verdict.distribution is not None
    u = torch.rand((DRAWS, 3), dtype=torch.float64, generator=random)
    bonus = inverse_cdf(verdict.distribution, u[:, 0])
    path = tokens.gather(1, verdict.path)[:, 1:]
    # accepted tokens, then the bonus token, then what the target goes on with; the table's rows are
    # 0, 1 + x and 4 + 3 x + y
    text = torch.zeros_like(bonus)
    for d, start in enumerate((0, 1, 4)):
        from_target = inverse_cdf(p[start + text], u[:, d])
        after = torch.where(verdict.accepted == d, bonus, from_target)
        x = torch.where(verdict.accepted > d, path[:, d] if d < 2 else from_target, after)
        text = 3 * text + x
    counts = torch.bincount(text, minlength=27).numpy()
    texts = E.target_distribution(target, 3)
    expected = [DRAWS * float(texts.get(xs, 0)) for xs in product(range(3), repeat=3)]
    possible = [i for i, count in enumerate(expected) if count > 0]
    if counts.sum() > counts[possible].sum():
        return 0.0
    return float(stats.chisquare(counts[possible], [expected[i] for i in possible]).pvalue)


def _table(model: E.Model) -> torch.Tensor:
    """``[13,3]``: after nothing, after each token, after each two."""
    prefixes = [xs for n in range(3) for xs in product(range(3), repeat=n)]
    rows = [[float(a) for a in model(prefix)] for prefix in prefixes]
    return torch.tensor(rows, dtype=torch.float64)
