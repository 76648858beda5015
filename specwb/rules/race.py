"""The weighted race: independent candidates, or two without replacement, verified close to the
optimum, at a cost that is linear in the vocabulary.

In plain Python, with the weights w and the distribution t of the selected candidate that
:func:`race_weights` or :func:`pair_weights` computes; it returns the accepted token, or None and
the weights from which the bonus token is drawn::

    def race(p, q, candidates, u, w, t):
        point, below = u[0] * sum(w[x] for x in candidates), 0
        for x in candidates:
            below += w[x]
            if point < below:
                break
        if u[1] * t[x] < p[x]:
            return x, None
        return None, [max(a - b, 0) for a, b in zip(p, t)]
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from specwb.core.flow import Draft, RuleMismatch, Scheme, Scores
from specwb.core.tree import Limits
from specwb.rules.rule import Decision, NodeRule, Visit, first

CELLS, SPAN = 512, 8.0
"""Tokens share a weight where log(p / q), cut to -SPAN .. SPAN, falls into the same of so many
cells. A vocabulary up to that size has no cells."""
OWN = 128
"""Of two candidates without replacement so many tokens, the heaviest of q, have weights each."""
LEAST = 1e-7
"""Weights stay within LEAST .. 1 / LEAST, where their mean under q is 1."""


class WeightedRace(NodeRule):
    """Select one of the children with probability proportional to ``w(x_j)``; accept it with
    ``min(1, p(x) / t(x))``, t the distribution of the selected one; otherwise draw the bonus token
    from ``(p - t)+``.

    Exact for independent candidates, and for up to two a node drawn without replacement, with any
    w, up to the error of t, which is an integral: below 1e-10 in total variation, see
    :func:`race_weights`. It is the rule for a single draft, applied
    to the distribution of the selected child (theorem 1.1, theory/01_single_draft.md). The
    acceptance is ``sum min(p, t)``: with the fitted w, 95 to 100 percent of the optimum of such
    candidates where it was measured; the best w attain it (theorem 5.10).

    A node takes two uniforms: one selects, one accepts. A repeated child counts as often as it was
    drawn. A bonus token that equals a child which was not selected ends the step all the same;
    continuing below it would add 1e-4 to the acceptance.

    Cost: a few passes over a row of p and q and the fit, some half a million exponentials per row
    at most, whatever the vocabulary.

    Source: the decomposition into a selection and a single draft is that of Khisti et al.
    (2410.18234); weights and integral are our own.
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
                "rule 'race' takes up to two candidates a node that were drawn without replacement,"
                f" this tree has up to {limits.children}; draw them with replacement, or take rrsw"
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
        if self.distinct:
            w, t = pair_weights(p, q)
            t = torch.where((count == 2)[:, None], t, q)
        else:
            w, t = race_weights(p, q, count)
        weights = torch.where(there, w.gather(1, tokens), 0).cumsum(1)
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
        cell = _cells(ratio)
        have = torch.zeros(rows, CELLS, dtype=p.dtype, device=p.device).scatter_add(1, cell, q)
        want = torch.zeros_like(have).scatter_add(1, cell, torch.where(q > 0, p, 0))
    best = _fitted(lambda w: have * _lift(w, have, count, 0.75), have, want, steps)
    lift = _lift(best, have, count, 0.375)
    if cell is not None:
        best, lift = best.gather(1, cell), lift.gather(1, cell)
    return best, q * lift


def pair_weights(p: Tensor, q: Tensor, steps: int = 12) -> tuple[Tensor, Tensor]:
    """Weights for two draws from q without replacement, and the distribution of the one that is
    selected in proportion to them.

    x and y are drawn, in either order, with probability
    ``q(x) q(y) (1 / (1 - q(x)) + 1 / (1 - q(y)))``. So with ``A(s) = sum_y q(y) e^(-s w(y))`` and
    ``C(s) = sum_y q(y) / (1 - q(y)) e^(-s w(y))``

        t(x) = q(x) w(x) integral over s > 0 of e^(-s w(x)) (A(s) / (1 - q(x)) + C(s)) ds
               - q(x)^2 / (1 - q(x)),

    whose last term is y = x. In a large vocabulary the most probable tokens under q have a weight
    each, and the others one for each cell of log(p/q), as in :func:`race_weights`.

    Args and returns: as there; where q has one token, t is q.
    """
    p, q = p.double(), q.double()
    q = q / q.sum(1, keepdim=True)
    # 1 - q of the heaviest token is a sum, and the sums that it meets are without it
    top = q.argmax(1, keepdim=True)
    rest = (1 - q).scatter(1, top, q.scatter(1, top, 0).sum(1, keepdim=True))
    odds = q / torch.where(rest > 0, rest, 1)
    ratio = p / torch.where(q > 0, q, 1)
    if q.shape[1] <= CELLS:
        cell = torch.arange(q.shape[1], device=q.device).expand_as(q)
    else:
        own = torch.arange(OWN, device=q.device).expand(len(q), -1)
        cell = (_cells(ratio) + OWN).scatter(1, q.topk(OWN, 1).indices, own)
    size = q.shape[1] if q.shape[1] <= CELLS else CELLS + OWN
    have, odd, want, twice = (
        torch.zeros(len(q), size, dtype=q.dtype, device=q.device).scatter_add(1, cell, x)
        for x in (q, odds, torch.where(q > 0, p, 0), q * odds)
    )
    heavy = cell.gather(1, top)
    twice = twice.scatter(1, heavy, 0)
    integrals = partial(_pair_integrals, heavy=heavy, have=have, odd=odd)

    def selected(w: Tensor) -> Tensor:
        a, c = integrals(w, step=0.75)
        return (odd * a + have * c - twice).clamp_min(0)

    best = _fitted(selected, have, want, steps)
    a, c = (x.gather(1, cell) for x in integrals(best, step=0.3))
    t = odds * a + q * c - (q * odds).scatter(1, top, 0)
    return best.gather(1, cell), torch.where(rest.gather(1, top) > 0, t.clamp_min(0), q)


def _pair_integrals(
    w: Tensor, step: float, heavy: Tensor, have: Tensor, odd: Tensor
) -> tuple[Tensor, Tensor]:
    """``w integral of e^(-s w) A(s) ds`` and that of C, ``[B,n]``; of the class ``heavy [B,1]``,
    which is one token, without that token in A and C."""
    # C is up to 1 / (1 - q of the heaviest): so much more is missing below the first s
    s = _nodes(w, step, lowest=-50)
    held = torch.exp(-s[:, None] * w[:, None])  # [B,s,n]
    its = held.gather(2, heavy[:, None].expand(-1, len(s), -1))[..., 0]
    found = []
    for mass in (have, odd):
        others = (held @ mass.scatter(1, heavy, 0)[:, :, None])[..., 0]  # [B,s]
        inner = step * s * (others + its * mass.gather(1, heavy))
        alone = (step * s * others * its).sum(1, keepdim=True)
        found.append(w * (inner[:, None] @ held)[:, 0].scatter(1, heavy, alone))
    return found[0], found[1]


def _cells(ratio: Tensor) -> Tensor:
    """The cells of tokens, by their log(p/q)."""
    place = ratio.log().nan_to_num(0, SPAN, -SPAN).clamp(-SPAN, SPAN)
    return ((place + SPAN) * (CELLS / (2 * SPAN))).long().clamp_max(CELLS - 1)


def _fitted(selected: Callable[[Tensor], Tensor], have: Tensor, want: Tensor, steps: int) -> Tensor:
    """Weights ``[B,n]`` with which what is selected, of q's mass ``have``, comes near ``want``,
    p's."""
    w = best = _bounded(want / torch.where(have > 0, have, 1), have)
    most = torch.full_like(have[:, 0], -1)
    for _ in range(steps):
        t = selected(w)
        accepted = torch.minimum(want, t).sum(1)
        best, most = torch.where((accepted > most)[:, None], w, best), torch.maximum(accepted, most)
        w = _bounded(w * want / torch.where(t > 0, t, 1), have)
    return best


def _bounded(w: Tensor, q: Tensor) -> Tensor:
    mean = (q * w).sum(1, keepdim=True)
    return torch.where(mean > 0, w / torch.where(mean > 0, mean, 1), 1).clamp(LEAST, 1 / LEAST)


def _lift(w: Tensor, q: Tensor, k: Tensor, step: float) -> Tensor:
    """t / q: ``k w integral of e^(-s w) phi(s)^(k-1) ds``, by the trapezoid rule in log s,
    ``[B,n]``."""
    s = _nodes(w, step)
    held = torch.exp(-s[:, None] * w[:, None])  # [B,s,n]
    phi = (held * q[:, None]).sum(2)
    inner = step * s * phi ** (k - 1)[:, None]
    return torch.where((k == 1)[:, None], 1, k[:, None] * w * (inner[:, None] @ held).squeeze(1))


def _nodes(w: Tensor, step: float, lowest: int = -30) -> Tensor:
    highest = math.log(30 / LEAST)  # e^(-s w) is below 1e-13 beyond, for every w
    return torch.arange(lowest, highest, step, dtype=w.dtype, device=w.device).exp()
