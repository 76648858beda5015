"""Does a rule, as it decodes, keep the target's distribution? Asked on every draft of small
trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from scipy import stats

from specwb.flow import Draft, Exactness, Law, LawMismatch, Scores
from specwb.probability import Sampling, inverse_cdf
from specwb.tree import Tree
from specwb.verify import exact as E
from specwb.verify.distribution import (
    CANNOT,
    DRAFTS,
    cells_of,
    every_draft,
    host_differs,
    joint,
    rule_of,
)
from specwb.verify.instances import models
from specwb.verify.rule import Rule

TOLERANCE = 1e-9
"""Distances below it are rounding: float64, and for ``race`` an integral that is off by 1e-10."""
ALARM = 1e-6
DRAWS = 20_000
# parents, size of the vocabulary, seeds of the models (each once with zeros and ties, once dense)
_NODES: list[tuple[tuple[int, ...], int, range]] = [
    ((-1, 0), 4, range(5)),
    ((-1, 0, 0), 3, range(2)),
    ((-1, 0, 0, 0), 3, range(1)),
    ((-1, 0, 1), 3, range(2)),
    ((-1, 0, 1, 2), 2, range(2)),
    ((-1, 0, 0, 1, 2), 2, range(2)),
    ((-1, 0, 0, 1, 1, 2), 2, range(1)),
]


@dataclass
class RuleCheck:
    """What :func:`check_rule` found.

    Attributes:
        rule: its name. laws: how candidates were drawn. lossy: it does not claim to be lossless.
        rounds: how many rounds, a pair of models and a tree each, were compared.
        worst, where: the largest total variation between a round's output and the target's
            distribution, and in which round. mean: of all rounds.
        host: in how many cases it decides otherwise with ``lazy`` set, as on a CPU.
        pvalue: of a sampled test, for candidates that cannot be listed (COUPLED); else None.
        failure: what the rule raised. cannot: why some of its ways of drawing could not be asked.
    """

    rule: str
    laws: tuple[str, ...]
    lossy: bool = False
    rounds: int = 0
    worst: float = 0.0
    mean: float = 0.0
    where: str = ""
    host: int = 0
    pvalue: float | None = None
    failure: str = ""
    cannot: str = ""

    @property
    def lossless(self) -> bool:
        """Something was compared, and nothing differed from the target's distribution."""
        sampled = self.pvalue is None or self.pvalue > ALARM
        return self.rounds > 0 and self.worst < TOLERANCE and not self.host and not self.failure and sampled

    @property
    def passed(self) -> bool:
        """Lossless, or a rule that says it is LOSSY and whose forms agree."""
        return self.lossless or (self.lossy and not self.host and not self.failure)

    def __str__(self) -> str:
        said = "lossless" if self.lossless else "LOSSY, as it says" if self.passed else "NOT lossless"
        lines = [f"{self.rule}: {said} ({self.rounds} rounds, largest TV {self.worst:.2g})"]
        if self.worst >= TOLERANCE:
            lines.append(f"  largest at {self.where}")
        if self.host:
            lines.append(f"  with `lazy` set it decides otherwise in {self.host} cases")
        if self.pvalue is not None:
            lines.append(f"  sampled, since {CANNOT[Law.COUPLED]}: p-value {self.pvalue:.2g}")
        lines += [f"  failed: {self.failure}"] if self.failure else []
        lines += [f"  not asked: {self.cannot}"] if self.cannot else []
        return "\n".join(lines)


def check_rule(rule: str | Rule | type[Rule], progress: Callable[[str], None] | None = None) -> RuleCheck:
    """Compare what a rule outputs with the target's distribution, on small trees and difficult
    models.

    For each way of drawing that the rule names in ``laws``: every draft of chains and trees with up
    to five candidates, over two to four tokens, with models that change with the prefix, some with
    zeros, ties, certainties and equal or disjoint supports. What is asked is the rule's own code,
    in the form for batches (:func:`specwb.verify.distribution_of`) and in the forms for a CPU.
    Nothing is sampled, but for COUPLED, whose candidates cannot be listed. ROOTS cannot be asked.

    Args:
        rule: a :class:`Rule` of your own or of ``RULES``, its class or its key.
        progress: called with what comes next.
    Raises:
        ValueError: no rule, or one that names no ``laws``.
    """
    made = rule_of(rule)
    if not made.laws:
        raise ValueError(f"rule {made.name or type(made).__name__!r} names no laws; set `laws` to what it is lossless for")
    names = tuple(law.name for law in Law if law in made.laws)
    found = RuleCheck(made.name or type(made).__name__, names, made.exactness is Exactness.LOSSY)
    try:
        for law, parents, cases in _rounds(made):
            if progress is not None:
                progress(f"{found.rule}: {len(parents) - 1} nodes, {law.name}")
            _compare(made, found, law, Tree.parents(list(parents)), cases)
        if Law.COUPLED in made.laws and made.laws == {Law.COUPLED}:
            found.pvalue = _sampled(made, found)
    except Exception as error:  # a rule of somebody's own may raise anything
        found.failure = f"{type(error).__name__}: {error}"
    if not found.rounds and not found.failure:
        reasons = [f"{law.name}: {CANNOT[law]}" for law in made.laws if law in CANNOT]
        found.cannot = "; ".join(reasons) or "it refuses every small tree"
    return found


def _rounds(rule: Rule) -> Iterator[tuple[Law, tuple[int, ...], list[tuple[E.Model, E.Model]]]]:
    for law in DRAFTS:
        for parents, v, seeds in _NODES:
            tree = Tree.parents(list(parents))
            if law not in rule.laws or (law is Law.IID_PATHS and not tree.is_paths):
                continue
            try:
                rule.check(law, tree.limits)
            except LawMismatch:
                continue
            yield law, parents, [models(seed, v, kind) for seed in seeds for kind in ("any", "dense")]


def _compare(rule: Rule, found: RuleCheck, law: Law, tree: Tree, cases: Sequence[tuple[E.Model, E.Model]]) -> None:
    every = every_draft(law, tree, cases)
    cells = cells_of(rule, every.draft, every.scores)
    for (target, draft), law_found in zip(cases, joint(rule, every, cases, cells), strict=True):
        off = distance(law_found, E.target_law(target, tree.D + 1))
        found.rounds += 1
        found.mean += (off - found.mean) / found.rounds
        if off > found.worst:
            found.worst = off
            p, q = (", ".join(f"{float(x):.3g}" for x in model(())) for model in (target, draft))
            found.where = f"{law.name}, tree {'.'.join(map(str, tree.host[0][1:]))}, first p = ({p}), q = ({q})"
    found.host += host_differs(rule, every.draft, every.scores, cells)


def distance(one: dict, other: dict) -> float:
    """Total variation between two distributions over texts, in floats."""
    return 0.5 * sum(abs(float(one.get(x, 0)) - float(other.get(x, 0))) for x in {*one, *other})


def _sampled(rule: Rule, found: RuleCheck) -> float:
    """Two coupled paths of two tokens over three: p-value of the three tokens that a round
    begins."""
    random = torch.Generator().manual_seed(0)
    target, draft = models(3, 3, "dense")
    p, q = (_table(model) for model in (target, draft))
    race = torch.rand((DRAWS, 3, 2, 3), dtype=torch.float64, generator=random).log().neg()
    first = (race[:, 0] / q[0]).argmin(-1)
    second = (race[:, 1] / q[1 + first]).argmin(-1)
    tokens = torch.cat([torch.zeros_like(first[:, :1]), first, second], 1)
    after = torch.cat([p[:1].expand(DRAWS, 1, -1), p[1 + first], p[4 + 3 * first + second]], 1)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    made = Draft(Tree.branching(2, 1), tokens, valid, Law.COUPLED, race=race)
    verdict = rule.verify(made, Scores(after.log(), Sampling(1.0)), torch.empty(DRAWS, 0))
    assert verdict.law is not None
    u = torch.rand((DRAWS, 3), dtype=torch.float64, generator=random)
    closing = inverse_cdf(verdict.law, u[:, 0])
    text = tokens.gather(1, verdict.path)[:, 1:]
    # row of the table: 0, 1 + x, 4 + 3 x + y
    code, place = torch.zeros_like(closing), torch.zeros_like(closing)
    for d in range(3):
        drawn = inverse_cdf(p[place], u[:, d])
        kept = text[:, d] if d < 2 else drawn
        x = torch.where(verdict.accepted > d, kept, torch.where(verdict.accepted == d, closing, drawn))
        code, place = 3 * code + x, (1 + x if d == 0 else 4 + 3 * (place - 1) + x) if d < 2 else place
    counts = torch.bincount(code, minlength=27).numpy()
    wanted = [float(E.target_law(target, 3).get((a, b, c), 0)) for a in range(3) for b in range(3) for c in range(3)]
    found.rounds += 1
    return float(stats.chisquare(counts, [DRAWS * x for x in wanted]).pvalue)


def _table(model: E.Model) -> torch.Tensor:
    """``[13,3]``: after nothing, after each token, after each two."""
    prefixes = [(), *((x,) for x in range(3)), *((x, y) for x in range(3) for y in range(3))]
    return torch.tensor([[float(a) for a in model(prefix)] for prefix in prefixes], dtype=torch.float64)
