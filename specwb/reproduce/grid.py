"""A grid of settings measured side by side: every prompt by every cell before the next prompt, a fixed number of rounds each.

A fixed number of rounds rather than of tokens: tau is then a plain mean that no limit cuts, and prompts are independent repetitions of equal
weight. Texts go on past an end of text token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import fmean, median
from typing import Any, Protocol

import torch

from specwb.engine import Clock, rounds
from specwb.evaluation.prompts import Question, interleave
from specwb.evaluation.statistics import mean_and_error
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.target import Target
from specwb.reproduce.store import Store

LONG = 512
FEWEST = 2  # prompts: below, there is no standard error
PARTS = ("draft", "search", "verify", "rest")  # of a round's time


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


@dataclass(frozen=True)
class Cell:
    """A method as it is typed; ``variant``: the name of the trained head it decodes with, where there are several."""

    spec: str
    variant: str = ""
    temperature: float = 0.0
    layout: str = "tree"
    long: bool = False

    @property
    def key(self) -> str:
        return f"T={self.temperature:g} {self.spec}{f' [{self.variant}]' if self.variant else ''}"

    @property
    def kind(self) -> str:
        """The method's key in the registry."""
        return self.spec.partition(":")[0]

    @property
    def plain(self) -> Cell:
        """Plain decoding at the same temperature: what a speedup is over."""
        return Cell("ar", temperature=self.temperature)

    def method(self, target: Target, head: Any = None, **options: Any) -> Method:
        """``head``: a trained model or its folder, instead of the target's own; ``options``: others that are no text."""
        return make_method(self.spec, target, **options, **({} if head is None else {"head": head}))


def shape(method: Method) -> dict[str, Any]:
    """The largest tree a method drafts."""
    limits = method.drafter.limits
    return {"nodes": limits.nodes, "depth": limits.depth, "chain": limits.children <= 1}


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
    """Fill ``store.cells[cell.key]``, for every cell of ``methods``, with what :func:`measure` finds of every prompt; their domains are
    ``store.document["domains"]``.

    Goes through the prompts, beginning where the store ends, until another would take longer than ``seconds`` of measuring in all (at least two
    are done), or to the last. Cells take turns in rotating order, with the same seed. ``most``: new tokens there is room for behind a prompt, where
    rounds of the longest drafts, all kept, would need too much; default what these need. Returns whether it was interrupted.

    Raises:
        ValueError: no prompt, no cell, rounds < 2, no room for a prompt, or ``most`` less than three rounds may add.
    """
    cells: list[Setting] = list(methods)
    check(questions, cells, rounds_each)
    longest = 1 + max(method.drafter.limits.depth for method in methods.values())
    if most is not None and most < 3 * longest:
        raise ValueError(f"most={most} new tokens are not sure to hold two whole rounds of {longest} tokens and one that is cut")
    room = target.context - (most or rounds_each * longest)
    if room < 2:
        raise ValueError(f"{rounds_each} rounds leave no room for a prompt in the context of {target.name!r} ({target.context})")
    asked = interleave(list(questions))
    texts = [q.fit(target.tokenizer, room)[0] for q in asked]
    store.document["domains"] = [q.subtask for q in asked]
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

    With ``split`` also ``drafted``, tokens offered in each round, of trees ``levels``, how deep they lie, ``mean``, the mean of all rounds'
    milliseconds but the first's, and ``parts``, what they consist of: drafting without the search, search (of drafters that have one), the target's
    forward and the rule, the rest. No parts where a clock would keep rounds from being recorded as graphs.
    """

    def now() -> float:
        if target.device.type == "cuda":
            torch.cuda.synchronize(target.device)
        return time.perf_counter()

    def laps() -> list[float]:
        search = getattr(method.drafter, "spent", {}).get("search", 0.0)
        draft, score, verify = (clock.seconds[part] for part in ("draft", "score", "verify")) if clock else (0.0, 0.0, 0.0)
        return [draft - search, search, score + verify]

    eager = target.device.type == "cpu" or not method.drafter.captured or cell.layout != "tree"
    clock = Clock(target.device) if split and eager else None
    whole = count * (1 + method.drafter.limits.depth)  # never reached before the last round is over
    tokens = min(whole, most or whole)
    loop = rounds(target, [ids], method, max_new_tokens=tokens, temperature=cell.temperature, seed=[seed], eos=(), layout=cell.layout, clock=clock)
    at, kept, drafted, levels, first = [now()], [], [], [], [0.0] * 3
    for step in islice(loop, count):
        at.append(now())
        if len(at) == 2:
            first = laps()
        kept.append(step.verdict.accepted)
        drafted.append(step.draft.valid[:, 1:].sum(1))
        levels.append((step.draft.valid * step.draft.tree.depth).amax(1))
    last = laps()
    loop.close()  # type: ignore[attr-defined]
    accepted = torch.cat(kept).tolist()
    if tokens < whole and sum(accepted) + len(accepted) >= tokens and len(accepted) > 1:
        del accepted[-1], drafted[-1], levels[-1]
    found: dict[str, Any] = {"accepted": accepted, "ms": round(1000 * median(b - a for a, b in pairwise(at[1:])), 3)}
    if split:
        each = 1000 / (len(at) - 2)
        mean, parts = each * (at[-1] - at[1]), [each * (b - a) for a, b in zip(first, last, strict=True)]
        found |= {
            "drafted": torch.cat(drafted).tolist(), "mean": round(mean, 4),
            "parts": [round(x, 4) for x in (*parts, mean - sum(parts))] if clock else [],
        }  # fmt: skip
        if method.drafter.limits.children > 1:
            found["levels"] = torch.cat(levels).tolist()
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


def split_values(cells: dict[str, Any], cell: Cell, what: str) -> list[float]:
    """By prompt, of what was measured with ``split``: "tau", "accepted" (tau - 1), "drafted" (tokens) and "levels" (how deep they lie), of
    all rounds; "ms", a mean round's, and "speedup", of all but the first; or a part of "ms".
    """
    have: dict[str, Any] = cells.get(cell.key, {"accepted": []})
    if what in ("tau", "accepted"):
        return [fmean(kept) + (what == "tau") for kept in have["accepted"]]
    if what == "drafted":
        return [fmean(n) for n in have.get("drafted", [])]
    if what == "levels":
        return [fmean(n) for n in have.get("levels", have.get("drafted", []))]
    if what in PARTS:
        return [parts[PARTS.index(what)] for parts in have.get("parts", []) if parts]
    own = have.get("mean", [])
    if what == "ms":
        return own
    tokens = [1 + fmean(kept[1:]) for kept in have["accepted"]]
    return [t * a / b for t, a, b in zip(tokens, cells.get(cell.plain.key, {}).get("mean", []), own, strict=False)]


def by_domain(values: Sequence[float], domains: Sequence[str]) -> dict[str, float]:
    """Means over the prompts of each domain."""
    mine = {d: [x for x, at in zip(values, domains, strict=False) if at == d] for d in dict.fromkeys(domains)}
    return {d: round(fmean(xs), 4) for d, xs in mine.items() if xs}


def split_row(document: dict[str, Any], cell: Cell, values: Callable[[dict[str, Any], Any, str], list[float]] = split_values) -> dict[str, Any]:
    """One cell's figures, means over prompts: tau with its standard error, accepted = tau - 1, tokens drafted a round, kept and tested by depth (of
    chains), milliseconds of a round and of its parts, speedup; accepted and speedup also by domain."""
    cells, domains = document["cells"], document["domains"]
    found = {what: values(cells, cell, what) for what in ("tau", "accepted", "ms", "speedup", *PARTS)}
    mean, error = mean_and_error(found["tau"])
    have, shape = cells[cell.key], document["shapes"][cell.key]
    rounds = [pair for kept, drafted in zip(have["accepted"], have["drafted"], strict=True) for pair in zip(kept, drafted, strict=True)]
    depth = max((drafted for _, drafted in rounds), default=0) if shape["chain"] else 0
    return {
        "cell": cell.key, "spec": cell.spec, "temperature": cell.temperature, **shape, "prompts": len(found["tau"]),
        "tau": round(mean, 4), "tau_error": None if error != error else round(error, 4), "accepted": round(mean - 1, 4),
        "drafted": round(fmean(drafted for _, drafted in rounds), 3), "by_domain": by_domain(found["accepted"], domains),
        "speedup_by_domain": by_domain(found["speedup"], domains),
        "by_depth": [[sum(a >= d for a, _ in rounds), sum(a >= d - 1 and n >= d for a, n in rounds)] for d in range(1, depth + 1)],
        "ms_per_round": round(fmean(found["ms"]), 4),
        "parts": {part: round(fmean(found[part]), 4) for part in PARTS if found[part]},
        "speedup": round(fmean(found["speedup"]), 4) if found["speedup"] else None,
    }  # fmt: skip


def fastest(rows: Sequence[Mapping[str, Any]], key: str, name: str) -> list[str]:
    """A line on the fastest of a method's settings at T = 0, none where none was measured."""
    ours = [r for r in rows if r["spec"].startswith(key) and r["speedup"] and r["temperature"] == 0]
    if not ours:
        return []
    best = max(ours, key=lambda r: r["speedup"])
    return [f"Fastest of {len(ours)} settings of {name} at T = 0, chosen on these prompts: {best['spec']}, {best['speedup']:.2f}x."]
