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

from specwb.certificate.adapters import Tokens, drawn, residual


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


def _known(verdict: str, draw: str, source: str, logits: bool = False) -> Any:
    """Add a verifier to ``VERIFIERS``; its docstring says what it does."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        says = " ".join((function.__doc__ or "").split()).removesuffix(".")
        about = says[0].lower() + says[1:]
        VERIFIERS[function.__name__] = Known(function, verdict, draw, about, source, logits)
        return function

    return register


# ------------------------------------------------------------------------------------------ right


@_known("lossless", "chain", "Leviathan et al. 2211.17192, algorithm 1")
def token_rejection(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Token rejection."""
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i], drawn(residual(p[i], q[i]))]
    return [*drafts, drawn(p[-1])]


@_known("lossless", "chain", "the torch path of vLLM's rejection sampler")
def recovered_by_races(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """All uniforms at once, recovered tokens by an exponential race at every place."""
    places = torch.arange(len(drafts))
    noise = torch.empty_like(q)
    noise.exponential_()
    recovered = (p[:-1] - q).clamp(min=0).div_(noise).argmax(-1)
    accepted = p[places, drafts] / q[places, drafts] >= torch.rand(len(drafts))
    kept = int(accepted.long().cumprod(0).sum())
    last = recovered[kept] if kept < len(drafts) else drawn(p[-1])
    return [*drafts[:kept], last]


@_known("lossless", "chain", "Sun et al. 2403.10444")
def block_verification(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Block verification."""
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
        return [*drafts, drawn(p[-1])]
    return [*drafts[:kept], drawn(residual(at_kept * p[kept], q[kept]))]


@_known("lossless", "with", "SpecInfer 2305.09781")
def recursive_rejection(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Recursive rejection of i.i.d. candidates."""
    left = p[0]
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[x] < left[x]:
            return [x, drawn(p[i + 1])]
        left = residual(left, q)
    return [drawn(left)]


@_known("lossless", "without", "Yang et al. 2401.06706; Sequoia 2402.12374")
def without_replacement(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Recursive rejection of candidates without replacement."""
    left, q = p[0], q.clone()
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[x] < left[x]:
            return [x, drawn(p[i + 1])]
        left = residual(left, q)
        q[x] = 0.0
        q = q / q.sum() if q.sum() > 0 else q
    return [drawn(left)]


@_known("lossless", "top", "EAGLE's evaluate_posterior at T = 1; SGLang's target-only verification")
def point_masses(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Point masses: a candidate is kept with what is left of p(x)."""
    left = p[0].clone()
    for i, x in enumerate(drafts):
        if random.random() * left.sum() < left[x]:
            return [x, drawn(p[i + 1])]
        left[x] = 0.0
    return [drawn(left)]


# ------------------------------------------------------------------------------------------ wrong


@_known("biased", "chain", "a common slip in first implementations")
def residual_is_p(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """The residual is p and not (p - q)+."""
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i], drawn(p[i])]
    return [*drafts, drawn(p[-1])]


@_known("biased", "chain", "transformers, assistant_ensemble_weight; DIVERSE 2604.07622")
def ensemble_weight(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Accepts by v = w p + (1 - w) q, w = .9 (documented as lossy)."""
    for i, x in enumerate(drafts):
        if torch.rand(()) > 0.1 + 0.9 * p[i, x] / q[i, x]:
            return [*drafts[:i], drawn(residual(p[i], q[i]))]
    return [*drafts, drawn(p[-1])]


@_known("biased", "chain", "transformers #47932, dflash #74")
def q_of_another_temperature(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """The q that is tested is not the one that was drawn from: another temperature."""
    return token_rejection(p, (q.log() / 1.6).softmax(-1), drafts)


@_known("biased", "chain", "vllm-ascend #13730")
def uniform_is_zero(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """The uniform is the constant 0, so that everything is accepted."""
    return [*drafts, drawn(p[-1])]


@_known("no certificate", "chain", "vllm-ascend's block_verify, August 2026: TV .31 by simulation")
def products_of_uniforms(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Cumulative products of the ratios are compared with cumulative products of uniforms."""
    places = torch.arange(len(drafts))
    ratios = (p[places, drafts] / q[places, drafts]).clamp(max=1).cumprod(0)
    kept = int((torch.rand(len(drafts)).cumprod(0) < ratios).sum())
    return [*drafts[:kept], drawn(p[kept])]


@_known("biased", "chain", "Hierarchical Speculative Decoding as coded")
def uncapped_product(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Block verification's last weight is not capped at 1 before it is multiplied on."""
    places = torch.arange(len(drafts))
    if torch.rand(()) < (p[places, drafts] / q[places, drafts]).prod():
        return [*drafts, drawn(p[-1])]
    return block_verification(p[:-1], q[:-1], drafts[:-1])


@_known("biased", "chain", "TensorRT-LLM #15098: a wrong slice of the logits")
def bonus_from_the_row_before(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """The bonus token comes from the row before."""
    return token_rejection(torch.cat([p[:-1], p[-2:-1]]), q, drafts)


@_known("no certificate", "chain", "vLLM #47386, fixed by #54282")
def shared_noise(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Acceptance and recovered token share their noise."""
    uniform = torch.rand_like(p[0])
    for i, x in enumerate(drafts):
        if uniform[x] * q[i, x] >= p[i, x]:
            gumbel = -torch.log(-torch.log(uniform))
            return [*drafts[:i], (residual(p[i], q[i]).log() + gumbel).argmax()]
    return [*drafts, drawn(p[-1])]


@_known("biased", "with", "TensorRT-LLM's dynamic tree at 16f0267")
def no_residual_update(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Siblings are tried without taking q off the residual after a rejection."""
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[x] < p[0, x]:
            return [x, drawn(p[i + 1])]
    return [drawn(residual(p[0], q))]


@_known("biased", "without", "MCSD's two rules, one in the other's place")
def wrong_draws(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """The rule for draws with replacement, on draws without."""
    return recursive_rejection(p, q, drafts)


@_known("biased", "top", "jaymody/speculative-sampling #3; apple/ml-recurrent-drafter #6 (beams)")
def argmax_as_a_draw(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """The drafted argmax is tested with min(1, p/q), as if it had been drawn from q."""
    return recursive_rejection(p, q, drafts)


@_known(
    "biased", "top", "EAGLE-1's evaluate_posterior at 08dc06c: right at T = 1 only", logits=True
)
def bonus_without_temperature(
    p: Tensor, q: Tensor, drafts: Tensor, temperature: float = 1.0
) -> Tokens:
    """Candidates are tried at softmax(logits / T), the bonus token is drawn at T = 1."""
    tested, bonus = (p[:1] / temperature).softmax(-1), p[1:].softmax(-1)
    return point_masses(torch.cat([tested, bonus]), q, drafts)


@_known("biased", "chain", "SGLang #39253 (ROCm)", logits=True)
def greedy_above_zero(p: Tensor, q: Tensor, drafts: Tensor, temperature: float = 1.0) -> Tokens:
    """Temperature is ignored: the draft is compared with the most probable token."""
    best = p.argmax(-1)
    kept = int((best[:-1] == drafts).long().cumprod(0).sum())
    return [*drafts[:kept], best[kept]]


@_known("biased", "chain", "Medusa 2401.10774")
def typical_acceptance(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Typical acceptance: kept where p(x) > min(.09, .3 exp(-H)) (documented as lossy)."""
    for i, x in enumerate(drafts):
        entropy = -(p[i] * p[i].clamp_min(1e-9).log()).sum()
        if p[i, x] <= min(0.09, float(0.3 * (-entropy).exp())):
            return [*drafts[:i], drawn(p[i])]
    return [*drafts, drawn(p[-1])]


@_known("biased", "top", "SGLang's speculative_accept_threshold_single below 1")
def threshold_single(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """A candidate is kept wherever p(x) is over a threshold, here .6 (documented as lossy)."""
    left = p[0].clone()
    for i, x in enumerate(drafts):
        if left[x] >= 0.6 or random.random() * left.sum() < left[x]:
            return [x, drawn(p[i + 1])]
        left[x] = 0.0
    return [drawn(left)]
