"""Verdicts on verifiers that draw as they like: known ones, hostile ones, every way to draw."""

from __future__ import annotations

import os
import random
import random as rnd
import secrets
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path
from random import random as bound_uniform

import numpy as np
import pytest
import torch
from numpy.random import default_rng as bound_rng
from torch import rand as bound_rand
from typer.testing import CliRunner

import specwb
from specwb.cli import app
from specwb.verify.certify import BIASED, LOSSLESS, NOTHING, certify
from specwb.verify.forking import NoCertificate, distribution
from specwb.verify.verifiers import ADAPTERS, VERIFIERS, _drawn, _rest, token_rejection

PAGE = Path(__file__).parents[2] / "docs" / "certify.md"


@pytest.mark.parametrize("name", VERIFIERS)
def test_known_verifiers_get_their_verdict(name):
    one = VERIFIERS[name]
    result = certify(one.verify, one.draw, logits=one.logits)
    assert result.verdict == one.verdict, result
    assert bool(result) == (one.verdict == LOSSLESS)
    tv = f"{result.tv:.3f}" if result.worst else "–"
    row = f"| `{name}` | {one.draw} | {one.verdict} | {tv} | {one.about} | {one.source} |"
    assert row in PAGE.read_text("utf-8")
    if result.worst:
        where, _, got, wanted = result.worst
        assert where in [replace(one, tv=None, runs=0) for one in result.instances]
        assert 0 < abs(got - wanted) <= 2 * result.tv


def test_a_temperature_of_1_hides_eagles_bias():
    one = VERIFIERS["bonus_without_temperature"]
    assert certify(one.verify, one.draw, logits=True, temperatures=[1.0]).verdict == LOSSLESS


def test_transformers_own_function_is_lossless():
    from transformers.generation.utils import _speculative_sampling

    verify = ADAPTERS["transformers"](_speculative_sampling)
    assert certify(verify).verdict == LOSSLESS
    weighed = ADAPTERS["transformers"](lambda *a: _speculative_sampling(*a, 0.9))
    assert certify(weighed).verdict == BIASED


def test_other_signatures():
    def flashinfer(q, drafts, p):
        tokens = token_rejection(p[0], q[0], drafts[0])
        return torch.tensor([[*map(int, tokens), *[-1] * (p.shape[1] - len(tokens))]]), None

    def mcsd(p, q, candidates):
        for i, x in enumerate(candidates):
            if random.random() * q[x] < p[x]:
                return i, None
            p = _rest(p, q)
        return None, p

    assert certify(ADAPTERS["flashinfer"](flashinfer)).verdict == LOSSLESS
    assert certify(ADAPTERS["mcsd"](mcsd), "with").verdict == LOSSLESS
    assert certify(ADAPTERS["mcsd"](mcsd), "without").verdict == BIASED


# ------------------------------------------------------------------------------- ways to draw

P = torch.tensor([0.5, 0.2, 0.3, 0.0], dtype=torch.float64)
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


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_draw_has_its_distribution(way):
    found, _ = distribution(WAYS[way])
    assert found == pytest.approx({0: 0.5, 1: 0.2, 2: 0.3}, abs=1e-12)


def test_a_uniform_compared_twice_is_one_uniform():
    def twice():
        u = torch.rand(())
        return bool(u < 0.5), bool(u < 0.25)

    found, runs = distribution(twice)
    assert found == {(True, True): 0.25, (True, False): 0.25, (False, False): 0.5}
    assert runs == 3


def test_draws_without_replacement():
    found, _ = distribution(lambda: tuple(torch.multinomial(P, 2).tolist()))
    assert found[1, 0] == pytest.approx(0.2 * 0.5 / 0.8)
    assert sum(found.values()) == pytest.approx(1)


# ---------------------------------------------------------------------------------------- hostile

SHARED = np.random.default_rng(0)
CALLS = [0]


def after(draw):
    """Token rejection by a verifier whose uniform comes from ``draw``."""

    def verify(p, q, drafts):
        for i, x in enumerate(drafts):
            if draw() * q[i, x] >= p[i, x]:
                return [*drafts[:i], _drawn(_rest(p[i], q[i]))]
        return [*drafts, _drawn(p[-1])]

    return verify


def in_a_thread():
    drawn = []
    worker = threading.Thread(target=lambda: drawn.append(torch.rand(())))
    worker.start()
    worker.join()
    return drawn[0]


def seeded():
    torch.manual_seed(0)
    return torch.rand(())


def swallowed():
    try:
        return torch.rand(2).prod()
    except Exception:
        return 0.0


def every_tenth_call(p, q, drafts):
    CALLS[0] += 1
    if CALLS[0] % 10 == 0:
        return [*drafts, _drawn(p[-1])]
    return token_rejection(p, q, drafts)


def endless(p, q, drafts):
    while True:
        pass


def until_it_fits(p, q, drafts):
    while torch.rand(()) > 0.01:
        pass
    return [0]


def raises(p, q, drafts):
    raise RuntimeError("no")


HOSTILE = {
    "own generator": after(lambda: torch.rand((), generator=torch.Generator())),
    "shared generator": after(SHARED.random),
    "bound rng": after(lambda: bound_rng().random()),
    "seeded rng": after(lambda: np.random.default_rng(0).random()),
    "legacy": after(lambda: np.random.RandomState(0).rand()),
    "own Random": after(lambda: random.Random(0).random()),
    "bound uniform": after(lambda: bound_uniform()),
    "normal": after(lambda: torch.randn(()).abs()),
    "urandom": after(lambda: os.urandom(1)[0] / 256),
    "secrets": after(lambda: secrets.randbelow(100) / 100),
    "clock": after(lambda: time.perf_counter_ns() % 1009 / 1009),
    "uuid": after(lambda: uuid.uuid4().int % 97 / 97),
    "thread": after(in_a_thread),
    "seeds": after(seeded),
    "product": after(lambda: torch.rand(2).prod()),
    "swallowed": after(swallowed),
    "float": after(lambda: float(torch.rand(()))),
    "two uniforms": after(lambda: torch.rand(()) * torch.rand(())),
    "square": after(lambda: torch.rand(()) ** 2),
    "state": every_tenth_call,
    "endless": endless,
    "endless draws": until_it_fits,
    "raises": raises,
    "too many": lambda p, q, drafts: [0] * 9,
    "none": lambda p, q, drafts: [],
    "outside": lambda p, q, drafts: [99],
    "text": lambda p, q, drafts: None,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_verifiers_get_no_certificate(name):
    result = certify(HOSTILE[name], seconds=2.0)
    assert result.verdict == NOTHING, result
    assert result.reason
    assert repr(result).startswith("no certificate: ")


def mutated(change):
    """Token rejection with uniforms that ``change`` makes of a fresh tensor."""

    def verify(p, q, drafts):
        u = change(torch.empty(len(drafts), dtype=torch.float64))
        for i, x in enumerate(drafts):
            if u[i] * q[i, x] >= p[i, x]:
                return [*drafts[:i], _drawn(_rest(p[i], q[i]))]
        return [*drafts, _drawn(p[-1])]

    return verify


def one_noise_for_rows(p, q, drafts):
    tokens = (p / torch.empty(p.shape[-1]).exponential_()).argmax(-1)
    kept = int((tokens[:-1] == drafts).long().cumprod(0).sum())
    return [*drafts[:kept], tokens[kept]]


def in_place(u):
    u = torch.rand(u.shape)
    u.mul_(0.5)
    return u


def caught():
    try:
        return torch.rand(()) ** 2
    except Exception:
        return torch.rand(())


def forked():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return torch.rand(())


# biased, each in a way that once passed as lossless
BIASED_WAYS = {
    "int": after(lambda: torch.rand(()).to(torch.int64)),
    "type": after(lambda: torch.rand(()).type(torch.long)),
    "clamped": after(lambda: torch.rand(()).clamp_min(0.5)),
    "in place": mutated(in_place),
    "one noise for all rows": one_noise_for_rows,
    "reseeded": after(lambda: (torch.manual_seed(1), torch.rand(()))[1]),
    "fork_rng": after(forked),
    "alpha": after(lambda: torch.sub(torch.add(torch.rand(()), 0.3, alpha=0), 0.3)),
    "floor": after(lambda: torch.div(torch.rand(()), 1.0, rounding_mode="floor")),
    "caught": after(caught),
    "zero": after(lambda: 0.0 if torch.rand(()) * 0.0 == 0 else 1.0),
    "infinite": after(lambda: 1.0 if torch.rand(()) / 0 > float("inf") else 0.0),
    "bfloat16": after(lambda: torch.rand((), dtype=torch.bfloat16)),
    "data": after(lambda: 0.0 if torch.rand(()).data else 1.0),
    "halves": lambda p, q, drafts: [x + 0.9 for x in token_rejection(p, q, drafts)],
    "threshold": lambda p, q, drafts: (
        next(([x, _drawn(p[1])] for x in drafts if p[0, x] >= 0.95), None)
        or recursive_or_p(p, q, drafts)
    ),
}


def recursive_or_p(p, q, drafts):
    return VERIFIERS["point_masses"].verify(p, q, drafts)


@pytest.mark.parametrize("name", BIASED_WAYS)
def test_a_bias_is_never_certified(name):
    result = certify(BIASED_WAYS[name], "top" if name == "threshold" else "chain")
    assert result.verdict != LOSSLESS, result


def one_by_one(u):
    for i in range(len(u)):
        u[i].uniform_()
    return u


def listed(u):
    parts = list(u)
    u.uniform_()
    return parts


def aliased(u):
    other = u.view(-1)
    u.uniform_()
    return other


def twice(u):
    u.uniform_()
    u.uniform_()
    return u


def of_numpy(u):
    other = u.numpy()
    u.uniform_()
    return other


def out_of(u):
    np.random.default_rng().random(out=u.numpy())
    return u


def recovered_row_by_row(p, q, drafts):
    noise = torch.empty_like(q)
    for i in range(len(q)):
        noise[i].exponential_()
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i], ((p[i] - q[i]).clamp(min=0) / noise[i]).argmax()]
    return [*drafts, _drawn(p[-1])]


def refilled(p, q, drafts):
    u = torch.empty((), dtype=torch.float64)
    for i, x in enumerate(drafts):
        u.uniform_()
        if u * q[i, x] >= p[i, x]:
            return [*drafts[:i], _drawn(_rest(p[i], q[i]))]
    return [*drafts, _drawn(p[-1])]


# lossless, each in a way that once passed as biased
RIGHT_WAYS = {
    "one by one": mutated(one_by_one),
    "listed": mutated(listed),
    "aliased": mutated(aliased),
    "filled twice": mutated(twice),
    "numpy's view": mutated(of_numpy),
    "out": mutated(out_of),
    "data": mutated(lambda u: (u.uniform_(), u.data)[1]),
    "rows of noise": recovered_row_by_row,
    "refilled": refilled,
    "scaled in place": mutated(lambda u: u.uniform_().mul(1.0)),
}


@pytest.mark.parametrize("name", RIGHT_WAYS)
def test_what_is_right_is_never_called_biased(name):
    result = certify(RIGHT_WAYS[name])
    assert result.verdict != BIASED, result
    if name in ("one by one", "listed", "aliased", "filled twice", "rows of noise"):
        assert result.verdict == LOSSLESS, result


def test_rows_that_share_their_noise_are_refused():
    def race():
        noise = torch.empty(2).exponential_()
        return tuple((torch.ones(2, 2) / noise).argmax(-1).tolist())

    with pytest.raises(NoCertificate, match="two decisions"):
        distribution(race)


@pytest.mark.parametrize("wrong", ["min", "max"])
def test_a_temperature_that_is_cut_off_is_seen(wrong):
    """min(T, 1) is right at T = .7 and max(T, .5) at T = 1.5."""

    def verify(p, q, drafts, temperature):
        cut = min(temperature, 1.0) if wrong == "min" else max(temperature, 0.5)
        p, q = (p / cut).softmax(-1), (q / temperature).softmax(-1)
        return token_rejection(p, q, drafts)

    assert certify(verify, logits=True).verdict == BIASED


def numpy_state():
    return np.random.get_state()[1].tolist()  # noqa: NPY002


def test_inputs_are_copies_and_generators_are_left_alone():
    def changes(p, q, drafts):
        tokens = token_rejection(p, q, drafts)
        p.zero_()
        q.zero_()
        return tokens

    before = torch.get_rng_state(), random.getstate(), numpy_state()
    assert certify(changes).verdict == LOSSLESS
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), numpy_state())
    assert 0 <= float(torch.rand(())) < 1


def test_too_many_ways_are_refused():
    with pytest.raises(NoCertificate, match="more than 100 ways"):
        distribution(lambda: tuple((torch.rand(9) < 0.5).tolist()), most=100)


def test_a_bias_beside_what_cannot_be_followed_is_a_bias():
    def verify(p, q, drafts):
        if len(drafts) > 1:
            torch.randn(())
        return [0]

    assert certify(verify).verdict == BIASED


@pytest.mark.parametrize("wrong", [{"draw": "beams"}, {"verifier": 3}])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(specwb.ArgumentError):
        specwb.certify(**{"verifier": token_rejection, **wrong})


def test_the_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_to_certify.py").write_text(
        "import torch\n"
        "def always(p, q, drafts):\n    return [*drafts, torch.multinomial(p[-1], 1)]\n"
    )

    def run(*args):
        return CliRunner().invoke(app, ["certify", *args])

    found = run("specwb.verify.verifiers:token_rejection")
    assert found.exit_code == 0, found.output
    assert "lossless in these 18 instances" in found.output
    found = run("mine_to_certify:always")
    assert found.exit_code == 1
    assert "biased" in found.output
    for args in (
        ["nowhere:f"],
        ["mine_to_certify:no"],
        [],
        ["mine_to_certify:always", "--like", "x"],
    ):
        assert run(*args).exit_code != 0
