"""The vectorised rules are driven with chosen uniforms.

Bisection recovers their acceptance probabilities and residuals without noise.
"""

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


def row(p: E.Dist) -> Tensor:
    return torch.tensor([[float(a) for a in p]], dtype=torch.float64)


# name -> kernel, exact rule, sampling scheme of the children
RULES: dict[str, tuple[type[NodeRule], E.NodeRule, E.SamplingScheme]] = {
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
    """Rows of one call: exact distributions beside the tensors, children padded with ok = False.

    With ``rest`` the kernel gets q without all children but the last, normalised, and 0 where
    nothing is left, as the drafter for top and sample gives it.
    """

    def __init__(
        self,
        rows: list[tuple[list[F], list[F], E.Tokens]],
        k: int,
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
        rest: bool = False,
    ):
        self.rows = rows
        drafts = [E.without(q, xs[: k - 1]) if rest else q for _, q, xs in rows]
        self.p = torch.tensor(
            [[float(a) for a in p] for p, _, _ in rows], dtype=dtype, device=device
        )
        self.q = torch.tensor(
            [[float(b) for b in (E.norm(q) if any(q) else q)] for q in drafts],
            dtype=dtype,
            device=device,
        )
        self.tokens = torch.tensor(
            [[*xs, *[0] * (k - len(xs))] for _, _, xs in rows], device=device
        )
        self.ok = torch.tensor(
            [[True] * len(xs) + [False] * (k - len(xs)) for _, _, xs in rows], device=device
        )

    def u(self, value: float) -> Tensor:
        """Uniforms of this value, as many as any rule takes: one per child, and at least two."""
        rows, k = self.tokens.shape
        return torch.full((rows, max(k, 2)), value, dtype=torch.float64, device=self.p.device)


def random_batch(
    name: str,
    k: int,
    seed: int,
    count: int = 120,
    v: int = 5,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> Batch:
    """Rows that all differ; among them are zeros, ties, one-hot, p = q, disjoint supports, and
    fewer tokens in the support than children."""
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
        tuples = RULES[name][2](q, k)
        rows.append((p, q, rng.choice(tuples)[0]))
    return Batch(rows, k, dtype, device, rest=name == "top")


def sequential_acceptance(rule: NodeRule, batch: Batch) -> Tensor:
    """``[B,K]``: the probability of each child that it is the one accepted.

    ``u[:, j]`` is child j's; bisection is on one uniform at a time.
    """
    accept = torch.zeros(batch.tokens.shape, dtype=torch.float64, device=batch.p.device)
    not_accepted = torch.ones_like(batch.u(0)[:, 0])
    for j in range(accept.shape[1]):
        low, high = torch.zeros_like(not_accepted), torch.ones_like(not_accepted)
        for _ in range(30):
            u = batch.u(NEARLY_1)
            u[:, j] = middle = (low + high) / 2
            hit = rule.node(batch.p, batch.q, batch.tokens, batch.ok, u)[0] == j
            low, high = torch.where(hit, middle, low), torch.where(hit, high, middle)
        passes = torch.where(low > 1 - 1e-8, 1.0, low)
        accept[:, j] = not_accepted * passes
        not_accepted = not_accepted * (1 - passes)
    return accept


def one_uniform_acceptance(
    rule: NodeRule, batch: Batch, cells: int = 512, column: int = 0, others: float = 0.5
) -> Tensor:
    """``[B,K]``: the same where only one uniform counts, whatever the order of its stretches.

    A grid is laid over the uniform, and every change on it is found by bisection.
    """
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
    """The same for top and sample, whose first uniform decides about the drawn child and the
    second, after a rejection, among the fixed ones."""
    is_drawn = batch.ok & (batch.q.gather(1, batch.tokens) > 0)
    first = torch.where(is_drawn, one_uniform_acceptance(rule, batch, 2, 0, NEARLY_1), 0)
    second = torch.where(is_drawn, 0, one_uniform_acceptance(rule, batch, 512, 1, NEARLY_1))
    return first + (1 - first.sum(1, keepdim=True)) * second


def stretches(batch: Batch) -> Tensor:
    """``[B,K]``: a uniform in the middle of the stretch that selects each child, by the weights."""
    w = torch.where(
        batch.ok, race_weights(batch.p, batch.q, batch.ok.sum(1))[0].gather(1, batch.tokens), 0
    )
    return (w.cumsum(1) - w / 2) / w.sum(1, keepdim=True).clamp_min(1e-300)


def selected_and_tested_acceptance(rule: NodeRule, batch: Batch) -> Tensor:
    """The same for the race: how wide child j's stretch of the first uniform is, times how far the
    second may go inside it."""
    accept = torch.zeros(batch.tokens.shape, dtype=torch.float64, device=batch.p.device)
    middle = stretches(batch)

    def is_accepted(j: int, first: Tensor, second: Tensor) -> Tensor:
        return (
            rule.node(batch.p, batch.q, batch.tokens, batch.ok, torch.stack((first, second), 1))[0]
            == j
        )

    def edge(inside: Tensor, outside: Tensor, holds) -> Tensor:
        for _ in range(30):
            between = (inside + outside) / 2
            hit = holds(between)
            inside, outside = torch.where(hit, between, inside), torch.where(hit, outside, between)
        return inside

    for j in range(accept.shape[1]):
        mid = middle[:, j]
        tiny, large = torch.full_like(mid, TINY), torch.full_like(mid, NEARLY_1)
        possible = is_accepted(j, mid, tiny)  # not where p is 0 there, or the child is not ok
        low = torch.where(
            is_accepted(j, tiny, tiny),
            0,
            edge(mid, tiny, lambda u, j=j, tiny=tiny: is_accepted(j, u, tiny)),
        )
        high = torch.where(
            is_accepted(j, large, tiny),
            1,
            edge(mid, large, lambda u, j=j, tiny=tiny: is_accepted(j, u, tiny)),
        )
        passes = torch.where(
            is_accepted(j, mid, large),
            1,
            edge(tiny, large, lambda u, j=j, mid=mid: is_accepted(j, mid, u)),
        )
        accept[:, j] = possible * (high - low) * passes
    return accept


def acceptance(rule: NodeRule, batch: Batch) -> Tensor:
    if isinstance(rule, PointMass):
        return one_uniform_acceptance(rule, batch)
    if isinstance(rule, TopAndSample):
        return fixed_and_drawn_acceptance(rule, batch)
    return (
        selected_and_tested_acceptance(rule, batch)
        if isinstance(rule, WeightedRace)
        else sequential_acceptance(rule, batch)
    )


def bonus(rule: NodeRule, batch: Batch) -> tuple[Tensor, Tensor]:
    """The choice and the normalised residual where every uniform is as large as it gets.

    In the race the child with the smallest p/q is selected.
    """
    u = batch.u(NEARLY_1)
    if isinstance(rule, WeightedRace):
        ratio = torch.where(batch.ok, (batch.p / batch.q).gather(1, batch.tokens), torch.inf)
        u[:, 0] = (
            stretches(batch)
            .gather(1, ratio.argmin(1, keepdim=True))
            .squeeze(1)
            .clamp(TINY, NEARLY_1)
        )
    choice, residual = rule.node(batch.p, batch.q, batch.tokens, batch.ok, u)
    assert bool((residual >= 0).all())
    assert bool((residual.sum(1) > 0).all())
    residual = residual.double()
    return choice, residual / residual.sum(1, keepdim=True)


@pytest.fixture(autouse=True)
def weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of the same rows are fitted once, not at every step of a bisection."""
    fits: list[tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]] = []

    def fitted(p: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        for a, b, n, fit in fits:
            if a.dtype == p.dtype and all(
                x.shape == y.shape and torch.equal(x, y) for x, y in ((a, p), (b, q), (n, k))
            ):
                return fit
        fits.append((p.clone(), q.clone(), k.clone(), race_weights(p, q, k)))
        return fits[-1][-1]

    monkeypatch.setattr(race, "race_weights", fitted)


def check_against_exact(name: str, batch: Batch, tolerance: float) -> None:
    kernel, rule, _ = RULES[name]
    accept = acceptance(kernel(), batch)
    choice, residual = bonus(kernel(), batch)
    tested = 0
    for i, (p, q, tokens) in enumerate(batch.rows):
        exact_accept, exact_residual = rule(p, q, tokens)
        filled = [*map(float, exact_accept), *[0.0] * (batch.tokens.shape[1] - len(tokens))]
        torch.testing.assert_close(accept[i].tolist(), filled, atol=tolerance, rtol=0)
        if exact_residual is not None:
            tested += 1
            assert choice[i] == -1
            torch.testing.assert_close(
                residual[i].tolist(), [float(a) for a in exact_residual], atol=tolerance, rtol=0
            )
    assert tested > len(batch.rows) // 5


def output_distribution(rule: NodeRule, batch: Batch) -> Tensor:
    """``[B,V]``: the distribution of the next token given the children, as the kernel decides it,
    in float64."""
    accept = acceptance(rule, batch)
    none = (1 - accept.sum(1, keepdim=True)).clamp_min(0)
    output = bonus(rule, batch)[1] * none
    return output.scatter_add(1, batch.tokens, accept)


def worst_tv(name: str, rule: NodeRule, batch: Batch) -> float:
    """The largest distance over the rows between the kernel's distribution given the children and
    the exact one."""
    outputs = output_distribution(rule, batch)
    worst = 0.0
    for i, (p, q, tokens) in enumerate(batch.rows):
        exact = E.conditional_distribution(RULES[name][1](p, q, tokens), tokens, len(p))
        worst = max(
            worst,
            0.5 * sum(abs(a - float(b)) for a, b in zip(outputs[i].tolist(), exact, strict=True)),
        )
    return worst


def exactly(row: Tensor) -> list[F]:
    """The distribution that a tensor stands for: its very numbers, normalised."""
    return E.norm([F(x) for x in row.tolist()])


def float_batch(name: str, p: Tensor, q: Tensor, k: int, seed: int, device: str = "cpu") -> Batch:
    """Rows of float tensors with children drawn from q.

    For the point-mass rule they are the k most probable tokens, for top and sample all but the last
    are.
    """
    rng = random.Random(seed)
    rows = []
    for p_row, q_row in zip(p, q, strict=True):
        a, b = exactly(p_row), exactly(q_row)
        tokens = list(E.top(b, {"point": k, "top": k - 1}.get(name, 0))[0][0])
        while len(tokens) < k:
            chances = [
                0.0 if name in ("rrsw", "top") and x in tokens else float(c)
                for x, c in enumerate(b)
            ]
            tokens += rng.choices(range(len(b)), chances)
        rows.append((a, b, tuple(tokens)))
    batch = Batch(rows, k, p.dtype, device, rest=name == "top")
    batch.p = p.to(device)
    batch.q = batch.q if name == "top" else q.to(device)
    return batch
