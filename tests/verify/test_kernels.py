"""The vectorised rules are the exact ones.

Driven with chosen uniforms, they give the same probabilities and residuals. Nothing here is sampled
by the rule: bisection on the uniforms recovers each acceptance probability, so there is no noise.
"""

from __future__ import annotations

import copy
import random
from fractions import Fraction as F

import pytest
import torch
from driven import (
    LARGEST,
    NEARLY_1,
    RULES,
    TINY,
    WITHOUT_Q,
    Batch,
    acceptance,
    bonus,
    check_against_exact,
    every_device,
    every_rule,
    float_batch,
    random_batch,
    ratio_rules,
    weights,
    weights_once,
    worst_tv,
)
from torch import Tensor

from specwb.verify import Rejection
from specwb.verify import exact as E
from specwb.verify.point import PointMass
from specwb.verify.rrsw import RRSw
from specwb.verify.rule import NodeRule

__all__ = ["weights_once"]


# ----------------------------------------------------------------------------------- equal to exact


CASES = [
    ("rejection", 1),
    *(
        (name, k)
        for name in RULES
        for k in (1, 2, 3, 6)
        if name != "rejection" and (name, k) != ("race", 6)
    ),
]


def test_every_rule_of_nodes_is_driven() -> None:
    assert set(RULES) == {*E.RULES, "repeats"}


@every_device
@pytest.mark.parametrize(("name", "k"), CASES)
def test_kernel_is_the_exact_rule(name: str, k: int, device: str) -> None:
    """They agree within 1e-6 in float64, with rows of all kinds in one batch; k = 6 > V = 3 asks
    for more children than there are tokens."""
    check_against_exact(
        name, random_batch(name, k, seed=k, v=5 if k < 6 else 3, device=device), 1e-6
    )


@every_device
@every_rule
def test_kernel_in_float32(name: str, device: str) -> None:
    batch = random_batch(
        name, 1 if name == "rejection" else 3, seed=7, dtype=torch.float32, device=device
    )
    assert worst_tv(name, RULES[name][0](), batch) < 5e-6


@every_device
@pytest.mark.parametrize(
    "name", [name for name in RULES if name != "race"]
)  # see test_the_distribution_of_what_is_selected
def test_logits_in_half_precision(name: str, device: str) -> None:
    """Half-precision logits become float32 distributions, peaked or flat, and the kernel follows
    these."""
    torch.manual_seed(1)
    scale = torch.tensor([1.0, 5.0, 15.0])[torch.arange(30) % 3][:, None]
    p, q = ((torch.randn(30, 24) * scale).half().float().softmax(-1) for _ in range(2))
    batch = float_batch(name, p, q, 1 if name == "rejection" else 4, seed=1, device=device)
    rule = RULES[name][0]()
    if name in (
        "point",
        "naive",
        "top",
    ):  # stretches may be narrower than the grid, so only the residual is compared
        _, residual = bonus(rule, batch)
        for i, (a, b, tokens) in enumerate(batch.rows):
            accept, exact = RULES[name][1](a, b, tokens)
            if exact is not None and sum(accept) < F(999, 1000):
                torch.testing.assert_close(
                    residual[i].tolist(), [float(x) for x in exact], atol=1e-5, rtol=0
                )
    else:
        assert worst_tv(name, rule, batch) < 1e-5


# ---------------------------------------------------------------------------- over-confident drafts


class Subtracts(NodeRule):
    """Wrong: RRSw where the mass that remains is one minus the mass that is gone."""

    def node(
        self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert q is not None
        px, qx = p.gather(1, tokens), q.gather(1, tokens)
        choice, residual = torch.full_like(tokens[:, 0], -1), p
        c, mass = torch.zeros_like(px[:, 0]), torch.ones_like(px[:, 0])
        tested_mass = torch.zeros_like(px[:, 0])
        for j in range(tokens.shape[1]):
            remaining = 1 - tested_mass
            test = ok[:, j] & (choice < 0)
            hit = test & (u[:, j] * (mass * qx[:, j]) < (px[:, j] - c * qx[:, j]) * remaining)
            choice = torch.where(hit, j, choice)
            c = torch.where(test & ~hit & (remaining > 0), c + mass / remaining, c)
            after = (p - c[:, None] * q).clamp_min(0)
            moved = test & ~hit & (after.sum(1) > 0)
            residual = torch.where(moved[:, None], after, residual)
            mass = torch.where(moved, after.sum(1), mass)
            tested_mass = tested_mass + qx[:, j]
        return choice, residual


def over_confident(gap: float, device: str) -> Batch:
    """float32 drafts that are sure of one token, by ``gap`` logits, and targets that are not."""
    torch.manual_seed(2)
    p, logits = (1.5 * torch.randn(60, 8)).softmax(-1), torch.randn(60, 8)
    logits[torch.arange(60), torch.randint(8, (60,))] += gap
    return float_batch("rrsw", p, logits.softmax(-1), 3, seed=2, device=device)


@every_device
@pytest.mark.parametrize("gap", [8.0, 15.0, 16.0, 17.0, 90.0, 95.0, 100.0, 102.0])
def test_over_confident_drafts(gap: float, device: str) -> None:
    assert worst_tv("rrsw", RRSw(), over_confident(gap, device)) < 1e-4


def test_over_confident_drafts_kill_the_subtraction() -> None:
    assert worst_tv("rrsw", Subtracts(), over_confident(16.0, "cpu")) > 1e-3
    assert (
        worst_tv("rrsw", Subtracts(), random_batch("rrsw", 3, seed=3, dtype=torch.float32)) < 1e-4
    )  # and nothing else is wrong with it


@every_device
@pytest.mark.parametrize("name", ["rejection", "rrs", "repeats", "kseq", "race"])
def test_over_confident_drafts_with_replacement(name: str, device: str) -> None:
    torch.manual_seed(3)
    p, logits = (1.5 * torch.randn(40, 8)).softmax(-1), torch.randn(40, 8)
    logits[:, 3] += 16
    batch = float_batch(
        name, p, logits.softmax(-1), 1 if name == "rejection" else 3, seed=3, device=device
    )
    assert worst_tv(name, RULES[name][0](), batch) < 1e-5


# ------------------------------------------------------------------------------------- corner cases


@every_device
@ratio_rules
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_distributions_always_accept_the_first_child(
    name: str, dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(4)
    p = (3 * torch.randn(400, 50, dtype=dtype)).softmax(-1).to(device)
    tokens = torch.multinomial(p, 1 if name == "rejection" else 3)
    u = torch.full(tokens.shape, LARGEST, dtype=torch.float64, device=device)
    choice, _ = RULES[name][0]().node(
        p, p.clone(), tokens, torch.ones_like(tokens, dtype=torch.bool), u
    )
    assert bool((choice == 0).all())


@every_device
@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_without_target_mass_is_never_accepted(
    name: str, dtype: torch.dtype, device: str
) -> None:
    v = 6
    rng = random.Random(5)
    rows = []
    for _ in range(60):
        p, q = weights(rng, v), E.norm([rng.randint(1, 9) for _ in range(v)])
        p = E.norm([0 if x in (1, 4) else a + F(1, 50) for x, a in enumerate(p)])
        tokens = (1, 4, rng.choice([0, 2, 3, 5]))[: 1 if name == "rejection" else 3]
        rows.append((p, q, tokens))
    batch = Batch(rows, len(rows[0][2]), dtype, device, rest=name == "top")
    for value in (TINY, 5e-324, 1e-12, 0.3):
        choice, residual = RULES[name][0]().node(
            batch.p, batch.q, batch.tokens, batch.ok, batch.u(value)
        )
        assert not bool(((choice == 0) | (choice == 1)).any())
        assert bool((residual[:, [1, 4]][choice == -1] == 0).all())


@every_device
@pytest.mark.parametrize(
    "name", [name for name in RULES if name != "top"]
)  # it has one such case, see test_top_and_sample_without_the_drawn_child
def test_children_that_are_not_ok_do_not_exist(name: str, device: str) -> None:
    """Such children are not accepted and not counted, wherever they stand: the decision is that of
    the others by themselves."""
    if name == "rejection":
        batch = random_batch(name, 1, seed=8, device=device)
        choice, residual = Rejection().node(
            batch.p, batch.q, batch.tokens, torch.zeros_like(batch.ok), batch.u(TINY)
        )
        assert bool((choice == -1).all())
        torch.testing.assert_close(residual / residual.sum(1, keepdim=True), batch.p)
        return
    rng = random.Random(9)
    rows, tokens, ok = [], [], []
    for p, q, xs in random_batch(name, 3, seed=9).rows:
        keep = [rng.random() < 0.6 for _ in xs]
        rows.append((p, q, tuple(x for x, stays in zip(xs, keep, strict=True) if stays)))
        tokens.append([*xs, *[0] * (3 - len(xs))])
        ok.append([*keep, *[False] * (3 - len(xs))])
    reference, among = Batch(rows, 3, device=device), Batch(rows, 3, device=device)
    among.tokens, among.ok = torch.tensor(tokens, device=device), torch.tensor(ok, device=device)
    kernel = RULES[name][0]()
    accept = acceptance(kernel, among)
    assert bool((accept[~among.ok] == 0).all())
    for i, (p, q, xs) in enumerate(rows):
        expected = [float(a) for a in RULES[name][1](p, q, xs)[0]]
        torch.testing.assert_close(accept[i][among.ok[i]].tolist(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(
        bonus(kernel, among)[1], bonus(kernel, reference)[1], atol=1e-9, rtol=0
    )


@every_device
@every_rule
def test_without_children_the_residual_is_the_target(name: str, device: str) -> None:
    batch = random_batch(name, 1, seed=10, device=device)
    choice, residual = RULES[name][0]().node(
        batch.p, batch.q, batch.tokens, torch.zeros_like(batch.ok), batch.u(TINY)
    )
    assert bool((choice == -1).all())
    torch.testing.assert_close(residual / residual.sum(1, keepdim=True), batch.p)


def test_support_smaller_than_children() -> None:
    """In this golden case q has two tokens and four children are asked for: the other two are not
    ok, and the residual is exact."""
    p, q = E.norm([4, 1, 1, 2, 2]), E.norm([0, 7, 3, 0, 0])
    batch = Batch([(p, q, (1, 2)), (p, q, (2, 1))], 4)
    choice, residual = bonus(RRSw(), batch)
    assert choice.tolist() == [-1, -1]
    torch.testing.assert_close(residual[0].tolist(), [0.5, 0.0, 0.0, 0.25, 0.25], atol=1e-9, rtol=0)
    check_against_exact("rrsw", batch, 1e-9)


@every_device
@every_rule
def test_inputs_are_left_alone(name: str, device: str) -> None:
    batch = random_batch(
        name, 1 if name == "rejection" else 3, seed=11, dtype=torch.float32, device=device
    )
    for value in (TINY, 0.4, LARGEST):
        inputs = [batch.p, batch.q, batch.tokens, batch.ok, batch.u(value)]
        before = [x.clone() for x in inputs]
        _, residual = RULES[name][0]().node(*inputs)
        residual.zero_()  # a residual that shares the memory of p would change p too
        shared = not torch.equal(batch.p, before[0])
        if shared:
            batch.p.copy_(before[0])
        assert all(torch.equal(x, y) for x, y in zip(inputs[1:], before[1:], strict=True))
        assert not shared, "the residual is a view of p"


@every_device
@every_rule
def test_a_row_alone_is_the_row_in_the_batch(name: str, device: str) -> None:
    batch = random_batch(
        name, 1 if name == "rejection" else 3, seed=12, count=40, dtype=torch.float32, device=device
    )
    torch.manual_seed(12)
    u = torch.rand(batch.u(0).shape, dtype=torch.float64).to(device)
    rule = RULES[name][0]()
    choice, residual = rule.node(batch.p, batch.q, batch.tokens, batch.ok, u)
    assert name == "rejection" or len(set(choice.tolist())) > 2
    for i in range(len(batch.rows)):
        row = slice(i, i + 1)
        row_choice, row_residual = rule.node(
            batch.p[row], batch.q[row], batch.tokens[row], batch.ok[row], u[row]
        )
        assert torch.equal(row_choice, choice[row])
        torch.testing.assert_close(row_residual, residual[row], atol=1e-7, rtol=0)


@every_device
def test_point_mass_takes_everything_the_children_hold(device: str) -> None:
    """Where the children hold all of p, one of them is taken, even by the largest uniform. q is not
    needed, and a repeated child counts once."""
    p = torch.tensor([[0.0, 0, 1, 0], [0.25, 0.25, 0.5, 0], [0.1, 0.2, 0.3, 0.4]], device=device)
    tokens = torch.tensor([[0, 2, 1], [0, 1, 2], [3, 3, 0]], device=device)
    ok = torch.ones_like(tokens, dtype=torch.bool)
    u = torch.full((3, 3), LARGEST, dtype=torch.float64, device=device)
    choice, residual = PointMass().node(p, None, tokens, ok, u)
    assert choice.tolist() == [1, 2, -1]
    torch.testing.assert_close(
        residual[2] / residual[2].sum(), torch.tensor([0, 0.4, 0.6, 0], device=device)
    )
    u[2, 0] = 0.45  # between p(3) and p(3) + p(0)
    assert PointMass().node(p, None, tokens, ok, u)[0][2] == 2
    u[:, 1:] = TINY
    assert PointMass().node(p, None, tokens, ok, u)[0].tolist() == [
        1,
        2,
        2,
    ]  # the other uniforms are not read


# ---------------------------------------------------------------------------- lazily, and bad input


@every_rule
def test_lazily_nothing_changes(name: str) -> None:
    """Leaving out work that no row needs changes nothing: in batches of one row, of rows that all
    accept, and of all kinds."""
    batch = random_batch(
        name, 1 if name == "rejection" else 3, seed=17, count=60, dtype=torch.float32
    )
    eager = RULES[name][0]()
    lazy = copy.copy(eager)
    lazy.lazy = True
    torch.manual_seed(17)
    seen = set()
    for rows in (slice(0, 60), *(slice(i, i + 1) for i in range(60))):
        for u in (
            batch.u(TINY),
            batch.u(NEARLY_1),
            torch.rand(batch.u(0).shape, dtype=torch.float64),
        ):
            inputs = batch.p[rows], batch.q[rows], batch.tokens[rows], batch.ok[rows], u[rows]
            (choice, residual), (same, lazy_residual) = eager.node(*inputs), lazy.node(*inputs)
            assert torch.equal(choice, same)
            rejected = choice < 0
            torch.testing.assert_close(
                lazy_residual[rejected], residual[rejected], atol=1e-7, rtol=0
            )
            seen |= {rows.stop - rows.start > 1 and bool(rejected.any()), bool(rejected.all())}
    assert seen == {False, True}


@every_rule
def test_nan_never_makes_a_distribution(name: str) -> None:
    """NaN in p shows in the residual, which is then no distribution. NaN in q means that the draft
    is not tested, and the output stays that of p."""
    batch = random_batch(
        name, 1 if name == "rejection" else 3, seed=18, count=40, dtype=torch.float32
    )
    rule = RULES[name][0]()
    for value in (TINY, 0.4, NEARLY_1):
        choice, residual = rule.node(
            torch.full_like(batch.p, torch.nan), batch.q, batch.tokens, batch.ok, batch.u(value)
        )
        assert bool((choice == -1).all())
        assert bool(residual.isnan().all())
        if name not in WITHOUT_Q:
            choice, residual = rule.node(
                batch.p, torch.full_like(batch.q, torch.nan), batch.tokens, batch.ok, batch.u(value)
            )
            # the children of top and sample are then all fixed ones
            assert name == "top" or bool((choice == -1).all())
            assert name == "top" or torch.equal(residual, batch.p)


@every_rule
def test_a_child_that_q_excludes_is_not_tested(name: str) -> None:
    """A token with q = 0, which no drafter of ours draws, is passed over, and the output is that of
    p if there is no other child."""
    p, q = torch.tensor([[0.2, 0.3, 0.5]]), torch.tensor([[0.5, 0.5, 0.0]])
    tokens, ok = torch.tensor([[2]]), torch.tensor([[True]])
    choice, residual = RULES[name][0]().node(
        p, q, tokens, ok, torch.full((1, 2), 0.6, dtype=torch.float64)
    )
    assert choice.tolist() == [-1]
    if name not in (*WITHOUT_Q, "top"):
        assert torch.equal(residual, p)


def test_duplicate_siblings_without_replacement_are_left_out() -> None:
    """The second of equal children counts as if it did not exist, in the decision and in the
    residual."""
    torch.manual_seed(19)
    p, q = (torch.randn(50, 6, dtype=torch.float64).softmax(1) for _ in range(2))
    distinct = torch.multinomial(q, 2)
    twice = torch.stack((distinct[:, 0], distinct[:, 0], distinct[:, 1]), 1)
    u = torch.rand(50, 3, dtype=torch.float64)
    choice, residual = RRSw().node(p, q, twice, torch.ones_like(twice, dtype=torch.bool), u)
    once, residual_once = RRSw().node(
        p, q, distinct, torch.ones_like(distinct, dtype=torch.bool), u[:, [0, 2]]
    )
    assert torch.equal(choice, torch.where(once == 1, 2, once))
    assert torch.equal(residual[once < 0], residual_once[once < 0])
    assert {-1, 0, 2} == set(choice.tolist())
