"""The rules of this project: their decisions, recovered by bisection on their uniforms
(:mod:`specwb.theory.decisions`), give the distribution of a step's output on small trees. Nothing
of torch is intercepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from specwb.certificate.instances import Instance
from specwb.certificate.measure import Certificate, Worst, compared
from specwb.core.errors import ArgumentError
from specwb.core.flow import RuleMismatch, Scheme
from specwb.core.probability import Sampling
from specwb.core.tree import Tree
from specwb.rules import RULES
from specwb.rules.rule import ONE_A_NODE, Rule
from specwb.theory import exact as E
from specwb.theory.decisions import (
    DRAFTS,
    UNLISTED,
    Case,
    Unfollowed,
    all_drafts,
    boxes_of,
    output_distributions,
    shares_wrong,
)
from specwb.theory.instances import models

TOLERANCE = 1e-9
"""Distances below it are rounding: float64, and for ``race`` an integral that is off by 1e-10."""
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
        scheme, tree: Of the drafts.
        sampling: Temperature and filters of the target.
        instances: What is reported of each pair.
        cases: The models, the targets before temperature and filters.
    """

    scheme: Scheme
    tree: Tree
    sampling: Sampling
    instances: list[Instance]
    cases: list[Case]


def check_rule(rule: Any) -> Certificate:
    """Compare the output of a rule with the target's distribution, on small trees and difficult
    models.

    For each sampling scheme in the rule's ``schemes`` every draft of small trees over two to six
    tokens is enumerated (chains of six over two, trees of depth three over two, five siblings over
    six, three siblings below the root over four), with models that change with the prefix, some
    with zeros, ties, certainties and equal or disjoint supports, at T = 1, and the smallest also at
    T = 0.7 with and without top-k and top-p. The rule's own code is run, and its decisions are
    recovered (:mod:`specwb.theory.decisions`). A distance counts only as far as it exceeds the
    probability of decisions that may not have been recovered, estimated at random uniforms. The
    result is about these comparisons only, and up to ``UNSEEN``. ROOTS cannot be checked, nor rules
    that decide by anything other than comparing the given uniforms with thresholds, such as one
    that draws its own random numbers: ``reason`` says why.

    Args:
        rule: A :class:`Rule` of your own or of ``RULES``, its class or its key.
    Raises:
        ArgumentError: ``rule`` is not a rule, or one that names no ``schemes``.
    """
    rule = rule_of(rule)
    if not rule.schemes:
        name = rule.name or type(rule).__name__
        raise ArgumentError(
            f"rule {name!r} names no schemes; set `schemes` to what it is lossless for"
        )
    found: list[tuple[Instance, Worst]] = []
    reason = ""
    try:
        for task in _tasks(rule):
            try:
                found += _compare(rule, task)
            except Unfollowed as error:  # what can be followed may still be wrong
                reason = str(error)
    except Exception as error:  # a rule of somebody's own may raise anything
        reason = f"it raised {type(error).__name__}: {error}"
    if not found and not reason:
        reasons = [f"{x.name}: {UNLISTED[x]}" for x in rule.schemes if x in UNLISTED]
        reason = "; ".join(reasons) or "it refuses every small tree"
    done = tuple(case for case, _ in found)
    distances = [(case.tv or 0.0, worst) for case, worst in found]
    tv, worst = max(distances, key=itemgetter(0), default=(0.0, None))
    return Certificate(tv, done, worst if tv >= TOLERANCE else None, reason)


def rule_of(rule: Any) -> Rule:
    """A rule, from itself, its class or its key."""
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, type) and issubclass(rule, Rule):
        return rule()
    if isinstance(rule, str) and rule in RULES:
        return RULES[rule]()
    raise ArgumentError(
        f"rule must be a Rule, its class or one of {', '.join(RULES)}; got {rule!r}"
    )


def _tasks(rule: Rule) -> Iterator[Task]:
    """The comparisons that a rule's sampling schemes allow."""
    for scheme in DRAFTS:
        for parents, v, seeds, sizes in TREES:
            tree = Tree.parents(list(parents))
            if not _takes(rule, scheme, tree):
                continue
            if sizes:
                # candidates that differ from each other need as many tokens; with all but one fixed
                # there are few drafts anyway
                least = {Scheme.IID: 1, Scheme.IID_PATHS: 1, Scheme.WITHOUT_REPLACEMENT: tree.K}
                supports = [max(size, least.get(scheme, v)) for size in sizes]
                yield _task(scheme, tree, v, PLAIN, "dense", seeds, supports)
                continue
            yield _task(scheme, tree, v, PLAIN, "any", seeds)
            filtered = Sampling(0.7, top_k=v - 1, top_p=0.9) if v > 2 else Sampling(0.7)
            yield _task(scheme, tree, v, filtered, "dense", seeds[-1:])


def _task(
    scheme: Scheme,
    tree: Tree,
    v: int,
    sampling: Sampling,
    kind: str,
    seeds: Sequence[int],
    supports: Sequence[int] = (),
) -> Task:
    """The pairs of models of some seeds; ``supports``: the number of tokens that q keeps, by
    depth."""
    parents = tuple(tree.host[0])
    cases = [models(seed, v, kind) for seed in seeds]
    if supports:
        cases = [(p, _cut(q, supports, seeds[0])) for p, q in cases]
    if sampling.top_k:
        kind = f"{kind}, top_k and top_p"
    instances = [
        Instance(
            kind,
            v,
            len(parents) - 1,
            sampling.temperature,
            seed,
            scheme=scheme.name,
            tree=parents,
        )
        for seed in seeds
    ]
    return Task(scheme, tree, sampling, instances, cases)


def _takes(rule: Rule, scheme: Scheme, tree: Tree) -> bool:
    """Whether a rule verifies trees of this shape with candidates drawn so. Chains are drawn alike
    under several schemes: they are taken once."""
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


def _compare(rule: Rule, task: Task) -> list[tuple[Instance, Worst]]:
    """The comparisons of one tree, each TV less what decisions that were not recovered may explain.

    Raises:
        Unfollowed: Boxes were seen to be wrong, and may explain all of a distance.
    """
    drafts = all_drafts(task.scheme, task.tree, task.cases)
    drafts = replace(drafts, scores=replace(drafts.scores, sampling=task.sampling))
    boxes = boxes_of(rule, drafts.draft, drafts.scores)
    cases = [(_sampled_from(target, task.sampling), draft) for target, draft in task.cases]
    outputs = output_distributions(drafts, cases, boxes)
    counts = torch.tensor(drafts.case)[boxes.row].bincount().tolist()
    found = []
    for instance, (target, _), output, missed, count in zip(
        task.instances, cases, outputs, shares_wrong(rule, drafts, boxes), counts, strict=True
    ):
        far, worst = compared(instance, output, target)
        if missed and far <= max(missed, TOLERANCE):
            raise Unfollowed(
                f"rule {rule.name!r} decides otherwise within a box of uniforms than at its "
                f"corners, with a probability up to {missed:.2g}; what can be recovered are rules "
                "that compare single uniforms with thresholds"
            )
        instance = replace(instance, tv=far - missed, runs=count)
        found.append((instance, (instance, *worst[1:])))
    return found
