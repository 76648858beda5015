"""Rules that decode, next to the exact ones: what each makes of a drafted tree, as a distribution.

``specwb.theory.decisions`` recovers the decisions of a rule by bisection on its uniforms, so
nothing is sampled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction as F
from functools import partial

import pytest
import torch
from instances import dense_pairs, pairs
from torch import Tensor

from specwb.core.flow import Draft, Scheme, Scores, Verdict
from specwb.core.tree import Tree
from specwb.rules import RULES, Rule
from specwb.rules.kseq import scale
from specwb.rules.race import pair_selection, race_weights
from specwb.theory import decisions
from specwb.theory import exact as E
from specwb.theory.instances import models

DEVICES = ["cpu"] + [pytest.param("cuda", marks=pytest.mark.cuda)] * torch.cuda.is_available()
every_device = pytest.mark.parametrize("device", DEVICES)
NEARLY_1, LARGEST, TINY = 1 - 1e-13, 1 - 2.0**-53, 1e-300
Parents = tuple[int, ...]
Case = tuple[E.Model, E.Model]
Decided = Callable[[E.Model, E.Model, Parents, E.Paths], Iterable[E.Outcome]]
"""The outcomes of one drafted tree, over fractions."""


def row(p: E.Dist) -> Tensor:
    return torch.tensor([[float(a) for a in p]], dtype=torch.float64)


def kseq(p: E.Dist, q: E.Dist, tokens: E.Tokens) -> E.Decision:
    """k-SEQ in fractions with the rho that the kernel finds, which is a fraction too."""
    tested = sum(q[x] > 0 for x in tokens)
    return E.kseq(p, q, tokens, F(float(scale(row(p), row(q), torch.tensor([tested])))))


def race(p: E.Dist, q: E.Dist, tokens: E.Tokens) -> E.Decision:
    w, _ = race_weights(row(p), row(q), max(len(tokens), 1))
    return E.race(p, q, tokens, [F(x) for x in w[0].tolist()])


def pair(
    p: E.Dist, q: E.Dist, tokens: E.Tokens, draws: E.SamplingScheme = E.without_replacement
) -> E.Decision:
    """The race of two, with the kernel's chances and the t that enumeration makes of them."""
    if len(tokens) < 2:
        return E.rejection(p, q, tokens)
    drawn = draws(q, 2)
    pairs = torch.tensor([[xs for xs, _ in drawn]])
    first, _ = pair_selection(row(p), row(q), pairs, draws is E.without_replacement)
    chances = {xs: F(c) for (xs, _), c in zip(drawn, first[0].tolist())}
    t = [F(0)] * len(q)
    for (x, y), probability in drawn:
        t[x] += probability * chances[x, y]
        t[y] += probability * (1 - chances[x, y])
    selected = chances[tokens], 1 - chances[tokens]
    accept = [c * min(F(1), p[x] / t[x]) if t[x] else F(0) for x, c in zip(tokens, selected)]
    return accept, None if sum(accept) == 1 else E.norm(E.minus(p, t))


def nodes(rule: E.NodeRule) -> Decided:
    """A node rule from the root down."""
    return lambda target, draft, parents, paths: E.walk(
        rule, target, draft, parents, [(paths, F(1))]
    )


def paths(rule: E.NodeRule) -> Decided:
    """A node rule on independent paths."""
    return lambda target, draft, parents, nodes: E.walked(
        rule, target, draft, [x for x in nodes[-parents.count(0) :] if x is not None], F(1)
    )


def tests(rule: E.Tests) -> Decided:
    """A rule that tests one path after another."""

    def decided(target: E.Model, draft: E.Model, parents: Parents, paths: E.Paths) -> Iterable:
        ours = E.decided(lambda target, draft, parents, _: rule(target, draft, parents, paths))
        return ours("POINT", target, draft, parents)

    return decided


TREES: dict[str, tuple[int, ...]] = {
    "leaf": (-1,),
    "chain1": (-1, 0),
    "chain3": (-1, 0, 1, 2),
    "siblings3": (-1, 0, 0, 0),
    "lopsided": (-1, 0, 0, 1, 3),
    "late": (-1, 0, 0, 2, 2),
    "branching2-1": (-1, 0, 0, 1, 2),
    "mixed6": (-1, 0, 0, 1, 1, 2),
    "branching2-2": (-1, 0, 0, 1, 1, 2, 2),
    "chain5": (-1, 0, 1, 2, 3, 4),
}
"""Trees by name, each as the parents of its nodes."""
CHAINS = [(-1, 0), (-1, 0, 1, 2, 3)]
WIDE = [(-1, 0), (-1, 0, 0, 0), TREES["lopsided"]]
PATHS = [(-1, 0, 0), (-1, *[0] * 3, 1, 2, 3), (-1, 0, 0, 1, 2, 3, 4)]
ALL, SIX = TREES["branching2-2"], (-1, *[0] * 6)
# name -> key of the rule, the exact one, how its candidates are drawn, trees
DRIVEN: dict[str, tuple[str, Decided, Scheme, list[Parents]]] = {
    "rejection": ("rejection", nodes(E.rejection), Scheme.IID, CHAINS),
    "rrs": ("rrs", nodes(E.rrs), Scheme.IID, [*WIDE, SIX]),
    "rrs, paths": ("rrs", paths(E.rrs), Scheme.IID_PATHS, PATHS),
    "rrsw": ("rrsw", nodes(E.rrsw), Scheme.WITHOUT_REPLACEMENT, [*WIDE, SIX]),
    "rrsw, repeats": ("rrsw", nodes(E.rrsw), Scheme.IID, WIDE),
    "kseq": ("kseq", nodes(kseq), Scheme.IID, [*WIDE, SIX]),
    "race": ("race", nodes(race), Scheme.IID, [(-1, 0), (-1, 0, 0, 0)]),
    "race of two": (
        "race",
        nodes(partial(pair, draws=E.iid)),
        Scheme.IID,
        [(-1, 0, 0), TREES["branching2-1"]],
    ),
    "race, distinct": (
        "race",
        nodes(pair),
        Scheme.WITHOUT_REPLACEMENT,
        [(-1, 0), (-1, 0, 0), TREES["branching2-1"]],
    ),
    "top": ("top", nodes(E.top_rule), Scheme.TOP_AND_SAMPLE, [*WIDE, SIX]),
    "point": ("point", nodes(E.point), Scheme.POINT, [*WIDE, SIX]),
    "naive": ("naive", nodes(E.naive), Scheme.IID, [*WIDE, SIX]),
    "block": ("block", tests(E.block_tests), Scheme.IID, CHAINS),
    "traversal": (
        "traversal",
        tests(E.traversal_tests),
        Scheme.WITHOUT_REPLACEMENT,
        [*WIDE, ALL, (-1, 0, 1, 1, 0, 0, 2)],
    ),
    "traversal, repeats": ("traversal", tests(E.traversal_tests), Scheme.IID, [*WIDE, ALL]),
    "traversal, paths": ("traversal", tests(E.traversal_tests), Scheme.IID_PATHS, PATHS),
    "gbv": ("gbv", tests(E.gbv_tests), Scheme.IID_PATHS, [*PATHS, (-1, 0, 1)]),
}
WITHOUT_Q = ("point", "naive")  # these do not read it
every_rule = pytest.mark.parametrize("name", DRIVEN)


def constant(p: E.Dist, q: E.Dist) -> Case:
    return (lambda _: p), (lambda _: q)


def rational(name: str, v: int = 3) -> list[Case]:
    """Models with zeros, ties, one-hot, equal, reversed and disjoint distributions, and dense
    ones. Where p/q is equal ``gbv`` may order by rounding, so it gets dense ones alone."""
    dense = [models(seed, v, "dense") for seed in range(10)]
    dense += [constant(*pair) for pair in dense_pairs(10, v)]
    if name == "gbv":
        return dense
    return dense + [models(seed, v) for seed in range(20)] + [constant(*x) for x in pairs(20, (v,))]


def floats(name: str, kind: str, v: int = 5, count: int = 9) -> list[Case]:
    """Models whose distributions are float32 numbers: of any logits, of logits in half precision
    that are flat or peaked, or of drafts that are sure of a token by ``kind`` logits."""

    def case(seed: int) -> Case:
        table: dict[tuple[int, E.Tokens], list[F]] = {}

        def model(side: int, path: E.Tokens) -> list[F]:
            if (side, path) not in table:
                generator = torch.Generator().manual_seed(hash((seed, side, path)) % 2**31)
                z = 1.5 * torch.randn(v, generator=generator)
                if kind == "half":
                    z = (z * (1, 3, 10)[seed % 3]).half().float()
                elif kind != "any" and side:
                    z[int(torch.randint(v, (1,), generator=generator))] += float(kind)
                table[side, path] = E.norm([F(x) for x in z.softmax(-1).tolist()])
            return table[side, path]

        return (lambda path: model(0, path)), (lambda path: model(1, path))

    return [case(seed) for seed in range(count)]


class Batch:
    """Rows of one call, a drafted tree of each case.

    Args:
        name: A key of ``DRIVEN``.
        parents: The tree.
        cases: Models, one pair per row.
        lose: How likely a node is left out.
    """

    def __init__(
        self,
        name: str,
        parents: Parents,
        cases: Sequence[Case],
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
        lose: float = 0,
    ) -> None:
        key, self.exact, scheme, _ = DRIVEN[name]
        self.cases, self.parents, self.rule = cases, parents, RULES[key]()
        rng, draw = random.Random(0), decisions.DRAFTS[scheme]
        self.drafted = [self._drafted(rng, draw, q, lose) for _, q in cases]
        drafts = list(enumerate(self.drafted))
        draft, scores = decisions.as_tensors(scheme, Tree.parents(list(parents)), cases, drafts)
        q = None if draft.q is None else draft.q.to(device, dtype)
        q_row = None if draft.q_row is None else draft.q_row.to(device)
        tokens, valid = draft.tokens.to(device), draft.valid.to(device)
        self.draft = Draft(draft.tree.to(device), tokens, valid, scheme, q, q_row)
        self.scores = replace(scores, logits=scores.logits.to(device, dtype))

    def _drafted(
        self, rng: random.Random, draw: E.SamplingScheme, q: E.Model, lose: float
    ) -> E.Paths:
        drafted: list[E.Tokens | None] = [(), *[None] * (len(self.parents) - 1)]
        for node, kids in enumerate(E.children_of(self.parents)):
            path = drafted[node]
            if path is None or not kids:
                continue
            tuples, chances = zip(*draw(q(path), len(kids)), strict=True)
            (tokens,) = rng.choices(tuples, [float(c) for c in chances])
            for kid, x in zip(kids, tokens, strict=False):
                drafted[kid] = None if rng.random() < lose else (*path, x)
        return tuple(drafted)

    def u(self, value: float | None = None) -> Tensor:
        """Uniforms of this value, or any."""
        shape = len(self.cases), self.rule.uniforms(self.draft.tree.limits)
        generator = torch.Generator().manual_seed(1)
        any_value = torch.rand(shape, dtype=torch.float64, generator=generator)
        u = any_value if value is None else torch.full_like(any_value, value)
        return u.to(self.draft.tokens.device)

    def verify(self, u: Tensor, rows: slice = slice(None), lazy: bool = False) -> Verdict:
        """What the rule decides about some of the rows."""
        self.rule.lazy = lazy
        return self.rule.verify(*self.rows(rows), u[rows])

    def rows(self, rows: slice) -> tuple[Draft, Scores]:
        draft, q = self.draft, None if self.draft.q is None else self.draft.q[rows]
        some = replace(draft, tokens=draft.tokens[rows], valid=draft.valid[rows], q=q)
        return some, replace(self.scores, logits=self.scores.logits[rows])

    def worst_tv(self, rule: Rule | None = None) -> float:
        """The largest distance over the rows between what the rule and the exact one output, given
        the draft."""
        found = decisions.outcomes_in(
            self.draft, decisions.boxes_of(rule or self.rule, self.draft, self.scores)
        )
        return max(
            distance(outcomes, self.exact(*case, self.parents, paths))
            for outcomes, case, paths in zip(found, self.cases, self.drafted, strict=True)
        )


def distance(one: Iterable, other: Iterable) -> float:
    """Total variation between outcomes as distributions of (accepted path, next token)."""
    apart: dict[tuple[E.Tokens, int], float] = {}
    for sign, outcomes in ((1, one), (-1, other)):
        for path, bonus, chance in outcomes:
            for y, a in enumerate(bonus or ()):
                apart[path, y] = apart.get((path, y), 0) + sign * float(a) * float(chance)
    return sum(map(abs, apart.values())) / 2


def output_of(
    rule: Rule, target: E.Model, draft: E.Model, parents: Parents, scheme: Scheme = Scheme.IID
) -> dict[E.Tokens, float]:
    """The distribution of the tokens that a step over a tree begins."""
    every = decisions.all_drafts(scheme, Tree.parents(list(parents)), [(target, draft)])
    boxes = decisions.boxes_of(rule, every.draft, every.scores)
    return decisions.output_distributions(every, [(target, draft)], boxes)[0]
