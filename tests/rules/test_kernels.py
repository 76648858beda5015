"""The rules that decode are the exact ones, up to rounding, in every row and in every corner."""

from __future__ import annotations

from fractions import Fraction as F
from itertools import product

import driven
import pytest
import tiny
import torch
from driven import (
    DRIVEN,
    LARGEST,
    NEARLY_1,
    TINY,
    WITHOUT_Q,
    Batch,
    constant,
    every_device,
    every_rule,
    floats,
    rational,
)
from torch import Tensor

import specwb
from specwb.core.flow import RuleMismatch, Scheme
from specwb.core.tree import Tree
from specwb.rules import RULES, PointMass, TopAndSample
from specwb.rules.kseq import scale
from specwb.rules.race import pair_selection, race_weights
from specwb.rules.rule import NodeRule
from specwb.theory import analysis
from specwb.theory import decisions as D
from specwb.theory import exact as E
from specwb.theory.instances import models

CASES = [(name, tree) for name, (*_, trees) in DRIVEN.items() for tree in trees]
FLOATS = ("half", "102")


def test_every_rule_is_driven() -> None:
    assert {key for key, *_ in DRIVEN.values()} == {*E.RULES, *E.TREE_RULES}


# ----------------------------------------------------------------------------------- equal to exact


@every_device
@pytest.mark.parametrize(("name", "tree"), CASES)
def test_kernel_is_the_exact_rule(
    name: str, tree: driven.Parents, device: str, computed_once
) -> None:
    """In one batch are distributions of all kinds, and trees with more children than tokens."""
    assert Batch(name, tree, rational(name), device=device).worst_tv() < 1e-8


@every_device
@every_rule
def test_nodes_that_are_left_out_do_not_exist(name: str, device: str, computed_once) -> None:
    if name in ("top", "gbv", "rrs, paths"):  # what these draw is there whole
        return
    batch = Batch(name, DRIVEN[name][3][:3][-1], rational(name), device=device, lose=0.3)
    assert any(paths[1] is None for paths in batch.drafted)
    assert batch.worst_tv() < 1e-8


@every_device
@pytest.mark.parametrize("kind", FLOATS)
@every_rule
def test_kernel_in_float32(name: str, kind: str, device: str, monkeypatch, computed_once) -> None:
    """Logits in half precision, and drafts that are over-confident by 102."""
    monkeypatch.setattr(D, "EQUAL", 1e-5)
    batch = Batch(name, DRIVEN[name][3][:3][-1], floats(name, kind), torch.float32, device)
    assert batch.worst_tv() < 1e-6


def test_ties_of_paths_are_lossless() -> None:
    """Where p/q has ties, selection and ``q_skew`` of gbv use one order, whatever rounding makes of
    it."""
    for seed in range(4):
        target, draft = models(seed, 3, "tied")
        found = driven.output_of(RULES["gbv"](), target, draft, driven.PATHS[0], Scheme.IID_PATHS)
        assert E.tv(found, E.target_distribution(target, 2)) < 1e-9


# ------------------------------------------------------------------------------------- corner cases


@every_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["rejection", "rrs", "rrsw", "block", "traversal"])
def test_equal_distributions_always_accept_the_first_child(
    name: str, dtype: torch.dtype, device: str
) -> None:
    """With p = q up to rounding the first leaf is accepted by the largest uniform."""
    tree = DRIVEN[name][3][:3][-1]
    first = 0
    while first in tree:
        first = tree.index(first)
    batch = Batch(name, tree, [(p, p) for p, _ in floats(name, "any", 7, 100)], dtype, device)
    inner = sorted({*tree} - {-1})
    batch.draft.q = batch.scores.logits.softmax(-1)[:, inner]
    assert bool((batch.verify(batch.u(LARGEST)).path[:, -1] == first).all())


@every_device
@pytest.mark.parametrize("name", ["block", "traversal"])
def test_a_residual_without_mass_keeps_what_is_in_force(name: str, device: str) -> None:
    """p = q but for rounding, and the unlikely happens: the second token fails. The first, of
    weight 1, stays, and the bonus token is drawn from p."""
    batch = Batch(name, (-1, 0, 1), floats(name, "any", 6, 1), device=device)
    batch.draft.q = batch.scores.logits.softmax(-1)[:, :2]
    batch.draft.q[:, 1] *= 1 + 2.0**-20
    u = torch.tensor([[0.5, LARGEST]], dtype=torch.float64, device=device)
    verdict = batch.verify(u)
    assert verdict.accepted.tolist() == [1]
    torch.testing.assert_close(verdict.distribution, batch.scores.p(verdict.accepted))


@every_device
@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_without_target_mass_is_never_accepted(
    name: str, dtype: torch.dtype, device: str
) -> None:
    batch = Batch(name, DRIVEN[name][3][1], floats(name, "any", 4, 60), dtype, device)
    assert bool((batch.draft.tokens[:, 1:] == 0).any())
    batch.scores.logits[..., 0] = -torch.inf
    for value in (TINY, 5e-324, 1e-12, 0.3):
        verdict = batch.verify(batch.u(value))
        tokens = batch.draft.tokens.gather(1, verdict.path)[:, 1:]
        accepted = torch.arange(tokens.shape[1], device=device) < verdict.accepted[:, None]
        assert not bool(((tokens == 0) & accepted).any())
        assert bool((verdict.distribution[:, 0] == 0).all())


@every_device
@every_rule
def test_a_row_alone_is_the_row_in_the_batch_and_lazy_changes_nothing(
    name: str, device: str
) -> None:
    """Leaving out work that no row needs, in batches of all kinds of rows, of rows that all accept
    and of one row; and no input is written to."""
    batch = Batch(name, DRIVEN[name][3][:3][-1], floats(name, "any", 6, 12), torch.float32, device)
    draft, seen = batch.draft, set()
    for u in (batch.u(), batch.u(TINY), batch.u(NEARLY_1)):
        inputs = [draft.tokens, draft.valid, draft.q, batch.scores.logits, u, draft.tree.kids]
        inputs = [x for x in inputs if x is not None]
        before = [x.clone() for x in inputs]
        whole = batch.verify(u)
        seen |= set(whole.accepted.tolist())
        for lazy, rows in product(
            (True, False), [slice(0, 12), *(slice(i, i + 1) for i in range(12))]
        ):
            some = batch.verify(u, rows, lazy)
            assert torch.equal(some.accepted, whole.accepted[rows])
            assert torch.equal(some.path, whole.path[rows])
            one, other = (
                x / x.sum(1, keepdim=True) for x in (some.distribution, whole.distribution[rows])
            )
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
            some.distribution.zero_()  # what shares the memory of p would change p too
        assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))
    assert len(seen) > 1


@every_rule
def test_a_child_that_q_excludes_is_not_tested(name: str) -> None:
    """A token with q = 0, which no drafter of ours draws, is passed over."""
    if name in (*WITHOUT_Q, "top"):
        return
    batch = Batch(name, (-1, 0), [constant([F(1, 5), F(3, 10), F(1, 2)], [F(1), F(0), F(0)])])
    batch.draft.tokens[0, 1] = 2
    verdict = batch.verify(batch.u(0.6))
    assert verdict.accepted.tolist() == [0]
    assert torch.equal(verdict.distribution, batch.scores.p(verdict.accepted))


def test_what_does_not_fit_is_refused() -> None:
    fork, chain, paths = Tree.branching(2, 2), Tree.chain(2), Tree.branching(2, 1)
    for rule, scheme, tree in [
        ("block", Scheme.IID, paths),
        ("block", Scheme.POINT, chain),
        ("traversal", Scheme.POINT, chain),
        ("traversal", Scheme.TOP_AND_SAMPLE, fork),
        ("gbv", Scheme.IID, fork),
        ("gbv", Scheme.IID_PATHS, fork),
        ("race", Scheme.WITHOUT_REPLACEMENT, Tree.branching(3)),
    ]:
        with pytest.raises(RuleMismatch, match=rule):
            RULES[rule]().check(scheme, tree.limits)
    with pytest.raises(RuleMismatch, match="shared"):
        RULES["traversal"]().check(Scheme.IID, fork.limits, independent=False)
    RULES["traversal"]().check(Scheme.IID, fork.limits)
    RULES["gbv"]().check(Scheme.IID, chain.limits)


# ----------------------------------------------------- top and sample, point mass, k-SEQ, the race


def decide(rule: NodeRule, p, q, tokens, u, ok=None) -> tuple[list[int], Tensor]:
    """The choice of every row, and the normalised residual."""
    p, tokens = torch.tensor(p), torch.tensor(tokens)
    ok = torch.ones_like(tokens, dtype=torch.bool) if ok is None else torch.tensor(ok)
    u = torch.tensor(u, dtype=torch.float64).expand(len(p), -1)
    choice, residual = rule.node(p, q, tokens, ok, u)
    return choice.tolist(), residual / residual.sum(1, keepdim=True)


def test_point_mass_takes_everything_the_children_hold() -> None:
    """Where the children hold all of p, one of them is taken, even by the largest uniform. A
    repeated child counts once, and only the first uniform is read."""
    p = [[0.0, 0, 1, 0], [0.25, 0.25, 0.5, 0], [0.1, 0.2, 0.3, 0.4]]
    tokens = [[0, 2, 1], [0, 1, 2], [3, 3, 0]]
    choice, residual = decide(PointMass(), p, None, tokens, [LARGEST] * 3)
    assert choice == [1, 2, -1]
    torch.testing.assert_close(residual[2], torch.tensor([0, 0.4, 0.6, 0]))
    # between p(3) and p(3) + p(0)
    assert decide(PointMass(), p, None, tokens, [0.45, TINY, TINY])[0] == [1, 1, 2]


def test_top_and_sample_without_the_drawn_child() -> None:
    """Where the support of q ends before the drawn child, or a drafter stops, the token is drawn
    from p among the fixed ones, even by the largest uniform."""
    p, tokens = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.0, 0.0]], [[3, 1, 0], [0, 1, 2]]
    ok, nothing = [[True, True, False]] * 2, torch.zeros(2, 4)
    choice, residual = decide(TopAndSample(), p, nothing, tokens, [LARGEST] * 2, ok)
    assert choice == [-1, 1]
    torch.testing.assert_close(residual[0], torch.tensor([0.25, 0, 0.75, 0]))
    # between p(3) and p(3) + p(1)
    assert decide(TopAndSample(), p, nothing, tokens, [LARGEST, 0.5], ok)[0][0] == 1


@every_device
def test_the_scale_is_rounded_up(device: str) -> None:
    torch.manual_seed(14)
    z = 3 * torch.randn(2, 300, 40, dtype=torch.float64, device=device)
    p, q = z.softmax(-1)
    k = torch.arange(300, device=device) % 8 + 1
    p[:30] = q[:30]
    rho = scale(p, q, k)
    assert bool(((rho >= 1) & (rho <= k)).all())
    assert float((rho[:30] - 1).max()) < 1e-8
    # of equals any rounding on the way would be taken to the power of 1 / 64
    assert float((scale(q, q, torch.full_like(k, 64)) - 1).max()) < 2e-8
    inner = (k > 1) & (rho > 1.001)
    assert int(inner.sum()) > 200

    def slack(rho: Tensor) -> Tensor:
        """``rho beta - a``."""
        beta = torch.minimum(p / rho[:, None], q).sum(1)
        return (rho * beta + torch.expm1(k * torch.log1p(-beta)))[inner]

    at, below = slack(rho), slack(1 + (rho - 1) * (1 - 1e-7))
    assert -1e-15 <= float(at.min()) <= float(at.max()) <= 1e-7
    assert float(below.max()) <= 1e-15 < float(below.abs().max())


@every_device
@pytest.mark.parametrize(("v", "k"), [(3, 1), (4, 2), (5, 3), (24, 2), (2000, 2)])
def test_the_distribution_of_what_is_selected(v: int, k: int, device: str) -> None:
    """It is that of enumerating all tuples; 2000 tokens are computed in cells. The distributions
    are peaked, flat and one-sided, from half-precision logits."""
    torch.manual_seed(15)
    rows = 2 if v > 1000 else 12
    sharp = torch.tensor([1.0, 5.0, 15.0])[torch.arange(rows) % 3][:, None]
    p, q = ((torch.randn(rows, v) * sharp).half().double().softmax(1).to(device) for _ in range(2))
    p[0, : v // 2] = 0
    q[1, : v // 2] = 0
    p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    w, t = race_weights(p, q, k)
    assert float((t.sum(1) - 1).abs().max()) < 2e-10
    if v > 1000:
        both = w[:, :, None] + w[:, None]
        counted = (q[:, :, None] * q[:, None] * 2 * w[:, :, None] / both).sum(2)
    else:
        counted = torch.zeros_like(t)
        for xs in product(range(v), repeat=k):
            total = w[:, list(xs)].sum(1)
            for x in xs:
                counted[:, x] += q[:, list(xs)].prod(1) * w[:, x] / total
    assert float((t - counted).abs().sum(1).max()) / 2 < 2e-10
    assert bool((torch.minimum(p, t).sum(1) >= torch.minimum(p, q).sum(1) - 1e-9).all())


def two_rows(v: int, rows: int) -> tuple[Tensor, Tensor]:
    """p and q ``[rows,v]`` of eight kinds: any, peaked or flat; p or q one-sided; equal; with ties;
    q sure of a token; p where every selection but one accepts less; float32."""
    sharp = torch.tensor([0.3, 1.0, 5.0, 15.0])[torch.randint(4, (rows, 1))]
    p, q = ((torch.randn(rows, v) * sharp).double().softmax(1) for _ in range(2))
    kind = torch.arange(rows) % 8
    p[kind == 1, : v // 2] = 0
    if v > 3:
        q[kind == 2, : v // 2] = 0
    p[kind == 3] = q[kind == 3]
    ties = kind == 4
    p[ties] = torch.randint(3, (int(ties.sum()), v)).double() + 1e-30
    q[ties] = torch.randint(1, 3, (int(ties.sum()), v)).double()
    sure = kind == 5
    q[sure] *= torch.logspace(-1, -40, int(sure.sum()), dtype=q.dtype)[:, None]
    q[sure, v // 2] = 1
    q /= q.sum(1, keepdim=True)
    # of each pair always the later token, in the order of the vocabulary
    m = drawn_pairs(q).triu()
    p[kind == 6] = m.sum(1)[kind == 6]
    last = kind == 7
    p[last], q[last] = (x[last].float().double() * (1 + 1e-7) for x in (p, q))
    return p / p.sum(1, keepdim=True), q


def drawn_pairs(q: Tensor, distinct: bool = True) -> Tensor:
    """``[B,V,V]``: the probability that x and y are drawn, in either order: off the diagonal of
    both, on it twice that of a repetition."""
    if not distinct:
        return 2 * q[:, :, None] * q[:, None]
    other = 1 - torch.eye(q.shape[1], dtype=q.dtype, device=q.device)
    odds = q / (q @ other)  # 1 - q as sums
    return (odds[:, :, None] * q[:, None] + q[:, :, None] * odds[:, None]) * other


@every_device
@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize(("v", "rows"), [(2, 80), (3, 400), (4, 400), (8, 400), (40, 80), (300, 8)])
def test_what_is_selected_of_two(v: int, rows: int, distinct: bool, device: str) -> None:
    """Theorem 5.11: chances are probabilities, t is what enumeration makes of them, and nothing
    accepts more."""
    torch.manual_seed(16)
    p, q = (x.to(device) for x in two_rows(v, rows))
    every = torch.arange(v, device=device)
    pairs = torch.cartesian_prod(every, every).expand(rows, -1, 2)
    chances, t = pair_selection(p, q, pairs, distinct)
    chances = chances.view(rows, v, v)
    assert float(chances.min()) >= 0
    assert float(chances.max()) <= 1
    assert float((t.sum(1) - 1).abs().max()) < 1e-12
    q = q / q.sum(1, keepdim=True)
    counted = (drawn_pairs(q, distinct) * chances).sum(2)
    assert float((t - counted).abs().sum(1).max()) / 2 < 1e-12
    scheme = "without" if distinct else "iid"
    missed = analysis.optimum(p, q, 2, scheme).to(device) - torch.minimum(p, t).sum(1)
    assert float(missed.abs().max()) < 1e-10


def test_where_the_support_ends_the_number_of_candidates_is_no_surprise() -> None:
    """Cold and filtered drafts often have one token that can be drawn, where the other is not
    valid; a number of candidates that follows the draws is still refused (theorem 6.7)."""
    target, draft = tiny.target(), tiny.draft()
    method = specwb.method("mcsd:tree=2-2,rule=race", target, draft=draft)
    settings = {"temperature": 0.6, "top_p": 0.5, "max_new_tokens": 20, "trace": True}
    ended = 0
    for step in specwb.rounds(target, tiny.PROMPTS, method, **settings):
        ended += int((~step.draft.valid).sum())
        assert not step.draft.uneven().any()
    assert ended > 0
    step.draft.valid = torch.ones_like(step.draft.valid)
    step.draft.q = torch.full_like(step.draft.q, 1 / tiny.VOCABULARY)
    step.draft.valid[:, 2] = False
    assert step.draft.uneven().all()
