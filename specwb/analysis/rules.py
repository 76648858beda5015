"""How often each verification rule goes on from one node: P(the next token is one of its k candidates), for given p and q.

All functions take ``(p, q, k)``: laws ``[..., V]`` (tensors, arrays or lists, both after temperature and filters) and the number of
children. They compute in float64 and return ``[...]``, a tensor where both laws are tensors and an array otherwise. They raise ValueError
where p or q is no law, their shapes differ, or k is not an integer >= 1. ``(x)+ = max(x, 0)`` and ``R(c) = sum (p - c q)+``.

The same numbers over fractions, by enumeration: :mod:`specwb.verify.exact`. What no rule can beat: :func:`specwb.analysis.optimum`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.analysis.acceptance import Laws, acceptance_rate
from specwb.probability import inverse_cdf
from specwb.verify.race import LEAST, race_weights

EXACT = 2**20
"""Up to so many tuples of rejected children are enumerated by :func:`rrsw_estimate`."""
_CHUNK = 2**22  # numbers in one intermediate tensor


def as_laws(p: Laws, q: Laws) -> tuple[Tensor, Tensor]:
    """p and q as float64 tensors ``[..., V]`` that sum to 1 in float64 (laws made in float32 are off by some 1e-7).

    Raises:
        ValueError: the shapes differ, or a law has NaN or negative entries or does not sum to 1 within 1e-3.
    """
    a, b = (x.detach().double() if isinstance(x, Tensor) else torch.tensor(np.asarray(x, dtype=float)) for x in (p, q))
    if a.ndim == 0 or a.shape != b.shape or not a.numel():
        raise ValueError(f"p and q must be laws over the same tokens, [..., V] each; got shapes {list(a.shape)} and {list(b.shape)}")
    b = b.to(a.device)
    for name, law in (("p", a), ("q", b)):
        total = law.sum(-1, keepdim=True)
        if not bool((law >= 0).all() & ((total - 1).abs() <= 1e-3).all()):
            raise ValueError(f"{name} must be probabilities: none negative or NaN, summing to 1 over the last dimension")
    return a / a.sum(-1, keepdim=True), b / b.sum(-1, keepdim=True)


def children(k: int) -> int:
    """k, checked to be a number of children. Raises ValueError unless it is an integer >= 1."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k, the number of children, must be an integer >= 1, got {k!r}")
    return k


def _rate(formula: Callable[..., Tensor]) -> Callable[..., Any]:
    @wraps(formula)
    def rate(p: Laws, q: Laws, k: int, **options: Any) -> Any:
        found = formula(*as_laws(p, q), children(k), **options)
        return found if isinstance(p, Tensor) and isinstance(q, Tensor) else found.cpu().numpy()[()]

    return rate


def ranked(q: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable tokens in the support of q ``[..., V]``, lowest index first among equals: ids and whether they exist ``[..., k]``."""
    order = q.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return order, q.gather(-1, order) > 0


def after_top(q: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Top-and-sample's draft law: the mask of the k - 1 most probable tokens A, and ``q' = norm(q outside A)`` (0 where nothing is left)."""
    order, real = ranked(q, k - 1)
    top = torch.zeros_like(q, dtype=torch.bool).scatter_(-1, order, real)
    left = q.masked_fill(top, 0)
    mass = left.sum(-1, keepdim=True)
    return top, left / torch.where(mass > 0, mass, 1)


# -------------------------------------------------------------------------------------------------------------- closed forms


@_rate
def rejection_rate(p: Tensor, q: Tensor, k: int) -> Tensor:
    """Token rejection of the first child alone: ``sum min(p, q)``, whatever k is.

    Source: Leviathan et al. 2211.17192. See :func:`acceptance_rate`, which also keeps fractions.
    """
    return acceptance_rate(p, q)


@_rate
def rrs_rate(p: Tensor, q: Tensor, k: int) -> Tensor:
    """Recursive rejection of k independent children: ``1 - m_{k+1}`` with ``m_1 = 1``, ``m_{j+1} = R(m_1 + .. + m_j)``.

    Source: SpecInfer 2305.09781, MCSD 2401.06706. Differs from the papers in: the scalar form, which needs no residual vectors.
    """
    c, mass = torch.zeros_like(p[..., :1]), torch.ones_like(p[..., :1])
    for _ in range(k):
        c = c + mass
        mass = (p - c * q).relu().sum(-1, keepdim=True)
    return 1 - mass[..., 0]


@_rate
def naive_rate(p: Tensor, q: Tensor, k: int) -> Tensor:
    """Drawing from p and going on if it is one of k independent children: ``sum p (1 - (1 - q)^k)``."""
    return -(p * torch.expm1(k * torch.log1p(-q))).sum(-1)


@_rate
def point_rate(p: Tensor, q: Tensor, k: int) -> Tensor:
    """The point-mass rule on the k most probable tokens of q: their mass under p. No lossless rule accepts these children more often."""
    order, real = ranked(q, k)
    return (p.gather(-1, order) * real).sum(-1)


@_rate
def top_and_sample_rate(p: Tensor, q: Tensor, k: int) -> Tensor:
    """k - 1 children are the draft's most probable tokens A, the last is drawn from ``q' = norm(q outside A)``:
    ``p(A) + sum over y not in A of min(p(y), q'(y))``, the optimum of this draft law.

    Source: Hu et al. 2502.18779 (greedy drafts).
    """
    top, rest = after_top(q, k)
    return torch.where(top, p, torch.minimum(p, rest)).sum(-1)


@_rate
def kseq_rho(p: Tensor, q: Tensor, k: int) -> Tensor:
    """The smallest valid scale of k-SEQ, rounded up: ``rho*`` in 1..k with ``1 - (1 - beta)^k = rho* beta``, ``beta = sum min(p / rho*, q)``.

    The left side falls with rho and the right side rises. Bisection keeps the upper end, at which the left side is the smaller one, until
    the two ends are neighbours in float64, and adds 1e-14 of it for the rounding of the sums: a larger rho is lossless too, a smaller one is not.

    Source: SpecTr 2310.15141. Differs from the paper in: rounding up.
    """
    low, high = torch.ones_like(p[..., :1]), torch.full_like(p[..., :1], k)
    for _ in range(64):
        rho = (low + high) / 2
        beta = torch.minimum(p / rho, q).sum(-1, keepdim=True)
        valid = _some(beta, k) <= rho * beta
        low, high = torch.where(valid, low, rho), torch.where(valid, rho, high)
    return high[..., 0] * (1 + 1e-14)


@_rate
def kseq_rate(p: Tensor, q: Tensor, k: int, rho: Any = None) -> Tensor:
    """k-SEQ on k independent children: ``a + (1 - a) sum_y res(y) (1 - (1 - r(y))^k)``.

    ``beta = sum min(p / rho, q)``; ``a = 1 - (1 - beta)^k`` is what the tests accept; ``res = norm(p - min(p / rho, q) a / beta)`` is the
    closing token's law; ``r = (q - p / rho)+ / (1 - beta)`` is the law of a rejected child, so the sum is the closing token's chance to be one
    of the children after all.

    Args:
        rho: scale ``[...]``, default :func:`kseq_rho`.
    Source: SpecTr 2310.15141; the hits of the closing token: reference code of 2602.16961.
    """
    scale = (kseq_rho(p, q, k) if rho is None else torch.as_tensor(rho, dtype=p.dtype, device=p.device))[..., None]
    passed = torch.minimum(p / scale, q)
    beta = passed.sum(-1, keepdim=True)
    some = _some(beta, k)
    left = (p - passed * some / torch.where(beta > 0, beta, 1)).relu()  # sums to 1 - a
    rejected = (q - passed).relu() / torch.where(beta < 1, 1 - beta, 1)
    return some[..., 0] + (left * _some(rejected, k)).sum(-1)


@_rate
def race_rate(p: Tensor, q: Tensor, k: int) -> Tensor:
    """The weighted race on k independent children: ``sum min(p, t) + sum_y res(y) P(rejected, y among the children)``, ``res = norm((p - t)+)``.

    One child is selected in proportion to weights w, which gives it the law t, and verified alone; the closing token then may still be one
    of the others. With ``a(x) = (1 - p(x)/t(x))+`` and all children's clocks at rates w,
    ``P(rejected, y not among them) = k integral of (sum_x a q w e^(-s w))(s) (phi(s) - q(y) e^(-s w(y)))^(k-1) ds`` (:func:`race_weights` has phi).
    Within 1e-9.

    Source: as :class:`specwb.verify.race.WeightedRace`, whose weights these are.
    """
    rows = zip(p.reshape(-1, p.shape[-1]), q.reshape(-1, p.shape[-1]), strict=True)
    return torch.stack([_race(a, b, k) for a, b in rows]).view(p.shape[:-1])


def _race(p: Tensor, q: Tensor, k: int) -> Tensor:
    (w,), (t,) = race_weights(p[None], q[None], k)
    lost = (t - p).relu()
    left = p - torch.minimum(p, t)
    # only tokens that are drafted and may come out as a closing token can be hit
    hit = (left > 0) & (q > 0)
    step = 0.375
    s = torch.arange(-30, math.log(30 / LEAST), step, dtype=p.dtype, device=p.device).exp()
    missed = torch.zeros_like(p[hit])
    for part in s.split(max(1, _CHUNK // len(q))):
        rings = q * torch.exp(-part[:, None] * w)
        lose = (rings * w * (lost / torch.where(t > 0, t, 1))).sum(1, keepdim=True)
        others = (rings.sum(1, keepdim=True) - rings[:, hit]).relu() ** (k - 1)
        missed += (step * part[:, None] * k * lose * others).sum(0)
    rejected = lost.sum()
    share = left[hit] / torch.where(rejected > 0, left.sum(), 1)
    return torch.minimum(p, t).sum() + (share * (rejected - missed).relu()).sum()


@_rate
def coupling_bound(p: Tensor, q: Tensor, k: int) -> Tensor:
    """At least so often does a token of Gumbel-coupled lists meet the target's: ``sum_y k / (sum_x max(p_x/p_y, q_x/q_y) + (k - 1)/p_y)``.

    Equality for k = 1. Sorted by p/q the inner maximum is p's before, q's after a cut, so it costs O(V log V).

    Source: list matching lemma, Rowan, Phan, Khisti 2506.05632.
    """
    order = _ratio(p, q).argsort(-1)
    p, q = p.gather(-1, order), q.gather(-1, order)
    before = q.cumsum(-1) - q
    onwards = p.flip(-1).cumsum(-1).flip(-1)
    below = q * (onwards + k - 1) + p * before
    return (k * p * q / torch.where(below > 0, below, 1)).sum(-1)


def _some(chance: Tensor, k: int) -> Tensor:
    """``1 - (1 - chance)^k``, to full precision where chance is small."""
    return -torch.expm1(k * torch.log1p(-chance.clamp_max(1)))


def _ratio(p: Tensor, q: Tensor) -> Tensor:
    """p / q, infinite where q = 0."""
    return torch.where(q > 0, p / torch.where(q > 0, q, 1), torch.inf)


# ------------------------------------------------------------------------------------------------ without replacement: no closed form


def rrsw_rate(p: Laws, q: Laws, k: int, *, samples: int = 256, seed: int = 0) -> Any:
    """Recursive rejection of k children drawn without replacement: the estimate of :func:`rrsw_estimate`, exact for k <= 2 or few tokens."""
    return rrsw_estimate(p, q, k, samples=samples, seed=seed)[0]


def rrsw_estimate(p: Laws, q: Laws, k: int, *, samples: int = 256, seed: int = 0) -> tuple[Any, Any]:
    """Recursive rejection of k children drawn without replacement, and the standard error of what is returned (0 where it is exact).

    The rate is ``1 - sum over x_1..x_{k-1} of prod_j (q_j - p_j)+(x_j) (1 - beta_k)``: all children rejected, the last one in closed form. With
    ``c_j = c_{j-1} + m_j / s_j``, ``s_j`` the mass of q not yet drawn and ``m_{j+1} = R(c_j)`` every factor is a function of one scalar.
    Up to ``EXACT`` tuples the sum is taken as it stands. Beyond, rejected children are drawn from their own law ``norm((q_j - p_j)+)``
    instead of q; the weights then telescope, and the estimate is ``1 - mean of m_{k+1}``, whose spread is only that of the ``s_j``.

    Args:
        samples: how many tuples are drawn where they are not all enumerated, >= 2. seed: of these draws.
    Returns: rate and standard error, ``[...]`` each.
    Source: MCSD 2401.06706, Sequoia 2402.12374. Differs from the papers, which give no value for it.
    """
    a, b = as_laws(p, q)
    if samples < 2:
        raise ValueError(f"samples must be >= 2, got {samples}")
    v = a.shape[-1]
    found = torch.stack([_rejected(x, y, children(k), samples, seed) for x, y in zip(a.reshape(-1, v), b.reshape(-1, v), strict=True)])
    rate, error = 1 - found[:, 0].view(a.shape[:-1]), found[:, 1].view(a.shape[:-1])
    if isinstance(p, Tensor) and isinstance(q, Tensor):
        return rate, error
    return rate.cpu().numpy()[()], error.cpu().numpy()[()]


def _rejected(p: Tensor, q: Tensor, k: int, samples: int, seed: int) -> Tensor:
    """``[2]``: the chance that all children are rejected, and its standard error."""
    held = q > 0
    beyond, p, q = p[~held].sum(), p[held], q[held]
    k = min(k, len(q))
    mass = _mass(p, q, beyond)
    if len(q) ** (k - 1) <= EXACT:
        return torch.stack([_enumerated(p, q, k, mass), p.new_zeros(())])
    draws = torch.rand(samples, k - 1, dtype=p.dtype, generator=torch.Generator().manual_seed(seed)).to(p.device)
    values = torch.cat([_drawn(p, q, mass, u) for u in draws.split(max(1, _CHUNK // len(q)))])
    return torch.stack([values.mean(), values.std() / samples**0.5])


def _mass(p: Tensor, q: Tensor, beyond: Tensor) -> Callable[[Tensor], Tensor]:
    """R for any scalars ``c [n]``, by prefix sums over p/q; ``beyond`` is p's mass where q = 0."""
    ratio, order = (p / q).sort()
    ends = [torch.cat([law[order].flip(0).cumsum(0).flip(0), law.new_zeros(1)]) for law in (p, q)]

    def mass(c: Tensor) -> Tensor:
        first = torch.searchsorted(ratio, c, right=True)
        return (ends[0][first] - c * ends[1][first]).relu() + beyond

    return mass


def _enumerated(p: Tensor, q: Tensor, k: int, mass: Callable[[Tensor], Tensor]) -> Tensor:
    """One entry a tuple of rejected children so far: its chance, c, m, what is left of q and its mass."""
    chance, m, c = p.new_ones(1), p.new_ones(1), p.new_zeros(1)
    left, rest = q[None], p.new_ones(1)
    for j in range(1, k):
        step = c + m / rest
        after = mass(step)
        loss = ((step - c)[:, None] * left - (p - c[:, None] * q).relu()).relu()
        row, x = (loss * (after > 0)[:, None]).nonzero(as_tuple=True)
        # the mass that stays is a sum over what stays: of an overconfident q a difference would keep no digit
        top = left.argmax(-1)
        others = left.scatter(-1, top[:, None], 0).sum(-1)
        rest = torch.where(x == top[row], others[row], rest[row] - left[row, x])
        chance, m, c = chance[row] * loss[row, x] / m[row], after[row], step[row]
        if j + 1 < k:  # the last child needs no more than the mass
            left = left[row].scatter(-1, x[:, None], 0)
    return (chance * mass(c + m / rest) / m).sum()


def _drawn(p: Tensor, q: Tensor, mass: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    """``m_{k+1}`` of one tuple of rejected children a row of uniforms ``u [n, k - 1]``."""
    left = q.repeat(len(u), 1)
    m, c = p.new_ones(len(u)), p.new_zeros(len(u))
    for j in range(u.shape[1] + 1):
        step = c + m / left.sum(-1)
        if j < u.shape[1]:
            loss = ((step - c)[:, None] * left - (p - c[:, None] * q).relu()).relu()
            left.scatter_(-1, inverse_cdf(loss, u[:, j])[:, None], 0)
        m, c = mass(step), step
    return m


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
"""Rule -> its acceptance rate; ``coupling`` is a lower bound of it."""

DRAWN: dict[str, str] = {
    "rejection": "single", "naive": "iid", "rrs": "iid", "rrsw": "without", "kseq": "iid", "race": "iid", "top_and_sample": "top_and_sample",
    "point": "point", "coupling": "iid",
}  # fmt: skip
"""Rule -> how its candidates are drawn, as :func:`specwb.analysis.optimum` names it."""
