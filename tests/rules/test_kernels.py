"""The rules that decode are the exact ones, up to rounding, in every row and in every corner."""

from __future__ import annotations

import random
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
from instances import all_trees
from scipy import stats
from torch import Tensor

import specwb
from specwb.core.flow import Draft, RuleMismatch, Scheme, Scores
from specwb.core.noise import DRAFT, Noise, row_seeds
from specwb.core.probability import Sampling
from specwb.core.tree import Tree
from specwb.rules import RULES, Coupled, PointMass, TopAndSample
from specwb.rules.kseq import scale
from specwb.rules.race import race_weights
from specwb.rules.rule import NodeRule
from specwb.theory import decisions as D
from specwb.theory import exact as E
from specwb.theory.instances import models

CASES = [(name, tree) for name, (*_, trees) in DRIVEN.items() for tree in trees]
FLOATS = ("any", "half", "16", "102")


def test_every_rule_is_driven() -> None:
    assert {key for key, *_ in DRIVEN.values()} == {*E.RULES, *E.TREE_RULES} - {"coupled"}


# ----------------------------------------------------------------------------------- equal to exact


@every_device
@pytest.mark.parametrize(("name", "tree"), CASES)
def test_kernel_is_the_exact_rule(name: str, tree: driven.Parents, device: str) -> None:
    """In one batch are distributions of all kinds, and trees with more children than tokens."""
    assert Batch(name, tree, rational(name), device=device).worst_tv() < 1e-8


@every_device
@every_rule
def test_nodes_that_are_left_out_do_not_exist(name: str, device: str) -> None:
    if name in ("top", "gbv", "rrs, paths"):  # what these draw is there whole
        return
    batch = Batch(name, DRIVEN[name][3][:3][-1], rational(name), device=device, lose=0.3)
    assert any(paths[1] is None for paths in batch.drafted)
    assert batch.worst_tv() < 1e-8


@every_device
@pytest.mark.parametrize("kind", FLOATS)
@every_rule
def test_kernel_in_float32(name: str, kind: str, device: str, monkeypatch) -> None:
    """Logits of any kind, in half precision, and drafts that are over-confident by 16 and 102."""
    monkeypatch.setattr(D, "EQUAL", 1e-5)
    batch = Batch(name, DRIVEN[name][3][:3][-1], floats(name, kind), torch.float32, device)
    assert batch.worst_tv() < 1e-6


def test_lossless_over_every_draft() -> None:
    """Where p/q has ties, selection and ``q_skew`` of gbv use one order, whatever rounding makes of
    it; and traversal on every tree of four nodes."""
    ties = [("gbv", models(seed, 3, "tied"), driven.PATHS[0]) for seed in range(4)]
    trees = [("traversal", models(i, 2, "dense"), tree) for i, tree in enumerate(all_trees(3))]
    for name, (target, draft), tree in ties + trees:
        found = D.distribution_of(name, target, draft, tree)
        expected = E.target_distribution(target, max(E.depths(tree)) + 1)
        assert E.tv(found, expected) < 1e-9


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
    batch = Batch(name, DRIVEN[name][3][:3][-1], floats(name, "any", 6, 40), torch.float32, device)
    draft, seen = batch.draft, set()
    for u in (batch.u(), batch.u(TINY), batch.u(NEARLY_1)):
        inputs = [draft.tokens, draft.valid, draft.q, batch.scores.logits, u, draft.tree.kids]
        inputs = [x for x in inputs if x is not None]
        before = [x.clone() for x in inputs]
        whole = batch.verify(u)
        seen |= set(whole.accepted.tolist())
        for lazy, rows in product(
            (True, False), [slice(0, 40), *(slice(i, i + 1) for i in range(40))]
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
        ("coupled", Scheme.IID_PATHS, paths),
        ("coupled", Scheme.COUPLED, fork),
    ]:
        with pytest.raises(RuleMismatch, match=rule):
            RULES[rule]().check(scheme, tree.limits)
    with pytest.raises(RuleMismatch, match="shared"):
        RULES["traversal"]().check(Scheme.IID, fork.limits, independent=False)
    RULES["traversal"]().check(Scheme.IID, fork.limits)
    RULES["gbv"]().check(Scheme.IID, chain.limits)
    RULES["coupled"]().check(Scheme.COUPLED, paths.limits)


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


# ----------------------------------------------------------------------------------------- coupling


def coupled_call(p: Tensor, q: Tensor, k: int, rows: int, seed: int) -> tuple[Draft, Scores]:
    """Rows that all draft k coupled paths of two tokens.

    ``p [6,V]`` and ``q [6,V]`` are the distributions after (), (0,), (1,), .. by first token.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = rows, 3, k, p.shape[1]
    race = torch.rand(shape, dtype=torch.float64, generator=generator).log().neg()
    first = (race[:, 0] / q[0]).argmin(-1)
    second = (race[:, 1] / q[1 + first]).argmin(-1)
    tokens = torch.cat([torch.zeros_like(first[:, :1]), first, second], 1)
    seen = torch.cat([p[:1].expand(rows, 1, -1), p[1 + first], p[1 + second].roll(1, -1)], 1)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    draft = Draft(Tree.branching(k, 1), tokens, valid, Scheme.COUPLED, race=race)
    return draft, Scores(seen.log(), Sampling(1.0))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_coupled_rounds_follow_the_exact_joint_distribution(k: int) -> None:
    """Candidates and first token follow the rational distribution, by chi-square."""
    rng, rows = random.Random(k), 20_000
    p, q = (E.norm([rng.randint(1, 9) for _ in range(3)]) for _ in range(2))
    draft, scores = coupled_call(
        driven.row(p).expand(4, -1), driven.row(q).expand(4, -1), k, rows, 5
    )
    verdict = Coupled().verify(draft, scores)
    accepted = draft.tokens.gather(1, verdict.path)[:, 1]
    first = torch.where(verdict.accepted > 0, accepted, verdict.distribution.argmax(1))
    seen: dict[tuple[E.Tokens, int], int] = {}
    for xs, y in zip(draft.tokens[:, 1 : 1 + k].tolist(), first.tolist(), strict=True):
        seen[tuple(xs), y] = seen.get((tuple(xs), y), 0) + 1
    joint = E.coupled(p, q, k)
    assert set(seen) <= set(joint)
    cells = [(seen.get(x, 0), float(c) * rows) for x, c in joint.items() if c * rows > 8]
    rest = rows - sum(a for a, _ in cells), rows - sum(b for _, b in cells)
    observed, expected = zip(*cells, *([rest] if rest[1] > 1e-6 else []), strict=True)
    assert stats.chisquare(observed, expected).pvalue > 1e-4


def test_one_coupled_path_gives_the_text_of_the_noise_and_the_target_alone() -> None:
    """Any draft model and any draft length give the same text, which is ordinary Gumbel sampling of
    the target with that noise."""
    target = tiny.target()
    settings = {"max_new_tokens": 14, "temperature": 0.8, "top_k": 20, "seed": 11}
    outs = []
    for off, tree in [(0.02, (1, 1, 1)), (0.02, (1,)), (0.1, (1, 1, 1, 1)), (1.0, (1, 1))]:
        settings |= {"draft": tiny.draft("llama", off), "tree": tree, "draw": "coupled"}
        outs.append(specwb.decode(target, tiny.PROMPTS, "mcsd", **settings))
    assert all(out.tokens == outs[0].tokens for out in outs)
    assert max(out.mean_tokens_per_step for out in outs) > 1.5
    noise = Noise(row_seeds(11, 3, torch.device("cpu")), {}, 1)
    rows = [list(prompt) for prompt in tiny.PROMPTS]
    for _ in range(14):
        positions = torch.tensor([[len(row)] for row in rows])
        race = -noise.make(DRAFT, positions, target.vocabulary).log()[:, 0]
        for row, e in zip(rows, race, strict=True):
            p = Sampling(0.8, top_k=20).probabilities(tiny.forward(target.model, row)[-1:])[0]
            row.append(int((e / p).argmin()))
    written = [row[len(prompt) :] for row, prompt in zip(rows, tiny.PROMPTS, strict=True)]
    assert written == outs[0].tokens
