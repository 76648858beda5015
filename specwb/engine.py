"""The one loop. ``rounds`` is the public generator, ``decode`` is ``rounds`` run to its end and nothing else."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specwb.drafters.base import Drafter
from specwb.flow import Draft, Law, Scores, State, Step, Verdict
from specwb.graphs import ARENAS, RECORDERS, Arena
from specwb.inputs import (
    Prompt,
    PromptError,
    Prompts,
    as_int,
    eos_ids,
    is_many,
    plain,
    read_prompts,
    token_rows,
)
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.backbone import check_unhooked
from specwb.models.layout import LAYOUTS
from specwb.models.target import Target
from specwb.noise import ACCEPT, CLOSE, DRAFT, Noise, row_seeds
from specwb.probability import Sampling, inverse_cdf

__all__ = ["Clock", "Output", "Prompt", "PromptError", "decode", "rounds", "token_rows", "trim"]


class DraftError(ValueError):
    """A drafter proposed something that is no draft, or tokens that are no ids."""


@dataclass
class Clock:
    """Seconds spent in the four parts of a round; synchronises the device, so it is for measuring only."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("draft", "score", "verify", "commit"), 0.0))
    _last: float = 0.0

    def start(self) -> None:
        self._last = self._now()

    def lap(self, part: str) -> None:
        now = self._now()
        self.seconds[part] += now - self._last
        self._last = now

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def trim(verdict: Verdict, draft: Draft, state: State) -> tuple[Verdict, Tensor]:
    """Cut the block at the end of text or at the limit, before anything is committed.

    The last token that stays becomes the closing token, so that the result is an ordinary verdict: tokens, features, caches
    and statistics are all cut alike. Returns the verdict (with ``emitted``) and ``done [B]``.
    """
    drafted = draft.tokens.gather(1, verdict.path)
    accepted = verdict.accepted
    width = verdict.path.shape[1]
    place = torch.arange(width, device=accepted.device)
    emitted = torch.cat([drafted[:, 1:], verdict.closing[:, None]], 1)
    emitted = torch.where(place == accepted[:, None], verdict.closing[:, None], emitted)
    count = torch.minimum(accepted + 1, state.limit - state.known)
    if state.eos.numel():
        stops = (emitted[:, :, None] == state.eos).any(-1) & (place < count[:, None])
        ended, at = stops.max(1)
        count = torch.where(ended, at + 1, count)
        done = ended | (state.known + count >= state.limit)
    else:
        done = state.known + count >= state.limit
    count = torch.where(state.done, 0, count)
    short = (count - 1).clamp_min(0)
    path = verdict.path.gather(1, torch.minimum(place, short[:, None]))
    return Verdict(path, count - 1, emitted.gather(1, short[:, None]).squeeze(1), verdict.law, emitted, verdict.ahead), done | state.done


def rounds(
    target: Target,
    prompts: Prompts,
    method: str | Method = "ar",
    *,
    max_new_tokens: int | Sequence[int] = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | Sequence[int] | torch.Generator = 0,
    eos: int | Sequence[int] | None = None,
    trace: bool = False,
    clock: Clock | None = None,
    graphs: bool | None = None,
    rescore: Callable[[State, Draft, Scores], Scores] | None = None,
    layout: str = "tree",
    **options,
) -> Iterator[Step]:
    """Decode round by round: each item is one draft-score-verify-commit cycle, one target forward.

    Args:
        prompts: a text, token ids or a chat's messages, or a batch of them (rows of different
            lengths are fine); what a tokenizer or ``apply_chat_template`` returned is taken by its
            ``input_ids`` without their padding, see :func:`specwb.inputs.read_prompts`.
        method: ``"mcsd"``, ``"mcsd:tree=4-2-2"``, or what :func:`specwb.method` returned; ``options`` are the method's own.
        max_new_tokens: for all rows, or one a row.
        temperature: 0 is greedy. top_k, top_p: filters; 0 and 1 switch them off.
        seed: an integer, or one a row. A row's uniforms depend on its own seed and on positions
            only, so a row with its own seed has the same distribution alone and in a batch, and the
            same text up to rounding: logits of another batch shape differ in their last bits, which
            decides where a uniform lies that close to a boundary of a CDF or of a test, or two
            logits tie that closely. In float32 that happens now and then, in float64 the tests
            compare for equality.
        eos: ids that end a row; default the target's own, ``()`` for none.
        trace: keep scores and uniforms in every step, for :func:`specwb.explain`.
        graphs: run rounds as CUDA graphs (see :mod:`specwb.graphs`); default where the device and the drafter allow it, ``False`` is
            eager. Traced, clocked and rescored decodings are always eager.
        rescore: puts other scores in the place of the target's, every round
            (:mod:`specwb.custom_generate` applies logits processors so). The decoding is lossless
            for the law they describe.
        layout: how the target is run over a draft, ``"tree"`` or ``"batch"``, see :meth:`Target.score`; what is decided is the same.
            ``"batch"`` is always eager.
    Raises:
        PromptError, ValueError, LawMismatch, LoadError: before any work is done.
        UnsupportedModel: a hook or a patched forward on one of the target's modules.
    """
    if not isinstance(target, Target):
        raise TypeError(f"target must come from specwb.load(...), got {type(target).__name__}")
    check_unhooked(target.model, target.name)  # after loading hooks may have been put on it
    sampling = Sampling(temperature, top_k, top_p)
    chosen = method if isinstance(method, Method) else make_method(method, target, **options)
    if isinstance(method, Method) and options:
        raise ValueError(f"options {', '.join(options)} belong to specwb.method(...), not beside a finished method")
    rule = chosen.rule_for(sampling)
    rows, _ = read_prompts(target, prompts)
    budgets = _budgets(max_new_tokens, len(rows))
    for i, (row, budget) in enumerate(zip(rows, budgets, strict=True)):
        if len(row) + budget > target.context:
            raise PromptError(
                f"prompt {i} has {len(row)} tokens; with max_new_tokens={budget} it exceeds the context of {target.name!r} ({target.context})"
            )
    ends = target.ends if eos is None else eos_ids(eos, target.vocabulary)
    if graphs and target.device.type not in RECORDERS:
        raise ValueError(f"graphs=True needs a CUDA device, the target is on {target.device}; leave it out to run eagerly")
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be {' or '.join(LAYOUTS)}, got {layout!r}")
    if rescore is not None and chosen.drafter.law(sampling) is Law.ROOTS:
        raise ValueError(
            f"{chosen.key}: several roots are drawn before their scores could be changed; decode without logits processors, or with roots=1"
        )
    eager = graphs is False or trace or clock is not None or rescore is not None or layout != "tree"
    static = not eager and target.device.type in RECORDERS and chosen.drafter.captured
    if graphs and not static:
        raise ValueError(
            f"graphs=True: {chosen.key} cannot be captured, or is traced, clocked, rescored or laid out as a batch; leave it out to run eagerly"
        )
    rule.lazy = target.device.type == "cpu" and not static
    seeds = row_seeds(seed, len(rows), target.device)
    return _rounds(target, rows, chosen, rule, sampling, budgets, seeds, ends, trace, clock, static, rescore, layout)


def _budgets(max_new_tokens: int | Sequence[int], rows: int) -> list[int]:
    """How many tokens each row may write."""
    several = plain(max_new_tokens) if is_many(max_new_tokens) else [max_new_tokens] * rows
    budgets = [as_int(one) for one in several]
    if len(budgets) != rows or any(one is None or one < 1 for one in budgets):
        asked = "max_new_tokens must be an integer >= 1, one for all or one a prompt"
        raise PromptError(f"{asked}; got {max_new_tokens!r}")
    return budgets  # type: ignore[return-value]


def _rounds(target, rows, chosen, rule, sampling, budgets, seeds, ends, trace, clock, static, rescore, layout) -> Iterator[Step]:
    arena = _open(target, rows, chosen, rule, sampling, budgets, seeds, ends, static)
    key = (target, len(rows), arena.state.capacity, sampling, tuple(ends))
    if static and (free := chosen.arenas.pop(key, None)):
        with torch.inference_mode():
            free.take(arena)
        arena = free
    state, index, between = arena.state, 0, True
    try:
        while not state.finished:
            # not around the yield: a generator must not leave its caller in inference mode
            with torch.inference_mode():
                between = False
                arena.noise.renew(state.known)
                step = _step(state, target, arena.drafter, rule, arena.noise, clock, trace, index, arena if static else None, rescore, layout)
                between = True
            yield step
            index += 1
    finally:
        if static and between:  # one that broke off inside a round is not used again
            chosen.arenas[key] = arena
            while len(chosen.arenas) > ARENAS:
                chosen.arenas.pop(next(iter(chosen.arenas)))


def _open(target, rows, chosen, rule, sampling, budgets, seeds, ends, static) -> Arena:
    drafter = copy.copy(chosen.drafter)
    with torch.inference_mode():
        tree = drafter.tree
        state = target.open(rows, budgets, max(tree.n, drafter.slots, drafter.window) + 1, sampling, ends, drafter.features, static)
        state.static = static
        drafter.open(state, target)
        if static:
            state.horizon = state.rounded(state.horizon)
        draws = 0 if sampling.greedy else 1
        noise = Noise(seeds, {DRAFT: drafter.uniforms(sampling), ACCEPT: draws * rule.uniforms(tree), CLOSE: draws}, max_step=tree.D + 1)
    return Arena(state, drafter, noise)


def _step(state, target, drafter, rule, noise, clock, trace, index, arena, rescore, layout) -> Step:
    if arena is None:
        known, draft, verdict, scores, accept, close = _round(state, target, drafter, rule, noise, clock, rescore, layout)
    else:
        known, draft, verdict, *_ = arena.run(lambda: _round(state, target, drafter, rule, noise, clock, rescore, layout))
        known, draft, verdict, scores, accept, close = known.clone(), draft.kept(), verdict.kept(), None, None, None
    state.read()
    if clock:
        clock.lap("commit")
    return Step(
        index, known, draft, verdict, scores if trace else None, accept if trace else None, close if trace else None, rule, target.tokenizer, state
    )


def _round(state, target, drafter, rule, noise, clock, rescore, layout):
    """All of a round that happens on the device; nothing here waits for a value of it unless the drafter declares so."""
    if clock:
        clock.start()
    noise.look(state.known)
    known = state.known.clone()
    draft = checked(drafter.propose(state, noise), drafter, state)
    if clock:
        clock.lap("draft")
    try:
        scores = target.score(state, draft, drafter.features, layout)
    except IndexError as error:  # the embedding's; to look at the ids before is a host read
        if wrong := outside(draft, drafter, target):
            raise wrong from error
        raise
    if rescore is not None:
        scores = rescore(state, draft, scores)
    if clock:
        clock.lap("score")
    accept = noise.u(ACCEPT) if rule.uniforms(draft.tree) and not state.sampling.greedy else None
    raw = rule.verify(draft, scores, accept)
    close = None
    if raw.law is not None:
        close = noise.u(CLOSE)[:, 0]
        raw.closing = inverse_cdf(raw.law, close)
        sound = raw.law.gather(1, raw.closing[:, None]).squeeze(1) > 0
    else:
        last = raw.path.gather(1, raw.accepted[:, None]).squeeze(1)
        sound = scores.logits[torch.arange(len(last), device=last.device), last, raw.closing].isfinite()
        if raw.ahead is not None:
            sound = sound & raw.ahead.amax(1).isfinite()
    broken = ~sound & ~state.done
    verdict, done = trim(raw, draft, state)
    if clock:
        clock.lap("verify")
    target.commit(state, draft, verdict, scores)
    drafter.observe(state, draft, verdict, scores)
    state.advance(verdict, done, broken)
    return known, draft, verdict, scores, accept, close


def checked(draft: Draft, drafter: Drafter, state: State) -> Draft:
    """What a drafter proposed, if its shapes and types can be scored.

    Raises:
        DraftError: it cannot.
    """
    name = type(drafter).__name__
    if not isinstance(draft, Draft):
        raise DraftError(f"{name}.propose must return a specwb.Draft, got {draft!r}")
    tree, shape = draft.tree, (state.rows, draft.tree.n)
    if tree.D > drafter.tree.D or tree.n > drafter.tree.n:
        raise DraftError(f"{name} proposed {tree}, larger than its tree, {drafter.tree}")
    for part, dtype in (("tokens", torch.long), ("valid", torch.bool)):
        given = getattr(draft, part)
        if given.dtype != dtype or given.shape != shape:
            wanted = f"{list(shape)} of {dtype}"
            found = f"{list(given.shape)} of {given.dtype}"
            raise DraftError(f"{name}: {part} of a draft must be {wanted}, got {found}")
    return draft


def outside(draft: Draft, drafter: Drafter, target: Target) -> DraftError | None:
    """What to raise where a drafted token is no id of the target's vocabulary."""
    wrong = [x for x in draft.tokens.flatten().tolist() if not 0 <= x < target.vocabulary]
    ids = f"ids are 0..{target.vocabulary - 1}, of invalid nodes too"
    return DraftError(f"{type(drafter).__name__} drafted token {wrong[0]}; {ids}") if wrong else None


@dataclass
class Output:
    """What :func:`decode` returns. Lists have one entry a row.

    tokens: new token ids; text: decoded (None without a tokenizer); rounds: target forwards that emitted something;
    accepted_lengths: drafted tokens kept, by round; tested_lengths: depths at which candidates were put to the test, by round. Of the
    rounds with tested >= d those with accepted >= d are the share accepted at depth d.
    """

    tokens: list[list[int]]
    text: list[str] | str | None
    rounds: list[int]
    seconds: float
    accepted_lengths: list[list[int]]
    tested_lengths: list[list[int]]
    steps: list[Step] = field(default_factory=list, repr=False)

    @property
    def mean_tokens_per_round(self) -> float:
        """tau: tokens a round, the closing token included; 1 for plain decoding."""
        return sum(map(len, self.tokens)) / max(1, sum(self.rounds))

    @property
    def accepted_per_round(self) -> float:
        """tau - 1: drafted tokens kept a round."""
        return self.mean_tokens_per_round - 1

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds


def decode(
    target: Target,
    prompts: Prompts,
    method: str | Method = "ar",
    *,
    max_new_tokens: int | Sequence[int] = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | Sequence[int] | torch.Generator = 0,
    eos: int | Sequence[int] | None = None,
    on_tokens: Callable[[int, list[int], int], None] | None = None,
    trace: bool = False,
    clock: Clock | None = None,
    graphs: bool | None = None,
    rescore: Callable[[State, Draft, Scores], Scores] | None = None,
    layout: str = "tree",
    **options,
) -> Output:
    """Decode to the end: :func:`rounds`, exhausted. Takes the same arguments.

    ::

        target = specwb.load("lab")
        specwb.decode(target, "def fib(n):", "mcsd", tree=(4, 2, 2), temperature=1.0, seed=0).text
        specwb.decode(target, [{"role": "user", "content": "What is 2 + 3?"}], "sps").text

    Args:
        on_tokens: called every round for every unfinished row with (row, new ids, how many of them were drafted); costs one more
            device read a round.
        trace: keep every :class:`Step` in ``steps``.
    """
    if not isinstance(target, Target):
        raise TypeError(f"target must come from specwb.load(...), got {type(target).__name__}")
    rows, single = read_prompts(target, prompts)
    loop = rounds(
        target,
        rows,
        method,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        eos=eos,
        trace=trace,
        clock=clock,
        graphs=graphs,
        rescore=rescore,
        layout=layout,
        **options,
    )
    began = time.perf_counter()
    counts, offers, steps, state = [], [], [], None
    for step in loop:
        state = step.state
        counts.append(step.verdict.count)
        offers.append(_offered(step))
        if trace:
            steps.append(step)
        if on_tokens is not None:
            assert step.verdict.emitted is not None
            for row, (n, ids) in enumerate(zip(step.verdict.count.tolist(), step.verdict.emitted.tolist(), strict=True)):
                if n:
                    on_tokens(row, ids[:n], n - 1)
    assert state is not None
    starts, ends, table = state.start.tolist(), state.known.tolist(), state.tokens.tolist()
    tokens = [row[a:b] for row, a, b in zip(table, starts, ends, strict=True)]
    per_round = torch.stack(counts, 1).tolist()
    lengths = [[n - 1 for n in row if n > 0] for row in per_round]
    # the end of text or the limit may have cut a row's last round short: what it would have tested next is not known
    offered = torch.stack(offers, 1).tolist()
    tested = [[a + m for a, m in zip(row[:-1], more, strict=False)] + row[-1:] for row, more in zip(lengths, offered, strict=True)]
    seconds = time.perf_counter() - began
    text = None if target.tokenizer is None else [target.tokenizer.decode(ids, skip_special_tokens=True) for ids in tokens]
    return Output(tokens, text[0] if single and text else text, [len(row) for row in lengths], seconds, lengths, tested, steps)


def _offered(step: Step) -> Tensor:
    """``[B]``: did the last node that stays have candidates: the last accepted one, or the closing token's where that is a node."""
    last = step.verdict.path.gather(1, step.verdict.accepted.clamp_min(0)[:, None])
    kids = step.draft.tree.kids.expand(len(last), -1, -1)

    def below(node: Tensor) -> tuple[Tensor, Tensor]:
        found = kids.gather(1, node[:, :, None].expand(-1, -1, kids.shape[-1]))[:, 0]
        return found.clamp_min(0), (found >= 0) & step.draft.valid.gather(1, found.clamp_min(0))

    nodes, there = below(last)
    if step.verdict.ahead is not None:
        closing = there & (step.draft.tokens.gather(1, nodes) == step.verdict.closing[:, None])
        _, there = below(nodes.gather(1, closing.int().argmax(1, keepdim=True)))
    return there.any(1)
