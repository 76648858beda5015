"""EasySpec on several processes: what was drafted, whether one process drafts the same, and where each rank's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from specwb.analysis.layer_parallel import round_exchange_limit
from specwb.drafters.easyspec import EasyDrafter
from specwb.engine import Clock, rounds
from specwb.evaluation.fuzzy import layer_times
from specwb.methods import Method, method
from specwb.models.ranks import Ranks, parts
from specwb.models.target import Target


def measured(target: Target, ids: Sequence[int], ranks: Ranks | None, options: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Decode a prompt with ``easyspec`` on all ranks (None: this process alone, as a simulation), and again, timed, and on several ranks once more
    as a simulation that each of them runs whole. Nothing is recorded as graphs.

    Args: options: of the method. settings: of :func:`specwb.rounds`.
    Returns: on every rank ``rounds`` (drafted tokens, how many were accepted, the closing token), ``same`` (does one process draft the same),
        ``by_rank``, milliseconds a round, the first one left out where there are others (it has the prompt in it), ``parted`` (over how many
        ranks the target is), ``groups`` of layers, and of several ranks ``attention`` (ms of one) and ``limit``: what exchanges may take a round
        for these ranks to draft in less time than one.
    """
    settings = {**settings, "graphs": False}
    made = method("easyspec", target, execution="simulation" if ranks is None else "ranks", **options)
    drafter = made.drafter
    assert isinstance(drafter, EasyDrafter)
    found = drafted(target, ids, made, settings)
    same = ranks is None or found == drafted(target, ids, method("easyspec", target, execution="simulation", **options), settings)
    own: dict[str, Any] = {"rank": 0 if ranks is None else ranks.rank, **timed(target, ids, made, settings, ranks)}
    every: list[Any] = [own]
    if ranks is not None:
        every = [None] * ranks.size
        dist.all_gather_object(every, own)
    groups, depth = drafter.groups.layers, drafter.limits.depth
    result = {"method": made.key, "rounds": found, "same": same, "by_rank": every, "parted": 1, "groups": [list(group) for group in groups]}
    if ranks is not None:
        attention = layer_times(drafter.draft, extent=max(256, len(ids)))["attention"]
        limit = round_exchange_limit(groups, ranks.size, attention, depth, drafter.calibrate)
        exchanges = (depth - 1) * len(groups) + (sum(map(len, groups)) if drafter.calibrate else len(groups))
        result |= {"parted": parts(target.model.config, ranks.size), "attention": attention, "limit": limit * exchanges}
    return result


def drafted(target: Target, ids: Sequence[int], made: Method, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Of every round: the tokens of its draft, how many of a path were accepted, and the closing token."""
    return [
        {
            "drafted": step.draft.tokens[0, 1:].tolist(),
            "accepted": int(step.verdict.accepted[0]),
            "closing": int(step.verdict.closing[0]),
        }
        for step in rounds(target, [list(ids)], made, **settings)
    ]


def timed(target: Target, ids: Sequence[int], made: Method, settings: dict[str, Any], ranks: Ranks | None) -> dict[str, float]:
    """Milliseconds a round of this rank: ``draft``, of which ``attention`` and ``exchange`` (logits of the draft included), ``target``, ``rest``."""
    clock, count = Clock(target.device), 0
    for count, _ in enumerate(rounds(target, [list(ids)], made, clock=clock, **settings)):
        if count == 0:
            first = dict(clock.seconds)
            if ranks is not None:
                ranks.begin()
    several = max(1, count)
    spent = {name: 1e3 * (seconds - (first[name] if count else 0.0)) / several for name, seconds in clock.seconds.items()}
    parts = ranks.end() if ranks is not None else {}
    own = {"attention": 1e3 * parts.get("attention", 0.0) / several}
    own["exchange"] = 1e3 * sum(parts.get(name, 0.0) for name in ("exchange", "logits")) / several
    own |= {"draft": spent["draft"], "target": spent["score"], "rest": spent["verify"] + spent["commit"]}
    return {**own, "round": sum(spent.values())}


def cells(result: dict[str, Any]) -> list[dict[str, str]]:
    """The table of milliseconds a round, by rank."""
    parted = len(result["by_rank"]) > 1
    rows = []
    for own in result["by_rank"]:
        row = {"rank": str(own["rank"])}
        if parted:
            other = own["draft"] - own["attention"] - own["exchange"]
            row |= {"own attentions": f"{own['attention']:.2f}", "exchange": f"{own['exchange']:.2f}", "rest of drafting": f"{other:.2f}"}
        row |= {"drafting": f"{own['draft']:.2f}", "target": f"{own['target']:.2f}", "verify, commit": f"{own['rest']:.2f}"}
        rows.append({**row, "round": f"{own['round']:.2f}"})
    return rows


def notes(result: dict[str, Any]) -> list[str]:
    """What the table says, and what would be needed for a gain."""
    many, size = len(result["rounds"]), len(result["by_rank"])
    tokens = sum(r["accepted"] + 1 for r in result["rounds"])
    out = [f"{many} round{'s'[: many - 1]}, {tokens / many:.2f} tokens a round; times are milliseconds a round, the first left out"]
    if size == 1:
        return [*out, "one process: layers run one after the other; torchrun --nproc_per_node 2 -m specwb parallel runs them on two"]
    if many == 1:
        return ["one round alone, which has the prompt in it, is not timed; ask for more tokens"]
    took, limit = max(own["exchange"] for own in result["by_rank"]), result["limit"]
    verdict = "less than that: drafting gains" if took < limit else "more than that: drafting loses"
    return [
        *out,
        f"drafts equal those of one process: {'yes' if result['same'] else 'NO'}",
        f"an attention alone takes {result['attention']:.3f} ms here. For {size} ranks to draft in less time than one, exchanges may take "
        f"{limit:.2f} ms a round at most (theorem 14.7); they took {took:.2f} ms, waiting for the slowest rank included, {verdict}",
    ]
