"""Does a rule, as it decodes, keep the target's distribution?

The rule is run on every draft of small trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from scipy import stats

from specwb.errors import ArgumentError
from specwb.flow import Draft, Exactness, RuleMismatch, Scheme, Scores
from specwb.probability import Sampling, inverse_cdf
from specwb.tree import Tree
from specwb.verify import exact as E
from specwb.verify.distribution import (
    DRAFTS,
    UNLISTED,
    all_drafts,
    boxes_of,
    host_differs,
    joint_distributions,
    rule_of,
)
from specwb.verify.instances import models
from specwb.verify.rule import Rule

TOLERANCE = 1e-9
"""Distances below it are rounding: float64, and for ``race`` an integral that is off by 1e-10."""
ALARM = 1e-6
"""A sampled rule with a smaller p-value is not lossless."""
DRAWS = 20_000
"""Rounds of a sampled test."""
# parents, size of the vocabulary, seeds of the models (each once with zeros and ties, once dense)
_TREES: list[tuple[tuple[int, ...], int, range]] = [
    ((-1, 0), 4, range(5)),
    ((-1, 0, 0), 3, range(2)),
    ((-1, 0, 0, 0), 3, range(1)),
    ((-1, 0, 1), 3, range(2)),
    ((-1, 0, 1, 2), 2, range(2)),
    ((-1, 0, 0, 1, 2), 2, range(2)),
    ((-1, 0, 0, 1, 1, 2), 2, range(1)),
]
Case = tuple[E.Model, E.Model]
"""A target and a draft model."""


@dataclass
class RuleCheck:
    """What :func:`check_rule` says of a rule.

    Attributes:
        rule: Its name.
        schemes: The names of the sampling schemes it was run with.
        lossy: It does not claim to be lossless.
        rounds: How many rounds, a pair of models and a tree each, were compared.
        worst: The largest total variation between a round's output and the target's distribution.
        mean: The mean total variation of all rounds.
        where: The round of the largest.
        host: In how many cases it decides otherwise with ``lazy`` set, as on a CPU.
        pvalue: Of a sampled test, for candidates that cannot be listed (COUPLED); else None.
        failure: What the rule raised.
        unlisted: Why none of its sampling schemes could be run.
    """

    rule: str
    schemes: tuple[str, ...]
    lossy: bool = False
    rounds: int = 0
    worst: float = 0.0
    mean: float = 0.0
    where: str = ""
    host: int = 0
    pvalue: float | None = None
    failure: str = ""
    unlisted: str = ""

    @property
    def lossless(self) -> bool:
        """Something was compared, and nothing differed from the target's distribution."""
        right = self.worst < TOLERANCE and (self.pvalue is None or self.pvalue > ALARM)
        return self.rounds > 0 and right and not self.host and not self.failure

    @property
    def passed(self) -> bool:
        """Lossless, or a rule that says it is LOSSY and whose forms agree."""
        return self.lossless or (self.lossy and not self.host and not self.failure)

    def add(self, distance: float, where: str) -> None:
        """Count a round with its total variation."""
        self.rounds += 1
        self.mean += (distance - self.mean) / self.rounds
        if distance > self.worst:
            self.worst, self.where = distance, where

    def __str__(self) -> str:
        verdict = "NOT lossless"
        if self.passed:
            verdict = "lossless" if self.lossless else "LOSSY, as it says"
        lines = [f"{self.rule}: {verdict} ({self.rounds} rounds, largest TV {self.worst:.2g})"]
        if self.worst >= TOLERANCE:
            lines.append(f"  largest at {self.where}")
        if self.host:
            lines.append(f"  with `lazy` set it decides otherwise in {self.host} cases")
        if self.pvalue is not None:
            lines.append(f"  sampled, since {UNLISTED[Scheme.COUPLED]}: p-value {self.pvalue:.2g}")
        if self.failure:
            lines.append(f"  failed: {self.failure}")
        if self.unlisted:
            lines.append(f"  not checked: {self.unlisted}")
        return "\n".join(lines)


def check_rule(
    rule: str | Rule | type[Rule], progress: Callable[[str], None] | None = None
) -> RuleCheck:
    """Compare what a rule outputs with the target's distribution, on small trees and difficult
    models.

    For each way of drawing that the rule names in ``schemes`` it takes every draft of chains and
    trees with up to five candidates, over two to four tokens, with models that change with the
    prefix, some with zeros, ties, certainties and equal or disjoint supports. What is run is the
    rule's own code, in the form for batches (:func:`specwb.verify.distribution_of`) and in the
    forms for a CPU. Nothing is sampled, but for COUPLED, whose candidates cannot be listed. ROOTS
    cannot be checked.

    Args:
        rule: A :class:`Rule` of your own or of ``RULES``, its class or its key.
        progress: Called with what comes next.
    Raises:
        ValueError: ``rule`` is no rule, or one that names no ``schemes``.
    """
    rule = rule_of(rule)
    name = rule.name or type(rule).__name__
    if not rule.schemes:
        raise ArgumentError(
            f"rule {name!r} names no laws; set `schemes` to what it is lossless for"
        )
    schemes = tuple(scheme.name for scheme in Scheme if scheme in rule.schemes)
    check = RuleCheck(name, schemes, rule.exactness is Exactness.LOSSY)
    try:
        for scheme, parents, cases in _rounds(rule):
            if progress is not None:
                progress(f"{name}: {len(parents) - 1} nodes, {scheme.name}")
            _compare(rule, check, scheme, Tree.parents(list(parents)), cases)
        if rule.schemes == {Scheme.COUPLED}:
            check.pvalue = _sampled(rule)
            check.rounds += 1
    except Exception as error:  # a rule of somebody's own may raise anything
        check.failure = f"{type(error).__name__}: {error}"
    if not check.rounds and not check.failure:
        reasons = [f"{x.name}: {UNLISTED[x]}" for x in rule.schemes if x in UNLISTED]
        check.unlisted = "; ".join(reasons) or "it refuses every small tree"
    return check


def _rounds(rule: Rule) -> Iterator[tuple[Scheme, tuple[int, ...], list[Case]]]:
    """Sampling scheme, tree and pairs of models of the rounds that a rule takes."""
    for scheme, (parents, v, seeds) in product(DRAFTS, _TREES):
        tree = Tree.parents(list(parents))
        if scheme not in rule.schemes or (scheme is Scheme.IID_PATHS and not tree.is_paths):
            continue
        try:
            rule.check(scheme, tree.limits)
        except RuleMismatch:
            continue
        cases = [models(seed, v, kind) for seed in seeds for kind in ("any", "dense")]
        yield scheme, parents, cases


def _compare(
    rule: Rule, check: RuleCheck, scheme: Scheme, tree: Tree, cases: Sequence[Case]
) -> None:
    """Add the rounds of one tree to the check."""
    drafts = all_drafts(scheme, tree, cases)
    boxes = boxes_of(rule, drafts.draft, drafts.scores)
    outputs = joint_distributions(drafts, cases, boxes)
    for (target, draft), output in zip(cases, outputs, strict=True):
        p, q = (", ".join(f"{float(x):.3g}" for x in model(())) for model in (target, draft))
        shape = ".".join(map(str, tree.host[0][1:]))
        where = f"{scheme.name}, tree {shape}, first p = ({p}), q = ({q})"
        check.add(distance(output, E.target_distribution(target, tree.D + 1)), where)
    check.host += host_differs(rule, drafts.draft, drafts.scores, boxes)


def distance(one: Mapping, other: Mapping) -> float:
    """Total variation between two distributions over texts, in floats."""
    return 0.5 * sum(abs(float(one.get(x, 0)) - float(other.get(x, 0))) for x in {*one, *other})


def _sampled(rule: Rule) -> float:
    """The p-value of the three tokens that a round of two coupled paths begins.

    The paths have two tokens, over a vocabulary of three.
    """
    random = torch.Generator().manual_seed(0)
    target, draft = models(3, 3, "dense")
    p, q = (_table(model) for model in (target, draft))
    race = torch.rand((DRAWS, 3, 2, 3), dtype=torch.float64, generator=random).log().neg()
    first = (race[:, 0] / q[0]).argmin(-1)
    second = (race[:, 1] / q[1 + first]).argmin(-1)
    tokens = torch.cat([torch.zeros_like(first[:, :1]), first, second], 1)
    at_root = p[:1].expand(DRAWS, 1, -1)
    probabilities = torch.cat([at_root, p[1 + first], p[4 + 3 * first + second]], 1)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    drafts = Draft(Tree.branching(2, 1), tokens, valid, Scheme.COUPLED, race=race)
    scores = Scores(probabilities.log(), Sampling(1.0))
    verdict = rule.verify(drafts, scores, torch.empty(DRAWS, 0))
    assert verdict.distribution is not None
    u = torch.rand((DRAWS, 3), dtype=torch.float64, generator=random)
    bonus = inverse_cdf(verdict.distribution, u[:, 0])
    path = tokens.gather(1, verdict.path)[:, 1:]
    text = torch.zeros_like(bonus)  # three tokens as one number
    row = torch.zeros_like(bonus)  # of the table: 0, 1 + x, 4 + 3 x + y
    for d in range(3):
        # accepted tokens, then the bonus token, then what the target goes on with
        from_target = inverse_cdf(p[row], u[:, d])
        after = torch.where(verdict.accepted == d, bonus, from_target)
        x = torch.where(verdict.accepted > d, path[:, d] if d < 2 else from_target, after)
        text = 3 * text + x
        if d == 0:
            row = 1 + x
        elif d == 1:
            row = 4 + 3 * (row - 1) + x
    counts = torch.bincount(text, minlength=27).numpy()
    texts = E.target_distribution(target, 3)
    expected = [DRAWS * float(texts.get(xs, 0)) for xs in product(range(3), repeat=3)]
    return float(stats.chisquare(counts, expected).pvalue)


def _table(model: E.Model) -> torch.Tensor:
    """``[13,3]``: after nothing, after each token, after each two."""
    prefixes = [xs for n in range(3) for xs in product(range(3), repeat=n)]
    rows = [[float(a) for a in model(prefix)] for prefix in prefixes]
    return torch.tensor(rows, dtype=torch.float64)
