"""What lies in the caches of a drafter inside the target, before, in and after the first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.noise import row_seeds
from specwb.core.probability import Sampling
from specwb.drafters.kangaroo import KangarooDrafter
from specwb.engine.decoding import decode
from specwb.engine.loop import Decoding
from specwb.engine.methods import Method
from specwb.engine.methods import method as make_method
from specwb.models.place import Place
from specwb.models.target import Target

BEFORE = 4
"""Places of the known text that are shown."""
Table = list[list[int]]


@torch.inference_mode()
def cache_moments(
    target: Target, text: Sequence[int], spec: str | Method
) -> tuple[dict[str, Table], list[int], int]:
    """Compare every cache entry of the first greedy decoding step with the final text's.

    Args:
        target: the target model; its caches are the first rows.
        text: token ids.
        spec: a chain of ``kangaroo``, such as "kangaroo:gamma=4,eta=0", or as it was built.
    Returns:
        ``(moments, tokens, first)``. Moments are name -> ``[layers + 1][places]``, the adapter's
        cache last: 0 nothing, 1 what a forward over the text that the target writes puts there,
        2 another token's entry. Tokens are the text's at these places, first is the number of the
        first place.
    """
    method = spec if isinstance(spec, Method) else make_method(spec, target)
    if not isinstance(method.drafter, KangarooDrafter) or method.drafter.stack is None:
        raise ArgumentError(f"caches are followed in a chain of kangaroo's, got {spec!r}")
    depth = method.drafter.limits.depth
    written = decode(target, list(text), method, max_new_tokens=depth + 2, eos=()).tokens[0]
    final, first = [*text, *written], max(0, len(text) - BEFORE)
    seeds = row_seeds(0, 1, target.device)
    run = Decoding(target, method, Sampling(), [list(text)], [3 * depth], seeds).open()
    moments: dict[str, Table] = {}

    def look(name: str) -> None:
        drafter: Any = run.drafter
        held = _held(target, drafter, run.state.cache.data, final)
        moments[name] = held[:, first:].tolist()

    look("before the step")
    draft = run.draft()
    look("drafted")
    run.settle(draft)
    run.state.read()
    look("verified")
    run.draft()
    look("the next draft")
    return moments, final[first:], first


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
