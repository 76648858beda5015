"""The most that any lossless rule can accept at one node: optimal transport from drafts to tokens.

It depends on how the candidates, the node's children, are drawn. The best rule is the best coupling
of the tuple of children X with the next token Y ~ p, and its value is a minimum cut:

    alpha* = max over couplings of P(Y in X) = min over sets S of tokens of  p(S) + 1 - Q(S),
    Q(S) = P(all children lie in S).

Sampling schemes:

* ``single``: one child, drawn from q.
* ``iid``: k independent children.
* ``without``: k children, one after another without replacement.
* ``top_and_sample``: the k - 1 most probable tokens and one drawn from the rest.
* ``point``: the k most probable tokens.

Where q has fewer than k tokens the last three have as many children as there are.

Source: SpecTr 2310.15141 (transport), Hu et al. 2502.18779 (the subset form). Proof:
theory/05_optimum.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.core.errors import ArgumentError, SpecwbError
from specwb.theory import exact
from specwb.theory.analysis.acceptance import Distribution
from specwb.theory.analysis.rules import (
    any_of,
    as_probabilities,
    check_children,
    like_given,
    likelihood_ratio,
    split_top,
    top_tokens,
)

_CHUNK = 2**22  # numbers in one intermediate tensor


class TransportError(SpecwbError, ArithmeticError):
    """A linear program that was not solved."""


def optimum(p: Distribution, q: Distribution, k: int, scheme: str = "iid") -> Any:
    """alpha* by the prefix formula: the best S is a prefix of the tokens sorted by ascending p/q.

    So V + 1 sets are looked at. ``1 - Q(S)`` is computed as such, from sums of what lies outside S,
    so that nothing cancels. With ``o = q(not in S)`` it is

    * ``iid``: ``1 - (1 - o)^k``; for k = 2 the formula of Khisti et al. 2410.18234 for two
      identical drafts.
    * ``without``: ``o (1 + integral over t > 0 of e^-t (e_1 + .. + e_{k-1}))``, ``e_j`` the
      elementary symmetric polynomials of ``e^(q t) - 1`` over S. (Let token x arrive at an
      Exp(q(x)) time; the children are the first k arrivals; ``e^-t e_j`` is the probability that at
      time t exactly j tokens have arrived and all lie in S.) The trapezoid rule in log t is off by
      less than 1e-12.
    * ``top_and_sample``: 1 unless S contains the fixed tokens, then ``q'(not in S)``, q' being what
      the last child is drawn from.
    * ``point``: 1 unless S contains all children, then 0.

    Args:
        k: The number of children; ``single`` has one, whatever k is.
    Returns:
        alpha* ``[...]`` in float64; a tensor where both p and q are tensors.
    Raises:
        ValueError: An unknown scheme, or as the rates of :mod:`specwb.theory.analysis.rules`.
    """
    a, b = as_probabilities(p, q)
    # a token with q = 0 is sorted last: adding it to S costs and gains nothing
    sets, _ = _scheme(scheme)
    key, drawn_from, miss = sets(a, b, check_children(k))
    order = key.argsort(-1)
    a, drawn_from, key = (x.gather(-1, order) for x in (a, drawn_from, key))
    p_of_prefix = torch.cat([torch.zeros_like(a[..., :1]), a.cumsum(-1)], -1)
    result = (p_of_prefix + miss(drawn_from, key)).amin(-1).clamp_max(1)
    return like_given(p, q, result)


_Miss = Callable[[Tensor, Tensor], Tensor]
"""(the distribution drawn from, the sort key), both in order ``[..., V]`` -> ``1 - Q`` of every
prefix ``[..., V + 1]``."""
_Sets = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, _Miss]]
"""(p, q, k) -> what the tokens are sorted by, the distribution drawn from, how much of it misses
S."""


def _single(p: Tensor, q: Tensor, k: int) -> tuple[Tensor, Tensor, _Miss]:
    return _iid(p, q, 1)


def _iid(p: Tensor, q: Tensor, k: int) -> tuple[Tensor, Tensor, _Miss]:
    return likelihood_ratio(p, q), q, lambda q, key: any_of(_outside(q), k)


def _without(p: Tensor, q: Tensor, k: int) -> tuple[Tensor, Tensor, _Miss]:
    def miss(q: Tensor, key: Tensor) -> Tensor:
        if k == 1:
            return _outside(q)
        rows = [_first_arrivals(row, k) for row in q.reshape(-1, q.shape[-1])]
        return torch.stack(rows).view(*q.shape[:-1], -1)

    return likelihood_ratio(p, q), q, miss


def _top_and_sample(p: Tensor, q: Tensor, k: int) -> tuple[Tensor, Tensor, _Miss]:
    top, rest = split_top(q, k)

    def miss(rest: Tensor, key: Tensor) -> Tensor:
        return torch.where(_lacks(key < 0), 1, _outside(rest))

    return likelihood_ratio(p, rest).masked_fill(top, -1), rest, miss


def _point(p: Tensor, q: Tensor, k: int) -> tuple[Tensor, Tensor, _Miss]:
    order, exists = top_tokens(q, k)
    top = torch.zeros_like(q, dtype=torch.bool).scatter_(-1, order, exists)
    return torch.where(top, -1.0, 1.0).to(p), q, lambda q, key: _lacks(key < 0).to(q)


SCHEMES: dict[str, tuple[_Sets, exact.SamplingScheme]] = {
    "single": (_single, lambda q, k: exact.iid(q, 1)),
    "iid": (_iid, exact.iid),
    "without": (_without, exact.without_replacement),
    "top_and_sample": (_top_and_sample, exact.top_and_sample),
    "point": (_point, exact.top),
}
"""By name, the prefixes of a scheme, and all its tuples of children."""


def _scheme(name: str) -> tuple[_Sets, exact.SamplingScheme]:
    if name not in SCHEMES:
        raise ArgumentError(f"unknown sampling scheme {name!r}; known: {', '.join(SCHEMES)}")
    return SCHEMES[name]


def _outside(q: Tensor) -> Tensor:
    """``[..., V + 1]``: the mass that is not in the first n tokens, as a sum."""
    return torch.cat([q.flip(-1).cumsum(-1).flip(-1), torch.zeros_like(q[..., :1])], -1)


def _lacks(fixed: Tensor) -> Tensor:
    """``[..., V + 1]``: do the first n tokens lack one of ``fixed``?"""
    return _outside(fixed.to(torch.float64)) > 0


def _first_arrivals(q: Tensor, k: int) -> Tensor:
    """``1 - P(the first k arrivals are among the first n tokens)`` for n = 0..V; ``q [V]``.

    The k - 1 largest tokens are kept apart as k - 1 coins, because only they can leave next to no
    mass: ``e^-t e_j`` is the sum over m of P(j - m of the coins in S have come up and none outside
    S) times ``e^(-r t) e_m(the other tokens of S)``, r the mass of the others. Every number is
    positive and none is larger than 1 by more than the number of sets it counts, however uneven q
    is.
    """
    k = min(k, int((q > 0).sum()))
    outside = _outside(q)
    if k < 2:
        return outside
    coins = q.topk(k - 1).indices
    others = q.scatter(0, coins, 0)
    r = others.sum()
    low, high, step = -20.0, float(np.log(60.0 / r.item())), 0.2
    times = torch.arange(low, high, step, dtype=q.dtype, device=q.device).exp()
    prefix_length = torch.arange(len(q) + 1, device=q.device)
    integral = torch.zeros_like(outside)
    for t in times[:, None].split(max(1, _CHUNK // len(q))):
        # e_m[:, n]: e^(-r t) times the m-th symmetric polynomial of the other tokens
        growth = torch.expm1((others * t).clamp_max(700))  # beyond, e^-rt makes it 0
        e_m = [(-r * t).exp().expand(-1, len(q) + 1)]
        for _ in range(k - 1):
            e_m.append(torch.nn.functional.pad((growth * e_m[-1][:, :-1]).cumsum(-1), (1, 0)))
        # up[j][:, n]: the probability that j coins have come up, all among the first n tokens
        up = [torch.ones_like(e_m[0])]
        for coin in coins.tolist():
            stays_down = (-q[coin] * t).exp()
            comes_up = -torch.expm1(-q[coin] * t) * (prefix_length > coin)
            zero = torch.zeros_like(up[0])
            up = [
                stays_down * a + comes_up * b for a, b in zip([*up, zero], [zero, *up], strict=True)
            ]
        arrived = sum(up[j - m] * e_m[m] for j in range(1, k) for m in range(j + 1))
        integral += (t * arrived).sum(0)
    return (outside * (1 + step * integral)).clamp_max(1)


def optimum_lp(p: Distribution, q: Distribution, k: int, scheme: str = "iid") -> float:
    """alpha* as the linear program that defines it: the largest P(Y in X) over all joint
    distributions of the tuple X and the token Y.

    The program has a variable for every tuple and token, V^(k + 1) at most. It is solved by HiGHS
    through scipy.

    Raises:
        TransportError: The program was not solved.
    """
    from scipy.sparse import eye_array, kron, vstack

    a, b = as_probabilities(p, q)
    row = exact.norm([Fraction(x) for x in b.tolist()])
    _, draw = _scheme(scheme)
    tuples = draw(row, check_children(k))
    n, v = len(tuples), len(a)
    hits = np.zeros((n, v))  # is token y in tuple i?
    for i, (tokens, _) in enumerate(tuples):
        hits[i, list(tokens)] = 1
    sum_over_tokens = kron(eye_array(n), np.ones((1, v)))
    sum_over_tuples = kron(np.ones((1, n)), eye_array(v))
    return -_solved(
        -hits.ravel(),
        A_eq=vstack([sum_over_tokens, sum_over_tuples]).tocsr(),
        b_eq=[*(float(probability) for _, probability in tuples), *a.tolist()],
    )


def tree_optimum(
    target: exact.Model, draft: exact.Model, parents: Sequence[int], scheme: str = "without"
) -> float:
    """The most draft tokens that any lossless rule accepts in one step over a tree, on average
    (theorem 7.9); of depth 1 it is alpha*, of a chain block verification's.

    A linear program in ``a(D, v)``, the probability that D is drafted and the kept path goes
    through its node v, which for the root is P(D). With ``A(v) = sum over D of a(D, v)``::

        maximise    sum over D and nodes v but the root of  a(D, v)
        where       sum over children c of v in D of a(D, c)  <=  a(D, v)
                    A(v y)  <=  p(y | v) A(v).

    It has a variable for every draft and node, so V and the tree must be small. Drafts of equal
    nodes are one. HiGHS solves it, through scipy.

    Args:
        target, draft: distributions of the next token after a path, as fractions.
        parents: of the nodes, -1 for the root; each has its children drawn by ``scheme``, "iid" or
            "without".
    Raises:
        ArgumentError: ``parents`` is no tree, or the scheme is another.
        TransportError: the program was not solved.
    """
    from scipy.sparse import dok_array

    if scheme not in ("iid", "without"):
        raise ArgumentError(f"scheme must be iid or without, got {scheme!r}")
    _, draw = SCHEMES[scheme]
    drafts: dict[frozenset[exact.Tokens], Fraction] = {}
    for paths, chance in exact.trees(draw, draft, parents):
        nodes = frozenset(path for path in paths if path)
        drafts[nodes] = drafts.get(nodes, Fraction(0)) + chance
    variables = [(d, v) for d in drafts for v in d]
    if not variables:  # of the root alone
        return 0.0
    following: dict[exact.Tokens, set[exact.Tokens]] = {}  # children in any draft
    for _, v in variables:
        following.setdefault(v[:-1], set()).add(v)
    # left sides of the inequalities, each by its draft and node, or by its node
    terms: dict[Any, dict[int, float]] = {}
    for column, (d, v) in enumerate(variables):
        for inequality in ((d, v[:-1]), v):
            terms.setdefault(inequality, {})[column] = 1.0
        terms.setdefault((d, v), {})[column] = -1.0
        for child in following.get(v, ()):
            terms.setdefault(child, {})[column] = -float(target(v)[child[-1]])
    bounds: dict[Any, float] = {(d, ()): float(chance) for d, chance in drafts.items()}
    bounds |= {v: float(target(())[v[0]]) for v in following[()]}
    matrix = dok_array((len(terms), len(variables)))
    for row, of_row in enumerate(terms.values()):
        for column, value in of_row.items():
            matrix[row, column] = value
    at_most = [bounds.get(inequality, 0.0) for inequality in terms]
    return -_solved(-np.ones(len(variables)), A_ub=matrix.tocsr(), b_ub=at_most)


def _solved(costs: Any, **program: Any) -> float:
    """The least value of a linear program whose variables are not negative."""
    from scipy.optimize import linprog

    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    best = linprog(costs, **program, method="highs", options=tight)
    if not best.success:
        raise TransportError(f"the linear program was not solved: {best.message}")
    return float(best.fun)
