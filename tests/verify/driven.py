"""Driving the vectorised rules with chosen uniforms: their acceptance probabilities and residuals, recovered by bisection and without noise."""

from __future__ import annotations

import random
from fractions import Fraction as F

import pytest
import torch
from torch import Tensor

from specwb.verify import KSeq, Naive, Rejection, TopAndSample, WeightedRace, race
from specwb.verify import exact as E
from specwb.verify.kseq import scale
from specwb.verify.point import PointMass
from specwb.verify.race import race_weights
from specwb.verify.rrs import RRS
from specwb.verify.rrsw import RRSw
from specwb.verify.rule import NodeRule

DEVICES = ["cpu"] + [pytest.param("cuda", marks=pytest.mark.cuda)] * torch.cuda.is_available()
NEARLY_1 = 1 - 1e-13
LARGEST, TINY = 1 - 2.0**-53, 1e-300


def at_the_kernels_scale(p: E.Dist, q: E.Dist, tokens: E.Tokens) -> E.Decision:
    """k-SEQ in fractions with the rho that the kernel finds, which is a fraction too."""
    rho = scale(row(p), row(q), torch.tensor([len(tokens)]))
    return E.kseq(p, q, tokens, F(float(rho)))


def with_the_kernels_weights(p: E.Dist, q: E.Dist, tokens: E.Tokens) -> E.Decision:
    w, _ = race_weights(row(p), row(q), max(len(tokens), 1))
    return E.race(p, q, tokens, [F(x) for x in w[0].tolist()])


def row(law: E.Dist) -> Tensor:
    return torch.tensor([[float(a) for a in law]], dtype=torch.float64)


# name -> kernel, exact rule, law of the children
RULES: dict[str, tuple[type[NodeRule], E.NodeRule, E.DraftLaw]] = {
    "rejection": (Rejection, E.rejection, E.iid),
    "rrs": (RRS, E.rrs, E.iid),
    "rrsw": (RRSw, E.rrsw, E.without_replacement),
    "point": (PointMass, E.point, E.top),
    "naive": (Naive, E.naive, E.iid),
    "repeats": (RRSw, E.rrsw, E.iid),
    "kseq": (KSeq, at_the_kernels_scale, E.iid),
    "race": (WeightedRace, with_the_kernels_weights, E.iid),
    "top": (TopAndSample, E.top_rule, E.top_and_sample),
}
WITHOUT_Q = ("point", "naive")  # these do not read it
every_rule = pytest.mark.parametrize("name", RULES)
ratio_rules = pytest.mark.parametrize("name", ["rejection", "rrs", "rrsw"])
every_device = pytest.mark.parametrize("device", DEVICES)


def weights(rng: random.Random, v: int) -> list[F]:
    raw = [rng.choice([0, 1, 1, 2, rng.randint(1, 30), rng.randint(1, 30)]) for _ in range(v)]
    return E.norm(raw) if any(raw) else E.norm([1] * v)


def one_hot(v: int, x: int) -> list[F]:
    return [F(y == x) for y in range(v)]


class Batch:
    """Rows of one call: exact laws beside the tensors, children padded with ok = False. ``rest``: the kernel gets q without all children but the
    last, normalised, and 0 where nothing is left, as the drafter for top and sample gives it."""

    def __init__(
        self, rows: list[tuple[list[F], list[F], E.Tokens]], k: int, dtype: torch.dtype = torch.float64, device: str = "cpu", rest: bool = False
    ):
        self.rows = rows
        given = [E.without(q, xs[: k - 1]) if rest else q for _, q, xs in rows]
        self.p = torch.tensor([[float(a) for a in p] for p, _, _ in rows], dtype=dtype, device=device)
        self.q = torch.tensor([[float(b) for b in (E.norm(q) if any(q) else q)] for q in given], dtype=dtype, device=device)
        self.tokens = torch.tensor([[*xs, *[0] * (k - len(xs))] for _, _, xs in rows], device=device)
        self.ok = torch.tensor([[True] * len(xs) + [False] * (k - len(xs)) for _, _, xs in rows], device=device)

    def u(self, value: float) -> Tensor:
        """As many as any rule takes: one a child, and two at least."""
        rows, k = self.tokens.shape
        return torch.full((rows, max(k, 2)), value, dtype=torch.float64, device=self.p.device)


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
    return Batch(rows, k, dtype, device, rest=name == "top")


def sequential_acceptance(rule: NodeRule, batch: Batch) -> Tensor:
    """``[B,K]`` probability that each child is the one accepted, u[:, j] being child j's: bisection on one uniform at a time."""
    accept, left = torch.zeros(batch.tokens.shape, dtype=torch.float64, device=batch.p.device), torch.ones_like(batch.u(0)[:, 0])
    for j in range(accept.shape[1]):
        low, high = torch.zeros_like(left), torch.ones_like(left)
        for _ in range(30):
            u = batch.u(NEARLY_1)
            u[:, j] = middle = (low + high) / 2
            hit = rule.node(batch.p, batch.q, batch.tokens, batch.ok, u)[0] == j
            low, high = torch.where(hit, middle, low), torch.where(hit, high, middle)
        passes = torch.where(low > 1 - 1e-8, 1.0, low)
        accept[:, j], left = left * passes, left * (1 - passes)
    return accept


def one_uniform_acceptance(rule: NodeRule, batch: Batch, cells: int = 512, column: int = 0, others: float = 0.5) -> Tensor:
    """``[B,K]`` the same where only one uniform counts, whatever the order of the stretches: a grid, then bisection at every change."""
    rows, k = batch.tokens.shape

    def choice(row: Tensor, value: Tensor) -> Tensor:
        u = torch.full((len(row), max(k, 2)), others, dtype=torch.float64, device=batch.p.device)
        u[:, column] = value
        return rule.node(batch.p[row], batch.q[row], batch.tokens[row], batch.ok[row], u)[0]

    edges = torch.linspace(0, 1, cells + 1, dtype=torch.float64, device=batch.p.device)
    edges[0], edges[-1] = TINY, NEARLY_1
    row = torch.arange(rows, device=batch.p.device).repeat_interleave(cells)
    low, high = edges[:-1].repeat(rows), edges[1:].repeat(rows)
    at_low, at_high = choice(row, low), choice(row, high)
    border = high.clone()
    moves = at_low != at_high
    a, b = low[moves], high[moves]
    for _ in range(30):
        middle = (a + b) / 2
        same = choice(row[moves], middle) == at_low[moves]
        a, b = torch.where(same, middle, a), torch.where(same, b, middle)
    border[moves] = a
    measure = torch.zeros(rows, k + 1, dtype=torch.float64, device=batch.p.device)
    measure.index_put_((row, at_low), border - low, accumulate=True)  # -1 is the last column
    measure.index_put_((row, at_high), high - border, accumulate=True)
    return measure[:, :k]


def fixed_and_drawn_acceptance(rule: NodeRule, batch: Batch) -> Tensor:
    """Top and sample: the first uniform decides about the drawn child, the second, after a rejection, among the fixed ones."""
    drawn = batch.ok & (batch.q.gather(1, batch.tokens) > 0)
    first = torch.where(drawn, one_uniform_acceptance(rule, batch, 2, 0, NEARLY_1), 0)
    second = torch.where(drawn, 0, one_uniform_acceptance(rule, batch, 512, 1, NEARLY_1))
    return first + (1 - first.sum(1, keepdim=True)) * second


def stretches(batch: Batch) -> Tensor:
    """``[B,K]``: a uniform in the middle of each child's stretch of the selection, by the weights."""
    w = torch.where(batch.ok, race_weights(batch.p, batch.q, batch.ok.sum(1))[0].gather(1, batch.tokens), 0)
    return (w.cumsum(1) - w / 2) / w.sum(1, keepdim=True).clamp_min(1e-300)


def selected_and_tested_acceptance(rule: NodeRule, batch: Batch) -> Tensor:
    """The race: how wide child j's stretch of the first uniform is, times how far the second may go inside it."""
    accept = torch.zeros(batch.tokens.shape, dtype=torch.float64, device=batch.p.device)
    middle = stretches(batch)

    def taken(j: int, first: Tensor, second: Tensor) -> Tensor:
        return rule.node(batch.p, batch.q, batch.tokens, batch.ok, torch.stack((first, second), 1))[0] == j

    def edge(inside: Tensor, outside: Tensor, holds) -> Tensor:
        for _ in range(30):
            between = (inside + outside) / 2
            hit = holds(between)
            inside, outside = torch.where(hit, between, inside), torch.where(hit, outside, between)
        return inside

    for j in range(accept.shape[1]):
        at, tiny, most = middle[:, j], torch.full_like(middle[:, j], TINY), torch.full_like(middle[:, j], NEARLY_1)
        there = taken(j, at, tiny)  # not where p is 0 there, or the child is not ok
        low = torch.where(taken(j, tiny, tiny), 0, edge(at, tiny, lambda u, j=j, tiny=tiny: taken(j, u, tiny)))
        high = torch.where(taken(j, most, tiny), 1, edge(at, most, lambda u, j=j, tiny=tiny: taken(j, u, tiny)))
        passes = torch.where(taken(j, at, most), 1, edge(tiny, most, lambda u, j=j, at=at: taken(j, at, u)))
        accept[:, j] = there * (high - low) * passes
    return accept


def acceptance(rule: NodeRule, batch: Batch) -> Tensor:
    if isinstance(rule, PointMass):
        return one_uniform_acceptance(rule, batch)
    if isinstance(rule, TopAndSample):
        return fixed_and_drawn_acceptance(rule, batch)
    return selected_and_tested_acceptance(rule, batch) if isinstance(rule, WeightedRace) else sequential_acceptance(rule, batch)


def closing(rule: NodeRule, batch: Batch) -> tuple[Tensor, Tensor]:
    """Choice and normalised residual when every uniform is as large as it gets; the race selects the child with the smallest p/q."""
    u = batch.u(NEARLY_1)
    if isinstance(rule, WeightedRace):
        ratio = torch.where(batch.ok, (batch.p / batch.q).gather(1, batch.tokens), torch.inf)
        u[:, 0] = stretches(batch).gather(1, ratio.argmin(1, keepdim=True)).squeeze(1).clamp(TINY, NEARLY_1)
    choice, residual = rule.node(batch.p, batch.q, batch.tokens, batch.ok, u)
    assert bool((residual >= 0).all())
    assert bool((residual.sum(1) > 0).all())
    residual = residual.double()
    return choice, residual / residual.sum(1, keepdim=True)


@pytest.fixture(autouse=True)
def weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of the same rows are fitted once, not at every step of a bisection."""
    known: list[tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]] = []

    def fitted(p: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        for a, b, n, found in known:
            if a.dtype == p.dtype and all(x.shape == y.shape and torch.equal(x, y) for x, y in ((a, p), (b, q), (n, k))):
                return found
        known.append((p.clone(), q.clone(), k.clone(), race_weights(p, q, k)))
        return known[-1][-1]

    monkeypatch.setattr(race, "race_weights", fitted)


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
    """Rows of float tensors with children drawn from q (for the point-mass rule the k likeliest, for top and sample all but the last)."""
    rng = random.Random(seed)
    rows = []
    for one, other in zip(p, q, strict=True):
        a, b = exactly(one), exactly(other)
        tokens = list(E.top(b, {"point": k, "top": k - 1}.get(name, 0))[0][0])
        while len(tokens) < k:
            left = [0.0 if name in ("rrsw", "top") and x in tokens else float(c) for x, c in enumerate(b)]
            tokens += rng.choices(range(len(b)), left)
        rows.append((a, b, tuple(tokens)))
    batch = Batch(rows, k, p.dtype, device, rest=name == "top")
    batch.p = p.to(device)
    batch.q = batch.q if name == "top" else q.to(device)
    return batch
