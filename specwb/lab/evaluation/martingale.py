"""The martingale test of longer texts: do they drift away from the target's distribution?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from specwb.core.flow import Draft, Scheme
from specwb.core.probability import Sampling
from specwb.engine.decoding import decode, rounds
from specwb.engine.methods import Method
from specwb.lab.evaluation.joint import BATCH, StatisticalTest, generator
from specwb.models.target import Target

LARGEST_RATIO = 3.0
"""Where the logarithm of q / p is cut, on both sides."""
LEAST = -10.0
"""Where the logarithm of p is cut."""
DIRECTIONS = ("p < q", "log q / p", "log p", "order", "pairs")
ELEMENTS = 2**24
"""Rows x tokens x vocabulary of a batch, at most: 128 MiB a tensor."""
TILTS = torch.tensor([sign * 2.0**j for sign in (1, -1) for j in range(-6, 6)]).double()
"""The theta of :class:`Sum`: each doubles the one before, and they have both signs."""
TRUSTED = 1e-3
"""The p-value down to which the approximate tails are taken as they are."""


@dataclass
class Sum:
    """A sum of martingale differences ``d_t = f_t(y_t) - E_p f_t``, with what its distribution must
    be.

    Attributes:
        total: S, the sum of ``d_t``.
        variance: V, the sum of ``Var_p f_t``.
        third: The sum of ``E_p (f_t - E_p f_t)^3``.
        cumulants: ``K(theta)``, the sum of ``log E_p exp(theta (f_t - E_p f_t))``, for every theta
            of :data:`TILTS`.
    """

    total: float = 0.0
    variance: float = 0.0
    third: float = 0.0
    cumulants: Tensor = field(default_factory=lambda: torch.zeros_like(TILTS))

    def add(self, difference: Tensor, variance: Tensor, third: Tensor, cumulants: Tensor) -> None:
        self.total += float(difference.sum())
        self.variance += float(variance.sum())
        self.third += float(third.sum())
        self.cumulants = self.cumulants + cumulants

    @property
    def pvalue(self) -> float:
        """Two-sided; 1 where nothing varies.

        Down to ``TRUSTED`` it is the approximate tail, and below as far as the bound goes: what
        makes a right method fail is never an approximation.
        """
        return max(self.approximate, min(self.bound, TRUSTED))

    @property
    def approximate(self) -> float:
        """The tails of ``z = S / sqrt(V)``: the normal one or, where that is larger, Pearson's type
        III of the same skewness, which is the right one where S counts rare events."""
        if not self.variance > 1e-9:
            return 1.0
        z, skew = self.total / self.variance**0.5, self.third / self.variance**1.5
        z, skew = (z, skew) if z > 0 else (-z, -skew)
        tail = max(float(stats.norm.sf(z)), float(stats.pearson3.sf(z, skew)))
        return min(1.0, 2 * tail)

    @property
    def bound(self) -> float:
        """``1 / mean over theta of exp(theta S - K(theta))``.

        Each of these has the mean 1 in a lossless method, however skewed the differences are, so
        their mean exceeds ``1 / a`` with probability a at most (Markov; the method of mixtures,
        Robbins 1970).
        """
        evidence = torch.logsumexp(TILTS * self.total - self.cumulants, 0)
        return float((math.log(len(TILTS)) - evidence).exp().clamp_max(1))


@dataclass(frozen=True)
class Martingale(StatisticalTest):
    """The test of longer texts: the sums by direction, and the number of tokens."""

    sums: dict[str, Sum] = field(default_factory=dict)
    tokens: int = 0

    @property
    def own(self) -> float:
        """The smallest p-value of the directions, times their number."""
        return min([1.0, *(len(self.sums) * x.pvalue for x in self.sums.values())])

    @property
    def worst(self) -> str:
        """The direction with the smallest p-value."""
        return min(self.sums, key=lambda name: self.sums[name].pvalue)


def martingale(
    target: Target,
    method: Method,
    prompts: list[list[int]],
    sampling: Sampling,
    length: int,
    rows: int,
    seed: int,
) -> Martingale:
    """Compare texts of ``length`` tokens with the target's distribution, token by token.

    Let ``p_t`` be the target's distribution after the first t tokens of a text, and ``f_t`` any
    function of a token that depends on these t tokens (and on what was drawn before) alone. If the
    method is lossless, then ``d_t = f_t(y_t) - sum_y p_t(y) f_t(y)`` has the mean 0 given the past,
    whatever steps the text was written in: a martingale difference of variance ``Var_p f_t``. So
    ``z = sum d_t / sqrt(sum Var_p f_t)`` over all tokens of all texts is asymptotically normal
    (the martingale central limit theorem; Hall and Heyde 1980, theorem 3.2). Small p-values come
    from a bound that holds for any number of tokens, see :attr:`Sum.bound`. p comes from a forward
    of the library over the finished text. The directions f are

    - ``p < q``: 1 where ``p_t(y) < q_t(y)``. A wrong verifier errs along it: what it accepts too
      often, or draws again too rarely, is what the draft overrates.
    - ``log q / p``, cut at +-3, which weighs tokens by how much they are overrated.
    - ``log p``, cut at -10: are the texts as probable as they should be? It sees what q has no part
      in, and the whole vocabulary.
    - ``order``, the cumulated probability ``sum_{x < y} p(x) + p(y) / 2`` in the order of the ids,
      in which tokens are drawn by inverse CDF. It sees a uniform that draws a candidate and tests
      it, or draws the bonus token too: small ones give low ids.
    - ``pairs``: ``f_t(y) = d_{t-1} 1[p_t(y) < q_t(y)]``. Do overrated tokens come one after
      another? It sees noise that two tokens share.

    q is the draft model's own distribution, from its forward over the finished text. Of a method
    without one it is the distribution that the root's children were drawn from, which is known when
    a step begins, or uniform on its candidates where these are fixed; then only the first token of
    a step is looked at along q. The test sees faults at any depth, late in the text and over the
    whole vocabulary, and misses what cancels out along all five directions.
    """
    draft = getattr(method.drafter, "draft", None)
    if not isinstance(draft, Target) or draft.vocabulary != target.vocabulary:
        draft = None
    texts = -(-rows // len(prompts))  # a prompt, rounded up
    batch = max(1, min(BATCH, ELEMENTS // (length * target.vocabulary)))
    sums = {name: Sum() for name in DIRECTIONS}
    for i, prompt in enumerate(prompts):
        for start in range(0, texts, batch):
            copies = [prompt] * min(batch, texts - start)
            settings: dict[str, Any] = {
                "max_new_tokens": length,
                "eos": (),
                "seed": generator(seed, i, start + 1),
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
            }
            if draft is None:
                written, q, known = _with_roots(target, copies, method, length, settings)
            else:
                written = decode(target, copies, method, **settings).tokens
            ids = torch.tensor([prompt + text for text in written])
            p = _distributions(target, ids, len(prompt), sampling)
            if draft is not None:
                q = _distributions(draft, ids, len(prompt), sampling)
                known = torch.ones_like(ids[:, len(prompt) :], dtype=torch.bool)
            _add(sums, p, q, known, ids[:, len(prompt) :])
    return Martingale(sums, texts * len(prompts) * length)


def _distributions(model: Target, ids: Tensor, start: int, sampling: Sampling) -> Tensor:
    """``[B,n,V]`` float64: what every token of ``ids [B,T]`` from ``start`` on was drawn from."""
    with torch.inference_mode():
        logits = model.model(ids.to(model.device), use_cache=False).logits[:, start - 1 : -1]
    p = sampling.probabilities(logits).double().cpu()
    return p / p.sum(-1, keepdim=True)


def _with_roots(
    target: Target, prompts: list[list[int]], method: Method, length: int, settings: dict
) -> tuple[list[list[int]], Tensor, Tensor]:
    """Texts, what the root's children were drawn from in every step ``[B,n,V]``, and at which
    tokens a step began that has such a distribution ``[B,n]``."""
    q = torch.zeros(len(prompts), length, target.vocabulary, dtype=torch.float64)
    known = torch.zeros(len(prompts), length, dtype=torch.bool)
    state = None
    for step in rounds(target, prompts, method, graphs=False, **settings):
        state = step.state
        assert state is not None
        place = (step.length - state.start).cpu()
        row, there = _root(step.draft, target.vocabulary)
        going = there.cpu() & (place < length)
        q[going, place[going]] = row.cpu()[going]
        known[going, place[going]] = True
    assert state is not None
    begin = len(prompts[0])
    return [text[begin : begin + length] for text in state.tokens.tolist()], q, known


def _root(draft: Draft, vocabulary: int) -> tuple[Tensor, Tensor]:
    """``[B,V]`` the distribution of the root's children, and ``[B]`` where there is one."""
    rows = len(draft.tokens)
    root = torch.zeros(rows, dtype=torch.long, device=draft.tokens.device)
    q = draft.q_of(root)
    if q is not None and draft.q_row is not None and bool((draft.q_row[:, 0] >= 0).all()):
        mass = q.double().sum(-1, keepdim=True)
        return q.double() / torch.where(mass > 0, mass, 1), mass[:, 0] > 0
    q = torch.zeros(rows, vocabulary + 1, dtype=torch.float64, device=root.device)
    if draft.scheme is not Scheme.POINT or not draft.tree.D:
        return q[:, :-1], root > 0
    kids = draft.tree.kids[:, 0].expand(rows, -1)
    there = (kids >= 0) & draft.valid.gather(1, kids.clamp_min(0))
    tokens = draft.tokens.gather(1, kids.clamp_min(0))
    # the last column takes what is not there
    q = q.scatter(1, torch.where(there, tokens, vocabulary), 1.0)[:, :-1]
    return q / q.sum(-1, keepdim=True).clamp_min(1), there.any(1)


def _add(sums: dict[str, Sum], p: Tensor, q: Tensor, known: Tensor, y: Tensor) -> None:
    """Add the tokens ``y [B,n]`` of some texts; ``p, q [B,n,V]``, and q where it is ``known``."""
    for name, f in _directions(p, q, known):
        centred = f - (p * f).sum(-1, keepdim=True)
        difference = centred.gather(-1, y[..., None])[..., 0]
        variance, third = ((p * centred**k).sum(-1) for k in (2, 3))
        sums[name].add(difference, variance, third, _cumulants(p, centred))
        if name == "p < q":
            before = difference[:, :-1]
            tilted = TILTS[:, None, None] * before
            mass = (p * f).sum(-1)[:, 1:]  # f is a coin of this probability
            coin = torch.log1p(mass * torch.expm1(tilted)) - tilted * mass
            sums["pairs"].add(
                before * difference[:, 1:],
                before**2 * variance[:, 1:],
                before**3 * third[:, 1:],
                coin.sum((1, 2)),
            )


def _directions(p: Tensor, q: Tensor, known: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The functions f ``[B,n,V]`` that are looked along, one after another: with a whole vocabulary
    each is large."""
    log_p = p.clamp_min(1e-30).log()
    yield "p < q", torch.where(known[..., None], (p < q).double(), 0)
    ratio = (q.clamp_min(1e-30).log() - log_p).clamp(-LARGEST_RATIO, LARGEST_RATIO)
    yield "log q / p", torch.where(known[..., None], ratio, 0)
    yield "log p", log_p.clamp_min(LEAST)
    yield "order", p.cumsum(-1) - p / 2


def _cumulants(p: Tensor, centred: Tensor) -> Tensor:
    """``sum log E_p exp(theta centred)`` over all tokens, for every theta of :data:`TILTS`."""
    out = []
    for theta in (TILTS[0], TILTS[len(TILTS) // 2]):
        power = (theta * centred).exp_()
        for _ in range(len(TILTS) // 2):
            out.append((p * power).sum(-1).log().sum())
            power.square_()  # the next theta is twice as large
    return torch.stack(out)
