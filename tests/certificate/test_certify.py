"""Verdicts on verifiers that draw as they like, and what becomes of the process that asks."""

from __future__ import annotations

import bisect
import gc
import random
import random as rnd
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import biased
import numpy as np
import pytest
import torch
from certificate import verifiers
from torch import rand as bound_rand
from typer.testing import CliRunner

import specwb
from specwb.certificate import child, interception, measure
from specwb.certificate.adapters import ADAPTERS, drawn, residual
from specwb.certificate.certify import BIASED, LOSSLESS, NOTHING, certify
from specwb.certificate.forking import distribution
from specwb.certificate.instances import OTHERS, instances
from specwb.certificate.known import VERIFIERS, token_rejection
from specwb.certificate.symbols import NoCertificate
from specwb.cli.main import app
from specwb.rules import Rejection

PAGE = Path(__file__).parents[2] / "docs" / "certify.md"
BUSY = 900.0  # seconds, on a machine that does other things as well
# of the verifiers that run through all instances these are tried every time, on every fourth
ALWAYS = ("pure_python", "numpy_logarithms", "gumbel_by_distribution", "exponential_test")
ALWAYS += ("own_random", "listed_before", "exponential_of_1_minus_u", "gumbel_softmax")


def _marks(name, verdict):
    whole = verdict == LOSSLESS or name == "until_it_fits"
    return pytest.param(name, marks=[pytest.mark.slow, pytest.mark.rare][: 1 + whole])


@pytest.fixture
def confirmed_soon(monkeypatch):
    """A fork of this process confirms a bias by a tenth of the runs: more of them can only refuse
    what is no bias."""
    monkeypatch.setattr(measure, "CONFIRMED", 25)


def all_instances(one):
    return instances(one.draw, (1.0, *OTHERS) if one.logits else (1.0,), one.logits)


def gets_its_verdict(name, cases):
    """What is biased is handed over, all else named. Of those that are wrong only where nobody
    looks, the last instances are tried first."""
    one = verifiers.TABLE[name]
    if one.truth == "outside" and one.verdict == BIASED:
        cases = all_instances(one)[::-1]
    verifier = one.function if one.verdict == BIASED else f"certificate.verifiers:{name}"
    result = certify(verifier, one.draw, logits=one.logits, cases=cases, seconds=BUSY)
    assert result.verdict == one.verdict, result
    assert bool(result.reason) == (result.verdict == NOTHING)


@pytest.mark.parametrize("name", [_marks(x, one.verdict) for x, one in verifiers.TABLE.items()])
def test_a_verifier_of_known_truth_gets_its_verdict(name, confirmed_soon):
    few = instances(verifiers.TABLE[name].draw)[:3]
    gets_its_verdict(name, few if name in verifiers.STATES else None)


@pytest.mark.parametrize("name", ALWAYS)
def test_a_verifier_gets_its_verdict_on_some_instances(name):
    one = verifiers.TABLE[name]
    gets_its_verdict(name, instances(one.draw, logits=one.logits)[::6])


def test_no_false_lossless_is_expected():
    """What the table above lets pass: randomness that is followed after all, and what the page
    names as lying outside."""
    passes = {x for x, one in verifiers.TABLE.items() if one.verdict == LOSSLESS != one.truth}
    assert passes == {"own_random", "aten", "thin_slice_accepted"}
    refused = {x for x, one in verifiers.TABLE.items() if one.truth == LOSSLESS != one.verdict}
    assert refused == {
        *("rejection_loop", "read_by_numpy", "data_of_uniforms", "numpy_out"),
        "one_noise_for_rows",
    }


# handed over as they are, with what they were bound to before
OBJECTS = ("bound_uniform_of_numpy", "seeded_torch", "seeded_python", "seeded_numpy")
OBJECTS += ("once_in_1000_by_a_bound_method", "own_random", "own_torch_generator", "caught_json")
OBJECTS += ("bound_uniform_of_python", "clock_parity", "urandom", "thread", "torchscript")


QUICK = ("bound_uniform_of_python", "seeded_torch", "own_torch_generator", "thread")


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[] if x in QUICK else pytest.mark.slow) for x in OBJECTS]
)
def test_a_function_handed_over_gets_the_same_verdict(name):
    one = verifiers.TABLE[name]
    few = instances(one.draw)[:3]
    result = certify(one.function, one.draw, cases=few, seconds=BUSY)
    assert result.verdict == one.verdict, result


class Holder:
    def __init__(self, draw):
        self.draw = draw


class Pair(NamedTuple):
    name: str
    draw: object


def test_generators_that_others_hold_do_not_prevent_a_certificate(confirmed_soon):
    """Libraries such as numba hold Python's generator in dictionaries, pairs and attributes."""
    holders = [Holder(random.random), Pair("draw", random.random)]
    holders += [defaultdict(list, draw=random.random)]
    few = instances("chain")[:2]
    assert certify(token_rejection, cases=few, seconds=BUSY).verdict == LOSSLESS
    assert holders[0].draw is holders[1].draw is random.random

    def verify(p, q, drafts):
        return [*drafts, 0] if holders[0].draw() < 2 else [0]

    assert certify(verify, cases=few, seconds=BUSY).verdict == BIASED


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if i % 7 == 0 < i else [pytest.mark.slow])
        for i, name in enumerate(VERIFIERS)
    ],
)
def test_known_verifiers_get_their_verdict(name, confirmed_soon):
    """Token rejection on all instances, other lossless ones on a third of them, in turn."""
    one = VERIFIERS[name]
    third = all_instances(one)[list(VERIFIERS).index(name) % 3 :: 3]
    some = third if one.verdict == LOSSLESS and name != "token_rejection" else None
    result = certify(one.verify, one.draw, logits=one.logits, cases=some, seconds=BUSY)
    assert result.verdict == one.verdict, result
    assert bool(result) == (one.verdict == LOSSLESS)
    if result.worst:
        where, _, got, wanted = result.worst
        assert where in [replace(one, tv=None, runs=0) for one in result.instances]
        assert 0 < abs(got - wanted) <= 2 * result.tv


def test_a_temperature_of_1_hides_eagles_bias():
    one = VERIFIERS["bonus_without_temperature"]
    few = instances(one.draw, [1.0], logits=True)[::6]
    result = certify(one.verify, one.draw, logits=True, cases=few, seconds=BUSY)
    assert result.verdict == LOSSLESS, result


def test_transformers_own_function_is_lossless():
    name = "transformers.generation.utils:_speculative_sampling"
    result = certify(name, like="transformers", cases=instances("chain")[::6], seconds=BUSY)
    assert result.verdict == LOSSLESS, result


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("like", "function", "draw", "verdict"), LIKE, ids=lambda x: x if isinstance(x, str) else ""
)
def test_an_engines_signature(like, function, draw, verdict, confirmed_soon):
    few = instances(draw)[: 12 : 3 if verdict == LOSSLESS else 1]
    result = certify(function, draw, like=like, cases=few, seconds=BUSY)
    assert result.verdict == verdict, result


def test_every_adapter_has_a_test_and_is_on_the_page():
    assert {like for like, *_ in LIKE} | {"transformers"} == set(ADAPTERS)
    rows = PAGE.read_text("utf-8").split("## How it is computed")[0]
    assert [name for name in ADAPTERS if f"| `{name}` |" not in rows] == []


@pytest.mark.parametrize("wrong", [False, True])
def test_a_sampler_may_be_given_with_its_test(wrong, confirmed_soon):
    sample = (lambda q, p, g, n: int(p[n].argmax())) if wrong else sample_rejected
    verify = ADAPTERS["tensorrt_llm"](tensorrt_llm, sample=sample)
    result = certify(verify, cases=instances("chain")[:3], seconds=BUSY)
    assert result.verdict == (BIASED if wrong else LOSSLESS)


@pytest.mark.parametrize(
    ("cold", "temperature", "verdict"),
    [(False, 0.7, LOSSLESS), (True, 1.0, LOSSLESS), (True, 0.7, BIASED)],
)
def test_temperatures_reach_an_adapted_function(cold, temperature, verdict, confirmed_soon):
    few = instances("top", [temperature])[:3]
    verify = partial(eagle, cold=cold)
    result = certify(verify, "top", like="eagle", logits=True, cases=few, seconds=BUSY)
    assert result.verdict == verdict, result


# --------------------------------------------------------------------------------------- rules


def test_the_projects_own_rules():
    """By one; all of them: tests/rules/test_lossless.py."""
    result = certify("rejection", seconds=BUSY)
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


@pytest.fixture(scope="module")
def followed():
    """The distributions of all these and the numbers of their runs, or the reason why there is
    none, from one fork of this process."""

    def work():
        interception.install()
        found = {}
        for name, function in (WAYS | ASKED).items():
            try:
                found[name] = distribution(function, **({"most": 100} if name == "many" else {}))
            except NoCertificate as error:
                found[name] = str(error), 0
        return found

    return child.forked(work, BUSY)


def test_every_way_to_draw_has_its_distribution(followed):
    for way in WAYS:
        assert followed[way][0] == pytest.approx({0: 0.5, 1: 0.2, 2: 0.3}, abs=1e-12), way


def test_a_uniform_compared_twice_is_one_uniform(followed):
    found, runs = followed["twice"]
    assert found == {(True, True): 0.25, (True, False): 0.25, (False, False): 0.5}
    assert runs == 3


def test_whole_parts_of_a_uniform_have_their_shares(followed):
    found, _ = followed["whole parts"]
    assert found == pytest.approx({(i, j): 1 / 6 for i in range(3) for j in (1, 2)})


def test_an_exponential_variable_is_above_t_with_its_chance(followed):
    assert followed["above"][0][True] == pytest.approx(np.exp(-0.7))


def test_draws_without_replacement(followed):
    found, _ = followed["without replacement"]
    assert found[1, 0] == pytest.approx(0.2 * 0.5 / 0.8)
    assert sum(found.values()) == pytest.approx(1)


def test_rows_that_share_their_noise_are_refused(followed):
    assert "two decisions" in followed["shared noise"][0]


def test_too_many_ways_are_refused(followed):
    assert "more than 100 ways" in followed["many"][0]


# ------------------------------------------------------------------------- state, bias and inputs


CALLS = [0]


def test_state_that_is_kept_shows_in_a_second_run():
    result = certify(verifiers.every_third_call, seconds=BUSY)
    assert "in a second run" in result.reason


def test_a_bias_that_changes_later_is_no_bias():
    def late(p, q, drafts):
        CALLS[0] += 1
        return [*drafts, drawn(p[-1])] if CALLS[0] < 400 else token_rejection(p, q, drafts)

    assert certify(late, seconds=BUSY).verdict == NOTHING


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["min", "max"])
def test_a_temperature_that_is_cut_off_is_seen(wrong, confirmed_soon):
    """min(T, 1) is right at T = .7 and max(T, .5) at T = 1.5."""

    def verify(p, q, drafts, temperature):
        cut = min(temperature, 1.0) if wrong == "min" else max(temperature, 0.5)
        p, q = (p / cut).softmax(-1), (q / temperature).softmax(-1)
        return token_rejection(p, q, drafts)

    warm = [x for x in instances("chain", (1.0, *OTHERS), logits=True) if x.temperature != 1]
    assert certify(verify, logits=True, cases=warm, seconds=BUSY).verdict == BIASED


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
    "wrong",
    [{"draw": "beams"}, {"verifier": 3}, {"seconds": "9"}, {"like": "x"}, {"verifier": "no:f"}],
)
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(specwb.ArgumentError):
        specwb.certify(**{"verifier": token_rejection, **wrong})


# --------------------------------------------------------------------------- the process that asks


def test_nothing_is_left_behind_in_the_process():
    before = torch.get_rng_state(), random.getstate(), random.random, torch.manual_seed
    for i in range(20):
        certify(token_rejection, seconds=0.02 + 0.005 * i)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), random.random, torch.manual_seed)
    assert random.Random(3).random() == 0.23796462709189137
    torch.manual_seed(0)
    assert float(torch.rand(())) == pytest.approx(0.4962566)
    assert np.random.default_rng(1).random() == 0.5118216247002567
    assert time.time() > 0
    assert not [x for x in gc.get_objects() if type(x).__name__ == "Forking"]


def test_a_time_limit_ends_what_sleeps_and_what_loops():
    def endless(p, q, drafts):
        while True:
            pass

    for function in (endless, lambda p, q, drafts: time.sleep(600)):
        result = certify(function, seconds=0.5)
        assert result.reason == "it ran longer than 0.5 s"
        assert result.seconds < 60


def test_a_fork_after_threads_have_worked_does_not_hang():
    code = (
        "import torch, specwb\n"
        "from specwb.certificate.instances import instances\n"
        "torch.set_num_threads(2)\n"
        "x = torch.randn(900, 900)\n"
        "for _ in range(3): x @ x\n"
        "def verify(p, q, drafts):\n"
        "    y = torch.ones(900, 900)\n"
        "    (y @ y).sum()\n"
        "    return [torch.multinomial(p[0], 1)]\n"
        "print(specwb.certify(verify, cases=instances('chain')[:1], seconds=300))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert "lossless in these 1 instances" in done.stdout, done


MODULES = {
    "mine": "def f(p, q, drafts):\n    return [*drafts, p[-1].argmax()]\n",
    "leaving": "import sys\nsys.exit(0)\n",
    "gone": "import os\nos._exit(0)\n",
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
        "gone": "exit code 0",
        "looping": "longer than 0.5 s",
        "exits": "exit code 0",
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
