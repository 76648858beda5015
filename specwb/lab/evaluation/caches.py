"""What lies in the caches of a drafter inside the target, before, during and after one step."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.probability import Sampling
from specwb.drafters.kangaroo import KangarooDrafter
from specwb.engine.decoding import decode
from specwb.engine.loop import trim
from specwb.engine.methods import Method
from specwb.engine.methods import method as make_method
from specwb.models.place import Place
from specwb.models.target import Target
from specwb.rules import Greedy

BEFORE = 4
"""Places of the known text that are shown."""
Table = list[list[int]]


@torch.inference_mode()
def cache_moments(
    target: Target, text: Sequence[int], spec: str | Method, step: int = 0
) -> tuple[dict[str, Table], list[int], int]:
    """Compare every cache entry of one greedy decoding step with the final text's.

    Args:
        target: the target model; its caches are the first rows.
        text: token ids.
        spec: a chain of ``kangaroo``, such as "kangaroo:gamma=4,eta=0", or as it was built.
        step: which step of the decoding, from 0.
    Returns:
        ``(moments, tokens, first)``. Moments are name -> ``[layers + 1][places]``, the adapter's
        cache last: 0 nothing, 1 what a forward over the text that the target writes puts there,
        2 another token's entry. Tokens are the text's at these places, first is the number of the
        first place.
    """
    method = spec if isinstance(spec, Method) else make_method(spec, target)
    drafter = copy.copy(method.drafter)
    if not isinstance(drafter, KangarooDrafter) or drafter.stack is None:
        raise ArgumentError(f"caches are followed in a chain of kangaroo's, got {spec!r}")
    noise: Any = None  # greedy drafts draw nothing
    depth = drafter.limits.depth
    done = decode(target, list(text), method, max_new_tokens=(step + 2) * (depth + 1), eos=())
    begun = sum(kept + 1 for kept in done.accepted_lengths[0][:step])
    if step >= len(done.accepted_lengths[0]):
        raise ArgumentError(f"the decoding has {len(done.accepted_lengths[0])} steps, got {step}")
    known = [*text, *done.tokens[0][:begun]]
    final = known + done.tokens[0][begun : begun + depth + 2]

    state = target.open([known], [3 * depth], 2 * depth, Sampling(), (), drafter.features)
    drafter.open(state, target)
    moments = {"before the step": _held(target, drafter, state.cache.data, final)}
    draft = drafter.propose(state, noise)
    moments["drafted"] = _held(target, drafter, state.cache.data, final)
    scores = target.score(state, draft, drafter.features)
    verdict, over = trim(Greedy().verify(draft, scores, None), draft, state)
    target.commit(state, draft, verdict, scores)
    state.advance(verdict, over)
    state.read()
    moments["verified"] = _held(target, drafter, state.cache.data, final)
    drafter.propose(state, noise)
    moments["the next draft"] = _held(target, drafter, state.cache.data, final)
    first = max(0, len(known) - BEFORE)
    shown = {name: table[:, first:].tolist() for name, table in moments.items()}
    return shown, final[first:], first


def _held(target: Target, drafter: KangarooDrafter, cache: Tensor, text: Sequence[int]) -> Tensor:
    """``[layers + 1, places]``: 0, 1 or 2 as in :func:`cache_moments`."""
    stack, n, exit_ = drafter.stack, len(text), drafter.head.exit
    assert stack is not None
    place = Place.text(1, n)
    true, own = target.backbone.cache(1, n), stack.cache(1, n)
    states = target.backbone.embed(torch.tensor([list(text)]))
    early = target.backbone.run(states, place, true, last=exit_)[0]
    target.backbone.run(early, place, true, first=exit_)
    stack.run(early, place, own)
    have = torch.cat([cache, drafter.cache.data])[:, 0, :n]
    want = torch.cat([true.data, own.data])[:, 0]
    right = (have - want).abs().amax((2, 3)) < 1e-9
    empty = (have == 0).all(3).all(2)
    return torch.where(right, 1, 2).masked_fill(empty, 0)
