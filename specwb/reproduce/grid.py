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

from specwb.engine import rounds
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
) -> bool:
    """Fill ``store.cells[cell.key]``, for every cell of ``methods``, with ``accepted`` (drafted tokens kept, by prompt and round) and ``ms`` (a
    round's, by prompt).

    Goes through the prompts, beginning where the store ends, until another would take longer than ``seconds`` of measuring in all (at least two
    are done), or to the last. Cells take turns in rotating order, with the same seed. Returns whether it was interrupted.

    Raises:
        ValueError: no prompt, no cell, rounds < 2, or no room for a prompt.
    """
    cells: list[Setting] = list(methods)
    check(questions, cells, rounds_each)
    room = target.context - rounds_each * (1 + max(method.drafter.tree.D for method in methods.values()))
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
                accepted, ms = measure(target, methods[cell], cell, long if cell.long else texts[index], rounds_each, seed + index)
                document["spent"] = round(document["spent"] + time.monotonic() - began, 3)
                have["accepted"].append(accepted)
                have["ms"].append(round(ms, 3))
                store.save()
    except KeyboardInterrupt:
        return True
    return False


def check(questions: Sequence[Any], cells: Sequence[Any], rounds_each: int) -> None:
    """Raises ValueError: nothing to measure, or on nothing."""
    if rounds_each < 2 or not questions or not cells:
        raise ValueError(f"rounds must be >= 2, with a prompt and a cell; got {rounds_each} rounds, {len(questions)} prompts, {len(cells)} cells")


def measure(target: Target, method: Method, cell: Setting, ids: list[int], count: int, seed: int) -> tuple[list[int], float]:
    """``count`` rounds: drafted tokens kept in each, and the median of all rounds' milliseconds but the first's, which has the prompt in it."""

    def now() -> float:
        if target.device.type == "cuda":
            torch.cuda.synchronize(target.device)
        return time.perf_counter()

    tokens = count * (1 + method.drafter.tree.D)  # never reached before the last round is over
    loop = rounds(target, [ids], method, max_new_tokens=tokens, temperature=cell.temperature, seed=[seed], eos=(), layout=cell.layout)
    at, accepted = [now()], []
    for step in islice(loop, count):
        at.append(now())
        accepted.append(step.verdict.accepted)
    loop.close()  # type: ignore[attr-defined]
    return torch.cat(accepted).tolist(), 1000 * median(b - a for a, b in pairwise(at[1:]))


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
