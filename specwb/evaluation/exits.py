"""When to stop drafting, asked of every place at once: the round that would begin there, drafted to its whole depth, and what it would have been
with any threshold.

At T = 0 the text is the target's own whatever is drafted, so the rounds of a decoding with any threshold and any smaller depth are among these:
simulating one is exact, and costs nothing.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.drafters.kangaroo import DynamicKangaroo, KangarooDrafter
from specwb.drafters.length import Length
from specwb.drafters.level import Levels
from specwb.drafters.stopping import Confidence, Top
from specwb.engine import decode, rounds
from specwb.evaluation.cost import step_seconds
from specwb.flow import Exactness
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.target import Target
from specwb.probability import Sampling

ROWS = 32  # places drafted together


@dataclass(frozen=True)
class Rounds:
    """Of N places in texts, in order: ``sure[name] [N,D-1]``, how sure of each level but the last; ``kept [N]``, how many levels of the whole draft
    are kept; ``text [N]``, which text the place is in; ``nodes``, of the tree cut at 0..D levels."""

    sure: Mapping[str, np.ndarray]
    kept: np.ndarray
    text: np.ndarray
    nodes: tuple[int, ...]

    @property
    def depth(self) -> int:
        return len(self.nodes) - 1

    def simulate(self, name: str, eta: float, gamma: int | None = None) -> Simulated:
        """The rounds of decoding every text at T = 0 with threshold ``eta`` on sureness ``name`` and at most ``gamma`` levels.

        A round whose end lies beyond a text's last place is the last of that text and counts as it is.

        Raises:
            ValueError: an unknown name, eta outside [0, 1], or gamma outside 1..D.
        """
        gamma = self.depth if gamma is None else gamma
        if name not in self.sure or not 0 <= eta <= 1 or not 1 <= gamma <= self.depth:
            raise ValueError(
                f"name must be one of {', '.join(self.sure)}, eta in [0, 1], gamma in 1..{self.depth}; got {name!r}, {eta}, {gamma}"
            )
        unsure = self.sure[name][:, : gamma - 1] < eta
        drafted = (
            np.where(unsure.any(1), unsure.argmax(1) + 1, gamma)
            if gamma > 1
            else np.full(len(self.kept), 1)
        )
        kept = np.minimum(self.kept, drafted)
        taken = []
        for one in dict.fromkeys(self.text.tolist()):
            places = np.flatnonzero(self.text == one)
            at = 0
            while at < len(places):
                taken.append(places[at])
                at += kept[places[at]] + 1
        return Simulated(kept[taken].tolist(), drafted[taken].tolist(), self.text[taken].tolist())

    def tested(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Confidence of the drafted tokens that a chain's verification comes to, of those that are kept and of the first that is not."""
        level = np.arange(self.depth - 1)
        kept = self.kept[:, None] > level
        return self.sure[name][kept], self.sure[name][self.kept[:, None] == level]


@dataclass(frozen=True)
class Simulated:
    """A decoding's rounds: ``kept`` and ``drafted`` levels of each, and its ``text``."""

    kept: list[int]
    drafted: list[int]
    text: list[int]

    @property
    def cr(self) -> float:
        """Compression rate: tokens a round, the closing one included (tau)."""
        return 1 + fmean(self.kept)

    @property
    def mean_drafted(self) -> float:
        return fmean(self.drafted)

    @property
    def wasted(self) -> float:
        """Drafted levels a round that are not kept."""
        return fmean(self.drafted) - fmean(self.kept)

    def ctar(self, w: int) -> float:
        """Consistent token acceptance rate: share of rounds that keep at least ``w`` levels. ``cr == 1 + sum over w >= 1 of ctar(w)``."""
        return fmean(k >= w for k in self.kept)


class _Listening(Confidence):
    """Says that it is sure, and writes down how sure others are."""

    def __init__(self, others: Mapping[str, Confidence]) -> None:
        self.others, self.heard = dict(others), {name: [] for name in others}  # type: dict[str, Confidence], dict[str, list[Tensor]]

    def of(self, logits: Tensor, hidden: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
        for name, other in self.others.items():
            self.heard[name].append(other.of(logits, hidden, tokens, sampling).float())
        return torch.ones_like(logits[:, 0, 0])


def every_round(
    target: Target,
    prompts: Sequence[Sequence[int]],
    method: Method,
    sures: Mapping[str, Confidence] | None = None,
    *,
    tokens: int = 48,
    progress: Callable[[float], None] | None = None,
) -> Rounds:
    """The round that would begin at each of the first ``tokens`` places of the target's own greedy text after every prompt, drafted to the whole
    depth.

    Args:
        prompts: token ids. method: one that drafts level by level, a chain or a static tree; its own stopping is left out. sures: by name, what is
        written down of every level but the last; default ``{"top": Top()}``. progress: called with the part that is done.
    Raises:
        ValueError: another kind of method, or prompts that leave no room in the context.
    """
    drafter = copy.copy(method.drafter)
    fits = (
        isinstance(drafter, Levels)
        and not isinstance(drafter, DynamicKangaroo)
        and drafter.exactness is Exactness.LOSSLESS
    )
    if not fits or not drafter.tree.in_level_order:
        raise ValueError(
            f"{method.key} does not draft a static tree level by level, or changes the text"
        )
    assert isinstance(drafter, Levels)
    tree = drafter.tree
    sure, kept, text = {name: [] for name in sures or ("top",)}, [], []  # type: dict[str, list[Tensor]], list[int], list[int]
    plain = decode(target, [list(p) for p in prompts], "ar", max_new_tokens=tokens + tree.D, eos=())
    asked = len(prompts) * tokens
    for i, (prompt, new) in enumerate(zip(prompts, plain.tokens, strict=True)):
        for first in range(0, tokens, ROWS):
            places = range(first, min(first + ROWS, tokens))
            ear = _Listening(sures or {"top": Top()})
            drafter.length, drafter.sure, drafter.host_reads = (
                Length(tree.D, confidence=1.0),
                ear,
                max(0, tree.D - 1),
            )
            heard = Method(method.key, drafter, method.rule, Exactness.LOSSLESS)
            # the token before the place is pending, so its round writes the place
            loop = rounds(
                target,
                [[*prompt, *new[:at]] for at in places],
                heard,
                max_new_tokens=tree.D + 1,
                eos=(),
                graphs=False,
            )
            kept += next(iter(loop)).verdict.accepted.tolist()
            loop.close()  # type: ignore[attr-defined]
            text += [i] * len(places)
            for name, values in ear.heard.items():
                sure[name].append(
                    torch.stack(values, 1).cpu() if values else torch.zeros(len(places), 0)
                )
            if progress:
                progress(len(kept) / asked)
    sizes = tuple(stop for _, stop in tree.levels)
    return Rounds(
        {name: torch.cat(values).numpy() for name, values in sure.items()},
        np.array(kept),
        np.array(text),
        sizes,
    )


@dataclass(frozen=True)
class Costs:
    """Seconds on one machine at one length of text. plain: a round of plain decoding. shallow, adapter: one token through the first layers, and
    through adapter and head. round: D -> a round that drafts a chain of D tokens."""

    plain: float
    shallow: float
    adapter: float
    round: dict[int, float]

    @property
    def r(self) -> float:
        """One token through the first layers, over a plain step."""
        return self.shallow / self.plain

    @property
    def a(self) -> float:
        """Adapter and head once, over a plain step."""
        return self.adapter / self.plain

    def seconds(self, drafted: float) -> float:
        """A round that drafts so many tokens, linear between those measured."""
        xs = sorted(self.round)
        return float(np.interp(drafted, xs, [self.round[x] for x in xs]))

    def predicted(self, simulated: Simulated) -> float:
        """Speedup over plain decoding: tokens of the rounds over their seconds, each by what it drafted."""
        rounds = Counter(simulated.drafted)
        return (
            simulated.cr
            * self.plain
            * rounds.total()
            / sum(n * self.seconds(d) for d, n in rounds.items())
        )

    def simple(self, simulated: Simulated) -> float:
        """The same with ``1 + D (r + a)`` plain steps a round: scoring several tokens as cheap as scoring one."""
        return simulated.cr / (1 + simulated.mean_drafted * (self.r + self.a))


def costs(
    target: Target,
    head: object = None,
    prompt: Sequence[int] | None = None,
    *,
    depths: Sequence[int] = (1, 2, 3, 4, 6, 8),
    count: int = 16,
    repeats: int = 3,
) -> Costs:
    """Measure :class:`Costs` of a Kangaroo chain; everything takes turns.

    Args:
        head: an adapter or its folder, default the target's own. prompt: token ids, default 128 times token 1; the rounds are measured behind it.
        depths: of the chains measured. count: rounds each time is a median of.
    Raises:
        MethodError, HeadError: no such adapter. ValueError: no depth, or no room in the context.
    """
    ids = list(prompt) if prompt is not None else [1] * 128
    if not depths or min(depths) < 1:
        raise ValueError(f"depths must be integers >= 1, got {list(depths)}")
    own: dict[str, Any] = {} if head is None else {"head": head}
    # a threshold that is never missed, so that the test for it is paid for
    chains = {
        d: make_method("kangaroo", target, gamma=d, eta=1e-9, **own) for d in dict.fromkeys(depths)
    }
    drafter = chains[depths[0]].drafter
    assert isinstance(drafter, KangarooDrafter)
    plain = make_method("ar", target)
    found: dict[Any, list[float]] = {}
    for _ in range(repeats):
        found.setdefault("plain", []).append(
            step_seconds(target, ids, plain, count, max_new_tokens=count + 1)[1]
        )
        for d, chain in chains.items():
            found.setdefault(d, []).append(
                step_seconds(target, ids, chain, count, max_new_tokens=(count + 1) * (d + 1))[1]
            )
        # parts are never recorded as graphs: their share of a plain step that is not either
        eager = (
            found["plain"][-1]
            if target.device.type == "cpu"
            else step_seconds(target, ids, plain, count, max_new_tokens=count + 1, graphs=False)[1]
        )
        for name, seconds in zip(
            ("shallow", "adapter"), _parts(target, drafter, ids, count), strict=True
        ):
            found.setdefault(name, []).append(seconds * found["plain"][-1] / eager)
    each = {name: median(values) for name, values in found.items()}
    return Costs(each["plain"], each["shallow"], each["adapter"], {d: each[d] for d in chains})


@torch.inference_mode()
def _parts(
    target: Target, described: KangarooDrafter, ids: list[int], count: int
) -> tuple[float, float]:
    """Median seconds of one token through the first layers, and through adapter, head and the choice of a token."""
    drafter = copy.copy(described)
    limits = drafter.limits
    state = target.open(
        [ids], [limits.depth + 1], limits.nodes + 2, Sampling(0.0), (), drafter.features
    )
    drafter.open(state, target)
    drafter.states = []
    at = (state.known - 1)[:, None]
    pending = state.tokens.gather(1, at)

    def first() -> Tensor:
        drafter.states.clear()
        return drafter.shallow(state, pending, at, at, state.horizon, None)

    f = first()

    def second() -> Tensor:
        hidden = drafter.adapted(f, at, at, state.horizon, None)
        return drafter.logits(hidden).argmax(-1)

    return _median(first, target, count), _median(second, target, count)


def _median(run: Callable[[], Any], target: Target, count: int) -> float:
    def now() -> float:
        if target.device.type == "cuda":
            torch.cuda.synchronize(target.device)
        return time.perf_counter()

    at = [now()]
    for _ in range(count + 3):
        run()
        at.append(now())
    return median(b - a for a, b in pairwise(at[3:]))
