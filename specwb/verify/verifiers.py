"""Verifiers as engines write them, right and wrong, for :func:`specwb.certify`.

Each is a function of our own, written from the description of what was published or shipped: its
entry in :data:`VERIFIERS` says where, and what is wrong with it. None is taken from a repository.
``p`` and ``q`` are as :func:`specwb.certify` hands them over.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Tokens = list[Any]


@dataclass(frozen=True)
class Known:
    """A verifier whose verdict is known.

    Attributes:
        verify: the function.
        verdict: what :func:`specwb.certify` must say.
        draw, logits: as of :func:`specwb.certify`.
        about: what it does, or what is wrong.
        source: where it was described.
    """

    verify: Callable[..., Any]
    verdict: str
    draw: str
    about: str
    source: str
    logits: bool = False


VERIFIERS: dict[str, Known] = {}
"""Name -> a verifier whose verdict is known."""


def _known(verdict: str, draw: str, about: str, source: str, logits: bool = False) -> Any:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        VERIFIERS[function.__name__] = Known(function, verdict, draw, about, source, logits)
        return function

    return register


def _drawn(weights: Tensor) -> Tensor:
    return torch.multinomial(weights, 1)[0]


def _rest(p: Tensor, q: Tensor) -> Tensor:
    """``norm((p - q)+)``, or p where nothing is left."""
    rest = (p - q).clamp(min=0)
    return rest / rest.sum() if rest.sum() > 0 else p


# ------------------------------------------------------------------------------------------ right


@_known("lossless", "chain", "token rejection", "Leviathan et al. 2211.17192, algorithm 1")
def token_rejection(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i], _drawn(_rest(p[i], q[i]))]
    return [*drafts, _drawn(p[-1])]


@_known(
    "lossless",
    "chain",
    "all uniforms at once, recovered tokens by an exponential race at every place",
    "the torch path of vLLM's rejection sampler",
)
def recovered_by_races(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    places = torch.arange(len(drafts))
    noise = torch.empty_like(q)
    noise.exponential_()
    recovered = (p[:-1] - q).clamp(min=0).div_(noise).argmax(-1)
    accepted = p[places, drafts] / q[places, drafts] >= torch.rand(len(drafts))
    kept = int(accepted.long().cumprod(0).sum())
    last = recovered[kept] if kept < len(drafts) else _drawn(p[-1])
    return [*drafts[:kept], last]


@_known("lossless", "chain", "block verification", "Sun et al. 2403.10444")
def block_verification(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    weight, kept, at_kept = 1.0, 0, 1.0
    for i, x in enumerate(drafts):
        weight = min(1.0, weight * float(p[i, x] / q[i, x]))
        if i + 1 == len(drafts):
            passes = weight
        else:
            rest = float((weight * p[i + 1] - q[i + 1]).clamp(min=0).sum())
            passes = rest / (rest + 1 - weight) if rest + 1 - weight > 0 else 1.0
        if random.random() < passes:
            kept, at_kept = i + 1, weight
    if kept == len(drafts):
        return [*drafts, _drawn(p[-1])]
    return [*drafts[:kept], _drawn(_rest(at_kept * p[kept], q[kept]))]


@_known("lossless", "with", "recursive rejection of i.i.d. candidates", "SpecInfer 2305.09781")
def recursive_rejection(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    left = p[0]
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[x] < left[x]:
            return [x, _drawn(p[i + 1])]
        left = _rest(left, q)
    return [_drawn(left)]


@_known(
    "lossless",
    "without",
    "recursive rejection of candidates without replacement",
    "Yang et al. 2401.06706; Sequoia 2402.12374",
)
def without_replacement(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    left, q = p[0], q.clone()
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[x] < left[x]:
            return [x, _drawn(p[i + 1])]
        left = _rest(left, q)
        q[x] = 0.0
        q = q / q.sum() if q.sum() > 0 else q
    return [_drawn(left)]


@_known(
    "lossless",
    "top",
    "point masses: a candidate is kept with what is left of p(x)",
    "EAGLE's evaluate_posterior at T = 1; SGLang's target-only verification",
)
def point_masses(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    left = p[0].clone()
    for i, x in enumerate(drafts):
        if random.random() * left.sum() < left[x]:
            return [x, _drawn(p[i + 1])]
        left[x] = 0.0
    return [_drawn(left)]


# ------------------------------------------------------------------------------------------ wrong


@_known(
    "biased",
    "chain",
    "the residual is p and not (p - q)+",
    "a common slip in first implementations",
)
def residual_is_p(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i], _drawn(p[i])]
    return [*drafts, _drawn(p[-1])]


@_known(
    "biased",
    "chain",
    "accepts by v = w p + (1 - w) q, w = .9 (documented as lossy)",
    "transformers, assistant_ensemble_weight; DIVERSE 2604.07622",
)
def ensemble_weight(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    for i, x in enumerate(drafts):
        if torch.rand(()) > 0.1 + 0.9 * p[i, x] / q[i, x]:
            return [*drafts[:i], _drawn(_rest(p[i], q[i]))]
    return [*drafts, _drawn(p[-1])]


@_known(
    "biased",
    "chain",
    "the q that is tested is not the one that was drawn from: another temperature",
    "transformers #47932, dflash #74",
)
def q_of_another_temperature(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    return token_rejection(p, (q.log() / 1.6).softmax(-1), drafts)


@_known(
    "biased",
    "chain",
    "the uniform is the constant 0, so that everything is accepted",
    "vllm-ascend #13730",
)
def uniform_is_zero(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    return [*drafts, _drawn(p[-1])]


@_known(
    "no certificate",
    "chain",
    "cumulative products of the ratios are compared with cumulative products of uniforms",
    "vllm-ascend's block_verify, August 2026: TV .31 by simulation",
)
def products_of_uniforms(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    places = torch.arange(len(drafts))
    ratios = (p[places, drafts] / q[places, drafts]).clamp(max=1).cumprod(0)
    kept = int((torch.rand(len(drafts)).cumprod(0) < ratios).sum())
    return [*drafts[:kept], _drawn(p[kept])]


@_known(
    "biased",
    "chain",
    "block verification's last weight is not capped at 1 before it is multiplied on",
    "Hierarchical Speculative Decoding as coded",
)
def uncapped_product(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    places = torch.arange(len(drafts))
    if torch.rand(()) < (p[places, drafts] / q[places, drafts]).prod():
        return [*drafts, _drawn(p[-1])]
    return block_verification(p[:-1], q[:-1], drafts[:-1])


@_known(
    "biased",
    "chain",
    "the bonus token comes from the row before",
    "TensorRT-LLM #15098: a wrong slice of the logits",
)
def bonus_from_the_row_before(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i], _drawn(_rest(p[i], q[i]))]
    return [*drafts, _drawn(p[-2])]


@_known(
    "no certificate",
    "chain",
    "acceptance and recovered token share their noise",
    "vLLM #47386, fixed by #54282",
)
def shared_noise(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    uniform = torch.rand_like(p[0])
    for i, x in enumerate(drafts):
        if uniform[x] * q[i, x] >= p[i, x]:
            gumbel = -torch.log(-torch.log(uniform))
            return [*drafts[:i], (_rest(p[i], q[i]).log() + gumbel).argmax()]
    return [*drafts, _drawn(p[-1])]


@_known(
    "biased",
    "with",
    "siblings are tried without taking q off the residual after a rejection",
    "TensorRT-LLM's dynamic tree at 16f0267",
)
def no_residual_update(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[x] < p[0, x]:
            return [x, _drawn(p[i + 1])]
    return [_drawn(_rest(p[0], q))]


@_known(
    "biased",
    "without",
    "the rule for draws with replacement, on draws without",
    "MCSD's two rules, one in the other's place",
)
def wrong_draws(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    return recursive_rejection(p, q, drafts)


@_known(
    "biased",
    "top",
    "the drafted argmax is tested with min(1, p/q), as if it had been drawn from q",
    "jaymody/speculative-sampling #3; apple/ml-recurrent-drafter #6 (beams)",
)
def argmax_as_a_draw(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    return recursive_rejection(p, q, drafts)


@_known(
    "biased",
    "top",
    "candidates are tried at softmax(logits / T), the bonus token is drawn at T = 1",
    "EAGLE-1's evaluate_posterior at 08dc06c: right at T = 1 only",
    logits=True,
)
def bonus_without_temperature(
    p: Tensor, q: Tensor, drafts: Tensor, temperature: float = 1.0
) -> Tokens:
    left = (p[0] / temperature).softmax(-1)
    for i, x in enumerate(drafts):
        if random.random() * left.sum() < left[x]:
            return [x, _drawn(p[i + 1].softmax(-1))]
        left[x] = 0.0
    return [_drawn(left)]


@_known(
    "biased",
    "chain",
    "temperature is ignored: the draft is compared with the most probable token",
    "SGLang #39253 (ROCm)",
    logits=True,
)
def greedy_above_zero(p: Tensor, q: Tensor, drafts: Tensor, temperature: float = 1.0) -> Tokens:
    best = p.argmax(-1)
    kept = int((best[:-1] == drafts).long().cumprod(0).sum())
    return [*drafts[:kept], best[kept]]


@_known(
    "biased",
    "chain",
    "typical acceptance: kept where p(x) > min(.09, .3 exp(-H)) (documented as lossy)",
    "Medusa 2401.10774",
)
def typical_acceptance(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    for i, x in enumerate(drafts):
        entropy = -(p[i] * p[i].clamp_min(1e-9).log()).sum()
        if p[i, x] <= min(0.09, float(0.3 * (-entropy).exp())):
            return [*drafts[:i], _drawn(p[i])]
    return [*drafts, _drawn(p[-1])]


@_known(
    "biased",
    "top",
    "a candidate is kept wherever p(x) is over a threshold, here .6 (documented as lossy)",
    "SGLang's speculative_accept_threshold_single below 1",
)
def threshold_single(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    left = p[0].clone()
    for i, x in enumerate(drafts):
        if left[x] >= 0.6 or random.random() * left.sum() < left[x]:
            return [x, _drawn(p[i + 1])]
        left[x] = 0.0
    return [_drawn(left)]


# --------------------------------------------------------------------------------------- adapters


def like_transformers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapts ``(candidate ids [1,g], draft logits [1,g,V], g, target logits [1,g+1,V])``, which
    returns ``(tokens [1,n], accepted)``, as ``generation.utils._speculative_sampling`` does."""

    def verify(p: Tensor, q: Tensor, drafts: Tensor) -> Tensor:
        return function(drafts[None], q.log()[None], len(drafts), p.log()[None])[0]

    return verify


def like_flashinfer(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapts ``(draft probabilities [1,g,V], draft ids [1,g], target probabilities [1,g+1,V])``,
    which returns ``tokens [1,g+1]``, -1 behind the last, or a tuple that begins with them:
    FlashInfer's ``chain_speculative_sampling``, vLLM's and TensorRT-LLM's samplers in torch."""

    def verify(p: Tensor, q: Tensor, drafts: Tensor) -> list[int]:
        tokens = function(q[None], drafts[None], p[None])
        tokens = tokens[0] if isinstance(tokens, tuple) else tokens
        return [x for x in tokens.flatten().tolist() if x >= 0]

    return verify


def like_mcsd(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapts ``(p [V], q [V], candidates [k])``, which returns the index of the one that is
    accepted, or None and the residual: a rule for the candidates of one node."""

    def verify(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
        chosen, rest = function(p[0], q, drafts)
        return [_drawn(rest)] if chosen is None else [drafts[chosen], _drawn(p[int(chosen) + 1])]

    return verify


ADAPTERS = {
    "transformers": like_transformers,
    "flashinfer": like_flashinfer,
    "mcsd": like_mcsd,
}
"""Name -> what makes a verifier of a function with an engine's signature."""
