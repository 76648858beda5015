"""Adapters: a function with the signature of an engine, called as a verifier is.

Relied on are names and shapes of arguments, read in the repositories at the commits named.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Tokens = list[Any]


def drawn(weights: Tensor) -> Tensor:
    return torch.multinomial(weights, 1)[0]


def residual(p: Tensor, q: Tensor) -> Tensor:
    """``norm((p - q)+)``, or p where nothing is left."""
    rest = (p - q).clamp(min=0)
    return rest / rest.sum() if rest.sum() > 0 else p


def like_transformers(function: Any, p: Tensor, q: Tensor, drafts: Tensor) -> Tensor:
    """Adapts ``(candidate ids [1,g], draft logits [1,g,V], g, target logits [1,g+1,V])``, which
    returns ``(tokens [1,n], accepted)``, as ``generation.utils._speculative_sampling`` does."""
    return function(drafts[None], q.log()[None], len(drafts), p.log()[None])[0]


def like_flashinfer(function: Any, p: Tensor, q: Tensor, drafts: Tensor) -> list[int]:
    """Adapts ``(draft probabilities [1,g,V], draft ids [1,g], target probabilities [1,g+1,V])``,
    which returns ``tokens [1,g+1]``, -1 behind the last, or a tuple that begins with them:
    FlashInfer's ``chain_speculative_sampling``."""
    tokens = function(q[None], drafts[None], p[None])
    return _written(tokens[0] if isinstance(tokens, tuple) else tokens)


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


def like_tensorrt_llm(function: Any, p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Adapts TensorRT-LLM's ``get_rejected_indices`` (_torch/pyexecutor/sampling_utils.py at
    c20322f): ``(draft probabilities [g,V], target probabilities [g+1,V], generator, draft tokens)``
    returns the places ``[m,1]`` of the rejected tokens. The generator is torch's global one, and
    the next token is drawn from norm((p - q)+)."""
    rejected = function(q, p, torch.default_generator, drafts.tolist())
    if not len(rejected):
        return [*drafts, drawn(p[-1])]
    kept = int(rejected.min())
    return [*drafts[:kept], drawn(residual(p[kept], q[kept]))]


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
    return [*candidates[int(best), 1 : int(kept) + 1], drawn(rest)]


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
    return [*candidates[best, 1 : kept + 1], drawn(rest)]


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
    rest = rows[best, kept] if whole else residual(rows[best, kept], drawn_from[best, kept])
    return [*beams[best, 1 : kept + 1], drawn(rest)]


def like_mcsd(function: Any, p: Tensor, q: Tensor, drafts: Tensor) -> Tokens:
    """Adapts ``(p [V], q [V], candidates [k])``, which returns the index of the one that is
    accepted, or None and the residual: a rule for the candidates of one node."""
    chosen, rest = function(p[0], q, drafts)
    return [drawn(rest)] if chosen is None else [drafts[chosen], drawn(p[int(chosen) + 1])]


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
"""Name -> a verifier whose first argument is a function with an engine's signature."""
