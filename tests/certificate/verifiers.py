"""Verifiers of known verdict for ``specwb.certify``: ways to write a right one, and faults that
only some instances show. Those that were published are in ``specwb.certificate.known``."""

# ruff: noqa: NPY002 - numpy's global functions are among what is tested
from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from random import random as bound_python
from typing import Any

import numpy as np
import torch
from numpy.random import rand as bound_numpy
from torch import rand as bound_torch


@dataclass(frozen=True)
class Entry:
    function: Callable[..., Any]
    verdict: str
    draw: str
    logits: bool
    shown: str


TABLE: dict[str, Entry] = {}
LOSSLESS, BIASED, NOTHING = "lossless", "biased", "no certificate"


def entry(verdict, shown="", draw="chain", logits=False):
    """Register a verifier with its verdict, and a word of the instances that show it."""

    def add(function, name=None):
        TABLE[name or function.__name__] = Entry(function, verdict, draw, logits, shown)
        return function

    return add


def one(weights):
    return int(torch.multinomial(weights, 1))


def rest(p, q):
    return (p - q).clamp(min=0)


def token_rejection(uniform=lambda: torch.rand(()), close=lambda p, q: one(rest(p, q)), last=one):
    """Token rejection with a way of its own to draw the uniform, and the last token."""

    def verify(p, q, drafts):
        for i, x in enumerate(drafts.tolist()):
            if uniform() * q[i, x] >= p[i, x]:
                return [*drafts[:i].tolist(), close(p[i], q[i])]
        return [*drafts.tolist(), last(p[-1])]

    return verify


right = token_rejection()


def siblings(uniform=random.random, bonus=lambda p, i: p[i + 1], normalise=lambda t: t / t.sum()):
    """Recursive rejection of independent candidates."""

    def verify(p, q, drafts):
        left = p[0]
        for i, x in enumerate(drafts.tolist()):
            if uniform() * q[x] < left[x]:
                return [x, one(bonus(p, i))]
            left = normalise(rest(left, q))
        return [one(left)]

    return verify


# ------------------------------------------------------------------------------------------- right


@entry(LOSSLESS)
def pure_python(p, q, drafts):
    p, q, out = p.tolist(), q.tolist(), []
    for i, x in enumerate(drafts.tolist()):
        if random.random() * q[i][x] >= p[i][x]:
            left = [max(a - b, 0.0) for a, b in zip(p[i], q[i], strict=True)]
            return out + random.choices(range(len(left)), left)
        out.append(x)
    return out + random.choices(range(len(p[-1])), p[-1])


@entry(LOSSLESS)
def numpy_logarithms(p, q, drafts):
    p, q, out = p.double().numpy(), q.double().numpy(), []
    draw = lambda row: int(np.random.choice(len(row), p=row / row.sum()))  # noqa: E731
    with np.errstate(divide="ignore", invalid="ignore"):
        for i, x in enumerate(drafts.tolist()):
            if not np.log(np.random.rand()) < np.log(p[i, x]) - np.log(q[i, x]):
                return [*out, draw(np.maximum(p[i] - q[i], 0))]
            out.append(x)
    return [*out, draw(p[-1])]


@entry(LOSSLESS)
def recycled_uniform(p, q, drafts):
    """The uniform that rejects is stretched and draws the residual."""
    for i, x in enumerate(drafts.tolist()):
        passes = min(1.0, float(p[i, x]) / float(q[i, x]))
        u = torch.rand((), dtype=torch.float64)
        if u >= passes:
            sums = rest(p[i], q[i]).double().cumsum(0)
            stretched = ((u - passes) / (1 - passes)).reshape(1)
            return [*drafts[:i].tolist(), int(torch.searchsorted(sums / sums[-1], stretched))]
    return [*drafts.tolist(), one(p[-1])]


@entry(LOSSLESS)
def in_place(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        if torch.rand(1).item() * q[i, x] >= p[i, x]:
            return [*drafts[:i].tolist(), one(p[i].sub_(q[i]).clamp_(min=0).div_(p[i].sum()))]
    return [*drafts.tolist(), one(p[-1])]


@entry(LOSSLESS)
def exponential_test(p, q, drafts):
    """Accepted if an exponential variable exceeds log(q/p)."""
    for i, x in enumerate(drafts.tolist()):
        if torch.empty((), dtype=torch.float64).exponential_() <= torch.log(q[i, x] / p[i, x]):
            return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
    return [*drafts.tolist(), one(p[-1])]


@entry(LOSSLESS)
def exceptions(p, q, drafts):
    try:
        for i, x in enumerate(drafts.tolist()):
            if torch.rand(()) * q[i, x] >= p[i, x]:
                raise ValueError(i)
    except ValueError as error:
        i = error.args[0]
        return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
    return [*drafts.tolist(), one(p[-1])]


@entry(LOSSLESS)
def single_precision(p, q, drafts):
    return right(p.float(), q.float(), drafts)


@entry(LOSSLESS)
def two_tokens_at_most(p, q, drafts):
    return right(p[: len(drafts[:2]) + 1], q[:2], drafts[:2])


@entry(LOSSLESS)
def unused_permutation(p, q, drafts):
    np.random.permutation(p.shape[1])
    return right(p, q, drafts)


entry(LOSSLESS)(token_rejection(bound_python), "bound_uniform_of_python")
entry(LOSSLESS)(token_rejection(bound_numpy), "bound_uniform_of_numpy")
entry(LOSSLESS)(token_rejection(lambda: bound_torch(())), "bound_uniform_of_torch")


@entry(LOSSLESS, logits=True)
def vectorised(p, q, drafts, temperature):
    p, q = (p / temperature).softmax(-1), (q / temperature).softmax(-1)
    places = torch.arange(len(drafts))
    u = torch.empty(len(drafts), dtype=torch.float64).uniform_()
    kept = int((u < p[places, drafts] / q[places, drafts]).int().cumprod(0).sum())
    row = rest(p[kept], q[kept]) if kept < len(drafts) else p[kept]
    return torch.cat([drafts[:kept], torch.multinomial(row, 1)])


def filled(change):
    """Token rejection with uniforms that ``change`` makes of a fresh tensor."""

    def verify(p, q, drafts):
        u = change(torch.empty(len(drafts), dtype=torch.float64))
        for i, x in enumerate(drafts.tolist()):
            if u[i] * q[i, x] >= p[i, x]:
                return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
        return [*drafts.tolist(), one(p[-1])]

    return verify


def one_by_one(u):
    for i in range(len(u)):
        u[i].uniform_()
    return u


def seen_before(look):
    def change(u):
        seen = look(u)
        u.uniform_()
        return seen

    return change


entry(LOSSLESS)(filled(one_by_one), "filled_one_by_one")
entry(LOSSLESS)(filled(seen_before(list)), "listed_before")
entry(LOSSLESS)(filled(lambda u: (u.uniform_(), u.uniform_(), u)[2]), "filled_twice")
entry(NOTHING)(filled(seen_before(lambda u: u.numpy())), "read_by_numpy")


@entry(LOSSLESS)
def thin_slice_accepted(p, q, drafts):
    """A slice of the uniform of 2^-20 accepts everything: a bias below the tolerance."""
    u = [torch.rand(()) for _ in drafts[:1]]
    if u[0] < 2.0**-20:
        return drafts[:1].tolist()
    return token_rejection(lambda: u.pop() if u else torch.rand(()))(p, q, drafts)


@entry(NOTHING)
def rejection_loop(p, q, drafts):
    """The residual by rejection from p: runs without an end, whose sum is not formed."""

    def close(p, q):
        while True:
            y = one(p)
            if torch.rand(()) * p[y] < rest(p, q)[y]:
                return y

    return token_rejection(close=close)(p, q, drafts)


OWN_TORCH = torch.Generator()


@entry(NOTHING, "disjoint")
def unseen_draw(p, q, drafts):
    with torch._C.DisableTorchFunction():
        torch.rand(1, generator=OWN_TORCH)
    return right(p, q, drafts)


# ------------------------------------------------------------------------------------------ biased

ROWS, OWN_NUMPY = {}, np.random.default_rng(7)


@entry(BIASED)
def cached_by_draft(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        if torch.rand(()) * q[i, x] >= p[i, x]:
            key = tuple(drafts.tolist()), i, p.shape[1]
            return [*drafts[:i].tolist(), one(ROWS.setdefault(key, rest(p[i], q[i])))]
    return [*drafts.tolist(), one(p[-1])]


@entry(BIASED)
def uniform_used_again(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        u = torch.rand((), dtype=torch.float64)
        if u * q[i, x] >= p[i, x]:
            sums = rest(p[i], q[i]).double().cumsum(0)
            return [*drafts[:i].tolist(), int(torch.searchsorted(sums / sums[-1], u.reshape(1)))]
    return [*drafts.tolist(), one(p[-1])]


@entry(BIASED)
def bfloat16_ratio(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        if torch.rand(()) >= (p[i, x].bfloat16() / q[i, x].bfloat16()).double():
            return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
    return [*drafts.tolist(), one(p[-1])]


def tied(p, q):
    left = rest(p, q)
    positive = left[left > 0].tolist()
    return one(p if len(set(positive)) < len(positive) else left)


def either(condition, other):
    return lambda p, q, drafts: (other if condition(p, q, drafts) else right)(p, q, drafts)


def all_drafts(p, q, drafts):
    return drafts.tolist()


def unseen_from(depth):
    def verify(p, q, drafts):
        for i, x in enumerate(drafts.tolist()):
            if i < depth and torch.rand(()) * q[i, x] >= p[i, x]:
                return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
        return [*drafts.tolist(), one(p[-1])]

    return verify


def top_50(row):
    values, places = row.topk(min(50, len(row)))
    return int(places[one(values)])


entry(BIASED)(either(lambda p, q, d: OWN_NUMPY.random() < 1e-3, all_drafts), "once_in_1000")
entry(BIASED, "ties")(token_rejection(close=tied), "closes_with_p_at_ties")
entry(BIASED, "zeros")(
    token_rejection(last=lambda row: one(torch.where(row == 0, 0.01, row))), "zeros_come_out"
)
entry(BIASED, "sparse")(either(lambda p, q, d: p.shape[1] > 5, all_drafts), "many_tokens")
entry(BIASED, "float32")(either(lambda p, q, d: p.dtype == torch.float32, all_drafts), "float32")
entry(BIASED, "wide")(token_rejection(last=top_50), "top_50_left_in")
entry(BIASED, "disjoint")(
    token_rejection(close=lambda p, q: one(rest(p, q) if torch.minimum(p, q).sum() > 0 else q)),
    "closes_with_q_where_disjoint",
)
entry(BIASED, "forced")(unseen_from(3), "fourth_draft_untested")
entry(BIASED, "forced")(unseen_from(7), "eighth_draft_untested")
entry(BIASED, "3 drafted", draw="with")(
    siblings(bonus=lambda p, i: p[1] if i == 2 else p[i + 1]), "bonus_after_another_candidate"
)


@entry(BIASED, "sure")
def certain_rows_accept(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        sure = p[i].max() > 0.9995 and x != int(p[i].argmax())
        if sure or torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i].tolist(), x if sure else one(rest(p[i], q[i]))]
    return [*drafts.tolist(), one(p[-1])]


@entry(BIASED, "T = 0.5", logits=True)
def wrong_at_a_half(p, q, drafts, temperature):
    return drafts.tolist() if temperature == 0.5 else vectorised(p, q, drafts, temperature)


@entry(NOTHING, "shifted", logits=True)
def overflows(p, q, drafts, temperature):
    """Powers without their maximum taken off, in float32: infinite for logits above 88."""
    p, q = ((x.float() / temperature).exp() for x in (p, q))
    p, q = ((x / x.sum(-1, keepdim=True)).nan_to_num(0.0) for x in (p, q))
    return right(p, q, drafts)


@entry(BIASED, "narrow", draw="with")
def fourth_candidate_untested(p, q, drafts):
    left = p[0]
    for i, x in enumerate(drafts.tolist()):
        if i == 3 or random.random() * q[x] < left[x]:
            return [x, one(p[i + 1])]
        left = rest(left, q) / rest(left, q).sum()
    return [one(left)]
