"""The plain Python form at the head of every rule's file decides as the tensor code does."""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driven import PATHS, Batch
from torch import Tensor

from specwb.core.flow import Draft, Scheme, Scores
from specwb.core.probability import Sampling
from specwb.core.tree import Tree
from specwb.rules import RULES, Greedy, Rule
from specwb.rules.kseq import scale
from specwb.rules.race import race_weights
from specwb.theory.instances import models

V, TRIALS = 5, 40
NODE_RULES = ("rejection", "rrs", "rrsw", "kseq", "race", "top", "point", "naive", "typical")


def plain_forms() -> dict[str, Callable[..., Any]]:
    """Name -> the first function in the docstring of a rule's module. A form may call another."""
    forms: dict[str, Any] = {"math": math}
    for rule in (*RULES.values(), Greedy):
        text = sys.modules[rule.__module__].__doc__ or ""
        block = re.search(r"::\n\n((?:    .*\n|\n)+)", text)
        assert block, f"{rule.__module__} has no plain form"
        exec(textwrap.dedent(block[1]), forms)
    forms["naive"] = forms["point"]
    return forms


FORMS = plain_forms()


def distributions(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = 1.3 * torch.randn(count, V, generator=generator, dtype=torch.float64)
    return logits.softmax(-1)


def same(weights: list[float], expected: Tensor) -> bool:
    """Whether two rows of weights are one distribution."""
    plain = torch.tensor(weights, dtype=torch.float64)
    return torch.allclose(plain / plain.sum(), expected / expected.sum(), atol=1e-9)


def test_every_rule_has_a_plain_form() -> None:
    assert {*RULES, "greedy"} <= FORMS.keys()


def rule_of(name: str) -> type[Rule]:
    return RULES.get(name, Greedy)


@pytest.mark.parametrize("name", NODE_RULES)
def test_children_of_a_node(name: str) -> None:
    accepted = 0
    for seed in range(TRIALS):
        rng = torch.Generator().manual_seed(seed)
        p, q = distributions(2, seed).split(1)
        k = 1 if name == "rejection" else 3
        distinct = name in ("rrsw", "point", "naive", "top", "typical")
        tokens = torch.multinomial(q, k, replacement=not distinct, generator=rng)
        if name == "top":
            q = q.scatter(1, tokens[:, :-1], 0)
            q = q / q.sum()
        rule = RULES[name]()
        u = torch.rand(1, rule.draws(k), generator=rng, dtype=torch.float64)
        choice, residual = rule.node(p, q, tokens, torch.ones_like(tokens, dtype=torch.bool), u)
        more: list[Any] = []
        if name == "kseq":
            more = [float(scale(p, q, torch.tensor([k])))]
        if name == "race":
            w, t = race_weights(p, q, k)
            more = [w[0, tokens[0]].tolist(), t[0].tolist()]
        token, weights = FORMS[name](p[0].tolist(), q[0].tolist(), tokens[0].tolist(), u[0], *more)
        if choice >= 0:
            accepted += 1
            assert token == tokens[0, int(choice)]
        else:
            assert token is None
            assert same(weights, residual[0])
    assert 0 < accepted < TRIALS


class Case:
    """A random draft of one row, as tensors and as lists."""

    def __init__(self, seed: int, tree: Tree, scheme: Scheme) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        n = tree.n
        self.p, self.q = distributions(n, 2 * seed), distributions(n, 2 * seed + 1)
        self.parents = tree.parent[0].tolist()
        kids = [[c for c in range(n) if self.parents[c] == node] for node in range(n)]
        self.tokens = [0] * n
        for node in range(n):
            if kids[node]:
                drawn = torch.multinomial(self.q[node], len(kids[node]), generator=self.rng)
                for child, x in zip(kids[node], drawn.tolist()):
                    self.tokens[child] = x
        self.pairs = [[(c, self.tokens[c]) for c in kids[node]] for node in range(n)]
        self.children = [{x: c for c, x in pairs} for pairs in self.pairs]
        row = torch.tensor([self.tokens])
        self.draft = Draft(
            tree,
            row,
            torch.ones_like(row, dtype=torch.bool),
            scheme,
            self.q[None],
            torch.arange(n)[None],
        )
        self.scores = Scores(self.p.log()[None], Sampling(1.0))

    def verified(self, rule: Rule, u: Tensor | None) -> tuple[int, Tensor]:
        """The last node of the path, and the next token's distribution (or the bonus token)."""
        verdict = rule.verify(self.draft, self.scores, u)
        node = int(verdict.path[0, int(verdict.accepted[0])])
        if verdict.next_distribution is not None:
            return int(verdict.path[0, -1]), verdict.next_distribution[0]
        return node, verdict.bonus if verdict.distribution is None else verdict.distribution[0]

    def uniforms(self, rule: Rule) -> Tensor:
        count = rule.uniforms(self.draft.tree.limits)
        return torch.rand(1, count, generator=self.rng, dtype=torch.float64)


@pytest.mark.parametrize("name", ["greedy", "block", "traversal", "independent"])
def test_whole_drafts(name: str) -> None:
    lengths = set()
    for seed in range(TRIALS):
        tree = Tree.chain(3) if name == "block" else Tree.branching(3, 2)
        case = Case(seed, tree, Scheme.WITHOUT_REPLACEMENT)
        p, q, rule = case.p.tolist(), case.q.tolist(), rule_of(name)()
        u = case.uniforms(rule)
        node, expected = case.verified(rule, u)
        lengths.add(node)
        if name == "greedy":
            assert FORMS[name](p, case.children) == (node, int(expected))
            continue
        if name == "block":
            end, weights = FORMS[name](p, q, case.tokens[1:], u[0])
        elif name == "traversal":
            end, weights = FORMS[name](p, q, case.pairs, [0, *u[0]])
        else:
            end, weights = FORMS[name](p, q, case.parents, case.tokens, [0, *u[0]])
        assert end == node
        assert same(weights, expected)
    assert len(lengths) > 2


def test_longest_of_several_roots() -> None:
    ends = set()
    for seed in range(TRIALS):
        case = Case(seed, Tree.branching(2, 2, 1), Scheme.ROOTS)
        rule = RULES["longest"]()
        u = case.uniforms(rule)
        each = u[0].view(2, 3, 2).tolist()
        path, weights = FORMS["longest"](case.p.tolist(), case.q.tolist(), case.children, each)
        verdict = rule.verify(case.draft, case.scores, u)
        # its last token is the bonus token
        assert int(verdict.accepted[0]) == len(path) - 1
        assert int(verdict.bonus[0]) == case.tokens[path[-1]]
        assert same(weights, verdict.next_distribution[0])
        ends.add(len(path))
    assert len(ends) > 1


def test_greedy_multi_path_block_verification() -> None:
    batch = Batch("gbv", PATHS[2], [models(seed, V, "dense") for seed in range(TRIALS)])
    u, kept = batch.u(), set()
    verdict = batch.verify(u)
    for row, ((target, draft), drafted) in enumerate(zip(batch.cases, batch.drafted)):
        best, accepted, weights = FORMS["gbv"](
            *(lambda prefix, m=m: [float(a) for a in m(tuple(prefix))] for m in (target, draft)),
            [list(path) for path in drafted[-2:]],
            u[row].tolist(),
        )
        nodes = verdict.path[row, 1 : accepted + 1]
        assert int(verdict.accepted[row]) == accepted
        assert batch.draft.tokens[row, nodes].tolist() == best[:accepted]
        assert same(weights, verdict.distribution[row])
        kept.add(accepted)
    assert len(kept) > 2
