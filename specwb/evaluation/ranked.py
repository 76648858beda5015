"""EasySpec on several processes.

Reported are the drafts, whether one process drafts the same, and where each rank's time goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from specwb.analysis.layer_parallel import round_exchange_limit
from specwb.decoding import rounds
from specwb.drafters.easyspec import EasyDrafter
from specwb.engine import Clock
from specwb.evaluation.fuzzy import layer_times
from specwb.methods import Method, method
from specwb.models.ranks import Ranks, parts
from specwb.models.target import Target


def measure(
    target: Target,
    ids: Sequence[int],
    ranks: Ranks | None,
    options: dict[str, Any],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """Decode a prompt with ``easyspec`` on all ranks, and again with a clock.

    On several ranks the prompt is decoded once more as a simulation, which each of them runs
    completely. What is timed is not recorded as graphs.

    Returns:
        On every rank a dict with

        - method: its key.
        - rounds: of every step the draft tokens, how many were accepted, and the bonus token.
        - same: whether one process drafts the same.
        - by_rank: milliseconds a step; the first step is left out where there are others, since the
          prompt is in it.
        - parted: over how many ranks the target is distributed.
        - groups: of layers.
        - attention, limit: of several ranks only: ms of one attention, and how many ms a step
          exchanges may take for these ranks to draft in less time than one.
    """
    execution = "simulation" if ranks is None else "ranks"
    easyspec = method("easyspec", target, execution=execution, **options)
    drafter = easyspec.drafter
    assert isinstance(drafter, EasyDrafter)
    steps = decode_steps(target, ids, easyspec, settings)
    same = True
    if ranks is not None:
        simulation = method("easyspec", target, execution="simulation", **options)
        same = steps == decode_steps(target, ids, simulation, settings)
    number = 0 if ranks is None else ranks.rank
    times: dict[str, Any] = {"rank": number, **step_times(target, ids, easyspec, settings, ranks)}
    by_rank: list[Any] = [times]
    if ranks is not None:
        by_rank = [None] * ranks.size
        dist.all_gather_object(by_rank, times)
    groups, depth = drafter.groups.layers, drafter.limits.depth
    result = {
        "method": easyspec.key,
        "rounds": steps,
        "same": same,
        "by_rank": by_rank,
        "parted": 1,
        "groups": [list(group) for group in groups],
    }
    if ranks is not None:
        attention = layer_times(drafter.draft, extent=max(256, len(ids)))["attention"]
        limit = round_exchange_limit(groups, ranks.size, attention, depth, drafter.calibrate)
        # the last pass of a step is exact where the drafter calibrates: every layer is exchanged
        last_pass = sum(map(len, groups)) if drafter.calibrate else len(groups)
        exchanges = (depth - 1) * len(groups) + last_pass
        result |= {
            "parted": parts(target.model.config, ranks.size),
            "attention": attention,
            "limit": limit * exchanges,
        }
    return result


def decode_steps(
    target: Target, ids: Sequence[int], method: Method, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Decode a prompt; of every step its draft tokens, how many were accepted, the bonus token."""
    return [
        {
            "draft": step.draft.tokens[0, 1:].tolist(),
            "accepted": int(step.verdict.accepted[0]),
            "bonus": int(step.verdict.bonus[0]),
        }
        for step in rounds(target, [list(ids)], method, **settings)
    ]


def step_times(
    target: Target,
    ids: Sequence[int],
    method: Method,
    settings: dict[str, Any],
    ranks: Ranks | None,
) -> dict[str, float]:
    """Time the decoding steps of this rank, in milliseconds a step.

    Returns:
        A dict with

        - draft.
        - attention, exchange: parts of draft; in exchange are the logits of the draft.
        - target.
        - rest: verify and commit.
        - round: the sum of draft, target and rest.
    """
    clock, count = Clock(target.device), 0
    for count, _ in enumerate(rounds(target, [list(ids)], method, clock=clock, **settings)):
        if count == 0:
            first = dict(clock.seconds)
            if ranks is not None:
                ranks.begin()
    steps = max(1, count)
    milliseconds = {
        name: 1e3 * (seconds - (first[name] if count else 0.0)) / steps
        for name, seconds in clock.seconds.items()
    }
    seconds = ranks.end() if ranks is not None else {}
    exchange = sum(seconds.get(name, 0.0) for name in ("exchange", "logits"))
    return {
        "attention": 1e3 * seconds.get("attention", 0.0) / steps,
        "exchange": 1e3 * exchange / steps,
        "draft": milliseconds["draft"],
        "target": milliseconds["score"],
        "rest": milliseconds["verify"] + milliseconds["commit"],
        "round": sum(milliseconds.values()),
    }


def cells(result: dict[str, Any]) -> list[dict[str, str]]:
    """Make the table of milliseconds a step, one row a rank."""
    several = len(result["by_rank"]) > 1
    rows = []
    for times in result["by_rank"]:
        row = {"rank": str(times["rank"])}
        if several:
            other = times["draft"] - times["attention"] - times["exchange"]
            row |= {
                "own attentions": f"{times['attention']:.2f}",
                "exchange": f"{times['exchange']:.2f}",
                "rest of drafting": f"{other:.2f}",
            }
        row |= {
            "drafting": f"{times['draft']:.2f}",
            "target": f"{times['target']:.2f}",
            "verify, commit": f"{times['rest']:.2f}",
        }
        rows.append({**row, "round": f"{times['round']:.2f}"})
    return rows


def notes(result: dict[str, Any]) -> list[str]:
    """Say what the table means, and what would be needed for a gain."""
    steps, size = len(result["rounds"]), len(result["by_rank"])
    tokens = sum(step["accepted"] + 1 for step in result["rounds"])
    summary = (
        f"{steps} step{'s'[: steps - 1]}, {tokens / steps:.2f} tokens per step; "
        "times are milliseconds per step, the first left out"
    )
    if size == 1:
        return [
            summary,
            "one process: layers run one after the other; "
            "torchrun --nproc_per_node 2 -m specwb parallel runs them on two",
        ]
    if steps == 1:
        return ["one step alone, which has the prompt in it, is not timed; ask for more tokens"]
    exchange, limit = max(times["exchange"] for times in result["by_rank"]), result["limit"]
    verdict = (
        "less than that: drafting gains" if exchange < limit else "more than that: drafting loses"
    )
    return [
        summary,
        f"drafts equal those of one process: {'yes' if result['same'] else 'NO'}",
        f"an attention alone takes {result['attention']:.3f} ms here. For {size} ranks to draft in "
        f"less time than one, exchanges may take {limit:.2f} ms per step at most (theorem 14.7); "
        f"they took {exchange:.2f} ms, waiting for the slowest rank included, {verdict}",
    ]
