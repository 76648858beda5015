"""The one loop: a batch that is decoded, step by step (:mod:`specwb.engine.decoding` is its
front)."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specwb.core.errors import SpecwbError
from specwb.core.flow import Draft, Fault, Scores, State, Step, Verdict, offered
from specwb.core.noise import ACCEPT, BONUS, DRAFT, Noise
from specwb.core.probability import Sampling, inverse_cdf
from specwb.core.stops import Stops
from specwb.drafters.base import Drafter
from specwb.engine.graphs import Arena, borrowed
from specwb.engine.methods import Method
from specwb.models.attention import backends
from specwb.models.ranks import settled
from specwb.models.target import Target
from specwb.rules import Rule

__all__ = ["Clock", "Decoding", "DraftError", "trim"]

Rescore = Callable[[State, Draft, Scores], Scores]


class DraftError(SpecwbError, ValueError):
    """A drafter proposed something that is no draft, or tokens that are no ids."""


@dataclass
class Clock:
    """Seconds spent in the four parts of a decoding step.

    It waits for the device at every part, so it is for measuring only.
    """

    device: torch.device
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("draft", "score", "verify", "commit"), 0.0)
    )
    _last: float = 0.0

    def lap(self, part: str = "") -> None:
        """Ends a part of a step; without a name it begins the first one."""
        settled()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if part:
            self.seconds[part] += now - self._last
        self._last = now


@dataclass
class Decoding:
    """A batch that is decoded: the participants of every step, and the step. The arguments are
    those of :func:`specwb.rounds`, checked; ``state``, ``drafter`` and ``noise`` are made by
    :meth:`open`."""

    target: Target
    method: Method
    sampling: Sampling
    prompts: Sequence[Sequence[int]]
    budgets: Sequence[int]
    seeds: Tensor
    ends: Sequence[int] = ()
    static: bool = False
    trace: bool = False
    clock: Clock | None = None
    rescore: Rescore | None = None
    layout: str = "tree"
    stops: Stops | None = None
    rule: Rule = field(init=False)
    state: State = field(init=False)
    drafter: Drafter = field(init=False)
    noise: Noise = field(init=False)
    _horizon: int = field(default=0, init=False, repr=False)  # of the noise that was made last

    def __post_init__(self) -> None:
        self.rule = self.method.rule_for(self.sampling)
        self.rule.lazy = self.target.device.type == "cpu" and not self.static

    def open(self) -> Decoding:
        """Process the prompts and let the drafter prepare; returns itself."""
        with torch.inference_mode(), backends(self.target.device):
            return self._open()

    def _open(self) -> Decoding:
        self.drafter = copy.copy(self.method.drafter)
        limits = self.drafter.limits
        self.state = state = self.target.open(
            self.prompts,
            self.budgets,
            max(limits.nodes, self.drafter.slots, self.drafter.window) + 1,
            self.sampling,
            self.ends,
            self.drafter.features,
            self.static,
        )
        state.static = self.static
        self.drafter.open(state, self.target)
        settled()
        if self.static:
            state.horizon = state.rounded(state.horizon)
        draws = 0 if self.sampling.greedy else 1
        streams = {
            DRAFT: self.drafter.uniforms(self.sampling),
            ACCEPT: draws * self.rule.uniforms(limits),
            BONUS: draws,
        }
        self.noise = Noise(self.seeds, streams, max_step=limits.depth + 1)
        return self

    def __iter__(self) -> Iterator[Step]:
        """Step by step to the end of every row."""
        self.open()
        if not self.static:
            yield from self._steps()
            return
        with borrowed(self) as arena:
            yield from self._steps(arena)

    def _steps(self, arena: Arena | None = None) -> Iterator[Step]:
        # an arena chooses kernels where it records; a replay needs no choice
        tokens = self.state.rows * self.drafter.limits.nodes
        kernels = self.target.kernels(tokens) if arena is None else nullcontext()
        index = 0
        while not self.state.finished:
            # not around the yield: a generator must not leave its caller in inference mode
            with torch.inference_mode(), kernels:
                step = self.step(arena)
                if self.stops:
                    self.stops.cut(self.state, step.verdict)
            step.index, step.stops = index, self.stops
            yield step
            index += 1

    def keep(self, rows: list[int]) -> None:
        """Goes on with these rows alone, between two steps of plain decoding without graphs."""
        kept = torch.tensor(rows, dtype=torch.long, device=self.target.device)
        self.state.keep(kept)
        limits = self.drafter.limits
        self.noise = Noise(self.noise.seeds[kept], self.noise.widths, limits.depth + 1)

    def step(self, arena: Arena | None = None) -> Step:
        """One decoding step and its host read; with an ``arena`` by its graphs."""
        self.noise.renew(self.state.length)
        step = self.advance() if arena is None else arena.step(self)
        settled()
        self.state.read(self.rule.name)
        self._lap("commit")
        if not self.trace:
            step.scores = step.uniforms = step.bonus_uniform = None
        return step

    def advance(self) -> Step:
        """All of a step that happens on the device. Nothing here waits for a value of it, unless
        the drafter declares so."""
        return self.settle(self.draft())

    def draft(self) -> Draft:
        """The drafter's proposal."""
        self._lap()
        if self.sampling.exact_text:
            self.state.gumbel = self.state.stage("gumbel", self._gumbel)
        draft = checked(self.drafter.propose(self.state, self.noise), self.drafter, self.state)
        self._lap("draft")
        return draft

    def _gumbel(self) -> Tensor:
        """``[B,D+1,V]``: the noise of the next places of the text. What a single row was not given
        in the step before is all that is computed for it, where its length is known."""
        state, earlier, places = self.state, self.state.gumbel, self.drafter.limits.depth + 1
        new = places
        if earlier is not None and state.rows == 1 and not state.static:
            new = min(state.horizon - self._horizon, places)
        self._horizon = state.horizon
        ahead = torch.arange(places - new, places, device=self.target.device)
        gumbel = self.noise.gumbel(state.length[:, None] + ahead, self.target.vocabulary)
        if earlier is not None and new < places:
            gumbel = torch.cat([earlier[:, new:], gumbel], 1)
        return gumbel

    def settle(self, draft: Draft) -> Step:
        """All of a step that follows the draft: score, verify, commit."""
        state, drafter, length = self.state, self.drafter, self.state.length.clone()
        scores = self._score(draft)
        self._lap("score")

        tests = not state.sampling.greedy and self.rule.uniforms(draft.tree.limits)
        accept = self.noise.u(ACCEPT) if tests else None
        raw = self.rule.verify(draft, scores, accept)  # type: ignore[arg-type]
        bonus_uniform, fault = self._draw_bonus(raw, scores)
        if self.rule.fixed_number and draft.tree.K > 1:
            uneven = draft.uneven() & ~state.done
            fault = torch.where(uneven, Fault.UNEVEN.value, fault)
        verdict, done = trim(raw, draft, state)
        self._lap("verify")

        self.target.commit(state, draft, verdict, scores)
        drafter.observe(state, draft, verdict, scores)
        state.advance(verdict, done, fault)
        known = length, draft, verdict, offered(draft, verdict), scores, accept, bonus_uniform
        return Step(0, *known, self.rule, self.target.tokenizer, state)

    def _score(self, draft: Draft) -> Scores:
        try:
            scores = self.target.score(self.state, draft, self.drafter.features, self.layout)
        except IndexError as error:  # the embedding's; to look at the ids before is a host read
            check_ids(draft, self.drafter, self.target, error)
            raise
        if self.rescore is not None:
            scores = self.rescore(self.state, draft, scores)
        if self.state.gumbel is not None:
            scores.perturb(draft.tree, self.state.gumbel)
        return scores

    def _draw_bonus(self, raw: Verdict, scores: Scores) -> tuple[Tensor | None, Tensor]:
        """Draw the bonus token of ``raw`` where the rule left that open. Returns its uniforms
        ``[B]`` and a fault ``[B]`` of rows that have nothing sound to draw from."""
        uniforms = None
        if raw.distribution is not None:
            uniforms = self.noise.u(BONUS)[:, 0]
            raw.bonus = inverse_cdf(raw.distribution, uniforms)
            sound = raw.distribution.gather(1, raw.bonus[:, None]).squeeze(1) > 0
        else:
            row = torch.arange(len(raw.accepted), device=raw.accepted.device)
            last = raw.path.gather(1, raw.accepted[:, None]).squeeze(1)
            sound = scores.logits[row, last, raw.bonus].isfinite()
            if raw.next_distribution is not None:
                sound = sound & raw.next_distribution.amax(1).isfinite()
        return uniforms, ~sound & ~self.state.done  # True is Fault.NO_DISTRIBUTION

    def _lap(self, part: str = "") -> None:
        if self.clock:
            self.clock.lap(part)


def checked(draft: Draft, drafter: Drafter, state: State) -> Draft:
    """The draft, if its shapes and types can be scored; otherwise raises :class:`DraftError`."""
    name = type(drafter).__name__
    if not isinstance(draft, Draft):
        raise DraftError(f"{name}.propose must return a specwb.Draft, got {draft!r}")
    tree, limits = draft.tree, drafter.limits
    if limits.depth < tree.D or tree.n > limits.nodes:
        raise DraftError(f"{name} proposed {tree}, larger than its trees may be: {limits}")
    shape = (state.rows, tree.n)
    for part, dtype in (("tokens", torch.long), ("valid", torch.bool)):
        tensor = getattr(draft, part)
        if tensor.dtype != dtype or tensor.shape != shape:
            raise DraftError(
                f"{name}: {part} of a draft must be {list(shape)} of {dtype}, "
                f"got {list(tensor.shape)} of {tensor.dtype}"
            )
    return draft


def check_ids(draft: Draft, drafter: Drafter, target: Target, error: IndexError) -> None:
    """Raises :class:`DraftError` where a draft token is no id of the target's vocabulary."""
    for token in draft.tokens.flatten().tolist():
        if not 0 <= token < target.vocabulary:
            raise DraftError(
                f"{type(drafter).__name__} drafted token {token}; ids are "
                f"0..{target.vocabulary - 1}, of invalid nodes too"
            ) from error


def trim(verdict: Verdict, draft: Draft, state: State) -> tuple[Verdict, Tensor]:
    """Cut the block at the end of text or at the limit, before anything is committed.

    The last token that stays becomes the bonus token, so that the result is an ordinary verdict:
    tokens, features, caches and statistics are all cut alike. Returns the verdict (with
    ``emitted``) and ``done [B]``.
    """
    drafted = draft.tokens.gather(1, verdict.path)
    accepted, bonus = verdict.accepted, verdict.bonus[:, None]
    place = torch.arange(verdict.path.shape[1], device=accepted.device)
    emitted = torch.cat([drafted[:, 1:], bonus], 1)
    emitted = torch.where(place == accepted[:, None], bonus, emitted)
    count = torch.minimum(accepted + 1, state.limit - state.length)
    if state.eos.numel():
        stops = (emitted[:, :, None] == state.eos).any(-1) & (place < count[:, None])
        ended, at = stops.max(1)
        count = torch.where(ended, at + 1, count)
        done = ended | (state.length + count >= state.limit)
    else:
        done = state.length + count >= state.limit
    count = torch.where(state.done, 0, count)
    last = (count - 1).clamp_min(0)[:, None]
    path = verdict.path.gather(1, torch.minimum(place, last))
    bonus = emitted.gather(1, last).squeeze(1)
    cut = Verdict(path, count - 1, bonus, verdict.distribution, emitted, verdict.next_distribution)
    return cut, done | state.done
