"""The one loop. ``rounds`` is the public generator, ``decode`` runs it to its end."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specwb import kernels
from specwb.drafters.base import Drafter
from specwb.drafters.past import Past
from specwb.errors import ArgumentError, SpecwbError
from specwb.flow import Draft, Scheme, Scores, State, Step, Verdict
from specwb.graphs import ARENAS, RECORDERS, Arena
from specwb.inputs import (
    Prompt,
    PromptError,
    Prompts,
    as_int,
    eos_ids,
    is_many,
    read_prompts,
    to_python,
    token_rows,
)
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.attention import ATTENTIONS, backends
from specwb.models.layout import LAYOUTS
from specwb.models.target import Target
from specwb.noise import ACCEPT, BONUS, DRAFT, Noise, row_seeds
from specwb.probability import Sampling, inverse_cdf
from specwb.stops import Stop, Stops, before, stop_texts
from specwb.verify import Rule

__all__ = [
    "Clock",
    "Decoding",
    "DraftError",
    "Output",
    "Prompt",
    "decode",
    "rounds",
    "token_rows",
    "trim",
]

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


@dataclass
class Decoding:
    """A batch that is decoded: what takes part in every step, and the step.

    Attributes:
        target: the model whose distribution is preserved.
        method: the drafter's description and the rule, see :func:`specwb.method`.
        sampling: temperature and filters.
        prompts: token ids, one list a row.
        budgets: how many tokens each row may write.
        seeds: ``[B]``, one a row.
        ends: ids that end a row.
        static: steps are recorded as CUDA graphs and replayed.
        trace: steps keep their scores and uniforms.
        clock: measures the parts of every step.
        rescore: puts other scores in the place of the target's.
        layout: how the target is run over a draft, see :meth:`Target.score`.
        stops: what ends a row beside ``ends``; a host read a step.
        past: what an earlier decoding left, and what this one leaves.
        attention: how it attends to a draft, ``"whole"`` or in ``"parts"``.
        rule: the verification rule under these sampling settings.
        state, drafter, noise: made by :meth:`open`.
    """

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
    past: Past | None = None
    attention: str = "whole"
    rule: Rule = field(init=False)
    state: State = field(init=False)
    drafter: Drafter = field(init=False)
    noise: Noise = field(init=False)

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
            None if self.past is None else self.past.of(self.prompts, self.drafter.features),
        )
        state.static, state.parted = self.static, self.attention == "parts"
        self.drafter.open(state, self.target)
        state.prior = None  # copied by now
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
        arena = self._borrow() if self.static else None
        index, between = 0, True
        try:
            while not self.state.finished:
                # not around the yield: a generator must not leave its caller in inference mode
                with torch.inference_mode(), backends(self.target.device):
                    between = False
                    step = self.step(arena)
                    if self.stops:
                        self._stop(step)
                    between = True
                step.index = index
                yield step
                index += 1
            if self.past is not None:
                self.past.keep(self.state, self.drafter, step.length)
        finally:
            if arena is not None and between:  # one broken off inside a step is not used again
                self._give_back(arena)

    def step(self, arena: Arena | None = None) -> Step:
        """One decoding step and its host read; with an ``arena`` by its graphs."""
        self.noise.renew(self.state.length)
        if arena is None:
            step = self._advance()
        elif self.drafter.staged:
            step = self._advance_in_stages(arena).clone()
        else:
            step = arena.run(self._advance).clone()
        self.state.read()
        self._lap("commit")
        if not self.trace:
            step.scores = step.uniforms = step.bonus_uniform = None
        return step

    def _stop(self, step: Step) -> None:
        """Ends the rows whose text is complete with this step, and cuts it and the step's verdict
        there, as :func:`trim` does. Caches keep what is behind: the rows are done."""
        state, verdict = self.state, step.verdict
        assert self.stops is not None
        assert verdict.emitted is not None
        counts, emitted = verdict.count.tolist(), verdict.emitted.tolist()
        for row, (n, ids) in enumerate(zip(counts, emitted, strict=True)):
            surplus = self.stops.surplus(row, ids[:n]) if n else None
            if surplus is None:
                continue
            state.done[row] = True
            if surplus:
                state.length[row] -= surplus
                verdict.accepted[row] -= surplus
                verdict.bonus[row] = ids[n - 1 - surplus]
                last = n - 1 - surplus
                verdict.path[row, last:] = verdict.path[row, last].clone()
        state.finished = state.finished or bool(state.done.all())

    def _advance(self) -> Step:
        """All of a step that happens on the device. Nothing here waits for a value of it, unless
        the drafter declares so."""
        if self.clock:
            self.clock.start()
        draft = checked(self.drafter.propose(self.state, self.noise), self.drafter, self.state)
        self._lap("draft")
        return self._settle(draft)

    def _advance_in_stages(self, arena: Arena) -> Step:
        """The same, of a drafter that looks at what it has drafted before it goes on: its stages
        and what follows them are recorded apart."""
        state, drafter = self.state, self.drafter
        state.stages = arena.run
        draft = checked(drafter.propose(state, self.noise), drafter, state)
        return state.stage(("settle", draft.tree.n), lambda: self._settle(draft))

    def _settle(self, draft: Draft) -> Step:
        """All of a step that follows the draft."""
        state, target, drafter = self.state, self.target, self.drafter
        length = state.length.clone()
        scores = self._score(draft)
        self._lap("score")
        tests = not state.sampling.greedy and self.rule.uniforms(draft.tree.limits)
        accept = self.noise.u(ACCEPT) if tests else None
        raw = self.rule.verify(draft, scores, accept)  # type: ignore[arg-type]
        bonus_uniform, broken = self._close(raw, scores)
        verdict, done = trim(raw, draft, state)
        self._lap("verify")
        target.commit(state, draft, verdict, scores)
        drafter.observe(state, draft, verdict, scores)
        state.advance(verdict, done, broken)
        tokenizer = target.tokenizer
        return Step(
            0, length, draft, verdict, scores, accept, bonus_uniform, self.rule, tokenizer, state
        )

    def _score(self, draft: Draft) -> Scores:
        try:
            scores = self.target.score(self.state, draft, self.drafter.features, self.layout)
        except IndexError as error:  # the embedding's; to look at the ids before is a host read
            if wrong := outside(draft, self.drafter, self.target):
                raise wrong from error
            raise
        return scores if self.rescore is None else self.rescore(self.state, draft, scores)

    def _close(self, raw: Verdict, scores: Scores) -> tuple[Tensor | None, Tensor]:
        """Draw the closing token of ``raw`` where the rule left that open. Returns its uniforms
        ``[B]`` and which rows ``[B]`` have nothing sound to draw from."""
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
        return uniforms, ~sound & ~self.state.done

    def _lap(self, part: str) -> None:
        if self.clock:
            self.clock.lap(part)

    def _key(self) -> tuple:
        """Decodings with equal keys can take turns in one arena."""
        rows, capacity = self.state.rows, self.state.capacity
        settings = self.sampling, tuple(self.ends), self.attention, kernels.on()
        return self.target, rows, capacity, *settings

    def _borrow(self) -> Arena:
        """The tensors that this method's graphs look at, with this decoding's contents."""
        fresh = Arena(self.state, self.drafter, self.noise)
        arena = self.method.arenas.pop(self._key(), None)
        if arena is None:
            return fresh
        with torch.inference_mode():
            arena.take(fresh)
        self.state, self.drafter, self.noise = arena.state, arena.drafter, arena.noise
        return arena

    def _give_back(self, arena: Arena) -> None:
        free = self.method.arenas
        free[self._key()] = arena
        while len(free) > ARENAS:
            free.pop(next(iter(free)))


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
    rescore: Rescore | None = None,
    layout: str = "tree",
    until: Stop = (),
    past: Past | None = None,
    attention: str = "whole",
    **options,
) -> Iterator[Step]:
    """Decode step by step. A decoding step, or round, is one draft-score-verify-commit cycle with
    one target forward; each item is one of them.

    Args:
        target: what :func:`specwb.load` returned.
        prompts: a text, token ids or a chat's messages, or a batch of them (rows of different
            lengths are fine); what a tokenizer or ``apply_chat_template`` returned is taken by its
            ``input_ids`` without their padding, see :func:`specwb.inputs.read_prompts`.
        method: ``"mcsd"``, ``"mcsd:tree=4-2-2"``, or what :func:`specwb.method` returned.
        max_new_tokens: for all rows, or one a row.
        temperature: 0 is greedy.
        top_k: only so many most probable tokens; 0 is all of them.
        top_p: the smallest set of tokens with so much probability; 1 is all of them.
        seed: an integer, or one a row. A row's uniforms depend on its own seed and on positions
            only, so a row with its own seed has the same distribution alone and in a batch, and the
            same text up to rounding: logits of another batch shape differ in their last bits, which
            decides where a uniform lies that close to a boundary of a CDF or of a test, or two
            logits tie that closely. In float32 that happens now and then, in float64 the tests
            compare for equality.
        eos: ids that end a row; default the target's own, ``()`` for none.
        trace: keep scores and uniforms in every step, for :func:`specwb.explain`.
        clock: measures the parts of every step.
        graphs: run steps as CUDA graphs (see :mod:`specwb.graphs`); default where the device and
            the drafter allow it, ``False`` is eager. Traced, clocked and rescored decodings are
            always eager.
        rescore: puts other scores in the place of the target's, every step
            (:mod:`specwb.custom_generate` applies logits processors so). The decoding is lossless
            for the distribution they describe.
        layout: how the target is run over a draft, ``"tree"`` or ``"batch"``, see
            :meth:`Target.score`; what is decided is the same. ``"batch"`` is always eager.
        until: texts that end a row with the token that completes one of them, or a function of
            (row, all its new token ids) that is asked after every step; costs a host read a step.
        past: what the decoding before this one left of the same beginnings is not computed again;
            afterwards it is what this one leaves, see :class:`specwb.drafters.past.Past`.
        attention: how the target attends to a draft: ``"whole"``, or in two ``"parts"``, the text
            and the draft, merged (:mod:`specwb.models.attention`); the same up to rounding.
        options: the method's own, where it is named by its key.
    Raises:
        PromptError, MethodError, RuleMismatch, ArgumentError: before any work is done.
        UnsupportedModel: a hook or a patched forward on one of the target's modules.
    """
    check_target(target)
    target.check_hooks()  # after loading hooks may have been put on it
    sampling = Sampling(temperature, top_k, top_p)
    if not isinstance(method, Method):
        method = make_method(method, target, **options)
    elif options:
        names = ", ".join(options)
        raise ArgumentError(
            f"options {names} belong to specwb.method(...), not beside a finished method"
        )
    method.rule_for(sampling)
    rows, _ = read_prompts(target, prompts)
    budgets = _budgets(max_new_tokens, len(rows))
    for i, (row, budget) in enumerate(zip(rows, budgets, strict=True)):
        if len(row) + budget > target.context:
            raise PromptError(
                f"prompt {i} has {len(row)} tokens; with max_new_tokens={budget} it exceeds the"
                f" context of {target.name!r} ({target.context})"
            )
    if layout not in LAYOUTS:
        raise ArgumentError(f"layout must be {' or '.join(LAYOUTS)}, got {layout!r}")
    _check_attention(attention, target, layout)
    if rescore is not None and method.drafter.scheme(sampling) is Scheme.ROOTS:
        raise ArgumentError(
            f"{method.key}: several roots are drawn before their scores could be changed;"
            " decode without logits processors, or with roots=1"
        )
    eager = trace or clock is not None or rescore is not None or layout != "tree"
    decoding = Decoding(
        target,
        method,
        sampling,
        rows,
        budgets,
        row_seeds(seed, len(rows), target.device),
        target.ends if eos is None else eos_ids(eos, target.vocabulary),
        static=_static(target, method, graphs, eager),
        trace=trace,
        clock=clock,
        rescore=rescore,
        layout=layout,
        stops=Stops(until, target.tokenizer, len(rows)),
        past=past,
        attention=attention,
    )
    return iter(decoding)


def _check_attention(attention: str, target: Target, layout: str) -> None:
    """Checks that attention can be computed so.

    Raises:
        ArgumentError: it is no way that there is, or not with this layout or model.
    """
    if attention not in ATTENTIONS:
        raise ArgumentError(f"attention must be {' or '.join(ATTENTIONS)}, got {attention!r}")
    if attention == "parts" and (layout != "tree" or target.backbone.whole):
        why = f"layout={layout!r}" if layout != "tree" else "a model run by the library's forward"
        raise ArgumentError(f"attention='parts' is for our own forward over a tree, not for {why}")


def _static(target: Target, method: Method, graphs: bool | None, eager: bool) -> bool:
    """Whether steps are recorded: where nothing forbids it, unless ``graphs`` is False.

    Raises:
        ArgumentError: it was asked for and cannot be.
    """
    recorder = target.device.type in RECORDERS
    if graphs and not recorder:
        raise ArgumentError(
            f"graphs=True needs a CUDA device, the target is on {target.device}; leave it out to"
            " run eagerly"
        )
    drafts = getattr(method.drafter, "backbone", target.backbone)  # of a draft model, or its own
    captured = method.drafter.captured and target.backbone.captured and drafts.captured
    static = graphs is not False and not eager and recorder and captured
    if graphs and not static:
        raise ArgumentError(
            f"graphs=True: {method.key} or a model of it cannot be captured, or is traced, clocked,"
            " rescored or laid out as a batch; leave it out to run eagerly"
        )
    return static


def check_target(target: object) -> None:
    """Checks that this is a target.

    Raises:
        ArgumentError: it is something else, such as a model's name.
    """
    if not isinstance(target, Target):
        kind = type(target).__name__
        given = f"{kind} {target!r}" if isinstance(target, str) else kind
        raise ArgumentError(f"target must come from specwb.load(...), got {given}")


def _budgets(max_new_tokens: int | Sequence[int], rows: int) -> list[int]:
    """How many tokens each row may write."""
    several = to_python(max_new_tokens) if is_many(max_new_tokens) else [max_new_tokens] * rows
    budgets = [as_int(one) for one in several]
    if len(budgets) != rows or any(one is None or one < 1 for one in budgets):
        wanted = "max_new_tokens must be an integer >= 1, one for all or one a prompt"
        raise PromptError(f"{wanted}; got {max_new_tokens!r}")
    return budgets  # type: ignore[return-value]


def checked(draft: Draft, drafter: Drafter, state: State) -> Draft:
    """What a drafter proposed, if its shapes and types can be scored.

    Raises:
        DraftError: it cannot.
    """
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
            wanted = f"{list(shape)} of {dtype}"
            got = f"{list(tensor.shape)} of {tensor.dtype}"
            raise DraftError(f"{name}: {part} of a draft must be {wanted}, got {got}")
    return draft


def outside(draft: Draft, drafter: Drafter, target: Target) -> DraftError | None:
    """What to raise where a draft token is no id of the target's vocabulary."""
    wrong = [x for x in draft.tokens.flatten().tolist() if not 0 <= x < target.vocabulary]
    if not wrong:
        return None
    ids = f"ids are 0..{target.vocabulary - 1}, of invalid nodes too"
    return DraftError(f"{type(drafter).__name__} drafted token {wrong[0]}; {ids}")


def trim(verdict: Verdict, draft: Draft, state: State) -> tuple[Verdict, Tensor]:
    """Cut the block at the end of text or at the limit, before anything is committed.

    The last token that stays becomes the closing token, so that the result is an ordinary verdict:
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


@dataclass
class Output:
    """What :func:`decode` returns. Every list has one entry a prompt, for a single prompt too.

    Attributes:
        tokens: new token ids.
        texts: the same, decoded, up to a text of ``until``; None without a tokenizer.
        step_counts: target forwards that wrote something.
        seconds: of the whole decoding.
        accepted_lengths: draft tokens kept, by step.
        tested_lengths: depths at which candidates were put to the test, by step. Of the steps with
            tested >= d those with accepted >= d are the share accepted at depth d.
        steps: with ``trace=True`` every :class:`Step` of the batch.
    """

    tokens: list[list[int]]
    texts: list[str] | None
    step_counts: list[int]
    seconds: float
    accepted_lengths: list[list[int]]
    tested_lengths: list[list[int]]
    steps: list[Step] = field(default_factory=list, repr=False)

    @property
    def text(self) -> str | None:
        """The text of the one prompt; None without a tokenizer.

        Raises:
            ArgumentError: there were several prompts, whose texts are in ``texts``.
        """
        if self.texts is None:
            return None
        if len(self.texts) != 1:
            raise ArgumentError(f"the output has {len(self.texts)} texts, one a prompt: see .texts")
        return self.texts[0]

    @property
    def mean_tokens_per_step(self) -> float:
        """tau: tokens a step, the closing token included; 1 for plain decoding."""
        return sum(map(len, self.tokens)) / max(1, sum(self.step_counts))

    @property
    def accepted_per_step(self) -> float:
        """tau - 1: draft tokens kept a step."""
        return self.mean_tokens_per_step - 1

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
    rescore: Rescore | None = None,
    layout: str = "tree",
    until: Stop = (),
    past: Past | None = None,
    attention: str = "whole",
    **options,
) -> Output:
    """Decode to the end: :func:`rounds`, exhausted. Takes the same arguments::

        target = specwb.load("lab")
        specwb.decode(target, "def fib(n):", "mcsd", tree=(4, 2, 2), temperature=1.0, seed=0).text
        specwb.decode(target, [{"role": "user", "content": "What is 2 + 3?"}], "sps").text

    Args:
        on_tokens: called every step for every unfinished row with (row, new ids, how many of them
            were drafted); costs one more device read a step.
        trace: keep every :class:`Step` in ``steps``.
    """
    check_target(target)
    if on_tokens is not None and not callable(on_tokens):
        raise ArgumentError(f"on_tokens must be a function, got {on_tokens!r}")
    rows, _ = read_prompts(target, prompts)
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
        until=until,
        past=past,
        attention=attention,
        **options,
    )
    began = time.perf_counter()
    counts, offers, steps, state = [], [], [], None
    for step in loop:
        state = step.state
        counts.append(step.verdict.count)
        offers.append(step.offered())
        if trace:
            steps.append(step)
        if on_tokens is not None:
            _report(step, on_tokens)
    assert state is not None
    starts, ends, table = state.start.tolist(), state.length.tolist(), state.tokens.tolist()
    tokens = [row[a:b] for row, a, b in zip(table, starts, ends, strict=True)]
    per_step = torch.stack(counts, 1).tolist()
    accepted = [[n - 1 for n in row if n > 0] for row in per_step]
    # the end of text or the limit may have cut a row's last step short: what it would have tested
    # next is not known
    offered = torch.stack(offers, 1).tolist()
    tested = [
        [a + m for a, m in zip(row[:-1], more, strict=False)] + row[-1:]
        for row, more in zip(accepted, offered, strict=True)
    ]
    seconds = time.perf_counter() - began
    texts = None
    if target.tokenizer is not None:
        marks = () if callable(until) else stop_texts(until)
        written = (target.tokenizer.decode(ids, skip_special_tokens=True) for ids in tokens)
        texts = [before(text, marks) for text in written]
    return Output(tokens, texts, [len(row) for row in accepted], seconds, accepted, tested, steps)


def _report(step: Step, on_tokens: Callable[[int, list[int], int], None]) -> None:
    """Call ``on_tokens`` for the rows that the step has written in."""
    assert step.verdict.emitted is not None
    counts, emitted = step.verdict.count.tolist(), step.verdict.emitted.tolist()
    for row, (n, ids) in enumerate(zip(counts, emitted, strict=True)):
        if n:
            on_tokens(row, ids[:n], n - 1)
