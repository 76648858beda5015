"""Verdicts on verifiers that draw as they like: known ones, hostile ones, laws by enumeration."""

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
from specwb.verify.forking import NoCertificate, law
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


# ------------------------------------------------------------------------------------------- laws

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
def test_every_way_to_draw_has_its_law(way):
    found, _ = law(WAYS[way])
    assert found == pytest.approx({0: 0.5, 1: 0.2, 2: 0.3}, abs=1e-12)


def test_a_uniform_compared_twice_is_one_uniform():
    def twice():
        u = torch.rand(())
        return bool(u < 0.5), bool(u < 0.25)

    found, runs = law(twice)
    assert found == {(True, True): 0.25, (True, False): 0.25, (False, False): 0.5}
    assert runs == 3


def test_draws_without_replacement():
    found, _ = law(lambda: tuple(torch.multinomial(P, 2).tolist()))
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
        law(lambda: tuple((torch.rand(9) < 0.5).tolist()), most=100)


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
    assert "lossless in these 15 instances" in found.output
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
