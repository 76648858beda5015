"""The most that any lossless rule can accept at one node, given how its candidates are drawn: optimal transport from drafts to tokens.

The best rule is the best coupling of the tuple of children X with the next token Y ~ p, and its value is a minimum cut:

    alpha* = max over couplings of P(Y in X) = min over sets S of tokens of  p(S) + 1 - Q(S),     Q(S) = P(all children lie in S).

Draft laws: ``single`` (one child of q), ``iid`` (k independent ones), ``without`` (k one after another without replacement),
``top_and_sample`` (the k - 1 most probable ones and one drawn from the rest), ``point`` (the k most probable ones).
Where q has fewer than k tokens the last three have as many children as there are.

Source: SpecTr 2310.15141 (transport), Hu et al. 2502.18779 (the subset form). Proof: theory/05_optimum.md.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.analysis.acceptance import Laws
from specwb.analysis.rules import after_top, as_laws, children, ranked
from specwb.verify import exact

_CHUNK = 2**22  # numbers in one intermediate tensor


def optimum(p: Laws, q: Laws, k: int, law: str = "iid") -> Any:
    """alpha* by the prefix formula: the best S is a beginning of the tokens sorted by ascending p/q, so V + 1 sets are looked at.

    ``1 - Q(S)`` is computed as such, from sums of what lies outside S, so that nothing cancels: with ``o = q(not in S)``

    * ``iid``: ``1 - (1 - o)^k``; for k = 2 the formula of Khisti et al. 2410.18234 for two identical drafts.
    * ``without``, k = 2: ``o (1 + sum over S of q / (1 - q))``. k >= 3: ``o (1 + integral over t > 0 of e^-t (e_1 + .. + e_{k-1}))``, ``e_j``
      the elementary symmetric polynomials of ``e^(q t) - 1`` over S. (Let token x arrive at an Exp(q(x)) time; the children are the first k
      arrivals; ``e^-t e_j`` is the chance that at time t exactly j tokens have arrived and all lie in S.) The trapezoid rule in log t
      is off by less than 1e-12.
    * ``top_and_sample``: 1 unless S contains the fixed tokens, then ``q'(not in S)``. ``point``: 1 unless S contains all children, then 0.

    Args:
        p, q: laws ``[..., V]``. k: number of children; ``single`` takes one, whatever k is. law: how they are drawn.
    Returns: ``[...]``, float64; a tensor where both laws are tensors.
    Raises:
        ValueError: an unknown law, or as the rates of :mod:`specwb.analysis.rules`.
    """
    a, b = as_laws(p, q)
    key, drawn, miss = _sets(law)(a, b, children(k))
    order = key.argsort(-1)
    a, drawn = a.gather(-1, order), drawn.gather(-1, order)
    inside = torch.cat([torch.zeros_like(a[..., :1]), a.cumsum(-1)], -1)
    found = (inside + miss(drawn, key.gather(-1, order))).amin(-1).clamp_max(1)
    return found if isinstance(p, Tensor) and isinstance(q, Tensor) else found.cpu().numpy()[()]


_Miss = Callable[[Tensor, Tensor], Tensor]
"""(what is drawn from, sort key), both in order ``[..., V]`` -> ``1 - Q`` of every beginning ``[..., V + 1]``."""


def _sets(law: str) -> Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, _Miss]]:
    """For each draft law what the tokens are sorted by, what is drawn from, and how much of it misses S."""
    if law not in LAWS:
        raise ValueError(f"unknown draft law {law!r}; known: {', '.join(LAWS)}")
    return LAWS[law]


def _single(p: Tensor, q: Tensor, k: int) -> tuple[Tensor, Tensor, _Miss]:
    return _ratio(p, q), q, lambda q, key: _outside(q)


def _iid(p: Tensor, q: Tensor, k: int) -> tuple[Tensor, Tensor, _Miss]:
    return _ratio(p, q), q, lambda q, key: -torch.expm1(k * torch.log1p(-_outside(q).clamp_max(1)))


def _without(p: Tensor, q: Tensor, k: int) -> tuple[Tensor, Tensor, _Miss]:
    def miss(q: Tensor, key: Tensor) -> Tensor:
        if k <= 2:
            return _outside(q) if k == 1 else _two(q)
        rows = [_first_arrivals(row, k) for row in q.reshape(-1, q.shape[-1])]
        return torch.stack(rows).view(*q.shape[:-1], -1)

    return _ratio(p, q), q, miss


def _top_and_sample(p: Tensor, q: Tensor, k: int) -> tuple[Tensor, Tensor, _Miss]:
    top, rest = after_top(q, k)

    def miss(rest: Tensor, key: Tensor) -> Tensor:
        return torch.where(_lacks(key < 0), 1, _outside(rest))

    return _ratio(p, rest).masked_fill(top, -1), rest, miss


def _point(p: Tensor, q: Tensor, k: int) -> tuple[Tensor, Tensor, _Miss]:
    order, real = ranked(q, k)
    top = torch.zeros_like(q, dtype=torch.bool).scatter_(-1, order, real)
    return torch.where(top, -1.0, 1.0).to(p), q, lambda q, key: _lacks(key < 0).to(q)


LAWS: dict[str, Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, _Miss]]] = {
    "single": _single,
    "iid": _iid,
    "without": _without,
    "top_and_sample": _top_and_sample,
    "point": _point,
}


def _ratio(p: Tensor, q: Tensor) -> Tensor:
    """p / q, infinite where q = 0: adding such a token to S costs and gains nothing."""
    return torch.where(q > 0, p / torch.where(q > 0, q, 1), torch.inf)


def _outside(q: Tensor) -> Tensor:
    """``[..., V + 1]``: the mass that is not in the first n tokens, as a sum."""
    return torch.cat([q.flip(-1).cumsum(-1).flip(-1), torch.zeros_like(q[..., :1])], -1)


def _lacks(fixed: Tensor) -> Tensor:
    """``[..., V + 1]``: do the first n tokens lack one of ``fixed``?"""
    return _outside(fixed.to(torch.float64)) > 0


def _two(q: Tensor) -> Tensor:
    rest = q.sum(-1, keepdim=True) - q
    # beside a token that holds nearly everything the others' mass has to be summed
    top = q.argmax(-1, keepdim=True)
    rest = rest.scatter(-1, top, q.scatter(-1, top, 0).sum(-1, keepdim=True))
    odds = torch.where(rest > 0, q / torch.where(rest > 0, rest, 1), 0)
    both = torch.cat([torch.zeros_like(q[..., :1]), odds.cumsum(-1)], -1)
    return (_outside(q) * (1 + both)).clamp_max(1)


def _first_arrivals(q: Tensor, k: int) -> Tensor:
    """``1 - P(the first k arrivals are among the first n tokens)`` for n = 0..V; ``q [V]``.

    The k - 1 largest tokens are kept apart as k - 1 coins, because only they can leave next to no mass: ``e^-t e_j`` is the sum over m of
    P(j - m of the coins in S have come up and none outside S) times ``e^(-r t) e_m(the other tokens of S)``, r the mass of the others. Every
    number is positive and none is larger than 1 by more than the number of sets it counts, however uneven q is.
    """
    k = min(k, int((q > 0).sum()))
    outside = _outside(q)
    if k < 2:
        return outside
    coins = q.topk(k - 1).indices
    light = q.scatter(0, coins, 0)
    r = light.sum()
    low, high, step = -20.0, float(np.log(60.0 / r.item())), 0.2
    nodes = torch.arange(low, high, step, dtype=q.dtype, device=q.device).exp()
    place = torch.arange(len(q) + 1, device=q.device)
    total = torch.zeros_like(outside)
    for t in nodes[:, None].split(max(1, _CHUNK // len(q))):
        grown = torch.expm1((light * t).clamp_max(700))  # beyond, e^-rt makes it 0
        symmetric = [(-r * t).exp().expand(-1, len(q) + 1)]
        up = [torch.ones_like(symmetric[0])]
        for i in coins.tolist():
            off, come = (-q[i] * t).exp(), -torch.expm1(-q[i] * t) * (place > i)
            up = [off * a + come * b for a, b in zip([*up, torch.zeros_like(up[0])], [torch.zeros_like(up[0]), *up], strict=True)]
        for _ in range(k - 1):
            symmetric.append(torch.nn.functional.pad((grown * symmetric[-1][:, :-1]).cumsum(-1), (1, 0)))
        arrived = sum(up[j - m] * symmetric[m] for j in range(1, k) for m in range(j + 1))
        total += (t * arrived).sum(0)
    return (outside * (1 + step * total)).clamp_max(1)


# ------------------------------------------------------------------------------------------------- the same by definition, for few tokens


def drafts(q: Laws, k: int, law: str = "iid") -> list[tuple[tuple[int, ...], float]]:
    """Every ordered tuple of children with its probability; ``q [V]``, V^k tuples at most.

    Raises:
        ValueError: an unknown law, or q is no law.
    """
    _sets(law)
    _, b = as_laws(q, q)
    if b.ndim != 1:
        raise ValueError(f"drafts takes one law [V], got shape {list(b.shape)}")
    row: Any = b.tolist()  # the enumerations of specwb.verify.exact take floats as well
    if law == "top_and_sample":
        _, rest = after_top(b, children(k))
        order, real = ranked(b, k - 1)
        fixed = tuple(order[real].tolist())
        return [((*fixed, x), c) for x, c in enumerate(rest.tolist()) if c > 0] or [(fixed, 1.0)]
    known = {"single": lambda: exact.iid(row, 1), "iid": lambda: exact.iid(row, k), "without": lambda: exact.without_replacement(row, k)}
    listed = known[law]() if law in known else exact.top(row, children(k))
    return [(xs, float(c)) for xs, c in listed]


def optimum_lp(p: Laws, q: Laws, k: int, law: str = "iid") -> float:
    """alpha* as the linear program that defines it: the largest P(Y in X) over all joint laws of the tuple X and the token Y.

    Args: as :func:`optimum`, for one pair of laws ``[V]``; the program has a variable for every tuple and token, V^(k + 1) at most.
    Solved by HiGHS through scipy.
    """
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack

    a, _ = as_laws(p, q)
    tuples = drafts(q, k, law)
    n, v = len(tuples), len(a)
    hits = np.zeros((n, v))
    for i, (xs, _) in enumerate(tuples):
        hits[i, list(xs)] = 1
    marginals = vstack([kron(eye_array(n), np.ones((1, v))), kron(np.ones((1, n)), eye_array(v))]).tocsr()
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    best = linprog(-hits.ravel(), A_eq=marginals, b_eq=[*(c for _, c in tuples), *a.tolist()], method="highs", options=tight)
    if not best.success:
        raise ArithmeticError(f"the linear program was not solved: {best.message}")
    return -float(best.fun)


def optimum_by_subsets(p: Laws, q: Laws, k: int, law: str = "iid") -> float:
    """alpha* as the minimum of ``p(S) + 1 - Q(S)`` over all 2^V sets S, Q by summing over the tuples; for one pair of laws ``[V]``."""
    a, _ = as_laws(p, q)
    tuples = [(set(xs), c) for xs, c in drafts(q, k, law)]
    best = 1.0
    for chosen in product((False, True), repeat=len(a)):
        tokens = {x for x, yes in enumerate(chosen) if yes}
        best = min(best, sum(a[x].item() for x in tokens) + sum(c for xs, c in tuples if not xs <= tokens))
    return best
