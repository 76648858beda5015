"""Verdicts on verifiers that draw as they like: known ones, hostile ones, every way to draw."""

from __future__ import annotations

import bisect
import itertools
import os
import random
import random as rnd
import secrets
import threading
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from random import random as bound_uniform
from secrets import choice as bound_choice

import biased
import numpy as np
import pytest
import torch
from numpy.random import default_rng as bound_rng
from torch import rand as bound_rand
from typer.testing import CliRunner

import specwb
from specwb.cli import app
from specwb.verify import Rejection
from specwb.verify.certify import BIASED, LOSSLESS, NOTHING, certify
from specwb.verify.forking import distribution
from specwb.verify.symbols import NoCertificate
from specwb.verify.verifiers import ADAPTERS, VERIFIERS, _drawn, _rest, token_rejection

PAGE = Path(__file__).parents[2] / "docs" / "certify.md"
BUSY = 900.0  # seconds, on a machine that does other things as well


@pytest.mark.parametrize("name", VERIFIERS)
def test_known_verifiers_get_their_verdict(name):
    one = VERIFIERS[name]
    result = certify(one.verify, one.draw, logits=one.logits, seconds=BUSY)
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


def sample_rejected(draft_probs, target_probs, generator, accepted):
    rest = (target_probs[accepted] - draft_probs[accepted]).clamp(min=0)
    return torch.multinomial(rest, 1, generator=generator).item()


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
        p = _rest(p, q)
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


@pytest.mark.parametrize(
    ("like", "function", "draw", "verdict"), LIKE, ids=lambda x: x if isinstance(x, str) else ""
)
def test_an_engines_signature(like, function, draw, verdict):
    result = certify(ADAPTERS[like](function), draw, seconds=BUSY)
    assert result.verdict == verdict, result


def test_every_adapter_has_a_test_and_is_on_the_page():
    assert {like for like, *_ in LIKE} | {"transformers"} == set(ADAPTERS)
    rows = PAGE.read_text("utf-8").split("## How it is computed")[0]
    assert [name for name in ADAPTERS if f"| `{name}` |" not in rows] == []


def test_a_sampler_may_be_given_with_its_test():
    verify = ADAPTERS["tensorrt_llm"](tensorrt_llm, sample=sample_rejected)
    assert certify(verify).verdict == LOSSLESS
    wrong = ADAPTERS["tensorrt_llm"](tensorrt_llm, sample=lambda q, p, g, n: int(p[n].argmax()))
    assert certify(wrong).verdict == BIASED


@pytest.mark.parametrize("cold", [False, True])
def test_temperatures_reach_an_adapted_function(cold):
    verify = ADAPTERS["eagle"](lambda *a: eagle(*a, cold=cold))
    assert certify(verify, "top", temperatures=[1.0], logits=True).verdict == LOSSLESS
    result = certify(verify, "top", temperatures=[0.7], logits=True)
    assert result.verdict == (BIASED if cold else LOSSLESS)


# --------------------------------------------------------------------------------------- rules


OTHERS = ["rrs", "kseq", "point", "naive", "traversal"]


@pytest.mark.parametrize(
    "rule",
    ["rejection", "rrsw", "top", "block", "gbv"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in OTHERS],
)
def test_the_projects_own_rules(rule):
    result = certify(rule, seconds=BUSY)
    assert result, result
    assert {one.scheme for one in result.instances}
    assert any(one.temperature != 1 for one in result.instances)


class Failing(Rejection):
    def node(self, p, q, tokens, ok, u):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "rule",
    [
        biased.RawTarget(),
        *(pytest.param(x, marks=pytest.mark.slow) for x in (biased.Sorted, "typical")),
    ],
)
def test_a_biased_rule_has_a_counterexample(rule):
    result = certify(rule)
    assert result.verdict == BIASED
    where, text, got, wanted = result.worst
    assert where.tree
    assert all(0 <= x < where.vocabulary for x in text)
    assert abs(got - wanted) > 1e-5


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("coupled", "COUPLED"),
        ("longest", "ROOTS"),
        (biased.OwnUniforms, "of its own"),
        (Failing, "raised"),
    ],
)
def test_a_rule_that_cannot_be_followed_gets_no_certificate(rule, reason):
    result = certify(rule)
    assert result.verdict == NOTHING
    assert reason in result.reason


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
CALLS = [0, 0]


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


def late(p, q, drafts):
    """It changes after 400 calls; before that the second instance, V = 3, raises an error."""
    CALLS[1] += 1
    if p.shape[-1] < 5:
        raise IndexError
    return [*drafts, _drawn(p[-1])] if CALLS[1] < 400 else token_rejection(p, q, drafts)


def endless(p, q, drafts):
    while True:
        pass


def until_it_fits(p, q, drafts):
    while torch.rand(()) > 0.01:
        pass
    return [0]


def raises(p, q, drafts):
    raise RuntimeError("no")


COINS = itertools.cycle([0.1, 0.5, 0.9, 0.3, 0.7])


@dataclass
class Counter:
    calls: int = 0

    def __call__(self, p, q, drafts):
        self.calls += 1
        return [0] if self.calls % 7 == 0 else token_rejection(p, q, drafts)


def shuffled():
    order = np.arange(10)
    np.random.default_rng().shuffle(order)
    return order[0] / 10


def leaves(p, q, drafts):
    raise SystemExit(0)


def changed_in_place():
    u = torch.rand(())
    u -= 0.2
    return u


HOSTILE = {
    "cycle": after(lambda: next(COINS)),
    "dataclass": Counter(),
    "shuffle": after(shuffled),
    "device of the system": after(lambda: np.fromfile("/dev/urandom", "u1", 1)[0] / 256),
    "bound secrets": after(lambda: bound_choice([0.1, 0.2, 0.3])),
    "leaves": leaves,
    "changed in place": after(changed_in_place),
    "clamped far": after(lambda: torch.rand(()).clamp(0.0, 0.9)),
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
    "late": late,
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
    CALLS[:] = [0] * len(CALLS)
    result = certify(HOSTILE[name], seconds=0.3 if name.startswith("endless") else 2.0)
    assert result.verdict == NOTHING, result
    assert result.reason
    assert repr(result).startswith("no certificate: ")


def test_state_that_is_kept_shows_in_a_second_run():
    CALLS[0] = 0
    assert "in a second run" in certify(every_tenth_call, seconds=BUSY).reason


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


@pytest.mark.slow
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


@pytest.mark.parametrize("wrong", [{"draw": "beams"}, {"verifier": 3}, {"seconds": "9"}])
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
