"""The vectorised rules are the exact ones: driven with chosen uniforms, they give the same probabilities and residuals.

Nothing here is sampled by the rule: bisection on the uniforms recovers each acceptance probability, so there is no noise.
"""

from __future__ import annotations

import random
from fractions import Fraction as F

import pytest
import torch
from torch import Tensor

from specwb.verify import exact as E
from specwb.verify.point import PointMass
from specwb.verify.rejection import Rejection
from specwb.verify.rrs import RRS
from specwb.verify.rrsw import RRSw
from specwb.verify.rule import NodeRule

DEVICES = ["cpu"] + [pytest.param("cuda", marks=pytest.mark.cuda)] * torch.cuda.is_available()
NEARLY_1 = 1 - 1e-13
LARGEST, TINY = 1 - 2.0**-53, 1e-300

# name -> kernel, exact rule, law of the children
RULES: dict[str, tuple[type[NodeRule], E.NodeRule, E.DraftLaw]] = {
    "rejection": (Rejection, E.rejection, E.iid),
    "rrs": (RRS, E.rrs, E.iid),
    "rrsw": (RRSw, E.rrsw, E.without_replacement),
    "point": (PointMass, E.point, E.top),
}
every_rule = pytest.mark.parametrize("name", RULES)
ratio_rules = pytest.mark.parametrize("name", ["rejection", "rrs", "rrsw"])
every_device = pytest.mark.parametrize("device", DEVICES)


def weights(rng: random.Random, v: int) -> list[F]:
    raw = [rng.choice([0, 1, 1, 2, rng.randint(1, 30), rng.randint(1, 30)]) for _ in range(v)]
    return E.norm(raw) if any(raw) else E.norm([1] * v)


def one_hot(v: int, x: int) -> list[F]:
    return [F(y == x) for y in range(v)]


class Batch:
    """Rows of one call: exact laws beside the tensors, children padded with ok = False."""

    def __init__(self, rows: list[tuple[list[F], list[F], E.Tokens]], k: int, dtype: torch.dtype = torch.float64, device: str = "cpu"):
        self.rows = rows
        self.p = torch.tensor([[float(a) for a in p] for p, _, _ in rows], dtype=dtype, device=device)
        self.q = torch.tensor([[float(b) for b in q] for _, q, _ in rows], dtype=dtype, device=device)
        self.tokens = torch.tensor([[*xs, *[0] * (k - len(xs))] for _, _, xs in rows], device=device)
        self.ok = torch.tensor([[True] * len(xs) + [False] * (k - len(xs)) for _, _, xs in rows], device=device)

    def u(self, value: float) -> Tensor:
        return torch.full(self.tokens.shape, value, dtype=torch.float64, device=self.p.device)


def random_batch(name: str, k: int, seed: int, count: int = 120, v: int = 5, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Batch:
    """Rows that all differ: zeros, ties, one-hot, p = q, disjoint supports, fewer tokens in the support than children."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        p, q = weights(rng, v), weights(rng, v)
        if i % 8 == 1:
            q = list(p)
        if i % 8 == 2:
            p = one_hot(v, rng.randrange(v))
        if i % 8 == 3:
            q = one_hot(v, rng.randrange(v))
        if i % 8 == 4 and 0 in p:
            q = E.norm([int(a == 0) for a in p])
        if i % 8 == 5:
            q = p[::-1]
        drawn = RULES[name][2](q, k)
        rows.append((p, q, rng.choice(drawn)[0]))
    return Batch(rows, k, dtype, device)


def sequential_acceptance(rule: NodeRule, batch: Batch) -> Tensor:
    """``[B,K]`` probability that each child is the one accepted, u[:, j] being child j's: bisection on one uniform at a time."""
    accept, left = torch.zeros_like(batch.u(0)), torch.ones_like(batch.u(0)[:, 0])
    for j in range(accept.shape[1]):
        low, high = torch.zeros_like(left), torch.ones_like(left)
        for _ in range(45):
            u = batch.u(NEARLY_1)
            u[:, j] = middle = (low + high) / 2
            hit = rule.node(batch.p, batch.q, batch.tokens, batch.ok, u)[0] == j
            low, high = torch.where(hit, middle, low), torch.where(hit, high, middle)
        passes = torch.where(low > 1 - 1e-12, 1.0, low)
        accept[:, j], left = left * passes, left * (1 - passes)
    return accept


def one_uniform_acceptance(rule: NodeRule, batch: Batch, cells: int = 512) -> Tensor:
    """``[B,K]`` the same where only u[:, 0] counts, whatever the order of the stretches: a grid, then bisection at every change."""
    rows, k = batch.tokens.shape

    def choice(row: Tensor, first: Tensor) -> Tensor:
        u = torch.full((len(row), k), 0.5, dtype=torch.float64, device=batch.p.device)
        u[:, 0] = first
        return rule.node(batch.p[row], batch.q[row], batch.tokens[row], batch.ok[row], u)[0]

    edges = torch.linspace(0, 1, cells + 1, dtype=torch.float64, device=batch.p.device)
    edges[0], edges[-1] = TINY, NEARLY_1
    row = torch.arange(rows, device=batch.p.device).repeat_interleave(cells)
    low, high = edges[:-1].repeat(rows), edges[1:].repeat(rows)
    at_low, at_high = choice(row, low), choice(row, high)
    border = high.clone()
    moves = at_low != at_high
    a, b = low[moves], high[moves]
    for _ in range(40):
        middle = (a + b) / 2
        same = choice(row[moves], middle) == at_low[moves]
        a, b = torch.where(same, middle, a), torch.where(same, b, middle)
    border[moves] = a
    measure = torch.zeros(rows, k + 1, dtype=torch.float64, device=batch.p.device)
    measure.index_put_((row, at_low), border - low, accumulate=True)  # -1 is the last column
    measure.index_put_((row, at_high), high - border, accumulate=True)
    return measure[:, :k]


def acceptance(rule: NodeRule, batch: Batch) -> Tensor:
    return one_uniform_acceptance(rule, batch) if isinstance(rule, PointMass) else sequential_acceptance(rule, batch)


def closing(rule: NodeRule, batch: Batch) -> tuple[Tensor, Tensor]:
    """Choice and normalised residual when every uniform is as large as it gets."""
    choice, residual = rule.node(batch.p, batch.q, batch.tokens, batch.ok, batch.u(NEARLY_1))
    assert bool((residual >= 0).all())
    assert bool((residual.sum(1) > 0).all())
    residual = residual.double()
    return choice, residual / residual.sum(1, keepdim=True)


def check_against_exact(name: str, batch: Batch, tolerance: float) -> None:
    kernel, rule, _ = RULES[name]
    accept = acceptance(kernel(), batch)
    choice, residual = closing(kernel(), batch)
    tested = 0
    for i, (p, q, tokens) in enumerate(batch.rows):
        wanted, law = rule(p, q, tokens)
        filled = [*map(float, wanted), *[0.0] * (batch.tokens.shape[1] - len(tokens))]
        torch.testing.assert_close(accept[i].tolist(), filled, atol=tolerance, rtol=0)
        if law is not None:
            tested += 1
            assert choice[i] == -1
            torch.testing.assert_close(residual[i].tolist(), [float(a) for a in law], atol=tolerance, rtol=0)
    assert tested > len(batch.rows) // 5


def output_law(rule: NodeRule, batch: Batch) -> Tensor:
    """``[B,V]`` law of the next token given the children, in float64, as the kernel decides it."""
    accept = acceptance(rule, batch)
    none = (1 - accept.sum(1, keepdim=True)).clamp_min(0)
    law = closing(rule, batch)[1] * none
    return law.scatter_add(1, batch.tokens, accept)


def worst_tv(name: str, rule: NodeRule, batch: Batch) -> float:
    """Worst distance over the rows between the kernel's law given the children and the exact one."""
    found = output_law(rule, batch)
    worst = 0.0
    for i, (p, q, tokens) in enumerate(batch.rows):
        wanted = E.conditional_law(RULES[name][1](p, q, tokens), tokens, len(p))
        worst = max(worst, 0.5 * sum(abs(a - float(b)) for a, b in zip(found[i].tolist(), wanted, strict=True)))
    return worst


def exactly(row: Tensor) -> list[F]:
    """The law a tensor stands for: its very numbers, normalised."""
    return E.norm([F(x) for x in row.tolist()])


def float_batch(name: str, p: Tensor, q: Tensor, k: int, seed: int, device: str = "cpu") -> Batch:
    """Rows of float tensors with children drawn from q (the k likeliest for the point-mass rule)."""
    rng = random.Random(seed)
    rows = []
    for one, other in zip(p, q, strict=True):
        a, b = exactly(one), exactly(other)
        tokens: list[int] = []
        while len(tokens) < k and name != "point":
            left = [0.0 if name == "rrsw" and x in tokens else float(c) for x, c in enumerate(b)]
            tokens += rng.choices(range(len(b)), left)
        rows.append((a, b, tuple(tokens) or E.top(b, k)[0][0]))
    batch = Batch(rows, k, p.dtype, device)
    batch.p, batch.q = p.to(device), q.to(device)
    return batch


# --------------------------------------------------------------------------------------------------------- equal to exact


@every_device
@pytest.mark.parametrize(("name", "k"), [("rejection", 1), *((name, k) for name in ("rrs", "rrsw", "point") for k in (1, 2, 3, 6))])
def test_kernel_is_the_exact_rule(name: str, k: int, device: str) -> None:
    """1e-6 in float64, rows of all kinds in one batch; k = 6 > V = 3 asks for more children than there are tokens."""
    check_against_exact(name, random_batch(name, k, seed=k, v=5 if k < 6 else 3, device=device), 1e-6)


@every_device
@every_rule
def test_kernel_in_float32(name: str, device: str) -> None:
    batch = random_batch(name, 1 if name == "rejection" else 3, seed=7, dtype=torch.float32, device=device)
    assert worst_tv(name, RULES[name][0](), batch) < 5e-6


@every_device
@every_rule
def test_logits_in_half_precision(name: str, device: str) -> None:
    """Half-precision logits become float32 laws; the kernel follows those laws, peaked and flat alike."""
    torch.manual_seed(1)
    scale = torch.tensor([1.0, 5.0, 15.0])[torch.arange(30) % 3][:, None]
    p, q = ((torch.randn(30, 24) * scale).half().float().softmax(-1) for _ in range(2))
    batch = float_batch(name, p, q, 1 if name == "rejection" else 4, seed=1, device=device)
    rule = RULES[name][0]()
    if name == "point":  # stretches may be narrower than the grid: compare the residual alone
        _, residual = closing(rule, batch)
        for i, (a, b, tokens) in enumerate(batch.rows):
            law = E.point(a, b, tokens)[1]
            if law is not None and E.point_acceptance(a, tokens) < F(999, 1000):
                torch.testing.assert_close(residual[i].tolist(), [float(x) for x in law], atol=1e-5, rtol=0)
    else:
        assert worst_tv(name, rule, batch) < 1e-5


# --------------------------------------------------------------------------------------------------- over-confident drafts


class Subtracts(NodeRule):
    """Wrong: RRSw with the mass that remains written as one minus the mass that is gone."""

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        assert q is not None
        px, qx = p.gather(1, tokens), q.gather(1, tokens)
        choice, residual = torch.full_like(tokens[:, 0], -1), p
        c, mass, gone = torch.zeros_like(px[:, 0]), torch.ones_like(px[:, 0]), torch.zeros_like(px[:, 0])
        for j in range(tokens.shape[1]):
            remaining = 1 - gone
            test = ok[:, j] & (choice < 0)
            hit = test & (u[:, j] * (mass * qx[:, j]) < (px[:, j] - c * qx[:, j]) * remaining)
            choice = torch.where(hit, j, choice)
            c = torch.where(test & ~hit & (remaining > 0), c + mass / remaining, c)
            after = (p - c[:, None] * q).clamp_min(0)
            moved = test & ~hit & (after.sum(1) > 0)
            residual = torch.where(moved[:, None], after, residual)
            mass = torch.where(moved, after.sum(1), mass)
            gone = gone + qx[:, j]
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
    assert worst_tv("rrsw", Subtracts(), random_batch("rrsw", 3, seed=3, dtype=torch.float32)) < 1e-4  # nothing else is wrong with it


@every_device
@pytest.mark.parametrize("name", ["rejection", "rrs"])
def test_over_confident_drafts_with_replacement(name: str, device: str) -> None:
    torch.manual_seed(3)
    p, logits = (1.5 * torch.randn(40, 8)).softmax(-1), torch.randn(40, 8)
    logits[:, 3] += 16
    batch = float_batch(name, p, logits.softmax(-1), 1 if name == "rejection" else 3, seed=3, device=device)
    assert worst_tv(name, RULES[name][0](), batch) < 1e-5


# ------------------------------------------------------------------------------------------------------------ corner cases


@every_device
@ratio_rules
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_laws_always_accept_the_first_child(name: str, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(4)
    p = (3 * torch.randn(400, 50, dtype=dtype)).softmax(-1).to(device)
    tokens = torch.multinomial(p, 1 if name == "rejection" else 3)
    u = torch.full(tokens.shape, LARGEST, dtype=torch.float64, device=device)
    choice, _ = RULES[name][0]().node(p, p.clone(), tokens, torch.ones_like(tokens, dtype=torch.bool), u)
    assert bool((choice == 0).all())


@every_device
@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_without_target_mass_is_never_accepted(name: str, dtype: torch.dtype, device: str) -> None:
    v = 6
    rng = random.Random(5)
    rows = []
    for _ in range(60):
        p, q = weights(rng, v), E.norm([rng.randint(1, 9) for _ in range(v)])
        p = E.norm([0 if x in (1, 4) else a + F(1, 50) for x, a in enumerate(p)])
        tokens = (1, 4, rng.choice([0, 2, 3, 5]))[: 1 if name == "rejection" else 3]
        rows.append((p, q, tokens))
    batch = Batch(rows, len(rows[0][2]), dtype, device)
    for value in (TINY, 5e-324, 1e-12, 0.3):
        choice, residual = RULES[name][0]().node(batch.p, batch.q, batch.tokens, batch.ok, batch.u(value))
        assert not bool(((choice == 0) | (choice == 1)).any())
        assert bool((residual[:, [1, 4]][choice == -1] == 0).all())


@every_device
@every_rule
def test_children_that_are_not_ok_do_not_exist(name: str, device: str) -> None:
    """Not accepted and not counted, wherever they stand: the decision is that of the others alone."""
    if name == "rejection":
        batch = random_batch(name, 1, seed=8, device=device)
        choice, residual = Rejection().node(batch.p, batch.q, batch.tokens, torch.zeros_like(batch.ok), batch.u(TINY))
        assert bool((choice == -1).all())
        torch.testing.assert_close(residual / residual.sum(1, keepdim=True), batch.p)
        return
    rng = random.Random(9)
    rows, tokens, ok = [], [], []
    for p, q, xs in random_batch(name, 3, seed=9).rows:
        keep = [rng.random() < 0.6 for _ in xs]
        rows.append((p, q, tuple(x for x, kept in zip(xs, keep, strict=True) if kept)))
        tokens.append([*xs, *[0] * (3 - len(xs))])
        ok.append([*keep, *[False] * (3 - len(xs))])
    alone, among = Batch(rows, 3, device=device), Batch(rows, 3, device=device)
    among.tokens, among.ok = torch.tensor(tokens, device=device), torch.tensor(ok, device=device)
    kernel = RULES[name][0]()
    accept = acceptance(kernel, among)
    assert bool((accept[~among.ok] == 0).all())
    for i, (p, q, xs) in enumerate(rows):
        wanted = [float(a) for a in RULES[name][1](p, q, xs)[0]]
        torch.testing.assert_close(accept[i][among.ok[i]].tolist(), wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(closing(kernel, among)[1], closing(kernel, alone)[1], atol=1e-9, rtol=0)


@every_device
@every_rule
def test_without_children_the_residual_is_the_target(name: str, device: str) -> None:
    batch = random_batch(name, 1, seed=10, device=device)
    choice, residual = RULES[name][0]().node(batch.p, batch.q, batch.tokens, torch.zeros_like(batch.ok), batch.u(TINY))
    assert bool((choice == -1).all())
    torch.testing.assert_close(residual / residual.sum(1, keepdim=True), batch.p)


def test_support_smaller_than_children() -> None:
    """Golden case: q has two tokens, four children are asked for; the other two are not ok and the closing law is exact."""
    p, q = E.norm([4, 1, 1, 2, 2]), E.norm([0, 7, 3, 0, 0])
    batch = Batch([(p, q, (1, 2)), (p, q, (2, 1))], 4)
    choice, residual = closing(RRSw(), batch)
    assert choice.tolist() == [-1, -1]
    torch.testing.assert_close(residual[0].tolist(), [0.5, 0.0, 0.0, 0.25, 0.25], atol=1e-9, rtol=0)
    check_against_exact("rrsw", batch, 1e-9)


@every_device
@every_rule
def test_inputs_are_left_alone(name: str, device: str) -> None:
    batch = random_batch(name, 1 if name == "rejection" else 3, seed=11, dtype=torch.float32, device=device)
    for value in (TINY, 0.4, LARGEST):
        given = [batch.p, batch.q, batch.tokens, batch.ok, batch.u(value)]
        before = [x.clone() for x in given]
        _, residual = RULES[name][0]().node(*given)
        residual.zero_()  # a residual that shares the memory of p would take p along
        shared = not torch.equal(batch.p, before[0])
        if shared:
            batch.p.copy_(before[0])
        assert all(torch.equal(x, y) for x, y in zip(given[1:], before[1:], strict=True))
        assert not shared, "the residual is a view of p"


@every_device
@every_rule
def test_a_row_alone_is_the_row_in_the_batch(name: str, device: str) -> None:
    batch = random_batch(name, 1 if name == "rejection" else 3, seed=12, count=40, dtype=torch.float32, device=device)
    torch.manual_seed(12)
    u = torch.rand(batch.tokens.shape, dtype=torch.float64).to(device)
    rule = RULES[name][0]()
    choice, residual = rule.node(batch.p, batch.q, batch.tokens, batch.ok, u)
    assert name == "rejection" or len(set(choice.tolist())) > 2
    for i in range(len(batch.rows)):
        one = slice(i, i + 1)
        alone, law = rule.node(batch.p[one], batch.q[one], batch.tokens[one], batch.ok[one], u[one])
        assert torch.equal(alone, choice[one])
        torch.testing.assert_close(law, residual[one], atol=1e-7, rtol=0)


@every_device
def test_point_mass_takes_everything_the_children_hold(device: str) -> None:
    """All of p on the children: one of them is taken, even by the largest uniform; q is not needed; a repeated child counts once."""
    p = torch.tensor([[0.0, 0, 1, 0], [0.25, 0.25, 0.5, 0], [0.1, 0.2, 0.3, 0.4]], device=device)
    tokens = torch.tensor([[0, 2, 1], [0, 1, 2], [3, 3, 0]], device=device)
    ok = torch.ones_like(tokens, dtype=torch.bool)
    u = torch.full((3, 3), LARGEST, dtype=torch.float64, device=device)
    choice, residual = PointMass().node(p, None, tokens, ok, u)
    assert choice.tolist() == [1, 2, -1]
    torch.testing.assert_close(residual[2] / residual[2].sum(), torch.tensor([0, 0.4, 0.6, 0], device=device))
    u[2, 0] = 0.45  # between p(3) and p(3) + p(0)
    assert PointMass().node(p, None, tokens, ok, u)[0][2] == 2
    u[:, 1:] = TINY
    assert PointMass().node(p, None, tokens, ok, u)[0].tolist() == [1, 2, 2]  # the other uniforms are not read
