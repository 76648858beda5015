"""Verifiers as engines write them, right and wrong, for :func:`specwb.certify`.

Each is a function of our own, written from the description of what was published or shipped: its
entry in :data:`VERIFIERS` says where, and what is wrong with it. None is taken from a repository.
``p`` and ``q`` are as :func:`specwb.certify` hands them over.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from types import SimpleNamespace
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


def _known(verdict: str, draw: str, source: str, logits: bool = False) -> Any:
    """Add a verifier to ``VERIFIERS``; its docstring says what it does."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        says = " ".join((function.__doc__ or "").split()).removesuffix(".")
        about = says[0].lower() + says[1:]
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


@_known("lossless", "chain", "Leviathan et al. 2211.17192, algorithm 1")
def token_rejection(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Token rejection."""
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i], _drawn(_rest(p[i], q[i]))]
    return [*drafts, _drawn(p[-1])]


@_known("lossless", "chain", "the torch path of vLLM's rejection sampler")
def recovered_by_races(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """All uniforms at once, recovered tokens by an exponential race at every place."""
    places = torch.arange(len(drafts))
    noise = torch.empty_like(q)
    noise.exponential_()
    recovered = (p[:-1] - q).clamp(min=0).div_(noise).argmax(-1)
    accepted = p[places, drafts] / q[places, drafts] >= torch.rand(len(drafts))
    kept = int(accepted.long().cumprod(0).sum())
    last = recovered[kept] if kept < len(drafts) else _drawn(p[-1])
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
        return [*drafts, _drawn(p[-1])]
    return [*drafts[:kept], _drawn(_rest(at_kept * p[kept], q[kept]))]


@_known("lossless", "with", "SpecInfer 2305.09781")
def recursive_rejection(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Recursive rejection of i.i.d. candidates."""
    left = p[0]
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[x] < left[x]:
            return [x, _drawn(p[i + 1])]
        left = _rest(left, q)
    return [_drawn(left)]


@_known("lossless", "without", "Yang et al. 2401.06706; Sequoia 2402.12374")
def without_replacement(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Recursive rejection of candidates without replacement."""
    left, q = p[0], q.clone()
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[x] < left[x]:
            return [x, _drawn(p[i + 1])]
        left = _rest(left, q)
        q[x] = 0.0
        q = q / q.sum() if q.sum() > 0 else q
    return [_drawn(left)]


@_known("lossless", "top", "EAGLE's evaluate_posterior at T = 1; SGLang's target-only verification")
def point_masses(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Point masses: a candidate is kept with what is left of p(x)."""
    left = p[0].clone()
    for i, x in enumerate(drafts):
        if random.random() * left.sum() < left[x]:
            return [x, _drawn(p[i + 1])]
        left[x] = 0.0
    return [_drawn(left)]


# ------------------------------------------------------------------------------------------ wrong


@_known("biased", "chain", "a common slip in first implementations")
def residual_is_p(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """The residual is p and not (p - q)+."""
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i], _drawn(p[i])]
    return [*drafts, _drawn(p[-1])]


@_known("biased", "chain", "transformers, assistant_ensemble_weight; DIVERSE 2604.07622")
def ensemble_weight(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Accepts by v = w p + (1 - w) q, w = .9 (documented as lossy)."""
    for i, x in enumerate(drafts):
        if torch.rand(()) > 0.1 + 0.9 * p[i, x] / q[i, x]:
            return [*drafts[:i], _drawn(_rest(p[i], q[i]))]
    return [*drafts, _drawn(p[-1])]


@_known("biased", "chain", "transformers #47932, dflash #74")
def q_of_another_temperature(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """The q that is tested is not the one that was drawn from: another temperature."""
    return token_rejection(p, (q.log() / 1.6).softmax(-1), drafts)


@_known("biased", "chain", "vllm-ascend #13730")
def uniform_is_zero(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """The uniform is the constant 0, so that everything is accepted."""
    return [*drafts, _drawn(p[-1])]


@_known("no certificate", "chain", "vllm-ascend's block_verify, August 2026: TV .31 by simulation")
def products_of_uniforms(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Cumulative products of the ratios are compared with cumulative products of uniforms."""
    places = torch.arange(len(drafts))
    ratios = (p[places, drafts] / q[places, drafts]).clamp(max=1).cumprod(0)
    kept = int((torch.rand(len(drafts)).cumprod(0) < ratios).sum())
    return [*drafts[:kept], _drawn(p[kept])]


@_known("biased", "chain", "Hierarchical Speculative Decoding as coded")
def uncapped_product(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Block verification's last weight is not capped at 1 before it is multiplied on."""
    places = torch.arange(len(drafts))
    if torch.rand(()) < (p[places, drafts] / q[places, drafts]).prod():
        return [*drafts, _drawn(p[-1])]
    return block_verification(p[:-1], q[:-1], drafts[:-1])


@_known("biased", "chain", "TensorRT-LLM #15098: a wrong slice of the logits")
def bonus_from_the_row_before(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """The bonus token comes from the row before."""
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i], _drawn(_rest(p[i], q[i]))]
    return [*drafts, _drawn(p[-2])]


@_known("no certificate", "chain", "vLLM #47386, fixed by #54282")
def shared_noise(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Acceptance and recovered token share their noise."""
    uniform = torch.rand_like(p[0])
    for i, x in enumerate(drafts):
        if uniform[x] * q[i, x] >= p[i, x]:
            gumbel = -torch.log(-torch.log(uniform))
            return [*drafts[:i], (_rest(p[i], q[i]).log() + gumbel).argmax()]
    return [*drafts, _drawn(p[-1])]


@_known("biased", "with", "TensorRT-LLM's dynamic tree at 16f0267")
def no_residual_update(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Siblings are tried without taking q off the residual after a rejection."""
    for i, x in enumerate(drafts):
        if torch.rand(()) * q[x] < p[0, x]:
            return [x, _drawn(p[i + 1])]
    return [_drawn(_rest(p[0], q))]


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
    left = (p[0] / temperature).softmax(-1)
    for i, x in enumerate(drafts):
        if random.random() * left.sum() < left[x]:
            return [x, _drawn(p[i + 1].softmax(-1))]
        left[x] = 0.0
    return [_drawn(left)]


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
            return [*drafts[:i], _drawn(p[i])]
    return [*drafts, _drawn(p[-1])]


@_known("biased", "top", "SGLang's speculative_accept_threshold_single below 1")
def threshold_single(p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """A candidate is kept wherever p(x) is over a threshold, here .6 (documented as lossy)."""
    left = p[0].clone()
    for i, x in enumerate(drafts):
        if left[x] >= 0.6 or random.random() * left.sum() < left[x]:
            return [x, _drawn(p[i + 1])]
        left[x] = 0.0
    return [_drawn(left)]


# --------------------------------------------------------------------------------------- adapters
# Relied on: names and shapes of arguments, read in the repositories at the commits named.


def _adapter(verify: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """Turn a function with an engine's signature, which ``verify`` calls, into a verifier."""
    return wraps(verify)(lambda function, **more: partial(verify, function, **more))


@_adapter
def like_transformers(function: Any, p: Tensor, q: Tensor, drafts: Tensor) -> Tensor:
    """Adapts ``(candidate ids [1,g], draft logits [1,g,V], g, target logits [1,g+1,V])``, which
    returns ``(tokens [1,n], accepted)``, as ``generation.utils._speculative_sampling`` does."""
    return function(drafts[None], q.log()[None], len(drafts), p.log()[None])[0]


@_adapter
def like_flashinfer(function: Any, p: Tensor, q: Tensor, drafts: Tensor) -> list[int]:
    """Adapts ``(draft probabilities [1,g,V], draft ids [1,g], target probabilities [1,g+1,V])``,
    which returns ``tokens [1,g+1]``, -1 behind the last, or a tuple that begins with them:
    FlashInfer's ``chain_speculative_sampling``."""
    tokens = function(q[None], drafts[None], p[None])
    return _written(tokens[0] if isinstance(tokens, tuple) else tokens)


@_adapter
def like_vllm(function: Any, p: Tensor, q: Tensor, drafts: Tensor) -> list[int]:
    """Adapts vLLM's ``rejection_sample`` (v1/sample/rejection_sampler.py at 0097a7b): ``(draft ids
    [g], [g], g, tensor [g], draft probabilities [g,V], target probabilities [g,V], bonus ids [1,1],
    sampling metadata)``, which returns ``tokens [1,g+1]``, -1 behind the last.

    The bonus token is drawn from p before, as there. Of the metadata there are ``all_greedy``,
    ``all_random``, ``generators`` (none) and ``temperature`` (1)."""
    g, bonus = len(drafts), torch.multinomial(p[-1], 1)[None]
    asked = SimpleNamespace(all_greedy=False, all_random=True, generators={})
    asked.temperature = torch.ones(1)
    return _written(function(drafts, [g], g, torch.tensor([g]), q, p[:-1], bonus, asked))


@_adapter
def like_sglang(function: Any, p: Tensor, q: Tensor, drafts: Tensor) -> list[int]:
    """Adapts SGLang's ``tree_speculative_sampling_target_only`` (sgl_kernel/speculative.py at
    6bfad8f), called by keyword, which fills ``predicts [n]``, ``accept_index [1,depth+1]`` (-1:
    none) and ``accept_token_num [1]``; ``predicts[accept_index]`` is what is written.

    ``candidates [1,n]`` are the root and the drafts, ``retrive_index [1,n]`` counts them,
    ``retrive_next_token`` and ``retrive_next_sibling [1,n]`` name the first child and the next
    sibling (-1: none), ``target_probs`` and ``draft_probs`` (0) are ``[1,n,V]``; uniforms
    ``uniform_samples [1,n]``, ``uniform_samples_for_final_sampling [1]``; both thresholds are 1.
    Candidates are q's most probable tokens (``draw="top"``)."""
    n, is_chain = len(drafts) + 1, q.ndim == 2
    following = torch.tensor([[*range(1, n), -1]])
    predicts, index = torch.full((n,), -1, dtype=torch.int32), torch.arange(n)[None]
    accepted = torch.full((1, n if is_chain else 2), -1, dtype=torch.int32)
    function(
        predicts=predicts,
        accept_index=accepted,
        accept_token_num=torch.zeros(1, dtype=torch.int32),
        candidates=torch.cat([torch.zeros(1, dtype=torch.long), drafts])[None],
        retrive_index=index,
        retrive_next_token=following if is_chain else torch.where(index == 0, 1, -1),
        retrive_next_sibling=torch.where((index == 0) | is_chain, -1, following),
        uniform_samples=torch.rand(1, n),
        uniform_samples_for_final_sampling=torch.rand(1),
        target_probs=p[None],
        draft_probs=torch.zeros_like(p)[None],
        threshold_single=1.0,
        threshold_acc=1.0,
        deterministic=True,
    )
    return predicts[accepted[accepted >= 0].long()].tolist()


@_adapter
def like_tensorrt_llm(
    function: Any, p: Tensor, q: Tensor, drafts: Tensor, sample: Any = None
) -> Tokens:
    """Adapts TensorRT-LLM's ``get_rejected_indices`` (_torch/pyexecutor/sampling_utils.py at
    c20322f): ``(draft probabilities [g,V], target probabilities [g+1,V], generator, draft tokens)``
    returns the places ``[m,1]`` of the rejected tokens.

    ``sample`` is ``sample_rejected``, ``(draft probabilities, target probabilities, generator,
    accepted)``, which returns a token; without it that is drawn from norm((p - q)+). The generator
    is torch's global one."""
    rejected = function(q, p, torch.default_generator, drafts.tolist())
    if not len(rejected):
        return [*drafts, _drawn(p[-1])]
    kept = int(rejected.min())
    if sample is None:
        return [*drafts[:kept], _drawn(_rest(p[kept], q[kept]))]
    return [*drafts[:kept], sample(q, p, torch.default_generator, kept)]


@_adapter
def like_eagle(
    function: Any, p: Tensor, q: Tensor, drafts: Tensor, temperature: float = 0.0
) -> Tokens:
    """Adapts EAGLE's ``evaluate_posterior(logits, candidates, logits processor)`` (since EAGLE-2):
    logits ``[paths,depth+1,V]`` and candidates ``[paths,depth+1]`` of every path, the root first,
    and a function of ``(None, logits)``, which returns the path that is kept, how many of its
    tokens are, and the distribution that the next one is drawn from.

    Candidates are q's most probable tokens (``draw="top"``). With ``logits=True`` temperatures are
    tried as well."""
    logits, candidates = _paths(p if temperature else p.log(), q, drafts)
    processor = lambda _, row: row / (temperature or 1.0)  # noqa: E731
    best, kept, rest = function(logits, candidates, processor)
    return [*candidates[int(best), 1 : int(kept) + 1], _drawn(rest)]


@_adapter
def like_medusa(
    function: Any, p: Tensor, q: Tensor, drafts: Tensor, temperature: float = 0.0
) -> Tokens:
    """Adapts Medusa's ``evaluate_posterior(logits, candidates, temperature, threshold, alpha)``
    (medusa/model/utils.py at 10a2697), with logits and candidates as :func:`like_eagle` has them,
    which returns the path that is kept and how many of its tokens are. The thresholds are .09 and
    .3, and the next token is drawn from p."""
    logits, candidates = _paths(p if temperature else p.log(), q, drafts)
    best, kept = map(int, function(logits, candidates, temperature or 1.0, 0.09, 0.3))
    rest = (logits[best, kept] / (temperature or 1.0)).softmax(-1)
    return [*candidates[best, 1 : kept + 1], _drawn(rest)]


@_adapter
def like_recurrent_drafter(function: Any, p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Adapts the recurrent drafter's ``_choose_from_candidates`` (apple/ml-recurrent-drafter at
    d4f4a72): beams ``[1,width,depth+1]``, the root first, the target's log probabilities
    ``[1,width,depth+1,V]`` and the draft's ``[1,width,depth,V]``; it returns how many tokens are
    kept ``[1]`` and of which beam ``[1]``. The next token is drawn from norm((p - q)+) there, or
    from p behind a whole beam.

    A chain is one beam whose tokens are drawn, and lossless; beams that are searched are not drawn
    (``draw="top"``)."""
    rows, beams = _paths(p, q, drafts)
    drawn_from = q.expand(len(rows), rows.shape[1] - 1, -1)
    kept, best = map(int, function(beams[None], rows.log()[None], drawn_from.log()[None]))
    whole = kept == drawn_from.shape[1]
    rest = rows[best, kept] if whole else _rest(rows[best, kept], drawn_from[best, kept])
    return [*beams[best, 1 : kept + 1], _drawn(rest)]


@_adapter
def like_mcsd(function: Any, p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Adapts ``(p [V], q [V], candidates [k])``, which returns the index of the one that is
    accepted, or None and the residual: a rule for the candidates of one node."""
    chosen, rest = function(p[0], q, drafts)
    return [_drawn(rest)] if chosen is None else [drafts[chosen], _drawn(p[int(chosen) + 1])]


def _written(tokens: Tensor) -> list[int]:
    return [x for x in tokens.flatten().tolist() if x >= 0]


def _paths(rows: Tensor, q: Tensor, drafts: Tensor) -> tuple[Tensor, Tensor]:
    """Rows ``[paths,depth+1,V]`` and tokens ``[paths,depth+1]``, the root (0) first: a chain is one
    path, and every candidate of one node is one."""
    if q.ndim == 2:
        return rows[None], torch.cat([torch.zeros_like(drafts[:1]), drafts])[None]
    after = torch.stack([rows[:1].expand(len(drafts), -1), rows[1:]], 1)
    return after, torch.stack([torch.zeros_like(drafts), drafts], 1)


ADAPTERS = {
    "transformers": like_transformers,
    "flashinfer": like_flashinfer,
    "vllm": like_vllm,
    "sglang": like_sglang,
    "tensorrt_llm": like_tensorrt_llm,
    "eagle": like_eagle,
    "medusa": like_medusa,
    "recurrent_drafter": like_recurrent_drafter,
    "mcsd": like_mcsd,
}
"""Name -> what makes a verifier of a function with an engine's signature."""
