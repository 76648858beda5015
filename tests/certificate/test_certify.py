"""Verdicts on verifiers that draw as they like, and what becomes of the process that asks.

What is followed is followed in one fork of this process, where most of these tests look.
"""

# ruff: noqa: NPY002 - numpy's global functions are among what is tested
from __future__ import annotations

import bisect
import ctypes
import datetime
import decimal
import gc
import itertools
import multiprocessing
import os
import random
import random as rnd
import resource
import signal
import sqlite3
import ssl
import struct
import sys
import threading
import time
import types
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import biased
import numpy as np
import psutil
import pytest
import torch
from certificate.verifiers import TABLE
from torch import rand as bound_rand
from typer.testing import CliRunner

import specwb
from specwb.certificate import child, interception, measure
from specwb.certificate.adapters import ADAPTERS, drawn, residual
from specwb.certificate.certify import certify
from specwb.certificate.forking import distribution
from specwb.certificate.instances import instances
from specwb.certificate.known import VERIFIERS, token_rejection
from specwb.certificate.measure import BIASED, LOSSLESS, NOTHING
from specwb.certificate.symbols import NoCertificate
from specwb.cli.main import app
from specwb.rules import Rejection

PAGE = Path(__file__).parents[2] / "docs" / "certify.md"
BUSY = 900.0  # seconds, on a machine that does other things as well


@pytest.fixture
def confirmed_soon(monkeypatch):
    """A fork of this process confirms a bias by a tenth of the runs: more of them can only refuse
    what is no bias."""
    monkeypatch.setattr(measure, "CONFIRMED", 25)


def all_instances(one):
    return instances(one.draw, one.logits)


# ------------------------------------------------------------------------------------- adapters


def flashinfer(q, drafts, p):
    tokens = token_rejection(p[0], q[0], drafts[0])
    return torch.tensor([[*map(int, tokens), *[-1] * (p.shape[1] - len(tokens))]]), None


def vllm(draft_ids, counts, longest, ends, draft_probs, target_probs, bonus, metadata):
    """All recovered tokens by a race, then the first rejection of each request."""
    assert (counts, metadata.all_random, ends.tolist()) == ([longest], True, [longest])
    assert target_probs.shape == draft_probs.shape
    places = torch.arange(longest)
    noise = torch.empty_like(target_probs).exponential_()
    recovered = ((target_probs - draft_probs).clamp(min=0) / noise).argmax(-1)
    ratio = target_probs[places, draft_ids] / draft_probs[places, draft_ids]
    kept = int((torch.rand(longest) < ratio).long().cumprod(0).sum())
    out = torch.full((1, longest + 1), -1)
    out[0, :kept] = draft_ids[:kept]
    out[0, kept] = bonus[0, 0] if kept == longest else recovered[kept]
    return out


def sglang(
    predicts, accept_index, accept_token_num, candidates, target_probs, draft_probs, **given
):
    """One coin a node, against the running sum of its children's p."""
    at, count = 0, 0
    child = int(given["retrive_next_token"][0, 0])
    accept_index[0, 0], total = given["retrive_index"][0, 0], 0.0
    while child != -1:
        token = candidates[0, child]
        total += target_probs[0, at, token]
        if given["uniform_samples"][0, at] * given["threshold_acc"] <= total:
            predicts[accept_index[0, count]] = token
            at, count, total = child, count + 1, 0.0
            accept_index[0, count] = given["retrive_index"][0, child]
            child = int(given["retrive_next_token"][0, child])
        else:
            draft_probs[0, at, token] = target_probs[0, at, token]
            child = int(given["retrive_next_sibling"][0, child])
    accept_token_num[0] = count
    rest = (target_probs[0, at] - draft_probs[0, at]).clamp(min=0)
    u = given["uniform_samples_for_final_sampling"] * rest.sum()
    predicts[accept_index[0, count]] = torch.searchsorted(rest.cumsum(0), u)[0]


def tensorrt_llm(draft_probs, target_probs, generator, draft_tokens):
    places = torch.arange(len(draft_tokens), device=generator.device)
    kept = (target_probs[places, draft_tokens] / draft_probs[places, draft_tokens]).clamp(max=1)
    return (torch.rand(kept.shape, generator=generator) > kept).nonzero()


def eagle(logits, candidates, logits_processor, cold=False):
    """Point masses along the paths; ``cold``: the last row without the processor, as in EAGLE-1."""
    best, kept = 0, 0
    for i in range(1, candidates.shape[1]):
        p = logits_processor(None, logits[best, i - 1][None])[0].softmax(0)
        tried = []
        for j, path in enumerate(candidates):
            if path[:i].equal(candidates[best, :i]) and path[i] not in tried:
                if random.random() <= p[path[i]]:
                    best, kept = j, i
                    break
                tried.append(path[i])
                p[path[i]] = 0
                p = p / p.sum()
        if kept < i:
            return torch.tensor(best), kept, p
    last = logits[best, kept]
    return torch.tensor(best), kept, (last if cold else logits_processor(None, last)).softmax(0)


def medusa(logits, candidates, temperature, threshold, alpha):
    p = (logits[:, :-1] / temperature).softmax(-1)
    entropy = -(p * (p + 1e-5).log()).sum(-1)
    chosen = p.gather(-1, candidates[:, 1:, None])[..., 0]
    lengths = (chosen > (alpha * (-entropy).exp()).clamp(max=threshold)).cumprod(1).sum(1)
    return lengths.argmax(), lengths.max()


def recurrent_drafter(beams, by_target, by_drafter):
    drafted = beams[..., 1:, None]
    ratio = (by_target[..., :-1, :].gather(-1, drafted) - by_drafter.gather(-1, drafted)).exp()
    kept = (torch.rand(ratio.shape[:-1]) < ratio[..., 0]).long().cumprod(-1).sum(-1)
    return kept.max(-1)


def mcsd(p, q, candidates):
    for i, x in enumerate(candidates):
        if random.random() * q[x] < p[x]:
            return i, None
        p = residual(p, q)
    return None, p


LIKE = [
    ("flashinfer", flashinfer, "chain", LOSSLESS),
    ("vllm", vllm, "chain", LOSSLESS),
    ("vllm", lambda *a: vllm(*a[:5], a[5].flip(-1), *a[6:]), "chain", BIASED),
    ("sglang", sglang, "top", LOSSLESS),
    ("sglang", lambda **a: sglang(**{**a, "threshold_acc": 0.5}), "top", BIASED),
    ("tensorrt_llm", tensorrt_llm, "chain", LOSSLESS),
    ("tensorrt_llm", lambda q, p, *a: tensorrt_llm(p, q, *a), "chain", BIASED),
    ("eagle", eagle, "top", LOSSLESS),
    ("eagle", eagle, "chain", LOSSLESS),
    ("medusa", medusa, "top", BIASED),
    ("recurrent_drafter", recurrent_drafter, "chain", LOSSLESS),
    ("recurrent_drafter", recurrent_drafter, "top", BIASED),
    ("mcsd", mcsd, "with", LOSSLESS),
    ("mcsd", mcsd, "without", BIASED),
]


# ------------------------------------------------------------------------------- ways to draw

P = torch.tensor([0.5, 0.2, 0.3, 0.0], dtype=torch.float64)


def taken_off(weights):
    u = random.random() * sum(weights)
    for x, weight in enumerate(weights):
        if u < weight:
            return x
        u -= weight
    return 0


@torch.compile(backend="eager")
def compiled(p):
    return int(torch.multinomial(p, 1))


WAYS = {
    "multinomial": lambda: int(torch.multinomial(P, 1)),
    "race": lambda: int((P / torch.empty(4).exponential_()).argmax()),
    "race in place": lambda: int(P.clone().div_(torch.empty(4).exponential_()).argmax(-1)),
    "least arrival": lambda: int((torch.empty(4).exponential_() / P).argmin()),
    "gumbel": lambda: int((P.log() - torch.log(-torch.log(torch.rand(4)))).argmax()),
    "inverse cdf": lambda: int((P.cumsum(0) > torch.rand(1)).int().argmax()),
    "searchsorted": lambda: int(torch.searchsorted(P.cumsum(0), torch.rand(1), right=True)),
    "numpy": lambda: int(np.random.default_rng().choice(4, p=P.numpy())),
    "choices": lambda: random.choices(range(4), P.tolist())[0],
    "cumulated choices": lambda: random.choices(range(4), cum_weights=P.cumsum(0).tolist())[0],
    "numpy's multinomial": lambda: int(np.random.default_rng().multinomial(1, P.numpy()).argmax()),
    "numpy's searchsorted": lambda: int(np.searchsorted(P.cumsum(0).numpy(), random.random())),
    "bisect": lambda: bisect.bisect(P.cumsum(0).tolist(), random.random()),
    "categorical": lambda: int(torch.distributions.Categorical(probs=P).sample()),
    "gumbel with epsilons": lambda: int(
        (P.log() - torch.log(-torch.log(torch.rand(4) + 1e-20) + 1e-20)).argmax()
    ),
    "gumbel, clamped": lambda: int(
        (P.log() - torch.log(-torch.log(torch.rand(4).clamp(1e-9, 1.0)))).argmax()
    ),
    "torch's Gumbel": lambda: int(
        (P.log() + torch.distributions.Gumbel(torch.zeros(4), torch.ones(4)).sample()).argmax()
    ),
    "numpy's gumbel": lambda: int(
        np.argmax(P.log().numpy() + np.random.default_rng().gumbel(size=4))
    ),
    "numpy's race": lambda: int(np.argmin(np.random.default_rng().exponential(size=4) / P.numpy())),
    "taken off": lambda: taken_off(P.tolist()),
    "global generator": lambda: int(torch.multinomial(P, 1, generator=torch.default_generator)),
    "compiled": lambda: compiled(P),
    "chain of coins": lambda: next(
        x for x in range(4) if x == 2 or torch.rand(()) < P[x] / P[x:].sum()
    ),
    "one uniform": lambda: (lambda u: 0 if u < 0.5 else 1 if u < 0.7 else 2)(random.random()),
    "log u": lambda: (lambda u: 0 if u < np.log(0.5) else 1 if u < np.log(0.7) else 2)(
        torch.rand(()).log()
    ),
    "1 - u": lambda: (lambda u: 0 if 1 - u < 0.5 else 1 if 2 * (1 - u) < 1.4 else 2)(
        rnd.uniform(0, 1)
    ),
    "filled": lambda: (lambda u: (u.uniform_(), int((P.cumsum(0) > u).int().argmax()))[1])(
        torch.zeros(1)
    ),
    "bernoulli": lambda: 0 if torch.bernoulli(P[0]) else 1 if torch.bernoulli(P[1] / 0.5) else 2,
    "bound": lambda: int((P.cumsum(0) > bound_rand(1)).int().argmax()),
}


def twice():
    u = torch.rand(())
    return bool(u < 0.5), bool(u < 0.25)


def shared_noise():
    return tuple((torch.ones(2, 2) / torch.empty(2).exponential_()).argmax(-1).tolist())


ASKED = {  # what one uniform, or one noise, is asked, and more than one draw
    "twice": twice,
    "whole parts": lambda: (int(random.random() * 3), int(1 + 2 * torch.rand(()))),
    "above": lambda: bool(torch.empty(()).exponential_() > 0.7),
    "without replacement": lambda: tuple(torch.multinomial(P, 2).tolist()),
    "shared noise": shared_noise,
    "many": lambda: tuple((torch.rand(9) < 0.5).tolist()),
}


class Congruential:
    """A generator of one's own, whose state is a number of Python's."""

    state = 1

    def draw(self):
        self.state = (self.state * 1103515245 + 12345) % 2**31
        return self.state % 100


OWN_NUMPY, OWN_TORCH, OWN_BITS = np.random.default_rng(7), torch.Generator(), np.random.PCG64(11)
DOUBLE, ADDRESS = OWN_BITS.ctypes.next_double, OWN_BITS.ctypes.state_address
ARRAY, CONGRUENTIAL = np.empty(1), Congruential()


@torch.jit.script
def compiled_draw(t: float) -> bool:
    return bool((torch.rand(1) < t).item())


def in_place(change):
    u = torch.rand(2)
    change(u)
    return bool((u < 0.5).all())


def caught(action):
    """What a conversion does that real random numbers allow."""
    try:
        action()
    except (TypeError, ValueError, ArithmeticError, struct.error):
        return 1
    return 0


def in_a_thread():
    found = []
    worker = threading.Thread(target=lambda: found.append(torch.rand(())))
    worker.start()
    worker.join()
    return bool(found[0] < 0.5)


def other_view(view):
    """Memory that is filled behind the reader's back."""
    memory = torch.empty(1, dtype=torch.float64)
    seen = view(memory)
    memory.uniform_()
    return float(seen[0]) < 0.5


def half_race():
    return int((P.half() / torch.empty(4, dtype=torch.half).exponential_()).argmax())


REFUSED = {  # a draw, and words of the reason why it is not followed
    "product": (lambda: bool(torch.rand(()) * torch.rand(()) < 0.5), "two random numbers"),
    "prod": (lambda: bool(torch.rand(2).prod() < 0.5), "prod of random numbers"),
    "square": (lambda: bool(torch.rand(()) ** 2 < 0.5), "pow of random numbers"),
    "caught": (lambda: caught(lambda: torch.rand(()) ** 2), "pow of random numbers"),
    "normal": (lambda: bool(torch.randn(()) < 0.5), "torch.randn"),
    "subtracted": (lambda: in_place(lambda u: u.__isub__(0.2)), "isub of random numbers"),
    "halved": (lambda: in_place(lambda u: u.mul_(0.5)), "mul_ of random numbers"),
    "clamped": (lambda: bool(torch.rand(()).clamp_min(0.5) < 0.7), "clamp_min of random numbers"),
    "float": (lambda: float(torch.rand(())) < 0.5, "float of random numbers"),
    "text": (lambda: f"{random.random()}" < "0.5", "format of random numbers"),
    "key": (lambda: bool({random.random(): 1}), "hash of random numbers"),
    "data": (lambda: bool(torch.rand(()).data < 0.5), "data of random numbers"),
    "imaginary": (lambda: random.random().imag, "imag of random numbers"),
    "bfloat16": (lambda: bool(torch.rand((), dtype=torch.bfloat16) < 0.5), "torch.bfloat16"),
    "alpha": (lambda: bool(torch.add(torch.rand(()), 0.3, alpha=0) < 0.5), "with alpha="),
    "infinite": (lambda: bool(torch.rand(()) / 0 > float("inf")), "1/0"),
    "whole": (lambda: int(torch.rand(()).to(torch.int64)), "converted to torch.int64"),
    "absorbed": (lambda: bool(torch.rand(()) + 1e8 < 1e8), "lose their digits"),
    "underflow": (lambda: bool(torch.rand(()) * 1e-30 * 1e-20 < 1e-51), "lose their digits"),
    "large constant": (
        lambda: int(((torch.empty(4).exponential_() * 1e-6 + 1e-6) / 0.5).argmin()),
        "argmin of random numbers",
    ),
    "half race": (half_race, "torch.float16"),
    "half weights": (lambda: int(torch.multinomial(P.half(), 1)), "torch.float16"),
    "vmap": (
        lambda: torch.vmap(lambda x: x * torch.rand(()), randomness="same")(P).argmax(),
        "inside of vmap",
    ),
    "decimal": (lambda: caught(lambda: decimal.Decimal(random.random())), "it caught TypeError"),
    "struct": (lambda: caught(lambda: struct.pack("d", random.random())), "float of"),
    "bytes": (lambda: caught(lambda: bytes(np.random.rand(2))), "random numbers"),
    "untraced": (lambda: sys.settrace(None), "sys.settrace while it runs"),
    "clock": (lambda: time.time_ns() & 1, "time.time_ns"),
    "date": (lambda: datetime.datetime.now().minute, "datetime's now"),
    "address": (lambda: (id(object()) >> 4) % 7, "id()"),
    "memory": (lambda: torch.empty(3).data_ptr() % 128, "data_ptr"),
    "no values": (lambda: float(torch.empty(2).sum()), "another result in a second run"),
    "urandom": (lambda: os.urandom(1)[0], "urandom"),
    "uuid": (lambda: uuid.uuid1().int % 97, "uuid._generate_time_safe"),
    "ssl": (lambda: ssl.RAND_bytes(2), "RAND_bytes"),
    "sqlite": (lambda: sqlite3.connect(":memory:"), "sqlite3.connect while it runs"),
    "usage": (lambda: resource.getrusage(0).ru_utime, "resource.getrusage"),
    "file": (lambda: Path("/etc/hosts").read_text(), "the file /etc/hosts"),
    "libc": (lambda: ctypes.CDLL(None).rand(), "ctypes.dlopen while it runs"),
    "thread": (in_a_thread, "start_new"),
    "numpy made": (lambda: np.random.default_rng(0).random() < 0.5, "generator of numpy made"),
    "python made": (lambda: random.Random(0).random() < 0.5, "random.Random made"),
    "own generator": (lambda: bool(torch.rand((), generator=OWN_TORCH) < 0.5), "of its own"),
    "seed of torch": (lambda: torch.manual_seed(0), "manual_seed of a torch.Generator"),
    "seed of python": (lambda: random.seed(0), "random.seed"),
    "seed of numpy": (lambda: np.random.seed(0), "numpy.random.seed"),
    "torchscript": (lambda: compiled_draw(0.1), "by a way that is not intercepted"),
    "bits": (lambda: DOUBLE(ctypes.c_void_p(ADDRESS)) < 0.5, "by a way that is not intercepted"),
    "into an array": (lambda: OWN_NUMPY.random(out=ARRAY) is None, "an array that exists"),
    "permuted": (lambda: OWN_NUMPY.permuted(ARRAY, out=ARRAY) is None, "an array that exists"),
    "array's memory": (lambda: torch.from_numpy(ARRAY).uniform_(), "memory that was there before"),
    "numpy's view": (lambda: other_view(lambda x: x.numpy()), "memory that was there before"),
    "own state": (lambda: CONGRUENTIAL.draw(), "another result in a second run"),
    "shared noise": (shared_noise, "two decisions"),
    "many": (lambda: tuple((torch.rand(9) < 0.5).tolist()), "more than 100 ways"),
}


def work():
    """What is followed: the distributions of draws with the numbers of their runs, verdicts on
    verifiers; or the reason why there is none."""
    interception.install()
    found = {}
    for name, function in (
        WAYS | ASKED | {name: draw for name, (draw, _) in REFUSED.items()}
    ).items():
        try:
            found[name] = distribution(function, **({"most": 100} if name == "many" else {}))
        except NoCertificate as error:
            found[name] = str(error), 0
    for name, (verify, draw, logits, cases, _) in VERDICTS.items():
        found[name] = measure.measured(verify, cases, draw, logits)
    return found


@pytest.fixture(scope="module")
def followed():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "CONFIRMED", 25)
        return child.forked(work, BUSY)


def test_every_way_to_draw_has_its_distribution(followed):
    for way in WAYS:
        assert followed[way][0] == pytest.approx({0: 0.5, 1: 0.2, 2: 0.3}, abs=1e-12), way


def test_what_else_random_numbers_are_asked(followed):
    found, runs = followed["twice"]
    assert found == {(True, True): 0.25, (True, False): 0.25, (False, False): 0.5}
    assert runs == 3
    parts, _ = followed["whole parts"]
    assert parts == pytest.approx({(i, j): 1 / 6 for i in range(3) for j in (1, 2)})
    assert followed["above"][0][True] == pytest.approx(np.exp(-0.7))
    pairs, _ = followed["without replacement"]
    assert pairs[1, 0] == pytest.approx(0.2 * 0.5 / 0.8)
    assert sum(pairs.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_by_its_name(name, followed):
    reason, runs = followed[name]
    assert runs == 0, reason
    assert REFUSED[name][1] in reason


# ------------------------------------------------------------------------------------- verdicts


def verdicts():
    """By name: a verifier, how it is drafted for, instances and the verdict. A lossless one runs
    through some instances."""
    for name, one in TABLE.items():
        cases = all_instances(one)
        cases = cases[::9] if one.verdict == LOSSLESS else cases
        cases = [case for case in cases if one.shown in str(case)]
        yield name, (one.function, one.draw, one.logits, cases, one.verdict)
    for name, one in VERIFIERS.items():
        cases = all_instances(one)
        cases = cases[::9] if one.verdict == LOSSLESS else cases[:: -1 if one.logits else 1]
        yield f"known {name}", (one.verify, one.draw, one.logits, cases, one.verdict)
    for i, (like, function, draw, verdict) in enumerate(LIKE):
        cases = instances(draw)[: 12 : 6 if verdict == LOSSLESS else 1]
        yield f"{like} {i}", (partial(ADAPTERS[like], function), draw, False, cases, verdict)
    for cold, temperature in ((False, 0.7), (True, 1.0), (True, 0.7)):
        verify = partial(ADAPTERS["eagle"], partial(eagle, cold=cold))
        cases = [replace(one, temperature=temperature) for one in instances("top")[:3]]
        verdict = BIASED if cold and temperature != 1 else LOSSLESS
        yield f"eagle {cold} {temperature}", (verify, "top", True, cases, verdict)


VERDICTS = dict(verdicts())


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verifier_gets_its_verdict(name, followed):
    result = followed[name]
    assert result.verdict == VERDICTS[name][-1], result
    if result.worst:
        where, _, got, wanted = result.worst
        assert where in [replace(one, tv=None, runs=0) for one in result.instances]
        assert 0 < abs(got - wanted) <= 2 * result.tv


def test_the_most_probable_tokens_are_as_many_as_asked_for():
    """Also where q has fewer."""
    for case in instances("top"):
        ((paths, _),) = case.drafts("top")
        assert len(paths) == case.drafted + 1


def test_every_adapter_has_a_test_and_is_on_the_page():
    assert {like for like, *_ in LIKE} | {"transformers"} == set(ADAPTERS)
    rows = PAGE.read_text("utf-8").split("## How it is computed")[0]
    assert [name for name in ADAPTERS if f"| `{name}` |" not in rows] == []


def test_transformers_own_function_is_lossless_by_its_name():
    name = "transformers.generation.utils:_speculative_sampling"
    result = certify(name, like="transformers", cases=instances("chain")[:2], seconds=BUSY)
    assert result.verdict == LOSSLESS, result


class Failing(Rejection):
    def node(self, p, q, tokens, ok, u):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("rule", "reason"),
    [("longest", "ROOTS"), (biased.OwnUniforms, "of its own"), (Failing, "raised")],
)
def test_a_rule_that_cannot_be_followed_gets_no_certificate(rule, reason):
    """What rules get verdicts: tests/rules/test_decisions.py."""
    result = certify(rule)
    assert result.verdict == NOTHING
    assert reason in result.reason


# ------------------------------------------------------------------------------- state and inputs


class Holder:
    """Holds the draw of a generator, as libraries such as numba do."""

    n = 0

    def __init__(self, draw):
        self.draw = draw


NUMBERS, QUEUE, GROWN, TENSOR, NUMPY = {"n": 0}, deque([0]), [], torch.zeros(1), np.zeros(1)
COUNT, STEPS, SPACE = itertools.count(), (i for i in range(10**9)), types.SimpleNamespace(n=0)
CALLS, GLOBAL = [0], 0


def add(container, key):
    container[key] += 1


def attribute(owner):
    owner.n += 1


def inside():
    def step():
        global GLOBAL
        GLOBAL += 1

    step()


def default(n=[0]):  # noqa: B006 - which is the point
    n[0] += 1


def of_itself():
    of_itself.n = getattr(of_itself, "n", 0) + 1


STATES = {
    "dict": lambda: add(NUMBERS, "n"),
    "deque": lambda: add(QUEUE, 0),
    "tensor": lambda: add(TENSOR, 0),
    "array": lambda: add(NUMPY, 0),
    "length": lambda: GROWN.append(None),
    "count": lambda: next(COUNT),
    "generator": lambda: next(STEPS),
    "namespace": lambda: attribute(SPACE),
    "class": lambda: attribute(Holder),
    "inner function": inside,
    "default": default,
    "function": of_itself,
}


@pytest.mark.parametrize("name", STATES)
def test_what_a_function_counts_with_is_seen(name):
    before = measure._state(STATES[name])
    assert measure._state(STATES[name]) == before
    STATES[name]()
    assert measure._state(STATES[name]) != before


def test_generators_that_others_hold_do_not_prevent_a_certificate(confirmed_soon):
    """Libraries hold Python's generator in dictionaries, which are followed, and in attributes."""
    held, few = {"draw": random.random}, instances("chain")[:2]
    holder = Holder(random.random)
    assert certify(token_rejection, cases=few, seconds=BUSY).verdict == LOSSLESS
    assert held["draw"] is holder.draw is random.random
    for draw, verdict in ((lambda: held["draw"](), BIASED), (lambda: holder.draw(), NOTHING)):

        def verify(p, q, drafts, draw=draw):
            return [*drafts, 0] if draw() < 2 else [0]

        assert certify(verify, cases=few, seconds=BUSY).verdict == verdict


def test_state_that_decides_later_gets_no_certificate():
    def counts(p, q, drafts):
        CALLS[0] += 1
        return [0] if CALLS[0] > 50_000 else token_rejection(p, q, drafts)

    result = certify(counts, cases=instances("chain")[:1], seconds=BUSY)
    assert "it keeps state: CALLS" in result.reason

    def late(p, q, drafts):
        CALLS[0] += 1
        return [*drafts, drawn(p[-1])] if CALLS[0] < 400 else token_rejection(p, q, drafts)

    assert certify(late, seconds=BUSY).verdict == NOTHING


def test_inputs_are_copies():
    def changes(p, q, drafts):
        tokens = token_rejection(p, q, drafts)
        p.zero_()
        q.zero_()
        return tokens

    assert certify(changes, cases=instances("chain")[:3], seconds=BUSY).verdict == LOSSLESS


def test_a_bias_is_found_before_what_cannot_be_followed(confirmed_soon):
    def verify(p, q, drafts):
        if len(drafts) > 1:
            torch.randn(()).item()
        return [0]

    assert certify(verify, seconds=BUSY).verdict == BIASED


@pytest.mark.parametrize(
    "tokens", [[0] * 9, [], [99], [-1], "0", None, {0}, {0: 1}, [0.5], (x for x in [0])]
)
def test_what_is_no_list_of_tokens_is_refused(tokens):
    with pytest.raises(NoCertificate, match="it returned"):
        measure._tokens(tokens, 5, 4)


@pytest.mark.parametrize(
    "wrong",
    [{"draw": "beams"}, {"verifier": 3}, {"seconds": "9"}, {"like": "x"}, {"verifier": "no:f"}],
)
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(specwb.ArgumentError):
        specwb.certify(**{"verifier": token_rejection, **wrong})


# --------------------------------------------------------------------------- the process that asks


def test_nothing_is_left_behind_in_the_process():
    before = torch.get_rng_state(), random.getstate(), random.random, torch.manual_seed
    for i in range(4):
        certify(token_rejection, seconds=0.02 + 0.03 * i)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), random.random, torch.manual_seed)
    assert random.Random(3).random() == 0.23796462709189137
    torch.manual_seed(0)
    assert float(torch.rand(())) == pytest.approx(0.4962566)
    assert np.random.default_rng(1).random() == 0.5118216247002567
    assert time.time() > 0
    assert not [x for x in gc.get_objects() if type(x).__name__ == "Forking"]


def is_open(descriptor):
    with suppress(OSError):
        return bool(os.fstat(descriptor))


def half_an_answer(then):
    """A function that writes four bytes to every file opened since now, and then does ``then``."""
    later = [x for x in range(200) if not is_open(x)]

    def write():
        for descriptor in later:
            with suppress(OSError):
                os.write(descriptor, b"\0\0\1\0")
        then()

    return write


def endless():
    while True:
        pass


def sleep():
    time.sleep(20)


def test_a_time_limit_ends_what_loops_and_what_sleeps():
    for function in (endless, sleep, half_an_answer(sleep)):
        began = time.monotonic()
        assert child.forked(function, 0.5).reason == "it ran longer than 0.5 s"
        assert time.monotonic() - began < 20


def test_half_an_answer_is_none():
    result = child.forked(half_an_answer(lambda: os._exit(3)), BUSY)
    assert result.reason == "it ended the process it ran in (exit code 3)"


def test_the_time_limit_holds_where_the_process_that_asked_was_killed():
    ours, theirs = os.pipe()

    def work():
        os.write(theirs, str(os.getpid()).encode())
        endless()

    if not (asking := os.fork()):
        child.forked(work, 1)
        os._exit(0)
    working = psutil.Process(int(os.read(ours, 99)))
    os.kill(asking, signal.SIGKILL)
    os.waitpid(asking, 0)
    os.close(ours)
    os.close(theirs)
    working.wait(20)


def test_a_daemonic_worker_gets_a_certificate():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        result = pool.apply(certify, (token_rejection,), {"cases": instances("chain")[:1]})
    assert result.verdict == LOSSLESS, result


def test_a_fork_after_threads_have_worked_does_not_hang():
    x = torch.ones(900, 900)

    def verify(p, q, drafts):
        (x @ x).sum()
        return token_rejection(p, q, drafts)

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x @ x
        result = certify(verify, cases=instances("chain")[:1], seconds=60)
    finally:
        torch.set_num_threads(threads)
    assert result.verdict == LOSSLESS, result


MODULES = {
    "mine": "def f(p, q, drafts):\n    return [*drafts, p[-1].argmax()]\n",
    "leaving": "import sys\nsys.exit(0)\n",
    "looping": "while True:\n    pass\n",
    "tapped": "f = open('/dev/urandom', 'rb').read\n",
    "threaded": "import threading\nf = threading.Timer(99, print)\nf.daemon = True\nf.start()\n"
    "f = f.cancel\n",
    "exits": "import os\ndef f(p, q, drafts):\n    os._exit(0)\n",
    "broken": "1 / 0\n",
}


def test_the_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, text in MODULES.items():
        (tmp_path / f"{name}_to_certify.py").write_text(text)

    def run(*args):
        return CliRunner().invoke(app, ["certify", *args])

    found = run("mine_to_certify:f")
    assert found.exit_code == 1
    assert "biased" in found.output
    for name, said in {
        "leaving": "sys.exit(0)",
        "exits": "exit code 0",
        "looping": "longer than 0.5 s",
        "tapped": "/dev/urandom is open",
        "threaded": "another thread",
    }.items():
        found = run(f"{name}_to_certify:f", *(["--seconds", "0.5"] if name == "looping" else []))
        assert found.exit_code == 1, found.output
        assert "no certificate" in found.output
        assert said in " ".join(found.output.split())
    for args in (
        ["nowhere:f"],
        ["mine_to_certify:no"],
        ["broken_to_certify:f"],
        [],
        ["mine_to_certify:f", "--like", "x"],
    ):
        assert isinstance(run(*args).exception, ValueError), args  # main() makes exit code 2 of it
