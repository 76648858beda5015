"""Verifiers of known truth, each with the verdict it must get.

Truths: "lossless"; "biased" within what docs/certify.md says is covered; "hidden": randomness,
state or a trick that is not seen from outside; "outside": wrong only where nobody looks, found all
the same or named on the page. ``TABLE`` has them all; each is also an attribute of this module, by
which a fresh interpreter finds it.
"""

# ruff: noqa: NPY002 - numpy's global functions are among what is tested
from __future__ import annotations

import _random
import asyncio
import bisect
import collections
import ctypes
import datetime
import decimal
import fractions
import functools
import itertools
import json
import math
import os
import random
import resource
import sqlite3
import ssl
import struct
import sys
import threading
import time
import timeit
import types
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from random import getstate, setstate
from random import random as bound_uniform
from random import seed as python_seed
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import get_state, set_state
from numpy.random import rand as bound_rand
from numpy.random import seed as numpy_seed
from torch import get_rng_state, manual_seed, set_rng_state
from torch import rand as bound_torch


@dataclass(frozen=True)
class Entry:
    function: Callable[..., Any]
    truth: str
    verdict: str
    draw: str
    logits: bool


TABLE: dict[str, Entry] = {}
LOSSLESS, BIASED, NOTHING = "lossless", "biased", "no certificate"


def entry(truth, verdict=None, draw="chain", logits=False):
    """Register a verifier with its truth and its verdict, which is the truth if none is given."""

    def add(function, name=None):
        name = name or function.__name__
        TABLE[name] = Entry(function, truth, verdict or truth, draw, logits)
        globals()[name] = function
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


def by(draw):
    """Both kinds of last token by one way to draw from a row."""
    return token_rejection(close=lambda p, q: draw(rest(p, q)), last=draw)


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


@entry("lossless")
def pure_python(p, q, drafts):
    p, q, out = p.tolist(), q.tolist(), []
    for i, x in enumerate(drafts.tolist()):
        if random.random() * q[i][x] >= p[i][x]:
            left = [max(a - b, 0.0) for a, b in zip(p[i], q[i], strict=True)]
            return out + random.choices(range(len(left)), left)
        out.append(x)
    return out + random.choices(range(len(p[-1])), p[-1])


@entry("lossless")
def numpy_logarithms(p, q, drafts):
    p, q, out = p.double().numpy(), q.double().numpy(), []
    draw = lambda row: int(np.random.choice(len(row), p=row / row.sum()))  # noqa: E731
    with np.errstate(divide="ignore", invalid="ignore"):
        for i, x in enumerate(drafts.tolist()):
            if not np.log(np.random.rand()) < np.log(p[i, x]) - np.log(q[i, x]):
                return [*out, draw(np.maximum(p[i] - q[i], 0))]
            out.append(x)
    return [*out, draw(p[-1])]


@entry("lossless")
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


@entry("lossless")
def transport_plan(p, q, drafts):
    """The next token is drawn from the plan's row, whatever was drafted."""
    out = []
    for i, x in enumerate(drafts.tolist()):
        left, passes = rest(p[i], q[i]), torch.minimum(p[i], q[i])[x] / q[i, x]
        row = torch.zeros_like(left)
        row[x] = passes
        if left.sum() > 0:
            row = row + (1 - passes) * left / left.sum()
        out.append(one(row))
        if out[-1] != x:
            return out
    return [*out, one(p[-1])]


@entry("lossless")
def naive(p, q, drafts):
    out = []
    for i, x in enumerate(drafts.tolist()):
        out.append(one(p[i]))
        if out[-1] != x:
            return out
    return [*out, one(p[-1])]


@entry("lossless")
def in_place(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        if torch.rand(1).item() * q[i, x] >= p[i, x]:
            return [*drafts[:i].tolist(), one(p[i].sub_(q[i]).clamp_(min=0).div_(p[i].sum()))]
    return [*drafts.tolist(), one(p[-1])]


@entry("lossless")
def vectorised(p, q, drafts):
    places = torch.arange(len(drafts))
    u = torch.empty(len(drafts), dtype=torch.float64).uniform_()
    kept = int((u < p[places, drafts] / q[places, drafts]).int().cumprod(0).sum())
    row = rest(p[kept], q[kept]) if kept < len(drafts) else p[kept]
    return torch.cat([drafts[:kept], torch.multinomial(row, 1)])


@entry("lossless")
def bernoulli(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        if not torch.bernoulli((p[i, x] / q[i, x]).clamp(max=1)).bool():
            return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
    return [*drafts.tolist(), one(p[-1])]


@entry("lossless")
def exponential_test(p, q, drafts):
    """Accepted if an exponential variable exceeds log(q/p)."""
    for i, x in enumerate(drafts.tolist()):
        if torch.empty((), dtype=torch.float64).exponential_() <= torch.log(q[i, x] / p[i, x]):
            return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
    return [*drafts.tolist(), one(p[-1])]


@entry("lossless")
def exceptions(p, q, drafts):
    try:
        for i, x in enumerate(drafts.tolist()):
            if torch.rand(()) * q[i, x] >= p[i, x]:
                raise ValueError(i)
    except ValueError as error:
        i = error.args[0]
        return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
    return [*drafts.tolist(), one(p[-1])]


@entry("lossless")
def generator_function(p, q, drafts):
    def tokens():
        for i, x in enumerate(drafts.tolist()):
            if random.uniform(0, 1) * q[i, x] >= p[i, x]:
                yield one(rest(p[i], q[i]))
                return
            yield x
        yield one(p[-1])

    return list(tokens())


@entry("lossless")
def recursive(p, q, drafts):
    @functools.lru_cache(None)
    def ratio(i, x):
        return float(p[i, x] / q[i, x])

    def tail(i):
        if i == len(drafts):
            return (one(p[-1]),)
        x = int(drafts[i])
        return (x, *tail(i + 1)) if np.random.random() < ratio(i, x) else (one(rest(p[i], q[i])),)

    return tail(0)


@entry("lossless")
def single_precision(p, q, drafts):
    return right(p.float(), q.float(), drafts)


@entry("lossless")
def two_tokens_at_most(p, q, drafts):
    return right(p[: len(drafts[:2]) + 1], q[:2], drafts[:2])


@entry("lossless")
def no_bonus(p, q, drafts):
    return right(p, q, drafts)[: len(drafts)]


@entry("lossless", NOTHING)
def rejection_loop(p, q, drafts):
    """The residual by rejection from p: runs without an end, whose sum is not formed."""

    def close(p, q):
        while True:
            y = one(p)
            if torch.rand(()) * p[y] < rest(p, q)[y]:
                return y

    return token_rejection(close=close)(p, q, drafts)


@entry("lossless")
def unused_permutation(p, q, drafts):
    np.random.permutation(p.shape[1])
    return right(p, q, drafts)


@entry("lossless")
def whole_numbers(p, q, drafts):
    """A coin of two sides, by each of the usual ways, which changes nothing."""
    sides = random.randrange(2), int(np.random.randint(2)), int(random.random() * 2)
    return right(p, q, drafts) if sum(sides) < 4 else []


def gumbel_by_distribution(row):
    return int((row.log() + torch.distributions.Gumbel(0.0, 1.0).sample(row.shape)).argmax())


def bisected(row):
    sums = list(itertools.accumulate(row.tolist()))
    return min(bisect.bisect(sums, random.random() * sums[-1]), len(sums) - 1)


WAYS = {
    "categorical": lambda row: int(torch.distributions.Categorical(probs=row).sample()),
    "gumbel": lambda row: int((row.log() - torch.log(-torch.log(torch.rand(row.shape)))).argmax()),
    "gumbel_by_distribution": gumbel_by_distribution,
    "exponential_of_1_minus_u": lambda row: int(
        (-torch.log(1 - torch.rand(row.shape)) / row).argmin()
    ),
    "exponential_by_log1p": lambda row: int((-torch.log1p(-torch.rand(row.shape)) / row).argmin()),
    "gumbel_softmax": lambda row: int(F.gumbel_softmax(row.log(), hard=True).argmax()),
    "gumbel_over_temperature": lambda row: int(
        ((row.log() - torch.empty_like(row).exponential_().log()) / 0.7).argmax()
    ),
    "bisected": bisected,
    "compared_sums": lambda row: int(
        ((row / row.sum()).cumsum(0) > torch.rand(1, dtype=torch.float64)).int().argmax()
    ),
}
for _name, _way in WAYS.items():
    entry("lossless")(by(_way), _name)
entry("lossless", draw="with")(siblings(), "candidates")
entry("lossless")(token_rejection(bound_uniform), "bound_uniform_of_python")
entry("lossless")(token_rejection(bound_rand), "bound_uniform_of_numpy")
entry("lossless")(token_rejection(lambda: bound_torch(())), "bound_uniform_of_torch")


def naive_candidates(p, q, drafts):
    y, drafted = one(p[0]), drafts.tolist()
    return [y, one(p[1 + drafted.index(y)])] if y in drafted else [y]


for _draw in ("with", "without", "top"):
    entry("lossless", draw=_draw)(naive_candidates, f"naive_{_draw}")


@entry("lossless", draw="with")
def coin_orders_candidates(p, q, drafts):
    left, order = p[0], range(len(drafts))
    for i in reversed(order) if len(order) > 1 and random.random() < 0.5 else order:
        x = int(drafts[i])
        if random.random() * q[x] < left[x]:
            return [x, one(p[i + 1])]
        left = rest(left, q) / rest(left, q).sum()
    return [one(left)]


@entry("lossless", draw="without")
def scalars_without_replacement(p, q, drafts):
    p0, taken, left, gone = p[0], 0.0, 1.0, []
    for i, x in enumerate(drafts.tolist()):
        free = float(sum(q[y] for y in range(len(q)) if y not in gone))
        if random.random() * left * q[x] < (p0[x] - taken * q[x]) * free:
            return [x, one(p[i + 1])]
        taken += left / free
        left = float((p0 - taken * q).clamp(min=0).sum())
        gone.append(x)
    row = (p0 - taken * q).clamp(min=0)
    row[gone] = 0
    return [one(row)]


def softened(verify):
    return lambda p, q, drafts, temperature: verify(
        (p / temperature).softmax(-1), (q / temperature).softmax(-1), drafts
    )


LOGITS = entry("lossless", logits=True)(softened(vectorised), "logits")

# ------------------------------------------------------------- hidden randomness, state and tricks

OWN_PYTHON, OWN_NUMPY, OWN_TORCH = random.Random(5), np.random.default_rng(7), torch.Generator()
OWN_TORCH.manual_seed(3)
BOUND_NUMPY = OWN_NUMPY.random
CALLS, ROWS, MINUTE = [0], {}, datetime.datetime.now().minute


def wrong(p, q, drafts):
    return [int(q[0].argmax())]


def wrong_if(condition):
    return lambda p, q, drafts: (wrong if condition() else right)(p, q, drafts)


@contextmanager
def seeded(get, seed, put):
    state = get()
    seed(0)
    yield
    put(state)


def constant(get, seed, put, draw):
    """The uniform is the same every time: the generator is seeded before, and put back."""

    def uniform():
        with seeded(get, seed, put):
            return draw()

    return token_rejection(uniform)


_torch, _python, _numpy = torch.default_generator, random._inst, np.random.mtrand._rand
SEEDED = {
    "torch": (get_rng_state, manual_seed, set_rng_state, lambda: bound_torch(())),
    "python": (getstate, python_seed, setstate, bound_uniform),
    "numpy": (get_state, numpy_seed, set_state, bound_rand),
    "default_generator": (
        lambda: _torch.get_state(),
        lambda x: _torch.manual_seed(x),
        lambda x: _torch.set_state(x),
        lambda: torch.rand(()),
    ),
    "inst": (
        lambda: _python.getstate(),
        lambda x: _python.seed(x),
        lambda x: _python.setstate(x),
        lambda: random.random(),
    ),
    "mtrand": (
        lambda: _numpy.get_state(),
        lambda x: _numpy.seed(x),
        lambda x: _numpy.set_state(x),
        lambda: np.random.rand(),
    ),
}
for _name, _parts in SEEDED.items():
    entry("hidden", NOTHING)(constant(*_parts), f"seeded_{_name}")
for _share in (1000, 3000, 10000):
    # followed as what they are: biases of 1e-3 to 1e-4
    _rare = wrong_if(lambda share=_share: OWN_NUMPY.random() < 1 / share)
    entry("hidden", BIASED)(_rare, f"once_in_{_share}")
entry("hidden", BIASED)(wrong_if(lambda: BOUND_NUMPY() < 1e-3), "once_in_1000_by_a_bound_method")
entry("hidden", LOSSLESS)(token_rejection(lambda: OWN_PYTHON.random()), "own_random")
entry("hidden", NOTHING)(
    token_rejection(lambda: torch.rand((), generator=OWN_TORCH)), "own_torch_generator"
)


@torch.jit.script
def _compiled(t: float) -> bool:
    return bool((torch.rand(1) < t).item())


def _in_a_thread():
    drawn = []
    worker = threading.Thread(target=lambda: drawn.append(torch.rand(())))
    worker.start()
    worker.join()
    return drawn[0]


def _counted(number, wrongly):
    def condition():
        CALLS[0] += 1
        return wrongly(CALLS[0], number)

    return wrong_if(condition)


CLOCKS = {
    "clock_parity": lambda: (time.time_ns() >> 6) & 1,
    "clock_rare": lambda: time.perf_counter_ns() % 2003 == 0,
    "minute": lambda: datetime.datetime.now().minute != MINUTE,
    "address": lambda: (id(object()) >> 4) % 7 == 0,
    "urandom": lambda: os.urandom(1)[0] < 1,
    "uuid4": lambda: uuid.uuid4().int % 97 == 0,
    "device": lambda: np.fromfile("/dev/urandom", "u1", 1)[0] == 0,
    "memory_address": lambda: torch.empty(3).data_ptr() % 128 == 0,
    "seed_inside": lambda: np.random.default_rng(0).random() < 0.5,
    "random_inside": lambda: random.Random(0).random() < 0.5,
}
for _name, _condition in CLOCKS.items():
    entry("hidden", NOTHING)(wrong_if(_condition), _name)
entry("hidden", NOTHING)(token_rejection(_in_a_thread), "thread")
entry("hidden", LOSSLESS)(token_rejection(lambda: torch.ops.aten.rand([1])[0]), "aten")
entry("hidden", NOTHING)(wrong_if(lambda: _compiled(0.1)), "torchscript")
entry("hidden", NOTHING)(_counted(3, lambda calls, n: calls % n == 0), "every_third_call")
entry("hidden", NOTHING)(_counted(50_000, lambda calls, n: calls > n), "after_50000_calls")


class Congruential:
    """A generator of one's own, whose state is a number of Python's."""

    def __init__(self):
        self.state = 1

    def rarely(self):
        self.state = (self.state * 1103515245 + 12345) % 2**31
        return self.state % 100_000 == 0


entry("hidden", NOTHING)(wrong_if(Congruential().rarely), "congruential_generator")
entry("hidden", NOTHING)(wrong_if(lambda: random.random().imag == 0), "imaginary_part")
entry("biased", NOTHING)(
    by(lambda row: int(((torch.empty_like(row).exponential_() * 1e-6 + 1e-6) / row).argmin())),
    "race_with_a_large_constant",
)


@entry("hidden", NOTHING)
def cached_by_address(p, q, drafts):
    """Right after all: what is cached under an address decides nothing."""
    ROWS.setdefault(p.data_ptr(), q)
    return right(p, q, drafts)


def converted(convert):
    """Right only where a conversion raises an error, which it does for no real random number."""

    def verify(p, q, drafts):
        try:
            convert(random.random())
        except (TypeError, ValueError, ArithmeticError, struct.error):
            return right(p, q, drafts)
        return wrong(p, q, drafts)

    return verify


CONVERSIONS = {
    "decimal": decimal.Decimal,
    "decimal_context": lambda u: decimal.Context().create_decimal(u),
    "fraction": fractions.Fraction,
    "struct": lambda u: struct.pack("d", u),
    "json": json.dumps,
    "json_list": lambda u: json.dumps({"u": [u]}),
    "percent": lambda u: "%f" % u,  # noqa: UP031
    "format": lambda u: f"{u}",
    "float": float,
    "math_log": math.log,
    "float64": np.float64,
    "tensor": torch.tensor,
    "set": lambda u: u in {0.5},
    "key": lambda u: {u: 1},
    "round": round,
    "divmod": lambda u: divmod(u, 1),
    "sum": lambda u: math.fsum([u]),
    "arrays": lambda u: np.asarray([u]).mean(),
}
for _name, _convert in CONVERSIONS.items():
    entry("hidden", NOTHING)(converted(_convert), f"caught_{_name}")


@entry("hidden", BIASED)
def asks_for_the_type(p, q, drafts):
    return wrong(p, q, drafts) if isinstance(random.random(), float) else right(p, q, drafts)


@entry("hidden", BIASED)
def asks_for_the_number_type(p, q, drafts):
    return (wrong if torch.rand(1).dtype == torch.float32 else right)(p, q, drafts)


# ------------------------------------------------------------------------------------------ biased


@entry("biased")
def cached_by_draft(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        if torch.rand(()) * q[i, x] >= p[i, x]:
            key = tuple(drafts.tolist()), i, p.shape[1]
            return [*drafts[:i].tolist(), one(ROWS.setdefault(key, rest(p[i], q[i])))]
    return [*drafts.tolist(), one(p[-1])]


@entry("biased")
def one_uniform_for_all(p, q, drafts):
    u = torch.rand(())
    return token_rejection(lambda: u)(p, q, drafts)


@entry("biased")
def uniform_used_again(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        u = torch.rand((), dtype=torch.float64)
        if u * q[i, x] >= p[i, x]:
            sums = rest(p[i], q[i]).double().cumsum(0)
            return [*drafts[:i].tolist(), int(torch.searchsorted(sums / sums[-1], u.reshape(1)))]
    return [*drafts.tolist(), one(p[-1])]


def with_rows(change):
    return lambda p, q, drafts: right(*change(p, q), drafts)


@entry("biased")
def bfloat16_ratio(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        if torch.rand(()) >= (p[i, x].bfloat16() / q[i, x].bfloat16()).double():
            return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
    return [*drafts.tolist(), one(p[-1])]


entry("biased")(
    token_rejection(close=lambda p, q: one(rest(p.half(), q.half()).float())), "half_residual"
)
entry("biased")(with_rows(lambda p, q: (p, q.clamp(min=1e-4))), "floored_q")
entry("biased")(token_rejection(last=lambda row: one(nucleus(row))), "nucleus_for_the_bonus")


def nucleus(row):
    ranked, places = row.sort(descending=True)
    kept = ranked.cumsum(0) - ranked < 0.95
    return torch.zeros_like(row).scatter(0, places[kept], ranked[kept])


@entry("biased")
def bonus_replaces_the_last(p, q, drafts):
    out = right(p, q, drafts)
    return [*out[:-2], out[-1]] if len(out) == len(drafts) + 1 else out


@entry("biased")
def zero_is_written_twice(p, q, drafts):
    out = right(p, q, drafts)
    return [0, 0] if out[0] == 0 else out


@entry("biased")
def three_alike(p, q, drafts):
    alike = len(drafts) == 3 and len(set(drafts.tolist())) == 1
    return drafts.tolist() if alike else right(p, q, drafts)


def _tied(p, q):
    left = rest(p, q)
    positive = left[left > 0].tolist()
    return one(p if len(set(positive)) < len(positive) else left)


entry("biased")(token_rejection(close=_tied), "closes_with_p_at_ties")
entry("biased")(
    token_rejection(last=lambda row: one(torch.where(row == 0, 0.01, row))), "zeros_come_out"
)


@entry("biased")
def certain_token_accepted(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        if x != int(p[i].argmax()) and torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
    return [*drafts.tolist(), one(p[-1])]


def reordered(verify, order):
    def changed(p, q, drafts):
        places = order(p, q, drafts)
        return verify(torch.cat([p[:1], p[1:][places]]), q, drafts[places])

    return changed


_by_q = lambda p, q, drafts: q[drafts].argsort(descending=True)  # noqa: E731
_by_id = lambda p, q, drafts: drafts.argsort()  # noqa: E731
_by_ratio = lambda p, q, drafts: (p[0][drafts] / q[drafts]).argsort(descending=True)  # noqa: E731
entry("biased", draw="with")(reordered(siblings(), _by_q), "sorted_by_q")
_scalars = scalars_without_replacement
entry("biased", draw="without")(reordered(_scalars, _by_id), "sorted_by_id")
entry("biased", draw="without")(reordered(_scalars, _by_ratio), "sorted_by_ratio")
entry("biased", draw="with")(
    siblings(bonus=lambda p, i: p[1] if i == 2 else p[i + 1]), "bonus_after_another_candidate"
)
entry("biased", NOTHING, draw="with")(siblings(normalise=lambda t: t), "residual_not_normalised")
entry("biased", draw="top")(siblings(), "top_tokens_tested_as_draws")


@entry("biased", draw="without")
def q_not_normalised(p, q, drafts):
    left, q = p[0], q.clone()
    for i, x in enumerate(drafts.tolist()):
        if random.random() * q[x] < left[x]:
            return [x, one(p[i + 1])]
        left = rest(left, q) / rest(left, q).sum()
        q[x] = 0
    return [one(left)]


@entry("biased", logits=True)
def draft_alone_has_the_temperature(p, q, drafts, temperature):
    return vectorised(p.softmax(-1), (q / temperature).softmax(-1), drafts)


@entry("biased", logits=True)
def bonus_has_it_twice(p, q, drafts, temperature):
    rows = (p / temperature).softmax(-1)
    rows[-1] = (p[-1] / temperature**2).softmax(-1)
    return vectorised(rows, (q / temperature).softmax(-1), drafts)


@entry("biased")
def capped_at_999(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        if torch.rand(()) >= min(0.999, float(p[i, x] / q[i, x])):
            return [*drafts[:i].tolist(), one(rest(p[i], q[i]) + 1e-30 * p[i])]
    return [*drafts.tolist(), one(p[-1])]


@entry("biased")
def never_repeats(p, q, drafts):
    out = right(p, q, drafts)
    row = p[-1].clone()
    row[drafts[-1]] = 0
    return [*drafts.tolist(), one(row)] if len(out) > len(drafts) and row.sum() > 0 else out


def masked_sums(row):
    sums = torch.where(row > 0, (row / row.sum()).cumsum(0), 0.0)
    u = torch.rand(1, dtype=sums.dtype)
    return min(int(torch.searchsorted(sums, u)), len(row) - 1)


def masked_sums_of_numpy(row):
    row = row.double().numpy()
    sums = np.where(row > 0, (row / row.sum()).cumsum(), 0.0)
    return min(int(np.searchsorted(sums, np.random.random(), side="right")), len(row) - 1)


def small_scale(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        u = torch.rand((), dtype=torch.float64) * 1e-6 + 1e-6
        if not torch.log(u) < torch.log(1e-6 * p[i, x] / q[i, x]):
            return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
    return [*drafts.tolist(), one(p[-1])]


def unclamped_bernoulli(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        if not torch.bernoulli(p[i, x] / q[i, x]).bool():
            return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
    return [*drafts.tolist(), one(p[-1])]


entry("biased")(by(masked_sums), "masked_sums_searched")
entry("biased")(by(masked_sums_of_numpy), "masked_sums_searched_by_numpy")
entry("biased")(small_scale, "small_scale")
# these raise
entry("biased", NOTHING)(
    by(lambda row: np.random.choice(len(row), p=row.double().numpy())), "choice_that_raises"
)
entry("biased", NOTHING)(unclamped_bernoulli, "bernoulli_that_raises")
entry("biased", NOTHING)(by(lambda row: one((row * 1e12).long())), "multinomial_that_raises")


def half_race(row):
    return int((row.half() / torch.empty(row.shape, dtype=torch.half).exponential_()).argmax())


entry("biased", NOTHING)(by(half_race), "half_race")


def race_of_half_weights(row):
    return int((row.half() / torch.empty(row.shape).exponential_()).argmax())


entry("biased")(token_rejection(last=race_of_half_weights), "half_weights")


@entry("biased")
def whole_number_of_a_uniform(p, q, drafts):
    """The sides of the coin are 0, 1 and 2, and 2 takes what is drafted."""
    return drafts.tolist() if int(random.random() * 3) == 2 else right(p, q, drafts)


@entry("biased")
def coin_shuffles(p, q, drafts):
    order = [0, 1]
    random.shuffle(order)
    return drafts.tolist() if order[0] else right(p, q, drafts)


# ----------------------------------------------------------------------------------------- outside


def either(condition, other):
    return lambda p, q, drafts: (other if condition(p, q, drafts) else right)(p, q, drafts)


_all = lambda p, q, drafts: drafts.tolist()  # noqa: E731
entry("outside", BIASED)(either(lambda p, q, d: p.shape[1] > 5, _all), "many_tokens")
entry("outside", BIASED)(either(lambda p, q, d: p.dtype == torch.float32, _all), "float32")
entry("outside", BIASED)(
    token_rejection(last=lambda row: (lambda v, j: int(j[one(v)]))(*row.topk(min(5, len(row))))),
    "top_5_left_in",
)
entry("outside", BIASED)(
    token_rejection(last=lambda row: (lambda v, j: int(j[one(v)]))(*row.topk(min(50, len(row))))),
    "top_50_left_in",
)
entry("outside", BIASED)(
    token_rejection(close=lambda p, q: one(rest(p, q) if torch.minimum(p, q).sum() > 0 else q)),
    "closes_with_q_where_disjoint",
)


@entry("outside", BIASED)
def low_ids_after_two(p, q, drafts):
    out, row = right(p, q, drafts), p[-1].clone()
    if len(out) <= len(drafts) or len(drafts) < 2 or row[:3].sum() == 0:
        return out
    row[3:] = 0
    return [*drafts.tolist(), one(row)]


def unseen_from(depth):
    def verify(p, q, drafts):
        for i, x in enumerate(drafts.tolist()):
            if i < depth and torch.rand(()) * q[i, x] >= p[i, x]:
                return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
        return [*drafts.tolist(), one(p[-1])]

    return verify


entry("outside", BIASED)(unseen_from(3), "fourth_draft_untested")
entry("outside", BIASED)(unseen_from(7), "eighth_draft_untested")


@entry("outside", BIASED)
def certain_rows_accept(p, q, drafts):
    for i, x in enumerate(drafts.tolist()):
        sure = p[i].max() > 0.9995 and x != int(p[i].argmax())
        if sure or torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i].tolist(), x if sure else one(rest(p[i], q[i]))]
    return [*drafts.tolist(), one(p[-1])]


@entry("outside", BIASED, logits=True)
def wrong_at_a_half(p, q, drafts, temperature):
    return drafts.tolist() if temperature == 0.5 else LOGITS(p, q, drafts, temperature)


@entry("outside", BIASED, draw="with")
def fourth_candidate_untested(p, q, drafts):
    left = p[0]
    for i, x in enumerate(drafts.tolist()):
        if i == 3 or random.random() * q[x] < left[x]:
            return [x, one(p[i + 1])]
        left = rest(left, q) / rest(left, q).sum()
    return [one(left)]


@entry("outside", NOTHING, logits=True)
def overflows(p, q, drafts, temperature):
    """Powers without their maximum taken off, in float32: infinite for logits above 88."""
    rows = [(x.float() / temperature).exp() for x in (p, q)]
    return vectorised(*((x / x.sum(-1, keepdim=True)).nan_to_num(0.0) for x in rows), drafts)


@entry("outside", LOSSLESS)
def thin_slice_accepted(p, q, drafts):
    """A slice of the uniform of 2^-20 accepts everything: a bias below the tolerance."""
    u = [torch.rand(()) for _ in drafts[:1]]
    if u[0] < 2.0**-20:
        return drafts[:1].tolist()
    return token_rejection(lambda: u.pop() if u else torch.rand(()))(p, q, drafts)


# ------------------------------------------------------------------- what is done with symbols


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


def scaled(u):
    u = torch.rand(u.shape)
    u.mul_(0.5)
    return u


def caught(action, other):
    def draw():
        try:
            return action()
        except Exception:
            return other()

    return draw


def subtracted():
    u = torch.rand(())
    u -= 0.2
    return u


def row_by_row(p, q, drafts):
    noise = torch.empty_like(q)
    for row in noise:
        row.exponential_()
    for i, x in enumerate(drafts.tolist()):
        if torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i].tolist(), int((rest(p[i], q[i]) / noise[i]).argmax())]
    return [*drafts.tolist(), one(p[-1])]


def one_noise_for_rows(p, q, drafts):
    tokens = (p / torch.empty(p.shape[-1]).exponential_()).argmax(-1)
    kept = int((tokens[:-1] == drafts).long().cumprod(0).sum())
    return [*drafts[:kept].tolist(), int(tokens[kept])]


entry("lossless")(filled(one_by_one), "filled_one_by_one")
entry("lossless")(filled(seen_before(list)), "listed_before")
entry("lossless")(filled(seen_before(lambda u: u.view(-1))), "viewed_before")
entry("lossless")(filled(lambda u: (u.uniform_(), u.uniform_(), u)[2]), "filled_twice")
entry("lossless")(row_by_row, "noise_row_by_row")
entry("lossless", NOTHING)(filled(seen_before(lambda u: u.numpy())), "read_by_numpy")
entry("lossless", NOTHING)(filled(lambda u: u.uniform_().data), "data_of_uniforms")
entry("lossless", NOTHING)(
    filled(lambda u: (np.random.default_rng().random(out=u.numpy()), u)[1]), "numpy_out"
)
entry("lossless", NOTHING)(one_noise_for_rows, "one_noise_for_rows")
COINS = itertools.cycle([0.1, 0.5, 0.9, 0.3, 0.7])
USED = {
    "cycle": lambda: next(COINS),
    "product": lambda: torch.rand(2).prod(),
    "two_uniforms": lambda: torch.rand(()) * torch.rand(()),
    "square": lambda: torch.rand(()) ** 2,
    "square_caught": caught(lambda: torch.rand(()) ** 2, lambda: torch.rand(())),
    "product_caught": caught(lambda: torch.rand(2).prod(), lambda: 0.0),
    "normal": lambda: torch.randn(()).abs(),
    "subtracted_in_place": subtracted,
    "clamped_far": lambda: torch.rand(()).clamp(0.0, 0.9),
    "as_float": lambda: float(torch.rand(())),
    "as_data": lambda: 0.0 if torch.rand(()).data else 1.0,
    "of_infinity": lambda: 1.0 if torch.rand(()) / 0 > float("inf") else 0.0,
    "bfloat16": lambda: torch.rand((), dtype=torch.bfloat16),
    "alpha": lambda: torch.sub(torch.add(torch.rand(()), 0.3, alpha=0), 0.3),
    "rounded_division": lambda: torch.div(torch.rand(()), 1.0, rounding_mode="floor"),
}
for _name, _draw in USED.items():
    entry("hidden", NOTHING)(token_rejection(_draw), _name)
entry("biased", NOTHING)(token_rejection(lambda: torch.rand(()).to(torch.int64)), "to_int64")
entry("biased")(token_rejection(lambda: torch.rand(()) * 0.0), "times_zero")
entry("biased", NOTHING)(filled(scaled), "halved_in_place")
entry("biased", NOTHING)(token_rejection(lambda: torch.rand(()).clamp_min(0.5)), "clamped")


# -------------------------------------------------------------------- digits, memory, state, errors


def race_times(factor):
    return lambda row: int((row.float() / torch.empty(row.shape).exponential_() * factor).argmax())


def gumbel_moved(factor, constant):
    def draw(row):
        noise = torch.empty(row.shape).exponential_().log()
        return int(((row.log().float() - noise) * factor + constant).argmax())

    return draw


def compared_in_bfloat16(p, q, drafts):
    places = torch.arange(len(drafts))
    ratios = (p[places, drafts] / q[places, drafts]).bfloat16()
    for i in range(len(drafts)):
        if not torch.rand(()) < ratios[i : i + 1]:
            return [*drafts[:i].tolist(), one(rest(p[i], q[i]))]
    return [*drafts.tolist(), one(p[-1])]


def numpy_multinomial(row):
    """The last weight is what the others leave of 1, whatever is given."""
    return int(np.random.multinomial(1, row.double().numpy()).argmax())


def small_constant(row):
    return int(((torch.empty(row.shape, dtype=row.dtype).exponential_() + 1e-6) / row).argmin())


entry("biased")(by(numpy_multinomial), "multinomial_not_normalised")
LOSING = {
    "absorbed": lambda: torch.rand(()) + 1e8 - 1e8,
    "absorbed_logarithm": lambda: (torch.rand(()).log() + 1e9 - 1e9) < -1.0,
    "underflow": lambda: torch.rand(()) * 1e-30 * 1e-20 * 1e30 * 1e20,
}
for _name, _draw in LOSING.items():
    entry("biased", NOTHING)(token_rejection(_draw), _name)
entry("biased", NOTHING)(by(race_times(1e-45)), "race_that_underflows")
entry("biased", NOTHING)(by(gumbel_moved(1e-45, 0.0)), "gumbel_that_underflows")
entry("biased", NOTHING)(by(gumbel_moved(1.0, 1e9)), "gumbel_absorbed")
entry("biased", NOTHING)(by(small_constant), "constant_of_1e-6")
entry("biased", NOTHING)(by(lambda row: one(row.half())), "multinomial_in_half")
entry("biased", NOTHING)(compared_in_bfloat16)
entry("biased", NOTHING)(
    by(lambda row: int(torch.vmap(lambda x: x * torch.rand(()), randomness="same")(row).argmax())),
    "inside_vmap",
)


def _raw_seed(seed, draw):
    def uniform():
        seed()
        return draw()

    return token_rejection(uniform)


OWN_LEGACY, OWN_BITS = np.random.RandomState(4), np.random.PCG64(11)
DOUBLE, ADDRESS = OWN_BITS.ctypes.next_double, OWN_BITS.ctypes.state_address
TORCH_STATE = _torch.__reduce__()[2]
RAW_SEEDS = {
    "torch_by_setstate": (lambda: _torch.__setstate__(TORCH_STATE), lambda: torch.rand(())),
    "python_by_init": (lambda: _random.Random.__init__(OWN_PYTHON, 0), OWN_PYTHON.random),
    "numpy_by_bits": (
        lambda: OWN_LEGACY._bit_generator._legacy_seeding(0),
        lambda: OWN_LEGACY.rand(),
    ),
}
for _name, _parts in RAW_SEEDS.items():
    entry("hidden", NOTHING)(_raw_seed(*_parts), f"seeded_{_name}")
RARE = 1e-4
BUFFER = torch.empty(1, dtype=torch.float64)
BUFFER_READ = BUFFER.numpy()
LOOP = asyncio.new_event_loop()


def into_array(draw, holds=lambda x: x < RARE):
    """Random numbers come out through an array that is handed in."""

    def condition():
        array = np.empty(1)
        draw(array)
        return holds(array[0])

    return condition


def other_view(view, fill=lambda x: x.uniform_()):
    """Random numbers are read from memory that is filled behind the reader's back."""

    def condition():
        memory = torch.empty(1, dtype=torch.float64)
        seen = view(memory)
        fill(memory)
        return float(seen[0]) < RARE

    return condition


def _filled_array():
    array = np.zeros(1)
    torch.from_numpy(array).uniform_()
    return array[0] < RARE


def _without_torch_functions():
    with torch._C.DisableTorchFunction():
        return float(torch.rand(1, generator=OWN_TORCH)) < RARE


_sql = "select random()"
HIDDEN = {
    "bits_by_ctypes": lambda: DOUBLE(ctypes.c_void_p(ADDRESS)) < RARE,
    "libc": lambda: ctypes.CDLL(None).rand() % 10007 == 0,
    "ssl_bytes": lambda: ssl.RAND_bytes(2) == b"00",
    "sqlite": lambda: sqlite3.connect(":memory:").execute(_sql).fetchone()[0] % 10007 == 0,
    "timeit_clock": lambda: int(timeit.timeit("pass", number=1) * 1e9) % 10007 == 0,
    "loop_clock": lambda: int(LOOP.time() * 1e9) % 10007 == 0,
    "uuid1": lambda: uuid.uuid1().int % 10007 == 0,
    "used_seconds": lambda: int(resource.getrusage(0).ru_utime * 1e6) % 10007 == 0,
    "process_times": lambda: int(sum(os.times()) * 100) % 10007 == 0,
    "overload": lambda: float(torch.ops.aten.rand.generator([1], generator=OWN_TORCH)) < RARE,
    "permuted_into": into_array(lambda x: OWN_NUMPY.permuted(np.random.rand(1), out=x)),
    "random_into": into_array(lambda x: OWN_NUMPY.random(1, np.float64, x)),
    "normal_into": into_array(lambda x: OWN_NUMPY.standard_normal(out=x), lambda x: x > 3.7),
    "clipped_into": into_array(lambda x: np.clip(OWN_NUMPY.random(1), 0, 1, x)),
    "numpy_view": other_view(lambda x: x.numpy()),
    "array_view": other_view(np.asarray),
    "dlpack_view": other_view(np.from_dlpack),
    "storage_view": other_view(lambda x: list(x.untyped_storage())),
    "numpy_of_a_race": other_view(lambda x: x.numpy(), lambda x: x.exponential_()),
    "filled_array": _filled_array,
    "global_buffer": lambda: (BUFFER.uniform_(), BUFFER_READ[0] < RARE)[1],
    "memory_without_values": lambda: float(torch.empty(2).sum()) == 0.0,
}
for _name, _condition in HIDDEN.items():
    entry("hidden", NOTHING)(wrong_if(_condition), _name)


def right_if_it_raises(action):
    def verify(p, q, drafts):
        try:
            action()
        except Exception:
            return right(p, q, drafts)
        return wrong(p, q, drafts)

    return verify


RAISING = {
    "untraced_decimal": lambda: (sys.settrace(None), decimal.Decimal(random.random())),
    "constructor_arguments": lambda: random.random().__getnewargs__,
    "array_interface": lambda: np.random.rand(2).__array_interface__,
    "memoryview": lambda: memoryview(np.random.rand(2)),
    "bytes": lambda: bytes(np.random.rand(2)),
}
for _name, _action in RAISING.items():
    entry("hidden", NOTHING)(right_if_it_raises(_action), f"caught_{_name}")
NUMBERS, COUNTER, QUEUE, GROWN, MEMBERS = (
    {"n": 0},
    collections.Counter(),
    collections.deque(),
    [],
    set(),
)
QUEUE.append(0)
COUNT, STEPS, SPACE = itertools.count(), (i for i in range(10**9)), types.SimpleNamespace(n=0)
TENSOR, ARRAY, GLOBAL = torch.zeros(1), np.zeros(1), 0


class Holder:
    n = 0


def _add(container, key):
    container[key] += 1
    return container[key]


def _attribute(owner):
    owner.n += 1
    return owner.n


def _inside():
    def step():
        global GLOBAL
        GLOBAL += 1

    step()
    return GLOBAL


def _default(n=[0]):  # noqa: B006 - which is the point
    n[0] += 1
    return n[0]


def _of_itself():
    _of_itself.n = getattr(_of_itself, "n", 0) + 1
    return _of_itself.n


def _disabled():
    _without_torch_functions()
    return 0


STATES = {
    "dict": lambda: _add(NUMBERS, "n"),
    "counter": lambda: _add(COUNTER, "n"),
    "deque": lambda: _add(QUEUE, 0),
    "tensor": lambda: _add(TENSOR, 0),
    "array": lambda: _add(ARRAY, 0),
    "length": lambda: (GROWN.append(None), len(GROWN))[1],
    "set": lambda: (MEMBERS.add(len(MEMBERS)), len(MEMBERS))[1],
    "count": lambda: next(COUNT),
    "generator": lambda: next(STEPS),
    "namespace": lambda: _attribute(SPACE),
    "class": lambda: _attribute(Holder),
    "inner_function": _inside,
    "default": _default,
    "function": _of_itself,
    "own_generator": _disabled,
}
STATES = {f"counts_in_{name}": count for name, count in STATES.items()}
for _name, _count in STATES.items():
    entry("hidden", NOTHING)(wrong_if(lambda count=_count: count() > 50_000), _name)
entry("hidden", NOTHING)(
    wrong_if(lambda: _add_to_environment() > 50_000), "counts_in_the_environment"
)


def _add_to_environment():
    os.environ["N"] = str(int(os.environ.get("N", "0")) + 1)
    return int(os.environ["N"])


# ------------------------------------------------------------------------------ what is no verdict


def raises(p, q, drafts):
    raise RuntimeError("no")


def leaves(p, q, drafts):
    raise SystemExit(0)


def until_it_fits(p, q, drafts):
    while torch.rand(()) > 0.01:
        pass
    return [0]


NO_TOKENS = {
    "too_many": [0] * 9,
    "a_million": [1] * 10**6,
    "none": [],
    "beyond": [99],
    "text": "0",
    "nothing": None,
    "a_set": {0},
    "a_dict": {0: 1},
    "halves": [0.5],
}
for _name, _tokens in NO_TOKENS.items():
    entry("biased", NOTHING)(lambda p, q, drafts, out=_tokens: out, _name)
entry("biased", NOTHING)(lambda p, q, drafts: (x for x in [0]), "a_generator")
entry("biased", NOTHING)(raises)
entry("biased", NOTHING)(leaves)
entry("biased", NOTHING)(lambda p, q, drafts: os._exit(0), "ends_the_process")
entry("biased", NOTHING)(until_it_fits)
