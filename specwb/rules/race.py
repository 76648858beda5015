"""The weighted race: two candidates verified at the optimum, more independent ones close to it, at
a cost that is nearly linear in the vocabulary.

In plain Python, with the chance that each candidate has to be selected and the distribution t of
the selected one, which follow from the weights of :func:`race_weights` or from
:func:`pair_selection`; it returns the accepted token, or None and the weights from which the bonus
token is drawn::

    def race(p, q, candidates, u, chances, t):
        point, below = u[0] * sum(chances), 0
        for x, chance in zip(candidates, chances):
            below += chance
            if point < below:
                break
        if u[1] * t[x] < p[x]:
            return x, None
        return None, [max(a - b, 0) for a, b in zip(p, t)]
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from specwb.core.flow import Draft, RuleMismatch, Scheme, Scores
from specwb.core.tree import Limits
from specwb.rules.rule import Decision, NodeRule, Visit, first

CELLS, SPAN = 512, 8.0
"""Tokens share a weight where log(p / q), cut to -SPAN .. SPAN, falls into the same of so many
cells. A vocabulary up to that size has no cells."""
LEAST = 1e-7
"""Weights stay within LEAST .. 1 / LEAST, where their mean under q is 1."""
NEGLIGIBLE = 1e-13
"""Of a pair, a token of less than NEGLIGIBLE times the rest of q is selected only if its p/q is the
higher."""


class WeightedRace(NodeRule):
    """Select one of the children with probability proportional to ``w(x_j)``; accept it with
    ``min(1, p(x) / t(x))``, t the distribution of the selected one; otherwise draw the bonus token
    from ``(p - t)+``.

    Where nodes have two children at most, :func:`pair_selection` selects one instead.

    Exact for independent candidates, and for up to two a node drawn without replacement, up to the
    error of t, below 1e-10 in total variation: with weights it is an integral, see
    :func:`race_weights`. It is the rule for a single draft, applied to the distribution of the
    selected child (theorem 1.1, theory/01_single_draft.md). The acceptance is ``sum min(p, t)``: of
    two the optimum (theorem 5.11); with the fitted w, 95 to 100 percent of it where it was measured
    (the best w attain it, theorem 5.10).

    A node takes two uniforms: one selects, one accepts. A repeated child counts as often as it was
    drawn. A bonus token that equals a child which was not selected ends the step all the same;
    continuing below it would add 1e-4 to the acceptance.

    Cost: of two one sort and some forty passes over a row of p and q; of more a few passes and the
    fit, some half a million exponentials per row at most, whatever the vocabulary.

    Source: the decomposition into a selection and a single draft is that of Khisti et al.
    (2410.18234); weights, integral and closed form are our own.
    """

    name = "race"
    in_turn = False
    schemes = frozenset({Scheme.IID, Scheme.IID_PATHS, Scheme.WITHOUT_REPLACEMENT})
    fixed_number = True
    distinct = False  # the candidates of the draft at hand were drawn without replacement

    def check(self, scheme: Scheme, limits: Limits, independent: bool = True) -> None:
        super().check(scheme, limits, independent)
        if scheme is Scheme.WITHOUT_REPLACEMENT and limits.children > 2:
            raise RuleMismatch(
                "rule 'race' takes at most two candidates per node if drawn without replacement"
                f"; this tree has up to {limits.children}: draw them with replacement, or take rrsw"
            )

    def visits(
        self, draft: Draft, scores: Scores, u: Tensor, start: Tensor | None = None
    ) -> Iterator[Visit]:
        rule = copy.copy(self)
        rule.distinct = draft.scheme is Scheme.WITHOUT_REPLACEMENT
        return super(WeightedRace, rule).visits(draft, scores, u, start)

    def draws(self, children: int) -> int:
        return 2 * min(children, 1)

    def node(self, p: Tensor, q: Tensor | None, tokens: Tensor, ok: Tensor, u: Tensor) -> Decision:
        assert q is not None
        there = ok & (q.gather(1, tokens) > 0)
        count = there.sum(1)
        if tokens.shape[1] <= 2:
            pair = torch.stack([tokens[:, 0], tokens[:, -1]], 1)
            chance, t = pair_selection(p, q, pair[:, None], self.distinct)
            both = (count == 2)[:, None]
            chances = torch.where(both, torch.cat([chance, 1 - chance], 1), 1)[:, : tokens.shape[1]]
            t = torch.where(both, t, q)
        else:
            w, t = race_weights(p, q, count)
            chances = w.gather(1, tokens)
        weights = torch.where(there, chances, 0).cumsum(1)
        selected = first(u[:, :1] * weights[:, -1:] < weights)
        x = tokens.gather(1, selected.clamp_min(0)[:, None])
        tested = selected >= 0
        hit = tested & (u[:, 1] * t.gather(1, x).squeeze(1) < p.gather(1, x).squeeze(1))
        choice, rejected = torch.where(hit, selected, -1), tested & ~hit
        if not self.some(rejected):
            return choice, p
        residual = (p.double() - t).clamp_min_(0).to(p.dtype)
        return choice, self.put(p, residual, rejected & (residual.sum(1) > 0))


def race_weights(p: Tensor, q: Tensor, k: Tensor | int, steps: int = 12) -> tuple[Tensor, Tensor]:
    """Weights for k independent draws from q, and the distribution of the one that is selected in
    proportion to them.

    Let draw j ring at an Exp(w(x_j)) time: the first to ring is the one selected. With
    ``phi(s) = sum_y q(y) e^(-s w(y))``

        t(x) = k q(x) w(x) integral over s > 0 of e^(-s w(x)) phi(s)^(k-1) ds.

    w starts at p/q and follows ``w <- w p / t``; the w of largest ``sum min(p, t)`` is kept. Since
    t/q is a function of w, and the new w one of w and p/q, all of this is about p/q alone: tokens
    are put into cells of log(p/q) and the iteration runs over cells.

    Args:
        p, q: ``[B,V]``, of any floating type.
        k: ``[B]`` or one number, >= 1 (rows with 0 are done as with 1).
        steps: of the iteration.
    Returns:
        w and t ``[B,V]`` in float64. ``|sum t - 1|`` and the total variation between t and the true
        distribution of the selected token are below 1e-10: the trapezoid rule in log s with step
        0.375 is off by exp(-pi^2 / 0.375) = 4e-12, and below s = e^-30 there is less than k e^-30.
    """
    p, q = p.double(), q.double()
    # float32 probabilities sum to 1 up to some 1e-7, and t is about what was drawn
    q = q / q.sum(1, keepdim=True)
    rows, v = p.shape
    count = torch.as_tensor(k, device=p.device).expand(rows).clamp_min(1).to(p.dtype)
    ratio = p / torch.where(q > 0, q, 1)
    if v <= CELLS:
        cell, have, want = None, q, torch.where(q > 0, p, 0)
    else:
        place = ratio.log().nan_to_num(0, SPAN, -SPAN).clamp(-SPAN, SPAN)
        cell = ((place + SPAN) * (CELLS / (2 * SPAN))).long().clamp_max(CELLS - 1)
        have = torch.zeros(rows, CELLS, dtype=p.dtype, device=p.device).scatter_add(1, cell, q)
        want = torch.zeros_like(have).scatter_add(1, cell, torch.where(q > 0, p, 0))
    w = best = _bounded(want / torch.where(have > 0, have, 1), have)
    most = torch.full_like(have[:, 0], -1)
    for _ in range(steps):
        t = have * _lift(w, have, count, 0.75)
        accepted = torch.minimum(want, t).sum(1)
        best, most = torch.where((accepted > most)[:, None], w, best), torch.maximum(accepted, most)
        w = _bounded(w * want / torch.where(t > 0, t, 1), have)
    lift = _lift(best, have, count, 0.375)
    if cell is not None:
        best, lift = best.gather(1, cell), lift.gather(1, cell)
    return best, q * lift


def pair_selection(
    p: Tensor, q: Tensor, pairs: Tensor, distinct: bool = True
) -> tuple[Tensor, Tensor]:
    """The selection of one of two draws whose ``sum min(p, t)`` is the optimum of all lossless
    rules: its chances, and the distribution t of the selected token.

    Tokens are in ascending order of p/q. With ``o = q / (1 - q)`` without replacement, ``o = q``
    with it, the tokens i before j are drawn, in either order, with probability
    ``o_i q_j + q_i o_j``, and i is selected with

        F_ij = o_i q_j e^(s_i - s_j)

    of it, j with the rest. What the first n tokens get of their pairs with later ones is a product
    ``X_n Y_n``, ``X_n = sum_(i <= n) o_i e^(s_i)`` and ``Y_n = sum_(j > n) q_j e^(-s_j)``. It has
    to be ``G_n``, the mass of the first n under the best t less the probability that both draws are
    among them: a quadratic equation for ``o_n e^(s_n) / X_(n-1)``, so s takes one cumulative sum.
    t is computed from the s in use. With e, the distribution of the later token of the pair,

        t_n = e_n + o_n e^(s_n) Y_n - q_n e^(-s_n) X_(n-1).

    Args:
        p, q: ``[B,V]``, of any floating type; two tokens or more have q > 0.
        pairs: ``[B,n,2]``, pairs of tokens.
        distinct: drawn without replacement, not independently.
    Returns:
        ``[B,n]``, the chance of the first token of each pair, and t ``[B,V]``, in float64. The
        error of t in total variation, and of its sum, is below 1e-12 for 2000 tokens and 1e-10 for
        50,000, as measured; ``sum min(p, t)`` is within 1e-10 of the optimum.
    Source: our own, theorem 5.11 (theory/05_optimum.md).
    """
    p, q = (x.double() / x.sum(1, keepdim=True, dtype=torch.double) for x in (p, q))
    # 1 - q of the heaviest token is a sum, as it may be small
    top = q.argmax(1, keepdim=True)
    rest = (1 - q).scatter(1, top, q.scatter(1, top, 0).sum(1, keepdim=True))
    rest = rest if distinct else torch.ones_like(q)
    order = torch.where(q > 0, p / q, torch.inf).argsort(dim=1, stable=True)
    p, q, rest = (x.gather(1, order) for x in (torch.where(q > 0, p, 0), q, rest))
    o = q / torch.where(rest > 0, rest, 1)
    later = q * _before(o.cumsum(1)) + o * _before(q.cumsum(1)) + (0 if distinct else q**2)
    s = torch.where(q > 0, _log_growth(p, q, o, later) - o.log(), 0)
    # s_i - s_j <= log(2 - q_i) makes F_ij a part of the pair's probability. It holds but for
    # rounding, which leaves any s of negligible tokens: theirs must not raise the others'
    large = q > NEGLIGIBLE * rest.amin(1, keepdim=True)
    s = torch.maximum(s, torch.where(large, s - rest.log1p(), -torch.inf).cummax(1).values)
    lower = torch.where(large, s, -torch.inf)
    x, y = o.log() + lower, q.log() - s
    x_before = _before(x.logcumsumexp(1), -torch.inf)
    y_after = _before(y.flip(1).logcumsumexp(1), -torch.inf).flip(1)
    t = (later + (x + y_after).exp() - (y + x_before).exp()).clamp_min(0)
    at = torch.arange(q.shape[1], device=q.device).expand_as(order)
    place = torch.empty_like(order).scatter_(1, order, at)
    places = place.gather(1, pairs.flatten(1)).view_as(pairs)
    i, j = places.amin(2), places.amax(2)
    share = (lower.gather(1, i) - s.gather(1, j)).exp()
    share = (share / (1 + rest.gather(1, i) / rest.gather(1, j))).clamp_max(1)
    return torch.where(places[..., 0] == i, share, 1 - share), t.gather(1, place)


def _log_growth(p: Tensor, q: Tensor, o: Tensor, later: Tensor) -> Tensor:
    """``log o_n e^(s_n)`` of :func:`pair_selection`, ``[B,V]``, where ``o_1 e^(s_1) = 1``."""
    over = (later - p).cumsum(1)
    raised = over.clamp_min(0)
    # what the best t adds to p's mass of the first n
    added = torch.minimum(raised.cummax(1).values, raised.flip(1).cummax(1).values.flip(1))
    g = added - over
    past, o_past, (p, q, o) = g[:, :-1], o.cumsum(1)[:, :-1], (x[:, 1:] for x in (p, q, o))
    b = q * o + g[:, 1:] - past
    past = past.clamp_min(NEGLIGIBLE**2)
    root = torch.hypot(b, 2 * past.sqrt() * q.sqrt() * o.sqrt())
    growth = torch.where(b >= 0, (b + root) / (2 * past), 2 * q * o / (root - b))
    # tokens with p = 0 may be in any order: with one s for all, sums of s stay small
    growth = torch.where(p > 0, growth, o / o_past).clamp(1e-300, 1e300)
    return pad(pad(growth.log1p().cumsum(1), (1, 0))[:, :-1] + growth.log(), (1, 0))


def _before(sums: Tensor, nothing: float = 0) -> Tensor:
    """Cumulative sums ``[B,V]`` without the last summand."""
    return pad(sums[:, :-1], (1, 0), value=nothing)


def _bounded(w: Tensor, q: Tensor) -> Tensor:
    mean = (q * w).sum(1, keepdim=True)
    return torch.where(mean > 0, w / torch.where(mean > 0, mean, 1), 1).clamp(LEAST, 1 / LEAST)


def _lift(w: Tensor, q: Tensor, k: Tensor, step: float) -> Tensor:
    """t / q: ``k w integral of e^(-s w) phi(s)^(k-1) ds``, by the trapezoid rule in log s,
    ``[B,n]``."""
    highest = math.log(30 / LEAST)  # e^(-s w) is below 1e-13 beyond, for every w
    s = torch.arange(-30, highest, step, dtype=w.dtype, device=w.device).exp()
    held = torch.exp(-s[:, None] * w[:, None])  # [B,s,n]
    phi = (held * q[:, None]).sum(2)
    inner = step * s * phi ** (k - 1)[:, None]
    return torch.where((k == 1)[:, None], 1, k[:, None] * w * (inner[:, None] @ held).squeeze(1))
