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
    as a simulation that each of them runs whole.

    Args: options: of the method. settings: of :func:`specwb.rounds`.
    Returns: on every rank ``rounds`` (drafted tokens, how many were accepted, the closing token), ``same`` (does one process draft the same),
        ``by_rank`` (milliseconds a round), ``parted`` (over how many ranks the target is), ``attention`` (ms of one), ``exchange`` (ms of one)
        and ``limit``, what an exchange may take for these ranks to draft in less time than one.
    """
    made = method("easyspec", target, execution="simulation" if ranks is None else "ranks", **options)
    found = drafted(target, ids, made, settings)
    same = ranks is None or found == drafted(target, ids, method("easyspec", target, execution="simulation", **options), settings)
    clock = Clock(target.device)
    if ranks is not None:
        ranks.begin()
    timed = drafted(target, ids, made, settings, clock)
    n = len(timed)
    ms = {name: 1e3 * seconds / n for name, seconds in clock.seconds.items()}
    own = {"rank": 0, "attention": 0.0, "exchange": 0.0}
    if ranks is not None:
        seconds, count = ranks.end()
        own = {"rank": ranks.rank, "attention": 1e3 * seconds["attention"] / n, "exchange": 1e3 * seconds["exchange"] / n}
        one_exchange = 1e3 * seconds["exchange"] / count["exchange"]
    own |= {"draft": ms["draft"], "target": ms["score"], "rest": ms["verify"] + ms["commit"], "round": sum(ms.values())}
    every: list[Any] = [own]
    if ranks is not None:
        every = [None] * ranks.size
        dist.all_gather_object(every, own)
    drafter = made.drafter
    assert isinstance(drafter, EasyDrafter)
    groups, depth = drafter.groups.layers, drafter.tree.D
    result = {"method": made.key, "rounds": found, "same": same, "by_rank": every, "parted": 1, "layers": [list(group) for group in groups]}
    if ranks is not None:
        attention = layer_times(drafter.draft, extent=max(256, len(ids)))["attention"]
        result |= {
            "parted": parts(target.model.config, ranks.size), "attention": attention, "exchange": one_exchange,
            "limit": round_exchange_limit(groups, ranks.size, attention, depth, drafter.calibrate),
        }  # fmt: skip
    return result


def drafted(target: Target, ids: Sequence[int], made: Method, settings: dict[str, Any], clock: Clock | None = None) -> list[dict[str, Any]]:
    """Of every round: the tokens of its draft, how many of a path were accepted, and the closing token."""
    return [
        {
            "drafted": step.draft.tokens[0, 1:].tolist(),
            "accepted": int(step.verdict.accepted[0]),
            "closing": int(step.verdict.closing[0]),
        }
        for step in rounds(target, [list(ids)], made, clock=clock, **settings)
    ]


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
    size = len(result["by_rank"])
    tokens = sum(r["accepted"] + 1 for r in result["rounds"])
    out = [f"{len(result['rounds'])} rounds, {tokens / len(result['rounds']):.2f} tokens a round; times are milliseconds a round"]
    if size == 1:
        return [*out, "one process, layers one after the other as a simulation; torchrun --nproc_per_node 2 -m specwb parallel runs them on two"]
    out.append(f"drafts equal those of one process: {'yes' if result['same'] else 'NO'}")
    limit, took = result["limit"], result["exchange"]
    verdict = "less than the limit: drafting gains" if took < limit else "more than the limit: drafting loses"
    return [
        *out,
        f"an exchange took {took:.3f} ms (waiting for the slowest rank included), an attention alone takes {result['attention']:.3f} ms. For {size} "
        f"ranks to draft in less time than one, an exchange may take at most {limit:.3f} ms (theorem 14.6); it took {verdict}",
    ]
