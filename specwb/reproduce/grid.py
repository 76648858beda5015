"""A grid of settings measured side by side: every prompt by every cell before the next prompt, a fixed number of rounds each.

A fixed number of rounds rather than of tokens: tau is then a plain mean that no limit cuts, and prompts are independent repetitions of equal
weight. Texts go on past an end of text token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, pairwise
from statistics import median
from typing import Any, Protocol

import torch

from specwb.engine import Clock, rounds
from specwb.evaluation.prompts import Question, interleave
from specwb.methods import Method
from specwb.models.target import Target
from specwb.reproduce.store import Store

LONG = 512
FEWEST = 2  # prompts: below, there is no standard error


class Setting(Protocol):
    """What a grid needs to know of a cell. ``long``: the prompt has other prompts before it, up to ``LONG`` tokens."""

    @property
    def key(self) -> str: ...
    @property
    def temperature(self) -> float: ...
    @property
    def layout(self) -> str: ...
    @property
    def long(self) -> bool: ...


def run(
    target: Target,
    questions: Sequence[Question],
    store: Store,
    methods: Mapping[Any, Method],
    *,
    rounds_each: int = 10,
    seconds: float | None = None,
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
    most: int | None = None,
    split: bool = False,
) -> bool:
    """Fill ``store.cells[cell.key]``, for every cell of ``methods``, with what :func:`measure` finds of every prompt.

    Goes through the prompts, beginning where the store ends, until another would take longer than ``seconds`` of measuring in all (at least two
    are done), or to the last. Cells take turns in rotating order, with the same seed. ``most``: new tokens there is room for behind a prompt, where
    rounds of the longest drafts, all kept, would need too much; default what these need. Returns whether it was interrupted.

    Raises:
        ValueError: no prompt, no cell, rounds < 2, no room for a prompt, or ``most`` less than three rounds may add.
    """
    cells: list[Setting] = list(methods)
    check(questions, cells, rounds_each)
    longest = 1 + max(method.drafter.tree.D for method in methods.values())
    if most is not None and most < 3 * longest:
        raise ValueError(f"most={most} new tokens are not sure to hold two whole rounds of {longest} tokens and one that is cut")
    room = target.context - (most or rounds_each * longest)
    if room < 2:
        raise ValueError(f"{rounds_each} rounds leave no room for a prompt in the context of {target.name!r} ({target.context})")
    texts = [q.fit(target.tokenizer, room)[0] for q in interleave(list(questions))]
    document, done = store.document, min(len(measured(store.cells, cell.key)["ms"]) for cell in cells)
    try:
        if not any(measured(store.cells, cell.key)["ms"] for cell in cells):  # lazily made tables, thread pools, kernels
            for cell in cells:
                measure(target, methods[cell], cell, texts[0][-8:], 2, seed)
        for index in range(done, len(texts)):
            if seconds is not None and index >= FEWEST and document["spent"] * (index + 1) / index > seconds:
                break
            before = [token for text in (*texts[index + 1 :], *texts[:index]) for token in text]
            long = [*before, *texts[index]][-min(LONG, room) :]
            for turn in range(len(cells)):
                cell = cells[(turn + 7 * index) % len(cells)]
                have = store.cells.setdefault(cell.key, {"accepted": [], "ms": []})
                if len(have["ms"]) > index:
                    continue
                if progress:
                    part = (index + turn / len(cells)) / len(texts)
                    progress(part if seconds is None else document["spent"] / max(seconds, 1e-9), f"prompt {index + 1}: {cell.key}")
                began = time.monotonic()
                ids = long if cell.long else texts[index]
                found = measure(target, methods[cell], cell, ids, rounds_each, seed + index, most, split)
                document["spent"] = round(document["spent"] + time.monotonic() - began, 3)
                for name, value in found.items():
                    have.setdefault(name, []).append(value)
                store.save()
    except KeyboardInterrupt:
        return True
    return False


def check(questions: Sequence[Any], cells: Sequence[Any], rounds_each: int) -> None:
    """Raises ValueError: nothing to measure, or on nothing."""
    if rounds_each < 2 or not questions or not cells:
        raise ValueError(f"rounds must be >= 2, with a prompt and a cell; got {rounds_each} rounds, {len(questions)} prompts, {len(cells)} cells")


def measure(
    target: Target, method: Method, cell: Setting, ids: list[int], count: int, seed: int, most: int | None = None, split: bool = False
) -> dict[str, Any]:
    """``count`` rounds: ``accepted``, drafted tokens kept in each, and ``ms``, the median of all rounds' milliseconds but the first's, which has the
    prompt in it. Fewer rounds where ``most`` new tokens are reached before; the last one is then left out, as it may be cut.

    With ``split`` also ``drafted``, tokens offered in each round, ``mean``, the mean of all rounds' milliseconds but the first's, and ``parts``, what
    they consist of: drafting without the search, search (of drafters that have one), the target's forward and the rule, the rest. No parts where a
    clock would keep rounds from being recorded as graphs.
    """

    def now() -> float:
        if target.device.type == "cuda":
            torch.cuda.synchronize(target.device)
        return time.perf_counter()

    def laps() -> list[float]:
        search = getattr(method.drafter, "spent", {}).get("search", 0.0)
        draft, score, verify = (clock.seconds[part] for part in ("draft", "score", "verify")) if clock else (0.0, 0.0, 0.0)
        return [draft - search, search, score + verify]

    clock = Clock(target.device) if split and (target.device.type == "cpu" or not method.drafter.captured) else None
    whole = count * (1 + method.drafter.tree.D)  # never reached before the last round is over
    tokens = min(whole, most or whole)
    loop = rounds(target, [ids], method, max_new_tokens=tokens, temperature=cell.temperature, seed=[seed], eos=(), layout=cell.layout, clock=clock)
    at, kept, drafted, first = [now()], [], [], [0.0] * 3
    for step in islice(loop, count):
        at.append(now())
        if len(at) == 2:
            first = laps()
        kept.append(step.verdict.accepted)
        drafted.append(step.draft.valid[:, 1:].sum(1))
    last = laps()
    loop.close()  # type: ignore[attr-defined]
    accepted = torch.cat(kept).tolist()
    if tokens < whole and sum(accepted) + len(accepted) >= tokens and len(accepted) > 1:
        del accepted[-1], drafted[-1]
    found: dict[str, Any] = {"accepted": accepted, "ms": round(1000 * median(b - a for a, b in pairwise(at[1:])), 3)}
    if split:
        each = 1000 / (len(at) - 2)
        mean, parts = each * (at[-1] - at[1]), [each * (b - a) for a, b in zip(first, last, strict=True)]
        found |= {
            "drafted": torch.cat(drafted).tolist(), "mean": round(mean, 4),
            "parts": [round(x, 4) for x in (*parts, mean - sum(parts))] if clock else [],
        }  # fmt: skip
    return found


def measured(cells: dict[str, Any], key: str) -> dict[str, list]:
    return cells.get(key, {"accepted": [], "ms": []})


def values(cells: dict[str, Any], key: str, plain: str, what: str) -> list[float]:
    """By prompt: "tau"; "pace", rounds in the time of a round of plain decoding (the cell ``plain``) on the same prompt; "speedup", their product."""
    have = measured(cells, key)
    tau = [1 + sum(kept) / len(kept) for kept in have["accepted"]]
    if what == "tau":
        return tau
    pace = [a / b for a, b in zip(measured(cells, plain)["ms"], have["ms"], strict=False)]
    return pace if what == "pace" else [t * s for t, s in zip(tau, pace, strict=False)]
