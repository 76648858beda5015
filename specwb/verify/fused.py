"""Where verification runs by fused kernels, and their check against the rules of this package.

A rule is fused where its own class says so in ``fused``; one that inherits from it and decides
otherwise is not.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from specwb import kernels
from specwb.flow import Draft, Scheme, Scores, Verdict
from specwb.probability import Sampling
from specwb.tree import Tree

NAMES = {"rrs": "rejections", "rrsw": "rejections", "point": "point", "greedy": "greedy"}
"""The kernel of each kind of rule, as :func:`specwb.kernels.ready` is asked for it."""


def kind_of(rule: Any) -> str:
    """The kind of walk that a rule's kernels compute, or nothing."""
    return vars(type(rule)).get("fused", "")


def verified(rule: Any, draft: Draft, scores: Scores, u: Tensor | None) -> Verdict | None:
    """The verdict by kernels, None where torch's path is to be taken.

    Args:
        rule: the rule.
        draft: the tree of candidates.
        scores: at every node of it.
        u: uniforms as :meth:`Rule.verify` is given them.
    """
    kind = kind_of(rule)
    if not kind or not kernels.ready(NAMES[kind], scores.logits, _check(kind)):
        return None
    return _run(kind, rule, draft, scores, u)


def _run(kind: str, rule: Any, draft: Draft, scores: Scores, u: Tensor | None) -> Verdict | None:
    fused: Any = import_module("specwb.kernels.verification")
    tree, logits = draft.tree, scores.logits[:, : draft.tree.v]
    tables = fused.Tables(draft.tokens, draft.valid, tree.kids, tree.trail, tree.D)
    if kind == "greedy":
        walk: Any = import_module("specwb.kernels.greedy")
        if tree.v > walk.MOST or tree.v == 1:
            return None
        shape = tree.parent, tree.depth, tree.mask
        path, accepted, bonus = walk.greedy(tables, *shape, logits)
        return Verdict(path, accepted, bonus)
    if tree.D == 0 or (kind != "point" and draft.q is None):
        return None
    assert u is not None
    u = u[:, : rule.uniforms(tree.limits)].reshape(len(draft.tokens), tree.D, -1)
    if draft.scheme is Scheme.IID_PATHS and tree.K > 1:
        tables.kids = tree.merged(draft.tokens, draft.valid, repeats=True).kids
    temperature = scores.sampling.temperature
    if scores.sampling.filters:
        logits, temperature = scores.sampling.warped(logits), 1.0
    if kind != "point":
        tables.q, tables.q_row = draft.q, draft.q_row
    path, accepted, distribution = fused.verify(kind, tables, logits, temperature, u)
    return Verdict(path, accepted, torch.empty(0), distribution)


# ------------------------------------------------------------------------------------------- check

CHECK_TREES: tuple[list[tuple[int, ...]], ...] = (
    [(0, 0, 0), (0, 1), (1, 0), (2,), (3,)],
    [(0, 0, 0)],
)  # paths of ranks
TOLERANCE = {torch.float64: 1e-9}
WIDTH = 5000  # of the check's vocabulary: more than one block of the kernels


def _check(kind: str) -> Any:
    def of_kind(device: torch.device, dtype: torch.dtype) -> None:
        check(kind, device, dtype)

    of_kind.__name__ = kind
    return of_kind


def check(kind: str, device: torch.device, dtype: torch.dtype) -> None:
    """Runs a kind's kernels beside torch's path on drafts of all kinds.

    Rows are flat, peaked, equal to q, disjoint from it, and NaN. Uniforms are a grid, so that no
    test is within rounding of its threshold but by design.

    Raises:
        AssertionError: they decide differently, or their distributions differ by more than
            rounding.
    """
    rules = import_module("specwb.verify")
    rule = {"rrs": rules.RRS, "rrsw": rules.RRSw, "point": rules.PointMass}.get(
        kind, rules.Greedy
    )()
    tolerance = TOLERANCE.get(dtype, 2e-5)
    for tree in [Tree.paths(paths) for paths in CHECK_TREES]:
        draft, scores, u = example(kind, tree.to(device), 0, device, dtype)
        got = _run(kind, rule, draft, scores, u)
        with kernels.use(False):
            wanted = rule.verify(draft, scores, u)
        assert got is not None
        assert_same(got, wanted, tolerance)


def assert_same(got: Verdict, wanted: Verdict, tolerance: float) -> None:
    """Checks that two verdicts are one, distributions up to ``tolerance``.

    Raises:
        AssertionError: they are not.
    """
    assert torch.equal(got.accepted, wanted.accepted), "it accepts other tokens"
    assert torch.equal(got.path, wanted.path), "it takes another path"
    a, b = got.distribution, wanted.distribution
    if a is None or b is None:
        assert torch.equal(got.bonus, wanted.bonus), "it closes with another token"
        return
    a, b = a / a.sum(1, keepdim=True), b / b.sum(1, keepdim=True)
    torch.testing.assert_close(a, b, atol=tolerance, rtol=1e-3, equal_nan=True)


def example(
    kind: str, tree: Tree, seed: int, device: torch.device, dtype: torch.dtype
) -> tuple[Draft, Scores, Tensor]:
    """A draft of eight rows with its scores and uniforms, made on the CPU and then moved."""
    rows, random = 8, torch.Generator().manual_seed(seed)
    shape = rows, tree.n, WIDTH
    logits = torch.randn(shape, generator=random, dtype=torch.float64)
    q_logits = 2 * logits + torch.randn(shape, generator=random, dtype=torch.float64)
    logits = logits * torch.tensor([1.0, 4.0, 8.0, 2.0] * 2).double()[:, None, None]
    q_logits[3] = logits[3]  # q is p
    logits[5, :, : WIDTH // 2] = q_logits[5, :, WIDTH // 2 :] = float("-inf")  # disjoint
    logits[6, :, 3:] = q_logits[6, :, 3:] = float("-inf")  # fewer tokens than candidates
    logits[7, 1:, 7] = float("nan")
    logits = logits.to(dtype)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    q = q_logits.to(real).softmax(-1)
    q[3] = logits[3].to(real).softmax(-1)
    tokens = torch.zeros(rows, tree.n, dtype=torch.long)
    valid = torch.ones(rows, tree.n, dtype=torch.bool)
    parents, depths = tree.host[0], tree.depths[0]
    for i in range(1, tree.n):
        weights = (q[:, parents[i]] if kind != "greedy" else logits[:, parents[i]]).double().clone()
        older = [j for j in range(1, i) if parents[j] == parents[i]]
        if kind == "rrsw":
            for j in older:
                weights.scatter_(1, tokens[:, j : j + 1], 0)
        if kind == "greedy":
            tokens[:, i] = weights.nan_to_num().topk(len(older) + 1).indices[:, -1]
        else:
            valid[:, i] = weights.sum(1) > 0
            safe = weights + (weights.sum(1, keepdim=True) == 0)
            tokens[:, i] = torch.multinomial(safe, 1, generator=random)[:, 0]
    valid[2, -1] = False
    u = torch.rand(rows, max(depths) * max(tree.K, 1), generator=random, dtype=torch.float64)
    u = (u * 64).floor() / 64 + 1 / 137  # the 32 bits of the engine's are not needed here
    u = u.clamp(2**-33, 1 - 2**-33)
    temperature = 0.0 if kind == "greedy" else 0.75
    row_of_q = torch.arange(tree.n)[None]
    draft = Draft(
        tree,
        tokens.to(device),
        valid.to(device),
        Scheme.WITHOUT_REPLACEMENT if kind == "rrsw" else Scheme.IID,
        q.to(device),
        row_of_q.to(device),
    )
    return draft, Scores(logits.to(device), Sampling(temperature)), u.to(device)
