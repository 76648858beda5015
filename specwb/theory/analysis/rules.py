"""How often each verification rule goes on from one node: P(the next token is one of k candidates).

All rates share their arguments, result and errors, and compute in float64:

Args:
    p: The target's distribution ``[..., V]``: a tensor, an array or a list, after temperature and
        filters.
    q: The draft's distribution ``[..., V]``, likewise.
    k: The number of children (candidates) of the node.
Returns:
    The rate ``[...]``: a tensor where both p and q are tensors, an array otherwise.
Raises:
    ValueError: p or q is no distribution, their shapes differ, or k is not an integer >= 1.

Notation: ``(x)+ = max(x, 0)`` and ``m(level) = sum (p - level q)+``.

The same numbers over fractions, by enumeration, are in :mod:`specwb.theory.exact`; what no rule can
exceed is :func:`specwb.theory.analysis.optimum`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.probability import inverse_cdf
from specwb.rules.race import LEAST, pair_selection, race_weights
from specwb.theory.analysis.acceptance import Distribution, acceptance_rate

MAX_TUPLES = 2**20
"""Up to so many tuples of rejected children are enumerated by :func:`rrsw_estimate`."""
_CHUNK = 2**22  # numbers in one intermediate tensor


def as_probabilities(p: Distribution, q: Distribution) -> tuple[Tensor, Tensor]:
    """p and q as float64 tensors ``[..., V]`` that sum to 1 in float64; a ValueError unless they
    are distributions of one shape.

    Distributions made in float32 sum to 1 within some 1e-7 and are normalised again.
    """
    a, b = (
        x.detach().double() if isinstance(x, Tensor) else torch.tensor(np.asarray(x, dtype=float))
        for x in (p, q)
    )
    if a.ndim == 0 or a.shape != b.shape or not a.numel():
        raise ArgumentError(
            "p and q must be distributions over the same tokens, [..., V] each; "
            f"got shapes {list(a.shape)} and {list(b.shape)}"
        )
    b = b.to(a.device)
    for name, x in (("p", a), ("q", b)):
        total = x.sum(-1, keepdim=True)
        if not bool((x >= 0).all() & ((total - 1).abs() <= 1e-3).all()):
            raise ArgumentError(
                f"{name} must be probabilities: "
                "none negative or NaN, summing to 1 over the last dimension"
            )
    return a / a.sum(-1, keepdim=True), b / b.sum(-1, keepdim=True)


def check_children(k: int) -> int:
    """Return k, a number of children; raise ValueError unless it is an integer >= 1."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ArgumentError(f"k, the number of children, must be an integer >= 1, got {k!r}")
    return k


def _rate(formula: Callable[..., Tensor]) -> Callable[..., Any]:
    """A rate as the module describes it, of a formula for checked float64 tensors."""

    @wraps(formula)
    def rate(p: Distribution, q: Distribution, k: int, **options: Any) -> Any:
        result = formula(*as_probabilities(p, q), check_children(k), **options)
        return like_given(p, q, result)

    return rate


def like_given(p: Distribution, q: Distribution, result: Tensor) -> Any:
    """A result as a tensor where both p and q are tensors, otherwise as an array."""
    both_tensors = isinstance(p, Tensor) and isinstance(q, Tensor)
    return result if both_tensors else result.cpu().numpy()[()]


def top_tokens(q: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable tokens in the support of q, the lowest first among equals: their ids
    ``[..., k]``, and whether they exist ``[..., k]``, as the support may be smaller."""
    order = q.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return order, q.gather(-1, order) > 0


def split_top(q: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Top and sample takes the k - 1 most probable tokens A and draws from the rest of q: the mask
    of A ``[..., V]``, and ``q' = norm(q outside A)``, 0 where nothing is left."""
    order, exists = top_tokens(q, k - 1)
    top = torch.zeros_like(q, dtype=torch.bool).scatter_(-1, order, exists)
    rest = q.masked_fill(top, 0)
    mass = rest.sum(-1, keepdim=True)
    return top, rest / torch.where(mass > 0, mass, 1)


# ----------------------------------------------------------------------------------- closed forms


@_rate
def rejection_rate(p: Tensor, q: Tensor, k: int) -> Tensor:
    """Token rejection accepts the first child with ``sum min(p, q)`` and tests no other.

    Source: Leviathan et al. 2211.17192. See :func:`acceptance_rate`, which also keeps fractions.
    """
    return acceptance_rate(p, q)


@_rate
def rrs_rate(p: Tensor, q: Tensor, k: int) -> Tensor:
    """Recursive rejection of k independent children accepts with ``1 - m_{k+1}``.

    ``m_1 = 1`` and ``m_{j+1} = m(m_1 + .. + m_j)``.

    Source: SpecInfer 2305.09781, MCSD 2401.06706. Differs from the papers in: the scalar form,
        which needs no residual vectors.
    """
    c, mass = torch.zeros_like(p[..., :1]), torch.ones_like(p[..., :1])
    for _ in range(k):
        c = c + mass
        mass = (p - c * q).relu().sum(-1, keepdim=True)
    return 1 - mass[..., 0]


@_rate
def naive_rate(p: Tensor, q: Tensor, k: int) -> Tensor:
    """A token drawn from p is one of k independent children with ``sum p (1 - (1 - q)^k)``."""
    return -(p * torch.expm1(k * torch.log1p(-q))).sum(-1)


@_rate
def point_rate(p: Tensor, q: Tensor, k: int) -> Tensor:
    """The point-mass rule on the k most probable tokens of q accepts with their mass under p.

    No lossless rule accepts these children more often.
    """
    order, exists = top_tokens(q, k)
    return (p.gather(-1, order) * exists).sum(-1)


@_rate
def top_and_sample_rate(p: Tensor, q: Tensor, k: int) -> Tensor:
    """Top and sample accepts with ``p(A) + sum over y not in A of min(p(y), q'(y))``.

    k - 1 children are the draft's most probable tokens A, the last is drawn from
    ``q' = norm(q outside A)``. The rate is the optimum of this sampling scheme.

    Source: Hu et al. 2502.18779 (greedy drafts).
    """
    top, rest = split_top(q, k)
    return torch.where(top, p, torch.minimum(p, rest)).sum(-1)


@_rate
def kseq_rho(p: Tensor, q: Tensor, k: int) -> Tensor:
    """The smallest valid scale of k-SEQ, rounded up.

    It is ``rho*`` in 1..k with ``1 - (1 - beta)^k = rho* beta``, ``beta = sum min(p / rho*, q)``.
    The left side falls with rho and the right side rises. Bisection keeps the upper end, at which
    the left side is the smaller one, until the two ends are neighbours in float64, and adds 1e-14
    of it for the rounding of the sums: a larger rho is lossless too, a smaller one is not.

    Source: SpecTr 2310.15141. Differs from the paper in: rounding up.
    """
    low, high = torch.ones_like(p[..., :1]), torch.full_like(p[..., :1], k)
    for _ in range(64):
        rho = (low + high) / 2
        beta = torch.minimum(p / rho, q).sum(-1, keepdim=True)
        valid = any_of(beta, k) <= rho * beta
        low, high = torch.where(valid, low, rho), torch.where(valid, rho, high)
    return high[..., 0] * (1 + 1e-14)


@_rate
def kseq_rate(p: Tensor, q: Tensor, k: int, rho: Any = None) -> Tensor:
    """k-SEQ on k independent children has the rate ``a + (1 - a) sum_y res(y) (1 - (1 - r(y))^k)``.

    With ``beta = sum min(p / rho, q)``, ``a = 1 - (1 - beta)^k`` is what the tests accept,
    ``res = norm(p - min(p / rho, q) a / beta)`` is the distribution of the bonus token, and
    ``r = (q - p / rho)+ / (1 - beta)`` that of a rejected child. The sum is thus the probability
    that the bonus token is one of the children after all.

    Args:
        rho: The scale ``[...]``, default :func:`kseq_rho`.
    Source: SpecTr 2310.15141; that the bonus token may be a child: reference code of 2602.16961.
    """
    if rho is None:
        rho = kseq_rho(p, q, k)
    scale = torch.as_tensor(rho, dtype=p.dtype, device=p.device)[..., None]
    passed = torch.minimum(p / scale, q)
    beta = passed.sum(-1, keepdim=True)
    accepted = any_of(beta, k)
    residual = (p - passed * accepted / torch.where(beta > 0, beta, 1)).relu()  # sums to 1 - a
    rejected = (q - passed).relu() / torch.where(beta < 1, 1 - beta, 1)
    return accepted[..., 0] + (residual * any_of(rejected, k)).sum(-1)


@_rate
def race_rate(p: Tensor, q: Tensor, k: int) -> Tensor:
    """The weighted race on k independent children has the rate
    ``sum min(p, t) + sum_y res(y) P(rejected, y among the children)``, ``res = norm((p - t)+)``.

    One child is selected in proportion to weights w, which gives it the distribution t, and
    verified alone; the bonus token may then still be one of the others. With
    ``a(x) = (1 - p(x)/t(x))+`` and all children's clocks at rates w, ``P(rejected, y not among
    them)`` is

        k integral of (sum_x a q w e^(-s w))(s) (phi(s) - q(y) e^(-s w(y)))^(k-1) ds,

    where :func:`race_weights` has phi. The result is within 1e-9. Of two children one is selected
    by :func:`pair_selection`; the rate is the optimum, so no bonus token is one of them.

    Source: as :class:`specwb.rules.race.WeightedRace`, whose weights these are.
    """
    rows = zip(p.reshape(-1, p.shape[-1]), q.reshape(-1, p.shape[-1]), strict=True)
    return torch.stack([_race(a, b, k) for a, b in rows]).view(p.shape[:-1])


def _race(p: Tensor, q: Tensor, k: int) -> Tensor:
    """The rate of one pair ``[V]``, the integral as a sum over equal steps of log s."""
    if k == 2:
        none = torch.zeros(1, 0, 2, dtype=torch.long, device=p.device)
        _, t = pair_selection(p[None], q[None], none, distinct=False)
        return torch.minimum(p, t[0]).sum()
    (w,), (t,) = race_weights(p[None], q[None], k)
    lost = (t - p).relu()
    residual = p - torch.minimum(p, t)
    # only tokens that are drafted and may come out as a bonus token can be hit
    hit = (residual > 0) & (q > 0)
    reject = lost / torch.where(t > 0, t, 1)  # a(x)
    step = 0.375
    s = torch.arange(-30, math.log(30 / LEAST), step, dtype=p.dtype, device=p.device).exp()
    missed = torch.zeros_like(p[hit])  # P(rejected, y not among the children)
    for part in s.split(max(1, _CHUNK // len(q))):
        alive = q * torch.exp(-part[:, None] * w)
        selected = (alive * w * reject).sum(1, keepdim=True)
        others = (alive.sum(1, keepdim=True) - alive[:, hit]).relu() ** (k - 1)
        missed += (step * part[:, None] * k * selected * others).sum(0)
    rejected = lost.sum()
    bonus = residual[hit] / torch.where(rejected > 0, residual.sum(), 1)
    return torch.minimum(p, t).sum() + (bonus * (rejected - missed).relu()).sum()


@_rate
def coupling_bound(p: Tensor, q: Tensor, k: int) -> Tensor:
    """A token of Gumbel-coupled lists meets the target's with at least the probability
    ``sum_y k / (sum_x max(p_x/p_y, q_x/q_y) + (k - 1)/p_y)``.

    Equality holds for k = 1. With tokens sorted by p/q the inner maximum is p's before and q's
    after a cut, so the sum costs O(V log V).

    Source: list matching lemma, Rowan, Phan, Khisti 2506.05632.
    """
    order = likelihood_ratio(p, q).argsort(-1)
    p, q = p.gather(-1, order), q.gather(-1, order)
    q_before = q.cumsum(-1) - q
    p_onwards = p.flip(-1).cumsum(-1).flip(-1)
    denominator = q * (p_onwards + k - 1) + p * q_before
    return (k * p * q / torch.where(denominator > 0, denominator, 1)).sum(-1)


@_rate
def exact_text_rate(p: Tensor, q: Tensor, k: int) -> Tensor:
    """The next token is among the k first arrivals of the draft's race with the target's noise
    (``exact_text``) with probability

        sum_y p(y) integral e^(-t) P(A_y(t) < k) dt,

    over t > 0 and y with q(y) > 0, where A_y(t) is the sum of independent Bernoulli variables over
    x != y, of means ``1 - exp(-t (p(y) q(x) / q(y) - p(x))+)``. O(V^2 k), within 1e-8.

    Source: theorem 7.8.
    """
    rows = zip(p.reshape(-1, p.shape[-1]), q.reshape(-1, p.shape[-1]), strict=True)
    return torch.stack([_exact_text(a, b, k) for a, b in rows]).view(p.shape[:-1])


def _exact_text(p: Tensor, q: Tensor, k: int) -> Tensor:
    """The rate of one pair ``[V]``, the integral as a sum over equal steps of log t."""
    y = (p * q > 0).nonzero()[:, 0]
    step = 0.25
    t = torch.arange(-40, 5, step, dtype=p.dtype, device=p.device).exp()
    fewer = p.new_zeros(len(y), len(t), k)  # P(so many are before y), up to k - 1
    fewer[..., 0] = 1
    for x in range(len(p)):
        late = torch.exp(-t * (p[y] * q[x] / q[y] - p[x]).relu()[:, None])[..., None]
        before = torch.nn.functional.pad(fewer[..., :-1], (1, 0))
        fewer = late * fewer + (1 - late) * before  # of x = y late is 1
    return (p[y, None] * step * t * (-t).exp() * fewer.sum(-1)).sum()


def any_of(probability: Tensor, k: int) -> Tensor:
    """``1 - (1 - probability)^k``, to full precision where the probability is small."""
    return -torch.expm1(k * torch.log1p(-probability.clamp_max(1)))


def likelihood_ratio(p: Tensor, q: Tensor) -> Tensor:
    """p / q, infinite where q = 0."""
    return torch.where(q > 0, p / torch.where(q > 0, q, 1), torch.inf)


# ------------------------------------------------------------- without replacement: no closed form


def rrsw_rate(
    p: Distribution, q: Distribution, k: int, *, samples: int = 256, seed: int = 0
) -> Any:
    """Recursive rejection of k children drawn without replacement: :func:`rrsw_estimate`'s rate.

    It is exact for k <= 2 or few tokens. Arguments and errors are those of that function.
    """
    return rrsw_estimate(p, q, k, samples=samples, seed=seed)[0]


def rrsw_estimate(
    p: Distribution, q: Distribution, k: int, *, samples: int = 256, seed: int = 0
) -> tuple[Any, Any]:
    """Recursive rejection of k children drawn without replacement has the rate
    ``1 - sum over x_1..x_{k-1} of prod_j (q_j - p_j)+(x_j) (1 - beta_k)``.

    The sum is over the children that are rejected, the last one in closed form. With
    ``c_j = c_{j-1} + m_j / s_j``, ``s_j`` the mass of q not yet drawn and ``m_{j+1} = m(c_j)``,
    every factor is a function of one scalar. Up to ``MAX_TUPLES`` tuples the sum is taken as it
    stands. Beyond, rejected children are drawn from their own distribution ``norm((q_j - p_j)+)``
    instead of q; the weights then telescope, and the estimate is ``1 - mean of m_{k+1}``, whose
    spread is only that of the ``s_j``.

    Args:
        samples: How many tuples are drawn where they are not all enumerated, >= 2.
        seed: Seed of these draws.
    Returns:
        The rate ``[...]``, and its standard error ``[...]``, 0 where it is exact.
    Raises:
        ValueError: As every rate, or samples < 2.
    Source: MCSD 2401.06706, Sequoia 2402.12374. Differs from the papers, which give no value for
        it.
    """
    a, b = as_probabilities(p, q)
    if samples < 2:
        raise ArgumentError(f"samples must be >= 2, got {samples}")
    v = a.shape[-1]
    rows = zip(a.reshape(-1, v), b.reshape(-1, v), strict=True)
    generator = torch.Generator().manual_seed(seed)  # one for all rows: their errors are apart
    rejected = torch.stack(
        [_rejected(x, y, check_children(k), samples, generator) for x, y in rows]
    )
    lost, error = (column.view(a.shape[:-1]) for column in rejected.T)
    return like_given(p, q, 1 - lost), like_given(p, q, error)


def _rejected(p: Tensor, q: Tensor, k: int, samples: int, generator: torch.Generator) -> Tensor:
    """``[2]``: the probability that all children are rejected, and its standard error."""
    support = q > 0
    p_beyond, p, q = p[~support].sum(), p[support], q[support]
    k = min(k, len(q))
    mass = _mass(p, q, p_beyond)
    if len(q) ** (k - 1) <= MAX_TUPLES:
        return torch.stack([_enumerated(p, q, k, mass), p.new_zeros(())])
    draws = torch.rand(samples, k - 1, dtype=p.dtype, generator=generator).to(p.device)
    parts = draws.split(max(1, _CHUNK // len(q)))
    values = torch.cat([_sampled(p, q, mass, u) for u in parts])
    return torch.stack([values.mean(), values.std() / samples**0.5])


def _mass(p: Tensor, q: Tensor, p_beyond: Tensor) -> Callable[[Tensor], Tensor]:
    """R for any scalars ``c [n]``, by sums over the tokens sorted by p/q.

    ``p_beyond`` is p's mass where q = 0.
    """
    ratio, order = (p / q).sort()

    def tail_sums(x: Tensor) -> Tensor:
        return torch.cat([x[order].flip(0).cumsum(0).flip(0), x.new_zeros(1)])

    p_tail, q_tail = tail_sums(p), tail_sums(q)

    def mass(c: Tensor) -> Tensor:
        first = torch.searchsorted(ratio, c, right=True)
        return (p_tail[first] - c * q_tail[first]).relu() + p_beyond

    return mass


def _enumerated(p: Tensor, q: Tensor, k: int, mass: Callable[[Tensor], Tensor]) -> Tensor:
    """The probability that all k children are rejected, summed over the tuples of k - 1 of them.

    Every tensor has one row per tuple of children rejected so far: the tuple's probability, the
    scalars m and c, what is ``left`` of q, and the mass ``rest`` of that.
    """
    probability, m, c = p.new_ones(1), p.new_ones(1), p.new_zeros(1)
    left, rest = q[None], p.new_ones(1)
    for j in range(1, k):
        next_c = c + m / rest
        next_m = mass(next_c)
        loss = _loss(p, q, left, c, next_c)
        row, x = (loss * (next_m > 0)[:, None]).nonzero(as_tuple=True)
        # the mass that stays is a sum over what stays: of an overconfident q a difference would
        # keep no digit
        top = left.argmax(-1)
        others = left.scatter(-1, top[:, None], 0).sum(-1)
        rest = torch.where(x == top[row], others[row], rest[row] - left[row, x])
        probability = probability[row] * loss[row, x] / m[row]
        m, c = next_m[row], next_c[row]
        if j + 1 < k:  # the last child needs no more than the mass
            left = left[row].scatter(-1, x[:, None], 0)
    return (probability * mass(c + m / rest) / m).sum()


def _sampled(p: Tensor, q: Tensor, mass: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    """``m_{k+1}`` of one tuple of rejected children per row of uniforms ``u [n, k - 1]``."""
    left = q.repeat(len(u), 1)
    m, c = p.new_ones(len(u)), p.new_zeros(len(u))
    for j in range(u.shape[1] + 1):
        next_c = c + m / left.sum(-1)
        if j < u.shape[1]:
            loss = _loss(p, q, left, c, next_c)
            left.scatter_(-1, inverse_cdf(loss, u[:, j])[:, None], 0)
        m, c = mass(next_c), next_c
    return m


def _loss(p: Tensor, q: Tensor, left: Tensor, c: Tensor, next_c: Tensor) -> Tensor:
    """``m (q_j - p_j)+`` of the next child, ``[n, V]``, after tuples with the scalars ``c [n]``."""
    return ((next_c - c)[:, None] * left - (p - c[:, None] * q).relu()).relu()


RATES: dict[str, Callable[..., Any]] = {
    "rejection": rejection_rate,
    "naive": naive_rate,
    "rrs": rrs_rate,
    "rrsw": rrsw_rate,
    "kseq": kseq_rate,
    "race": race_rate,
    "top_and_sample": top_and_sample_rate,
    "point": point_rate,
    "coupling": coupling_bound,
}
"""The acceptance rate of every rule; ``coupling`` is a lower bound of it."""

DRAWN: dict[str, str] = {
    "rejection": "single",
    "naive": "iid",
    "rrs": "iid",
    "rrsw": "without",
    "kseq": "iid",
    "race": "iid",
    "top_and_sample": "top_and_sample",
    "point": "point",
    "coupling": "iid",
}
"""The sampling scheme of every rule's candidates, as :func:`specwb.theory.analysis.optimum` names
it."""
